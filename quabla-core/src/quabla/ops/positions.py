"""`gather` and `scatter_add`: elements by positions that are data, and the conversion of what users give as positions.

Each is the other's transpose and both are closed under batching: positions may be shared by the leading axes of the
array, or go with some of them, one set each. Positions are int64. A negative one counts from the end, and what still
lies outside is moved to the nearest element, so no program can read or write beyond an array. Positions that are
known while tracing are checked before they get here.

Integer data become float64 on import unless int64 is asked for, and functions that find positions return
float64 that adopts the dtype of what it meets. Floating positions are therefore welcome wherever positions are taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from quabla.arrays.refusals import user_line
from quabla.arrays.tensor import Tensor, wrap
from quabla.arrays.tracer import TraceTensor, bind
from quabla.arrays.view import TensorView
from quabla.dtypes import bool_, float64, int64
from quabla.errors import DtypeError, PositionError, ShapeError, TracerError
from quabla.ir.op import Each, Op, Sample, define
from quabla.ops.compare import isnan_op, less
from quabla.ops.elementwise import add_op, maximum, minimum, mul_op, where_op
from quabla.ops.structure import astype_op, broadcast, cast, lead, permute, zeros_like
from quabla.shapes import ShapeDtype, aval_of

__all__ = [
    "as_positions", "checked", "concrete", "gather", "gather_op", "inside", "scatter_add", "scatter_add_op", "shown",
]  # fmt: skip

Shape = tuple[int, ...]


def _check(op: str, x: ShapeDtype, i: ShapeDtype, axis: int, batch: int) -> None:
    if i.dtype is not int64:
        raise DtypeError(f"{op}: positions are int64, got {i}; convert them with astype")
    if not batch <= axis or x.shape[:batch] != i.shape[:batch] or i.ndim < batch:
        raise ShapeError(
            f"{op}: {x} and positions {i} must agree in their first {batch} axes, before axis {axis}"
        )


def _index(
    shape: Shape, i: np.ndarray, extent: int, axis: int, batch: int
) -> tuple[Shape, tuple[np.ndarray, ...]]:
    """How NumPy sees it: the extents (batch, others before the axis), and positions for these and for the axis."""
    rows, others = math.prod(shape[:batch]), math.prod(shape[batch:axis])
    i = i.reshape(rows, 1, -1)
    i = np.clip(np.where(i < 0, i + extent, i), 0, extent - 1)
    return (rows, others), (np.arange(rows)[:, None, None], np.arange(others)[None, :, None], i)


# --- gather -----------------------------------------------------------------------------------------------------------


def gather(x: Any, i: Any, axis: int, batch: int = 0) -> Any:
    """The elements of `x` at int64 positions along an axis.

    `x[b, a, i[b, k], f]` at `[b, a, k, f]`, where b stands for the first `batch` axes, a for those from there to
    `axis`, and k and f for any others.
    """
    return bind(gather_op, (x, i), {"axis": axis, "batch": batch})


def _gather_infer(x: ShapeDtype, i: ShapeDtype, *, axis: int, batch: int) -> ShapeDtype:
    _check("gather", x, i, axis, batch)
    if x.ndim <= axis:
        raise ShapeError(f"gather: {x} has no axis {axis} to index")
    return aval_of((*x.shape[:axis], *i.shape[batch:], *x.shape[axis + 1 :]), x.dtype, x.weak)


def _gather_numpy(x: np.ndarray, i: np.ndarray, *, axis: int, batch: int) -> np.ndarray:
    extent, rest = x.shape[axis], x.shape[axis + 1 :]
    outer, at = _index(x.shape, i, extent, axis, batch)
    parts = x.reshape((*outer, extent, *rest))
    found: np.ndarray = np.take(parts, at[2].ravel(), axis=2) if outer[0] == 1 else parts[at]
    return found.reshape((*x.shape[:axis], *i.shape[batch:], *rest))


def _gather_transpose(ct: Any, operands: Any, wanted: Any, *, axis: int, batch: int) -> Any:
    x, i = operands
    return scatter_add(ct, i, x.shape[axis], axis, batch) if wanted[0] else None, None


def _gather_batch(operands: Any, mapped: Any, size: int, *, axis: int, batch: int) -> Any:
    x, i = operands
    if batch == 0 and not mapped[1]:  # the same positions for all examples: one more axis that is not indexed
        return gather(x, i, axis + 1)
    if batch == 0 and not mapped[0]:  # of one array for all examples: more positions
        return permute(gather(x, i, axis), (axis, *range(axis), *range(axis + 1, x.ndim - 1 + i.ndim)))
    return gather(lead(x, mapped[0], size), lead(i, mapped[1], size), axis + 1, batch + 1)


def _gather_samples() -> Iterator[Sample]:
    # Positions from the end, repeated ones, and some that are out of range.
    def sample(name: str, x: Shape, i: Shape, axis: int, batch: int) -> Sample:
        extent = x[axis]
        return Sample(
            name,
            lambda rng: (rng.normal(size=x), rng.integers(-extent - 1, extent + 2, i)),
            {"axis": axis, "batch": batch},
        )

    yield sample("vector", (5,), (3,), 0, 0)
    yield sample("scalar", (5,), (), 0, 0)
    yield sample("rows", (4, 3), (2, 5), 0, 0)
    yield sample("wide_rows", (4, 19), (3,), 0, 0)
    yield sample("columns", (2, 5), (3,), 1, 0)
    yield sample("middle", (2, 5, 3), (2, 2), 1, 0)
    yield sample("along", (2, 3, 4), (2, 3, 5), 2, 2)
    yield sample("batched", (3, 4, 2), (3, 6), 1, 1)
    yield sample("one_each", (3, 4), (3,), 1, 1)
    yield sample("between", (3, 2, 4, 2), (3, 5), 2, 1)
    yield Sample(
        "bools",
        lambda rng: (rng.random((4, 3)) < 0.5, rng.integers(0, 4, (5,))),
        {"axis": 0, "batch": 0},
        smooth=False,
    )


gather_op = define(
    Op(
        name="gather",
        infer=_gather_infer,
        evaluate=_gather_numpy,
        linear=Each((0,)),
        transpose=_gather_transpose,
        batch=_gather_batch,
        samples=_gather_samples,
        family="other",
    )
)


# --- scatter_add ------------------------------------------------------------------------------------------------------


def scatter_add(u: Any, i: Any, extent: int, axis: int, batch: int = 0) -> Any:
    """Zeros of `extent` along `axis`, with `u[b, a, k, f]` added at `[b, a, i[b, k], f]`, in the order of k."""
    return bind(scatter_add_op, (u, i), {"extent": extent, "axis": axis, "batch": batch})


def _scatter_infer(u: ShapeDtype, i: ShapeDtype, *, extent: int, axis: int, batch: int) -> ShapeDtype:
    _check("scatter_add", u, i, axis, batch)
    if u.dtype is bool_:
        raise DtypeError(f"scatter_add: takes a floating operand, got {u}")
    end = axis + i.ndim - batch
    if u.shape[axis:end] != i.shape[batch:]:
        raise ShapeError(f"scatter_add: {u} must have the axes of its positions {i} from axis {axis}")
    return aval_of((*u.shape[:axis], extent, *u.shape[end:]), u.dtype)


def _scatter_numpy(u: np.ndarray, i: np.ndarray, *, extent: int, axis: int, batch: int) -> np.ndarray:
    rest = u.shape[axis + i.ndim - batch :]
    outer, at = _index(u.shape, i, extent, axis, batch)
    out = np.zeros((*outer, extent, *rest), u.dtype)
    np.add.at(out, at, u.reshape((*outer, at[2].shape[2], *rest)))
    return out.reshape((*u.shape[:axis], extent, *rest))


def _scatter_transpose(ct: Any, operands: Any, wanted: Any, *, extent: int, axis: int, batch: int) -> Any:
    return gather(ct, operands[1], axis, batch) if wanted[0] else None, None


def _scatter_batch(operands: Any, mapped: Any, size: int, *, extent: int, axis: int, batch: int) -> Any:
    u, i = operands
    if batch == 0 and not mapped[1]:
        return scatter_add(u, i, extent, axis + 1)
    return scatter_add(lead(u, mapped[0], size), lead(i, mapped[1], size), extent, axis + 1, batch + 1)


def _scatter_samples() -> Iterator[Sample]:
    def sample(name: str, u: Shape, i: Shape, extent: int, axis: int, batch: int) -> Sample:
        return Sample(
            name,
            lambda rng: (rng.normal(size=u), rng.integers(-extent - 1, extent + 2, i)),
            {"extent": extent, "axis": axis, "batch": batch},
        )

    yield sample("vector", (6,), (6,), 4, 0, 0)
    yield sample("scalar", (), (), 4, 0, 0)
    yield sample("rows", (2, 5, 3), (2, 5), 4, 0, 0)
    yield sample("wide_rows", (5, 19), (5,), 3, 0, 0)
    yield sample("columns", (2, 6), (6,), 4, 1, 0)
    yield sample("along", (2, 3, 5), (2, 3, 5), 4, 2, 2)
    yield sample("batched", (3, 6, 2), (3, 6), 4, 1, 1)
    yield sample("between", (3, 2, 5, 2), (3, 5), 4, 2, 1)


scatter_add_op = define(
    Op(
        name="scatter_add",
        infer=_scatter_infer,
        evaluate=_scatter_numpy,
        linear=Each((0,)),
        transpose=_scatter_transpose,
        batch=_scatter_batch,
        samples=_scatter_samples,
        family="other",
    )
)


# --- positions as users give and get them -----------------------------------------------------------------------------


def shown(i: Any) -> Any:
    """Positions as a user sees them: float64 that adopts the dtype of what it meets."""
    return cast(i, float64, weak=True)


def checked(i: np.ndarray, extent: int, where: str, what: str) -> np.ndarray:
    """Concrete positions along an axis of `extent`, as int64 from 0.

    Raises:
        PositionError: some are no integers, or out of range.
    """
    if i.dtype.kind == "f":
        whole = np.isfinite(i)
        whole &= np.trunc(np.where(whole, i, 0.0)) == i
        if not whole.all():
            raise PositionError(
                f"{where}: {float(i[~whole].flat[0])!r} is not a position along {what}; positions are whole numbers: "
                "round them"
            )
        i = np.clip(i, -(2.0**62), 2.0**62)  # so that what is out of range stays so
    i = i.astype(np.int64)
    outside = (i < -extent) | (i >= extent)
    if outside.any():
        raise PositionError(
            f"{where}: position {int(i[outside].flat[0])} is out of range for {what} with {extent} elements"
        )
    return np.where(i < 0, i + extent, i)


def concrete(i: Any, where: str) -> np.ndarray | None:
    """The elements of positions or a mask that are known while tracing; None for a traced array.

    Raises:
        PositionError: what is no array: ragged lists, say.
        TracerError: a list that holds traced values.
    """
    if type(i) is TraceTensor:
        return None
    try:
        return i.numpy() if isinstance(i, Tensor | TensorView) else np.asarray(i)
    except TracerError:
        raise TracerError(
            f"{where}: a list of positions holds traced values; join them with quabla.stack{user_line()}"
        ) from None
    except (TypeError, ValueError) as error:
        raise PositionError(f"{where}: {i!r} is not an array of positions: {error}") from None


def as_positions(i: Any, extent: int, where: str, what: str) -> Any:
    """What a user gave as positions along an axis, as an int64 Tensor or traced value.

    Args:
        i: array of numbers, nested lists of them, or a number.
        extent: the number of elements along the axis.
        where: the function that the user called.
        what: the axis, in words.

    Raises:
        PositionError: concrete positions that are no integers, or out of range; what is no array.
        TracerError: a list that holds traced values.
        DtypeError: what is not numeric.
        ShapeError: no positions at all.
    """
    array = concrete(i, where)
    if array is not None:
        if array.size == 0:
            raise ShapeError(f"{where}: there are no positions along {what}; empty arrays are not supported")
        if array.dtype.kind not in "iuf":
            raise DtypeError(f"{where}: positions along {what} are whole numbers, got {array.dtype} data")
        return wrap(np.asarray(checked(array, extent, where, what)))
    if i.dtype is int64:
        return i
    if i.dtype is bool_:
        raise DtypeError(f"{where}: positions along {what} are whole numbers, got {i.aval}{user_line()}")
    if i.node is not None and i.node.op is astype_op and i.node.inputs[0].aval.dtype is int64:
        return i.node.inputs[0]  # positions that another function has found
    # Into the range of the axis, give or take one, before the conversion, which is undefined far out and for NaN.
    limited = maximum(minimum(i, float(extent)), float(-extent - 1))
    number = bind(where_op, (bind(isnan_op, (i,), {}), zeros_like(limited), limited), {})
    return cast(number, int64)


def inside(i: Any, extent: int) -> Any:
    """Positions from 0 within an axis, of int64 positions that may be negative or out of range."""
    if type(i) is Tensor:
        a = i.numpy()
        return wrap(np.asarray(np.clip(np.where(a < 0, a + extent, a), 0, extent - 1)))
    from_end = bind(mul_op, (cast(less(i, _int(0)), int64), broadcast(_int(extent), i.shape)), {})
    return maximum(minimum(bind(add_op, (i, from_end), {}), _int(extent - 1)), _int(0))


def _int(value: int) -> Tensor:
    return wrap(np.array(value, np.int64))
