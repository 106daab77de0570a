"""Speed of tailrace beside llama.cpp on the demo model's file, in one run, alternating, with the same threads.

llama.cpp runs in this process through its C interface; tailrace runs as a server and is measured over HTTP, as a client
sees it. Prompts are random token ids, never repeated, so that no prefix cache helps. Needs tools/requirements-bench.txt.
usage: bench_cpu.py [--rounds 5] [--threads 2] [--binary build/tailrace] [--quick]
"""
import argparse
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from llama_peer import LlamaPeer
from sse_client import completion_body, joint_rate, run_streams

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL_FILE = ROOT / "models/demo/SmolLM2-135M-Instruct.Q4_1.gguf"
DECODE_CONTEXTS = (128, 1024)
PREFILL_LENGTHS = (512, 2048)
DECODE_TOKENS = 128
STREAMS, STREAM_PROMPT, STREAM_TOKENS = 8, 128, 128
QUICK_TOKENS, QUICK_STREAM_TOKENS = 16, 64
LONG_PROMPT = 7500   # the model's context is 8192

_random = random.Random(20261130)


def prompt(length: int) -> list[int]:
    return [_random.randrange(1000, 40000) for _ in range(length)]


class Tailrace:
    def __init__(self, binary: str, threads: int):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = tempfile.TemporaryFile()
        self.spawned = time.monotonic()
        self.process = subprocess.Popen(
            [binary, "serve", "--model", str(MODEL_FILE), "--served-model-name", "demo", "--port", str(self.port),
             "--threads", str(threads)], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        while self.get("/health") is None:
            if self.process.poll() is not None:
                self.log.seek(0)
                raise RuntimeError("tailrace did not start:\n" + self.log.read().decode(errors="replace"))
            time.sleep(0.005)

    def get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as response:
                return response.read().decode()
        except (urllib.error.URLError, OSError):
            return None

    def run(self, prompts: list[list[int]], num_tokens: int, **options):
        bodies = [completion_body("demo", ids, num_tokens) for ids in prompts]
        return run_streams(self.port, bodies, **options)

    def prefill_rate(self, ids: list[int]) -> float:
        stream = self.run([ids], 1)[0]
        assert stream.num_cached == 0, "a benchmark prompt was found in the prefix cache"
        return len(ids) / stream.ttft

    def decode_rate(self, prompts: list[list[int]], num_tokens: int) -> float:
        streams = self.run(prompts, num_tokens)
        return streams[0].decode_rate() if len(streams) == 1 else joint_rate(streams)

    def resident_bytes(self) -> int:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)


def start_to_first_token(binary: str, threads: int) -> float:
    server = Tailrace(binary, threads)
    try:
        return server.run([prompt(16)], 1)[0].times[0] - server.spawned
    finally:
        server.stop()


def compare(ours: Tailrace, peer: LlamaPeer, rounds: int, quick: bool) -> dict[str, float]:
    """Runs both in turn, the first one changing from round to round; returns ours / llama.cpp of the medians."""
    decode_tokens, stream_tokens = (QUICK_TOKENS, QUICK_STREAM_TOKENS) if quick else (DECODE_TOKENS, STREAM_TOKENS)
    measures = [(f"decode at {n}", lambda side, n=n: side.decode_rate([prompt(n)], decode_tokens))
                for n in DECODE_CONTEXTS]
    measures += [(f"prefill {n}", lambda side, n=n: side.prefill_rate(prompt(n))) for n in PREFILL_LENGTHS]
    measures += [(f"{STREAMS} streams",
                  lambda side: side.decode_rate([prompt(STREAM_PROMPT) for _ in range(STREAMS)], stream_tokens))]
    for side in (ours, peer):  # warm both: page cache, thread pools, first-use work
        side.prefill_rate(prompt(512))
        side.decode_rate([prompt(16)], 16)
    results: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name, _ in measures}
    for turn in range(rounds):
        print(f"round {turn + 1} of {rounds}", file=sys.stderr)
        for name, measure in measures:
            for index in ((0, 1) if turn % 2 else (1, 0)):
                results[name][index].append(measure((ours, peer)[index]))
    ratios = {}
    print(f"{'tok/s, median of ' + str(rounds):24}{'tailrace':>10}{'llama.cpp':>11}{'ratio':>8}   spread of ours")
    for name, (mine, theirs) in results.items():
        left, right = statistics.median(mine), statistics.median(theirs)
        ratios[name] = left / right
        print(f"{name:24}{left:10.1f}{right:11.1f}{left / right:7.2f}x   {min(mine):.1f} - {max(mine):.1f}")
    return ratios


