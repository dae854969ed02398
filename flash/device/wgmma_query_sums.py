"""dQ += dS K where a CTA owns keys, by `wgmma`: to f32 sums in global memory, to which all CTAs add.

A warpgroup has dS of its keys and all queries of a tile. The sum over keys needs dS of all keys of the CTA:
it passes through a ring of shared memory, whose rows are keys, from which each warpgroup multiplies all of it
by its half of the columns of K. A bulk reduction adds a half of a tile of dQ, which lies in shared memory in
the order of threads, to the same half of a block in global memory; the order of such sums differs from run to
run. `flash/kernels/wgmma_rounded_sums.py` reads the blocks.
"""

from __future__ import annotations

from typing import Final

from flash.device.gradient_parts import GradientParameters
from flash.device.wgmma_gradient_pipeline import GradientPipeline
from flash.families.wgmma import LEAST_STAGES, WARPGROUP, WGMMA_ROWS
from flash.families.wgmma_gradient import CONSUMERS
from flash.problem.gradients import GradientConfig
from ptxgen.dsl import KernelBuilder, Pointer, Value, marked
from ptxgen.dsl.hopper import Accumulator, BoxTile
from ptxgen.dsl.hopper.stage import Stage
from ptxgen.types import f32, s32, u32

_ALIGN: Final = 128  # bytes, of the tile of a bulk reduction


class WgmmaQuerySums:
    """Adds dS K of a tile of queries to the sums. It is made before the roles begin, and the consumer begins
    it.
    """

    def __init__(self, k: KernelBuilder, config: GradientConfig, pipeline: GradientPipeline) -> None:
        self.k, self.config, self.pipeline = k, config, pipeline
        t, consumer = config.wgmma, pipeline.consumer
        shape = (t.block, t.tile), config.dtype.scalar
        self.exchange = k.tma.ring(LEAST_STAGES, consumer, consumer, written=True, ds=shape)
        self.tile = k.shared("dQ_tile", (1, t.tile * t.widths[0]), f32, align=_ALIGN)

    @marked("wgmma sums of queries: begin")
    def begin(self) -> None:
        """Declare the registers of a consumer in which it sums dQ."""
        k, t = self.k, self.config.wgmma
        self.stores = k.tma.async_stores("warpgroup")
        self.columns = t.half_columns
        self.dQ = k.wgmma.accumulator(WGMMA_ROWS, self.columns, zero=False)
        group = self.pipeline.group()
        self.row, self.first_column = self.pipeline.group_row(), group * self.columns
        self.first = group * (WGMMA_ROWS * self.columns)
        # The head and the number of the tile to which this warpgroup has added last; -1 before the first.
        self.head, self.n = k.var(s32, 0), k.var(s32, -1)

    @marked("wgmma sums of queries: dS")
    def write(self, dS: Accumulator, parameters: GradientParameters, batch: Value) -> None:
        """Write dS of this warpgroup's keys, rounded, to the next stage of the ring. The arrival at its
        barrier tells the other threads, too, that the reduction before has read the tile of dQ.
        """
        self._finish_reduction(parameters, batch)
        with self.exchange.write() as stage:
            dS.write(stage.ds, self.row)

    @marked("wgmma sums of queries: products")
    def multiply(self, K_tile: BoxTile) -> Stage:
        """Start dS K of this warpgroup's columns; returns the stage of dS, which is read meanwhile."""
        stage = self.exchange.acquire()
        self.dQ.set(stage.ds.T @ K_tile.from_column(self.first_column, self.columns))
        return stage

    @marked("wgmma sums of queries: reductions")
    def add(
        self, parameters: GradientParameters, batch: Value, head: Value, n: Value, ticket: Value | None
    ) -> None:
        """Start adding the products, which have been waited for, to the block of tile `n` of a head; in a
        fixed order when as many CTAs have added to it as `ticket`, u32, says.
        """
        k, t = self.k, self.config.wgmma
        self.dQ.write_in_thread_order(self.tile, self.first)
        block = parameters.block_of_sums(k, batch, head, n, t.tile, t.widths[0])
        count = WGMMA_ROWS * self.columns
        if ticket is not None:
            self.head.set(head)
            self.n.set(n)
            self._await(self._counter(parameters, batch), ticket)
        self.stores.reduce(self.tile, block.element(self.first), "add", first=self.first, count=count)

    @marked("wgmma sums of queries: end")
    def end(self, parameters: GradientParameters, batch: Value) -> None:
        """Wait until the last reduction has read shared memory, and in a fixed order let the next CTA add."""
        self._finish_reduction(parameters, batch)

    @marked("wgmma sums of queries: order")
    def _finish_reduction(self, parameters: GradientParameters, batch: Value) -> None:
        """Wait, by the thread that started it, until the reduction before has read shared memory; in a fixed
        order until it is complete, and let the next CTA add to its block. That comes an iteration late, when
        nobody waits for the reduction.
        """
        k = self.k
        if not self.config.adds_in_order:
            self.stores.wait_read(meet=False)
            return
        self.stores.wait_written(meet=False)
        with k.when(self.stores.leads & (self.n >= 0)):
            counter, one = self._counter(parameters, batch), k.mov(1, type=u32)
            k.red(counter, one, sem="release", scope="gpu", space="global", op="add")

    def _counter(self, parameters: GradientParameters, batch: Value) -> Pointer:
        """The counter of the block to which this warpgroup adds, or has added last."""
        k, t = self.k, self.config.wgmma
        # It is one of the heads anyway: the minimum states it for the proof.
        head = k.min(self.head.as_(u32), (parameters.heads - 1).as_(u32)).as_(s32)
        half = k.thread_id() // WARPGROUP % CONSUMERS
        return parameters.order_of_block(k, batch, head, self.n, t.tile, half)

    @marked("wgmma sums of queries: order")
    def _await(self, counter: Pointer, ticket: Value) -> None:
        """Have the thread that starts reductions wait until as many CTAs as `ticket` says have added."""
        k = self.k
        with k.when(self.stores.leads):
            k.repeat_until(
                lambda: k.ld_ordered(counter, sem="acquire", scope="gpu", space="global", type=u32) == ticket
            )
            k.fence_proxy_async(space="global")  # the reduction comes after the acquire
