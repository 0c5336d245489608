"""Write docs/ops.md, the table of all ops, from their records.

python tools/ops_table.py            rewrite docs/ops.md
python tools/ops_table.py --check    say whether it is up to date; 1 if it is not
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import quabla.ops
from quabla.arrays.tracer import trace
from quabla.dtypes import bool_, dtype, float32, float64, int64
from quabla.errors import DtypeError
from quabla.ir.op import OPS, Each, Jointly, Op, Refused, Sample
from quabla.shapes import ShapeDtype, aval_of
from quabla.transforms.forward import apply_jvp

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "ops.md"

FAMILIES = {
    "source": "Constants: no operands, recorded by a trace.",
    "elementwise": "Element by element, on operands of one shape; broadcasting and promotion happen before.",
    "compare": "Element by element, with a bool result; the derivative is zero.",
    "structural": "Rearranging, repeating and cutting out elements.",
    "reduce": "Combining the elements along some axes.",
    "product": "Sums of products.",
    "region": "Control flow: nodes that hold programs.",
    "other": "The rest.",
}

HEAD = """<!-- Written by tools/ops_table.py from the op records. Do not edit: run it again. -->

# Ops

Every primitive that a program can hold, from its record (`quabla/ir/op.py`). What users call is built on these: `mean`
is `reduce_sum` and `div`, `einsum` is `dot_general` with `transpose` and `reshape`, indexing is `slice`,
`gather` and `reshape`, and `sort` is `argsort` and `gather`.

The columns:

- **operands**: how many, and the dtypes that the op's shape rule accepts; those of one call agree, except for operands
  that are named with a dtype of their own. In brackets the params, which are part of the program.
- **tangent** (forward mode): *rule*, the op's own `jvp` or `forward`; *linear*, the op itself, applied to all tangents
  jointly or to one at a time; *zero*, for every operand.
- **cotangent** (reverse mode): *rule*, the op's own `vjp` or `reverse`; *transpose*, of a linear op; *from the
  tangent*, what the `jvp` computes, transposed; *zero*.
- **batch** (`vmap`): *rule*, or why it is refused.
"""


def load_all() -> None:
    """Import every module of `quabla.ops`, so that every record is in the table."""
    for item in pkgutil.iter_modules(quabla.ops.__path__):
        importlib.import_module(f"quabla.ops.{item.name}")


def samples(op: Op) -> list[Sample]:
    """The calls of an op that the conformance suite runs."""
    return list(op.samples()) if op.samples is not None else []


def _avals(sample: Sample, to: dtype) -> tuple[ShapeDtype, ...]:
    """The types of a sample's operands, floating ones as `to`; all of them where none is floating."""
    arrays = [np.asarray(x) for x in sample.make(np.random.default_rng(0))]
    floating = [a.dtype.kind == "f" for a in arrays]
    kept = {"b": bool_, "i": int64}
    return tuple(
        aval_of(a.shape, to if f or not any(floating) else kept[a.dtype.kind])
        for a, f in zip(arrays, floating, strict=True)
    )


def dtypes_of(op: Op) -> list[str]:
    """The dtypes that an op's shape rule accepts on one of its samples."""
    found = []
    for to in (float64, float32, bool_, int64):
        for sample in samples(op):
            try:
                op.infer(*_avals(sample, to), **sample.params)
            except DtypeError:
                continue
            found.append(to.name)
            break
    return found


def operands(op: Op) -> str:
    """How many operands, of which dtypes, with which params."""
    cases = samples(op)
    if not cases:
        return "none" if op.family == "source" else "as its region takes"
    made = [s.make(np.random.default_rng(0)) for s in cases]
    counts = sorted({len(xs) for xs in made})
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} or more"
    kinds = [np.asarray(x).dtype.kind for x in made[0]]
    named = {"b": "bool", "i": "int64"}
    own = [f"{i} is {named[k]}" for i, k in enumerate(kinds) if k in named and "f" in kinds]
    number += f" ({', '.join(own)})" if own else ""
    params = list(dict.fromkeys(name for s in cases for name in s.params))
    return f"{number}: {', '.join(dtypes_of(op))}" + (f" [{', '.join(params)}]" if params else "")


def tangent(op: Op) -> str:
    """Where the forward derivative comes from."""
    if isinstance(op.jvp, Refused):
        return f"refused: {op.jvp.why}"
    if moves_nothing(op):
        return "zero"
    if op.jvp is not None or op.forward is not None:
        return "rule"
    return f"linear, {linearity(op.linear)}"


def linearity(linear: Jointly | Each | None) -> str:
    """In which operands an op is linear.

    >>> linearity(Jointly()), linearity(Each((0, 1)))
    ('jointly', 'in each of 0, 1')
    """
    if isinstance(linear, Each):
        return f"in each of {', '.join(map(str, linear.operands))}"
    return "jointly"


def moves_nothing(op: Op) -> bool:
    """Whether no floating operand of any sample passes a tangent on."""
    if op.forward is not None:  # value and tangent together, where there is a tangent
        return False
    for sample in samples(op):
        for to in (float64, float32):
            avals = _avals(sample, to)
            try:
                op.infer(*avals, **sample.params)
            except DtypeError:
                continue  # an op on truth values alone
            moved: list[Any] = []

            def run(
                *xs: Any,
                avals: tuple[ShapeDtype, ...] = avals,
                sample: Sample = sample,
                moved: list[Any] = moved,
            ) -> Sequence[Any]:
                n = len(avals)
                tangents = [t if a.dtype.kind == "f" else None for t, a in zip(xs[n:], avals, strict=True)]
                out = xs[0].frame.emit(op, xs[:n], sample.params)
                t_out = apply_jvp(op, xs[:n], tangents, out, sample.params)
                moved.append(t_out)
                return []

            trace(run, (*avals, *avals))
            found = moved[0] if op.multiple else (moved[0],)
            if any(t is not None for t in found):
                return False
    return bool(samples(op))


def cotangent(op: Op) -> str:
    """Where the pullback comes from."""
    if op.vjp is None and isinstance(op.jvp, Refused):
        return f"refused: {op.jvp.why}"
    if moves_nothing(op):
        return "zero"
    if op.vjp is not None or op.reverse is not None:
        return "rule"
    return "transpose" if op.linear is not None else "from the tangent"


def batch(op: Op) -> str:
    """Whether the op can be batched."""
    return f"refused: {op.batch.why}" if isinstance(op.batch, Refused) else "rule"


def cells(values: Iterable[str]) -> str:
    """A line of a Markdown table.

    >>> cells(["`add`", "a | b"])
    '| `add` | a \\\\| b |'
    """
    return "| " + " | ".join(v.replace("|", "\\|") for v in values) + " |"


def page() -> str:
    """The whole page."""
    load_all()
    known: dict[str, list[Op]] = {family: [] for family in FAMILIES}
    for op in OPS.values():
        known[op.family].append(op)
    parts = [HEAD]
    for family, ops in known.items():
        if not ops:
            continue
        lines = [
            cells(("op", "operands [params]", "tangent", "cotangent", "batch")),
            cells(["---"] * 5),
            *(
                cells((f"`{op.name}`", operands(op), tangent(op), cotangent(op), batch(op)))
                for op in sorted(ops, key=lambda op: op.name)
            ),
        ]
        parts.append(f"## {family.capitalize()}\n\n{FAMILIES[family]}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def main(arguments: Sequence[str]) -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("docs/ops.md differs from the op records; run: python tools/ops_table.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
