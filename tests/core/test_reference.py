"""The reference backend: the executor that defines results, and the plan that any backend can use."""

from __future__ import annotations

import gc
import math
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import constant_op, trace
from quabla.backends.generic_plan import GenericTrainingPlan
from quabla.backends.reference import ReferenceBackend, build
from quabla.ir.op import OPS, Op, Refused
from quabla.ir.program import Node, Program, Value

BACKEND = ReferenceBackend()


def compiled(fun: Any, *arrays: np.ndarray) -> Any:
    program, captures = trace(fun, [qb.ShapeDtype(a.shape, a.dtype) for a in arrays])
    assert not captures
    return BACKEND.compile(BACKEND.lower(program, "reference"))


def run(fun: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    return [t.numpy() for t in compiled(fun, *arrays)(*map(qb.array, arrays))]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_program_computes_what_numpy_computes(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(5, 3)).astype(dtype), rng.normal(size=(3, 4)).astype(dtype)
    b = rng.normal(size=4).astype(dtype)
    (out, loss, mask) = run(lambda x, w, b: ((h := qb.tanh(x @ w + b)), qb.sum(h * h), h > 0.25), x, w, b)
    h = np.tanh(x @ w + b)
    assert out.dtype == dtype and loss.dtype == dtype and mask.dtype == np.bool_ and loss.shape == ()
    np.testing.assert_array_equal(out, h)
    np.testing.assert_allclose(loss, np.sum(h * h), rtol=1e-6)
    np.testing.assert_array_equal(mask, h > 0.25)


def test_constants_inputs_and_repeated_outputs() -> None:
    table = qb.array([[1.0, 2.0], [3.0, 4.0]])
    executable = compiled(
        lambda x: (table, x, x + table, table, x, qb.reshape(x, (4,)), x + table), np.ones((2, 2))
    )
    x = qb.array(np.full((2, 2), 5.0))
    outs = executable(x)
    for got, expected in zip(outs, [table, x, None, table, x, None, None], strict=True):
        if expected is not None:
            np.testing.assert_array_equal(got.numpy(), expected.numpy())
    for i in (2, 6):
        np.testing.assert_array_equal(outs[i].numpy(), [[6.0, 7.0], [8.0, 9.0]])
    # Results own their memory: no two overlap, and none overlaps an input or a constant.
    everything = [*outs, x, table]
    for i, a in enumerate(everything):
        for b in everything[:i]:
            assert not np.shares_memory(a.numpy(), b.numpy())
        assert a.address == a.numpy().__array_interface__["data"][0]


def test_views_of_intermediate_values_own_their_memory() -> None:
    executable = compiled(lambda x: ((y := x * 2.0), qb.reshape(y, (3, 2)), qb.transpose(y)), np.ones((2, 3)))
    a, b, c = executable(qb.array(np.arange(6.0).reshape(2, 3)))
    assert not np.shares_memory(a.numpy(), b.numpy()) and not np.shares_memory(a.numpy(), c.numpy())
    np.testing.assert_array_equal(c.numpy(), 2 * np.arange(6.0).reshape(2, 3).T)
    assert c.numpy().flags.c_contiguous and not c.numpy().flags.writeable


def test_inputs_are_not_kept_and_intermediate_values_are_let_go() -> None:
    executable = compiled(lambda x: (qb.sum(qb.exp(x)),), np.ones(4))
    x = qb.array(np.ones(4))
    gone = weakref.ref(x)
    executable(x)
    del x
    gc.collect()
    assert gone() is None
    exp, total = executable.steps
    assert exp.free == exp.ins and exp.outs[0] in total.free, "the operand of a last use is freed"
    assert total.outs[0] == executable.results[0] and total.outs[0] not in total.free


def test_memory_is_given_back_while_the_program_runs() -> None:
    program, _ = trace(lambda x: (qb.exp(qb.cos(qb.sin(qb.tanh(x)))),), [qb.ShapeDtype((100,))])
    made: list[weakref.ref[np.ndarray]] = []
    alive: list[int] = []

    def choose(node: Node) -> Any:
        def evaluate(*arrays: np.ndarray) -> np.ndarray:
            alive.append(sum(ref() is not None for ref in made))
            out = node.op.evaluate(*arrays)
            made.append(weakref.ref(out))
            return out

        return evaluate

    build(program, choose)(qb.array(np.ones(100)))
    assert alive == [0, 1, 1, 1]


def test_ops_with_several_results() -> None:
    pair = Op(
        name="test_divmod",
        infer=lambda x, y: (x, y),
        evaluate=lambda x, y: np.divmod(x, y),
        jvp=Refused("a test"),
        batch=Refused("a test"),
        multiple=True,
    )
    aval = qb.ShapeDtype((3,))
    inputs = tuple(_value(aval) for _ in range(2))
    node = Node(pair, inputs, {})
    node.outputs = tuple(_value(aval, node, i) for i in range(2))
    program = Program(inputs, (node,), (node.outputs[1], node.outputs[0]))
    x, y = np.array([7.0, -7.0, 2.5]), np.array([2.0, 2.0, 0.5])
    remainder, quotient = build(program)(qb.array(x), qb.array(y))
    np.testing.assert_array_equal(quotient.numpy(), np.floor(x / y))
    np.testing.assert_array_equal(remainder.numpy(), x - np.floor(x / y) * y)
    assert (
        "v0.0: float64[3], v0.1: float64[3] = test_divmod(x0, x1)"
        in BACKEND.lower(program, "reference").as_text()
    )


def _value(aval: Any, node: Any = None, index: int = 0) -> Value:
    v = Value()
    v.aval, v.node, v.index = aval, node, index
    return v


def test_an_op_that_breaks_its_own_rules_is_reported() -> None:
    program, _ = trace(lambda x: (qb.exp(x),), [qb.ShapeDtype((3,))])
    x = qb.array([1.0, 2.0, 3.0])
    with pytest.raises(qb.BackendError, match=r"exp: evaluated to shape \(2,\).*float64\[3\]"):
        build(program, lambda node: lambda a: a[:2])(x)
    with pytest.raises(qb.BackendError, match="exp: evaluated to 2 results, not 1"):
        build(program, lambda node: lambda a: (a, a))(x)


def test_a_backend_may_choose_how_a_node_is_evaluated() -> None:
    program, _ = trace(lambda x: (qb.exp(x) + x,), [qb.ShapeDtype((2,))])
    names = []

    def choose(node: Node) -> Any:
        names.append(node.op.name)
        return np.expm1 if node.op.name == "exp" else node.op.evaluate

    (out,) = build(program, choose)(qb.array([1.0, 2.0]))
    np.testing.assert_array_equal(out.numpy(), np.expm1(np.array([1.0, 2.0])) + np.array([1.0, 2.0]))
    assert sorted(names) == ["add", "exp"]


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        ([], qb.ShapeError, "takes 1 inputs, got 0"),
        ([np.ones(3)], qb.ShapeError, r"input 0 is float64\[3\] where the program takes float64\[2\]"),
        (
            [np.ones(2, np.float32)],
            qb.DtypeError,
            r"input 0 is float32\[2\] where the program takes float64\[2\]",
        ),
    ],
)
def test_inputs_of_another_type_are_refused(inputs: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        compiled(lambda x: (x,), np.ones(2))(*map(qb.array, inputs))


def test_floating_point_exceptions_are_values_not_warnings() -> None:
    with np.errstate(all="raise"):
        (out,) = run(lambda x: (qb.log(x) + qb.exp(1e3 * x),), np.array([-1.0, 0.0, 1.0]))
    assert math.isnan(out[0]) and out[1] == -math.inf and out[2] == math.inf


def test_many_threads_and_the_same_bits() -> None:
    rng = np.random.default_rng(1)
    executable = compiled(lambda x: (qb.sum(qb.tanh(x @ x)),), np.ones((20, 20)))
    xs = [qb.array(rng.normal(size=(20, 20))) for _ in range(8)]
    expected = [executable(x)[0].numpy().item() for x in xs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            assert [t[0].numpy().item() for t in pool.map(executable, xs)] == expected


def test_the_text_shows_every_node() -> None:
    program, _ = trace(lambda x, y: (qb.exp(x) * y, y), [qb.ShapeDtype((2,))] * 2, ["a", "b"])
    assert BACKEND.lower(program, "reference").as_text().splitlines() == [
        "device reference",
        "input a: float64[2]",
        "input b: float64[2]",
        "v0: float64[2] = exp(a)",
        "v1: float64[2] = mul(v0, b)",
        "return v1, b",
    ]


def test_it_can_do_everything() -> None:
    assert set(BACKEND.capabilities.ops) == set(OPS) and constant_op.name in OPS
    assert all(BACKEND.capabilities.supports("tanh", d) for d in ("float64", "float32"))


# ---- the generic training plan

STATE, DATA = qb.array([3.0, -2.0]), qb.array([1.0, 0.5])
STEP, _ = trace(
    lambda w, x: (w - 0.1 * (w - x), qb.sum((w - x) * (w - x))), [qb.ShapeDtype((2,)), qb.ShapeDtype((2,))]
)


def plan() -> Any:
    return BACKEND.training_plan(STEP, "reference", [STATE], [DATA])


def by_hand(w: np.ndarray, x: np.ndarray, steps: int) -> tuple[np.ndarray, float]:
    loss = math.nan
    for _ in range(steps):
        loss = float(np.sum((w - x) * (w - x)))
        w = w - 0.1 * (w - x)
    return w, loss


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_a_plan_steps(steps: int) -> None:
    one, many = plan(), plan()
    for _ in range(steps):
        one.step()
    many.run(steps)
    w, loss = by_hand(STATE.numpy(), DATA.numpy(), steps)
    for p in (one, many):
        (state,) = p.state()
        np.testing.assert_allclose(state.numpy(), w, rtol=1e-15)
        np.testing.assert_allclose(p.loss().item(), loss, rtol=1e-14)
    np.testing.assert_array_equal(STATE.numpy(), [3.0, -2.0])


def test_state_and_data_can_be_replaced() -> None:
    p = plan()
    p.run(3)
    p.set_state([qb.array([0.0, 1.0])])
    p.replace(0, qb.array([5.0, 5.0]))
    p.step()
    w, loss = by_hand(np.array([0.0, 1.0]), np.array([5.0, 5.0]), 1)
    np.testing.assert_allclose(p.state()[0].numpy(), w)
    assert p.loss().item() == loss


def test_steps_from_many_threads_are_all_taken() -> None:
    count, _ = trace(lambda n: (n + 1.0, n), [qb.ShapeDtype(())])

    def choose(node: Node) -> Any:
        def evaluate(*arrays: Any, **params: Any) -> Any:
            time.sleep(1e-3)  # lets another thread in between the reading and the writing of the state
            return node.op.evaluate(*arrays, **params)

        return evaluate

    p = GenericTrainingPlan(build(count, choose), [qb.array(0.0)], [])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: p.run(5), range(8)))
    assert p.state()[0].item() == 40.0


