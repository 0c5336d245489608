"""The writer of LLVM IR text: what it writes is compiled and run, and compared with Python and NumPy."""

from __future__ import annotations

import ctypes
import math
import struct

import numpy as np
import pytest

from quabla_cpu import engine, text

INTEGER, DOUBLE, POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


def build(returns, parameters, body):
    """Compile one function `f` whose code `body(builder, *arguments)` writes, and return it as a Python function."""
    module = text.Module(engine.function_attributes())
    b = module.function("f", returns, parameters)
    result = body(b, *b.arguments)
    if b.block:
        b.ret(result)
    library = engine.link([engine.compile(module.text(), cache=False)], ["f"])
    types = {
        "i64": INTEGER,
        "double": DOUBLE,
        "ptr": POINTER,
        "void": None,
        "i1": ctypes.c_bool,
        "float": ctypes.c_float,
    }
    function = ctypes.CFUNCTYPE(types[returns], *(types[p] for p in parameters))(library.address("f"))
    function.library = library
    return function


def on_vectors(type, count, body, dtype=np.float64):
    """Run `body(builder, *vectors) -> vector` over arrays of exactly the lanes of `type`."""

    def run(*arrays):
        def write(b, out, *pointers):
            values = [b.load(type, p) for p in pointers]
            b.store(body(b, *values), out)

        arrays = [np.ascontiguousarray(a) for a in arrays]
        f = build("void", ["ptr"] * (count + 1), write)
        out = np.zeros(text.lanes(type), dtype)
        f(out.ctypes.data, *(a.ctypes.data for a in arrays))
        return out

    return run


@pytest.mark.parametrize(
    "number",
    [0.0, -0.0, 1.0, 0.1, -1e308, 5e-324, 2.2250738585072014e-308, math.inf, -math.inf, math.nan, math.pi],
)
def test_double_constants_are_exact(number):
    got = build("double", [], lambda b: text.constant("double", number))()
    assert struct.pack("d", got) == struct.pack("d", number)


@pytest.mark.parametrize("number", [0.1, -0.0, 1e-45, 3.4028235e38, 1e39, -math.inf, 1e-60])
def test_float_constants_are_rounded_once(number):
    got = build("float", [], lambda b: text.constant("float", number))()
    with np.errstate(over="ignore"):
        assert np.float32(got).tobytes() == np.float32(number).tobytes()


def test_integer_constants_keep_range():
    assert text.constant("i64", 2**64 - 1).name == "-1"
    assert text.constant("<4 x i1>", True).name == "splat (i1 true)"
    for type, number in (("i8", 256), ("i8", -129), ("i64", 0.5), ("i1", 2)):
        with pytest.raises(ValueError):
            text.constant(type, number)


def test_loop_with_carried_values():
    def fibonacci(b, n):
        one = text.constant("i64", 1)
        with b.carry(0, n, [text.constant("i64", 0), one]) as (_, loop):
            low, high = loop.values
            loop.update(high, b.add(low, high))
        return loop.results[0]

    f = build("i64", ["i64"], fibonacci)
    assert [f(n) for n in (-3, 0, 1, 2, 10, 50)] == [0, 0, 1, 1, 55, 12586269025]


def test_nested_loops_and_steps():
    def count(b, n):
        total = b.alloca("i64")
        b.store(text.constant("i64", 0), total)
        with b.loop(0, n, 3) as i:
            with b.loop(i, n) as j:
                b.store(b.add(b.load("i64", total), b.mul(i, j)), total)
        return b.load("i64", total)

    f = build("i64", ["i64"], count)
    for n in (0, 1, 7, 12):
        assert f(n) == sum(i * j for i in range(0, n, 3) for j in range(i, n))


