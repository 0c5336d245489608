"""Trees of containers: take the leaves out, put others back in.

Containers are dicts (also `OrderedDict` and `defaultdict`), lists, tuples, named tuples, dataclass instances, and None,
which holds nothing. Everything else is a leaf. Dicts are visited in the order of their sorted keys, so that two dicts
that are equal have the same leaves in the same places; `unflatten` gives back the order of the caller.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from itertools import islice
from typing import Any, TypeVar

from quabla.cycles import DEEP, TOO_DEEP, too_deep
from quabla.errors import QuablaError
from quabla.key_order import KNOWN, SORTED, Order, sort_keys
from quabla.specs import (
    LEAF,
    Path,
    at_path,
    collect_orders,
    compare,
    count_leaves,
    depth,
    field_names,
    names_of,
    shown_as,
)
from quabla.typed_repr import typed

__all__ = [
    "LEAF", "TreeDef", "TreeError", "broadcast_prefix", "difference", "flatten", "flatten_up_to", "flatten_with_paths",
    "leaves", "map", "paths", "structure", "unflatten",
]  # fmt: skip


class TreeError(QuablaError, TypeError, ValueError):
    """Trees whose structures do not fit together, or a dict whose keys cannot be sorted."""


_NONE = (type(None), None, (), SORTED)


def _told(error: RecursionError, *treedefs: TreeDef) -> Exception:
    """What to raise for a walk over structures that exceeded the recursion limit; it may be its callers' fault."""
    return TreeError(TOO_DEEP) if any(depth(t.spec) >= DEEP for t in treedefs) else error


_Walk = TypeVar("_Walk", bound=Callable[..., Any])


def _bounded(walk: _Walk) -> _Walk:
    """A function that walks the structures among its arguments, and says so if they are nested too deep."""

    @wraps(walk)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        try:
            return walk(*args, **kwargs)
        except RecursionError as error:
            raise _told(error, *[a for a in args if type(a) is TreeDef]) from None

    return bounded  # type: ignore[return-value]


class TreeDef:
    """The structure of a tree without its leaves. Hashable; equal structures compare equal.

    Attributes:
        num_leaves: how many leaves it has.
        kind: `LEAF`, or the class of the container.
        children: the structures of the container's elements.
        keys: the sorted keys of a dict, the names of fields, or positions.
        order: the keys as they were inserted.

    Example:
        >>> import quabla as qb
        >>> leaves, treedef = qb.tree.flatten({"w": 1.0, "b": [2.0, None]})
        >>> leaves, treedef.num_leaves, treedef
        ([2.0, 1.0], 2, TreeDef({'w': *, 'b': [*, None]}))
    """

    __slots__ = ("_children", "_hash", "num_leaves", "spec")
    spec: Any
    num_leaves: int
    _hash: int | None
    _children: tuple[TreeDef, ...] | None

    def __init__(self, spec: Any, num_leaves: int) -> None:
        self.spec = spec
        self.num_leaves = num_leaves
        self._hash = None
        self._children = None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        try:
            return type(other) is TreeDef and self.spec == other.spec
        except RecursionError as error:
            raise _told(error, self) from None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.spec)
        return self._hash

    @property
    def kind(self) -> Any:
        return LEAF if self.spec == LEAF else self.spec[0]

    type = kind

    @property
    def children(self) -> tuple[TreeDef, ...]:
        if self._children is None:
            parts = () if self.spec == LEAF else self.spec[2]
            self._children = tuple([TreeDef(c, count_leaves(c)) for c in parts])
        return self._children

    @property
    def keys(self) -> tuple[Any, ...]:
        return () if self.spec == LEAF else tuple(names_of(self.spec))

    @property
    def order(self) -> tuple[Any, ...]:
        return self.keys if self.spec == LEAF or self.spec[3].keys is None else self.spec[3].keys

    @property
    @_bounded
    def orders(self) -> tuple[Any, ...]:
        """The orders of insertion of all dicts within it that were not sorted: equal structures may differ in them."""
        found: list[Any] = []
        collect_orders(self.spec, found)
        return tuple(found)

    @_bounded
    def shown(self) -> str:
        """The structure for messages, as in "{'w': array, 'b': array}", or "one array"."""
        return "one array" if self.spec == LEAF else shown_as(self.spec, "array")

    @_bounded
    def __repr__(self) -> str:
        return f"TreeDef({shown_as(self.spec, LEAF)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return TreeDef, (self.spec, self.num_leaves)


