"""Batching: a program of one example becomes a program of many, the batch axis leading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quabla.arrays.tracer import Frame, TraceTensor, trace
from quabla.errors import UnsupportedOperationError
from quabla.ir.op import Refused
from quabla.ir.program import Program
from quabla.shapes import aval_of
from quabla.transforms.forward import replay

__all__ = ["batch_values", "vmap"]


def batch_values(
    frame: Frame, program: Program, args: Sequence[TraceTensor], mapped: Sequence[bool], size: int
) -> tuple[list[TraceTensor], list[bool]]:
    """Record a program of one example in `frame` for `size` examples at once.

    Args:
        frame: where to record; the args are values of it.
        program: the program of one example.
        args: a value per input; a mapped one has a leading axis of extent `size`.
        mapped: which inputs are mapped. What depends on no mapped input is recorded once.
        size: the number of examples.

    Returns:
        The outputs, and which of them have the leading axis.

    Raises:
        UnsupportedOperationError: an op that has no batching rule depends on a mapped input.
    """
    value: dict[Any, Any] = dict(zip(program.inputs, args, strict=True))
    many: set[Any] = {v for v, m in zip(program.inputs, mapped, strict=True) if m}
    for node in program.nodes:
        operands = tuple([value[v] for v in node.inputs])
        over = [v in many for v in node.inputs]
        if True not in over:
            out = replay(frame, node, operands)
        else:
            rule = node.op.batch
            assert rule is not None
            if isinstance(rule, Refused):
                raise UnsupportedOperationError(
                    f"vmap: {node.op.name} cannot be batched: {rule.why}", op=node.op.name
                )
            out = rule(operands, over, size, **node.params)
            many.update(node.outputs)
        for v, o in zip(node.outputs, out if node.op.multiple else (out,), strict=True):
            value[v] = o
    return [value[v] for v in program.outputs], [v in many for v in program.outputs]


def vmap(program: Program, mapped: Sequence[bool], size: int) -> tuple[Program, tuple[bool, ...]]:
    """The program that maps `program` over a leading axis.

    Args:
        program: the program of one example.
        mapped: which inputs get a leading axis of extent `size`.
        size: the number of examples.

    Returns:
        The batched program, and which of its outputs have the leading axis.
    """
    avals = [
        aval_of((size, *a.shape), a.dtype, a.weak) if m else a
        for a, m in zip(program.in_avals, mapped, strict=True)
    ]
    flags: list[bool] = []

    def run(*args: Any) -> list[Any]:
        outs, over = batch_values(args[0].frame, program, args, mapped, size)
        flags[:] = over
        return outs

    return trace(run, avals, program.input_names)[0], tuple(flags)
