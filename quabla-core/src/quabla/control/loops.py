"""`fori_loop` and `scan`: what users call for loops of a known length."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quabla import tree
from quabla.arrays.tensor import Tensor, wrap, wrap_as
from quabla.arrays.tracer import TraceTensor, trace
from quabla.control.carry import Carry, begin, keep, same_structure, settle, take_carry
from quabla.control.derive import Parts, index_aval
from quabla.control.regions import called, flag, functions, further, is_traced, results
from quabla.control.scan import bind_scan
from quabla.control.while_op import bind_while
from quabla.dtypes import bool_, float64
from quabla.errors import DtypeError, ShapeError
from quabla.ir.program import Program
from quabla.ops.compare import less
from quabla.ops.elementwise import add, stop_gradient, sub
from quabla.ops.index import getitem
from quabla.ops.shape import flip, stack
from quabla.ops.structure import cast
from quabla.shapes import ShapeDtype, aval_of, whole
from quabla.transforms.staging import inline, name_of, stage, take_apart
from quabla.typed_repr import typed

__all__ = ["fori_loop", "scan"]

_INDEX = aval_of((), float64, True)
_FORI, _SCAN = "body_fun(i, carry, *operands)", "f(carry, x, *operands)"  # how they call the user's step


def _count(where: str, name: str, n: Any) -> int:
    """A number of steps, or a bound, that is known while a loop is traced.

    Raises:
        DtypeError: it is traced, or no whole number.
        ShapeError: it is an array that is no scalar.
    """
    if isinstance(n, TraceTensor):
        raise DtypeError(
            f"{where}: {name} must be a Python int, got a traced value of type {n.aval}; for a number of "
            "steps that is known "
            "only at run time use quabla.fori_loop or quabla.while_loop"
        )
    if isinstance(n, bool):
        raise DtypeError(f"{where}: {name} must be an int, got {n!r}")
    if isinstance(n, Tensor):
        _scalar(where, name, n)
        value = n.numpy().item()
        if value != value or value in (math.inf, -math.inf) or int(value) != value:
            raise DtypeError(f"{where}: {name} must be a whole number, got {value!r}")
        return int(value)
    try:
        return whole(n)
    except TypeError:
        raise DtypeError(f"{where}: {name} must be an int, got a {type(n).__name__}") from None


def _scalar(where: str, name: str, n: Any) -> None:
    if n.shape != ():
        raise ShapeError(f"{where}: {name} must be a scalar, got {n.aval}")
    if n.dtype is bool_:
        raise DtypeError(f"{where}: {name} must be a whole number, got {n.aval}")


def _few(where: str, steps: int) -> None:
    if steps >= 2**63:
        raise ShapeError(f"{where}: {steps} steps are more than a loop can count")


def _returned(out: Any) -> str:
    return "None (is its return statement missing?)" if out is None else typed(out)


def _index(i: Any) -> Any:
    """The number of a step as a user sees it: a scalar that adopts the dtype of what it meets."""
    return cast(i, float64, weak=True)


def _concrete_index(i: int) -> Tensor:
    """The index of a step outside of a trace: of the type that `_index` has within one."""
    return wrap_as(np.array(float(i)), _INDEX)


def _stage_step(fun: Callable[..., Any], carry: Carry, arguments: Any, where: str, pair: bool) -> Any:
    """A function that traces a step for given types of the carry, for `settle`."""
    operands, slices, shown = arguments
    before = operands.avals
    after = [aval_of(a.shape[1:], a.dtype) for a in slices.avals]

    def stage_step(avals: list[ShapeDtype]) -> tuple[Any, int]:
        def run(i: Any, *args: Any) -> tuple[Any, Any]:
            given = args[len(before) : len(before) + len(avals)]
            ops, _ = operands.put_together(args[: len(before)])
            (x,), _ = slices.put_together(args[len(before) + len(avals) :])
            state = carry.put_together(given)
            if not pair:
                return called(where, _FORI, fun, shown(i), state, *ops), ()
            out = called(where, _SCAN, fun, state, shown(i) if x is None else x, *ops)
            if not (isinstance(out, (tuple, list)) and len(out) == 2):
                raise DtypeError(
                    f"{where}: {name_of(fun)} must return a pair (carry, result), it returned {_returned(out)}"
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


def _staged(
    fun: Any, carry: Carry, operands: Any, slices: Any, shown: Callable[[Any], Any], where: str, pair: bool
) -> tuple[Program, list[Any], Any]:
    """The step as a program of (step number, constants, carry, slices), its constants, and the structure of its result.

    Args:
        fun: the user's step.
        carry: the initial carry.
        operands: further arguments of the step.
        slices: what the loop passes along.
        shown: makes of the number of a step what the user's step is given.
        where: the loop, for messages.
        pair: whether the step returns (carry, result).
    """
    staged = settle(where, fun, carry, _stage_step(fun, carry, (operands, slices, shown), where, pair))
    program, captures = staged.program, staged.captures
    # The body takes its captures last; as constants they come right after the index and the operands.
    own = len(program.inputs) - len(captures)
    n = 1 + len(operands.arrays)
    inputs = (*program.inputs[:n], *program.inputs[own:], *program.inputs[n:own])
    return Program(inputs, program.nodes, program.outputs), [*operands.arrays, *captures], staged.result


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[..., Any],
    init_val: Any,
    *,
    operands: Sequence[Any] = (),
    unroll: bool = False,
) -> Any:
    """Run `carry = body_fun(i, carry, *operands)` for `i` from `lower` to `upper - 1`.

    Within a trace the loop is one operation that runs natively; on concrete arrays it is a Python loop. All derivatives
    pass through, in forward and reverse mode, any number of times; reverse mode keeps the carry of every step.

    A bound that is traced makes it a `while_loop`, of as many steps as the values say, for each example its own under
    `vmap`. Forward mode passes through, reverse mode does not: it needs to know how many steps there can be. Write
    `while_loop(lambda s: s[0] < upper, lambda s: (s[0] + 1.0, body_fun(*s)), (lower, init_val), max_steps=n)[1]`.

    Args:
        lower: the first index, a whole number: a Python int, an integer of NumPy, or a scalar array.
        upper: the index after the last, likewise. If it is not above `lower`, the result is `init_val`.
        body_fun: the step. `i` is a scalar array that adopts the dtype of what it meets. It may close over traced
            values.
        init_val: the initial carry, a pytree of arrays; the step keeps its structure, shapes and dtypes. A Python
            number adopts the dtype that the step gives it.
        operands: further arguments of the step, a tuple: `(w,)` for one.
        unroll: True to record every step by itself, with `i` as an int.

    Returns:
        The carry after the last step.

    Raises:
        DtypeError: a bound is no whole number, or is traced with `unroll`, or the step changes a dtype, or `operands`
            is no tuple.
        ShapeError: a bound is no scalar, or the step changes the structure or a shape of the carry.
        UnsupportedOperationError: (when differentiated in reverse mode) a bound is traced.

    Example:
        >>> import quabla as qb
        >>> power = lambda x: qb.fori_loop(0, 3, lambda i, c: c * x, 1.0)
        >>> qb.jit(power)(qb.array(2.0)).item(), qb.grad(power)(2.0).item()
        (8.0, 12.0)
        >>> qb.jit(lambda n, x: qb.fori_loop(0, n, lambda i, c: c * x, 1.0))(qb.array(5), qb.array(2.0)).item()
        32.0
    """
    functions("fori_loop", body_fun=body_fun)
    operands, unroll = further("fori_loop", operands), flag("fori_loop", "unroll", unroll)
    if isinstance(lower, TraceTensor) or isinstance(upper, TraceTensor):
        if unroll:
            raise DtypeError(
                "fori_loop: with unroll=True the bounds must be known while the function is traced, got traced ones; "
                "leave unroll out"
            )
        return _until(_traced("lower", lower), _traced("upper", upper), body_fun, init_val, operands)
    low, high = _count("fori_loop", "lower", lower), _count("fori_loop", "upper", upper)
    _few("fori_loop", high - low)
    if high <= low:
        return begin("fori_loop", init_val)
    if unroll or not is_traced(tree.flatten((init_val, operands))[0]):
        carry = begin("fori_loop", init_val)
        for i in range(low, high):
            after = called(
                "fori_loop", _FORI, body_fun, i if unroll else _concrete_index(i), carry, *operands
            )
            carry = keep("fori_loop", body_fun, carry, after)
        return carry
    taken = take_carry("fori_loop", init_val)
    given = take_apart(body_fun, operands, {}, places=range(2, 2 + len(operands)))
    none = take_apart(body_fun, (None,), {})
    shown = (lambda i: _index(i) + float(low)) if low else _index
    body, consts, _ = _staged(body_fun, taken, given, none, shown, "fori_loop", pair=False)
    return taken.put_together(bind_scan(body, high - low, Parts(consts, taken.arrays, []))[0])


def _traced(name: str, n: Any) -> Any:
    """A bound of which only the type may be known: a float64 scalar without a derivative."""
    if not isinstance(n, TraceTensor):
        return float(_count("fori_loop", name, n))
    _scalar("fori_loop", name, n)
    return cast(stop_gradient(n), float64)


def _until(low: Any, high: Any, body_fun: Any, init: Any, operands: tuple[Any, ...]) -> Any:
    """`fori_loop` as a loop with a predicate. The number of steps is a constant of it, the steps taken are carried."""
    taken = take_carry("fori_loop", init)
    given = take_apart(body_fun, operands, {}, places=range(2, 2 + len(operands)))
    none = take_apart(body_fun, (None,), {})
    first = cast(low, float64, weak=True) if isinstance(low, TraceTensor) else low
    shown = (lambda i: _index(i) + first) if isinstance(low, TraceTensor) or low else _index
    body, consts, _ = _staged(body_fun, taken, given, none, shown, "fori_loop", pair=False)
    parts = Parts([*consts, sub(high, low)], [*taken.arrays, wrap(np.array(0.0))], [])
    n = len(parts.consts)
    avals = [x.aval for x in (*parts.consts, *parts.carry)]

    def step(i: Any, *args: Any) -> list[Any]:
        return [*inline(body, (i, *args[: n - 1], *args[n:-1])), add(args[-1], 1.0)]

    stepping, _ = trace(step, [index_aval, *avals])
    asking, _ = trace(lambda *args: [less(args[-1], args[n - 1])], avals)
    state, _, _ = bind_while(asking, stepping, None, parts.consts, parts.carry)
    return taken.put_together(state[:-1])


def scan(
    f: Callable[..., Any],
    init: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    operands: Sequence[Any] = (),
    unroll: bool = False,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Run `carry, y = f(carry, x, *operands)` along the leading axis of `xs`, and stack the results.

    Args:
        f: the step. `x` is the slice of `xs`, or without `xs` the step index, a scalar array that adopts the dtype of
            what it meets. It may close over traced values.
        init: the initial carry, a pytree of arrays; see `fori_loop`.
        xs: a pytree of arrays with a leading axis of one size, or None.
        length: the number of steps, at least 1; may be left out with `xs`.
        operands: further arguments of the step, a tuple: `(w,)` for one.
        unroll: True to record every step by itself, with the step index as an int.
        reverse: True to go from the last slice, or step index, to the first. The result of a step stands where its
            slice does.

    Returns:
        The carry after the last step, and the results with a leading axis of extent `length`.

    Raises:
        DtypeError: `f` returns no pair, or changes a dtype of the carry, or `operands` is no tuple.
        ShapeError: `length` is below 1 or does not fit `xs`, `xs` has no leading axis, or `f` changes the structure or
            a shape of the carry, or steps that run one by one return results of different structures.

    Example:
        >>> import quabla as qb
        >>> total, partial = qb.scan(lambda c, x: (c + x, c + x), 0.0, qb.array([1.0, 2.0, 3.0]))
        >>> total.item(), partial.tolist()
        (6.0, [1.0, 3.0, 6.0])
        >>> qb.scan(lambda c, x: (c + x, c + x), 0.0, qb.array([1.0, 2.0, 3.0]), reverse=True)[1].tolist()
        [6.0, 5.0, 3.0]
    """
    functions("scan", f=f)
    operands, unroll = further("scan", operands), flag("scan", "unroll", unroll)
    reverse = flag("scan", "reverse", reverse)
    if length is None and isinstance(xs, (int, np.integer)) and not isinstance(xs, bool):
        raise DtypeError("scan: the third argument is xs; give the number of steps as length=...")
    slices = take_apart(f, (xs,), {}, places=(1,))
    steps = _length(f, slices, length)
    if unroll or not is_traced([*tree.flatten((init, operands))[0], *slices.arrays]):
        return _unrolled(f, init, slices, xs, steps, operands, unroll, reverse)  # type: ignore[no-any-return]
    taken = take_carry("scan", init)
    given = take_apart(f, operands, {}, places=range(2, 2 + len(operands)))
    shown = (lambda i: float(steps - 1) - _index(i)) if reverse else _index
    turned = [flip(x, 0) for x in slices.arrays] if reverse else slices.arrays
    body, consts, result = _staged(f, taken, given, slices, shown, "scan", pair=True)
    state, ys = bind_scan(body, steps, Parts(consts, taken.arrays, turned))
    return taken.put_together(state), result.put_together([flip(y, 0) for y in ys] if reverse else ys)


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
    f: Any, init: Any, slices: Any, xs: Any, length: int, operands: Sequence[Any], unroll: bool, reverse: bool
) -> Any:
    carry = begin("scan", init)
    ys: list[tuple[list[Any], Any]] = []
    for i in reversed(range(length)) if reverse else range(length):
        index = i if unroll else _concrete_index(i)
        x = index if xs is None else slices.put_together([getitem(a, i) for a in slices.arrays])[0][0]
        out = called("scan", _SCAN, f, carry, x, *operands)
        if not (isinstance(out, (tuple, list)) and len(out) == 2):
            raise DtypeError(
                f"scan: {name_of(f)} must return a pair (carry, result), it returned {_returned(out)}"
            )
        carry = keep("scan", f, carry, out[0])
        y = results(f, out[1])
        if ys and y[1].treedef != ys[0][1].treedef:
            raise ShapeError(
                f"scan: {name_of(f)} must return results of one structure, it returned {ys[0][1].treedef.shown()} in "
                f"one step and {y[1].treedef.shown()} in another"
            )
        ys.append(y)
    if reverse:
        ys.reverse()
    stacked = [stack([arrays[j] for arrays, _ in ys]) for j in range(len(ys[0][0]))]
    return carry, ys[0][1].put_together(stacked)
