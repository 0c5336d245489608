"""The optimisers against their recurrences in NumPy, and against torch.optim where it is installed."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

import quabla as qb
from quabla.errors import DtypeError, QuablaError, ShapeError
from quabla.optim import SGD, Adam, AdamState

Array = np.ndarray


def adam_in_numpy(
    w: Array, grads: list[Array], lr: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> Array:
    """Algorithm 1 of Kingma and Ba as printed, in float64. The parameter is rounded to its dtype after each step."""
    m, v = np.zeros(w.shape), np.zeros(w.shape)
    for t, g in enumerate(grads, 1):
        g = g.astype(np.float64)
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        new = w.astype(np.float64) - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
        w = new.astype(w.dtype)
    return w


def gradients(shape: tuple[int, ...], count: int, dtype: Any = np.float64, seed: int = 0) -> list[Array]:
    """Gradients over many orders of magnitude, some of them zero."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        g = rng.normal(size=shape) * 10.0 ** rng.uniform(-6, 3, size=shape)
        out.append(np.where(rng.random(shape) < 0.1, 0.0, g).astype(dtype))
    return out


def run(opt: Any, w: Any, grads: list[Array]) -> tuple[Any, Any]:
    """The eager loop."""
    state = opt.init(w)
    for g in grads:
        w, state = opt.update(w, qb.array(g), state)
    return w, state


@pytest.mark.parametrize("settings", [{}, {"b1": 0.0}, {"b1": 0.5, "b2": 0.9, "eps": 1e-3}, {"b2": 0.0}])
def test_adam_is_the_printed_algorithm(settings: dict[str, float]) -> None:
    grads = gradients((3, 4), 60)
    w0 = np.random.default_rng(1).normal(size=(3, 4))
    w, state = run(Adam(0.03, **settings), qb.array(w0), grads)
    np.testing.assert_allclose(w.numpy(), adam_in_numpy(w0, grads, 0.03, **settings), rtol=1e-12, atol=1e-13)
    assert state.count.item() == 60


def test_the_first_step_of_adam_has_the_length_of_the_learning_rate() -> None:
    # The bias corrections cancel: m / c1 = g and v / c2 = g * g.
    g = qb.array([1e-3, -5.0, 400.0, 0.0])
    w, _ = Adam(0.1).update(qb.zeros(4), g, Adam(0.1).init(qb.zeros(4)))
    np.testing.assert_allclose(w.numpy(), -0.1 * np.sign(g.numpy()), rtol=2e-5)
    assert w.numpy()[3] == 0.0


# --- float32 parameters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"b1": 0.0}, {"b1": 0.5, "b2": 0.9, "eps": 1e-3}])
def test_adam_of_float32_rounds_once_per_step(settings: dict[str, float]) -> None:
    grads = gradients((7, 5), 100, np.float32)
    start = np.random.default_rng(2).normal(size=(7, 5)).astype(np.float32)
    w, state = run(Adam(0.01, **settings), qb.array(start), grads)
    assert w.dtype is qb.float32 and state.first.dtype is qb.float64 and state.second.dtype is qb.float64
    np.testing.assert_array_equal(w.numpy(), adam_in_numpy(start, grads, 0.01, **settings))


def test_gradients_whose_squares_float32_does_not_have() -> None:
    g = np.array([1e-25, -3e-30, 2e25], np.float32)
    w, _ = run(Adam(0.5, eps=1e-35), qb.zeros(3, dtype=qb.float32), [g])
    np.testing.assert_allclose(w.numpy(), -0.5 * np.sign(g), rtol=2e-5)


def test_sgd_of_float32_rounds_once_per_step() -> None:
    grads = gradients((40,), 5, np.float32)
    w, expected = qb.ones(40, dtype=qb.float32), np.ones(40, np.float32)
    w, _ = run(SGD(0.1), w, grads)  # 0.1 in float32 is another number
    for g in grads:
        expected = (expected.astype(np.float64) - 0.1 * g.astype(np.float64)).astype(np.float32)
    assert w.dtype is qb.float32
    np.testing.assert_array_equal(w.numpy(), expected)


def dtypes(tree: Any) -> set[str]:
    return {str(x.dtype.name) for x in qb.tree.flatten(tree)[0]}


