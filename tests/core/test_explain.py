"""`jit(f).explain()`: signatures, reasons, costs and suggestions."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest

import quabla as qb
from quabla.backends.protocol import Costs

A = qb.array
S = qb.ShapeDtype


@pytest.mark.cpu
def test_before_the_first_call() -> None:
    f = qb.jit(lambda x: x)
    assert str(f.explain()) == "jit(<lambda>) on 'cpu': not called yet"
    assert f.explain().traces == () and not f.cache.entries


@pytest.mark.cpu
def test_reasons_name_the_difference_to_the_nearest_signature() -> None:
    def model(params: Any, x: Any, n: Any = 2, *, scale: Any = 1.0) -> Any:
        return params["w"] * x * n * scale

    f = qb.jit(model)
    w, x = {"w": A(1.0)}, qb.ones((3,))
    f(w, x, 2)
    f(w, x, 3)
    f(w, qb.ones((4,)), 3)
    f({"w": A(1.0, "float32")}, qb.ones((4,), "float32"), 3)
    f(w, x, 3.0)
    f(w, x)
    f(w, x, 2, scale=2.0)
    f(w, x, A(2.0))
    e = f.explain()
    assert [t.reason for t in e.traces] == [
        "the first call",
        "n: 2 became 3, a Python number",
        "x: float64[3] became float64[4], another shape",
        "params/w: float64[] became float32[], another dtype; x: float64[4] became float32[4], another dtype",
        "n: 3 became 3.0, a Python number",
        "n: 3.0 was left out",
        "scale: 2.0 was added",
        "n: 3.0 became float64[]",
    ]
    text = "\n".join(e.suggestions)
    assert "n was 3 different Python numbers, and each is a trace of its own: pass quabla.array(n)" in text
    assert "x had the shapes (3,), (4,): pad it" in text
    assert "x came as float64 and as float32" in text
    assert "several structures" in text
    assert "raises RetraceLimitError" in text
    assert e.traces[1].signature == "({'w': float64[]}, float64[3], 3)"
    assert "jit(model) on 'cpu': traced for 8 of at most 8 signatures" in str(e)
    assert all(t.signature in str(e) and t.reason in str(e) for t in e.traces)


@dataclasses.dataclass
class Point:
    x: Any
    y: Any


class Pair(NamedTuple):
    x: Any
    y: Any


F = {n: qb.ones((n,)) for n in (1, 2, 3)}


@pytest.mark.parametrize(
    "before, after, reason",
    [
        ([F[1], F[2]], (F[1], F[2]), "x: a list became a tuple"),
        ([F[1], F[2]], [F[1], F[2], F[3]], "x/2: float64[3] was added"),
        ({"a": [F[1]], "b": F[2]}, {"a": [F[1]]}, "x/b: float64[2] was left out"),
        ({"a": F[1]}, {"b": F[1]}, "x/b: float64[1] was added; x/a: float64[1] was left out"),
        ({"a": {"b": F[1]}}, {"a": {"b": F[2]}}, "x/a/b: float64[1] became float64[2], another shape"),
        ({"a": None}, {"a": F[1]}, "x/a: None became float64[1]"),
        (F[1], [F[1], F[2]], "x: float64[1] became [float64[1], float64[2]]"),
        (Point(F[1], F[2]), Pair(F[1], F[2]), "x: a Point became a Pair"),
        (Point(F[1], F[2]), Point(F[1], F[3]), "x/y: float64[2] became float64[3], another shape"),
        (
            Point(F[1], F[2]),
            (F[1], F[2]),
            "x: Point(x=float64[1], y=float64[2]) became (float64[1], float64[2])",
        ),
        (Point(F[1], None), Point(F[1], [2]), "x/y: None became [2]"),
        (
            {"b": F[1], "a": F[1]},
            {"a": F[1], "b": F[1]},
            "the keys of a dict came in another order, and results keep it",
        ),
        (defaultdict(int, a=F[1]), {"a": F[1]}, "x: a defaultdict became a dict"),
        (defaultdict(int, a=F[1]), defaultdict(list, a=F[1]), "x: a defaultdict of another kind than before"),
        (
            list(F.values()) * 3,
            [A(1.0)] * 9,
            "; ".join(f"x/{i}: float64[{i % 3 + 1}] became float64[], another shape" for i in range(6))
            + "; and 3 more changes",
        ),
    ],
    ids=range(15),
)
def test_reasons_name_what_became_of_a_container(before: Any, after: Any, reason: str) -> None:
    f = qb.jit(lambda x: 0.0)
    f(before)
    f(after)
    assert [t.reason for t in f.explain().traces] == ["the first call", reason]


def test_reasons_of_keywords() -> None:
    f = qb.jit(lambda x, *, scale=1.0, shift=0.0: x * scale + shift)
    g = qb.jit(lambda *xs, n=2: xs[0] * n)
    h = qb.jit(lambda x, n=2: x * n)
    f(F[1])
    f(F[1], scale=2.0, shift=A(1.0))
    f(F[1], scale=3.0)
    g(F[1])
    g(F[1], F[2])
    h(F[1], 2)
    h(F[1], n=2)
    h(F[1], n=3)
    assert [[t.reason for t in of.explain().traces[1:]] for of in (f, g, h)] == [
        ["scale: 2.0 was added; shift: float64[] was added", "scale: 3.0 was added"],
        ["xs/1: float64[2] was added"],
        ["n: passed by keyword, before by position", "n: 2 became 3, a Python number"],
    ]


def distance(one: Any, other: Any) -> int:
    """The number of places that differ: as in the two, in one of them, or only in one."""
    a, b = (
        {path: getattr(leaf, "aval", leaf) for path, leaf in qb.tree.flatten_with_paths(t)}
        for t in (one, other)
    )
    return sum(a.get(path) != b.get(path) for path in a.keys() | b.keys())


def test_the_nearest_of_all_earlier_signatures_is_the_one_compared_with() -> None:
    rng = np.random.default_rng(0)
    choices = [None, F[1], F[2], F[3], 1.0, 2.0]
    for _ in range(20):
        calls = [
            {k: v for k in "abcd" if (v := choices[rng.integers(len(choices))]) is not None} for _ in range(8)
        ]
        f = qb.jit(lambda x: 0.0)
        seen: list[Any] = []
        for c in calls:
            count = len(f.cache.entries)
            f(c)
            if len(f.cache.entries) == count:
                continue
            seen.append(c)
            if len(seen) > 1:
                reason = f.explain().traces[-1].reason
                assert reason.count("x/") == min(distance(c, old) for old in seen[:-1]), (reason, seen)


def test_of_two_at_the_same_distance_the_latest_of_the_same_structure() -> None:
    f = qb.jit(lambda x: 0.0)
    for x in ([F[1], 1.0], [F[1], 2.0], [F[1], 3.0, 4.0], [F[1], 3.0]):
        f(x)
    assert f.explain().traces[3].reason == "x/1: 2.0 became 3.0, a Python number"


def test_weak_arrays_and_static_arguments() -> None:
    f = qb.jit(lambda x, mode: x * 2.0, static_argnames="mode")
    f(A(1.0), "a")
    f(A(1.0), "b")
    assert f.explain().traces[1].reason == "mode: 'a' became 'b', a static argument"
    assert f.explain().suggestions == ()


def test_nothing_to_suggest() -> None:
    f = qb.jit(lambda x: x * 2.0)
    for _ in range(3):
        f(A([1.0, 2.0]))
    e = f.explain()
    assert len(e.traces) == 1 and e.suggestions == () and "suggestions" not in str(e)


def test_explaining_changes_nothing() -> None:
    traces = []

    def fun(x: Any) -> Any:
        traces.append(1)
        return x

    f = qb.jit(fun)
    f(A(1.0))
    guard = f.cache.guard
    str(f.explain())
    assert len(traces) == 1 and f.cache.guard is guard and repr(f.explain()) == str(f.explain())


def costs(fun: Any, *args: Any) -> tuple[int, Costs]:
    f = qb.jit(fun)
    f(*args)
    (trace,) = f.explain().traces
    assert trace.costs is not None
    return trace.nodes, trace.costs


@pytest.mark.cpu
def test_costs_of_one_kernel() -> None:
    n = 1000
    nodes, c = costs(lambda x: qb.sin(x) * 2.0 + x * 1.0 * 1.0, qb.ones((n,)))
    assert (c.kernels, c.products, c.routines) == (1, 0, 0)
    assert c.nodes < nodes
    assert c.moved == 2 * 8 * n  # read once, written once
    assert 8 * n <= c.held < 9 * n


@pytest.mark.cpu
def test_costs_of_a_product_a_reduction_and_constants() -> None:
    a = np.ones((40, 50))
    _, c = costs(lambda x: x @ A(a), qb.ones((30, 40)))
    assert (c.kernels, c.products) == (0, 1)
    assert c.moved == 8 * (30 * 40 + 40 * 50 + 30 * 50)
    assert c.held >= 8 * (40 * 50 + 30 * 50)
    _, c = costs(lambda x: qb.sum(x * x, axis=1), qb.ones((20, 30), "float32"))
    assert c.kernels == 1 and c.moved == 4 * (20 * 30 + 20)
    _, c = costs(lambda x: qb.ones((100, 1)) * x, qb.ones((1, 7)))
    assert c.moved == 8 * (700 + 7)  # a broadcast operand is read once


@pytest.mark.cpu
def test_costs_of_loops_and_branches_and_routines() -> None:
    x = qb.ones((100,))
    _, once = costs(lambda x: qb.fori_loop(0, 1, lambda i, c: qb.sin(c) * c, x), x)
    _, many = costs(lambda x: qb.fori_loop(0, 50, lambda i, c: qb.sin(c) * c, x), x)
    assert many.routines == 1 and many.kernels == once.kernels >= 1
    assert many.moved > 40 * once.moved > 0
    _, c = costs(lambda x: qb.cond(x[0] > 0.0, lambda x: x, lambda x: qb.sort(qb.sin(x)), x), x)
    assert c.routines >= 2
    _, c = costs(lambda a, b: qb.solve(a, b), qb.eye(8), qb.ones((8,)))
    assert c.routines >= 1 and c.moved >= 8 * 64


@pytest.mark.cpu
def test_costs_are_those_of_the_chunks() -> None:
    one = lambda x: qb.sum(qb.sin(qb.outer(x, x) @ qb.exp(qb.outer(x, x))))
    _, whole = costs(qb.vmap(one), qb.ones((64, 32)))
    _, parts = costs(qb.vmap(one, chunk_size=4), qb.ones((64, 32)))
    assert parts.held < whole.held / 4


def test_a_backend_that_does_not_say() -> None:
    f = qb.jit(lambda x: qb.sin(x) * 2.0, device="reference")
    f(A([1.0, 2.0]))
    e = f.explain()
    assert e.traces[0].costs is None and e.traces[0].nodes == 3
    assert str(e).splitlines() == [
        "jit(<lambda>) on 'reference': traced for 1 of at most 8 signatures",
        "  1. (float64[2])",
        "     the first call",
        "     3 nodes",
    ]


def test_a_changing_number_runs_into_the_limit_with_the_advice() -> None:
    f = qb.jit(lambda x, s: x * s)
    with pytest.raises(qb.RetraceLimitError, match=r"quabla\.array\(s\)"):
        for i in range(20):
            f(A([1.0]), float(i))
    assert len(f.explain().traces) == 8
    g = qb.jit(lambda x, s: x * s)
    for i in range(20):
        g(A([1.0]), A(float(i)))
    assert len(g.explain().traces) == 1
