"""`MlxTrainingPlan`: a training step whose state and data are arrays of the device."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from quabla.arrays.tensor import Tensor
from quabla.backends.inputs import check_index, check_inputs, check_step
from quabla_mlx.executable import MlxExecutable, leave
from quabla_mlx.sessions import session
from quabla_mlx.target import Array

__all__ = ["MlxTrainingPlan"]

_AHEAD = 8
"""So many steps of `run` are handed to MLX before it waits for them."""


class MlxTrainingPlan:
    """A resident training step.

    Args:
        executable: the compiled step; its inputs are the state and then the data, its outputs the new state and then
            the loss.
        state: the initial state, which is copied to the device.
        data: the data that the step reads, which is copied to the device once.

    Raises:
        ShapeError: where the step and its inputs do not fit together.
        DtypeError: the same, for dtypes.
    """

    def __init__(self, executable: MlxExecutable, state: Sequence[Tensor], data: Sequence[Tensor]) -> None:
        ins, outs, count = executable.in_avals, executable.out_avals, len(state)
        check_step(ins, outs, state, data)
        self._run = executable.run
        self._target = executable.target
        self._avals = outs
        self._data_avals = ins[count:]
        # A step reads and replaces the state: two at once would lose one. Reentrant, since a signal's handler may step.
        self._lock = threading.RLock()
        nan = np.array(np.nan if outs[-1].dtype.kind == "f" else 0, outs[-1].dtype.numpy)
        with session(self._target):
            self._data = tuple([self._target.array(x.numpy()) for x in data])
            # State and loss in one tuple, replaced in one assignment: whatever interrupts a step, they fit together.
            self._now = (*self._arrays(state), self._target.array(nan))

    def step(self) -> None:
        """Run one step. Nothing is read back."""
        with self._lock, session(self._target):
            before = None
            while before is not self._now:  # a signal's handler has stepped meanwhile: go on from there
                before = self._now
                new = self._run(*before[:-1], *self._data)
                mx.eval(new)
            self._now = new

    def run(self, steps: int) -> None:
        """Run several steps: while MLX computes one, the next is recorded."""
        for start in range(0, steps, _AHEAD):
            self._run_some(min(_AHEAD, steps - start))

    def _run_some(self, steps: int) -> None:
        with self._lock, session(self._target):
            before = None
            while before is not self._now:
                before = new = self._now
                for _ in range(steps):
                    new = self._run(*new[:-1], *self._data)
                    mx.async_eval(new)
                mx.eval(new)
            self._now = new

    def state(self) -> tuple[Tensor, ...]:
        """The state now, read from the device."""
        now = self._now
        return tuple([leave(x, aval, shared=True) for x, aval in zip(now[:-1], self._avals, strict=False)])

    def set_state(self, state: Sequence[Tensor]) -> None:
        """Replace the state, given in the order of `state()`.

        Raises:
            ShapeError: where the number of arrays or a shape is another.
            DtypeError: where a dtype is another.
        """
        check_inputs(state, self._avals[:-1], "state")
        with self._lock, session(self._target):
            self._now = (*self._arrays(state), self._now[-1])

    def loss(self) -> Tensor:
        """The loss at the parameters that the last step started from; NaN before the first step."""
        return leave(self._now[-1], self._avals[-1], shared=True)

    def replace(self, index: int, data: Tensor) -> None:
        """Put another array of the same type in the place of a data input.

        Raises:
            ShapeError: where the index is none of the data inputs, or the shape is another.
            DtypeError: where the dtype is another.
        """
        check_index(index, len(self._data))
        check_inputs([data], [self._data_avals[index]], "data")
        with self._lock, session(self._target):
            self._data = (*self._data[:index], self._target.array(data.numpy()), *self._data[index + 1 :])

    def _arrays(self, state: Sequence[Tensor]) -> tuple[Array, ...]:
        return tuple([self._target.array(x.numpy()) for x in state])
