"""The forward kernel for Hopper with Q, K and V of fp8: O = softmax(scale Q Kᵀ + mask) V in one pass
over K and V.

One warpgroup has tiles copied to shared memory, and transposes those of V; each of the others computes 64
query rows of one head. Numbers of Q, K and V are multiplied by scales of their head: the scales of Q and K
become part of the softmax's scale, and O is multiplied by the scale of V. If blocks of rows have scales of
their own (`flash/device/fp8_scales.py`), the softmax's scale differs from tile to tile of the keys, and the
scale of V multiplies what the tile adds to O. Weights are rounded to e4m3, whatever the type of V, after the
softmax has scaled the largest of a row to 2^8.

`wgmma` of fp8 keeps 13 bits after the leading bit of a sum and truncates the others
(`ptxgen/isa/tensor_core.py`). A sum over all keys would lose much of what each tile adds to it: so the sums
of each tile start at zero, and are added to O in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flash.device.fp8_pipeline import Fp8Pipeline
from flash.device.fp8_scales import BlockScales
from flash.device.fp8_softmax import LiftedSoftmax
from flash.device.fp8_values import packed_weights
from flash.device.masked_tiles import Masking
from flash.device.warpgroup_roles import Consumer, attention_module
from flash.device.wgmma_outputs import ROWS, WarpgroupOutputs
from flash.device.wgmma_queries import Queries
from flash.device.work_tiles import WorkTile
from flash.families.wgmma import WGMMA_ROWS
from flash.families.wgmma_fp8 import FP8, ONES, Fp8Tiling
from flash.operands.dtypes import E4M3
from flash.problem.kernel_config import KernelConfig
from ptxgen import ir
from ptxgen.dsl import Value, Var, marked
from ptxgen.dsl.matrices.lanes import QUAD, QUAD_LANES
from ptxgen.types import s32


def wgmma_fp8_attention_forward(config: KernelConfig, t: Fp8Tiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    return attention_module(config, t, Fp8Pipeline, Fp8Consumer)


class Fp8Queries(Queries):
    """See `Queries`."""

    signs: ClassVar[int] = 0x8080_8080

    @marked("wgmma fp8: negative scale")
    def negate(self) -> None:
        """Negate Q if the scale is negative: the softmax takes a positive one. Scales of blocks of rows may
        differ in their signs (`BlockScales.take`).
        """
        work = self.work
        if work.cta.scoring is not None or work.config.features.scale_block:
            return
        with self.k.when(work.cta.scale_log2.as_(s32) < 0):
            self.flip_signs()
        # Scales come from memory: that all threads have the same is not proved, but all meet here.
        self.role.barrier.sync()


class Fp8Consumer(Consumer):
    """See `Consumer`; each tile of keys is multiplied with its values before the next one is taken. Sums of
    P V of a tile are in `part` and `last_part`.
    """

    queries_of: ClassVar[type[Queries]] = Fp8Queries
    softmax: LiftedSoftmax

    def __init__(self, work: WorkTile) -> None:
        k, t, config = work.k, work.t, work.config
        t = FP8.require(t)
        self.value_part = t.value_part
        S = k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False)
        self.part = k.wgmma.accumulator(WGMMA_ROWS, t.value_part, zero=False)
        self.last_part = k.wgmma.accumulator(WGMMA_ROWS, t.value_part + ONES, zero=False)
        super().__init__(work, S, k.wgmma.accumulator(WGMMA_ROWS, t.output_columns))
        self.scales: BlockScales | None = None  # if blocks of rows have scales of their own
        if config.features.scale_block:
            first_row = self.cta.first_row + k.signed(self.group_row)
            self.scales = BlockScales(k, config, work.parameters, self.cta, first_row)
        scale, sinks = self.softmax_arguments(None if self.scales is None else self.scales.scale)
        self.softmax = LiftedSoftmax(k, len(ROWS), QUAD, scale, sinks, with_lse=config.return_lse)
        self.outputs = WarpgroupOutputs(self.O, self.role, self.group_row, self.in_quad)

    def walk(self) -> None:
        """See `Consumer`."""
        self.each_tile(self.take)

    @marked("wgmma fp8: next tile")
    def take(self, n: Value, masking: Masking) -> None:
        """Compute scores and weights of the tile of keys with -n - 1 tiles before it, and multiply the
        weights with the values.
        """
        k, softmax, pipeline = self.k, self.softmax, self.work.pipeline
        of_tile = None if self.scales is None else self.scales.of_tile(-1 - n)
        key = pipeline.keys.acquire()
        k.note("S = Q K^T")
        kind = self.config.dtype.name
        q = self.queries.tile.part(self.group_row, WGMMA_ROWS).as_fp8(kind)
        self.S.set(q @ key.k.T.as_fp8(kind))
        k.wgmma.wait()
        key.release()
        scoring = self.cta.scoring
        if self.scales is not None and of_tile is not None:
            scoring = self.scales.take(self.S.rows_of_thread, of_tile)
        self.weigh(n, masking, scoring)
        P = packed_weights(k, self.S.rows_of_thread)
        softmax.rescale(self.O.rows_of_thread)
        value = pipeline.values.acquire()
        k.note("O += P V, the sums of the tile from zero on")
        for first in range(0, self.O.columns, self.value_part):
            is_last = first + self.value_part == self.O.columns
            part = self.last_part if is_last else self.part
            part.set(k.wgmma.registers(P, E4M3.name) @ value.v.part(first, part.columns).T.as_fp8(kind))
            k.wgmma.wait()
            for i, terms in enumerate(part.rows_of_thread):
                sums = self.O.rows_of_thread.row(i)[first // QUAD_LANES :]
                weighed = self.value_part // QUAD_LANES  # the terms after them are sums of weights
                self._add(sums, terms[:weighed], None if of_tile is None else of_tile.values)
                if is_last:
                    self._add([softmax.rounded_sum[i]], terms[weighed:])
        value.release()

    def _add(self, sums: Sequence[Var], terms: Sequence[Value], factor: Value | None = None) -> None:
        """Add terms, times `factor` if there is one, to as many sums."""
        k = self.k
        for total, term in zip(sums, terms, strict=False):
            if factor is None:
                k.add(total, term, into=total)
            else:
                k.fma(term, factor, total, into=total)
