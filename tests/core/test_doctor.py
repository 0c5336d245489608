"""`python -m quabla doctor`: what it says, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from email.message import Message
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quabla import __main__, doctor
from quabla.backends import registry
from quabla.backends.hookspec import BackendUnavailable, hookimpl
from quabla.backends.loading import Source
from quabla.backends.reference import ReferenceBackend, build

ROOT = Path(__file__).resolve().parents[2]


class Cpu(ReferenceBackend):
    platform = "cpu"


class Lying(Cpu):
    def compile(self, lowered: Any) -> Any:
        return build(lowered.program, lambda node: lambda *arrays: np.zeros_like(arrays[0]))


class Refusing(Cpu):
    def lower(self, program: Any, device: str) -> Any:
        raise RuntimeError("no such instruction")


class Undescribed(Cpu):
    @property
    def capabilities(self) -> Any:
        raise RuntimeError("no description")


def brings(answer: Any, name: str = "cpu") -> Source:
    class Plugin:
        @hookimpl
        def quabla_backend(self) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        @hookimpl
        def quabla_public_names(self) -> Any:
            return {"old_name": 1}

    return Source(name, Plugin, f"acme-{name}", "4.2", "acme.plugin")


def diagnose(capsys: Any, *sources: Source, arguments: tuple[str, ...] = ()) -> tuple[int, str]:
    with registry.override(sources):
        status = __main__.main(["doctor", *arguments])
    return status, capsys.readouterr().out


def test_a_healthy_machine(capsys: Any) -> None:
    status, text = diagnose(capsys, brings(Cpu()))
    assert status == 0
    for part in (
        f"NumPy    {np.__version__}",
        ".".join(map(str, sys.version_info[:3])),
        "ok cpu: ready (acme-cpu 4.2, acme.plugin)",
        "device cpu: works\n",
        "adds quabla.old_name",
        "ok reference: ready",
        "device reference: works, on demand only",
        "Devices that run: cpu\n",
        "Default device: cpu, which works",
    ):
        assert part in text, text
    assert "- cpu:" not in text and "- mlx:" in text


def test_core_alone_works_and_says_what_to_install(capsys: Any) -> None:
    status, text = diagnose(capsys)
    assert status == 0
    assert "Devices that run: none but the reference backend" in text
    assert "Default device: reference, which works" in text
    for name, advice in registry.ADVICE.items():
        assert f"- {name}: {advice}" in text


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (ImportError("libfoo.so.1"), "ImportError: libfoo.so.1"),
        (42, "int, which is no Backend"),
        (None, "nothing to run on"),
        (BackendUnavailable("no driver", "install the driver"), "remedy: install the driver"),
        (Lying(), "came out as [0.0, 0.0, 0.0, 0.0, 0.0]"),
        (Refusing(), "RuntimeError: no such instruction"),
        (Undescribed(), "RuntimeError: no description"),
    ],
)
def test_a_default_device_that_does_not_work(capsys: Any, answer: Any, text: str) -> None:
    status, shown = diagnose(capsys, brings(answer))
    assert status == 1
    assert text in shown and "!! cpu: " in shown and "acme-cpu 4.2" in shown
    assert "Default device: cpu, which does not work" in shown
    assert "Devices that run: none" in shown


def test_a_broken_neighbour_is_shown_and_does_no_harm(capsys: Any) -> None:
    status, text = diagnose(capsys, brings(Cpu()), brings(ValueError("in the plugin"), "box"))
    assert status == 0
    assert "!! box: broken" in text and "reason: ValueError: in the plugin" in text
    assert "| Traceback" in text and "remedy: repair or uninstall acme-box" in text


def test_a_conflict_is_shown(capsys: Any) -> None:
    status, text = diagnose(capsys, brings(Cpu()), brings(Cpu()))
    assert status == 1
    assert text.count("!! cpu: conflict") == 2 and "uninstall all but one" in text


def test_json_says_the_same(capsys: Any) -> None:
    status, text = diagnose(capsys, brings(Cpu()), brings(KeyError("x"), "box"), arguments=("--json",))
    report = json.loads(text)
    assert status == 0 and report["healthy"] is True and report["default"] == "cpu"
    assert {p["name"]: p["state"] for p in report["plugins"]} == {
        "cpu": "ready",
        "box": "broken",
        "reference": "ready",
    }
    assert {d["name"]: (d["listed"], d["problem"]) for d in report["devices"]} == {
        "cpu": (True, ""),
        "reference": (False, ""),
    }
    assert set(report["absent"]) == set(registry.ADVICE) - {"cpu"}


class Fake(Distribution):
    def __init__(self, name: str | None, version: str, keywords: str | None, folder: str = "site") -> None:
        self.folder = folder
        self._message = Message()
        for key, value in (("Name", name), ("Version", version), ("Keywords", keywords)):
            if value is not None:
                self._message[key] = value

    @property
    def metadata(self) -> Any:
        return self._message

    def read_text(self, filename: str) -> str | None:
        return None

    def locate_file(self, path: Any) -> Path:
        return Path(self.folder) / path


def test_foreign_and_stale_distributions_are_told_apart() -> None:
    mark = f"compiler,{doctor.MARK}"
    found = doctor._installed(
        [
            Fake("quabla-core", doctor.VERSION, mark),
            Fake("Quabla", "1.0.2", "science"),
            Fake("quabla_mlx", "1.0", None),
            Fake("quabla-cpu", "0.1.9", mark),
            Fake("quabla-viz", doctor.VERSION, mark),
            Fake("quabla.viz", doctor.VERSION, mark, "elsewhere"),
            Fake("quabla-core", doctor.VERSION, mark),  # its folder stands on the path twice
            Fake("quablalike", "3", None),
            Fake("numpy", "2", None),
            Fake(None, "1", None),
        ]
    )
    problems = [(item.name, item.problem.split(";")[0]) for item in found]
    assert problems == [
        ("quabla", "is by other authors and only has the name"),
        ("quabla-core", ""),
        ("quabla-cpu", f"does not fit to this quabla-core, which is {doctor.VERSION}"),
        ("quabla-mlx", "is by other authors and only has the name"),
        ("quabla-viz", "is installed twice"),
        ("quabla-viz", "is installed twice"),
    ]


def test_version_and_mark_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "quabla-core" / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == doctor.VERSION
    assert doctor.MARK in project["keywords"]


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["nurse"], 2), (["--help"], 0), (["-h"], 0)])
def test_the_command_line_explains_itself(capsys: Any, arguments: list[str], status: int) -> None:
    assert __main__.main(arguments) == status
    shown = capsys.readouterr()
    text = shown.out if status == 0 else shown.err
    assert all(f"\n  {command} " in text for command in __main__._COMMANDS)


def test_a_narrow_console_gets_the_report(tmp_path: Path) -> None:
    """Through `python -m`, in an ASCII console, with a plugin that fails in Greek."""
    info = tmp_path / "acme_greek-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme-greek\nVersion: 1.0\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text("[quabla.backends]\ngreek = acme_greek\n", encoding="utf-8")
    (tmp_path / "acme_greek.py").write_text("raise OSError('δίσκος')\n", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])
    done = subprocess.run(
        [sys.executable, "-m", "quabla", "doctor"],
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "!! greek: broken (acme-greek 1.0, acme_greek)" in done.stdout and "OSError: ??????" in done.stdout
