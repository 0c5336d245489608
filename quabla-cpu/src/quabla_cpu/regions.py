"""Control flow as native code: `cond` is a branch, `scan` and `while` are loops, and a step is one function call.

The function of a region has the signature of a whole program: an array of addresses of inputs, of a block for the
results, and of a workspace. A loop keeps two blocks. A step reads its carry from the block that the step before it
wrote and writes the other; what it hands on is an address, and only stacked results are copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from quabla.ir.program import Node, Program
from quabla.lowering.buffers import aligned
from quabla.lowering.fuse import Plan
from quabla.lowering.loops import Call
from quabla_cpu import text
from quabla_cpu.codegen import PARAMETERS, workspace_of, write_plan
from quabla_cpu.lower import plan_of
from quabla_cpu.routines import address, routine
from quabla_cpu.text import Value
from quabla_cpu.writing import Code

__all__: list[str] = []


def _function(code: Code, program: Program) -> str:
    """The symbol of the function that runs a region."""
    found = code.regions.get(program)
    if found is None:
        found = code.regions[program] = f"region{len(code.regions)}"
        write_plan(
            code.beside(code.b.module.function(found, "void", PARAMETERS, linkage="internal")),
            plan_of(program),
        )
    return found


def _block_of(plan: Plan) -> int:
    """The bytes of a block for the results, and so of whatever the next part of the scratch memory is aligned to."""
    return max(aligned(plan.out_nbytes), 64)


class _Arguments:
    """The array of addresses that a region is called with."""

    def __init__(self, code: Code, plan: Plan, workspace: Value | None) -> None:
        self.b = code.b
        self.count = len(plan.in_avals)
        self.array = code.b.alloca("ptr", self.count + 2, 8)
        if workspace is not None:
            self.put(self.count + 1, workspace)

    def put(self, index: int, pointer: Value) -> None:
        self.b.store(pointer, self.b.gep("ptr", self.array, index))

    def put_all(self, pointers: Sequence[Value], at: int = 0) -> None:
        for i, pointer in enumerate(pointers):
            self.put(at + i, pointer)

    def get(self, index: int) -> Value:
        return self.b.load("ptr", self.b.gep("ptr", self.array, index))

    def call(self, symbol: str, block: Value) -> None:
        self.put(self.count, block)
        self.b.call(symbol, "void", self.array)


def _parts(code: Code, step: Call, *sizes: int) -> list[Value]:
    """Consecutive parts of the scratch memory."""
    assert step.scratch is not None
    base = code.pointers[step.scratch]
    parts, at = [], 0
    for size in sizes:
        parts.append(code.b.gep("i8", base, at) if at else base)
        at += aligned(size)
    return parts


def _operands(code: Code, step: Call) -> list[Value]:
    return [address(code, buffer, offset) for buffer, offset in step.inputs]


# --- cond -------------------------------------------------------------------------------------------------------------


def _cond_scratch(node: Node) -> int:
    plans = [plan_of(node.params[name]) for name in ("true", "false")]
    return max(_block_of(p) for p in plans) + max(aligned(workspace_of(p)) for p in plans)


@routine("cond", _cond_scratch)
def _cond(code: Code, step: Call) -> None:
    b = code.b
    programs = [step.node.params[name] for name in ("true", "false")]
    plans = [plan_of(p) for p in programs]
    block, workspace = _parts(code, step, max(_block_of(p) for p in plans), 0)
    pred, *operands = _operands(code, step)
    arguments = _Arguments(code, plans[0], workspace)
    arguments.put_all(operands)
    symbols = [_function(code, p) for p in programs]
    taken = b.branch(b.icmp("ne", b.load("i8", pred), text.constant("i8", 0)))
    for side, symbol, plan in zip((taken.then, taken.otherwise), symbols, plans, strict=True):
        with side():
            arguments.call(symbol, block)
            _copy_out(code, step, plan, block)
            taken.give()
    taken.results()


# --- checkpoint -------------------------------------------------------------------------------------------------------


def _call_scratch(node: Node) -> int:
    plan = plan_of(node.params["fun"])
    return _block_of(plan) + aligned(workspace_of(plan))


@routine("checkpoint", _call_scratch)
def _checkpoint(code: Code, step: Call) -> None:
    # A call, and not its kernels among the others: what is computed again must not be shared with what was computed
    # before.
    plan = plan_of(step.node.params["fun"])
    block, workspace = _parts(code, step, _block_of(plan), 0)
    arguments = _Arguments(code, plan, workspace)
    arguments.put_all(_operands(code, step))
    arguments.call(_function(code, step.node.params["fun"]), block)
    _copy_out(code, step, plan, block)


def _copy_out(code: Code, step: Call, plan: Plan, block: Value) -> None:
    for out, offset, aval in zip(step.outputs, plan.out_offsets, plan.out_avals, strict=True):
        code.b.memcpy(address(code, out), code.b.gep("i8", block, offset), text.number(aval.nbytes))


# --- loops ------------------------------------------------------------------------------------------------------------


class _Loop:
    """What `scan` and `while` share: two blocks, the carry, and rows of stacked results."""

    def __init__(
        self, code: Code, step: Call, body: Program, consts: int, carry: int, blocks: Sequence[Value]
    ) -> None:
        self.code, self.b, self.step = code, code.b, step
        self.plan = plan_of(body)
        self.symbol = _function(code, body)
        self.first, self.second, workspace = blocks
        self.arguments = _Arguments(code, self.plan, workspace)
        self.index = code.b.alloca("i64", 1, 8)
        self.arguments.put(0, self.index)
        self.carry_at = 1 + consts
        self.carry = carry

    def run_step(self, i: Value, block: Value, stacks: Sequence[Value]) -> None:
        """One step: call the body, hand on the carry, copy the results into their rows."""
        b = self.b
        b.store(i, self.index)
        self.arguments.call(self.symbol, block)
        for k, offset in enumerate(self.plan.out_offsets[: self.carry]):
            self.arguments.put(self.carry_at + k, b.gep("i8", block, offset))
        rows = zip(
            stacks, self.plan.out_offsets[self.carry :], self.plan.out_avals[self.carry :], strict=True
        )
        for stack, offset, aval in rows:
            row = b.gep("i8", stack, b.mul(i, text.number(aval.nbytes)))
            b.memcpy(row, b.gep("i8", block, offset), text.number(aval.nbytes))

    def finish(self, stacks: Sequence[Value], steps: Value | None, length: int) -> None:
        """Copy the carry out; clear the rows that no step has written."""
        b = self.b
        for k, aval in enumerate(self.plan.out_avals[: self.carry]):
            out = address(self.code, self.step.outputs[k])
            b.memcpy(out, self.arguments.get(self.carry_at + k), text.number(aval.nbytes))
        if steps is not None:
            left = b.sub(text.number(length), steps)
            for stack, aval in zip(stacks, self.plan.out_avals[self.carry :], strict=True):
                rest = b.gep("i8", stack, b.mul(steps, text.number(aval.nbytes)))
                b.memset(rest, text.constant("i8", 0), b.mul(left, text.number(aval.nbytes)))


def _loop_sizes(plan: Plan) -> tuple[int, int, int]:
    return _block_of(plan), _block_of(plan), workspace_of(plan)


def _scan_scratch(node: Node) -> int:
    return sum(aligned(n) for n in _loop_sizes(plan_of(node.params["body"])))


@routine("scan", _scan_scratch)
def _scan(code: Code, step: Call) -> None:
    b, p = code.b, step.node.params
    length, consts, carry = p["length"], p["consts"], p["carry"]
    blocks = _parts(code, step, *_loop_sizes(plan_of(p["body"])))
    loop = _Loop(code, step, p["body"], consts, carry, blocks)
    operands = _operands(code, step)
    count = b.load("i64", operands.pop(0)) if p["counted"] else None
    loop.arguments.put_all(operands[: consts + carry], 1)
    columns = operands[consts + carry :]
    widths = [a.nbytes for a in loop.plan.in_avals[1 + consts + carry :]]
    stacks = [address(code, buffer) for buffer in step.outputs[carry:]]
    steps = text.number(length) if count is None else count
    with b.carry(text.number(0), steps, [loop.first, loop.second]) as (k, state):
        block, other = state.values
        i = b.sub(b.sub(steps, k), text.number(1)) if p["reverse"] else k
        for j, (column, width) in enumerate(zip(columns, widths, strict=True)):
            loop.arguments.put(1 + consts + carry + j, b.gep("i8", column, b.mul(i, text.number(width))))
        loop.run_step(i, block, stacks)
        state.update(other, block)
    loop.finish(stacks, count, length)


def _while_sizes(node: Node) -> tuple[int, ...]:
    asked = plan_of(node.params["cond"])
    return (*_loop_sizes(plan_of(node.params["body"])), _block_of(asked), workspace_of(asked))


@routine("while", lambda node: sum(aligned(n) for n in _while_sizes(node)))
def _while(code: Code, step: Call) -> None:
    b, p = code.b, step.node.params
    length, consts, carry = p["length"], p["consts"], p["carry"]
    *blocks, answer, workspace = _parts(code, step, *_while_sizes(step.node))
    loop = _Loop(code, step, p["body"], consts, carry, blocks)
    asked = _function(code, p["cond"])
    question = _Arguments(code, plan_of(p["cond"]), workspace)
    operands = _operands(code, step)
    loop.arguments.put_all(operands, 1)
    question.put_all(operands)
    stacks = [address(code, buffer) for buffer in step.outputs[carry:-1]]
    with b.while_([text.number(0), loop.first, loop.second]) as state:
        i, block, other = state.values
        question.call(asked, answer)
        go = b.icmp("ne", b.load("i8", answer), text.constant("i8", 0))
        if length is not None:
            go = b.and_(go, b.icmp("slt", i, text.number(length)))
        state.proceed(go)
        loop.run_step(i, block, stacks)
        question.put_all([loop.arguments.get(1 + consts + k) for k in range(carry)], consts)
        state.update(b.add(i, text.number(1)), other, block)
    steps = state.results[0]
    loop.finish(stacks, steps if stacks else None, length or 0)
    b.store(steps, address(code, step.outputs[-1]))
