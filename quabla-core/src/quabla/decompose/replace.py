"""A Program in terms of the ops that a backend, or another form of it, has; regions included."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from functools import cache
from typing import Any

import numpy as np

from quabla.arrays.tracer import Frame, bind, frames, trace
from quabla.backends.support import dtypes_in, refuse
from quabla.decompose import arrays, elementwise, linalg, running
from quabla.dtypes import bool_, float32, float64, int64
from quabla.errors import UnsupportedOperationError
from quabla.ir.op import OPS, Op, Sample
from quabla.ir.program import Node, Program, Value
from quabla.shapes import aval_of
from quabla.transforms.forward import replay

__all__ = ["DEFINITIONS", "in_terms_of", "lowered_to", "reachable"]

DEFINITIONS: dict[str, Callable[..., Any]] = {
    **elementwise.DEFINITIONS,
    **arrays.DEFINITIONS,
    **running.DEFINITIONS,
    **linalg.DEFINITIONS,
}
"""What an op consists of, by its name; beside what the records say themselves."""

ALL_DTYPES = ("float64", "float32", "bool", "int64")

Lack = Callable[[Node, Program | None], None]
"""Is told of a node of the given program that has no definition, or of a definition; may raise."""


def lowered_to(
    program: Program, ops: Collection[str], device: str, dtypes: Collection[str] = ALL_DTYPES
) -> Program:
    """The program in terms of the ops that a backend has: those that it lacks are replaced by what they consist of.

    A definition may use ops that are themselves replaced, and loops. Branches that may never be taken and the bodies of
    loops are looked at, too. A `lower` that uses this calls `quabla.backends.support.require` first, with capabilities
    whose `ops` are `reachable(ops)`: some ops can be expressed for some params alone, and a device has an op or not.

    Args:
        program: any program.
        ops: the names of the ops that the backend has, "full" and "constant" among them.
        device: the device, for the error.
        dtypes: the dtypes that it has; no definition is used that brings in another.

    Returns:
        A program of the same inputs and outputs that uses `ops` alone.

    Raises:
        UnsupportedOperationError: an op of the program is not among `ops`, and no definition reaches them; `.op` is the
            op of the program, `.device` the device.

    Example:
        >>> import quabla as qb
        >>> from quabla.backends.support import ops_in
        >>> from quabla.decompose import lowered_to
        >>> program = qb.jit(lambda x: qb.sigmoid(x) - x).lower(qb.array(1.0)).program.graph
        >>> have = {"full", "add", "mul", "div", "exp", "where", "less"}
        >>> sorted(ops_in(lowered_to(program, have, "abacus")))
        ['add', 'div', 'exp', 'full', 'less', 'mul', 'where']
        >>> lowered_to(program, {"full", "add", "mul"}, "abacus")
        Traceback (most recent call last):
        ...
        quabla.errors.UnsupportedOperationError: sigmoid: device 'abacus' has no code for this operation on float64[], \
nor for all of what it consists of; run the function on another device (quabla.devices() lists them)
    """

    def lacks(origin: Node, definition: Program | None) -> None:
        if definition is None or not dtypes_in(definition) <= {*dtypes, *_dtypes_of(origin)}:
            refuse(origin, device, decomposed=True)

    return in_terms_of(program, ops, lacks)


def _dtypes_of(node: Node) -> set[str]:
    return {v.aval.dtype.name for v in (*node.inputs, *node.outputs)}


def reachable(ops: Collection[str], dtypes: Collection[str] = ALL_DTYPES) -> tuple[str, ...]:
    """The names of all ops that `lowered_to` expresses by some: what a backend of these may say that it runs.

    An op counts where every sample of its record can be expressed.

    Args:
        ops: the names of the ops that a backend has.
        dtypes: the dtypes that it has.

    Example:
        >>> from quabla.decompose import reachable
        >>> found = reachable(("full", "add", "mul", "where", "less", "equal", "logical_and", "logical_not"))
        >>> "maximum" in found, "sub" in found, "exp" in found
        (True, True, False)
    """
    return _reachable(frozenset(ops), frozenset(dtypes))


@cache
def _reachable(ops: frozenset[str], dtypes: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name, op in OPS.items() if name in ops or _reaches(op, ops, dtypes)))


def _reaches(op: Op, ops: frozenset[str], dtypes: frozenset[str]) -> bool:
    if _definition(op) is None or op.samples is None:
        return False
    if op.family == "region":  # it is replaced by what it holds, whatever that is
        return True
    try:
        for sample in op.samples():
            lowered_to(_program_of(op, sample, dtypes), ops, "", dtypes)
    except UnsupportedOperationError:
        return False
    return True


def _program_of(op: Op, sample: Sample, dtypes: frozenset[str]) -> Program:
    floating = sample.only or (float64 if "float64" in dtypes else float32)
    made = [np.asarray(x) for x in sample.make(np.random.default_rng(0))]
    kinds = {"f": floating, "i": int64, "b": bool_}
    avals = [aval_of(x.shape, kinds[x.dtype.kind]) for x in made]
    return trace(lambda *xs: _many(bind(op, xs, sample.params)), avals)[0]


def in_terms_of(
    program: Program, known: Container[str], lacks: Lack = lambda origin, definition: None
) -> Program:
    """The program with every op that is not known replaced by what it consists of, where that can be said.

    Args:
        program: any program.
        known: the names of the ops to keep.
        lacks: is told of each node that is not known: what it consists of, or None where nothing says so.

    Returns:
        A program of the same inputs and outputs; the same one, if it holds known ops only.
    """
    if all(n.op.name in known and not _regions(n) for n in program.nodes):
        return program
    return _traced(program, known, lacks, None)


def _traced(program: Program, known: Container[str], lacks: Lack, origin: Node | None) -> Program:
    return trace(
        lambda *args: _replayed(frames()[-1], program, args, known, lacks, origin),
        program.in_avals,
        program.input_names,
    )[0]


def _regions(node: Node) -> dict[str, Program]:
    return {k: v for k, v in node.params.items() if isinstance(v, Program)}


def _definition(op: Op) -> Callable[..., Any] | None:
    return DEFINITIONS.get(op.name) or op.decompose


def _replayed(
    frame: Frame, program: Program, args: Any, known: Container[str], lacks: Lack, origin: Node | None
) -> list[Any]:
    """Record a program; `origin` is the node of the user's program whose definition it belongs to, if any."""
    env: dict[Value, Any] = dict(zip(program.inputs, args, strict=True))
    for node in program.nodes:
        operands = tuple([env[v] for v in node.inputs])
        definition = None if node.op.name in known else _definition(node.op)
        if definition is not None:
            inner, _ = trace(
                lambda *xs, node=node, f=definition: _many(f(*xs, **node.params)), [x.aval for x in operands]
            )
            own = node.op.family == "region"  # then it is replaced by what it holds, which is the user's own
            if not own:
                lacks(origin or node, inner)
            outs = _replayed(frame, inner, operands, known, lacks, origin if own else origin or node)
        else:
            if node.op.name not in known:
                lacks(origin or node, None)
            regions = {k: _traced(v, known, lacks, origin) for k, v in _regions(node).items()}
            out = (
                replay(frame, node, operands)
                if not regions
                else frame.emit(node.op, operands, {**node.params, **regions})
            )
            outs = _many(out)
        env.update(zip(node.outputs, outs, strict=True))
    return [env[v] for v in program.outputs]


def _many(out: Any) -> list[Any]:
    return list(out) if isinstance(out, (tuple, list)) else [out]
