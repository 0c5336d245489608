"""Control flow, closures, caches and the size of programs, in situations that users of such libraries have met.

Where another file tests a situation it is not repeated here:

| situation | test |
|---|---|
| a number or a shape that changes with every call | `test_cache`, `test_messages` |
| static values that compare equal; objects with equal fields | `test_cache` |
| functions that are rebound to other captures | `test_closures` |
| `if`, `range`, `float`, NumPy on traced values; shape errors | `test_messages`, `test_tracing_errors` |
| auxiliary results; order and classes of dicts | `test_grad`, `test_cases_interop` |
| chunks of maps and Jacobians | `test_chunks` |
"""

from __future__ import annotations

import gc
import math
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

F = Callable[..., Any]
A = qb.array
NAN = math.nan


def nodes(f: F, *args: Any) -> int:
    """The number of nodes of a traced function."""
    return len(qb.jit(f).lower(*args).program.nodes)


# --- loops ------------------------------------------------------------------------------------------------------------


def doubled(x: Any, **bound: Any) -> Any:
    return qb.while_loop(lambda c: c < 100.0, lambda c: c * 2.0, x, **bound)


@pytest.mark.parametrize("start", [3.0, 1.0, 99.0, 100.0, 101.0, 0.1])
def test_reverse_through_a_loop_whose_length_depends_on_the_data(start: float) -> None:
    steps = 0
    while start * 2.0**steps < 100.0:
        steps += 1
    for bound in (steps + 1, 20, 64):
        f = lambda x, bound=bound: doubled(x, max_steps=bound)
        for g in (qb.grad(f), qb.jit(qb.grad(f)), qb.grad(qb.jit(f)), qb.jacobian(f)):
            assert g(A(start)).item() == 2.0**steps
        assert qb.grad(qb.grad(lambda x, f=f: f(x) * x))(A(start)).item() == 2.0 * 2.0**steps
    value, slope = qb.jvp(doubled, (A(start),), (A(1.0),))
    assert (value.item(), slope.item()) == (start * 2.0**steps, 2.0**steps)


def test_a_bound_that_is_too_short_stops_the_loop_there() -> None:
    assert doubled(A(3.0), max_steps=2).item() == 12.0
    assert qb.grad(lambda x: doubled(x, max_steps=2))(A(3.0)).item() == 4.0


def test_lengths_that_differ_from_example_to_example() -> None:
    x = A([3.0, 60.0, 200.0, NAN])
    values = qb.vmap(lambda x: doubled(x, max_steps=20))(x)
    slopes = qb.vmap(qb.grad(lambda x: doubled(x, max_steps=20)))(x)
    assert values.tolist()[:3] == [192.0, 120.0, 200.0] and math.isnan(values.tolist()[3])
    assert slopes.tolist()[:3] == [64.0, 2.0, 1.0]


@pytest.mark.parametrize("transform", ["grad", "jit(grad)", "vjp"])
def test_reverse_without_a_bound_names_both_ways_out(transform: str) -> None:
    run: dict[str, F] = {
        "grad": qb.grad(doubled),
        "jit(grad)": qb.jit(qb.grad(doubled)),
        "vjp": lambda x: qb.vjp(doubled, x)[1](1.0),
    }
    with pytest.raises(qb.UnsupportedOperationError, match=r"max_steps=n.*fori_loop or scan.*jvp"):
        run[transform](A(3.0))


TREES: list[tuple[str, Any, F, Any]] = [
    ("dict", {"a": 0.0, "b": 1.0}, lambda c: {"a": c["b"], "b": c["a"] + c["b"]}, {"a": 55.0, "b": 89.0}),
    ("tuple", (0.0, 1.0), lambda c: (c[1], c[0] + c[1]), (55.0, 89.0)),
    (
        "list in a dict",
        {"x": [0.0, 1.0]},
        lambda c: {"x": [c["x"][1], c["x"][0] + c["x"][1]]},
        {"x": [55.0, 89.0]},
    ),
]


