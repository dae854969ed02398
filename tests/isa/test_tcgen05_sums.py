"""What one `tcgen05.mma` computes, against integers of Python, for drawn operands of every kind."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from isa import tcgen05_model as model

from ptxgen.isa.mma_descriptor import Product
from ptxgen.isa.tcgen05_sums import elements_of_cells, elements_of_words, multiply_add

Array = np.ndarray[Any, Any]

ROWS: Final = 30  # and columns, of each drawn product
K: Final = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
NARROW: Final = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
CONTAINERS: Final[dict[str, Any]] = {"tf32": np.uint32, "f32": np.uint32, "f16": np.uint16, "bf16": np.uint16}


def product(kind: str, a: str, b: str, d: str, **more: Any) -> Product:
    return Product(kind, 1, 128, ROWS, K[kind], a, b, d, **more)


def bits_of(type: str) -> int:
    return 1 + sum(model.FORMATS[type])


def container(type: str) -> Any:
    return CONTAINERS.get(type, np.uint8)


def largest_finite(type: str) -> int:
    exponent_bits, mantissa_bits = model.FORMATS[type]
    if type in model.WITH_INFINITY:
        return ((1 << exponent_bits) - 1 << mantissa_bits) - 1
    return 0x7E if type == "e4m3" else (1 << exponent_bits + mantissa_bits) - 1


def drawn(rng: np.random.Generator, type: str, shape: tuple[int, ...]) -> Array:
    """Any bits, a few of them infinite or NaN."""
    bits = rng.integers(0, 1 << bits_of(type), shape)
    sign = 1 << bits_of(type) - 1
    finite = bits & sign | np.minimum(bits & sign - 1, largest_finite(type))
    return np.where(rng.random(shape) < 0.005, bits, finite)


def near_one(rng: np.random.Generator, type: str, shape: tuple[int, ...]) -> Array:
    """Numbers whose exponents are near 0."""
    exponent_bits, mantissa_bits = model.FORMATS[type]
    bias = (1 << exponent_bits - 1) - 1
    field = rng.integers(max(0, bias - 6), min(bias + 3, (1 << exponent_bits) - 2) + 1, shape)
    mantissa = rng.integers(0, 1 << mantissa_bits, shape)
    sign = rng.integers(0, 2, shape)
    return sign << exponent_bits + mantissa_bits | field << mantissa_bits | mantissa


def subnormal(rng: np.random.Generator, type: str, shape: tuple[int, ...]) -> Array:
    """Numbers with the least exponents, and zeros of both signs."""
    sign = 1 << bits_of(type) - 1
    bits = drawn(rng, type, shape) & (sign | (2 << model.FORMATS[type][1]) - 1)
    return np.where(rng.random(shape) < 0.3, bits & sign, bits)


def matrix(rng: np.random.Generator, type: str, k: int, *, cancelling_sign: bool) -> Array:
    """Rows of all sizes, near one, of few that are not zero, subnormal, and such whose halves cancel."""
    each = ROWS // 5
    shape = (each, k)
    sparse = np.where(rng.random(shape) < 0.2, near_one(rng, type, shape), 0)
    sparse[0] = 0
    half = near_one(rng, type, (each, k // 2))
    sign = 1 << bits_of(type) - 1
    other = half ^ sign if cancelling_sign else half ^ (rng.random(half.shape) < 0.1)
    rows = [
        drawn(rng, type, shape),
        near_one(rng, type, shape),
        sparse,
        subnormal(rng, type, shape),
        np.concatenate([half, other], axis=1),
    ]
    return np.concatenate(rows).astype(container(type))


def accumulators(rng: np.random.Generator, d: str, sums: Array) -> Array:
    """C of all sizes, zeros of both signs, and such that nearly cancel the sums of the products."""
    shape = sums.shape
    sign = 1 << bits_of(d) - 1
    ways = np.stack(
        [
            drawn(rng, d, shape),
            near_one(rng, d, shape),
            subnormal(rng, d, shape),
            sums.astype(np.int64) ^ sign,
            sums.astype(np.int64) ^ sign ^ rng.integers(0, 8, shape),
        ]
    )
    chosen = np.take_along_axis(ways, rng.integers(0, len(ways), (1, *shape)), 0)[0]
    return chosen.astype(container(d))


PLAIN: Final = [
    ("f16", "f16", "f16", "f32"),
    ("f16", "f16", "f16", "f16"),
    ("f16", "bf16", "bf16", "f32"),
    ("f16", "f16", "bf16", "f32"),
    ("tf32", "tf32", "tf32", "f32"),
    *(("f8f6f4", a, b, "f32") for a in NARROW for b in NARROW),
    *(("f8f6f4", a, a, "f16") for a in NARROW),
]


def wanted(
    of: Product, a: Array, b: Array, c: Array, lowered: int = 0, scales: Any = None
) -> list[list[int]]:
    rows, columns, old = a.tolist(), b.tolist(), c.tolist()
    return [
        [
            model.dot(
                (of.a, of.b),
                row,
                column,
                old[i][j],
                of.d,
                negated=of.negated_a != of.negated_b,
                scale=scales and (of.scale, int(scales[0][i, 0]), int(scales[1][j, 0])),
                lowered=lowered,
            )
            for j, column in enumerate(columns)
        ]
        for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize("form", PLAIN, ids="-".join)
def test_a_product_has_the_bits_of_exact_integers(form: tuple[str, str, str, str]) -> None:
    of = product(*form)
    rng = np.random.default_rng(PLAIN.index(form))
    a = matrix(rng, of.a, of.k, cancelling_sign=True)
    b = matrix(rng, of.b, of.k, cancelling_sign=False)
    alone = multiply_add(of, a, b)
    assert alone.dtype == container(of.d)
    assert alone.tolist() == wanted(of, a, b, np.zeros_like(alone))
    c = accumulators(rng, of.d, alone)
    assert multiply_add(of, a, b, c).tolist() == wanted(of, a, b, c)


@pytest.mark.parametrize("form", PLAIN[:5], ids="-".join)
def test_d_is_divided_exactly_before_it_is_added(form: tuple[str, str, str, str]) -> None:
    of = product(*form)
    rng = np.random.default_rng(70 + PLAIN.index(form))
    a = matrix(rng, of.a, of.k, cancelling_sign=True)
    b = matrix(rng, of.b, of.k, cancelling_sign=False)
    c = accumulators(rng, of.d, multiply_add(of, a, b))
    for lowered in (1, 15):
        assert multiply_add(of, a, b, c, lowered=lowered).tolist() == wanted(of, a, b, c, lowered)


@pytest.mark.parametrize("signs", [(True, False), (False, True), (True, True)])
def test_negated_operands_change_the_signs_of_products(signs: tuple[bool, bool]) -> None:
    of = product("f16", "bf16", "bf16", "f32", negated_a=signs[0], negated_b=signs[1])
    rng = np.random.default_rng(3)
    a, b = (matrix(rng, "bf16", 16, cancelling_sign=sign) for sign in (True, False))
    c = accumulators(rng, "f32", multiply_add(of, a, b))
    assert multiply_add(of, a, b, c).tolist() == wanted(of, a, b, c)


# ---------------------------------------- scale factors


def factors(rng: np.random.Generator, scale: str, count: int) -> Array:
    """Scale factors of a matrix: of half of the rows near one, of the others any, also NaN."""
    one = {"ue8m0": 127, "ue4m3": 56}[scale]
    bits = rng.integers(one - 12, one + 13, (ROWS, count))
    bits[::2] = rng.integers(0, 256, bits[::2].shape)
    bits[1, 0] = 255
    return bits.astype(np.uint8)


@pytest.mark.parametrize("types", [(a, b) for a in NARROW for b in NARROW if a <= b], ids="-".join)
def test_products_with_powers_of_two_have_the_bits_of_exact_integers(types: tuple[str, str]) -> None:
    of = product("mxf8f6f4", *types, "f32", scale="ue8m0", negated_b=types[0] == "e4m3")
    rng = np.random.default_rng(len(types[1]) + NARROW.index(types[0]))
    a, b = (
        matrix(rng, type, 32, cancelling_sign=sign) for type, sign in zip(types, (True, False), strict=True)
    )
    scales = factors(rng, "ue8m0", 1), factors(rng, "ue8m0", 1)
    alone = multiply_add(of, a, b, scales=scales)
    assert alone.tolist() == wanted(of, a, b, np.zeros_like(alone), scales=scales)
    c = accumulators(rng, "f32", alone)
    assert multiply_add(of, a, b, c, scales=scales).tolist() == wanted(of, a, b, c, scales=scales)


@pytest.mark.parametrize(
    ("kind", "scale", "count"),
    [("mxf4", "ue8m0", 2), ("mxf4nvf4", "ue8m0", 2), ("mxf4nvf4", "ue4m3", 4), ("mxf4nvf4", "ue8m0", 4)],
)
@pytest.mark.parametrize("negated", [False, True])
def test_products_of_fp4_have_the_bits_of_exact_integers(
    kind: str, scale: str, count: int, negated: bool
) -> None:
    of = product(kind, "e2m1", "e2m1", "f32", scale=scale, negated_a=negated)
    rng = np.random.default_rng(count + negated)
    a, b = (matrix(rng, "e2m1", 64, cancelling_sign=sign) for sign in (True, False))
    scales = factors(rng, scale, count), factors(rng, scale, count)
    c = accumulators(rng, "f32", multiply_add(of, a, b, scales=scales))
    got = multiply_add(of, a, b, c, scales=scales)
    for i, row in enumerate(a.tolist()):
        for j, column in enumerate(b.tolist()):
            both = list(zip(scales[0][i].tolist(), scales[1][j].tolist(), strict=True))
            want = model.dot_fp4(row, column, int(c[i, j]), scale, both, negated=negated)
            assert got[i, j] == want, (i, j)


# ---------------------------------------- integers


@pytest.mark.parametrize("types", [(a, b) for a in ("u8", "s8") for b in ("u8", "s8")], ids="-".join)
@pytest.mark.parametrize("saturating", [False, True])
def test_sums_of_integers_are_exact(types: tuple[str, str], saturating: bool) -> None:
    of = product("i8", *types, "s32", saturating=saturating)
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 256, (ROWS, 32)).astype(np.uint8) for _ in range(2))
    a[:4], b[:4] = 255, 128
    c = rng.integers(0, 1 << 32, (ROWS, ROWS)).astype(np.uint32)
    c[:4, :4] = np.array([0x7FFFFFFF, 0x80000000, 0x7FFFFFFE, 0x80000001])
    signed = [x.view(np.int8 if t == "s8" else np.uint8).tolist() for x, t in zip((a, b), types, strict=True)]
    got = multiply_add(of, a, b, c).view(np.int32)
    for i, row in enumerate(signed[0]):
        for j, column in enumerate(signed[1]):
            exact = sum(x * y for x, y in zip(row, column, strict=True)) + int(c.view(np.int32)[i, j])
            if saturating:
                want = min(max(exact, -(1 << 31)), (1 << 31) - 1)
            else:
                want = (exact + (1 << 31)) % (1 << 32) - (1 << 31)
            assert got[i, j] == want


# ---------------------------------------- the smallest inputs that tell


def one(kind: str, type: str, pairs: dict[int, tuple[int, int]], c: float, scales: Any = None) -> float:
    """One output from the bits of pairs at places along K."""
    of = product(kind, type, type, "f32", scale="" if scales is None else "ue8m0")
    a, b = np.zeros((2, 1, of.k), container(type))
    for k, (x, y) in pairs.items():
        a[0, k], b[0, k] = x, y
    start = np.array([[c]], np.float32).view(np.uint32)
    return float(multiply_add(of, a, b, start, scales=scales).view(np.float32)[0, 0])


def test_products_keep_25_bits_below_the_largest_exponent() -> None:
    # 8 products of 2**-25 beside 1: in f16 2**-12 * 2**-13, in e5m2 2**-12 * 2**-13.
    assert one("f16", "f16", dict.fromkeys(range(8), (0x0C00, 0x0800)), 1.0) == 1 + 2.0**-22
    assert one("f8f6f4", "e5m2", dict.fromkeys(range(8), (0x0C, 0x08)), 1.0) == 1 + 2.0**-22
    # 8 products of 2**-26 are lost.
    assert one("f8f6f4", "e5m2", dict.fromkeys(range(8), (0x08, 0x08)), 1.0) == 1.0


def test_scale_factors_move_products_with_their_exponents() -> None:
    scales = tuple(np.array([[x]], np.uint8) for x in (127 - 13, 127 - 12))
    assert one("mxf8f6f4", "e2m1", dict.fromkeys(range(8), (2, 2)), 1.0, scales) == 1 + 2.0**-22
    lower = tuple(np.array([[x]], np.uint8) for x in (127 - 13, 127 - 13))
    assert one("mxf8f6f4", "e2m1", dict.fromkeys(range(8), (2, 2)), 1.0, lower) == 1.0


def test_sums_of_16_products_of_fp4_keep_35_bits() -> None:
    pairs = {0: (2, 2), 16: (2, 2), 32: (2, 2), 48: (2, 2)}  # 1 * 1 in each group of 16

    def scales(exponent: int) -> tuple[Array, Array]:
        return np.full((1, 2), 127 + exponent, np.uint8), np.full((1, 2), 127, np.uint8)

    assert one("mxf4", "e2m1", pairs, -1.0, scales(0)) == 3.0
    # 1 - (1 - 2**-24) leaves the products alone: 4 * 2**-35 stay, 4 * 2**-36 are lost.
    almost = float(np.float32(1 - 2.0**-24))
    start = dict(pairs)
    assert one("mxf4", "e2m1", start, almost, scales(-35)) == almost
    big = (np.array([[127, 127 - 33]], np.uint8), np.full((1, 2), 127, np.uint8))
    assert one("mxf4", "e2m1", {0: (2, 2), 32: (2, 2)}, -1.0, big) == 2.0**-33
    lost = (np.array([[127, 127 - 36]], np.uint8), np.full((1, 2), 127, np.uint8))
    assert one("mxf4", "e2m1", {0: (2, 2), 32: (2, 2)}, -1.0, lost) == 0.0


def test_a_sum_of_fp4_that_loses_all_its_products_is_plus_zero() -> None:
    of = product("mxf4", "e2m1", "e2m1", "f32", scale="ue8m0", negated_a=True)
    ones, tiny = np.full((1, 64), 2, np.uint8), np.full((1, 2), 20, np.uint8)
    minus_zero = np.array([[0x80000000]], np.uint32)
    assert multiply_add(of, ones, ones, minus_zero, scales=(tiny, tiny)).tolist() == [[0]]


def test_a_product_can_be_cut_into_rows() -> None:
    rng = np.random.default_rng(8)
    of = product("f16", "f16", "f16", "f32")
    a, b = (matrix(rng, "f16", 16, cancelling_sign=sign) for sign in (True, False))
    c = accumulators(rng, "f32", multiply_add(of, a, b))
    parts = [multiply_add(of, a[i : i + 7], b, c[i : i + 7]) for i in range(0, ROWS, 7)]
    np.testing.assert_array_equal(np.concatenate(parts), multiply_add(of, a, b, c))


# ---------------------------------------- elements


def test_elements_of_4_and_6_bits_have_padding_in_shared_memory() -> None:
    rng = np.random.default_rng(2)
    for type, width in (("e2m1", 4), ("e2m3", 6), ("e3m2", 6)):
        want = rng.integers(0, 1 << width, (8, 32)).astype(np.uint8)
        held = np.full((8, 32), 0xEE, np.uint8)  # of padding
        for i in range(8):
            for first in (0, 16):
                packed = sum(int(x) << width * n for n, x in enumerate(want[i, first : first + 16]))
                size = 2 * width
                held[i, first : first + size] = np.frombuffer(packed.to_bytes(size, "little"), np.uint8)
        np.testing.assert_array_equal(elements_of_words("f8f6f4", type, held.view(np.uint64)), want)
        turned = elements_of_words("f8f6f4", type, held.view(np.uint64), along_rows=True)
        np.testing.assert_array_equal(turned, want.T)


def test_elements_of_mxf4_are_pairs() -> None:
    held = np.arange(64, dtype=np.uint8).reshape(2, 32) * 3
    want = [[x >> shift & 15 for x in row for shift in (0, 4)] for row in held.tolist()]
    assert elements_of_words("mxf4", "e2m1", held.view(np.uint64)).tolist() == want
    assert elements_of_cells("mxf4nvf4", "e2m1", held.view(np.uint32)).tolist() == want


def test_elements_in_tensor_memory_fill_a_cell_from_its_low_bits() -> None:
    cells = np.array([[0x44332211, 0x88776655]], np.uint32)
    assert elements_of_cells("f16", "bf16", cells).tolist() == [[0x2211, 0x4433, 0x6655, 0x8877]]
    assert elements_of_cells("tf32", "tf32", cells).tolist() == cells.tolist()
    assert elements_of_cells("f8f6f4", "e4m3", cells[:, :1]).tolist() == [[0x11, 0x22, 0x33, 0x44]]
    assert elements_of_cells("f8f6f4", "e2m3", cells[:, :1]).tolist() == [[0x11, 0x22, 0x33, 0x04]]
    assert elements_of_cells("f8f6f4", "e2m1", cells[:, :1]).tolist() == [[4, 8, 12, 1]]
