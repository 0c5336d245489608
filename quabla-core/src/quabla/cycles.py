"""Why a tree of containers cannot be walked to its end: a container holds itself, or there are too many of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["DEEP", "TOO_DEEP", "too_deep"]

DEEP = 100  # containers within each other: with fewer, it is the calls around the walk that fill the stack
TOO_DEEP = (
    "the containers are nested deeper than Python's recursion limit allows; stack equal layers into arrays"
)


def too_deep(
    tree: Any, is_container: Callable[[type], bool], field_names: Callable[[type], tuple[str, ...]]
) -> str | None:
    """What is wrong with a tree whose walk exceeds the recursion limit, in words; None if it is not the tree.

    Args:
        tree: the tree.
        is_container: whether a class is one of containers.
        field_names: the fields of a container that is neither a dict, nor a list, nor a tuple.
    """

    def parts(value: Any) -> list[tuple[Any, Any]]:
        kind = type(value)
        if value is None or not is_container(kind):
            return []
        if isinstance(value, dict):
            return list(value.items())
        if isinstance(value, list | tuple):
            return list(zip(getattr(value, "_fields", range(len(value))), value, strict=True))
        return [(name, getattr(value, name)) for name in field_names(kind)]

    # Depth first, without recursion. A path is a pair of the path above and a name; None stands for the root.
    entered: dict[int, Any] = {}
    left: set[int] = set()
    deepest = 0
    todo: list[tuple[Any, Any, bool]] = [(tree, None, False)]
    while todo:
        value, path, leaving = todo.pop()
        if leaving:
            del entered[id(value)]
            left.add(id(value))
            continue
        children = parts(value)
        if not children or id(value) in left:
            continue
        if id(value) in entered:
            return (
                f"the {type(value).__name__} {_shown(entered[id(value)])} holds itself, {_shown(path)}; a tree has no "
                "cycles"
            )
        entered[id(value)] = path
        deepest = max(deepest, len(entered))
        todo.append((value, path, True))
        todo += [(child, (path, str(name)), False) for name, child in reversed(children)]
    return TOO_DEEP if deepest >= DEEP else None


def _shown(path: Any) -> str:
    if path is None:
        return "at the root"
    names = []
    while path is not None:
        path, name = path
        names.append(name)
    return f"at {'/'.join(reversed(names))}"
