"""From Python and NumPy data to Tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from quabla.arrays.tensor import Tensor, wrap, wrap_as
from quabla.dtypes import bool_, float64
from quabla.shapes import aval_of


def as_operand(x: Any, where: str) -> Any:
    if type(x) is bool:
        return wrap_as(np.array(x), aval_of((), bool_, True))
    if type(x) in (int, float):
        return wrap_as(np.array(x, np.float64), aval_of((), float64, True))
    if isinstance(x, Tensor):
        return x
    raise TypeError(f"{where}: cannot use {type(x).__name__}")


def asarray(x: Any, dtype: Any = None) -> Tensor:
    a = np.array(x)
    if a.dtype.kind in "iu":
        a = a.astype(float)
    return wrap(a)
