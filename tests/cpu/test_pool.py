"""The pool: every piece of work once, whoever does it; calls within calls, from many threads, and after a fork."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import quabla as qb
from quabla_cpu import engine, pool, text

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(os.name != "posix", reason="there are no workers on this system"),
]

Call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


def written() -> str:
    """`run(counts, n)` adds one to `counts[i]` for all i below n; `nested(counts, n)` does so from within pieces;
    `slots(found, n)` stores at `found[i]` the slot of whoever did piece i.
    """
    module = text.Module(engine.function_attributes())
    b = module.function("piece", "void", ["ptr", "i64", "i64"], linkage="internal")
    counts, index, _ = b.arguments
    with b.carry(0, 3000, [text.constant("double", 1.0)]) as (_, loop):
        loop.update(b.fmul(loop.values[0], text.constant("double", 1.0)))
    at = b.gep("double", counts, index)
    b.store(b.fadd(b.load("double", at), loop.results[0]), at)
    b.ret()
    b = module.function("outer", "void", ["ptr", "i64", "i64"], linkage="internal")
    counts, index, _ = b.arguments
    mine = b.gep("double", counts, b.mul(index, text.constant("i64", 16)))
    b.call(pool.PARALLEL, "void", text.Value("@piece", "ptr"), mine, text.constant("i64", 16))
    b.ret()
    b = module.function("noted", "void", ["ptr", "i64", "i64"], linkage="internal")
    found, index, slot = b.arguments
    b.store(slot, b.gep("i64", found, index))
    b.ret()
    for name, function in (("run", "piece"), ("nested", "outer"), ("slots", "noted")):
        b = module.function(name, "void", ["ptr", "i64"])
        b.call(pool.PARALLEL, "void", text.Value(f"@{function}", "ptr"), *b.arguments)
        b.ret()
    return module.text()


@pytest.fixture(scope="module")
def library() -> engine.Library:
    return engine.link(
        [engine.compile(written())], ["run", "nested", "slots"], {pool.PARALLEL: pool.address()}
    )


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    before = qb.get_num_threads()
    yield
    qb.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 64, 1000])
def test_every_piece_is_done_once(library: engine.Library, threads: int, n: int) -> None:
    qb.set_num_threads(threads)
    pool.ensure()
    counts = np.zeros(n + 1)
    for done in range(1, 6):
        Call(library.address("run"))(counts.ctypes.data, n)
        assert counts.tolist() == [float(done)] * n + [0.0]


@pytest.mark.parametrize("n", [2, 3, 8])
def test_slots_are_fewer_than_pieces_even_if_the_caller_comes_late(library: engine.Library, n: int) -> None:
    qb.set_num_threads(n + 3)
    pool.ensure()
    found = np.zeros(n, np.int64)
    for _ in range(5000):
        Call(library.address("slots"))(found.ctypes.data, n)
        # Memory is made for n slots, and slot 0 is the caller's: if all pieces could go to others, one had slot n.
        assert found[n - 1] == 0 and found.max() < n


def test_calls_within_calls(library: engine.Library) -> None:
    qb.set_num_threads(3)
    pool.ensure()
    counts = np.zeros(16 * 8)
    for _ in range(50):
        Call(library.address("nested"))(counts.ctypes.data, 8)
    assert (counts == 50).all()


def test_many_threads_and_changing_numbers(library: engine.Library) -> None:
    qb.set_num_threads(2)
    pool.ensure()
    wrong = []

    def work() -> None:
        counts = np.zeros(32)
        for done in range(1, 200):
            Call(library.address("run"))(counts.ctypes.data, 32)
            if not (counts == done).all():
                wrong.append(done)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for w in workers:
        w.start()
    while any(w.is_alive() for w in workers):
        for n in (1, 4, 2):
            qb.set_num_threads(n)
    assert not wrong


def test_workers_sleep_when_there_is_no_work(library: engine.Library) -> None:
    qb.set_num_threads(3)
    pool.ensure()
    counts = np.zeros(64)
    Call(library.address("run"))(counts.ctypes.data, 64)
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.4)
    assert time.process_time() - before < 0.1
    Call(library.address("run"))(counts.ctypes.data, 64)  # and wake up
    assert (counts == 2).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_works_alone_and_can_have_workers_again(library: engine.Library) -> None:
    qb.set_num_threads(2)
    pool.ensure()
    counts = np.zeros(64)
    run = Call(library.address("run"))
    run(counts.ctypes.data, 64)
    child = os.fork()
    if child == 0:
        try:
            run(counts.ctypes.data, 64)
            qb.set_num_threads(3)
            run(counts.ctypes.data, 64)
            os._exit(0 if (counts == 3).all() and pool._started == 2 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run(counts.ctypes.data, 64)
    assert (counts == 2).all()


def test_workers_have_a_stack_of_their_own_size(run_python) -> None:
    # Large products pack their operands on the stack, more than threads of this size have.
    code = (
        "import threading\n"
        "threading.stack_size(65536)\n"
        "import numpy as np, quabla as qb\n"
        "qb.set_num_threads(4)\n"
        "a, b = (np.random.default_rng(i).normal(size=(700, 700)) for i in (0, 1))\n"
        "c = qb.jit(lambda a, b: a @ b)(qb.array(a), qb.array(b))\n"
        "print(np.abs(c.numpy() - a @ b).max() < 1e-9, threading.stack_size())"
    )
    assert run_python(code).stdout.strip() == "True 65536"


@pytest.mark.parametrize("allowed", [0, 2])
def test_a_system_that_allows_no_more_threads(run_python, allowed: int) -> None:
    code = (
        "import _thread\n"
        "start, started = _thread.start_new_thread, []\n"
        "def refuse(*args):\n"
        f"    if len(started) == {allowed}:\n"
        '        raise RuntimeError("can\'t start new thread")\n'
        "    started.append(start(*args))\n"
        "_thread.start_new_thread = refuse\n"
        "import numpy as np, quabla as qb\n"
        "qb.set_num_threads(8)\n"
        "x = qb.array(np.arange(1_000_000) % 7.0)\n"
        "print(qb.jit(lambda x: qb.sum(x * x))(x).item(), len(started))"
    )
    assert run_python(code).stdout.split() == [
        str(float(np.sum((np.arange(1_000_000) % 7.0) ** 2))),
        str(allowed),
    ]


def test_a_process_ends_although_workers_wait(run_python) -> None:
    code = (
        "import numpy as np, quabla as qb\n"
        "qb.set_num_threads(3)\n"
        "x = qb.array(np.ones(1_000_000))\n"
        "print(qb.jit(lambda x: qb.sum(qb.exp(x)))(x).item() > 0)"
    )
    start = time.monotonic()
    assert run_python(code).stdout.strip() == "True"
    assert time.monotonic() - start < 60 and sys.version_info
