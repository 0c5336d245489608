"""`GenericTrainingPlan`: a resident training step for any backend, made of its executable alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from quabla.arrays.tensor import Tensor, wrap_as
from quabla.backends.inputs import check_index, check_inputs, check_step
from quabla.backends.protocol import Executable
from quabla.shapes import ShapeDtype

__all__ = ["GenericTrainingPlan"]


class GenericTrainingPlan:
    """Keeps state and data as Tensors and calls the executable once per step.

    A backend whose device has a better way (buffers that stay there, a step without Python) writes its own plan.

    Args:
        executable: the compiled step; its inputs are the state and then the data, its outputs the new state
            and then the loss.
        state: the initial state.
        data: the data that the step reads.

    Raises:
        ShapeError: where the step and its inputs do not fit together.
        DtypeError: the same, for dtypes.
    """

    def __init__(self, executable: Executable, state: Sequence[Tensor], data: Sequence[Tensor]) -> None:
        outs = executable.out_avals
        check_step(executable.in_avals, outs, state, data)
        self._executable = executable
        self._state = tuple(state)
        self._data = tuple(data)
        self._loss = _full(float("nan"), outs[-1])
        # A step reads and replaces the state: two at once would lose one. Reentrant, since a signal's handler may step,
        # too; then the step that it interrupted begins again.
        self._lock = threading.RLock()

    def step(self) -> None:
        """Run one step."""
        with self._lock:
            before = None
            while before is not self._state:
                before = self._state
                *new, loss = self._executable(*before, *self._data)
            self._state, self._loss = tuple(new), loss

    def run(self, steps: int) -> None:
        """Run several steps."""
        for _ in range(steps):
            self.step()

    def state(self) -> tuple[Tensor, ...]:
        """The state now. Tensors are immutable, so these are as good as copies."""
        return self._state

    def set_state(self, state: Sequence[Tensor]) -> None:
        """Replace the state, given in the order of `state()`.

        Raises:
            ShapeError: where the number of arrays or a shape is another.
            DtypeError: where a dtype is another.
        """
        check_inputs(state, [x.aval for x in self._state], "state")
        with self._lock:
            self._state = tuple(state)

    def loss(self) -> Tensor:
        """The loss at the parameters that the last step started from; NaN before the first step."""
        return self._loss

    def replace(self, index: int, data: Tensor) -> None:
        """Put another array of the same type in the place of a data input.

        Raises:
            ShapeError: where the index is none of the data inputs, or the shape is another.
            DtypeError: where the dtype is another.
        """
        check_index(index, len(self._data))
        check_inputs([data], [self._data[index].aval], "data")
        with self._lock:
            self._data = (*self._data[:index], data, *self._data[index + 1 :])


def _full(value: float, aval: ShapeDtype) -> Tensor:
    return wrap_as(np.full(aval.shape, value, aval.dtype.numpy), aval)
