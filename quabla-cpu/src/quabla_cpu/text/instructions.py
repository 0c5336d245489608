"""The straight-line instructions of a function: arithmetic, conversions and calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .intrinsics import overload
from .values import Value, constant, element, is_float, is_integer, lanes, vector

if TYPE_CHECKING:
    from .module import Module

_ICMP = frozenset("eq ne slt sle sgt sge ult ule ugt uge".split())
_FCMP = frozenset("oeq one olt ole ogt oge ord ueq une ult ule ugt uge uno true false".split())


class Instructions:
    """Writes one function. Methods named after LLVM instructions append one and return its `Value`."""

    __slots__ = (
        "_entry",
        "_header",
        "_labels",
        "_lines",
        "_next",
        "arguments",
        "block",
        "module",
        "name",
        "returns",
    )

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
            part
            for part in ("define", linkage, returns, f"@{name}({', '.join(written)})", attributes, "{")
            if part
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
        if x.type != y.type or not is_integer(x.type):
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
        """Floating comparison; with a NaN, the o.. are false and the u.. true (oeq one olt ole ogt oge ord ...)."""
        if predicate not in _FCMP:
            raise ValueError(f"fcmp: unknown predicate {predicate!r}; one of {' '.join(_FCMP)}")
        type = self._float("fcmp", x, y)
        return self._emit(vector("i1", lanes(type)), f"fcmp {predicate} {type} {x.name}, {y.name}")

    def select(self, condition: Value, x: Value, y: Value) -> Value:
        """`x` where the condition (one `i1`, or one per lane) is true, else `y`."""
        self._same("select", x, y)
        if element(condition.type) != "i1" or lanes(condition.type) not in (1, lanes(x.type)):
            raise TypeError(f"select: condition {condition.type} does not fit operands of type {x.type}")
        return self._emit(
            x.type, f"select {condition.type} {condition.name}, {x.type} {x.name}, {y.type} {y.name}"
        )

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

    def call(
        self, name: str, returns: str, *operands: Value, attributes: str = "", prefix: str = ""
    ) -> Value:
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
            self.module.declare(
                name, convention + returns, [operand.type for operand in operands], attributes
            )
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
        types = tuple([operand.type for operand in operands])
        symbol, returns = overload(name, types)
        if not symbol:
            return operands[0]
        if symbol not in self.module._declarations:
            self.module.declare(symbol, returns, types)
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
