"""How the arguments of a call are called: by the parameters that take them, and the paths within.

Python says which parameter takes an argument; here stands what it says. Arguments of `*args` are called `args/0`,
`args/1`, …; those of `**kwargs` by their keywords; arguments of which nothing is known `arg0`, `arg1`, ….
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from inspect import Parameter
from typing import Any

from quabla import tree
from quabla.ir.names import unique

__all__ = ["BY_POSITION", "Described", "argument_names", "leaf_names", "parameters"]

BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Described:
    """A function that says what its positional arguments are, which are not those of the function that it wraps."""

    def argument_names(self, places: Iterable[int]) -> list[str]:
        """What the positional arguments in these places are called."""
        raise TypeError(f"{type(self).__name__} does not say what its arguments are; please report this")


def parameters(fun: Any) -> tuple[Parameter, ...] | None:
    """The parameters of a function, of a transformed one those of the user's; None if it does not tell."""
    try:
        return tuple(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return None


def argument_names(
    fun: Any, places: Iterable[int], keywords: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """A name per positional and per keyword argument, no two the same.

    Args:
        fun: what is called.
        places: where the positional arguments stand.
        keywords: the keywords.

    Example:
        >>> argument_names(lambda n, *args, k: n, range(3), ["k"])
        (['n', 'args/0', 'args/1'], ['k'])
        >>> argument_names(lambda a, /, **rest: a, range(2), ["a", "b"])
        (['a', 'arg1'], ['rest/a', 'b'])
    """
    own = parameters(fun) or ()
    positional = [p for p in own if p.kind in BY_POSITION]
    more = next((p.name for p in own if p.kind is Parameter.VAR_POSITIONAL), None)
    others = next((p.name for p in own if p.kind is Parameter.VAR_KEYWORD), None)

    def at(place: int) -> str:
        if place < len(positional):
            return positional[place].name
        return f"arg{place}" if more is None else f"{more}/{place - len(positional)}"

    # A keyword may have the name of a parameter that takes no keyword.
    taken = {p.name for p in own if p.kind is Parameter.POSITIONAL_ONLY} if others is not None else ()
    given = fun.argument_names(places) if isinstance(fun, Described) else [at(place) for place in places]
    named = unique([*given, *(f"{others}/{k}" if k in taken else k for k in keywords)])
    return list(named[: len(given)]), list(named[len(given) :])


def leaf_names(fun: Any, treedef: Any, places: Sequence[int] | None = None) -> tuple[str, ...]:
    """A name per leaf of the arguments, no two the same: that of the argument, then the path within it.

    Args:
        fun: what is called.
        treedef: the structure of `(args, kwargs)`.
        places: where the positional arguments stand among those of `fun`, if not at 0, 1, ….
    """
    args_def, kwargs_def = treedef.children
    count = len(args_def.children)
    by_position, by_keyword = argument_names(fun, range(count) if places is None else places, kwargs_def.keys)
    arguments = zip((*by_position, *by_keyword), (*args_def.children, *kwargs_def.children), strict=True)
    return unique("/".join((name, *path)) for name, child in arguments for path in tree.paths(child))
