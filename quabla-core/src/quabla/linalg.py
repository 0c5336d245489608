"""Linear algebra over stacks of matrices: `quabla.linalg`.

Every function takes matrices `(..., n, n)` and works on each by itself: the result for the first of a stack has the
bits of the result for it alone. A matrix without an answer (singular, not positive definite) raises no exception,
eagerly or compiled: its part of the result is NaN. All functions have derivatives of every order.
"""

from __future__ import annotations

import math
from typing import Any

from quabla.arrays.creation import eye
from quabla.errors import ShapeError, UnsupportedOperationError
from quabla.ops import elementwise, reduce
from quabla.ops.apply import floating_operand, operand, promote
from quabla.ops.compare import not_equal
from quabla.ops.determinant import det, slogdet
from quabla.ops.factor import square
from quabla.ops.linalg import cholesky, solve, triangular_solve
from quabla.ops.powers import power
from quabla.ops.shape import astype
from quabla.ops.spectral import eigh, eigvalsh
from quabla.ops.structure import broadcast
from quabla.shapes import normalize_axis

__all__ = [
    "cholesky",
    "cho_solve",
    "det",
    "eigh",
    "eigvalsh",
    "inv",
    "norm",
    "slogdet",
    "solve",
    "solve_triangular",
    "triangular_solve",
]

solve_triangular = triangular_solve


def cho_solve(factor: Any, b: Any) -> Any:
    """The solution of `a @ x = b` given the Cholesky factor of `a`.

    Args:
        factor: what `cholesky(a)` returned, `(..., n, n)`.
        b: right-hand sides, as for `solve`.

    Returns:
        An array of the shape that `solve(a, b)` has.

    Raises:
        ShapeError: as `solve`.
        DtypeError: float32 beside float64, or bool operands.

    Example:
        >>> import quabla as qb
        >>> a = qb.array([[4.0, 2.0], [2.0, 5.0]])
        >>> qb.linalg.cho_solve(qb.cholesky(a), qb.array([8.0, 12.0])).tolist()
        [1.0, 2.0]
    """
    return triangular_solve(factor, triangular_solve(factor, b, lower=True), lower=True, trans=1)


def inv(x: Any) -> Any:
    """The inverse. To solve a system, `solve` is faster and more accurate.

    Args:
        x: floating matrices `(..., n, n)`.

    Returns:
        An array of the same shape; all elements of the inverse of a singular matrix are NaN.

    Raises:
        ShapeError: `x` is not square.
        DtypeError: `x` is bool.

    Example:
        >>> import quabla as qb
        >>> qb.linalg.inv(qb.array([[2.0, 0.0], [0.0, 4.0]])).tolist()
        [[0.5, 0.0], [0.0, 0.25]]
    """
    (x,) = promote((operand(x, "inv"),), "inv")
    n = square("inv", x.aval)
    return solve(x, broadcast(eye(n, dtype=x.dtype), x.shape))


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Norms of vectors and matrices, as `numpy.linalg.norm` defines them.

    Args:
        x: floating array.
        ord: of a vector a number p, `(sum |x|**p) ** (1/p)`, with `inf`, `-inf` and 0 (how many are not zero) as
            limits; of a matrix 1, -1, `inf`, `-inf` (largest and smallest sums of magnitudes of columns and rows) or
            "fro". None is the Euclidean norm of all elements.
        axis: an int for norms of vectors, two ints for norms of matrices. None means all of `x`, which has one or two
            axes then unless `ord` is None too.
        keepdims: whether the reduced axes stay, with extent 1.

    Returns:
        An array without the reduced axes. The first derivative of the Euclidean norm at 0 is 0.

    Raises:
        ShapeError: an axis is out of range or named twice, or there are more than two.
        UnsupportedOperationError: a matrix norm that needs singular values, 2, -2 and "nuc".
        DtypeError: `x` is bool.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[3.0, -4.0], [0.0, 12.0]])
        >>> qb.linalg.norm(x).item(), qb.linalg.norm(x, 1).item(), qb.linalg.norm(x, float("inf"), axis=1).tolist()
        (13.0, 16.0, [4.0, 12.0])
    """
    x = floating_operand(x, "norm")
    if axis is None and ord is None:
        return reduce.norm(x, None, keepdims)
    given = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = tuple(normalize_axis(a, x.ndim, "norm") for a in given)
    if len(axes) not in (1, 2) or len(set(axes)) != len(axes):
        raise ShapeError(
            f"norm: takes one axis for vectors or two for matrices, got {given} for an array {x.aval}"
        )
    if ord is None or (ord == "fro" and len(axes) == 2) or (ord == 2 and len(axes) == 1):
        return reduce.norm(x, axes, keepdims)
    return _of_vectors(x, ord, axes, keepdims) if len(axes) == 1 else _of_matrices(x, ord, axes, keepdims)


def _of_vectors(x: Any, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    if isinstance(ord, str) or not isinstance(ord, (int, float)):
        raise ShapeError(f"norm: the order of a vector norm is a number, got {ord!r}")
    if ord == 0:
        return reduce.sum(astype(not_equal(x, 0.0), x.dtype), axes, keepdims)
    size = elementwise.abs(x)
    if math.isinf(ord):
        return (reduce.max if ord > 0 else reduce.min)(size, axes, keepdims)
    if ord == 1:
        return reduce.sum(size, axes, keepdims)
    return power(reduce.sum(power(size, ord), axes, keepdims), 1.0 / ord)


def _of_matrices(x: Any, ord: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    if ord in (2, -2, "nuc"):
        raise UnsupportedOperationError(
            f"norm: the matrix norm {ord!r} needs singular values, which are not supported; 1, inf and 'fro' are",
            op="norm",
        )
    if ord not in (1, -1, math.inf, -math.inf):
        raise ShapeError(f"norm: the order of a matrix norm is 1, -1, inf, -inf or 'fro', got {ord!r}")
    summed, rest = axes if abs(ord) == 1 else axes[::-1]
    sums = reduce.sum(elementwise.abs(x), summed, True)
    out = (reduce.max if ord > 0 else reduce.min)(sums, rest, True)
    return out if keepdims else reduce.sum(out, axes)
