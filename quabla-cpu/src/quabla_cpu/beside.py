"""Branches as code: a function for each, and a call that lets threads take them."""

from __future__ import annotations

from quabla.lowering.fuse import Plan
from quabla.lowering.loops import Branches
from quabla_cpu import text, threaded
from quabla_cpu.codegen import write_steps
from quabla_cpu.text import Value
from quabla_cpu.writing import Code

__all__ = ["write_branches"]


def write_branches(code: Code, plan: Plan, step: Branches, args: Value, workspace: Value) -> None:
    """A call of `parallel` with a function that runs the branch of a number: `(context, number, slot)`."""
    module = code.b.module
    number = len(module.functions)
    chosen, there, index, _slot = threaded.function(code, f"branches{number}", 2)
    for i, each in enumerate(step.steps):
        # A function of its own: what one branch has on the stack, the others need not have.
        name = f"branch{number}_{i}"
        branch = code.beside(module.function(name, "void", ["ptr", "ptr"], linkage="internal"))
        write_steps(branch, plan, (each,), *branch.b.arguments)
        branch.b.ret()
        with chosen.b.if_(chosen.b.icmp("eq", index, text.number(i))):
            chosen.b.call(name, "void", *there)
    chosen.b.ret()
    threaded.call(code, f"branches{number}", (args, workspace), len(step.steps))
    code.known.clear()
    code.lanes.clear()
