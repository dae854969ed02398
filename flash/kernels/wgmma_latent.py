"""The forward kernel for Hopper where V is the first columns of K, and rows are wider than 256 columns:
multi-head latent attention (MLA), whose query heads share one row of 576 columns for each key.

One warpgroup has tiles of Q and K copied to shared memory by the tensor memory accelerator; a tile of K is
there once, for both products. The two others take the same 64 query rows, which in decoding are those of
packed heads. Each has half of the columns of O, because the registers of one have no room for all columns,
and computes the scores of every second tile. It adds its own weights times its half of the values from
registers, and passes them on through shared memory, with the shifts of rows, to the other one, which does the
same with its half. So while one takes exponentials, tensor cores have products of the other. FlashMLA ("A
Deep-Dive Into the New Flash MLA Kernel") deals the work in this way.
"""

from __future__ import annotations

from typing import ClassVar

from flash.device.latent_pipeline import GatheredLatentPipeline, LatentPipeline, PingPongTiles
from flash.device.masked_tiles import Masking
from flash.device.shared_rows_softmax import Exchange, SharedRowsSoftmax
from flash.device.stored_sums import LaneColumns
from flash.device.warpgroup_roles import SLACK, Consumer, attention_module
from flash.device.wgmma_outputs import ROWS
from flash.device.work_tiles import WorkTile
from flash.families.wgmma import WARPGROUP, WGMMA_ROWS
from flash.families.wgmma_latent import LATENT, LatentTiling
from flash.problem.kernel_config import KernelConfig
from ptxgen import ir
from ptxgen.dsl import Value, marked
from ptxgen.dsl.hopper import Accumulator, BoxTile, Stage
from ptxgen.dsl.matrices.lanes import QUAD, QUAD_LANES
from ptxgen.records import dataclass
from ptxgen.types import s32


