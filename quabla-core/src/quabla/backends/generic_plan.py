"""`GenericTrainingPlan`: a resident training step for any backend, made of its executable alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from quabla.arrays.tensor import Tensor, wrap_as
from quabla.backends.protocol import Executable
from quabla.errors import DtypeError, ShapeError
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
        ins, outs = executable.in_avals, executable.out_avals
        if len(ins) != len(state) + len(data) or len(outs) != len(state) + 1:
            raise ShapeError(
                f"training_plan: a step on {len(state)} state and {len(data)} data arrays takes "
                f"{len(state) + len(data)} inputs and returns {len(state) + 1} outputs; "
                f"this program has {len(ins)} and {len(outs)}"
            )
        if outs[-1].shape != ():
            raise ShapeError(
                f"training_plan: the loss, the last output, must have shape (), got {outs[-1]!r}"
            )
        for i, x in enumerate((*state, *data)):
            _check(x.aval, ins[i], _role(i, len(state)))
        for i in range(len(state)):
            _check(outs[i], ins[i], f"new state {i}")
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
        if len(state) != len(self._state):
            raise ShapeError(f"set_state: {len(self._state)} arrays are wanted, got {len(state)}")
        for i, (x, old) in enumerate(zip(state, self._state, strict=True)):
            _check(x.aval, old.aval, f"state {i}")
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
        if not 0 <= index < len(self._data):
            raise ShapeError(
                f"replace: there are {len(self._data)} data inputs, counted from 0; got index {index}"
            )
        _check(data.aval, self._data[index].aval, f"data {index}")
        with self._lock:
            self._data = (*self._data[:index], data, *self._data[index + 1 :])


def _role(i: int, states: int) -> str:
    return f"state {i}" if i < states else f"data {i - states}"


def _check(got: ShapeDtype, wanted: ShapeDtype, what: str) -> None:
    if got.shape != wanted.shape:
        raise ShapeError(f"training_plan: {what} is {got!r} where the step takes {wanted!r}")
    if got.dtype is not wanted.dtype:
        raise DtypeError(
            f"training_plan: {what} is {got!r} where the step takes {wanted!r}; "
            f"convert it with .astype({wanted.dtype!r})"
        )


def _full(value: float, aval: ShapeDtype) -> Tensor:
    return wrap_as(np.full(aval.shape, value, aval.dtype.numpy), aval)
