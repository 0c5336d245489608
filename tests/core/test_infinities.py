"""Derivatives at infinity: the limit where there is one, else NaN, and never another finite number.

The limits are those of derivatives that mpmath takes at ever larger points. A function that is not defined at an
infinity (its value there is NaN) has no derivative there either, and nothing is asked of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import quabla as qb
from quabla.ir.op import OPS

F = Callable[..., Any]
INF, NAN = math.inf, math.nan


def tends_to(values: Sequence[Any]) -> float:
    """The limit of a sequence of three; NaN where it shows none."""
    if any(isinstance(v, mp.mpc) for v in values):
        return NAN
    a, b, c = values
    if abs(c) < 1e-5 and abs(c) <= abs(b) + mp.mpf(10) ** -30:
        return 0.0
    if abs(c - b) < 1e-4 * abs(c):
        return float(c)
    grows = abs(c) > abs(b) > abs(a) and abs(c) > 1e5
    return INF * int(mp.sign(c)) if grows else NAN


def limit(f: F, at: Sequence[float], order: Sequence[int]) -> float:
    """The limit of a partial derivative of `f` as its infinite arguments grow, at the same rate or at others."""
    infinite = [i for i, v in enumerate(at) if math.isinf(v)]
    rates = [[1.0] * len(at)] + [[0.5 if i == j else 1.0 for i in range(len(at))] for j in infinite]
    found = set()
    with mp.workdps(80):
        for rate in rates if len(infinite) > 1 else rates[:1]:
            values = []
            for k in (6, 12, 24):
                far = [mp.mpf(10) ** (k * r) + mp.mpf("0.3") for r in rate]
                point = [mp.sign(v) * x if math.isinf(v) else mp.mpf(v) for v, x in zip(at, far, strict=True)]
                values.append(mp.diff(f, tuple(point), tuple(order)))
            found.add(round(tends_to(values), 6))
    return found.pop() if len(found) == 1 else NAN


def same(got: float, expected: float) -> bool:
    return got == pytest.approx(expected, abs=1e-5, nan_ok=True)


# --- functions of one number ------------------------------------------------------------------------------------------

UNARY: dict[str, F] = {
    "abs": abs, "arccos": mp.acos, "arccosh": mp.acosh, "arcsin": mp.asin, "arcsinh": mp.asinh, "arctan": mp.atan,
    "arctanh": mp.atanh, "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)), "ceil": mp.ceil, "cos": mp.cos,
    "cosh": mp.cosh,
    "erf": mp.erf, "erfc": mp.erfc, "exp": mp.exp, "exp2": lambda x: mp.mpf(2) ** x, "expm1": mp.expm1,
    "floor": mp.floor, "gelu": lambda x: x * mp.ncdf(x), "log": mp.log, "log10": mp.log10,
    "log1p": mp.log1p, "log2": lambda x: mp.log(x, 2), "neg": lambda x: -x, "reciprocal": lambda x: 1 / x,
    "relu": lambda x: max(x, mp.mpf(0)), "round": mp.nint, "sigmoid": lambda x: 1 / (1 + mp.exp(-x)), "sign": mp.sign,
    "silu": lambda x: x / (1 + mp.exp(-x)), "sin": mp.sin, "sinc": mp.sincpi, "sinh": mp.sinh,
    "softplus": lambda x: mp.log1p(mp.exp(-abs(x))) + max(x, mp.mpf(0)), "sqrt": mp.sqrt, "square": lambda x: x * x,
    "tan": mp.tan, "tanh": mp.tanh, "trunc": lambda x: mp.sign(x) * mp.floor(abs(x)),
}  # fmt: skip


def test_no_function_of_one_number_is_left_out() -> None:
    public = {
        name
        for name, op in OPS.items()
        if op.family == "elementwise" and hasattr(qb, name) and name not in ("astype", "stop_gradient")
    }
    assert public <= set(UNARY) | set(BINARY) | {"where"}


@pytest.mark.parametrize("at", [INF, -INF])
@pytest.mark.parametrize("name", list(UNARY))
def test_derivatives_of_functions_of_one_number(name: str, at: float) -> None:
    q = getattr(qb, name)
    if math.isnan(q(qb.array(at)).item()):
        pytest.skip("not defined there")
    v = qb.array([at, 1.0])
    total = lambda f: lambda x: qb.sum(f(x))
    twice = total(qb.grad(total(q)))
    first = [qb.grad(q)(at), qb.jvp(q, (at,), (1.0,))[1], qb.jit(qb.grad(total(q)))(v)[0]]
    second = [qb.grad(qb.grad(q))(at), qb.grad(twice)(v)[0], qb.jvp(qb.grad(q), (at,), (1.0,))[1]]
    second.append(qb.jvp(lambda x: qb.jvp(q, (x,), (1.0,))[1], (at,), (1.0,))[1])
    for order, found in ((1, first), (2, second)):
        expected = limit(UNARY[name], [at], [order])
        for g in found:
            assert same(g.item(), expected), (order, g)


# --- functions of two -------------------------------------------------------------------------------------------------

BINARY: dict[str, F] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
    "hypot": mp.hypot, "arctan2": mp.atan2, "logaddexp": lambda x, y: max(x, y) + mp.log1p(mp.exp(-abs(x - y))),
    "maximum": max, "minimum": min, "power": mp.power, "mod": lambda x, y: x - y * mp.floor(x / y),
    "fmod": lambda x, y: x - y * mp.sign(x / y) * mp.floor(abs(x / y)),
}  # fmt: skip
POINTS = [p for p in itertools.product((INF, -INF, 2.0, 0.5, -1.5), repeat=2) if any(map(math.isinf, p))]


def by_convention(name: str, x: float, y: float) -> bool:
    """Whether `docs/derivatives.md` says what there is no limit for."""
    if name == "power":
        return x <= 0.0  # powers of negative numbers
    return name in ("maximum", "minimum", "logaddexp") and x == y


@pytest.mark.parametrize(("x", "y"), POINTS)
@pytest.mark.parametrize("name", list(BINARY))
def test_derivatives_of_functions_of_two_numbers(name: str, x: float, y: float) -> None:
    q = getattr(qb, name)
    v, w = qb.array(x), qb.array(y)
    if math.isnan(q(v, w).item()) or by_convention(name, x, y):
        pytest.skip("not defined there, or a convention")
    tangents = (qb.jvp(q, (v, w), t)[1] for t in ((1.0, 0.0), (0.0, 1.0)))
    one = name == "power" or (math.isinf(x) and math.isinf(y))
    for g, t, order in zip(qb.grad(q, argnums=(0, 1))(v, w), tangents, ((1, 0), (0, 1)), strict=True):
        expected = limit(BINARY[name], (x, y), order)
        assert same(g.item(), expected) or (one and math.isnan(g.item())), order
        # A direction in which an operand stands still multiplies its slope by 0.
        assert same(t.item(), expected) or math.isnan(t.item()), order
    for i, row in enumerate(qb.hessian(q, argnums=(0, 1))(v, w)):
        for j, h in enumerate(row):
            order = (int(i == 0) + int(j == 0), int(i == 1) + int(j == 1))
            assert same(h.item(), limit(BINARY[name], (x, y), order)) or math.isnan(h.item()), order


# --- functions of many ------------------------------------------------------------------------------------------------


def log_of_sum(*x: Any) -> Any:
    top = max(x)
    return top + mp.log(mp.fsum(mp.exp(v - top) for v in x))


def share(*x: Any) -> Any:
    return mp.exp(x[1] - log_of_sum(*x))


MANY: dict[str, tuple[F, F]] = {
    "sum": (qb.sum, lambda *x: mp.fsum(x)),
    "mean": (qb.mean, lambda *x: mp.fsum(x) / 3),
    "prod": (qb.prod, lambda *x: mp.fprod(x)),
    "max": (qb.max, lambda *x: max(x)),
    "min": (qb.min, lambda *x: min(x)),
    "norm": (qb.norm, lambda *x: mp.sqrt(mp.fsum(v * v for v in x))),
    "var": (qb.var, lambda *x: mp.fsum((v - mp.fsum(x) / 3) ** 2 for v in x) / 3),
    "logsumexp": (qb.logsumexp, log_of_sum),
    "softmax": (lambda x: qb.softmax(x)[1], share),
    "log_softmax": (lambda x: qb.log_softmax(x)[1], lambda *x: x[1] - log_of_sum(*x)),
}
SHARED = ("max", "min", "logsumexp", "softmax", "log_softmax")  # by convention, among equal infinities
EXACT = ("sum", "mean", "max", "min", "logsumexp", "softmax", "log_softmax")


@pytest.mark.parametrize(
    "at", [[INF, 2.0, 3.0], [2.0, INF, -1.0], [-INF, 2.0, 3.0], [2.0, -INF, 1.0], [INF, 0.5, -INF], [INF, INF, 0.5]],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", list(MANY))
def test_derivatives_of_functions_of_many_numbers(name: str, at: list[float]) -> None:
    q, f = MANY[name]
    v = qb.array(at)
    if math.isnan(q(v).item()) or (name in SHARED and at.count(INF) > 1):
        pytest.skip("not defined there, or a convention")
    units = np.eye(3, dtype=int)
    tangents = [qb.jvp(q, (v,), (qb.array(t.astype(float)),))[1].item() for t in units]
    for g, t, order in zip(np.asarray(qb.grad(q)(v)), tangents, units, strict=True):
        expected = limit(f, at, order)
        assert same(g, expected) or (name not in EXACT and math.isnan(g)), order
        assert same(t, expected) or math.isnan(t), order
    for row, e in zip(np.asarray(qb.hessian(q)(v)), units, strict=True):
        for h, d in zip(row, units, strict=True):
            assert same(h, limit(f, at, e + d)) or math.isnan(h), e + d


def test_equal_infinities_share() -> None:
    """There is no limit; the derivative of `logsumexp` is `softmax`, which shares among them, as `max` does."""
    v = qb.array([INF, 1.0, INF])
    for f in (qb.logsumexp, qb.max):
        assert qb.grad(f)(v).tolist() == [0.5, 0.0, 0.5]
    assert qb.softmax(v).tolist() == [0.5, 0.0, 0.5]
    assert [g.item() for g in qb.grad(qb.logaddexp, argnums=(0, 1))(INF, INF)] == [0.5, 0.5]
    rows = qb.array([[INF, 1.0], [0.0, 0.0], [-INF, -INF]])
    each = qb.jit(qb.grad(lambda x: qb.sum(qb.logsumexp(x, axis=1))))(rows)
    assert each.tolist() == [[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize("name", list(MANY))
def test_derivatives_of_float32_are_float32(name: str) -> None:
    q, _ = MANY[name]
    v = np.array([0.5, 2.0, -1.0])
    wide = qb.grad(q)(qb.array(v))
    for device in qb.devices():
        g = qb.jit(qb.grad(q), device=device)(qb.array(v.astype(np.float32)))
        assert g.dtype is qb.float32
        np.testing.assert_allclose(g.numpy(), wide.numpy(), rtol=1e-5, atol=1e-6)
