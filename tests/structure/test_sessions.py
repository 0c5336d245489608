"""Each backend has a session in `noxfile.py` that installs what it needs and no other backend."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREE = ast.parse((ROOT / "noxfile.py").read_text("utf-8"))
# What of our own each session installs by path; the metapackage brings the CPU backend.
OURS = {
    "core": {"quabla-core"},
    "cpu": {"quabla-core", "quabla-cpu", ".[viz]"},
    "mlx": {"quabla-core", "quabla-mlx"},
    "reference": {"quabla-core", "EXAMPLE_BACKEND"},
    "template": {"quabla-core"},
}


def sessions() -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in TREE.body if isinstance(node, ast.FunctionDef)}


def installed(function: ast.FunctionDef) -> set[str]:
    """The paths in the call of `install`."""
    (call,) = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "install"
    ]
    assert isinstance(call.args[1], ast.List)
    return {e.value if isinstance(e, ast.Constant) else ast.unparse(e) for e in call.args[1].elts}


@pytest.mark.parametrize("name", list(OURS))
def test_a_session_installs_what_it_needs(name: str) -> None:
    assert installed(sessions()[name]) == OURS[name]


def test_every_distribution_of_a_backend_has_a_session() -> None:
    backends = {path.parent.name for path in ROOT.glob("quabla-*/pyproject.toml")} - {"quabla-core"}
    assert backends == {name for name in set.union(*OURS.values()) if name.startswith("quabla-")} - {
        "quabla-core"
    }
    assert {name.removeprefix("quabla-") for name in backends} <= set(sessions())


@pytest.mark.skipif(find_spec("nox") is None, reason="needs nox")
def test_the_matrix_has_a_row_for_each_backend_and_python() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "nox", "--list", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    made = subprocess.run(
        [sys.executable, "tools/ci_matrix.py"],
        cwd=ROOT,
        input=listed,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = {(row["session"], row["python"], row["os"]) for row in json.loads(made)["include"]}
    for name in OURS:
        for python in ("3.11", "3.12", "3.13"):
            assert (f"{name}-{python}", python, "ubuntu-latest") in rows
