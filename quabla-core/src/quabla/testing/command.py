"""`python -m quabla conformance`: the conformance suite on one device, and its report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from quabla.errors import QuablaError
from quabla.testing.suite import examine

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Print the report; 0 if nothing is wrong, 1 if something is, 2 if the device is not there."""
    parser = argparse.ArgumentParser(prog="python -m quabla conformance", description=__doc__)
    parser.add_argument("--device", required=True, metavar="NAME", help="the device to examine")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the report as JSON")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write the report as a page")
    parser.add_argument(
        "--only",
        default="",
        metavar="WORDS",
        help='only items with all these words, such as "op solve float64"',
    )
    options = parser.parse_args(arguments)
    try:
        report = examine(options.device, options.only, _progress)
    except QuablaError as error:
        print(error, file=sys.stderr)
        return 2
    if not report.verdicts:
        print(f"no item of the suite has all of the words {options.only!r}", file=sys.stderr)
        return 2
    for path, text in ((options.json, report.as_json), (options.html, report.as_html)):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(), encoding="utf-8")
    encoding = sys.stdout.encoding or "ascii"
    print(report.as_text().encode(encoding, "replace").decode(encoding))
    return 0 if report.conforms else 1


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty() and (done % 20 == 0 or done == of):
        print(f"\r{done} of {of}" + ("\n" if done == of else ""), end="", file=sys.stderr, flush=True)
