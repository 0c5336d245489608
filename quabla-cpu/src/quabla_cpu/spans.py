"""Panels as code: functions for a pass and for a span, and a call that shares the spans among threads."""

from __future__ import annotations

from collections.abc import Sequence

from quabla.lowering.fuse import Plan
from quabla.lowering.loops import Kernel, Panel, Product, Rows
from quabla_cpu import text, threaded
from quabla_cpu.codegen import PART, set_pointers
from quabla_cpu.gemm import write_product
from quabla_cpu.kernels import write_kernel
from quabla_cpu.sums import call_fill
from quabla_cpu.text import Value
from quabla_cpu.writing import Code

__all__ = ["write_panel"]


def write_panel(code: Code, plan: Plan, panel: Panel, args: Value, workspace: Value) -> None:
    """A call of `parallel` with a function for a span, which calls the function of a pass for one after another."""
    module = code.b.module
    number = len(module.functions)
    full = _pass(code, plan, panel, panel.steps, f"pass{number}")
    rest = _pass(code, plan, panel, panel.rest, f"rest{number}") if panel.rest else None
    name = f"span{number}"
    span, (args_there, workspace_there), index, slot = threaded.function(code, name, 2)
    b = span.b
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
    threaded.call(code, name, (args, workspace), panel.spans)
    code.known.clear()
    code.lanes.clear()


def _pass(
    code: Code, plan: Plan, panel: Panel, steps: Sequence[tuple[Kernel | Product, Rows]], name: str
) -> str:
    """The function of a pass: `(args, workspace, private memory, first row, span)`."""
    parameters = ["ptr", "ptr", "ptr", "i64", "i64"]
    whole = code.beside(code.b.module.function(name, "void", parameters, linkage="internal"))
    for first in range(0, len(steps), PART):
        some = steps[first : first + PART]
        if len(steps) <= PART:
            part = whole
        else:
            symbol = f"{name}part{first}"
            part = code.beside(code.b.module.function(symbol, "void", parameters, linkage="internal"))
        b = part.b
        args, workspace, private, row, index = b.arguments
        set_pointers(part, plan, [step for step, _ in some], args, workspace, private)
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
