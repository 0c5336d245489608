"""Functions beneath transforms in a trace: traced once per signature, and again where what they read has changed."""

from __future__ import annotations

import gc
import linecache
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays import tracer

A = qb.array
X = A([1.0, 2.0, 3.0])
S = qb.ShapeDtype


class Counted:
    """Counts how often a function is traced, in a variable of the function."""

    def __init__(self, f: Callable[..., Any]) -> None:
        traces = [0]

        def counted(*args: Any, **kwargs: Any) -> Any:
            traces[0] += 1
            return f(*args, **kwargs)

        self.traces, self.fun = traces, counted


def square(x: Any) -> Any:
    return qb.sum(x**2.0)


TRANSFORMS: dict[str, tuple[Callable[[Any], Callable[..., Any]], Callable[[Any], Any]]] = {
    # what is applied to `square`, and what then comes out
    "grad": (qb.grad, lambda x: 2.0 * x),
    "value_and_grad": (lambda f: lambda x: qb.value_and_grad(f)(x)[1], lambda x: 2.0 * x),
    "with aux": (
        lambda f: lambda x: qb.grad(lambda x: (f(x), x), has_aux=True)(x)[0],
        lambda x: 2.0 * x,
    ),
    "jacobian": (qb.jacobian, lambda x: 2.0 * x),
    "hessian": (qb.hessian, lambda x: 2.0 * np.eye(3)),
    "jvp": (lambda f: lambda x: qb.jvp(f, (x,), (x,))[1], lambda x: 2.0 * (x**2).sum()),
    "vjp": (lambda f: lambda x: qb.vjp(f, x)[1](A(1.0))[0], lambda x: 2.0 * x),
    "vmap": (lambda f: lambda x: qb.vmap(f)(qb.stack([x, x]))[0], lambda x: (x**2).sum()),
    "vmap of grad": (lambda f: lambda x: qb.vmap(qb.grad(f))(qb.stack([x, x]))[0], lambda x: 2.0 * x),
    "grad of vmap": (
        lambda f: lambda x: qb.grad(lambda x: qb.sum(qb.vmap(f)(qb.stack([x, x]))))(x), lambda x: 4.0 * x,
    ),
    "jit of grad": (lambda f: qb.jit(qb.grad(f)), lambda x: 2.0 * x),
    "grad of jit": (lambda f: qb.grad(qb.jit(f)), lambda x: 2.0 * x),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in TRANSFORMS if n not in ("with aux", "grad of vmap")])
def test_a_function_is_traced_once_for_all_calls_and_all_traces(name: str) -> None:
    make, wanted = TRANSFORMS[name]
    inner = Counted(square)
    transformed = make(inner.fun)
    for _ in range(2):
        out = qb.jit(lambda x: [transformed(x + float(i)) for i in range(10)], device="reference")(X)
        for i, found in enumerate(out):
            np.testing.assert_allclose(found.numpy(), wanted(X.numpy() + i), rtol=1e-14)
        if name != "vjp":  # which traces the function each time for the value
            assert inner.traces[0] == 1


@pytest.mark.parametrize("name", TRANSFORMS)
def test_programs_are_those_of_a_function_traced_each_time(name: str) -> None:
    make, _ = TRANSFORMS[name]
    text = qb.jit(lambda x: [make(square)(x), make(square)(2.0 * x)]).lower(S((3,))).as_text()
    fresh = (
        qb.jit(lambda x: [make(lambda x: square(x))(x), make(lambda x: square(x))(2.0 * x)])
        .lower(S((3,)))
        .as_text()
    )
    again = qb.jit(lambda x: [make(square)(x), make(square)(2.0 * x)]).lower(S((3,))).as_text()
    assert text == fresh == again


def test_a_function_made_anew_by_a_transform_is_found() -> None:
    inner = Counted(square)
    qb.jit(lambda x: [qb.grad(inner.fun)(x) for _ in range(5)]).lower(S((3,)))
    qb.jit(lambda x: qb.value_and_grad(inner.fun)(x)).lower(S((3,)))
    assert inner.traces[0] == 2  # another chain of transforms takes results apart in another way


# --- signatures, and how many are kept --------------------------------------------------------------------------------


