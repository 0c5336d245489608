"""`fori_loop` and `scan`: what users call for loops of a known length."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quabla import tree
from quabla.arrays.tensor import Tensor, wrap_as
from quabla.arrays.tracer import TraceTensor
from quabla.control.carry import Carry, begin, keep, same_structure, settle, take_carry
from quabla.control.derive import Parts, index_aval
from quabla.control.regions import functions, is_traced, results
from quabla.control.scan import bind_scan
from quabla.dtypes import float64
from quabla.errors import DtypeError, ShapeError
from quabla.ops.index import getitem
from quabla.ops.shape import stack
from quabla.ops.structure import cast
from quabla.shapes import ShapeDtype, aval_of
from quabla.transforms.staging import name_of, stage, take_apart

__all__ = ["fori_loop", "scan"]

_INDEX = aval_of((), float64, True)


def _count(where: str, name: str, n: Any) -> int:
    if isinstance(n, TraceTensor):
        raise DtypeError(
            f"{where}: {name} must be a Python int, got a traced value of type {n.aval}; for a number of "
            "steps that is known "
            "only at run time use quabla.while_loop"
        )
    if isinstance(n, bool):
        raise DtypeError(f"{where}: {name} must be an int, got {n!r}")
    try:
        return operator.index(n)
    except TypeError:
        raise DtypeError(f"{where}: {name} must be an int, got a {type(n).__name__}") from None


def _few(where: str, steps: int) -> None:
    if steps >= 2**63:
        raise ShapeError(f"{where}: {steps} steps are more than a loop can count")


def _index(i: Any, lower: int) -> Any:
    """The step index as a user sees it: a scalar that adopts the dtype of what it meets."""
    shown = cast(i, float64, weak=True)
    return shown + float(lower) if lower else shown


def _concrete_index(i: int) -> Tensor:
    """The index of a step outside of a trace: of the type that `_index` has within one."""
    return wrap_as(np.array(float(i)), _INDEX)


def _stage_step(fun: Callable[..., Any], carry: Carry, arguments: Any, where: str, pair: bool) -> Any:
    """A function that traces a step for given types of the carry, for `settle`."""
    operands, slices, lower = arguments
    before = operands.avals
    after = [aval_of(a.shape[1:], a.dtype) for a in slices.avals]

    def stage_step(avals: list[ShapeDtype]) -> tuple[Any, int]:
        def run(i: Any, *args: Any) -> tuple[Any, Any]:
            given = args[len(before) : len(before) + len(avals)]
            ops, _ = operands.put_together(args[: len(before)])
            (x,), _ = slices.put_together(args[len(before) + len(avals) :])
            state = carry.put_together(given)
            if not pair:
                return fun(_index(i, lower), state, *ops), ()
            out = fun(state, _index(i, 0) if x is None else x, *ops)
            if not (isinstance(out, (tuple, list)) and len(out) == 2):
                raise DtypeError(
                    f"{where}: {name_of(fun)} must return a pair (carry, result), it returned {out!r}"
                )
            return out[0], out[1]

        def divide(value: Any) -> tuple[list[Any], Any]:
            first, result = results(fun, value[0])
            same_structure(where, fun, carry, result.treedef)
            second, structure = results(fun, value[1])
            return [*first, *second], structure

        call = take_apart(fun, (index_aval, *before, *avals, *after), {}, abstract=True)
        staged = stage(run, call, split=divide, region=True)
        return staged, len(avals)

    return stage_step


def _run(
    fun: Any, carry: Carry, operands: Any, slices: Any, length: int, lower: int, where: str, pair: bool
) -> Any:
    staged = settle(where, fun, carry, _stage_step(fun, carry, (operands, slices, lower), where, pair))
    program, captures = staged.program, staged.captures
    # The body takes its captures last; as constants they come right after the index and the operands.
    own = len(program.inputs) - len(captures)
    n = 1 + len(operands.arrays)
    inputs = (*program.inputs[:n], *program.inputs[own:], *program.inputs[n:own])
    body = type(program)(inputs, program.nodes, program.outputs)
    state, ys = bind_scan(body, length, Parts([*operands.arrays, *captures], carry.arrays, slices.arrays))
    return carry.put_together(state), staged.result.put_together(ys)


def fori_loop(
    lower: int,
    upper: int,
    body_fun: Callable[..., Any],
    init_val: Any,
    *,
    operands: Sequence[Any] = (),
    unroll: bool = False,
) -> Any:
    """Run `carry = body_fun(i, carry, *operands)` for `i` from `lower` to `upper - 1`.

    Within a trace the loop is one operation that runs natively; on concrete arrays it is a Python loop. All derivatives
    pass through, in forward and reverse mode, any number of times; reverse mode keeps the carry of every step.

    Args:
        lower: the first index, a Python int.
        upper: the index after the last, a Python int. If it is not above `lower`, the result is `init_val`.
        body_fun: the step. `i` is a scalar array that adopts the dtype of what it meets. It may close over traced
            values.
        init_val: the initial carry, a pytree of arrays; the step keeps its structure, shapes and dtypes. A Python
            number adopts the dtype that the step gives it.
        operands: further arguments of the step.
        unroll: record every step by itself, with `i` as an int.

    Returns:
        The carry after the last step.

    Raises:
        DtypeError: a bound is no int, or the step changes a dtype.
        ShapeError: the step changes the structure or a shape of the carry.

    Example:
        >>> import quabla as qb
        >>> power = lambda x: qb.fori_loop(0, 3, lambda i, c: c * x, 1.0)
        >>> qb.jit(power)(qb.array(2.0)).item(), qb.grad(power)(2.0).item()
        (8.0, 12.0)
    """
    functions("fori_loop", body_fun=body_fun)
    low, high = _count("fori_loop", "lower", lower), _count("fori_loop", "upper", upper)
    _few("fori_loop", high - low)
    if high <= low:
        return begin("fori_loop", init_val)
    if unroll or not is_traced(tree.flatten((init_val, tuple(operands)))[0]):
        carry = begin("fori_loop", init_val)
        for i in range(low, high):
            after = body_fun(i if unroll else _concrete_index(i), carry, *operands)
            carry = keep("fori_loop", body_fun, carry, after)
        return carry
    taken = take_carry("fori_loop", init_val)
    given = take_apart(body_fun, tuple(operands), {})
    none = take_apart(body_fun, (None,), {})
    return _run(body_fun, taken, given, none, high - low, low, "fori_loop", pair=False)[0]


def scan(
    f: Callable[..., Any],
    init: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    operands: Sequence[Any] = (),
    unroll: bool = False,
) -> tuple[Any, Any]:
    """Run `carry, y = f(carry, x, *operands)` along the leading axis of `xs`, and stack the results.

    Args:
        f: the step. `x` is the slice of `xs`, or without `xs` the step index, a scalar array that adopts the dtype of
            what it meets. It may close over traced values.
        init: the initial carry, a pytree of arrays; see `fori_loop`.
        xs: a pytree of arrays with a leading axis of one size, or None.
        length: the number of steps, at least 1; may be left out with `xs`.
        operands: further arguments of the step.
        unroll: record every step by itself, with the step index as an int.

    Returns:
        The carry after the last step, and the results with a leading axis of extent `length`.

    Raises:
        DtypeError: `f` returns no pair, or changes a dtype of the carry.
        ShapeError: `length` is below 1 or does not fit `xs`, or `f` changes the structure or a shape of the carry.

    Example:
        >>> import quabla as qb
        >>> total, partial = qb.scan(lambda c, x: (c + x, c + x), 0.0, qb.array([1.0, 2.0, 3.0]))
        >>> total.item(), partial.tolist()
        (6.0, [1.0, 3.0, 6.0])
    """
    functions("scan", f=f)
    if type(xs) is int and length is None:
        raise DtypeError("scan: the third argument is xs; give the number of steps as length=...")
    slices = take_apart(f, (xs,), {})
    steps = _length(f, slices, length)
    if unroll or not is_traced([*tree.flatten((init, tuple(operands)))[0], *slices.arrays]):
        return _unrolled(f, init, slices, xs, steps, operands, unroll)  # type: ignore[no-any-return]
    taken = take_carry("scan", init)
    given = take_apart(f, tuple(operands), {})
    return _run(f, taken, given, slices, steps, 0, "scan", pair=True)  # type: ignore[no-any-return]


def _length(f: Any, slices: Any, length: Any) -> int:
    sizes = []
    for aval in slices.avals:
        if aval.ndim == 0:
            raise ShapeError(f"scan: xs must have a leading axis, got {aval}")
        sizes.append(aval.shape[0])
    if length is None:
        if not sizes:
            what = (
                "xs holds no arrays (convert lists of numbers with quabla.array)"
                if slices.leaves
                else "there is no xs"
            )
            raise DtypeError(f"scan: {what} and no length; give one of them")
        length = sizes[0]
    steps = _count("scan", "length", length)
    _few("scan", steps)
    if steps < 1:
        raise ShapeError(
            f"scan: length must be at least 1, got {steps}: a scan of no steps has no results to stack"
        )
    if any(n != steps for n in sizes):
        raise ShapeError(
            f"scan: the leading axes of xs must all have length {steps}, got {', '.join(map(str, sizes))}"
        )
    return steps


def _unrolled(
    f: Any, init: Any, slices: Any, xs: Any, length: int, operands: Sequence[Any], unroll: bool
) -> Any:
    carry, ys = begin("scan", init), []
    for i in range(length):
        index = i if unroll else _concrete_index(i)
        x = index if xs is None else slices.put_together([getitem(a, i) for a in slices.arrays])[0][0]
        out = f(carry, x, *operands)
        if not (isinstance(out, (tuple, list)) and len(out) == 2):
            raise DtypeError(f"scan: {name_of(f)} must return a pair (carry, result), it returned {out!r}")
        carry = keep("scan", f, carry, out[0])
        ys.append(results(f, out[1]))
    stacked = [stack([arrays[j] for arrays, _ in ys]) for j in range(len(ys[0][0]))]
    return carry, ys[0][1].put_together(stacked)
