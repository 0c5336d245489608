"""What the ops that hold programs share: running a program on NumPy arrays, dependencies, captures, lanes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from quabla import tree
from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import TraceTensor, bind, frames
from quabla.errors import DtypeError, ShapeError
from quabla.ir.program import Node, Program, Value
from quabla.ops.apply import operand
from quabla.ops.compare import equal, logical_and
from quabla.ops.elementwise import stop_gradient, where, where_op
from quabla.ops.reduce import reduce_any_op, reduce_max_op, reduce_min_op
from quabla.ops.structure import astype_op, broadcast, sum_over
from quabla.shapes import ShapeDtype, aval_of
from quabla.transforms.staging import Result, Staged, a_kind, as_outputs
from quabla.typed_repr import typed

__all__ = [
    "called", "chosen_lanes", "evaluate", "flag", "functions", "further", "is_traced", "lifted", "mapped",
    "merge_captures", "moved", "results", "safe_lanes", "same_result", "split", "used", "watched", "weak_numbers",
    "with_output_types",
]  # fmt: skip


def functions(where: str, **given: Any) -> None:
    """Check that these arguments are functions.

    Raises:
        DtypeError: one is not.
    """
    for name, fun in given.items():
        if not callable(fun):
            raise DtypeError(f"{where}: {name} must be a function, got {a_kind(fun)}")


def further(where: str, operands: Any) -> tuple[Any, ...]:
    """The further arguments of a step, `operands`, as a tuple.

    Raises:
        DtypeError: it is one value rather than a tuple or list of them.
    """
    if isinstance(operands, (tuple, list)):
        return tuple(operands)
    raise DtypeError(
        f"{where}: operands must be a tuple of the further arguments, got {a_kind(operands)}; for one argument w write "
        "operands=(w,)"
    )


def called(where: str, form: str, fun: Callable[..., Any], *args: Any) -> Any:
    """`fun(*args)`; an error of Python that says that it takes other arguments also says how it is called, `form`.

    Raises:
        DtypeError: it takes other arguments.
    """
    try:
        return fun(*args)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # by what the function did
        said = str(error)
    raise DtypeError(f"{where}: {form} is what is called, and {said}")


def flag(where: str, name: str, value: Any) -> bool:
    """An option that is on or off.

    Raises:
        DtypeError: it is neither True nor False.
    """
    if type(value) is bool:
        return value
    raise DtypeError(f"{where}: {name} must be True or False, got {typed(value)}")


def weak_numbers(value: Any) -> Any:
    """A pytree whose Python numbers have become weak arrays, which adopt the dtype of what they meet."""
    return tree.map(lambda x: operand(x, "a region") if type(x) in (int, float, bool) else x, value)


def results(fun: Any, value: Any) -> tuple[list[Any], Result]:
    """Take apart what the function of a region returned; its Python numbers are weak."""
    return as_outputs(fun, weak_numbers(value))


def lifted(operands: Sequence[Any]) -> list[Any]:
    """The operands as values of the trace in progress, if any: what loops of a trace compute runs natively, not now."""
    if not frames() or any(type(x) is TraceTensor for x in operands):
        return list(operands)
    return [frames()[-1].lift(x) for x in operands]


Watcher = Callable[[Program, Sequence[np.ndarray]], list[np.ndarray]]


class _Watching(threading.local):
    watcher: Watcher | None = None


_watching = _Watching()


@contextlib.contextmanager
def watched(watcher: Watcher | None) -> Iterator[None]:
    """Let `watcher` evaluate the regions that this thread meets meanwhile: `debug_nans` looks into loops this way."""
    before, _watching.watcher = _watching.watcher, watcher
    try:
        yield
    finally:
        _watching.watcher = before


def evaluate(program: Program, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a program node by node on NumPy arrays: the meaning of a region."""
    watcher = _watching.watcher
    if watcher is not None:
        return watcher(program, arrays)
    env: dict[Value, Any] = dict(zip(program.inputs, arrays, strict=True))
    for node in program.nodes:
        out = node.op.evaluate(*[env[v] for v in node.inputs], **node.params)
        for v, o in zip(node.outputs, out if node.op.multiple else (out,), strict=True):
            env[v] = np.asarray(o, v.aval.dtype.numpy)
    return [env[v] for v in program.outputs]


def moved(program: Program, moving: Sequence[bool]) -> list[bool]:
    """Which outputs may have a tangent if these inputs do: floating ones, reached through floating values alone."""
    reached: set[Value] = {v for v, m in zip(program.inputs, moving, strict=True) if m}
    for node in program.nodes:
        if any(v in reached for v in node.inputs):
            reached.update(v for v in node.outputs if v.aval.dtype.kind == "f")
    return [v in reached for v in program.outputs]


def mapped(program: Program, over: Sequence[bool]) -> list[bool]:
    """Which outputs depend on the inputs that are mapped."""
    reached: set[Value] = {v for v, m in zip(program.inputs, over, strict=True) if m}
    for node in program.nodes:
        if any(v in reached for v in node.inputs):
            reached.update(node.outputs)
    return [v in reached for v in program.outputs]


def used(program: Program) -> list[bool]:
    """Which inputs a program reads or returns."""
    read: set[Value] = set(program.outputs)
    for node in program.nodes:
        read.update(node.inputs)
    return [v in read for v in program.inputs]


def split(xs: Sequence[Any], *sizes: int) -> list[list[Any]]:
    """`xs` cut into runs of the given sizes, and the rest."""
    parts, at = [], 0
    for n in sizes:
        parts.append(list(xs[at : at + n]))
        at += n
    return [*parts, list(xs[at:])]