_LEAF_DEF = TreeDef(LEAF, 1)


# --- taking apart -----------------------------------------------------------------------------------------------------

Flattener = Callable[[Any, Callable[[Any], None]], Any]

# The functions below look up the class of each child themselves, rather than calling one function for it: most children
# are leaves, and this is on the path of every call of a transformed function. They append the leaves and return a spec.


def _flatten_sequence(x: Any, append: Callable[[Any], None]) -> Any:
    children = []
    for c in x:
        flattener = _flattener(type(c), _flatten_unknown)
        if flattener is None:
            append(c)
            children.append(LEAF)
        else:
            children.append(flattener(c, append))
    return (type(x), None, tuple(children), SORTED)


def _flatten_dict(x: Any, append: Callable[[Any], None]) -> Any:
    inserted = tuple(x)
    ordered, order = KNOWN.get(inserted) or _key_order(inserted)
    children = []
    for k in ordered:
        c = x[k]
        flattener = _flattener(type(c), _flatten_unknown)
        if flattener is None:
            append(c)
            children.append(LEAF)
        else:
            children.append(flattener(c, append))
    return (type(x), ordered, tuple(children), order)


def _flatten_defaultdict(x: Any, append: Callable[[Any], None]) -> Any:
    kind, keys, children, order = _flatten_dict(x, append)
    return (kind, (x.default_factory, keys), children, order)


def _flatten_dataclass(x: Any, append: Callable[[Any], None]) -> Any:
    values = [getattr(x, name) for name in field_names(type(x))]
    return (type(x), None, _flatten_sequence(values, append)[2], SORTED)


def _flatten_none(x: Any, append: Callable[[Any], None]) -> Any:
    return _NONE


def _flatten_unknown(x: Any, append: Callable[[Any], None]) -> Any:
    kind = type(x)
    found = _FLATTENERS[kind] = _flattener_of(kind)
    if found is None:
        append(x)
        return LEAF
    return found(x, append)


def _flattener_of(kind: type) -> Flattener | None:
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _flatten_sequence
    return _flatten_dataclass if dataclasses.is_dataclass(kind) else None


# Every class met so far; None for leaves.
_FLATTENERS: dict[type, Flattener | None] = {
    list: _flatten_sequence,
    tuple: _flatten_sequence,
    dict: _flatten_dict,
    OrderedDict: _flatten_dict,
    defaultdict: _flatten_defaultdict,
    type(None): _flatten_none,
}
_flattener = _FLATTENERS.get


def _key_order(inserted: tuple[Any, ...]) -> tuple[tuple[Any, ...], Order]:
    try:
        return sort_keys(inserted)
    except TypeError:
        kinds = ", ".join(sorted({type(k).__name__ for k in inserted}))
        raise TreeError(
            f"the keys of a dict must sort, got {typed(list(inserted))} of {kinds}; use keys of one type, such as str"
        ) from None


def flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """The leaves of a tree in order, and its structure.

    Args:
        tree: nested dicts, lists, tuples, named tuples and dataclass instances; None holds no leaf.

    Returns:
        The list of leaves, and a `TreeDef` from which `unflatten` rebuilds the tree.

    Raises:
        TreeError: the keys of a dict cannot be sorted, or a container holds itself.

    Example:
        >>> import quabla as qb
        >>> qb.tree.flatten([1, {"b": 2, "a": (3, None)}])
        ([1, 3, 2], TreeDef([*, {'b': *, 'a': (*, None)}]))
    """
    found: list[Any] = []
    flattener = _flattener(type(tree), _flatten_unknown)
    if flattener is None:
        return [tree], _LEAF_DEF
    try:
        spec = flattener(tree, found.append)
    except RecursionError:
        told = too_deep(tree, _is_container, field_names)
        if told is None:
            raise
        raise TreeError(told) from None
    return found, TreeDef(spec, len(found))


def leaves(tree: Any) -> list[Any]:
    """The leaves of a tree in order: the first result of `flatten`.

    Arguments and errors as for `flatten`.

    Example:
        >>> import quabla as qb
        >>> qb.tree.leaves({"b": 1, "a": [2, None]})
        [2, 1]
    """
    return flatten(tree)[0]


def structure(tree: Any) -> TreeDef:
    """The structure of a tree: the second result of `flatten`.

    Arguments and errors as for `flatten`.

    Example:
        >>> import quabla as qb
        >>> qb.tree.structure([1, (2, 3)]) == qb.tree.structure([4, (5, 6)])
        True
    """
    return flatten(tree)[1]


