"""Pytrees: nested containers of arrays, taken apart into leaves and a structure, and put together again.

Containers are dicts (also OrderedDict and defaultdict; visited in sorted key order), lists, tuples, NamedTuples,
dataclass instances, and None, which holds nothing. Everything else is a leaf.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from quabla.errors import DtypeError, ShapeError

__all__ = ["TreeDef", "flatten", "map", "unflatten"]

LEAF = "leaf"


class TreeDef:
    """The structure of a pytree, without its leaves. Hashable; the insertion order of dicts is not part of equality.

    Attributes:
        kind: "leaf" or "node".
        type: the container type; None for a leaf.
        keys: dict keys in sorted order, or field names; empty for sequences.
        children: the structures of the children.
        num_leaves: the number of leaves below.
        order: dict keys in the caller's order.
    """

    __slots__ = ("_hash", "children", "extra", "keys", "kind", "num_leaves", "order", "type")

    def __init__(
        self, kind: str, type: Any, keys: tuple[Any, ...], children: tuple[TreeDef, ...], order: Any = None, extra: Any = None
    ) -> None:
        self.kind = kind
        self.type = type
        self.keys = keys
        self.children = children
        self.order = order
        self.extra = extra
        count = 0
        for child in children:
            count += child.num_leaves
        self.num_leaves = 1 if kind is LEAF else count
        self._hash = hash((type, keys, children))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, TreeDef)
            and self._hash == other._hash
            and self.type is other.type
            and self.keys == other.keys
            and self.children == other.children
        )

    def __repr__(self) -> str:
        return f"TreeDef({unflatten(self, ['*'] * self.num_leaves)!r})".replace("'*'", "*")


_LEAF_DEF = TreeDef(LEAF, None, (), ())
_NONE_DEF = TreeDef("node", type(None), (), ())


def flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """Take a pytree apart.

    Args:
        tree: any nesting of containers.

    Returns:
        The leaves, in order, and the structure.

    Raises:
        DtypeError: (a TypeError) the keys of a dict do not sort.

    Example:
        >>> from quabla import tree
        >>> leaves, treedef = tree.flatten({"w": 1.0, "b": [2.0, None]})
        >>> leaves
        [2.0, 1.0]
        >>> tree.unflatten(treedef, [20.0, 10.0])
        {'w': 10.0, 'b': [20.0, None]}
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> TreeDef:
    kind = type(tree)
    if kind is dict:
        keys = _sorted(tree)
        return TreeDef("node", dict, keys, tuple([_flatten(tree[k], leaves) for k in keys]), tuple(tree))
    if kind is tuple or kind is list:
        return TreeDef("node", kind, (), tuple([_flatten(x, leaves) for x in tree]))
    if tree is None:
        return _NONE_DEF
    if kind.__module__ != "builtins":
        if isinstance(tree, (OrderedDict, defaultdict)):
            keys = _sorted(tree)
            factory = tree.default_factory if isinstance(tree, defaultdict) else None
            return TreeDef("node", kind, keys, tuple([_flatten(tree[k], leaves) for k in keys]), tuple(tree), factory)
        if isinstance(tree, tuple) and hasattr(kind, "_fields"):
            return TreeDef("node", kind, kind._fields, tuple([_flatten(x, leaves) for x in tree]))
        if dataclasses.is_dataclass(tree):
            names = tuple(f.name for f in dataclasses.fields(tree))
            return TreeDef("node", kind, names, tuple([_flatten(getattr(tree, n), leaves) for n in names]))
    leaves.append(tree)
    return _LEAF_DEF


def _sorted(tree: Any) -> tuple[Any, ...]:
    try:
        return tuple(sorted(tree))
    except TypeError:
        kinds = ", ".join(sorted({type(k).__name__ for k in tree}))
        raise DtypeError(
            f"a dict with keys of types {kinds} cannot be used as a pytree: its keys must sort; use keys of one type"
        ) from None


def unflatten(treedef: TreeDef, leaves: Iterable[Any]) -> Any:
    """Put a pytree together.

    Args:
        treedef: a structure from `flatten`.
        leaves: as many leaves as it has.

    Returns:
        The pytree, with dict keys in the order that the original had.

    Raises:
        ShapeError: (a ValueError) another number of leaves.

    Example:
        >>> from quabla import tree
        >>> tree.unflatten(tree.flatten((1, [2, 3]))[1], "abc")
        ('a', ['b', 'c'])
    """
    given = list(leaves)
    if len(given) != treedef.num_leaves:
        raise ShapeError(f"tree.unflatten: the structure has {treedef.num_leaves} leaves, got {len(given)}")
    return _unflatten(treedef, iter(given))


def _unflatten(treedef: TreeDef, leaves: Any) -> Any:
    if treedef.kind is LEAF:
        return next(leaves)
    kind = treedef.type
    parts = [_unflatten(child, leaves) for child in treedef.children]
    if kind is tuple:
        return tuple(parts)
    if kind is list:
        return parts
    if kind is type(None):
        return None
    if issubclass(kind, dict):
        by_key = dict(zip(treedef.keys, parts, strict=True))
        items = {k: by_key[k] for k in treedef.order}
        if kind is dict:
            return items
        return kind(treedef.extra, items) if issubclass(kind, defaultdict) else kind(items)
    if issubclass(kind, tuple):
        return kind(*parts)
    made = object.__new__(kind)
    for name, part in zip(treedef.keys, parts, strict=True):
        object.__setattr__(made, name, part)
    return made


