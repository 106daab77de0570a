"""Node.js clients: node:test files in node/, on the servers that are started here."""

import os
import pathlib
import subprocess

import pytest
from conftest import ROOT
from test_tools import tool_server  # noqa: F401

FOLDER = pathlib.Path(__file__).parent / "node"


@pytest.mark.parametrize("name", ["openai", "ai"])
def test_client(server, model, tool_server, name):  # noqa: F811
    run = subprocess.run(
        [ROOT / ".venv-node/bin/node", "--test", "--test-reporter=tap", FOLDER / f"{name}.test.mjs"],
        env={**os.environ, "SCRIPTED_URL": tool_server.url, "DEMO_URL": server.url, "DEMO_MODEL": model},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout + run.stderr