def test_a_step_within_a_step_is_taken_too() -> None:
    """As a signal's handler takes it."""
    count, _ = trace(lambda n: (n + 1.0, n), [qb.ShapeDtype(())])
    within: list[Any] = [lambda: p.step(), lambda: p.set_state([qb.array(7.0)])]

    def choose(node: Node) -> Any:
        def evaluate(*arrays: Any, **params: Any) -> Any:
            if within:
                within.pop(0)()
            return node.op.evaluate(*arrays, **params)

        return evaluate

    p = GenericTrainingPlan(build(count, choose), [qb.array(0.0)], [])
    p.step()
    assert p.state()[0].item() == 9.0


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (lambda p: p.set_state([]), qb.ShapeError, "takes 1 states, got 0"),
        (lambda p: p.set_state([qb.array([1.0])]), qb.ShapeError, r"state 0 is float64\[1\].*float64\[2\]"),
        (lambda p: p.replace(1, DATA), qb.ShapeError, "1 data inputs.*index 1"),
        (lambda p: p.replace(-1, DATA), qb.ShapeError, "index -1"),
        (
            lambda p: p.replace(0, wrap(np.ones(2, np.float32))),
            qb.DtypeError,
            r"float32\[2\].*astype\(quabla.float64\)",
        ),
    ],
)
def test_a_plan_refuses_what_does_not_fit(act: Any, error: Any, text: str) -> None:
    p = plan()
    with pytest.raises(error, match=text):
        act(p)
    p.step()
    np.testing.assert_allclose(p.state()[0].numpy(), by_hand(STATE.numpy(), DATA.numpy(), 1)[0])


@pytest.mark.parametrize(
    ("fun", "state", "data", "text"),
    [
        (lambda w, x: (w, x), [STATE], [DATA], "the loss"),
        (lambda w: (w,), [STATE], [], "returns 2 outputs; this program has 1 and 1"),
        (lambda w, x: (w, qb.sum(x)), [STATE, DATA], [DATA], "takes 3 inputs"),
        (lambda w, x: (w[:1], qb.sum(x)), [STATE], [DATA], r"state 0 is .* becomes float64\[1\]"),
    ],
)
def test_a_program_that_is_no_step_is_refused(fun: Any, state: Any, data: Any, text: str) -> None:
    inputs = [t.aval for t in (state + data)][: fun.__code__.co_argcount]
    program, _ = trace(fun, inputs)
    with pytest.raises(qb.ShapeError, match=text):
        GenericTrainingPlan(build(program), state, data)
