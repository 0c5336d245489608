"""What a program asks of a device, and the refusal of what the device lacks.

A backend's `lower` calls `require` once: it walks the whole program, branches that may never be taken and the bodies of
loops included, before anything is sent to a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from quabla.errors import UnsupportedOperationError
from quabla.ir.program import Node, Program

if TYPE_CHECKING:
    from quabla.backends.capabilities import BackendCapabilities

__all__ = ["dtypes_in", "nodes_in", "ops_in", "refuse", "require"]


def nodes_in(program: Program) -> Iterator[Node]:
    """Every node of a program, those of its regions included.

    Example:
        >>> import quabla as qb
        >>> from quabla.backends.support import nodes_in
        >>> def f(x):
        ...     return qb.cond(x > 0.0, qb.sin, qb.cos, x)
        >>> sorted(node.op.name for node in nodes_in(qb.jit(f).lower(qb.array(1.0)).program.graph))
        ['cond', 'cos', 'full', 'greater', 'sin']
    """
    for node in program.nodes:
        yield node
        for param in node.params.values():
            if isinstance(param, Program):
                yield from nodes_in(param)


def ops_in(program: Program) -> set[str]:
    """The names of the ops that a program uses, those of its regions included."""
    return {node.op.name for node in nodes_in(program)}


def dtypes_in(program: Program) -> set[str]:
    """The names of the dtypes of its inputs and of all that it computes."""
    used = {aval.dtype.name for aval in program.in_avals}
    return used.union(*(_dtypes_of(node) for node in nodes_in(program)))


def _dtypes_of(node: Node) -> set[str]:
    return {v.aval.dtype.name for v in (*node.inputs, *node.outputs)}


def require(program: Program, can: BackendCapabilities, device: str) -> None:
    """Refuse a program that uses an op or a dtype that a device lacks.

    Args:
        program: any program.
        can: what the device can do.
        device: its name, for the error.

    Raises:
        UnsupportedOperationError: naming the op, its operands and the device.

    Example:
        >>> import quabla as qb
        >>> from quabla.backends.capabilities import BackendCapabilities
        >>> from quabla.backends.support import require
        >>> can = BackendCapabilities(dtypes=("float64",), ops=("add",), native_float64=True)
        >>> require(qb.jit(qb.sin).lower(qb.array(1.0)).program.graph, can, "abacus")
        Traceback (most recent call last):
        ...
        quabla.errors.UnsupportedOperationError: sin: device 'abacus' has no code for this operation on float64[]; run \
the function on another device (quabla.devices() lists them)
    """
    ops, dtypes = frozenset(can.ops), frozenset(can.dtypes)
    for node in nodes_in(program):
        if node.op.name not in ops:
            refuse(node, device)
        foreign = _dtypes_of(node) - dtypes
        if foreign:
            raise UnsupportedOperationError(
                f"{node.op.name}: device {device!r} has no {', '.join(sorted(foreign))} "
                f"({_operands(node)}); it has {', '.join(can.dtypes)}: convert with astype, or run the function on "
                "another device",
                op=node.op.name,
                device=device,
            )
    for aval in program.in_avals:
        if aval.dtype.name not in dtypes:
            raise UnsupportedOperationError(
                f"device {device!r} takes no {aval.dtype.name}, and an input is {aval!r}; it has "
                f"{', '.join(can.dtypes)}: convert with astype, or run the function on another device",
                device=device,
            )


def refuse(node: Node, device: str, decomposed: bool = False) -> NoReturn:
    """Raise the error for a node whose op a device lacks.

    Args:
        node: the node.
        device: the device.
        decomposed: whether it was tried to express the op by others, in vain.

    Raises:
        UnsupportedOperationError: always.
    """
    tried = ", nor for all of what it consists of" if decomposed else ""
    raise UnsupportedOperationError(
        f"{node.op.name}: device {device!r} has no code for this operation on {_operands(node)}{tried}; run the "
        "function on another device (quabla.devices() lists them)",
        op=node.op.name,
        device=device,
    )


def _operands(node: Node) -> str:
    return " and ".join(repr(v.aval) for v in node.inputs) or "no operands"
