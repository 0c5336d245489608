"""The functions that generated code calls and does not hold: those of BLAS and LAPACK, and the pool of threads."""

from __future__ import annotations

from quabla_cpu import blas, engine
from quabla_cpu.executable import PARALLEL

__all__ = ["address"]


def address(name: str) -> int:
    """The address of a function by the symbol that generated code calls it by.

    Raises:
        KeyError: there is no such function.
    """
    if name == PARALLEL:
        with engine.no_fork():
            from quabla_cpu import pool  # not for programs that run in one thread

        pool.ensure()
        return pool.address()
    return blas.address(name)
