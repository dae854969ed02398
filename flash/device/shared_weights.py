"""What passes from warp to warp through shared memory where several warps own the same rows: weights, as
the 16-bit pairs of operands A, and sums.

Each of these warps computes the scores of a part of a tile, and needs those of all parts for the columns
that it makes. A tile in shared memory has the CTA's rows, one after another.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator

from flash.device.mma_products import WarpCoordinates, Weights, fragment_rows
from flash.families.mma import MMA_KEYS, MMA_ROWS, MmaTiling
from flash.problem.gradients import GradientConfig
from ptxgen.dsl import KernelBuilder, Pointer, Value, marked
from ptxgen.dsl.swizzle import BLOCK_CHUNKS, CHUNK_BYTES, BlockReader, Panel, SwizzledTile
from ptxgen.types import f32, u32

Steps = Iterator[list[tuple[Value, ...]]]  # of operands A: 16 columns of each 16 rows of a warp


class WeightsWriter:
    """Writes a warp's operands A into its rows of a tile of one panel, `first_chunk` (u32; None: 0)
    chunks of 16 bytes after the first column: a multiple of the chunks that the warp writes.
    """

    def __init__(
        self,
        k: KernelBuilder,
        tile: SwizzledTile,
        t: MmaTiling,
        me: WarpCoordinates,
        first_chunk: Value | None = None,
    ) -> None:
        self.k, self._panel = k, only_panel(tile)
        row, in_quad = me.first_row(t), me.in_quad
        chunk = in_quad * 0 if first_chunk is None else first_chunk
        to = tile.chunk_pointer(self._panel.chunks, row, chunk)
        self._to = to.moved(to.value + in_quad * u32.nbytes)

    def write(self, P: Weights) -> None:
        """Write softmax weights to shared memory, in the form that `WarpProducts.weights` returns."""
        for j, row_tiles in enumerate(P):
            for half in range(BLOCK_CHUNKS):
                chunk = BLOCK_CHUNKS * j + half
                at = self._to.moved(self._to.value ^ (chunk * CHUNK_BYTES))
                for m, pairs in enumerate(row_tiles):
                    for n, down in enumerate((0, MMA_ROWS // 2)):
                        to = at.plus_bytes((MMA_ROWS * m + down) * self._panel.row_bytes)
                        word = pairs[2 * half + n].as_(u32)
                        self.k.store(Pointer(to.value, "shared", u32, to.offset), word)


class SharedWeights:
    """P and dS of the rows of a CTA and of a tile of other rows. Several warps have the same rows, and each
    of them part `part` (u32) of the tile's columns; `me` are the coordinates of this one among the warps with
    different rows.
    """

    def __init__(self, k: KernelBuilder, config: GradientConfig, me: WarpCoordinates, part: Value) -> None:
        self.k, self._me, self.part = k, me, part
        self._columns, self._t = config.mma.tile, config.mma.of_scores
        shape = config.mma.block, self._columns
        tiles = [k.swizzled(f"{name}_tile", shape, config.dtype.scalar) for name in ("P", "dS")]
        self._parts = None
        if config.terms:
            self._parts = k.shared("parts_of_terms", (config.mma.across, config.mma.block), f32)
        first_chunk = part * (self._t.tile // MMA_KEYS)
        self._writers = [WeightsWriter(k, tile, self._t, me, first_chunk) for tile in tiles]
        of_eight, octet = me.lane % 8, me.lane // 8
        lower, right = octet % 2, octet // 2  # as of rows of Q (`mma_products.operand_readers`)
        row = me.warp_row(self._t) + (of_eight + lower * 8)
        self._readers = [BlockReader(tile, row, right) for tile in tiles]

    @property
    def first_column(self) -> Value:
        """The index in a tile of the first column that this warp has, u32."""
        return self.part * self._t.tile

    def keep(self, P: Weights, dS: Weights) -> None:
        """Write this warp's weights, as `WarpProducts.weights` gives them. All warps have read the previous
        ones.
        """
        for writer, weights in zip(self._writers, (P, dS), strict=True):
            writer.write(weights)

    def taken(self) -> tuple[Steps, Steps]:
        """P and dS of this warp's rows and of all columns, which all warps have written, as
        `WarpProducts.outputs` takes them. Each step is read where it is used, which takes fewer registers.
        """
        P, dS = (self._taken(reader) for reader in self._readers)
        return P, dS

    def _taken(self, reader: BlockReader) -> Steps:
        block = reader.stage()
        for j in range(self._columns // self._t.operands.depth):
            yield [
                self.k.ldmatrix(block(j, MMA_ROWS * m), num="x4", trans=False)
                for m in range(self._t.row_tiles)
            ]

    @marked("shared weights: sums over warps")
    def over_warps(self, totals: Iterable[Value]) -> Iterator[Value]:
        """The sums of f32 numbers, one for each row of a lane and the same in its quad, over the warps with
        the same rows, in their order.
        """
        k, me, parts = self.k, self._me, self._parts
        assert parts is not None  # the kernel has terms
        row, rows = me.first_row(self._t), fragment_rows(self._t)
        self._await_readers()
        for down, total in zip(rows, totals, strict=True):
            with k.when(me.in_quad == 0):
                k.store(parts.pointer(self.part, row).step(columns=down), total)
        k.barrier()  # all parts have been written
        for down in rows:
            of_warps = [k.load(parts.pointer(n, row).step(columns=down)) for n in range(parts.rows)]
            yield functools.reduce(operator.add, of_warps)

    @marked("shared weights: sums before")
    def _await_readers(self) -> None:
        """Wait until the other warps have read their shares of the previous sums in shared memory."""
        self.k.barrier()


def only_panel(tile: SwizzledTile) -> Panel:
    """The panel of a tile whose rows have at most 128 bytes."""
    (panel,) = tile.panels
    return panel
