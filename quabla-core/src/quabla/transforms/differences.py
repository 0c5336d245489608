"""How two signatures of a function differ, place by place, and which of several is the nearest.

The distance between two signatures is the number of their leaves that differ: that have another type or value, or that
only one of the two has. A container of another class, and an argument that is passed by keyword in only one of them,
count as one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from quabla import tree
from quabla.shapes import ShapeDtype
from quabla.transforms.naming import argument_names
from quabla.transforms.staging import Call, Static

__all__ = ["Change", "Part", "changes", "is_number", "nearest"]


class Part(NamedTuple):
    """A part of the arguments of a call.

    Attributes:
        treedef: its structure.
        leaves: per leaf, its type or a `Static`.
        how: how it was passed: "by position" or "by keyword", or "" within an argument.
    """

    treedef: tree.TreeDef
    leaves: Sequence[Any]
    how: str = ""

    def __str__(self) -> str:
        return repr(tree.unflatten(self.treedef, self.leaves))

    def children(self) -> dict[Any, Part]:
        """What it holds, by key, position or name of the field."""
        found, at = {}, 0
        for key, child in zip(self.treedef.keys, self.treedef.children, strict=True):
            found[key] = Part(child, self.leaves[at : at + child.num_leaves])
            at += child.num_leaves
        return found


class Change(NamedTuple):
    """A place at which two signatures differ.

    Attributes:
        name: the parameter, and the path within the argument.
        before: what was there; None for nothing.
        after: what is there now; None for nothing.
        what: what differs: "parts", or of parts alike in all else, "class" or "how".
    """

    name: str
    before: Part | None
    after: Part | None
    what: str = "parts"

    @property
    def size(self) -> int:
        """The number of leaves that differ, at least one."""
        if self.what != "parts":
            return 1
        return max(1, *(part.treedef.num_leaves for part in (self.before, self.after) if part is not None))

    def __str__(self) -> str:
        return f"{self.name}: {self._told()}"

    def _told(self) -> str:
        if self.before is None:
            return f"{self.after} was added"
        if self.after is None:
            return f"{self.before} was left out"
        if self.what == "how":
            return f"passed {self.after.how}, before {self.before.how}"
        if self.what == "class":
            one, other = (_a_class(part.treedef) for part in (self.before, self.after))
            return f"{one} became {other}" if one != other else f"{other} of another kind than before"
        if self.before.treedef.kind is tree.LEAF and self.after.treedef.kind is tree.LEAF:
            return _leaf(self.before.leaves[0], self.after.leaves[0])
        return f"{self.before} became {self.after}"


def nearest(fun: Any, earlier: Sequence[Call], call: Call) -> list[Change]:
    """The changes from that of the earlier signatures that is nearest to `call`.

    Of those at the same distance it is one of the same structure, if there is one, and of these the latest.
    """
    found = [(changes(fun, old, call), old.treedef != call.treedef) for old in reversed(earlier)]
    return min(found, key=lambda pair: (sum(change.size for change in pair[0]), pair[1]))[0]


def changes(fun: Any, before: Call, after: Call) -> list[Change]:
    """Where the arguments of two calls of `fun` differ: nowhere, if only in the order of the keys of dicts."""
    found: list[Change] = []
    _compare_all(_arguments(fun, before), _arguments(fun, after), "", found)
    return found


def _arguments(fun: Any, call: Call) -> dict[Any, Part]:
    args_def, kwargs_def = call.treedef.children
    args = Part(args_def, call.leaves[: args_def.num_leaves]).children().values()
    kwargs = Part(kwargs_def, call.leaves[args_def.num_leaves :]).children()
    by_position, by_keyword = argument_names(fun, range(len(args)), kwargs)
    found = [part._replace(how="by position") for part in args]
    found += [part._replace(how="by keyword") for part in kwargs.values()]
    return dict(zip((*by_position, *by_keyword), found, strict=True))


def _compare_all(before: dict[Any, Part], after: dict[Any, Part], name: str, found: list[Change]) -> None:
    for key, part in after.items():
        _compare(before.get(key), part, f"{name}{key}", found)
    found += [Change(f"{name}{key}", part, None) for key, part in before.items() if key not in after]


def _compare(before: Part | None, after: Part, name: str, found: list[Change]) -> None:
    if before is None:
        found.append(Change(name, None, after))
        return
    if before.how != after.how:
        found.append(Change(name, before, after, "how"))
    one, other = before.treedef, after.treedef
    leaf = one.kind is tree.LEAF or other.kind is tree.LEAF
    if leaf or (one.kind is not other.kind and set(one.keys) != set(other.keys)):
        if one.kind is not other.kind or tuple(before.leaves) != tuple(after.leaves):
            found.append(Change(name, before, after))
        return
    if one.kind is not other.kind or (one.keys == other.keys and one.spec[1] != other.spec[1]):
        found.append(Change(name, before, after, "class"))
    _compare_all(before.children(), after.children(), f"{name}/", found)


def _a_class(treedef: tree.TreeDef) -> str:
    name: str = treedef.kind.__name__
    return f"a{'n' * (name[0] in 'aeiouAEIOU')} {name}"


def _leaf(before: Any, after: Any) -> str:
    if isinstance(before, Static) and isinstance(after, Static):
        return (
            f"{before!r} became {after!r}, {'a Python number' if is_number(after) else 'a static argument'}"
        )
    if isinstance(before, ShapeDtype) and isinstance(after, ShapeDtype):
        if (before.shape, before.dtype) == (after.shape, after.dtype):
            weak, strong = "comes from Python numbers alone", "does not come from Python numbers alone"
            return f"{after!r} {weak if after.weak else strong}, unlike before"
        what = (
            "shape"
            if before.dtype is after.dtype
            else "dtype"
            if before.shape == after.shape
            else "shape and dtype"
        )
        return f"{before!r} became {after!r}, another {what}"
    return f"{before!r} became {after!r}"


def is_number(leaf: Any) -> bool:
    """Whether a leaf of a signature is a Python number."""
    return isinstance(leaf, Static) and type(leaf.value) in (int, float, bool)
