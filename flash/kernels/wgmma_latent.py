"""The forward kernel for Hopper where V is the first columns of K, and rows are wider than 256 columns:
multi-head latent attention (MLA), whose query heads share one row of 576 columns for each key.

One warpgroup has tiles of Q and K copied to shared memory by the tensor memory accelerator; a tile of K is
there once, for both products. The two others take the same 64 query rows, of packed heads in decoding:
each computes the scores of half of the keys of a tile, and half of the columns of O, which has no room in
the registers of one. Of each other they get the maxima of rows, and the weights (as FlashMLA, "A Deep-Dive
Into the New Flash MLA Kernel", deals the work, but one tile after another, so that the next one is on its
way while a tile is multiplied).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

from flash.device.box_rows import BoxRows
from flash.device.cta import Cta
from flash.device.finished_rows import finish_rows
from flash.device.latent_rings import LatentRings
from flash.device.lazy_softmax import LEAST_SCALE
from flash.device.mma_products import fragment_columns
from flash.device.nonfinite import NonFinite
from flash.device.parameters import Parameters
from flash.device.shared_rows_softmax import Exchange, SharedRowsSoftmax
from flash.device.stored_sums import store_sums
from flash.device.team import Team
from flash.device.tile_runs import Cut, tile_runs
from flash.device.tiles import await_copies, commit_copies
from flash.problem.kernel_config import KernelConfig
from flash.problem.latent_tiling import LatentTiling
from flash.problem.wgmma_tiling import WARPGROUP, WGMMA_ROWS
from flash.scores.philox import KEYS_PER_BLOCK
from flash.scores.places import ScorePlaces
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Role, SharedTile, Value
from ptxgen.dsl.hopper import BoxTile, Ring
from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP, QUAD, QUAD_LANES
from ptxgen.target import WARP_SIZE
from ptxgen.types import s32, u32

_SLACK: Final = 8.0  # P is at most 2 ** _SLACK, which every 16-bit type holds with room to spare
_SIGNS: Final = 0x8000_8000  # of two elements in a word
_ROWS: Final = (0, FRAGMENT_STEP)  # of a thread's part of a product, counted from its first row


def wgmma_latent_forward(config: KernelConfig, t: LatentTiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    # Proofs do not follow shifts and products through what packed heads divide.
    short = not config.packed
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=short)
    given = Parameters.declare(k, config)
    producer = k.warpgroup_role("producer", registers=t.producer_registers)
    consumer = k.warpgroup_role("consumer", warpgroups=t.consumers, registers=t.consumer_registers)
    rings = LatentRings.declare(k, config, t, producer, consumer)
    shape = (t.consumers * WGMMA_ROWS, t.keys_of_consumer)
    weights = k.tma.tile("P_tile", shape, config.dtype.scalar)
    numbers = Exchange.room(k, WGMMA_ROWS)
    shares = config.features.varlen or config.features.cached  # what lies behind the keys may be anything
    odd = NonFinite(k, config) if config.hides_keys or shares else None
    with producer:
        cta = Cta.of(k, config, given)
        with k.when(_has_tiles(cta), uniform=True):
            rings.fill(k, cta)
    with consumer:
        _Consumer(k, config, t, given, consumer, rings, weights, numbers, odd).run()
    return k.build()


def _has_tiles(cta: Cta) -> Value:
    """Whether the CTA has rows, and they see a tile of keys."""
    has_tiles = cta.tiles > (0 if cta.first_tile is None else cta.first_tile)
    # The grid is sized for the longest of packed sequences.
    return has_tiles if cta.queries_from is None else has_tiles & (cta.first_row < cta.O.rows)


class _Consumer:
    """What the two warpgroups that compute do."""

    def __init__(
        self,
        k: KernelBuilder,
        config: KernelConfig,
        t: LatentTiling,
        given: Parameters,
        role: Role,
        rings: LatentRings,
        weights: BoxTile,
        numbers: SharedTile,
        odd: NonFinite | None,
    ) -> None:
        self.k = k
        self.config = config
        self.t = t
        self.given = given
        self.cta = Cta.of(k, config, given)
        self.role = role
        self.team = Team(role)
        self.rings = rings
        self.P = weights
        self.numbers = numbers
        self.odd = odd

    def run(self) -> None:
        """Compute and store the rows of O."""
        k, t, cta = self.k, self.t, self.cta
        self.S = k.wgmma.accumulator(WGMMA_ROWS, t.keys_of_consumer, zero=False)
        self.O = k.wgmma.accumulator(WGMMA_ROWS, t.columns_of_consumer)
        # A warpgroup's number is the same in all lanes: descriptors made of it are in uniform registers.
        self.group = k.warp_index // (WARPGROUP // WARP_SIZE) % t.consumers
        self.my_group = k.thread_id() // WARPGROUP % t.consumers  # the same, which proofs follow
        self.my_first_row = cta.first_row + k.signed(self.S.row)
        self.query_of = None
        if cta.packs_queries:
            self.query_of = [cta.query(self.my_first_row + down) for down in _ROWS].__getitem__
        self.in_quad = k.thread_id() % QUAD_LANES
        # Of the lanes that share a row, in both warpgroups, the first counts its sink and writes its LSE.
        self.lane = self.in_quad + self.my_group * QUAD_LANES
        sinks = cta.sinks(k, self.lane, _ROWS, lambda: self.my_first_row)
        scale = k.max(k.abs(cta.scale_log2), LEAST_SCALE) if cta.scoring is None else None
        leads = self.in_quad == 0
        exchange = Exchange(k, self.role, self.numbers, self.my_group, self.S.row, _ROWS, leads)
        self.softmax = SharedRowsSoftmax(k, exchange, QUAD, scale, _SLACK, sinks)
        with k.when(_has_tiles(cta), uniform=True):
            self.q = self._queries()
            self._flip_signs()
            for begin, end, cut in tile_runs(k, cta, lambda: Cta.of(k, self.config, self.given)):
                with k.loop(-begin, end if isinstance(end, int) else -end) as n:
                    seen = cta.mask.sees_tile(self.rings.first_key(n)) if cta.mask.has_gaps else None
                    with nullcontext() if seen is None else k.when(seen, uniform=True):
                        self._next(n, cut)
        if self.config.begins_next:
            k.note("the grid that merges the parts may begin")
            k.griddepcontrol_launch_dependents()
        self._finish()

    def _queries(self) -> BoxTile:
        """The tile of Q, when it is there."""
        queries = self.rings.queries
        if isinstance(queries, Ring):
            return queries.acquire().q
        rows = BoxRows(self.k, self.team, queries)
        rows.load(self.cta.Q, self.cta.first_row)
        commit_copies(self.k)
        await_copies(self.k)
        self.k.fence_proxy_async(space="shared::cta")
        self.role.barrier.sync()
        return queries

    def _flip_signs(self) -> None:
        """Negate Q if the scale is negative: the softmax takes a positive one."""
        k, q = self.k, self.q
        if self.cta.scoring is not None:
            return
        with k.when(self.given.scale.as_(s32) < 0, uniform=True):
            for at in q.chunks(self.role.thread, self.role.threads):
                k.store(at, [word ^ _SIGNS for word in k.load(at, 4)])
            k.fence_proxy_async(space="shared::cta")
            self.role.barrier.sync()

    def _next(self, n: Value, cut: Cut) -> None:
        """Take in the tile of keys with -n - 1 tiles before it."""
        k, half = self.k, self.t.keys_of_consumer
        stage = self.rings.keys.acquire()
        k.note("S = Q K^T, of half of the keys")
        self.S.set(self.q.part(0, WGMMA_ROWS) @ stage.k.part(self.group * half, half).T)
        k.wgmma.wait()
        self._weigh(n, cut)  # both warpgroups have met in it, behind their scores
        if cut.hides:
            self._clear(stage.k)
        self.S.write(self.P, self.group * WGMMA_ROWS)
        k.fence_proxy_async(space="shared::cta")
        self.softmax.rescale(self.O.rows_of_thread)
        self.role.barrier.sync()
        k.note("O += P V, of half of the columns")
        values = stage.k.from_column(self.group * self.t.columns_of_consumer, self.t.columns_of_consumer)
        with k.wgmma.group():
            for part in range(self.t.consumers):
                self.O += self.P.part(part * WGMMA_ROWS, WGMMA_ROWS) @ values.part(part * half, half)
        k.wgmma.wait()
        stage.release()

    def _clear(self, tile: BoxTile) -> None:
        """Set NaN and infinity in the values of a tile to 0 whose keys some rows do not see."""
        if self.odd is None:
            return
        width = tile.layout.slab_columns
        with self.k.loop(0, self.t.output_columns, step=width, type=u32) as first:
            part = tile.from_column(first, width)
            self.odd.clear_chunks(part.chunks(self.role.thread, self.role.threads))

    def _weigh(self, n: Value, cut: Cut) -> None:
        """P = exp2(scale * (S - shift)) of the keys of this warpgroup."""
        k, t, cta, S = self.k, self.t, self.cta, self.S.rows_of_thread
        places = None
        if cut.hides or cta.scoring is not None or cta.after_softmax:
            half = t.keys_of_consumer
            places = ScorePlaces(
                k,
                self.my_first_row,
                self.rings.first_key(n) + k.signed(self.my_group) * half,
                self.in_quad * 2,
                _ROWS,
                fragment_columns(half),
                half % KEYS_PER_BLOCK == 0,
                cta.packing,
                self.query_of,
            )
            if cta.scoring is not None:
                cta.scoring.apply(S, places)
            if cut.hides:
                cta.mask.apply(k, S, places, in_front=cut is Cut.IN_FRONT)
        k.note("P = exp2(scale * S - shift)")
        self.softmax.weigh(S)
        if places is not None:
            for feature in cta.after_softmax:
                feature.drop(S, places)

    def _finish(self) -> None:
        """O / sum, to global memory."""
        k, t = self.k, self.t
        k.note("O / sum, LSE")
        cta = Cta.of(k, self.config, self.given)
        O, first_row = self.O.rows_of_thread, cta.first_row + k.signed(self.S.row)
        self.softmax.join()
        finish_rows(k, cta, (first_row, _ROWS), lambda: self.lane, self.softmax, O, None)
        out, mine = self.rings.out, t.columns_of_consumer
        if out is None:
            column = k.signed(self.in_quad) * 2 + k.signed(self.my_group) * mine
            store_sums(k, (cta.O, lambda: first_row), _ROWS, column, mine, t.slices, O)
        else:
            # Both have done with Q, since they have met for the sums.
            self.O.write(out.from_column(self.group * mine, mine))
            self._send(cta, out)
        if self.odd is not None:
            cleared = [
                (end * t.tile, begin * t.tile)
                for begin, end, cut in tile_runs(k, cta, lambda: cta)
                if cut.hides
            ]
            self.odd.restore(cta, t.block_q, cleared, self.team)

    def _send(self, cta: Cta, out: BoxTile) -> None:
        """Store the tile of O: by a tensor copy, unless rows behind those of the CTA, or between them, are
        of others.
        """
        k, whole = self.k, None
        if self.config.packed:
            self._send_rows(cta, out)
            return
        if cta.queries_from is not None:
            whole = cta.first_row + self.t.block_q <= cta.O.rows
        with nullcontext() if whole is None else k.when(whole, uniform=True):
            k.tma.store(out, self.rings.place("O", cta, cta.first_row), visible=self.odd is not None)
        if whole is not None:
            with k.otherwise():
                self._send_rows(cta, out)

    def _send_rows(self, cta: Cta, out: BoxTile) -> None:
        """Store the rows of O that the CTA has."""
        self.role.barrier.sync()
        BoxRows(self.k, self.team, out).store(cta.O, cta.first_row)
