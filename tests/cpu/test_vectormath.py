"""Vector math against mpmath (errors in units in the last place) and NumPy (special values)."""

from __future__ import annotations

import ctypes
import functools
import math
import struct

import mpmath
import numpy as np
import pytest

from quabla_cpu import engine, text, vectormath
from quabla_cpu.vectormath import float32

ELEMENT = {"f64": "double", "f32": "float"}
NUMPY = {"f64": np.float64, "f32": np.float32}
LIMIT = 2.0  # ulp


@functools.cache
def vectorised(name, dtype="f64", lanes=8):
    """A function of arrays that applies the vector function to blocks of `lanes`."""
    kind, element = text.vector(ELEMENT[dtype], lanes), ELEMENT[dtype]
    module = text.Module(engine.function_attributes())
    arity, count = vectormath.ARITY[name], 2 if name in vectormath.PAIRS else 1
    b = module.function("f", "void", ["ptr"] * (arity + count) + ["i64"])
    *pointers, n = b.arguments
    with b.loop(0, n, lanes) as i:
        result = vectormath.call(b, name, *(b.load(kind, b.gep(element, p, i)) for p in pointers[:arity]))
        results = [result] if count == 1 else [b.field(result, 0), b.field(result, 1)]
        for value, pointer in zip(results, pointers[arity:], strict=True):
            b.store(value, b.gep(element, pointer, i))
    b.ret()
    math_library = vectormath.library(vectormath.required(module))
    library = engine.link([engine.compile(module.text(), cache=False)], ["f"], math_library.imports)
    native = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (arity + count), ctypes.c_int64)(
        library.address("f")
    )

    def run(*arrays):
        arrays = [np.ascontiguousarray(a, NUMPY[dtype]).ravel() for a in arrays]
        size = arrays[0].size
        padded = [np.concatenate([a, np.full(-size % lanes, 0.5, a.dtype)]) for a in arrays]
        outs = [np.empty(padded[0].size, NUMPY[dtype]) for _ in range(count)]
        native(*(a.ctypes.data for a in padded + outs), padded[0].size)
        outs = [out[:size] for out in outs]
        return outs[0] if count == 1 else outs

    run.library = library
    return run


def _log(x):
    return -mpmath.inf if x == 0 else mpmath.nan if x < 0 else mpmath.log(x)


def _sigmoid(x):
    return 1 / (1 + mpmath.exp(-x)) if x > 0 else mpmath.exp(x) / (1 + mpmath.exp(x))


EXACT = {
    "exp": mpmath.exp,
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "expm1": mpmath.expm1,
    "log": _log,
    "log2": lambda x: mpmath.log(x, 2),
    "log10": mpmath.log10,
    "log1p": mpmath.log1p,
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "tanh": mpmath.tanh,
    "sech2": lambda x: mpmath.sech(x) ** 2,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "sigmoid": _sigmoid,
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "arcsin": mpmath.asin,
    "arccos": mpmath.acos,
    "arctan": mpmath.atan,
    "arcsinh": mpmath.asinh,
    "arccosh": mpmath.acosh,
    "arctanh": mpmath.atanh,
    "cbrt": lambda x: mpmath.cbrt(x) if x >= 0 else -mpmath.cbrt(-x),
    "erf": mpmath.erf,
    "erfc": mpmath.erfc,
}
UNARY = sorted(
    name for name in vectormath.NAMES if vectormath.ARITY[name] == 1 and name not in vectormath.PAIRS
)

