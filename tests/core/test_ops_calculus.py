"""Differences, integrals, polynomials, grids, diagonals, products and margins: NumPy and JAX as oracles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.testing import check_grads

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 5))


def close(got: Any, expected: Any, rtol: float = 1e-13) -> None:
    assert got.shape == np.shape(expected)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=rtol, atol=1e-14)


# --- differences and integrals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_diff(axis: int, n: int) -> None:
    close(qb.diff(qb.array(X), n, axis), np.diff(X, n, axis))


def test_diff_of_too_few() -> None:
    with pytest.raises(qb.ShapeError, match="diff: 3 differences of the 3 elements along axis 0"):
        qb.diff(qb.array(X), 3, 0)
    with pytest.raises(qb.ShapeError, match="diff"):
        qb.diff(qb.array(X), -1)
    with pytest.raises(qb.ShapeError, match="diff"):
        qb.diff(1.0)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_trapezoid(axis: int) -> None:
    close(qb.trapezoid(qb.array(X), axis=axis), np.trapezoid(X, axis=axis))
    close(qb.trapezoid(qb.array(X), dx=0.25, axis=axis), np.trapezoid(X, dx=0.25, axis=axis))
    t = np.sort(RNG.normal(size=X.shape[axis]))
    close(qb.trapezoid(qb.array(X), qb.array(t), axis=axis), np.trapezoid(X, t, axis=axis))
    x = np.sort(RNG.normal(size=X.shape), axis=axis)
    close(qb.trapezoid(qb.array(X), qb.array(x), axis=axis), np.trapezoid(X, x, axis=axis))
    check_grads(lambda y, t: qb.trapezoid(y, t, axis=axis), (qb.array(X), qb.array(t)), order=2)


def test_trapezoid_of_one_point() -> None:
    for y in (np.ones((1, 2)), np.full((1, 3), np.nan)):
        close(qb.trapezoid(qb.array(y), axis=0), np.trapezoid(y, axis=0))
        close(qb.trapezoid(qb.array(y), qb.array([2.0]), axis=0), np.trapezoid(y, [2.0], axis=0))
    close(qb.trapezoid(qb.array([3.0]), dx=0.5), np.trapezoid([3.0], dx=0.5))
    assert qb.grad(lambda y: qb.trapezoid(y))(qb.array([3.0])).tolist() == [0.0]


def test_trapezoid_errors() -> None:
    with pytest.raises(qb.ShapeError, match=r"x of shape \(3,\)"):
        qb.trapezoid(qb.ones((2, 4)), qb.ones(3))


# --- functions from points --------------------------------------------------------------------------------------------


def test_polyval() -> None:
    p = RNG.normal(size=4)
    close(qb.polyval(qb.array(p), qb.array(X)), np.polyval(p, X))
    close(qb.polyval([1.0, 2.0, 3.0], qb.array(X)), np.polyval([1.0, 2.0, 3.0], X))
    close(qb.polyval(qb.array([2.0]), qb.array(X)), np.full(X.shape, 2.0))
    check_grads(qb.polyval, (qb.array(p), qb.array(X[0])), order=2)
    assert qb.grad(lambda a: qb.polyval([a, 1.0], 3.0))(2.0).item() == 3.0
    with pytest.raises(qb.ShapeError, match="polyval: the coefficients are a vector"):
        qb.polyval(qb.ones((2, 2)), 1.0)
    with pytest.raises(qb.ShapeError, match="no coefficient"):
        qb.polyval([], 1.0)


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_meshgrid(indexing: str, count: int) -> None:
    vectors = [RNG.normal(size=n) for n in (2, 3, 4)[:count]]
    got = qb.meshgrid(*map(qb.array, vectors), indexing=indexing)
    expected = np.meshgrid(*vectors, indexing=indexing)  # type: ignore[arg-type]
    assert isinstance(got, tuple) and len(got) == count
    for a, b in zip(got, expected, strict=True):
        close(a, b)


def test_meshgrid_errors() -> None:
    with pytest.raises(qb.ShapeError, match="'xy' or 'ij'"):
        qb.meshgrid(qb.ones(2), indexing="yx")
    with pytest.raises(qb.ShapeError, match="takes vectors"):
        qb.meshgrid(qb.ones((2, 2)))


# --- diagonals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(-3, 4))
def test_diagonals(k: int) -> None:
    v = RNG.normal(size=4)
    close(qb.diag(qb.array(v), k), np.diag(v, k))
    if -3 < k < 4:
        close(qb.diag(qb.array(X[0][:3]), k), np.diag(X[0][:3], k))
        close(qb.diagonal(qb.array(X), k, 0, 1), np.diagonal(X, k, 0, 1))
        close(qb.array(X).trace(k), np.trace(X, k))
    if -4 < k < 3:
        close(qb.diagonal(qb.array(X), k, 1, 0), np.diagonal(X, k, 1, 0))
        close(qb.trace(qb.array(X), k, -2, 0), np.trace(X, k, -2, 0))


def test_diagonals_differentiate() -> None:
    check_grads(lambda x: qb.diagonal(x, 1, 2, 0), (qb.array(X),), order=1)
    check_grads(lambda v: qb.diag(v, -1), (qb.array(X[0, 0]),), order=1)
    assert qb.grad(qb.trace)(qb.array(X[0][:3])).tolist() == np.eye(3, 5).tolist()
    assert qb.vmap(qb.diag)(qb.array(X[0])).shape == (4, 5, 5)


def test_empty_diagonals() -> None:
    with pytest.raises(qb.ShapeError, match=r"diagonal: diagonal 4 of a matrix of shape \(3, 4\) is empty"):
        qb.diagonal(qb.ones((3, 4)), 4)
    with pytest.raises(qb.ShapeError, match="rank 2 or more"):
        qb.trace(qb.ones(3))
    with pytest.raises(qb.ShapeError, match="both 0"):
        qb.diagonal(qb.ones((3, 4)), 0, 0, -2)
    with pytest.raises(qb.ShapeError, match="a vector or a matrix"):
        qb.diag(qb.ones((2, 2, 2)))
    with pytest.raises(qb.DtypeError, match="trace: takes a floating operand"):
        qb.trace(qb.array([[True]]))


@pytest.mark.parametrize(
    ("a", "b"), [(X, X[0]), (X[0], X), (X[0, 0], X[0, 1]), (X[0], 2.0), (X[:, 0], X[:, 1])]
)
def test_kron(a: Any, b: Any) -> None:
    close(qb.kron(qb.array(a), qb.array(b)), np.kron(a, b))
    check_grads(qb.kron, (qb.array(a), qb.array(b)), order=1)


def test_cross() -> None:
    a, b = RNG.normal(size=(4, 3)), RNG.normal(size=(2, 4, 3))
    close(qb.cross(qb.array(a), qb.array(b)), np.cross(a, b))
    close(qb.cross(qb.array(b), qb.array(a[0])), np.cross(b, a[0]))
    close(qb.cross(qb.array(a.T), qb.array(a.T[:, ::-1]), axis=0), np.cross(a.T, a.T[:, ::-1], axis=0))
    check_grads(qb.cross, (qb.array(a), qb.array(b)), order=2)
    with pytest.raises(qb.ShapeError, match="three components along axis -1"):
        qb.cross(qb.ones(2), qb.ones(2))


# --- margins ----------------------------------------------------------------------------------------------------------

WIDTHS: list[Any] = [0, 1, (2, 1), [[1, 2], [0, 3], [7, 9]], ((2,), (0,), (1,)), ((11, 0), (0, 12), (1, 1))]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("width", WIDTHS, ids=str)
def test_pad(mode: str, width: Any) -> None:
    expected = np.pad(X, width, mode=mode)  # type: ignore[call-overload]
    close(qb.pad(qb.array(X), width, mode=mode), expected)
    x = qb.array(X)
    got = qb.grad(lambda v: qb.sum(qb.pad(v, width, mode=mode) ** 3))(x)
    count = _multiplicity(width, mode)
    close(got, 3.0 * X**2 * count)


def _multiplicity(width: Any, mode: str) -> np.ndarray:
    """How often each element occurs in the padded array."""
    places = np.pad(np.arange(X.size).reshape(X.shape) + 1, width, mode=mode)
    return np.bincount(places.ravel(), minlength=X.size + 1)[1:].reshape(X.shape)


@pytest.mark.parametrize("value", [1.5, (1.0, 2.0), ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))], ids=str)
def test_pad_with_constants(value: Any) -> None:
    for width in WIDTHS:
        close(qb.pad(qb.array(X), width, constant_values=value), np.pad(X, width, constant_values=value))


def test_pad_with_a_traced_constant() -> None:
    got = qb.grad(lambda c: qb.sum(qb.pad(qb.ones((2, 3)), 1, constant_values=c)))(2.0)
    assert got.item() == 20.0 - 6.0


def test_pad_of_truth_values() -> None:
    assert qb.pad(qb.array([True]), 1, constant_values=False).tolist() == [False, True, False]
    assert qb.pad(qb.array([True]), 1, mode="edge").tolist() == [True, True, True]


def test_pad_errors() -> None:
    with pytest.raises(qb.UnsupportedOperationError, match="mode 'mean' is not one of"):
        qb.pad(qb.ones(3), 1, mode="mean")
    with pytest.raises(qb.ShapeError, match="not negative"):
        qb.pad(qb.ones(3), -1)
    with pytest.raises(qb.ShapeError, match="a pair for each of 2 axes"):
        qb.pad(qb.ones((2, 2)), ((1, 1), (1, 1), (1, 1)))
    with pytest.raises(qb.ShapeError, match="a width is an integer"):
        qb.pad(qb.ones(3), 1.5)


def test_against_jax() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp

    x = X[0][:3, :3]
    for name in ("trace", "diagonal", "diff", "trapezoid"):
        ours, others = getattr(qb, name), getattr(jnp, name)
        mine = qb.hessian(lambda v, f=ours: qb.sum(f(v * v) * 1.5))(qb.array(x))
        theirs = jax.hessian(lambda v, f=others: jnp.sum(f(v * v) * 1.5))(x)
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-12, atol=1e-14)
