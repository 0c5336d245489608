"""Reading object files: the part of ELF that LLVM writes for generated code on x86-64.

What is not known here raises `UnsupportedError`, and LLVM's own linker does the work instead. The numbers are from the
"System V Application Binary Interface, AMD64 Architecture Processor Supplement" and the generic ELF specification.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from quabla_cpu.image import UnsupportedError

__all__ = [
    "ABS64",
    "GOT_RELATIVE",
    "PLT_RELATIVE",
    "RELATIVE",
    "ObjectFile",
    "Relocation",
    "Section",
    "read",
]

ABS64, RELATIVE, PLT_RELATIVE = 1, 2, 4  # R_X86_64_64, R_X86_64_PC32, R_X86_64_PLT32
GOT_RELATIVE = (9, 41, 42)  # R_X86_64_GOTPCREL, R_X86_64_GOTPCRELX, R_X86_64_REX_GOTPCRELX

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_IDENT = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _REL, _UNWIND = 1, 2, 4, 8, 9, 0x70000001
_WRITE, _ALLOC, _EXECUTE, _TLS = 1, 2, 4, 0x400
_MOST = 1 << 28  # bytes of a section
_UNDEFINED, _RESERVED = 0, 0xFF00
_NOTYPE, _OBJECT, _FUNCTION, _SECTION_SYMBOL, _FILE = 0, 1, 2, 3, 4


class Relocation(NamedTuple):
    """A place in a section that depends on where a symbol lies."""

    offset: int
    kind: int
    symbol: int  # index into the symbols of the file
    addend: int


class Section(NamedTuple):
    """A section that is loaded into memory; `content` is zeros where the file holds none."""

    content: bytes
    align: int
    writable: bool
    executable: bool
    relocations: list[Relocation]


class Symbol(NamedTuple):
    """A name, and where it is: an index into the sections and an offset there, or no section where it is undefined."""

    name: str
    section: int | None
    offset: int
    external: bool  # whether other files see it


class ObjectFile(NamedTuple):
    """The loaded sections of an object file, by index in the file, and its symbols."""

    sections: dict[int, Section]
    symbols: list[Symbol]


def read(image: bytes) -> ObjectFile:
    """Take an object file apart.

    Raises:
        UnsupportedError: for another format, another machine, or a part that is not known here.
    """
    try:
        return _read(image)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise UnsupportedError(f"a damaged object file: {error}") from error


def _read(image: bytes) -> ObjectFile:
    ident, kind, machine, *_, start, _flags, _size, _, _, width, count, _names = _HEADER.unpack_from(image)
    if not ident.startswith(_IDENT) or kind != _RELOCATABLE or machine != _X86_64 or width != _SECTION.size:
        raise UnsupportedError("no x86-64 ELF object file")
    headers = [_SECTION.unpack_from(image, start + i * width) for i in range(count)]

    def content(index: int) -> bytes:
        offset, size = headers[index][4:6]
        if offset + size > len(image):
            raise UnsupportedError("a section that ends beyond the file")
        return image[offset : offset + size]

    sections: dict[int, Section] = {}
    symbols: list[Symbol] = []
    for i, (_, kind, flags, _, _, size, link, _, align, _) in enumerate(headers):
        if kind == _SYMTAB:
            symbols = _symbols(content(i), content(link))
        if not flags & _ALLOC or not size or kind == _UNWIND:  # nothing is thrown through generated code
            continue
        if kind not in (_PROGBITS, _NOBITS) or flags & _TLS or size > _MOST:
            raise UnsupportedError(f"a section of type {kind}, flags {flags:#x}, {size} bytes")
        body = content(i) if kind == _PROGBITS else bytes(size)
        sections[i] = Section(body, max(align, 1), bool(flags & _WRITE), bool(flags & _EXECUTE), [])
    for i, header in enumerate(headers):
        if header[1] == _RELA and header[7] in sections:
            found = sections[header[7]].relocations
            size = len(sections[header[7]].content)
            for offset, info, addend in _RELOCATION.iter_unpack(content(i)):
                width = 8 if info & 0xFFFFFFFF == ABS64 else 4
                if offset + width > size or info >> 32 >= len(symbols):
                    raise UnsupportedError("a relocation outside of its section")
                found.append(Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend))
        elif header[1] == _REL and header[7] in sections:
            raise UnsupportedError("relocations without addends")
    return ObjectFile(sections, symbols)


def _symbols(table: bytes, names: bytes) -> list[Symbol]:
    found = []
    for name, info, _other, index, offset, _size in _SYMBOL.iter_unpack(table):
        kind = info & 15
        if kind not in (_NOTYPE, _OBJECT, _FUNCTION, _SECTION_SYMBOL, _FILE):
            raise UnsupportedError(f"a symbol of type {kind}")
        if index >= _RESERVED and kind != _FILE:
            raise UnsupportedError(f"a symbol in the reserved section {index:#x}")
        label = names[name : names.index(b"\0", name)].decode()
        found.append(Symbol(label, index if index != _UNDEFINED else None, offset, info >> 4 != 0))
    return found