# Where the function is neither trivial nor undefined, and points where its algorithm or its result changes kind.
DOMAIN = {
    "exp": (-746, 710, [709.782712893384, -708.3964185322641, -745.1332191019411, 0.34657359, 1.0397207]),
    "exp2": (-1075, 1024, [-1022, -1074.9, 1023.9999, 0.5, -0.5]),
    "expm1": (-40, 710, [709.782712893384, 0.34657359, -0.34657359, -37.4]),
    "log": (0, math.inf, [1.0, math.sqrt(0.5), math.sqrt(2), 2.0**-1022, math.e]),
    "log2": (0, math.inf, [1.0, math.sqrt(0.5), math.sqrt(2), 8.0]),
    "log10": (0, math.inf, [1.0, math.sqrt(0.5), math.sqrt(2), 1000.0]),
    "log1p": (-1, math.inf, [-0.5, math.sqrt(0.5) - 1, math.sqrt(2) - 1, 2.0**53, 2.0**-53]),
    "sin": (-math.inf, math.inf, [math.pi / 4, 2.0**28]),
    "cos": (-math.inf, math.inf, [math.pi / 4, 2.0**28]),
    "tan": (-math.inf, math.inf, [math.pi / 4, 2.0**28, 2.0**-27]),
    "tanh": (-22, 22, [0.55, 19.06, 2.0**-28, 0.17328679, 0.5198603]),
    "sech2": (-373, 373, [0.17328679, 0.5198603, 311.9, 312.3, 354.2, 372.9, 2.0**-27]),
    "sinh": (-711, 711, [1.0, 710.4758600739439]),
    "cosh": (-711, 711, [710.4758600739439, 2.0**-27]),
    "sigmoid": (-746, 40, [-708.4, -745.1, 36.7]),
    "softplus": (-746, 100, [-708.4, -745.1, 36.7, -36.7]),
    "arcsin": (-1, 1, [0.5, 0.975, 1.0]),
    "arccos": (-1, 1, [0.5, 0.975, 1.0]),
    "arctan": (-math.inf, math.inf, [math.sqrt(2) - 1, 1.0, math.sqrt(2) + 1]),
    "arcsinh": (-math.inf, math.inf, [2.0**30, 0.4142]),
    "arccosh": (1, math.inf, [1.0, 2.0**30]),
    "arctanh": (-1, 1, [1.0, 0.1716]),
    "cbrt": (-math.inf, math.inf, [1.0, 8.0, 2.0**-1022]),
    "erf": (-6, 6, [0.0]),
    "erfc": (-6, 27.3, [0.0, 26.5]),
}


def neighbours(x, dtype, count=3):
    """A float and the ones next to it."""
    out = [NUMPY[dtype](x)]
    for direction in (-np.inf, np.inf):
        y = out[0]
        for _ in range(count):
            y = np.nextafter(y, NUMPY[dtype](direction))
            out.append(y)
    return out


