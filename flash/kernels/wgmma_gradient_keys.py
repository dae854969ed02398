"""The kernel for Hopper that writes dK and dV: a CTA owns rows of K and V, 64 for each warpgroup that
computes, and walks over the queries that see them, of one head after another that share these rows.
`flash/device/gradient_tiles.py` has the formulas.

The scores are computed transposed, keys by queries, so that Pᵀ and dSᵀ are in the registers from which the
next products read them. dV += Pᵀ dO starts before dS is computed, so that tensor cores work meanwhile.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

from flash.device.gradient_parts import KeysPart, RowNumbers, Terms, if_some
from flash.device.gradient_scores import ScoreGradients
from flash.device.gradient_terms import KeyTerms
from flash.device.gradient_tiles import begun, shift_of, tamed
from flash.device.mask import Mask, if_seen
from flash.device.mma_products import fragment_columns
from flash.device.team import Team
from flash.device.wgmma_gradient_pipeline import GradientPipeline, WalkedTiles
from flash.device.wgmma_outputs import ROWS
from flash.families.wgmma import WGMMA_ROWS
from flash.problem.gradients import GradientConfig
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Pointer, SharedTile, TilePointer, Value, Var, marked
from ptxgen.dsl.hopper import BoxTile
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, QUAD, QUAD_LANES, over_lanes
from ptxgen.types import f32

_INFINITY: Final = float("inf")
_SHIFTS, _DELTAS = 0, 1  # rows of the tile with the numbers of rows


@marked("wgmma gradient of keys: roles")
def wgmma_gradient_of_keys(config: GradientConfig) -> ir.Module:
    """The module with the kernel of a configuration."""
    k, parameters = begun(config)
    pipeline = GradientPipeline(k, config, ("K", "V"), ("Q", "dO"), reworked=True)
    t = config.wgmma
    of_rows = k.shared("row_numbers", (2 * t.stages, t.tile), f32)
    if config.features.varlen:
        KeysPart.of(k, config, parameters)  # ends CTAs after their sequence
    with pipeline.producer:
        _Producer(k, config, pipeline, of_rows, KeysPart.of(k, config, parameters, again=True)).run()
    with pipeline.consumer:
        part = KeysPart.of(k, config, parameters, again=True)
        _Consumer(k, config, pipeline, of_rows, part, parameters.longest("k")).run()
    return k.build(drop_unread=True)


class _Walk:
    """The way of a role over the tiles of queries of a CTA's heads: part `part` of the problem."""

    def __init__(
        self,
        k: KernelBuilder,
        config: GradientConfig,
        pipeline: GradientPipeline,
        of_rows: SharedTile,
        part: KeysPart,
    ) -> None:
        self.k, self.config, self.pipeline, self.of_rows, self.part = k, config, pipeline, of_rows, part

    def head(self, member: Value) -> Value:
        """The head of Q with this number among those that share the CTA's keys."""
        return self.first_head + member

    def tiles(self) -> WalkedTiles:
        """The tiles of queries of a head."""
        part, config = self.part, self.config
        if not (config.features.scores or config.causal or config.features.varlen):
            return WalkedTiles(part.first_tile, part.end_tile, None, plain=True)
        mask, whole = self._mask(self.first_head), None
        if not mask.hides_anywhere:
            whole = part.whole_tiles(self.k, config.wgmma, mask.reach)
        return WalkedTiles(part.first_tile, part.end_tile, whole)

    @property
    def first_head(self) -> Value:
        """The first head of Q that shares the CTA's keys."""
        return self.part.kv_head * self.part.parameters.group

    def _mask(self, head: Value) -> Mask:
        return self.part.scores(self.k, self.config, head).mask()

    def numbers(self, row: int, stage_index: Value | int) -> TilePointer:
        """The address of the shift or D, as `row` says, of the first query of a stage."""
        at = self.of_rows.pointer(0, 0).step(rows=row)
        nbytes = 2 * self.config.wgmma.tile * f32.nbytes
        if isinstance(stage_index, int):
            return at.plus_bytes(stage_index * nbytes)
        return at.moved(self.k.mad(stage_index, nbytes, at.value, mode="lo"))


