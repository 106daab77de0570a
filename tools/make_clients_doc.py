"""Writes docs/clients.md: runs each client's example against the scripted checkpoint and keeps what it printed.

    .venv-test/bin/python tools/make_clients_doc.py
"""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
INTRO = """\
# Clients, and what they get

Each client's own library, pinned, against `tailrace serve` on a checkpoint that answers by script (`tests/e2e/scripted.py`), so that
the answers are the same every time. `tools/make_clients_doc.py` runs the commands and writes this file; the tests beside the examples
check the same calls and many more.
"""
# What a client is called, and the command that shows it.
PYTHON = ".venv-test/bin/python"
CLIENTS = [
    ("openai (Python)", [PYTHON, "tests/e2e/show_openai.py"]),
    ("anthropic (Python)", [PYTHON, "tests/e2e/show_anthropic.py"]),
    ("openai (Node.js)", [PYTHON, "tests/e2e/show_node.py", "openai"]),
    ("@ai-sdk/openai-compatible (Node.js)", [PYTHON, "tests/e2e/show_node.py", "ai"]),
]


def main():
    parts = [INTRO]
    for name, command in CLIENTS:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
        parts.append(f"## {name}\n\n`{' '.join(command)}`\n\n```\n{done.stdout.strip()}\n```\n")
    (ROOT / "docs" / "clients.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
