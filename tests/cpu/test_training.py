"""Training on the CPU: the resident plan does, bit for bit, what the loop of compiled calls does."""

from __future__ import annotations

import _thread
import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.errors import RetraceLimitError
from quabla.optim import SGD, Adam, Trainer

Case = tuple[Any, Any, tuple[Any, ...]]


def readme() -> Case:
    """One parameter, eight points."""
    u_xx = qb.vmap(qb.grad(qb.grad(lambda x, w: qb.sin(x * w))), in_axes=(0, None))

    def loss(w: Any, x: Any) -> Any:
        return qb.mean((u_xx(x, w) + math.pi**2 * qb.sin(math.pi * x)) ** 2)

    return loss, qb.array(2.5), (qb.linspace(0.05, 0.95, 8),)


def network(sizes: tuple[int, ...], dtype: Any = qb.float64, seed: int = 0) -> Any:
    """Random weights."""
    rng = np.random.default_rng(seed)
    return [
        {"w": qb.array(rng.normal(size=(a, b)) / math.sqrt(a), dtype=dtype), "b": qb.zeros(b, dtype=dtype)}
        for a, b in itertools.pairwise(sizes)
    ]


def forward(params: Any, x: Any) -> Any:
    """A tanh network on `(batch, inputs)`."""
    for p in params[:-1]:
        x = qb.tanh(x @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def pinn(dtype: Any = qb.float64) -> Case:
    """A second derivative per point through a network, and its gradient."""

    def u(x: Any, p: Any) -> Any:
        return qb.reshape(forward(p, qb.reshape(x, (1, 1))), ())

    u_xx = qb.vmap(qb.grad(qb.grad(u)), in_axes=(0, None))

    def loss(p: Any, x: Any) -> Any:
        return qb.mean((u_xx(x, p) + math.pi**2 * qb.sin(math.pi * x)) ** 2)

    return loss, network((1, 16, 1), dtype), (qb.linspace(0.05, 0.95, 64, dtype=dtype),)


def regression(dtype: Any = qb.float64) -> Case:
    """Products of large matrices, and reductions along both axes."""
    rng = np.random.default_rng(1)
    x, y = (qb.array(rng.normal(size=s), dtype=dtype) for s in ((96, 20), (96, 3)))
    return lambda p, x, y: qb.mean((forward(p, x) - y) ** 2), network((20, 48, 3), dtype), (x, y)


def leaves(*trees: Any) -> list[bytes]:
    """The bits of all leaves."""
    return [x.numpy().tobytes() for x in qb.tree.flatten(trees)[0]]


CASES = {
    "readme": readme,
    "pinn": pinn,
    "pinn32": lambda: pinn(qb.float32),
    "regression": regression,
    "regression32": lambda: regression(qb.float32),
}


@pytest.mark.parametrize("opt", [Adam(0.01), SGD(0.01)], ids=["adam", "sgd"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_plan_is_the_loop_bit_for_bit(case: Any, opt: Any) -> None:
    loss, w, data = case()
    trainer, state = Trainer(loss, w, opt, *data, device="cpu"), opt.init(w)
    step = qb.jit(qb.value_and_grad(loss), device="cpu")
    for i in range(20):
        value, g = step(w, *data)
        w, state = opt.update(w, g, state)
        trainer.step()
        assert leaves(trainer.loss()) == leaves(value), f"loss of step {i}"
        assert leaves(*trainer.get_state()) == leaves(w, state), f"state after step {i}"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_cpu_agrees_with_the_reference(case: Any) -> None:
    loss, w, data = case()
    ours, reference = (Trainer(loss, w, SGD(0.01), *data, device=d) for d in ("cpu", "reference"))
    ours.run(10)
    reference.run(10)
    rtol = 1e-9 if qb.tree.flatten(w)[0][0].dtype is qb.float64 else 2e-3
    for x, y in zip(*(qb.tree.flatten(t.params)[0] for t in (ours, reference)), strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=rtol, atol=rtol)


def test_the_problem_of_the_readme() -> None:
    loss, _, data = readme()
    trainer = Trainer(loss, 2.5, Adam(0.05), *data)
    trainer.run(300)
    found = f"w = {trainer.params.item():.6f}, loss = {trainer.loss().item():.1e}"
    assert found == "w = 3.141593, loss = 1.5e-13"


def test_two_runs_give_the_same_bits() -> None:
    results = []
    for _ in range(2):
        loss, w, data = pinn()
        trainer = Trainer(loss, w, Adam(0.01), *data)
        trainer.run(200)
        results.append(leaves(*trainer.get_state()))
    assert results[0] == results[1]


def test_batches() -> None:
    loss, w, _ = regression()
    rng, opt = np.random.default_rng(2), Adam(0.01)
    batches = [(rng.normal(size=(32, 20)), qb.array(rng.normal(size=(32, 3)))) for _ in range(8)]
    trainer = Trainer(loss, w, opt, *batches[0], batch_argnums=(0, 1))
    step, state = qb.jit(qb.value_and_grad(loss)), opt.init(w)
    for x, y in batches:
        trainer.step(x, y)
        x[:] = np.nan  # what was given is the caller's again
    rng = np.random.default_rng(2)
    for _ in batches:
        x, y = qb.array(rng.normal(size=(32, 20))), qb.array(rng.normal(size=(32, 3)))
        _, g = step(w, x, y)
        w, state = opt.update(w, g, state)
    assert leaves(*trainer.get_state()) == leaves(w, state)


def test_a_batch_that_does_not_fit_changes_nothing() -> None:
    loss, w, (x, y) = regression()
    trainer = Trainer(loss, w, Adam(), x, y, batch_argnums=(0, 1))
    trainer.step(x, y)
    before = leaves(*trainer.get_state())
    for batch in [(x,), (x, x), (x, y.astype(qb.float32)), (x, [1.0, [2.0]])]:
        with pytest.raises(qb.QuablaError):
            trainer.step(*batch)
    assert leaves(*trainer.get_state()) == before


def test_what_is_read_stays_as_it_was_read() -> None:
    loss, w, data = readme()
    trainer = Trainer(loss, w, Adam(0.05), *data)
    trainer.step()
    read = [trainer.params, trainer.loss(), *trainer.get_state().optimizer]
    bits = leaves(*read)
    trainer.run(10)
    assert leaves(*read) == bits
    assert w.item() == 2.5


def test_data_and_parameters_outlive_their_owners() -> None:
    loss, w, data = regression()
    trainer = Trainer(loss, w, Adam(), *data)
    expected = Trainer(loss, w, Adam(), *data)
    expected.run(5)
    del w, data
    rubbish = [qb.ones((96, 20)) for _ in range(50)]  # takes the memory, if it has been given back
    trainer.run(5)
    assert leaves(trainer.params) == leaves(expected.params)
    assert len(rubbish) == 50


def test_threads_that_step_together_lose_no_step() -> None:
    loss, w, data = pinn()
    trainer, alone = (Trainer(loss, w, Adam(0.01), *data) for _ in range(2))

    def work() -> None:
        for _ in range(200):
            trainer.step()
            trainer.params

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    alone.run(800)
    assert leaves(*trainer.get_state()) == leaves(*alone.get_state())


def test_trainers_of_several_threads_do_not_meet() -> None:
    loss, w, data = pinn()
    results: dict[int, Any] = {}

    def work(i: int) -> None:
        trainer = Trainer(loss, w, Adam(0.01), *data)
        for _ in range(300):
            trainer.step()
        results[i] = leaves(*trainer.get_state())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 3 and results[0] == results[1] == results[2]


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Interrupts as in a terminal; a shell lets what it runs in the background ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_is_heard_soon_and_loses_nothing(interrupts: None) -> None:
    loss, w, data = pinn()
    trainer, again = (Trainer(loss, w, Adam(0.001), *data) for _ in range(2))
    timer = threading.Timer(0.3, _thread.interrupt_main)
    start = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        trainer.run(10**12)
    assert time.monotonic() - start < 5.0
    done = int(trainer.get_state().optimizer.count.item())
    assert done > 0
    again.run(done)
    assert leaves(*trainer.get_state()) == leaves(*again.get_state())


_DISTURBED = """
import signal, sys, time
import numpy as np
import quabla as qb
from quabla.optim import SGD, Trainer

ones = np.ones(100)
trainer = Trainer(lambda w, x: qb.mean((w - x) ** 2), qb.zeros(100), SGD(0.01), qb.ones(100), batch_argnums=0)
saved = trainer.get_state()
work = {
    "step": lambda: trainer.step(ones),
    "run": lambda: trainer.run(3),
    "loss": lambda: trainer.loss(),
    "params": lambda: trainer.params,
    "set_state": lambda: trainer.set_state(saved),
}[sys.argv[1]]

def handler(_, frame):
    if sys.argv[2] == "steps":
        trainer.step(ones)
    elif disturbing and frame.f_code.co_name not in ("<module>", "handler"):  # where nothing would catch it
        raise KeyboardInterrupt

disturbing = True
signal.signal(signal.SIGALRM, handler)
end = time.monotonic() + 1.0
signal.setitimer(signal.ITIMER_REAL, 1e-3, 7e-4)
while time.monotonic() < end:
    try:
        for _ in range(100):
            work()
    except KeyboardInterrupt:
        pass
disturbing = False  # what follows runs functions too
signal.signal(signal.SIGALRM, signal.SIG_IGN)
trainer.step(ones)
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the signals of POSIX")
@pytest.mark.parametrize("handler", ["raises", "steps"])
@pytest.mark.parametrize("work", ["step", "run", "loss", "params", "set_state"])
def test_a_signal_at_any_moment_leaves_the_trainer_free(work: str, handler: str) -> None:
    """In a process of its own, since the failure would be a native call that nothing ends."""
    command = [sys.executable, "-c", _DISTURBED, work, handler]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stderr


_FORKED = """
import os, threading, time
import quabla as qb
from quabla.optim import SGD, Trainer

def slow(x):
    time.sleep(0.5)
    return qb.sin(x)

one, two = qb.ones(1), qb.array(2.0)
trainer = Trainer(lambda w, x: qb.mean((w - x) ** 2), qb.zeros(10**5), SGD(0.01), qb.ones(10**5))
batch = qb.ones(10**5)
batched = Trainer(lambda w, x: qb.mean((w - x) ** 2), qb.zeros(10**5), SGD(0.01), batch, batch_argnums=0)
traced = qb.jit(slow)
going = True

def step():
    while going:
        trainer.step()
        batched.step(batch)

def compile():
    n = 2
    while going:
        n += 1
        qb.jit(lambda x: qb.sin(x) * n)(one)

threads = [threading.Thread(target=f) for f in (step, compile, lambda: traced(two))]
for t in threads:
    t.start()
for i in range(4):
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        qb.jit(lambda x: qb.cos(x) + i)(one)
        trainer.step()
        trainer.loss()
        batched.step(batch)
        os._exit(0 if abs(traced(two).item() - 0.9092974268256817) < 1e-12 else 1)
    assert os.waitpid(child, 0)[1] == 0
going = False
for t in threads:
    t.join()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_threads_step_and_compile_can_do_both() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORKED],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


def test_many_structures_do_not_exhaust_the_stack() -> None:
    f = qb.jit(lambda x: x + 1.0, max_traces=70)
    for n in range(1, 71):
        assert f(qb.zeros(n)).shape == (n,)
    assert f(qb.zeros(1)).tolist() == [1.0]
    frames, guard = 0, f.cache.guard
    while "other" in getattr(guard, "__globals__", {}):
        guard, frames = guard.__globals__["other"], frames + 1
    assert 0 < frames <= 32
    with pytest.raises(RetraceLimitError):
        f(qb.zeros(71))
