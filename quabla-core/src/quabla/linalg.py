"""Linear algebra over stacks of matrices: `quabla.linalg`.

Every function takes matrices `(..., n, n)` and works on each by itself: the result for the first of a stack has the
bits of the result for it alone. A matrix without an answer (singular, not positive definite) raises no exception,
eagerly or compiled: its part of the result is NaN. All functions have derivatives of every order.
"""

from __future__ import annotations

from typing import Any

from quabla.arrays.creation import eye
from quabla.ops import norms
from quabla.ops.apply import operand, promote
from quabla.ops.determinant import det, slogdet
from quabla.ops.factor import square
from quabla.ops.linalg import cholesky, solve, triangular, triangular_solve
from quabla.ops.spectral import eigh, eigvalsh
from quabla.ops.structure import broadcast

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
    half = triangular("cho_solve", factor, b, True, False)
    return triangular("cho_solve", factor, half, True, True)


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
        ord: the kind of norm, as `quabla.norm` lists them. None is the Euclidean norm of all elements.
        axis: an int for norms of vectors, two ints for norms of matrices. None means all of `x`, which has one or two
            axes then unless `ord` is None too.
        keepdims: whether the reduced axes stay, with extent 1.

    Returns:
        An array without the reduced axes. The first derivative of the Euclidean norm at 0 is 0.

    Raises:
        ShapeError: an axis is out of range or named twice, there are more than two, or `ord` is none for their number.
        UnsupportedOperationError: a matrix norm that needs singular values, 2, -2 and "nuc".
        DtypeError: `x` is bool or int64.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[3.0, -4.0], [0.0, 12.0]])
        >>> qb.linalg.norm(x).item(), qb.linalg.norm(x, 1).item(), qb.linalg.norm(x, float("inf"), axis=1).tolist()
        (13.0, 16.0, [4.0, 12.0])
    """
    if axis is not None:
        norms.ordered_axes(operand(x, "norm"), axis)
    return norms.norm(x, axis, keepdims, ord=ord)
