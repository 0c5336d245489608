"""Modules: what a unit of LLVM IR text declares and defines."""

from __future__ import annotations

from collections.abc import Sequence

from .flow import Builder
from .values import Value, constant


class Module:
    """One unit of LLVM IR text: declarations (each written once), globals, and functions.

    Args:
        attributes: Function attributes put on every function that is defined, besides its own.
    """

    def __init__(self, attributes: str = "") -> None:
        self.attributes = attributes
        self._declarations: dict[str, str] = {}
        self._globals: dict[str, str] = {}
        self._functions: dict[str, Builder] = {}
        self._metadata: list[str] = []
        self._metadata_names: dict[str, str] = {}

    def function(
        self,
        name: str,
        returns: str,
        parameters: Sequence[str | tuple[str, str]],
        *,
        attributes: str = "",
        linkage: str = "",
    ) -> Builder:
        """Start the definition of a function and return its builder.

        Args:
            name: The symbol.
            returns: The return type, `"void"` included.
            parameters: A type, or a pair of type and parameter attributes, for each parameter.
            attributes: Function attributes, such as `"nounwind memory(none)"`.
            linkage: `""` (external), `"internal"`, `"private"`, ...

        Raises:
            ValueError: The module already defines that symbol.
        """
        if name in self._functions:
            raise ValueError(f"function {name!r} is defined twice in one module")
        builder = Builder(self, name, returns, parameters, f"{attributes} {self.attributes}".strip(), linkage)
        self._functions[name] = builder
        return builder

    @property
    def functions(self) -> tuple[str, ...]:
        """The symbols of the functions that have been started."""
        return tuple(self._functions)

    def defines(self, name: str) -> bool:
        """Whether the module already defines the function `name`."""
        return name in self._functions

    def undefined(self) -> list[str]:
        """The declared functions that the module does not define, intrinsics aside."""
        return [
            name
            for name in self._declarations
            if name not in self._functions and not name.startswith("llvm.")
        ]

    def declare(self, name: str, returns: str, parameters: Sequence[str], attributes: str = "") -> None:
        """Declare an external function; the same declaration may be repeated.

        Raises:
            ValueError: An earlier declaration of the symbol differs.
        """
        line = f"declare {returns} @{name}({', '.join(parameters)}) {attributes}".rstrip()
        if self._declarations.setdefault(name, line) != line:
            raise ValueError(f"{name!r} is declared twice, differently: {self._declarations[name]} / {line}")

    def array(self, name: str, element_type: str, numbers: Sequence[float], align: int = 64) -> Value:
        """A private constant table, returned as a pointer; the same name and content may be repeated."""
        items = ", ".join(f"{element_type} {constant(element_type, number).name}" for number in numbers)
        return self.raw_global(
            name, f"private unnamed_addr constant [{len(numbers)} x {element_type}] [{items}], align {align}"
        )

    def variable(self, name: str, type: str, linkage: str = "internal") -> Value:
        """A zero-initialised global variable, returned as a pointer."""
        return self.raw_global(name, f"{linkage} global {type} zeroinitializer")

    def raw_global(self, name: str, definition: str) -> Value:
        """A global given as the text after `@name = `, returned as a pointer."""
        if self._globals.setdefault(name, definition) != definition:
            raise ValueError(f"global {name!r} is defined twice, differently")
        return Value(f"@{name}", "ptr")

    @property
    def global_count(self) -> int:
        """How many globals there are so far: a number for the name of the next."""
        return len(self._globals)

    def metadata(self, content: str, *, distinct: bool = False) -> str:
        """A metadata node such as `!{!"branch_weights", i32 1, i32 2000}`; returns its reference `!0`."""
        if not distinct and content in self._metadata_names:
            return self._metadata_names[content]
        reference = f"!{len(self._metadata)}"
        self._metadata.append(
            f"{reference} = {'distinct ' if distinct else ''}{content.replace('!SELF', reference)}"
        )
        if not distinct:
            self._metadata_names[content] = reference
        return reference

    def text(self) -> str:
        """The whole module as LLVM IR text."""
        parts = [f"@{name} = {definition}" for name, definition in self._globals.items()]
        parts += [line for name, line in self._declarations.items() if name not in self._functions]
        parts += [builder.text() for builder in self._functions.values()]
        parts += self._metadata
        parts.append("")
        return "\n".join(parts)
