"""What an error says of an argument that has another name here than in NumPy, PyTorch or JAX.

Python raises the error before the function begins, so a wrapper looks at it: one more Python call (about 0.1 µs) each
time a user calls a method of an array or makes an optimiser. Operators and the functions of the namespace have none:
those are called in traces, pickled and inspected as what they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["spelled", "spelled_init"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# Per name elsewhere, what it may be called here: the first that the function has.
_HERE: dict[str, tuple[str, ...]] = {
    "a_max": ("max",),
    "a_min": ("min",),
    "batch": ("batch_argnums",),
    "beta1": ("b1",),
    "beta2": ("b2",),
    "betas": ("b1",),
    "correction": ("ddof",),
    "dim": ("axis", "axes"),
    "dimension": ("axis",),
    "dims": ("axis", "axes", "shape"),
    "hi": ("max",),
    "high": ("max",),
    "keep_dims": ("keepdims",),
    "keepdim": ("keepdims",),
    "lo": ("min",),
    "low": ("min",),
    "lr": ("learning_rate",),
    "other": ("y",),
    "size": ("shape",),
}

_NOT_HERE: dict[str, str] = {"out": "arrays are immutable, so take the result instead"}

# Arguments that stand for several things.
_ONE: dict[str, str] = {
    "axes": "the axes are one tuple, as in (1, 0)",
    "axis": "several axes are one tuple, as in axis=(0, 1)",
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
