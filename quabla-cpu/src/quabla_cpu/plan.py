"""`CpuTrainingPlan`: a training step whose state stays in one place, advanced by native code alone.

Two blocks hold the state, each laid out like the output block of the step: a step reads one and writes the other, and
the next step goes the other way. A few instructions around the step's own code choose the direction, so a step is one
native call without arguments, and any number of steps is one call, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from quabla.arrays.tensor import Tensor, wrap_as
from quabla.errors import ShapeError
from quabla_cpu import engine, text
from quabla_cpu.executable import CpuExecutable, check_inputs
from quabla_cpu.text import Builder, Value

__all__ = ["CpuTrainingPlan"]

# The record that the native code works on: 64-bit words.
_BUSY, _PARITY, _ENTRY, _TABLES, _WORDS = 0, 1, 2, 3, 5
_RECORD = "quabla_plan"
_EXPORTS = ("step", "run", "hold", "free")


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
        if len(ins) != count + len(data) or len(outs) != count + 1:
            raise ShapeError(
                f"training_plan: a step on {count} state and {len(data)} data arrays takes {count + len(data)} inputs "
                f"and returns {count + 1} outputs; this program has {len(ins)} and {len(outs)}"
            )
        if outs[-1].shape != ():
            raise ShapeError(
                f"training_plan: the loss, the last output, must have shape (), got {outs[-1]!r}"
            )
        for i, (before, after) in enumerate(zip(ins, outs[:-1], strict=False)):
            if before.shape != after.shape or before.dtype is not after.dtype:
                raise ShapeError(
                    f"training_plan: state {i} is {before!r} and becomes {after!r}; it must keep its type"
                )
        check_inputs(state, ins[:count], "state")
        check_inputs(data, ins[count:], "data")
        entry = executable.entry
        self._executable = executable
        self._data = list(data)
        self._avals = outs
        self._offsets = entry.out_offsets
        # 64-byte boundaries: vectors of a step then never straddle two cache lines.
        self._memory = np.zeros(2 * entry.out_nbytes + entry.workspace_nbytes + 64, np.uint8)
        start = -self._memory.ctypes.data % 64
        self._blocks = [
            self._memory[start + i * entry.out_nbytes : start + (i + 1) * entry.out_nbytes] for i in (0, 1)
        ]
        base = self._memory.ctypes.data + start
        blocks = (base, base + entry.out_nbytes)
        workspace = base + 2 * entry.out_nbytes
        self._tables = np.zeros((2, len(ins) + 2), np.uintp)
        for i, table in enumerate(self._tables):
            table[:count] = [blocks[i] + offset for offset in entry.out_offsets[:-1]]
            table[count:-2] = [x.address for x in data]
            table[-2:] = blocks[1 - i], workspace
        self._record = np.zeros(_WORDS, np.uintp)
        self._record[_ENTRY] = executable.address
        self._record[_TABLES:] = [table.ctypes.data for table in self._tables]
        for x, offset in zip(state, entry.out_offsets, strict=False):
            self._write(0, x, offset)
        if outs[-1].dtype.kind == "f":
            self._write(
                0, wrap_as(np.full((), np.nan, outs[-1].dtype.numpy), outs[-1]), entry.out_offsets[-1]
            )
        self._library = engine.link(
            [engine.compile(_stepper())], _EXPORTS, {_RECORD: self._record.ctypes.data}
        )
        address = self._library.address
        self.step = ctypes.CFUNCTYPE(None)(address("step"))
        self.step.owner = self  # type: ignore[attr-defined] # whoever has the function has the plan
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_int64)(address("run"))
        self._hold = ctypes.CFUNCTYPE(None)(address("hold"))
        self._free = ctypes.CFUNCTYPE(None)(address("free"))

    def run(self, steps: int) -> None:
        """Run several steps in one native call, without coming back to Python in between."""
        self._run(steps)

    def state(self) -> tuple[Tensor, ...]:
        """Copies of the state: parameters and the optimiser's own."""
        with self._held():
            block = self._blocks[int(self._record[_PARITY])].copy()
        return tuple([_read(block, i, self) for i in range(len(self._avals) - 1)])

    def set_state(self, state: Sequence[Tensor]) -> None:
        """Replace the state, given in the order of `state()`.

        Raises:
            ShapeError: where the number of arrays or a shape is another.
            DtypeError: where a dtype is another.
        """
        check_inputs(state, self._avals[:-1], "state")
        with self._held():
            for x, offset in zip(state, self._offsets, strict=False):
                self._write(int(self._record[_PARITY]), x, offset)

    def loss(self) -> Tensor:
        """The loss at the parameters that the last step started from; NaN before the first step."""
        with self._held():
            block = self._blocks[int(self._record[_PARITY])].copy()
        return _read(block, len(self._avals) - 1, self)

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
        check_inputs([data], [self._data[index].aval], "data")
        with self._held():
            self._data[index] = data
            self._tables[:, len(self._avals) - 1 + index] = data.address

    def _write(self, block: int, x: Tensor, offset: int) -> None:
        elements = np.ascontiguousarray(x.numpy()).reshape(-1).view(np.uint8)
        self._blocks[block][offset : offset + elements.size] = elements

    @contextmanager
    def _held(self) -> Iterator[None]:
        """No step runs meanwhile."""
        self._hold()
        try:
            yield
        finally:
            self._free()


def _read(block: np.ndarray, i: int, plan: CpuTrainingPlan) -> Tensor:
    aval, offset = plan._avals[i], plan._offsets[i]
    return wrap_as(
        block[offset : offset + aval.nbytes].view(aval.dtype.numpy).reshape(aval.shape).copy(), aval
    )


def _stepper() -> str:
    """The code around a step. It is the same for all plans: where the record is, is decided when it is linked."""
    module = text.Module(engine.function_attributes())
    record = module.raw_global(_RECORD, "external global i8")

    def word(b: Builder, index: int | Value) -> Value:
        return b.gep("i64", record, index)

    def hold(b: Builder) -> None:
        # A spin lock: steps are short, and the interpreter's lock is not held here.
        with b.while_([]) as loop:
            taken = b._emit("i64", f"atomicrmw xchg ptr {word(b, _BUSY).name}, i64 1 acquire")
            loop.proceed(b.icmp("ne", taken, text.constant("i64", 0)))

    def free(b: Builder) -> None:
        b._lines.append(f"store atomic i64 0, ptr {word(b, _BUSY).name} release, align 8")

    def advance(b: Builder) -> None:
        parity = b.load("i64", word(b, _PARITY))
        table = b.load("ptr", word(b, b.add(parity, text.constant("i64", _TABLES))))
        b.call_pointer(b.load("ptr", word(b, _ENTRY)), "void", table)
        b.store(b.xor(parity, text.constant("i64", 1)), word(b, _PARITY))

    b = module.function("step", "void", [])
    hold(b)
    advance(b)
    free(b)
    b.ret()
    b = module.function("run", "void", ["i64"])
    hold(b)
    with b.loop(0, b.arguments[0]):
        advance(b)
    free(b)
    b.ret()
    for name, write in (("hold", hold), ("free", free)):
        b = module.function(name, "void", [])
        write(b)
        b.ret()
    return module.text()
