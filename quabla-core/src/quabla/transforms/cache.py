"""Where compiled programs are kept: per root function, weakly, and per chain of transforms.

`grad(f)` made anew in a loop finds the programs of the `grad(f)` before it, and they die with `f`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
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
_lock = threading.Lock()


def install(guard: Callable[..., Any]) -> None:
    """Set the guard with which caches begin (dispatch does so when it is imported)."""
    global _first_guard
    _first_guard = guard


def cache_for(root: Any, chain: Any) -> SignatureCache:
    """The cache of `chain` over `root`, made if there is none.

    Functions are told apart by identity, not equality: two equal callables may compute different things. A root that
    takes no weak references (a bound method, which Python makes anew at each access) gets a cache of its own.
    """
    try:
        hash(chain)
    except TypeError:
        return SignatureCache(_first_guard)
    key = id(root)
    with _lock:
        found = _by_root.get(key)
        if found is not None and found[0]() is root:
            chains = found[1]
        else:
            if hasattr(root, "__self__"):
                return SignatureCache(_first_guard)
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


def _forget(key: int, ref: Any = None) -> None:
    # Not under the lock: a collection may run this while the same thread holds it. The entry may already belong to a
    # new object at the same address.
    if _by_root is None:
        return  # type: ignore[unreachable]  # the interpreter is shutting down
    found = _by_root.get(key)
    if found is not None and found[0]() is None:
        _by_root.pop(key, None)


def _renew_locks() -> None:
    # Another thread may have held a lock while this process was forked; what it compiled has not been entered.
    global _lock
    _lock = threading.Lock()
    for cache in list(_all):
        cache.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
