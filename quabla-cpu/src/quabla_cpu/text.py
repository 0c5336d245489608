"""A small, fast writer of LLVM IR text.

Code generators build strings; no object graph of instructions is kept. A `Value` is a name and a type, both strings. A
`Module` collects declarations, globals and functions; a `Builder` writes one function, with loops and branches as context
managers, so that a generator looks like the code that it makes:

    module = Module()
    b = module.function("scale", "void", [("ptr", "noalias"), "i64", "double"])
    data, count, factor = b.arguments
    with b.loop(0, count) as i:
        at = b.gep("double", data, i)
        b.store(b.fmul(b.load("double", at), factor), at)
    b.ret()
    text = module.text()

Every operand is checked for its type when the line is written, and intrinsics come from an allow-list: LLVM aborts the
process on some malformed intrinsic calls, so a mistake must surface here, with a Python traceback.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

__all__ = ["Branch", "Builder", "Loop", "Module", "Value", "constant", "element", "is_float", "lanes", "splat", "vector"]


class Value:
    """A typed operand: `name` is what is written where it is used (`%7`, `@table`, `splat (double 0x3FF...)`)."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, type: str) -> None:
        self.name = name
        self.type = type

    def __repr__(self) -> str:
        return f"{self.type} {self.name}"


# Types


def vector(element_type: str, count: int) -> str:
    """The type of `count` lanes of `element_type`; the element itself for one lane.

    Example:
        >>> vector("double", 8), vector("i64", 1)
        ('<8 x double>', 'i64')
    """
    return element_type if count == 1 else f"<{count} x {element_type}>"


@lru_cache(maxsize=None)
def _split(type: str) -> tuple[str, int]:
    if type.startswith("<"):
        count, element_type = type[1:-1].split(" x ")
        return element_type, int(count)
    return type, 1


def element(type: str) -> str:
    """The element type of a vector type; a scalar type is its own element."""
    return _split(type)[0]


def lanes(type: str) -> int:
    """The number of lanes of a type, 1 for scalars."""
    return _split(type)[1]


@lru_cache(maxsize=None)
def is_float(type: str) -> bool:
    """Whether the elements of `type` are floating-point numbers."""
    return _split(type)[0] in ("double", "float", "half", "bfloat")


@lru_cache(maxsize=None)
def _suffix(type: str) -> str:
    """The mangled name of a type in overloaded intrinsics: `v8f64`, `i32`, `p0`."""
    base, count = _split(type)
    name = {"double": "f64", "float": "f32", "half": "f16", "bfloat": "bf16", "ptr": "p0"}.get(base, base)
    return name if count == 1 else f"v{count}{name}"


# Constants


def _float_text(base: str, number: float) -> str:
    if base == "float":
        try:
            number = struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            number = math.copysign(math.inf, number)
    elif base != "double":
        raise TypeError(f"constants of type {base} are not supported; convert from float or double instead")
    if number != number:
        return "0x7FF8000000000000"
    # The exact bits: decimal text that is not exact is refused by LLVM for `float`.
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


_INTEGERS = {f"i{bits}": bits for bits in (1, 8, 16, 32, 64, 128)}


@lru_cache(maxsize=8192)
def _constant_text(base: str, number: float, negative_zero: bool) -> str:
    del negative_zero  # only tells -0.0 from 0.0 (and 0) in the cache
    if base in _INTEGERS:
        bits = _INTEGERS[base]
        whole = int(number)
        if whole != number or not -(1 << max(bits - 1, 0)) <= whole < 1 << bits:
            raise ValueError(f"{number!r} is not a value of type {base}")
        if bits == 1:
            return "true" if whole else "false"
        return str(whole - (1 << bits) if whole >= 1 << (bits - 1) else whole)
    if base == "ptr":
        if number:
            raise ValueError("the only pointer constant is 0 (null); use inttoptr for an address")
        return "null"
    return _float_text(base, float(number))


def constant(type: str, number: float) -> Value:
    """A constant of a scalar or vector type (every lane the same), exact to the bit.

    Args:
        type: An LLVM type such as `"double"`, `"<8 x double>"` or `"i64"`.
        number: A Python number or bool; floats keep -0.0, inf and NaN, and are rounded once for `float`.

    Raises:
        ValueError: The number does not fit an integer type.

    Example:
        >>> constant("<4 x double>", 1.0)
        <4 x double> splat (double 0x3FF0000000000000)
    """
    base, count = _split(type)
    # repr-free test for -0.0: NaN and inf go through unharmed.
    text = _constant_text(base, number, number == 0 and math.copysign(1.0, number) < 0)
    return Value(text if count == 1 else f"splat ({base} {text})", type)


def splat(value: Value, count: int) -> Value:
    """A constant repeated over `count` lanes. For values that are not constants use `Builder.splat`."""
    if count == 1:
        return value
    return Value(f"splat ({value.type} {value.name})", vector(value.type, count))


# Intrinsics: name -> (operand kinds, result kind, overload index or -1). Kinds: F any float type, I any integer type, S the same type as
# the first operand, B i1, M a mask with the lanes of the first operand, E the element of the first operand, P a pointer.

