"""`Target`: the device of MLX that programs run on, and what follows from it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from quabla.dtypes import bool_, dtype, float32, float64, int64

__all__ = ["Array", "Target", "default_target"]

Array = Any
"""An array of MLX. Its type stubs are not everywhere that this code is checked."""

_MLX = {float64: mx.float64, float32: mx.float32, bool_: mx.bool_, int64: mx.int64}
SWITCH = "QUABLA_MLX_COMPILE"


@dataclass(frozen=True)
class Target:
    """A device of MLX.

    Attributes:
        gpu: whether it is a GPU.
        double: whether float64 runs as float64; else it runs as float32.
        fused: whether `mx.compile` fuses kernels.
    """

    gpu: bool
    double: bool
    fused: bool

    def kind(self, d: dtype) -> Any:
        """The element type in which MLX computes."""
        return _MLX[self.computed(d)]

    def computed(self, d: dtype) -> dtype:
        """The same in Quabla's terms."""
        return float32 if d is float64 and not self.double else d

    def array(self, x: np.ndarray) -> Array:
        """A copy of a NumPy array on the device, in the element type in which MLX computes."""
        return mx.array(x, dtype=_OF_NUMPY[self.double][x.dtype.char])


_OF_NUMPY = tuple(
    {
        "d": mx.float64 if double else mx.float32,
        "f": mx.float32,
        "?": mx.bool_,
        **dict.fromkeys((np.dtype(np.int64).char, "q", "l"), mx.int64),
    }
    for double in (False, True)
)


def default_target() -> Target:
    """MLX's own default device.

    A GPU has no float64. There `mx.compile` fuses kernels; on a CPU it calls a C++ compiler, for seconds.
    """
    gpu = bool(mx.default_device() == mx.gpu)
    asked = os.environ.get(SWITCH, "")
    return Target(gpu=gpu, double=not gpu, fused=asked == "1" if asked in ("0", "1") else gpu)
