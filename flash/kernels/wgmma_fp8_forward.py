"""The forward kernel for Hopper with Q, K and V of fp8: O = softmax(scale Q Kᵀ + mask) V in one pass
over K and V.

One warpgroup has tiles copied to shared memory, and transposes those of V; each of the others computes
64 query rows of one head. Numbers of Q, K and V are multiplied by scales of their head: the scales of Q
and K become part of the softmax's scale, and O is multiplied by the scale of V. Weights are rounded to e4m3,
also where V is e5m2, after the softmax has scaled the largest of a row to 2^8.

`wgmma` of fp8 keeps 13 bits behind the leading bit of a sum and truncates the others
(`ptxgen/isa/tensor_core.py`). A sum over all keys would lose much of what each tile adds to it: so the sums
of each tile start at zero, and are added to O in f32.
"""

from __future__ import annotations

from collections.abc import Sequence

from flash.device.cta import Cta
from flash.device.finished_rows import finish_rows
from flash.device.fp8_nonfinite import Fp8NonFinite
from flash.device.fp8_rings import Fp8Rings
from flash.device.fp8_softmax import LiftedSoftmax
from flash.device.fp8_values import packed_weights
from flash.device.parameters import ScoreArray
from flash.device.tile_runs import Cut, tile_runs
from flash.kernels.wgmma_forward import ROWS, Consumer, attention_module
from flash.operands.dtypes import E4M3
from flash.problem.fp8_tiling import ONES, Fp8Tiling
from flash.problem.kernel_config import KernelConfig
from flash.problem.wgmma_tiling import WGMMA_ROWS
from ptxgen import ir
from ptxgen.dsl import Value, Var
from ptxgen.dsl.matrices.lanes import QUAD, QUAD_LANES
from ptxgen.types import s32

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

    def _begin(self) -> None:
        """See `Consumer`; sums of P V of a tile are in `part` and `last_part`."""
        k, t = self.k, self.t
        self.S = k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False)
        self.part = k.wgmma.accumulator(WGMMA_ROWS, t.value_part, zero=False)
        self.last_part = k.wgmma.accumulator(WGMMA_ROWS, t.value_part + ONES, zero=False)
        self.O = k.wgmma.accumulator(WGMMA_ROWS, t.output_columns)
        self.group_row = self._group() * WGMMA_ROWS
        self._find_rows()
        scale, sinks = self._arguments_of_softmax(self.in_quad)
        self.softmax = LiftedSoftmax(k, len(ROWS), QUAD, scale, sinks, with_lse=self.config.return_lse)

    def _walk(self) -> None:
        """See `Consumer`."""
        for begin, end, cut in tile_runs(self.k, self.cta, lambda: Cta.of(self.k, self.config, self.given)):
            self._take(begin, end, cut)

    def _seen(self, n: Value) -> Value | None:
        """See `Consumer`; the last tile is always there, and taken."""
        seen = super()._seen(n)
        return None if seen is None else seen | (n == -self.cta.tiles)

    def _flip_signs(self) -> None:
        """Negate Q if the scale is negative: the softmax takes a positive one."""
        k, q = self.k, self.q
        if self.cta.scoring is not None:
            return
        with k.when(self.cta.scale_log2.as_(s32) < 0):
            for at in q.chunks(self.role.thread, self.role.threads):
                k.store(at, [word ^ _SIGNS for word in k.load(at, 4)])
            k.fence_proxy_async(space="shared::cta")
        # Scales come from memory: that all threads have the same is not proved, but all meet here.
        self.role.barrier.sync()

    def _next(self, n: Value, cut: Cut) -> None:
        """Scores and weights of the tile of keys with -n - 1 tiles before it, and their product with the
        values.
        """
        k, softmax = self.k, self.softmax
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
                self._add([*sums, softmax.rounded_sum[i]] if is_last else sums, terms)
        value.release()

    def _add(self, sums: Sequence[Var], terms: Sequence[Value]) -> None:
        """Add terms to as many sums."""
        for total, term in zip(sums, terms, strict=False):
            self.k.add(total, term, into=total)

    def _finish(self) -> None:
        """O times the scale of V / sum, through shared to global memory."""
        k, config = self.k, self.config
        k.note("O / sum, LSE")
        cta = Cta.of(k, config, self.given)
        scales = self.given.operands["v_scale"]
        of_item = ScoreArray(scales.row(k, cta.batch), {"kv_heads": scales.strides["kv_heads"]}, scales.dtype)
        rows = self._first_row_of(cta), ROWS
        finish_rows(k, cta, rows, lambda: self.in_quad, self.softmax, self.O.rows_of_thread, of_item)
        out = self.rings.out
        assert out is not None  # there are no partial results of fp8
        self.role.barrier.sync()  # O may lie where the values of another warpgroup were
        self.O.write(out, self.group_row)
        self._send(cta, out)
        if self.odd is not None:
            self.odd.restore_all(cta, self.t.block_q, self.team, of_item)
