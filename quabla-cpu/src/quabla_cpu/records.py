"""Whole compiled programs remembered on disk, so that a later process neither lowers nor compiles them again.

A record holds the linked code of a program and what else an executable needs. It is found by the fingerprint of the
program and by all that its code depends on: the machine, LLVM, NumPy, which folds constants, and the files of Quabla
themselves. A record is only a shortcut: whatever is wrong with one, the program is compiled as if there were none.
"""

from __future__ import annotations

import contextlib
import marshal
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np

from quabla.arrays.tensor import Tensor, copied, wrap_as
from quabla.backends.protocol import Costs
from quabla.dtypes import as_dtype
from quabla.ir.program import Program
from quabla.shapes import aval_of
from quabla_cpu import diskcache, engine, machine, memory, outside
from quabla_cpu.fingerprint import fingerprint
from quabla_cpu.image import Image

__all__ = ["Layout", "Record", "find", "keep", "load"]

_MOST_READ = 16 << 20  # bytes of constants that are read to recognise a program
_MOST_KEPT = 1 << 20  # bytes of folded constants that a record holds


class Layout(NamedTuple):
    """Where an executable puts its results, and the memory it wants besides."""

    out_offsets: tuple[int, ...]
    out_nbytes: int
    workspace_nbytes: int


class Record(NamedTuple):
    """A compiled program.

    Attributes:
        name: what it is found by.
        image: its code.
        calls: the functions of `outside.py` that it calls.
        constants: the symbols of its large constants, and the arrays.
        layout: its results.
        costs: what lowering counted.
    """

    name: str
    image: Image
    calls: Sequence[str]
    constants: Sequence[tuple[str, Tensor]]
    layout: Layout
    costs: Costs

    @property
    def key(self) -> object:
        """What distinguishes the code in memory, which refers to its constants."""
        return self.name, tuple([id(tensor) for _, tensor in self.constants])


def _named(program: Program) -> tuple[str, list[Tensor]] | None:
    """What the record of a program is found by, and the constants of the program; None where it can have none."""
    if _named not in program.memo:
        program.memo[_named] = _name(program)
    return program.memo[_named]  # type: ignore[no-any-return]


def _name(program: Program) -> tuple[str, list[Tensor]] | None:
    mark = machine.stamp() if diskcache.enabled() else None
    found = None if mark is None else fingerprint(program)
    if mark is None or found is None:
        return None
    text, constants = found
    if sum(t.aval.nbytes for t in constants) > _MOST_READ:
        return None
    elements = [diskcache.digest(t.numpy().tobytes()) for t in constants]
    return diskcache.key("program", mark, engine.identity(), np.__version__, text, *elements), constants


def find(program: Program) -> Record | None:
    """The record of a program, if an earlier process left one."""
    named = _named(program)
    found = None if named is None else diskcache.get(named[0])
    if named is None or found is None:
        return None
    name, constants = named
    # Written by another version of Python, say.
    with contextlib.suppress(ValueError, EOFError, TypeError, IndexError):
        image, calls, places, layout, costs = marshal.loads(found)
        arrays = [(symbol, _array(place, constants)) for symbol, place in places]
        return Record(name, Image(*image), calls, arrays, Layout(*layout), Costs(*costs))
    return None


def _array(place: Any, constants: list[Tensor]) -> Tensor:
    if isinstance(place, int):
        return constants[place]
    name, shape, content = place
    aval = aval_of(shape, as_dtype(name))
    return wrap_as(copied(np.frombuffer(content, aval.dtype.numpy).reshape(shape)), aval)


def keep(
    program: Program,
    image: Image,
    calls: Sequence[str],
    constants: Sequence[tuple[str, Tensor]],
    layout: Layout,
    costs: Costs,
) -> Record | None:
    """Leave a record for later processes, unless it would hold large arrays or what only this process knows."""
    named = _named(program)
    known = {*calls, *(symbol for symbol, _ in constants)}
    others = [symbol for _, symbol, _ in image.outer if symbol not in known]
    if named is None or not all(map(memory.is_c_function, others)):
        return None
    name, own = named
    own_at = {id(t): i for i, t in enumerate(own)}
    folded = [t for _, t in constants if id(t) not in own_at]
    if sum(t.aval.nbytes for t in folded) > _MOST_KEPT:
        return None
    places = tuple(
        (symbol, own_at[id(t)] if id(t) in own_at else (t.aval.dtype.name, t.aval.shape, t.numpy().tobytes()))
        for symbol, t in constants
    )
    content = (*image,), tuple(calls), places, (*layout,), astuple(costs)
    diskcache.put(name, marshal.dumps(content))
    return Record(name, image, calls, constants, layout, costs)


def load(record: Record) -> engine.Library:
    """Put the code of a record into memory.

    Raises:
        UnsupportedError: this machine does not let a process do so.
        ValueError: something that it calls is not there.
        KeyError: the same, of BLAS.
    """
    addresses = {name: outside.address(name) for name in record.calls}
    addresses.update({symbol: tensor.address for symbol, tensor in record.constants})
    return engine.load(record.image, addresses, [tensor for _, tensor in record.constants])
