"""Whether a derivative rule is linear in its tangents, and the linear program that it is.

Reverse mode runs a rule backwards, so it must be linear: every tangent is a sum of those given, times what depends on
the primals alone. `Walk` carries what is known of the inputs of a program to its results, also through ops that hold
programs (`Op.through`). Here that is a `Kind`.

In a linear program an op that declares a derivative (`Op.declared`) counts for its value alone: `stop_gradient` of a
tangent is that tangent, and a `custom_jvp` of one is its function. Forward mode says the same, which computes values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from typing import Any, NoReturn

import numpy as np

from quabla.arrays.refusals import line_of
from quabla.arrays.tracer import frames, trace
from quabla.errors import UnsupportedOperationError
from quabla.ir.op import Each, Jointly
from quabla.ir.program import Node, Program, Value, prune
from quabla.transforms.forward import replay
from quabla.transforms.staging import inline

__all__ = ["Kind", "Walk", "transposable"]


@dataclass(frozen=True)
class Walk:
    """Carries what is known of the inputs of a program to its results.

    Attributes:
        still: what is known of a value that has nothing to do with the inputs in question.
        either: `(a, b)`: what is known of a value that is now one of these and now the other.
        through: `(walk, node, given)`: what is known of the results of a node.
    """

    still: Any
    either: Callable[[Any, Any], Any]
    through: Callable[[Walk, Node, Sequence[Any]], Sequence[Any]]

    def __call__(self, program: Program, given: Sequence[Any]) -> list[Any]:
        """What is known of the outputs of a program, given what is known of its inputs."""
        known: dict[Value, Any] = dict(zip(program.inputs, given, strict=True))
        for node in program.nodes:
            found = self.through(self, node, [known[v] for v in node.inputs])
            known.update(zip(node.outputs, found, strict=True))
        return [known[v] for v in program.outputs]


class Kind(Enum):
    """What a value is as a function of the tangents."""

    ZERO = "zero, whatever they are; or NaN, which is NaN times anything"
    STILL = "the same, whatever they are"
    LINEAR = "linear in them"
    MIXED = "none of these: linear in them, and something besides"


def _either(a: Kind, b: Kind) -> Kind:
    if a is b or b is Kind.ZERO:
        return a
    return b if a is Kind.ZERO else Kind.MIXED


@dataclass
class _Rule:
    """A rule that is looked through.

    Attributes:
        name: the function that it is of.
        author: the rule as its author wrote it, or None.
        values: what those nodes of it compute that have a tangent and declare a derivative of their own.
    """

    name: str
    author: Any
    values: dict[Node, Program] = field(default_factory=dict)

    def kinds(self, walk: Walk, node: Node, given: Sequence[Kind]) -> Sequence[Kind]:
        """The kinds of the results of a node.

        Raises:
            UnsupportedOperationError: they are linear no longer.
        """
        if Kind.MIXED in given:  # in a loop, which is refused as a whole
            return [Kind.MIXED] * len(node.outputs)
        found = self._kinds(walk, node, given)
        if Kind.MIXED in found:
            self.refuse(f"combines a tangent, by {node.op.name}, with what is not 0 where the tangent is")
        return found

    def _kinds(self, walk: Walk, node: Node, given: Sequence[Kind]) -> Sequence[Kind]:
        op = node.op
        moves = Kind.LINEAR in given
        if op.declared and moves:
            return walk(self._value(node), given)
        if op.through is not None and (moves or Kind.ZERO in given):
            return op.through(walk, given, **node.params)  # type: ignore[no-any-return]
        if moves:
            self._require_linear(node, [i for i, k in enumerate(given) if k is Kind.LINEAR])
        if _vanishes(node, given):
            return [Kind.ZERO]
        if isinstance(op.linear, Jointly):
            return [reduce(_either, given)]
        return [Kind.LINEAR if moves else Kind.STILL] * len(node.outputs)

    def _require_linear(self, node: Node, at: Sequence[int]) -> None:
        op = node.op
        allowed = op.linear.operands if isinstance(op.linear, Each) else range(len(node.inputs))
        floating = all(v.aval.dtype.kind == "f" for v in node.outputs)
        if op.linear is None or not floating or not set(at) <= set(allowed):
            self.refuse(f"applies {op.name} to a tangent")
        if isinstance(op.linear, Each) and len(at) > 1:
            self.refuse(f"applies {op.name} to a tangent and another")

    def _value(self, node: Node) -> Program:
        found = self.values.get(node)
        if found is None:
            rule, params = node.op.decompose, node.params
            assert rule is not None
            outs = rule if node.op.multiple else lambda *xs, **params: (rule(*xs, **params),)
            avals = [v.aval for v in node.inputs]
            found = self.values[node] = trace(lambda *xs: outs(*xs, **params), avals)[0]
        return found

    def refuse(self, what: str) -> NoReturn:
        """Raise the error that says what makes the rule other than linear."""
        line = "" if self.author is None else line_of(self.author)
        raise UnsupportedOperationError(
            f"custom_jvp: the rule of {self.name} {what}, so it is not linear in it; only what is linear can be run "
            "backwards: multiply tangents by what depends on the primals alone, add them up, and return None or zeros "
            f"where nothing moves{line}",
            op="custom_jvp",
        )


def _vanishes(node: Node, given: Sequence[Kind]) -> bool:
    op, value = node.op, node.params.get("value")
    if op.family == "source":
        array = value if op.name == "full" else value.numpy()  # type: ignore[union-attr]
        return bool(np.all((array == 0) | (array != array)))
    return isinstance(op.linear, Each) and any(given[i] is Kind.ZERO for i in op.linear.operands)


def transposable(program: Program, count: int, at: int, name: str, author: Any) -> Program:
    """The tangents of a rule, as a program to be run backwards.

    Args:
        program: of primals and then tangents; it returns values and then tangents.
        count: how many primals there are.
        at: how many values.
        name: the function that the rule is of, for messages.
        author: the rule as its author wrote it, or None; likewise.

    Returns:
        A program of the same inputs that returns the tangents, linear in those given.

    Raises:
        UnsupportedOperationError: the rule is not linear.
    """
    moving = program.outputs[at:]
    tangents = Program(program.inputs, prune(program.nodes, moving), moving, program.input_names)
    rule = _Rule(name, author)
    given = [Kind.STILL] * count + [Kind.LINEAR] * (len(program.inputs) - count)
    if Kind.STILL in Walk(Kind.STILL, _either, rule.kinds)(tangents, given):
        rule.refuse("returns for a tangent what does not depend on it")
    return _with_values(tangents, rule.values)


def _with_values(program: Program, values: dict[Node, Program]) -> Program:
    """The program with these nodes, also those in programs that it holds, as what they compute."""
    held = [
        {k: _with_values(p, values) if isinstance(p, Program) else p for k, p in node.params.items()}
        for node in program.nodes
    ]
    nodes = [
        node if params == node.params else Node(node.op, node.inputs, params)
        for node, params in zip(program.nodes, held, strict=True)
    ]
    if all(old is new and old not in values for old, new in zip(program.nodes, nodes, strict=True)):
        return program

    def run(*args: Any) -> list[Any]:
        env: dict[Value, Any] = dict(zip(program.inputs, args, strict=True))
        for old, new in zip(program.nodes, nodes, strict=True):
            xs = tuple([env[v] for v in old.inputs])
            if old in values:
                outs: Sequence[Any] = inline(_with_values(values[old], values), xs)
            else:
                out = replay(frames()[-1], new, xs)
                outs = out if new.op.multiple else (out,)
            env.update(zip(old.outputs, outs, strict=True))
        return [env[v] for v in program.outputs]

    return trace(run, program.in_avals, program.input_names)[0]
