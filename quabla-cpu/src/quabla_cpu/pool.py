"""Threads that share the work of one call: `parallel(function, context, count)` in native code.

The function runs for every index below `count`, each on some thread, and `parallel` returns when all are done. Who does
what is decided as they come, by counting down a number; what an index computes does not depend on who does it, so
results are the same bits for any number of threads. A thread that the system stops delays no work but its own.

The threads are Python threads that call `worker` once and never return from it, so they never hold the interpreter's
lock; native code needs no way of its own to start threads. A worker looks for work for some microseconds, then sleeps.
One call uses them at a time; a call that finds them taken, by another thread or by an outer call, runs in its own
thread. After a fork the child has no workers: it runs alone until its number of threads is set or code is compiled.

All of it is a record of words in memory. The native code that works on it is in `pool_code.py`.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import threading

import numpy as np

from quabla.backends import threads
from quabla_cpu import engine
from quabla_cpu.executable import PARALLEL
from quabla_cpu.parts import part

__all__ = ["PARALLEL", "address", "ensure", "resize"]

RECORD = "quabla_pool"
WORDS = 96
# Bytes of stack of a worker. LAPACK's LU factorisation takes more than 4 MB where it uses threads of its own.
_STACK = 16 << 20
_EXPORTS = (PARALLEL, "prepare", "resize", "worker")

_lock = threading.Lock()
_started = 0
_ready = False  # whether the lock and the condition are made
_library: engine.Library | None = None
_space = np.zeros(WORDS + 8, np.uint64)
_words = _space[-(_space.ctypes.data // 8) % 8 :][:WORDS]


def address() -> int:
    """The address of the function, compiled at the first call."""
    return _code().address(PARALLEL)


def ensure() -> None:
    """Have the workers that the number of threads allows, unless there are none on this system."""
    resize(threads.get_num_threads())


def resize(n: int) -> None:
    """Let `n` threads share a call: the caller and `n` - 1 workers. More are started where they are missing."""
    global _started, _ready
    if os.name != "posix":  # their sleep is a condition variable of POSIX
        return
    with _lock:
        worker = ctypes.CFUNCTYPE(None, ctypes.c_int64)(_code().address("worker"))
        if not _ready:
            ctypes.CFUNCTYPE(None)(_code().address("prepare"))()
            _ready = True
        ctypes.CFUNCTYPE(None, ctypes.c_int64)(_code().address("resize"))(n - 1)
        if _started >= n - 1:
            return
        # A program may have asked for smaller stacks.
        before = _thread.stack_size(_STACK)
        try:
            # Where the system allows no more threads, those there are do the work; so does the caller alone.
            with contextlib.suppress(RuntimeError):
                while _started < n - 1:
                    _thread.start_new_thread(worker, (_started,))
                    _started += 1
        finally:
            _thread.stack_size(before)


def _code() -> engine.Library:
    global _library
    if _library is None:
        _library = part("pool", _text, _EXPORTS, {RECORD: _words.ctypes.data})
    return _library


def _text() -> str:
    with engine.no_fork():
        from quabla_cpu import pool_code

    return pool_code.write()


threads.on_change(lambda n: resize(n) if _library is not None else None)


def _renew() -> None:
    # The child has none of the threads, and whatever they held is as it was when the process was copied.
    global _started, _ready, _lock
    _lock = threading.Lock()
    _words[:] = 0
    _started, _ready = 0, False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
