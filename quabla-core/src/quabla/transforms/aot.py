"""Ahead of time: a function traced and lowered for one signature, and what it compiles to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, final

from quabla.arrays.tracer import LIVE, innermost
from quabla.backends import registry
from quabla.backends.protocol import Costs
from quabla.errors import DtypeError, ShapeError, TracerError, UnsupportedOperationError
from quabla.shapes import ShapeDtype
from quabla.transforms import dispatch
from quabla.transforms.programs import Program
from quabla.transforms.staging import Call, Result, name_of, take_apart
from quabla.transforms.transform import Transform

__all__ = ["CompiledFunction", "Lowered", "lower_call"]


@final
@dataclass(frozen=True, eq=False)
class Lowered:
    """A function traced for one signature and accepted by a device: what `jit(f).lower(...)` returns.

    Attributes:
        program: the traced program, with its inputs named by their paths in the arguments.
        device: the device that it was lowered for.

    Example:
        >>> import quabla as qb
        >>> lowered = qb.jit(lambda p, x: p["w"] * x).lower({"w": qb.ShapeDtype(())}, qb.ShapeDtype((2,)))
        >>> print(lowered.as_text())
        program
          input p/w: float64[]
          input x: float64[2]
          %0: float64[2] = broadcast(p/w, dims=[])
          %1: float64[2] = mul(%0, x)
          return %1
        >>> lowered.compile()({"w": qb.array(3.0)}, qb.array([1.0, 2.0])).tolist()
        [3.0, 6.0]
    """

    program: Program
    device: str
    _backend: Any
    _lowered: Any
    _call: Call
    _result: Result
    _transform: Transform

    @property
    def in_avals(self) -> tuple[ShapeDtype, ...]:
        """The types of the array leaves of the arguments."""
        return self.program.in_avals

    @property
    def out_avals(self) -> tuple[ShapeDtype, ...]:
        """The types of the array leaves of the result."""
        return self.program.out_avals

    def as_text(self) -> str:
        """The traced program as readable, stable text: equal texts mean equal computations."""
        return self.program.lower_text()

    def as_device_text(self) -> str:
        """What the device will compile, in its backend's own form (LLVM code on the CPU)."""
        return self._backend.as_text(self._lowered)  # type: ignore[no-any-return]

    def as_stablehlo(self) -> str:
        """The traced program as a StableHLO module in MLIR's text form; see `Program.as_stablehlo`."""
        return self.program.as_stablehlo()

    def costs(self) -> Costs | None:
        """Kernels, and the bytes that a call holds and moves; None where the device's backend does not say."""
        return self._backend.costs(self._lowered)  # type: ignore[no-any-return]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to a file; `quabla.load_program` reads it. See `Program.save`."""
        self.program.save(path)

    def __copy__(self) -> Lowered:
        return self

    def __deepcopy__(self, memo: Any) -> Lowered:
        return self

    def __reduce__(self) -> NoReturn:
        raise _not_pickled(self, f"lowered.program of {name_of(self._transform)}")

    def compile(self) -> CompiledFunction:
        """The compiled function, for exactly the structure, shapes, dtypes and static values it was lowered for.

        Raises:
            BackendError: the backend failed to compile.
        """
        compiled = dispatch.Compiled(self._backend.compile(self._lowered), self._call, self._result)
        return CompiledFunction(compiled, self._transform)


@final
class CompiledFunction:
    """A function compiled for one signature. It never traces again: another signature is an error.

    Example:
        >>> import quabla as qb
        >>> f = qb.jit(lambda x: x * 2.0).lower(qb.ShapeDtype((2,))).compile()
        >>> f(qb.array([1.0, 2.0])).tolist()
        [2.0, 4.0]
        >>> f(qb.array([1.0, 2.0, 3.0]))
        Traceback (most recent call last):
        quabla.errors.ShapeError: jit(<lambda>): compiled for (float64[2]), called with (float64[3]); ...
    """

    def __init__(self, compiled: dispatch.Compiled, transform: Transform) -> None:
        self._compiled = compiled
        self._transform = transform
        self._guard = dispatch.make_guard(compiled, self._slow)
        self.__name__ = f"compiled({name_of(transform)})"
        self.__doc__ = transform.__doc__
        self.__wrapped__ = transform.root

    def __repr__(self) -> str:
        return f"<{self.__name__} for {self._compiled.call.shown()}>"

    def __copy__(self) -> CompiledFunction:
        return self

    def __deepcopy__(self, memo: Any) -> CompiledFunction:
        return self

    def __reduce__(self) -> NoReturn:
        raise _not_pickled(self, "the program that it was compiled from")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it.

        Raises:
            ShapeError: a shape is another than the one compiled for.
            DtypeError: the structure, a dtype or a static value is another.
            TracerError: an argument is a traced value.
        """
        return (self._slow if LIVE else self._guard)(None, args, kwargs)

    def _slow(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        t = self._transform
        call = take_apart(t, args, kwargs, t.as_arrays, t.static_argnums, static_names=t.static_argnames)
        if innermost(call.arrays) is not None:
            raise TracerError(
                f"{name_of(t)}: a function compiled ahead of time takes concrete arrays only, and was called with "
                "traced values; inside a transformed function call the function itself"
            )
        wanted = self._compiled.call
        if call.key != wanted.key and not _weaker(call, wanted):
            raise _mismatch(name_of(t), call, wanted)
        return dispatch.run(t, call, self._compiled)


def _not_pickled(what: Any, instead: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"pickling: {what!r} is prepared for a device in this process. Pickle the function under jit, or {instead}, or "
        "write the program to a file: lowered.save(path), and compile it where it is read: "
        "quabla.load_program(path).compile()",
        op="pickle",
    )


def _weaker(call: Call, wanted: Call) -> bool:
    """Whether the signatures agree up to weak types, which mean nothing to a compiled program."""
    return call.treedef == wanted.treedef and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) if type(a) is type(b) is ShapeDtype else a == b
        for a, b in zip(call.leaves, wanted.leaves, strict=True)
    )


def _mismatch(name: str, call: Call, wanted: Call) -> ShapeError | DtypeError:
    shapes_only = call.treedef == wanted.treedef and all(
        a.dtype is b.dtype if type(a) is type(b) is ShapeDtype else a == b
        for a, b in zip(call.leaves, wanted.leaves, strict=True)
    )
    kind = ShapeError if shapes_only else DtypeError
    return kind(
        f"{name}: compiled for {wanted.shown()}, called with {call.shown()}; lower it again for these arguments, or "
        "use quabla.jit, which compiles for each new signature"
    )


def lower_call(transform: Transform, args: Sequence[Any], kwargs: dict[str, Any]) -> Lowered:
    """Trace a transform for the types of these arguments and let its device check the program.

    Raises:
        TracerError: the function closes over a traced value.
        UnsupportedOperationError: the device is not there or cannot do an operation; `.op` and `.device` name them.
    """
    call = take_apart(
        transform,
        tuple(args),
        kwargs,
        transform.as_arrays,
        transform.static_argnums,
        abstract=True,
        static_names=transform.static_argnames,
    )
    staged = dispatch.stage_call(transform, call)
    if staged.captures:
        raise TracerError(
            f"{name_of(transform)}: cannot be lowered inside a trace, since it closes over traced values; pass them as "
            "arguments"
        )
    backend, device = registry.backend_for(transform.device)
    dispatch.warn_once(transform, staged.program, backend, device)
    lowered = backend.lower(staged.program, device)
    program = Program(staged.program, name_of(transform.root), ordered=True)
    return Lowered(program, device, backend, lowered, call.without_arrays(), staged.result, transform)
