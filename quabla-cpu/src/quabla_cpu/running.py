"""`cumsum`, `cumprod` and `recurrence`: one element after another along an axis, float32 in float64 registers."""

from __future__ import annotations

import math

from quabla.lowering.loops import Call
from quabla_cpu import text
from quabla_cpu.pointwise import register_type
from quabla_cpu.positions import elements, rows
from quabla_cpu.routines import address, routine
from quabla_cpu.text import Builder, Value
from quabla_cpu.writing import Code, load, memory_type, store

__all__: list[str] = []


def _next(b: Builder, op: str, before: Value, xs: list[Value]) -> Value:
    """The element after `before`, of operands at its place."""
    floating = text.is_float(before.type)
    plus, times = (b.fadd, b.fmul) if floating else (b.add, b.mul)
    if op == "cumsum":
        return plus(before, xs[0])
    if op == "cumprod":
        return times(before, xs[0])
    return plus(xs[1], times(xs[0], before))


@routine("cumsum")
@routine("cumprod")
@routine("recurrence")
def _running(code: Code, step: Call) -> None:
    b, node = code.b, step.node
    op, axis, reverse = node.op.name, node.params["axis"], node.params["reverse"]
    x = node.outputs[0]
    d, n, inner = x.dtype, x.shape[axis], math.prod(x.shape[axis + 1 :])
    kind = memory_type(d)
    bases = [address(code, buffer, offset) for buffer, offset in step.inputs]
    bases.append(address(code, step.outputs[0]))
    wide = "double" if d.kind == "f" else "i64"
    with rows(b, math.prod(x.shape[:axis])) as (outer,):
        first = b.mul(outer, text.number(n * inner), "nsw")

        def line(j: Value, lanes: int) -> None:
            start = b.add(first, j)
            if reverse:
                start = b.add(start, text.number((n - 1) * inner))
            *ins, out = [b.gep(kind, base, start) for base in bases]

            def operands(places: Value) -> list[Value]:
                found = [load(b, d, b.gep(kind, base, places), lanes) for base in ins]
                return [b.fpext(y, "double") for y in found] if d.kind == "f" else found

            def keep(y: Value, places: Value) -> None:
                to = register_type(d, lanes)
                store(b, d, b.fptrunc(y, text.element(to)) if y.type != to else y, b.gep(kind, out, places))

            total = operands(text.number(0))[-1]
            assert text.element(total.type) == wide
            keep(total, text.number(0))
            with b.carry(1, n, [total]) as (i, loop):
                places = b.mul(i, text.number(-inner if reverse else inner), "nsw")
                following = _next(b, op, loop.values[0], operands(places))
                keep(following, places)
                loop.update(following)

        elements(b, inner, code.vector_bytes // 8, line)
