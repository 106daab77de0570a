"""What an operator does with the real server: keys read again, JSON logs, aborts, /server_info without secrets."""

import json
import signal
import time
import urllib.request

import openai
import pytest
from conftest import Server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("operations")
    keys = folder / "keys"
    keys.write_text("# clients\nalice:alices-secret max_running=2\nbob:bobs-secret\n")
    running = Server("--api-key-file", str(keys), "--log-format", "json", log_path=folder / "log")
    running.keys = keys
    yield running
    assert running.process.poll() is None, "the server died:\n" + running.log_path.read_text()
    assert running.stop() == 0


def events(server) -> list[dict]:
    return [json.loads(line) for line in server.log_path.read_text().splitlines() if line.startswith("{")]


def eventually(condition):
    for _ in range(400):
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_an_abort_ends_a_stream_and_the_log_says_so(guarded):
    client = guarded.client("alices-secret")
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Count."}],
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers={"X-Request-Id": "to-be-ended"},
    )
    assert stream.response.headers["x-request-id"] == "to-be-ended"
    reasons, aborted = [], None
    for chunk in stream:
        reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        if aborted is None:
            header = {"Authorization": "Bearer alices-secret"}
            aborted = guarded.post_raw("/abort", b'{"request_id": "to-be-ended"}', header)
    assert aborted == (200, '{"status":"ok","aborted":["to-be-ended"]}')
    assert reasons == ["abort"]

    def logged():
        return [event for event in events(guarded) if event["event"] == "request" and event["id"] == "to-be-ended"]

    assert eventually(lambda: len(logged()) == 1)
    (event,) = logged()
    assert event["key"] == "alice" and event["finish_reasons"] == ["abort"] and event["completion_tokens"] >= 1


def test_a_key_runs_no_more_than_its_bound(guarded):
    client = guarded.client("alices-secret")
    with pytest.raises(openai.BadRequestError, match="asks for 3"):
        client.completions.create(model=client.models.list().data[0].id, prompt="a", n=3, max_tokens=1)


def test_keys_are_read_again_on_sighup(guarded):
    with pytest.raises(openai.AuthenticationError):
        guarded.client("carols-secret").models.list()
    guarded.keys.write_text(guarded.keys.read_text() + "carol:carols-secret\n")
    guarded.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: any(event["event"] == "keys_reloaded" for event in events(guarded)))
    assert guarded.client("carols-secret").models.list().data
    assert guarded.client("bobs-secret").models.list().data


def test_server_info_says_what_runs_and_no_secret(guarded):
    request = urllib.request.Request(guarded.url + "/server_info", headers={"Authorization": "Bearer bobs-secret"})
    text = urllib.request.urlopen(request, timeout=10).read().decode()
    info = json.loads(text)
    assert "secret" not in text
    assert info["state"] == "ok" and info["model"]["layers"] > 0 and info["memory"] and info["kernels"]
    assert info["config"]["max_running_requests"] >= 1 and info["config"]["api_key_file"]
    assert {path["name"]: path["on"] for path in info["fast_paths"]}["overlap"] is True
    assert info["counters"]["tailrace_engine_ready"] == 1


def test_every_line_of_the_log_behind_the_report_is_json(guarded):
    guarded.get("/nothing%0Aforged=1")
    lines = guarded.log_path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("ready "))
    assert all(json.loads(line)["event"] for line in lines[first + 1 :])
