"""`quabla.norm` with `ord`: values against NumPy, derivatives against differences, and every transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import quabla as qb

A = qb.array
X = np.random.default_rng(3).normal(size=(3, 4, 5))
VECTORS = [None, 1, 2, 3, 2.5, 0.5, -1, 0, np.inf, -np.inf]
MATRICES = [None, "fro", 1, -1, np.inf, -np.inf]
CASES = [(o, a) for o in VECTORS for a in (0, 1, -1)] + [
    (o, a) for o in MATRICES for a in ((0, 1), (1, 0), (0, -1), (2, 1))
]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("ord, axis", CASES)
def test_values_are_those_of_numpy(ord: Any, axis: Any, keepdims: bool) -> None:
    expected = np.linalg.norm(X, ord, axis, keepdims)
    f = lambda x: qb.norm(x, axis, keepdims, ord=ord)
    for y in (
        f(A(X)),
        qb.jit(f)(A(X)),
        A(X).norm(axis, keepdims, ord=ord),
        qb.jit(f, device="reference")(A(X)),
    ):
        assert y.shape == expected.shape
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-13)
    narrow = f(A(X, "float32"))
    assert narrow.dtype is qb.float32
    np.testing.assert_allclose(narrow.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("ord", [o for o in VECTORS if o != 0])
def test_vectors_alone_and_their_derivatives(ord: Any) -> None:
    x = X[0, 0]
    f = lambda x: qb.norm(x, ord=ord)
    assert f(A(x)).item() == pytest.approx(np.linalg.norm(x, ord), rel=1e-14)
    h = 1e-6
    slopes = [
        (np.linalg.norm(x + h * e, ord) - np.linalg.norm(x - h * e, ord)) / (2 * h) for e in np.eye(x.size)
    ]
    g = qb.grad(f)(A(x)).numpy()
    np.testing.assert_allclose(g, slopes, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(
        [qb.jvp(f, (A(x),), (A(e),))[1].item() for e in np.eye(5)], g, rtol=1e-12, atol=1e-15
    )
    curve = [(qb.grad(f)(A(x + h * e)) - qb.grad(f)(A(x - h * e))).numpy() / (2 * h) for e in np.eye(5)]
    np.testing.assert_allclose(qb.hessian(f)(A(x)).numpy(), curve, rtol=1e-6, atol=1e-8)
    rows = qb.vmap(qb.grad(f))(A(X[0]))
    np.testing.assert_allclose(rows.numpy(), [qb.grad(f)(A(r)).numpy() for r in X[0]], rtol=1e-14)


@pytest.mark.parametrize("ord", MATRICES)
def test_matrices_alone_and_their_derivatives(ord: Any) -> None:
    x = X[0]
    f = lambda x: qb.norm(x, ord=ord)
    assert f(A(x)).item() == pytest.approx(np.linalg.norm(x, ord), rel=1e-14)
    g, h = qb.grad(f)(A(x)).numpy(), 1e-6
    for e in np.eye(x.size).reshape(-1, *x.shape):
        slope = (np.linalg.norm(x + h * e, ord) - np.linalg.norm(x - h * e, ord)) / (2 * h)
        assert np.sum(g * e) == pytest.approx(slope, rel=1e-7, abs=1e-9)
    np.testing.assert_allclose(qb.vmap(f)(A(X)).numpy(), [np.linalg.norm(m, ord) for m in X], rtol=1e-14)


def test_the_order_of_numpy_s_arguments() -> None:
    for ord, axis in ((1, 0), ("fro", (0, 2)), (None, 1)):
        ours = qb.linalg.norm(A(X), ord, axis, True)
        np.testing.assert_array_equal(ours.numpy(), qb.norm(A(X), axis, True, ord=ord).numpy())


@pytest.mark.parametrize(
    "ord, axis, error, message",
    [
        ("fro", 0, qb.ShapeError, "the order of a vector norm is a number, got 'fro'"),
        ("nuc", (0, 1), qb.UnsupportedOperationError, r"the matrix norm 'nuc' needs .*eigvalsh\(x.T @ x\)"),
        (2, (0, 1), qb.UnsupportedOperationError, r"the matrix norm 2 needs .*eigvalsh\(x.T @ x\)"),
        (3, (0, 1), qb.ShapeError, "the order of a matrix norm is 1, -1, inf, -inf or 'fro', got 3"),
        ([1], 0, qb.ShapeError, "the order of a vector norm is a number"),
        (1, None, qb.ShapeError, r"takes one axis for vectors or two for matrices, got \(0, 1, 2\)"),
        (1, (0, 0), qb.ShapeError, "takes one axis"),
        (1, 5, qb.ShapeError, "5"),
    ],
)
def test_orders_that_are_refused(ord: Any, axis: Any, error: Any, message: str) -> None:
    for f in (lambda x: qb.norm(x, axis, ord=ord), lambda x: qb.linalg.norm(x, ord, axis)):
        for run in (f, qb.jit(f)):
            with pytest.raises(error, match=f"^norm: .*{message}"):
                run(A(X))


def test_the_singular_values_of_the_refusal() -> None:
    x = A(X[0])
    found = qb.sqrt(qb.maximum(qb.linalg.eigvalsh(x @ x.T), 0.0))
    np.testing.assert_allclose(found.numpy()[::-1], np.linalg.svd(X[0], compute_uv=False), rtol=1e-10)
