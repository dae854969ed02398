"""The kernel that writes dK and dV (FlashAttention-2, algorithm 2): a CTA owns rows of K and V, and
walks over the queries that see them, of one head after another that share these rows.
`flash/device/gradient_tiles.py` has the formulas.

The scores are computed transposed, keys by queries, so that Pᵀ and dSᵀ are in the registers of the
lanes that need them as operand A of the next products.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace

from flash.device.gradient_parts import KeysPart, RowNumbers, Terms
from flash.device.gradient_scores import ScoreGradients
from flash.device.gradient_tiles import begun, if_seen, nothing, products_of, shift_of, store, tame, tiles_of
from flash.device.mma_products import WarpPlace, WarpProducts, fragment_columns, fragment_rows
from flash.device.nonfinite import clear
from flash.device.panel_loader import PanelLoader
from flash.device.tile_pairs import TilePairs
from flash.device.tiles import Matrix
from flash.problem.gradients import GradientConfig, GradientTiling
from flash.problem.mma_tiling import MMA_KEYS, MmaTiling
from flash.scores.places import ScorePlaces
from ptxgen import ir
from ptxgen.dsl import Fragment, KernelBuilder, SharedTile, TilePointer, Value
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, QUAD, over_lanes
from ptxgen.dsl.swizzle import SwizzledTile
from ptxgen.types import f32, u32

_LOG_SUMS, _DELTAS = 0, 1  # rows of the tile with the numbers of rows


def gradient_of_keys(config: GradientConfig) -> ir.Module:
    """The module with the kernel of a configuration."""
    k, given = begun(config)
    cta = _Cta(k, config, KeysPart.of(k, config, given))
    part, tile = cta.part, config.tiling.tile
    with k.loop(0, part.given.group) as member:
        of = _Head(cta, part.kv_head * part.given.group + member, given.longest("k"))
        if config.tiling.stages > 1:
            k.barrier()  # the tiles of the head before have been read by all
        of.pairs.begin(part.first_tile, part.end_tile)
        with k.loop(part.first_tile, part.end_tile) as n:
            first_query = n * tile
            last_query = k.min(first_query + tile, part.given.seq_q) - 1
            mask = of.gradients.mask.of_queries(first_query, last_query)
            cut = part.hides(k, mask, first_query, config.tiling.block, tile)
            tame_hidden = functools.partial(of.tame_rows, cut)
            of.pairs.await_next(n, part.end_tile, tame_hidden if mask.hides_keys else nothing)
            with if_seen(k, mask.sees_tile(cta.my_first_key)), if_seen(k, _has_queries(config, part)):
                of.add_tile(first_query, cut)
            of.pairs.advance()
        of.write_terms()
    cta.store_sums()
    return k.build()


def _has_queries(config: GradientConfig, part: KeysPart) -> Value | None:
    """Whether there is a query, as there is where there is a tile of them: a branch on it states it for the
    proof, if a feature has an array with rows of queries. None if there is no such array.
    """
    indexes = any("seq_q" in operand.axes for operand in config.features.operands)
    return part.given.seq_q > 0 if indexes else None


class _Cta:
    """What a CTA keeps while it walks over queries: its rows of K and V in shared memory, its sums of
    dK and dV in registers, and room for tiles of Q and dO. The copies of K and V are on their way.
    """

    def __init__(self, k: KernelBuilder, config: GradientConfig, part: KeysPart) -> None:
        self.k, self.config, self.part = k, config, part
        t, of_head = config.tiling, part.given
        self.me = WarpPlace.of(k)
        k.note("shared memory, and the first tiles on their way there")
        own, walked = tiles_of(k, config, ("K", "V"), ("Q", "dO"))
        self.K_tile, self.V_tile = own
        self.Q_tile, self.dO_tile = walked
        self.of_rows = k.shared("row_numbers", (2 * t.stages, t.tile), f32)
        K, V, self.dK, self.dV = (
            of_head.rows(k, name, part.batch, part.kv_head) for name in ("K", "V", "dK", "dV")
        )
        loaders = [PanelLoader(k, matrix, tile) for matrix, tile in zip((K, V), own, strict=True)]
        for loader in loaders:
            loader.start(part.first_key)  # in the group of the first pair, unless they are awaited here
        self.first_scores = part.scores(k, config, part.kv_head * of_head.group)
        if self.first_scores.mask().hides_keys:
            k.cp_async_commit_group()
            k.cp_async_wait_group(0)
            clear(k, config.dtype.scalar, loaders[1], None)  # NaN in V, whose keys may be hidden

        self.products = products_of(k, t.of_scores, self.me, (self.K_tile, self.Q_tile, self.Q_tile), config)
        of_values = self.V_tile, self.dO_tile, self.dO_tile
        self.of_values = products_of(k, t.of_weights, self.me, of_values, config)
        self.keys, self.queries = fragment_rows(t.of_scores), fragment_columns(t.tile)
        self.S, self.dP = (k.fragment(len(self.keys), t.tile // 4, initial=None) for _ in range(2))
        self.sum_dK = k.fragment(len(self.keys), t.of_scores.output_columns // 4)
        self.sum_dV = k.fragment(len(self.keys), t.of_weights.output_columns // 4)
        self.my_first_key = part.first_key + k.signed(self.me.warp_row(t.of_scores))
        self.columns = [_slice_of(part.slice, tile, t) for tile in walked]

    def store_sums(self) -> None:
        """Write the CTA's rows of dK and dV."""
        k, t = self.k, self.config.tiling
        k.note("dK, dV")
        if not self.first_scores.mask().hides_keys:
            k.cp_async_wait_all()  # of rows that no tile sees
        k.barrier()  # K and V have been read by all
        scores = self.config.features.scores
        weighing = [f.applied(self.first_scores) for f in scores if f.changes_weights]
        factor = weighing[0].output_factor if weighing else None
        scale = self.part.given.scale
        self._store(t.of_scores, self.products, self.K_tile, self.dK, self.sum_dK, scale)
        self._store(t.of_weights, self.of_values, self.V_tile, self.dV, self.sum_dV, factor)

    def _store(
        self,
        of: MmaTiling,
        products: WarpProducts,
        staging: SwizzledTile,
        matrix: Matrix,
        total: Fragment,
        scale: Value | None,
    ) -> None:
        """Write the CTA's slice of dK or dV."""
        k, t, part, me = self.k, self.config.tiling, self.part, self.me
        if part.slice is None:
            store(k, of, me, products, staging, matrix, part.first_key, total, scale)
            return
        width = t.slice_width(matrix.columns)
        for number in range(t.slices):
            left = matrix.columns - number * width
            if left > 0:
                with k.when(part.slice == number, uniform=True):
                    first = matrix.first + number * width * staging.dtype.nbytes
                    own = replace(matrix, first=first, columns=min(left, width))
                    columns = replace(of, head_dim_v=own.columns)
                    store(k, columns, me, products, staging, own, part.first_key, total, scale)


