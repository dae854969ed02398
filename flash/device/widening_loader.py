"""Copies of rows of one-byte elements (fp8, int8) into tiles of f16 in shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Final

from flash.device.panel_loader import PanelLoader, Share, both
from flash.device.tiles import Matrix, copies_are_asynchronous
from flash.device.token_scales import ScaleCopies
from flash.operands.blocks import CHUNK, BlockType
from flash.operands.dtypes import DType
from ptxgen.dsl import KernelBuilder, Pointer, TilePointer, Value, Var, marked
from ptxgen.dsl.swizzle import Panel, SwizzledTile
from ptxgen.types import b16, u32, u64

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


class BlockLoader(WideningLoader):
    """Copies blocks of rows whose elements are in blocks with scales into tiles of f16. A thread reads the
    codes of its chunk of a row, and the scale of their block, in halves of a word: blocks begin at even
    addresses. Copies go through registers: a thread starts the loads of all its rows before it decodes the
    first.
    """

    chunk_bytes = CHUNK

    def __init__(self, k: KernelBuilder, matrix: Matrix, tile: SwizzledTile, stored: BlockType) -> None:
        super().__init__(k, matrix, tile, stored)
        self.blocks = stored
        self._shift: Value | None = None  # of the codes of the thread's chunks, all of which have the same

    @property
    def is_asynchronous(self) -> bool:
        """Whether copies are asynchronous: they are not, rows go through registers."""
        return False

    @property
    def prefetches(self) -> bool:
        """Whether copies wait in registers: they do not, targets that need it have no such kernel."""
        return False

    def start(self, first_row: Value, *, stage: Value | None = None, ragged: bool = True) -> None:
        """Copy the rows from `first_row` on into the stage at byte `stage` of the tile. Each row is
        checked to be in the matrix, so that `ragged` does not matter.
        """
        del ragged
        for share in self.shares(stage):
            for (first, panel), words in self._loaded(share, first_row).items():
                with self._rows_of(share, first):
                    self.k.store(share.at(panel, first), self._stored(words))

    def _first_byte(self, share: Share) -> Value:
        return self.k.cvt(self.blocks.first_byte(self._chunk(share)), dtype=u64)

    def _chunk(self, share: Share) -> Value:
        return share.first_chunk + share.panels[0].first

    def _stored(self, words: Sequence[Value]) -> list[Value]:
        *codes, scale = words
        return self.blocks.decoded(self.k, codes, scale, self._shift)

    @marked("block loader: loads")
    def _loaded(self, share: Share, first_row: Value) -> dict[tuple[int, Panel], list[Var]]:
        """The halves of words with the codes, and the scale, that a thread has loaded, by row of the tile and
        panel.
        """
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
    """The loader of rows of a narrow type into a tile of f16; it also loads `scales` of single rows."""
    if isinstance(stored, BlockType):
        return BlockLoader(k, matrix, tile, stored)
    return WideningLoader(k, matrix, tile, stored, scales)
