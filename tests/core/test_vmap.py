"""`vmap`: against loops over the examples, its axes, its trees, per-example gradients, and what it refuses."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

import quabla as qb

A = qb.array


class Pair(NamedTuple):
    w: Any
    b: Any


@dataclasses.dataclass
class Layer:
    w: Any
    b: Any


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# Functions of one example x[3], some with a matrix w[3, 2], in Quabla; each is compared with a loop over the examples.
EXAMPLES: list[tuple[str, Any]] = [
    ("elementwise", lambda x: qb.sin(x) * 2.0 - x / 3.0),
    ("reduce", lambda x: qb.sum(x) + qb.max(x) * qb.mean(x) + qb.norm(x)),
    ("reduce_keepdims", lambda x: x - qb.max(x, axis=0, keepdims=True)),
    ("broadcast", lambda x: qb.reshape(x, (3, 1)) * qb.reshape(x, (1, 3))),
    ("scalar_times_vector", lambda x: x[0] * x),
    ("outer_and_trace", lambda x: qb.sum(qb.tril(qb.outer(x, x)) * qb.eye(3))),
    ("compare", lambda x: qb.where(x > 0.0, x, qb.exp(x))),
    ("logical", lambda x: qb.all(x > -10.0)),
    ("index", lambda x: x[1]),
    ("slices", lambda x: qb.concat([x[::-1], x[1:], x[:1]])),
    ("stack", lambda x: qb.stack([x, x * 2.0, qb.ones(3)], axis=1)),
    ("transpose", lambda x: qb.transpose(qb.stack([x, x + 1.0]))),
    ("power", lambda x: qb.power(qb.abs(x) + 0.1, x) + x**3),
    ("matrix", lambda x: qb.reshape(qb.concat([x, x]), (2, 3)) @ x),
    ("vector_matrix", lambda x: x @ qb.reshape(qb.concat([x, x]), (3, 2))),
    ("dot", lambda x: x @ x),
    ("einsum", lambda x: qb.einsum("i,j,i->j", x, x, x)),
    ("astype", lambda x: qb.astype(x, qb.float32)),
    ("maximum", lambda x: qb.maximum(x, 0.0) + qb.minimum(x, x[0])),
    ("identity", lambda x: x),
    ("constant", lambda x: A([1.0, 2.0])),
    ("number", lambda x: 3.0),
    ("tree", lambda x: {"a": (x, x[0]), "b": [qb.sum(x), None]}),
]


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("name, f", EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_vmap_is_a_loop_over_the_examples(name: str, f: Any, size: int) -> None:
    x = rng().normal(size=(size, 3))
    one = qb.jit(f)
    expected = [qb.tree.flatten(one(A(row))) for row in x]
    for mapped in (qb.vmap(f), qb.jit(qb.vmap(f)), qb.vmap(qb.jit(f))):
        leaves, treedef = qb.tree.flatten(mapped(A(x)))
        assert treedef == expected[0][1]
        for i, leaf in enumerate(leaves):
            rows = np.stack([e[0][i].numpy() for e in expected])
            assert leaf.shape == rows.shape
            assert leaf.dtype is expected[0][0][i].dtype
            np.testing.assert_allclose(leaf.numpy(), rows, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("out", [0, 1, 2, -1, -3])
def test_axes(axis: int, out: int) -> None:
    x = rng().normal(size=(2, 3, 4))
    found = qb.vmap(lambda a: qb.sin(a) + qb.sum(a), in_axes=axis, out_axes=out)(A(x)).numpy()
    moved = np.moveaxis(x, axis, 0)
    expected = np.moveaxis(np.stack([np.sin(a) + a.sum() for a in moved]), 0, out)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_two_axes_of_two_arguments() -> None:
    x, w = rng().normal(size=(5, 3)), rng().normal(size=(3, 2, 5))
    found = qb.vmap(lambda x, w: x @ w, in_axes=(0, 2), out_axes=1)(A(x), A(w)).numpy()
    np.testing.assert_allclose(found, np.einsum("bi,ijb->jb", x, w), rtol=1e-14)


IN_AXES: list[Any] = [
    ({"w": 0, "b": None}, [0, (1, None)]),
    ({"w": 0, "b": None}, (0, (1, None))),
    [{"w": 0, "b": None}, [0, [1, None]]],
]


@pytest.mark.parametrize("in_axes", IN_AXES)
def test_in_axes_are_a_prefix_of_the_arguments(in_axes: Any) -> None:
    f = lambda p, q: p["w"] * p["b"] + q[0] + qb.sum(q[1][0] * q[1][1])
    w, b, q0 = rng().normal(size=4), 2.5, rng().normal(size=4)
    q1, q2 = rng().normal(size=(3, 4)), rng().normal(size=3)
    expected = w * b + q0 + q2 @ q1
    found = qb.vmap(f, in_axes)({"w": A(w), "b": A(b)}, [A(q0), (A(q1), A(q2))])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13)


def test_one_axis_stands_for_a_whole_argument() -> None:
    f = lambda p, s: (p.w @ p.b, s)
    p = Pair(A(rng().normal(size=(4, 2, 3))), A(rng().normal(size=(4, 3))))
    y, s = qb.vmap(f, in_axes=(0, None))(p, A(7.0))
    np.testing.assert_allclose(y.numpy(), np.einsum("bij,bj->bi", p.w.numpy(), p.b.numpy()), rtol=1e-14)
    assert s.tolist() == [7.0] * 4
    both = qb.vmap(lambda p: p.w * p.b, in_axes=(Pair(1, None),))(Pair(A([[1.0, 2.0, 3.0]]), A(10.0)))
    assert both.tolist() == [[10.0], [20.0], [30.0]]
    layers = qb.vmap(lambda p: p.w * p.b, in_axes=(Layer(0, None),))(Layer(A([1.0, 2.0]), A(10.0)))
    assert layers.tolist() == [10.0, 20.0]


def test_out_axes_are_a_prefix_of_the_result() -> None:
    x = rng().normal(size=(4, 3))
    f = lambda x: {"a": x, "b": (x, qb.sum(x)), "c": A([1.0, 2.0])}
    y = qb.vmap(f, out_axes={"a": 1, "b": (-1, 0), "c": None})(A(x))
    np.testing.assert_array_equal(y["a"].numpy(), x.T)
    np.testing.assert_array_equal(y["b"][0].numpy(), x.T)
    assert y["b"][1].shape == (4,)
    assert y["c"].tolist() == [1.0, 2.0]
    pair = qb.vmap(lambda x: (x, x), out_axes=(0, 1))(A(x))
    assert (pair[0].shape, pair[1].shape) == ((4, 3), (3, 4))


def test_out_axes_none_takes_what_is_the_same_for_all_examples() -> None:
    f = lambda x, w: (w * 2.0, 3.0, qb.sin(A(0.5)))
    y = qb.vmap(f, in_axes=(0, None), out_axes=None)(qb.ones(4), A([1.0, 2.0]))
    assert [v.tolist() for v in y] == [[2.0, 4.0], 3.0, np.sin(0.5)]
    with pytest.raises(qb.ShapeError, match=r"out_axes is None .*<lambda>.*depends on a mapped argument"):
        qb.vmap(lambda x: x * 0.0, out_axes=None)(qb.ones(4))


def test_what_is_not_mapped_is_broadcast() -> None:
    y = qb.vmap(lambda x, w: w, in_axes=(0, None))(qb.ones(3), A([1.0, 2.0]))
    assert y.tolist() == [[1.0, 2.0]] * 3
    y = qb.vmap(lambda x, w: w, in_axes=(0, None), out_axes=1)(qb.ones(3), A([1.0, 2.0]))
    assert y.tolist() == [[1.0] * 3, [2.0] * 3]


def test_keyword_arguments_are_mapped_over_their_first_axis() -> None:
    y = qb.vmap(lambda x, *, y: x * qb.sum(y["a"]), in_axes=1)(
        A([[1.0, 2.0]]), y={"a": A([[3.0, 4.0], [5.0, 6.0]])}
    )
    assert y.tolist() == [[7.0], [22.0]]


def test_numbers_stay_numbers() -> None:
    seen: list[Any] = []

    def f(x: Any, n: Any, rate: Any) -> Any:
        seen.append((n, rate))
        return x**n * rate

    assert qb.vmap(f, in_axes=(0, None, None))(A([1.0, 2.0]), 3, 0.5).tolist() == [0.5, 4.0]
    assert all(type(n) is int and type(rate) is float for n, rate in seen)


def test_constants_inside_are_not_mapped() -> None:
    m = rng().normal(size=(3, 3))
    x = rng().normal(size=(3, 3))  # as many examples as elements: a confusion of axes would show
    np.testing.assert_allclose(qb.vmap(lambda v: A(m) @ v)(A(x)).numpy(), x @ m.T, rtol=1e-14)
    np.testing.assert_allclose(qb.vmap(lambda v: v @ A(m))(A(x)).numpy(), x @ m, rtol=1e-14)


# --- nesting ----------------------------------------------------------------------------------------------------------


def test_vmap_of_vmap() -> None:
    x, y = rng().normal(size=4), rng().normal(size=5)
    f = lambda a, b: qb.sin(a) * b + a
    table = qb.vmap(qb.vmap(f, in_axes=(None, 0)), in_axes=(0, None))(A(x), A(y)).numpy()
    np.testing.assert_allclose(table, np.sin(x)[:, None] * y + x[:, None], rtol=1e-14)
    flipped = qb.vmap(qb.vmap(f, in_axes=(0, None)), in_axes=(None, 0))(A(x), A(y)).numpy()
    np.testing.assert_allclose(flipped, table.T, rtol=1e-14)


def test_three_levels_with_axes() -> None:
    x = rng().normal(size=(2, 3, 4, 5))
    f = lambda v: qb.sum(v * v)
    y = qb.vmap(qb.vmap(qb.vmap(f), in_axes=2, out_axes=1), in_axes=-3)(A(x)).numpy()
    assert y.shape == (3, 2, 5)
    np.testing.assert_allclose(y, np.einsum("aijk->iak", x**2), rtol=1e-14)


def test_pairwise_distances() -> None:
    points = rng().normal(size=(6, 3))
    d = lambda a, b: qb.norm(a - b)
    found = qb.vmap(qb.vmap(d, (None, 0)), (0, None))(A(points), A(points)).numpy()
    np.testing.assert_allclose(
        found, np.linalg.norm(points[:, None] - points, axis=-1), rtol=1e-13, atol=1e-15
    )
    # Coinciding points do not spoil the gradient of the sum.
    g = qb.grad(lambda p: qb.sum(qb.vmap(qb.vmap(d, (None, 0)), (0, None))(p, p)))(A(points)).numpy()
    assert np.isfinite(g).all()
    np.testing.assert_allclose(g.sum(0), 0.0, atol=1e-12)


def test_the_gradient_of_a_scalar_through_two_maps_is_a_scalar() -> None:
    f = lambda a, b, s: qb.tanh((a - b) * s)
    points = A(rng().random((3, 2)))
    loss = lambda s: qb.sum(qb.vmap(qb.vmap(f, (None, 0, None)), (0, None, None))(points, points, s) ** 2)
    g = qb.grad(loss)(1.3)
    assert g.shape == ()
    assert g.item() == pytest.approx(
        (loss(A(1.3 + 1e-6)).item() - loss(A(1.3 - 1e-6)).item()) / 2e-6, rel=1e-8
    )


# --- with derivatives -------------------------------------------------------------------------------------------------


def test_per_example_gradients_of_a_mapped_argument() -> None:
    x = rng().normal(size=(4, 3))
    g = qb.vmap(qb.grad(lambda x: qb.sum(qb.sin(x)) * x[0]))(A(x)).numpy()
    expected = np.cos(x) * x[:, :1]
    expected[:, 0] += np.sin(x).sum(1)
    np.testing.assert_allclose(g, expected, rtol=1e-13)


def test_per_example_gradients_of_an_argument_that_is_not_mapped() -> None:
    x, w = rng().normal(size=(5, 3)), rng().normal(size=3)
    loss = lambda w, x: (x @ w) ** 2
    g = qb.vmap(qb.grad(loss), in_axes=(None, 0))(A(w), A(x)).numpy()
    assert g.shape == (5, 3)
    np.testing.assert_allclose(g, 2.0 * (x @ w)[:, None] * x, rtol=1e-13)
    tree = qb.vmap(qb.grad(lambda p, x: (x @ p["w"] + p["b"]) ** 2), in_axes=(None, 0))(
        {"w": A(w), "b": A(0.5)}, A(x)
    )
    np.testing.assert_allclose(tree["b"].numpy(), 2.0 * (x @ w + 0.5), rtol=1e-13)
    assert tree["w"].shape == (5, 3)
    # One that the result does not depend on: zeros for every example.
    zero = qb.vmap(qb.grad(lambda w, x: x), in_axes=(None, 0))(A(w), A([1.0, 2.0]))
    assert zero.tolist() == [[0.0] * 3] * 2


def test_second_derivatives_per_example() -> None:
    u = lambda x, w: qb.sin(x * w)
    x, w = rng().normal(size=7), 1.7
    u_xx = qb.vmap(qb.grad(qb.grad(u)), in_axes=(0, None))(A(x), A(w)).numpy()
    np.testing.assert_allclose(u_xx, -(w**2) * np.sin(x * w), rtol=1e-14)


def test_hessian_vector_products_per_example() -> None:
    x, v = rng().normal(size=(4, 3)), rng().normal(size=(4, 3))
    f = lambda x: qb.sum(x**3) + x[0] * x[1]
    hv = qb.vmap(lambda x, v: qb.jvp(qb.grad(f), (x,), (v,))[1])(A(x), A(v)).numpy()
    expected = 6.0 * x * v
    expected[:, 0] += v[:, 1]
    expected[:, 1] += v[:, 0]
    np.testing.assert_allclose(hv, expected, rtol=1e-14)


def test_a_physics_informed_loss_and_its_gradient() -> None:
    # u(x) = sin(w x) with residual u'' + pi^2 sin(pi x): a closed form for the loss and its derivative in w.
    x = np.linspace(0.0, 1.0, 9)
    u_xx = qb.vmap(qb.grad(qb.grad(lambda x, w: qb.sin(w * x))), in_axes=(0, None))

    def loss(w: Any) -> Any:
        return qb.mean((u_xx(A(x), w) + np.pi**2 * qb.sin(np.pi * A(x))) ** 2)

    w = 2.0
    r = -(w**2) * np.sin(w * x) + np.pi**2 * np.sin(np.pi * x)
    dr = -2.0 * w * np.sin(w * x) - w**2 * x * np.cos(w * x)
    for step in (qb.value_and_grad(loss), qb.jit(qb.value_and_grad(loss))):
        value, g = step(w)
        assert value.item() == pytest.approx(np.mean(r**2), rel=1e-13)
        assert g.item() == pytest.approx(np.mean(2.0 * r * dr), rel=1e-12)
    dd = qb.grad(qb.grad(loss))(w).item()
    numeric = (qb.grad(loss)(w + 1e-6).item() - qb.grad(loss)(w - 1e-6).item()) / 2e-6
    assert dd == pytest.approx(numeric, rel=1e-7)


def test_a_network_given_as_argument_and_closed_over_are_the_same() -> None:
    def net(p: Any, x: Any) -> Any:
        h = qb.tanh(x * p["w1"] + p["b1"])
        return h @ p["w2"] + p["b2"]

    p = {
        "w1": A(rng().normal(size=8)),
        "b1": A(rng().normal(size=8)),
        "w2": A(rng().normal(size=8)),
        "b2": A(0.3),
    }
    x = qb.linspace(0.0, 1.0, 5)

    def explicit(p: Any) -> Any:
        return qb.mean(qb.vmap(qb.grad(qb.grad(net, 1), 1), in_axes=(None, 0))(p, x) ** 2)

    def closed(p: Any) -> Any:
        return qb.mean(qb.vmap(qb.grad(qb.grad(lambda x: net(p, x))))(x) ** 2)

    a, ga = qb.jit(qb.value_and_grad(explicit))(p)
    b, gb = qb.jit(qb.value_and_grad(closed))(p)
    assert a.item() == pytest.approx(b.item(), rel=1e-14)
    w1, b1, w2, xs = (v.numpy() for v in (p["w1"], p["b1"], p["w2"], x))
    t = np.tanh(np.outer(xs, w1) + b1)
    assert a.item() == pytest.approx(np.mean(((-2.0 * t * (1.0 - t**2)) @ (w2 * w1**2)) ** 2), rel=1e-13)
    for key in p:
        np.testing.assert_allclose(ga[key].numpy(), gb[key].numpy(), rtol=1e-12, atol=1e-14)
        assert ga[key].shape == p[key].shape


def test_vmap_of_vjp() -> None:
    x, ct = rng().normal(size=(4, 3)), rng().normal(size=(4, 2))
    f = lambda x: qb.stack([x[0] * x[1], qb.sin(x[2])])
    back = qb.vmap(lambda x, c: qb.vjp(f, x)[1](c)[0])(A(x), A(ct)).numpy()
    expected = np.stack([ct[:, 0] * x[:, 1], ct[:, 0] * x[:, 0], ct[:, 1] * np.cos(x[:, 2])], 1)
    np.testing.assert_allclose(back, expected, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes_are_kept(dtype: str) -> None:
    x = A(rng().normal(size=(4, 3)), dtype)
    f = lambda x: qb.sum(qb.sin(x) * 2.0 + 1)
    for y in (qb.vmap(f)(x), qb.vmap(qb.grad(f))(x), qb.vmap(qb.hessian(f))(x), qb.vmap(qb.vmap(qb.cos))(x)):
        assert y.dtype is x.dtype


# --- refusals ---------------------------------------------------------------------------------------------------------

MATRIX, PAIR = qb.ones((10, 4)), {"w": qb.ones((3, 2)), "b": [qb.ones(3)]}


@pytest.mark.parametrize(
    "in_axes, args, error, parts",
    [
        ((0, 1), (MATRIX, qb.ones((10, 2))), ValueError,
         ["a of type float64[10,4] has 10 along axis 0", "b of type float64[10,2] has 2 along axis 1"]),
        (0, (PAIR, qb.ones(2)), ValueError,
         ["a/w of type float64[3,2] has 3 along axis 0", "a/b/0", "b of type float64[2] has 2 along axis 0"]),
        ((-1, 0), (MATRIX, qb.ones(10)), ValueError, ["has 4 along axis -1", "has 10 along axis 0"]),
        (0, (MATRIX, A(1.0)), ValueError, ["argument b of type float64[] has no axis 0", "use None in in_axes"]),
        ((0, 3), (MATRIX, MATRIX), ValueError, ["argument b", "float64[10,4]", "no axis 3"]),
        ((None, None), (MATRIX, MATRIX), ValueError, ["at least one argument must be mapped"]),
        ((0,), (MATRIX, MATRIX), ValueError, ["in_axes has 1 entries", "called with 2 positional"]),
        ((0, 0), (MATRIX, 2.0), TypeError, ["argument b", "Python value 2.0", "in_axes=(0, None)"]),
        (({"v": 0}, None), (PAIR, MATRIX), ValueError, ["in_axes", "at 0"]),
        (((0, 0), None), (MATRIX, MATRIX), ValueError, ["in_axes", "at 0"]),
    ],
)  # fmt: skip
def test_axes_that_do_not_fit(in_axes: Any, args: Any, error: Any, parts: list[str]) -> None:
    with pytest.raises(error, match="vmap") as caught:
        qb.vmap(lambda a, b: qb.tree.flatten(a)[0][0], in_axes)(*args)
    assert isinstance(caught.value, qb.QuablaError)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("in_axes", [None, {"a": 0}, 0.5, "x", True, (0, 1.5), ({"a": "b"},), (True,)])
def test_in_axes_of_another_type_are_refused_at_once(in_axes: Any) -> None:
    with pytest.raises(qb.DtypeError, match=r"vmap: in_axes"):
        qb.vmap(lambda a: a, in_axes)


def test_in_axes_that_are_a_bare_container_say_what_to_write() -> None:
    with pytest.raises(qb.DtypeError, match=r"one argument that is a container write in_axes=\(axes,\)"):
        qb.vmap(lambda d: d["a"], in_axes={"a": 0})


@pytest.mark.parametrize(
    "out_axes, match",
    [(1, "out of range"), (-2, "out of range"), ((0, 0), "out_axes"), ({"a": 0}, "out_axes")],
)
def test_out_axes_that_do_not_fit(out_axes: Any, match: str) -> None:
    with pytest.raises(qb.QuablaError, match=match) as caught:
        qb.vmap(lambda a: a, out_axes=out_axes)(qb.ones(3))
    assert isinstance(caught.value, ValueError)


def test_an_error_inside_shows_the_shapes_of_one_example() -> None:
    with pytest.raises(qb.ShapeError, match=r"\(4,\).*\(3,\)"):
        qb.vmap(lambda x: x + qb.ones(3))(qb.ones((10, 4)))
