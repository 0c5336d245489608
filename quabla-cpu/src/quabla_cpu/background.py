"""Work that nobody waits for: one thread that does it in order, while the program that asked for it goes on.

The thread ends when nothing is left to do. A process that ends waits for it a little, so that what it compiled is there
for the next process; without a cache there is nothing to wait for. A child process after a fork takes over what its
parent had not done, unless it ends before long.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable

from quabla_cpu import diskcache

__all__ = ["breathe", "later", "wait", "waiting"]

_QUIET = 0.05  # seconds without a new job before the first one begins: programs often follow each other
_MORE = 1.0  # seconds that a child process waits besides: its parent is doing the same, and it may be about to end
_PATIENCE = 2.0  # seconds for which the end of a process is held up

_changed = threading.Condition()
_jobs: deque[Callable[[], None]] = deque()  # the first one is being done
_thread: threading.Thread | None = None
_asked = 0.0
_inherited = False  # whether the jobs are those of the parent, too


def later(job: Callable[[], None]) -> None:
    """Do something when those before have been done. What it raises becomes a warning."""
    global _asked, _inherited
    with _changed:
        _inherited = False
        _jobs.append(job)
        _asked = time.monotonic()
        _start()


def wait(timeout: float | None = None) -> bool:
    """Wait until there is nothing left to do, at most for some seconds; whether that is so."""
    with _changed:
        return _changed.wait_for(lambda: not _jobs and _thread is None, timeout)


def waiting() -> int:
    """How many jobs are not done."""
    return len(_jobs)


def breathe() -> None:
    """Let those who wait for a lock of LLVM or of the interpreter have it: to be called between parts of a job."""
    time.sleep(0.0005)


def _start() -> None:
    global _thread
    if _thread is None and _jobs:
        _thread = threading.Thread(target=_work, name="quabla-compile")
        try:
            _thread.start()
        except RuntimeError:  # the process is ending, or may have no more threads
            _thread = None
            _jobs.clear()


def _work() -> None:
    global _thread
    end = None
    try:
        while _jobs:
            while _alive() and (left := _asked + _QUIET - time.monotonic()) > 0:
                time.sleep(min(left, _QUIET))
            if not _alive():
                end = end or time.monotonic() + _PATIENCE
                if _inherited or not diskcache.enabled() or time.monotonic() > end:
                    _jobs.clear()
                    break
            try:
                _jobs[0]()
            except Exception as error:
                _complain(error)
            finally:
                _jobs.popleft()
    finally:  # also where a warning is an error
        with _changed:
            _thread = None
            _changed.notify_all()
            _start()


def _alive() -> bool:
    return threading.main_thread().is_alive()


def _complain(error: Exception) -> None:
    warnings.warn(
        f"quabla: compiling well failed (please report this); quick code goes on: {error!r}",
        RuntimeWarning,
        stacklevel=1,
    )


def _renew() -> None:
    global _asked, _changed, _inherited, _thread
    _changed = threading.Condition()
    _thread = None
    _inherited = True
    _asked = time.monotonic() + _MORE
    _start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
