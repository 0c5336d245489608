"""Object files read, joined and put into memory without LLVM, against LLVM's own linker."""

from __future__ import annotations

import ctypes
import gc
import platform
import random
import struct
import sys

import pytest

from quabla_cpu import elf, engine, memory, text
from quabla_cpu.image import PAGE, UnsupportedError
from quabla_cpu.joining import Piece, join

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="other systems leave it to LLVM"
)

# Constants, a table of addresses, variables with and without content, calls within, outside and through addresses.
MODULE = """
@table = internal constant [3 x ptr] [ptr @plus, ptr @minus, ptr @triple]
@start = global [2 x i64] [i64 100, i64 200]
@count = internal global i64 0
@outside = external global i64
@numbers = private unnamed_addr constant [4 x double] [double 0.5, double 1.5, double 2.5, double 3.5], align 64
declare i64 @callback(i64)
declare i64 @labs(i64)
define i64 @plus(i64 %x) { %r = add i64 %x, 7 ret i64 %r }
define internal i64 @minus(i64 %x) { %r = sub i64 %x, 9 ret i64 %r }
define i64 @triple(i64 %x) { %r = mul i64 %x, 3 ret i64 %r }
define i64 @choose(i64 %i, i64 %x) {
  %p = getelementptr [3 x ptr], ptr @table, i64 0, i64 %i
  %f = load ptr, ptr %p
  %r = call i64 %f(i64 %x)
  ret i64 %r
}
define i64 @counted() {
  %n = load i64, ptr @count
  %m = add i64 %n, 1
  store i64 %m, ptr @count
  %p = getelementptr [2 x i64], ptr @start, i64 0, i64 1
  %s = load i64, ptr %p
  %r = add i64 %s, %m
  ret i64 %r
}
define i64 @reach(i64 %x) {
  %a = call i64 @callback(i64 %x)
  %b = call i64 @labs(i64 %a)
  %c = load i64, ptr @outside
  %r = add i64 %b, %c
  ret i64 %r
}
define double @scaled(i64 %i, double %x) {
  %p = getelementptr [4 x double], ptr @numbers, i64 0, i64 %i
  %s = load double, ptr %p
  %a = fmul double %s, %x
  %r = fadd double %a, 0x400921FB54442D18
  ret double %r
}
define i64 @name(i64 %i) {
  switch i64 %i, label %other [ i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d i64 4, label %e ]
a: ret i64 11
b: ret i64 25
c: ret i64 -3
d: ret i64 999
e: ret i64 40
other: ret i64 0
}
"""
EXPORTS = ["choose", "counted", "reach", "scaled", "name"]
NUMBER = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
outside = ctypes.c_int64(10**12)
callback = NUMBER(lambda x: -2 * x)
IMPORTS = {
    "outside": ctypes.addressof(outside),
    "callback": ctypes.cast(callback, ctypes.c_void_p).value or 0,
}


@pytest.fixture(scope="module")
def code() -> bytes:
    return engine.compile(MODULE, cache=False, passes=False)


def results(library: engine.Library) -> list[float]:
    two = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(library.address("choose"))
    counted = ctypes.CFUNCTYPE(ctypes.c_int64)(library.address("counted"))
    scaled = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)(library.address("scaled"))
    reach, name = NUMBER(library.address("reach")), NUMBER(library.address("name"))
    return [
        *(two(i, 50) for i in range(3)),
        *(counted() for _ in range(3)),
        reach(21),
        *(scaled(i, 2.0) for i in range(4)),
        *(name(i) for i in range(6)),
    ]


def test_a_module_with_everything_runs_as_llvm_links_it(code: bytes) -> None:
    by_hand = [
        57,
        41,
        150,
        201,
        202,
        203,
        10**12 + 42,
        *(2 * x + 3.141592653589793 for x in (0.5, 1.5, 2.5, 3.5)),
    ]
    by_hand += [11, 25, -3, 999, 40, 0]
    ours = engine.load(join([Piece(code)], EXPORTS), IMPORTS)
    assert results(ours) == by_hand
    assert results(engine._link([code], EXPORTS, IMPORTS, ())) == by_hand


def test_pieces_see_each_other_under_their_new_names() -> None:
    def piece(constant: int) -> bytes:
        return engine.compile(
            f"define i64 @f(i64 %x) {{ %r = mul i64 %x, {constant} ret i64 %r }}", cache=False
        )

    caller = engine.compile(
        "declare i64 @five(i64) declare i64 @six(i64)\n"
        "define i64 @g(i64 %x) { %a = call i64 @five(i64 %x) %b = call i64 @six(i64 %a) ret i64 %b }",
        cache=False,
    )
    image = join([Piece(caller), Piece(piece(5), {"f": "five"}), Piece(piece(6), {"f": "six"})], ["g"])
    assert not image.outer
    library = engine.load(image, {})
    assert NUMBER(library.address("g"))(7) == 210
    with pytest.raises(ValueError, match="twice"):
        join([Piece(piece(5)), Piece(piece(6))], ["f"])
    with pytest.raises(ValueError, match="not defined"):
        join([Piece(caller)], ["h"])


