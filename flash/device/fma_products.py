"""The two matrix products of a CTA of f32, S = Q Kᵀ and O += P V, by fused multiply-adds, each rounded
once: without tensor cores, but with their division among lanes, so that the same kernels use either.

Lane `l` has index `t = l % 4` in its group `g = l / 4`. Of each 16 x 8 tile of S or O it has rows g
and g + 8, columns 2t and 2t + 1, as of `mma.m16n8k16` (`flash/device/mma_products.py`). A weight of P
is handed to the lanes of the quad that have other columns of O.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from flash.device.mma_products import Tiles, WarpPlace, fragment_rows
from flash.problem.mma_tiling import MMA_KEYS, MmaTiling
from ptxgen.dsl import Fragment, KernelBuilder, Pointer, TilePointer, Value, Var, marked
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, of_quad
from ptxgen.dsl.swizzle import CHUNK_BYTES, SWIZZLE_ROWS, BlockReader, SwizzledTile
from ptxgen.types import f32, u32

_READ: Final = CHUNK_BYTES // f32.nbytes  # columns of a chunk
_CHUNKS: Final = 8  # of a row of a panel
_BLOCKS: Final = _CHUNKS // 2  # blocks of two chunks of a panel


class FmaProducts:
    """The products of f32 elements; see `flash.device.mma_products.WarpProducts`."""

    @marked("fma products: operands of a lane")
    def __init__(self, k: KernelBuilder, t: MmaTiling, me: WarpPlace, tiles: Tiles) -> None:
        self.k = k
        self.t = t
        self.me = me
        self._tiles = tiles
        Q_tile, K_tile, V_tile = tiles
        halves = [k.mov(n, type=u32) for n in range(2)]  # the chunks of a block
        self._q = [BlockReader(Q_tile, me.first_row(t), half) for half in halves]
        self._k = [
            [BlockReader(K_tile, me.in_quad * 2 + column, half) for half in halves]
            for column in range(LANE_COLUMNS)
        ]
        # The lane's two columns of V in rows of even phase, and in those of odd phase.
        zero, chunk = k.mov(0, type=u32), me.in_quad // 2
        within = me.in_quad % 2 * (LANE_COLUMNS * f32.nbytes)
        self._v = []
        for phase in range(2):
            at = V_tile.chunk_pointer(_CHUNKS, zero, chunk ^ phase if phase else chunk)
            self._v.append(at.moved(at.value + within))

    def scores(self, S: Fragment, stage: Value | None) -> None:
        """S = Q Kᵀ for this warp's rows and the keys of a stage."""
        k = self.k
        S.fill(0.0)
        panels = self._tiles[0].columns // (_CHUNKS * _READ)
        if panels == 1:
            self._panel(S, None, stage)
            return
        with k.loop(0, panels) as n:
            of_q, of_k = (n.as_(u32) * tile.panels[1].offset for tile in self._tiles[:2])
            self._panel(S, of_q, of_k if stage is None else of_k + stage)

    def _panel(self, S: Fragment, of_q: Value | None, of_k: Value | None) -> None:
        """Add the products of the columns of a panel, which begins at these bytes of the tiles."""
        for half in range(2):
            query = self._q[half].stage(of_q)
            keys = [column[half].stage(of_k) for column in self._k]
            for block in range(_BLOCKS):
                rows = [self._four(query(block, down)) for down in fragment_rows(self.t)]
                for n in range(self.t.tile // MMA_KEYS):
                    for c, key in enumerate(keys):
                        of_key = self._four(key(block, MMA_KEYS * n))
                        for i, row in enumerate(rows):
                            score = S[i, LANE_COLUMNS * n + c]
                            for a, b in zip(row, of_key, strict=True):
                                self.k.fma(a, b, score, into=score)

    def _four(self, at: TilePointer) -> tuple[Value, ...]:
        found = self.k.load(at, _READ)
        assert isinstance(found, tuple)
        return found

    def weights(self, P: Fragment) -> Fragment:
        """P, which is f32."""
        return P

    def outputs(self, O: Fragment, P: Any, stage: Value | None) -> None:
        """O += P V for this warp's rows and the keys of a stage."""
        k = self.k
        V_tile = self._tiles[2]
        first = [at if stage is None else at.moved(at.value + stage) for at in self._v]
        for key in range(self.t.tile):
            nth, within = divmod(key, MMA_KEYS)
            lane, column = divmod(within, LANE_COLUMNS)
            weights = [of_quad(k, row[LANE_COLUMNS * nth + column], lane) for row in P]
            for n in range(self.t.output_columns // MMA_KEYS):
                at = self._value(V_tile, first, key, n)
                pair = k.load(Pointer(at.value, "shared", f32, at.offset), LANE_COLUMNS)
                assert isinstance(pair, tuple)
                for i, weight in enumerate(weights):
                    for c, value in enumerate(pair):
                        output = O[i, LANE_COLUMNS * n + c]
                        k.fma(weight, value, output, into=output)

    def _value(self, V_tile: SwizzledTile, first: list[TilePointer], key: int, n: int) -> TilePointer:
        """The address of the lane's columns of the n-th 16 x 8 tile in row `key` of V."""
        phase, chunk = key % SWIZZLE_ROWS, 2 * n
        panel = V_tile.panel_of(chunk)
        place = (chunk - panel.first) ^ (phase & ~1)
        return first[phase % 2].plus_bytes(panel.offset + key * panel.row_bytes + place * CHUNK_BYTES)

    def output_place(self) -> tuple[Value, Value]:
        """See `WarpProducts`."""
        return self.me.in_quad // 2, self.me.in_quad % 2 * (LANE_COLUMNS * f32.nbytes)

    def output_words(self, row: list[Var], first: int, columns: int) -> Iterator[tuple[int, list[Value]]]:
        """See `WarpProducts`."""
        for n in range(columns // MMA_KEYS):
            begin = (first // MMA_KEYS + n) * LANE_COLUMNS
            yield 2 * n, [value.as_(u32) for value in row[begin : begin + LANE_COLUMNS]]
