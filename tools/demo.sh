#!/bin/bash
# `make demo`: set up, build, fetch the demo model, serve it and stream one answer. On a terminal the server then stays
# until Ctrl-C; otherwise it is stopped and the exit code says whether an answer came.
set -euo pipefail
cd "$(dirname "$0")/.."

make --no-print-directory build >&2
tools/fetch_demo_model.sh

port_is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
port=8000
while port_is_taken "$port"; do port=$((port + 1)); done

log=build/demo-server.log
# Its own session, so that Ctrl-C reaches this script alone, which then stops the server in order.
setsid ./build/tailrace serve --model models/demo --port "$port" >"$log" 2>&1 </dev/null &
server=$!
stop_server() {
  trap - EXIT INT TERM
  kill -TERM "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
}
trap stop_server EXIT
trap 'stop_server; exit 0' INT TERM

api=http://127.0.0.1:$port
until curl -sf -o /dev/null -m 5 "$api/health"; do
  if ! kill -0 "$server" 2>/dev/null; then
    cat "$log" >&2
    echo "the server did not start" >&2
    exit 1
  fi
  sleep 0.1
done

python3 tools/ask.py "$api" "What is a water wheel, and what is it used for?"
echo
echo "A page to chat, and to watch the engine: $api"
echo "The API is at $api/v1 (OpenAI-compatible), for example:"
echo "  curl $api/v1/chat/completions -H 'content-type: application/json' \\"
echo "    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'"
if [ -t 1 ]; then
  echo "Server log: $log. Ctrl-C stops the server."
  wait "$server"
fi
