"""Schemathesis against the server's own description: no 5xx, and every reply is as described, for requests that keep to
the description and for such that do not."""

import hypothesis
import pytest
import schemathesis
from conftest import ROOT, Server
from scripted import write_checkpoint
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

DESCRIPTION = ROOT / "docs" / "openapi.json"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 8  # of each operation; the whole file takes some seconds
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def small_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openapi")
    write_checkpoint(folder / "model", {"hello": ["Hello", " there"]}, TEMPLATE, [])
    # A short context bounds how long an answer can be.
    running = Server("--context-length", "128", log_path=folder / "log", model=folder / "model")
    yield running
    assert running.process.poll() is None, "the server died:\n" + running.log_path.read_text()
    assert running.stop() == 0


def test_the_description_is_served_as_it_is(small_server):
    assert small_server.get("/openapi.json") == (200, DESCRIPTION.read_text())


schema = schemathesis.openapi.from_path(DESCRIPTION)


@schema.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_replies_are_as_described(case, small_server):
    # A trace lasts as long as it is asked for, up to a minute: the shortest stands for all of them.
    seconds = str((case.query or {}).get("seconds"))
    if case.path == "/debug/trace" and seconds.isdecimal() and 1 < int(seconds) <= 60:
        case.query["seconds"] = 1
    case.call_and_validate(base_url=small_server.url, checks=CHECKS, timeout=60)
