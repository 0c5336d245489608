"""Programs in files: everything comes back, and nothing damaged, foreign or hostile gets in."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.arrays.tensor import wrap
from quabla.arrays.tracer import bind, trace
from quabla.dtypes import float64
from quabla.ir.op import OPS
from quabla.shapes import MOST_ELEMENTS, aval_of
from quabla.transforms.programs import Program

A = qb.array
S = qb.ShapeDtype


def back(tmp_path: Path, program: qb.Program) -> qb.Program:
    path = tmp_path / "p.qbp"
    program.save(path)
    return qb.load_program(path)


@qb.custom_vjp
def clipped(x: Any) -> Any:
    return x * x


clipped.defvjp(lambda x: (x * x, x), lambda x, ct: (ct * qb.minimum(2.0 * x, 1.0),))


@qb.custom_jvp
def tripled(x: Any) -> Any:
    return x * x


tripled.defjvp(lambda primals, tangents: (primals[0] * primals[0], 3.0 * tangents[0]))

TABLE = np.linspace(0.0, 1.0, 12).reshape(3, 4)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "closure": lambda x: x @ A(TABLE) + A([True, False, True, True]),
    "numbers": lambda x: (x * float("inf"), x * -0.0, qb.full((2,), float("nan")), 1e-320, 7),
    "cond": lambda x: qb.cond(qb.sum(x) > 0.0, lambda y: y * A([1.0, 2.0, 3.0]), lambda y: -y, x),
    "scan": lambda x: qb.scan(lambda c, i: (qb.sin(c) + i, c * 2.0), x, length=5),
    "while": lambda x: qb.while_loop(lambda c: qb.sum(c) < 100.0, lambda c: c * 2.0 + 1.0, x, max_steps=50),
    "nested": lambda x: qb.fori_loop(
        0,
        3,
        lambda i, c: qb.cond(
            c[0] > 1.0, lambda c: qb.fori_loop(0, 2, lambda j, d: d * 0.5, c), lambda c: c + 1.0, c
        ),
        x,
    ),
    "checkpoint": qb.grad(lambda x: qb.sum(qb.checkpoint(lambda y: qb.sin(qb.exp(y)))(x))),
    "custom": lambda x: clipped(x) + tripled(x),
    "indexing": lambda x: x[A([2.0, 0.0, 2.0])] + x[::-1],
    "linalg": lambda x: qb.solve(qb.eye(3) * (x + 2.0), x),
    "hessian": qb.hessian(lambda x: qb.sum(qb.log1p(x * x) ** 1.5)),
    "single": lambda x: qb.astype(x, "float32") * 0.1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_program_comes_back_whole(name: str, tmp_path: Path) -> None:
    lowered = qb.jit(FUNCTIONS[name]).lower(S((3,)))
    again = back(tmp_path, lowered.program)
    assert again.lower_text() == lowered.as_text()
    assert (again.input_names, again.ordered, again.name) == (
        lowered.program.input_names, lowered.program.ordered, lowered.program.name
    )  # fmt: skip
    x = A([0.25, 0.5, 0.75])
    wanted = lowered.program(x)
    for a, b in zip(again(x), wanted, strict=True):
        assert a.aval is b.aval
        assert a.numpy().tobytes() == b.numpy().tobytes()
    second = back(tmp_path, again)
    assert second.lower_text() == again.lower_text()


@pytest.mark.parametrize("name", sorted(n for n, op in OPS.items() if op.samples is not None))
def test_every_op_comes_back(name: str, tmp_path: Path) -> None:
    op = OPS[name]
    assert op.samples is not None
    for sample in op.samples():
        rng = np.random.default_rng(1)
        arrays = [np.asarray(x) for x in sample.make(rng)]
        arrays = [x.astype(sample.only.numpy) if sample.only and x.dtype.kind == "f" else x for x in arrays]
        graph, _ = trace(
            lambda *xs, p=sample.params: out if isinstance(out := bind(op, xs, p), tuple) else [out],
            [wrap(x.copy()).aval for x in arrays],
        )
        program = Program(graph, name, ordered=True)
        again = back(tmp_path, program)
        assert again.lower_text() == program.lower_text()
        assert [dict(n.params).keys() for n in again.nodes] == [dict(n.params).keys() for n in program.nodes]


def test_a_loaded_program_is_differentiated_by_its_custom_rules(tmp_path: Path) -> None:
    program = back(tmp_path, qb.jit(lambda x: clipped(x) + tripled(x)).lower(S(())).program)
    assert qb.grad(lambda x: program(x)[0])(5.0).item() == 1.0 + 3.0


def test_derivatives_through_loaded_regions(tmp_path: Path) -> None:
    f = FUNCTIONS["scan"]
    program = back(tmp_path, qb.jit(f).lower(S((3,))).program)
    x = A([0.1, 0.2, 0.3])
    direct = qb.grad(lambda x: qb.sum(f(x)[1]))(x)
    np.testing.assert_array_equal(qb.grad(lambda x: qb.sum(program(x)[1]))(x).numpy(), direct.numpy())


def test_named_programs_and_equal_bytes(tmp_path: Path) -> None:
    program = qb.Compiler().trace(lambda x, y: qb.sum(x * y), [("x", (3,)), ("y/z", (3,))])
    again = back(tmp_path, program)
    assert again.compile()({"x": A([1.0, 2.0, 3.0]), "y/z": A([1.0, 1.0, 1.0])}).item() == 6.0
    first = (tmp_path / "p.qbp").read_bytes()
    program.save(str(tmp_path / "q.qbp"))
    assert (tmp_path / "q.qbp").read_bytes() == first
    assert sorted(os.listdir(tmp_path)) == ["p.qbp", "q.qbp"]


def test_saving_where_one_cannot(tmp_path: Path) -> None:
    program = qb.jit(lambda x: x).lower(S(())).program
    with pytest.raises(OSError):
        program.save(tmp_path / "no" / "such" / "folder")
    with pytest.raises(FileNotFoundError):
        qb.load_program(tmp_path / "missing.qbp")


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    at = tmp_path / "p.qbp"
    qb.jit(lambda x: qb.fori_loop(0, 3, lambda i, c: qb.sin(c) * A([1.0, 2.0, 3.0]), x) + 0.5).lower(
        S((3,))
    ).save(at)
    return at


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any], data: bytes | None = None) -> None:
    """Put a changed document into a file with right checksums."""
    with zipfile.ZipFile(path) as archive:
        document, constants = json.loads(archive.read("program.json")), archive.read("constants.bin")
    changed = change(document)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("program.json", json.dumps(document if changed is None else changed))
        archive.writestr("constants.bin", constants if data is None else data)


def refused(path: Path, words: str) -> None:
    with pytest.raises(qb.FileFormatError, match=words) as info:
        qb.load_program(path)
    assert isinstance(info.value, ValueError) and str(path) in str(info.value)


def test_files_of_other_kinds(tmp_path: Path) -> None:
    at = tmp_path / "x"
    at.write_bytes(b"")
    refused(at, "damaged")
    at.write_text("hello")
    refused(at, "damaged")
    at.write_bytes(pickle.dumps(Evil()))
    refused(at, "damaged")
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    refused(tmp_path / "a.npz", "archive of other files")
    assert not ran


ran: list[int] = []


class Evil:
    def __reduce__(self) -> Any:
        return ran.append, (1,)


def test_every_truncation_is_seen(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:length])
        with pytest.raises(qb.FileFormatError):
            qb.load_program(path)


def test_flipped_bytes_are_seen_or_harmless(path: Path) -> None:
    whole = path.read_bytes()
    text = qb.load_program(path).lower_text()
    constant = [
        n.params["value"].tolist()
        for p in [qb.load_program(path)]
        for n in p.nodes[0].params["body"].nodes
        if n.op.name == "constant"
    ]
    rng = random.Random(2)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(damaged))
        try:
            program = qb.load_program(path)
        except qb.FileFormatError:
            continue
        # A bit of the archive's own bookkeeping, such as a date.
        assert program.lower_text() == text
        assert [
            n.params["value"].tolist()
            for n in program.nodes[0].params["body"].nodes
            if n.op.name == "constant"
        ] == constant


def test_versions(path: Path) -> None:
    rewrite(path, lambda d: d.update(version=2))
    refused(path, "version 2 .* reads versions up to 1; install a newer")
    rewrite(path, lambda d: d.update(version="1"))
    refused(path, "never was")
    rewrite(path, lambda d: d.update(format="other"))
    refused(path, "not a saved program")
    rewrite(path, lambda d: [1])
    refused(path, "not a saved program")


def node(document: dict[str, Any], op: str) -> dict[str, Any]:
    return next(n for p in document["programs"] for n in p["nodes"] if n["op"] == op)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown op": (lambda d: node(d, "sin").update(op="sun"), "no op 'sun'"),
    "extra field": (lambda d: d.update(code="import os"), "malformed at code"),
    "missing field": (lambda d: d.pop("programs") and None, "malformed at programs"),
    "no programs": (lambda d: d.update(programs=[]), "malformed at programs"),
    "operand from the future": (lambda d: node(d, "sin").update(inputs=[99]), "not defined before"),
    "negative operand": (lambda d: node(d, "sin").update(inputs=[-1]), "malformed"),
    "too many operands": (lambda d: node(d, "sin").update(inputs=[0, 0]), "sin"),
    "too few operands": (lambda d: node(d, "add").update(inputs=[0]), "add"),
    "output nobody makes": (lambda d: d["programs"][-1].update(outputs=[77]), "nothing defines"),
    "other type": (lambda d: node(d, "sin").update(types=["float64[4]"]), "types in the file"),
    "no type": (lambda d: node(d, "sin").update(types=["float64[0]"]), "no type"),
    "no types": (lambda d: node(d, "sin").update(types=[]), "types in the file"),
    "huge type": (
        lambda d: d["programs"][-1]["inputs"][0].update(type="float64[9999999999999,9999999999999]"),
        "memory",
    ),
    "type of another script": (lambda d: d["programs"][-1]["inputs"][0].update(type="float64[٣]"), "no type"),
    "extra param": (lambda d: node(d, "sin")["params"].update(x=1), "sin"),
    "missing param": (lambda d: node(d, "scan")["params"].pop("length") and None, "scan"),
    "other param": (lambda d: node(d, "scan")["params"].update(length="3"), "length is a str"),
    "negative length": (lambda d: node(d, "scan")["params"].update(consts=5), "do not fit"),
    "carry of another type": (
        lambda d: (
            node(d, "scan").update(inputs=[1])
            or d["programs"][-1]["inputs"].append({"name": "z", "type": "float64[2]"})
        ),
        "do not fit",
    ),
    "param of unknown kind": (
        lambda d: node(d, "sin")["params"].update(x={"pickle": "abc"}),
        "kind 'pickle'",
    ),
    "param that is a list": (lambda d: node(d, "sin")["params"].update(x=[1]), "unknown form"),
    "constant that is not there": (
        lambda d: node(d, "constant")["params"].update(value={"constant": 5}),
        "invalid",
    ),
    "program that is not there": (lambda d: node(d, "scan")["params"].update(body={"program": 1}), "invalid"),
    "bad float": (lambda d: node(d, "full")["params"].update(value={"float": "zz"}), "invalid"),
    "constant of another type": (lambda d: d["constants"][0].update(type="int64[3]"), "types in the file"),
    "constant beyond the end": (lambda d: d["constants"][0].update(offset=8), "ends at byte"),
    "constant of no size": (lambda d: d["constants"][0].update(type="float64"), "no type"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_documents_that_are_not_right(name: str, path: Path) -> None:
    change, words = CHANGES[name]
    rewrite(path, change)
    refused(path, words)


def slicing(start: int, stop: int, step: int) -> Callable[[dict[str, Any]], Any]:
    one = {"start": start, "stop": stop, "step": step}
    return lambda d: node(d, "slice").update(params={k: {"tuple": [v]} for k, v in one.items()})


@pytest.mark.parametrize(
    ("fun", "change"),
    [
        (lambda x: x[1:3], slicing(2, 4, 1)),
        (lambda x: x[1:3], slicing(-1, 1, 1)),
        (lambda x: x[1:3], slicing(1, 9, 4)),
        (lambda x: qb.ravel(qb.outer(x, x)),
         lambda d: node(d, "reshape").update(params={"shape": {"tuple": [10]}}, types=["float64[10]"])),
        (lambda x: qb.outer(x, x).T, lambda d: node(d, "transpose").update(params={"perm": {"tuple": [0, 0]}})),
        (lambda x: qb.sum(x), lambda d: node(d, "reduce_sum").update(params={"axes": {"tuple": [0, 0]}})),
        (lambda x: qb.concat([x, x]), lambda d: node(d, "concat").update(params={"axis": -1})),
        (lambda x: x[A([0.0, 2.0])], lambda d: node(d, "gather").update(params={"axis": 0, "batch": -1})),
        (lambda x: x + qb.ones((2, 3)),
         lambda d: node(d, "broadcast").update(params={"shape": {"tuple": [2, 3]}, "dims": {"tuple": [0]}})),
        (
            lambda x: x[A([0.0, 2.0])] * 1.0,
            lambda d: node(d, "full").update(params={"value": 2**63, "aval": {"type": "int64[2]"}}, types=["int64[2]"]),
        ),
        (lambda x: x + 1.0, lambda d: node(d, "full").update(params={"value": True, "aval": {"type": "float64[3]"}})),
        (lambda x: x**3, lambda d: node(d, "integer_power")["params"].update(exponent=-3)),
        (lambda x: qb.sinc(x), lambda d: node(d, "sinc")["params"].update(order=-1)),
        (lambda x: x * x,
         lambda d: node(d, "mul").update(inputs=[0, 1])
         or d["programs"][0]["inputs"].append({"name": "y", "type": "float32[3]"})),
    ],
)  # fmt: skip
def test_params_that_would_read_other_memory(fun: Any, change: Any, tmp_path: Path) -> None:
    at = tmp_path / "p.qbp"
    qb.jit(fun).lower(S((3,))).save(at)
    rewrite(at, change)
    refused(at, "do not fit|differ")


N = 8
OPERANDS = (np.random.default_rng(0).random((N, N)) + np.eye(N), np.arange(N), np.ones((N, 2)))
FOLLOWING: dict[str, Callable[..., Any]] = {
    "gather": lambda a, at, b: bind(OPS["gather"], (a, at), {"axis": 0, "batch": 0}),
    "scatter_add": lambda a, at, b: bind(OPS["scatter_add"], (a, at), {"axis": 0, "batch": 0, "extent": N}),
    "lu_solve": lambda a, at, b: bind(OPS["lu_solve"], (a, at, b), {"transposed": False}),
    "lu_solve_transposed": lambda a, at, b: bind(OPS["lu_solve"], (a, at, b), {"transposed": True}),
    "lu_det": lambda a, at, b: bind(OPS["lu_det"], (a, at), {"signs": False}),
}


@pytest.mark.parametrize("name", FOLLOWING)
@pytest.mark.cpu
def test_no_position_in_a_file_reaches_other_memory(name: str, tmp_path: Path) -> None:
    """Whatever number stands where a position belongs, native code does what the reference does."""
    at = tmp_path / "p.qbp"
    a, positions, b = OPERANDS
    qb.jit(lambda a, b: FOLLOWING[name](a, wrap(positions), b)).lower(S((N, N)), S((N, 2))).save(at)
    for far in (N, -1, -N - 1, 10**6, -(10**6), 2**40, -(2**40), 2**63 - 1, -(2**63)):
        rewrite(at, lambda d: None, data=np.full(N, far, "<i8").tobytes())
        program = qb.load_program(at)
        arrays = dict(zip(program.input_names, (A(a), A(b)), strict=False))
        found, wanted = (program.compile(d)(arrays)[0].numpy() for d in ("cpu", "reference"))
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_a_document_that_nests_too_deep(path: Path) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = {"tuple": [deep]}
    rewrite(path, lambda d: node(d, "sin")["params"].update(x=deep))
    refused(path, "unknown form")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("program.json", "[" * 200_000)
        archive.writestr("constants.bin", b"")
    refused(path, "not valid JSON")


def test_constants_of_another_length(path: Path) -> None:
    rewrite(path, lambda d: None, data=b"12345678")
    refused(path, "ends at byte 24, and there are 8")
    rewrite(path, lambda d: None, data=bytes(1000))
    refused(path, "1000 bytes where at most 24")


def test_truth_values_are_zero_or_one(tmp_path: Path) -> None:
    at = tmp_path / "p.qbp"
    qb.jit(lambda x: qb.where(A([True, False]), x, 0.0)).lower(S((2,))).save(at)
    rewrite(at, lambda d: None, data=b"\x01\x02")
    refused(at, "no truth values")


def test_a_program_of_one_result_has_one(path: Path) -> None:
    rewrite(path, lambda d: d.update(ordered=False) or d["programs"][-1].update(outputs=[0, 0]))
    refused(path, "one result has 2")


def test_what_has_no_form_in_a_file() -> None:
    from quabla.ir.program import Node, Value
    from quabla.ir.program import Program as Graph

    v = Value()
    v.aval, v.index = aval_of((), float64), 0
    v.node = Node(OPS["sin"], (), {"secret": object()})
    v.node.outputs = (v,)
    with pytest.raises(qb.UnsupportedOperationError, match="sin holds a object"):
        Program(Graph((), (v.node,), (v,)), "f", ordered=True).save("/nonexistent/never")


def leaves_of(x: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of a JSON value."""
    inner = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ()
    return [path, *(p for k, v in inner for p in leaves_of(v, (*path, k)))]


