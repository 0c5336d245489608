"""What the optimisers share: hyperparameters that are checked, and an update that is compiled once per structure."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, Protocol, final, runtime_checkable

from quabla import tree
from quabla.arrays.convert import asarray
from quabla.arrays.tensor import Tensor
from quabla.arrays.tracer import TraceTensor
from quabla.dtypes import dtype, float64
from quabla.errors import DtypeError, QuablaError, ShapeError
from quabla.ops.structure import cast, zeros_like
from quabla.shapes import aval_of
from quabla.transforms.transform import Transform

__all__ = ["Optimizer", "Update", "as_scalar", "corresponding", "keep_type", "moments", "number", "rate"]


@runtime_checkable
class Optimizer(Protocol):
    """What `Trainer` needs of an optimiser: two pure functions. Any class that has them will do.

    Example:
        >>> import quabla as qb
        >>> class Half:
        ...     def init(self, params):
        ...         return ()
        ...     def update(self, params, grads, state):
        ...         return qb.tree.map(lambda p: p * 0.5, params), state
        >>> isinstance(Half(), qb.optim.Optimizer)
        True
    """

    def init(self, params: Any) -> Any:
        """The state to begin with, a pytree of arrays."""

    def update(self, params: Any, grads: Any, state: Any) -> tuple[Any, Any]:
        """New parameters and a new state, of the structures and types of the old ones."""


# --- hyperparameters --------------------------------------------------------------------------------------------------


def number(where: str, name: str, value: Any, allowed: Callable[[float], bool], wanted: str) -> float:
    """`value` as a float.

    Raises:
        DtypeError: it is no number, or not an allowed one; the message names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise DtypeError(f"{where}: {name} must be {wanted}, got {_shown(value)}")
    plain = float(value)
    if not math.isfinite(plain) or not allowed(plain):
        raise DtypeError(f"{where}: {name} must be {wanted}, got {value!r}")
    return plain


def rate(where: str, value: Any) -> Any:
    """A learning rate: a number that is not negative, or an array of shape `()`, which may be traced.

    Raises:
        DtypeError: it is neither, or the array is not floating.
        ShapeError: the array has another shape.
    """
    if not isinstance(value, (Tensor, TraceTensor)):
        return number(
            where, "learning_rate", value, lambda x: x >= 0.0, "a number >= 0 or an array of shape ()"
        )
    if value.aval.shape != ():
        raise ShapeError(f"{where}: learning_rate must be a number or of shape (), got {value.aval}")
    if value.aval.dtype.kind != "f":
        raise DtypeError(f"{where}: learning_rate must be floating, got {value.aval}")
    return value


def as_scalar(value: Any) -> Any:
    """A hyperparameter as an array, so that one compiled update serves all values."""
    return asarray(value, float64) if type(value) is float else value


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, (bool, str)) else f"a {type(value).__name__}"


# --- the update -------------------------------------------------------------------------------------------------------


@final
class Update(Transform):
    """The update rule of an optimiser, compiled like a jitted function. All arguments become arrays, numbers too.

    Hyperparameters are arguments like the others, so a new learning rate is no new program.
    """

    kind = "update"
    max_traces = 1000  # each is another structure of parameters, not another value

    def __init__(self, rule: Callable[..., Any], name: str) -> None:
        super().__init__(rule, name, as_arrays=frozenset(range(rule.__code__.co_argcount)))

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the rule in the innermost trace."""
        return self.fun(*args)


def moments(where: str, params: Any) -> Any:
    """Zeros in float64 of the shapes of the floating leaves of `params`, None for the others.

    Raises:
        DtypeError: a leaf is neither array nor number.
    """
    leaves, treedef = tree.flatten(params)
    return tree.unflatten(
        treedef, [_zeros(where, leaf, path) for leaf, path in zip(leaves, tree.paths(treedef), strict=True)]
    )


def _zeros(where: str, leaf: Any, path: Sequence[str]) -> Any:
    if type(leaf) is bool:
        return None
    if type(leaf) in (int, float):
        return asarray(0.0, float64)
    if not isinstance(leaf, (Tensor, TraceTensor)):
        try:
            if callable(leaf) or isinstance(leaf, (str, bytes)):
                raise TypeError("it is no array")
            leaf = asarray(leaf)
        except (QuablaError, TypeError, ValueError) as error:
            raise DtypeError(
                f"{where}: params{_at(path)} is a {type(leaf).__name__}, and parameters are arrays, numbers and "
                f"containers of them ({error})"
            ) from error
    return zeros_like(leaf, aval_of(leaf.shape, float64)) if leaf.dtype.kind == "f" else None


def corresponding(where: str, params: Any, grads: Any, *states: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """The structure of `params`, and per leaf the parameter, its gradient and its entries in the states.

    A gradient of None says that the parameter stays as it is. States are float64, or of the dtype of the parameter.

    Raises:
        ShapeError: structures or shapes that do not fit together, with the path.
        DtypeError: dtypes that do not.
    """
    leaves, treedef = tree.flatten(params)
    gradients = tree.flatten_up_to(grads, treedef, f"{where}: grads")
    others = [tree.flatten_up_to(s, treedef, f"{where}: state") for s in states]
    rows = list(zip(leaves, gradients, *others, strict=True))
    for path, (p, g, *rest) in zip(tree.paths(treedef), rows, strict=True):
        if g is None:
            continue
        _same_type(where, f"the gradient{_at(path)}", g, p)
        for s in rest:
            _same_type(where, f"the state{_at(path)}", s, p, float64)
    return treedef, rows


def _same_type(where: str, what: str, x: Any, p: Any, *others: dtype) -> None:
    aval = getattr(x, "aval", None)
    if aval is None:
        raise ShapeError(f"{where}: {what} is a {type(x).__name__} where its parameter is {p.aval}")
    if aval.shape != p.aval.shape:
        raise ShapeError(f"{where}: {what} is {aval} where its parameter is {p.aval}")
    if aval.dtype is not p.aval.dtype and aval.dtype not in others:
        raise DtypeError(
            f"{where}: {what} is {aval} where its parameter is {p.aval}; "
            f"convert it with .astype({(*others, p.dtype)[0]!r})"
        )


def keep_type(new: Any, old: Any) -> Any:
    """`new` with the type of `old`, weakness included, so that the next update has the signature of this one."""
    return cast(new, old.aval.dtype, old.aval.weak)


def _at(path: Sequence[str]) -> str:
    return f" at {'/'.join(path)}" if path else ""
