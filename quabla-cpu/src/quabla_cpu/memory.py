"""Images in memory: copied, patched, then made executable; no page is ever both writable and executable."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from typing import Any

from quabla_cpu.image import PAGE, Image, UnsupportedError

__all__ = ["Mapping", "c_function", "is_c_function", "place"]

# Of Linux on x86-64; other systems do not get this far, since their object files are not read.
_READ_WRITE, _READ_EXECUTE = 1 | 2, 1 | 4
_PRIVATE_ANONYMOUS = 0x02 | 0x20
_FAILED = ctypes.c_void_p(-1).value
_ADDRESS = (1 << 64) - 1

_libc: Any = None


def _process() -> Any:
    """The functions of this process: the C library and libm among them."""
    global _libc
    if _libc is None:
        if sys.platform != "linux":
            raise UnsupportedError(f"memory of {sys.platform}")
        libc = ctypes.CDLL(None, use_errno=True)
        size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
        libc.mmap.restype = pointer
        libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
        libc.mprotect.argtypes = [pointer, size, number]
        libc.munmap.argtypes = [pointer, size]
        _libc = libc
    return _libc


def c_function(name: str) -> int:
    """The address of a function of the C library.

    Raises:
        KeyError: this process has none of that name.
    """
    try:
        found = ctypes.cast(_process()[name], ctypes.c_void_p).value
    except AttributeError:
        raise KeyError(name) from None
    assert found is not None
    return found


def is_c_function(name: str) -> bool:
    """Whether the C library has a function of that name."""
    try:
        return bool(c_function(name))
    except KeyError:
        return False


class Mapping:
    """An image in memory, unmapped when the last reference goes."""

    __slots__ = ("_unmap", "base", "size")

    def __init__(self, base: int, size: int, unmap: Callable[[int, int], int]) -> None:
        self.base = base
        self.size = size
        self._unmap = unmap

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # A daemon thread may still run the code while the process ends.
        if not ending():
            self._unmap(self.base, self.size)


def place(image: Image, address: Callable[[str], int]) -> Mapping:
    """Map an image into memory.

    Args:
        image: what to map.
        address: where the symbols outside are.

    Raises:
        UnsupportedError: this system gives no memory, or does not let it become executable.
    """
    libc = _process()
    size = len(image.content) + -len(image.content) % PAGE
    base = libc.mmap(None, size, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if base is None or base == _FAILED:
        raise UnsupportedError(f"no memory: error {ctypes.get_errno()}")
    mapping = Mapping(base, size, libc.munmap)
    content = bytearray(image.content)
    for offset, target in image.inner:
        struct.pack_into("<Q", content, offset, (base + target) & _ADDRESS)
    for offset, symbol, addend in image.outer:
        struct.pack_into("<Q", content, offset, (address(symbol) + addend) & _ADDRESS)
    ctypes.memmove(base, bytes(content), len(content))
    code = image.writable + -image.writable % PAGE
    if libc.mprotect(base, code, _READ_EXECUTE):
        raise UnsupportedError(f"memory that may not be executed: error {ctypes.get_errno()}")
    return mapping
