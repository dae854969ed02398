"""The forward kernel for Hopper with Q, K and V of fp8: O = softmax(scale Q Kᵀ + mask) V in one pass
over K and V.

One warpgroup has tiles copied to shared memory, and transposes those of V; each of the others computes
64 query rows of one head. Numbers of Q, K and V are multiplied by scales of their head: the scales of Q
and K become part of the softmax's scale, and O is multiplied by the scale of V. If blocks of rows have scales
of their own (`flash/device/fp8_scales.py`), the softmax's scale is another for each tile of keys, and the
scale of V multiplies what the tile adds to O. Weights are rounded to e4m3, whatever the type of V, after the
softmax has scaled the largest of a row to 2^8.

`wgmma` of fp8 keeps 13 bits behind the leading bit of a sum and truncates the others
(`ptxgen/isa/tensor_core.py`). A sum over all keys would lose much of what each tile adds to it: so the sums
of each tile start at zero, and are added to O in f32.
"""

from __future__ import annotations

from collections.abc import Sequence

from flash.device.cta import Cta
from flash.device.fp8_nonfinite import Fp8NonFinite
from flash.device.fp8_rings import Fp8Rings
from flash.device.fp8_scales import BlockScales, TileScales, last_block
from flash.device.fp8_softmax import LiftedSoftmax
from flash.device.fp8_values import packed_weights
from flash.device.masked_tiles import Masking, masked_tiles
from flash.device.parameters import ScoreArray
from flash.kernels.wgmma_forward import ROWS, Consumer, attention_module
from flash.operands.dtypes import E4M3
from flash.problem.fp8_tiling import ONES, Fp8Tiling
from flash.problem.kernel_config import KernelConfig
from flash.problem.wgmma_tiling import WGMMA_ROWS
from flash.scores.scoring import Scoring
from ptxgen import ir
from ptxgen.dsl import Value, Var, marked
from ptxgen.dsl.matrices.lanes import QUAD, QUAD_LANES
from ptxgen.types import s32, u32

_SIGNS = 0x8080_8080  # of four elements in a word


def wgmma_fp8_attention_forward(config: KernelConfig, t: Fp8Tiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    return attention_module(config, t, Fp8Rings, Fp8Consumer)


class Fp8Consumer(Consumer):
    """See `Consumer`; each tile of keys is multiplied with its values before the next one is taken."""

    odd: Fp8NonFinite | None
    rings: Fp8Rings
    softmax: LiftedSoftmax
    t: Fp8Tiling
    scales: BlockScales | None = None  # if blocks of rows have scales of their own
    of_tile: TileScales | None = None  # those of the tile of keys in work
    of_values: ScoreArray  # the scales of V of this item of the batch

    def _begin(self) -> None:
        """See `Consumer`; sums of P V of a tile are in `part` and `last_part`."""
        k, t = self.k, self.t
        self.S = k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False)
        self.part = k.wgmma.accumulator(WGMMA_ROWS, t.value_part, zero=False)
        self.last_part = k.wgmma.accumulator(WGMMA_ROWS, t.value_part + ONES, zero=False)
        self.O = k.wgmma.accumulator(WGMMA_ROWS, t.output_columns)
        self.group_row = self._group() * WGMMA_ROWS
        self._find_rows()
        if self.config.features.scale_block:
            first_row = self.cta.first_row + k.signed(self.group_row)
            self.scales = BlockScales(k, self.config, self.given, self.cta, first_row)
        scale, sinks = self._arguments_of_softmax(self.in_quad)
        self.softmax = LiftedSoftmax(k, len(ROWS), QUAD, scale, sinks, with_lse=self.config.return_lse)

    def _factor(self) -> Value:
        """See `Consumer`; scales of blocks of rows are in it."""
        return super()._factor() if self.scales is None else self.scales.scale

    def _scoring(self) -> Scoring | None:
        """See `Consumer`; scales of blocks of rows are in it."""
        if self.scales is None or self.of_tile is None:
            return super()._scoring()
        return self.scales.take(self.S.rows_of_thread, self.of_tile)

    def _walk(self) -> None:
        """See `Consumer`."""
        for begin, end, cut in masked_tiles(
            self.k, self.cta, lambda: Cta.of(self.k, self.config, self.given)
        ):
            self._take(begin, end, cut)

    def _seen(self, n: Value) -> Value | None:
        """See `Consumer`; the last tile is always there, and taken."""
        seen = super()._seen(n)
        return None if seen is None else seen | (n == -self.cta.tiles)

    @marked("wgmma fp8: negative scale")
    def _flip_signs(self) -> None:
        """Negate Q if the scale is negative: the softmax takes a positive one. Scales of blocks of rows may
        differ in their signs (`BlockScales.take`).
        """
        k, q = self.k, self.q
        if self.cta.scoring is not None or self.scales is not None:
            return
        with k.when(self.cta.scale_log2.as_(s32) < 0):
            for at in q.chunks(self.role.thread, self.role.threads):
                k.store(at, [word ^ _SIGNS for word in k.load(at, 4)])
            k.fence_proxy_async(space="shared::cta")
        # Scales come from memory: that all threads have the same is not proved, but all meet here.
        self.role.barrier.sync()

    @marked("wgmma fp8: next tile")
    def _next(self, n: Value, cut: Masking) -> None:
        """Scores and weights of the tile of keys with -n - 1 tiles before it, and their product with the
        values.
        """
        k, softmax = self.k, self.softmax
        if self.scales is not None:
            self.of_tile = self.scales.of_tile(-1 - n)
        key = self.rings.keys.acquire()
        k.note("S = Q K^T")
        kind = self.config.dtype.name
        q = self.q.part(self.group_row, WGMMA_ROWS).as_fp8(kind)
        self.S.set(q @ key.k.T.as_fp8(kind))
        k.wgmma.wait()
        key.release()
        self._weigh(n, cut)
        P = packed_weights(k, self.S.rows_of_thread)
        softmax.rescale(self.O.rows_of_thread)
        value = self.rings.values.acquire()
        k.note("O += P V, the sums of the tile from zero on")
        for first in range(0, self.t.output_columns, self.t.value_part):
            is_last = first + self.t.value_part == self.t.output_columns
            part = self.last_part if is_last else self.part
            part.set(k.wgmma.registers(P, E4M3.name) @ value.v.part(first, part.columns).T.as_fp8(kind))
            k.wgmma.wait()
            for i, terms in enumerate(part.rows_of_thread):
                sums = self.O.rows_of_thread.row(i)[first // QUAD_LANES :]
                weighed = self.t.value_part // QUAD_LANES  # the terms behind them are sums of weights
                self._add(sums, terms[:weighed], None if self.of_tile is None else self.of_tile.values)
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

    def _scale_of_values(self, cta: Cta) -> ScoreArray | None:
        """See `Consumer`: the scale of V is that of the head, or the sums of the tiles have theirs."""
        self.of_values = self.given.operands["v_scale"].part(self.k, cta.batch)
        return None if self.config.features.scale_block else self.of_values

    def _restore(self, cta: Cta) -> None:
        """See `Consumer`."""
        if self.odd is None:
            return
        k, block = self.k, self.config.features.scale_block

        def scale_of(key: Value) -> Value:
            if not block:
                return self.of_values.of_sequence(k, cta.kv_head)
            of_key = k.min(key.as_(u32) // block, last_block(cta, block))
            return self.of_values.of_sequence(k, cta.kv_head, of_key)

        self.odd.restore_all(cta, self.t.block_q, self.team, scale_of)
