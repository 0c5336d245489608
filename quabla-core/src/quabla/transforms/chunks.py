"""Batching a few lanes at a time: `chunk_size` of `vmap`, `jacobian` and `hessian`.

A loop over chunks holds the memory of one chunk where a whole batch would hold that of all. What depends on no mapped
input is computed once, before the loop. Where the chunks do not divide the lanes, the last chunk begins earlier and
computes some lanes again, so that all chunks run the same code. A chunk has two lanes at least: with one, a product of
matrices is another one, of a vector.

On the CPU every lane has the same bits as in the whole batch, in nearly every program: the order of a sum depends on
what is summed and how it lies in memory, neither on how many lanes there are nor on what else its kernel computes.
Several threads share a sum only where its terms are outside of everything that is kept, and lanes on the first axis are
outside of the terms. For the rest a chunk looks like the batch: lanes stay on the axis on which they lie in memory, and
views of what is not mapped are views in the loop, too.

These sums agree up to rounding only, and so does what follows from them:

- the gradient of an unmapped argument, a sum over lanes: it adds up chunk by chunk, or chunks would save no memory;
- a sum of 128 or more terms over the first axis of an array, where lanes are on a later one or nowhere: it looks like
  the sum over the points of a training step, which threads share if the whole program is worth it;
- a sum over several axes at once that are one in memory in one of the programs and not in the other, since something
  there is repeated along one of them, as a row of a matrix is: one axis is summed in vectors that cross its parts;
- sums over different axes that one loop nest does at once, as for a matrix with few columns whose rows and columns are
  both summed: the nest has the axis of vectors that is best for both;
- in Jacobians the derivative of a linear function, which is a constant: in chunks it is computed while it is traced, by
  the definitions of the ops.

Other devices say for themselves. On the reference backend products are those of NumPy, whose last bits depend on the
number of rows. `numpy.einsum` can be made to sum in an order that does not, but takes eight to ten times as long for
matrices of hundreds of rows, and the same definition evaluates calls without `jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from quabla.arrays.tracer import Frame, TraceTensor, trace
from quabla.control.derive import Parts, index_aval, slice_type
from quabla.control.scan import bind_scan
from quabla.errors import DtypeError
from quabla.ir.program import Node, Program, Value
from quabla.ops.structure import concatenate, lead, permute, reshape_to, strided_slice, transpose_op
from quabla.shapes import whole
from quabla.transforms.batch import batch_values
from quabla.transforms.forward import replay
from quabla.typed_repr import typed

__all__ = ["batch_chunks", "checked_chunk", "even", "over_chunks", "rows"]


def checked_chunk(where: str, chunk_size: Any) -> int | None:
    """`chunk_size`, a positive int or None.

    Raises:
        DtypeError: it is something else.
    """
    if chunk_size is None:
        return None
    try:
        size = whole(chunk_size)
    except TypeError:
        size = 0
    if size < 1:
        raise DtypeError(
            f"{where}: chunk_size must be a positive int, or None for all at once, got {typed(chunk_size)}"
        )
    return size


def even(size: int, chunk: int) -> int:
    """The least chunk with which there are as few chunks as with `chunk`: the last one has little to compute again.

    At least two lanes, since a product with a single row is a sum of another order than one with several.
    """
    chunk = max(chunk, 2)
    return -(-size // -(-size // chunk))


def rows(x: Any, low: int, high: int, axis: int = 0) -> Any:
    """`x[low:high]`, or the same along another axis."""
    if (low, high) == (0, x.shape[axis]):
        return x
    start, stop = [0] * x.ndim, list(x.shape)
    start[axis], stop[axis] = low, high
    return strided_slice(x, tuple(start), tuple(stop), (1,) * x.ndim)


class Split(NamedTuple):
    """A program split into what depends on mapped inputs and what does not.

    Attributes:
        inner: the first part, a program of the mapped inputs and then of `fixed`.
        fixed: what it reads of the second part, recorded already.
        outs: per output of the whole, its value where it is not mapped, else None.
    """

    inner: Program
    fixed: list[TraceTensor]
    outs: list[TraceTensor | None]


def _split(frame: Frame, program: Program, args: Sequence[Any], over: Sequence[bool]) -> Split:
    known: dict[Value, TraceTensor] = {
        v: x for v, x, m in zip(program.inputs, args, over, strict=True) if not m
    }
    mapped = [v for v, m in zip(program.inputs, over, strict=True) if m]
    many: set[Value] = set(mapped)
    nodes: list[Node] = []
    for node in program.nodes:
        if any(v in many for v in node.inputs):
            nodes.append(node)
            many.update(node.outputs)
            continue
        out = replay(frame, node, tuple([known[v] for v in node.inputs]))
        for v, o in zip(node.outputs, out if node.op.multiple else (out,), strict=True):
            known[v] = o
    made, read = _views([v for node in nodes for v in node.inputs if v not in many])
    inner = Program((*mapped, *read), (*made, *nodes), tuple([v for v in program.outputs if v in many]))
    return Split(inner, [known[v] for v in read], [None if v in many else known[v] for v in program.outputs])


_VIEWS = frozenset(("full", "constant", "broadcast", "transpose", "slice", "reshape"))


def _views(values: Sequence[Value]) -> tuple[list[Node], list[Value]]:
    """The views that some values are, in order, and what they are views of.

    Before the loop they would be made into arrays, which the loop would read in another order and from more memory.
    """
    nodes: dict[Node, None] = {}
    read: dict[Value, None] = {}

    def look(v: Value) -> None:
        if v.node is None or v.node.op.name not in _VIEWS:
            read[v] = None
        elif v.node not in nodes:
            for x in v.node.inputs:
                look(x)
            nodes[v.node] = None

    for v in values:
        look(v)
    return list(nodes), list(read)


def over_chunks(
    frame: Frame,
    program: Program,
    args: Sequence[Any],
    over: Sequence[bool],
    size: int,
    chunk: int,
    lanes: Callable[[Any, Sequence[Any]], Sequence[Any]],
    xs: Sequence[TraceTensor] = (),
) -> tuple[list[TraceTensor], list[bool]]:
    """Record a program of one lane for `size` lanes, `chunk` of them at a time.

    Args:
        frame: where to record.
        program: the program of one lane.
        args: a value per input; those of mapped inputs are not looked at.
        over: which inputs are mapped.
        size: the number of lanes.
        chunk: how many are computed at a time, less than `size`.
        lanes: from the index of a chunk and its slices of `xs`, the mapped inputs with their leading axis of extent
            `chunk`. The last chunk is that of the last lanes.
        xs: arrays with a leading axis for the chunks.

    Returns:
        The outputs, and which of them have the leading axis; as `batch_values` does.
    """
    split = _split(frame, program, args, over)
    fixed = len(split.fixed)
    flags = [*[True] * (len(split.inner.inputs) - fixed), *[False] * fixed]

    def step(index: Any, *values: Any) -> list[Any]:
        given = [*lanes(index, values[fixed:]), *values[:fixed]]
        outs, has = batch_values(index.frame, split.inner, given, flags, chunk)
        return [lead(o, m, chunk) for o, m in zip(outs, has, strict=True)]

    body, _ = trace(step, [index_aval, *(x.aval for x in split.fixed), *map(slice_type, xs)])
    count = -(-size // chunk)
    _, stacks = bind_scan(body, count, Parts(list(split.fixed), [], list(xs)))
    joined = iter([_joined(reshape_to(y, (count * chunk, *y.shape[2:])), size, chunk) for y in stacks])
    return [next(joined) if x is None else x for x in split.outs], [x is None for x in split.outs]


def _joined(x: Any, size: int, chunk: int) -> Any:
    """The lanes of all chunks, without those that the last one computed again."""
    rest = size % chunk
    if not rest:
        return x
    return concatenate([rows(x, 0, size - rest), rows(x, x.shape[0] - rest, x.shape[0])], 0)


def _cut(x: Any, chunk: int, axis: int) -> Any:
    """`x` as a stack of chunks along an axis; the last one is that of the last lanes."""
    size = x.shape[axis]
    rest = size % chunk
    if rest:
        x = concatenate([rows(x, 0, size - rest, axis), rows(x, size - chunk, size, axis)], axis)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    parts = reshape_to(x, (*before, x.shape[axis] // chunk, chunk, *after))
    return permute(parts, (axis, *[a for a in range(parts.ndim) if a != axis]))


def _stored(x: TraceTensor) -> tuple[Any, tuple[int, ...]]:
    """What `x` is a transpose of, and how: chunks keep the order in memory, which decides in which order sums go."""
    source: Any = x
    perm = tuple(range(x.ndim))
    while source.node is not None and source.node.op is transpose_op:
        inner = source.node.params["perm"]
        source, perm = source.node.inputs[0], tuple([inner[p] for p in perm])
    return source, perm


def batch_chunks(
    frame: Frame,
    program: Program,
    args: Sequence[TraceTensor],
    over: Sequence[bool],
    size: int,
    chunk: int | None,
) -> tuple[list[TraceTensor], list[bool]]:
    """`batch_values`, a chunk at a time where `chunk` is less than `size`."""
    chunk = size if chunk is None else even(size, chunk)
    if chunk >= size:
        return batch_values(frame, program, args, over, size)
    stored = [_stored(x) for x, m in zip(args, over, strict=True) if m]
    perms = [perm for _, perm in stored]

    def lanes(index: Any, slices: Sequence[Any]) -> list[Any]:
        return [permute(x, perm) for x, perm in zip(slices, perms, strict=True)]

    xs = [_cut(x, chunk, perm[0]) for x, perm in stored]
    return over_chunks(frame, program, args, over, size, chunk, lanes, xs)