def test_moments_are_float64_wherever_they_are_made() -> None:
    opt, w = Adam(0.1), {"a": qb.ones((2, 3), dtype=qb.float32), "b": [qb.ones(2), 1.0, qb.sin(1.0)]}
    for init in (opt.init, qb.jit(opt.init)):
        assert dtypes(init(w)) == {"float64"}
    stacked = qb.vmap(opt.init)({"a": qb.ones((4, 3), dtype=qb.float32)})
    assert dtypes(stacked) == {"float64"} and stacked.first["a"].shape == (4, 3)
    numpy_ = opt.init(np.ones((2, 3), np.float32))
    assert numpy_.first.dtype is qb.float64 and numpy_.first.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("leaf", [qb.float32, qb.float64])
def test_a_step_may_be_the_body_of_a_loop(leaf: Any) -> None:
    # A carry keeps its types: those of state and parameters are the same after a step.
    opt, w, g = Adam(0.1), qb.array([1.0, -2.0], dtype=leaf), np.array([0.25, 3.0], leaf.numpy)
    step = lambda i, old: opt.update(old[0], qb.array(g), old[1])
    new, state = qb.fori_loop(0, 6, step, (w, opt.init(w)))
    assert new.dtype is leaf and dtypes(state) == {"float64"} and state.count.item() == 6
    np.testing.assert_allclose(new.numpy(), adam_in_numpy(w.numpy(), [g] * 6, 0.1), rtol=1e-6)


def test_a_state_of_float32_moments_is_taken_and_keeps_its_types() -> None:
    # As an earlier version saved it, and as a device without float64 keeps it (there the count, too).
    opt, lr, b1, b2, eps = Adam(0.01), 0.01, 0.9, 0.999, 1e-8
    grads = gradients((30,), 12, np.float32, seed=5)
    for count in (qb.float64, qb.float32):
        w = np.ones(30, np.float32)
        m, v = np.zeros(30, np.float32), np.zeros(30, np.float32)
        ours = qb.array(w)
        state = AdamState(qb.array(0.0, dtype=count), qb.array(m), qb.array(v))
        for t, g in enumerate(grads, 1):
            ours, state = opt.update(ours, qb.array(g), state)
            m64 = b1 * m.astype(np.float64) + (1 - b1) * g.astype(np.float64)
            v64 = b2 * v.astype(np.float64) + (1 - b2) * g.astype(np.float64) ** 2
            step = lr * (m64 / (1 - b1**t)) / (np.sqrt(v64 / (1 - b2**t)) + eps)
            w, m, v = (x.astype(np.float32) for x in (w.astype(np.float64) - step, m64, v64))
        assert [x.dtype for x in state] == [count, qb.float32, qb.float32]
        assert state.count.item() == 12
        for ours_, theirs in ((ours, w), (state.first, m), (state.second, v)):
            np.testing.assert_array_equal(ours_.numpy(), theirs)


# --- SGD, and others --------------------------------------------------------------------------------------------------


def test_sgd_is_the_printed_algorithm() -> None:
    grads = gradients((2, 3), 20)
    w, state = run(SGD(0.5), qb.ones((2, 3)), grads)
    expected = np.ones((2, 3))
    for g in grads:
        expected = expected - 0.5 * g
    np.testing.assert_array_equal(w.numpy(), expected)
    assert state == ()


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    grads = gradients((5,), 40, seed=3)
    theirs = torch.linspace(-1.0, 1.0, 5, dtype=torch.float64, requires_grad=True)
    optimizer = getattr(torch.optim, name)([theirs], lr=0.02)
    for g in grads:
        theirs.grad = torch.tensor(g)
        optimizer.step()
    ours, _ = run(getattr(qb.optim, name)(0.02), qb.linspace(-1.0, 1.0, 5), grads)
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-12, atol=1e-14)


def test_the_loop_of_the_readme() -> None:
    u_xx = qb.vmap(qb.grad(qb.grad(lambda x, w: qb.sin(x * w))), in_axes=(0, None))

    def loss(w: Any, x: Any) -> Any:
        return qb.mean((u_xx(x, w) + math.pi**2 * qb.sin(math.pi * x)) ** 2)

    x, w = qb.linspace(0.05, 0.95, 8), qb.array(2.5)
    opt = qb.optim.Adam(learning_rate=0.05)
    state = opt.init(w)
    step = qb.jit(qb.value_and_grad(loss))
    for _ in range(300):
        value, g = step(w, x)
        w, state = opt.update(w, g, state)
    assert f"w = {w.item():.6f}, loss = {value.item():.1e}" == "w = 3.141593, loss = 1.5e-13"


