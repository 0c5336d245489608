"""A whole plan as one native function: `void entry(ptr args)`.

`args` points to the addresses of the inputs, then of the output block, then of the workspace. A small workspace is on
the native stack instead. Small constants are part of the code; large ones are imported symbols, so that the code does
not depend on where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quabla.arrays.tensor import Tensor
from quabla.lowering.buffers import touched
from quabla.lowering.fuse import Plan
from quabla.lowering.loops import Buffer, Kernel, Product
from quabla_cpu import text, vectormath
from quabla_cpu.gemm import write_product
from quabla_cpu.kernels import Code, memory_type, write_kernel
from quabla_cpu.text import Value

__all__ = ["ENTRY", "Generated", "generate"]

ENTRY = "entry"
_STACK = 64 << 10  # bytes of workspace that the native stack holds
_INLINE = 64  # elements of a constant that is written into the code


@dataclass(frozen=True)
class Generated:
    """The code of a program.

    Attributes:
        text: LLVM IR.
        math: the functions of `vectormath` that it calls.
        blas: the BLAS functions that it calls.
        products: symbol and module of each function that computes a product.
        constants: symbol and array of each large constant.
        workspace_nbytes: what the caller must provide.
    """

    text: str
    math: frozenset[tuple[str, str, int]]
    blas: tuple[str, ...]
    products: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Tensor], ...]
    workspace_nbytes: int


def generate(plan: Plan, vector_bytes: int, fma: bool, attributes: str = "nounwind") -> Generated:
    """Write the code of a plan.

    Args:
        plan: what to compute.
        vector_bytes: the width of vectors.
        fma: whether products may multiply and add in one instruction.
        attributes: attributes of the function.
    """
    module = text.Module(attributes)
    b = module.function(ENTRY, "void", [("ptr", "noalias nocapture readonly")])
    code = Code(b, vector_bytes, fma)
    large: list[tuple[str, Tensor]] = []
    stacked = plan.workspace <= _STACK
    workspace: Value | None = None
    block: Value | None = None
    inputs: dict[int, Value] = {}
    args = b.arguments[0]

    def argument(index: int) -> Value:
        return b.load("ptr", b.gep("ptr", args, index))

    for buffer in _in_order(plan.steps):
        if buffer.kind == "input":
            pointer = inputs.get(buffer.index)
            if pointer is None:
                pointer = inputs[buffer.index] = argument(buffer.index)
        elif buffer.kind == "output":
            block = block or argument(len(plan.in_avals))
            pointer = b.gep("i8", block, buffer.offset) if buffer.offset else block
        elif buffer.kind == "temporary":
            if workspace is None:
                if stacked:
                    workspace = b.alloca("i8", max(plan.workspace, 1), 64)
                else:
                    workspace = argument(len(plan.in_avals) + 1)
            pointer = b.gep("i8", workspace, buffer.offset) if buffer.offset else workspace
        else:
            tensor = plan.constants[buffer.index]
            if tensor.size <= _INLINE:
                numbers = tensor.numpy().ravel().tolist()
                pointer = module.array(f"constant{buffer.index}", memory_type(tensor.dtype), numbers)
            else:
                symbol = f"quabla_constant{len(large)}"
                large.append((symbol, tensor))
                pointer = module.raw_global(symbol, "external constant i8")
        code.pointers[buffer] = pointer
    for step in plan.steps:
        if isinstance(step, Kernel):
            write_kernel(code, step)
        else:
            write_product(code, step)
    b.ret()
    return Generated(
        module.text(),
        frozenset(vectormath.required(module)),
        tuple(sorted(code.blas)),
        tuple(sorted(code.functions.items())),
        tuple(large),
        0 if stacked else plan.workspace,
    )


def _in_order(steps: Sequence[Kernel | Product]) -> list[Buffer]:
    """All buffers, in an order that does not depend on addresses: the text is a key of caches."""
    found: dict[Buffer, None] = {}
    kinds = {"input": 0, "constant": 1, "output": 2, "temporary": 3}
    for step in steps:
        for buffer in sorted(touched(step), key=lambda x: (kinds[x.kind], x.index)):
            found.setdefault(buffer)
    return list(found)
