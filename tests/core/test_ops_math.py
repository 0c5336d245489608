"""Elementwise functions: values against mpmath and NumPy, derivatives against mpmath, JAX and differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import quabla as qb
from quabla.testing import check_grads

mpmath = pytest.importorskip("mpmath")

INF, NAN = math.inf, math.nan
F = Callable[..., Any]

# Name -> the function of mpmath, and the interval that arguments are drawn from.
UNARY: dict[str, tuple[Any, float, float]] = {
    "tan": (mpmath.tan, -1.5, 1.5),
    "arcsin": (mpmath.asin, -0.99, 0.99),
    "arccos": (mpmath.acos, -0.99, 0.99),
    "arctan": (mpmath.atan, -30.0, 30.0),
    "sinh": (mpmath.sinh, -20.0, 20.0),
    "cosh": (mpmath.cosh, -20.0, 20.0),
    "arcsinh": (mpmath.asinh, -50.0, 50.0),
    "arccosh": (mpmath.acosh, 1.01, 50.0),
    "arctanh": (mpmath.atanh, -0.99, 0.99),
    "expm1": (mpmath.expm1, -5.0, 5.0),
    "exp2": (lambda x: mpmath.mpf(2) ** x, -20.0, 20.0),
    "log1p": (mpmath.log1p, -0.9, 30.0),
    "log2": (lambda x: mpmath.log(x, 2), 0.01, 30.0),
    "log10": (mpmath.log10, 0.01, 30.0),
    "cbrt": (mpmath.cbrt, 0.01, 30.0),
    "reciprocal": (lambda x: 1 / x, 0.1, 5.0),
    "square": (lambda x: x * x, -5.0, 5.0),
    "erf": (mpmath.erf, -5.0, 5.0),
    "erfc": (mpmath.erfc, -3.0, 20.0),
    "sinc": (mpmath.sincpi, -6.0, 6.0),
    "silu": (lambda x: x / (1 + mpmath.exp(-x)), -30.0, 30.0),
    "gelu": (lambda x: x * mpmath.ncdf(x), -8.0, 8.0),
}
FUNCTIONS = {name: getattr(qb, name) for name in UNARY} | {"gelu": lambda x: qb.gelu(x, approximate=False)}
# Where the result is near 0 at other places than the argument: the error counts against 1.
ABSOLUTE = {"gelu": 2e-16}


def ulps(got: np.ndarray, exact: list[Any], absolute: float) -> float:
    """The largest error in units in the last place."""
    with mpmath.workdps(40):
        worst = [
            max(abs(mpmath.mpf(float(g)) - e) - absolute, 0) / mpmath.mpf(float(np.spacing(abs(float(e)))))
            for g, e in zip(got, exact, strict=True)
        ]
    return float(max(worst))


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_values(name: str, compiled: bool) -> None:
    of, low, high = UNARY[name]
    x = np.random.default_rng(1).uniform(low, high, 400)
    function = FUNCTIONS[name]
    got = np.asarray((qb.jit(function) if compiled else function)(qb.array(x)))
    with mpmath.workdps(40):
        exact = [of(mpmath.mpf(v)) for v in x]
    assert ulps(got, exact, ABSOLUTE.get(name, 0.0)) <= (6.0 if name in ("gelu", "silu") else 2.5)


@pytest.mark.parametrize("name", UNARY)
def test_float32_stays_float32(name: str) -> None:
    _, low, high = UNARY[name]
    x = np.random.default_rng(1).uniform(low, high, 50).astype(np.float32)
    function = FUNCTIONS[name]
    got, wide = qb.jit(function)(qb.array(x)), function(qb.array(x.astype(np.float64)))
    assert got.dtype is qb.float32
    np.testing.assert_allclose(np.asarray(got), np.asarray(wide), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", UNARY)
def test_first_and_second_derivatives(name: str) -> None:
    of, low, high = UNARY[name]
    x = np.random.default_rng(2).uniform(0.9 * low + 0.1 * high, 0.9 * high + 0.1 * low, 12)
    function = FUNCTIONS[name]
    derived = function
    for order in (1, 2):
        derived = qb.grad(lambda v, f=derived: qb.sum(f(v)))
        with mpmath.workdps(60):
            exact = [float(mpmath.diff(of, mpmath.mpf(v), order)) for v in x]
        np.testing.assert_allclose(np.asarray(derived(qb.array(x))), exact, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", UNARY)
def test_all_modes_agree(name: str) -> None:
    _, low, high = UNARY[name]
    x = np.random.default_rng(3).uniform(0.8 * low + 0.2 * high, 0.8 * high + 0.2 * low, 5)
    if name in (
        "arccosh",
        "log1p",
        "log2",
        "log10",
        "cbrt",
        "reciprocal",
        "erfc",
        "sinh",
        "cosh",
        "silu",
        "gelu",
    ):
        x = np.random.default_rng(3).uniform(1.1, 2.0, 5)  # where differences are meaningful
    check_grads(FUNCTIONS[name], (qb.array(x),), order=2, rtol=1e-6)


BINARY: dict[str, Any] = {
    "mod": np.mod, "remainder": np.remainder, "fmod": np.fmod, "floor_divide": np.floor_divide, "hypot": np.hypot,
    "logaddexp": np.logaddexp, "arctan2": np.arctan2, "atan2": np.arctan2,
}  # fmt: skip
POINTS = [0.0, -0.0, 1.0, -1.0, 5.3, -5.3, 0.7, -0.7, 7.0, 2.0, -2.0, 1e300, 1e-300, INF, -INF, NAN]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_two_operands_at_all_special_points(name: str, compiled: bool) -> None:
    x, y = (a.ravel() for a in np.meshgrid(POINTS, POINTS))
    function = getattr(qb, name)
    got = np.asarray((qb.jit(function) if compiled else function)(qb.array(x), qb.array(y)))
    with np.errstate(all="ignore"):
        expected = BINARY[name](x, y)
    np.testing.assert_allclose(got, expected, rtol=4e-16, atol=0.0)
    if name in ("mod", "remainder", "fmod", "arctan2", "atan2"):
        np.testing.assert_array_equal(
            np.signbit(got[~np.isnan(got)]), np.signbit(expected[~np.isnan(expected)])
        )


@pytest.mark.parametrize("name", [n for n in BINARY if n != "floor_divide"])
def test_two_operands_differentiate(name: str) -> None:
    rng = np.random.default_rng(4)
    x, y = rng.uniform(0.5, 3.0, (2, 6))
    check_grads(getattr(qb, name), (qb.array(x), qb.array(y)), order=2, rtol=1e-6)


def test_remainders_far_beyond_the_last_digit_are_exact() -> None:
    x, y = qb.array([1e300, 1e22, -1e22]), qb.array([3.0, 0.7, 0.7])
    expected = [math.fmod(1e300, 3.0), math.fmod(1e22, 0.7), math.fmod(-1e22, 0.7)]
    assert qb.fmod(x, y).tolist() == expected
    assert qb.jit(qb.fmod)(x, y).tolist() == expected


def test_operators_of_remainders() -> None:
    x = np.array([5.3, -5.3, 7.0])
    t = qb.array(x)
    np.testing.assert_array_equal(np.asarray(t % 2), x % 2)
    np.testing.assert_array_equal(np.asarray(t // 2), x // 2)
    np.testing.assert_array_equal(np.asarray(7 % t), 7 % x)
    np.testing.assert_array_equal(np.asarray(7 // t), 7 // x)
    quotient, rest = divmod(t, 2)
    np.testing.assert_array_equal(np.asarray(quotient), x // 2)
    np.testing.assert_array_equal(np.asarray(rest), x % 2)
    assert qb.jit(lambda a: divmod(a, 2.0)[0])(t).tolist() == (x // 2).tolist()


# --- rounding ---------------------------------------------------------------------------------------------------------

HALVES = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999999999999994, 2.0**52 + 1, -0.0, INF, -INF, NAN, 1e300])


@pytest.mark.parametrize(
    ("name", "of"), [("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc), ("round", np.rint)]
)
def test_rounding(name: str, of: Any) -> None:
    function = getattr(qb, name)
    for got in (function(qb.array(HALVES)), qb.jit(function)(qb.array(HALVES))):
        np.testing.assert_array_equal(np.asarray(got), of(HALVES))
        np.testing.assert_array_equal(np.signbit(np.asarray(got)), np.signbit(of(HALVES)))
    assert qb.grad(function)(1.7).item() == 0.0
    assert qb.grad(lambda x: x * function(x))(1.7).item() == of(1.7)


@pytest.mark.parametrize("decimals", [-2, -1, 1, 2])
def test_rounding_to_digits(decimals: int) -> None:
    x = np.random.default_rng(0).normal(size=50) * 1000
    np.testing.assert_allclose(np.asarray(qb.round(qb.array(x), decimals)), np.round(x, decimals), rtol=1e-15)
    assert qb.array(x).round(decimals).tolist() == qb.round(qb.array(x), decimals).tolist()


def test_round_takes_an_integer() -> None:
    with pytest.raises(TypeError, match="round: decimals is one integer"):
        qb.round(1.5, 0.5)  # type: ignore[arg-type]


def test_clip() -> None:
    x = np.linspace(-2.0, 2.0, 9)
    t = qb.array(x)
    for low, high in ((-1.0, 1.0), (None, 0.5), (0.5, None), (1.0, -1.0)):
        expected = x if low is None else np.maximum(x, low)
        expected = expected if high is None else np.minimum(expected, high)
        assert qb.clip(t, low, high).tolist() == expected.tolist()
        assert t.clip(low, high).tolist() == expected.tolist()
    bound = qb.array([0.0, 1.0])
    assert qb.clip(qb.ones((3, 2)), bound).shape == (3, 2)
    x_bar, bound_bar = qb.grad(lambda a, b: qb.sum(qb.clip(a, b)), argnums=(0, 1))(
        qb.array([-1.0, 2.0]), bound
    )
    assert (x_bar.tolist(), bound_bar.tolist()) == ([0.0, 1.0], [1.0, 0.0])


def test_nan_to_num() -> None:
    x = np.array([1.0, NAN, INF, -INF])
    assert qb.nan_to_num(qb.array(x)).tolist() == np.nan_to_num(x).tolist()
    narrow = qb.nan_to_num(qb.array(x.astype(np.float32)))
    assert np.asarray(narrow).tolist() == np.nan_to_num(x.astype(np.float32)).tolist()
    assert qb.nan_to_num(qb.array(x), nan=5.0, posinf=6.0, neginf=7.0).tolist() == [1.0, 5.0, 6.0, 7.0]
    square = qb.grad(lambda v: qb.sum(qb.nan_to_num(v * v)))(qb.array(x))
    assert square.tolist() == [2.0, 0.0, 0.0, 0.0]


def test_truth_values_are_refused_by_name() -> None:
    flag = qb.array([True, False])
    for name in ("nan_to_num", "erf", "floor", "sinc", "gelu", "square", "nansum"):
        with pytest.raises(TypeError, match=r"takes floating operands?|bool"):
            getattr(qb, name)(flag)


# --- far from the middle ----------------------------------------------------------------------------------------------


def test_inverse_hyperbolic_sine_on_the_negative_side() -> None:
    x = qb.array([-1e8, -1e7, -INF, -0.0])
    for got in (qb.arcsinh(x), qb.jit(qb.arcsinh)(x)):
        np.testing.assert_allclose(
            np.asarray(got), [-19.11382792451231, -16.811242831518268, -INF, -0.0], rtol=2e-16
        )
        assert math.copysign(1.0, got.tolist()[3]) == -1.0
    assert qb.grad(qb.arcsinh)(-1e6).item() == pytest.approx(9.999999999995e-07, rel=1e-15)


@pytest.mark.parametrize(
    ("fun", "at", "expected"),
    [
        (qb.arcsinh, 1e200, 1e-200),
        (qb.arccosh, 1e200, 1e-200),
        (lambda x: qb.hypot(x, 3e200), 4e200, 0.8),
        (lambda x: qb.hypot(x, 3e-200), 4e-200, 0.8),
        (lambda x: qb.arctan2(x, 1e200), 1e200, 5e-201),
        (lambda x: qb.arctan2(x, 1e-200), 1e-200, 5e199),
        (qb.expm1, -40.0, math.exp(-40.0)),
        (qb.log2, 1e308, 1.0 / math.log(2.0) / 1e308),
        (lambda x: qb.logaddexp(x, 0.0), -50.0, math.exp(-50.0)),
        (lambda x: qb.logaddexp(x, 0.0), 1000.0, 1.0),
        (qb.erf, 5.0, 2.0 / math.sqrt(math.pi) * math.exp(-25.0)),
        (qb.silu, -800.0, 0.0),
    ],
)
def test_derivatives_far_out(fun: F, at: float, expected: float) -> None:
    assert qb.grad(fun)(at).item() == pytest.approx(expected, rel=1e-14)
    assert qb.jvp(fun, (at,), (1.0,))[1].item() == pytest.approx(expected, rel=1e-14)


def test_derivatives_of_sinc_at_and_near_zero() -> None:
    exact = [1.0, 0.0, -(math.pi**2) / 3, 0.0, math.pi**4 / 5, 0.0, -(math.pi**6) / 7]
    f: F = qb.sinc
    for order, value in enumerate(exact):
        assert f(0.0).item() == pytest.approx(value, rel=4e-15, abs=1e-15), order
        if order < 5:
            for x in (1e-9, 1e-3, 0.3, 0.4775, 0.95, 2.5):
                with mpmath.workdps(50):
                    there = float(mpmath.diff(mpmath.sincpi, x, order))
                assert f(x).item() == pytest.approx(there, rel=1e-12, abs=1e-13), (order, x)
        f = qb.grad(f)


def test_sinc_is_right_around_its_zeros() -> None:
    near = np.array([1.0 - 1e-9, 2.0 + 1e-12, -3.0 - 1e-6, 1e6 + 1e-4, 7.25])
    exact = np.array([float(mpmath.sincpi(mpmath.mpf(x))) for x in near])
    np.testing.assert_allclose(qb.sinc(near).numpy(), exact, rtol=1e-15)
    assert not qb.sinc(np.array([1.0, -2.0, 3.0, 2.0**60])).numpy().any()


def test_sinc_in_a_mapped_hessian() -> None:
    x = qb.array([[0.0, 0.5], [0.0, 0.0]])
    got = qb.vmap(qb.hessian(lambda v: qb.sinc(v[0]) * v[1]))(x)
    assert np.asarray(got)[:, 0, 0] == pytest.approx([-(math.pi**2) / 6, 0.0])


def test_the_two_gelus() -> None:
    x = np.linspace(-6.0, 6.0, 41)
    exact = x * scipy.special.ndtr(x)
    np.testing.assert_allclose(np.asarray(qb.gelu(qb.array(x), approximate=False)), exact, rtol=2e-14)
    with mpmath.workdps(40):
        a, b = mpmath.sqrt(2 / mpmath.pi), mpmath.mpf(0.044715)
        smooth = [float(v / 2 * (1 + mpmath.tanh(a * (v + b * v**3)))) for v in map(mpmath.mpf, x)]
    for got in (qb.gelu(qb.array(x)), qb.jit(qb.gelu)(qb.array(x)), qb.gelu(qb.array(x), approximate=True)):
        np.testing.assert_allclose(np.asarray(got), smooth, rtol=2e-14)
    check_grads(qb.gelu, (qb.array(x[::8]),), order=2, rtol=1e-6)


def test_against_jax() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp

    x = np.random.default_rng(5).uniform(0.1, 0.9, 7)
    for name in (
        "tan",
        "arcsin",
        "arctan",
        "sinh",
        "arcsinh",
        "arctanh",
        "expm1",
        "log1p",
        "log2",
        "cbrt",
        "sinc",
    ):
        ours, others = getattr(qb, name), getattr(jnp, name)
        mine = qb.hessian(lambda v, f=ours: qb.sum(f(v) * v))(qb.array(x))
        theirs = jax.hessian(lambda v, f=others: jnp.sum(f(v) * v))(x)
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-10, atol=1e-12)
    for name in ("hypot", "logaddexp", "arctan2", "mod", "fmod"):
        ours, others = getattr(qb, name), getattr(jnp, name)
        mine = qb.grad(lambda v, f=ours: qb.sum(f(v, v[::-1] * 2.0)))(qb.array(x))
        theirs = jax.grad(lambda v, f=others: jnp.sum(f(v, v[::-1] * 2.0)))(x)
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-12, atol=1e-13)
