"""Whoever computes a span, and when: results have the same bits, and nothing is written outside of its own memory."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import quabla as qb
from quabla_cpu import codegen, pool
from quabla_cpu.backend import build
from tests.cpu.panel_programs import lowered, network, panels_of, row_ops, small_work_divided, tensor

pytestmark = pytest.mark.cpu

Piece = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
Order = Callable[[int], list[tuple[int, int]]]

_GUARD = 8192  # bytes on either side of what a program may write
_MARK = 0xA5

ORDERS: list[Order] = [
    lambda n: [(i, 0) for i in range(n)],
    lambda n: [(n - 1 - i, n - 1) for i in range(n)],
    lambda n: random.Random(n).sample([(i, i) for i in range(n)], n),
    lambda n: [(i, i % 2) for i in (*range(1, n, 2), *range(0, n, 2))],
]


class Scripted:
    """A stand-in for the pool that does the pieces of a call one by one, in a given order, with given slots."""

    def __init__(self) -> None:
        self.order, self.calls = ORDERS[0], 0
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self.function = prototype(self.run)

    def run(self, function: int, context: int, count: int) -> None:
        self.calls += 1
        for index, slot in self.order(count):
            Piece(function)(context, index, slot)

    def address(self) -> Any:
        return ctypes.cast(self.function, ctypes.c_void_p).value


_STAND_IN = Scripted()  # as long as the process: code that calls it may be kept


@pytest.fixture(scope="module")
def scripted() -> Iterator[Scripted]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "address", _STAND_IN.address)
        patch.setattr(codegen, "_STACK", 0)  # all temporaries where this file can see them
        yield _STAND_IN


def guarded(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory full of NaN between two guards: all of it, and what a program may write."""
    memory = np.full(nbytes + 2 * _GUARD + 64, _MARK, np.uint8)
    start = -memory.ctypes.data % 64 + _GUARD
    inside = memory[start : start + nbytes]
    inside[...] = 0xFF
    return memory, inside


def check(scripted: Scripted, function: Callable[..., Any], *arrays: np.ndarray) -> None:
    """Run a program in every order, and look at its memory after each."""
    with small_work_divided():
        low = lowered(function, *arrays)
        executable = build(low, 32)  # a given width of vectors: not what another test left on disk
    tensors, entry, before = [tensor(x) for x in arrays], executable.entry, scripted.calls
    results = []
    for scripted.order in ORDERS:
        blocks = guarded(entry.out_nbytes), guarded(entry.workspace_nbytes)
        addresses = [inside.ctypes.data for _, inside in blocks]
        executable._call(executable._pack(*[x.address for x in tensors], *addresses))
        for memory, inside in blocks:
            inside_at = inside.ctypes.data - memory.ctypes.data
            assert (memory[:inside_at] == _MARK).all() and (memory[inside_at + inside.size :] == _MARK).all()
        block = blocks[0][1]
        results.append(
            [
                block[offset : offset + aval.nbytes].tobytes()
                for aval, offset in zip(executable.out_avals, entry.out_offsets, strict=True)
            ]
        )
    assert all(result == results[0] for result in results)
    assert results[0] == [x.numpy().tobytes() for x in build(low, 32)(*tensors)]
    assert [x.numpy().tobytes() for x in tensors] == [x.tobytes() for x in arrays]
    assert scripted.calls > before or not panels_of(low)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("rows", [24, 25, 97, 200])
def test_training_a_network(scripted: Scripted, rows: int, dtype: Any) -> None:
    step, arrays = network(rows, (3, 16, 16, 1), dtype)
    before = scripted.calls
    check(scripted, step, *arrays)
    assert scripted.calls > before


def test_panels_in_the_body_of_a_loop(scripted: Scripted) -> None:
    def f(x: Any, w: Any) -> Any:
        last, sums = qb.scan(lambda c, i: (qb.tanh(c @ w) - qb.mean(c, axis=0), qb.sum(c)), x, qb.arange(3))
        return last, sums

    rng = np.random.default_rng(0)
    before = scripted.calls
    check(scripted, f, rng.normal(size=(64, 7)), rng.normal(size=(7, 7)))
    assert scripted.calls >= before + 3 * len(ORDERS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_program_over_rows(scripted: Scripted, data: st.DataObject) -> None:
    rows, columns = data.draw(st.sampled_from([24, 29, 48, 64, 101])), data.draw(st.integers(3, 9))
    dtype = data.draw(st.sampled_from([np.float64, np.float32]))
    ops = row_ops()
    chosen = data.draw(st.lists(st.sampled_from(range(len(ops))), min_size=1, max_size=6))
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(rows, columns)) / columns).astype(dtype)
    w = (rng.normal(size=(columns, columns)) / columns**0.5).astype(dtype)

    def f(x: Any, w: Any) -> Any:
        xs = [x]
        for number in chosen:
            xs.append(ops[number](lambda xs: xs[-1 - number % min(len(xs), 2)], xs, w))  # noqa: B023
        return xs[-1], qb.sum(xs[-1]), xs[-1].T @ xs[0]

    check(scripted, f, x, w)
