"""Names of a Program's inputs: no two the same, whatever the arguments are, and the same in all of its forms."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import quabla as qb
from quabla.arrays.tracer import trace
from quabla.dtypes import float64
from quabla.ir.names import unique
from quabla.ir.program import Program as Graph
from quabla.ir.stablehlo import quoted
from quabla.ir.text import program_text
from quabla.shapes import aval_of
from quabla.transforms.forward import jvp
from quabla.transforms.reverse import vjp

A = qb.array


@dataclasses.dataclass
class Point:
    a: Any
    b: Any


class Pair(NamedTuple):
    a: Any
    x0: Any


# --- the rule ---------------------------------------------------------------------------------------------------------

WORDS = ["a", "b", "a/b", "a#1", "a#2", "#1", "", "a/0", "0", "x0", "capture/0", "tangent/a", "cotangent/0"]
NASTY = [
    *WORDS,
    "__quabla_capture/0",
    "%0",
    "a b",
    "'a b'",
    '"',
    "\\",
    "\n",
    "é",
    "\x00",
    "a,b",
    "a: float64[]",
]


@given(st.lists(st.sampled_from([*WORDS, "a#1#1"]), max_size=12))
def test_what_is_different_stays_and_what_is_equal_is_numbered(names: list[str]) -> None:
    made = unique(names)
    assert len(set(made)) == len(names) and unique(made) == made
    for i, (before, after) in enumerate(zip(names, made, strict=True)):
        if before not in names[:i]:
            assert after == before
        else:
            number = after.removeprefix(f"{before}#")
            assert int(number) >= 1
            # Numbers are not left out.
            assert all(f"{before}#{n}" in made for n in range(1, int(number)))


def test_inputs_without_names_have_one() -> None:
    values = trace(lambda *xs: xs, [aval_of((), float64)] * 4)[0].inputs
    assert Graph(values, (), values, ("x3", "y", "y")).input_names == ("x3", "y", "y#1", "x3#1")
    assert Graph(values, (), values).input_names == ("x0", "x1", "x2", "x3")


# --- what was wrong ---------------------------------------------------------------------------------------------------


def test_a_key_with_a_slash_beside_the_path_that_it_spells() -> None:
    x = A([1.0, 2.0, 3.0])
    program = qb.jit(lambda d: d["a/b"] + d["a"]["b"] * 10.0).lower({"a/b": x, "a": {"b": x * 2.0}}).program
    assert program.input_names == ("d/a/b", "d/a/b#1")
    executable = program.compile("reference")
    with pytest.raises(
        qb.ShapeError, match=r"missing input 'd/a/b#1' \(float64\[3\]\); the dict has 'd/a/b'"
    ):
        executable({"d/a/b": x})
    with pytest.raises(qb.ShapeError, match="there is no input 'd/a/b#2'; the inputs are 'd/a/b', 'd/a/b#1'"):
        executable({"d/a/b": x, "d/a/b#1": x, "d/a/b#2": x})
    # The first of the two is that of the key that sorts first, as everywhere: "a" before "a/b".
    assert executable({"d/a/b": x * 2.0, "d/a/b#1": x})[0].tolist() == [21.0, 42.0, 63.0]


def test_keys_that_are_written_alike() -> None:
    x = A(1.0)

    def names(*args: Any, **kwargs: Any) -> tuple[str, ...]:
        return qb.jit(lambda *a, **k: qb.tree.leaves((a, k))).lower(*args, **kwargs).program.input_names

    for tree in ({"d": {1: x}, "d/1": x}, {"d": [x, x], "d/1": x, "d/1#1": x}):
        made = names(tree)
        assert len(set(made)) == len(qb.tree.leaves(tree))
    assert len(set(names({1: x}, {"1": x}, [x, x]))) == 4
    reserved = {"__quabla_capture/0": x, "capture/0": x, "": x, "x0": x}
    assert len(set(names(x, reserved, **reserved))) == 9


def test_numbers_that_are_static_take_no_name_from_an_array() -> None:
    lowered = qb.jit(lambda d: d["a"]["b"] * d["a/b"]).lower({"a": {"b": 2.0}, "a/b": A(3.0)})
    (name,) = lowered.program.input_names
    assert lowered.program.compile("reference")({name: A(3.0)})[0].item() == 6.0


def test_captures_are_named_apart_from_arguments() -> None:
    seen: list[Graph] = []

    def outer(x: Any) -> Any:
        program, _ = trace(lambda a, b: [x * a + b], (x.aval, x.aval), ("capture/0", "capture/0#1"))
        seen.append(program)
        return x

    qb.jit(outer).lower(A([1.0, 2.0]))
    assert seen[0].input_names == ("capture/0", "capture/0#1", "capture/0#2")


def test_programs_made_by_transforms() -> None:
    x = aval_of((3,), float64)
    program, _ = trace(lambda a, b, c: [qb.sin(a) * b + c], [x] * 3, ("a", "tangent/a", "cotangent/0"))
    for made in (jvp(program), vjp(program)):
        assert made.input_names[:3] == program.input_names
        assert len(set(made.input_names)) == len(made.inputs)
    facade = qb.Compiler().trace(lambda a, b: a * b, [("a", ()), ("a#1", ())])
    assert set(facade.vjp("ct")) == {"a", "a#1"}
    assert (
        facade.vjp("ct")["a#1"].compile("reference")({"a": A(2.0), "a#1": A(3.0), "ct": A(5.0)}).item()
        == 10.0
    )


def test_a_trainer_with_parameters_that_are_written_alike() -> None:
    params = {"a/b": A(1.0), "a": {"b": A(2.0)}}
    trainer = qb.optim.Trainer(
        lambda params, data: (params["a/b"] * params["a"]["b"] - data["a/b"] - data["a"]["b"]) ** 2,
        params, qb.optim.SGD(0.1), params, device="reference",
    )  # fmt: skip
    assert len(set(trainer.program.input_names)) == len(trainer.program.inputs) >= 4


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_in_which_two_inputs_have_one_name(tmp_path: Path) -> None:
    path = tmp_path / "p.qbp"
    qb.jit(lambda x, y: x - y).lower(A(1.0), A(2.0)).save(path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    (member,) = (name for name in parts if name.endswith(".json"))
    document = json.loads(parts[member])
    document["programs"][0]["inputs"][1]["name"] = "x"
    parts[member] = json.dumps(document).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    with pytest.raises(
        qb.FileFormatError, match=r"malformed at programs/0/inputs: .*two inputs have the name 'x'"
    ):
        qb.load_program(path)


# --- all of it, on random trees ---------------------------------------------------------------------------------------

keys = st.sampled_from(NASTY) | st.text(max_size=3)
leaf = st.just(None) | st.integers(1, 3)  # a leaf says how long the rows of an array are; None holds none


def containers(inner: Any) -> Any:
    return (
        st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.integers(-2, 2), inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
        | st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.builds(Point, inner, inner)
        | st.builds(Pair, inner, inner)
    )


trees = st.recursive(leaf, containers, max_leaves=8)


def total(leaves: Sequence[Any]) -> Any:
    """A number that depends on which array stands where."""
    return sum((qb.sum(x) * float(3**i) for i, x in enumerate(leaves)), A(0.0))


def function(a: Any, *b: Any, **c: Any) -> Any:
    """Its parameters are named like some keys."""
    return total(qb.tree.leaves((a, b, c)))


BY_TRANSFORM = {
    "jit": lambda: function,
    "vmap": lambda: qb.vmap(lambda *a, **k: qb.tree.map(lambda x: x * 2.0, qb.tree.leaves((a, k)))),
    "grad": lambda: lambda *a, **k: qb.grad(lambda t: function(*t[0], **t[1]))((a, k)),
}


@pytest.mark.parametrize("transform", BY_TRANSFORM)
@given(trees, st.lists(trees, max_size=3), st.dictionaries(keys, trees, max_size=3))
@example({"a/b": 1, "a": {"b": 1}}, [], {})
@example(1, [1, {"0": 1}], {"b/0": 1, "a": 1, "b": [1, 1]})
@settings(max_examples=25)
def test_by_name_and_by_position(transform: str, first: Any, rest: list[Any], named: dict[str, Any]) -> None:
    named.pop("a", None)  # which is passed by position
    count = iter(range(1000))
    args, kwargs = qb.tree.map(
        lambda n: A([[float(next(count) * 10 + i) for i in range(n)]] * 2), ((first, *rest), named)
    )
    arrays = qb.tree.leaves((args, kwargs))
    if not arrays:
        return
    program = qb.jit(BY_TRANSFORM[transform]()).lower(*args, **kwargs).program
    names = program.input_names
    assert len(set(names)) == len(names) == len(arrays)
    executable = program.compile("reference")
    by_position = program.graph
    assert [v.aval for v in by_position.inputs] == [x.aval for x in arrays]
    wanted = [x.numpy() for x in qb.tree.leaves(BY_TRANSFORM[transform]()(*args, **kwargs))]
    found = executable(dict(zip(names, arrays, strict=True)))
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x.numpy(), y, rtol=1e-14)
    for i, name in enumerate(names):
        without = {n: x for n, x in zip(names, arrays, strict=True) if n != name}
        with pytest.raises(qb.ShapeError, match="missing input"):
            executable(without)
        if i == 0:
            with pytest.raises(qb.ShapeError, match="there is no input"):
                executable({**dict(zip(names, arrays, strict=True)), f"{name} of another": arrays[0]})
    same_in_all_forms(program)


def same_in_all_forms(program: Any) -> None:
    import pickle

    names = program.input_names
    lines = program_text(program.graph).split("\n")
    told = [line.removeprefix("  input ") for line in lines if line.startswith("  input ")]
    assert len(set(told)) == len(told) == len(names)
    for line, name, aval in zip(told, names, program.in_avals, strict=True):
        assert line in (f"{name}: {aval!r}", f"{name!r}: {aval!r}")
    head = program.as_stablehlo().split("\n")[1]
    at = -1
    for name in names:
        at = head.index(f"loc({quoted(name)})", at + 1)
    again = pickle.loads(pickle.dumps(program))
    assert again.input_names == names
