"""docs/api.md describes every public name, and a name that cannot be described is an error."""

from __future__ import annotations

import runpy
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import quabla

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "api_page.py"
PAGE = ROOT / "docs" / "api.md"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def tool() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(TOOL)))


def test_the_page_is_what_the_script_writes(run_python: Run) -> None:
    # A process of its own: other tests bring public names of plugins.
    code = f"""
import runpy, sys
sys.stdout.reconfigure(encoding="utf-8")
print(runpy.run_path({str(TOOL)!r})["page"](), end="")
"""
    assert run_python(code).stdout == PAGE.read_text("utf-8"), "run: python tools/api_page.py"


def test_every_public_name_has_its_directive(tool: SimpleNamespace) -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    there = [line.split(":: ")[1] for line in lines if line.startswith(".. auto") and "module::" not in line]
    values = [(d, m) for d, m in pairwise(lines) if d.startswith(".. py:data:: ")]
    there += [f"{module.split(': ')[1]}.{data.split(':: ')[1]}" for data, module in values]
    assert len(there) == len(set(there))
    expected = {n for n in quabla.__all__ if type(getattr(quabla, n)) is not type(quabla)}
    assert {f"quabla.{n}" for n in expected} <= set(there)
    assert {
        "quabla.sum",
        "quabla.linalg.det",
        "quabla.optim.Adam",
        "quabla.tree.LEAF",
        "quabla.float32",
    } <= set(there)


def test_a_name_without_a_docstring_is_an_error(
    tool: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> None: ...

    nameless.__module__ = "quabla.ops.elementwise"
    monkeypatch.setattr(quabla, "nameless", nameless, raising=False)
    with pytest.raises(LookupError, match=r"quabla\.nameless has no docstring"):
        tool.page()
    nameless.__doc__ = "Something."
    assert ".. autofunction:: quabla.nameless" in tool.page()


def test_a_name_of_an_unknown_module_is_an_error(
    tool: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere() -> None:
        """Something."""

    elsewhere.__module__ = "quabla.elsewhere"
    monkeypatch.setattr(quabla, "elsewhere", elsewhere, raising=False)
    with pytest.raises(LookupError, match=r"quabla\.elsewhere.*no subject"):
        tool.page()


def test_the_check_says_whether_the_page_is_up_to_date(
    tool: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setitem(tool.main.__globals__, "PAGE", tmp_path / "api.md")
    monkeypatch.setitem(tool.main.__globals__, "page", lambda: "the page")
    assert tool.main(["--check"]) == 1
    assert "run: python tools/api_page.py" in capsys.readouterr().err
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
    (tmp_path / "api.md").write_text("another")
    assert tool.main(["--check"]) == 1
