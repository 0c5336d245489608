"""From Python and NumPy data to Tensors.

One table decides on dtypes: float64, float32 and bool keep theirs, integers become float64, Python data becomes float64
unless all of it is bool, and everything else is refused with what to write instead. Importing always copies.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quabla.arrays.refusals import user_line
from quabla.arrays.tensor import Tensor, copied, shared, wrap, wrap_as
from quabla.arrays.tracer import TraceTensor
from quabla.arrays.view import TensorView
from quabla.dtypes import as_dtype, bool_, dtype, float32, float64, int64
from quabla.errors import DtypeError, ShapeError, TracerError
from quabla.shapes import aval_of

__all__ = ["array", "as_array", "as_operand", "asarray", "flat_data"]

_KEPT = {d.numpy for d in (float64, float32, bool_)}
_FLOAT = aval_of((), float64)
_WEAK_FLOAT = aval_of((), float64, True)
_WEAK_BOOL = aval_of((), bool_, True)
_ACCEPTED = (
    "accepted are numbers, nested lists or tuples of numbers, NumPy arrays, and objects with __array__, the buffer "
    "protocol or DLPack"
)


def array(obj: Any, dtype: Any = None) -> Any:
    """A new Tensor with the elements of `obj`, always copied; of a Tensor, a new one over the same immutable memory.

    Args:
        obj: a number, nested lists or tuples of numbers, a NumPy array or scalar, a Tensor, or an object with
            `__array__`, the buffer protocol or DLPack.
        dtype: the element type. Unless given, float64, float32 and bool NumPy data keep theirs, integers become
            float64, and Python data becomes float64 unless all of it is bool.

    Returns:
        A Tensor of the shape of `obj`; of a traced value, that value.

    Raises:
        DtypeError: data of another type (float16, complex, str, objects), foreign byte order, or masked entries.
        ShapeError: empty data, or lists whose lengths differ.
        TracerError: a list that holds traced values; `quabla.stack` joins them.

    Example:
        >>> import quabla as qb
        >>> qb.array([[1, 2], [3, 4]])
        Tensor([[1., 2.],
                [3., 4.]])
        >>> qb.array([True, False]).dtype, qb.array(2.0, dtype=qb.float32).dtype
        (quabla.bool_, quabla.float32)
    """
    made = as_array(obj, dtype, "array")
    return (
        shared(obj, aval_of(obj.aval.shape, obj.aval.dtype)) if made is obj and type(obj) is Tensor else made
    )


def asarray(obj: Any, dtype: Any = None) -> Any:
    """`obj` as a Tensor: itself if it is one of that dtype, else as `array` makes it.

    Args:
        obj: what `array` takes.
        dtype: the element type; unless given, as for `array`.

    Returns:
        A Tensor; a traced value stays one, converted to `dtype`.

    Raises:
        DtypeError: as for `array`.
        ShapeError: as for `array`.
        TracerError: as for `array`.

    Example:
        >>> import numpy as np
        >>> import quabla as qb
        >>> x = qb.asarray(np.array([1.0, 2.0], np.float32))
        >>> x.dtype, qb.asarray(x) is x
        (quabla.float32, True)
    """
    return as_array(obj, dtype, "asarray")


def flat_data(data: Any, dtype: Any, shape: tuple[int, ...]) -> Tensor:
    """The data of `Tensor(shape, data)`, float64 unless a dtype is given: a vector with the elements of that shape."""
    made = as_array(data, float64 if dtype is None else dtype, "Tensor")
    if isinstance(made, TraceTensor):
        raise TracerError(
            f"Tensor: the data is a traced value {made.aval}; quabla.reshape gives it a shape{user_line()}"
        )
    count = math.prod(shape)
    if made.ndim != 1 or made.size != count:
        raise ShapeError(
            f"Tensor: a Tensor of shape {shape} is made of a flat sequence of {count} elements, got data of shape "
            f"{made.shape}; quabla.array takes nested lists and arrays as they are"
        )
    return made if made is not data else shared(made, made.aval)


def as_operand(x: Any, where: str) -> Any:
    """What a user passed to the op `where`, as an array. Python numbers (and NumPy's float64 and integers) are weak.

    Raises:
        DtypeError: `x` is neither an array nor a number.
    """
    if type(x) is bool:
        return wrap_as(np.array(x), _WEAK_BOOL)
    if isinstance(x, Tensor | TraceTensor):
        return x
    if isinstance(x, TensorView):
        return x.to_tensor()
    # numpy.float64 is a Python float, and a NumPy integer has no floating dtype of its own to insist on.
    if isinstance(x, int | float | np.integer):
        return wrap_as(np.array(_float(x, where)), _WEAK_FLOAT)
    if isinstance(x, np.ndarray | np.generic):
        return as_array(x, None, where)
    remedy = "convert it with quabla.asarray first" if _looks_like_data(x) else "pass an array or a number"
    raise DtypeError(f"{where}: a {type(x).__name__} is not an operand; {remedy}")


def _looks_like_data(x: Any) -> bool:
    return (
        isinstance(x, list | tuple | range | memoryview)
        or hasattr(x, "__array__")
        or hasattr(x, "__dlpack__")
    )


def _float(x: Any, where: str) -> float:
    try:
        return float(x)
    except OverflowError:
        raise DtypeError(f"{where}: the integer {_short(x)} is beyond the range of float64") from None


def as_array(obj: Any, dtype: Any, where: str) -> Any:
    """What `asarray` returns, for the function `where`."""
    to = None if dtype is None else as_dtype(dtype, where)
    kind = type(obj)
    if kind is np.ndarray:
        return _from_numpy(obj, to, where)
    if isinstance(obj, TensorView):
        obj = obj.to_tensor()
    if isinstance(obj, Tensor):
        return obj if to is None or (to is obj.aval.dtype and not obj.aval.weak) else _cast(obj, to)
    if isinstance(obj, TraceTensor):
        return obj if to is None or to is obj.aval.dtype else obj.astype(to)  # type: ignore[attr-defined]
    if kind is float and to is None:
        return wrap_as(np.array(obj), _FLOAT)
    if kind is bool:
        return _from_numpy(np.array(obj), to, where)
    if isinstance(obj, int | float) and not isinstance(obj, np.generic):
        if to is int64 and isinstance(obj, int) and -(2**63) <= obj < 2**64:
            return _from_numpy(np.array(int(obj)), to, where)
        return _from_numpy(np.array(_float(obj, where)), to, where)
    if isinstance(obj, list | tuple | range):
        return _from_lists(obj, to, where)
    return _from_foreign(obj, to, where)


def _cast(x: Tensor, to: dtype) -> Tensor:
    if to is x.aval.dtype:
        return shared(x, aval_of(x.aval.shape, to))
    with np.errstate(all="ignore"):
        return wrap(x.numpy().astype(to.numpy))


def _from_numpy(a: np.ndarray, to: dtype | None, where: str) -> Tensor:
    """A copy of `a`, by the table of dtypes."""
    _check_numpy(a, where)
    given = a.dtype
    if a.size == 0:
        raise ShapeError(
            f"{where}: the array is empty, its shape is {a.shape}; every extent must be at least 1"
        )
    if to is None:
        target = given if given in _KEPT else float64.numpy
    else:
        target = to.numpy
        if to is int64 and given.kind == "f":
            raise DtypeError(f"{where}: floating data has no exact int64 form; round and convert it in NumPy")
        if to is int64 and given == np.uint64 and a.max() >= 2**63:
            raise DtypeError(f"{where}: the integer {a.max()} is beyond the range of int64")
    with np.errstate(all="ignore"):
        return wrap(copied(a, target))


def _check_numpy(a: Any, where: str) -> None:
    """Refuse NumPy data of a type that has no counterpart here, by itself or in a list."""
    given = a.dtype
    if not given.isnative:
        raise DtypeError(
            f"{where}: dtype {given.str!r} is not in native byte order; "
            "convert it first, as in a.astype(a.dtype.newbyteorder('='))"
        )
    if given not in _KEPT and given.kind not in "iu":
        if given.kind == "f":
            remedy = f"convert it first, as in a.astype(numpy.float{32 if given.itemsize < 4 else 64})"
        elif given.kind == "c":
            remedy = "complex numbers are not supported; pass the real and the imaginary part separately"
        elif given.kind == "O":
            remedy = f"elements are Python objects; {_ACCEPTED}"
        else:
            remedy = _ACCEPTED
        raise DtypeError(f"{where}: dtype {given} is not supported; {remedy}")
    if isinstance(a, np.ma.MaskedArray):
        raise DtypeError(
            f"{where}: masked arrays are not supported; fill the entries, as in a.filled(numpy.nan)"
        )


def _from_foreign(obj: Any, to: dtype | None, where: str) -> Tensor:
    """An object of another library, a NumPy scalar, or a buffer."""
    if isinstance(obj, np.ndarray | np.generic):
        return _from_numpy(obj if isinstance(obj, np.ma.MaskedArray) else np.asarray(obj), to, where)
    if hasattr(obj, "__array__") or hasattr(obj, "__array_interface__"):
        try:
            there = np.asarray(obj)
        except Exception as error:
            raise DtypeError(
                f"{where}: this {type(obj).__name__} does not turn into a NumPy array: {error}"
            ) from error
        return _from_numpy(there, to, where)
    if not isinstance(obj, str):
        try:
            buffer = memoryview(obj)
        except TypeError:
            pass
        else:
            return _from_numpy(np.asarray(buffer), to, where)
    if hasattr(obj, "__dlpack__"):
        try:
            there = np.from_dlpack(obj)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise DtypeError(
                f"{where}: cannot import this {type(obj).__name__} through DLPack ({error}); copy it to the host first"
            ) from error
        return _from_numpy(there, to, where)
    remedy = "pass list(...) of it" if hasattr(obj, "__iter__") and not isinstance(obj, str) else _ACCEPTED
    raise DtypeError(f"{where}: cannot make an array of {_short(obj)}, a {type(obj).__name__}; {remedy}")


_PLAIN = frozenset((float, int, bool, range))
_NESTED = frozenset((list, tuple))


def _check_elements(obj: Any, where: str, depth: int = 0) -> None:
    """Refuse what NumPy would take out of a list in silence: masked arrays, and arrays of another byte order."""
    kinds = set(map(type, obj))
    if kinds <= _PLAIN or depth > 64:
        return
    for element in obj:
        if type(element) in _NESTED:
            _check_elements(element, where, depth + 1)
        elif isinstance(element, np.ndarray):
            _check_numpy(element, where)


def _from_lists(obj: Any, to: dtype | None, where: str) -> Tensor:
    _check_elements(obj, where)
    try:
        made = np.array(obj)
    except TracerError:
        raise TracerError(
            f"{where}: the list holds traced values, which have no elements while their function is traced; "
            f"join them with quabla.stack or quabla.concat{user_line()}"
        ) from None
    except (ValueError, TypeError, OverflowError):
        made = None
    if made is None or made.dtype.kind not in "biuf" or made.size == 0 or made.dtype.itemsize in (2, 16):
        made = _explained(obj, made, where)
    exact = to is int64 and made.dtype.kind in "iu"
    if made.dtype.kind != "b" and made.dtype != np.float64 and not exact:
        made = made.astype(np.float64)
    return wrap(made) if to is None else _from_numpy(made, to, where)


def _explained(obj: Any, made: np.ndarray | None, where: str) -> np.ndarray:
    """Raise the error that says why NumPy made no numbers of `obj`; return them where its choice of dtype erred."""
    shape = _list_shape(obj)
    _check_lists(obj, shape, (), where)
    if made is None or made.dtype.kind == "O":  # integers beyond 64 bits
        try:
            made = np.array(obj, np.float64)
        except (OverflowError, ValueError, TypeError) as error:
            raise DtypeError(f"{where}: cannot make an array of this {type(obj).__name__}: {error}") from None
    return made


def _list_shape(obj: Any) -> tuple[int, ...]:
    """The shape that the first elements imply."""
    shape: list[int] = []
    while isinstance(obj, list | tuple | range):
        shape.append(len(obj))
        if not len(obj) or len(shape) > 64:
            break
        obj = obj[0]
    return tuple(shape)


def _check_lists(obj: Any, shape: tuple[int, ...], path: tuple[int, ...], where: str) -> None:
    """Raise the error for the first element that does not belong."""
    at = "the argument" + "".join(f"[{i}]" for i in path)
    depth = len(path)
    if isinstance(obj, list | tuple | range):
        if depth >= 64:
            raise ShapeError(f"{where}: lists nested deeper than 64 levels")
        if depth >= len(shape) or len(obj) != shape[depth]:
            expected = f"a list of {shape[depth]}" if depth < len(shape) else "a number"
            raise ShapeError(
                f"{where}: the lists are ragged at level {depth}: {at} is a list of {len(obj)} where its first "
                f"neighbour is {expected}; lists of one level must have the same length"
            )
        if not len(obj):
            raise ShapeError(
                f"{where}: {at} is an empty {type(obj).__name__}; every extent must be at least 1"
            )
        for i, element in enumerate(obj):
            _check_lists(element, shape, (*path, i), where)
        return
    if isinstance(obj, int | float) and not isinstance(obj, np.generic):
        if depth < len(shape):
            raise ShapeError(
                f"{where}: the lists are ragged at level {depth}: {at} is a number where its first neighbour is "
                f"a list of {shape[depth]}; lists of one level must have the same length"
            )
        _float(obj, where)
        return
    if hasattr(obj, "__array__"):
        _from_numpy(np.asarray(obj), None, where)  # refuses float16, complex and their like by name
        return
    raise DtypeError(
        f"{where}: {at} is {_short(obj)}, a {type(obj).__name__}; lists hold numbers, or lists of them"
    )


def _short(obj: Any) -> str:
    try:
        text = repr(obj)
    except ValueError:  # an integer of too many digits
        text = hex(obj)
    return text if len(text) <= 40 else text[:37] + "..."
