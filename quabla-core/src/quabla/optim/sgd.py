"""SGD: steps against the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from quabla import elsewhere, tree
from quabla.dtypes import float64
from quabla.errors import DtypeError
from quabla.ops.shape import astype
from quabla.optim.optimizer import Update, as_scalar, corresponding, keep_type, moments, rate
from quabla.spellings import spelled_init

__all__ = ["SGD"]


def _rule(params: Any, grads: Any, learning_rate: Any) -> Any:
    """`w - learning_rate * g` in float64, rounded once."""
    treedef, rows = corresponding("SGD.update", params, grads)
    scale = astype(learning_rate, float64)
    new = (p if g is None else keep_type(astype(p, float64) - scale * astype(g, float64), p) for p, g in rows)
    return tree.unflatten(treedef, list(new))


_update = Update(_rule, "SGD.update")


@final
@spelled_init
@dataclass(frozen=True)
class SGD:
    """Gradient descent, "stochastic" where the gradient is that of a batch: `w - learning_rate * g`.

    Args:
        learning_rate: the step size, a number that is not negative, or a floating array of shape `()`, which may be
            traced.

    Raises:
        DtypeError: `learning_rate` is no number, or negative.
        ShapeError: `learning_rate` is an array of another shape than `()`.

    Example:
        >>> import quabla as qb
        >>> opt = qb.optim.SGD(learning_rate=0.25)
        >>> w = {"a": qb.array(1.0)}
        >>> w, state = opt.update(w, {"a": qb.array(2.0)}, opt.init(w))
        >>> w["a"].item()
        0.5
    """

    learning_rate: Any = 1e-2

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", rate("SGD", self.learning_rate))

    @cached_property
    def _scalar(self) -> Any:
        return as_scalar(self.learning_rate)

    def init(self, params: Any) -> tuple[()]:
        """The state to begin with, which is empty.

        Args:
            params: a pytree of arrays and numbers.

        Raises:
            DtypeError: a leaf is neither.
        """
        moments("SGD.init", params)  # for its checks
        return ()

    def update(self, params: Any, grads: Any, state: tuple[()]) -> tuple[Any, tuple[()]]:
        """One step.

        Args:
            params: a pytree of arrays and numbers.
            grads: a tree of the same structure; where it has None, the parameter stays as it is.
            state: from `init` or the update before.

        Returns:
            The new parameters, in the dtypes of the old ones though the step is computed in float64, and the state.

        Raises:
            ShapeError: trees or arrays that do not fit together, with the path.
            DtypeError: dtypes that do not, or a `state` of something else.
        """
        if state != ():
            raise DtypeError(
                f"SGD.update: state must be (), from SGD.init(params), got a {type(state).__name__}; "
                "the order is update(params, grads, state)"
            )
        return _update(params, grads, self._scalar), ()


elsewhere.install(SGD, elsewhere.ADVICE["optimizer"])
