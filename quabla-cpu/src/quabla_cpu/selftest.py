"""Whether this machine lets a process write code and run it: some are set up not to."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import lru_cache

from quabla_cpu import engine
from quabla_cpu.image import UnsupportedError

__all__ = ["code_runs"]

_NAME = "successor"


@lru_cache(maxsize=1)
def code_runs() -> bool:
    """Make a function of one addition executable and call it, once per process.

    An earlier process may have compiled it; the code runs here and now in any case.

    Raises:
        ImportError: LLVM is not installed.
        RuntimeError: the code does not compile, cannot be made executable, or computes something else.
    """
    library = _recalled() or _compiled()
    successor = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.address(_NAME))
    if successor(41) != 42:
        raise RuntimeError("a compiled addition gives a wrong result")
    return True


def _recalled() -> engine.Library | None:
    check = engine.check()
    with suppress(UnsupportedError):  # as it will be for LLVM, which can say why
        return None if check is None else engine.load(check, {})
    return None


def _compiled() -> engine.Library:
    # Nobody has compiled anything on this machine, so the first program will need all that compiles, too.
    with engine.no_fork():
        from quabla_cpu import assemble, text  # noqa: F401

    module = text.Module(engine.function_attributes())
    b = module.function(_NAME, "i64", ["i64"])
    b.ret(b.add(b.arguments[0], text.constant("i64", 1)))
    code = engine.compile_quickly((module.text(), {}))
    engine.remember(code, _NAME)
    return engine.link([code], [_NAME])
