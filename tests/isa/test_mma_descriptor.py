"""Instruction descriptors of `tcgen05.mma`: those of other compilers' kernels, and every refusal."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Final

import pytest
from error_texts import refused

from ptxgen.errors import DescriptorError
from ptxgen.isa.mma_descriptor import KINDS, Product, product_of


def test_descriptors_in_the_kernels_of_flash_attn_4() -> None:
    scores = Product("f16", 1, 128, 128, 16, "bf16", "bf16", "f32")
    assert product_of("f16", 0x08200490) == scores
    output = Product("f16", 1, 128, 64, 16, "bf16", "bf16", "f32", n_major=True)
    assert product_of("f16", 0x08110490) == output
    pair = Product("f16", 2, 256, 128, 16, "bf16", "bf16", "f32")
    assert product_of("f16", 0x10200490, group=2) == pair


M128: Final = 8 << 24
SCALED_M128: Final = 1 << 27
N64: Final = 8 << 17
F32: Final = 1 << 4
S32: Final = 2 << 4
BF16: Final = 1 << 7 | 1 << 10
FP4: Final = BF16
UE8M0: Final = 1 << 23


def test_every_field_is_read() -> None:
    bits = M128 | N64 | F32 | 4 << 7 | 5 << 10 | 1 << 13 | 1 << 14 | 1 << 15
    want = Product(
        "f8f6f4", 1, 128, 64, 32, "e3m2", "e2m1", "f32", m_major=True, negated_a=True, negated_b=True
    )
    assert product_of("f8f6f4", bits) == want
    assert product_of("i8", M128 | N64 | S32 | 1 << 10 | 8) == Product(
        "i8", 1, 128, 64, 32, "u8", "s8", "s32", saturating=True
    )
    assert product_of("tf32", M128 | N64 | F32 | 2 << 7 | 2 << 10 | 4 | 3) == Product(
        "tf32", 1, 128, 64, 16, "tf32", "tf32", "f32", sparse=True, selector=3
    )
    assert product_of("f16", 2 << 24 | N64 | F32 | 2 << 30, ws=True).shift == 16
    assert product_of("mxf8f6f4", SCALED_M128 | N64 | 1 << 7 | UE8M0 | 3 << 29 | 1 << 4) == Product(
        "mxf8f6f4", 1, 128, 64, 32, "e5m2", "e4m3", "f32", scale="ue8m0", scale_bytes=(3, 1)
    )
    assert product_of("mxf4nvf4", SCALED_M128 | N64 | FP4 | 2 << 29) == Product(
        "mxf4nvf4", 1, 128, 64, 64, "e2m1", "e2m1", "f32", scale="ue4m3", scale_bytes=(2, 0)
    )
    assert product_of("mxf4", SCALED_M128 | N64 | FP4 | UE8M0 | 1 << 31).k == 96


# Descriptors that are refused: the kind, the bits, the arguments, the value expected, and the value got.
REFUSALS: Final[list[tuple[str, int, dict[str, Any], str, str]]] = [
    ("f16", M128 | N64 | F32 | BF16 | 1 << 3, {}, "0 in bit 3, which the kind reserves,", "1"),
    ("f16", M128 | N64 | F32 | BF16 | 1 << 29, {}, "0 in bit 29, which the kind reserves,", "1"),
    ("i8", M128 | N64 | S32 | 2 << 13, {}, "0 in bits 13-14, which the kind reserves,", "2"),
    ("mxf4", SCALED_M128 | N64 | FP4 | UE8M0 | 1 << 15, {}, "0 in bits 15-16, which the kind reserves,", "1"),
    ("mxf8f6f4", 8 << 24 | 4 << 24 | N64 | UE8M0, {}, "0 in bits 24-26, which the kind reserves,", "4"),
    ("f16", M128 | N64 | F32 | 2 << 7, {}, "the type of A 0 (f16) or 1 (bf16) in bits 7-9", "2"),
    (
        "f8f6f4",
        M128 | N64 | F32 | 2 << 10,
        {},
        "the type of B 0 (e4m3) or 1 (e5m2) or 3 (e2m3) or 4 (e3m2) or 5 (e2m1) in bits 10-12",
        "2",
    ),
    ("tf32", M128 | N64 | 2 << 7 | 2 << 10, {}, "the type of D 1 (f32) in bits 4-5", "0"),
    ("f16", M128 | N64 | BF16, {}, "the type of D 1 (f32) for bf16 in bits 4-5", "0"),
    ("f16", M128 | N64 | F32 | 1 << 30, {}, "0 in bits 30-31, which only tcgen05.mma.ws has,", "1"),
    ("mxf4", SCALED_M128 | N64 | FP4, {}, "scale factors of type 1 (ue8m0) in bit 23", "0"),
    (
        "mxf4nvf4",
        SCALED_M128 | N64 | FP4 | 1 << 29,
        {},
        "the bytes 0 or 2 of scale factors of A and B in bits 29-30 and 4-5",
        "(1, 0)",
    ),
    ("f16", 16 << 24 | N64 | F32, {}, "M 64 or 128 in the shape", "256"),
    ("f16", 4 << 24 | N64 | F32, {"group": 2}, "M 128 or 256 in the shape", "64"),
    ("f16", M128 | F32, {}, "N 8 to 256 in steps of 8 in the shape", "0"),
    ("f16", M128 | N64 | F32 | 1 << 17, {"group": 2}, "N 16 to 256 in steps of 16 in the shape", "72"),
    ("f8f6f4", M128 | 9 << 17 | F32 | 1 << 16, {}, "N 16 to 256 in steps of 16 in the shape", "72"),
    ("i8", M128 | 6 << 17 | S32, {"group": 2}, "N 32 to 256 in steps of 32 in the shape", "48"),
    ("f16", 2 << 24 | 4 << 17 | F32, {"ws": True}, "N 64 or 128 or 256 in the shape", "32"),
    ("f16", 2 << 24 | 32 << 17 | F32 | 4, {"ws": True}, "N 64 or 128 in the shape", "256"),
    ("mxf4", 2 << 27 | N64 | FP4 | UE8M0, {}, "M 128 in the shape", "256"),
]


@pytest.mark.parametrize(("kind", "bits", "how", "wanted", "got"), REFUSALS)
@pytest.mark.sample(len(REFUSALS))
def test_what_the_manual_does_not_allow_is_refused(
    kind: str, bits: int, how: dict[str, Any], wanted: str, got: str
) -> None:
    ws = ".ws" if how.get("ws") else ""
    opcode = f"tcgen05.mma{ws}.cta_group::{how.get('group', 1)}.kind::{kind}"
    message = f"{opcode}: expected {wanted} of the instruction descriptor {bits:#010x}, got {got}"
    with refused(DescriptorError, message):
        product_of(kind, bits, **how)


# ---------------------------------------- the tables of the manual

BYTES: Final = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
TYPES: Final[dict[str, dict[int, str]]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": BYTES,
    "i8": {0: "u8", 1: "s8"},
    "mxf8f6f4": BYTES,
    "mxf4": {1: "e2m1"},
    "mxf4nvf4": {1: "e2m1"},
}
OF_D: Final = {
    "f16": {0: "f16", 1: "f32"},
    "tf32": {1: "f32"},
    "f8f6f4": {0: "f16", 1: "f32"},
    "i8": {2: "s32"},
}
OF_K: Final = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
RESERVED: Final = {
    **{kind: {3, 6, 23, 29} for kind in ("f16", "tf32", "f8f6f4")},
    "i8": {6, 13, 14, 23, 29},
    "mxf8f6f4": {0, 1, 3, 6, 24, 25, 26, 31},
    **{kind: {0, 1, 3, 6, 15, 16, 24, 25, 26} for kind in ("mxf4", "mxf4nvf4")},
}


def word(kind: str, m: int = 128, n: int = 64, a: int = -1, b: int = -1, d: int = -1, flags: int = 0) -> int:
    """A descriptor with the first types of the kind, but for those given by their numbers."""
    a, b = (next(iter(TYPES[kind])) if x < 0 else x for x in (a, b))
    if kind in OF_D:
        d = max(OF_D[kind]) if d < 0 else d
        return flags | m >> 4 << 24 | n >> 3 << 17 | a << 7 | b << 10 | d << 4
    return flags | m >> 7 << 27 | n >> 3 << 17 | a << 7 | b << 10 | UE8M0


def product(kind: str, bits: int, **how: Any) -> Product | None:
    """The product that a descriptor describes; None if it is refused."""
    try:
        return product_of(kind, bits, **how)
    except DescriptorError:
        return None


def test_the_bits_that_a_kind_reserves_are_0() -> None:
    refusals: dict[str, set[int]] = {kind: set() for kind in KINDS}
    for kind, bit in itertools.product(KINDS, range(32)):
        try:
            product_of(kind, word(kind) | 1 << bit)
        except DescriptorError as error:
            if "which the kind reserves" in str(error):
                refusals[kind].add(bit)
    assert refusals == RESERVED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sample(len(KINDS))
def test_a_kind_has_the_types_of_its_numbers(kind: str) -> None:
    of_a = [product(kind, word(kind, a=number)) for number in range(8)]
    of_b = [product(kind, word(kind, b=number)) for number in range(8)]
    assert {n: x.a for n, x in enumerate(of_a) if x} == TYPES[kind]
    assert {n: x.b for n, x in enumerate(of_b) if x} == TYPES[kind]
    of_d = [product(kind, word(kind, d=number)) for number in range(4)]
    assert {n: x.d for n, x in enumerate(of_d) if x} == OF_D.get(kind, dict.fromkeys(range(4), "f32"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sample(len(KINDS))
def test_every_flag_and_number_has_its_bits(kind: str) -> None:
    plain = kind in OF_D
    dense = Product(
        kind,
        1,
        128,
        64,
        OF_K[kind],
        *([next(iter(TYPES[kind].values()))] * 2),
        "s32" if kind == "i8" else "f32",
    )
    if not plain:
        dense = replace(dense, scale="ue8m0")
    assert product_of(kind, word(kind)) == dense
    for bit, change in {
        2: {"sparse": True, "k": 2 * OF_K[kind]},
        3: {"saturating": True},
        13: {"negated_a": True},
        14: {"negated_b": True},
        15: {"m_major": True},
        16: {"n_major": True},
    }.items():
        if bit not in RESERVED[kind] and (bit != 3 or kind == "i8"):
            assert product_of(kind, word(kind) | 1 << bit) == replace(dense, **change), bit
    if plain:
        for number in range(4):
            assert product_of(kind, word(kind) | number) == replace(dense, selector=number)
            small = word(kind, m=64) | number << 30
            assert product_of(kind, small, ws=True).shift == (0, 8, 16, 32)[number]
            assert (product(kind, word(kind) | number << 30) is None) == (number > 0)
        return
    for of_a in range(4):
        for of_b in range(4):
            one = product(kind, word(kind) | of_a << 29 | of_b << 4)
            wanted = kind == "mxf8f6f4" or not (of_a % 2 or of_b % 2)
            assert one == (replace(dense, scale_bytes=(of_a, of_b)) if wanted else None)
    assert product(kind, word(kind) ^ UE8M0) == (
        replace(dense, scale="ue4m3") if kind == "mxf4nvf4" else None
    )
    if kind != "mxf8f6f4":
        assert product_of(kind, word(kind) | 1 << 31) == replace(dense, k=96)
        assert product_of(kind, word(kind) | 1 << 31 | 4) == replace(dense, sparse=True, k=192)


EIGHTS: Final = [*range(8, 257, 8)]
SIXTEENS: Final = [*range(16, 257, 16)]
THIRTY_TWOS: Final = [*range(32, 257, 32)]


@pytest.mark.parametrize(
    ("kind", "group", "ms", "ns", "across"),
    [
        ("f16", 1, [64, 128], EIGHTS, EIGHTS),
        ("f16", 2, [128, 256], SIXTEENS, SIXTEENS),
        ("tf32", 1, [64, 128], EIGHTS, EIGHTS),
        ("f8f6f4", 1, [64, 128], EIGHTS, SIXTEENS),
        ("f8f6f4", 2, [128, 256], SIXTEENS, THIRTY_TWOS),
        ("i8", 1, [64, 128], [8, 16, 24, *range(32, 257, 16)], SIXTEENS),
        ("i8", 2, [128, 256], THIRTY_TWOS, THIRTY_TWOS),
        ("mxf8f6f4", 1, [128], EIGHTS, SIXTEENS),
        ("mxf8f6f4", 2, [128, 256], SIXTEENS, THIRTY_TWOS),
        ("mxf4", 1, [128], EIGHTS, []),
        ("mxf4nvf4", 2, [128, 256], SIXTEENS, []),
    ],
)
@pytest.mark.sample(11)
def test_a_kind_has_the_shapes_of_its_group(
    kind: str, group: int, ms: list[int], ns: list[int], across: list[int]
) -> None:
    """`across` are the sizes of N where the rows of B lie along N."""
    m = ms[-1]
    of_m = [product(kind, word(kind, m=m), group=group) for m in range(0, 512, 16 if kind in OF_D else 128)]
    assert [x.m for x in of_m if x] == ms
    for sizes, flags in ((ns, 0), (across, 1 << 16)):
        of_n = [product(kind, word(kind, m, n, flags=flags), group=group) for n in range(0, 512, 8)]
        assert [x.n for x in of_n if x] == sizes


@pytest.mark.parametrize(("number", "step"), [(0, 16), (1, 16), (3, 8), (4, 8), (5, 8)])
@pytest.mark.sample(5)
def test_elements_of_8_bits_along_n_come_in_16s(number: int, step: int) -> None:
    of_n = [product("f8f6f4", word("f8f6f4", n=n, b=number, flags=1 << 16)) for n in range(0, 264, 8)]
    assert [x.n for x in of_n if x] == [*range(step, 257, step)]


@pytest.mark.parametrize(("sparse", "ns"), [(0, [64, 128, 256]), (4, [64, 128])])
@pytest.mark.sample(2)
def test_products_that_hold_b_have_other_shapes(sparse: int, ns: list[int]) -> None:
    of_m = [product("f16", word("f16", m, flags=sparse), ws=True) for m in range(0, 512, 16)]
    assert [x.m for x in of_m if x] == [32, 64, 128]
    of_n = [product("f16", word("f16", 32, n, flags=sparse), ws=True) for n in range(0, 512, 8)]
    assert [x.n for x in of_n if x] == ns


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.sample(14)
def test_a_product_is_written_as_the_bits_it_is_read_from(kind: str, group: int) -> None:
    numbers = tuple(TYPES[kind])
    for n, flags in itertools.product(SIXTEENS, (0, 1, 2, 4, 8, *(1 << bit for bit in (13, 14, 15, 16)))):
        for a, b in itertools.product(numbers, numbers):
            bits = word(kind, 128 * group, n, a, b, flags=flags)
            of = product(kind, bits, group=group)
            assert of is None or of.bits == bits
    for d in OF_D.get(kind, {}):
        assert product_of(kind, word(kind, d=d)).bits == word(kind, d=d)
    more = (0, 2 << 30) if kind in OF_D else (0, 2 << 4, 2 << 29, UE8M0, 1 << 31, 1 << 31 | 4)
    for flags in more:
        of = product(kind, word(kind, 64 if kind in OF_D else 128) ^ flags, ws=kind in OF_D)
        assert of is None or of.bits == word(kind, 64 if kind in OF_D else 128) ^ flags


def test_no_descriptor_of_ones_is_a_product() -> None:
    for kind in KINDS:
        with pytest.raises(DescriptorError):
            product_of(kind, 0xFFFFFFFF)
