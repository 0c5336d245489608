"""Whether a node is well formed: what `Op.infer` takes for granted, because the functions that users call check it.

A program that was traced needs none of this. One that comes from a file does: a slice beyond the end of an array, say,
would make native code read memory that is not the array's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quabla.dtypes import bool_, int64
from quabla.ir.op import OPS, Op
from quabla.ir.program import Program
from quabla.shapes import ShapeDtype

__all__ = ["complaint"]


def complaint(op: Op, avals: Sequence[ShapeDtype], params: dict[str, Any]) -> str | None:
    """What is wrong with an application of an op, or None.

    Args:
        op: the op.
        avals: the types of its operands.
        params: its params.
    """
    wrong = _params_fit(op, avals, params)
    if wrong is not None:
        return wrong
    if op.family in ("elementwise", "compare"):
        alike = avals[1:] if op.name == "where" else avals
        if op.name == "where" and avals[0].dtype is not bool_:
            return f"the condition is {avals[0]}"
        if len({a.shape for a in avals}) > 1 or len({a.dtype for a in alike}) > 1:
            return f"the operands {list(avals)} differ"
    rule: Callable[..., bool] = _RULES.get(op.name, _along)
    try:
        fits = rule(avals, **params)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        return f"the params do not fit ({error})"
    return None if fits else f"the params do not fit the operands {list(avals)}"


@functools.cache
def _kinds(name: str) -> dict[str, set[type]]:
    """The types that the params of an op have, from its samples."""
    op = OPS[name]
    found: dict[str, set[type]] = {}
    for sample in op.samples() if op.samples is not None else ():
        for k, v in sample.params.items():
            found.setdefault(k, set()).add(type(v))
    if name == "while":
        found["length"].add(type(None))
    return found


@functools.cache
def _arities(name: str) -> frozenset[int] | None:
    """How many operands an op takes, where its samples tell; None for ops that take any number."""
    op = OPS[name]
    if op.samples is None or op.family == "region" or name == "concat":
        return None
    rng = np.random.default_rng(0)
    return frozenset(len(sample.make(rng)) for sample in op.samples())


@functools.cache
def _signature(name: str) -> inspect.Signature | None:
    """The parameters of an op's meaning; None for a NumPy function, which takes more than the op has."""
    evaluate = OPS[name].evaluate
    return None if isinstance(evaluate, np.ufunc) else inspect.signature(evaluate)


def _params_fit(op: Op, avals: Sequence[ShapeDtype], params: dict[str, Any]) -> str | None:
    arities, signature = _arities(op.name), _signature(op.name)
    if arities is not None and len(avals) not in arities:
        return f"it takes {' or '.join(map(str, sorted(arities)))} operands"
    try:
        if signature is not None:
            signature.bind(*avals, **params)
        elif params:
            return "it takes no params"
    except TypeError as error:
        return str(error)
    if op.family != "source":
        kinds = _kinds(op.name)
        for k, v in params.items():
            if type(v) not in kinds.get(k, ()):
                return f"the param {k} is a {type(v).__name__}"
    return None


# --- the ops with params ----------------------------------------------------------------------------------------------


def _ints(*tuples: Any) -> bool:
    return all(isinstance(t, tuple) and all(type(i) is int for i in t) for t in tuples)


def _axes(axes: Any, ndim: int) -> bool:
    """Distinct axes, counted from the front."""
    return _ints(axes) and len(set(axes)) == len(axes) and all(0 <= a < ndim for a in axes)


def _full(avals: Any, *, value: Any, aval: Any) -> bool:
    if not isinstance(aval, ShapeDtype):
        return False
    kinds: dict[str, type] = {"f": float, "b": bool, "i": int}
    alike = type(value) is kinds[aval.dtype.kind]
    return alike and (aval.dtype is not int64 or -(2**63) <= value < 2**63)


def _constant(avals: Any, *, value: Any) -> bool:
    return isinstance(value.aval, ShapeDtype)


def _broadcast(avals: Any, *, shape: Any, dims: Any) -> bool:
    (x,) = avals
    return (
        _ints(shape)
        and _axes(dims, len(shape))
        and list(dims) == sorted(dims)
        and len(dims) == x.ndim
        and all(n in (1, shape[d]) for n, d in zip(x.shape, dims, strict=True))
        and all(n > 0 for n in shape)
    )


def _reduce(avals: Any, *, axes: Any) -> bool:
    return _axes(axes, avals[0].ndim)


def _reshape(avals: Any, *, shape: Any) -> bool:
    size = 1
    for n in shape if _ints(shape) else (0,):
        size *= max(n, 0)
    return bool(size == avals[0].size)


def _transpose(avals: Any, *, perm: Any) -> bool:
    return _axes(perm, avals[0].ndim) and len(perm) == avals[0].ndim


def _slice(avals: Any, *, start: Any, stop: Any, step: Any) -> bool:
    (x,) = avals
    if not _ints(start, stop, step) or any(len(t) != x.ndim for t in (start, stop, step)) or 0 in step:
        return False
    picked = [range(a, b, c) for a, b, c in zip(start, stop, step, strict=True)]
    return all(
        r and min(r[0], r[-1]) >= 0 and max(r[0], r[-1]) < n for r, n in zip(picked, x.shape, strict=True)
    )


