"""Descriptors of `tcgen05` that the DSL makes are read as what they describe."""

from __future__ import annotations

from typing import Any, Final

import pytest

from ptxgen.isa.descriptors import OF_MAPS, SharedMatrix, shared_matrix
from ptxgen.isa.mma_descriptor import Product, product_of

SCALED: Final = {"scale": "ue8m0"}
# Descriptors that flash-attn-4's kernels have, and what they multiply.
SEEN: Final = {
    0x8200490: Product("f16", 1, 128, 128, 16, "bf16", "bf16", "f32"),
    0x8110490: Product("f16", 1, 128, 64, 16, "bf16", "bf16", "f32", n_major=True),
    0x10200490: Product("f16", 2, 256, 128, 16, "bf16", "bf16", "f32"),
}


@pytest.mark.parametrize("bits", SEEN, ids=hex)
def test_descriptors_of_kernels(bits: int) -> None:
    assert SEEN[bits].bits == bits


@pytest.mark.parametrize(
    ("product", "ws"),
    [
        (Product("f16", 1, 64, 8, 16, "f16", "f16", "f16", m_major=True), False),
        (Product("f16", 1, 128, 256, 32, "f16", "f16", "f32", sparse=True, selector=2), False),
        (Product("tf32", 2, 128, 32, 8, "tf32", "tf32", "f32", negated_a=True), False),
        (Product("f8f6f4", 1, 128, 96, 32, "e4m3", "e2m1", "f32", negated_b=True), False),
        (Product("i8", 1, 64, 24, 32, "s8", "u8", "s32", saturating=True), False),
        (Product("f16", 1, 32, 64, 16, "bf16", "bf16", "f32", shift=16), True),
        (Product("mxf8f6f4", 1, 128, 64, 32, "e5m2", "e3m2", "f32", **SCALED, scale_bytes=(3, 1)), False),
        (Product("mxf4", 1, 128, 64, 64, "e2m1", "e2m1", "f32", **SCALED, scale_bytes=(2, 0)), False),
        (Product("mxf4nvf4", 2, 256, 64, 96, "e2m1", "e2m1", "f32", scale="ue4m3"), False),
        (Product("mxf4nvf4", 2, 256, 64, 192, "e2m1", "e2m1", "f32", sparse=True, scale="ue4m3"), False),
    ],
    ids=lambda of: getattr(of, "kind", str(of)),
)
def test_products_are_read_as_they_are_described(product: Product, ws: bool) -> None:
    assert product_of(product.kind, product.bits, group=product.group, ws=ws) == product


@pytest.mark.parametrize("swizzle", OF_MAPS)
@pytest.mark.parametrize("how", [{}, {"base_offset": 5}, {"lbo_is_address": True}])
def test_matrices_are_read_as_they_are_described(swizzle: str, how: dict[str, Any]) -> None:
    matrix = SharedMatrix(0x3FFF0, 0x2000, 0x400, **{"base_offset": 0, **how}, swizzle=OF_MAPS[swizzle])
    assert shared_matrix(matrix.bits) == matrix
