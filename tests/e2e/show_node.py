"""What a Node.js client says and gets: node/show_NAME.mjs on a server that is started here. See docs/clients.md."""

import os
import pathlib
import subprocess
import sys
import tempfile

from conftest import ROOT, Server
from scripted import PLAIN_TAGS, QWEN_TEMPLATE, write_checkpoint
from test_tools import SCRIPTS


def main(name):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        write_checkpoint(path / "model", SCRIPTS, QWEN_TEMPLATE, PLAIN_TAGS)
        server = Server("--random-seed", "1", log_path=path / "log", model=path / "model")
        try:
            program = pathlib.Path(__file__).parent / "node" / f"show_{name}.mjs"
            environment = {**os.environ, "SCRIPTED_URL": server.url}
            return subprocess.run([ROOT / ".venv-node/bin/node", program], env=environment, timeout=60).returncode
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