def test_while_and_branches():
    def collatz(b, n):
        one, two, three = (text.constant("i64", k) for k in (1, 2, 3))
        with b.while_([n, text.constant("i64", 0)]) as loop:
            value, steps = loop.values
            loop.proceed(b.icmp("ne", value, one))
            branch = b.branch(b.icmp("eq", b.and_(value, one), one))
            with branch.then():
                branch.give(b.add(b.mul(value, three), one))
            with branch.otherwise():
                branch.give(b.sdiv(value, two))
            loop.update(*branch.results(), b.add(steps, one))
        return loop.results[1]

    f = build("i64", ["i64"], collatz)
    assert [f(n) for n in (1, 2, 3, 27)] == [0, 1, 7, 111]


def test_if_and_early_return():
    def clip(b, x):
        zero = text.constant("double", 0.0)
        with b.if_(b.fcmp("olt", x, zero), likely=False):
            b.ret(zero)
        slot = b.alloca("double")
        b.store(x, slot)
        with b.if_(b.fcmp("ogt", x, text.constant("double", 9.0))):
            b.store(text.constant("double", 9.0), slot)
        return b.load("double", slot)

    f = build("double", ["double"], clip)
    assert [f(x) for x in (-1.0, 0.5, 10.0)] == [0.0, 0.5, 9.0]


