"""What `array`, `asarray` and operands make of Python and NumPy data, and what they refuse."""

from __future__ import annotations

import array as stdlib_array
import ctypes
import enum
import re
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import quabla as qb
from quabla.arrays.convert import as_operand

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4)


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        (np.float64, qb.float64),
        (np.float32, qb.float32),
        (np.bool_, qb.bool_),
        *[
            (t, qb.float64)
            for t in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
        ],
    ],
)
def test_dtype_table(given_dtype: Any, expected: Any) -> None:
    a = np.array([[0, 1], [1, 0]], given_dtype)
    for data in (a, a.T, a[::-1], a[:, 1], a[0, 1], a[0, 1][()]):
        t = qb.array(data)
        assert t.dtype is expected
        assert t.shape == np.shape(data)
        np.testing.assert_array_equal(t.numpy(), data)


@pytest.mark.parametrize(
    "bad", [np.float16, np.longdouble, np.complex64, np.complex128, object, "U3", "S3", "M8[s]"]
)
def test_other_dtypes_are_refused_by_name(bad: Any) -> None:
    a = np.zeros(2, bad)
    if a.dtype == np.float64:
        pytest.skip("long double is double on this machine")
    if bad is object:
        a[:] = None
    with pytest.raises(TypeError, match=re.escape(f"dtype {a.dtype} is not supported")):
        qb.asarray(a)
    with pytest.raises(qb.QuablaError):
        qb.array([a[0], a[1]])


def test_foreign_byte_order_is_refused_with_the_remedy() -> None:
    a = np.arange(3, dtype=">f8" if np.little_endian else "<f8")
    with pytest.raises(TypeError, match=r"byte order.*\.astype\(.*newbyteorder\('='\)\)"):
        qb.asarray(a)
    np.testing.assert_array_equal(qb.asarray(a.astype(a.dtype.newbyteorder("="))).numpy(), [0, 1, 2])


@given(hnp.arrays(np.float64, SHAPES, elements=st.floats(allow_subnormal=True, allow_nan=True)))
def test_every_bit_survives_in_and_out(a: np.ndarray) -> None:
    assert np.asarray(qb.array(a)).tobytes() == a.tobytes()
    assert qb.array(a.tolist()).numpy().tobytes() == a.tobytes()


@given(hnp.arrays(np.uint32, SHAPES))
def test_every_float32_pattern_survives(bits: np.ndarray) -> None:
    a = bits.view(np.float32)
    assert np.asarray(qb.array(a)).tobytes() == a.tobytes()


def test_nan_payloads_and_subnormals() -> None:
    bits = np.array(
        [0x7FF8DEADBEEF0001, 0xFFF0000000000001, 1, 0x8000000000000001, 0x8000000000000000], np.uint64
    )
    assert qb.array(bits.view(np.float64)).numpy().view(np.uint64).tolist() == bits.tolist()


@given(st.data())
def test_any_layout_is_imported_as_numpy_reads_it(data: Any) -> None:
    a = data.draw(hnp.arrays(st.sampled_from([np.float64, np.float32, np.bool_, np.int16]), SHAPES))
    index = data.draw(hnp.basic_indices(a.shape, allow_newaxis=True))
    view = a[index]
    if np.size(view) == 0:
        with pytest.raises(ValueError, match="empty"):
            qb.array(view)
        return
    t = qb.array(view)
    assert t.shape == np.shape(view)
    np.testing.assert_array_equal(t.numpy(), view)
    assert t.numpy().flags.c_contiguous


def test_import_always_copies() -> None:
    for dtype in (np.float64, np.float32, np.bool_):
        a = np.ones(3, dtype)
        made = [qb.array(a), qb.asarray(a), as_operand(a, "test"), qb.array(memoryview(a))]
        a[:] = 0
        for t in made:
            assert t.numpy().all()


def test_read_only_arrays_are_imported_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    a = np.ones(3)
    a.flags.writeable = False
    assert qb.asarray(a).tolist() == [1.0, 1.0, 1.0]
    assert not recwarn.list


