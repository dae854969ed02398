"""The forward kernel for Hopper: O = softmax(scale Q Kᵀ + mask) V in one pass over K and V, for f16 and
bf16 (FlashAttention-3, algorithm 2).

One warpgroup has tiles of Q, K and V copied to shared memory by the tensor memory accelerator; each of
the others computes 64 query rows of one head by `wgmma`. While the exponentials of a tile are computed,
the product of the weights before it with their values is under way. K and V are walked from the last
tile, which the end of the keys may cut; the loops behind it are those of `flash/device/masked_tiles.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Final, Protocol

from flash.device.append_in_place import AppendedRows
from flash.device.box_rows import BoxRows
from flash.device.cleared_values import ClearedValues
from flash.device.cta import Cta
from flash.device.finished_rows import finish_rows
from flash.device.gathered_rings import GatheredRings
from flash.device.lazy_softmax import LEAST_SCALE
from flash.device.masked_tiles import Masking, masked_tiles
from flash.device.mma_products import fragment_columns
from flash.device.overlapped_softmax import OverlappedSoftmax
from flash.device.parameters import Parameters, ScoreArray
from flash.device.persistent import Parts, PersistentRings
from flash.device.softmax import FirstTerms
from flash.device.stored_sums import LaneColumns, store_sums
from flash.device.sum_checked_softmax import SumCheckedSoftmax
from flash.device.team import Team
from flash.device.tiles import await_copies, commit_copies
from flash.device.wgmma_rings import Rings
from flash.problem.kernel_config import KernelConfig
from flash.problem.wgmma_tiling import WARPGROUP, WGMMA_ROWS, WgmmaTiling
from flash.scores.philox import KEYS_PER_BLOCK
from flash.scores.places import ScorePlaces
from flash.scores.scoring import Scoring
from flash.scores.window import Window
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Role, Value, marked
from ptxgen.dsl.hopper import BoxTile, Ring, Stage
from ptxgen.dsl.hopper.products import STEP
from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP, QUAD, QUAD_LANES
from ptxgen.target import WARP_SIZE
from ptxgen.types import s32, u32

_SLACK: Final = 8.0  # P is at most 2 ** _SLACK, which every 16-bit type holds with room to spare
_SIGNS: Final = 0x8000_8000  # of two elements in a word
ROWS: Final = (0, FRAGMENT_STEP)  # of a thread's part of a product, counted from its first row
_WORDS: Final = 4  # registers of a thread that hold its part of 64 x 16 elements


def wgmma_attention_forward(config: KernelConfig, t: WgmmaTiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    return attention_module(config, t, GatheredRings if config.gathers else Rings, Consumer)


@marked("wgmma: roles")
def attention_module(
    config: KernelConfig, t: WgmmaTiling, rings_of: type[Rings], consumer_of: type[Consumer]
) -> ir.Module:
    """The module with a kernel whose producer fills such rings, and whose other warpgroups are such
    consumers.
    """
    # Proofs do not follow shifts and products through what packed heads and new rows in place divide.
    own_rows = config.features.appended is not None
    short = not (config.packed or own_rows or config.features.turned is not None)
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=short)
    given = Parameters.declare(k, config)
    rings_of = PersistentRings if config.is_persistent else rings_of
    in_parts = config.is_persistent or config.features.splits
    keeps_more = in_parts and config.features.has(Window)
    to_copy, to_compute = t.registers_of_roles(keeps_more=keeps_more)
    producer = k.warpgroup_role("producer", registers=to_copy)
    consumer = k.warpgroup_role("consumer", warpgroups=t.consumers, registers=to_compute)
    rings = rings_of.declare(k, config, t, producer, consumer)
    parts = Parts.of(k, config, given, (producer, consumer))
    if own_rows:
        AppendedRows.written(k, config, given, Cta.of(k, config, given))
    with producer, parts.each() as given:
        cta = Cta.of(k, config, given)
        rings.fill_part(k, cta, _has_tiles(cta))
    with consumer, parts.each() as given:
        cta = Cta.of(k, config, given)
        consumer_of(k, config, t, given, cta, consumer, rings).run()
    return k.build(drop_unread=True)


@marked("wgmma: whether there is a tile")
def _has_tiles(cta: Cta) -> Value:
    """Whether the CTA has rows, and they see a tile of keys."""
    has_tiles = cta.tiles > (0 if cta.first_tile is None else cta.first_tile)
    # The grid is sized for the longest of packed sequences.
    return has_tiles if cta.queries_from is None else has_tiles & (cta.first_row < cta.O.rows)


class Outputs(Protocol):
    """O in the registers of a warpgroup."""

    def write(self, tile: BoxTile, row: Value) -> None:
        """Write it to a tile, from row `row` (u32) on."""


class Consumer:
    """What the warpgroups that compute do."""

    slack: ClassVar[float] = _SLACK
    sinks_last: ClassVar[bool] = False  # whether sinks are added behind all keys
    softmax: OverlappedSoftmax

    def __init__(
        self,
        k: KernelBuilder,
        config: KernelConfig,
        t: WgmmaTiling,
        given: Parameters,
        cta: Cta,
        role: Role,
        rings: Rings,
    ) -> None:
        self.k = k
        self.config = config
        self.t = t
        self.given = given
        self.cta = cta
        self.role = role
        self.team = Team(role)
        self.rings = rings
        self.odd = rings.odd
        self.keys_of_thread = fragment_columns(t.keys_of_consumer)
        self.q_stage: Stage | None = None  # of Q, if the producer fills it

    @marked("wgmma: tiles of a consumer")
    def run(self) -> None:
        """Compute and store the rows of O."""
        k, t, cta = self.k, self.t, self.cta
        self._begin()
        self.turns = k.turns(self.role) if t.takes_turns else None
        if self.config.is_persistent:
            self.q = self._queries()  # also where there are no keys (`PersistentRings.fill_part`)
        with k.when(_has_tiles(cta), uniform=True):
            if self.turns is not None:
                self.turns.begin()
            if not self.config.is_persistent:
                self.q = self._queries()
            self._flip_signs()
            self._turn_queries()
            self._walk()
            if self.turns is not None:
                self.turns.end()
        if self.config.begins_next:
            k.note("the grid that merges the parts may begin")
            k.griddepcontrol_launch_dependents()
        if t.own_output:
            self._give_back_queries()
        self._finish()
        if self.config.is_persistent:
            self._end_part()

    @marked("wgmma: tiles of a consumer")
    def _begin(self) -> None:
        """Declare what the loops over tiles of keys change: S, P, O and the state of the softmax."""
        k, t = self.k, self.t
        self.S = k.wgmma.accumulator(WGMMA_ROWS, t.tile, zero=False)
        self.O = k.wgmma.accumulator(WGMMA_ROWS, t.output_columns)
        self.group_row = self._group() * WGMMA_ROWS
        self._find_rows()
        scale, sinks = self._arguments_of_softmax(self.in_quad)
        # Weights that a feature changes behind their sums are not rounded before it.
        self.checks_sums = t.checks_sums and not self.cta.after_softmax
        self.softmax = SumCheckedSoftmax(
            k, len(ROWS), QUAD, scale, self.slack, sinks, sinks_last=self.sinks_last
        )
        self.P = [[k.var(u32, 0) for _ in range(_WORDS)] for _ in range(t.tile // STEP)]

    @marked("wgmma: tiles of a consumer")
    def _group(self) -> Value:
        """The number of this warpgroup among those that compute, u32. The assembler knows that it is the
        same in all lanes: descriptors made of it are in uniform registers.
        """
        return self.k.warp_index // (WARPGROUP // WARP_SIZE) % self.t.consumers

    @marked("wgmma: tiles of a consumer")
    def _find_rows(self) -> None:
        """Find the rows of this thread, and its columns in products."""
        cta = self.cta
        self.my_first_row = self._first_row_of(cta)
        self.query_of = None
        if cta.packs_queries:
            self.query_of = [cta.query(self.my_first_row + down) for down in ROWS].__getitem__
        self.in_quad = self.k.thread_id() % QUAD_LANES

    @marked("wgmma: tiles of a consumer")
    def _arguments_of_softmax(self, lane: Value) -> tuple[Value | None, Sequence[FirstTerms]]:
        """The factor of scores in units of log2, None if features apply it, and the first terms of sums;
        `lane` is the number of this thread among those that share its rows.
        """
        k, cta = self.k, self.cta
        sinks = cta.sinks(k, lane, ROWS, lambda: self.my_first_row)
        return self._factor() if cta.scoring is None else None, sinks

    def _factor(self) -> Value:
        """The factor of products in units of log2, positive, if no feature applies it."""
        return self.k.max(self.k.abs(self.cta.scale_log2), LEAST_SCALE)

    def _walk(self) -> None:
        """Take the tiles of keys from the last to the first."""
        k, cta = self.k, self.cta
        self._first()
        for begin, end, cut in masked_tiles(k, cta, lambda: Cta.of(k, self.config, self.given)):
            if cut is Masking.FULL and not cta.mask.hides_keys:
                continue  # at most one tile, which is done
            self._take(k.min(begin, cta.tiles - 1), end, cut)
        self._last()

    def _take(self, begin: Value, end: Value | int, cut: Masking) -> None:
        """Take the tiles of keys `begin` - 1 to `end`, downwards, except those that no row sees."""
        k = self.k
        with k.loop(-begin, end if isinstance(end, int) else -end) as n:
            seen = self._seen(n)
            with nullcontext() if seen is None else k.when(seen, uniform=True):
                self._next(n, cut)

    def _seen(self, n: Value) -> Value | None:
        """Whether a row sees a key of the tile with -n - 1 tiles before it; None: yes."""
        mask = self.cta.mask
        return mask.sees_tile(self.rings.first_key(n)) if mask.has_gaps else None

    def _first_row_of(self, cta: Cta) -> Value:
        """The first row of this thread, whose warpgroup has the rows from `group_row` on."""
        group = self.k.thread_id() // WARPGROUP % self.t.consumers
        return cta.first_row + self.k.signed(self.S.row + group * WGMMA_ROWS)

    @marked("wgmma: queries")
    def _queries(self) -> BoxTile:
        """The tile of Q, when it is there."""
        queries = self.rings.queries
        if isinstance(queries, Ring):
            self.q_stage = queries.acquire()
            return self.q_stage.q
        rows = BoxRows(self.k, self.team, queries)
        rows.load(self.cta.Q, self.cta.first_row)
        commit_copies(self.k)
        await_copies(self.k)
        self.k.fence_proxy_async(space="shared::cta")
        self.role.barrier.sync()
        return queries

    @marked("wgmma: queries given back")
    def _give_back_queries(self) -> None:
        """Let the producer fetch the queries of the next part."""
        if self.q_stage is not None:
            self.q_stage.release()

    def _end_part(self) -> None:
        """Let the next part begin: nobody reads what it writes any more."""
        if not self.t.own_output:
            self._give_back_queries()
        if self.q_stage is None or self.cta.queries_from is not None:
            self.role.barrier.sync()  # all have read the rows that threads store

    @marked("wgmma: negative scale")
    def _flip_signs(self) -> None:
        """Negate Q if the scale is negative: the softmax takes a positive one."""
        k, q = self.k, self.q
        if self.cta.scoring is not None:
            return
        with k.when(self.given.scale.as_(s32) < 0, uniform=True):
            for at in q.chunks(self.role.thread, self.role.threads):
                k.store(at, [word ^ _SIGNS for word in k.load(at, 4)])
            k.fence_proxy_async(space="shared::cta")
            self.role.barrier.sync()

    def _turn_queries(self) -> None:
        """Rotate the queries, if the kernel does, where they are."""
        own = AppendedRows.of(self.k, self.config, self.given, self.cta)
        if own is None or not own.turns:
            return
        own.turn_queries(self.q.pointer, self.team)
        self.k.fence_proxy_async(space="shared::cta")
        self.role.barrier.sync()

    @marked("wgmma: first tile")
    def _first(self) -> None:
        """Scores and weights of the last tile of keys."""
        k = self.k
        key = self.rings.keys.acquire()
        k.note("S = Q K^T")
        self.S.set(self.q.part(self.group_row, WGMMA_ROWS) @ key.k.T)
        k.wgmma.wait()
        key.release()
        self._weigh(-self.cta.tiles, Masking.FULL)
        self._pack()

    @marked("wgmma: next tile")
    def _next(self, n: Value, cut: Masking) -> None:
        """Scores and weights of a tile of keys, and the product of the tile before with its values."""
        k = self.k
        key = self.rings.keys.acquire()
        k.note("S = Q K^T, and O += P V of the tile before")
        with nullcontext() if self.turns is None else self.turns.taken():
            self.S.set(self.q.part(self.group_row, WGMMA_ROWS) @ key.k.T)
            value = self.rings.values.acquire()
            self.O += k.wgmma.registers(self.P, self.config.dtype.scalar) @ value.v
        if self.checks_sums:
            k.wgmma.wait()
            key.release()
            value.release()
            self._score(n, cut)
            self._weigh_by_sums()
        else:
            k.wgmma.wait(1)
            key.release()
            self._weigh(n, cut)
            k.wgmma.wait(after=self.softmax.row_sum)
            value.release()
            self._rescale_and_pack()

    @marked("wgmma: last values")
    def _last(self) -> None:
        """The product of the last weights with their values."""
        k = self.k
        value = self.rings.values.acquire()
        k.note("O += P V")
        self.O += k.wgmma.registers(self.P, self.config.dtype.scalar) @ value.v
        k.wgmma.wait()
        value.release()

    def _score(self, n: Value, cut: Masking) -> ScorePlaces | None:
        """What features do to S of the tile with -n - 1 tiles before it. Returns its places, if they ask
        for them.
        """
        k, cta, S, scoring = self.k, self.cta, self.S.rows_of_thread, self._scoring()
        places = None
        if cut.hides or scoring is not None or cta.after_softmax:
            begins_block = self.t.keys_of_consumer % KEYS_PER_BLOCK == 0
            places = ScorePlaces(
                k,
                self.my_first_row,
                self._first_key(n),
                self.in_quad * 2,
                ROWS,
                self.keys_of_thread,
                begins_block=begins_block,
                crosses_blocks=not begins_block and self.t.keys_of_consumer > KEYS_PER_BLOCK,
                packing=cta.packing,
                query_of=self.query_of,
            )
            if scoring is not None:
                scoring.apply(S, places)
            if cut.hides:
                cta.mask.apply(k, S, places, in_front=cut is Masking.LEFT)
        return places

    def _scoring(self) -> Scoring | None:
        """What makes scores of the products of a tile; None if the softmax alone does."""
        return self.cta.scoring

    def _first_key(self, n: Value) -> Value:
        """The first key whose scores this warpgroup computes in the tile with -n - 1 tiles before it."""
        return self.rings.first_key(n)

    def _weigh(self, n: Value, cut: Masking) -> None:
        """P = exp2(scale * (S - shift)) of the tile with -n - 1 tiles before it."""
        S, places = self.S.rows_of_thread, self._score(n, cut)
        self.k.note("P = exp2(scale * S - shift)")
        self.softmax.weigh(S)
        if places is not None:
            for feature in self.cta.after_softmax:
                feature.drop(S, places)

    def _weigh_by_sums(self) -> None:
        """Set P to exp2(scale * (S - shift)), rounded; where the sums say that a shift has to move, again."""
        S, softmax = self.S.rows_of_thread, self.softmax
        assert isinstance(softmax, SumCheckedSoftmax)  # the kernel checks sums
        by_polynomial = self.t.by_polynomial if self.cta.scoring is None else 0

        def again() -> None:
            softmax.weigh(S)
            self._rescale_and_pack()

        self.k.note("P = exp2(scale * S - shift), if its sums are small")
        softmax.weigh_into(S, self.P, self.config.dtype.scalar, by_polynomial, again)

    def _rescale_and_pack(self) -> None:
        """Rescale O, where a shift has moved, and round P."""
        self.softmax.rescale(self.O.rows_of_thread)
        self._pack()

    def _pack(self) -> None:
        """Round P to 16 bits, into the registers from which the next product reads it."""
        for words, rounded in zip(self.P, self.S.packed(self.config.dtype.scalar).words, strict=True):
            for word, value in zip(words, rounded, strict=True):
                word.set(value)

    @marked("wgmma: rows of O")
    def _finish(self) -> None:
        """O / sum, to global memory: as f32 if other splits of the keys have parts of it, else through shared
        memory.
        """
        k, t = self.k, self.t
        k.note("O / sum, LSE")
        cta = Cta.of(k, self.config, self.given)
        scale = self._scale_of_values(cta)
        O, first_row = self.O.rows_of_thread, self._first_row_of(cta)
        finish_rows(k, cta, (first_row, ROWS), lambda: self.in_quad, self.softmax, O, scale)
        out = self.rings.out
        with self._findings() as found:
            if out is None:
                store_sums(k, (cta.O, lambda: first_row), ROWS, self._lane_columns(), t.slices, O)
            else:
                self.role.barrier.sync()  # O may lie where rows of Q, or values, of another warpgroup were
                self._outputs.write(out, self.group_row)
                self._send(cta, out, visible=found)
            self._restore(cta)

    def _findings(self) -> AbstractContextManager[Value | bool]:
        """The context in which O is stored and restored; gives whether threads read what is stored of it."""
        return (
            self.odd.received_findings()
            if isinstance(self.odd, ClearedValues)
            else nullcontext(self.odd is not None)
        )

    def _scale_of_values(self, cta: Cta) -> ScoreArray | None:  # noqa: ARG002
        """What O is multiplied with; None for 1."""
        return None

    def _restore(self, cta: Cta) -> None:
        """Add what was cleared in values to the rows that see it."""
        if self.odd is not None:
            self.odd.restore(cta, self.t.block_q, self._cleared(cta), self.team)

    def _lane_columns(self) -> LaneColumns:
        """The columns of O of this thread, where they are stored from registers."""
        return LaneColumns.of_tiles(self.k.signed(self.in_quad) * 2, self.t.head_dim_v)

    @property
    def _outputs(self) -> Outputs:
        """What writes this warpgroup's rows of O."""
        return self.O

    @marked("wgmma: store of O")
    def _send(self, cta: Cta, out: BoxTile, visible: Value | bool) -> None:
        """Store the tile of O: by a tensor copy, unless rows behind those of the CTA, or between them, are
        of others. `visible` is whether threads read what it has stored.
        """
        k, whole = self.k, None
        if self.config.packed:
            self._send_rows(cta, out)
            return
        if cta.queries_from is not None:
            whole = cta.first_row + self.t.block_q <= cta.O.rows
        with nullcontext() if whole is None else k.when(whole, uniform=True):
            k.tma.store(out, self.rings.place("O", cta, cta.first_row), visible=visible)
        if whole is not None:
            with k.otherwise():
                self._send_rows(cta, out)

    def _send_rows(self, cta: Cta, out: BoxTile) -> None:
        """Store the rows of O that the CTA has."""
        self.role.barrier.sync()
        BoxRows(self.k, self.team, out).store(cta.O, cta.first_row)

    def _cleared(self, cta: Cta) -> list[tuple[Value | int, Value]]:
        """The keys, first and end, whose values were cleared: those of cut tiles, and of the last tile."""
        k, tile = self.k, self.t.tile
        found: list[tuple[Value | int, Value]] = []
        for begin, end, cut in masked_tiles(k, cta, lambda: cta):
            if cut is Masking.FULL:
                end = k.min(end, k.max(cta.tiles - 1, 0))
            if cut.hides:
                found.append((cta.first_key_of(k, end), begin * tile))
        return found