class _Head:
    """What a CTA knows of one of the heads of Q that share its keys: the way of its rows to shared
    memory, its scores, and the sums by keys that are its own. `longest` is the number of keys that
    its terms have room for.
    """

    def __init__(self, cta: _Cta, head: Value, longest: Value) -> None:
        self.cta, self.k = cta, cta.k
        k, part, config = cta.k, cta.part, cta.config
        of_head = part.given
        Q, dO = (of_head.rows(k, name, part.batch, head) for name in ("Q", "dO"))
        numbers_of = RowNumbers.of(k, of_head, part.batch, head)
        scores = part.scores(k, config, head)
        self.gradients = ScoreGradients.of(k, scores, scores.mask())
        self.pairs = TilePairs(
            k,
            (PanelLoader(k, Q, cta.Q_tile), PanelLoader(k, dO, cta.dO_tile)),
            lambda first, stage: _copy_numbers(k, numbers_of, cta.of_rows, first, stage, of_head.seq_q),
            2 * config.tiling.tile * f32.nbytes,
        )
        self._sums = {term.name: [k.var(f32, 0.0) for _ in cta.keys] for term in config.terms}
        self._head, self._longest = head, longest

    def tame_rows(self, cut: Value) -> None:
        """Set what is not finite in this thread's parts of the tiles of Q and dO to 0, and its numbers of
        rows to what `tamed` says, if `cut`.
        """
        k, cta = self.k, self.cta
        with k.when(cut, uniform=True):
            for i, loader in enumerate(self.pairs.loaders):
                clear(k, cta.config.dtype.scalar, loader, self.pairs.stage(i))
            for to in _own_numbers(k, cta.of_rows, self.pairs.stage(2)):
                tame(k, to, to.step(rows=_DELTAS - _LOG_SUMS))

    def add_tile(self, first_query: Value, cut: Value) -> None:
        """Add to dK and dV what the queries of the current tile give, which begins with
        `first_query`. `cut`: whether they may not see, or not be.
        """
        k, cta, part = self.k, self.cta, self.cta.part
        S, dP, me = cta.S, cta.dP, cta.me
        Q_stage, dO_stage, of_numbers = (self.pairs.stage(n) for n in range(3))
        by_query = S.transposed, dP.transposed
        k.note("S^T = K Q^T")
        cta.products.scores(S, Q_stage)
        slopes, places = self.gradients.score(
            by_query[0],
            lambda: ScorePlaces(
                k,
                first_query + k.signed(me.in_quad * 2),
                cta.my_first_key,
                me.lane // 4,
                cta.queries,
                cta.keys,
            ),
            cut,
            part.given.seq_q,
        )
        k.note("dP^T = V dO^T; dS = P (dP - D)")
        cta.of_values.scores(dP, dO_stage)
        numbers = _numbers(k, cta.of_rows, of_numbers, me)
        self.gradients.differentiate(*by_query, numbers, places)
        for totals in self._sums.values():
            for total, row in zip(totals, dP, strict=True):
                for gradient in row:
                    k.add(total, gradient, into=total)
        self.gradients.bend(by_query[1], slopes)
        k.note("dV += P^T dO; dK += dS^T Q")
        cta.of_values.outputs(cta.sum_dV, cta.of_values.weights(S), _moved(dO_stage, cta.columns[1]))
        cta.products.outputs(cta.sum_dK, cta.products.weights(dP), _moved(Q_stage, cta.columns[0]))

    def write_terms(self) -> None:
        """Write what each key adds to gradients of arrays of scores."""
        k, cta, part = self.k, self.cta, self.cta.part
        terms = Terms.of(k, part.given, part.batch, self._head, self._longest)
        for name, totals in self._sums.items():
            for down, total in zip(cta.keys, totals, strict=True):
                whole = over_lanes(k, total, QUAD, operator.add)
                key = cta.my_first_key + k.signed(cta.me.lane // 4) + down
                with k.when((key < part.given.seq_k) & (cta.me.in_quad == 0)):
                    terms.write(k, name, key, whole)


def _own_numbers(k: KernelBuilder, kept: SharedTile, stage: Value | None) -> Iterator[TilePointer]:
    """The place of LSE of each row whose numbers this thread copies, in the stage at byte `stage`. Code
    emitted between one place and the next is only run by the threads that have that row.
    """
    thread = k.thread_id()
    for first in range(0, kept.columns, k.threads):
        with k.when(thread < kept.columns - first):
            to = kept.pointer(_LOG_SUMS, thread).step(columns=first)
            yield to if stage is None else to.moved(to.value + stage)


def _copy_numbers(
    k: KernelBuilder,
    of_rows: dict[str, RowNumbers],
    kept: SharedTile,
    first_row: Value,
    stage: Value | None,
    rows: Value,
) -> None:
    """Start copying LSE and D of the rows from `first_row` on. Those of rows that do not exist become
    0; their Q and dO are 0.
    """
    thread = k.thread_id()
    for n, name in ((_LOG_SUMS, "LSE"), (_DELTAS, "D")):
        for first in range(0, kept.columns, k.threads):
            with k.when(thread < kept.columns - first):
                row = first_row + k.signed(thread) + first
                to = kept.pointer(n, thread).step(columns=first)
                to = to if stage is None else to.moved(to.value + stage)
                k.copy_async(
                    to, of_rows[name].at(k, row), f32.nbytes, k.selp(f32.nbytes, 0, row < rows, type=u32)
                )


def _numbers(
    k: KernelBuilder, kept: SharedTile, stage: Value | None, me: WarpPlace
) -> Callable[[int], tuple[Value, Value]]:
    """A function that gives the shift and D of each of a lane's queries; it loads those of two
    neighbours at once.
    """
    at = kept.pointer(0, me.in_quad * 2)
    at = at if stage is None else at.moved(at.value + stage)
    loaded: dict[int, tuple[tuple[Value, ...], ...]] = {}

    def numbers(i: int) -> tuple[Value, Value]:
        tile, column = divmod(i, LANE_COLUMNS)
        if tile not in loaded:
            pairs = (k.load(at.step(rows=n, columns=MMA_KEYS * tile), 2) for n in (_LOG_SUMS, _DELTAS))
            loaded[tile] = tuple(tuple(pair) for pair in pairs)
        log_sums, deltas = loaded[tile]
        return shift_of(k, log_sums[column]), deltas[column]

    return numbers


def _slice_of(number: Value | None, tile: SwizzledTile, t: GradientTiling) -> Value | None:
    """The byte of a tile at which the columns of a slice begin; None: 0."""
    if number is None:
        return None
    panels = len(tile.panels) // t.slices
    return number * tile.panels[panels].offset


def _moved(stage: Value | None, columns: Value | None) -> Value | None:
    if stage is None or columns is None:
        return columns if stage is None else stage
    return stage + columns
