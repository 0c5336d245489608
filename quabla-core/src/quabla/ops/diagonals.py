"""Diagonals of matrices, and products of matrices and vectors that are no contractions."""

from __future__ import annotations

from typing import Any

from quabla.errors import DtypeError, ShapeError
from quabla.ops.apply import operand, promote
from quabla.ops.elementwise import mul, sub
from quabla.ops.structure import concatenate, pad, permute, reshape_to, strided_slice, sum_over
from quabla.shapes import as_shape, broadcast_shapes, normalize_axis, whole

__all__ = ["cross", "diag", "diagonal", "kron", "trace"]


def _last_two(x: Any, axis1: int, axis2: int, where: str) -> Any:
    """`x` with two axes moved to the end."""
    x = operand(x, where)
    if x.ndim < 2:
        raise ShapeError(f"{where}: takes an array of rank 2 or more, got {x.aval}")
    first, second = (normalize_axis(a, x.ndim, where) for a in (axis1, axis2))
    if first == second:
        raise ShapeError(f"{where}: axis1 and axis2 are both {first}")
    return permute(x, (*(a for a in range(x.ndim) if a not in (first, second)), first, second))


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements x[i, i + offset] of two axes.

    Args:
        x: array of rank 2 or more.
        offset: which diagonal: 0 the main one, positive ones above it.
        axis1: the axis of rows.
        axis2: the axis of columns.

    Returns:
        An array without those axes, and with the diagonal as its last axis.

    Raises:
        ShapeError: `x` has less than two axes, an axis is out of range, the axes are the same, or the diagonal is
            empty.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        >>> qb.diagonal(x).tolist(), qb.diagonal(x, 1).tolist()
        ([1.0, 5.0], [2.0, 6.0])
    """
    return _diagonal(_last_two(x, axis1, axis2, "diagonal"), offset, "diagonal")


def _diagonal(x: Any, offset: int, where: str) -> Any:
    """The diagonal of the last two axes: in row-major order its elements are evenly spaced."""
    *outer, rows, columns = x.shape
    k = _whole(offset, where)
    n = min(rows, columns - k) if k >= 0 else min(rows + k, columns)
    if n < 1:
        raise ShapeError(f"{where}: diagonal {k} of a matrix of shape {(rows, columns)} is empty")
    start = k if k >= 0 else -k * columns
    flat = reshape_to(x, (*outer, rows * columns))
    stop = start + (n - 1) * (columns + 1) + 1
    low, high = (*[0] * len(outer), start), (*outer, stop)
    return strided_slice(flat, low, high, (*[1] * len(outer), columns + 1))


def _whole(k: Any, where: str) -> int:
    try:
        return whole(k)
    except TypeError:
        raise ShapeError(f"{where}: the diagonal is named by one integer, got {k!r}") from None


def diag(x: Any, k: int = 0) -> Any:
    """The matrix with the vector `x` as a diagonal; of a matrix `x`, that diagonal.

    Args:
        x: vector or matrix.
        k: which diagonal: 0 the main one, positive ones above it.

    Returns:
        A square matrix of as many rows as `x` has elements, and `abs(k)` more; or a vector.

    Raises:
        ShapeError: `x` is neither a vector nor a matrix, or the diagonal is empty.

    Example:
        >>> import quabla as qb
        >>> qb.diag(qb.array([1.0, 2.0])).tolist(), qb.diag(qb.eye(3)).tolist()
        ([[1.0, 0.0], [0.0, 2.0]], [1.0, 1.0, 1.0])
    """
    x = operand(x, "diag")
    if x.ndim == 2:
        return _diagonal(x, k, "diag")
    if x.ndim != 1:
        raise ShapeError(f"diag: takes a vector or a matrix, got {x.aval}")
    k = _whole(k, "diag")
    n = x.shape[0]
    m = n + abs(k)
    as_shape((m, m), "diag")
    start = k if k >= 0 else -k * m
    rest = m * m - start - (n - 1) * (m + 1) - 1
    return reshape_to(pad(x, (start,), (rest,), (m,)), (m, m))


def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The sum of a diagonal. Arguments and errors as for `diagonal`.

    Example:
        >>> import quabla as qb
        >>> qb.trace(qb.array([[1.0, 2.0], [3.0, 4.0]])).item()
        5.0
    """
    d = _diagonal(_last_two(x, axis1, axis2, "trace"), offset, "trace")
    if d.dtype.kind == "b":
        raise DtypeError(
            f"trace: takes a floating operand, got {d.aval}; convert it with .astype(quabla.float64)"
        )
    return sum_over(d, (d.ndim - 1,))


