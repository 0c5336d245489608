"""`Tensor`, `TensorView` and `Array`: memory, ways out, and Python's own protocols."""

from __future__ import annotations

import copy
import gc
import math
import operator
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quabla as qb
from quabla.arrays.tensor import Tensor, wrap
from quabla.shapes import aval_of

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=4)
ARRAYS = hnp.arrays(st.sampled_from([np.float64, np.float32, np.bool_]), SHAPES)


def in_a_block(values: list[float]) -> Tensor:
    """A Tensor in the middle of foreign memory, as a compiled call returns it."""
    block = bytearray(8 + 8 * len(values))
    memory = np.frombuffer(block, np.float64)
    memory[1:] = values
    out = object.__new__(Tensor)
    out.address = memory.__array_interface__["data"][0] + 8
    out.aval, out.owner, out.offset = aval_of((len(values),), qb.float64), block, 8
    return out


@pytest.fixture(params=[qb.array, in_a_block], ids=["owned", "block"])
def make(request: pytest.FixtureRequest) -> Callable[[list[float]], Tensor]:
    return request.param  # type: ignore[no-any-return]


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [np.float64, np.float32, np.int32, np.bool_])
@pytest.mark.parametrize("shape", [(), (3,), (1024,), (40, 1, 30), (300, 200)])
def test_large_copies_begin_with_a_cache_line(given: Any, shape: tuple[int, ...]) -> None:
    a = np.asarray(np.random.default_rng(0).normal(size=shape) * 9.0).astype(given)
    for source in (a, a.T, np.broadcast_to(a, (2, *shape))[1]):
        for t in (
            qb.array(source),
            qb.array(source, qb.float32),
            pickle.loads(pickle.dumps(qb.array(source))),
        ):
            assert t.numpy().flags.c_contiguous and not t.numpy().flags.writeable
            assert t.numpy().nbytes < 1024 or t.address % 64 == 0
            np.testing.assert_array_equal(t.numpy(), source.astype(t.numpy().dtype))
            assert not np.shares_memory(t.numpy(), a)


def test_export_is_zero_copy_and_read_only(make: Any) -> None:
    t = make([1.0, 2.0, 3.0])
    for a in (
        t.numpy(),
        np.asarray(t),
        np.asarray(t, np.float64),
        np.array(t, copy=False),
        np.asarray(t, copy=False),
    ):
        assert a.__array_interface__["data"][0] == t.address
        assert not a.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            a.flags.writeable = True
        with pytest.raises(ValueError, match="read-only"):
            a[0] = 5.0
    b = np.array(t)
    b[0] = 5.0
    assert b.flags.writeable and t.tolist() == [1.0, 2.0, 3.0]


def test_an_export_outlives_its_tensor(make: Any) -> None:
    t = make([float(i) for i in range(1000)])
    a, view = t.numpy(), np.asarray(t)[10:20]
    alive = weakref.ref(t)
    del t
    gc.collect()
    noise = [qb.array(np.full(1000, float(i))) for i in range(50)]
    # From Python 3.12 on NumPy asks for the buffer, and a buffer holds the object that exports it.
    assert (alive() is None) == (sys.version_info < (3, 12))
    assert a.tolist() == list(range(1000))
    assert view.tolist() == list(range(10, 20))
    del noise


def test_memory_is_given_back() -> None:
    t = qb.array([1.0, 2.0])
    owner = t.owner
    before = sys.getrefcount(owner)
    exports = [t.numpy() for _ in range(10)]
    assert sys.getrefcount(owner) == before + 10
    del exports
    assert sys.getrefcount(owner) == before


def test_dlpack_round_trip_and_lifetime(make: Any) -> None:
    t = make([1.0, 2.0, 3.0])
    address = t.address
    a = np.from_dlpack(t)
    assert t.__dlpack_device__() == np.ones(1).__dlpack_device__()
    del t
    gc.collect()
    noise = [qb.array([9.0, 9.0, 9.0]) for _ in range(100)]
    assert a.tolist() == [1.0, 2.0, 3.0]
    if a.__array_interface__["data"][0] == address:
        assert not a.flags.writeable
    assert qb.asarray(a).tolist() == [1.0, 2.0, 3.0]
    del noise


def test_an_old_dlpack_consumer_gets_a_copy() -> None:
    # Before DLPack 1.0 a capsule could not say that its memory is read-only.
    class Old:
        def __init__(self, capsule: Any) -> None:
            self.capsule = capsule

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self.capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    t = qb.array([1.0, 2.0])
    a = np.from_dlpack(Old(t.__dlpack__()))
    assert a.tolist() == [1.0, 2.0]
    assert a.__array_interface__["data"][0] != t.address
    with pytest.raises(BufferError, match="read-only"):
        t.__dlpack__(copy=False)


