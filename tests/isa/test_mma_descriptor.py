"""Instruction descriptors of `tcgen05.mma`: those of other compilers' kernels, and every refusal."""

from __future__ import annotations

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
def test_what_the_manual_does_not_allow_is_refused(
    kind: str, bits: int, how: dict[str, Any], wanted: str, got: str
) -> None:
    ws = ".ws" if how.get("ws") else ""
    opcode = f"tcgen05.mma{ws}.cta_group::{how.get('group', 1)}.kind::{kind}"
    message = f"{opcode}: expected {wanted} of the instruction descriptor {bits:#010x}, got {got}"
    with refused(DescriptorError, message):
        product_of(kind, bits, **how)


def test_integers_have_fewer_sizes_of_n() -> None:
    allowed = []
    for n in range(0, 264, 8):
        try:
            product_of("i8", M128 | n >> 3 << 17 | S32)
        except DescriptorError:
            continue
        allowed.append(n)
    assert allowed == [8, 16, 24, *range(32, 257, 16)]


def test_no_descriptor_of_ones_is_a_product() -> None:
    for kind in KINDS:
        with pytest.raises(DescriptorError):
            product_of(kind, 0xFFFFFFFF)
