"""Queries of bf16 as f16, for products with elements of one byte that have been widened to f16.

A row of Q, read as bf16, is multiplied by the power of two that makes its largest magnitude at least 2**14
and below 2**15, and rounded to f16. Elements down to 2**-28 of the largest keep all their bits, and others
are off by at most 2**-40 of it: less than what a sum of f32 loses. Scores of the row are to be multiplied by
the inverse of the power. So no element of K or V is converted to bf16, which would take four instructions
for two elements instead of one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import chain
from typing import Final

from flash.device.mma_products import WarpCoordinates, fragment_rows, query_reader
from flash.device.split_tile import power_of_two_scale
from flash.families.mma import MMA_ROWS, MmaTiling
from flash.families.precision import HALF
from ptxgen.dsl import KernelBuilder, Pointer, TilePointer, Value, Var
from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP, QUAD_LANES
from ptxgen.dsl.swizzle import CHUNK_BYTES, SwizzledTile
from ptxgen.target import WARP_SIZE
from ptxgen.types import f16x2, f32, u32

_TOP: Final = 14  # the exponent of a row's largest element
_WORDS: Final = CHUNK_BYTES // u32.nbytes
_HIGH: Final = 0xFFFF_0000
_OTHER_CHUNK: Final = 16  # butterfly distance to the lane with the other chunks of a row
_EVERY_LANE: Final = -1
_MOST_CHUNKS: Final = 16  # of a lane, which registers hold until the row's largest element is known


def row_factors(k: KernelBuilder, t: MmaTiling) -> list[Var]:
    """A factor for each row of a lane's fragments, initially 1, for `convert_queries`."""
    return [k.var(f32, 1.0) for _ in fragment_rows(t)]


def convert_queries(
    k: KernelBuilder, t: MmaTiling, me: WarpCoordinates, Q_tile: SwizzledTile, factors: Sequence[Var]
) -> None:
    """Convert the rows of Q of this warp in place, once they have arrived for the whole CTA, and set
    `factors`, by which scores of the rows of this lane's fragments are to be multiplied.
    """
    k.note("Q as f16, each row times a power of two")
    chunk_of = query_reader(t, me, Q_tile).stage()
    for m in range(t.row_tiles):
        chunks = [chunk_of(d, MMA_ROWS * m) for d in range(t.score_columns // HALF.depth)]
        undone = _convert_row(k, chunks)
        for n in range(FRAGMENT_STEP, MMA_ROWS + 1, FRAGMENT_STEP):
            # Lane r has row r of the sixteen, next to lane r + 16.
            lane = me.lane // QUAD_LANES + (n - FRAGMENT_STEP)
            mine = factors[(MMA_ROWS * m + n) // FRAGMENT_STEP - 1]
            k.shfl(undone, lane, WARP_SIZE - 1, _EVERY_LANE, mode="idx", into=mine)
    k.bar_warp_sync(_EVERY_LANE)  # other lanes read what was written


def _convert_row(k: KernelBuilder, chunks: Sequence[TilePointer]) -> Value:
    """Convert this lane's chunks of a row; returns the inverse of the row's power of two."""
    words = [_words(k, at) for at in chunks]
    elements = [[_as_f32(word) for word in chunk] for chunk in words]
    sizes = [k.abs(x) for x in chain.from_iterable(chain.from_iterable(elements))]
    largest = functools.reduce(k.max, sizes)
    largest = k.max(largest, k.butterfly(largest, _OTHER_CHUNK))
    scale, undone = power_of_two_scale(k, largest, _TOP)
    for at, read in zip(chunks, elements, strict=True):
        chunk = read if len(chunks) <= _MOST_CHUNKS else [_as_f32(word) for word in _words(k, at)]
        halves = [k.cvt(high * scale, low * scale, rnd="rn", dtype=f16x2).as_(u32) for low, high in chunk]
        k.store(Pointer(at.value, "shared", u32, at.offset), halves)
    return undone


def _words(k: KernelBuilder, at: TilePointer) -> tuple[Value, ...]:
    """The 32-bit words of a chunk of 16 bytes, each with two bf16 elements."""
    words = k.load(Pointer(at.value, "shared", u32, at.offset), _WORDS)
    assert isinstance(words, tuple)  # there are several
    return words


def _as_f32(word: Value) -> tuple[Value, Value]:
    """The two bf16 elements of a 32-bit word, converted to f32."""
    return (word << 16).as_(f32), (word & _HIGH).as_(f32)
