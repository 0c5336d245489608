"""The derived bodies of a loop: what `scan_op` and `while_op` run for tangents, for residuals, backwards, and per lane.

A body is a program of (step index, constants, carry, slices) that returns (carry, results). `Parts` says how many there
are of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from quabla.arrays.tracer import bind, frames, trace
from quabla.control.regions import mapped, moved, split, used
from quabla.dtypes import int64
from quabla.ir.program import Node, Program
from quabla.ops.elementwise import add_op
from quabla.ops.limits import conceal
from quabla.ops.structure import lead, permute, zeros_like
from quabla.shapes import ShapeDtype, aval_of
from quabla.transforms.batch import batch_values
from quabla.transforms.forward import jvp_values, replay
from quabla.transforms.reverse import vjp_values
from quabla.transforms.staging import inline

__all__ = [
    "Backward",
    "Parts",
    "Tangents",
    "around",
    "backward",
    "committed",
    "grow",
    "index_aval",
    "keeping",
    "per_lane",
    "slice_type",
    "tangents",
]

index_aval = aval_of((), int64)


class Parts(NamedTuple):
    """The operands of a loop: constants, initial carry, and arrays that are sliced along their leading axis."""

    consts: list[Any]
    carry: list[Any]
    xs: list[Any]

    def avals(self) -> list[ShapeDtype]:
        """The types of the inputs of a body over these operands."""
        return [index_aval, *_types(self.consts), *_types(self.carry), *map(slice_type, self.xs)]


def _types(xs: Sequence[Any]) -> list[ShapeDtype]:
    return [aval_of(x.shape, x.dtype) for x in xs]


def slice_type(x: Any) -> ShapeDtype:
    """The type of a slice along the leading axis."""
    return aval_of(x.shape[1:], x.dtype)


def grow(flags: list[bool], step: Callable[[list[bool]], list[bool]]) -> list[bool]:
    """The least set of carries that contains `flags` and with each step what `step` says that the step marks."""
    while True:
        more = [a or b for a, b in zip(flags, step(flags), strict=True)]
        if more == flags:
            return flags
        flags = more


def around(walk: Any, body: Program, given: Parts) -> list[Any]:
    """What `walk` finds of the final carry and of the results of a loop, given what it knows of the operands."""
    carry = list(given.carry)
    while True:
        found = walk(body, [walk.still, *given.consts, *carry, *given.xs])
        more = [walk.either(a, b) for a, b in zip(carry, found, strict=False)]
        if more == carry:
            return [*carry, *found[len(carry) :]]
        carry = more


def drop_unread(
    body: Program, parts: Parts, others: Sequence[Program] = ()
) -> tuple[Program, Parts, list[bool]]:
    """Leave out constants and slices that the body does not read.

    Args:
        body: the body.
        parts: its operands.
        others: programs of (constants, carry) that read constants too.

    Returns:
        The body, the operands, and which constants are kept.
    """
    reads = used(body)
    nc, nk = len(parts.consts), len(parts.carry)
    consts = reads[1 : 1 + nc]
    for other in others:
        consts = [a or b for a, b in zip(consts, used(other), strict=False)]
    keep = [True, *consts, *[True] * nk, *reads[1 + nc + nk :]]
    if all(keep):
        return body, parts, consts
    inputs = tuple(v for v, k in zip(body.inputs, keep, strict=True) if k)
    kept = Parts(
        [c for c, k in zip(parts.consts, consts, strict=True) if k],
        parts.carry,
        [x for x, k in zip(parts.xs, keep[1 + nc + nk :], strict=True) if k],
    )
    return Program(inputs, body.nodes, body.outputs), kept, consts


# --- forward mode -----------------------------------------------------------------------------------------------------


class Tangents(NamedTuple):
    """A loop with its tangents.

    Attributes:
        body: the body, with a tangent after the constants, the carry, the slices and the results.
        parts: its operands.
        carry: which carries have a tangent.
        ys: which results have one.
    """

    body: Program
    parts: Parts
    carry: list[bool]
    ys: list[bool]

    def divide(self, state: Sequence[Any], ys: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The values and the tangents among the results of the loop."""
        nk, ny = len(self.carry), len(self.ys)
        rest, more = iter(state[nk:]), iter(ys[ny:])
        moved_state = [next(rest) if m else None for m in self.carry]
        moved_ys = [next(more) if m else None for m in self.ys]
        return (*state[:nk], *ys[:ny]), (*moved_state, *moved_ys)


