"""What users call to differentiate: `grad`, `value_and_grad`, `jvp`, `vjp`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, final, overload

from quabla import tree
from quabla.arrays.convert import asarray
from quabla.arrays.tensor import Tensor
from quabla.arrays.tracer import Frame, TraceTensor
from quabla.errors import DtypeError, QuablaError, ShapeError
from quabla.ir.program import Program
from quabla.ops.structure import cast, reshape_to, zeros_like
from quabla.shapes import ShapeDtype, aval_of
from quabla.transforms.auxiliary import Parts, a_result, as_pair, take_parts
from quabla.transforms.direction import forwards
from quabla.transforms.forward import jvp_values
from quabla.transforms.naming import Described, argument_names
from quabla.transforms.reverse import vjp_values
from quabla.transforms.staging import Result, a_kind, as_outputs, name_of, stage, take_apart, target
from quabla.transforms.transform import LATER, Transform, normalize_argnums, require_function

__all__ = ["grad", "jvp", "value_and_grad", "vjp"]


def select_arguments(where: str, fun: Any, argnums: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`argnums` counted from the front, for a call with `count` positional arguments.

    Raises:
        ShapeError: a position that the call does not have, or one named twice.
    """
    for i in argnums:
        if not -count <= i < count:
            raise ShapeError(
                f"{where}: argnums {i} is out of range: {name_of(fun)} was called with {count} positional "
                f"argument{'s' * (count != 1)}; arguments to differentiate must be positional"
            )
    picked = tuple(i % count for i in argnums)
    if len(set(picked)) != len(picked):
        raise ShapeError(f"{where}: argnums {argnums} names an argument twice")
    return picked


_WITH_AUX = ("grad", "value_and_grad", "hessian")  # what of all that needs a scalar takes has_aux


def _scalar_loss(where: str, fun: Any, value: Any) -> Any:
    arrays, result = as_outputs(fun, value)
    if (
        len(arrays) != 1
        or result.leaves != [0]
        or result.treedef.num_leaves != 1
        or type(value) in (tuple, list, dict)
    ):
        raise DtypeError(
            f"{where}: {name_of(fun)} must return one scalar, it returned {a_result(value)}"
            + ("; pass has_aux=True if it returns (value, aux)" if where in _WITH_AUX else "")
        )
    aval = arrays[0].aval
    if aval.shape != ():
        raise ShapeError(
            f"{where}: {name_of(fun)} must return a scalar (shape ()), it returned {aval}; reduce it with quabla.sum "
            "or quabla.mean" + (", or use quabla.jacobian" if "grad" in where else "")
        )
    if aval.dtype.kind != "f":
        raise DtypeError(f"{where}: {name_of(fun)} must return a floating scalar, it returned {aval}")
    return arrays[0]


