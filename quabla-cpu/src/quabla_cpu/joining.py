"""Joining object files into an image."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from quabla_cpu import elf
from quabla_cpu.elf import ObjectFile, Section
from quabla_cpu.image import PAGE, Image, UnsupportedError

__all__ = ["Piece", "join"]

_STUB = 8  # bytes: `jmp *slot(%rip)`, padded


class Piece(NamedTuple):
    """An object file, and the names under which the other pieces see what it defines, where they differ."""

    code: bytes
    names: Mapping[str, str] = {}


def join(pieces: Iterable[Piece], exports: Iterable[str]) -> Image:
    """Join object files into an image.

    Raises:
        UnsupportedError: the files hold something that is not known here.
        ValueError: a symbol is defined twice, or an export not at all.
    """
    return _Joiner([(elf.read(piece.code), piece.names) for piece in pieces]).image(exports)


class _Joiner:
    def __init__(self, files: list[tuple[ObjectFile, Mapping[str, str]]]) -> None:
        self.files = [file for file, _ in files]
        self.places: dict[tuple[int, int], int] = {}  # (file, section) -> offset
        self.content = bytearray()
        self.inner: list[tuple[int, int]] = []
        self.outer: list[tuple[int, str, int]] = []
        self.slots: dict[str | int, int] = {}  # symbol outside, or offset inside -> offset of its address
        self.stubs: dict[str, int] = {}  # symbol outside -> offset of a jump to it
        for kind in ("code", "constants"):
            self.lay_out(kind)
        self.reserve()
        self.writable = len(self.content)
        if any(section.writable for file in self.files for section in file.sections.values()):
            self.pad(PAGE)
            self.writable = len(self.content)
            self.lay_out("variables")
        self.defined: dict[str, int] = {}
        for f, (file, names) in enumerate(files):
            for symbol in file.symbols:
                if symbol.external and symbol.section is not None:
                    name = names.get(symbol.name, symbol.name)
                    if name in self.defined:
                        raise ValueError(f"{name!r} is defined twice")
                    self.defined[name] = self.offset(f, symbol.section, symbol.offset)

    def pad(self, align: int) -> None:
        self.content.extend(bytes(-len(self.content) % align))

    def lay_out(self, kind: str) -> None:
        for f, file in enumerate(self.files):
            for s, section in file.sections.items():
                if _kind(section) == kind:
                    if section.align > PAGE:
                        raise UnsupportedError(f"alignment to {section.align} bytes")
                    self.pad(section.align)
                    self.places[f, s] = len(self.content)
                    self.content += section.content

    def reserve(self) -> None:
        """Leave room for as many jumps and addresses as there can be."""
        used = [r for file in self.files for s in file.sections.values() for r in s.relocations]
        self.pad(8)
        self.next_stub = len(self.content)
        self.content.extend(bytes(_STUB * sum(r.kind == elf.PLT_RELATIVE for r in used)))
        self.next_slot = len(self.content)
        indirect = (elf.PLT_RELATIVE, *elf.GOT_RELATIVE)
        self.content.extend(bytes(8 * sum(r.kind in indirect for r in used)))

    def offset(self, file: int, section: int, offset: int) -> int:
        place = self.places.get((file, section))
        if place is None:
            raise UnsupportedError("a symbol in a section that is not loaded")
        return place + offset

    def image(self, exports: Iterable[str]) -> Image:
        for f, file in enumerate(self.files):
            for s, section in file.sections.items():
                for relocation in section.relocations:
                    self.relocate(f, self.places[f, s], relocation)
        missing = [name for name in exports if name not in self.defined]
        if missing:
            raise ValueError(f"{missing[0]!r} is not defined")
        found = {name: self.defined[name] for name in exports}
        return Image(bytes(self.content), self.writable, found, self.inner, self.outer)

    def relocate(self, f: int, start: int, relocation: elf.Relocation) -> None:
        place = start + relocation.offset
        symbol = self.files[f].symbols[relocation.symbol]
        target: str | int
        if symbol.section is not None:
            target = self.offset(f, symbol.section, symbol.offset)
        else:
            target = self.defined.get(symbol.name, symbol.name)
        kind, addend = relocation.kind, relocation.addend
        if kind == elf.ABS64:
            if isinstance(target, int):
                self.inner.append((place, target + addend))
            else:
                self.outer.append((place, target, addend))
        elif kind in elf.GOT_RELATIVE:
            self.put(place, self.slot(target) + addend - place)
        elif kind == elf.PLT_RELATIVE or (kind == elf.RELATIVE and isinstance(target, int)):
            self.put(place, (target if isinstance(target, int) else self.stub(target)) + addend - place)
        else:
            raise UnsupportedError(f"relocation {kind} of {symbol.name!r}")

    def put(self, place: int, distance: int) -> None:
        try:
            struct.pack_into("<i", self.content, place, distance)
        except struct.error as error:
            raise UnsupportedError(f"a distance of {distance} bytes") from error

    def slot(self, target: str | int) -> int:
        """The offset of the address of a symbol."""
        found = self.slots.get(target)
        if found is None:
            found = self.slots[target] = self.next_slot
            self.next_slot += 8
            if isinstance(target, int):
                self.inner.append((found, target))
            else:
                self.outer.append((found, target, 0))
        return found

    def stub(self, target: str) -> int:
        """The offset of a jump to a symbol outside, which may be more than 2 GiB away."""
        found = self.stubs.get(target)
        if found is None:
            found = self.stubs[target] = self.next_stub
            self.next_stub += _STUB
            self.content[found : found + 2] = b"\xff\x25"
            self.put(found + 2, self.slot(target) - (found + 6))
        return found


def _kind(section: Section) -> str:
    return "variables" if section.writable else "code" if section.executable else "constants"
