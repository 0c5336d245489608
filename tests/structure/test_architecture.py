"""docs/architecture.md agrees with the tables and files that it describes."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import quabla as qb

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
CORE = ROOT / "quabla-core" / "src" / "quabla"
CPU = ROOT / "quabla-cpu" / "src" / "quabla_cpu"
MLX = ROOT / "quabla-mlx" / "src" / "quabla_mlx"


def section(title: str) -> str:
    """The text of a section, without those below it."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def rows(title: str) -> list[list[str]]:
    """The cells of the table of a section, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def floors() -> Any:
    spec = importlib.util.spec_from_file_location("floors", Path(__file__).with_name("test_floors.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_floors_are_those_of_the_test() -> None:
    tested = floors()
    stated: dict[str, int] = {}
    for floor, files, _ in rows("Floors"):
        for name in re.findall(r"`([^`]+)`", files):
            assert (CORE / name).exists(), name
            module = name.removesuffix("/").removesuffix(".py").replace("/", ".")
            stated["" if module == "__init__" else module] = int(floor)
    assert {int(floor) for floor, *_ in rows("Floors")} == set(tested.FLOORS.values())
    for module in tested.MODULES:
        if tested.floor_of(module) is None:
            continue  # test_floors.py reports it
        covering = [name for name in stated if module == name or module.startswith(f"{name}.")]
        assert covering, f"{module} is in no line of the table"
        assert stated[max(covering, key=len)] == tested.floor_of(module), module


def test_errors_are_those_of_the_module() -> None:
    stated = {name.strip("`"): also for name, also, _ in rows("Errors")}
    real = set(qb.errors.__all__) - {"QuablaError"}
    assert set(stated) == real
    for name, also in stated.items():
        bases = {f"`{base.__name__}`" for base in getattr(qb.errors, name).__bases__} - {"`QuablaError`"}
        assert set(also.split(", ")) == bases


def test_fields_of_the_op_record_are_all_there() -> None:
    stated = re.findall(r"`(\w+)`", " ".join(names for names, _ in rows("One op, one record")))
    fields = set(qb.ir.op.Op.__dataclass_fields__)
    assert len(stated) == len(set(stated))
    assert fields - set(stated) == {"name", "family", "multiple", "inferred"} and set(stated) <= fields


def test_files_that_it_names_exist() -> None:
    named = {name for name in re.findall(r"`([\w/-]+(?:\.py|/))`", PAGE) if name != "/"}
    here = [CORE, CPU, MLX, ROOT, ROOT / "tests" / "structure"]
    inside = [*here, *(folder for folder in CORE.iterdir() if folder.is_dir())]
    missing = [name for name in named if not any((folder / name).exists() for folder in inside)]
    assert len(named) > 40 and not missing
