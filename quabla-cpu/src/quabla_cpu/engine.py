"""The native code engine: LLVM IR text to object code to callable addresses.

Three steps, each useful alone:

    object_code = compile(text)              # parse, verify, optimise, emit; remembered on disk
    object_code = compile_quickly((text, {}))  # the same results from slower code, in a fraction of the time
    library = link([object_code], ["entry"], imports={"dgemm": address})
    address = library.address("entry")       # valid as long as `library` lives

llvmlite is imported when there is something to compile, or to link what `elf` cannot read; the rest is linked here. All
functions may be called from many threads, and in a child process after a fork.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from . import diskcache, machine, memory
from .image import Image, UnsupportedError
from .machine import Host

__all__ = [
    "Host",
    "Library",
    "check",
    "compile",
    "compile_quickly",
    "compiled",
    "function_attributes",
    "host",
    "identity",
    "joined",
    "link",
    "load",
    "no_fork",
    "remember",
]

# The object code depends on these besides the text: part of the cache key, so change it when a pass or option changes.
_PIPELINE = "three passes, small, pic 1"

_PASSES = ("always_inliner", "sroa", "loop_rotate")

# Within one LLJIT a library's name can never be used again, and links get slower with the number of names ever used
# (0.13 ms at 1,000, 1.8 ms at 20,000): start a fresh one now and then. Libraries keep the LLJIT they were linked in.
_LINKS_PER_JIT = 2000

_lock = threading.RLock()


def _before_fork() -> None:
    # No other thread is within LLVM while this process is forked: a child would find LLVM's locks taken for ever.
    _lock.acquire()


def _after_fork() -> None:
    _lock.release()


def no_fork() -> AbstractContextManager[object]:
    """While this is entered no thread forks the process: a child forked within an import could never import that."""
    return _lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class _Engine:
    """A target machine and the current LLJIT. One per process serves everybody; tests make others."""

    def __init__(self, cpu: str | None = None, features: Mapping[str, bool] | None = None) -> None:
        import llvmlite
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.llvm = llvm
        cpu = llvm.get_host_cpu_name() if cpu is None else cpu
        known = dict(llvm.get_host_cpu_features()) if features is None else features
        flags = ",".join(("+" if there else "-") + name for name, there in sorted(known.items()))
        target = llvm.Target.from_default_triple()
        options = {"cpu": cpu, "features": flags, "reloc": "pic", "codemodel": "small", "jit": True}
        self.machine = target.create_target_machine(opt=2, **options)
        self.quick = target.create_target_machine(opt=0, **options)
        arm = target.triple.startswith(("aarch64", "arm64"))
        self.host = Host(
            cpu=cpu,
            features=flags,
            vector_bytes=64 if known.get("avx512f") else 32 if known.get("avx2") else 16,
            has_fma=bool(known.get("fma")) or arm,
            triple=target.triple,
            llvm_version=".".join(map(str, llvm.llvm_version_info)),
        )
        self.identity = "\n".join(
            (
                self.host.llvm_version,
                llvmlite.__version__,
                self.host.triple,
                cpu,
                self.host.features,
                _PIPELINE,
            )
        )
        self.jit: Any = None
        self.links = 0
        self.names = 0

    def optimise(self, module: Any) -> None:
        """Run the passes: what generated code with explicit vectors gains from, and nothing else.

        LLVM's own O1 takes many times as long. Its simplifications find little in code that was written well, and some
        do harm: what they make of small recurrences runs up to a third slower.
        """
        # The options go at once: llvmlite complains of those that are left at the end of a process, if it was imported
        # so late that it does not know of the end.
        with self.llvm.create_pipeline_tuning_options(1) as options, ExitStack() as opened:
            builder = opened.enter_context(self.llvm.create_pass_builder(self.machine, options))
            manager = opened.enter_context(self.llvm.create_new_module_pass_manager())
            for add_pass in _PASSES:
                getattr(manager, f"add_{add_pass}_pass")()
            manager.run(module, builder)

    def parse(self, text: str) -> Any:
        """A module of LLVM, verified."""
        try:
            module = self.llvm.parse_assembly(text)
            # Never skip: some malformed intrinsic calls abort the process later.
            module.verify()
        except RuntimeError as error:
            raise ValueError(f"LLVM refused generated code (please report this): {error}") from error
        return module

    def current_jit(self) -> Any:
        if self.jit is None or self.links >= _LINKS_PER_JIT:
            self.jit = self.llvm.create_lljit_compiler(use_jit_link=True)
            self.links = 0
        self.links += 1
        return self.jit


_engine: _Engine | None = None


def _get_engine() -> _Engine:
    global _engine
    if _engine is None:
        with _lock:
            if _engine is None:
                _engine = _Engine()
    return _engine


_unasked = object()
_recalled: Any = _unasked  # what an earlier process found out


def _machine() -> machine.Machine | None:
    global _recalled
    if _recalled is _unasked:
        _recalled = machine.recall()
    return _recalled  # type: ignore[no-any-return]


def host() -> Host:
    """Describe the machine that code is compiled for. Imports llvmlite where no earlier process kept the answer."""
    known = _machine() if _engine is None else None
    return _get_engine().host if known is None else known.host


def identity() -> str:
    """What object code depends on besides the text."""
    known = _machine() if _engine is None else None
    return _get_engine().identity if known is None else known.identity


def check() -> Image | None:
    """The function that an earlier process gave to `remember`."""
    known = _machine()
    return None if known is None else known.check


def remember(code: bytes, symbol: str) -> None:
    """Keep what LLVM says of this machine for later processes, with a function for them to try.

    Args:
        code: an object file.
        symbol: the function in it.
    """
    engine = _get_engine()
    try:
        image = joined([code], [symbol])
    except UnsupportedError:
        return  # later processes will need LLVM to link
    machine.remember(machine.Machine(engine.host, engine.identity, image))


def function_attributes(*, leaf: bool = False) -> str:
    """Attributes for every function: no unwinding, and the widest vectors, which LLVM avoids by default.

    Vectors that are kept on the stack across a call lie within a cache line each, unless the function is a `leaf`,
    which keeps none: one that crosses two lines takes tens of cycles to come back.
    """
    width = host().vector_bytes
    aligned = f" alignstack({width})" if width > 16 and not leaf else ""
    return f"nounwind{aligned}" + (' "prefer-vector-width"="512"' if width == 64 else "")


def compile(text: str, *, cache: bool = True, passes: bool = True) -> bytes:
    """Compile LLVM IR text to object code.

    Args:
        text: A whole module, as `quabla_cpu.text.Module.text` writes it.
        cache: Whether to look for the object code on disk or in memory first, and to keep it there.
        passes: Whether to run optimisation passes over the text. Straight-line code that is written well gains nothing.

    Returns:
        The bytes of an object file for this machine.

    Raises:
        ValueError: LLVM does not accept the text. This is a fault of the code generator: please report it.
    """
    if not cache:
        return _compile(text, passes)
    key = _key(text, passes)
    found = _stored(key)
    if found is not None:
        return found
    built = _recent.get(key) or _compile(text, passes)
    with _lock:
        _recent[key] = built
        while sum(map(len, _recent.values())) > _MOST_RECENT:
            del _recent[next(iter(_recent))]
    if diskcache.enabled():
        diskcache.put(key, built)
    return built


def compiled(text: str, *, passes: bool = True) -> bytes | None:
    """What `compile` gives for a text that it or an earlier process compiled lately, else None."""
    key = _key(text, passes)
    found = _stored(key)
    return _recent.get(key) if found is None else found


def _key(text: str, passes: bool) -> str:
    return diskcache.key(identity(), str(passes), text)


def _stored(key: str) -> bytes | None:
    return diskcache.get(key) if diskcache.enabled() else None


# Object code of this process, for where the disk keeps none: functions of `vectormath` and products of many programs.
_recent: dict[str, bytes] = {}
_MOST_RECENT = 4 << 20  # bytes


def _compile(text: str, passes: bool) -> bytes:
    engine = _get_engine()
    with _lock, engine.parse(text) as module:
        if passes:
            engine.optimise(module)
        built: bytes = engine.machine.emit_object(module)
        return built


def compile_quickly(*modules: tuple[str, Mapping[str, str]]) -> bytes:
    """Compile LLVM IR text to object code in about a sixth of the time; nothing is remembered.

    No pass runs, and instructions are selected one by one. The code takes twice the time of that of `compile`, and five
    times in products. Results are the same bits: generated code allows LLVM no liberties with floating point.

    Args:
        modules: texts, which become one object, and the functions of each that get other names.

    Raises:
        ValueError: as `compile`.
    """
    engine = _get_engine()
    with _lock, ExitStack() as opened:
        parsed = [opened.enter_context(engine.parse(text)) for text, _ in modules]
        for module, (_, names) in zip(parsed, modules, strict=True):
            for old, new in names.items():
                module.get_function(old).name = new
        for module in parsed[1:]:
            parsed[0].link_in(module)
        built: bytes = engine.quick.emit_object(parsed[0])
        return built


def assembly(text: str) -> str:
    """The machine code of LLVM IR text as assembly, after the passes of `compile`: for people, not for programs."""
    engine = _get_engine()
    with _lock, engine.parse(text) as module:
        engine.optimise(module)
        return str(engine.machine.emit_assembly(module))


class Library:
    """Linked code in memory. It is freed when the last reference goes: keep it as long as its addresses are called."""

    __slots__ = ("_addresses", "_kept")

    def __init__(self, addresses: Mapping[str, int], kept: tuple[object, ...]) -> None:
        self._addresses = addresses
        self._kept = kept  # the memory of the code among them

    def address(self, symbol: str) -> int:
        """The address of an exported symbol.

        Raises:
            KeyError: The symbol was not in `exports` when the library was linked.
        """
        return self._addresses[symbol]


def load(image: Image, imports: Mapping[str, int], keep: Sequence[object] = ()) -> Library:
    """Put a linked image into memory.

    Args:
        image: the code.
        imports: addresses of symbols outside. C library functions are found without.
        keep: objects to keep alive with the library.

    Raises:
        UnsupportedError: this machine does not let a process do so.
        ValueError: a symbol is missing.
    """

    def address(name: str) -> int:
        return imports[name] if name in imports else memory.c_function(name)

    try:
        mapping = memory.place(image, address)
    except KeyError as missing:
        raise ValueError(
            f"cannot link generated code (please report this): nothing defines {missing}"
        ) from None
    return Library({name: mapping.base + offset for name, offset in image.exports.items()}, (mapping, *keep))


class _Tracked:
    """Code that LLVM linked."""

    __slots__ = ("_key",)

    def __init__(self, key: int) -> None:
        self._key = key

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():
            _unused.append(self._key)
            # The collector may run this anywhere, so it waits for nobody: who holds the lock frees the code later.
            if _lock.acquire(blocking=False):
                try:
                    _free_unused()
                finally:
                    _lock.release()


# What LLVM calls its libraries by, and their LLJIT. They are kept here, not in the Library, for else the collector
# might free the code without our lock, or the LLJIT before the code.
_linked: dict[int, tuple[Any, Any]] = {}
_unused: list[int] = []


def _free_unused() -> None:
    while _unused:
        tracker, _jit = _linked.pop(_unused.pop())
        tracker.close()


def link(
    objects: Sequence[bytes],
    exports: Sequence[str],
    imports: Mapping[str, int] | None = None,
    keep: Sequence[object] = (),
) -> Library:
    """Link object code into memory.

    Args:
        objects: Object files, as `compile` returns them.
        exports: The symbols whose addresses are wanted.
        imports: Addresses of symbols that the objects use and do not define. C library functions are found without.
        keep: Objects to keep alive with the library, such as the libraries that `imports` points into.

    Raises:
        ValueError: A symbol is missing or defined twice.
    """
    outside = imports or {}
    try:
        return load(joined(objects, exports), outside, keep)
    except UnsupportedError:
        return _link(objects, exports, outside, keep)


def joined(objects: Sequence[bytes], exports: Sequence[str]) -> Image:
    """Link object code without putting it into memory.

    Raises:
        UnsupportedError: the code is of a kind that only LLVM links.
        ValueError: a symbol is defined twice, or an export not at all.
    """
    with no_fork():
        from .joining import Piece, join  # which a process that only loads does without

    return join([Piece(code) for code in objects], exports)


def _link(
    objects: Sequence[bytes], exports: Sequence[str], imports: Mapping[str, int], keep: Sequence[object]
) -> Library:
    """The same by LLVM's linker."""
    engine = _get_engine()
    with _lock:
        _free_unused()
        builder = engine.llvm.JITLibraryBuilder()
        for image in objects:
            builder.add_object_img(image)
        for name, address in imports.items():
            builder.import_symbol(name, address)
        for name in exports:
            builder.export_symbol(name)
        jit = engine.current_jit()
        engine.names += 1
        try:
            tracker = builder.link(jit, f"quabla{engine.names}")
        except RuntimeError as error:
            raise ValueError(f"cannot link generated code (please report this): {error}") from error
        _linked[id(tracker)] = tracker, jit
    addresses = {name: tracker[name] for name in exports}
    return Library(addresses, (_Tracked(id(tracker)), *keep))
