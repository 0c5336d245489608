"""What people try who come from NumPy, PyTorch or JAX. Each message says what to write here.

`test_messages.py` has the mistakes of those who know Quabla.
"""

from __future__ import annotations

import inspect
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quabla as qb
from tests.core.test_messages import message, tells

F = Callable[..., Any]
X = qb.array([1.0, 2.0, 3.0])


def total(x: Any) -> Any:
    return qb.sum(x)


MISTAKES: dict[str, tuple[F, type[Exception], tuple[str, ...]]] = {
    # PyTorch
    "backward": (lambda: qb.sum(X).backward(), AttributeError, ("Tensor", "backward", "quabla.grad(f)(x)")),
    "detach": (lambda: X.detach(), AttributeError, ("detach", "x.stop_gradient()")),
    "cuda": (lambda: X.cuda(), AttributeError, ("cuda", "quabla.jit(f, device=...)")),
    "to": (lambda: X.to("cuda"), AttributeError, ("'to'", "quabla.jit(f, device=...)")),
    "unsqueeze": (lambda: X.unsqueeze(0), AttributeError, ("quabla.expand_dims(x, axis)",)),
    "view": (lambda: X.view(3, 1), AttributeError, ("x.reshape",)),
    "cat": (lambda: qb.cat([X, X]), AttributeError, ("'cat'", "quabla.concat")),
    "tensor": (lambda: qb.tensor([1.0]), AttributeError, ("quabla.array",)),
    "no_grad": (lambda: qb.no_grad(), AttributeError, ("nothing is recorded", "quabla.stop_gradient")),
    "nn": (lambda: qb.nn.Linear(2, 3), AttributeError, ("no layers", "dict")),
    "dim": (lambda: X.sum(dim=0), TypeError, ("Tensor.sum()", "dim is called axis here", "axis=None")),
    "keepdim": (lambda: X.sum(0, keepdim=True), TypeError, ("Tensor.sum()", "keepdim is called keepdims here")),
    "step": (lambda: qb.optim.Adam(0.1).step(), AttributeError, ("opt.update(params, grads, state)", "Trainer")),
    "zero_grad": (lambda: qb.optim.SGD().zero_grad(), AttributeError, ("opt.update(params, grads, state)",)),
    "lr": (lambda: qb.optim.Adam(lr=0.1), TypeError, ("Adam", "lr is called learning_rate here")),
    "betas": (lambda: qb.optim.Adam(betas=(0.9, 0.99)), TypeError, ("betas is called b1 here", "b2=0.999")),
    "trainer_lr": (
        lambda: qb.optim.Trainer(total, X, qb.optim.SGD(), batch=(0,)), TypeError,
        ("batch is called batch_argnums here",),
    ),
    # NumPy
    "concatenate": (lambda: qb.concatenate([X, X]), AttributeError, ("quabla.concat",)),
    "subtract": (lambda: qb.subtract(X, X), AttributeError, ("quabla.sub",)),
    "random": (lambda: qb.random.normal(3), AttributeError, ("numpy.random.default_rng",)),
    "float16": (lambda: qb.float16, AttributeError, ("quabla.float64, float32",)),
    "dtype_of_16_bits": (lambda: qb.zeros(3, dtype="float16"), qb.DtypeError, ("zeros", "float16", "float32")),
    "copy": (lambda: X.copy(), AttributeError, ("immutable", "nothing to copy")),
    "flatten": (lambda: X.flatten(), AttributeError, ("x.ravel()",)),
    "fill": (lambda: X.fill(0.0), AttributeError, ("immutable", "quabla.where")),
    "add_at": (lambda: np.add.at(X, 0, 1.0), TypeError, ("numpy.add.at", "immutable", "numpy.array(x)")),
    "two_axes": (lambda: qb.ones((2, 3)).mean(0, 1), qb.DtypeError, ("mean", "keepdims", "axis=(0, 1)")),
    "axis_in_quotes": (lambda: qb.sum(X, axis="0"), qb.DtypeError, ("sum", "an axis is an integer", "'0'")),
    "max_of_two": (lambda: qb.max(X, X), qb.DtypeError, ("max", "float64[3]", "quabla.maximum(x, y)")),
    "order_of_norm": (lambda: qb.norm(X, 2), qb.ShapeError, ("norm", "axis 2", "ord=")),
    "bounds_of_clip": (
        lambda: X.clip(a_min=0.0, a_max=1.0), TypeError,
        ("Tensor.clip()", "a_min is called min here", "a_max is called max here"),
    ),
    "modulus": (lambda: pow(X, 2, 3), qb.DtypeError, ("pow", "third argument", "quabla.mod")),
    "length_of_a_scalar": (lambda: len(qb.array(1.0)), TypeError, ("len()", "rank 0", "float64[]", "x.size")),
    "elements_of_a_scalar": (lambda: list(qb.array(1.0)), TypeError, ("iteration", "rank 0", "float64[]")),
    # JAX
    "lax": (lambda: qb.lax.scan, AttributeError, ("quabla.scan", "quabla.cond")),
    "at": (lambda: X.at[0].set(1.0), AttributeError, ("immutable", "quabla.where")),
    "tree_map": (lambda: qb.tree_map(total, X), AttributeError, ("quabla.tree.map",)),
    "jacfwd": (lambda: qb.jacfwd(total), AttributeError, ("quabla.jacobian",)),
    "body_of_a_loop": (
        lambda: qb.fori_loop(0, 3, lambda c: c, X), qb.DtypeError,
        ("fori_loop", "body_fun(i, carry, *operands)", "takes 1 positional argument but 2 were given"),
    ),
    "step_of_a_scan": (
        lambda: qb.scan(lambda c: (c, c), 0.0, X), qb.DtypeError, ("scan", "f(carry, x, *operands)", "takes 1"),
    ),
    "predicate": (
        lambda: qb.while_loop(lambda: True, lambda c: c, X, max_steps=2), qb.DtypeError,
        ("while_loop", "cond_fun(carry, *operands)", "takes 0"),
    ),
    # anybody
    "branch": (
        lambda: qb.cond(True, lambda: 1.0, lambda: 2.0, X), qb.DtypeError, ("cond", "true_fun(*operands)", "takes 0"),
    ),
    "traced_branch": (
        lambda: qb.jit(lambda x: qb.cond(x[0] > 0.0, total, lambda: 2.0, x))(X), qb.DtypeError,
        ("cond", "false_fun(*operands)", "takes 0"),
    ),
    "step_without_return": (
        lambda: qb.fori_loop(0, 3, lambda i, c: None, X), qb.ShapeError, ("one array", "None", "return statement"),
    ),
    "scan_without_return": (
        lambda: qb.scan(lambda c, x: None, 0.0, X), qb.DtypeError, ("pair (carry, result)", "return statement"),
    ),
    "function_after_the_tree": (lambda: qb.tree.map(X, total), qb.QuablaError, ("map", "first argument", "function")),
    "dtype_by_name": (lambda: qb.dtype("float64"), TypeError, ("dtype", "'float64'", "quabla.float64")),
    "function_called": (lambda: qb.jit(qb.sin(X)), qb.DtypeError, ("jit", "float64[3]", "quabla.jit(f)(x)")),
    "arguments_swapped": (lambda: qb.vmap(X, total), qb.DtypeError, ("vmap", "first argument must be a function")),
    "grad_swapped": (lambda: qb.grad(X, total), qb.DtypeError, ("grad", "first argument must be a function")),
    "returning_text": (lambda: qb.jit(lambda x: "yes")(X), qb.DtypeError, ("returned a str", "arrays, numbers")),
    "returning_nothing": (lambda: qb.grad(lambda x: None)(X), qb.DtypeError, ("None", "return statement")),
    "assertion": (lambda: qb.jit(_asserting)(X), qb.TracerError, ("assert", "traced value", "assert qb.all")),
    "number_of_elements": (
        lambda: qb.jit(lambda n: qb.arange(n))(qb.array(3.0)), qb.TracerError,
        ("arange", "traced value", "static_argnums"),
    ),
    "key_that_is_traced": (
        lambda: qb.jit(lambda x: {x[0]: 1})(X), qb.QuablaError, ("<lambda>", "keys of a dict", "float64[]", "str"),
    ),
}  # fmt: skip


