"""Entry points of installed distributions, read from their folders.

`importlib.metadata` answers the same and takes its time: importing it loads the modules for mail, sockets and archives,
which is longer than all else that a first call does where the program was compiled before. So the usual case, folders
on the path that hold metadata in the usual form, is read here, and everything else is left to `importlib.metadata`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial, reduce
from importlib import import_module
from typing import Any, NamedTuple

__all__ = ["Point", "entry_points", "version"]


class Point(NamedTuple):
    """An entry point.

    Attributes:
        distribution: the name of the distribution that brings it.
        version: the distribution's version.
        name: the name of the entry point; that of the distribution where its entry points cannot be read.
        value: what it points to.
        load: imports that and returns it, or raises why it cannot.
    """

    distribution: str
    version: str
    name: str
    value: str
    load: Callable[[], Any]


_METADATA = (".dist-info", ".egg-info")
_VALUE = re.compile(r"([\w.]+)\s*(?::\s*([\w.]+)\s*)?(?:\[.*\]\s*)?")


class _UnusualError(Exception):
    """Something that `importlib.metadata` has to look at."""


def entry_points(group: str) -> Iterator[Point]:
    """The entry points of a group, in the order of the path, without importing what they point to.

    Metadata that cannot be read is a point that fails to load; that of distributions without the group is not parsed.
    """
    try:
        folders = _metadata_folders()
    except _UnusualError:
        from importlib.metadata import distributions

        for dist in distributions():
            yield from _unusual(dist, group)
        return
    sought = group.encode()
    for folder in folders:
        try:
            with open(f"{folder}/entry_points.txt", "rb", buffering=0) as file:
                content = file.read()
            if sought not in content:
                continue
            text = content.decode()
        except (OSError, UnicodeDecodeError):
            continue
        try:
            points = _points(folder, text, group)
        except _UnusualError:
            from importlib.metadata import Distribution
            from pathlib import Path

            points = list(_unusual(Distribution.at(Path(folder)), group))
        yield from points


def version(distribution: str) -> str | None:
    """The version of an installed distribution, None where it is not installed."""
    start = re.sub(r"[-_.]+", "_", distribution).lower() + "-"
    try:
        for folder in _metadata_folders():
            name = os.path.basename(folder).lower()
            if name.startswith(start) and name.endswith(".dist-info"):
                return name[len(start) : -len(".dist-info")]
    except _UnusualError:
        pass
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _metadata_folders() -> list[str]:
    for finder in sys.meta_path:
        if hasattr(finder, "find_distributions") and getattr(finder, "__name__", "") != "PathFinder":
            raise _UnusualError
    found = []
    for entry in dict.fromkeys(sys.path):
        try:
            names = os.listdir(entry or ".")
        except FileNotFoundError:
            continue
        except OSError as error:  # an archive, for example
            raise _UnusualError from error
        for name in names:
            if name.endswith(_METADATA):
                found.append(os.path.join(entry, name))
            elif name.endswith(".egg"):
                raise _UnusualError
        if entry.endswith(".egg"):
            raise _UnusualError
    return found


def _points(folder: str, text: str, group: str) -> list[Point]:
    """The entry points of a distribution whose metadata is in the usual form."""
    name, number = _name_and_version(folder)
    section, found = "", []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif section == group and line and not line.startswith("#"):
            point, equals, value = map(str.strip, line.partition("="))
            match = _VALUE.fullmatch(value)
            if not point or not equals or match is None:
                raise _UnusualError
            found.append(Point(name, number, point, value, partial(_load, match[1], match[2] or "")))
    return found


def _name_and_version(folder: str) -> tuple[str, str]:
    try:
        with open(f"{folder}/METADATA", encoding="utf-8") as file:
            header = file.read().partition("\n\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise _UnusualError from error
    found = [re.search(rf"^{key}: *(\S.*?)\s*$", header, re.MULTILINE) for key in ("Name", "Version")]
    if found[0] is None or found[1] is None:
        raise _UnusualError
    return found[0][1], found[1][1]


def _load(module: str, path: str) -> Any:
    return reduce(getattr, filter(None, path.split(".")), import_module(module))


def _unusual(dist: Any, group: str) -> Iterator[Point]:
    """The same by `importlib.metadata`."""
    try:
        text = dist.read_text("entry_points.txt")
    except (OSError, UnicodeDecodeError):
        return
    if not text or group not in text:
        return
    name = number = "unknown"
    try:
        name, number = dist.metadata["Name"], dist.metadata["Version"]
        points = list(dist.entry_points.select(group=group))
    except Exception as e:
        yield Point(name, number, name, "", partial(_fail, e))
        return
    for point in points:
        yield Point(name, number, point.name, point.value, point.load)


def _fail(error: Exception) -> Any:
    raise error
