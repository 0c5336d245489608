"""How many threads one program may compute with: a number per process, for whichever backends compute on the host."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any

from quabla.errors import DtypeError, UnsupportedOperationError

__all__ = ["get_num_threads", "on_change", "set_num_threads"]

_VARIABLE = "QUABLA_NUM_THREADS"
_MOST = 1024

_count: int | None = None
_listeners: list[Callable[[int], None]] = []


def get_num_threads() -> int:
    """The number of threads that one program may compute with.

    It is what `set_num_threads` said last, else the environment variable `QUABLA_NUM_THREADS`, else the number of
    processors that this process may use.

    Raises:
        UnsupportedOperationError: the environment variable is no whole number from 1 to 1024. The first program that is
            compiled for the CPU raises this, too, be it large or small.

    Example:
        >>> import quabla as qb
        >>> qb.get_num_threads() >= 1
        True
    """
    global _count
    if _count is None:
        given = os.environ.get(_VARIABLE, "").strip()
        _count = _parsed(given) if given else _processors()
    return _count


def set_num_threads(n: int) -> None:
    """Let one program compute with at most `n` threads, from the next call on.

    Results do not depend on the number, to the last bit. One thread is right where several processes share the machine.
    Large programs alone are divided; a small one runs in the thread that calls it. Factorisations of large matrices are
    LAPACK's, whose threads are those of OpenBLAS: the last bits of its results depend on their number, so it is left as
    the environment variable `OPENBLAS_NUM_THREADS` has it. In a child process made by a fork programs run in one thread
    until this is called there, or something new is compiled.

    Args:
        n: a positive whole number. The thread that calls a program is one of them.

    Raises:
        DtypeError: `n` is no positive whole number, or above 1024.

    Example:
        >>> import quabla as qb
        >>> before = qb.get_num_threads()
        >>> qb.set_num_threads(1)
        >>> qb.get_num_threads()
        1
        >>> qb.set_num_threads(before)
    """
    global _count
    _count = _checked("set_num_threads", n)
    for listener in _listeners:
        listener(_count)


def on_change(listener: Callable[[int], None]) -> None:
    """Have a backend told of every number that is set."""
    _listeners.append(listener)


def _parsed(given: str) -> int:
    n = int(given) if given.isdecimal() and len(given) < 10 else 0
    if not 1 <= n <= _MOST:
        raise UnsupportedOperationError(
            f"the environment variable {_VARIABLE} is {given!r}: it must be a whole number from 1 to {_MOST}; "
            "without it programs compute with as many threads as there are processors"
        )
    return n


def _checked(where: str, given: Any) -> int:
    try:
        n = operator.index(given)
    except TypeError:
        n = 0
    if isinstance(given, bool) or not 1 <= n <= _MOST:
        raise DtypeError(
            f"{where}: the number of threads must be a whole number from 1 to {_MOST}, got {given!r}"
        )
    return n


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
