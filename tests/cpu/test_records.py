"""Compiled programs that later processes take from disk."""

from __future__ import annotations

import os
import platform
import sys

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tracer import bind, trace
from quabla.ir.op import Op, Refused
from quabla.shapes import ShapeDtype
from quabla_cpu import diskcache, machine, records
from quabla_cpu.backend import CpuBackend
from quabla_cpu.fingerprint import fingerprint

BACKEND = CpuBackend()
keeps_programs = pytest.mark.usefixtures("keeping")


@pytest.fixture
def keeping():
    if machine.stamp() is None:
        pytest.skip("other systems keep object code alone, and so does a process older than a file of Quabla")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("QUABLA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("QUABLA_CACHE", raising=False)
    return tmp_path / "cache" / "cpu"


def traced(function, *avals):
    return trace(lambda *xs: (function(*xs),), avals)[0]


# ---- recognising a program


X = ShapeDtype((3, 4))


def text_of(function, *avals):
    found = fingerprint(traced(function, *avals))
    assert found is not None
    return found[0], [t.numpy().tobytes() for t in found[1]]


def test_equal_programs_have_equal_fingerprints():
    def f(x):
        return qb.sum(qb.tanh(x) * 2.0, axis=1)

    assert text_of(f, X) == text_of(lambda longer: qb.sum(qb.tanh(longer) * 2.0, axis=1), X)


VARIANTS = {
    "plain": lambda x: qb.sum(x * 2.0, axis=1),
    "number": lambda x: qb.sum(x * 2.0000000000000004, axis=1),
    "axis": lambda x: qb.sum(x * 2.0, axis=0),
    "op": lambda x: qb.max(x * 2.0, axis=1),
    "order": lambda x: qb.sum(2.0 * x, axis=1),
    "twice": lambda x: qb.sum(x * 2.0, axis=1) + 0.0,
    "minus zero": lambda x: qb.sum(x * 2.0, axis=1) + -0.0,
    "constant": lambda x: x * qb.array(np.arange(12.0).reshape(3, 4)),
    "other constant": lambda x: x * qb.array(np.arange(12.0).reshape(3, 4) + np.eye(3, 4) * 1e-15),
    "constant type": lambda x: x * qb.array(np.arange(12.0).reshape(3, 4).astype(bool)).astype(qb.float64),
    "constant shape": lambda x: x * qb.array(np.arange(4.0)),
    "loop": lambda x: qb.fori_loop(0, 3, lambda i, c: c * 2.0, x),
    "longer loop": lambda x: qb.fori_loop(0, 4, lambda i, c: c * 2.0, x),
    "other body": lambda x: qb.fori_loop(0, 3, lambda i, c: c * 3.0, x),
    "body of constants": lambda x: qb.fori_loop(0, 3, lambda i, c: c * i, x),
    "branch": lambda x: qb.cond(qb.sum(x) > 0.0, lambda y: y + 1.0, lambda y: y - 1.0, x),
    "other branch": lambda x: qb.cond(qb.sum(x) > 0.0, lambda y: y - 1.0, lambda y: y + 1.0, x),
}


def test_different_programs_have_different_fingerprints():
    found = {name: text_of(f, X) for name, f in VARIANTS.items()}
    found["float32"] = text_of(lambda x: qb.sum(x * 2.0, axis=1), ShapeDtype((3, 4), qb.float32))
    found["shape"] = text_of(lambda x: qb.sum(x * 2.0, axis=1), ShapeDtype((4, 3)))
    found["weak"] = text_of(lambda x: qb.sum(x * 2.0, axis=1), ShapeDtype((3, 4), qb.float64, weak=True))
    found["swapped"] = text_of(lambda x, y: x - y, X, X)
    found["swapped back"] = text_of(lambda x, y: y - x, X, X)
    found["unused input"] = text_of(lambda x, y: qb.sum(x * 2.0, axis=1), X, X)
    names = list(found)
    alike = [(a, b) for i, a in enumerate(names) for b in names[:i] if found[a] == found[b]]
    assert not alike


def test_what_cannot_be_recognised_has_no_fingerprint():
    assert fingerprint(traced(lambda x: x * float("nan"), X)) is None
    foreign = Op(
        "foreign_double",
        infer=lambda aval: aval,
        evaluate=lambda x: 2 * x,
        jvp=Refused("not here"),
        batch=Refused("not here"),
        decompose=lambda x: x + x,
    )
    assert fingerprint(traced(lambda x: bind(foreign, [x], {}), X)) is None


# ---- in one process


@keeps_programs
def test_a_second_lowering_finds_the_record(folder):
    constant = qb.array(np.linspace(0.0, 1.0, 300))

    def f(x):
        return qb.sum(qb.exp(x) * constant, axis=0) + qb.array(0.625)

    avals = [ShapeDtype((300,))]
    first = BACKEND.lower(traced(f, *avals), "cpu")
    assert first.record is None
    executable = BACKEND.compile(first)
    second = BACKEND.lower(traced(f, *avals), "cpu")
    assert second.record is not None and second.costs() == first.costs()
    assert second.as_text() == first.as_text()
    again = BACKEND.compile(second)
    x = qb.array(np.linspace(-3.0, 3.0, 300))
    assert again(x)[0].numpy().tobytes() == executable(x)[0].numpy().tobytes()
    np.testing.assert_allclose(
        again(x)[0].numpy(), np.sum(np.exp(x.numpy()) * constant.numpy()) + 0.625, rtol=1e-13
    )


@keeps_programs
def test_folded_constants_travel_along(folder):
    """Large arrays that only lowering makes are part of a record."""

    def f(x):
        return x * qb.sin(qb.reshape(qb.array(np.arange(200.0)), (200, 1)) * qb.array(np.arange(3.0)))

    avals = [ShapeDtype((200, 3))]
    BACKEND.compile(BACKEND.lower(traced(f, *avals), "cpu"))
    found = BACKEND.lower(traced(f, *avals), "cpu")
    assert found.record is not None
    x = np.ones((200, 3))
    got = BACKEND.compile(found)(qb.array(x))[0].numpy()
    np.testing.assert_allclose(got, np.sin(np.arange(200.0)[:, None] * np.arange(3.0)), rtol=1e-13)


@keeps_programs
def test_programs_that_differ_in_elements_alone_have_their_own_records(folder):
    for number in (1.0, 2.0, 3.0, 1.0):
        for size in (5, 500):  # part of the code, and beside it
            values = qb.array(np.arange(float(size)) + number)
            lowered = BACKEND.lower(traced(lambda x, values=values: x * values, ShapeDtype((size,))), "cpu")
            got = BACKEND.compile(lowered)(qb.ones(size))[0].numpy()
            np.testing.assert_array_equal(got, np.arange(size) + number)


@keeps_programs
def test_records_belong_to_one_machine_and_one_version_of_the_code(folder, monkeypatch):
    def f(x):
        return x * 1.25

    def lower():
        return BACKEND.lower(traced(f, X), "cpu")

    BACKEND.compile(lower())
    assert lower().record is not None
    with monkeypatch.context() as other:
        other.setattr(machine, "stamp", lambda: "another machine")
        assert lower().record is None
    with monkeypatch.context() as other:
        other.setattr(np, "__version__", "1.0")
        assert lower().record is None
    assert lower().record is not None


def test_a_change_to_any_file_of_code_changes_the_stamp(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "inner" / "b.py").write_text("x = 1\n")

    def line():
        return machine._files(str(tmp_path), nested=True)[0]

    seen = {line()}
    os.utime(tmp_path / "inner" / "b.py", (1e9, 1e9))
    seen.add(line())
    (tmp_path / "a.py").write_text("x = 12\n")
    os.utime(tmp_path / "a.py", (1e9, 1e9))
    seen.add(line())
    assert machine._files(str(tmp_path), nested=True)[1] == 1e9
    (tmp_path / "c.py").write_text("")
    seen.add(line())
    assert len(seen) == 4


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="other systems keep object code alone"
)
def test_a_process_older_than_its_files_keeps_nothing(run_python):
    code = (
        "import time; from quabla_cpu import machine; print(abs(time.time() - machine._started()) < 60)\n"
        "print(machine.stamp() is None); machine.stamp.cache_clear()\n"
        "files = machine._files; now = time.time()\n"
        "machine._files = lambda *a, **k: (files(*a, **k)[0], now)\n"
        "print(machine.stamp() is None); machine.stamp.cache_clear(); now += 1e6; print(machine.stamp() is None)"
    )
    assert run_python(code).stdout.split() == ["True", "False", "True", "False"]