@pytest.mark.parametrize("dtype", [qb.float64, qb.float32, qb.bool_])
def test_dlpack_dtypes(dtype: Any) -> None:
    t = qb.array([1.0, 0.0], dtype=dtype)
    assert np.from_dlpack(t).dtype == dtype.numpy


def test_torch_reads_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    t = qb.array([1.0, 2.0])
    assert torch.from_dlpack(t).tolist() == [1.0, 2.0]
    assert qb.asarray(torch.tensor([1.0, 2.0])).dtype is qb.float32


def test_threads_share_a_tensor() -> None:
    t = qb.array(np.arange(1000.0))
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(200):
            a = t.numpy()
            if (
                a.sum() != 499500.0
                or a.flags.writeable
                or pickle.loads(pickle.dumps(t)).tolist()[-1] != 999.0
            ):
                wrong.append(a)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_wrapped_array_becomes_contiguous() -> None:
    a = np.arange(6.0).reshape(2, 3).T
    t = wrap(a)
    assert t.numpy().flags.c_contiguous
    np.testing.assert_array_equal(t.numpy(), a)


# --- __array__ --------------------------------------------------------------------------------------------------------


@given(ARRAYS)
def test_array_protocol_for_both_versions_of_numpy(a: np.ndarray) -> None:
    t = qb.array(a)
    for out in (
        t.__array__(),
        t.__array__(a.dtype),
        t.__array__(None, copy=None),
        t.__array__(a.dtype, copy=False),
    ):
        assert out.tobytes() == a.tobytes() and out.dtype == a.dtype and not out.flags.writeable
    assert t.__array__(copy=True).flags.writeable
    assert t.__array__(np.int64, copy=True).dtype == np.int64


def test_array_protocol_conversions() -> None:
    t = qb.array([1.0, 2.0])
    assert np.asarray(t, np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="copy"):
        np.asarray(t, np.float32, copy=False)


@pytest.mark.parametrize("function", [np.sin, np.isfinite, np.abs, np.negative, np.floor])
def test_ufuncs_give_numpy_arrays(function: Any) -> None:
    a = np.array([[-1.5, 2.0], [0.0, 3.0]])
    for t in (qb.array(a), qb.array(a).slice(0, 0, 2)):
        out = function(t)
        assert type(out) is np.ndarray
        np.testing.assert_array_equal(out, function(a))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.sum(x), lambda x: np.mean(x, axis=0), lambda x: np.max(x, axis=1, keepdims=True), np.linalg.norm,
        lambda x: np.concatenate([x, x]), np.transpose, lambda x: np.reshape(x, (4,)), np.copy, np.sort,
        lambda x: np.where(x, x, 0.0), lambda x: np.allclose(x, x), lambda x: np.hypot(x, 2.0),
        lambda x: np.add.reduce(x), lambda x: np.einsum("ij->ji", x), np.std, np.shape, np.ndim, np.size,
        lambda x: np.equal(x, 2.0),
    ],
)  # fmt: skip
def test_functions_of_numpy_take_tensors_and_views(call: Any) -> None:
    a = np.array([[-1.5, 2.0], [0.25, 3.0]])
    expected = call(a)
    for t in (qb.array(a), qb.array(a).slice(0, 0, 2)):
        out = call(t)
        assert not isinstance(out, qb.Array)
        np.testing.assert_array_equal(out, expected)


def test_results_may_go_into_numpy_arrays_but_not_into_tensors() -> None:
    t, a = qb.array([1.0, 2.0]), np.ones(2)
    a += t
    assert type(a) is np.ndarray and a.tolist() == [2.0, 3.0]
    a[:] = t
    assert a.tolist() == [1.0, 2.0]
    with pytest.raises(TypeError, match="immutable"):
        np.add(a, a, out=t)
    with pytest.raises(TypeError):
        t[0] = 1.0  # type: ignore[index]


# --- as a Python number -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2.5, -3.75, 0.0])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_helpers_of_one_number(value: float, shape: tuple[int, ...]) -> None:
    for t in (qb.full(shape, value), qb.full((2, *shape), value).slice(0, 1, 1)):
        assert float(t) == value and type(float(t)) is float
        assert t.item() == value and type(t.item()) is float
        assert int(t) == int(value) and type(int(t)) is int
        assert bool(t) is bool(value)
        assert complex(t) == value
        assert round(t, 1) == round(value, 1)
        assert round(t) == round(value)
        assert f"{t:.2f}|{t:>8.1e}" == f"{value:.2f}|{value:>8.1e}"
        assert math.sin(t) == math.sin(value)