# --- trees ------------------------------------------------------------------------------------------------------------


class Layer(NamedTuple):
    w: Any
    b: Any


def test_trees_keep_their_structure_and_every_leaf_its_own_moments() -> None:
    params = {"z": [Layer(qb.ones((2, 3)), qb.zeros(3)), None], "a": (qb.array(2.0),)}
    grads = qb.tree.map(lambda p: p + 1.0, params)
    opt = Adam(0.1)
    new, state = opt.update(params, grads, opt.init(params))
    assert list(new) == ["z", "a"] and type(new["z"][0]) is Layer and new["z"][1] is None
    assert qb.tree.flatten(state.first)[1] == qb.tree.flatten(params)[1]
    leaves = zip(*(qb.tree.flatten(t)[0] for t in (params, grads, new)), strict=True)
    for p, g, n in leaves:
        np.testing.assert_allclose(n.numpy(), adam_in_numpy(p.numpy(), [g.numpy()], 0.1), rtol=1e-13)


@pytest.mark.parametrize("opt", [Adam(0.1), SGD(0.1)])
def test_bool_leaves_stay_as_they_are(opt: Any) -> None:
    params = {"w": qb.array([1.0, 2.0]), "mask": qb.array([True, False])}
    grads = qb.grad(lambda p: qb.sum(qb.where(p["mask"], p["w"], 0.0) ** 2))(params)
    assert grads["mask"] is None
    new, state = opt.update(params, grads, opt.init(params))
    new, state = opt.update(new, grads, state)
    assert new["mask"].dtype is qb.bool_ and new["mask"].tolist() == [True, False]
    assert new["w"].tolist()[1] == 2.0 and new["w"].tolist()[0] < 1.0


def test_a_gradient_of_none_freezes_a_parameter() -> None:
    params, opt = [qb.array(1.0), qb.array(1.0)], Adam(0.5)
    new, state = opt.update(params, [None, qb.array(1.0)], opt.init(params))
    assert new[0].item() == 1.0 and state.first[0].item() == 0.0
    assert new[1].item() == pytest.approx(0.5) and state.first[1].item() == pytest.approx(0.1)


def test_both_dtypes_in_one_tree() -> None:
    params = (qb.ones(2), qb.ones(3, dtype=qb.float32))
    opt = Adam(0.1)
    new, _ = opt.update(params, params, opt.init(params))
    assert (new[0].dtype, new[1].dtype) == (qb.float64, qb.float32)


@pytest.mark.parametrize("opt", [Adam(0.1), SGD(0.1)])
def test_nothing_of_the_caller_changes(opt: Any) -> None:
    array = np.array([1.0, 2.0])
    params, grads = {"w": array}, {"w": np.array([3.0, 4.0])}
    state = opt.init(params)
    before = copy.deepcopy(qb.tree.map(lambda x: np.array(x), state))
    new, _ = opt.update(params, grads, state)
    assert params["w"] is array and array.tolist() == [1.0, 2.0] and grads["w"].tolist() == [3.0, 4.0]
    qb.tree.map(lambda x, y: np.testing.assert_array_equal(np.array(x), y), state, before)
    assert isinstance(new["w"], qb.Tensor)


def test_numbers_become_float64_arrays() -> None:
    opt = Adam(0.1)
    new, state = opt.update(2.0, 1.0, opt.init(2.0))
    assert new.item() == pytest.approx(1.9) and new.dtype is qb.float64
    new, state = opt.update(new, 1.0, state)
    assert new.item() == pytest.approx(1.8)


# --- compiled once, traced anywhere -----------------------------------------------------------------------------------


def count_traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows by one for every time that Adam's rule is traced."""
    from quabla.optim import adam

    seen: list[Any] = []
    original = adam.corresponding

    def counting(where: str, *args: Any) -> Any:
        seen.append(where)
        return original(where, *args)

    monkeypatch.setattr(adam, "corresponding", counting)
    return seen


def test_the_update_is_traced_once_per_structure_whatever_the_hyperparameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = count_traces(monkeypatch)
    w, g = qb.ones((2, 5, 3)), qb.ones((2, 5, 3))  # a shape that no other test has
    for i in range(20):
        opt = Adam(0.1 + i, b1=0.5 + i / 100)
        state = opt.init(w)
        for _ in range(3):
            new, state = opt.update(w, g, state)
        assert new.shape == w.shape
    assert len(seen) == 1


