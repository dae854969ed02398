"""Tiles of Q and K on their way to shared memory by tensor copies where V is columns of K."""

from __future__ import annotations

from typing import Any, Final

from flash.device.cta import Cta
from flash.device.gathered_pipeline import Copier, Lookup
from flash.device.nonfinite import NonFinite, hides_rows
from flash.device.pages import PagedMatrix
from flash.device.shared_rows_softmax import Exchange
from flash.device.tma_pipeline import TmaPipeline
from flash.families.wgmma import WGMMA_ROWS, WgmmaTiling
from flash.families.wgmma_latent import LATENT
from ptxgen.dsl import KernelBuilder, Role, Value, marked
from ptxgen.dsl.hopper import Ring, Stage
from ptxgen.types import s32, u32

_HALVES: Final = 2  # of the columns of a tile that are V


class LatentPipeline(TmaPipeline):
    """See `TmaPipeline`; V is columns of K.

    Two warpgroups have the same rows, each with half of the columns of O, and alternate between tiles: one
    computes the scores of a tile, its own one, and passes on the weights, through `weights`, and shifts of
    rows, through `rooms`. A tile of K comes in parts, which are given back one by one: in `keys`, which is
    also `values`, two halves of the columns that are V, first that of the warpgroup whose tile it is; and in
    `rest` the columns after these, if there are any.
    """

    nonfinite: NonFinite | None  # consumers clear tiles, which they also read as K

    def declare(self, t: WgmmaTiling, consumer: Role) -> None:
        """See `TmaPipeline`."""
        t = LATENT.require(t)
        k, config, producer = self.k, self.config, self.producer
        element = config.dtype.scalar
        self.weights = k.tma.tile("P_tile", (WGMMA_ROWS, t.tile), element)
        over = self.declare_queries(t, consumer)
        how: dict[str, Any] = {"dealt": True, "gathered": t.gathers}
        # Each room lies after barriers, where the next tile does not begin.
        shifts = Exchange.room(k, "shifts", WGMMA_ROWS)
        self.rest: Ring | None = None
        if t.rest_columns:
            columns = ((t.tile, t.rest_columns), element)
            self.rest = k.tma.ring(t.stages, producer, consumer, **how, k=columns)
        self.rooms = shifts, Exchange.room(k, "rests_of_shifts", WGMMA_ROWS)  # see `Exchange`
        half = ((t.tile, t.columns_of_consumer), element)
        stages = _HALVES * t.stages
        self.keys = k.tma.ring(stages, producer, consumer, **how, parts=t.parts_of_half, v=half)
        self.values = self.keys
        self.declare_output(t, over)
        self.nonfinite = NonFinite(k, config) if hides_rows(config) else None

    @marked("latent rings: fill")
    def load(self, cta: Cta) -> None:
        """See `TmaPipeline`; the parts of a tile come in the order in which scores are summed."""
        k = self.k
        self.load_queries(cta)
        width = self.keys.tiles["v"].columns
        first = k.var(s32, 0)  # the first column of the warpgroup whose tile is next
        with self.each_tile(cta) as (_, row):
            if self.rest is not None:
                with self.rest.fill() as stage:
                    k.tma.load(stage.k, self.corners("K", cta, row, _HALVES * width))
            for column in (first, width - first):
                with self.keys.fill() as stage:
                    k.tma.load(stage.v, self.corners("K", cta, row, column))
            first.set(width - first)


class GatheredLatentPipeline(LatentPipeline):
    """See `LatentPipeline`; the producer copies the rows of K one by one, as a `GatheredPipeline` does, and a
    half of the columns that are V arrives as a whole.
    """

    def load(self, cta: Cta) -> None:
        """See `LatentPipeline`."""
        k = self.k
        self.load_queries(cta)
        assert isinstance(cta.K, PagedMatrix)  # rows are gathered from pages
        like, producer = self.keys.tile("v"), self.keys.producer
        width = like.layout.columns
        halves, rests = Copier(k, producer, cta.K, like, width), None
        if self.rest is not None:
            rests = Copier(k, producer, cta.K, self.rest.tile("k"), _HALVES * width)
        lookup = Lookup(k, halves, self.first_key(-cta.tiles), ahead=not cta.mask.has_gaps)
        warpgroup = k.var(u32, 0)  # whose tile is next, 0 or 1
        with self.each_tile(cta) as (_, row):
            rows = lookup.rows(row)
            if self.rest is not None and rests is not None:
                with self.rest.gather() as stage:
                    rests.copy(stage.k, rows, _HALVES * width)
            half = k.selp(1, 0, warpgroup != 0, type=s32)  # a selection, so that proofs know its two values
            for column in (half * width, (1 - half) * width):
                with self.keys.gather() as stage:
                    halves.copy(stage.v, rows, column)
            warpgroup.set(warpgroup ^ 1)


class PingPongTiles:
    """The tiles of keys in order, which two warpgroups take alternately: this warpgroup, number `group` (u32,
    0 or 1), begins with tile `group`. `next_group` is the warpgroup that takes the next tile.
    """

    def __init__(self, k: KernelBuilder, pipeline: LatentPipeline, group: Value) -> None:
        self.k = k
        self.pipeline = pipeline
        self.next_group = k.var(u32, 0)
        self._group = group
        self._stages = pipeline.keys.stages // _HALVES  # tiles
        # With two stages, the tiles of a warpgroup are always in the same one.
        self._at = None if self._stages == _HALVES else k.var(u32, 0)
        self._parity = k.var(u32, 0)

    @property
    def is_mine(self) -> Value:
        """Whether this warpgroup, and not the other one, takes the next tile of keys (ping-pong)."""
        return self.next_group == self._group

    @marked("latent turns: rest")
    def rest(self) -> Stage | None:
        """The columns of this warpgroup's tile after those that are V, once they have arrived; None if there
        are none.
        """
        rest = self.pipeline.rest
        return None if rest is None else rest.take(self._stage, self._parity)

    @marked("latent turns: half")
    def half(self, nth: int) -> Stage:
        """The half of this warpgroup's tile that has its columns of O (0), or the other half (1), once its
        first part has arrived.
        """
        return self.pipeline.keys.take(self._stage * _HALVES + nth, self._parity)

    @marked("latent turns: half before")
    def half_before(self) -> Stage:
        """The half of the previous tile, the other warpgroup's, that has this warpgroup's columns of O, once
        it has arrived.
        """
        k, wraps = self.k, self._stage == 0
        before = k.selp(self._stages - 1, self._stage - 1, wraps)
        half = self.pipeline.keys.take(before * _HALVES + 1, self._parity ^ k.selp(1, 0, wraps, type=u32))
        for part in range(1, self.pipeline.keys.parts):
            half.wait(part)
        return half

    @marked("latent turns: advance")
    def advance(self) -> None:
        """Go on to the next tile of keys, which the other warpgroup takes (ping-pong)."""
        k, at, parity = self.k, self._at, self._parity
        if at is None:
            parity.set(parity ^ self.next_group)
        else:
            is_last = at == self._stages - 1
            parity.set(k.selp(parity ^ 1, parity, is_last))
            at.set(k.selp(0, at + 1, is_last))
        self.next_group.set(self.next_group ^ 1)

    @property
    def _stage(self) -> Value:
        """The stage of the next tile, if this warpgroup takes it."""
        return self._group if self._at is None else self._at