@pytest.mark.parametrize("convert", [float, int, complex, round, lambda t: f"{t:.2f}", operator.index, range])
def test_several_elements_are_no_number(convert: Any) -> None:
    with pytest.raises(TypeError, match=r"float64\[2\]"):
        convert(qb.ones(2))


def test_item_and_truth_of_several_elements() -> None:
    for call, remedy in ((qb.Tensor.item, "tolist"), (bool, "any")):
        for error in (TypeError, ValueError, qb.QuablaError):
            with pytest.raises(error, match=remedy):
                call(qb.ones(2))


def test_floats_are_no_indices() -> None:
    for t in (qb.array(1.0), qb.array(True)):
        with pytest.raises(TypeError, match=r"int\(x\)"):
            operator.index(t)
        with pytest.raises(TypeError):
            [1, 2][t]  # type: ignore[call-overload]


def test_length_and_iteration() -> None:
    t = qb.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert len(t) == 3
    assert [row.tolist() for row in t] == t.tolist()
    _, second, _ = t
    assert second.tolist() == [3.0, 4.0]
    assert [x.item() for x in t[0]] == [1.0, 2.0]
    assert [x.item() for x in t.slice(0, 1, 1)[0]] == [3.0, 4.0]
    for call in (len, iter, list):
        with pytest.raises(TypeError, match="rank 0"):
            call(qb.array(1.0))


def test_membership_looks_at_the_elements() -> None:
    assert 2.0 in qb.array([1.0, 2.0])
    assert 3.0 not in qb.array([1.0, 2.0])


@given(ARRAYS)
def test_lists(a: np.ndarray) -> None:
    t = qb.array(a)
    assert repr(t.tolist()) == repr(a.tolist())
    assert repr(t.to_flat_list()) == repr(a.ravel().tolist())


# --- identity, text, copies -------------------------------------------------------------------------------------------


def test_equality_is_identity() -> None:
    x, y = qb.array([1.0, 2.0]), qb.array([1.0, 2.0])
    assert x == x and (x == y) is False and x != y
    assert (x == np.ones(2)) is False and (x != np.ones(2)) is True
    assert (x == 1.0) is False and x != 1.0
    assert len({x, y, x}) == 2 and {x: 1}[x] == 1
    assert [y, x].index(x) == 1


@pytest.mark.parametrize(
    ("data", "dtype", "text"),
    [
        (1.0, None, "Tensor(1.)"),
        ([1, 2.5], None, "Tensor([1. , 2.5])"),
        ([1, 2], "float32", "Tensor([1., 2.], dtype=float32)"),
        ([True, False], None, "Tensor([ True, False], dtype=bool)"),
        ([[1, 2], [3, 4]], None, "Tensor([[1., 2.],\n        [3., 4.]])"),
    ],
)
def test_repr(data: Any, dtype: Any, text: str) -> None:
    assert repr(qb.array(data, dtype=dtype)) == text


def test_text_of_long_and_short_arrays() -> None:
    assert "..." in repr(qb.arange(5000)) and "shape=(5000,)" in repr(qb.arange(5000))
    assert str(qb.array(0.25)) == "0.25" and f"{qb.array([1.0, 2.0])}" == "[1. 2.]"
    assert repr(qb.arange(4).slice(0, 1, 2)) == "TensorView(shape=[2], strides=[1])"


