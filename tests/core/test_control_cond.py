"""`cond`: every transform to third order, the branch not taken, predicates per example, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quabla as qb

A = qb.array
POINTS = [
    ([0.3, 0.7, -0.4], 0.8, [1.0, -0.5, 0.3]),
    ([1.3, -0.7, 0.4], 1.1, [0.2, 0.5, 0.3]),
    ([-0.9, 0.2, 0.1], -0.6, [1.0, 2.0, -0.3]),
]


def pair(m: Any, x: Any, w: Any) -> Any:
    a, b = m.cond(w > 0.0, lambda: (m.sqrt(w) * x, w), lambda: (x * x, w * w * w))
    return m.sum(a * b)


def nested(m: Any, x: Any, w: Any) -> Any:
    inner = lambda: m.cond(x[1] > 0.0, lambda: m.sqrt(x[0] * x[1]) * w, lambda: m.sqrt(-x[1] * x[0]) + w)
    return m.cond(x[0] > 0.0, inner, lambda: m.log(-x[0] * w * w))


def loop_inside(m: Any, x: Any, w: Any) -> Any:
    looped = lambda: m.sum(m.fori_loop(0, 3, lambda i, c: m.sin(c * w) + m.sqrt(x[0]), x))
    return m.cond(x[0] > 0.0, looped, lambda: m.sum(x * w))


def inside_a_loop(m: Any, x: Any, w: Any) -> Any:
    def step(i: Any, c: Any) -> Any:
        return m.cond(c[0] > 0.0, lambda: m.sqrt(c[0]) * c * w, lambda: m.sin(c) * m.log(0.1 - c[0])) - 0.2

    return m.sum(m.fori_loop(0, 3, step, x))


CASES: dict[str, Any] = {
    "operands": lambda m, x, w: m.cond(
        m.sum(x) > 0.5, lambda a: m.sum(m.sin(a) * w), lambda a: m.sum(a * a * a) * w * w, x
    ),
    "nan": lambda m, x, w: m.cond(
        x[0] > 0.0, lambda: m.sum(m.sqrt(x[0]) * x * w), lambda: m.sum(m.log(-x[0]) * x + w)
    ),
    "constant": lambda m, x, w: m.cond(x[0] > 0.0, lambda: 1.0, lambda: m.sum(x * w)) * w,
    "pair": pair,
    "nested": nested,
    "loop_inside": loop_inside,
    "inside_a_loop": inside_a_loop,
}


@pytest.mark.parametrize("name", CASES)
def test_every_order(control: Any, name: str) -> None:
    control.climb(CASES[name], POINTS, control.quick)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_transform(control: Any, name: str) -> None:
    control.climb(CASES[name], POINTS, control.slow)


def test_against_jax() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)

    def f(m: Any, cond: Any) -> Any:
        return lambda x, w: cond(x > 0.5, lambda y: m.sin(y) * w, lambda y: m.exp(y * w) - w, x)

    ours, theirs = f(qb, qb.cond), f(jax.numpy, jax.lax.cond)
    xs, w = np.array([0.2, 0.9, -1.4]), 0.7
    for order in range(4):
        np.testing.assert_allclose(
            qb.vmap(ours, (0, None))(A(xs), A(w)).numpy(), jax.vmap(theirs, (0, None))(xs, w), rtol=1e-12
        )
        np.testing.assert_allclose(
            qb.jit(ours)(A(xs[order % 3]), A(w)).numpy(), theirs(xs[order % 3], w), rtol=1e-12
        )
        ours, theirs = qb.grad(ours, order % 2), jax.grad(theirs, order % 2)


# Each branch is fatal outside of its own domain: a NaN, an infinite slope, a division by zero, an endless loop.
FATAL: dict[str, tuple[Any, Any]] = {
    "sqrt": (qb.sqrt, lambda x: qb.sqrt(-x)),
    "log": (qb.log, lambda x: qb.log(-x)),
    "divide": (lambda x: 1.0 / (x - qb.abs(x) + 2.0 * qb.relu(x)), lambda x: qb.power(-x, 0.3)),
    "endless": (
        lambda x: qb.while_loop(lambda c: c < 10.0, lambda c: c * 2.0, x, max_steps=50),
        lambda x: qb.while_loop(lambda c: c > -10.0, lambda c: c * 2.0, x, max_steps=50),
    ),
}


@pytest.mark.parametrize("name", FATAL)
def test_nothing_leaks_from_the_branch_not_taken(name: str) -> None:
    true, false = FATAL[name]
    xs = [2.0, -3.0, 0.5, -0.25]

    def f(x: Any) -> Any:
        return qb.cond(x > 0.0, true, false, x)

    def closed(x: Any) -> Any:
        return qb.cond(x > 0.0, lambda: true(x), lambda: false(x))

    levels = [
        lambda f: f,
        qb.grad,
        lambda f: qb.grad(qb.grad(f)),
        qb.hessian,
        lambda f: qb.grad(qb.grad(qb.grad(f))),
    ]
    for level in levels:
        expected = [level(true if x > 0 else false)(A(x)).item() for x in xs]
        assert np.all(np.isfinite(expected))
        for g in (f, closed):
            assert [qb.jit(level(g))(A(x)).item() for x in xs] == pytest.approx(expected, rel=1e-13)
            np.testing.assert_allclose(qb.vmap(level(g))(A(xs)).numpy(), expected, rtol=1e-13)
    # The other way round: derivatives of the sum of the mapped function.
    total = lambda scale: qb.sum(qb.vmap(lambda x: f(x * scale))(A(xs)))
    slope = sum(x * qb.grad(true if x > 0 else false)(x).item() for x in xs)
    assert qb.grad(total)(1.0).item() == pytest.approx(slope, rel=1e-12)
    assert np.isfinite(qb.hessian(total)(1.0).item())


@pytest.mark.parametrize("kind", ["int64", "bool"])
def test_no_endless_loop_over_values_without_derivatives(kind: str) -> None:
    if kind == "int64":
        n = A(np.array([1, 5, 0, 3]), qb.int64)
        double = lambda n: qb.while_loop(lambda c: c < 100, lambda c: c + c, n)
        f = lambda n: qb.cond(n > 0, double, lambda n: n, n)
        assert qb.vmap(f)(n).tolist() == [128, 160, 0, 192]
    else:
        b = A(np.array([True, False, True]))
        count = lambda b: qb.while_loop(
            lambda c: qb.logical_or(qb.logical_not(b), c < 3.0), lambda c: c + 1.0, 0.0
        )
        assert qb.vmap(lambda b: qb.cond(b, count, lambda b: 7.0, b))(b).tolist() == [3.0, 7.0, 3.0]


def test_a_concrete_endless_loop_in_a_branch() -> None:
    endless = lambda: qb.while_loop(lambda c: c < 1.0, lambda c: c * 1.0, A(0.0))
    assert qb.jit(lambda x: qb.cond(x > 0.0, lambda: x, endless))(A(2.0)).item() == 2.0


def test_only_the_branch_taken_is_traced_for_a_concrete_predicate() -> None:
    def never() -> Any:
        raise AssertionError

    for pred in (True, A(True), np.bool_(True)):
        assert qb.cond(pred, lambda: 1, never).item() == 1.0
        assert qb.jit(lambda x, pred=pred: qb.cond(pred, lambda: x, never))(A(2.0)).item() == 2.0
    assert qb.cond(A(2.0) > 3.0, never, lambda a: a, "any") == "any"


def test_predicates_mapped_and_not() -> None:
    f = lambda p, x: qb.cond(p, lambda y: y * 2.0, lambda y: y - 1.0, x)
    p, x = A(np.array([True, False])), A([1.0, 2.0])
    assert qb.vmap(f)(p, x).tolist() == [2.0, 1.0]
    assert qb.vmap(f, (0, None))(p, A(5.0)).tolist() == [10.0, 4.0]
    assert qb.vmap(f, (None, 0))(A(False), x).tolist() == [0.0, 1.0]
    assert qb.vmap(lambda p: qb.cond(p, lambda: A([1.0, 2.0]), lambda: A([0.0, 0.0])))(p).tolist() == [
        [1.0, 2.0],
        [0.0, 0.0],
    ]
    assert qb.vmap(qb.vmap(f, (None, 0)), (0, None))(p, x).tolist() == [[2.0, 4.0], [0.0, 1.0]]
    none = A(np.array([False, False]))
    assert qb.vmap(f)(none, x).tolist() == [0.0, 1.0]
    # NaN compares as false.
    assert qb.vmap(lambda x: qb.cond(x > 0.0, lambda: 1.0, lambda: 2.0))(A([np.nan, 1.0])).tolist() == [
        2.0,
        1.0,
    ]


def test_types_of_results() -> None:
    x = qb.astype(A([1.0, 2.0]), qb.float32)
    for f in (
        lambda x: qb.cond(x[0] > 0.0, lambda: 1.0, lambda: x[0]),
        lambda x: qb.cond(x[0] > 0.0, lambda: x[0], lambda: 1),
    ):
        assert qb.jit(f)(x).dtype is qb.float32  # a number adopts the dtype of the other branch
    assert qb.jit(lambda x: qb.cond(x[0] > 0.0, lambda: 1.0, lambda: 2) * x)(x).dtype is qb.float32
    tree = qb.jit(lambda x: qb.cond(x[0] > 0.0, lambda: {"a": (x, None)}, lambda: {"a": (-x, None)}))(x)
    assert tree["a"][0].tolist() == [1.0, 2.0] and tree["a"][1] is None
    static = qb.jit(lambda x: qb.cond(x[0] > 0.0, lambda a, n: a * n, lambda a, n: a - n, x, 3))(x)
    assert static.tolist() == [3.0, 6.0]


ERRORS: dict[str, tuple[Any, type[Exception], tuple[str, ...]]] = {
    "structure": (
        lambda x: qb.cond(x > 0.0, lambda: (x, x), lambda: x),
        qb.ShapeError,
        ("structure", "(array, array)"),
    ),
    "shape": (
        lambda x: qb.cond(x > 0.0, lambda: {"a": A([1.0, 2.0])}, lambda: {"a": x}),
        qb.ShapeError,
        ("at a", "float64[2]", "float64[]"),
    ),
    "dtype": (
        lambda x: qb.cond(x > 0.0, lambda: [x], lambda: [qb.astype(x, qb.float32)]),
        qb.DtypeError,
        ("at 0", "float32[]", "astype"),
    ),
    "bool_and_number": (
        lambda x: qb.cond(x > 0.0, lambda: x > 1.0, lambda: 2.0),
        qb.DtypeError,
        ("bool[]", "float64[]"),
    ),
    "float_predicate": (
        lambda x: qb.cond(x, lambda: 1, lambda: 2),
        qb.DtypeError,
        ("float64[]", "quabla.not_equal(pred, 0.0)"),
    ),
    "number_predicate": (lambda x: qb.cond(1, lambda: 1, lambda: 2), qb.DtypeError, ("number 1", "!= 0.0")),
    "nan_predicate": (lambda x: qb.cond(float("nan"), lambda: 1, lambda: 2), qb.DtypeError, ("nan",)),
    "vector_predicate": (
        lambda x: qb.cond(A([1.0, 2.0]) * x > 0.0, lambda: 1, lambda: 2),
        qb.ShapeError,
        ("bool[2]", "quabla.any", "quabla.where", "quabla.vmap"),
    ),
    "string_predicate": (lambda x: qb.cond("a", lambda: 1, lambda: 2), qb.DtypeError, ("cond", "str")),
    "no_function": (lambda x: qb.cond(True, 1, 2), qb.DtypeError, ("true_fun", "function", "int")),
    "returns_string": (
        lambda x: qb.cond(x > 0.0, lambda: "a", lambda: "b"),
        qb.DtypeError,
        ("str", "returns arrays"),
    ),
    "string_operand": (
        lambda x: qb.cond(x > 0.0, lambda a: x, lambda a: x, "a"),
        qb.DtypeError,
        ("str", "close over"),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_mistakes(name: str) -> None:
    f, kind, words = ERRORS[name]
    with pytest.raises(kind) as caught:
        qb.jit(f)(A(1.0))
    for word in words:
        assert word in str(caught.value), str(caught.value)
