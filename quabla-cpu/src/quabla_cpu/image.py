"""Images: linked code as one run of bytes that a process only has to copy and patch.

Offsets within an image are settled when it is made. What is left for each process is a list of places that hold an
address: that of the image itself, or of a symbol outside. So a stored image is in use after one read, one copy and a
few additions, without a linker.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PAGE", "Image", "UnsupportedError"]

PAGE = 4096  # offset of what is written to while code runs: a multiple of the page size of x86-64


class UnsupportedError(Exception):
    """Something that only LLVM's own linker can handle."""


class Image(NamedTuple):
    """Code and its data.

    Attributes:
        content: the bytes: code, constants, and a table of addresses; from `writable` on, variables.
        writable: offset of the variables, a multiple of `PAGE`; the length of `content` where there are none.
        exports: offsets of the symbols that callers ask for.
        inner: places, and offsets within the image whose addresses belong there.
        outer: places, the symbols outside whose addresses belong there, and what to add to each.
    """

    content: bytes
    writable: int
    exports: dict[str, int]
    inner: list[tuple[int, int]]
    outer: list[tuple[int, str, int]]
