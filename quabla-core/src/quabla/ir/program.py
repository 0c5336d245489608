"""`Program`: a frozen graph in static single assignment form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quabla.ir.names import unique
from quabla.ir.op import Op
from quabla.shapes import ShapeDtype

__all__ = ["Node", "Program", "Value", "prune"]


class Value:
    """A value of a program: an input (`node` is None) or the result `index` of a node. Identity is equality."""

    __slots__ = {
        "aval": "The type, a `ShapeDtype`.",
        "index": "Which of the results of `node` it is.",
        "node": "What computes it; None for an input.",
    }
    aval: ShapeDtype
    node: Node | None
    index: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.aval.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.aval.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.aval.size

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.aval.dtype


class Node:
    """One application of an op."""

    __slots__ = ("inputs", "op", "outputs", "params")

    def __init__(self, op: Op, inputs: tuple[Value, ...], params: dict[str, Any]) -> None:
        self.op = op
        self.inputs = inputs
        self.params = params
        self.outputs: tuple[Value, ...] = ()

    def __repr__(self) -> str:
        return f"<node {self.op.name} {[v.aval for v in self.outputs]}>"


@dataclass(frozen=True, eq=False)
class Program:
    """A frozen SSA graph.

    Attributes:
        inputs: the input values, in the order of the arguments.
        nodes: the nodes, each after those that it uses.
        outputs: the results; an input or a repeated value is allowed.
        input_names: a name per input, such as "params/layers/0/w". No two are the same: of equal ones that are given,
            later ones are numbered, and an input without a name is called "x0" if it is the first.
        memo: what backends and transforms remember about this program (it is frozen, so they may).
    """

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    input_names: tuple[str, ...] = ()
    memo: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        given = self.input_names
        missing = [f"x{i}" for i in range(len(given), len(self.inputs))]
        object.__setattr__(
            self, "input_names", unique((*given, *missing))
        )  # past the refusal of a frozen class

    @property
    def in_avals(self) -> tuple[ShapeDtype, ...]:
        """The types of the inputs."""
        return tuple(v.aval for v in self.inputs)

    @property
    def out_avals(self) -> tuple[ShapeDtype, ...]:
        """The types of the outputs."""
        return tuple(v.aval for v in self.outputs)

    def __repr__(self) -> str:
        ins = ", ".join(map(repr, self.in_avals))
        outs = ", ".join(map(repr, self.out_avals))
        return f"<Program ({ins}) -> ({outs}), {len(self.nodes)} nodes>"

    def __str__(self) -> str:
        from quabla.ir.text import program_text  # which needs this module

        return program_text(self)


def prune(nodes: Sequence[Node], outputs: Sequence[Value]) -> tuple[Node, ...]:
    """The nodes that `outputs` need, in their order."""
    live = {v.node for v in outputs}
    kept = []
    for node in reversed(nodes):
        if node in live:
            kept.append(node)
            live.update([v.node for v in node.inputs])
    kept.reverse()
    return tuple(kept)
