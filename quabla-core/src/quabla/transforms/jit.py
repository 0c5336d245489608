"""`jit`: compile a function for a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from quabla.errors import DtypeError
from quabla.ir.program import Program
from quabla.transforms import dispatch
from quabla.transforms.staging import name_of, take_apart
from quabla.transforms.transform import Transform

__all__ = ["jit"]


@dataclass(frozen=True)
class LoweredFunction:
    """A function traced for one signature: what `jit(f).lower(...)` returns.

    Attributes:
        program: the traced program.
    """

    program: Program
    _compiled: dispatch.Compiled
    _name: str

    def compile(self) -> Callable[..., Any]:
        """The compiled function, for exactly the structure and types it was lowered for.

        Example:
            >>> import quabla as qb
            >>> f = qb.jit(lambda x: x * 2.0).lower(qb.ShapeDtype((2,))).compile()
            >>> f(qb.array([1.0, 2.0])).tolist()
            [2.0, 4.0]
        """
        compiled, name = self._compiled, self._name

        def call(*args: Any, **kwargs: Any) -> Any:
            taken = take_apart(call, args, kwargs)
            if taken.key != compiled.call.key:
                raise DtypeError(f"{name}: compiled for {compiled.call.shown()}, called with {taken.shown()}")
            return compiled.run(taken.arrays)

        return call


@final
class Jitted(Transform):
    """A compiled function."""

    kind = "jit"

    def __init__(
        self, fun: Callable[..., Any], device: str | None, static_argnums: tuple[int, ...], max_traces: int
    ) -> None:
        super().__init__(fun, (device, static_argnums))
        self.device = device
        self.static_argnums = static_argnums
        self.max_traces = max_traces

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace through: within another trace, a jitted function is the function."""
        return self.fun(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> LoweredFunction:
        """Trace and lower for the types of these arguments, which may be arrays or `ShapeDtype`s."""
        call = take_apart(self, args, kwargs, self.as_arrays, self.static_argnums, abstract=True)
        compiled, program = dispatch.compile_call(self, call)
        return LoweredFunction(program, compiled, name_of(self))


def jit(
    fun: Callable[..., Any],
    device: str | None = None,
    static_argnums: int | tuple[int, ...] = (),
    max_traces: int = 8,
) -> Jitted:
    """Compile a function: the first call for each signature traces it, later ones run native code.

    A signature is the structure of the arguments, the shapes and dtypes of the arrays in them, and the values of Python
    numbers and of `static_argnums`. Values that the function closes over are constants of the compiled program.

    Args:
        fun: a function of arrays and pytrees of arrays.
        device: "cpu" (also None), or another that `quabla.devices()` lists, such as "name:1".
        static_argnums: positions of hashable arguments that are part of the signature as they are.
        max_traces: how many signatures may be compiled.

    Returns:
        A function of the same arguments. Its `lower` method compiles ahead of time.

    Raises:
        RetraceLimitError: (when called) more signatures than `max_traces`.
        TracerError: (when called) the function needs the value of a traced array, in an `if`, say.
        UnsupportedOperationError: (when called) the device is not there, or cannot do an operation.

    Example:
        >>> import quabla as qb
        >>> f = qb.jit(lambda x: qb.sum(x * x))
        >>> f(qb.array([3.0, 4.0])).item()
        25.0
    """
    if device is not None and not isinstance(device, str):
        raise DtypeError(f"jit: device must be a string such as 'cpu', got {device!r}")
    static = (static_argnums,) if type(static_argnums) is int else static_argnums
    if not isinstance(static, (tuple, list)) or any(type(i) is not int or i < 0 for i in static):
        raise DtypeError(f"jit: static_argnums must be a non-negative int or a tuple of them, got {static_argnums!r}")
    if type(max_traces) is not int or max_traces < 1:
        raise DtypeError(f"jit: max_traces must be a positive int, got {max_traces!r}")
    return Jitted(fun, device, tuple(static), max_traces)


