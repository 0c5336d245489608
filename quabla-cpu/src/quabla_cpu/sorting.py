"""`argsort`: a stable merge sort of each line.

The elements of a line become integers that are ordered as the elements are, NaN last and -0.0 equal to 0.0. These keys
are sorted together with their positions: short runs by insertion, then runs are merged two by two between two buffers.
"""

from __future__ import annotations

from quabla.dtypes import dtype
from quabla.ir.program import Node
from quabla.lowering.buffers import aligned
from quabla.lowering.loops import Call
from quabla_cpu import text
from quabla_cpu.executable import PRODUCT
from quabla_cpu.positions import rows
from quabla_cpu.routines import address, routine
from quabla_cpu.text import Builder, Value
from quabla_cpu.writing import Code, load, memory_type

__all__: list[str] = []

_RUN = 16  # elements of a run that is sorted by insertion


def _scratch(node: Node) -> int:
    """Two arrays of keys and one of positions; the other positions are the result."""
    return 3 * aligned(8 * node.inputs[0].shape[-1])


@routine("argsort", _scratch)
def _argsort(code: Code, step: Call) -> None:
    b, x = code.b, step.node.inputs[0]
    n = x.shape[-1]
    assert step.scratch is not None
    memory = address(code, step.scratch)
    keys, other_keys, other = (b.gep("i8", memory, i * aligned(8 * n)) for i in range(3))
    source, out = address(code, *step.inputs[0]), address(code, step.outputs[0])
    symbol = code.function(_module(b.module.attributes))
    with rows(b, x.size // n) as (line,):
        start = b.mul(line, text.number(n))
        with b.loop(0, n) as j:
            element = load(b, x.dtype, b.gep(memory_type(x.dtype), source, b.add(start, j)))
            b.store(_key(b, x.dtype, element), b.gep("i64", keys, j))
        b.call(
            symbol,
            "void",
            keys,
            b.gep("i64", out, start),
            other_keys,
            other,
            text.number(n),
            attributes="nounwind",
        )


def _key(b: Builder, d: dtype, x: Value) -> Value:
    if d.kind == "b":
        return b.zext(x, "i64")
    if d.kind == "i":
        return x
    x = b.fadd(b.fpext(x, "double"), text.constant("double", 0.0))  # of the zeros one
    bits = b.bitcast(x, "i64")
    # The bits of a float are its magnitude behind its sign: negative ones run the other way.
    flipped = b.xor(bits, b.lshr(b.ashr(bits, text.number(63)), text.number(1)))
    return b.select(b.fcmp("uno", x, x), text.number(2**63 - 1), flipped)


def _module(attributes: str) -> str:
    """The module of `void (ptr keys, ptr out, ptr other_keys, ptr other, i64 n)`."""
    module = text.Module(attributes)
    _write_runs(module)
    _write_merge(module)
    b = module.function(PRODUCT, "void", [("ptr", "noalias")] * 4 + ["i64"])
    keys, out, other_keys, other, n = b.arguments
    # An odd number of merges begins in the other buffers, to end in the result.
    with b.while_([text.number(_RUN), text.constant("i1", 0)]) as loop:
        width, odd = loop.values
        loop.proceed(b.icmp("slt", width, n))
        loop.update(b.add(width, width), b.not_(odd))
    odd = loop.results[1]
    here_k, here_i = b.select(odd, other_keys, keys), b.select(odd, other, out)
    there_k, there_i = b.select(odd, keys, other_keys), b.select(odd, out, other)
    b.call("runs", "void", keys, here_k, here_i, n)
    with b.while_([text.number(_RUN), here_k, here_i, there_k, there_i]) as merges:
        width, *buffers = merges.values
        merges.proceed(b.icmp("slt", width, n))
        b.call("merge", "void", *buffers, n, width)
        merges.update(b.add(width, width), *buffers[2:], *buffers[:2])
    b.ret()
    return module.text()


def _write_runs(module: text.Module) -> None:
    """`void (ptr keys, ptr to_keys, ptr to, i64 n)`: sort runs of elements by insertion; `to_keys` may be `keys`."""
    b = module.function("runs", "void", ["ptr", "ptr", "ptr", "i64"], linkage="internal")
    keys, to_keys, to, n = b.arguments
    with b.loop(0, n, _RUN) as low:
        high = b.intrinsic("smin", b.add(low, text.number(_RUN)), n)
        with b.loop(low, high) as j:
            key = b.load("i64", b.gep("i64", keys, j))
            with b.while_([j]) as loop:
                (p,) = loop.values
                before = b.intrinsic("smax", b.sub(p, text.number(1)), low)
                larger = b.icmp("sgt", b.load("i64", b.gep("i64", to_keys, before)), key)
                loop.proceed(b.and_(b.icmp("sgt", p, low), larger))
                for base in (to_keys, to):
                    b.store(b.load("i64", b.gep("i64", base, before)), b.gep("i64", base, p))
                loop.update(before)
            (p,) = loop.results
            b.store(key, b.gep("i64", to_keys, p))
            b.store(j, b.gep("i64", to, p))
    b.ret()


def _write_merge(module: text.Module) -> None:
    """`void (ptr keys, ptr from, ptr to_keys, ptr to, i64 n, i64 width)`: merge neighbouring sorted runs."""
    b = module.function("merge", "void", [("ptr", "noalias")] * 4 + ["i64", "i64"], linkage="internal")
    keys, source, to_keys, to, n, width = b.arguments
    last = b.sub(n, text.number(1))
    with b.loop(0, n, b.add(width, width)) as low:
        middle = b.intrinsic("smin", b.add(low, width), n)
        high = b.intrinsic("smin", b.add(middle, width), n)
        with b.carry(low, high, [low, middle]) as (k, loop):
            i, j = loop.values
            x = b.load("i64", b.gep("i64", keys, b.intrinsic("smin", i, last)))
            y = b.load("i64", b.gep("i64", keys, b.intrinsic("smin", j, last)))
            # The left one where they tie: the order is stable.
            ahead = b.or_(b.icmp("sge", j, high), b.icmp("sle", x, y))
            left = b.and_(b.icmp("slt", i, middle), ahead)
            b.store(b.select(left, x, y), b.gep("i64", to_keys, k))
            b.store(b.load("i64", b.gep("i64", source, b.select(left, i, j))), b.gep("i64", to, k))
            one = b.zext(left, "i64")
            loop.update(b.add(i, one), b.add(j, b.xor(one, text.number(1))))
    b.ret()
