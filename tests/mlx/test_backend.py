"""The MLX backend: what it refuses and when, warnings, threads, memory, and what happens where MLX is missing."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.errors import BackendError, UnsupportedOperationError

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.mlx

Run = Callable[..., Any]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_sin(monkeypatch: pytest.MonkeyPatch) -> None:
    from quabla_mlx.rules import RULES

    monkeypatch.delitem(RULES, "sin")


NEVER_TAKEN = {
    "plain": lambda x: qb.sin(x),
    "branch": lambda x: qb.cond(qb.sum(x) > 1e9, qb.sin, lambda v: v, x),
    "loop": lambda x: qb.fori_loop(0, 1, lambda i, s: qb.sin(s), x),
    "predicate": lambda x: qb.while_loop(lambda s: qb.sum(qb.sin(s)) > 9.0, lambda s: s, x),
    "checkpoint": qb.checkpoint(lambda x: qb.sin(x)),
    "inner": lambda x: qb.scan(lambda s, _: (qb.cond(s[0] > 9.0, qb.sin, lambda v: v, s), s), x, qb.ones(2))[
        0
    ],
}


@pytest.mark.parametrize("name", NEVER_TAKEN)
def test_an_op_without_a_rule_is_refused_before_anything_runs(name: str, without_sin: None) -> None:
    with pytest.raises(UnsupportedOperationError, match="sin: device 'mlx' has no code") as refused:
        qb.jit(NEVER_TAKEN[name], device="mlx").lower(qb.ShapeDtype((2,), qb.float64))
    assert refused.value.op == "sin" and refused.value.device == "mlx"


def test_every_op_of_the_core_has_a_rule() -> None:
    from quabla.backends import registry
    from quabla.ir.op import OPS

    assert set(registry.backend_for("mlx")[0].capabilities.ops) == set(OPS)


# --- float64 without float64 ------------------------------------------------------------------------------------------


def test_on_a_cpu_float64_is_float64_and_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = qb.jit(lambda x: x + 1e-12, device="mlx")(qb.array([1.0]))
    assert out.dtype is qb.float64 and out.item() == 1.0 + 1e-12


def test_a_device_without_float64_warns_once_per_function(narrow: Any) -> None:
    f = qb.jit(lambda x: qb.sin(x) * x, device="mlx")
    with pytest.warns(UserWarning, match="computes float64 in float32") as seen:
        first = f(qb.array([0.5, 1.0]))
        f(qb.array([0.5, 1.0, 2.0]))
    assert len(seen) == 1
    assert first.dtype is qb.float64
    np.testing.assert_allclose(first.numpy(), np.sin([0.5, 1.0]) * [0.5, 1.0], rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert qb.jit(lambda x: x * 2, device="mlx")(qb.ones(2, dtype=qb.float32)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "name", ["model_gradient", "reductions", "products", "positions", "edges", "chain33"]
)
def test_programs_in_float32_for_float64(narrow: Any, name: str) -> None:
    from quabla.testing.composites import composites
    from quabla.testing.table import run_reference, tensors

    (composite,) = [c for c in composites((qb.float64,)) if c.name == name]
    program, x = composite.program(), composite.operands()
    got = narrow.compile(narrow.lower(program, "mlx"))(*tensors(x))
    for a, b in zip(got, run_reference(program, x), strict=True):
        assert a.numpy().dtype == b.dtype
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-3, atol=1e-4)


# --- memory and threads -----------------------------------------------------------------------------------------------


def test_results_outlive_later_calls_and_cannot_be_written() -> None:
    f = qb.jit(lambda x: (x + 1.0, x[::2], x.T, qb.broadcast_to(x[0], (4, 3))), device="mlx")
    x = qb.array(np.arange(6.0).reshape(2, 3))
    first = f(x)
    kept = [t.numpy().copy() for t in first]
    f(x * 100.0)
    for t, k in zip(first, kept, strict=True):
        assert np.array_equal(t.numpy(), k)
        assert not t.numpy().flags.writeable and t.numpy().flags.c_contiguous


def test_constants_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from quabla_mlx.target import Target

    table = qb.array(np.random.default_rng(0).normal(size=(50, 50)))
    f = qb.jit(lambda x: qb.sum(table @ x), device="mlx")
    x = qb.ones(50)
    expected = f(x).item()
    sent: list[tuple[int, ...]] = []
    original = Target.array

    def spy(self: Target, a: np.ndarray) -> Any:
        sent.append(a.shape)
        return original(self, a)

    monkeypatch.setattr(Target, "array", spy)
    assert f(x).item() == expected and sent == [(50,)]


def test_a_large_input_is_sent_once_and_forgotten_with_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    from quabla_mlx.target import Target

    f = qb.jit(lambda x, s: (qb.sum(x * s), x), device="mlx")
    x, s = qb.ones((300, 300)), qb.array(2.0)
    sent: list[tuple[int, ...]] = []
    original = Target.array

    def spy(self: Target, a: np.ndarray) -> Any:
        sent.append(a.shape)
        return original(self, a)

    monkeypatch.setattr(Target, "array", spy)
    first, same = f(x, s)
    second, again = f(x, s)
    assert first.item() == second.item() == 180_000.0 and sent.count((300, 300)) == 1
    assert len({same.address, again.address, x.address}) == 3
    y = x * 3.0
    assert f(y, s)[0].item() == 540_000.0 and f(x, s)[0].item() == 180_000.0
    mx.clear_cache()
    before = mx.get_active_memory()
    del x, y, first, same, second, again
    assert mx.get_active_memory() < before - 500_000


def test_threads_run_at_once_each_its_own_and_a_shared_function() -> None:
    f = qb.jit(qb.value_and_grad(lambda w, x: qb.mean(qb.tanh(x @ w) ** 2)), device="mlx")
    data = [qb.array(np.random.default_rng(k).normal(size=(20, 5))) for k in range(6)]
    w = qb.ones(5)
    expected = [f(w, x)[1].tolist() for x in data]
    wrong: list[Any] = []

    def work(k: int) -> None:
        own = qb.jit(lambda x: qb.sum(qb.sin(x)) + float(k), device="mlx")
        try:
            for _ in range(60):
                if f(w, data[k])[1].tolist() != expected[k]:
                    wrong.append(k)
                if abs(own(data[k]).item() - np.sin(data[k].numpy()).sum() - k) > 1e-9:
                    wrong.append(-k)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts native threads in /proc")
def test_threads_that_end_leave_no_native_threads_behind() -> None:
    f = qb.jit(lambda x: qb.sum(qb.sin(x)), device="mlx")
    x = qb.ones(10)
    f(x)
    before = len(os.listdir("/proc/self/task"))
    for _ in range(40):
        thread = threading.Thread(target=f, args=(x,))
        thread.start()
        thread.join()
    assert len(os.listdir("/proc/self/task")) <= before + 4


def test_what_one_thread_compiled_another_runs() -> None:
    made: list[Any] = []

    def work() -> None:
        f = qb.jit(lambda x: qb.cond(x > 0.0, lambda v: v * 3.0, lambda v: v, x), device="mlx")
        made.append((f, f(qb.array(1.0))))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    f, result = made[0]
    assert result.item() == 3.0 and f(qb.array(2.0)).item() == 6.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_told_so_and_does_not_hang(run_python: Run) -> None:
    done = run_python(
        "import os, sys, warnings\n"
        "import quabla as qb\n"
        "warnings.simplefilter('ignore')\n"
        "f = qb.jit(lambda x: x * 2.0, device='mlx')\n"
        "f(qb.ones(3))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        "        f(qb.ones(3))\n"
        "    except qb.errors.BackendError as error:\n"
        "        os._exit(7 if 'forked' in str(error) else 8)\n"
        "    os._exit(9)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n",
        timeout=60,
    )
    assert done.stdout.strip() == "7"


# --- mx.compile -------------------------------------------------------------------------------------------------------


def test_on_a_cpu_nothing_is_compiled_unless_asked() -> None:
    from quabla_mlx.target import SWITCH, default_target

    if SWITCH not in os.environ:
        target = default_target()
        assert target.fused == target.gpu


@pytest.mark.slow
def test_fused_kernels_lie_in_a_private_folder(run_python: Run, tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib\n"
        f"os.environ['TMPDIR'] = {str(tmp_path)!r}\n"
        "os.environ['QUABLA_MLX_COMPILE'] = '1'\n"
        "import quabla as qb\n"
        "import quabla_mlx.sessions as e\n"
        "f = qb.jit(lambda x: qb.cond(x[0] > 0.0, lambda v: qb.sqrt(v) * v + 1.0, lambda v: v, x), device='mlx')\n"
        "print(f(qb.array([4.0, 9.0], dtype=qb.float32)).tolist())\n"
        "folder = pathlib.Path(e._folder)\n"
        "print(oct(folder.stat().st_mode & 0o777), os.environ['TMPDIR'])\n"
    )
    shown = run_python(code).stdout.splitlines()
    assert shown == ["[9.0, 28.0]", "0o700", f"{tmp_path}"] or shown == ["[9.0, 28.0]", f"0o700 {tmp_path}"]
    assert not (tmp_path / "mlx").exists() and list(tmp_path.iterdir()) == []


# --- where MLX is missing ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="one way to hide a module is enough")
def test_without_mlx_the_plugin_says_what_to_install(run_python: Run) -> None:
    done = run_python(
        "import sys\n"
        "sys.modules['mlx'] = None\n"
        "import quabla as qb\n"
        "print(qb.devices())\n"
        "from quabla.backends import registry\n"
        "(plugin,) = [p for p in registry.plugins() if p.name == 'mlx']\n"
        "print(plugin.state, '|', plugin.reason, '|', plugin.remedy)\n"
        "try:\n"
        "    qb.jit(lambda x: x, device='mlx')(qb.ones(2))\n"
        "except qb.errors.UnsupportedOperationError as error:\n"
        "    print(error)\n"
    )
    devices, report, error = done.stdout.splitlines()
    assert "mlx" not in devices
    assert "MLX cannot be imported" in report and "mlx[cpu]" in report
    assert "MLX cannot be imported" in error


def test_errors_of_mlx_are_blamed_on_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    from quabla_mlx.rules import RULES, Call

    def broken(x: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(RULES, "tan", lambda node, target: Call(broken))
    with pytest.raises(BackendError, match=r"the plugin 'mlx' of quabla-mlx .* no such kernel"):
        qb.jit(lambda x: qb.tan(x), device="mlx")(qb.ones(2))


def test_an_op_without_a_rule_is_expressed_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from quabla_mlx.rules import RULES

    monkeypatch.delitem(RULES, "softplus")
    x = np.array([-3.0, 0.5, 2.0])
    f = qb.jit(lambda v: qb.cond(v[1] > 0.0, qb.softplus, lambda v: v, v), device="mlx")
    np.testing.assert_allclose(f(qb.array(x)).numpy(), np.logaddexp(x, 0.0), rtol=1e-15)


@pytest.mark.parametrize("only", ["op value", "promise"])
def test_without_float64_the_device_conforms(narrow: Any, only: str) -> None:
    from quabla.testing import suite

    report = suite.examine("mlx", only)
    wrong = [v for v in report.verdicts if v.outcome == "wrong"]
    assert report.verdicts and not wrong, wrong
