"""What a function reads besides its arguments: as long as that is the same, one trace of it stands for the next.

The code of a function names variables, of modules and of enclosing functions. `Reads` goes through what they hold, and
through that of the functions, containers and objects that it finds there, and remembers it: numbers by value, the rest
by identity, weakly, so that it keeps nothing alive. What cannot be told (an `ndarray`, a generator of random numbers,
any other object of C code that may change) or has to be seen each time (a traced value) is no basis for that: then
`Reads.of` returns None.

Nothing here knows what a function computes from the outside world, such as the time.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dis import opmap
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

import numpy as np

from quabla.arrays.tensor import Tensor
from quabla.arrays.view import TensorView
from quabla.dtypes import dtype
from quabla.ir.op import Op
from quabla.shapes import ShapeDtype
from quabla.transforms.transform import Transform

__all__ = ["Reads", "is_constant"]

_LIMIT = 300  # of values: going through more takes as long as a short trace
_PLAIN = frozenset({int, bool, str, bytes, type(None), type(...)})
_NUMBERS = (float, complex)
_WHOLE = (Op, dtype, ShapeDtype, np.dtype, np.ufunc, type(np.sum))  # that never change
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset, OrderedDict, defaultdict})
# Whose functions read nothing that a user changes.
_OWN = __name__.partition(".")[0]
_LIBRARIES = frozenset({_OWN, "numpy", *sys.stdlib_module_names})

# With these a code may read what it does not name.
_HIDING = frozenset({"getattr", "attrgetter", "vars", "__dict__", "globals", "locals", "eval", "exec"})
_EMPTY = "an empty cell"
_DESCRIPTORS = (
    MemberDescriptorType,
    GetSetDescriptorType,
    type(vars(NamedTuple("_Named", [("x", int)]))["x"]),
)


class _Unknown(Exception):  # noqa: N818 - never leaves this file
    """Something that is no basis for an answer."""


class _Names(NamedTuple):
    """The names in a code and in that of the functions within it.

    Attributes:
        all: variables of the module, and attributes: the code does not say which is which.
        any: whether it may read attributes that it does not name.
        imports: whether it imports something itself.
    """

    all: tuple[str, ...]
    any: bool
    imports: bool


@functools.lru_cache(4096)
def _names(code: CodeType) -> _Names:
    inner = [_names(c) for c in code.co_consts if isinstance(c, CodeType)]
    found = dict.fromkeys([*code.co_names, *(n for names in inner for n in names.all)])
    imports = opmap["IMPORT_NAME"] in code.co_code[::2] or any(names.imports for names in inner)
    return _Names(tuple(found), not _HIDING.isdisjoint(found), imports)


@functools.lru_cache(4096)
def _of_library(module: Any) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def is_constant(value: Any) -> bool:
    """Whether a value never changes, and keeps nothing alive that does not live anyway."""
    if isinstance(value, tuple):
        return type(value) is tuple and all(map(is_constant, value))
    if isinstance(value, FunctionType):
        return value.__closure__ is None and _of_library(value.__module__)
    return type(value) in _PLAIN or type(value) in _NUMBERS or isinstance(value, (*_WHOLE, np.generic))


class _Walk:
    """What is found on the way from a function.

    Attributes:
        values: what is compared by value; what is met once more is there as the number of what it was before.
        objects: what is compared by identity.
    """

    def __init__(self, root: Any) -> None:
        self.values: list[Any] = []
        self.objects: list[Any] = []
        self._names: dict[str, None] = {}  # in all code that was met
        self._spaces: list[Any] = []
        self._all = False  # whether some code may read attributes that no code names
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # what was seen, so that no other object gets its id
        self._pending: list[Any] = [root]
        pending, values, objects = self._pending, self.values, self.objects
        seen, alive = self._seen, self._alive
        while pending:
            x = pending.pop()
            kind = type(x)
            if kind in _PLAIN:
                values += (kind, x)
                continue
            at = seen.setdefault(id(x), len(alive))
            if at < len(alive):
                values.append(at)
                continue
            alive.append(x)
            values.append(None)  # so that it shows where among the values the objects are
            if kind is FunctionType:
                objects.append(x)
                if x.__closure__ is not None or not _of_library(x.__globals__.get("__name__")):
                    self._function(x)
            elif kind is Tensor or kind is TensorView:
                objects.append(x)
            elif kind in _CONTAINERS:
                self._container(x, kind)
            else:
                self._other(x, kind)
            if len(alive) + len(pending) > _LIMIT:
                raise _Unknown

    def _function(self, f: Any) -> None:
        closure, space = f.__closure__, f.__globals__
        self.objects.append(f.__code__)
        names = _names(f.__code__)
        if names.imports:
            raise _Unknown
        self._variables(space, names.all)
        for cell in closure or ():
            try:
                self._pending.append(cell.cell_contents)
            except ValueError:  # nothing yet
                self.values.append(_EMPTY)
        self._pending += (f.__defaults__, f.__kwdefaults__)
        if f.__dict__:
            self._pending.append(f.__dict__)
        if names.any and not self._all:
            self._all = True
            for x in self._spaces:
                self._space(x)
        new = [n for n in names.all if n not in self._names]
        if new:
            self._names.update(dict.fromkeys(new))
            for x in self._spaces:
                self._variables(vars(x), new)

    def _variables(self, space: dict[str, Any], names: Iterable[str]) -> None:
        found = [n for n in names if n in space]
        self.values.append(tuple(found))
        self._pending += [space[n] for n in found]

    def _space(self, x: Any) -> None:
        """A module, or what is used like one: of its variables those count that some code names."""
        if not self._all:
            self._variables(vars(x), self._names)
        elif type(x) is SimpleNamespace or not _of_library(x.__name__):
            raise _Unknown

    def _container(self, x: Any, kind: Any) -> None:
        self.values += (kind, len(x))
        self._pending += x
        if isinstance(x, dict):
            self._pending += x.values()
            if isinstance(x, defaultdict):
                self._pending.append(x.default_factory)

    def _other(self, x: Any, kind: Any) -> None:
        if kind is ModuleType:
            self.objects.append(x)
            if x.__name__.partition(".")[0] != _OWN:
                self._spaces.append(x)
                self._space(x)
        elif kind in _NUMBERS:
            self.values += (kind, repr(x))  # which tells 0.0 from -0.0, and NaN equals itself
        elif isinstance(x, np.generic):
            self.values += (kind, x.tobytes())
        elif isinstance(x, _WHOLE):
            self.values += (kind, x)
        elif isinstance(x, tuple):  # with names
            self._pending += (kind, tuple(x), getattr(x, "__dict__", None))
        elif kind is MethodType:
            self._pending += (x.__func__, x.__self__)
        elif kind is BuiltinFunctionType:
            if not (x.__self__ is None or isinstance(x.__self__, (ModuleType, type))):
                raise _Unknown  # a method of something
            self.objects.append(x)
        elif isinstance(x, functools.partial):
            self._pending += (kind, x.func, x.args, x.keywords)
        elif isinstance(x, Transform):
            self.objects.append(x)
            self._pending.append(x.root)
        elif isinstance(x, type):
            self._class(x)
        elif kind is SimpleNamespace:
            self.values.append(kind)
            self._spaces.append(x)
            self._space(x)
        elif isinstance(x, (staticmethod, classmethod)):
            self._pending += (kind, x.__func__)
        elif isinstance(x, property):
            self._pending += (kind, x.fget, x.fset, x.fdel)
        else:
            self._instance(x, kind)

    def _class(self, x: type) -> None:
        self.objects.append(x)
        if _of_library(x.__module__) or not _is_python(x):
            return
        self._pending += x.__mro__[1:]
        for name, value in list(vars(x).items()):
            if isinstance(value, _DESCRIPTORS):
                continue
            # Python itself keeps notes under names such as these.
            note = name == "_abc_impl" or (name.startswith("__") and name.endswith("__"))
            if not note or isinstance(value, (FunctionType, staticmethod, classmethod, property)):
                self.values.append(name)
                self._pending.append(value)

    def _instance(self, x: Any, kind: type) -> None:
        """An object of a class that is written in Python: its attributes, and what its methods read."""
        bases = [base for base in kind.__mro__ if base is not object]
        if not all(map(_is_python, bases)):
            raise _Unknown
        for name in _slots(bases):
            if name not in ("__dict__", "__weakref__") and hasattr(x, name):
                self._pending.append(getattr(x, name))
        self._pending += (kind, getattr(x, "__dict__", None))


_HEAP = 1 << 9  # the flag of classes that are made at run time, also by compiled code
_COMPILED = (MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType)
_python: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _is_python(kind: type) -> bool:
    """Whether a class is written in Python: all that its objects hold are attributes."""
    found = _python.get(kind)
    if found is None:
        own = set(_slots([kind]))
        found = _python[kind] = kind.__flags__ & _HEAP > 0 and not any(
            isinstance(value, _COMPILED)
            or (name == "__new__" and not isinstance(value, staticmethod))
            or (isinstance(value, GetSetDescriptorType) and name not in ("__dict__", "__weakref__"))
            or (isinstance(value, MemberDescriptorType) and name not in own)
            for name, value in list(vars(kind).items())
        )
    return found


def _slots(bases: Iterable[type]) -> Iterator[str]:
    for base in bases:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            private = name.startswith("__") and not name.endswith("__")
            yield f"_{base.__name__.lstrip('_')}{name}" if private else name


class Reads:
    """What a function read when it was traced."""

    __slots__ = ("_objects", "_values")

    def __init__(self, walk: _Walk) -> None:
        self._values = walk.values
        self._objects = [weakref.ref(x) for x in walk.objects]

    @staticmethod
    def of(fun: Callable[..., Any]) -> Reads | None:
        """What `fun` reads now; None where that cannot be told."""
        try:
            return Reads(_Walk(fun))
        except Exception:  # _Unknown, or whatever an object raises that is looked at
            return None

    def same(self, fun: Callable[..., Any]) -> bool:
        """Whether `fun` still reads the same."""
        try:
            now = _Walk(fun)
        except Exception:
            return False
        if len(now.objects) != len(self._objects) or now.values != self._values:
            return False
        return all([ref() is x for ref, x in zip(self._objects, now.objects, strict=True)])
