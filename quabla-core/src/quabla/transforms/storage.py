"""Programs in files: a zip archive with `program.json` (see `ir/schema.py`) and `constants.bin`."""

from __future__ import annotations

import copyreg
import io
import os
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from quabla.arrays.tensor import Tensor, copied, wrap_as
from quabla.control.rules import Rule
from quabla.errors import FileFormatError, UnsupportedOperationError
from quabla.ir import program as ir
from quabla.transforms.programs import Executable, Program
from quabla.transforms.staging import Staged

if TYPE_CHECKING:
    import zipfile

    from quabla.ir.schema import ProgramFile

__all__ = ["load_program", "save_program"]

_JSON, _CONSTANTS = "program.json", "constants.bin"
_LONGEST = 1 << 30  # of the JSON part, in bytes


def save_program(path: str | os.PathLike[str], program: Program) -> None:
    """Write a program to a file, whole or not at all; see `Program.save`."""
    data = packed(program)
    target = os.fspath(path)
    unfinished = f"{target}.{os.getpid()}.part"
    try:
        with open(unfinished, "wb") as file:
            file.write(data)
        os.replace(unfinished, target)
    except BaseException as error:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        if isinstance(error, OSError) and error.filename == unfinished:
            error.filename = target  # the name that the user knows
        raise


def packed(program: Program) -> bytes:
    """What a file of a program holds."""
    import zipfile  # which imports much that `import quabla` does without

    from quabla.ir.schema import encode

    document, arrays = encode(program.graph, program.name, program.ordered, _encode_rule)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        _add(archive, _JSON, document.model_dump_json().encode(), zipfile.ZIP_DEFLATED)
        data = b"".join(
            np.ascontiguousarray(a).astype(a.dtype.newbyteorder("<"), copy=False).tobytes() for a in arrays
        )
        _add(archive, _CONSTANTS, data, zipfile.ZIP_STORED)
    return file.getvalue()


def _add(archive: zipfile.ZipFile, name: str, data: bytes, compression: int) -> None:
    import zipfile

    # With a fixed date, equal programs make equal files.
    archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, compress_type=compression)


def load_program(path: str | os.PathLike[str]) -> Program:
    """Read a program that `Program.save` wrote.

    Nothing in a file is run: it names ops, which are looked up and checked against their own rules, and holds numbers.

    Args:
        path: the file.

    Returns:
        The program: call it, transform it, or compile it for a device.

    Raises:
        FileFormatError: the file is no saved program, damaged, cut short, or written by a newer version.
        OSError: the file cannot be read.

    Example:
        >>> import os, tempfile
        >>> import quabla as qb
        >>> lowered = qb.jit(lambda x: qb.sum(qb.sin(x))).lower(qb.ShapeDtype((3,)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "loss.qbp")
        ...     lowered.save(path)
        ...     program = qb.load_program(path)
        >>> program.lower_text() == lowered.as_text()
        True
        >>> qb.grad(lambda x: program(x)[0])(qb.zeros((3,))).tolist()
        [1.0, 1.0, 1.0]
    """
    with open(path, "rb") as file:
        return _unpacked(file, f"load_program: {os.fspath(path)}")


def _unpacked(file: IO[bytes], where: str) -> Program:
    from quabla.ir.schema import decode, parse

    try:
        document, data = _parts(file, parse)
        constants = [_constant(document, i, data) for i in range(len(document.constants))]
        graph = decode(document, constants, {"rule": _decode_rule})
    except FileFormatError as error:
        raise FileFormatError(f"{where}: {error}") from error.__cause__
    if not document.ordered and len(graph.outputs) != 1:
        raise FileFormatError(f"{where}: a program with one result has {len(graph.outputs)}")
    return Program(graph, document.name, document.ordered)


def _parts(file: IO[bytes], parse: Callable[[bytes], ProgramFile]) -> tuple[ProgramFile, bytes]:
    import zipfile

    try:
        with zipfile.ZipFile(file) as archive:
            if sorted(archive.namelist()) != sorted((_JSON, _CONSTANTS)):
                raise FileFormatError("not a saved program: it is an archive of other files")
            document = parse(_member(archive, _JSON, _LONGEST))
            return document, _member(archive, _CONSTANTS, _wanted(document))
    except FileFormatError:
        raise
    except (
        zipfile.BadZipFile,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        OSError,
    ) as error:
        raise FileFormatError(f"damaged or cut short ({error})") from None
    except Exception as error:
        if type(error).__module__ in ("zlib", "struct"):
            raise FileFormatError(f"damaged ({error})") from None
        raise


def _member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A part of the archive; its checksum is verified. What it claims to unpack to is checked before it is unpacked."""
    if archive.getinfo(name).file_size > limit:
        raise FileFormatError(
            f"{name} has {archive.getinfo(name).file_size} bytes where at most {limit} belong there"
        )
    return archive.read(name)


def _wanted(document: ProgramFile) -> int:
    from quabla.ir.schema import type_of

    return max((c.offset + type_of(c.type, "constant").nbytes for c in document.constants), default=0)


def _constant(document: ProgramFile, index: int, data: bytes) -> Tensor:
    from quabla.ir.schema import type_of

    model = document.constants[index]
    aval = type_of(model.type, f"constant {index}")
    end = model.offset + aval.nbytes
    if end > len(data):
        raise FileFormatError(f"constant {index} ({aval}) ends at byte {end}, and there are {len(data)}")
    kind = aval.dtype.numpy.newbyteorder("<")
    raw = np.frombuffer(data, kind, aval.size, model.offset)
    if aval.dtype.kind == "b" and raw.view(np.uint8).max(initial=0) > 1:
        raise FileFormatError(f"constant {index} ({aval}) holds bytes that are no truth values")
    return wrap_as(copied(raw.reshape(aval.shape), aval.dtype.numpy), aval)


# --- rules of custom derivatives, which are programs with a name ----------------------------------------------------


def _encode_rule(value: Any, add: Callable[[ir.Program], int]) -> Any:
    return {"rule": [value.name, add(value.program)]} if isinstance(value, Rule) else None


def _decode_rule(value: Any, programs: list[ir.Program]) -> Rule:
    match value:
        case [str(name), int(index)] if 0 <= index < len(programs):
            program = programs[index]
            return Rule(name, lambda: Staged(program, (), None))
    raise FileFormatError("a derivative rule has an unknown form")


# --- pickling: a program is its file, whatever made it --------------------------------------------------------------


def _restored(data: bytes) -> Program:
    return _unpacked(io.BytesIO(data), "unpickling a program")


def _refused(executable: Executable) -> Any:
    raise UnsupportedOperationError(
        f"pickling: {executable!r} is code for this process; pickle its program, and compile it where it is read",
        op="pickle",
    )


copyreg.pickle(Program, lambda program: (_restored, (packed(program),)))
copyreg.pickle(Executable, _refused)
