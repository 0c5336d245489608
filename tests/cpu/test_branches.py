"""Independent loops, factorisations and sorts run side by side, with the same bits on any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import quabla as qb
from quabla.lowering.loops import Branches, Call
from quabla_cpu.backend import build
from quabla_cpu.costs import costs_of
from quabla_cpu.lower import plan_of
from tests.cpu.panel_programs import lowered, tensor

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    before = qb.get_num_threads()
    yield
    qb.set_num_threads(before)


def check(function: Callable[..., Any], *arrays: np.ndarray) -> tuple[Any, list[np.ndarray]]:
    """The lowered program and its results, which are the same bits for every number of threads."""
    low = lowered(function, *arrays)
    compiled, tensors = build(low), [tensor(x) for x in arrays]
    results = []
    for threads in (1, 2, 5):
        qb.set_num_threads(threads)
        for _ in range(3):
            results.append([x.numpy() for x in compiled(*tensors)])
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            assert x.tobytes() == y.tobytes()
    return low, results[0]


def side_by_side(low: Any) -> list[list[str]]:
    """The ops of the calls of each group."""
    groups = [s for s in low.plan.steps if isinstance(s, Branches)]
    return [[s.node.op.name for s in group.steps if isinstance(s, Call)] for group in groups]


def logistic(y: Any, p: Any, steps: int = 1500) -> Any:
    """Euler's steps of y' = p sin(y)."""
    return qb.fori_loop(0, steps, lambda i, y: y + 0.001 * p * qb.sin(y), y)


def test_two_loops_and_their_gradient() -> None:
    def loss(a: Any, b: Any) -> Any:
        return logistic(0.5 * a, a) + 2.0 * logistic(0.25 * b, b)

    a, b = np.float64(0.7), np.float64(0.9)
    low, (ga, gb) = check(lambda x, y: qb.grad(loss, argnums=(0, 1))(x, y), np.asarray(a), np.asarray(b))
    assert side_by_side(low) == [["scan", "scan"], ["scan", "scan"]]

    def euler(y: float, p: float) -> float:
        for _ in range(1500):
            y = y + 0.001 * p * np.sin(y)
        return y

    h = 1e-6
    want_a = (euler(0.5 * (a + h), a + h) - euler(0.5 * (a - h), a - h)) / (2 * h)
    want_b = 2 * (euler(0.25 * (b + h), b + h) - euler(0.25 * (b - h), b - h)) / (2 * h)
    np.testing.assert_allclose([ga, gb], [want_a, want_b], rtol=1e-7)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_factorisations_and_systems(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    n = 120
    matrices = [m @ m.T + n * np.eye(n) for m in rng.normal(size=(4, n, n))]
    matrices = [m.astype(dtype) for m in matrices]
    right = rng.normal(size=n).astype(dtype)
    low, found = check(
        lambda a, b, c, d, v: (qb.cholesky(a), qb.cholesky(b), qb.solve(c, v), qb.solve(d, v)),
        *matrices,
        right,
    )
    assert [sorted(g) for g in side_by_side(low)] == [["cholesky", "cholesky", "lu", "lu"]]
    want = [np.linalg.cholesky(m.astype(np.float64)) for m in matrices[:2]]
    want += [scipy.linalg.solve(m.astype(np.float64), right) for m in matrices[2:]]
    for x, y in zip(found, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=200 * np.finfo(dtype).eps * np.abs(y).max())


def test_sorts_and_running_sums() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=6000), rng.normal(size=(2, 5000))
    c = rng.normal(size=90_000)
    low, (x, y, z) = check(lambda a, b, c: (qb.argsort(a), qb.sort(b), qb.cumsum(c)), a, b, c)
    assert [sorted(g) for g in side_by_side(low)] == [["argsort", "argsort", "cumsum"]]
    np.testing.assert_array_equal(x, np.argsort(a, kind="stable"))
    np.testing.assert_array_equal(y, np.sort(b))
    np.testing.assert_allclose(z, np.cumsum(c), rtol=1e-12, atol=1e-11)


def test_sums_of_few_long_rows() -> None:
    """Kernels that cannot be divided by rows."""
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(3, 30_000)), rng.normal(size=(3, 35_000))
    low, (x, y) = check(lambda a, b: (qb.sum(qb.exp(a), axis=1), qb.max(qb.sin(b), axis=1)), a, b)
    assert [len(s.steps) for s in low.plan.steps if isinstance(s, Branches)] == [2]
    np.testing.assert_allclose(x, np.exp(a).sum(axis=1), rtol=1e-13)
    np.testing.assert_allclose(y, np.sin(b).max(axis=1), rtol=1e-15)


def test_large_matrices_are_left_to_the_threads_of_the_library() -> None:
    rng = np.random.default_rng(6)
    a, b = (m @ m.T + 160 * np.eye(160) for m in rng.normal(size=(2, 160, 160)))
    low, (x, _) = check(lambda a, b: (qb.cholesky(a), qb.cholesky(b)), a, b)
    assert not side_by_side(low)
    np.testing.assert_allclose(x, np.linalg.cholesky(a), rtol=1e-9, atol=1e-9)


def test_branches_within_a_loop() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 5000))

    def step(i: Any, xy: Any) -> Any:
        return qb.argsort(xy[0]) * 1.0, qb.argsort(-xy[1]) * 1.0

    low, found = check(lambda x, y: qb.fori_loop(0, 3, step, (x, y)), x, y)
    (loop,) = [s for s in low.plan.steps if isinstance(s, Call)]
    assert any(isinstance(s, Branches) for s in plan_of(loop.node.params["body"]).steps)
    for _ in range(3):
        x, y = np.argsort(x, kind="stable") * 1.0, np.argsort(-y, kind="stable") * 1.0
    np.testing.assert_array_equal(found, [x, y])


def test_workers_have_the_stack_that_factorisations_take() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.normal(size=(2, 300, 300)) + 30 * np.eye(300)
    x, y = rng.normal(size=(2, 40_000))

    def loop(x: Any, a: Any) -> Any:
        def step(i: Any, x: Any) -> Any:
            return qb.sort(x) + qb.sum(qb.solve(a, x[:300]))

        return qb.fori_loop(0, 2, step, x)

    low, found = check(lambda x, y, a, b: (loop(x, a), loop(y, b)), x, y, a, b)
    assert side_by_side(low) == [["scan", "scan"]]
    for z, start, m in zip(found, (x, y), (a, b), strict=True):
        for _ in range(2):
            start = np.sort(start) + np.linalg.solve(m, start[:300]).sum()
        np.testing.assert_allclose(z, start, rtol=1e-9)


def test_small_loops_stay_in_their_thread() -> None:
    def newton(x: Any) -> Any:
        return qb.while_loop(lambda y: abs(y * y - x) > 1e-12, lambda y: 0.5 * (y + x / y), x)

    low, (x,) = check(lambda a, b: (newton(a) + newton(b),), np.asarray(2.0), np.asarray(3.0))
    assert not side_by_side(low)
    np.testing.assert_allclose(x, np.sqrt(2.0) + np.sqrt(3.0), rtol=1e-12)
    low, _ = check(lambda a, b: (logistic(a, b, 20), logistic(b, a, 20)), np.asarray(2.0), np.asarray(3.0))
    assert not side_by_side(low)


def test_what_threads_share_stays_outside() -> None:
    rng = np.random.default_rng(4)
    w = rng.normal(size=(64, 64)) / 8

    def loop(x: Any, w: Any) -> Any:
        return qb.fori_loop(0, 2, lambda i, x: qb.tanh(x @ w), x)

    x = rng.normal(size=(1024, 64))
    low, (y, z) = check(lambda x, w: (loop(x, w), loop(x, w.T)), x, w)
    assert not side_by_side(low)  # the rows of each are divided among all threads
    np.testing.assert_allclose(y, np.tanh(np.tanh(x @ w) @ w), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(z, np.tanh(np.tanh(x @ w.T) @ w.T), rtol=1e-12, atol=1e-12)


def test_costs_count_every_branch() -> None:
    rng = np.random.default_rng(5)
    low, _ = check(lambda a, b: (qb.argsort(a), qb.argsort(b)), *rng.normal(size=(2, 6000)))
    assert side_by_side(low) == [["argsort", "argsort"]]
    assert costs_of(low.program).routines == 2
