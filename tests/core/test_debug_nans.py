"""`debug_nans`: operation, values and the user's line, backwards and in loops; and nothing at all while it is off."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays import tracer
from quabla.arrays.tracer import LIVE
from quabla.transforms import dispatch

A = qb.array
S = qb.ShapeDtype


@pytest.fixture(autouse=True)
def off_again() -> Iterator[None]:
    yield
    assert not dispatch.CHECKS and not LIVE and not tracer.WATCHES


def line_of(fun: Callable[..., Any], text: str) -> str:
    """ "file, line N: source" of the line of a function that holds `text`."""
    lines, first = inspect.getsourcelines(fun)
    offset = next(i for i, line in enumerate(lines) if text in line and "def " not in line)
    return f"{__file__}, line {first + offset}: {lines[offset].strip()}"


def found(call: Callable[[], Any]) -> qb.NanError:
    with qb.debug_nans(), pytest.raises(qb.NanError) as info:
        call()
    assert isinstance(info.value, FloatingPointError)
    return info.value


def entropy(p: Any) -> Any:
    shifted = p - 0.5
    logs = qb.log(shifted)
    return -qb.sum(p * logs)


def test_the_operation_its_values_and_the_line() -> None:
    error = found(lambda: qb.jit(entropy)(A([1.0, 0.25])))
    assert error.op == "log"
    assert error.line == line_of(entropy, "qb.log")
    assert "log(-0.25) at index (1,) of float64[2]" in str(error)
    assert error.line in str(error) and str(error).startswith("jit(entropy): ")
    np.testing.assert_array_equal(error.operands[0], [0.5, -0.25])


@pytest.mark.parametrize(
    "transform",
    [
        qb.grad,
        qb.value_and_grad,
        lambda f: qb.vmap(qb.grad(f)),
        lambda f: qb.jit(f, device="reference"),
        lambda f: lambda x: qb.jvp(f, (x,), (x,)),
        lambda f: lambda x: qb.vjp(f, x),
        lambda f: qb.jit(f).lower(S((2,))).compile(),
        lambda f: qb.jit(lambda x: f(x), static_argnums=()),
    ],
)
def test_under_every_transform(transform: Any) -> None:
    f = transform(entropy)
    x = A([1.0, 0.25])
    error = found(lambda: f(qb.stack([x, x]) if "vmap" in repr(f) else x))
    assert (error.op, error.line) == ("log", line_of(entropy, "qb.log"))


def distance(x: Any) -> Any:
    squares = x * x
    return qb.sum(qb.log(qb.cos(squares)) / squares)


def test_a_nan_of_the_backward_pass_alone() -> None:
    def f(x: Any) -> Any:
        inner = qb.where(x > 0.0, x, 0.0)
        return qb.sum(qb.where(x > 0.0, qb.log(inner) * inner, 0.0))

    with qb.debug_nans():
        assert qb.jit(f)(A([1.0, 2.0])).item() == pytest.approx(2 * np.log(2))

    def kink(x: Any) -> Any:
        ratio = qb.exp(x) / qb.exp(2.0 * x)
        return qb.sum(ratio)

    assert np.isfinite(qb.jit(kink)(A([1.0, 360.0])).item())
    error = found(lambda: qb.grad(kink)(A([1.0, 360.0])))
    assert "in the backward pass of the line" in str(error)
    assert error.line == line_of(kink, "ratio =")


def test_the_value_with_a_nan_is_followed_not_a_masked_one() -> None:
    def masked(x: Any) -> Any:
        harmless = qb.where(x > 0.0, qb.log(x), 0.0)
        return qb.sum(harmless) + qb.sum(qb.sqrt(x + 1.0))

    error = found(lambda: qb.jit(masked)(A([-2.0, 1.0])))
    assert (error.op, error.line) == ("sqrt", line_of(masked, "qb.sqrt"))
    with qb.debug_nans():
        qb.jit(masked)(A([-0.5, 1.0]))


def falling(x: Any) -> Any:
    def step(i: Any, c: Any) -> Any:
        return c - 0.3 * qb.sqrt(c)

    return qb.sum(qb.fori_loop(0, 20, step, x))


@pytest.mark.parametrize("transform", [lambda f: f, qb.grad, qb.hessian])
def test_within_loops_the_step_is_named(transform: Any) -> None:
    c, k = 0.05, 0
    while c >= 0.0:
        c, k = c - 0.3 * np.sqrt(c), k + 1
    error = found(lambda: qb.jit(transform(falling))(A([9.0, 0.05])))
    assert error.op == "sqrt"
    assert f"step {k} of a scan or fori_loop" in str(error)
    assert error.line == line_of(falling, "qb.sqrt")


def test_within_branches_and_loops_in_loops() -> None:
    def f(x: Any) -> Any:
        def risky(y: Any) -> Any:
            return qb.while_loop(lambda c: c > -1.0, lambda c: c - qb.sqrt(c), y)

        return qb.fori_loop(0, 3, lambda i, c: qb.cond(c > 1.0, risky, lambda y: y + 1.0, c), x)

    error = found(lambda: qb.jit(f)(A(0.5)))
    assert error.op == "sqrt" and error.line == line_of(f, "qb.sqrt")
    text = str(error)
    assert (
        text.index("of a while_loop")
        < text.index("true branch of cond")
        < text.index("step 1 of a scan or fori_loop")
    )


def test_within_checkpoints_and_custom_rules() -> None:
    error = found(lambda: qb.grad(lambda x: qb.checkpoint(entropy)(x))(A([1.0, 0.25])))
    assert error.line == line_of(entropy, "qb.log")

    @qb.custom_vjp
    def clipped(x: Any) -> Any:
        return x * x

    def backward(x: Any, ct: Any) -> Any:
        return (ct * qb.log(x - 5.0),)

    clipped.defvjp(lambda x: (x * x, x), backward)
    error = found(lambda: qb.grad(clipped)(2.0))
    assert (error.op, error.line) == ("log", line_of(backward, "qb.log"))


def test_what_is_not_pointwise_shows_its_operands() -> None:
    def f(a: Any, b: Any) -> Any:
        return qb.solve(a, b)

    error = found(lambda: qb.jit(f)(qb.zeros((2, 2)), A([1.0, 2.0])))
    assert error.op == "solve" and "float64[2,2] [[0., 0.], [0., 0.]]" in str(error)
    assert len(str(found(lambda: qb.jit(f)(qb.zeros((90, 90)), qb.ones((90,)))))) < 800


def test_nan_that_was_there_before() -> None:
    error = found(lambda: qb.jit(lambda p, x: p["w"] * x)({"w": A([1.0, 2.0])}, A([3.0, float("nan")])))
    assert error.op is None and "the argument x (float64[2]) holds NaN already, at index (1,)" in str(error)
    error = found(lambda: qb.jit(lambda x: x + A([1.0, float("nan")]))(A([1.0, 2.0])))
    assert "a constant (float64[2])" in str(error)


def test_bool_and_integer_results_and_finite_ones_pass() -> None:
    with qb.debug_nans():
        assert qb.jit(lambda x: (x > 0.0, qb.argmax(x), 1.0 / x, "aux" and 1))(A([1.0, 0.0]))[2].tolist() == [
            1.0,
            np.inf,
        ]


EAGER: dict[str, tuple[Callable[[], Any], str, str]] = {
    "function": (lambda: qb.log(A([1.0, -2.0])), "log", "log(-2.0) at index (1,) of float64[2]"),
    "operator": (lambda: A([0.0, 1.0]) / A([[0.0], [1.0]]), "div", "div(0.0, 0.0) at index (0, 0)"),
    "reflected": (lambda: np.array([np.inf, 1.0]) - A(np.inf), "sub", "sub(inf, inf) at index (0,)"),
    "method": (lambda: A([-1.0]).sqrt(), "sqrt", "sqrt(-1.0) at index (0,)"),
    "view": (lambda: A([4.0, -1.0]).slice(0, 1, 1) ** 1.5, "power", "power(-1.0, 1.5) at index (0,)"),
    "reduction": (lambda: qb.sum(A([np.inf, -np.inf])), "reduce_sum", "[inf, -inf]"),
    "product": (lambda: A([[0.0]]) @ A([np.inf]), "dot_general", "[inf]"),
    "system": (lambda: qb.solve(qb.zeros((2, 2)), qb.ones(2)), "solve", "[[0., 0.], [0., 0.]]"),
    "single": (lambda: qb.log(A(-1.0, dtype=qb.float32)), "log", "log(-1.0)"),
    "loop": (lambda: qb.fori_loop(0, 2, lambda i, c: qb.log(c - i), A(0.5)), "log", "log(-"),
}


@pytest.mark.parametrize("name", EAGER)
def test_single_operations(name: str) -> None:
    call, op, shown = EAGER[name]
    assert any(
        np.isnan(x.numpy()).any() for x in qb.tree.flatten(call())[0]
    )  # off, a NaN is a number like others
    error = found(call)
    assert error.op == op and str(error).startswith(f"{op}: NaN comes from {op}(") and shown in str(error)
    assert error.line is not None and error.line.startswith(f"{__file__}, line ") and error.line in str(error)
    assert not any(np.isnan(x).any() for x in error.operands)
    assert any(np.isnan(x.numpy()).any() for x in qb.tree.flatten(call())[0])


def test_single_operations_that_make_no_nan_pass() -> None:
    """What comes in as NaN or was written down is the user's, and a function that chooses its lanes makes none."""
    nan, zero, inf = A([np.nan, 1.0]), A([0.0, 1.0]), A([np.inf, -np.inf])
    with qb.debug_nans():
        assert np.isnan((nan * 2.0 + 1.0).numpy()[0]) and qb.nan_to_num(nan).tolist() == [0.0, 1.0]
        assert qb.nanmean(nan).item() == 1.0 and qb.isnan(nan).tolist() == [True, False]
        assert np.isnan(qb.full((2,), np.nan).numpy()).all()
        assert qb.where(zero > 0.0, zero, np.nan).shape == (2,)
        assert qb.floor_divide(A([1.0, -1.0]), 0.0).tolist() == [np.inf, -np.inf]
        assert qb.hypot(inf, inf).tolist() == [np.inf, np.inf]
        assert qb.logaddexp(inf, inf).tolist() == [np.inf, -np.inf]
        assert qb.norm(zero * 0.0).item() == 0.0 and qb.softmax(A([-np.inf, 0.0])).tolist() == [0.0, 1.0]
        # Within a trace the result counts, not a constant on the way.
        assert qb.jit(lambda x: qb.where(x > 9.0, qb.log(A(-1.0)), x))(A(1.0)).item() == 1.0


