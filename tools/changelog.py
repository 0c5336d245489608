"""Move the fragments of ``changes/`` into the topmost section of CHANGELOG.md.

python tools/changelog.py            rewrite CHANGELOG.md and delete the fragments
python tools/changelog.py --check    only say which file names are wrong
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("added", "changed", "deprecated", "removed", "fixed")


def fragments(folder: Path) -> list[Path]:
    """Every file of the folder except the explanation."""
    return [path for path in sorted(folder.iterdir()) if path.name != "README.md"]


def kind_of(path: Path) -> str | None:
    """The kind in a fragment's name; None where the name is wrong.

    >>> kind_of(Path("scan-reverse.fixed.md"))
    'fixed'
    """
    parts = path.name.split(".")
    return parts[1] if len(parts) == 3 and parts[1] in KINDS and parts[2] == "md" else None


def insert(changelog: str, entries: Mapping[str, Sequence[str]]) -> str:
    """The changelog with the entries added to its first section, below the headings of their kinds.

    >>> print(insert("# Log\\n\\n## 1.0\\n\\n### Added\\n\\n- One.\\n\\n## 0.9\\n", {"added": ["Two."]}))
    # Log
    <BLANKLINE>
    ## 1.0
    <BLANKLINE>
    ### Added
    <BLANKLINE>
    - One.
    - Two.
    <BLANKLINE>
    ## 0.9
    <BLANKLINE>
    """
    head, mark, rest = changelog.partition("\n## ")
    section, next_mark, older = rest.partition("\n## ")
    title, *groups = section.rstrip("\n").split("\n### ")
    found = {group.split("\n", 1)[0].strip().lower(): group.split("\n", 1)[1].strip("\n") for group in groups}
    for kind, texts in entries.items():
        lines = ["- " + text.strip().replace("\n", "\n  ") for text in texts]
        found[kind] = "\n".join([found[kind], *lines] if kind in found else lines)
    body = "".join(f"\n\n### {kind.capitalize()}\n\n{found[kind]}" for kind in KINDS if kind in found)
    return head + mark + title.rstrip("\n") + body + "\n" + next_mark + older


def main(arguments: Sequence[str]) -> int:
    """Check the names, and move the fragments unless only the check was asked for."""
    paths = fragments(ROOT / "changes")
    wrong = [path.name for path in paths if kind_of(path) is None]
    if wrong:
        print(
            f"changes/: name these subject.kind.md, kind one of {', '.join(KINDS)}: {wrong}", file=sys.stderr
        )
        return 1
    if "--check" in arguments or not paths:
        return 0
    entries: dict[str, list[str]] = {}
    for path in paths:
        entries.setdefault(kind_of(path) or "", []).append(path.read_text(encoding="utf-8"))
    changelog = ROOT / "CHANGELOG.md"
    changelog.write_text(insert(changelog.read_text(encoding="utf-8"), entries), encoding="utf-8")
    for path in paths:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
