"""Which parameter an argument is called after: the one that takes it, whatever the signature is."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.transforms.naming import argument_names

A = qb.array
SIZE = 2


def add(*values: Any) -> Any:
    return qb.tree.leaves(values)


@dataclasses.dataclass
class Model:
    root = 3.0  # a name that transforms use, too

    def method(self, x: Any, *more: Any, scale: Any) -> Any:
        return add(x, more, scale)

    @classmethod
    def of_class(cls, x: Any, y: Any = 1.0) -> Any:
        return add(x, y)

    @staticmethod
    def of_none(x: Any, *, k: Any) -> Any:
        return add(x, k)

    def __call__(self, x: Any, y: Any) -> Any:
        return add(x, y)

    @qb.jit
    def transformed(self, x: Any, *more: Any) -> Any:
        return add(x, more)


def plain(n: Any, *args: Any, k: Any) -> Any:
    return add(n, args, k)


@functools.wraps(plain)
def wrapped(*a: Any, **b: Any) -> Any:
    return plain(*a, **b)


# name: (function, how many positional arguments, keywords)
SIGNATURES: dict[str, tuple[Callable[..., Any], int, tuple[str, ...]]] = {
    "by position or keyword": (lambda x, y: add(x, y), 1, ("y",)),
    "keywords in another order": (lambda x, y, z: add(x, y, z), 1, ("z", "y")),
    "keyword only": (lambda x, *, y: add(x, y), 1, ("y",)),
    "args": (lambda *args: add(args), 3, ()),
    "args and keyword only": (plain, 2, ("k",)),
    "many args and keyword only": (plain, 4, ("k",)),
    "args that nothing reaches": (plain, 1, ("k",)),
    "args and a default": (lambda n, *a, k=None: add(n, a, k), 3, ()),
    "a default before args": (lambda n, m=1.0, *a, k=2.0: add(n, m, a, k), 4, ("k",)),
    "kwargs": (lambda x, **rest: add(x, rest), 1, ("z", "y")),
    "args and kwargs": (lambda *args, **rest: add(args, rest), 2, ("args", "rest")),
    "kwargs with the name of args": (lambda x, *args, **rest: add(x, args, rest), 2, ("args",)),
    "position only": (lambda x, y, /: add(x, y), 2, ()),
    "position only, and a keyword of its name": (lambda a, /, **k: add(a, k), 1, ("a",)),
    "position only in all ways": (lambda a, /, b, *c, d, **e: add(a, b, c, d, e), 4, ("a", "d", "z")),
    "method": (Model().method, 3, ("scale",)),
    "class method": (Model.of_class, 2, ()),
    "static method": (Model().of_none, 1, ("k",)),
    "object": (Model(), 2, ()),
    "partial": (functools.partial(plain, A(0.0)), 2, ("k",)),
    "partial with a keyword": (functools.partial(plain, k=A(0.0)), 3, ()),
    "partial of a method": (functools.partial(Model().method, A(0.0)), 2, ("scale",)),
    "partial of a partial": (functools.partial(functools.partial(plain, A(0.0)), A(0.0)), 1, ("k",)),
    "wrapped": (wrapped, 3, ("k",)),
    "a transformed method": (Model().transformed, 3, ()),
}


def taken(fun: Any, args: Any, kwargs: Any) -> dict[int, str]:
    """The parameter of each argument, as Python's own binding tells it."""
    signature = inspect.signature(fun)
    found = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found.update({id(v): f"{name}/{i}" for i, v in enumerate(value)})
        elif kind is inspect.Parameter.VAR_KEYWORD:
            only = {
                p.name for p in signature.parameters.values() if p.kind is inspect.Parameter.POSITIONAL_ONLY
            }
            found.update({id(v): f"{name}/{k}" if k in only else k for k, v in value.items()})
        else:
            found[id(value)] = name
    return found


