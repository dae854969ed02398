"""Tiles of f32 that become pairs of f16 where they are: each element as the sum of two f16.

An f32 x becomes `high`, 2**8 x rounded to f16, and `low`, the rest rounded to f16 (Markidis et al. 2018;
Ootomo and Yokota 2022): 2**8 x = high + low, off by at most 2**-23 of it, and mostly exact. The pair takes
the four bytes of x, so a tile needs no more room, and each element is split once for all warps of a CTA, by
the thread that has copied it.

f16 has fewer exponents than f32. Of a row whose largest magnitude is from `_LEAST` to below `_LIMIT`,
elements from 2**-10 on have both parts in full, and others are off by up to 2**-33. Any other row, unless it
is 0, is multiplied by a power of two first, so that its largest is from 2**6 to below 2**7; its factor, by
which sums of its products are to be multiplied, is in `factors`, and `SplitTile.scales` says that the tile
has such a row. A row with NaN or infinity is scaled by its finite elements. The high part of infinity is
finite, so that a sum of products is infinite with the sign that it has in f32, or NaN.

A panel of 128 bytes holds eight chunks: for each of four tiles of eight columns the high parts and then the
low parts. Tile m has columns 8t + 2m and 8t + 2m + 1 for t = 0 … 3. So a lane, which of each tile of a
result holds columns 2t and 2t + 1, has of all four tiles eight neighbouring columns of the matrix.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Final, Protocol

from flash.device.panel_loader import PanelLoader, Share
from flash.families.precision import PANEL_BYTES
from ptxgen.dsl import KernelBuilder, Pointer, TilePointer, Value, Var, marked
from ptxgen.dsl.matrices.lanes import over_lanes
from ptxgen.dsl.swizzle import CHUNK_BYTES, Panel
from ptxgen.records import dataclass
from ptxgen.types import b32, f16, f16x2, f32, u32

ELEMENT_SCALE: Final = 2.0**8  # of elements, before they are split
_LEAST: Final = 2.0**-7  # the largest magnitude of a row without a factor, at least
_LIMIT: Final = 2.0**7  # this magnitude is below
_TOP: Final = 6  # the exponent that the largest of a row with a factor gets
_INFINITY: Final = float("inf")
_EXPONENT: Final = 0x7F80_0000
_MANTISSA_BITS: Final = 23
_BIAS: Final = 127
_MOST: Final = 112  # the exponent of the largest scale
_CHUNKS: Final = PANEL_BYTES // CHUNK_BYTES  # of a panel
_TILES: Final = 4  # tiles of eight columns in a panel
_PARTS: Final = 2
_WORD: Final = u32.nbytes
_WORDS: Final = CHUNK_BYTES // _WORD  # of a chunk
_TWO: Final = CHUNK_BYTES // 2  # bytes of two elements
_WORDS_AT_ONCE: Final = 16  # in flight
_EVERY_LANE: Final = -1
_ROW_LANES: Final = (1, 2, 4)  # butterfly distances to the lanes that have other chunks of a row
_ROW_LANES_BY_HALVES: Final = (*_ROW_LANES, 8)  # the same where a lane has the chunks of half of the panels


class SplitTile:
    """Splits the rows of a tile that a `PanelLoader` fills, whose panels are 128 bytes wide.

    `factors` is an f32 for each row of the tile, by which sums of products with it are to be multiplied:
    1, unless `scales` says otherwise. All threads see both after the next barrier.
    """

    @marked("split tile: flag")
    def __init__(self, k: KernelBuilder, loader: PanelLoader) -> None:
        self.k = k
        self.loader = loader
        self.tile = loader.tile
        name = self.tile.name
        self.factors = k.shared(f"{name}_factors", (1, self.tile.rows), f32)
        self._flag = k.shared(f"{name}_flag", (1, 1), u32).pointer()
        with k.when(k.thread_id() == 0):
            k.store(self._flag, 0)

    def scales(self, mark: Value | int) -> Value:
        """Whether a row of the tile that was split with this mark has another factor than 1."""
        return self.k.load(self._flag) == mark

    def split(
        self, mark: Value | int, stage: Value | None = None, not_finite: Callable[[], object] | None = None
    ) -> None:
        """Split this thread's part of the tile in the stage at byte `stage`; its copies have arrived.

        `mark`, u32, tells the tile from those before it and is not 0. With `not_finite`, NaN and
        infinity become 0, and `not_finite()` emits what is done where there was one.
        """
        k, tile = self.k, self.tile
        (share,) = self.loader.shares(stage)
        rows = _Rows.of(k, share)
        iterations = max(1, tile.rows // share.rows_at_once)
        step = min(iterations, max(1, _WORDS_AT_ONCE // (_WORDS * len(share.panels))))
        fewer = share.rows_at_once > tile.rows
        with k.when(share.row < tile.rows) if fewer else nullcontext():
            if iterations == step:
                self._split_rows(rows, step, mark, not_finite)
                return
            with k.loop(0, iterations // step, type=u32) as n:
                self._split_rows(rows.down(n * (step * rows.at_once)), step, mark, not_finite)

    def _split_rows(
        self, rows: _Rows, iterations: int, mark: Value | int, not_finite: Callable[[], object] | None
    ) -> None:
        """Split a thread's rows, one in each of the `iterations`, `rows.at_once` rows apart."""

        def factor_at(iteration: int) -> TilePointer:
            first = self.factors.pointer(0, rows.row)
            return first.plus_bytes(iteration * rows.at_once * f32.nbytes)

        lanes = _ROW_LANES if rows.half is None else _ROW_LANES_BY_HALVES
        split_rows(
            self.k, rows, iterations, factor_at, lambda: self.k.store(self._flag, mark), not_finite, lanes
        )