def test_a_weak_parameter_is_no_second_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = count_traces(monkeypatch)
    opt, w = Adam(0.1), {"weak": qb.sin(1.0)}  # of a number, and so of the dtype of what it meets
    state = opt.init(w)
    for _ in range(4):
        w, state = opt.update(w, w, state)
    assert len(seen) == 1


def test_a_whole_step_can_be_jitted() -> None:
    opt = Adam(0.05)

    def loss(w: Any) -> Any:
        return qb.sum((w - 1.5) ** 2)

    @qb.jit
    def step(w: Any, state: AdamState) -> Any:
        value, g = qb.value_and_grad(loss)(w)
        return *opt.update(w, g, state), value

    w = qb.zeros(3)
    state = qb.jit(opt.init)(w)
    assert type(state) is AdamState
    w2, state2 = w, state
    for _ in range(5):
        w, state, _ = step(w, state)
        w2, state2 = opt.update(w2, qb.grad(loss)(w2), state2)
    np.testing.assert_allclose(w.numpy(), w2.numpy(), rtol=1e-14)
    assert state.count.item() == 5


@pytest.mark.parametrize("kind", [Adam, SGD])
@pytest.mark.parametrize("dtype", [qb.float64, qb.float32])
def test_the_learning_rate_may_be_an_array(kind: Any, dtype: Any) -> None:
    w, g = qb.array([1.0, -2.0]), qb.array([0.5, 0.25])
    opt = kind(qb.array(0.25, dtype=dtype))
    plain = kind(0.25)
    expected, _ = plain.update(w, g, plain.init(w))
    assert opt.update(w, g, opt.init(w))[0].tolist() == expected.tolist()


def test_the_learning_rate_may_be_traced_and_differentiated() -> None:
    w, g = qb.array([1.0, -2.0]), qb.array([0.5, 0.25])

    def after(lr: Any) -> Any:
        opt = SGD(lr)
        return qb.sum(opt.update(w, g, opt.init(w))[0])

    assert qb.grad(after)(0.1).item() == -0.75  # d/dlr of sum(w - lr * g)

    def after_adam(lr: Any) -> Any:
        opt = Adam(lr)
        return qb.sum(opt.update(w, g, opt.init(w))[0])

    # The first step of Adam is lr * sign(g).
    assert qb.grad(after_adam)(0.1).item() == pytest.approx(-2.0, rel=1e-6)


def test_an_optimiser_is_a_tree_of_its_hyperparameters() -> None:
    w, g = qb.array([1.0]), qb.array([1.0])
    f = qb.jit(lambda opt, w, g: opt.update(w, g, opt.init(w))[0])
    assert f(SGD(qb.array(0.5)), w, g).tolist() == [0.5]
    assert f(SGD(qb.array(0.25)), w, g).tolist() == [0.75]


def test_many_models_at_once_by_vmap() -> None:
    opt = Adam(0.1)
    w, g = qb.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), qb.array([[1.0, -2.0], [30.0, 0.0], [1e-3, 5.0]])
    together = qb.vmap(lambda w, g: opt.update(w, g, opt.init(w))[0])(w, g)
    for i in range(3):
        one, _ = opt.update(w[i], g[i], opt.init(w[i]))
        np.testing.assert_allclose(together[i].numpy(), one.numpy(), rtol=1e-14)


def test_hyperparameters_that_nobody_names() -> None:
    assert Adam() == Adam(1e-3, 0.9, 0.999, 1e-8) == Adam(learning_rate=1e-3, b1=0.9, b2=0.999, eps=1e-8)
    assert SGD() == SGD(1e-2) == SGD(learning_rate=1e-2)


