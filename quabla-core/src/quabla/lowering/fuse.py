"""From a Program to a list of kernels and products, and a plan of their memory.

1. Shape ops become views: a buffer read with an offset and strides (`views.py`).
2. Every computed value gets a depth: how many kernel boundaries lie before it. A boundary is crossed where a value is
   read from memory: the result of a reduction, product or assembly, a value read through a view that reorders it, or one
   computed over another domain.
3. Elementwise values of one domain and one depth form one kernel; reductions join the kernel of their operand. Depths
   order the kernels, so no cycle can arise.
4. A value moves to the kernel of its first use where that saves a store; a cheap one is computed again in each kernel
   that uses it where that saves memory traffic.
5. Only values that other kernels read get memory. Outputs are written where they are returned; `concat` and `pad` are
   stores into parts of one buffer.

Domains are compared without axes of extent 1, so that a reshape between (64,) and (64, 1) costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from quabla.arrays.tensor import Tensor
from quabla.dtypes import bool_, dtype
from quabla.ir.op import Op
from quabla.ir.program import Node, Program, Value
from quabla.lowering.buffers import aligned, assign
from quabla.lowering.loops import (
    Apply,
    Axis,
    Buffer,
    Call,
    Entry,
    Kernel,
    Load,
    Product,
    Reduce,
    Scalar,
    Store,
    collapse,
    merge_axes,
)
from quabla.lowering.products import free_axes
from quabla.lowering.views import broadcast_strides, contiguous, reshape_strides, squeeze
from quabla.shapes import ShapeDtype

__all__ = ["Plan", "fuse", "handles"]

Shape = tuple[int, ...]
_DEAR = frozenset(("exp", "log", "sin", "cos", "tanh", "sigmoid", "softplus", "power", "div", "sqrt"))
_REPEATED = 4  # cheap ops that may be computed again in place of one load
_REDUCTIONS = {
    "reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_any": "any", "reduce_all": "all"
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A lowered program.

    Attributes:
        in_avals: the types of the inputs.
        out_avals: the types of the outputs.
        out_offsets: where each output begins in the output block, in bytes.
        out_nbytes: the size of the output block.
        steps: kernels, products and calls in the order in which they run.
        constants: the arrays that buffers of kind "constant" stand for.
        workspace: bytes of memory for temporaries.
    """

    in_avals: tuple[ShapeDtype, ...]
    out_avals: tuple[ShapeDtype, ...]
    out_offsets: tuple[int, ...]
    out_nbytes: int
    steps: tuple[Kernel | Product | Call, ...]
    constants: tuple[Tensor, ...]
    workspace: int


class _Item:
    """A unit of work, or an array that exists already."""

    __slots__ = ("again", "args", "axes", "buffer", "depth", "domain", "dtype", "kind", "node", "op", "ops", "params", "results",
                 "roots", "shape", "size", "target", "users")  # fmt: skip
    op: str  # of maps and reductions
    params: dict[str, Any]
    axes: frozenset[int]  # of reductions, among the axes of the domain
    node: Node  # of products
    target: tuple[Buffer, int, Shape]  # of puts
    results: list[_Item]  # of calls

    def __init__(self, kind: str, shape: Shape, dtype: dtype, domain: Shape, depth: int) -> None:
        # "leaf", "map", "reduce", "product", "call" and its "result"s, "assembly", or "put": a store into an assembly or output
        self.kind = kind
        self.shape = shape
        self.size = math.prod(shape)
        self.dtype = dtype
        self.domain = domain
        self.depth = depth
        self.buffer: Buffer | None = None
        self.args: list[_View | _Full] = []
        self.results = []
        self.users: list[tuple[_Item, bool]] = []  # each with whether the two may share a kernel
        self.roots: frozenset[_Item] | None = None  # what it can be computed from again, if it is cheap
        self.ops = 0  # how many ops that takes
        self.again = False  # whether each kernel that uses it computes it