@pytest.mark.parametrize(
    ("data", "dtype", "values"),
    [
        (True, qb.bool_, True),
        (3, qb.float64, 3.0),
        (2**64, qb.float64, 2.0**64),
        (-0.0, qb.float64, -0.0),
        ([True, False], qb.bool_, [True, False]),
        ([True, 1], qb.float64, [1.0, 1.0]),
        ([True, 0.5], qb.float64, [1.0, 0.5]),
        ([[1], [2]], qb.float64, [[1.0], [2.0]]),
        (((1, 2), [3, 4.5]), qb.float64, [[1.0, 2.0], [3.0, 4.5]]),
        ([2**64, 1], qb.float64, [2.0**64, 1.0]),
        ([2**63, -1], qb.float64, [2.0**63, -1.0]),
        (range(3), qb.float64, [0.0, 1.0, 2.0]),
        ([np.float32(0.5), np.float32(1.5)], qb.float64, [0.5, 1.5]),
        ([np.bool_(True)], qb.bool_, [True]),
        ([np.ones(2), np.zeros(2)], qb.float64, [[1.0, 1.0], [0.0, 0.0]]),
        (np.float32(0.1), qb.float32, float(np.float32(0.1))),
        (np.int8(3), qb.float64, 3.0),
        (stdlib_array.array("d", [1.0, 2.0]), qb.float64, [1.0, 2.0]),
        (stdlib_array.array("f", [1.0, 2.0]), qb.float32, [1.0, 2.0]),
        (stdlib_array.array("i", [1, 2]), qb.float64, [1.0, 2.0]),
        ((ctypes.c_double * 2)(1.0, 2.0), qb.float64, [1.0, 2.0]),
        (bytearray(b"\x01\x02"), qb.float64, [1.0, 2.0]),
        (b"\x01\x02", qb.float64, [1.0, 2.0]),
        (np.matrix([[1.0, 2.0]]), qb.float64, [[1.0, 2.0]]),
    ],
)
def test_python_data(data: Any, dtype: Any, values: Any) -> None:
    for make in (qb.array, qb.asarray):
        t = make(data)
        assert t.dtype is dtype
        assert not t.aval.weak
        assert repr(t.tolist()) == repr(values)


def test_lists_of_tensors() -> None:
    assert qb.array([qb.array(1.0), qb.array(2.0)]).tolist() == [1.0, 2.0]
    assert qb.array([[qb.array(1.0), 2], [3, qb.array(4.0)]]).tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("dtype", [qb.float64, qb.float32, qb.bool_, "float32", np.float32, bool, float])
@pytest.mark.parametrize(
    "data", [1.5, 0, True, [0.1, 0.0, np.nan], np.array([3, 0]), np.array([True, False])]
)
def test_dtype_argument_converts_as_numpy_does(data: Any, dtype: Any) -> None:
    t = qb.array(data, dtype=dtype)
    expected = np.asarray(data).astype(t.dtype.numpy)
    np.testing.assert_array_equal(t.numpy(), expected)
    assert qb.asarray(data, dtype).dtype is t.dtype


class WithArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array([1, 2], np.int32)


class WithInterface:
    def __init__(self) -> None:
        self.kept = np.array([1.0, 2.0])
        self.__array_interface__ = self.kept.__array_interface__


class WithDLPack:
    def __dlpack__(self, **kwargs: Any) -> Any:
        return np.array([1.0, 2.0]).__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class OnAnotherDevice:
    def __dlpack__(self, **kwargs: Any) -> Any:
        raise BufferError("this memory is not on the host")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


@pytest.mark.parametrize("kind", [WithArray, WithInterface, WithDLPack])
def test_objects_of_other_libraries(kind: Any) -> None:
    assert qb.asarray(kind()).tolist() == [1.0, 2.0]


