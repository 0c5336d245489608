"""`while_loop`: with and without a bound, every transform to third order, lanes that stop apart, and mistakes."""

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


def grow(m: Any, x: Any, w: Any, bound: int | None = 40) -> Any:
    step = lambda c: c * (1.5 + w * w * 0.1) + m.sin(w) * 0.01
    return m.sum(m.while_loop(lambda c: m.sum(c * c) < 50.0, step, x, max_steps=bound))


def singular(m: Any, x: Any, w: Any, bound: int | None = 4) -> Any:
    # A step is fatal at zero, where the rows of steps that were not made lie.
    step = lambda c: 0.4 * c * w + 0.05 * w * m.log(c) / c + 0.3 * m.sqrt(c)
    return m.while_loop(lambda c: c > 1.0, step, m.sum(x * x) + w * w + 1.5, max_steps=bound)


def several(m: Any, x: Any, w: Any) -> Any:
    step = lambda c: (c[0] + 1.0 / c[0] + 1.0 / c[1], c[1] + m.log(c[1]) ** 2 + 0.1)
    a, b = m.while_loop(lambda c: c[0] < 4.0, step, (x[0] * x[0] + 0.1, w * w + 0.2), max_steps=30)
    return a * b


def inside_fori(m: Any, x: Any, w: Any) -> Any:
    inner = lambda c: m.while_loop(lambda d: m.sum(d * d) > 0.5, lambda d: d * 0.8 * m.cos(w), c, max_steps=9)
    return m.sum(m.fori_loop(0, 2, lambda i, c: inner(c) + x, x))


def around_fori(m: Any, x: Any, w: Any) -> Any:
    step = lambda c: m.fori_loop(0, 2, lambda i, d: d * (1.1 + 0.1 * w * w) + 0.1 * m.sin(x) + 0.3, c)
    return m.sum(m.while_loop(lambda c: m.sum(c * c) < 9.0, step, x, max_steps=12))


CASES: dict[str, Any] = {
    "grow": grow,
    "singular": singular,
    "several": several,
    "cut": lambda m, x, w: m.sum(
        m.while_loop(lambda c: m.sum(c * c) < 1e9, lambda c: c * (1.5 + w * w), x, max_steps=3)
    ),
    "never": lambda m, x, w: m.sum(
        m.while_loop(lambda c: m.sum(c) > 1e9, lambda c: m.sqrt(c) * w, x, max_steps=3) * w
    ),
    "operands": lambda m, x, w: m.while_loop(
        lambda c, a, b: c < 5.0, lambda c, a, b: c + m.sum(a * a) + b * b, w, operands=(x, w), max_steps=20
    ),
    "inside_fori": inside_fori,
    "around_fori": around_fori,
}


@pytest.mark.parametrize("name", CASES)
def test_every_order(control: Any, name: str) -> None:
    control.climb(CASES[name], POINTS, control.quick)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_transform(control: Any, name: str) -> None:
    control.climb(CASES[name], POINTS, control.slow)


@pytest.mark.parametrize("f", [grow, singular])
def test_forward_mode_needs_no_bound(control: Any, f: Any) -> None:
    control.climb(lambda m, x, w: f(m, x, w, None), POINTS, control.forward)


