"""Linked code, kept once per process for equal programs."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TypeAlias

from quabla_cpu.engine import Library
from quabla_cpu.image import Image

__all__ = ["Compiled", "Waiting", "shared", "tell"]


class Compiled:
    """Linked machine code, with all that it refers to: other code, and large constants.

    Attributes:
        library: the code.
        keep: what it refers to.
        image: the code before it was put into memory; None where LLVM linked it, and while better code is on its way.
        waiting: functions to call with this (None if it is gone by then) and its image when there is one.
    """

    __slots__ = ("__weakref__", "image", "keep", "library", "waiting")

    def __init__(self, library: Library, keep: Sequence[object], image: Image | None = None) -> None:
        self.library = library
        self.keep = keep
        self.image = image
        self.waiting: Waiting = []

    def then(self, call: Callable[[Compiled | None, Image], None]) -> None:
        """Call a function with this and its image, now or when there is one."""
        self.waiting.append(call)
        if self.image is not None:
            tell(self.waiting, self, self.image)


Waiting: TypeAlias = "list[Callable[[Compiled | None, Image], None]]"


def tell(waiting: Waiting, code: Compiled | None, image: Image) -> None:
    """Call those who wait for an image, each once, whoever gets to it first."""
    while waiting:
        try:
            call = waiting.pop()
        except IndexError:
            return
        call(code, image)


_compiled: weakref.WeakValueDictionary[object, Compiled] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _renew_lock() -> None:
    # Another thread may have held the lock while this process was forked.
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def shared(key: object, make: Callable[[], Compiled]) -> Compiled:
    """What was made for this key and is still in use, else what `make` gives now."""
    with _lock:
        found = _compiled.get(key)
    if found is not None:
        return found
    made = make()
    with _lock:
        return _compiled.setdefault(key, made)
