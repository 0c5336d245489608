"""Elementary functions on whole vectors, as LLVM IR of our own.

LLVM turns `sin` of a vector into one C library call per lane, at about ten times the cost of what is here. Every
function exists for float64 (`"f64"`) and float32 (`"f32"`) at any number of lanes, including one:

    name = vectormath.define(module, "exp", "f64", 8)     # writes the code into a module
    y = vectormath.call(builder, "exp", x)                # calls it, declaring it where needed
    vectormath.library({("exp", "f64", 8)}).imports       # compiled once, kept on disk: symbols and addresses

Errors are at most 2 units in the last place, subnormal numbers included; NaN, infinities and signed zeros come out as
in NumPy and C99. Most float32 functions are computed in float64 and rounded once (0.51 units); those called most
often are computed in float32 (2 units). `sincos` and `tanhsech2` return a struct of two vectors.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from .. import engine, text

__all__ = [
    "ARITY",
    "EITHER",
    "MODULES",
    "MathLibrary",
    "NAMES",
    "PAIRS",
    "call",
    "define",
    "library",
    "required",
    "sources",
    "symbol",
]

ATTRIBUTES = "nounwind willreturn memory(none)"

MODULES = {
    **dict.fromkeys(("exp", "exp2", "expm1", "sinh", "cosh", "sigmoid"), "exponential"),
    **dict.fromkeys(("tanh", "sech2", "tanhsech2"), "tanh"),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "softplus"), "logarithm"),
    **dict.fromkeys(("arcsinh", "arccosh", "arctanh", "power"), "logarithm"),
    **dict.fromkeys(("sin", "cos", "tan", "sincos"), "trigonometric"),
    **dict.fromkeys(("arcsin", "arccos", "arctan", "arctan2", "cbrt"), "inverse"),
    **dict.fromkeys(("erf", "erfc"), "special"),
}
"""The module of each function in float64; it is imported when the function is written."""

EITHER = frozenset(name for name, module in MODULES.items() if module == "tanh")
"""The functions that are written once for both precisions: they take an `Exponential` first."""

PAIRS = {"sincos": ("sin", "cos"), "tanhsech2": ("tanh", "sech2")}
"""The functions with two results, and those that have one of them each."""

ARITY: dict[str, int] = {name: 2 if name in ("power", "arctan2") else 1 for name in MODULES}
"""How many operands each function takes."""

NAMES: frozenset[str] = frozenset(ARITY)
"""The functions there are."""

_ELEMENTS = {"f64": "double", "f32": "float"}


def symbol(name: str, dtype: str, lanes: int) -> str:
    """The symbol of a function: `qb_exp_f64x8`."""
    return f"qb_{name}_{dtype}x{lanes}"


def returns(name: str, dtype: str, lanes: int) -> str:
    """The return type of a function: the vector itself, or a struct of two for `PAIRS`."""
    kind = text.vector(_ELEMENTS[dtype], lanes)
    return f"{{ {kind}, {kind} }}" if name in PAIRS else kind


def define(module: text.Module, name: str, dtype: str, lanes: int, linkage: str = "") -> str:
    """Write the definition of a function, and of what it needs, into a module, unless it is there already.

    Args:
        module: The module to write into.
        name: One of `NAMES`.
        dtype: `"f64"` or `"f32"`.
        lanes: How many elements at once; 1 means scalars.
        linkage: LLVM linkage, `"internal"` where the symbol is used in this module only.

    Returns:
        The symbol.

    Raises:
        ValueError: There is no such function or dtype.
    """
    if name not in NAMES or dtype not in _ELEMENTS:
        raise ValueError(f"no vector function {name!r} for {dtype!r}; there are {', '.join(sorted(NAMES))}")
    label = symbol(name, dtype, lanes)
    if not module.defines(label):
        _define(module, label, name, dtype, lanes, linkage)
        if name in _WITH_HELPERS:
            helpers = _module("hugeangle")
            if helpers.SYMBOL in module.undefined():
                helpers.define(module, linkage="internal")
    return label


def _module(name: str) -> Any:
    with engine.no_fork():
        return import_module(f"{__name__}.{name}")


def _define(module: text.Module, label: str, name: str, dtype: str, lanes: int, linkage: str) -> None:
    kind = text.vector(_ELEMENTS[dtype], lanes)
    b = module.function(
        label, returns(name, dtype, lanes), [kind] * ARITY[name], attributes=ATTRIBUTES, linkage=linkage
    )
    Lanes = _module("lanes").Lanes
    operands = [Lanes(b, argument) for argument in b.arguments]
    if name in EITHER:
        form = _module("exponential" if dtype == "f64" else "float32").FORM
        own: Any = partial(getattr(_module(MODULES[name]), name), form)
    else:
        own = _module("float32").FUNCTIONS.get(name) if dtype == "f32" else None
    if own is not None:
        made = own(*operands)
    else:
        shorter = _module("single").FUNCTIONS.get(name) if dtype == "f32" else None
        function = shorter or getattr(_module(MODULES[name]), name)
        made = function(*(Lanes(b, b.fpext(operand.value, "double")) for operand in operands))
    results = [
        b.fptrunc(part.value, _ELEMENTS[dtype]) for part in (made if isinstance(made, tuple) else (made,))
    ]
    b.ret(results[0] if len(results) == 1 else b.make_struct(*results))


def call(b: text.Builder, name: str, *operands: text.Value) -> text.Value:
    """Call a function on operands of type `double`, `float` or vectors of them, declaring it where needed.

    Returns the result; for `PAIRS`, a struct whose fields 0 and 1 (`builder.field`) are the two.
    """
    if name not in NAMES or len(operands) != ARITY[name]:
        raise ValueError(f"no vector function {name!r} of {len(operands)} operands")
    kind = operands[0].type
    dtype = {"double": "f64", "float": "f32"}[text.element(kind)]
    count = text.lanes(kind)
    return b.call(symbol(name, dtype, count), returns(name, dtype, count), *operands, attributes=ATTRIBUTES)


def required(module: text.Module) -> set[tuple[str, str, int]]:
    """The functions that a module calls and does not define: what to ask `library` for."""
    found = set()
    for label in module.undefined():
        name, _, form = label.removeprefix("qb_").rpartition("_")  # see `symbol`
        dtype, _, lanes = form.partition("x")
        if name in NAMES and dtype in _ELEMENTS and label == symbol(name, dtype, int(lanes)):
            found.add((name, dtype, int(lanes)))
    return found


class MathLibrary(NamedTuple):
    """Compiled functions: pass `imports` to `engine.link`. They stay in memory until the process ends."""

    imports: dict[str, int]


_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)

_addresses: dict[str, int] = {}
_libraries: list[engine.Library] = []


def library(functions: Iterable[tuple[str, str, int]]) -> MathLibrary:
    """The addresses of functions, each compiled at most once per process and remembered on disk.

    Args:
        functions: Triples of name, dtype and lanes, as for `define`.

    Returns:
        A `MathLibrary` whose `imports` maps every symbol to its address.
    """
    wanted = {symbol(*function): function for function in functions}
    missing = {label: function for label, function in wanted.items() if label not in _addresses}
    if missing:
        with _lock:
            missing = {label: function for label, function in missing.items() if label not in _addresses}
            if missing:
                objects = [_object(*function) for function in missing.values()]
                needs = (
                    _helpers() if any(function[0] in _WITH_HELPERS for function in missing.values()) else {}
                )
                linked = engine.link(objects, list(missing), needs)
                _libraries.append(linked)
                _addresses.update({label: linked.address(label) for label in missing})
    return MathLibrary({label: _addresses[label] for label in wanted})


def sources(functions: Iterable[tuple[str, str, int]]) -> list[str]:
    """The modules of functions and of what they need: straight-line code, which gains nothing from LLVM's passes."""
    wanted = sorted(functions)
    made = [_source(*function) for function in wanted]
    if any(function[0] in _WITH_HELPERS for function in wanted):
        made.append(_helper_source())
    return made


_WITH_HELPERS = frozenset(("sin", "cos", "tan", "sincos"))


def _helpers() -> dict[str, int]:
    """The code shared by several functions; in a library of its own."""
    label: str = _module("hugeangle").SYMBOL
    if label not in _addresses:
        linked = engine.link([_helper_object()], [label])
        _libraries.append(linked)
        _addresses[label] = linked.address(label)
    return {label: _addresses[label]}


def _helper_object() -> bytes:
    return engine.compile(_helper_source(), passes=False)


def _object(name: str, dtype: str, lanes: int) -> bytes:
    return engine.compile(_source(name, dtype, lanes), passes=False)


def _helper_source() -> str:
    module = text.Module(engine.function_attributes(leaf=True))
    _module("hugeangle").define(module)
    return module.text()


def _source(name: str, dtype: str, lanes: int) -> str:
    module = text.Module(engine.function_attributes(leaf=True))
    _define(module, symbol(name, dtype, lanes), name, dtype, lanes, "")
    return module.text()
