"""What was compiled, remembered on disk between processes.

One file per entry, named by the hash of everything that the code depends on, in a folder that only its owner may write:
the bytes are executed. An entry is written under a temporary name and renamed, carries a checksum, and is ignored when
anything about it is wrong. The entries that were used last stay when the folder grows beyond its limit.
`QUABLA_CACHE=0` switches the cache off; `QUABLA_CACHE_DIR` moves it.

The hash is the one that importlib has for source files, twice: 128 bits of SipHash. It has to tell texts apart that
were not made to be alike, and importing hashlib would take longer than all else that happens here. So would pathlib.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from importlib.util import source_hash

__all__ = ["clear", "digest", "directory", "enabled", "get", "key", "put", "switched_off"]

_MAGIC = b"quabla entry 2\n"
_DIGEST = 16
_LIMIT = 256 << 20  # bytes in the folder before the entries that were used longest ago go
_FRESH = 3600  # seconds for which a use of an entry need not be noted again

_folders: dict[str, str | None] = {}  # configured location -> checked folder, None where it cannot be used
_lock = threading.Lock()

if hasattr(os, "register_at_fork"):

    def _renew_lock() -> None:
        global _lock
        _lock = threading.Lock()

    os.register_at_fork(after_in_child=_renew_lock)


def enabled() -> bool:
    """Whether the cache may be used in this process."""
    return not switched_off("QUABLA_CACHE") and directory() is not None


def switched_off(name: str) -> bool:
    """Whether a variable of the environment switches off what is on by default."""
    return os.environ.get(name, "1").lower() in ("0", "off", "false", "no")


def _configured() -> str:
    given = os.environ.get("QUABLA_CACHE_DIR")
    if given:
        return given
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: relative paths are invalid and must be ignored.
    return os.path.join(
        base if os.path.isabs(base) else os.path.join(os.path.expanduser("~"), ".cache"), "quabla"
    )


def directory() -> str | None:
    """The cache folder, made on first use; None where it cannot be made or is not safely ours."""
    location = _configured()
    if location not in _folders:
        _folders[location] = _prepare(location)
    return _folders[location]


def _prepare(location: str) -> str | None:
    folder = os.path.join(location, "cpu")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode):
            return None
        if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o022):
            return None  # somebody else could put code there
    except OSError:
        return None
    return folder


def key(*parts: str) -> str:
    """The name of an entry: a hash over all parts, each with its length, so that no two splits are alike."""
    return _hash(b"".join([b"%d:%s" % (len(part), part) for part in map(str.encode, parts)])).hex()


def digest(content: bytes) -> str:
    """A hash of bytes that stands for them in a key."""
    return _hash(content).hex()


def _hash(content: bytes) -> bytes:
    return source_hash(content) + source_hash(b"again" + content)


def get(name: str) -> bytes | None:
    """The bytes of an entry, or None where there is none or it is damaged."""
    folder = directory()
    if folder is None:
        return None
    path = os.path.join(folder, name)
    try:
        with open(path, "rb", buffering=0) as file:
            content = file.read()
            used = os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST
    body = content[start:]
    # The checksum covers the name too: a renamed entry is as good as a damaged one.
    if content[:start] != _MAGIC + _hash(name.encode() + body) or not body:
        return None
    if abs(time.time() - used) > _FRESH:
        with contextlib.suppress(OSError):  # another process may have deleted it meanwhile
            os.utime(path)
    return body


def put(name: str, body: bytes) -> None:
    """Keep an entry. Failure (a full disk, a read-only folder) is silent: the cache is only a shortcut."""
    folder = directory()
    if folder is None:
        return
    # Nobody else's name, not even that of a process of the same number on another machine that shares the folder.
    temporary = os.path.join(folder, f".new-{os.getpid()}-{threading.get_ident()}-{os.urandom(4).hex()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + _hash(name.encode() + body) + body)
        os.replace(temporary, os.path.join(folder, name))
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        return
    global _written
    with _lock:
        _written += len(body)
        due = _written > _LIMIT // 16
        if due:
            _written = 0
    # Names are hashes, so this is one entry in 256 whatever process writes it: a sweep reads the whole folder.
    if due or name.startswith("00"):
        evict(_LIMIT)


_written = 0  # bytes since this process looked at the size of the folder


def evict(limit: int) -> None:
    """Delete the entries that were used longest ago until at most `limit` bytes remain."""
    folder = directory()
    if folder is None:
        return
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime, status.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= limit:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size


def clear() -> None:
    """Delete all entries."""
    evict(0)
