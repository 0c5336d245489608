"""What each op becomes in StableHLO: a function of the writer, the node and the names of its operands.

It returns the name of the result, or a list of names where the op has several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quabla.dtypes import bool_, int64
from quabla.ir.program import Node, Program
from quabla.ir.stablehlo import Writer, tensor_type
from quabla.shapes import ShapeDtype, aval_of

__all__ = ["RULES"]

Rule = Callable[[Writer, Node, Sequence[str]], Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for the ops of these names."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _out(node: Node) -> ShapeDtype:
    return node.outputs[0].aval


def _ins(node: Node) -> list[ShapeDtype]:
    return [v.aval for v in node.inputs]


def _mask(aval: ShapeDtype) -> ShapeDtype:
    return aval_of(aval.shape, bool_)


# --- elementwise ------------------------------------------------------------------------------------------------------

_SAME = {
    "add": "add", "sub": "subtract", "neg": "negate", "mul": "multiply", "div": "divide", "exp": "exponential",
    "log": "log", "sin": "sine", "cos": "cosine", "tan": "tan", "tanh": "tanh", "sqrt": "sqrt", "sigmoid": "logistic",
    "sign": "sign", "abs": "abs", "maximum": "maximum", "minimum": "minimum", "power": "power", "floor": "floor",
    "ceil": "ceil", "round": "round_nearest_even", "fmod": "remainder", "arctan2": "atan2",
    "expm1": "exponential_minus_one", "log1p": "log_plus_one", "cbrt": "cbrt", "logical_and": "and",
    "logical_or": "or", "logical_not": "not",
}  # fmt: skip
_CHLO = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "sinh": "sinh", "cosh": "cosh", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh", "erf": "erf", "erfc": "erfc",
}  # fmt: skip
_COMPARE = {
    "equal": "EQ", "not_equal": "NE", "less": "LT", "less_equal": "LE", "greater": "GT", "greater_equal": "GE",
}  # fmt: skip


@rule(*_SAME)
def _same(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return w.same(_SAME[node.op.name], _out(node), *xs)


@rule(*_CHLO)
def _chlo(w: Writer, node: Node, xs: Sequence[str]) -> str:
    t = tensor_type(_out(node))
    return w.value(f"chlo.{_CHLO[node.op.name]} {xs[0]} : {t} -> {t}")


@rule(*_COMPARE)
def _compare(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return w.compare(_COMPARE[node.op.name], xs[0], xs[1], _ins(node)[0], _out(node))


@rule("stop_gradient")
def _identity(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return xs[0]


@rule("isnan")
def _isnan(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return w.compare("NE", xs[0], xs[0], _ins(node)[0], _out(node))


@rule("isinf")
def _isinf(w: Writer, node: Node, xs: Sequence[str]) -> str:
    aval = _ins(node)[0]
    return w.compare("EQ", w.same("abs", aval, xs[0]), w.full(float("inf"), aval), aval, _out(node))


@rule("isfinite")
def _isfinite(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return w.apply("is_finite", xs, _ins(node), _out(node))


@rule("where")
def _where(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return w.select(xs[0], xs[1], xs[2], _mask(_out(node)), _out(node))


@rule("astype")
def _astype(w: Writer, node: Node, xs: Sequence[str]) -> str:
    source, out = _ins(node)[0], _out(node)
    if source.dtype is out.dtype:
        return xs[0]
    if out.dtype is bool_:
        return w.compare("NE", xs[0], w.full(0, source), source, out)
    return w.apply("convert", xs, [source], out)


@rule("relu")
def _relu(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return w.same("maximum", _out(node), xs[0], w.full(0.0, _out(node)))


@rule("softplus")
def _softplus(w: Writer, node: Node, xs: Sequence[str]) -> str:
    aval = _out(node)
    high = w.same("maximum", aval, xs[0], w.full(0.0, aval))
    decay = w.same("exponential", aval, w.same("negate", aval, w.same("abs", aval, xs[0])))
    return w.same("add", aval, high, w.same("log_plus_one", aval, decay))


@rule("trunc")
def _trunc(w: Writer, node: Node, xs: Sequence[str]) -> str:
    aval = _out(node)
    below = w.compare("LT", xs[0], w.full(0.0, aval), aval, _mask(aval))
    return w.select(below, w.same("ceil", aval, xs[0]), w.same("floor", aval, xs[0]), _mask(aval), aval)


@rule("integer_power")
def _integer_power(w: Writer, node: Node, xs: Sequence[str]) -> str:
    aval = _out(node)
    return w.same("power", aval, xs[0], w.full(node.params["exponent"], aval))


@rule("exp2")
def _exp2(w: Writer, node: Node, xs: Sequence[str]) -> str:
    aval = _out(node)
    return w.same("power", aval, w.full(2.0, aval), xs[0])


@rule("log2", "log10")
def _log(w: Writer, node: Node, xs: Sequence[str]) -> str:
    aval = _out(node)
    base = 0.6931471805599453 if node.op.name == "log2" else 2.302585092994046
    return w.same("divide", aval, w.same("log", aval, xs[0]), w.full(base, aval))


# --- sources and shapes -----------------------------------------------------------------------------------------------


@rule("full")
def _full(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return w.full(node.params["value"], _out(node))


@rule("constant")
def _constant(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return w.array(node.params["value"].numpy(), _out(node))


@rule("broadcast")
def _broadcast(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return w.apply("broadcast_in_dim", xs, _ins(node), _out(node), f", dims = {list(node.params['dims'])}")


@rule("reshape")
def _reshape(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return w.apply("reshape", xs, _ins(node), _out(node))


@rule("transpose")
def _transpose(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return w.apply("transpose", xs, _ins(node), _out(node), f", dims = {list(node.params['perm'])}")


@rule("slice")
def _slice(w: Writer, node: Node, xs: Sequence[str]) -> str:
    (aval,), out = _ins(node), _out(node)
    start, step, n = list(node.params["start"]), list(node.params["step"]), aval.shape
    x = xs[0]
    back = [a for a, c in enumerate(step) if c < 0]
    if back:  # steps go forwards in StableHLO
        x = w.value(f"stablehlo.reverse {x}, dims = {back} : {tensor_type(aval)}")
        for a in back:
            start[a], step[a] = n[a] - 1 - start[a], -step[a]
    picked = ", ".join(
        f"{a}:{a + (m - 1) * c + 1}:{c}" for a, m, c in zip(start, out.shape, step, strict=True)
    )
    return w.apply("slice", [x], [aval], out, f" [{picked}]")


@rule("pad")
def _pad(w: Writer, node: Node, xs: Sequence[str]) -> str:
    (aval,), p = _ins(node), node.params
    scalar = aval_of((), aval.dtype)
    edges = f", low = {list(p['low'])}, high = {list(p['high'])}, interior = {list(p['inner'])}"
    return w.apply("pad", [xs[0], w.full(0, scalar)], [aval, scalar], _out(node), edges)


@rule("concat")
def _concat(w: Writer, node: Node, xs: Sequence[str]) -> str:
    return w.apply("concatenate", xs, _ins(node), _out(node), f", dim = {node.params['axis']}")


# --- reductions, products, factors ------------------------------------------------------------------------------------

_REDUCE: dict[str, tuple[str, Any]] = {
    "reduce_sum": ("add", 0.0), "reduce_max": ("maximum", float("-inf")), "reduce_min": ("minimum", float("inf")),
    "reduce_any": ("or", False), "reduce_all": ("and", True),
}  # fmt: skip
_LEAST = -(2**63)


@rule(*_REDUCE)
def _reduce(w: Writer, node: Node, xs: Sequence[str]) -> str:
    (aval,), (op, start) = _ins(node), _REDUCE[node.op.name]
    if aval.dtype is int64:
        start = {"add": 0, "maximum": _LEAST, "minimum": -1 - _LEAST}[op]
    scalar = aval_of((), aval.dtype)
    initial = w.full(start, scalar)
    types = f"({tensor_type(aval)}, {tensor_type(scalar)}) -> {tensor_type(_out(node))}"
    axes = sorted(node.params["axes"])
    return w.value(
        f"stablehlo.reduce({xs[0]} init: {initial}) applies stablehlo.{op} across dimensions = {axes} : {types}"
    )


@rule("dot_general")
def _dot_general(w: Writer, node: Node, xs: Sequence[str]) -> str:
    (a, b), (c, d) = node.params["batch"], node.params["contract"]
    batching = f", batching_dims = {list(a)} x {list(b)}" if a else ""
    axes = f"{batching}, contracting_dims = {list(c)} x {list(d)}, precision = [HIGHEST, HIGHEST]"
    return w.apply("dot_general", xs, _ins(node), _out(node), axes)


@rule("triangular_solve")
def _triangular(w: Writer, node: Node, xs: Sequence[str]) -> str:
    p = node.params
    flags = {"left_side": True, "lower": p["lower"], "unit_diagonal": p["unit"]}
    shown = ", ".join(f"{k} = {str(v).lower()}" for k, v in flags.items())
    way = "TRANSPOSE" if p["transposed"] else "NO_TRANSPOSE"
    a, b = map(tensor_type, _ins(node))
    return w.value(
        f'"stablehlo.triangular_solve"({xs[0]}, {xs[1]}) <{{{shown}, transpose_a = #stablehlo<transpose {way}>}}> : '
        f"({a}, {b}) -> {tensor_type(_out(node))}"
    )


@rule("cholesky")
def _cholesky(w: Writer, node: Node, xs: Sequence[str]) -> str:
    aval = _out(node)
    swap = [*range(aval.ndim - 2), aval.ndim - 1, aval.ndim - 2]
    other = w.apply("transpose", xs, [aval], aval, f", dims = {swap}")
    half = w.same("multiply", aval, w.same("add", aval, xs[0], other), w.full(0.5, aval))
    factor = w.value(f"stablehlo.cholesky {half}, lower = true : {tensor_type(aval)}")
    index = aval_of(aval.shape, int64)
    row, column = (w.value(f"stablehlo.iota dim = {aval.ndim - i} : {tensor_type(index)}") for i in (2, 1))
    below = w.compare("GE", row, column, index, _mask(aval))
    # What lies above the diagonal is not defined there; and where a factor does not exist, all of it is NaN here.
    lower = w.select(below, factor, w.full(0.0, aval), _mask(aval), aval)
    nan = w.compare("NE", lower, lower, aval, _mask(aval))
    one = aval_of(aval.shape[:-2], bool_)
    types = f"({tensor_type(_mask(aval))}, tensor<i1>) -> {tensor_type(one)}"
    over = f"init: {w.full(False, aval_of((), bool_))}"
    axes = [aval.ndim - 2, aval.ndim - 1]
    any_nan = w.value(
        f"stablehlo.reduce({nan} {over}) applies stablehlo.or across dimensions = {axes} : {types}"
    )
    everywhere = w.apply(
        "broadcast_in_dim", [any_nan], [one], _mask(aval), f", dims = {list(range(one.ndim))}"
    )
    return w.select(everywhere, w.full(float("nan"), aval), lower, _mask(aval), aval)


@rule("argsort")
def _argsort(w: Writer, node: Node, xs: Sequence[str]) -> str:
    (aval,), out = _ins(node), _out(node)
    index = w.value(f"stablehlo.iota dim = {aval.ndim - 1} : {tensor_type(out)}")
    scalar, position, flag = aval_of((), aval.dtype), aval_of((), int64), aval_of((), bool_)
    args = [w.fresh() for _ in range(4)]
    types = f"({tensor_type(aval)}, {tensor_type(out)})"
    (name,) = w.values(
        f'"stablehlo.sort"({xs[0]}, {index}) <{{dimension = {aval.ndim - 1} : i64, is_stable = true}}> ({{', 1
    )
    w.lines[-1] = w.lines[-1].replace(f"{name} =", f"{name}:2 =", 1)

    def before() -> list[str]:
        x, y = args[:2]
        less = w.compare("LT", x, y, scalar, flag)
        if scalar.dtype.kind != "f":
            return [less]
        is_nan, other = w.compare("NE", y, y, scalar, flag), w.compare("EQ", x, x, scalar, flag)
        return [w.same("or", flag, less, w.same("and", flag, is_nan, other))]  # NaN is last

    with w.inner():
        w.block(args, [scalar, scalar, position, position], before, [flag])
    w.line(f"}}) : {types} -> {types}")
    return f"{name}#1"


def _positions(w: Writer, i: str, aval: ShapeDtype, extent: int) -> str:
    """Positions of which negative ones count from the end, and those out of range are moved to the nearest element."""
    low = w.compare("LT", i, w.full(0, aval), aval, _mask(aval))
    i = w.select(low, w.same("add", aval, i, w.full(extent, aval)), i, _mask(aval), aval)
    return w.same("minimum", aval, w.same("maximum", aval, i, w.full(0, aval)), w.full(extent - 1, aval))


@rule("gather")
def _gather(w: Writer, node: Node, xs: Sequence[str]) -> str:
    (x, i), out = _ins(node), _out(node)
    axis, batch = node.params["axis"], node.params["batch"]
    at = _positions(w, xs[1], i, x.shape[axis])
    offset = [*range(batch, axis), *range(axis + i.ndim - batch, out.ndim)]
    numbers = [f"offset_dims = {offset}", f"collapsed_slice_dims = [{axis}]"]
    if batch:
        first = list(range(batch))
        numbers += [f"operand_batching_dims = {first}", f"start_indices_batching_dims = {first}"]
    numbers += [f"start_index_map = [{axis}]", f"index_vector_dim = {i.ndim}"]
    sizes = ", ".join("1" if a < batch or a == axis else str(n) for a, n in enumerate(x.shape))
    return w.value(
        f'"stablehlo.gather"({xs[0]}, {at}) <{{dimension_numbers = #stablehlo.gather<{", ".join(numbers)}>, '
        f"indices_are_sorted = false, slice_sizes = array<i64: {sizes}>}}> : "
        f"({tensor_type(x)}, {tensor_type(i)}) -> {tensor_type(out)}"
    )


@rule("scatter_add")
def _scatter_add(w: Writer, node: Node, xs: Sequence[str]) -> str:
    (u, i), out = _ins(node), _out(node)
    axis, batch = node.params["axis"], node.params["batch"]
    at = _positions(w, xs[1], i, node.params["extent"])
    zeros = w.full(0, out)
    window = [*range(batch, axis), *range(axis + i.ndim - batch, u.ndim)]
    numbers = [f"update_window_dims = {window}", f"inserted_window_dims = [{axis}]"]
    if batch:
        first = list(range(batch))
        numbers += [f"input_batching_dims = {first}", f"scatter_indices_batching_dims = {first}"]
    numbers += [f"scatter_dims_to_operand_dims = [{axis}]", f"index_vector_dim = {i.ndim}"]
    scalar = aval_of((), u.dtype)
    args = [w.fresh(), w.fresh()]
    name = w.value(
        f'"stablehlo.scatter"({zeros}, {at}, {xs[0]}) <{{indices_are_sorted = false, '
        f"scatter_dimension_numbers = #stablehlo.scatter<{', '.join(numbers)}>, unique_indices = false}}> ({{"
    )
    with w.inner():
        w.block(args, [scalar, scalar], lambda: [w.same("add", scalar, *args)], [scalar])
    w.line(f"}}) : ({tensor_type(out)}, {tensor_type(i)}, {tensor_type(u)}) -> {tensor_type(out)}")
    return name


# --- regions ----------------------------------------------------------------------------------------------------------


@rule("checkpoint", "custom_jvp", "custom_vjp")
def _inlined(w: Writer, node: Node, xs: Sequence[str]) -> list[str]:
    return w.program(node.params["fun"], xs)


@rule("cond")
def _cond(w: Writer, node: Node, xs: Sequence[str]) -> list[str]:
    outs = [v.aval for v in node.outputs]
    names = w.values(f'"stablehlo.if"({xs[0]}) ({{', len(outs))
    for key, end in (("true", "}, {"), ("false", None)):
        region: Program = node.params[key]
        with w.inner():
            w.block([], [], lambda region=region: w.program(region, xs[1:]), outs)  # type: ignore[misc]
        if end:
            w.line(end)
    w.line(f"}}) : ({tensor_type(_ins(node)[0])}) -> ({', '.join(map(tensor_type, outs))})")
    return names


_POSITION = aval_of((), int64)
_FLAG = aval_of((), bool_)


def _loop(
    w: Writer,
    state: Sequence[tuple[str, ShapeDtype]],
    running: Callable[[Sequence[str]], str],
    step: Callable[[Sequence[str]], Sequence[str]],
) -> list[str]:
    """A `stablehlo.while` over `state`; whatever its regions read is part of the state."""
    avals = [a for _, a in state]
    types = f"({', '.join(map(tensor_type, avals))})"
    names = w.values(f'"stablehlo.while"({", ".join(n for n, _ in state)}) ({{', len(state))
    args = [w.fresh() for _ in state]
    with w.inner():
        w.block(args, avals, lambda: [running(args)], [_FLAG])
    w.line("}, {")
    args_of_step = [w.fresh() for _ in state]
    with w.inner():
        w.block(args_of_step, avals, lambda: step(args_of_step), avals)
    w.line(f"}}) : {types} -> {types}")
    return names


def _row(w: Writer, x: str, aval: ShapeDtype, i: str) -> str:
    """`x[i]`."""
    zeros = [w.full(0, _POSITION)] * (aval.ndim - 1)
    one = aval_of((1, *aval.shape[1:]), aval.dtype)
    ins = [aval, *[_POSITION] * aval.ndim]
    cut = w.apply("dynamic_slice", [x, i, *zeros], ins, one, f", sizes = {list(one.shape)}")
    return w.apply("reshape", [cut], [one], aval_of(aval.shape[1:], aval.dtype))


def _put(w: Writer, stack: str, aval: ShapeDtype, y: str, i: str) -> str:
    """`stack` with row `i` replaced."""
    one = aval_of((1, *aval.shape[1:]), aval.dtype)
    row = w.apply("reshape", [y], [aval_of(aval.shape[1:], aval.dtype)], one)
    zeros = [w.full(0, _POSITION)] * (aval.ndim - 1)
    ins = [aval, one, *[_POSITION] * aval.ndim]
    return w.apply("dynamic_update_slice", [stack, row, i, *zeros], ins, aval)


@rule("scan")
def _scan(w: Writer, node: Node, xs: Sequence[str]) -> list[str]:
    p = node.params
    body: Program = p["body"]
    ins, names = _ins(node)[p["counted"] :], list(xs[p["counted"] :])
    count = xs[0] if p["counted"] else w.full(p["length"], _POSITION)
    nc, nk = p["consts"], p["carry"]
    stacks = [v.aval for v in node.outputs[nk:]]
    state = [(w.full(0, _POSITION), _POSITION), (count, _POSITION), *zip(names, ins, strict=True)]
    state += [(w.full(0, a), a) for a in stacks]

    def step(args: Sequence[str]) -> list[str]:
        k, n, given, ys = args[0], args[1], args[2 : 2 + len(ins)], args[2 + len(ins) :]
        one = w.full(1, _POSITION)
        after = w.same("add", _POSITION, k, one)
        i = w.same("subtract", _POSITION, n, after) if p["reverse"] else k
        rows = [_row(w, x, a, i) for x, a in zip(given[nc + nk :], ins[nc + nk :], strict=True)]
        outs = w.program(body, [i, *given[: nc + nk], *rows])
        new = [_put(w, s, a, y, i) for s, a, y in zip(ys, stacks, outs[nk:], strict=True)]
        return [after, n, *given[:nc], *outs[:nk], *given[nc + nk :], *new]

    outs = _loop(w, state, lambda args: w.compare("LT", args[0], args[1], _POSITION, _FLAG), step)
    return [*outs[2 + nc : 2 + nc + nk], *outs[2 + len(ins) :]]


@rule("while")
def _while(w: Writer, node: Node, xs: Sequence[str]) -> list[str]:
    p = node.params
    body, cond, length = p["body"], p["cond"], p["length"]
    nc, nk = p["consts"], p["carry"]
    ins = _ins(node)
    stacks = [v.aval for v in node.outputs[nk:-1]]
    state = [
        (w.full(0, _POSITION), _POSITION),
        *zip(xs, ins, strict=True),
        *((w.full(0, a), a) for a in stacks),
    ]

    def running(args: Sequence[str]) -> str:
        (more,) = w.program(cond, args[1 : 1 + nc + nk])
        if length is None:
            return more
        return w.same(
            "and", _FLAG, more, w.compare("LT", args[0], w.full(length, _POSITION), _POSITION, _FLAG)
        )

    def step(args: Sequence[str]) -> list[str]:
        i, given, ys = args[0], args[1 : 1 + nc + nk], args[1 + nc + nk :]
        outs = w.program(body, [i, *given])
        new = [_put(w, s, a, y, i) for s, a, y in zip(ys, stacks, outs[nk:], strict=True)]
        return [w.same("add", _POSITION, i, w.full(1, _POSITION)), *given[:nc], *outs[:nk], *new]

    outs = _loop(w, state, running, step)
    return [*outs[1 + nc : 1 + nc + nk], *outs[1 + nc + nk :], outs[0]]
