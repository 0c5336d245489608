"""A loop of a routine whose rounds are independent, divided among threads where it is long enough.

As with panels, how it is divided depends on sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quabla.lowering.work import WORTH
from quabla_cpu import text, threaded
from quabla_cpu.text import Value
from quabla_cpu.writing import Code

__all__ = ["divided", "vectors"]

_MOST = 16  # spans: enough for threads that are not equally fast


def divided(
    code: Code,
    pointers: Sequence[Value],
    count: int,
    cost: float,
    write: Callable[[Code, Sequence[Value], Value], None],
) -> None:
    """Write a loop.

    Args:
        code: the function being written.
        pointers: what a round needs to know, addresses all of them.
        count: how many rounds there are.
        cost: about how many nanoseconds a round takes.
        write: writes the round of a number, into the function and with the addresses that it is given.
    """
    b = code.b
    spans = min(_MOST, count, int(count * cost / WORTH))
    if spans < 2:
        with b.loop(0, count) as i:
            write(code, pointers, i)
        return
    name = f"span{len(b.module.functions)}"
    span, there, index, _slot = threaded.function(code, name, len(pointers))
    size = -(-count // spans)
    first = span.b.mul(index, text.number(size), "nsw")
    with span.b.loop(
        first, span.b.intrinsic("smin", span.b.add(first, text.number(size)), text.number(count))
    ) as i:
        write(span, there, i)
    span.b.ret()
    threaded.call(code, name, pointers, -(-count // size))


def vectors(
    code: Code,
    pointers: Sequence[Value],
    count: int,
    lanes: int,
    cost: float,
    write: Callable[[Code, Sequence[Value], Value, int], None],
) -> None:
    """The same for elements that go `lanes` at a time: `write(code, pointers, first, lanes)`, one by one at the end."""
    full = count // lanes

    def some(inner: Code, there: Sequence[Value], i: Value) -> None:
        write(inner, there, inner.b.mul(i, text.number(lanes), "nsw"), lanes)

    divided(code, pointers, full, cost * lanes, some)
    if full * lanes < count:
        with code.b.loop(full * lanes, count) as last:
            write(code, pointers, last, 1)
