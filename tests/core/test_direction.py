"""Gradients by one number go forwards: same values as backwards, and programs that grow by a channel per derivative."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import quabla as qb
from quabla.transforms.direction import forwards

A = qb.asarray


def network(widths: tuple[int, ...]) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    pairs = itertools.pairwise(widths)
    return [(A(rng.normal(size=(a, b)) / a**0.5), A(rng.normal(size=b))) for a, b in pairs]


def u(x: Any, params: Any) -> Any:
    h = qb.reshape(x, (1, 1))
    for w, b in params[:-1]:
        h = qb.tanh(h @ w + b)
    return qb.reshape(h @ params[-1][0] + params[-1][1], ())


def test_nested_gradients_of_a_network_grow_by_a_channel_each() -> None:
    params, counts = network((1, 8, 8, 1)), []
    f: Callable[..., Any] = u
    for _ in range(6):
        f = qb.grad(f)
        program = qb.jit(qb.vmap(f, (0, None))).lower(A(np.linspace(-1.0, 1.0, 5)), params).program
        # Each order adds one product per layer with weights: u, u_x, u_xx and so on through the same matrices.
        counts.append(str(program).count("dot_general"))
    assert np.diff(counts).tolist() == [counts[1] - counts[0]] * 5


@pytest.mark.parametrize("order", range(1, 7))
def test_derivatives_up_to_order_six(order: int) -> None:
    f: Callable[..., Any] = lambda x: qb.exp(qb.sin(2.0 * x)) / (1.0 + x * x) + qb.tanh(x) ** 3
    for _ in range(order):
        f = qb.grad(f)
    with mpmath.workdps(60):
        want = mpmath.diff(
            lambda x: mpmath.exp(mpmath.sin(2 * x)) / (1 + x * x) + mpmath.tanh(x) ** 3,
            mpmath.mpf(0.3),
            order,
        )
    assert f(0.3).item() == pytest.approx(float(want), rel=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_the_gradient_has_the_shape_and_dtype_of_the_argument(shape: tuple[int, ...]) -> None:
    for dtype in ("float64", "float32"):
        x = qb.full(shape, 0.5, dtype=dtype)
        value, slope = qb.value_and_grad(lambda x: qb.sum(qb.sin(x) * 2.0))(x)
        assert slope.shape == shape and slope.dtype == x.dtype and value.dtype == x.dtype
        np.testing.assert_allclose(slope.numpy(), np.full(shape, 2.0 * np.cos(0.5)), rtol=1e-6)


def test_a_function_that_ignores_its_argument_has_slope_zero() -> None:
    assert qb.grad(lambda x, y: y * 2.0)(A(3.0), A(1.0)).item() == 0.0


def program_of(f: Callable[..., Any], *args: Any) -> Any:
    from quabla.transforms.staging import stage, take_apart

    return stage(f, take_apart(f, args, {})).program


def test_which_programs_go_forwards() -> None:
    def way(f: Callable[..., Any], *args: Any, by: int = 0) -> int | None:
        program = program_of(f, *args)
        return forwards(program, program.in_avals, [i == by for i in range(len(args))])

    x, v = A(0.5), A([0.5, 1.0])
    assert way(qb.sin, x) == 0
    assert way(lambda y, x: qb.sum(y) * x, v, x, by=1) == 1
    assert way(lambda v: qb.sum(qb.sin(v)), v) is None
    # Their second derivatives at zero need the cotangent.
    assert way(lambda x: qb.exp(qb.sqrt(x * x)), x) is None
    assert way(lambda x: qb.cond(x > 0.0, qb.abs, qb.sin, x), x) is None
    # Reverse mode alone has a rule, or refuses: neither depends on the number of elements.
    square = qb.custom_vjp(lambda x: x * x)
    square.defvjp(lambda x: (x * x, x), lambda x, ct: (2.0 * x * ct,))
    assert way(square, x) is None
    assert way(lambda x: qb.while_loop(lambda c: c < 3.0, lambda c: c * 2.0, x), x) is None


def test_forwards_through_regions_agrees_with_finite_differences() -> None:
    def f(a: Any) -> Any:
        total = qb.fori_loop(0, 5, lambda i, c: c * a + qb.sin(c), A(0.3))
        return qb.cond(total > 0.0, lambda t: t * a, lambda t: -t, total)

    h = 1e-6
    assert qb.grad(f)(0.7).item() == pytest.approx(
        (f(0.7 + h).item() - f(0.7 - h).item()) / (2 * h), rel=1e-8
    )
    first = qb.grad(f)
    second = (first(0.7 + h).item() - first(0.7 - h).item()) / (2 * h)
    assert qb.grad(first)(0.7).item() == pytest.approx(second, rel=1e-7)
