"""What an operator does with the real server: keys read again, JSON logs, aborts, /server_info without secrets."""

import json
import resource
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

import openai
import pytest
from conftest import BINARY, DEMO_MODEL, ROOT, Server, free_port


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


def status_of(url, headers=None):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.fixture
def loading(tmp_path):
    """A server whose stderr is a pipe that nobody reads, from its very start."""
    keys, port = tmp_path / "keys", free_port()
    keys.write_text("alice:alices-secret\n")
    flags = ["--model", str(DEMO_MODEL), "--port", str(port), "--threads", "2", "--api-key-file", str(keys), "--log-format", "json"]
    process = subprocess.Popen([BINARY, "serve", *flags], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    process.keys, process.url = keys, f"http://127.0.0.1:{port}"
    yield process
    process.kill()
    process.wait()
    process.stderr.close()


def test_a_sighup_while_the_model_loads_is_not_lost(loading):
    carol = {"Authorization": "Bearer carols-secret"}
    assert eventually(lambda: status_of(loading.url + "/v1/models", carol) == 401)  # the port is open
    loading.keys.write_text("alice:alices-secret\ncarol:carols-secret\n")
    loading.send_signal(signal.SIGHUP)
    assert eventually(lambda: status_of(loading.url + "/v1/models", carol) == 200)


def test_a_log_that_nobody_reads_holds_up_neither_requests_nor_the_end(loading):
    assert eventually(lambda: status_of(loading.url + "/ready") == 200)
    path, alice = "/v1/models/" + "x" * 200, {"Authorization": "Bearer alices-secret"}
    dropped = 0
    while dropped == 0:  # a line each, until the pipe and the log's queue are full
        assert all(status_of(loading.url + path, alice) == 404 for _ in range(100))
        text = urllib.request.urlopen(loading.url + "/metrics", timeout=20).read().decode()
        dropped = int(next(line for line in text.splitlines() if line.startswith("tailrace_log_lines_dropped_total{")).split()[-1])
    loading.send_signal(signal.SIGTERM)
    assert loading.wait(timeout=20) == 0


def test_server_info_says_what_runs_and_no_secret(guarded):
    request = urllib.request.Request(guarded.url + "/server_info", headers={"Authorization": "Bearer bobs-secret"})
    text = urllib.request.urlopen(request, timeout=10).read().decode()
    info = json.loads(text)
    assert "secret" not in text
    assert info["state"] == "ok" and info["model"]["layers"] > 0 and info["memory"] and info["kernels"]
    assert info["config"]["max_running_requests"] >= 1 and info["config"]["api_key_file"]
    assert info["config"]["api_keys"] == len([line for line in guarded.keys.read_text().splitlines() if line[0] != "#"])
    assert info["config"]["kv_cache_dtype"] == "bf16"
    assert {path["name"]: path["on"] for path in info["fast_paths"]}["overlap"] is True
    assert info["counters"]["tailrace_engine_ready"] == 1


def test_what_a_template_and_the_limit_of_open_files_forbid_is_told(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(ROOT / "tests" / "goldens" / "qwen3", model)
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (700, 700))
    running = Server("--tool-call-parser", "qwen", log_path=tmp_path / "log", model=model, preexec_fn=few)
    info, log = json.loads(running.get("/server_info")[1]), running.log_path.read_text()
    assert running.stop() == 0
    assert "warning: requests with tools will be refused" in log
    assert {path["name"]: path["on"] for path in info["fast_paths"]}["tools"] is False
    assert 300 < info["config"]["max_connections"] < 700
    assert f"max_connections_lowered asked=4096 allowed={info['config']['max_connections']}" in log


def test_every_line_of_the_log_behind_the_report_is_json(guarded):
    guarded.get("/nothing%0Aforged=1")
    lines = guarded.log_path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("ready "))
    assert all(json.loads(line)["event"] for line in lines[first + 1 :])
