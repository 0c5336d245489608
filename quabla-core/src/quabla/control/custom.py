"""`custom_jvp` and `custom_vjp`: functions with derivatives that their author gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np

from quabla import tree
from quabla.arrays.tensor import Tensor, wrap_as
from quabla.arrays.tracer import TraceTensor, bind, trace
from quabla.control.regions import evaluate, functions, is_traced, split, weak_numbers
from quabla.dtypes import float32, float64
from quabla.errors import DtypeError, ShapeError, TracerError, UnsupportedOperationError
from quabla.ir.op import Op, Refused, Sample, define
from quabla.ir.program import Program
from quabla.ops.apply import operand
from quabla.ops.elementwise import add, cos, exp, mul, sin
from quabla.ops.structure import broadcast, cast, lead, sum_over, zeros_like
from quabla.shapes import ShapeDtype, aval_of
from quabla.transforms.batch import batch_values
from quabla.transforms.staging import (
    Call,
    Staged,
    a_kind,
    as_outputs,
    by_name,
    inline,
    name_of,
    stage,
    take_apart,
)

__all__ = ["custom_jvp", "custom_jvp_op", "custom_vjp", "custom_vjp_op"]


def _whole_batch(program: Program, over: Sequence[bool], size: int, summed: Sequence[bool] = ()) -> Program:
    """`program` over many lanes, all results with the batch axis, or summed over it where `summed` says so."""

    def run(*args: Any) -> list[Any]:
        outs, many = batch_values(args[0].frame, program, args, over, size)
        wide = [lead(o, m, size) for o, m in zip(outs, many, strict=True)]
        return [
            sum_over(o, (0,)) if s else o for o, s in zip(wide, summed or [False] * len(wide), strict=True)
        ]

    avals = [
        aval_of((size, *a.shape), a.dtype) if m else a for a, m in zip(program.in_avals, over, strict=True)
    ]
    return trace(run, avals)[0]


class Rule:
    """A derivative rule, traced when it is first needed: rules call the function that they belong to.

    Args:
        name: the function, for messages and printed programs.
        make: traces the rule.
    """

    __slots__ = ("made", "make", "name")

    def __init__(self, name: str, make: Callable[[], Staged]) -> None:
        self.name = name
        self.make = make
        self.made: Staged | None = None

    def __repr__(self) -> str:
        return f"<rule of {self.name}>"

    @property
    def staged(self) -> Staged:
        """The traced rule.

        Raises:
            TracerError: it closes over traced values.
        """
        if self.made is None:
            self.made = self.make()
            if self.made.captures:
                raise TracerError(
                    f"the derivative rule of {self.name} closes over a traced value "
                    f"({self.made.captures[0].aval}); pass it as "
                    "an argument of the function, or among the residuals"
                )
        return self.made

    @property
    def program(self) -> Program:
        """The traced rule as a program."""
        return self.staged.program

    def batched(
        self, over: Callable[[Program], Sequence[bool]], size: int, summed: Sequence[bool] = ()
    ) -> Rule:
        """The rule on many lanes; `over` says which inputs of its program are mapped, `summed` which results to add."""

        def make() -> Staged:
            return Staged(
                _whole_batch(self.program, over(self.program), size, summed), (), self.staged.result
            )

        return Rule(self.name, make)


# --- custom_jvp -------------------------------------------------------------------------------------------------------
# Operands are the arguments and then the captures of the function. `rule` is a program of (arguments, tangents of the
# floating ones) that returns the results and the tangents of the floating ones.


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], out: Any, *, fun: Program, rule: Rule, count: int
) -> Any:
    args = primals[:count]
    if any(t is not None for t in tangents[count:]):
        raise UnsupportedOperationError(
            f"custom_jvp: {rule.name} closes over a traced value that is being differentiated, for which its "
            "rule has no "
            "tangent; pass the value as an argument",
            op="custom_jvp",
        )
    given = [
        zeros_like(x) if t is None else t for x, t in zip(args, tangents, strict=False) if x.dtype.kind == "f"
    ]
    outs = inline(rule.program, [*args, *given])
    rest = iter(outs[len(fun.outputs) :])
    return tuple(next(rest) if v.aval.dtype.kind == "f" else None for v in fun.outputs)


def _jvp_batch(
    operands: Sequence[Any], over: Sequence[bool], size: int, *, fun: Program, rule: Rule, count: int
) -> Any:
    args = list(over[:count])
    moving = [m for m, v in zip(args, fun.inputs, strict=False) if v.aval.dtype.kind == "f"]
    derived = rule.batched(lambda program: [*args, *moving], size)
    return bind(
        custom_jvp_op, operands, {"fun": _whole_batch(fun, over, size), "rule": derived, "count": count}
    )


def _jvp_samples() -> Iterator[Sample]:
    for d in (float64, float32):
        x = aval_of((3,), d)
        fun, _ = trace(lambda x, y: [mul(sin(x), y)], [x, x])
        rule, _ = trace(
            lambda x, y, t, u: [mul(sin(x), y), add(mul(mul(cos(x), y), t), mul(sin(x), u))], [x, x, x, x]
        )
        params = {"fun": fun, "rule": Rule("f", lambda rule=rule: Staged(rule, (), None)), "count": 2}  # type: ignore[misc]
        yield Sample(
            f"product_{d}", lambda rng: (rng.normal(size=(3,)), rng.normal(size=(3,))), params, only=d
        )


custom_jvp_op = define(
    Op(
        name="custom_jvp",
        infer=lambda *avals, fun, rule, count: fun.out_avals,
        evaluate=lambda *xs, fun, rule, count: tuple(evaluate(fun, [np.asarray(x) for x in xs])),
        jvp=_jvp,
        batch=_jvp_batch,
        decompose=lambda *xs, fun, rule, count: tuple(inline(fun, xs)),
        samples=_jvp_samples,
        family="region",
        multiple=True,
    )
)


def _positions(where: str, nondiff_argnums: Any) -> tuple[int, ...]:
    given = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
    if any(type(i) is not int or i < 0 for i in given):
        raise DtypeError(f"{where}: nondiff_argnums must be non-negative ints, got {nondiff_argnums!r}")
    return given


def _restored(kind: type, state: dict[str, Any]) -> Any:
    made: Any = object.__new__(kind)
    vars(made).update(state)
    return made


class _Custom:
    """A function and the positions of the arguments that its rule does not differentiate."""

    where = "custom"

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Any = ()) -> None:
        if not callable(fun):
            raise DtypeError(f"{self.where}: the first argument must be a function, got {a_kind(fun)}")
        self.fun = fun
        self.nondiff = _positions(self.where, nondiff_argnums)
        self.__name__ = name_of(fun)
        self.__doc__ = fun.__doc__
        self.__wrapped__ = fun

    def __reduce__(self) -> tuple[Any, ...]:
        return by_name(self.fun, self) or (_restored, (type(self), vars(self)))

    def positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, which is how rules see them; with the defaults that are arrays or numbers."""
        try:
            signature = inspect.signature(self.fun)
        except (TypeError, ValueError):
            if kwargs:
                raise DtypeError(f"{self.where}: pass the arguments of {self.__name__} by position") from None
            return args
        bound = signature.bind(*args, **kwargs)
        given = len(bound.arguments)
        bound.apply_defaults()
        if bound.kwargs:
            raise DtypeError(
                f"{self.where}: {self.__name__} takes {', '.join(bound.kwargs)} by keyword only, which a "
                "rule cannot see; make "
                "it a positional parameter"
            )
        found = bound.args
        while len(found) > max(given, len(args)) and type(found[-1]) not in (
            float,
            int,
            bool,
            Tensor,
            TraceTensor,
        ):
            found = found[:-1]
        return found

    def divide(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The arguments that are not differentiated, and the others."""
        if self.nondiff and max(self.nondiff) >= len(args):
            raise ShapeError(
                f"{self.where}: nondiff_argnums {self.nondiff}, but {self.__name__} got {len(args)} arguments"
            )
        return [args[i] for i in self.nondiff], [a for i, a in enumerate(args) if i not in self.nondiff]

    def join(self, fixed: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """All arguments, in their places."""
        rest, given = iter(others), dict(zip(self.nondiff, fixed, strict=True))
        return [given[i] if i in given else next(rest) for i in range(len(fixed) + len(others))]


@final
class custom_jvp(_Custom):  # noqa: N801 - used as a decorator, like the functions beside it
    """A function whose forward-mode derivative is given by a rule; reverse mode transposes the rule.

    Args:
        fun: a function of arrays and pytrees of arrays.
        nondiff_argnums: positions of arguments that the rule gets first and does not differentiate.

    Raises:
        DtypeError: `fun` is no function, or the rule returns another structure.
        UnsupportedOperationError: (when differentiated) `fun` closes over a traced value that is being differentiated.

    Example:
        >>> import quabla as qb
        >>> f = qb.custom_jvp(lambda x: qb.log(1.0 + qb.exp(x)))
        >>> _ = f.defjvp(lambda primals, tangents: (f(primals[0]), qb.sigmoid(primals[0]) * tangents[0]))
        >>> qb.grad(f)(0.0).item()
        0.5
    """

    where = "custom_jvp"

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()) -> None:
        super().__init__(fun, nondiff_argnums)
        self.rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule: `rule(*nondiff_args, primals, tangents) -> (value, tangent)`, linear in the tangents.

        Args:
            rule: takes a tuple of the differentiable arguments and a tuple of their tangents, which mirror them; the
                tangents of bool arrays are None.

        Returns:
            The rule, so that this serves as a decorator.
        """
        functions("custom_jvp", rule=rule)
        self.rule = rule
        return rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The value of the function."""
        args = self.positional(args, kwargs)
        fixed, others = self.divide(args)
        if self.rule is None:
            raise DtypeError(
                f"custom_jvp: {self.__name__} has no rule yet; set it with {self.__name__}.defjvp(rule)"
            )
        call = take_apart(self.fun, weak_numbers(tuple(others)), {})
        if not is_traced(call.arrays):
            return self.fun(*args)
        staged = stage(lambda *a: self.fun(*self.join(fixed, a)), call)
        types = call.without_arrays()
        rule = Rule(self.__name__, lambda: self._stage_rule(types, fixed, staged))
        params = {"fun": staged.program, "rule": rule, "count": len(call.arrays)}
        outs = bind(custom_jvp_op, (*call.arrays, *staged.captures), params)
        return staged.result.put_together(outs)

    def _stage_rule(self, call: Call, fixed: Sequence[Any], fun: Staged) -> Staged:
        moving = [a for a in call.avals if a.dtype.kind == "f"]
        both = take_apart(self.fun, (*call.avals, *moving), {}, abstract=True)

        def run(*leaves: Any) -> Any:
            primals, _ = call.put_together(leaves[: len(call.avals)])
            rest = iter(leaves[len(call.avals) :])
            tangents, _ = call.put_together([next(rest) if a.dtype.kind == "f" else None for a in call.avals])
            assert self.rule is not None
            return self.rule(*fixed, primals, tangents)

        def divide(value: Any) -> tuple[list[Any], Any]:
            if not (isinstance(value, (tuple, list)) and len(value) == 2):
                raise DtypeError(
                    f"custom_jvp: the rule of {self.__name__} must return a pair (value, tangent)"
                )
            outs, structure = as_outputs(self.rule, value[0])
            outs = _agreeing("custom_jvp", self.__name__, "the rule", outs, structure, fun)
            return [
                *outs,
                *_mirrored(
                    "custom_jvp",
                    self.__name__,
                    "tangent",
                    value[1],
                    [o.aval for o in outs],
                    structure.treedef,
                ),
            ], None

        return stage(run, both, split=divide)


def _agreeing(where: str, name: str, who: str, outs: list[Any], structure: Any, fun: Staged) -> list[Any]:
    """The value that a rule returned, checked against what the function returned."""
    if structure.treedef != fun.result.treedef:
        raise DtypeError(
            f"{where}: {who} of {name} returns a value of structure {structure.treedef}, the function itself "
            f"{fun.result.treedef}"
        )
    for out, aval in zip(outs, fun.program.out_avals, strict=True):
        if out.shape != aval.shape:
            raise ShapeError(
                f"{where}: {who} of {name} returns {out.aval}, where the function itself returns {aval}"
            )
        if out.dtype is not aval.dtype and not (out.aval.weak or aval.weak):
            raise DtypeError(
                f"{where}: {who} of {name} returns {out.aval}, where the function itself returns {aval}"
            )
    return [cast(o, a.dtype) for o, a in zip(outs, fun.program.out_avals, strict=True)]


def _mirrored(
    where: str, name: str, what: str, given: Any, avals: Sequence[ShapeDtype], treedef: Any
) -> list[Any]:
    """The tangents or cotangents in a tree like that of values of types `avals`, for floating ones; None is zero."""
    leaves = tree.flatten_up_to(given, treedef, f"{where}: the {what}s of {name} must mirror its values")
    out = []
    for leaf, aval in zip(leaves, avals, strict=True):
        if aval.dtype.kind != "f":
            continue
        if leaf is None:
            out.append(wrap_as(np.zeros(aval.shape, aval.dtype.numpy), aval))
            continue
        if type(leaf) not in (Tensor, TraceTensor, float, int):
            raise DtypeError(f"{where}: a {what} of {name} is {a_kind(leaf)} where its value has type {aval}")
        array = operand(leaf, where)
        if array.shape == () and array.aval.weak:
            array = broadcast(array, aval.shape, ())
        if array.shape != aval.shape:
            raise ShapeError(
                f"{where}: a {what} of {name} has type {array.aval} where its value has type {aval}"
            )
        out.append(cast(array, aval.dtype))
    return out


# --- custom_vjp -------------------------------------------------------------------------------------------------------
# Operands as above. `fwd` is a program of the arguments that returns (results, residuals), `bwd` one of (residuals,
# cotangents of the floating results) that returns the cotangents of the floating arguments.


def _vjp_reverse(
    frame: Any,
    operands: Sequence[Any],
    wanted: Sequence[bool],
    *,
    fun: Program,
    fwd: Rule,
    bwd: Rule,
    count: int,
) -> Any:
    args, captures = split(operands, count)
    if any(wanted[count:]):
        raise UnsupportedOperationError(
            f"custom_vjp: {fwd.name} closes over a traced value that is being differentiated, for which its "
            "rule has no "
            "cotangent; pass the value as an argument",
            op="custom_vjp",
        )
    outs, residuals = split(inline(fwd.program, args), len(fun.outputs))

    def pullback(cts: Sequence[Any]) -> list[Any]:
        given = [
            zeros_like(o) if ct is None else ct
            for o, ct in zip(outs, cts, strict=True)
            if o.dtype.kind == "f"
        ]
        back = iter(inline(bwd.program, [*residuals, *given]))
        found = [next(back) if x.dtype.kind == "f" else None for x in args]
        return [*(ct if w else None for ct, w in zip(found, wanted, strict=False)), *[None] * len(captures)]

    return tuple(outs), pullback


def _vjp_batch(
    operands: Sequence[Any],
    over: Sequence[bool],
    size: int,
    *,
    fun: Program,
    fwd: Rule,
    bwd: Rule,
    count: int,
) -> Any:
    args = list(over[:count])
    floating = [not m for m, v in zip(args, fun.inputs, strict=False) if v.aval.dtype.kind == "f"]
    params = {
        "fun": _whole_batch(fun, over, size),
        "fwd": fwd.batched(lambda program: args, size),
        # Residuals and cotangents all have the batch axis. What reaches an argument that is not mapped is summed.
        "bwd": bwd.batched(lambda program: [True] * len(program.inputs), size, floating),
        "count": count,
    }
    return bind(custom_vjp_op, operands, params)


def _vjp_samples() -> Iterator[Sample]:
    for d in (float64, float32):
        x = aval_of((3,), d)
        fun, _ = trace(lambda x, y: [mul(exp(x), y)], [x, x])
        fwd, _ = trace(lambda x, y: [mul(exp(x), y), exp(x), mul(exp(x), y)], [x, x])
        bwd, _ = trace(lambda e, out, ct: [mul(ct, out), mul(ct, e)], [x, x, x])
        rules = [Rule("f", lambda p=p: Staged(p, (), None)) for p in (fwd, bwd)]  # type: ignore[misc]
        params = {"fun": fun, "fwd": rules[0], "bwd": rules[1], "count": 2}
        yield Sample(
            f"product_{d}", lambda rng: (rng.normal(size=(3,)), rng.normal(size=(3,))), params, only=d
        )


custom_vjp_op = define(
    Op(
        name="custom_vjp",
        infer=lambda *avals, fun, fwd, bwd, count: fun.out_avals,
        evaluate=lambda *xs, fun, fwd, bwd, count: tuple(evaluate(fun, [np.asarray(x) for x in xs])),
        jvp=Refused(
            "its author gave a rule for reverse mode only (custom_vjp); use grad or vjp, or define a custom_jvp. "
            "Forward mode over a gradient meets it, too, where its own fwd calls it: let fwd compute the value itself"
        ),
        reverse=_vjp_reverse,
        batch=_vjp_batch,
        decompose=lambda *xs, fun, fwd, bwd, count: tuple(inline(fun, xs)),
        samples=_vjp_samples,
        family="region",
        multiple=True,
    )
)


@final
class custom_vjp(_Custom):  # noqa: N801
    """A function whose reverse-mode derivative is given by two functions. Forward mode is refused.

    Args:
        fun: a function of arrays and pytrees of arrays.
        nondiff_argnums: positions of arguments that `bwd` gets first and that are not differentiated.

    Raises:
        DtypeError: `fun` is no function, or the rules return another structure.
        UnsupportedOperationError: (when differentiated) in forward mode, or where `fun` closes over a traced value that
            is being differentiated.

    Example:
        >>> import quabla as qb
        >>> clip = qb.custom_vjp(lambda x: x)  # limits the gradient that passes through
        >>> clip.defvjp(lambda x: (x, ()), lambda residuals, ct: (qb.minimum(ct, 1.0),))
        >>> qb.grad(lambda x: 5.0 * clip(x))(2.0).item()
        1.0
    """

    where = "custom_vjp"

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()) -> None:
        super().__init__(fun, nondiff_argnums)
        self.rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set the rules.

        Args:
            fwd: `fwd(*args) -> (value, residuals)`; residuals are any pytree of arrays. It computes the value itself:
                if it calls the function, forward mode over the gradient meets that call and is refused.
            bwd: `bwd(*nondiff_args, residuals, cotangent) -> cotangents`: a tuple with one per differentiable argument,
                each mirroring it; None for zero.
        """
        functions("custom_vjp", fwd=fwd, bwd=bwd)
        self.rules = (fwd, bwd)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The value of the function."""
        args = self.positional(args, kwargs)
        fixed, others = self.divide(args)
        if self.rules is None:
            raise DtypeError(
                f"custom_vjp: {self.__name__} has no rules yet; set them with {self.__name__}.defvjp(fwd, bwd)"
            )
        call = take_apart(self.fun, weak_numbers(tuple(others)), {})
        if not is_traced(call.arrays):
            return self.fun(*args)
        types = call.without_arrays()
        fun = stage(lambda *a: self.fun(*self.join(fixed, a)), call)
        fwd = Rule(self.__name__, lambda: self._stage_fwd(types, fixed, fun))
        bwd = Rule(self.__name__, lambda: self._stage_bwd(types, fixed, fun.result, fwd.staged))
        params = {"fun": fun.program, "fwd": fwd, "bwd": bwd, "count": len(call.arrays)}
        outs = bind(custom_vjp_op, (*call.arrays, *fun.captures), params)
        return fun.result.put_together(outs)

    def _stage_fwd(self, call: Call, fixed: Sequence[Any], fun: Staged) -> Staged:
        assert self.rules is not None
        fwd = self.rules[0]

        def divide(value: Any) -> tuple[list[Any], Any]:
            if not (isinstance(value, (tuple, list)) and len(value) == 2):
                raise DtypeError(f"custom_vjp: fwd of {self.__name__} must return a pair (value, residuals)")
            outs, structure = as_outputs(fwd, value[0])
            outs = _agreeing("custom_vjp", self.__name__, "fwd", outs, structure, fun)
            kept, residuals = as_outputs(fwd, value[1], passing=True)
            return [*outs, *kept], (len(outs), residuals)

        return stage(lambda *a: fwd(*self.join(fixed, a)), call, split=divide)

    def _stage_bwd(self, call: Call, fixed: Sequence[Any], result: Any, fwd: Staged) -> Staged:
        assert self.rules is not None
        bwd = self.rules[1]
        count, residuals = fwd.result
        outs, kept = fwd.program.out_avals[:count], fwd.program.out_avals[count:]
        moving = [a for a in outs if a.dtype.kind == "f"]
        treedef = call.treedef.children[0]

        def run(*leaves: Any) -> Any:
            rest = iter(leaves[len(kept) :])
            ct = result.put_together([next(rest) if a.dtype.kind == "f" else None for a in outs])
            return bwd(*fixed, residuals.put_together(leaves[: len(kept)]), ct)

        def divide(value: Any) -> tuple[list[Any], Any]:
            wanted = len(treedef.children)
            if not isinstance(value, (tuple, list)) or len(value) != wanted:
                raise DtypeError(
                    f"custom_vjp: bwd of {self.__name__} must return a tuple with a cotangent for each of {wanted} "
                    f"arguments, it returned {value!r}"
                )
            return _mirrored(
                "custom_vjp", self.__name__, "cotangent", tuple(value), call.avals, treedef
            ), None

        types = [aval_of(a.shape, a.dtype) for a in (*kept, *moving)]
        return stage(run, take_apart(bwd, tuple(types), {}, abstract=True), split=divide)
