"""What the examples behind docs/clients.md share: a server on a scripted checkpoint, and how they print."""

import contextlib
import json
import pathlib
import tempfile

from conftest import Server
from scripted import PLAIN_TAGS, QWEN_TEMPLATE, write_checkpoint


def show(title, *lines):
    print(f"# {title}")
    for line in lines:
        print(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False))
    print()


@contextlib.contextmanager
def scripted_server(scripts):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        write_checkpoint(path / "model", scripts, QWEN_TEMPLATE, PLAIN_TAGS)
        server = Server("--random-seed", "1", log_path=path / "log", model=path / "model")
        try:
            yield server
        finally:
            server.stop()
