"""`python -m quabla new-backend`: what it refuses, and that what it writes works as written."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from quabla import __main__, doctor
from quabla.backends.hookspec import HOOKSPEC_VERSION
from quabla.testing.new_backend import TEMPLATE, files, main, why_not, write
from tests.core.test_conformance import PLUGIN

NAMES = ("q", "sand_clock", "device_with_a_rather_long_name")


def have(*modules: str) -> bool:
    return all(importlib.util.find_spec(name) for name in modules)


# --- what it refuses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["", "Sand", "2d", "sand-clock", "sand clock", "../sand", "sand/x", "sand.x", "_sand", "größe", "sand\n", "class",
     "match", "json", "cpu", "cuda", "mlx", "reference", "quabla", "numpy", "tests"],
)  # fmt: skip
def test_names_that_will_not_do(name: str, tmp_path: Path, capsys: Any) -> None:
    assert why_not(name)
    with pytest.raises(ValueError, match="cannot be the name of a device"):
        write(name, tmp_path)
    if name:
        assert main(["--into", str(tmp_path), "--", name]) == 2
        assert "cannot be the name of a device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["folder", "file", "broken link"])
def test_what_is_there_stays(kind: str, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "sand-quabla"
    if kind == "folder":
        target.mkdir()
        (target / "README.md").write_text("mine")
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))
    assert main(["sand", "--into", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    if kind == "folder":
        assert (target / "README.md").read_text() == "mine"


def test_it_is_a_command(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    assert __main__.main(["new-backend", "sand", "--into", str(tmp_path / "new" / "folder")]) == 0
    said = capsys.readouterr().out
    target = tmp_path / "new" / "folder" / "sand-quabla"
    assert str(target) in said and "--device=sand" in said and target.is_dir()
    monkeypatch.chdir(tmp_path)
    assert __main__.main(["new-backend", "sand"]) == 0
    assert (tmp_path / "sand-quabla" / "pyproject.toml").is_file()


# --- what it writes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_one_of_the_device(name: str, tmp_path: Path) -> None:
    target = write(name, tmp_path)
    written = {p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()}
    assert written == {path.as_posix() for path, _ in files(name)}
    package = f"src/{name}_quabla"
    assert written >= {
        "pyproject.toml", "README.md", "LICENSE", "noxfile.py", ".github/workflows/ci.yml", f"tests/test_{name}.py",
        "tests/test_conformance.py", f"{package}/plugin.py", f"{package}/py.typed",
    }  # fmt: skip
    for path in target.rglob("*"):
        if path.is_file():
            text = path.read_text("utf-8")
            assert "abacus" not in text and "CORE_VERSION" not in text, path
            if path.suffix == ".py":
                ast.parse(text)
    project = tomllib.loads((target / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["quabla.backends"] == {name: f"{name}_quabla.plugin"}
    assert f"quabla-core>={doctor.VERSION}" in project["dependencies"] and "license" not in project
    # Distributions that are called quabla-something are taken for Quabla's own.
    assert project["name"] == f"{name}-quabla"
    plugin = (target / package / "plugin.py").read_text("utf-8")
    assert f"\nquabla_hookspec_version = {HOOKSPEC_VERSION} " in plugin


@pytest.mark.skipif(not have("ruff"), reason="needs ruff")
@pytest.mark.parametrize("name", NAMES)
def test_it_passes_its_own_linter(name: str, tmp_path: Path) -> None:
    target = write(name, tmp_path)
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
            cwd=target, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not have("mypy"), reason="needs mypy")
def test_its_types_are_right(tmp_path: Path) -> None:
    target = write("sand", tmp_path)
    core = str(TEMPLATE.parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--explicit-package-bases", "--follow-imports=silent",
         "--config-file=", "src/sand_quabla"],
        cwd=target, capture_output=True, text=True, check=False,
        env={**os.environ, "MYPYPATH": os.pathsep.join([core, str(target / "src")])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not have("nox"), reason="needs nox")
def test_its_ci_has_a_job_for_each_session(tmp_path: Path) -> None:
    target = write("sand", tmp_path)
    listed = subprocess.run(
        [sys.executable, "-m", "nox", "--list", "--json"],
        cwd=target, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    workflow = (target / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    script = re.search(r"python -c '\n(.*?)' >>", workflow, re.DOTALL)
    assert script is not None
    code = "\n".join(line[10:] for line in script[1].splitlines())
    made = subprocess.run(
        [sys.executable, "-c", code], input=listed, capture_output=True, text=True, check=True
    ).stdout
    rows = json.loads(made.removeprefix("matrix="))["include"]
    assert {"session": "tests-3.12", "python": "3.12"} in rows and {
        "session": "lint",
        "python": "3.11",
    } in rows
    assert len(rows) == 4


def test_every_file_of_the_template_is_written() -> None:
    assert all(p.suffix == ".in" for p in TEMPLATE.rglob("*") if p.is_file())
    assert len(list(files("sand"))) == len([p for p in TEMPLATE.rglob("*.in") if p.is_file()]) > 12


# --- that it works ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a new distribution, and the interpreter of an environment in which it is installed to be edited."""
    if not have("pip", "hatchling", "editables"):
        pytest.skip("needs pip, hatchling and editables")
    folder = tmp_path_factory.mktemp("new")
    target = write("sand_clock", folder)
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    # What runs these tests is there, too: Quabla, NumPy, pytest and the builder.
    (Path(found) / "outer.pth").write_text("\n".join(p for p in sys.path if p), "utf-8")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    command += ["--disable-pip-version-check", "--no-build-isolation", "-e", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target, python


def start(installed: tuple[Path, Path], *arguments: str) -> str:
    target, python = installed
    done = subprocess.run(
        [python, "-m", *arguments], cwd=target, capture_output=True, text=True, encoding="utf-8",
        timeout=600, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_tests_and_part_of_the_suite_pass(installed: tuple[Path, Path]) -> None:
    chosen = "test_sand_clock or promise or training or (op-tanh and value) or scan"
    out = start(
        installed, "pytest", "-q", "-p", "no:cacheprovider", *PLUGIN, "-k", chosen, "--quabla-report=r.json"
    )
    assert " passed" in out and "failed" not in out
    report = json.loads((installed[0] / "r.json").read_text("utf-8"))
    assert report["device"] == "sand_clock" and report["conforms"]
    assert report["plugin"] == "'sand_clock' of sand_clock-quabla 0.1.0"


@pytest.mark.slow
def test_it_passes_the_conformance_suite(installed: tuple[Path, Path]) -> None:
    out = start(installed, "quabla", "conformance", "--device=sand_clock")
    assert out.splitlines()[-1].startswith("sand_clock conforms: ")