def report_gap(ours: Tailrace) -> None:
    """The pauses of a running decode while a long prompt is prefilled beside it, as multiples of its decode-only step. That
    step grows with the decode's own context: what it is at each pause lies between what it was before and is after."""
    delay, linger = 2.0, 2.0
    bodies = [completion_body("demo", prompt(128), 7000), completion_body("demo", prompt(LONG_PROMPT), 1)]
    decode, long_prompt = run_streams(ours.port, bodies, delays=[0.0, delay], stop_when=1,
                                      linger=linger)
    gaps = list(zip(decode.times[1:], (b - a for a, b in zip(decode.times, decode.times[1:]))))
    before = statistics.median(gap for at, gap in gaps if at < long_prompt.start)
    if decode.done:
        raise RuntimeError("the decode ended before the prefill beside it: no step alone to compare with")
    after = statistics.median([gap for at, gap in gaps if at > long_prompt.times[0]][20:])
    beside = [gap for at, gap in gaps if long_prompt.start < at <= long_prompt.times[0]]
    ratios = sorted(gap / (before + (after - before) * i / len(beside)) for i, gap in enumerate(beside))
    print(f"decode beside a prefill of {LONG_PROMPT} tokens: its step alone {before * 1e3:.2f} ms before and {after * 1e3:.2f} ms after; "
          f"gaps beside it: median {statistics.median(beside) * 1e3:.2f} ms, worst {max(beside) * 1e3:.2f} ms; as multiples of its "
          f"step: median {statistics.median(ratios):.1f}, p99 {ratios[int(len(ratios) * 0.99)]:.1f}, worst {ratios[-1]:.1f}; "
          f"prefill took {long_prompt.ttft:.1f} s")


def report_memory(ours: Tailrace) -> None:
    resident = ours.resident_bytes()
    ledger = sum(float(line.split()[1]) for line in (ours.get("/metrics") or "").splitlines()
                 if line.startswith(("tailrace_device_memory_bytes", "tailrace_pinned_memory_bytes")))
    print(f"memory: resident {resident / 2**20:.0f} MiB; weights and ledger {ledger / 2**20:.0f} MiB "
          f"({resident / ledger:.2f}x)")


def main() -> int:
    sys.stdout.reconfigure(line_buffering=True)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--binary", default=str(ROOT / "build/tailrace"))
    parser.add_argument("--quick", action="store_true", help="one short round: a trial of the benchmark itself, not a measurement")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    elif options.rounds < 5:
        parser.error("medians need at least 5 rounds (--quick for a trial)")

    starts = [start_to_first_token(options.binary, options.threads) for _ in range(1 if options.quick else 3)]
    print(f"start to first token, warm: {statistics.median(starts):.2f} s")
    ours, peer = Tailrace(options.binary, options.threads), LlamaPeer(str(MODEL_FILE), options.threads)
    try:
        ratios = compare(ours, peer, options.rounds, options.quick)
        report_gap(ours)
        report_memory(ours)
    finally:
        ours.stop()
    decode = min(ratios[f"decode at {n}"] for n in DECODE_CONTEXTS)
    prefill = min(ratios[f"prefill {n}"] for n in PREFILL_LENGTHS)
    print("(the lower ratio of the two contexts and of the two lengths)")
    print(f"vs llama.cpp: decode {decode:.2f}x, prefill {prefill:.2f}x, {STREAMS} streams {ratios[f'{STREAMS} streams']:.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
