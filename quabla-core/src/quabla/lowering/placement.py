"""In which kernel a value is computed: later than it could be, or several times, where that saves memory traffic."""

from __future__ import annotations

from quabla.lowering.items import Full, Item, View, stored, written

__all__ = ["delay", "repeat"]

_REPEATED = 4  # cheap ops that may be computed again in place of one load
_CHEAP = frozenset((
    "abs", "add", "astype", "equal", "greater", "greater_equal", "integer_power", "isfinite", "isinf", "isnan", "less",
    "less_equal", "logical_and", "logical_not", "logical_or", "maximum", "minimum", "mul", "neg", "not_equal", "relu",
    "sign", "stop_gradient", "sub", "where",
))  # fmt: skip

_TWINS = {"sin": "cos", "cos": "sin", "tanh": "sech2", "sech2": "tanh"}
"""Ops of which the second costs little where the first is computed, too."""


def delay(items: list[Item]) -> None:
    """Move values to the kernel of their first use where no more values are stored for it."""
    for item in reversed(items):
        if item.kind != "map" or item.buffer is not None or not item.users or _has_twin(item):
            continue
        if not all([joins and user.kind == "map" for user, joins in item.users]):
            continue
        first = min([user.depth for user, _ in item.users])
        if first <= item.depth:
            continue
        more = 0
        for rep in item.args:
            if isinstance(rep, View) and rep.item.kind == "map" and not stored(rep.item, item):
                more += 1
        if more <= 1:
            item.depth = first


def _has_twin(item: Item) -> bool:
    """Whether the twin of an item is computed in the same kernel."""
    twin = _TWINS.get(item.op)
    if twin is None:
        return False
    x = item.args[0]
    together = [u for u, _ in x.item.users if u.depth == item.depth] if isinstance(x, View) else []
    return any([u.kind == "map" and u.op == twin and u.args[0] == x for u in together])


def repeat(items: list[Item]) -> None:
    """Mark cheap values that other kernels compute again instead of reading them from memory."""
    for item in items:
        if item.kind != "map" or item.op not in _CHEAP or not recipe(item):
            continue
        if item.buffer is not None or not stored(item) or not all([joins for _, joins in item.users]):
            continue
        assert item.roots is not None
        # Kernels that would read a root for this alone; each of them reads the item now.
        depths = {user.depth for user, _ in item.users if user.depth != item.depth}
        extra = 0
        for root in item.roots:
            read = {user.depth for user, _ in root.users if user.domain == item.domain}
            extra += len(depths - read)
        if extra <= len(depths) + 1:
            item.again = True
            for root in item.roots:
                root.users.extend(
                    [(user, root.kind == "map") for user, _ in item.users if user.depth != item.depth]
                )


def recipe(item: Item) -> bool:
    """Whether an item is few cheap ops away from values that are in memory; notes which."""
    roots: set[Item] = set()
    ops = 1
    for rep in item.args:
        if isinstance(rep, Full):
            continue
        source = rep.item
        if rep.whole and source.domain == item.domain:
            if source.kind != "map" or written(source):
                roots.add(source)
            elif source.roots is not None:
                roots |= source.roots
                ops += source.ops
            else:
                return False
        elif source.size * 4 > item.size:
            return False  # another large array, read through a view
    if ops > _REPEATED or len(roots) > 2:
        return False
    item.roots, item.ops = frozenset(roots), ops
    return True
