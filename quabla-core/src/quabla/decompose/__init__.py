"""Ops in terms of simpler ones: what a backend that lacks an op runs in its place.

An op's own record may say what it consists of (`Op.decompose`). For the others that have a natural definition it stands
here, since most take loops, which are built on top of the ops. No definition leads back to what it defines.
"""

from __future__ import annotations

from quabla.decompose.replace import lowered_to, reachable

__all__ = ["lowered_to", "reachable"]
