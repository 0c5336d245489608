"""What is traced again and what is not; what the cache keeps alive; its bound."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.transforms import cache

A = qb.array


class Counted:
    """A function that counts how often it is traced."""

    def __init__(self, body: Any) -> None:
        self.traces = 0

        def f(*args: Any, **kwargs: Any) -> Any:
            self.traces += 1
            return body(*args, **kwargs)

        self.f = f


# --- the root function and the chain ----------------------------------------------------------------------------------

CHAINS: list[tuple[str, Any]] = [
    ("grad", lambda f: qb.grad(f)(3.0)),
    ("grad_grad", lambda f: qb.grad(qb.grad(f))(3.0)),
    ("value_and_grad", lambda f: qb.value_and_grad(f)(A(3.0))),
    ("jit", lambda f: qb.jit(f)(A(3.0))),
    ("jit_grad", lambda f: qb.jit(qb.grad(f))(3.0)),
    ("vmap", lambda f: qb.vmap(f)(A([1.0, 2.0]))),
    ("vmap_tree_axes", lambda f: qb.vmap(f, in_axes=(0,), out_axes=-1)(A([1.0, 2.0]))),
    ("jit_vmap_grad", lambda f: qb.jit(qb.vmap(qb.grad(f)))(A([1.0, 2.0]))),
    ("jacobian", lambda f: qb.jacobian(f)(A(3.0))),
    ("hessian", lambda f: qb.hessian(f)(A(3.0))),
    ("jvp", lambda f: qb.jvp(f, (3.0,), (1.0,))),
    ("vjp", lambda f: qb.vjp(f, 3.0)[0]),
    ("jvp_grad", lambda f: qb.jvp(qb.grad(f), (3.0,), (1.0,))),
    ("device", lambda f: qb.jit(f, device="reference")(A(3.0))),
]


@pytest.mark.parametrize("name, call", CHAINS, ids=[c[0] for c in CHAINS])
def test_a_transform_made_anew_finds_the_program_of_the_one_before(name: str, call: Any) -> None:
    c = Counted(lambda x: x * x * x)
    first = qb.tree.flatten(call(c.f))[0]
    before = c.traces
    for _ in range(3):
        again = qb.tree.flatten(call(c.f))[0]
        assert [x.tolist() for x in again] == [x.tolist() for x in first]
    assert c.traces == before == 1


def test_chains_and_their_settings_are_told_apart() -> None:
    f = lambda x, y: x * x * y
    assert qb.grad(f)(2.0, 3.0).item() == 12.0
    assert qb.grad(f, argnums=1)(2.0, 3.0).item() == 4.0
    assert [g.item() for g in qb.grad(f, argnums=(0,))(2.0, 3.0)] == [12.0]
    assert [g.item() for g in qb.grad(f, argnums=(0, 1))(2.0, 3.0)] == [12.0, 4.0]
    assert qb.value_and_grad(f)(2.0, 3.0)[0].item() == 12.0
    assert qb.grad(qb.grad(f))(2.0, 3.0).item() == 6.0
    x = A([[1.0, 2.0], [3.0, 4.0]])
    g = lambda x: x * 1.0
    assert qb.vmap(g)(x).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert qb.vmap(g, in_axes=1)(x).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert qb.vmap(g, out_axes=1)(x).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert qb.vmap(qb.vmap(g, out_axes=0), in_axes=1)(x).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    h = lambda a, b: a * b
    assert qb.vmap(h, in_axes=(0, None))(A([1.0, 2.0]), A([3.0, 4.0])).shape == (2, 2)
    assert qb.vmap(h, in_axes=(None, 0))(A([1.0, 2.0]), A([3.0, 4.0])).tolist() == [[3.0, 6.0], [4.0, 8.0]]


def test_equal_functions_are_not_the_same_function() -> None:
    class Times:
        def __init__(self, n: float) -> None:
            self.n = n

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

        def __call__(self, x: Any) -> Any:
            return x * self.n

    assert [qb.jit(f)(A(1.0)).item() for f in (Times(2.0), Times(3.0))] == [2.0, 3.0]


def test_bound_methods_of_two_objects() -> None:
    class Times:
        def __init__(self, n: float) -> None:
            self.n = n

        def f(self, x: Any) -> Any:
            return x * self.n

    two, three = Times(2.0), Times(3.0)
    assert [qb.grad(t.f)(1.0).item() for t in (two, three, two)] == [2.0, 3.0, 2.0]


def test_a_body_replaced_is_seen_by_a_new_function_only() -> None:
    results = []
    for n in (1.0, 2.0, 3.0):
        results.append(qb.grad(lambda x: x * n)(1.0).item())  # noqa: B023 - a new function each time
    assert results == [1.0, 2.0, 3.0]


# --- signatures -------------------------------------------------------------------------------------------------------


def test_shapes_dtypes_and_structures_are_signatures() -> None:
    c = Counted(lambda x: qb.tree.map(lambda v: v * 2.0, x))
    f = qb.jit(c.f)
    calls = [
        A(1.0),
        A([1.0]),
        A([[1.0]]),
        A(1.0, "float32"),
        (A(1.0),),
        [A(1.0)],
        {"a": A(1.0)},
        {"b": A(1.0)},
    ]
    for _ in range(3):
        for x in calls:
            y = f(x)
            assert qb.tree.flatten(y)[1] == qb.tree.flatten(x)[1]
            assert qb.tree.flatten(y)[0][0].aval is qb.tree.flatten(x)[0][0].aval
    assert c.traces == len(calls)


def test_numpy_arrays_views_and_tensors_of_one_type_are_one_signature() -> None:
    c = Counted(lambda x: x * 2.0)
    f = qb.jit(c.f)
    view = A([[1.0, 5.0], [2.0, 6.0]]).slice(1, 0, 1)
    for x in (A([[1.0], [2.0]]), np.array([[1.0], [2.0]]), np.array([[1, 2]]).T, view):
        assert f(x).tolist() == [[2.0], [4.0]]
    assert c.traces == 1


@dataclasses.dataclass(frozen=True)
class Setting:
    value: Any


STATIC = [1, 1.0, True, 0, 0.0, -0.0, False, float("nan")]


WRAPPED = [lambda v: v, lambda v: (v, "s"), lambda v: ((v,), v)]


@pytest.mark.parametrize("wrap", WRAPPED, ids=["bare", "tuple", "nested"])
def test_static_values_that_compare_equal_are_kept_apart(wrap: Any) -> None:
    seen: list[str] = []

    def f(x: Any, s: Any) -> Any:
        seen.append(repr(s))
        return x

    g = qb.jit(f, static_argnums=1)
    for _ in range(3):
        for value in STATIC:
            g(A(1.0), wrap(value))
    assert seen == [repr(wrap(v)) for v in STATIC]


def test_python_numbers_as_arguments_are_kept_apart() -> None:
    seen: list[str] = []

    def f(x: Any, s: Any) -> Any:
        seen.append(repr(s))
        return x * 1.0

    g = qb.jit(f)
    for _ in range(3):
        for value in STATIC:
            g(A(1.0), value)
    assert seen == [repr(v) for v in STATIC]


def test_static_objects_of_two_classes_with_equal_fields() -> None:
    @dataclasses.dataclass(frozen=True)
    class Double:
        n: int

        def __eq__(self, other: object) -> bool:
            return getattr(other, "n", None) == self.n

        def __hash__(self) -> int:
            return hash(self.n)

        def __call__(self, x: Any) -> Any:
            return x * 2.0 * self.n

    class Triple(Double):
        def __call__(self, x: Any) -> Any:
            return x * 3.0 * self.n

    f = qb.jit(lambda x, op: op(x), static_argnums=1)
    assert [f(A(1.0), op).item() for op in (Double(1), Triple(1), Double(1), Double(2))] == [
        2.0,
        3.0,
        2.0,
        4.0,
    ]


def test_signatures_used_in_turn_all_stay_fast_and_right() -> None:
    c = Counted(lambda x, s: qb.sum(x) * s)
    f = qb.jit(c.f)
    for _ in range(5):
        for n in (1, 2, 3):
            for s in (0.5, 2):
                assert f(qb.ones(n), s).item() == n * s
    assert c.traces == 6


def test_a_failed_trace_is_not_kept() -> None:
    state = {"fail": True}

    def f(x: Any) -> Any:
        if state["fail"]:
            raise KeyError("not yet")
        return x * 2.0

    g = qb.jit(f)
    with pytest.raises(KeyError):
        g(A(1.0))
    state["fail"] = False
    assert g(A(1.0)).item() == 2.0


# --- lifetime ---------------------------------------------------------------------------------------------------------


def test_programs_die_with_their_function() -> None:
    gc.collect()
    before = len(cache._by_root)

    def use() -> tuple[Any, Any]:
        big = A(np.arange(1000.0))
        f = lambda x: qb.sum(x * big)
        x = qb.ones(1000)
        qb.grad(f)(x), qb.jit(f)(x), qb.value_and_grad(f)(x), qb.jit(qb.grad(f))(x), qb.jvp(f, (x,), (x,))
        qb.vjp(f, x)[1](1.0), qb.vmap(f)(qb.ones((2, 1000))), qb.jacobian(f)(x)
        qb.grad(lambda w: qb.sum(qb.grad(lambda x: f(x) * w)(x)))(1.0)
        assert len(cache._by_root) > before
        return weakref.ref(f), weakref.ref(big)

    refs = use()
    gc.collect()
    assert [r() for r in refs] == [None, None]
    assert len(cache._by_root) == before


def test_a_transform_keeps_its_function_alive() -> None:
    g = qb.grad(lambda x: x * x)
    gc.collect()
    assert g(3.0).item() == 6.0
    assert g.root is not None


def test_traced_values_do_not_outlive_their_trace() -> None:
    refs: list[Any] = []

    class Mark:
        pass

    def f(x: Any) -> Any:
        mark = Mark()
        refs.append(weakref.ref(mark))
        return qb.grad(lambda t: t * x if mark else t)(1.0)

    qb.grad(f)(2.0)
    gc.collect()
    assert all(r() is None for r in refs)


# --- the bound --------------------------------------------------------------------------------------------------------


def test_the_limit_on_numbers_lists_the_signatures_and_the_cure() -> None:
    f = qb.jit(lambda x, s: x * s)
    for i in range(8):
        f(A(1.0), float(i))
    with pytest.raises(qb.RetraceLimitError) as caught:
        f(A(1.0), 8.5)
    message = str(caught.value)
    assert "jit(<lambda>)" in message
    for i in range(8):
        assert f"(float64[], {float(i)})" in message
    assert "(float64[], 8.5)" in message
    assert "array(s)" in message
    assert "max_traces" in message
    assert isinstance(caught.value, ValueError)
    assert f(A(2.0), 3.0).item() == 6.0  # what is compiled still runs
    for i in range(20):
        assert qb.jit(lambda x, s: x * s)(A(1.0), A(float(i))).item() == i


def test_the_limit_on_shapes_speaks_of_shapes() -> None:
    g = qb.grad(lambda x: qb.sum(x * x))
    for n in range(1, 9):
        g(qb.ones(n))
    with pytest.raises(qb.RetraceLimitError, match=r"(?s)grad\(<lambda>\).*float64\[8\].*float64\[9\].*pad"):
        g(qb.ones(9))


def test_the_limit_shows_trees_and_keywords() -> None:
    f = qb.jit(lambda p, n=0: p["x"] * n, max_traces=1)
    f({"x": A([1.0])}, n=1)
    one, two = (rf"\(\{{'x': float64\[1\]\}}, n={n}\)" for n in (1, 2))
    with pytest.raises(qb.RetraceLimitError, match=f"(?s){one}.*{two}"):
        f({"x": A([1.0])}, n=2)


def test_max_traces_is_that_of_the_outermost_jit() -> None:
    f = lambda x: x * 2.0
    small, large = qb.jit(qb.grad(f), max_traces=2), qb.jit(lambda x: f(x), max_traces=20)
    for s in (1, 2):
        qb.jit(f, max_traces=2)(qb.ones(s))
    with pytest.raises(qb.RetraceLimitError):
        qb.jit(f, max_traces=2)(qb.ones(3))
    assert qb.jit(f, max_traces=3)(qb.ones(3)).shape == (3,)
    for n in range(1, 21):
        assert large(qb.ones(n)).shape == (n,)
    with pytest.raises(qb.RetraceLimitError):
        large(qb.ones(21))
    assert small(1.0).item() == 2.0


def test_the_limit_holds_within_a_trace_too() -> None:
    g = qb.jit(lambda x: x * 2.0, max_traces=2)
    with pytest.raises(qb.RetraceLimitError):
        qb.grad(lambda w: w * qb.sum(g(qb.ones(1))) * qb.sum(g(qb.ones(2))) * qb.sum(g(qb.ones(3))))(1.0)