def is_traced(arrays: Sequence[Any]) -> bool:
    """Whether control flow over these arrays must be recorded: some is traced, or a trace is in progress.

    Within a trace even concrete loops are recorded, since their bodies may close over traced values.
    """
    return bool(frames()) or any(type(x) is TraceTensor for x in arrays)


def merge_captures(staged: Sequence[Staged]) -> tuple[list[Program], list[TraceTensor]]:
    """Programs of several functions over the same arguments, with the captures of all as last inputs of each.

    Args:
        staged: the functions, traced on the same arguments.

    Returns:
        The programs, and the captured values.
    """
    captures: dict[TraceTensor, ShapeDtype] = {}
    for s in staged:
        for c, v in zip(s.captures, s.program.inputs[len(s.program.inputs) - len(s.captures) :], strict=True):
            captures.setdefault(c, v.aval)
    programs = []
    for s in staged:
        own = len(s.program.inputs) - len(s.captures)
        mine = dict(zip(s.captures, s.program.inputs[own:], strict=True))
        inputs = (
            *s.program.inputs[:own],
            *(mine[c] if c in mine else unused(a) for c, a in captures.items()),
        )
        names = (*s.program.input_names[:own], *(f"capture/{i}" for i in range(len(captures))))
        programs.append(Program(inputs, s.program.nodes, s.program.outputs, names))
    return programs, list(captures)


def unused(aval: ShapeDtype) -> Value:
    """An input that nothing reads."""
    v = Value()
    v.aval, v.node, v.index = aval, None, 0
    return v


def with_output_types(program: Program, avals: Sequence[ShapeDtype]) -> Program:
    """The program with its outputs cast to other dtypes of the same shapes."""
    if all(v.aval is a for v, a in zip(program.outputs, avals, strict=True)):
        return program
    nodes, outputs = list(program.nodes), []
    for v, aval in zip(program.outputs, avals, strict=True):
        if v.aval is not aval:
            node = Node(astype_op, (v,), {"to": aval.dtype, "weak": aval.weak})
            out = Value()
            out.aval, out.node, out.index = aval, node, 0
            node.outputs = (out,)
            nodes.append(node)
            v = out
        outputs.append(v)
    return Program(program.inputs, tuple(nodes), tuple(outputs), program.input_names)


def same_result(
    where_: str, first: tuple[Any, Result, Any], second: tuple[Any, Result, Any]
) -> list[ShapeDtype]:
    """The common types of two results that must agree; weak ones adopt the dtype of the other.

    Args:
        where_: the function that compares, for messages.
        first: who returned it, its structure, and its types.
        second: the same for the other.

    Raises:
        ShapeError: other structures or shapes.
        DtypeError: other dtypes.
    """
    (name, result, avals), (other_name, other, other_avals) = first, second
    if result.treedef != other.treedef:
        raise ShapeError(
            f"{where_}: {name} returns the structure {result.treedef.shown()}, but {other_name} "
            f"{other.treedef.shown()}; both must return the same"
        )
    out = []
    paths = tree.paths(result.treedef)
    for a, b, path in zip(avals, other_avals, paths, strict=True):
        at = f" at {'/'.join(path)}" if path else ""
        if a.shape != b.shape:
            raise ShapeError(f"{where_}: {name} returns {a}{at}, but {other_name} {b}; the shapes must agree")
        adopts = a.dtype.kind == b.dtype.kind == "f" and (a.weak or b.weak)
        if a.dtype is not b.dtype and not adopts:
            raise DtypeError(
                f"{where_}: {name} returns {a}{at}, but {other_name} {b}; convert one of them with astype"
            )
        strong = b if a.weak else a
        out.append(aval_of(a.shape, strong.dtype, a.weak and b.weak))
    return out


def safe_lanes(active: Any, values: Sequence[Any], over: Sequence[bool]) -> list[Any]:
    """Mapped values in which the lanes that are not active hold a copy of an active one.

    What is computed from them is as harmless as what an active lane computes: no NaN, error or endless loop comes from
    an operand that the lane would never have met, and no derivative reaches the lane that was copied. If no lane is
    active the values are zeros.

    Args:
        active: bool, shape `(lanes,)`.
        values: arrays, the mapped ones of shape `(lanes, *rest)`.
        over: which are mapped.
    """
    lanes = active.shape[0]
    position = wrap(np.arange(lanes, dtype=np.float64))
    first = equal(position, bind(reduce_min_op, (where(active, position, float(lanes)),), {"axes": (0,)}))
    out = []
    for x, m in zip(values, over, strict=True):
        if not m:
            out.append(x)
            continue
        picked = broadcast(
            _picked(broadcast(first, x.shape, (0,)), stop_gradient(x)), x.shape, tuple(range(1, x.ndim))
        )
        out.append(bind(where_op, (broadcast(active, x.shape, (0,)), x, picked), {}))
    return out


def _picked(here: Any, x: Any) -> Any:
    """The one lane of `x` for which `here` holds."""
    if x.dtype.kind == "f":
        return sum_over(where(here, x, 0.0), (0,))
    if x.dtype.kind == "b":
        return bind(reduce_any_op, (logical_and(here, x),), {"axes": (0,)})
    least = broadcast(wrap(np.array(np.iinfo(np.int64).min)), x.shape, ())
    return bind(reduce_max_op, (bind(where_op, (here, x, least), {}),), {"axes": (0,)})


def chosen_lanes(active: Any, new: Any, old: Any) -> Any:
    """`new` in the lanes that are active and `old` in the others; the lanes are the leading axis of all three."""
    return bind(where_op, (broadcast(active, new.shape, (0,)), new, old), {})
