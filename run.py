"""Set up this checkout and run something in it; needs Python 3.11 or newer and nothing else.

    python3 run.py pinn     set up, then train the physics-informed example
    python3 run.py tests    set up with the test tools, then run the test suite

Further arguments go to the example or to pytest: ``python3 run.py tests -k grad``. Everything is installed
into the folder ``.venv`` beside this file, so the system's Python stays as it is. A set-up that was
interrupted is found out and done again; one that is complete is reused until a ``pyproject.toml`` changes.
"""

import sys

if sys.version_info < (3, 11):
    sys.exit(
        "Quabla needs Python 3.11 or newer, and this is Python %d.%d (%s).\n"
        "Run the same command with a newer one, for example: python3.12 run.py pinn"
        % (sys.version_info[0], sys.version_info[1], sys.executable)
    )

import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".venv"
DISTRIBUTIONS = ("quabla-core", "quabla-cpu")
OPTIONAL = ("quabla-mlx",)  # backends for some machines only; the tests of one that is not there are skipped

# What each command installs beside the distributions: extras of the metapackage and groups of its pyproject.
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pinn": (("viz",), ()),
    "tests": (("viz",), ("test",)),
}


class SetupError(Exception):
    """Something about this machine stops the set-up; the text says what to do about it."""


class Stamp:
    """What `.venv` holds, written inside it: which parts are complete, for which pyproject files.

    The stamp says "unfinished" from before the folder is filled until an installation has ended well, so that
    whatever stops the program in between, the next run sees it. A folder without a stamp is somebody else's.
    """

    def __init__(self, environment: Path) -> None:
        self.path = environment / "quabla-setup.json"

    def read(self) -> dict[str, Any] | None:
        """The stamp's content; None where there is no stamp; unfinished where it cannot be read."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {"finished": False}
        return content if isinstance(content, dict) else {"finished": False}

    def write(self, *, finished: bool, parts: Sequence[str], key: str, made_here: bool) -> None:
        """Replace the stamp in one step, so that it is never half written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"finished": finished, "parts": sorted(parts), "key": key, "made_here": made_here}
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(content), encoding="utf-8")
        os.replace(beside, self.path)


def setup_key(root: Path) -> str:
    """A hash of everything that decides what is installed: the pyproject files and the Python version."""
    digest = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for folder in (".", *DISTRIBUTIONS, *OPTIONAL):
        digest.update((root / folder / "pyproject.toml").read_bytes())
    return digest.hexdigest()[:16]


def python_of(environment: Path) -> Path:
    """The interpreter inside a virtual environment."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def works(command: Sequence[str | Path]) -> bool:
    """Whether a command starts and ends well; its output is dropped."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def create(environment: Path) -> None:
    """Fill the folder with a virtual environment, with pip inside where the standard library can do that.

    Debian and its relatives ship ``venv`` without ``ensurepip``; there the environment is made without pip
    and `installer` reaches into it from outside.
    """
    if works([sys.executable, "-c", "import venv, ensurepip"]) and works(
        [sys.executable, "-m", "venv", environment]
    ):
        return
    if works([sys.executable, "-m", "venv", "--without-pip", environment]):
        return
    if shutil.which("uv") and works(
        ["uv", "venv", "--allow-existing", "--python", sys.executable, environment]
    ):
        return
    raise SetupError(
        f"{sys.executable} cannot make a virtual environment.\n"
        "On Debian or Ubuntu: apt install python3-venv. Elsewhere: install Python from python.org."
    )


def installer(environment: Path) -> list[str]:
    """The beginning of a command that installs into the environment: by its own pip, by ours, or by uv."""
    python = str(python_of(environment))
    if works([python, "-m", "pip", "--version"]):
        return [python, "-m", "pip", "install"]
    if works([sys.executable, "-m", "pip", "--python", python, "--version"]):
        return [sys.executable, "-m", "pip", "--python", python, "install"]
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", python]
    raise SetupError(
        f"{sys.executable} has neither ensurepip nor pip, and there is no uv.\n"
        "On Debian or Ubuntu: apt install python3-venv. Elsewhere: install pip or uv."
    )


