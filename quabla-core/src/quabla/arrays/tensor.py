"""`Tensor`: an immutable array in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from quabla.dtypes import _BY_NUMPY, dtype
from quabla.shapes import ShapeDtype, aval_of

__all__ = ["Tensor", "wrap", "wrap_as"]


class Tensor:
    """An immutable array of float64, float32 or bool elements, contiguous in row-major order.

    Make one with `array`, `asarray`, `zeros` and the other creation functions. Arithmetic, comparisons, indexing and
    methods follow NumPy; `==` compares identity.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0], [3.0, 4.0]])
        >>> x.shape, x.dtype, (x @ x).tolist()
        ((2, 2), quabla.float64, [[7.0, 10.0], [15.0, 22.0]])
    """

    # `address` and `aval` are all that a compiled call looks at. `owner` keeps the memory alive: a NumPy array, or a
    # block from a compiled call, in which the elements begin at `offset`.
    __slots__ = ("__weakref__", "address", "aval", "offset", "owner")
    address: int
    aval: ShapeDtype
    owner: Any
    offset: int

    def __init__(self) -> None:
        raise TypeError("use quabla.array(data) or quabla.asarray(data) to make a Tensor")

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, a tuple of ints."""
        return self.aval.shape

    @property
    def dtype(self) -> dtype:
        """The element type."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.aval.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.aval.size

    def numpy(self) -> np.ndarray:
        """The elements as a read-only NumPy array, without a copy.

        Example:
            >>> import quabla as qb
            >>> qb.array([1.0, 2.0]).numpy()
            array([1., 2.])
        """
        owner = self.owner
        if type(owner) is np.ndarray:
            return owner
        aval = self.aval
        view: np.ndarray = np.ndarray(aval.shape, aval.dtype.numpy, owner, self.offset)
        view.flags.writeable = False
        return view


_new = object.__new__


def wrap(array: np.ndarray, weak: bool = False) -> Tensor:
    """A Tensor over a fresh NumPy array that nobody else will write to; copies only to make it contiguous."""
    return wrap_as(array, aval_of(array.shape, _BY_NUMPY[array.dtype], weak))


def wrap_as(array: np.ndarray, aval: ShapeDtype) -> Tensor:
    """A Tensor of the given type over a fresh NumPy array of that shape and dtype."""
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    array.flags.writeable = False
    out: Tensor = _new(Tensor)
    out.address = array.__array_interface__["data"][0]
    out.aval = aval
    out.owner = array
    out.offset = 0
    return out
