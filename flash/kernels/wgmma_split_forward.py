"""The forward kernel for Hopper of f32, as three products of f16: what `flash/kernels/wgmma_forward.py` does,
with tiles that become pairs of f16 (`flash/device/split_boxes.py`), and one product after the other: while a
warpgroup computes weights, the other one multiplies.

Tensor cores truncate their sums. So the small products come first, in the order low high' + high low' + high
high', and O is kept in f32: the product with a part of a tile of V (`SplitWgmmaTiling.chains`) starts at 0
and is added by an ordinary `fma`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar, Final

from flash.device.masked_tiles import Masking
from flash.device.overlapped_softmax import OverlappedSoftmax
from flash.device.split_boxes import SplitOutputs, halves
from flash.device.split_pipeline import SplitPipeline, mark_of
from flash.device.split_products import (
    QUERIES_MARK,
    UNSCALED,
    UNWEIGHTED,
    WEIGHT_SCALE,
    scale_weights,
    unscale_scores,
)
from flash.device.split_tile import split_pair
from flash.device.warpgroup_roles import Consumer, attention_module
from flash.device.wgmma_outputs import ROWS
from flash.device.wgmma_queries import Queries
from flash.device.work_tiles import WorkTile
from flash.families.wgmma import WGMMA_ROWS
from flash.families.wgmma_split import SPLIT, SplitWgmmaTiling
from flash.problem.kernel_config import KernelConfig
from ptxgen import ir
from ptxgen.dsl import TilePointer, Value, Var, marked
from ptxgen.dsl.hopper import Accumulator, Stage
from ptxgen.dsl.hopper.products import STEP
from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP, LANE_COLUMNS, QUAD
from ptxgen.records import dataclass
from ptxgen.types import f16, f32, u32

_SLACK: Final = 0.0  # V of f32 may be so large that P V would not be finite
_WORDS: Final = 4  # registers of a thread that hold its part of 64 x 16 elements


def wgmma_split_attention_forward(config: KernelConfig, t: SplitWgmmaTiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    return attention_module(config, t, SplitPipeline, SplitConsumer)


class SplitQueries(Queries):
    """See `Queries`; the tile is split where it is, after a rotation."""

    @marked("wgmma split: queries")
    def acquire(self) -> None:
        """Wait until the tile of Q is in shared memory, rotate it if the kernel does so, and split it."""
        super().acquire()
        self.rotate()
        pipeline, role = self.work.pipeline, self.role
        assert isinstance(pipeline, SplitPipeline)
        pipeline.of_queries.split(self.tile, (role.thread, role.threads), QUERIES_MARK)
        self.k.fence_proxy_async(space="shared::cta")
        role.barrier.sync()

    def prepare(self) -> None:
        """Negate the queries in shared memory, if the softmax scale is negative."""
        self.negate()


@dataclass(frozen=True)
class _Weighted:
    """The product of a tile's weights with its values, by chains of keys; the low parts of the weights, whose
    high parts are in `P`; and factors of the rows of `sums`.
    """

    sums: Sequence[Accumulator]
    low: Sequence[Sequence[Var]]
    undone: Sequence[Var]


class SplitConsumer(Consumer):
    """See `Consumer`; each tile of keys is multiplied with its values before the next one is taken."""

    queries_of: ClassVar[type[Queries]] = SplitQueries

    @marked("wgmma split: begin")
    def __init__(self, work: WorkTile) -> None:
        k, t = work.k, work.t
        t = SPLIT.require(t)
        assert isinstance(work.pipeline, SplitPipeline)
        S = k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False)
        super().__init__(work, S, k.wgmma.accumulator(WGMMA_ROWS, t.output_columns))
        self.chains = t.chains
        self.pipeline = work.pipeline
        scale, sinks = self.softmax_arguments()
        # Weights are pairs of f16: sinks are added after all keys.
        self.softmax = OverlappedSoftmax(k, len(ROWS), QUAD, scale, _SLACK, sinks, sinks_last=True)
        self.P = [[k.var(u32, 0) for _ in range(_WORDS)] for _ in range(t.tile // STEP)]
        self.outputs = SplitOutputs(self.O, self.role, self.group_row, self.in_quad)

    def walk(self) -> None:
        """See `Consumer`."""
        k = self.k
        weighted = _Weighted(
            [k.wgmma.accumulator(WGMMA_ROWS, self.O.columns, zero=False) for _ in self.chains],
            [[k.var(u32, 0) for _ in range(_WORDS)] for _ in self.P],
            [k.var(f32, UNWEIGHTED) for _ in ROWS],
        )
        self.take(weighted, -self.end_tile, Masking.FULL)
        self.each_tile(functools.partial(self.take, weighted), after_last=True)

    @marked("wgmma split: next tile")
    def take(self, weighted: _Weighted, n: Value, masking: Masking) -> None:
        """Compute scores and weights of the tile of keys with -n - 1 tiles before it, and add the weights
        times the values to O.
        """
        k = self.k
        key = self.pipeline.keys.acquire()
        self._multiply_keys(key)
        k.wgmma.wait()
        self._unscale(key, n)
        key.release()
        self.weigh(n, masking, self.cta.scoring)
        self.softmax.rescale(self.O.rows_of_thread)
        value = self.pipeline.values.acquire()
        self._split(weighted, value, n)
        self._multiply_values(weighted, value)
        k.wgmma.wait()
        value.release()
        self._add(weighted)

    @marked("wgmma split: scores")
    def _multiply_keys(self, key: Stage) -> None:
        """Start the product S = Q Kᵀ; Q and K are multiplied by scales before."""
        k = self.k
        k.note("S = Q K^T")
        (q, q_low), (of_key, key_low) = halves(self.queries.tile, (self.group_row, WGMMA_ROWS)), halves(key.k)
        with k.wgmma.group():
            self.S.set(q_low @ of_key.T)
            self.S += q @ key_low.T
            self.S += q @ of_key.T

    @marked("wgmma split: outputs")
    def _multiply_values(self, weighted: _Weighted, value: Stage) -> None:
        """Start the product P V of a tile of keys; P and V are multiplied by scales before."""
        k = self.k
        k.note("P V")
        first = 0
        with k.wgmma.group():
            for of_chain, keys in zip(weighted.sums, self.chains, strict=True):
                steps = slice(first // STEP, (first + keys) // STEP)
                high, low = (k.wgmma.registers(words[steps], f16) for words in (self.P, weighted.low))
                of_value, value_low = halves(value.v, (first, keys))
                of_chain.set(low @ of_value)
                of_chain += high @ value_low
                of_chain += high @ of_value
                first += keys

    @marked("wgmma split: factors of scores")
    def _unscale(self, key: Stage, n: Value) -> None:
        """Undo in the scores S the scales by which a tile of K and Q were multiplied."""
        k, pipeline, S = self.k, self.pipeline, self.S.rows_of_thread
        for score in self.S.all():
            k.mul(score, UNSCALED, into=score)
        scaled = pipeline.of_keys.scales(mark_of(n), key.index) | pipeline.of_queries.scales(QUERIES_MARK)
        with k.when(scaled):
            consumers = self.work.t.consumers
            group = k.thread_id() // (self.role.threads // consumers) % consumers
            row = self.S.row + group * WGMMA_ROWS

            def factor_of_row(i: int) -> Value:
                return k.load(pipeline.of_queries.factors.pointer(0, row + FRAGMENT_STEP * i))

            def factors_of_keys() -> TilePointer:
                return pipeline.of_keys.factors.pointer(key.index, self.in_quad * LANE_COLUMNS)

            unscale_scores(k, S, factor_of_row, factors_of_keys)

    @marked("wgmma split: weights")
    def _split(self, weighted: _Weighted, stage: Stage, n: Value) -> None:
        """Split P, times the factors of a tile of V, into the registers from which the next products read
        it.
        """
        k, pipeline, P = self.k, self.pipeline, self.S.rows_of_thread
        scales = [k.var(f32, WEIGHT_SCALE) for _ in P]
        for undone in weighted.undone:
            undone.set(UNWEIGHTED)
        with k.when(pipeline.of_values.scales(mark_of(n), stage.index)):

            def factors_of_keys() -> TilePointer:
                return pipeline.of_values.factors.pointer(stage.index, self.in_quad * LANE_COLUMNS)

            scale_weights(k, P, scales, weighted.undone, factors_of_keys)
        for step, (high, low) in enumerate(zip(self.P, weighted.low, strict=True)):
            for q in range(_WORDS):
                pair = [self.S[0, 2 * (_WORDS * step + q) + i] * scales[q % 2] for i in range(LANE_COLUMNS)]
                for word, part in zip((high[q], low[q]), split_pair(k, pair), strict=True):
                    word.set(part.as_(u32))

    def _add(self, weighted: _Weighted) -> None:
        """Add the finished product P V of a tile of keys to O."""
        for of_chain in weighted.sums:
            for row, more, factor in zip(
                self.O.rows_of_thread, of_chain.rows_of_thread, weighted.undone, strict=True
            ):
                for output, x in zip(row, more, strict=True):
                    self.k.fma(x, factor, output, into=output)