def tangents(body: Program, parts: Parts, given: Parts) -> Tangents:
    """The loop that carries tangents too.

    Args:
        body: the body.
        parts: its operands.
        given: their tangents; None for zero.
    """
    nc, nk, nx = len(parts.consts), len(parts.carry), len(parts.xs)
    m_consts, m_xs = [t is not None for t in given.consts], [t is not None for t in given.xs]
    m_carry = grow(
        [t is not None for t in given.carry], lambda m: moved(body, [False, *m_consts, *m, *m_xs])[:nk]
    )
    moving = [False, *m_consts, *m_carry, *m_xs]
    m_ys = moved(body, moving)[nk:]
    t_carry = [
        zeros_like(x) if t is None else t
        for x, t, m in zip(parts.carry, given.carry, m_carry, strict=True)
        if m
    ]
    joint = Parts(
        [*parts.consts, *(t for t in given.consts if t is not None)],
        [*parts.carry, *t_carry],
        [*parts.xs, *(t for t in given.xs if t is not None)],
    )

    def run(i: Any, *args: Any) -> list[Any]:
        c, s, x = split(args, len(joint.consts), len(joint.carry))
        rest = iter((*c[nc:], *s[nk:], *x[nx:]))
        values = [i, *c[:nc], *s[:nk], *x[:nx]]
        conceal(v for v, m in zip(values, moving, strict=True) if m)
        outs, t_outs = jvp_values(i.frame, body, values, [next(rest) if m else None for m in moving])
        filled = [zeros_like(o) if t is None else t for o, t in zip(outs, t_outs, strict=True)]
        t_state = [t for t, m in zip(filled[:nk], m_carry, strict=True) if m]
        t_ys = [t for t, m in zip(filled[nk:], m_ys, strict=True) if m]
        return [*outs[:nk], *t_state, *outs[nk:], *t_ys]

    return Tangents(trace(run, joint.avals())[0], joint, m_carry, m_ys)


# --- reverse mode -----------------------------------------------------------------------------------------------------


def committed(program: Program) -> Program:
    """The program that the forward pass of reverse mode runs: each `custom_vjp` in it is its `fwd`.

    What is differentiated once more is then what the author's rules compute, as it is outside of regions.
    """
    found = program.memo.get(committed)
    if found is None:
        nodes = program.nodes
        inner = [
            {k: committed(p) if isinstance(p, Program) else p for k, p in node.params.items()}
            for node in nodes
        ]
        same = all(
            p is node.params[k] for node, params in zip(nodes, inner, strict=True) for k, p in params.items()
        )
        if same and all(node.op.name != "custom_vjp" for node in nodes):
            found = program
        else:
            found = trace(
                lambda *args: _with_rules(program, inner, args), program.in_avals, program.input_names
            )[0]
        program.memo[committed] = found
    return found


def _with_rules(program: Program, inner: Sequence[dict[str, Any]], args: Sequence[Any]) -> list[Any]:
    frame = frames()[-1]
    env: dict[Any, Any] = dict(zip(program.inputs, args, strict=True))
    for node, params in zip(program.nodes, inner, strict=True):
        operands = [env[v] for v in node.inputs]
        if node.op.name == "custom_vjp":
            outs = inline(params["fwd"].program, operands[: params["count"]])[: len(node.outputs)]
        else:
            outs = replay(
                frame, node if params == node.params else Node(node.op, node.inputs, params), tuple(operands)
            )
        env.update(zip(node.outputs, outs if node.op.multiple else (outs,), strict=True))
    return [env[v] for v in program.outputs]


def keeping(body: Program, parts: Parts) -> Program:
    """The body that also returns the carry that it was given, as its last results: the residuals of reverse mode."""
    at, n = 1 + len(parts.consts), len(parts.carry)
    run = committed(body)
    return trace(lambda *args: [*inline(run, args), *args[at : at + n]], parts.avals())[0]


class Backward(NamedTuple):
    """The loop that runs backwards.

    Attributes:
        body: the body: its carry is the cotangent of the carry and then the sums of those of the constants.
        parts: its operands.
        active: which carries have a cotangent.
    """

    body: Program
    parts: Parts
    active: list[bool]

    def divide(self, wanted: Parts, state: Sequence[Any], ys: Sequence[Any]) -> list[Any]:
        """The cotangents of the operands of the loop among the results of this one; None where not wanted."""
        count = sum(self.active)
        by_carry, sums, by_xs = iter(state[:count]), iter(state[count:]), iter(ys)
        carry = [next(by_carry) if a else None for a in self.active]
        return [
            *(next(sums) if w else None for w in wanted.consts),
            *carry,
            *(next(by_xs) if w else None for w in wanted.xs),
        ]


