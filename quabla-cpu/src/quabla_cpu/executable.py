"""`CpuExecutable`: a compiled program on the host."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np

from quabla.arrays.tensor import Tensor
from quabla.backends.inputs import check_inputs
from quabla.backends.protocol import NativeEntry
from quabla.shapes import ShapeDtype

__all__ = ["ENTRY", "PARALLEL", "PRODUCT", "CpuExecutable", "new_block"]

ENTRY = "entry"  # the symbol of a program
PRODUCT = "product"  # the symbol of a function that is compiled on its own, in its module (`product.py`, say)
PARALLEL = "quabla_parallel"  # the symbol of the function that shares work among threads (`pool.py`)
PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # releases the GIL
_SMALL = 4096  # bytes up to which ctypes makes a block faster than NumPy
_new = object.__new__


def new_block(nbytes: int) -> tuple[Any, int]:
    """Fresh memory: an object that owns it and exports it as a buffer, and its address."""
    if nbytes <= _SMALL:
        block = (ctypes.c_double * (nbytes // 8))()
        return block, ctypes.addressof(block)
    array = np.empty(nbytes, np.uint8)
    # A Tensor takes a NumPy array as its own elements; a memoryview is only where they are.
    return array.data, array.__array_interface__["data"][0]


class CpuExecutable:
    """A program as a native function. Called with Tensors it returns Tensors that own their memory.

    Any number of threads may call it at once. `entry` is the short way in for generated code.
    """

    __slots__ = ("_call", "_code", "_count", "_pack", "address", "entry", "in_avals", "out_avals")

    def __init__(
        self,
        in_avals: tuple[ShapeDtype, ...],
        out_avals: tuple[ShapeDtype, ...],
        out_offsets: tuple[int, ...],
        out_nbytes: int,
        workspace_nbytes: int,
        address: int,
        code: object,
    ) -> None:
        self.in_avals = in_avals
        self.out_avals = out_avals
        self.address = address
        self._code = code  # owns the machine code and the constants
        self._count = len(in_avals)
        self._pack = struct.Struct(f"{len(in_avals) + 2}P").pack
        self._call = PROTOTYPE(address)
        self._call.owner = code  # type: ignore[attr-defined] # whoever has the function has its code
        self.entry = NativeEntry(self._call, self._pack, (), out_offsets, out_nbytes, workspace_nbytes)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the program.

        Raises:
            ShapeError: where the number of inputs or a shape is another than compiled for.
            DtypeError: where a dtype is another.
        """
        check_inputs(inputs, self.in_avals)
        entry = self.entry
        owner, address = new_block(entry.out_nbytes)
        space = np.empty(entry.workspace_nbytes, np.uint8) if entry.workspace_nbytes else None
        workspace = 0 if space is None else space.__array_interface__["data"][0]
        self._call(self._pack(*[x.address for x in inputs], address, workspace))
        outs = []
        for aval, offset in zip(self.out_avals, entry.out_offsets, strict=True):
            out: Tensor = _new(Tensor)
            out.address, out.aval, out.owner, out.offset = address + offset, aval, owner, offset
            outs.append(out)
        return tuple(outs)
