"""The kernel that writes dK and dV (FlashAttention-2, algorithm 2): a CTA owns rows of K and V, and
walks over the queries that see them, of one head after another that share these rows.
`flash/device/gradient_tiles.py` has the formulas.

The scores are computed transposed, keys by queries, so that Pᵀ and dSᵀ are in the registers of the
lanes that need them as operand A of the next products.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

from flash.device.gradient_parts import KeysPart, RowNumbers, Terms
from flash.device.gradient_scores import ScoreGradients
from flash.device.gradient_tiles import begun, if_seen, nothing, products_of, shift_of, store, tiles_of
from flash.device.mma_products import WarpPlace, WarpProducts, fragment_columns, fragment_rows
from flash.device.nonfinite import clear
from flash.device.panel_loader import PanelLoader
from flash.device.tile_pairs import TilePairs
from flash.device.tiles import Matrix
from flash.problem.gradients import GradientConfig, GradientTiling
from flash.problem.mma_tiling import MMA_KEYS, MmaTiling
from flash.scores.places import ScorePlaces
from ptxgen import ir
from ptxgen.dsl import Fragment, KernelBuilder, SharedTile, Value, marked
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, QUAD, over_lanes
from ptxgen.dsl.swizzle import SwizzledTile
from ptxgen.types import f32, u32

_LOG_SUMS, _DELTAS = 0, 1  # rows of the tile with the numbers of rows


@marked("gradient of keys")
def gradient_of_keys(config: GradientConfig) -> ir.Module:
    """The module with the kernel of a configuration."""
    k, given = begun(config)
    t, dtype = config.tiling, config.dtype.scalar
    part = KeysPart.of(k, config, given)
    of_head = part.given
    me = WarpPlace.of(k)

    k.note("shared memory, and the first tiles on their way there")
    (K_tile, V_tile), (Q_tile, dO_tile) = tiles_of(k, config, ("K", "V"), ("Q", "dO"))
    of_rows = k.shared("row_numbers", (2 * t.stages, t.tile), f32)
    K, V, dK, dV = (of_head.rows(k, name, part.batch, part.kv_head) for name in ("K", "V", "dK", "dV"))
    own = [PanelLoader(k, matrix, tile) for matrix, tile in ((K, K_tile), (V, V_tile))]
    for loader in own:
        loader.start(part.first_key)
    k.cp_async_commit_group()
    first_scores = part.scores(k, config, part.kv_head * of_head.group)
    if first_scores.mask().hides_keys:
        k.cp_async_wait_group(0)
        for loader in own:
            clear(k, dtype, loader, None)

    products = products_of(k, t.of_scores, me, (K_tile, Q_tile, Q_tile), config)
    of_values = products_of(k, t.of_weights, me, (V_tile, dO_tile, dO_tile), config)
    mine, queries = fragment_rows(t.of_scores), fragment_columns(t.tile)
    S, dP = (k.fragment(len(mine), t.tile // 4, initial=None) for _ in range(2))
    sum_dK = k.fragment(len(mine), t.of_scores.output_columns // 4)
    sum_dV = k.fragment(len(mine), t.of_weights.output_columns // 4)
    my_first_key = part.first_key + k.signed(me.warp_row(t.of_scores))
    columns = [_slice_of(k, part.slice, tile, t) for tile in (Q_tile, dO_tile)]

    with k.loop(0, of_head.group) as member:
        head = part.kv_head * of_head.group + member
        Q, dO = (of_head.rows(k, name, part.batch, head) for name in ("Q", "dO"))
        numbers_of = RowNumbers.of(k, of_head, part.batch, head)
        scores = part.scores(k, config, head)
        gradients = ScoreGradients.of(k, scores, scores.mask())
        pairs = TilePairs(
            k,
            (PanelLoader(k, Q, Q_tile), PanelLoader(k, dO, dO_tile)),
            lambda first, stage: _copy_numbers(k, numbers_of, of_rows, first, stage, of_head.seq_q),
            2 * t.tile * f32.nbytes,
        )
        by_keys = {term.name: [k.var(f32, 0.0) for _ in mine] for term in config.terms}
        k.barrier()  # the tiles of the head before have been read by all
        pairs.begin(part.first_tile, part.end_tile)
        with k.loop(part.first_tile, part.end_tile) as n:
            first_query = n * t.tile
            mask = gradients.mask.of_queries(first_query, k.min(first_query + t.tile, of_head.seq_q) - 1)
            pairs.await_next(n, part.end_tile, nothing)
            with if_seen(k, mask.sees_tile(my_first_key)):
                k.note("S^T = K Q^T")
                products.scores(S, pairs.stage(0))
                by_query = S.transposed, dP.transposed
                slopes, places = gradients.score(
                    by_query[0],
                    lambda: ScorePlaces(
                        k, first_query + k.signed(me.in_quad * 2), my_first_key, me.lane // 4, queries, mine
                    ),
                    part.hides(k, mask, first_query, t.block, t.tile),
                    of_head.seq_q,
                )
                k.note("dP^T = V dO^T; dS = P (dP - D)")
                of_values.scores(dP, pairs.stage(1))
                numbers = _numbers(k, of_rows, pairs.stage(2), me)
                gradients.differentiate(*by_query, numbers, places)
                for totals in by_keys.values():
                    for total, row in zip(totals, dP, strict=True):
                        for gradient in row:
                            k.add(total, gradient, into=total)
                gradients.bend(by_query[1], slopes)
                k.note("dV += P^T dO; dK += dS^T Q")
                of_values.outputs(sum_dV, of_values.weights(S), _moved(pairs.stage(1), columns[1]))
                products.outputs(sum_dK, products.weights(dP), _moved(pairs.stage(0), columns[0]))
            pairs.advance()
        terms = Terms.of(k, of_head, part.batch, head, given.longest("k"))
        for name, totals in by_keys.items():
            for down, total in zip(mine, totals, strict=True):
                whole, key = (
                    over_lanes(k, total, QUAD, operator.add),
                    my_first_key + k.signed(me.lane // 4) + down,
                )
                with k.when((key < of_head.seq_k) & (me.in_quad == 0)):
                    terms.write(k, name, key, whole)

    k.note("dK, dV")
    k.cp_async_wait_group(0)
    k.barrier()  # K and V have been read by all
    weighing = [f.applied(first_scores) for f in config.features.scores if f.changes_weights]
    factor = weighing[0].output_factor if weighing else None
    ends = (
        (t.of_scores, products, K_tile, dK, sum_dK, of_head.scale),
        (t.of_weights, of_values, V_tile, dV, sum_dV, factor),
    )
    for of, by, staging, matrix, total, scale in ends:
        _store_slices(k, t, part, me, of, by, staging, matrix, total, scale)
    return k.build()


@marked("gradient of keys: numbers of rows")
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
            loaded[tile] = tuple(pair if isinstance(pair, tuple) else (pair,) for pair in pairs)
        log_sums, deltas = loaded[tile]
        return shift_of(k, log_sums[column]), deltas[column]

    return numbers


def _slice_of(k: KernelBuilder, number: Value | None, tile: SwizzledTile, t: GradientTiling) -> Value | None:
    """The byte of a tile at which the columns of a slice begin; None: 0."""
    if number is None:
        return None
    panels = len(tile.panels) // t.slices
    return number * tile.panels[panels].offset


def _moved(stage: Value | None, columns: Value | None) -> Value | None:
    if stage is None or columns is None:
        return columns if stage is None else stage
    return stage + columns


def _store_slices(
    k: KernelBuilder,
    t: GradientTiling,
    part: KeysPart,
    me: WarpPlace,
    of: MmaTiling,
    products: WarpProducts,
    staging: SwizzledTile,
    matrix: Matrix,
    total: Fragment,
    scale: Value | None,
) -> None:
    """Write the CTA's slice of dK or dV."""
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
