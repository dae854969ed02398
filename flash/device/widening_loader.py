"""Copies of rows of one-byte elements into tiles of f16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flash.device.panel_loader import PanelLoader, Share, both
from flash.device.tiles import Matrix, copies_are_asynchronous
from flash.device.token_scales import ScaleCopies
from flash.operands.dtypes import DType
from ptxgen.dsl import KernelBuilder, Pointer, Value, Var, marked
from ptxgen.dsl.swizzle import Panel, SwizzledTile
from ptxgen.types import u32

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
            loaded = self._loaded(share, first_row)
            for (first, panel), words in loaded.items():
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
