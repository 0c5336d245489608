"""Eigenvalues and eigenvectors: values against NumPy, derivatives where eigenvalues differ and where they repeat."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quabla as qb
from quabla.testing import check_grads

A = qb.array
la = qb.linalg
DEVICES = ["reference", "cpu"]


def symmetric(*shape: int, seed: int = 0) -> np.ndarray:
    a = np.random.default_rng(seed).normal(size=shape)
    return a + a.swapaxes(-1, -2)


def rotation(n: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))[0]


def with_eigenvalues(*values: float, seed: int = 0) -> np.ndarray:
    """A matrix in general position with these eigenvalues."""
    q = rotation(len(values), seed)
    a = q @ np.diag(values) @ q.T
    return (a + a.T) / 2


def run(device: str, f: Callable[..., Any], *arrays: np.ndarray) -> Any:
    return qb.jit(f, device=device)(*[A(a) for a in arrays])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "shape", [(1, 1), (2, 2), (3, 3), (5, 5), (40, 40), (4, 3, 3), (2, 3, 6, 6), (1, 7, 7)]
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_values(device: str, shape: tuple[int, ...], dtype: str) -> None:
    a = symmetric(*shape).astype(dtype)
    w, v = run(device, lambda x: la.eigh(x), a)
    assert str(w.numpy().dtype) == str(v.numpy().dtype) == dtype
    assert w.shape == shape[:-1] and v.shape == shape
    tolerance = (1e-13 if dtype == "float64" else 2e-5) * shape[-1]
    np.testing.assert_allclose(w.numpy(), np.linalg.eigvalsh(a), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(run(device, lambda x: la.eigvalsh(x), a).numpy(), w.numpy())
    v, w = v.numpy(), w.numpy()
    np.testing.assert_allclose(a @ v, v * w[..., None, :], atol=10 * tolerance)
    np.testing.assert_allclose(
        v.swapaxes(-1, -2) @ v, np.broadcast_to(np.eye(shape[-1]), shape), atol=tolerance
    )
    # One sign on every device: that of the first element that is not small.
    large = np.abs(v) > 0.4371 * np.abs(v).max(axis=-2, keepdims=True)
    first = np.take_along_axis(v, np.argmax(large, axis=-2)[..., None, :], axis=-2)
    assert (first > 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_the_symmetric_part_counts_and_a_stack_has_the_bits_of_its_parts(device: str) -> None:
    a = symmetric(3, 5, 5)
    skew = np.random.default_rng(1).normal(size=(3, 5, 5))
    skew = skew - skew.swapaxes(-1, -2)
    for one, two in zip(run(device, la.eigh, a), run(device, la.eigh, a + skew), strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy(), atol=1e-13)
    f = lambda x: la.eigh(x)
    whole = run(device, f, a)
    for i in range(3):
        for one, all_ in zip(run(device, f, a[i]), whole, strict=True):
            np.testing.assert_array_equal(one.numpy(), all_.numpy()[i])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_matrix_that_is_not_finite_gives_nan_and_spares_its_neighbours(device: str, bad: float) -> None:
    a = symmetric(3, 4, 4)
    good = [x.numpy() for x in run(device, lambda x: la.eigh(x), a)]
    a[1, 2, 0] = bad
    for x, before in zip(run(device, lambda x: la.eigh(x), a), good, strict=True):
        assert np.isnan(x.numpy()[1]).all()
        np.testing.assert_array_equal(x.numpy()[[0, 2]], before[[0, 2]])


REPEATED = [
    (4.0, 1.0, 1.0),
    (2.0, 2.0, 2.0),
    (0.0, 0.0, 5.0),
    (-1.0, -1.0, 3.0, 3.0),
    (0.0,) * 4,
    (1e8, 1e8, 1.0),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("values", REPEATED)
def test_repeated_eigenvalues(device: str, values: tuple[float, ...]) -> None:
    for a in (np.diag(values), with_eigenvalues(*values)):
        w, v = (x.numpy() for x in run(device, lambda x: la.eigh(x), a))
        scale = max(1.0, *map(abs, values))
        np.testing.assert_allclose(w, sorted(values), atol=1e-14 * scale * 10)
        np.testing.assert_allclose((v * w) @ v.T, a, atol=1e-14 * scale * 10)
        np.testing.assert_allclose(v.T @ v, np.eye(len(values)), atol=1e-14)


# --- derivatives ------------------------------------------------------------------------------------------------------

WEIGHTS = np.random.default_rng(5).normal(size=(4, 4))
SMOOTH: dict[str, Callable[[Any], Any]] = {
    "values": lambda a: la.eigh(a)[0],
    "one value": lambda a: la.eigvalsh(a)[1],
    "vectors": lambda a: la.eigh(a)[1],
    "one vector": lambda a: la.eigh(a)[1][:, 2] * A(WEIGHTS[0]),
    "both": lambda a: (lambda w, v: qb.sin(w) * qb.matmul(A(WEIGHTS), v))(*la.eigh(a)),
    "square root": lambda a: (lambda w, v: qb.matmul(v * qb.sqrt(w + 9.0), v.T))(*la.eigh(a)),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_where_the_eigenvalues_differ(name: str) -> None:
    for a in (
        with_eigenvalues(-2.0, -0.5, 1.0, 4.0),
        symmetric(4, 4, seed=3) + 0.1 * np.triu(np.ones((4, 4)), 1),
    ):
        check_grads(SMOOTH[name], (A(a),), order=2)


def test_under_transforms() -> None:
    a = symmetric(3, 4, 4, seed=7)
    f = lambda x: qb.sum(qb.sin(la.eigh(x)[0]) * la.eigh(x)[1][0] ** 2)
    rows = [qb.grad(f)(A(x)).numpy() for x in a]
    np.testing.assert_allclose(qb.jit(qb.vmap(qb.grad(f)))(A(a)).numpy(), rows, rtol=1e-12)
    loop = lambda x: qb.fori_loop(0, 2, lambda i, c: la.eigh(c)[1] * 0.5 + x, x)
    np.testing.assert_allclose(
        qb.jit(qb.grad(lambda x: qb.sum(loop(x))))(A(a[0])).numpy(),
        qb.grad(lambda x: qb.sum(la.eigh(la.eigh(x)[1] * 0.5 + x)[1] * 0.5 + x))(A(a[0])).numpy(),
        rtol=1e-10,
    )  # fmt: skip


def by_limit(f: Callable[[np.ndarray], float], a: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """Central differences of a function of the symmetric part."""
    out = np.zeros_like(a)
    for i, j in np.ndindex(a.shape):
        e = np.zeros_like(a)
        e[i, j] = h / 2
        e = e + e.T
        out[i, j] = (f(a + e) - f(a - e)) / (2 * h)
    return out


# Functions of repeated eigenvalues that do not tell their eigenvectors apart, and the same with NumPy.
BLIND: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], float]]] = {
    "log det": (
        lambda a: qb.sum(qb.log(la.eigvalsh(a) + 9.0)),
        lambda a: np.linalg.slogdet(a + 9 * np.eye(len(a)))[1],
    ),
    "trace of the square": (lambda a: qb.sum(la.eigvalsh(a) ** 2), lambda a: float(np.trace(a @ a))),
    "element of the square": (
        lambda a: (lambda w, v: qb.matmul(v * w**2, v.T)[0, 1])(*la.eigh(a)),
        lambda a: (a @ a)[0, 1],
    ),
    "quadratic form of the inverse": (
        lambda a: (lambda w, v: qb.sum((v.T @ A(WEIGHTS[0, : a.shape[0]])) ** 2 / (w + 9.0)))(*la.eigh(a)),
        lambda a: float(WEIGHTS[0, : len(a)] @ np.linalg.solve(a + 9 * np.eye(len(a)), WEIGHTS[0, : len(a)])),
    ),
}


@pytest.mark.parametrize("name", BLIND)
@pytest.mark.parametrize("values", REPEATED[:5])
def test_derivatives_where_eigenvalues_repeat(name: str, values: tuple[float, ...]) -> None:
    f, same = BLIND[name]
    for a in (np.diag(values), with_eigenvalues(*values), with_eigenvalues(*values, seed=4)):
        assert qb.jit(f)(A(a)).item() == pytest.approx(same(a), abs=1e-11)
        # Functions of eigenvectors need what was left out only in their eigenspace, where a function of the matrix has
        # the derivative of its eigenvalues alone.
        if "element" in name or "form" in name:
            continue
        np.testing.assert_allclose(qb.jit(qb.grad(f))(A(a)).numpy(), by_limit(same, a), atol=1e-7)


@pytest.mark.cpu
def test_one_simple_eigenvector_among_repeated_eigenvalues() -> None:
    """The loss is smooth: the other eigenvectors may turn among themselves, but do not enter."""

    def loss(m: Any) -> Any:
        v = la.eigh(m)[1][:, -1]
        return v[0] * v[1]

    g = np.array(qb.grad(loss)(A(np.diag([4.0, 1.0, 1.0]))))
    assert g[0, 1] + g[1, 0] == pytest.approx(1 / 3, abs=1e-14)
    g[0, 1] = g[1, 0] = 0.0
    assert not g.any()

    def same(a: np.ndarray) -> float:
        v = np.linalg.eigh(a)[1][:, -1]
        return float(v[0] * v[1])

    for values, seed in itertools.product(
        [(4.0, 1.0, 1.0), (5.0, 0.0, 0.0), (1e6, -2e5, -2e5), (3.0, 1.0, 1.0, 1.0)], range(4)
    ):
        a = with_eigenvalues(*values, seed=seed)
        scale = max(map(abs, values))
        for device in DEVICES:
            found = run(device, qb.grad(loss), a).numpy()
            np.testing.assert_allclose(scale * found, scale * by_limit(same, a, 1e-5 * scale), atol=1e-7)


def test_second_derivatives_where_eigenvalues_repeat_are_never_wrong_in_silence() -> None:
    f = lambda a: qb.sum(la.eigvalsh(a) ** 2)
    n = 3
    right = np.einsum("ik,jl->ijkl", np.eye(n), np.eye(n)) + np.einsum("il,jk->ijkl", np.eye(n), np.eye(n))
    apart = with_eigenvalues(-1.0, 0.5, 2.0)
    np.testing.assert_allclose(qb.hessian(f)(A(apart)).numpy(), right, atol=1e-12)
    for a in (np.eye(3), np.diag([4.0, 1.0, 1.0]), with_eigenvalues(4.0, 1.0, 1.0)):
        found = qb.hessian(f)(A(a)).numpy()
        assert np.isnan(found).any()
        np.testing.assert_allclose(found[~np.isnan(found)], right[~np.isnan(found)], atol=1e-12)
    with qb.debug_nans(), pytest.raises(qb.NanError):
        qb.hessian(f)(qb.eye(3))


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=5),
    st.integers(0, 10**6),
    st.sampled_from([1e-3, 1.0, 1e5]),
)
def test_a_function_of_the_spectrum_has_its_derivative(values: list[int], seed: int, scale: float) -> None:
    """d tr f(a) = f'(a), whether eigenvalues repeat or not."""
    a = scale * with_eigenvalues(*map(float, values), seed=seed)
    g = qb.grad(lambda x: qb.sum(la.eigvalsh(x) ** 3) / scale**2)(A(a)).numpy()
    np.testing.assert_allclose(g, 3 * a @ a / scale**2, atol=1e-11)


def test_errors_name_the_function() -> None:
    for name in ("eigh", "eigvalsh"):
        f = getattr(la, name)
        with pytest.raises(qb.ShapeError, match=rf"^{name}|^eigh: takes square matrices.*\(2, 3\)"):
            f(qb.ones((2, 3)))
        with pytest.raises(qb.DtypeError, match=f"^{name}: takes floating operands"):
            f(qb.ones((2, 2)) > 0.0)
        with pytest.raises(qb.ShapeError, match="square"):
            f(3.0)


def test_against_jax() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    a = with_eigenvalues(-2.0, 0.3, 1.0, 4.0)
    jnp = jax.numpy

    def theirs(x: Any) -> Any:
        w, v = jnp.linalg.eigh(x)
        return jnp.sum(jnp.sin(w) * (v[0] * v[1]) ** 2)

    def ours(x: Any) -> Any:
        w, v = la.eigh(x)
        return qb.sum(qb.sin(w) * (v[0] * v[1]) ** 2)

    np.testing.assert_allclose(qb.grad(ours)(A(a)).numpy(), jax.grad(theirs)(a), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(qb.hessian(ours)(A(a)).numpy(), jax.hessian(theirs)(a), rtol=1e-9, atol=1e-10)
