"""Factors of square matrices: the primitives that `solve` and the determinants are computed with.

A backend that has them takes `solve`, `det` and `slogdet` apart into these, after differentiation, so that one
factorisation serves every system with the same matrix: the forward and the backward pass, and every column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from quabla.arrays.tracer import bind
from quabla.dtypes import int64
from quabla.errors import DtypeError, ShapeError
from quabla.ir.op import Op, Refused, Sample, define
from quabla.ops.structure import lead
from quabla.shapes import ShapeDtype, aval_of

__all__ = ["eliminate", "lu", "lu_det", "lu_solve", "square"]

_AFTER = "programs are taken apart into it after differentiation"


def square(name: str, a: ShapeDtype) -> int:
    """The extent of the last two axes, or an error that names the op."""
    if a.dtype.kind != "f":
        raise DtypeError(f"{name}: takes floating matrices, got {a}; convert with .astype(quabla.float64)")
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"{name}: takes square matrices, (..., n, n), got shape {a.shape}")
    return a.shape[-1]


def led(operands: Any, mapped: Any, size: int) -> list[Any]:
    """The operands, all with the batch axis in front."""
    return [lead(x, m, size) for x, m in zip(operands, mapped, strict=True)]


# --- LU with partial pivoting -----------------------------------------------------------------------------------------


def lu(a: Any) -> tuple[Any, Any]:
    """The factors of `a` `(..., n, n)` with partial pivoting, `P a = L U`.

    Returns:
        The factors in one matrix, stored by columns (the transpose of U with L below it, whose diagonal is 1), and the
        interchanges: step i swapped row i with row `pivots[..., i]`. A pivot that is zero is left as it is.
    """
    return bind(lu_op, (a,), {})  # type: ignore[no-any-return]


def _lu_infer(a: ShapeDtype) -> tuple[ShapeDtype, ShapeDtype]:
    square("lu", a)
    return aval_of(a.shape, a.dtype), aval_of(a.shape[:-1], int64)


def _lu_numpy(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n = a.shape[-1]
    x = np.array(a).reshape(-1, n, n)
    pivots = np.empty((len(x), n), np.int64)
    each = np.arange(len(x))
    for j in range(n):
        at = j + np.argmax(np.abs(x[:, j:, j]), axis=1)
        pivots[:, j] = at
        row = x[:, j].copy()
        x[:, j] = x[each, at]
        x[each, at] = row
        pivot = x[:, j, j]
        x[:, j + 1 :, j] /= np.where(pivot == 0, 1, pivot)[:, None]
        x[:, j + 1 :, j + 1 :] -= x[:, j + 1 :, j, None] * x[:, j, None, j + 1 :]
    return x.swapaxes(1, 2).reshape(a.shape), pivots.reshape(a.shape[:-1])


def well_conditioned(rng: Any, *shape: int) -> np.ndarray:
    """A matrix, or a stack of them, that samples can divide by."""
    a: np.ndarray = rng.normal(size=shape) / np.sqrt(shape[-1])
    return a + 2.0 * np.eye(shape[-1])[::-1]


lu_op = define(
    Op(
        name="lu",
        infer=_lu_infer,
        evaluate=_lu_numpy,
        jvp=Refused(_AFTER),
        batch=lambda operands, mapped, size: lu(operands[0]),
        samples=lambda: iter(
            [
                Sample("matrix", lambda rng: (well_conditioned(rng, 5, 5),)),
                Sample("one", lambda rng: (well_conditioned(rng, 1, 1),)),
                Sample("stack", lambda rng: (well_conditioned(rng, 2, 3, 4, 4),)),
                Sample("large", lambda rng: (well_conditioned(rng, 40, 40),)),
                Sample("zero_pivot", lambda rng: (np.array([[0.0, 1.0], [0.0, 2.0]]),), smooth=False),
            ]
        ),
        multiple=True,
    )
)


def lu_solve(factors: Any, pivots: Any, b: Any, transposed: bool) -> Any:
    """The solution of `a x = b` `(..., n, k)`, or of `aᵀ x = b`, given what `lu(a)` returned.

    NaN throughout where a pivot is zero. A position in `pivots` that is no row, as a damaged file may hold, swaps
    nothing.
    """
    return bind(lu_solve_op, (factors, pivots, b), {"transposed": transposed})


def _check_factors(name: str, factors: ShapeDtype, pivots: ShapeDtype) -> None:
    square(name, factors)
    expected = aval_of(factors.shape[:-1], int64)
    if pivots is not expected:
        raise ShapeError(f"{name}: factors {factors} have pivots {expected}, got {pivots}")


def _lu_solve_infer(
    factors: ShapeDtype, pivots: ShapeDtype, b: ShapeDtype, *, transposed: bool
) -> ShapeDtype:
    _check_factors("lu_solve", factors, pivots)
    if b.shape[:-1] != factors.shape[:-1] or b.dtype is not factors.dtype:
        raise ShapeError(f"lu_solve: factors {factors} and right-hand side {b} do not fit")
    return b


def _lu_solve_numpy(
    factors: np.ndarray, pivots: np.ndarray, b: np.ndarray, *, transposed: bool
) -> np.ndarray:
    n, k = b.shape[-2:]
    t = factors.reshape(-1, n, n)  # t[:, j, i] is element (i, j) of the factors
    p = pivots.reshape(-1, n)
    x = np.array(b).reshape(-1, n, k)
    a = t.swapaxes(1, 2)
    if transposed:
        x = substitute(t, x, lower=True, unit=False)
        x = substitute(t, x, lower=False, unit=True)
        for j in reversed(range(n)):
            _swap(x, j, p[:, j])
    else:
        for j in range(n):
            _swap(x, j, p[:, j])
        x = substitute(a, x, lower=True, unit=True)
        x = substitute(a, x, lower=False, unit=False)
    return x.reshape(b.shape)


def _swap(x: np.ndarray, j: int, at: np.ndarray) -> None:
    each = np.arange(len(x))
    at = np.where((at >= 0) & (at < x.shape[1]), at, j)
    row = x[:, j].copy()
    x[:, j] = x[each, at]
    x[each, at] = row


def substitute(a: np.ndarray, b: np.ndarray, lower: bool, unit: bool) -> np.ndarray:
    """The solution of `a x = b` by substitution, for stacks `(m, n, n)` and `(m, n, k)`; only one triangle is read.

    NaN throughout where the diagonal, if it is read, has a zero.
    """
    n = a.shape[-1]
    x = np.array(b)
    for i in range(n) if lower else reversed(range(n)):
        done = slice(0, i) if lower else slice(i + 1, n)
        if done.start < done.stop:
            x[:, i] -= np.matmul(a[:, i, None, done], x[:, done])[:, 0]
        if not unit:
            x[:, i] /= a[:, i, i, None]
    if not unit:
        x[(np.diagonal(a, axis1=1, axis2=2) == 0).any(axis=1)] = np.nan
    return x


def _lu_solve_transpose(ct: Any, operands: Any, wanted: Any, *, transposed: bool) -> Any:
    factors, pivots, _ = operands
    return None, None, lu_solve(factors, pivots, ct, not transposed)


def _factored(rng: Any, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    n = shape[-1]
    factors = rng.uniform(-1.0, 1.0, size=shape) / n + 2.0 * np.eye(n)
    pivots = np.arange(n) + np.floor(rng.random(shape[:-1]) * (n - np.arange(n))).astype(np.int64)
    return factors, pivots


def _outside(n: int) -> np.ndarray:
    return np.array([2, n, -1, -n, 2**40, -(2**40), 2**63 - 1, -(2**63)][:n])


SYSTEMS = (("columns", (5, 5), 3), ("vector", (4, 4), 1), ("one", (1, 1), 1), ("stack", (2, 3, 3), 2))
"""Samples of systems: a name, the shape of the matrices, and the number of columns."""


def _lu_solve_samples() -> Iterator[Sample]:
    for transposed in (False, True):
        for name, shape, k in SYSTEMS:
            yield Sample(
                f"{name}{'_transposed' * transposed}",
                lambda rng, shape=shape, k=k: (*_factored(rng, *shape), rng.normal(size=(*shape[:-1], k))),  # type: ignore[misc]
                {"transposed": transposed},
            )
        for n in (3, 8):  # positions beyond every row, which no program may follow
            yield Sample(
                f"outside{n}{'_transposed' * transposed}",
                lambda rng, n=n: (_factored(rng, n, n)[0], _outside(n), rng.normal(size=(n, 2))),  # type: ignore[misc]
                {"transposed": transposed},
            )


lu_solve_op: Op = define(
    Op(
        name="lu_solve",
        infer=_lu_solve_infer,
        evaluate=_lu_solve_numpy,
        jvp=Refused(_AFTER),
        batch=lambda operands, mapped, size, **params: bind(lu_solve_op, led(operands, mapped, size), params),
        samples=_lu_solve_samples,
    )
)


def lu_det(factors: Any, pivots: Any, signs: bool = False) -> Any:
    """The determinant of the matrix that `lu` was given, or (`signs`) its sign: -1, 0 or 1."""
    return bind(lu_det_op, (factors, pivots), {"signs": signs})


def _lu_det_infer(factors: ShapeDtype, pivots: ShapeDtype, *, signs: bool) -> ShapeDtype:
    _check_factors("lu_det", factors, pivots)
    return aval_of(factors.shape[:-2], factors.dtype)


def _lu_det_numpy(factors: np.ndarray, pivots: np.ndarray, *, signs: bool) -> Any:
    d = np.diagonal(factors, axis1=-2, axis2=-1)
    swaps = np.sum(pivots != np.arange(d.shape[-1]), axis=-1)
    if signs:
        d = np.sign(d)
    product, exponent = np.ones(d.shape[:-1]), np.zeros(d.shape[:-1], np.int64)
    for j in range(
        d.shape[-1]
    ):  # a product that is too large or too small on the way may be neither in the end
        product, more = np.frexp(product * np.frexp(d[..., j])[0])
        exponent = exponent + more + np.frexp(d[..., j])[1]
    product = np.ldexp(product, np.clip(exponent, -3000, 3000))
    return np.where(swaps % 2, -product, product).astype(factors.dtype)


def _lu_det_samples() -> Iterator[Sample]:
    for signs in (False, True):
        for name, shape in (("matrix", (5, 5)), ("one", (1, 1)), ("stack", (2, 3, 4, 4))):
            yield Sample(
                f"{name}{'_signs' * signs}",
                lambda rng, s=shape: _factored(rng, *s),  # type: ignore[misc]
                {"signs": signs},
            )
    yield Sample(
        "special", lambda rng: (np.array([[[0.0, 1.0], [1.0, -1.0]], [[np.nan, 1.0], [1.0, 1.0]]]),
                                np.array([[1, 1], [0, 1]])), {"signs": True}, smooth=False
    )  # fmt: skip


lu_det_op: Op = define(
    Op(
        name="lu_det",
        infer=_lu_det_infer,
        evaluate=_lu_det_numpy,
        jvp=Refused(_AFTER),
        batch=lambda operands, mapped, size, **params: bind(lu_det_op, led(operands, mapped, size), params),
        samples=_lu_det_samples,
    )
)


# --- elimination with complete pivoting -------------------------------------------------------------------------------


def eliminate(a: Any) -> tuple[Any, Any, Any, Any]:
    """Matrices `left` and `right` with which `left a right` is diagonal, the largest pivots first.

    Both are products of permutations and unit triangular matrices, so `det(a) = sign det(left a right)` for every `a`.
    They are constants: the derivative is zero by definition, as that of `stop_gradient`.

    Returns:
        `left`, `right`, `left a right` as computed, each of the shape of `a`, and `sign` without the last two axes.
    """
    return bind(eliminate_op, (a,), {})  # type: ignore[no-any-return]


def _eliminate_infer(a: ShapeDtype) -> tuple[ShapeDtype, ...]:
    square("eliminate", a)
    aval = aval_of(a.shape, a.dtype)
    return aval, aval, aval, aval_of(a.shape[:-2], a.dtype)


def _eliminate_numpy(a: np.ndarray) -> tuple[np.ndarray, ...]:
    n = a.shape[-1]
    stack = np.array(a).reshape(-1, n, n)
    left = np.zeros_like(stack) + np.eye(n, dtype=a.dtype)
    right = left.copy()
    sign = np.ones(len(stack), a.dtype)
    for k, (d, x, y) in enumerate(zip(stack, left, right, strict=True)):
        for j in range(n):
            row, column = divmod(int(np.argmax(np.abs(d[j:, j:]))), n - j)
            row, column = row + j, column + j
            pivot = d[row, column]
            if not abs(pivot) > 0:
                break
            for matrix, at in ((d, row), (x, row), (d.T, column), (y.T, column)):
                if at != j:
                    matrix[[j, at]] = matrix[[at, j]]
            sign[k] *= -1 if (row != j) != (column != j) else 1
            down, across = d[j + 1 :, j] / pivot, d[j, j + 1 :] / pivot
            d[j + 1 :, j + 1 :] -= down[:, None] * d[j, None, j + 1 :]
            x[j + 1 :] -= down[:, None] * x[j]
            y[:, j + 1 :] -= y[:, j, None] * across
            d[j + 1 :, j] = 0
            d[j, j + 1 :] = 0
    return left.reshape(a.shape), right.reshape(a.shape), stack.reshape(a.shape), sign.reshape(a.shape[:-2])


eliminate_op = define(
    Op(
        name="eliminate",
        infer=_eliminate_infer,
        evaluate=_eliminate_numpy,
        jvp=lambda primals, tangents, out: (None, None, None, None),
        batch=lambda operands, mapped, size: eliminate(operands[0]),
        samples=lambda: iter(
            [
                Sample("matrix", lambda rng: (rng.normal(size=(5, 5)),), smooth=False),
                Sample("one", lambda rng: (rng.normal(size=(1, 1)),), smooth=False),
                Sample("stack", lambda rng: (rng.normal(size=(2, 3, 3)),), smooth=False),
                Sample("singular", lambda rng: (np.outer([1.0, 2.0, 0.0], [1.0, 2.0, 0.0]),), smooth=False),
            ]
        ),
        multiple=True,
    )
)
