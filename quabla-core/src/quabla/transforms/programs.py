"""`Compiler`, `Program`, `Executable`: the layer below `jit`, in which inputs are told apart by name.

`Compiler().trace(f, specs)` traces a function of named arrays; the Program can be read, differentiated, saved, and
compiled for a device; the Executable takes a dict of arrays. `jit(f).lower(...).program` is such a Program, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

from quabla.arrays.tensor import Tensor
from quabla.arrays.tracer import frames, innermost, trace
from quabla.backends import registry
from quabla.backends.protocol import Executable as BackendExecutable
from quabla.dtypes import as_dtype, float64
from quabla.errors import DtypeError, ShapeError, UnsupportedOperationError
from quabla.ir import program as ir
from quabla.ops.apply import operand
from quabla.ops.structure import zeros_like
from quabla.shapes import ShapeDtype, as_shape, aval_of, whole
from quabla.transforms.forward import jvp_values
from quabla.transforms.narrowing import warn_of_float64
from quabla.transforms.reverse import vjp_values
from quabla.transforms.staging import a_kind, as_outputs, inline, name_of

__all__ = ["Compiler", "Executable", "Program"]


@final
class Program:
    """A traced function of named arrays, not tied to a device.

    Made by `Compiler.trace`, by `jit(f).lower(...).program`, and by `quabla.load_program`. Called on arrays, it is a
    function like any other: it runs on the CPU, and inside `grad`, `vmap` and `jit` it becomes part of their trace.

    Attributes:
        graph: the nodes, inputs and outputs, without a name: what backends and tools read.
        name: the function that was traced.
        ordered: whether results come as a list, in order; otherwise there is one, and it comes alone.

    Example:
        >>> import quabla as qb
        >>> program = qb.Compiler().trace(lambda x, w: qb.sum(x * w), [("x", (3,)), ("w", (3,))])
        >>> program.input_names, program.output_shape
        (('x', 'w'), [])
        >>> ones = qb.ones((3,))
        >>> program.compile("cpu")({"x": ones, "w": 2.0 * ones}).item()
        6.0
        >>> program.vjp("ct")["x"].compile()({"x": ones, "w": 2.0 * ones, "ct": qb.array(1.0)}).tolist()
        [2.0, 2.0, 2.0]
    """

    __slots__ = {
        "_default": None,
        "graph": "The nodes, inputs and outputs, without a name: what backends and tools read.",
        "name": "The name of the function that was traced.",
        "ordered": "Whether results come as a list, in order; otherwise there is one, and it comes alone.",
    }

    def __init__(self, graph: ir.Program, name: str, ordered: bool) -> None:
        self.graph, self.name, self.ordered = graph, name, ordered
        self._default: BackendExecutable | None = None

    # --- looking at it --------------------------------------------------------------------------------------------

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs, in order."""
        return self.graph.input_names

    @property
    def in_avals(self) -> tuple[ShapeDtype, ...]:
        """The types of the inputs."""
        return self.graph.in_avals

    @property
    def out_avals(self) -> tuple[ShapeDtype, ...]:
        """The types of the results."""
        return self.graph.out_avals

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The applications of ops, each after those that it uses."""
        return self.graph.nodes

    @property
    def output_shapes(self) -> list[list[int]]:
        """The shapes of the results."""
        return [list(a.shape) for a in self.out_avals]

    @property
    def output_shape(self) -> list[int]:
        """The shape of the one result.

        Raises:
            UnsupportedOperationError: the results are ordered; `output_shapes` has theirs.
        """
        self._only("output_shape")
        return list(self.out_avals[0].shape)

    def __repr__(self) -> str:
        shown = f"output_shapes={self.output_shapes}" if self.ordered else f"output_shape={self.output_shape}"
        return f"Program({shown})"

    def __str__(self) -> str:
        return self.lower_text()

    def lower_text(self) -> str:
        """The program as readable, stable text: a line per input, node and result."""
        return str(self.graph)

    def as_stablehlo(self) -> str:
        """The program as a StableHLO module in MLIR's text form, regions included.

        Other compilers read it. Functions that StableHLO itself lacks (`erf`, `arcsin`) are taken from CHLO, the
        dialect that goes with it. What neither has (eigenvalues, and complete pivoting in derivatives of `det`) is a
        `custom_call` of a target whose name begins with `quabla.`, which only Quabla can run.
        """
        from quabla.decompose.replace import in_terms_of
        from quabla.ir.stablehlo import stablehlo_text
        from quabla.ir.stablehlo_rules import RULES

        return stablehlo_text(in_terms_of(self.graph, RULES), self.name)

    stablehlo_text = as_stablehlo

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to a file: JSON and the bytes of its constants, no code; `quabla.load_program` reads it.

        Args:
            path: the file, made or replaced.

        Raises:
            UnsupportedOperationError: it holds something that has no form in a file.
            OSError: the file cannot be written.
        """
        from quabla.transforms.storage import save_program

        save_program(path, self)

    # --- running it -----------------------------------------------------------------------------------------------

    def compile(self, target: str | None = None, device_ordinal: int = 0) -> Executable:
        """Compile it for a device.

        Args:
            target: a device that `quabla.devices()` lists; "cpu" unless given.
            device_ordinal: which of several devices of that kind: ("name", 1) is "name:1".

        Raises:
            UnsupportedOperationError: the device is not there or cannot do an operation; `.op` and `.device` name them.
        """
        if target is not None and not isinstance(target, str):
            raise DtypeError(f"compile: the target is a string such as 'cpu', got {a_kind(target)}")
        try:
            ordinal = whole(device_ordinal)
        except TypeError:
            ordinal = -1
        if ordinal < 0:
            raise DtypeError(f"compile: device_ordinal must be a non-negative int, got {device_ordinal!r}")
        name = f"{target}:{ordinal}" if target is not None and ordinal else target
        backend, device = registry.backend_for(name, "compile")
        warn_of_float64(self.name, self.graph, backend, device, name)
        return Executable(self, backend.compile(backend.lower(self.graph, device)), device)

    def __call__(self, *arrays: Any) -> Any:
        """Apply it to arrays in the order of `input_names`.

        Raises:
            ShapeError: another number of arrays, or another shape.
            DtypeError: another dtype.
        """
        if len(arrays) != len(self.in_avals):
            raise ShapeError(
                f"{self.name}: takes {len(self.in_avals)} arrays ({', '.join(self.input_names)}), got {len(arrays)}"
            )
        given = [operand(x, self.name) for x in arrays]
        for x, name, aval in zip(given, self.input_names, self.in_avals, strict=True):
            _check(self.name, name, x.aval, aval)
        if frames() and innermost(given) is not None:
            outs: Sequence[Any] = inline(self.graph, given)
        else:
            if self._default is None:
                self._default = self.compile()._inner
            outs = self._default(*given)
        return list(outs) if self.ordered else outs[0]

    # --- derivatives ----------------------------------------------------------------------------------------------

    def jvp(self, input_name: str) -> Program:
        """The program of the derivative in one input, in the direction of ones: for a scalar input, its derivative.

        Args:
            input_name: a floating input.

        Raises:
            UnsupportedOperationError: the results are ordered.
            ShapeError: there is no such input.
            DtypeError: the input or the result is not floating.
        """
        self._only("jvp")
        self._floating_result("jvp")
        if input_name not in self.input_names:
            raise ShapeError(
                f"jvp: there is no input {input_name!r}; the inputs are {', '.join(self.input_names)}"
            )
        at = self.input_names.index(input_name)
        if self.in_avals[at].dtype.kind != "f":
            raise DtypeError(
                f"jvp: the input {input_name!r} is {self.in_avals[at]}, and only floating ones have derivatives"
            )

        def run(*args: Any) -> list[Any]:
            frame = args[0].frame
            tangents = [frame.full(1.0, a) if i == at else None for i, a in enumerate(self.in_avals)]
            outs, moved = jvp_values(frame, self.graph, args, tangents)
            return [zeros_like(outs[0]) if moved[0] is None else moved[0]]

        graph, _ = trace(run, self.in_avals, self.input_names)
        return Program(graph, f"jvp({self.name})", ordered=False)

    def vjp(self, cotangent_name: str) -> dict[str, Program]:
        """The program of the vector-Jacobian product, for each floating input.

        Args:
            cotangent_name: a name for the further input, last, that holds the cotangent of the result.

        Raises:
            UnsupportedOperationError: the results are ordered.
            ShapeError: the name is that of an input.
            DtypeError: the result is not floating.
        """
        self._only("vjp")
        self._floating_result("vjp")
        _check_name("vjp", cotangent_name, self.input_names)
        wanted = [a.dtype.kind == "f" for a in self.in_avals]

        def run(*args: Any) -> list[Any]:
            frame = args[0].frame
            _, backward = vjp_values(frame, self.graph, args[:-1], wanted)
            cts = backward([args[-1]])
            return [
                zeros_like(x) if ct is None else ct
                for x, ct, w in zip(args[:-1], cts, wanted, strict=True)
                if w
            ]

        result = aval_of(self.out_avals[0].shape, self.out_avals[0].dtype)
        graph, _ = trace(run, [*self.in_avals, result], (*self.input_names, cotangent_name))
        found = {}
        outs = iter(graph.outputs)
        for name, w in zip(self.input_names, wanted, strict=True):
            if w:
                out = (next(outs),)
                one = ir.Program(graph.inputs, ir.prune(graph.nodes, out), out, graph.input_names)
                found[name] = Program(one, f"vjp({self.name})", ordered=False)
        return found

    def _only(self, what: str) -> None:
        if self.ordered:
            raise UnsupportedOperationError(
                f"{what}: the results of this program are ordered, and there is one only of a program that "
                "Compiler.trace "
                "made of a function with one result; transform the function before it is lowered",
                op=what,
            )

    def _floating_result(self, what: str) -> None:
        if self.out_avals[0].dtype.kind != "f":
            raise DtypeError(
                f"{what}: the result is {self.out_avals[0]}, and only floating ones have derivatives"
            )


