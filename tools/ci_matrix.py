"""Turn ``nox --list --json`` into the matrix of the GitHub workflow.

    python -m nox --list --json | python tools/ci_matrix.py

A session tagged ``everywhere`` runs on Linux, macOS and Windows, every other one on Linux. The rows come from
the sessions themselves, so a session that is added to ``noxfile.py`` is in CI without another edit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

LINUX = "ubuntu-latest"
SYSTEMS = (LINUX, "macos-latest", "windows-latest")
# For sessions that run on no particular Python version.
DEFAULT_PYTHON = "3.11"


def rows(sessions: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """One row for each session and system.

    >>> rows([{"session": "lint", "python": None, "tags": []}])
    [{'session': 'lint', 'python': '3.11', 'os': 'ubuntu-latest'}]
    """
    return [
        {"session": item["session"], "python": item["python"] or DEFAULT_PYTHON, "os": system}
        for item in sessions
        for system in (SYSTEMS if "everywhere" in item["tags"] else (LINUX,))
    ]


def main() -> int:
    """Read the sessions from standard input and print the matrix on one line."""
    print(json.dumps({"include": rows(json.load(sys.stdin))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