_F1, _F2, _F3 = ("F", "S"), ("FS", "S"), ("FSS", "S")
_I1, _I2, _I3 = ("I", "S"), ("IS", "S"), ("ISS", "S")
INTRINSICS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("sqrt", "fabs", "floor", "ceil", "trunc", "rint", "nearbyint", "roundeven", "round"), _F1),
    **dict.fromkeys(("copysign", "minnum", "maxnum", "minimum", "maximum"), _F2),
    **dict.fromkeys(("fma", "fmuladd"), _F3),
    **dict.fromkeys(("ctpop", "bswap", "bitreverse"), _I1),
    **dict.fromkeys(("smin", "smax", "umin", "umax", "sadd.sat", "uadd.sat", "ssub.sat", "usub.sat"), _I2),
    **dict.fromkeys(("fshl", "fshr"), _I3),
    **dict.fromkeys(("abs", "ctlz", "cttz"), ("IB", "S")),
    **dict.fromkeys(("vector.reduce.add", "vector.reduce.mul", "vector.reduce.and", "vector.reduce.or",
                     "vector.reduce.xor", "vector.reduce.smax", "vector.reduce.smin", "vector.reduce.umax",
                     "vector.reduce.umin"), ("I", "E")),
    **dict.fromkeys(("vector.reduce.fmax", "vector.reduce.fmin", "vector.reduce.fmaximum",
                     "vector.reduce.fminimum"), ("F", "E")),
}  # fmt: skip


def _kind_matches(kind: str, operand: Value, first: Value) -> bool:
    if kind == "F":
        return is_float(operand.type)
    if kind == "I":
        return element(operand.type) in _INTEGERS
    if kind == "S":
        return operand.type == first.type
    return operand.type == "i1"  # kind B


class Module:
    """One unit of LLVM IR text: declarations (each written once), globals, and functions.

    Args:
        attributes: Function attributes put on every function that is defined, besides its own.
    """

    def __init__(self, attributes: str = "") -> None:
        self.attributes = attributes
        self._declarations: dict[str, str] = {}
        self._globals: dict[str, str] = {}
        self._functions: dict[str, Builder] = {}
        self._metadata: list[str] = []
        self._metadata_names: dict[str, str] = {}

    def function(
        self,
        name: str,
        returns: str,
        parameters: Sequence[str | tuple[str, str]],
        *,
        attributes: str = "",
        linkage: str = "",
    ) -> Builder:
        """Start the definition of a function and return its builder.

        Args:
            name: The symbol.
            returns: The return type, `"void"` included.
            parameters: A type, or a pair of type and parameter attributes, for each parameter.
            attributes: Function attributes, such as `"nounwind memory(none)"`.
            linkage: `""` (external), `"internal"`, `"private"`, ...

        Raises:
            ValueError: The module already defines that symbol.
        """
        if name in self._functions:
            raise ValueError(f"function {name!r} is defined twice in one module")
        builder = Builder(self, name, returns, parameters, f"{attributes} {self.attributes}".strip(), linkage)
        self._functions[name] = builder
        return builder

    def defines(self, name: str) -> bool:
        """Whether the module already defines the function `name`."""
        return name in self._functions

    def undefined(self) -> list[str]:
        """The declared functions that the module does not define, intrinsics aside."""
        return [name for name in self._declarations if name not in self._functions and not name.startswith("llvm.")]

    def declare(self, name: str, returns: str, parameters: Sequence[str], attributes: str = "") -> None:
        """Declare an external function; the same declaration may be repeated.

        Raises:
            ValueError: An earlier declaration of the symbol differs.
        """
        line = f"declare {returns} @{name}({', '.join(parameters)}) {attributes}".rstrip()
        if self._declarations.setdefault(name, line) != line:
            raise ValueError(f"{name!r} is declared twice, differently: {self._declarations[name]} / {line}")

    def array(self, name: str, element_type: str, numbers: Sequence[float], align: int = 64) -> Value:
        """A private constant table, returned as a pointer; the same name and content may be repeated."""
        items = ", ".join(f"{element_type} {constant(element_type, number).name}" for number in numbers)
        return self.raw_global(
            name, f"private unnamed_addr constant [{len(numbers)} x {element_type}] [{items}], align {align}"
        )

    def variable(self, name: str, type: str, linkage: str = "internal") -> Value:
        """A zero-initialised global variable, returned as a pointer."""
        return self.raw_global(name, f"{linkage} global {type} zeroinitializer")

    def raw_global(self, name: str, definition: str) -> Value:
        """A global given as the text after `@name = `, returned as a pointer."""
        if self._globals.setdefault(name, definition) != definition:
            raise ValueError(f"global {name!r} is defined twice, differently")
        return Value(f"@{name}", "ptr")

    def metadata(self, content: str, *, distinct: bool = False) -> str:
        """A metadata node such as `!{!"branch_weights", i32 1, i32 2000}`; returns its reference `!0`."""
        if not distinct and content in self._metadata_names:
            return self._metadata_names[content]
        reference = f"!{len(self._metadata)}"
        self._metadata.append(f"{reference} = {'distinct ' if distinct else ''}{content.replace('!SELF', reference)}")
        if not distinct:
            self._metadata_names[content] = reference
        return reference

    def text(self) -> str:
        """The whole module as LLVM IR text."""
        parts = [f"@{name} = {definition}" for name, definition in self._globals.items()]
        parts += [line for name, line in self._declarations.items() if name not in self._functions]
        parts += [builder.text() for builder in self._functions.values()]
        parts += self._metadata
        parts.append("")
        return "\n".join(parts)


