"""The fingerprint of a program: a text that two programs share only if they compute the same.

Names of inputs are left out, elements of constants are not. It takes a fraction of the time of lowering the program,
so a process can recognise what an earlier one compiled before it lowers anything.
"""

from __future__ import annotations

import math
from typing import Any

from quabla.arrays.tensor import Tensor
from quabla.dtypes import dtype
from quabla.ir.op import OPS
from quabla.ir.program import Program, Value
from quabla.shapes import ShapeDtype

__all__ = ["fingerprint"]


class _UnknownError(Exception):
    """A param of a kind that has no text here."""


def fingerprint(program: Program) -> tuple[str, list[Tensor]] | None:
    """The text of a program but for the elements of its constants, and these constants in the order of the text.

    None where an op is not one of Quabla's own, or a param is of a kind that is not known here.
    """
    lines: list[str] = []
    constants: list[Tensor] = []
    try:
        _write(program, lines, constants)
    except _UnknownError:
        return None
    return "\n".join(lines), constants


def _write(program: Program, lines: list[str], constants: list[Tensor]) -> None:
    numbers: dict[Value, int] = {}
    for v in program.inputs:
        numbers[v] = len(numbers)
        lines.append(repr(v.aval))
    for node in program.nodes:
        op = node.op
        # Another's op may mean something else tomorrow under the same name.
        if OPS.get(op.name) is not op or not op.infer.__module__.startswith("quabla."):
            raise _UnknownError
        inputs = [numbers[v] for v in node.inputs]
        types = []
        for v in node.outputs:
            numbers[v] = len(numbers)
            types.append(v.aval)
        if not node.params:
            lines.append(f"{op.name}{inputs}{types}")
            continue
        params = [_text(value, constants) for value in node.params.values()]
        lines.append(f"{op.name}{inputs}{types}{' '.join(params)}")
        for value in node.params.values():
            if isinstance(value, Program):
                lines.append("{")
                _write(value, lines, constants)
                lines.append("}")
    lines.append(repr([numbers[v] for v in program.outputs]))


def _text(value: Any, constants: list[Tensor]) -> str:
    kind = type(value)
    if kind is int or kind is bool or kind is str or value is None or kind is ShapeDtype or kind is dtype:
        return repr(value)
    if kind is float:
        if math.isnan(value):
            raise _UnknownError  # its sign and payload are lost in text
        return repr(value)
    if kind is tuple:
        return f"({','.join([_text(v, constants) for v in value])})"
    if kind is Program:
        return "program"
    if kind is Tensor:
        constants.append(value)
        return repr(value.aval)
    raise _UnknownError