@pytest.mark.parametrize(("init", "step", "expected"), [t[1:] for t in TREES], ids=[t[0] for t in TREES])
@pytest.mark.parametrize("loop", ["fori", "scan", "while"])
def test_fibonacci_over_trees(init: Any, step: F, expected: Any, loop: str) -> None:
    def run(one: Any) -> Any:
        start = qb.tree.map(lambda v: v * one, init)
        if loop == "fori":
            return qb.fori_loop(0, 10, lambda i, c: step(c), start)
        if loop == "scan":
            return qb.scan(lambda c, i: (step(c), i), start, length=10)[0]
        return qb.while_loop(
            lambda s: s[0] < 10.0, lambda s: (s[0] + 1.0, step(s[1])), (0.0, start), max_steps=30
        )[1]

    def items(tree: Any) -> Any:
        return qb.tree.map(lambda v: v.item(), tree)

    for through in (lambda f: f, qb.jit):
        assert items(through(run)(A(1.0))) == expected
        slopes = through(qb.jacobian(run))(A(1.0))  # linear in the factor
        assert items(slopes) == expected
        assert items(qb.jvp(through(run), (A(1.0),), (A(2.0),))[1]) == qb.tree.map(
            lambda v: 2.0 * v, expected
        )
    mapped = qb.vmap(run)(A([1.0, 3.0]))
    assert qb.tree.map(lambda v: v.tolist(), mapped) == qb.tree.map(lambda v: [v, 3.0 * v], expected)


def test_slices_of_trees_in_a_scan() -> None:
    xs = {"x": A(np.arange(6.0).reshape(3, 2)), "t": A([0.1, 0.2, 0.3])}
    f = lambda xs: qb.scan(lambda c, r: (c + r["x"] * r["t"], {"c": c, "t": r["t"]}), qb.zeros(2), xs)
    for through in (lambda f: f, qb.jit):
        carry, ys = through(f)(xs)
        np.testing.assert_allclose(
            np.asarray(carry), [0.2 * 2 + 0.3 * 4, 0.1 + 0.2 * 3 + 0.3 * 5], rtol=1e-15
        )
        assert ys["c"].shape == (3, 2) and ys["t"].tolist() == [0.1, 0.2, 0.3]
    slopes = qb.grad(lambda xs: qb.sum(f(xs)[0]))(xs)
    np.testing.assert_allclose(np.asarray(slopes["t"]), [1.0, 5.0, 9.0])
    np.testing.assert_allclose(np.asarray(slopes["x"]), np.repeat([[0.1], [0.2], [0.3]], 2, axis=1))


# --- values that bodies close over ------------------------------------------------------------------------------------

BODIES: list[tuple[str, F]] = [
    ("fori_loop", lambda w: qb.fori_loop(0, 3, lambda i, c: c * w, 1.0)),
    ("scan", lambda w: qb.scan(lambda c, i: (c * w, c), 1.0, length=3)[0]),
    ("scan over xs", lambda w: qb.scan(lambda c, x: (c * w * x, c), 1.0, qb.ones(3))[0]),
    (
        "while_loop",
        lambda w: qb.while_loop(
            lambda s: s[0] < 3.0, lambda s: (s[0] + 1.0, s[1] * w), (0.0, 1.0), max_steps=9
        )[1],
    ),
    ("condition", lambda w: qb.while_loop(lambda c: c < w + 5.5, lambda c: c * w, w, max_steps=9)),
    ("cond", lambda w: qb.cond(w > 0.0, lambda x: x * w * w, lambda x: x, w)),
    (
        "loop in a branch",
        lambda w: qb.cond(w > 0.0, lambda: qb.fori_loop(0, 3, lambda i, c: c * w, 1.0), lambda: 0.0 * w),
    ),
    (
        "branch in a loop",
        lambda w: qb.fori_loop(0, 3, lambda i, c: qb.cond(c > 0.0, lambda c: c * w, lambda c: c, c), 1.0),
    ),
    (
        "loop in a loop",
        lambda w: qb.fori_loop(0, 1, lambda i, c: qb.fori_loop(0, 3, lambda j, d: d * w, c), 1.0),
    ),
    ("gradient in a loop", lambda w: qb.fori_loop(0, 3, lambda i, c: qb.grad(lambda v: c * w * v)(1.0), 1.0)),
]


