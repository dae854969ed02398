"""The forward kernel for Hopper of f32, as three products of f16: what `flash/kernels/wgmma_forward.py` does,
with tiles that become pairs of f16 (`flash/device/split_boxes.py`), and one product after the other: while a
warpgroup computes weights, the other one multiplies.

Tensor cores truncate their sums. So the small products come first, in the order low high' + high low' + high
high', and O is kept in f32: the product with a part of a tile of V (`SplitWgmmaTiling.chains`) starts at 0
and is added by an ordinary `fma`.
"""

from __future__ import annotations

from typing import ClassVar

from flash.device.cta import Cta
from flash.device.masked_tiles import Masking, masked_tiles
from flash.device.split_boxes import SplitOutputs, halves
from flash.device.split_products import (
    QUERIES_MARK,
    UNSCALED,
    UNWEIGHTED,
    WEIGHT_SCALE,
    scale_weights,
    unscale_scores,
)
from flash.device.split_tile import split_pair
from flash.device.stored_sums import LaneColumns
from flash.device.wgmma_split_rings import SplitRings, mark_of
from flash.kernels.wgmma_forward import Consumer, Outputs, attention_module
from flash.problem.kernel_config import KernelConfig
from flash.problem.wgmma_split_tiling import SplitWgmmaTiling
from flash.problem.wgmma_tiling import WGMMA_ROWS
from ptxgen import ir
from ptxgen.dsl import TilePointer, Value, marked
from ptxgen.dsl.hopper import BoxTile, Stage
from ptxgen.dsl.hopper.products import STEP
from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP, LANE_COLUMNS
from ptxgen.types import f16, f32, u32

_WORDS = 4  # registers of a thread that hold its part of 64 x 16 elements


