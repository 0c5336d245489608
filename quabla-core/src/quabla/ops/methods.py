"""The operators and methods of arrays, defined once for `Tensor`, `TensorView` and `TraceTensor`.

A class body holds them, and the end of the file installs them in the three classes. Traced operators are hot: each goes
straight to the op when the other operand is an array or a Python number, and thinks about foreign types only otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from quabla import elsewhere
from quabla.arrays.convert import as_operand
from quabla.arrays.refusals import Refusals, concrete_needed, user_line
from quabla.arrays.tensor import Array, SizeError, Tensor
from quabla.arrays.tracer import TraceTensor
from quabla.arrays.view import TensorView, slice_bounds, view_of
from quabla.errors import DtypeError
from quabla.ir.op import Op
from quabla.ops import (
    angles,
    compare,
    cumulative,
    diagonals,
    elementwise,
    hyperbolic,
    index,
    linalg,
    logarithms,
    matmul,
    norms,
    powers,
    reduce,
    rounding,
    special,
    statistics,
    structure,
)
from quabla.ops import shape as shaping
from quabla.ops import sort as sorting
from quabla.ops import take as taking
from quabla.ops.apply import binary, operand, unary
from quabla.spellings import spelled

__all__ = ["Methods"]

Method = Callable[[Any, Any], Any]

_ARRAYS = (Tensor, TraceTensor, TensorView)
# What an operator hands on without a further look.
_KNOWN = frozenset((*_ARRAYS, float, int, bool))
# Kinds of number, and what can never become an operand: no other class is asked, and `as_operand` says what is wrong,
# where Python's own message would be "unsupported operand type(s)".
_SETTLED = (int, float, str, bytes, list, tuple, dict, set, complex, type(None))


def _foreign(self: Any, other: Any, symbol: str) -> Any:
    """`other` as an operand, or NotImplemented so that its own class may answer."""
    if isinstance(other, np.ndarray | np.generic):
        if isinstance(other, float):
            return float(other)  # numpy.float64 is a Python float
        if isinstance(other, np.integer):
            return int(other)  # an integer scalar has no floating dtype of its own
        if type(self) is TraceTensor:
            raise concrete_needed(
                self,
                f"{symbol}: a NumPy operand meets a traced value",
                "convert the NumPy operand with quabla.asarray (or float) first",
            )
        return as_operand(other, symbol)
    if isinstance(other, _SETTLED):
        return as_operand(other, symbol)
    return NotImplemented


def _operator(symbol: str, function: Method) -> tuple[Method, Method]:
    """The method of a binary operator and the reflected one."""

    def forward(self: Any, other: Any) -> Any:
        if type(other) in _KNOWN:
            return function(self, other)
        other = _foreign(self, other, symbol)
        return other if other is NotImplemented else function(self, other)

    def reflected(self: Any, other: Any) -> Any:
        if type(other) in _KNOWN:
            return function(other, self)
        other = _foreign(self, other, symbol)
        return other if other is NotImplemented else function(other, self)

    return forward, reflected


def _arithmetic(symbol: str, op: Op) -> tuple[Method, Method]:
    """The same for an arithmetic op, with one call less."""

    def forward(self: Any, other: Any) -> Any:
        if type(other) in _KNOWN:
            return binary(op, self, other)
        other = _foreign(self, other, symbol)
        return other if other is NotImplemented else binary(op, self, other)

    def reflected(self: Any, other: Any) -> Any:
        if type(other) in _KNOWN:
            return binary(op, other, self)
        other = _foreign(self, other, symbol)
        return other if other is NotImplemented else binary(op, other, self)

    return forward, reflected


def _power(x: Any, y: Any) -> Any:
    if type(y) is int and y >= 0 and type(x) in (TraceTensor, Tensor) and x.aval.dtype.kind == "f":
        return powers.integer_power(x, y)
    return powers.power(x, y)


def _one_or_several(args: tuple[Any, ...]) -> Any:
    """The arguments of `x.reshape(2, 3)` or `x.reshape((2, 3))` as one."""
    return args[0] if len(args) == 1 else args


def _unary(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function as a method. A plain function is one already, but help() should say where it comes from."""

    def method(self: Any) -> Any:
        return function(self)

    method.__name__ = function.__name__
    method.__doc__ = f"The same as `quabla.{function.__name__}(x)`."
    return method


