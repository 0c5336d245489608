"""What a function beneath a transform reads: where it has changed the function is traced anew, and else it is not."""

from __future__ import annotations

import dataclasses
import functools
import random
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import quabla as qb
from quabla.transforms.reads import Reads

A = qb.array
X = A([1.0, 2.0, 3.0])
SCALE: Any = 1.0


def unrolled(f: Callable[[Any], Any], change: Callable[[float], Any]) -> None:
    """`f(x)` is `sum(x) * s`, with the `s` that `change` sets, also from one call of one trace to the next."""
    g = qb.grad(f)

    def outer(x: Any) -> list[Any]:
        out = []
        for s in (1.0, 2.0, 2.0, 3.0, 1.0):
            change(s)
            out.append(g(x))
        return out

    for _ in range(2):
        out = qb.jit(outer, device="reference")(X)
        assert [x.tolist()[0] for x in out] == [1.0, 2.0, 2.0, 3.0, 1.0]


class Config:
    scale = 1.0
    nested: Any = None

    def times(self, x: Any) -> Any:
        return x * self.scale


class Slotted:
    __slots__ = ("__private", "scale")

    def set(self, s: float) -> None:
        self.scale = self.__private = s

    def get(self) -> float:
        return self.__private


@dataclasses.dataclass
class Data:
    scale: float = 1.0


def scaled_by_the_module(x: Any) -> Any:
    return qb.sum(x) * SCALE


def set_global(s: float) -> None:
    global SCALE
    SCALE = s


MODULE: Any = types.ModuleType("settings_of_a_user")
NAMES = types.SimpleNamespace(scale=1.0, other=np.zeros(3))


def ways() -> Iterator[tuple[str, Callable[[Any], Any], Callable[[float], Any]]]:
    s: Any = 1.0

    def rebind(value: float) -> None:
        nonlocal s
        s = value

    yield "a variable of an enclosing function", lambda x: qb.sum(x) * s, rebind
    helper = lambda x: x * s
    yield "that of a function that is called", lambda x: qb.sum(helper(x)), rebind
    yield "that of a function within", lambda x: (lambda y: qb.sum(y) * s)(x), rebind
    yield "a variable of the module", scaled_by_the_module, set_global
    yield "the same, further down", lambda x: scaled_by_the_module(x), set_global
    items = [1.0]
    yield "an element of a list", lambda x: qb.sum(x) * items[0], lambda s: items.__setitem__(0, s)
    table = {"a": {"b": (1.0, 2.0)}}
    yield (
        "a dict in a dict",
        lambda x: qb.sum(x) * table["a"]["b"][0],
        lambda s: table["a"].update(b=(s, 2.0)),
    )
    arrays = {"w": A(1.0)}
    yield "an array in a dict", lambda x: qb.sum(x) * arrays["w"], lambda s: arrays.update(w=A(s))
    yield (
        "an array of another shape",
        lambda x: qb.sum(x * arrays["w"]),
        lambda s: arrays.update(w=A([s] * 3)),
    )
    config = Config()
    yield "an attribute", lambda x: qb.sum(x) * config.scale, lambda s: setattr(config, "scale", s)
    yield (
        "an attribute that a method reads",
        lambda x: qb.sum(config.times(x)),
        lambda s: setattr(config, "scale", s),
    )
    yield (
        "a method",
        config.times and (lambda x, m=config.times: qb.sum(m(x))),
        lambda s: setattr(config, "scale", s),
    )
    fresh = Config()
    yield (
        "an attribute of the class",
        lambda x: qb.sum(x) * fresh.scale,
        lambda s: setattr(Config, "scale", s),
    )
    yield "a class", lambda x: qb.sum(x) * Config.scale, lambda s: setattr(Config, "scale", s)
    fresh.nested = [Data()]
    yield "a dataclass in an attribute", (
        lambda x: qb.sum(x) * fresh.nested[0].scale
    ), lambda s: setattr(fresh.nested[0], "scale", s)  # fmt: skip
    slotted = Slotted()
    yield "a slot", lambda x: qb.sum(x) * slotted.scale, slotted.set
    yield "a private slot", lambda x: qb.sum(x) * slotted.get(), slotted.set
    yield "a module", lambda x: qb.sum(x) * MODULE.scale, lambda s: setattr(MODULE, "scale", s)
    by_name = "scale"
    yield "by a name that is made up", lambda x: qb.sum(x) * getattr(MODULE, by_name), (
        lambda s: setattr(MODULE, "scale", s)
    )  # fmt: skip
    yield "a namespace", lambda x: qb.sum(x) * NAMES.scale, lambda s: setattr(NAMES, "scale", s)
    yield "a namespace by name", lambda x: qb.sum(x) * getattr(NAMES, by_name), (
        lambda s: setattr(NAMES, "scale", s)
    )  # fmt: skip
    holder = [MODULE, NAMES]
    yield "a module in a list", lambda x: qb.sum(x) * holder[0].scale, lambda s: setattr(MODULE, "scale", s)
    bound = functools.partial(lambda t, x: qb.sum(x) * t["s"], {"s": 1.0})
    yield "an argument of a partial", lambda x: bound(x), lambda s: bound.args[0].update(s=s)

    def with_default(x: Any, s: Any = 1.0, *, t: Any = 1.0) -> Any:
        return qb.sum(x) * s * t

    yield "a default", with_default, lambda s: setattr(with_default, "__defaults__", (s,))
    other_default = types.FunctionType(with_default.__code__, globals(), "f", (1.0,))
    other_default.__kwdefaults__ = {"t": 1.0}
    yield "a keyword's default", other_default, lambda s: other_default.__kwdefaults__.update(t=s)

    def with_attribute(x: Any) -> Any:
        return qb.sum(x) * with_attribute.scale  # type: ignore[attr-defined]

    yield "an attribute of the function", with_attribute, lambda s: setattr(with_attribute, "scale", s)
    functions = [lambda x: x * 1.0]
    yield "a function in a list", lambda x: qb.sum(functions[0](x)), (
        lambda s: functions.__setitem__(0, lambda x: x * s)
    )  # fmt: skip
    inner = [qb.vmap(lambda x: x * 1.0)]
    yield "a transformed function", lambda x: qb.sum(inner[0](x)), (
        lambda s: inner.__setitem__(0, qb.vmap(lambda x: x * s))
    )  # fmt: skip
    mixed: list[Any] = [1.0, A(2.0)]
    yield "a number and an array that change places", lambda x: qb.sum(x) * mixed[0], (
        lambda s: mixed.reverse() if float(mixed[-1]) == s else mixed.__setitem__(0, s)
    )  # fmt: skip
    array = np.ones(1)
    yield "an ndarray", lambda x: qb.sum(x) * array.item(), lambda s: array.fill(s)
    queue: Any = iter(())

    def renew(s: float) -> None:
        nonlocal queue
        queue = iter([s])

    yield "an iterator", lambda x: qb.sum(x) * next(queue), renew


