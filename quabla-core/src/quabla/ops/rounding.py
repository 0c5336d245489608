"""Rounding to integers, remainders, and bounds."""

from __future__ import annotations

import builtins
import functools
import math
from typing import Any

import numpy as np

from quabla.errors import DtypeError
from quabla.ops.apply import agree, apply, binary, floating_operand, operand, promote, unary
from quabla.ops.compare import equal, isfinite, isinf, isnan, less, logical_and, not_equal
from quabla.ops.elementwise import div, elementwise, maximum, minimum, mul, neg, stop_gradient, sub, where
from quabla.ops.structure import zeros_like
from quabla.shapes import broadcast_shapes, whole

__all__ = [
    "ceil", "clip", "divmod", "floor", "floor_divide", "fmod", "mod", "nan_to_num", "remainder", "round", "trunc",
]  # fmt: skip

_EDGES = (("edges", ([0.5, 1.5, 2.5, -0.5, -0.0, -1.5, 1e30, np.inf, np.nan],)),)

floor_op = elementwise("floor", None, evaluate=np.floor, extra=_EDGES)
ceil_op = elementwise("ceil", None, evaluate=np.ceil, extra=_EDGES)
trunc_op = elementwise("trunc", None, evaluate=np.trunc, extra=_EDGES)
round_op = elementwise("round", None, evaluate=np.rint, extra=_EDGES)


def _opposed(r: Any, y: Any) -> Any:
    """Whether a remainder has not the sign of the divisor."""
    return logical_and(not_equal(less(r, 0.0), less(y, 0.0)), not_equal(r, 0.0))


def _mod_of_simpler(x: Any, y: Any) -> Any:
    """NumPy's steps: the remainder of the truncated quotient, moved to the side of the divisor; zeros get its sign."""
    r = fmod(x, y)
    moved = where(_opposed(r, y), r + y, r)
    return where(equal(r, 0.0), where(less(y, 0.0), -0.0, 0.0), moved)


_REMAINDERS = (
    ("signs", ([5.3, -5.3, 5.3, -5.3], [0.7, 0.7, -0.7, -0.7])),
    ("edges", ([1.0, -1.0, -0.0, 1.0, np.inf, 6.0, -6.0], [0.0, np.inf, 2.0, -np.inf, 2.0, -2.0, 2.0])),
)


def _one(x: Any, y: Any, out: Any) -> Any:
    return zeros_like(x) + 1.0  # not the number 1, which says that the op is linear


def _mod_by_divisor(x: Any, y: Any, out: Any) -> Any:
    # By an infinity of the other sign the quotient is -0, not a little less, and the result is y.
    return where(isinf(out), 1.0, neg(floor(div(x, y))))


mod_op = elementwise(
    "mod", _one, _mod_by_divisor, evaluate=np.mod, domain=(0.5, 3.0), smooth=False,
    decompose=_mod_of_simpler, extra=_REMAINDERS,
)  # fmt: skip
fmod_op = elementwise(
    "fmod", _one, lambda x, y, out: neg(trunc(div(x, y))), evaluate=np.fmod, domain=(0.5, 3.0), smooth=False,
    extra=_REMAINDERS,
)  # fmt: skip


def floor(x: Any) -> Any:
    """The largest integer <= `x`, elementwise, as a floating number. Its derivative is 0.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.floor(qb.array([1.5, -1.5])).tolist()
        [1.0, -2.0]
    """
    return unary(floor_op, x)


def ceil(x: Any) -> Any:
    """The smallest integer >= `x`, elementwise, as a floating number. Its derivative is 0.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.ceil(qb.array([1.5, -1.5])).tolist()
        [2.0, -1.0]
    """
    return unary(ceil_op, x)


def trunc(x: Any) -> Any:
    """`x` without its fraction, elementwise, as a floating number. Its derivative is 0.

    Shapes, dtypes and errors as for `exp`.

    Example:
        >>> import quabla as qb
        >>> qb.trunc(qb.array([1.5, -1.5])).tolist()
        [1.0, -1.0]
    """
    return unary(trunc_op, x)


def round(x: Any, decimals: int = 0) -> Any:
    """The integer nearest to `x`, elementwise, as a floating number; halves go to the even one. Its derivative is 0.

    Args:
        x: floating array or number.
        decimals: how many digits after the point to keep; negative ones are before it. Any number will do: what has
            fewer digits stays as it is.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        DtypeError: `x` is bool, or `decimals` is not an integer.

    Example:
        >>> import quabla as qb
        >>> qb.round(qb.array([0.5, 1.5, -2.6])).tolist(), qb.round(2.375, 2).item()
        ([0.0, 2.0, -3.0], 2.38)
    """
    try:
        digits = whole(decimals)
    except TypeError:
        raise DtypeError(f"round: decimals is one integer, got {decimals!r}") from None
    if digits == 0:
        return unary(round_op, x)
    x = floating_operand(x, "round")
    # A power of ten beyond the range of the dtype is applied in two parts.
    most = int(np.finfo(x.dtype.numpy).max).bit_length() * 3 // 10
    size = builtins.min(builtins.abs(digits), 2 * most)
    parts = [10.0**n for n in (builtins.min(size, most), builtins.max(size - most, 0)) if n]
    up, down = (mul, div) if digits > 0 else (div, mul)
    out = unary(round_op, functools.reduce(up, parts, x))
    out = functools.reduce(down, reversed(parts), out)
    # Where x times a power of ten overflows, x has no digits that far behind the point.
    return out if digits < 0 else where(isfinite(out), out, stop_gradient(x))


