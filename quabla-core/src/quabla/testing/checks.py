"""`Check`: one promise that a device keeps, refuses correctly, or breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quabla.testing.report import REFUSED, SUPPORTED, WRONG, Verdict
from quabla.testing.target import RefusedCorrectly, Target

__all__ = ["Check"]


@dataclass(frozen=True, eq=False)
class Check:
    """A promise, and how it is tested.

    Attributes:
        group: "op", "program", "function", "training" or "promise".
        subject: what is tested: an op, a program, an optimiser.
        sample: on what.
        dtype: in which dtype.
        transform: under which transform.
        test: raises where the promise is broken, and `RefusedCorrectly` where the device rightly refuses.
        implies: weaker checks. They hold where this one does, and are tested by themselves only where it does not: one
            program that holds a value and its derivatives takes less time to compile than one for each.
    """

    group: str
    subject: str
    sample: str
    dtype: str
    transform: str
    test: Callable[[Target], None]
    implies: tuple[Check, ...] = ()

    def __str__(self) -> str:
        parts = (self.subject, self.sample, self.dtype, self.transform)
        return "-".join(part.replace(" ", "_") for part in parts if part)

    def verdicts(self, target: Target) -> Iterator[Verdict]:
        """What becomes of the check and of those that it implies."""
        own = self._verdict(target)
        for weaker in self.implies:
            if own.outcome == SUPPORTED:
                yield weaker._named(SUPPORTED)
            else:
                yield from weaker.verdicts(target)
        yield own

    def _named(self, outcome: str, detail: str = "", seconds: float = 0.0) -> Verdict:
        return Verdict(
            self.group, self.subject, self.sample, self.dtype, self.transform, outcome, detail, seconds
        )

    def _verdict(self, target: Target) -> Verdict:
        start = time.perf_counter()
        outcome, detail = SUPPORTED, ""
        try:
            self.test(target)
        except RefusedCorrectly as refusal:
            outcome, detail = REFUSED, str(refusal)
        except AssertionError as error:
            outcome, detail = WRONG, str(error)
        except Exception as error:
            outcome, detail = WRONG, f"{type(error).__name__}: {error}"
        return self._named(outcome, detail, time.perf_counter() - start)
