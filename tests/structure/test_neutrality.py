"""The core names no device library: it learns of backends through entry points.

Docstrings, comments and the texts of errors may name them as examples and hints.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "quabla-core" / "src" / "quabla"
NAMES = re.compile(r"cuda|mlx|llvm|nvrtc|quabla_cpu|quabla_mlx", re.IGNORECASE)
HINTS = {"hint", "remedy", "advice"}


def is_hint(node: ast.AST) -> bool:
    """Whether everything under a node is the text of an error or a warning, or advice to the user."""
    if isinstance(node, ast.Raise):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in HINTS
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(item, ast.Name) and item.id.lower().strip("_") in HINTS for item in targets)
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return called.endswith(("Error", "Warning")) or called in {"warn", "Refused"}
    return False


def is_docstring(node: ast.AST) -> bool:
    """Whether a node is a string that stands alone: a docstring, or the description of the name above it."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def mentions(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each string or identifier that names a device library."""
    for child in ast.iter_child_nodes(node):
        if is_docstring(child) or is_hint(child):
            continue
        texts: list[str | None] = []
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            texts = [child.value]
        elif isinstance(child, ast.Name):
            texts = [child.id]
        elif isinstance(child, ast.Attribute):
            texts = [child.attr]
        elif isinstance(child, ast.FunctionDef | ast.ClassDef):
            texts = [child.name]
        elif isinstance(child, ast.arg | ast.keyword):
            texts = [child.arg]
        elif isinstance(child, ast.alias):
            texts = [child.name]
        yield from ((getattr(child, "lineno", 0), text) for text in texts if text and NAMES.search(text))
        yield from mentions(child)


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_core_names_no_device_library(path: Path) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}"
        for line, text in mentions(ast.parse(path.read_text("utf-8")))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ('if platform == "cuda": pass', 1),
        ("x.use_mlx()", 1),
        ("import llvmlite", 1),
        ("def f(cuda_stream): pass", 1),
        ('def f():\n    """For example "cuda"."""', 0),
        ('raise ValueError("no device cuda; install the cuda extra")', 0),
        ('problem = DeviceError(f"{name}: try mlx")', 0),
        ('# cuda\nx = "cpu"', 0),
    ],
)
def test_the_search_finds_what_it_should(source: str, number: int) -> None:
    assert len(list(mentions(ast.parse(source)))) == number
