"""Two compilations of a program: quickly for the first calls, well while these run.

LLVM takes some six times as long for good code as for code that is merely right, and a program is often called for the
first time by somebody who waits. So its first code is made quickly, behind a door: the entry is a jump to an address
in memory. A thread in the background compiles the same text well and puts the new address there; calls from then on
run the new code. Both compute the same bits.

    entry:  jmp *target          target: first  ->  entry of the good code

Nothing is compiled quickly where that would not pay: where all code is known from other programs or from the disk, or
where one call runs so long that slower code loses more time than was saved. `QUABLA_TIERS=0` compiles well at once.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from quabla_cpu import background, diskcache, engine
from quabla_cpu.executable import ENTRY
from quabla_cpu.image import Image
from quabla_cpu.joining import Piece, join
from quabla_cpu.sharing import Compiled, Waiting, tell

__all__ = ["Source", "build"]

_SAVED = 25_000.0  # nanoseconds that quick compilation saves per line of a text, about

_FEW = 8  # jobs that may wait before programs that are gone are no longer compiled for later processes

_FIRST, _TARGET = "first", "target"
_DOOR = f"""
@{_TARGET} = global ptr @{_FIRST}
declare void @{_FIRST}(ptr)
define void @{ENTRY}(ptr %args) nounwind {{
  %code = load atomic ptr, ptr @{_TARGET} monotonic, align 8
  musttail call void %code(ptr %args)
  ret void
}}
"""


class Source(NamedTuple):
    """A module of a program.

    Attributes:
        text: LLVM IR.
        names: the names under which the other modules see what it defines, where they differ.
        passes: whether LLVM's passes gain anything.
    """

    text: str
    names: Mapping[str, str] = {}
    passes: bool = True


def build(
    sources: Sequence[Source], addresses: Mapping[str, int], keep: Sequence[object], loss: float
) -> Compiled:
    """Compile and link a program.

    Args:
        sources: its modules; the first one defines the entry.
        addresses: of the symbols outside.
        keep: what these belong to.
        loss: how many nanoseconds longer a call of quick code takes, about.

    Raises:
        UnsupportedError: the code is of a kind that only LLVM links.
    """
    known = [engine.compiled(source.text, passes=source.passes) for source in sources]
    lines = sum(s.text.count("\n") for s, code in zip(sources, known, strict=True) if code is None)
    if loss < lines * _SAVED and not diskcache.switched_off("QUABLA_TIERS"):
        return _quickly(sources, known, addresses, keep)
    image = _well(sources)
    return Compiled(engine.load(image, addresses), keep, image)


def _quickly(
    sources: Sequence[Source],
    known: Sequence[bytes | None],
    addresses: Mapping[str, int],
    keep: Sequence[object],
) -> Compiled:
    behind_the_door = [sources[0]._replace(names={ENTRY: _FIRST}), *sources[1:]]
    pieces: list[Piece] = []
    new: list[tuple[str, Mapping[str, str]]] = [(_DOOR, {})]
    for source, code in zip(behind_the_door, known, strict=True):
        if code is None:
            new.append((source.text, source.names))
        else:
            pieces.append(Piece(code, source.names))
    pieces.append(Piece(engine.compile_quickly(*new)))
    made = Compiled(engine.load(join(pieces, [ENTRY, _TARGET]), addresses), keep)
    background.later(partial(_finish, weakref.ref(made), made.waiting, sources, addresses))
    return made


def _finish(
    owner: weakref.ReferenceType[Compiled],
    waiting: Waiting,
    sources: Sequence[Source],
    addresses: Mapping[str, int],
) -> None:
    """Compile a program well, unless nobody can call it any more and others wait."""
    if owner() is None and background.waiting() > _FEW:
        return
    image = _well(sources)
    code = owner()
    if code is not None:
        library = engine.load(image, addresses)
        code.keep = (*code.keep, library)
        # One aligned word: a call reads the old address or the new one. Both codes stay as long as the door.
        ctypes.c_uint64.from_address(code.library.address(_TARGET)).value = library.address(ENTRY)
        code.image = image
    tell(waiting, code, image)


def _well(sources: Sequence[Source]) -> Image:
    pieces = []
    for source in sources:
        pieces.append(Piece(engine.compile(source.text, passes=source.passes), source.names))
        background.breathe()
    return join(pieces, [ENTRY])
