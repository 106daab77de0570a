"""Start-up errors: exit code 2 and one line that names the fault, whatever the flags or the files hold."""
import os
import json
import pathlib
import resource
import shutil
import struct
import subprocess

import pytest
from conftest import BINARY, DEMO_MODEL, ROOT

DEMO_FILE = next(DEMO_MODEL.glob("*.gguf"), pathlib.Path("missing"))


def run(*arguments, env=None, preexec_fn=None):
    return subprocess.run([BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, env=env, preexec_fn=preexec_fn)


def assert_fails_with_one_line(result, *words):
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert result.returncode == 2, (result.returncode, result.stderr)
    assert len(lines) == 1, result.stderr
    for word in words:
        assert word in lines[0], f"'{word}' is not in: {lines[0]}"


@pytest.mark.parametrize("flags, word", [
    (["--no-such-flag"], "no-such-flag"),
    (["--port", "99999"], "port"),
    (["--port", "many"], "port"),
    (["--mem-fraction-static", "1.5"], "mem-fraction-static"),
    (["--mem-fraction-static", "nan"], "mem-fraction-static"),
    (["--max-running-requests", "0"], "max-running-requests"),
    (["--max-running-requests", "-3"], "max-running-requests"),
    (["--chunked-prefill-size", "0"], "chunked-prefill-size"),
    (["--context-length", "0"], "context-length"),
    (["--cache-type", "lru"], "cache-type"),
    (["--mixed", "yes"], "mixed"),
    (["--overlap", "perhaps"], "overlap"),
    (["--kv-splits", "0"], "kv-splits"),
    (["--threads", "0"], "threads"),
    (["--log-level", "loud"], "log-level"),
    (["--load-format", "pickle"], "load-format"),
    (["--attention-backend", "cuda"], "cuda"),
    (["--device", "cuda"], "--device cuda: "),
    (["--device", "cuda", "--attention-backend", "cpu"], "--device cuda"),
    (["--device", "cpu", "--cuda-graph-max-bs", "8"], "--cuda-graph-max-bs"),
    (["--config", "/no/such/file"], "/no/such/file"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_bad_flags(flags, word):
    if flags == ["--device", "cuda"] and os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a GPU here")
    assert_fails_with_one_line(run("serve", "--model", DEMO_MODEL, *flags), word)


def test_no_model():
    assert_fails_with_one_line(run("serve"), "--model")


def test_a_hub_id_gets_the_command_that_downloads_it():
    assert_fails_with_one_line(run("serve", "--model", "nobody/some-model"), "nobody/some-model", "download")


def test_unknown_environment_variable():
    assert_fails_with_one_line(
        run("serve", "--model", DEMO_MODEL, env={"PATH": "/usr/bin:/bin", "TAILRACE_SPEED": "11"}), "TAILRACE_SPEED")


def test_too_few_open_files():
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    result = run("serve", "--model", DEMO_MODEL, "--port", "0", preexec_fn=few)
    assert_fails_with_one_line(result, "200 files", "ulimit -n")


def test_version():
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout.strip()


def demo_head(size):
    with open(DEMO_FILE, "rb") as file:
        return file.read(size)


def gguf(version=3, num_tensors=0, num_pairs=0, rest=b""):
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs) + rest


BAD_FILES = {
    "empty.gguf": lambda: b"",
    "text.gguf": lambda: b"<!DOCTYPE html><html>not found</html>",
    "magic-only.gguf": lambda: b"GGUF",
    "version-9.gguf": lambda: gguf(version=9),
    "huge-counts.gguf": lambda: gguf(num_tensors=2**60, num_pairs=2**60),
    "huge-string.gguf": lambda: gguf(num_pairs=1, rest=struct.pack("<Q", 2**63)),
    "no-metadata.gguf": lambda: gguf(),
    "cut-in-metadata.gguf": lambda: demo_head(100_000),
    "cut-in-tensors.gguf": lambda: demo_head(20_000_000),
    "empty.safetensors": lambda: b"",
    "huge-header.safetensors": lambda: struct.pack("<Q", 2**62) + b"{}",
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BAD_FILES[name]())
    assert_fails_with_one_line(run("serve", "--model", path), name)


@pytest.mark.parametrize("name", ["cut-in-metadata.gguf", "text.gguf"])
def test_inspect_reports_bad_files_alike(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(BAD_FILES[name]())
    assert_fails_with_one_line(run("inspect", "--model", path), name)


def test_inspect_prints_the_ledger_of_what_does_not_fit():
    model = ROOT / "tests" / "goldens" / "qwen3"
    fits = run("inspect", "--model", model, "--device", "cpu")
    assert fits.returncode == 0 and "by --mem-fraction-static\n" in fits.stdout, fits.stdout + fits.stderr
    large = run("inspect", "--model", model, "--device", "cpu", "--max-total-tokens", "20000000000")
    assert_fails_with_one_line(large, "the model does not fit", "--max-total-tokens")
    for line in ("  weights ", "  KV full ", "  total ", "by --mem-fraction-static: the model does not fit\n"):
        assert line in large.stdout, large.stdout


def test_bad_folders(tmp_path):
    assert_fails_with_one_line(run("serve", "--model", tmp_path / "absent"), "absent")
    assert_fails_with_one_line(run("serve", "--model", tmp_path), str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    (tmp_path / "config.json").write_text("{ not json")
    assert_fails_with_one_line(run("serve", "--model", tmp_path), "config.json")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NoSuchForCausalLM"], "model_type": "no_such"}))
    assert_fails_with_one_line(run("serve", "--model", tmp_path), "NoSuchForCausalLM")


@pytest.mark.parametrize("command", ["serve", "inspect"])
def test_a_chat_template_that_cannot_be_used(tmp_path, command):
    model = tmp_path / "model"
    shutil.copytree(ROOT / "tests" / "goldens" / "qwen3", model)
    (model / "chat_template.jinja").write_text("fine\n{% if %}")
    assert_fails_with_one_line(run(command, "--model", model), str(model), "chat template", "line 2")


def test_inspect_warns_of_a_chat_template_that_refuses_every_chat(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(ROOT / "tests" / "goldens" / "qwen3", model)
    (model / "chat_template.jinja").write_text("{{ raise_exception('only on Sundays') }}")
    result = run("inspect", "--model", model)
    assert result.returncode == 0, result.stderr
    assert "warning" in result.stderr and "only on Sundays" in result.stderr
