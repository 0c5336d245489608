"""How two signatures of a function differ, place by place, and which of several is the nearest.

The distance between two signatures is the number of their leaves that differ: that have another type or value, or that
only one of the two has. A container of another class, and an argument that is passed by keyword in only one of them,
count as one more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from quabla import tree
from quabla.shapes import ShapeDtype
from quabla.transforms.naming import argument_names
from quabla.transforms.staging import Call, Static, in_words

__all__ = ["Change", "Part", "changes", "nearest", "reason", "suggestions"]


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
        return repr(tree.unflatten(self.treedef, [in_words(leaf) for leaf in self.leaves]))

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
            f"{before!r} became {after!r}, {'a Python number' if _is_number(after) else 'a static argument'}"
        )
    if isinstance(before, ShapeDtype) and isinstance(after, ShapeDtype):
        if (before.shape, before.dtype) == (after.shape, after.dtype):
            weak, strong = "comes from Python numbers alone", "does not come from Python numbers alone"
            return f"{after} {weak if after.weak else strong}, unlike before"
        what = (
            "shape"
            if before.dtype is after.dtype
            else "dtype"
            if before.shape == after.shape
            else "shape and dtype"
        )
        return f"{before} became {after}, another {what}"
    return f"{in_words(before)} became {in_words(after)}"


def _is_number(leaf: Any) -> bool:
    """Whether a leaf of a signature is a Python number."""
    return isinstance(leaf, Static) and type(leaf.value) in (int, float, bool)


# --- in words ---------------------------------------------------------------------------------------------------------

_SHOWN = 6  # changes


def reason(fun: Any, earlier: Sequence[Call], call: Call) -> str:
    """Why a call is traced by itself: its differences to the nearest of the earlier signatures."""
    if not earlier:
        return "the first call"
    found = nearest(fun, earlier, call)
    told = [str(change) for change in found[:_SHOWN]]
    if len(found) > _SHOWN:
        told.append(f"and {len(found) - _SHOWN} more changes")
    return "; ".join(told) or "the keys of a dict came in another order, and results keep it"


def suggestions(fun: Any, calls: Sequence[Call]) -> list[str]:
    """What a user could do so that calls like these have one signature: a sentence for each kind of difference."""
    seen: dict[str, list[Any]] = {}
    for call in calls:
        for name, leaf in zip(call.leaf_names(fun), call.leaves, strict=True):
            seen.setdefault(name, []).append(leaf)
    found = [told for name, leaves in seen.items() for told in _of_leaf(name, list(dict.fromkeys(leaves)))]
    if len({call.treedef for call in calls}) > 1:
        found.append(
            "the arguments came in several structures: pass the same containers, and keyword arguments always or never "
            "by keyword"
        )
    orders: dict[Any, set[Any]] = {}
    for call in calls:
        orders.setdefault(call.treedef, set()).add(call.treedef.orders)
    if any(len(several) > 1 for several in orders.values()):
        found.append(
            "the keys of a dict came in several orders, and results keep the order: build the dict in one order, as "
            "in dict(sorted(d.items()))"
        )
    return found


def _of_leaf(name: str, leaves: Sequence[Any]) -> Iterator[str]:
    """What to do about an argument, or a part of one, that was each of these."""
    short = name.rpartition("/")[2]
    short = short if short.isidentifier() else "..."
    numbers = [leaf for leaf in leaves if _is_number(leaf)]
    if len(numbers) > 1:
        yield (
            f"{name} was {len(numbers)} different Python numbers, and each is a trace of its own: pass "
            f"quabla.array({short})"
        )
    arrays = [leaf for leaf in leaves if isinstance(leaf, ShapeDtype)]
    if arrays and len(arrays) < len(leaves):
        yield f"{name} was an array in some calls only: pass quabla.array({short}) in all"
    shapes = list(dict.fromkeys(a.shape for a in arrays))
    if len(shapes) > 1:
        shown = ", ".join(map(str, shapes))
        yield f"{name} had the shapes {shown}: pad it to a few sizes, or cut it into pieces of one size"
    dtypes = list(dict.fromkeys(a.dtype.name for a in arrays))
    if len(dtypes) > 1:
        yield f"{name} came as {' and as '.join(dtypes)}: convert it once, with astype, before the calls"
    if len(arrays) > len({(a.shape, a.dtype) for a in arrays}):
        yield f"{name} sometimes came from Python numbers alone: convert it once, with astype, before the calls"
