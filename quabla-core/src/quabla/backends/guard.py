"""Containment of faults: whatever a plugin raises or returns that it must not names the plugin.

The wrappers stand around the calls that happen once per program. Around the calls of every step they add nothing
where it counts: the native entry of an executable and the native step of a training plan are handed through as
they are, and a `try` costs nothing until something is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from quabla.arrays.tensor import Tensor
from quabla.backends.protocol import Backend, Costs, Executable, Lowered, NativeEntry, TrainingPlan
from quabla.errors import BackendError, QuablaError
from quabla.ir.program import Program
from quabla.shapes import ShapeDtype

if TYPE_CHECKING:
    from quabla.backends.capabilities import BackendCapabilities

__all__ = ["GuardedBackend", "blame", "contained", "in_words"]


def in_words(error: BaseException) -> str:
    """An error as text. Not all can be printed: a plugin's own may raise another one then."""
    try:
        text = str(error)
    except Exception as other:
        text = f"(its text cannot be had: {type(other).__name__})"
    return f"{type(error).__name__}: {text}"


def blame(plugin: str, doing: str, error: BaseException) -> BackendError:
    """The error that names a plugin, what it was doing, and the cause; raise it `from error`."""
    return BackendError(
        f"the plugin {plugin} failed {doing}: {in_words(error)}. "
        "`python -m quabla doctor` checks the installed plugins",
        plugin=plugin,
    )


def innocent(error: BaseException) -> bool:
    """Whether an error goes through as it is: ours is typed already, and a machine out of memory is no plugin's fault.

    A `BackendError` that names nobody is not done yet.
    """
    if isinstance(error, BackendError):
        return error.plugin is not None
    return isinstance(error, (QuablaError, MemoryError))


def contained(plugin: str, doing: Callable[[], str], call: Callable[..., Any], *args: Any) -> Any:
    """What a call of a plugin returns.

    A `KeyboardInterrupt` is the user's. A plugin that calls `sys.exit` does not end the user's program.

    Raises:
        BackendError: naming the plugin, for whatever it raised that is not typed; its cause is that error.
    """
    try:
        return call(*args)
    except (Exception, SystemExit) as error:
        if innocent(error):
            raise
        raise blame(plugin, doing(), error) from error


def demand(plugin: str, holds: bool, what: Callable[[], str]) -> None:
    """Raise a `BackendError` unless something holds that every plugin has to hold to."""
    if not holds:
        raise BackendError(
            f"the plugin {plugin} {what()}; `python -m quabla doctor` checks the installed plugins",
            plugin=plugin,
        )


def require(plugin: str, thing: Any, names: Sequence[str], what: str) -> None:
    """Raise a `BackendError` unless `thing` has the attributes that a protocol asks for."""
    missing = contained(
        plugin,
        lambda: f"in {what}, a {type(thing).__name__}",
        lambda: [name for name in names if not hasattr(thing, name)],  # a property may raise anything
    )
    if missing:
        raise BackendError(
            f"the plugin {plugin} returned {type(thing).__name__} as {what}; it lacks {', '.join(missing)}",
            plugin=plugin,
        )


def same_types(given: Any, wanted: Sequence[ShapeDtype]) -> bool:
    """Whether types have the shapes and dtypes of others."""
    return (
        isinstance(given, (tuple, list))
        and len(given) == len(wanted)
        and all(
            type(a) is ShapeDtype and a.shape == b.shape and a.dtype is b.dtype
            for a, b in zip(given, wanted, strict=True)
        )
    )


def check_results(plugin: str, given: Any, wanted: Sequence[ShapeDtype], doing: str) -> None:
    """Raise a `BackendError` unless a plugin returned a tuple of Tensors of some types."""
    if not isinstance(given, tuple):
        demand(
            plugin,
            False,
            lambda: f"returned a {type(given).__name__} {doing}, where a tuple of Tensors is wanted",
        )
    demand(
        plugin,
        len(given) == len(wanted),
        lambda: f"returned {len(given)} results {doing}, where {len(wanted)} are wanted",
    )
    for i, (t, aval) in enumerate(zip(given, wanted, strict=True)):
        check_result(plugin, t, aval, f"as result {i} {doing}")


def check_result(plugin: str, t: Any, aval: ShapeDtype, doing: str) -> None:
    """Raise a `BackendError` unless a plugin returned a Tensor of a type."""
    demand(
        plugin, type(t) is Tensor, lambda: f"returned a {type(t).__name__} {doing}, where a Tensor is wanted"
    )
    fits = t.aval.shape == aval.shape and t.aval.dtype is aval.dtype
    demand(plugin, fits, lambda: f"returned {t.aval!r} {doing}, where {aval!r} is wanted")