def test_shapes_dtypes_weakness_and_keywords_are_signatures() -> None:
    def f(x: Any, *, k: Any = 1.0, flag: bool = False) -> Any:
        return qb.sum(x * k) if flag else qb.sum(x * x * k)

    inner = Counted(f)
    g = qb.grad(inner.fun)

    def outer(x: Any, y: Any) -> Any:
        weak = qb.sum(x) * 0.0 + 1.0
        return [
            g(x), g(x, k=2.0), g(x, k=y), g(x, k=2.0, flag=True), g(x, flag=True, k=2.0),
            g(x.astype("float32")), g(weak), g(x[:2]), g(x, k=True), g(x, k=1), g(x, k=-0.0), g(x, k=0.0),
        ]  # fmt: skip

    first = qb.jit(outer, device="reference")(X, A(3.0))
    wanted = [
        2 * X.numpy(), 4 * X.numpy(), 6 * X.numpy(), [2.0] * 3, [2.0] * 3, 2 * X.numpy(), 2.0, [2.0, 4.0],
        2 * X.numpy(), 2 * X.numpy(), [-0.0] * 3, [0.0] * 3,
    ]  # fmt: skip
    for x, y in zip(first, wanted, strict=True):
        np.testing.assert_array_equal(x.numpy(), y)
    assert [str(np.signbit(x.numpy()).any()) for x in first[-2:]] == ["True", "False"]
    assert [x.dtype for x in first].count(qb.float32) == 1


def test_the_bound_is_no_error_and_what_is_beyond_is_traced() -> None:
    inner = Counted(lambda x, s: qb.sum(x * s))
    g = qb.grad(inner.fun)
    for times in (1, 2):
        out = qb.jit(lambda x: [g(x, float(s)) for s in range(20)], device="reference")(X)
        assert [x.tolist() for x in out] == [[float(s)] * 3 for s in range(20)]
        assert inner.traces[0] == 20 + (times - 1) * (20 - 8)
    assert len(g.cache.staged[1]) == g.max_traces == 8
    assert not g.cache.entries  # which are for calls on arrays


def test_compiled_programs_and_kept_traces_are_counted_apart() -> None:
    g = qb.grad(square)
    for n in range(1, 9):
        assert g(qb.ones(n)).shape == (n,)
    out = qb.jit(lambda x: [g(x[:n]) for n in range(1, 12)], device="reference")(qb.ones(12))
    assert [x.shape for x in out] == [(n,) for n in range(1, 12)]


# --- captures ---------------------------------------------------------------------------------------------------------


def test_a_function_with_captures_is_traced_at_each_call() -> None:
    box: dict[str, Any] = {}
    inner = Counted(lambda x: qb.sum(x * box["w"]))
    g = qb.grad(inner.fun)

    def outer(x: Any, w: Any) -> Any:
        out = []
        for i in range(3):
            box["w"] = w * float(i + 1) if i < 2 else 5.0
            out.append(g(x)[0])
        return qb.stack(out)

    for times in (1, 2):
        assert qb.jit(lambda *a: outer(*a), device="reference")(X, A(2.0)).tolist() == [2.0, 4.0, 5.0]
        assert inner.traces[0] == 3 * times
    slopes = qb.jacobian(outer, argnums=1)(X, A(2.0))
    assert slopes.tolist() == [1.0, 2.0, 0.0]


def test_a_capture_after_a_call_without_one() -> None:
    def outer(x: Any) -> Any:
        w: Any = 2.0

        def f(t: Any) -> Any:
            return qb.sum(t * w)

        g = qb.grad(f)
        first = g(x)
        w = x[1] * 1.0
        second = g(x)
        w = 2.0
        return first, second, g(x)

    first, second, third = qb.jit(outer, device="reference")(A([3.0, 4.0]))
    assert (first.tolist(), second.tolist(), third.tolist()) == ([2.0, 2.0], [4.0, 4.0], [2.0, 2.0])
    hessian = qb.jacobian(lambda x: outer(x)[1])(A([3.0, 4.0]))
    assert hessian.tolist() == [[0.0, 1.0], [0.0, 1.0]]


def test_the_shape_of_a_traced_value_of_outside() -> None:
    box: list[Any] = [None]
    g = qb.grad(lambda t: qb.sum(t) * float(box[0].shape[0]))

    def outer(x: Any, w: Any) -> Any:
        box[0] = w
        return g(x)

    for n in (1, 2, 3):
        assert qb.jit(outer, device="reference")(X, qb.ones(n)).tolist() == [float(n)] * 3


