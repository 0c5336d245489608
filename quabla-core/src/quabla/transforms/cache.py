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

__all__ = ["Known", "SignatureCache", "cache_for"]


class Known:
    """What is known of a function, whatever is applied to it, so that traces of it may be used again (`reuse.py`).

    Attributes:
        reads: what it reads besides its arguments, when it was looked at last; None if it was not, or has changed.
        version: counts how often it has changed: traces of an earlier version are of no use.
        looks: counts how often it was looked at, and found to be as known.
        keeps: whether its traces are kept: what it reads can be told.
    """

    __slots__ = ("keeps", "looks", "reads", "version")

    def __init__(self) -> None:
        self.reads: Any = None
        self.version = self.looks = 0
        self.keeps = True


class SignatureCache:
    """The compiled programs of one chain of transforms over one function.

    Attributes:
        entries: signature -> what was compiled for it, in the order of compilation.
        known: what is known of the function.
        staged: the version of the function, and signature -> what the function beneath the outermost transform was
            traced to.
        guard: the short way in for the signature compiled last, called as `guard(transform, args, kwargs)`.
        lock: held while tracing and compiling, so that threads that arrive together compile once.
        warned: whether it was said that the device computes float64 in float32.
    """

    __slots__ = ("__weakref__", "entries", "guard", "known", "lock", "staged", "warned")

    def __init__(self, guard: Callable[..., Any], known: Known) -> None:
        self.entries: dict[Any, Any] = {}
        self.known = known
        self.staged: tuple[int, dict[Any, Any]] = (0, {})
        self.guard = guard
        self.lock = threading.RLock()
        self.warned = False
        _all.add(self)

    def traces_of(self, version: int) -> dict[Any, Any]:
        """The traces of this version of the function."""
        if self.staged[0] != version:
            self.staged = (version, {})
        return self.staged[1]


_all: weakref.WeakSet[SignatureCache] = weakref.WeakSet()


_first_guard: Callable[..., Any]
_by_root: dict[int, tuple[Any, dict[Any, SignatureCache], Known]] = {}
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
        return SignatureCache(_first_guard, Known())
    if _has_state(root):
        return SignatureCache(_first_guard, Known())
    key = id(root)
    with _lock:
        found = _by_root.get(key)
        if found is not None and found[0]() is root:
            chains, known = found[1:]
        else:
            try:
                ref = weakref.ref(root, partial(_forget, key))
            except TypeError:
                return SignatureCache(_first_guard, Known())
            chains, known = {}, Known()
            _by_root[key] = (ref, chains, known)
        cache = chains.get(chain)
        if cache is None:
            cache = chains[chain] = SignatureCache(_first_guard, known)
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
