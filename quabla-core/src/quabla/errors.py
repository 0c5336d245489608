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
    "QuablaError",
    "RetraceLimitError",
    "ShapeError",
    "TracerError",
    "UnsupportedOperationError",
]


class QuablaError(Exception):
    """Base class of all errors that Quabla raises on purpose."""


class ShapeError(QuablaError, ValueError):
    """Operands whose shapes do not fit together, or a shape that is not supported (such as an empty one)."""


class DtypeError(QuablaError, TypeError, ValueError):
    """A dtype that an operation does not take, or dtypes that may not be mixed without an explicit `astype`."""


class UnsupportedOperationError(QuablaError, ValueError, NotImplementedError):
    """An operation that a device or a transform cannot do.

    Attributes:
        op: the name of the operation, or None.
        device: the name of the device that refused it, or None.
    """

    def __init__(self, message: str, *, op: str | None = None, device: str | None = None) -> None:
        super().__init__(message)
        self.op = op
        self.device = device


class TracerError(QuablaError, TypeError):
    """A traced value used where a concrete one is needed, or outside the trace that made it."""


class RetraceLimitError(QuablaError, ValueError):
    """A function was traced for more signatures than its `max_traces` allows."""


class BackendError(QuablaError, RuntimeError):
    """A backend plugin that failed: at import, at discovery, while compiling or while running.

    Attributes:
        plugin: the name of the plugin at fault, or None.
    """

    def __init__(self, message: str, *, plugin: str | None = None) -> None:
        super().__init__(message)
        self.plugin = plugin


class FileFormatError(QuablaError, ValueError):
    """A file that is not what it should be: damaged, cut short, of a newer version, or of another kind."""


class NanError(QuablaError, FloatingPointError):
    """A result that holds NaN, found by `quabla.debug_nans`.

    Attributes:
        op: the name of the operation that made the first NaN, or None.
        line: the user's line that called for it, as "model.py, line 12: y = qb.log(x)", or None.
        operands: its operands, NumPy arrays.
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