def test_optimisers_are_values() -> None:
    assert Adam(0.1) == Adam(0.1) and Adam(0.1) != Adam(0.2) and hash(SGD(1)) == hash(SGD(1.0))
    opt = Adam(np.float64(0.1))
    assert type(opt.learning_rate) is float
    opt.update(1.0, 1.0, opt.init(1.0))
    again = pickle.loads(pickle.dumps(opt))
    assert again == opt and again.update(1.0, 1.0, again.init(1.0))[0].item() == pytest.approx(0.9)
    with pytest.raises(AttributeError):
        opt.b1 = 0.5  # type: ignore[misc]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Adam(-1.0), ["Adam", "learning_rate", "-1.0"]),
        (lambda: Adam(math.nan), ["Adam", "learning_rate", "nan"]),
        (lambda: Adam(math.inf), ["Adam", "learning_rate", "inf"]),
        (lambda: Adam("fast"), ["Adam", "learning_rate", "fast"]),
        (lambda: Adam(True), ["Adam", "learning_rate", "True"]),
        (lambda: Adam(None), ["Adam", "learning_rate", "NoneType"]),
        (lambda: Adam(b1=1.0), ["Adam", "b1", "[0, 1)"]),
        (lambda: Adam(b1=-0.1), ["Adam", "b1"]),
        (lambda: Adam(b2=1.5), ["Adam", "b2", "1.5"]),
        (lambda: Adam(eps=0.0), ["Adam", "eps", "positive"]),
        (lambda: Adam(eps=qb.array(1e-8)), ["Adam", "eps", "Tensor"]),
        (lambda: Adam(qb.array([0.1])), ["Adam", "learning_rate", "float64[1]"]),
        (lambda: Adam(qb.array(True)), ["Adam", "learning_rate", "bool[]"]),
        (lambda: SGD(-0.5), ["SGD", "learning_rate", "-0.5"]),
        (lambda: SGD([0.1]), ["SGD", "learning_rate", "list"]),
    ],
)
def test_hyperparameters_are_checked(make: Any, names: list[str]) -> None:
    with pytest.raises(QuablaError) as caught:
        make()
    assert isinstance(caught.value, ValueError)
    for name in names:
        assert name in str(caught.value)


W = {"a": qb.ones((2, 3)), "b": qb.ones(4)}


@pytest.mark.parametrize("opt", [Adam(), SGD()])
@pytest.mark.parametrize(
    ("grads", "error", "names"),
    [
        ({"a": qb.ones((3, 2)), "b": qb.ones(4)}, ShapeError, ["at a", "float64[3,2]", "float64[2,3]"]),
        (
            {"a": qb.ones((2, 3), dtype=qb.float32), "b": qb.ones(4)},
            DtypeError,
            ["at a", "float32", "astype"],
        ),
        ({"a": qb.ones((2, 3)), "b": qb.array([True] * 4)}, DtypeError, ["at b", "bool[4]"]),
        ({"a": qb.ones((2, 3))}, QuablaError, ["grads"]),
        ([qb.ones((2, 3)), qb.ones(4)], QuablaError, ["grads"]),
        ({"a": qb.ones((2, 3)), "b": [qb.ones(4)]}, QuablaError, ["at b", "list"]),
        ({"a": qb.ones((2, 3)), "b": "no"}, DtypeError, ["grads", "str"]),
    ],
)
def test_gradients_are_checked(opt: Any, grads: Any, error: Any, names: list[str]) -> None:
    with pytest.raises(error) as caught:
        opt.update(W, grads, opt.init(W))
    for name in names:
        assert name in str(caught.value)


def test_the_state_is_checked() -> None:
    with pytest.raises(DtypeError, match=r"AdamState.*update\(params, grads, state\)"):
        Adam().update(W, Adam().init(W), W)  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match=r"SGD\.update: state"):
        SGD().update(W, W, Adam().init(W))  # type: ignore[arg-type]
    with pytest.raises(QuablaError, match="state"):
        Adam().update(W, W, Adam().init({"a": qb.ones((2, 3))}))
    narrow = {"a": qb.ones((2, 3), dtype=qb.float32), "b": qb.ones(4)}
    with pytest.raises(
        DtypeError, match=r"state at a is float32\[2,3\].*float64\[2,3\].*astype\(.*float64\)"
    ):
        Adam().update(W, W, AdamState(qb.array(0.0), narrow, narrow))
    truths = qb.tree.map(lambda x: x > 0.0, narrow)
    with pytest.raises(DtypeError, match=r"state at a is bool\[2,3\].*float32\[2,3\].*astype\(.*float64\)"):
        Adam().update(narrow, narrow, AdamState(qb.array(0.0), truths, truths))
    with pytest.raises(ShapeError, match=r"state at b is float64\[5\]"):
        Adam().update(W, W, Adam().init({"a": qb.ones((2, 3)), "b": qb.ones(5)}))


@pytest.mark.parametrize("opt", [Adam(), SGD()])
def test_parameters_are_checked(opt: Any) -> None:
    with pytest.raises(DtypeError, match="params at layers/0 is a str"):
        opt.init({"layers": ["relu", qb.ones(2)]})