def mod(x: Any, y: Any) -> Any:
    """The remainder x - y * floor(x / y), elementwise with broadcasting: of the sign of `y`, as Python's `%`.

    NaN where `y` is 0. The derivative in `x` is 1 and that in `y` -floor(x / y), at the jumps too. `remainder` is the
    same function. Shapes, dtypes and errors as for `add`.

    Example:
        >>> import quabla as qb
        >>> qb.mod(qb.array([5.0, -5.0]), 3.0).tolist(), (qb.array([5.0]) % 3.0).tolist()
        ([2.0, 1.0], [2.0])
    """
    return binary(mod_op, x, y)


def remainder(x: Any, y: Any) -> Any:
    """The same as `mod(x, y)`.

    Shapes, dtypes and errors as for `mod`.

    Example:
        >>> import quabla as qb
        >>> qb.remainder(-5.0, 3.0).item()
        1.0
    """
    return apply(mod_op, (x, y), "remainder")


def fmod(x: Any, y: Any) -> Any:
    """The remainder x - y * trunc(x / y), elementwise with broadcasting: of the sign of `x`, as C's `fmod`, and exact.

    NaN where `y` is 0. The derivative in `x` is 1 and that in `y` -trunc(x / y), at the jumps too. Shapes, dtypes and
    errors as for `add`.

    Example:
        >>> import quabla as qb
        >>> qb.fmod(qb.array([5.0, -5.0]), 3.0).tolist()
        [2.0, -2.0]
    """
    return binary(fmod_op, x, y)


def floor_divide(x: Any, y: Any) -> Any:
    """The largest integer <= x / y, elementwise with broadcasting, as a floating number; the same as `x // y`.

    It agrees with `mod`: x is y * (x // y) + x % y up to rounding. Its derivative is 0. Shapes, dtypes and errors as
    for `add`.

    Example:
        >>> import quabla as qb
        >>> qb.floor_divide(qb.array([5.0, -5.0]), 3.0).tolist()
        [1.0, -2.0]
    """
    return _floor_divide(x, y, "floor_divide")


def _floor_divide(x: Any, y: Any, name: str) -> Any:
    x, y = (stop_gradient(floating_operand(v, name)) for v in promote((x, y), name))
    broadcast_shapes(name, x.shape, y.shape)
    none = equal(y, 0.0)
    divisor = where(none, 1.0, y)
    r = fmod(x, divisor)
    whole = round(div(sub(x, r), divisor))  # next to an integer already
    whole = where(_opposed(r, y), whole - 1.0, whole)
    quotient = div(x, y)
    # A quotient between 0 and 1 becomes a zero of its own sign: x - r has lost that of x.
    return where(none, quotient, where(equal(whole, 0.0), trunc(quotient), whole))


def divmod(x: Any, y: Any) -> tuple[Any, Any]:
    """The pair of `floor_divide(x, y)` and `mod(x, y)`.

    Shapes, dtypes and errors as for `mod`.

    Example:
        >>> import quabla as qb
        >>> [v.item() for v in divmod(qb.array(-5.0), 3.0)]
        [-2.0, 1.0]
    """
    return _floor_divide(x, y, "divmod"), mod(x, y)


def clip(x: Any, min: Any = None, max: Any = None) -> Any:
    """`x` moved into the interval from `min` to `max`, elementwise with broadcasting.

    Args:
        x: array or number.
        min: the lower bound, an array or a number; no bound if None.
        max: the upper bound; where the bounds cross, it wins.

    Returns:
        An array of the broadcast shape. Where an element lies on a bound, each of the two gets half of the derivative,
        as in `maximum` and `minimum`; outside, the bound gets all of it.

    Raises:
        ShapeError: the shapes do not broadcast.
        DtypeError: float32 beside float64, or bool operands.

    Example:
        >>> import quabla as qb
        >>> qb.clip(qb.array([-2.0, 0.5, 2.0]), -1.0, 1.0).tolist()
        [-1.0, 0.5, 1.0]
    """
    agree([v for v in (x, min, max) if v is not None], "clip")
    out = x if min is None else maximum(x, min)
    if max is not None:
        out = minimum(out, max)
    return operand(out, "clip")


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """`x` with NaN and infinities replaced, elementwise. Where one is replaced, the derivative is 0.

    Args:
        x: floating array or number.
        copy: of no effect, as arrays do not change; it stands where NumPy has it.
        nan: what stands for NaN.
        posinf: what stands for inf; the largest number of the dtype if None.
        neginf: what stands for -inf; the smallest number of the dtype if None.

    Returns:
        An array of the shape and dtype of `x`.

    Raises:
        DtypeError: `x` is bool.

    Example:
        >>> import quabla as qb
        >>> qb.nan_to_num(qb.array([1.0, float("nan"), float("inf")]), posinf=9.0).tolist()
        [1.0, 0.0, 9.0]
    """
    x = floating_operand(x, "nan_to_num")
    agree([v for v in (x, nan, posinf, neginf) if v is not None], "nan_to_num")
    largest = float(np.finfo(x.dtype.numpy).max)
    out = where(equal(x, math.inf), largest if posinf is None else posinf, x)
    out = where(equal(x, -math.inf), -largest if neginf is None else neginf, out)
    return where(isnan(x), nan, out)