def test_switching() -> None:
    f = qb.jit(lambda x: qb.log(x))
    bad = A(-1.0)
    assert np.isnan(f(bad).item())
    qb.debug_nans()
    try:
        with pytest.raises(qb.NanError):
            f(bad)
        with qb.debug_nans(False):
            assert np.isnan(f(bad).item())
        with pytest.raises(qb.NanError):
            f(bad)
        with qb.debug_nans(), pytest.raises(qb.NanError):
            f(bad)
        with pytest.raises(qb.NanError):
            f(bad)
    finally:
        qb.debug_nans(False)
    assert np.isnan(f(bad).item())


def diverging(w: Any, x: Any) -> Any:
    shifted = w - x
    return qb.mean(qb.sqrt(shifted) ** 3)


def test_steps_of_a_trainer_made_while_it_is_on() -> None:
    made = {"loss": diverging, "params": A(1.0), "optimizer": qb.optim.SGD(0.5)}
    with qb.debug_nans():
        trainer = qb.optim.Trainer(*made.values(), A([0.0, 0.5]))
        batched = qb.optim.Trainer(*made.values(), A([0.0, 0.5]), batch_argnums=0)
    for step in (lambda: trainer.run(50), lambda: batched.step(A([0.0, 1.5]))):
        with pytest.raises(qb.NanError) as info:
            step()
        assert info.value.op == "sqrt" and info.value.line == line_of(diverging, "qb.sqrt")
        assert str(info.value).startswith("Trainer(diverging): NaN comes from sqrt(-")
    plain = qb.optim.Trainer(*made.values(), A([0.0, 0.5]))
    plain.run(50)
    assert np.isnan(plain.loss().item())


