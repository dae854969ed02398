"""The forward kernel for Blackwell with Q, K and V of fp8: O = softmax(scale Q Kᵀ + mask) V in one pass over
K and V, by the roles of `flash/kernels/tcgen05_forward.py`.

Numbers of Q, K and V are multiplied by scales of their head: the scales of Q and K become part of the
softmax's scale, and O is multiplied by the scale of V. Weights are rounded to e4m3, whatever the type of V,
after the softmax has scaled the largest of a row to 2^8, and O is divided by the sum of the rounded weights:
their product with columns of ones, in columns of tensor memory next to those of O.

Sums of `tcgen05.mma` keep 25 bits (`ptxgen/isa/tensor_core.py`), so that those of all keys stay in tensor
memory: only `wgmma` of fp8 has to begin each tile at zero.
"""

from __future__ import annotations

from flash.device.tensor_fp8 import Fp8Correction, Fp8RowTiles, Fp8TensorPipeline
from flash.families.tcgen05_fp8 import SUM_COLUMNS, Tcgen05Fp8Tiling
from flash.kernels.tcgen05_forward import Products, Work, attention_module
from flash.operands.dtypes import E4M3
from flash.problem.kernel_config import KernelConfig
from ptxgen import ir
from ptxgen.dsl import Value, marked
from ptxgen.dsl.blackwell import TensorStage
from ptxgen.dsl.hopper import Operand


def tcgen05_fp8_attention_forward(config: KernelConfig, t: Tcgen05Fp8Tiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    of = Work(E4M3.name, Fp8TensorPipeline, Fp8RowTiles, Fp8Correction, Fp8Products, (("l", SUM_COLUMNS),))
    return attention_module(config, t, of)


class Fp8Products(Products):
    """See `Products`; the elements of tiles are of the type of Q, K and V."""

    pipeline: Fp8TensorPipeline

    @marked("tcgen05 fp8: ones")
    def begin(self) -> None:
        """Store ones as operands whose product sums weights, by the warp that starts the products."""
        k, pipeline = self.pipeline.k, self.pipeline
        role = pipeline.multiplying
        for at in pipeline.ones.chunks(role.thread, role.threads):
            k.store(at, [E4M3.one * 0x0101_0101] * 4)
        k.fence_proxy_async(space="shared::cta")
        k.bar_warp_sync(-1)

    def narrow(self, of: Operand) -> Operand:
        """The operand of a product with its bytes taken as fp8 of the config's type."""
        return of.as_fp8(self.pipeline.config.dtype.name)

    def scores(self, stage: TensorStage, Q: Operand, K: Operand, i: int) -> None:
        """See `Products`."""
        super().scores(stage, self.narrow(Q), self.narrow(K), i)

    def outputs(self, stage: TensorStage, V: Operand, use: Value) -> None:
        """See `Products`; the sum of the weights grows by its columns of ones."""
        super().outputs(stage, self.narrow(V), use)
        self.sum_weights(stage, use)

    def sum_weights(self, stage: TensorStage, use: Value) -> None:
        """Start adding the weights to their row sums, or where `use` does not hold set the sums to them."""
        stage.l.mma(stage.p, self.pipeline.ones.T.as_fp8(E4M3.name), use=use)
