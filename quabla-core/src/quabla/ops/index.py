"""Basic indexing: integers, slices, `...` and None."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from quabla.arrays.tracer import TraceTensor
from quabla.errors import ShapeError, TracerError, UnsupportedOperationError
from quabla.ops.apply import operand
from quabla.ops.structure import reshape_to, strided_slice

__all__ = ["getitem"]


def getitem(x: Any, key: Any) -> Any:
    """`x[key]`: elements and blocks by NumPy's basic indexing.

    Args:
        x: array.
        key: an integer (its axis disappears), a slice (negative positions and steps as in Python), `...` (as many whole
            axes as are left), None (a new axis of extent 1), or a tuple of these.

    Returns:
        An array with the selected elements.

    Raises:
        IndexError: an integer is out of range, or there are more of them than axes.
        ShapeError: a slice selects nothing.
        UnsupportedOperationError: an index is an array or a bool.
        TracerError: an index depends on a traced value.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        >>> x[0, ::-1].tolist(), x[..., None, 1].shape
        ([3.0, 2.0, 1.0], (2, 1))
    """
    x = operand(x, "getitem")
    start, stop, step, shape = [], [], [], []
    whole = True
    axis = 0
    for item in _expanded(x, key):
        if item is None:
            shape.append(1)
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
        else:
            a = _position(item, n, axis, x)
            b, c, extent = a + 1, 1, 1
        whole = whole and extent == n and c > 0
        start.append(a)
        stop.append(b)
        step.append(c)
        axis += 1
    picked = x if whole else strided_slice(x, tuple(start), tuple(stop), tuple(step))
    return reshape_to(picked, tuple(shape))


def _expanded(x: Any, key: Any) -> list[Any]:
    """The items of `key` with `...` written out: one per axis of `x`, and the Nones between them."""
    items = list(key) if isinstance(key, tuple) else [key]
    for item in items:
        _check_basic(item, x)
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > x.ndim:
        raise IndexError(f"getitem: {used} indices for an array {x.aval} with {x.ndim} dimension{'s' * (x.ndim != 1)}")
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("getitem: an index may hold '...' only once")
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * (x.ndim - used), *items[at + 1 :]]


def _check_basic(item: Any, x: Any) -> None:
    """Refuse what only a gather could do."""
    parts = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
    for part in parts:
        if type(part) is TraceTensor:
            raise TracerError(
                f"getitem: the index {part.aval} of an array {x.aval} depends on a traced value, and positions must be "
                "known while tracing; use a Python integer, or select with where and a bool array"
            )
        if isinstance(part, (bool, np.bool_, list, tuple, np.ndarray)) or hasattr(part, "aval"):
            what = "a bool" if isinstance(part, (bool, np.bool_)) else f"a {type(part).__name__}"
            raise UnsupportedOperationError(
                f"getitem: {what} as an index of an array {x.aval} is not supported; use integers, slices, '...' and "
                "None, or select with where and a bool array",
                op="getitem",
            )


def _position(item: Any, n: int, axis: int, x: Any) -> int:
    try:
        i = operator.index(item)
    except TypeError:
        raise IndexError(
            f"getitem: an index is an integer, a slice, '...' or None, got {item!r} for axis {axis} of {x.aval}"
        ) from None
    if not -n <= i < n:
        raise IndexError(f"getitem: index {i} is out of range for axis {axis} with {n} elements (array {x.aval})")
    return i % n


def _bounds(item: slice, n: int, axis: int, x: Any) -> tuple[int, int, int]:
    try:
        return item.indices(n)
    except (TypeError, ValueError):
        raise IndexError(
            f"getitem: slice {_shown(item)} of axis {axis} of {x.aval}: positions are integers and the step is not 0"
        ) from None


def _shown(item: slice) -> str:
    parts = ["" if p is None else str(p) for p in (item.start, item.stop, item.step)]
    return ":".join(parts if parts[2] else parts[:2])