def test_lanes_at_rest_leak_nothing_into_what_all_share() -> None:
    # The gradient of a map of gradients: counted loops with a number of steps per lane are differentiated again.
    f = lambda x, w: qb.while_loop(
        lambda c: c > 0.3, lambda c: c * 0.5 * w + 0.05 * w * qb.log(c) / c, x * x + w * w + 0.5, max_steps=9
    )
    xs, w = A([0.3, 1.5, 2.5, -3.0]), A(0.8)

    def straight(x: float) -> Any:
        steps, c = 0, x * x + 0.64 + 0.5
        while c > 0.3:
            c = c * 0.4 + 0.04 * np.log(c) / c
            steps += 1

        def run(y: Any, w: Any) -> Any:
            c = y * y + w * w + 0.5
            for _ in range(steps):
                c = c * 0.5 * w + 0.05 * w * qb.log(c) / c
            return c

        return run

    for inner in (qb.grad(f), qb.hessian(f), qb.grad(f, 1)):
        outer = lambda w, inner=inner: qb.sum(qb.vmap(inner, (0, None))(xs, w))
        for orders in (1, 2):
            found = outer
            for _ in range(orders):
                found = qb.grad(found)
            assert np.isfinite(qb.jit(found)(w).item())
    second = qb.grad(qb.grad(lambda w: qb.sum(qb.vmap(qb.grad(f), (0, None))(xs, w))))
    expected = sum(qb.grad(qb.grad(qb.grad(straight(x.item())), 1), 1)(x, w).item() for x in xs)
    assert qb.jit(second)(w).item() == pytest.approx(expected, rel=1e-12)


def test_the_number_of_steps_differs_per_lane() -> None:
    double = lambda bound: lambda x: qb.while_loop(lambda c: c < 100.0, lambda c: c * 2.0, x, max_steps=bound)
    xs = A([1.0, 60.0, 200.0])
    assert qb.vmap(double(None))(xs).tolist() == [128.0, 120.0, 200.0]
    assert qb.vmap(double(3))(xs).tolist() == [8.0, 120.0, 200.0]
    assert qb.vmap(qb.grad(double(20)))(xs).tolist() == [128.0, 2.0, 1.0]
    values, slopes = qb.vmap(lambda x: qb.jvp(double(None), (x,), (1.0,)))(xs)
    assert values.tolist() == [128.0, 120.0, 200.0] and slopes.tolist() == [128.0, 2.0, 1.0]
    nested = lambda x: qb.while_loop(
        lambda c: c < 10.0, lambda c: qb.while_loop(lambda d: d < c * 2.0, lambda d: d + x, c), x
    )
    assert qb.vmap(nested)(A([1.0, 2.0, 20.0])).tolist() == [16.0, 16.0, 20.0]
    limits = qb.vmap(lambda limit: qb.while_loop(lambda c: c < limit, lambda c: c + 1.0, 0.0))(
        A([2.5, 0.0, -1.0])
    )
    assert limits.tolist() == [3.0, 0.0, 0.0]


def test_a_bound_costs_only_the_steps_that_are_made() -> None:
    f = lambda x: qb.while_loop(lambda c: c < 100.0, lambda c: c * 2.0, x, max_steps=10_000)
    assert qb.grad(f)(3.0).item() == 64.0
    assert qb.grad(qb.grad(lambda x: f(x) * x))(3.0).item() == 128.0


@pytest.mark.parametrize("bound", [2**31, 2**32 + 1, 2**63 - 1, 2**63, 2**64 + 1, 10**30])
def test_any_bound_is_a_bound(bound: int) -> None:
    double = lambda x: qb.while_loop(lambda c: c < 10.0, lambda c: c * 2.0, x, max_steps=bound)
    for device in qb.Compiler().capabilities():
        assert qb.jit(double, device=device)(A(1.5)).item() == 12.0
        assert qb.jit(qb.vmap(double), device=device)(A([1.5, 20.0])).tolist() == [12.0, 20.0]


def test_values_without_derivatives() -> None:
    def f(x: Any) -> Any:
        n = A(np.array(1), qb.int64)
        step = lambda c: (c[0] * 2.0, c[0] < 10.0, c[2] + c[2])
        return qb.while_loop(lambda c: c[1], step, (x, True, n), max_steps=9)

    value, flag, n = qb.jit(f)(A(1.0))
    assert (value.item(), flag.item(), n.item()) == (32.0, False, 32)
    assert qb.grad(lambda x: f(x)[0])(1.0).item() == 32.0
    assert qb.vmap(qb.grad(lambda x: f(x)[0]))(A([1.0, 20.0])).tolist() == [32.0, 2.0]


