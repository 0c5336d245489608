"""Reverse mode: the vector-Jacobian product of a program.

The nodes are recorded forwards, then their pullbacks backwards. The pullback of an op is its own `vjp` where it has
one, the transpose of a linear op, and otherwise follows from its `jvp`: run that rule on placeholders for the tangents,
which records a linear computation, and transpose that computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quabla.arrays.tracer import Frame, TraceTensor, trace
from quabla.ir.op import Op
from quabla.ir.program import Node, Program
from quabla.ops.elementwise import stop_gradient_op
from quabla.ops.masks import add_cotangents
from quabla.transforms.forward import apply_jvp, replay

__all__ = ["accumulate", "pullback", "vjp", "vjp_values"]


def accumulate(frame: Frame, cts: dict[Any, Any], v: Any, ct: Any) -> None:
    """Add a cotangent of the value `v` to those collected."""
    old = cts.get(v)
    cts[v] = ct if old is None else add_cotangents(old, ct)


def pullback(
    frame: Frame,
    op: Op,
    operands: Sequence[TraceTensor],
    out: Any,
    cts: Any,
    wanted: Sequence[bool],
    params: dict[str, Any],
) -> Sequence[TraceTensor | None]:
    """The cotangents of the operands of `out = op(*operands)`.

    Args:
        frame: where to record.
        op: the op.
        operands: its operands.
        out: its result; a tuple where the op has several.
        cts: the cotangent of `out`; where the op has several results, a tuple in which None is zero.
        wanted: for which operands a cotangent is wanted.
        params: the params of the op.

    Returns:
        A cotangent per operand; None where it is zero or not wanted.
    """
    if op.vjp is not None:
        return op.vjp(cts, operands, out, wanted, **params)
    if op.linear is not None:
        assert op.transpose is not None
        return op.transpose(cts, operands, wanted, **params)
    tangents = [frame.placeholder(x.aval) if w else None for x, w in zip(operands, wanted, strict=True)]
    mark = len(frame.nodes)
    t_out = apply_jvp(op, operands, tangents, out, params)
    outs, given = (t_out, cts) if op.multiple else ((t_out,), (cts,))
    seeds: dict[Any, Any] = {}
    for t, ct in zip(outs, given, strict=True):
        if t is not None and ct is not None:
            accumulate(frame, seeds, t, ct)
    # The nodes that hang on the placeholders are never reached from an output of the trace, so `prune` drops them.
    return transpose_nodes(frame, frame.nodes[mark:], tangents, seeds)


def transpose_nodes(
    frame: Frame, nodes: Sequence[Node], tangents: Sequence[TraceTensor | None], seeds: dict[Any, Any]
) -> list[TraceTensor | None]:
    """Run linear nodes backwards.

    Args:
        frame: where to record.
        nodes: nodes of `frame`; those that depend on `tangents` are linear in them.
        tangents: the values to transpose with respect to.
        seeds: cotangents of results of the nodes; collects all others.

    Returns:
        The cotangent of each of `tangents`.
    """
    moving: set[Any] = {t for t in tangents if t is not None}
    linear = []
    for node in nodes:
        if any(v in moving for v in node.inputs):
            linear.append(node)
            moving.update(node.outputs)
    cts = dict(seeds)
    for node in reversed(linear):
        wanted = [v in moving for v in node.inputs]
        cts_out = [cts.get(v) for v in node.outputs]
        if all(ct is None for ct in cts_out):
            continue
        given = tuple(cts_out) if node.op.multiple else cts_out[0]
        transpose = node.op.transpose
        assert transpose is not None, f"the tangent of an op is not linear: {node.op}; please report this"
        back = transpose(given, node.inputs, wanted, **node.params)
        for v, w, ct in zip(node.inputs, wanted, back, strict=True):
            if w and ct is not None:
                accumulate(frame, cts, v, ct)
    return [None if t is None else cts.get(t) for t in tangents]


def _recorded(frame: Frame, node: Node, operands: Any, needs: Sequence[bool]) -> tuple[Any, Any]:
    """The result of a node on other operands, and its pullback."""
    if node.op.reverse is not None:
        return node.op.reverse(frame, operands, needs, **node.params)  # type: ignore[no-any-return]
    out = replay(frame, node, operands)
    return out, lambda ct: pullback(frame, node.op, operands, out, ct, needs, node.params)


def vjp_values(
    frame: Frame,
    program: Program,
    primals: Sequence[TraceTensor],
    wanted: Sequence[bool],
) -> tuple[list[TraceTensor], Any]:
    """Record a program in `frame`, ready to be run backwards.

    Args:
        frame: where to record; the primals are values of it.
        program: what to differentiate.
        primals: a value per input.
        wanted: for which inputs a cotangent is wanted.

    Returns:
        The outputs, and a function from cotangents of the outputs (None for zero) to cotangents of the wanted inputs
        (None for zero), which records the backward pass.
    """
    value: dict[Any, Any] = dict(zip(program.inputs, primals, strict=True))
    active: set[Any] = {
        v for v, w in zip(program.inputs, wanted, strict=True) if w and v.aval.dtype.kind == "f"
    }
    steps: list[tuple[Node, Any]] = []
    for node in program.nodes:
        operands = tuple([value[v] for v in node.inputs])
        needs = [v in active for v in node.inputs]
        back = None
        # Behind `stop_gradient` nothing depends on the inputs: a loop that has no pullback may stand there.
        moves = True in needs and node.op is not stop_gradient_op
        floating = [v for v in node.outputs if v.aval.dtype.kind == "f"] if moves else []
        if floating:
            active.update(floating)
            out, back = _recorded(frame, node, operands, needs)
            steps.append((node, back))
        else:
            out = replay(frame, node, operands)
        for v, o in zip(node.outputs, out if node.op.multiple else (out,), strict=True):
            value[v] = o

    def backward(cts_out: Sequence[TraceTensor | None]) -> list[TraceTensor | None]:
        cts: dict[Any, Any] = {}
        for v, ct in zip(program.outputs, cts_out, strict=True):
            if ct is not None and v in active:
                accumulate(frame, cts, v, ct)
        for node, back in reversed(steps):
            given = tuple([cts.get(v) for v in node.outputs])
            if given.count(None) == len(given):
                continue
            for v, ct in zip(node.inputs, back(given if node.op.multiple else given[0]), strict=True):
                if ct is not None and v in active:
                    accumulate(frame, cts, v, ct)
        return [cts.get(v) if w else None for v, w in zip(program.inputs, wanted, strict=True)]

    return [value[v] for v in program.outputs], backward


def vjp(program: Program) -> Program:
    """The program of the vector-Jacobian product.

    Args:
        program: any program.

    Returns:
        A program whose inputs are those of `program` and then a cotangent for each floating output, and whose outputs
        are those of `program` and then a cotangent for each floating input.
    """
    avals = program.in_avals
    floating = [a.dtype.kind == "f" for a in avals]
    seeds = [a for a in program.out_avals if a.dtype.kind == "f"]

    def run(*args: Any) -> list[Any]:
        frame = args[0].frame
        outs, backward = vjp_values(frame, program, args[: len(avals)], floating)
        rest = iter(args[len(avals) :])
        cts = backward([next(rest) if a.dtype.kind == "f" else None for a in program.out_avals])
        grads = [
            frame.full(0, a) if ct is None else ct for a, ct, f in zip(avals, cts, floating, strict=True) if f
        ]
        return [*outs, *grads]

    names = (*program.input_names, *(f"cotangent/{i}" for i in range(len(seeds))))
    return trace(run, [*avals, *seeds], names)[0]