def mutate(rng: random.Random, document: Any) -> None:
    """Change one place of a document."""
    path = rng.choice([p for p in leaves_of(document) if p])
    holder = document
    for k in path[:-1]:
        holder = holder[k]
    old = holder[path[-1]]
    if isinstance(old, bool):
        new: Any = not old
    elif isinstance(old, int):
        new = rng.choice([old + 1, old - 1, 0, -1, 3, 10**6])
    elif isinstance(old, str):
        new = rng.choice(
            ["float64[3]", "float32[3]", "float64[]", "int64[]", "bool[3]", "add", "sin", "reshape", ""]
        )
    elif isinstance(old, list):
        new = rng.sample(old, len(old)) if rng.random() < 0.5 else [*old, *old[:1]]
    else:
        new = {}
    holder[path[-1]] = new


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "while"])
@pytest.mark.cpu
def test_a_mutated_document_is_refused_or_a_program_that_runs(name: str, tmp_path: Path) -> None:
    at = tmp_path / "p.qbp"
    qb.jit(FUNCTIONS[name]).lower(S((3,))).save(at)
    whole = at.read_bytes()
    rng = random.Random(name)
    refusals = 0
    for _ in range(40):
        at.write_bytes(whole)
        rewrite(at, lambda document: mutate(rng, document))
        try:
            program = qb.load_program(at)
        except qb.FileFormatError:
            refusals += 1
            continue
        if any(a.size > 10**5 for n in program.nodes for a in (v.aval for v in n.outputs)):
            continue
        arrays = {
            n: wrap(np.full(a.shape, 1, a.dtype.numpy))
            for n, a in zip(program.input_names, program.in_avals, strict=True)
        }
        for device in ("reference", "cpu"):
            program.compile(device)(arrays)
    assert refusals > 5