def samples(name, dtype, count):
    """All exponents, the whole domain evenly, the neighbourhoods of thresholds, both signs."""
    rng = np.random.default_rng(len(name) * 1000 + count)
    low, high, thresholds = DOMAIN[name]
    info = np.finfo(NUMPY[dtype])
    exponents = np.arange(info.minexp - info.nmant, info.maxexp)
    with np.errstate(over="ignore", under="ignore"):
        every = np.ldexp(rng.uniform(1, 2, exponents.size), exponents)[:: max(1, exponents.size * 4 // count)]
        usual = np.ldexp(rng.uniform(1, 2, count), rng.integers(-8, 5, count))
        even = rng.uniform(max(low, -1000.0), min(high, 1000.0), count)
        near_one = 1 + rng.uniform(-1, 1, count // 4) * 2.0 ** rng.integers(-20, 0, count // 4)
        points = np.concatenate([every, usual, even, near_one]).astype(NUMPY[dtype])
        edges = [y for x in thresholds for y in neighbours(x, dtype)]
        points = np.concatenate([points, -points, edges, np.negative(edges)]).astype(NUMPY[dtype])
    points = points[np.isfinite(points)]
    return points[(points >= low) & (points <= high)]


def ulps(got, exact, dtype):
    """The error of one result in units in the last place of the exact one; overflow must be exactly right."""
    info = np.finfo(NUMPY[dtype])
    if not math.isfinite(got):
        # Rounding to infinity starts half a unit above the largest number; two units are allowed as anywhere.
        unit = mpmath.mpf(2) ** (info.maxexp - 1 - info.nmant)
        return (
            0.0
            if abs(exact) > float(info.max) - LIMIT * unit and math.isinf(got) and got * exact > 0
            else math.inf
        )
    exponent = mpmath.frexp(exact)[1] - 1 if exact else info.minexp
    unit = mpmath.mpf(2) ** (max(min(exponent, info.maxexp - 1), info.minexp) - info.nmant)
    return float(abs(mpmath.mpf(float(got)) - exact) / unit)


def worst(name, dtype, points, got):
    errors = [ulps(g, EXACT[name](mpmath.mpf(float(x))), dtype) for x, g in zip(points, got, strict=True)]
    index = int(np.argmax(errors))
    return errors[index], float(points[index]), float(got[index])


@pytest.fixture(autouse=True)
def precision(monkeypatch):
    monkeypatch.setenv(
        "QUABLA_CACHE", "0"
    )  # nothing from an earlier version of the code, nothing left behind
    with mpmath.workdps(40):
        yield


@pytest.mark.parametrize("name", UNARY)
def test_float64_error_is_at_most_two_ulp(name):
    points = samples(name, "f64", 400)
    error, x, got = worst(name, "f64", points, vectorised(name)(points))
    assert error <= LIMIT, f"{name}({x!r}) = {got!r}: {error} ulp"


@pytest.mark.parametrize("name", UNARY)
def test_float32_error(name):
    """What is computed in float64 is the exact result rounded; what is computed in float32 keeps the general limit."""
    points = samples(name, "f32", 250)
    error, x, got = worst(name, "f32", points, vectorised(name, "f32", 16)(points))
    assert error <= (LIMIT if name in vectormath.EITHER or name in float32.FUNCTIONS else 0.51), (
        f"{name}({x!r}) = {got!r}: {error} ulp"
    )


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("name", [*UNARY, *vectormath.PAIRS, "power", "arctan2"])
def test_every_width_gives_the_same_bits(name, dtype):
    x = np.random.default_rng(3).uniform(-3, 3, 64)
    x[::7] *= 1e9  # the slow path of sin and cos, for some lanes
    operands = (x, x[::-1].copy())[: vectormath.ARITY[name]]
    expected = np.array(vectorised(name, dtype, 1)(*operands))
    for lanes in (2, 4, 8) + ((16,) if dtype == "f32" else ()):
        np.testing.assert_array_equal(
            np.array(vectorised(name, dtype, lanes)(*operands)), expected, err_msg=str(lanes)
        )


@pytest.fixture
def older_cpu(monkeypatch):
    """Make code for a CPU without some features of this one: what an older machine would run."""
    made = engine._get_engine()

    def use(*absent):
        features = dict(made.llvm.get_host_cpu_features())
        features.update({name: False for name in features if name.startswith(absent)})
        monkeypatch.setattr(engine, "_engine", engine._Engine("x86-64", features))
        monkeypatch.setattr(vectormath, "_addresses", {})
        monkeypatch.setattr(vectormath, "_libraries", [])
        vectorised.cache_clear()
        return engine.host()

    yield use
    vectorised.cache_clear()


@pytest.mark.skipif("x86_64" not in engine.host().triple, reason="the features are those of x86-64")
@pytest.mark.parametrize(("absent", "width"), [(("avx512",), 32), (("avx", "fma", "xop", "f16c", "v"), 16)])
def test_older_machines_compute_the_same_bits(older_cpu, absent, width):
    x = np.random.default_rng(4).uniform(-4, 4, 160)
    x[::9] = np.array(SPECIALS)[: len(x[::9])]
    names = [*UNARY, *vectormath.PAIRS, "power", "arctan2"]
    operands = {name: (x, x[::-1].copy())[: vectormath.ARITY[name]] for name in names}
    cases = [(name, "f64", 8) for name in names] + [(name, "f32", 16) for name in float32.FUNCTIONS]
    expected = {case: np.array(vectorised(*case)(*operands[case[0]])) for case in cases}
    assert older_cpu(*absent).vector_bytes == width
    for name, dtype, lanes in cases:
        got = np.array(vectorised(name, dtype, lanes * width // 64)(*operands[name]))
        np.testing.assert_array_equal(got, expected[name, dtype, lanes], err_msg=f"{name} {dtype}")


def hard_angles():
    """Floats unusually close to multiples of pi/2, by continued fractions, and huge ones."""
    found = []
    half_pi = mpmath.pi / 2
    for exponent in range(-52, 971):
        # The best approximation m 2**exponent = n pi/2 with m below 2**53: a convergent of 2**exponent / (pi/2).
        ratio = mpmath.mpf(2) ** exponent / half_pi
        p0, p1, q0, q1, rest = 0, 1, 1, 0, ratio
        while True:
            whole = int(mpmath.floor(rest))
            p0, p1, q0, q1 = p1, whole * p1 + p0, q1, whole * q1 + q0
            if q1 >= 2**53 or rest == whole:
                break
            rest = 1 / (rest - whole)
        if q0:
            found.append(math.ldexp(q0, exponent))
    return np.array(found)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_next_to_multiples_of_half_pi(name):
    with mpmath.workdps(400):
        points = hard_angles()
    points = np.concatenate(
        [points[:120], points[120::9], [2.0**k for k in (27, 28, 29, 60, 300, 1023)], [1.7e308]]
    )
    got = vectorised(name)(points)
    with mpmath.workdps(400):
        error, x, y = worst(name, "f64", points, got)
    assert error <= LIMIT, f"{name}({x!r}) = {y!r}: {error} ulp"


def test_known_hardest_angle():
    """6381956970095103 * 2**797 is the float64 closest to a multiple of pi/2 (Muller, Elementary Functions, ch. 11)."""
    x = math.ldexp(6381956970095103, 797)
    with mpmath.workdps(400):
        expected = float(mpmath.cos(mpmath.mpf(x)))
    assert abs(vectorised("cos")([x])[0] - expected) <= 2 * math.ulp(expected)
    assert abs(expected) < 1e-18


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("name", vectormath.PAIRS)
def test_a_function_of_two_results_gives_those_of_both(name, dtype):
    halves = vectormath.PAIRS[name]
    x = np.concatenate([samples(half, dtype, 400) for half in halves])
    for half, got in zip(halves, vectorised(name, dtype)(x), strict=True):
        np.testing.assert_array_equal(got, vectorised(half, dtype)(x))


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("name", ["tanh", "sech2"])
def test_tanh_and_its_slope_between_their_thresholds(name, dtype):
    """Where n of the exponential changes, and between: many points, since one formula covers them all."""
    x = np.concatenate(
        [np.linspace(0.0, 3.0, 6000), np.geomspace(1e-9, 1.0, 2000), np.linspace(3.0, 20.0, 1000)]
    )
    x = x.astype(NUMPY[dtype])
    y = vectorised(name, dtype)(x)
    assert (y >= 0.0).all() and (y <= 1.0).all()
    error, at, got = worst(name, dtype, x, y)
    assert error <= LIMIT, f"{name}({at!r}) = {got!r}: {error} ulp"


def test_float32_angles_of_every_size():
    x = np.ldexp(np.random.default_rng(8).uniform(1, 2, 1270), np.repeat(np.arange(0, 127), 10)).astype(
        np.float32
    )
    multiples = (np.arange(1, 3000) * (np.pi / 2)).astype(np.float32)
    x = np.concatenate(
        [x, multiples, [np.float32(16367173 * 2.0**72)]]
    )  # the last: the closest to a multiple of pi/2
    exact = vectorised("sincos")(x.astype(np.float64))  # tested above
    for got, expected in zip(vectorised("sincos", "f32", 16)(x), exact, strict=True):
        error = np.abs(got - expected) / np.spacing(np.abs(expected).astype(np.float32))
        assert error.max() <= LIMIT, (x[error.argmax()], error.max())


SPECIALS = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, -2.5, 5e-324, -5e-324,
    1e-310, 2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308, 710.0, -746.0, 1e5, -1e5,
    9007199254740992.0, 9007199254740993.0, -4503599627370497.0, 1e300, -1e300, 1e-20, -1e-20,
]  # fmt: skip

BY_NUMPY = {
    "sech2": lambda x: (2 * np.exp(-np.abs(x)) / (1 + np.exp(-2 * np.abs(x)))) ** 2,
    "sigmoid": lambda x: np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-np.abs(x))),
    "softplus": lambda x: np.logaddexp(x, 0),
    "erf": lambda x: np.array([math.erf(v) for v in x]),
    "erfc": lambda x: np.array([math.erfc(v) for v in x]),
}


def assert_same(got, expected, label, tolerance=4):
    """Equal up to a few units in the last place; NaN, infinities, zeros and signs exactly."""
    both_nan = np.isnan(got) & np.isnan(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        close = (got == expected) | (np.abs(got - expected) <= tolerance * np.spacing(np.abs(expected)))
    same = both_nan | (close & (np.signbit(got) == np.signbit(expected)))
    assert same.all(), [(label(i), got[i], expected[i]) for i in np.nonzero(~same)[0][:8]]


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", UNARY)
def test_special_values_are_numpys(name, lanes, dtype):
    with np.errstate(all="ignore"):
        x = np.array(SPECIALS, NUMPY[dtype])
        expected = BY_NUMPY.get(name, getattr(np, name, None))(x.astype(np.float64)).astype(NUMPY[dtype])
    # One value per vector, as one special lane could send its neighbours down another path.
    got = vectorised(name, dtype, lanes)(np.repeat(x, lanes))[::lanes]
    assert_same(got, expected, lambda i: x[i])


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("name", ["power", "arctan2"])
def test_special_pairs_are_numpys(name, dtype):
    with np.errstate(all="ignore"):
        x, y = (
            a.ravel() for a in np.meshgrid(np.array(SPECIALS, NUMPY[dtype]), np.array(SPECIALS, NUMPY[dtype]))
        )
        # float32 is defined as the float64 function, rounded once.
        expected = getattr(np, name)(x.astype(np.float64), y.astype(np.float64)).astype(NUMPY[dtype])
    assert_same(vectorised(name, dtype)(x, y), expected, lambda i: (x[i], y[i]))


def test_power_error_is_at_most_two_ulp():
    rng = np.random.default_rng(5)
    n = 700
    base = np.concatenate([
        np.exp(rng.uniform(-30, 30, n)),
        1 + rng.uniform(-0.3, 0.3, n) * 10.0 ** rng.uniform(-14, 0, n),
        np.ldexp(rng.uniform(1, 2, n), rng.integers(-1074, 1023, n)),
        rng.choice(np.array([math.sqrt(0.5), math.sqrt(2), 2.0, 10.0, 0.1]), n),
    ])  # fmt: skip
    exponent = rng.uniform(-745, 709.7, base.size) / np.log(base) * rng.choice([1, 1, 0.1, 1e-3], base.size)
    whole = np.arange(-40.0, 41)
    base = np.concatenate([base, np.repeat([3.0, -7.0, 1.1], whole.size)])
    exponent = np.concatenate([exponent, np.tile(whole, 3)])
    got = vectorised("power")(base, exponent)
    with mpmath.workdps(60):
        exact = [
            mpmath.power(mpmath.mpf(float(b)), mpmath.mpf(float(e)))
            for b, e in zip(base, exponent, strict=True)
        ]
        errors = [ulps(g, mpmath.re(e), "f64") for g, e in zip(got, exact, strict=True)]
    index = int(np.argmax(errors))
    assert errors[index] <= LIMIT, (base[index], exponent[index], got[index], errors[index])


def test_arctan2_error_is_at_most_two_ulp():
    rng = np.random.default_rng(6)
    n = 500
    y = np.concatenate([rng.normal(size=n), np.ldexp(rng.uniform(1, 2, n), rng.integers(-1074, 1023, n))])
    x = y * np.exp(rng.normal(size=2 * n)) * rng.choice([-1, 1], 2 * n)
    x[::5] = rng.normal(size=len(x[::5]))
    keep = np.isfinite(x)
    x, y = x[keep], y[keep]
    errors = [
        ulps(g, mpmath.atan2(mpmath.mpf(float(b)), mpmath.mpf(float(a))), "f64")
        for g, a, b in zip(vectorised("arctan2")(y, x), x, y, strict=True)
    ]
    assert max(errors) <= LIMIT, (y[int(np.argmax(errors))], x[int(np.argmax(errors))])


def test_exact_cases_stay_exact():
    k = np.arange(-300.0, 301)
    np.testing.assert_array_equal(vectorised("log10")(10.0 ** np.arange(0, 23)), np.arange(0, 23))
    np.testing.assert_array_equal(vectorised("log2")(2.0**k), k)
    np.testing.assert_array_equal(vectorised("exp2")(k), 2.0**k)
    np.testing.assert_array_equal(vectorised("cbrt")(np.arange(-50.0, 51) ** 3), np.arange(-50.0, 51))
    np.testing.assert_array_equal(
        vectorised("power")(np.arange(1.0, 60), np.full(59, 2.0)), np.arange(1.0, 60) ** 2
    )


def test_functions_rise_where_they_should():
    """No step back where two approximations meet, beyond the rounding of one unit."""
    for name, centre in (
        ("tanh", 0.55),
        ("sinh", 1.0),
        ("exp", 0.34657359027997264),
        ("log", math.sqrt(2)),
        ("arcsin", 0.5),
    ):
        start = struct.unpack("<q", struct.pack("<d", centre))[0]
        x = (start + np.arange(-1000, 1000) * 1000).view(np.float64)
        y = vectorised(name)(x)
        assert (np.diff(y) > -2 * np.spacing(y[1:])).all(), name


def test_library_compiles_each_function_once(monkeypatch):
    wanted = {("exp", "f64", 3), ("log", "f64", 3)}
    first = vectormath.library(wanted).imports
    assert set(first) == {"qb_exp_f64x3", "qb_log_f64x3"}

    def refuse(*_, **__):
        raise AssertionError("compiled again")

    monkeypatch.setattr(engine, "compile", refuse)
    assert vectormath.library(wanted).imports == first
    assert vectormath.library(set()).imports == {}


def test_required_functions_are_found():
    module = text.Module()
    b = module.function("f", "double", ["double"])
    y = vectormath.call(b, "power", vectormath.call(b, "sin", b.arguments[0]), b.arguments[0])
    b.ret(b.call("other", "double", y))
    assert vectormath.required(module) == {("power", "f64", 1), ("sin", "f64", 1)}
    vectormath.define(module, "sin", "f64", 1)
    assert vectormath.required(module) == {("power", "f64", 1)}


def test_unknown_functions_are_refused():
    module = text.Module()
    b = module.function("f", "double", ["double"])
    for mistake in (
        lambda: vectormath.define(module, "gamma", "f64", 4),
        lambda: vectormath.define(module, "exp", "f16", 4),
        lambda: vectormath.call(b, "exp", b.arguments[0], b.arguments[0]),
    ):
        with pytest.raises(ValueError):
            mistake()