@pytest.mark.parametrize("f", [b[1] for b in BODIES], ids=[b[0] for b in BODIES])
def test_bodies_close_over_what_is_differentiated(f: F) -> None:
    """Each is w**3 for a w near 2."""
    w = A(2.0)
    for g in (qb.grad(f), qb.jit(qb.grad(f)), qb.grad(qb.jit(f)), lambda w: qb.jvp(f, (w,), (1.0,))[1]):
        assert g(w).item() == pytest.approx(12.0, rel=1e-15)
    assert qb.grad(qb.grad(f))(w).item() == pytest.approx(12.0, rel=1e-15)
    assert qb.hessian(f)(w).item() == pytest.approx(12.0, rel=1e-15)
    np.testing.assert_allclose(np.asarray(qb.vmap(qb.grad(f))(A([2.0, 2.5]))), [12.0, 18.75], rtol=1e-14)
    np.testing.assert_allclose(np.asarray(qb.jit(qb.vmap(f))(A([2.0, 2.5]))), [8.0, 15.625], rtol=1e-14)


@pytest.mark.parametrize("traced", [False, True], ids=["concrete", "jit"])
def test_a_predicate_that_is_nan_is_false(traced: bool) -> None:
    through = qb.jit if traced else lambda f: f
    assert through(lambda p: qb.cond(p > 0.0, lambda p: p, lambda p: qb.ones(()), p))(A(NAN)).item() == 1.0
    assert through(lambda p: qb.while_loop(lambda c: c < p, lambda c: c + 1.0, A(1.0)))(A(NAN)).item() == 1.0
    lanes = through(qb.vmap(lambda p: qb.cond(p > 0.0, lambda: p, lambda: 2.0)))(A([NAN, 1.0, -1.0]))
    assert lanes.tolist() == [2.0, 1.0, 2.0]


# --- programs grow with what is written -------------------------------------------------------------------------------


def chain(n: int) -> F:
    def f(x: Any) -> Any:
        for _ in range(n):
            x = qb.sin(x) + 0.1
        return x

    return f


GROWING: list[tuple[str, F]] = [
    ("value", lambda f: f),
    ("grad", qb.grad),
    ("second derivative", lambda f: qb.grad(qb.grad(f))),
    ("forward over reverse", lambda f: lambda x: qb.jvp(qb.grad(f), (x,), (1.0,))[1]),
    ("grad of vmap", lambda f: qb.grad(lambda x: qb.sum(qb.vmap(lambda s: f(s * x))(qb.ones(3))))),
    ("value and grad", qb.value_and_grad),
]


@pytest.mark.parametrize("transform", [g[1] for g in GROWING], ids=[g[0] for g in GROWING])
def test_nodes_grow_in_proportion_to_the_program(transform: F) -> None:
    counts = [nodes(transform(chain(n)), A(0.5)) for n in (50, 100, 200)]
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0]) > 0
    assert counts[2] < 2.1 * counts[1]


def test_the_nodes_of_a_loop_do_not_depend_on_its_length() -> None:
    for loop in (lambda n: lambda x: qb.fori_loop(0, n, lambda i, c: qb.sin(c) + 0.1, x),
                 lambda n: lambda x: qb.scan(lambda c, i: (qb.sin(c), c), x, length=n)[0]):  # fmt: skip
        assert nodes(qb.grad(loop(10)), A(0.5)) == nodes(qb.grad(loop(10_000)), A(0.5))


def test_first_calls_take_time_in_proportion_to_the_program() -> None:
    """Eight times the program may take thirty times as long, which a quadratic pass would not keep."""

    def first_call(n: int) -> float:
        start = time.process_time()
        slope = qb.jit(qb.grad(chain(n)))(A(0.5)).item()
        assert math.isfinite(slope)
        return time.process_time() - start

    first_call(10)
    assert first_call(1600) < 30.0 * max(min(first_call(200), first_call(201)), 0.01)


def test_nested_transforms_do_not_multiply_what_they_share() -> None:
    """Each derivative of a product of many is one more pass, not one for every factor of the former."""
    f = lambda *args: qb.prod(qb.stack(args))
    counts = [nodes(qb.grad(f, argnums=i), *[A(1.0)] * 10) for i in range(10)]
    assert max(counts) < 2 * min(counts)
    g: F = qb.sin
    sizes = []
    for _ in range(5):
        g = qb.grad(g)
        sizes.append(nodes(g, A(0.5)))
    assert sizes[-1] < 12


# --- large constants --------------------------------------------------------------------------------------------------

SIDE = 1200
BYTES = SIDE * SIDE * 8


