"""A small, fast writer of LLVM IR text.

Code generators build strings; no object graph of instructions is kept. A `Value` is a name and a type, both strings.
A `Module` collects declarations, globals and functions; a `Builder` writes one function, with loops and branches as
context managers, so that a generator looks like the code that it makes:

    module = Module()
    b = module.function("scale", "void", [("ptr", "noalias"), "i64", "double"])
    data, count, factor = b.arguments
    with b.loop(0, count) as i:
        at = b.gep("double", data, i)
        b.store(b.fmul(b.load("double", at), factor), at)
    b.ret()
    text = module.text()

Every operand is checked for its type when the line is written, and intrinsics come from an allow-list: LLVM aborts the
process on some malformed intrinsic calls, so a mistake must surface here, with a Python traceback.
"""

from __future__ import annotations

from .flow import Branch, Builder, Loop, While
from .intrinsics import INTRINSICS
from .module import Module
from .values import Value, constant, element, is_float, lanes, number, splat, vector

__all__ = [
    "Branch", "Builder", "INTRINSICS", "Loop", "Module", "Value", "While", "constant", "element", "is_float", "lanes",
    "number", "splat", "vector",
]  # fmt: skip