class GuardedExecutable:
    """An executable whose faults name its plugin. `inner` is the plugin's own."""

    __slots__ = ("_call", "entry", "in_avals", "inner", "out_avals", "plugin")

    def __init__(self, inner: Executable, plugin: str) -> None:
        self.inner, self.plugin, self._call = inner, plugin, inner.__call__
        self.in_avals, self.out_avals, self.entry = inner.in_avals, inner.out_avals, inner.entry

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the program."""
        try:
            outs = self._call(*inputs)
        except (Exception, SystemExit) as error:
            if innocent(error):
                raise
            raise blame(self.plugin, "while running a program", error) from error
        wanted = self.out_avals
        # Types are interned: where all is well, each is the very one.
        if type(outs) is tuple and len(outs) == len(wanted):
            for t, aval in zip(outs, wanted, strict=True):
                if type(t) is not Tensor or t.aval is not aval:
                    break
            else:
                return outs
        check_results(self.plugin, outs, wanted, "of a program")
        return outs


class GuardedPlan:
    """A training plan whose faults name its plugin. `inner` is the plugin's own; `outs` the types of state and loss."""

    __slots__ = ("inner", "outs", "plugin", "step")

    def __init__(self, inner: TrainingPlan, plugin: str, outs: Sequence[ShapeDtype]) -> None:
        self.inner, self.plugin, self.outs = inner, plugin, outs
        step = inner.step
        # A native function raises nothing and is worth every nanosecond; one written in Python may raise.
        self.step: Callable[[], None] = self._step if isinstance(step, (FunctionType, MethodType)) else step

    def _step(self) -> None:
        self._guarded(self.inner.step)

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        return contained(self.plugin, lambda: "in a training plan", call, *args)

    def run(self, steps: int) -> None:
        """Run several steps without coming back in between."""
        self._guarded(self.inner.run, steps)

    def state(self) -> tuple[Tensor, ...]:
        """Copies of the state."""
        state = self._guarded(self.inner.state)
        check_results(self.plugin, state, self.outs[:-1], "as the state of a training plan")
        return state  # type: ignore[no-any-return]

    def set_state(self, state: Sequence[Tensor]) -> None:
        """Replace the state."""
        self._guarded(self.inner.set_state, state)

    def loss(self) -> Tensor:
        """The loss at the parameters that the last step started from."""
        loss = self._guarded(self.inner.loss)
        check_result(self.plugin, loss, self.outs[-1], "as the loss of a training plan")
        return loss  # type: ignore[no-any-return]

    def replace(self, index: int, data: Tensor) -> None:
        """Put another array in the place of a data input."""
        self._guarded(self.inner.replace, index, data)


class GuardedBackend:
    """A backend whose faults name its plugin. `inner` is the plugin's own."""

    __slots__ = ("inner", "platform", "plugin")

    def __init__(self, inner: Backend, plugin: str) -> None:
        self.inner, self.plugin, self.platform = inner, plugin, inner.platform

    @property
    def capabilities(self) -> BackendCapabilities:
        """What it can do."""
        from quabla.backends.capabilities import BackendCapabilities

        can = contained(self.plugin, lambda: "while describing itself", lambda: self.inner.capabilities)
        demand(
            self.plugin,
            isinstance(can, BackendCapabilities),
            lambda: (
                f"returned a {type(can).__name__} as its capabilities, where BackendCapabilities is wanted"
            ),
        )
        return can  # type: ignore[no-any-return]

    def devices(self) -> Sequence[str]:
        """The devices that can run now."""
        return contained(self.plugin, lambda: "while listing its devices", self.inner.devices)  # type: ignore[no-any-return]

    def lower(self, program: Program, device: str) -> Lowered:
        """Check and prepare a program."""
        lowered = contained(
            self.plugin, lambda: f"while lowering {program!r}", self.inner.lower, program, device
        )
        require(self.plugin, lowered, ("program", "device", "as_text"), "a lowered program")
        return lowered  # type: ignore[no-any-return]

    def as_text(self, lowered: Any) -> str:
        """What will be compiled, in the backend's own readable form."""
        text = contained(self.plugin, lambda: f"while printing {lowered.program!r}", lowered.as_text)
        demand(self.plugin, isinstance(text, str), lambda: f"returned a {type(text).__name__} for as_text()")
        return text  # type: ignore[no-any-return]

    def costs(self, lowered: Any) -> Costs | None:
        """What a lowered program will do, where the backend says so."""
        count = getattr(lowered, "costs", None)
        if count is None:
            return None
        return contained(self.plugin, lambda: f"while counting the costs of {lowered.program!r}", count)  # type: ignore[no-any-return]

    def compile(self, lowered: Any) -> GuardedExecutable:
        """Make a lowered program runnable."""
        executable = contained(
            self.plugin, lambda: f"while compiling {lowered.program!r}", self.inner.compile, lowered
        )
        require(self.plugin, executable, ("in_avals", "out_avals", "entry", "__call__"), "an executable")
        program = lowered.program
        for name, given, wanted in (
            ("in_avals", executable.in_avals, program.in_avals),
            ("out_avals", executable.out_avals, program.out_avals),
        ):
            demand(
                self.plugin,
                same_types(given, wanted),
                lambda name=name, given=given: (
                    f"made an executable of {program!r} whose {name} are {given!r}"
                ),  # type: ignore[misc]
            )
        entry = executable.entry
        demand(
            self.plugin,
            entry is None or (type(entry) is NativeEntry and len(entry.out_offsets) == len(program.outputs)),
            lambda: f"made an executable of {program!r} whose entry does not fit: {entry!r}",
        )
        return GuardedExecutable(executable, self.plugin)

    def training_plan(
        self, program: Program, device: str, state: Sequence[Tensor], data: Sequence[Tensor]
    ) -> GuardedPlan:
        """Make a training step resident."""
        plan = contained(
            self.plugin,
            lambda: f"while making a training plan of {program!r}",
            self.inner.training_plan,
            *(program, device, state, data),
        )
        names = ("step", "run", "state", "set_state", "loss", "replace")
        require(self.plugin, plan, names, "a training plan")
        demand(self.plugin, callable(plan.step), lambda: "made a training plan whose step cannot be called")
        return GuardedPlan(plan, self.plugin, program.out_avals)
