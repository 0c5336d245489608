"""Matrices that many rows are multiplied with, copied once into the order in which products read them.

A product reads a weight in columns of a few vectors, all terms of the sum one after another. In a large matrix stored
by rows each term of a column lies in another page. In the copy it follows the one before, whichever way the matrix lay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quabla.dtypes import dtype
from quabla.lowering.loops import Axis, Buffer, Kernel, Load, Product, Rows, Store, collapse

__all__ = ["copied", "packed"]

_COLUMN = 256  # bytes of a row of a column: four of the widest vectors
_FAR = 1024  # bytes between the terms of a sum from which the copy pays


def copied(p: Product, rows: Rows) -> Buffer | None:
    """The operand that all rows share, if a copy of it would pay where there are many passes."""
    free = p.n if rows.of == "m" else p.m
    if rows.of not in ("m", "n") or p.batch or len(free) != 1 or len(p.k) != 1:
        return None
    which = 2 if rows.of == "m" else 1
    (f,), (k,) = free, p.k
    apart = max(abs(f[which]), abs(k[which])) * p.dtype.itemsize
    if f.extent * p.dtype.itemsize < 2 * _COLUMN or k.extent < 64 or apart < _FAR:
        return None
    return p.right if which == 2 else p.left


def packed(
    p: Product, rows: Rows, temporary: Callable[[dtype, int], Buffer], known: dict[Any, Buffer]
) -> tuple[Kernel | None, list[Product]]:
    """The copy of the operand that all rows share, if it pays and is not there yet, and the products that read it.

    There are two where columns are left that fill no column of the copy: those are read where they are.

    Args:
        p: a product.
        rows: where its rows are: along m or n.
        temporary: makes a buffer.
        known: the copies so far.
    """
    buffer = copied(p, rows)
    if buffer is None:
        return None, [p]
    which, offset, (f,) = (2, p.right_offset, p.n) if rows.of == "m" else (1, p.left_offset, p.m)
    (k,) = p.k
    width = _COLUMN // p.dtype.itemsize
    count = f.extent // width
    key = buffer, offset, f[which], k[which], f.extent, k.extent
    kernel, copy = None, known.get(key)
    if copy is None:
        copy = known[key] = temporary(p.dtype, count * width * k.extent)
        load = Load(buffer, offset, (f[which] * width, k[which], f[which]))
        store = Store(0, copy, 0, (k.extent * width, width, 1))
        kernel = collapse(Kernel((count, k.extent, width), (load, store)))
    if which == 2:
        columns = Axis(count, 0, k.extent * width, f.out * width), Axis(width, 0, 1, f.out)
        whole = p._replace(n=columns, k=(k._replace(right=width),), right=copy, right_offset=0)
    else:
        columns = Axis(count, k.extent * width, 0, f.out * width), Axis(width, 1, 0, f.out)
        whole = p._replace(m=columns, k=(k._replace(left=width),), left=copy, left_offset=0)
    done = count * width
    if done == f.extent:
        return kernel, [whole]
    left = (f._replace(extent=f.extent - done),)
    at = offset + done * f[which]
    rest = p._replace(n=left, right_offset=at) if which == 2 else p._replace(m=left, left_offset=at)
    return kernel, [whole, rest._replace(out_offset=p.out_offset + done * f.out)]
