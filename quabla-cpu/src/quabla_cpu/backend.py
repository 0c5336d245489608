"""`CpuBackend`: programs as native code for the host's processor."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quabla.arrays.tensor import Tensor
from quabla.backends.protocol import Costs
from quabla.ir.op import OPS
from quabla.ir.program import Program
from quabla.lowering import fuse
from quabla_cpu import blas, engine, lapack, pool, positions, regions, running, sorting, vectormath
from quabla_cpu.codegen import ENTRY, Generated, generate
from quabla_cpu.costs import costs_of
from quabla_cpu.executable import CpuExecutable
from quabla_cpu.gemm import PRODUCT
from quabla_cpu.lower import knows, plan_of
from quabla_cpu.selftest import code_runs

if TYPE_CHECKING:
    from quabla.backends.capabilities import BackendCapabilities
    from quabla_cpu.plan import CpuTrainingPlan

__all__ = ["CpuBackend", "CpuLowered", "build", "compile_program", "knows"]


@dataclass(frozen=True)
class CpuLowered:
    """A program as fused kernels, not yet compiled."""

    program: Program
    device: str
    plan: fuse.Plan

    def as_text(self) -> str:
        """The LLVM code for this machine."""
        return self.generate().text

    def costs(self) -> Costs:
        """Kernels, and the bytes held and moved."""
        return costs_of(self.program)

    def generate(self, vector_bytes: int | None = None) -> Generated:
        """The code for this machine, with its widest vectors unless their width in bytes is given."""
        host = engine.host()
        return generate(
            self.plan, vector_bytes or host.vector_bytes, host.has_fma, engine.function_attributes()
        )


class CpuBackend:
    """Native code for the processor that Python runs on."""

    platform = "cpu"

    @property
    def capabilities(self) -> BackendCapabilities:
        """All dtypes; results are the same bits on every run."""
        from quabla.backends.capabilities import BackendCapabilities

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
            UnsupportedOperationError: for an op without code, naming op, operand types and device.
        """
        return CpuLowered(program, device, plan_of(program, device))

    def compile(self, lowered: CpuLowered) -> CpuExecutable:
        """Make a lowered program runnable."""
        return build(lowered)

    def training_plan(
        self, program: Program, device: str, state: Sequence[Tensor], data: Sequence[Tensor]
    ) -> CpuTrainingPlan:
        """Make a training step resident: its state and data stay in one place, and a step is one native call."""
        from quabla_cpu.plan import CpuTrainingPlan

        return CpuTrainingPlan(self.compile(self.lower(program, device)), state, data)


def build(lowered: CpuLowered, vector_bytes: int | None = None) -> CpuExecutable:
    """Make a lowered program runnable, with vectors of the given width (the widest unless given)."""
    generated = lowered.generate(vector_bytes)
    plan = lowered.plan
    code = compile_program(generated)
    return CpuExecutable(
        lowered.program.in_avals,
        lowered.program.out_avals,
        plan.out_offsets,
        plan.out_nbytes,
        generated.workspace_nbytes,
        code.library.address(ENTRY),
        code,
    )


ROUTINE_MODULES = (regions, lapack, positions, running, sorting)  # imported for what they register


class Compiled:
    """Linked machine code, with all that it refers to: other code, and large constants."""

    __slots__ = ("__weakref__", "keep", "library")

    def __init__(self, library: engine.Library, keep: tuple[object, ...]) -> None:
        self.library = library
        self.keep = keep


_compiled: weakref.WeakValueDictionary[object, Compiled] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _renew_lock() -> None:
    # Another thread may have held the lock while this process was forked.
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def compile_program(generated: Generated) -> Compiled:
    """Compile and link code, once per process for equal text and constants."""
    imports = dict(vectormath.library(generated.math).imports)
    keep: list[object] = []
    for symbol, module in generated.products:
        product = _once(module, module, PRODUCT, {}, ())
        imports[symbol] = product.library.address(PRODUCT)
        keep.append(product)
    for name in generated.blas:
        imports[name] = blas.address(name)
    if generated.parallel:
        pool.ensure()
        imports[pool.PARALLEL] = pool.address()
    for symbol, tensor in generated.constants:
        imports[symbol] = tensor.address
        keep.append(tensor)
    key = generated.text, tuple([id(tensor) for _, tensor in generated.constants])
    return _once(key, generated.text, ENTRY, imports, tuple(keep))


def _once(
    key: object, module: str, symbol: str, imports: dict[str, int], keep: tuple[object, ...]
) -> Compiled:
    with _lock:
        found = _compiled.get(key)
    if found is not None:
        return found
    made = Compiled(engine.link([engine.compile(module)], [symbol], imports), keep)
    with _lock:
        return _compiled.setdefault(key, made)
