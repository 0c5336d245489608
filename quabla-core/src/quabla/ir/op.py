"""`Op`: a primitive and everything the framework must know about it, in one record.

A record is complete or says why it is not: each of its derivatives and its batching rule is either a function or
`Refused("why")`, and that text is what a user reads. `define` checks this when the module is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quabla.dtypes import dtype
from quabla.shapes import ShapeDtype

__all__ = ["OPS", "Each", "Jointly", "Op", "Refused", "Sample", "define"]


class Refused(NamedTuple):
    """Stands where a rule cannot exist; `why` becomes the user's error."""

    why: str


@dataclass(frozen=True)
class Jointly:
    """The op is linear in all its operands taken together: f(x + u, y + v) = f(x, y) + f(u, v)."""


class Each(NamedTuple):
    """The op is linear in each of these operands alone, the others held fixed (a product, say)."""

    operands: tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """One call of an op that the conformance suite runs.

    `make(rng)` returns the operands as float64 (or bool, int64) NumPy arrays; the suite casts the floating ones to each
    dtype, or only to the dtype `only`, where the params fix it. `smooth` is False where finite differences are
    meaningless (kinks, comparisons).
    """

    name: str
    make: Callable[[Any], tuple[Any, ...]]
    params: dict[str, Any] = field(default_factory=dict)
    smooth: bool = True
    only: dtype | None = None


@dataclass(frozen=True, eq=False)
class Op:
    """A primitive operation.

    Operands of every rule are arrays of the shapes that `infer` accepts: broadcasting, promotion and argument checking
    happen before. `params` are keyword arguments, hashable, and always given in the same order: tables of applications
    seen compare their values alone.

    Attributes:
        name: the name in printed programs and in errors.
        infer: `(*avals, **params) -> ShapeDtype`, or a tuple of them where `multiple`; raises `ShapeError` or
            `DtypeError` naming the op.
        evaluate: `(*numpy_arrays, **params) -> numpy array(s)`: the meaning of the op.
        jvp: `(primals, tangents, out, **params) -> tangent`, written with ops. A tangent that is None is zero, and None
            may be returned. Not given where `linear` says it all.
        linear: `Jointly()` or `Each(...)`; requires `transpose`.
        transpose: `(ct, operands, wanted, **params) -> tuple` with a cotangent (or None) per operand.
        vjp: `(ct, operands, out, wanted, **params) -> tuple`: only where the derived pullback would be worse.
        batch: `(operands, mapped, size, **params) -> out`: operands with `mapped[i]` carry a leading axis of extent
            `size`; so does the result.
        forward: `(primals, tangents, **params) -> (outs, tangents)`: for ops that hold programs, value and tangent
            together, in place of `jvp`, so that a derivative of a loop is one loop.
        reverse: `(frame, operands, wanted, **params) -> (outs, pullback)`: the same for reverse mode; `pullback(cts)`
            records the backward pass.
        through: `(walk, given, **params) -> found`: for ops that hold programs, or choose: what `walk` finds of the
            results, given what it knows of each operand (`transforms/linearity.py`).
        decompose: `(*operands, **params) -> out` in terms of simpler ops, for backends without the op.
        declared: whether the derivative is declared, and need not be that of the value; then `decompose` is the value.
        samples: a function that yields the calls that the conformance suite runs.
        family: "elementwise", "compare", "reduce", "structural", "product", "source", "region" or "other".
        multiple: whether the op has a tuple of results.
    """

    name: str
    infer: Callable[..., Any]
    evaluate: Callable[..., Any]
    jvp: Callable[..., Any] | Refused | None = None
    linear: Jointly | Each | None = None
    transpose: Callable[..., tuple[Any, ...]] | None = None
    vjp: Callable[..., tuple[Any, ...]] | None = None
    batch: Callable[..., Any] | Refused | None = None
    forward: Callable[..., Any] | None = None
    reverse: Callable[..., Any] | None = None
    through: Callable[..., Any] | None = None
    decompose: Callable[..., Any] | None = None
    declared: bool = False
    samples: Callable[[], Iterator[Sample]] | None = None
    family: str = "other"
    multiple: bool = False
    # (operand types, params) -> result type. Types are interned, so one dictionary look-up replaces `infer`.
    inferred: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_name, (self.name,)

    def out_type(self, avals: tuple[ShapeDtype, ...], params: dict[str, Any]) -> Any:
        """What `infer` says, remembered."""
        if self.family == "region":  # its params hold programs, which a memo would keep alive
            return self.infer(*avals, **params)
        key = (avals, *params.values()) if params else avals
        found = self.inferred.get(key)
        if found is None:
            found = self.infer(*avals, **params)
            if len(self.inferred) < 4096:  # a bound for programs that meet ever new shapes
                self.inferred[key] = found
        return found


OPS: dict[str, Op] = {}


def _by_name(name: str) -> Op:
    return OPS[name]


def define(op: Op) -> Op:
    """Check that a record is complete, register it, and return it.

    Raises:
        TypeError: naming the op and the missing rule.
    """
    missing = []
    if op.jvp is None and op.linear is None and (op.forward is None or op.reverse is None):
        missing.append("jvp (or linear, or Refused; or forward and reverse)")
    if op.linear is not None and op.transpose is None:
        missing.append("transpose (required by linear)")
    if op.declared and op.decompose is None:
        missing.append("decompose (required by declared)")
    if op.batch is None:
        missing.append("batch")
    if op.samples is None and op.family != "source":
        missing.append("samples")
    if missing:
        raise TypeError(f"op {op.name!r} is incomplete: it lacks {', '.join(missing)}")
    if op.name in OPS:
        raise TypeError(f"op {op.name!r} is defined twice")
    OPS[op.name] = op
    return op
