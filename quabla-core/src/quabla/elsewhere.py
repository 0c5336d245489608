"""What NumPy, PyTorch and JAX call things that have another name here, or none: what the AttributeError then says.

Arrays get a descriptor per name rather than `__getattr__`, with which Python would find every attribute more slowly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

__all__ = ["ADVICE", "Elsewhere", "install"]

_CLOSE = "write quabla.all(quabla.abs(x - y) <= tolerance); NumPy's takes arrays of Quabla, too"
_GRADIENT = "an array carries no gradient; write a function f of it and take quabla.grad(f)(x)"
_NOTHING_RECORDED = "nothing is recorded outside of a transform; quabla.stop_gradient(x) is a constant"
_SAVE = "numpy.savez keeps arrays, and quabla.jit(f).lower(x).save(path) keeps a program"
_DEVICE = "arrays live in host memory; quabla.jit(f, device=...) chooses where a function runs"
_DTYPES = "the dtypes are quabla.float64, float32, int64 and bool_"
_IMMUTABLE = "arrays are immutable, so there is nothing to copy"
_MASK = "arrays are immutable; make a new one with quabla.where(mask, new, x), quabla.concat or quabla.stack"
_RANDOM = "take random numbers from NumPy, as in quabla.array(numpy.random.default_rng(0).normal(size=3))"
_LOOPS = "write quabla.scan, quabla.fori_loop, quabla.while_loop or quabla.cond"
_LAYERS = "there are no layers; parameters are a dict or tuple of arrays, an argument of a function"
_UPDATE = "write params, state = opt.update(params, grads, state), or leave the loop to quabla.optim.Trainer"

# For names of the module, for attributes of arrays, and for attributes of optimisers.
ADVICE: dict[str, dict[str, str]] = {
    "quabla": {
        **dict.fromkeys(("float16", "bfloat16", "half", "float", "double", "float_", "bool"), _DTYPES),
        **dict.fromkeys(("int8", "int16", "int32", "uint8", "int", "long", "int_", "complex64", "complex128"), _DTYPES),
        **dict.fromkeys(("no_grad", "enable_grad", "autograd", "GradientTape"), _NOTHING_RECORDED),
        **dict.fromkeys(("device", "cuda", "device_put", "set_default_device"), _DEVICE),
        **dict.fromkeys(("random", "rand", "randn", "manual_seed", "seed"), _RANDOM),
        **dict.fromkeys(("nn", "Module"), _LAYERS),
        **dict.fromkeys(("save", "savez"), _SAVE),
        **dict.fromkeys(("pi", "e", "inf", "nan"), "constants are those of the module math"),
        **dict.fromkeys(("allclose", "isclose"), _CLOSE),
        **dict.fromkeys(("numpy", "np"), "what is numpy.sin there is quabla.sin here"),
        **dict.fromkeys(("jacfwd", "jacrev"), "write quabla.jacobian"),
        **dict.fromkeys(("concatenate", "cat", "hstack", "vstack", "append"), "write quabla.concat([x, y], axis)"),
        "absolute": "write quabla.abs",
        "acos": "write quabla.arccos",
        "asin": "write quabla.arcsin",
        "atan": "write quabla.arctan",
        "bmm": "write quabla.matmul",
        "clamp": "write quabla.clip",
        "divide": "write quabla.div",
        "fft": "there are no Fourier transforms",
        "fold": _LOOPS,
        "from_numpy": "write quabla.asarray",
        "jacobian_vector_product": "write quabla.jvp",
        "lax": _LOOPS,
        "load": "quabla.load_program reads programs; numpy.load reads arrays",
        "map": "write quabla.vmap, or quabla.scan for one at a time",
        "mm": "write quabla.matmul",
        "multiply": "write quabla.mul",
        "mv": "write quabla.matmul",
        "ndarray": "write quabla.Tensor",
        "negative": "write quabla.neg",
        "newaxis": "write None as an index, or quabla.expand_dims",
        "permute": "write quabla.transpose(x, axes)",
        "pmap": "write quabla.vmap",
        "pow": "write quabla.power, or x**y",
        "subtract": "write quabla.sub",
        "tensor": "write quabla.array",
        "tree_map": "write quabla.tree.map",
        "tree_util": "write quabla.tree",
        "true_divide": "write quabla.div",
        "unsqueeze": "write quabla.expand_dims(x, axis)",
    },
    "array": {
        **dict.fromkeys(("backward", "grad", "requires_grad", "requires_grad_", "retain_grad"), _GRADIENT),
        **dict.fromkeys(("cuda", "cpu", "to", "device"), _DEVICE),
        **dict.fromkeys(("clone", "copy"), _IMMUTABLE),
        **dict.fromkeys(("at", "fill", "put", "index_put_", "add_", "mul_", "zero_", "copy_"), _MASK),
        "block_until_ready": "a call returns when its results are there",
        "clamp": "write x.clip(min, max)",
        "detach": "write x.stop_gradient()",
        "dim": "write x.ndim",
        "dot": "write x @ y",
        "double": "write x.astype(quabla.float64)",
        "flatten": "write x.ravel()",
        "float": "write x.astype(quabla.float64) or x.astype(quabla.float32)",
        "numel": "write x.size",
        "permute": "write x.transpose(*axes)",
        "pow": "write x**y",
        "repeat": "write quabla.repeat(x, repeats, axis) or quabla.tile(x, reps)",
        "sort": "write quabla.sort(x, axis)",
        "swapaxes": "write quabla.swapaxes(x, axis1, axis2)",
        "t": "write x.T",
        "unsqueeze": "write quabla.expand_dims(x, axis)",
        "view": "write x.reshape(...)",
    },
    "optimizer": dict.fromkeys(("step", "zero_grad", "apply_gradients", "minimize", "state_dict"), _UPDATE),
}  # fmt: skip


class Elsewhere:
    """An attribute that is not there, and what to write instead."""

    __slots__ = ("hint", "name")

    def __init__(self, name: str, hint: str) -> None:
        self.name, self.hint = name, hint

    def __get__(self, instance: Any, owner: Any = None) -> NoReturn:
        kind = owner if instance is None else type(instance)
        raise AttributeError(f"{kind.__name__!r} object has no attribute {self.name!r}; {self.hint}")


def install(kind: type, names: Mapping[str, str]) -> None:
    """Explain these names, as attributes of a class that has none of them."""
    for name, hint in names.items():
        if not hasattr(kind, name):
            setattr(kind, name, Elsewhere(name, hint))

    def listed(self: Any) -> list[str]:
        return [name for name in object.__dir__(self) if name not in names]

    listed.__name__, listed.__qualname__ = "__dir__", f"{kind.__name__}.__dir__"
    type.__setattr__(kind, "__dir__", listed)
