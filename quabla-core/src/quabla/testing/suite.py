"""The conformance suite as a list of checks, and a device's report on it.

`pytest` runs it through `conformance.py`, the command line through `python -m quabla conformance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from quabla.testing.checks import Check
from quabla.testing.checks_functions import function_checks, training_checks
from quabla.testing.checks_ops import composite_check, op_checks
from quabla.testing.checks_promises import promise_checks
from quabla.testing.composites import composites
from quabla.testing.report import Report, Verdict
from quabla.testing.target import Target

__all__ = ["checks", "examine"]


def checks() -> Iterator[Check]:
    """Every check of the suite, the same for every device."""
    return chain(
        promise_checks(),
        op_checks(),
        map(composite_check, composites()),
        function_checks(),
        training_checks(),
    )


def examine(
    device: str, only: str = "", progress: Callable[[int, int], None] = lambda done, of: None
) -> Report:
    """Run the suite on a device.

    Args:
        device: its name.
        only: words that an item's name must all contain, such as "op solve float64".
        progress: called with the number of checks that are done, and of all.

    Returns:
        The report; what does not work is in it, not raised.

    Raises:
        UnsupportedOperationError: there is no such device.
        BackendError: its plugin is broken.

    Example:
        >>> from quabla.testing.suite import examine
        >>> report = examine("reference", "op tanh float64")
        >>> report.conforms, report.counts["supported"] > 3, report.counts["wrong"]
        (True, True, 0)
    """
    target = Target.of(device)
    chosen = [c for c in checks() if _wanted(c, only)]
    verdicts: list[Verdict] = []
    for i, check in enumerate(chosen):
        progress(i, len(chosen))
        verdicts += check.verdicts(target)
    progress(len(chosen), len(chosen))
    return Report.of(target, verdicts)


def _wanted(check: Check, only: str) -> bool:
    words = f"{check.group} {check.subject} {check.sample} {check.dtype} {check.transform}".split()
    return all(word in words for word in only.split())
