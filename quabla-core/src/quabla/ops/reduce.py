"""Reductions: over all axes or some, to a scalar or with the axes kept. `reduce_sum` itself is in `structure.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quabla.arrays.tracer import bind
from quabla.dtypes import bool_, float64
from quabla.errors import DtypeError
from quabla.ir.op import Op, Sample, define
from quabla.ops import elementwise
from quabla.ops.apply import floating_operand, operand
from quabla.ops.compare import greater, isnan, less, logical_not
from quabla.ops.structure import broadcast, cast, reduce_batch, reduce_samples, reshape_to, sum_over, without
from quabla.shapes import ShapeDtype, aval_of, normalize_axes
from quabla.typed_repr import typed

__all__ = ["all", "any", "max", "mean", "min", "sum"]

Shape = tuple[int, ...]


# --- extrema ----------------------------------------------------------------------------------------------------------


def spread(y: Any, shape: Shape, axes: Shape) -> Any:
    """The result of a reduction of an array of `shape` over `axes`, repeated along those axes."""
    return broadcast(y, shape, tuple(a for a in range(len(shape)) if a not in axes))


def _extremum(name: str, evaluate: Callable[..., Any], short: Callable[[Any, Any], Any]) -> Op:
    """Define `reduce_max` or `reduce_min`; elements that tie share the derivative evenly.

    Args:
        name: its name.
        evaluate: its meaning in NumPy.
        short: whether an element falls short of the extremum.
    """

    def jvp(primals: Any, tangents: Any, out: Any, *, axes: Shape) -> Any:
        # The mean of the tangents of the elements that attain the extremum. Beside a NaN no element falls short, and
        # the number of those that attain it is NaN, so that the derivative is NaN in both modes.
        (x,), (t,) = primals, tangents
        if t is None:
            return None
        attained = logical_not(short(x, spread(out, x.shape, axes)))
        count = elementwise.where(isnan(out), out, sum_over(cast(attained, t.dtype), axes))
        return elementwise.div(sum_over(elementwise.where(attained, t, 0.0), axes), count)

    def infer(x: ShapeDtype, *, axes: Shape) -> ShapeDtype:
        if x.dtype.kind == "b":
            raise DtypeError(f"{name}: takes a floating operand, got {x}; use any or all for truth values")
        return aval_of(without(x.shape, axes), x.dtype, x.weak)

    def samples() -> Iterator[Sample]:
        yield from reduce_samples()
        yield Sample(
            "ties",
            lambda rng: (np.array([[2.0, 1.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0]]),),
            {"axes": (1,)},
            smooth=False,
        )
        yield Sample(
            "infinite", lambda rng: (np.array([[np.inf, 1.0, -np.inf], [np.inf, np.inf, 0.0]]),), {"axes": (1,)},
            smooth=False,
        )  # fmt: skip
        yield Sample(
            "nan", lambda rng: (np.array([[np.nan, 1.0], [2.0, 1.0]]),), {"axes": (1,)}, smooth=False
        )

    op = define(
        Op(
            name=name,
            infer=infer,
            evaluate=lambda x, *, axes: evaluate(x, axis=axes),
            jvp=jvp,
            batch=reduce_batch(lambda: op),
            samples=samples,
            family="reduce",
        )
    )
    return op


reduce_max_op = _extremum("reduce_max", np.max, less)
reduce_min_op = _extremum("reduce_min", np.min, greater)


# --- truth values -----------------------------------------------------------------------------------------------------


def _logical(name: str, evaluate: Callable[..., Any]) -> Op:
    def infer(x: ShapeDtype, *, axes: Shape) -> ShapeDtype:
        if x.dtype is not bool_:
            raise DtypeError(
                f"{name}: takes a bool operand, got {x}; compare it, as in quabla.not_equal(x, 0.0)"
            )
        return aval_of(without(x.shape, axes), bool_, x.weak)

    def samples() -> Iterator[Sample]:
        for axes in ((0, 1, 2), (0,), (1,), (0, 2)):
            yield Sample(
                f"axes{axes}", lambda rng: (rng.random((2, 3, 4)) < 0.5,), {"axes": axes}, smooth=False
            )

    op = define(
        Op(
            name=name,
            infer=infer,
            evaluate=lambda x, *, axes: evaluate(x, axis=axes),
            jvp=lambda primals, tangents, out, *, axes: None,
            vjp=lambda ct, operands, out, wanted, *, axes: (None,),
            batch=reduce_batch(lambda: op),
            samples=samples,
            family="reduce",
        )
    )
    return op


reduce_any_op = _logical("reduce_any", np.any)
reduce_all_op = _logical("reduce_all", np.all)


# --- what users call --------------------------------------------------------------------------------------------------


def arithmetic(x: Any, axis: Any, where: str) -> tuple[Any, Shape]:
    """The operand and the sorted axes of an arithmetic reduction; bool operands are refused."""
    x = operand(x, where)
    if x.dtype is bool_:
        raise DtypeError(
            f"{where}: takes a floating operand, got {x.aval}; convert it with .astype(quabla.float64), "
            "or use any or all for truth values"
        )
    return x, normalize_axes(axis, x.ndim, where)


def floating(x: Any, axis: Any, where: str) -> tuple[Any, Shape]:
    """The operand and the sorted axes of a reduction that divides or takes roots; int64 operands are refused, too."""
    x, axes = arithmetic(x, axis, where)
    return floating_operand(x, where), axes


def _counted(x: Any, where: str) -> Any:
    """The operand, with 1 and 0 in place of truth values."""
    x = operand(x, where)
    return cast(x, float64, weak=True) if x.dtype is bool_ else x


def kept(where: str, out: Any, shape: Shape, axes: Shape, keepdims: bool) -> Any:
    """`out`, with extents 1 in place of the reduced axes if they are kept.

    Raises:
        DtypeError: `keepdims` is no truth value, as in `x.mean(0, 1)`.
    """
    check_keepdims(where, keepdims)
    return reshape_to(out, tuple(1 if a in axes else n for a, n in enumerate(shape))) if keepdims else out


def check_keepdims(where: str, keepdims: Any) -> None:
    """Refuse what is no truth value: a second axis, most likely."""
    if not isinstance(keepdims, bool | np.bool_):
        raise DtypeError(
            f"{where}: keepdims must be True or False, got {typed(keepdims)}; several axes are one tuple, as in "
            "axis=(0, 1)"
        )


def _reduce(op: Op, x: Any, axes: Shape, keepdims: bool) -> Any:
    return kept(
        op.name.removeprefix("reduce_"),
        bind(op, (x,), {"axes": axes}) if axes else x,
        x.shape,
        axes,
        keepdims,
    )


def sum(x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """The sum of the elements of `x`, or the sums along some axes.

    float32 elements are accumulated in more than float32. Truth values are counted: the number of those that hold is a
    float64 that adopts the dtype of what it meets, as a Python number does.

    Args:
        x: floating or bool array or number.
        axis: the axis or axes to sum over; all of them if None.
        keepdims: whether the summed axes stay, with extent 1.

    Returns:
        An array without the summed axes, of the dtype of `x`, or float64.

    Raises:
        DtypeError: `x` is no array or number. The functions that refer to this one, except `mean`, refuse bool, too.
        ShapeError: an axis is out of range or named twice.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0], [3.0, 4.0]])
        >>> qb.sum(x).item(), qb.sum(x, axis=0).tolist(), qb.sum(x, axis=1, keepdims=True).shape
        (10.0, [4.0, 6.0], (2, 1))
        >>> qb.sum(x > 1.5).item()
        3.0
    """
    x, axes = arithmetic(_counted(x, "sum"), axis, "sum")
    return kept("sum", sum_over(x, axes), x.shape, axes, keepdims)


def mean(x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """The arithmetic mean of the elements of `x`, or the means along some axes; of truth values the share that holds.

    Arguments and errors as for `sum`.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0], [3.0, 5.0]])
        >>> qb.mean(x).item(), qb.mean(x, axis=0).tolist()
        (2.75, [2.0, 3.5])
    """
    x, axes = floating(_counted(x, "mean"), axis, "mean")
    count = math.prod([x.shape[a] for a in axes])
    return kept("mean", divided(sum_over(x, axes), count), x.shape, axes, keepdims)


def divided(total: Any, count: float) -> Any:
    """`total / count`, in float64 where float32 cannot hold the count."""
    if float(np.float32(count)) == count or total.dtype is float64:
        return elementwise.div(total, float(count))
    return cast(elementwise.div(cast(total, float64), float(count)), total.dtype)


def _no_array(where: str, axis: Any) -> None:
    if getattr(axis, "shape", ()):
        raise DtypeError(
            f"{where}: the axis is an array, {typed(axis)}; of two arrays, element by element, write "
            f"quabla.{where}imum(x, y)"
        )


def max(x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """The largest element of `x`, or the largest along some axes; NaN where any of them is NaN.

    Elements that tie for the largest share the derivative evenly; beside a NaN it is NaN for all of them. Arguments
    and errors as for `sum`.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0], [3.0, 4.0]])
        >>> qb.max(x).item(), qb.max(x, axis=1).tolist()
        (4.0, [2.0, 4.0])
        >>> qb.grad(qb.max)(qb.array([3.0, 1.0, 3.0])).tolist()
        [0.5, 0.0, 0.5]
    """
    _no_array("max", axis)
    x, axes = arithmetic(x, axis, "max")
    return _reduce(reduce_max_op, x, axes, keepdims)


def min(x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """The smallest element of `x`, or the smallest along some axes; NaN where any of them is NaN.

    Elements that tie for the smallest share the derivative evenly; beside a NaN it is NaN for all of them. Arguments
    and errors as for `sum`.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0], [3.0, 4.0]])
        >>> qb.min(x).item(), qb.min(x, axis=1).tolist()
        (1.0, [1.0, 3.0])
    """
    _no_array("min", axis)
    x, axes = arithmetic(x, axis, "min")
    return _reduce(reduce_min_op, x, axes, keepdims)


def _truth(x: Any, axis: Any, where: str) -> tuple[Any, Shape]:
    x = operand(x, where)
    if x.dtype is not bool_:
        raise DtypeError(
            f"{where}: takes bool operands only, got {x.aval}; compare it, as in quabla.not_equal(x, 0.0)"
        )
    return x, normalize_axes(axis, x.ndim, where)


def any(x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """Whether any element of `x` holds, of all or along some axes.

    Args:
        x: bool array.
        axis: the axis or axes to reduce; all of them if None.
        keepdims: whether the reduced axes stay, with extent 1.

    Returns:
        A bool array without the reduced axes.

    Raises:
        DtypeError: `x` is not bool.
        ShapeError: an axis is out of range or named twice.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[True, False], [False, False]])
        >>> qb.any(x).item(), qb.any(x, axis=1).tolist()
        (True, [True, False])
    """
    x, axes = _truth(x, axis, "any")
    return _reduce(reduce_any_op, x, axes, keepdims)


def all(x: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
    """Whether every element of `x` holds, of all or along some axes. Arguments and errors as for `any`.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[True, True], [False, True]])
        >>> qb.all(x).item(), qb.all(x, axis=1).tolist()
        (False, [True, False])
    """
    x, axes = _truth(x, axis, "all")
    return _reduce(reduce_all_op, x, axes, keepdims)
