#!/bin/bash
# Run on a machine with an NVIDIA GPU, from `make gpu-bundle`'s folder: checks every kernel, then the engine on the models.
#   ./check.sh                  kernels, and the engine's answers on the tiny models beside
#   ./check.sh MODEL [FLAGS]    the engine's answers and speed on MODEL, a .gguf file or a directory; FLAGS as of tailrace_ids
set -uo pipefail
cd "$(dirname "$0")"
failed=0

say() { echo "== $*"; }
run() {
  say "$*"
  "$@" || { echo "FAILED ($?): $*"; failed=1; }
}

speed() {
  run ./tailrace_ids --model "$@" --device cuda --prompts 1 --prompt-len 128 --output-len 256 --stats
  run ./tailrace_ids --model "$@" --device cuda --prompts 16 --prompt-len 128 --output-len 128 --arrivals 5 --stats
}

if [ $# -gt 0 ]; then
  run ./tailrace_ids --model "$@" --device cuda --prompts 8 --prompt-len 300 --output-len 48 --compare
  speed "$@"
else
  for program in bench_*; do run "./$program" check; done
  for model in models/*; do
    [ -f "$model/model.gguf" ] && model=$model/model.gguf
    run ./tailrace_ids --model "$model" --device cuda --prompts 8 --prompt-len 100 --output-len 24 --compare
  done
fi
[ $failed = 0 ] && say "all passed"
exit $failed
