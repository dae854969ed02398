"""The forward kernel for Hopper where V is the first columns of K, and rows are wider than 256 columns:
multi-head latent attention (MLA), whose query heads share one row of 576 columns for each key.

One warpgroup has tiles of Q and K copied to shared memory by the tensor memory accelerator; a tile of K is
there once, for both products. The two others take the same 64 query rows, which in decoding are those of
packed heads. Each computes the scores of half of the keys of a tile, and half of the columns of O, because
the registers of one have no room for all columns. They exchange the maxima of rows and the weights through
shared memory. FlashMLA ("A Deep-Dive Into the New Flash MLA Kernel") deals the work in this way, but has two
tiles in work at a time; here a tile is done before the next, which is copied meanwhile.
"""

from __future__ import annotations

from flash.device.cta import Cta
from flash.device.finished_rows import finish_rows
from flash.device.latent_rings import LatentRings
from flash.device.nonfinite import NonFinite
from flash.device.shared_rows_softmax import Exchange, SharedRowsSoftmax
from flash.device.stored_sums import LaneColumns, store_sums
from flash.device.tile_runs import Cut, tile_runs
from flash.kernels.wgmma_forward import ROWS, Consumer, attention_module
from flash.problem.kernel_config import KernelConfig
from flash.problem.latent_tiling import LatentTiling
from flash.problem.wgmma_tiling import WARPGROUP, WGMMA_ROWS
from ptxgen import ir
from ptxgen.dsl import Value, marked
from ptxgen.dsl.hopper import BoxTile
from ptxgen.dsl.matrices.lanes import QUAD, QUAD_LANES
from ptxgen.types import u32


def wgmma_latent_forward(config: KernelConfig, t: LatentTiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    return attention_module(config, t, LatentRings, LatentConsumer)


class LatentConsumer(Consumer):
    """See `Consumer`. Each of the two warpgroups computes the scores of half of the keys of a tile, and half
    of the columns of O; both have the same rows.
    """

    rings: LatentRings
    odd: NonFinite | None
    softmax: SharedRowsSoftmax
    t: LatentTiling

    def _begin(self) -> None:
        """See `Consumer`; P is in shared memory."""
        k, t = self.k, self.t
        self.S = k.wgmma.accumulator(WGMMA_ROWS, t.keys_of_consumer, zero=False)
        self.O = k.wgmma.accumulator(WGMMA_ROWS, t.columns_of_consumer)
        self.group = self._group()
        self.my_group = k.thread_id() // WARPGROUP % t.consumers  # the same, which proofs follow
        self._find_rows()
        # A row has four lanes in each of the two warpgroups: lane 0 counts its sink and writes its LSE.
        self.lane = self.in_quad + self.my_group * QUAD_LANES
        scale, sinks = self._arguments_of_softmax(self.lane)
        leads = self.in_quad == 0
        exchange = Exchange(k, self.role, self.rings.numbers, self.my_group, self.S.row, ROWS, leads)
        self.softmax = SharedRowsSoftmax(k, exchange, QUAD, scale, self.slack, sinks)

    def _first_row_of(self, cta: Cta) -> Value:
        """See `Consumer`: both warpgroups have all rows."""
        return cta.first_row + self.k.signed(self.S.row)

    def _first_key(self, n: Value) -> Value:
        """See `Consumer`."""
        return self.rings.first_key(n) + self.k.signed(self.my_group) * self.t.keys_of_consumer

    def _walk(self) -> None:
        """See `Consumer`; a tile is done before the next one is taken."""
        for begin, end, cut in tile_runs(self.k, self.cta, lambda: Cta.of(self.k, self.config, self.given)):
            self._take(begin, end, cut)

    @marked("wgmma latent: next tile")
    def _next(self, n: Value, cut: Cut) -> None:
        """Take in the tile of keys with -n - 1 tiles before it."""
        k, half = self.k, self.t.keys_of_consumer
        stage = self.rings.keys.acquire()
        k.note("S = Q K^T, of half of the keys")
        self.S.set(self.q.part(0, WGMMA_ROWS) @ stage.k.part(self.group * half, half).T)
        k.wgmma.wait()
        self._weigh(n, cut)  # both warpgroups have met in it, behind their scores
        if cut.hides:
            self._clear_values(stage.k)
        self.S.write(self.rings.weights, self.group * WGMMA_ROWS)
        k.fence_proxy_async(space="shared::cta")
        self.softmax.rescale(self.O.rows_of_thread)
        self.role.barrier.sync()
        k.note("O += P V, of half of the columns")
        values = stage.k.from_column(self.group * self.t.columns_of_consumer, self.t.columns_of_consumer)
        with k.wgmma.group():
            for part in range(self.t.consumers):
                P = self.rings.weights.part(part * WGMMA_ROWS, WGMMA_ROWS)
                self.O += P @ values.part(part * half, half)
        k.wgmma.wait()
        stage.release()

    def _clear_values(self, tile: BoxTile) -> None:
        """Set NaN and infinity in the values of a tile to 0 whose keys some rows do not see."""
        if self.odd is None:
            return
        width = tile.layout.slab_columns
        with self.k.loop(0, self.t.output_columns, step=width, type=u32) as first:
            part = tile.from_column(first, width)
            self.odd.clear_chunks(part.chunks(self.role.thread, self.role.threads))

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

    def _cleared(self, cta: Cta) -> list[tuple[Value | int, Value]]:
        """See `Consumer`: values of cut tiles alone were cleared."""
        tile, runs = self.t.tile, tile_runs(self.k, cta, lambda: cta)
        return [(end * tile, begin * tile) for begin, end, cut in runs if cut.hides]
