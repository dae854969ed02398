"""The kernel for Hopper that writes dQ, and D for the other kernels: a CTA owns rows of Q, 64 for each
warpgroup that computes, and walks over the keys that they see. `flash/device/gradient_tiles.py` has the
formulas. With fp8 K is also read in bf16, as a factor of dQ, and so is dO, as a factor of D
(`flash/kernels/wgmma_gradient_keys.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext

from flash.device.gradient_parts import QueriesPart, RowNumbers, Terms
from flash.device.gradient_scales import GradientScales
from flash.device.gradient_scores import ScoreGradients
from flash.device.gradient_terms import RowTerms
from flash.device.gradient_tiles import begun, shift_of, tamed
from flash.device.mask import if_seen
from flash.device.mma_products import fragment_columns
from flash.device.row_sums import sum_rows
from flash.device.team import Team
from flash.device.wgmma_gradient_pipeline import GradientPipeline, WalkedTiles
from flash.device.wgmma_outputs import ROWS
from flash.families.wgmma import WGMMA_ROWS
from flash.problem.gradients import GradientConfig
from flash.scores.philox import KEYS_PER_BLOCK
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, SharedTile, Value, marked
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, QUAD_LANES
from ptxgen.types import f32


@marked("wgmma gradient of queries: roles")
def wgmma_gradient_of_queries(config: GradientConfig) -> ir.Module:
    """Generate the kernel of a configuration: its PTX module."""
    k, parameters = begun(config)
    factors = ("K_wide",) if config.is_fp8 else ()
    pipeline = GradientPipeline(k, config, ("Q", "dO"), ("K", "V", *factors))
    row_deltas = k.shared("row_deltas", (1, config.wgmma.block), f32)
    if config.features.varlen:
        QueriesPart.of(k, config, parameters)  # ends CTAs after their sequence
    with pipeline.producer:
        _load(k, config, pipeline, QueriesPart.of(k, config, parameters, again=True))
    with pipeline.consumer:
        part = QueriesPart.of(k, config, parameters, again=True)
        _Consumer(k, config, pipeline, row_deltas, part, parameters.longest("q")).run()
    return k.finish()


def _tiles(k: KernelBuilder, config: GradientConfig, part: QueriesPart) -> WalkedTiles:
    """The tiles of keys that the rows of a CTA see."""
    whole = None if part.mask.hides_anywhere else part.whole_tiles(k, config.wgmma.tile)
    return WalkedTiles(part.first_tile, part.end_tile, whole)


@marked("wgmma gradient of queries: producer")
def _load(k: KernelBuilder, config: GradientConfig, pipeline: GradientPipeline, part: QueriesPart) -> None:
    """Copy the tiles of a CTA, by the producer, whose threads set NaN and infinity in keys to 0 where scores
    are hidden.
    """
    owned, walked = pipeline.names
    of = part.parameters
    with pipeline.owned.fill() as stage:
        pipeline.load(stage, owned, of, part.batch, part.head, part.first_row)

    tiles = _tiles(k, config, part)
    with k.loop(tiles.first, tiles.end) as n:
        first = n * config.wgmma.tile
        with if_seen(k, part.mask.sees_tile(first)):
            with pipeline.walked.fill() as stage:
                pipeline.load(stage, walked, of, part.batch, part.kv_head, first)
            if pipeline.clears:
                cut = tiles.is_cut(n)
                is_cut = nullcontext() if isinstance(cut, bool) else k.when(cut, uniform=True)
                with pipeline.walked.rework() as stage, is_cut:
                    pipeline.clear(stage, (config.factor_of("K"),))


class _Consumer:
    """The consumer: a warpgroup that computes 64 rows of dQ in registers."""

    @marked("wgmma gradient of queries: consumer")
    def __init__(
        self,
        k: KernelBuilder,
        config: GradientConfig,
        pipeline: GradientPipeline,
        row_deltas: SharedTile,
        part: QueriesPart,
        longest: Value,
    ) -> None:
        self.k, self.config, self.pipeline, self.part = k, config, pipeline, part
        t, of = config.wgmma, part.parameters
        numbers = RowNumbers.of(k, of, part.batch, part.head)
        self.to_terms = Terms.of(k, of, part.batch, part.head, longest)
        rounded, team = config.type_of("O").scalar, Team(pipeline.consumer)
        O, dO = (of.rows(k, name, part.batch, part.head) for name in ("O", config.factor_of("dO")))
        where = part.first_row, t.block, numbers, row_deltas
        sum_rows(k, O, dO, rounded, *where, self._write_first, team, config.factor_type.scalar)
        pipeline.consumer.barrier.sync()  # D has been written by all
        self.S, self.dP = (k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False) for _ in range(2))
        self.dQ = k.wgmma.accumulator(WGMMA_ROWS, t.widths[0])
        self.group_row = pipeline.group_row()
        row = pipeline.thread_row(self.S)
        self.my_query = part.first_row + row
        self.in_quad = k.thread_id() % QUAD_LANES
        self.gradients = ScoreGradients.of(k, part.scores, part.mask, config.wanted)
        self.heads = part.batch, part.head, part.kv_head
        self.scales: GradientScales | None = None
        if config.is_fp8:
            first_row = pipeline.first_row(part.first_row)
            self.scales = GradientScales(k, config, of, self.heads, first_row)
        self.gradients.begin_loops()
        self.terms = RowTerms(k, self.gradients, ROWS)
        self.shifts, self.deltas = self._numbers(numbers, row_deltas, row)

    def _write_first(self, row: Value, lse: Value, delta: Value) -> None:
        """Write a row's term in the gradients of arrays, such as sinks, that give each row a first score."""
        for feature in self.config.summed("first"):
            result = feature.applied(self.part.scores).first_gradient(lse, delta)
            self.to_terms.write(self.k, f"row_{feature.argument}", row, result)

    def _numbers(
        self, numbers: dict[str, RowNumbers], row_deltas: SharedTile, my_row: Value
    ) -> tuple[Sequence[Value], Sequence[Value]]:
        """The softmax shift and D for each of this thread's rows of Q."""
        k, part = self.k, self.part
        shifts, deltas = [], []
        for down in ROWS:
            row = k.min(self.my_query + down, part.parameters.seq_q - 1)
            lse = k.load(numbers["LSE"].at(k, row))
            delta = k.load(row_deltas.pointer(0, my_row).step(columns=down))
            if part.mask.hides_keys:
                lse, delta = tamed(k, lse, delta)
            shifts.append(shift_of(k, lse))
            deltas.append(delta)
        return shifts, deltas

    @marked("wgmma gradient of queries: loops")
    def run(self) -> None:
        """Compute and store the rows of dQ."""
        k, part, pipeline = self.k, self.part, self.pipeline
        self.owned = pipeline.owned.acquire()
        _tiles(k, self.config, part).each(k, self._take)
        self.terms.write(self.to_terms, self.my_query, lambda: self.in_quad, part.parameters.seq_q)
        k.note("dQ")
        for value in self.dQ.all():
            k.mul(value, part.parameters.scale, into=value)
        where = part.parameters, part.batch, part.head, part.first_row
        pipeline.store("dQ", "Q", self.dQ, *where)

    @marked("wgmma gradient of queries: tile")
    def _take(self, n: Value, cut: bool) -> None:
        """Add to the gradients the terms of a tile of keys, if some row sees one of them."""
        first = n * self.config.wgmma.tile
        with if_seen(self.k, self.part.mask.sees_tile(first)):
            self._add_keys(first, cut)

    @marked("wgmma gradient of queries: tile")
    def _add_keys(self, first: Value, cut: bool) -> None:
        """Add to dQ the terms of the tile of keys that begins with `first`."""
        k, dtype, gradients = self.k, self.config.factor_type.scalar, self.gradients
        if self.scales is not None:
            gradients = self.scales.tile(gradients, self.heads, first)
        pipeline = self.pipeline
        stage = pipeline.walked.acquire()
        k.note("S = Q K^T, dP = dO V^T")
        queries = self.owned.q.part(self.group_row, WGMMA_ROWS)
        self.S.set(pipeline.product(queries, "Q", stage.k.T, "K"))
        outputs = self.owned.do.part(self.group_row, WGMMA_ROWS)
        self.dP.set(pipeline.product(outputs, "dO", stage.v.T, "V"))
        k.wgmma.wait(0 if cut else 1)
        S, dP = self.S.rows_of_thread, self.dP.rows_of_thread
        slopes, coordinates = gradients.score(
            S, functools.partial(self._coordinates, first), True if cut else None
        )
        gradients.weigh(S, self.shifts)
        if not cut:
            k.wgmma.wait(after=list(self.S.all())[::8])
        k.note("dS = P (dP - D)")
        gradients.differentiate_weighed(S, dP, self.deltas, coordinates, hides=cut)
        self.terms.add(dP, coordinates)
        gradients.bend(dP, slopes)
        k.note("dQ += dS K")
        self.dQ += self.dP.packed(dtype) @ pipeline.factor(stage, "K")
        k.wgmma.wait()
        stage.release()

    def _coordinates(self, first: Value) -> ScoreCoordinates:
        """The coordinates (rows of Q, and keys) of this thread's scores in the accumulator."""
        tile = self.config.wgmma.tile
        begins_block = tile % KEYS_PER_BLOCK == 0
        return ScoreCoordinates(
            self.k,
            self.my_query,
            first,
            self.in_quad * LANE_COLUMNS,
            ROWS,
            fragment_columns(tile),
            begins_block,
            crosses_blocks=not begins_block and tile > KEYS_PER_BLOCK,
        )
