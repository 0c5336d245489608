"""Every distribution looks the same, all have one version, and what is installed by their names is ours."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tomllib
from email.message import Message
from importlib.metadata import Distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in ROOT.glob("quabla-*/pyproject.toml"))
EVERY_PYPROJECT = [ROOT, *FOLDERS]


def tool(name: str) -> ModuleType:
    """A script of the tools folder as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def project(folder: Path) -> dict[str, Any]:
    """The ``[project]`` table of a distribution."""
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    return table


VERSION = project(ROOT)["version"]
check_installed = tool("check_installed")


@pytest.mark.parametrize("folder", EVERY_PYPROJECT, ids=lambda folder: folder.name)
def test_same_skeleton(folder: Path) -> None:
    table = project(folder)
    assert table["version"] == VERSION
    assert table["license"] == "Apache-2.0"
    assert table["requires-python"] == ">=3.11"
    assert check_installed.MARK in table["keywords"]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (folder / table["readme"]).is_file()
    if folder != ROOT:
        assert table["name"] == folder.name
        (package,) = [
            path for path in (folder / "src").iterdir() if path.is_dir() and (path / "__init__.py").exists()
        ]
        assert (package / "py.typed").is_file()


@pytest.mark.parametrize("folder", EVERY_PYPROJECT, ids=lambda folder: folder.name)
def test_our_own_are_pinned_exactly(folder: Path) -> None:
    table = project(folder)
    listed = [*table["dependencies"]]
    for extra in table.get("optional-dependencies", {}).values():
        listed += extra
    ours = [entry for entry in listed if entry.startswith("quabla")]
    assert all(entry.endswith(f"=={VERSION}") for entry in ours), ours
    if folder == ROOT:
        assert {re.split(r"[\[=]", entry)[0] for entry in ours} == {item.name for item in FOLDERS}


def test_the_backends_are_found_by_their_entry_points() -> None:
    for name in ("cpu", "mlx"):
        points = project(ROOT / f"quabla-{name}")["entry-points"]
        assert points["quabla.backends"] == {name: f"quabla_{name}.plugin"}


def test_version_numbers_of_others_are_avoided() -> None:
    # Foreign distributions called `quabla` use these; an exact pin keeps them out only where ours differ.
    assert VERSION not in {"0.6.1", "0.7.0", "0.7.1", "1.0.0", "1.0.1", "1.0.2"}


def test_everything_installed_is_ours() -> None:
    found = check_installed.installed()
    if not found and not os.environ.get("QUABLA_REQUIRE_INSTALLED"):
        pytest.skip("quabla is used from the source folders, nothing is installed")
    assert found, "no quabla distribution is installed"
    assert check_installed.faults(found, VERSION, ["quabla-core"]) == []


class Named(Distribution):
    """A distribution with the given metadata and no files."""

    def __init__(self, name: str, version: str, keywords: str) -> None:
        self._message = Message()
        for key, value in (("Name", name), ("Version", version), ("Keywords", keywords)):
            self._message[key] = value

    @property
    def metadata(self) -> Any:
        return self._message

    def read_text(self, filename: str) -> str | None:
        return None

    def locate_file(self, path: Any) -> Path:
        return Path(path)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([Named("quabla-core", VERSION, "compiler,quabla-monorepo")], []),
        ([Named("quabla-core", "1.0.2", "compiler")], ["not built from this repository"]),
        ([Named("quabla_core", "0.1.9", "quabla-monorepo")], ["version 0.1.9"]),
        ([Named("quabla-core", VERSION, "quabla-monorepo")] * 2, ["installed twice"]),
        ([], ["quabla-core is not installed"]),
    ],
)
def test_a_foreign_distribution_is_noticed(items: list[Named], expected: list[str]) -> None:
    found = check_installed.faults(items, VERSION, ["quabla-core"])
    assert len(found) == len(expected)
    assert all(part in sentence for part, sentence in zip(expected, found, strict=True))


def test_no_document_installs_by_name() -> None:
    """`pip install quabla` would take a distribution of other authors; paths and exact wheels never do."""
    by_name = re.compile(
        r"(?:pip|uv|pipx) (?:add|install)(?: -\S+)* "
        r"[\"']?quabla(?![-\w]*/)[-\w]*(?:\[[^\]]*\])?[\"']?(?!==)\s"
    )
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("quabla-*/README.md")]
    assert documents
    wrong = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in documents
        for match in by_name.finditer(path.read_text("utf-8") + "\n")
    ]
    assert not wrong, wrong
    assert by_name.search("pip install quabla\n") and by_name.search("pip install -U 'quabla[viz]'\n")
    assert not by_name.search("pip install ./quabla-core\n") and not by_name.search(
        "pip install quabla==0.2.0\n"
    )


def test_ci_rows_follow_the_sessions() -> None:
    matrix = tool("ci_matrix")
    sessions = [
        {"session": "cpu-3.12", "python": "3.12", "tags": ["everywhere"]},
        {"session": "lint", "python": None, "tags": []},
    ]
    rows = matrix.rows(sessions)
    assert [row["os"] for row in rows if row["session"] == "cpu-3.12"] == list(matrix.SYSTEMS)
    assert [row for row in rows if row["session"] == "lint"] == [
        {"session": "lint", "python": matrix.DEFAULT_PYTHON, "os": matrix.LINUX}
    ]
    assert sys.version_info >= (3, 11)
