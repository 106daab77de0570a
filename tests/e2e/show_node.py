"""What a Node.js client says and gets: node/show_NAME.mjs on a server that is started here. See docs/clients.md."""

import os
import pathlib
import subprocess
import sys

from conftest import ROOT
from examples import scripted_server
from test_tools import SCRIPTS


def main(name):
    with scripted_server(SCRIPTS) as server:
        program = pathlib.Path(__file__).parent / "node" / f"show_{name}.mjs"
        environment = {**os.environ, "SCRIPTED_URL": server.url}
        return subprocess.run([ROOT / ".venv-node/bin/node", program], env=environment, timeout=60).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
