"""Trees of any depth: walked to their end, or refused by one error that says why; never a bare RecursionError."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest

import quabla as qb
from quabla import tree

Pair = namedtuple("Pair", ["inner"])


@dataclasses.dataclass
class Box:
    inner: Any


KINDS: dict[str, Callable[[Any], Any]] = {
    "list": lambda a: [a],
    "tuple": lambda a: (a,),
    "dict": lambda a: {"a": a},
    "unsorted_dict": lambda a: {"b": a, "a": None},
    "named_tuple": Pair,
    "dataclass": Box,
}


def nested(kind: str, depth: int, leaf: Any) -> Any:
    return reduce(lambda a, _: KINDS[kind](a), range(depth), leaf)


def compared(t: Any) -> Any:
    one, other = tree.structure(t), tree.structure(t)
    assert hash(one) == hash(other) and one == other
    return repr(one), one.shown(), one.orders, tree.paths(one), tree.difference(one, other)


X = qb.array([1.0, 2.0, 0.5])
# Each takes a tree and the same tree with 0 in place of its array.
WALKS: dict[str, Callable[[Any, Any], Any]] = {
    "flatten": lambda t, n: tree.flatten(t),
    "unflatten": lambda t, n: tree.unflatten(tree.structure(t), [X]),
    "map": lambda t, n: tree.map(lambda x: x, t),
    "map_two": lambda t, n: tree.map(lambda x, y: x, t, n),
    "compare": lambda t, n: compared(t),
    "paths": lambda t, n: tree.flatten_with_paths(t),
    "broadcast_prefix": lambda t, n: tree.broadcast_prefix(n, tree.structure(t)),
    "flatten_up_to": lambda t, n: tree.flatten_up_to(n, tree.structure(t)),
    "jit": lambda t, n: qb.jit(lambda t: tree.leaves(t)[0], device="reference")(t),
    "jit_result": lambda t, n: qb.jit(lambda t: t, device="reference")(t),
    "grad": lambda t, n: qb.grad(lambda t: qb.sum(tree.leaves(t)[0]))(t),
    "vmap": lambda t, n: qb.vmap(lambda t: t, in_axes=(n,), out_axes=n)(t),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("walk", WALKS)
def test_deep_trees_are_walked_or_refused(walk: str, kind: str) -> None:
    outcomes = []
    for depth in (20, 100, *range(160, 540, 20), 700, 900, 960, 990, 2000):
        try:
            WALKS[walk](nested(kind, depth, X), nested(kind, depth, 0))
            outcomes.append(True)
        except tree.TreeError as error:
            assert "nested deeper than Python's recursion limit" in str(error)
            outcomes.append(False)
    assert outcomes[:2] == [True, True]
    assert outcomes == sorted(outcomes, reverse=True)  # what is refused is deeper than what is not
    assert not outcomes[-1]


def test_a_full_stack_is_no_fault_of_a_shallow_tree() -> None:
    def endless(t: Any) -> Any:
        return endless(tree.map(lambda x: x, t))

    with pytest.raises(RecursionError):
        endless([X, {"a": X}])
