"""Say whether every installed ``quabla*`` distribution was built from this repository.

Distributions of the same names by other authors exist on public indexes, and an unpinned installation by
name takes theirs. Ours carry the keyword ``quabla-monorepo`` and one common version.

    python tools/check_installed.py 0.2.0 [name ...]     the names given must be among the installed ones
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions

MARK = "quabla-monorepo"


def normalised(name: str) -> str:
    """A distribution's name as an index compares it.

    >>> normalised("Quabla_Core")
    'quabla-core'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> list[Distribution]:
    """Every distribution of this environment whose name begins with ``quabla``."""
    found = (item for item in distributions() if normalised(item.metadata["Name"] or "").startswith("quabla"))
    return sorted(found, key=lambda item: normalised(item.metadata["Name"]))


def faults(items: Iterable[Distribution], version: str, wanted: Sequence[str] = ()) -> list[str]:
    """A sentence for each distribution that is not ours, of another version, installed twice, or missing."""
    found: list[str] = []
    seen: set[str] = set()
    for item in items:
        name = normalised(item.metadata["Name"])
        keywords = re.split(r"[,\s]+", " ".join(item.metadata.get_all("Keywords") or []))
        if name in seen:
            found.append(f"{name} is installed twice; uninstall it until nothing is left, then install again")
        seen.add(name)
        if MARK not in keywords:
            found.append(f"{name} {item.version} was not built from this repository; uninstall it")
        elif item.version != version:
            found.append(
                f"{name} has version {item.version} where {version} is wanted; install it again by path"
            )
    found += [f"{name} is not installed" for name in map(normalised, wanted) if name not in seen]
    return found


def main(arguments: Sequence[str]) -> int:
    """Print what is installed and what is wrong with it; 1 if anything is."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for item in installed():
        print(f"{normalised(item.metadata['Name'])} {item.version}")
    problems = faults(installed(), arguments[0], arguments[1:])
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
