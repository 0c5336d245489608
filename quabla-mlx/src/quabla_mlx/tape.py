"""`Tape`: a program as one straight-line Python function of MLX arrays.

A step of a small problem takes MLX a few microseconds per node. Walking a list of steps would add a fifth to that, so
the walk is done once: for `sin(x * w) + w` the function reads

    def tape(x0, x1):
        v0 = f2(f1(f0(x0, x1)), x1)
        return (v0, )

where f0, f1, f2 are `mx.multiply`, `mx.sin` and `mx.add` themselves. A value that one node alone reads is written where
it is read. MLX computes nothing before the function has returned and its variables are gone, so it may write a result
into the memory of an operand. Only control flow waits for results on the way; then a variable is deleted once it has
been read for the last time. Constants are arrays that are on the device already.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from quabla.ir.program import Node, Program, Value
from quabla_mlx.lower import regions_of, simple
from quabla_mlx.rules import RULES
from quabla_mlx.target import Array, Target

__all__ = ["Tape", "tape_of"]

_DEPTH = 12
"""How deep calls are written into each other; Python's parser bounds it."""

_SYNCHRONOUS = frozenset(("cond", "scan", "while"))
"""Ops that look at values, or would be unrolled: `mx.compile` cannot see through them."""

_SHARING = frozenset(("structural", "source", "region", "astype", "integer_power", "stop_gradient"))
"""Families and ops whose results may be views of operands, or the operands themselves."""

_TABLE = 4096
"""Constants of equal elements up to this size are arrays in full, which MLX's kernels read fastest."""


@dataclass(frozen=True)
class Tape:
    """A program ready to run.

    Attributes:
        run: takes arrays of MLX, one per input, and returns a tuple of lazy ones.
        text: its source.
        nodes: the number of nodes, those of regions included.
        shared: per output, whether its memory may also be that of something else: an operand, a constant, an output.
    """

    run: Callable[..., tuple[Array, ...]]
    text: str
    nodes: int
    shared: tuple[bool, ...]


def tape_of(program: Program, target: Target, device: str) -> Tape:
    """The tape of a program and of its regions. Constants are sent to the device now."""
    program = simple(program, device)
    writer = _Writer(program, target)
    text = writer.text()
    exec(text, writer.names)  # from names of our own making alone
    run = writer.names["tape"]
    if target.fused and not any(_synchronous(node) for node in program.nodes):
        run = mx.compile(run)
    mx.eval(writer.constants)
    return Tape(run, text, _count(program), _shared(program.outputs))


def _synchronous(node: Node) -> bool:
    return node.op.name in _SYNCHRONOUS or any(
        _synchronous(inner) for region in regions_of(node) for inner in simple(region, "").nodes
    )


def _count(program: Program) -> int:
    inner = sum(_count(simple(region, "")) for node in program.nodes for region in regions_of(node))
    return len(program.nodes) + inner


def _shared(outputs: Sequence[Value]) -> tuple[bool, ...]:
    earlier: set[Value] = set()
    shared = []
    for v in outputs:
        alias = v.node is None or v.node.op.family in _SHARING or v.node.op.name in _SHARING
        shared.append(alias or v in earlier)
        earlier.add(v)
    return tuple(shared)


class _Writer:
    """The source of a tape, and the names that it uses."""

    def __init__(self, program: Program, target: Target) -> None:
        self.program = program
        self.target = target
        self.names: dict[str, Any] = {}
        self.constants: list[Array] = []
        self.shown: dict[Value, str] = {v: f"x{i}" for i, v in enumerate(program.inputs)}
        self.known: dict[Any, str] = {}  # the names of functions and other things, by identity or value

    def text(self) -> str:
        """The source."""
        program, numbers = self.program, itertools.count()
        reads = Counter(v for node in program.nodes for v in node.inputs)
        reads.update(program.outputs)
        inner = self.inner(reads)
        ends = self.ends(inner) if any(_synchronous(node) for node in program.nodes) else {}
        lines = [f"def tape({', '.join(f'x{i}' for i in range(len(program.inputs)))}):"]
        for node in program.nodes:
            if node.op.family == "source":
                self.shown[node.outputs[0]] = self.constant(node)
            elif node in inner:
                self.shown[node.outputs[0]] = self.call(node)
            else:
                for v in node.outputs:
                    self.shown[v] = f"v{next(numbers)}"
                left = ", ".join([self.shown[v] for v in node.outputs]) + "," * node.op.multiple
                lines.append(f"    {left} = {self.call(node)}")
                if ended := ends.get(node):
                    lines.append(f"    del {', '.join([self.shown[v] for v in ended])}")
        lines.append(f"    return ({''.join(f'{self.shown[v]}, ' for v in program.outputs)})")
        return "\n".join(lines) + "\n"

    def inner(self, reads: Counter[Value]) -> set[Node]:
        """The nodes that are written where their one result is read."""
        outputs, depth = set(self.program.outputs), dict[Value, int]()
        inner = set()
        for node in self.program.nodes:
            deep = 1 + max([depth.get(v, 0) for v in node.inputs], default=0)
            out = node.outputs[0]
            if node.op.family == "source" or node.op.multiple or out in outputs:
                continue
            if reads[out] == 1 and deep < _DEPTH:
                inner.add(node)
                depth[out] = deep
        return inner

    def ends(self, inner: set[Node]) -> dict[Node, list[Value]]:
        """Per line, named by its node, the variables that nothing reads after it."""
        line: dict[Node, Node] = {}
        last: dict[Value, Node] = {}
        reader = {v: node for node in self.program.nodes for v in node.inputs}
        order = {node: i for i, node in enumerate(self.program.nodes)}
        for node in reversed(self.program.nodes):
            line[node] = here = line[reader[node.outputs[0]]] if node in inner else node
            for v in (*node.inputs, *node.outputs):
                last[v] = max(last.get(v, here), here, key=order.__getitem__)
        kept = {*self.program.inputs, *self.program.outputs}
        ends: dict[Node, list[Value]] = {}
        for v, node in last.items():
            if v not in kept and v.node is not None and v.node not in inner and v.node.op.family != "source":
                ends.setdefault(node, []).append(v)
        return ends

    def call(self, node: Node) -> str:
        """What a node computes, as an expression."""
        call = RULES[node.op.name](node, self.target)
        operands = [self.shown[v] for v in node.inputs]
        after = [self.name("a", x, (type(x), repr(x))) for x in call.after]
        return f"{self.name('f', call.function, id(call.function))}({', '.join([*operands, *after])})"

    def constant(self, node: Node) -> str:
        """The name of an array that is on the device."""
        aval = node.outputs[0].aval
        if node.op.name == "constant":
            array = self.target.array(node.params["value"].numpy())
        else:
            value = np.full(aval.shape if aval.size <= _TABLE else (), node.params["value"], aval.dtype.numpy)
            array = self.target.array(value)
            if aval.size > _TABLE:
                array = mx.broadcast_to(array, aval.shape)
        self.constants.append(array)
        return self.name("c", array, id(array))

    def name(self, kind: str, value: Any, key: Any) -> str:
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = f"{kind}{len(self.names)}"
            self.names[found] = value
        return found
