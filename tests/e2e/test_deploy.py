"""What deploy/ holds fits the server: the dashboard asks for metrics that there are, systemd takes the unit."""

import json
import re
import shutil
import subprocess

import pytest
from conftest import BINARY, ROOT

UNIT = ROOT / "deploy" / "tailrace.service"
DASHBOARD = ROOT / "deploy" / "grafana-dashboard.json"
FUNCTIONS = {"histogram_quantile", "sum", "max", "min", "rate", "by", "label_values"}


def expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return found + [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]


def names_in(expression: str) -> set[str]:
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)|, \w+\)", " ", expression)
    return set(re.findall(r"[a-z_][a-z0-9_]{3,}", bare)) - FUNCTIONS


def test_every_metric_of_the_dashboard_exists(server):
    server.post_raw("/v1/completions", b'{"prompt": "a", "max_tokens": 1}')
    served = {name for name, _, _ in server.metrics()}
    wanted = set().union(*map(names_in, expressions()))
    assert len(wanted) > 20
    assert wanted <= served, wanted - served


def test_labels_of_the_dashboard_exist(server):
    text = server.get("/metrics")[1]
    for expression in expressions():
        name = sorted(names_in(expression))[0]
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            for label in labels.split(", "):
                assert re.search(rf"^{name}\{{[^}}]*\b{label}=", text, re.M), f"{name} has no label {label}"


def test_systemd_takes_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / UNIT.name  # the program that it starts must exist
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/tailrace", BINARY))
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0 and not checked.stderr, checked.stderr


def test_the_units_flags_exist():
    command = re.search(r"^ExecStart=\S+ (.*)$", UNIT.read_text(), re.M)[1]
    usage = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, timeout=60).stdout
    for flag in re.findall(r"--[a-z-]+", command):
        assert flag in usage, flag
