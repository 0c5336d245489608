"""What a user passed, in a message: containers as they were written, arrays by their types."""

from __future__ import annotations

import reprlib
from typing import Any

__all__ = ["Words", "typed"]


class _Types(reprlib.Repr):
    """`repr` of bounded length in which the type of an array, traced or not, stands for its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.maxdict = self.maxlist = self.maxtuple = self.maxlevel = 12

    def repr1(self, x: Any, level: int) -> str:
        aval = getattr(x, "aval", None)
        if aval is not None:
            return str(aval)
        if type(x).__name__ == "ndarray":
            return f"{x.dtype}[{','.join(map(str, x.shape))}]"
        return super().repr1(x, level)


typed = _Types().repr


class Words(str):
    """Text that stands without quotes in what a container prints."""

    __slots__ = ()
    __repr__ = str.__str__
