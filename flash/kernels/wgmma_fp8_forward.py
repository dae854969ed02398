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
from contextlib import nullcontext
from typing import ClassVar, Final

from flash.device.fp8_pipeline import Fp8Pipeline
from flash.device.fp8_scales import BlockScales, TileScales
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
from flash.scores.scoring import Scoring
from ptxgen import ir
from ptxgen.dsl import Value, Var, marked
from ptxgen.dsl.hopper import Accumulator, Stage
from ptxgen.dsl.matrices.lanes import QUAD, QUAD_LANES
from ptxgen.types import f32, s32, u32

_WORDS: Final = 4  # registers of a thread that hold its part of 64 x 32 weights
_KEYS: Final = 32  # keys of these weights


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
    """See `Consumer`; weights of a tile are multiplied while those of the next one are computed. Sums of
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
            self.value_scale = k.var(f32, 0.0)  # of the tile whose weights are in P
        scale, sinks = self.softmax_arguments(None if self.scales is None else self.scales.scale)
        self.softmax = LiftedSoftmax(k, len(ROWS), QUAD, scale, sinks, with_lse=config.return_lse)
        self.P = [[k.var(u32, 0) for _ in range(_WORDS)] for _ in range(t.tile // _KEYS)]
        self.outputs = WarpgroupOutputs(self.O, self.role, self.group_row, self.in_quad)

    def walk(self) -> None:
        """See `Consumer`."""
        self.first()
        self.each_tile(self.next, after_last=True)
        self.last()

    @marked("wgmma fp8: first tile")
    def first(self) -> None:
        """Compute scores and weights of the last tile of keys, which comes first."""
        k, n = self.k, -self.cta.tiles
        scales = self._scales_of(n)
        key = self.work.pipeline.keys.acquire()
        k.note("S = Q K^T")
        self._start_scores(key)
        k.wgmma.wait()
        key.release()
        self.weigh(n, Masking.FULL, self._scoring(scales))
        self._pack(scales)

    @marked("wgmma fp8: next tile")
    def next(self, n: Value, masking: Masking) -> None:
        """Compute scores and weights of the tile of keys with -n - 1 tiles before it, and multiply the
        previous tile's weights with its values.
        """
        k, softmax, pipeline = self.k, self.softmax, self.work.pipeline
        scales = self._scales_of(n)
        key = pipeline.keys.acquire()
        k.note("S = Q K^T, and P V of the tile before, its sums from zero on")
        with nullcontext() if self.ping_pong is None else self.ping_pong.exclusive():
            value = pipeline.values.acquire()
            self._start_part(value, 0)
            self._start_scores(key)
        k.wgmma.wait(1)
        self._add_part(0)
        for part in range(1, self.parts):
            self._start_part(value, part)
            k.wgmma.wait()
            self._add_part(part)
        if self.parts == 1:
            k.wgmma.wait()
        value.release()
        key.release()
        scoring = self._scoring(scales)
        if scoring is not None or self.cta.after_softmax:
            self.weigh(n, masking, scoring)
            self._rescale_and_pack(scales)
            return
        S = self.S.rows_of_thread
        self.scores.finish(S, n, masking, None)
        k.note("P = exp2(scale * S - shift), if no weight is too large")

        def again() -> None:
            softmax.weigh(S)
            self._rescale_and_pack(scales)

        softmax.weigh_into(S, self.P, again)

    def _rescale_and_pack(self, scales: TileScales | None) -> None:
        """Rescale O, where a shift has moved, and round P."""
        self.softmax.rescale(self.O.rows_of_thread)
        self._pack(scales)

    @marked("wgmma fp8: last values")
    def last(self) -> None:
        """Multiply the weights of the tile taken last with its values."""
        value = self.work.pipeline.values.acquire()
        self.k.note("O += P V")
        for part in range(self.parts):
            self._start_part(value, part)
            self.k.wgmma.wait()
            self._add_part(part)
        value.release()

    @property
    def parts(self) -> int:
        """Products of the weights of a tile."""
        return self.O.columns // self.value_part

    def _start_scores(self, key: Stage) -> None:
        """Start computing S = Q Kᵀ."""
        kind = self.config.dtype.name
        q = self.queries.tile.part(self.group_row, WGMMA_ROWS).as_fp8(kind)
        self.S.set(q @ key.k.T.as_fp8(kind))

    def _sums(self, part: int) -> Accumulator:
        """The sums of a product of the weights of a tile."""
        return self.last_part if part == self.parts - 1 else self.part

    def _start_part(self, value: Stage, part: int) -> None:
        """Start multiplying P with some columns of its values; the sums begin at zero."""
        sums = self._sums(part)
        columns = value.v.part(part * self.value_part, sums.columns)
        sums.set(self.k.wgmma.registers(self.P, E4M3.name) @ columns.T.as_fp8(self.config.dtype.name))

    def _add_part(self, part: int) -> None:
        """Add the sums of a product to those of O and of rounded weights."""
        first, weighed = part * self.value_part // QUAD_LANES, self.value_part // QUAD_LANES
        for i, terms in enumerate(self._sums(part).rows_of_thread):
            self._add(self.O.rows_of_thread.row(i)[first:], terms[:weighed], scaled=self.scales is not None)
            self._add([self.softmax.rounded_sum[i]], terms[weighed:])

    def _add(self, sums: Sequence[Var], terms: Sequence[Value], *, scaled: bool = False) -> None:
        """Add terms, or terms times the scale of their values, to as many sums."""
        k = self.k
        for total, term in zip(sums, terms, strict=False):
            if scaled:
                k.fma(term, self.value_scale, total, into=total)
            else:
                k.add(total, term, into=total)

    def _scales_of(self, n: Value) -> TileScales | None:
        """The scales of the tile of keys with -n - 1 tiles before it, if tiles have some."""
        return None if self.scales is None else self.scales.of_tile(-1 - n)

    def _scoring(self, of_tile: TileScales | None) -> Scoring | None:
        """The scoring of the products in S."""
        if self.scales is None or of_tile is None:
            return self.cta.scoring
        return self.scales.take(self.S.rows_of_thread, of_tile)

    def _pack(self, of_tile: TileScales | None) -> None:
        """Round P to e4m3, into the registers from which the next product reads it."""
        for words, rounded in zip(self.P, packed_weights(self.k, self.S.rows_of_thread), strict=True):
            for word, value in zip(words, rounded, strict=True):
                word.set(value)
        if of_tile is not None:
            self.value_scale.set(of_tile.values)
