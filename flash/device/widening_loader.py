"""Copies of rows of one-byte elements (e4m3) into tiles of 16-bit elements."""

from __future__ import annotations

import functools
from typing import Final

from flash.device.panel_loader import PanelLoader, Share, both
from ptxgen.dsl import Pointer, Value, Var, marked
from ptxgen.dsl.swizzle import Panel
from ptxgen.types import b16, bf16x2, f16, f32, u16, u32

_WORD: Final = u32.nbytes
_WORDS: Final = 2  # words of the matrix that become the four of a chunk


class WideningLoader(PanelLoader):
    """Copies blocks of rows of e4m3 into a tile of f16 or bf16, which hold all values of e4m3.

    Copies go through registers: a thread starts the loads of all its rows before it widens the
    first. What lies beyond the matrix becomes zero and is not read.
    """

    chunk_bytes = _WORDS * _WORD

    @property
    def is_asynchronous(self) -> bool:
        """False: copies go through registers."""
        return False

    def start(self, first_row: Value, *, stage: Value | None = None, ragged: bool = True) -> None:
        """Copy the rows from `first_row` on into the stage at byte `stage` of the tile. Each row is
        checked to be in the matrix, so that `ragged` does not matter.
        """
        del ragged
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
        lanes = share.panels[0].chunks
        find = self.matrix.further(k, row, share.rows_at_once, self.tile.rows, share.chunk, lanes)
        rows_left = self.matrix.rows - row
        found = {}
        for first in range(0, self.tile.rows, share.rows_at_once):
            source = self._source(share, functools.partial(find, first))
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
        """Four e4m3 in a word as two words of 16-bit elements."""
        k = self.k
        pairs = [k.cvt(half, dtype=u16) for half in (word, word >> 16)]
        halves = [k.cvt_widen(pair.as_(b16)).as_(u32) for pair in pairs]
        if self.tile.dtype is f16:
            return halves
        return [self._as_bf16(half) for half in halves]

    def _as_bf16(self, pair: Value) -> Value:
        """Two f16 of a word as bf16, exactly: e4m3 has four significant bits."""
        k = self.k
        low, high = (k.cvt(k.cvt(half, dtype=u16).as_(f16), dtype=f32) for half in (pair, pair >> 16))
        return k.cvt(high, low, rnd="rn", dtype=bf16x2).as_(u32)
