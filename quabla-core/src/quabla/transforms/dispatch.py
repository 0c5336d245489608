"""From a call with concrete arrays to the program compiled for it.

The first call for a signature traces, compiles, and generates a *guard*: a Python function for exactly that structure
of arguments, which checks the type of every leaf, hands raw addresses to native code and wraps what it wrote. A guard
that does not recognise a call passes it to the guard before it, and at last to `slow_call`. For a call `f(w, x)` with
two arrays and one result it reads

    def guard(transform, args, kwargs):
        if len(args) == 2 and not kwargs:
            a0, a1 = args
            if type(a0) is Tensor and a0.aval is A0 and type(a1) is Tensor and a1.aval is A1:
                block = Block()
                base = addressof(block)
                call(pack(a0.address, a1.address, base, 0))
                r0 = new(Tensor); r0.address = base; r0.aval = R0; r0.owner = block; r0.offset = 0
                return r0
        return other(transform, args, kwargs)

Where there is no native code to call with addresses, the guard calls the executable itself: `r0, = executable(a0, a1)`.

Code is generated as text for Python here, and for the tapes of the MLX backend, and nowhere else.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from quabla import tree
from quabla.arrays.tensor import Tensor
from quabla.arrays.tracer import frames, innermost
from quabla.backends import registry
from quabla.backends.protocol import Costs, Executable, NativeEntry
from quabla.errors import RetraceLimitError
from quabla.ir.program import Program
from quabla.shapes import ShapeDtype
from quabla.transforms import cache
from quabla.transforms.differences import suggestions
from quabla.transforms.narrowing import warn_of_float64
from quabla.transforms.staging import Call, Result, Staged, as_outputs, inline, name_of, stage, take_apart

if TYPE_CHECKING:
    from quabla.transforms.transform import Transform

__all__ = ["CHECKS", "Compiled", "make_guard", "run", "slow_call", "stage_call", "warn_once"]

_inserting = threading.Lock()

# What looks at the results of each call, `(transform, call, outputs)`. Whoever adds to it also adds to `LIVE`,
# so that calls come this way and not through a guard.
CHECKS: list[Callable[[Any, Call, Any], None]] = []

_CHAIN = 32  # the longest chain of guards

_BLOCK_LIMIT = 4096  # larger output blocks come from NumPy, whose memory is not cleared first


class Compiled(NamedTuple):
    """A program compiled for one signature.

    Attributes:
        executable: what the backend made of it.
        call: the signature.
        result: the structure of the result.
        nodes: the number of nodes that were traced.
        costs: what the backend says that it does, where it does.
    """

    executable: Executable
    call: Call
    result: Result
    nodes: int = 0
    costs: Costs | None = None


def slow_call(transform: Transform, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a transform on any arguments: record it in a trace, or look up, if need be compile, and run its program."""
    if frames() and innermost(tree.flatten((args, kwargs))[0]) is not None:
        return transform.apply(args, kwargs)
    call = take_apart(
        transform,
        args,
        kwargs,
        transform.as_arrays,
        transform.static_argnums,
        static_names=transform.static_argnames,
    )
    if innermost(call.arrays) is not None:
        return transform.apply(args, kwargs)
    if frames():
        return _call_within_trace(transform, call)
    entries = transform.cache.entries
    found = entries.get(call.key)
    if found is None:
        # Threads that arrive together compile once. A thread that waits here is not tracing and so holds no such lock:
        # two functions that call each other cannot deadlock.
        with transform.cache.lock:
            found = entries.get(call.key)
            if found is None:
                _check_limit(transform, call)
                found = _compile(transform, call, stage_call(transform, call))
    return run(transform, call, found)


def _call_within_trace(transform: Transform, call: Call) -> Any:
    """Call a transform on concrete arrays while this thread traces an enclosing function.

    The transform is traced even where it was compiled before: this time it may close over values of the enclosing
    trace, and then the call is part of that trace.
    """
    found = transform.cache.entries.get(call.key)
    if found is None:
        _check_limit(transform, call)
    staged = stage_call(transform, call)
    if staged.captures:
        return staged.result.put_together(inline(staged.program, [*call.arrays, *staged.captures]))
    return run(transform, call, found or _compile(transform, call, staged))


