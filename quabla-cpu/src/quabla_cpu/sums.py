"""What a panel does with the sums of its spans, as functions that are compiled once: filling them, and adding them up.

A network has a sum for every weight. As loops of the program each would be compiled on its own; as calls they are a
few instructions each.
"""

from __future__ import annotations

from functools import lru_cache

from quabla.dtypes import dtype
from quabla.lowering.loops import Kernel, Load, Reduce, Scalar, Store
from quabla_cpu import text
from quabla_cpu.executable import PRODUCT
from quabla_cpu.text import Builder, Value
from quabla_cpu.writing import Code, load, memory_type, store

__all__ = ["call_add", "call_fill"]


def call_fill(code: Code, kernel: Kernel) -> bool:
    """Write a kernel that stores one number everywhere as a call, if it is one of floating numbers."""
    if len(kernel.body) != 2 or len(kernel.domain) > 1:
        return False
    scalar, put = kernel.body
    if not (isinstance(scalar, Scalar) and isinstance(put, Store) and scalar.dtype.kind == "f"):
        return False
    if put.offset or put.strides not in ((), (1,)):
        return False
    element = memory_type(scalar.dtype)
    symbol = code.function(_fill(code.b.module.attributes, code.vector_bytes, scalar.dtype))
    count = kernel.domain[0] if kernel.domain else 1
    number = text.constant(element, scalar.value)
    code.b.call(symbol, "void", code.pointers[put.buffer], text.number(count), number, attributes="nounwind")
    return True


def call_add(code: Code, kernel: Kernel) -> bool:
    """Write a kernel that adds up the rows of a matrix as a call, if that is what it is."""
    if len(kernel.body) != 2 or len(kernel.domain) != 2:
        return False
    get, put = kernel.body
    if not (isinstance(get, Load) and isinstance(put, Reduce)) or put.op != "sum" or put.more or get.bounds:
        return False
    count, size = kernel.domain
    plain = get.strides == (size, 1) and put.strides == (0, 1) and not get.offset and not put.offset
    if not plain or put.axes != frozenset((0,)) or get.buffer.dtype.kind != "f":
        return False
    types = get.buffer.dtype, put.buffer.dtype
    symbol = code.function(_add(code.b.module.attributes, code.vector_bytes, *types))
    operands = code.pointers[get.buffer], code.pointers[put.buffer], text.number(count), text.number(size)
    code.b.call(symbol, "void", *operands, attributes="nounwind")
    code.forget(put.buffer)
    return True


def _function(attributes: str, parameters: list[str | tuple[str, str]]) -> Builder:
    return text.Module(attributes).function(PRODUCT, "void", parameters)


@lru_cache(maxsize=16)
def _fill(attributes: str, vector_bytes: int, d: dtype) -> str:
    """`(to, count, number)`"""
    element = memory_type(d)
    b = _function(attributes, ["ptr", "i64", element])
    to, count, number = b.arguments
    lanes = vector_bytes // d.itemsize
    wide = b.splat(number, lanes)
    whole = b.and_(count, text.number(-lanes))
    with b.loop(0, whole, lanes) as i:
        store(b, d, wide, b.gep(element, to, i))
    with b.loop(whole, count) as i:
        store(b, d, number, b.gep(element, to, i))
    b.ret()
    return b.module.text()


@lru_cache(maxsize=16)
def _add(attributes: str, vector_bytes: int, part: dtype, out: dtype) -> str:
    """`(parts, out, count, size)`: in float64, and rounded once, as sums are everywhere."""
    b = _function(attributes, [("ptr", "noalias readonly"), ("ptr", "noalias"), "i64", "i64"])
    parts, to, count, size = b.arguments
    lanes = vector_bytes // 8

    def column(j: Value, lanes: int) -> None:
        zero = text.constant(text.vector("double", lanes), -0.0)
        with b.carry(0, count, [zero]) as (i, loop):
            at = b.gep(memory_type(part), parts, b.add(b.mul(i, size, "nsw"), j, "nsw"))
            x = load(b, part, at, lanes)
            loop.update(b.fadd(loop.values[0], b.fpext(x, "double")))
        total = loop.results[0]
        store(
            b, out, total if out.itemsize == 8 else b.fptrunc(total, "float"), b.gep(memory_type(out), to, j)
        )

    whole = b.and_(size, text.number(-lanes))
    with b.loop(0, whole, lanes) as j:
        column(j, lanes)
    with b.loop(whole, size) as j:
        column(j, 1)
    b.ret()
    return b.module.text()
