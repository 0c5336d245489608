"""Whether this machine lets a process write code and run it: some are set up not to."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from quabla_cpu import engine, text

__all__ = ["code_runs"]


@lru_cache(maxsize=1)
def code_runs() -> bool:
    """Compile a function of one addition, link it and call it, once per process.

    Raises:
        ImportError: LLVM is not installed.
        RuntimeError: the code does not compile, cannot be made executable, or computes something else.
    """
    module = text.Module(engine.function_attributes())
    b = module.function("successor", "i64", ["i64"])
    b.ret(b.add(b.arguments[0], text.constant("i64", 1)))
    library = engine.link([engine.compile(module.text(), cache=False)], ["successor"], {})
    successor = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.address("successor"))
    if successor(41) != 42:
        raise RuntimeError("a compiled addition gives a wrong result")
    return True
