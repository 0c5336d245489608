"""`cond`: one of two branches, chosen when the program runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from quabla import tree
from quabla.arrays.tensor import Tensor
from quabla.arrays.tracer import bind, trace
from quabla.control.derive import committed
from quabla.control.regions import (
    called,
    evaluate,
    functions,
    mapped,
    merge_captures,
    moved,
    results,
    safe_lanes,
    same_result,
    with_output_types,
)
from quabla.dtypes import bool_, float32, float64
from quabla.errors import DtypeError, ShapeError
from quabla.ir.op import Op, Sample, define
from quabla.ir.program import Program
from quabla.ops.apply import operand
from quabla.ops.compare import logical_not
from quabla.ops.elementwise import div, mul, sin, where_op
from quabla.ops.limits import conceal
from quabla.ops.masks import with_masks
from quabla.ops.reduce import reduce_any_op
from quabla.ops.structure import broadcast, lead, zeros_like
from quabla.shapes import aval_of
from quabla.transforms.batch import batch_values
from quabla.transforms.forward import jvp_values
from quabla.transforms.reverse import vjp_values
from quabla.transforms.staging import name_of, stage, take_apart

__all__ = ["cond", "cond_op"]

_NUMERIC = (bool, int, float, np.ndarray, np.generic)


def _evaluate(
    pred: np.ndarray, *operands: np.ndarray, true: Program, false: Program
) -> tuple[np.ndarray, ...]:
    return tuple(evaluate(true if pred else false, operands))


def _forward(
    primals: Sequence[Any], tangents: Sequence[Any], *, true: Program, false: Program
) -> tuple[Any, Any]:
    operands, moving = primals[1:], [t is not None for t in tangents[1:]]
    moves = [a or b for a, b in zip(moved(true, moving), moved(false, moving), strict=True)]
    given = [t for t in tangents[1:] if t is not None]

    def derived(program: Program) -> Program:
        def run(*args: Any) -> list[Any]:
            rest = iter(args[len(operands) :])
            ts = [next(rest) if m else None for m in moving]
            conceal(x for x, m in zip(args, moving, strict=False) if m)
            outs, t_outs = jvp_values(args[0].frame, program, args[: len(operands)], ts)
            return [
                *outs,
                *(
                    zeros_like(o) if t is None else t
                    for o, t, m in zip(outs, t_outs, moves, strict=True)
                    if m
                ),
            ]

        return trace(run, [*(x.aval for x in operands), *(t.aval for t in given)])[0]

    outs = bind(cond_op, (primals[0], *operands, *given), {"true": derived(true), "false": derived(false)})
    rest = iter(outs[len(moves) :])
    return tuple(outs[: len(moves)]), tuple(next(rest) if m else None for m in moves)


def _reverse(
    frame: Any, operands: Sequence[Any], wanted: Sequence[bool], *, true: Program, false: Program
) -> Any:
    pred, values, needs = operands[0], operands[1:], list(wanted[1:])
    outs = bind(cond_op, operands, {"true": committed(true), "false": committed(false)})

    def pullback(cts: Sequence[Any]) -> list[Any]:
        live = [ct is not None for ct in cts]
        given, masked = with_masks([ct for ct in cts if ct is not None])

        def derived(program: Program) -> Program:
            # The branch runs again: which of the two ran is known only at run time, so their residuals differ.
            def run(*args: Any) -> list[Any]:
                inner, n = args[0].frame, len(values)
                conceal([*(x for x, w in zip(args, needs, strict=False) if w), *args[n:]])
                _, backward = vjp_values(inner, program, args[:n], needs)
                rest = iter(masked(args[n:]))
                back = backward([next(rest) if x else None for x in live])
                return [
                    zeros_like(x) if ct is None else ct
                    for x, ct, w in zip(args[:n], back, needs, strict=True)
                    if w
                ]

            return trace(run, [*(x.aval for x in values), *(ct.aval for ct in given)])[0]

        back = iter(bind(cond_op, (pred, *values, *given), {"true": derived(true), "false": derived(false)}))
        return [None, *(next(back) if w else None for w in needs)]

    return outs, pullback


def _batch(operands: Sequence[Any], over: Sequence[bool], size: int, *, true: Program, false: Program) -> Any:
    pred, values, flags = operands[0], operands[1:], list(over[1:])
    outs_over = [a or b for a, b in zip(mapped(true, flags), mapped(false, flags), strict=True)]
    if over[0]:
        return _select(pred, values, flags, size, true, false)

    def batched(program: Program) -> Program:
        def run(*args: Any) -> list[Any]:
            outs, many = batch_values(args[0].frame, program, args, flags, size)
            return [lead(o, m, size) if w else o for o, m, w in zip(outs, many, outs_over, strict=True)]

        return trace(run, [x.aval for x in values])[0]

    outs = bind(cond_op, operands, {"true": batched(true), "false": batched(false)})
    return tuple(lead(o, w, size) for o, w in zip(outs, outs_over, strict=True))


def _select(pred: Any, values: Any, flags: Sequence[bool], size: int, true: Program, false: Program) -> Any:
    """A predicate per lane: each branch runs once, if any lane takes it, and on operands of lanes that take it."""

    def lanes(program: Program, active: Any) -> Any:
        def run(*args: Any) -> list[Any]:
            kept = safe_lanes(args[0], args[1:], flags)
            outs, many = batch_values(args[0].frame, program, kept, flags, size)
            return [lead(o, m, size) for o, m in zip(outs, many, strict=True)]

        avals = [active.aval, *(x.aval for x in values)]
        taken, _ = trace(run, avals)
        skipped, _ = trace(lambda *args: [args[0].frame.full(0, v.aval) for v in taken.outputs], avals)
        some = bind(reduce_any_op, (active,), {"axes": (0,)})
        return bind(cond_op, (some, active, *values), {"true": taken, "false": skipped})

    yes, no = lanes(true, pred), lanes(false, logical_not(pred))
    return tuple(
        bind(where_op, (broadcast(pred, t.shape, (0,)), t, f), {}) for t, f in zip(yes, no, strict=True)
    )


def _through(walk: Any, given: Sequence[Any], *, true: Program, false: Program) -> list[Any]:
    return [walk.either(a, b) for a, b in zip(walk(true, given[1:]), walk(false, given[1:]), strict=True)]


def _samples() -> Iterator[Sample]:
    for d in (float64, float32):
        x, y = aval_of((3,), d), aval_of((), d)
        true, _ = trace(lambda x, y: [sin(x) * y, mul(x, x)], [x, y])
        false, _ = trace(lambda x, y: [mul(x, x), div(x, y)], [x, y])
        for pred in (True, False):
            yield Sample(
                f"{pred}_{d}",
                lambda rng, pred=pred: (  # type: ignore[misc]
                    np.array(pred),
                    rng.uniform(0.5, 2.0, (3,)),
                    rng.uniform(0.5, 2.0, ()),
                ),
                {"true": true, "false": false},
                only=d,
            )


cond_op = define(
    Op(
        name="cond",
        infer=lambda pred, *operands, true, false: tuple(v.aval for v in true.outputs),
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


def _taken(name: str, branch: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """The result of a branch that is known to be taken: numbers have become arrays, as within a trace."""
    return tree.map(
        lambda x: operand(x, "cond") if isinstance(x, _NUMERIC) else x,
        called("cond", f"{name}(*operands)", branch, *operands),
    )


def _chosen(pred: bool, true_fun: Any, false_fun: Any) -> tuple[str, Any]:
    return ("true_fun", true_fun) if pred else ("false_fun", false_fun)


def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
    """`true_fun(*operands)` if `pred` holds, else `false_fun(*operands)`; only that branch is computed.

    Under `vmap` with a predicate per example, each branch that some example takes is computed for all, on operands of
    examples that take it, so nothing of a branch reaches an example that does not take it: no NaN, no endless loop, in
    values or in derivatives.

    Where `pred` is known, because it is a Python bool or an array that is not traced, this is a call of one branch. The
    other is neither called nor traced, so it may recurse, be slow or have effects, and the two are not compared: errors
    for branches that differ come where `pred` is traced, as under `jit`, `grad` and `vmap`. A Python number that a
    branch returns becomes a float64 (or bool) array that adopts the dtype of what it meets; where `pred` is traced it
    has adopted that of the other branch: of `1.0` and a float32 array either is float32.

    Args:
        pred: a bool scalar: array of shape `()` or Python bool.
        true_fun: a function of the operands; it may close over traced values.
        false_fun: a function of the same operands, with a result of the same structure, shapes and dtypes.
        operands: pytrees of arrays.

    Returns:
        The result of the branch taken.

    Raises:
        DtypeError: `pred` is not bool, or it is traced and the branches return different dtypes.
        ShapeError: `pred` is not a scalar, or it is traced and the branches return different structures or shapes.

    Example:
        >>> import quabla as qb
        >>> f = lambda x: qb.cond(x > 0.0, qb.sqrt, lambda x: 0.0 * x, x)
        >>> f(qb.array(4.0)).item(), qb.jit(f)(qb.array(-1.0)).item()
        (2.0, -0.0)
    """
    functions("cond", true_fun=true_fun, false_fun=false_fun)
    if type(pred) is bool:
        return _taken(*_chosen(pred, true_fun, false_fun), operands)
    if type(pred) in (int, float):
        raise DtypeError(
            f"cond: the predicate must be bool, got the number {pred!r}; compare it, as in pred != 0.0"
        )
    p = operand(pred, "cond")
    if p.dtype is not bool_:
        raise DtypeError(
            f"cond: the predicate must be bool, got {p.aval}; compare it, as in quabla.not_equal(pred, 0.0)"
        )
    if p.shape != ():
        raise ShapeError(
            f"cond: the predicate must be a scalar, got {p.aval}; reduce it with quabla.any or quabla.all, choose "
            "elementwise with quabla.where, or map cond with quabla.vmap"
        )
    if type(p) is Tensor:
        return _taken(*_chosen(p.numpy().item(), true_fun, false_fun), operands)
    call = take_apart(true_fun, operands, {})
    yes, no = (
        stage(
            partial(called, "cond", f"{name}(*operands)", fun),
            call,
            split=lambda value, fun=fun: results(fun, value),  # type: ignore[misc]
            region=True,
        )
        for name, fun in (("true_fun", true_fun), ("false_fun", false_fun))
    )
    (true, false), captures = merge_captures((yes, no))
    avals = same_result(
        "cond",
        (f"true_fun ({name_of(true_fun)})", yes.result, true.out_avals),
        (f"false_fun ({name_of(false_fun)})", no.result, false.out_avals),
    )
    params = {"true": with_output_types(true, avals), "false": with_output_types(false, avals)}
    outs = bind(cond_op, (p, *call.arrays, *captures), params)
    return yes.result.put_together(outs)
