"""The examples run from any folder and find what they look for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.skipif(find_spec("quabla_cpu") is None, reason="quabla-cpu is not installed")
needs_viz = pytest.mark.skipif(
    not (find_spec("matplotlib") and find_spec("tqdm")), reason="the extra `viz` is not installed"
)
PNG = b"\x89PNG\r\n\x1a\n"


def start(name: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """An example, started in a folder."""
    # The sources in use travel along, whether they were installed or put on the path.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONUTF8": "1"}
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def output(name: str, folder: Path, *arguments: str) -> str:
    """What an example prints, once it has ended well."""
    with start(name, folder, *arguments) as process:
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return out


def number(text: str, pattern: str) -> float:
    """The number that a pattern captures."""
    match = re.search(pattern, text)
    assert match, text
    return float(match[1])


def test_at_a_glance(tmp_path: Path) -> None:
    lines = output("at_a_glance.py", tmp_path).splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["w = 3.141593, loss = 1.5e-13"] * 2


def test_the_conductivity_is_found(tmp_path: Path) -> None:
    printed = output("heat_inverse.py", tmp_path)
    assert printed.count("step ") == 6
    assert number(printed, r"off by (\S+)%") < 3.0


@needs_viz
def test_the_network_solves_the_equation_and_is_drawn(tmp_path: Path) -> None:
    printed = output("pinn_poisson.py", tmp_path)
    assert number(printed, r"largest error against the exact solution: (\S+)") < 1e-4
    picture = tmp_path / "pinn_poisson.png"
    assert str(picture.resolve()) in printed
    assert picture.read_bytes().startswith(PNG) and picture.stat().st_size > 20_000


@needs_viz
def test_the_picture_goes_where_it_is_told_and_the_bar_shows_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    errors = []
    for _ in range(2):
        with start("pinn_poisson.py", tmp_path, "--steps=950", "--output=pictures/a.png") as process:
            out, bar = process.communicate(timeout=300)
        assert process.returncode == 0
        errors.append(number(out, r"largest error against the exact solution: (\S+)"))
    assert errors[0] == errors[1]
    assert (tmp_path / "pictures" / "a.png").read_bytes().startswith(PNG)
    assert not (tmp_path / "pinn_poisson.png").exists()
    last = bar.replace("\r", "\n").strip().splitlines()[-1]
    assert re.search(r"loss \S+ +100% .*950/950 steps, \S+ steps/s, 00:00 left", last), last


@needs_viz
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_an_interrupt_stops_early_and_still_draws(tmp_path: Path) -> None:
    # Where a shell runs the tests in the background, it has interrupts ignored, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        started = start("pinn_poisson.py", tmp_path, "--steps=1000000000")
    finally:
        signal.signal(signal.SIGINT, before)
    with started as process:
        assert process.stderr is not None
        seen = ""
        while "loss" not in seen:  # it trains
            seen += process.stderr.read(1)
        process.send_signal(signal.SIGINT)
        out, bar = process.communicate(timeout=60)
    assert process.returncode == 0, bar
    assert "stopped after" in out + bar and "largest error" in out
    assert (tmp_path / "pinn_poisson.png").read_bytes().startswith(PNG)


@needs_viz
@pytest.mark.parametrize("arguments", [["--steps=0"], ["--output=nowhere/a.png"]])
def test_wrong_options_are_refused_before_the_work(arguments: Sequence[str], tmp_path: Path) -> None:
    with start("pinn_poisson.py", tmp_path, *arguments) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and arguments[0].split("=")[0] in errors
