"""What a plan does, in numbers: kernels, bytes held, bytes moved, time. It is counted, not measured."""

from __future__ import annotations

from math import inf, prod

from quabla.backends.protocol import Costs
from quabla.ir.program import Node, Program
from quabla.lowering.buffers import touched
from quabla.lowering.fuse import Plan
from quabla.lowering.loops import Call, Kernel, Load, Panel, Product, Reduce, Store, singly
from quabla.lowering.work import cost
from quabla_cpu.lower import nodes_of, plan_of

__all__ = ["CALL", "costs_of", "loss_of"]


def costs_of(program: Program) -> Costs:
    """The costs of a program that was lowered, with those of its regions."""
    plan = plan_of(program)
    nodes, kernels, products, routines, moved = nodes_of(program), 0, 0, 0, 0
    for step in singly(plan.steps):
        if isinstance(step, Kernel):
            kernels += 1
            moved += _kernel(step)
        elif isinstance(step, Product):
            products += 1
            moved += (step.left.size + step.right.size + step.out.size) * step.dtype.itemsize
        elif isinstance(step, Panel):
            members = [each for each, _ in step.steps]
            kernels += sum(isinstance(each, Kernel) for each in members)
            products += sum(isinstance(each, Product) for each in members)
            # What is private stays in a cache.
            shared = [b for b in touched(step) if b.kind != "private" and b is not step.private]
            moved += sum(b.size * b.dtype.itemsize for b in shared)
        else:
            routines += 1
            inner = {k: costs_of(v) for k, v in step.node.params.items() if isinstance(v, Program)}
            nodes += sum(c.nodes for c in inner.values())
            kernels += sum(c.kernels for c in inner.values())
            products += sum(c.products for c in inner.values())
            routines += sum(c.routines for c in inner.values())
            moved += _region(step.node, inner)
    held = plan.out_nbytes + plan.workspace + sum(t.aval.nbytes for t in plan.constants)
    return Costs(nodes, kernels, products, routines, held, moved)


def _region(node: Node, inner: dict[str, Costs]) -> int:
    if not inner:
        return sum(v.aval.nbytes for v in (*node.inputs, *node.outputs))
    if node.op.name == "cond":
        return max(c.moved for c in inner.values())
    steps = node.params["length"] if node.op.name == "scan" else 1
    return steps * sum(c.moved for c in inner.values())


def _kernel(kernel: Kernel) -> int:
    """The bytes of the distinct elements that a kernel touches, buffer by buffer."""
    touched: dict[object, int] = {}
    for entry in kernel.body:
        if isinstance(entry, (Load, Store, Reduce)):
            kept = [
                n
                for axis, (n, stride) in enumerate(zip(kernel.domain, entry.strides, strict=True))
                if stride and not (isinstance(entry, Reduce) and axis in entry.axes)
            ]
            key = (isinstance(entry, Load), id(entry.buffer), entry.offset, entry.strides)
            touched[key] = min(prod(kept), entry.buffer.size) * entry.buffer.dtype.itemsize
    return sum(touched.values())


def loss_of(plan: Plan) -> float:
    """About how many nanoseconds longer a call takes if LLVM compiles the plan quickly; endless where nobody knows.

    Tiles of products live in registers, which quick code keeps in memory: it takes five times as long. Other code takes
    at most twice as long.
    """
    return sum(map(_loss, singly(plan.steps)))


def _loss(step: Kernel | Product | Call | Panel) -> float:
    if isinstance(step, Panel):
        passes = -(-step.rows // step.chunk)
        return passes * sum(_loss(each) for each, _ in step.steps)
    if isinstance(step, Product):
        return 4.0 * cost(step)
    if isinstance(step, Kernel):
        return cost(step)
    op, params = step.node.op.name, step.node.params
    inner = sum(loss_of(plan_of(value)) + CALL for value in params.values() if isinstance(value, Program))
    return inf if op == "while" else inner * (params["length"] if op == "scan" else 1)


CALL = 20.0
"""Nanoseconds of calling a region."""
