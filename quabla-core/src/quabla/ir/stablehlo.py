"""A Program as a StableHLO module in MLIR's text form, which other compilers read.

Elementwise functions that StableHLO itself lacks (`erf`, `arcsin`) are taken from CHLO, the dialect that goes with it.
Branches become `stablehlo.if`, loops `stablehlo.while`. An op without a form here becomes a `custom_call` of the target
`quabla.NAME`: the text stays valid, but only Quabla can run it. `stablehlo_rules.py` says what each op becomes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from quabla.ir.program import Node, Program, Value
from quabla.shapes import ShapeDtype

__all__ = ["Writer", "stablehlo_text", "tensor_type"]

_ELEMENT = {"float64": "f64", "float32": "f32", "bool": "i1", "int64": "i64"}


def tensor_type(aval: ShapeDtype) -> str:
    """A type in MLIR, such as `tensor<8x3xf64>`."""
    return f"tensor<{''.join(f'{n}x' for n in aval.shape)}{_ELEMENT[aval.dtype.name]}>"


def stablehlo_text(program: Program, name: str = "main") -> str:
    """A program as a StableHLO module with one public function, `main`.

    Args:
        program: any program.
        name: the name of the module.

    Returns:
        The text. The inputs carry their names as locations.

    Example:
        >>> import quabla as qb
        >>> print(qb.jit(lambda x, y: qb.sin(x) * y).lower(qb.ShapeDtype((3,)), qb.ShapeDtype((3,))).as_stablehlo())
        module @"<lambda>" {
          func.func public @main(%arg0: tensor<3xf64> loc("x"), %arg1: tensor<3xf64> loc("y")) -> tensor<3xf64> {
            %0 = stablehlo.sine %arg0 : tensor<3xf64>
            %1 = stablehlo.multiply %0, %arg1 : tensor<3xf64>
            return %1 : tensor<3xf64>
          }
        }
    """
    writer = Writer()
    names = [f"%arg{i}" for i in range(len(program.inputs))]
    args = ", ".join(
        f"{n}: {tensor_type(v.aval)} loc({quoted(label)})"
        for n, v, label in zip(names, program.inputs, program.input_names, strict=True)
    )
    types = [tensor_type(a) for a in program.out_avals]
    result = types[0] if len(types) == 1 else f"({', '.join(types)})"
    writer.lines += [f"module @{quoted(name)} {{", f"  func.func public @main({args}) -> {result} {{"]
    writer.indent = "    "
    outs = writer.program(program, names)
    writer.line(f"return {', '.join(outs)} : {', '.join(types)}" if outs else "return")
    writer.lines += ["  }", "}"]
    return "\n".join(writer.lines)


def quoted(text: str) -> str:
    """A string literal of MLIR."""
    plain = json.dumps(text, ensure_ascii=True)
    return plain if "\\" not in plain else '"' + "".join(_escaped(b) for b in text.encode()) + '"'


def _escaped(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}"


class Writer:
    """The text so far, and fresh names for values.

    Attributes:
        lines: the lines written.
        indent: what the next line begins with.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = ""
        self.count = 0

    # --- lines ----------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Write a line."""
        self.lines.append(self.indent + text)

    def fresh(self) -> str:
        """A name that no value has yet."""
        self.count += 1
        return f"%{self.count - 1}"

    def value(self, text: str) -> str:
        """Write an operation with one result, and return the result's name."""
        name = self.fresh()
        self.line(f"{name} = {text}")
        return name

    def values(self, text: str, count: int) -> list[str]:
        """Write an operation with several results, and return their names."""
        name = self.fresh()
        self.line(f"{name}{f':{count}' if count > 1 else ''} = {text}")
        return [name] if count == 1 else [f"{name}#{i}" for i in range(count)]

    @contextmanager
    def inner(self) -> Iterator[None]:
        """Lines of a region."""
        self.indent += "  "
        yield
        self.indent = self.indent[:-2]

    def block(
        self,
        args: Sequence[str],
        avals: Sequence[ShapeDtype],
        body: Callable[[], Sequence[str]],
        out: Sequence[ShapeDtype],
    ) -> None:
        """A block of a region: its arguments, what `body` writes, and what it returns."""
        if args:
            self.line(
                f"^bb0({', '.join(f'{n}: {tensor_type(a)}' for n, a in zip(args, avals, strict=True))}):"
            )
        with self.inner():
            names = body()
            self.line(f"stablehlo.return {', '.join(names)} : {', '.join(map(tensor_type, out))}")

    # --- operations -----------------------------------------------------------------------------------------------

    def same(self, op: str, aval: ShapeDtype, *operands: str) -> str:
        """An operation whose operands and result have one type."""
        return self.value(f"stablehlo.{op} {', '.join(operands)} : {tensor_type(aval)}")

    def apply(
        self,
        op: str,
        operands: Sequence[str],
        ins: Sequence[ShapeDtype],
        out: ShapeDtype,
        attributes: str = "",
    ) -> str:
        """An operation with a function type."""
        types = f"({', '.join(map(tensor_type, ins))}) -> {tensor_type(out)}"
        return self.value(f"stablehlo.{op} {', '.join(operands)}{attributes} : {types}")

    def full(self, value: Any, aval: ShapeDtype) -> str:
        """An array of equal elements."""
        return self.value(f"stablehlo.constant dense<{literal(value, aval)}> : {tensor_type(aval)}")

    def array(self, array: Any, aval: ShapeDtype) -> str:
        """A constant array."""
        if aval.dtype.kind == "b" or aval.size == 1:
            shown = nested(array.tolist(), aval)
        else:
            shown = (
                '"0x' + array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes().hex().upper() + '"'
            )
        return self.value(f"stablehlo.constant dense<{shown}> : {tensor_type(aval)}")

    def compare(self, direction: str, x: str, y: str, aval: ShapeDtype, out: ShapeDtype) -> str:
        """A comparison of two arrays of type `aval`."""
        kind = {"f": "FLOAT", "i": "SIGNED", "b": "UNSIGNED"}[aval.dtype.kind]
        t = tensor_type(aval)
        return self.value(
            f"stablehlo.compare {direction}, {x}, {y}, {kind} : ({t}, {t}) -> {tensor_type(out)}"
        )

    def select(self, pred: str, x: str, y: str, mask: ShapeDtype, aval: ShapeDtype) -> str:
        """`x` where `pred` holds, else `y`."""
        return self.value(f"stablehlo.select {pred}, {x}, {y} : {tensor_type(mask)}, {tensor_type(aval)}")

    # --- programs -------------------------------------------------------------------------------------------------

    def program(self, program: Program, names: Sequence[str]) -> list[str]:
        """Write the nodes of a program whose inputs have these names; returns the names of its outputs."""
        from quabla.ir.stablehlo_rules import RULES

        env: dict[Value, str] = dict(zip(program.inputs, names, strict=True))
        for node in program.nodes:
            operands = [env[v] for v in node.inputs]
            rule = RULES.get(node.op.name)
            outs = self.call(node, operands) if rule is None else rule(self, node, operands)
            env.update(zip(node.outputs, [outs] if isinstance(outs, str) else outs, strict=True))
        return [env[v] for v in program.outputs]

    def call(self, node: Node, operands: Sequence[str]) -> list[str]:
        """An op as a custom call, with its params as text."""
        ins = ", ".join(tensor_type(v.aval) for v in node.inputs)
        outs = [tensor_type(v.aval) for v in node.outputs]
        result = outs[0] if len(outs) == 1 else f"({', '.join(outs)})"
        config = quoted(
            json.dumps({k: v if isinstance(v, (int, str)) else repr(v) for k, v in node.params.items()})
        )
        target = f"@quabla.{node.op.name}({', '.join(operands)})"
        text = f"stablehlo.custom_call {target} {{backend_config = {config}}} : ({ins}) -> {result}"
        return self.values(text, len(outs))


def literal(value: Any, aval: ShapeDtype) -> str:
    """One element as MLIR writes it; floats that decimal text cannot say exactly, in hex."""
    kind = aval.dtype.kind
    if kind == "b":
        return "true" if value else "false"
    if kind == "i":
        return str(int(value))
    double = aval.dtype.name == "float64"
    if math.isfinite(value):
        text = repr(float(value))
        if double or struct.unpack("<f", struct.pack("<f", value))[0] == value:
            mantissa, _, exponent = text.partition("e")
            whole = mantissa if "." in mantissa else f"{mantissa}.0"
            return whole + (f"e{exponent}" if exponent else "")
    return "0x" + struct.pack(">d" if double else ">f", value).hex().upper()


def nested(values: Any, aval: ShapeDtype) -> str:
    """Nested lists of elements."""
    if isinstance(values, list):
        return f"[{', '.join(nested(v, aval) for v in values)}]"
    return literal(values, aval)
