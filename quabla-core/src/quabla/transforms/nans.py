"""`debug_nans`: where a NaN came from.

While it is on, calls take the slow way in (`LIVE` is not empty), and each result is looked at. If one holds NaN, the
function is traced once more, this time noting the user's line for every node, and run node by node on the reference
backend. From the NaN in the result the search goes back through operands that hold NaN to the node that made one of
operands without: into loops and branches, too, to the step that did it. An op that is computed by itself is shown to
`check_operation` (`WATCHES`). While it is off nothing of this is there.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from quabla.arrays import tracer
from quabla.arrays.tensor import Tensor
from quabla.backends.protocol import TrainingPlan
from quabla.control import regions
from quabla.dtypes import as_dtype
from quabla.errors import NanError
from quabla.ir.op import Op
from quabla.ir.program import Node, Program, Value
from quabla.shapes import aval_of
from quabla.transforms import dispatch
from quabla.transforms.staging import Call, name_of

__all__ = ["WatchedPlan", "debug_nans"]


class debug_nans:  # noqa: N801 - used like a function
    """Look for NaN in every result of a transformed function, and say where the first one was made.

    `quabla.debug_nans()` turns it on and `quabla.debug_nans(False)` off, for all threads; as a context manager it is on
    for a block. It looks at the results of functions made by `jit`, `grad`, `vmap` and the others, at the steps of a
    `Trainer` that was made while it is on, and at single operations on arrays. A result with NaN raises `NanError`,
    which names the operation, the values that it was given, and the user's line, also for the backward pass and within
    loops; a single operation raises it where it makes a NaN of operands that hold none. While it is off it costs
    nothing.

    Args:
        enabled: on or off.

    Raises:
        NanError: (by the functions called) a result holds NaN.

    Example:
        >>> import quabla as qb
        >>> f = qb.jit(lambda x: qb.sum(qb.log(x)))
        >>> with qb.debug_nans():
        ...     f(qb.array([1.0, -2.0]))
        Traceback (most recent call last):
        quabla.errors.NanError: jit(<lambda>): NaN comes from log(-2.0) at index (1,) ...
    """

    def __init__(self, enabled: bool = True) -> None:
        self._before = bool(dispatch.CHECKS)
        _switch(bool(enabled))

    def __enter__(self) -> debug_nans:
        return self

    def __exit__(self, *_: object) -> None:
        _switch(self._before)


_lock = threading.Lock()
_SENTINEL: Any = object()  # stands in LIVE for "do not take the short way"


def _switch(on: bool) -> None:
    with _lock:
        if on and not dispatch.CHECKS:
            dispatch.CHECKS.append(check)
            tracer.WATCHES.append(check_operation)
            tracer.LIVE.append(_SENTINEL)
        elif not on and dispatch.CHECKS:
            dispatch.CHECKS.clear()
            tracer.WATCHES.remove(check_operation)
            tracer.LIVE.remove(_SENTINEL)


# --- the user's lines -------------------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """Where a node comes from.

    Attributes:
        path: the user's file, "" where there is none.
        line: the line in it.
        backward: whether the node belongs to the backward pass of what stands there.
    """

    path: str
    line: int
    backward: bool

    def __str__(self) -> str:
        source = linecache.getline(self.path, self.line).strip()
        return f"{self.path}, line {self.line}{': ' if source else ''}{source}"


class _Noted(list[Node]):
    """The nodes of a frame, which notes where each comes from."""

    origins: dict[Node, Origin]

    def append(self, node: Node) -> None:
        super().append(node)
        self.origins[node] = _origin(sys._getframe(1), self.origins)


def _origin(frame: FrameType | None, origins: dict[Node, Origin]) -> Origin:
    """The innermost user's line on the stack, or the origin of the node that a transform works on, if that is nearer.

    Transforms go over the nodes of a program in loops whose variable is called `node`.
    """
    backward = False
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        package = module.partition(".")[0]
        if package != "quabla" and package != "numpy":
            return Origin(frame.f_code.co_filename, frame.f_lineno, backward)
        if module.startswith(("quabla.transforms.", "quabla.control.")):
            backward = backward or frame.f_code.co_name in ("backward", "pullback")
            known = origins.get(frame.f_locals.get("node"))  # type: ignore[arg-type]
            if known is not None:
                return Origin(known.path, known.line, backward or known.backward)
        frame = frame.f_back
    return Origin("", 0, backward)


@contextlib.contextmanager
def _noting() -> Iterator[dict[Node, Origin]]:
    origins: dict[Node, Origin] = {}
    noted = type("_NotedHere", (_Noted,), {"origins": origins})
    with tracer.recording_in(noted):
        yield origins


# --- the search -------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """The node that made the first NaN, its operands and results, and the steps of the loops around it."""

    node: Node
    operands: tuple[np.ndarray, ...]
    results: tuple[np.ndarray, ...]
    within: tuple[str, ...]


class _StopError(Exception):
    def __init__(self, found: Found) -> None:
        self.found = found


def _has_nan(x: Any) -> bool:
    return x.dtype.kind == "f" and bool(np.isnan(x).any())


def _evaluate(program: Program, arrays: Sequence[np.ndarray]) -> dict[Value, np.ndarray]:
    """All values of a program, by definition."""
    env: dict[Value, np.ndarray] = dict(zip(program.inputs, arrays, strict=True))
    for node in program.nodes:
        out = node.op.evaluate(*[env[v] for v in node.inputs], **node.params)
        for v, o in zip(node.outputs, out if node.op.multiple else (out,), strict=True):
            env[v] = np.asarray(o, v.aval.dtype.numpy)
    return env


def _find(program: Program, arrays: Sequence[np.ndarray], within: tuple[str, ...]) -> Found | Value | None:
    """The node that made a NaN of an output, or the input that brought it; None where no output holds one."""
    env = _evaluate(program, arrays)
    ends = [_end(v, env, set(program.inputs)) for v in program.outputs if _has_nan(env[v])]
    if not ends:
        return None
    # Of several, one that was computed from numbers is the most telling: where a function is not defined, its
    # derivative may be a NaN written down.
    at = min(
        ends,
        key=lambda v: (
            v.node is not None and (not v.node.inputs or any(_has_nan(env[x]) for x in v.node.inputs))
        ),
    )
    node = at.node
    if node is None or at in program.inputs:
        return at
    operands = tuple([env[v] for v in node.inputs])
    return _within(node, operands, tuple([env[v] for v in node.outputs]), within)


def _end(at: Value, env: dict[Value, np.ndarray], inputs: set[Value]) -> Value:
    """Back through operands that hold NaN, to a value computed from operands without, or from a number that is NaN."""
    while at not in inputs and at.node is not None:
        before = [v for v in at.node.inputs if _has_nan(env[v])]
        computed = [v for v in before if v.node is None or v.node.op.name != "full"]
        if not computed:
            break
        at = computed[0]
    return at


def _within(
    node: Node, operands: tuple[Any, ...], results: tuple[Any, ...], within: tuple[str, ...]
) -> Found:
    """The node itself, or where in its regions the NaN was made."""
    if node.op.family != "region":
        return Found(node, operands, results, within)

    def watch(program: Program, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        with regions.watched(None):
            env = _evaluate(program, arrays)
            if any(_has_nan(env[v]) for v in program.outputs) and not any(map(_has_nan, arrays)):
                found = _find(program, arrays, (*within, _step(node, program, arrays)))
                if isinstance(found, Found):
                    raise _StopError(found)
        return [env[v] for v in program.outputs]

    try:
        with regions.watched(watch):
            node.op.evaluate(*operands, **node.params)
    except _StopError as stop:
        return stop.found
    return Found(node, operands, results, within)


def _step(node: Node, program: Program, arrays: Sequence[np.ndarray]) -> str:
    name = node.op.name
    loop = {"scan": "scan or fori_loop", "while": "while_loop"}.get(name)
    if loop and program is node.params.get("body"):
        return f"step {int(arrays[0])} of a {loop}"
    key = next((k for k, v in node.params.items() if v is program), "")
    return f"the {key} branch of {name}" if name == "cond" else name


# --- the report -------------------------------------------------------------------------------------------------------


def check(transform: Any, call: Call, outputs: Sequence[Any]) -> None:
    """Raise `NanError` where the results of a call hold NaN."""
    if any(_has_nan(x.numpy()) for x in outputs):
        _report(name_of(transform), lambda: dispatch.stage_call(transform, call).program, call.arrays)


def check_operation(op: Op, operands: Sequence[Any], params: dict[str, Any], results: Sequence[Any]) -> None:
    """Raise `NanError` where an op, computed by itself, makes a NaN of operands that hold none."""
    if not operands or any(map(_has_nan, operands)) or not any(_has_nan(np.asarray(x)) for x in results):
        return
    node = Node(op, tuple([_value(x) for x in operands]), params)
    node.outputs = tuple([_value(np.asarray(x)) for x in results])
    found = _within(node, tuple(operands), tuple(results), ())
    origin = _origin(sys._getframe(1), {})
    line = str(origin) if origin.path else None
    raise NanError(
        f"{op.name}: NaN comes from {_shown(found)}{_steps(found)}{f' (at {line})' if line else ''}",
        op=found.node.op.name,
        line=line,
        operands=found.operands,
    )


def _value(array: np.ndarray) -> Value:
    """A value of the type of an array."""
    value = Value()
    value.aval, value.node, value.index = aval_of(array.shape, as_dtype(array.dtype)), None, 0
    return value


def _steps(found: Found) -> str:
    return f", in {' of '.join(reversed(found.within))}" if found.within else ""


def _report(where: str, trace: Callable[[], Program], inputs: Sequence[Any]) -> NoReturn:
    """Trace a program once more, find what made a NaN, and raise it."""
    arrays = [x.numpy() for x in inputs]
    with _noting() as origins, np.errstate(all="ignore"):
        program = trace()
        found = _find(program, arrays, ())
    if found is None:
        raise NanError(
            f"{where}: the result holds NaN, but computed node by node on the reference backend it does not; please "
            "report this, with the arguments"
        )
    if isinstance(found, Value):
        i = program.inputs.index(found)
        name, array = program.input_names[i], arrays[i]
        at = tuple(int(n) for n in np.argwhere(np.isnan(array))[0])
        raise NanError(
            f"{where}: the argument {name} ({found.aval}) holds NaN already, at index {at}", operands=(array,)
        )
    origin = origins.get(found.node)
    line = str(origin) if origin is not None and origin.path else None
    phrase = "in the backward pass of the line " if origin is not None and origin.backward else "at "
    raise NanError(
        f"{where}: NaN comes from {_shown(found)}{_steps(found)}{f' ({phrase}{line})' if line else ''}",
        op=found.node.op.name,
        line=line,
        operands=found.operands,
    )


class WatchedPlan:
    """A training plan that looks at the loss and the new state after each step, and then says where a NaN came from.

    Args:
        inner: the plan.
        where: what trains, for messages.
        trace: traces the step once more: from the state and the data to the new state and the loss.
        data: the data that the plan was made with.
    """

    def __init__(
        self, inner: TrainingPlan, where: str, trace: Callable[[], Program], data: Sequence[Tensor]
    ) -> None:
        self.inner, self._where, self._trace, self._data = inner, where, trace, list(data)
        self.state, self.set_state, self.loss = inner.state, inner.set_state, inner.loss

    def step(self) -> None:
        """Run one step."""
        before = self.inner.state()
        self.inner.step()
        if any(_has_nan(x.numpy()) for x in (*self.inner.state(), self.inner.loss())):
            _report(self._where, self._trace, (*before, *self._data))

    def run(self, steps: int) -> None:
        """Run several steps, one by one."""
        for _ in range(steps):
            self.step()

    def replace(self, index: int, data: Tensor) -> None:
        """Put another array in the place of a data input."""
        self.inner.replace(index, data)
        self._data[index] = data


def _shown(found: Found) -> str:
    """The application that made the NaN: the elements where it is pointwise, else the operands."""
    node, name = found.node, found.node.op.name
    if not node.inputs:
        return f"a constant ({node.outputs[0].aval})"
    if node.op.family in ("elementwise", "compare"):
        at = tuple(int(n) for n in np.argwhere(np.isnan(found.results[0]))[0])
        elements = ", ".join(repr(x[at].item()) for x in found.operands)
        params = "".join(f", {k}={v!r}" for k, v in node.params.items())
        return f"{name}({elements}{params}){f' at index {at}' if at else ''} of {node.outputs[0].aval}"
    shown = ", ".join(f"{v.aval} {_brief(x)}" for v, x in zip(node.inputs, found.operands, strict=True))
    return f"{name}({shown})"


def _brief(x: np.ndarray) -> str:
    text = np.array2string(x, precision=6, threshold=8, edgeitems=2, separator=", ")
    return " ".join(text.split())
