"""The native code of the pool of threads: sharing a call, and the workers. `pool.py` says how it works.

The record is made of words; each that is written often is on a cache line of its own.
"""

from __future__ import annotations

import os

from quabla_cpu import engine, text
from quabla_cpu.executable import PARALLEL
from quabla_cpu.pool import RECORD
from quabla_cpu.text import Builder, Value

__all__ = ["write"]

# `PARALLEL` is `void (ptr function, ptr context, i64 count)`, its function `void (ptr context, i64 index, i64 slot)`.
# Slots number the threads that take part, from 0 and below `count`: two calls of the function that run at the same
# time have different ones.

# Word numbers. `_NEXT` holds the number of the job in its upper half and what is left to do in its lower. A thread
# takes a piece by lowering it, which succeeds only while the job is the same; until that piece is done, it stays so.
_NEXT, _DONE, _BUSY, _SLOTS, _SLEEPERS = 0, 8, 16, 24, 32
_FUNCTION, _CONTEXT, _COUNT, _WORKERS = 40, 41, 42, 43
_MUTEX, _CONDITION = 48, 64
_LEFT = (1 << 32) - 1

_LOOKS = 2000  # about 50 microseconds
_SPINS = 4000  # looks for the last piece of another thread, before the processor is offered to it


class _Pool:
    """Access to the record from a function being written."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.record = b.module.raw_global(RECORD, "external global i8")

    def at(self, word: int) -> Value:
        return self.b.gep("i64", self.record, word)

    def get(self, word: int, order: str = "seq_cst") -> Value:
        return self.b._emit("i64", f"load atomic i64, ptr {self.at(word).name} {order}, align 8")

    def put(self, word: int, x: Value, order: str = "seq_cst") -> None:
        self.b._lines.append(f"store atomic i64 {x.name}, ptr {self.at(word).name} {order}, align 8")

    def add(self, word: int, x: Value) -> Value:
        """Add to a word; returns what it was before."""
        return self.b._emit("i64", f"atomicrmw add ptr {self.at(word).name}, i64 {x.name} seq_cst")

    def exchange(self, word: int, old: Value, new: Value) -> Value:
        """Put `new` where `old` is; returns whether it was."""
        pair = self.b._emit(
            "{ i64, i1 }",
            f"cmpxchg ptr {self.at(word).name}, i64 {old.name}, i64 {new.name} seq_cst seq_cst",
        )
        return self.b._emit("i1", f"extractvalue {{ i64, i1 }} {pair.name}, 1")

    def left(self, following: Value) -> Value:
        return self.b.and_(following, text.number(_LEFT))

    def posix(self, name: str, *operands: Value) -> None:
        self.b.call(name, "i32", *operands)

    def pause(self) -> None:
        machine = engine.host().triple
        if machine.startswith("x86_64"):
            self.b.call("llvm.x86.sse2.pause", "void")
        elif machine.startswith(("aarch64", "arm64")):
            self.b.call("llvm.aarch64.hint", "void", text.constant("i32", 1))

    def run(self, index: Value, slot: Value) -> None:
        function = self.b.load("ptr", self.at(_FUNCTION))
        self.b.call_pointer(function, "void", self.b.load("ptr", self.at(_CONTEXT)), index, slot)


def write() -> str:
    """The text of the code of the pool."""
    module = text.Module(engine.function_attributes())
    _write_parallel(module)
    if os.name == "posix":
        _write_worker(module)
        _write_resize(module)
    else:
        module.function("prepare", "void", []).ret()
        for name in ("resize", "worker"):
            module.function(name, "void", ["i64"]).ret()
    return module.text()


def _write_parallel(module: text.Module) -> None:
    b = module.function(PARALLEL, "void", ["ptr", "ptr", "i64"])
    pool = _Pool(b)
    function, context, count = b.arguments
    one = text.number(1)
    alone = b.or_(b.icmp("sle", count, one), b.icmp("sle", pool.get(_WORKERS, "monotonic"), text.number(0)))
    taken = b.branch(alone)
    with taken.then():
        taken.give(text.constant("i1", 0))
    with taken.otherwise():
        taken.give(pool.exchange(_BUSY, text.number(0), one))
    (shared,) = taken.results()
    with b.if_(b.icmp("eq", shared, text.constant("i1", 0))):
        with b.loop(0, count) as i:
            b.call_pointer(function, "void", context, i, text.number(0))
        b.ret()
    b.store(function, pool.at(_FUNCTION))
    b.store(context, pool.at(_CONTEXT))
    b.store(count, pool.at(_COUNT))
    pool.put(_DONE, one, "monotonic")
    pool.put(_SLOTS, one, "monotonic")
    before = pool.get(_NEXT, "monotonic")
    job = b.add(b.and_(before, text.number(_LEFT << 32)), text.number(1 << 32))
    # One piece is the caller's own. If all could be gone before it takes any, there would be `count` slots beside its
    # own: one more than the memory of a panel is made for.
    last = b.sub(count, one)
    pool.put(_NEXT, b.or_(job, last))
    with b.if_(b.icmp("sgt", pool.get(_SLEEPERS), text.number(0))):
        _wake(pool)
    b.call_pointer(function, "void", context, last, text.number(0))
    # Work along with the others, then wait for what they have begun.
    with b.while_([]) as loop:
        following = pool.get(_NEXT)
        loop.proceed(b.icmp("ne", pool.left(following), text.number(0)))
        with b.if_(pool.exchange(_NEXT, following, b.sub(following, one))):
            b.call_pointer(function, "void", context, b.sub(pool.left(following), one), text.number(0))
            pool.add(_DONE, one)
    with b.while_([text.number(0)]) as loop:
        loop.proceed(b.icmp("ne", pool.get(_DONE, "acquire"), count))
        pool.pause()
        if os.name == "posix":
            with b.if_(b.icmp("sgt", loop.values[0], text.number(_SPINS))):
                pool.posix("sched_yield")
        loop.update(b.add(loop.values[0], one))
    pool.put(_BUSY, text.number(0), "release")
    b.ret()


def _wake(pool: _Pool) -> None:
    pool.posix("pthread_mutex_lock", pool.at(_MUTEX))
    pool.posix("pthread_cond_broadcast", pool.at(_CONDITION))
    pool.posix("pthread_mutex_unlock", pool.at(_MUTEX))


def _write_worker(module: text.Module) -> None:
    """`worker(number)` never returns: it takes pieces of jobs while its number is below `_WORKERS`."""
    b = module.function("worker", "void", ["i64"])
    pool = _Pool(b)
    (number,) = b.arguments
    one = text.number(1)
    own = b.alloca("i64", 2, 8)  # the job that the slot is of, and the slot
    slot_at = b.gep("i64", own, 1)
    b.store(text.number(-1), own)
    b.store(text.number(0), slot_at)

    def found(following: Value) -> Value:
        allowed = b.icmp("slt", number, pool.get(_WORKERS, "monotonic"))
        return b.and_(allowed, b.icmp("ne", pool.left(following), text.number(0)))

    with b.while_([text.number(0)]) as loop:
        loop.proceed(text.constant("i1", 1))
        following = pool.get(_NEXT)
        work = b.branch(found(following))
        with work.then():
            with b.if_(pool.exchange(_NEXT, following, b.sub(following, one))):
                job = b.lshr(following, text.number(32))
                with b.if_(b.icmp("ne", job, b.load("i64", own))):
                    b.store(job, own)
                    b.store(pool.add(_SLOTS, one), slot_at)
                pool.run(b.sub(pool.left(following), one), b.load("i64", slot_at))
                pool.add(_DONE, one)
            work.give(text.number(0))
        with work.otherwise():
            pool.pause()
            with b.if_(b.icmp("sge", loop.values[0], text.number(_LOOKS))):
                pool.posix("pthread_mutex_lock", pool.at(_MUTEX))
                pool.add(_SLEEPERS, one)
                with b.while_([]) as sleep:
                    # After the sleeper is counted: who brings work then either sees it or is seen.
                    sleep.proceed(b.xor(found(pool.get(_NEXT)), text.constant("i1", 1)))
                    pool.posix("pthread_cond_wait", pool.at(_CONDITION), pool.at(_MUTEX))
                pool.add(_SLEEPERS, text.number(-1))
                pool.posix("pthread_mutex_unlock", pool.at(_MUTEX))
            work.give(b.add(loop.values[0], one))
        (looks,) = work.results()
        again = b.icmp("sgt", looks, text.number(_LOOKS))
        loop.update(b.select(again, text.number(0), looks))
    b.unreachable()


def _write_resize(module: text.Module) -> None:
    b = module.function("prepare", "void", [])
    pool = _Pool(b)
    nothing = Value("null", "ptr")
    pool.posix("pthread_mutex_init", pool.at(_MUTEX), nothing)
    pool.posix("pthread_cond_init", pool.at(_CONDITION), nothing)
    b.ret()
    b = module.function("resize", "void", ["i64"])
    pool = _Pool(b)
    pool.put(_WORKERS, b.arguments[0])
    _wake(pool)
    b.ret()
