"""Matrices in shared memory behind descriptors of `tcgen05`: against the canonical layouts of the manual, and
against the rule by which other compilers' kernels fill their tiles.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pytest
from error_texts import refused
from isa.cute_layout import Nested, flat, table

from ptxgen.errors import DescriptorError
from ptxgen.isa.descriptors import SIZES, SharedMatrix, shared_matrix
from ptxgen.isa.tcgen05_sums import elements_of_words

Array = np.ndarray[Any, Any]

NONE, ATOMS_OF_32, OF_128, OF_64, OF_32 = 0, 1, 2, 4, 6


def descriptor(swizzle: int, *, start: int = 0, lbo: int = 0, sbo: int = 0, base: int = 0) -> int:
    return start >> 4 | lbo >> 4 << 16 | sbo >> 4 << 32 | 1 << 46 | base << 49 | swizzle << 61


def test_the_descriptor_of_flash_attn_4() -> None:
    of = shared_matrix(0x40004040 << 32 | 1 << 16 | 0x2000 >> 4)
    assert (of.start, of.lbo, of.sbo, of.base_offset, of.lbo_is_address) == (0x2000, 16, 1024, 0, False)
    assert (of.swizzle.row, of.swizzle.atom) == (128, 16)


def read(of: SharedMatrix, memory: Array, rows: int, type: str, *, along_rows: bool) -> Array:
    """The elements of a matrix in shared memory, uint8."""
    at = of.words_along_rows(rows, type) if along_rows else of.words(rows)
    words = memory[at[..., None] + np.arange(8)].reshape(len(at), -1).view(np.uint64)
    return elements_of_words("", type, words, along_rows=along_rows)


def exchanged(address: Array, swizzle: int) -> Array:
    """CuTe's Swizzle<bits, base, shift>: the bits from `base` + `shift` on go into those from `base` on."""
    bits, base, shift = {
        NONE: (0, 4, 3),
        ATOMS_OF_32: (2, 5, 2),
        OF_128: (3, 4, 3),
        OF_64: (2, 4, 3),
        OF_32: (1, 4, 3),
    }[swizzle]
    mask = ((1 << bits) - 1) << base + shift
    result: Array = address ^ (address & mask) >> shift
    return result


# The manual's "Canonical Layouts": the type, the swizzle, LBO, SBO, and the layout's shape and strides
# (rows, k), in elements.
K_MAJOR: Final[list[tuple[str, int, int, int, Nested, Nested]]] = [
    ("tf32", NONE, 64, 32, ((8, 2), (4, 2)), ((4, 32), (1, 64))),
    ("f16", NONE, 64, 128, ((8, 2), (8, 2)), ((8, 128), (1, 64))),
    ("e4m3", NONE, 128, 256, ((8, 2), (16, 2)), ((16, 256), (1, 128))),
    ("tf32", OF_32, 4, 64, ((8, 2), (4, 2)), ((8, 64), (1, 4))),
    ("f16", OF_64, 8, 256, ((8, 2), (8, 2)), ((32, 256), (1, 8))),
    ("f16", OF_128, 8, 512, ((8, 2), (8, 2)), ((64, 512), (1, 8))),
    ("e4m3", ATOMS_OF_32, 16, 1024, ((8, 2), (16, 2)), ((128, 1024), (1, 16))),
]
ALONG_ROWS: Final[list[tuple[str, int, int, int, Nested, Nested]]] = [
    ("f16", NONE, 128, 64, ((8, 1, 2), (8, 2)), ((1, 8, 64), (8, 128))),
    ("f16", OF_32, 128, 256, ((8, 2, 2), (8, 2)), ((1, 8, 128), (16, 256))),
    ("f16", OF_64, 256, 512, ((8, 4, 2), (8, 2)), ((1, 8, 256), (32, 512))),
    ("f16", OF_128, 1024, 512, ((8, 8, 2), (8, 2)), ((1, 8, 1024), (64, 512))),
    ("e5m2", OF_128, 4096, 1024, ((16, 8, 2), (8, 4)), ((1, 16, 4096), (128, 1024))),
    ("tf32", ATOMS_OF_32, 1024, 512, ((8, 4, 2), (4, 2)), ((1, 8, 1024), (32, 512))),
]


