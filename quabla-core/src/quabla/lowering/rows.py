"""Which axis of a step counts the rows of arrays, what the step touches along it, and the step for some rows only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quabla.lowering.loops import Apply, Axis, Buffer, Kernel, Load, Product, Reduce, Rows, Scalar

__all__ = ["Access", "accesses", "rows_of", "take"]

_PRODUCT_AXES = ("batch", "m", "n", "k")


class Access(NamedTuple):
    """How a step touches a buffer, seen by rows.

    Attributes:
        buffer: what it touches.
        written: whether it writes.
        pace: how many elements on the next row is; 0 where all rows touch the same.
        within: whether the rows are the consecutive parts of the whole buffer, each of `pace` elements, and a row
            touches nothing but its own part.
        sums: whether it is a sum over rows.
        outermost: whether the rows of such a sum are outside of all axes that are kept, in their order and in memory.
    """

    buffer: Buffer
    written: bool
    pace: int
    within: bool
    sums: bool = False
    outermost: bool = False


def rows_of(step: Kernel | Product, count: int) -> Iterator[Rows]:
    """The axes of a step that may count `count` rows."""
    if isinstance(step, Kernel):
        bounded = [e.bounds for e in step.body if isinstance(e, Load) and e.bounds]
        for a, n in enumerate(step.domain):
            if n % count == 0 and all([bounds[a] == (0, n) for bounds in bounded]):
                yield Rows("domain", a, n // count)
        return
    for name in _PRODUCT_AXES:
        for a, axis in enumerate(getattr(step, name)):
            if axis.extent % count == 0:
                yield Rows(name, a, axis.extent // count)


def accesses(step: Kernel | Product, rows: Rows, count: int) -> list[Access]:
    """What a step touches, if its rows are there. Nothing is said of a store that all rows make: see `Access.sums`."""
    if isinstance(step, Kernel):
        return _kernel_accesses(step, rows, count)
    return _product_accesses(step, rows, count)


def _kernel_accesses(kernel: Kernel, rows: Rows, count: int) -> list[Access]:
    a, per = rows.axis, rows.per
    extents = (*kernel.domain[:a], per, *kernel.domain[a + 1 :])
    found = []
    for e in kernel.body:
        if isinstance(e, (Apply, Scalar)):
            continue
        if isinstance(e, Reduce) and a in e.axes:
            found.append(Access(e.buffer, True, 0, False, True, _outermost(kernel, a, e.axes)))
            continue
        pace = e.strides[a] * per
        bounded = isinstance(e, Load) and bool(e.bounds)
        within = not bounded and _within(e.buffer, e.offset, extents, e.strides, pace, count)
        found.append(Access(e.buffer, not isinstance(e, Load), pace, within))
    return found


def _outermost(kernel: Kernel, a: int, summed: frozenset[int]) -> bool:
    kept = [b for b in range(len(kernel.domain)) if b not in summed]
    loads = [e.strides for e in kernel.body if isinstance(e, Load) and e.strides[a]]
    return all([b > a and all([abs(s[b]) <= abs(s[a]) for s in loads]) for b in kept])


def _product_accesses(p: Product, rows: Rows, count: int) -> list[Access]:
    axes: list[Axis] = []
    for name in _PRODUCT_AXES:
        if name == rows.of:
            at = len(axes) + rows.axis
        axes.extend(getattr(p, name))
    mine = axes[at]
    extents = [axis.extent for axis in axes]
    extents[at] = rows.per
    found = []
    for buffer, offset, which in (
        (p.left, p.left_offset, 1),
        (p.right, p.right_offset, 2),
        (p.out, p.out_offset, 3),
    ):
        written = which == 3
        if written and rows.of == "k":
            found.append(Access(buffer, True, 0, False, True, p.outermost))
            continue
        pace = mine[which] * rows.per
        within = _within(buffer, offset, extents, [axis[which] for axis in axes], pace, count)
        found.append(Access(buffer, written, pace, within))
    return found


def _within(
    buffer: Buffer, offset: int, extents: Sequence[int], strides: Sequence[int], pace: int, count: int
) -> bool:
    if pace * count != buffer.size:
        return False
    low = high = offset
    for n, s in zip(extents, strides, strict=True):
        if s < 0:
            low += (n - 1) * s
        else:
            high += (n - 1) * s
    return low >= 0 and high < pace


def take(step: Kernel | Product, rows: Rows, count: int, parts: dict[Buffer, Buffer]) -> Kernel | Product:
    """The step for `count` rows; sums over rows are added to the buffer that `parts` has for theirs."""
    if isinstance(step, Kernel):
        domain = tuple([count * rows.per if a == rows.axis else n for a, n in enumerate(step.domain)])
        body = tuple(
            [
                e._replace(buffer=parts[e.buffer], more=True)
                if isinstance(e, Reduce) and rows.axis in e.axes
                else e._replace(
                    bounds=(*e.bounds[: rows.axis], (0, count * rows.per), *e.bounds[rows.axis + 1 :])
                )
                if isinstance(e, Load) and e.bounds
                else e
                for e in step.body
            ]
        )
        return Kernel(domain, body)

    def shorter(name: str) -> tuple[Axis, ...]:
        axes: tuple[Axis, ...] = getattr(step, name)
        if name != rows.of:
            return axes
        return tuple(
            [x._replace(extent=count * rows.per) if a == rows.axis else x for a, x in enumerate(axes)]
        )

    some = step._replace(batch=shorter("batch"), m=shorter("m"), n=shorter("n"), k=shorter("k"))
    return some._replace(out=parts[step.out], more=True) if rows.of == "k" else some
