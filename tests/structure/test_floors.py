"""quabla-core is a house of floors: a file imports only from its own floor and those below it.

The table is the design; `docs/architecture.md` explains it. A new file gets its floor from its folder, or a
line here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "quabla-core" / "src" / "quabla"

# The longest matching name decides: "transforms.jit" before "transforms".
FLOORS: dict[str, int] = {
    # 9: the public namespace, and the command line that reads it
    "": 9,
    "__main__": 9,
    # 8: libraries written with the public transforms
    "optim": 8,
    "distributed": 8,
    "linalg": 8,
    "ode": 8,
    "random": 8,
    "io": 8,
    "testing": 8,
    "doctor": 8,
    # 7: what users call, and the way from a signature to an executable
    "transforms": 7,
    "cache": 7,
    "dispatch": 7,
    "decompose": 7,
    # 6: functions from Program to Program, what turns a call into a Program, and ops that hold programs, whose rules
    # are the transforms of those programs
    "control": 6,
    "transforms.staging": 6,
    "transforms.naming": 6,
    "transforms.forward": 6,
    "transforms.turns": 6,
    "transforms.linearity": 6,
    "transforms.reverse": 6,
    "transforms.batch": 6,
    # 5: the seam to the backends, and what they share
    "backends": 5,
    "lowering": 5,
    # 4: the ops
    "ops": 4,
    # 3: arrays and tracers
    "arrays": 3,
    # 2: the intermediate representation
    "ir": 2,
    # 1: what everything stands on
    "errors": 1,
    "dtypes": 1,
    "shapes": 1,
    "tree": 1,
    "specs": 1,
    "cycles": 1,
    "key_order": 1,
    "typed_repr": 1,
    "spellings": 1,
    "elsewhere": 1,
}


def floor_of(name: str) -> int | None:
    """The floor of a module, named without the leading ``quabla.``; None where the table has no line."""
    parts = name.split(".") if name else []
    for length in range(len(parts), 0, -1):
        floor = FLOORS.get(".".join(parts[:length]))
        if floor is not None:
            return floor
    return FLOORS[""] if not parts else None


def modules(folder: Path) -> dict[str, Path]:
    """Every module of a package: its name below the package, and its file."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = list(path.relative_to(folder).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


def is_type_checking(test: ast.expr) -> bool:
    """Whether an ``if`` asks for ``TYPE_CHECKING``; what stands under it is never run."""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def import_statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import that can run, at the top of the module or inside a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and is_type_checking(child.test):
            for other in child.orelse:
                yield from import_statements(ast.Module(body=[other], type_ignores=[]))
        else:
            yield from import_statements(child)


def imported(name: str, is_package: bool, source: str, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and module (below ``quabla``) of each import of the package's own modules."""
    here = ["quabla", *(name.split(".") if name else [])]
    for statement in import_statements(ast.parse(source)):
        if isinstance(statement, ast.Import):
            targets = [alias.name for alias in statement.names]
        else:
            base = [] if statement.level == 0 else here[: len(here) - statement.level + int(is_package)]
            origin = ".".join([*base, *([statement.module] if statement.module else [])])
            # `from quabla.ir import passes` takes a module where there is one, else a name of the package.
            targets = [
                longer if (longer := f"{origin}.{alias.name}").removeprefix("quabla.") in known else origin
                for alias in statement.names
            ]
        for target in targets:
            if target == "quabla" or target.startswith("quabla."):
                yield statement.lineno, target.removeprefix("quabla").removeprefix(".")


MODULES = modules(CORE)


def test_the_core_has_modules() -> None:
    assert "errors" in MODULES and "ir.program" in MODULES


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_only_from_its_floor_and_below(name: str) -> None:
    path = MODULES[name]
    floor = floor_of(name)
    assert floor is not None, f"give {name} a line in FLOORS"
    upward = [
        f"{path.relative_to(ROOT)}:{line}: floor {floor} imports quabla.{target} of floor {floor_of(target)}"
        for line, target in imported(name, path.name == "__init__.py", path.read_text("utf-8"), MODULES)
        if (floor_of(target) or 0) > floor
    ]
    assert not upward, "\n" + "\n".join(upward)


@pytest.mark.parametrize(
    ("name", "is_package", "source", "expected"),
    [
        ("ir.program", False, "from ..transforms import jit", ["transforms.jit"]),
        ("ir.program", False, "from .op import Op", ["ir.op"]),
        ("ir", True, "from .op import Op", ["ir.op"]),
        ("ops.shape", False, "import quabla.transforms.forward", ["transforms.forward"]),
        ("ops.shape", False, "from quabla import tree, grad", ["tree", ""]),
        ("ops.shape", False, "def f():\n    from quabla.optim import Adam", ["optim"]),
        ("ops.shape", False, "if TYPE_CHECKING:\n    from quabla.optim import Adam", []),
        ("ops.shape", False, "import numpy\nfrom quabla_other import x", []),
    ],
)
def test_the_walk_finds_what_it_should(name: str, is_package: bool, source: str, expected: list[str]) -> None:
    known = dict.fromkeys(["ir.op", "transforms.jit", "transforms.forward", "tree", "optim"], CORE)
    assert [target for _, target in imported(name, is_package, source, known)] == expected


def test_backends_import_no_other_backend_and_the_core_none() -> None:
    packages = {path.name: path for path in ROOT.glob("quabla-*/src/quabla*") if path.is_dir()}
    assert {"quabla", "quabla_cpu", "quabla_mlx"} <= set(packages)
    crossing = []
    for package, folder in packages.items():
        foreign = set(packages) - {package, "quabla"}
        for path in sorted(folder.rglob("*.py")):
            for statement in import_statements(ast.parse(path.read_text("utf-8"))):
                names = (
                    [alias.name for alias in statement.names]
                    if isinstance(statement, ast.Import)
                    else [statement.module or ""]
                )
                crossing += [
                    f"{path.relative_to(ROOT)}:{statement.lineno} imports {name}"
                    for name in names
                    if name.split(".")[0] in foreign
                ]
    assert not crossing, "\n" + "\n".join(crossing)