@pytest.mark.parametrize("case", SIGNATURES)
def test_names_are_those_that_python_binds(case: str) -> None:
    fun, count, keywords = SIGNATURES[case]
    args = [A(np.full(SIZE, float(i))) for i in range(count)]
    kwargs = {k: A(np.full(SIZE, 10.0 + i)) for i, k in enumerate(keywords)}
    wanted = taken(fun, args, kwargs)
    in_order = [*args, *(kwargs[k] for k in sorted(kwargs))]
    names = [wanted[id(x)] for x in in_order]
    assert len(set(names)) == len(names) or case == "kwargs with the name of args"
    lowered = qb.jit(fun).lower(*args, **kwargs)
    assert list(lowered.program.input_names) == names
    by_name = dict(zip(names, in_order, strict=True))
    for x, y in zip(
        lowered.program.compile("reference")(by_name), qb.tree.leaves(fun(*args, **kwargs)), strict=True
    ):
        np.testing.assert_array_equal(x.numpy(), np.broadcast_to(y.numpy(), x.shape))

    transforms: list[tuple[str, Callable[..., Any]]] = [("jit", qb.jit(fun)), ("vmap", qb.vmap(fun))]
    if count:
        transforms += [("grad", qb.grad(fun)), ("jit of vmap", qb.jit(qb.vmap(fun)))]
    for i, name in enumerate(names):
        for what, transformed in transforms:
            given: list[Any] = list(in_order)
            given[i] = "s"
            with pytest.raises(TypeError) as told:
                transformed(*given[:count], **dict(zip(sorted(kwargs), given[count:], strict=True)))
            assert f": argument {name} is a str;" in str(told.value), what
    for i, name in enumerate(names):  # a place without an axis
        given = list(in_order)
        given[i] = A(1.0)
        with pytest.raises(qb.ShapeError, match=f"argument {re.escape(name)} of type .* has no axis 0"):
            qb.vmap(fun)(*given[:count], **dict(zip(sorted(kwargs), given[count:], strict=True)))


def test_axes_of_different_sizes_are_told_by_their_arguments() -> None:
    with pytest.raises(
        qb.ShapeError, match=r"n of type .* has 3 along axis 0; a/0 of type .* has 2 along axis 0"
    ):
        qb.vmap(lambda n, *a, k=None: n)(qb.ones(3), qb.ones(2))


@pytest.mark.parametrize("fun", [np.add, operator.add, max, print, dict], ids=lambda f: f.__name__)
def test_functions_that_do_not_tell_their_parameters(fun: Any) -> None:
    try:
        inspect.signature(fun)
    except ValueError:
        assert argument_names(fun, range(3), ["k"]) == (["arg0", "arg1", "arg2"], ["k"])
    positional, keywords = argument_names(fun, range(3), ["arg0", "k"])
    assert len({*positional, *keywords}) == 5


def test_a_keyword_with_the_name_of_a_parameter_that_has_its_default() -> None:
    def f(a: Any, b: Any = 1.0, /, c: Any = 2.0, **k: Any) -> Any:
        return add(a, b, c, k)

    assert argument_names(f, range(1), ["b", "c"]) == (
        ["a"],
        ["k/b", "c"],
    )  # Python 3.11 cannot bind it itself
    assert [x.item() for x in qb.jit(f, device="reference")(A(5.0), b=A(6.0), c=A(7.0))] == [
        5.0,
        1.0,
        7.0,
        6.0,
    ]


def test_more_arguments_than_parameters() -> None:
    with pytest.raises(TypeError, match="argument arg2 is a str"):
        qb.jit(lambda x, y: x)(A(1.0), A(2.0), "s")
    assert argument_names(lambda arg1: None, range(3), ["arg2"]) == (["arg1", "arg1#1", "arg2"], ["arg2#1"])


# --- transforms that take more than the function does -----------------------------------------------------------------


def powers(x: Any, y: Any = 2.0, *more: Any) -> Any:
    return x**2.0 + y + sum(more, 0.0)


def test_tangents_and_cotangents_are_no_arguments_of_the_function() -> None:
    with pytest.raises(TypeError, match="argument tangents/0 is a str"):
        qb.jvp(powers, (1.0,), ("s",))
    with pytest.raises(TypeError, match="argument tangents/1/a is a str"):
        qb.jvp(lambda x, y: x * y["a"], (1.0, {"a": 2.0}), (1.0, {"a": "s"}))
    with pytest.raises(TypeError, match="argument more/1 is a str"):
        qb.jvp(powers, (1.0, 2.0, 3.0, "s"), (1.0, 2.0, 3.0, 4.0))
    _, pullback = qb.vjp(powers, 1.0)
    with pytest.raises(TypeError, match="argument cotangent is a str"):
        pullback("s")


