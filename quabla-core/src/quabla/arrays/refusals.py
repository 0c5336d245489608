"""What a traced value refuses: everything that needs its elements, which exist only when the program runs.

Each refusal is a `TracerError` that names the user's own line and what to write instead.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from types import CodeType, FrameType, TracebackType
from typing import Any, NoReturn

import numpy as np

from quabla.errors import QuablaError, TracerError

__all__ = [
    "COMPARISONS",
    "OPERATORS",
    "Refusals",
    "concrete_needed",
    "endless_recursion",
    "line_of",
    "name_line",
    "user_line",
]

# The ufuncs that NumPy's own operators call, and what Python calls on the right operand in their place.
OPERATORS: dict[np.ufunc, tuple[str, str]] = {
    np.add: ("__add__", "__radd__"),
    np.subtract: ("__sub__", "__rsub__"),
    np.multiply: ("__mul__", "__rmul__"),
    np.true_divide: ("__truediv__", "__rtruediv__"),
    np.power: ("__pow__", "__rpow__"),
    np.remainder: ("__mod__", "__rmod__"),
    np.floor_divide: ("__floordiv__", "__rfloordiv__"),
    np.divmod: ("__divmod__", "__rdivmod__"),
    np.matmul: ("__matmul__", "__rmatmul__"),
    np.bitwise_and: ("__and__", "__rand__"),
    np.bitwise_or: ("__or__", "__ror__"),
    np.less: ("__lt__", "__gt__"),
    np.less_equal: ("__le__", "__ge__"),
    np.greater: ("__gt__", "__lt__"),
    np.greater_equal: ("__ge__", "__le__"),
}
COMPARISONS = frozenset((np.less, np.less_equal, np.greater, np.greater_equal))

_KEEP = "return it from the function and convert the result, or keep computing with quabla functions"


def user_line() -> str:
    """The innermost source line outside Quabla and NumPy, as `" (at model.py, line 12: y = float(x))"`, or ""."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame):
            return _described(frame, frame.f_lineno)
        frame = frame.f_back
    return ""


def line_of(fun: Any) -> str:
    """Where a function is written, as `" (at model.py, line 12: def rule(primals, tangents):)"`, or ""."""
    code = getattr(inspect.unwrap(fun), "__code__", None)
    if code is None:
        return ""
    return _at(code.co_filename, code.co_firstlineno, getattr(fun, "__globals__", None))


def _is_users(frame: FrameType) -> bool:
    package = (frame.f_globals.get("__name__") or "").partition(".")[0]
    return package != "numpy" and not package.startswith("quabla")


def _described(frame: FrameType, number: int) -> str:
    return _at(frame.f_code.co_filename, number, frame.f_globals)


def _at(path: str, number: int, names: dict[str, Any] | None) -> str:
    source = linecache.getline(path, number, names).strip()
    return f" (at {path}, line {number}{': ' if source else ''}{source})"


def name_line(error: QuablaError) -> None:
    """Add to the message of an error that passes through a trace the user's line from which it came.

    The traceback ends where the trace was begun, so the line is one of the traced function. There is none if that
    function is one of Quabla's own; then an enclosing trace adds its line.
    """
    if " (at " in str(error):
        return
    found = ""
    step: TracebackType | None = error.__traceback__
    while step is not None:
        if _is_users(step.tb_frame):
            found = _described(step.tb_frame, step.tb_lineno)
        step = step.tb_next
    if found:
        error.args = (f"{error}{found}", *error.args[1:])


_MANY = 20  # so often on one stack, code explains why the stack is full


