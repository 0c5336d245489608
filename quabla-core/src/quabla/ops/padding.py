"""`pad`: an array with a margin, by NumPy's modes."""

from __future__ import annotations

from typing import Any

import numpy as np

from quabla.errors import ShapeError, UnsupportedOperationError
from quabla.ops.apply import operand, promote
from quabla.ops.structure import broadcast, concatenate, strided_slice
from quabla.ops.structure import pad as zero_padded
from quabla.shapes import as_shape, whole

__all__ = ["pad"]

_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def pad(x: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0.0) -> Any:
    """`x` with a margin.

    Args:
        x: array.
        pad_width: how many elements to put before and after each axis: one integer, a pair for all axes, or a pair per
            axis.
        mode: "constant"; "edge" repeats the outermost element; "reflect" mirrors at it, "symmetric" beyond it; "wrap"
            goes on at the other end.
        constant_values: the margin of mode "constant": a scalar, or scalars in the form of `pad_width`.

    Returns:
        A larger array of the dtype of `x`.

    Raises:
        ShapeError: a width is negative, or there are not as many as axes.
        UnsupportedOperationError: another mode.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([1.0, 2.0, 3.0])
        >>> qb.pad(x, 1).tolist(), qb.pad(x, (2, 1), mode="reflect").tolist()
        ([0.0, 1.0, 2.0, 3.0, 0.0], [3.0, 2.0, 1.0, 2.0, 3.0, 2.0])
    """
    if mode not in _MODES:
        raise UnsupportedOperationError(
            f"pad: mode {mode!r} is not one of {', '.join(map(repr, _MODES))}", op="pad"
        )
    x = operand(x, "pad")
    widths = [(_width(a), _width(b)) for a, b in _pairs(pad_width, x.ndim, "pad_width")]
    as_shape(tuple(before + n + after for n, (before, after) in zip(x.shape, widths, strict=True)), "pad")
    if mode == "constant":
        return _constant(x, widths, _pairs(constant_values, x.ndim, "constant_values"))
    for axis, (before, after) in enumerate(widths):
        if before or after:
            order = np.pad(np.arange(x.shape[axis]), (before, after), mode=mode)  # type: ignore[call-overload]
            parts = [_run(x, axis, start, step, count) for start, step, count in _runs(order.tolist())]
            x = concatenate(parts, axis)
    return x


def _width(n: Any) -> int:
    try:
        width = whole(n)
    except TypeError:
        raise ShapeError(f"pad: a width is an integer, got {n!r}") from None
    if width < 0:
        raise ShapeError(f"pad: a width is not negative, got {width}; cut with a slice")
    return width


def _pairs(given: Any, ndim: int, name: str) -> list[tuple[Any, Any]]:
    """A pair per axis, from one item, one pair, or a sequence of pairs or of items in lists of one."""
    if not isinstance(given, (tuple, list)):
        return [(given, given)] * ndim
    if not any(isinstance(item, (tuple, list)) for item in given):
        given = [given]
    pairs = [(item[0], item[-1]) for item in given if isinstance(item, (tuple, list)) and len(item) in (1, 2)]
    if len(pairs) != len(given) or len(pairs) not in (1, ndim):
        raise ShapeError(
            f"pad: {name} must be one item, a pair, or a pair for each of {ndim} axes, got {given!r}"
        )
    return pairs * ndim if len(pairs) == 1 else pairs


def _constant(x: Any, widths: list[tuple[int, int]], values: list[tuple[Any, Any]]) -> Any:
    if all(type(v) in (int, float) and v == 0 for pair in values for v in pair) and x.dtype.kind == "f":
        low, high = zip(*widths, strict=True) if widths else ((), ())
        return zero_padded(x, tuple(low), tuple(high), (0,) * x.ndim) if any(low) or any(high) else x
    for axis, (counts, fills) in enumerate(zip(widths, values, strict=True)):
        before, after = (_margin(x, axis, n, v) for n, v in zip(counts, fills, strict=True))
        parts = [v for v in (before, x, after) if v is not None]
        x = concatenate(promote(parts, "pad", bools=True), axis) if len(parts) > 1 else x
    return x


def _margin(x: Any, axis: int, count: int, value: Any) -> Any:
    """`count` layers of a scalar, to be put before or after an axis of `x`; None for no layers."""
    if not count:
        return None
    _, scalar = promote((x, bool(value) if x.dtype.kind == "b" else value), "pad", bools=True)
    if scalar.ndim:
        raise ShapeError(f"pad: a constant is a scalar, got {scalar.aval}")
    return broadcast(scalar, (*x.shape[:axis], count, *x.shape[axis + 1 :]))


def _runs(order: list[int]) -> list[tuple[int, int, int]]:
    """Positions as runs `(start, step, count)` with a step of 1, -1 or 0."""
    runs: list[tuple[int, int, int]] = []
    at = 0
    while at < len(order):
        step = order[at + 1] - order[at] if at + 1 < len(order) else 1
        step = step if step in (-1, 0, 1) else 1
        end = at + 1
        while end < len(order) and order[end] - order[end - 1] == step:
            end += 1
        runs.append((order[at], step, end - at))
        at = end
    return runs


def _run(x: Any, axis: int, start: int, step: int, count: int) -> Any:
    low, high, by = [0] * x.ndim, list(x.shape), [1] * x.ndim
    low[axis] = start
    high[axis] = start + 1 if step == 0 else start + step * count
    by[axis] = step or 1
    part = strided_slice(x, tuple(low), tuple(high), tuple(by))
    return part if step else broadcast(part, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
