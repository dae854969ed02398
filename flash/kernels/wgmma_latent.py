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

from flash.device.cta import Cta
from flash.device.finished_rows import finish_rows
from flash.device.gathered_latent_rings import GatheredLatentRings
from flash.device.latent_rings import LatentRings, TilesInTurns
from flash.device.masked_tiles import Masking
from flash.device.nonfinite import NonFinite
from flash.device.shared_rows_softmax import Exchange, SharedRowsSoftmax
from flash.device.stored_sums import LaneColumns, store_sums
from flash.kernels.wgmma_forward import ROWS, Consumer, attention_module
from flash.problem.kernel_config import KernelConfig
from flash.problem.latent_tiling import LatentTiling
from flash.problem.wgmma_tiling import WARPGROUP, WGMMA_ROWS
from ptxgen import ir
from ptxgen.dsl import Value, marked
from ptxgen.dsl.hopper import Stage
from ptxgen.dsl.matrices.lanes import QUAD, QUAD_LANES


def wgmma_latent_forward(config: KernelConfig, t: LatentTiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    return attention_module(config, t, GatheredLatentRings if config.gathers else LatentRings, LatentConsumer)


class LatentConsumer(Consumer):
    """See `Consumer`. The two warpgroups have the same rows, and each has half of the columns of O; they take
    turns at computing the scores of a tile.
    """

    rings: LatentRings
    odd: NonFinite | None
    softmax: SharedRowsSoftmax
    t: LatentTiling

    @marked("wgmma latent: begin")
    def _begin(self) -> None:
        """See `Consumer`."""
        k, t = self.k, self.t
        self.S = k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False)
        self.O = k.wgmma.accumulator(WGMMA_ROWS, t.columns_of_consumer)
        self.group = self._group()
        self.my_group = k.thread_id() // WARPGROUP % t.consumers  # the same, which proofs follow
        self._find_rows()
        # A row has four lanes in each of the two warpgroups: lane 0 counts its sink and writes its LSE.
        self.lane = self.in_quad + self.my_group * QUAD_LANES
        scale, sinks = self._arguments_of_softmax(self.lane)
        leads, first = self.in_quad == 0, k.take_barriers("latents", 2 * t.consumers)
        self.exchange = Exchange(
            k, self.role, self.rings.rooms, self.my_group, self.S.row, ROWS, leads, first
        )
        self.alone = self.my_group + (first + t.consumers)  # the barrier of this warpgroup alone
        self.softmax = SharedRowsSoftmax(k, self.exchange, QUAD, scale, self.slack, sinks)
        self.tiles = TilesInTurns(k, self.rings, self.group)

    def _first_row_of(self, cta: Cta) -> Value:
        """See `Consumer`: both warpgroups have all rows."""
        return cta.first_row + self.k.signed(self.S.row)

    def _first(self) -> None:
        """Take in the last tile of keys, which is the first warpgroup's."""
        with self.k.when(self.tiles.is_mine):
            self._take_in(-self.cta.tiles, Masking.FULL, follows=False)
        self.tiles.advance()

    def _next(self, n: Value, cut: Masking) -> None:
        """Take in the tile of keys with -n - 1 tiles before it, if it is this warpgroup's turn."""
        with self.k.when(self.tiles.is_mine):
            self._take_in(n, cut, follows=True)
        self.tiles.advance()

    @marked("wgmma latent: last values")
    def _last(self) -> None:
        """Add the values of the last tile, if the other warpgroup has computed its scores."""
        with self.k.when(self.tiles.is_mine):
            before = self._values_before()
            self.k.wgmma.wait()
            before.release()

    @marked("wgmma latent: take in")
    def _take_in(self, n: Value, cut: Masking, *, follows: bool) -> None:
        """Take in this warpgroup's tile of keys with -n - 1 tiles before it and, if it `follows` one, the
        values of that one.
        """
        k = self.k
        mine, other = self._scores(follows=follows)
        self._weigh(n, cut)
        if cut.hides:
            self._clear_values(mine, other)
        self.softmax.rescale(self.O.rows_of_thread)
        k.note("O += P V")
        self.O += self.S.packed(self.config.dtype.scalar) @ mine.v
        self.S.write(self.rings.weights)
        k.fence_proxy_async(space="shared::cta")
        self.softmax.show()
        self.exchange.hand_on()
        k.wgmma.wait()
        mine.release()
        other.close()  # the other warpgroup has yet to multiply by it

    @marked("wgmma latent: tile")
    def _scores(self, *, follows: bool) -> tuple[Stage, Stage]:
        """S = Q K^T of this warpgroup's tile, over columns as they arrive, and if it `follows` another tile
        O += P V of that one: in front of the last columns, so that the other warpgroup takes its exponentials
        under the first ones. Returns the halves of the tile that are values, that of this warpgroup first.
        """
        k, tiles, t = self.k, self.tiles, self.t
        k.note("S = Q K^T")
        rest = tiles.rest()
        if rest is not None:
            self.S.set(self.q.from_column(t.output_columns, t.rest_columns) @ rest.k.T)
        mine = tiles.half(0)
        for part in range(t.parts_of_half):
            self._add_scores(mine, part, self.group, fresh=rest is None and not part)
        other, last = tiles.half(1), t.parts_of_half - 1
        for part in range(last):
            self._add_scores(other, part, 1 - self.group)
        before = self._values_before() if follows else None
        self._add_scores(other, last, 1 - self.group)
        if before is not None:
            k.wgmma.wait(1)
            before.release()
        k.wgmma.wait()
        if rest is not None:
            rest.release()
        return mine, other

    @marked("wgmma latent: scores")
    def _add_scores(self, half: Stage, part: int, group: Value, *, fresh: bool = False) -> None:
        """Add the products of a part of half of the columns that are values, those of a warpgroup, to S; if
        it is `fresh`, they replace it.
        """
        width = self.t.columns_of_consumer // self.t.parts_of_half
        if part:
            half.wait(part)
        first = part * width
        Q = self.q.from_column(group * self.t.columns_of_consumer + first, width)
        product = Q @ half.v.from_column(first, width).T
        if fresh:
            self.S.set(product)
        else:
            self.S += product

    @marked("wgmma latent: values before")
    def _values_before(self) -> Stage:
        """Start O += P V of the tile before, which is the other warpgroup's. Returns the stage of its
        values.
        """
        self.k.note("O += P V of the tile before")
        self.exchange.wait()
        self.softmax.follow(self.O.rows_of_thread)
        half = self.tiles.half_before()
        self.O += self.rings.weights @ half.v
        return half

    def _clear_values(self, *halves: Stage) -> None:
        """Set NaN and infinity in the values of a tile to 0 whose keys some rows do not see."""
        k = self.k
        if self.odd is None:
            return
        for half in halves:
            self.odd.clear_chunks(half.v.chunks(k.thread_id() % WARPGROUP, WARPGROUP))
        k.fence_proxy_async(space="shared::cta")
        k.bar_sync(self.alone, WARPGROUP)

    def _finish(self) -> None:
        """O / sum, to global memory."""
        k, t = self.k, self.t
        k.note("O / sum, LSE")
        cta = Cta.of(k, self.config, self.given)
        O, first_row = self.O.rows_of_thread, self._first_row_of(cta)
        self.softmax.join()
        finish_rows(k, cta, (first_row, ROWS), lambda: self.lane, self.softmax, O, None)
        out, mine = self.rings.out, t.columns_of_consumer
        if out is None:
            column = k.signed(self.in_quad) * 2 + k.signed(self.my_group) * mine
            columns = LaneColumns.of_tiles(column, mine)
            store_sums(k, (cta.O, lambda: first_row), ROWS, columns, t.slices, O)
        else:
            # Both have done with Q, since they have met for the sums.
            self.O.write(out.from_column(self.group * mine, mine))
            self._send(cta, out, visible=self.odd is not None)
        if self.odd is not None:
            self.odd.restore(cta, t.block_q, self._cleared(cta), self.team)
