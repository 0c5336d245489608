"""Comparisons, logical operations and tests of floating values: bool results, derivative zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quabla.dtypes import bool_
from quabla.errors import DtypeError
from quabla.ir.op import Op, Sample, define
from quabla.ops.apply import apply, batch_elementwise, binary, operand, unary
from quabla.shapes import ShapeDtype, aval_of

__all__ = [
    "equal", "greater", "greater_equal", "isfinite", "isinf", "isnan", "less", "less_equal", "logical_and",
    "logical_not", "logical_or", "not_equal",
]  # fmt: skip


def compare(name: str, arity: int, evaluate: Callable[..., Any], takes: str) -> Op:
    """Define an op with a bool result.

    Args:
        name: its name.
        arity: the number of operands.
        evaluate: its meaning in NumPy.
        takes: the dtype kinds that it takes: "fib" for comparisons, "b" for logic, "f" for tests of floats.
    """

    def infer(*avals: ShapeDtype) -> ShapeDtype:
        first = avals[0]
        if first.dtype.kind not in takes:
            wanted, remedy = (
                ("bool", "compare, as in quabla.not_equal(x, 0.0)")
                if takes == "b"
                else ("floating", "convert with .astype")
            )
            raise DtypeError(f"{name}: takes {wanted} operands, got {first}; {remedy}")
        return aval_of(first.shape, bool_)

    def samples() -> Iterator[Sample]:
        if takes == "b":
            yield Sample(
                "matrix", lambda rng: tuple(rng.random((3, 4)) < 0.5 for _ in range(arity)), smooth=False
            )
            return
        yield Sample(
            "matrix",
            lambda rng: tuple(rng.integers(-2, 3, (3, 4)).astype(float) for _ in range(arity)),
            smooth=False,
        )
        special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0])
        grid = np.meshgrid(*[special] * arity) if arity > 1 else [special]
        yield Sample("special", lambda rng: tuple(g.copy() for g in grid), smooth=False)

    op = define(
        Op(
            name=name,
            infer=infer,
            evaluate=evaluate,
            jvp=lambda primals, tangents, out: None,
            vjp=lambda ct, operands, out, wanted: (None,) * arity,
            batch=lambda operands, mapped, size: batch_elementwise(op, operands, mapped, size, {}),
            samples=samples,
            family="compare",
        )
    )
    return op


equal_op = compare("equal", 2, np.equal, "fib")
not_equal_op = compare("not_equal", 2, np.not_equal, "fib")
less_op = compare("less", 2, np.less, "fib")
less_equal_op = compare("less_equal", 2, np.less_equal, "fib")
greater_op = compare("greater", 2, np.greater, "fib")
greater_equal_op = compare("greater_equal", 2, np.greater_equal, "fib")
logical_and_op = compare("logical_and", 2, np.logical_and, "b")
logical_or_op = compare("logical_or", 2, np.logical_or, "b")
logical_not_op = compare("logical_not", 1, np.logical_not, "b")
isnan_op = compare("isnan", 1, np.isnan, "f")
isinf_op = compare("isinf", 1, np.isinf, "f")
isfinite_op = compare("isfinite", 1, np.isfinite, "f")


def _compare(op: Op, x: Any, y: Any) -> Any:
    return binary(op, x, y) if _floating(x) and _floating(y) else apply(op, (x, y), op.name, bools=True)


def _floating(x: Any) -> bool:
    return type(x) is not bool and getattr(getattr(x, "dtype", None), "kind", "f") == "f"


def equal(x: Any, y: Any) -> Any:
    """Whether `x` equals `y`, elementwise with broadcasting; False where either is NaN.

    Args:
        x: array or number.
        y: array or number, of a shape that broadcasts with that of `x`.

    Returns:
        A bool array of the broadcast shape.

    Raises:
        ShapeError: the shapes do not broadcast.
        DtypeError: float32 beside float64.

    Example:
        >>> import quabla as qb
        >>> qb.equal(qb.array([1.0, 2.0]), 2.0).tolist()
        [False, True]
    """
    return _compare(equal_op, x, y)


def not_equal(x: Any, y: Any) -> Any:
    """Whether `x` differs from `y`, elementwise; True where either is NaN. Shapes and errors as for `equal`.

    Example:
        >>> import quabla as qb
        >>> qb.not_equal(qb.array([1.0, 2.0]), 2.0).tolist()
        [True, False]
    """
    return _compare(not_equal_op, x, y)


def less(x: Any, y: Any) -> Any:
    """Whether `x < y`, elementwise. Shapes and errors as for `equal`.

    Example:
        >>> import quabla as qb
        >>> qb.less(qb.array([1.0, 2.0]), 2.0).tolist()
        [True, False]
    """
    return _compare(less_op, x, y)


def less_equal(x: Any, y: Any) -> Any:
    """Whether `x <= y`, elementwise. Shapes and errors as for `equal`.

    Example:
        >>> import quabla as qb
        >>> qb.less_equal(qb.array([1.0, 3.0]), 2.0).tolist()
        [True, False]
    """
    return _compare(less_equal_op, x, y)


def greater(x: Any, y: Any) -> Any:
    """Whether `x > y`, elementwise. Shapes and errors as for `equal`.

    Example:
        >>> import quabla as qb
        >>> qb.greater(qb.array([1.0, 3.0]), 2.0).tolist()
        [False, True]
    """
    return _compare(greater_op, x, y)


def greater_equal(x: Any, y: Any) -> Any:
    """Whether `x >= y`, elementwise. Shapes and errors as for `equal`.

    Example:
        >>> import quabla as qb
        >>> qb.greater_equal(qb.array([1.0, 2.0]), 2.0).tolist()
        [False, True]
    """
    return _compare(greater_equal_op, x, y)


def logical_and(x: Any, y: Any) -> Any:
    """Whether both `x` and `y` hold, elementwise, for bool operands; `x & y` is the same.

    Shapes as for `add`.

    Raises:
        DtypeError: an operand is not bool.

    Example:
        >>> import quabla as qb
        >>> qb.logical_and(qb.array([True, False]), True).tolist()
        [True, False]
    """
    return apply(logical_and_op, (x, y), "logical_and", bools=True)


def logical_or(x: Any, y: Any) -> Any:
    """Whether `x` or `y` holds, elementwise, for bool operands; `x | y` is the same.

    Shapes as for `add`.

    Raises:
        DtypeError: an operand is not bool.

    Example:
        >>> import quabla as qb
        >>> qb.logical_or(qb.array([True, False]), False).tolist()
        [True, False]
    """
    return apply(logical_or_op, (x, y), "logical_or", bools=True)


def logical_not(x: Any) -> Any:
    """Whether `x` does not hold, elementwise, for a bool `x`; `~x` is the same.

    Takes an array of any shape, and returns one of the same.

    Raises:
        DtypeError: `x` is not bool.

    Example:
        >>> import quabla as qb
        >>> qb.logical_not(qb.array([True, False])).tolist()
        [False, True]
    """
    return apply(logical_not_op, (operand(x, "logical_not"),), "logical_not", bools=True)


def isnan(x: Any) -> Any:
    """Whether `x` is NaN, elementwise, for a floating `x`.

    Shapes and errors as for `exp`; the result is bool.

    Example:
        >>> import quabla as qb
        >>> qb.isnan(qb.array([float("nan"), 1.0])).tolist()
        [True, False]
    """
    return unary(isnan_op, x)


def isinf(x: Any) -> Any:
    """Whether `x` is an infinity, elementwise, for a floating `x`.

    Shapes and errors as for `exp`; the result is bool.

    Example:
        >>> import quabla as qb
        >>> qb.isinf(qb.array([float("inf"), 1.0])).tolist()
        [True, False]
    """
    return unary(isinf_op, x)


def isfinite(x: Any) -> Any:
    """Whether `x` is neither NaN nor an infinity, elementwise, for a floating `x`.

    Shapes and errors as for `exp`; the result is bool.

    Example:
        >>> import quabla as qb
        >>> qb.isfinite(qb.array([float("inf"), 1.0])).tolist()
        [False, True]
    """
    return unary(isfinite_op, x)
