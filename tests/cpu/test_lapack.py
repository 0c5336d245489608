"""LAPACK from native code: what a plan calls, in which layout, and that the numbers are those of NumPy and SciPy."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

import quabla as qb
from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import trace
from quabla.lowering.loops import Call, Kernel
from quabla.ops.factor import eliminate, lu, lu_det, lu_solve
from quabla.transforms import reverse
from quabla_cpu.backend import CpuBackend, build

la = qb.linalg
WIDTHS = (16, 32, 64)


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def regular(*shape, seed=0):
    return normal(*shape, seed=seed) / np.sqrt(shape[-1]) + 2.0 * np.eye(shape[-1])[::-1]


def positive(*shape, seed=0):
    m = normal(*shape, seed=seed)
    return m @ m.swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1])


def traced(function, *avals):
    return trace(lambda *xs: tuple(function(*xs)), avals)[0]


def run(function, *arrays, width=None):
    tensors = [wrap(np.array(x)) for x in arrays]
    program = traced(function, *[t.aval for t in tensors])
    return [x.numpy() for x in build(CpuBackend().lower(program, "cpu"), width)(*tensors)]


def calls(program):
    """The routines and the number of kernels of a lowered program."""
    steps = CpuBackend().lower(program, "cpu").plan.steps
    return [s.node.op.name for s in steps if isinstance(s, Call)], sum(isinstance(s, Kernel) for s in steps)


def close(got, expected, tolerance=None):
    eps = np.finfo(got.dtype).eps
    assert got.shape == expected.shape
    np.testing.assert_allclose(
        got, expected, rtol=0, atol=(tolerance or 500) * eps * max(1.0, np.abs(expected).max())
    )


# --- what is called ---------------------------------------------------------------------------------------------------

MATRIX, COLUMNS = qb.ShapeDtype((6, 6)), qb.ShapeDtype((6, 2))


def test_one_factorisation_serves_forward_and_backward_pass():
    program = reverse.vjp(traced(lambda a, b: [la.solve(a, b)], MATRIX, COLUMNS))
    assert calls(program)[0] == ["lu", "lu_solve", "lu_solve"]
    both = traced(
        lambda a, b: [la.solve(a, b), la.solve(a, b[:, 0]), *la.slogdet(a), la.det(a)], MATRIX, COLUMNS
    )
    assert calls(both)[0].count("lu") == 1


def test_transposed_matrices_are_not_rearranged():
    for f in (
        lambda a, b: [la.solve(a.T, b), la.solve(a, b)],
        lambda a, b: [la.triangular_solve(a.T, b, lower=True)],
        lambda a, b: [la.triangular_solve(qb.swapaxes(a, 0, 1), b, trans=1)],
    ):
        names, kernels = calls(traced(f, MATRIX, COLUMNS))
        assert names in (["lu", "lu_solve", "lu_solve"], ["triangular_solve"]) and kernels == 0


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 33])
def test_factors_against_scipy(n, dtype, width):
    a = regular(2, n, n).astype(dtype)
    factors, pivots = run(lu, a, width=width)
    for k in range(2):
        expected, interchanges = scipy.linalg.lu_factor(a[k])
        close(factors[k], expected.T)
        np.testing.assert_array_equal(pivots[k], interchanges)
    b = normal(2, n, 3).astype(dtype)
    for transposed in (False, True):
        (x,) = run(lambda f, p, b, t=transposed: [lu_solve(f, p, b, t)], factors, pivots, b, width=width)
        for k in range(2):
            expected = scipy.linalg.lu_solve(
                (factors[k].T, pivots[k].astype(np.int32)), b[k], trans=int(transposed)
            )
            close(x[k], expected)
    det, sign = run(lambda f, p: [lu_det(f, p), lu_det(f, p, True)], factors, pivots, width=width)
    close(det, np.linalg.det(a))
    np.testing.assert_array_equal(sign, np.sign(np.linalg.det(a)))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 9])
def test_the_pivot_is_the_first_of_the_largest(n):
    a = (
        np.where(np.arange(n * n).reshape(n, n) % 3 == 1, -2.0, 2.0)
        + np.diag(np.arange(n, dtype=float))[::-1]
    )
    factors, pivots = run(lu, a)
    expected, interchanges = scipy.linalg.lu_factor(a)
    np.testing.assert_array_equal(pivots, interchanges)
    close(factors, expected.T)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("trans", [0, 1])
def test_triangular_systems_with_transposed_matrices(lower, trans):
    a, b = positive(5, 5) + normal(5, 5) / 5, normal(5, 2)
    (x,) = run(lambda a, b: [la.triangular_solve(a.T, b, lower=lower, trans=trans)], a, b)
    close(x, scipy.linalg.solve_triangular(a.T, b, lower=lower, trans=trans))
    stack, columns = np.stack([a, 2.0 * a]), np.stack([b, b])
    (x,) = run(
        lambda a, b: [la.triangular_solve(qb.swapaxes(a, 1, 2), b, lower=lower, trans=trans)], stack, columns
    )
    close(x[1], 0.5 * scipy.linalg.solve_triangular(a.T, b, lower=lower, trans=trans))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("k", [1, 2, 7])
@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_triangular_systems_against_scipy(n, k, dtype):
    a, b = (positive(n, n) + normal(n, n) / n).astype(dtype), normal(n, k).astype(dtype)
    for lower in (False, True):
        for trans in (0, 1):
            for unit in (False, True):
                scaled = a / (4 * n) if unit else a
                flags = {"lower": lower, "trans": trans, "unit_diagonal": unit}
                (x,) = run(lambda a, b, flags=flags: [la.triangular_solve(a, b, **flags)], scaled, b)
                close(x, scipy.linalg.solve_triangular(scaled, b, **flags))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 40])
def test_cholesky_against_scipy(n, dtype):
    p = positive(3, n, n).astype(dtype)
    (got,) = run(lambda p: [la.cholesky(p)], p)
    close(got, np.stack([scipy.linalg.cholesky(x, lower=True) for x in p]))
    assert (got == np.tril(got)).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 30])
def test_elimination_makes_a_diagonal(n, dtype):
    a = normal(2, n, n).astype(dtype)
    left, right, reduced, sign = run(eliminate, a)
    diagonal = left.astype(np.float64) @ a @ right
    close((diagonal - reduced).astype(dtype), np.zeros_like(a), 1e3)
    wide = np.linalg.det(left.astype(np.float64)) * np.linalg.det(right.astype(np.float64))
    np.testing.assert_allclose(wide, sign, rtol=1e-4)
    largest = np.abs(np.diagonal(reduced, axis1=1, axis2=2))
    assert (largest[:, :1] * (1 + 1e-6) >= np.abs(a).max(axis=(1, 2), keepdims=True)[..., 0]).all()
    assert (reduced == reduced * np.eye(n)).all()


def test_large_systems():
    a, b, p = normal(500, 500), normal(500, 10), positive(500, 500)
    x, column, factor, det = run(
        lambda a, b, p: [la.solve(a, b), la.solve(a, b[:, 3]), la.cholesky(p), la.slogdet(a)[1]], a, b, p
    )
    assert np.abs(a @ x - b).max() < 1e-10
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=0, atol=1e-9 * np.abs(x).max())
    np.testing.assert_allclose(column, x[:, 3], rtol=0, atol=1e-10 * np.abs(x).max())
    close(factor, np.linalg.cholesky(p), 5e3)
    np.testing.assert_allclose(det, np.linalg.slogdet(a)[1], rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(1, 4), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_operands_in_any_layout(n, k, turned, sliced, seed):
    """Transposed, sliced, reversed and broadcast operands, in one program with what computes them."""
    a, b = regular(n, n, seed=seed), normal(k, 2 * n, seed=seed)

    def ours(a, b):
        m = a.T if turned else a[:, ::-1]
        r = (b[:, ::2] if sliced else b[:, n:]).T * 2.0
        return [
            la.solve(m + 0.0, r),
            la.solve(m, r),
            la.cholesky(m @ m.T) + 1.0,
            la.det(qb.broadcast_to(m, (2, n, n))),
        ]

    m = a.T if turned else a[:, ::-1]
    r = (b[:, ::2] if sliced else b[:, n:]).T * 2.0
    if turned is False and np.linalg.cond(m) > 1e6:
        return
    x, y, factor, det = run(ours, a, b)
    expected = np.linalg.solve(m, r)
    tolerance = 1e-13 * np.linalg.cond(m) * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(x, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(
        y, expected, rtol=0, atol=tolerance
    )  # of the transposed system, where `turned`
    np.testing.assert_allclose(factor, np.linalg.cholesky(m @ m.T) + 1.0, rtol=0, atol=1e-8)
    np.testing.assert_allclose(det, [np.linalg.det(m)] * 2, rtol=1e-10, atol=1e-12)


def test_one_by_one_between_elementwise_ops():
    """What a kernel keeps in registers is not what a routine has left in memory."""
    a = np.array([[4.0]])

    def f(a):
        return [
            la.cholesky(a) * 3.0,
            la.solve(a + 1.0, a) * a,
            la.det(a * 2.0) + 1.0,
            la.slogdet(-a)[0] * 2.0,
        ]

    out = run(f, a)
    assert [float(x.ravel()[0]) for x in out] == [6.0, 3.2, 9.0, -2.0]


def test_systems_inside_loops():
    """A loop holds its own calls; its steps are those of NumPy."""
    a, b = regular(5, 5), normal(5)

    @qb.jit
    def f(a, x):
        return qb.fori_loop(0, 4, lambda i, x: la.solve(a, x) + x, x)

    expected = b
    for _ in range(4):
        expected = np.linalg.solve(a, expected) + expected
    np.testing.assert_allclose(f(qb.array(a), qb.array(b)).numpy(), expected, rtol=1e-11)
    g = qb.jit(qb.grad(lambda a: qb.sum(f(a, qb.array(b)))))(qb.array(a)).numpy()
    h = 1e-5
    step = np.zeros((5, 5))
    step[1, 2] = h
    total = [qb.sum(f(qb.array(a + s * step), qb.array(b))).item() for s in (1.0, -1.0)]
    np.testing.assert_allclose(g[1, 2], (total[0] - total[1]) / (2 * h), rtol=1e-6)


def test_equal_bits_on_every_call_and_in_every_thread():
    a, b = qb.array(regular(20, 6, 6)), qb.array(normal(20, 6, 2))
    f = qb.jit(qb.value_and_grad(lambda a, b: qb.sum(la.solve(a, b) ** 2)))
    f(a, b)
    seen = []

    def work():
        for _ in range(20):
            value, gradient = f(a, b)
            seen.append((value.numpy().tobytes(), gradient.numpy().tobytes()))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(seen) == 60 and len(set(seen)) == 1
