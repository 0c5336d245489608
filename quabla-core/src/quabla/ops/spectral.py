"""Eigenvalues and eigenvectors of symmetric matrices.

The derivative of an eigenvector is a sum over the other ones, each divided by the distance of the two eigenvalues.
Where that distance is zero up to rounding the term is left out: eigenvectors of a repeated eigenvalue may be turned
among themselves, and a function that has a derivative there does not notice. What it does notice comes from the other
terms, and so its derivative is right. A second derivative would need the limits of what was left out: it is NaN there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import bind
from quabla.ir.op import Op, Sample, define
from quabla.ops import elementwise
from quabla.ops.apply import binary, operand, promote
from quabla.ops.compare import less_equal
from quabla.ops.determinant import diagonal
from quabla.ops.elementwise import stop_gradient
from quabla.ops.factor import square
from quabla.ops.linalg import product, turned
from quabla.ops.reduce import max as max_of
from quabla.ops.shape import expand_dims
from quabla.ops.structure import broadcast, reshape_to, sum_over
from quabla.shapes import ShapeDtype, aval_of

__all__ = ["eigh", "eigvalsh"]

FIRST = 0.4371
"""Of an eigenvector, the first element that is larger than this part of the largest one is positive. No fraction that
structured matrices give rise to, so that rounding does not decide the sign."""


def _near(x: Any, bound: Any) -> Any:
    return less_equal(elementwise.abs(x), bound)


def _inverse_slope(x: Any, bound: Any, out: Any) -> Any:
    return elementwise.where(_near(x, bound), math.nan, elementwise.neg(elementwise.mul(out, out)))


def _inverse_numpy(x: np.ndarray, bound: np.ndarray) -> np.ndarray:
    near = np.abs(x) <= bound
    return np.asarray(np.where(near, 0, 1 / np.where(near, 1, x)), x.dtype)


def _inverse_of_simpler(x: Any, bound: Any) -> Any:
    near = _near(x, bound)
    return elementwise.where(near, 0.0, elementwise.div(1.0, elementwise.where(near, 1.0, x)))


inverse_gap_op = elementwise.elementwise(
    "inverse_gap",
    _inverse_slope,
    None,
    evaluate=_inverse_numpy,
    decompose=_inverse_of_simpler,
    samples=lambda: iter(
        [
            Sample("matrix", lambda rng: (rng.uniform(0.3, 3.0, (3, 4)), np.full((3, 4), 1e-9))),
            Sample("scalar", lambda rng: (rng.uniform(-3.0, -0.3, ()), np.array(1e-9))),
        ]
    ),
)


def _eigh_infer(a: ShapeDtype) -> tuple[ShapeDtype, ShapeDtype]:
    square("eigh", a)
    return aval_of(a.shape[:-1], a.dtype), aval_of(a.shape, a.dtype)


def _eigh_numpy(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    half = a.dtype.type(0.5)
    s = half * a + half * a.swapaxes(-1, -2)
    fine = np.isfinite(s).all(axis=(-1, -2))
    values, vectors = np.full(s.shape[:-1], np.nan, s.dtype), np.full(s.shape, np.nan, s.dtype)
    for at in np.ndindex(fine.shape):
        if fine[at]:
            try:
                values[at], vectors[at] = np.linalg.eigh(s[at])
            except np.linalg.LinAlgError:
                continue
    size = np.abs(vectors)
    large = size > a.dtype.type(FIRST) * size.max(axis=-2, keepdims=True)
    first = np.take_along_axis(vectors, np.argmax(large, axis=-2)[..., None, :], axis=-2)
    return values, vectors * np.copysign(a.dtype.type(1), first)


def _eigh_jvp(primals: Any, tangents: Any, out: Any) -> Any:
    # M. Giles, Collected matrix derivative results for forward and reverse mode algorithmic differentiation (2008),
    # section 3.1: dw = diag(vᵀ da v), dv = v (F * (vᵀ da v)) with F[i, j] = 1 / (w[j] - w[i]).
    (da,) = tangents
    if da is None:
        return None, None
    w, v = out
    n = w.shape[-1]
    moved = elementwise.mul(elementwise.add(da, turned(da)), 0.5)
    inner = product(product(v, moved, x_transposed=True), v)
    if n == 1:
        return diagonal(inner), None
    gaps = elementwise.sub(expand_dims(w, -2), expand_dims(w, -1))
    largest = max_of(elementwise.abs(stop_gradient(w)), axis=-1, keepdims=True)
    bound = broadcast(expand_dims(elementwise.mul(largest, n * _unit(w)), -1), gaps.shape)
    own = broadcast(wrap(np.eye(n, dtype=bool)), gaps.shape)
    inverse = binary(inverse_gap_op, elementwise.where(own, 1.0, gaps), bound)
    # A factor of 1, but for a further derivative: it is NaN where eigenvalues repeat, as is that of `inverse`.
    one = elementwise.add(elementwise.mul(sum_over(inverse, (inverse.ndim - 2, inverse.ndim - 1)), 0.0), 1.0)
    inner = elementwise.mul(inner, broadcast(reshape_to(one, (*one.shape, 1, 1)), inner.shape))
    factor = elementwise.where(own, 0.0, inverse)
    return diagonal(inner), product(v, elementwise.mul(factor, inner))


def _unit(x: Any) -> float:
    return float(np.finfo(x.dtype.numpy).eps)


def _eigh_samples() -> Iterator[Sample]:
    def separate(rng: Any, *shape: int) -> tuple[np.ndarray]:
        n = shape[-1]
        noise = rng.normal(size=shape) / n
        return (0.5 * noise + np.diag(np.arange(n) * 1.5 - 1.0)[::-1, ::-1],)

    yield Sample("matrix", lambda rng: separate(rng, 4, 4))
    yield Sample("one", lambda rng: separate(rng, 1, 1))
    yield Sample("stack", lambda rng: separate(rng, 2, 3, 3))
    yield Sample("larger", lambda rng: separate(rng, 12, 12), smooth=False)
    bad = np.array([[[1.0, 2.0], [2.0, -1.0]], [[np.nan, 1.0], [1.0, 3.0]], [[np.inf, 1.0], [1.0, 3.0]]])
    yield Sample("not_finite", lambda rng: (bad,), smooth=False)


eigh_op: Op = define(
    Op(
        name="eigh",
        infer=_eigh_infer,
        evaluate=_eigh_numpy,
        jvp=_eigh_jvp,
        batch=lambda operands, mapped, size: bind(eigh_op, operands, {}),
        samples=_eigh_samples,
        multiple=True,
    )
)


# --- what users call --------------------------------------------------------------------------------------------------


class EighResult(NamedTuple):
    """What `eigh` returns: the eigenvalues in ascending order, and the eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


