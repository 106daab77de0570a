"""The HTTP surface below any client library: raw bodies, keys, health, metrics, shutdown."""
import json
import threading

import openai
import pytest
from conftest import Server

CONTRACT_COUNTERS = ("tailrace_host_block_total", "tailrace_device_alloc_after_ready_total")


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"messages": NaN}', b"[" * 100000,
    b'{"messages":[{"role":"user","content":"a"}],"temperature":1e999}',
    b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
], ids=lambda body: body[:24].decode("latin-1"))
def test_bad_bodies(server, body):
    status, text = server.post_raw("/v1/chat/completions", body)
    assert status == 400, text
    assert json.loads(text)["error"]["message"]


def test_unknown_path_and_method(server):
    assert server.get("/v1/nothing")[0] == 404
    assert server.get("/v1/chat/completions")[0] == 405


def test_tokenize_round_trip(server):
    text = "Grüße, 世界 🎉\n\tdef f(x): return x**2"
    status, body = server.post_raw("/tokenize", json.dumps({"prompt": text}).encode())
    assert status == 200, body
    tokens = json.loads(body)["tokens"]
    status, body = server.post_raw("/detokenize", json.dumps({"tokens": tokens}).encode())
    assert status == 200, body
    assert json.loads(body)["prompt"] == text


def test_flush_cache_answers_when_the_prefixes_are_gone(server):
    client = server.client()
    name = client.models.list().data[0].id

    def cached_tokens():
        usage = client.completions.create(model=name, prompt="One two three four five. " * 20, max_tokens=2).usage
        return usage.prompt_tokens_details.cached_tokens

    cached_tokens()
    assert cached_tokens() >= 64
    for _ in range(5):
        status, body = server.post_raw("/flush_cache", b"")
        assert status == 200, body
        answer = json.loads(body)
        assert answer["status"] == "ok" and answer["flushed_blocks"] > 0 and answer["running"] == 0
        assert cached_tokens() == 0


def test_contract_counters_stay_zero_under_load(server):
    client = server.client()
    name = client.models.list().data[0].id

    def ask(number):
        client.completions.create(model=name, prompt=f"{number} " * 300, max_tokens=24,
                                  extra_body={"ignore_eos": True})

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    assert server.get("/health")[0] == 200
    for thread in threads:
        thread.join()
    for counter in CONTRACT_COUNTERS:
        assert server.metric_sum(counter) == 0


def test_every_sample_has_help_and_type(server):
    text = server.get("/metrics")[1]
    for name, _, _ in server.metrics():
        family = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        assert f"# TYPE {family} " in text or f"# TYPE {name} " in text
        assert f"# HELP {family} " in text or f"# HELP {name} " in text


def test_api_key_and_served_name(tmp_path):
    server = Server("--api-key", "secret", "--served-model-name", "demo", log_path=tmp_path / "log")
    try:
        with pytest.raises(openai.AuthenticationError):
            server.client("wrong").models.list()
        assert server.client("secret").models.list().data[0].id == "demo"
        assert server.get("/health")[0] == 200
    finally:
        assert server.stop() == 0


def test_sigterm_lets_a_running_stream_end(tmp_path):
    server = Server(log_path=tmp_path / "log")
    stream = iter(server.client().completions.create(
        model=server.client().models.list().data[0].id, prompt="One, two,", max_tokens=40, temperature=0,
        stream=True, extra_body={"ignore_eos": True}))
    next(stream)
    code = []
    stopper = threading.Thread(target=lambda: code.append(server.stop()))
    stopper.start()
    chunks = list(stream)
    stopper.join()
    assert chunks[-1].choices[0].finish_reason == "length"
    assert code == [0]