@final
class Gradient(Transform):
    """The gradient of a scalar function, with its value or without."""

    def __init__(
        self, fun: Callable[..., Any], argnums: Any, has_aux: bool, with_value: bool, where: str = ""
    ) -> None:
        self.kind = "value_and_grad" if with_value else "grad"
        self.where = where or self.kind  # what the user called
        require_function(self.where, fun)
        self.argnums, self.single = normalize_argnums(self.where, argnums)
        self.has_aux = bool(has_aux)
        self.with_value = with_value
        super().__init__(
            fun,
            (self.argnums, self.single, self.has_aux),
            frozenset(self.argnums),
            self.has_aux,
        )

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the value and the backward pass in the innermost trace."""
        picked = select_arguments(self.where, self.fun, self.argnums, len(args))
        call = take_apart(self.fun, args, kwargs, self.as_arrays | set(picked), within=True)

        def split(value: Any) -> tuple[list[Any], Any]:
            aux = None
            if self.has_aux:
                value, aux = as_pair(self.where, self.fun, value)
            loss = _scalar_loss(self.where, self.fun, value)
            if not self.has_aux:
                return [loss], None
            arrays, result = as_outputs(self.fun, aux, passing=True)
            return [loss, *arrays], result

        staged = stage(self.fun, call, split=split)
        frame = target(call.arrays, staged.captures)
        at = call.positions()
        wanted = [p in picked for p in at] + [False] * len(staged.captures)
        primals = [frame.lift(x) for x in (*call.arrays, *staged.captures)]
        outs, cts = _slopes(frame, staged.program, primals, wanted)
        loss = outs[0]
        grads = _by_argument(frame, args, call, at, picked, cts)
        gradient = grads[0] if self.single else tuple(grads)
        if not self.has_aux:
            return (loss, gradient) if self.with_value else gradient
        aux = staged.result.put_together(outs[1:])
        return ((loss, aux), gradient) if self.with_value else (gradient, aux)


def _slopes(
    frame: Frame, program: Program, primals: Sequence[TraceTensor], wanted: Sequence[bool]
) -> tuple[list[TraceTensor], list[TraceTensor | None]]:
    """The outputs, and the derivatives of the first of them, a scalar, by the wanted inputs."""
    at = forwards(program, program.in_avals, wanted)
    if at is None:
        outs, backward = vjp_values(frame, program, primals, wanted)
        seeds = [frame.full(1.0, aval_of((), outs[0].dtype)), *[None] * (len(outs) - 1)]
        return outs, backward(seeds)
    tangents: list[TraceTensor | None] = [None] * len(primals)
    aval = primals[at].aval
    tangents[at] = frame.full(1.0, aval_of(aval.shape, aval.dtype))
    outs, t_outs = jvp_values(frame, program, primals, tangents)
    slopes: list[TraceTensor | None] = [None] * len(primals)
    if t_outs[0] is not None:
        slopes[at] = reshape_to(cast(t_outs[0], aval.dtype), aval.shape)
    return outs, slopes


def _by_argument(
    frame: Frame, args: Sequence[Any], call: Any, at: Sequence[Any], picked: Sequence[int], cts: Sequence[Any]
) -> list[Any]:
    """The cotangents as trees like the picked arguments; None for leaves that are not floating."""
    grads = []
    for position in picked:
        leaves = []
        for p, aval, ct in zip(at, call.avals, cts, strict=False):
            if p == position:
                leaves.append(None if aval.dtype.kind != "f" else _filled(frame, ct, aval))
        treedef = call.treedef.children[0].children[position]
        grads.append(tree.unflatten(treedef, leaves))
    return grads


def _filled(frame: Frame, ct: TraceTensor | None, aval: ShapeDtype) -> TraceTensor:
    return frame.full(0.0, aval_of(aval.shape, aval.dtype)) if ct is None else ct


@overload
def grad(
    fun: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]: ...


@overload
def grad(
    *, argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


def grad(fun: Any = LATER, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Any:
    """The gradient of a scalar function.

    Args:
        fun: a function of arrays and pytrees of arrays that returns a floating scalar of shape `()`; with `has_aux`, a
            pair (scalar, anything). Left out in a decorator with options, as `@quabla.grad(argnums=1)` is one.
        argnums: which positional arguments to differentiate; negative ones count from the end.
        has_aux: whether `fun` returns (value, aux).

    Returns:
        A function of the same arguments that returns the gradient: a tree like the argument, or a tuple of them where
        `argnums` is a tuple. Bool leaves have None. With `has_aux`, a pair (gradient, aux). It can be transformed
        again. Called on concrete arrays it is compiled for the CPU and kept, as `jit` does: values that `fun` closes
        over, or attributes that a method reads, are constants of the compiled program. Python numbers in a
        differentiated position become float64 arrays; elsewhere they are static.

    Raises:
        ShapeError: the result is not of shape `()`, or `argnums` does not fit the call.
        DtypeError: `fun` is no function, `argnums` no int or tuple of ints, an argument no array or number, or the
            result not one floating array.
        UnsupportedOperationError: (when called) something on the way has no derivative in reverse mode.

    Example:
        >>> import quabla as qb
        >>> qb.grad(lambda x: x**3)(2.0).item()
        12.0
        >>> qb.grad(qb.grad(qb.sin))(0.0).item()
        -0.0
    """
    if fun is LATER:
        return partial(grad, argnums=argnums, has_aux=has_aux)
    return Gradient(fun, argnums, has_aux, with_value=False)


@overload
def value_and_grad(
    fun: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]: ...


@overload
def value_and_grad(
    *, argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


def value_and_grad(fun: Any = LATER, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Any:
    """The value and the gradient of a scalar function. Arguments, shapes and dtypes as for `grad`.

    Returns:
        A function that returns (value, gradient), or ((value, aux), gradient) with `has_aux`.

    Raises:
        ShapeError: the result is not of shape `()`, or `argnums` does not fit the call.
        DtypeError: `fun` is no function, `argnums` no int or tuple of ints, an argument no array or number, or the
            result not one floating array.
        UnsupportedOperationError: (when called) something on the way has no derivative in reverse mode.

    Example:
        >>> import quabla as qb
        >>> value, (gx, gy) = qb.value_and_grad(lambda x, y: x * y, argnums=(0, 1))(2.0, 5.0)
        >>> value.item(), gx.item(), gy.item()
        (10.0, 5.0, 2.0)
    """
    if fun is LATER:
        return partial(value_and_grad, argnums=argnums, has_aux=has_aux)
    return Gradient(fun, argnums, has_aux, with_value=True)


# --- products with tangents and cotangents ----------------------------------------------------------------------------


def _float(where: str, number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        raise DtypeError(f"{where} is an integer beyond the range of float64") from None


def _like(where: str, what: str, given: Any, wanted: ShapeDtype, path: str) -> Any:
    """`given` as a tangent or cotangent of type `wanted`; None for a value that is not floating."""
    if wanted.dtype.kind != "f":
        return None
    if given is None:
        raise DtypeError(
            f"{where}: the {what}{path} is None; pass zeros, as quabla.zeros({wanted.shape}, {str(wanted.dtype)!r})"
        )
    if type(given) in (int, float):
        given = asarray(_float(f"{where}: the {what}{path}", given), wanted.dtype)
    elif (
        type(given) is not Tensor
        and type(given) is not TraceTensor
        and not isinstance(given, (tuple, list, dict))
    ):
        given = asarray(given)
    aval = getattr(given, "aval", None)
    if aval is None or aval.shape != wanted.shape or aval.dtype is not wanted.dtype:
        like = "its primal" if what == "tangent" else "the value"
        told = (
            f"{where}: the {what}{path} must be an array {aval_of(wanted.shape, wanted.dtype)}, like {like}; "
            f"got {a_kind(given)}"
        )
        if aval is not None and aval.shape == wanted.shape:
            raise DtypeError(f"{told}; convert it with .astype(quabla.{wanted.dtype})")
        raise ShapeError(told)
    return given


def _match(where: str, what: str, given: Any, treedef: Any, avals: Sequence[ShapeDtype]) -> list[Any]:
    """Take apart a tree of tangents or cotangents that must mirror `treedef`."""
    leaves, found = tree.flatten(given)
    if found != treedef:
        like = "the primals" if what == "tangent" else "the value"
        leaves = tree.flatten_up_to(given, treedef, f"{where}: the {what}s must have the structure of {like}")
    paths = tree.paths(treedef)
    out = []
    for leaf, aval, path in zip(leaves, avals, paths, strict=True):
        out.append(_like(where, what, leaf, aval, f" at {'/'.join(path)}" if path else ""))
    return out


@final
class Forward(Transform, Described):
    """The function of (primals, tangents) that `jvp` calls."""

    kind = "jvp"

    def __init__(self, fun: Callable[..., Any], count: int, has_aux: bool) -> None:
        super().__init__(fun, (count, has_aux), has_aux=has_aux)
        # Called with all primals and then all tangents as positional arguments, numbers made arrays in every place.
        self.as_arrays = frozenset(range(2 * count))
        self.static_argnums, self.static_argnames = (), ()
        self.count = count
        self.has_aux = has_aux

    def argument_names(self, places: Iterable[int]) -> list[str]:
        """The names of the primals, and `tangents/0`, `tangents/1`, …"""
        primals, _ = argument_names(self.root, range(self.count))
        names = [*primals, *(f"tangents/{i}" for i in range(self.count))]
        return [names[place] for place in places]

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the value and its tangent in the innermost trace."""
        n = self.count
        call = take_apart(self.fun, args[:n], {}, self.as_arrays)
        tangents = _match("jvp", "tangent", args[n:], call.treedef.children[0], call.avals)
        staged = stage(self.fun, call, split=lambda v: take_parts("jvp", self.fun, v, self.has_aux))
        parts: Parts = staged.result
        frame = target([*call.arrays, *[t for t in tangents if t is not None]], staged.captures)
        primals = [frame.lift(x) for x in (*call.arrays, *staged.captures)]
        moving = [None if t is None else frame.lift(t) for t in tangents] + [None] * len(staged.captures)
        outs, t_outs = jvp_values(frame, parts.derived(staged.program), primals, moving)
        filled = [zeros_like(o) if t is None else t for o, t in zip(outs, t_outs, strict=True)]
        found = parts.value.put_together(outs), parts.value.put_together(filled)
        return (*found, parts.evaluated(staged.program, primals)) if self.has_aux else found