def _asserting(x: Any) -> Any:
    assert qb.all(x > 0.0), "positive"
    return x


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    mistake, kind, words = MISTAKES[name]
    tells(message(kind, mistake), *words)
    assert X.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("loop", ["fori_loop", "while_loop", "cond_fun", "scan"])
def test_steps_of_other_arguments_within_a_trace(loop: str) -> None:
    loops: dict[str, tuple[F, str]] = {
        "fori_loop": (lambda x: qb.fori_loop(0, 3, lambda c: c, x), "body_fun(i, carry, *operands)"),
        "while_loop": (lambda x: qb.while_loop(lambda c: c[0] < 1.0, lambda: 0.0, x), "body_fun(carry, *operands)"),
        "cond_fun": (lambda x: qb.while_loop(lambda: True, lambda c: c, x), "cond_fun(carry, *operands)"),
        "scan": (lambda x: qb.scan(lambda c: c, 0.0, x), "f(carry, x, *operands)"),
    }  # fmt: skip
    f, form = loops[loop]
    tells(message(qb.DtypeError, lambda: qb.jit(f)(X)), form, "positional argument")


def test_an_error_of_the_users_step_passes_unchanged() -> None:
    def step(i: Any, c: Any) -> Any:
        return total(c, 1)  # type: ignore[call-arg]

    text = message(TypeError, lambda: qb.fori_loop(0, 3, step, X))
    assert text == "total() takes 1 positional argument but 2 were given"