class _Producer(_Walk):
    """The warpgroup that has tiles copied. Its threads write the shift and D of each query to shared memory,
    and in tiles with hidden scores set NaN and infinity to 0.
    """

    @marked("wgmma gradient of keys: producer")
    def run(self) -> None:
        """Copy the tiles of the CTA."""
        k, part, pipeline = self.k, self.part, self.pipeline
        of = part.parameters
        with pipeline.owned.fill() as stage:
            pipeline.load(stage, pipeline.names[0], of, part.batch, part.kv_head, part.first_key)
        tiles = self.tiles()
        with if_some(k, of.seq_q), k.loop(0, of.group) as member:
            head = self.head(member)
            mask = self._mask(head)

            with k.loop(tiles.first, tiles.end) as n:
                first = n * self.config.wgmma.tile
                with if_seen(k, part.sees(k, mask, first, self.config.wgmma)):
                    self._fill(head, first, tiles.is_cut(n), tames=mask.hides_keys)

    def _fill(self, head: Value, first: Value, cut: Value | bool, *, tames: bool) -> None:
        """Fill a stage with the tile of queries that begins with `first`, some of whose scores are hidden if
        it is `cut`.
        """
        k, part, pipeline, walked = self.k, self.part, self.pipeline, self.pipeline.names[1]
        with pipeline.walked.fill() as stage:
            pipeline.load(stage, walked, part.parameters, part.batch, head, first)
        with pipeline.walked.rework() as stage:
            is_cut = (
                functools.partial(nullcontext)
                if isinstance(cut, bool)
                else functools.partial(k.when, cut, uniform=True)
            )
            if cut is not False:
                with is_cut():
                    pipeline.clear(stage, walked)
            # Neither while copies are awaited nor while tiles are cleared: the assembler would spill.
            lse, delta = self._load_numbers(head, first)
            if cut is not False and tames:
                with is_cut():
                    for number, tame in zip((lse, delta), tamed(k, lse, delta), strict=True):
                        number.set(tame)
            thread = pipeline.producer.thread
            with k.when(thread < self.config.wgmma.tile):
                for row, value in ((_SHIFTS, shift_of(k, lse)), (_DELTAS, delta)):
                    at = self.numbers(row, stage.index)
                    k.store(at.moved(k.mad(thread, f32.nbytes, at.value, mode="lo")), value)

    def _load_numbers(self, head: Value, first: Value) -> tuple[Var, Var]:
        """LSE and D of this thread's query of a tile; the weights of one that does not exist are 0."""
        k, part, thread = self.k, self.part, Team(self.pipeline.producer).thread(self.k)
        row = first + k.signed(thread)
        lse, delta = k.var(f32, _INFINITY), k.var(f32, 0.0)
        # Branched over, and addressed again for each tile: else the assembler spills.
        with k.when(thread < self.config.wgmma.tile), k.when(row < part.parameters.seq_q):
            numbers = RowNumbers.of(k, part.parameters, part.batch, head)
            lse.set(k.load(numbers["LSE"].at(k, row)))
            delta.set(k.load(numbers["D"].at(k, row)))
        return lse, delta


