"""The programs printed in the READMEs run as printed, and print what stands below them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("quabla-*/README.md"))]

# A ```python block, and the ```text block right after it where there is one. A block that is a fragment says
# so in a comment just above: <!-- not run: why -->
BLOCK = re.compile(
    r"(?P<skip><!-- not run:[^>]*-->\n)?```python\n(?P<code>.*?)```\n(?:\n*```text\n(?P<output>.*?)```\n)?",
    re.DOTALL,
)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def blocks() -> Iterator[tuple[str, str, str | None]]:
    """Name, program and expected output of each block."""
    for path in DOCUMENTS:
        for number, match in enumerate(BLOCK.finditer(path.read_text("utf-8")), 1):
            if not match["skip"]:
                yield f"{path.relative_to(ROOT).as_posix()}:{number}", match["code"], match["output"]


BLOCKS = list(blocks())

# The README installs the CPU backend; a checkout with the core alone cannot run its programs.
needs_cpu = pytest.mark.skipif(find_spec("quabla_cpu") is None, reason="quabla-cpu is not installed")


@needs_cpu
@pytest.mark.parametrize(("code", "output"), [item[1:] for item in BLOCKS], ids=[item[0] for item in BLOCKS])
def test_programs_run_as_printed(code: str, output: str | None, run_python: Run, tmp_path: Path) -> None:
    printed = run_python(code, cwd=tmp_path).stdout
    if output is not None:
        assert printed.strip() == output.strip()


def test_the_first_program_finds_pi() -> None:
    name, _, output = BLOCKS[0]
    assert name == "README.md:1" and output is not None and output.startswith("w = 3.141593, loss = 1.5e-13")


def test_the_commands_of_the_readme_are_those_of_run_py() -> None:
    shown = re.findall(r"^python3 run\.py (\w+)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert shown == ["pinn", "tests"]
