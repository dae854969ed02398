"""The kernel for Hopper that writes dK and dV: a CTA owns rows of K and V, 64 for each warpgroup that
computes, and walks over the queries that see them, of one head after another that share these rows. In one
sweep it also adds to sums of dQ (`flash/device/wgmma_query_sums.py`).
`flash/device/gradient_tiles.py` has the formulas.

The scores are computed transposed, keys by queries, so that Pᵀ and dSᵀ are in the registers from which the
next products read them. dV += Pᵀ dO starts before dS is computed, so that tensor cores work meanwhile.

With fp8 S and dP are products of fp8, whose factors are both read along their columns. The other products
read a factor along its rows, which `wgmma` of fp8 does not: their factors are the numbers of Q and dO times
their scales, in bf16
(`flash/kernels/widened_rows.py`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from flash.device.gradient_parts import GradientParameters, KeysPart, RowNumbers, Terms, if_some
from flash.device.gradient_scales import GradientScales
from flash.device.gradient_scores import ScoreGradients
from flash.device.gradient_terms import KeyTerms
from flash.device.gradient_tiles import begun, shift_of, tamed
from flash.device.mask import Mask, if_seen
from flash.device.mma_products import fragment_columns
from flash.device.team import Team
from flash.device.wgmma_gradient_pipeline import GradientPipeline, WalkedTiles
from flash.device.wgmma_outputs import ROWS
from flash.device.wgmma_query_sums import WgmmaQuerySums
from flash.families.wgmma import WGMMA_ROWS
from flash.problem.gradients import GradientConfig
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Value, Var, marked
from ptxgen.dsl.hopper import BoxTile, Layout
from ptxgen.dsl.hopper.stage import Stage
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, QUAD, QUAD_LANES, over_lanes
from ptxgen.types import f32, u32

_INFINITY: Final = float("inf")
_SHIFTS, _DELTAS = 0, 1  # rows of the tile with the numbers of rows


@marked("wgmma gradient of keys: roles")
def wgmma_gradient_of_keys(config: GradientConfig) -> ir.Module:
    """Generate the kernel of a configuration: its PTX module."""
    k, parameters = begun(config)
    numbers = Layout.of("numbers", (2, config.wgmma.tile), f32, "none")
    factors = ("Q_wide", "dO_wide") if config.is_fp8 else ()
    pipeline = GradientPipeline(k, config, ("K", "V"), ("Q", "dO", *factors), stored={"numbers": numbers})
    sums = WgmmaQuerySums(k, config, pipeline) if config.wgmma.adds_queries else None
    number = _begun(k, parameters)
    if config.features.varlen:
        KeysPart.of(k, config, parameters, number=number)  # ends CTAs after their sequence
    with pipeline.producer:
        part = KeysPart.of(k, config, parameters, again=True, number=number)
        _Producer(k, config, pipeline, part).run()
    with pipeline.consumer:
        part = KeysPart.of(k, config, parameters, again=True, number=number)
        _Consumer(k, config, pipeline, part, parameters.longest("k"), sums).run()
    return k.finish()


@marked("wgmma gradient of keys: order")
def _begun(k: KernelBuilder, parameters: GradientParameters) -> Value | None:
    """The number of CTAs that began before this one, u32, if CTAs add in a fixed order: one that waits for
    CTAs with lower numbers waits for CTAs that run or have ended, whatever the order in which a GPU begins
    them. None without an order.
    """
    if parameters.order is None:
        return None
    at, counter = k.scratch(1, u32, "number"), parameters.order[1]
    one = k.mov(1, type=u32)
    with k.only_if(k.thread_id() == 0):  # the proof follows predicated stores to such a word
        k.store(at, k.atom(counter, one, op="add"))
    k.barrier()
    number = k.load(at)
    return k.min(number, k.blocks() - 1)  # it is below anyway: the minimum states it for the proof


class _Walk:
    """The way of a role over the tiles of queries of a CTA's heads: part `part` of the problem."""

    def __init__(
        self, k: KernelBuilder, config: GradientConfig, pipeline: GradientPipeline, part: KeysPart
    ) -> None:
        self.k, self.config, self.pipeline, self.part = k, config, pipeline, part

    def head(self, member: Value) -> Value:
        """The index of the head of Q that is number `member` among the heads that share the CTA's keys."""
        return self.first_head + member

    def tiles(self) -> WalkedTiles:
        """The tiles of queries of a head that see keys of the CTA."""
        part, mask, whole = self.part, self._mask(self.first_head), None
        if not mask.hides_anywhere:
            whole = part.whole_tiles(self.k, self.config.wgmma, mask.reach)
        return WalkedTiles(part.first_tile, part.end_tile, whole)

    @property
    def first_head(self) -> Value:
        """The first head of Q that shares the CTA's keys."""
        return self.part.kv_head * self.part.parameters.group

    def _mask(self, head: Value) -> Mask:
        return self.part.scores(self.k, self.config, head).mask()