@pytest.mark.parametrize("along_rows", [False, True])
def test_matrices_lie_as_the_manual_says(along_rows: bool) -> None:
    for type, swizzle, lbo, sbo, shape, stride in ALONG_ROWS if along_rows else K_MAJOR:
        size = SIZES.get(type, 1)
        k = 32 // size
        rows = math.prod(flat(shape)) // k
        plain = table(rows, k, shape, stride) * size
        memory = np.zeros(1 << 15, np.uint8)
        want = np.random.default_rng(rows).integers(0, 256, (rows, k, size)).astype(np.uint8)
        start = 2048
        memory[exchanged(start + plain[..., None] + np.arange(size), swizzle)] = want
        of = shared_matrix(descriptor(swizzle, start=start, lbo=lbo * size, sbo=sbo * size))
        got = read(of, memory, rows, type, along_rows=along_rows)
        np.testing.assert_array_equal(got, want.view(f"u{size}")[..., 0], (type, swizzle))


@pytest.mark.parametrize("step", range(4))
def test_a_step_along_k_moves_the_start_by_32_bytes(step: int) -> None:
    """Rows of 128 bytes whose chunks of 16 are exchanged by the number of the row, as TMA writes them."""
    rows = np.random.default_rng(step).integers(0, 256, (64, 128)).astype(np.uint8)
    chunks = rows.reshape(64, 8, 16)
    memory = np.zeros(1 << 15, np.uint8)
    for i, row in enumerate(chunks):
        memory[4096 + 128 * i : 4224 + 128 * i] = row[np.arange(8) ^ i % 8].ravel()
    of = shared_matrix(descriptor(OF_128, start=4096 + 32 * step, sbo=1024))
    got = read(of, memory, 64, "e4m3", along_rows=False)
    np.testing.assert_array_equal(got, rows[:, 32 * step : 32 * step + 32])


def test_a_base_offset_moves_the_pattern() -> None:
    """A tile whose start is not a multiple of 1024 bytes has its address bits 7-9 as base offset."""
    aligned = shared_matrix(descriptor(OF_128, start=4096, sbo=1024))
    moved = shared_matrix(descriptor(OF_128, start=4096 + 384, sbo=1024, base=3))
    np.testing.assert_array_equal(moved.words(64), aligned.words(64) + 384)


def test_copies_read_rows_of_16_bytes() -> None:
    of = shared_matrix(descriptor(NONE, lbo=16, sbo=128))
    assert of.words(32, 16).tolist() == [[16 * i, 16 * i + 8] for i in range(32)]


# ---------------------------------------- refusals

WHERE: Final = "the descriptor 0x{:016x} of a matrix in shared memory: expected "


def test_a_descriptor_of_wgmma_is_refused() -> None:
    bits = 1 << 62 | 1 << 32
    with refused(DescriptorError, f"{WHERE.format(bits)}001 in bits 46-48, got 000"):
        shared_matrix(bits)


@pytest.mark.parametrize("swizzle", [3, 5, 7])
def test_reserved_swizzles_are_refused(swizzle: int) -> None:
    bits = descriptor(swizzle)
    message = (
        f"{WHERE.format(bits)}the swizzle 0 (none), 1 (128 bytes in atoms of 32), 2 (128 bytes), 4 (64 bytes)"
        f" or 6 (32 bytes) in bits 61-63, got {swizzle}"
    )
    with refused(DescriptorError, message):
        shared_matrix(bits)


@pytest.mark.parametrize(("type", "swizzle"), [("tf32", OF_128), ("tf32", NONE), ("bf16", ATOMS_OF_32)])
def test_only_tf32_along_rows_has_atoms_of_32_bytes(type: str, swizzle: int) -> None:
    of = shared_matrix(descriptor(swizzle))
    message = (
        "a descriptor of an M- or N-major matrix in shared memory: expected the swizzle of 128 bytes in "
        "atoms of 32, 1 in bits 61-63, for tf32 and for no other type, got that of "
        f"{of.swizzle.row} bytes in atoms of {of.swizzle.atom} for {type}"
    )
    with refused(DescriptorError, message):
        of.words_along_rows(64, type)


def test_an_lbo_that_is_an_address_is_refused() -> None:
    message = (
        "a descriptor of a matrix in shared memory: expected an LBO that is an offset, got one that is an "
        "address (bit 52), which is not modelled"
    )
    with refused(DescriptorError, message):
        shared_matrix(descriptor(OF_128) | 1 << 52).words(64)
