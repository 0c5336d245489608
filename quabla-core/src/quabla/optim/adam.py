"""Adam: steps scaled by running moments of the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

from quabla import elsewhere, tree
from quabla.arrays.convert import asarray
from quabla.dtypes import float64
from quabla.errors import DtypeError
from quabla.ops.elementwise import sqrt
from quabla.ops.powers import power
from quabla.ops.shape import astype
from quabla.optim.optimizer import Update, as_scalar, corresponding, keep_type, moments, number, rate
from quabla.spellings import spelled_init

__all__ = ["Adam", "AdamState"]


class AdamState(NamedTuple):
    """The state of `Adam`, a pytree.

    Attributes:
        count: the number of updates so far, float64 of shape `()`.
        first: the running mean of the gradient, a tree like the parameters in float64; None for leaves that are not
            floating.
        second: the running mean of its square, likewise.

    Example:
        >>> import quabla as qb
        >>> qb.optim.Adam().init(qb.array([1.0, 2.0])).first.tolist()
        [0.0, 0.0]
    """

    count: Any
    first: Any
    second: Any


def _rule(
    params: Any,
    grads: Any,
    count: Any,
    first: Any,
    second: Any,
    learning_rate: Any,
    b1: Any,
    b2: Any,
    eps: Any,
) -> Any:
    """Algorithm 1 of Kingma and Ba with the bias corrections in two scalars, as their section 2 suggests.

    With c1 = 1 - b1**t and c2 = 1 - b2**t, the step lr * (m / c1) / (sqrt(v / c2) + eps) is
    (lr * sqrt(c2) / c1) * m / (sqrt(v) + eps * sqrt(c2)). All of it is float64 whatever the parameters are, and
    rounded once, at the end: in float32, 1 - 0.999**t has half the digits, and the square of 1e-20 is zero.
    """
    treedef, rows = corresponding("Adam.update", params, grads, first, second)
    t = astype(count, float64) + 1.0
    root = sqrt(1.0 - power(b2, t))
    scale = astype(learning_rate, float64) * root / (1.0 - power(b1, t))
    floor = eps * root
    updated = []
    for p, g, m, v in rows:
        if g is not None:
            old = p, m, v
            p, g, m, v = (astype(x, float64) for x in (p, g, m, v))
            m = b1 * m + (1.0 - b1) * g
            v = b2 * v + (1.0 - b2) * (g * g)
            p = p - scale * m / (sqrt(v) + floor)
            p, m, v = map(keep_type, (p, m, v), old)
        updated.append((p, m, v))
    params, first, second = (tree.unflatten(treedef, column) for column in zip(*updated, strict=True))
    return params, keep_type(t, count), first, second


_update = Update(_rule, "Adam.update")


@final
@spelled_init
@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, Algorithm 1), with bias correction.

    The object holds hyperparameters alone. `update` is pure; on concrete arrays it is one compiled call, whatever the
    values of the hyperparameters, and inside a trace it is recorded there. All fields but `learning_rate` are numbers.

    Args:
        learning_rate: the step size, a number that is not negative, or a floating array of shape `()`, which may be
            traced.
        b1: the decay of the first moment, in `[0, 1)`.
        b2: the decay of the second moment, in `[0, 1)`.
        eps: keeps the denominator from zero, positive.

    Raises:
        DtypeError: a hyperparameter is no number, or out of its range.
        ShapeError: `learning_rate` is an array of another shape than `()`.

    Example:
        >>> import quabla as qb
        >>> opt = qb.optim.Adam(learning_rate=0.1)
        >>> w = qb.array([3.0, -4.0])
        >>> state = opt.init(w)
        >>> for _ in range(200):
        ...     w, state = opt.update(w, qb.grad(lambda w: qb.sum(w * w))(w), state)
        >>> float(qb.max(qb.abs(w))) < 1e-3
        True
    """

    learning_rate: Any = 1e-3
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        def decays(x: float) -> bool:
            return 0.0 <= x < 1.0

        checked = {
            "learning_rate": rate("Adam", self.learning_rate),
            "b1": number("Adam", "b1", self.b1, decays, "a number in [0, 1)"),
            "b2": number("Adam", "b2", self.b2, decays, "a number in [0, 1)"),
            "eps": number("Adam", "eps", self.eps, lambda x: x > 0.0, "a positive number"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @cached_property
    def _scalars(self) -> tuple[Any, ...]:
        return tuple(as_scalar(x) for x in (self.learning_rate, self.b1, self.b2, self.eps))

    def init(self, params: Any) -> AdamState:
        """The state to begin with: moments of zero, in float64 whatever the parameters are.

        Args:
            params: a pytree of arrays and numbers.

        Raises:
            DtypeError: a leaf is neither.
        """
        return AdamState(asarray(0.0, float64), moments("Adam.init", params), moments("Adam.init", params))

    def update(self, params: Any, grads: Any, state: AdamState) -> tuple[Any, AdamState]:
        """One step.

        Args:
            params: a pytree of arrays and numbers.
            grads: a tree of the same structure; where it has None, the parameter and its moments stay as they are.
            state: from `init` or the update before.

        Returns:
            The new parameters, and the new state. The step is computed in float64, and what comes out has the dtypes
            of what went in: float32 moments beside float32 parameters are taken, and stay float32.

        Raises:
            ShapeError: trees or arrays that do not fit together, with the path.
            DtypeError: dtypes that do not, or a `state` of something else.
        """
        if type(state) is not AdamState:
            raise DtypeError(
                f"Adam.update: state must be an AdamState, from Adam.init(params), got a {type(state).__name__}; "
                "the order is update(params, grads, state)"
            )
        new, count, first, second = _update(params, grads, *state, *self._scalars)
        return new, AdamState(count, first, second)


elsewhere.install(Adam, elsewhere.ADVICE["optimizer"])
