"""Fused kernels against the definition of every op, for all dtypes, awkward extents, strides and vector widths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import quabla as qb
from quabla.arrays.tracer import bind, trace
from quabla.backends.reference import build as reference
from quabla.ir.op import OPS
from quabla.ops import structure
from quabla.ops.reduce import max as reduce_max
from quabla.ops.reduce import min as reduce_min
from quabla.shapes import ShapeDtype
from quabla.testing import table
from quabla_cpu.backend import CpuBackend, build

WIDTHS = (16, 32, 64)


def run(function, *arrays, width=None):
    """The results on the CPU and by definition."""
    tensors = [x if isinstance(x, qb.Tensor) else qb.array(x) for x in arrays]
    program, _ = trace(function, [t.aval for t in tensors])
    lowered = CpuBackend().lower(program, "cpu")
    got = build(lowered, width)(*tensors)
    want = reference(program)(*tensors)
    return [x.numpy() for x in got], [x.numpy() for x in want]


def check(function, *arrays, width=None, ulps=64):
    got, want = run(function, *arrays, width=width)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        if w.dtype.kind == "f":
            scale = np.abs(w[np.isfinite(w)]).max(initial=0.0)
            eps = np.finfo(w.dtype).eps
            np.testing.assert_allclose(g, w, rtol=ulps * eps, atol=ulps * eps * scale)
        else:
            np.testing.assert_array_equal(g, w)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize("case", list(table.cases()), ids=str)
def test_every_op_on_its_samples(case):
    operands = table.tensors(case.operands())

    def function(*xs):
        out = bind(case.op, xs, case.sample.params)
        return out if case.op.multiple else (out,)

    check(function, *operands, ulps=16)


ELEMENTWISE = [name for name, op in OPS.items() if op.family in ("elementwise", "compare")]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("extent", [1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 100])
def test_every_extent_with_every_width(rng, extent, dtype, width):
    x, y = (rng.normal(size=(extent,)).astype(dtype) for _ in range(2))
    check(
        lambda x, y: (qb.tanh(x) * y - x / (1.5 + qb.abs(y)), x < y, qb.sum(x * y), reduce_max(x), reduce_min(y)),
        x, y, width=width, ulps=200,
    )  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 5),
        (3, 1),
        (2, 3),
        (9, 4),
        (7, 13),
        (64, 16),
        (5, 100),
        (100, 3),
        (2, 3, 17),
        (3, 5, 8, 9),
        (2, 1, 3, 1, 7),
    ],
)
def test_reductions_along_any_axes_share_a_kernel(rng, shape, width):
    x, y = rng.normal(size=shape), rng.normal(size=shape)
    axes = [tuple(a for a in range(len(shape)) if bits >> a & 1) for bits in range(1, 2 ** len(shape))]
    if len(axes) > 8:
        axes = axes[:: len(axes) // 8]

    def f(x, y):
        z = qb.sin(x) * y
        sums = [bind(OPS["reduce_sum"], (z,), {"axes": a}) for a in axes]
        tops = [bind(OPS["reduce_max"], (z,), {"axes": a}) for a in axes]
        return (*sums, *tops, z)

    check(f, x, y, width=width)


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_max", "reduce_min"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_reductions_of_special_values(name, dtype):
    if dtype is np.int64:
        x = np.array([[5, -3, 2**40], [-(2**62), 0, 7]])
        x = qb.arrays.tensor.wrap(x)
    else:
        x = np.array([[1.0, np.nan, np.inf], [-np.inf, -0.0, 2.0], [3.0, np.inf, 5.0]], dtype)
    for axes in ((0,), (1,), (0, 1)):
        check(lambda x, a=axes: (bind(OPS[name], (x,), {"axes": a}),), x)


def test_sum_of_negative_zeros_is_negative_zero():
    for n in (2, 9, 40):
        (got,), _ = run(lambda x: (qb.sum(x),), np.full(n, -0.0))
        assert got == 0 and np.signbit(got) == np.signbit(np.float64(-0.0))


def test_float32_sums_are_accumulated_in_float64():
    x = np.full(1 << 20, 0.1, np.float32)
    (got,), (want,) = run(lambda x: (qb.sum(x),), x)
    assert got == want
    x = np.full((1 << 14, 3), 0.1, np.float32)
    got, want = run(lambda x: (qb.sum(x, 0), qb.sum(x, 1)), x)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("width", WIDTHS)
def test_bool_reductions_and_logic(rng, width):
    for shape in ((3,), (9,), (17, 5), (4, 40)):
        x, y = rng.random(shape) < 0.8, rng.random(shape) < 0.5

        def f(x, y):
            z = qb.logical_or(x, qb.logical_not(y))
            outs = [
                z,
                qb.logical_and(x, y),
                qb.equal(x, y),
                qb.not_equal(x, y),
                qb.less(x, y),
                qb.where(x, y, z),
            ]
            outs += [bind(OPS[n], (z,), {"axes": (0,)}) for n in ("reduce_any", "reduce_all")]
            outs += [bind(OPS[n], (x,), {"axes": tuple(range(x.ndim))}) for n in ("reduce_any", "reduce_all")]
            return tuple(outs)

        check(f, x, y, width=width)


@pytest.mark.parametrize("width", WIDTHS)
def test_views_are_read_in_place(rng, width):
    x = rng.normal(size=(6, 7, 9))

    def f(x):
        a = structure.strided_slice(x, (5, 0, 8), (-1, 7, -1), (-1, 2, -3))
        b = structure.permute(x, (2, 0, 1))
        c = structure.reshape_to(structure.permute(x, (1, 0, 2)), (14, 27))
        row = structure.reshape_to(structure.strided_slice(x, (0, 3, 0), (6, 4, 9), (1, 1, 1)), (6, 9))
        d = structure.broadcast(row, (6, 4, 9), (0, 2))
        return a * 2.0, qb.exp(b), c + 1.0, qb.sin(d), qb.sum(b), qb.sum(d, 1), a, b, c, d

    check(f, x, width=width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.bool_])
def test_views_of_computed_values(rng, dtype, width):
    x = rng.normal(size=(5, 12))
    x = x > 0 if dtype is np.bool_ else x.astype(dtype)

    def f(x):
        y = qb.logical_not(x) if x.dtype is qb.bool_ else qb.sin(x)
        t = structure.permute(y, (1, 0))
        r = structure.strided_slice(y, (4, 11), (-1, -1), (-1, -1))
        p = structure.pad(y, (1, 0), (0, 2), (2, 1))
        c = structure.concatenate((y, r, structure.strided_slice(y, (0, 0), (2, 12), (1, 1))), 0)
        s = structure.reshape_to(t, (4, 15))
        if x.dtype is qb.bool_:
            return t, r, p, c, s, qb.logical_not(c)
        return t + 1.0, r * y, p, p * 2.0, c, qb.cos(c), s, qb.sum(p, 0), qb.sum(t, 0), s * s

    check(f, x, width=width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.bool_])
@pytest.mark.parametrize("shape", [(3,), (21,), (40,), (5, 12), (2, 3, 17)])
def test_paddings_are_read_as_views(rng, shape, dtype, width):
    """Zeros beyond the ends are never in memory; what is read there would be another array's, or nobody's."""
    x = rng.normal(size=shape)
    x = x > 0 if dtype is np.bool_ else x.astype(dtype)
    rank = len(shape)

    def f(x):
        def whole(y):
            return structure.strided_slice(y, tuple(n - 1 for n in y.shape), (-1,) * rank, (-1,) * rank)

        y = qb.logical_not(x) if x.dtype is qb.bool_ else qb.sin(x)
        a = structure.pad(x, (2,) + (0,) * (rank - 1), (0,) * (rank - 1) + (3,), (0,) * rank)
        b = structure.pad(y, (9,) * rank, (1,) * rank, (0,) * rank)
        c = structure.pad(y, (1,) * rank, (0,) * rank, (0,) * rank)
        c = structure.pad(c, (0,) * rank, (1,) * rank, (0,) * rank)
        d = structure.permute(b, tuple(reversed(range(rank))))
        e = structure.strided_slice(b, (1,) * rank, b.shape, (3,) * rank)
        g = structure.broadcast(
            structure.reshape_to(c, (*c.shape, 1)), (4, *c.shape, 2), tuple(range(1, rank + 2))
        )
        nothing = structure.strided_slice(b, (0,) * rank, (9, *b.shape[1:]), (1,) * rank)
        outs = [a, b, c, d, whole(b), e, whole(e), g, nothing, structure.reshape_to(b, (b.size,))]
        if x.dtype is qb.bool_:
            return tuple([qb.logical_not(v) for v in outs])
        return tuple([qb.cos(v) for v in outs] + [qb.sum(v, 0) for v in outs] + [qb.sum(v) for v in outs])

    check(f, x, width=width, ulps=300)


def test_outputs_that_are_inputs_constants_or_repeated(rng):
    x = rng.normal(size=(3, 4))
    c = qb.array(rng.normal(size=(3, 4)))
    big = qb.array(rng.normal(size=(40, 7)))

    def f(x):
        y = x + c
        return (
            x,
            y,
            y,
            qb.full((2, 2), 3.0) * 1.0,
            c,
            big,
            structure.reshape_to(y, (12,)),
            qb.sum(x * 2.0),
            big * 2.0,
        )

    check(f, x)


def test_constants_keep_their_bits():
    values = np.array([0.1, -0.0, np.inf, -np.inf, 5e-324, 1.7976931348623157e308])
    for dtype in (np.float64, np.float32):
        with np.errstate(over="ignore"):
            c = values.astype(dtype)
        (got,), _ = run(lambda x, c=c: (x * qb.array(c),), np.ones(6, dtype))
        assert got.tobytes() == c.tobytes()


def test_mixed_dtypes_in_one_kernel(rng):
    x = rng.normal(size=(19,))
    y = rng.normal(size=(19,)).astype(np.float32)
    check(
        lambda x, y: (
            x.astype(qb.float32) * y,
            y.astype(qb.float64) + x,
            (x > 0.0).astype(qb.float32),
            qb.sum(y),
            qb.sum(y.astype(qb.float64)),
        ),
        x, y,
    )  # fmt: skip


# --- random programs --------------------------------------------------------------------------------------------------

UNARY = [qb.sin, qb.cos, qb.tanh, qb.sigmoid, qb.abs, lambda x: -x, qb.sign, qb.relu, lambda x: qb.exp(qb.tanh(x)),
         lambda x: qb.softplus(x), lambda x: qb.sqrt(qb.abs(x) + 1.0), lambda x: x**3]  # fmt: skip
BINARY = [qb.add, qb.sub, qb.mul, qb.maximum, qb.minimum, lambda x, y: x / (1.0 + qb.abs(y)),
          lambda x, y: qb.where(x > y, x, y * 0.5)]  # fmt: skip
EXTENTS = (1, 2, 3, 7, 8, 9, 17)


@st.composite
def programs(draw):
    """A function of two arrays, and their shape: twelve random ops on what there is so far."""
    rank = draw(st.integers(0, 4))
    shape = tuple(draw(st.sampled_from(EXTENTS if rank < 4 else EXTENTS[:4])) for _ in range(rank))
    choice = st.tuples(st.integers(0, 8), st.integers(0, 1000), st.integers(0, 1000))
    choices = draw(st.lists(choice, min_size=3, max_size=14))

    def function(x, y):
        values = [x, y]
        for kind, i, j in choices:
            a = values[i % len(values)]
            if kind <= 1:
                new = UNARY[j % len(UNARY)](a)
            elif kind <= 3:
                same = [v for v in values if v.shape == a.shape]
                new = BINARY[i % len(BINARY)](a, same[j % len(same)])
            elif kind == 4 and a.ndim:
                axes = tuple(k for k in range(a.ndim) if (j >> k) & 1) or (j % a.ndim,)
                new = bind(OPS[("reduce_sum", "reduce_max", "reduce_min")[i % 3]], (a,), {"axes": axes})
                new = new * 0.25
            elif kind == 5 and a.ndim:
                perm = tuple(np.random.default_rng(j).permutation(a.ndim).tolist())
                new = structure.permute(a, perm)
            elif kind == 6:
                # Back to the shape of the arguments, where NumPy would broadcast.
                dims = [k for k, n in enumerate(x.shape)]
                last = x.shape[x.ndim - a.ndim :]
                fits = a.ndim <= x.ndim and all(n in (1, m) for n, m in zip(a.shape, last, strict=True))
                new = structure.broadcast(a, x.shape, tuple(dims[x.ndim - a.ndim :])) if fits else qb.tanh(a)
            elif kind == 7 and a.ndim:
                axis = j % a.ndim
                step = -1 if i % 2 else 1
                start = tuple((n - 1 if step < 0 else 0) if k == axis else 0 for k, n in enumerate(a.shape))
                stop = tuple(
                    (-1 if step < 0 else (n + 1) // 2) if k == axis else n for k, n in enumerate(a.shape)
                )
                new = structure.strided_slice(
                    a, start, stop, tuple(step if k == axis else 1 for k in range(a.ndim))
                )
                if j % 3 == 0:
                    new = structure.concatenate((new, a), axis)
            elif kind == 8 and a.ndim:
                low, high, inner = (tuple((j >> (k + s)) & 1 for k in range(a.ndim)) for s in (0, 3, 6))
                new = structure.pad(a, low, high, inner)
            else:
                new = qb.tanh(a)
            if new.size < 20000:
                values.append(new)
        return tuple(values[-5:])

    return function, shape


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from([np.float64, np.float32]), st.sampled_from(WIDTHS), st.integers(0, 2**31))
def test_random_programs(case, dtype, width, seed):
    function, shape = case
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=shape).astype(dtype) for _ in range(2))
    check(function, x, y, width=width, ulps=2000)


def test_widths_agree_on_elementwise_results(rng):
    """The width of vectors shows only where an order of summation is involved."""
    x = rng.normal(size=(37,))
    program, _ = trace(lambda x: (qb.exp(x) * qb.sin(x) - x,), [ShapeDtype((37,))])
    lowered = CpuBackend().lower(program, "cpu")
    results = [build(lowered, w)(qb.array(x))[0].numpy().tobytes() for w in WIDTHS]
    assert len(set(results)) == 1


def test_the_code_of_a_long_program_is_a_row_of_short_functions():
    def function(x):
        for _ in range(300):
            x = qb.tanh(x @ x)
        return (x,)

    program, _ = trace(function, [qb.ones((3, 3)).aval])
    text = CpuBackend().lower(program, "cpu").as_text()
    bodies = text.split("define ")[1:]
    assert len(bodies) > 5
    longest = max(len(body.splitlines()) for body in bodies)
    assert longest < 4 * len(text.splitlines()) / len(bodies)
    x = np.full((3, 3), 0.4)
    expected = x
    for _ in range(300):
        expected = np.tanh(expected @ expected)
    np.testing.assert_allclose(
        qb.jit(lambda x: function(x)[0])(qb.array(x)).numpy(), expected, rtol=1e-12, atol=1e-300
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (37,), (9, 16)])
def test_sine_and_cosine_of_one_value_are_one_call(shape, dtype):
    x = np.asarray(np.random.default_rng(0).normal(size=shape) * 20.0, dtype)

    def function(x):
        y = x * 1.5
        return qb.sin(y), qb.cos(y), qb.sin(y) * qb.cos(y) + qb.cos(x), qb.sum(qb.cos(y))

    check(function, x, ulps=8)
    together = CpuBackend().lower(trace(function, [qb.array(x).aval])[0], "cpu").generate()
    alone = CpuBackend().lower(trace(lambda x: (qb.sin(x * 1.5),), [qb.array(x).aval])[0], "cpu").generate()
    assert {name for name, _, _ in together.math} == {"sincos", "cos"}
    assert {name for name, _, _ in alone.math} == {"sin"}
    # The same bits as one without the other.
    (sine,), (both, *_) = (
        [v.numpy() for v in qb.jit(f)(qb.array(x))] for f in (lambda x: [qb.sin(x * 1.5)], function)
    )
    np.testing.assert_array_equal(sine, both)