@pytest.mark.parametrize("way", range(len(list(ways()))), ids=[name for name, *_ in ways()])
def test_what_a_function_reads_anew_is_traced_anew(way: int) -> None:
    MODULE.scale = NAMES.scale = 1.0
    _, f, change = list(ways())[way]
    before = Config.scale
    try:
        unrolled(f, change)
    finally:
        Config.scale = before


def test_random_numbers_are_drawn_at_each_call() -> None:
    rng = np.random.default_rng(0)
    own = random.Random(1)
    draws = [rng.normal, np.random.RandomState(1).rand, random.random, random.gauss, own.random]
    draws += [
        lambda: rng.normal(),
        lambda: np.random.rand(),
        lambda: own.random(),
        lambda: random.gauss(0.0, 1.0),
    ]
    for draw in draws:
        g = qb.grad(lambda x, draw=draw: qb.sum(x) * float(draw()))
        out = qb.jit(lambda x, g=g: [g(x) for _ in range(4)], device="reference")(X)
        assert len({x.tolist()[0] for x in out}) == 4


def test_what_did_not_change_is_no_reason() -> None:
    arrays, table, config = {"w": A(2.0)}, [1.0, {"a": (True, None, "x")}], Config()
    data, pair = Data(), Point(1.0, 2.0)
    g = qb.vmap(lambda x: x * 2.0)
    part = functools.partial(lambda a, x: a * x, 2.0)

    def f(x: Any) -> Any:
        y = part(g(x)) * arrays["w"] * table[0] * config.times(x) * data.scale * pair.a * np.pi * NAMES.scale
        return qb.sum(np.float64(2.0).item() * y + np.sin(0.0) + with_helper(x))

    traces = []

    def counted(x: Any) -> Any:
        traces.append(None)
        return f(x)

    slope = qb.grad(counted)
    for _ in range(3):
        qb.jit(lambda x: [slope(x) for _ in range(3)]).lower(qb.ShapeDtype((3,)))
    assert len(traces) == 1


class Point(NamedTuple):
    a: float
    b: float


def with_helper(x: Any) -> Any:
    return qb.sqrt(x * x + 1.0) * SCALE


def test_what_is_met_twice_has_a_place_each_time() -> None:
    one, other = (lambda x: x), (lambda x: 2.0 * x)
    held: list[Any] = [one, one, other]
    f = lambda x: held[1](x)
    reads = Reads.of(f)
    assert reads is not None and reads.same(f)
    held[1] = other
    assert not reads.same(f)
    held[1] = one
    assert reads.same(f)


def test_what_cannot_be_told_is_not_kept() -> None:
    array, generator = np.zeros(2), (i for i in range(3))
    for held in (array, generator, [array], {"a": [array]}, type("Own", (dict,), {})()):
        assert Reads.of(lambda x, held=held: x) is None
    assert Reads.of(lambda x: x) is not None
    assert Reads.of(np.sin) is not None

    def imports(x: Any) -> Any:
        from os import path

        return path

    assert Reads.of(imports) is None