def _binary(function: Method, name: str = "") -> Method:
    def method(self: Any, other: Any) -> Any:
        return function(self, other)

    method.__name__ = name or function.__name__
    method.__doc__ = f"The same as `quabla.{function.__name__}(x, other)`."
    return method


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Any:
        return function(self, axis, keepdims)

    method.__name__ = function.__name__
    method.__doc__ = f"The same as `quabla.{function.__name__}(x, axis, keepdims)`."
    return method


class Methods:
    """The operators and methods that all arrays share. Not a base class: see the end of the file."""

    __slots__ = ()

    __add__, __radd__ = _arithmetic("+", elementwise.add_op)
    __sub__, __rsub__ = _arithmetic("-", elementwise.sub_op)
    __mul__, __rmul__ = _operator("*", elementwise.mul)
    __truediv__, __rtruediv__ = _arithmetic("/", elementwise.div_op)
    __rpow__ = _operator("**", _power)[1]
    __mod__, __rmod__ = _arithmetic("%", rounding.mod_op)
    __floordiv__, __rfloordiv__ = _operator("//", rounding.floor_divide)
    __divmod__, __rdivmod__ = _operator("divmod", rounding.divmod)
    __matmul__, __rmatmul__ = _operator("@", matmul.matmul)
    __and__, __rand__ = _operator("&", compare.logical_and)
    __or__, __ror__ = _operator("|", compare.logical_or)
    __lt__, __gt__ = _operator("<", compare.less)[0], _operator(">", compare.greater)[0]
    __le__, __ge__ = _operator("<=", compare.less_equal)[0], _operator(">=", compare.greater_equal)[0]

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if modulus is not None:
            raise DtypeError(
                "pow: there is no third argument (modulus) for arrays; write quabla.mod(x**y, modulus)"
            )
        if type(other) in _KNOWN:
            return _power(self, other)
        other = _foreign(self, other, "**")
        return other if other is NotImplemented else _power(self, other)

    def __neg__(self) -> Any:
        return unary(elementwise.neg_op, self)

    def __pos__(self) -> Any:
        return operand(self, "+")

    def __abs__(self) -> Any:
        return unary(elementwise.abs_op, self)

    def __invert__(self) -> Any:
        return compare.logical_not(self)

    def __getitem__(self, key: Any) -> Any:
        return index.getitem(operand(self, "indexing"), key)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TypeError(
            f"setting elements: arrays are immutable, and so is this {self.aval}; "  # type: ignore[attr-defined]
            f"make a new one with quabla.where(mask, new, x), quabla.concat or quabla.stack{user_line()}"
        )

    def __len__(self) -> int:
        extents: tuple[int, ...] = self.shape  # type: ignore[attr-defined]
        if not extents:
            raise SizeError(
                f"len() of an array of rank 0, {self.aval}: it has no axis; x.size counts its elements"  # type: ignore[attr-defined]
            )
        return extents[0]

    def __iter__(self) -> Iterator[Any]:
        extents: tuple[int, ...] = self.shape  # type: ignore[attr-defined]
        if not extents:
            raise SizeError(
                f"iteration over an array of rank 0, {self.aval}: it has no axis; use the array itself"  # type: ignore[attr-defined]
            )
        x = operand(self, "iteration")
        return (index.getitem(x, i) for i in range(extents[0]))

    # --- functions as methods -------------------------------------------------------------------------------------

    add, sub, mul, div = (
        _binary(f) for f in (elementwise.add, elementwise.sub, elementwise.mul, elementwise.div)
    )
    maximum, minimum = _binary(elementwise.maximum), _binary(elementwise.minimum)
    equal, not_equal = _binary(compare.equal), _binary(compare.not_equal)
    less, less_equal = _binary(compare.less), _binary(compare.less_equal)
    greater, greater_equal = _binary(compare.greater), _binary(compare.greater_equal)
    logical_and, logical_or = _binary(compare.logical_and), _binary(compare.logical_or)
    logical_not = _unary(compare.logical_not)
    isnan, isinf, isfinite = _unary(compare.isnan), _unary(compare.isinf), _unary(compare.isfinite)
    matmul = _binary(matmul.matmul)

    abs, sign, neg = _unary(elementwise.abs), _unary(elementwise.sign), _unary(elementwise.neg)
    exp, log, sqrt = _unary(elementwise.exp), _unary(elementwise.log), _unary(elementwise.sqrt)
    sin, cos, tanh = _unary(elementwise.sin), _unary(elementwise.cos), _unary(elementwise.tanh)
    relu, sigmoid, softplus = (
        _unary(elementwise.relu),
        _unary(elementwise.sigmoid),
        _unary(elementwise.softplus),
    )
    stop_gradient = _unary(elementwise.stop_gradient)
    tan, arcsin, arccos, arctan = (
        _unary(f) for f in (angles.tan, angles.arcsin, angles.arccos, angles.arctan)
    )
    sinh, cosh = _unary(hyperbolic.sinh), _unary(hyperbolic.cosh)
    arcsinh, arccosh, arctanh = (
        _unary(f) for f in (hyperbolic.arcsinh, hyperbolic.arccosh, hyperbolic.arctanh)
    )
    expm1, log1p, log2, log10 = (
        _unary(f) for f in (logarithms.expm1, logarithms.log1p, logarithms.log2, logarithms.log10)
    )
    floor, ceil, cbrt = _unary(rounding.floor), _unary(rounding.ceil), _unary(logarithms.cbrt)
    erf, erfc = _unary(special.erf), _unary(special.erfc)
    atan2, fmod = _binary(angles.atan2), _binary(rounding.fmod)
    solve, cholesky = _binary(linalg.solve), _unary(linalg.cholesky)

    sum, mean = _reduction(reduce.sum), _reduction(reduce.mean)
    max, min = _reduction(reduce.max), _reduction(reduce.min)
    prod = _reduction(statistics.prod)
    argmax, argmin = _reduction(sorting.argmax), _reduction(sorting.argmin)
    any, all = _reduction(reduce.any), _reduction(reduce.all)

    def powi(self, exponent: Any) -> Any:
        """The same as `x ** exponent`."""
        return _power(self, exponent)

    def var(self, axis: Any = None, keepdims: bool = False, ddof: float = 0) -> Any:
        """The same as `quabla.var(x, axis, keepdims, ddof=ddof)`."""
        return statistics.var(self, axis, keepdims, ddof=ddof)

    def std(self, axis: Any = None, keepdims: bool = False, ddof: float = 0) -> Any:
        """The same as `quabla.std(x, axis, keepdims, ddof=ddof)`."""
        return statistics.std(self, axis, keepdims, ddof=ddof)

    def norm(self, axis: Any = None, keepdims: bool = False, *, ord: Any = None) -> Any:
        """The same as `quabla.norm(x, axis, keepdims, ord=ord)`."""
        return norms.norm(self, axis, keepdims, ord=ord)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        """The same as `quabla.clip(x, min, max)`."""
        return rounding.clip(self, min, max)

    def round(self, decimals: int = 0) -> Any:
        """The same as `quabla.round(x, decimals)`."""
        return rounding.round(self, decimals)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        """The same as `quabla.diagonal(x, offset, axis1, axis2)`."""
        return diagonals.diagonal(self, offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
        """The same as `quabla.trace(x, offset, axis1, axis2)`."""
        return diagonals.trace(self, offset, axis1, axis2)

    def astype(self, dtype: Any) -> Any:
        """The same as `quabla.astype(x, dtype)`."""
        return shaping.astype(self, dtype)

    def reshape(self, *shape: Any) -> Any:
        """The same as `quabla.reshape(x, shape)`; the extents may also come one by one."""
        return shaping.reshape(self, _one_or_several(shape))

    def transpose(self, *axes: Any) -> Any:
        """The same as `quabla.transpose(x, axes)`; the axes may also come one by one."""
        return shaping.transpose(self, _one_or_several(axes) if axes else None)

    @property
    def T(self) -> Any:
        """The array with its axes in reverse order."""
        return shaping.transpose(self)

    def broadcast_to(self, *shape: Any) -> Any:
        """The same as `quabla.broadcast_to(x, shape)`; the extents may also come one by one."""
        return shaping.broadcast_to(self, _one_or_several(shape))

    def take(self, indices: Any, axis: int | None = None) -> Any:
        """The same as `quabla.take(x, indices, axis)`."""
        return taking.take(self, indices, axis)

    def argsort(self, axis: int | None = -1) -> Any:
        """The same as `quabla.argsort(x, axis)`."""
        return sorting.argsort(self, axis)

    def cumsum(self, axis: int | None = None, reverse: bool = False) -> Any:
        """The same as `quabla.cumsum(x, axis, reverse)`."""
        return cumulative.cumsum(self, axis, reverse)

    def cumprod(self, axis: int | None = None, reverse: bool = False) -> Any:
        """The same as `quabla.cumprod(x, axis, reverse)`."""
        return cumulative.cumprod(self, axis, reverse)

    def ravel(self) -> Any:
        """The same as `quabla.ravel(x)`."""
        return shaping.ravel(self)

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> Any:
        """The same as `quabla.squeeze(x, axis)`."""
        return shaping.squeeze(self, axis)

    def tril(self, k: int = 0) -> Any:
        """The same as `quabla.tril(x, k)`."""
        return shaping.tril(self, k)

    def triu(self, k: int = 0) -> Any:
        """The same as `quabla.triu(x, k)`."""
        return shaping.triu(self, k)

    def slice(self, axis: int, start: int, length: int, step: int = 1) -> Any:
        """The `length` elements at `start, start + step, ...` along `axis`, as a `TensorView` or a traced value."""
        if not isinstance(self, TraceTensor):
            return view_of(self, axis, start, length, step)  # type: ignore[arg-type]
        axis, start, length, step = slice_bounds(self, axis, start, length, step)
        low, high, by = [0] * self.ndim, list(self.shape), [1] * self.ndim
        low[axis], high[axis], by[axis] = start, start + (length - 1) * step + 1, step
        return structure.strided_slice(self, tuple(low), tuple(high), tuple(by))


def _members(source: type, title: str) -> dict[str, Any]:
    """What a class body defines, under the name by which users know it: errors of Python name the function."""
    found = {}
    for name, member in vars(source).items():
        if name in ("__module__", "__doc__", "__slots__", "__qualname__"):
            continue
        if inspect.isfunction(member):
            member.__name__, member.__qualname__ = name, f"{title}.{name}"
            if not name.startswith("__"):  # operators are hot, and take no keywords
                member = spelled(member)
        found[name] = member
    return found


def _install(members: dict[str, Any], into: type) -> None:
    for name, member in members.items():
        if name not in vars(into):  # what the class body of the array type itself defines stays
            setattr(into, name, member)


_shared = _members(Methods, "Tensor")
for _array in _ARRAYS:
    _install(_shared, _array)
_install(_members(Refusals, "TraceTensor"), TraceTensor)
for _array in _ARRAYS:
    elsewhere.install(_array, elsewhere.ADVICE["array"])
Array.register(TraceTensor)