def test_a_watched_trainer_trains_alike() -> None:
    loss = lambda w: qb.sum((w - A([1.0, 2.0])) ** 2)
    with qb.debug_nans():
        watched = qb.optim.Trainer(loss, A([0.0, 0.0]), qb.optim.Adam(0.1))
    plain = qb.optim.Trainer(loss, A([0.0, 0.0]), qb.optim.Adam(0.1))
    watched.run(20)
    plain.run(20)
    assert watched.params.tolist() == plain.params.tolist() and watched.loss().item() == plain.loss().item()
    watched.set_state(plain.get_state())


def test_an_error_within_the_block_switches_it_off() -> None:
    with pytest.raises(KeyError), qb.debug_nans():
        raise KeyError
    assert not dispatch.CHECKS


def test_other_threads_look_too() -> None:
    f = qb.jit(lambda x: qb.fori_loop(0, 3, lambda i, c: qb.log(c), x))
    errors = []

    def work() -> None:
        try:
            f(A(-1.0))
        except qb.NanError as error:
            errors.append(error)

    with qb.debug_nans():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert len(errors) == 4 and all("step 0 of a scan or fori_loop" in str(e) and e.line for e in errors)
    assert type(tracer.Frame(0).nodes) is list


@pytest.mark.cpu
def test_off_it_leaves_the_short_way_in_alone() -> None:
    f = qb.jit(lambda x: qb.log(x))
    f(A(1.0))
    with qb.debug_nans():
        f(A(2.0))
    slow = dispatch.slow_call
    calls = []
    try:
        dispatch.slow_call = lambda *a: calls.append(a) or slow(*a)
        f(A(3.0))
    finally:
        dispatch.slow_call = slow
    assert not calls and f.cache.guard is not slow