class Loop:
    """A loop that carries values: `values` inside the body, `update` at its end, `results` after it."""

    __slots__ = ("_next", "values")

    def __init__(self, values: list[Value]) -> None:
        self.values = values
        self._next: list[Value] | None = None

    def update(self, *values: Value) -> None:
        """Give the values of the next iteration, in the order of `values`; once, at the end of the body."""
        if self._next is not None:
            raise ValueError("a loop is updated once per body")
        if [value.type for value in values] != [value.type for value in self.values]:
            raise TypeError(f"loop carries {self.values}, updated with {list(values)}")
        self._next = list(values)

    @property
    def results(self) -> list[Value]:
        """The carried values after the last iteration."""
        return self.values


class While(Loop):
    """A loop with a condition of its own: call `proceed(condition)` before the body's code."""

    __slots__ = ("_proceed",)

    def __init__(self, values: list[Value], proceed: Callable[[Value], None]) -> None:
        super().__init__(values)
        self._proceed = proceed

    def proceed(self, condition: Value) -> None:
        """End the part that computes the condition: the body runs while it is true."""
        self._proceed(condition)


class Branch:
    """An if/else that yields values; made by `Builder.branch`."""

    __slots__ = ("_builder", "_done", "_ends", "_labels", "_values")

    def __init__(self, builder: Builder, labels: tuple[str, str], done: str) -> None:
        self._builder = builder
        self._labels = labels
        self._done = done
        self._values: list[list[Value]] = [[], []]
        self._ends = ["", ""]

    @contextmanager
    def _side(self, side: int) -> Iterator[Branch]:
        b = self._builder
        b._start_block(self._labels[side])
        yield self
        self._ends[side] = b.block
        b._terminate(f"br label %{self._done}")

    def then(self) -> object:
        """The context of the code that runs where the condition is true; write it first."""
        return self._side(0)

    def otherwise(self) -> object:
        """The context of the code that runs where the condition is false; write it second."""
        return self._side(1)

    def give(self, *values: Value) -> None:
        """The values of the side being written."""
        self._values[1 if self._ends[0] else 0] = list(values)

    def results(self) -> list[Value]:
        """Join the two sides (call it once, also when there are no values) and return the joined values."""
        b = self._builder
        b._start_block(self._done)
        first, second = self._values
        if [value.type for value in first] != [value.type for value in second]:
            raise TypeError(f"the sides of a branch give {first} and {second}")
        return [
            b._emit(x.type, f"phi {x.type} [ {x.name}, %{self._ends[0]} ], [ {y.name}, %{self._ends[1]} ]")
            for x, y in zip(first, second, strict=True)
        ]