@keeps_programs
@pytest.mark.parametrize("content", [b"nonsense", b"", b"\xe9", "marshal", "short"])
def test_a_record_of_nonsense_is_compiled_again(folder, content):
    import marshal

    def f(x):
        return x * 1.75 + 2.0

    def lower():
        return BACKEND.lower(traced(f, X), "cpu")

    BACKEND.compile(lower())
    name = records._named(traced(f, X))[0]
    whole = diskcache.get(name)
    if content == "marshal":
        content = marshal.dumps((1, 2, 3, 4, 5))
    elif content == "short":
        content = whole[: len(whole) // 2]
    diskcache.put(name, content)
    got = BACKEND.compile(lower())(qb.ones((3, 4)))[0].numpy()
    assert (got == 3.75).all()
    assert diskcache.get(name) == whole


def test_without_the_cache_nothing_is_kept(folder, monkeypatch):
    monkeypatch.setenv("QUABLA_CACHE", "off")
    lowered = BACKEND.lower(traced(lambda x: x * 1.5, X), "cpu")
    assert (BACKEND.compile(lowered)(qb.ones((3, 4)))[0].numpy() == 1.5).all()
    assert BACKEND.lower(traced(lambda x: x * 1.5, X), "cpu").record is None
    assert not folder.exists()


@keeps_programs
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_after_loading_runs_and_loads(folder):
    def one(x):
        return qb.sin(x) * 0.75

    def two(x):
        return qb.cos(x) * 0.75

    for f in (one, two):
        BACKEND.compile(BACKEND.lower(traced(f, X), "cpu"))
    x = qb.array(np.full((3, 4), 0.3))
    running = BACKEND.compile(BACKEND.lower(traced(one, X), "cpu"))
    child = os.fork()
    if child == 0:
        try:
            other = BACKEND.lower(traced(two, X), "cpu")
            a, b = running(x)[0].numpy(), BACKEND.compile(other)(x)[0].numpy()
            fine = np.allclose(a, 0.75 * np.sin(0.3)) and np.allclose(b, 0.75 * np.cos(0.3))
            os._exit(0 if fine and other.record is not None else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_allclose(running(x)[0].numpy(), 0.75 * np.sin(0.3))


# ---- between processes

PROGRAMS = """
import hashlib
import sys
import numpy as np
import quabla as qb
rng = np.random.default_rng(3)
a = qb.array(rng.standard_normal((40, 40)))
x, v = qb.array(rng.standard_normal((40, 40))), qb.array(rng.standard_normal(40))
u_xx = qb.vmap(qb.grad(qb.grad(lambda t, w: qb.tanh(t * w))), in_axes=(0, None))
programs = {
    "derivatives": (qb.value_and_grad(lambda w: qb.mean(u_xx(v, w) ** 2)), qb.array(2.5)),
    "product": (lambda x: qb.tanh(x @ a), x),
    "large product": (lambda x: x @ x.T, qb.array(rng.standard_normal((300, 200)))),
    "hessian": (qb.hessian(lambda v: qb.sum(qb.sin(a @ v))), v),
    "loop": (qb.grad(lambda v: qb.sum(qb.fori_loop(0, 9, lambda i, c: c + 0.1 * qb.cos(c), v))), v),
    "solve": (lambda x: qb.linalg.solve(x + 9.0 * qb.eye(40), v), x),
    "sort": (qb.sort, v),
    "threads": (lambda x: qb.tanh(x) * qb.exp(-x * x), qb.array(rng.standard_normal(200_000))),
    "single": (lambda v: qb.exp(v.astype(qb.float32)), v),
}
for name, (f, argument) in programs.items():
    result = qb.jit(f)(argument)
    for leaf in result if isinstance(result, tuple) else (result,):
        print(name, hashlib.sha256(leaf.numpy().tobytes()).hexdigest())
opt = qb.optim.Adam(0.05)
trainer = qb.optim.Trainer(lambda w, v: qb.mean((qb.sin(w * v) - v) ** 2), qb.array(0.5), opt, v)
for _ in range(3):
    trainer.step()
print("trainer", trainer.params.numpy().tobytes().hex())
print("cpu" in qb.devices(), file=sys.stderr)
assert "quabla_cpu.pool" in sys.modules, "no program was large enough for threads"
print("llvmlite" in sys.modules, file=sys.stderr)
"""


@keeps_programs
def test_a_second_process_runs_the_same_code_without_llvm(folder, run_python):
    first, second = run_python(PROGRAMS), run_python(PROGRAMS)
    assert first.stderr.split() == ["True", "True"]
    assert second.stderr.split() == ["True", "False"]
    assert second.stdout == first.stdout and first.stdout.count("\n") >= 9


@keeps_programs
def test_a_damaged_folder_changes_no_result(folder, run_python):
    first = run_python(PROGRAMS)
    entries = sorted(folder.iterdir())
    before = [path.read_bytes() for path in entries]
    for i, path in enumerate(entries):
        content = bytearray(before[i])
        if i % 4 == 0:
            del content[len(content) * 2 // 3 :]
        elif i % 4 == 1:
            content.clear()
        elif i % 4 == 2:
            content[len(content) * 3 // 4] ^= 16
        else:
            content = bytearray(before[i - 1])  # whole, under another's name
        path.write_bytes(content)
    second = run_python(PROGRAMS)
    assert second.stdout == first.stdout and second.stderr == first.stderr
    third = run_python(PROGRAMS)  # what was damaged has been written anew
    assert third.stdout == first.stdout and third.stderr.split()[-1] == "False"


def test_processes_that_start_together_agree(folder):
    import subprocess

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAMS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        for _ in range(4)
    ]
    outs = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0] * 4, outs
    assert len({out for out, _ in outs}) == 1
