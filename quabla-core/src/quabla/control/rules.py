"""What `custom_jvp` and `custom_vjp` share: functions with rules, rules as programs, and what a rule must return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quabla import tree
from quabla.arrays.tensor import Tensor, wrap_as
from quabla.arrays.tracer import TraceTensor, trace
from quabla.errors import DtypeError, ShapeError, TracerError, UnsupportedOperationError
from quabla.ir.program import Program
from quabla.ops.apply import operand
from quabla.ops.structure import broadcast, cast, lead, sum_over
from quabla.shapes import ShapeDtype, aval_of, wholes
from quabla.transforms.batch import batch_values
from quabla.transforms.linearity import transposable
from quabla.transforms.staging import Staged, a_kind, by_name, name_of
from quabla.typed_repr import typed

__all__ = ["Custom", "Rule", "agreeing", "mirrored", "require_constant", "whole_batch"]


def whole_batch(program: Program, over: Sequence[bool], size: int, summed: Sequence[bool] = ()) -> Program:
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
        author: the rule as a function, where there is one.
        origin: the rule of one lane and how a program becomes one of many, where this is one of many.
    """

    __slots__ = ("author", "made", "make", "name", "origin", "tangents")

    def __init__(
        self,
        name: str,
        make: Callable[[], Staged],
        author: Any = None,
        origin: tuple[Rule, Callable[[Program], Program]] | None = None,
    ) -> None:
        self.name = name
        self.make = make
        self.author = author
        self.origin = origin
        self.made: Staged | None = None
        self.tangents: Program | None = None

    def __repr__(self) -> str:
        return f"<rule of {self.name}>"

    @property
    def staged(self) -> Staged:
        """The traced rule.

        Raises:
            TracerError: it closes over traced values.
        """
        if self.made is None:
            made = self.make()
            if made.captures:
                raise TracerError(
                    f"the derivative rule of {self.name} closes over a traced value ({made.captures[0].aval}), or has "
                    "it from nondiff_argnums; pass it as an argument like the others, or among the residuals"
                )
            self.made = made
        return self.made

    @property
    def program(self) -> Program:
        """The traced rule as a program."""
        return self.staged.program

    def linear(self, count: int, at: int) -> Program:
        """The tangents that a rule of (primals, tangents) returns, as a program to be run backwards.

        Args:
            count: how many primals it takes.
            at: how many values it returns before the tangents.

        Raises:
            UnsupportedOperationError: the rule is not linear.
        """
        if self.tangents is None:
            if self.origin is None:
                self.tangents = transposable(self.program, count, at, self.name, self.author)
            else:  # in messages stands what the author wrote
                rule, widened = self.origin
                self.tangents = widened(rule.linear(count, at))
        return self.tangents

    def batched(
        self, over: Callable[[Program], Sequence[bool]], size: int, summed: Sequence[bool] = ()
    ) -> Rule:
        """The rule on many lanes; `over` says which inputs of its program are mapped, `summed` which results to add."""

        def widened(program: Program) -> Program:
            return whole_batch(program, over(program), size, summed)

        def make() -> Staged:
            return Staged(widened(self.program), (), self.staged.result)

        return Rule(self.name, make, origin=(self, widened))


def require_constant(where: str, rule: Rule, moving: Sequence[bool], what: str) -> None:
    """Refuse to differentiate by a traced value that the function of a rule closes over.

    Args:
        where: the transform.
        rule: its rule.
        moving: which captures of the function are differentiated.
        what: the rule says of arguments only.

    Raises:
        UnsupportedOperationError: some are.
    """
    if any(moving):
        raise UnsupportedOperationError(
            f"{where}: {rule.name} closes over a traced value that is being differentiated, or has it from "
            f"nondiff_argnums, and its rule has no {what} for it; pass the value as an argument like the others",
            op=where,
        )


def _positions(where: str, nondiff_argnums: Any) -> tuple[int, ...]:
    try:
        given, _ = wholes(nondiff_argnums, (tuple, list, set, frozenset, range))
    except TypeError:
        given = (-1,)
    if any(i < 0 for i in given):
        raise DtypeError(f"{where}: nondiff_argnums must be non-negative ints, got {typed(nondiff_argnums)}")
    return given


def _restored(kind: type, state: dict[str, Any]) -> Any:
    made: Any = object.__new__(kind)
    vars(made).update(state)
    return made


class Custom:
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
        return [args[i] for i in self.nondiff], [args[i] for i in self.others(len(args))]

    def others(self, count: int) -> list[int]:
        """The positions that are differentiated, of so many."""
        return [i for i in range(count) if i not in self.nondiff]

    def join(self, fixed: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """All arguments, in their places."""
        rest, given = iter(others), dict(zip(self.nondiff, fixed, strict=True))
        return [given[i] if i in given else next(rest) for i in range(len(fixed) + len(others))]


def agreeing(where: str, name: str, who: str, outs: list[Any], structure: Any, fun: Staged) -> list[Any]:
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


def mirrored(
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
        if array.dtype.kind != "f" and not array.aval.weak:
            raise DtypeError(
                f"{where}: a {what} of {name} has type {array.aval} where its value has type {aval}; convert it with "
                "astype, or return None for zero"
            )
        out.append(cast(array, aval.dtype))
    return out