# --- names of arguments -----------------------------------------------------------------------------------------------

SHADOWING = ("abs", "all", "any", "divmod", "max", "min", "round", "sum")
METHODS = {f"Tensor.{n}": m for n, m in vars(qb.Tensor).items() if inspect.isfunction(m) and n[0] != "_"}
FOREIGN = (("axis", "dim"), ("keepdims", "keepdim"), ("keepdims", "keep_dims"))


@pytest.mark.parametrize(("here", "foreign"), FOREIGN)
def test_foreign_names_of_arguments(here: str, foreign: str) -> None:
    having = {name: m for name, m in METHODS.items() if here in inspect.signature(m).parameters}
    assert len(having) > 5
    for name, method in having.items():
        text = message(TypeError, lambda m=method: m(X, **{foreign: 0}))
        tells(text, f"{name}(", f"{foreign} is called {here} here")


def test_any_other_name_is_told_what_the_arguments_are() -> None:
    tells(
        message(TypeError, lambda: X.sum(beta=1.0)),
        "'beta'",
        "Call it as Tensor.sum(axis=None, keepdims=False)",
    )
    tells(message(TypeError, lambda: X.sum(out=1.0)), "'out'", "arrays are immutable")
    text = message(TypeError, lambda: qb.optim.SGD(0.1, momentum=0.9))
    tells(text, "momentum", "Call it as SGD(learning_rate=0.01)")


def test_errors_within_a_function_are_not_taken_for_errors_of_the_call() -> None:
    def f(x: Any) -> Any:
        return total(x, dim=0)  # type: ignore[call-arg]

    text = message(TypeError, lambda: qb.vjp(f, X))
    assert text == "total() got an unexpected keyword argument 'dim'"


def test_functions_are_those_of_their_modules() -> None:
    for name in (*qb.__all__, *SHADOWING):
        function = getattr(qb, name)
        if inspect.isfunction(function):
            assert pickle.loads(pickle.dumps(function)) is function, name
            assert not hasattr(function, "__wrapped__"), name


def test_methods_have_the_names_by_which_they_are_called() -> None:
    for kind in (qb.Tensor, qb.TensorView, qb.TraceTensor):
        for name, member in vars(kind).items():
            if inspect.isfunction(member):
                assert member.__name__ == name, (kind, name)
                assert "<locals>" not in member.__qualname__, (kind, name)
    tells(message(TypeError, lambda: X.sum(0, True, 1)), "Tensor.sum() takes from 1 to 3")


def test_hints_are_of_names_that_are_there() -> None:
    from quabla import elsewhere

    for kind in (qb.Tensor, qb.TensorView, qb.TraceTensor):
        for name in elsewhere.ADVICE["array"]:
            assert not hasattr(kind, name)
    assert not set(dir(X)) & set(elsewhere.ADVICE["array"]) and {"sum", "shape", "T"} < set(dir(X))
    assert not {"step", "zero_grad"} & set(dir(qb.optim.Adam())) and "update" in dir(qb.optim.Adam())
    assert not [name for name in elsewhere.ADVICE["quabla"] if hasattr(qb, name)]
    for hint in itertools.chain(*(table.values() for table in elsewhere.ADVICE.values())):
        for part in hint.replace(",", " ").replace(";", " ").split():
            if part.startswith("quabla."):
                found: Any = qb
                for step in part.removeprefix("quabla.").partition("(")[0].split("."):
                    found = getattr(found, step)


def test_what_the_namespace_offers() -> None:
    offered = {name for name in dir(qb) if not name.startswith("_")}
    assert offered == {*qb.__all__, *SHADOWING, "errors", "testing"}
    assert not {"Any", "annotations", "key_order"} & offered
    for name in offered:
        assert getattr(qb, name) is not None


