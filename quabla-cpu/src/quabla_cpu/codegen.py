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
from quabla.lowering.loops import Buffer, Kernel, Panel, Product, Rows, Step
from quabla_cpu import text, vectormath
from quabla_cpu.executable import ENTRY, PARALLEL
from quabla_cpu.gemm import write_product
from quabla_cpu.kernels import write_kernel
from quabla_cpu.routines import routine_of
from quabla_cpu.sums import call_add, call_fill
from quabla_cpu.text import Value
from quabla_cpu.writing import Code, memory_type

__all__ = ["ENTRY", "PARAMETERS", "Generated", "generate", "workspace_of", "write_plan"]

PARAMETERS = [("ptr", "noalias nocapture readonly")]
_STACK = 64 << 10  # bytes of workspace that the native stack holds
_PART = 48  # steps that one function runs
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
    if len(plan.steps) <= _PART:
        _write_steps(code, plan, plan.steps, args, workspace)
    else:
        # LLVM's time grows faster than the length of a function, so a long one is a row of calls.
        for first in range(0, len(plan.steps), _PART):
            name = f"part{len(b.module.functions)}"
            part = code.beside(b.module.function(name, "void", [*PARAMETERS, "ptr"], linkage="internal"))
            _write_steps(part, plan, plan.steps[first : first + _PART], *part.b.arguments)
            part.b.ret()
            b.call(name, "void", args, workspace)
    b.ret()
    return workspace_of(plan)


def _write_steps(code: Code, plan: Plan, steps: Sequence[Step], args: Value, workspace: Value) -> None:
    """Write some steps of a plan, with the addresses of the buffers that they touch."""
    set_pointers(code, plan, steps, args, workspace)
    parts: set[Buffer] = set()  # of the sums of panels
    for step in steps:
        if isinstance(step, Kernel):
            if not (parts.intersection(touched(step)) and call_add(code, step)):
                write_kernel(code, step)
        elif isinstance(step, Product):
            write_product(code, step)
        elif isinstance(step, Panel):
            _write_panel(code, plan, step, args, workspace)
            parts.update(step.parts)
        else:
            found = routine_of(step.node.op.name)
            assert found is not None
            found.write(code, step)


def set_pointers(code: Code, plan: Plan, steps: Sequence[Step], args: Value, workspace: Value) -> None:
    """Find the addresses of the buffers that some steps touch; those of private ones are the caller's to know."""
    b = code.b
    block: Value | None = None
    inputs: dict[int, Value] = {}

    def argument(index: int) -> Value:
        return b.load("ptr", b.gep("ptr", args, index))

    for buffer in _in_order(steps):
        if buffer.kind == "private":
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


# --- panels -----------------------------------------------------------------------------------------------------------


def _write_panel(code: Code, plan: Plan, panel: Panel, args: Value, workspace: Value) -> None:
    """A call of `parallel` with a function for a span, which calls the function of a pass for one after another."""
    module = code.b.module
    number = len(module.functions)
    full = _pass(code, plan, panel, panel.steps, f"pass{number}")
    rest = _pass(code, plan, panel, panel.rest, f"rest{number}") if panel.rest else None
    name = f"span{number}"
    span = code.beside(module.function(name, "void", ["ptr", "i64", "i64"], linkage="internal"))
    b = span.b
    context, index, slot = b.arguments
    args_there, workspace_there = b.load("ptr", context), b.load("ptr", b.gep("ptr", context, 1))
    private = workspace_there
    if panel.private is not None:
        mine = b.mul(slot, text.number(panel.private_nbytes), "nsw")
        private = b.gep("i8", b.gep("i8", workspace_there, panel.private.offset), mine)
    set_pointers(span, plan, panel.begin, args_there, workspace_there)
    _at_parts(span, panel, index)
    for kernel in panel.begin:
        if not call_fill(span, kernel):
            write_kernel(span, kernel)
    last = panel.rows // panel.chunk * panel.chunk
    step = panel.passes * panel.chunk
    first = b.mul(index, text.number(step), "nsw")
    end = b.intrinsic("smin", b.add(first, text.number(step), "nsw"), text.number(last))
    with b.loop(first, end, panel.chunk) as row:
        b.call(full, "void", args_there, workspace_there, private, row, index)
    if rest is not None:  # the last span
        with b.if_(b.icmp("eq", index, text.number(panel.spans - 1))):
            b.call(rest, "void", args_there, workspace_there, private, text.number(last), index)
    b.ret()
    here = code.b.alloca("ptr", 2, 8)
    code.b.store(args, here)
    code.b.store(workspace, code.b.gep("ptr", here, 1))
    code.calls.add(PARALLEL)
    code.b.call(PARALLEL, "void", Value(f"@{name}", "ptr"), here, text.number(panel.spans))
    code.known.clear()
    code.lanes.clear()


def _pass(
    code: Code, plan: Plan, panel: Panel, steps: Sequence[tuple[Kernel | Product, Rows]], name: str
) -> str:
    """The function of a pass: `(args, workspace, private memory, first row, span)`."""
    parameters = ["ptr", "ptr", "ptr", "i64", "i64"]
    whole = code.beside(code.b.module.function(name, "void", parameters, linkage="internal"))
    for first in range(0, len(steps), _PART):
        some = steps[first : first + _PART]
        if len(steps) <= _PART:
            part = whole
        else:
            symbol = f"{name}part{first}"
            part = code.beside(code.b.module.function(symbol, "void", parameters, linkage="internal"))
        b = part.b
        args, workspace, private, row, index = b.arguments
        set_pointers(part, plan, [step for step, _ in some], args, workspace)
        for buffer in _in_order([step for step, _ in some]):
            if buffer.kind == "private":
                part.pointers[buffer] = b.gep("i8", private, buffer.offset) if buffer.offset else private
        _at_parts(part, panel, index)
        for step, rows in some:
            start = b.mul(row, text.number(rows.per), "nsw") if rows.per > 1 else row
            if isinstance(step, Kernel):
                write_kernel(part, step, (rows.axis, start))
            else:
                write_product(part, step, (rows, start))
        if part is not whole:
            b.ret()
            whole.b.call(part.b.name, "void", *whole.b.arguments)
    whole.b.ret()
    return name


def _at_parts(code: Code, panel: Panel, index: Value) -> None:
    """The addresses of the parts of the sums that belong to a span."""
    for buffer, size in panel.parts.items():
        if buffer in code.pointers:
            offset = code.b.mul(index, text.number(size * buffer.dtype.itemsize), "nsw")
            code.pointers[buffer] = code.b.gep("i8", code.pointers[buffer], offset)


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


def _in_order(steps: Sequence[Step]) -> list[Buffer]:
    """All buffers, in an order that does not depend on addresses: the text is a key of caches."""
    found: dict[Buffer, None] = {}
    kinds = {"input": 0, "constant": 1, "output": 2, "temporary": 3, "private": 4}
    for step in steps:
        for buffer in sorted(touched(step), key=lambda x: (kinds[x.kind], x.index)):
            found.setdefault(buffer)
    return list(found)
