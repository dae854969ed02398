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
from flash.families.wgmma import LEAST_STAGES, WGMMA_ROWS
from flash.problem.gradients import GradientConfig
from ptxgen.dsl import KernelBuilder, Value, marked
from ptxgen.dsl.hopper import Accumulator, BoxTile
from ptxgen.dsl.hopper.stage import Stage
from ptxgen.types import f32

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
        """Declare the registers of a consumer."""
        k, t = self.k, self.config.wgmma
        self.stores = k.tma.async_stores("warpgroup")
        self.columns = t.half_columns
        self.dQ = k.wgmma.accumulator(WGMMA_ROWS, self.columns, zero=False)
        self.first = self.pipeline.group() * (WGMMA_ROWS * self.columns)

    @marked("wgmma sums of queries: dS")
    def write(self, dS: Accumulator) -> None:
        """Write dS of this warpgroup's keys, rounded, to the next stage of the ring. The arrival at its
        barrier tells the other threads, too, that the reduction before has read the tile of dQ.
        """
        self.stores.wait_read(meet=False)
        with self.exchange.write() as stage:
            dS.write(stage.ds, self.pipeline.group_row())

    @marked("wgmma sums of queries: products")
    def multiply(self, K_tile: BoxTile) -> Stage:
        """Start dS K of this warpgroup's columns; returns the stage of dS, which is read meanwhile."""
        stage = self.exchange.acquire()
        self.dQ.set(stage.ds.T @ K_tile.from_column(self.pipeline.group() * self.columns, self.columns))
        return stage

    @marked("wgmma sums of queries: reductions")
    def add(self, parameters: GradientParameters, batch: Value, head: Value, n: Value) -> None:
        """Start adding the products, which have been waited for, to the block of tile `n` of a head."""
        k, t = self.k, self.config.wgmma
        self.dQ.write_in_thread_order(self.tile, self.first)
        block = parameters.block_of_sums(k, batch, head, n, t.tile, t.widths[0])
        count = WGMMA_ROWS * self.columns
        self.stores.reduce(self.tile, block.element(self.first), "add", first=self.first, count=count)

    def end(self) -> None:
        """Wait until the last reduction has read shared memory."""
        self.stores.wait_read()