@overload
def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[False] = False
) -> tuple[Any, Any]: ...


@overload
def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: Literal[True]
) -> tuple[Any, Any, Any]: ...


@overload
def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool
) -> tuple[Any, ...]: ...


def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
    """The value of a function and its derivative along a direction (Jacobian-vector product, forward mode).

    Args:
        fun: a function of arrays and pytrees of arrays; with `has_aux` it returns (value, aux).
        primals: its positional arguments, a tuple or list.
        tangents: the direction: a tree of the same structure. Leaves have the shape and dtype of their primal; a Python
            number stands for a scalar, and adopts its dtype.
        has_aux: whether `fun` returns (value, aux).

    Returns:
        (value, tangent), two trees of the same structure, or (value, tangent, aux): aux as `fun` returned it.

    Raises:
        ShapeError: a tangent of another shape than its primal, or not one tangent per primal.
        DtypeError: a tangent of another dtype than its primal, `primals` or `tangents` are no tuple or list, or with
            `has_aux` the result is no pair.
        UnsupportedOperationError: something on the way has no derivative in forward mode.
        TreeError: a tangent of another structure than its primal.

    Example:
        >>> import quabla as qb
        >>> value, slope = qb.jvp(qb.sin, (0.0,), (2.0,))
        >>> value.item(), slope.item()
        (0.0, 2.0)
        >>> value, slope, aux = qb.jvp(lambda x: (x * x, {"twice": 2.0 * x}), (3.0,), (1.0,), has_aux=True)
        >>> value.item(), slope.item(), aux["twice"].item()
        (9.0, 6.0, 6.0)
    """
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise DtypeError(
            f"jvp: primals and tangents must be tuples with one entry per argument of {name_of(fun)}, as in "
            "jvp(f, (x,), (t,))"
        )
    if len(primals) != len(tangents):
        raise ShapeError(
            f"jvp: {len(primals)} primals but {len(tangents)} tangents; give {name_of(fun)} one per argument"
        )
    adopted = _adopt("jvp: a tangent", tuple(tangents), tuple(primals))
    return Forward(fun, len(primals), bool(has_aux))(*primals, *adopted)  # type: ignore[no-any-return]


