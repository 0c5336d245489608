"""`TensorView`: part of a `Tensor`, without a copy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from quabla.arrays.tensor import Array, Tensor, wrap_as
from quabla.dtypes import dtype
from quabla.errors import DtypeError, ShapeError
from quabla.shapes import ShapeDtype, aval_of, normalize_axis, whole

if TYPE_CHECKING:
    from quabla.ops.methods import Methods as _Base
else:
    _Base = object

__all__ = ["TensorView", "slice_bounds", "view_of"]


@Array.register
class TensorView(_Base):
    """Every `step`-th element along some axes of a `Tensor`, without a copy. Made by `Tensor.slice`.

    It takes part in arithmetic and in every function as the Tensor that `to_tensor` gives.

    Attributes:
        base: the Tensor whose memory it shows.
        offset: the position in `base`, in elements, of its first element.
        strides: how many elements apart its neighbours along each axis lie in `base`.

    Example:
        >>> import quabla as qb
        >>> view = qb.arange(6).reshape(2, 3).slice(1, 0, 2, step=2)
        >>> view.shape, view.strides, view.tolist()
        ((2, 2), (3, 2), [[0.0, 2.0], [3.0, 5.0]])
    """

    __slots__ = ("__weakref__", "aval", "base", "offset", "strides")
    aval: ShapeDtype
    base: Tensor
    offset: int
    strides: tuple[int, ...]

    def __init__(self) -> None:
        raise TypeError("use x.slice(axis, start, length, step) to make a TensorView of a Tensor x")

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
        """The elements as a read-only NumPy array with strides, without a copy.

        Example:
            >>> import quabla as qb
            >>> qb.arange(6).slice(0, 1, 2, step=3).numpy()
            array([1., 4.])
        """
        aval, size = self.aval, self.aval.dtype.itemsize
        strides = [s * size for s in self.strides]
        return np.ndarray(aval.shape, aval.dtype.numpy, self.base.numpy(), self.offset * size, strides)

    def to_tensor(self) -> Tensor:
        """The elements as a Tensor of their own.

        Example:
            >>> import quabla as qb
            >>> qb.arange(6).slice(0, 1, 2, step=3).to_tensor()
            Tensor([1., 4.])
        """
        return wrap_as(self.numpy(), self.aval)

    def item(self) -> Any:
        """The only element, as a Python float or bool.

        Example:
            >>> import quabla as qb
            >>> qb.arange(6).slice(0, 4, 1).item()
            4.0
        """
        return self.to_tensor().item()

    def tolist(self) -> Any:
        """The elements as nested Python lists.

        Example:
            >>> import quabla as qb
            >>> qb.arange(6).slice(0, 2, 2).tolist()
            [2.0, 3.0]
        """
        return self.numpy().tolist()

    def to_flat_list(self) -> list[Any]:
        """The elements in row-major order as one Python list.

        Example:
            >>> import quabla as qb
            >>> qb.eye(3).slice(0, 0, 2).to_flat_list()
            [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
        """
        return self.to_tensor().to_flat_list()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        tensors = [x.to_tensor() if type(x) is TensorView else x for x in inputs]
        return getattr(ufunc, method)(*tensors, **kwargs)

    def __repr__(self) -> str:
        return f"TensorView(shape={list(self.shape)}, strides={list(self.strides)})"

    def __copy__(self) -> TensorView:
        return self

    def __deepcopy__(self, memo: Any) -> TensorView:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.base, self.offset, self.shape, self.strides)


# The rest of what a Tensor does, done by the Tensor that the view stands for.
def _delegate(name: str) -> None:
    method = getattr(Tensor, name)

    def delegated(self: TensorView, *args: Any, **kwargs: Any) -> Any:
        return method(self.to_tensor(), *args, **kwargs)

    delegated.__name__ = name
    delegated.__qualname__ = f"TensorView.{name}"
    setattr(TensorView, name, delegated)


for _name in ("float", "int", "complex", "bool", "index", "round", "format", "contains"):
    _delegate(f"__{_name}__")
for _name in ("array", "array_function", "dlpack", "dlpack_device"):
    _delegate(f"__{_name}__")


_new = object.__new__


def _unpickled(base: Tensor, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> TensorView:
    out: TensorView = _new(TensorView)
    out.base, out.offset, out.strides = base, offset, strides
    out.aval = aval_of(shape, base.aval.dtype, base.aval.weak)
    return out


def slice_bounds(x: Any, axis: Any, start: Any, length: Any, step: Any) -> tuple[int, int, int, int]:
    """The arguments of `slice` as non-negative integers that fit `x`.

    Raises:
        ShapeError: the elements asked for do not all exist, or there are none.
        DtypeError: an argument is not an integer.
    """
    where = "slice"
    axis = normalize_axis(axis, x.ndim, where)
    try:
        start, length, step = whole(start), whole(length), whole(step)
    except TypeError:
        raise DtypeError(
            f"{where}: start, length and step are integers, got {start!r}, {length!r} and {step!r}"
        ) from None
    extent = x.shape[axis]
    if length < 1 or step < 1:
        raise ShapeError(f"{where}: length and step must be at least 1, got length {length} and step {step}")
    if start < 0 or start + (length - 1) * step >= extent:
        raise ShapeError(
            f"{where}: start {start}, length {length}, step {step} reach outside axis {axis} of {x.aval}, "
            f"which has {extent} elements"
        )
    return axis, start, length, step


def view_of(x: Tensor | TensorView, axis: Any, start: Any, length: Any, step: Any = 1) -> TensorView:
    """The part of `x` at `start, start + step, ...` along `axis`, `length` elements of it."""
    axis, start, length, step = slice_bounds(x, axis, start, length, step)
    if isinstance(x, TensorView):
        base, offset, strides = x.base, x.offset, x.strides
    else:
        base, offset = x, 0
        strides = tuple(math.prod(x.shape[i + 1 :]) for i in range(x.ndim))
    out: TensorView = _new(TensorView)
    out.base = base
    out.offset = offset + start * strides[axis]
    out.strides = (*strides[:axis], strides[axis] * step, *strides[axis + 1 :])
    out.aval = aval_of((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.aval.dtype, x.aval.weak)
    return out