HUGE = [MOST_ELEMENTS + 1, 2**57, 2**59, 2**60 - 1, 2**61, 2**63, 10**30]


@pytest.mark.parametrize("extent", HUGE)
@pytest.mark.parametrize(
    "fun",
    [
        lambda x: qb.sort(qb.broadcast_to(x, (7,)))[0],
        lambda x: qb.cumsum(qb.broadcast_to(x, (7,)))[0],
        lambda x: qb.sum(qb.matmul(qb.broadcast_to(x, (7, 2)), qb.ones((2, 7)))),
        lambda x: qb.fori_loop(
            0, 2, lambda i, c: qb.sin(c) + qb.broadcast_to(x, (7,)), qb.broadcast_to(x, (7,))
        )[0],
    ],
)
def test_arrays_that_no_memory_holds_are_refused_when_a_file_is_read(
    fun: Any, extent: int, tmp_path: Path
) -> None:
    """Not when it is compiled or run: where the bytes of several of them add up, they would leave 64 bits."""
    at = tmp_path / "p.qbp"
    qb.jit(fun).lower(qb.ShapeDtype(())).save(at)
    with zipfile.ZipFile(at) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    document = re.sub(rb"\b7\b", str(extent).encode(), parts["program.json"])
    assert document != parts["program.json"]
    with zipfile.ZipFile(at, "w") as archive:
        archive.writestr("program.json", document)
        archive.writestr("constants.bin", parts["constants.bin"])
    with pytest.raises(qb.FileFormatError, match=r"larger than any memory|is no type"):
        qb.load_program(at)
    with pytest.raises(qb.ShapeError, match="no memory can hold"):
        qb.zeros(extent)
    with pytest.raises(qb.ShapeError, match="no memory can hold"):
        qb.broadcast_to(qb.ones(1), (extent,))


@pytest.mark.parametrize("position", [1.0, [1.0], [[0.0, 2.0], [1.0, 1.0]]])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 2, 2)])
@pytest.mark.parametrize("many", [False, True])
def test_gradients_by_position_are_saved(
    tmp_path: Path, many: bool, shape: tuple[int, ...], position: Any
) -> None:
    at = A(position)
    f = qb.grad(lambda x: qb.sum(qb.sin(x[at])))
    x = A(np.random.default_rng(0).normal(size=(5, *shape) if many else shape))
    lowered = qb.jit(qb.vmap(f) if many else f).lower(x)
    lowered.save(tmp_path / "p.qbp")
    again = qb.load_program(tmp_path / "p.qbp")
    np.testing.assert_array_equal(again(x)[0].numpy(), lowered.program(x)[0].numpy())
