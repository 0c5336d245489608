"""Loops and branches as context managers, and the builder that has everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from .memory import Memory
from .values import Value, constant


class Loop:
    """A loop that carries values: `values` inside the body, `update` at its end, `results` after it."""

    __slots__ = ("_next", "values")

    def __init__(self, values: list[Value]) -> None:
        self.values = values
        self._next: list[Value] | None = None

    def update(self, *values: Value) -> None:
        """Give the values of the next iteration, in the order of `values`; once, at the end of the body."""
        if self._next is not None:
            raise ValueError("a loop is updated once per body")
        if [value.type for value in values] != [value.type for value in self.values]:
            raise TypeError(f"loop carries {self.values}, updated with {list(values)}")
        self._next = list(values)

    @property
    def results(self) -> list[Value]:
        """The carried values after the last iteration."""
        return self.values


class While(Loop):
    """A loop with a condition of its own: call `proceed(condition)` before the body's code."""

    __slots__ = ("_proceed",)

    def __init__(self, values: list[Value], proceed: Callable[[Value], None]) -> None:
        super().__init__(values)
        self._proceed = proceed

    def proceed(self, condition: Value) -> None:
        """End the part that computes the condition: the body runs while it is true."""
        self._proceed(condition)


class Branch:
    """An if/else that may yield values; made by `Builder.branch`."""

    __slots__ = ("_builder", "_done", "_ends", "_labels", "_values")

    def __init__(self, builder: Builder, labels: tuple[str, str], done: str) -> None:
        self._builder = builder
        self._labels = labels
        self._done = done
        self._values: list[list[Value]] = []
        self._ends: list[str] = []

    @contextmanager
    def _side(self, side: int) -> Iterator[Branch]:
        b = self._builder
        if len(self._ends) != side:
            raise ValueError("a branch is written in the order then(), otherwise(), results()")
        b._start_block(self._labels[side])
        self._values.append([])
        yield self
        self._ends.append(b.block)
        if b.block:  # the side may have returned
            b._terminate(f"br label %{self._done}")

    def then(self) -> AbstractContextManager[Branch]:
        """The context of the code that runs where the condition is true; write it first."""
        return self._side(0)

    def otherwise(self) -> AbstractContextManager[Branch]:
        """The context of the code that runs where the condition is false; write it second."""
        return self._side(1)

    def give(self, *values: Value) -> None:
        """The values of the side being written."""
        self._values[-1] = list(values)

    def results(self) -> list[Value]:
        """Join the two sides (call it once, also when there are no values) and return the joined values."""
        b = self._builder
        b._start_block(self._done)
        first, second = self._values
        if not all(self._ends):  # one side returned: the other's values hold
            return first if self._ends[0] else second
        if [value.type for value in first] != [value.type for value in second]:
            raise TypeError(f"the sides of a branch give {first} and {second}")
        return [
            b._emit(x.type, f"phi {x.type} [ {x.name}, %{self._ends[0]} ], [ {y.name}, %{self._ends[1]} ]")
            for x, y in zip(first, second, strict=True)
        ]