def test_a_large_array_that_a_function_closes_over_is_held_once() -> None:
    big = A(np.random.default_rng(0).normal(size=(SIDE, SIDE)))
    x = qb.ones((SIDE, SIDE))
    for f in (
        lambda x: qb.sum(big * x),
        qb.grad(lambda x: qb.sum(big * x)),
        qb.value_and_grad(lambda x: qb.sum(big * x * big)),
    ):
        program = qb.jit(f).lower(x).program
        held = [n.params["value"] for n in program.nodes if n.op.name == "constant"]
        assert len(held) == 1 and held[0] is big
        gc.collect()
        tracemalloc.start()
        compiled = qb.jit(f)
        compiled(x)
        result = compiled(x)
        del result
        gc.collect()
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < 0.1 * BYTES, "the program holds a copy of the constant"
        assert peak < 6 * BYTES


def test_a_first_call_passes_over_a_large_constant_a_few_times_only() -> None:
    big = A(np.random.default_rng(0).normal(size=(SIDE, SIDE)))
    x = qb.ones((SIDE, SIDE))
    qb.jit(lambda x: qb.sum(x * 2.0))(x)
    small = A(np.ones((3, 3)))

    def first_call(constant: Any, x: Any) -> float:
        start = time.process_time()
        qb.jit(lambda x: qb.sum(constant * x))(x)
        return time.process_time() - start

    little = first_call(small, qb.ones((3, 3)))
    one_pass = min(_timed(lambda: np.asarray(big).copy()) for _ in range(3))
    assert first_call(big, x) < little + 50.0 * one_pass + 0.5


def _timed(f: F) -> float:
    start = time.process_time()
    f()
    return time.process_time() - start


def test_a_constant_is_found_though_the_function_is_mapped_and_nested() -> None:
    b = A([1.0, 2.0, 3.0])
    f = lambda x: qb.sum(b * x**3)
    x = A([1.0, -1.0, 2.0])
    np.testing.assert_allclose(np.asarray(qb.jit(qb.grad(f))(x)), [3.0, 6.0, 36.0])
    np.testing.assert_allclose(
        np.asarray(qb.vmap(qb.hessian(f))(qb.stack([x, x]))[1]), np.diag([6.0, -12.0, 36.0])
    )


# --- memory of reverse mode through loops -----------------------------------------------------------------------------


def test_checkpoints_within_a_loop_change_no_gradient() -> None:
    x = A(np.random.default_rng(1).normal(size=(50,)))
    step = lambda c: qb.sin(c) * 1.1 + 0.05 * c * c

    def plain(x: Any) -> Any:
        return qb.sum(qb.scan(lambda c, i: (step(c), None), x, length=100)[0])

    def by_tens(x: Any) -> Any:
        inner = qb.checkpoint(lambda c: qb.scan(lambda c, i: (step(c), None), c, length=10)[0])
        return qb.sum(qb.scan(lambda c, i: (inner(c), None), x, length=10)[0])

    np.testing.assert_allclose(np.asarray(qb.grad(by_tens)(x)), np.asarray(qb.grad(plain)(x)), rtol=1e-14)


# --- what a cache takes for the same ----------------------------------------------------------------------------------


class Setting:
    """Equal to every other setting, as some configuration objects are."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self.factor == other.factor

    def __hash__(self) -> int:
        return 1


def test_static_values_of_every_kind_are_told_apart_by_type_and_value() -> None:
    traces: list[Any] = []

    def f(x: Any, s: Any) -> Any:
        traces.append(s)
        return x * (
            1.0 if s is None or isinstance(s, str) else float(s) if not isinstance(s, Setting) else s.factor
        )

    g = qb.jit(f, static_argnums=1, max_traces=20)
    values = [1, True, 1.0, 0.0, -0.0, NAN, float("nan"), None, "1", Setting(2.0), Setting(2.0), Setting(3.0)]
    for s in values * 2:
        out = g(A(1.0), s).item()
        expected = f(1.0, s)
        traces.pop()
        assert out == expected or (math.isnan(out) and math.isnan(expected))
        assert math.copysign(1.0, out) == math.copysign(1.0, expected)
    # NaN and the equal setting are found again; everything else is a trace of its own.
    assert len(traces) == 10


def test_a_float_that_changes_is_traced_once_as_an_array() -> None:
    traces = []
    f = qb.jit(lambda x, s: traces.append(1) or x * s)
    for i in range(20):
        assert f(A(2.0), A(float(i))).item() == 2.0 * i
    assert len(traces) == 1