class RowsToSplit(Protocol):
    """A thread's elements in some rows of a tile. The eight or sixteen lanes that share a row follow one
    another, and each has the chunk `chunk` of all or of half of the panels.
    """

    @property
    def chunk(self) -> Value:
        """The index, u32, of the 16-byte chunk that this thread has in each row of a panel."""

    def elements(self, iteration: int) -> list[Value]:
        """The thread's elements in the row that an iteration of the loop splits, f32."""

    def store(self, iteration: int, words: Sequence[tuple[Value, Value]]) -> None:
        """Write the high and low parts of the elements, two at a time, of the row of an iteration."""


@marked("split tile: rows")
def split_rows(
    k: KernelBuilder,
    rows: RowsToSplit,
    iterations: int,
    factor_at: Callable[[int], Pointer],
    note_factors: Callable[[], object],
    not_finite: Callable[[], object] | None,
    lanes: Sequence[int] = _ROW_LANES,
) -> None:
    """Split the rows of `iterations` iterations, and store their factors, each at `factor_at(iteration)`.
    `note_factors()` emits the code for rows of which one factor is not 1. With `not_finite`, NaN and infinity
    become 0, and `not_finite()` emits the code for threads that have set one to 0. `lanes` are the butterfly
    distances to the lanes that share a row.
    """
    split = [[k.var(f32, of) for of in rows.elements(iteration)] for iteration in range(iterations)]
    factors = [k.var(f32, 1.0) for _ in split]
    ordinary = [_is_ordinary(_largest(k, [k.abs(of) for of in x], NaN=True)) for x in split]
    some = k.vote(~functools.reduce(operator.and_, ordinary), _EVERY_LANE, mode="any")
    with k.when(some, uniform=True):
        for x, factor in zip(split, factors, strict=True):
            _scale(k, x, factor, not_finite, lanes)
        with k.when(functools.reduce(operator.or_, [factor != 1.0 for factor in factors])):
            note_factors()
    k.bar_warp_sync(_EVERY_LANE)  # other lanes have read what is written now
    for iteration, (x, factor) in enumerate(zip(split, factors, strict=True)):
        pairs = [[of * ELEMENT_SCALE for of in x[n : n + 2]] for n in range(0, len(x), 2)]
        rows.store(iteration, [split_pair(k, pair) for pair in pairs])
        at = factor_at(iteration)
        with k.only_if(rows.chunk == 0):
            k.store(at, factor)


@marked("split tile: scale")
def _scale(
    k: KernelBuilder,
    x: Sequence[Var],
    factor: Var,
    not_finite: Callable[[], object] | None,
    lanes: Sequence[int],
) -> None:
    """Multiply a row by its power of two, if it needs one, and set `factor`, by which sums of its
    products are to be multiplied.
    """
    finite = [k.abs(of) < _INFINITY for of in x]
    sizes = [k.selp(k.abs(of), 0.0, known) for of, known in zip(x, finite, strict=True)]
    largest = over_lanes(k, _largest(k, sizes), lanes, k.max)
    scale, undone = power_of_two_scale(k, largest, _TOP)
    ordinary = _is_ordinary(largest)
    factor.set(k.selp(1.0, undone, ordinary))
    scale = k.selp(1.0, scale, ordinary)
    for of in x:
        k.mul(of, scale, into=of)
    if not_finite is None:
        return
    with k.when(~functools.reduce(operator.and_, finite)):
        not_finite()
    for of, known in zip(x, finite, strict=True):
        of.set(k.selp(of, 0.0, known))


