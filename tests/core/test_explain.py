"""`jit(f).explain()`: signatures, reasons, costs and suggestions."""

from __future__ import annotations

from typing import Any

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
        "another structure of arguments: ({'w': float64[]}, float64[3], 3.0) became ({'w': float64[]}, float64[3])",
        "another structure of arguments: ({'w': float64[]}, float64[3]) became "
        "({'w': float64[]}, float64[3], 2, scale=2.0)",
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
