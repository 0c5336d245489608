"""Shapes, axes, broadcasting, and `ShapeDtype`, the type of a value."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from quabla.dtypes import as_dtype, dtype, float64
from quabla.errors import DtypeError, ShapeError, TracerError
from quabla.typed_repr import typed

__all__ = [
    "MOST_ELEMENTS",
    "ShapeDtype",
    "as_shape",
    "aval_of",
    "broadcast_shapes",
    "normalize_axes",
    "normalize_axis",
    "number",
    "whole",
    "wholes",
]

Shape = tuple[int, ...]

# Of 8 bytes each: what a process can address, and few enough that the sizes of many arrays add up to 64 bits.
MOST_ELEMENTS = min(2**47, sys.maxsize) // 8


MOST_AXES = 64  # as in NumPy


class ShapeDtype:
    """Shape and dtype of a value, without the value. Interned: equal types are one object, so `is` compares them.

    Args:
        shape: the extents, an int or an iterable of positive ints.
        dtype: the element type; float64 unless given.
        weak: whether the value came from Python numbers alone and so adopts the dtype of what it meets.

    Raises:
        ShapeError: for an extent that is not a positive integer.
        DtypeError: for an unsupported element type.

    Example:
        >>> import quabla as qb
        >>> qb.ShapeDtype((3, 4), qb.float32)
        float32[3,4]
        >>> qb.ShapeDtype((3, 4), qb.float32) is qb.ShapeDtype([3, 4], "float32")
        True
    """

    __slots__ = ("__weakref__", "dtype", "ndim", "shape", "size", "weak")
    shape: Shape
    dtype: dtype
    weak: bool
    ndim: int
    size: int

    def __new__(cls, shape: Any = (), dtype: Any = float64, weak: bool = False) -> ShapeDtype:
        return aval_of(as_shape(shape, "ShapeDtype"), as_dtype(dtype, "ShapeDtype"), bool(weak))

    def __str__(self) -> str:
        # For messages: nobody has to know of weakness to understand one.
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"

    def __repr__(self) -> str:
        return f"{'~' if self.weak else ''}{self}"

    def __reduce__(self) -> tuple[Any, ...]:
        return ShapeDtype, (self.shape, self.dtype, self.weak)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * int(self.dtype.itemsize)


_INTERNED: dict[tuple[Shape, dtype, bool], ShapeDtype] = {}


def aval_of(shape: Shape, dtype: dtype, weak: bool = False) -> ShapeDtype:
    """The one `ShapeDtype` of a shape that is known to be a valid tuple."""
    key = (shape, dtype, weak)
    found = _INTERNED.get(key)
    if found is None:
        size = 1
        for extent in shape:
            size *= extent
        made = object.__new__(ShapeDtype)
        made.shape, made.dtype, made.weak, made.ndim, made.size = shape, dtype, weak, len(shape), size
        found = _INTERNED.setdefault(key, made)  # atomic: of two threads one object wins
    return found


def whole(n: Any) -> int:
    """`n` as an int, by `operator.index`; a truth value is none.

    Raises:
        TypeError: it is no integer.
    """
    if isinstance(n, (bool, np.bool_)):
        raise TypeError("a bool is not an integer")
    return operator.index(n)


def number(x: Any) -> int | float:
    """An int or float of Python or NumPy as one of Python; a truth value is none.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(x, (int, float)) and not isinstance(x, (bool, np.generic)):
        return x
    if isinstance(x, (np.integer, np.floating)):
        return x.item()
    raise TypeError(f"a {type(x).__name__} is no number")


def wholes(given: Any, kinds: tuple[type[Iterable[Any]], ...] = (tuple, list)) -> tuple[Shape, bool]:
    """One integer or several of them as a tuple of ints, and whether it was one.

    Args:
        given: an integer, or a container of integers.
        kinds: the classes of containers.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(given, kinds):
        return tuple([whole(n) for n in given]), False
    return (whole(given),), True


def as_shape(shape: Any, where: str) -> Shape:
    """`shape` as a tuple of positive ints, or a `ShapeError` that names `where`."""
    if isinstance(shape, (str, bytes)):
        raise DtypeError(f"{where}: a shape is an int or a tuple of ints, got {shape!r}")
    try:
        extents: Shape = (whole(shape),)
    except TracerError:
        raise
    except TypeError:
        try:
            extents = tuple(whole(n) for n in shape)
        except TracerError:
            raise
        except TypeError:
            raise DtypeError(f"{where}: a shape is an int or a tuple of ints, got {shape!r}") from None
    for n in extents:
        if n < 0:
            raise ShapeError(f"{where}: negative extent in shape {extents}")
        if n == 0:
            raise ShapeError(
                f"{where}: empty arrays are not supported, got shape {extents}; every extent must be at least 1"
            )
    if len(extents) > MOST_AXES:
        raise ShapeError(f"{where}: an array has at most {MOST_AXES} axes, got a shape with {len(extents)}")
    if math.prod(extents) > MOST_ELEMENTS:
        raise ShapeError(f"{where}: no memory can hold an array of shape {extents}")
    return extents


def broadcast_shapes(where: str, *shapes: Shape) -> Shape:
    """The common shape under NumPy's broadcasting rules.

    Raises:
        ShapeError: naming `where` and all shapes, if there is none.
    """
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    ndim = max(map(len, shapes))
    out = []
    for axis in range(-ndim, 0):
        extent = 1
        for s in shapes:
            n = s[axis] if -axis <= len(s) else 1
            if n != 1:
                if extent not in (1, n):
                    listed = " and ".join(str(s) for s in shapes)
                    raise ShapeError(
                        f"{where}: shapes {listed} do not broadcast: axis {axis} has {extent} and {n} elements; "
                        "extents must be equal or 1, and x[:, None] or quabla.expand_dims inserts an axis of 1"
                    )
                extent = n
        out.append(extent)
    return tuple(out)


def normalize_axis(axis: Any, ndim: int, where: str) -> int:
    """`axis` as an index from the front, or a `ShapeError` that names `where`."""
    try:
        index = whole(axis)
    except TracerError:
        raise
    except TypeError:
        raise DtypeError(f"{where}: an axis is an integer, got {typed(axis)}") from None
    if not -ndim <= index < ndim:
        raise ShapeError(f"{where}: axis {index} is out of range for {ndim} dimension{'s' * (ndim != 1)}")
    return index % ndim


def normalize_axes(axis: Any, ndim: int, where: str) -> Shape:
    """`axis` (None, an int or a tuple) as a sorted tuple of axes; None means all of them."""
    if axis is None:
        return tuple(range(ndim))
    given: Iterable[Any] = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = tuple(sorted(normalize_axis(a, ndim, where) for a in given))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{where}: axis {axis} names an axis twice")
    return axes
