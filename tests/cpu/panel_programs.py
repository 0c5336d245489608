"""Programs that become panels, and how to have panels made of small ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tracer import trace
from quabla.lowering import panels
from quabla.lowering.grouping import Limits
from quabla.lowering.loops import Panel
from quabla_cpu import lower
from quabla_cpu.backend import CpuBackend

__all__ = ["lowered", "network", "panels_of", "row_ops", "small_work_divided", "tensor"]


SMALL = Limits(worth=1.0, rows=24, span=8, chunk=4, cache=4096, alone=4)


@contextlib.contextmanager
def small_work_divided() -> Iterator[None]:
    """Have panels made of programs that would be too small for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower, "in_panels", partial(panels.in_panels, limits=SMALL))
        yield


def tensor(x: np.ndarray) -> Any:
    """The array in its own dtype: integers of NumPy would become float64 otherwise."""
    return qb.array(x, dtype=x.dtype.name)


def lowered(function: Callable[..., Any], *arrays: np.ndarray) -> Any:
    program, _ = trace(lambda *xs: tuple(function(*xs)), [tensor(x).aval for x in arrays])
    return CpuBackend().lower(program, "cpu")


def panels_of(low: Any) -> list[Panel]:
    return [step for step in low.plan.steps if isinstance(step, Panel)]


def network(rows: int, widths: tuple[int, ...], dtype: Any = np.float64) -> tuple[Any, list[np.ndarray]]:
    """A tanh network with its loss, and everything that the gradient takes."""
    rng = np.random.default_rng(rows)
    arrays = [rng.normal(size=(rows, widths[0])), rng.normal(size=(rows, widths[-1]))]
    for a, b in zip(widths[:-1], widths[1:], strict=True):  # noqa: RUF007
        arrays += [rng.normal(size=(a, b)) / a**0.5, rng.normal(size=b)]

    def step(x: Any, y: Any, *params: Any) -> Any:
        def loss(params: Any) -> Any:
            h = x
            for i in range(0, len(params) - 2, 2):
                h = qb.tanh(h @ params[i] + params[i + 1])
            return qb.mean((h @ params[-2] + params[-1] - y) ** 2)

        value, gradient = qb.value_and_grad(loss)(list(params))
        return value, *gradient

    return step, [a.astype(dtype) for a in arrays]


def row_ops() -> list[Callable[[Any, list[Any], Any], Any]]:
    """Functions of (random choice, arrays with rows, a weight) that give another array with rows."""
    return [
        lambda pick, xs, w: qb.tanh(pick(xs)) * 0.5 + pick(xs),
        lambda pick, xs, w: pick(xs) @ w,
        lambda pick, xs, w: pick(xs) @ w.T,
        lambda pick, xs, w: pick(xs) + qb.sum(w, axis=0),
        lambda pick, xs, w: pick(xs) * qb.sum(pick(xs), axis=1, keepdims=True),
        lambda pick, xs, w: pick(xs)[::-1],
        lambda pick, xs, w: qb.concat([pick(xs)[:, :2], pick(xs)[:, 2:]], axis=1),
        lambda pick, xs, w: qb.pad(pick(xs), ((0, 0), (1, 0)))[:, :-1],
        lambda pick, xs, w: qb.roll(pick(xs), 1, axis=0),
        lambda pick, xs, w: pick(xs) - qb.mean(pick(xs), axis=0),
        lambda pick, xs, w: qb.where(pick(xs) > 0.0, pick(xs), -0.1 * pick(xs)),
        lambda pick, xs, w: qb.transpose(qb.transpose(pick(xs)) * 2.0),
        lambda pick, xs, w: pick(xs) @ (pick(xs).T @ pick(xs)) * 0.01,
        lambda pick, xs, w: qb.cumsum(pick(xs), axis=1),
        lambda pick, xs, w: pick(xs) * qb.max(pick(xs)),
        lambda pick, xs, w: qb.reshape(qb.reshape(pick(xs), (-1,)) * 0.5, pick(xs).shape),
    ]
