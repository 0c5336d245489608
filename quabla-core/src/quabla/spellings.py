"""What an error says of an argument that has another name here than in NumPy, PyTorch or JAX.

Python raises the error before the function begins, so a wrapper looks at it: one more Python call (about 0.1 µs) each
time a user calls a function of the public namespace or a method. Quabla's own modules and the operators have none.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

__all__ = ["spell_all", "spelled", "spelled_init"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# Per name elsewhere, what it may be called here: the first that the function has.
_HERE: dict[str, tuple[str, ...]] = {
    "a": ("x",),
    "a_max": ("max",),
    "a_min": ("min",),
    "argnum": ("argnums",),
    "axes": ("axis",),
    "axis": ("axes", "axis1"),
    "batch": ("batch_argnums",),
    "beta1": ("b1",),
    "beta2": ("b2",),
    "betas": ("b1",),
    "body": ("body_fun", "f"),
    "body_fun": ("f",),
    "carry": ("init", "init_val"),
    "chunks": ("indices_or_sections",),
    "correction": ("ddof",),
    "diagonal": ("k", "offset"),
    "dim": ("axis", "axes"),
    "dim0": ("axis1",),
    "dim1": ("axis2",),
    "dims": ("axis", "axes", "shape"),
    "dimension": ("axis",),
    "end": ("stop",),
    "f": ("fun", "body_fun"),
    "fill_value": ("value",),
    "func": ("fun",),
    "function": ("fun",),
    "has_auxiliary": ("has_aux",),
    "hi": ("max",),
    "high": ("max",),
    "in_dims": ("in_axes",),
    "index": ("indices",),
    "init": ("init_val",),
    "init_val": ("init",),
    "input": ("x", "xs", "operands"),
    "keep_dims": ("keepdims",),
    "keepdim": ("keepdims",),
    "lo": ("min",),
    "low": ("min",),
    "lr": ("learning_rate",),
    "num": ("n",),
    "other": ("y",),
    "out_dims": ("out_axes",),
    "shifts": ("shift",),
    "size": ("shape",),
    "static_args": ("static_argnums",),
    "steps": ("num", "n", "length"),
    "tensor": ("x",),
    "tensors": ("xs", "arrays"),
    "x1": ("x",),
    "x2": ("y",),
}

_NOT_HERE: dict[str, str] = {
    "out": "arrays are immutable, so take the result instead",
    "requires_grad": "an array carries no gradient; write a function and take quabla.grad of it",
    "device": "arrays live in host memory; quabla.jit(f, device=...) chooses where a function runs",
}


# Arguments that stand for several things.
_ONE: dict[str, str] = {
    "arrays": "the arrays are one list, as in [x, y]",
    "axes": "the axes are one tuple, as in (1, 0)",
    "axis": "several axes are one tuple, as in axis=(0, 1)",
    "obj": "the elements are one list, as in [1.0, 2.0]",
    "shape": "the shape is one tuple, as in (2, 3)",
}


def spelled(function: F) -> F:
    """`function`, whose errors about its own arguments say how it is called and what a foreign name is called here."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # One frame: it was raised by the call itself, not by what the function did.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            told = TypeError(_told(str(error), function, kwargs))
        raise told

    return call  # type: ignore[return-value]


def _told(said: str, function: Callable[..., Any], kwargs: dict[str, Any]) -> str:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    names = [p.name for p in parameters]
    for name in kwargs:
        if name not in names:
            here = next((n for n in _HERE.get(name, ()) if n in names), None)
            if here is not None:
                said += f"; {name} is called {here} here"
            elif name in _NOT_HERE:
                said += f"; {_NOT_HERE[name]}"
    if "positional argument" in said and " but " in said:
        said += "".join([f"; {_ONE[name]}" for name in names if name in _ONE][:1])
    call = function.__qualname__.removesuffix(".__init__")
    return (
        f"{said}. Call it as {call}{inspect.Signature([p for p in map(_plain, parameters) if p is not None])}"
    )


def _plain(p: inspect.Parameter) -> inspect.Parameter | None:
    """A parameter for messages; None for those that a call does not name."""
    if p.name == "self":
        return None
    if type(p.default) is object:  # a mark for what was not given
        return None if p.kind is p.KEYWORD_ONLY else p.replace(annotation=p.empty, default=p.empty)
    return p.replace(annotation=p.empty)


def spelled_init(kind: type[T]) -> type[T]:
    """The class, whose errors about the arguments of its constructor say the same."""
    type.__setattr__(kind, "__init__", spelled(vars(kind)["__init__"]))
    return kind


def spell_all(module: dict[str, Any], names: Iterable[str]) -> None:
    """Put the wrapped functions in the place of those that a public module exports under these names.

    Those that are written in the module itself stay: `doctest` looks for their examples there.
    """
    for name in names:
        function = module[name]
        if inspect.isfunction(function) and function.__module__ != module["__name__"]:
            if function not in _made:
                _made[function] = spelled(function)
                _made[function].__module__ = module["__name__"]  # where pickle finds it
            module[name] = _made[function]


_made: dict[Callable[..., Any], Any] = {}
