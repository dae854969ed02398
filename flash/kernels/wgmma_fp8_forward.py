"""The forward kernel for Hopper with Q, K and V of fp8: O = softmax(scale Q Kᵀ + mask) V in one pass
over K and V.

One warpgroup has tiles copied to shared memory, and transposes those of V; each of the others computes
64 query rows of one head. Numbers of Q, K and V are multiplied by scales of their head: those of Q and K
are part of the softmax's scale, that of V is of O. Weights are rounded to e4m3, whatever V is, after the
softmax has made the largest 2^8.

`wgmma` of fp8 adds with 13 bits behind the first and truncates (`ptxgen/isa/tensor_core.py`). Sums over
all keys would lose what a tile adds to them: so the sums of each tile start at zero, and are added to O
in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from flash.device.box_rows import BoxRows
from flash.device.cta import Cta
from flash.device.finished_rows import finish_rows
from flash.device.fp8_nonfinite import Fp8NonFinite
from flash.device.fp8_rings import Fp8Rings
from flash.device.fp8_softmax import LiftedSoftmax
from flash.device.fp8_values import packed_weights
from flash.device.lazy_softmax import LEAST_SCALE
from flash.device.mma_products import fragment_columns
from flash.device.parameters import Parameters, ScoreArray
from flash.device.team import Team
from flash.device.tile_runs import Cut, tile_runs
from flash.operands.dtypes import E4M3
from flash.problem.fp8_tiling import ONES, Fp8Tiling
from flash.problem.kernel_config import KernelConfig
from flash.problem.wgmma_tiling import WARPGROUP, WGMMA_ROWS
from flash.scores.philox import KEYS_PER_BLOCK
from flash.scores.places import ScorePlaces
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Role, Value, Var
from ptxgen.dsl.hopper import Ring
from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP, QUAD, QUAD_LANES
from ptxgen.target import WARP_SIZE
from ptxgen.types import s32

_SIGNS = 0x8080_8080  # of four elements in a word
_ROWS = (0, FRAGMENT_STEP)  # of a thread's part of a product, counted from its first row


def wgmma_fp8_attention_forward(config: KernelConfig, t: Fp8Tiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=True)
    given = Parameters.declare(k, config)
    producer = k.warpgroup_role("producer", registers=t.producer_registers)
    consumer = k.warpgroup_role("consumer", warpgroups=t.consumers, registers=t.consumer_registers)
    rings = Fp8Rings.of(k, config, t, producer, consumer)
    # Without a mask, the only hidden keys are beyond the end, where the tile of V holds zeros, but of packed
    # sequences rows of the next one.
    odd = Fp8NonFinite(k, config) if config.hides_keys or config.features.varlen else None
    with producer:
        cta = Cta.of(k, config, given)
        with k.when(_has_tiles(cta), uniform=True):
            rings.fill_and_transpose(k, cta, config.dtype, odd)
    with consumer:
        cta = Cta.of(k, config, given)
        _Consumer(k, config, t, given, cta, consumer, rings, odd).run()
    return k.build()


def _has_tiles(cta: Cta) -> Value:
    """Whether the CTA has rows, and they see a tile of keys."""
    has_tiles = cta.tiles > (0 if cta.first_tile is None else cta.first_tile)
    # The grid is sized for the longest of packed sequences.
    return has_tiles if cta.queries_from is None else has_tiles & (cta.first_row < cta.O.rows)


class _Consumer:
    """What the warpgroups that compute do."""

    def __init__(
        self,
        k: KernelBuilder,
        config: KernelConfig,
        t: Fp8Tiling,
        given: Parameters,
        cta: Cta,
        role: Role,
        rings: Fp8Rings,
        odd: Fp8NonFinite | None,
    ) -> None:
        self.k = k
        self.config = config
        self.t = t
        self.given = given
        self.cta = cta
        self.role = role
        self.rings = rings
        self.odd = odd
        self.kind = config.dtype.name
        self.keys_of_thread = fragment_columns(t.tile)

    def run(self) -> None:
        """Compute and store the rows of O."""
        k, t, cta = self.k, self.t, self.cta
        self.S = k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False)
        self.part = k.wgmma.accumulator(WGMMA_ROWS, t.value_part, zero=False)
        self.last_part = k.wgmma.accumulator(WGMMA_ROWS, t.value_part + ONES, zero=False)
        self.O = k.wgmma.accumulator(WGMMA_ROWS, t.output_columns)
        # A warpgroup's number is the same in all lanes: descriptors made of it are in uniform registers.
        self.group_row = k.warp_index // (WARPGROUP // WARP_SIZE) % t.consumers * WGMMA_ROWS
        self.my_first_row = self._first_row_of(cta)
        self.in_quad = k.thread_id() % QUAD_LANES
        sinks = cta.sinks(k, self.in_quad, _ROWS, lambda: self.my_first_row)
        scale = k.max(k.abs(cta.scale_log2), LEAST_SCALE) if cta.scoring is None else None
        self.softmax = LiftedSoftmax(k, len(_ROWS), QUAD, scale, sinks, with_lse=self.config.return_lse)
        with k.when(_has_tiles(cta), uniform=True):
            queries = self.rings.queries
            assert isinstance(queries, Ring)
            self.q = queries.acquire().q
            self._flip_signs()
            for begin, end, cut in tile_runs(k, cta, lambda: Cta.of(k, self.config, self.given)):
                with k.loop(-begin, end if isinstance(end, int) and not end else -end) as n:
                    seen = None
                    if cta.mask.has_gaps:
                        seen = cta.mask.sees_tile(self.rings.first_key(n))
                        assert seen is not None  # some tiles have gaps between them
                        seen = seen | (n == -cta.tiles)
                    with nullcontext() if seen is None else k.when(seen, uniform=True):
                        self._tile(n, cut)
        self._finish()

    def _first_row_of(self, cta: Cta) -> Value:
        """The first row of this thread, whose warpgroup has the rows from `group_row` on."""
        group = self.k.thread_id() // WARPGROUP % self.t.consumers
        return cta.first_row + self.k.signed(self.S.row + group * WGMMA_ROWS)

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

    def _tile(self, n: Value, cut: Cut) -> None:
        """Scores and weights of the tile of keys with -n - 1 tiles before it, and their product with the
        values.
        """
        k, softmax = self.k, self.softmax
        key = self.rings.keys.acquire()
        k.note("S = Q K^T")
        q = self.q.part(self.group_row, WGMMA_ROWS).as_fp8(self.kind)
        self.S.set(q @ key.k.T.as_fp8(self.kind))
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
            part.set(k.wgmma.registers(P, E4M3.name) @ value.v.part(first, part.columns).T.as_fp8(self.kind))
            k.wgmma.wait()
            for i, terms in enumerate(part.rows_of_thread):
                sums = self.O.rows_of_thread.row(i)[first // QUAD_LANES :]
                self._add([*sums, softmax.rounded_sum[i]] if is_last else sums, terms)
        value.release()

    def _add(self, sums: Sequence[Var], terms: Sequence[Value]) -> None:
        """Add terms to as many sums."""
        for total, term in zip(sums, terms, strict=False):
            self.k.add(total, term, into=total)

    def _weigh(self, n: Value, cut: Cut) -> None:
        """P = exp2(scale * S - shift) of the tile with -n - 1 tiles before it."""
        k, cta, S = self.k, self.cta, self.S.rows_of_thread
        places = None
        if cut.hides or cta.scoring is not None:
            first_key, begins_block = self.rings.first_key(n), self.t.tile % KEYS_PER_BLOCK == 0
            places = ScorePlaces(
                k,
                self.my_first_row,
                first_key,
                self.in_quad * 2,
                _ROWS,
                self.keys_of_thread,
                begins_block,
                None,
                None,
            )
            if cta.scoring is not None:
                cta.scoring.apply(S, places)
            if cut.hides:
                cta.mask.apply(k, S, places, in_front=cut is Cut.IN_FRONT)
        k.note("P = exp2(scale * S - shift)")
        self.softmax.weigh(S)

    def _finish(self) -> None:
        """O times the scale of V / sum, through shared to global memory."""
        k, config = self.k, self.config
        k.note("O / sum, LSE")
        cta = Cta.of(k, config, self.given)
        scales = self.given.operands["v_scale"]
        of_item = ScoreArray(scales.row(k, cta.batch), {"kv_heads": scales.strides["kv_heads"]}, scales.dtype)
        rows = self._first_row_of(cta), _ROWS
        finish_rows(k, cta, rows, lambda: self.in_quad, self.softmax, self.O.rows_of_thread, of_item)
        out = self.rings.out
        assert out is not None  # there are no partial results of fp8
        self.role.barrier.sync()  # O may lie where the values of another warpgroup were
        self.O.write(out, self.group_row)
        whole = None
        if cta.queries_from is not None:
            whole = cta.first_row + self.t.block_q <= cta.O.rows
        with nullcontext() if whole is None else k.when(whole, uniform=True):
            k.tma.store(out, self.rings.place("O", cta, cta.first_row), visible=self.odd is not None)
        if whole is not None:
            with k.otherwise():
                self.role.barrier.sync()
                BoxRows(k, Team(self.role), out).store(cta.O, cta.first_row)
        if self.odd is not None:
            self.odd.restore_all(cta, self.t.block_q, Team(self.role), of_item)
