"""Work that nobody waits for: one thread that does it in order, while the program that asked for it goes on.

The thread ends when nothing is left to do. A process that ends waits for it, so that what it compiled is there for the
next process. A child process after a fork begins with the job that the parent was at.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable

__all__ = ["breathe", "later", "wait", "waiting"]

_QUIET = (
    0.05  # seconds without a new job before the first one begins: often several programs follow each other
)

_changed = threading.Condition()
_jobs: deque[Callable[[], None]] = deque()  # the first one is being done
_thread: threading.Thread | None = None
_asked = 0.0


def later(job: Callable[[], None]) -> None:
    """Do something when those before have been done. What it raises becomes a warning."""
    global _asked
    with _changed:
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
    try:
        while _jobs:
            while threading.main_thread().is_alive() and (left := _asked + _QUIET - time.monotonic()) > 0:
                time.sleep(left)
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


def _complain(error: Exception) -> None:
    warnings.warn(
        f"quabla: compiling well failed (please report this); quick code goes on: {error!r}",
        RuntimeWarning,
        stacklevel=1,
    )


def _renew() -> None:
    global _changed, _thread
    _changed = threading.Condition()
    _thread = None
    _start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
