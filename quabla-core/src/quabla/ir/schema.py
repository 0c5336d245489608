"""The form of a Program in a file: a pydantic schema, and the way there and back.

    {"format": "quabla-program", "version": 1, "name": "loss", "ordered": true,
     "programs": [{"inputs": [{"name": "x", "type": "float64[3]"}],
                   "nodes": [{"op": "mul", "inputs": [0, 0], "params": {}, "types": ["float64[3]"]}],
                   "outputs": [1]}],
     "constants": [{"type": "float64[3]", "offset": 0}]}

Values are numbered: the inputs first, then the results of the nodes in order. `programs` holds regions before the
programs that use them, the whole one last. Constants lie in a second, binary part, little-endian. A param is a JSON
value where JSON has one that comes back as it was (bool, int, string, null), else an object with one key that says what
it is.

What is read is checked, not trusted: the schema first, then every node by `checks.complaint` and by the op's own
`infer`, whose types must be those in the file. Nothing in a file names code.

Only reading or writing a file needs this module, so nothing else imports it (or pydantic).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, field_validator

from quabla.dtypes import as_dtype, dtype
from quabla.errors import FileFormatError, QuablaError, UnsupportedOperationError
from quabla.ir.checks import complaint
from quabla.ir.op import OPS
from quabla.ir.program import Node, Program, Value
from quabla.shapes import MOST_ELEMENTS, ShapeDtype, aval_of

__all__ = ["FORMAT", "VERSION", "ProgramFile", "decode", "encode", "parse"]

FORMAT = "quabla-program"
VERSION = 1

_TYPE = re.compile(r"(~?)(float64|float32|bool|int64)\[((?:[1-9]\d{0,18}(?:,[1-9]\d{0,18})*)?)\]", re.ASCII)
_DEPTH = 64  # of params within params


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Index = Annotated[StrictInt, Field(ge=0)]


class InputModel(_Model):
    """An input: its name and its type, such as "float64[8,3]"."""

    name: str
    type: str


class NodeModel(_Model):
    """An application of an op to earlier values, and the types of its results."""

    op: str
    inputs: tuple[Index, ...]
    params: dict[str, Any]
    types: tuple[str, ...]


class ProgramModel(_Model):
    """A graph whose values are numbered in the order of inputs and results."""

    inputs: tuple[InputModel, ...]
    nodes: tuple[NodeModel, ...]
    outputs: tuple[Index, ...]

    @field_validator("inputs")
    @classmethod
    def _named_apart(cls, inputs: tuple[InputModel, ...]) -> tuple[InputModel, ...]:
        names = [i.name for i in inputs]
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise ValueError(f"two inputs have the name {twice!r}")
        return inputs


class ConstantModel(_Model):
    """An array in the binary part: its type, and where its bytes begin."""

    type: str
    offset: Index


class ProgramFile(_Model):
    """A whole file but for the bytes of its constants."""

    format: Literal["quabla-program"]
    version: StrictInt
    name: str
    ordered: bool
    programs: tuple[ProgramModel, ...] = Field(min_length=1)
    constants: tuple[ConstantModel, ...]


def parse(text: bytes) -> ProgramFile:
    """Check a JSON document against the schema.

    Raises:
        FileFormatError: it is no such document, of a newer version, or malformed; the message says where.
    """
    import json

    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"the program is not valid JSON ({error}); the file is damaged") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise FileFormatError(f'not a saved program: "format" is not {FORMAT!r}')
    version = raw.get("version")
    if type(version) is int and version > VERSION:
        raise FileFormatError(
            f"the file has version {version} of the format, and this Quabla reads versions up to {VERSION}; "
            "install a newer one"
        )
    if version != VERSION:
        raise FileFormatError(
            f"the file has version {version!r} of the format, which never was; it is damaged"
        )
    try:
        return ProgramFile.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "/".join(map(str, first["loc"]))
        raise FileFormatError(f"the file is malformed at {where}: {first['msg']}") from None


# --- there ------------------------------------------------------------------------------------------------------------


class _Encoder:
    def __init__(self, extra: Callable[[Any, Callable[[Program], int]], Any]) -> None:
        self.extra = extra
        self.programs: list[ProgramModel] = []
        self.numbers: dict[int, int] = {}  # id of a program -> its index; the programs are alive meanwhile
        self.arrays: list[Any] = []
        self.constants: list[ConstantModel] = []
        self.places: dict[int, int] = {}
        self.nbytes = 0

    def program(self, program: Program) -> int:
        found = self.numbers.get(id(program))
        if found is not None:
            return found
        number: dict[Value, int] = {v: i for i, v in enumerate(program.inputs)}
        nodes = []
        for node in program.nodes:
            if node.op.name not in OPS or OPS[node.op.name] is not node.op:
                raise UnsupportedOperationError(
                    f"save: {node.op.name} is no op that a file can name", op=node.op.name
                )
            params = {k: self.param(node.op.name, v) for k, v in node.params.items()}
            for v in node.outputs:
                number[v] = len(number)
            ins = tuple(number[v] for v in node.inputs)
            types = tuple(repr(v.aval) for v in node.outputs)
            nodes.append(NodeModel(op=node.op.name, inputs=ins, params=params, types=types))
        model = ProgramModel(
            inputs=tuple(
                InputModel(name=n, type=repr(v.aval))
                for n, v in zip(program.input_names, program.inputs, strict=True)
            ),
            nodes=tuple(nodes),
            outputs=tuple(number[v] for v in program.outputs),
        )
        self.programs.append(model)
        self.numbers[id(program)] = len(self.programs) - 1
        return len(self.programs) - 1

    def param(self, op: str, value: Any) -> Any:
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if type(value) is float:
            return {"float": value.hex()}
        if isinstance(value, (tuple, list)):
            return {"tuple": [self.param(op, v) for v in value]}
        if isinstance(value, dtype):
            return {"dtype": value.name}
        if isinstance(value, ShapeDtype):
            return {"type": repr(value)}
        if isinstance(value, Program):
            return {"program": self.program(value)}
        if isinstance(getattr(value, "aval", None), ShapeDtype) and hasattr(value, "numpy"):
            return {"constant": self.constant(value)}
        other = self.extra(value, self.program)
        if other is None:
            raise UnsupportedOperationError(
                f"save: {op} holds a {type(value).__name__}, which has no form in a file", op=op
            )
        return other

    def constant(self, tensor: Any) -> int:
        found = self.places.get(id(tensor))
        if found is None:
            array = tensor.numpy()
            self.constants.append(ConstantModel(type=repr(tensor.aval), offset=self.nbytes))
            self.nbytes += array.nbytes
            self.arrays.append(array)
            found = self.places[id(tensor)] = len(self.arrays) - 1
        return found


def encode(
    program: Program, name: str, ordered: bool, extra: Callable[[Any, Callable[[Program], int]], Any]
) -> tuple[ProgramFile, list[Any]]:
    """A program in the form of a file.

    Args:
        program: any program.
        name: what it is called.
        ordered: whether its results come as a list.
        extra: for a param of another kind, an object with one key, or None; it gets a function that adds a program.

    Returns:
        The document, and the arrays of its constants in order.

    Raises:
        UnsupportedOperationError: a param has no form in a file.
    """
    encoder = _Encoder(extra)
    encoder.program(program)
    document = ProgramFile(
        format="quabla-program",
        version=VERSION,
        name=name,
        ordered=ordered,
        programs=tuple(encoder.programs),
        constants=tuple(encoder.constants),
    )
    return document, encoder.arrays


# --- and back ---------------------------------------------------------------------------------------------------------


def type_of(text: str, where: str) -> ShapeDtype:
    """The type that "float64[8,3]" names; "~" in front makes it weak.

    Raises:
        FileFormatError: it names none.
    """
    found = _TYPE.fullmatch(text)
    if found is None:
        raise FileFormatError(f"{where}: {text!r} is no type")
    shape = tuple(int(n) for n in found[3].split(",")) if found[3] else ()
    if math.prod(shape) > MOST_ELEMENTS:
        raise FileFormatError(f"{where}: {text!r} is larger than any memory")
    return aval_of(shape, as_dtype(found[2]), bool(found[1]))


class _Decoder:
    def __init__(
        self, document: ProgramFile, constants: list[Any], extra: dict[str, Callable[[Any, Any], Any]]
    ) -> None:
        self.document, self.constants, self.extra = document, constants, extra
        self.programs: list[Program] = []

    def program(self, index: int) -> Program:
        model = self.document.programs[index]
        values = [_value(type_of(i.type, f"input {i.name!r}"), None, 0) for i in model.inputs]
        inputs = tuple(values)
        nodes = []
        for n, node in enumerate(model.nodes):
            made = self.node(node, values, f"program {index}, node {n} ({node.op})")
            nodes.append(made)
            values += made.outputs
        if any(i >= len(values) for i in model.outputs):
            raise FileFormatError(f"program {index}: an output is a value that nothing defines")
        outputs = tuple(values[i] for i in model.outputs)
        return Program(inputs, tuple(nodes), outputs, tuple(i.name for i in model.inputs))

    def node(self, model: NodeModel, values: list[Value], where: str) -> Node:
        op = OPS.get(model.op)
        if op is None:
            raise FileFormatError(
                f"{where}: this Quabla has no op {model.op!r}; the file was written by a newer one, or is damaged"
            )
        if any(i >= len(values) for i in model.inputs):
            raise FileFormatError(f"{where}: an operand is a value that is not defined before")
        ins = tuple(values[i] for i in model.inputs)
        params = {k: self.param(v, where, 0) for k, v in model.params.items()}
        wrong = complaint(op, [v.aval for v in ins], params)
        if wrong is not None:
            raise FileFormatError(f"{where}: {wrong}")
        try:
            inferred = op.infer(*[v.aval for v in ins], **params)
            got = list(inferred) if op.multiple else [inferred]
        except QuablaError as error:
            raise FileFormatError(f"{where}: {error}") from error
        except Exception as error:  # whatever a rule trips over when its params are nonsense
            raise FileFormatError(
                f"{where}: the params do not fit ({type(error).__name__}: {error})"
            ) from error
        stated = [type_of(t, where) for t in model.types]
        # The weak flag may differ: `infer` states what an op makes of strong operands in some ops.
        if [(a.shape, a.dtype) for a in got] != [(a.shape, a.dtype) for a in stated]:
            raise FileFormatError(f"{where}: the types in the file are {stated}, those of the op {got}")
        made = Node(op, ins, params)
        made.outputs = tuple(_value(a, made, i) for i, a in enumerate(stated))
        return made

    def param(self, raw: Any, where: str, depth: int) -> Any:
        if raw is None or isinstance(raw, (bool, int, str)):
            return raw
        if not isinstance(raw, dict) or len(raw) != 1 or depth > _DEPTH:
            raise FileFormatError(f"{where}: a param has an unknown form")
        ((kind, value),) = raw.items()
        if kind == "float" and isinstance(value, str):
            try:
                return float.fromhex(value)
            except (ValueError, OverflowError):
                pass
        elif kind == "tuple" and isinstance(value, list):
            return tuple(self.param(v, where, depth + 1) for v in value)
        elif kind == "dtype" and value in ("float64", "float32", "int64", "bool"):
            return as_dtype(value)
        elif kind == "type" and isinstance(value, str):
            return type_of(value, where)
        elif kind == "program" and type(value) is int and 0 <= value < len(self.programs):
            return self.programs[value]
        elif kind == "constant" and type(value) is int and 0 <= value < len(self.constants):
            return self.constants[value]
        elif kind in self.extra:
            return self.extra[kind](value, self.programs)
        raise FileFormatError(f"{where}: a param of kind {kind!r} is invalid")


def _value(aval: ShapeDtype, node: Node | None, index: int) -> Value:
    v = Value()
    v.aval, v.node, v.index = aval, node, index
    return v


def decode(
    document: ProgramFile, constants: list[Any], extra: dict[str, Callable[[Any, Any], Any]]
) -> Program:
    """The program of a document.

    Args:
        document: as `parse` returns it.
        constants: an array per constant.
        extra: makes a param of another kind from its value and the programs before it.

    Raises:
        FileFormatError: an op is unknown, or a node is not what its op says.
    """
    decoder = _Decoder(document, constants, extra)
    for index in range(len(document.programs)):
        decoder.programs.append(decoder.program(index))
    return decoder.programs[-1]
