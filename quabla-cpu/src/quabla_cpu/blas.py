"""Addresses of BLAS and LAPACK functions inside SciPy, for native code to call.

SciPy publishes both as function pointers for Cython. Only the extension module that holds them is loaded: importing all
of `scipy.linalg` takes five times as long.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

from quabla_cpu import engine

__all__ = ["address"]

_addresses: dict[str, int] = {}


def address(name: str) -> int:
    """The address of a function, such as `"dgemm"` or `"dgetrf"`; integers are 32 bits wide. Imports SciPy at first.

    Raises:
        KeyError: SciPy has no function of that name.
    """
    found = _addresses.get(name)
    if found is None:
        # One thread at a time, and a child forked within the import could never finish it.
        with engine.no_fork():
            table = _extension("scipy.linalg.cython_blas").__pyx_capi__
            if name not in table:
                table = _extension("scipy.linalg.cython_lapack").__pyx_capi__
            found = _addresses[name] = _pointer(table[name])
    return found


def _extension(name: str) -> ModuleType:
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    try:
        # On some systems SciPy says here where its libraries are. It may refuse while the process ends, since it asks
        # for threads; the module needs none.
        with suppress(RuntimeError):
            importlib.import_module("scipy")
        package = find_spec("scipy")
        assert package is not None and package.submodule_search_locations is not None
        spec = PathFinder.find_spec(name, [package.submodule_search_locations[0] + "/linalg"])
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except Exception:  # whatever a future SciPy changes: the ordinary import is right, only slower
        return importlib.import_module(name)


def _pointer(capsule: Any) -> int:
    api = ctypes.pythonapi
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", api)
    )
    return int(pointer_of(capsule, name_of(capsule)))
