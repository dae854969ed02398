"""The two roles of a kernel with `wgmma`: a producer, the warpgroup that has tiles of Q, K and V copied to
shared memory, and consumers, the warpgroups that compute. This module has what the consumers of all kernels
do; in what order they multiply, a subclass says (`flash/kernels/wgmma_forward.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import ClassVar, Final

from flash.device.append_in_place import AppendedKV
from flash.device.cta import Cta
from flash.device.finished_rows import finish_rows
from flash.device.lazy_softmax import LEAST_SCALE
from flash.device.mask import Mask, if_seen
from flash.device.masked_tiles import Masking, all_tiles, masked_tiles
from flash.device.mma_products import fragment_columns
from flash.device.overlapped_softmax import OverlappedSoftmax
from flash.device.parameters import Parameters
from flash.device.softmax import FirstTerms
from flash.device.tile_scores import TileScores
from flash.device.tma_pipeline import PersistentPipeline, TmaPipeline
from flash.device.wgmma_outputs import ROWS, Outputs, store_outputs
from flash.device.wgmma_queries import Queries
from flash.device.work_tiles import WorkTile, WorkTiles
from flash.families.wgmma import WARPGROUP, WGMMA_ROWS, WgmmaTiling
from flash.problem.kernel_config import KernelConfig
from flash.problem.outputs import MAX_LOGIT
from flash.problem.persistence import STATIC
from flash.scores.scoring import Scoring
from flash.scores.softcap import Softcap
from flash.scores.window import Window
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Value, marked
from ptxgen.dsl.hopper import Accumulator
from ptxgen.dsl.matrices.lanes import QUAD_LANES
from ptxgen.target import WARP_SIZE

SLACK: Final = 8.0  # P is at most 2 ** SLACK, which every 16-bit type holds with room to spare


@marked("wgmma: roles")
def attention_module(
    config: KernelConfig,
    t: WgmmaTiling,
    pipeline_of: type[TmaPipeline],
    consumer_of: Callable[[WorkTile], Consumer],
) -> ir.Module:
    """The module with a kernel whose producer fills a pipeline of class `pipeline_of`, and each of whose
    other warpgroups runs the consumer that `consumer_of` gives for a work tile.
    """
    # Proofs do not follow shifts and products through what packed heads and new rows in place divide.
    appends = config.features.appended is not None
    short = not (config.packed or appends or config.features.rotation is not None)
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=short)
    parameters = Parameters.declare(k, config)
    pipeline_of = PersistentPipeline if config.is_persistent else pipeline_of
    takes_some = config.is_persistent or config.features.splits
    follows_tops = config.dtype.is_narrow and MAX_LOGIT in config.outputs
    keeps_more = follows_tops or (takes_some and config.features.has(Window))
    # With a softcap it is the consumers that need the registers.
    keeps_more |= config.scheduler == STATIC and config.hides_keys and not config.features.has(Softcap)
    to_copy, to_compute = t.registers_of_roles(keeps_more=keeps_more)
    producer = k.warpgroup_role("producer", registers=to_copy)
    consumer = k.warpgroup_role("consumer", warpgroups=t.consumers, registers=to_compute)
    pipeline = pipeline_of(k, config, t, producer, consumer)
    work_tiles = WorkTiles.of(k, config, parameters, (producer, consumer))
    if appends:
        AppendedKV.written(k, config, parameters, Cta.of(k, config, parameters))
    with producer, work_tiles.each() as parameters:
        cta = Cta.of(k, config, parameters)
        pipeline.load_work_tile(cta, has_tiles(cta))
    with consumer, pipeline.consumed(), work_tiles.each() as parameters:
        cta = Cta.of(k, config, parameters)
        consumer_of(WorkTile(k, config, t, parameters, cta, consumer, pipeline)).run()
    return k.finish()


@marked("wgmma: whether there is a tile")
def has_tiles(cta: Cta) -> Value:
    """Whether the CTA has rows, and they see a tile of keys."""
    sees = cta.tiles > (0 if cta.first_tile is None else cta.first_tile)
    # The grid is sized for the longest of packed sequences.
    return sees if cta.queries_from is None else sees & (cta.first_row < cta.O.rows)


class Consumer(ABC):
    """The work of a computing warpgroup on a work tile. A subclass declares the sums S and O, a `softmax`,
    and `outputs` that write O.
    """

    queries_of: ClassVar[type[Queries]] = Queries
    shares_rows: ClassVar[bool] = False  # whether all warpgroups have the same rows
    group: Value  # if they do: the number of this one
    group_row: Value  # if not: the first row of this one
    softmax: OverlappedSoftmax
    outputs: Outputs
    lane: Value  # the number of this thread among those that share its rows

    @marked("wgmma: tiles of a consumer")
    def __init__(self, work: WorkTile, S: Accumulator, O: Accumulator) -> None:
        self.work = work
        k, t, cta = work.k, work.t, work.cta
        self.k = k
        self.config = work.config
        self.cta = cta
        self.role = work.role
        self.queries = self.queries_of(work)
        self.ping_pong = work.pipeline.ping_pong
        self.begins_ping_pong = t.ping_pong and self.ping_pong is None  # and ends it
        if self.begins_ping_pong:
            self.ping_pong = k.ping_pong(work.role)
        self.S = S
        self.O = O
        # The assembler knows that this number of the warpgroup is the same in all lanes: descriptors made of
        # it are in uniform registers.
        self.uniform_group = k.warp_index // (WARPGROUP // WARP_SIZE) % t.consumers
        if self.shares_rows:
            self.group = self._group()
        else:
            self.group_row = self.uniform_group * WGMMA_ROWS
        self.skips = t.consumers > 1 and not self.shares_rows and self._leaves_tiles_out(cta.mask)
        self.end_tile = self._own_tiles(cta)[1]
        first_row = self._first_row(cta)
        query_of = None
        if cta.packs_queries:
            query_of = [cta.query(first_row + down) for down in ROWS].__getitem__
        self.in_quad = self.lane = k.thread_id() % QUAD_LANES
        self.scores = TileScores(
            k=k,
            cta=cta,
            tile=t.tile,
            first_key=work.pipeline.first_key,
            first_row=first_row,
            rows=ROWS,
            first_column=self._first_column,
            keys=fragment_columns(t.tile),
            query_of=query_of,
            mask=lambda: cta.mask,
            by_warps=self.skips,
        )

    @abstractmethod
    def walk(self) -> None:
        """Take the tiles of keys, of which there is one at least, from the last to the first."""

    @marked("wgmma: tiles of a consumer")
    def run(self) -> None:
        """Compute the rows of O that this warpgroup owns, and store them."""
        k, t, is_persistent = self.k, self.work.t, self.config.is_persistent
        if is_persistent:  # also where there are no keys (`PersistentPipeline.load_work_tile`)
            self.queries.acquire()
        with k.when(has_tiles(self.cta), uniform=True):
            if self.ping_pong is not None and self.begins_ping_pong:
                self.ping_pong.begin()
            if not is_persistent:
                self.queries.acquire()
            self.queries.prepare()
            if self.skips:
                self._skip(self.end_tile, self.cta.tiles)
            self.walk()
            if self.skips and self.cta.mask.reach.left is not None:
                cta = self.work.cta_again()
                first, _ = self._own_tiles(cta)
                assert cta.first_tile is not None  # the first that a row sees
                self._skip(cta.first_tile, first)
            if self.ping_pong is not None and self.begins_ping_pong:
                self.ping_pong.end()
        if self.config.begins_next:
            k.note("the grid that merges the parts may begin")
            k.griddepcontrol_launch_dependents()
        if t.separate_output:
            self.queries.release()
        self._finish()
        if is_persistent:
            self._end_work_tile()

    def each_tile(self, take: Callable[[Value, Masking], None], *, after_last: bool = False) -> None:
        """Emit `take(n, masking)` for the tiles of keys with -n - 1 tiles before them, from the last to the
        first, or `after_last` without the last one. Other tiles than the last are skipped if no row sees
        them, and those that no row of this warpgroup sees are left out.
        """
        k, cta = self.k, self.cta
        for end, first, masking in masked_tiles(k, cta, self.work.cta_again, self._own_tiles):
            if after_last:
                if masking is Masking.FULL and not cta.mask.hides_keys:
                    continue  # at most one tile, the last
                end = k.min(end, (self.end_tile if masking is Masking.FULL else cta.tiles) - 1)
            with k.loop(-end, first if isinstance(first, int) else -first) as n:
                seen = cta.mask.sees_tile(self.work.pipeline.first_key(n)) if cta.mask.has_gaps else None
                if seen is not None and not after_last:
                    seen = seen | (n == -cta.tiles)  # the last is always there
                with if_seen(k, seen):
                    take(n, masking)

    def exclusively(self, masking: Masking) -> AbstractContextManager[object]:
        """The context in which a warpgroup starts the products of a tile: if warpgroups alternate, one at a
        time, except in tiles that a mask cuts, of which those that skip some have different numbers.
        """
        if self.ping_pong is None or (self.skips and masking is not Masking.NONE):
            return nullcontext()
        return self.ping_pong.exclusive()

    def _leaves_tiles_out(self, mask: Mask) -> bool:
        """Whether a mask by position alone may hide from this warpgroup a tile that others of its CTA see: by
        causality, if tiles have fewer keys than the CTA has rows, as each sees some of one on the diagonal.
        """
        if mask.hides_anywhere or mask.has_gaps:
            return False
        return mask.reach.left is not None or (
            mask.reach.is_limited and self.work.t.tile < self.work.t.block_q
        )

    def _own_tiles(self, cta: Cta) -> tuple[Value | int, Value]:
        """(first, end) of the tiles that the rows of this warpgroup see, `end` exclusive."""
        if self.skips:
            return cta.tiles_of_rows(self.k, self.k.signed(self.group_row), WGMMA_ROWS)
        return all_tiles(cta)

    @marked("wgmma: hidden tiles")
    def _skip(self, first: Value, end: Value | int) -> None:
        """Give back the tiles from `first` up to `end`, exclusive, of which this warpgroup sees no key."""
        pipeline = self.work.pipeline
        with self.k.loop(first, end):
            pipeline.keys.acquire().release()
            pipeline.values.acquire().release()

    def weigh(self, n: Value, masking: Masking, scoring: Scoring | None) -> None:
        """Compute P = exp2(scale * (S - shift)) of the tile with -n - 1 before it, in S's registers."""
        S = self.S.rows_of_thread
        coordinates = self.scores.finish(S, n, masking, scoring)
        self.k.note("P = exp2(scale * S - shift)")
        self.softmax.weigh(S)
        self.scores.drop(S, coordinates)

    @marked("wgmma: tiles of a consumer")
    def softmax_arguments(self, scale: Value | None = None) -> tuple[Value | None, Sequence[FirstTerms]]:
        """The factor of products, in units of log2, by default the `scale` of the CTA, None if features apply
        it; and the first terms of sums.
        """
        sinks = self.cta.sinks(self.k, self.lane, ROWS, lambda: self.scores.first_row)
        if self.cta.scoring is not None:
            scale = None
        elif scale is None:
            scale = self._positive_scale()
        self.scores = replace(self.scores, tops=self.cta.tops(self.k, len(ROWS), scale))
        return scale, sinks

    def _first_column(self) -> Value:
        return self.in_quad * 2

    def _positive_scale(self) -> Value:
        return self.k.max(self.k.abs(self.cta.scale_log2), LEAST_SCALE)

    def _group(self) -> Value:
        """The number of this warpgroup among the consumers, in a form that proofs follow."""
        return self.k.thread_id() // WARPGROUP % self.work.t.consumers

    def _first_row(self, cta: Cta) -> Value:
        """The first row of O that this thread holds, counted in the head's rows, s32."""
        if self.shares_rows:
            return cta.first_row + self.k.signed(self.S.row)
        group = self._group()
        return cta.first_row + self.k.signed(self.S.row + group * WGMMA_ROWS)

    @marked("wgmma: finish")
    def _finish(self) -> None:
        """Divide O by the sums of softmax weights and store it to global memory."""
        self.k.note("O / sum, LSE")
        cta, v_scale = self.work.cta_again(), self.work.parameters.operands.get("v_scale")
        if v_scale is not None:
            v_scale = v_scale.part(self.k, cta.batch)
        first_row = self._first_row(cta)
        of_O = None if self.config.features.scale_block else v_scale  # or the sums of the tiles have theirs
        O, tops = self.O.rows_of_thread, self.scores.tops
        finish_rows(self.k, cta, (first_row, ROWS), lambda: self.lane, self.softmax, O, of_O, tops=tops)
        store_outputs(self.work, cta, first_row, self.outputs, v_scale)

    def _end_work_tile(self) -> None:
        """Let the next work tile begin: no thread still reads the memory that it writes."""
        if not self.work.t.separate_output:
            self.queries.release()
        if self.queries.are_stored_by_threads:
            self.role.barrier.sync()  # all have read the rows that threads store
