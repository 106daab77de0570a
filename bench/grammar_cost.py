"""What grammars cost: decode rates of N requests at once on a running server, plain and under grammars, in turn.

    tailrace serve --model DIR --port 8000 &
    bench/grammar_cost.py --port 8000 --rows 32 --tokens 256

Prints tokens a second of all requests together (best of the rounds), their share of the plain rate, and how many masks
came late. Only full-length answers count: min_tokens holds the end back, or the form is too long to end before max_tokens.
"""
import argparse
import concurrent.futures
import json
import re
import time
import urllib.request

ITEM = {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}, "ok": {"type": "boolean"}},
        "required": ["name", "n", "ok"], "additionalProperties": False}
FORMS = {
    "plain": {"ignore_eos": True},
    "letters (regex)": {"guided_regex": "[A-Za-z ,.]+"},
    "any text (regex)": {"guided_regex": "(.|\n)+"},
    "counted letters (regex)": {"guided_regex": "[A-Za-z ,.]{5000,}"},
    "records (schema)": {"guided_json": {"type": "array", "items": ITEM, "minItems": 100}},
}


def post(port: int, body: dict) -> dict:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


class MaskCounts:
    """Masks, seconds of the threads that compute them, and late masks since the server started."""

    def __init__(self, port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            text = response.read().decode()
        self.masks, self.seconds, self.late = (
            float(re.search(rf"^tailrace_grammar_{name}_total\S* (\S+)$", text, re.MULTILINE)[1])
            for name in ("masks", "mask_seconds", "late_masks"))


def rate(port: int, rows: int, tokens: int, form: dict) -> float:
    def one(row: int) -> int:
        body = {"prompt": f"{row}. A list:", "max_tokens": tokens, "min_tokens": tokens, "seed": row, "temperature": 1, "top_k": 40, **form}
        return post(port, body)["usage"]["completion_tokens"]

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(rows) as pool:
        counts = list(pool.map(one, range(rows)))
    if min(counts) < tokens:
        raise RuntimeError(f"an answer ended after {min(counts)} of {tokens} tokens")
    return rows * tokens / (time.monotonic() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    best, late, cost = dict.fromkeys(FORMS, 0.0), dict.fromkeys(FORMS, 0.0), dict.fromkeys(FORMS, 0.0)
    for form in FORMS.values():  # compiles, and fills what is cached
        rate(options.port, options.rows, 8, form)
    for _ in range(options.rounds):
        for name, form in FORMS.items():
            before = MaskCounts(options.port)
            best[name] = max(best[name], rate(options.port, options.rows, options.tokens, form))
            after = MaskCounts(options.port)
            late[name] += after.late - before.late
            cost[name] = 1e6 * (after.seconds - before.seconds) / max(after.masks - before.masks, 1)
    for name in FORMS:
        print(f"{name:24} {best[name]:9.1f} tok/s {100 * best[name] / best['plain']:6.1f} % of plain, "
              f"{cost[name]:6.1f} us a mask, {late[name]:.0f} masks late")


if __name__ == "__main__":
    main()
