"""From a Program to a list of kernels and products, and a plan of their memory.

1. Shape ops become views: a buffer read with an offset and strides (`views.py`). Padding at the ends is a view with
   bounds, beyond which it is zero.
2. Every computed value gets a depth: how many kernel boundaries lie before it. A boundary is crossed where a value is
   read from memory: the result of a reduction, product or assembly, a value read through a view that reorders it, or
   one computed over another domain.
3. Elementwise values of one domain and one depth form one kernel; reductions join the kernel of their operand. Depths
   order the kernels, so no cycle can arise.
4. A value moves to the kernel of its first use where that saves a store; a cheap one is computed again in each kernel
   that uses it where that saves memory traffic (`placement.py`).
5. Only values that other kernels read get memory (`build.py`). Outputs are written where they are returned; `concat`
   and padding between elements are stores into parts of one buffer, and so is padding at the ends of a result.

Domains are compared without axes of extent 1, so that a reshape between (64,) and (64, 1) costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from quabla.arrays.tensor import Tensor, wrap
from quabla.dtypes import bool_, dtype
from quabla.ir.op import Op
from quabla.ir.program import Node, Program, Value
from quabla.lowering.buffers import aligned, assign
from quabla.lowering.build import build
from quabla.lowering.items import Full, Item, View, bounded, domain_of, view_of
from quabla.lowering.loops import Buffer, Step
from quabla.lowering.placement import delay, repeat
from quabla.lowering.views import broadcast_strides, contiguous, reshape_strides, sliced_bounds, squeeze
from quabla.shapes import ShapeDtype

__all__ = ["Plan", "fuse", "handles"]

Shape = tuple[int, ...]
_REDUCTIONS = {
    "reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_any": "any", "reduce_all": "all"
}  # fmt: skip


class Plan(NamedTuple):
    """A lowered program.

    Attributes:
        in_avals: the types of the inputs.
        out_avals: the types of the outputs.
        out_offsets: where each output begins in the output block, in bytes.
        out_nbytes: the size of the output block.
        steps: kernels, products, calls, panels and branches in the order in which they run.
        constants: the arrays that buffers of kind "constant" stand for.
        workspace: bytes of memory for temporaries.
    """

    in_avals: tuple[ShapeDtype, ...]
    out_avals: tuple[ShapeDtype, ...]
    out_offsets: tuple[int, ...]
    out_nbytes: int
    steps: tuple[Step, ...]
    constants: tuple[Tensor, ...]
    workspace: int


def handles(op: Op) -> bool:
    """Whether `fuse` knows what kind of work an op is. Of elementwise ops the backend must still know the function."""
    return (
        op.family in ("elementwise", "compare", "source")
        or op.name in _REDUCTIONS
        or op.name in _Fuser.SHAPES
    )


Arrange = Callable[[Sequence[Step], Callable[[dtype, int], Buffer]], tuple[Step, ...]]


def fuse(
    program: Program,
    routine: Callable[[Node], int | None] = lambda node: None,
    arrange: Arrange = lambda steps, temporary: tuple(steps),
) -> Plan:
    """Group the nodes of a (simplified) program into kernels and plan their memory.

    Args:
        program: only ops for which `handles` holds, or that are routines.
        routine: for a node that the backend computes by a routine of its own, the bytes of scratch memory that it wants
            (0 for none); None for all others.
        arrange: what becomes of the steps before they get memory, such as `panels.in_panels`; it may ask for further
            temporaries by dtype and number of elements.

    Returns:
        The plan; kernels have collapsed domains.
    """
    return _Fuser(routine, arrange).run(program)


class _Fuser:
    def __init__(self, routine: Callable[[Node], int | None], arrange: Arrange) -> None:
        self.routine, self.arrange = routine, arrange
        self.items: list[Item] = []
        self.reps: dict[Value, View | Full] = {}
        self.constants: list[Tensor] = []
        self.temporaries = 0

    def run(self, program: Program) -> Plan:
        for i, v in enumerate(program.inputs):
            self.reps[v] = self.leaf(v.aval, "input", i)
        reps = self.reps
        for node in program.nodes:
            op = node.op
            special = self.SHAPES.get(op.name)
            if special is not None:
                reps[node.outputs[0]] = special(self, node)
            elif op.name in _REDUCTIONS:
                reps[node.outputs[0]] = self.reduce(node)
            elif (scratch := self.routine(node)) is not None:
                reps.update(zip(node.outputs, self.call(node, scratch), strict=True))
            else:
                reps[node.outputs[0]] = self.map(node)
        offsets, nbytes = self.outputs(program)
        delay(self.items)
        repeat(self.items)
        steps = self.arrange(build(self.items, self.temporary), self.further)
        return Plan(
            program.in_avals, program.out_avals, offsets, nbytes, steps, tuple(self.constants), assign(steps)
        )

    # --- items ----------------------------------------------------------------------------------------------------

    def leaf(self, aval: ShapeDtype, kind: str, index: int) -> View:
        item = Item("leaf", aval.shape, aval.dtype, domain_of(aval.shape), -1)
        item.buffer = Buffer(kind, aval.dtype, aval.size, index)
        return View(item, 0, contiguous(aval.shape), True)

    def take(self, user: Item, rep: View | Full, domain: Shape) -> None:
        """Make `rep` an operand of `user`, which goes over `domain`, and place the user after it."""
        user.args.append(rep)
        if isinstance(rep, View):
            item = rep.item
            joins = rep.whole and item.kind == "map" and item.domain == domain
            depth = item.depth + (not joins)
            if depth > user.depth:
                user.depth = depth
            item.users.append((user, joins))

    def map(self, node: Node) -> View:
        aval = node.outputs[0].aval
        item = Item("map", aval.shape, aval.dtype, domain_of(aval.shape), 0)
        item.op, item.params = node.op.name, node.params
        for v in node.inputs:
            self.take(item, self.reps[v], item.domain)
        self.items.append(item)
        return view_of(item)

    def reduce(self, node: Node) -> View:
        x, aval = node.inputs[0], node.outputs[0].aval
        item = Item("reduce", aval.shape, aval.dtype, domain_of(x.shape), 0)
        item.op = _REDUCTIONS[node.op.name]
        axes = node.params["axes"]
        wide = [a for a, n in enumerate(x.shape) if n != 1]
        item.axes = frozenset([i for i, a in enumerate(wide) if a in axes])
        self.take(item, self.squeezed(x), item.domain)
        self.items.append(item)
        return view_of(item)

    def squeezed(self, x: Value) -> View | Full:
        """How `x` is read, with strides for the axes of its domain."""
        rep = self.reps[x]
        if isinstance(rep, Full) or 1 not in x.shape:
            return rep
        bounds = tuple([b for n, b in zip(x.shape, rep.bounds, strict=True) if n != 1]) if rep.bounds else ()
        return rep._replace(strides=squeeze(x.shape, rep.strides), bounds=bounds)

    def put(
        self,
        rep: View | Full,
        shape: Shape,
        strides: Shape,
        target: Buffer | None,
        offset: int,
        depth: int = 0,
    ) -> Item:
        """Store a value of `shape` into a part of `target`."""
        strides = squeeze(shape, strides)
        if (
            isinstance(rep, View)
            and rep.item.kind == "map"
            and not rep.whole
            and not rep.offset
            and not rep.bounds
        ):
            # All of a computed value in another order of axes: it is stored in that order where it is computed.
            read, own = squeeze(shape, rep.strides), contiguous(rep.item.domain)
            if sorted(read) == sorted(own) and math.prod(shape) == rep.item.size:
                strides = tuple([strides[read.index(s)] for s in own])
                rep, shape = view_of(rep.item), rep.item.domain
                rep = rep._replace(strides=own)
        assert target is not None
        item = Item("put", shape, target.dtype, domain_of(shape), depth)
        item.target = (target, offset, strides)
        self.take(item, rep, item.domain)
        self.items.append(item)
        return item

    def materialised(self, v: Value) -> View:
        """`v` as a view of something in memory; the elements of a constant all lie in one place."""
        rep = self.reps[v]
        if isinstance(rep, View):
            return self.copy(v) if rep.bounds else rep
        self.constants.append(wrap(np.full((1,), rep.value, rep.dtype.numpy)))
        one = self.leaf(self.constants[-1].aval, "constant", len(self.constants) - 1)
        return View(one.item, 0, (0,) * v.ndim, False)

    # --- ops with a meaning of their own --------------------------------------------------------------------------

    def full(self, node: Node) -> View | Full:
        return Full(node.params["value"], node.outputs[0].dtype)

    def constant(self, node: Node) -> View | Full:
        self.constants.append(node.params["value"])
        return self.leaf(node.outputs[0].aval, "constant", len(self.constants) - 1)

    def broadcast(self, node: Node) -> View | Full:
        x = node.inputs[0]
        rep = self.reps[x]
        if isinstance(rep, Full):
            return rep
        shape, dims = node.params["shape"], node.params["dims"]
        strides = broadcast_strides(x.shape, rep.strides, shape, dims)
        bounds = list(zip((0,) * len(shape), shape, strict=True))
        for d, n, b in zip(dims, x.shape, rep.bounds, strict=False):
            if n == shape[d]:
                bounds[d] = b
        whole = rep.whole and node.outputs[0].size == x.size
        return bounded(View(rep.item, rep.offset, strides, whole), shape, tuple(bounds))

    def transpose(self, node: Node) -> View | Full:
        rep = self.reps[node.inputs[0]]
        if isinstance(rep, Full):
            return rep
        strides = tuple([rep.strides[p] for p in node.params["perm"]])
        shape = node.outputs[0].shape
        whole = rep.whole and squeeze(shape, strides) == contiguous(domain_of(shape))
        bounds = tuple([rep.bounds[p] for p in node.params["perm"]]) if rep.bounds else ()
        return View(rep.item, rep.offset, strides, whole, bounds)

    def slice(self, node: Node) -> View | Full:
        rep = self.reps[node.inputs[0]]
        if isinstance(rep, Full):
            return rep
        start, step = node.params["start"], node.params["step"]
        offset = rep.offset + sum([a * s for a, s in zip(start, rep.strides, strict=True)])
        strides = tuple([c * s for c, s in zip(step, rep.strides, strict=True)])
        whole = rep.whole and node.inputs[0].size == node.outputs[0].size and offset == rep.offset
        view = View(rep.item, offset, strides, whole and all([c > 0 for c in step]))
        if not rep.bounds:
            return view
        bounds = tuple([sliced_bounds(b, a, c) for b, a, c in zip(rep.bounds, start, step, strict=True)])
        return bounded(view, node.outputs[0].shape, bounds)

    def reshape(self, node: Node) -> View | Full:
        x, shape = node.inputs[0], node.params["shape"]
        rep = self.reps[x]
        if isinstance(rep, Full):
            return rep
        if rep.bounds and domain_of(x.shape) == domain_of(shape):  # axes of extent 1 come and go
            left = iter([b for n, b in zip(x.shape, rep.bounds, strict=True) if n != 1])
            bounds = tuple([(0, 1) if n == 1 else next(left) for n in shape])
            along = iter(squeeze(x.shape, rep.strides))
            return rep._replace(strides=tuple([0 if n == 1 else next(along) for n in shape]), bounds=bounds)
        strides = reshape_strides(x.shape, rep.strides, shape) if not rep.bounds else None
        if strides is None:  # only a copy can be seen under the new shape
            return self.copy(x)._replace(strides=contiguous(shape))
        return View(rep.item, rep.offset, strides, rep.whole)

    def concat(self, node: Node) -> View:
        out, axis = self.assembly(node), node.params["axis"]
        strides = contiguous(out.shape)
        at = 0
        for x in node.inputs:
            put = self.put(self.reps[x], x.shape, strides, out.buffer, at * strides[axis])
            out.depth = max(out.depth, put.depth)
            at += x.shape[axis]
        return view_of(out)

    def pad(self, node: Node) -> View | Full:
        x, rep = node.inputs[0], self.reps[node.inputs[0]]
        if isinstance(rep, View) and not any(node.params["inner"]):
            # A view beyond the ends of what there is.
            low = node.params["low"]
            offset = rep.offset - sum([b * s for b, s in zip(low, rep.strides, strict=True)])
            valid = rep.bounds or tuple([(0, n) for n in x.shape])
            shifted = tuple([(first + b, last + b) for (first, last), b in zip(valid, low, strict=True)])
            return bounded(View(rep.item, offset, rep.strides, False), node.outputs[0].shape, shifted)
        out = self.assembly(node)
        strides = contiguous(out.shape)
        offset = sum([b * s for b, s in zip(node.params["low"], strides, strict=True)])
        steps = tuple([(i + 1) * s for i, s in zip(node.params["inner"], strides, strict=True)])
        put = self.put(self.reps[x], x.shape, steps, out.buffer, offset)
        zero = Full(False if out.dtype.kind == "b" else 0, out.dtype)
        self.put(zero, out.shape, strides, out.buffer, 0, put.depth - 1)
        out.depth = put.depth
        return view_of(out)

    def assembly(self, node: Node) -> Item:
        aval = node.outputs[0].aval
        item = Item("assembly", aval.shape, aval.dtype, domain_of(aval.shape), 0)
        item.buffer = self.temporary(item)
        self.items.append(item)
        return item

    def dot_general(self, node: Node) -> View:
        aval = node.outputs[0].aval
        item = Item("product", aval.shape, aval.dtype, domain_of(aval.shape), 0)
        item.node = node
        for v in node.inputs:
            rep = self.materialised(v)
            item.args.append(rep)
            rep.item.users.append((item, False))
            item.depth = max(item.depth, rep.item.depth + 1)
        self.items.append(item)
        return view_of(item)

    def copy(self, v: Value) -> View:
        """`v` computed once more, in its own order."""
        item = Item("map", v.shape, v.dtype, domain_of(v.shape), 0)
        item.op, item.params = "stop_gradient", {}
        self.take(item, self.reps[v], item.domain)
        self.items.append(item)
        return view_of(item)

    def call(self, node: Node, scratch: int) -> list[View]:
        """A routine: its operands lie contiguously in memory, and so do its results."""
        item = Item("call", (), node.outputs[0].dtype, (), 0)
        item.node = node
        for v in node.inputs:
            rep = self.reps[v]
            if (
                isinstance(rep, Full)
                or rep.bounds
                or squeeze(v.shape, rep.strides) != contiguous(domain_of(v.shape))
            ):
                rep = self.copy(v)
            item.args.append(rep)
            rep.item.users.append((item, False))
            item.depth = max(item.depth, rep.item.depth + 1)
        if scratch:
            self.temporaries += 1
            item.buffer = Buffer("temporary", bool_, scratch, self.temporaries - 1)
        self.items.append(item)
        for v in node.outputs:
            result = Item("result", v.shape, v.dtype, domain_of(v.shape), item.depth)
            item.results.append(result)
            self.items.append(result)
        return [view_of(result) for result in item.results]

    SHAPES: ClassVar[dict[str, Callable[[_Fuser, Node], View | Full]]] = {
        "full": full, "constant": constant, "broadcast": broadcast, "transpose": transpose, "slice": slice,
        "reshape": reshape, "concat": concat, "pad": pad, "dot_general": dot_general,
    }  # fmt: skip

    # --- memory ---------------------------------------------------------------------------------------------------

    def temporary(self, item: Item) -> Buffer:
        return self.further(item.dtype, item.size)

    def further(self, d: dtype, size: int) -> Buffer:
        self.temporaries += 1
        return Buffer("temporary", d, size, self.temporaries - 1)

    def outputs(self, program: Program) -> tuple[Shape, int]:
        """Let items write outputs in place; copy what is an input, a constant, a view, or returned twice."""
        offsets = []
        nbytes = 0
        for i, v in enumerate(program.outputs):
            buffer = Buffer("output", v.dtype, v.size, i, nbytes)
            offsets.append(nbytes)
            nbytes += aligned(v.aval.nbytes)
            rep = self.reps[v]
            if isinstance(rep, View) and rep.whole and rep.item.kind != "leaf":
                item = rep.item
                if item.buffer is None:
                    item.buffer = buffer
                    continue
                if item.buffer.kind == "temporary":  # an assembly: its stores know the buffer as an object
                    item.buffer.kind, item.buffer.index, item.buffer.offset = "output", i, buffer.offset
                    continue
            if not self.put_padded(rep, v.shape, buffer):
                self.put(rep, v.shape, contiguous(v.shape), buffer, 0)
        return tuple(offsets), nbytes

    def put_padded(self, rep: View | Full, shape: Shape, target: Buffer) -> bool:
        """Store a computed value with zeros around it where it is computed, and the zeros next to it, if it is one."""
        if isinstance(rep, Full) or not rep.bounds or rep.item.kind != "map":
            return False
        inner = tuple([high - low for low, high in rep.bounds])
        first = rep.offset + sum([low * s for (low, _), s in zip(rep.bounds, rep.strides, strict=True)])
        if (
            first
            or domain_of(inner) != rep.item.domain
            or squeeze(inner, rep.strides) != contiguous(rep.item.domain)
        ):
            return False
        strides = contiguous(shape)
        zero = Full(False if target.dtype.kind == "b" else 0, target.dtype)
        extents, at = list(shape), 0
        for a, (low, high) in enumerate(rep.bounds):  # beside it along an axis, within along those before
            for start, stop in ((0, low), (high, shape[a])):
                if start < stop:
                    extents[a] = stop - start
                    self.put(zero, tuple(extents), strides, target, at + start * strides[a])
            extents[a] = high - low
            at += low * strides[a]
        self.put(View(rep.item, 0, contiguous(inner), True), inner, strides, target, at)
        return True
