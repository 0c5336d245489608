"""Where arrays live: offsets in the output block, and one workspace in which temporaries share memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quabla.lowering.loops import Apply, Branches, Buffer, Call, Panel, Product, Reduce, Scalar, Step, Store

__all__ = ["ALIGNMENT", "aligned", "assign", "touched", "writes"]

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of the alignment."""
    return -(-nbytes // alignment) * alignment


def touched(step: Step) -> set[Buffer]:
    """The buffers that a step reads or writes."""
    if isinstance(step, Branches):
        return set().union(*[touched(s) for s in step.steps])
    if isinstance(step, Panel):
        own = {step.private} if step.private is not None else set()
        return own.union(*[touched(s) for s in step.begin], *[touched(s) for s, _ in step.steps])
    if isinstance(step, Product):
        return {step.left, step.right, step.out}
    if isinstance(step, Call):
        own = {step.scratch} if step.scratch is not None else set()
        return {buffer for buffer, _ in step.inputs} | set(step.outputs) | own
    return {e.buffer for e in step.body if not isinstance(e, (Apply, Scalar))}


def writes(step: Step) -> set[Buffer]:
    """The buffers that a step writes."""
    if isinstance(step, Branches):
        return set().union(*[writes(s) for s in step.steps])
    if isinstance(step, Panel):
        own = {step.private} if step.private is not None else set()
        return own.union(*[writes(s) for s in step.begin], *[writes(s) for s, _ in step.steps])
    if isinstance(step, Product):
        return {step.out}
    if isinstance(step, Call):
        return set(step.outputs) | ({step.scratch} if step.scratch is not None else set())
    return {e.buffer for e in step.body if isinstance(e, (Store, Reduce))}


def assign(
    steps: Sequence[Step], sizes: Mapping[Buffer, int] | None = None, alignment: int = ALIGNMENT
) -> int:
    """Give every temporary its offset in the workspace; those never alive at the same step may share memory.

    Args:
        steps: what touches the buffers, in order.
        sizes: the buffers to place, and their sizes in bytes: all temporaries unless given.
        alignment: of which number of bytes every offset is a multiple.

    Returns:
        The size of the workspace in bytes.
    """
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for i, step in enumerate(steps):
        for buffer in touched(step):
            if buffer.kind == "temporary" if sizes is None else buffer in sizes:
                first.setdefault(buffer, i)
                last[buffer] = i
    # First fit: a gap between those alive at the same time.
    placed: list[tuple[int, int, Buffer]] = []  # offset, end, buffer: alive now, sorted by offset
    total = 0
    for buffer in sorted(first, key=lambda x: (first[x], x.index)):
        placed = [entry for entry in placed if last[entry[2]] >= first[buffer]]
        nbytes = aligned(buffer.size * buffer.dtype.itemsize if sizes is None else sizes[buffer], alignment)
        at = 0
        slot = len(placed)
        for i, (offset, end, _) in enumerate(placed):
            if offset - at >= nbytes:
                slot = i
                break
            at = end
        buffer.offset = at
        placed.insert(slot, (at, at + nbytes, buffer))
        total = max(total, at + nbytes)
    return total
