"""What all that records or evaluates arrays of MLX runs within: a stream of its own, and a turn where one is needed.

MLX gives every thread of Python a stream, and every stream a native thread that never ends, so a program that makes
threads would collect them. Streams are lent here instead: there are as many as calls that ran at the same time.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from quabla.errors import BackendError
from quabla_mlx.target import Target

__all__ = ["session"]

_lock = threading.RLock()
_spare: dict[bool, list[Any]] = {False: [], True: []}  # list.pop and list.append are atomic
_forked = False


def session(target: Target) -> contextlib.AbstractContextManager[None]:
    """A context for recording arrays and evaluating them; nothing lazy may leave it.

    On a CPU threads do so at the same time. On a GPU they take turns, and where kernels may be compiled.

    Raises:
        BackendError: in a child process that was forked: MLX's threads are not in it, and it would wait for ever.
    """
    if _forked:
        raise BackendError(
            "mlx: this process was forked from one that had loaded MLX, whose threads are not here; start it with the "
            "method 'spawn' (multiprocessing.set_start_method) or use the device 'cpu'"
        )
    return _in_turn(target) if target.gpu or target.fused else _Lent(False)


class _Lent:
    """A stream that nobody else uses meanwhile."""

    __slots__ = ("_context", "_gpu", "_stream")

    def __init__(self, gpu: bool) -> None:
        self._gpu = gpu

    def __enter__(self) -> None:
        try:
            self._stream = _spare[self._gpu].pop()
        except IndexError:
            self._stream = mx.new_thread_unsafe_stream(mx.gpu if self._gpu else mx.cpu)
        self._context = mx.stream(self._stream)
        self._context.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._context.__exit__(*raised)
        _spare[self._gpu].append(self._stream)


@contextlib.contextmanager
def _in_turn(target: Target) -> Iterator[None]:
    with _lock, contextlib.nullcontext() if target.gpu else _private_folder(), _Lent(target.gpu):
        yield


@contextlib.contextmanager
def _private_folder() -> Iterator[None]:
    """A temporary folder of this process alone. MLX loads whatever library lies in the one that it is told of."""
    global _folder
    if not _folder:
        _folder = tempfile.mkdtemp(prefix="quabla-mlx-")
        atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = _folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


_folder = ""


def _in_child() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
