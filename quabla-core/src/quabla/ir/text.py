"""`program_text`: a Program as text, for people, messages and tests.

    program
      input params/w: float64[3]
      input x: float64[8,3]
      %0: float64[8] = dot_general(x, params/w, contract=[[1],[0]], batch=[[],[]])
      %1: float64[8] = tanh(%0)
      return %1

The text depends on the program alone (no addresses, no elements of arrays), so equal texts mean equal computations up
to the values of constants, and a diff of two texts shows what a transform did. What a type says already is not repeated
among the params. A region, a program held by a node, stands below its node under the name of its param; its values are
numbered from 0 again, since it sees nothing of the program around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from quabla.dtypes import dtype
from quabla.ir.program import Node, Program
from quabla.shapes import ShapeDtype

__all__ = ["program_text"]

_INDENT = "  "
_PLAIN = re.compile(r"[\w./#-]+")

# Params that the type of the result may say already. They are left out where they agree with it.
_SAID_BY_TYPE: dict[str, Callable[[ShapeDtype], Any]] = {
    "aval": lambda aval: aval,
    "shape": lambda aval: aval.shape,
    "to": lambda aval: aval.dtype,
    "weak": lambda aval: aval.weak,
}


def program_text(program: Program) -> str:
    """A program as readable, stable text: a line per input, node and result.

    Args:
        program: any program; one that is not well formed is shown too, with `?` for values that nothing defines.

    Returns:
        The lines, without a newline at the end.

    Example:
        >>> import quabla as qb
        >>> f = qb.jit(lambda p, x: qb.tanh(p["w"] * x + 1.0), device="reference")
        >>> print(f.lower({"w": qb.ShapeDtype((3,))}, qb.ShapeDtype((3,))).program)
        program
          input p/w: float64[3]
          input x: float64[3]
          %0: float64[3] = mul(p/w, x)
          %1: float64[3] = full(1.0)
          %2: float64[3] = add(%0, %1)
          %3: float64[3] = tanh(%2)
          return %3
    """
    return "\n".join(_block("program", program, ""))


def _block(title: str, program: Program, indent: str) -> Iterator[str]:
    inner = indent + _INDENT
    names = {v: _word(name) for v, name in zip(program.inputs, program.input_names, strict=True)}
    yield indent + title
    for v in program.inputs:
        yield f"{inner}input {names[v]}: {v.aval!r}"
    count = 0
    for node in program.nodes:
        for v in node.outputs:
            names[v] = f"%{count}"
            count += 1
        left = ", ".join(f"{names[v]}: {v.aval!r}" for v in node.outputs)
        operands = [names.get(v, "?") for v in node.inputs]
        yield f"{inner}{left} = {node.op.name}({', '.join([*operands, *_params(node)])})"
        for region_title, region in _regions(node):
            yield from _block(region_title, region, inner + _INDENT)
    yield f"{inner}return {', '.join(names.get(v, '?') for v in program.outputs)}"


def _word(name: str) -> str:
    """A name, quoted where it would not read as one word."""
    return name if _PLAIN.fullmatch(name) else repr(name)


def _params(node: Node) -> Iterator[str]:
    """The params that are no regions, as `name=value`; the value of a constant stands alone."""
    aval = node.outputs[0].aval if node.outputs else None
    for name, value in node.params.items():
        said = _SAID_BY_TYPE.get(name)
        if _is_region(value) or (said is not None and aval is not None and said(aval) == value):
            continue
        shown = _value(value, aval)
        yield shown if not node.inputs and name == "value" else f"{name}={shown}"


def _value(value: Any, aval: ShapeDtype | None) -> str:
    """A param in few characters. Arrays are shown by type alone, or as `...` where it is that of the result."""
    if isinstance(value, (tuple, list)):
        return f"[{','.join(_value(v, aval) for v in value)}]"
    if isinstance(value, dtype):
        return value.name
    if value is None or isinstance(value, (bool, int, float, str, ShapeDtype)):
        return repr(value)
    own = getattr(value, "aval", None)
    if isinstance(own, ShapeDtype):
        return "..." if own is aval else repr(own)
    named = getattr(value, "__name__", None)
    return f"<{named if isinstance(named, str) else type(value).__name__}>"


def _is_region(value: Any) -> bool:
    return isinstance(value, Program) or (
        isinstance(value, tuple) and bool(value) and all(isinstance(v, Program) for v in value)
    )


def _regions(node: Node) -> Iterator[tuple[str, Program]]:
    for name, value in node.params.items():
        if isinstance(value, Program):
            yield name, value
        elif _is_region(value):
            for i, program in enumerate(value):
                yield f"{name}[{i}]", program
