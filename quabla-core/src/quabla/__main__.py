"""`python -m quabla`: the commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_USAGE = """usage: python -m quabla doctor [--json]

  doctor   say what is installed, which devices can run, and what to do about those that cannot
"""


def main(arguments: Sequence[str]) -> int:
    """Run a command; 2 if there is no such command."""
    if arguments[:1] == ["doctor"]:
        from quabla.doctor import main as doctor

        return doctor(arguments[1:])
    asked = bool(arguments) and arguments[0] in ("-h", "--help", "help")
    print(_USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
