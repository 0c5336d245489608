"""Entry points read from their folders, against importlib.metadata."""

from __future__ import annotations

import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from quabla.backends import discovery


def install(
    folder: Path, name: str, points: str, suffix: str = "dist-info", header: str = "METADATA"
) -> None:
    info = folder / (f"{name.replace('-', '_')}-1.5.{suffix}")
    info.mkdir(parents=True)
    (info / header).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n\nName: text\n", "utf-8")
    (info / "entry_points.txt").write_text(points, "utf-8")


def expected(group: str) -> list[tuple[str, str, str, str]]:
    """The same by importlib.metadata."""
    found = []
    for dist in metadata.distributions():
        for point in dist.entry_points:
            if point.group == group:
                found.append((dist.metadata["Name"], dist.version, point.name, point.value))
    return found


def got(group: str) -> list[tuple[str, str, str, str]]:
    return [(p.distribution, p.version, p.name, p.value) for p in discovery.entry_points(group)]


@pytest.mark.parametrize("group", ["quabla.backends", "console_scripts", "pytest11", "no.such.group"])
def test_what_is_installed_here_is_found(group: str) -> None:
    assert got(group) == expected(group)


POINTS = """
[other]
a = nowhere
[my.group]
# a comment
plain = json
  indented=os.path : join
extra = json:decoder.JSONDecoder [fast]
[my.group.sub]
b = nowhere
"""


def test_all_forms_of_an_entry_point(tmp_path: Path, monkeypatch: Any) -> None:
    import json
    import os

    install(tmp_path, "some-thing", POINTS)
    install(tmp_path, "an.egg", "[my.group]\nold = json:loads\n", "egg-info", "PKG-INFO")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert sorted(got("my.group")) == sorted(expected("my.group"))
    loaded = {point.name: point.load() for point in discovery.entry_points("my.group")}
    wanted = {"plain": json, "indented": os.path.join, "extra": json.decoder.JSONDecoder, "old": json.loads}
    assert loaded == wanted


def test_an_archive_on_the_path_is_searched(tmp_path: Path, monkeypatch: Any) -> None:
    archive = tmp_path / "wheel.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("packed-2.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: packed\nVersion: 2.0\n")
        file.writestr("packed-2.0.dist-info/entry_points.txt", "[my.group]\npacked = json\n")
    install(tmp_path / "folder", "plain", "[my.group]\nplain = json\n")
    monkeypatch.setattr(sys, "path", [str(archive), str(tmp_path / "folder"), *sys.path])
    assert got("my.group") == [("packed", "2.0", "packed", "json"), ("plain", "1.5", "plain", "json")]
    assert discovery.version("packed") == "2.0"


@pytest.mark.parametrize("damage", ["no name", "no metadata", "garbled point", "not text"])
def test_damaged_metadata_is_a_point_that_fails_or_none(
    damage: str, tmp_path: Path, monkeypatch: Any
) -> None:
    install(tmp_path, "broken", "[my.group]\nbroken = json\n")
    install(tmp_path, "whole", "[my.group]\nwhole = json\n")
    info = tmp_path / "broken-1.5.dist-info"
    if damage == "no name":
        (info / "METADATA").write_text("Metadata-Version: 2.1\nVersion: 1.5\n", "utf-8")
    elif damage == "no metadata":
        (info / "METADATA").unlink()
    elif damage == "garbled point":
        (info / "entry_points.txt").write_text("[my.group]\nthis says nothing\n", "utf-8")
    else:
        (info / "entry_points.txt").write_bytes(b"[my.group]\nbroken = \xff\xfe")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    points = {point.name: point for point in discovery.entry_points("my.group")}
    import json

    assert points.pop("whole").load() is json
    for point in points.values():
        try:
            assert point.load() is json
        except Exception as error:
            assert not isinstance(error, AssertionError)


def test_versions() -> None:
    assert discovery.version("quabla-core") == metadata.version("quabla-core")
    assert discovery.version("numpy") == metadata.version("numpy")
    assert discovery.version("no-such-distribution") is None


def test_the_usual_case_needs_no_metadata_module(run_python: Any) -> None:
    code = (
        "import sys; from quabla.backends import discovery\n"
        "list(discovery.entry_points('quabla.backends')); discovery.version('quabla-core')\n"
        "print('importlib.metadata' in sys.modules)"
    )
    assert run_python(code).stdout.split() == ["False"]
