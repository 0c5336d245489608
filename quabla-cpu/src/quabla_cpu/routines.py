"""Nodes that a routine of their own computes instead of a fused kernel: a table, filled by the modules that have one.

A routine gets its operands and results as contiguous memory. To add one, write its module, register it here by the name
of the op, and enter op and module in `MODULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from quabla.ir.program import Node
from quabla.lowering.loops import Buffer, Call
from quabla_cpu import engine
from quabla_cpu.text import Value

if TYPE_CHECKING:
    from quabla_cpu.writing import Code

__all__ = ["MODULES", "ROUTINES", "Routine", "address", "routine", "routine_of"]


class Routine(NamedTuple):
    """How an op is computed.

    Attributes:
        write: writes the code of a call into the function being written.
        scratch: the bytes of memory that the call wants for itself.
    """

    write: Callable[[Code, Call], None]
    scratch: Callable[[Node], int]


MODULES = {
    **dict.fromkeys(("cond", "checkpoint", "scan", "while"), "regions"),
    **dict.fromkeys(("lu", "lu_solve", "lu_det", "triangular_solve", "cholesky", "eliminate"), "lapack"),
    **dict.fromkeys(("gather", "scatter_add", "searchsorted"), "positions"),
    **dict.fromkeys(("cumsum", "cumprod", "recurrence"), "running"),
    "argsort": "sorting",
    "eigh": "spectral",
}
"""The ops with a routine, and the module that has it: most programs have none of them, and import none."""

ROUTINES: dict[str, Routine] = {}
"""The routines of the modules that were imported."""


def routine_of(name: str) -> Routine | None:
    """The routine of the op of this name, if it is computed by one."""
    if name in MODULES and name not in ROUTINES:
        with engine.no_fork():
            import_module(f"quabla_cpu.{MODULES[name]}")
    return ROUTINES.get(name)


def routine(name: str, scratch: Callable[[Node], int] = lambda node: 0) -> Callable[[Any], Any]:
    """Register a function `(code, call) -> None` as the routine of the op of this name."""

    def register(write: Any) -> Any:
        ROUTINES[name] = Routine(write, scratch)
        return write

    return register


def address(code: Code, buffer: Buffer, offset: int = 0) -> Value:
    """The address of an element of a buffer."""
    pointer = code.pointers[buffer]
    nbytes = offset * buffer.dtype.itemsize
    return code.b.gep("i8", pointer, nbytes) if nbytes else pointer
