"""What each row computes, counted in its compiled form: `python benchmarks/counts.py [WORK ...]`.

A product of m x k by k x n counts 2 m n k operations. A kernel counts one for every elementwise operation at every
point; `exp`, `sin` and their like count as many as their code has (a fused multiplication and addition is two). Loops
count their steps, LAPACK's routines nothing. Bytes are what `explain()` says that a call moves if every array that a
kernel uses comes from memory once; what a panel keeps to itself stays in a cache and is left out.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from frameworks import load_quabla
from others import OTHERS
from workloads import EIGHT

import quabla as qb
from quabla.ir.program import Program
from quabla.lowering.loops import Apply, Call, Kernel, Panel, Product, Reduce, Step, singly
from quabla_cpu import text, vectormath
from quabla_cpu.costs import costs_of
from quabla_cpu.lower import plan_of


class Count(NamedTuple):
    """Operations in products, in kernels apart from elementary functions, and in those; calls of those; bytes."""

    products: float = 0.0
    plain: float = 0.0
    elementary: float = 0.0
    calls: float = 0.0
    moved: float = 0.0

    def plus(self, other: Count, times: float = 1.0) -> Count:
        """The sum with `times` another."""
        return Count(*(a + times * b for a, b in zip(self, other, strict=True)))

    @property
    def total(self) -> float:
        """All operations."""
        return self.products + self.plain + self.elementary


# Op -> the function that computes it and another op of one operand at once, and that op.
PAIRS = {
    op: (pair, other)
    for pair, (first, second) in vectormath.PAIRS.items()
    for op, other in ((first, second), (second, first))
}


@functools.cache
def weight(name: str, dtype: str) -> float:
    """The operations of an elementary function at one point: those of its code for a vector of eight."""
    module = text.Module("")
    vectormath.define(module, name, dtype, 8)
    written = module.text()
    once = len(re.findall(r"= (?:fast )?(?:fadd|fsub|fmul|fdiv)\b", written))
    return once + 2 * len(re.findall(r"call .*@llvm\.fma", written))


def of_kernel(kernel: Kernel) -> Count:
    """The operations of a kernel."""
    plain = elementary = calls = 0.0
    applied = {(entry.op, entry.args[0]) for entry in kernel.body if isinstance(entry, Apply) and entry.args}
    for entry in kernel.body:
        if isinstance(entry, Apply):
            if entry.op in vectormath.NAMES and entry.op != "power":
                pair = PAIRS.get(entry.op)
                if pair is not None and (pair[1], entry.args[0]) in applied:
                    name, share = pair[0], 0.5
                else:
                    name, share = entry.op, 1.0
                elementary += share * weight(name, entry.dtype.name.replace("float", "f"))
                calls += share
            else:
                plain += 1
        elif isinstance(entry, Reduce):
            plain += 1
    points = math.prod(kernel.domain)
    return Count(0.0, plain * points, elementary * points, calls * points)


def of_steps(steps: Sequence[Step]) -> Count:
    """The operations of steps in order."""
    total = Count()
    for step in singly(steps):
        if isinstance(step, Kernel):
            total = total.plus(of_kernel(step))
        elif isinstance(step, Product):
            axes = (*step.batch, *step.m, *step.n, *step.k)
            total = total.plus(Count(2.0 * math.prod(axis.extent for axis in axes)))
        elif isinstance(step, Panel):
            total = total.plus(of_steps([each for each, _ in step.steps]), step.rows / step.chunk)
        elif isinstance(step, Call):
            for value in step.node.params.values():
                if isinstance(value, Program):
                    total = total.plus(of_steps(plan_of(value).steps), step.node.params.get("length", 1))
    return total


def counted(name: str) -> Count:
    """The operations and bytes of a row."""
    fw, kept = load_quabla(), []

    def jit(f: Any) -> Any:
        def call(*arguments: Any) -> None:
            kept.append(qb.jit(f).lower(*arguments).program.graph)

        return call

    fw.jit = jit
    {**EIGHT, **OTHERS}[name](fw)()
    (program,) = kept
    return of_steps(plan_of(program).steps)._replace(moved=float(costs_of(program).moved))


def main() -> None:
    """Print a line per row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="WORK", help="all unless given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    options = parser.parse_args()
    found = {name: counted(name) for name in options.rows or [*EIGHT, *OTHERS]}
    print(
        f"{'row':16}{'Mflop':>12}{'products':>12}{'plain':>12}{'elementary':>12}{'calls':>12}{'MB moved':>10}"
    )
    for name, c in found.items():
        numbers = (c.total, c.products, c.plain, c.elementary, c.calls)
        print(f"{name:16}" + "".join(f"{n / 1e6:12.4f}" for n in numbers) + f"{c.moved / 1e6:10.3f}")
    if options.json:
        text = json.dumps({name: c._asdict() for name, c in found.items()}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
