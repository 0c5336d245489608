"""Arguments at the border: truth values where an integer belongs, numbers beyond float64, names in messages, dicts."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

A = qb.array
M = qb.ones((2, 3))

INTEGERS: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda n: qb.zeros(n),
    "zeros of a tuple": lambda n: qb.zeros((n, 2)),
    "ones": lambda n: qb.ones((2, n)),
    "full": lambda n: qb.full(n, 1.0),
    "eye": lambda n: qb.eye(n),
    "eye of columns": lambda n: qb.eye(2, n),
    "arange": lambda n: qb.arange(n),
    "linspace": lambda n: qb.linspace(0.0, 1.0, n),
    "ShapeDtype": lambda n: qb.ShapeDtype((n,)),
    "reshape": lambda n: qb.reshape(M, (n, 6)),
    "reshape method": lambda n: M.reshape(6, n),
    "broadcast_to": lambda n: qb.broadcast_to(A(1.0), (n, 2)),
    "sum": lambda n: qb.sum(M, n),
    "sum over axes": lambda n: qb.sum(M, axis=(n,)),
    "max": lambda n: qb.max(M, axis=n),
    "cumsum": lambda n: qb.cumsum(M, axis=n),
    "sort": lambda n: qb.sort(M, axis=n),
    "argmax": lambda n: qb.argmax(M, axis=n),
    "softmax": lambda n: qb.softmax(M, axis=n),
    "concat": lambda n: qb.concat([M, M], axis=n),
    "stack": lambda n: qb.stack([M, M], axis=n),
    "expand_dims": lambda n: qb.expand_dims(M, n),
    "swapaxes": lambda n: qb.swapaxes(M, 0, n),
    "flip": lambda n: qb.flip(M, n),
    "tile": lambda n: qb.tile(M, n),
    "repeat": lambda n: qb.repeat(M, n),
    "roll": lambda n: qb.roll(M, n, 0),
    "split": lambda n: qb.split(M, n),
    "pad": lambda n: qb.pad(M, n),
    "tril": lambda n: qb.tril(M, n),
    "diagonal": lambda n: qb.diagonal(M, n),
    "diff": lambda n: qb.diff(M, n),
    "round": lambda n: qb.round(M, n),
    "slice": lambda n: M.slice(0, 0, n),
    "fori_loop": lambda n: qb.fori_loop(0, n, lambda i, c: c, 1.0),
    "scan": lambda n: qb.scan(lambda c, i: (c, c), 1.0, length=n),
    "Trainer.run": lambda n: qb.optim.Trainer(lambda w: w * w, 1.0, qb.optim.SGD(0.1)).run(n),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_is_no_truth_value_and_may_be_one_of_numpy(name: str) -> None:
    call = INTEGERS[name]
    call(np.int64(1))
    call(1)
    for truth in (True, np.True_):
        with pytest.raises(qb.QuablaError, match=r"True|bool") as info:
            call(truth)
        assert isinstance(info.value, (TypeError, ValueError))


HUGE = 10**400
LARGE: dict[str, Callable[[], Any]] = {
    "jit": lambda: qb.jit(lambda x: x)(HUGE),
    "second": lambda: qb.jit(lambda a, x: a * x)(A(1.0), HUGE),
    "keyword": lambda: qb.jit(lambda a, x: a * x)(A(1.0), x=-HUGE),
    "nested": lambda: qb.jit(lambda x: x["a"])({"a": HUGE}),
    "grad": lambda: qb.grad(lambda x: x)(HUGE),
    "vmap": lambda: qb.vmap(lambda a, x: a * x, (0, None))(A([1.0, 2.0]), HUGE),
    "hessian": lambda: qb.hessian(lambda x: x * x)(HUGE),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_number_beyond_float64_is_the_argument_s_fault(name: str) -> None:
    advice = "close over it" if name in ("grad", "hessian") else "static_argnums"
    with pytest.raises(qb.DtypeError, match=rf"argument x(/a)? is an integer of 1329 bits.*{advice}"):
        LARGE[name]()


def test_numbers_beyond_float64_elsewhere() -> None:
    assert qb.jit(lambda x, n: x * (n % 7), static_argnums=1)(A(1.0), HUGE).item() == HUGE % 7
    with pytest.raises(qb.DtypeError, match=r"returned an int.*beyond the range of float64"):
        qb.jit(lambda x: HUGE)(A(1.0))
    with pytest.raises(qb.DtypeError, match=r"jvp: .*beyond the range of float64"):
        qb.jvp(lambda x: x, (1.0,), (HUGE,))
    with pytest.raises(qb.DtypeError, match="beyond the range of float64"):
        A(1.0) + HUGE


LOSSES: dict[str, tuple[Callable[[Any], Any], type[Exception]]] = {
    "shape": (lambda w: w * w, qb.ShapeError),
    "tuple": (lambda w: (qb.sum(w), w), qb.DtypeError),
    "bool": (lambda w: qb.sum(w) > 0.0, qb.DtypeError),
    "nothing": (lambda w: None, qb.DtypeError),
}
CALLERS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: qb.grad(f)(A([1.0, 2.0])),
    "value_and_grad": lambda f: qb.value_and_grad(f)(A([1.0, 2.0])),
    "hessian": lambda f: qb.hessian(f)(A([1.0, 2.0])),
    "Trainer": lambda f: qb.optim.Trainer(f, A([1.0, 2.0]), qb.optim.SGD(0.1)),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", CALLERS)
def test_what_the_user_called_is_what_complains_of_the_loss(name: str, loss: str) -> None:
    f, error = LOSSES[loss]
    with pytest.raises(error, match=rf"^{name}: <lambda> must return ") as info:
        CALLERS[name](f)
    # Nothing is advised that this function does not take.
    assert ("jacobian" in str(info.value)) == (name.endswith("grad") and loss == "shape")
    assert ("has_aux" in str(info.value)) == (name != "Trainer" and loss in ("tuple", "nothing"))


def test_the_hessian_names_the_user_s_function_and_itself() -> None:
    with pytest.raises(
        qb.ShapeError, match=r"^hessian: argnums 5 is out of range: <lambda> was called with 1"
    ):
        qb.hessian(lambda x: qb.sum(x), argnums=5)(A([1.0]))
    with pytest.raises(qb.DtypeError, match=r"^hessian: argnums must be"):
        qb.hessian(lambda x: qb.sum(x), argnums="x")  # type: ignore[arg-type]
    with pytest.raises(qb.DtypeError, match=r"^hessian: chunk_size"):
        qb.hessian(lambda x: qb.sum(x), chunk_size=0)


# --- the order of keys ------------------------------------------------------------------------------------------------


def _second(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda d: f(d)[1]


def _on_pairs(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda d: f({k: qb.stack([v, v]) for k, v in d.items()})


KEEPING: dict[str, Callable[[], Callable[[Any], Any]]] = {
    "jit": lambda: qb.jit(lambda d: {k: 2.0 * v for k, v in d.items()}),
    "identity": lambda: qb.jit(lambda d: d),
    "map": lambda: qb.jit(lambda d: qb.tree.map(lambda v: v + 1.0, d)),
    "grad": lambda: qb.grad(lambda d: d["a"] * d["b"] * d["c"]),
    "value_and_grad": lambda: _second(qb.value_and_grad(lambda d: d["a"] * d["b"] * d["c"])),
    "vmap": lambda: _on_pairs(qb.vmap(lambda d: d)),
    "hessian": lambda: qb.hessian(lambda d: d["a"] * d["b"] * d["c"]),
    "loop": lambda: qb.jit(lambda d: qb.fori_loop(0, 2, lambda i, c: qb.tree.map(lambda v: v * 2.0, c), d)),
}
ORDERS = [("b", "a", "c"), ("a", "b", "c"), ("c", "b", "a")]


@pytest.mark.parametrize("name", KEEPING)
def test_results_keep_the_order_of_the_caller_s_keys_on_every_call(name: str) -> None:
    f = KEEPING[name]()
    values = {"a": A(2.0), "b": A(3.0), "c": A(5.0)}
    expected: Any = None
    for _ in range(2):
        for order in ORDERS:
            found = f({k: values[k] for k in order})
            assert tuple(found) == order
            by_name = {k: qb.tree.map(lambda v: v.tolist(), found[k]) for k in sorted(found)}
            expected = expected or by_name
            assert by_name == expected


@pytest.mark.parametrize("kind", [OrderedDict, lambda d: defaultdict(float, d), lambda d: {"x": [d, d]}])
def test_orders_within_other_containers(kind: Any) -> None:
    f = qb.jit(lambda d: d)
    for order in (*ORDERS, *ORDERS):
        found = f(kind({k: A(1.0) for k in order}))
        for inner in found.get("x", [found]):
            assert tuple(inner) == order


def test_the_order_of_keys_is_no_structure_and_explain_tells_of_it() -> None:
    one, two = {"a": A(1.0), "b": A(2.0)}, {"b": A(2.0), "a": A(1.0)}
    assert qb.tree.flatten(one)[1] == qb.tree.flatten(two)[1]
    assert qb.tree.map(lambda x, y: x + y, one, two)["b"].item() == 4.0
    f = qb.jit(lambda d: d)
    f(one), f(two), f(one), f(two)
    text = str(f.explain())
    assert "traced for 2 of" in text and "the keys of a dict came in another order" in text
    compiled = qb.jit(lambda d: d).lower(one).compile()
    assert tuple(compiled(two)) == ("a", "b")  # compiled for one order


def test_a_function_that_goes_over_a_dict_sees_the_order_of_each_call() -> None:
    values = {"a": A(2.0), "b": A(3.0), "c": A(5.0)}
    for f in (qb.jit(lambda d: list(d.values())), qb.jit(lambda d: list(d.values()), device="reference")):
        for order in (*ORDERS, *ORDERS):
            assert [x.item() for x in f({k: values[k] for k in order})] == [values[k].item() for k in order]
