"""Copies of rows of one-byte elements into tiles of f16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flash.device.panel_loader import PanelLoader, Share, both
from flash.device.tiles import Matrix, copies_are_asynchronous
from flash.device.token_scales import ScaleCopies
from flash.operands.blocks import CHUNK, BlockType
from flash.operands.dtypes import DType
from ptxgen.dsl import KernelBuilder, Pointer, Value, Var, marked
from ptxgen.dsl.swizzle import Panel, SwizzledTile
from ptxgen.types import b16, u32, u64

_WORD: Final = u32.nbytes
_WORDS: Final = 2  # words of the matrix that become the four of a chunk


class WideningLoader(PanelLoader):
    """Copies blocks of rows of a narrow type, `stored`, into a tile of f16.

    Copies go through registers: a thread starts the loads of all its rows before it widens the
    first, in `start` or, if the loader `prefetches`, in `land`. What lies beyond the matrix becomes zero and
    is not read. With `scales`, one for each row, these are copied with the rows.
    """

    chunk_bytes = _WORDS * _WORD

    def __init__(
        self,
        k: KernelBuilder,
        matrix: Matrix,
        tile: SwizzledTile,
        stored: DType,
        scales: ScaleCopies | None = None,
    ) -> None:
        super().__init__(k, matrix, tile)
        self.stored = stored
        self.scales = scales

    @property
    def is_asynchronous(self) -> bool:
        """Whether copies are asynchronous: those of scales. Rows go through registers."""
        return self.scales is not None and not self.prefetches

    @property
    def prefetches(self) -> bool:
        """See `PanelLoader`."""
        return not copies_are_asynchronous(self.k)

    def start(self, first_row: Value, *, stage: Value | None = None, ragged: bool = True) -> None:
        """Copy the rows from `first_row` on into the stage at byte `stage` of the tile. Each row is
        checked to be in the matrix, so that `ragged` does not matter.
        """
        del ragged
        if self.scales is not None:
            self.scales.start(first_row, stage)
        if self.prefetches:
            super().start(first_row, stage=stage)
            return
        for share in self.shares(stage):
            for (first, panel), words in self._loaded(share, first_row).items():
                with self._rows_of(share, first):
                    at = share.pointer.plus_bytes(panel.offset + first * panel.row_bytes)
                    self.k.store(Pointer(at.value, "shared", u32, at.offset), self._stored(words))

    def land(self, stage: Value | None = None) -> None:
        """See `PanelLoader`."""
        super().land(stage)
        if self.scales is not None:
            self.scales.land(stage)

    def _stored(self, words: Sequence[Value]) -> list[Value]:
        return [pair for word in words for pair in self.stored.widened(self.k, word)]

    @marked("widening loader: loads")
    def _loaded(self, share: Share, first_row: Value) -> dict[tuple[int, Panel], list[Var]]:
        """The words that a thread has loaded, by row of the tile and panel."""
        k, row = self.k, first_row + self.k.signed(share.row)
        sources = self._sources(share, row)
        rows_left = self.matrix.rows - row
        loaded = {}
        for first, source in sources:
            present: Value | None = rows_left > first
            if first + share.rows_at_once > self.tile.rows:
                present = both(present, k.signed(share.row) < self.tile.rows - first)
            for panel in share.panels:
                words = [k.var(u32, 0) for _ in range(_WORDS)]
                there = both(present, self._in_columns(share, panel, 0))
                assert there is not None  # rows may lie beyond the matrix
                offset = (panel.first - share.panels[0].first) * self.chunk_bytes
                with k.when(there):
                    read = k.load(Pointer(source, "global", u32, offset), _WORDS)
                    for word, bits in zip(words, read, strict=True):
                        word.set(bits)
                loaded[first, panel] = words
        return loaded


class BlockLoader(WideningLoader):
    """Copies blocks of rows whose elements are in blocks with scales into tiles of f16. A thread reads the
    codes of its chunk of a row, and the scale of their block, in halves of a word: blocks begin at even
    addresses.
    """

    chunk_bytes = CHUNK

    def __init__(self, k: KernelBuilder, matrix: Matrix, tile: SwizzledTile, stored: BlockType) -> None:
        super().__init__(k, matrix, tile, stored)
        self.blocks = stored
        self._shift: Value | None = None  # of the codes of the thread's chunks, all of which have the same

    def _first_byte(self, share: Share) -> Value:
        return self.k.cvt(self.blocks.first_byte(self._chunk(share)), dtype=u64)

    def _chunk(self, share: Share) -> Value:
        return share.first_chunk + share.panels[0].first

    def _stored(self, words: Sequence[Value]) -> list[Value]:
        *codes, scale = words
        return self.blocks.decoded(self.k, codes, scale, self._shift)

    @marked("widening loader: loads")
    def _loaded(self, share: Share, first_row: Value) -> dict[tuple[int, Panel], list[Var]]:
        """See `WideningLoader`: the halves of words with the codes, and the scale."""
        k, row, blocks = self.k, first_row + self.k.signed(share.row), self.blocks
        chunk = self._chunk(share)
        self._shift, below = blocks.shift(chunk), k.cvt(blocks.below_scale(chunk), dtype=u64)
        rows_left, loaded = self.matrix.rows - row, {}
        for first, source in self._sources(share, row):
            present: Value | None = rows_left > first
            if first + share.rows_at_once > self.tile.rows:
                present = both(present, k.signed(share.row) < self.tile.rows - first)
            scale_at = source - below
            for panel in share.panels:
                there = both(present, self._in_columns(share, panel, 0))
                assert there is not None  # rows may lie beyond the matrix
                # Panels begin with blocks.
                offset = blocks.in_row((panel.first - share.panels[0].first) * CHUNK)
                at = [(source, offset + n) for n in range(0, CHUNK, b16.nbytes)]
                halves = [k.var(b16, 0) for _ in range(len(at) + 1)]
                with k.only_if(there):
                    for half, (base, down) in zip(halves, [*at, (scale_at, offset)], strict=True):
                        k.load(Pointer(base, "global", b16, down), into=half)
                loaded[first, panel] = halves
        return loaded


def widening_loader(
    k: KernelBuilder, matrix: Matrix, tile: SwizzledTile, stored: DType, scales: ScaleCopies | None
) -> WideningLoader:
    """The loader of rows of a narrow type into a tile of f16; with `scales` of single rows, these too."""
    if isinstance(stored, BlockType):
        return BlockLoader(k, matrix, tile, stored)
    return WideningLoader(k, matrix, tile, stored, scales)
