"""The forward kernel for Blackwell with scales of blocks of elements: O = softmax(scale Q Kᵀ + mask) V in one
pass over K and V, by the roles of `flash/kernels/tcgen05_forward.py`.

Of V blocks of 32 elements of a column have a power of two each; of rows of Q and K so do blocks of 32
(MXFP8), or blocks of 16 elements of four bits have a scale of e4m3 (NVFP4). Q Kᵀ and P V take them from
tensor memory (`tcgen05.mma.kind::mxf4nvf4.block_scale` of NVFP4, else `kind::mxf8f6f4`): the thread that
starts products has them copied before the first product of a tile. Weights are those of
`flash/kernels/tcgen05_fp8_forward.py`: they are rounded to e4m3, the largest of a row is 2^8, and O is
divided by the sum of the rounded weights. Their scales are 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from flash.device.tensor_mx import MxCorrection, MxRowTiles, MxTensorPipeline, query_tile
from flash.device.tensor_pipeline import TensorPipeline
from flash.families.tcgen05 import TCGEN05_ROWS, Tcgen05Tiling
from flash.families.tcgen05_fp8 import SUM_COLUMNS
from flash.families.tcgen05_mx import CELL, Tcgen05MxTiling
from flash.kernels.tcgen05_forward import Work, attention_module
from flash.kernels.tcgen05_fp8_forward import Fp8Products
from flash.operands.dtypes import E4M3, MXFP8
from flash.problem.kernel_config import KernelConfig
from ptxgen import ir
from ptxgen.dsl import Value, marked
from ptxgen.dsl.blackwell import TensorStage
from ptxgen.dsl.hopper import Operand

_ONES: Final = 0x7F7F_7F7F  # four scales of 1


def tcgen05_mx_attention_forward(config: KernelConfig, t: Tcgen05MxTiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    of = Work(E4M3.name, MxTensorPipeline, MxRowTiles, MxCorrection, MxProducts, (("l", SUM_COLUMNS),))
    return attention_module(config, t, of)


class MxProducts(Fp8Products):
    """See `Fp8Products`; products take scales, which are copied to tensor memory before them."""

    pipeline: MxTensorPipeline

    def __init__(self, pipeline: TensorPipeline, t: Tcgen05Tiling) -> None:
        super().__init__(pipeline, t)
        assert isinstance(t, Tcgen05MxTiling)  # of the family
        scales, of_row = pipeline.memory.scales, CELL * t.row_cells
        self.blocks = t.blocks
        self.of_queries = [scales(TCGEN05_ROWS, of_row, t.blocks.form) for _ in range(t.row_tiles)]
        self.of_keys = scales(t.tile, of_row, t.blocks.form)
        self.of_values = scales(t.output_columns, CELL, MXFP8.form)
        self.of_weights = scales(TCGEN05_ROWS, CELL, MXFP8.form)

    @marked("tcgen05 mx: ones")
    def begin(self) -> None:
        """Store ones as operands whose product sums weights, and the scale factors of weights."""
        k, pipeline = self.pipeline.k, self.pipeline
        role = pipeline.multiplying
        for at in pipeline.units.chunks(role.thread, role.threads):
            k.store(at, [_ONES] * 4)
        super().begin()

    @contextmanager
    @marked("tcgen05 mx: steps")
    def queries(self) -> Iterator[Any]:
        """See `Products`; a commit of products covers the copies of all scales."""
        with super().queries() as stage, self.pipeline.query_scales.drain() as scales:
            with self.pipeline.memory.one_thread():
                self.of_weights.copy(self.pipeline.units)
                for i, of in enumerate(self.of_queries):
                    of.copy(getattr(scales, query_tile(i)))
            yield stage

    @contextmanager
    @marked("tcgen05 mx: steps")
    def keys(self) -> Iterator[Any]:
        """See `Products`."""
        with super().keys() as stage, self.pipeline.key_scales.drain() as scales:
            with self.pipeline.memory.one_thread():
                self.of_keys.copy(scales.k)
            yield stage

    @contextmanager
    @marked("tcgen05 mx: steps")
    def values(self) -> Iterator[Any]:
        """See `Products`."""
        with super().values() as stage, self.pipeline.value_scales.drain() as scales:
            with self.pipeline.memory.one_thread():
                self.of_values.copy(scales.v)
            yield stage

    def scores(self, stage: TensorStage, Q: Operand, K: Operand, i: int) -> None:
        """See `Products`."""
        if self.blocks.element is None:
            Q, K = self.narrow(Q), self.narrow(K)
        stage.s.mma(Q, K, use=False, scales=(self.of_queries[i], self.of_keys))

    def outputs(self, stage: TensorStage, V: Operand, use: Value) -> None:
        """See `Products`; the sum of the weights grows by its columns of ones."""
        stage.o.mma(stage.p, self.narrow(V), use=use, scales=(self.of_weights, self.of_values))
        self.sum_weights(stage, use)