class Builder:
    """Writes one function. Methods named after LLVM instructions append one and return its `Value`."""

    __slots__ = ("_entry", "_header", "_labels", "_lines", "_next", "arguments", "block", "module", "name", "returns")

    def __init__(
        self,
        module: Module,
        name: str,
        returns: str,
        parameters: Sequence[str | tuple[str, str]],
        attributes: str,
        linkage: str,
    ) -> None:
        self.module = module
        self.name = name
        self.returns = returns
        self.arguments: list[Value] = []
        written = []
        for index, parameter in enumerate(parameters):
            type, extra = (parameter, "") if isinstance(parameter, str) else parameter
            self.arguments.append(Value(f"%{index}", type))
            written.append(f"{type} {extra} %{index}" if extra else f"{type} %{index}")
        self._header = " ".join(
            part for part in ("define", linkage, returns, f"@{name}({', '.join(written)})", attributes, "{") if part
        )
        self._entry: list[str] = []  # allocas, which LLVM promotes to registers only in the entry block
        self._lines: list[str] = []
        self._next = len(parameters)
        self._labels = 0
        self.block = "entry"

    def text(self) -> str:
        """The function as LLVM IR text."""
        if self.block:
            raise ValueError(f"function {self.name!r} does not end with ret or unreachable")
        return "\n".join((self._header, "entry:", *self._entry, *self._lines, "}"))

    # Plumbing

    def _emit(self, type: str, instruction: str) -> Value:
        name = f"%{self._next}"
        self._next += 1
        self._lines.append(f"{name} = {instruction}")
        return Value(name, type)

    def _terminate(self, instruction: str) -> None:
        self._lines.append(instruction)
        self.block = ""

    def _start_block(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self.block = label

    def _label(self) -> str:
        self._labels += 1
        return f"L{self._labels}"

    def _same(self, what: str, x: Value, y: Value) -> None:
        if x.type != y.type:
            raise TypeError(f"{what}: operands have types {x.type} and {y.type}")

    def _float(self, what: str, x: Value, y: Value) -> str:
        if x.type != y.type or not is_float(x.type):
            raise TypeError(f"{what}: needs two operands of one floating type, got {x.type} and {y.type}")
        return x.type

    def _integer(self, what: str, x: Value, y: Value) -> str:
        if x.type != y.type or element(x.type) not in _INTEGERS:
            raise TypeError(f"{what}: needs two operands of one integer type, got {x.type} and {y.type}")
        return x.type

    def comment(self, text: str) -> None:
        """Write a comment line."""
        self._lines.append(f"; {text}")

    # Arithmetic. `flags` are LLVM's fast-math flags, such as "contract "; the default is strict IEEE arithmetic.

    def fadd(self, x: Value, y: Value, flags: str = "") -> Value:
        type = self._float("fadd", x, y)
        return self._emit(type, f"fadd {flags}{type} {x.name}, {y.name}")

    def fsub(self, x: Value, y: Value, flags: str = "") -> Value:
        type = self._float("fsub", x, y)
        return self._emit(type, f"fsub {flags}{type} {x.name}, {y.name}")

    def fmul(self, x: Value, y: Value, flags: str = "") -> Value:
        type = self._float("fmul", x, y)
        return self._emit(type, f"fmul {flags}{type} {x.name}, {y.name}")

    def fdiv(self, x: Value, y: Value, flags: str = "") -> Value:
        type = self._float("fdiv", x, y)
        return self._emit(type, f"fdiv {flags}{type} {x.name}, {y.name}")

    def frem(self, x: Value, y: Value) -> Value:
        """C's `fmod`. LLVM makes it a library call per lane."""
        type = self._float("frem", x, y)
        return self._emit(type, f"frem {type} {x.name}, {y.name}")

    def fneg(self, x: Value) -> Value:
        if not is_float(x.type):
            raise TypeError(f"fneg: needs a floating operand, got {x.type}")
        return self._emit(x.type, f"fneg {x.type} {x.name}")

    def _int2(self, op: str, x: Value, y: Value) -> Value:
        type = self._integer(op, x, y)
        return self._emit(type, f"{op} {type} {x.name}, {y.name}")

    def add(self, x: Value, y: Value, flags: str = "") -> Value:
        """Integer addition; `flags` such as "nsw"."""
        return self._int2(f"add {flags}" if flags else "add", x, y)

    def sub(self, x: Value, y: Value, flags: str = "") -> Value:
        return self._int2(f"sub {flags}" if flags else "sub", x, y)

    def mul(self, x: Value, y: Value, flags: str = "") -> Value:
        return self._int2(f"mul {flags}" if flags else "mul", x, y)

    def sdiv(self, x: Value, y: Value) -> Value:
        """Signed division towards zero. Division by zero traps: guard the divisor."""
        return self._int2("sdiv", x, y)

    def srem(self, x: Value, y: Value) -> Value:
        """Signed remainder, with the sign of `x`. Division by zero traps: guard the divisor."""
        return self._int2("srem", x, y)

    def udiv(self, x: Value, y: Value) -> Value:
        return self._int2("udiv", x, y)

    def urem(self, x: Value, y: Value) -> Value:
        return self._int2("urem", x, y)

    def shl(self, x: Value, y: Value) -> Value:
        return self._int2("shl", x, y)

    def lshr(self, x: Value, y: Value) -> Value:
        return self._int2("lshr", x, y)

    def ashr(self, x: Value, y: Value) -> Value:
        return self._int2("ashr", x, y)

    def and_(self, x: Value, y: Value) -> Value:
        return self._int2("and", x, y)

    def or_(self, x: Value, y: Value) -> Value:
        return self._int2("or", x, y)

    def xor(self, x: Value, y: Value) -> Value:
        return self._int2("xor", x, y)

    def not_(self, x: Value) -> Value:
        """All bits inverted; logical not for `i1`."""
        return self.xor(x, constant(x.type, 1 if element(x.type) == "i1" else -1))

    def icmp(self, predicate: str, x: Value, y: Value) -> Value:
        """Integer or pointer comparison: eq ne slt sle sgt sge ult ule ugt uge."""
        if predicate not in _ICMP:
            raise ValueError(f"icmp: unknown predicate {predicate!r}; one of {' '.join(_ICMP)}")
        self._same("icmp", x, y)
        return self._emit(vector("i1", lanes(x.type)), f"icmp {predicate} {x.type} {x.name}, {y.name}")

    def fcmp(self, predicate: str, x: Value, y: Value) -> Value:
        """Floating comparison: o.. are false and u.. are true where an operand is NaN (oeq one olt ole ogt oge ord ...)."""
        if predicate not in _FCMP:
            raise ValueError(f"fcmp: unknown predicate {predicate!r}; one of {' '.join(_FCMP)}")
        type = self._float("fcmp", x, y)
        return self._emit(vector("i1", lanes(type)), f"fcmp {predicate} {type} {x.name}, {y.name}")

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        """`x` where the condition (one `i1`, or one per lane) is true, else `y`."""
        self._same("select", x, y)
        if element(condition.type) != "i1" or lanes(condition.type) not in (1, lanes(x.type)):
            raise TypeError(f"select: condition {condition.type} does not fit operands of type {x.type}")
        return self._emit(x.type, f"select {condition.type} {condition.name}, {x.type} {x.name}, {y.type} {y.name}")

    # Conversions; the target is an element type or a whole type

    def _cast(self, op: str, x: Value, to: str) -> Value:
        type = to if to.startswith("<") else vector(to, lanes(x.type))
        if type == x.type:
            return x
        if op != "bitcast" and lanes(type) != lanes(x.type):
            raise TypeError(f"{op}: {x.type} and {type} have different lane counts")
        return self._emit(type, f"{op} {x.type} {x.name} to {type}")

    def bitcast(self, x: Value, to: str) -> Value:
        """The same bits as another type of the same size. A scalar target applies per lane."""
        return self._cast("bitcast", x, to)

    def bitcast_whole(self, x: Value, to: str) -> Value:
        """The same bits as exactly the type `to`, for example a mask `<8 x i1>` as `i8`."""
        return self._emit(to, f"bitcast {x.type} {x.name} to {to}")

    def sitofp(self, x: Value, to: str) -> Value:
        return self._cast("sitofp", x, to)

    def uitofp(self, x: Value, to: str) -> Value:
        return self._cast("uitofp", x, to)

    def fptosi(self, x: Value, to: str) -> Value:
        """Truncation to an integer; a poison value (anything) where it does not fit."""
        return self._cast("fptosi", x, to)

    def fptoui(self, x: Value, to: str) -> Value:
        return self._cast("fptoui", x, to)

    def fpext(self, x: Value, to: str) -> Value:
        return self._cast("fpext", x, to)

    def fptrunc(self, x: Value, to: str) -> Value:
        return self._cast("fptrunc", x, to)

    def zext(self, x: Value, to: str) -> Value:
        return self._cast("zext", x, to)

    def sext(self, x: Value, to: str) -> Value:
        return self._cast("sext", x, to)

    def trunc(self, x: Value, to: str) -> Value:
        """Integer truncation. (Rounding towards zero is `intrinsic("trunc", x)`.)"""
        return self._cast("trunc", x, to)

    def ptrtoint(self, x: Value, to: str = "i64") -> Value:
        return self._cast("ptrtoint", x, to)

    def inttoptr(self, x: Value) -> Value:
        return self._cast("inttoptr", x, "ptr")

    # Calls

    def call(self, name: str, returns: str, *operands: Value, attributes: str = "", prefix: str = "") -> Value:
        """Call a function by symbol, declaring it where the module does not define it.

        Args:
            name: The symbol.
            returns: Its return type; for `"void"` the returned Value must not be used.
            operands: The arguments.
            attributes: Function attributes for the declaration, such as `"memory(none) nounwind willreturn"`.
            prefix: Written before the return type: fast-math flags or a calling convention.
        """
        if name not in self.module._functions and name not in self.module._declarations:
            convention = f"{prefix} " if "cc" in prefix else ""
            self.module.declare(name, convention + returns, [operand.type for operand in operands], attributes)
        return self._call(f"@{name}", returns, operands, prefix)

    def call_pointer(self, pointer: Value, returns: str, *operands: Value) -> Value:
        """Call through a function pointer."""
        return self._call(pointer.name, returns, operands, "")

    def _call(self, target: str, returns: str, operands: Sequence[Value], prefix: str) -> Value:
        written = ", ".join([f"{operand.type} {operand.name}" for operand in operands])
        line = f"call {prefix}{' ' if prefix else ''}{returns} {target}({written})"
        if returns == "void":
            self._lines.append(line)
            return Value("<void>", "void")
        return self._emit(returns, line)

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """Call an allow-listed intrinsic, by its name without `llvm.` and type suffix.

        Raises:
            ValueError: The name is not in the list, or the number of operands is wrong.
            TypeError: An operand has the wrong type.
        """
        entry = INTRINSICS.get(name)
        if entry is None:
            raise ValueError(f"intrinsic {name!r} is not in the allow-list of quabla_cpu.text")
        kinds, result = entry
        if len(kinds) != len(operands):
            raise ValueError(f"intrinsic {name!r} takes {len(kinds)} operands, got {len(operands)}")
        first = operands[0]
        for kind, operand in zip(kinds, operands, strict=True):
            if not _kind_matches(kind, operand, first):
                raise TypeError(f"intrinsic {name!r}: operand types {[operand.type for operand in operands]}")
        returns = first.type if result == "S" else element(first.type)
        if result == "E" and lanes(first.type) == 1:
            return first
        symbol = f"llvm.{name}.{_suffix(first.type)}"
        if symbol not in self.module._declarations:
            self.module.declare(symbol, returns, [operand.type for operand in operands])
        return self._call(f"@{symbol}", returns, operands, "")

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """`x * y + z` rounded once."""
        return self.intrinsic("fma", x, y, z)

    def sqrt(self, x: Value) -> Value:
        return self.intrinsic("sqrt", x)

    def fabs(self, x: Value) -> Value:
        return self.intrinsic("fabs", x)

    def floor(self, x: Value) -> Value:
        return self.intrinsic("floor", x)

    def ceil(self, x: Value) -> Value:
        return self.intrinsic("ceil", x)

    def rint(self, x: Value) -> Value:
        """Round to the nearest integer, ties to even, as a float."""
        return self.intrinsic("rint", x)

    def copysign(self, x: Value, y: Value) -> Value:
        """The magnitude of `x` with the sign of `y`."""
        return self.intrinsic("copysign", x, y)

    def maximum(self, x: Value, y: Value) -> Value:
        """The larger operand, NaN where either is NaN (NumPy's `maximum`; also orders -0.0 below 0.0)."""
        return self.intrinsic("maximum", x, y)

    def minimum(self, x: Value, y: Value) -> Value:
        """The smaller operand, NaN where either is NaN (NumPy's `minimum`)."""
        return self.intrinsic("minimum", x, y)

    # Memory

    def gep(self, element_type: str, base: Value, *indices: Value | int, inbounds: bool = True) -> Value:
        """The address of element `index` of an array of `element_type` at `base`; a vector of addresses for vector indices."""
        written, count = [], 1
        for index in indices:
            if isinstance(index, int):
                written.append(f"i64 {index}")
            else:
                written.append(f"{index.type} {index.name}")
                count = max(count, lanes(index.type))
        flag = "inbounds " if inbounds else ""
        return self._emit(
            vector("ptr", count), f"getelementptr {flag}{element_type}, {base.type} {base.name}, {', '.join(written)}"
        )

    def load(self, type: str, address: Value, align: int = 0, metadata: str = "") -> Value:
        """Load a value. `align` in bytes; by default the element's own size, which array data always has."""
        return self._emit(type, f"load {type}, ptr {address.name}, align {align or _size(type)}{metadata}")

    def store(self, value: Value, address: Value, align: int = 0, metadata: str = "") -> None:
        """Store a value; `align` as for `load`."""
        self._lines.append(
            f"store {value.type} {value.name}, ptr {address.name}, align {align or _size(value.type)}{metadata}"
        )

    def _mask(self, what: str, mask: Value, type: str) -> None:
        if mask.type != vector("i1", lanes(type)) or lanes(type) == 1:
            raise TypeError(f"{what}: a vector of type {type} needs a mask of the same lanes, got {mask.type}")

    def masked_load(self, type: str, address: Value, mask: Value, default: Value | None = None, align: int = 0) -> Value:
        """Load the lanes where `mask` is true; `default` (zero) elsewhere, where memory is not touched."""
        self._mask("masked_load", mask, type)
        rest = default or constant(type, 0)
        self._same("masked_load", rest, Value("", type))
        symbol = f"llvm.masked.load.{_suffix(type)}.p0"
        self.module.declare(symbol, type, ["ptr", "i32", mask.type, type])
        return self._call(f"@{symbol}", type, (address, constant("i32", align or _size(type)), mask, rest), "")

    def masked_store(self, value: Value, address: Value, mask: Value, align: int = 0) -> None:
        """Store the lanes where `mask` is true."""
        self._mask("masked_store", mask, value.type)
        symbol = f"llvm.masked.store.{_suffix(value.type)}.p0"
        self.module.declare(symbol, "void", [value.type, "ptr", "i32", mask.type])
        self._call(f"@{symbol}", "void", (value, address, constant("i32", align or _size(value.type)), mask), "")

    def gather(self, type: str, addresses: Value, mask: Value | None = None, default: Value | None = None) -> Value:
        """Load one element per lane from a vector of addresses (see `gep`)."""
        mask = mask or constant(vector("i1", lanes(type)), True)
        self._mask("gather", mask, type)
        rest = default or constant(type, 0)
        many = vector("ptr", lanes(type))
        self._same("gather", addresses, Value("", many))
        self._same("gather", rest, Value("", type))
        symbol = f"llvm.masked.gather.{_suffix(type)}.{_suffix(many)}"
        self.module.declare(symbol, type, [many, "i32", mask.type, type])
        return self._call(f"@{symbol}", type, (addresses, constant("i32", _size(type)), mask, rest), "")

    def scatter(self, value: Value, addresses: Value, mask: Value | None = None) -> None:
        """Store one element per lane to a vector of addresses, in lane order."""
        mask = mask or constant(vector("i1", lanes(value.type)), True)
        self._mask("scatter", mask, value.type)
        many = vector("ptr", lanes(value.type))
        self._same("scatter", addresses, Value("", many))
        symbol = f"llvm.masked.scatter.{_suffix(value.type)}.{_suffix(many)}"
        self.module.declare(symbol, "void", [value.type, many, "i32", mask.type])
        self._call(f"@{symbol}", "void", (value, addresses, constant("i32", _size(value.type)), mask), "")

    def memcpy(self, to: Value, source: Value, size: Value) -> None:
        """Copy `size` bytes (i64) between blocks that do not overlap."""
        self.module.declare("llvm.memcpy.p0.p0.i64", "void", ["ptr", "ptr", "i64", "i1"])
        self._call("@llvm.memcpy.p0.p0.i64", "void", (to, source, size, constant("i1", 0)), "")

    def memset(self, to: Value, byte: Value, size: Value) -> None:
        """Fill `size` bytes (i64) with a byte (i8)."""
        self.module.declare("llvm.memset.p0.i64", "void", ["ptr", "i8", "i64", "i1"])
        self._call("@llvm.memset.p0.i64", "void", (to, byte, size, constant("i1", 0)), "")

    def alloca(self, type: str, count: int = 1, align: int = 0) -> Value:
        """Stack memory for `count` values, reserved once at the entry of the function."""
        name = f"%stack{len(self._entry)}"
        tail = f", align {align}" if align else ""
        self._entry.append(f"{name} = alloca {type}, i64 {count}{tail}")
        return Value(name, "ptr")

    # Vectors and structs

    def splat(self, x: Value, count: int) -> Value:
        """A scalar repeated over `count` lanes."""
        if count == 1:
            return x
        if not x.name.startswith(("%", "@")):
            return splat(x, count)
        type = vector(x.type, count)
        one = self._emit(type, f"insertelement {type} poison, {x.type} {x.name}, i64 0")
        return self._emit(
            type, f"shufflevector {type} {one.name}, {type} poison, <{count} x i32> zeroinitializer"
        )

    def iota(self, type: str, start: Value | None = None) -> Value:
        """The lane numbers 0, 1, 2, ... of an integer vector type, plus `start` (a scalar) where given."""
        base, count = _split(type)
        if count == 1:
            return start or constant(type, 0)
        numbers = Value(f"<{', '.join(f'{base} {lane}' for lane in range(count))}>", type)
        return numbers if start is None else self.add(self.splat(start, count), numbers)

    def extract(self, x: Value, lane: Value | int) -> Value:
        """One lane of a vector."""
        index = f"i64 {lane}" if isinstance(lane, int) else f"{lane.type} {lane.name}"
        return self._emit(element(x.type), f"extractelement {x.type} {x.name}, {index}")

    def insert(self, x: Value, value: Value, lane: Value | int) -> Value:
        """A vector with one lane replaced."""
        if value.type != element(x.type):
            raise TypeError(f"insert: cannot put {value.type} into {x.type}")
        index = f"i64 {lane}" if isinstance(lane, int) else f"{lane.type} {lane.name}"
        return self._emit(x.type, f"insertelement {x.type} {x.name}, {value.type} {value.name}, {index}")

    def shuffle(self, x: Value, y: Value | None, order: Sequence[int]) -> Value:
        """The lanes `order` of the concatenation of two vectors (`y` may be None where unused); -1 is any value."""
        base, count = _split(x.type)
        if any(not -1 <= lane < (count if y is None else 2 * count) for lane in order):
            raise ValueError(f"shuffle: lane order {list(order)} is out of range for {x.type}")
        second = "poison" if y is None else y.name
        mask = ", ".join("i32 poison" if lane < 0 else f"i32 {lane}" for lane in order)
        return self._emit(
            f"<{len(order)} x {base}>",
            f"shufflevector {x.type} {x.name}, {x.type} {second}, <{len(order)} x i32> <{mask}>",
        )

    def reduce(self, x: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """Reduce all lanes to a scalar by halving: the order is fixed, so the same bits come out on every run."""
        count = lanes(x.type)
        while count > 1:
            half = count // 2
            low, high = range(half), range(half, 2 * half)
            if half == 1:
                pair = self.extract(x, 0), self.extract(x, 1)
            else:
                pair = self.shuffle(x, None, list(low)), self.shuffle(x, None, list(high))
            joined = combine(*pair)
            if count % 2:
                raise ValueError(f"reduce: {x.type} does not have a power of two of lanes")
            x, count = joined, half
        return x

    def reduce_add(self, x: Value) -> Value:
        """The sum of all lanes, pairwise."""
        return self.reduce(x, self.fadd if is_float(x.type) else self.add)

    def reduce_mul(self, x: Value) -> Value:
        """The product of all lanes, pairwise."""
        return self.reduce(x, self.fmul if is_float(x.type) else self.mul)

    def any(self, mask: Value) -> Value:
        """Whether any lane of a mask is true, as `i1`."""
        return self._mask_test(mask, "ne", 0)

    def all(self, mask: Value) -> Value:
        """Whether all lanes of a mask are true, as `i1`."""
        return self._mask_test(mask, "eq", -1)

    def _mask_test(self, mask: Value, predicate: str, number: int) -> Value:
        count = lanes(mask.type)
        if count == 1:
            return mask
        bits = self._emit(f"i{count}", f"bitcast {mask.type} {mask.name} to i{count}")
        return self._emit("i1", f"icmp {predicate} i{count} {bits.name}, {number}")

    def make_struct(self, *values: Value) -> Value:
        """A struct value with the given fields, as returned by functions with several results."""
        type = "{ " + ", ".join(value.type for value in values) + " }"
        out = Value("poison", type)
        for index, value in enumerate(values):
            out = self._emit(type, f"insertvalue {type} {out.name}, {value.type} {value.name}, {index}")
        return out

    def field(self, struct: Value, index: int) -> Value:
        """Field `index` of a struct value."""
        types = [part.strip() for part in struct.type.strip("{} ").split(", ")]
        return self._emit(types[index], f"extractvalue {struct.type} {struct.name}, {index}")

    # Control flow

    def ret(self, value: Value | None = None) -> None:
        """Return from the function."""
        if (value.type if value else "void") != self.returns:
            raise TypeError(f"function {self.name!r} returns {self.returns}, not {value}")
        self._terminate(f"ret {value.type} {value.name}" if value else "ret void")

    def unreachable(self) -> None:
        """End the block where control never arrives."""
        self._terminate("unreachable")

    def _index(self, x: Value | int, type: str) -> Value:
        return constant(type, x) if isinstance(x, int) else x

    @contextmanager
    def carry(
        self, start: Value | int, stop: Value | int, initial: Sequence[Value], step: Value | int = 1
    ) -> Iterator[tuple[Value, Loop]]:
        """A counted loop with carried values: `with b.carry(0, n, [zero]) as (i, loop): ...; loop.update(next)`.

        The body sees `loop.values`, gives the next ones with `loop.update(...)`, and `loop.results` holds after it. The
        body runs while `i < stop` (signed), so not at all for an empty range; `step` must be positive.
        """
        type = next((x.type for x in (start, stop, step) if isinstance(x, Value)), "i64")
        first, last, stride = self._index(start, type), self._index(stop, type), self._index(step, type)
        self._same("loop", first, last)
        self._same("loop", first, stride)
        before, head, body, done = self.block, self._label(), self._label(), self._label()
        self._terminate(f"br label %{head}")
        self._start_block(head)
        patch = len(self._lines)
        i = self._emit(type, "")
        loop = Loop([self._emit(value.type, "") for value in initial])
        go = self.icmp("slt", i, last)
        self._terminate(f"br i1 {go.name}, label %{body}, label %{done}")
        self._start_block(body)
        yield i, loop
        following = self.add(i, stride, "nsw")
        self._close(patch, before, [(i, first, following)], loop, initial, head)
        self._start_block(done)

    def _close(
        self,
        patch: int,
        before: str,
        counters: list[tuple[Value, Value, Value]],
        loop: Loop,
        initial: Sequence[Value],
        head: str,
    ) -> None:
        """Write the phis of a loop head, now that the values of the back edge are known."""
        if loop._next is None:
            if loop.values:
                raise ValueError("a loop with carried values needs loop.update(...) at the end of its body")
            loop._next = []
        carried = [*counters, *zip(loop.values, initial, loop._next, strict=True)]
        for offset, (phi, first, following) in enumerate(carried):
            self._lines[patch + offset] = (
                f"{phi.name} = phi {phi.type} [ {first.name}, %{before} ], [ {following.name}, %{self.block} ]"
            )
        self._terminate(f"br label %{head}")

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """A counted loop over `range(start, stop, step)`, `step` positive; yields the index (`i64` unless given typed)."""
        with self.carry(start, stop, (), step) as (i, _):
            yield i

    @contextmanager
    def while_(self, initial: Sequence[Value]) -> Iterator[While]:
        """A loop with a condition: compute it from `loop.values`, call `loop.proceed(condition)`, then write the body.

            with b.while_([x]) as loop:
                loop.proceed(b.fcmp("ogt", loop.values[0], limit))
                loop.update(b.fmul(loop.values[0], half))
            (x,) = loop.results
        """
        before, head, body, done = self.block, self._label(), self._label(), self._label()
        self._terminate(f"br label %{head}")
        self._start_block(head)
        patch = len(self._lines)
        values = [self._emit(value.type, "") for value in initial]

        def proceed(condition: Value) -> None:
            self._terminate(f"br i1 {condition.name}, label %{body}, label %{done}")
            self._start_block(body)

        loop = While(values, proceed)
        yield loop
        self._close(patch, before, [], loop, initial, head)
        self._start_block(done)

    def branch(self, condition: Value, likely: bool | None = None) -> Branch:
        """An if/else that may yield values.

            branch = b.branch(condition)
            with branch.then():
                branch.give(x)
            with branch.otherwise():
                branch.give(y)
            (z,) = branch.results()
        """
        then, otherwise, done = self._label(), self._label(), self._label()
        self._conditional(condition, then, otherwise, likely)
        return Branch(self, (then, otherwise), done)

    @contextmanager
    def if_(self, condition: Value, likely: bool | None = None) -> Iterator[None]:
        """Code that runs where the scalar condition is true; `likely` tells the code layout what to expect."""
        then, done = self._label(), self._label()
        self._conditional(condition, then, done, likely)
        self._start_block(then)
        yield
        if self.block:  # the body may have returned
            self._terminate(f"br label %{done}")
        self._start_block(done)

    def _conditional(self, condition: Value, then: str, otherwise: str, likely: bool | None) -> None:
        if condition.type != "i1":
            raise TypeError(f"a branch needs one i1, got {condition.type}; use any() or all() on a mask")
        weights = ""
        if likely is not None:
            first, second = (2000, 1) if likely else (1, 2000)
            weights = ", !prof " + self.module.metadata(f'!{{!"branch_weights", i32 {first}, i32 {second}}}')
        self._terminate(f"br i1 {condition.name}, label %{then}, label %{otherwise}{weights}")


_ICMP = frozenset("eq ne slt sle sgt sge ult ule ugt uge".split())
_FCMP = frozenset("oeq one olt ole ogt oge ord ueq une ult ule ugt uge uno true false".split())
_SIZES = {"double": 8, "float": 4, "half": 2, "bfloat": 2, "ptr": 8, "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8}


@lru_cache(maxsize=None)
def _size(type: str) -> int:
    return _SIZES[_split(type)[0]]