class _Producer(_Walk):
    """The warpgroup that has tiles copied. Its threads write the shift and D of each query to shared memory,
    and in tiles with hidden scores set NaN and infinity to 0.
    """

    @marked("wgmma gradient of keys: producer")
    def run(self) -> None:
        """Copy all tiles that the CTA multiplies to shared memory, in the producer's code."""
        k, part, pipeline = self.k, self.part, self.pipeline
        of = part.parameters
        with pipeline.owned.fill() as stage:
            pipeline.load(stage, pipeline.names[0], of, part.batch, part.kv_head, part.first_key)
        if pipeline.clears_owned:
            with pipeline.owned.rework() as stage:
                pipeline.clear(stage, ("K",))
        tiles = self.tiles()
        with if_some(k, of.seq_q), k.loop(0, of.group) as member:
            head = self.head(member)
            mask = self._mask(head)

            with k.loop(tiles.first, tiles.end) as n:
                first = n * self.config.wgmma.tile
                with if_seen(k, part.sees(k, mask, first, self.config.wgmma)):
                    self._fill(head, first, tiles.is_cut(n), tames=mask.hides_keys)

    @marked("wgmma gradient of keys: stage")
    def _fill(self, head: Value, first: Value, cut: Value | bool, *, tames: bool) -> None:
        """Fill a stage with the tile of queries that begins with `first`, some of whose scores are hidden if
        it is `cut`.
        """
        k, part, pipeline, walked = self.k, self.part, self.pipeline, self.pipeline.names[1]
        with pipeline.walked.fill() as stage:
            pipeline.load(stage, walked, part.parameters, part.batch, head, first)
        if not pipeline.clears:
            lse, delta = self._load_numbers(head, first)
            with pipeline.walked.store() as stage:
                self._store_numbers(stage, lse, delta)
            return
        is_cut = functools.partial(_only, k, cut)
        with pipeline.walked.rework() as stage:
            with is_cut():
                pipeline.clear(stage, [self.config.factor_of(name) for name in ("Q", "dO")])
            # Not while tiles are cleared: the assembler would spill.
            lse, delta = self._load_numbers(head, first)
            if tames:
                with is_cut():
                    for number, tame in zip((lse, delta), tamed(k, lse, delta), strict=True):
                        number.set(tame)
            self._store_numbers(stage, lse, delta)

    def _store_numbers(self, stage: Stage, lse: Value, delta: Value) -> None:
        """Write the shift and D of this thread's query to a stage."""
        k, thread = self.k, self.pipeline.producer.thread
        with k.when(thread < self.config.wgmma.tile):
            for row, value in ((_SHIFTS, shift_of(k, lse)), (_DELTAS, delta)):
                stage.numbers[row, thread] = value

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


def _only(k: KernelBuilder, some: Value | bool) -> AbstractContextManager[object]:
    """A context for code that runs only if `some`, which is the same in all threads; not if it is True."""
    return nullcontext() if isinstance(some, bool) else k.when(some, uniform=True)


