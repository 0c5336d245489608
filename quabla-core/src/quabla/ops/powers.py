"""Powers: `integer_power` by repeated multiplication, and `power` with its conventions at zero and negative bases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from quabla.arrays.tensor import Tensor
from quabla.arrays.tracer import TraceTensor, bind, full_value
from quabla.arrays.view import TensorView
from quabla.dtypes import bool_
from quabla.errors import DtypeError
from quabla.ir.op import Sample
from quabla.ops import roots as roots  # the pullbacks of sqrt and abs
from quabla.ops import tangents as tangents  # and their tangents
from quabla.ops.apply import binary, floating_operand, promote
from quabla.ops.compare import equal, greater, isnan, less, logical_and, logical_or
from quabla.ops.elementwise import elementwise, log, sqrt, stop_gradient, where
from quabla.ops.limits import square_of_root
from quabla.ops.structure import broadcast, zeros_like
from quabla.shapes import broadcast_shapes

__all__ = ["integer_power", "power"]


def _integer_power_numpy(x: np.ndarray, *, exponent: int) -> np.ndarray:
    """x**exponent by repeated squaring: the order of products that backends follow too."""
    result = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return np.ones_like(x) if result is None else np.asarray(result)


def _integer_power_slope(x: Any, out: Any, *, exponent: int) -> Any:
    return (
        float(exponent) * integer_power(x, exponent - 1) if exponent > 1 else zeros_like(x) + float(exponent)
    )


def _integer_power_samples() -> Iterator[Sample]:
    for exponent in (0, 1, 2, 3, 7):
        yield Sample(f"exponent{exponent}", lambda rng: (rng.normal(size=(3, 4)),), {"exponent": exponent})


integer_power_op = elementwise(
    "integer_power", _integer_power_slope, evaluate=_integer_power_numpy, samples=_integer_power_samples
)


def integer_power(x: Any, exponent: int) -> Any:
    """x**exponent for a Python integer exponent >= 0."""
    if type(x) is TraceTensor:
        if exponent == 1:
            return x
        if exponent and exponent % 2 == 0:
            square = square_of_root(x)
            if square is not None:
                return integer_power(square, exponent // 2)
    return bind(integer_power_op, (x,), {"exponent": exponent})


def _power_base(x: Any, y: Any, out: Any) -> Any:
    # y * x**(y - 1); zero where x == 0 and y < 1, the convention that agrees with sqrt. The singular base is masked
    # inside as well, so that no further derivative meets 0 * inf.
    singular = logical_and(equal(x, 0.0), less(y, 1.0))
    return where(singular, 0.0, y * power(where(singular, 1.0, x), y - 1.0))


def _power_exponent(x: Any, y: Any, out: Any) -> Any:
    # x**y * log(x), and zero for x <= 0: constant in y at 0, and without a real derivative below. NaN for NaN.
    positive = greater(x, 0.0)
    missing = logical_or(isnan(x), isnan(y))
    return where(positive, out * log(where(positive, x, 1.0)), where(missing, stop_gradient(x + y), 0.0))


def _power_numpy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out = np.power(x, y)
    if y.size == 1 and y.item() == 0.5:  # NumPy takes the square root then, which is NaN at -inf
        out = np.where(x == -np.inf, -x, out)
    return np.asarray(out)


power_op = elementwise(
    "power",
    _power_base,
    _power_exponent,
    evaluate=_power_numpy,
    domain=(0.3, 3.0),
    extra=(
        ("zero_base", ([0.0, 0.0, 0.0, 0.0, -0.0], [0.0, 0.5, 1.0, 2.0, 3.0])),
        ("negative_base", ([-2.0, -2.0, -2.0, -1.0], [2.0, 3.0, 0.5, np.inf])),
        ("infinite", ([np.inf, -np.inf, 2.0, 0.5], [-1.0, 3.0, np.inf, np.inf])),
    ),
)


def power(x: Any, y: Any) -> Any:
    """x**y, elementwise with broadcasting.

    NaN for a negative base and a fractional exponent; 0**0 is 1. A Python integer `y` >= 0 is exact repeated
    multiplication, and a constant 0.5 is `sqrt`. Derivatives: in x it is 0 where x == 0 and y < 1; in y it is 0 for
    every x <= 0.
    Shapes, dtypes and errors as for `add`, except that a bool is refused beside a floating operand too.

    Example:
        >>> import quabla as qb
        >>> qb.power(qb.array([2.0, -8.0]), 3).tolist()
        [8.0, -512.0]
    """
    for given in (x, y):
        if isinstance(given, bool | np.bool_) or getattr(given, "dtype", None) in (bool_, np.bool_):
            raise DtypeError(
                "power: takes floating operands, got a bool; convert it with .astype(quabla.float64)"
            )
    if type(y) is int and y >= 0 and type(x) not in (int, float):
        return integer_power(floating_operand(x, "power"), y)
    if type(y) is float and y == 0.5 and type(x) not in (int, float):
        return sqrt(floating_operand(x, "power"))  # as in NumPy; and a root knows its limits at 0
    if type(x) is TraceTensor and _all_half(y):
        base, exponent = promote((x, y), "power")
        base = broadcast(base, broadcast_shapes("power", base.shape, exponent.shape))
        return where(
            equal(base, -math.inf), math.inf, sqrt(base)
        )  # as `power_op`, and with the limits of a root
    return binary(power_op, x, y)


def _all_half(y: Any) -> bool:
    """Whether a constant exponent is an array, or a traced one, of which all elements are 1/2."""
    if type(y) is TraceTensor:
        return bool(full_value(y) == 0.5)
    return isinstance(y, Tensor | TensorView | np.ndarray | np.floating) and bool(
        np.all(np.asarray(y) == 0.5)
    )
