"""dQ += dS K where a CTA owns keys: to f32 sums in global memory, to which all CTAs add.

A warp has dS of its keys and all queries of a tile. The sum over keys needs dS of all keys of the CTA:
it passes through a tile of shared memory, whose rows are keys, and from which a warp takes rows of
queries and columns of dQ. The sums are added to by `red`, four or two neighbouring columns at once
where the target has that; the order of such sums differs from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, Literal

from flash.device.mma_products import MmaOutputs, WarpCoordinates, Weights, fragment_rows
from flash.device.shared_weights import WeightsWriter, only_panel
from flash.device.tf32_products import Tf32Outputs
from flash.device.tiles import Matrix
from flash.families.mma import MMA_KEYS, MMA_ROWS, MmaTiling
from flash.families.precision import HALF
from flash.operands.dtypes import F32_BYTES
from flash.problem.gradients import GradientConfig
from ptxgen.dsl import Fragment, KernelBuilder, Pointer, Value, Var
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, QUAD_LANES
from ptxgen.dsl.source_regions import marked
from ptxgen.dsl.swizzle import BLOCK_CHUNKS, CHUNK_BYTES, BlockReader, SwizzledTile
from ptxgen.types import f32, u64

_FIRST_WITH_VECTORS: Final = 90  # `red.global.add.v2.f32` and `.v4.f32`
# `mma` steps of f32 whose products the tensor core sums together: more take too many registers.
_F32_STEPS: Final = 2
_NEIGHBOURS: Final = CHUNK_BYTES // F32_BYTES  # columns of f32 that a lane has side by side

Piece = tuple[int, list[Var]]


@dataclass(frozen=True)
class _SharedDS:
    """The `tile` of shared memory through which dS passes, whose rows are keys, and its two divisions among
    warps: a lane at `by_keys` of `of_keys` writes its keys, and at `me` of `t` reads its queries.
    """

    k: KernelBuilder
    tile: SwizzledTile
    of_keys: MmaTiling
    by_keys: WarpCoordinates
    t: MmaTiling
    me: WarpCoordinates


@dataclass(frozen=True)
class _Shares:
    """The division of the products of a tile among warps: `down` groups of warps take rows, and of each group
    `across` warps take `units` units of columns each, of `every` units in all.
    """

    down: int
    across: int
    units: int
    every: int

    @classmethod
    def of(cls, row_tiles: int, every: int, warps: int) -> _Shares:
        """The shares with the least work for a warp, then the fewest reads of operands."""
        offered = [
            cls(down, warps // down, -(-every * down // warps), every)
            for down in range(1, min(row_tiles, warps) + 1)
            if row_tiles % down == 0 and warps % down == 0
        ]
        return min(offered, key=lambda s: (row_tiles // s.down * s.units, row_tiles // s.down + s.units))


class QuerySums:
    """Adds dS K of a tile of queries to the sums of dQ. `slice` is the slice of the columns that the CTA
    makes, and `stage` the byte of the tile of K at which these begin; None: all.
    """

    def __init__(
        self,
        k: KernelBuilder,
        config: GradientConfig,
        me: WarpCoordinates,
        K_tile: SwizzledTile,
        slice: Value | None,
        stage: Value | None,
    ) -> None:
        self.k, self._stage = k, stage
        t, of = config.mma, config.mma.of_scores
        self._unit = of.operands.depth if of.operands is HALF else of.operands.panel
        self._shares = _Shares.of(t.tile // MMA_ROWS, of.output_columns // self._unit, t.warps)
        self._of_queries = MmaTiling(
            of.head_dim, of.head_dim_v, t.block, t.tile, self._shares.down, 1, of.operands
        )
        self._me = WarpCoordinates(me.warp // self._shares.across, me.lane)
        self._across = me.warp % self._shares.across
        dS_tile = k.swizzled("dS_tile", (t.block, t.tile), config.dtype.scalar)
        by_queries = self._of_queries, self._me
        shared = _SharedDS(k, dS_tile, of, me, *by_queries)
        self._passage: _HalfPassage | _F32Passage
        if of.operands is HALF:
            self._passage = _HalfPassage(shared, MmaOutputs(k, *by_queries, K_tile, config.dtype.scalar))
        else:
            of_f32 = Tf32Outputs(k, *by_queries, K_tile, _F32_STEPS, keeps_nan=True)
            self._passage = _F32Passage(shared, of_f32)
        width = t.slice_width(t.head_dim)
        self._first_column = self._passage.first_column()
        if slice is not None:
            self._first_column = self._first_column + slice * width
        self._columns = t.head_dim
        self._least = t.head_dim - (t.slices - 1) * width if t.slices > 1 else t.head_dim  # of a slice

    def keep(self, P: Any) -> None:
        """Write dS of this warp's keys to shared memory, whose previous contents all warps have read."""
        self._passage.keep(P)

    @marked("sums of queries: columns of a warp")
    def add(self, sums: Matrix, first_query: Value) -> None:
        """Add the products of dS and the CTA's keys to dQ of the tile of queries that begins with
        `first_query`.
        """
        k, t, shares = self.k, self._of_queries, self._shares
        k.barrier()  # all of dS has been written
        row = first_query + k.signed(self._me.first_row(t))
        at = sums.row(k, row) + k.cvt(self._first_column * F32_BYTES, dtype=u64)
        for across in range(shares.across):
            first = across * shares.units
            units = min(shares.units, shares.every - first)
            if units > 0:
                mine = k.when(self._across == across) if shares.across > 1 else nullcontext()
                with mine:
                    dQ = k.fragment(2 * t.row_tiles, units * self._unit // QUAD_LANES)
                    dS: Any = self._passage.taken()
                    self._passage.products.outputs(dQ, dS, self._stage, first * self._unit)
                    self._send(dQ, sums, row, at, first * self._unit)

    def _send(self, dQ: Fragment, sums: Matrix, first_row: Value, at: Value, first: int) -> None:
        """Add a warp's columns of dQ, from column `first` on, to the sums."""
        k = self.k
        for i, down in enumerate(fragment_rows(self._of_queries)):
            row_exists = first_row + down < sums.rows
            for offset, values in self._passage.pieces(dQ.row(i)):
                width = min(len(values), sums.width)
                for n in range(0, len(values), width):
                    column = first + offset + n
                    present = row_exists
                    if first + self._last_column(offset + n) >= self._least:
                        present = present & (self._first_column + column < self._columns)
                    nbytes = (down * sums.columns + column) * F32_BYTES
                    with k.only_if(present):
                        self._red(Pointer(at, "global", f32, nbytes), values[n : n + width])

    def _last_column(self, offset: int) -> int:
        """The last column that a lane may have `offset` columns from its first."""
        return offset // self._unit * self._unit + self._unit - 1

    def _red(self, at: Pointer, values: list[Var]) -> None:
        k = self.k
        if len(values) > 1 and k.target.sm >= _FIRST_WITH_VECTORS:
            width: Literal["v2", "v4"] = "v4" if len(values) == _NEIGHBOURS else "v2"
            k.red(at, values, op="add", vec=width, type=f32)
            return
        for n, value in enumerate(values):
            k.red(Pointer(at.value, "global", f32, at.offset + n * F32_BYTES), value, op="add", type=f32)


class _HalfPassage:
    """The way of dS of 16 bits through shared memory, from which `products` multiply it by K: the pairs of
    the next operand A are stored as they are, and read transposed by `ldmatrix`.
    """

    def __init__(self, shared: _SharedDS, products: MmaOutputs) -> None:
        self.shared, self.products = shared, products
        self._writer = WeightsWriter(shared.k, shared.tile, shared.of_keys, shared.by_keys)
        of_eight, octet = shared.me.lane % 8, shared.me.lane // 8
        lower, right = octet % 2, octet // 2
        first_chunk = shared.me.warp_row(shared.t) // shared.tile.chunk
        self._from = BlockReader(shared.tile, of_eight + right * 8, first_chunk + lower)

    def keep(self, P: Weights) -> None:
        """Write dS of this warp's keys, as `WarpProducts.weights` gives it."""
        self._writer.write(P)

    def taken(self) -> Iterator[list[tuple[Value, ...]]]:
        """dS of this warp's queries and all keys, as `outputs` takes it. Each step is read where it is used,
        which takes fewer registers.
        """
        k, t = self.shared.k, self.shared.t
        block, depth = self._from.stage(), t.operands.depth
        for j in range(t.tile // depth):
            yield [k.ldmatrix(block(m, depth * j), num="x4", trans=True) for m in range(t.row_tiles)]

    def first_column(self) -> Value:
        """The column of dQ at which a lane's pieces begin, u32."""
        return self.shared.me.in_quad * LANE_COLUMNS

    def pieces(self, row: list[Var]) -> Iterator[Piece]:
        """A lane's columns of a row of dQ: neighbours, and how far they are from its first column."""
        for n in range(0, len(row), LANE_COLUMNS):
            yield n // LANE_COLUMNS * MMA_KEYS, row[n : n + LANE_COLUMNS]


class _F32Passage:
    """See `_HalfPassage`; of f32 a lane stores two queries of one key, and reads one query of two keys."""

    def __init__(self, shared: _SharedDS, products: Tf32Outputs) -> None:
        self.shared, self.products = shared, products
        dS_tile, me = shared.tile, shared.me
        self._panel = only_panel(dS_tile)
        row, in_quad = shared.by_keys.first_row(shared.of_keys), shared.by_keys.in_quad
        to = dS_tile.chunk_pointer(self._panel.chunks, row, in_quad // 2)
        self._to = to.moved(to.value + in_quad % 2 * (2 * F32_BYTES))
        query = me.first_row(shared.t)
        self._within = query % dS_tile.chunk * F32_BYTES
        self._from = [
            BlockReader(dS_tile, me.in_quad * 2 + n, query // dS_tile.chunk) for n in range(LANE_COLUMNS)
        ]

    def keep(self, P: Fragment) -> None:
        """See `_HalfPassage`."""
        for n in range(P.columns // LANE_COLUMNS):
            at = self._to.moved(self._to.value ^ (BLOCK_CHUNKS * n * CHUNK_BYTES))
            for i, down in enumerate(fragment_rows(self.shared.of_keys)):
                to = at.plus_bytes(down * self._panel.row_bytes)
                self.shared.k.store(to, P.row(i)[LANE_COLUMNS * n : LANE_COLUMNS * (n + 1)])

    def taken(self) -> Fragment:
        """See `_HalfPassage`."""
        k, t = self.shared.k, self.shared.t
        fragment = k.fragment(len(fragment_rows(t)), t.tile // QUAD_LANES, initial=None)
        blocks = [reader.stage(self._within) for reader in self._from]
        for i in range(fragment.rows):
            for n in range(fragment.columns):
                key_tile, of_pair = divmod(n, LANE_COLUMNS)
                fragment[i, n].set(k.load(blocks[of_pair](i, MMA_KEYS * key_tile)))
        return fragment

    def first_column(self) -> Value:
        """See `_HalfPassage`."""
        return self.shared.me.in_quad * (LANE_COLUMNS * _NEIGHBOURS)

    def pieces(self, row: list[Var]) -> Iterator[Piece]:
        """See `_HalfPassage`; `Tf32Outputs.outputs` deals columns so."""
        panel = LANE_COLUMNS * _NEIGHBOURS
        for n in range(0, len(row), panel):
            for half in range(LANE_COLUMNS):
                yield n * QUAD_LANES + half * _NEIGHBOURS, row[n + half : n + panel : LANE_COLUMNS]