@final
class Executable:
    """A program compiled for a device; takes a dict of arrays.

    Attributes:
        program: what was compiled.
        target: the device.

    Example:
        >>> import quabla as qb
        >>> program = qb.Compiler().trace(lambda x: (x + 1.0, 2.0 * x), [("x", (2,))])
        >>> executable = program.compile()
        >>> executable, [y.tolist() for y in executable({"x": qb.array([1.0, 2.0])})]
        (Executable(target=cpu, node_count=4), [[2.0, 3.0], [2.0, 4.0]])
    """

    __slots__ = ("_inner", "program", "target")

    def __init__(self, program: Program, inner: BackendExecutable, target: str) -> None:
        self.program, self._inner, self.target = program, inner, target

    @property
    def node_count(self) -> int:
        """The number of nodes of the program, before the device simplified it."""
        return len(self.program.nodes)

    def __repr__(self) -> str:
        return f"Executable(target={self.target}, node_count={self.node_count})"

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Run the program.

        Args:
            inputs: an array per input name, and nothing else.

        Returns:
            An array, or a list of arrays where the program's results are ordered.

        Raises:
            ShapeError: a name is missing or is no input, or a shape is another than that of the input.
            DtypeError: a dtype is another, or `inputs` is no mapping of names to arrays.
        """
        where = self.program.name
        if not isinstance(inputs, Mapping):
            raise DtypeError(f"{where}: an executable takes a dict of arrays by name, got {a_kind(inputs)}")
        arrays = []
        for name, aval in zip(self.program.input_names, self.program.in_avals, strict=True):
            if name not in inputs:
                raise ShapeError(
                    f"{where}: missing input {name!r} ({aval}); the dict has {', '.join(map(repr, inputs)) or 'none'}"
                )
            x = operand(inputs[name], where)
            _check(where, name, x.aval, aval)
            if type(x) is not Tensor:
                raise DtypeError(
                    f"{where}: input {name!r} is a traced value; inside a trace call the Program, not the Executable"
                )
            arrays.append(x)
        if len(inputs) > len(arrays):
            names = self.program.input_names
            surplus = ", ".join([repr(name) for name in inputs if name not in names])
            raise ShapeError(
                f"{where}: there is no input {surplus}; the inputs are {', '.join(map(repr, names)) or 'none'}"
            )
        outs = self._inner(*arrays)
        return list(outs) if self.program.ordered else outs[0]

    evaluate = __call__


@final
class Compiler:
    """Traces functions of named arrays into Programs.

    Example:
        >>> import quabla as qb
        >>> compiler = qb.Compiler()
        >>> compiler.capability("cpu")
        True
        >>> print(compiler.trace(lambda x: qb.sin(x), [("x", (2,), qb.float32)]))
        program
          input x: float32[2]
          %0: float32[2] = sin(x)
          return %0
    """

    def capabilities(self) -> dict[str, bool]:
        """The devices by name, and whether each can run now; `python -m quabla doctor` says why one cannot."""
        return {plugin.name: plugin.state == "ready" for plugin in registry.plugins()}

    def capability(self, target: str) -> bool:
        """Whether a device can run now.

        Raises:
            UnsupportedOperationError: no installed plugin brings such a device.
        """
        found = self.capabilities()
        if target not in found:
            raise UnsupportedOperationError(
                f"capability: no plugin brings the device {target!r}; there are {', '.join(sorted(found))}",
                device=str(target),
            )
        return found[target]

    def trace(self, function: Callable[..., Any], input_specs: Iterable[Any]) -> Program:
        """Trace a function.

        Args:
            function: takes an array per spec, positionally; returns an array, or a container of them.
            input_specs: per input `(name, shape)`, `(name, shape, dtype)` or `(name, ShapeDtype)`; float64 unless
                given.

        Returns:
            The program. If the function returns one array, so does the program; otherwise a list of the leaves.

        Raises:
            DtypeError: a spec is of another form, or the function returns something else than arrays.
            ShapeError: a shape is invalid, or a name is there twice.
            TracerError: the function needs the elements of an array.

        Example:
            >>> import quabla as qb
            >>> qb.Compiler().trace(lambda x, y: (x @ y, x), [("x", (2, 3)), ("y", (3,))])
            Program(output_shapes=[[2], [2, 3]])
        """
        if not callable(function):
            raise DtypeError(f"trace: the first argument must be a function, got {a_kind(function)}")
        if isinstance(input_specs, (Mapping, str)) or not isinstance(input_specs, Iterable):
            raise DtypeError(
                f"trace: input_specs is a list of (name, shape) or (name, shape, dtype), got {a_kind(input_specs)}"
            )
        names: list[str] = []
        avals = []
        for spec in input_specs:
            name, aval = _spec(spec)
            _check_name("trace", name, names)
            names.append(name)
            avals.append(aval)
        alone: list[bool] = []

        def run(*arrays: Any) -> list[Any]:
            value = function(*arrays)
            outputs, result = as_outputs(function, value)
            if not outputs:
                raise DtypeError(f"trace: {name_of(function)} returns no array")
            alone.append(result.treedef.num_leaves == 1 and not isinstance(value, (tuple, list, dict)))
            return outputs

        graph, captures = trace(run, avals, names)
        if captures:
            raise UnsupportedOperationError(
                f"trace: {name_of(function)} closes over a traced value ({captures[0].aval}); pass it as an input",
                op="trace",
            )
        return Program(graph, name_of(function), ordered=not alone[0])


def _spec(spec: Any) -> tuple[str, ShapeDtype]:
    if not isinstance(spec, (tuple, list)) or len(spec) not in (2, 3) or not isinstance(spec[0], str):
        raise DtypeError(f"trace: an input spec is (name, shape) or (name, shape, dtype), got {spec!r}")
    if isinstance(spec[1], ShapeDtype):
        return spec[0], spec[1]
    where = f"trace: input {spec[0]!r}"
    return spec[0], aval_of(as_shape(spec[1], where), as_dtype(spec[2], where) if len(spec) == 3 else float64)


def _check_name(where: str, name: Any, taken: Sequence[str]) -> None:
    if not isinstance(name, str) or not name:
        raise DtypeError(f"{where}: an input name is a string that is not empty, got {name!r}")
    if name.startswith("__quabla_"):
        raise ShapeError(f"{where}: the input name {name!r} is reserved, as all that begin with '__quabla_'")
    if name in taken:
        raise ShapeError(f"{where}: the input {name!r} already exists; names must differ")


def _check(where: str, name: str, got: ShapeDtype, wanted: ShapeDtype) -> None:
    if got.shape != wanted.shape:
        raise ShapeError(f"{where}: input {name!r} has shape {got.shape}, expected {wanted.shape} ({wanted})")
    if got.dtype is not wanted.dtype:
        raise DtypeError(
            f"{where}: input {name!r} is {got}, expected {wanted}; convert it with astype({str(wanted.dtype)!r})"
        )
