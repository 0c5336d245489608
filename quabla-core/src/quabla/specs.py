"""What a structure says without being walked by hand: the names of its places, its text, and where two differ.

A structure ("spec") is a nested tuple, so that comparing and hashing run in C: a leaf is `LEAF`, a container
`(class, meta, children, order)`, where the meta is the sorted keys of a dict (and a defaultdict's factory), else None.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

__all__ = [
    "LEAF", "Path", "at_path", "collect_orders", "compare", "count_leaves", "depth", "field_names", "names_of",
    "shown_as",
]  # fmt: skip

Path = tuple[str, ...]
LEAF = "*"


_FIELDS: dict[type, tuple[str, ...]] = {}


def field_names(kind: type) -> tuple[str, ...]:
    names = _FIELDS.get(kind)
    if names is None:
        names = _FIELDS[kind] = tuple([f.name for f in dataclasses.fields(kind)])
    return names


def names_of(spec: Any) -> Sequence[Any]:
    kind, meta, children, _ = spec
    if meta is not None:
        return meta[1] if kind is defaultdict else meta  # type: ignore[no-any-return]
    if kind in (list, tuple):
        return range(len(children))
    if kind is type(None):
        return ()
    return kind._fields if issubclass(kind, tuple) else field_names(kind)


def count_leaves(spec: Any) -> int:
    """How many leaves a structure has; found without recursion."""
    count, todo = 0, [spec]
    while todo:
        found = todo.pop()
        if found == LEAF:
            count += 1
        else:
            todo += found[2]
    return count


def collect_orders(spec: Any, found: list[Any]) -> None:
    if spec == LEAF:
        return
    _, _, children, order = spec
    if order.keys is not None:
        found.append(order.keys)
    elif children:
        found.append(None)
    if children.count(LEAF) < len(children):
        for child in children:
            collect_orders(child, found)


def at_path(path: Path) -> str:
    return f"at {'/'.join(path)}" if path else "at the root"


def compare(a: Any, b: Any, path: Path, lines: list[str]) -> None:
    if a == b:
        return
    at = at_path(path)
    if a != LEAF and b != LEAF and a[0] is b[0]:
        ours, theirs = names_of(a), names_of(b)
        missing = [n for n in ours if n not in theirs]
        extra = [n for n in theirs if n not in ours]
        if missing or extra:
            if a[1] is None:
                lines.append(f"  {at}: expected {len(ours)} elements, got {len(theirs)}")
            else:
                parts = [f"missing {', '.join([repr(n) for n in missing])}"] * bool(missing)
                parts += [f"extra {', '.join([repr(n) for n in extra])}"] * bool(extra)
                lines.append(f"  {at}: keys {' and '.join(parts)}")
        elif a[1] != b[1]:
            lines.append(f"  {at}: the default factories differ")
        mine, other = dict(zip(ours, a[2], strict=True)), dict(zip(theirs, b[2], strict=True))
        for name in ours:
            if name in other:
                compare(mine[name], other[name], (*path, str(name)), lines)
        return
    lines.append(f"  {at}: expected {_described(a)}, got {_described(b)}")


def _described(spec: Any) -> str:
    return "a leaf" if spec == LEAF else shown_as(spec, "leaf")


def shown_as(spec: Any, leaf: str) -> str:
    """A structure as an expression in which `leaf` stands for each leaf."""
    if spec == LEAF:
        return leaf
    kind, meta, children, order = spec
    parts = [shown_as(c, leaf) for c in children]
    if kind is type(None):
        return "None"
    if kind is list:
        return f"[{', '.join(parts)}]"
    if kind is tuple:
        return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    names = names_of(spec)
    if meta is None:
        return f"{kind.__name__}({', '.join(f'{n}={p}' for n, p in zip(names, parts, strict=True))})"
    by_key = dict(zip(names, parts, strict=True))
    inside = "{" + ", ".join(f"{k!r}: {by_key[k]}" for k in order.keys or names) + "}"
    return inside if kind is dict else f"{kind.__name__}({inside})"


def depth(spec: Any) -> int:
    """How many containers stand within each other; found without recursion."""
    deepest, level = 0, [spec]
    while level := [c for s in level if s != LEAF for c in s[2]]:
        deepest += 1
    return deepest
