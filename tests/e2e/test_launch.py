"""`tailrace launch` against a running server: what it prints, and what it writes into an agent's file."""

import json
import os
import subprocess
import tomllib

import pytest
from conftest import BINARY, CONTEXT_LENGTH, free_port

FILES = {"codex": ".codex/config.toml", "claude": ".claude/settings.json", "opencode": ".config/opencode/opencode.json"}


@pytest.fixture
def launch(tmp_path):
    def run(*args):
        environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        done = subprocess.run([BINARY, "launch", *args], env=environment, capture_output=True, timeout=60)
        return done.returncode, done.stdout, done.stderr.decode()

    return run


def read(text, agent):
    text = text if isinstance(text, str) else text.decode()
    return tomllib.loads(text) if agent == "codex" else json.loads(text)


def told(config, agent):
    """Where the agent will ask, and for which model with how large a context."""
    if agent == "codex":
        provider = config["model_providers"][config["model_provider"]]
        assert provider["wire_api"] == "responses"
        return provider["base_url"], config["model"], config["model_context_window"]
    if agent == "claude":
        env = config["env"]
        assert env["ANTHROPIC_AUTH_TOKEN"] and env["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == env["ANTHROPIC_MODEL"]
        return env["ANTHROPIC_BASE_URL"] + "/v1", env["ANTHROPIC_MODEL"], int(env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"])
    name, _, model = config["model"].partition("/")
    provider = config["provider"][name]
    assert provider["npm"] == "@ai-sdk/openai-compatible"
    return provider["options"]["baseURL"], model, provider["models"][model]["limit"]["context"]


@pytest.mark.parametrize("agent", FILES)
def test_a_dry_run_prints_and_writes_nothing(server, model, launch, tmp_path, agent):
    code, out, notes = launch(agent, "--port", str(server.port))
    assert code == 0, notes
    assert told(read(out, agent), agent) == (server.url + "/v1", model, CONTEXT_LENGTH)
    assert FILES[agent] in notes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("agent", FILES)
def test_a_dry_run_prints_what_would_be_written(server, launch, tmp_path, agent):
    path = tmp_path / FILES[agent]
    path.parent.mkdir(parents=True)
    before = b"# mine\r\nmodel = 'x' # why\r\n" if agent == "codex" else b'{"big":12345678901234567891,\r\n"f":1.50}'
    path.write_bytes(before)
    code, out, notes = launch(agent, "--port", str(server.port))
    assert code == 0 and FILES[agent] in notes and path.read_bytes() == before
    assert launch(agent, "--port", str(server.port), "--write")[0] == 0
    written = path.read_bytes()
    assert written == out and written != before
    kept = (b"# mine\r\n", b" # why\r\n") if agent == "codex" else (b'"big":12345678901234567891', b'"f":1.50')
    assert all(part in written for part in kept)
    again, out, notes = launch(agent, "--port", str(server.port))
    assert again == 0 and out == written and "already" in notes


@pytest.mark.parametrize("agent", FILES)
def test_writing_keeps_what_is_there(server, model, launch, tmp_path, agent):
    path = tmp_path / FILES[agent]
    path.parent.mkdir(parents=True)
    before = 'mine = "kept" # as it is\n\n[other]\nx = 1\n' if agent == "codex" else '{"mine": "kept", "env": {"A": "1"}}'
    path.write_text(before)
    code, out, notes = launch(agent, "--base-url", server.url + "/", "--write")
    assert code == 0 and str(path) in out.decode(), notes
    config = read(path.read_text(), agent)
    assert told(config, agent) == (server.url + "/v1", model, CONTEXT_LENGTH)
    assert config["mine"] == "kept"
    assert (config["other"]["x"] if agent == "codex" else config["env"]["A"]) in (1, "1")
    assert path.with_name(path.name + ".bak").read_text() == before
    written = path.read_text()
    assert launch(agent, "--base-url", server.url, "--write")[0] == 0
    assert path.read_text() == written
    assert len(list(path.parent.iterdir())) == 2  # nothing to write: no second copy


def test_a_file_that_cannot_be_read_is_left_alone(server, launch, tmp_path):
    path = tmp_path / "settings.json"
    path.write_text('{"a": 1, // comment\n}')
    for how in (["--write"], []):
        code, out, notes = launch("claude", "--port", str(server.port), "--file", str(path), *how)
        assert code == 2 and "settings.json: not JSON" in notes and "by hand" in notes
        assert told(read(out, "claude"), "claude")[0] == server.url + "/v1"  # what has to be put there
    assert path.read_text() == '{"a": 1, // comment\n}'
    assert list(tmp_path.iterdir()) == [path]


def test_opencode_keeps_the_comments_of_the_file_that_counts(server, launch, tmp_path):
    path = tmp_path / (FILES["opencode"] + "c")
    path.parent.mkdir(parents=True)
    path.write_text('{\n  // mine\n  "theme": "x", /* kept */\n}\n')
    code, out, notes = launch("opencode", "--port", str(server.port), "--write")
    assert code == 0 and str(path) in out.decode(), notes
    text = path.read_text()
    assert text.startswith('{\n  // mine\n  "theme": "x", /* kept */\n  "$schema"') and text.endswith(",\n}\n")
    assert not (tmp_path / FILES["opencode"]).exists()


def test_a_codex_profile_has_its_own_file(server, launch, tmp_path):
    code, out, notes = launch("codex", "--port", str(server.port), "--profile", "local", "--write")
    assert code == 0 and b"codex --profile local" in out, notes
    assert [path.name for path in (tmp_path / ".codex").iterdir()] == ["local.config.toml"]
    assert launch("claude", "--port", str(server.port), "--profile", "local")[0] == 2


def test_a_key_is_kept_from_others(server, launch, tmp_path):
    path = tmp_path / "settings.json"
    path.write_text("{}")
    path.chmod(0o644)
    for key, said in (("k1", True), ("k2", False)):
        code, out, _ = launch("claude", "--port", str(server.port), "--api-key", key, "--write", "--file", str(path))
        assert code == 0 and (b"others can read it no more" in out) == said
        assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_links_to_nothing_and_loops_are_refused_and_left(server, launch, tmp_path):
    path = tmp_path / "settings.json"
    for target in (tmp_path / "nothing", path):
        path.symlink_to(target)
        code, _, notes = launch("claude", "--port", str(server.port), "--write", "--file", str(path))
        assert code == 2 and str(path) in notes
        assert path.is_symlink() and list(tmp_path.iterdir()) == [path]
        path.unlink()


def test_without_a_server_the_model_has_to_be_named(launch):
    port = str(free_port())
    code, _, notes = launch("codex", "--port", port)
    assert code == 2 and "--model" in notes
    code, out, _ = launch("codex", "--port", port, "--model", "m", "--api-key", "k")
    config = read(out, "codex")
    assert code == 0 and config["model"] == "m" and "model_context_window" not in config
    assert config["model_providers"]["tailrace"]["http_headers"] == {"Authorization": "Bearer k"}


def test_what_makes_no_sense_is_refused(server, launch):
    assert launch("emacs", "--port", str(server.port))[0] == 2
    for url in ("127.0.0.1", "http://u:p@h", "http://h?x=1", "http://h#f", "ftp://h", "http://h:0", server.url + "/v1"):
        code, out, notes = launch("codex", "--base-url", url, "--model", "m")
        assert code == 2 and out == b"" and url in notes
    assert launch("codex", "--port", "0")[0] == 2
    code, _, notes = launch("codex", "--port", str(server.port), "--model", "other")
    assert code == 2 and "does not serve other" in notes