class _View(NamedTuple):
    """How a value reads an item: strides per axis of the value; `whole` if it is all of it in its own order."""

    item: _Item
    offset: int
    strides: Shape
    whole: bool


class _Full(NamedTuple):
    value: Any
    dtype: dtype


def handles(op: Op) -> bool:
    """Whether `fuse` knows what kind of work an op is. Of elementwise ops the backend must still know the function."""
    return op.family in ("elementwise", "compare", "source") or op.name in _REDUCTIONS or op.name in _Fuser.SHAPES


def fuse(program: Program, routine: Callable[[Node], int | None] = lambda node: None) -> Plan:
    """Group the nodes of a (simplified) program into kernels and plan their memory.

    Args:
        program: only ops for which `handles` holds, or that are routines.
        routine: for a node that the backend computes by a routine of its own, the bytes of scratch memory that it wants
            (0 for none); None for all others.

    Returns:
        The plan; kernels have collapsed domains.
    """
    return _Fuser(routine).run(program)


def _domain(shape: Shape) -> Shape:
    return tuple([n for n in shape if n != 1]) if 1 in shape else shape


class _Fuser:
    def __init__(self, routine: Callable[[Node], int | None]) -> None:
        self.routine = routine
        self.items: list[_Item] = []
        self.reps: dict[Value, _View | _Full] = {}
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
        self.delay()
        self.repeat()
        steps = self.steps()
        return Plan(
            program.in_avals, program.out_avals, offsets, nbytes, steps, tuple(self.constants), assign(steps)
        )

    # --- items ----------------------------------------------------------------------------------------------------

    def leaf(self, aval: ShapeDtype, kind: str, index: int) -> _View:
        item = _Item("leaf", aval.shape, aval.dtype, _domain(aval.shape), -1)
        item.buffer = Buffer(kind, aval.dtype, aval.size, index)
        return _View(item, 0, contiguous(aval.shape), True)

    def view(self, item: _Item) -> _View:
        return _View(item, 0, contiguous(item.shape), True)

    def take(self, user: _Item, rep: _View | _Full, domain: Shape) -> None:
        """Make `rep` an operand of `user`, which goes over `domain`, and place the user after it."""
        user.args.append(rep)
        if isinstance(rep, _View):
            item = rep.item
            joins = rep.whole and item.kind == "map" and item.domain == domain
            depth = item.depth + (not joins)
            if depth > user.depth:
                user.depth = depth
            item.users.append((user, joins))

    def map(self, node: Node) -> _View:
        aval = node.outputs[0].aval
        item = _Item("map", aval.shape, aval.dtype, _domain(aval.shape), 0)
        item.op, item.params = node.op.name, node.params
        for v in node.inputs:
            self.take(item, self.reps[v], item.domain)
        self.items.append(item)
        return self.view(item)

    def reduce(self, node: Node) -> _View:
        x, aval = node.inputs[0], node.outputs[0].aval
        item = _Item("reduce", aval.shape, aval.dtype, _domain(x.shape), 0)
        item.op = _REDUCTIONS[node.op.name]
        axes = node.params["axes"]
        wide = [a for a, n in enumerate(x.shape) if n != 1]
        item.axes = frozenset([i for i, a in enumerate(wide) if a in axes])
        self.take(item, self.squeezed(x), item.domain)
        self.items.append(item)
        return self.view(item)

    def squeezed(self, x: Value) -> _View | _Full:
        """How `x` is read, with strides for the axes of its domain."""
        rep = self.reps[x]
        if isinstance(rep, _Full) or 1 not in x.shape:
            return rep
        return rep._replace(strides=squeeze(x.shape, rep.strides))  # type: ignore[union-attr]

    def put(self, rep: _View | _Full, shape: Shape, strides: Shape, target: Buffer, offset: int, depth: int = 0) -> _Item:
        """Store a value of `shape` into a part of `target`."""
        strides = squeeze(shape, strides)
        if isinstance(rep, _View) and rep.item.kind == "map" and not rep.whole and not rep.offset:
            # All of a computed value in another order of axes: it is stored in that order where it is computed.
            read, own = squeeze(shape, rep.strides), contiguous(rep.item.domain)
            if sorted(read) == sorted(own) and math.prod(shape) == rep.item.size:
                strides = tuple([strides[read.index(s)] for s in own])
                rep, shape = self.view(rep.item), rep.item.domain
                rep = rep._replace(strides=own)
        item = _Item("put", shape, target.dtype, _domain(shape), depth)
        item.target = (target, offset, strides)
        self.take(item, rep, item.domain)
        self.items.append(item)
        return item

    def materialised(self, v: Value) -> _View:
        """`v` as a view of something in memory; the elements of a constant all lie in one place."""
        rep = self.reps[v]
        if isinstance(rep, _View):
            return rep
        from quabla.arrays.tensor import wrap
        import numpy as np

        self.constants.append(wrap(np.full((1,), rep.value, rep.dtype.numpy)))
        one = self.leaf(self.constants[-1].aval, "constant", len(self.constants) - 1)
        return _View(one.item, 0, (0,) * v.ndim, False)

    # --- ops with a meaning of their own --------------------------------------------------------------------------

    def full(self, node: Node) -> _View | _Full:
        return _Full(node.params["value"], node.outputs[0].dtype)

    def constant(self, node: Node) -> _View | _Full:
        self.constants.append(node.params["value"])
        return self.leaf(node.outputs[0].aval, "constant", len(self.constants) - 1)

    def broadcast(self, node: Node) -> _View | _Full:
        x = node.inputs[0]
        rep = self.reps[x]
        if isinstance(rep, _Full):
            return rep
        strides = broadcast_strides(x.shape, rep.strides, node.params["shape"], node.params["dims"])
        return _View(rep.item, rep.offset, strides, rep.whole and node.outputs[0].size == x.size)

    def transpose(self, node: Node) -> _View | _Full:
        rep = self.reps[node.inputs[0]]
        if isinstance(rep, _Full):
            return rep
        strides = tuple([rep.strides[p] for p in node.params["perm"]])
        shape = node.outputs[0].shape
        whole = rep.whole and squeeze(shape, strides) == contiguous(_domain(shape))
        return _View(rep.item, rep.offset, strides, whole)

    def slice(self, node: Node) -> _View | _Full:
        rep = self.reps[node.inputs[0]]
        if isinstance(rep, _Full):
            return rep
        start, step = node.params["start"], node.params["step"]
        offset = rep.offset + sum([a * s for a, s in zip(start, rep.strides, strict=True)])
        strides = tuple([c * s for c, s in zip(step, rep.strides, strict=True)])
        whole = rep.whole and node.inputs[0].size == node.outputs[0].size and offset == rep.offset
        return _View(rep.item, offset, strides, whole and all([c > 0 for c in step]))

    def reshape(self, node: Node) -> _View | _Full:
        x, shape = node.inputs[0], node.params["shape"]
        rep = self.reps[x]
        if isinstance(rep, _Full):
            return rep
        strides = reshape_strides(x.shape, rep.strides, shape)
        if strides is None:  # only a copy can be seen under the new shape
            return self.copy(x)._replace(strides=contiguous(shape))
        return _View(rep.item, rep.offset, strides, rep.whole)

    def concat(self, node: Node) -> _View:
        out, axis = self.assembly(node), node.params["axis"]
        strides = contiguous(out.shape)
        at = 0
        for x in node.inputs:
            put = self.put(self.reps[x], x.shape, strides, out.buffer, at * strides[axis])  # type: ignore[arg-type]
            out.depth = max(out.depth, put.depth)
            at += x.shape[axis]
        return self.view(out)

    def pad(self, node: Node) -> _View:
        out, x = self.assembly(node), node.inputs[0]
        strides = contiguous(out.shape)
        offset = sum([b * s for b, s in zip(node.params["low"], strides, strict=True)])
        steps = tuple([(i + 1) * s for i, s in zip(node.params["inner"], strides, strict=True)])
        put = self.put(self.reps[x], x.shape, steps, out.buffer, offset)  # type: ignore[arg-type]
        zero = _Full(False if out.dtype.kind == "b" else 0, out.dtype)
        self.put(zero, out.shape, strides, out.buffer, 0, put.depth - 1)  # type: ignore[arg-type]
        out.depth = put.depth
        return self.view(out)

    def assembly(self, node: Node) -> _Item:
        aval = node.outputs[0].aval
        item = _Item("assembly", aval.shape, aval.dtype, _domain(aval.shape), 0)
        item.buffer = self.temporary(item)
        self.items.append(item)
        return item

    def dot_general(self, node: Node) -> _View:
        aval = node.outputs[0].aval
        item = _Item("product", aval.shape, aval.dtype, _domain(aval.shape), 0)
        item.node = node
        for v in node.inputs:
            rep = self.materialised(v)
            item.args.append(rep)
            rep.item.users.append((item, False))
            item.depth = max(item.depth, rep.item.depth + 1)
        self.items.append(item)
        return self.view(item)

    def copy(self, v: Value) -> _View:
        """`v` computed once more, in its own order."""
        item = _Item("map", v.shape, v.dtype, _domain(v.shape), 0)
        item.op, item.params = "stop_gradient", {}
        self.take(item, self.reps[v], item.domain)
        self.items.append(item)
        return self.view(item)

    def call(self, node: Node, scratch: int) -> list[_View]:
        """A routine: its operands lie contiguously in memory, and so do its results."""
        item = _Item("call", (), node.outputs[0].dtype, (), 0)
        item.node = node
        for v in node.inputs:
            rep = self.reps[v]
            if isinstance(rep, _Full) or squeeze(v.shape, rep.strides) != contiguous(_domain(v.shape)):
                rep = self.copy(v)
            item.args.append(rep)
            rep.item.users.append((item, False))
            item.depth = max(item.depth, rep.item.depth + 1)
        if scratch:
            self.temporaries += 1
            item.buffer = Buffer("temporary", bool_, scratch, self.temporaries - 1)
        self.items.append(item)
        for v in node.outputs:
            result = _Item("result", v.shape, v.dtype, _domain(v.shape), item.depth)
            item.results.append(result)
            self.items.append(result)
        return [self.view(result) for result in item.results]

    SHAPES: dict[str, Callable[[_Fuser, Node], _View | _Full]] = {
        "full": full, "constant": constant, "broadcast": broadcast, "transpose": transpose, "slice": slice,
        "reshape": reshape, "concat": concat, "pad": pad, "dot_general": dot_general,
    }  # fmt: skip

    # --- memory ---------------------------------------------------------------------------------------------------

    def temporary(self, item: _Item) -> Buffer:
        self.temporaries += 1
        return Buffer("temporary", item.dtype, item.size, self.temporaries - 1)

    def outputs(self, program: Program) -> tuple[Shape, int]:
        """Let items write outputs in place; copy what is an input, a constant, a view, or returned twice."""
        offsets = []
        nbytes = 0
        for i, v in enumerate(program.outputs):
            buffer = Buffer("output", v.dtype, v.size, i, nbytes)
            offsets.append(nbytes)
            nbytes += aligned(v.aval.nbytes)
            rep = self.reps[v]
            if isinstance(rep, _View) and rep.whole and rep.item.kind != "leaf":
                item = rep.item
                if item.buffer is None:
                    item.buffer = buffer
                    continue
                if item.buffer.kind == "temporary":  # an assembly: its stores know the buffer as an object
                    item.buffer.kind, item.buffer.index, item.buffer.offset = "output", i, buffer.offset
                    continue
            self.put(rep, v.shape, contiguous(v.shape), buffer, 0)
        return tuple(offsets), nbytes

    def delay(self) -> None:
        """Move values to the kernel of their first use where no more values are stored for it."""
        for item in reversed(self.items):
            if item.kind != "map" or item.buffer is not None or not item.users:
                continue
            if not all([joins and user.kind == "map" for user, joins in item.users]):
                continue
            first = min([user.depth for user, _ in item.users])
            if first <= item.depth:
                continue
            more = 0
            for rep in item.args:
                if isinstance(rep, _View) and rep.item.kind == "map" and not self.stored(rep.item, item):
                    more += 1
            if more <= 1:
                item.depth = first

    def repeat(self) -> None:
        """Mark cheap values that other kernels compute again instead of reading them from memory."""
        for item in self.items:
            if item.kind != "map" or item.op in _DEAR or not self.recipe(item):
                continue
            if item.buffer is not None or not self.stored(item) or not all([joins for _, joins in item.users]):
                continue
            assert item.roots is not None
            # Kernels that would read a root for this alone; each of them reads the item now.
            depths = {user.depth for user, _ in item.users if user.depth != item.depth}
            extra = 0
            for root in item.roots:
                read = {user.depth for user, _ in root.users if user.domain == item.domain}
                extra += len(depths - read)
            if extra <= len(depths) + 1:
                item.again = True
                for root in item.roots:
                    root.users.extend([(user, root.kind == "map") for user, _ in item.users if user.depth != item.depth])

    def recipe(self, item: _Item) -> bool:
        """Whether an item is few cheap ops away from values that are in memory; notes which."""
        roots: set[_Item] = set()
        ops = 1
        for rep in item.args:
            if isinstance(rep, _Full):
                continue
            source = rep.item
            if rep.whole and source.domain == item.domain:
                if source.kind != "map" or self.written(source):
                    roots.add(source)
                elif source.roots is not None:
                    roots |= source.roots
                    ops += source.ops
                else:
                    return False
            elif source.size * 4 > item.size:
                return False  # another large array, read through a view
        if ops > _REPEATED or len(roots) > 2:
            return False
        item.roots, item.ops = frozenset(roots), ops
        return True

    def stored(self, item: _Item, without: _Item | None = None) -> bool:
        """Whether anybody (but `without`) reads the item from memory."""
        if item.buffer is not None:
            return True
        return any([not joins or user.depth != item.depth for user, joins in item.users if user is not without])

    def written(self, item: _Item) -> bool:
        """Whether the item needs memory."""
        return not item.again and self.stored(item)

    # --- kernels --------------------------------------------------------------------------------------------------

    def steps(self) -> tuple[Kernel | Product | Call, ...]:
        groups: dict[Any, list[_Item]] = {}
        others: list[tuple[int, int, _Item]] = []
        for i, item in enumerate(self.items):
            if item.kind == "assembly":
                continue
            if item.buffer is None and item.kind not in ("put", "call") and (item.kind != "map" or self.written(item)):
                item.buffer = self.temporary(item)
            if item.kind in ("product", "call"):
                others.append((item.depth, i, item))
            elif item.kind != "result":
                groups.setdefault((item.depth, item.domain), []).append(item)
        steps: list[tuple[int, int, Kernel | Product | Call]] = [
            (depth, i, self.kernel(depth, domain, members))
            for i, ((depth, domain), members) in enumerate(groups.items())
        ]
        for depth, i, item in others:
            steps.append((depth, len(groups) + i, self.product(item) if item.kind == "product" else self.called(item)))
        steps.sort(key=lambda entry: entry[:2])
        return tuple([step for _, _, step in steps])

    def kernel(self, depth: int, domain: Shape, members: list[_Item]) -> Kernel:
        body: list[Entry] = []
        place: dict[Any, int] = {}
        own = contiguous(domain)

        def operand(rep: _View | _Full, shape: Shape) -> int:
            if isinstance(rep, _View):
                item = rep.item
                if rep.whole and item.domain == domain:
                    at = place.get(item)
                    if at is None and item.buffer is None and item.kind == "map":
                        at = compute(item)
                    if at is not None:
                        return at
                strides = rep.strides
                if len(strides) != len(domain):
                    strides = squeeze(shape, strides)
                key: Any = (item.buffer, rep.offset, strides)
                at = place.get(key)
                if at is None:
                    assert item.buffer is not None
                    at = place[key] = len(body)
                    body.append(Load(item.buffer, rep.offset, strides))
                return at
            key = (repr(rep.value), rep.dtype)
            at = place.get(key)
            if at is None:
                at = place[key] = len(body)
                body.append(Scalar(rep.value, rep.dtype))  # type: ignore[union-attr]
            return at

        def compute(item: _Item) -> int:
            args = tuple([operand(rep, item.shape) for rep in item.args])
            at = place[item] = len(body)
            body.append(Apply(item.op, args, item.params, item.dtype))
            return at

        for item in members:
            if item.kind == "map":
                if item.again:
                    continue  # where it is used
                compute(item)
                if item.buffer is not None:
                    body.append(Store(place[item], item.buffer, 0, own))
            elif item.kind == "put":
                value = operand(item.args[0], item.shape)
                body.append(Store(value, *item.target))
            else:
                value = operand(item.args[0], domain)
                kept = contiguous(tuple([n for a, n in enumerate(domain) if a not in item.axes]))
                strides = iter(kept)
                assert item.buffer is not None
                body.append(
                    Reduce(
                        item.op,
                        value,
                        item.axes,
                        item.buffer,
                        0,
                        tuple([0 if a in item.axes else next(strides) for a in range(len(domain))]),
                    )
                )
        return collapse(Kernel(domain, tuple(body)))

    def called(self, item: _Item) -> Call:
        inputs = []
        for rep in item.args:
            assert isinstance(rep, _View) and rep.item.buffer is not None
            inputs.append((rep.item.buffer, rep.offset))
        outputs = [result.buffer for result in item.results if result.buffer is not None]
        return Call(item.node, tuple(inputs), tuple(outputs), item.buffer)

    def product(self, item: _Item) -> Product:
        node = item.node
        left, right = item.args
        assert isinstance(left, _View) and isinstance(right, _View)
        assert left.item.buffer is not None and right.item.buffer is not None and item.buffer is not None
        lhs, rhs = node.inputs
        (lc, rc), (lb, rb) = node.params["contract"], node.params["batch"]
        lf, rf = free_axes(lhs.ndim, lc, lb), free_axes(rhs.ndim, rc, rb)
        out = list(contiguous(item.shape))
        batch = [
            Axis(lhs.shape[a], left.strides[a], right.strides[b], s)
            for a, b, s in zip(lb, rb, out, strict=False)
        ]
        m = [Axis(lhs.shape[a], left.strides[a], 0, s) for a, s in zip(lf, out[len(lb) :], strict=False)]
        n = [Axis(rhs.shape[a], 0, right.strides[a], s) for a, s in zip(rf, out[len(lb) + len(lf) :], strict=False)]
        k = [Axis(lhs.shape[a], left.strides[a], right.strides[b], 0) for a, b in zip(lc, rc, strict=True)]
        # An operand repeated along a batch axis: the axis belongs to the other operand alone.
        kept = []
        for axis in batch:
            if axis.right == 0 and axis.left:
                m.insert(len([x for x in m if x.out > axis.out]), axis)
            elif axis.left == 0 and axis.right:
                n.insert(len([x for x in n if x.out > axis.out]), axis)
            else:
                kept.append(axis)
        return Product(
            merge_axes(kept),
            merge_axes(m),
            merge_axes(n),
            merge_axes(sorted(k, key=lambda axis: -abs(axis.left))),
            left.item.buffer,
            left.offset,
            right.item.buffer,
            right.offset,
            item.buffer,
            item.dtype,
        )
