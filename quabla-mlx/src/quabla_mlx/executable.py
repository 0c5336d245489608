"""`MlxExecutable`: a tape, with the way in from Tensors and the way out."""

from __future__ import annotations

import weakref

import mlx.core as mx
import numpy as np

from quabla.arrays.tensor import Tensor, wrap_as
from quabla.backends.inputs import check_inputs
from quabla.shapes import ShapeDtype
from quabla_mlx.sessions import session
from quabla_mlx.tape import Tape
from quabla_mlx.target import Array, Target

__all__ = ["MlxExecutable", "leave"]

_LARGE = 1 << 16
"""Bytes from which on a copy costs more than to see that it is not needed."""


class MlxExecutable:
    """A compiled program. Called with Tensors it returns Tensors that own their memory; any thread may call it."""

    __slots__ = ("_kept", "_sending", "_shared", "in_avals", "out_avals", "run", "target", "text")

    entry = None

    def __init__(
        self, tape: Tape, in_avals: tuple[ShapeDtype, ...], out_avals: tuple[ShapeDtype, ...], target: Target
    ) -> None:
        self.run = tape.run
        self.text = tape.text
        self.in_avals = in_avals
        self.out_avals = out_avals
        self.target = target
        self._shared = tape.shared
        self._kept: list[tuple[weakref.ref[Tensor], Array] | None] = [None] * len(in_avals)
        self._sending = tuple([self._resend if a.nbytes >= _LARGE else self._send for a in in_avals])

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the program.

        Raises:
            ShapeError: where the number of inputs or a shape is another than compiled for.
            DtypeError: where a dtype is another.
        """
        avals = self.in_avals
        if len(inputs) != len(avals) or any([x.aval is not a for x, a in zip(inputs, avals, strict=True)]):
            check_inputs(inputs, avals)
        with session(self.target):
            outs = self.run(
                *[send(i, x) for i, (send, x) in enumerate(zip(self._sending, inputs, strict=True))]
            )
            mx.eval(outs)
        return tuple([leave(out, a, s) for out, a, s in zip(outs, self.out_avals, self._shared, strict=True)])

    def _send(self, i: int, x: Tensor) -> Array:
        """An input as an array that nobody but the graph will hold, so that MLX may use its memory for results."""
        return self.target.array(x.numpy())

    def _resend(self, i: int, x: Tensor) -> Array:
        """A large input: a Tensor never changes, so the array of the last one is good for as long as that lives."""
        kept = self._kept
        last = kept[i]
        if last is not None and last[0]() is x:
            return last[1]
        array = self.target.array(x.numpy())

        def forget(gone: weakref.ref[Tensor]) -> None:
            last = kept[i]
            if last is not None and last[0] is gone:
                kept[i] = None

        kept[i] = weakref.ref(x, forget), array
        return array


def leave(array: Array, aval: ShapeDtype, shared: bool = False) -> Tensor:
    """An evaluated array as a Tensor: over the same memory, to which nobody writes any more, unless that is shared."""
    out = np.asarray(array)
    if shared or out.dtype != aval.dtype.numpy:
        out = np.array(out, aval.dtype.numpy, order="C")
    return wrap_as(out, aval)
