"""A long run does not grow: 100,000 steps of a trainer and 100,000 calls keep the resident size where it was."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quabla as qb

STATM = Path("/proc/self/statm")
CALLS = 100_000
# Growth that is none: the allocator's own steps. A leak of 64 bytes per call would be 6 MB.
ALLOWED = 3 << 20

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.slow,
    pytest.mark.skipif(not STATM.exists(), reason="the resident size is read from Linux's /proc"),
]


def resident() -> int:
    """The bytes of this process that are in memory now."""
    gc.collect()
    return int(STATM.read_text("ascii").split()[1]) * mmap.PAGESIZE


def growth(call: Callable[[], Any], calls: int = CALLS) -> int:
    """How many bytes the process grew by in many calls, after enough of them to have met every allocation."""
    for _ in range(calls // 2):
        call()
    before = resident()
    for _ in range(calls):
        call()
    return resident() - before


def problem() -> tuple[Callable[..., Any], Any, Any]:
    """A fit with a vector of parameters, and arrays of a size that goes to the heap at each call."""
    x = qb.linspace(0.0, 1.0, 64)
    return (
        lambda p, x: qb.mean((qb.tanh(p["a"] * x) + p["b"] - x**2) ** 2),
        {"a": x * 0.5, "b": qb.array(0.1)},
        x,
    )


def test_the_measure_sees_a_leak() -> None:
    kept: list[bytes] = []
    assert growth(lambda: kept.append(bytes(64))) > ALLOWED


def trainer() -> Any:
    loss, params, x = problem()
    return qb.optim.Trainer(loss, params, qb.optim.Adam(1e-4), x)


def test_steps_of_a_trainer() -> None:
    assert growth(trainer().step) < ALLOWED


def test_steps_of_a_trainer_whose_loss_and_parameters_are_read() -> None:
    trained = trainer()

    def call() -> None:
        trained.step()
        trained.loss().item()
        trained.params["a"]

    assert growth(call) < ALLOWED


def test_calls_of_a_compiled_function() -> None:
    loss, params, x = problem()
    step = qb.jit(qb.value_and_grad(loss))
    assert growth(lambda: step(params, x)) < ALLOWED


def test_calls_that_feed_each_other() -> None:
    """A loop of the user: each result is the next argument, and nothing holds the earlier ones."""
    loss, params, x = problem()
    step = qb.jit(lambda p, x: qb.tree.map(lambda a, g: a - 1e-4 * g, p, qb.grad(loss)(p, x)))
    kept = [params]

    def call() -> None:
        kept[0] = step(kept[0], x)

    assert growth(call) < ALLOWED


def test_calls_with_a_loop_and_threads() -> None:
    """Regions and panels use memory of their own for a call."""
    x = qb.ones((4096, 16))
    weights = qb.ones((16, 16)) * 0.01
    step = qb.jit(lambda x, w: qb.fori_loop(0, 2, lambda i, s: qb.tanh(s @ w), x))
    assert growth(lambda: step(x, weights), 2000) < ALLOWED + 8 * x.size
