"""The native code of a training plan: what happens around a step. `plan.py` says what the record is."""

from __future__ import annotations

from quabla_cpu import engine, text
from quabla_cpu.plan import BLOCKS, BUSY, ENTRY, PARITY, RECORD, TABLES
from quabla_cpu.text import Builder, Value

__all__ = ["write"]


def write() -> str:
    """The code around a step. It is the same for all plans: where the record is, is decided when it is linked."""
    module = text.Module(engine.function_attributes())
    record = module.raw_global(RECORD, "external global i8")

    def word(b: Builder, index: int | Value) -> Value:
        return b.gep("i64", record, index)

    def hold(b: Builder) -> None:
        # A spin lock: steps are short, and the interpreter's lock is not held here.
        with b.while_([]) as loop:
            taken = b._emit("i64", f"atomicrmw xchg ptr {word(b, BUSY).name}, i64 1 acquire")
            loop.proceed(b.icmp("ne", taken, text.constant("i64", 0)))

    def free(b: Builder) -> None:
        b._lines.append(f"store atomic i64 0, ptr {word(b, BUSY).name} release, align 8")

    def advance(b: Builder) -> None:
        parity = b.load("i64", word(b, PARITY))
        table = b.load("ptr", word(b, b.add(parity, text.constant("i64", TABLES))))
        b.call_pointer(b.load("ptr", word(b, ENTRY)), "void", table)
        b.store(b.xor(parity, text.constant("i64", 1)), word(b, PARITY))

    def block(b: Builder) -> Value:
        parity = b.load("i64", word(b, PARITY))
        return b.load("ptr", word(b, b.add(parity, text.constant("i64", BLOCKS))))

    b = module.function("step", "void", [])
    hold(b)
    advance(b)
    free(b)
    b.ret()
    b = module.function("run", "void", ["i64"])
    hold(b)
    with b.loop(0, b.arguments[0]):
        advance(b)
    free(b)
    b.ret()
    for name in ("read", "write"):
        b = module.function(name, "void", ["ptr", "i64"])
        there, size = b.arguments
        hold(b)
        to, source = (there, block(b)) if name == "read" else (block(b), there)
        b.memcpy(to, source, size)
        free(b)
        b.ret()
    b = module.function("exchange", "void", ["i64", "i64"])
    index, address = b.arguments
    hold(b)
    for table in (TABLES, TABLES + 1):
        b.store(address, b.gep("i64", b.load("ptr", word(b, table)), index))
    free(b)
    b.ret()
    for name, write in (("hold", hold), ("free", free)):
        b = module.function(name, "void", [])
        write(b)
        b.ret()
    return module.text()
