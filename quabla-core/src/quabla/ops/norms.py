"""Norms of vectors and matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quabla.arrays.tensor import wrap_as
from quabla.arrays.tracer import TraceTensor, bind
from quabla.dtypes import float64
from quabla.errors import ShapeError, UnsupportedOperationError
from quabla.ops import elementwise, reduce
from quabla.ops.apply import floating_operand
from quabla.ops.compare import greater, less, logical_and, not_equal
from quabla.ops.powers import power
from quabla.ops.reduce import floating, kept, reduce_max_op, spread
from quabla.ops.structure import cast, sum_over
from quabla.shapes import normalize_axis, number

__all__ = ["norm"]


def norm(
    x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, *, ord: Any = None
) -> Any:
    """The Euclidean norm of the elements of `x` (Frobenius for a matrix), or the norms along some axes.

    Squares neither overflow nor underflow: very large and very small elements are scaled first. An infinity gives inf
    and NaN gives NaN, as in NumPy. The derivatives of the norm at 0 are 0, a subgradient; smooth functions of it, such
    as its square, have their true first and second derivatives there, or NaN where the second cannot be known: two
    norms that vanish together, a square outside of the loop or branch that takes the norm.

    Args:
        x: floating array or number.
        axis: the axis or axes; all of them if None. `quabla.linalg.norm` takes its arguments in NumPy's order.
        keepdims: whether the reduced axes stay, with extent 1.
        ord: another norm, over one axis of vectors or two of matrices. Of a vector a number p,
            `(sum |x|**p) ** (1/p)`, with `inf`, `-inf` and 0 (how many are not zero) as limits; of a matrix 1, -1,
            `inf`, `-inf` (largest and smallest sums of magnitudes of columns and rows) or "fro".

    Returns:
        An array without the reduced axes, of the dtype of `x`.

    Raises:
        ShapeError: an axis is out of range or named twice, or `ord` is given with other than one or two axes, or is
            none for their number.
        UnsupportedOperationError: a matrix norm that needs singular values, 2, -2 and "nuc".
        DtypeError: `x` is bool or int64.

    Example:
        >>> import quabla as qb
        >>> qb.norm(qb.array([3.0, 4.0])).item(), f"{qb.norm(qb.array([3e200, 4e200])).item():.6g}"
        (5.0, '5e+200')
        >>> qb.grad(qb.norm)(qb.array([0.0, 0.0])).tolist()
        [0.0, 0.0]
        >>> qb.norm(qb.array([3.0, -4.0]), ord=1).item(), qb.norm(qb.array([3.0, -4.0]), ord=float("inf")).item()
        (7.0, 4.0)
    """
    if ord is None:
        try:
            return _euclidean(x, axis, keepdims)
        except ShapeError as error:
            raise _misplaced(error) from None
    x = floating_operand(x, "norm")
    axes = ordered_axes(x, axis)
    if (ord == "fro" and len(axes) == 2) or (ord == 2 and len(axes) == 1):
        return _euclidean(x, axes, keepdims)
    return _of_vectors(x, ord, axes, keepdims) if len(axes) == 1 else _of_matrices(x, ord, axes, keepdims)


def _misplaced(error: ShapeError) -> ShapeError:
    """The second argument of NumPy's function is the order."""
    return ShapeError(f"{error}; the second argument is the axis, and the order is ord=, by keyword")


def ordered_axes(x: Any, axis: Any) -> tuple[int, ...]:
    """The axis of vectors or the two axes of matrices, counted from the front; in the order in which they came.

    Raises:
        ShapeError: an axis is out of range or named twice, or there are none or more than two.
    """
    given = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    try:
        axes = tuple(normalize_axis(a, x.ndim, "norm") for a in given)
    except ShapeError as error:
        raise _misplaced(error) from None
    if len(axes) not in (1, 2) or len(set(axes)) != len(axes):
        raise ShapeError(
            f"norm: takes one axis for vectors or two for matrices, got {given} for an array {x.aval}"
        )
    return axes


def _euclidean(x: Any, axis: Any, keepdims: bool) -> Any:
    x, axes = floating(x, axis, "norm")
    if not axes:
        return elementwise.abs(x)
    # |x| = s |x / s|, with s held constant: a factor that cancels has no derivative of its own.
    scale = scale_for(bind(reduce_max_op, (elementwise.abs(elementwise.stop_gradient(x)),), {"axes": axes}))
    y = elementwise.div(x, spread(scale, x.shape, axes))
    root = elementwise.sqrt(sum_over(elementwise.mul(y, y), axes))
    return kept("norm", elementwise.mul(scale, root), x.shape, axes, keepdims)


def _of_vectors(x: Any, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    try:
        ord = number(ord)
    except TypeError:
        raise ShapeError(f"norm: the order of a vector norm is a number, got {ord!r}") from None
    if ord == 0:
        return reduce.sum(cast(not_equal(x, 0.0), x.dtype), axes, keepdims)
    size = elementwise.abs(x)
    if math.isinf(ord):
        return (reduce.max if ord > 0 else reduce.min)(size, axes, keepdims)
    if ord == 1:
        return reduce.sum(size, axes, keepdims)
    return power(reduce.sum(power(size, ord), axes, keepdims), 1.0 / ord)


def _of_matrices(x: Any, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    if ord in (2, -2, "nuc"):
        raise UnsupportedOperationError(
            f"norm: the matrix norm {ord!r} needs singular values, which are not supported; 1, inf and 'fro' are. "
            "quabla.sqrt(quabla.linalg.eigvalsh(x.T @ x)) are the singular values to half of the digits",
            op="norm",
        )
    if ord not in (1, -1, math.inf, -math.inf):
        raise ShapeError(f"norm: the order of a matrix norm is 1, -1, inf, -inf or 'fro', got {ord!r}")
    summed, rest = axes if abs(ord) == 1 else axes[::-1]
    sums = reduce.sum(elementwise.abs(x), summed, True)
    out = (reduce.max if ord > 0 else reduce.min)(sums, rest, True)
    return out if keepdims else reduce.sum(out, axes)


def _like(x: Any, value: float) -> Any:
    """An array of the type of `x` with all elements equal, in the trace of `x` if it is traced."""
    if type(x) is TraceTensor:
        return x.frame.full(value, x.aval)
    return wrap_as(np.full(x.shape, value, x.dtype.numpy), x.aval)


def scale_for(largest: Any) -> Any:
    """A power of two, so that squares of numbers divided by it neither overflow nor underflow.

    A power of two costs no rounding, and three of them reach: 1 as long as the largest magnitude is inside `limit`. For
    0 it is 1 as well: the second derivative of norm(x)**2 there is that of x**2, in numbers of ordinary size.
    """
    limit, far = (2.0**500, 2.0**600) if largest.dtype is float64 else (2.0**50, 2.0**90)
    tiny = logical_and(less(largest, 1.0 / limit), greater(largest, 0.0))
    scale = elementwise.where(tiny, 1.0 / far, _like(largest, 1.0))
    return elementwise.where(greater(largest, limit), far, scale)