def run(transform: Transform, call: Call, compiled: Compiled) -> Any:
    """Run a compiled call, and let `CHECKS` look at what comes out."""
    outputs = compiled.executable(*call.arrays)
    for check in CHECKS:
        check(transform, call, outputs)
    return compiled.result.put_together(outputs)


def _check_limit(transform: Transform, call: Call) -> None:
    if len(transform.cache.entries) >= transform.max_traces:
        raise RetraceLimitError(_limit_message(transform, call))


def _compile(transform: Transform, call: Call, staged: Staged) -> Compiled:
    """Compile what was staged for `call`, and keep it."""
    executable, costs = _compile_program(transform, staged.program)
    compiled = Compiled(executable, call.without_arrays(), staged.result, len(staged.program.nodes), costs)
    with _inserting:
        transform.cache.entries[call.key] = compiled
        # A call goes down the chain of guards as deep as it is long, so now and then the chain starts anew; `slow_call`
        # finds what the old one knew.
        other = transform.cache.guard if len(transform.cache.entries) % _CHAIN else slow_call
        transform.cache.guard = make_guard(compiled, other)
    return compiled


def stage_call(transform: Transform, call: Call) -> Staged:
    """Trace a transform on the types of a call."""
    return stage(
        lambda *a, **k: transform.apply(a, k),
        call,
        names=call.names(transform),
        split=lambda value: as_outputs(transform, value, transform.passing),
    )


def _compile_program(transform: Transform, program: Program) -> tuple[Executable, Costs | None]:
    backend, name = registry.backend_for(transform.device)
    warn_once(transform, program, backend, name)
    lowered = backend.lower(program, name)
    return backend.compile(lowered), backend.costs(lowered)


def warn_once(transform: Transform, program: Program, backend: Any, device: str) -> None:
    """Warn, once per function, that a device computes a float64 program in float32."""
    cache = transform.cache
    cache.warned = warn_of_float64(
        name_of(transform), program, backend, device, transform.device, cache.warned
    )


_STATIC = "static arguments had several values: pass what changes with every call as an array"


_INNER = "; only that of the outermost jit counts"


def _limit_message(transform: Transform, call: Call) -> str:
    name = name_of(transform)
    earlier = [c.call for c in list(transform.cache.entries.values())]
    seen = "\n".join(f"  {c.shown()}" for c in earlier)
    inner = any(kind == "jit" for kind, _ in transform.chain[:-1])
    found = suggestions(transform, [*earlier, call]) or [_STATIC]
    advice = "\n".join(f"  {told}" for told in found)
    return (
        f"{name}: already traced for {len(earlier)} signatures, which is its max_traces:\n{seen}\n"
        f"and now called with\n  {call.shown()}\n"
        f"Each new signature is a trace of its own:\n{advice}\n"
        f"or raise the limit: {transform.within_jit('max_traces=...')}{_INNER * inner}."
    )


# --- the guard --------------------------------------------------------------------------------------------------------


def make_guard(compiled: Compiled, other: Callable[..., Any]) -> Callable[..., Any]:
    """A guard for the signature of `compiled`, or `other` where its structure has no short way."""
    entry = compiled.executable.entry
    # With the name of this module a guard is no line of the user's, to whom warnings are addressed.
    names: dict[str, Any] = {"__name__": __name__, "Tensor": Tensor, "new": object.__new__, "other": other}
    taking = _Taking(compiled.call, names)
    if not taking.possible:
        return other
    if entry is None:
        names["executable"] = compiled.executable
        left = "".join(f"{name}, " for name in _outputs(compiled))
        body = [f"{left or '_'} = executable({', '.join(taking.leaves)})", _returning(compiled, names)]
    else:
        names.update(call=entry.call, pack=entry.pack)
        body = [*_calling(entry, taking.leaves, names), *_wrapping(compiled, entry, names)]
    lines = [
        "def guard(transform, args, kwargs):",
        f"    if len(args) == {len(taking.args)} and not kwargs:",
        *([f"        {', '.join(taking.args)}, = args"] if taking.args else []),
        *_nested(taking.levels, body),
        "    return other(transform, args, kwargs)",
    ]
    try:
        exec("\n".join(lines), names)  # from no user input but repr'd dict keys
    except (SyntaxError, RecursionError, MemoryError):  # Python's parser bounds how deep its input nests
        return other
    return names["guard"]  # type: ignore[no-any-return]


