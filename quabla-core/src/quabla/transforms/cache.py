"""Where compiled programs are kept: per root function, weakly, and per chain of transforms.

`grad(f)` made anew in a loop finds the programs of the `grad(f)` before it, and they die with `f`; those of
`grad(model.loss)` die with the model.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

from quabla.transforms.staging import Method

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
# The identities of a function and of the object whose method it is, or None; weak references to them, and the caches of
# the chains over them.
_by_root: dict[tuple[int, int], tuple[Any, Any, dict[Any, SignatureCache]]] = {}
# Reentrant: while it is held, a collection may run a finalizer that makes a transform.
_lock = threading.RLock()


def install(guard: Callable[..., Any]) -> None:
    """Set the guard with which caches begin (dispatch does so when it is imported)."""
    global _first_guard
    _first_guard = guard


def cache_for(root: Any, chain: Any) -> SignatureCache:
    """The cache of `chain` over `root`, made if there is none.

    Functions are told apart by identity, not equality: two equal callables may compute different things. A method is
    the function and the object to which it is bound, for Python makes a new one at each access. Where one of them
    takes no weak references, as an object of a class with `__slots__` and without `__weakref__`, there is nothing to
    tell that it is gone, and each transform gets a cache of its own.
    """
    try:
        hash(chain)
    except TypeError:
        return SignatureCache(_first_guard)
    fun, owner = _parts(root)
    key = (id(fun), id(owner))
    with _lock:
        found = _by_root.get(key)
        if found is not None and found[0]() is fun and (owner is None or found[1]() is owner):
            chains = found[2]
        else:
            forget = partial(_forget, key)
            try:
                refs = weakref.ref(fun, forget), None if owner is None else weakref.ref(owner, forget)
            except TypeError:
                return SignatureCache(_first_guard)
            chains = {}
            _by_root[key] = (*refs, chains)
        cache = chains.get(chain)
        if cache is None:
            cache = chains[chain] = SignatureCache(_first_guard)
        return cache


def _parts(root: Any) -> tuple[Any, Any]:
    """A function, and the object to which it is bound, or None."""
    kind = type(root)
    if kind is MethodType:
        return root.__func__, root.__self__
    if kind is Method:
        return root.func, root.args[0]
    return root, None


def _forget(key: tuple[int, int], ref: Any = None) -> None:
    # Not under the lock: another thread may hold it while it waits for what this thread is doing. The entry may already
    # belong to new objects at the same addresses.
    if _by_root is None:
        return  # type: ignore[unreachable]  # the interpreter is shutting down
    found = _by_root.get(key)
    if found is not None and (found[0]() is None or (found[1] is not None and found[1]() is None)):
        _by_root.pop(key, None)


def _renew_locks() -> None:
    # Another thread may have held a lock while this process was forked; what it compiled has not been entered.
    global _lock
    _lock = threading.RLock()
    for cache in list(_all):
        cache.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
