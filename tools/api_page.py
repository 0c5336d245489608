"""Write docs/api.md, the reference of all public names, from their docstrings.

python tools/api_page.py            rewrite docs/api.md
python tools/api_page.py --check    say whether it is up to date; 1 if it is not

A name without a docstring, or of a module that belongs to no subject below, is an error. The build of the manual runs
the check, and then looks for every name among the objects that Sphinx described (docs/conf.py).
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import quabla

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"

# Subject -> the modules whose public names it describes; of two prefixes of a module the longer counts.
SUBJECTS: dict[str, tuple[str, ...]] = {
    "Arrays": ("quabla.arrays", "quabla.shapes", "quabla.dtypes"),
    "Transforms": ("quabla.transforms",),
    "Control flow": ("quabla.control",),
    "Rules of your own": ("quabla.control.custom", "quabla.control.checkpoint"),
    "Programs": ("quabla.transforms.programs", "quabla.transforms.storage", "quabla.transforms.aot"),
    "Devices and diagnosis": ("quabla.backends", "quabla.transforms.nans", "quabla.transforms.explain"),
    "Arithmetic and elementary functions": (
        "quabla.ops.elementwise", "quabla.ops.angles", "quabla.ops.hyperbolic", "quabla.ops.logarithms",
        "quabla.ops.powers", "quabla.ops.rounding", "quabla.ops.special",
    ),
    "Comparisons and logic": ("quabla.ops.compare",),
    "Reductions and statistics": (
        "quabla.ops.reduce", "quabla.ops.norms", "quabla.ops.statistics", "quabla.ops.cumulative", "quabla.ops.softmax",
    ),
    "Shapes and elements": ("quabla.ops.shape", "quabla.ops.padding", "quabla.ops.take", "quabla.ops.diagonals"),
    "Sorting and searching": ("quabla.ops.sort",),
    "Products and linear systems": ("quabla.ops.matmul", "quabla.ops.linalg"),
    "Calculus on samples": ("quabla.ops.calculus", "quabla.ops.interpolate"),
    "Errors": ("quabla.errors",),
}  # fmt: skip
# Modules that are public under their own name, each with an __all__.
MODULES = ("linalg", "tree", "optim", "testing")
# They have the operators and methods of Tensor, which are described there.
WITHOUT_MEMBERS = ("TraceTensor", "TensorView")

HEAD = """<!-- Written by tools/api_page.py from the docstrings. Do not edit: run it again. -->

# Public names

Everything that `import quabla as qb` offers. `from quabla import *` leaves out the names that shadow builtins:
{shadowing}. The examples run in the tests.
"""


def public_names() -> list[str]:
    """The names of `quabla` that were written here, modules apart, in alphabetical order."""
    named = {n for n in vars(quabla) if not n.startswith("_")} | set(quabla.__all__)
    return sorted((n for n in named if _is_public(getattr(quabla, n))), key=lambda n: (n.lower(), n))


def _is_public(thing: Any) -> bool:
    return not isinstance(thing, ModuleType) and _module(thing).split(".")[0] == "quabla"


def _module(thing: Any) -> str:
    """The module that defines a thing, or for a value its class."""
    if inspect.isclass(thing) or inspect.isroutine(thing):
        return str(thing.__module__)
    return type(thing).__module__


def subject_of(name: str, thing: Any) -> str:
    """The subject that describes a name.

    Raises:
        LookupError: there is none.
    """
    module = _module(thing)
    fitting = [
        (len(prefix), subject)
        for subject, prefixes in SUBJECTS.items()
        for prefix in prefixes
        if module == prefix or module.startswith(f"{prefix}.")
    ]
    if not fitting:
        raise LookupError(
            f"quabla.{name} is defined in {module}, which no subject of tools/api_page.py describes"
        )
    return max(fitting)[1]


def directive(qualified: str, thing: Any) -> str:
    """What makes Sphinx describe a name.

    Raises:
        LookupError: it has no docstring of its own.
    """
    if not inspect.isclass(thing) and not inspect.isroutine(thing):
        module, _, name = qualified.rpartition(".")
        return f".. py:data:: {name}\n   :module: {module}\n   :type: {type(thing).__name__}\n\n   {_value(thing)}"
    text = thing.__doc__
    if not text or not text.strip():
        raise LookupError(f"{qualified} has no docstring")
    if inspect.isroutine(thing):
        return f".. autofunction:: {qualified}"
    if issubclass(thing, BaseException):
        return f".. autoexception:: {qualified}\n   :show-inheritance:"
    members = "" if qualified.rpartition(".")[2] in WITHOUT_MEMBERS else "\n   :members:"
    return f".. autoclass:: {qualified}{members}"


def _value(thing: Any) -> str:
    if isinstance(thing, quabla.dtype):
        return f"The element type ``{thing}``, NumPy's ``{thing.numpy}``."
    return f"``{thing!r}``."


def block(directives: Sequence[str]) -> str:
    """The directives as one piece of reStructuredText within the Markdown page.

    >>> print(block([".. autofunction:: quabla.sin"]).replace("`", "'"), end="")
    '''{eval-rst}
    .. autofunction:: quabla.sin
    '''
    """
    return "```{eval-rst}\n" + "\n\n".join(directives) + "\n```\n"


def described() -> Iterator[tuple[str, str, str]]:
    """Heading, qualified name and directive of every public name, in the order of the page."""
    known: dict[str, list[tuple[str, str]]] = {subject: [] for subject in SUBJECTS}
    for name in public_names():
        thing = getattr(quabla, name)
        known[subject_of(name, thing)].append((f"quabla.{name}", directive(f"quabla.{name}", thing)))
    for subject, entries in known.items():
        for qualified, text in entries:
            yield subject, qualified, text
    for short in MODULES:
        module = importlib.import_module(f"quabla.{short}")
        for name in module.__all__:
            qualified = f"quabla.{short}.{name}"
            yield f"quabla.{short}", qualified, directive(qualified, getattr(module, name))


def page() -> str:
    """The whole page."""
    shadowing = ", ".join(f"`{n}`" for n in public_names() if n not in quabla.__all__)
    parts = [HEAD.format(shadowing=shadowing)]
    sections: dict[str, list[str]] = {}
    for heading, _, text in described():
        sections.setdefault(heading, []).append(text)
    for heading, directives in sections.items():
        if heading.startswith("quabla."):
            directives = [f".. automodule:: {heading}", *directives]
        parts.append(f"## {heading}\n\n{block(directives)}")
    return "\n".join(parts)


def main(arguments: Sequence[str]) -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("docs/api.md differs from the public names; run: python tools/api_page.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
