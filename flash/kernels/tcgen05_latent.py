"""The forward kernel for Blackwell where V is the first columns of K, and rows are wider than 256 columns.

It is that of `flash/kernels/tcgen05_forward.py` with one row tile, but for S = Q Kᵀ: 128 rows of Q with 576
columns take 144 of the 227 KB of shared memory, so that K comes in slabs of 64 columns, over which one thread
sums the scores. A commit releases each slab, so that the first slabs of the next tile arrive while the
softmax weighs this one.
"""

from __future__ import annotations

from contextlib import ExitStack

from flash.device.latent_tensor_pipeline import GatheredLatentTensorPipeline, LatentTensorPipeline
from flash.device.warpgroup_roles import has_tiles
from flash.device.work_tiles import WorkTile
from flash.families.tcgen05_latent import SLAB, Tcgen05LatentTiling
from flash.kernels.tcgen05_forward import Products, Work, attention_module
from flash.problem.kernel_config import KernelConfig
from ptxgen import ir
from ptxgen.dsl import marked
from ptxgen.dsl.blackwell import TensorRing, TensorStage
from ptxgen.dsl.hopper import Operand
from ptxgen.types import u32


def tcgen05_latent_forward(config: KernelConfig, t: Tcgen05LatentTiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    pipeline = GatheredLatentTensorPipeline if t.gathers else LatentTensorPipeline
    return attention_module(config, t, Work(config.dtype.scalar, pipeline, products=LatentProducts))


class LatentProducts(Products):
    """See `Products`; S is a sum over slabs of K."""

    @marked("tcgen05 latent: products")
    def multiply(self, work: WorkTile, rows: TensorRing) -> None:
        """See `Products`; there is one row tile."""
        k, cta, pipeline, memory = work.k, work.cta, self.pipeline, self.pipeline.memory
        with ExitStack() as blocks:
            blocks.enter_context(memory.by_warp())
            blocks.enter_context(k.when(has_tiles(cta), uniform=True))
            query = blocks.enter_context(pipeline.queries.drain())
            columns = range(0, work.t.score_columns, SLAB)
            Q = [self.operand(query.q.from_column(first, SLAB)) for first in columns]
            with rows.fill() as stage:
                self._scores(stage, Q)
            has_sums = k.var(u32, 0)  # whether O has any
            with pipeline.each_tile(cta, after=1):
                with rows.fill() as stage:
                    with pipeline.values.drain() as value, memory.one_thread():
                        k.note("O += P V of the tile before")
                        self.outputs(stage, self.operand(value.v), has_sums != 0)
                    self._scores(stage, Q)
                has_sums.set(1)
            with rows.fill() as stage, pipeline.values.drain() as value, memory.one_thread():
                k.note("O += P V of the first tile, which comes last")
                self.outputs(stage, self.operand(value.v), has_sums != 0)

    @marked("tcgen05 latent: scores")
    def _scores(self, stage: TensorStage, Q: list[Operand]) -> None:
        """Start S = Q Kᵀ, slab by slab as they arrive."""
        self.pipeline.k.note("S = Q K^T")
        for number, Q_i in enumerate(Q):
            with self.pipeline.keys.drain() as key, self.pipeline.memory.one_thread():
                stage.s.mma(Q_i, self.operand(key.k.T), use=number > 0)