def _pad(avals: Any, *, low: Any, high: Any, inner: Any) -> bool:
    return _ints(low, high, inner) and all(
        len(t) == avals[0].ndim and min(t, default=0) >= 0 for t in (low, high, inner)
    )


def _concat(avals: Any, *, axis: int) -> bool:
    rest = {(a.dtype, a.shape[:axis], a.shape[axis + 1 :], a.ndim) for a in avals}
    return 0 <= axis < avals[0].ndim and len(rest) == 1


def _dot_general(avals: Any, *, contract: Any, batch: Any) -> bool:
    return all(
        _axes((*contract[i], *batch[i]), avals[i].ndim) and len(contract) == len(batch) == 2 for i in (0, 1)
    )


def _gather(avals: Any, *, axis: int, batch: int) -> bool:
    x, i = avals
    return (
        i.dtype is int64
        and 0 <= batch <= axis < x.ndim
        and batch <= i.ndim
        and x.shape[:batch] == i.shape[:batch]
    )


def _scatter_add(avals: Any, *, axis: int, batch: int, extent: int) -> bool:
    # The axes of the positions stand where the axis was: none for a single position.
    u, i = avals
    known = i.dtype is int64 and extent > 0 and 0 <= batch <= axis and batch <= i.ndim
    return known and axis + i.ndim - batch <= u.ndim and (
        (*u.shape[:batch], *u.shape[axis : axis + i.ndim - batch]) == i.shape
    )  # fmt: skip


def _integer_power(avals: Any, *, exponent: int) -> bool:
    return exponent >= 0


def _sinc(avals: Any, *, order: int) -> bool:
    return 0 <= order <= 100


def _along(avals: Any, *, axis: int | None = None, batch: int = 0, side: str = "left", **others: Any) -> bool:
    """The params that many ops have."""
    fits = axis is None or 0 <= axis < max(a.ndim for a in avals)
    return bool(fits and 0 <= batch <= min(a.ndim for a in avals) and side in ("left", "right"))


def _same(programs: Sequence[Any], wanted: Sequence[ShapeDtype]) -> bool:
    """Whether programs take values of these types."""
    return all(
        [(a.shape, a.dtype) for a in p.in_avals] == [(a.shape, a.dtype) for a in wanted] for p in programs
    )


def _alike(xs: Sequence[ShapeDtype], ys: Sequence[ShapeDtype]) -> bool:
    return [(a.shape, a.dtype) for a in xs] == [(a.shape, a.dtype) for a in ys]


_POSITION = ShapeDtype((), int64)
_ENDLESS = 2**63  # steps, which no counter counts


def _cond(avals: Any, *, true: Program, false: Program) -> bool:
    return (
        avals[0] == ShapeDtype((), bool_, avals[0].weak)
        and _same((true, false), avals[1:])
        and _alike(true.out_avals, false.out_avals)
    )


def _checkpoint(avals: Any, *, fun: Program) -> bool:
    return _same((fun,), avals)


def _custom(avals: Any, *, fun: Program, count: int, **rules: Any) -> bool:
    return 0 <= count <= len(avals) and _same((fun,), avals)


def _sized(consts: int, carry: int, given: Sequence[ShapeDtype], body: Program) -> bool:
    """Whether counts fit, and the body hands on a carry of the type that it takes."""
    return (
        consts >= 0 and carry >= 0 and consts + carry <= len(given) and len(body.outputs) >= carry
        and _alike(body.out_avals[:carry], given[consts : consts + carry])
    )  # fmt: skip


def _scan(
    avals: Any, *, body: Program, length: int, consts: int, carry: int, reverse: bool, counted: bool
) -> bool:
    given = avals[1:] if counted else avals
    if (
        not 1 <= length < _ENDLESS
        or not _sized(consts, carry, given, body)
        or (counted and not _alike(avals[:1], [_POSITION]))
    ):
        return False
    xs = given[consts + carry :]
    rows = [ShapeDtype(a.shape[1:], a.dtype) for a in xs]
    return all(a.shape[:1] == (length,) for a in xs) and _same(
        (body,), [_POSITION, *given[: consts + carry], *rows]
    )


def _while(avals: Any, *, cond: Program, body: Program, length: int | None, consts: int, carry: int) -> bool:
    return (
        (length is None or 1 <= length < _ENDLESS)
        and consts + carry == len(avals)
        and _sized(consts, carry, avals, body)
        and (length is not None or len(body.outputs) == carry)
        and _same((cond,), avals)
        and _same((body,), [_POSITION, *avals])
        and _alike(cond.out_avals, [ShapeDtype((), bool_)])
    )


_RULES: dict[str, Callable[..., bool]] = {
    "full": _full, "constant": _constant, "broadcast": _broadcast, "reshape": _reshape, "transpose": _transpose,
    "slice": _slice, "pad": _pad, "concat": _concat, "dot_general": _dot_general, "gather": _gather,
    "scatter_add": _scatter_add, "integer_power": _integer_power, "sinc": _sinc, "cond": _cond,
    "checkpoint": _checkpoint, "custom_jvp": _custom, "custom_vjp": _custom, "scan": _scan, "while": _while,
    **{f"reduce_{name}": _reduce for name in ("sum", "max", "min", "any", "all")},
}  # fmt: skip
