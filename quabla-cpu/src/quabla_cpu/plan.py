"""`CpuTrainingPlan`: a training step whose state stays in one place, advanced by native code alone.

Two blocks hold the state, each laid out like the output block of the step: a step reads one and writes the other, and
the next step goes the other way. A few instructions around the step's own code choose the direction, so a step is one
native call without arguments, and any number of steps is one call, too.

Steps, readings and replacements exclude each other. All that happens in between is native: Python runs a signal's
handler after any instruction of its own, and one that raises or steps there would leave the plan taken for ever.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence

import numpy as np

from quabla.arrays.tensor import Tensor, wrap_as
from quabla.backends.inputs import check_index, check_inputs, check_step
from quabla.shapes import ShapeDtype
from quabla_cpu import engine
from quabla_cpu.executable import CpuExecutable
from quabla_cpu.parts import part

__all__ = ["CpuTrainingPlan"]

# The record that the native code (`stepping.py`) works on: 64-bit words.
BUSY, PARITY, ENTRY, TABLES, BLOCKS, WORDS = 0, 1, 2, 3, 5, 7
RECORD = "quabla_plan"
_EXPORTS = ("step", "run", "read", "write", "exchange", "hold", "free")


class CpuTrainingPlan:
    """A resident training step.

    Args:
        executable: the compiled step; its inputs are the state and then the data, its outputs the new state and then
            the loss.
        state: the initial state, which is copied.
        data: the data that the step reads in place.

    Attributes:
        step: runs one step; a native function without arguments, which any thread may call.

    Raises:
        ShapeError: where the step and its inputs do not fit together.
        DtypeError: the same, for dtypes.
    """

    def __init__(self, executable: CpuExecutable, state: Sequence[Tensor], data: Sequence[Tensor]) -> None:
        ins, outs, count = executable.in_avals, executable.out_avals, len(state)
        check_step(ins, outs, state, data)
        entry = executable.entry
        self._executable = executable
        self._data: list[tuple[Tensor, ...]] = [(x,) for x in data]
        self._data_avals = ins[count:]
        self._lock = threading.RLock()  # for `replace`; a step needs none
        self._avals = outs
        self._offsets = entry.out_offsets
        # 64-byte boundaries: vectors of a step then never straddle two cache lines.
        self._memory = np.zeros(2 * entry.out_nbytes + entry.workspace_nbytes + 64, np.uint8)
        start = -self._memory.ctypes.data % 64
        base = self._memory.ctypes.data + start
        blocks = (base, base + entry.out_nbytes)
        workspace = base + 2 * entry.out_nbytes
        self._tables = np.zeros((2, len(ins) + 2), np.uintp)
        for i, table in enumerate(self._tables):
            table[:count] = [blocks[i] + offset for offset in entry.out_offsets[:-1]]
            table[count:-2] = [x.address for x in data]
            table[-2:] = blocks[1 - i], workspace
        self._record = np.zeros(WORDS, np.uintp)
        self._record[ENTRY] = executable.address
        self._record[TABLES:BLOCKS] = [table.ctypes.data for table in self._tables]
        self._record[BLOCKS:] = blocks
        self._library = part("step", _stepper, _EXPORTS, {RECORD: self._record.ctypes.data})
        address = self._library.address
        self.step = ctypes.CFUNCTYPE(None)(address("step"))
        self.step.owner = self  # type: ignore[attr-defined] # whoever has the function has the plan
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self._run = ctypes.CFUNCTYPE(None, number)(address("run"))
        self._read = ctypes.CFUNCTYPE(None, pointer, number)(address("read"))
        self._write = ctypes.CFUNCTYPE(None, pointer, number)(address("write"))
        self._exchange = ctypes.CFUNCTYPE(None, number, number)(address("exchange"))
        self._hold = ctypes.CFUNCTYPE(None)(address("hold"))
        self._free = ctypes.CFUNCTYPE(None)(address("free"))
        block = np.zeros(entry.out_nbytes, np.uint8)
        if outs[-1].dtype.kind == "f":
            _part(block, outs[-1], self._offsets[-1])[...] = np.nan
        self._put(block, state)
        _plans.add(self)

    def run(self, steps: int) -> None:
        """Run several steps in one native call, without coming back to Python in between."""
        self._run(steps)

    def state(self) -> tuple[Tensor, ...]:
        """Copies of the state: parameters and the optimiser's own."""
        block = self._block()
        return tuple([self._tensor(block, i) for i in range(len(self._avals) - 1)])

    def set_state(self, state: Sequence[Tensor]) -> None:
        """Replace the state, given in the order of `state()`.

        Raises:
            ShapeError: where the number of arrays or a shape is another.
            DtypeError: where a dtype is another.
        """
        check_inputs(state, self._avals[:-1], "state")
        self._put(np.empty(self._offsets[-1], np.uint8), state)  # all but the loss, which comes last

    def loss(self) -> Tensor:
        """The loss at the parameters that the last step started from; NaN before the first step."""
        return self._tensor(self._block(), len(self._avals) - 1)

    def replace(self, index: int, data: Tensor) -> None:
        """Put another array of the same type in the place of a data input.

        Raises:
            ShapeError: where the index is none of the data inputs, or the shape is another.
            DtypeError: where the dtype is another.
        """
        check_index(index, len(self._data))
        check_inputs([data], [self._data_avals[index]], "data")
        with self._lock:
            # The array before is kept until no step reads it any more, whatever is raised in between.
            self._data[index] = (*self._data[index], data)
            self._exchange(len(self._avals) - 1 + index, data.address)
            self._data[index] = (data,)

    def _block(self) -> np.ndarray:
        """A copy of the block that the next step reads: state and loss."""
        block = np.empty(self._executable.entry.out_nbytes, np.uint8)
        self._read(block.ctypes.data, block.size)
        return block

    def _put(self, block: np.ndarray, state: Sequence[Tensor]) -> None:
        """Write the state into `block`, and this over the block that the next step reads."""
        for x, aval, offset in zip(state, self._avals, self._offsets, strict=False):
            _part(block, aval, offset)[...] = x.numpy()
        self._write(block.ctypes.data, block.size)

    def _tensor(self, block: np.ndarray, i: int) -> Tensor:
        aval = self._avals[i]
        return wrap_as(_part(block, aval, self._offsets[i]).copy(), aval)


def _part(block: np.ndarray, aval: ShapeDtype, offset: int) -> np.ndarray:
    part: np.ndarray = block[offset : offset + aval.nbytes].view(aval.dtype.numpy).reshape(aval.shape)
    return part


def _stepper() -> str:
    with engine.no_fork():
        from quabla_cpu import stepping

    return stepping.write()


# A child process finds the plans as they were when it began: none of them may be within a step of another thread.

_plans: weakref.WeakSet[CpuTrainingPlan] = weakref.WeakSet()
_forking = threading.Lock()
_held: list[CpuTrainingPlan] = []


def _before_fork() -> None:
    _forking.acquire()
    for plan in list(_plans):
        plan._hold()
        _held.append(plan)


def _after_fork() -> None:
    for plan in _held:
        plan._free()
    _held.clear()
    _forking.release()


def _after_fork_in_child() -> None:
    for plan in list(_plans):
        plan._lock = threading.RLock()  # a thread that is not here may have held the old one
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
