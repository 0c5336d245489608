"""Reduction of huge angles: x = n pi/2 + r for any finite float64, by integer arithmetic, one lane at a time.

x = m 2**e with a 53-bit integer m. The bits of 2/pi that stand for multiples of 4 quarter turns after the
multiplication by x are skipped; the next 192 bits, times m, give n modulo 4 in the two leading bits and the fraction
of a quarter turn behind them (M. H. Payne and R. N. Hanek, "Radian Reduction for Trigonometric Functions", SIGNUM
Newsletter 18, 1983). No float64 comes closer to a multiple of pi/2 than 2**-62, so 128 bits of the fraction leave 64
significant ones.
"""

from __future__ import annotations

from .. import text
from .lanes import Bits, Lanes, fma

SYMBOL = "qb_huge_angles"
ATTRIBUTES = "nounwind willreturn memory(argmem: readwrite)"

HALF_PI, HALF_PI_LOW = 1.5707963267948966, 6.123233995736766e-17

# 64 zero bits, then the binary digits of 2/pi after the point.
TWO_OVER_PI = (
    0x0000000000000000,
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
)


def reduce_by_call(b: text.Builder, x: text.Value) -> tuple[Lanes, Bits, Lanes]:
    """Call the reduction for a vector of angles of at least 1 in magnitude: r, n, and what r lost in rounding."""
    memory = [b.alloca("double", text.lanes(x.type), align=64) for _ in range(4)]
    b.store(x, memory[0], align=8)
    count = text.constant("i64", text.lanes(x.type))
    b.call(SYMBOL, "void", *memory, count, attributes=ATTRIBUTES)
    whole = text.vector("i64", text.lanes(x.type))
    r, low = (Lanes(b, b.load(x.type, address, align=8)) for address in memory[1:3])
    return r, Bits(b, b.load(whole, memory[3], align=8)), low


def define(module: text.Module, linkage: str = "") -> None:
    """Write the function `void qb_huge_angles(x, r, low, n, count)`, where x, r, low and n are arrays."""
    b = module.function(
        SYMBOL, "void", ["ptr", "ptr", "ptr", "ptr", "i64"], attributes=ATTRIBUTES, linkage=linkage
    )
    angles, remainders, lows, quadrants, count = b.arguments
    table = module.array("qb_two_over_pi", "i64", TWO_OVER_PI)
    with b.loop(0, count) as i:
        x = b.load("double", b.gep("double", angles, i))
        high, low, n = _reduce(b, table, x)
        b.store(high.value, b.gep("double", remainders, i))
        b.store(low.value, b.gep("double", lows, i))
        b.store(n.value, b.gep("i64", quadrants, i))
    b.ret()


def _reduce(b: text.Builder, table: text.Value, x: text.Value) -> tuple[Lanes, Lanes, Bits]:
    bits = Bits(b, b.bitcast(x, "i64"))
    m = (bits & ((1 << 52) - 1)) | (1 << 52)
    exponent = ((bits >> 52) & 2047) - 1075  # x = m 2**exponent
    start = exponent + (64 - 2)  # the window's first bit weighs 2**1
    word = start >> 6
    shift = start & 63
    words = [b.load("i64", b.gep("i64", table, (word + k).value)) for k in range(4)]
    window = [b.intrinsic("fshl", words[k], words[k + 1], shift.value) for k in range(3)]

    def wide(value: text.Value) -> Bits:
        return Bits(b, b.zext(value, "i128"))

    def narrow(value: Bits) -> Bits:
        return Bits(b, b.trunc(value.value, "i64"))

    def times(x: Bits, y: Bits) -> Bits:
        return Bits(b, b.mul(x.value, y.value))

    # The top 128 of the low 192 bits of m times the window.
    long = wide(m.value)
    middle = (times(long, wide(window[2])) >> 64) + times(long, wide(window[1]))
    top = narrow(middle >> 64) + times(m, Bits(b, window[0]))
    fraction = ((wide(top.value) << 64) | wide(narrow(middle).value)) << 2
    negative = narrow(
        fraction >> 127
    )  # 1 where the fraction is above one half: count down from the next quarter
    n = (top >> 62) + negative

    # |fraction| as a sum of two float64, from its leading bits.
    flip = Bits(b, b.sub(text.constant("i128", 0), b.zext(negative.value, "i128")))
    magnitude = (fraction ^ flip) - flip
    zeros = Bits(b, b.intrinsic("ctlz", magnitude.value, text.constant("i1", 0)))
    leading = narrow(Bits(b, b.shl(magnitude.value, zeros.value)) >> 64)
    scale = ((narrow(zeros) ^ -1) + 1 + (1023 - 64)) << 52  # 2**(-64 - zeros)
    head = Lanes(b, b.uitofp((leading & ~2047).value, "double")) * scale.lanes()
    tail = Lanes(b, b.uitofp((leading & 2047).value, "double")) * scale.lanes()
    r = head * HALF_PI
    low = fma(head, HALF_PI, -r) + fma(head, HALF_PI_LOW, tail * HALF_PI)
    total = r + low
    low = low - (total - r)

    # The sign of the fraction, and that of x.
    sign = (negative << 63) ^ (bits & (-1 << 63))
    backwards = Bits(b, b.ashr(bits.value, text.constant("i64", 63)))
    n = (n ^ backwards) - backwards
    return (total.bits() ^ sign).lanes(), (low.bits() ^ sign).lanes(), n