def backward(
    body: Program, parts: Parts, wanted: Parts, final: Sequence[Any], kept: Sequence[Any], cts: Sequence[Any]
) -> Backward:
    """The loop that runs the pullback of every step, to be run from the last step to the first.

    Args:
        body: the body.
        parts: its operands.
        wanted: which of them need a cotangent.
        final: the carry after the last step.
        kept: the carry before every step, stacked.
        cts: the cotangents of the final carry and of the stacked results; None for zero.
    """
    nc, nk, nx = len(parts.consts), len(parts.carry), len(parts.xs)
    active = grow(list(wanted.carry), lambda m: moved(body, [False, *wanted.consts, *m, *wanted.xs])[:nk])
    ct_carry = [
        zeros_like(x) if ct is None else ct for x, ct, a in zip(final, cts[:nk], active, strict=True) if a
    ]
    sums = [zeros_like(x) for x, w in zip(parts.consts, wanted.consts, strict=True) if w]
    live = [ct is not None for ct in cts[nk:]]
    needs = [False, *wanted.consts, *active, *wanted.xs]
    joint = Parts(
        parts.consts, [*ct_carry, *sums], [*kept, *parts.xs, *(ct for ct in cts[nk:] if ct is not None)]
    )

    def run(i: Any, *args: Any) -> list[Any]:
        c, s, x = split(args, nc, len(joint.carry))
        before, slices, ct_ys = split(x, nk, nx)
        values = [i, *c, *before, *slices]
        conceal([*(v for v, n in zip(values, needs, strict=True) if n), *s[: len(ct_carry)], *ct_ys])
        _, pull = vjp_values(i.frame, body, values, needs)
        given, more = iter(s[: len(ct_carry)]), iter(ct_ys)
        found = pull([next(given) if a else None for a in active] + [next(more) if x else None for x in live])
        filled = [zeros_like(v) if ct is None else ct for v, ct in zip(values, found, strict=True)]
        _, by_const, by_carry, by_x = split(filled, 1, nc, nk)
        new = [n for n, w in zip(by_const, wanted.consts, strict=True) if w]
        added = [bind(add_op, (old, n), {}) for old, n in zip(s[len(ct_carry) :], new, strict=True)]
        return [
            *(ct for ct, a in zip(by_carry, active, strict=True) if a),
            *added,
            *(ct for ct, w in zip(by_x, wanted.xs, strict=True) if w),
        ]

    return Backward(trace(run, joint.avals())[0], joint, active)


# --- batching ---------------------------------------------------------------------------------------------------------


def per_lane(
    body: Program, parts: Parts, over: Parts, size: int
) -> tuple[Program, Parts, list[bool], list[bool]]:
    """The loop over `size` lanes at once.

    Args:
        body: the body of one lane.
        parts: the operands; the mapped ones with a leading batch axis.
        over: which are mapped.
        size: the number of lanes.

    Returns:
        The body, the operands (slices with the batch axis second), which carries are mapped, and which results are.
    """
    nk = len(parts.carry)
    carry = grow(list(over.carry), lambda m: mapped(body, [False, *over.consts, *m, *over.xs])[:nk])
    flags = [False, *over.consts, *carry, *over.xs]
    ys = mapped(body, flags)[nk:]
    joint = Parts(
        parts.consts,
        [
            x if was or not now else lead(x, False, size)
            for x, was, now in zip(parts.carry, over.carry, carry, strict=True)
        ],
        [swapped(x) if o else x for x, o in zip(parts.xs, over.xs, strict=True)],
    )

    def run(i: Any, *args: Any) -> list[Any]:
        outs, many = batch_values(i.frame, body, (i, *args), flags, size)
        return [lead(o, m, size) if w else o for o, m, w in zip(outs, many, [*carry, *ys], strict=True)]

    return trace(run, joint.avals())[0], joint, carry, ys


def swapped(x: Any) -> Any:
    """`x` with its first two axes exchanged: the batch axis and the axis of the steps."""
    return permute(x, (1, 0, *range(2, x.ndim)))