class _Consumer(_Walk):
    """The consumer: a warpgroup that computes 64 rows of dK and dV in registers."""

    @marked("wgmma gradient of keys: consumer")
    def __init__(
        self,
        k: KernelBuilder,
        config: GradientConfig,
        pipeline: GradientPipeline,
        part: KeysPart,
        longest: Value,
        sums: WgmmaQuerySums | None,
    ) -> None:
        super().__init__(k, config, pipeline, part)
        self.longest, self.sums = longest, sums
        if sums is not None:
            sums.begin()
        t = config.wgmma
        of_scores, of_weights = t.widths
        self.S, self.dP = (k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False) for _ in range(2))
        self.dK, self.dV = (
            k.wgmma.accumulator(WGMMA_ROWS, t.summed_columns(width)) for width in (of_scores, of_weights)
        )
        self.group = pipeline.group() if t.splits_columns else None
        self.group_row = pipeline.group_row()
        self.my_key = part.first_key + pipeline.thread_row(self.S)
        self.scales: GradientScales | None = None
        if config.is_fp8:
            where = part.batch, self.first_head, part.kv_head
            first_key = pipeline.first_row(part.first_key)
            self.scales = GradientScales(k, config, part.parameters, where, first_key)
        self.in_quad = k.thread_id() % QUAD_LANES

    @marked("wgmma gradient of keys: loops")
    def run(self) -> None:
        """Compute and store the rows of dK and dV."""
        k, part, pipeline = self.k, self.part, self.pipeline
        self.owned = pipeline.owned.acquire()
        tiles = self.tiles()
        with k.loop(0, part.parameters.group) as member:
            head = self.head(member)
            scores = part.scores(k, self.config, head)
            wanted = self.config.wanted if self.sums is not None else ()
            gradients = ScoreGradients.of(k, scores, scores.mask(), wanted)
            gradients.begin_loops()
            terms = KeyTerms(k, self.config, gradients, ROWS)
            with if_some(k, part.parameters.seq_q):
                tiles.each(k, functools.partial(self._take, gradients, terms, head))
            self._write_terms(terms, head)
        if self.sums is not None:
            self.sums.end(part.parameters, part.batch)
        self._store()

    @marked("wgmma gradient of keys: tile")
    def _take(self, gradients: ScoreGradients, terms: KeyTerms, head: Value, n: Value, cut: bool) -> None:
        """Add to the gradients the terms of a tile of queries, if some of them see a key of the CTA."""
        first = n * self.config.wgmma.tile
        with if_seen(self.k, self.part.sees(self.k, gradients.mask, first, self.config.wgmma)):
            self._add_queries(gradients, terms, (head, n, first), cut)

    @marked("wgmma gradient of keys: tile")
    def _add_queries(
        self, gradients: ScoreGradients, terms: KeyTerms, tile: tuple[Value, Value, Value], cut: bool
    ) -> None:
        """Add to dK and dV, and to the sums of dQ if there are any, the terms of a tile of queries: its head,
        its number and its first query.
        """
        head, n, first = tile
        k, S, dP, dtype = self.k, self.S, self.dP, self.config.factor_type.scalar
        if self.scales is not None:
            gradients = self.scales.tile(gradients, (self.part.batch, head, self.part.kv_head), first)
        pipeline = self.pipeline
        stage, seq_q = pipeline.walked.acquire(), self.part.parameters.seq_q
        queries, outputs = pipeline.factor(stage, "Q"), pipeline.factor(stage, "dO")
        k.note("S^T = K Q^T, dP^T = V dO^T")
        keys = self.owned.k.part(self.group_row, WGMMA_ROWS)
        S.set(pipeline.product(keys, "K", stage.q.T, "Q"))
        values = self.owned.v.part(self.group_row, WGMMA_ROWS)
        dP.set(pipeline.product(values, "V", stage.do.T, "dO"))
        # Where scores are hidden or dropped, registers of that leave none for products under way.
        early = not (cut or gradients.dropping)
        shifts = self._numbers(stage, _SHIFTS)
        k.wgmma.wait(1 if early else 0)
        by_query = S.rows_of_thread.transposed
        slopes, coordinates = gradients.score(
            by_query, functools.partial(self._coordinates, first), True if cut else None, seq_q
        )
        gradients.weigh(by_query, shifts)
        if early:
            k.note("dV += P^T dO")
            self.dV += S.packed(dtype) @ self._columns(outputs)
        deltas = self._numbers(stage, _DELTAS)
        if early:
            k.wgmma.wait(1)
        k.note("dS = P (dP - D)")
        of_query = dP.rows_of_thread.transposed
        gradients.differentiate_weighed(by_query, of_query, deltas, coordinates, hides=cut)
        terms.add(dP.rows_of_thread, coordinates)
        gradients.bend(of_query, slopes)
        if self.sums is not None:
            self.sums.write(dP, self.part.parameters, self.part.batch)
        if not early:
            self.dV += S.packed(dtype) @ self._columns(outputs)
        dS = dP.packed(dtype)
        exchanged = None
        if self.sums is not None:
            k.note("dQ += dS K")
            exchanged = self.sums.multiply(self.owned.k)
        k.note("dK += dS^T Q")
        self.dK += dS @ self._columns(queries)
        if self.sums is not None and exchanged is not None:
            k.wgmma.wait(1)
            exchanged.release()
            ticket = None
            if self.config.adds_in_order:
                ticket = self.part.ticket(k, gradients.mask.reach, first, self.config.wgmma)
            self.sums.add(self.part.parameters, self.part.batch, head, n, ticket)
        k.wgmma.wait()
        stage.release()

    def _columns(self, tile: BoxTile) -> BoxTile:
        """The columns of a tile of queries from which this warpgroup sums its columns of a gradient."""
        if self.group is None:
            return tile
        columns = self.config.wgmma.summed_columns(tile.columns)
        return tile.from_column(self.group * columns, columns)

    def _coordinates(self, first: Value) -> ScoreCoordinates:
        """The queries and keys of this thread's scores, whose rows are queries."""
        k = self.k
        first_query = first + k.signed(self.in_quad * LANE_COLUMNS)
        lane = k.thread_id() % 32 // QUAD_LANES
        queries = fragment_columns(self.config.wgmma.tile)
        return ScoreCoordinates(k, first_query, self.my_key - k.signed(lane), lane, queries, ROWS)

    def _numbers(self, stage: Stage, row: int) -> list[Value]:
        """The softmax shifts, or D, for this thread's queries in a pipeline stage."""
        return [number for pair in self.S.column_pairs(stage.numbers, row) for number in pair]

    @marked("wgmma gradient of keys: terms")
    def _write_terms(self, terms: KeyTerms, head: Value) -> None:
        """Write each key's sums for the gradients of arrays of scores."""
        k, part = self.k, self.part
        to = Terms.of(k, part.parameters, part.batch, head, self.longest)

        def over_queries(totals: Sequence[Value]) -> list[Value]:
            return [over_lanes(k, total, QUAD, operator.add) for total in totals]

        def writes(key: Value) -> Value:
            result = (key < part.parameters.seq_k) & (self.in_quad == 0)
            return result if self.group is None else result & (self.group == 0)

        terms.write(to, lambda: self.my_key, writes, over_queries)

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
