"""What a backend is: the protocols that a plugin implements.

A backend sees whole Programs. `lower` is pure and refuses what the device cannot do before any device is touched;
`compile` makes the lowered program runnable; `training_plan` makes a training step resident.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from quabla.arrays.tensor import Tensor
from quabla.ir.program import Program
from quabla.shapes import ShapeDtype

if TYPE_CHECKING:
    from quabla.backends.capabilities import BackendCapabilities

__all__ = ["Backend", "Costs", "Executable", "Lowered", "NativeEntry", "TrainingPlan"]


@dataclass(frozen=True)
class NativeEntry:
    """The short way into an executable that runs on host memory, for the dispatcher's generated code.

    Attributes:
        call: takes `pack(*pointers)`: the addresses of the inputs, then `hidden`, then the output block, then a
            workspace (0 where `workspace_nbytes` is 0). Releases the GIL. Returns None.
        pack: packs integers into bytes, one pointer each.
        hidden: addresses that every call passes on, such as those of large constants.
        out_offsets: where each output begins in the output block, in bytes.
        out_nbytes: the size of the output block.
        workspace_nbytes: the size of the workspace that a call needs for itself.
    """

    call: Callable[[bytes], None]
    pack: Callable[..., bytes]
    hidden: tuple[int, ...]
    out_offsets: tuple[int, ...]
    out_nbytes: int
    workspace_nbytes: int


@dataclass(frozen=True)
class Costs:
    """What a lowered program will do: an optional method `costs()` of what `lower` returns says it.

    Attributes:
        nodes: the number of nodes after the backend's own passes, regions included.
        kernels: the loop nests, that is passes over arrays.
        products: the matrix products.
        routines: everything else that is called: factorisations, sorting, branches, loops.
        held: bytes that a call needs for results, temporaries and constants.
        moved: bytes that a call reads and writes, if every array that a kernel uses comes from memory once; of a loop
            whose number of steps is not known, those of one step, and of a branch those of the dearer one.
    """

    nodes: int
    kernels: int
    products: int
    routines: int
    held: int
    moved: int


@runtime_checkable
class Lowered(Protocol):
    """A program made ready for one device, not yet compiled. It may have a method `costs() -> Costs`."""

    @property
    def program(self) -> Program:
        """What was lowered."""

    @property
    def device(self) -> str:
        """For which device."""

    def as_text(self) -> str:
        """What will be compiled, in the backend's own readable form."""


@runtime_checkable
class Executable(Protocol):
    """A compiled program.

    Called with Tensors of the input types, it returns a tuple of Tensors that own their memory. It may be called from
    many threads at once, keeps no input, and raises typed errors. `entry` is the short way in, or None.
    """

    @property
    def in_avals(self) -> tuple[ShapeDtype, ...]:
        """The types of the inputs."""

    @property
    def out_avals(self) -> tuple[ShapeDtype, ...]:
        """The types of the outputs."""

    @property
    def entry(self) -> NativeEntry | None:
        """The short way in, where there is one."""

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the program."""


@runtime_checkable
class TrainingPlan(Protocol):
    """A training step whose state and data stay on the device.

    `step` is a callable without arguments that runs one step.
    """

    @property
    def step(self) -> Callable[[], None]:
        """A callable without arguments, or a method."""

    def run(self, steps: int) -> None:
        """Run several steps without coming back in between."""

    def state(self) -> tuple[Tensor, ...]:
        """Copies of the state: parameters and the optimiser's own."""

    def set_state(self, state: Sequence[Tensor]) -> None:
        """Replace the state, given in the order of `state()`."""

    def loss(self) -> Tensor:
        """The loss at the parameters that the last step started from; NaN before the first step."""

    def replace(self, index: int, data: Tensor) -> None:
        """Put another array of the same type in the place of a data input."""


@runtime_checkable
class Backend(Protocol):
    """A device package.

    Attributes:
        platform: "cpu", "reference", or a third party's own name; devices are called `platform` or `platform:N`.
        capabilities: what it can do.
    """

    @property
    def platform(self) -> str:
        """Its name."""

    @property
    def capabilities(self) -> BackendCapabilities:
        """Dtypes, ops and features, as data."""

    def devices(self) -> Sequence[str]:
        """The devices that can run now, such as ("cpu",)."""

    def lower(self, program: Program, device: str) -> Lowered:
        """Check and prepare a program, without touching the device.

        Raises:
            UnsupportedOperationError: naming op and device.
        """

    def compile(self, lowered: Any) -> Executable:
        """Make a lowered program runnable."""

    def training_plan(
        self, program: Program, device: str, state: Sequence[Tensor], data: Sequence[Tensor]
    ) -> TrainingPlan:
        """Make a training step resident.

        Args:
            program: inputs are the state and then the data; outputs are the new state and then the loss.
            device: where.
            state: the initial state.
            data: the data that the step reads.
        """
