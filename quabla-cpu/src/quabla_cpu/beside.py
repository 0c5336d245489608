"""Branches as code: a function for each, and a call that lets threads take them."""

from __future__ import annotations

from quabla.lowering.fuse import Plan
from quabla.lowering.loops import Branches
from quabla_cpu import text
from quabla_cpu.codegen import write_steps
from quabla_cpu.executable import PARALLEL
from quabla_cpu.text import Value
from quabla_cpu.writing import Code

__all__ = ["write_branches"]


def write_branches(code: Code, plan: Plan, step: Branches, args: Value, workspace: Value) -> None:
    """A call of `parallel` with a function that runs the branch of a number: `(context, number, slot)`."""
    module = code.b.module
    number = len(module.functions)
    chosen = code.beside(
        module.function(f"branches{number}", "void", ["ptr", "i64", "i64"], linkage="internal")
    )
    context, index, _slot = chosen.b.arguments
    there = chosen.b.load("ptr", context), chosen.b.load("ptr", chosen.b.gep("ptr", context, 1))
    for i, each in enumerate(step.steps):
        # A function of its own: what one branch has on the stack, the others need not have.
        name = f"branch{number}_{i}"
        branch = code.beside(module.function(name, "void", ["ptr", "ptr"], linkage="internal"))
        write_steps(branch, plan, (each,), *branch.b.arguments)
        branch.b.ret()
        with chosen.b.if_(chosen.b.icmp("eq", index, text.number(i))):
            chosen.b.call(name, "void", *there)
    chosen.b.ret()
    here = code.b.alloca("ptr", 2, 8)
    code.b.store(args, here)
    code.b.store(workspace, code.b.gep("ptr", here, 1))
    code.calls.add(PARALLEL)
    code.b.call(PARALLEL, "void", Value(f"@branches{number}", "ptr"), here, text.number(len(step.steps)))
    code.known.clear()
    code.lanes.clear()
