"""The cache on disk: what is kept, what is ignored, and several processes at once."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time

import pytest

from quabla_cpu import diskcache, engine, text


def module_text(number: float) -> str:
    b = text.Module(engine.function_attributes()).function("f", "double", ["double"])
    b.ret(b.fmul(b.arguments[0], text.constant("double", number)))
    return b.module.text()


def run(library: engine.Library, x: float) -> float:
    return ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(library.address("f"))(x)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("QUABLA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("QUABLA_CACHE", raising=False)
    return tmp_path / "cache" / "cpu"


def test_cache_gives_back_the_same_bytes(folder, monkeypatch):
    source = module_text(11.0)
    built = engine.compile(source)
    (entry,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700

    def refuse(*_):
        raise AssertionError("compiled again")

    monkeypatch.setattr(engine._get_engine().llvm, "parse_assembly", refuse)
    assert engine.compile(source) == built
    assert run(engine.link([built], ["f"]), 2.0) == 22.0
    with pytest.raises(AssertionError):
        engine.compile(module_text(12.0))
    assert entry.name == diskcache.key(engine.identity(), "True", source)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "swap"])
def test_damaged_entries_are_ignored(folder, damage):
    source = module_text(13.0)
    built = engine.compile(source)
    (entry,) = folder.iterdir()
    content = bytearray(entry.read_bytes())
    if damage == "truncate":
        entry.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        entry.write_bytes(b"")
    elif damage == "flip":
        content[-40] ^= 1
        entry.write_bytes(content)
    else:
        other = module_text(14.0)
        engine.compile(other)
        (folder / diskcache.key(engine.identity(), "True", other)).replace(entry)
    assert diskcache.get(entry.name) is None
    assert engine.compile(source) == built
    assert diskcache.get(entry.name) == built  # written anew


def test_cache_can_be_switched_off(folder, monkeypatch):
    monkeypatch.setenv("QUABLA_CACHE", "0")
    engine.compile(module_text(15.0))
    assert not folder.exists()


def test_default_location_follows_xdg(tmp_path, monkeypatch):
    monkeypatch.delenv("QUABLA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert diskcache.directory() == str(tmp_path / "xdg" / "quabla" / "cpu")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert diskcache.directory() == str(tmp_path / "home" / ".cache" / "quabla" / "cpu")


def test_folders_that_others_may_write_are_not_used(tmp_path, monkeypatch):
    shared = tmp_path / "open" / "cpu"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setenv("QUABLA_CACHE_DIR", str(tmp_path / "open"))
    assert diskcache.directory() is None and not diskcache.enabled()
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "cpu").symlink_to(shared)
    monkeypatch.setenv("QUABLA_CACHE_DIR", str(tmp_path / "link"))
    assert diskcache.directory() is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUABLA_CACHE_DIR", str(tmp_path / "file"))
    assert diskcache.directory() is None
    assert engine.compile(module_text(16.0))  # still works


def test_entries_used_longest_ago_go_first(folder):
    for index in range(5):
        diskcache.put(f"{index:064x}", b"x" * 1000)
        os.utime(folder / f"{index:064x}", (time.time() - 1e6 + index,) * 2)
    assert diskcache.get(f"{1:064x}") == b"x" * 1000  # used now, after all the others
    diskcache.evict(3200)
    assert sorted(path.name[-1] for path in folder.iterdir()) == ["1", "3", "4"]
    diskcache.clear()
    assert not list(folder.iterdir())


def test_key_tells_parts_apart():
    assert len({diskcache.key(*parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""))}) == 4


def test_the_folder_stays_bounded(folder, monkeypatch):
    monkeypatch.setattr(diskcache, "_LIMIT", 160_000)
    monkeypatch.setattr(diskcache, "_written", 0)
    for index in range(300):
        diskcache.put(f"{index:032x}", bytes(2000))
        os.utime(folder / f"{index:032x}", (1e9 + index,) * 2)
    kept = sorted(path.name for path in folder.iterdir())
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 180_000
    assert kept[-1] == f"{299:032x}" and kept == [f"{i:032x}" for i in range(300 - len(kept), 300)]


def test_what_a_dead_process_left_is_swept_too(folder):
    diskcache.put("a", b"x")
    left = folder / ".new-1-1-00000000"
    left.write_bytes(bytes(5000))
    os.utime(left, (1e9, 1e9))
    diskcache.evict(1000)
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_entries_may_vanish_at_any_time(folder, monkeypatch):
    for index in range(5):
        diskcache.put(f"{index}", bytes(1000))
    unlink = os.unlink

    def late(path):
        unlink(path)
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "unlink", late)
    diskcache.evict(0)
    assert not list(folder.iterdir())
    assert diskcache.get("0") is None
    os.rmdir(folder)
    diskcache.put("0", b"x")
    diskcache.evict(0)
    assert diskcache.get("0") is None


@pytest.mark.parametrize("number", ["ENOSPC", "EACCES", "EROFS", "EDQUOT"])
def test_a_folder_that_takes_no_file_is_no_error(folder, monkeypatch, number):
    import errno

    diskcache.put("old", b"x")

    def refuse(*_, **__):
        raise OSError(getattr(errno, number), "no")

    monkeypatch.setattr(os, "replace", refuse)
    diskcache.put("new", b"y")
    assert [path.name for path in folder.iterdir()] == ["old"]  # and no temporary file
    monkeypatch.setattr(os, "open", refuse)
    built = engine.compile(module_text(17.0))
    assert run(engine.link([built], ["f"]), 2.0) == 34.0


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of Linux")
def test_a_disk_that_fills_up_while_writing_leaves_nothing(folder, run_python):
    out = run_python(
        "import os, resource\n"
        "from quabla_cpu import diskcache\n"
        "diskcache.put('small', b'x' * 100)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "diskcache.put('large', b'y' * 100_000)\n"
        "print(diskcache.get('small') == b'x' * 100, diskcache.get('large'), os.listdir(diskcache.directory()))"
    ).stdout
    assert out.split("\n")[0] == "True None ['small']"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs owners")
def test_a_folder_of_somebody_else_is_not_used(folder, monkeypatch):
    folder.mkdir(parents=True, mode=0o700)
    if os.getuid() == 0:
        os.chown(folder, 12345, 12345)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert diskcache.directory() is None and not diskcache.enabled()
    assert engine.compile(module_text(18.0)) and not list(folder.iterdir())


def test_a_place_where_no_folder_can_be_made_is_no_error(monkeypatch, run_python):
    monkeypatch.setenv("QUABLA_CACHE_DIR", os.devnull)
    monkeypatch.delenv("QUABLA_CACHE", raising=False)
    out = run_python(
        "import quabla as qb; print(qb.jit(lambda x: x * 3.0)(qb.array(7.0)).item(), 'cpu' in qb.devices())"
    ).stdout
    assert out.split() == ["21.0", "True"]


WRITERS = """
import random, sys
from quabla_cpu import diskcache
rng = random.Random(int(sys.argv[1]))
seen = 0
for _ in range(400):
    name = f"{rng.randrange(6):032x}"
    body = diskcache.get(name)
    if body is not None:
        seen += 1
        assert body == bytes([body[0]]) * (1000 * (1 + body[0])), "a body of two writers"
    if rng.random() < 0.02:
        diskcache.evict(rng.choice([0, 100_000]))
    number = rng.randrange(200)
    diskcache.put(name, bytes([number]) * (1000 * (1 + number)))
print(seen)
"""


def test_many_processes_write_and_read_the_same_entries(folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITERS, str(k)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        for k in range(4)
    ]
    for process in started:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
        assert int(out) > 100  # they did find what others wrote
    assert not [path for path in folder.iterdir() if path.name.startswith(".new")]