def eigh(x: Any) -> EighResult:
    """The eigenvalues and eigenvectors of symmetric matrices.

    Args:
        x: floating matrices `(..., n, n)`, of which the symmetric part counts, `(x + xᵀ) / 2`.

    Returns:
        The eigenvalues `(..., n)` in ascending order, and the eigenvectors `(..., n, n)` as columns, of length 1 and
        with a sign that does not depend on the device. All elements are NaN for a matrix that is not finite.

        First derivatives are right wherever the function of these results has one: among repeated eigenvalues, too, as
        long as it does not tell their eigenvectors apart. Second derivatives exist where the eigenvalues differ, and
        are NaN where two are equal.

    Raises:
        ShapeError: `x` is not square.
        DtypeError: `x` is bool.

    Example:
        >>> import quabla as qb
        >>> w, v = qb.linalg.eigh(qb.array([[2.0, 1.0], [1.0, 2.0]]))
        >>> [round(x, 12) for x in w.tolist()]
        [1.0, 3.0]
        >>> qb.grad(lambda a: qb.linalg.eigh(a)[0][-1])(qb.array([[4.0, 0.0], [0.0, 1.0]])).tolist()
        [[1.0, 0.0], [0.0, 0.0]]
    """
    (x,) = promote((operand(x, "eigh"),), "eigh")
    square("eigh", x.aval)
    return EighResult(*bind(eigh_op, (x,), {}))


def eigvalsh(x: Any) -> Any:
    """The eigenvalues of symmetric matrices: the first result of `eigh`.

    Args:
        x: floating matrices `(..., n, n)`, of which the symmetric part counts.

    Returns:
        An array `(..., n)`, ascending.

    Raises:
        ShapeError: `x` is not square.
        DtypeError: `x` is bool.

    Example:
        >>> import quabla as qb
        >>> [round(x, 12) for x in qb.linalg.eigvalsh(qb.array([[0.0, 2.0], [2.0, 3.0]])).tolist()]
        [-1.0, 4.0]
    """
    (x,) = promote((operand(x, "eigvalsh"),), "eigvalsh")
    square("eigvalsh", x.aval)
    return bind(eigh_op, (x,), {})[0]
