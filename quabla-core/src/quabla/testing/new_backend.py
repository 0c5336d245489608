"""`python -m quabla new-backend NAME`: a distribution with a backend that works, to start from.

The files are those that `docs/writing-a-backend.md` arrives at, for a device called abacus; here it gets another name.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from quabla.backends.registry import ADVICE, FALLBACK
from quabla.doctor import VERSION

__all__ = ["main", "write"]

TEMPLATE = Path(__file__).parents[1] / "template"
DEVICE = "abacus"  # the device of the template

# Names that devices of this project have, or that modules of a distribution would hide.
TAKEN = {FALLBACK, *ADVICE, "quabla", "tests", "test", "numpy"}


def why_not(name: str) -> str:
    """What is wrong with the name of a device; empty where nothing is."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return "a name begins with a small letter and goes on with small letters, digits and _"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in sys.stdlib_module_names:
        return "it is a word or a module of Python"
    if name in TAKEN:
        return "it is taken"
    return ""


def files(name: str) -> Iterator[tuple[Path, str]]:
    """The path within the distribution and the text of each file."""
    for path in sorted(TEMPLATE.rglob("*.in")):
        relative = path.relative_to(TEMPLATE).with_suffix("").as_posix()
        relative = relative.replace("src/package", f"src/{name}_quabla").replace(DEVICE, name)
        text = path.read_text(encoding="utf-8").replace(DEVICE, name).replace("CORE_VERSION", VERSION)
        yield Path(relative), text


def write(name: str, folder: Path) -> Path:
    """Write the distribution for a device.

    Args:
        name: of the device.
        folder: where the folder of the distribution is made.

    Returns:
        The folder of the distribution.

    Raises:
        ValueError: the name is not one for a device.
        FileExistsError: there is something in the way; nothing has been written.
    """
    problem = why_not(name)
    if problem:
        raise ValueError(f"{name!r} cannot be the name of a device: {problem}")
    target = folder / f"{name}-quabla"
    if target.exists() or target.is_symlink():
        raise FileExistsError(f"{target} is there already, and nothing in it is touched; move it away")
    for relative, text in files(name):
        path = target / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return target


def main(arguments: Sequence[str]) -> int:
    """Write a distribution and say what to do with it; 2 where the name or the folder will not do."""
    parser = argparse.ArgumentParser(prog="python -m quabla new-backend", description=__doc__)
    parser.add_argument("name", help='of the device, as in jit(device="NAME")')
    parser.add_argument("--into", metavar="FOLDER", type=Path, default=Path(), help="where to make it")
    options = parser.parse_args(arguments)
    try:
        target = write(options.name, options.into)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(
        f"{target} holds a backend that runs programs with NumPy. Next:\n"
        f"  python -m pip install -e {target}\n"
        f"  python -m quabla conformance --device={options.name}\n"
        f"  python -m pytest {target}\n"
        "Its README.md says what to replace; choose a licence before you publish it."
    )
    return 0