# --- putting together -------------------------------------------------------------------------------------------------


def unflatten(treedef: TreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of structure `treedef` with the given leaves.

    A dataclass instance is made without calling `__init__` or `__post_init__`: the leaves may be of any type.

    Args:
        treedef: a structure that `flatten` returned.
        leaves: as many leaves as it has, in the same order.

    Returns:
        The tree.

    Raises:
        TreeError: the number of leaves is another.

    Example:
        >>> import quabla as qb
        >>> leaves, treedef = qb.tree.flatten({"b": 1, "a": 2})
        >>> qb.tree.unflatten(treedef, [10 * x for x in leaves])
        {'b': 10, 'a': 20}
    """
    given = list(leaves)
    if len(given) != treedef.num_leaves:
        raise TreeError(f"unflatten: {treedef.shown()} has {treedef.num_leaves} leaves, got {len(given)}")
    return _put_together(treedef, iter(given))


def _put_together(treedef: TreeDef, leaves: Iterator[Any]) -> Any:
    try:
        return _unflatten(treedef.spec, leaves)
    except RecursionError as error:
        raise _told(error, treedef) from None


def _unflatten(spec: Any, leaves: Iterator[Any]) -> Any:
    if spec == LEAF:
        return next(leaves)
    kind, meta, children, order = spec
    values: Iterable[Any]
    if children.count(LEAF) == len(children):
        values = islice(leaves, len(children))
    else:
        values = [next(leaves) if c == LEAF else _unflatten(c, leaves) for c in children]
    if kind is list:
        return list(values)
    if kind is tuple:
        return tuple(values)
    if kind is dict:
        made = dict(zip(meta, values))  # noqa: B905 - as many by construction
        return made if order.keys is None else {k: made[k] for k in order.keys}
    if kind is type(None):
        return None
    if meta is not None:
        factory, keys = meta if kind is defaultdict else (None, meta)
        by_key = dict(zip(keys, values, strict=True))
        items = [(k, by_key[k]) for k in order.keys or keys]
        return defaultdict(factory, items) if kind is defaultdict else OrderedDict(items)
    if issubclass(kind, tuple):
        return kind._make(values)
    instance = object.__new__(kind)
    for name, value in zip(field_names(kind), values, strict=True):
        object.__setattr__(instance, name, value)  # past the refusal of a frozen class
    return instance


def map(f: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """The tree of `f(leaf, *leaves of rest)`, of the structure of `tree`.

    Args:
        f: a function of one leaf of each tree.
        tree: a tree.
        rest: trees of the same structure.

    Returns:
        A tree of what `f` returned.

    Raises:
        TreeError: `f` is no function, or a tree of `rest` has another structure; the message lists where.

    Example:
        >>> import quabla as qb
        >>> qb.tree.map(lambda x, y: x + y, {"a": 1, "b": [2]}, {"a": 10, "b": [20]})
        {'a': 11, 'b': [22]}
    """
    if not callable(f):
        raise TreeError(
            f"map: the first argument must be a function, got {typed(f)}; the trees come after it"
        )
    leaves, treedef = flatten(tree)
    columns = [leaves]
    for i, other in enumerate(rest):
        others, structure = flatten(other)
        if structure != treedef:
            raise TreeError(f"map: tree {i + 2} differs from the first:\n{difference(treedef, structure)}")
        columns.append(others)
    return _put_together(treedef, iter([f(*xs) for xs in zip(*columns, strict=True)]))


# --- names of places --------------------------------------------------------------------------------------------------


@_bounded
def paths(treedef: TreeDef) -> list[Path]:
    """The place of each leaf: the keys, positions and field names that lead to it; () for a tree that is a leaf.

    Args:
        treedef: a structure.

    Example:
        >>> from quabla import tree
        >>> tree.paths(tree.flatten({"layers": [{"w": 1, "b": 2}], "scale": 3})[1])
        [('layers', '0', 'b'), ('layers', '0', 'w'), ('scale',)]
    """
    found: list[Path] = []

    def visit(spec: Any, path: Path) -> None:
        if spec == LEAF:
            found.append(path)
            return
        for name, child in zip(names_of(spec), spec[2], strict=True):
            visit(child, (*path, str(name)))

    visit(treedef.spec, ())
    return found


def flatten_with_paths(tree: Any) -> list[tuple[Path, Any]]:
    """The leaves with their places, as `paths` names them. Containers and errors as for `flatten`.

    Example:
        >>> from quabla import tree
        >>> tree.flatten_with_paths((1, {"a": 2}))
        [(('0',), 1), (('1', 'a'), 2)]
    """
    leaves, treedef = flatten(tree)
    return list(zip(paths(treedef), leaves, strict=True))


# --- prefixes ---------------------------------------------------------------------------------------------------------


@_bounded
def flatten_up_to(tree: Any, treedef: TreeDef, where: str = "tree") -> list[Any]:
    """What stands in `tree` at the place of each leaf of `treedef`: a leaf, None, or a whole subtree.

    Lists match tuples.

    Args:
        tree: a tree that has at least the structure of `treedef`.
        treedef: a structure.
        where: what errors begin with.

    Returns:
        One entry per leaf of `treedef`.

    Raises:
        TreeError: `tree` ends early or goes elsewhere; the message names the place.

    Example:
        >>> from quabla import tree
        >>> _, treedef = tree.flatten(({"w": 1, "b": 2}, 3))
        >>> tree.flatten_up_to([{"w": [1, 2], "b": None}, 4], treedef)
        [None, [1, 2], 4]
    """
    found: list[Any] = []
    _match(tree, treedef.spec, (), where, found, early=False)
    return found


@_bounded
def broadcast_prefix(prefix: Any, treedef: TreeDef, where: str = "prefix") -> list[Any]:
    """What a prefix says about each leaf of `treedef`, as `in_axes` says it about arguments.

    A leaf of the prefix speaks for every leaf below its place. Lists match tuples, and None is a leaf here.

    Args:
        prefix: a tree that follows the structure of `treedef` from the root, and may stop early.
        treedef: a structure.
        where: what errors begin with.

    Returns:
        One entry per leaf of `treedef`.

    Raises:
        TreeError: the prefix goes elsewhere than `treedef`; the message names the place.

    Example:
        >>> from quabla import tree
        >>> _, treedef = tree.flatten(([5, 6], {"a": 7, "b": 8}))
        >>> tree.broadcast_prefix((0, {"a": 1, "b": None}), treedef)
        [0, 0, 1, None]
    """
    found: list[Any] = []
    _match(prefix, treedef.spec, (), where, found, early=True)
    return found


def _match(given: Any, spec: Any, path: Path, where: str, found: list[Any], early: bool) -> None:
    """Append what `given` holds at each leaf of `spec`; `early` says whether leaves of `given` may stand higher up."""
    kind = type(given)
    if spec == LEAF:
        if early and given is not None and _is_container(kind):
            raise TreeError(f"{where}: {at_path(path)}: expected one entry for one array, got {typed(given)}")
        found.append(given)
        return
    if early and (given is None or not _is_container(kind)):
        found.extend([given] * count_leaves(spec))
        return
    expected, _, children, _ = spec
    names = names_of(spec)
    parts: Sequence[Any] | None = None
    if issubclass(expected, dict):
        if isinstance(given, dict) and set(given) == set(names):
            parts = [given[k] for k in names]
    elif issubclass(expected, list | tuple):
        if isinstance(given, list | tuple) and len(given) == len(children):
            parts = given
    elif kind is expected:
        parts = [getattr(given, n) for n in names]
    if parts is None:
        wanted = shown_as(spec, "array")
        raise TreeError(f"{where}: {at_path(path)}: expected the structure {wanted}, got {typed(given)}")
    for name, part, child in zip(names, parts, children, strict=True):
        _match(part, child, (*path, str(name)), where, found, early)


def _is_container(kind: type) -> bool:
    return _FLATTENERS[kind] is not None if kind in _FLATTENERS else _flattener_of(kind) is not None


# --- messages ---------------------------------------------------------------------------------------------------------


@_bounded
def difference(expected: TreeDef, got: TreeDef, limit: int = 8) -> str:
    """Where two structures differ, one place a line.

    Args:
        expected: a structure.
        got: another.
        limit: the most lines.

    Returns:
        A line per place, with its path, what was expected there and what came; "" where there is no difference.

    Example:
        >>> from quabla import tree
        >>> one, other = (tree.flatten(t)[1] for t in ({"w": 1}, {"w": (1, 2)}))
        >>> tree.difference(one, one)
        ''
        >>> "w" in tree.difference(one, other)
        True
    """
    lines: list[str] = []
    compare(expected.spec, got.spec, (), lines)
    if len(lines) > limit:
        lines[limit:] = [f"  and {len(lines) - limit} more"]
    return "\n".join(lines)
