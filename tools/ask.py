"""Streams one chat answer from a running server to stdout. Standard library only: the demo must not need packages.

usage: ask.py http://127.0.0.1:8000 "question"
"""
import json
import sys
import time
import urllib.request


def main() -> int:
    api, question = sys.argv[1], sys.argv[2]
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 160,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        api + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    print(f"> {question}\n", flush=True)
    first = last = None
    num_tokens = 0
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            chunk = json.loads(line[len(b"data: "):])
            if "error" in chunk:
                print(chunk["error"].get("message", chunk["error"]), file=sys.stderr)
                return 1
            if chunk.get("usage"):
                num_tokens = chunk["usage"]["completion_tokens"]
            for choice in chunk.get("choices", []):
                text = choice.get("delta", {}).get("content")
                if text:
                    last = time.monotonic()
                    first = first or last
                    print(text, end="", flush=True)
    print(flush=True)
    if first is None:
        print("the answer is empty", file=sys.stderr)
        return 1
    if num_tokens > 1 and last > first:
        print(f"\n{num_tokens} tokens, {(num_tokens - 1) / (last - first):.0f} tokens/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
