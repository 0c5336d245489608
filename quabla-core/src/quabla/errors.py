"""The exceptions that Quabla raises on purpose.

Every class also subclasses the builtin that a NumPy user would catch, so `except ValueError` and `except TypeError`
keep working.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "DtypeError",
    "FileFormatError",
    "NanError",
    "PositionError",
    "QuablaError",
    "RetraceLimitError",
    "ShapeError",
    "TracerError",
    "UnsupportedOperationError",
]


class QuablaError(Exception):
    """Base class of all errors that Quabla raises on purpose.

    Example:
        >>> import quabla as qb
        >>> try:
        ...     qb.log(qb.array([1.0])) @ qb.ones(2)
        ... except qb.QuablaError as error:
        ...     print(type(error).__name__)
        ShapeError
    """


class ShapeError(QuablaError, ValueError):
    """Operands whose shapes do not fit together, or a shape that is not supported (such as an empty one).

    Example:
        >>> import quabla as qb
        >>> qb.ones(3) + qb.ones(4)
        Traceback (most recent call last):
        quabla.errors.ShapeError: add: shapes (3,) and (4,) do not broadcast: ...
    """


class DtypeError(QuablaError, TypeError, ValueError):
    """A dtype that an operation does not take, or dtypes that may not be mixed without an explicit `astype`.

    Example:
        >>> import quabla as qb
        >>> qb.ones(3) + qb.ones(3, qb.float32)
        Traceback (most recent call last):
        quabla.errors.DtypeError: add: float64[3] and float32[3] do not mix; ...
    """


class PositionError(QuablaError, IndexError, ValueError):
    """An index that is no position of its array: out of range, not whole, one too many, or a slice whose step is 0.

    Example:
        >>> import quabla as qb
        >>> qb.ones(3)[5]
        Traceback (most recent call last):
        quabla.errors.PositionError: getitem: index 5 is out of range for axis 0 ...
        >>> qb.ones(3)[::0]
        Traceback (most recent call last):
        quabla.errors.PositionError: getitem: slice ::0 of axis 0 of float64[3]: the step of a slice cannot be zero
    """


class UnsupportedOperationError(QuablaError, ValueError, NotImplementedError):
    """An operation that a device or a transform cannot do.

    Attributes:
        op: the name of the operation, or None.
        device: the name of the device that refused it, or None.

    Example:
        >>> import quabla as qb
        >>> try:
        ...     qb.jit(qb.sin, device="tpu").lower(1.0)
        ... except qb.UnsupportedOperationError as error:
        ...     print(error.device)
        tpu
    """

    def __init__(self, message: str, *, op: str | None = None, device: str | None = None) -> None:
        super().__init__(message)
        self.op = op
        self.device = device


class TracerError(QuablaError, TypeError):
    """A traced value used where a concrete one is needed, or outside the trace that made it.

    Example:
        >>> import quabla as qb
        >>> qb.jit(lambda x: x if x > 0.0 else -x)(qb.array(1.0))
        Traceback (most recent call last):
        quabla.errors.TracerError: control flow (if, while, assert, and, or, not) or bool(): ...
    """


class RetraceLimitError(QuablaError, ValueError):
    """A function was traced for more signatures than its `max_traces` allows.

    Example:
        >>> import quabla as qb
        >>> double = qb.jit(lambda x: 2.0 * x, max_traces=1)
        >>> double(qb.ones(1)).shape
        (1,)
        >>> double(qb.ones(2))
        Traceback (most recent call last):
        quabla.errors.RetraceLimitError: jit(<lambda>): already traced for 1 signatures, ...
    """


class BackendError(QuablaError, RuntimeError):
    """A backend plugin that failed: at import, at discovery, while compiling or while running.

    Attributes:
        plugin: the name of the plugin at fault, or None.

    Example:
        >>> import quabla as qb
        >>> error = qb.BackendError("the plugin 'tpu' failed", plugin="tpu")
        >>> error.plugin, isinstance(error, RuntimeError)
        ('tpu', True)
    """

    def __init__(self, message: str, *, plugin: str | None = None) -> None:
        super().__init__(message)
        self.plugin = plugin


class FileFormatError(QuablaError, ValueError):
    """A file that is not what it should be: damaged, cut short, of a newer version, or of another kind.

    Example:
        >>> import os
        >>> import tempfile
        >>> import quabla as qb
        >>> path = os.path.join(tempfile.mkdtemp(), "program.qb")
        >>> with open(path, "wb") as file:
        ...     _ = file.write(b"no program")
        >>> qb.load_program(path)
        Traceback (most recent call last):
        quabla.errors.FileFormatError: ...
    """


class NanError(QuablaError, FloatingPointError):
    """A result that holds NaN, found by `quabla.debug_nans`.

    Attributes:
        op: the name of the operation that made the first NaN, or None.
        line: the user's line that called for it, as "model.py, line 12: y = qb.log(x)", or None.
        operands: its operands, NumPy arrays.

    Example:
        >>> import quabla as qb
        >>> try:
        ...     with qb.debug_nans():
        ...         qb.jit(qb.log)(qb.array(-1.0))
        ... except qb.NanError as error:
        ...     print(error.op, [x.item() for x in error.operands])
        log [-1.0]
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        line: str | None = None,
        operands: tuple[object, ...] = (),
    ) -> None:
        super().__init__(message)
        self.op = op
        self.line = line
        self.operands = operands
