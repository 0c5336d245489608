"""Indexing: integers, slices, `...`, None, arrays of positions, and masks."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from quabla.arrays.refusals import user_line
from quabla.arrays.tensor import Tensor
from quabla.arrays.tracer import TraceTensor
from quabla.arrays.view import TensorView
from quabla.dtypes import bool_
from quabla.errors import PositionError, ShapeError, TracerError, UnsupportedOperationError
from quabla.ops.apply import operand
from quabla.ops.positions import as_positions, concrete
from quabla.ops.structure import permute, reshape_to, strided_slice
from quabla.ops.take import at_positions

__all__ = ["getitem"]

Shape = tuple[int, ...]


class _Positions(NamedTuple):
    """An index that is an array: of numbers, or of truth values, which stands for one array per axis of it."""

    given: Any
    array: np.ndarray | None  # None where it is traced


def getitem(x: Any, key: Any) -> Any:
    """`x[key]`: elements and blocks by NumPy's indexing.

    Args:
        x: array.
        key: an integer (its axis disappears), a slice (negative positions and steps as in Python; arrays of one whole
            number that is known while tracing will do, too), `...` (as many whole axes as are left), None (a new axis
            of extent 1), an array or list of positions, a bool array or list that is known while tracing (it stands for
            the positions where it is true), or a tuple of these. Several arrays are broadcast together; their axes come
            first in the result, or where they stand if they stand side by side. Positions may be floating (integer data
            are float64 here) and negative. Traced ones are moved to the nearest element where they are out of range, as
            `take` says.

    Returns:
        An array with the selected elements. Its gradient adds up over repeated positions.

    Raises:
        PositionError: a position known while tracing is out of range or no whole number, there are more indices than
            axes, or a mask of another shape than the axes that it covers.
        ShapeError: a slice or mask selects nothing, or arrays of positions do not broadcast.
        TracerError: a slice or mask depends on a traced value.
        UnsupportedOperationError: an index is a single bool.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        >>> x[0, ::-1].tolist(), x[..., None, 1].shape
        ([3.0, 2.0, 1.0], (2, 1))
        >>> x[:, [2, 0]].tolist(), x[[0, 1], [2, 0]].tolist(), x[x > 4.0].tolist()
        ([[3.0, 1.0], [6.0, 4.0]], [3.0, 4.0], [5.0, 6.0])
        >>> qb.vmap(lambda row, i: row[i])(x, qb.array([2.0, 0.0])).tolist()
        [3.0, 4.0]
    """
    x = operand(x, "getitem")
    items = _expanded(x, key)
    start, stop, step, shape = [], [], [], []
    layout: list[
        Any
    ] = []  # per item: None, an axis that stays, or (axis, positions); no positions for an integer
    whole, fancy = True, False
    axis = 0
    for item in items:
        if item is None:
            shape.append(1)
            layout.append(None)
            continue
        n = x.shape[axis]
        if isinstance(item, slice):
            a, b, c = _bounds(item, n, axis, x)
            extent = len(range(a, b, c))
            if extent == 0:
                raise ShapeError(
                    f"getitem: slice {_shown(item)} selects nothing of axis {axis} with {n} elements (array {x.aval}); "
                    "empty arrays are not supported"
                )
            shape.append(extent)
            layout.append(axis)
        elif isinstance(item, _Positions):
            a, b, c, extent = 0, n, 1, n
            fancy = True
            layout.append((axis, as_positions(item.given, n, "getitem", f"axis {axis} of {x.aval}")))
        else:
            a = _position(item, n, axis, x)
            b, c, extent = a + 1, 1, 1
            layout.append((axis, None))
        whole = whole and extent == n and c > 0
        start.append(a)
        stop.append(b)
        step.append(c)
        axis += 1
    picked = x if whole else strided_slice(x, tuple(start), tuple(stop), tuple(step))
    return _fancy(picked, layout) if fancy else reshape_to(picked, tuple(shape))


def _fancy(x: Any, layout: list[Any]) -> Any:
    """The positions in `layout` taken from `x`, which has been sliced; the axes of integers have extent 1 by now."""
    indexed = [i for i, part in enumerate(layout) if isinstance(part, tuple)]
    arrays = [layout[i] for i in indexed if layout[i][1] is not None]
    integers = {layout[i][0] for i in indexed if layout[i][1] is None}
    kept = [a for a in range(x.ndim) if a not in integers]
    x = reshape_to(x, tuple(x.shape[a] for a in kept))
    axes = tuple(kept.index(a) for a, _ in arrays)
    out, at, count = at_positions(x, axes, [i for _, i in arrays], "getitem")
    # Integers count as positions where it matters whether those stand side by side.
    together = indexed[-1] - indexed[0] + 1 == len(indexed)
    before = layout[: indexed[0]] if together else []
    after = [part for part in layout[len(before) :] if not isinstance(part, tuple)]
    wanted = len([part for part in before if part is not None])
    others = [a for a in range(out.ndim) if not at <= a < at + count]
    out = permute(out, (*others[:wanted], *range(at, at + count), *others[wanted:]))
    rest = iter([n for a, n in enumerate(out.shape) if not wanted <= a < wanted + count])
    low = [1 if part is None else next(rest) for part in before]
    high = [1 if part is None else next(rest) for part in after]
    return reshape_to(out, (*low, *out.shape[wanted : wanted + count], *high))


def _expanded(x: Any, key: Any) -> list[Any]:
    """One item per axis of `x`, and the Nones of `key` between them: `...` is written out, masks become positions."""
    given = [_checked(item, x) for item in (key if isinstance(key, tuple) else (key,))]
    used = 0
    for item in given:
        used += item.array.ndim if _is_mask(item) else item is not None and item is not Ellipsis
    if used > x.ndim:
        raise PositionError(
            f"getitem: {used} indices for an array {x.aval} with {x.ndim} dimension{'s' * (x.ndim != 1)}"
        )
    if sum(item is Ellipsis for item in given) > 1:
        raise PositionError("getitem: an index may hold '...' only once")
    if not any(item is Ellipsis for item in given):
        given.append(Ellipsis)
    items: list[Any] = []
    axis = 0
    for item in given:
        if item is Ellipsis:
            items += [slice(None)] * (x.ndim - used)
            axis += x.ndim - used
        elif _is_mask(item):
            items += _where(item.array, axis, x)
            axis += item.array.ndim
        else:
            items.append(item)
            axis += item is not None
    return items


def _is_mask(item: Any) -> bool:
    return isinstance(item, _Positions) and item.array is not None and item.array.dtype == np.bool_


def _where(mask: np.ndarray, axis: int, x: Any) -> list[_Positions]:
    """The positions at which a mask is true, per axis of it."""
    covered = x.shape[axis : axis + mask.ndim]
    if mask.shape != covered:
        raise PositionError(
            f"getitem: a mask of shape {mask.shape} does not fit {x.aval}, whose extents from axis {axis} are {covered}"
        )
    if not mask.any():
        raise ShapeError(
            f"getitem: the mask selects nothing of {x.aval}; empty arrays are not supported. To leave elements out of "
            "a sum or mean, use where"
        )
    return [_Positions(i, i) for i in np.nonzero(mask)]


def _checked(item: Any, x: Any) -> Any:
    """An item of a key as given, or as `_Positions` where it is an array; refuses what no index can be."""
    if isinstance(item, slice):
        for part in (item.start, item.stop, item.step):
            if type(part) is TraceTensor:
                raise TracerError(
                    f"getitem: the slice of an array {x.aval} depends on a traced value {part.aval}, and the extent of "
                    "a result must be known while tracing; take(x, start + arange(length)) moves a window of fixed "
                    f"length{user_line()}"
                )
        return slice(_bound(item.start), _bound(item.stop), _bound(item.step))
    if item is None or item is Ellipsis or type(item) is int:
        return item
    if isinstance(item, bool | np.bool_):
        raise _bool_index(x)
    if type(item) is TraceTensor:
        if item.aval.dtype is bool_:
            raise TracerError(
                f"getitem: the mask {item.aval} of an array {x.aval} depends on a traced value, so the number of "
                "elements that it selects is not known while tracing; keep the shape and use where(mask, x, other), or "
                f"multiply by the mask{user_line()}"
            )
        return _Positions(item, None)
    if isinstance(item, list | tuple | np.ndarray) or (
        hasattr(item, "__array__") and not isinstance(item, np.generic)
    ):
        array = concrete(item, "getitem")
        assert array is not None
        if array.ndim == 0 and array.dtype == np.bool_:
            raise _bool_index(x)
        if array.ndim == 0:
            return int(array) if array.dtype.kind in "iuf" and float(array).is_integer() else array
        return _Positions(array, array)
    return item


def _bound(part: Any) -> Any:
    """A part of a slice; what `argmax` and its like return is a whole number, too."""
    if part is None or type(part) is int or not isinstance(part, Tensor | TensorView | np.ndarray):
        return part
    array = np.asarray(part)
    whole = array.ndim == 0 and array.dtype.kind in "iuf" and float(array).is_integer()
    return int(array) if whole else part


def _bool_index(x: Any) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"getitem: a bool as an index of an array {x.aval} is not supported; use integers, slices, '...', None, "
        "arrays of positions or masks, or select with where",
        op="getitem",
    )


def _position(item: Any, n: int, axis: int, x: Any) -> int:
    try:
        i = operator.index(item)
    except TypeError:
        raise PositionError(
            f"getitem: an index is an integer, a slice, '...', None or an array of positions, got {item!r} for "
            f"axis {axis} of {x.aval}"
        ) from None
    if not -n <= i < n:
        raise PositionError(
            f"getitem: index {i} is out of range for axis {axis} with {n} elements (array {x.aval})"
        )
    return i % n


def _bounds(item: slice, n: int, axis: int, x: Any) -> tuple[int, int, int]:
    try:
        return item.indices(n)
    except (TypeError, ValueError):
        what = "the step of a slice cannot be zero" if _is_zero(item.step) else "positions are integers"
        raise PositionError(f"getitem: slice {_shown(item)} of axis {axis} of {x.aval}: {what}") from None


def _is_zero(step: Any) -> bool:
    return isinstance(step, int | np.integer) and step == 0


def _shown(item: slice) -> str:
    parts = ["" if p is None else str(p) for p in (item.start, item.stop, item.step)]
    return ":".join(parts if parts[2] else parts[:2])
