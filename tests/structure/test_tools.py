"""The scripts under tools/: their examples run, and changelog fragments are named as they should be."""

from __future__ import annotations

import doctest
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "tools").glob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_examples_run(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    failed, tried = doctest.testmod(module)
    assert tried > 0 and failed == 0


def test_fragments_are_named_by_subject_and_kind() -> None:
    spec = importlib.util.spec_from_file_location("changelog", ROOT / "tools" / "changelog.py")
    assert spec is not None and spec.loader is not None
    changelog = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(changelog)
    wrong = [path.name for path in changelog.fragments(ROOT / "changes") if changelog.kind_of(path) is None]
    assert not wrong, f"name these subject.kind.md: {wrong}"
    assert changelog.kind_of(Path("scan.typo.md")) is None
