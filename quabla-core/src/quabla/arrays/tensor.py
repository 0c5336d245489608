"""`Tensor`: an immutable array in memory, and its ways out to NumPy and Python."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import numpy as np

from quabla.arrays.refusals import COMPARISONS, OPERATORS
from quabla.dtypes import _BY_NUMPY, dtype
from quabla.errors import DtypeError, ShapeError
from quabla.shapes import ShapeDtype, as_shape, aval_of

if TYPE_CHECKING:  # the operators and methods, which ops/methods.py installs at run time
    from quabla.ops.methods import Methods as _Base
else:
    _Base = object

__all__ = ["Array", "SizeError", "Tensor", "copied", "wrap", "wrap_as"]


_MISSING: Any = object()


class Array(abc.ABC):  # noqa: B024 - a name for isinstance, not an interface to implement
    """Any array of Quabla: `Tensor`, `TensorView` and `TraceTensor` are instances.

    Example:
        >>> import quabla as qb
        >>> isinstance(qb.array([1.0]), qb.Array), isinstance(1.0, qb.Array)
        (True, False)
    """

    __slots__ = ()


class SizeError(ShapeError, TypeError):
    """A size or rank that a protocol of Python does not take. NumPy raises ValueError or TypeError; this is both."""


@Array.register
class Tensor(_Base):
    """An immutable array of float64, float32 or bool elements, contiguous in row-major order.

    Make one with `array`, `asarray`, `zeros` and the other creation functions, or of a shape and flat data. Arithmetic,
    comparisons, indexing and methods follow NumPy; `==` compares identity. Functions of NumPy take a Tensor and give
    NumPy arrays; an operator between a NumPy array and a Tensor, on either side, gives a Tensor.

    Args:
        shape: an int or a sequence of ints.
        data: as many numbers as the shape has elements, in row-major order: a flat list, or a vector.
        dtype: the element type, float64 unless given.

    Raises:
        ShapeError: the data is not flat, or has another number of elements.
        DtypeError: as for `array`.

    Example:
        >>> import quabla as qb
        >>> x = qb.array([[1.0, 2.0], [3.0, 4.0]])
        >>> x.shape, x.dtype, (x @ x).tolist()
        ((2, 2), quabla.float64, [[7.0, 10.0], [15.0, 22.0]])
        >>> qb.Tensor([2, 1], [0.5, 1.5]).tolist()
        [[0.5], [1.5]]
    """

    # `address` and `aval` are all that a compiled call looks at. `owner` keeps the memory alive: a NumPy array, or a
    # block from a compiled call, in which the elements begin at `offset`.
    __slots__ = {
        "__weakref__": None,
        "address": "Where the first element lies in memory. For native code: it is valid as long as the Tensor is.",
        "aval": "The type, a `ShapeDtype`.",
        "offset": "How many bytes into `owner` the first element lies, where that is no NumPy array.",
        "owner": "What keeps the memory alive: a NumPy array, or a block that a compiled call allocated.",
    }
    address: int
    aval: ShapeDtype
    owner: Any
    offset: int

    def __init__(self, shape: Any = _MISSING, data: Any = _MISSING, dtype: Any = None) -> None:
        from quabla.arrays.convert import flat_data  # which needs this module

        if data is _MISSING:
            raise TypeError(
                "Tensor(shape, data) takes a shape and flat data; quabla.array(data) makes a Tensor of nested lists "
                "and of arrays"
            )
        extents = as_shape(shape, "Tensor")
        flat = flat_data(data, dtype, extents)
        self.address, self.owner, self.offset = flat.address, flat.owner, flat.offset
        self.aval = aval_of(extents, flat.aval.dtype)
        if type(flat.owner) is np.ndarray:
            self.owner = flat.owner.reshape(extents)
            self.owner.flags.writeable = False

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
        """The elements as a read-only NumPy array, without a copy. It keeps the memory alive by itself.

        Example:
            >>> import quabla as qb
            >>> qb.array([1.0, 2.0]).numpy()
            array([1., 2.])
        """
        owner = self.owner
        if type(owner) is np.ndarray:
            return owner.view()  # of a view, unlike the owner itself, nobody can make the memory writeable
        aval = self.aval
        memory = memoryview(owner).toreadonly()
        return np.frombuffer(memory, aval.dtype.numpy, aval.size, self.offset).reshape(aval.shape)

    def item(self) -> Any:
        """The only element, as a Python float or bool.

        Raises:
            ShapeError: (a TypeError, too) there are several elements.

        Example:
            >>> import quabla as qb
            >>> qb.array([[2.5]]).item()
            2.5
        """
        return self._one("item()")

    def _one(self, what: str) -> Any:
        if self.aval.size != 1:
            raise SizeError(
                f"{what} needs an array of one element, got {self.aval}; "
                "select one by indexing, reduce the array, or use tolist() or numpy()"
            )
        return self.numpy().item()

    def tolist(self) -> Any:
        """The elements as nested Python lists; a bare float or bool for rank 0.

        Example:
            >>> import quabla as qb
            >>> qb.eye(2).tolist()
            [[1.0, 0.0], [0.0, 1.0]]
        """
        return self.numpy().tolist()

    def to_flat_list(self) -> list[Any]:
        """The elements in row-major order as one Python list.

        Example:
            >>> import quabla as qb
            >>> qb.eye(2).to_flat_list()
            [1.0, 0.0, 0.0, 1.0]
        """
        flat: list[Any] = self.numpy().reshape(-1).tolist()
        return flat

    # --- as a Python number ---------------------------------------------------------------------------------------

    def __float__(self) -> float:
        return float(self._one("float()"))

    def __int__(self) -> int:
        return int(self._one("int()"))

    def __complex__(self) -> complex:
        return complex(self._one("complex()"))

    def __bool__(self) -> bool:
        if self.aval.size != 1:
            raise SizeError(
                f"the truth of an array of several elements is ambiguous, got {self.aval}; use .any() or .all()"
            )
        return bool(self.numpy().item())

    def __index__(self) -> int:
        if self.aval.dtype.kind != "i" or self.aval.ndim:
            raise DtypeError(f"{self.aval} cannot be an index, a shape or a range; convert it with int(x)")
        return int(self.numpy().item())

    def __round__(self, ndigits: int | None = None) -> Any:
        return round(self._one("round()"), ndigits)

    def __format__(self, spec: str) -> str:
        return format(self._one(f"format {spec!r}"), spec) if spec else str(self)

    def __contains__(self, value: Any) -> bool:
        return value in self.numpy()

    # --- identity, text, copies -----------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        # NumPy would answer the reflected comparison elementwise.
        return False if isinstance(other, np.ndarray | np.generic) else NotImplemented

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        aval = self.aval
        body = np.array2string(self.numpy(), separator=", ", prefix="Tensor(")
        if aval.size > np.get_printoptions()["threshold"]:
            body += f", shape={aval.shape}"
        return f"Tensor({body})" if aval.dtype.name == "float64" else f"Tensor({body}, dtype={aval.dtype})"

    def __str__(self) -> str:
        return str(self.numpy())

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.numpy(), self.aval.weak)

    # --- NumPy and other array libraries --------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(
                    f"converting {self.aval.dtype} to {np.dtype(dtype)} needs a copy, but copy=False"
                )
            return array.astype(dtype)
        return array.copy() if copy else array

    def __buffer__(self, flags: int) -> memoryview:
        """The elements, read-only and without a copy: `memoryview(x)`, from Python 3.12 on."""
        array: Any = self.numpy()
        return memoryview(array)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # NumPy's operators call these ufuncs: with an array on the left, Python asks NumPy first.
        names = OPERATORS.get(ufunc)
        if names is not None and method == "__call__" and not kwargs:
            # Where NumPy compares, it has made an array of its scalars; those adopt the dtype of the other operand.
            compared = ufunc in COMPARISONS
            left, right = [x[()] if compared and isinstance(x, np.ndarray) else x for x in inputs]
            name, reflected = names
            return getattr(left, name)(right) if isinstance(left, Tensor) else getattr(right, reflected)(left)
        arrays = [x.numpy() if isinstance(x, Tensor) else x for x in inputs]
        if any(isinstance(x, Tensor) for x in kwargs.get("out") or ()):
            raise TypeError(f"numpy.{ufunc.__name__}: a Tensor is immutable and cannot be out=")
        if method == "at" and isinstance(inputs[0], Tensor):  # which writes into read-only memory, too
            raise TypeError(
                f"numpy.{ufunc.__name__}.at: a Tensor is immutable, so this would change nothing; use it on a copy of "
                "NumPy: a = numpy.array(x)"
            )
        return getattr(ufunc, method)(*arrays, **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function(*_as_numpy(args), **_as_numpy(kwargs))

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        array = self.numpy()
        if max_version is not None and max_version[0] >= 1 and not copy:
            return _read_only_capsule(array, stream, max_version, dl_device, copy)
        if copy is False:
            raise BufferError(
                "this consumer of DLPack cannot be told that the memory is read-only; "
                "allow a copy, or pass x.numpy().copy()"
            )
        return array.copy().__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the host


def _read_only_capsule(
    array: np.ndarray, stream: Any, max_version: Any, dl_device: Any, copy: bool | None
) -> Any:
    try:
        return array.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
    except TypeError:  # NumPy 2.0 knows the unversioned capsule only
        return array.copy().__dlpack__(stream=stream)


def _as_numpy(tree: Any) -> Any:
    """The arguments of a NumPy function with NumPy arrays in place of Quabla's."""
    if isinstance(tree, Array):
        return tree.numpy()  # type: ignore[attr-defined]
    if type(tree) in (list, tuple):
        return type(tree)([_as_numpy(x) for x in tree])
    if type(tree) is dict:
        return {k: _as_numpy(v) for k, v in tree.items()}
    return tree


