"""`jit`: compile a function for a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import Parameter
from typing import Any, final, overload

from quabla.backends import registry
from quabla.errors import DtypeError
from quabla.shapes import whole, wholes
from quabla.transforms.aot import Lowered, lower_call
from quabla.transforms.explain import Explanation, explanation
from quabla.transforms.naming import BY_POSITION, parameters
from quabla.transforms.staging import name_of
from quabla.transforms.transform import LATER, Transform, call_hint, require_function
from quabla.typed_repr import typed

__all__ = ["jit"]


@final
class Jitted(Transform):
    """A compiled function."""

    kind = "jit"

    def __init__(
        self,
        fun: Callable[..., Any],
        device: str | None,
        static_argnums: tuple[int, ...],
        static_argnames: tuple[str, ...],
        max_traces: int,
    ) -> None:
        super().__init__(fun, (device, static_argnums, static_argnames))
        self.device = device
        self.static_argnums = static_argnums
        self.static_argnames = static_argnames
        self.max_traces = max_traces

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace through: within another trace, a jitted function is the function. Its device must be there, though."""
        if self.device is not None:
            registry.backend_for(self.device)
        return self.fun(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace and check for the types of these arguments, without running anything.

        Args:
            args: arguments as for a call; `ShapeDtype`s may stand for arrays.
            kwargs: keyword arguments, likewise.

        Returns:
            What can be read (`as_text`, `as_stablehlo`), saved, and compiled.

        Raises:
            UnsupportedOperationError: the device is not there or cannot do an operation; `.op` and `.device` name them.
            TracerError: the function needs the value of a traced array, or closes over one.
        """
        return lower_call(self, args, kwargs)

    def explain(self) -> Explanation:
        """What was compiled so far, why each trace was made, what it costs, and what could be better.

        Example:
            >>> import quabla as qb
            >>> f = qb.jit(lambda x, s: qb.sum(x * s))
            >>> for s in (1.0, 2.0):
            ...     _ = f(qb.ones((3,)), s)
            >>> print(f.explain())
            jit(<lambda>) on 'cpu': traced for 2 of at most 8 signatures
              1. (float64[3], 1.0)
                 the first call
                 ...
              2. (float64[3], 2.0)
                 s: 1.0 became 2.0, a Python number
                 ...
            suggestions
              s was 2 different Python numbers, and each is a trace of its own: pass quabla.array(s)
        """
        return explanation(self)


@overload
def jit(
    fun: Callable[..., Any],
    device: str | None = None,
    static_argnums: int | tuple[int, ...] = (),
    max_traces: int = 8,
    *,
    static_argnames: str | tuple[str, ...] = (),
) -> Jitted: ...


@overload
def jit(
    *,
    device: str | None = None,
    static_argnums: int | tuple[int, ...] = (),
    max_traces: int = 8,
    static_argnames: str | tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Jitted]: ...


def jit(
    fun: Any = LATER,
    device: str | None = None,
    static_argnums: int | tuple[int, ...] = (),
    max_traces: int = 8,
    *,
    static_argnames: str | tuple[str, ...] = (),
) -> Any:
    """Compile a function: the first call for each signature traces it, later ones run native code.

    A signature is the structure of the arguments, the shapes and dtypes of the arrays in them, and the values of Python
    numbers and of `static_argnums`. Values that the function closes over, and attributes that a method reads, are
    constants of the compiled program; what changes is to be an argument. Made anew for a function that is there
    already, a transform finds what was compiled for it. Where the function itself is new (a lambda or a
    `functools.partial` in a loop, a method, which Python makes at each access) or is an object that is called, whose
    attributes may have changed, it is traced anew: make the transform once, before the loop.

    Args:
        fun: a function of arrays and pytrees of arrays; left out in a decorator with options, as
            `@quabla.jit(max_traces=2)` is one.
        device: "cpu" (also None), or another that `quabla.devices()` lists, such as "name:1". The outermost `jit`
            decides: of a function that is called within another transformed one, in `grad(jit(f, device=...))` too,
            the device is only checked to be there. Write `jit(grad(f), device=...)`.
        static_argnums: positions of hashable arguments that are part of the signature as they are; negative ones count
            from the end of the parameters.
        max_traces: how many signatures may be compiled.
        static_argnames: names of such arguments, however they are passed; with either of the two given, the parameters
            of `fun` tell the other.

    Returns:
        A function of the same arguments. Its `lower` method compiles ahead of time. Python numbers in containers of any
        kind, fields of a dataclass included, are numbers within `fun`; as part of a result they come back as arrays.

    Raises:
        DtypeError: `fun` is no function, or an option is of another type or names a parameter that `fun` does not have;
            (when called) an argument or a result is no array or number.
        TreeError: (when called) the keys of a dict do not sort.
        RetraceLimitError: (when called) more signatures than `max_traces`.
        TracerError: (when called) the function needs the value of a traced array, in an `if`, say.
        UnsupportedOperationError: (when called) the device is not there, or cannot do an operation.

    Example:
        >>> import quabla as qb
        >>> f = qb.jit(lambda x: qb.sum(x * x))
        >>> f(qb.array([3.0, 4.0])).item()
        25.0
    """
    if fun is LATER:
        return partial(
            jit,
            device=device,
            static_argnums=static_argnums,
            max_traces=max_traces,
            static_argnames=static_argnames,
        )
    require_function("jit", fun)
    if device is not None and not isinstance(device, str):
        raise DtypeError(
            f"jit: device must be a string such as 'cpu', got {typed(device)}{call_hint('jit', device)}"
        )
    positions, names = _static(fun, static_argnums, static_argnames)
    try:
        bound = whole(max_traces)
    except TypeError:
        bound = 0
    if bound < 1:
        raise DtypeError(f"jit: max_traces must be a positive int, got {typed(max_traces)}")
    return Jitted(fun, device, positions, names, bound)


def _static(fun: Any, argnums: Any, argnames: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The static arguments by position and by name: each way of passing one is covered.

    Raises:
        DtypeError: a position or name that `fun` does not have.
    """
    try:
        numbers, _ = wholes(argnums)
    except TypeError:
        raise DtypeError(
            f"jit: static_argnums must be an int or a tuple of them, got {typed(argnums)}"
        ) from None
    names = (argnames,) if isinstance(argnames, str) else argnames
    if not isinstance(names, (tuple, list)) or any(not isinstance(n, str) for n in names):
        raise DtypeError(f"jit: static_argnames must be a string or a tuple of them, got {argnames!r}")
    if not numbers and not names:
        return (), ()
    own = parameters(fun)
    if own is None:
        if any(i < 0 for i in numbers):
            raise DtypeError(
                f"jit: a negative static_argnums {argnums!r} needs to know the parameters of {name_of(fun)}, "
                "which it does not tell; count from the front"
            )
        if len(set(numbers)) < len(numbers):
            raise DtypeError(f"jit: static_argnums {argnums!r} names a parameter twice")
        return numbers, tuple(names)
    places = [p for p in own if p.kind in BY_POSITION]
    kinds = {p.kind for p in own}
    open_ended, any_keyword = Parameter.VAR_POSITIONAL in kinds, Parameter.VAR_KEYWORD in kinds
    found: dict[int, None] = {}
    for i in numbers:
        if i < -len(places) or (i >= len(places) and not open_ended):
            raise DtypeError(
                f"jit: static_argnums {i} is out of range: {name_of(fun)} has {len(places)} positional parameters"
            )
        place = i + len(places) if i < 0 else i
        if place in found:
            raise DtypeError(f"jit: static_argnums {argnums!r} names a parameter twice")
        found[place] = None
    known = [p.name for p in own]
    for n in names:
        if n not in known and not any_keyword:
            raise DtypeError(
                f"jit: static_argnames names {n!r}, but the parameters of {name_of(fun)} are {', '.join(known)}"
            )
    # With **kwargs a keyword may have the name of a parameter that takes no keyword, and is another argument.
    either = [p.kind is Parameter.POSITIONAL_OR_KEYWORD or not any_keyword for p in places]
    by_name = dict.fromkeys([*names, *(places[i].name for i in found if i < len(places) and either[i])])
    found.update((i, None) for i, p in enumerate(places) if p.name in by_name and either[i])
    return tuple(found), tuple(by_name)