def permissions(address: int) -> str:
    for line in open("/proc/self/maps"):
        low, high = (int(x, 16) for x in line.split()[0].split("-"))
        if low <= address < high:
            return line.split()[1]
    return ""


def test_no_page_is_writable_and_executable(code: bytes) -> None:
    image = join([Piece(code)], EXPORTS)
    assert PAGE <= image.writable < len(image.content)  # the module has variables
    mapping = memory.place(image, lambda name: IMPORTS.get(name) or memory.c_function(name))
    assert permissions(mapping.base) == "r-xp"
    assert permissions(mapping.base + image.writable) == "rw-p"


def test_memory_is_given_back(code: bytes) -> None:
    library = engine.load(join([Piece(code)], EXPORTS), IMPORTS)
    address = library.address("name")
    assert "x" in permissions(address)
    many = [engine.load(join([Piece(code)], EXPORTS), IMPORTS) for _ in range(50)]
    places = [x.address("name") for x in many]
    del library, many
    gc.collect()
    assert not any("x" in permissions(place) for place in [address, *places])


@pytest.mark.parametrize("what", ["magic", "machine", "class", "kind", "empty", "cut"])
def test_other_files_are_left_to_llvm(code: bytes, what: str) -> None:
    damaged = bytearray(code)
    if what == "magic":
        damaged[:4] = b"\xcf\xfa\xed\xfe"  # Mach-O
    elif what == "machine":
        struct.pack_into("<H", damaged, 18, 183)  # AArch64
    elif what == "class":
        damaged[4] = 1  # 32 bits
    elif what == "kind":
        struct.pack_into("<H", damaged, 16, 3)  # a shared object
    elif what == "empty":
        damaged.clear()
    else:
        del damaged[len(damaged) // 2 :]
    with pytest.raises(UnsupportedError):
        elf.read(bytes(damaged))


def test_relocations_that_are_not_known_are_left_to_llvm(code: bytes) -> None:
    file = elf.read(code)
    kinds = {r.kind for section in file.sections.values() for r in section.relocations}
    assert {elf.ABS64, elf.RELATIVE, elf.PLT_RELATIVE} < kinds and kinds & {*elf.GOT_RELATIVE}
    relocation = next(
        struct.pack("<QQq", r.offset, r.symbol << 32 | r.kind, r.addend)
        for section in file.sections.values()
        for r in section.relocations
        if r.kind == elf.PLT_RELATIVE
    )
    strange = relocation[:8] + struct.pack("<I", 33) + relocation[12:]
    with pytest.raises(UnsupportedError, match="relocation 33"):
        join([Piece(code.replace(relocation, strange))], EXPORTS)


def test_damage_anywhere_is_noticed_or_harmless(code: bytes) -> None:
    """No damage makes reading and joining fail in any other way. What comes out is not run."""
    rng = random.Random(7)
    for _ in range(3000):
        damaged = bytearray(code)
        for _ in range(rng.choice([1, 1, 4])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            image = join([Piece(bytes(damaged))], EXPORTS)
        except (UnsupportedError, ValueError):
            continue
        assert len(image.content) < 1 << 30


def test_where_memory_may_not_be_executed_llvm_decides(code: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __init__(self, libc: ctypes.CDLL) -> None:
            self.libc = libc

        def __getattr__(self, name: str) -> object:
            return (lambda *arguments: -1) if name == "mprotect" else getattr(self.libc, name)

        def __getitem__(self, name: str) -> object:
            return self.libc[name]

    monkeypatch.setattr(memory, "_libc", Refusing(memory._process()))
    with pytest.raises(UnsupportedError, match="executed"):
        engine.load(join([Piece(code)], EXPORTS), IMPORTS)
    assert results(engine.link([code], EXPORTS, IMPORTS))[:3] == [57, 41, 150]


def test_a_missing_symbol_is_named(code: bytes) -> None:
    with pytest.raises(ValueError, match="callback"):
        engine.load(join([Piece(code)], EXPORTS), {"outside": IMPORTS["outside"]})


def test_functions_of_the_c_library_are_known() -> None:
    assert memory.is_c_function("memcpy") and memory.is_c_function("fmod")
    assert not memory.is_c_function("no_such_function_anywhere")


def test_builders_need_no_special_case() -> None:
    module = text.Module(engine.function_attributes())
    b = module.function("f", "double", ["double"])
    b.ret(b.fadd(b.arguments[0], text.constant("double", 0.1)))
    image = join([Piece(engine.compile(module.text(), cache=False))], ["f"])
    assert not image.outer and image.writable == len(image.content)
    library = engine.load(image, {})
    call = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(library.address("f"))
    assert call(0.2) == 0.2 + 0.1
