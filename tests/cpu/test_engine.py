"""The native engine."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from quabla_cpu import engine, text


def module_text(number: float, symbol: str = "f") -> str:
    b = text.Module(engine.function_attributes()).function(symbol, "double", ["double"])
    b.ret(b.fmul(b.arguments[0], text.constant("double", number)))
    return b.module.text()


def callable_of(library: engine.Library, symbol: str = "f"):
    return ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(library.address(symbol))


def test_import_is_light():
    code = "import sys, quabla_cpu.engine, quabla_cpu.text; print('llvmlite' in sys.modules, 'scipy' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment()
    )
    assert out.stdout.split() == ["False", "False"]


def _environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_host_is_described():
    host = engine.host()
    assert host.vector_bytes in (16, 32, 64)
    assert host.lanes(8) == host.vector_bytes // 8
    flags = open("/proc/cpuinfo").read() if sys.platform == "linux" else ""
    if "avx512f" in flags:
        assert host.vector_bytes == 64 and host.has_fma


def test_bad_text_is_refused_with_a_reason():
    with pytest.raises(ValueError, match="report"):
        engine.compile("this is not IR", cache=False)
    # Unverified, this call would end the process.
    malformed = """
        declare double @llvm.sqrt.f64()
        define double @f() {
            %1 = call double @llvm.sqrt.f64()
            ret double %1
        }
    """
    with pytest.raises(ValueError):
        engine.compile(malformed, cache=False)


def test_missing_symbol_is_named(capfd):
    b = text.Module().function("f", "double", [])
    b.ret(b.call("no_such_function_anywhere", "double"))
    code = engine.compile(b.module.text(), cache=False)
    with pytest.raises(ValueError, match="cannot link") as caught:
        engine.link([code], ["f"])
    assert "no_such_function_anywhere" in str(caught.value) + capfd.readouterr().err
    with pytest.raises(ValueError, match="cannot link"):
        engine._link([code], ["f"], {}, ())
    assert "no_such_function_anywhere" in capfd.readouterr().err


def test_imports_reach_other_libraries_and_callbacks():
    seen = []
    callback = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda x: seen.append(x) or x + 1)
    first = engine.link([engine.compile(module_text(3.0, "g"), cache=False)], ["g"])
    b = text.Module().function("f", "double", ["double"])
    b.ret(b.call("back", "double", b.call("g", "double", b.arguments[0])))
    imports = {"back": ctypes.cast(callback, ctypes.c_void_p).value, "g": first.address("g")}
    library = engine.link([engine.compile(b.module.text(), cache=False)], ["f"], imports, keep=(first,))
    del first
    gc.collect()
    assert callable_of(library)(2.0) == 7.0 and seen == [6.0]


def test_several_objects_link_together():
    b = text.Module().function("f", "double", ["double"])
    b.ret(b.call("g", "double", b.arguments[0]))
    objects = [engine.compile(source, cache=False) for source in (b.module.text(), module_text(5.0, "g"))]
    assert callable_of(engine.link(objects, ["f"]))(2.0) == 10.0


def executable_bytes() -> int:
    """The size of all executable mappings that belong to no file."""
    total = 0
    for line in open("/proc/self/maps"):
        fields = line.split()
        if "x" in fields[1] and len(fields) == 5:
            low, high = (int(address, 16) for address in fields[0].split("-"))
            total += high - low
    return total


def test_memory_is_freed_and_kept_code_survives_a_new_jit(monkeypatch):
    monkeypatch.setattr(engine, "_LINKS_PER_JIT", 5)
    image = engine.compile(module_text(2.0), cache=False)
    kept = [engine.link([image], ["f"]) for _ in range(12)]
    assert all(callable_of(library)(4.0) == 8.0 for library in kept)

    if sys.platform == "linux":
        monkeypatch.setattr(engine, "_LINKS_PER_JIT", 1000)
        before = executable_bytes()
        more = [engine.link([image], ["f"]) for _ in range(100)]
        during = executable_bytes()
        del more
        gc.collect()
        assert during >= before + 100 * 4096 and executable_bytes() < before + 20 * 4096
    assert callable_of(kept[0])(1.0) == 2.0


def test_threads_compile_and_run_together():
    results: dict[int, float] = {}

    def work(k: int) -> None:
        for repeat in range(5):
            library = engine.link([engine.compile(module_text(k + repeat / 8), cache=False)], ["f"])
            results[k] = callable_of(library)(2.0)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {k: 2 * (k + 0.5) for k in range(4)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_can_compile():
    library = engine.link([engine.compile(module_text(2.0), cache=False)], ["f"])
    child = os.fork()
    if child == 0:
        try:
            fresh = engine.link([engine.compile(module_text(7.0), cache=False)], ["f"])
            os._exit(0 if callable_of(fresh)(1.0) == 7.0 and callable_of(library)(1.0) == 2.0 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_equal_text_is_compiled_once_without_a_disk_too(monkeypatch):
    monkeypatch.setenv("QUABLA_CACHE", "0")
    compiled = []
    inner = engine._compile
    monkeypatch.setattr(engine, "_compile", lambda *arguments: compiled.append(1) or inner(*arguments))
    first = engine.compile(module_text(0.3125))
    assert engine.compile(module_text(0.3125)) == first and len(compiled) == 1
    assert engine.compile(module_text(0.3125), passes=False) and len(compiled) == 2
    monkeypatch.setattr(engine, "_MOST_RECENT", 3 * len(first))
    for k in range(9):
        engine.compile(module_text(0.3125 + k))
    assert sum(map(len, engine._recent.values())) <= 3 * len(first)


def test_a_program_of_forty_nodes_compiles_quickly():
    """A guard against a pipeline that compiles many times slower, with a wide margin for busy machines."""
    width = engine.host().lanes(8)
    kind = text.vector("double", width)
    module = text.Module(engine.function_attributes())
    b = module.function("f", "void", [("ptr", "noalias"), ("ptr", "noalias"), "i64"])
    x, out, n = b.arguments
    with b.loop(0, n, width) as i:
        value = b.load(kind, b.gep("double", x, i))
        for k in range(20):
            value = b.fadd(b.fmul(value, value), text.constant(kind, k / 7))
        b.store(value, b.gep("double", out, i))
    b.ret()
    source = module.text()
    best = np.inf
    for _ in range(5):
        start = time.process_time()
        engine.link([engine.compile(source, cache=False)], ["f"])
        best = min(best, time.process_time() - start)
    assert best < 0.1
