"""The forward kernel for Hopper: O = softmax(scale Q Kᵀ + mask) V in one pass over K and V, for f16 and
bf16 (FlashAttention-3, algorithm 2).

One warpgroup, the producer, has tiles of Q, K and V copied to shared memory by the tensor memory accelerator;
each of the others, the consumers, computes 64 query rows of one head by `wgmma`. While the exponentials of a
tile are computed, the product of the previous tile's weights with their values is under way. K and V are
walked from the last tile, in which the end of the keys may hide some; the loops after it are those of
`flash/device/masked_tiles.py`. `flash/device/warpgroup_roles.py` has the roles of warpgroups, which all these
kernels share.
"""

from __future__ import annotations

from typing import Final

from flash.device.gathered_pipeline import GatheredPipeline
from flash.device.masked_tiles import Masking
from flash.device.sum_checked_softmax import SumCheckedSoftmax
from flash.device.tma_pipeline import TmaPipeline
from flash.device.warpgroup_roles import SLACK, Consumer, attention_module
from flash.device.wgmma_outputs import ROWS, WarpgroupOutputs
from flash.device.work_tiles import WorkTile
from flash.families.wgmma import WGMMA_ROWS, WgmmaTiling
from flash.problem.kernel_config import KernelConfig
from ptxgen import ir
from ptxgen.dsl import Value, marked
from ptxgen.dsl.hopper.products import STEP
from ptxgen.dsl.matrices.lanes import QUAD
from ptxgen.types import u32

_WORDS: Final = 4  # registers of a thread that hold its part of 64 x 16 elements


def wgmma_attention_forward(config: KernelConfig, t: WgmmaTiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    pipeline_of = GatheredPipeline if config.gathers else TmaPipeline
    return attention_module(config, t, pipeline_of, OverlappedConsumer)


class OverlappedConsumer(Consumer):
    """See `Consumer`; weights of a tile are multiplied while those of the next one are computed."""

    softmax: SumCheckedSoftmax

    @marked("wgmma: begin")
    def __init__(self, work: WorkTile) -> None:
        k, t = work.k, work.t
        S = k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False)
        super().__init__(work, S, k.wgmma.accumulator(WGMMA_ROWS, t.output_columns))
        # Weights that a feature changes after their sums are not rounded before it.
        self.checks_sums = t.checks_sums and not work.cta.after_softmax
        self.by_polynomial = t.by_polynomial if work.cta.scoring is None else 0
        scale, sinks = self.softmax_arguments()
        self.softmax = SumCheckedSoftmax(k, len(ROWS), QUAD, scale, SLACK, sinks)
        self.P = [[k.var(u32, 0) for _ in range(_WORDS)] for _ in range(t.tile // STEP)]
        self.outputs = WarpgroupOutputs(self.O, self.role, self.group_row, self.in_quad)

    def walk(self) -> None:
        """See `Consumer`."""
        self.first()
        self.each_tile(self.next, after_last=True)
        self.last()

    @marked("wgmma: first tile")
    def first(self) -> None:
        """Compute scores and weights of the last tile of keys, which comes first."""
        k, pipeline = self.k, self.work.pipeline
        key = pipeline.keys.acquire()
        k.note("S = Q K^T")
        self.S.set(self.queries.tile.part(self.group_row, WGMMA_ROWS) @ key.k.T)
        k.wgmma.wait()
        key.release()
        self.weigh(-self.end_tile, Masking.FULL, self.cta.scoring)
        self._pack()

    @marked("wgmma: next tile")
    def next(self, n: Value, masking: Masking) -> None:
        """Compute scores and weights of a tile of keys, and multiply the previous tile's weights with its
        values.
        """
        k, pipeline = self.k, self.work.pipeline
        key = pipeline.keys.acquire()
        k.note("S = Q K^T, and O += P V of the tile before")
        with self.exclusively(masking):
            self.S.set(self.queries.tile.part(self.group_row, WGMMA_ROWS) @ key.k.T)
            value = pipeline.values.acquire()
            self.O += k.wgmma.registers(self.P, self.config.dtype.scalar) @ value.v
        if self.checks_sums:
            k.wgmma.wait()
            key.release()
            value.release()
            self._weigh_by_sums(n, masking)
        else:
            k.wgmma.wait(1)
            key.release()
            self.weigh(n, masking, self.cta.scoring)
            k.wgmma.wait(after=self.softmax.row_sum)
            value.release()
            self._rescale_and_pack()

    @marked("wgmma: last values")
    def last(self) -> None:
        """Multiply the weights of the tile taken last with its values."""
        k = self.k
        value = self.work.pipeline.values.acquire()
        k.note("O += P V")
        self.O += k.wgmma.registers(self.P, self.config.dtype.scalar) @ value.v
        k.wgmma.wait()
        value.release()

    def _weigh_by_sums(self, n: Value, masking: Masking) -> None:
        """P = exp2(scale * (S - shift)), rounded; computed again where sums require another shift."""
        S, dtype = self.S.rows_of_thread, self.config.dtype.scalar
        self.scores.finish(S, n, masking, self.cta.scoring)

        def again() -> None:
            self.softmax.weigh(S)
            self._rescale_and_pack()

        self.k.note("P = exp2(scale * S - shift), if its sums are small")
        self.softmax.weigh_into(S, self.P, dtype, self.by_polynomial, again)

    def _rescale_and_pack(self) -> None:
        """Rescale O, where a shift has moved, and round P."""
        self.softmax.rescale(self.O.rows_of_thread)
        self._pack()

    def _pack(self) -> None:
        """Round P to 16 bits, into the registers from which the next product reads it."""
        for words, rounded in zip(self.P, self.S.packed(self.config.dtype.scalar).words, strict=True):
            for word, value in zip(words, rounded, strict=True):
                word.set(value)
