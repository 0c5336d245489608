"""Where compiled programs are kept: per root function, weakly, and per chain of transforms.

`grad(f)` made anew in a loop finds the programs of the `grad(f)` before it, and they die with `f`. An object computes
with attributes that change, so its methods and its `__call__` are traced for each transform of them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

__all__ = ["SignatureCache", "cache_for"]


class SignatureCache:
    """The compiled programs of one chain of transforms over one function.

    Attributes:
        entries: signature -> what was compiled for it, in the order of compilation.
        guard: the short way in for the signature compiled last, called as `guard(transform, args, kwargs)`.
        lock: held while tracing and compiling, so that threads that arrive together compile once.
        warned: whether it was said that the device computes float64 in float32.
    """

    __slots__ = ("__weakref__", "entries", "guard", "lock", "warned")

    def __init__(self, guard: Callable[..., Any]) -> None:
        self.entries: dict[Any, Any] = {}
        self.guard = guard
        self.lock = threading.RLock()
        self.warned = False
        _all.add(self)


_all: weakref.WeakSet[SignatureCache] = weakref.WeakSet()


_first_guard: Callable[..., Any]
_by_root: dict[int, tuple[Any, dict[Any, SignatureCache]]] = {}
# Reentrant: while it is held, a collection may run a finalizer that makes a transform.
_lock = threading.RLock()


def install(guard: Callable[..., Any]) -> None:
    """Set the guard with which caches begin (dispatch does so when it is imported)."""
    global _first_guard
    _first_guard = guard


def cache_for(root: Any, chain: Any) -> SignatureCache:
    """The cache of `chain` over `root`, made if there is none.

    Functions are told apart by identity, not equality: two equal callables may compute different things. A method is
    made anew by Python at each access, and so is its cache, unless somebody keeps the method. An object that is called
    stays the same while its attributes change, so each transform of it has a cache of its own.
    """
    try:
        hash(chain)
    except TypeError:
        return SignatureCache(_first_guard)
    if _has_state(root):
        return SignatureCache(_first_guard)
    key = id(root)
    with _lock:
        found = _by_root.get(key)
        if found is not None and found[0]() is root:
            chains = found[1]
        else:
            try:
                ref = weakref.ref(root, partial(_forget, key))
            except TypeError:
                return SignatureCache(_first_guard)
            chains = {}
            _by_root[key] = (ref, chains)
        cache = chains.get(chain)
        if cache is None:
            cache = chains[chain] = SignatureCache(_first_guard)
        return cache


def _has_state(root: Any) -> bool:
    """Whether a class of a user says how the root is called."""
    kind: Any = type(root)
    is_own = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
    return isinstance(kind.__call__, FunctionType) and not is_own


def _forget(key: int, ref: Any = None) -> None:
    # Not under the lock: another thread may hold it while it waits for what this thread is doing. The entry may already
    # belong to a new object at the same address.
    if _by_root is None:
        return  # type: ignore[unreachable]  # the interpreter is shutting down
    found = _by_root.get(key)
    if found is not None and found[0]() is None:
        _by_root.pop(key, None)


def _renew_locks() -> None:
    # Another thread may have held a lock while this process was forked; what it compiled has not been entered.
    global _lock
    _lock = threading.RLock()
    for cache in list(_all):
        cache.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