def wgmma_latent_forward(config: KernelConfig, t: LatentTiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    return attention_module(
        config, t, GatheredLatentPipeline if config.gathers else LatentPipeline, LatentConsumer
    )


@dataclass(frozen=True)
class HalfOutputs:
    """The columns of O that warpgroup `group` (u32, 0 or 1) has of all rows."""

    sums: Accumulator
    uniform_group: Value  # see `Consumer`
    group: Value
    in_quad: Value

    def write(self, tile: BoxTile) -> None:
        """See `Outputs`. Both warpgroups have done with Q, since they have met for the sums."""
        columns = self.sums.columns
        self.sums.write(tile.from_column(self.uniform_group * columns, columns))

    def lane_columns(self, width: int) -> LaneColumns:  # noqa: ARG002
        """See `Outputs`."""
        columns = self.sums.columns
        return LaneColumns.of_tiles(self.in_quad.as_(s32) * 2 + self.group.as_(s32) * columns, columns)


class LatentConsumer(Consumer):
    """See `Consumer`. The two warpgroups have the same rows, and each has half of the columns of O; one
    computes the scores of a tile, the other one those of the next.
    """

    shares_rows: ClassVar[bool] = True
    softmax: SharedRowsSoftmax

    @marked("wgmma latent: begin")
    def __init__(self, work: WorkTile) -> None:
        k, t, pipeline = work.k, work.t, work.pipeline
        t = LATENT.require(t)
        assert isinstance(pipeline, LatentPipeline)
        S = k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False)
        super().__init__(work, S, k.wgmma.accumulator(WGMMA_ROWS, t.columns_of_consumer))
        self.t = t
        self.pipeline = pipeline
        # A row has four lanes in each of the two warpgroups: lane 0 counts its sink and writes its LSE.
        self.lane = self.in_quad + self.group * QUAD_LANES
        scale, sinks = self.softmax_arguments()
        leads, first = self.in_quad == 0, k.take_barriers("latents", 2 * t.consumers)
        self.exchange = Exchange(k, self.role, pipeline.rooms, self.group, self.S.row, ROWS, leads, first)
        self.alone = self.group + (first + t.consumers)  # the barrier of this warpgroup alone
        self.softmax = SharedRowsSoftmax(k, self.exchange, QUAD, scale, SLACK, sinks)
        self.tiles = PingPongTiles(k, pipeline, self.uniform_group)
        self.outputs = HalfOutputs(self.O, self.uniform_group, self.group, self.in_quad)

    def walk(self) -> None:
        """See `Consumer`: the last tile of keys is the first warpgroup's."""
        with self.k.when(self.tiles.is_mine):
            self._take_in(-self.cta.tiles, Masking.FULL, follows=False)
        self.tiles.advance()
        self.each_tile(self.next, after_last=True)
        self.last()

    def next(self, n: Value, masking: Masking) -> None:
        """Compute the tile of keys with -n - 1 tiles before it, if this warpgroup takes that tile."""
        with self.k.when(self.tiles.is_mine):
            self._take_in(n, masking, follows=True)
        self.tiles.advance()

    @marked("wgmma latent: last values")
    def last(self) -> None:
        """Compute O += P V of the last tile, if the other warpgroup has computed its scores."""
        with self.k.when(self.tiles.is_mine):
            before = self._values_before()
            self.k.wgmma.wait()
            before.release()

    @marked("wgmma latent: take in")
    def _take_in(self, n: Value, masking: Masking, *, follows: bool) -> None:
        """Take in this warpgroup's tile of keys with -n - 1 tiles before it and, if it `follows` one, the
        values of that one.
        """
        k = self.k
        mine, other = self._scores(follows=follows)
        self.weigh(n, masking, self.cta.scoring)
        if masking.hides:
            self._clear_values(mine, other)
        self.softmax.rescale(self.O.rows_of_thread)
        k.note("O += P V")
        self.O += self.S.packed(self.config.dtype.scalar) @ mine.v
        self.S.write(self.pipeline.weights)
        k.fence_proxy_async(space="shared::cta")
        self.softmax.show()
        self.exchange.hand_on()
        k.wgmma.wait()
        mine.release()
        other.close()  # the other warpgroup has yet to multiply by it

    @marked("wgmma latent: tile")
    def _scores(self, *, follows: bool) -> tuple[Stage, Stage]:
        """S = Q K^T of this warpgroup's tile, over columns as they arrive, and if it `follows` another tile
        O += P V of that one: before the last columns, so that the other warpgroup takes its exponentials
        under the first ones. Returns the halves of the tile that are values, that of this warpgroup first.
        """
        k, tiles, t = self.k, self.tiles, self.t
        k.note("S = Q K^T")
        rest = tiles.rest()
        if rest is not None:
            self.S.set(self.queries.tile.from_column(t.output_columns, t.rest_columns) @ rest.k.T)
        mine = tiles.half(0)
        for part in range(t.parts_of_half):
            self._add_scores(mine, part, self.uniform_group, fresh=rest is None and not part)
        other, last = tiles.half(1), t.parts_of_half - 1
        for part in range(last):
            self._add_scores(other, part, 1 - self.uniform_group)
        before = self._values_before() if follows else None
        self._add_scores(other, last, 1 - self.uniform_group)
        if before is not None:
            k.wgmma.wait(1)
            before.release()
        k.wgmma.wait()
        if rest is not None:
            rest.release()
        return mine, other

    @marked("wgmma latent: scores")
    def _add_scores(self, half: Stage, part: int, group: Value, *, fresh: bool = False) -> None:
        """Add the products of a part of half of the columns that are values, those of a warpgroup, to S; if S
        is `fresh`, they replace it.
        """
        width = self.t.columns_of_consumer // self.t.parts_of_half
        if part:
            half.wait(part)
        first = part * width
        Q = self.queries.tile.from_column(group * self.t.columns_of_consumer + first, width)
        product = Q @ half.v.from_column(first, width).T
        if fresh:
            self.S.set(product)
        else:
            self.S += product

    @marked("wgmma latent: values before")
    def _values_before(self) -> Stage:
        """Start O += P V of the previous tile, which is the other warpgroup's. Returns the stage of its
        values.
        """
        self.k.note("O += P V of the tile before")
        self.exchange.wait()
        self.softmax.follow(self.O.rows_of_thread)
        half = self.tiles.half_before()
        self.O += self.pipeline.weights @ half.v
        return half

    def _clear_values(self, *halves: Stage) -> None:
        """Set NaN and infinity in the values of a tile to 0 whose keys some rows do not see."""
        k, nonfinite = self.k, self.pipeline.nonfinite
        if nonfinite is None:
            return
        for half in halves:
            nonfinite.clear_chunks(half.v.chunks(k.thread_id() % WARPGROUP, WARPGROUP))
        k.fence_proxy_async(space="shared::cta")
        k.bar_sync(self.alone, WARPGROUP)
