"""Programs that are compiled quickly for their first calls, and well in the background."""

from __future__ import annotations

import ctypes
import gc
import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quabla as qb
from quabla.arrays.tracer import trace
from quabla.testing.table import cases, tensors
from quabla_cpu import background, engine, machine, tiers
from quabla_cpu.backend import CpuBackend
from quabla_cpu.image import UnsupportedError
from quabla_cpu.sharing import Compiled

BACKEND = CpuBackend()


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """Two tiers, and nothing known from before."""
    monkeypatch.setenv("QUABLA_TIERS", "1")
    monkeypatch.setenv("QUABLA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(engine, "_recent", {})
    monkeypatch.setattr(background, "_QUIET", 0.0)
    try:
        engine.joined([engine.compile_quickly((tiers._DOOR, {}))], [])
    except UnsupportedError:
        pytest.skip("LLVM links on this system")
    yield
    assert background.wait(60)


@pytest.fixture
def jobs(monkeypatch):
    """What would be done in the background, to be done by hand."""
    kept = []
    monkeypatch.setattr(background, "later", kept.append)
    return kept


def executable(function, *arrays):
    program, _ = trace(lambda *xs: (function(*xs),), [x.aval for x in arrays])
    return BACKEND.compile(BACKEND.lower(program, "cpu"))


def bits(outs):
    """The bytes of results, with one kind of NaN: which one comes out of an operation is nobody's promise."""
    arrays = [x.numpy() for x in outs]
    return [(np.where(np.isnan(a), np.nan, a) if a.dtype.kind == "f" else a).tobytes() for a in arrays]


def normal(*shape, seed=0):
    return qb.array(np.random.default_rng(seed).standard_normal(shape))


FUNCTIONS = {
    "elementwise": (lambda x: qb.tanh(x) * qb.exp(-x * x) + qb.sin(x), (normal(50, 7),)),
    "sums": (lambda x: qb.sum(x * x, axis=1) / qb.mean(x), (normal(61, 13),)),
    "product": (lambda a, b: qb.tanh(a @ b), (normal(33, 70), normal(70, 41))),
    "large product": (lambda a, b: a @ b, (normal(130, 600), normal(600, 70))),
    "transposed": (lambda a, b: a.T @ b, (normal(70, 33), normal(70, 41))),
    "derivative": (qb.grad(lambda x: qb.sum(qb.sin(x) ** 3)), (normal(200),)),
    "hessian": (qb.hessian(lambda x: qb.sum(qb.tanh(x[:, None] * x) ** 2)), (normal(9),)),
    "loop": (lambda x: qb.fori_loop(0, 20, lambda i, c: c + 0.1 * qb.cos(c), x), (normal(5),)),
    "branch": (lambda x: qb.cond(qb.sum(x) > 0.0, qb.sin, qb.cos, x), (normal(5),)),
    "solve": (lambda a, b: qb.linalg.solve(a + 9.0 * qb.eye(12), b), (normal(12, 12), normal(12))),
    "sort": (lambda x: qb.sort(x), (normal(300),)),
    "running": (lambda x: qb.cumsum(x, axis=0), (normal(30, 5),)),
    "threads": (lambda x: qb.tanh(x) * qb.exp(-x * x), (normal(200_000),)),
    "single": (lambda x: qb.exp(x.astype(qb.float32)) * 3.0, (normal(77),)),
    "huge angles": (lambda x: qb.sin(1e12 * x), (normal(77),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_quick_and_good_code_compute_the_same_bits(name, jobs):
    f, arrays = FUNCTIONS[name]
    run = executable(f, *arrays)
    assert len(jobs) == 1 and run._code.image is None
    first = bits(run(*arrays))
    jobs.pop()()
    assert run._code.image is not None
    assert bits(run(*arrays)) == first
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUABLA_TIERS", "0")
        patch.setenv("QUABLA_CACHE", "0")
        alone = executable(lambda *xs: f(*xs), *arrays)
    assert bits(alone(*arrays)) == first
    expected = f(*arrays)  # op by op
    np.testing.assert_allclose(
        run(*arrays)[0].numpy(), expected.numpy(), rtol=1e-6 if name == "single" else 1e-9
    )


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_both_codes_of_every_op_compute_the_same_bits(case, jobs):
    arrays = tensors(case.operands())
    program = case.program()
    run = BACKEND.compile(BACKEND.lower(program, "cpu"))
    first = bits(run(*arrays))
    for job in jobs:
        job()
    assert bits(run(*arrays)) == first


@given(st.integers(1, 40), st.integers(1, 700), st.integers(1, 40), st.sampled_from(["float64", "float32"]))
def test_products_of_all_shapes_have_the_same_bits(m, k, n, dtype):
    a, b = normal(m, k).astype(dtype), normal(k, n, seed=1).astype(dtype)
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background, "later", kept.append)
        patch.setattr(engine, "_recent", {})
        patch.setenv("QUABLA_CACHE", "0")
        run = executable(lambda a, b: a @ b, a, b)
        assert len(kept) == 1
        first = bits(run(a, b))
        kept.pop()()
    assert bits(run(a, b)) == first


def test_the_door_leads_to_the_good_code_once_it_is_there():
    x = normal(31)
    run = executable(lambda x: qb.sin(x) + 0.125, x)
    assert background.wait(60)
    target = run._code.library.address("target")
    address = ctypes.c_uint64.from_address(target).value
    assert address == run._code.keep[-1].address("entry") != run.address
    np.testing.assert_allclose(run(x)[0].numpy(), np.sin(x.numpy()) + 0.125, rtol=1e-14)


def test_calls_go_on_while_the_code_is_exchanged():
    f, arrays = FUNCTIONS["product"]
    run = executable(f, *arrays)
    expected, wrong, stop = bits(run(*arrays)), [], threading.Event()

    def call():
        while not stop.is_set():
            if bits(run(*arrays)) != expected:
                wrong.append(1)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for thread in callers:
        thread.start()
    assert background.wait(60)
    stop.set()
    for thread in callers:
        thread.join()
    assert not wrong and run._code.image is not None


def test_what_would_run_long_is_compiled_well_at_once(jobs):
    a = normal(700, 700)
    executable(lambda a: a @ a, a)
    executable(lambda x: qb.while_loop(lambda c: c < 100.0, lambda c: c * 1.5, x), normal())
    executable(lambda x: qb.fori_loop(0, 10_000_000, lambda i, c: qb.cos(c), x), normal())
    assert not jobs
    executable(lambda x: qb.fori_loop(0, 10, lambda i, c: qb.cos(c), x), normal())
    assert len(jobs) == 1


def test_without_tiers_code_is_good_at_once(jobs, monkeypatch):
    monkeypatch.setenv("QUABLA_TIERS", "0")
    assert executable(lambda x: x * 3.5, normal(4))._code.image is not None
    assert not jobs


def test_code_that_is_known_is_not_compiled_again(monkeypatch):
    monkeypatch.setenv("QUABLA_CACHE", "0")
    x = normal(6, 5)
    executable(lambda x: qb.exp(x) * 7.5, x)
    assert background.wait(60)
    gc.collect()
    compiled = []
    real = engine.compile_quickly
    monkeypatch.setattr(
        engine, "compile_quickly", lambda *sources: compiled.append(sources) or real(*sources)
    )
    executable(lambda x: qb.exp(x) * 7.5, x)
    assert not compiled
    executable(lambda x: qb.exp(x) * 7.25, x)  # only the entry is new
    assert [len(sources) for sources in compiled] == [2]  # the door and the entry


@pytest.mark.parametrize("many", [False, True])
def test_programs_that_are_gone_are_compiled_only_while_few_wait(many, jobs, monkeypatch):
    compiled = []
    monkeypatch.setattr(tiers, "_well", lambda sources: compiled.append(sources) or engine.joined([], []))
    monkeypatch.setattr(background, "waiting", lambda: tiers._FEW + many)
    executable(lambda x: x + 18.0, normal(3))
    gc.collect()
    jobs.pop()()
    assert len(compiled) == (not many)


@pytest.mark.skipif(machine.stamp() is None, reason="this process keeps no programs")
def test_the_record_is_left_when_the_good_code_is_there(jobs):
    x = normal(8)

    def f(x):
        return qb.cos(x) * 0.375

    def lower():
        return BACKEND.lower(trace(lambda x: (f(x),), [x.aval])[0], "cpu")

    run = BACKEND.compile(lower())
    assert lower().record is None
    jobs.pop()()
    found = lower()
    assert found.record is not None
    assert bits(BACKEND.compile(found)(x)) == bits(run(x)) and not jobs


def test_a_failure_in_the_background_is_a_warning(monkeypatch):
    x = normal(8)
    with monkeypatch.context() as patch, pytest.warns(RuntimeWarning, match="quick code goes on"):
        patch.setattr(tiers, "_well", lambda sources: 1 / 0)
        run = executable(lambda x: x * 0.8125, x)
        assert background.wait(60)
    assert (run(x)[0].numpy() == x.numpy() * 0.8125).all()
    after = executable(lambda x: x * 0.5625, x)  # the thread is not lost
    assert background.wait(60) and after._code.image is not None


@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_warning_that_is_an_error_stops_no_later_job(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda args: None)  # which prints it
        patch.setattr(tiers, "_well", lambda sources: 1 / 0)
        executable(lambda x: x * 0.6875, normal(8))
        assert background.wait(60)
    after = executable(lambda x: x * 0.4375, normal(8))
    assert background.wait(60) and after._code.image is not None


def test_a_training_plan_uses_the_good_code_when_it_is_there(jobs):
    w, x = qb.array(0.5), normal(20)

    def step(w, x):
        value, slope = qb.value_and_grad(lambda w: qb.mean((qb.sin(w * x) - x) ** 2))(w)
        return w - 0.1 * slope, value

    program, _ = trace(step, [w.aval, x.aval])
    plan = BACKEND.training_plan(program, "cpu", [w], [x])
    plan.run(5)
    middle = plan.state()[0].numpy().tobytes()
    jobs.pop()()
    plan.run(5)
    other = BACKEND.training_plan(program, "cpu", [w], [x])
    other.run(5)
    assert other.state()[0].numpy().tobytes() == middle
    other.run(5)
    assert other.state()[0].numpy().tobytes() == plan.state()[0].numpy().tobytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("moment", ["before", "during"])
def test_a_child_finishes_what_the_parent_began(moment, monkeypatch):
    begun, go = threading.Event(), threading.Event()
    well = tiers._well

    def slowly(sources):
        begun.set()
        if moment == "during":
            go.wait(60)
        return well(sources)

    monkeypatch.setattr(tiers, "_well", slowly)
    monkeypatch.setattr(background, "_MORE", 0.0)
    if moment == "before":
        background.later(lambda: go.wait(60))
    x = normal(8)
    run = executable(lambda x: qb.sin(x) * 1.0625, x)
    expected = bits(run(x))
    if moment == "during":
        assert begun.wait(60)
    child = os.fork()
    if child == 0:
        try:
            go.set()
            fine = bits(run(x)) == expected and background.wait(60) and run._code.image is not None
            os._exit(0 if fine and bits(run(x)) == expected else 1)
        finally:
            os._exit(2)
    go.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert background.wait(60) and run._code.image is not None


PROCESS = """
import quabla as qb
from quabla_cpu import machine
f = qb.jit(lambda x: qb.sin(x) * 3.0625 + qb.tanh(x))
print(f(qb.array([0.5, 0.25])).tolist(), machine.stamp() is None)
"""


def test_a_process_that_ends_leaves_the_good_code_for_the_next(run_python):
    look = "import sys; print('llvmlite' in sys.modules)"
    first, second = (run_python(PROCESS + look).stdout.splitlines() for _ in range(2))
    assert first[0] == second[0] and first[1] == "True"
    if first[0].endswith("False"):
        assert second[1] == "False"


BUSY = """
import os, sys, time
import quabla as qb
from quabla_cpu import background
fs = [qb.jit(lambda x, k=k: qb.sin(x) * (k + 0.3) + x) for k in range(60)]
for f in fs:
    f(qb.ones(3))
assert background.waiting() > 40
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_ends_soon_compiles_nothing(run_python):
    code = BUSY + (
        "import multiprocessing, threading\n"
        "process = multiprocessing.get_context('fork').Process(target=int)\n"
        "start = time.monotonic(); process.start(); process.join()\n"
        "print(time.monotonic() - start < 1.0, process.exitcode)"
    )
    assert run_python(code).stdout.split() == ["True", "0"]


def test_without_a_cache_the_end_of_a_process_waits_for_nothing(run_python, monkeypatch):
    monkeypatch.setenv("QUABLA_CACHE", "0")
    code = (
        BUSY
        + "import atexit; from quabla_cpu import tiers; well = tiers._well\n"
        + (
            "def counted(sources):\n    sys.stdout.write('job ') if not background._alive() else None\n"
            "    return well(sources)\n"
            "tiers._well = counted"
        )
    )
    assert run_python(code).stdout == ""


def test_jobs_are_done_in_order_and_waiting_has_an_end():
    done, gate = [], threading.Event()
    background.later(lambda: gate.wait(60) and done.append(0))
    for k in range(1, 4):
        background.later(lambda k=k: done.append(k))
    assert background.waiting() == 4 and not background.wait(0.01)
    gate.set()
    assert background.wait(60) and done == [0, 1, 2, 3] and background.waiting() == 0


def test_the_callbacks_of_compiled_code_are_called_once(monkeypatch):
    code, calls = Compiled(None, ()), []
    code.then(lambda owner, image: calls.append((owner, image)))
    assert not calls
    code.image = "image"
    code.then(lambda owner, image: calls.append("second"))
    assert sorted(map(str, calls)) == sorted(map(str, [(code, "image"), "second"]))
