"""The CPU backend as a backend: lowering, executables, training plans, errors, threads."""

from __future__ import annotations

import gc
import platform
import sys
import threading
import weakref

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tracer import bind, trace
from quabla.errors import DtypeError, ShapeError, UnsupportedOperationError
from quabla.ir.op import Op, Refused
from quabla.shapes import ShapeDtype
from quabla_cpu.backend import CpuBackend
from quabla_cpu.plan import CpuTrainingPlan

BACKEND = CpuBackend()


def lowered(function, *avals):
    program, _ = trace(lambda *xs: tuple(function(*xs)), avals)
    return BACKEND.lower(program, "cpu")


def compiled(function, *avals):
    return BACKEND.compile(lowered(function, *avals))


def test_import_is_light(run_python):
    out = run_python(
        "import sys, quabla_cpu.plugin as p; b = p.quabla_backend(); print(b.platform)\n"
        "print('llvmlite' in sys.modules, 'scipy' in sys.modules, 'pydantic' in sys.modules)"
    ).stdout.split()
    assert out == ["cpu", "False", "False", "False"]


def test_the_device_is_listed_once_compiled_code_has_run(run_python, tmp_path, monkeypatch):
    monkeypatch.setenv("QUABLA_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("QUABLA_CACHE", raising=False)
    code = (
        "import sys, quabla as qb; print(*qb.devices())\n"
        "print('llvmlite' in sys.modules, 'scipy' in sys.modules, 'pydantic' in sys.modules)"
    )
    first = run_python(code).stdout.split()
    assert "cpu" in first and first[-3:] == ["True", "False", "False"]
    second = run_python(code).stdout.split()
    assert "cpu" in second and second[-2:] == ["False", "False"]
    if sys.platform == "linux" and platform.machine() == "x86_64":
        assert second[-3] == "False"  # the code of the first process ran again, without LLVM


def test_without_llvm_there_is_no_device(run_python):
    out = run_python(
        "import sys; sys.modules['llvmlite'] = None; import quabla as qb; print(qb.devices())"
    ).stdout
    assert "cpu" not in out


def test_scipy_is_imported_for_lapack_alone(run_python):
    code = (
        "import sys, numpy as np, quabla as qb\n"
        "x = qb.array(np.ones((200, 200))); f = qb.jit(lambda x: qb.sum(qb.tanh(x @ x.T))); f(x)\n"
        "print('scipy' in sys.modules)\n"
        "qb.jit(lambda x: qb.solve(x + 9.0 * qb.eye(200), x))(x); print('scipy' in sys.modules)"
    )
    assert run_python(code).stdout.split() == ["False", "True"]


def test_capabilities_name_the_ops():
    can = BACKEND.capabilities
    assert can.determinism == "bitwise" and can.native_float64
    assert {"add", "tanh", "dot_general", "concat", "pad", "reduce_max"} <= set(can.ops)


def test_unknown_op_is_refused_by_name():
    op = Op(
        name="unheard_of",
        infer=lambda x: x,
        evaluate=lambda x: x,
        jvp=Refused("-"),
        batch=Refused("-"),
        family="elementwise",
    )
    program, _ = trace(lambda x: (bind(op, (x,), {}),), [ShapeDtype((3, 4))])
    from quabla.ir.op import OPS

    OPS["unheard_of"] = op
    try:
        with pytest.raises(UnsupportedOperationError, match=r"unheard_of.*'cpu'.*float64\[3,4\]") as caught:
            BACKEND.lower(program, "cpu")
    finally:
        del OPS["unheard_of"]
    assert caught.value.op == "unheard_of" and caught.value.device == "cpu"


def test_unknown_op_is_decomposed_where_it_can_be():
    op = Op(
        name="cubed_sine",
        infer=lambda x, *, scale: x,
        evaluate=lambda x, *, scale: np.sin(x) ** 3 * scale,
        jvp=Refused("-"),
        batch=Refused("-"),
        decompose=lambda x, *, scale: qb.sin(x) ** 3 * scale,
        family="elementwise",
    )
    from quabla.ir.op import OPS

    OPS["cubed_sine"] = op
    try:
        run = compiled(lambda x: (bind(op, (x * 2.0,), {"scale": 5.0}),), ShapeDtype((3,)))
    finally:
        del OPS["cubed_sine"]
    x = np.array([0.1, 0.2, 0.3])
    np.testing.assert_allclose(run(qb.array(x))[0].numpy(), np.sin(2 * x) ** 3 * 5, rtol=1e-14)


def test_wrong_inputs_are_typed_errors():
    run = compiled(lambda x, y: (x + y,), ShapeDtype((3,)), ShapeDtype((3,)))
    x = qb.array(np.ones(3))
    with pytest.raises(ShapeError, match="2 inputs"):
        run(x)
    with pytest.raises(ShapeError, match=r"input 1 is float64\[4\]"):
        run(x, qb.array(np.ones(4)))
    with pytest.raises(DtypeError, match=r"float32\[3\].*astype"):
        run(x, qb.array(np.ones(3, np.float32)))
    with pytest.raises(DtypeError, match="ndarray"):
        run(x, np.ones(3))


@pytest.mark.parametrize("n", [3, 100_000])
def test_results_own_their_memory(n):
    run = compiled(lambda x: (x * 2.0, qb.sum(x), x), ShapeDtype((n,)))
    x = qb.array(np.arange(float(n)))
    gone = weakref.ref(x)
    outs = [t.numpy() for t in run(x)]
    del x
    gc.collect()
    assert gone() is None, "an executable must not keep its inputs"
    np.testing.assert_array_equal(outs[0], 2 * np.arange(float(n)))
    np.testing.assert_array_equal(outs[2], np.arange(float(n)))
    assert outs[1] == n * (n - 1) / 2
    assert not any(a.flags.writeable for a in outs)


def test_many_threads_at_once():
    run = compiled(
        lambda x: (qb.sin(x) @ qb.cos(x).T, qb.sum(x)), ShapeDtype((120, 120))
    )  # with a large workspace
    assert run.entry.workspace_nbytes > 0
    inputs = [qb.array(np.random.default_rng(i).normal(size=(120, 120))) for i in range(8)]
    want = [[t.numpy().copy() for t in run(x)] for x in inputs]
    wrong = []

    def work(i):
        for _ in range(30):
            for got, expected in zip(run(inputs[i]), want[i], strict=True):
                if not np.array_equal(got.numpy(), expected):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_equal_programs_are_compiled_once():
    def f(x):
        return (qb.exp(x) + 0.123,)

    one, two = compiled(f, ShapeDtype((5,))), compiled(f, ShapeDtype((5,)))
    assert one.address == two.address


def test_code_is_freed_with_its_last_user():
    run = compiled(lambda x: (qb.exp(x) + 0.7654321,), ShapeDtype((5,)))
    code = weakref.ref(run._code)
    del run
    gc.collect()
    assert code() is None


def test_programs_that_differ_only_in_a_large_constant():
    a, b = (qb.array(np.random.default_rng(i).normal(size=(500,))) for i in (1, 2))
    x = qb.array(np.ones(500))
    one = compiled(lambda x: (x * a,), x.aval)
    two = compiled(lambda x: (x * b,), x.aval)
    assert one.address != two.address
    np.testing.assert_array_equal(one(x)[0].numpy(), a.numpy())
    np.testing.assert_array_equal(two(x)[0].numpy(), b.numpy())


def test_a_large_constant_lives_as_long_as_its_code():
    def make():
        c = qb.array(np.arange(1000.0))
        return compiled(lambda x: (x + c,), ShapeDtype((1000,)))

    run = make()
    gc.collect()
    np.testing.assert_array_equal(run(qb.array(np.zeros(1000)))[0].numpy(), np.arange(1000.0))


def test_the_entry_is_what_the_call_does():
    import ctypes

    run = compiled(lambda x, y: (x + y, qb.sum(x)), ShapeDtype((3,)), ShapeDtype((3,)))
    x, y = qb.array(np.array([1.0, 2.0, 3.0])), qb.array(np.array([10.0, 20.0, 30.0]))
    entry = run.entry
    block = (ctypes.c_double * (entry.out_nbytes // 8))()
    entry.call(entry.pack(x.address, y.address, *entry.hidden, ctypes.addressof(block), 0))
    assert entry.workspace_nbytes == 0
    assert [o % 64 for o in entry.out_offsets] == [0, 0]
    assert list(block[:3]) == [11.0, 22.0, 33.0] and block[entry.out_offsets[1] // 8] == 6.0


def test_equal_programs_have_equal_code_in_every_process(run_python):
    """The code is a key of the cache on disk: it must not depend on addresses or on the seed of hashes."""
    code = """
import hashlib, numpy as np, quabla as qb
from quabla.arrays.tracer import trace
from quabla_cpu.backend import CpuBackend
def loss(w, v, x):
    u = lambda x: (qb.tanh(qb.reshape(x, (1, 1)) @ w) @ v)[0, 0]
    return qb.mean(qb.vmap(qb.grad(u))(x) ** 2)
p, _ = trace(lambda *xs: qb.grad(loss, argnums=(0, 1))(*xs), [qb.ShapeDtype(s) for s in ((1, 16), (16, 1), (33,))])
print(hashlib.sha256(CpuBackend().lower(p, "cpu").as_text().encode()).hexdigest())
"""
    seen = {run_python(f"junk = [object() for _ in range({1000 * i})]\n{code}").stdout for i in range(3)}
    assert len(seen) == 1


def test_lowered_shows_its_code():
    text = lowered(lambda x: (qb.sin(x),), ShapeDtype((3,))).as_text()
    assert "define void @entry" in text


def test_the_native_function_keeps_its_code_alive():
    run = compiled(lambda x: (qb.exp(x) + 0.1357,), ShapeDtype((3,)))
    entry = run.entry
    del run
    gc.collect()
    x, block = qb.array(np.zeros(3)), np.zeros(8)
    entry.call(entry.pack(x.address, block.ctypes.data, 0))
    np.testing.assert_allclose(block[:3], 1.1357, rtol=1e-15)


# --- training plans ---------------------------------------------------------------------------------------------------


def momentum(w, m, x):
    loss, g = qb.value_and_grad(lambda w: qb.sum((w * x - 1.0) ** 2))(w)
    m = 0.9 * m + g
    return w - 0.05 * m, m, loss


def by_hand(w, m, x, steps):
    for _ in range(steps):
        loss = ((w * x - 1) ** 2).sum()
        m = 0.9 * m + 2 * (w * x - 1) * x
        w = w - 0.05 * m
    return w, m, loss


START = np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.5, 0.0]), np.array([0.5, 0.25, 1.0])


@pytest.fixture
def plan() -> CpuTrainingPlan:
    w, m, x = (qb.array(a) for a in START)
    program, _ = trace(momentum, [w.aval, m.aval, x.aval])
    return BACKEND.training_plan(program, "cpu", [w, m], [x])


def test_plan_steps(plan):
    assert np.isnan(plan.loss().item())
    for steps in range(1, 6):
        plan.step()
        w, m, loss = by_hand(*START, steps)
        np.testing.assert_allclose(plan.state()[0].numpy(), w, rtol=1e-14)
        np.testing.assert_allclose(plan.state()[1].numpy(), m, rtol=1e-14)
        np.testing.assert_allclose(plan.loss().item(), loss, rtol=1e-14)


def test_a_step_keeps_its_plan_alive():
    w, m, x = (qb.array(a) for a in START)
    program, _ = trace(momentum, [w.aval, m.aval, x.aval])
    plan = BACKEND.training_plan(program, "cpu", [w, m], [x])
    step, alive = plan.step, weakref.ref(plan)
    del plan, w, m, x
    gc.collect()
    step()
    assert alive() is not None
    del step
    gc.collect()
    assert alive() is None


def test_plan_runs_many_steps_in_one_call(plan):
    plan.run(0)
    assert np.isnan(plan.loss().item())
    plan.run(37)
    np.testing.assert_allclose(plan.state()[0].numpy(), by_hand(*START, 37)[0], rtol=1e-13)


def test_plan_gives_copies_and_takes_states(plan):
    plan.step()
    before = plan.state()
    kept = [t.numpy().copy() for t in before]
    plan.run(2)
    for t, k in zip(before, kept, strict=True):
        np.testing.assert_array_equal(t.numpy(), k)
    plan.set_state(before)
    plan.run(2)
    np.testing.assert_allclose(plan.state()[0].numpy(), by_hand(*START, 3)[0], rtol=1e-14)
    with pytest.raises(ShapeError):
        plan.set_state(before[:1])
    with pytest.raises(ShapeError, match="state 1"):
        plan.set_state([before[0], qb.array(np.ones(4))])


def test_plan_data_can_be_replaced(plan):
    plan.step()
    w, m, _ = by_hand(*START, 1)
    x = np.array([1.0, -1.0, 0.5])
    plan.replace(0, qb.array(x))
    gc.collect()
    plan.step()
    np.testing.assert_allclose(plan.state()[0].numpy(), by_hand(w, m, x, 1)[0], rtol=1e-14)
    with pytest.raises(ShapeError, match="index 1"):
        plan.replace(1, qb.array(x))
    with pytest.raises(ShapeError, match="data 0"):
        plan.replace(0, qb.array(np.ones(2)))


def test_plan_refuses_what_does_not_fit():
    w, m, x = (qb.array(a) for a in START)
    program, _ = trace(momentum, [w.aval, m.aval, x.aval])
    with pytest.raises(ShapeError, match="1 state and 1 data"):
        BACKEND.training_plan(program, "cpu", [w], [x])
    with pytest.raises(ShapeError, match="state 1"):
        BACKEND.training_plan(program, "cpu", [w, qb.array(np.ones(5))], [x])
    vector, _ = trace(lambda w, x: (w * x, w + x), [w.aval, x.aval])
    with pytest.raises(ShapeError, match=r"loss.*shape \(\)"):
        BACKEND.training_plan(vector, "cpu", [w], [x])
    shrinking, _ = trace(lambda w, x: (qb.sum(w), qb.sum(x)), [w.aval, x.aval])
    with pytest.raises(ShapeError, match="keep its type"):
        BACKEND.training_plan(shrinking, "cpu", [w], [x])


def test_plan_steps_from_many_threads(plan):
    def work():
        for _ in range(500):
            plan.step()
            plan.loss()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    alone = plan.state()[0].numpy().copy()
    np.testing.assert_allclose(alone, by_hand(*START, 2000)[0], rtol=1e-12)
    assert int(plan._record[0]) == 0


def test_two_plans_do_not_disturb_each_other():
    w, m, x = (qb.array(a) for a in START)
    program, _ = trace(momentum, [w.aval, m.aval, x.aval])
    one = BACKEND.training_plan(program, "cpu", [w, m], [x])
    two = BACKEND.training_plan(program, "cpu", [w, m], [x])
    one.run(5)
    two.run(2)
    np.testing.assert_allclose(one.state()[0].numpy(), by_hand(*START, 5)[0], rtol=1e-14)
    np.testing.assert_allclose(two.state()[0].numpy(), by_hand(*START, 2)[0], rtol=1e-14)


def test_where_code_may_not_run_there_is_no_device(run_python):
    code = (
        "import quabla_cpu.engine as engine, quabla as qb\n"
        "def refuse(*args, **kwargs): raise RuntimeError('no executable memory here')\n"
        "engine.link = engine.load = refuse; print('cpu' in qb.devices())\n"
        "try: qb.jit(lambda x: x, device='cpu')(qb.ones(2))\n"
        "except qb.QuablaError as error: print('no executable memory here' in str(error))"
    )
    assert run_python(code).stdout.split() == ["False", "True"]
