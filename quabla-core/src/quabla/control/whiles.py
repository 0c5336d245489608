"""`while_loop`: what users call for loops of unknown length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quabla import tree
from quabla.arrays.tensor import Tensor
from quabla.arrays.tracer import TraceTensor
from quabla.control.carry import begin, keep, same_structure, settle, take_carry
from quabla.control.derive import index_aval
from quabla.control.regions import called, functions, further, is_traced, merge_captures, results
from quabla.control.while_op import bind_while
from quabla.dtypes import bool_
from quabla.errors import DtypeError, ShapeError, TracerError
from quabla.ir.program import Program
from quabla.ops.apply import operand
from quabla.shapes import ShapeDtype, whole
from quabla.transforms.staging import name_of, stage, take_apart
from quabla.typed_repr import typed

__all__ = ["while_loop"]

_COND, _BODY = (
    "cond_fun(carry, *operands)",
    "body_fun(carry, *operands)",
)  # how the user's functions are called
_ENDLESS = 2**63 - 1  # steps: as many as an int64 counts


def while_loop(
    cond_fun: Callable[..., Any],
    body_fun: Callable[..., Any],
    init_val: Any,
    *,
    operands: Sequence[Any] = (),
    max_steps: int | None = None,
) -> Any:
    """Run `carry = body_fun(carry, *operands)` while `cond_fun(carry, *operands)` holds.

    Within a trace the loop is one operation that runs natively; on concrete arrays it is a Python loop. Forward mode
    passes through any loop; reverse mode needs `max_steps`, and costs what was run, not what was allowed. Under `vmap`
    the loop runs while any example does, and nothing of the steps that an example does not take reaches it. A native
    loop hears an interrupt (Ctrl-C) when it has ended: give one that may never end a `max_steps`.

    Args:
        cond_fun: a function of the carry and the operands that returns a bool scalar.
        body_fun: the step; it keeps the structure, shapes and dtypes of the carry. Both may close over traced values.
        init_val: the initial carry, a pytree of arrays. A Python number adopts the dtype that the step gives it.
        operands: further arguments of both functions, a tuple: `(w,)` for one.
        max_steps: the loop stops after this many steps even if the predicate still holds.

    Returns:
        The carry for which the predicate no longer holds, or after `max_steps` steps.

    Raises:
        DtypeError: the predicate is not bool, the step changes a dtype, or `operands` is no tuple.
        ShapeError: the predicate is no scalar, the step changes the structure or a shape, or `max_steps` is below 1.
        TracerError: within a trace, the predicate is True itself and there is no `max_steps`.
        UnsupportedOperationError: (when differentiated in reverse mode) there is no `max_steps`.

    Example:
        >>> import quabla as qb
        >>> double = lambda x: qb.while_loop(lambda c: c < 100.0, lambda c: 2.0 * c, x, max_steps=20)
        >>> double(qb.array(3.0)).item(), qb.grad(double)(3.0).item()
        (192.0, 64.0)
    """
    functions("while_loop", cond_fun=cond_fun, body_fun=body_fun)
    operands = further("while_loop", operands)
    if max_steps is not None:
        try:
            max_steps = whole(max_steps)
        except TypeError:
            raise DtypeError(f"while_loop: max_steps must be an int, got {typed(max_steps)}") from None
        if max_steps < 1:
            raise ShapeError(f"while_loop: max_steps must be at least 1, got {max_steps}")
        max_steps = min(max_steps, _ENDLESS)
    if not is_traced(tree.flatten((init_val, operands))[0]):
        return _eager(cond_fun, body_fun, init_val, operands, max_steps)
    carry = take_carry("while_loop", init_val)
    given = take_apart(body_fun, operands, {}, places=range(1, 1 + len(operands)))
    before = given.avals

    def call_with(fun: Callable[..., Any], args: Any) -> Any:
        ops, _ = given.put_together(args[: len(before)])
        return called(
            "while_loop",
            _BODY if fun is body_fun else _COND,
            fun,
            carry.put_together(args[len(before) :]),
            *ops,
        )

    def stage_body(avals: list[ShapeDtype]) -> tuple[Any, int]:
        def divide(value: Any) -> tuple[list[Any], Any]:
            arrays, result = results(body_fun, value)
            same_structure("while_loop", body_fun, carry, result.treedef)
            return arrays, result

        call = take_apart(body_fun, (index_aval, *before, *avals), {}, abstract=True)
        return stage(lambda i, *args: call_with(body_fun, args), call, split=divide, region=True), len(avals)

    body = settle("while_loop", body_fun, carry, stage_body)
    avals = [x.aval for x in carry.arrays]
    call = take_apart(cond_fun, (index_aval, *before, *avals), {}, abstract=True)

    def ask_whether(i: Any, *args: Any) -> Any:
        value = call_with(cond_fun, args)
        if value is True and max_steps is None:
            raise TracerError(
                f"while_loop: {name_of(cond_fun)} returned True itself, whatever the carry is, so the loop would never "
                "end; == and != tell whether two arrays are one object: compare elements with quabla.equal or "
                "quabla.not_equal, or give max_steps"
            )
        return _predicate(cond_fun, value)

    asked = stage(ask_whether, call, region=True)
    programs, captures = merge_captures((body, asked))
    step, ask = (_captures_first(p, 1 + len(before), len(captures)) for p in programs)
    ask = Program(ask.inputs[1:], ask.nodes, ask.outputs)
    state, _, _ = bind_while(ask, step, max_steps, [*given.arrays, *captures], carry.arrays)
    return carry.put_together(state)


def _captures_first(program: Program, at: int, count: int) -> Program:
    """The program with its last `count` inputs moved to position `at`: captures are constants of the loop."""
    own = len(program.inputs) - count
    inputs = (*program.inputs[:at], *program.inputs[own:], *program.inputs[at:own])
    return Program(inputs, program.nodes, program.outputs)


def _predicate(cond_fun: Any, value: Any) -> Any:
    """What a predicate returned, checked."""
    if type(value) not in (bool, Tensor, TraceTensor):
        raise DtypeError(
            f"while_loop: {name_of(cond_fun)} must return a bool scalar, it returned a {type(value).__name__}"
        )
    p = operand(value, "while_loop")
    if p.dtype is not bool_:
        raise DtypeError(
            f"while_loop: {name_of(cond_fun)} must return a bool scalar, it returned {p.aval}; compare it, "
            "as in quabla.not_equal(c, 0.0)"
        )
    if p.shape != ():
        raise ShapeError(
            f"while_loop: {name_of(cond_fun)} must return a scalar, it returned {p.aval}; reduce it with quabla.any or "
            "quabla.all"
        )
    return p


def _eager(cond_fun: Any, body_fun: Any, init: Any, operands: Sequence[Any], max_steps: int | None) -> Any:
    carry, steps = begin("while_loop", init), 0
    while max_steps is None or steps < max_steps:
        go = _predicate(cond_fun, called("while_loop", _COND, cond_fun, carry, *operands))
        if type(go) is TraceTensor:
            raise DtypeError("while_loop: the predicate escaped its trace; please report this")
        if not go.numpy().item():
            break
        carry = keep(
            "while_loop",
            body_fun,
            carry,
            called("while_loop", _BODY, body_fun, carry, *operands),
        )
        steps += 1
    return carry
