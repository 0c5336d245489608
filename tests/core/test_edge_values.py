"""Values at the edges of the numbers, against NumPy: signed zeros, infinities, NaN, the smallest and the largest."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import quabla as qb

INF, NAN = np.inf, np.nan
DTYPES = [np.float64, np.float32]
WAYS = [pytest.param(lambda f: f, id="eager"), pytest.param(qb.jit, id="compiled", marks=pytest.mark.cpu)]


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """NumPy, the oracle, may warn; what is tested may not."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def edges(dtype: Any) -> np.ndarray:
    limits = np.finfo(dtype)
    small, least = limits.tiny, limits.smallest_subnormal
    positive = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 0.1, 1e-10, 1e10, small, 1.5 * small, least, 3 * least]
    positive += [limits.max, limits.max / 3, limits.eps, 2.0**53 - 1, 2.0**24 + 1, 1 / 3, INF]
    return np.array([*positive, *(-x for x in positive), NAN], dtype)


def assert_same(got: Any, expected: Any, operands: tuple[Any, ...]) -> None:
    """Equal to the bit, but for the sign of NaN."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    same = (got == expected) & (np.signbit(got) == np.signbit(expected)) | np.isnan(got) & np.isnan(expected)
    wrong = [(*(x[i] for x in operands), got[i], expected[i]) for i in np.flatnonzero(~same)[:5]]
    assert same.all(), wrong


# --- quotients, remainders, rounding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["floor_divide", "mod", "remainder", "fmod", "maximum", "minimum", "divide"])
def test_all_pairs_of_edges(name: str, dtype: Any, way: Callable[..., Any]) -> None:
    x, y = (a.ravel().copy() for a in np.meshgrid(edges(dtype), edges(dtype)))
    f = getattr(qb, "div" if name == "divide" else name)
    got = way(f)(qb.array(x), qb.array(y)).numpy()
    if name in ("maximum", "minimum"):  # which of two equal zeros it is, NumPy itself does not say
        got = got + 0.0
        assert_same(got, getattr(np, name)(x, y) + 0.0, (x, y))
    else:
        assert_same(got, getattr(np, name)(x, y), (x, y))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("f", [qb.divmod, lambda x, y: divmod(x, y), lambda x, y: (x // y, x % y)])
def test_divmod_of_all_pairs_of_edges(f: Any, dtype: Any, way: Callable[..., Any]) -> None:
    x, y = (a.ravel().copy() for a in np.meshgrid(edges(dtype), edges(dtype)))
    for got, expected in zip(way(f)(qb.array(x), qb.array(y)), np.divmod(x, y), strict=True):
        assert_same(got.numpy(), expected, (x, y))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    ["floor", "ceil", "trunc", "round", "abs", "sign", "sqrt", "nan_to_num", "isnan", "isinf", "isfinite"],
)
def test_one_operand_at_all_edges(name: str, dtype: Any, way: Callable[..., Any]) -> None:
    x = edges(dtype)
    assert_same(way(getattr(qb, name))(qb.array(x)).numpy(), getattr(np, name)(x), (x,))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "digits", [1, 5, 20, 300, 307, 308, 320, 400, 10**6, -1, -3, -200, -308, -400, -(10**6)]
)
def test_round_to_any_number_of_digits(digits: int, way: Callable[..., Any]) -> None:
    # Python's is exact; NumPy's multiplies by a power of ten, which overflows.
    x = np.array([1.25, -55.5, 12345.678, 0.0, -0.0, 1e300, -1e300, 3e-310, INF, NAN])
    expected = np.array([round(v, digits) if np.isfinite(v) else v for v in x.tolist()])
    got = way(lambda v: qb.round(v, digits))(qb.array(x)).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-15, atol=5e-324)
    np.testing.assert_array_equal(np.signbit(got[:-1]), np.signbit(expected[:-1]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("digits", [2, 30, 38, 39, 60, 90, -2, -37, -40, -90])
def test_round_in_float32(digits: int, way: Callable[..., Any]) -> None:
    x = np.array([1.25, -55.5, 3e38, 1e-40, 0.0, -0.0, INF, NAN], np.float32)
    expected = np.array([round(v, digits) if np.isfinite(v) else v for v in x.tolist()], np.float32)
    got = way(lambda v: qb.round(v, digits))(qb.array(x)).numpy()
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=3e-7, atol=3e-45)


def test_the_derivative_of_round_is_0_where_it_does_nothing() -> None:
    assert qb.grad(lambda x: qb.round(x, 20))(1e300).item() == 0.0


# --- powers with few factors ------------------------------------------------------------------------------------------


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exponent", [-1, -1.0, 0, 0.0, -0.0, 1, 1.0, 2, 2.0])
def test_compiled_powers_that_are_one_operation_are_exact(exponent: float, dtype: Any) -> None:
    x = edges(dtype)
    expected = {-1: 1 / x, 0: np.ones_like(x), 1: x, 2: x * x}[int(exponent)]
    assert_same(qb.jit(lambda v: v**exponent)(qb.array(x)).numpy(), expected, (x,))
    assert_same(qb.jit(lambda v: v ** qb.full_like(v, exponent))(qb.array(x)).numpy(), expected, (x,))


@pytest.mark.cpu
def test_the_slope_of_a_reciprocal_power_at_zero_stays_the_convention() -> None:
    for x in (0.0, -0.0):
        assert qb.jit(qb.grad(lambda v: v**-1))(x).item() == 0.0
        assert qb.jit(qb.grad(lambda v: v**-1.0))(x).item() == 0.0


# --- interpolation ----------------------------------------------------------------------------------------------------

ABSCISSAE = [
    [0.0], [-INF], [0.0, 1.0], [-INF, 0.0], [0.0, INF], [1.0, 1.0], [0.0, 1.0, 3.0], [-INF, 0.0, INF], [0.0, 1.0, 1.0],
    [0.0, 0.0, 1.0], [1.0, 1.0, 1.0],
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("xp", ABSCISSAE)
def test_interpolation_between_any_values(xp: list[float], dtype: Any, way: Callable[..., Any]) -> None:
    x = np.array([-INF, -1.0, -0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, INF, NAN], dtype)
    a = np.array(xp, dtype)
    f = way(qb.interp)
    for values in itertools.product([0.0, 2.0, INF, -INF, NAN], repeat=len(xp)):
        b = np.array(values, dtype)
        expected = np.interp(x, a, b).astype(dtype)
        expected[-1] = NAN  # NumPy has no NaN at NaN where there is one point
        got = f(qb.array(x), qb.array(a), qb.array(b)).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=f"{xp} {values}")


@pytest.mark.parametrize("way", WAYS)
def test_interpolation_with_infinite_ends_and_periods(way: Callable[..., Any]) -> None:
    x, xp = np.array([-9.0, 0.0, 0.5, 4.0, 5.0, INF, NAN]), np.array([0.0, 1.0, 4.0])
    for values in itertools.product([2.0, INF, -INF], repeat=3):
        fp = np.array(values)
        for options in ({"left": -INF}, {"right": INF}, {"left": 3.0, "right": NAN}, {"period": 5.0}):
            got = way(lambda *a, o=options: qb.interp(*a, **o))(qb.array(x), qb.array(xp), qb.array(fp))
            expected = np.interp(x, xp, fp, **options)
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, err_msg=f"{values} {options}")


def test_slopes_of_an_interpolation_next_to_infinite_values() -> None:
    xp, fp = qb.array([0.0, 1.0, 3.0, 4.0]), qb.array([0.0, 2.0, INF, 3.0])
    x = qb.array([0.5, 1.0, 2.0, 3.5])
    slope = lambda t: qb.interp(t, xp, fp)
    assert qb.vmap(qb.grad(slope))(x).tolist() == [2.0, 0.0, INF, -INF]
    assert qb.jvp(lambda t: qb.interp(t, xp, fp), (x,), (qb.ones_like(x),))[1].tolist() == [
        2.0,
        0.0,
        INF,
        -INF,
    ]
    assert qb.grad(lambda v: qb.interp(1.0, xp, v))(fp).tolist() == [0.0, 1.0, 0.0, 0.0]


# --- results beyond the range of a dtype ------------------------------------------------------------------------------

BIG = np.array([3e38, -3e38, 1.0], np.float32)
BEYOND: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: x * x,
    "times a number": lambda x: x * 1e300,
    "and an integer": lambda x: x + 10**39,
    "number first": lambda x: 1e300 - x,
    "by zero": lambda x: x / 0,
    "remainder by zero": lambda x: x % 0,
    "quotient by zero": lambda x: x // 0,
    "power": lambda x: x**2.5,
    "power of a number": lambda x: 1e300**x,
    "huge power": lambda x: x**1e300,
    "where": lambda x: qb.where(x > 0, 1e300, x),
    "maximum": lambda x: qb.maximum(x, -1e300),
    "clip": lambda x: qb.clip(x, -1e300, 1e300),
    "compare": lambda x: x < 1e300,
    "pad": lambda x: qb.pad(x, 1, constant_values=1e300),
    "nan_to_num": lambda x: qb.nan_to_num(x * x, posinf=1e300),
    "interp": lambda x: qb.interp(x, qb.sort(x), x, left=1e300),
    "astype": lambda x: (qb.astype(x, qb.float64) * 1e200).astype(qb.float32),
    "full_like": lambda x: qb.full_like(x, 1e300),
    "round": lambda x: qb.round(x, 45),
    "exp": qb.exp,
    "log": qb.log,
    "sum": lambda x: qb.sum(x * 1.0 + 3e38),
    "std": qb.std,
    "norm": qb.norm,
    "prod": qb.prod,
    "cumsum": qb.cumsum,
    "cumprod": qb.cumprod,
    "matmul": lambda x: x @ x,
    "einsum": lambda x: qb.einsum("i,j->ij", x, x),
    "polyval": lambda x: qb.polyval(x, x),
    "mean of nothing": lambda x: qb.nanmean(x * NAN),
    "inverse of a singular matrix": lambda x: qb.linalg.inv(qb.outer(x, x) * 0.0),
    "gradient": qb.grad(lambda x: qb.sum(x * x * 1e38)),
    "loop": lambda x: qb.scan(lambda c, v: (c * v, c), qb.ones((), dtype=qb.float32), x)[1],
    "branch": lambda x: qb.cond(qb.sum(x) > 0, lambda v: v * 1e300, lambda v: v, x),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BEYOND)
def test_nothing_is_said_of_what_overflows_or_has_no_value(name: str, way: Callable[..., Any]) -> None:
    with np.errstate(all="warn"):  # as where nobody has said otherwise: a warning is an error here
        out = way(BEYOND[name])(qb.array(BIG))
    assert out.dtype in (qb.float32, qb.bool_)
    if name in ("product", "times a number", "by zero"):
        assert out.tolist()[0] == INF


@pytest.mark.parametrize("make", [
    lambda: qb.arange(0.0, 3e300, 1e300, dtype=qb.float32),
    lambda: qb.linspace(0.0, 1e300, 3, dtype=qb.float32),
    lambda: qb.full((3,), 1e300, dtype=qb.float32),
    lambda: qb.array([0.0, 1.0, 1e300], dtype=qb.float32),
    lambda: qb.asarray(np.array([0.0, 1.0, 1e300]), dtype=qb.float32),
])  # fmt: skip
def test_nothing_is_said_of_numbers_that_are_made_infinite(make: Callable[[], Any]) -> None:
    with np.errstate(all="warn"):
        out = make()
    assert out.dtype is qb.float32 and out.tolist()[-1] == INF
