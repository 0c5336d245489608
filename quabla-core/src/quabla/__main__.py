"""`python -m quabla`: the commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

_USAGE = """usage: python -m quabla COMMAND

  doctor [--json]             say what is installed, which devices can run, and what to do about those that cannot
  conformance --device=NAME   examine a device with the suite that every backend has to pass [--json FILE] [--html FILE]
  new-backend NAME            write a distribution with a backend of your own to start from [--into FOLDER]

`python -m quabla COMMAND --help` says more.
"""


# Imported when they are asked for: each needs what the others do not.
_COMMANDS = {
    "doctor": "quabla.doctor",
    "conformance": "quabla.testing.command",
    "new-backend": "quabla.testing.new_backend",
}


def main(arguments: Sequence[str]) -> int:
    """Run a command; 2 if there is no such command."""
    if arguments and arguments[0] in _COMMANDS:
        command: Callable[[Sequence[str]], int] = import_module(_COMMANDS[arguments[0]]).main
        return command(arguments[1:])
    asked = bool(arguments) and arguments[0] in ("-h", "--help", "help")
    print(_USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
