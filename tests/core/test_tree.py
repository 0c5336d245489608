"""Trees of containers: taking leaves out, putting them back, prefixes, paths and messages."""

from __future__ import annotations

import dataclasses
import pickle
import re
import threading
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quabla as qb
from quabla import tree
from quabla.tree import TreeError


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Layer:
    w: Any
    b: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.w, str):
            raise ValueError("made through __init__")


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    derived: Any = dataclasses.field(init=False, default=7)


LEAVES = st.integers() | st.floats(allow_nan=False) | st.text(max_size=2) | st.just(object)
KEYS = st.text(max_size=3)


def containers(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(of, max_size=3),
        st.lists(of, max_size=3).map(tuple),
        st.dictionaries(KEYS, of, max_size=3),
        st.dictionaries(st.integers(), of, max_size=3),
        st.dictionaries(KEYS, of, max_size=3).map(OrderedDict),
        st.dictionaries(KEYS, of, max_size=3).map(lambda d: defaultdict(list, d)),
        st.builds(Point, of, of),
        st.builds(Layer, of.filter(lambda x: not isinstance(x, str)), of),
        st.builds(Slotted, of),
    )


TREES = st.recursive(LEAVES | st.none(), containers, max_leaves=12)


def plain(x: Any) -> Any:
    """A tree with its classes and the order of its keys spelled out, compared by `==`."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return (type(x), [plain(getattr(x, f.name)) for f in dataclasses.fields(x)])
    if isinstance(x, dict):
        return (type(x), [(k, plain(v)) for k, v in x.items()], getattr(x, "default_factory", None))
    if isinstance(x, list | tuple):
        return (type(x), [plain(v) for v in x])
    return (type(x), x)


@given(TREES)
def test_round_trip_gives_back_classes_and_order(t: Any) -> None:
    leaves, treedef = tree.flatten(t)
    assert len(leaves) == treedef.num_leaves
    assert plain(tree.unflatten(treedef, leaves)) == plain(t)
    assert plain(tree.unflatten(treedef, iter(leaves))) == plain(t)
    again, same = tree.flatten(tree.unflatten(treedef, leaves))
    assert all(a is b for a, b in zip(leaves, again, strict=True))
    assert same == treedef and hash(same) == hash(treedef) and repr(same) == repr(treedef)
    assert plain(tree.map(lambda x: x, t)) == plain(t)
    if not isinstance(t, dict):
        assert plain(pickle.loads(pickle.dumps(treedef))) == plain(treedef)


@given(TREES)
def test_children_and_paths_agree_with_the_tree(t: Any) -> None:
    treedef = tree.flatten(t)[1]

    def follow(node: tree.TreeDef) -> list[tuple[str, ...]]:
        if node.kind is tree.LEAF:
            return [()]
        return [(str(k), *p) for k, c in zip(node.keys, node.children, strict=True) for p in follow(c)]

    assert tree.paths(treedef) == follow(treedef)
    assert sum(c.num_leaves for c in treedef.children) == treedef.num_leaves or treedef.kind is tree.LEAF
    assert sorted(map(str, treedef.order)) == sorted(map(str, treedef.keys))


@given(TREES, TREES)
def test_equality_is_that_of_structures(a: Any, b: Any) -> None:
    da, db = tree.flatten(a)[1], tree.flatten(b)[1]
    assert (da == db) == (tree.difference(da, db) == "")
    if da == db:
        assert hash(da) == hash(db) and da.num_leaves == db.num_leaves
    assert da != "x" and da != da.spec


def test_insertion_order_is_kept_but_not_compared() -> None:
    a, b = {"z": 1, "a": {"y": 2, "b": 3}}, {"a": {"b": 3, "y": 2}, "z": 1}
    (la, da), (lb, db) = tree.flatten(a), tree.flatten(b)
    assert la == lb == [3, 2, 1]
    assert da == db and hash(da) == hash(db) and len({da, db}) == 1
    assert list(tree.unflatten(da, la)) == ["z", "a"] and list(tree.unflatten(db, lb)) == ["a", "z"]
    assert repr(da) == "TreeDef({'z': *, 'a': {'y': *, 'b': *}})"
    assert da.keys == ("a", "z") and da.order == ("z", "a")


def test_structures_that_differ() -> None:
    kinds = [
        1, None, [], (), {}, [1], (1,), {"a": 1}, {"b": 1}, {1: 1}, OrderedDict(a=1), defaultdict(int, a=1),
        defaultdict(list, a=1), Point(1, 2), (1, 2), [1, 2], [1, None], Layer(1, 2), Layer(1), [[1]], [(1,)],
    ]  # fmt: skip
    defs = [tree.flatten(k)[1] for k in kinds]
    for i, a in enumerate(defs):
        for j, b in enumerate(defs):
            assert (a == b) == (i == j), (a, b)


def test_what_is_a_leaf() -> None:
    class Sub(list):  # type: ignore[type-arg]
        pass

    arrays = [np.ones(2), qb.ones(2), qb.ones(2).slice(0, 0, 1)]
    for leaf in (1, "ab", *arrays, Sub([1]), {1, 2}, Layer, Point, b"x", range(2)):
        leaves, treedef = tree.flatten(leaf)
        assert leaves[0] is leaf and repr(treedef) == "TreeDef(*)" and treedef.kind is tree.LEAF
    assert tree.flatten(None) == ([], tree.flatten(None)[1])
    assert tree.unflatten(tree.flatten(None)[1], []) is None


def test_dataclasses_are_rebuilt_without_their_initialiser() -> None:
    leaves, treedef = tree.flatten(Layer(1, {"k": 2}))
    assert leaves == [1, 2] and tree.paths(treedef) == [("w",), ("b", "k")]
    built = tree.unflatten(treedef, ["text", 3])
    assert type(built) is Layer and built.w == "text" and built.b == {"k": 3}
    assert tree.map(lambda x: x + 1, Slotted(1)) == tree.unflatten(tree.flatten(Slotted(0))[1], [2, 8])


def test_named_tuples_made_by_either_way() -> None:
    old = namedtuple("old", "a b")
    assert tree.map(lambda x: x * 2, old(1, Point(2, 3))) == old(2, Point(4, 6))
    assert type(tree.map(lambda x: x, old(1, 2))) is old


@pytest.mark.parametrize("bad", [{"a": 1, 1: 2}, {None: 1, "a": 2}, {(1, "a"): 1, (1, 2): 3}])
def test_keys_that_do_not_sort(bad: Any) -> None:
    for error in (TypeError, qb.QuablaError):
        with pytest.raises(error, match=r"keys of a dict must sort.*such as str"):
            tree.flatten([bad])


def test_wrong_number_of_leaves() -> None:
    treedef = tree.flatten([1, {"a": 2}])[1]
    for leaves in ([], [1], [1, 2, 3]):
        with pytest.raises(ValueError, match=rf"has 2 leaves, got {len(leaves)}"):
            tree.unflatten(treedef, leaves)


def test_map() -> None:
    assert tree.map(lambda x: -x, {"b": [1, None], "a": (2,)}) == {"b": [-1, None], "a": (-2,)}
    assert tree.map(lambda x, y, z: x + y * z, [1, 2], [3, 4], [5, 6]) == [16, 26]
    pairs = tree.map(lambda x, y: (x, y), {"b": 1, "a": 2}, {"a": 3, "b": 4})
    assert list(pairs.items()) == [("b", (1, 4)), ("a", (2, 3))]


@pytest.mark.parametrize(
    ("a", "b", "lines"),
    [
        ([1, 2], [1], ["at the root: expected 2 elements, got 1"]),
        ({"a": 1}, {"b": 1}, ["at the root: keys missing 'a' and extra 'b'"]),
        ({"l": [{"w": 1}, 2]}, {"l": [{"v": 1}, 2]}, ["at l/0: keys missing 'w' and extra 'v'"]),
        ({"l": [1, 2]}, {"l": (1, 2)}, ["at l: expected [leaf, leaf], got (leaf, leaf)"]),
        (
            [1, [2, 3]],
            [[1], 2],
            ["at 0: expected a leaf, got [leaf]", "at 1: expected [leaf, leaf], got a leaf"],
        ),
        (Point(1, None), Point(1, 2), ["at y: expected None, got a leaf"]),
        (defaultdict(int, a=1), defaultdict(list, a=1), ["at the root: the default factories differ"]),
    ],
)
def test_mismatches_are_a_readable_list_of_places(a: Any, b: Any, lines: list[str]) -> None:
    with pytest.raises(ValueError, match="map: tree 2 differs from the first") as caught:
        tree.map(lambda x, y: x, a, b)
    assert str(caught.value).split("\n")[1:] == [f"  {line}" for line in lines]
    assert isinstance(caught.value, TypeError)


def test_long_lists_of_differences_are_cut() -> None:
    text = tree.difference(tree.flatten([1] * 20)[1], tree.flatten([[1]] * 20)[1])
    assert len(text.split("\n")) == 9 and "12 more" in text


def test_paths() -> None:
    t = {"layers": [{"w": 1, "b": 2}], "at": Point(3, Layer(4, None))}
    named = tree.flatten_with_paths(t)
    assert named == [
        (("at", "x"), 3),
        (("at", "y", "w"), 4),
        (("layers", "0", "b"), 2),
        (("layers", "0", "w"), 1),
    ]
    assert tree.flatten_with_paths(5) == [((), 5)]


def test_prefixes() -> None:
    treedef = tree.flatten(({"w": 1, "b": [2, 3]}, (4, None), Layer(5, 6)))[1]
    for prefix, expected in (
        (0, [0, 0, 0, 0, 0, 0]),
        (None, [None] * 6),
        ((0, 1, 2), [0, 0, 0, 1, 2, 2]),
        ([0, None, 2], [0, 0, 0, None, 2, 2]),
        (({"w": 0, "b": None}, [1, 9], Layer(2, 3)), [None, None, 0, 1, 2, 3]),
        (({"w": 0, "b": (1, 2)}, (None, None), None), [1, 2, 0, None, None, None]),
    ):
        assert tree.broadcast_prefix(prefix, treedef) == expected


@pytest.mark.parametrize(
    ("prefix", "text"),
    [
        ([0], r"in_axes: at the root: expected the structure .*, got \[0\]"),
        ([0, 1, 2], "at the root"),
        ({"a": 0}, "at the root"),
        (({"w": 0}, 1), "at 0: expected the structure {'w'"),
        (({"w": [0], "b": 1}, 1), r"at 0/w: expected one entry for one array, got \[0\]"),
        (({"w": 0, "b": (1,)}, 1), "at 0/b"),
        ((0, Layer(1)), "at 1: expected one entry for one array"),
    ],
)
def test_prefixes_that_go_elsewhere(prefix: Any, text: str) -> None:
    treedef = tree.flatten(({"w": 1, "b": [2, 3]}, 4))[1]
    with pytest.raises(tree.TreeError, match=text):
        tree.broadcast_prefix(prefix, treedef, "in_axes")


@given(TREES)
def test_a_leaf_is_a_prefix_of_everything_and_a_tree_of_itself(t: Any) -> None:
    leaves, treedef = tree.flatten(t)
    assert tree.broadcast_prefix(5, treedef) == [5] * len(leaves)
    for f in (tree.broadcast_prefix, tree.flatten_up_to):
        if None not in leaves:
            assert [id(x) for x in f(t, treedef)] == [id(x) for x in leaves]


def test_flatten_up_to_keeps_subtrees_and_does_not_broadcast() -> None:
    treedef = tree.flatten([1, {"a": 2}])[1]
    assert tree.flatten_up_to(([1, 2], {"a": None}), treedef) == [[1, 2], None]
    for short in (5, None, [5, 6], [5, None]):
        with pytest.raises(tree.TreeError, match="jvp: at"):
            tree.flatten_up_to(short, treedef, "jvp")


def test_deep_trees() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    leaves, treedef = tree.flatten(deep)
    assert (
        leaves == [1]
        and tree.unflatten(treedef, leaves) == deep
        and hash(treedef) == hash(tree.flatten(deep)[1])
    )


def test_threads_meet_new_classes_together() -> None:
    classes = [namedtuple(f"new{i}", "a b") for i in range(50)]
    wrong: list[Any] = []
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for c in classes:
            t = {"k": c(1, [2]), str(id(c)): 3}
            if plain(tree.map(lambda x: x, t)) != plain(t):
                wrong.append(c)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_different_dicts_do_not_pile_up() -> None:
    from quabla.key_order import KNOWN

    for i in range(10000):
        tree.flatten({f"key{i}": 1, "b": 2})
    assert len(KNOWN) < 5000


def test_keys_that_are_equal_but_of_different_types_stay_apart() -> None:
    for key in (1, True, 1.0):
        leaves, treedef = tree.flatten({key: 5, 0: 6})
        assert [type(k) for k in tree.unflatten(treedef, leaves)] == [type(key), int]


# --- trees without an end ---------------------------------------------------------------------------------------------


class Link(NamedTuple):
    value: Any
    next: Any


def _itself(kind: str) -> Any:
    ring: Any = {} if kind == "dict" else []
    outer = Link(1.0, {"w": [2.0, ring]})
    if kind == "dict":
        ring["again"] = (ring,)
    else:
        ring.extend([3.0, {"again": ring}])
    return outer


@pytest.mark.parametrize(("kind", "again"), [("dict", "again/0"), ("list", "1/again")])
def test_a_container_that_holds_itself_is_named(kind: str, again: str) -> None:
    message = f"the {kind} at next/w/1 holds itself, at next/w/1/{again}; a tree has no cycles"
    for f in (tree.flatten, tree.leaves, lambda x: tree.map(abs, x)):
        with pytest.raises(TreeError, match=re.escape(message)):
            f(_itself(kind))
    for transformed in (qb.jit(len), qb.grad(len), qb.vmap(len)):
        with pytest.raises(TreeError, match=f"the {kind} at .* holds itself, at .*{again}"):
            transformed(_itself(kind))


def test_a_list_at_the_root_that_holds_itself() -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(TreeError, match="the list at the root holds itself, at 0;"):
        tree.flatten(ring)


@pytest.mark.parametrize("shared", [False, True])
def test_containers_that_are_too_deep(shared: bool) -> None:
    deep: list[Any] = []
    for _ in range(20_000):
        deep = [deep, deep] if shared else [deep]
    with pytest.raises(TreeError, match="nested deeper than Python's recursion limit"):
        tree.flatten(deep)


def test_what_is_shared_is_no_cycle() -> None:
    part = {"w": 1.0}
    assert tree.leaves([part, (part, part)]) == [1.0, 1.0, 1.0]
    assert tree.structure([part, (part, part)]) == tree.flatten([{"w": 5}, ({"w": 6}, {"w": 7})])[1]
