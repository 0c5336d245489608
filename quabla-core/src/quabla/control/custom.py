"""`custom_jvp` and `custom_vjp`: functions with derivatives that their author gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np

from quabla.arrays.tracer import bind, trace
from quabla.control.regions import evaluate, functions, is_traced, split, weak_numbers
from quabla.control.rules import Custom, Rule, agreeing, mirrored, require_constant, whole_batch
from quabla.dtypes import float32, float64
from quabla.errors import DtypeError
from quabla.ir.op import Op, Refused, Sample, define
from quabla.ir.program import Program
from quabla.ops.elementwise import add, cos, exp, mul, sin
from quabla.ops.structure import zeros_like
from quabla.shapes import aval_of
from quabla.transforms.reverse import vjp_values
from quabla.transforms.staging import (
    Call,
    Staged,
    as_outputs,
    inline,
    stage,
    take_apart,
)

__all__ = ["custom_jvp", "custom_jvp_op", "custom_vjp", "custom_vjp_op", "linear_rule"]


# --- custom_jvp -------------------------------------------------------------------------------------------------------
# Operands are the arguments and then the captures of the function. `rule` is a program of (arguments, tangents of the
# floating ones) that returns the results and the tangents of the floating ones.


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], out: Any, *, fun: Program, rule: Rule, count: int
) -> Any:
    args = primals[:count]
    require_constant("custom_jvp", rule, [t is not None for t in tangents[count:]], "tangent")
    given = [
        zeros_like(x) if t is None else t for x, t in zip(args, tangents, strict=False) if x.dtype.kind == "f"
    ]
    outs = inline(rule.program, [*args, *given])
    rest = iter(outs[len(fun.outputs) :])
    return tuple(next(rest) if v.aval.dtype.kind == "f" else None for v in fun.outputs)


def linear_rule(moving: Sequence[bool], *, fun: Program, rule: Rule, count: int) -> Program:
    """The tangents that the rule of a `custom_jvp` makes of (arguments, tangents of the floating ones).

    Args:
        moving: which operands are being differentiated.
        fun: the params of the op, and the next two.
        rule: see above.
        count: see above.

    Raises:
        UnsupportedOperationError: the rule is not linear, or says nothing of a value that moves.
    """
    require_constant("custom_jvp", rule, moving[count:], "tangent")
    return rule.linear(count, len(fun.outputs))


def _jvp_pullback(
    cts: Sequence[Any],
    operands: Sequence[Any],
    out: Any,
    wanted: Sequence[bool],
    *,
    fun: Program,
    rule: Rule,
    count: int,
) -> tuple[Any, ...]:
    tangents, frame = linear_rule(wanted, fun=fun, rule=rule, count=count), operands[0].frame
    # The derivative of a linear function is the same everywhere: take it at zero.
    at = [*operands[:count], *(frame.full(0.0, v.aval) for v in tangents.inputs[count:])]
    moving = [w for x, w in zip(operands[:count], wanted, strict=False) if x.dtype.kind == "f"]
    _, backward = vjp_values(frame, tangents, at, [*[False] * count, *moving])
    found = iter(
        backward([ct for ct, v in zip(cts, fun.outputs, strict=True) if v.aval.dtype.kind == "f"])[count:]
    )
    by_argument = [next(found) if x.dtype.kind == "f" else None for x in operands[:count]]
    return (*by_argument, *[None] * (len(operands) - count))


def _jvp_batch(
    operands: Sequence[Any], over: Sequence[bool], size: int, *, fun: Program, rule: Rule, count: int
) -> Any:
    args = list(over[:count])
    moving = [m for m, v in zip(args, fun.inputs, strict=False) if v.aval.dtype.kind == "f"]
    derived = rule.batched(lambda program: [*args, *moving], size)
    return bind(
        custom_jvp_op, operands, {"fun": whole_batch(fun, over, size), "rule": derived, "count": count}
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
        vjp=_jvp_pullback,
        batch=_jvp_batch,
        decompose=lambda *xs, fun, rule, count: tuple(inline(fun, xs)),
        declared=True,
        samples=_jvp_samples,
        family="region",
        multiple=True,
    )
)


@final
class custom_jvp(Custom):  # noqa: N801 - used as a decorator, like the functions beside it
    """A function whose forward-mode derivative is given by a rule; reverse mode transposes the rule.

    The value is that of the function, and every derivative comes from the rule, which is linear in the tangents.

    Args:
        fun: a function of arrays and pytrees of arrays.
        nondiff_argnums: positions of arguments that the rule gets first and does not differentiate.

    Raises:
        DtypeError: `fun` is no function, or the rule returns another structure.
        UnsupportedOperationError: (when differentiated) `fun` closes over a traced value that is being differentiated,
            or the rule is not linear; `jvp` alone, which computes nothing backwards, takes any rule.

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
                tangents of bool arrays are None. It returns the value, and a tangent that mirrors it, None for zero.
                What it does with tangents counts for its value alone: `stop_gradient` of one is that tangent.

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
        call = take_apart(self.fun, weak_numbers(tuple(others)), {}, places=self.others(len(args)))
        if not is_traced(call.arrays):
            return self.fun(*args)
        staged = stage(lambda *a: self.fun(*self.join(fixed, a)), call)
        types = call.without_arrays()
        rule = Rule(self.__name__, lambda: self._stage_rule(types, fixed, staged), self.rule)
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
            outs = agreeing("custom_jvp", self.__name__, "the rule", outs, structure, fun)
            return [
                *outs,
                *mirrored(
                    "custom_jvp",
                    self.__name__,
                    "tangent",
                    value[1],
                    [o.aval for o in outs],
                    structure.treedef,
                ),
            ], None

        return stage(run, both, split=divide)


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
    require_constant("custom_vjp", fwd, wanted[count:], "cotangent")
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
        "fun": whole_batch(fun, over, size),
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
        declared=True,
        samples=_vjp_samples,
        family="region",
        multiple=True,
    )
)


@final
class custom_vjp(Custom):  # noqa: N801
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
        call = take_apart(self.fun, weak_numbers(tuple(others)), {}, places=self.others(len(args)))
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
            outs = agreeing("custom_vjp", self.__name__, "fwd", outs, structure, fun)
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
            return mirrored("custom_vjp", self.__name__, "cotangent", tuple(value), call.avals, treedef), None

        types = [aval_of(a.shape, a.dtype) for a in (*kept, *moving)]
        return stage(run, take_apart(bwd, tuple(types), {}, abstract=True), split=divide)
