"""How a user's operands become the operands of an elementwise op: numbers, promotion, broadcasting.

One rule: arrays of different floating dtypes do not mix. A Python number is weak and adopts the dtype of what it meets;
a bool array beside a floating one becomes floating.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quabla.arrays.convert import as_operand
from quabla.arrays.tensor import Tensor, wrap_as
from quabla.arrays.tracer import WATCHES, Frame, TraceTensor, bind, full_value, innermost, watched
from quabla.dtypes import bool_, dtype, float32, float64, int64
from quabla.errors import DtypeError
from quabla.ir.op import Op
from quabla.ops.structure import broadcast, cast, lead
from quabla.shapes import ShapeDtype, aval_of, broadcast_shapes

__all__ = [
    "agree",
    "apply",
    "batch_elementwise",
    "binary",
    "common_dtype",
    "floating_operand",
    "operand",
    "promote",
    "recorded",
    "unary",
]

_NUMBERS = (float, int, bool)
_REALS = (float, int)
_LARGEST = int(np.finfo(np.float64).max)


def operand(x: Any, where: str) -> Any:
    """`x` as a Tensor or a TraceTensor; Python numbers become weak rank-0 Tensors."""
    kind = type(x)
    if kind is TraceTensor or kind is Tensor:
        return x
    return as_operand(x, where)


def floating_operand(x: Any, where: str) -> Any:
    """`x` as a floating Tensor or TraceTensor.

    Raises:
        DtypeError: it is not floating, named with `where`.
    """
    x = operand(x, where)
    if x.dtype.kind != "f":
        raise DtypeError(
            f"{where}: takes a floating operand, got {x.aval}; convert it with .astype(quabla.float64)"
        )
    return x


def common_dtype(operands: Sequence[Any], where: str, bools: bool) -> tuple[dtype, bool]:
    """The dtype that the operands share, and whether it is weak.

    Args:
        operands: arrays and Python numbers.
        where: the op, for the message.
        bools: whether an op on bool arrays alone is meaningful.

    Raises:
        DtypeError: float32 beside float64, or bools where they make no sense.
    """
    strong: dtype | None = None
    weak_float = integer = False
    for x in operands:
        if type(x) in _NUMBERS:
            if type(x) is int and not -_LARGEST <= x <= _LARGEST:
                raise DtypeError(
                    f"{where}: an integer of {x.bit_length()} bits is beyond the range of float64"
                )
            continue
        d = x.dtype
        if d.kind == "f":
            if x.aval.weak:
                weak_float = True
            elif strong is None:
                strong = d
            elif strong is not d:
                raise _mixed(operands, where)
        elif d is int64:
            integer = True
    if strong is not None:
        if integer:
            raise _mixed(operands, where)
        return strong, False
    numbers = [x for x in operands if type(x) in _NUMBERS]
    arrays = len(operands) - len(numbers)
    if integer:
        if any(type(x) is float for x in numbers) or weak_float:
            raise _mixed(operands, where)
        if any(not -(2**63) <= x < 2**63 for x in numbers):
            raise DtypeError(f"{where}: an integer beyond the range of int64 beside int64 positions")
        return int64, False
    if weak_float or any(type(x) is not bool for x in numbers):
        return float64, True
    if not bools:
        shown = _shown(operands)
        raise DtypeError(
            f"{where}: takes floating operands, got {shown}; convert with .astype(quabla.float64), "
            "or use logical_and, logical_or, logical_not for truth values"
        )
    return bool_, arrays == 0


def _shown(operands: Sequence[Any]) -> str:
    return " and ".join(repr(x) if type(x) in _NUMBERS else str(x.aval) for x in operands)


def _mixed(operands: Sequence[Any], where: str) -> DtypeError:
    return DtypeError(
        f"{where}: {_shown(operands)} do not mix; convert one of them, as in x.astype(quabla.float64)"
    )


def promote(operands: Sequence[Any], where: str, bools: bool = False) -> list[Any]:
    """The operands as arrays of one dtype, each of its own shape. Numbers become weak rank-0 Tensors of that dtype."""
    xs = [x if type(x) in _NUMBERS else operand(x, where) for x in operands]
    to, weak = common_dtype(xs, where, bools)
    return [_scalar(x, aval_of((), to, weak)) if type(x) in _NUMBERS else cast(x, to, weak) for x in xs]


def agree(operands: Sequence[Any], where: str) -> None:
    """Check in the name of `where` that operands have one dtype and shapes that broadcast: an op would in its own.

    Raises:
        DtypeError: as `common_dtype`.
        ShapeError: the shapes do not broadcast.
    """
    xs = [x if type(x) in _NUMBERS else operand(x, where) for x in operands]
    common_dtype(xs, where, bools=False)
    broadcast_shapes(where, *[() if type(x) in _NUMBERS else x.aval.shape for x in xs])


def _scalar(value: Any, aval: ShapeDtype) -> Tensor:
    if aval.dtype is float32:
        with np.errstate(over="ignore"):  # 1e300 is inf there
            return wrap_as(np.array(value, np.float32), aval)
    return wrap_as(np.array(value, aval.dtype.numpy), aval)


def apply(op: Op, operands: Sequence[Any], where: str, bools: bool = False) -> Any:
    """Promote, broadcast and apply an elementwise op.

    Args:
        op: an elementwise op without params.
        operands: arrays and Python numbers.
        where: the name that the user called.
        bools: whether bool operands are meaningful.
    """
    xs = [x if type(x) in _NUMBERS else operand(x, where) for x in operands]
    to, weak = common_dtype(xs, where, bools)
    shape = broadcast_shapes(where, *[() if type(x) in _NUMBERS else x.aval.shape for x in xs])
    frame = innermost(xs)
    if frame is None:
        return _compute(op, xs, aval_of(shape, to, weak))
    aval = aval_of(shape, to, weak)
    return frame.emit(op, tuple([recorded(frame, x, aval) for x in xs]), {})


def _compute(op: Op, xs: Sequence[Any], aval: ShapeDtype) -> Tensor:
    out = op.out_type((aval,) * len(xs), {})
    to = aval.dtype.numpy
    with np.errstate(all="ignore"):  # numbers, too, may be beyond the range of their dtype
        arrays = [np.asarray(x, to) if type(x) in _NUMBERS else x.numpy().astype(to, copy=False) for x in xs]
        result = op.evaluate(*arrays)
    if WATCHES:
        watched(op, np.broadcast_arrays(*arrays), {}, (result,))
    # NumPy broadcasts by itself, except for an op that returns one of its operands unchanged.
    return wrap_as(np.asarray(np.broadcast_to(result, out.shape), out.dtype.numpy), out)


def recorded(frame: Frame, x: Any, aval: ShapeDtype) -> TraceTensor:
    """`x` as a value of `frame` with the shape and dtype of `aval`."""
    if type(x) in _NUMBERS:
        return frame.full(x, aval)
    lifted: Any = frame.lift(x)
    if lifted.aval is aval:
        return lifted  # type: ignore[no-any-return]
    value = full_value(lifted)
    if value is not None:
        return frame.full(value, aval)
    return broadcast(cast(lifted, aval.dtype, aval.weak), aval.shape)  # type: ignore[no-any-return]


def batch_elementwise(op: Op, operands: Any, mapped: Any, size: int, params: Any) -> Any:
    """The batching rule of every elementwise op: all operands get the leading axis."""
    return bind(op, [lead(x, m, size) for x, m in zip(operands, mapped, strict=True)], params)


def unary(op: Op, x: Any) -> Any:
    """Apply a unary op, by the short way for a traced floating operand."""
    if type(x) is TraceTensor and x.frame.open and x.aval.dtype.kind == "f":
        return x.frame.emit(op, (x,), {})
    return apply(op, (x,), op.name)


def binary(op: Op, x: Any, y: Any) -> Any:
    """Apply a binary op, by the short way for two traced floating operands of one type, or one and a number."""
    if type(x) is TraceTensor:
        if type(y) is TraceTensor:
            if x.aval is y.aval and x.frame is y.frame and x.frame.open and x.aval.dtype.kind == "f":
                return x.frame.emit(op, (x, y), {})
        elif type(y) in _REALS and x.frame.open and x.aval.dtype.kind == "f":
            return x.frame.emit(op, (x, x.frame.full(y, x.aval)), {})
    elif type(y) is TraceTensor and type(x) in _REALS and y.frame.open and y.aval.dtype.kind == "f":
        return y.frame.emit(op, (y.frame.full(x, y.aval), y), {})
    return apply(op, (x, y), op.name)
