"""Arrays on their way in and out, in situations that users of libraries like this one have met.

Where another file tests a situation it is not repeated here:

| situation | test |
|---|---|
| foreign byte order of one array; read-only arrays; any layout; every bit | `test_convert` |
| NumPy operands on either side; NumPy scalars | `test_methods` |
| export without a copy, its lifetime; PyTorch reads a tensor; pickles of views | `test_arrays` |
| NumPy operands and functions on traced values | `test_tracing_errors`, `test_messages` |
| saved programs | `test_schema` |
"""

from __future__ import annotations

import gc
import io
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quabla as qb

F = Callable[..., Any]
A = qb.array


# --- what comes in ----------------------------------------------------------------------------------------------------

FOREIGN = "<" if np.dtype(np.float64).newbyteorder("=").str.startswith(">") else ">"


@pytest.mark.parametrize("kind", ["f8", "f4", "i8", "i4", "u2"])
@pytest.mark.parametrize(
    "take", [qb.array, qb.asarray, qb.sin, lambda x: qb.ones(3) * x, qb.jit(lambda x: x), qb.vmap(qb.sin)]
)
def test_bytes_in_foreign_order_are_never_misread(kind: str, take: F) -> None:
    foreign = np.arange(1, 4, dtype=FOREIGN + kind)
    with pytest.raises(TypeError, match=r"byte order.*newbyteorder"):
        take(foreign)
    native = foreign.astype(foreign.dtype.newbyteorder("="))
    if kind != "f4":
        np.testing.assert_allclose(np.asarray(qb.asarray(native)), [1.0, 2.0, 3.0])


def test_bools_and_bytes_of_any_order() -> None:
    assert qb.asarray(np.array([True, False], dtype=FOREIGN + "?")).dtype is qb.bool_


@pytest.mark.parametrize(
    "take", [qb.array, qb.asarray, lambda a: qb.jit(lambda x: x + 0.0)(a), lambda a: qb.grad(qb.sum)(a)]
)
def test_frozen_arrays_are_taken_in_silence_and_left_alone(take: F) -> None:
    for a in (
        np.arange(6.0).reshape(2, 3),
        np.arange(6.0)[::2],
        np.arange(6.0).reshape(2, 3).T,
        np.float64(2.0) * np.ones(()),
    ):
        before = a.copy()
        a.setflags(write=False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = take(a)
        assert made.shape == a.shape
        assert not a.flags.writeable
        np.testing.assert_array_equal(a, before)


def test_a_source_that_changes_later_changes_nothing() -> None:
    a = np.arange(4.0)
    x = qb.asarray(a)
    f = qb.jit(lambda y: y + x)
    assert f(qb.zeros(4)).tolist() == [0.0, 1.0, 2.0, 3.0]
    a[:] = -1.0
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert f(qb.zeros(4)).tolist() == [0.0, 1.0, 2.0, 3.0]


# --- DLPack -----------------------------------------------------------------------------------------------------------


class Producer:
    """Hands out one capsule, however often it is asked."""

    def __init__(self, of: Any) -> None:
        self.capsule = of.__dlpack__()

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize("first", ["numpy", "quabla"])
@pytest.mark.parametrize("second", ["numpy", "quabla"])
def test_a_capsule_is_consumed_once(first: str, second: str) -> None:
    consume: dict[str, F] = {"numpy": np.from_dlpack, "quabla": qb.asarray}
    for source in (A([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])):
        producer = Producer(source)
        taken = consume[first](producer)
        with pytest.raises((ValueError, TypeError, RuntimeError, BufferError)):
            consume[second](producer)
        del producer
        gc.collect()
        assert np.asarray(taken).tolist() == [1.0, 2.0, 3.0]


def test_a_capsule_that_nobody_consumes_is_freed() -> None:
    x = A(np.arange(1000.0))
    for _ in range(100):
        x.__dlpack__()
    gc.collect()
    assert x.tolist()[:3] == [0.0, 1.0, 2.0]


def test_memory_handed_out_stays_while_others_are_made_and_freed() -> None:
    kept = [np.from_dlpack(qb.full((1000,), float(i))) for i in range(20)]
    gc.collect()
    for _ in range(50):
        qb.jit(lambda x: x * 0.0 - 1.0)(qb.ones(1000))
    for i, a in enumerate(kept):
        assert (a == float(i)).all()
        assert not a.flags.writeable


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 2, 2), (2, 1, 3), (3, 1), (1, 3), (2, 1, 1)])
def test_axes_of_length_one_do_not_make_an_array_look_scattered(shape: tuple[int, ...]) -> None:
    x = A(np.arange(float(np.prod(shape))).reshape(shape))
    swapped = qb.jit(lambda x: qb.swapaxes(x, 0, -1) * 1.0)
    for y in (
        x,
        qb.swapaxes(x, 0, -1),
        qb.expand_dims(x, 0),
        qb.transpose(x),
        swapped(x),
        A(np.asarray(x).T),
    ):
        for out in (np.asarray(y), np.from_dlpack(y)):
            assert out.flags.c_contiguous
            long = [(s, n) for s, n in zip(out.strides, out.shape, strict=True) if n > 1]
            below = [
                int(np.prod([n for _, n in long[i + 1 :]], dtype=int)) * out.itemsize
                for i in range(len(long))
            ]
            assert [s for s, _ in long] == below