def requirements(root: Path, part: str) -> list[str]:
    """Arguments for the installer: ours by path, all in one call, so that the exact pins find each other."""
    extras, groups = PARTS[part]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    listed = [entry for group in groups for entry in project["dependency-groups"][group]]
    metapackage = f"{root}[{','.join(extras)}]" if extras else str(root)
    paths = [str(root / name) for name in DISTRIBUTIONS] + [metapackage]
    return [argument for path in paths for argument in ("-e", path)] + listed


@contextmanager
def clock(message: str) -> Iterator[None]:
    """Show the message with the seconds that have passed; a plain line where the output is no terminal."""
    if not sys.stderr.isatty():
        print(message, file=sys.stderr, flush=True)
        yield
        return
    start, over = time.monotonic(), threading.Event()

    def tick() -> None:
        while not over.wait(1.0):
            print(f"\r{message} {time.monotonic() - start:.0f} s", end="", file=sys.stderr, flush=True)

    print(message, end="", file=sys.stderr, flush=True)
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        print(f"\r{message} {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def install(environment: Path, root: Path, part: str) -> None:
    """Install a part; raise `SetupError` with the installer's last lines if that fails."""
    command = [*installer(environment), "--quiet", *requirements(root, part)]
    with clock(f"Installing what `{part}` needs into {environment.name} (a minute or two at first) ..."):
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        last = "\n".join(done.stdout.decode(errors="replace").splitlines()[-25:])
        raise SetupError(f"The installation failed. Is there a network? The last lines were:\n\n{last}")
    if part == "tests":
        for name in OPTIONAL:
            if not works([*installer(environment), "--quiet", "-e", root / name]):
                print(f"{name} has no wheels for this machine; its tests are skipped.", file=sys.stderr)


def prepare(
    part: str,
    root: Path = ROOT,
    environment: Path = ENVIRONMENT,
    create: Callable[[Path], None] = create,
    install: Callable[[Path, Path, str], None] = install,
) -> Path:
    """Bring the environment to the state that a command needs and return its interpreter.

    An environment of our own that is unfinished, broken or made for other pyproject files is made anew. One
    that somebody else put there (uv, an editor) is used and never removed.
    """
    stamp, key = Stamp(environment), setup_key(root)
    found = stamp.read()
    made_here = not environment.exists() if found is None else bool(found.get("made_here", True))
    python = python_of(environment)

    if found and found.get("finished") and found.get("key") == key and works([python, "-c", "import sys"]):
        parts: list[str] = [str(name) for name in found.get("parts", ())]
        if part in parts:
            return python
    else:
        parts = []
        if made_here and environment.exists():
            print(
                f"Making {environment.name} anew: it was unfinished or out of date.",
                file=sys.stderr,
            )
            shutil.rmtree(environment)

    stamp.write(finished=False, parts=parts, key=key, made_here=made_here)
    if made_here and not python.exists():
        with clock(f"Creating {environment.name} with Python {sys.version.split()[0]} ..."):
            create(environment)
    if not works([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]):
        raise SetupError(
            f"{environment} holds no working Python 3.11 or newer. Move that folder away and run this again."
        )
    install(environment, root, part)
    stamp.write(finished=True, parts=[*parts, part], key=key, made_here=made_here)
    return python


def command_for(part: str, python: Path, root: Path, arguments: Sequence[str]) -> list[str]:
    """The command line that does the work once everything is there."""
    if part == "pinn":
        return [str(python), str(root / "examples" / "pinn_poisson.py"), *arguments]
    return [str(python), "-m", "pytest", *arguments]


def main(arguments: Sequence[str]) -> int:
    """Run one of the two commands and return its exit status."""
    if not arguments or arguments[0] not in PARTS:
        print(__doc__.strip())
        asked_for_help = bool(arguments) and arguments[0] in {"-h", "--help", "help"}
        return 0 if asked_for_help else 2
    part, rest = arguments[0], list(arguments[1:])
    try:
        python = prepare(part)
    except SetupError as problem:
        print(f"\nSet-up stopped. {problem}", file=sys.stderr)
        return 1
    # pytest takes its test folder from the settings only when it starts in the root.
    folder = ROOT if part == "tests" else None
    return subprocess.run(command_for(part, python, ROOT, rest), cwd=folder, check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. The same command goes on from here.")
