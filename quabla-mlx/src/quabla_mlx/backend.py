"""`MlxBackend`: programs as graphs of MLX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quabla.arrays.tensor import Tensor
from quabla.ir.program import Program
from quabla_mlx import elementwise, linalg, positions, products, reduce, regions, shape, spectral
from quabla_mlx.executable import MlxExecutable
from quabla_mlx.lower import had, simple
from quabla_mlx.sessions import session
from quabla_mlx.tape import tape_of
from quabla_mlx.target import Target

if TYPE_CHECKING:
    from quabla.backends.capabilities import BackendCapabilities
    from quabla_mlx.plan import MlxTrainingPlan

__all__ = ["MlxBackend", "MlxLowered"]

FAMILIES = (
    elementwise,
    linalg,
    positions,
    products,
    reduce,
    regions,
    shape,
    spectral,
)  # imported for their rules


@dataclass(frozen=True)
class MlxLowered:
    """A program of which every op, those of branches and loops included, has a rule. Nothing was sent to the device."""

    program: Program
    device: str
    target: Target

    def as_text(self) -> str:
        """The program after rewriting, node by node."""
        return f"device {self.device}, {self.target}\n{simple(self.program, self.device)}"


@dataclass(frozen=True)
class MlxBackend:
    """Graphs of MLX, on its default device."""

    target: Target
    platform: str = "mlx"

    @property
    def capabilities(self) -> BackendCapabilities:
        """All dtypes and all ops. On a CPU float64 is float64, and results are the same bits on every run."""
        from quabla.backends.capabilities import BackendCapabilities
        from quabla.decompose import reachable

        return BackendCapabilities(
            dtypes=("float64", "float32", "bool", "int64"),
            ops=reachable(had()),
            determinism="none" if self.target.gpu else "bitwise",
            native_float64=self.target.double,
        )

    def devices(self) -> Sequence[str]:
        """The one device: MLX's default."""
        return (self.platform,)

    def lower(self, program: Program, device: str) -> MlxLowered:
        """Simplify a program, and see that there is a rule for every op.

        Raises:
            UnsupportedOperationError: where there is none, naming op, operands and device.
        """
        simple(program, device)
        return MlxLowered(program, device, self.target)

    def compile(self, lowered: MlxLowered) -> MlxExecutable:
        """Make a lowered program runnable: its constants go to the device, and its tape is written."""
        program, target = lowered.program, lowered.target
        with session(target):
            tape = tape_of(program, target, lowered.device)
        return MlxExecutable(tape, program.in_avals, program.out_avals, target)

    def training_plan(
        self, program: Program, device: str, state: Sequence[Tensor], data: Sequence[Tensor]
    ) -> MlxTrainingPlan:
        """Make a training step resident: state and data are arrays of the device, and a step reads nothing back."""
        from quabla_mlx.plan import MlxTrainingPlan

        return MlxTrainingPlan(self.compile(self.lower(program, device)), state, data)
