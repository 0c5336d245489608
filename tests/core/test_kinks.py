"""Derivatives at singular points: zero subgradients, smooth functions of norms, and branches that are not taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tracer import trace

F = Callable[..., Any]
INF, NAN = math.inf, math.nan
ORIGIN = np.zeros(2)


def forwards_first(f: F, v: Any) -> list[np.ndarray]:
    """The Hessian, a tangent of a tangent by a tangent, and as the gradients of tangents."""
    basis = qb.array(np.eye(v.size).reshape(-1, *v.shape))
    tangent = lambda t: lambda a: qb.jvp(f, (a,), (t,))[1]
    twice = qb.vmap(lambda t: qb.vmap(lambda u: qb.jvp(tangent(t), (v,), (u,))[1])(basis))
    back = qb.vmap(lambda t: qb.grad(tangent(t))(v))
    return [np.asarray(made(basis)).reshape((*v.shape, *v.shape)) for made in (twice, qb.jit(twice), back)]


def second_derivatives(f: F, x: np.ndarray) -> list[np.ndarray]:
    """The Hessian, made in every order of modes."""
    v = qb.array(x)
    rows = np.eye(x.size).reshape(-1, *x.shape)
    reverse = [qb.grad(lambda a, t=t: qb.sum(qb.grad(f)(a) * qb.array(t)))(v) for t in rows]
    ahead = [qb.jvp(qb.grad(f), (v,), (qb.array(t),))[1] for t in rows]
    shape = (*x.shape, *x.shape)
    made = [qb.hessian(f)(v), qb.jacobian(qb.grad(f))(v), qb.jit(qb.hessian(f))(v)]
    both = [np.stack([np.asarray(r) for r in rs]).reshape(shape) for rs in (reverse, ahead)]
    return [*(np.asarray(a) for a in made), *both, *forwards_first(f, v)]


# --- subgradients that are zero ---------------------------------------------------------------------------------------

KINKS: list[tuple[str, F, np.ndarray]] = [
    ("norm", qb.norm, ORIGIN),
    ("norm of a matrix", qb.norm, np.zeros((2, 2))),
    ("norms of rows", lambda x: qb.sum(qb.norm(x, axis=1)), np.zeros((2, 2))),
    ("sqrt of a sum of squares", lambda x: qb.sqrt(qb.sum(x * x)), ORIGIN),
    ("hypot", lambda x: qb.hypot(x[0], x[1]), ORIGIN),
    ("arctan2", lambda x: qb.arctan2(x[0], x[1]), ORIGIN),
    ("std", qb.std, np.array([1.0, 1.0])),
    ("std of a number that is not exact", qb.std, np.array([0.1, 0.1, 0.1])),
    ("std along an axis", lambda x: qb.sum(qb.std(x, axis=0, ddof=1)), np.full((3, 2), 0.7)),
    ("cbrt", lambda x: qb.sum(qb.cbrt(x)), ORIGIN),
    ("abs", lambda x: qb.sum(qb.abs(x)), ORIGIN),
    ("clamp above a root", lambda x: qb.maximum(qb.norm(x), 1e-10), ORIGIN),
    ("logaddexp of nothing", lambda x: qb.logaddexp(x[0], x[1]), np.array([-INF, -INF])),
    ("logsumexp of nothing", qb.logsumexp, np.array([-INF, -INF])),
]


@pytest.mark.parametrize(("f", "x"), [c[1:] for c in KINKS], ids=[c[0] for c in KINKS])
def test_first_and_second_derivatives_are_zero(f: F, x: np.ndarray) -> None:
    assert not np.asarray(qb.grad(f)(qb.array(x))).any()
    assert np.asarray(qb.jvp(f, (qb.array(x),), (qb.array(np.ones_like(x)),))[1]) == 0.0
    for hessian in second_derivatives(f, x):
        assert hessian.shape == (*x.shape, *x.shape)
        assert not hessian.any()


def test_a_norm_scaled_to_nothing() -> None:
    assert qb.grad(lambda a: qb.norm(a * qb.zeros(2)))(1.0).item() == 0.0


# --- smooth functions of something that has a kink --------------------------------------------------------------------

I2 = np.eye(2)
SMOOTH: list[tuple[str, F, np.ndarray, Any]] = [
    ("norm**2", lambda x: qb.norm(x) ** 2, ORIGIN, 2.0 * I2),
    ("norm**2.0", lambda x: qb.norm(x) ** 2.0, ORIGIN, 2.0 * I2),
    ("norm * norm", lambda x: qb.norm(x) * qb.norm(x), ORIGIN, 2.0 * I2),
    ("norm**4", lambda x: qb.norm(x) ** 4, ORIGIN, 0.0 * I2),
    ("norm + norm**2", lambda x: qb.norm(x) + qb.norm(x) ** 2, ORIGIN, 2.0 * I2),
    ("norm with keepdims", lambda x: qb.sum(qb.norm(x, keepdims=True) ** 2), ORIGIN, 2.0 * I2),
    ("hypot**2", lambda x: qb.hypot(x[0], x[1]) ** 2, ORIGIN, 2.0 * I2),
    ("square of a root", lambda x: qb.sqrt(x * x) ** 2, np.array(0.0), 2.0),
    ("root times root", lambda x: qb.sqrt(x * x) * qb.sqrt(x * x), np.array(0.0), 2.0),
    ("abs**2", lambda x: qb.abs(x) ** 2, np.array(0.0), 2.0),
    ("abs * abs", lambda x: qb.abs(x) * qb.abs(x), np.array(0.0), 2.0),
    ("cosh of a norm", lambda x: qb.cosh(qb.norm(x)), ORIGIN, I2),
    ("log(1 + norm**2)", lambda x: qb.log(1.0 + qb.norm(x) ** 2), ORIGIN, 2.0 * I2),
    ("norm far below 1, squared", lambda x: (1e-3 * qb.norm(1e3 * x)) ** 2, ORIGIN, 2.0 * I2),
    ("std**2", lambda x: qb.std(x) ** 2, np.array([0.1, 0.1]), np.array([[0.5, -0.5], [-0.5, 0.5]])),
    ("huber", lambda x: qb.where(qb.norm(x) < 1.0, 0.5 * qb.norm(x) ** 2, qb.norm(x) - 0.5), ORIGIN, I2),
]  # fmt: skip


@pytest.mark.parametrize(("f", "x", "expected"), [c[1:] for c in SMOOTH], ids=[c[0] for c in SMOOTH])
def test_smooth_functions_of_a_norm(f: F, x: np.ndarray, expected: Any) -> None:
    assert not np.asarray(qb.grad(f)(qb.array(x))).any()
    for hessian in second_derivatives(f, x):
        np.testing.assert_allclose(hessian, expected, rtol=1e-14)


def matern(order: int, r: Any) -> Any:
    """The Matern kernels of smoothness 3/2, 5/2 and 7/2; their curvatures at 0 are -3, -5/3 and -7/5."""
    s = math.sqrt(order) * r
    more = {3: 0.0, 5: s * s / 3.0, 7: 2.0 / 5.0 * s**2 + s**3 / 15.0}[order]
    return (1.0 + s + more) * qb.exp(-s)


@pytest.mark.parametrize(("order", "curvature"), [(3, -3.0), (5, -5.0 / 3.0), (7, -7.0 / 5.0)])
def test_matern_kernels_between_equal_points(order: int, curvature: float) -> None:
    a = np.array([0.3, -1.2])
    k = lambda b: matern(order, qb.norm(qb.array(a) - b))
    assert not np.asarray(qb.grad(k)(qb.array(a))).any()
    for hessian in second_derivatives(k, a):
        np.testing.assert_allclose(hessian, curvature * I2, rtol=1e-14, atol=1e-15)
    mixed = qb.jacobian(lambda u: qb.grad(lambda v: matern(order, qb.norm(u - v)))(qb.array(a)))(qb.array(a))
    np.testing.assert_allclose(np.asarray(mixed), -curvature * I2, rtol=1e-14, atol=1e-15)
    one = qb.grad(qb.grad(lambda x: matern(order, qb.abs(x - 0.5))))(0.5)
    assert one.item() == pytest.approx(curvature, rel=1e-14)


def chain(x: Any) -> Any:
    for _ in range(20):
        x = qb.sin(x) * 1.1 + 0.1
    return x


def test_a_kernel_deep_inside_a_computation() -> None:
    a = np.array([0.3, -1.2])

    def f(b: Any) -> Any:
        return chain(matern(5, qb.norm(qb.array(a) - b)))

    slope = qb.grad(chain)(1.0).item()
    np.testing.assert_allclose(
        np.asarray(qb.hessian(f)(qb.array(a))), slope * -5.0 / 3.0 * I2, rtol=1e-13, atol=1e-15
    )


def test_many_roots_in_a_row_cost_nothing_much() -> None:
    """The way from a root to its cotangent is followed for some steps only."""

    def f(steps: int) -> F:
        def run(x: Any) -> Any:
            for _ in range(steps):
                x = x + 0.01 * x * qb.exp(-qb.norm(x - 1.0))
            return qb.sum(x * x)

        return run

    def size(steps: int) -> int:
        lowered = trace(lambda x: [qb.jvp(qb.grad(f(steps)), (x,), (x,))[1]], [qb.ShapeDtype((3,))])
        return len(lowered[0].nodes)

    assert size(20) < 2.2 * size(10)


def test_equal_points_among_others() -> None:
    x = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]])

    def energy(r2_or_norm: F) -> F:
        return lambda p: qb.sum(qb.exp(-r2_or_norm(p[:, None, :] - p[None, :, :])))

    through_norm = qb.hessian(energy(lambda d: qb.norm(d, axis=-1) ** 2.0))(qb.array(x))
    polynomial = qb.hessian(energy(lambda d: qb.sum(d * d, axis=-1)))(qb.array(x))
    np.testing.assert_allclose(np.asarray(through_norm), np.asarray(polynomial), rtol=1e-13, atol=1e-14)


def test_mapped_and_nested() -> None:
    x = qb.array([[0.0, 0.0], [0.6, 0.8]])
    k = lambda v: matern(3, qb.norm(v))
    rows = [np.asarray(qb.hessian(k)(x[i])) for i in range(2)]
    np.testing.assert_allclose(np.asarray(qb.vmap(qb.hessian(k))(x)), rows, rtol=1e-13)
    np.testing.assert_allclose(
        np.asarray(qb.hessian(lambda v: qb.sum(qb.vmap(k)(v)))(x))[0, :, 0], rows[0], rtol=1e-13
    )


def test_squares_of_norms_in_forward_mode_alone() -> None:
    x, t = qb.zeros(2), qb.array([1.0, 2.0])
    f = lambda v: qb.norm(v) ** 2
    twice = qb.jvp(lambda v: qb.jvp(f, (v,), (t,))[1], (x,), (t,))[1]
    assert twice.item() == 10.0


def test_the_square_of_a_root_is_its_operand() -> None:
    f = qb.jit(lambda s: qb.sqrt(s) ** 2)
    assert f(qb.array([2.0, 0.0, INF])).tolist() == [2.0, 0.0, INF]
    assert math.isnan(f(qb.array(-1.0)).item())
    assert qb.grad(lambda s: qb.sqrt(s) ** 2)(0.0).item() == 1.0
    assert qb.norm(qb.full((3,), 1e-200)).item() ** 2 == 0.0
    large = qb.jit(lambda x: qb.norm(x) ** 2)(qb.array([3e153, 4e153]))
    assert large.item() == pytest.approx(2.5e307, rel=1e-15)


def test_away_from_the_kink_nothing_changes() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp

    x = np.random.default_rng(0).normal(size=(3, 2))
    for mine, theirs in (
        (lambda v: qb.sum(matern(5, qb.norm(v, axis=1))), None),
        (lambda v: qb.sum(qb.norm(v, axis=1)) ** 2, lambda v: jnp.sum(jnp.linalg.norm(v, axis=1)) ** 2),
        (lambda v: qb.std(qb.abs(v)) * qb.norm(v), lambda v: jnp.std(jnp.abs(v)) * jnp.linalg.norm(v)),
    ):
        if theirs is not None:
            got, expected = qb.hessian(mine)(qb.array(x)), jax.hessian(theirs)(x)
            np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-10, atol=1e-12)


# --- nothing leaks from the branch that is not taken ------------------------------------------------------------------


def test_row_norms_behind_a_mask() -> None:
    s = lambda x: qb.sum(x * x, axis=1)
    f = lambda x: qb.sum(qb.where(s(x) > 0, qb.sqrt(s(x)), 0))
    got = qb.grad(f)(qb.array([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(np.asarray(got), [[0.4472136, 0.8944272], [0.6, 0.8], [0.0, 0.0]], rtol=1e-6)


MASKED: list[tuple[str, F, list[float], list[float]]] = [
    ("inf times x", lambda x: qb.where(x > 0, 0 * x, x * INF), [1.0], [0.0]),
    ("missing data", lambda x: qb.where(qb.isnan(x), 0.0, x**2), [NAN, 1.0, 2.0], [0.0, 2.0, 4.0]),
    ("log of a root", lambda x: qb.where(x > 0, qb.log(qb.sqrt(x)), 0.0), [-1.0, 0.0, 2.0], [0.0, 0.0, 0.25]),
    ("a chain", lambda x: qb.where(x > 0, qb.exp(1.0 / qb.abs(x)) * x, 0.0), [0.0, 1.0], [0.0, 0.0]),
    (
        "two masks",
        lambda x: qb.where(x > 0, qb.where(x < 2, 1.0 / (2.0 - x), 0.0), 0.0),
        [0.0, 1.0, 2.0],
        [0.0, 1.0, 0.0],
    ),
    (
        "arcsin outside",
        lambda x: qb.where(qb.abs(x) < 1, qb.arcsin(x), 0.0),
        [0.0, 1.0, 3.0],
        [1.0, 0.0, 0.0],
    ),
    ("power", lambda x: qb.where(x > 0, x**-2.0, 0.0), [0.0, 1.0], [0.0, -2.0]),
    ("quotient", lambda x: qb.where(qb.not_equal(x, 0.0), (1.0 + x) / x, 0.0), [0.0, 1.0], [0.0, -1.0]),
]


@pytest.mark.parametrize(("f", "x", "expected"), [c[1:] for c in MASKED], ids=[c[0] for c in MASKED])
def test_what_where_leaves_out_has_no_derivative(f: F, x: list[float], expected: list[float]) -> None:
    v = qb.array(x)
    np.testing.assert_allclose(np.asarray(qb.grad(lambda a: qb.sum(f(a)))(v)), expected, rtol=1e-13)
    np.testing.assert_allclose(np.asarray(qb.jvp(f, (v,), (qb.ones_like(v),))[1]), expected, rtol=1e-13)
    kept = np.array(expected) != 0.0
    second = np.asarray(qb.grad(lambda a: qb.sum(qb.grad(lambda b: qb.sum(f(b)))(a)))(v))
    ahead = np.asarray(qb.jvp(qb.grad(lambda b: qb.sum(f(b))), (v,), (qb.ones_like(v),))[1])
    assert np.isfinite(second).all() and not second[~kept & ~np.isfinite(x)].any()
    np.testing.assert_allclose(second, ahead, rtol=1e-13)


def test_masks_pass_sums_over_axes() -> None:
    x = qb.array([[1.0, 2.0], [3.0, 0.0]])
    s = lambda v: qb.sum(v / v * v, axis=1)
    got = qb.grad(lambda v: qb.sum(qb.where(qb.isnan(s(v)), 0.0, s(v))))(x)
    assert got.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_a_mask_hides_nothing_that_counts() -> None:
    """Where the branch is taken, an infinite derivative stays infinite."""
    assert qb.grad(lambda x: qb.where(x >= 0, 1.0 / x, 0.0))(0.0).item() == -INF
    assert qb.grad(lambda x: qb.where(x >= 0, x * INF, 0.0))(1.0).item() == INF


# --- conventions of the rest ------------------------------------------------------------------------------------------

CONVENTIONS: list[tuple[str, F, float, float]] = [
    ("cbrt at 0", qb.cbrt, 0.0, 0.0),
    ("sqrt at 0", qb.sqrt, 0.0, 0.0),
    ("x**0.5 at 0", lambda x: x**0.5, 0.0, 0.0),
    ("arcsin at 1", qb.arcsin, 1.0, INF),
    ("arccos at 1", qb.arccos, 1.0, -INF),
    ("arccosh at 1", qb.arccosh, 1.0, INF),
    ("arctanh at 1", qb.arctanh, 1.0, INF),
    ("log1p at -1", qb.log1p, -1.0, INF),
    ("reciprocal at 0", qb.reciprocal, 0.0, -INF),
    ("mod at a jump", lambda x: qb.mod(x, 2.0), 4.0, 1.0),
    ("mod in the divisor", lambda y: qb.mod(7.0, y), 2.0, -3.0),
    ("mod in the divisor, below 0", lambda y: qb.mod(-7.0, y), 2.0, 4.0),
    ("fmod in the divisor, below 0", lambda y: qb.fmod(-7.0, y), 2.0, 3.0),
    ("floor", lambda x: x * qb.floor(x), 2.0, 2.0),
    ("power with a fraction that vanishes", lambda v: qb.power(v - qb.floor(v), 0.0), 1.0, 0.0),
    ("clip on a bound", lambda x: qb.clip(x, 0.0, 1.0), 1.0, 0.5),
    ("logaddexp of equal ones", lambda x: qb.logaddexp(x, 3.0), 3.0, 0.5),
    ("logaddexp with -inf", lambda x: qb.logaddexp(x, -INF), 3.0, 1.0),
    ("silu at 0", qb.silu, 0.0, 0.5),
    ("tanh at 15", qb.tanh, 15.0, 3.7430492e-13),
]


@pytest.mark.parametrize(
    ("f", "at", "expected"), [c[1:] for c in CONVENTIONS], ids=[c[0] for c in CONVENTIONS]
)
def test_conventions(f: F, at: float, expected: float) -> None:
    assert qb.grad(f)(at).item() == pytest.approx(expected, rel=1e-3)
    assert qb.jvp(f, (at,), (1.0,))[1].item() == pytest.approx(expected, rel=1e-3)


def test_gradients_of_broadcast_operands() -> None:
    assert qb.grad(lambda x: qb.sum(qb.fmod(x, qb.array([[2.0], [2.0]]))))(qb.array([5.0])).tolist() == [2.0]
    y, x = qb.grad(lambda y, x: qb.sum(qb.atan2(y, x)), argnums=(0, 1))(qb.array([1.0, 2.0, 3.0]), 1.0)
    np.testing.assert_allclose(np.asarray(y), [0.5, 0.2, 0.1], rtol=1e-15)
    assert x.shape == () and x.item() == pytest.approx(-1.2, rel=1e-15)
    r = qb.array([[0.1, 0.2], [0.9, 0.4], [0.3, 0.8]])

    def total(length: Any) -> Any:
        d = lambda a, b: qb.mod(a - b + 0.5 * length, length) - 0.5 * length
        return qb.sum(qb.vmap(qb.vmap(d, (None, 0)), (0, None))(r, r))

    gradient = qb.grad(total)(1.0)
    assert gradient.shape == () and gradient.item() == 0.0
