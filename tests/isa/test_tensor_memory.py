"""Layouts of tensor memory against those in CUTLASS's headers (`copy_traits_sm100.hpp`,
`mma_traits_sm100_frag.hpp`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
from error_texts import refused
from isa.cute_layout import Nested, at, table

from ptxgen.errors import DescriptorError
from ptxgen.isa.mma_descriptor import Product, product_of
from ptxgen.isa.tensor_memory import (
    COPIES,
    REGISTERS,
    cells,
    cells_of_a,
    cells_of_a_in_pair,
    cells_of_d,
    cells_of_scales,
    columns_of_d,
    lanes_of_copy,
    scales_in,
    split_address,
)

NUMBERS: Final = tuple(1 << n for n in range(8))


def in_bits(shape: str, num: int) -> tuple[tuple[Nested, Nested], tuple[Nested, Nested], int]:
    """The layouts of threads and of values, in bits of [lanes, bits of a lane], and the bits of a lane."""
    return {
        "16x256b": (((4, 8), (64, 256 * num)), ((64, 2, num), (1, 2048 * num, 256)), 256 * num),
        "16x128b": (((4, 8), (32, 128 * num)), ((32, 2, num), (1, 1024 * num, 128)), 128 * num),
        "16x64b": (((2, 2, 8), (512 * num, 32, 64 * num)), ((32, num), (1, 64)), 64 * num),
        "16x32bx2": (((16, 2), (64 * num, 32 * num)), ((32 * num,), (1,)), 64 * num),
        "32x32b": (((32,), (32 * num,)), ((32 * num,), (1,)), 32 * num),
    }[shape]


@pytest.mark.parametrize("shape", REGISTERS)
def test_registers_have_the_cells_that_cutlass_gives_them(shape: str) -> None:
    for num in NUMBERS:
        if num * REGISTERS[shape] > 128:
            continue
        threads, values, per_lane = in_bits(shape, num)
        t, r = np.arange(32)[None, :], np.arange(num * REGISTERS[shape])[:, None]
        bit = at(*threads, t) + at(*values, 32 * r)
        lane, column = cells(shape, num, num)
        np.testing.assert_array_equal(lane, bit // per_lane)
        np.testing.assert_array_equal(column, bit % per_lane // 32)
        assert len({*zip(lane.ravel().tolist(), column.ravel().tolist(), strict=True)}) == lane.size


def test_packed_registers_have_two_columns_each() -> None:
    for shape in ("32x32b", "16x64b", "16x128b", "16x256b"):
        plain, packed = cells(shape, 2), cells(shape, 2, packed=True)
        np.testing.assert_array_equal(packed.lane, plain.lane)
        np.testing.assert_array_equal(packed.column, 2 * plain.column)
    halves = cells("16x32bx2", 4, 64, packed=True)
    assert halves.column[:, 15].tolist() == [0, 2, 4, 6]
    assert halves.column[:, 16].tolist() == [64, 66, 68, 70]
    assert halves.lane[0].tolist() == [*range(16), *range(16)]


def test_an_address_has_a_lane_and_a_column() -> None:
    assert split_address(0x00600123) == (96, 0x123)


# ---------------------------------------- matrices


# M, N, how, and CuTe's (M, N) -> lane + 128 * column.
OF_ONE_CTA: Final[list[tuple[int, int, dict[str, Any], Nested, Nested]]] = [
    (128, 256, {}, ((128,), (256,)), ((1,), (128,))),
    (64, 128, {}, ((16, 4), (128,)), ((1, 32), (128,))),
    (128, 64, {"ws": True}, ((128,), (64,)), ((1,), (128,))),
    (64, 128, {"ws": True}, ((64,), (64, 2)), ((1,), (128, 64))),
    (32, 256, {"ws": True}, ((32,), (64, 4)), ((1,), (128, 32))),
]


@pytest.mark.parametrize(("m", "n", "how", "shape", "stride"), OF_ONE_CTA)
def test_d_of_a_cta_is_where_cutlass_has_it(
    m: int, n: int, how: dict[str, Any], shape: Nested, stride: Nested
) -> None:
    rank, lane, column = cells_of_d(m, n, **how)
    np.testing.assert_array_equal(lane + 128 * column, table(m, n, shape, stride))
    assert rank.shape == (m, n)
    assert not rank.any()


def test_d_of_a_pair_is_where_cutlass_has_it() -> None:
    rank, lane, column = cells_of_d(128, 256, group=2)
    of_each = table(64, 256, ((64,), (128, 2)), ((1,), (128, 64)))
    np.testing.assert_array_equal(lane + 128 * column, np.concatenate([of_each, of_each]))
    assert rank[:, 0].tolist() == [0] * 64 + [1] * 64
    rank, lane, column = cells_of_d(256, 32, group=2)
    np.testing.assert_array_equal(
        lane + 128 * column + 65536 * rank,
        np.arange(256)[:, None] % 128 + 65536 * (np.arange(256)[:, None] // 128) + 128 * np.arange(32),
    )
    rank, lane, _ = cells_of_d(128, 32, group=2, sparse=True)
    assert (rank[64:] == 1).all()
    assert lane[[0, 15, 16, 63, 64, 80], 0].tolist() == [0, 15, 32, 111, 0, 32]


def test_the_columns_of_d_are_those_of_its_cells() -> None:
    bf16_by_128 = 16 << 17 | 0x490
    for group, m in ((1, 64), (1, 128), (2, 128), (2, 256)):
        of = product_of("f16", m >> 4 << 24 | bf16_by_128, group=group)
        assert columns_of_d(of) == 1 + cells_of_d(m, 128, group=group).column.max()
    for m in (32, 64, 128):
        of = product_of("f16", m >> 4 << 24 | bf16_by_128, ws=True)
        assert columns_of_d(of, ws=True) == 1 + cells_of_d(m, 128, ws=True).column.max()


def test_a_d_that_the_group_lacks_is_refused() -> None:
    with refused(DescriptorError, "tcgen05.mma.cta_group::2: expected M 128 or 256, got 64"):
        cells_of_d(64, 32, group=2)
    with refused(DescriptorError, "tcgen05.mma.cta_group::1: expected M 64 or 128, got 32"):
        cells_of_d(32, 64)


def test_layouts_are_not_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        cells_of_d(128, 64).lane[0, 0] = 1


def test_a_has_the_lanes_of_d_and_32_bits_of_k_a_column() -> None:
    for rows in (64, 128):
        lane, column = cells_of_a(rows, 32)
        np.testing.assert_array_equal(lane, np.broadcast_to(cells_of_d(rows, 8).lane[:, :1], (rows, 8)))
        np.testing.assert_array_equal(column, np.broadcast_to(np.arange(8), (rows, 8)))
    once, twice = cells_of_a_in_pair(128, 32), cells_of_a_in_pair(64, 32)
    assert [x.lane[:, 0].tolist() for x in once] == [[*range(128)]]
    assert [x.lane[:, 0].tolist() for x in twice] == [[*range(64)], [*range(64, 128)]]


def test_scale_factors_are_in_all_quarters() -> None:
    rng = np.random.default_rng(1)
    quarter = rng.integers(0, 1 << 32, (32, 512)).astype(np.uint32)
    memory = np.tile(quarter, (4, 1))
    in_bytes = memory.view(np.uint8)
    for rows in (128, 256):
        where = table(rows, 4, ((32, rows // 32), (4,)), ((1, 512), (128,)))
        want = in_bytes[where % 128, where // 128]
        lane, column = cells_of_scales(rows)
        assert lane.shape == (4, rows)
        for of_quarter in memory[lane, column]:
            for first, count in ((0, 4), (0, 2), (2, 2), (3, 1)):
                got = scales_in(of_quarter, first, count)
                np.testing.assert_array_equal(got, want[:, first : first + count])


# ---------------------------------------- copies


def test_copies_reach_the_lanes_of_their_warps() -> None:
    for shape, (rows, _) in COPIES.items():
        assert len(lanes_of_copy(shape)) == rows
    assert lanes_of_copy("4x256b").tolist() == [[0], [32], [64], [96]]
    assert lanes_of_copy("128x256b").tolist() == [[i] for i in range(128)]
    assert lanes_of_copy("32x128b", "warpx4")[5].tolist() == [5, 37, 69, 101]
    assert lanes_of_copy("64x128b", "warpx2::02_13")[33].tolist() == [33, 97]
    assert lanes_of_copy("64x128b", "warpx2::01_23")[[0, 33]].tolist() == [[0, 32], [65, 97]]
    for warps in ("warpx2::02_13", "warpx2::01_23"):
        assert sorted(lanes_of_copy("64x128b", warps).ravel().tolist()) == [*range(128)]


def test_d_of_a_sparse_product_of_a_pair_takes_all_columns() -> None:
    dense = Product("f16", 2, 128, 64, 16, "f16", "f16", "f32")
    assert [columns_of_d(of) for of in (dense, replace(dense, sparse=True), replace(dense, m=256))] == [
        32,
        64,
        64,
    ]