def test_objects_that_refuse_their_conversion_keep_their_reason() -> None:
    class Refusing:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            raise RuntimeError("detach me first")

    with pytest.raises(TypeError, match=r"asarray: this Refusing .*detach me first") as caught:
        qb.asarray(Refusing())
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_dlpack_from_a_device_is_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"DLPack.*host"):
        qb.asarray(OnAnotherDevice())


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ("abc", TypeError, "str"),
        (None, TypeError, "NoneType"),
        (1j, TypeError, "complex"),
        (Fraction(1, 2), TypeError, "Fraction"),
        ({1.0}, TypeError, r"list\(\.\.\.\)"),
        ((x for x in [1.0]), TypeError, r"list\(\.\.\.\)"),
        (object(), TypeError, "object"),
        ([1.0, "2"], TypeError, r"\[1\] is '2', a str"),
        ([[1.0], [None]], TypeError, r"\[1\]\[0\] is None"),
        ([1j], TypeError, "complex"),
        ([{}], TypeError, "dict"),
        (10**400, TypeError, "beyond the range"),
        ([1, 10**400], TypeError, "beyond the range"),
        ([], ValueError, "the argument is an empty list"),
        ((), ValueError, "empty tuple"),
        ([[], []], ValueError, r"\[0\] is an empty list"),
        (np.zeros((2, 0)), ValueError, r"\(2, 0\)"),
        (b"", ValueError, "empty"),
        ([[1, 2], [3]], ValueError, r"ragged at level 1.*\[1\] is a list of 1 .*a list of 2"),
        ([[[1], [2]], [[3], [4, 5]]], ValueError, r"ragged at level 2.*\[1\]\[1\] is a list of 2"),
        ([1, [2]], ValueError, r"ragged at level 1.*\[1\]"),
        ([[1], 2], ValueError, r"ragged at level 1.*\[1\] is a number"),
        ([[1], []], ValueError, r"ragged at level 1.*\[1\] is a list of 0"),
        (np.ma.array([1.0, 2.0], mask=[True, False]), TypeError, "masked.*filled"),
        (np.zeros(2, [("a", "f8")]), TypeError, "not supported"),
        (memoryview(b"ab").cast("c"), TypeError, "not supported"),
    ],
)
def test_refusals(data: Any, error: type[Exception], text: str) -> None:
    for make in (qb.array, qb.asarray):
        with pytest.raises(error, match=text) as caught:
            make(data)
        assert isinstance(caught.value, qb.QuablaError)
        assert make.__name__ in str(caught.value)


def test_a_list_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(qb.QuablaError):
        qb.array(loop)


@given(
    st.recursive(
        st.floats(allow_nan=False) | st.booleans() | st.integers(-5, 5), lambda e: st.lists(e, max_size=3)
    )
)
def test_nested_lists_agree_with_numpy_or_are_refused(data: Any) -> None:
    try:
        expected = np.array(data)
    except ValueError:
        expected = None
    if expected is None or expected.size == 0:
        with pytest.raises(qb.ShapeError):
            qb.array(data)
        return
    t = qb.array(data)
    assert t.dtype is (qb.bool_ if expected.dtype == bool else qb.float64)
    np.testing.assert_array_equal(t.numpy(), expected)


def test_tensors_share_memory_and_asarray_keeps_them() -> None:
    x = qb.array([1.0, 2.0])
    assert qb.asarray(x) is x
    assert qb.asarray(x, qb.float64) is x
    y = qb.array(x)
    assert y is not x and y.address == x.address
    assert qb.asarray(x, qb.float32).tolist() == [1.0, 2.0]
    assert qb.asarray(x, qb.float32).dtype is qb.float32
    weak = as_operand(2.0, "test")
    assert weak.aval.weak and not qb.array(weak).aval.weak


