"""The kernel that writes dK and dV (FlashAttention-2, algorithm 2): a CTA owns rows of K and V, and
walks over the queries that see them, of one head after another that share these rows. In one sweep it
also adds to the sums of dQ. `flash/device/gradient_tiles.py` has the formulas.

The scores are computed transposed, keys by queries, so that Pᵀ and dSᵀ are in the registers of the
lanes that need them as operand A of the next products.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence

from flash.device.column_warps import ColumnWarps
from flash.device.gradient_parts import GradientParameters, KeysPart, RowNumbers, Terms, if_some
from flash.device.gradient_scores import ScoreGradients
from flash.device.gradient_terms import KeyTerms
from flash.device.gradient_tiles import begun, products_of, shift_of, store_part, tame, tiles_of
from flash.device.mask import if_seen
from flash.device.mma_products import WarpCoordinates, fragment_columns, fragment_rows
from flash.device.nonfinite import clear
from flash.device.panel_loader import PanelLoader
from flash.device.query_sums import QuerySums
from flash.device.shared_weights import SharedWeights
from flash.device.tile_pairs import TilePairs
from flash.device.tiles import await_copies, await_every_copy, commit_copies, copies_are_asynchronous
from flash.families.mma import MMA_KEYS
from flash.families.precision import PANEL_BYTES
from flash.problem.gradients import GradientConfig, GradientTiling
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, SharedTile, TilePointer, Value, Var, marked
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, QUAD, over_lanes
from ptxgen.dsl.swizzle import SwizzledTile
from ptxgen.types import f32, u32

_SHIFTS, _DELTAS = 0, 1  # rows of the tile with the numbers of rows


@marked("gradient of keys: loops")
def gradient_of_keys(config: GradientConfig) -> ir.Module:
    """Generate the kernel of a configuration: its PTX module."""
    k, parameters = begun(config)
    cta = _Cta(k, config, KeysPart.of(k, config, parameters))
    part, tile = cta.part, config.mma.tile
    with k.loop(0, part.parameters.group) as member:
        of = _Head(cta, part.kv_head * part.parameters.group + member, parameters.longest("k"))
        of.pairs.begin(part.first_tile, part.end_tile, again=True)  # after those of the head before
        with if_some(k, part.parameters.seq_q), k.loop(part.first_tile, part.end_tile) as n:
            first_query = n * tile
            last_query = k.min(first_query + tile, part.parameters.seq_q) - 1
            mask = of.gradients.mask.of_queries(first_query, last_query)
            hides = functools.partial(part.hides, k, mask, first_query, config.mma)
            of.pairs.await_next(n, part.end_tile, functools.partial(of.prepare, hides))
            with if_seen(k, mask.sees_tile(cta.seen_from)):
                for nth, first in enumerate(config.mma.parts):
                    of.add_queries(nth, first_query + first if first else first_query, hides)
            of.pairs.advance()
        of.write_terms()
    cta.store_sums(parameters)
    return k.finish()


class _Cta:
    """The state of a CTA that walks over queries: its rows of K and V in shared memory, its sums of dK and dV
    in registers, and room for tiles of Q and dO. The copies of K and V are on their way.
    """

    @marked("gradient of keys: rows of a CTA")
    def __init__(self, k: KernelBuilder, config: GradientConfig, part: KeysPart) -> None:
        self.k, self.config, self.part = k, config, part
        t, of_head = config.mma, part.parameters
        of_columns = ColumnWarps.of(k, config)
        self.me, across = WarpCoordinates.of(k) if of_columns is None else of_columns.rows, None
        if t.across > 1:
            across = self.me.warp % t.across
            self.me = WarpCoordinates(self.me.warp // t.across, self.me.lane)
        k.note("shared memory, and the first tiles on their way there")
        owned, walked = tiles_of(k, config, ("K", "V"), ("Q", "dO"))
        self.K_tile, self.V_tile = owned
        self.Q_tile, self.dO_tile = walked
        self.of_rows = k.shared("row_numbers", (2 * t.stages, t.tile), f32)
        K, V = (of_head.rows(k, name, part.batch, part.kv_head) for name in "KV")
        loaders = [PanelLoader(k, matrix, tile) for matrix, tile in zip((K, V), owned, strict=True)]
        for loader in loaders:
            loader.fill(part.first_key)  # in the group of the first pair, unless they are awaited here
        self.first_scores = part.scores(k, config, part.kv_head * of_head.group)
        self.hides_keys = self.first_scores.mask().hides_keys
        if self.hides_keys or t.resident:
            commit_copies(k)
            await_copies(k)
        if self.hides_keys:  # NaN in V, and in K where it is a factor of dQ: 0 * NaN is NaN
            for loader in loaders if t.adds_queries else loaders[1:]:
                clear(k, config.dtype.scalar, loader, None)
        if t.resident:
            k.barrier()  # K and V have been written by all

        of_scores = self.K_tile, self.Q_tile, self.Q_tile
        of_values = self.V_tile, self.dO_tile, self.dO_tile
        products = functools.partial(products_of, k, me=self.me, config=config, column_warps=of_columns)
        self.products = products(t.of_scores, tiles=of_scores, resident=t.resident > 0)
        self.of_values = products(t.of_weights, tiles=of_values, resident=t.resident > 1, are_second=True)
        met = t.of_scores.tile
        self.keys, self.queries = fragment_rows(t.of_scores), fragment_columns(met)
        self.S, self.dP = (k.fragment(len(self.keys), met // 4, initial=None) for _ in range(2))
        self.sum_dK = k.fragment(len(self.keys), t.of_scores.output_columns // 4)
        self.sum_dV = k.fragment(len(self.keys), t.of_weights.output_columns // 4)
        self.my_first_key = part.first_key + k.signed(self.me.warp_row(t.of_scores))
        self.columns = [_part_of(part.slice if across is None else across, tile, t) for tile in walked]
        self.seen_from = part.first_key if t.warps_meet else self.my_first_key
        self.passed = None if across is None else SharedWeights(k, config, self.me, across)
        # The part of the columns that this warp makes; None: all.
        self.column_part = part.slice if across is None else across
        if of_columns is not None:
            self.column_part = of_columns.number
        self.query_sums = None
        if t.adds_queries:
            of_slice = part.slice, _part_of(part.slice, self.K_tile, t)
            self.query_sums = QuerySums(k, config, self.me, self.K_tile, *of_slice)

    @property
    def first_of_lane(self) -> Value:
        """The first query, counted in a tile, of which this lane has scores."""
        of_quad = self.me.in_quad * 2
        return of_quad if self.passed is None else of_quad + self.passed.first_column

    def of_warp(self, stage: Value | None) -> Value | None:
        """The byte at which the queries begin whose scores this warp computes, in a stage at byte `stage`."""
        return stage if self.passed is None else _moved(stage, self.passed.first_column * PANEL_BYTES)

    @marked("gradient of keys: results")
    def store_sums(self, parameters: GradientParameters) -> None:
        """Write the CTA's rows of dK and dV."""
        k, t = self.k, self.config.mma
        # Computed again: kept in registers through the loops, these values would be spilled.
        part = KeysPart.of(k, self.config, parameters, again=True)
        dK, dV = (part.parameters.rows(k, name, part.batch, part.kv_head) for name in ("dK", "dV"))
        k.note("dK, dV")
        if not (self.hides_keys or t.resident):
            await_every_copy(k)  # of rows that no tile sees
        if t.resident < 2 or t.stages == 1:  # else they were read before the barrier of the first head
            k.barrier()  # K and V have been read by all, or only copied
        scores = self.config.features.scores
        weighing = [f.applied(self.first_scores) for f in scores if f.changes_weights]
        factor = weighing[0].output_factor if weighing else None
        scale = part.parameters.scale
        stored = (
            (t.of_scores, self.products, self.K_tile, dK, self.sum_dK, scale),
            (t.of_weights, self.of_values, self.V_tile, dV, self.sum_dV, factor),
        )
        mine = part.slice if t.slices > 1 else self.column_part
        for of, (products, *_), staging, matrix, total, times in stored:
            store_part(k, t, mine, of, self.me, products, staging, matrix, part.first_key, total, times)


