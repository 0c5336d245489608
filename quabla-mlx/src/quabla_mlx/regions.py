"""Control flow: ops that hold programs, as loops and branches of Python over their tapes.

A branch, and each step of a loop that asks a question, waits for the answer. Other loops only hand MLX more work, a
bounded amount at a time, so that graphs stay short and their memory is used again.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from quabla.control.regions import used
from quabla.ir.program import Node, Program
from quabla_mlx.rules import Call, rule
from quabla_mlx.tape import Tape, tape_of
from quabla_mlx.target import Array, Target

__all__: list[str] = []

_PENDING = 1000
"""About so many nodes are recorded before MLX is asked to begin with them."""


def _tape(program: Program, target: Target) -> Tape:
    return tape_of(program, target, "mlx")


@rule("cond")
def _cond(node: Node, target: Target) -> Call:
    true, false = (_tape(node.params[name], target).run for name in ("true", "false"))

    def cond(pred: Array, *operands: Array) -> tuple[Array, ...]:
        return (true if pred.item() else false)(*operands)

    return Call(cond)


@rule("checkpoint")
def _checkpoint(node: Node, target: Target) -> Call:
    return Call(_tape(node.params["fun"], target).run)


def _stacked(rows: Sequence[Array], missing: int, shape: tuple[int, ...], dtype: object) -> Array:
    """Results of steps as one array; those of steps that were not taken are zero."""
    if not rows:
        return mx.zeros((missing, *shape), dtype=dtype)
    stack = mx.stack(rows)
    if not missing:
        return stack
    return mx.concatenate([stack, mx.zeros((missing, *shape), dtype=dtype)])


@rule("scan")
def _scan(node: Node, target: Target) -> Call:
    p = node.params
    length, consts, carry, reverse, counted = (
        p[k] for k in ("length", "consts", "carry", "reverse", "counted")
    )
    body = p["body"]
    tape = _tape(body, target)
    run, indexed = tape.run, used(body)[0]
    portion = max(1, _PENDING // max(tape.nodes, 1))
    results = [(v.aval.shape, target.kind(v.aval.dtype)) for v in body.outputs[carry:]]

    def scan(*operands: Array) -> tuple[Array, ...]:
        steps = max(0, min(length, operands[0].item())) if counted else length
        at = int(counted)
        fixed, state = operands[at : at + consts], operands[at + consts : at + consts + carry]
        columns = [mx.unstack(x) for x in operands[at + consts + carry :]]
        rows: list[tuple[Array, ...]] = []
        for k in range(steps):
            i = steps - 1 - k if reverse else k
            index = mx.array(i, dtype=mx.int64) if indexed else None
            outs = run(index, *fixed, *state, *[column[i] for column in columns])
            state = outs[:carry]
            rows.append(outs[carry:])
            if k % portion == portion - 1:
                mx.async_eval(outs)
        if reverse:
            rows.reverse()
        stacks = [
            _stacked([row[j] for row in rows], length - steps, *result) for j, result in enumerate(results)
        ]
        return (*state, *stacks)

    return Call(scan)


@rule("while")
def _while(node: Node, target: Target) -> Call:
    p = node.params
    length, consts, carry, body = p["length"], p["consts"], p["carry"], p["body"]
    run, asked = _tape(body, target).run, _tape(p["cond"], target).run
    indexed = used(body)[0]
    results = [(v.aval.shape, target.kind(v.aval.dtype)) for v in body.outputs[carry:]]

    def loop(*operands: Array) -> tuple[Array, ...]:
        fixed, state = operands[:consts], operands[consts:]
        rows: list[tuple[Array, ...]] = []
        steps = 0
        while length is None or steps < length:
            (answer,) = asked(*fixed, *state)
            mx.eval(answer, state)
            if not answer.item():
                break
            outs = run(mx.array(steps, dtype=mx.int64) if indexed else None, *fixed, *state)
            state = outs[:carry]
            if results:
                rows.append(outs[carry:])
                mx.async_eval(outs)
            steps += 1
        stacks = [
            _stacked([row[j] for row in rows], (length or 0) - steps, *result)
            for j, result in enumerate(results)
        ]
        return (*state, *stacks, mx.array(steps, dtype=mx.int64))

    return Call(loop)
