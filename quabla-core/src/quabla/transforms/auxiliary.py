"""Auxiliary results: a function returns (value, aux), and what is derived of the value leaves aux as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from quabla.errors import DtypeError
from quabla.ir.program import Program, prune
from quabla.transforms.staging import Result, a_kind, as_outputs, inline, name_of

__all__ = ["Parts", "a_result", "as_pair", "take_parts"]


class Parts(NamedTuple):
    """The structure of (value, aux), whose arrays are the outputs of one program.

    Attributes:
        value: the structure of the value.
        aux: the structure of the auxiliary result.
        cut: how many outputs of the program, the first ones, belong to the value.
    """

    value: Result
    aux: Result
    cut: int

    def derived(self, program: Program) -> Program:
        """The part of the program that computes the value: a transform takes no notice of the rest."""
        return _ending(program, program.outputs[: self.cut])

    def evaluated(self, program: Program, primals: Sequence[Any]) -> Any:
        """The auxiliary result at `primals`; what it shares with the value is recorded once."""
        return self.aux.put_together(inline(_ending(program, program.outputs[self.cut :]), primals))


def _ending(program: Program, outputs: Any) -> Program:
    return Program(program.inputs, prune(program.nodes, outputs), outputs, program.input_names)


def take_parts(where: str, fun: Any, value: Any, has_aux: bool) -> tuple[list[Any], Parts]:
    """Take apart what a function returned: a value, or with `has_aux` a pair (value, aux).

    Raises:
        DtypeError: no pair with `has_aux`, or a leaf of the value is neither array nor number.
    """
    value, aux = as_pair(where, fun, value) if has_aux else (value, None)
    arrays, result = as_outputs(fun, value)
    others, aside = as_outputs(fun, aux, passing=True)
    return [*arrays, *others], Parts(result, aside, len(arrays))


def as_pair(where: str, fun: Any, value: Any) -> tuple[Any, Any]:
    """What a function with `has_aux` returned, a tuple or list of two.

    Raises:
        DtypeError: it is anything else.
    """
    if not (isinstance(value, (tuple, list)) and len(value) == 2):
        raise DtypeError(
            f"{where}: with has_aux=True, {name_of(fun)} must return a pair (value, aux), it returned "
            f"{a_result(value)}"
        )
    return value[0], value[1]


def a_result(value: Any) -> str:
    """What a function returned, for messages."""
    if value is None:
        return "None (is its return statement missing?)"
    return a_kind(value) + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
