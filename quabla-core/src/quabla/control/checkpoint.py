"""`checkpoint`: compute again in the backward pass instead of keeping intermediate values.

A region of its own, in which nothing is shared with the forward pass, is the backward pass. Where it comes from a root
or an absolute value, a second derivative has to see the way from there to the cotangent (`ops/limits.py`): the forward
pass is no region then, and differentiating the backward pass records it without one. That second derivative keeps what
the first computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, final

import numpy as np

from quabla.arrays.tracer import bind, trace
from quabla.control.derive import committed
from quabla.control.regions import evaluate, functions, is_traced, mapped, moved
from quabla.dtypes import float32, float64
from quabla.errors import DtypeError
from quabla.ir.op import Op, Sample, define
from quabla.ir.program import Program
from quabla.ops.elementwise import exp, mul, sin
from quabla.ops.limits import conceal, has_root, looks_around
from quabla.ops.masks import with_masks
from quabla.ops.structure import lead, zeros_like
from quabla.shapes import aval_of, wholes
from quabla.transforms.batch import batch_values
from quabla.transforms.forward import jvp_values, replay
from quabla.transforms.reverse import vjp_values
from quabla.transforms.staging import Method, by_name, name_of, stage, take_apart

__all__ = ["checkpoint", "checkpoint_op"]


def _forward(primals: Sequence[Any], tangents: Sequence[Any], *, fun: Program) -> tuple[Any, Any]:
    if looks_around(fun):
        outs, t_outs = jvp_values(primals[0].frame, fun, primals, tangents)
        return tuple(outs), tuple(t_outs)
    moving = [t is not None for t in tangents]
    moves = moved(fun, moving)
    given = [t for t in tangents if t is not None]

    def run(*args: Any) -> list[Any]:
        rest = iter(args[len(primals) :])
        conceal(x for x, m in zip(args, moving, strict=False) if m)
        outs, t_outs = jvp_values(
            args[0].frame, fun, args[: len(primals)], [next(rest) if m else None for m in moving]
        )
        return [
            *outs,
            *(zeros_like(o) if t is None else t for o, t, m in zip(outs, t_outs, moves, strict=True) if m),
        ]

    program, _ = trace(run, [x.aval for x in (*primals, *given)])
    outs = bind(checkpoint_op, (*primals, *given), {"fun": program})
    rest = iter(outs[len(moves) :])
    return tuple(outs[: len(moves)]), tuple(next(rest) if m else None for m in moves)


def _opened(frame: Any, program: Program, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Record a program in `frame`, those of the checkpoints in it, too."""
    value: dict[Any, Any] = dict(zip(program.inputs, operands, strict=True))
    for node in program.nodes:
        xs = tuple([value[v] for v in node.inputs])
        inner = node.params["fun"] if node.op is checkpoint_op else None
        out = replay(frame, node, xs) if inner is None else _opened(frame, inner, xs)
        value.update(zip(node.outputs, out if node.op.multiple else (out,), strict=True))
    return tuple([value[v] for v in program.outputs])


def _reverse(frame: Any, operands: Sequence[Any], wanted: Sequence[bool], *, fun: Program) -> Any:
    if looks_around(fun):
        return vjp_values(frame, fun, operands, wanted)
    again = committed(fun)
    outs = _opened(frame, again, operands) if has_root(fun) else bind(checkpoint_op, operands, {"fun": again})

    def pullback(cts: Sequence[Any]) -> list[Any]:
        live = [ct is not None for ct in cts]
        given, masked = with_masks([ct for ct in cts if ct is not None])

        found: list[bool] = []  # for which operands there is a cotangent
        leaving: list[Any] = []

        # A region of its own, so that nothing in it is shared with the forward pass: it starts from the operands.
        def run(*args: Any) -> list[Any]:
            n = len(operands)
            conceal([*(x for x, w in zip(args, wanted, strict=False) if w), *args[n:]])
            _, backward = vjp_values(args[0].frame, fun, args[:n], wanted)
            rest = iter(masked(args[n:]))
            back = backward([next(rest) if x else None for x in live])
            found.extend(ct is not None and w for ct, w in zip(back, wanted, strict=True))
            results, unmask = with_masks([ct for ct, f in zip(back, found, strict=True) if f])
            leaving.append(unmask)
            return results

        program, _ = trace(run, [x.aval for x in (*operands, *given)])
        if not any(found):
            return [None] * len(operands)
        back = iter(leaving[0](bind(checkpoint_op, (*operands, *given), {"fun": program})))
        return [next(back) if f else None for f in found]

    return outs, pullback


