"""Relative accuracy to the ends of the numbers, subnormal results included, against mpmath."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import quabla as qb

M = Callable[[Any], Any]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def each(f: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda x: qb.vmap(qb.grad(f))(x)


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], M]] = {
    "exp": (qb.exp, mp.exp),
    "exp2": (qb.exp2, lambda x: mp.mpf(2) ** x),
    "expm1": (qb.expm1, mp.expm1),
    "log": (qb.log, mp.log),
    "log2": (qb.log2, lambda x: mp.log(x, 2)),
    "log10": (qb.log10, mp.log10),
    "log1p": (qb.log1p, mp.log1p),
    "sinh": (qb.sinh, mp.sinh),
    "cosh": (qb.cosh, mp.cosh),
    "tanh": (qb.tanh, mp.tanh),
    "arcsinh": (qb.arcsinh, mp.asinh),
    "arctan": (qb.arctan, mp.atan),
    "erf": (qb.erf, mp.erf),
    "erfc": (qb.erfc, lambda x: mp.erfc(min(x, 200))),
    "cbrt": (qb.cbrt, lambda x: mp.sign(x) * mp.cbrt(abs(x))),
    "sigmoid": (qb.sigmoid, sigmoid),
    "softplus": (qb.softplus, lambda x: mp.log1p(mp.exp(-abs(x))) + max(x, 0)),
    "silu": (qb.silu, lambda x: x * sigmoid(x)),
    "slope of exp2": (each(qb.exp2), lambda x: mp.log(2) * mp.mpf(2) ** x),
    "slope of expm1": (each(qb.expm1), mp.exp),
    "slope of tanh": (each(qb.tanh), lambda x: mp.sech(x) ** 2),
    "slope of sigmoid": (each(qb.sigmoid), lambda x: sigmoid(x) * sigmoid(-x)),
    "slope of softplus": (each(qb.softplus), sigmoid),
    "slope of silu": (each(qb.silu), lambda x: sigmoid(x) + x * sigmoid(x) * sigmoid(-x)),
    "slope of arctan": (each(qb.arctan), lambda x: 1 / (1 + x * x)),
    "slope of arcsinh": (each(qb.arcsinh), lambda x: 1 / mp.sqrt(1 + x * x)),
    "slope of log1p": (each(qb.log1p), lambda x: 1 / (1 + x)),
    "slope of log2": (each(qb.log2), lambda x: 1 / (x * mp.log(2))),
}


def points(dtype: Any) -> np.ndarray:
    """Numbers of all magnitudes, and those where exponentials are about to vanish, are subnormal or overflow."""
    rng = np.random.default_rng(7)
    limits = np.finfo(dtype)
    low, high = float(np.log(float(limits.smallest_subnormal))), float(np.log(float(limits.max)))
    sized = np.exp(rng.uniform(low, high, 40))
    edge = 40 if dtype is np.float64 else 20
    parts = [
        sized, -sized, rng.uniform(low, high, 40), rng.uniform(low, low + edge, 60), rng.uniform(-1.0, 1.0, 30),
        rng.uniform(low, low + edge, 30) / np.log(2.0), rng.uniform(-low - edge, -low, 30),
        -rng.uniform(low, low + edge, 30) / 2,
        rng.uniform(24.0, 27.5, 20) if dtype is np.float64 else rng.uniform(8.5, 10.5, 20),
    ]  # fmt: skip
    x = np.concatenate(parts).astype(dtype)
    # Near its zero a sum of two terms that cancel has no relative accuracy.
    return x[(x < -1.4) | (x > -1.2)]


def units_off(got: np.ndarray, x: np.ndarray, true: M) -> tuple[float, float]:
    """The largest error in units in the last place, of normal results and of subnormal ones."""
    limits = np.finfo(got.dtype)
    worst = [0.0, 0.0]
    with mp.workprec(200):
        for value, at in zip(got.tolist(), x.tolist(), strict=True):
            try:
                expected = true(mp.mpf(at))
            except (ValueError, ZeroDivisionError):
                continue
            if isinstance(expected, mp.mpc) or not mp.isfinite(expected):
                continue
            if abs(expected) > float(limits.max):
                assert np.isinf(value), at
                continue
            normal = abs(expected) >= float(limits.tiny)
            exponent = mp.frexp(abs(expected))[1] - limits.nmant - 1 if normal else None
            unit = mp.mpf(2) ** exponent if normal else mp.mpf(float(limits.smallest_subnormal))
            off = float(abs(mp.mpf(value) - expected) / unit)
            kind = 0 if normal else 1
            worst[kind] = max(worst[kind], off if off == off else np.inf)
    return worst[0], worst[1]


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=pytest.mark.cpu)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_few_units_in_the_last_place_everywhere(name: str, dtype: Any, device: str) -> None:
    f, true = FUNCTIONS[name]
    x = points(dtype)
    got = qb.jit(f, device=device)(qb.array(x)).numpy()
    normal, subnormal = units_off(got, x, true)
    assert normal <= 4.0 and subnormal <= 2.0


@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=pytest.mark.cpu)])
@pytest.mark.parametrize("approximate", [True, False])
def test_gelu_is_as_exact_as_its_exponent(approximate: bool, device: str) -> None:
    # exp(-t) is off by as many units as the rounding of t is: about t of them.
    def exponent(x: Any) -> Any:
        return mp.sqrt(8 / mp.pi) * (x + mp.mpf(0.044715) * x**3) if approximate else None

    def true(x: Any) -> Any:
        return x * sigmoid(exponent(x)) if approximate else x * mp.erfc(-x / mp.sqrt(2)) / 2

    x = np.concatenate([np.linspace(-37.0, -1.0, 60), np.linspace(0.0, 70.0, 20), [1e200, 1e308]])
    x = x[x > -20.0] if approximate else x
    got = qb.jit(lambda v: qb.gelu(v, approximate=approximate), device=device)(qb.array(x)).numpy()
    for value, at in zip(got.tolist(), x.tolist(), strict=True):
        with mp.workprec(200):
            expected = true(mp.mpf(at))
            size = min(float(abs(exponent(mp.mpf(at)))) if approximate else at * at / 2, 750.0)
            assert abs(value - expected) <= abs(expected) * (3 + 2 * size) * 2.0**-52, at


@pytest.mark.parametrize("f", [qb.silu, qb.gelu, lambda x: qb.gelu(x, approximate=False)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_gates_far_out_have_their_limits(f: Any, dtype: Any) -> None:
    large = float(np.finfo(dtype).max)
    x = qb.array(np.array([-np.inf, -large, -1e19, -2e3, 2e3, 1e19, large, np.inf, np.nan], dtype))
    total = lambda v: qb.sum(f(v))
    np.testing.assert_array_equal(f(x).numpy(), np.where(x.numpy() < 0, 0.0, x.numpy()))
    slope = [0.0] * 4 + [1.0] * 4 + [np.nan]
    np.testing.assert_array_equal(qb.grad(total)(x).numpy(), slope)
    np.testing.assert_array_equal(qb.jvp(f, (x,), (qb.ones_like(x),))[1].numpy(), slope)
    curvature = [0.0] * 8 + [np.nan]
    np.testing.assert_array_equal(qb.grad(lambda v: qb.sum(qb.grad(total)(v)))(x).numpy(), curvature)