# --- what functions return and raise ----------------------------------------------------------------------------------


def test_auxiliary_results_that_are_no_arrays() -> None:
    class Note:
        pass

    made: list[Any] = []

    def noted(x: Any) -> Any:
        made.append(Note())
        return qb.sum(x * x), made[-1]

    out: list[Any] = []

    def outer(x: Any) -> Any:
        for _ in range(3):
            slope, note = qb.grad(noted, has_aux=True)(x)
            out.append(note)
        return slope

    qb.jit(outer).lower(S((3,)))
    assert len(set(map(id, out))) == 3 == len(made)
    plain = Counted(lambda x: (qb.sum(x * x), {"name": "a", "n": 3, "pair": (1.0, None), "x": x * 2.0}))
    kept = []

    def outer_again(x: Any) -> Any:
        kept[:] = [qb.grad(plain.fun, has_aux=True)(x)[1] for _ in range(3)]
        return [aux["x"] for aux in kept]

    for x in qb.jit(outer_again, device="reference")(X):
        assert x.tolist() == [2.0, 4.0, 6.0]
    assert plain.traces[0] == 1
    assert [(aux["name"], aux["n"], aux["pair"]) for aux in kept] == [("a", 3, (1.0, None))] * 3
    assert len(set(map(id, kept))) == 3  # each call returns a dict of its own


def test_a_function_that_raises_does_so_each_time_in_its_own_line() -> None:
    inner = Counted(lambda x: qb.sum(x) + qb.ones(2))

    def f(x: Any) -> Any:
        inner.fun(x)
        return qb.sum(x @ qb.ones(2))  # here

    g = qb.grad(f)
    line = f.__code__.co_firstlineno + 2
    assert "# here" in linecache.getline(__file__, line)

    def outer(x: Any) -> Any:
        told = []
        for _ in range(3):
            with pytest.raises(qb.ShapeError) as error:
                g(x)
            told.append(str(error.value))
        assert len(set(told)) == 1 and f"line {line}" in told[0]
        return x

    qb.jit(outer).lower(S((3,)))
    assert inner.traces[0] == 3


@pytest.mark.cpu
def test_debug_nans_names_the_line_of_a_function_that_was_kept() -> None:
    def f(x: Any) -> Any:
        y = qb.log(x)  # here
        return qb.sum(y)

    g = qb.jit(lambda x: qb.value_and_grad(f)(x)[0] + qb.grad(f)(x)[0])
    assert np.isfinite(g(X).item())
    line = f.__code__.co_firstlineno + 1
    assert "# here" in linecache.getline(__file__, line)
    for _ in range(2):
        with qb.debug_nans(), pytest.raises(qb.NanError, match=rf"log\(-1.0\).*line {line}: "):
            g(A([1.0, -1.0, 1.0]))
    root = Counted(lambda x: qb.sum(qb.sqrt(x * x) / x))  # there
    h = qb.jit(lambda x: qb.grad(root.fun)(x) + qb.grad(root.fun)(x + x))
    assert h(X).tolist() == [0.0, 0.0, 0.0]
    with qb.debug_nans(), pytest.raises(qb.NanError, match=r"line \d+: root = Counted.* # there"):
        h(X * 0.0)


# --- other ops that hold functions ------------------------------------------------------------------------------------


@qb.custom_jvp
def tripled(x: Any) -> Any:
    return x


tripled.defjvp(lambda primals, tangents: (tripled(primals[0]), 3.0 * tangents[0]))


@qb.custom_vjp
def halved(x: Any) -> Any:
    return x


halved.defvjp(lambda x: (x, ()), lambda residuals, ct: (0.5 * ct,))