# --- arguments of transforms and loops --------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", ["jit", "grad", "value_and_grad", "vmap", "jacobian", "hessian"])
@pytest.mark.parametrize(
    "given", [X, 1.0, np.ones(3), (X, X), {"a": X}], ids=["array", "number", "NumPy", "pair", "dict"]
)
def test_arguments_of_the_function_given_to_the_transform(transform: str, given: Any) -> None:
    text = message(qb.DtypeError, lambda: getattr(qb, transform)(total, given))
    tells(text, f"{transform}: ", f"quabla.{transform}(f)(x)")
    assert "Tensor(" not in text


@pytest.mark.parametrize(
    "given", [X, qb.array(2.0), 2.0, np.ones(2), {"w": X}], ids=["array", "scalar", "number", "NumPy", "dict"]
)
def test_operands_that_are_no_tuple(given: Any) -> None:
    loops: dict[str, F] = {
        "fori_loop": lambda: qb.fori_loop(0, 3, lambda i, c, w: c * w, X, operands=given),
        "scan": lambda: qb.scan(lambda c, x, w: (c, x), X, X, operands=given),
        "while_loop": lambda: qb.while_loop(lambda c, w: c[0] < 9.0, lambda c, w: c * w, X, operands=given),
    }
    for name, loop in loops.items():
        for run in (loop, lambda loop=loop: qb.jit(lambda x: loop())(X)):
            tells(message(qb.DtypeError, run), f"{name}: operands must be a tuple", "operands=(w,)")
    assert qb.fori_loop(0, 3, lambda i, c, w: c * w, X, operands=[2.0]).tolist() == [8.0, 16.0, 24.0]


def test_options_that_are_on_or_off() -> None:
    tells(
        message(qb.DtypeError, lambda: qb.fori_loop(0, 3, lambda i, c: c, X, unroll=2)),
        "fori_loop: unroll",
        "2",
    )
    tells(message(qb.DtypeError, lambda: qb.scan(lambda c, x: (c, x), 0.0, X, unroll=2)), "scan: unroll")
    tells(
        message(qb.DtypeError, lambda: qb.scan(lambda c, x: (c, x), 0.0, X, reverse="yes")),
        "scan: reverse",
        "yes",
    )


def test_positions_named_twice() -> None:
    tells(message(qb.DtypeError, lambda: qb.jit(total, static_argnums=(0, 0))), "jit", "(0, 0)", "twice")
    tells(message(qb.DtypeError, lambda: qb.jit(total, static_argnums=(0, -1))), "jit", "(0, -1)", "twice")
    tells(message(qb.ShapeError, lambda: qb.grad(total, argnums=(0, 0))(X)), "grad", "twice")


def test_structures_are_shown_with_the_types_that_the_user_knows() -> None:
    first = lambda v: v["a"]
    cases: dict[str, F] = {
        "jvp": lambda: qb.jvp(first, ({"a": X},), ({"b": X},)),
        "vjp": lambda: qb.vjp(lambda x: {"a": x}, X)[1]({"b": X}),
        "Adam.update": lambda: qb.optim.Adam().update({"a": X}, {"b": X}, qb.optim.Adam().init({"a": X})),
        "scan": lambda: qb.scan(lambda c, x: {"b": x}, X, X),
    }
    for name, case in cases.items():
        text = message(qb.QuablaError, case)
        tells(text, name, "{'b': float64[")
        assert "TraceTensor" not in text and "*" not in text.replace("*operands", ""), text


def test_types_that_came_from_numbers_are_shown_like_others() -> None:
    def step(i: Any, c: Any) -> Any:
        return c > 0.0

    for f in (
        lambda: qb.fori_loop(0, 3, step, 1.0),
        lambda: qb.jit(lambda x: qb.fori_loop(0, 3, step, 1.0) + x)(X),
    ):
        text = message(qb.DtypeError, f)
        tells(text, "float64[]", "bool[]")
        assert "~" not in text
    weak = qb.argmax(X)
    assert repr(weak.aval) == "~float64[]"
    f = qb.jit(lambda x: x, max_traces=1)
    f({"a": weak})
    text = message(qb.RetraceLimitError, lambda: f({"a": weak.astype(qb.float64)}))
    tells(
        text,
        "{'a': float64[] from Python numbers}",
        "{'a': float64[]}",
        "x/a sometimes came from Python numbers alone",
    )
    assert "~" not in text and "~" not in str(f.explain())