@pytest.mark.cpu
def test_a_nan_among_the_tangents() -> None:
    nan = A(float("nan"))
    with qb.debug_nans(), pytest.raises(qb.NanError, match=r"argument tangents/0 .* holds NaN already"):
        qb.jvp(powers, (A(1.0),), (nan,))
    with qb.debug_nans(), pytest.raises(qb.NanError, match=r"argument more/1 .* holds NaN already"):
        qb.jit(powers)(A(1.0), A(2.0), A(3.0), nan)


def with_rule(kind: Any, nondiff: Any) -> Any:
    f = kind(lambda n, x, k, y: x * y * n * k, nondiff_argnums=nondiff)
    if kind is qb.custom_jvp:
        f.defjvp(lambda n, k, primals, tangents: (primals[0], tangents[0]))
    else:
        f.defvjp(lambda n, x, k, y: (x, ()), lambda n, k, residuals, ct: (ct, None))
    return f


@pytest.mark.parametrize("kind", [qb.custom_jvp, qb.custom_vjp])
def test_functions_with_rules_of_their_own(kind: Any) -> None:
    f = with_rule(kind, (0, 2))
    for place, name in ((1, "x"), (3, "y")):
        args: list[Any] = [1.0, 2.0, 3.0, 4.0]
        args[place] = "s"
        with pytest.raises(TypeError, match=f"argument {name} is a str"):
            f(*args)


LOOPS: dict[str, Callable[..., Any]] = {
    "fori_loop": lambda x, ops: qb.fori_loop(0, 2, lambda i, c, w, *more: c * w, x, operands=ops),
    "while_loop": lambda x, ops: qb.while_loop(lambda c, *o: c < 9.0, lambda c, w, *more: c, x, operands=ops),
    "scan": lambda x, ops: qb.scan(lambda c, x, w, *more: (c * w, x), x, length=2, operands=ops),
    "cond": lambda x, ops: qb.cond(x > 0.0, lambda w, *more: w, lambda w, *more: w, *ops),
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize(("operands", "told"), [(("s",), "w"), ((1.0, 2.0, "s"), "more/1")])
def test_operands_of_control_flow(name: str, operands: Any, told: str) -> None:
    with pytest.raises(TypeError, match=f"argument {told} is a str"):
        qb.jit(lambda x: LOOPS[name](x, operands))(A(1.0))


def test_slices_of_a_scan() -> None:
    with pytest.raises(TypeError, match="argument row is a str"):
        qb.jit(lambda x: qb.scan(lambda c, row: (c, row), x, "s"))(A(1.0))


# --- static arguments, and what explain says --------------------------------------------------------------------------


def test_a_static_parameter_that_takes_no_keyword() -> None:
    def f(n: Any, /, x: Any, **rest: Any) -> Any:
        return x * float(len(n)) + rest["n"]

    x = A([1.0, 2.0])
    lowered = qb.jit(f, static_argnums=0).lower("ab", x, n=x)
    assert lowered.program.input_names == ("x", "rest/n")
    assert lowered.compile()("ab", x, n=x).tolist() == [3.0, 6.0]
    only = qb.jit(lambda n, /, x: x * float(len(n)), static_argnames="n")
    assert only("ab", x).tolist() == [2.0, 4.0]
    # The keyword is another argument than the parameter.
    other = qb.jit(lambda n, /, **k: n * float(len(k["n"])), static_argnames="n")
    assert other(x, n="abc").tolist() == [3.0, 6.0]


def test_explain_tells_args_from_keywords() -> None:
    f = qb.jit(plain, device="reference")
    for args, k in (((1.0,), 2.0), ((3.0,), 2.0), ((3.0, 4.0), 2.0)):
        f(A(1.0), *args, k=k)
    told = str(f.explain())
    assert "args/0: 1.0 became 3.0" in told and "args/1: 4.0 was added" in told
    assert "k was" not in told and "args/0 was 2 different Python numbers" in told
    assert "pass quabla.array(...)" in told

    g = qb.jit(lambda a, /, **k: a * k["a"], device="reference")
    g(A(1.0), a=2.0), g(A([1.0]), a=2.0), g(A([1.0]), a=3.0)
    told = str(g.explain())
    assert "a: float64[] became float64[1]" in told and "k/a: 2.0 became 3.0" in told
