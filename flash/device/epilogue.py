"""How a warp writes its rows of O: rounded to 16 bits or as f32, first into the warp's own rows of
the Q tile, then in 16-byte pieces to global memory, neighbouring lanes to neighbouring addresses.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

from flash.device.mma_products import WarpCoordinates, WarpProducts, fragment_rows
from flash.device.stored_sums import LaneColumns, store_sums
from flash.device.tiles import Matrix
from flash.families.mma import MMA_ROWS, MmaTiling
from ptxgen.dsl import Fragment, KernelBuilder, Pointer, TilePointer, Value, marked
from ptxgen.dsl.swizzle import CHUNK_BYTES, Panel, SwizzledTile
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE
from ptxgen.types import u16, u32, u64

_EVERY_LANE: Final = -1
_WORD: Final = u32.nbytes


@dataclass(frozen=True)
class Epilogue:
    """Stores one warp's rows of O; `staging` is the Q tile, whose rows of this warp are free."""

    k: KernelBuilder
    t: MmaTiling
    me: WarpCoordinates
    staging: SwizzledTile
    products: WarpProducts
    out: Matrix
    first_row: Value  # first row of the CTA, in the matrix

    def store(self, O: Fragment) -> None:
        """Write this warp's rows of O to global memory, as many columns at a time as the Q tile has."""
        k = self.k
        for first in range(0, self.t.output_columns, self.staging.columns):
            if first:  # for the first columns, a barrier lies after the last read of Q
                k.bar_warp_sync(_EVERY_LANE)
            columns = min(self.staging.columns, self.t.output_columns - first)
            self._stage(O, first, columns)
            k.bar_warp_sync(_EVERY_LANE)
            for panel in self.staging.panels:
                if panel.first * self._chunk < columns:
                    self._send(panel, first, columns // self._chunk - panel.first)

    @property
    def _chunk(self) -> int:
        """The number of elements of O in a chunk of 16 bytes."""
        return self.staging.chunk

    @marked("epilogue: staging")
    def _stage(self, O: Fragment, first: int, columns: int) -> None:
        """Round columns first … first + columns - 1 of O and write them into the staging tile."""
        k, t = self.k, self.t
        row = self.me.first_row(t)
        my_chunk, within = self.products.output_address()
        starts: dict[int, TilePointer] = {}
        pointers: dict[int, TilePointer] = {}
        for i, down in enumerate(fragment_rows(t)):
            for chunk, words in self.products.output_words(O.row(i), first, columns):
                panel = self.staging.panel_of(chunk)
                if panel.chunks not in starts:
                    at = self.staging.chunk_pointer(panel.chunks, row, my_chunk)
                    starts[panel.chunks] = at.moved(at.value + within)
                if chunk not in pointers:
                    start = starts[panel.chunks]
                    pointers[chunk] = start.moved(start.value ^ ((chunk - panel.first) * CHUNK_BYTES))
                at = pointers[chunk].plus_bytes(panel.offset + down * panel.row_bytes)
                k.store(Pointer(at.value, "shared", u32, at.offset), words)

    @marked("epilogue: panel")
    def _send(self, panel: Panel, first: int, staged: int) -> None:
        """Write the rows of a panel to global memory. The staging tile holds the columns from
        `first` on; only the first `staged` chunks of the panel (all, if it has fewer) were staged.
        """
        k, lane = self.k, self.me.lane
        rows_at_once = WARP_SIZE // panel.chunks
        chunk, down = lane % panel.chunks, lane // panel.chunks
        # Lanes beyond the staged chunks read the last one again, and write nothing.
        readable = chunk if staged >= panel.chunks else k.min(chunk, staged - 1)
        first_row = self.me.warp_row(self.t)
        column = first + panel.first * self._chunk
        left = self.t.slices.width - column  # columns from the panel's first on
        to_column = self.out.first + k.cvt(
            chunk * CHUNK_BYTES + column * self.staging.dtype.nbytes, dtype=u64
        )
        for step in range(0, MMA_ROWS * self.t.row_tiles, rows_at_once):
            row = first_row + down + step
            at = self.staging.chunk_pointer(panel.chunks, row, readable).plus_bytes(panel.offset)
            words = k.load(Pointer(at.value, "shared", u32, at.offset), 4)
            in_matrix = self.first_row + k.signed(row)
            to = to_column + self.out.offset(k, in_matrix)
            present = in_matrix < self.out.rows
            if left < panel.chunks * self._chunk:
                present = present & (k.signed(chunk) * self._chunk < left)
            with k.when(present):
                self._send_chunk(to, words, k.signed(chunk) * self._chunk, column, panel)

    @marked("epilogue: chunk")
    def _send_chunk(
        self, to: Value, words: tuple[Value, ...], column: Value, first: int, panel: Panel
    ) -> None:
        """Write the columns of a chunk that are in the matrix, in pieces as wide as the matrix
        allows. `column` is the first of the chunk, counted from `first`, the first column of the
        panel.
        """
        k, width, slices = self.k, self.out.width, self.t.slices
        left = slices.width - first
        ragged = left % self._chunk and left < panel.chunks * self._chunk
        begin = self.out.written_from if first < slices.shared else None
        for piece in range(0, self._chunk, width):
            wanted = None
            if piece and ragged:
                wanted = column < left - piece
            elif begin is not None:  # a slice, which has no ragged chunk
                wanted = column + (first + piece) >= begin
            with nullcontext() if wanted is None else k.when(wanted):
                self._send_piece(to, words, piece)

    def _send_piece(self, to: Value, words: tuple[Value, ...], piece: int) -> None:
        k, width = self.k, self.out.width
        per_word = _WORD // self.staging.dtype.nbytes
        first, half = divmod(piece, per_word)
        if width >= per_word:
            at = Pointer(to, "global", u32, first * _WORD)
            k.store(at, list(words[first : first + width // per_word]))
            return
        word = words[first] >> 16 if half else words[first]
        k.store(Pointer(to, "global", u16, piece * 2), k.cvt(word, dtype=u16))


def store_outputs(
    k: KernelBuilder,
    t: MmaTiling,
    me: WarpCoordinates,
    products: WarpProducts,
    staging: SwizzledTile | None,
    where: tuple[Matrix, Value],
    O: Fragment,
) -> None:
    """Write O to a matrix, from the CTA's first row on (`where` gives both): through `staging`, or,
    where that is None, directly as f32 sums.
    """
    if staging is None:
        out, of_cta = where
        destination = out, lambda: of_cta + k.signed(me.first_row(t))
        columns = LaneColumns.of_tiles(k.signed(me.in_quad) * 2, t.output_columns)
        store_sums(k, destination, fragment_rows(t), columns, t.slices, O)
    else:
        Epilogue(k, t, me, staging, products, *where).store(O)
