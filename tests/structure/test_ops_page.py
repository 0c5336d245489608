"""docs/ops.md says what the op records say."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "ops.md"

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# A process of its own: other tests define ops too.
WRITE = f"""
import runpy, sys
sys.stdout.reconfigure(encoding="utf-8")
print(runpy.run_path({str(ROOT / "tools" / "ops_table.py")!r})["page"](), end="")
"""
ROW = "| `{}` |"


def test_the_page_is_what_the_script_writes(run_python: Run) -> None:
    written = run_python(WRITE).stdout
    assert written == PAGE.read_text("utf-8"), "run: python tools/ops_table.py"


def test_every_op_has_its_line(run_python: Run) -> None:
    code = "import quabla; from quabla.ir.op import OPS; print(*OPS)"
    names = run_python(code).stdout.split()
    text = PAGE.read_text("utf-8")
    assert len(names) > 40
    assert [name for name in names if text.count(ROW.format(name)) != 1] == []


def test_the_page_tells_rules_apart() -> None:
    """What the records are known to say, one line per kind of answer."""
    lines = PAGE.read_text("utf-8").splitlines()
    for line in (
        "| `tanh` | 1: float64, float32 | rule | rule | rule |",
        "| `dot_general` | 2: float64, float32 [contract, batch] | linear, in each of 0, 1 | transpose | rule |",
        "| `broadcast` | 1: float64, float32, bool, int64 [shape, dims] | linear, jointly | transpose | rule |",
        "| `reduce_max` | 1: float64, float32, int64 [axes] | rule | from the tangent | rule |",
        "| `logical_and` | 2: bool | zero | zero | rule |",
    ):
        assert line in lines