def test_operands() -> None:
    assert as_operand(2, "op").aval == as_operand(2.0, "op").aval
    assert as_operand(2, "op").aval.weak and as_operand(2, "op").dtype is qb.float64
    assert as_operand(True, "op").dtype is qb.bool_
    assert as_operand(np.int64(3), "op").aval.weak
    assert as_operand(np.float64(3), "op").aval.weak
    assert not as_operand(np.array(3.0), "op").aval.weak
    assert not as_operand(np.float32(3), "op").aval.weak
    assert as_operand(np.float32(3), "op").dtype is qb.float32
    assert as_operand(enum.IntEnum("E", "A").A, "op").item() == 1.0
    assert as_operand(qb.arange(4).slice(0, 1, 2), "op").tolist() == [1.0, 2.0]
    for bad in ([1.0], "a", None, object(), WithArray(), 1j):
        with pytest.raises(TypeError, match=r"^op: ") as caught:
            as_operand(bad, "op")
        if isinstance(bad, list | WithArray):
            assert "quabla.asarray" in str(caught.value)


def test_traced_values() -> None:
    seen = []

    def f(x: Any) -> Any:
        assert qb.asarray(x) is x
        assert qb.array(x) is x
        seen.append(qb.asarray(x, qb.float32).dtype)
        for data in ([x, x], [[1.0, x]], [x]):
            with pytest.raises(qb.TracerError, match=r"quabla\.stack"):
                qb.asarray(data)
        return x

    qb.grad(f)(1.0)
    assert seen == [qb.float32]


@pytest.mark.parametrize("number", [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)])
def test_integers_become_int64_exactly(number: int) -> None:
    kinds = [np.int64] if number < 0 else [np.int64, np.uint64]
    for data in (number, [number], [[number], [number]], (number,), *(np.array([number], k) for k in kinds)):
        for make in (qb.array, qb.asarray):
            made = make(data, dtype="int64")
            assert made.dtype is qb.int64
            assert set(made.to_flat_list()) == {number}
    assert qb.full(2, number, dtype=qb.int64).tolist() == [number, number]


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 2**70])
def test_integers_beyond_int64_are_refused(number: int) -> None:
    for data in (
        number,
        [number],
        [number, -1],
        *([np.array([number], np.uint64)] if number < 2**64 and number > 0 else []),
    ):
        with pytest.raises(qb.DtypeError, match="int64"):
            qb.array(data, dtype=int)


# What NumPy would take out of a list in silence; the same data by itself is refused, too.
HIDDEN: dict[str, Any] = {
    "masked": lambda: np.ma.array([1.0, 2.0], mask=[False, True]),
    "masked constant": lambda: np.ma.masked,
    "other byte order": lambda: np.array([1.0, 2.0], np.dtype(np.float64).newbyteorder("S")),
    "integers of other byte order": lambda: np.array([1, 2], np.dtype(np.int32).newbyteorder("S")),
    "float16": lambda: np.array([1.0, 2.0], np.float16),
    "complex": lambda: np.array([1.0, 2.0j]),
    "text": lambda: np.array(["1", "2"]),
}
AROUND: dict[str, Any] = {
    "list": lambda a: [a],
    "tuple": lambda a: (a, a),
    "nested": lambda a: [[a], [a]],
    "beside others": lambda a: [np.zeros(a.shape), a],
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize("make", [qb.array, qb.asarray])
def test_lists_hide_nothing_that_is_refused_by_itself(make: Any, kind: str, around: str) -> None:
    data = HIDDEN[kind]()
    with pytest.raises(qb.DtypeError) as alone:
        qb.array(data)
    with pytest.raises(qb.DtypeError) as within, warnings.catch_warnings():
        warnings.simplefilter("error")
        make(AROUND[around](data))
    assert str(within.value).partition(": ")[2] == str(alone.value).partition(": ")[2]


def test_arrays_in_lists_that_are_fine_stay_so() -> None:
    a = np.array([1.0, 2.0])
    assert qb.array([a, a[::-1], (3, 4.0)]).tolist() == [[1.0, 2.0], [2.0, 1.0], [3.0, 4.0]]
    assert qb.array([[a], [np.array([True, False])]]).tolist() == [[[1.0, 2.0]], [[1.0, 0.0]]]
    assert qb.array([range(2), [5, 6]]).tolist() == [[0.0, 1.0], [5.0, 6.0]]