BINARY = {
    "fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide, "frem": np.fmod,
    "copysign": np.copysign, "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_float_operations(op, width):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, width))
    run = on_vectors(text.vector("double", width), 2, lambda b, x, y: getattr(b, op)(x, y))
    np.testing.assert_array_equal(run(x, y), BINARY[op](x, y))


def test_integer_operations_and_casts():
    x = np.array([5, -7, 1 << 40, -1])
    y = np.array([3, 2, 17, 5])
    for op, expected in (
        ("add", x + y), ("sub", x - y), ("mul", x * y), ("shl", x << y), ("ashr", x >> y), ("and_", x & y),
        ("or_", x | y), ("xor", x ^ y), ("lshr", (x.view(np.uint64) >> y.view(np.uint64)).view(np.int64)),
        ("sdiv", np.trunc(x / y).astype(int)), ("srem", np.fmod(x, y)),
    ):  # fmt: skip
        got = on_vectors("<4 x i64>", 2, lambda b, x, y, op=op: getattr(b, op)(x, y), np.int64)(x, y)
        np.testing.assert_array_equal(got, expected, err_msg=op)
    f = np.array([1.5, -2.5, 1e10, 0.1])
    run = on_vectors("<4 x double>", 1, lambda b, x: b.sitofp(b.fptosi(x, "i64"), "double"))
    np.testing.assert_array_equal(run(f), np.trunc(f))
    run = on_vectors("<4 x double>", 1, lambda b, x: b.fpext(b.fptrunc(x, "float"), "double"))
    np.testing.assert_array_equal(run(f), f.astype(np.float32).astype(float))
    run = on_vectors(
        "<4 x double>", 1, lambda b, x: b.uitofp(b.zext(b.trunc(b.fptosi(x, "i64"), "i8"), "i32"), "double")
    )
    np.testing.assert_array_equal(run(f), (np.trunc(f).astype(int) & 255).astype(float))


def test_shuffles_reductions_and_structs():
    x = np.arange(8.0) ** 2 + 0.1
    reverse = on_vectors("<8 x double>", 1, lambda b, x: b.shuffle(x, None, range(7, -1, -1)))
    np.testing.assert_array_equal(reverse(x), x[::-1])

    def total(b, x):
        pair = b.make_struct(b.reduce_add(x), b.reduce(x, b.maximum))
        return b.insert(b.insert(x, b.field(pair, 0), 0), b.field(pair, 1), 7)

    got = on_vectors("<8 x double>", 1, total)(x)
    pairwise = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
    assert got[0] == pairwise and got[7] == x.max()

    def masks(b, x):
        big = b.fcmp("ogt", x, text.constant(x.type, 40.0))
        flags = [b.zext(test, "i64") for test in (b.any(big), b.all(big), b.all(b.not_(big)))]
        for lane, flag in enumerate(flags):
            x = b.insert(x, b.sitofp(flag, "double"), lane)
        return x

    np.testing.assert_array_equal(on_vectors("<8 x double>", 1, masks)(x)[:3], [1, 0, 0])

    def lanes_from_third(b, x):
        return b.iota("<8 x i64>", b.extract(x, 3))

    got = on_vectors("<8 x i64>", 1, lanes_from_third, np.int64)(np.full(8, 40))
    np.testing.assert_array_equal(got, np.arange(40, 48))


def test_masked_memory_and_gather():
    def write(b, source, out, n):
        lane = b.iota("<4 x i64>")
        mask = b.icmp("slt", lane, b.splat(n, 4))
        value = b.masked_load("<4 x double>", source, mask, text.constant("<4 x double>", -1.0))
        b.masked_store(b.fadd(value, value), out, mask)
        backwards = b.gep("double", source, b.sub(text.constant("<4 x i64>", 3), lane))
        b.scatter(
            b.gather("<4 x double>", backwards),
            b.gep("double", out, b.add(lane, text.constant(lane.type, 4))),
        )

    f = build("void", ["ptr", "ptr", "i64"], write)
    source, out = np.array([1.0, 2.0, 3.0, 4.0]), np.full(8, 9.0)
    f(source.ctypes.data, out.ctypes.data, 3)
    np.testing.assert_array_equal(out, [2, 4, 6, 9, 4, 3, 2, 1])


def test_tables_and_memory_blocks():
    def write(b, out):
        table = b.module.array("table", "double", [3.0, 5.0, 7.0])
        b.memset(out, text.constant("i8", 0), text.constant("i64", 40))
        b.memcpy(out, table, text.constant("i64", 24))

    out = np.full(5, 9.0)
    build("void", ["ptr"], write)(out.ctypes.data)
    np.testing.assert_array_equal(out, [3, 5, 7, 0, 0])


def test_mistakes_are_refused_before_llvm_sees_them():
    b = text.Module().function("f", "void", ["double", "<2 x double>", "i64"])
    x, v, i = b.arguments
    for mistake in (
        lambda: b.fadd(x, v),
        lambda: b.fadd(i, i),
        lambda: b.add(x, x),
        lambda: b.intrinsic("sqrt", i),
        lambda: b.intrinsic("fma", x, x, v),
        lambda: b.select(x, x, x),
        lambda: b.gather("<2 x double>", x),
        lambda: b.masked_load("double", x, text.constant("i1", 1)),
        lambda: b.sitofp(i, "<2 x double>"),
        lambda: b.ret(x),
        lambda: b.insert(v, i, 0),
        lambda: b.if_(b.fcmp("olt", v, v)).__enter__(),
    ):
        with pytest.raises(TypeError):
            mistake()
    for mistake in (
        lambda: b.intrinsic("exp", x),
        lambda: b.intrinsic("sqrt", x, x),
        lambda: b.icmp("less", i, i),
        lambda: b.fcmp("lt", x, x),
        lambda: b.shuffle(v, None, [2]),
        lambda: b.text(),
        lambda: b.module.function("f", "void", []),
        lambda: b.module.declare("sin", "double", ["double"]) or b.module.declare("sin", "double", ["float"]),
    ):
        with pytest.raises(ValueError):
            mistake()


def test_every_allowed_intrinsic_compiles():
    module = text.Module(engine.function_attributes())
    for name, (kinds, result) in text.INTRINSICS.items():
        for width in (1, 4):
            wide = text.vector("double" if "F" in kinds else "i64", width)
            b = module.function(
                f"f_{name}_{width}", text.element(wide) if result == "E" else wide, [wide, wide, wide, "i1"]
            )
            rest = {"S": iter(b.arguments[1:3]), "B": iter([text.constant("i1", 0)])}
            b.ret(b.intrinsic(name, b.arguments[0], *(next(rest[kind]) for kind in kinds[1:])))
    assert len(engine.compile(module.text(), cache=False)) > 1000