def test_pytorch_sees_contiguous_memory_and_the_same_numbers() -> None:
    torch = pytest.importorskip("torch")
    for y in (A([[1.0, 2.0]]), qb.swapaxes(qb.ones((2, 1, 3)), 0, 1), qb.ones((1, 2, 2), dtype=qb.float32)):
        t = torch.from_dlpack(y)
        assert t.is_contiguous()
        assert t.tolist() == y.tolist()
        assert qb.asarray(t).tolist() == y.tolist()
    back = qb.asarray(torch.arange(6.0).reshape(2, 3).T)
    assert back.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


# --- files ------------------------------------------------------------------------------------------------------------

VIEWS: list[tuple[str, F]] = [
    ("broadcast", lambda: qb.broadcast_to(A([1.0, 2.0]), (4, 2))),
    ("transpose", lambda: qb.transpose(A(np.arange(6.0).reshape(2, 3)))),
    ("every second column", lambda: A(np.arange(12.0).reshape(3, 4))[:, ::2]),
    ("reversed", lambda: A(np.arange(5.0))[::-1]),
    ("slice method", lambda: A(np.arange(12.0).reshape(3, 4)).slice(1, 1, 2, 2)),
    ("middle", lambda: A(np.arange(12.0).reshape(3, 4))[1:, 1:3]),
]


@pytest.mark.parametrize("make", [v[1] for v in VIEWS], ids=[v[0] for v in VIEWS])
def test_what_one_sees_is_what_one_saves(make: F, tmp_path: Path) -> None:
    view = make()
    seen = np.array(view.tolist())
    file = io.BytesIO()
    np.save(file, view)
    file.seek(0)
    np.testing.assert_array_equal(np.load(file), seen)
    np.savez(tmp_path / "all.npz", view=view)
    with np.load(tmp_path / "all.npz") as loaded:
        np.testing.assert_array_equal(loaded["view"], seen)
    # A program that holds it as a constant, and a view of it.
    x = np.ones(seen.shape)
    qb.jit(lambda x: x * view + qb.flip(qb.asarray(view), 0)).lower(A(x)).save(tmp_path / "p.qbp")
    program = qb.load_program(tmp_path / "p.qbp")
    np.testing.assert_array_equal(np.asarray(program.compile()({"x": A(x)})[0]), seen + seen[::-1])


# --- containers -------------------------------------------------------------------------------------------------------


def test_dicts_come_back_in_the_order_of_the_user() -> None:
    f = lambda d: {"z": d["b"], "a": d["a"] * 2.0}
    for given in ({"b": A(1.0), "a": A(2.0)}, {"a": A(2.0), "b": A(1.0)}):
        for g in (f, qb.jit(f), lambda d: qb.jit(lambda d: qb.jit(f)(d))(d), qb.checkpoint(f)):
            out = g(given)
            assert list(out) == ["z", "a"]
            assert out["z"].item() == 1.0 and out["a"].item() == 4.0
        gradient = qb.grad(lambda d: d["a"] * d["a"] * d["b"])(given)
        assert list(gradient) == list(given)
        assert (gradient["a"].item(), gradient["b"].item()) == (4.0, 4.0)
        blocks = qb.jacobian(f)(given)
        assert list(blocks) == ["z", "a"] and set(blocks["z"]) == {"a", "b"}
        assert blocks["a"]["a"].item() == 2.0 and blocks["a"]["b"].item() == 0.0


@pytest.mark.parametrize(
    "make", [OrderedDict, lambda **k: defaultdict(list, **k)], ids=["OrderedDict", "defaultdict"]
)
def test_relatives_of_dict_keep_their_class_and_order(make: F) -> None:
    given = make(b=A([1.0, 2.0]), a=A([3.0, 4.0]))
    for out in (
        qb.jit(lambda d: d)(given),
        qb.grad(lambda d: qb.sum(d["a"] * d["b"]))(given),
        qb.vmap(lambda d: d)(given),
        qb.jit(lambda d: qb.fori_loop(0, 2, lambda i, c: c, d))(given),
    ):
        assert type(out) is type(given)
        assert list(out) == ["b", "a"]
    if isinstance(given, defaultdict):
        assert qb.jit(lambda d: d)(given)["other"] == []


def test_keys_that_do_not_sort_are_refused_and_others_work() -> None:
    with pytest.raises(TypeError, match=r"must sort.*1, 'a'.*int, str"):
        qb.jit(lambda d: d)({1: A(1.0), "a": A(2.0)})
    assert qb.grad(lambda d: d[2] * d[1] * d[1])({2: 5.0, 1: 3.0})[1].item() == 30.0
    assert qb.jit(lambda d: d[(0, 1)])({(1, 0): A(1.0), (0, 1): A(2.0)}).item() == 2.0


def test_auxiliary_results_of_every_kind() -> None:
    for aux in ("text", None, (), [], {}, {"a": "b"}, 3, True, 2.5, object(), np.arange(3)):
        gradient, got = qb.grad(lambda x, aux=aux: (x * x, aux), has_aux=True)(3.0)
        assert gradient.item() == 6.0
        assert (
            np.array_equal(got, aux) if isinstance(aux, np.ndarray) else type(got) is type(aux) and got == aux
        )
    (value, got), gradient = qb.value_and_grad(
        lambda x: (x * x, {"twice": 2.0 * x, "name": "n"}), has_aux=True
    )(3.0)
    assert got["twice"].item() == 6.0 and type(got["twice"]) is qb.Tensor and got["name"] == "n"
    assert float(value) == 9.0
