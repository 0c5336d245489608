"""Element types: `float32`, `float64`, `bool_`, and `int64` for positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from quabla.errors import DtypeError

__all__ = ["as_dtype", "bool_", "dtype", "float32", "float64", "int64"]


class dtype:  # noqa: N801 - the public name follows NumPy
    """An element type. There is one object for each, so compare with `is` or `==`.

    Attributes:
        name: "float64", "float32", "bool" or "int64".
        numpy: the NumPy dtype, native byte order.
        itemsize: bytes of one element.
        kind: "f", "b" or "i", as in NumPy.

    Example:
        >>> import quabla as qb
        >>> qb.float32.itemsize, str(qb.float32)
        (4, 'float32')
    """

    __slots__ = ("itemsize", "kind", "name", "numpy")

    def __init__(self, name: str, numpy: Any = None) -> None:
        if numpy is None:
            raise TypeError(
                f"dtype: cannot make one of {name!r}; use quabla.float64, float32, bool_ or int64, or a string where a "
                "dtype is wanted, as in quabla.zeros(3, 'float32')"
            )
        self.name = name
        self.numpy = np.dtype(numpy)
        self.itemsize = self.numpy.itemsize
        self.kind = self.numpy.kind

    def __repr__(self) -> str:
        return "quabla.bool_" if self.name == "bool" else f"quabla.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)


float64 = dtype("float64", np.float64)
float32 = dtype("float32", np.float32)
int64 = dtype("int64", np.int64)
bool_ = dtype("bool", np.bool_)

_BY_NAME: dict[Any, dtype] = {d.name: d for d in (float64, float32, int64, bool_)}
_BY_NAME["bool_"] = bool_
_BY_NUMPY: dict[Any, dtype] = {d.numpy: d for d in (float64, float32, int64, bool_)}


def as_dtype(obj: Any, where: str = "") -> dtype:
    """Return the Quabla dtype that `obj` names.

    Args:
        obj: a Quabla dtype, a name, a NumPy dtype or scalar type, or `float`, `bool`, `int`.
        where: the function that was given it, for the message.

    Returns:
        The one `dtype` object of that element type.

    Raises:
        DtypeError: for any other type, with the list of those supported.

    Example:
        >>> from quabla.dtypes import as_dtype
        >>> as_dtype("float32"), as_dtype(float)
        (quabla.float32, quabla.float64)
    """
    if isinstance(obj, dtype):
        return obj
    if isinstance(obj, str) and obj in _BY_NAME:
        return _BY_NAME[obj]
    named = f"{where}: " if where else ""
    if hasattr(obj, "dtype") and hasattr(obj, "shape") and not isinstance(obj, type):
        raise DtypeError(
            f"{named}the dtype is an array ({type(obj).__name__}); pass that of the array, as in dtype=x.dtype"
        )
    try:
        found = _BY_NUMPY.get(np.dtype(obj))
    except (TypeError, ValueError):  # a ValueError where it has an attribute `dtype` that is none of NumPy
        found = None
    if found is None or obj is None:
        raise DtypeError(f"{named}dtype {obj!r} is not supported; use float64, float32, bool_ or int64")
    return found
