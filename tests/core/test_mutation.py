"""The conformance table catches faults: each of these is planted in the rules of an op, and some check must fail.

A fault is an edit of a rule's source where the rule is a function with a name, and a function in its place otherwise.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from quabla.arrays.tracer import bind
from quabla.ir.op import OPS, Op
from quabla.ops import elementwise, structure
from quabla.testing import table


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in the source of a rule; or `make` gets the rule and returns a wrong one."""

    op: str
    rule: str
    old: str = ""
    new: str = ""
    make: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    label: str = ""

    def __str__(self) -> str:
        return f"{self.op}-{self.rule}-{self.label or self.new}"

    def broken(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """The rule with the fault."""
        if self.make is not None:
            return self.make(rule)
        source = textwrap.dedent(inspect.getsource(rule))
        assert source.count(self.old) == 1, (
            f"{self}: the source has {self.old!r} {source.count(self.old)} times"
        )
        changed = source.replace(self.old, self.new)
        scope = dict(vars(sys.modules[rule.__module__]))
        if rule.__closure__:
            scope |= {
                n: c.cell_contents for n, c in zip(rule.__code__.co_freevars, rule.__closure__, strict=True)
            }
        exec(compile(changed, f"<{self}>", "exec"), scope)
        made: Callable[..., Any] = scope[rule.__name__]
        return made


def _negated(rule: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*args: Any, **params: Any) -> Any:
        out = rule(*args, **params)
        if isinstance(out, tuple):
            return tuple(None if o is None else elementwise.neg(o) for o in out)
        return None if out is None else elementwise.neg(out)

    return wrong


def _doubled(rule: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*args: Any, **params: Any) -> Any:
        out = rule(*args, **params)
        return None if out is None else out + out

    return wrong


def _exchanged(rule: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **params: tuple(rule(*args, **params))[::-1]


FAULTS = [
    # derivatives
    Fault("tanh", "jvp", make=_negated, label="wrong_sign"),
    Fault("exp", "vjp", make=_negated, label="wrong_sign"),
    Fault("sin", "jvp", make=_doubled, label="factor_two"),
    Fault("mul", "vjp", make=_exchanged, label="cotangents_exchanged"),
    Fault("div", "jvp", "times(t, i, primals, out, params)", "times(t, 0, primals, out, params)"),
    Fault("sqrt", "vjp", make=lambda rule: lambda ct, x, out, wanted: (ct * (0.5 / out),), label="infinite_at_zero"),
    Fault("power", "vjp", make=lambda rule: lambda ct, xs, out, wanted: (
        ct * xs[1] * elementwise.power(xs[0], xs[1] - 1.0), ct * out * elementwise.log(xs[0])), label="unmasked"),
    Fault("where", "transpose", "bind(where_op, (c, zero, ct), {})", "bind(where_op, (c, ct, zero), {})"),
    Fault("where", "jvp", "zeros_like(y) if u is None else u", "zeros_like(y)"),
    Fault("reduce_max", "jvp", ", count)", ", 1.0)"),
    Fault("reduce_min", "jvp", "if t is None:", "if t is not None:"),
    Fault("maximum", "vjp", make=lambda rule: lambda ct, xs, out, wanted: tuple(
        ct * structure.cast(xs[i] >= xs[1 - i], ct.dtype) for i in (0, 1)), label="ties_count_twice"),
    # transposes
    Fault("reduce_sum", "transpose", "if a not in axes", "if a in axes or len(axes) == 3"),
    Fault("broadcast", "transpose", "place.get(a, 0) != n", "a not in place"),
    Fault("transpose", "transpose", make=lambda rule: lambda ct, xs, wanted, *, perm: (structure.permute(ct, perm),),
          label="perm_for_inverse"),
    Fault("slice", "transpose", "abs(c) - 1", "abs(c)"),
    Fault("slice", "transpose", "high.append(extent - 1 - max(b, last))", "high.append(extent - 1 - b)"),
    Fault("pad", "transpose", "n - h for", "n for"),
    Fault("concat", "transpose", "at = end", "at = x.shape[axis]"),
    Fault("dot_general", "transpose", "inverse_permutation(held))\n    if wanted[1]", "tuple(held))\n    if wanted[1]"),
    Fault("dot_general", "transpose", "sorted(contract[0])", "contract[0]"),
    Fault("dot_general", "transpose", "(out_left, left)", "(out_left, left[::-1])"),
    # batching
    Fault("reduce_sum", "batch", "a + 1 for a in axes", "a for a in axes"),
    Fault("broadcast", "batch", "(0, *(d + 1 for d in dims))", "(0, *dims)"),
    Fault("concat", "batch", "axis + 1", "axis"),
    Fault("dot_general", "batch", "((0, *batch[0]), (0, *batch[1]))", "((*batch[0], 0), (*batch[1], 0))"),
    Fault("dot_general", "batch", "0 if l else lhs.ndim", "0 if r else lhs.ndim"),
    Fault("transpose", "batch", make=lambda rule: lambda xs, mapped, size, *, perm: structure.permute(
        xs[0], (0, *(p + 1 for p in structure.inverse_permutation(perm)))), label="inverse"),
    Fault("add", "batch", make=lambda rule: lambda xs, mapped, size: bind(
        OPS["add"], [structure.broadcast(x, (size, *x.shape[-2:])) for x in xs], {}), label="forgets_axis"),
    # types and values
    Fault("reduce_max", "infer", "without(x.shape, axes)", "x.shape[len(axes):]"),
    Fault("dot_general", "infer", "*(lhs.shape[a] for a in left)", "*(lhs.shape[a] for a in left[::-1])"),
    Fault("reduce_sum", "evaluate", ".astype(x.dtype)", ""),
    Fault("astype", "jvp", "cast(tangents[0], to)", "tangents[0]"),
]  # fmt: skip


@contextmanager
def planted(fault: Fault) -> Iterator[Op]:
    """The op with a fault, until the end of the block."""
    op = OPS[fault.op]
    right = getattr(op, fault.rule)
    remembered = dict(op.inferred)
    op.inferred.clear()
    object.__setattr__(op, fault.rule, fault.broken(right))
    try:
        yield op
    finally:
        object.__setattr__(op, fault.rule, right)
        op.inferred.clear()
        op.inferred.update(remembered)


def failures(op: Op) -> list[str]:
    """The checks of the table that an op fails."""
    failed = []
    for case in table.cases():
        if case.op is op:
            for name, check in table.CHECKS.items():
                if table.applies(name, case):
                    try:
                        with np.errstate(all="ignore"):
                            check(case)
                    except Exception as error:
                        failed.append(f"{name}-{case}: {type(error).__name__}")
    return failed


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_table_catches(fault: Fault) -> None:
    with planted(fault) as op:
        assert failures(op), f"no check noticed {fault}"
    assert getattr(OPS[fault.op], fault.rule).__code__.co_filename.startswith("/") or sys.platform == "win32"


def test_without_a_fault_nothing_fails() -> None:
    for name in {fault.op for fault in FAULTS}:
        assert failures(OPS[name]) == []
