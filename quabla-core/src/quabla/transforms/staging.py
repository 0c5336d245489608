"""From a user's function and arguments to a Program, and back to a user's results.

The transforms proper (`forward`, `reverse`, `batch`) know nothing of pytrees, argument positions or closures: those
live here. A call is taken apart into array leaves and static leaves; the function is traced on the types of the former;
the traced values of enclosing functions that it closes over are found as captures.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from quabla import tree
from quabla.arrays.convert import asarray
from quabla.arrays.tensor import Tensor
from quabla.arrays.tracer import Frame, TraceTensor, frames, innermost, trace
from quabla.arrays.view import TensorView
from quabla.errors import DtypeError, QuablaError, ShapeError
from quabla.ir.program import Program
from quabla.shapes import ShapeDtype
from quabla.transforms.forward import replay
from quabla.transforms.naming import leaf_names
from quabla.typed_repr import Words

__all__ = [
    "Call",
    "Method",
    "Result",
    "Static",
    "a_kind",
    "as_outputs",
    "by_name",
    "in_words",
    "inline",
    "name_of",
    "stage",
    "take_apart",
    "target",
]


class Static:
    """An argument that is part of the signature: a Python number, or what `static_argnums` names.

    Two are equal if they have the same type and value; NaN equals NaN, and 0.0 differs from -0.0.
    """

    __slots__ = ("key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key = _static_key(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.value)


def _static_key(value: Any) -> Any:
    if isinstance(value, float):
        return (type(value), value.hex())
    if isinstance(value, tuple):
        return (type(value), tuple(_static_key(v) for v in value))
    return (type(value), value)


@dataclass(slots=True)
class Call:
    """The arguments of one call, taken apart.

    Attributes:
        treedef: the structure of `(args, kwargs)`.
        leaves: per leaf, its ShapeDtype, or a `Static`.
        arrays: the array leaves, in order: Tensors, traced values or ShapeDtypes.
    """

    treedef: Any
    leaves: tuple[Any, ...]
    arrays: list[Any]

    @property
    def avals(self) -> list[ShapeDtype]:
        """The types of the array leaves."""
        return [leaf for leaf in self.leaves if type(leaf) is ShapeDtype]

    def without_arrays(self) -> Call:
        """The signature alone."""
        return Call(self.treedef, self.leaves, [])

    @property
    def key(self) -> Any:
        """What a trace depends on."""
        return (self.treedef, self.leaves, self.treedef.orders)

    def shown(self) -> str:
        """The signature for messages, as in "(float64[3], n=2)"."""
        args, kwargs = tree.unflatten(self.treedef, [in_words(leaf) for leaf in self.leaves])
        return f"({', '.join([repr(a) for a in args] + [f'{k}={v!r}' for k, v in kwargs.items()])})"

    def put_together(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments with other arrays in the places of the array leaves."""
        rest = iter(arrays)
        leaves = [next(rest) if type(leaf) is ShapeDtype else leaf.value for leaf in self.leaves]
        args, kwargs = tree.unflatten(self.treedef, leaves)
        return tuple(args), kwargs

    def positions(self) -> list[Any]:
        """Per array leaf, the index of its positional argument, or None for a keyword's."""
        counts = [child.num_leaves for child in self.treedef.children[0].children]
        at: list[Any] = [i for i, n in enumerate(counts) for _ in range(n)]
        at += [None] * (len(self.leaves) - len(at))
        return [p for p, leaf in zip(at, self.leaves, strict=True) if type(leaf) is ShapeDtype]

    def leaf_names(self, fun: Any) -> tuple[str, ...]:
        """A name per leaf: the parameter of `fun`, then the path within it."""
        return leaf_names(fun, self.treedef)

    def names(self, fun: Any) -> list[str]:
        """A name per array leaf."""
        names = self.leaf_names(fun)
        return [n for n, leaf in zip(names, self.leaves, strict=True) if type(leaf) is ShapeDtype]


def name_of(fun: Any) -> str:
    """How a function is called in messages."""
    return str(getattr(fun, "__name__", None) or getattr(fun, "name", None) or type(fun).__name__)


def a_kind(value: Any) -> str:
    """What `value` is, for messages: "a str", "an ndarray", "an array float64[3]"."""
    if type(value) is Tensor or type(value) is TraceTensor:
        return f"an array {value.aval}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' or name == 'ndarray' else 'a'} {name}"


class Method(functools.partial[Any]):
    """A transformed function as a method of an object: what Python's bound method is to a function."""

    @property
    def __name__(self) -> str:
        return name_of(self.func)


def by_name(fun: Any, made: Any) -> tuple[Any, ...] | None:
    """How to pickle what was made of a function, if a module holds it under the function's own name, like a function.

    Else the function has to be pickled, and what was applied to it: None.
    """
    module, name = getattr(fun, "__module__", None), getattr(fun, "__qualname__", "")
    return (_named, (module, name)) if module in sys.modules and _named(module, name) is made else None


