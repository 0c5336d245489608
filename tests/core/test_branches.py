"""Steps put side by side: only those that need nothing of each other, each once, and in an order that is right."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from quabla.dtypes import float64
from quabla.lowering.branches import side_by_side
from quabla.lowering.buffers import assign, touched, writes
from quabla.lowering.loops import Apply, Branches, Buffer, Kernel, Load, Panel, Rows, Step, Store, singly


def step(out: Buffer, *operands: Buffer) -> Kernel:
    """A kernel that writes `out`."""
    loads = [Load(x, 0, (1,)) for x in operands]
    return Kernel((8,), (*loads, Apply("sin", (0,), {}, float64), Store(len(loads), out, 0, (1,))))


def buffers(n: int) -> list[Buffer]:
    return [Buffer("temporary", float64, 8, i) for i in range(n)]


def even(_: Step) -> float:
    return 1.0


def groups(steps: tuple[Step, ...]) -> list[set[int]]:
    """The numbers of what each group of steps side by side writes."""
    return [{b.index for each in s.steps for b in writes(each)} for s in steps if isinstance(s, Branches)]


def test_two_chains_run_beside_each_other() -> None:
    x, a, b, c, d = buffers(5)
    found = side_by_side([step(a, x), step(b, a), step(c, x), step(d, c)], even, 1.0)
    assert groups(found) == [{1, 3}, {2, 4}] and len(found) == 2


def test_one_chain_stays_as_it_is() -> None:
    xs = buffers(6)
    chain = [step(b, a) for a, b in itertools.pairwise(xs)]
    assert side_by_side(chain, even, 1.0) == tuple(chain)


def test_what_a_branch_needs_is_moved_before_it() -> None:
    x, a, b, c, d = buffers(5)
    cheap, last = step(b, x), step(d, a)
    steps = [step(a, x), cheap, last, step(c, b)]
    found = side_by_side(steps, lambda s: 0.0 if s in (cheap, last) else 1.0, 1.0)
    assert found[0] is cheap and groups(found) == [{1, 3}] and found[2] is last


def test_what_is_written_twice_is_written_in_order() -> None:
    x, a, b = buffers(3)
    steps = [step(a, x), step(b, a), step(a, x)]  # the third must not write before the second has read
    assert side_by_side(steps, even, 1.0) == tuple(steps)
    steps = [step(a, x), step(a, b)]
    assert side_by_side(steps, even, 1.0) == tuple(steps)


def test_what_takes_longest_begins_first() -> None:
    x, *outs = buffers(4)
    times = dict(zip((1, 2, 3), (3.0, 5.0, 2.0), strict=True))
    steps = [step(out, x) for out in outs]
    (found,) = side_by_side(steps, lambda s: times[next(iter(writes(s))).index], 1.0)
    assert isinstance(found, Branches)
    # Whoever shares the work takes it from the end.
    assert [next(iter(writes(s))).index for s in found.steps] == [3, 1, 2]


@pytest.mark.parametrize("times", [(1.0, 0.9), (1000.0, 1.0)])
def test_where_too_little_is_gained_nothing_changes(times: tuple[float, float]) -> None:
    x, a, b = buffers(3)
    steps = [step(a, x), step(b, x)]
    assert side_by_side(steps, lambda s: times[steps.index(s)], 1.0) == tuple(steps)


def test_panels_and_what_adds_their_sums_stay_outside() -> None:
    x, a, b, part = buffers(4)
    panel = Panel(8, 4, 2, 1, (), ((step(a, x), Rows("domain", 0, 1)),), (), {part: 4}, None, 0)
    steps = [panel, step(b, part), step(buffers(6)[5], x)]
    assert side_by_side(steps, even, 1.0) == tuple(steps)


@pytest.mark.parametrize("megabytes", [1, 40, 100])
def test_memory_is_worth_more_than_threads(megabytes: int) -> None:
    """Five large arrays, each read at once, and so in the memory of the one before."""
    x, *small = buffers(6)
    large = [Buffer("temporary", float64, megabytes << 17, 6 + i) for i in range(5)]
    pairs = [(step(a, x), step(b, a)) for a, b in zip(large, small, strict=True)]
    steps = [each for pair in pairs for each in pair]
    found = side_by_side(steps, lambda s: 1.0 if writes(s) <= set(large) else 0.0, 1.0)
    assert [len(g) for g in groups(found)] == {1: [5], 40: [2, 2], 100: []}[megabytes]
    assert assign(found) <= assign(steps) + (128 << 20)


@pytest.mark.parametrize(("megabytes", "beside"), [(20, [5]), (50, [])])
def test_operands_computed_early_do_not_fill_the_memory(megabytes: int, beside: list[int]) -> None:
    """Steps that could be beside the first, were the large operands of all of them there at once."""
    x, first, *small = buffers(6)
    large = [Buffer("temporary", float64, megabytes << 17, 6 + i) for i in range(4)]
    steps = [step(first, x)]
    for a, b in zip(large, small, strict=True):
        steps += [step(a, x), step(b, a)]
    found = side_by_side(steps, lambda s: 0.0 if writes(s) <= set(large) else 1.0, 1.0)
    assert [len(g) for g in groups(found)] == beside


@pytest.mark.parametrize("seed", range(60))
def test_random_plans_keep_their_meaning(seed: int) -> None:
    rng = random.Random(seed)
    known = buffers(30)
    steps: list[Step] = []
    for i in range(3, 30):
        operands = rng.sample(known[max(0, i - 9) : i], rng.randint(1, 2))
        # Some buffers are written a second time, as those of an assembly are.
        out = known[i - 1] if rng.random() < 0.15 and known[i - 1] not in operands else known[i]
        steps.append(step(out, *operands))
    costs = {id(s): rng.choice((0.0, 1.0, 1.5)) for s in steps}
    found = side_by_side(steps, lambda s: costs[id(s)], 1.0)

    def meaning(order: list[Any]) -> dict[int, Any]:
        state: dict[int, Any] = {b.index: b.index for b in known}
        for each in order:
            (out,) = writes(each)
            state[out.index] = out.index, *[state[e.buffer.index] for e in each.body if isinstance(e, Load)]
        return state

    assert sorted(map(id, singly(found))) == sorted(map(id, steps))
    assert meaning(singly(found)) == meaning(list(steps))
    backwards = [reversed(s.steps) if isinstance(s, Branches) else (s,) for s in found]
    assert meaning([each for some in backwards for each in some]) == meaning(list(steps))
    # Memory is shared by nothing that one group touches.
    assign(found)
    for group in (s for s in found if isinstance(s, Branches)):
        used = sorted(touched(group), key=lambda b: b.offset)
        assert all(a.offset + a.size * 8 <= b.offset for a, b in itertools.pairwise(used))
