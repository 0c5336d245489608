"""`scan_op`: a loop of a known length.

Its operands are constants, which every step sees, the initial carry, which each step hands to the next, and arrays
whose slices along the leading axis the steps see one by one. The body is a program of (step index, constants, carry,
slices) that returns (carry, results to be stacked). A counted loop has the number of its steps, at most `length`, as
its first operand; what later steps would have returned is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from quabla.arrays.tracer import bind, trace
from quabla.control.derive import Parts, around, backward, drop_unread, keeping, per_lane, swapped, tangents
from quabla.control.regions import chosen_lanes, evaluate, lifted, safe_lanes, split
from quabla.dtypes import float32, float64, int64
from quabla.ir.op import Op, Sample, define
from quabla.ir.program import Program
from quabla.ops.compare import less_op
from quabla.ops.elementwise import add, mul, sin
from quabla.ops.reduce import reduce_max_op
from quabla.ops.structure import broadcast, lead, zeros_like
from quabla.shapes import ShapeDtype, aval_of
from quabla.transforms.staging import inline

__all__ = ["bind_scan", "scan_op"]


def _infer(
    *avals: ShapeDtype, body: Program, length: int, consts: int, carry: int, reverse: bool, counted: bool
) -> tuple[ShapeDtype, ...]:
    outs = body.out_avals
    return (*outs[:carry], *(aval_of((length, *a.shape), a.dtype, a.weak) for a in outs[carry:]))


def _evaluate(
    *operands: np.ndarray, body: Program, length: int, consts: int, carry: int, reverse: bool, counted: bool
) -> tuple[np.ndarray, ...]:
    steps = int(operands[0]) if counted else length
    fixed, state, xs = split(operands[counted:], consts, carry)
    stacks = [np.zeros((length, *a.shape), a.dtype.numpy) for a in body.out_avals[carry:]]
    for i in reversed(range(steps)) if reverse else range(steps):
        outs = evaluate(body, [np.array(i), *fixed, *state, *(x[i] for x in xs)])
        state = outs[:carry]
        for stack, y in zip(stacks, outs[carry:], strict=True):
            stack[i] = y
    return (*state, *stacks)


def bind_scan(
    body: Program, length: int, parts: Parts, reverse: bool = False, count: Any = None
) -> tuple[list[Any], list[Any]]:
    """Apply `scan_op`, less the constants and slices that the body does not read.

    Args:
        body: program of (int64 index, constants, carry, slices) -> (carry, results).
        length: the number of steps, at least 1.
        parts: the operands.
        reverse: whether the steps run from the last to the first.
        count: the number of steps where it is known only at run time, an int64 scalar.

    Returns:
        The final carry and the stacked results.
    """
    body, parts, _ = drop_unread(body, parts)
    params = {
        "body": body,
        "length": length,
        "consts": len(parts.consts),
        "carry": len(parts.carry),
        "reverse": reverse,
        "counted": count is not None,
    }
    first = () if count is None else (count,)
    outs = bind(scan_op, tuple(lifted([*first, *parts.consts, *parts.carry, *parts.xs])), params)
    return list(outs[: len(parts.carry)]), list(outs[len(parts.carry) :])


def _parts(operands: Sequence[Any], counted: bool, consts: int, carry: int) -> tuple[Any, Parts]:
    count = operands[0] if counted else None
    return count, Parts(*split(operands[counted:], consts, carry))


def _forward(
    primals: Any,
    given: Any,
    *,
    body: Program,
    length: int,
    consts: int,
    carry: int,
    reverse: bool,
    counted: bool,
) -> tuple[Any, Any]:
    count, parts = _parts(primals, counted, consts, carry)
    joint = tangents(body, parts, _parts(given, counted, consts, carry)[1])
    return joint.divide(*bind_scan(joint.body, length, joint.parts, reverse, count))


def _reverse(
    frame: Any,
    operands: Any,
    wanted: Any,
    *,
    body: Program,
    length: int,
    consts: int,
    carry: int,
    reverse: bool,
    counted: bool,
) -> Any:
    count, parts = _parts(operands, counted, consts, carry)
    needs = _parts(wanted, counted, consts, carry)[1]
    final, stacks = bind_scan(keeping(body, parts), length, parts, reverse, count)
    ys, kept = split(stacks, len(stacks) - carry)

    def pullback(cts: Sequence[Any]) -> list[Any]:
        back = backward(body, parts, needs, final, kept, cts)
        found = back.divide(needs, *bind_scan(back.body, length, back.parts, not reverse, count))
        return [None, *found] if counted else found

    return (*final, *ys), pullback


def _batch(
    operands: Any,
    over: Any,
    size: int,
    *,
    body: Program,
    length: int,
    consts: int,
    carry: int,
    reverse: bool,
    counted: bool,
) -> Any:
    count, parts = _parts(operands, counted, consts, carry)
    flags = _parts(over, counted, consts, carry)[1]
    if counted and over[0]:
        return _batch_counts(count, parts, flags, size, body, length, reverse)
    lanes, joint, many, many_ys = per_lane(body, parts, flags, size)
    final, ys = bind_scan(lanes, length, joint, reverse, count)
    return _placed(final, ys, many, many_ys, size)


def _placed(final: Any, ys: Any, many: Sequence[bool], many_ys: Sequence[bool], size: int) -> tuple[Any, ...]:
    """The results with the batch axis in front."""
    return (
        *(lead(x, m, size) for x, m in zip(final, many, strict=True)),
        *(swapped(y) if m else lead(y, False, size) for y, m in zip(ys, many_ys, strict=True)),
    )


def _batch_counts(
    count: Any, parts: Parts, flags: Parts, size: int, body: Program, length: int, reverse: bool
) -> tuple[Any, ...]:
    """A number of steps per lane: as many as the longest needs, in which the others keep their carry, and compute on
    that of a lane that still runs: what they would meet, rows of zeros among it, must reach no derivative."""
    flags = Parts(flags.consts, [True] * len(parts.carry), flags.xs)
    carried = [
        lead(x, x.ndim > len(a.shape), size) for x, a in zip(parts.carry, body.out_avals, strict=False)
    ]
    lanes, joint, _, _ = per_lane(body, Parts(parts.consts, carried, parts.xs), flags, size)
    nk = len(carried)

    def masked(i: Any, *args: Any) -> list[Any]:
        active = bind(less_op, (broadcast(i, (size,), ()), args[0]), {})
        outs = inline(lanes, (i, *safe_lanes(active, args[1:], [*flags.consts, *flags.carry, *flags.xs])))
        state = args[1 + len(parts.consts) :]
        rest = [
            lead(o, o.ndim > len(a.shape), size) for o, a in zip(outs[nk:], body.out_avals[nk:], strict=True)
        ]
        kept = [chosen_lanes(active, new, old) for new, old in zip(outs[:nk], state, strict=False)]
        return [*kept, *(chosen_lanes(active, y, zeros_like(y)) for y in rest)]

    wider = Parts([count, *joint.consts], joint.carry, joint.xs)
    program, _ = trace(masked, wider.avals())
    longest = bind(reduce_max_op, (count,), {"axes": (0,)})
    final, ys = bind_scan(program, length, wider, reverse, longest)
    return _placed(final, ys, [True] * nk, [True] * len(ys), size)


def _through(
    walk: Any,
    given: Sequence[Any],
    *,
    body: Program,
    length: int,
    consts: int,
    carry: int,
    reverse: bool,
    counted: bool,
) -> list[Any]:
    return around(walk, body, _parts(given, counted, consts, carry)[1])


def _samples() -> Iterator[Sample]:
    for d in (float64, float32):
        state, x = aval_of((2,), d), aval_of((), d)

        def step(i: Any, c: Any, s: Any, x: Any) -> list[Any]:
            new = mul(sin(add(s, broadcast(x, (2,)))), c)
            return [new, mul(broadcast(x, (2,)), s)]

        body, _ = trace(step, [aval_of((), int64), state, state, x])
        for reverse in (False, True):
            for counted in (False, True):
                yield Sample(
                    f"{'backwards' if reverse else 'forwards'}{'_counted' * counted}_{d}",
                    lambda rng, counted=counted: (  # type: ignore[misc]
                        *([np.array(3, np.int64)] if counted else []),
                        rng.uniform(0.5, 1.5, (2,)),
                        rng.normal(size=(2,)),
                        rng.normal(size=(5,)),
                    ),
                    {
                        "body": body,
                        "length": 5,
                        "consts": 1,
                        "carry": 1,
                        "reverse": reverse,
                        "counted": counted,
                    },
                    only=d,
                )


scan_op = define(
    Op(
        name="scan",
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
