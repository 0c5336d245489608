"""From a lowered program to linked code: the text, what it calls, and their object code in one image.

This module pulls in all of lowering and code generation; where an earlier process left a record of the program, nothing
needs it.
"""

from __future__ import annotations

import math
from functools import partial

from quabla.lowering.fuse import Plan
from quabla_cpu import codegen, engine, outside, tiers, vectormath
from quabla_cpu.codegen import ENTRY, Generated
from quabla_cpu.costs import costs_of, loss_of
from quabla_cpu.executable import PRODUCT
from quabla_cpu.image import UnsupportedError
from quabla_cpu.lower import knows, plan_of
from quabla_cpu.sharing import Compiled, shared
from quabla_cpu.tiers import Source

__all__ = ["compile_program", "costs_of", "generate", "knows", "loss_of", "plan_of"]


def generate(plan: Plan, vector_bytes: int | None = None) -> Generated:
    """The code of a plan for this machine, with its widest vectors unless their width in bytes is given."""
    host = engine.host()
    width = vector_bytes or host.vector_bytes
    return codegen.generate(plan, width, host.has_fma, engine.function_attributes())


def compile_program(generated: Generated, loss: float = math.inf) -> Compiled:
    """Compile and link code, once per process for equal text and constants.

    Args:
        generated: the code.
        loss: how many nanoseconds longer a call takes with code that was compiled quickly, about.
    """
    key = generated.text, tuple([id(tensor) for _, tensor in generated.constants])
    return shared(key, lambda: _compile(generated, loss))


def _compile(generated: Generated, loss: float) -> Compiled:
    addresses = {name: outside.address(name) for name in generated.calls}
    addresses.update({symbol: tensor.address for symbol, tensor in generated.constants})
    keep: list[object] = [tensor for _, tensor in generated.constants]
    sources = [Source(generated.text)]
    sources += [Source(module, {PRODUCT: symbol}) for symbol, module in generated.products]
    sources += [Source(module, passes=False) for module in vectormath.sources(generated.math)]
    try:
        return tiers.build(sources, addresses, keep, loss)
    except UnsupportedError:
        return _linked_apart(generated, addresses, keep)


def _linked_apart(generated: Generated, addresses: dict[str, int], keep: list[object]) -> Compiled:
    """The same where LLVM links: each product in a library of its own."""
    imports = {**addresses, **vectormath.library(generated.math).imports}
    for symbol, module in generated.products:
        product = shared(module, partial(_product, module))
        imports[symbol] = product.library.address(PRODUCT)
        keep.append(product)
    return Compiled(engine.link([engine.compile(generated.text)], [ENTRY], imports), keep)


def _product(module: str) -> Compiled:
    return Compiled(engine.link([engine.compile(module)], [PRODUCT]), ())
