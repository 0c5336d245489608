"""`while_op`: a loop that runs while a predicate of its carry holds.

Its operands are constants, which the predicate and every step see, and the initial carry. The predicate is a program of
(constants, carry), the body one of (step index, constants, carry) that returns (carry, results to be stacked). Its
results are the final carry, the stacks, and the number of steps as an int64 scalar.

With a `length` the loop stops after that many steps at the latest, and only then may there be stacks: reverse mode
needs them, and so needs a bound. What reverse mode runs is a counted `scan_op`, over the steps that were taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import bind, trace
from quabla.control.derive import (
    Parts,
    around,
    backward,
    drop_unread,
    grow,
    index_aval,
    keeping,
    per_lane,
    swapped,
    tangents,
)
from quabla.control.regions import chosen_lanes, evaluate, lifted, mapped, safe_lanes, split
from quabla.control.scan import bind_scan
from quabla.dtypes import float32, float64
from quabla.errors import UnsupportedOperationError
from quabla.ir.op import Op, Sample, define
from quabla.ir.program import Program
from quabla.ops.compare import less
from quabla.ops.elementwise import add, add_op, mul, sin
from quabla.ops.reduce import reduce_any_op
from quabla.ops.structure import cast, lead, sum_over, zeros_like
from quabla.shapes import ShapeDtype, aval_of
from quabla.transforms.batch import batch_values
from quabla.transforms.staging import inline

__all__ = ["bind_while", "while_op"]


def _infer(
    *avals: ShapeDtype, cond: Program, body: Program, length: int | None, consts: int, carry: int
) -> tuple[ShapeDtype, ...]:
    outs = body.out_avals
    stacks = [aval_of((length or 0, *a.shape), a.dtype, a.weak) for a in outs[carry:]]
    return (*outs[:carry], *stacks, index_aval)


def _evaluate(
    *operands: np.ndarray, cond: Program, body: Program, length: int | None, consts: int, carry: int
) -> tuple[np.ndarray, ...]:
    fixed, state, _ = split(operands, consts, carry)
    stacks = [np.zeros((length or 0, *a.shape), a.dtype.numpy) for a in body.out_avals[carry:]]
    steps = 0
    while (length is None or steps < length) and evaluate(cond, [*fixed, *state])[0]:
        outs = evaluate(body, [np.array(steps), *fixed, *state])
        state = outs[:carry]
        for stack, y in zip(stacks, outs[carry:], strict=True):
            stack[steps] = y
        steps += 1
    return (*state, *stacks, np.array(steps))


def bind_while(
    cond: Program, body: Program, length: int | None, consts: Sequence[Any], carry: Sequence[Any]
) -> tuple[list[Any], list[Any], Any]:
    """Apply `while_op`, less the constants that neither program reads.

    Returns:
        The final carry, the stacked results, and the number of steps.
    """
    body, parts, keep = drop_unread(body, Parts(list(consts), list(carry), []), (cond,))
    flags = [*keep, *[True] * len(carry)]
    cond = Program(tuple(v for v, k in zip(cond.inputs, flags, strict=True) if k), cond.nodes, cond.outputs)
    params = {"cond": cond, "body": body, "length": length, "consts": len(parts.consts), "carry": len(carry)}
    outs = bind(while_op, tuple(lifted([*parts.consts, *parts.carry])), params)
    return list(outs[: len(carry)]), list(outs[len(carry) : -1]), outs[-1]


def _widened(program: Program, parts: Parts, joint: Parts) -> Program:
    """A program of (constants, carry) as one of more of them, of which it reads the first ones."""
    nc, nk = len(parts.consts), len(parts.carry)

    def run(*args: Any) -> list[Any]:
        c, s, _ = split(args, len(joint.consts), len(joint.carry))
        return inline(program, [*c[:nc], *s[:nk]])

    return trace(run, joint.avals()[1:])[0]


def _forward(
    primals: Any, given: Any, *, cond: Program, body: Program, length: int | None, consts: int, carry: int
) -> tuple[Any, Any]:
    parts, moving = Parts(*split(primals, consts, carry)), Parts(*split(given, consts, carry))
    joint = tangents(body, parts, moving)
    state, ys, steps = bind_while(
        _widened(cond, parts, joint.parts), joint.body, length, joint.parts.consts, joint.parts.carry
    )
    outs, t_outs = joint.divide(state, ys)
    return (*outs, steps), (*t_outs, None)


def _reverse(
    frame: Any,
    operands: Any,
    wanted: Any,
    *,
    cond: Program,
    body: Program,
    length: int | None,
    consts: int,
    carry: int,
) -> Any:
    if length is None:
        params = {"cond": cond, "body": body, "length": None, "consts": consts, "carry": carry}
        return bind(while_op, tuple(operands), params), _without_bound
    bound = length
    parts, needs = Parts(*split(operands, consts, carry)), Parts(*split(wanted, consts, carry))
    final, stacks, steps = bind_while(cond, keeping(body, parts), bound, parts.consts, parts.carry)
    ys, kept = split(stacks, len(stacks) - carry)

    def pullback(cts: Sequence[Any]) -> list[Any]:
        back = backward(body, parts, needs, final, kept, cts[:-1])
        return back.divide(needs, *bind_scan(back.body, bound, back.parts, True, steps))

    return (*final, *ys, steps), pullback


def _without_bound(cts: Sequence[Any]) -> list[Any]:
    # Only here, since what is computed of the result may have no derivative.
    raise UnsupportedOperationError(
        "while_loop: reverse mode needs to know how many steps there can be: give max_steps=n, or use fori_loop or "
        "scan with a length that is an int; forward mode (quabla.jvp) works without a bound. A fori_loop with a traced "
        "bound is a while_loop, and its docstring shows how to write it with max_steps",
        op="while",
    )


def _batch(
    operands: Any,
    over: Any,
    size: int,
    *,
    cond: Program,
    body: Program,
    length: int | None,
    consts: int,
    carry: int,
) -> Any:
    parts, flags = Parts(*split(operands, consts, carry)), Parts(*split(over, consts, carry))
    many = grow(list(flags.carry), lambda m: mapped(body, [False, *flags.consts, *m])[:carry])
    if not mapped(cond, [*flags.consts, *many])[0]:
        lanes, joint, many, many_ys = per_lane(body, parts, flags, size)
        state, ys, steps = bind_while(cond, lanes, length, joint.consts, joint.carry)
        placed = [swapped(y) if m else lead(y, False, size) for y, m in zip(ys, many_ys, strict=True)]
        final = [lead(x, m, size) for x, m in zip(state, many, strict=True)]
        return (*final, *placed, lead(steps, False, size))
    return _batch_predicate(parts, flags, size, cond, body, length)


def _batch_predicate(
    parts: Parts, flags: Parts, size: int, cond: Program, body: Program, length: int | None
) -> tuple[Any, ...]:
    """A predicate per lane: the loop runs while any lane does.

    A lane that is done keeps its carry, and computes on that of a lane that is not, so that nothing it would not have
    met can reach it.
    """
    nc, nk = len(parts.consts), len(parts.carry)
    all_carry = [lead(x, o, size) for x, o in zip(parts.carry, flags.carry, strict=True)]
    every = Parts(flags.consts, [True] * nk, [])
    lanes, joint, _, _ = per_lane(body, Parts(parts.consts, all_carry, []), every, size)
    own = wrap(np.zeros(size, np.int64))
    wide = Parts(joint.consts, [*joint.carry, own], [])

    def running(args: Sequence[Any]) -> Any:
        outs, over = batch_values(args[0].frame, cond, args[: nc + nk], [*flags.consts, *[True] * nk], size)
        return lead(outs[0], over[0], size)

    def some(*args: Any) -> list[Any]:
        return [bind(reduce_any_op, (running(args),), {"axes": (0,)})]

    def step(i: Any, *args: Any) -> list[Any]:
        active = running(args)
        state = args[nc : nc + nk]
        safe = safe_lanes(active, [*args[:nc], *state], [*flags.consts, *[True] * nk])
        outs = inline(lanes, (i, *safe))
        kept = [chosen_lanes(active, new, old) for new, old in zip(outs[:nk], state, strict=True)]
        rest = [lead(o, o.ndim > a.ndim, size) for o, a in zip(outs[nk:], body.out_avals[nk:], strict=True)]
        count = bind(add_op, (args[-1], cast(active, index_aval.dtype)), {})
        return [*kept, count, *(chosen_lanes(active, y, zeros_like(y)) for y in rest)]

    stepping, _ = trace(step, wide.avals())
    asking, _ = trace(some, wide.avals()[1:])
    state, ys, _ = bind_while(asking, stepping, length, wide.consts, wide.carry)
    return (*state[:nk], *(swapped(y) for y in ys), state[nk])


def _through(
    walk: Any,
    given: Sequence[Any],
    *,
    cond: Program,
    body: Program,
    length: int | None,
    consts: int,
    carry: int,
) -> list[Any]:
    parts = Parts(*split(given, consts, carry))
    found = around(walk, body, parts)
    walk(cond, [*parts.consts, *found[:carry]])
    return [*found, walk.still]


def _samples() -> Iterator[Sample]:
    for d in (float64, float32):
        state = aval_of((2,), d)
        cond, _ = trace(lambda c, s: [less(sum_over(mul(s, s), (0,)), 50.0)], [state, state])
        plain, _ = trace(lambda i, c, s: [mul(c, add(s, sin(s)))], [index_aval, state, state])
        stacking, _ = trace(lambda i, c, s: [mul(c, add(s, sin(s))), mul(s, c)], [index_aval, state, state])
        for label, body, length in (("bounded", plain, 20), ("stacking", stacking, 9), ("cut", stacking, 2)):
            yield Sample(
                f"{label}_{d}",
                lambda rng: (rng.uniform(1.5, 2.0, (2,)), rng.uniform(0.5, 1.0, (2,))),
                {"cond": cond, "body": body, "length": length, "consts": 1, "carry": 1},
                only=d,
            )


while_op = define(
    Op(
        name="while",
        infer=_infer,
        evaluate=_evaluate,
        forward=_forward,
        reverse=_reverse,
        batch=_batch,
        through=_through,
        samples=_samples,
        family="region",
        multiple=True,
    )
)
