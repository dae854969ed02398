"""Copies of rows of one-byte elements into tiles of f16."""

from __future__ import annotations

from typing import Final

from flash.device.panel_loader import PanelLoader, Share, both
from flash.device.tiles import Matrix
from flash.device.token_scales import ScaleCopies
from flash.operands.dtypes import E4M3, E5M2, DType
from ptxgen.dsl import KernelBuilder, Pointer, Value, Var, marked
from ptxgen.dsl.swizzle import Panel, SwizzledTile
from ptxgen.types import b32, u32

_WORD: Final = u32.nbytes
_WORDS: Final = 2  # words of the matrix that become the four of a chunk
# Selectors of `prmt`: bytes 0 and 1 of a word, or 2 and 3, each above a byte of 0, which is byte 4.
_UPPER_BYTES: Final = (0x1404, 0x3424)


def widening_loader(dtype: DType) -> type[WideningLoader]:
    """The class that copies rows of a narrow type."""
    return {E4M3: WideningLoader, E5M2: UpperByteLoader}[dtype]


class WideningLoader(PanelLoader):
    """Copies blocks of rows of e4m3 into a tile of f16, which holds all values of e4m3 and e5m2.

    Copies go through registers: a thread starts the loads of all its rows before it widens the
    first. What lies beyond the matrix becomes zero and is not read. With `scales`, one for each row, these
    are copied with the rows.
    """

    chunk_bytes = _WORDS * _WORD

    def __init__(
        self, k: KernelBuilder, matrix: Matrix, tile: SwizzledTile, scales: ScaleCopies | None = None
    ) -> None:
        super().__init__(k, matrix, tile)
        self.scales = scales

    @property
    def is_asynchronous(self) -> bool:
        """Whether copies are asynchronous: those of scales. Rows go through registers."""
        return self.scales is not None

    def start(self, first_row: Value, *, stage: Value | None = None, ragged: bool = True) -> None:
        """Copy the rows from `first_row` on into the stage at byte `stage` of the tile. Each row is
        checked to be in the matrix, so that `ragged` does not matter.
        """
        del ragged
        if self.scales is not None:
            self.scales.start(first_row, stage)
        for share in self.shares(stage):
            loaded = self._loaded(share, first_row)
            for (first, panel), words in loaded.items():
                with self._rows_of(share, first):
                    at = share.place.plus_bytes(panel.offset + first * panel.row_bytes)
                    wide = [pair for word in words for pair in self._widened(word)]
                    self.k.store(Pointer(at.value, "shared", u32, at.offset), wide)

    @marked("widening loader: loads")
    def _loaded(self, share: Share, first_row: Value) -> dict[tuple[int, Panel], list[Var]]:
        """The words that a thread has loaded, by row of the tile and panel."""
        k, row = self.k, first_row + self.k.signed(share.row)
        sources = self._sources(share, row)
        rows_left = self.matrix.rows - row
        found = {}
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
                found[first, panel] = words
        return found

    def _widened(self, word: Value) -> list[Value]:
        """Four e4m3 in a word as two words of f16."""
        k = self.k
        return [k.cvt_widen(pair).as_(u32) for pair in k.unpack(word.as_(b32))]


class UpperByteLoader(WideningLoader):
    """Copies blocks of rows of e5m2, which are the upper bytes of f16: a byte permutation widens two, on
    every target, as one conversion of the targets that have it would.
    """

    def _widened(self, word: Value) -> list[Value]:
        """Four e5m2 in a word as two words of f16."""
        k = self.k
        return [k.prmt(word.as_(b32), 0, selector).as_(u32) for selector in _UPPER_BYTES]
