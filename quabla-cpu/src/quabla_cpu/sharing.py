"""Linked code, kept once per process for equal programs."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence

from quabla_cpu.engine import Library
from quabla_cpu.image import Image

__all__ = ["Compiled", "shared"]


class Compiled:
    """Linked machine code, with all that it refers to: other code, and large constants."""

    __slots__ = ("__weakref__", "image", "keep", "library")

    def __init__(self, library: Library, keep: Sequence[object], image: Image | None = None) -> None:
        self.library = library
        self.keep = keep
        self.image = image  # None where LLVM linked it


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