def endless_recursion(error: RecursionError) -> RecursionError | None:
    """What to say of code that is on the stack many times while it is traced; None if there is none.

    It may be one function that calls itself without end, or many from one line, each of which calls the one before.
    """
    lines: dict[CodeType, str] = {}
    found: dict[CodeType, list[tuple[int, ...]]] = {}  # per code, which function of it was called, each time
    step: TracebackType | None = error.__traceback__
    while step is not None:
        frame = step.tb_frame
        if _is_users(frame):
            calls = found.setdefault(frame.f_code, [])
            calls.append(tuple([id(frame.f_locals.get(name)) for name in frame.f_code.co_freevars]))
            if len(calls) == 2:
                lines[frame.f_code] = _described(frame, step.tb_lineno)
        step = step.tb_next
    for code, calls in found.items():
        if len(calls) < _MANY:
            continue
        limit = f"Python's recursion limit of {sys.getrecursionlimit()}"
        if len(set(calls)) > len(calls) // 2:
            return RecursionError(
                f"{len(set(calls))} functions {code.co_name} of one line call each other while they are traced, which "
                f"exceeds {limit}: raise it with sys.setrecursionlimit, or write a loop with quabla.while_loop or "
                f"quabla.fori_loop{lines[code]}"
            )
        return RecursionError(
            f"{code.co_name} calls itself without end, or deeper than {limit}, while it is traced: a condition on a "
            "traced value does not stop it, since both outcomes are traced. Let a Python number count the calls, or "
            "write a loop with quabla.while_loop or quabla.fori_loop; if the calls do end, sys.setrecursionlimit "
            f"raises the limit{lines[code]}"
        )
    return None


def concrete_needed(x: Any, what: str, remedy: str = _KEEP) -> TracerError:
    """The error for `what` on the traced value `x`."""
    return TracerError(
        f"{what}: {x.aval} is a traced value, which has no elements while its function is traced; {remedy}{user_line()}"
    )


class Refusals:
    """The methods of `TraceTensor` that raise `TracerError`. Not a base class: `ops/methods.py` installs them."""

    __slots__ = ()

    def __bool__(self) -> NoReturn:
        raise concrete_needed(
            self,
            "control flow (if, while, assert, and, or, not) or bool()",
            "select elements with quabla.where, or between two functions with quabla.cond",
        )

    def __float__(self) -> NoReturn:
        raise concrete_needed(self, "float() or a function of math")

    def __int__(self) -> NoReturn:
        raise concrete_needed(self, "int()")

    def __complex__(self) -> NoReturn:
        raise concrete_needed(self, "complex()")

    def __index__(self) -> NoReturn:
        raise concrete_needed(
            self,
            "use as an index, a shape or a range",
            "pass this number as a Python int, marked static in quabla.jit(..., static_argnums=...)",
        )

    def __round__(self, ndigits: int | None = None) -> NoReturn:
        raise concrete_needed(self, "round()")

    def __format__(self, spec: str) -> str:
        if spec:
            raise concrete_needed(self, f"format {spec!r}")
        return str(self)

    def __contains__(self, value: Any) -> NoReturn:
        raise concrete_needed(self, "in", "compare with quabla.equal and reduce with quabla.any")

    def item(self) -> NoReturn:
        raise concrete_needed(self, "item()")

    def tolist(self) -> NoReturn:
        raise concrete_needed(self, "tolist()")

    def to_flat_list(self) -> NoReturn:
        raise concrete_needed(self, "to_flat_list()")

    def numpy(self) -> NoReturn:
        raise concrete_needed(self, "numpy()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise concrete_needed(
            self,
            "conversion to a NumPy array",
            "use the function of quabla in place of NumPy's, turn NumPy operands into arrays with quabla.asarray, "
            "and combine traced values with quabla.stack",
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> NoReturn:
        if ufunc in OPERATORS and any(isinstance(x, np.ndarray | np.generic) for x in inputs):
            raise concrete_needed(
                self,
                f"numpy.{ufunc.__name__}: a NumPy operand meets a traced value",
                "convert the NumPy operand with quabla.asarray (or float) first",
            )
        raise concrete_needed(
            self,
            f"numpy.{ufunc.__name__}",
            "use the function of quabla in place of NumPy's, and turn NumPy operands into arrays with quabla.asarray",
        )

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        raise concrete_needed(
            self,
            f"numpy.{function.__name__}",
            "use the function of quabla in place of NumPy's, and turn NumPy operands into arrays with quabla.asarray",
        )

    def __dlpack__(self, **kwargs: Any) -> NoReturn:
        raise concrete_needed(self, "export through DLPack")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise concrete_needed(self, "pickling")

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __repr__(self) -> str:
        return f"TraceTensor({self.aval})"  # type: ignore[attr-defined]