@final
class Pullback(Transform, Described):
    """The function of (primals, cotangent) that the second result of `vjp` calls."""

    kind = "vjp"

    def __init__(self, fun: Callable[..., Any], count: int, has_aux: bool) -> None:
        super().__init__(fun, (count, has_aux))
        self.as_arrays = frozenset(range(count))
        self.static_argnums, self.static_argnames = (), ()
        self.count = count
        self.has_aux = has_aux

    def argument_names(self, places: Iterable[int]) -> list[str]:
        """The names of the primals, and `cotangent`."""
        names = [*argument_names(self.root, range(self.count))[0], "cotangent"]
        return [names[place] for place in places]

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the backward pass in the innermost trace."""
        call = take_apart(self.fun, args[: self.count], {}, self.as_arrays)

        def split(value: Any) -> tuple[list[Any], Result]:
            return as_outputs(self.fun, as_pair(self.kind, self.fun, value)[0] if self.has_aux else value)

        staged = stage(self.fun, call, split=split)
        cotangents = _match(
            "vjp",
            "cotangent",
            args[self.count],
            staged.result.treedef,
            [v.aval for v in staged.program.outputs],
        )
        frame = target([*call.arrays, *[c for c in cotangents if c is not None]], staged.captures)
        primals = [frame.lift(x) for x in (*call.arrays, *staged.captures)]
        wanted = [True] * len(call.arrays) + [False] * len(staged.captures)
        _, backward = vjp_values(frame, staged.program, primals, wanted)
        cts = backward([None if c is None else frame.lift(c) for c in cotangents])
        positions = range(self.count)
        return tuple(_by_argument(frame, args, call, call.positions(), positions, cts))


@final
class Plain(Transform):
    """The function itself, compiled when called on concrete arrays."""

    kind = "call"

    def __init__(self, fun: Callable[..., Any], count: int, has_aux: bool) -> None:
        super().__init__(fun, (count, has_aux), frozenset(range(count)), has_aux)
        self.__name__ = f"vjp({name_of(fun)})"  # what the user called
        self.has_aux = has_aux

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the function in the innermost trace."""
        value = self.fun(*args, **kwargs)
        if not self.has_aux:
            return value
        value, aux = as_pair("vjp", self.fun, value)
        arrays, result = as_outputs(self.fun, value)
        return result.put_together(arrays), aux