def wgmma_split_attention_forward(config: KernelConfig, t: SplitWgmmaTiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    return attention_module(config, t, SplitRings, SplitConsumer)


class SplitConsumer(Consumer):
    """See `Consumer`; `P` are the high parts of weights, and `low` the others."""

    slack: ClassVar[float] = 0.0  # V of f32 may be so large that P V would not be finite
    sinks_last: ClassVar[bool] = True  # weights are pairs of f16
    rings: SplitRings
    t: SplitWgmmaTiling

    @marked("wgmma split: queries")
    def _queries(self) -> BoxTile:
        """The tile of Q, when it is there, has been rotated if the kernel does so, and has been split."""
        k, q = self.k, super()._queries()
        self.q = q
        super()._turn_queries()
        self.rings.of_queries.split(q, (self.role.thread, self.role.threads), QUERIES_MARK)
        k.fence_proxy_async(space="shared::cta")
        self.role.barrier.sync()
        return q

    def _turn_queries(self) -> None:
        """Nothing: queries are rotated before they are split."""

    def _first(self) -> None:
        """O and the weights of the last tile of keys."""
        k = self.k
        columns = self.t.output_columns
        self.sums = [k.wgmma.accumulator(WGMMA_ROWS, columns, zero=False) for _ in self.t.chains]
        self.low = [[k.var(u32, 0) for _ in range(_WORDS)] for _ in range(self.t.tile // STEP)]
        self.undone = [k.var(f32, UNWEIGHTED) for _ in self.O.rows_of_thread]
        self._next(-self.cta.tiles, Masking.FULL)

    @marked("wgmma split: next tile")
    def _next(self, n: Value, cut: Masking) -> None:
        """Take in a tile of keys."""
        k = self.k
        key = self.rings.keys.acquire()
        self._multiply_keys(key)
        k.wgmma.wait()
        self._unscale(key, n)
        key.release()
        self._weigh(n, cut)
        self.softmax.rescale(self.O.rows_of_thread)
        value = self.rings.values.acquire()
        self._split(value, n)
        self._multiply_values(value)
        k.wgmma.wait()
        value.release()
        self._add()

    def _last(self) -> None:
        """Nothing: no product is left."""

    @marked("wgmma split: scores")
    def _multiply_keys(self, key: Stage) -> None:
        """Start S = Q Kᵀ, times the scales of both."""
        k = self.k
        k.note("S = Q K^T")
        (q, q_low), (of_key, key_low) = halves(self.q, (self.group_row, WGMMA_ROWS)), halves(key.k)
        with k.wgmma.group():
            self.S.set(q_low @ of_key.T)
            self.S += q @ key_low.T
            self.S += q @ of_key.T

    @marked("wgmma split: outputs")
    def _multiply_values(self, value: Stage) -> None:
        """Start P V of a tile, times the scales of both."""
        k = self.k
        k.note("P V")
        first = 0
        with k.wgmma.group():
            for sums, keys in zip(self.sums, self.t.chains, strict=True):
                steps = slice(first // STEP, (first + keys) // STEP)
                high, low = (k.wgmma.registers(words[steps], f16) for words in (self.P, self.low))
                of_value, value_low = halves(value.v, (first, keys))
                sums.set(low @ of_value)
                sums += high @ value_low
                sums += high @ of_value
                first += keys

    @marked("wgmma split: factors of scores")
    def _unscale(self, key: Stage, n: Value) -> None:
        """Undo the scales of a tile of K and of Q in S."""
        k, rings, S = self.k, self.rings, self.S.rows_of_thread
        for score in self.S.all():
            k.mul(score, UNSCALED, into=score)
        scaled = rings.of_keys.scales(mark_of(n), key.index) | rings.of_queries.scales(QUERIES_MARK)
        with k.when(scaled):
            group = k.thread_id() // (self.role.threads // self.t.consumers) % self.t.consumers
            row = self.S.row + group * WGMMA_ROWS

            def factor_of_row(i: int) -> Value:
                return k.load(rings.of_queries.factors.pointer(0, row + FRAGMENT_STEP * i))

            def factors_of_keys() -> TilePointer:
                return rings.of_keys.factors.pointer(key.index, self.in_quad * LANE_COLUMNS)

            unscale_scores(k, S, factor_of_row, factors_of_keys)

    @marked("wgmma split: weights")
    def _split(self, stage: Stage, n: Value) -> None:
        """Split P, times the factors of a tile of V, into the registers from which the next products read
        it.
        """
        k, rings, P = self.k, self.rings, self.S.rows_of_thread
        scales = [k.var(f32, WEIGHT_SCALE) for _ in P]
        for undone in self.undone:
            undone.set(UNWEIGHTED)
        with k.when(rings.of_values.scales(mark_of(n), stage.index)):

            def factors_of_keys() -> TilePointer:
                return rings.of_values.factors.pointer(stage.index, self.in_quad * LANE_COLUMNS)

            scale_weights(k, P, scales, self.undone, factors_of_keys)
        for step, (high, low) in enumerate(zip(self.P, self.low, strict=True)):
            for q in range(_WORDS):
                pair = [self.S[0, 2 * (_WORDS * step + q) + i] * scales[q % 2] for i in range(LANE_COLUMNS)]
                for word, part in zip((high[q], low[q]), split_pair(k, pair), strict=True):
                    word.set(part.as_(u32))

    def _add(self) -> None:
        """O += P V of the tile whose product has ended."""
        for sums in self.sums:
            for row, more, factor in zip(
                self.O.rows_of_thread, sums.rows_of_thread, self.undone, strict=True
            ):
                for output, x in zip(row, more, strict=True):
                    self.k.fma(x, factor, output, into=output)

    def _lane_columns(self) -> LaneColumns:
        """See `Consumer`."""
        return SplitOutputs(self.O, self.in_quad).lane_columns(
            self.k, self.t.output_columns, self.t.head_dim_v
        )

    @property
    def _outputs(self) -> Outputs:
        """See `Consumer`."""
        return SplitOutputs(self.O, self.in_quad)

    def _cleared(self, cta: Cta) -> list[tuple[Value | int, Value]]:
        """See `Consumer`: values of all tiles were cleared."""
        tile = self.t.tile
        if cta.part is not None and cta.first_tile is not None:
            # The runs of a split follow one another.
            return [(cta.first_key_of(self.k, cta.first_tile), cta.tiles * tile)]
        return [(end * tile, begin * tile) for begin, end, _ in masked_tiles(self.k, cta, lambda: cta)]