def _named(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


_NUMBERS = (float, int, bool)
_LARGEST = int(np.finfo(np.float64).max)


def take_apart(
    fun: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    as_arrays: Collection[int] = (),
    static: Collection[int] = (),
    abstract: bool = False,
    static_names: Collection[str] = (),
    within: bool = False,
    places: Sequence[int] | None = None,
) -> Call:
    """Take the arguments of a call apart.

    Args:
        fun: the function, for names in messages.
        args: positional arguments, pytrees.
        kwargs: keyword arguments, pytrees.
        as_arrays: the positions, negative ones counted from the end, in which Python numbers become float64 arrays and
            Python bools become bool arrays; elsewhere they are static.
        static: the positions that are static as a whole; their arguments must be hashable.
        abstract: whether ShapeDtype leaves are allowed.
        static_names: the keyword arguments that are static as a whole.
        within: whether an enclosing trace is being recorded, so that the call is no signature to keep: values of other
            types, static to that trace, then pass outside of `as_arrays`.
        places: where the positional arguments stand among those of `fun`, if not at 0, 1, …; for names in messages.

    Raises:
        TypeError: a leaf that is neither array nor number, or a static argument that is not hashable.
    """
    if static:
        args = tuple(_StaticArgument(_hashable(fun, i, a)) if i in static else a for i, a in enumerate(args))
    if static_names and kwargs:
        kwargs = {
            k: _StaticArgument(_hashable(fun, k, v)) if k in static_names else v for k, v in kwargs.items()
        }
    flat, treedef = _flattened(fun, "takes", (args, kwargs))
    leaves: list[Any] = []
    arrays: list[Any] = []
    converts = _leaves_of(treedef, as_arrays) if as_arrays else ()
    for i, leaf in enumerate(flat):
        kind = type(leaf)
        if kind is Tensor or kind is TraceTensor:
            pass
        elif kind in _NUMBERS:
            if kind is int and not -_LARGEST <= leaf <= _LARGEST:
                name = leaf_names(fun, treedef, places)[i]
                raise DtypeError(
                    f"{name_of(fun)}: argument {name} is an integer of {leaf.bit_length()} bits, beyond the range of "
                    f"float64; {_static_advice(fun, 'it', i in converts) or 'let the function close over it'}"
                )
            if i not in converts:
                leaves.append(Static(leaf))
                continue
            leaf = asarray(leaf)
        elif kind is _StaticArgument:
            leaves.append(Static(leaf.value))
            continue
        elif kind is ShapeDtype and abstract:
            leaves.append(leaf)
            arrays.append(leaf)
            continue
        elif within and i not in converts and not _holds_numbers(leaf):
            leaves.append(Static(leaf))
            continue
        else:
            leaf = _as_leaf(fun, treedef, places, i, leaf, i in converts)
        leaves.append(leaf.aval)
        arrays.append(leaf)
    return Call(treedef, tuple(leaves), arrays)


def _flattened(fun: Any, how: str, value: Any) -> tuple[list[Any], tree.TreeDef]:
    try:
        return tree.flatten(value)
    except tree.TreeError as error:
        raise tree.TreeError(f"{name_of(fun)} {how} no container of arrays: {error}") from None


def in_words(leaf: Any) -> Any:
    """A leaf of a signature for messages: what prints as "float64[3]" or "float64[] from Python numbers"."""
    if type(leaf) is not ShapeDtype:
        return leaf
    return Words(f"{leaf} from Python numbers" if leaf.weak else leaf)


class _StaticArgument:
    """Wraps a static argument, so that a pytree passed as static stays whole."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _hashable(fun: Any, i: int | str, value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        raise DtypeError(
            f"{name_of(fun)}: static argument {i!r} is {a_kind(value)}, which is not hashable; pass a tuple, a number, "
            "a string or a frozen dataclass"
        ) from None
    return value


def _leaves_of(treedef: Any, positions: Collection[int]) -> set[int]:
    found: set[int] = set()
    at = 0
    args = treedef.children[0].children
    for i, child in enumerate(args):
        if i in positions or i - len(args) in positions:
            found.update(range(at, at + child.num_leaves))
        at += child.num_leaves
    return found


def _as_leaf(fun: Any, treedef: Any, places: Sequence[int] | None, i: int, leaf: Any, converted: bool) -> Any:
    where = f"{name_of(fun)}: argument {leaf_names(fun, treedef, places)[i]}"
    if not callable(leaf) and not isinstance(leaf, (str, bytes)) and _holds_numbers(leaf):
        try:
            return asarray(leaf)
        except (ShapeError, DtypeError) as error:
            raise type(error)(f"{where}: {str(error).removeprefix('asarray: ')}") from error
    advice = _static_advice(fun, "them", converted)
    raise DtypeError(
        f"{where} is {a_kind(leaf)}{_no_container(leaf)}; arguments are arrays, numbers and containers (tuples, lists, "
        f"dicts, dataclasses) of them. Let the function close over other values{', or ' if advice else ''}{advice}"
    )


def _static_advice(fun: Any, what: str, differentiated: bool) -> str:
    """How to mark an argument of a transform static; "" for what is no transform, or differentiates it."""
    spelled = getattr(fun, "within_jit", None)
    return "" if spelled is None or differentiated else f"mark {what} static: {spelled('static_argnums=...')}"


def _no_container(leaf: Any) -> str:
    """What to say of a class that looks like a container."""
    for base in (dict, list, tuple):
        if isinstance(leaf, base):
            return f", and a subclass of {base.__name__} is no container: pass {base.__name__}(...) of it"
    return ""


def _holds_numbers(leaf: Any) -> bool:
    if isinstance(leaf, (int, float, TensorView, np.generic, memoryview, bytearray, range)):
        return True
    return hasattr(leaf, "__array__") or hasattr(leaf, "__array_interface__") or hasattr(leaf, "__dlpack__")


class Result(NamedTuple):
    """The structure of what a function returned: per leaf, an index into the program's outputs or a static value."""

    treedef: Any
    leaves: list[Any]

    def put_together(self, outputs: Sequence[Any]) -> Any:
        """The result, with arrays in the places of the outputs."""
        return tree.unflatten(
            self.treedef, [leaf.value if type(leaf) is Static else outputs[leaf] for leaf in self.leaves]
        )


def as_outputs(fun: Any, value: Any, passing: bool = False) -> tuple[list[Any], Result]:
    """Take apart what a function returned.

    Args:
        fun: the function, for messages.
        value: what it returned.
        passing: whether leaves that are no arrays, Python numbers among them, pass through, as in auxiliary results.

    Returns:
        The array leaves and the structure.

    Raises:
        DtypeError: a leaf is neither array nor number.
    """
    flat, treedef = _flattened(fun, "returned", value)
    arrays: list[Any] = []
    leaves: list[Any] = []
    for i, leaf in enumerate(flat):
        kind = type(leaf)
        if kind is not Tensor and kind is not TraceTensor:
            try:
                if isinstance(leaf, (str, bytes)) or callable(leaf) or (passing and kind in _NUMBERS):
                    raise TypeError("no array")
                leaf = asarray(leaf)
            except (QuablaError, TypeError, ValueError) as error:
                if passing:
                    static = Static.__new__(Static)
                    static.value = leaf
                    leaves.append(static)
                    continue
                at = "/".join(tree.paths(treedef)[i])
                why = (
                    f" ({str(error).removeprefix('asarray: ')})" if isinstance(leaf, np.ndarray | int) else ""
                )
                what = f"{a_kind(leaf)}{' at ' + at if at else ''}{_no_container(leaf)}{why}"
                raise DtypeError(
                    f"{name_of(fun)} returned {what}; a function that is "
                    "transformed or compiled returns arrays, numbers, and tuples, lists or dicts of them"
                ) from error
        leaves.append(len(arrays))
        arrays.append(leaf)
    return arrays, Result(treedef, leaves)


@dataclass(slots=True)
class Staged:
    """A traced function.

    Attributes:
        program: inputs are the array leaves of the call and then the captures.
        captures: traced values of enclosing functions that it closes over.
        result: the structure of its result.
    """

    program: Program
    captures: tuple[TraceTensor, ...]
    result: Any


def stage(
    fun: Callable[..., Any],
    call: Call,
    avals: Sequence[ShapeDtype] | None = None,
    split: Callable[[Any], tuple[list[Any], Any]] | None = None,
    names: Sequence[str] = (),
    region: bool = False,
) -> Staged:
    """Trace `fun` on the types of a call's arrays.

    Args:
        fun: the user's function, or a transformed one.
        call: the arguments.
        avals: types to trace with in place of the call's own.
        split: takes apart what `fun` returned, in place of `as_outputs`.
        names: a name per input of the program.
        region: whether all that `fun` computes belongs to the program, even what it computes from captures alone.
    """
    kept: list[Any] = []

    def run(*arrays: Any) -> list[Any]:
        args, kwargs = call.put_together(arrays)
        outputs, result = (
            as_outputs(fun, fun(*args, **kwargs)) if split is None else split(fun(*args, **kwargs))
        )
        kept.append(result)
        return outputs

    program, captures = trace(run, call.avals if avals is None else avals, names, region)
    return Staged(program, captures, kept[0])


def target(arrays: Sequence[Any], captures: Sequence[Any]) -> Frame:
    """The frame in which a transform called on `arrays` records: the innermost of theirs and the captures'."""
    frame = innermost((*arrays, *captures))
    return frames()[-1] if frame is None else frame


def inline(program: Program, bindings: Sequence[Any]) -> list[Any]:
    """Record a program in the innermost trace of its bindings.

    Args:
        program: what to record.
        bindings: a Tensor or traced value per input.

    Returns:
        The outputs.
    """
    frame = target(bindings, ())
    value: dict[Any, Any] = {v: frame.lift(x) for v, x in zip(program.inputs, bindings, strict=True)}
    for node in program.nodes:
        out = replay(frame, node, tuple([value[v] for v in node.inputs]))
        for v, o in zip(node.outputs, out if node.op.multiple else (out,), strict=True):
            value[v] = o
    return [value[v] for v in program.outputs]