def kron(x: Any, y: Any) -> Any:
    """The Kronecker product: `x` with each element replaced by that element times `y`.

    Args:
        x: array or number.
        y: array or number; of two ranks, the smaller is filled up with leading axes of extent 1.

    Returns:
        An array whose extents are the products of those of `x` and `y`.

    Raises:
        DtypeError: float32 beside float64, or bool operands.

    Example:
        >>> import quabla as qb
        >>> qb.kron(qb.array([1.0, 10.0]), qb.array([1.0, 2.0])).tolist()
        [1.0, 2.0, 10.0, 20.0]
    """
    x, y = promote((x, y), "kron")
    ndim = max(x.ndim, y.ndim)
    a, b = ((1,) * (ndim - v.ndim) + v.shape for v in (x, y))
    outer = reshape_to(x, tuple(n for m in a for n in (m, 1)))
    inner = reshape_to(y, tuple(n for m in b for n in (1, m)))
    return reshape_to(mul(outer, inner), tuple(m * n for m, n in zip(a, b, strict=True)))


def cross(x: Any, y: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """The cross product of vectors of three components, along an axis; the other axes broadcast.

    Args:
        x: array with extent 3 along `axisa`.
        y: array with extent 3 along `axisb`.
        axisa: the axis of the components of `x`.
        axisb: the axis of the components of `y`.
        axisc: the axis of the components of the result.
        axis: the axis of the components in all three, in place of `axisa`, `axisb` and `axisc`.

    Returns:
        An array of the broadcast shape.

    Raises:
        ShapeError: the extent along the axis of the components is not 3, or the shapes do not broadcast.

    Example:
        >>> import quabla as qb
        >>> qb.cross(qb.array([1.0, 0.0, 0.0]), qb.array([0.0, 1.0, 0.0])).tolist()
        [0.0, 0.0, 1.0]
    """
    x, y = promote((x, y), "cross")
    if axis is not None:
        axisa = axisb = axisc = axis
    for v, at in ((x, axisa), (y, axisb)):
        if v.ndim == 0 or v.shape[normalize_axis(at, v.ndim, "cross")] != 3:
            raise ShapeError(f"cross: takes vectors of three components along axis {at}, got {v.aval}")
    x, y = permute(x, _moved(x.ndim, axisa)), permute(y, _moved(y.ndim, axisb))
    shape = broadcast_shapes("cross", x.shape, y.shape)
    (x0, x1, x2), (y0, y1, y2) = (
        [strided_slice(v, (*[0] * (v.ndim - 1), i), (*v.shape[:-1], i + 1), (1,) * v.ndim) for i in range(3)]
        for v in (x, y)
    )
    parts = [sub(mul(x1, y2), mul(x2, y1)), sub(mul(x2, y0), mul(x0, y2)), sub(mul(x0, y1), mul(x1, y0))]
    out = concatenate(parts, len(shape) - 1)
    back = list(range(out.ndim - 1))
    back.insert(normalize_axis(axisc, out.ndim, "cross"), out.ndim - 1)
    return permute(out, tuple(back))


def _moved(ndim: int, axis: int) -> tuple[int, ...]:
    """The permutation that brings `axis` to the end."""
    a = normalize_axis(axis, ndim, "cross")
    return (*(i for i in range(ndim) if i != a), a)
