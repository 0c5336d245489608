"""pickle and copy: what can travel to another process does, and what cannot says what to send instead."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quabla as qb

A = qb.array
MODULE = """
from dataclasses import dataclass

import quabla as qb

def f(x):
    return qb.sum(qb.sin(x) * x)

def power_sum(x, power):
    return qb.sum(x**power)

@dataclass(frozen=True)
class Model:
    scale: float

    @qb.checkpoint
    def energy(self, x):
        return f(x) * self.scale

@qb.jit
def named(x):
    return f(x)

class Holder:
    @qb.grad
    def slope(x):
        return f(x)

@qb.custom_jvp
def own_rule(x):
    return x * x

own_rule.defjvp(lambda primals, tangents: (own_rule(primals[0]), tangents[0] * 7.0))

@qb.custom_vjp
def own_pullback(x):
    return x * x

own_pullback.defvjp(lambda x: (x * x, x), lambda kept, ct: (ct * 5.0,))

@qb.checkpoint
def kept(x):
    return qb.sin(x)

transformed = {
    "jit": qb.jit(f, max_traces=3),
    "grad": qb.grad(f),
    "value_and_grad": qb.value_and_grad(f, argnums=(0,)),
    "jit of grad": qb.jit(qb.grad(f), device="reference"),
    "vmap": qb.vmap(qb.grad(f), in_axes=0, out_axes=-1),
    "hessian": qb.hessian(f),
    "jacobian": qb.jacobian(qb.grad(f), chunk_size=2),
    "static": qb.jit(f, static_argnames=("x",)),
}

checkpointed = qb.checkpoint(f)
scaled = qb.checkpoint(power_sum, static_argnums=1)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "functions_to_pickle.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import functions_to_pickle  # type: ignore[import-not-found]

    yield functions_to_pickle
    del sys.modules["functions_to_pickle"]


def test_transformed_functions_of_a_module_are_pickled(module: Any) -> None:
    x = A([[0.5, 2.0, 3.0]] * 2)
    for name, g in module.transformed.items():
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            back = pickle.loads(pickle.dumps(g, protocol))
            assert repr(back) == repr(g) and type(back) is type(g), name
            assert back.cache is g.cache, name  # one function, whoever holds it
        assert back.max_traces == g.max_traces and back.device == g.device
        if name != "static":
            given = x if name == "vmap" else x[0]
            for a, b in zip(qb.tree.flatten(back(given))[0], qb.tree.flatten(g(given))[0], strict=True):
                assert a.tolist() == b.tolist(), name


def test_a_decorated_function_is_pickled_by_its_name(module: Any) -> None:
    for g in (module.named, module.Holder.slope, module.own_rule, module.own_pullback, module.kept):
        assert pickle.loads(pickle.dumps(g)) is g
    slopes = [qb.jit(qb.grad(g)) for g in (module.own_rule, module.own_pullback)]
    assert [g(2.0).item() for g in pickle.loads(pickle.dumps(slopes))] == [7.0, 5.0]


def test_a_checkpoint_is_pickled_however_it_was_made(module: Any) -> None:
    x = A([0.5, 2.0])
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(module.checkpointed, protocol))
        assert (
            back is not module.checkpointed and repr(back) == repr(module.checkpointed) == "<checkpoint(f)>"
        )
        assert qb.grad(back)(x).tolist() == qb.grad(module.f)(x).tolist()
        scaled = pickle.loads(pickle.dumps(module.scaled, protocol))
        assert qb.grad(lambda x, g=scaled: g(x, 3))(x).tolist() == [0.75, 12.0]
    slope = pickle.loads(pickle.dumps(qb.jit(qb.grad(module.checkpointed))))
    np.testing.assert_allclose(np.asarray(slope(x)), np.asarray(qb.grad(module.f)(x)), rtol=1e-15)
    assert pickle.loads(pickle.dumps(module.Model.energy)) is module.Model.energy
    twice = qb.grad(module.Model(2.0).energy)(x)
    np.testing.assert_allclose(np.asarray(twice), 2.0 * np.asarray(qb.grad(module.f)(x)), rtol=1e-15)
    assert copy.deepcopy([module.checkpointed])[0] is module.checkpointed


def test_another_process_gets_the_function(
    module: Any, run_python: Callable[..., Any], tmp_path: Path
) -> None:
    data = pickle.dumps((module.transformed["hessian"], module.named))
    done = run_python(
        f"import sys, pickle; sys.path.insert(0, {str(tmp_path)!r})\nimport quabla as qb\n"
        f"h, f = pickle.loads({data!r})\nx = qb.array([0.5, 2.0])\nprint(h(x).tolist(), f(x).item())"
    )
    x = np.array([0.5, 2.0])
    found = eval(done.stdout.replace("] ]", "]]").strip().replace("]] ", "]], "))
    np.testing.assert_allclose(found[0], np.diag(2 * np.cos(x) - x * np.sin(x)), rtol=1e-12)
    assert found[1] == pytest.approx(np.sum(np.sin(x) * x))


def test_a_function_without_a_name_is_refused_by_pickle_itself() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(qb.jit(lambda x: x))


def lowered() -> Any:
    c = A([1.0, 2.0, 3.0])
    return qb.jit(lambda p, x: {"y": qb.fori_loop(0, 3, lambda i, s: qb.sin(s) + p["w"], x * c)}).lower(
        {"w": qb.ShapeDtype(())}, qb.ShapeDtype((3,))
    )


@pytest.mark.parametrize("through", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy])
def test_programs_travel(through: Callable[[Any], Any]) -> None:
    program = lowered().program
    back = through(program)
    assert back.lower_text() == program.lower_text() and back.input_names == program.input_names
    inputs = {"p/w": A(0.5), "x": A([1.0, 2.0, 3.0])}
    run = [p.compile("reference")(inputs) for p in (program, back)]
    assert [x.tolist() for x in run[0]] == [x.tolist() for x in run[1]]


def test_a_damaged_pickle_of_a_program_is_a_clear_error() -> None:
    data = pickle.dumps(lowered().program)
    cut = data.replace(b"constants.bin", b"constants.bix")
    with pytest.raises(qb.FileFormatError, match="unpickling a program"):
        pickle.loads(cut)


def test_what_belongs_to_this_process_says_what_to_send() -> None:
    made = lowered()
    compiled = made.compile()
    trainer = qb.optim.Trainer(lambda w: qb.sum(w * w), A([1.0]), qb.optim.SGD(0.1))
    executable = made.program.compile("reference")
    for what, words in (
        (made, "lowered.program.*load_program"),
        (compiled, "load_program"),
        (executable, "pickle its program"),
        (trainer, "get_state"),
    ):
        with pytest.raises(qb.UnsupportedOperationError, match=words) as info:
            pickle.dumps(what)
        assert info.value.op == "pickle"
    for what in (made, compiled):
        assert copy.copy(what) is what and copy.deepcopy(what) is what
    for through in (copy.copy, copy.deepcopy):
        with pytest.raises(qb.UnsupportedOperationError, match="get_state"):
            through(trainer)
    state = pickle.loads(pickle.dumps(trainer.get_state()))
    trainer.step()
    trainer.set_state(state)
    assert trainer.params.tolist() == [1.0]
