"""Code of this package that is the same for all programs: compiled once, then taken from disk by its name."""

from __future__ import annotations

import contextlib
import marshal
from collections.abc import Callable, Mapping, Sequence

from quabla_cpu import diskcache, engine, machine
from quabla_cpu.image import Image, UnsupportedError

__all__ = ["part"]


def part(
    name: str, write: Callable[[], str], exports: Sequence[str], imports: Mapping[str, int]
) -> engine.Library:
    """Link code that depends on the machine and the files of this package alone.

    Args:
        name: what no other part is called.
        write: gives the text; called where no earlier process left the code.
        exports: the symbols whose addresses are wanted.
        imports: addresses of symbols outside.
    """
    mark = machine.stamp() if diskcache.enabled() else None
    key = "" if mark is None else diskcache.key("part", name, mark, engine.identity())
    found = diskcache.get(key) if key else None
    if found is not None:
        # Written by another version of Python, say, or made for what this process may not do.
        with contextlib.suppress(EOFError, TypeError, ValueError, UnsupportedError):
            return engine.load(Image(*marshal.loads(found)), imports)
    code = engine.compile_quickly((write(), {}))
    try:
        image = engine.joined([code], exports)
        library = engine.load(image, imports)
    except UnsupportedError:
        return engine.link([code], exports, imports)
    if key:
        diskcache.put(key, marshal.dumps((*image,)))
    return library
