"""`chunk_size` of `vmap`, `jacobian`, `hessian`: the same results in the memory of a chunk.

On the CPU the bits are the same (`tests/cpu/test_chunk_bits.py` has long sums). On the reference backend products are
NumPy's, whose last bits depend on how many lanes there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb

A = qb.array
S = qb.ShapeDtype
SIZE = 10
CHUNKS = [1, 2, 3, 5, 7, 9, 10, 11, 1000]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def same(
    make: Callable[..., Any], other: Callable[..., Any], *args: Any, to_the_bit: bool = True, **kwargs: Any
) -> None:
    """Two functions agree: to the bit by definition, to rounding on the CPU."""
    mine, wanted = (qb.jit(f, device="reference")(*args, **kwargs) for f in (make, other))
    _same(mine, wanted, 0.0 if to_the_bit else 1e-14)
    _same(make(*args, **kwargs), other(*args, **kwargs), 1e-13)


def _same(got: Any, wanted: Any, rtol: float) -> None:
    a, treedef = qb.tree.flatten(got)
    b, other = qb.tree.flatten(wanted)
    assert treedef == other
    for x, y in zip(a, b, strict=True):
        assert x.aval is y.aval
        if rtol == 0.0:
            assert x.numpy().tobytes() == y.numpy().tobytes()
        elif x.dtype is qb.bool_:
            np.testing.assert_array_equal(x.numpy(), y.numpy())
        else:
            bound = rtol if x.dtype is qb.float64 else 1e-5
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=bound, atol=bound)


W = A(rng().normal(size=(4, 4)))

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x: qb.sin(x) * qb.exp(-x * x) + qb.sum(x),
    "product": lambda x: qb.tanh(W @ x) @ W,
    "tree": lambda x: {
        "sum": qb.sum(x),
        "constant": A([1.0, 2.0]),
        "both": (x > 0.0, qb.astype(x, "float32")),
    },
    "gradient": qb.grad(lambda x: qb.sum(qb.tanh(W @ x) ** 2)),
    "second": lambda x: qb.jvp(qb.grad(lambda y: qb.sum(qb.sin(y) ** 3)), (x,), (W[0],))[1],
    "cond": lambda x: qb.cond(x[0] > 0.0, lambda y: qb.sqrt(y[0]) * y, lambda y: -y, x),
    "loop": lambda x: qb.fori_loop(0, 4, lambda i, c: qb.sin(c) + x * i, x),
    "while": lambda x: qb.while_loop(
        lambda c: qb.sum(c * c) < 50.0, lambda c: c * 1.5 + 0.1, x, max_steps=60
    ),
    "solve": lambda x: qb.solve(W + 5.0 * qb.eye(4), x),
    "indexing": lambda x: x[A([3.0, 0.0])] * qb.sum(W[1]),
    "invariant": lambda x: qb.sum(qb.sin(W)) * qb.ones((3,)),
}


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_in_chunks_has_the_same_bits(name: str, chunk: int) -> None:
    x = A(rng().normal(size=(SIZE, 4)))
    f = FUNCTIONS[name]
    to_the_bit = chunk > 1 or name not in ("product", "gradient", "solve")
    same(qb.vmap(f, chunk_size=chunk), qb.vmap(f), x, to_the_bit=to_the_bit)


WITHOUT_PRODUCTS: dict[str, Any] = {
    "pointwise": lambda x: qb.exp(qb.sin(x)) * x**1.7,
    "sums": lambda x: qb.sum(qb.sin(x)) + qb.mean(x * x) + qb.var(x),
    "extremes": lambda x: qb.max(x) - qb.min(qb.abs(x)),
    "norm": lambda x: qb.norm(x),
    "softmax": lambda x: qb.softmax(x) * qb.logsumexp(x),
    "cumsum": lambda x: qb.cumsum(x) + qb.cumprod(x / 2.0),
    "sort": lambda x: qb.sort(x)[::-1],
    "outer": lambda x: qb.outer(x, x),
    "own system": lambda x: qb.solve(qb.outer(x, x) + 5.0 * qb.eye(21, dtype=x.dtype), x),
    "cholesky": lambda x: qb.cholesky(qb.outer(x, x) + 5.0 * qb.eye(21, dtype=x.dtype)),
    "eigenvalues": lambda x: qb.linalg.eigvalsh(qb.outer(x, qb.sin(x))),
    "gradient": qb.grad(lambda x: qb.sum(qb.softmax(x) * qb.cumsum(x)) + qb.norm(x)),
    "loop": lambda x: qb.fori_loop(0, 3, lambda i, c: qb.tanh(c) + qb.sum(x), x),
}


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", WITHOUT_PRODUCTS)
def test_without_products_every_chunk_has_the_same_bits(name: str, dtype: str, device: str) -> None:
    x = A(rng().uniform(0.2, 1.5, size=(13, 21))).astype(dtype)
    f = WITHOUT_PRODUCTS[name]
    whole = qb.jit(qb.vmap(f), device=device)(x).numpy()
    for chunk in (1, 2, 5, 8, 12, 13, 20):
        part = qb.jit(qb.vmap(f, chunk_size=chunk), device=device)(x).numpy()
        np.testing.assert_array_equal(part, whole, err_msg=f"{chunk}")


def with_products(d: int) -> dict[str, Any]:
    """Functions of a vector of `d` elements with products, systems and derivatives in them."""
    w, v = A(rng().normal(size=(d, d))), A(rng().normal(size=(d, 3)))
    layers = [(A(rng().normal(size=s)), A(rng().normal(size=s[1]))) for s in ((d, 16), (16, 16), (16, 1))]

    def network(x: Any) -> Any:
        h = qb.reshape(x, (1, d))
        for weight, bias in layers:
            h = qb.tanh(h @ weight + bias)
        return qb.sum(h)

    return {
        "from the left": lambda x: w @ x,
        "from the right": lambda x: qb.tanh(x @ v).sum(),
        "own matrix": lambda x: qb.outer(x, qb.sin(x)) @ x,
        "own matrices": lambda x: qb.outer(x, x) @ qb.outer(qb.sin(x), x),
        "einsum": lambda x: qb.einsum("i,ij,j->", x, w, x),
        "dot": lambda x: qb.dot(x, qb.sin(x)),
        "hundreds of terms": lambda x: qb.concat([x] * 40) @ qb.concat([w] * 40, axis=0),
        "system": lambda x: qb.solve(w + 9.0 * qb.eye(d), x),
        "gradient": qb.grad(network),
        "hessian": qb.hessian(network),
        "jacobian": qb.jacobian(lambda x: qb.tanh(w @ x)),
        "loop": lambda x: qb.fori_loop(0, 3, lambda i, c: qb.tanh(w @ c), x),
    }


@pytest.mark.cpu
@pytest.mark.parametrize("d", [4, 9, 21])
@pytest.mark.parametrize("name", with_products(4))
def test_on_the_cpu_products_have_the_same_bits_too(name: str, d: int) -> None:
    f = with_products(d)[name]
    for size in (2, 7, 13):
        x = A(rng().normal(size=(size, d)))
        whole = qb.jit(qb.vmap(lambda x: f(x)))(x).numpy()
        for chunk in (1, 2, 3, 5, 8, 12):
            part = qb.jit(qb.vmap(lambda x: f(x), chunk_size=chunk))(x).numpy()
            np.testing.assert_array_equal(part, whole, err_msg=f"{chunk} of {size}")


@pytest.mark.parametrize("chunk", [1, 3, 5, 10])
def test_axes_unmapped_arguments_and_keywords(chunk: int) -> None:
    x, w, s = A(rng().normal(size=(4, SIZE))), A(rng().normal(size=(4,))), A(rng().normal(size=(SIZE,)))

    def f(p: Any, w: Any, *, s: Any) -> Any:
        return p["x"] * w * s, qb.sum(w), w + s

    axes = {"in_axes": ({"x": -1}, None), "out_axes": (1, None, -1)}
    same(qb.vmap(f, **axes, chunk_size=chunk), qb.vmap(f, **axes), {"x": x}, w, s=s)


@pytest.mark.parametrize("chunk", [2, 3, 7])
def test_chunks_under_transforms(chunk: int) -> None:
    x, w = A(rng().normal(size=(7, 3))), A(rng().normal(size=(3,)))
    one = lambda x, w: qb.sum(qb.sin(x * w))
    whole = qb.vmap(one, in_axes=(0, None))
    parts = qb.vmap(one, in_axes=(0, None), chunk_size=chunk)

    def close(f: Callable[[Any], Any]) -> None:
        for a, b in zip(qb.tree.flatten(f(parts))[0], qb.tree.flatten(f(whole))[0], strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-13, atol=1e-15)

    close(lambda v: qb.grad(lambda w: qb.sum(v(x, w) ** 2))(w))
    close(lambda v: qb.jvp(lambda w: v(x, w), (w,), (w,)))
    close(lambda v: qb.hessian(lambda w: qb.sum(v(x, w) ** 2))(w))
    close(lambda v: qb.vmap(lambda w: v(x, w))(qb.stack([w, 2.0 * w])))
    close(lambda v: qb.jit(v)(x, w))
    close(lambda v: qb.jit(lambda s: v(x, w * s))(A(2.0)))
    nested = qb.vmap(qb.vmap(one, in_axes=(None, 0), chunk_size=chunk), in_axes=(0, None), chunk_size=chunk)
    many = qb.vmap(qb.vmap(one, in_axes=(None, 0)), in_axes=(0, None))
    ws = A(rng().normal(size=(5, 3)))
    same(nested, many, x, ws)


def test_what_does_not_depend_on_the_example_is_computed_once() -> None:
    f = qb.vmap(lambda x, w: x * qb.sum(qb.exp(w)), in_axes=(0, None), chunk_size=2)
    text = qb.jit(f).lower(S((6,)), S((4,))).as_text()
    assert text.count("exp(") == 1
    assert text.index("exp(") < text.index("scan(") < text.index("mul(")


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 6, 100])
def test_jacobians_in_chunks_have_the_same_bits(chunk: int) -> None:
    x = A(rng().normal(size=(5,)))
    wide = lambda x: qb.sin(qb.outer(x, x))  # forward mode
    narrow = lambda x: A(rng().normal(size=(3, 5))) @ qb.exp(x)  # reverse mode
    for f in (wide, narrow, lambda x: (wide(x), {"n": narrow(x), "c": qb.ones((2,))})):
        same(qb.jacobian(f, chunk_size=chunk), qb.jacobian(f), x)
    two = lambda p, s: p["a"] * s + qb.sum(p["b"])
    args = ({"a": x, "b": A(rng().normal(size=(2, 3)))}, A(0.5))
    for argnums in (0, 1, (0, 1)):
        same(qb.jacobian(two, argnums, chunk_size=chunk), qb.jacobian(two, argnums), *args)
    loss = lambda x: qb.sum(qb.tanh(qb.outer(x, x)) ** 2)
    same(qb.hessian(loss, chunk_size=chunk), qb.hessian(loss), x)
    single = lambda x: qb.sin(qb.astype(x, "float32"))
    same(qb.jacobian(single, chunk_size=chunk), qb.jacobian(single), x)


def test_more_basis_vectors_than_are_pushed_at_once() -> None:
    n = 600
    x = A(np.linspace(0.1, 1.0, n))
    got = qb.jacobian(lambda x: qb.sin(x) * qb.sum(x))(x).numpy()
    xs = x.numpy()
    np.testing.assert_allclose(
        got, np.diag(np.cos(xs) * xs.sum()) + np.sin(xs)[:, None], rtol=1e-13, atol=1e-15
    )
    text = qb.jit(qb.jacobian(lambda x: qb.sin(x))).lower(S((n,))).as_text()
    assert text.count("scan(") == 1 and len(text.splitlines()) < 60


@pytest.mark.cpu
def test_memory_is_that_of_a_chunk() -> None:
    width, size = 64, 4096
    one = lambda x: qb.sum(qb.sin(qb.outer(x, x) @ qb.exp(qb.outer(x, x))))

    def workspace(f: Any) -> int:
        compiled = qb.jit(f).lower(S((size, width))).compile()
        return compiled._compiled.executable.entry.workspace_nbytes  # type: ignore[no-any-return]

    whole = size * width * width * 8  # one matrix per example; a backend may need less without chunks, too
    assert workspace(qb.vmap(one, chunk_size=16)) < whole / 50


def test_ten_thousand_seeds_in_bounded_memory() -> None:
    n = 10_000
    f = lambda x: qb.stack([qb.sum(x * x), qb.sum(qb.sin(x))])
    tall = lambda s: s * qb.ones((n,))  # forward mode: one seed
    assert qb.jacobian(tall, chunk_size=8)(A(2.0)).shape == (n,)
    x = A(np.linspace(0.0, 1.0, n))
    np.testing.assert_allclose(
        qb.jacobian(f, chunk_size=1)(x).numpy(), [2 * x.numpy(), np.cos(x.numpy())], rtol=1e-15
    )
    summed = lambda x: qb.jacobian(lambda y: qb.sin(y), chunk_size=50)(x) @ qb.ones((2000,))
    y = np.linspace(0.0, 1.0, 2000)
    np.testing.assert_allclose(qb.jit(summed)(A(y)).numpy(), np.cos(y), rtol=1e-13)


@pytest.mark.parametrize("chunk", [0, -1, 2.0, True, "2"])
def test_wrong_chunks(chunk: Any) -> None:
    for make in (qb.vmap, qb.jacobian, qb.hessian):
        with pytest.raises(qb.DtypeError, match="chunk_size must be a positive int"):
            make(lambda x: x, chunk_size=chunk)


def test_chunks_are_part_of_the_signature() -> None:
    traces = []

    def f(x: Any) -> Any:
        traces.append(1)
        return x * x

    x = qb.ones((6,))
    for _ in range(2):
        qb.vmap(f, chunk_size=2)(x)
        qb.vmap(f, chunk_size=3)(x)
    assert len(traces) == 2


@pytest.mark.cpu
def test_twenty_thousand_seeds_of_forward_mode_in_the_memory_of_a_chunk() -> None:
    n = 20_000
    f = lambda x: (qb.sum(qb.sin(x) * x), x[0] > 0.0)  # a bool result keeps forward mode
    compiled = qb.jit(qb.jacobian(f, chunk_size=8)).lower(S((n,))).compile()
    assert compiled._compiled.executable.entry.workspace_nbytes < 8 * 8 * n * 6
    x = np.linspace(0.0, 1.0, n)
    row, nothing = compiled(A(x))
    assert nothing.shape == (n,) and not nothing.numpy().any()
    np.testing.assert_allclose(row.numpy(), np.cos(x) * x + np.sin(x), rtol=1e-14, atol=1e-15)


@pytest.mark.cpu
def test_a_gradient_through_chunks_holds_the_memory_of_a_chunk() -> None:
    one = lambda x, w: qb.sum(qb.sin(qb.outer(x, x) @ qb.exp(w)))

    def held(chunk: int | None) -> int:
        f = lambda x, w: qb.sum(qb.vmap(one, in_axes=(0, None), chunk_size=chunk)(x, w) ** 2)
        costs = qb.jit(qb.grad(f, argnums=1)).lower(S((2048, 32)), S((32, 32))).costs()
        assert costs is not None
        return costs.held

    whole = 2048 * 32 * 32 * 8  # one matrix per example; a backend may need less without chunks, too
    assert held(16) < whole / 10 and held(16) <= held(None)
