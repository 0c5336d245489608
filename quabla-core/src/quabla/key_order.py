"""The keys of dicts in trees: visited sorted, given back as the caller inserted them."""

from __future__ import annotations

from typing import Any

__all__ = ["KNOWN", "SORTED", "Order", "sort_keys"]


class Order:
    """The order in which a dict's keys were inserted: carried along in a structure, but no part of its equality."""

    __slots__ = ("keys",)

    def __init__(self, keys: tuple[Any, ...] | None) -> None:
        self.keys = keys

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order)

    def __hash__(self) -> int:
        return 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Order, (self.keys,)


SORTED = Order(None)

# Keys in the order of insertion -> sorted, for keys that are strings (1 and True would be one entry).
KNOWN: dict[tuple[Any, ...], tuple[tuple[Any, ...], Order]] = {}


def sort_keys(inserted: tuple[Any, ...]) -> tuple[tuple[Any, ...], Order]:
    """The keys sorted, and the order in which they came.

    Raises:
        TypeError: they do not sort, or are arrays.
    """
    if any(hasattr(k, "aval") for k in inserted):
        raise TypeError("an array has no order, and one that is traced no elements")
    ordered = tuple(sorted(inserted))
    found = (ordered, SORTED if ordered == inserted else Order(inserted))
    if all(type(k) is str for k in inserted):
        if len(KNOWN) > 4096:
            KNOWN.clear()
        KNOWN[inserted] = found
    return found
