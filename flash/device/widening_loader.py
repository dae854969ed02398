"""Copies of rows of one-byte elements into tiles of f16."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Final

from flash.device.panel_loader import PanelLoader, Share, both
from flash.device.tiles import Matrix, copies_are_asynchronous
from flash.device.token_scales import ScaleCopies
from flash.operands.dtypes import DType
from ptxgen.dsl import KernelBuilder, Pointer, TilePointer, Value, marked
from ptxgen.dsl.swizzle import SwizzledTile
from ptxgen.types import b16, u32

_WORD: Final = u32.nbytes
_WORDS: Final = 2  # words of the matrix that become the four of a chunk


class WideningLoader(PanelLoader):
    """Copies blocks of rows of a narrow type, `stored`, into a tile of f16.

    A thread copies the 8 bytes of a chunk asynchronously to the first half of the chunk of the tile that they
    become; `land` widens them there, once they have arrived: so a tile on its way takes neither registers nor
    other shared memory. On targets without asynchronous copies it waits in registers (`PanelLoader`). What
    lies beyond the matrix becomes zero and is not read. With `scales`, one for each row, these are copied
    with the rows.
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
        """See `PanelLoader`: copies are of whole chunks."""
        return copies_are_asynchronous(self.k)

    @property
    def prefetches(self) -> bool:
        """See `PanelLoader`."""
        return not self.is_asynchronous

    def start(self, first_row: Value, *, stage: Value | None = None, ragged: bool = True) -> None:
        """See `PanelLoader`."""
        if self.scales is not None:
            self.scales.start(first_row, stage)
        super().start(first_row, stage=stage, ragged=ragged)

    @marked("widening loader: widening")
    def land(self, stage: Value | None = None) -> None:
        """Widen what has arrived in the stage at byte `stage` of the tile. The CTA sees it after a subsequent
        barrier.
        """
        super().land(stage)
        for chunks in self._rounds(stage) if self.is_asynchronous else ():
            arrived = [self.k.load(at, _WORDS) for at in chunks]
            for at, words in zip(chunks, arrived, strict=True):
                self.k.store(at, self._stored(words))
        if self.scales is not None:
            self.scales.land(stage)

    def _rounds(self, stage: Value | None) -> Iterator[list[Pointer]]:
        """The chunks of this thread, in groups: those that all threads have, and those that some do."""
        for share in self.shares(stage):
            whole = self.tile.rows // share.rows_at_once * share.rows_at_once
            for begin, end in ((0, whole), (whole, self.tile.rows)):
                rows = range(begin, end, share.rows_at_once)
                with self._rows_of(share, begin) if rows else nullcontext():
                    yield [share.at(panel, first) for first in rows for panel in share.panels]

    def _stored(self, words: Sequence[Value]) -> list[Value]:
        return [pair for word in words for pair in self.stored.widened(self.k, word)]

    def _copy_row(
        self, share: Share, pointer: TilePointer, source: Value, row: int, present: Value | None
    ) -> None:
        for panel in share.panels:
            column_bytes = (panel.first - share.panels[0].first) * self.chunk_bytes
            self._copy(
                pointer.plus_bytes(panel.offset + row * panel.row_bytes),
                Pointer(source, "global", b16, column_bytes),
                both(present, self._in_columns(share, panel, 0)),
                self.chunk_bytes,
            )
