"""What the functions beneath transforms were traced to, kept for the next call within a trace.

A transform that is called on traced values stages the function beneath it, then records what it makes of that program.
The program is the same at the next call with the same signature, if the function closes over no traced value and reads
the same as before: then it is taken from here. `transform.cache` holds it, apart from what was compiled, and so for as
long as the user's function lives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from quabla.arrays.tracer import TraceTensor, ended, taking_notes
from quabla.control.rules import Rule
from quabla.ir.program import Program
from quabla.shapes import ShapeDtype
from quabla.transforms.auxiliary import Parts
from quabla.transforms.cache import Known
from quabla.transforms.reads import Reads, is_constant
from quabla.transforms.staging import Call, Result, Staged, Static, stage
from quabla.transforms.transform import Transform

__all__ = ["stage_beneath"]

_changing = threading.Lock()


class _Now(threading.local):
    """The function that this thread has just looked at, if nothing of a user has run since."""

    known: Known | None = None


_now = _Now()


def stage_beneath(transform: Transform, call: Call, split: Callable[[Any], tuple[list[Any], Any]]) -> Staged:
    """Trace the function beneath a transform on the types of a call, or take what it was traced to before.

    Args:
        transform: what is applied to the function. How it takes results apart depends on its chain alone.
        call: the arguments of the function.
        split: takes apart what the function returned.
    """
    cache, root = transform.cache, transform.root
    known = cache.known
    # Whoever takes notes of where nodes come from wants to see them made.
    if not known.keeps or taking_notes() or not all(map(_is_plain, call.leaves)):
        return stage(transform.fun, call, split=split)
    key = call.key
    if known.reads is not None:
        if _now.known is known or known.reads.same(root):
            known.looks += 1
            found: Staged | None = cache.traces_of(known.version).get(key)
            if found is not None:
                return found
        else:
            _forget(known)
    version, looks = known.version, known.looks
    # The function is not looked at again before it begins: between a transform and the one that it stages is nothing.
    _now.known = known if known.reads is not None and _stages(transform.fun) else None
    try:
        staged = stage(transform.fun, call, split=split)
    finally:
        _now.known = None
    keep = (
        not staged.captures
        and len(cache.traces_of(version)) < transform.max_traces
        and _is_same_each_time(staged.result)
        and _is_free(staged.program)
    )
    if keep or known.reads is not None:
        # The function is looked at when it has been traced: what it changes itself, such as a counter, is no reason to
        # trace it again, nor is it for other signatures. Where transforms are nested, the innermost has just looked.
        reads = known.reads if known.looks > looks else Reads.of(root)
        if reads is None:
            _forget(known)
            if keep:  # else it may close over a traced value for now
                known.keeps = False
        else:
            with _changing:
                if known.version == version:  # unless another thread has seen it change
                    known.reads = reads
                    known.looks += 1
                    if keep and len(cache.traces_of(version)) < transform.max_traces:
                        cache.traces_of(version)[key] = staged
    return staged


def _stages(fun: Any) -> bool:
    """Whether a call within a trace begins with staging what is beneath: not that of what just calls the function."""
    return isinstance(fun, Transform) and fun.kind not in ("jit", "call", "update")


def _forget(known: Known) -> None:
    """Start anew with a function that has changed, or of which it cannot be told now."""
    with _changing:
        known.reads = None
        known.version += 1


def _is_plain(leaf: Any) -> bool:
    return type(leaf) is ShapeDtype or is_constant(leaf.value)


def _is_same_each_time(result: Any) -> bool:
    """Whether what a function returned besides arrays may be returned again."""
    if isinstance(result, Parts):
        return _is_same_each_time(result.value) and _is_same_each_time(result.aux)
    if isinstance(result, Result):
        return all(type(leaf) is not Static or is_constant(leaf.value) for leaf in result.leaves)
    return result is None


def _is_free(program: Program) -> bool:
    """Let go of the traces in which a program and its regions were made; False if a node of it holds more of them.

    A rule of a custom derivative is traced when it is needed, from what its function closes over.
    """
    for v in program.inputs:
        if type(v) is TraceTensor:
            v.frame = ended
    for node in program.nodes:
        for v in node.outputs:
            if type(v) is TraceTensor:
                v.frame = ended
        if node.op.family == "region":
            for param in node.params.values():
                if isinstance(param, Rule) or (isinstance(param, Program) and not _is_free(param)):
                    return False
    return True
