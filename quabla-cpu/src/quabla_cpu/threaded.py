"""Functions that threads share: what they are called with, and the call of `parallel` (`pool.py`) that runs them."""

from __future__ import annotations

from collections.abc import Sequence

from quabla_cpu import text
from quabla_cpu.executable import PARALLEL
from quabla_cpu.text import Value
from quabla_cpu.writing import Code

__all__ = ["call", "function"]


def function(code: Code, name: str, count: int) -> tuple[Code, list[Value], Value, Value]:
    """A function beside the one being written, its `count` pointers, its index among those that run, and its slot."""
    inner = code.beside(code.b.module.function(name, "void", ["ptr", "i64", "i64"], linkage="internal"))
    b = inner.b
    context, index, slot = b.arguments
    pointers = [b.load("ptr", b.gep("ptr", context, i) if i else context) for i in range(count)]
    return inner, pointers, index, slot


def call(code: Code, name: str, pointers: Sequence[Value], count: int) -> None:
    """Run the function of this name with these pointers for every index below `count`."""
    b = code.b
    context = b.alloca("ptr", len(pointers), 8)
    for i, pointer in enumerate(pointers):
        b.store(pointer, b.gep("ptr", context, i) if i else context)
    code.calls.add(PARALLEL)
    b.call(PARALLEL, "void", Value(f"@{name}", "ptr"), context, text.number(count))