HOLDERS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "custom_jvp": (tripled, 3.0),
    "custom_vjp": (halved, 0.5),
    "cond": (lambda x: qb.cond(x > 0.0, lambda x: 2.0 * x, lambda x: x, x), 2.0),
    "scan": (lambda x: qb.scan(lambda c, i: (c * 2.0, c), x, length=3)[0], 8.0),
    "fori_loop": (lambda x: qb.fori_loop(0, 3, lambda i, c: c * 2.0, x), 8.0),
    "while_loop": (lambda x: qb.while_loop(lambda c: c < 20.0, lambda c: 2.0 * c, x, max_steps=9), 8.0),
    "checkpoint": (lambda x: qb.checkpoint(lambda y: y * 4.0)(x), 4.0),
    "stop_gradient": (lambda x: qb.stop_gradient(x) * x, 3.0),
    "a rule in a loop": (lambda x: qb.fori_loop(0, 2, lambda i, c: tripled(c), x), 9.0),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_rules_and_regions_in_functions_that_are_kept(name: str) -> None:
    f, slope = HOLDERS[name]
    inner = Counted(f)
    g, second = qb.grad(inner.fun), qb.vmap(qb.grad(inner.fun))
    for _ in range(2):
        first, again, many = qb.jit(
            lambda x: (g(x), g(x * 1.0), second(qb.stack([x, x]))), device="reference"
        )(A(3.0))
        assert [first.item(), again.item(), *many.tolist()] == [slope] * 4
    holds_rules = name in ("custom_jvp", "custom_vjp", "a rule in a loop")
    assert inner.traces[0] > 2 if holds_rules else inner.traces[0] == 1


def test_bodies_of_loops_are_traced_each_time() -> None:
    inner = Counted(lambda c: c * 2.0)
    step = qb.grad(lambda c: qb.sum(inner.fun(c)))

    def f(x: Any) -> Any:
        y = qb.fori_loop(0, 3, lambda i, c: c * step(c), x)
        return qb.cond(qb.sum(y) > 0.0, lambda y: step(y) * y, lambda y: y, y)

    for _ in range(2):
        assert qb.jit(f, device="reference")(X).tolist() == [16.0, 32.0, 48.0]


# --- memory and threads -----------------------------------------------------------------------------------------------


def alive(kind: type) -> list[Any]:
    gc.collect()
    return [x for x in gc.get_objects() if type(x) is kind]


def test_what_is_kept_keeps_no_trace_alive_and_dies_with_its_function() -> None:
    class Mark:
        pass

    def use() -> tuple[list[Any], Any]:
        big, mark = A(np.arange(100.0)), Mark()
        f = lambda x: qb.sum(qb.fori_loop(0, 2, lambda i, c: c * big, x) if mark else x)
        g = qb.grad(f)
        recursive = [f, g]  # the function is reached from what it reads
        h = lambda x: f(x) if recursive else x
        recursive.append(h)
        mine = qb.grad(h)
        qb.jit(lambda x: [g(x), g(x), mine(x), qb.hessian(f)(x)]).lower(S((100,)))
        assert g.cache.staged[1] and mine.cache.staged[1]
        return [weakref.ref(x) for x in (big, mark, f, h, g, mine)], (g, mine)

    before = {id(x): x for kind in (tracer.Frame, tracer.TraceTensor) for x in alive(kind)}
    refs, transforms = use()
    assert [x for x in alive(tracer.Frame) if id(x) not in before] == []
    kept = [x for x in alive(tracer.TraceTensor) if id(x) not in before]
    assert kept and all(x.frame is tracer.ended for x in kept)
    kept.clear()
    del transforms
    for _ in range(2):  # first the function, then its programs, whose nodes and values refer to each other
        gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)


def test_a_value_that_was_kept_outside_has_ended() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        if not seen:
            seen.append(x * 2.0)
        return qb.sum(x * x)

    g = qb.grad(f)
    qb.jit(lambda x: [g(x), g(x)]).lower(S((3,)))
    for use in (lambda: seen[0] + 1.0, lambda: qb.jit(lambda x: x + seen[0])(X), lambda: float(seen[0])):
        with pytest.raises(qb.TracerError):
            use()


def test_threads_that_trace_with_one_cache() -> None:
    g = qb.grad(lambda x, s: qb.sum(qb.sin(x) * s))
    errors: list[BaseException] = []
    interval = sys.getswitchinterval()
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        try:
            barrier.wait()
            for k in range(15):
                s = float((number + k) % 12)
                out = qb.jit(lambda x: [g(x, s), g(x, s + 1.0)], device="reference")(X)  # noqa: B023
                for i, x in enumerate(out):
                    np.testing.assert_allclose(x.numpy(), np.cos(X.numpy()) * (s + i), rtol=1e-14)
        except BaseException as error:
            errors.append(error)

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    assert len(g.cache.staged[1]) == g.max_traces
