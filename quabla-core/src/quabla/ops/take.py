"""Elements by positions that are arrays: `take`, `take_along_axis`, and indexing with arrays and masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.errors import DtypeError, ShapeError
from quabla.ops.apply import operand
from quabla.ops.elementwise import add, mul
from quabla.ops.positions import as_positions, gather, inside
from quabla.ops.structure import broadcast, inverse_permutation, permute, reshape_to
from quabla.shapes import as_shape, broadcast_shapes, normalize_axis, whole

__all__ = ["at_positions", "repeat", "take", "take_along_axis"]

Shape = tuple[int, ...]


def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """The elements of `x` at the given positions along an axis.

    What holds of positions here holds wherever they are arrays, as in `x[i]` and `take_along_axis`. Those known while
    tracing are checked. A traced one cannot be: it is rounded towards zero, then counts from the end if it is negative,
    and is moved to the nearest element where it is out of range, infinities included; NaN counts as 0. The gradient
    goes to the element that was taken.

    Args:
        x: array.
        indices: whole numbers of any shape, as an array, a number or nested lists. Floating ones are welcome (integer
            data are float64 here). Negative ones count from the end. A mask is none; `x[mask]` takes one.
        axis: the axis to take from; None takes from the elements in row-major order.

    Returns:
        An array of the shape of `x` with that of `indices` in place of the axis. Its gradient adds up over repeated
        positions.

    Raises:
        PositionError: positions known while tracing that are no whole numbers, or out of range.
        ShapeError: `axis` is out of range, or there are no positions.
        DtypeError: positions that are bool or not numeric.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        >>> qb.take(x, [2, 0], axis=1).tolist(), qb.take(x, -1).item()
        ([[3.0, 1.0], [6.0, 4.0]], 6.0)
        >>> qb.grad(lambda v: qb.sum(qb.take(v, [1, 1, 2])))(qb.array([1.0, 2.0, 3.0])).tolist()
        [0.0, 2.0, 1.0]
    """
    x = operand(x, "take")
    if axis is None:
        x, a = reshape_to(x, (x.size,)), 0
    else:
        a = normalize_axis(axis, x.ndim, "take")
    i = as_positions(indices, x.shape[a], "take", f"axis {a}")
    return gather(x, i, a)


def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Any:
    """For each line of `x` along an axis, the elements at positions of its own.

    Args:
        x: array.
        indices: whole numbers, as for `take`, which says what traced ones out of range do: as many axes as `x`; extents
            other than that along `axis` broadcast.
        axis: the axis along which the lines run.

    Returns:
        An array of the shape of `indices`, broadcast with that of `x` except along `axis`.

    Raises:
        PositionError: positions known while tracing that are no whole numbers, or out of range.
        ShapeError: the numbers of axes differ, the shapes do not broadcast, or `axis` is out of range.
        DtypeError: positions that are bool or not numeric.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[3.0, 1.0, 2.0], [4.0, 6.0, 5.0]])
        >>> qb.take_along_axis(x, qb.argsort(x, axis=1), axis=1).tolist()
        [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    """
    x = operand(x, "take_along_axis")
    a = normalize_axis(axis, x.ndim, "take_along_axis")
    i = as_positions(indices, x.shape[a], "take_along_axis", f"axis {a}")
    if i.ndim != x.ndim:
        raise ShapeError(
            f"take_along_axis: positions of shape {i.shape} for {x.aval}: they need as many axes as the array"
        )
    outer = broadcast_shapes("take_along_axis", _with(x.shape, a, 1), _with(i.shape, a, 1))
    return along(broadcast(x, _with(outer, a, x.shape[a])), broadcast(i, _with(outer, a, i.shape[a])), a)


def _with(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def along(x: Any, i: Any, axis: int) -> Any:
    """`take_along_axis` for int64 positions and shapes that agree."""
    last = (*(a for a in range(x.ndim) if a != axis), axis)
    n = x.ndim - 1
    return permute(gather(permute(x, last), permute(i, last), n, n), inverse_permutation(last))


def at_positions(x: Any, axes: Shape, positions: list[Any], where: str) -> tuple[Any, int, int]:
    """`x` indexed along several axes by arrays that are broadcast together.

    Args:
        x: array.
        axes: the axes, ascending.
        positions: int64 positions for each.
        where: the function that the user called.

    Returns:
        An array, and where in it the axes of the positions are: the first one and their number. The other axes of `x`
        are in their order.
    """
    shape = broadcast_shapes(where, *[i.shape for i in positions])
    at = axes[0]
    if axes != tuple(range(at, at + len(axes))):
        x, at = permute(x, (*axes, *(a for a in range(x.ndim) if a not in axes))), 0
    extents = x.shape[at : at + len(axes)]
    x = reshape_to(x, (*x.shape[:at], math.prod(extents), *x.shape[at + len(axes) :]))
    flat = positions[0]
    if len(axes) > 1:
        flat = inside(flat, extents[0])
        for i, n in zip(positions[1:], extents[1:], strict=True):
            flat = add(mul(flat, wrap(np.array(n, np.int64))), inside(i, n))
    return gather(x, broadcast(flat, shape), at), at, len(shape)


def repeat(x: Any, repeats: int | Sequence[int], axis: int | None = None) -> Any:
    """Each element of `x` several times in a row.

    Args:
        x: array or number.
        repeats: how often, one integer for all elements or one for each along the axis; some may be 0.
        axis: the axis to repeat along; of the flattened array if None.

    Returns:
        An array whose extent along `axis` is the sum of the repeats.

    Raises:
        ShapeError: an integer is negative, all are 0, there are not as many as elements, or the axis is out of range.
        DtypeError: `repeats` are no integers.

    Example:
        >>> import quabla as qb
        >>> qb.repeat(qb.array([1.0, 2.0]), 2).tolist(), qb.repeat(qb.array([1.0, 2.0]), [1, 3]).tolist()
        ([1.0, 1.0, 2.0, 2.0], [1.0, 2.0, 2.0, 2.0])
    """
    x = operand(x, "repeat")
    if axis is None:
        x, at = reshape_to(x, (x.size,)), 0
    else:
        at = normalize_axis(axis, x.ndim, "repeat")
    counts = _counts(repeats)
    head, n, tail = x.shape[:at], x.shape[at], x.shape[at + 1 :]
    if len(counts) == 1:
        (count,) = as_shape(counts[0], "repeat")
        dims = (*range(at + 1), *range(at + 2, x.ndim + 1))
        return reshape_to(broadcast(x, (*head, n, count, *tail), dims), (*head, n * count, *tail))
    if len(counts) != n:
        raise ShapeError(f"repeat: {len(counts)} repeats for the {n} elements along axis {at} of {x.aval}")
    if min(counts) < 0 or not any(counts):
        raise ShapeError(
            f"repeat: repeats are 0 or more and not all 0, got {counts}; empty arrays are not supported"
        )
    return take(x, np.repeat(np.arange(n), counts), at)


def _counts(repeats: Any) -> tuple[int, ...]:
    """The repeats as integers: one, or one for each element."""
    try:
        given = repeats.tolist() if isinstance(repeats, np.ndarray) else repeats
        return tuple([whole(n) for n in (given if isinstance(given, list | tuple) else (given,))])
    except TypeError:
        raise DtypeError(f"repeat: repeats are integers, got {repeats!r}") from None
