"""A source file above 600 lines holds two ideas: split it. The counts of every distribution are printed."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600

DISTRIBUTIONS = sorted(path.parent for path in ROOT.glob("*/pyproject.toml")) + sorted(
    path.parent for path in ROOT.glob("examples/*/pyproject.toml")
)


def line_counts(folder: Path) -> dict[Path, int]:
    """The number of lines of each Python file under a folder."""
    return {
        path: len(path.read_text("utf-8").splitlines())
        for path in sorted(folder.rglob("*.py"))
        if not {".venv", ".nox", "build"} & set(path.parts)
    }


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
def test_files_are_short(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = line_counts(folder)
    assert counts, f"{folder.name} has no Python file"
    with capsys.disabled():
        longest = max(counts, key=lambda path: counts[path])
        print(
            f"\n{folder.name}: {sum(counts.values())} lines in {len(counts)} files, "
            f"the longest {longest.relative_to(folder)} with {counts[longest]}"
        )
    long = [f"{path.relative_to(ROOT)}: {lines} lines" for path, lines in counts.items() if lines > LIMIT]
    assert not long, f"more than {LIMIT} lines, split by idea:\n" + "\n".join(long)


def test_the_list_of_distributions_is_complete() -> None:
    assert {"quabla-core", "quabla-cpu", "quabla-mlx"} <= {folder.name for folder in DISTRIBUTIONS}
