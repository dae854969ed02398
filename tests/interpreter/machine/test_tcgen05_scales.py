"""Copies from shared to tensor memory that run, and products whose blocks have scale factors, against
float64.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from interpreter.tensor_texts import (
    LANES,
    TENSOR,
    Array,
    by_one_thread,
    commit,
    descriptor,
    kernel,
    moved,
    ran,
    rows_of_128_bytes,
    wait,
)

# By shape of a copy: rows, words of a row, and the lanes that each row goes to.
COPIES: Final = {
    "128x256b": (128, 8, lambda row: (row,)),
    "128x128b": (128, 4, lambda row: (row,)),
    "4x256b": (4, 8, lambda row: (32 * row,)),
    "64x128b.warpx2::02_13": (64, 4, lambda row: (row, row + 64)),
    "64x128b.warpx2::01_23": (
        64,
        4,
        lambda row: (row % 32 + 64 * (row // 32), row % 32 + 64 * (row // 32) + 32),
    ),
    "32x128b.warpx4": (32, 4, lambda row: tuple(row + 32 * q for q in range(4))),
}


def in_blocks(rows: Array) -> Array:
    """Rows of 16 or 32 bytes as descriptors without a swizzle have them: 8 rows of 16 bytes one after
    another, 128 bytes apart; the second half of each row behind all first halves.
    """
    halves = rows.view(np.uint8).reshape(len(rows), -1, 16)
    return halves.swapaxes(0, 1).ravel()


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("shape", COPIES)
def test_a_copy_of_each_shape_fills_the_lanes_of_the_manual(shape: str, pair: bool) -> None:
    rows, words, lanes_of = COPIES[shape]
    ctas = 1 + pair
    data = np.random.default_rng(1).integers(0, 1 << 32, (ctas, rows, words), np.uint32)
    whole = np.zeros((ctas, 4096), np.uint8)
    for cta in range(ctas):
        octets = in_blocks(data[cta])
        whole[cta, : len(octets)] = octets
    lines = [
        descriptor("%rd1", 0, lbo=16 * rows, sbo=128, swizzle=0),
        f"add.u32 %r20, {TENSOR}, 16;",
        f"tcgen05.cp.cta_group::{ctas}.{shape} [%r20], %rd1;",
        commit(pair=pair, mask=3 if pair else 0),
    ]
    body = [by_one_thread(lines, pair=pair), wait(), moved(0, 32, to="out")]
    text = kernel("\n".join(body), nbytes=4096, pair=pair)
    got = ran(text, whole, (ctas, LANES, 32), ctas=ctas, cluster=ctas)
    want = np.full((ctas, LANES, 32), 0x7FC0DEAD, np.uint32)
    for cta in range(ctas):
        for row in range(rows):
            for lane in lanes_of(row):
                want[cta, lane, 16 : 16 + words] = data[cta, row]
    assert (got == want).all()


FP4: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
SCALED: Final = (  # kind, size of a block, factors in a product, type of the factors, the byte they begin at
    ("mxf8f6f4", "", 1, "ue8m0", 0),
    ("mxf8f6f4", ".scale_vec::1X", 1, "ue8m0", 3),
    ("mxf8f6f4", ".block32", 1, "ue8m0", 2),
    ("mxf4", "", 2, "ue8m0", 2),
    ("mxf4", ".scale_vec::2X", 2, "ue8m0", 0),
    ("mxf4", ".block32", 2, "ue8m0", 0),
    ("mxf4nvf4", ".scale_vec::2X", 2, "ue8m0", 2),
    ("mxf4nvf4", ".block32", 2, "ue8m0", 0),
    ("mxf4nvf4", ".scale_vec::4X", 4, "ue4m3", 0),
    ("mxf4nvf4", ".block16", 4, "ue8m0", 0),
)


def factors(rows: int, type: str, seed: int) -> tuple[Array, Array]:
    """The bits of four scale factors for each row, and their values."""
    rng = np.random.default_rng(seed)
    if type == "ue8m0":
        bits = rng.integers(122, 132, (rows, 4)).astype(np.uint8)
        return bits, 2.0 ** (bits.astype(np.int64) - 127)
    values: Any = (rng.random((rows, 4)) * 4 + 0.1).astype(ml_dtypes.float8_e4m3fn)
    return values.view(np.uint8), values.astype(np.float64)


def for_copy(bits: Array) -> Array:
    """Scale factors as `.32x128b.warpx4` copies them: row r at byte r % 32 * 16 + r / 32 * 4."""
    return bits.reshape(-1, 32, 4).swapaxes(0, 1).ravel()


def operands(kind: str, rows: int, seed: int) -> tuple[Array, Array]:
    """The bytes of a row of 128, and the values of the elements that one product reads."""
    rng = np.random.default_rng(seed)
    if kind == "mxf8f6f4":
        values: Any = rng.standard_normal((rows, 128)).astype(ml_dtypes.float8_e4m3fn)
        return values.view(np.uint8), values[:, :32].astype(np.float64)
    octets = rng.integers(0, 256, (rows, 128)).astype(np.uint8)
    codes = np.stack([octets & 15, octets >> 4], axis=2).reshape(rows, -1)[:, :64]
    return octets, np.where(codes & 8, -1, 1) * FP4[codes & 7]


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(("kind", "vec", "count", "type", "byte"), SCALED)
def test_scale_factors_scale_blocks_of_a_row(
    kind: str, vec: str, count: int, type: str, byte: int, held: bool
) -> None:
    n = 128
    octets, values = zip(*(operands(kind, rows, seed) for seed, rows in ((1, 128), (2, n))), strict=True)
    bits, scales = zip(*(factors(rows, type, seed) for seed, rows in ((3, 128), (4, n))), strict=True)
    whole = np.zeros(1 << 16, np.uint8)
    for start, part in (
        (0, rows_of_128_bytes(octets[0])),
        (1 << 14, rows_of_128_bytes(octets[1])),
        (1 << 15, for_copy(bits[0])),
        ((1 << 15) + 512, for_copy(bits[1])),
    ):
        whole[start : start + len(part)] = part
    e2m1 = 0 if kind == "mxf8f6f4" else 1 << 7 | 1 << 10
    idesc = 1 << 27 | n >> 3 << 17 | e2m1 | (type == "ue8m0") << 23 | byte << 29 | byte << 4
    lines = [
        descriptor("%rd1", 1 << 15, sbo=128, swizzle=0),
        f"add.u32 %r20, {TENSOR}, 128;",
        "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r20], %rd1;",
        descriptor("%rd1", (1 << 15) + 512, sbo=128, swizzle=0),
        f"add.u32 %r21, {TENSOR}, 136;",
        "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r21], %rd1;",
        descriptor("%rd1", 0),
        descriptor("%rd2", 1 << 14),
        f"mov.u32 %r5, {idesc:#x};",
        "setp.ne.u32 %p1, %r5, %r5;",
        f"add.u32 %r22, {TENSOR}, 256;",
        f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale{vec} [{TENSOR}], {'[%r22]' if held else '%rd1'}, "
        "%rd2, %r5, [%r20], [%r21], %p1;",
        commit(),
    ]
    body = [by_one_thread(lines), wait(), moved(0, n, to="out")]
    x = whole.view(np.uint32)
    if held:
        body = [f"add.u64 %rd90, %rd90, {1 << 16};", moved(256, 32, to="tensor"), *body]
        x = np.concatenate([x, octets[0].view(np.uint32).ravel()])
    got = ran(kernel("\n".join(body), nbytes=1 << 16), x, (LANES, n)).view(np.float32)
    block = values[0].shape[1] // count
    a, b = (
        v * np.repeat(s[:, byte : byte + count], block, axis=1) for v, s in zip(values, scales, strict=True)
    )
    assert np.abs(got - a @ b.T).max() < 1e-5 * np.abs(a @ b.T).max()


def test_each_cta_of_a_pair_has_the_factors_of_its_rows_and_of_all_columns() -> None:
    n = 128
    octets, values = zip(
        *(operands("mxf8f6f4", rows, seed) for seed, rows in ((1, 256), (2, n))), strict=True
    )
    bits, scales = zip(*(factors(rows, "ue8m0", seed) for seed, rows in ((3, 256), (4, n))), strict=True)
    whole = np.zeros((2, 1 << 16), np.uint8)
    for rank in range(2):
        for start, part in (
            (0, rows_of_128_bytes(octets[0][128 * rank : 128 * rank + 128])),
            (1 << 14, rows_of_128_bytes(octets[1][64 * rank : 64 * rank + 64])),
            (1 << 15, for_copy(bits[0][128 * rank : 128 * rank + 128])),
            ((1 << 15) + 512, for_copy(bits[1])),
        ):
            whole[rank, start : start + len(part)] = part
    lines = []
    for column, start in ((128, 1 << 15), (136, (1 << 15) + 512)):
        lines += [
            descriptor("%rd1", start, sbo=128, swizzle=0),
            f"add.u32 %r{20 + column // 136}, {TENSOR}, {column};",
            f"tcgen05.cp.cta_group::2.32x128b.warpx4 [%r{20 + column // 136}], %rd1;",
        ]
    lines += [
        descriptor("%rd1", 0),
        descriptor("%rd2", 1 << 14),
        f"mov.u32 %r5, {2 << 27 | n >> 3 << 17 | 1 << 23:#x};",
        "setp.ne.u32 %p1, %r5, %r5;",
        f"tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale [{TENSOR}], %rd1, %rd2, %r5, [%r20], [%r21], "
        "%p1;",
        commit(pair=True, mask=3),
    ]
    body = [by_one_thread(lines, pair=True), wait(), moved(0, n, to="out")]
    text = kernel("\n".join(body), nbytes=1 << 16, pair=True)
    got = ran(text, whole, (256, n), ctas=2, cluster=2).view(np.float32)
    a, b = (v * s[:, :1] for v, s in zip(values, scales, strict=True))
    assert np.abs(got - a @ b.T).max() < 1e-5 * np.abs(a @ b.T).max()
