"""Names of a Program's inputs: one for each, and no two the same, since arrays are given to a Program by name."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

__all__ = ["unique"]


def unique(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each different: one that came before gets the first of `#1`, `#2`, … that makes a new name.

    Names that differ stay as they are, also one that ends in `#1` itself; so it does not matter how often this is done.

    Args:
        names: any names.

    Example:
        >>> unique(["x", "d/a/b", "d/a/b", "x#1", "x"])
        ('x', 'd/a/b', 'd/a/b#1', 'x#1', 'x#2')
    """
    given = tuple(names)
    taken = set(given)
    if len(taken) == len(given):
        return given
    numbers: dict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(1))
    found: dict[str, None] = {}
    for name in given:
        own = name
        if name in found:
            own = next(copy for i in numbers[name] if (copy := f"{name}#{i}") not in taken)
            taken.add(own)
        found[own] = None
    return tuple(found)
