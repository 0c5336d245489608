"""Quabla: differentiable computing for scientific machine learning.

Write a function over arrays as you would with NumPy; take derivatives of any order with `grad`, `jvp`, `vjp`,
`jacobian` and `hessian`; map it over examples with `vmap`; compile it for a device with `jit`. float64 unless you say
otherwise.

Example:
    >>> import quabla as qb
    >>> u = lambda x, w: qb.sin(x * w)
    >>> u_xx = qb.vmap(qb.grad(qb.grad(u)), in_axes=(0, None))
    >>> u_xx(qb.array([0.0, 1.0]), qb.array(2.0)).shape
    (2,)
"""

from __future__ import annotations

from typing import Any as _Any

from quabla import linalg, tree
from quabla.arrays.convert import array, asarray
from quabla.arrays.creation import arange, eye, full, full_like, linspace, ones, ones_like, zeros, zeros_like
from quabla.arrays.tensor import Array, Tensor
from quabla.arrays.tracer import TraceTensor
from quabla.arrays.view import TensorView
from quabla.backends.registry import devices
from quabla.backends.threads import get_num_threads, set_num_threads
from quabla.control.checkpoint import checkpoint
from quabla.control.cond import cond
from quabla.control.custom import custom_jvp, custom_vjp
from quabla.control.loops import fori_loop, scan
from quabla.control.whiles import while_loop
from quabla.dtypes import bool_, dtype, float32, float64, int64
from quabla.errors import (
    BackendError,
    DtypeError,
    FileFormatError,
    NanError,
    PositionError,
    QuablaError,
    RetraceLimitError,
    ShapeError,
    TracerError,
    UnsupportedOperationError,
)
from quabla.ops import methods as _methods
from quabla.ops.angles import arccos, arcsin, arctan, arctan2, atan2, hypot, tan
from quabla.ops.calculus import diff, meshgrid, polyval, trapezoid
from quabla.ops.compare import (
    equal,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    not_equal,
)
from quabla.ops.cumulative import cumprod, cumsum
from quabla.ops.diagonals import cross, diag, diagonal, kron, trace
from quabla.ops.elementwise import (
    abs,
    add,
    cos,
    div,
    exp,
    log,
    maximum,
    minimum,
    mul,
    neg,
    relu,
    sigmoid,
    sign,
    sin,
    softplus,
    sqrt,
    stop_gradient,
    sub,
    tanh,
    where,
)
from quabla.ops.hyperbolic import arccosh, arcsinh, arctanh, cosh, sinh
from quabla.ops.interpolate import interp
from quabla.ops.linalg import cholesky, solve
from quabla.ops.logarithms import cbrt, exp2, expm1, log1p, log2, log10, logaddexp, reciprocal, square
from quabla.ops.matmul import dot, einsum, inner, matmul, outer, tensordot
from quabla.ops.norms import norm
from quabla.ops.padding import pad
from quabla.ops.powers import power
from quabla.ops.reduce import all, any, max, mean, min, sum
from quabla.ops.rounding import (
    ceil,
    clip,
    divmod,
    floor,
    floor_divide,
    fmod,
    mod,
    nan_to_num,
    remainder,
    round,
    trunc,
)
from quabla.ops.shape import (
    astype,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    ravel,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    swapaxes,
    tile,
    transpose,
    tril,
    triu,
)
from quabla.ops.softmax import log_softmax, logsumexp, softmax
from quabla.ops.sort import argmax, argmin, argsort, searchsorted, sort
from quabla.ops.special import erf, erfc, gelu, silu, sinc
from quabla.ops.statistics import nanmean, nansum, prod, std, var
from quabla.ops.take import repeat, take, take_along_axis
from quabla.shapes import ShapeDtype
from quabla.transforms.derivatives import grad, jvp, value_and_grad, vjp
from quabla.transforms.jacobian import hessian, jacobian
from quabla.transforms.jit import jit
from quabla.transforms.nans import debug_nans
from quabla.transforms.programs import Compiler, Executable, Program
from quabla.transforms.storage import load_program
from quabla.transforms.vmap import vmap

__version__ = "0.2.0"

remat = checkpoint

# The names that shadow builtins (abs, all, any, divmod, max, min, round, sum) are attributes, but `import *` leaves
# them out.
__all__ = [
    "Array", "BackendError", "Compiler", "DtypeError", "Executable", "FileFormatError", "NanError", "PositionError",
    "Program", "QuablaError", "RetraceLimitError", "ShapeDtype", "ShapeError", "Tensor", "TensorView",
    "TraceTensor", "TracerError", "UnsupportedOperationError", "add", "arange", "arccos", "arccosh",
    "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "argmax", "argmin", "argsort", "array", "asarray",
    "astype", "atan2", "bool_", "broadcast_to", "cbrt", "ceil", "checkpoint", "cholesky", "clip", "concat",
    "cond", "cos", "cosh", "cross", "cumprod", "cumsum", "custom_jvp", "custom_vjp", "debug_nans", "devices", "diag",
    "diagonal", "diff", "div", "dot", "dtype", "einsum", "equal", "erf", "erfc", "exp", "exp2",
    "expand_dims", "expm1", "eye", "flip", "float32", "float64", "floor", "floor_divide", "fmod",
    "fori_loop", "full", "full_like", "gelu", "get_num_threads", "grad", "greater", "greater_equal", "hessian", "hypot",
    "inner", "int64", "interp", "isfinite", "isinf", "isnan", "jacobian", "jit", "jvp", "kron", "less",
    "less_equal", "linalg", "linspace", "load_program", "log", "log10", "log1p", "log2", "log_softmax",
    "logaddexp", "logical_and", "logical_not", "logical_or", "logsumexp", "matmul", "maximum", "mean",
    "meshgrid", "minimum", "mod", "moveaxis", "mul", "nan_to_num", "nanmean", "nansum", "neg", "norm",
    "not_equal", "ones", "ones_like", "optim", "outer", "pad", "polyval", "power", "prod", "ravel",
    "reciprocal", "relu", "remainder", "remat", "repeat", "reshape", "roll", "scan", "searchsorted", "set_num_threads",
    "sigmoid", "sign", "silu", "sin", "sinc", "sinh", "softmax", "softplus", "solve", "sort", "split",
    "sqrt", "square", "squeeze", "stack", "std", "stop_gradient", "sub", "swapaxes", "take",
    "take_along_axis", "tan", "tanh", "tensordot", "tile", "trace", "transpose", "trapezoid", "tree",
    "tril", "triu", "trunc", "value_and_grad", "var", "vjp", "vmap", "where", "while_loop", "zeros",
    "zeros_like",
]  # fmt: skip
_SHADOWING = ("abs", "all", "any", "divmod", "max", "min", "round", "sum")


def __dir__() -> list[str]:
    return sorted({*__all__, *_SHADOWING, "__doc__", "__version__", "errors", "testing"})


def __getattr__(name: str) -> _Any:
    """Modules that are imported when first used, and names that plugins contribute."""
    import importlib

    if name in ("optim", "testing"):
        return importlib.import_module(f"quabla.{name}")
    if name.startswith("_"):
        raise AttributeError(f"module 'quabla' has no attribute {name!r}")
    from quabla.backends.registry import public_name

    return public_name(name)


del _methods
