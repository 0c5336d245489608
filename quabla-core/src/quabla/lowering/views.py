"""Shape ops as arithmetic on offsets and strides: a view reads a buffer in another order, without a copy."""

from __future__ import annotations

import math
from functools import lru_cache

__all__ = ["broadcast_strides", "contiguous", "reshape_strides", "sliced_bounds", "squeeze"]

Shape = tuple[int, ...]


@lru_cache(maxsize=1024)  # asked for the same few shapes all the time
def contiguous(shape: Shape) -> Shape:
    """The strides, in elements, of a row-major array."""
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


@lru_cache(maxsize=1024)
def squeeze(shape: Shape, strides: Shape) -> Shape:
    """The strides of the axes whose extent is not 1."""
    return tuple([s for n, s in zip(shape, strides, strict=True) if n != 1])


def broadcast_strides(shape: Shape, strides: Shape, wide: Shape, dims: Shape) -> Shape:
    """The strides of a view of `shape` after its axis i has become axis `dims[i]` of `wide`; 0 along new axes."""
    out = [0] * len(wide)
    for n, s, d in zip(shape, strides, dims, strict=True):
        if n == wide[d]:
            out[d] = s
    return tuple(out)


def sliced_bounds(bounds: tuple[int, int], start: int, step: int) -> tuple[int, int]:
    """The indices j for which `start + j * step` lies within bounds, as bounds."""
    low, high = bounds
    if step > 0:
        return -((start - low) // step), -((start - high) // step)
    return -((high - 1 - start) // -step), (start - low) // -step + 1


def reshape_strides(shape: Shape, strides: Shape, wanted: Shape) -> Shape | None:
    """The strides of a view of `shape` under another shape of the same size, or None where only a copy can give it."""
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    out: list[int] = []
    at = 0
    i = 0
    while i < len(wanted):
        if wanted[i] == 1:
            out.append(0)
            i += 1
            continue
        # The shortest runs of old and new axes that cover the same elements.
        j, new = i + 1, wanted[i]
        end, size = at + 1, old[at][0]
        while new != size:
            if new < size:
                new *= wanted[j]
                j += 1
            else:
                size *= old[end][0]
                end += 1
        for k in range(at, end - 1):
            if old[k][1] != old[k + 1][1] * old[k + 1][0]:
                return None
        last = old[end - 1][1]
        run = wanted[i:j]
        out.extend([last * math.prod(run[k + 1 :]) for k in range(len(run))])
        at, i = end, j
    return tuple(out)
