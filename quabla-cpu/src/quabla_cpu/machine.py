"""The machine that code is compiled for, and how a process recognises it without asking LLVM.

LLVM knows the processor best, but loading it takes longer than all else that a process with a filled cache does before
its first result. So what it said is kept on disk, by what the system says of the processor and by the files of llvmlite
and of Quabla, together with a tiny compiled function: calling that one shows that code can run here.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import sys
import time
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

from quabla_cpu import diskcache
from quabla_cpu.image import Image

__all__ = ["Host", "Machine", "recall", "remember", "stamp"]


class Host(NamedTuple):
    """The machine that code is compiled for.

    Attributes:
        cpu: LLVM's name of the CPU.
        features: LLVM's feature string.
        vector_bytes: The width of a vector register in bytes: 64, 32 or 16.
        has_fma: Whether `fma` is one instruction (else it is a slow library call).
        triple: The target triple.
        llvm_version: The version of LLVM, such as `"22.1.0"`.
    """

    cpu: str
    features: str
    vector_bytes: int
    has_fma: bool
    triple: str
    llvm_version: str

    def lanes(self, element_bytes: int) -> int:
        """How many elements of that many bytes a vector register holds."""
        return self.vector_bytes // element_bytes


class Machine(NamedTuple):
    """What an earlier process found out.

    Attributes:
        host: the machine.
        identity: what else object code depends on besides the text, as one string.
        check: a compiled function that adds 1 to an integer.
    """

    host: Host
    identity: str
    check: Image


@lru_cache(maxsize=1)
def stamp() -> str | None:
    """Everything that generated code depends on, the program aside: processor, llvmlite, the files of Quabla.

    None where it cannot be told without LLVM (not Linux, no llvmlite, sources in an archive), and where a file was
    changed while this process ran: it may have imported what was there before.
    """
    processor = _processor()
    llvmlite = find_spec("llvmlite")
    if not processor or llvmlite is None or not llvmlite.origin:
        return None
    core = find_spec("quabla")
    if core is None or not core.origin:
        return None
    folder = os.path.dirname(llvmlite.origin)
    try:
        files = [_files(folder, nested=False), _files(os.path.join(folder, "binding"), nested=False)]
        files += [_files(os.path.dirname(path), nested=True) for path in (core.origin, __file__)]
        if _started() < max(newest for _, newest in files) <= time.time():
            return None
    except (OSError, ValueError):
        return None
    return "\n".join([processor, *(line for line, _ in files)])


def _started() -> float:
    """When this process began, or imported this module if that was earlier, as in a child after a fork."""
    with open("/proc/self/stat", "rb", buffering=0) as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return min(time.time() - age, _IMPORTED)


_IMPORTED = time.time()


def _processor() -> str:
    """What Linux says of the first processor that stays the same while it runs."""
    if sys.platform != "linux":
        return ""
    try:
        # Made while it is read, so that all of it takes long on a machine of many cores.
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            lines = file.read(16384).split(b"\n\n")[0].decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    kept = [line for line in lines if not line.startswith(_CHANGING)]
    return "\n".join([os.uname().machine, *kept]) if any(line.startswith("flags") for line in kept) else ""


_CHANGING = (
    "processor",
    "cpu MHz",
    "bogomips",
    "physical id",
    "siblings",
    "core id",
    "cpu cores",
    "apicid",
    "initial",
)


def _files(folder: str, nested: bool) -> tuple[str, float]:
    """A line that changes when a file of code in a folder does, and when one did.

    The line holds the number of files, and their sizes and times, added up.
    """
    count = size = times = newest = 0
    folders = [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                name = entry.name
                if name.endswith((".py", ".so")):
                    status = entry.stat()
                    changed = status.st_mtime_ns
                    count += 1
                    size += status.st_size
                    times += changed
                    newest = max(newest, changed)
                elif nested and "." not in name and name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return f"{folder} {count} {size} {times}", newest / 1e9


def recall() -> Machine | None:
    """What an earlier process found out about this machine, or None where none did."""
    mark = stamp() if diskcache.enabled() else None
    found = diskcache.get(diskcache.key("machine", mark)) if mark else None
    if found is None:
        return None
    with contextlib.suppress(ValueError, EOFError, TypeError):  # written by another version of Python, say
        host, identity, check = marshal.loads(found)
        return Machine(Host(*host), identity, Image(*check))
    return None


def remember(machine: Machine) -> None:
    """Keep what this process found out."""
    mark = stamp() if diskcache.enabled() else None
    if mark:
        content = marshal.dumps(((*machine.host,), machine.identity, (*machine.check,)))
        diskcache.put(diskcache.key("machine", mark), content)
