"""Transforms of methods and other callables, made anew: what is traced again, and what the cache keeps alive."""

from __future__ import annotations

import dataclasses
import functools
import gc
import pickle
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import quabla as qb
from quabla.transforms import cache

A = qb.array
TRACES: list[int] = []  # the identity of the object, per trace


@pytest.fixture(autouse=True)
def _counting() -> Any:
    TRACES.clear()
    yield
    TRACES.clear()


def traced(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f`, counted each time that it is traced."""

    @functools.wraps(f)
    def counted(*args: Any, **kwargs: Any) -> Any:
        TRACES.append(id(args[0]))
        return f(*args, **kwargs)

    return counted


class Plain:
    def __init__(self, w: Any) -> None:
        self.w = w

    @traced
    def loss(self, x: Any) -> Any:
        return qb.sum(x * x * self.w)

    @classmethod
    @traced
    def of_class(cls, x: Any) -> Any:
        return qb.sum(x * x * 3.0)

    @traced
    def __call__(self, x: Any) -> Any:
        return qb.sum(x * x * self.w)


@dataclasses.dataclass
class Unhashable:
    w: float

    loss = Plain.loss


class Equal(Plain):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Truthless(Plain):
    def __bool__(self) -> bool:
        raise TypeError("no truth value")


class Slots:
    __slots__ = ("w",)

    def __init__(self, w: float) -> None:
        self.w = w

    loss = Plain.loss


class WeakSlots(Slots):
    __slots__ = ("__weakref__",)


class Pair(NamedTuple):
    w: float
    loss = Plain.loss


CHAINS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: qb.grad(f)(3.0),
    "value_and_grad": lambda f: qb.value_and_grad(f)(3.0)[1],
    "jit_grad": lambda f: qb.jit(qb.grad(f))(3.0),
    "hessian": lambda f: qb.hessian(f)(3.0) * 3.0,
    "jvp": lambda f: qb.jvp(f, (3.0,), (1.0,))[1],
    "vmap_grad": lambda f: qb.vmap(qb.grad(f))(A([3.0]))[0],
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("kind", [Plain, Unhashable, Equal, Truthless, Slots, WeakSlots, Pair])
def test_a_method_that_is_kept_is_traced_once(kind: Any, name: str) -> None:
    two, five = kind(2.0).loss, kind(5.0).loss
    for _ in range(10):
        assert CHAINS[name](two).item() == pytest.approx(12.0, rel=1e-15)
        assert CHAINS[name](five).item() == pytest.approx(30.0, rel=1e-15)
    assert len(TRACES) == 2


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(
    "get", [lambda m: m, lambda m: m.loss, lambda m: m.__call__], ids=["object", "loss", "call"]
)
def test_a_transform_made_anew_computes_with_the_attributes_of_today(get: Any, name: str) -> None:
    m = Plain(2.0)
    for w in (2.0, 5.0, A(7.0)):
        m.w = w
        assert CHAINS[name](get(m)).item() == pytest.approx(6.0 * float(w), rel=1e-15)


def test_a_transform_that_is_kept_computes_with_those_that_it_was_traced_with() -> None:
    m = Plain(2.0)
    for f in (m, m.loss, Plain(2.0).loss):
        kept = qb.grad(f)
        TRACES.clear()
        assert kept(3.0).item() == 12.0
        m.w = 5.0
        assert [kept(3.0).item() for _ in range(5)] == [12.0] * 5
        assert len(TRACES) == 1
        m.w = 2.0
    w = 2.0
    closed = lambda x: x * x * w
    assert qb.grad(closed)(3.0).item() == 12.0
    w = 5.0
    assert qb.grad(closed)(3.0).item() == 12.0


def test_objects_at_the_same_address_are_told_apart() -> None:
    for kind in (Plain, Slots, Pair):
        for w in range(20):
            assert qb.grad(kind(float(w)).loss)(1.0).item() == 2.0 * w


def test_the_bound_on_traces_counts_those_of_all_transforms_of_a_kept_method() -> None:
    loss = Plain(2.0).loss
    for n in range(1, 9):
        qb.grad(loss)(qb.ones(n))
    with pytest.raises(qb.RetraceLimitError, match=r"grad\(loss\)"):
        qb.grad(loss)(qb.ones(9))
    assert qb.grad(Plain(1.0).loss)(qb.ones(9)).shape == (9,)


def test_a_method_that_is_replaced_is_another_one() -> None:
    m: Any = Plain(2.0)
    assert qb.grad(m.loss)(3.0).item() == 12.0
    m.loss = types.MethodType(lambda self, x: x * self.w, m)
    assert qb.grad(m.loss)(3.0).item() == 2.0


def test_callables_by_kind() -> None:
    m = Plain(2.0)
    partial, method, rule = functools.partial(m.loss), m.loss, qb.custom_jvp(m.loss)
    rule.defjvp(lambda p, t: (m.loss(p[0]), 4.0 * p[0] * t[0]))
    made: dict[str, tuple[Callable[[], Any], int]] = {
        "object": (lambda: m, 5),
        "its __call__": (lambda: m.__call__, 5),
        "classmethod": (lambda: Plain.of_class, 5),
        "kept method": (lambda: method, 1),
        "kept partial": (lambda: partial, 1),
        "partial made anew": (lambda: functools.partial(m.loss), 5),
        "lambda made anew": (lambda: lambda x: m.loss(x), 5),
        "function": (lambda: traced_once, 1),
    }
    before = cache._by_root.copy()
    for name, (get, traces) in made.items():
        TRACES.clear()
        for _ in range(5):
            assert qb.grad(get())(3.0).item() == (18.0 if name == "classmethod" else 12.0)
        assert len(TRACES) == traces, name
    TRACES.clear()
    for _ in range(5):
        assert qb.grad(rule)(3.0).item() == 12.0
    assert len(TRACES) <= 2  # the function, and its rule
    gc.collect()
    assert len(cache._by_root) <= len(before) + 4


@traced
def traced_once(x: Any) -> Any:
    return 2.0 * x * x


def test_a_method_that_was_compiled_in_the_class() -> None:
    class Model:
        def __init__(self, w: float) -> None:
            self.w = w

        @functools.partial(qb.jit, static_argnums=0)
        @traced
        def loss(self, x: Any) -> Any:
            return x * x * self.w

        @functools.partial(qb.checkpoint, static_argnums=0)
        @traced
        def light(self, x: Any) -> Any:
            return x * x * self.w

    m = Model(2.0)
    assert repr(qb.grad(m.loss)) == "<grad(jit(loss))>"
    for call, traces in (
        (lambda: m.loss(A(3.0)), 1),
        (lambda: qb.grad(m.loss)(3.0), 5),
        (lambda: qb.jit(m.light)(A(3.0)), 5),
        (lambda: qb.grad(m.light)(3.0), 5),
    ):
        TRACES.clear()
        for _ in range(5):
            assert call().item() in (18.0, 12.0)
        assert len(TRACES) == traces


class Module:
    """A class that pickle finds."""

    @qb.jit
    def double(x: Any) -> Any:  # noqa: N805 - an array is the object here
        return x * 2.0


def test_a_compiled_method_is_pickled() -> None:
    method = Module.double.__get__(A(3.0))
    assert pickle.loads(pickle.dumps(method))().item() == method().item() == 6.0


# --- lifetime ---------------------------------------------------------------------------------------------------------


def test_programs_of_methods_die_with_them() -> None:
    gc.collect()
    before = len(cache._by_root)

    def use() -> list[Any]:
        m, other = Plain(A([1.0, 2.0])), Plain(A([3.0, 4.0]))
        x, loss = A([1.0, 1.0]), m.loss
        qb.grad(loss)(x), qb.jit(loss)(x), qb.vjp(loss, x)[1](1.0), qb.hessian(loss)(x)
        qb.grad(other.loss)(x), qb.grad(other)(x), qb.jvp(m.loss, (x,), (x,))
        qb.grad(lambda w: qb.sum(qb.grad(m.loss)(x * w)))(1.0)
        assert len(cache._by_root) >= before + 1
        return [weakref.ref(m), weakref.ref(m.w), weakref.ref(other)]

    refs = use()
    gc.collect()
    assert [r() for r in refs] == [None] * 3
    assert len(cache._by_root) == before


def test_an_object_that_holds_a_transform_of_its_method_is_collected() -> None:
    m: Any = Plain(2.0)
    m.slope = qb.grad(m.loss)
    assert m.slope(3.0).item() == 12.0
    ref = weakref.ref(m)
    del m
    gc.collect()
    assert ref() is None


def test_a_finalizer_may_make_a_transform_at_any_time() -> None:
    found = []

    class Last(Plain):
        def __del__(self) -> None:
            found.append(qb.grad(Plain(4.0).loss)(3.0).item())

    def work() -> None:
        with cache._lock:  # as if a collection ran while a transform is being made
            Last(2.0)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30.0)
    assert found == [24.0]


# --- threads ----------------------------------------------------------------------------------------------------------


def test_threads_that_make_transforms_of_one_method_trace_it_once() -> None:
    loss = Plain(2.0).loss
    ready = threading.Barrier(8)
    found: list[float] = []

    def work() -> None:
        ready.wait()
        for _ in range(20):
            found.append(qb.grad(loss)(3.0).item())
            found.append(qb.grad(Plain(5.0).loss)(3.0).item())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(found) == [12.0] * 160 + [30.0] * 160
    assert TRACES.count(id(loss.__self__)) == 1
