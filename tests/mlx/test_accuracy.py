"""What MLX lacks or gets wrong is right to a few units in the last place, against mpmath with 40 digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import quabla as qb

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.mlx

# Per function: what it is, where, and the error that is allowed, in eps.
EXACT: dict[str, tuple[Callable[[Any], Any], tuple[float, float]]] = {
    "exp": (mp.exp, (-740.0, 705.0)),
    "exp2": (lambda x: mp.power(2, x), (-1000.0, 1000.0)),
    "sin": (mp.sin, (-60.0, 60.0)),
    "cos": (mp.cos, (-60.0, 60.0)),
    "sigmoid": (lambda x: 1 / (1 + mp.exp(-x)), (-60.0, 60.0)),
    "softplus": (lambda x: mp.log1p(mp.exp(x)), (-60.0, 60.0)),
    "cbrt": (lambda x: mp.sign(x) * mp.cbrt(abs(x)), (-1e3, 1e3)),
    "erf": (mp.erf, (-6.0, 6.0)),
    "erfc": (mp.erfc, (-6.0, 26.0)),
    "tanh": (mp.tanh, (-20.0, 20.0)),
    "log1p": (mp.log1p, (-0.9, 9.0)),
    "expm1": (mp.expm1, (-9.0, 9.0)),
}


def on_mlx(name: str, *xs: np.ndarray) -> np.ndarray:
    function = getattr(qb, name)
    out: np.ndarray = qb.jit(lambda *v: function(*v), device="mlx")(*map(qb.array, xs)).numpy()
    return out


def errors(name: str, x: np.ndarray) -> np.ndarray:
    """Errors in eps, relative to each value, or to the smallest normal number."""
    exact, _ = EXACT[name]
    info = np.finfo(x.dtype)
    found = []
    with mp.workdps(40):
        for point, got in zip(x, on_mlx(name, x), strict=True):
            value = exact(mp.mpf(float(point)))
            unit = max(abs(value), mp.mpf(float(info.tiny))) * mp.mpf(float(info.eps))
            found.append(float(abs(mp.mpf(float(got)) - value) / unit))
    return np.array(found)


@pytest.mark.parametrize("name", EXACT)
def test_float64_is_right_to_a_few_units(name: str) -> None:
    low, high = EXACT[name][1]
    x = np.random.default_rng(0).uniform(low, high, 600)
    if name in ("sin", "cos"):  # and next to the zeros
        x = np.concatenate([x, np.arange(-20, 21) * (math.pi / 2)])
    assert errors(name, x).max() < 4.5


@pytest.mark.parametrize("name", ["sin", "cos", "softplus", "cbrt", "erf", "erfc", "tanh", "log1p", "expm1"])
def test_float32_is_right_to_a_few_units(name: str) -> None:
    low, high = EXACT[name][1]
    x = np.random.default_rng(0).uniform(max(low, -80.0), min(high, 9.0), 600).astype(np.float32)
    assert errors(name, x).max() < 4.5


def test_exponentials_in_float32_are_those_of_mlx() -> None:
    # Its error grows with the argument; that is documented, and a few units where networks are.
    x = np.random.default_rng(0).uniform(-4.0, 4.0, 600).astype(np.float32)
    assert errors("exp", x).max() < 4.5 and errors("sigmoid", x).max() < 4.5


def test_too_small_for_a_normal_number_is_rounded_once() -> None:
    x = np.array([-709.0, -720.0, -740.0, -746.0])
    with np.errstate(under="ignore"):
        assert on_mlx("exp", x).tolist() == np.exp(x).tolist()
    far = np.array([26.6, 27.0, 27.2, 28.0])
    assert on_mlx("erfc", far).tolist() == [math.erfc(v) for v in far]


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -1e-310, 1e300, 800.0, -800.0, 0.5, -0.5])


@pytest.mark.parametrize("name", ["exp", "cbrt", "sign", "trunc", "floor", "ceil", "log1p", "expm1", "abs"])
def test_special_values_are_those_of_numpy(name: str) -> None:
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(SPECIAL)
    got = on_mlx(name, SPECIAL)
    np.testing.assert_allclose(got, expected, rtol=1e-15)
    numbers = ~np.isnan(expected)
    assert (np.signbit(got) == np.signbit(expected))[numbers].all()


@pytest.mark.parametrize("name", ["fmod", "mod", "logaddexp", "arctan2", "power", "maximum", "minimum"])
def test_pairs_of_special_values_are_those_of_numpy(name: str) -> None:
    some = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -1.5, 2.0, -3.0, 0.7, 1e300])
    x, y = (g.ravel() for g in np.meshgrid(some, some))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
    got = on_mlx(name, x, y)
    np.testing.assert_allclose(got, expected, rtol=1e-14)
    if name in ("fmod", "mod", "arctan2"):
        numbers = ~np.isnan(expected)
        assert (np.signbit(got) == np.signbit(expected))[numbers].all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_sums_keep_their_digits(dtype: str) -> None:
    # A running float32 sum of ones stops at 2**24.
    ones = qb.ones(2**24 + 4096, dtype=dtype)
    assert qb.jit(qb.sum, device="mlx")(ones).item() == 2**24 + 4096
    x = np.random.default_rng(0).uniform(size=(100_003, 3)).astype(dtype)
    exact = x.astype(np.longdouble).sum(0)
    got = qb.jit(lambda v: qb.sum(v, axis=0), device="mlx")(qb.array(x)).numpy()
    assert np.abs(got / exact - 1.0).max() < (1e-7 if dtype == "float32" else 1e-12)
    assert abs(qb.jit(qb.sum, device="mlx")(qb.array(x)).item() / x.astype(np.float64).sum() - 1.0) < 1e-6
