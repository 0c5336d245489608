"""Programs as text, to the letter."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import numpy as np

import quabla as qb
from quabla.arrays.tracer import trace
from quabla.dtypes import bool_, float32, float64, int64
from quabla.ir.op import Op
from quabla.ir.program import Node, Program, Value
from quabla.ir.text import program_text
from quabla.shapes import ShapeDtype, aval_of


def expect(program: Program, text: str) -> None:
    """The program has exactly this text, under all the names by which one can ask for it."""
    wanted = dedent(text).strip("\n")
    assert program_text(program) == wanted
    assert str(program) == wanted
    assert f"{program}" == wanted


def lowered(fun: Any, *args: Any) -> Program:
    return qb.jit(fun, device="reference").lower(*args).program.graph


def value(aval: ShapeDtype, node: Node | None = None, index: int = 0) -> Value:
    v = Value()
    v.aval, v.node, v.index = aval, node, index
    return v


def node(name: str, inputs: tuple[Value, ...], avals: tuple[ShapeDtype, ...], **params: Any) -> Node:
    """A node of an op that is in no table, to show what no op of today has."""
    op = Op(name, infer=lambda *a, **k: avals, evaluate=lambda *a, **k: a, family="region")
    made = Node(op, inputs, params)
    made.outputs = tuple(value(a, made, i) for i, a in enumerate(avals))
    return made


def test_a_network_with_the_paths_of_its_parameters() -> None:
    def loss(params: Any, x: Any) -> Any:
        for layer in params["layers"]:
            x = qb.tanh(x @ layer["w"] + layer["b"])
        return qb.mean(x, axis=(0, 1))

    def layer(n: int, m: int) -> Any:
        return {"w": ShapeDtype((n, m)), "b": ShapeDtype((m,))}

    expect(
        lowered(loss, {"layers": [layer(1, 3), layer(3, 1)]}, ShapeDtype((8, 1))),
        """
        program
          input params/layers/0/b: float64[3]
          input params/layers/0/w: float64[1,3]
          input params/layers/1/b: float64[1]
          input params/layers/1/w: float64[3,1]
          input x: float64[8,1]
          %0: float64[8,3] = dot_general(x, params/layers/0/w, contract=[[1],[0]], batch=[[],[]])
          %1: float64[8,3] = broadcast(params/layers/0/b, dims=[1])
          %2: float64[8,3] = add(%0, %1)
          %3: float64[8,3] = tanh(%2)
          %4: float64[8,1] = dot_general(%3, params/layers/1/w, contract=[[1],[0]], batch=[[],[]])
          %5: float64[8,1] = broadcast(params/layers/1/b, dims=[1])
          %6: float64[8,1] = add(%4, %5)
          %7: float64[8,1] = tanh(%6)
          %8: float64[] = reduce_sum(%7, axes=[0,1])
          %9: float64[] = full(8.0)
          %10: float64[] = div(%8, %9)
          return %10
        """,
    )


def test_constants_show_no_elements_and_casts_say_their_type_once() -> None:
    table = qb.array([[1.0, 2.0], [3.0, 4.0]])
    program = lowered(lambda x: (x * table).astype(qb.float32)[0, ::-1], ShapeDtype((2, 2)))
    text = """
        program
          input x: float64[2,2]
          %0: float64[2,2] = constant(...)
          %1: float64[2,2] = mul(x, %0)
          %2: float32[2,2] = astype(%1)
          %3: float32[1,2] = slice(%2, start=[0,1], stop=[1,-1], step=[1,-1])
          %4: float32[2] = reshape(%3)
          return %4
        """
    expect(program, text)
    table = qb.array([[5.0, 6.0], [7.0, 8.0]])
    expect(lowered(lambda x: (x * table).astype(qb.float32)[0, ::-1], ShapeDtype((2, 2))), text)


def test_a_param_is_left_out_only_where_the_type_repeats_it() -> None:
    x = value(aval_of((2, 3), float64))
    out = aval_of((2,), float32)
    weak = aval_of((2,), float32, True)
    plain = node("op", (x,), (out,), shape=(2,), to=float32, weak=False, axes=(2,))
    other = node("op", (x,), (weak,), shape=(3,), to=int64, weak=False, aval=out)
    expect(
        Program((x,), (plain, other), (*plain.outputs, *other.outputs), ("x",)),
        """
        program
          input x: float64[2,3]
          %0: float32[2] = op(x, axes=[2])
          %1: ~float32[2] = op(x, shape=[3], to=int64, weak=False, aval=float32[2])
          return %0, %1
        """,
    )


def test_params_of_every_kind_are_short_and_without_addresses() -> None:
    x = value(aval_of((), float64))
    made = node(
        "op", (x,), (aval_of((), float64),),
        none=None, flag=True, number=3, real=-0.5, word="lower", nested=((1,), [2.0, False]), element=bool_,
        table=qb.array([1.0, 2.0, 3.0]), array=np.arange(3.0), rule=qb.sin, thing=object(),
    )  # fmt: skip
    expect(
        Program((x,), (made,), made.outputs, ("x",)),
        """
        program
          input x: float64[]
          %0: float64[] = op(x, none=None, flag=True, number=3, real=-0.5, word='lower', nested=[[1],[2.0,False]], """
        """element=bool, table=float64[3], array=<ndarray>, rule=<sin>, thing=<object>)
          return %0
        """,
    )


def test_regions_stand_below_their_node() -> None:
    scalar = aval_of((), float64)
    double, _ = trace(lambda c, i: [c + c], (scalar, aval_of((), int64)), ("carry", "i"))
    keep, _ = trace(lambda c: [c], (scalar,), ("c",))
    x = value(scalar)
    loop = node("fori_loop", (x,), (scalar,), upper=3, body=double)
    inner = Program((x,), (loop,), loop.outputs, ("c",))
    y, p = value(scalar), value(aval_of((), bool_))
    branch = node("cond", (p, y), (scalar, scalar), branches=(inner, keep), safe=True)
    expect(
        Program((p, y), (branch,), branch.outputs, ("p", "y")),
        """
        program
          input p: bool[]
          input y: float64[]
          %0: float64[], %1: float64[] = cond(p, y, safe=True)
            branches[0]
              input c: float64[]
              %0: float64[] = fori_loop(c, upper=3)
                body
                  input carry: float64[]
                  input i: int64[]
                  %0: float64[] = add(carry, carry)
                  return %0
              return %0
            branches[1]
              input c: float64[]
              return c
          return %0, %1
        """,
    )


def test_names_are_unique_and_read_as_one_word() -> None:
    scalar = aval_of((), float64)
    values = tuple(value(scalar) for _ in range(5))
    expect(
        Program(values, (), (values[1], values[4]), ("x", "x", "p/my weight", "x")),
        """
        program
          input x: float64[]
          input x#1: float64[]
          input 'p/my weight': float64[]
          input x#2: float64[]
          input x4: float64[]
          return x#1, x4
        """,
    )


def test_captures_have_names() -> None:
    seen: list[Program] = []

    def outer(x: Any) -> Any:
        program, captures = trace(lambda y: [x * y + x], (x.aval,), ("y",))
        assert captures == (x,)
        seen.append(program)
        return x

    lowered(outer, ShapeDtype((2,)))
    expect(
        seen[0],
        """
        program
          input y: float64[2]
          input capture/0: float64[2]
          %0: float64[2] = mul(capture/0, y)
          %1: float64[2] = add(%0, capture/0)
          return %1
        """,
    )


def test_a_broken_program_can_still_be_looked_at() -> None:
    scalar = aval_of((), float64)
    lost = value(scalar)
    made = node("neg", (lost,), (scalar,))
    expect(
        Program((), (made,), (*made.outputs, lost)),
        """
        program
          %0: float64[] = neg(?)
          return %0, ?
        """,
    )


def test_the_text_does_not_depend_on_the_run() -> None:
    def loss(x: Any) -> Any:
        return qb.sum(qb.grad(lambda y: qb.sum(qb.sin(y) * y))(x) ** 2)

    first = str(lowered(qb.grad(loss), ShapeDtype((4,))))
    assert first == str(lowered(qb.grad(lambda x: loss(x)), ShapeDtype((4,))))
    assert first.count("\n") > 10 and "0x" not in first
