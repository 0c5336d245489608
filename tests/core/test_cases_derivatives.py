"""Derivatives in situations that users of libraries like this one have met, each tested for its whole kind.

Where another file tests a situation it is not repeated here:

| situation | test |
|---|---|
| roots of a sum behind `where`, clamps above a root, infinities and NaN in the branch not taken | `test_kinks` |
| norms, roots, deviations at zero; squares of norms and kernels of distances between equal points | `test_kinks` |
| removable singularity of sin(x)/x, four derivatives | `test_ops_math.py: test_derivatives_of_sinc_at_and_near_zero` |
| variance of one sample; logsumexp, softmax and cross entropy far out; softplus in float32 | `test_ops_statistics` |
| one maximum has one gradient, though a kernel computed it with another rounding | `test_ops_statistics` |
| a gradient has the shape of its operand, not that of the broadcast or of the map | `test_kinks`, `test_vmap` |
| each partial derivative of a product in turn | `test_grad.py: test_every_argument_of_a_product_in_turn` |
| forward mode inside a loss | `test_jvp_vjp.py: test_reverse_over_forward_inside_a_loss` |
| a Jacobian per example of a norm | `test_jacobian.py: test_a_jacobian_per_row_of_the_norm` |
| Hessian of a determinant, symmetric gradient through a Cholesky factor | `test_linalg` |
| gradients of reversed and strided slices | `test_ops_index` |
| repeated positions add up | `test_ops_take.py: test_repeated_positions_add_up_in_the_gradient` |
| auxiliary results; arguments that are not used | `test_grad` |
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

mpmath = pytest.importorskip("mpmath")

F = Callable[..., Any]
A = qb.array


# --- powers: both derivatives, at and around the singular points ------------------------------------------------------

BASES = [0.0, -0.0, 1e-100, 0.25, 1.0, 3.0, -1.0, -2.0, -0.5]
EXPONENTS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 7.0, -1.0, -2.0, -0.5]


def in_the_base(x: float, y: float) -> float:
    """The slope y x**(y - 1); zero at a base of zero below the first power, where x**y has none."""
    if y == 0.0 or (x == 0.0 and y < 1.0):
        return 0.0
    with np.errstate(all="ignore"):
        return float(y * np.power(x, y - 1.0))


def in_the_exponent(x: float, y: float) -> float:
    """The slope x**y log x; zero at bases that are not positive."""
    return float(np.power(x, y) * math.log(x)) if x > 0.0 else 0.0


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_derivatives_of_powers(compiled: bool) -> None:
    both = qb.grad(qb.power, argnums=(0, 1))
    both = qb.jit(both) if compiled else both
    for x, y in itertools.product(BASES, EXPONENTS):
        dx, dy = (d.item() for d in both(A(x), A(y)))
        assert dx == pytest.approx(in_the_base(x, y), rel=1e-14, nan_ok=True), (x, y)
        with np.errstate(all="ignore"):
            finite = math.isfinite(np.power(x, y))
        if finite:  # a negative base with a fractional exponent has no value and no slope
            assert dy == pytest.approx(in_the_exponent(x, y), rel=1e-14, abs=1e-300), (x, y)


def test_second_derivatives_of_powers_are_finite_where_the_value_is() -> None:
    hessian = qb.hessian(lambda v: qb.power(v[0], v[1]))
    for x, y in itertools.product(BASES, EXPONENTS):
        with np.errstate(all="ignore"):
            value = np.power(x, y)
            curvature = (
                0.0 if y in (0.0, 1.0) or (x == 0.0 and y < 2.0) else y * (y - 1.0) * np.power(x, y - 2.0)
            )
        if not math.isfinite(value) or not math.isfinite(curvature):
            continue
        got = np.asarray(hessian(A([x, y])))
        assert np.isfinite(got).all(), (x, y)
        assert got[0, 0] == pytest.approx(curvature, rel=1e-13), (x, y)
        assert got[1, 1] == pytest.approx(
            value * math.log(x) ** 2 if x > 0.0 else 0.0, rel=1e-13, abs=1e-300
        ), (x, y)


def test_a_learnable_exponent_among_bases_of_both_signs() -> None:
    x = A([-2.0, 0.0, 2.0])
    value, slope = qb.value_and_grad(lambda p: qb.sum(qb.power(x, p)))(2.0)
    assert value.item() == 8.0
    assert slope.item() == pytest.approx(4.0 * math.log(2.0), rel=1e-15)


def test_a_constant_power_of_something_that_vanishes() -> None:
    for shape in ((), (1,), (2, 3)):
        v = qb.ones(shape)
        _, pullback = qb.vjp(lambda v: qb.power(v - qb.floor(v), qb.zeros_like(v)), v)
        assert not np.asarray(pullback(qb.ones(shape))[0]).any()


# --- saturation -------------------------------------------------------------------------------------------------------

FAR: list[tuple[F, Any]] = [
    (qb.tanh, mpmath.tanh),
    (qb.sigmoid, lambda x: 1 / (1 + mpmath.exp(-x))),
    (qb.softplus, lambda x: mpmath.log1p(mpmath.exp(x))),
    (qb.erf, mpmath.erf),
    (qb.arctan, mpmath.atan),
    (qb.arcsinh, mpmath.asinh),
]


@pytest.mark.parametrize(("f", "exact"), FAR, ids=[f[0].__name__ for f in FAR])
def test_slopes_far_out_keep_their_digits(f: F, exact: Any) -> None:
    """A slope that is 1 minus something near 1 would be nothing there."""
    for x in (-20.0, -9.0, -3.0, 0.0, 0.7, 5.0, 12.0, 20.0):
        with mpmath.workdps(400):
            first, second = (float(mpmath.diff(exact, mpmath.mpf(x), n)) for n in (1, 2))
        assert qb.grad(f)(x).item() == pytest.approx(first, rel=4e-15), x
        assert qb.jvp(f, (x,), (1.0,))[1].item() == pytest.approx(first, rel=4e-15), x
        assert qb.grad(qb.grad(f))(x).item() == pytest.approx(second, rel=2e-14, abs=1e-300), x


# --- broadcasting inside a pull-back ----------------------------------------------------------------------------------

SHAPES = [((3, 3), (3, 3, 3)), ((1,), (5,)), ((), (2, 3)), ((2, 1, 4), (3, 1)), ((1, 1), (1,))]
BROADCAST: list[tuple[str, F]] = [
    ("square of a sum", lambda x, y: (x + y) ** 2),
    ("difference", lambda x, y: x - 2.0 * y),
    ("product", lambda x, y: x * y),
    ("quotient", lambda x, y: x / (2.0 + y)),
    ("maximum", lambda x, y: qb.maximum(x, y)),
    ("arctan2", lambda x, y: qb.arctan2(x, y)),
    ("hypot", lambda x, y: qb.hypot(x, y)),
    ("power", lambda x, y: qb.power(x, y)),
    ("fmod", lambda x, y: qb.fmod(x, y)),
    ("where", lambda x, y: qb.where(x < y, x, y)),
]


@pytest.mark.parametrize("read", [False, True], ids=["plain", "compared"])
@pytest.mark.parametrize("f", [b[1] for b in BROADCAST], ids=[b[0] for b in BROADCAST])
def test_cotangents_of_broadcast_operands_have_their_shapes(f: F, read: bool) -> None:
    rng = np.random.default_rng(0)

    def g(x: Any, y: Any) -> Any:
        if read:  # a comparison has no cotangent, and changes nothing
            _ = (x < 1.0, y > 1.0)
        return f(x, y)

    for left, right in SHAPES:
        x, y = rng.uniform(0.6, 2.0, left), rng.uniform(0.6, 2.0, right)
        out, pullback = qb.vjp(g, A(x), A(y))
        ct = rng.normal(size=out.shape)
        x_bar, y_bar = (np.asarray(t) for t in pullback(A(ct)))
        assert x_bar.shape == left and y_bar.shape == right
        h = 1e-6
        for which, bar in ((0, x_bar), (1, y_bar)):
            t = rng.normal(size=bar.shape)
            moved = [[x, y], [x, y]]
            moved[0][which], moved[1][which] = [x, y][which] + h * t, [x, y][which] - h * t
            ahead, behind = (np.asarray(g(A(a), A(b))) for a, b in moved)
            assert np.sum(bar * t) == pytest.approx(
                np.sum(ct * (ahead - behind) / (2 * h)), rel=1e-7, abs=1e-8
            )


def test_a_sum_over_added_axes() -> None:
    x, y = qb.ones((3, 3)), qb.ones((3, 3, 3))
    out, pullback = qb.vjp(lambda x: (x + y) ** 2, x)
    assert (pullback(qb.ones_like(out))[0].numpy() == 12.0).all()


# --- rules of one's own -----------------------------------------------------------------------------------------------


def product_rule() -> Any:
    @qb.custom_jvp
    def f(x: Any, y: Any) -> Any:
        return x * y

    f.defjvp(lambda p, t: (p[0] * p[1], t[0] * p[1] + p[0] * t[1]))
    return f


@pytest.mark.parametrize("shapes", [((), (2,)), ((2,), ()), ((3, 1), (4,)), ((2, 3), (2, 3)), ((1,), (5, 1))])
def test_a_rule_that_broadcasts_is_transposed_with_the_sum(shapes: Any) -> None:
    f, rng = product_rule(), np.random.default_rng(1)
    x, y = (A(rng.normal(size=s)) for s in shapes)
    for transform in (lambda g: g, qb.jit):
        of_rule = transform(qb.grad(lambda x, y: qb.sum(f(x, y)), argnums=(0, 1)))(x, y)
        plain = transform(qb.grad(lambda x, y: qb.sum(x * y), argnums=(0, 1)))(x, y)
        for got, expected, of in zip(of_rule, plain, (x, y), strict=True):
            assert got.shape == of.shape
            np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-15)


def test_gradients_of_a_scalar_and_a_vector_in_a_rule() -> None:
    g = qb.grad(lambda x, y: qb.sum(product_rule()(x, y)), argnums=(0, 1))(2.0, A([1.0, 3.0]))
    assert g[0].shape == () and g[0].item() == 4.0
    assert g[1].tolist() == [2.0, 2.0]


SECOND_RESULTS: list[tuple[str, F, F]] = [
    ("floor", qb.floor, lambda x: qb.zeros_like(x)),
    ("bool", lambda x: x > 2.0, lambda x: None),
    ("position", lambda x: qb.astype(qb.floor(x), qb.float64), lambda x: qb.zeros_like(x)),
]


@pytest.mark.parametrize(
    ("second", "tangent"), [s[1:] for s in SECOND_RESULTS], ids=[s[0] for s in SECOND_RESULTS]
)
def test_a_rule_with_a_result_that_has_no_derivative(second: F, tangent: F) -> None:
    @qb.custom_jvp
    def f(x: Any) -> Any:
        return x * 1.0, second(x)

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        return f(x), (t, tangent(x))

    x, t = A([1.5, 2.5]), A([1.0, 2.0])
    for transform in (lambda g: g, qb.vmap, qb.jit, lambda g: qb.jit(qb.vmap(g))):
        (first, other), (moved, still) = qb.jvp(transform(f), (x,), (t,))
        assert first.tolist() == [1.5, 2.5] and moved.tolist() == [1.0, 2.0]
        assert np.asarray(other).tolist() == np.asarray(second(x)).tolist()
        assert still is None or not np.asarray(still).any()
        assert qb.grad(lambda v, transform=transform: qb.sum(transform(f)(v)[0]))(x).tolist() == [1.0, 1.0]


# --- forward mode within reverse mode ---------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", ["jvp", "jacobian", "vjp", "vmap_of_jvp"])
def test_a_directional_derivative_inside_a_loss(transform: str) -> None:
    rng = np.random.default_rng(2)
    w, x, u = (A(rng.normal(size=s)) for s in ((4, 3), (4,), (4,)))

    def along(w: Any) -> Any:
        f = lambda x: qb.tanh(x @ w)
        if transform == "jvp":
            return qb.jvp(f, (x,), (u,))[1]
        if transform == "jacobian":
            return qb.jacobian(f)(x) @ u
        if transform == "vjp":  # the pull-back is linear: its own pull-back pushes forward
            return qb.vjp(qb.vjp(f, x)[1], qb.zeros(3))[1]((u,))[0]
        return qb.sum(qb.vmap(lambda e, c: qb.jvp(f, (x,), (e,))[1] * c)(qb.eye(4), u), axis=0)

    got = np.asarray(qb.grad(lambda w: qb.sum(along(w) ** 2))(w))
    pre = np.asarray(x) @ np.asarray(w)
    slope = 1.0 / np.cosh(pre) ** 2
    push = slope * (np.asarray(u) @ np.asarray(w))
    # d/dW of sum(push**2): through the direction, and through the slope at x W.
    through_u = np.outer(np.asarray(u), 2.0 * push * slope)
    through_x = np.outer(
        np.asarray(x), 2.0 * push * (np.asarray(u) @ np.asarray(w)) * slope * -2.0 * np.tanh(pre)
    )
    np.testing.assert_allclose(got, through_u + through_x, rtol=1e-13, atol=1e-14)


def test_every_second_partial_derivative_of_a_product_of_many() -> None:
    f = lambda *args: qb.prod(qb.stack(args))
    ones = [1.0] * 10
    for i in range(10):
        assert qb.grad(f, argnums=i)(*ones).item() == 1.0
        assert qb.grad(qb.grad(f, argnums=i), argnums=(i + 1) % 10)(*ones).item() == 1.0
        assert qb.grad(qb.grad(f, argnums=i), argnums=i)(*ones).item() == 0.0


# --- ties and recomputed values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [qb.float64, qb.float32], ids=str)
@pytest.mark.parametrize("name", ["max", "min"])
def test_an_extremum_of_recomputed_values_has_one_gradient(name: str, dtype: Any) -> None:
    """The rounding of a fused kernel may differ from that of the saved extremum; an entry must match all the same."""
    rng = np.random.default_rng(3)
    f = lambda x: getattr(qb, name)(qb.exp(qb.sin(x) * 1.1 + 0.3 * x) / (1.0 + x * x), axis=1)
    g = qb.jit(qb.grad(lambda x: qb.sum(f(x))))
    for _ in range(20):
        x = rng.normal(size=(7, 33))
        assert (np.count_nonzero(np.asarray(g(A(x, dtype=dtype))), axis=1) == 1).all()


def test_a_maximum_over_equal_entries_shares_its_gradient() -> None:
    for n in (2, 3, 7):
        got = qb.jit(qb.grad(lambda x: qb.max(qb.sin(x))))(qb.full((n,), 0.3))
        np.testing.assert_allclose(np.asarray(got), math.cos(0.3) / n, rtol=1e-15)


# --- squares of norms, wherever the norm and the square stand ---------------------------------------------------------

ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]])
I2 = np.eye(2)


def squared(x: Any) -> Any:
    return x * x


SQUARES: list[tuple[str, F, np.ndarray]] = [
    ("of a linear map", lambda x: qb.norm(A(ROWS, dtype=x.dtype) @ x) ** 2, 2.0 * ROWS.T @ ROWS),
    ("as a product, of a linear map", lambda x: squared(qb.norm(A(ROWS, dtype=x.dtype) @ x)), 2.0 * ROWS.T @ ROWS),
    ("of rows", lambda x: qb.sum(qb.norm(qb.stack([x, 2.0 * x]), axis=1) ** 2), 10.0 * I2),
    ("by square", lambda x: qb.square(qb.norm(x)), 2.0 * I2),
    ("of a scaled norm", lambda x: (qb.norm(x) / 3.0) ** 2, 2.0 / 9.0 * I2),
    ("of one minus", lambda x: (1.0 - qb.norm(x)) ** 2, 2.0 * I2),
    ("in a gaussian", lambda x: qb.exp(-0.5 * qb.norm(x) ** 2 / 0.25), -4.0 * I2),
    ("in a loop", lambda x: qb.fori_loop(0, 2, lambda i, c: c + qb.norm(x) ** 2, qb.zeros_like(x[0])), 4.0 * I2),
    ("in a scan", lambda x: qb.scan(lambda c, i: (c + qb.norm(x) ** 2, None), 0.0 * x[0], length=3)[0], 6.0 * I2),
    ("in a branch", lambda x: qb.cond(x[0] < 1.0, lambda x: qb.norm(x) ** 2, lambda x: qb.norm(x), x), 2.0 * I2),
    ("of a loop's result", lambda x: qb.fori_loop(0, 2, lambda i, c: c * 1.0, qb.norm(x)) ** 2, 2.0 * I2),
    ("of a compiled norm", lambda x: qb.jit(qb.norm)(x) ** 2, 2.0 * I2),
    ("of mapped norms", lambda x: qb.sum(qb.vmap(qb.norm)(qb.stack([x, x])) ** 2), 4.0 * I2),
    ("of a stack of norms", lambda x: qb.sum(qb.stack([qb.norm(x), qb.norm(x)]) ** 2), 4.0 * I2),
    ("of one row of two", lambda x: qb.norm(qb.stack([x, x]), axis=1)[0] ** 2, 2.0 * I2),
    ("below a maximum", lambda x: qb.maximum(qb.norm(x) ** 2, -1.0), 2.0 * I2),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [qb.float64, qb.float32], ids=str)
@pytest.mark.parametrize(("f", "expected"), [s[1:] for s in SQUARES], ids=[s[0] for s in SQUARES])
def test_hessians_of_squared_norms_at_zero(f: F, expected: np.ndarray, dtype: Any) -> None:
    x = qb.zeros(2, dtype=dtype)
    assert not np.asarray(qb.grad(f)(x)).any()
    rtol = 1e-13 if dtype is qb.float64 else 1e-5
    for made in (
        qb.hessian(f)(x),
        qb.jit(qb.hessian(f))(x),
        qb.jacobian(qb.grad(f))(x),
        qb.vmap(qb.hessian(f))(x[None])[0],
    ):
        np.testing.assert_allclose(np.asarray(made), expected, rtol=rtol, atol=rtol)


def test_a_zero_row_among_others_adds_the_curvature_of_its_square_alone() -> None:
    fixed = A([3.0, 4.0])
    f = lambda x: (
        qb.sum(qb.norm(qb.stack([x, fixed]), axis=1)) ** 2
    )  # |x|**2 + 10 |x| + 25, and |x| has none at 0
    np.testing.assert_allclose(np.asarray(qb.hessian(f)(qb.zeros(2))), 2.0 * I2, rtol=1e-14)
    x = A([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]])
    spread = np.asarray(qb.hessian(lambda x: qb.var(qb.norm(x, axis=1)))(x))
    np.testing.assert_allclose(spread[0, :, 0, :], 2.0 * (1.0 / 3.0 - 1.0 / 9.0) * I2, rtol=1e-13)


# --- missing data, wherever the mask stands ---------------------------------------------------------------------------

NAN, INF = math.nan, math.inf
DATA = np.array([[1.0, 2.0], [NAN, 3.0], [4.0, 5.0]])
SEEN = np.array([1.0, NAN, 2.0])
KEPT = ~np.isnan(SEEN)


def residual(w: Any, x: Any = DATA, y: Any = SEEN) -> Any:
    return qb.sum(A(x) * w, axis=-1) - A(y)


def in_a_scan(w: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        x, y = row
        return c + qb.where(qb.isnan(y), 0.0, (qb.sum(x * w) - y) ** 2) / 3.0, None

    return qb.scan(step, qb.zeros(()), (A(DATA), A(SEEN)))[0]


def in_a_map(w: Any) -> Any:
    term = lambda x, y: qb.where(qb.isnan(y), 0.0, (qb.sum(x * w) - y) ** 2)
    return qb.mean(qb.vmap(term)(A(DATA), A(SEEN)))


def by_branches(w: Any) -> Any:
    term = lambda x, y: qb.cond(qb.isnan(y), lambda x, y: 0.0 * w[0], lambda x, y: (x @ w - y) ** 2, x, y)
    return qb.mean(qb.vmap(term)(A(DATA), A(SEEN)))


MISSING: list[tuple[str, F]] = [
    ("where", lambda w: qb.mean(qb.where(qb.isnan(A(SEEN)), 0.0, residual(w) ** 2))),
    (
        "targets only, with a product",
        lambda w: qb.mean(qb.where(qb.isnan(A(SEEN)), 0.0, (A(np.nan_to_num(DATA)) @ w - A(SEEN)) ** 2)),
    ),
    ("nansum", lambda w: qb.nansum(residual(w) ** 2) / 3.0),
    ("nanmean", lambda w: qb.nanmean(residual(w) ** 2) * (2.0 / 3.0)),
    ("scan", in_a_scan),
    ("map", in_a_map),
    ("branches of a map", by_branches),
]


@pytest.mark.parametrize("f", [m[1] for m in MISSING], ids=[m[0] for m in MISSING])
def test_what_is_missing_has_no_part_in_a_gradient(f: F) -> None:
    w = np.array([0.5, -0.3])
    x, y = DATA[KEPT], SEEN[KEPT]
    gradient, curvature = 2.0 * x.T @ (x @ w - y) / 3.0, 2.0 * x.T @ x / 3.0
    for through in (lambda g: g, qb.jit):
        np.testing.assert_allclose(np.asarray(through(qb.grad(f))(A(w))), gradient, rtol=1e-14)
        np.testing.assert_allclose(np.asarray(through(qb.hessian(f))(A(w))), curvature, rtol=1e-14)
    t = np.array([1.0, 2.0])
    assert qb.jvp(f, (A(w),), (A(t),))[1].item() == pytest.approx(gradient @ t, rel=1e-14)


MASKS: list[tuple[str, F, list[float], list[float]]] = [
    ("p log p", lambda p: qb.where(p > 0, p * qb.log(p), 0.0), [0.0, 0.5, 1.0], [0.0, math.log(0.5) + 1.0, 1.0]),
    ("overflow", lambda x: qb.where(x < 100.0, qb.exp(x), x), [1000.0, 0.0], [1.0, 1.0]),
    ("reshaped", lambda x: qb.where(qb.reshape(x, (1, 2)) > 5.0, 0.0, qb.reshape(x, (1, 2))), [1.0, INF], [1.0, 0.0]),
    ("a root below zero", lambda x: qb.where(x > 0.0, x**-0.5, 0.0), [0.0, 4.0], [0.0, -0.0625]),
    ("below a maximum", lambda x: qb.maximum(qb.where(x > 0.0, 0.0 * x, x * INF), -1.0), [1.0, 2.0], [0.0, 0.0]),
    ("a safe operand", lambda x: qb.where(x > 0, qb.log(qb.where(x > 0, x, 1.0)), 0.0),
     [0.0, -1.0, 2.0], [0.0, 0.0, 0.5]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [qb.float64, qb.float32], ids=str)
@pytest.mark.parametrize(("f", "at", "expected"), [m[1:] for m in MASKS], ids=[m[0] for m in MASKS])
def test_nothing_comes_from_behind_a_mask(f: F, at: list[float], expected: list[float], dtype: Any) -> None:
    x = A(at, dtype=dtype)
    for g in (qb.grad(lambda x: qb.sum(f(x))), qb.jit(qb.grad(lambda x: qb.sum(f(x))))):
        np.testing.assert_allclose(np.asarray(g(x)), expected, rtol=1e-6)
    mapped = qb.vmap(qb.grad(lambda x: qb.sum(f(x))))(qb.stack([x, x]))
    np.testing.assert_allclose(np.asarray(mapped), [expected, expected], rtol=1e-6)
