"""The error function and what is made of it, activations, and sin(x) / x."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quabla.arrays.tracer import bind
from quabla.dtypes import float64
from quabla.ir.op import Op, Sample
from quabla.ops.apply import floating_operand, promote, unary
from quabla.ops.compare import greater, less
from quabla.ops.elementwise import (
    abs,
    add,
    at_ends,
    cos,
    elementwise,
    exp,
    maximum,
    mul,
    neg,
    relu,
    sigmoid,
    sin,
    where,
)
from quabla.ops.rounding import floor
from quabla.ops.structure import cast

__all__ = ["erf", "erfc", "gelu", "silu", "sinc"]

_ROOT = 2.0 / math.sqrt(math.pi)


def _by_element(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """A function of Python's `math`, which has these where NumPy does not, for arrays."""
    each = np.vectorize(function, otypes=[np.float64])
    return lambda x: each(x).astype(x.dtype)


_FAR = (("far", ([-30.0, -6.0, 1e-20, -0.0, 0.5, 6.0, 27.0, np.inf, -np.inf, np.nan],)),)
erf_op = elementwise(
    "erf",
    lambda x, out: at_ends(x, lambda v: _ROOT * exp(neg(v * v))),
    evaluate=_by_element(math.erf),
    extra=_FAR,
)
erfc_op = elementwise(
    "erfc",
    lambda x, out: at_ends(x, lambda v: -_ROOT * exp(neg(v * v))),
    evaluate=_by_element(math.erfc),
    extra=_FAR,
)


# --- the derivatives of sin(z) / z ------------------------------------------------------------------------------------
#
# f(z) = sin(z) / z satisfies z f(z) = sin(z), so z f^(k) + k f^(k-1) is the k-th derivative of the sine. For small z
# that recurrence cancels, and the power series is used: f^(k)(z) is the sum over 2n >= k of
# (-1)^n z^(2n - k) / ((2n + 1) (2n - k)!).

_TERMS = 15


def _near(order: int) -> float:
    """Below this |z| the series serves, which in its turn loses digits where it alternates; measured in float32."""
    if order == 0:
        return 1.5  # a quotient loses none
    return 2.5 if order <= 4 else 3.0


def _quotient(x: Any, order: int, lib: Any) -> Any:
    """The derivative of order `order` of sin(z) / z at z = pi x, with the functions of `lib`: NumPy or this package."""
    z = math.pi * x
    small = lib.abs(z) < _near(order)
    inside = lib.where(small, z, 0.0)
    square = inside * inside
    first = (order + 1) // 2
    series = 0.0 * square
    for n in range(first + _TERMS - 1, first - 1, -1):
        series = series * square + (-1.0) ** n / ((2 * n + 1) * math.factorial(2 * n - order))
    if order % 2:
        series = series * inside
    outside = lib.where(small, 1.0, z)
    # Whole half turns are taken off x, which is exact: the rounding of pi x would count near the zeros of the sine.
    turns = lib.floor(x + 0.5)
    rest = math.pi * (x - turns)
    sign = 1.0 - 2.0 * (turns - 2.0 * lib.floor(0.5 * turns))
    cycle = (sign * lib.sin(rest), sign * lib.cos(rest))
    value = cycle[0] / outside
    for k in range(1, order + 1):
        derived = cycle[k % 2] if k % 4 < 2 else -cycle[k % 2]
        value = (derived - k * value) / outside
    return lib.where(small, series, value)


class _Ours:
    """The functions of this package under NumPy's names."""

    abs, where, floor = staticmethod(abs), staticmethod(where), staticmethod(floor)
    sin, cos = staticmethod(sin), staticmethod(cos)


def _sinc_numpy(x: np.ndarray, *, order: int) -> np.ndarray:
    wide = x.astype(np.float64)
    return np.asarray(math.pi**order * _quotient(wide, order, np), x.dtype)


def _sinc_of_simpler(x: Any, *, order: int) -> Any:
    wide = cast(x, float64)  # pi * x in float32 would be wrong by much, seen from the zeros of the sine
    return cast(math.pi**order * _quotient(wide, order, _Ours), x.dtype)


def _sinc_samples() -> Iterator[Sample]:
    for order in (0, 1, 2, 5):
        yield Sample(f"order{order}", lambda rng: (rng.uniform(-3.0, 3.0, (3, 4)),), {"order": order})
    yield Sample("zero", lambda rng: (np.array([0.0, -0.0, 1e-9, 0.25]),), {"order": 0}, smooth=False)


sinc_op: Op = elementwise(
    "sinc",
    lambda x, out, *, order: bind(sinc_op, (x,), {"order": order + 1}),
    evaluate=_sinc_numpy,
    decompose=_sinc_of_simpler,
    samples=_sinc_samples,
)


