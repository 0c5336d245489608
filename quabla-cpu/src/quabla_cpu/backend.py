"""`CpuBackend`: programs as native code for the host's processor.

Lowering and code generation (`assemble.py`) are imported when a program has to be lowered. One that an earlier process
compiled is there as a record (`records.py`) and needs neither them nor LLVM. No process is forked during these imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from quabla.arrays.tensor import Tensor
from quabla.backends.protocol import Costs
from quabla.backends.threads import get_num_threads
from quabla.ir.op import OPS
from quabla.ir.program import Program
from quabla_cpu import engine, records
from quabla_cpu.executable import ENTRY, CpuExecutable
from quabla_cpu.image import Image, UnsupportedError
from quabla_cpu.records import Layout, Record
from quabla_cpu.selftest import code_runs
from quabla_cpu.sharing import Compiled, shared

if TYPE_CHECKING:
    from quabla.backends.capabilities import BackendCapabilities
    from quabla.lowering.fuse import Plan
    from quabla_cpu.codegen import Generated
    from quabla_cpu.plan import CpuTrainingPlan

__all__ = ["CpuBackend", "CpuLowered", "build"]


class CpuLowered(NamedTuple):
    """A program that this backend has accepted, not yet compiled.

    Attributes:
        program: the program.
        device: the device.
        record: what an earlier process compiled it to, if one did.
    """

    program: Program
    device: str
    record: Record | None = None

    @property
    def plan(self) -> Plan:
        """The program as fused kernels."""
        with engine.no_fork():
            from quabla_cpu import assemble

        return assemble.plan_of(self.program, self.device)

    def as_text(self) -> str:
        """The LLVM code for this machine."""
        return self.generate().text

    def costs(self) -> Costs:
        """Kernels, and the bytes held and moved."""
        if self.record is not None:
            return self.record.costs
        with engine.no_fork():
            from quabla_cpu import assemble

        return assemble.costs_of(self.program)

    def generate(self, vector_bytes: int | None = None) -> Generated:
        """The code for this machine, with its widest vectors unless their width in bytes is given."""
        with engine.no_fork():
            from quabla_cpu import assemble

        return assemble.generate(self.plan, vector_bytes)


class CpuBackend:
    """Native code for the processor that Python runs on."""

    platform = "cpu"

    @property
    def capabilities(self) -> BackendCapabilities:
        """All dtypes; results are the same bits on every run."""
        from quabla.backends.capabilities import BackendCapabilities

        with engine.no_fork():
            from quabla_cpu.assemble import knows

        ops = tuple(sorted([n for n, op in OPS.items() if knows(n) or op.decompose is not None]))
        return BackendCapabilities(
            dtypes=("float64", "float32", "bool", "int64"),
            ops=ops,
            determinism="bitwise",
            native_float64=True,
        )

    def devices(self) -> Sequence[str]:
        """The one device, once a compiled function has run: some machines do not let a process make code."""
        return (self.platform,) if code_runs() else ()

    def lower(self, program: Program, device: str) -> CpuLowered:
        """Simplify and fuse a program.

        Raises:
            UnsupportedOperationError: for an op without code, naming op, operand types and device; also where
                `QUABLA_NUM_THREADS` is no number of threads, before a program that is large enough shows it.
        """
        get_num_threads()
        record = records.find(program)
        lowered = CpuLowered(program, device, record)
        if record is None:
            _ = lowered.plan
        return lowered

    def compile(self, lowered: CpuLowered) -> CpuExecutable:
        """Make a lowered program runnable."""
        return build(lowered)

    def training_plan(
        self, program: Program, device: str, state: Sequence[Tensor], data: Sequence[Tensor]
    ) -> CpuTrainingPlan:
        """Make a training step resident: its state and data stay in one place, and a step is one native call."""
        with engine.no_fork():
            from quabla_cpu.plan import CpuTrainingPlan

        return CpuTrainingPlan(self.compile(self.lower(program, device)), state, data)


def build(lowered: CpuLowered, vector_bytes: int | None = None) -> CpuExecutable:
    """Make a lowered program runnable, with vectors of the given width (the widest unless given)."""
    record = lowered.record if vector_bytes is None else None
    if record is not None:
        with suppress(UnsupportedError, ValueError, KeyError):
            code = shared(record.key, lambda: Compiled(records.load(record), ()))
            return _executable(lowered.program, record.layout, code)
    with engine.no_fork():
        from quabla_cpu import assemble

    generated, plan = lowered.generate(vector_bytes), lowered.plan
    layout = Layout(plan.out_offsets, plan.out_nbytes, generated.workspace_nbytes)
    code = assemble.compile_program(generated, assemble.loss_of(plan))

    def keep(code: Compiled | None, image: Image) -> None:
        costs = assemble.costs_of(lowered.program)
        kept = records.keep(lowered.program, image, generated.calls, generated.constants, layout, costs)
        if kept is not None and code is not None:
            shared(kept.key, lambda: code)

    if vector_bytes is None:
        code.then(keep)
    return _executable(lowered.program, layout, code)


def _executable(program: Program, layout: Layout, code: Compiled) -> CpuExecutable:
    address = code.library.address(ENTRY)
    return CpuExecutable(program.in_avals, program.out_avals, *layout, address, code)
