"""`Transform`: what `grad`, `vmap`, `jit` and the others return: a function with a past.

Called on traced values it records itself in their trace (`apply`). Called on concrete arrays it is traced, compiled and
cached by `dispatch`, like a jitted function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quabla import tree
from quabla.arrays.tracer import LIVE
from quabla.errors import DtypeError
from quabla.shapes import wholes
from quabla.transforms import dispatch
from quabla.transforms.cache import cache_for
from quabla.transforms.staging import Method, a_kind, by_name, name_of
from quabla.typed_repr import typed

__all__ = ["LATER", "Transform", "call_hint", "normalize_argnums", "require_function"]

LATER: Any = object()
"""In place of a function: it comes later, as what a decorator with options stands above."""

_SPELLED = (
    "jit",
    "grad",
    "value_and_grad",
    "vmap",
    "jacobian",
)  # what takes nothing but a function and options


class Transform:
    """A transformed function. Subclasses are final; they define `apply` and say what configures them in `config`.

    Attributes:
        fun: what is transformed: a user's function or another Transform.
        root: the user's function at the bottom.
        chain: what was applied to it, innermost first: with the root, the identity of the compiled programs.
        as_arrays: the positions in which Python numbers become arrays, because a transform differentiates there.
        passing: whether leaves of the result that are no arrays pass through: there is an auxiliary result.
    """

    kind = "transform"
    device: str | None = None
    max_traces = 8
    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()

    def __init__(
        self,
        fun: Callable[..., Any],
        config: Any = (),
        as_arrays: frozenset[int] = frozenset(),
        has_aux: bool = False,
    ) -> None:
        require_function(getattr(self, "where", self.kind), fun)
        self.fun = fun
        self.root: Any
        self.chain: tuple[Any, ...]
        self.as_arrays: frozenset[int]
        self.passing: bool
        inner: Transform | None = fun if isinstance(fun, Transform) else None
        self.root = inner.root if inner else fun
        self.chain = (*(inner.chain if inner else ()), (self.kind, config))
        self.as_arrays = as_arrays | inner.as_arrays if inner else as_arrays
        self.passing = has_aux or (inner.passing if inner else False)
        if inner:  # what is static to the inner function is static here, unless it is differentiated
            self.static_argnums = tuple([i for i in inner.static_argnums if i not in self.as_arrays])
            self.static_argnames = inner.static_argnames
        self.cache = cache_for(self.root, self.chain)
        self.__name__ = f"{self.kind}({name_of(fun)})"
        self.__doc__ = getattr(fun, "__doc__", None)
        self.__wrapped__ = self.root

    def __repr__(self) -> str:
        return f"<{self.__name__}>"

    def within_jit(self, option: str) -> str:
        """How to give `jit` an option for this function, for messages: "quabla.jit(quabla.grad(f), max_traces=...)"."""
        kinds = [kind for kind, _ in self.chain]
        if any(kind not in _SPELLED for kind in kinds):
            return f"quabla.jit(g, {option}), where g is the function that calls {self.__name__}"
        name = name_of(self.root)
        spelled = name if name.isidentifier() else "f"
        for kind in kinds[:-1] if kinds[-1] == "jit" else kinds:
            spelled = f"quabla.{kind}({spelled})"
        return f"quabla.jit({spelled}, {option})"

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self  # like a function, so that objects that hold one can be copied

    def __reduce__(self) -> tuple[Any, ...]:
        return by_name(self.root, self) or (
            _restored,
            (type(self), {k: v for k, v in vars(self).items() if k != "cache"}),
        )

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # A Transform used as a decorator in a class body is a method, like a function.
        return self if instance is None else Method(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if LIVE:  # within a trace the call may be part of it, even if all its arguments are concrete
            return dispatch.slow_call(self, args, kwargs)
        # The guard is generated code for the signature seen last; it falls back to `dispatch.slow_call`.
        return self.cache.guard(self, args, kwargs)

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record this function, called on these arguments, in the innermost trace."""
        raise TypeError(f"{type(self).__name__} does not define apply; please report this")


def _restored(kind: type[Transform], state: dict[str, Any]) -> Transform:
    made = object.__new__(kind)
    vars(made).update(state)
    made.cache = cache_for(made.root, made.chain)
    return made


def require_function(where: str, fun: Any) -> None:
    """Check that what is to be transformed is a function.

    Raises:
        DtypeError: it is none.
    """
    if not callable(fun):
        raise DtypeError(
            f"{where}: the first argument must be a function, got {a_kind(fun)}; pass the function itself, as in "
            f"quabla.{where}(f)(x)"
        )


def call_hint(where: str, given: Any) -> str:
    """A hint for who gave the arguments of the function to the transform; "" where `given` holds no number."""
    leaves = tree.flatten(given)[0]
    if not any(hasattr(x, "shape") or isinstance(x, float) for x in leaves):
        return ""
    return f"; the arguments of the function go to what {where} returns: quabla.{where}(f)(x)"


def normalize_argnums(where: str, argnums: Any) -> tuple[tuple[int, ...], bool]:
    """`argnums` as a tuple, and whether it was one int.

    Raises:
        DtypeError: it is neither an int nor a tuple of ints.
    """
    try:
        given, single = wholes(argnums)
    except TypeError:
        given = ()
    if not given:
        raise DtypeError(
            f"{where}: argnums must be an int or a tuple of ints, got {typed(argnums)}{call_hint(where, argnums)}"
        )
    return given, single