def test_a_function_of_one_result_has_one_out_axis() -> None:
    text = message(qb.QuablaError, lambda: qb.vmap(lambda a: a, out_axes=(0, 0))(X))
    tells(text, "vmap", "<lambda> returns one array", "one int or None", "(0, 0)")


def test_numbers_as_tangents_stand_for_scalars() -> None:
    tells(
        message(qb.ShapeError, lambda: qb.jvp(qb.sin, (X,), (1.0,))),
        "jvp", "number 1.0", "scalar only", "float64[3]", "quabla.full((3,), 1.0, 'float64')",
    )  # fmt: skip
    tells(message(qb.ShapeError, lambda: qb.vjp(qb.sin, X)[1](1.0)), "vjp", "number 1.0", "float64[3]")


def test_einsum_takes_its_operands_in_one_list() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    for given in ([qb.array(a), qb.array(b)], (qb.array(a), qb.array(b))):
        assert qb.einsum("ij,jk->ik", given).tolist() == np.einsum("ij,jk->ik", a, b).tolist()
    tells(message(qb.DtypeError, lambda: qb.einsum("i->", [1.0, 2.0])), "einsum", "a list is not an operand")


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Any) -> None:
    path = str(tmp_path / "absent" / "f.qb")
    with pytest.raises(FileNotFoundError) as caught:
        qb.jit(qb.sin).lower(X).save(path)
    assert caught.value.filename == path and ".part" not in str(caught.value)


def test_a_scan_that_grows_is_not_sent_to_scan() -> None:
    text = message(qb.ShapeError, lambda: qb.scan(lambda c, x: (qb.concat([c, c]), x), X, X))
    tells(text, "scan", "second result")
    assert "quabla.scan" not in text


# --- more signatures than max_traces ----------------------------------------------------------------------------------

CHANGES: dict[str, tuple[F, Any, tuple[str, ...]]] = {
    "order of keys": (
        lambda d: d["a"], ({k: X for k in p} for p in itertools.permutations("abcd")), ("order", "sorted(d.items())"),
    ),
    "structure": (lambda t: t[0], ([X] * n for n in range(1, 20)), ("several structures",)),
    "shape": (lambda x: x, (qb.ones(n) for n in range(1, 20)), ("shapes (1,), (2,)", "pad it")),
    "dtype": (
        lambda x: x, itertools.chain((qb.ones(n) for n in range(1, 9)), [qb.ones(3, "float32")]),
        ("float64 and as float32", "astype"),
    ),
    "number": (lambda s: s, (0.5 * n for n in range(20)), ("9 different Python numbers", "quabla.array(s)")),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_advice_for_too_many_traces_fits_the_differences(what: str) -> None:
    fun, arguments, words = CHANGES[what]
    compiled = qb.jit(fun)
    text = message(qb.RetraceLimitError, lambda: [compiled(a) for a in arguments])
    tells(text, "max_traces", *words)
    advice = text.partition("Each new signature is a trace of its own:\n")[2]
    assert ("pad" in advice) == (what in ("shape", "dtype")), advice
    assert ("Python numbers" in advice) == (what == "number"), advice


def test_advice_for_static_arguments() -> None:
    compiled = qb.jit(lambda x, mode: x, static_argnums=1)
    text = message(qb.RetraceLimitError, lambda: [compiled(X, f"mode {n}") for n in range(20)])
    tells(text, "static arguments had several values", "'mode 8'")
    assert "pad" not in text


# --- numbers in maps --------------------------------------------------------------------------------------------------


def test_numbers_that_a_map_leaves_alone() -> None:
    scaled = lambda x, s: x * s
    assert qb.vmap(scaled, in_axes=(0, None))(X, 2.0).tolist() == [2.0, 4.0, 6.0]
    assert qb.vmap(scaled)(X, s=2.0).tolist() == [2.0, 4.0, 6.0]  # in_axes does not speak of keywords
    power = qb.jit(lambda x, n: x**n, static_argnums=1)
    assert qb.vmap(power)(X, 2).tolist() == [1.0, 4.0, 9.0]  # jit was told that it is static
    for f in (qb.vmap(scaled), qb.jit(qb.vmap(scaled)), qb.grad(lambda x, s: qb.sum(qb.vmap(scaled)(x, s)))):
        tells(message(qb.DtypeError, lambda f=f: f(X, 2.0)), "argument s", "2.0", "in_axes=(0, None)")
    tells(message(qb.DtypeError, lambda: qb.vmap(scaled)(X, True)), "True", "in_axes=(0, None)")
