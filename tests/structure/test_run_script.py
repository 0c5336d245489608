"""run.py: reuse what is right, redo what was interrupted, never remove an environment that others made."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

spec = importlib.util.spec_from_file_location("run_script", ROOT / "run.py")
assert spec is not None and spec.loader is not None
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


class Machine:
    """A copy of the pyproject files, an environment folder, and a count of what was done to it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.environment = folder / "checkout", folder / "checkout" / ".venv"
        for name in (".", *script.DISTRIBUTIONS, *script.OPTIONAL):
            (self.root / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name / "pyproject.toml", self.root / name)
        self.done: list[str] = []
        self.fails = False

    def create(self, environment: Path) -> None:
        python = script.python_of(environment)
        python.parent.mkdir(parents=True)
        # A stand-in that starts this interpreter; enough to answer the questions that run.py asks it.
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
        python.chmod(0o755)
        self.done.append("create")

    def install(self, environment: Path, root: Path, part: str) -> None:
        self.done.append(part)
        if self.fails:
            raise script.SetupError("no network")

    def prepare(self, part: str) -> Any:
        self.done.clear()
        return script.prepare(part, self.root, self.environment, self.create, self.install)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if sys.platform == "win32":
        pytest.skip("the stand-in interpreter is a shell script")
    return Machine(tmp_path)


def test_a_complete_environment_is_reused(machine: Machine) -> None:
    machine.prepare("pinn")
    assert machine.done == ["create", "pinn"]
    machine.prepare("pinn")
    assert machine.done == []
    machine.prepare("tests")
    assert machine.done == ["tests"]
    machine.prepare("pinn")
    assert machine.done == []


def test_a_changed_pyproject_makes_it_anew(machine: Machine) -> None:
    machine.prepare("tests")
    file = machine.root / "quabla-cpu" / "pyproject.toml"
    file.write_text(file.read_text("utf-8") + "\n# changed\n", encoding="utf-8")
    machine.prepare("pinn")
    assert machine.done == ["create", "pinn"]
    machine.prepare("tests")
    assert machine.done == ["tests"]


def test_an_interrupted_set_up_is_done_again(machine: Machine) -> None:
    machine.fails = True
    with pytest.raises(script.SetupError, match="no network"):
        machine.prepare("pinn")
    machine.fails = False
    machine.prepare("pinn")
    assert machine.done == ["create", "pinn"]
    machine.prepare("pinn")
    assert machine.done == []


def test_a_vanished_interpreter_is_noticed(machine: Machine) -> None:
    machine.prepare("pinn")
    script.python_of(machine.environment).unlink()
    machine.prepare("pinn")
    assert machine.done == ["create", "pinn"]


def test_an_environment_of_others_is_used_and_kept(machine: Machine) -> None:
    machine.create(machine.environment)
    (machine.environment / "mine").touch()
    machine.prepare("pinn")
    assert machine.done == ["pinn"]
    file = machine.root / "pyproject.toml"
    file.write_text(file.read_text("utf-8") + "\n# changed\n", encoding="utf-8")
    machine.prepare("pinn")
    assert machine.done == ["pinn"]
    assert (machine.environment / "mine").exists()


def test_a_folder_without_an_interpreter_is_not_removed(machine: Machine) -> None:
    machine.environment.mkdir()
    (machine.environment / "mine").touch()
    with pytest.raises(script.SetupError, match="Move that folder away"):
        machine.prepare("pinn")
    assert (machine.environment / "mine").exists()


def test_ours_go_by_path_and_in_one_call() -> None:
    arguments = script.requirements(ROOT, "tests")
    assert f"{ROOT}[viz]" in arguments and str(ROOT / "quabla-core") in arguments
    assert any(item.startswith("pytest") for item in arguments)
    assert not any(item.startswith("quabla") for item in arguments)


def test_a_backend_without_wheels_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tried: list[list[str]] = []
    fine = subprocess.CompletedProcess([], 0, b"")
    monkeypatch.setattr(script, "installer", lambda environment: ["install"])
    monkeypatch.setattr(script.subprocess, "run", lambda *args, **kwargs: fine)
    monkeypatch.setattr(script, "works", lambda command: tried.append([str(c) for c in command]))
    script.install(tmp_path, ROOT, "pinn")
    assert tried == []
    script.install(tmp_path, ROOT, "tests")
    assert [command[-1] for command in tried] == [str(ROOT / name) for name in script.OPTIONAL]
    assert "quabla-mlx has no wheels for this machine" in capsys.readouterr().err


def test_help_and_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--help"]) == 0
    assert script.main([]) == 2
    assert script.main(["unknown"]) == 2
    assert "python3 run.py pinn" in capsys.readouterr().out


def test_an_old_python_is_told_so_in_a_sentence() -> None:
    """The check stands before everything that an older Python lacks."""
    code = (
        "import sys, runpy; sys.version_info = (3, 9, 1, 'final', 0)\n"
        f"runpy.run_path({str(ROOT / 'run.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Quabla needs Python 3.11 or newer, and this is Python 3.9" in done.stderr
    assert "Traceback" not in done.stderr