def _nested(levels: list[tuple[str, list[str]]], body: list[str]) -> list[str]:
    """`if` statements within each other: a level is a condition and the assignments that it makes safe."""
    lines, indent = [], " " * 8
    for condition, assignments in levels:
        lines.append(f"{indent}if {condition}:")
        indent += "    "
        lines += [indent + a for a in assignments]
    return lines + [indent + line for line in body]


class _Taking:
    """How the guard takes the leaves out of the arguments: conditions to check, level by level of nesting.

    Attributes:
        args: the names of the positional arguments.
        leaves: the names of the array leaves, in order.
        levels: `(condition, assignments)`: the assignments are safe once the condition holds.
        possible: False where the arguments hold containers or static values that have no short check.
    """

    def __init__(self, call: Call, names: dict[str, Any]) -> None:
        self.names = names
        self.leaves: list[str] = []
        self.levels: list[tuple[str, list[str]]] = []
        self.possible = True
        args_def, kwargs_def = call.treedef.children
        self.args = [f"a{i}" for i in range(len(args_def.children))]
        if kwargs_def.num_leaves:
            self.possible = False
            return
        rest = iter(call.leaves)
        level = list(zip(self.args, args_def.children, strict=True))
        found: dict[str, Any] = {}
        ordered: list[tuple[tuple[int, ...], str]] = []
        pending: list[tuple[str, Any, tuple[int, ...]]] = [
            (name, node, (i,)) for i, (name, node) in enumerate(level)
        ]
        while pending:
            checks, assignments, inner = [], [], []
            for name, node, path in pending:
                kind = node.kind
                if kind is tree.LEAF:
                    found[name] = path
                    ordered.append((path, name))
                elif node.type is dict:
                    # The same keys in the same order: results that are dicts keep the order of the caller.
                    checks.append(f"type({name}) is dict and (*{name},) == {node.order!r}")
                    if any(type(key) is not str for key in node.keys):
                        self.possible = False
                    for j, (key, child) in enumerate(zip(node.keys, node.children, strict=True)):
                        inner.append((f"{name}_{j}", child, (*path, j)))
                        assignments.append(f"{name}_{j} = {name}[{key!r}]")
                elif node.type in (list, tuple):
                    checks.append(
                        f"type({name}) is {node.type.__name__} and len({name}) == {len(node.children)}"
                    )
                    for j, child in enumerate(node.children):
                        inner.append((f"{name}_{j}", child, (*path, j)))
                        assignments.append(f"{name}_{j} = {name}[{j}]")
                elif node.type is type(None):
                    checks.append(f"{name} is None")
                else:
                    self.possible = False
                    return
            if checks:
                self.levels.append((" and ".join(checks), assignments))
            pending = inner
        checks = []
        for (_, name), leaf in zip(sorted(ordered), rest, strict=True):
            if type(leaf) is ShapeDtype:
                names[f"V_{name}"] = leaf
                checks.append(f"type({name}) is Tensor and {name}.aval is V_{name}")
                self.leaves.append(name)
            else:
                value = leaf.value
                zero_or_nan = type(value) is float and (value != value or value == 0.0)
                if type(value) not in (int, bool, float, str) or zero_or_nan:
                    self.possible = False  # NaN, and the zeros that differ in sign: compared by the slow way
                    return
                names[f"S_{name}"] = value
                checks.append(f"type({name}) is {type(value).__name__} and {name} == S_{name}")
        if checks:
            self.levels.append((" and ".join(checks), []))


