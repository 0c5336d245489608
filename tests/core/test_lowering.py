"""Passes, fusion, the loop-nest form and the buffer plan, without any backend: kernels are interpreted here."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quabla as qb
from quabla.arrays.tracer import bind, trace
from quabla.backends.reference import build
from quabla.ir.op import OPS
from quabla.lowering.buffers import ALIGNMENT, assign, touched
from quabla.lowering.fuse import fuse
from quabla.lowering.loops import (
    Apply,
    Buffer,
    Kernel,
    Load,
    Product,
    Reduce,
    Scalar,
    Store,
    collapse,
    restrict,
)
from quabla.lowering.passes import simplify
from quabla.lowering.views import broadcast_strides, contiguous, reshape_strides, sliced_bounds
from quabla.ops.matmul import dot_general
from quabla.ops.structure import broadcast, concatenate, pad, permute, reshape_to, strided_slice
from quabla.shapes import ShapeDtype

F64 = qb.float64


def traced(function, *shapes):
    return trace(lambda *xs: tuple(function(*xs)), [ShapeDtype(s) for s in shapes])[0]


def names(program):
    return [node.op.name for node in program.nodes]


def simple(function, *shapes):
    return names(simplify(traced(function, *shapes)))


# --- passes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: x * 1.0, []),
        (lambda x: x - 0.0, []),
        (lambda x: x + -0.0, []),
        (lambda x: x + 0.0, ["full", "add"]),  # -0.0 + 0.0 is 0.0
        (lambda x: x * 0.0, ["full", "mul"]),  # NaN, infinities, signs
        (lambda x: x / 4.0, ["full", "mul"]),
        (lambda x: x / 3.0, ["full", "div"]),
        (lambda x: qb.neg(qb.neg(x)), []),
        (lambda x: x + -qb.sin(x), ["sin", "sub"]),
        (lambda x: -qb.sin(x) + x, ["sin", "sub"]),
        (lambda x: x - -qb.sin(x), ["sin", "add"]),
        (lambda x: -qb.sin(x) * -qb.cos(x), ["sin", "cos", "mul"]),
        (lambda x: qb.stop_gradient(x), []),
        (lambda x: x**2, ["mul"]),
        (lambda x: qb.where(qb.equal(x, x), qb.sin(x), qb.sin(x)), ["sin"]),
        (lambda x: permute(permute(x, (1, 2, 0)), (2, 0, 1)), []),
        (lambda x: reshape_to(reshape_to(x, (6, 4)), (2, 3, 4)), []),
        (lambda x: qb.sin(x) + qb.sin(x * 1.0), ["sin", "add"]),
        (lambda x: (x + qb.cos(x)) * (qb.cos(x) + x), ["cos", "add", "mul"]),
        (lambda x: qb.sum(permute(x, (2, 0, 1)), 0), ["reduce_sum"]),
        (lambda x: strided_slice(x, (0, 0, 0), (2, 3, 4), (1, 1, 1)), []),
        (lambda x: qb.full((2, 3, 4), 2.0) * qb.sin(qb.full((2, 3, 4), 0.0)) + 3.0 - x, ["full", "sub"]),
    ],
)
def test_rules(function, left):
    assert simple(lambda x: (function(x),), (2, 3, 4)) == left


def test_pointwise_ops_sink_below_shape_ops():
    found = simple(lambda x, y: (qb.sin(broadcast(x, (5, 3)) * broadcast(y, (5, 3))) + 1.0,), (3,), (3,))
    assert found == ["mul", "sin", "full", "add", "broadcast"]


def test_rules_keep_special_values():
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5])

    def f(x, y):
        return (
            x * 1.0, x - 0.0, x + -0.0, x / 4.0, qb.neg(qb.neg(x)), x + -y, -x + y, x - -y, -x * -y, -x * y, x**2,
            -x * 3.0, x * -1.0, qb.where(x > y, x, x), x / -0.5,
        )  # fmt: skip

    program = traced(f, (7, 7), (7, 7))
    x, y = (qb.array(a) for a in np.meshgrid(special, special))
    for a, b in zip(build(program)(x, y), build(simplify(program))(x, y), strict=True):
        u, v = a.numpy(), b.numpy()
        np.testing.assert_array_equal(u, v)
        real = ~np.isnan(u)
        np.testing.assert_array_equal(np.signbit(u[real]), np.signbit(v[real]))


def test_simplify_keeps_the_signature():
    program = traced(lambda x, y: (x, x * 1.0, qb.full((2,), 1.0) + 1.0), (3,), (4,))
    out = simplify(program)
    assert out.inputs == program.inputs and len(out.outputs) == 3
    assert [v.shape for v in out.outputs] == [(3,), (3,), (2,)]


# --- views ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), max_size=4), st.permutations([0, 1, 2, 3]), st.integers(0, 50))
def test_reshaped_strides_are_numpys(shape, perm, seed):
    shape = tuple(shape)
    perm = [p for p in perm if p < len(shape)]
    array = np.arange(math.prod(shape), dtype=np.int64).reshape(shape).transpose(perm)
    divisors = [d for d in range(1, array.size + 1) if array.size % d == 0]
    first = divisors[seed % len(divisors)]
    wanted = (first, array.size // first)
    found = reshape_strides(array.shape, tuple(s // 8 for s in array.strides), wanted)
    try:
        expected = array.view()
        expected.shape = wanted
    except AttributeError:
        assert found is None
        return
    assert found is not None
    flat = np.arange(array.size)
    got = np.lib.stride_tricks.as_strided(flat, wanted, [8 * s for s in found])
    np.testing.assert_array_equal(got, expected)


def test_broadcast_strides():
    assert broadcast_strides((3, 1), (1, 1), (2, 3, 4), (1, 2)) == (0, 1, 0)
    assert contiguous((2, 3, 4)) == (12, 4, 1)


# --- an interpreter of the loop-nest form -----------------------------------------------------------------------------


def interpret(plan, *arrays):
    """Run a plan point by point."""
    memory = {}

    def array(buffer):
        if buffer.kind == "input":
            return arrays[buffer.index].ravel()
        if buffer.kind == "constant":
            return plan.constants[buffer.index].numpy().ravel()
        key = (buffer.kind, buffer.index)
        unwritten = np.nan if buffer.dtype.kind == "f" else 0
        return memory.setdefault(key, np.full(buffer.size, unwritten, buffer.dtype.numpy))

    for step in plan.steps:
        if isinstance(step, Kernel):
            _kernel(step, array)
        else:
            _product(step, array)
    return [memory["output", i].reshape(a.shape) for i, a in enumerate(plan.out_avals)]


def _at(e, point):
    return e.offset + sum(i * s for i, s in zip(point, e.strides, strict=True))


def _kernel(kernel, array):
    collected = {}
    for point in itertools.product(*map(range, kernel.domain)):
        values = []
        for i, e in enumerate(kernel.body):
            value = None
            if isinstance(e, Load):
                inside = all(low <= i < high for i, (low, high) in zip(point, e.bounds, strict=False))
                value = array(e.buffer)[_at(e, point)] if inside else e.buffer.dtype.numpy.type(0)
            elif isinstance(e, Scalar):
                value = e.dtype.numpy.type(e.value)
            elif isinstance(e, Apply):
                with np.errstate(all="ignore"):
                    value = OPS[e.op].evaluate(*[np.asarray(values[a]) for a in e.args], **e.params)
            elif isinstance(e, Store):
                array(e.buffer)[_at(e, point)] = values[e.value]
            else:
                collected.setdefault((i, _at(e, point)), []).append(values[e.value])
            values.append(value)
    combine = {"sum": np.sum, "max": np.max, "min": np.min, "any": np.any, "all": np.all}
    for (i, at), xs in collected.items():
        array(kernel.body[i].buffer)[at] = combine[kernel.body[i].op](xs)


def _product(p, array):
    left, right, out = array(p.left), array(p.right), array(p.out)
    axes = [*p.batch, *p.m, *p.n]
    for point in itertools.product(*[range(a.extent) for a in axes]):
        total = 0.0
        for inner in itertools.product(*[range(a.extent) for a in p.k]):
            i = p.left_offset + sum(x * a.left for x, a in zip((*point, *inner), (*axes, *p.k), strict=True))
            j = p.right_offset + sum(
                x * a.right for x, a in zip((*point, *inner), (*axes, *p.k), strict=True)
            )
            total += left[i] * right[j]
        out[sum(x * a.out for x, a in zip(point, axes, strict=True))] = total


def check(function, *shapes, steps=None):
    """Lower, interpret and compare with the definition; returns the plan."""
    program = traced(function, *shapes)
    plan = fuse(simplify(program))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=v.shape) for v in program.inputs]
    want = build(program)(*[qb.array(a) for a in arrays])
    for got, w in zip(interpret(plan, *arrays), want, strict=True):
        np.testing.assert_allclose(got, w.numpy(), rtol=1e-12, atol=1e-12)
    if steps is not None:
        assert len(plan.steps) == steps, plan.steps
    return plan


# --- fusion -----------------------------------------------------------------------------------------------------------


def test_elementwise_values_and_their_sums_are_one_kernel():
    plan = check(lambda x, y: (qb.sum(qb.sin(x) * y), qb.tanh(x), qb.sum(x, 1)), (5, 3), (5, 3), steps=1)
    assert plan.workspace == 0


def test_axes_of_extent_one_do_not_matter():
    check(lambda x, y: (reshape_to(qb.sin(x), (5, 1)) * y + reshape_to(y, (1, 5, 1)),), (5,), (5, 1), steps=1)


def test_views_of_inputs_are_not_boundaries():
    check(lambda x: (qb.sin(permute(x, (1, 0))),), (4, 3), steps=1)
    check(
        lambda x, y: (permute(x, (1, 0)) * strided_slice(y, (2, 3), (-1, -1), (-1, -1)),),
        (4, 3),
        (3, 4),
        steps=1,
    )
    check(lambda x, b: (x + broadcast(b, (4, 3)),), (4, 3), (3,), steps=1)


def test_transposed_results_are_stored_in_place():
    def f(x):
        return permute(qb.sin(x), (1, 2, 0)), concatenate((permute(x * 2.0, (0, 2, 1)),) * 2, 1)

    plan = check(f, (4, 3, 2))
    assert plan.workspace == 0 and len(plan.steps) == 1


def test_reductions_are_boundaries():
    plan = check(lambda x: (x - broadcast(qb.sum(x), (6,)),), (6,), steps=2)
    assert plan.workspace == ALIGNMENT


def test_values_move_to_their_first_use():
    """1 - tanh(x)**2 is computed where it is used, from the stored tanh(x), not stored itself."""

    def f(x):
        h = qb.tanh(x)
        slope = 1.0 - h * h
        s = broadcast(qb.sum(h), (8,))
        return (s * slope * h,)

    plan = check(f, (8,), steps=2)
    stores = [e for e in plan.steps[0].body if isinstance(e, Store)]
    assert len(stores) == 1


def test_concat_and_pad_store_into_parts():
    def f(x, y):
        return concatenate((qb.sin(x), y, qb.cos(x)), 1), pad(qb.exp(x), (1, 0), (0, 2), (0, 1))

    check(f, (3, 2), (3, 4))
    check(lambda x: (qb.sin(pad(x, (1,), (2,), (0,))), pad(x * 2.0, (0,), (1,), (3,)) + 1.0), (4,))
    check(lambda x: (concatenate((x, x), 0) * 2.0, concatenate((x, x), 1)), (3, 2))
    check(lambda x: (pad(concatenate((x, qb.sin(x)), 0), (1,), (1,), (0,)),), (3,))


def test_paddings_are_views():
    """The derivative of a stencil: what is stored per neighbour is read within its bounds, and nothing is padded."""

    def stencil(x):
        return (x[1:-1] - 2.0 * x[1:-1] * x[:-2] + x[2:]) * 0.5

    plan = check(lambda x: (qb.grad(lambda x: qb.sum(stencil(x)))(x),), (9,), steps=2)
    assert {step.domain for step in plan.steps} == {(7,), (9,)}
    check(lambda x: (pad(x, (2, 0), (0, 3), (0, 0)) + 1.0,), (3, 4), steps=1)
    check(lambda x: (strided_slice(pad(x, (2,), (2,), (0,)), (7,), (-1,), (-3,)) + 1.0,), (4,), steps=1)
    # Slicing away all of the padding, or all but it.
    plan = check(lambda x: (strided_slice(pad(x, (2,), (3,), (0,)), (2,), (6,), (1,)) * 2.0,), (4,), steps=1)
    assert not any(isinstance(e, Load) and e.bounds for e in plan.steps[0].body)
    plan = check(lambda x: (strided_slice(pad(x, (2,), (3,), (0,)), (6,), (9,), (1,)) + 1.0,), (4,), steps=1)
    assert not any(isinstance(e, Load) for e in plan.steps[0].body)


@given(st.integers(0, 6), st.integers(0, 8), st.integers(0, 9), st.sampled_from([-3, -2, -1, 1, 2, 3]))
def test_bounds_of_slices(low, high, start, step):
    first, last = sliced_bounds((low, high), start, step)
    for j in range(12):
        assert (low <= start + j * step < high) == (first <= j < last)


def test_outputs_of_every_kind():
    def f(x):
        y = qb.sin(x)
        c = concatenate((x, y), 0)
        return (
            x,
            y,
            y,
            permute(y, (1, 0)),
            reshape_to(y, (6,)),
            c,
            c,
            qb.full((2,), 3.0) * 1.0,
            qb.sum(y),
            x + 1.0,
        )

    check(f, (2, 3))


def test_reshape_that_needs_a_copy():
    def f(x):
        return reshape_to(permute(qb.sin(x), (1, 0)), (2, 6)) * 2.0, reshape_to(permute(x, (1, 0)), (12,))

    check(f, (4, 3))


def test_products():
    check(lambda x, y: (qb.sin(x) @ y, x @ qb.cos(y)), (4, 3), (3, 5))
    check(lambda x, y: (dot_general(x, y, ((2,), (1,)), ((0,), (0,))),), (2, 3, 4), (2, 4, 5))
    check(lambda x, y: (dot_general(x, y, ((0, 2), (1, 0)), ((), ())),), (2, 3, 4), (4, 2, 5))
    check(lambda x: (x @ qb.full((3, 2), 2.0),), (4, 3))
    check(lambda x, y: (x @ y,), (4, 3), (3,), steps=1)
    check(lambda x, y: (qb.tanh(x @ y + 1.0),), (4, 1), (1, 3), steps=1)


def test_domains_are_collapsed():
    plan = check(lambda x, y: (x * y,), (2, 3, 4), (2, 3, 4))
    assert plan.steps[0].domain == (24,)
    plan = check(lambda x, b: (x * broadcast(b, (2, 3, 4)),), (2, 3, 4), (4,))
    assert plan.steps[0].domain == (6, 4)
    plan = check(lambda x: (qb.sum(x, (1, 2)),), (2, 3, 4))
    assert plan.steps[0].domain == (2, 12)


def test_collapse_keeps_reduced_and_kept_axes_apart():
    x, out = Buffer("input", F64, 12, 0), Buffer("output", F64, 3, 0)
    kernel = Kernel((3, 4), (Load(x, 0, (4, 1)), Reduce("sum", 0, frozenset([1]), out, 0, (1, 0))))
    assert collapse(kernel).domain == (3, 4)


def test_restrict_keeps_only_what_is_needed():
    x, out = Buffer("input", F64, 4, 0), Buffer("output", F64, 4, 0)
    kernel = Kernel(
        (4,),
        (
            Load(x, 0, (1,)),
            Apply("sin", (0,), {}, F64),
            Apply("cos", (0,), {}, F64),
            Store(1, out, 0, (1,)),
            Store(2, out, 0, (1,)),
        ),
    )
    left = restrict(kernel, [4]).body
    assert (
        [type(e).__name__ for e in left] == ["Load", "Apply", "Store"]
        and left[1].op == "cos"
        and left[2].value == 1
    )


# --- memory -----------------------------------------------------------------------------------------------------------


def test_outputs_are_aligned():
    plan = fuse(simplify(traced(lambda x: (qb.sin(x), qb.sum(x), x > 0.0), (11,))))
    assert plan.out_offsets == (0, 128, 192) and plan.out_nbytes == 256


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 100)), min_size=2, max_size=25))
def test_live_temporaries_never_share_memory(choices):
    def f(x):
        values = [x]
        for kind, i in choices:
            a = values[i % len(values)]
            if kind == 0:
                new = qb.sin(a)
            elif kind == 1:
                new = permute(a, (1, 0)) if a.shape == (3, 3) else a
            elif kind == 2:
                new = a - broadcast(qb.sum(a, 0), (3, 3))
            elif kind == 3:
                new = a @ values[-1] * 0.1
            else:
                new = a * values[-1]
            values.append(new)
        return (values[-1],)

    plan = check(f, (3, 3))
    spans = {}
    for i, step in enumerate(plan.steps):
        for buffer in touched(step):
            if buffer.kind == "temporary":
                spans.setdefault(buffer, []).append(i)
    for a, b in itertools.combinations(spans, 2):
        alive = max(spans[a][0], spans[b][0]) <= min(spans[a][-1], spans[b][-1])
        apart = a.offset + a.size * 8 <= b.offset or b.offset + b.size * 8 <= a.offset
        assert apart or not alive
        assert a.offset % ALIGNMENT == 0 and a.offset + a.size * 8 <= plan.workspace


def test_memory_is_reused():
    buffers = [Buffer("temporary", F64, 8, i) for i in range(6)]
    steps = [Kernel((8,), (Load(a, 0, (1,)), Store(0, b, 0, (1,)))) for a, b in itertools.pairwise(buffers)]
    assert assign(steps) == 2 * ALIGNMENT


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_with_the_identity_is_the_other_operand(transposed):
    eye, other = qb.eye(3), qb.array(np.diag([1.0, 2.0, 1.0]))
    f = (lambda x: (eye @ x,)) if transposed else (lambda x: (x @ eye,))
    assert "dot_general" not in simple(f, (3, 3))
    assert "dot_general" in simple(lambda x: (x @ other,), (3, 3))
    # What is not zero times infinity stays as it is.
    x = qb.array([[1.0, np.inf, -0.0], [np.nan, 2.0, 3.0], [4.0, 5.0, 6.0]])
    program = simplify(traced(f, (3, 3)))
    np.testing.assert_array_equal(build(program)(x)[0].numpy(), x.numpy())


def test_products_use_no_step_for_repeated_operands():
    plan = check(
        lambda x, w: (dot_general(x, broadcast(w, (3, 4, 5), (1, 2)), ((2,), (1,)), ((0,), (0,))),),
        (3, 2, 4),
        (4, 5),
    )
    (step,) = plan.steps
    assert isinstance(step, Product) and step.batch == ()


def test_unknown_dimension_orders_are_right():
    check(lambda x: (bind(OPS["reduce_max"], (permute(x, (2, 0, 1)),), {"axes": (1,)}),), (2, 3, 4))
