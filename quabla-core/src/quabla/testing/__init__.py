"""For tests of functions, ops and backends: `check_grads`, and the conformance suite.

Run the suite on a device with `python -m quabla conformance --device=NAME`, or as tests with
`pytest --pyargs quabla.testing.conformance --quabla-device=NAME`; without the option it runs on every device that is
there.
"""

from __future__ import annotations

from quabla.testing.gradients import check_grads

__all__ = ["check_grads"]
