"""Arithmetic where rounding is hard: ties, double rounding, subnormal and overflowing results."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from isa import cases

from ptxgen.isa import convert, half, narrow, numeric, numeric_f64, numeric_integers
from ptxgen.types import bf16, bf16x2, f16, f16x2, f32, s32, s64, u8, u32, u64


def lanes(values: list[float], dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype=dtype)


def one_rounding(format: str, rnd: str, a: float, b: float, c: float) -> float:
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    return cases.rounded(exact, format, rnd)


def bits(x: Any) -> list[int]:
    return np.asarray(x).view(f"u{np.asarray(x).dtype.itemsize}").tolist()  # type: ignore[no-any-return]


def hard_triples(rng: random.Random, n: int) -> list[tuple[float, float, float]]:
    """a * b lies halfway between two float32, and c decides the direction."""
    out = []
    while len(out) < n:
        a = 1 + rng.getrandbits(12) * 2.0**-12
        b = 1 + (2 * rng.getrandbits(11) + 1) * 2.0**-12
        step = 2.0**-24 if a * b < 2 else 2.0**-23
        if (a * b / step) % 2 == 1:
            tiny = rng.choice((-1, 1)) * 2.0 ** -rng.randint(60, 140)
            out.append((a * rng.choice((-1, 1)), b, tiny))
    return out


@pytest.mark.parametrize("rnd", numeric.ROUNDINGS)
def test_an_addend_below_a_tie_decides_the_rounding_of_fma_f32(rnd: str) -> None:
    triples = hard_triples(random.Random(1), 300)
    a, b, c = (lanes([t[i] for t in triples]) for i in range(3))
    want = [one_rounding("f32", rnd, *t) for t in zip(a, b, c, strict=True)]
    assert numeric.fma_f32(a, b, c, rnd).tolist() == want
    # The triples are hard: rounding twice gets some of them wrong.
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert rnd != "rn" or twice.tolist() != want


@pytest.mark.parametrize("rnd", numeric.ROUNDINGS)
def test_a_subnormal_result_of_fma_f32_is_rounded_once(rnd: str) -> None:
    rng = random.Random(2)
    a = lanes([(1 + rng.random()) * 2.0**-70 for _ in range(400)])
    b = lanes([(1 + rng.random()) * 2.0 ** -rng.randint(55, 80) for _ in range(400)])
    # Halves of the smallest subnormal, so that the product decides alone.
    c = lanes([rng.randint(-3, 3) * 2.0**-149 for _ in range(400)])
    want = [one_rounding("f32", rnd, *t) for t in zip(a, b, c, strict=True)]
    assert numeric.fma_f32(a, b, c, rnd).tolist() == want


def test_double_rounding_of_a_subnormal_fma_f32_is_repaired() -> None:
    # The product is just below half of the last place of c; in float64 their sum is a tie.
    a, b = lanes([(1 + 2.0**-20) * 2.0**-75]), lanes([(1 - 2.0**-20) * 2.0**-75])
    c = lanes([(2**22 + 1) * 2.0**-149])
    assert numeric.fma_f32(a, b, c).tolist() == c.tolist()
    assert (a.astype(np.float64) * b + c).astype(np.float32).tolist() != c.tolist()


def test_fma_f32_overflows_as_the_rounding_says() -> None:
    largest = float(np.finfo(np.float32).max)
    a, b, c = lanes([largest, -largest]), lanes([2.0, 2.0]), lanes([0.0, 0.0])
    got = {rnd: numeric.fma_f32(a, b, c, rnd).tolist() for rnd in numeric.ROUNDINGS}
    assert got == {
        "rn": [math.inf, -math.inf],
        "rz": [largest, -largest],
        "rm": [largest, -math.inf],
        "rp": [math.inf, -largest],
    }


def test_the_sum_of_opposite_numbers_is_minus_zero_only_when_rounding_down() -> None:
    one, minus = lanes([1.0]), lanes([-1.0])
    signs = {r: bool(np.signbit(numeric.add_f32(one, minus, r))[0]) for r in numeric.ROUNDINGS}
    assert signs == {"rn": False, "rz": False, "rm": True, "rp": False}


@pytest.mark.parametrize("rnd", numeric.ROUNDINGS)
def test_fma_f64_is_exact_on_its_fast_and_on_its_slow_lanes(rnd: str) -> None:
    rng = random.Random(3)
    scales = (0, 0, 0, 300, -300, 500, -500, 510, -537)
    a = lanes([rng.gauss(0, 1) * 2.0 ** rng.choice(scales) for _ in range(600)], np.float64)
    b = lanes([rng.gauss(0, 1) * 2.0 ** rng.choice(scales) for _ in range(600)], np.float64)
    with np.errstate(all="ignore"):
        c = -a * b * (1 + 2.0**-52)  # nearly cancels the product
    c[::3] = [rng.gauss(0, 1) for _ in c[::3]]
    c = np.where(np.isfinite(c), c, 1.0)
    want = [one_rounding("f64", rnd, *t) for t in zip(a, b, c, strict=True)]
    assert numeric_f64.fma_f64(a, b, c, rnd).tolist() == want


def test_an_addend_below_a_tie_decides_the_rounding_of_fma_f64() -> None:
    a, b = np.array([1 + 2.0**-27] * 2), np.array([1 + 2.0**-26] * 2)  # product: 53 bits and a half
    c = np.array([2.0**-120, -(2.0**-120)])
    want = [one_rounding("f64", "rn", *t) for t in zip(a, b, c, strict=True)]
    assert want[0] > want[1]
    assert numeric_f64.fma_f64(a, b, c).tolist() == want


@pytest.mark.parametrize("rnd", numeric.ROUNDINGS)
@pytest.mark.parametrize("size", [1.0, 2.0**-500])
def test_an_exact_zero_of_fma_f64_is_negative_only_when_rounding_down(size: float, rnd: str) -> None:
    a = np.array([size])
    zero = numeric_f64.fma_f64(a, a, -a * a, rnd)
    assert zero.tolist() == [0.0]
    assert bool(np.signbit(zero)[0]) == (rnd == "rm")


@pytest.mark.parametrize("rnd", numeric.ROUNDINGS)
def test_a_product_beyond_f64_is_finite_in_fma_f64(rnd: str) -> None:
    a, b = np.array([2.0**600, -(2.0**600), 2.0**600]), np.full(3, 2.0**600)
    infinite = np.array([-np.inf, np.inf, np.nan])
    np.testing.assert_array_equal(numeric_f64.fma_f64(a, b, infinite, rnd), infinite)
    assert np.isnan(numeric_f64.fma_f64(a * np.inf, b, -a * np.inf, rnd)).all()


def test_fma_f64_of_scalars_is_a_scalar() -> None:
    x = np.float64(3.0)
    assert isinstance(numeric_f64.fma_f64(x, x, x), np.float64)
    assert numeric_f64.fma_f64(x * 2.0**600, x * 2.0**300, x) == 9.0 * 2.0**900


DIRECTED = [r for r in numeric.ROUNDINGS if r != "rn"]


def exact(dtype: Any, rnd: str, formula: Any, *operands: np.ndarray) -> list[float]:
    format = "f32" if dtype == np.float32 else "f64"
    rows = zip(*(x.tolist() for x in operands), strict=True)
    return [cases.rounded(formula(*map(Fraction, row)), format, rnd) for row in rows]


@pytest.mark.parametrize("rnd", numeric.ROUNDINGS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_division_is_rounded_once_wherever_the_quotient_lies(dtype: Any, rnd: str) -> None:
    rng = random.Random(7)
    wide = 70 if dtype == np.float32 else 530
    scales = (0, 0, wide, -wide)
    a, b = (lanes([rng.gauss(0, 1) * 2.0 ** rng.choice(scales) for _ in range(600)], dtype) for _ in range(2))
    b[:50] = a[:50]  # exact quotients
    a[50:100] = b[50:100] * dtype(3)
    divide = numeric.div_f32 if dtype == np.float32 else numeric_f64.div_f64
    assert divide(a, b, rnd).tolist() == exact(dtype, rnd, lambda x, y: x / y, a, b)


@pytest.mark.parametrize("rnd", DIRECTED)
def test_special_quotients_keep_what_ieee_754_says(rnd: str) -> None:
    inf, nan = math.inf, math.nan
    a, b = [1.0, -1.0, 0.0, inf, 5.0, nan, -0.0], [0.0, 0.0, 0.0, 2.0, -inf, 1.0, 3.0]
    for dtype, divide in ((np.float32, numeric.div_f32), (np.float64, numeric_f64.div_f64)):
        got = divide(lanes(a, dtype), lanes(b, dtype), rnd)
        assert np.isnan(got).tolist() == [False, False, True, False, False, True, False]
        assert got[[0, 1, 3]].tolist() == [inf, -inf, inf]
        assert np.signbit(got[[4, 6]]).tolist() == [True, True]
        assert got[[4, 6]].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("rnd", DIRECTED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_directed_root_is_the_nearest_one_on_its_side(dtype: Any, rnd: str) -> None:
    rng = random.Random(8)
    wide = 120 if dtype == np.float32 else 1000
    values = [rng.random() * 2.0 ** rng.randint(-wide, wide) for _ in range(400)]
    values += [float(rng.randint(1, 4000) ** 2) for _ in range(50)]
    tiny = float(np.finfo(dtype).smallest_subnormal)
    a = lanes([*values, *(tiny * n for n in (1, 2, 3, 1001))], dtype)
    root = (numeric.sqrt_f32 if dtype == np.float32 else numeric_f64.sqrt_f64)(a, rnd)
    for x, r in zip(a.tolist(), root.tolist(), strict=True):
        low = r if rnd == "rp" else float(np.nextafter(dtype(r), dtype(np.inf)))
        high = float(np.nextafter(dtype(r), dtype(0))) if rnd == "rp" else r
        if rnd == "rp":
            assert Fraction(high) ** 2 < Fraction(x) <= Fraction(low) ** 2
        else:
            assert Fraction(high) ** 2 <= Fraction(x) < Fraction(low) ** 2


@pytest.mark.parametrize("rnd", DIRECTED)
def test_directed_sums_and_products_of_f64_are_exact_on_all_lanes(rnd: str) -> None:
    rng = random.Random(9)
    scales = (0, 0, 0, 500, -500, 700, -530, 1023)
    a, b = (
        lanes([rng.uniform(-1, 1) * 2.0 ** rng.choice(scales) for _ in range(800)], np.float64)
        for _ in range(2)
    )
    b[:40] = -a[:40]
    product = numeric_f64.mul_f64(a, b, rnd)
    assert product.tolist() == exact(np.float64, rnd, lambda x, y: x * y, a, b)
    assert (np.signbit(product) == (np.signbit(a) ^ np.signbit(b))).all()  # of zeros, too
    total = numeric_f64.add_f64(a, b, rnd)
    assert total.tolist() == exact(np.float64, rnd, lambda x, y: x + y, a, b)
    assert np.signbit(total[:40]).tolist() == [rnd == "rm"] * 40


def test_an_addend_below_a_tie_decides_the_rounding_of_fma_bf16() -> None:
    # The product is halfway between two bfloat16, and float64 cannot hold the addend beside it.
    a, b = (np.array([x] * 3, bf16.dtype) for x in (1 + 2.0**-4, 1 + 2.0**-4))
    c = np.array([2.0**-80, -(2.0**-80), 0.0], bf16.dtype)
    want = [one_rounding("bf16", "rn", *t) for t in zip(a, b, c, strict=True)]
    assert want[0] > want[1]
    assert [float(x) for x in numeric.fma_narrow(a, b, c, bf16)] == want
    assert [float(numeric.fma_narrow(a[n], b[n], c[n], bf16)) for n in range(3)] == want


@pytest.mark.parametrize("type", [f16, bf16])
@pytest.mark.parametrize("name", ["add", "mul"])
def test_sums_and_products_in_16_bits_are_rounded_once(name: str, type: Any) -> None:
    rng = random.Random(10)
    raw = [[rng.getrandbits(16) for _ in range(6000)] for _ in range(2)]
    infinity = 0x7C00 if type is f16 else 0x7F80
    rows = [p for p in zip(*raw, strict=True) if all(x & infinity != infinity for x in p)]
    a, b = (np.array(x, np.uint16).view(type.dtype) for x in zip(*rows, strict=True))
    function = {"add": numeric.add_narrow, "mul": numeric.mul_narrow}[name]
    formula = {"add": lambda x, y: x + y, "mul": lambda x, y: x * y}[name]
    want = [
        cases.rounded(formula(Fraction(float(x)), Fraction(float(y))), type.name, "rn")
        for x, y in zip(a, b, strict=True)
    ]
    assert [float(x) for x in function(a, b, type)] == want


@pytest.mark.parametrize(
    ("type", "numbers", "wanted"),
    [
        (f16, [1 + 2.0**-11, -1 - 2.0**-11, 1 - 2.0**-20], [1.0, -1.0, 1 - 2.0**-11]),
        (f16, [2.0**-24 * 1.75, 2.0**-25, 0.0], [2.0**-24, 0.0, 0.0]),
        (f16, [65535.0, 65536.0, -np.inf], [65504.0, np.inf, -np.inf]),
        (bf16, [1 + 2.0**-7 - 2.0**-23, -(2.0**-133), 2.0**127 * 1.999], [1.0, -(2.0**-133), 2.0**120 * 255]),
    ],
)
def test_a_number_is_cut_off_to_16_bits(type: Any, numbers: list[float], wanted: list[float]) -> None:
    got = numeric.cut_off(np.array(numbers, np.float32), type)
    assert got.dtype == type.dtype
    assert got.astype(np.float64).tolist() == wanted
    assert np.isnan(numeric.cut_off(np.array([np.nan], np.float32), type).astype(np.float64)).all()


def test_a_nan_of_tf32_is_canonical_where_the_hardware_converts_it() -> None:
    nans = np.array([0x7F800001, 0xFFA72A86], np.uint32)
    assert [hex(x) for x in bits(numeric.to_tf32(nans.view(np.float32), "rn"))] == ["0x7fffe000"] * 2
    a = nans.view(np.float32)
    assert [hex(x) for x in bits(convert.cvt_tf32(a, rnd="rna"))] == ["0x7f800000", "0xffa72000"]
    finite = convert.cvt_tf32_rna_finite(a, rna="rna", satfinite=True)
    assert [hex(x) for x in bits(finite)] == ["0x7f7fe000", "0xffa70000"]


def test_an_element_outside_a_tensor_makes_an_out_of_bounds_fma_zero() -> None:
    outside, nan, one = 0x7FF7, 0x7E00, 0x3C00
    a = np.array([outside, one, nan, one, 0xFFF7], np.uint16)
    b = np.array([one, outside, one, one, one], np.uint16)
    c = np.array([one] * 5, np.uint16)
    got = half.fma(*(x.view(np.float16) for x in (a, b, c)), oob=True, type=f16)
    assert bits(got) == [0, 0, 0x7FFF, 0x4000, 0]
    pairs = [x[:4].view(np.uint32) for x in (a, b, c)]
    packed = half.fma(*pairs, oob=True, type=f16x2)
    assert bits(packed.view(np.uint16)) == [0, 0, 0x7FFF, 0x4000]
    in_bf16 = half.fma(*pairs, oob=True, relu=True, type=bf16x2)
    assert bits(in_bf16.view(np.uint16))[:2] == [0, 0]


@pytest.mark.parametrize("type", [f16, bf16])
def test_fma_in_16_bits_is_rounded_once(type: Any) -> None:
    rng = random.Random(4)
    raw = [[rng.getrandbits(16) for _ in range(600)] for _ in range(3)]
    a, b, c = (np.array(r, dtype=np.uint16).view(type.dtype) for r in raw)
    usable = [all(math.isfinite(float(x)) for x in t) for t in zip(a, b, c, strict=True)]
    a, b, c = a[usable], b[usable], c[usable]
    want = [one_rounding(type.name, "rn", *t) for t in zip(a, b, c, strict=True)]
    assert [float(x) for x in numeric.fma_narrow(a, b, c, type)] == want


@pytest.mark.parametrize("rnd", [*numeric.ROUNDINGS, "rna"])
@pytest.mark.parametrize("format", ["f32", "f16", "bf16", "tf32"])
def test_rounding_to_a_format_is_the_definition(format: str, rnd: str) -> None:
    rng = random.Random(5)
    precision, low, high = cases.FORMATS[format]
    exponents = [low - precision, low - 2, low - 1, low, 0, 1, high - 1, high]
    values = [
        sign * (1 + rng.getrandbits(precision + 1) * 2.0 ** -(precision + 1)) * 2.0**e
        for e in exponents
        for sign in (1, -1)
        for _ in range(20)
    ]
    values += [(2 - 2.0**-precision) * 2.0**high, -(2 - 2.0**-precision) * 2.0**high, 0.0]
    want = [cases.rounded(Fraction(v), format, rnd) for v in values]
    assert numeric.round_to(np.array(values), format, rnd).tolist() == want


def test_rounding_keeps_infinities_nan_and_the_sign_of_zero() -> None:
    for rnd in numeric.ROUNDINGS:
        got = numeric.round_to(np.array([math.inf, -math.inf, -0.0, 0.0, math.nan]), "bf16", rnd)
        assert got[:2].tolist() == [math.inf, -math.inf]
        assert np.signbit(got[2:4]).tolist() == [True, False]
        assert math.isnan(got[4])


def test_flushing_keeps_the_sign_and_everything_normal() -> None:
    smallest = 2.0**-126
    x = lanes([smallest, -smallest, smallest / 2, -smallest / 2, -0.0, math.inf, -math.inf])
    assert bits(numeric.flush(x, True)) == bits(
        lanes([smallest, -smallest, 0.0, -0.0, -0.0, math.inf, -math.inf])
    )
    assert math.isnan(numeric.flush(lanes([math.nan]), True)[0])
    assert numeric.flush(x, False) is x
    tiny = np.array([2.0**-14, -(2.0**-15)], dtype=np.float16)
    assert bits(numeric.flush(tiny, True)) == bits(np.array([2.0**-14, -0.0], dtype=np.float16))


def test_saturation_gives_plus_zero_for_nan_and_for_minus_zero() -> None:
    x = lanes([math.nan, -0.0, -1.0, 0.25, 1.5, math.inf])
    assert bits(numeric.saturate(x, True)) == bits(lanes([0.0, 0.0, 0.0, 0.25, 1.0, 1.0]))
    assert numeric.saturate(x, False) is x


def test_minus_zero_is_less_than_plus_zero() -> None:
    zeros = lanes([0.0, -0.0])
    assert bits(numeric.minimum(zeros, zeros[::-1], False)) == bits(lanes([-0.0, -0.0]))
    assert bits(numeric.maximum(zeros, zeros[::-1], False)) == bits(lanes([0.0, 0.0]))


def test_a_nan_is_ignored_by_min_and_max_unless_asked_for() -> None:
    a, b = lanes([math.nan, 1.0]), lanes([2.0, math.nan])
    assert numeric.minimum(a, b, False).tolist() == [2.0, 1.0]
    assert numeric.maximum(a, b, False).tolist() == [2.0, 1.0]
    assert np.isnan(numeric.minimum(a, b, True)).all()
    assert np.isnan(numeric.maximum(a, b, True)).all()


def test_canonical_nan_has_all_bits_but_the_sign() -> None:
    nan = np.array([0xFFC00001, 0x3F800000], dtype=np.uint32).view(np.float32)
    assert bits(numeric.canonical(nan)) == [0x7FFFFFFF, 0x3F800000]
    narrow = np.array([0xFE01, 0x3C00], dtype=np.uint16).view(np.float16)
    assert bits(numeric.canonical_narrow(narrow)) == [0x7FFF, 0x3C00]


def test_floats_are_clamped_to_the_range_of_the_integer() -> None:
    x = lanes([math.nan, math.inf, -math.inf, 2.0**31, -(2.0**31), 2.0**63, -1.0, 300.0])
    top31, top63 = 2**31 - 1, 2**63 - 1
    assert numeric_integers.to_integer(x, s32, "rz").tolist() == [
        0,
        top31,
        -top31 - 1,
        top31,
        -top31 - 1,
        top31,
        -1,
        300,
    ]
    assert numeric_integers.to_integer(x, s64, "rz").tolist() == [
        -(2**63),
        top63,
        -(2**63),
        2**31,
        -(2**31),
        top63,
        -1,
        300,
    ]
    assert numeric_integers.to_integer(x, u8, "rz").tolist() == [0, 255, 0, 255, 0, 255, 0, 255]
    assert numeric_integers.to_integer(x, u64, "rz")[0] == 1 << 63
    assert numeric_integers.to_integer(x.astype(np.float64), u32, "rz")[0] == 1 << 31


@pytest.mark.parametrize("rnd", numeric.ROUNDINGS)
@pytest.mark.parametrize("type", [f32, f16, bf16])
def test_wide_integers_are_rounded_once(type: Any, rnd: str) -> None:
    rng = random.Random(6)
    near_ties = [(2 * rng.getrandbits(24) + 1 << 38) + d for d in (-1, 0, 1) for _ in range(50)]
    values = [v & (1 << 63) - 1 for v in near_ties] + [rng.getrandbits(63) for _ in range(50)]
    want = [cases.rounded(Fraction(v), type.name, rnd) for v in values]
    got = numeric_integers.from_integer(np.array(values, dtype=np.uint64), type, rnd)
    assert [float(x) for x in got] == want
    negative = numeric_integers.from_integer(np.array([-v for v in values], dtype=np.int64), type, rnd)
    assert [float(x) for x in negative] == [cases.rounded(Fraction(-v), type.name, rnd) for v in values]


def test_magnitudes_become_powers_of_two_next_to_them() -> None:
    tiny, nan = 2.0**-127, math.nan
    x = lanes([0.0, tiny, tiny * 1.5, -1.0, 1.5, 3.4e38, math.inf, nan])
    zero = np.zeros_like(x)

    def codes(rnd: str, satfinite: bool) -> list[int]:
        got: list[int] = narrow.cvt_ue8m0_f32(zero, x, rnd=rnd, satfinite=satfinite).tolist()
        return got

    assert codes("rz", False) == [0, 0, 0, 127, 127, 254, 255, 255]
    assert codes("rp", False) == [0, 0, 1, 127, 128, 255, 255, 255]
    assert codes("rp", True) == [0, 0, 1, 127, 128, 254, 254, 255]


def test_halves_of_a_pair_join_to_the_pair() -> None:
    x = np.array([0x3C004000, 0xFFFF0001], dtype=np.uint32)
    low, high = numeric.halves(x, f16)
    assert (low[0], high[0]) == (2.0, 1.0)
    assert numeric.join(low, high).tolist() == x.tolist()
