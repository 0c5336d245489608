"""`python -m quabla doctor`: what is installed, which devices run, and what to do about those that do not."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution, distributions

import numpy as np

from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import trace
from quabla.backends import registry
from quabla.backends.hookspec import HOOKSPEC_VERSION
from quabla.backends.registry import ADVICE, PluginReport
from quabla.errors import QuablaError
from quabla.ops.elementwise import add, mul, tanh

__all__ = ["Device", "Installed", "Report", "examine", "main"]

VERSION = "0.2.0"
MARK = "quabla-monorepo"  # a keyword in the metadata of every distribution of this project


@dataclass(frozen=True)
class Installed:
    """An installed distribution whose name begins with "quabla". `problem` is empty where it is one of ours."""

    name: str
    version: str
    problem: str


@dataclass(frozen=True)
class Device:
    """A device that has been tried: `problem` is empty where a small program ran on it and gave the right numbers."""

    name: str
    listed: bool
    problem: str


@dataclass(frozen=True)
class Report:
    """All that the doctor found.

    Attributes:
        python: its version.
        numpy: its version.
        machine: the system, such as "Linux-6.1-x86_64".
        hookspec: the version of the backend hooks of this quabla-core.
        installed: the distributions of this project, and those that only look like it.
        plugins: every backend plugin.
        devices: every device that a plugin offers, tried.
        default: the name of the default device.
        healthy: whether the default device works.
        absent: well-known devices that no plugin offers, each with what to do.
    """

    python: str
    numpy: str
    machine: str
    hookspec: int
    installed: tuple[Installed, ...]
    plugins: tuple[PluginReport, ...]
    devices: tuple[Device, ...]
    default: str
    healthy: bool
    absent: dict[str, str]


def examine() -> Report:
    """Load every plugin, try every device, and report."""
    plugins = tuple(registry.plugins())
    devices = tuple(_try(plugin, name) for plugin in plugins for name in plugin.devices)
    default = registry.default_device()
    return Report(
        python=f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        numpy=np.__version__,
        machine=platform.platform(),
        hookspec=HOOKSPEC_VERSION,
        installed=tuple(_installed(distributions())),
        plugins=plugins,
        devices=devices,
        default=default,
        healthy=any(d.name in (default, f"{default}:0") and not d.problem for d in devices),
        absent={name: text for name, text in ADVICE.items() if name not in {p.name for p in plugins}},
    )


def _field(dist: Distribution, key: str) -> str:
    return str(dist.metadata[key]) if key in dist.metadata else ""


def _installed(found: Iterable[Distribution]) -> Iterator[Installed]:
    ours: dict[tuple[str, str], Distribution] = {}
    for dist in found:
        name = re.sub(r"[-_.]+", "-", _field(dist, "Name")).lower()
        if name == "quabla" or name.startswith("quabla-"):
            # A folder that stands on the path twice does not hold two distributions.
            ours.setdefault((name, os.path.realpath(str(dist.locate_file("")))), dist)
    times = Counter(name for name, _ in ours)
    for (name, _), dist in sorted(ours.items(), key=lambda item: item[0]):
        problem = ""
        if MARK not in re.split(r"[,\s]+", _field(dist, "Keywords")):
            problem = "is by other authors and only has the name; uninstall it"
        elif dist.version != VERSION:
            problem = f"does not fit to this quabla-core, which is {VERSION}; install both from one checkout"
        elif times[name] > 1:
            problem = "is installed twice; uninstall it until nothing is left, then install it again"
        yield Installed(name, dist.version, problem)


def _try(plugin: PluginReport, device: str) -> Device:
    """Run tanh(x)·x on a device, or x + x if it lacks the ops for that, and compare with NumPy."""
    x = np.linspace(-2.0, 2.0, 5, dtype=np.float32)
    try:
        backend, name = registry.backend_for(device)
        can = backend.capabilities
        if "float32" not in can.dtypes:
            x = x.astype(np.float64)
        operand = wrap(x)
        simple = not {"tanh", "mul"} <= set(can.ops)  # a device of few ops is no broken device
        shown, expected = ("x+x", x + x) if simple else ("tanh(x)*x", np.tanh(x) * x)
        program, _ = trace(lambda v: (add(v, v) if simple else mul(tanh(v), v),), [operand.aval])
        (out,) = backend.compile(backend.lower(program, name))(operand)
        got = out.numpy()
        if got.shape != x.shape or not np.allclose(got, expected, rtol=1e-5, atol=1e-6):
            raise QuablaError(f"{shown} at {x.tolist()} came out as {got.tolist()}")
    # Whatever a device does wrong is what the doctor is asked about.
    except Exception as e:
        return Device(device, not plugin.built_in, f"{type(e).__name__}: {e}")
    return Device(device, not plugin.built_in, "")


def as_text(report: Report) -> str:
    """The report for people."""
    lines = [f"Python   {report.python}", f"NumPy    {report.numpy}", f"machine  {report.machine}"]
    lines += [f"hooks    version {report.hookspec}, for backend plugins", ""]
    lines.append("Distributions")
    for item in report.installed:
        mark = "!!" if item.problem else "ok"
        lines.append(f"  {mark} {item.name} {item.version} {item.problem}".rstrip())
    if not report.installed:
        lines.append("  none is installed: quabla is used from a source folder, where plugins are not found")
    lines += ["", "Plugins"]
    tried = {device.name: device for device in report.devices}
    for plugin in report.plugins:
        bad = plugin.state != "ready" or any(tried[name].problem for name in plugin.devices)
        lines.append(
            f"  {'!!' if bad else 'ok'} {plugin.name}: {plugin.state} "
            f"({plugin.distribution} {plugin.version}, {plugin.value})"
        )
        if plugin.hookspec not in (None, report.hookspec):
            lines.append(f"      hooks version {plugin.hookspec}")
        for name in plugin.devices:
            device = tried[name]
            hidden = "" if device.listed else ", on demand only"
            lines.append(f"      device {name}: {device.problem or 'works' + hidden}")
        if plugin.names:
            lines.append(f"      adds quabla.{', quabla.'.join(plugin.names)}")
        lines += [f"      reason: {plugin.reason}"] if plugin.reason else []
        lines += [f"      remedy: {plugin.remedy}"] if plugin.remedy else []
        lines += [f"      | {line}" for line in plugin.traceback.splitlines()]
    if report.absent:
        lines += ["", "Devices that no plugin offers"]
        lines += [f"  - {name}: {remedy}" for name, remedy in report.absent.items()]
    listed = [d.name for d in report.devices if d.listed and not d.problem]
    lines += ["", f"Devices that run: {', '.join(listed) or 'none but the reference backend'}"]
    lines.append(f"Default device: {report.default}, which {'works' if report.healthy else 'does not work'}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Print the report; 0 if the default device works, else 1."""
    parser = argparse.ArgumentParser(prog="python -m quabla doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args(arguments)
    report = examine()
    text = json.dumps(asdict(report), indent=2) if options.json else as_text(report)
    # A console that cannot show some character must not keep the report from its reader.
    encoding = sys.stdout.encoding or "ascii"
    print(text.encode(encoding, "replace").decode(encoding))
    return 0 if report.healthy else 1