def map(f: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply a function to corresponding leaves of pytrees.

    Args:
        f: takes one leaf of each tree.
        tree: the tree that gives the structure.
        rest: trees of the same structure.

    Returns:
        The tree of the results.

    Raises:
        ShapeError: (a ValueError) trees of different structures, with the paths at which they differ.

    Example:
        >>> from quabla import tree
        >>> tree.map(lambda x, y: x + y, {"a": 1, "b": (2,)}, {"a": 10, "b": (20,)})
        {'a': 11, 'b': (22,)}
    """
    leaves, treedef = flatten(tree)
    others = [flatten_up_to(r, treedef, "tree.map") for r in rest]
    return unflatten(treedef, [f(*xs) for xs in zip(leaves, *others, strict=True)])


def paths(treedef: TreeDef) -> list[tuple[str, ...]]:
    """The path of every leaf: keys, field names and indices from the top."""
    if treedef.kind is LEAF:
        return [()]
    steps: Sequence[Any] = treedef.keys or range(len(treedef.children))
    return [(str(s), *p) for s, child in zip(steps, treedef.children, strict=True) for p in paths(child)]


def flatten_up_to(tree: Any, treedef: TreeDef, where: str) -> list[Any]:
    """The subtrees of `tree` in the places of the leaves of `treedef`.

    Raises:
        ShapeError: where the structures differ, with the path.
    """
    out: list[Any] = []
    _up_to(tree, treedef, where, (), out)
    return out


def _up_to(tree: Any, treedef: TreeDef, where: str, path: tuple[str, ...], out: list[Any]) -> None:
    if treedef.kind is LEAF:
        out.append(tree)
        return
    at = f" at {'/'.join(path)}" if path else ""
    found = _one_level(tree)
    if found is None or found[0] is not treedef.type:
        raise ShapeError(f"{where}: expected {_name(treedef)}{at}, got {_described(tree)}")
    keys, children = found[1], found[2]
    if keys != treedef.keys or len(children) != len(treedef.children):
        raise ShapeError(f"{where}: expected {_name(treedef)}{at}, got {_described(tree)}")
    steps: Sequence[Any] = treedef.keys or range(len(treedef.children))
    for step, child, sub in zip(steps, treedef.children, children, strict=True):
        _up_to(sub, child, where, (*path, str(step)), out)


def _one_level(tree: Any) -> tuple[Any, Any, Any] | None:
    """The container type, keys and children of the top level; None for a leaf."""
    kind = type(tree)
    if tree is None:
        return (kind, (), ())
    if isinstance(tree, dict):
        keys = _sorted(tree)
        return (kind, keys, [tree[k] for k in keys])
    if kind is tuple or kind is list:
        return (kind, (), list(tree))
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        return (kind, kind._fields, list(tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = tuple(f.name for f in dataclasses.fields(tree))
        return (kind, names, [getattr(tree, n) for n in names])
    return None


def _name(treedef: TreeDef) -> str:
    if treedef.type is type(None):
        return "None"
    if treedef.keys:
        return f"a {treedef.type.__name__} with {', '.join(str(k) for k in treedef.keys)}"
    return f"a {treedef.type.__name__} of {len(treedef.children)}"


def _described(tree: Any) -> str:
    found = _one_level(tree)
    if found is None:
        return f"a {type(tree).__name__}"
    if tree is None:
        return "None"
    return f"a {found[0].__name__} " + (f"with {', '.join(str(k) for k in found[1])}" if found[1] else f"of {len(found[2])}")


def broadcast_prefix(prefix: Any, treedef: TreeDef, where: str) -> list[Any]:
    """A value per leaf of `treedef` from a tree whose leaves may stand for whole subtrees. None is a leaf there."""
    out: list[Any] = []
    _spread(prefix, treedef, where, (), out)
    return out


def _spread(prefix: Any, treedef: TreeDef, where: str, path: tuple[str, ...], out: list[Any]) -> None:
    if prefix is None or not isinstance(prefix, (tuple, list, dict)):
        out.extend([prefix] * treedef.num_leaves)
        return
    at = f" at {'/'.join(path)}" if path else ""
    same = treedef.kind is not LEAF and (
        tuple(_sorted(prefix)) == treedef.keys and issubclass(treedef.type, dict)
        if isinstance(prefix, dict)
        else len(prefix) == len(treedef.children) and issubclass(treedef.type, (tuple, list))
    )
    if not same:
        found = "a leaf" if treedef.kind is LEAF else _name(treedef)
        raise ShapeError(f"{where}: {prefix!r}{at} does not match {found}")
    parts = [prefix[k] for k in treedef.keys] if isinstance(prefix, dict) else prefix
    steps: Sequence[Any] = treedef.keys or range(len(treedef.children))
    for step, part, child in zip(steps, parts, treedef.children, strict=True):
        _spread(part, child, where, (*path, str(step)), out)
