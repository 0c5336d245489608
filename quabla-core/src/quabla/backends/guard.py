"""Containment of faults: whatever a plugin raises that is not one of Quabla's errors names the plugin.

The wrappers stand around the calls that happen once per program. Around the calls of every step they add nothing
where it counts: the native entry of an executable and the native step of a training plan are handed through as
they are, and a `try` costs nothing until something is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from quabla.arrays.tensor import Tensor
from quabla.backends.protocol import Backend, Costs, Executable, Lowered, TrainingPlan
from quabla.errors import BackendError, QuablaError
from quabla.ir.program import Program

if TYPE_CHECKING:
    from quabla.backends.capabilities import BackendCapabilities

__all__ = ["GuardedBackend", "blame"]

# Raised through as they are: ours are typed already, and a machine out of memory is no plugin's fault.
_INNOCENT = (QuablaError, MemoryError)


def blame(plugin: str, doing: str, error: BaseException) -> BackendError:
    """The error that names a plugin, what it was doing, and the cause; raise it `from error`."""
    return BackendError(
        f"the plugin {plugin} failed {doing}: {type(error).__name__}: {error}. "
        "`python -m quabla doctor` checks the installed plugins",
        plugin=plugin,
    )


def require(plugin: str, thing: Any, names: Sequence[str], what: str) -> None:
    """Raise a `BackendError` unless `thing` has the attributes that a protocol asks for."""
    missing = [name for name in names if not hasattr(thing, name)]
    if missing:
        raise BackendError(
            f"the plugin {plugin} returned {type(thing).__name__} as {what}; it lacks {', '.join(missing)}",
            plugin=plugin,
        )


class GuardedExecutable:
    """An executable whose untyped errors name its plugin. `inner` is the plugin's own."""

    __slots__ = ("_call", "entry", "in_avals", "inner", "out_avals", "plugin")

    def __init__(self, inner: Executable, plugin: str) -> None:
        self.inner, self.plugin, self._call = inner, plugin, inner.__call__
        self.in_avals, self.out_avals, self.entry = inner.in_avals, inner.out_avals, inner.entry

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the program."""
        try:
            return self._call(*inputs)
        except _INNOCENT:
            raise
        except Exception as e:
            raise blame(self.plugin, "while running a program", e) from e


class GuardedPlan:
    """A training plan whose untyped errors name its plugin. `inner` is the plugin's own."""

    __slots__ = ("inner", "plugin", "step")

    def __init__(self, inner: TrainingPlan, plugin: str) -> None:
        self.inner, self.plugin = inner, plugin
        step = inner.step
        # A native function raises nothing and is worth every nanosecond; one written in Python may raise.
        self.step: Callable[[], None] = self._step if isinstance(step, (FunctionType, MethodType)) else step

    def _step(self) -> None:
        self._guarded(self.inner.step)

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except _INNOCENT:
            raise
        except Exception as e:
            raise blame(self.plugin, "in a training plan", e) from e

    def run(self, steps: int) -> None:
        """Run several steps without coming back in between."""
        self._guarded(self.inner.run, steps)

    def state(self) -> tuple[Tensor, ...]:
        """Copies of the state."""
        return self._guarded(self.inner.state)  # type: ignore[no-any-return]

    def set_state(self, state: Sequence[Tensor]) -> None:
        """Replace the state."""
        self._guarded(self.inner.set_state, state)

    def loss(self) -> Tensor:
        """The loss at the parameters that the last step started from."""
        return self._guarded(self.inner.loss)  # type: ignore[no-any-return]

    def replace(self, index: int, data: Tensor) -> None:
        """Put another array in the place of a data input."""
        self._guarded(self.inner.replace, index, data)


class GuardedBackend:
    """A backend whose untyped errors name its plugin. `inner` is the plugin's own."""

    __slots__ = ("inner", "platform", "plugin")

    def __init__(self, inner: Backend, plugin: str) -> None:
        self.inner, self.plugin, self.platform = inner, plugin, inner.platform

    @property
    def capabilities(self) -> BackendCapabilities:
        """What it can do."""
        try:
            return self.inner.capabilities
        except _INNOCENT:
            raise
        except Exception as e:
            raise blame(self.plugin, "while describing itself", e) from e

    def devices(self) -> Sequence[str]:
        """The devices that can run now."""
        try:
            return self.inner.devices()
        except _INNOCENT:
            raise
        except Exception as e:
            raise blame(self.plugin, "while listing its devices", e) from e

    def lower(self, program: Program, device: str) -> Lowered:
        """Check and prepare a program."""
        try:
            lowered = self.inner.lower(program, device)
        except _INNOCENT:
            raise
        except Exception as e:
            raise blame(self.plugin, f"while lowering {program!r}", e) from e
        require(self.plugin, lowered, ("program", "device", "as_text"), "a lowered program")
        return lowered

    def costs(self, lowered: Any) -> Costs | None:
        """What a lowered program will do, where the backend says so."""
        count = getattr(lowered, "costs", None)
        if count is None:
            return None
        try:
            return count()  # type: ignore[no-any-return]
        except _INNOCENT:
            raise
        except Exception as e:
            raise blame(self.plugin, f"while counting the costs of {lowered.program!r}", e) from e

    def compile(self, lowered: Any) -> GuardedExecutable:
        """Make a lowered program runnable."""
        try:
            executable = self.inner.compile(lowered)
        except _INNOCENT:
            raise
        except Exception as e:
            raise blame(self.plugin, f"while compiling {lowered.program!r}", e) from e
        require(self.plugin, executable, ("in_avals", "out_avals", "entry", "__call__"), "an executable")
        return GuardedExecutable(executable, self.plugin)

    def training_plan(
        self, program: Program, device: str, state: Sequence[Tensor], data: Sequence[Tensor]
    ) -> GuardedPlan:
        """Make a training step resident."""
        try:
            plan = self.inner.training_plan(program, device, state, data)
        except _INNOCENT:
            raise
        except Exception as e:
            raise blame(self.plugin, f"while making a training plan of {program!r}", e) from e
        require(
            self.plugin, plan, ("step", "run", "state", "set_state", "loss", "replace"), "a training plan"
        )
        return GuardedPlan(plan, self.plugin)
