"""Linear algebra on MLX: NumPy and SciPy agree, and what is singular is NaN, not an exception."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import quabla as qb

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.mlx

SHAPES = [(1, 1), (2, 2), (7, 7), (40, 40), (3, 1, 1), (2, 3, 4, 4)]
TOLERANCE = {"float64": 1e-11, "float32": 2e-3}


def matrices(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return (rng.normal(size=shape) + 2.0 * np.eye(shape[-1])).astype(dtype)


def jit(function: Any, *xs: np.ndarray) -> Any:
    return qb.jit(lambda *v: function(*v), device="mlx")(*map(qb.array, xs))  # a cache of its own


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_solve_det_and_slogdet(shape: tuple[int, ...], dtype: str) -> None:
    a = matrices(shape, dtype)
    b = np.random.default_rng(1).normal(size=(*shape[:-1], 2)).astype(dtype)
    wide = a.astype(np.float64)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    np.testing.assert_allclose(
        jit(qb.linalg.solve, a, b).numpy(), np.linalg.solve(wide, b.astype(np.float64)), **close
    )
    np.testing.assert_allclose(jit(qb.linalg.det, a).numpy(), np.linalg.det(wide), rtol=close["rtol"])
    sign, log = jit(qb.linalg.slogdet, a)
    expected = np.linalg.slogdet(wide)
    assert np.array_equal(sign.numpy(), expected[0])
    np.testing.assert_allclose(log.numpy(), expected[1], **close)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cholesky_and_triangles(shape: tuple[int, ...], dtype: str) -> None:
    a = matrices(shape, dtype)
    positive = (np.matmul(a, a.swapaxes(-1, -2)) + np.eye(shape[-1])).astype(dtype)
    low = jit(qb.linalg.cholesky, positive).numpy()
    np.testing.assert_allclose(
        low, np.linalg.cholesky(positive.astype(np.float64)), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
    assert np.array_equal(low, np.tril(low))
    if len(shape) == 2:
        b = np.random.default_rng(2).normal(size=(shape[0], 3)).astype(dtype)
        got = jit(lambda m, v: qb.linalg.solve_triangular(m, v, lower=True), low, b).numpy()
        exact = scipy.linalg.solve_triangular(low.astype(np.float64), b.astype(np.float64), lower=True)
        np.testing.assert_allclose(got, exact, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("n", [1, 2, 5])
def test_singular_is_nan_and_leaves_the_other_matrices_alone(n: int) -> None:
    good = 2.0 * np.eye(n)
    bad = np.zeros((n, n))
    b = np.ones((2, n, 1))
    x = jit(qb.linalg.solve, np.stack([bad, good]), b).numpy()
    assert np.isnan(x[0]).all() and np.array_equal(x[1], np.full((n, 1), 0.5))
    low = jit(qb.linalg.cholesky, np.stack([-good, good])).numpy()
    assert np.isnan(low[0]).all() and np.allclose(low[1] @ low[1].T, good)
    assert jit(qb.linalg.det, bad).item() == 0.0


def test_a_determinant_whose_factors_are_out_of_range() -> None:
    a = np.diag([1e200, 1e200, 1e-300, 1e-100, 3.0])
    np.testing.assert_allclose(jit(qb.linalg.det, a).item(), 3.0, rtol=1e-14)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_eigh(shape: tuple[int, ...], dtype: str) -> None:
    a = matrices(shape, dtype)
    a = a + a.swapaxes(-1, -2)
    values, vectors = (x.numpy() for x in jit(qb.linalg.eigh, a))
    np.testing.assert_allclose(
        values, np.linalg.eigvalsh(a.astype(np.float64)), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
    back = np.matmul(vectors * values[..., None, :], vectors.swapaxes(-1, -2))
    np.testing.assert_allclose(back, a, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_gradients_are_those_of_the_reference() -> None:
    a, b = matrices((5, 5), "float64"), np.arange(5.0)

    def f(a: Any, b: Any) -> Any:
        x = qb.linalg.solve(a, b)
        return qb.sum(x * x) + qb.linalg.slogdet(a)[1] + qb.linalg.det(a)

    gradient = qb.grad(f, argnums=(0, 1))
    got = jit(gradient, a, b)
    expected = qb.jit(gradient, device="reference")(qb.array(a), qb.array(b))
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-9, atol=1e-9)