def _batch(operands: Sequence[Any], over: Sequence[bool], size: int, *, fun: Program) -> Any:
    many = mapped(fun, over)

    def run(*args: Any) -> list[Any]:
        outs, flags = batch_values(args[0].frame, fun, args, over, size)
        return [lead(o, m, size) if w else o for o, m, w in zip(outs, flags, many, strict=True)]

    program, _ = trace(run, [x.aval for x in operands])
    outs = bind(checkpoint_op, operands, {"fun": program})
    return tuple(lead(o, w, size) for o, w in zip(outs, many, strict=True))


def _samples() -> Iterator[Sample]:
    for d in (float64, float32):
        x, y = aval_of((3,), d), aval_of((3,), d)
        fun, _ = trace(lambda x, y: [mul(sin(x), y), exp(mul(x, y))], [x, y])
        yield Sample(
            f"two_{d}", lambda rng: (rng.normal(size=(3,)), rng.normal(size=(3,))), {"fun": fun}, only=d
        )


checkpoint_op = define(
    Op(
        name="checkpoint",
        infer=lambda *avals, fun: fun.out_avals,
        evaluate=lambda *operands, fun: tuple(evaluate(fun, [np.asarray(x) for x in operands])),
        forward=_forward,
        reverse=_reverse,
        batch=_batch,
        through=lambda walk, given, *, fun: walk(fun, given),
        samples=_samples,
        family="region",
        multiple=True,
    )
)


def checkpoint(fun: Callable[..., Any], *, static_argnums: int | Collection[int] = ()) -> Callable[..., Any]:
    """`fun`, whose intermediate values reverse mode does not keep: the backward pass computes them again.

    Values and derivatives of every order are those of `fun`. Where `fun` takes a root or an absolute value, a second
    derivative keeps what the first computed again. `remat` is another name for it.

    Args:
        fun: a function of arrays and pytrees of arrays; it may close over traced values.
        static_argnums: positions of hashable arguments that are handed to `fun` as they are.

    Returns:
        A function of the same arguments.

    Raises:
        DtypeError: `fun` is no function, or `static_argnums` are no ints; (when called) a static argument is not
            hashable, or an argument or a result is neither array nor number.

    Example:
        >>> import quabla as qb
        >>> f = qb.checkpoint(lambda x: qb.sin(qb.sin(x)))
        >>> qb.grad(f)(0.0).item()
        1.0
    """
    functions("checkpoint", fun=fun)
    try:
        static, _ = wholes(static_argnums, (tuple, list, set, frozenset, range))
    except TypeError:
        raise DtypeError(
            f"checkpoint: static_argnums must be an int or several of them, got {static_argnums!r:.80}"
        ) from None
    return Checkpointed(fun, static)


@final
class Checkpointed:
    """What `checkpoint` returns: like a function, and pickled like a transformed one."""

    def __init__(self, fun: Callable[..., Any], static: tuple[int, ...]) -> None:
        self.static = static
        self.__name__ = f"checkpoint({name_of(fun)})"
        self.__doc__ = getattr(fun, "__doc__", None)
        self.__wrapped__ = fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        fun = self.__wrapped__
        call = take_apart(fun, args, kwargs, (), self.static)
        if not is_traced(call.arrays):
            return fun(*args, **kwargs)
        staged = stage(fun, call, region=True)
        outs = bind(checkpoint_op, (*call.arrays, *staged.captures), {"fun": staged.program})
        return staged.result.put_together(outs)

    def __repr__(self) -> str:
        return f"<{self.__name__}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # As a decorator in a class body it is a method, like a function.
        return self if instance is None else Method(self, instance)

    def __copy__(self) -> Checkpointed:
        return self

    def __deepcopy__(self, memo: Any) -> Checkpointed:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return by_name(self.__wrapped__, self) or (Checkpointed, (self.__wrapped__, self.static))
