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
        done = subprocess.run([BINARY, "launch", *args], env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    return run


def read(text, agent):
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
def test_writing_keeps_what_is_there(server, model, launch, tmp_path, agent):
    path = tmp_path / FILES[agent]
    path.parent.mkdir(parents=True)
    before = 'mine = "kept" # as it is\n\n[other]\nx = 1\n' if agent == "codex" else '{"mine": "kept", "env": {"A": "1"}}'
    path.write_text(before)
    code, out, notes = launch(agent, "--base-url", server.url + "/", "--write")
    assert code == 0 and str(path) in out, notes
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
    code, _, notes = launch("claude", "--port", str(server.port), "--write", "--file", str(path))
    assert code == 2 and "settings.json: not JSON" in notes
    assert path.read_text() == '{"a": 1, // comment\n}'
    assert list(tmp_path.iterdir()) == [path]


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
    assert launch("codex", "--base-url", "127.0.0.1")[0] == 2
    assert launch("codex", "--port", "0")[0] == 2
    code, _, notes = launch("codex", "--port", str(server.port), "--model", "other")
    assert code == 2 and "does not serve other" in notes
