"""The tutorial `docs/writing-a-backend.md` works as printed, in a folder of its own, and arrives at the template."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quabla.backends.hookspec import HOOKSPEC_VERSION
from quabla.testing.new_backend import files

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "writing-a-backend.md").read_text("utf-8")
BLOCK = re.compile(
    r"(?:<!-- (?P<kind>file|append): (?P<path>\S+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```\n"
    r"(?:\n```text\n(?P<output>.*?)```\n)?",
    re.DOTALL,
)
# Where the backend is what the template writes; after that the page makes it something else.
END_OF_TEMPLATE = "## Something of the device's own"


@dataclass(frozen=True)
class Step:
    """A file to write, a program to run, or a command to give."""

    kind: str
    path: str
    text: str
    output: str | None


def steps(page: str) -> Iterator[Step]:
    for match in BLOCK.finditer(page):
        kind = match["kind"] or {"python": "run", "console": "command"}[match["language"]]
        yield Step(kind, match["path"] or "", match["text"], match["output"])


class Folder:
    """The folder of a reader who does what the page says."""

    def __init__(self, path: Path) -> None:
        self.path, self.site = path / "abacus", path / "site"
        self.path.mkdir()
        self.site.mkdir()

    def take(self, step: Step) -> None:
        if step.kind == "file":
            target = self.path / step.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(step.text, "utf-8")
        elif step.kind == "append":
            target = self.path / step.path
            separator = "" if step.text.startswith("\n") else "\n\n"
            target.write_text(target.read_text("utf-8") + separator + step.text, "utf-8")
        elif step.kind == "run":
            self.start(["-c", step.text], step.output)
        elif step.text == "python -m pip install -e .\n":
            self.install()
        else:
            for line in step.text.splitlines():
                program, *arguments = re.findall(r'"[^"]*"|\S+', line)
                assert program == "python"
                self.start([a.strip('"') for a in arguments], step.output)

    def install(self) -> None:
        """What an editable installation leaves: the metadata, and the source on the path before what is copied."""
        if all(importlib.util.find_spec(name) for name in ("pip", "hatchling")):
            options = [
                "--quiet",
                "--no-index",
                "--no-deps",
                "--no-build-isolation",
                "--disable-pip-version-check",
            ]
            self.start(["-m", "pip", "install", *options, "--target", str(self.site), "."], None)
        else:
            self.install_by_hand()

    def install_by_hand(self) -> None:
        """The same metadata without an installer."""
        project = tomllib.loads((self.path / "pyproject.toml").read_text("utf-8"))["project"]
        info = self.site / f"abacus_quabla-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: {project['version']}\n", "utf-8"
        )
        lines = [
            f"[{group}]" + "".join(f"\n{k} = {v}" for k, v in table.items())
            for group, table in project["entry-points"].items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines), "utf-8")

    def start(self, arguments: list[str], output: str | None) -> None:
        path = [str(self.path / "src"), str(self.site), *(p for p in sys.path if p)]
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            cwd=self.path, capture_output=True, text=True, encoding="utf-8", timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        if output is not None:
            pattern = re.escape(output.strip()).replace(r"\.\.\.", ".*")
            assert re.fullmatch(pattern, done.stdout.strip(), re.DOTALL), f"{done.stdout}\nis not\n{output}"


def test_the_page_has_steps_of_every_kind() -> None:
    kinds = [step.kind for step in steps(PAGE)]
    assert {"file", "append", "run", "command"} == set(kinds) and len(kinds) > 15


@pytest.mark.slow
def test_a_reader_arrives_at_a_backend_that_conforms(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for step in steps(PAGE):
        folder.take(step)
    assert (folder.path / "report.html").is_file()


def test_the_page_arrives_at_the_template(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for step in steps(PAGE.split(END_OF_TEMPLATE)[0]):
        if step.kind in ("file", "append"):
            folder.take(step)
    template = {path.as_posix(): text for path, text in files("abacus")}
    written = {p.relative_to(folder.path).as_posix(): p for p in folder.path.rglob("*") if p.is_file()}
    for name, path in written.items():
        assert path.read_text("utf-8") == template[name], name
    beside = {name for name in set(template) - set(written) if name.startswith("src/")}
    assert beside == {"src/abacus_quabla/py.typed"}


def test_the_version_of_the_hooks_is_the_one_here() -> None:
    assert f"quabla_hookspec_version = {HOOKSPEC_VERSION} " in PAGE


def test_the_public_names_that_it_imports_exist() -> None:
    imported = re.findall(r"^from quabla([\w.]*) import (.+)$", PAGE, re.MULTILINE)
    assert len(imported) > 10
    for module, names in imported:
        found = __import__(f"quabla{module}", fromlist=["x"])
        for name in names.split(", "):
            assert hasattr(found, name), (module, name)