class Builder(Memory):
    """Writes one function. Methods named after LLVM instructions append one and return its `Value`."""

    __slots__ = ()

    # Control flow

    def ret(self, value: Value | None = None) -> None:
        """Return from the function."""
        if (value.type if value else "void") != self.returns:
            raise TypeError(f"function {self.name!r} returns {self.returns}, not {value}")
        self._terminate(f"ret {value.type} {value.name}" if value else "ret void")

    def unreachable(self) -> None:
        """End the block where control never arrives."""
        self._terminate("unreachable")

    def _index(self, x: Value | int, type: str) -> Value:
        return constant(type, x) if isinstance(x, int) else x

    @contextmanager
    def carry(
        self, start: Value | int, stop: Value | int, initial: Sequence[Value], step: Value | int = 1
    ) -> Iterator[tuple[Value, Loop]]:
        """A counted loop with carried values: `with b.carry(0, n, [zero]) as (i, loop): ...; loop.update(next)`.

        The body sees `loop.values`, gives the next ones with `loop.update(...)`, and `loop.results` holds after it. The
        body runs while `i < stop` (signed), so not at all for an empty range; `step` must be positive.
        """
        type = next((x.type for x in (start, stop, step) if isinstance(x, Value)), "i64")
        first, last, stride = self._index(start, type), self._index(stop, type), self._index(step, type)
        self._same("loop", first, last)
        self._same("loop", first, stride)
        before, head, body, done = self.block, self._label(), self._label(), self._label()
        self._terminate(f"br label %{head}")
        self._start_block(head)
        patch = len(self._lines)
        i = self._emit(type, "")
        loop = Loop([self._emit(value.type, "") for value in initial])
        go = self.icmp("slt", i, last)
        self._terminate(f"br i1 {go.name}, label %{body}, label %{done}")
        self._start_block(body)
        yield i, loop
        following = self.add(i, stride, "nsw")
        self._close(patch, before, [(i, first, following)], loop, initial, head)
        self._start_block(done)

    def _close(
        self,
        patch: int,
        before: str,
        counters: list[tuple[Value, Value, Value]],
        loop: Loop,
        initial: Sequence[Value],
        head: str,
    ) -> None:
        """Write the phis of a loop head, now that the values of the back edge are known."""
        if loop._next is None:
            if loop.values:
                raise ValueError("a loop with carried values needs loop.update(...) at the end of its body")
            loop._next = []
        carried = [*counters, *zip(loop.values, initial, loop._next, strict=True)]
        for offset, (phi, first, following) in enumerate(carried):
            self._lines[patch + offset] = (
                f"{phi.name} = phi {phi.type} [ {first.name}, %{before} ], [ {following.name}, %{self.block} ]"
            )
        self._terminate(f"br label %{head}")

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """A counted loop over `range(start, stop, step)`, `step` positive; yields the index (`i64` by default)."""
        with self.carry(start, stop, (), step) as (i, _):
            yield i

    @contextmanager
    def while_(self, initial: Sequence[Value]) -> Iterator[While]:
        """A loop with a condition: compute it from `loop.values`, call `loop.proceed(condition)`, then write the body.

        with b.while_([x]) as loop:
            loop.proceed(b.fcmp("ogt", loop.values[0], limit))
            loop.update(b.fmul(loop.values[0], half))
        (x,) = loop.results
        """
        before, head, body, done = self.block, self._label(), self._label(), self._label()
        self._terminate(f"br label %{head}")
        self._start_block(head)
        patch = len(self._lines)
        values = [self._emit(value.type, "") for value in initial]

        def proceed(condition: Value) -> None:
            self._terminate(f"br i1 {condition.name}, label %{body}, label %{done}")
            self._start_block(body)

        loop = While(values, proceed)
        yield loop
        self._close(patch, before, [], loop, initial, head)
        self._start_block(done)

    def branch(self, condition: Value, likely: bool | None = None) -> Branch:
        """An if/else that may yield values.

        branch = b.branch(condition)
        with branch.then():
            branch.give(x)
        with branch.otherwise():
            branch.give(y)
        (z,) = branch.results()
        """
        then, otherwise, done = self._label(), self._label(), self._label()
        self._conditional(condition, then, otherwise, likely)
        return Branch(self, (then, otherwise), done)

    @contextmanager
    def if_(self, condition: Value, likely: bool | None = None) -> Iterator[None]:
        """Code that runs where the scalar condition is true; `likely` tells the code layout what to expect."""
        then, done = self._label(), self._label()
        self._conditional(condition, then, done, likely)
        self._start_block(then)
        yield
        if self.block:  # the body may have returned
            self._terminate(f"br label %{done}")
        self._start_block(done)

    def _conditional(self, condition: Value, then: str, otherwise: str, likely: bool | None) -> None:
        if condition.type != "i1":
            raise TypeError(f"a branch needs one i1, got {condition.type}; use any() or all() on a mask")
        weights = ""
        if likely is not None:
            first, second = (2000, 1) if likely else (1, 2000)
            weights = ", !prof " + self.module.metadata(f'!{{!"branch_weights", i32 {first}, i32 {second}}}')
        self._terminate(f"br i1 {condition.name}, label %{then}, label %{otherwise}{weights}")
