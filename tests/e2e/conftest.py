"""Starts the real binary on the demo model, and says what it printed when it does not come up."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("E2E_BINARY", str(ROOT / "build" / "tailrace"))
DEMO_MODEL = ROOT / "models" / "demo"
CONTEXT_LENGTH = 8192


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One `tailrace serve` process on a free port, ready when the constructor returns."""

    def __init__(self, *flags: str, log_path: pathlib.Path, model: pathlib.Path = DEMO_MODEL, preexec_fn=None):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = log_path
        self.log = open(log_path, "w", encoding="utf-8")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--model", str(model), "--port", str(self.port), "--threads", "2", *flags],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, preexec_fn=preexec_fn,
        )
        deadline = time.monotonic() + 240  # a start takes seconds, on cores that builds are using minutes
        while self.get("/health")[0] != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError("the server did not come up:\n" + self.log_path.read_text())
            time.sleep(0.05)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def post_raw(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, str]:
        headers = {"content-type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def tokenize(self, body: dict) -> list[int]:
        status, text = self.post_raw("/tokenize", json.dumps(body).encode())
        assert status == 200, text
        return json.loads(text)["tokens"]

    def metrics(self) -> list[tuple[str, str, float]]:
        """(name, labels, value) of every sample."""
        samples = []
        for line in self.get("/metrics")[1].splitlines():
            match = re.match(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (\S+)$", line)
            if match:
                samples.append((match[1], match[2] or "", float(match[3])))
        return samples

    def metric_sum(self, name: str) -> float:
        values = [value for sample, _, value in self.metrics() if sample == name]
        assert values, f"/metrics has no {name}"
        return sum(values)

    def client(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key=api_key, max_retries=0, timeout=120)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self.log.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    running = Server(log_path=tmp_path_factory.mktemp("server") / "log")
    yield running
    assert running.process.poll() is None, "the server died:\n" + running.log_path.read_text()
    assert running.stop() == 0


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture(scope="session")
def model(server):
    return server.client().models.list().data[0].id