class _Consumer(_Walk):
    """A warpgroup that computes: 64 rows of dK and dV, in registers."""

    @marked("wgmma gradient of keys: consumer")
    def __init__(
        self,
        k: KernelBuilder,
        config: GradientConfig,
        pipeline: GradientPipeline,
        of_rows: SharedTile,
        part: KeysPart,
        longest: Value,
    ) -> None:
        super().__init__(k, config, pipeline, of_rows, part)
        self.longest = longest
        t = config.wgmma
        of_scores, of_weights = t.widths
        self.S, self.dP = (k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False) for _ in range(2))
        self.dK, self.dV = (
            k.wgmma.accumulator(WGMMA_ROWS, t.summed_columns(width)) for width in (of_scores, of_weights)
        )
        self.group = pipeline.group() if t.splits_columns else None
        self.group_row = pipeline.group_row()
        self.my_key = part.first_key + pipeline.thread_row(self.S)
        self.in_quad = k.thread_id() % QUAD_LANES

    def run(self) -> None:
        """Compute and store the rows of dK and dV."""
        k, part, pipeline = self.k, self.part, self.pipeline
        self.owned = pipeline.owned.acquire()
        tiles = self.tiles()
        with k.loop(0, part.parameters.group) as member:
            head = self.head(member)
            scores = part.scores(k, self.config, head)
            gradients = ScoreGradients.of(k, scores, scores.mask())
            gradients.begin_loops()
            terms = KeyTerms(k, self.config, gradients, ROWS)
            with if_some(k, part.parameters.seq_q):
                tiles.each(k, functools.partial(self._take, gradients, terms))
            self._write_terms(terms, head)
        self._store()

    @marked("wgmma gradient of keys: tile")
    def _take(self, gradients: ScoreGradients, terms: KeyTerms, n: Value, cut: bool) -> None:
        """Add the terms of a tile of queries, if some of them see a key of the CTA."""
        first = n * self.config.wgmma.tile
        with if_seen(self.k, self.part.sees(self.k, gradients.mask, first, self.config.wgmma)):
            self._add_queries(gradients, terms, first, cut)

    @marked("wgmma gradient of keys: tile")
    def _add_queries(self, gradients: ScoreGradients, terms: KeyTerms, first: Value, cut: bool) -> None:
        """Add to dK and dV the terms of the tile of queries that begins with `first`."""
        k, S, dP, dtype = self.k, self.S, self.dP, self.config.dtype.scalar
        stage, seq_q = self.pipeline.walked.acquire(), self.part.parameters.seq_q
        k.note("S^T = K Q^T, dP^T = V dO^T")
        S.set(self.owned.k.part(self.group_row, WGMMA_ROWS) @ stage.q.T)
        dP.set(self.owned.v.part(self.group_row, WGMMA_ROWS) @ stage.do.T)
        early = not (cut or gradients.dropping)
        shifts = self._numbers(_SHIFTS, stage.index)
        k.wgmma.wait(1 if early else 0)
        by_query = S.rows_of_thread.transposed
        slopes, coordinates = gradients.score(
            by_query, functools.partial(self._coordinates, first), True if cut else None, seq_q
        )
        gradients.weigh(by_query, shifts)
        if early:
            k.note("dV += P^T dO")
            self.dV += S.packed(dtype) @ self._columns(stage.do)
        deltas = self._numbers(_DELTAS, stage.index)
        if early:
            k.wgmma.wait(1)
        k.note("dS = P (dP - D)")
        of_query = dP.rows_of_thread.transposed
        gradients.differentiate_weighed(by_query, of_query, deltas, coordinates, hides=cut)
        terms.add(dP.rows_of_thread, coordinates)
        gradients.bend(of_query, slopes)
        k.note("dK += dS^T Q")
        if not early:
            self.dV += S.packed(dtype) @ self._columns(stage.do)
        self.dK += dP.packed(dtype) @ self._columns(stage.q)
        k.wgmma.wait()
        stage.release()

    def _columns(self, tile: BoxTile) -> BoxTile:
        """The columns of a tile of queries from which this warpgroup sums its columns of a gradient."""
        if self.group is None:
            return tile
        columns = self.config.wgmma.summed_columns(tile.columns)
        return tile.from_column(self.group * columns, columns)

    def _coordinates(self, first: Value) -> ScoreCoordinates:
        """The queries and keys of this thread's scores, which have a row for each query."""
        k = self.k
        first_query = first + k.signed(self.in_quad * LANE_COLUMNS)
        lane = k.thread_id() % 32 // QUAD_LANES
        queries = fragment_columns(self.config.wgmma.tile)
        return ScoreCoordinates(k, first_query, self.my_key - k.signed(lane), lane, queries, ROWS)

    def _numbers(self, row: int, stage: Value | int) -> list[Value]:
        """The shifts, or D, of this thread's queries of a stage; those of neighbours are loaded together."""
        at = self.numbers(row, stage)
        at = at.moved(self.k.mad(self.in_quad, LANE_COLUMNS * f32.nbytes, at.value, mode="lo"))
        result: list[Value] = []
        for column in range(0, self.config.wgmma.tile, QUAD_LANES * LANE_COLUMNS):
            moved = at.plus_bytes(column * f32.nbytes)
            result += self.k.load(Pointer(moved.value, "shared", f32, moved.offset), LANE_COLUMNS)
        return result

    def _write_terms(self, terms: KeyTerms, head: Value) -> None:
        """Write each key's sums for the gradients of arrays of scores."""
        k, part = self.k, self.part
        to = Terms.of(k, part.parameters, part.batch, head, self.longest)

        def over_queries(totals: Sequence[Value]) -> list[Value]:
            return [over_lanes(k, total, QUAD, operator.add) for total in totals]

        def writes(key: Value) -> Value:
            result = (key < part.parameters.seq_k) & (self.in_quad == 0)
            return result if self.group is None else result & (self.group == 0)

        terms.write(to, self.my_key, writes, over_queries)

    @marked("wgmma gradient of keys: results")
    def _store(self) -> None:
        """Write the CTA's rows of dK and dV."""
        k, part, pipeline = self.k, self.part, self.pipeline
        k.note("dK, dV")
        first = part.scores(k, self.config, self.first_head)
        weighing = [f.applied(first) for f in self.config.features.scores if f.changes_weights]
        factor = weighing[0].output_factor if weighing else None
        pipeline.consumer.barrier.sync()  # all have read K and V
        for name, of, sums, scale in (
            ("dK", "K", self.dK, part.parameters.scale),
            ("dV", "V", self.dV, factor),
        ):
            if scale is not None:
                for value in sums.all():
                    k.mul(value, scale, into=value)
            where = part.parameters, part.batch, part.kv_head, part.first_key
            pipeline.store(name, of, sums, *where)
