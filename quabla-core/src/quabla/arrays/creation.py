"""New arrays from a shape or a range."""

from __future__ import annotations

from typing import Any

import numpy as np

from quabla.arrays.convert import as_array
from quabla.arrays.refusals import concrete_needed
from quabla.arrays.tensor import Tensor, wrap
from quabla.arrays.tracer import TraceTensor
from quabla.dtypes import as_dtype, float64
from quabla.errors import DtypeError, ShapeError, TracerError
from quabla.shapes import MOST_ELEMENTS, as_shape, broadcast_shapes, whole

__all__ = ["arange", "eye", "full", "full_like", "linspace", "ones", "ones_like", "zeros", "zeros_like"]


def zeros(shape: Any, dtype: Any = None) -> Tensor:
    """An array of zeros.

    Args:
        shape: an int or a tuple of ints, each at least 1.
        dtype: the element type, float64 unless given.

    Returns:
        A Tensor of that shape.

    Raises:
        ShapeError: an extent is zero or negative.
        DtypeError: an unsupported dtype, or extents that are not integers.

    Example:
        >>> import quabla as qb
        >>> qb.zeros((2, 3)).tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    return wrap(np.zeros(as_shape(shape, "zeros"), _numpy_dtype(dtype, "zeros")))


def ones(shape: Any, dtype: Any = None) -> Tensor:
    """An array of ones. Arguments and errors as for `zeros`.

    Example:
        >>> import quabla as qb
        >>> qb.ones(2, dtype=qb.float32)
        Tensor([1., 1.], dtype=float32)
    """
    return wrap(np.ones(as_shape(shape, "ones"), _numpy_dtype(dtype, "ones")))


_MISSING: Any = object()


def full(shape: Any, value: Any = _MISSING, dtype: Any = None, *, fill_value: Any = _MISSING) -> Any:
    """An array with all elements equal to `value`.

    Args:
        shape: an int or a tuple of ints, each at least 1.
        value: a number, or an array that broadcasts to `shape`.
        dtype: the element type; that of `value` unless given, where a Python number counts as float64.
        fill_value: NumPy's name for `value`.

    Returns:
        A Tensor of that shape, or a traced value if `value` is one.

    Raises:
        ShapeError: an extent is zero or negative, or `value` does not broadcast.
        DtypeError: an unsupported dtype.
        TypeError: `value` is missing or given twice.

    Example:
        >>> import quabla as qb
        >>> qb.full((2,), 0.5).tolist(), qb.full((2,), True).dtype
        ([0.5, 0.5], quabla.bool_)
    """
    return _filled("full", shape, value, dtype, fill_value)


def _filled(where: str, shape: Any, value: Any, dtype: Any, fill_value: Any) -> Any:
    if (value is _MISSING) == (fill_value is _MISSING):
        before = "shape" if where == "full" else "x"
        raise TypeError(f"{where}: give the value once, as in {where}({before}, value)")
    fill = as_array(fill_value if value is _MISSING else value, dtype, where)
    extents = as_shape(shape, where)
    if isinstance(fill, TraceTensor) or fill.shape:
        if broadcast_shapes(where, fill.shape, extents) != extents:
            raise ShapeError(f"{where}: a value of shape {fill.shape} does not broadcast to shape {extents}")
        return fill.broadcast_to(extents)
    return wrap(np.full(extents, fill.numpy(), fill.dtype.numpy))


def zeros_like(x: Any, dtype: Any = None) -> Tensor:
    """Zeros of the shape of `x`, and of its dtype unless another is given.

    Args:
        x: an array, or data that `asarray` takes. A traced one lends its shape and dtype to a concrete Tensor.
        dtype: the element type.

    Returns:
        A Tensor.

    Raises:
        DtypeError: an unsupported dtype, or `x` is no array.

    Example:
        >>> import quabla as qb
        >>> qb.zeros_like(qb.ones((2, 2))).tolist()
        [[0.0, 0.0], [0.0, 0.0]]
    """
    x = as_array(x, None, "zeros_like")
    return wrap(np.zeros(x.shape, _numpy_dtype(x.dtype if dtype is None else dtype, "zeros_like")))


def ones_like(x: Any, dtype: Any = None) -> Tensor:
    """Ones of the shape of `x`. Arguments and errors as for `zeros_like`.

    Example:
        >>> import quabla as qb
        >>> qb.ones_like(qb.zeros(2)).tolist()
        [1.0, 1.0]
    """
    x = as_array(x, None, "ones_like")
    return wrap(np.ones(x.shape, _numpy_dtype(x.dtype if dtype is None else dtype, "ones_like")))


def full_like(x: Any, value: Any = _MISSING, dtype: Any = None, *, fill_value: Any = _MISSING) -> Any:
    """An array of the shape and dtype of `x` with all elements equal to `value`.

    Args:
        x: an array, or data that `asarray` takes.
        value: a number, or an array that broadcasts to the shape of `x`.
        dtype: the element type, that of `x` unless given.
        fill_value: NumPy's name for `value`.

    Returns:
        A Tensor, or a traced value if `value` is one.

    Raises:
        ShapeError: `value` does not broadcast.
        DtypeError: an unsupported dtype, or `x` is no array.
        TypeError: `value` is missing or given twice.

    Example:
        >>> import quabla as qb
        >>> qb.full_like(qb.ones((2,), dtype=qb.float32), 3)
        Tensor([3., 3.], dtype=float32)
    """
    x = as_array(x, None, "full_like")
    return _filled("full_like", x.shape, value, x.dtype if dtype is None else dtype, fill_value)


def arange(start: Any, stop: Any = None, step: Any = 1.0, dtype: Any = None) -> Tensor:
    """The numbers `start, start + step, ...` before `stop`.

    Args:
        start: the first number; with `stop` left out, the end of a range from 0.
        stop: the end, not included. Rounding may let it in where `step` is not exact: `linspace` avoids that.
        step: the distance, not zero.
        dtype: the element type, float64 unless given.

    Returns:
        A Tensor of shape `(ceil((stop - start) / step),)`, as in NumPy.

    Raises:
        ShapeError: the range holds no number, a bound is not finite, or `step` is zero.

    Example:
        >>> import quabla as qb
        >>> qb.arange(3).tolist(), qb.arange(1.0, 0.0, -0.25).tolist()
        ([0.0, 1.0, 2.0], [1.0, 0.75, 0.5, 0.25])
    """
    if stop is None:
        start, stop = 0.0, start
    start, stop, step = (_number(x, "arange") for x in (start, stop, step))
    shown = f"arange({start:g}, {stop:g}, {step:g})"
    if not np.isfinite([start, stop, step]).all() or step == 0.0:
        raise ShapeError(f"{shown}: the bounds must be finite and the step not zero")
    if (stop - start) / step <= 0.0:
        raise ShapeError(f"{shown} is empty: stop must lie beyond start in the direction of step")
    if (stop - start) / step > MOST_ELEMENTS:
        raise ShapeError(f"{shown}: no memory can hold so many numbers")
    with np.errstate(all="ignore"):
        out = np.arange(start, stop, step, dtype=np.float64)
        return wrap(out.astype(_numpy_dtype(dtype, "arange"), copy=False))


def linspace(start: Any, stop: Any, num: Any, dtype: Any = None) -> Tensor:
    """`num` numbers at equal distances from `start` to `stop`, both included exactly.

    Args:
        start: the first number.
        stop: the last number; any finite pair will do, even where `stop - start` overflows.
        num: how many, at least 1; with 1 it is `start` alone.
        dtype: the element type, float64 unless given.

    Returns:
        A Tensor of shape `(num,)`.

    Raises:
        ShapeError: `num` is less than 1.
        DtypeError: `num` is not an integer.

    Example:
        >>> import quabla as qb
        >>> qb.linspace(0.0, 1.0, 5).tolist(), qb.linspace(1e308, -1e308, 3).tolist()
        ([0.0, 0.25, 0.5, 0.75, 1.0], [1e+308, 0.0, -1e+308])
    """
    count = _count(num, "linspace", "num")
    as_shape((count,), "linspace")
    start, stop = _number(start, "linspace"), _number(stop, "linspace")
    with np.errstate(all="ignore"):
        if np.isinf(np.float64(stop) - start) and np.isfinite([start, stop]).all() and count > 1:
            t = np.arange(count) / (count - 1)
            out = start * (1.0 - t) + stop * t  # the distance overflows; this weighted mean does not
        else:
            out = np.linspace(start, stop, count)
        return wrap(out.astype(_numpy_dtype(dtype, "linspace"), copy=False))


def eye(n: Any, m: Any = None, dtype: Any = None) -> Tensor:
    """The matrix with ones on its diagonal and zeros elsewhere.

    Args:
        n: the number of rows.
        m: the number of columns, `n` unless given.
        dtype: the element type, float64 unless given.

    Returns:
        A Tensor of shape `(n, m)`.

    Raises:
        ShapeError: `n` or `m` is less than 1.

    Example:
        >>> import quabla as qb
        >>> qb.eye(2, 3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    rows = _count(n, "eye", "n")
    columns = rows if m is None else _count(m, "eye", "m")
    as_shape((rows, columns), "eye")
    return wrap(np.eye(rows, columns, dtype=_numpy_dtype(dtype, "eye")))


def _numpy_dtype(dtype: Any, where: str) -> np.dtype[Any]:
    if type(dtype) is int and where in ("zeros", "ones"):
        raise DtypeError(
            f"{where}: dtype {dtype!r} is not supported; use float64, float32, bool_ or int64 "
            f"(the shape is one tuple, as in {where}((2, 3)))"
        )
    found: np.dtype[Any] = (float64 if dtype is None else as_dtype(dtype, where)).numpy
    return found


def _number(x: Any, where: str) -> float:
    if isinstance(x, str | bytes | bytearray | memoryview | complex | bool | np.bool_):
        raise DtypeError(f"{where}: expected a number, got {x!r:.80}")
    try:
        return float(x)
    except TracerError:
        raise concrete_needed(
            x,
            f"{where}: a number",
            "pass it as a Python number, marked static in quabla.jit(..., static_argnums=...)",
        ) from None
    except TypeError:
        raise DtypeError(f"{where}: expected a number, got {x!r:.80}") from None
    except OverflowError:
        raise DtypeError(f"{where}: an integer beyond the range of float64") from None


def _count(n: Any, where: str, name: str) -> int:
    try:
        count = whole(n)
    except TypeError as error:
        if isinstance(n, TraceTensor):
            raise
        raise DtypeError(f"{where}: {name} is an integer, got {n!r}") from error
    if count < 1:
        raise ShapeError(f"{where}: {name} must be at least 1, got {count}; empty arrays are not supported")
    return count


for _make in (zeros, ones, full, arange, linspace, eye):
    setattr(Tensor, _make.__name__, staticmethod(_make))
