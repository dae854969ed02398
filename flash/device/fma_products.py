"""The two matrix products of a CTA of f32, S = Q Kᵀ and O += P V, by fused multiply-adds, each rounded
once: without tensor cores, but with their division among lanes, so that the same kernels use either.

Four terms at a time are summed by fused multiply-adds, and then added: the error of one chain over all
terms would be twice as large in S, and more in O, a sum over all keys of all heads.

Lane `l` has index `t = l % 4` in its group `g = l / 4`. Of each 16 x 8 tile of S it has rows g and
g + 8, columns 2t and 2t + 1, as of `mma.m16n8k16` (`flash/device/mma_products.py`). Of O it has the
same rows, and of each 16 columns the chunk from 4t to 4t + 3. A weight of P is handed to the lanes
of the quad that have other columns of O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from flash.device.mma_products import Tiles, WarpCoordinates, apart, fragment_rows
from flash.families.mma import MMA_KEYS, MmaTiling
from flash.families.precision import PANEL_BYTES
from ptxgen.dsl import Fragment, KernelBuilder, TilePointer, Value, Var
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, QUAD_LANES, of_quad
from ptxgen.dsl.swizzle import BLOCK_CHUNKS, CHUNK_BYTES, SWIZZLE_ROWS, BlockReader
from ptxgen.types import f32, u32

_READ: Final = CHUNK_BYTES // f32.nbytes  # columns of a chunk
_CHUNKS: Final = PANEL_BYTES // CHUNK_BYTES  # of a row of a panel
_BLOCKS: Final = _CHUNKS // BLOCK_CHUNKS  # of a panel, see `BlockReader`
_SUMMED: Final = 4  # keys whose terms of O are summed first; registers hold their weights


class FmaProducts:
    """The products of f32 elements; see `flash.device.mma_products.WarpProducts`."""

    def __init__(self, k: KernelBuilder, t: MmaTiling, me: WarpCoordinates, tiles: Tiles) -> None:
        self.k = k
        self.t = t
        self.me = me
        self._tiles = tiles
        Q_tile, K_tile, V_tile = tiles
        chunks = [k.mov(n, type=u32) for n in range(BLOCK_CHUNKS)]  # those of a block
        self._q = [BlockReader(Q_tile, me.first_row(t), chunk) for chunk in chunks]
        self._k = [
            [BlockReader(K_tile, me.in_quad * LANE_COLUMNS + column, chunk) for chunk in chunks]
            for column in range(LANE_COLUMNS)
        ]
        # Row r of V has chunk c where row 0 has chunk c ^ r % 8: a lane's chunks t, 4 + t, … of it lie
        # where those of lane t ^ r % 4 lie in row 0, up to a static xor.
        top = k.mov(0, type=u32)
        self._v = [
            V_tile.chunk_pointer(_CHUNKS, top, me.in_quad ^ phase if phase else me.in_quad)
            for phase in range(QUAD_LANES)
        ]

    def scores(self, S: Fragment, stage: Value | None) -> None:
        """Compute the scores S = Q Kᵀ for this warp's rows and the keys of a pipeline stage."""
        k = self.k
        S.fill(0.0)
        panels = self._tiles[0].columns // (_CHUNKS * _READ)
        if panels == 1:
            self._add_panel(S, None, stage)
            return
        with k.loop(0, panels) as n:
            of_q, of_k = (n.as_(u32) * tile.panels[1].offset for tile in self._tiles[:2])
            self._add_panel(S, of_q, of_k if stage is None else of_k + stage)

    def _add_panel(self, S: Fragment, of_q: Value | None, of_k: Value | None) -> None:
        """Compute S += Q Kᵀ for the columns of a panel, which begins at these bytes of the tiles."""
        for half in range(BLOCK_CHUNKS):
            query = self._q[half].stage(of_q)
            keys = [column[half].stage(of_k) for column in self._k]
            for block in range(_BLOCKS):
                rows = [self.k.load(query(block, down), _READ) for down in fragment_rows(self.t)]
                for n in range(self.t.tile // MMA_KEYS):
                    for c, key in enumerate(keys):
                        of_key = self.k.load(key(block, MMA_KEYS * n), _READ)
                        for i, row in enumerate(rows):
                            (a, b), *others = zip(row, of_key, strict=True)
                            total = a * b
                            for a, b in others:
                                total = self.k.fma(a, b, total)
                            score = S[i, LANE_COLUMNS * n + c]
                            self.k.add(score, total, into=score)

    def weights(self, P: Fragment) -> Fragment:
        """The weights P unchanged: `outputs` takes them as f32."""
        return P

    def outputs(self, O: Fragment, P: Fragment, stage: Value | None) -> None:
        """Compute O += P V for this warp's rows and the keys of a pipeline stage."""
        k = self.k
        first = [at if stage is None else at.moved(at.value + stage) for at in self._v]
        for begin in range(0, self.t.tile, _SUMMED):
            keys = range(begin, begin + _SUMMED)
            weights = [self._weights(P, key) for key in keys]
            for n in range(self.t.output_columns // (QUAD_LANES * _READ)):
                with apart(k, first[0]):
                    self._add_chunk(O, weights, keys, first, n)

    def _add_chunk(
        self, O: Fragment, weights: list[list[Value]], keys: Sequence[int], first: list[TilePointer], n: int
    ) -> None:
        """Add the sum of the terms of some keys to the lane's n-th chunk of O."""
        k = self.k
        terms: dict[tuple[int, int], Value] = {}
        for key, of_key in zip(keys, weights, strict=True):
            values = k.load(self._chunk(first, key, n), _READ)
            for (i, a), (c, b) in product(enumerate(of_key), enumerate(values)):
                at = i, _READ * n + c
                terms[at] = k.fma(a, b, terms[at]) if at in terms else a * b
        for at, total in terms.items():
            k.add(O[at], total, into=O[at])

    def _weights(self, P: Fragment, key: int) -> list[Value]:
        """The weights of a key, for each of the lane's rows, from the lane of the quad that has them."""
        nth, within = divmod(key, MMA_KEYS)
        lane, column = divmod(within, LANE_COLUMNS)
        return [of_quad(self.k, row[LANE_COLUMNS * nth + column], lane) for row in P]

    def _chunk(self, first: list[TilePointer], key: int, n: int) -> TilePointer:
        """The address of the lane's n-th chunk in row `key` of V."""
        chunk, phase = QUAD_LANES * n, key % SWIZZLE_ROWS
        panel = self._tiles[2].panel_of(chunk)
        chunk_index = chunk - panel.first ^ phase // QUAD_LANES * QUAD_LANES
        at = first[phase % QUAD_LANES]
        return at.plus_bytes(panel.offset + key * panel.row_bytes + chunk_index * CHUNK_BYTES)

    def output_address(self) -> tuple[Value, Value]:
        """See `WarpProducts`."""
        return self.me.in_quad, self.me.in_quad * 0

    def output_words(self, row: list[Var], first: int, columns: int) -> Iterator[tuple[int, list[Value]]]:
        """See `WarpProducts`."""
        begin = first // QUAD_LANES
        for chunk in range(0, columns // _READ, QUAD_LANES):
            yield chunk, [value.as_(u32) for value in row[begin + chunk : begin + chunk + _READ]]