# --- x times sigmoid(x) -----------------------------------------------------------------------------------------------
#
# Where sigmoid(x) is subnormal it has lost digits that the product should have. Below `end` it is exp(x), taken `shift`
# further up, where it has all of them. Beyond `_FAR_OUT` it is 0 or 1, and x may be infinite.

_FAR_OUT = 1e4


def _shift(x: Any) -> tuple[float, float]:
    """`end` and `shift` for the dtype of `x`."""
    return (-60.0, 32.0) if x.dtype.itemsize == 4 else (-600.0, 128.0)


def _silu_numpy(x: np.ndarray) -> np.ndarray:
    end, shift = _shift(x)
    low = x < end
    moved = np.where(low, x + shift, x)
    e = np.exp(-np.abs(moved))
    gate = np.where(moved >= 0, 1.0, e) / (1.0 + e)
    return np.asarray(np.where(low, math.exp(-shift) * np.maximum(x, -_FAR_OUT), x) * gate, x.dtype)


def _silu_of_simpler(x: Any) -> Any:
    end, shift = _shift(x)
    low = less(x, end)
    factor = where(low, math.exp(-shift) * maximum(x, -_FAR_OUT), x)
    return mul(factor, sigmoid(where(low, x + shift, x)))


def _silu_slope(x: Any, out: Any) -> Any:
    # sigmoid(x) (1 + x sigmoid(-x))
    end, shift = _shift(x)
    low = less(x, end)
    moved = where(low, x + shift, x)
    rest = 1.0 + mul(where(greater(abs(x), _FAR_OUT), 0.0, x), sigmoid(neg(moved)))
    return mul(sigmoid(moved), where(low, math.exp(-shift) * rest, rest))


silu_op: Op = elementwise(
    "silu",
    _silu_slope,
    evaluate=_silu_numpy,
    decompose=_silu_of_simpler,
    extra=(("far", ([-np.inf, -740.0, -650.0, -4.0, -0.0, 800.0, np.inf, np.nan],)),),
)


# --- what users call --------------------------------------------------------------------------------------------------


def erf(x: Any) -> Any:
    """The error function of `x`, elementwise, for a floating `x` of any shape.

    erf(x) = 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x (NIST Digital Library, 7.2.1).

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> f"{qb.erf(1.0).item():.6f}", qb.erf(float("inf")).item()
        ('0.842701', 1.0)
    """
    return unary(erf_op, x)


def erfc(x: Any) -> Any:
    """1 - erf(x), elementwise, to full relative accuracy for large `x`.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> f"{qb.erfc(10.0).item():.6e}"
        '2.088488e-45'
    """
    return unary(erfc_op, x)


def sinc(x: Any) -> Any:
    """sin(pi x) / (pi x), elementwise, and 1 at 0; all its derivatives are right at and near 0.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> curvature = qb.grad(qb.grad(qb.sinc))(0.0)
        >>> qb.sinc(0.0).item(), f"{curvature.item():.6f}"
        (1.0, '-3.289868')
    """
    return bind(sinc_op, (promote((x,), "sinc")[0],), {"order": 0})


def _gelu(x: Any) -> Any:
    return mul(mul(0.5, x), erfc(mul(-math.sqrt(0.5), x)))


def _gelu_by_tanh(x: Any) -> Any:
    # (1 + tanh z) / 2 is sigmoid(2 z), which loses no digits where x is negative.
    return mul(x, sigmoid(mul(math.sqrt(8.0 / math.pi), add(x, mul(0.044715, x**3)))))


def silu(x: Any) -> Any:
    """x * sigmoid(x), elementwise, for a floating `x` of any shape; also known as swish.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.silu(qb.array([0.0, 1000.0])).tolist()
        [0.0, 1000.0]
    """
    return unary(silu_op, x)


def gelu(x: Any, approximate: bool = True) -> Any:
    """x times the normal distribution function of x, elementwise, for a floating `x` of any shape.

    Args:
        x: floating array or number.
        approximate: whether to use 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) in its place, as JAX does unless
            told otherwise; it is at most 5e-4 off.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        DtypeError: a bool array, or something that is no array, such as a list.

    Source: D. Hendrycks and K. Gimpel, "Gaussian Error Linear Units", 2016.

    Example:
        >>> import quabla as qb
        >>> f"{qb.gelu(1.0).item():.6f}", f"{qb.gelu(1.0, approximate=False).item():.6f}"
        ('0.841192', '0.841345')
    """
    x = floating_operand(x, "gelu")
    # Further out the result is 0 or x. There a factor that vanishes would meet one that grows, and give NaN: in the
    # function at -inf, and in derivatives.
    far = greater(abs(x), 64.0)
    near = where(far, 0.0, x)
    return where(far, relu(x), _gelu_by_tanh(near) if approximate else _gelu(near))
