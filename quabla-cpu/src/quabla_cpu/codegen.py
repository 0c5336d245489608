"""A whole plan as one native function: `void entry(ptr args)`.

`args` points to the addresses of the inputs, then of the output block, then of the workspace. A small workspace is on
the native stack instead. Small constants are part of the code; large ones are imported symbols, so that the code does
not depend on where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quabla.arrays.tensor import Tensor
from quabla.lowering.buffers import touched
from quabla.lowering.fuse import Plan
from quabla.lowering.loops import Branches, Buffer, Kernel, Panel, Product, Step
from quabla_cpu import engine, text, vectormath
from quabla_cpu.executable import ENTRY
from quabla_cpu.kernels import write_kernel
from quabla_cpu.routines import routine_of
from quabla_cpu.text import Value
from quabla_cpu.writing import Code, memory_type

__all__ = [
    "ENTRY",
    "PARAMETERS",
    "PART",
    "Generated",
    "generate",
    "set_pointers",
    "workspace_of",
    "write_plan",
    "write_steps",
]

PARAMETERS = [("ptr", "noalias nocapture readonly")]
_STACK = 64 << 10  # bytes of workspace that the native stack holds
PART = 48  # steps that one function runs
_INLINE = 64  # elements of a constant that is written into the code


class Generated(NamedTuple):
    """The code of a program.

    Attributes:
        text: LLVM IR.
        math: the functions of `vectormath` that it calls.
        calls: the functions of `outside.py` that it calls.
        products: symbol and module of each function that computes a product.
        constants: symbol and array of each large constant.
        workspace_nbytes: what the caller must provide.
    """

    text: str
    math: frozenset[tuple[str, str, int]]
    calls: tuple[str, ...]
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
    code = Code(module.function(ENTRY, "void", PARAMETERS), vector_bytes, fma)
    workspace = write_plan(code, plan)
    return Generated(
        module.text(),
        frozenset(vectormath.required(module)),
        tuple(sorted(code.calls)),
        tuple(sorted(code.functions.items())),
        tuple(code.constants),
        workspace,
    )


def workspace_of(plan: Plan) -> int:
    """The bytes of workspace that a caller of the function of `plan` must provide."""
    return 0 if plan.workspace <= _STACK else plan.workspace


def write_plan(code: Code, plan: Plan) -> int:
    """Write the body of a function that runs `plan`, and return the bytes of workspace that its caller must provide."""
    b = code.b
    args = b.arguments[0]
    if workspace_of(plan):
        workspace = b.load("ptr", b.gep("ptr", args, len(plan.in_avals) + 1))
    else:
        workspace = b.alloca("i8", max(plan.workspace, 1), 64)
    if len(plan.steps) <= PART:
        write_steps(code, plan, plan.steps, args, workspace)
    else:
        # LLVM's time grows faster than the length of a function, so a long one is a row of calls.
        for first in range(0, len(plan.steps), PART):
            name = f"part{len(b.module.functions)}"
            part = code.beside(b.module.function(name, "void", [*PARAMETERS, "ptr"], linkage="internal"))
            write_steps(part, plan, plan.steps[first : first + PART], *part.b.arguments)
            part.b.ret()
            b.call(name, "void", args, workspace)
    b.ret()
    return workspace_of(plan)


def write_steps(code: Code, plan: Plan, steps: Sequence[Step], args: Value, workspace: Value) -> None:
    """Write some steps of a plan, with the addresses of the buffers that they touch."""
    set_pointers(code, plan, steps, args, workspace)
    parts: set[Buffer] = set()  # of the sums of panels
    for step in steps:
        if isinstance(step, Kernel):
            if not (parts.intersection(touched(step)) and _call_add(code, step)):
                write_kernel(code, step)
        elif isinstance(step, Product):
            _write_product(code, step)
        elif isinstance(step, Panel):
            _write_panel(code, plan, step, args, workspace)
            parts.update(step.parts)
        elif isinstance(step, Branches):
            _write_branches(code, plan, step, args, workspace)
        else:
            found = routine_of(step.node.op.name)
            assert found is not None
            found.write(code, step)


def set_pointers(
    code: Code, plan: Plan, steps: Sequence[Step], args: Value, workspace: Value, private: Value | None = None
) -> None:
    """Find the addresses of the buffers that some steps touch; private ones lie in the memory of a panel's thread."""
    b = code.b
    block: Value | None = None
    inputs: dict[int, Value] = {}

    def argument(index: int) -> Value:
        return b.load("ptr", b.gep("ptr", args, index))

    own = []
    for buffer in _in_order(steps):
        if buffer.kind == "private":
            own.append(buffer)
            continue
        if buffer.kind == "input":
            pointer = inputs.get(buffer.index)
            if pointer is None:
                pointer = inputs[buffer.index] = argument(buffer.index)
        elif buffer.kind == "output":
            block = block or argument(len(plan.in_avals))
            pointer = b.gep("i8", block, buffer.offset) if buffer.offset else block
        elif buffer.kind == "temporary":
            pointer = b.gep("i8", workspace, buffer.offset) if buffer.offset else workspace
        else:
            pointer = _constant(code, plan.constants[buffer.index])
        code.pointers[buffer] = pointer
    if private is not None:
        for buffer in own:
            code.pointers[buffer] = b.gep("i8", private, buffer.offset) if buffer.offset else private


# What small programs have none of is imported where a program has it.


def _write_product(code: Code, step: Product) -> None:
    with engine.no_fork():
        from quabla_cpu.gemm import write_product
    write_product(code, step)


def _write_panel(code: Code, plan: Plan, step: Panel, args: Value, workspace: Value) -> None:
    with engine.no_fork():
        from quabla_cpu.spans import write_panel
    write_panel(code, plan, step, args, workspace)


def _write_branches(code: Code, plan: Plan, step: Branches, args: Value, workspace: Value) -> None:
    with engine.no_fork():
        from quabla_cpu.beside import write_branches
    write_branches(code, plan, step, args, workspace)


def _call_add(code: Code, step: Kernel) -> bool:
    with engine.no_fork():
        from quabla_cpu.sums import call_add
    return call_add(code, step)


def _constant(code: Code, tensor: Tensor) -> Value:
    """The address of a constant: part of the code if it is small, else a symbol."""
    module = code.b.module
    if tensor.size <= _INLINE:
        numbers = tensor.numpy().ravel().tolist()
        return module.array(f"constant{module.global_count}", memory_type(tensor.dtype), numbers)
    for symbol, known in code.constants:
        if known is tensor:
            return Value(f"@{symbol}", "ptr")
    symbol = f"quabla_constant{len(code.constants)}"
    code.constants.append((symbol, tensor))
    return module.raw_global(symbol, "external constant i8")


_KINDS = {"input": 0, "constant": 1, "output": 2, "temporary": 3, "private": 4}


def _in_order(steps: Sequence[Step]) -> list[Buffer]:
    """All buffers, in an order that does not depend on addresses: the text is a key of caches."""
    found: dict[Buffer, None] = {}
    for step in steps:
        new = [buffer for buffer in touched(step) if buffer not in found]
        found.update(dict.fromkeys(sorted(new, key=lambda x: (_KINDS[x.kind], x.index))))
    return list(found)