def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """The value of a function, and its pullback (vector-Jacobian product, reverse mode).

    Args:
        fun: a function of arrays and pytrees of arrays; with `has_aux` it returns (value, aux).
        primals: its positional arguments. Python numbers become float64 arrays.
        has_aux: whether `fun` returns (value, aux).

    Returns:
        (value, pullback), or (value, pullback, aux). `pullback(cotangent)` takes a tree like the value and returns a
        tuple with a tree of cotangents per argument; bool leaves have None. Each call of it evaluates `fun` again.

    Raises:
        ShapeError: (by the pullback) a cotangent of another shape than the value.
        DtypeError: an argument or the result is no array, or with `has_aux` the result is no pair; (by the pullback) a
            cotangent of another dtype than the value.
        UnsupportedOperationError: (by the pullback) something on the way has no derivative in reverse mode.
        TreeError: (by the pullback) a cotangent of another structure than the value.

    Example:
        >>> import quabla as qb
        >>> value, pullback = qb.vjp(lambda x, y: x * y, 2.0, 5.0)
        >>> value.item(), [g.item() for g in pullback(1.0)]
        (10.0, [5.0, 2.0])
    """
    count = len(primals)
    backward = Pullback(fun, count, bool(has_aux))
    value = Plain(fun, count, bool(has_aux))(*primals)

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        return backward(*primals, _adopt("vjp: the cotangent", cotangent, value[0] if has_aux else value))  # type: ignore[no-any-return]

    if has_aux:
        out, aux = value
        return out, pullback, aux
    return value, pullback


def _adopt(where: str, given: Any, values: Any) -> Any:
    """Python numbers among tangents or cotangents as arrays of the dtype of their value: they are not static."""
    leaves, treedef = tree.flatten(given)
    likes, like_def = tree.flatten(values)
    if treedef != like_def:
        return given  # reported where the structures are compared
    adopted = []
    for i, (g, v) in enumerate(zip(leaves, likes, strict=True)):
        if type(g) in (int, float, bool):
            path = "/".join(tree.paths(treedef)[i])
            adopted.append(_adopted(f"{where}{' at ' + path if path else ''}", g, v))
        else:
            adopted.append(g)
    return tree.unflatten(treedef, adopted)


def _adopted(where: str, number: Any, value: Any) -> Any:
    try:
        aval = asarray(value).aval
    except QuablaError:
        return number  # what is wrong with the value is said where the arguments are taken apart
    if aval.shape != () and aval.dtype.kind == "f":
        raise ShapeError(
            f"{where} is the number {number!r}, which stands for a scalar only; an array {aval} is wanted: write "
            f"quabla.full({aval.shape}, {number!r}, {str(aval.dtype)!r})"
        )
    return asarray(_float(where, number), aval.dtype)
