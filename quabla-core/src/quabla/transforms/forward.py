"""Forward mode: the Jacobian-vector product of a program, node by node.

A tangent that is None is zero; nothing is recorded for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quabla.arrays.tracer import Frame, TraceTensor, bind, replay, trace
from quabla.errors import UnsupportedOperationError
from quabla.ir.op import Each, Jointly, Op, Refused
from quabla.ir.program import Program
from quabla.ops.elementwise import add_op
from quabla.ops.structure import zeros_like
from quabla.transforms.turns import Met, marked, straightened

__all__ = ["apply_jvp", "jvp", "jvp_values", "replay"]


def apply_jvp(
    op: Op, primals: Sequence[Any], tangents: Sequence[Any], out: Any, params: dict[str, Any]
) -> Any:
    """The tangent of `out = op(*primals)`: from the op's own rule, or from its linearity.

    Raises:
        UnsupportedOperationError: the op refuses to be differentiated, with its reason.
    """
    rule = op.jvp
    if rule is None:
        return _linear_jvp(op, primals, tangents, params)
    if isinstance(rule, Refused):
        raise UnsupportedOperationError(f"{op.name}: cannot be differentiated: {rule.why}", op=op.name)
    return rule(primals, tangents, out, **params)


def _linear_jvp(op: Op, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> Any:
    if isinstance(op.linear, Jointly):
        if all(t is None for t in tangents):
            return None
        return bind(
            op, [zeros_like(p) if t is None else t for p, t in zip(primals, tangents, strict=True)], params
        )
    assert isinstance(op.linear, Each)
    total = None
    for i in op.linear.operands:
        if tangents[i] is not None:
            term = bind(op, [*primals[:i], tangents[i], *primals[i + 1 :]], params)
            total = term if total is None else bind(add_op, (total, term), {})
    return total


def jvp_values(
    frame: Frame, program: Program, primals: Sequence[TraceTensor], tangents: Sequence[TraceTensor | None]
) -> tuple[list[TraceTensor], list[TraceTensor | None]]:
    """Record a program and its tangents in `frame`.

    Args:
        frame: where to record; the primals and tangents are values of it.
        program: what to differentiate.
        primals: a value per input.
        tangents: a value of the same type per input, or None for zero.

    Returns:
        The outputs, and their tangents (None for zero).
    """
    if not marked(program):
        return _swept(frame, program, primals, tangents, None)
    met = Met()
    outs, t_outs = _swept(frame, program, primals, tangents, met)
    return outs, straightened(outs, t_outs, met)


def _swept(
    frame: Frame, program: Program, primals: Sequence[Any], tangents: Sequence[Any], met: Met | None
) -> tuple[list[Any], list[Any]]:
    """Value and tangent of each output, node by node; `met` collects the tangents of roots on the way."""
    value: dict[Any, Any] = dict(zip(program.inputs, primals, strict=True))
    tangent: dict[Any, Any] = {v: t for v, t in zip(program.inputs, tangents, strict=True) if t is not None}
    for node in program.nodes:
        operands = tuple([value[v] for v in node.inputs])
        multiple = node.op.multiple
        moving = [tangent.get(v) for v in node.inputs]
        moves = any(t is not None for t in moving)
        out: Any
        t_out: Any
        if moves and met is not None and node.op.name == "checkpoint" and marked(node.params["fun"]):
            # What it holds and what follows it are seen together.
            out, t_out = _swept(frame, node.params["fun"], operands, moving, met)
        elif moves and node.op.forward is not None:
            out, t_out = node.op.forward(operands, moving, **node.params)
        else:
            out = replay(frame, node, operands)
            t_out = apply_jvp(node.op, operands, moving, out, node.params) if moves else None
        if moves and met is not None:
            t_out = met.node(node, out, t_out)
        for v, o in zip(node.outputs, out if multiple else (out,), strict=True):
            value[v] = o
        if t_out is not None:
            for v, t in zip(node.outputs, t_out if multiple else (t_out,), strict=True):
                if t is not None:
                    tangent[v] = t
    return [value[v] for v in program.outputs], [tangent.get(v) for v in program.outputs]


def jvp(program: Program) -> Program:
    """The program of the Jacobian-vector product.

    Args:
        program: any program.

    Returns:
        A program whose inputs are those of `program` and then a tangent for each floating one, and whose outputs are
        those of `program` and then a tangent for each floating one.
    """
    avals = program.in_avals
    floating = [a for a in avals if a.dtype.kind == "f"]

    def run(*args: Any) -> list[Any]:
        frame = args[0].frame
        rest = iter(args[len(avals) :])
        tangents = [next(rest) if a.dtype.kind == "f" else None for a in avals]
        outs, t_outs = jvp_values(frame, program, args[: len(avals)], tangents)
        moved = [
            zeros_like(o) if t is None else t
            for o, t in zip(outs, t_outs, strict=True)
            if o.dtype.kind == "f"
        ]
        return [*outs, *moved]

    names = (
        *program.input_names,
        *(f"tangent/{n}" for n, a in zip(program.input_names, avals, strict=True) if a.dtype.kind == "f"),
    )
    return trace(run, [*avals, *floating], names)[0]