class _Head:
    """One of the heads of Q that share the CTA's keys: the copies of its rows to shared memory, its scores,
    and its sums by keys. `longest` is the number of keys that its terms have room for.
    """

    def __init__(self, cta: _Cta, head: Value, longest: Value) -> None:
        self.cta, self.k = cta, cta.k
        k, part, config = cta.k, cta.part, cta.config
        of_head = part.parameters
        Q, dO = (of_head.rows(k, name, part.batch, head) for name in ("Q", "dO"))
        numbers_of = RowNumbers.of(k, of_head, part.batch, head)
        scores = part.scores(k, config, head)
        adds = config.mma.adds_queries
        self.gradients = ScoreGradients.of(k, scores, scores.mask(), config.wanted if adds else ())
        self._sums_of_queries = None
        if adds:
            self._sums_of_queries = of_head.rows_of_sums(k, config.mma.head_dim, part.batch, head)
        self.pairs = TilePairs(
            k,
            (PanelLoader(k, Q, cta.Q_tile), PanelLoader(k, dO, cta.dO_tile)),
            _NumberCopies(k, numbers_of, cta.of_rows, of_head.seq_q),
            2 * config.mma.tile * f32.nbytes,
            warps_meet=adds,  # where dS passes through shared memory, after all other products
            prefetches=config.mma.prefetches,
        )
        self._key_terms = KeyTerms(k, config, self.gradients, cta.keys)
        self._head, self._longest = head, longest

    def prepare(self, hides: Callable[[], Value]) -> None:
        """Emit a thread's work on its parts of a tile before other threads read them: set NaN and infinity in
        Q and dO to 0, and LSE and D of its rows as `tamed` does, if keys may be hidden and `hides()`; then
        turn its LSE into shifts.
        """
        k, cta = self.k, self.cta
        if cta.hides_keys:
            self._tame_rows(hides())
        for _, at in _local_numbers(k, cta.of_rows, self.pairs.stage(2)):
            k.store(at, shift_of(k, k.load(at)))

    @marked("gradient of keys: hidden queries")
    def _tame_rows(self, cut: Value) -> None:
        k, cta = self.k, self.cta
        with k.when(cut, uniform=True):
            for i, loader in enumerate(self.pairs.loaders):
                clear(k, cta.config.dtype.scalar, loader, self.pairs.stage(i))
            for _, at in _local_numbers(k, cta.of_rows, self.pairs.stage(2)):
                tame(k, at, at.step(rows=_DELTAS - _SHIFTS))

    def add_queries(self, nth: int, first_query: Value, hides: Callable[[], Value]) -> None:
        """Add to dK and dV the terms of the queries of a part of the current tile, which begins with
        `first_query`. `hides()` emits whether queries of the tile may not see a key, or not exist: computed
        again here, because in a register from `prepare` on, it would be spilled.
        """
        k, cta, part = self.k, self.cta, self.cta.part
        S, dP, me = cta.S, cta.dP, cta.me
        products, of_values = cta.products[nth], cta.of_values[nth]
        Q_stage, dO_stage, of_numbers = (self.pairs.stage(n) for n in range(3))
        by_query = S.transposed, dP.transposed
        k.note("S^T = K Q^T")
        products.scores(S, cta.of_warp(Q_stage))
        slopes, coordinates = self.gradients.score(
            by_query[0],
            lambda: ScoreCoordinates(
                k,
                first_query + k.signed(cta.first_of_lane),
                cta.my_first_key,
                me.lane // 4,
                cta.queries,
                cta.keys,
            ),
            hides(),
            part.parameters.seq_q,
        )
        k.note("dP^T = V dO^T; dS = P (dP - D)")
        of_values.scores(dP, cta.of_warp(dO_stage))
        numbers = _numbers(k, cta.of_rows, of_numbers, cta.config.mma.parts[nth], cta.first_of_lane)
        self.gradients.differentiate(*by_query, numbers, coordinates)
        self._key_terms.add(dP, coordinates)
        self.gradients.bend(by_query[1], slopes)
        k.note("dV += P^T dO; dK += dS^T Q")
        if cta.passed is not None:
            cta.passed.keep(of_values.weights(S), products.weights(dP))
            k.barrier()  # all weights have been written
            P, dS = cta.passed.taken()
            of_values.outputs(cta.sum_dV, P, _moved(dO_stage, cta.columns[1]))
            products.outputs(cta.sum_dK, dS, _moved(Q_stage, cta.columns[0]))
            return
        of_values.outputs(cta.sum_dV, of_values.weights(S), _moved(dO_stage, cta.columns[1]))
        dS = products.weights(dP)
        if cta.query_sums is not None:
            cta.query_sums.keep(dS)
        products.outputs(cta.sum_dK, dS, _moved(Q_stage, cta.columns[0]))
        if cta.query_sums is not None and self._sums_of_queries is not None:
            k.note("dQ += dS K")
            cta.query_sums.add(self._sums_of_queries, first_query)

    @marked("gradient of keys: lanes that write")
    def write_terms(self) -> None:
        """Write each key's sum for the gradients of arrays of scores."""
        k, cta, part = self.k, self.cta, self.cta.part
        terms = Terms.of(k, part.parameters, part.batch, self._head, self._longest)

        def writes(key: Value) -> Value:
            result = (key < part.parameters.seq_k) & (cta.me.in_quad == 0)
            return result if cta.config.mma.warps_of_rows == 1 else result & (cta.column_part == 0)

        def my_key() -> Value:
            return cta.my_first_key + k.signed(cta.me.lane // 4)

        self._key_terms.write(terms, my_key, writes, self._over_queries)

    def _over_queries(self, totals: Sequence[Value]) -> Iterator[Value]:
        """The sums of a lane's totals, one for each of its keys, over the lanes and warps that have others
        for the same keys.
        """
        of_warp = (over_lanes(self.k, total, QUAD, operator.add) for total in totals)
        return of_warp if self.cta.passed is None else self.cta.passed.over_warps(of_warp)


def _local_numbers(
    k: KernelBuilder, saved: SharedTile, stage: Value | None
) -> Iterator[tuple[int, TilePointer]]:
    """The addresses of LSE and, a row of the tile further, D of the rows that this thread copies, in the
    stage at byte `stage`, each with its distance in rows from the thread's first one. Code emitted between
    one address and the next is only run by the threads that have such a row.
    """
    thread = k.thread_id()
    for first in range(0, saved.columns, k.threads):
        with k.when(thread < saved.columns - first):
            to = saved.pointer(_SHIFTS, thread).step(columns=first)
            yield first, to if stage is None else to.moved(to.value + stage)


class _NumberCopies:
    """Copies of LSE and D of the `rows` rows of a head to the tile `saved`; see `TilePairs`. Those of rows
    that do not exist become 0; their Q and dO are 0.
    """

    def __init__(
        self, k: KernelBuilder, of_rows: dict[str, RowNumbers], saved: SharedTile, rows: Value
    ) -> None:
        self.k, self._saved, self._rows = k, saved, rows
        self._sources = [(_SHIFTS, of_rows["LSE"]), (_DELTAS, of_rows["D"])]
        # Numbers on their way to the tile, by the distance of their row from the thread's first one.
        self._held: dict[int, list[Var]] = {}
        if not copies_are_asynchronous(k):
            firsts = range(0, saved.columns, k.threads)
            self._held = {first: [k.var(f32, 0.0) for _ in self._sources] for first in firsts}

    def start(self, first_row: Value, *, stage: Value | None = None) -> None:
        """Begin copying the numbers of the rows from `first_row` on into the stage at byte `stage`."""
        k = self.k
        thread = k.signed(k.thread_id())
        if self._held:
            self._load(first_row + thread)
            return
        for first, to in _local_numbers(k, self._saved, stage):
            row = first_row + thread + first
            valid = k.selp(f32.nbytes, 0, row < self._rows, type=u32)
            for n, numbers in self._sources:
                k.copy_async(to.step(rows=n), numbers.at(k, row), f32.nbytes, valid)

    def _load(self, my_row: Value) -> None:
        k = self.k
        for first, held in self._held.items():
            row = my_row + first
            exists = (row < self._rows) & (k.thread_id() < self._saved.columns - first)
            for value, (_, numbers) in zip(held, self._sources, strict=True):
                at = numbers.at(k, row)
                value.set(0.0)
                with k.only_if(exists):
                    k.load(at, into=value)

    def land(self, stage: Value | None = None) -> None:
        """Write what waits in registers into the stage at byte `stage`; nothing where copies are
        asynchronous.
        """
        for first, to in _local_numbers(self.k, self._saved, stage) if self._held else ():
            for value, (n, _) in zip(self._held[first], self._sources, strict=True):
                self.k.store(to.step(rows=n), value)

    def forget(self) -> None:
        """Set the registers to 0 whose copies `start` may have left out."""
        for held in self._held.values():
            for value in held:
                value.set(0.0)


def _numbers(
    k: KernelBuilder, saved: SharedTile, stage: Value | None, first: int, of_lane: Value
) -> Callable[[int], tuple[Value, Value]]:
    """A function that gives the shift and D of each of a lane's queries, which are counted from query
    `first + of_lane` of the tile; it loads those of two neighbours at once.
    """
    at = saved.pointer(0, of_lane).step(columns=first)
    at = at if stage is None else at.moved(at.value + stage)
    loaded: dict[int, tuple[tuple[Value, ...], ...]] = {}

    def numbers(i: int) -> tuple[Value, Value]:
        tile, column = divmod(i, LANE_COLUMNS)
        if tile not in loaded:
            pairs = (k.load(at.step(rows=n, columns=MMA_KEYS * tile), 2) for n in (_SHIFTS, _DELTAS))
            loaded[tile] = tuple(tuple(pair) for pair in pairs)
        shifts, deltas = loaded[tile]
        return shifts[column], deltas[column]

    return numbers


def _part_of(number: Value | None, tile: SwizzledTile, t: GradientTiling) -> Value | None:
    """The byte of a tile at which part `number` of the columns begins; None: 0."""
    if number is None:
        return None
    panels = len(tile.panels) // t.column_parts
    return number * tile.panels[panels].offset


def _moved(stage: Value | None, columns: Value | None) -> Value | None:
    if stage is None or columns is None:
        return columns if stage is None else stage
    return stage + columns
