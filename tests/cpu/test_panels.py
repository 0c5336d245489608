"""Panels: rows taken some at a time, by any number of threads, give what the steps give one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import quabla as qb
from quabla.backends.reference import build as reference
from quabla.lowering.grouping import Limits
from quabla.lowering.loops import Kernel, Product
from quabla.lowering.work import cost
from quabla_cpu.backend import build
from tests.cpu.panel_programs import lowered, network, panels_of, row_ops, small_work_divided, tensor

pytestmark = pytest.mark.cpu


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = qb.get_num_threads()
    yield qb.set_num_threads
    qb.set_num_threads(before)


def check(function: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """Compare with the definition of every op; returns the lowered program."""
    with small_work_divided():
        low = lowered(function, *arrays)
        tensors = [tensor(x) for x in arrays]
        got = build(low)(*tensors)
    for g, w in zip(got, reference(low.program)(*tensors), strict=True):
        if w.dtype.kind != "f":
            np.testing.assert_array_equal(g.numpy(), w.numpy())
            continue
        eps = np.finfo(w.dtype.numpy).eps
        scale = np.abs(w.numpy()[np.isfinite(w.numpy())]).max(
            initial=1.0
        )  # what cancels is as large as the operands
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=2000 * eps, atol=2000 * eps * scale)
    return low


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("rows", [24, 25, 64, 97, 200])
@pytest.mark.parametrize("widths", [(3, 16, 16, 1), (2, 5, 7, 3)])
def test_training_a_network(rows: int, widths: tuple[int, ...], dtype: Any) -> None:
    step, arrays = network(rows, widths, dtype)
    low = check(step, *arrays)
    (panel,) = [p for p in panels_of(low) if p.rows == rows]
    assert (
        len(panel.steps) > 5 and panel.parts
    )  # forward and backward pass in one, sums of gradients among them


@pytest.mark.parametrize("rows", [1000, 1021, 2048])
def test_a_real_network_becomes_one_panel(rows: int) -> None:
    step, arrays = network(rows, (2, 32, 32, 1))
    low = lowered(step, *arrays)
    (panel,) = panels_of(low)
    assert panel.rows == rows and panel.spans > 1
    large = [s for s in low.plan.steps if isinstance(s, (Kernel, Product)) and cost(s) > 20_000]
    assert not large
    # What one step leaves for the next is private to a thread, and fits into its cache.
    assert 0 < panel.private_nbytes <= Limits().cache


def test_bits_do_not_depend_on_the_number_of_threads(threads: Callable[[int], None]) -> None:
    step, arrays = network(1021, (2, 32, 32, 1))
    executable = build(lowered(step, *arrays))
    tensors = [qb.array(x) for x in arrays]
    results = []
    for n in (1, 2, 3, 7, 1):
        threads(n)
        for _ in range(5):
            results.append(b"".join([x.numpy().tobytes() for x in executable(*tensors)]))
    assert len(set(results)) == 1


def test_large_calls_from_many_threads_at_once(threads: Callable[[int], None]) -> None:
    threads(3)
    step, arrays = network(1024, (2, 32, 32, 1))
    executable = build(lowered(step, *arrays))
    tensors = [qb.array(x) for x in arrays]
    want = [x.numpy().tobytes() for x in executable(*tensors)]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            if [x.numpy().tobytes() for x in executable(*tensors)] != want:
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_two_numbers_of_rows_are_two_panels() -> None:
    def f(x: Any, y: Any, w: Any) -> Any:
        return qb.sum(qb.tanh(x @ w) ** 2) + qb.sum(qb.sin(y @ w)), qb.tanh(x @ w)[0]

    rng = np.random.default_rng(0)
    low = check(f, rng.normal(size=(96, 6)), rng.normal(size=(40, 6)), rng.normal(size=(6, 6)))
    assert {96, 40} <= {p.rows for p in panels_of(low)}


def test_what_needs_a_sum_over_all_rows_comes_in_a_panel_of_its_own() -> None:
    def normalised(x: Any, w: Any) -> Any:
        h = qb.tanh(x @ w)
        h = (h - qb.mean(h, axis=0)) / (qb.std(h, axis=0) + 1e-3)
        return (qb.sum(qb.exp(-h * h) @ w, axis=1),)

    rng = np.random.default_rng(0)
    low = check(normalised, rng.normal(size=(120, 8)), rng.normal(size=(8, 8)))
    assert sum(p.rows == 120 for p in panels_of(low)) >= 2


def test_weights_with_as_many_rows_as_there_are_points() -> None:
    def f(x: Any, w: Any) -> Any:
        twice = w * 2.0  # 48 rows, too, but all of them are needed for every row of x
        return qb.tanh(qb.tanh(x @ twice) @ twice), qb.sum(qb.sin(twice))

    rng = np.random.default_rng(0)
    low = check(f, rng.normal(size=(48, 48)), rng.normal(size=(48, 48)) / 7)
    assert max(len(p.steps) for p in panels_of(low)) >= 4


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
@pytest.mark.parametrize("shape", [(1000,), (997,), (100, 7), (97, 9), (3, 101), (64, 64)])
def test_reductions(shape: tuple[int, ...], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=shape) * 100).astype(dtype)

    def f(x: Any) -> Any:
        yield from (qb.sum(x), qb.max(x), qb.min(x), qb.any(x > 5), qb.all(x < 300))
        for axis in range(x.ndim):
            yield from (
                qb.sum(x, axis=axis),
                qb.max(x, axis=axis),
                qb.min(x, axis=axis),
                qb.any(x > 120, axis=axis),
            )

    check(f, x)


def test_reductions_of_special_values() -> None:
    x = np.ones(500)
    x[137] = np.nan
    y = np.full(500, -0.0)
    z = np.full(500, np.inf)
    z[3] = -np.inf
    got = []
    with small_work_divided():
        for a in (x, y, z):
            f = lowered(lambda a: (qb.sum(a), qb.max(a), qb.min(a)), a)
            assert panels_of(f)
            got.append([v.item() for v in build(f)(qb.array(a))])
    assert all(np.isnan(v) for v in got[0])
    assert [str(v) for v in got[1]] == ["-0.0", "-0.0", "-0.0"]
    assert np.isnan(got[2][0]) and got[2][1:] == [np.inf, -np.inf]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("sizes", [(180, 160, 140), (37, 700, 41), (513, 65, 31), (16, 1030, 300)])
def test_large_products(sizes: tuple[int, int, int], transposed: tuple[bool, bool], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    m, k, n = sizes
    x = rng.normal(size=(k, m) if transposed[0] else (m, k)).astype(dtype)
    y = rng.normal(size=(n, k) if transposed[1] else (k, n)).astype(dtype)
    low = check(lambda x, y: ((x.T if transposed[0] else x) @ (y.T if transposed[1] else y),), x, y)
    assert panels_of(low)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_program_over_rows(data: st.DataObject) -> None:
    rows, columns = data.draw(st.sampled_from([24, 29, 40, 48, 64, 101])), data.draw(st.integers(3, 9))
    if data.draw(st.booleans()):
        columns = rows
    dtype = data.draw(st.sampled_from([np.float64, np.float32]))
    ops = row_ops()
    chosen = data.draw(st.lists(st.sampled_from(range(len(ops))), min_size=1, max_size=7))
    picks = data.draw(st.lists(st.integers(0, 100), min_size=30, max_size=30))
    rng = np.random.default_rng(data.draw(st.integers(0, 5)))
    x = (rng.normal(size=(rows, columns)) / columns).astype(dtype)
    w = (rng.normal(size=(columns, columns)) / columns**0.5).astype(dtype)

    def f(x: Any, w: Any) -> Any:
        left = iter(picks)
        xs = [x]
        for number in chosen:
            xs.append(ops[number](lambda xs: xs[-1 - next(left) % min(len(xs), 3)], xs, w))
        return (xs[-1], qb.sum(xs[-1]), qb.sum(xs[len(xs) // 2], axis=0), xs[-1].T @ xs[0])

    def with_gradient(x: Any, w: Any) -> Any:
        return *f(x, w), *qb.grad(lambda x, w: qb.sum(f(x, w)[0] * x), (0, 1))(x, w)

    check(with_gradient if data.draw(st.booleans()) else f, x, w)


def test_sums_of_millions_lose_no_digits() -> None:
    """The error of adding equal numbers one after another grows with their number; sums of sums keep it small."""
    for n in (1_000_000, 3_000_001):
        got = qb.jit(qb.sum)(qb.array(np.full(n, 0.1))).item()
        exact = float(Fraction(0.1) * n)
        assert abs(got - exact) < 40 * np.finfo(np.float64).eps * exact
