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

Where registers allow, the product of a tile's weights is under way together with the scores of the next one,
and warpgroups alternate: while one multiplies, the other computes exponentials. Wide values are multiplied 64
columns after others, and the sums of every second product are in the registers of S. In tiles that no mask
cuts no maxima are taken: the exponents say whether a shift moves (`LiftedSoftmax.weigh_into`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from flash.device.fp8_pipeline import Fp8Pipeline
from flash.device.fp8_scales import BlockScales, TileScales
from flash.device.fp8_softmax import LiftedSoftmax
from flash.device.fp8_values import rounded_word, words_of
from flash.device.masked_tiles import Masking
from flash.device.warpgroup_roles import Consumer, attention_module
from flash.device.wgmma_outputs import ROWS, WarpgroupOutputs
from flash.device.wgmma_queries import Queries
from flash.device.work_tiles import WorkTile
from flash.families.wgmma import WGMMA_ROWS
from flash.families.wgmma_fp8 import FP8, ONES, Fp8Tiling
from flash.operands.dtypes import E4M3
from flash.problem.kernel_config import KernelConfig
from flash.problem.outputs import MAX_LOGIT
from ptxgen import ir
from ptxgen.dsl import Fragment, Value, Var, marked
from ptxgen.dsl.hopper import Stage
from ptxgen.dsl.matrices.lanes import QUAD, QUAD_LANES
from ptxgen.types import f32, pred, s32, u32

_WORDS: Final = 4  # registers of a thread that hold its part of 64 x 32 weights
_KEYS: Final = 32  # keys of these weights
_OUTPUT_REGISTERS: Final = 4  # registers of a thread for an output of two rows besides O
_SCALE_REGISTERS: Final = 4  # registers of a thread for the scales of blocks of rows, and where they lie


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
    """See `Consumer`. If registers allow, weights of a tile are multiplied together with the queries and keys
    of the next one, else before it is taken. Sums of P V of a tile are in `parts`, by columns of V; the last
    one also has those of the columns of ones.
    """

    queries_of: ClassVar[type[Queries]] = Fp8Queries
    softmax: LiftedSoftmax

    @marked("wgmma fp8: begin")
    def __init__(self, work: WorkTile) -> None:
        k, t, config = work.k, FP8.require(work.t), work.config
        self.value_part = t.value_part
        S = k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False)
        outputs = config.return_lse + (MAX_LOGIT in config.outputs)
        registers = config.features.registers + outputs * _OUTPUT_REGISTERS
        registers += _SCALE_REGISTERS if config.features.scale_block else 0
        self.overlaps = t.overlaps(registers)
        last_part = k.wgmma.accumulator(WGMMA_ROWS, t.value_part + ONES, zero=False)
        count = t.output_columns // t.value_part
        if self.overlaps:
            self.parts = [last_part if (count - n) % 2 else S for n in range(count)]
        else:
            others = [k.wgmma.accumulator(WGMMA_ROWS, t.value_part, zero=False)] if count > 1 else []
            self.parts = [*(others * (count - 1)), last_part]
        super().__init__(work, S, k.wgmma.accumulator(WGMMA_ROWS, t.output_columns))
        if not self.overlaps:
            self.ping_pong = None
        self.scales: BlockScales | None = None  # if blocks of rows have scales of their own
        if config.features.scale_block:
            first_row = self.cta.first_row + k.signed(self.group_row)
            self.scales = BlockScales(k, config, work.parameters, self.cta, first_row)
            self.value_scale = k.var(f32, 0.0)  # of the tile whose weights are in P
        scale, sinks = self.softmax_arguments(None if self.scales is None else self.scales.scale)
        self.softmax = LiftedSoftmax(k, len(ROWS), QUAD, scale, sinks, with_lse=config.return_lse)
        self.P = Fragment(k, t.tile // _KEYS, _WORDS, u32, None)
        # Whether the next stages of values and keys were full when this thread looked.
        self.is_full = [k.var(pred, k.mov(0, type=u32) != 0) for _ in range(2 * self.overlaps)]
        self.outputs = WarpgroupOutputs(self.O, self.role, self.group_row, self.in_quad)

    def walk(self) -> None:
        """See `Consumer`."""
        if not self.overlaps:
            self.each_tile(self.take)
            return
        self._weigh_tile(-self.end_tile, Masking.FULL)
        self.each_tile(self.next, after_last=True)
        self._multiply_values()

    @marked("wgmma fp8: take tile")
    def take(self, n: Value, masking: Masking) -> None:
        """Compute scores and weights of the tile of keys with -n - 1 tiles before it, and multiply the
        weights with its values.
        """
        self._weigh_tile(n, masking)
        self._multiply_values()

    @marked("wgmma fp8: next tile")
    def next(self, n: Value, masking: Masking) -> None:
        """Compute scores and weights of the tile of keys with -n - 1 tiles before it, and multiply the
        previous tile's weights with its values.
        """
        k, pipeline = self.k, self.work.pipeline
        rings = (pipeline.values, pipeline.keys)
        of_tile = None if self.scales is None else self.scales.of_tile(-1 - n)
        value, key = (ring.acquire(is_full) for ring, is_full in zip(rings, self.is_full, strict=True))
        k.note("O += P V of the tile before, its sums from zero on, and S = Q K^T")
        with self.exclusively(masking):
            self._start_parts(value)
            self._start_scores(key)
        k.wgmma.wait(1)
        value.release()
        self._add_part(len(self.parts) - 1)
        for ring, is_full in zip(rings, self.is_full, strict=True):
            is_full.set(ring.look())
        k.wgmma.wait()
        key.release()
        self._weigh(n, masking, of_tile)

    @marked("wgmma fp8: scores")
    def _weigh_tile(self, n: Value, masking: Masking) -> None:
        """Compute scores and weights of a tile of keys, with no other product under way."""
        k = self.k
        of_tile = None if self.scales is None else self.scales.of_tile(-1 - n)
        key = self.work.pipeline.keys.acquire()
        k.note("S = Q K^T")
        self._start_scores(key)
        k.wgmma.wait()
        key.release()
        self._weigh(n, masking, of_tile)

    @marked("wgmma fp8: values")
    def _multiply_values(self) -> None:
        """Multiply the softmax weights P by the tile of V, and add the products to O."""
        value = self.work.pipeline.values.acquire()
        self.k.note("O += P V, the sums of the tile from zero on")
        self._start_parts(value)
        self.k.wgmma.wait()
        value.release()
        self._add_part(len(self.parts) - 1)

    @marked("wgmma fp8: start scores")
    def _start_scores(self, key: Stage) -> None:
        """Start the product S = Q Kᵀ for the next tile of K."""
        kind = self.config.dtype.name
        q = self.queries.tile.part(self.group_row, WGMMA_ROWS).as_fp8(kind)
        self.S.set(q @ key.k.T.as_fp8(kind))

    def _start_parts(self, value: Stage) -> None:
        """Start multiplying P with its values, some columns of them after others, and add the sums of all
        products but the last one. If products overlap, two are under way.
        """
        for part in range(len(self.parts)):
            if part and not self.overlaps:
                self.k.wgmma.wait()
                self._add_part(part - 1)
            self._start_part(value, part)
            if part and self.overlaps:
                self.k.wgmma.wait(1)
                self._add_part(part - 1)

    @marked("wgmma fp8: start values")
    def _start_part(self, value: Stage, part: int) -> None:
        """Start multiplying P with some columns of its values; the sums begin at zero."""
        sums = self.parts[part]
        columns = value.v.part(part * self.value_part, sums.columns)
        sums.set(self.k.wgmma.registers([*self.P], E4M3.name) @ columns.T.as_fp8(self.config.dtype.name))

    def _add_part(self, part: int) -> None:
        """Add the sums of a product to those of O, and of the rounded weights."""
        first, weighed = part * self.value_part // QUAD_LANES, self.value_part // QUAD_LANES
        for i, terms in enumerate(self.parts[part].rows_of_thread):
            sums = self.O.rows_of_thread.row(i)[first : first + weighed]
            self._add(sums, terms[:weighed], scaled=self.scales is not None)
            if part == len(self.parts) - 1:
                self._add([self.softmax.rounded_sum[i]], terms[weighed : weighed + 1])

    def _add(self, sums: Sequence[Var], terms: Sequence[Value], *, scaled: bool = False) -> None:
        """Add terms, or terms times the scale of their values, to as many sums."""
        k = self.k
        for total, term in zip(sums, terms, strict=True):
            if scaled:
                k.fma(term, self.value_scale, total, into=total)
            else:
                k.add(total, term, into=total)

    def _weigh(self, n: Value, masking: Masking, of_tile: TileScales | None) -> None:
        """Replace P by the weights of the tile whose scores are in S, and rescale O where a shift moves. In
        tiles that a mask cuts shifts move often.
        """
        S, scoring = self.S.rows_of_thread, self.cta.scoring
        if self.scales is not None and of_tile is not None:
            scoring = self.scales.take(S, of_tile)
            self.value_scale.set(of_tile.values)
        if masking.hides or scoring is not None or self.cta.after_softmax:
            self.weigh(n, masking, scoring)
            self._rescale_and_round()
            return
        self.scores.finish(S, n, masking, scoring)

        def again() -> None:
            self.softmax.weigh(S)
            self._rescale_and_round()

        self.k.note("P = exp2(scale * S - shift), if it is small")
        self.softmax.weigh_into(S, self.P, again)

    def _rescale_and_round(self) -> None:
        """Rescale O, where a shift has moved, and round P to e4m3, into the registers from which the product
        reads it.
        """
        for words, elements in zip(self.P, words_of(self.S.rows_of_thread), strict=True):
            for word, four in zip(words, elements, strict=True):
                word.set(rounded_word(self.k, four))
        self.softmax.rescale(self.O.rows_of_thread)