def _calling(entry: NativeEntry, leaves: list[str], names: dict[str, Any]) -> list[str]:
    """Lines that allocate the output block and run the native code."""
    nbytes = max(entry.out_nbytes, 1)
    if nbytes <= _BLOCK_LIMIT:
        names["Block"] = ctypes.c_double * -(-nbytes // 8)
        names["addressof"] = ctypes.addressof
        lines = ["block = Block()", "base = addressof(block)"]
    else:
        names["allocate"] = allocate
        names["nbytes"] = nbytes
        lines = ["block, base, shift = allocate(nbytes)"]
    pointers = [f"{name}.address" for name in leaves] + [str(h) for h in entry.hidden] + ["base"]
    if not entry.workspace_nbytes:
        return [*lines, f"call(pack({', '.join([*pointers, '0'])}))"]
    names.update(spare=[], allocate=allocate, workspace_nbytes=entry.workspace_nbytes)
    return [
        *lines,
        # list.pop and list.append are atomic, so threads share the spare workspaces without a lock.
        "try:",
        "    workspace = spare.pop()",
        "except IndexError:",
        "    workspace = allocate(workspace_nbytes)",
        f"call(pack({', '.join([*pointers, 'workspace[1]'])}))",
        "spare.append(workspace)",
    ]


def allocate(nbytes: int) -> tuple[Any, int, int]:
    """Uninitialised memory: an object that keeps it, and the address and offset of a 64-byte boundary in it."""
    array = np.empty(nbytes + 64, np.uint8)
    address = array.__array_interface__["data"][0]
    shift = -address % 64
    return array.data, address + shift, shift


def _wrapping(compiled: Compiled, entry: NativeEntry, names: dict[str, Any]) -> list[str]:
    """Lines that make Tensors of the output block and return the result."""
    lines = []
    large = entry.out_nbytes > _BLOCK_LIMIT
    for i, (aval, offset) in enumerate(zip(compiled.executable.out_avals, entry.out_offsets, strict=True)):
        names[f"R{i}"] = aval
        at = f"shift + {offset}" if large else str(offset)
        lines.append(
            f"r{i} = new(Tensor); r{i}.address = base + {offset}; r{i}.aval = R{i}; "
            f"r{i}.owner = block; r{i}.offset = {at}"
        )
    return [*lines, _returning(compiled, names)]


def _outputs(compiled: Compiled) -> list[str]:
    """The names of the results."""
    return [f"r{i}" for i in range(len(compiled.executable.out_avals))]


def _returning(compiled: Compiled, names: dict[str, Any]) -> str:
    """The line that returns the results in the structure that the function gave them."""
    outputs = _outputs(compiled)
    shown = _expression(compiled.result, outputs)
    if shown is None:
        names["result"] = compiled.result
        shown = f"result.put_together(({''.join(f'{name}, ' for name in outputs)}))"
    return f"return {shown}"


def _expression(result: Result, outputs: list[str]) -> str | None:
    """The result as an expression of literals, or None where it holds other containers or static leaves."""
    if any(type(leaf) is not int for leaf in result.leaves):
        return None
    rest = iter(result.leaves)

    def write(node: Any) -> str | None:
        if node.kind is tree.LEAF:
            index: int = next(rest)
            return outputs[index]
        parts = [write(child) for child in node.children]
        if any(p is None for p in parts):
            return None
        if node.type is tuple:
            return f"({''.join(f'{p}, ' for p in parts)})"
        if node.type is list:
            return f"[{', '.join(parts)}]"  # type: ignore[arg-type]
        if node.type is type(None):
            return "None"
        if node.type is dict and all(type(key) is str for key in node.keys):
            by_key = dict(zip(node.keys, parts, strict=True))
            return f"{{{', '.join(f'{key!r}: {by_key[key]}' for key in node.order)}}}"
        return None

    return write(result.treedef)


cache.install(slow_call)