def test_concrete_arrays_run_now() -> None:
    seen: list[Any] = []
    out = qb.while_loop(lambda c: c < 5.0, lambda c: (seen.append(c), c + 2.0)[1], A(0.0))
    assert out.item() == 6.0 and [c.item() for c in seen] == [0.0, 2.0, 4.0]
    assert qb.while_loop(lambda c: c < 5.0, lambda c: c + 2.0, A(0.0), max_steps=1).item() == 2.0
    assert qb.while_loop(lambda c: c < 5.0, lambda c: c + 2.0, 1.0).item() == 5.0


def test_float32_and_numbers() -> None:
    x = qb.astype(A([1.0, 2.0]), qb.float32)
    for init in (1, 1.0):
        out = qb.jit(lambda x, init=init: qb.while_loop(lambda c: c < 10.0, lambda c: c + qb.sum(x), init))(x)
        assert out.dtype is qb.float32 and out.item() == 10.0
    slope = qb.grad(lambda x: qb.while_loop(lambda c: c < 10.0, lambda c: c + qb.sum(x), 1, max_steps=5))(x)
    assert slope.dtype is qb.float32 and slope.tolist() == [3.0, 3.0]


ERRORS: dict[str, tuple[Any, type[Exception], tuple[str, ...]]] = {
    "float_predicate": (
        lambda x: qb.while_loop(lambda c: c, lambda c: c, x),
        qb.DtypeError,
        ("float64[]", "quabla.not_equal(c, 0.0)"),
    ),
    "constant_predicate": (
        lambda x: qb.while_loop(lambda c: c != 0.0, lambda c: c - 1.0, x),
        qb.TracerError,
        ("never end", "quabla.not_equal", "max_steps"),
    ),
    "vector_predicate": (
        lambda x: qb.while_loop(lambda c: c > 0.0, lambda c: c, A([1.0, 2.0]) * x),
        qb.ShapeError,
        ("bool[2]", "quabla.any"),
    ),
    "nothing": (
        lambda x: qb.while_loop(lambda c: None, lambda c: c, x),
        qb.DtypeError,
        ("bool scalar", "NoneType"),
    ),
    "no_body": (lambda x: qb.while_loop(lambda c: c < 1.0, 2, x), qb.DtypeError, ("body_fun", "int")),
    "no_cond": (lambda x: qb.while_loop(True, lambda c: c, x), qb.DtypeError, ("cond_fun", "bool")),
    "max_zero": (
        lambda x: qb.while_loop(lambda c: c < 1.0, lambda c: c, x, max_steps=0),
        qb.ShapeError,
        ("max_steps",),
    ),
    "max_traced": (
        lambda x: qb.while_loop(lambda c: c < 1.0, lambda c: c, x, max_steps=x),
        qb.DtypeError,
        ("max_steps",),
    ),
    "max_float": (
        lambda x: qb.while_loop(lambda c: c < 1.0, lambda c: c, x, max_steps=2.0),
        qb.DtypeError,
        ("max_steps",),
    ),
    "shape": (
        lambda x: qb.while_loop(lambda c: c[0] < 9.0, lambda c: (c[0] * A([1.0, 2.0]),), (x,)),
        qb.ShapeError,
        ("at 0", "float64[2]"),
    ),
    "structure": (
        lambda x: qb.while_loop(lambda c: c < 9.0, lambda c: (c,), x),
        qb.ShapeError,
        ("structure",),
    ),
    "reverse": (
        lambda x: qb.grad(lambda x: qb.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x))(x),
        qb.UnsupportedOperationError,
        ("max_steps", "fori_loop", "scan", "jvp"),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_mistakes(name: str) -> None:
    f, kind, words = ERRORS[name]
    with pytest.raises(kind) as caught:
        qb.jit(f)(A(1.0))
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_jacobian_takes_the_direction_that_there_is() -> None:
    f = lambda x: qb.sum(qb.while_loop(lambda c: qb.sum(c) < 50.0, lambda c: c * 2.0, x))
    assert qb.jacobian(f)(A([1.0, 2.0])).tolist() == [
        32.0,
        32.0,
    ]  # one result of two elements, but no reverse mode