@given(ARRAYS, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_pickle(a: np.ndarray, protocol: int) -> None:
    t = pickle.loads(pickle.dumps(qb.array(a), protocol))
    assert type(t) is Tensor and t.numpy().tobytes() == a.tobytes()
    assert (t.shape, t.dtype) == (a.shape, qb.array(a).dtype)


def test_pickle_saves_what_one_sees(make: Any) -> None:
    t = make([float(i) for i in range(1000)])
    view = t.slice(0, 0, 10, 3)
    assert pickle.loads(pickle.dumps(t)).tolist() == t.tolist()
    assert pickle.loads(pickle.dumps(view)).tolist() == view.tolist()


def test_pickle_does_not_alias_buffers_out_of_band() -> None:
    t = qb.array([1.0, 2.0])
    buffers: list[Any] = []
    data = pickle.dumps(t, 5, buffer_callback=buffers.append)
    memory = [bytearray(b.raw()) for b in buffers]
    loaded = pickle.loads(data, buffers=memory)
    for m in memory:
        m[:] = bytes(len(m))
    assert loaded.tolist() == [1.0, 2.0]


def test_copies_are_the_same_immutable_object() -> None:
    t = qb.array([1.0])
    assert copy.copy(t) is t and copy.deepcopy([t])[0] is t
    view = t.slice(0, 0, 1)
    assert copy.copy(view) is view and copy.deepcopy(view) is view


def test_classes_are_not_called_without_data_and_take_no_attributes() -> None:
    with pytest.raises(TypeError, match="use "):
        qb.TensorView()
    for arguments in ((), ([1.0],)):
        with pytest.raises(TypeError, match=r"Tensor\(shape, data\).*quabla\.array"):
            qb.Tensor(*arguments)
    with pytest.raises(AttributeError):
        qb.array(1.0).note = 1  # type: ignore[attr-defined]


def test_array_is_the_class_of_all_arrays() -> None:
    kinds = []

    def f(x: Any) -> Any:
        kinds.append(isinstance(x, qb.Array))
        return x

    qb.grad(f)(1.0)
    assert kinds == [True]
    assert isinstance(qb.array(1.0), qb.Array) and isinstance(qb.ones(2).slice(0, 0, 1), qb.Array)
    assert not isinstance(np.ones(1), qb.Array) and not isinstance(1.0, qb.Array)


# --- views ------------------------------------------------------------------------------------------------------------


@given(ARRAYS.filter(lambda a: a.ndim > 0), st.data())
def test_views_of_views_follow_numpy(a: np.ndarray, data: Any) -> None:
    view: Any = qb.array(a)
    expected = a
    for _ in range(3):
        axis = data.draw(st.integers(-a.ndim, a.ndim - 1))
        n = expected.shape[axis]
        start, step = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, 3))
        length = data.draw(st.integers(1, (n - start + step - 1) // step))
        view = view.slice(axis, start, length, step)
        index = [slice(None)] * a.ndim
        index[axis] = slice(start, start + (length - 1) * step + 1, step)
        expected = expected[tuple(index)]
    assert type(view) is qb.TensorView
    assert (view.shape, view.ndim, view.size) == (expected.shape, expected.ndim, expected.size)
    np.testing.assert_array_equal(view.numpy(), expected)
    assert view.numpy().__array_interface__["data"][0] == view.base.address + view.offset * a.itemsize
    assert not view.numpy().flags.writeable
    assert (
        view.tolist() == view.to_tensor().tolist() == expected.tolist()
        or np.isnan(expected.astype(float)).any()
    )
    for n, s, t in zip(expected.shape, view.strides, expected.strides, strict=True):
        assert n == 1 or s * a.itemsize == t


def test_a_view_takes_part_everywhere() -> None:
    a = np.arange(12.0).reshape(3, 4)
    view, part = qb.array(a).slice(1, 0, 2, 2), a[:, ::2]
    np.testing.assert_array_equal((view * 2.0 + view).numpy(), part * 3)
    np.testing.assert_array_equal((1.0 - view).numpy(), 1 - part)
    np.testing.assert_array_equal(qb.sin(view).numpy(), np.sin(part))
    np.testing.assert_array_equal(view.sum(axis=0).numpy(), part.sum(axis=0))
    np.testing.assert_array_equal(view[1].numpy(), part[1])
    np.testing.assert_array_equal((view.T @ view).numpy(), part.T @ part)
    assert type(np.ones((3, 2)) * view) is Tensor
    assert qb.asarray(view).tolist() == part.tolist()
    assert len(view) == 3 and view.dtype is qb.float64


def test_a_view_keeps_its_memory() -> None:
    view = qb.arange(1000).slice(0, 5, 3, 100)
    a = view.numpy()
    gc.collect()
    assert view.tolist() == [5.0, 105.0, 205.0]
    del view
    gc.collect()
    noise = [qb.zeros(1000) for _ in range(50)]
    assert a.tolist() == [5.0, 105.0, 205.0]
    del noise


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((3, 0, 1), ValueError, "axis 3"),
        ((0, 0, 0), ValueError, "length 0"),
        ((0, 0, 1, 0), ValueError, "step 0"),
        ((0, 0, 1, -1), ValueError, "step -1"),
        ((0, -1, 1), ValueError, "start -1"),
        ((0, 1, 2), ValueError, r"start 1, length 2, step 1 reach outside axis 0 of float64\[2,3\]"),
        ((0, 0, 2, 2), ValueError, "outside"),
        ((0, 0.0, 1), TypeError, "integers"),
    ],
)
def test_bad_slices(arguments: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        qb.ones((2, 3)).slice(*arguments)
    with pytest.raises(error, match=text):
        qb.grad(lambda x: x.slice(*arguments).sum())(qb.ones((2, 3)))
