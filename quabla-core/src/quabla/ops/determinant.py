"""Determinants, with derivatives of every order at regular matrices and finite ones at singular matrices.

Jacobi's formula, d det = det tr(a⁻¹ da), divides by what may be zero. Here `left a right` is formed instead with the
factors of `eliminate` held constant, which changes the determinant by a sign at most. At the point in question it is
diagonal with the smallest pivots last. Its leading block M, all but three rows, is regular as long as the rank is at
least n - 3; with S the Schur complement of M, det = sign det(M) det(S), Jacobi's formula is used for M and the
polynomial itself for S. Below that rank the derivatives up to the third are zero, and all are computed as zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import bind
from quabla.ir.op import Op, Sample, define
from quabla.ops import elementwise
from quabla.ops.apply import operand
from quabla.ops.compare import equal
from quabla.ops.factor import eliminate, lu, lu_det, square, well_conditioned
from quabla.ops.index import getitem
from quabla.ops.linalg import apply_solve, product, turned
from quabla.ops.matmul import diagonal_of
from quabla.ops.reduce import any as any_of
from quabla.ops.shape import stack
from quabla.ops.structure import broadcast, reshape_to, sum_over, zeros_like
from quabla.shapes import ShapeDtype, aval_of

__all__ = ["det", "slogdet"]


def _sum_of(x: Any, last: int = 2) -> Any:
    """The sum over the last axes."""
    return sum_over(x, tuple(range(x.ndim - last, x.ndim)))


def diagonal(x: Any) -> Any:
    """The diagonals of a stack of matrices."""
    return diagonal_of(x, x.ndim - 2, x.ndim - 1)


def _cofactors(s: Any) -> tuple[Any, Any]:
    """The determinant of matrices of at most three rows, and the matrix of its derivatives."""
    n = s.shape[-1]

    def at(i: int, j: int) -> Any:
        return getitem(s, (..., i, j))

    if n == 1:
        rows = [[elementwise.add(zeros_like(at(0, 0)), 1.0)]]
    elif n == 2:
        rows = [[at(1, 1), elementwise.neg(at(1, 0))], [elementwise.neg(at(0, 1)), at(0, 0)]]
    else:

        def minor(i: int, j: int) -> Any:
            # Rows and columns taken cyclically: the sign is always +.
            a, b, c, d = (i + 1) % 3, (i + 2) % 3, (j + 1) % 3, (j + 2) % 3
            return elementwise.sub(elementwise.mul(at(a, c), at(b, d)), elementwise.mul(at(a, d), at(b, c)))

        rows = [[minor(i, j) for j in range(3)] for i in range(3)]
    cofactors = stack([stack(row, -1) for row in rows], -2)
    first = _sum_of(elementwise.mul(getitem(s, (..., 0)), getitem(cofactors, (..., 0))), 1)
    return first, cofactors


def _regular_jvp(primals: Any, tangents: Any, out: Any) -> Any:
    (a,), (da,) = primals, tangents
    if da is None:
        return None
    return elementwise.mul(out, _sum_of(diagonal(apply_solve(a, da)), 1))


def _det_jvp(primals: Any, tangents: Any, out: Any, *, regular: bool) -> Any:
    if regular:
        return _regular_jvp(primals, tangents, out)
    (a,), (da,) = primals, tangents
    if da is None:
        return None
    n = a.shape[-1]
    m = n - 3
    if m <= 0:
        return _sum_of(elementwise.mul(_cofactors(a)[1], da))
    left, right, pivots, sign = eliminate(a)
    b, db = product(product(left, a), right), product(product(left, da), right)

    def blocks(x: Any) -> tuple[Any, Any, Any, Any]:
        head, tail = slice(0, m), slice(m, n)
        return tuple([getitem(x, (..., i, j)) for i in (head, tail) for j in (head, tail)])

    b11, b12, b21, b22 = blocks(b)
    d11, d12, d21, d22 = blocks(db)
    # A zero on the diagonal of M means a rank below n - 3; a one in its place keeps the solves finite.
    zero = equal(getitem(diagonal(pivots), (..., slice(0, m))), 0.0)
    eye = broadcast(wrap(np.eye(m, dtype=a.dtype.numpy)), b11.shape)
    ones = elementwise.where(reshape_to(zero, (*zero.shape, 1)), eye, 0.0)
    b11 = elementwise.add(b11, ones)
    weight = elementwise.where(any_of(zero, axis=-1), 0.0, sign)
    w = apply_solve(b11, b12)
    z = apply_solve(b11, turned(b21), True)
    s = elementwise.sub(b22, product(b21, w))
    ds = elementwise.sub(d22, product(d21, w))
    ds = elementwise.sub(ds, product(z, elementwise.sub(d12, product(d11, w)), x_transposed=True))
    det_m = bind(det_op, (b11,), {"regular": True})
    det_s, cofactors = _cofactors(s)
    inner = elementwise.mul(det_s, _sum_of(diagonal(apply_solve(b11, d11)), 1))
    inner = elementwise.add(inner, _sum_of(elementwise.mul(cofactors, ds)))
    return elementwise.mul(elementwise.mul(weight, det_m), inner)


def _det_infer(a: ShapeDtype, *, regular: bool) -> ShapeDtype:
    square("det", a)
    return aval_of(a.shape[:-2], a.dtype, a.weak)


def _matrix_samples(**params: Any) -> Iterator[Sample]:
    shapes = {"matrix": (5, 5), "one": (1, 1), "three": (3, 3), "stack": (3, 4, 4), "stack_of_two": (4, 2, 2)}
    for name, shape in shapes.items():
        yield Sample(name, lambda rng, shape=shape: (well_conditioned(rng, *shape),), params)  # type: ignore[misc]


def _det_samples() -> Iterator[Sample]:
    yield from _matrix_samples(regular=False)
    yield Sample("regular", lambda rng: (well_conditioned(rng, 4, 4),), {"regular": True})
    for rank in (0, 2, 3, 4):
        x = np.diag([*range(1, 1 + rank), *[0] * (5 - rank)])[::-1].astype(float)
        x[:, 1] += x[:, 0]
        yield Sample(f"rank{rank}", lambda rng, x=x: (x,), {"regular": False})  # type: ignore[misc]


det_op: Op = define(
    Op(
        name="det",
        infer=_det_infer,
        evaluate=lambda a, *, regular: np.linalg.det(a),
        jvp=_det_jvp,
        batch=lambda operands, mapped, size, *, regular: bind(det_op, operands, {"regular": regular}),
        decompose=lambda a, *, regular: lu_det(*lu(a)),
        samples=_det_samples,
    )
)


def _slogdet_infer(a: ShapeDtype) -> tuple[ShapeDtype, ShapeDtype]:
    square("slogdet", a)
    aval = aval_of(a.shape[:-2], a.dtype, a.weak)
    return aval, aval


def _slogdet_jvp(primals: Any, tangents: Any, out: Any) -> Any:
    (a,), (da,) = primals, tangents
    return None, None if da is None else _sum_of(diagonal(apply_solve(a, da)), 1)


def _slogdet_decomposed(a: Any) -> Any:
    factors, pivots = lu(a)
    logs = elementwise.log(elementwise.abs(diagonal(factors)))
    return lu_det(factors, pivots, True), _sum_of(logs, 1)


slogdet_op: Op = define(
    Op(
        name="slogdet",
        infer=_slogdet_infer,
        evaluate=lambda a: tuple(np.linalg.slogdet(a)),
        jvp=_slogdet_jvp,
        batch=lambda operands, mapped, size: bind(slogdet_op, operands, {}),
        decompose=_slogdet_decomposed,
        samples=_matrix_samples,
        multiple=True,
    )
)


# --- what users call --------------------------------------------------------------------------------------------------


def det(x: Any) -> Any:
    """The determinant.

    Args:
        x: floating matrices `(..., n, n)`.

    Returns:
        An array `(...)`. Its derivatives are finite everywhere and right to every order at matrices of rank n - 3 and
        above. At a smaller rank all derivatives are zero, which is right up to the third.

    Raises:
        ShapeError: `x` is not square.
        DtypeError: `x` is bool.

    Example:
        >>> import quabla as qb
        >>> round(qb.linalg.det(qb.array([[1.0, 2.0], [2.0, 1.0]])).item(), 12)
        -3.0
        >>> qb.grad(qb.linalg.det)(qb.array([[1.0, 2.0], [2.0, 4.0]])).tolist()
        [[4.0, -2.0], [-2.0, 1.0]]
    """
    x = operand(x, "det")
    square("det", x.aval)
    return bind(det_op, (x,), {"regular": False})


class SlogdetResult(NamedTuple):
    """What `slogdet` returns: the sign of the determinant, and the logarithm of its magnitude."""

    sign: Any
    logabsdet: Any


def slogdet(x: Any) -> SlogdetResult:
    """The sign and the logarithm of the magnitude of the determinant, which neither overflow nor underflow.

    Args:
        x: floating matrices `(..., n, n)`.

    Returns:
        Two arrays `(...)`: `sign`, -1, 0 or 1, and the logarithm `logabsdet`, -inf for a singular matrix.

    Raises:
        ShapeError: `x` is not square.
        DtypeError: `x` is bool.

    Example:
        >>> import quabla as qb
        >>> sign, log = qb.linalg.slogdet(-2.0 * qb.eye(3))
        >>> sign.item(), f"{log.item():.4f}"
        (-1.0, '2.0794')
    """
    x = operand(x, "slogdet")
    square("slogdet", x.aval)
    return SlogdetResult(*bind(slogdet_op, (x,), {}))
