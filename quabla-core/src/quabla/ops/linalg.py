"""Linear systems and the Cholesky factor: the primitives `solve`, `triangular_solve` and `cholesky`, for stacks.

One rule for matrices that have no answer, eager and compiled alike: no exception; all elements of the result that
belongs to such a matrix are NaN, and the other matrices of a stack keep theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quabla.arrays.tracer import bind
from quabla.errors import DtypeError, ShapeError
from quabla.ir.op import Each, Op, Sample, define
from quabla.ops import elementwise
from quabla.ops.apply import operand, promote
from quabla.ops.factor import SYSTEMS, led, lu, lu_solve, square, substitute, well_conditioned
from quabla.ops.matmul import dot_general
from quabla.ops.shape import tril, triu
from quabla.ops.structure import broadcast, permute, reshape_to
from quabla.shapes import ShapeDtype, broadcast_shapes

__all__ = ["cholesky", "solve", "triangular_solve"]

Shape = tuple[int, ...]


def product(x: Any, y: Any, x_transposed: bool = False, y_transposed: bool = False) -> Any:
    """The product of two stacks of matrices with the same leading axes."""
    n = x.ndim - 2
    lead = tuple(range(n))
    return dot_general(x, y, ((n + (not x_transposed),), (n + y_transposed,)), (lead, lead))


def turned(x: Any) -> Any:
    """A stack of matrices, transposed."""
    n = x.ndim
    return permute(x, (*range(n - 2), n - 1, n - 2))


def _check(name: str, a: ShapeDtype, b: ShapeDtype) -> None:
    n = square(name, a)
    if b.dtype is not a.dtype:
        raise DtypeError(
            f"{name}: takes floating operands of one dtype, got {a} and {b}; convert with astype"
        )
    if b.ndim != a.ndim or b.shape[:-1] != a.shape[:-1]:
        expected = (*a.shape[:-2], n, b.shape[-1] if b.ndim else 1)
        raise ShapeError(
            f"{name}: matrix {a.shape} and right-hand side {b.shape} do not fit: expected {expected}"
        )


def _columns(operands: Any, mapped: Any, size: int, apply: Callable[[Any, Any], Any]) -> Any:
    """The batching rule of a linear system: with one matrix for all examples, they become columns of one system."""
    a, b = operands
    if mapped[0]:
        return apply(*led(operands, mapped, size))
    *rest, n, k = b.shape[1:]
    r = len(rest)
    wide = permute(b, (*range(1, r + 2), 0, r + 2))  # (..., n, size, k)
    x = reshape_to(apply(a, reshape_to(wide, (*rest, n, size * k))), (*rest, n, size, k))
    return permute(x, (r + 1, *range(r + 1), r + 2))


# --- general systems --------------------------------------------------------------------------------------------------


def apply_solve(a: Any, b: Any, transposed: bool = False) -> Any:
    """The solution of `a x = b` or `aᵀ x = b` for `a` `(..., n, n)` and `b` `(..., n, k)`."""
    return bind(solve_op, (a, b), {"transposed": transposed})


def _solve_infer(a: ShapeDtype, b: ShapeDtype, *, transposed: bool) -> ShapeDtype:
    _check("solve", a, b)
    return b


def _solve_numpy(a: np.ndarray, b: np.ndarray, *, transposed: bool) -> np.ndarray:
    if transposed:
        a = a.swapaxes(-1, -2)
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        return _each(np.linalg.solve, (a, b), b.shape)


def _each(function: Callable[..., Any], operands: tuple[np.ndarray, ...], shape: Shape) -> np.ndarray:
    """A NumPy function on each matrix of a stack by itself; NaN where it raises."""
    out = np.full(shape, np.nan, operands[0].dtype)
    for at in np.ndindex(shape[:-2]):
        try:
            out[at] = function(*[x[at] for x in operands])
        except np.linalg.LinAlgError:
            continue
    return out


def _solve_jvp(primals: Any, tangents: Any, out: Any, *, transposed: bool) -> Any:
    # a x = b: a dx = db - da x
    (a, _), (da, db) = primals, tangents
    if da is not None:
        moved = product(da, out, x_transposed=transposed)
        db = elementwise.neg(moved) if db is None else elementwise.sub(db, moved)
    return None if db is None else apply_solve(a, db, transposed)


def _solve_transpose(ct: Any, operands: Any, wanted: Any, *, transposed: bool) -> Any:
    a, b = operands
    back = apply_solve(a, ct, not transposed)
    ct_a = None
    if wanted[0]:
        x = apply_solve(a, b, transposed)
        outer = product(x, back, y_transposed=True) if transposed else product(back, x, y_transposed=True)
        ct_a = elementwise.neg(outer)
    return ct_a, back if wanted[1] else None


def _solve_decomposed(a: Any, b: Any, *, transposed: bool) -> Any:
    return lu_solve(*lu(a), b, transposed)


def _system_samples(matrix: Callable[..., np.ndarray], **params: Any) -> Iterator[Sample]:
    for name, shape, k in SYSTEMS:
        yield Sample(
            "_".join([name, *(key for key, on in params.items() if on)]),
            lambda rng, shape=shape, k=k: (matrix(rng, *shape), rng.normal(size=(*shape[:-1], k))),  # type: ignore[misc]
            params,
        )


def _solve_samples() -> Iterator[Sample]:
    yield from _system_samples(well_conditioned, transposed=False)
    yield from _system_samples(well_conditioned, transposed=True)
    singular = np.array([[[1.0, 2.0], [2.0, 4.0]], [[1.0, 2.0], [0.0, 4.0]]])
    yield Sample(
        "singular", lambda rng: (singular, rng.normal(size=(2, 2, 3))), {"transposed": False}, smooth=False
    )


solve_op = define(
    Op(
        name="solve",
        infer=_solve_infer,
        evaluate=_solve_numpy,
        jvp=_solve_jvp,
        linear=Each((1,)),
        transpose=_solve_transpose,
        batch=lambda operands, mapped, size, *, transposed: _columns(
            operands, mapped, size, lambda a, b: apply_solve(a, b, transposed)
        ),
        decompose=_solve_decomposed,
        samples=_solve_samples,
    )
)


# --- triangular systems -----------------------------------------------------------------------------------------------


def apply_triangular(a: Any, b: Any, lower: bool, transposed: bool = False, unit: bool = False) -> Any:
    """The same for a triangular `a`, of which only that triangle is read, without the diagonal if it is `unit`."""
    return bind(triangular_solve_op, (a, b), {"lower": lower, "transposed": transposed, "unit": unit})


def _triangular_infer(
    a: ShapeDtype, b: ShapeDtype, *, lower: bool, transposed: bool, unit: bool
) -> ShapeDtype:
    _check("triangular_solve", a, b)
    return b


def _triangular_numpy(
    a: np.ndarray, b: np.ndarray, *, lower: bool, transposed: bool, unit: bool
) -> np.ndarray:
    n, k = b.shape[-2:]
    stack = a.reshape(-1, n, n)
    if transposed:
        stack, lower = stack.swapaxes(1, 2), not lower
    return substitute(stack, b.reshape(-1, n, k), lower, unit).reshape(b.shape)


def _triangle(x: Any, lower: bool, unit: bool) -> Any:
    """What `triangular_solve` reads of a matrix."""
    return tril(x, -int(unit)) if lower else triu(x, int(unit))


def _triangular_jvp(
    primals: Any, tangents: Any, out: Any, *, lower: bool, transposed: bool, unit: bool
) -> Any:
    (a, _), (da, db) = primals, tangents
    if da is not None:
        moved = product(_triangle(da, lower, unit), out, x_transposed=transposed)
        db = elementwise.neg(moved) if db is None else elementwise.sub(db, moved)
    return None if db is None else apply_triangular(a, db, lower, transposed, unit)


def _triangular_transpose(
    ct: Any, operands: Any, wanted: Any, *, lower: bool, transposed: bool, unit: bool
) -> Any:
    a, b = operands
    back = apply_triangular(a, ct, lower, not transposed, unit)
    ct_a = None
    if wanted[0]:
        x = apply_triangular(a, b, lower, transposed, unit)
        outer = product(x, back, y_transposed=True) if transposed else product(back, x, y_transposed=True)
        ct_a = elementwise.neg(_triangle(outer, lower, unit))
    return ct_a, back if wanted[1] else None


def _triangular_samples() -> Iterator[Sample]:
    def matrix(rng: Any, *shape: int) -> np.ndarray:
        a: np.ndarray = rng.uniform(-1.0, 1.0, size=shape)
        return a + 2.0 * np.eye(shape[-1])

    for lower in (True, False):
        for transposed in (True, False):
            yield from _system_samples(matrix, lower=lower, transposed=transposed, unit=False)
        yield from _system_samples(matrix, lower=lower, transposed=not lower, unit=True)
    singular = np.array([[[1.0, 2.0], [2.0, 0.0]], [[1.0, 2.0], [0.0, 4.0]]])
    yield Sample(
        "singular", lambda rng: (singular, rng.normal(size=(2, 2, 3))),
        {"lower": True, "transposed": False, "unit": False}, smooth=False,
    )  # fmt: skip


triangular_solve_op = define(
    Op(
        name="triangular_solve",
        infer=_triangular_infer,
        evaluate=_triangular_numpy,
        jvp=_triangular_jvp,
        linear=Each((1,)),
        transpose=_triangular_transpose,
        batch=lambda operands, mapped, size, **params: _columns(
            operands, mapped, size, lambda a, b: apply_triangular(a, b, **params)
        ),
        samples=_triangular_samples,
    )
)


# --- Cholesky ---------------------------------------------------------------------------------------------------------


def _cholesky_infer(a: ShapeDtype) -> ShapeDtype:
    square("cholesky", a)
    return a


def _cholesky_numpy(a: np.ndarray) -> np.ndarray:
    half = a.dtype.type(0.5)
    s = half * a + half * a.swapaxes(-1, -2)
    try:
        out = np.linalg.cholesky(s)
    except np.linalg.LinAlgError:
        out = _each(np.linalg.cholesky, (s,), s.shape)
    # A NaN reaches the diagonal of its row, whether or not the factorisation noticed it.
    out[np.isnan(np.diagonal(out, axis1=-2, axis2=-1)).any(axis=-1)] = np.nan
    return out


def _cholesky_jvp(primals: Any, tangents: Any, out: Any) -> Any:
    # dL = L Phi(L^-1 dA L^-T), where Phi takes the lower triangle and half the diagonal.
    # I. Murray, Differentiation of the Cholesky decomposition, arXiv:1602.07527 (2016), eq. 8.
    (da,) = tangents
    if da is None:
        return None
    moved = elementwise.mul(elementwise.add(da, turned(da)), 0.5)
    inner = apply_triangular(out, turned(apply_triangular(out, moved, True)), True)
    phi = elementwise.mul(elementwise.add(tril(inner), tril(inner, -1)), 0.5)
    return product(out, phi)


def _cholesky_samples() -> Iterator[Sample]:
    def positive(rng: Any, *shape: int) -> tuple[np.ndarray]:
        m = rng.normal(size=shape)
        skew = rng.normal(size=shape)
        return (m @ m.swapaxes(-1, -2) / shape[-1] + 2.0 * np.eye(shape[-1]) + skew - skew.swapaxes(-1, -2),)

    yield Sample("matrix", lambda rng: positive(rng, 4, 4))
    yield Sample("one", lambda rng: positive(rng, 1, 1))
    yield Sample("stack", lambda rng: positive(rng, 2, 3, 3))
    bad = np.array(
        [[[1.0, 2.0], [2.0, 1.0]], [[4.0, 1.0], [1.0, 3.0]], [[4.0, np.nan], [1.0, 3.0]], [[0.0, 0.0]] * 2]
    )
    yield Sample("not_positive", lambda rng: (bad,), smooth=False)


cholesky_op: Op = define(
    Op(
        name="cholesky",
        infer=_cholesky_infer,
        evaluate=_cholesky_numpy,
        jvp=_cholesky_jvp,
        batch=lambda operands, mapped, size: bind(cholesky_op, operands, {}),
        samples=_cholesky_samples,
    )
)


# --- what users call --------------------------------------------------------------------------------------------------


def solve(a: Any, b: Any) -> Any:
    """The solution `x` of the linear system `a @ x = b`.

    Args:
        a: floating matrices `(..., n, n)`.
        b: right-hand sides: a vector `(n,)`, or matrices `(..., n, k)` with a system per column. As in NumPy 2 only a
            one-dimensional `b` is a vector. The leading axes of `a` and `b` broadcast, and a matrix that several
            right-hand sides share is factored once.

    Returns:
        An array `(..., n)` for a vector, `(..., n, k)` otherwise. All elements of the solution of a singular system
        (one where a pivot of the LU factorisation is zero) are NaN; there is no exception.

    Raises:
        ShapeError: `a` is not square, the rows differ, or the leading axes do not broadcast.
        DtypeError: float32 beside float64, or bool operands.

    Example:
        >>> import quabla as qb
        >>> a = qb.array([[2.0, 0.0], [1.0, 4.0]])
        >>> qb.solve(a, qb.array([2.0, 9.0])).tolist()
        [1.0, 2.0]
        >>> qb.solve(a, qb.ones((5, 2, 3))).shape
        (5, 2, 3)
    """
    return _system("solve", a, b, apply_solve)


def triangular_solve(a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False) -> Any:
    """The solution `x` of `a @ x = b` for a triangular matrix `a`.

    Args:
        a: floating matrices `(..., n, n)`, of which only one triangle is read.
        b: right-hand sides, as for `solve`.
        trans: 0 or "N" for `a @ x = b`, 1 or "T" for `aᵀ @ x = b`.
        lower: whether `a` is lower triangular.
        unit_diagonal: whether the diagonal is taken to be 1, and not read.

    Returns:
        An array `(..., n)` for a vector, `(..., n, k)` otherwise. All elements of the solution are NaN where the
        diagonal has a zero; there is no exception.

    Raises:
        ShapeError: as `solve`, or `trans` is none of these.
        DtypeError: float32 beside float64, or bool operands.

    Example:
        >>> import quabla as qb
        >>> a = qb.array([[2.0, 0.0], [1.0, 4.0]])
        >>> qb.linalg.triangular_solve(a, qb.array([2.0, 9.0]), lower=True).tolist()
        [1.0, 2.0]
    """
    if isinstance(trans, bool) or trans not in (0, 1, "N", "T"):
        raise ShapeError(f'triangular_solve: trans is 0 or "N", 1 or "T", got {trans!r}')
    return triangular("triangular_solve", a, b, bool(lower), trans in (1, "T"), bool(unit_diagonal))


def triangular(where: str, a: Any, b: Any, lower: bool, transposed: bool, unit: bool = False) -> Any:
    """What `triangular_solve` does, in the name of another function."""
    return _system(where, a, b, lambda a, b: apply_triangular(a, b, lower, transposed, unit))


def _system(name: str, a: Any, b: Any, apply: Callable[[Any, Any], Any]) -> Any:
    """Check, broadcast, and move the axes along which `a` is the same into the columns of `b`."""
    a, b = promote((a, b), name)
    n = square(name, a.aval)
    if b.ndim == 0:
        raise ShapeError(
            f"{name}: the right-hand side needs {n} rows, got a scalar {b.aval} for matrices {a.shape}"
        )
    vector = b.ndim == 1
    if vector:
        b = reshape_to(b, (*b.shape, 1))
    if b.shape[-2] != n:
        shown = b.shape[:1] if vector else b.shape
        raise ShapeError(
            f"{name}: matrix {a.shape} and right-hand side {shown} do not fit: the matrix has {n} rows, the right-hand "
            f"side {b.shape[-2]}"
        )
    rest = broadcast_shapes(f"{name} (leading axes of {a.shape} and {b.shape})", a.shape[:-2], b.shape[:-2])
    depth, k = len(rest), b.shape[-1]
    a = reshape_to(a, (*(1,) * (depth + 2 - a.ndim), *a.shape))
    shared = [i for i in range(depth) if a.shape[i] == 1 and rest[i] != 1]
    kept = [i for i in range(depth) if i not in shared]
    if shared:
        # (kept..., n, shared..., k): one system with more columns
        b = broadcast(b, (*rest, n, k))
        b = permute(b, (*kept, depth, *shared, depth + 1))
        lead = tuple(rest[i] for i in kept)
        extents = tuple(rest[i] for i in shared)
        wide = reshape_to(b, (*lead, n, math.prod(extents) * k))
        x = apply(reshape_to(a, (*lead, n, n)), wide)
        x = reshape_to(x, (*lead, n, *extents, k))
        held = [*kept, depth, *shared, depth + 1]
        x = permute(x, tuple(held.index(i) for i in range(depth + 2)))
    else:
        x = apply(broadcast(a, (*rest, n, n)), broadcast(b, (*rest, n, k)))
    return reshape_to(x, x.shape[:-1]) if vector else x


def cholesky(x: Any) -> Any:
    """The lower triangular matrix `L` with `L @ Lᵀ = x` and a positive diagonal.

    Args:
        x: symmetric positive definite matrices `(..., n, n)`. Of a matrix that is not symmetric the symmetric part
            `(x + xᵀ) / 2` is factored, so the gradient in `x` is symmetric.

    Returns:
        An array of the same shape, zero above the diagonal. All elements are NaN where the matrix is not positive
        definite; there is no exception.

    Raises:
        ShapeError: `x` is not square.
        DtypeError: `x` is bool.

    Example:
        >>> import quabla as qb
        >>> qb.cholesky(qb.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
        [[2.0, 0.0], [1.0, 2.0]]
        >>> qb.cholesky(qb.array([[1.0, 2.0], [2.0, 1.0]])).tolist()
        [[nan, nan], [nan, nan]]
    """
    x = operand(x, "cholesky")
    square("cholesky", x.aval)
    return bind(cholesky_op, (x,), {})