_new = object.__new__
_LINE = 64  # bytes of a cache line, and of the widest vector
_ALIGNED = 1024  # bytes from which it matters where an array begins


def wrap(array: np.ndarray, weak: bool = False) -> Tensor:
    """A Tensor over a fresh NumPy array that nobody else will write to; copies only to make it contiguous."""
    return wrap_as(array, aval_of(array.shape, _BY_NUMPY[array.dtype], weak))


def wrap_as(array: np.ndarray, aval: ShapeDtype) -> Tensor:
    """A Tensor of the given type over a fresh NumPy array of that shape and dtype.

    Raises:
        ValueError: the array is of another type. Native code would read memory that is not there.
    """
    if array.shape != aval.shape or array.dtype != aval.dtype.numpy:
        raise ValueError(f"an array of {array.dtype} and shape {array.shape} is no {aval!r}")
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    array.flags.writeable = False
    out: Tensor = _new(Tensor)
    out.address = array.__array_interface__["data"][0]
    out.aval = aval
    out.owner = array
    out.offset = 0
    return out


def copied(array: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
    """A copy in C order, of another dtype if one is given, at a boundary of cache lines unless it is small.

    NumPy's own memory begins 16 bytes behind one, and vectors that lie across two lines take twice as long to load.
    """
    to = array.dtype if dtype is None else dtype
    nbytes = array.size * to.itemsize
    if nbytes < _ALIGNED:
        return np.array(array, dtype=to, order="C", copy=True)
    block = np.empty(nbytes + _LINE, np.uint8)
    first = -block.__array_interface__["data"][0] % _LINE
    out: np.ndarray = block[first : first + nbytes].view(to).reshape(array.shape)
    np.copyto(out, array, casting="unsafe")
    return out


def shared(x: Tensor, aval: ShapeDtype) -> Tensor:
    """A new Tensor of type `aval` over the memory of `x`."""
    out: Tensor = _new(Tensor)
    out.address, out.aval, out.owner, out.offset = x.address, aval, x.owner, x.offset
    return out


def _unpickled(array: np.ndarray, weak: bool) -> Tensor:
    # A copy: pickle may hand out an array over memory of its caller's.
    return wrap(copied(array), weak)