def _largest(k: KernelBuilder, of: Sequence[Value], *, NaN: bool = False) -> Value:
    return functools.reduce(lambda a, b: k.max(a, b, NaN=NaN), of)


@dataclass(frozen=True)
class _Rows:
    """A thread's elements in one row of the tile, row `row`, and in every `at_once`-th from there on: chunk
    `chunk` of each of `panels`, the first one at `pointer`, or with `half` (u32, 0 or 1), of each of those of
    one half; `words` is the first of the words that its first two elements become. Of two lanes with the same
    chunk of two halves of a row, which lie in the same banks, one takes the other two elements of its chunk
    first; so no two of a warp's accesses meet in a bank.
    """

    k: KernelBuilder
    panels: tuple[Panel, ...]
    half: Value | None
    at_once: int
    row: Value
    chunk: Value
    pointer: TilePointer
    words: TilePointer

    @classmethod
    def of(cls, k: KernelBuilder, share: Share) -> _Rows:
        """The rows of a stage's tile that this thread splits."""
        # The word's chunk is one xor away: both lie in the same row.
        chunk, word = (share.chunk & 1) * _TILES, (share.chunk >> 1) * _WORD
        if share.half is not None:
            chunk = chunk + share.half * _PARTS
        words = share.pointer.moved((share.pointer.value ^ ((share.chunk ^ chunk) * CHUNK_BYTES)) + word)
        return cls(
            k, share.panels, share.half, share.rows_at_once, share.row, share.chunk, share.pointer, words
        )

    def down(self, rows: Value) -> _Rows:
        """The thread's rows moved down in the tile by `rows`, a multiple of eight."""
        nbytes = rows * PANEL_BYTES
        pointer, words = (of.moved(of.value + nbytes) for of in (self.pointer, self.words))
        return replace(self, row=self.row + rows, pointer=pointer, words=words)

    def elements(self, iteration: int) -> list[Value]:
        """A thread's elements in its row of an iteration, panel by panel."""
        result: list[Value] = []
        starts = [self.pointer]
        if self.half is not None:
            first = self.pointer.moved(self.pointer.value + self.half * _TWO)
            starts = [first, first.moved(first.value ^ _TWO)]
        for panel in self.panels:
            for start in starts:
                at = start.plus_bytes(panel.offset + iteration * self.at_once * PANEL_BYTES)
                result += self.k.load(Pointer(at.value, "shared", f32, at.offset), _WORDS // len(starts))
        return result

    def store(self, iteration: int, words: Sequence[tuple[Value, Value]]) -> None:
        """Write the parts of these elements. Two neighbouring elements are the columns 2t and 2t + 1
        of one tile; the other two of a chunk are those of the next tile.
        """
        per_panel = _WORDS // _PARTS
        for n, parts in enumerate(words):
            nth, second = divmod(n, per_panel)
            offset = self.panels[nth].offset + iteration * self.at_once * PANEL_BYTES
            for part, word in enumerate(parts):
                chunk = _PARTS * second + part
                pointer = self.words.moved(self.words.value ^ (chunk * CHUNK_BYTES)) if chunk else self.words
                at = pointer.plus_bytes(offset)
                self.k.store(Pointer(at.value, "shared", b32, at.offset), word)


def split_pair(k: KernelBuilder, x: Sequence[Value]) -> tuple[Value, Value]:
    """The high parts of two f32 as a word, the first in the lower half, and their low parts. The high
    part of infinity is finite.
    """
    high = k.cvt(x[1], x[0], rnd="rn", satfinite=True, dtype=f16x2).as_(b32)
    known = [k.cvt(half.as_(f16), dtype=f32) for half in k.unpack(high)]
    low = [whole - of for of, whole in zip(known, x, strict=True)]
    return high, k.cvt(low[1], low[0], rnd="rn", dtype=f16x2).as_(b32)


def power_of_two_scale(k: KernelBuilder, largest: Value, top: int) -> tuple[Value, Value]:
    """The power of two, at most 2**112, that makes `largest` at least 2**top and below 2**(top + 1), and its
    inverse.
    """
    least = _BIAS + top - _MOST << _MANTISSA_BITS
    exponent = k.max(largest.as_(u32) & _EXPONENT, least)
    scale = (2 * _BIAS + top << _MANTISSA_BITS) - exponent
    return scale.as_(f32), (exponent - (top << _MANTISSA_BITS)).as_(f32)


@marked("split tile: ordinary rows")
def _is_ordinary(largest: Value) -> Value:
    """Whether a row with this largest magnitude has the factor 1; a row with NaN has not."""
    return (largest == 0.0) | ((largest >= _LEAST) & (largest < _LIMIT))
