"""What errors advise is what helps: each piece of advice is followed, with the transforms that it names."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import quabla
import quabla as qb


def total(x: Any, mode: Any = "twice") -> Any:
    return qb.sum(x * x) * (2.0 if mode == "twice" else 3.0)


CHAINS: dict[str, Callable[[Any], Any]] = {
    "jit(total)": lambda f: qb.jit(f, max_traces=2),
    "grad(total)": qb.grad,
    "value_and_grad(total)": qb.value_and_grad,
    "vmap(total)": qb.vmap,
    "jacobian(total)": qb.jacobian,
    "jacobian(grad(total))": qb.hessian,
    "vmap(grad(total))": lambda f: qb.vmap(qb.grad(f)),
    "jit(vmap(total))": lambda f: qb.jit(qb.vmap(f)),
    "grad(jit(total))": lambda f: qb.grad(qb.jit(f, max_traces=100)),
    "vmap(jit(grad(total)))": lambda f: qb.vmap(qb.jit(qb.grad(f), max_traces=100)),
}


def advised(message: str, option: str, value: Any) -> Any:
    """What a message advises, made: "quabla.jit(quabla.grad(total), max_traces=...)" with a value for the dots."""
    found = re.findall(rf"quabla\.jit\(\S*total\)*, {option}=\.\.\.\)", message)
    assert len(found) == 1, message
    return eval(found[0].replace("...", repr(value)), {"quabla": quabla, "total": fresh()})


def fresh() -> Any:
    return type(total)(total.__code__, globals(), "total", total.__defaults__)


def call_often(f: Any) -> None:
    for n in range(2, 14):
        f(qb.ones((n, 2)))


@pytest.mark.parametrize("name", CHAINS)
def test_more_signatures(name: str) -> None:
    f = CHAINS[name](fresh())
    assert f.__name__ == name
    with pytest.raises(qb.RetraceLimitError) as caught:
        call_often(f)
    message = str(caught.value)
    assert ("only that of the outermost jit counts" in message) is ("(jit" in name)
    call_often(advised(message, "max_traces", 20))


@pytest.mark.parametrize("derivative", [lambda x: qb.jvp(total, (x,), (x,)), lambda x: qb.vjp(total, x)])
def test_more_signatures_of_a_derivative_along_a_direction(derivative: Any) -> None:
    with pytest.raises(
        qb.RetraceLimitError, match=r"quabla\.jit\(g, max_traces=\.\.\.\), where g .* calls j?vj?p\("
    ):
        call_often(derivative)
    call_often(qb.jit(lambda x: derivative(x)[0], max_traces=20))


@pytest.mark.parametrize("name", CHAINS)
def test_an_argument_that_is_no_array(name: str) -> None:
    f = CHAINS[name](fresh())
    x = qb.ones((2, 2))
    with pytest.raises(qb.DtypeError, match="mode is a str") as caught:
        f(x, "thrice")
    g = advised(str(caught.value), "static_argnums", 1)
    for a, b in zip(qb.tree.leaves(g(x, "thrice")), qb.tree.leaves(g(x, "twice")), strict=True):
        assert a.tolist() != b.tolist()


@pytest.mark.parametrize("transform", [qb.grad, qb.jacobian, qb.value_and_grad])
def test_what_is_differentiated_cannot_be_static(transform: Any) -> None:
    with pytest.raises(qb.DtypeError, match=r"x is a str.*close over other values$"):
        transform(fresh())("text")


class OwnDict(dict[str, Any]):
    pass


class OwnList(list[Any]):
    pass


class OwnTuple(tuple[Any, ...]):
    pass


OWN: dict[str, tuple[Any, str]] = {
    "dict": (OwnDict(a=qb.ones(2)), "dict"),
    "list": (OwnList([qb.ones(2)]), "list"),
    "tuple": (OwnTuple([qb.ones(2)]), "tuple"),
    "ordered": (type("Own", (OrderedDict,), {})(a=qb.ones(2)), "dict"),
}  # fmt: skip


@pytest.mark.parametrize("transform", [qb.jit, qb.grad, qb.vmap])
@pytest.mark.parametrize("name", OWN)
def test_subclasses_of_containers(name: str, transform: Any) -> None:
    value, base = OWN[name]
    f = transform(lambda t: qb.sum(qb.tree.leaves(t)[0]))
    says = rf"a subclass of {base} is no container: pass {base}\(\.\.\.\)"
    with pytest.raises(qb.DtypeError, match=says):
        f([value])
    if base == "dict":  # a result that is a list of numbers is an array
        with pytest.raises(qb.DtypeError, match=says):
            transform(lambda x: value)(qb.ones(2))
    f([{"dict": dict, "list": list, "tuple": tuple}[base](value)])


@contextlib.contextmanager
def limit(n: int) -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(n)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def chained(n: int) -> Any:
    f = qb.jit(lambda x: x)
    for _ in range(n):
        f = (lambda g: qb.jit(lambda x: g(x) + 1.0))(f)
    return f


def test_calls_within_calls_deeper_than_the_recursion_limit() -> None:
    with pytest.raises(
        RecursionError, match=r"<lambda> of one line call each other .* sys.setrecursionlimit"
    ):
        chained(250)(qb.array(1.0))
    with limit(20_000):
        assert chained(250)(qb.array(1.0)).item() == 251.0


def test_one_function_that_calls_itself_often() -> None:
    power = qb.jit(lambda x, n: 1.0 if n == 0 else x * power(x, n - 1))
    with pytest.raises(RecursionError, match=r"or deeper than Python's recursion limit.*if the calls do end"):
        power(qb.array(2.0), 400)
    with limit(20_000):
        assert power(qb.array(1.0), 400).item() == 1.0


def test_calls_without_end() -> None:
    endless = qb.jit(lambda x: endless(x) + 1.0)
    with pytest.raises(
        RecursionError, match=r"calls itself without end.*condition on a traced value .* quabla.while_loop"
    ):
        endless(qb.array(1.0))
