"""The kernels of gradients on tensor cores (FlashAttention-2, algorithm 2, in two sweeps): dQ by
queries, dK and dV by keys (`flash/problem/gradients.py`).

With S the scores and LSE their log-sum-exp by rows, P = exp(S - LSE); dP = dO Vᵀ; dS = P ∘ (dP - D),
where D is the sum of O ∘ dO over a row. Then dQ = scale dS K, dK = scale dSᵀ Q and dV = Pᵀ dO, where
scores are products times a scale; what else is done to scores multiplies dS by its derivative, and
dropout takes weights out of dV and dP. Products of 16-bit elements are exact and summed in f32; P
and dS are rounded to the 16-bit type, gradients once at the end. For f32, see
`flash/device/tf32_products.py`.

By keys the scores are computed transposed, keys by queries, so that Pᵀ and dSᵀ are in the registers
of the lanes that need them as operand A of the next products.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

from flash.device.epilogue import store_outputs
from flash.device.gradient_parts import GradientParameters, KeysPart, QueriesPart, RowNumbers, Terms
from flash.device.gradient_scores import ScoreGradients
from flash.device.mma_products import (
    MmaProducts,
    Tiles,
    WarpPlace,
    WarpProducts,
    fragment_columns,
    fragment_rows,
)
from flash.device.nonfinite import clear
from flash.device.panel_loader import PanelLoader
from flash.device.row_sums import sum_rows
from flash.device.tf32_products import Tf32Products
from flash.device.tile_pairs import TilePairs
from flash.device.tiles import Matrix
from flash.problem.gradients import QUERIES, GradientConfig, GradientTiling
from flash.problem.mma_tiling import HALF, MMA_KEYS, MmaTiling
from flash.scores.feature import LOG2E, NEG_INF
from flash.scores.places import ScorePlaces
from ptxgen import ir
from ptxgen.dsl import Fragment, KernelBuilder, SharedTile, Value, marked
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, QUAD, over_lanes
from ptxgen.dsl.swizzle import SwizzledTile
from ptxgen.types import f32, u32

_INFINITY: Final = float("inf")
_LOG_SUMS, _DELTAS = 0, 1  # rows of the tile with the numbers of rows


def mma_attention_gradient(config: GradientConfig) -> ir.Module:
    """The module with the kernel of a configuration."""
    return _of_queries(config) if config.owner == QUERIES else _of_keys(config)


def _begun(config: GradientConfig) -> tuple[KernelBuilder, GradientParameters]:
    t = config.tiling
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=False)
    return k, GradientParameters.declare(k, config)


@marked("gradient of queries")
def _of_queries(config: GradientConfig) -> ir.Module:
    """The kernel that writes dQ and D."""
    k, given = _begun(config)
    t, dtype = config.tiling, config.dtype.scalar
    part = QueriesPart.of(k, config, given)
    of_head = part.given
    me = WarpPlace.of(k)

    k.note("shared memory, and the first tiles on their way there")
    (Q_tile, dO_tile), (K_tile, V_tile) = _tiles(k, config, ("Q", "dO"), ("K", "V"))
    row_deltas = k.shared("row_deltas", (1, t.block), f32)
    Q, dO, O, dQ = (of_head.rows(k, name, part.batch, part.head) for name in ("Q", "dO", "O", "dQ"))
    K, V = (of_head.rows(k, name, part.batch, part.kv_head) for name in "KV")
    for matrix, tile in ((Q, Q_tile), (dO, dO_tile)):
        PanelLoader(k, matrix, tile).start(part.first_row)
    k.cp_async_commit_group()
    pairs = TilePairs(k, (PanelLoader(k, K, K_tile), PanelLoader(k, V, V_tile)))
    pairs.begin(part.first_tile, part.end_tile)
    of_rows = RowNumbers.of(k, of_head, part.batch, part.head)
    terms = Terms.of(k, of_head, part.batch, part.head, given.longest("q"))

    def begin_terms(row: Value, lse: Value, delta: Value) -> None:
        for feature in config.summed("first"):
            found = feature.applied(part.scores).first_gradient(lse, delta)
            terms.write(k, f"row_{feature.argument}", row, found)

    sum_rows(k, O, dO, dtype, part.first_row, of_rows, row_deltas, begin_terms)
    k.barrier()  # D has been written by all

    products = _products(k, t.of_scores, me, (Q_tile, K_tile, K_tile), config)
    of_values = _products(k, t.of_weights, me, (dO_tile, V_tile, V_tile), config)
    rows, keys = fragment_rows(t.of_scores), fragment_columns(t.tile)
    S, dP = (k.fragment(len(rows), t.tile // 4, initial=None) for _ in range(2))
    sum_dQ = k.fragment(len(rows), t.of_scores.output_columns // 4)
    gradients = ScoreGradients.of(k, part.scores, part.mask, config.wanted)
    by_rows = {name: [k.var(f32, 0.0) for _ in rows] for name, _ in gradients.by_rows}
    my_row = me.first_row(t.of_scores)
    my_query = part.first_row + k.signed(my_row)
    numbers = []
    for down in rows:
        row = k.min(my_query + down, of_head.seq_q - 1)
        log_sum = k.load(of_rows["LSE"].at(k, row))
        numbers.append((_shift(k, log_sum), k.load(row_deltas.pointer(0, my_row).step(columns=down))))

    with k.loop(part.first_tile, part.end_tile) as n:
        first_key = n * t.tile
        cut = part.hides_keys(k, first_key, t.tile)

        def clear_hidden() -> None:
            with k.when(cut, uniform=True):
                for i, loader in enumerate(pairs.loaders):
                    clear(k, dtype, loader, pairs.stage(i))

        pairs.await_next(n, part.end_tile, clear_hidden if part.mask.hides_keys else _nothing)
        with _if_seen(k, part.mask.sees_tile(first_key)):
            k.note("S = Q K^T")
            products.scores(S, pairs.stage(0))
            slopes, places = gradients.score(
                S, lambda: ScorePlaces(k, my_query, first_key, me.in_quad * 2, rows, keys), cut
            )
            k.note("dP = dO V^T; dS = P (dP - D)")
            of_values.scores(dP, pairs.stage(1))
            gradients.differentiate(S, dP, lambda i: numbers[i], places)
            for name, feature in gradients.by_rows:
                assert places is not None
                for total, more in zip(by_rows[name], feature.row_gradients(dP, places), strict=True):
                    k.add(total, more, into=total)
            gradients.bend(dP, slopes)
            k.note("dQ += dS K")
            products.outputs(sum_dQ, products.weights(dP), pairs.stage(0))
        pairs.advance()

    for name, totals in by_rows.items():
        for down, total in zip(rows, totals, strict=True):
            whole = over_lanes(k, total, QUAD, operator.add)
            with k.when((my_query + down < of_head.seq_q) & (me.in_quad == 0)):
                terms.write(k, name, my_query + down, whole)
    k.note("dQ")
    k.barrier()  # Q has been read by all
    _store(k, t.of_scores, me, products, Q_tile, dQ, part.first_row, sum_dQ, of_head.scale)
    return k.build()


@marked("gradient of keys")
def _of_keys(config: GradientConfig) -> ir.Module:
    """The kernel that writes dK and dV."""
    k, given = _begun(config)
    t, dtype = config.tiling, config.dtype.scalar
    part = KeysPart.of(k, config, given)
    of_head = part.given
    me = WarpPlace.of(k)

    k.note("shared memory, and the first tiles on their way there")
    (K_tile, V_tile), (Q_tile, dO_tile) = _tiles(k, config, ("K", "V"), ("Q", "dO"))
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

    products = _products(k, t.of_scores, me, (K_tile, Q_tile, Q_tile), config)
    of_values = _products(k, t.of_weights, me, (V_tile, dO_tile, dO_tile), config)
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
            pairs.await_next(n, part.end_tile, _nothing)
            with _if_seen(k, mask.sees_tile(my_first_key)):
                k.note("S^T = K Q^T")
                products.scores(S, pairs.stage(0))
                by_query = S.transposed, dP.transposed
                slopes, places = gradients.score(
                    by_query[0],
                    lambda: ScorePlaces(
                        k, first_query + k.signed(me.in_quad * 2), my_first_key, me.lane // 4, queries, mine
                    ),
                    part.hides_keys(k, mask, first_query, t.block, t.tile),
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


def _nothing() -> None:
    """Emit nothing."""


def _if_seen(k: KernelBuilder, seen: Value | None) -> AbstractContextManager[object]:
    """A block that runs if a tile is seen; None: it is."""
    return nullcontext() if seen is None else k.when(seen, uniform=True)


def _tiles(
    k: KernelBuilder, config: GradientConfig, own: tuple[str, str], walked: tuple[str, str]
) -> tuple[tuple[SwizzledTile, SwizzledTile], tuple[SwizzledTile, SwizzledTile]]:
    """The tiles of the matrices whose rows the CTA owns, and of those over which it walks."""
    t, dtype = config.tiling, config.dtype.scalar
    widths = t.width(t.of_scores), t.width(t.of_weights)
    a, b = (k.swizzled(f"{n}_tile", (t.block, w), dtype) for n, w in zip(own, widths, strict=True))
    c, d = (
        k.swizzled(f"{n}_tile", (t.tile, w), dtype, stages=t.stages)
        for n, w in zip(walked, widths, strict=True)
    )
    return (a, b), (c, d)


def _products(
    k: KernelBuilder, t: MmaTiling, me: WarpPlace, tiles: Tiles, config: GradientConfig
) -> WarpProducts:
    if t.operands is HALF:
        return MmaProducts(k, t, me, tiles, config.dtype.scalar)
    return Tf32Products(k, t, me, tiles)


def _shift(k: KernelBuilder, lse: Value) -> Value:
    """What is subtracted from the scores of a row, in units of log2: LSE, or of a row that sees no
    key infinity, so that its weights are 0.
    """
    return k.selp(_INFINITY, lse * LOG2E, lse == NEG_INF)


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
        return _shift(k, log_sums[column]), deltas[column]

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
        _store(k, of, me, products, staging, matrix, part.first_key, total, scale)
        return
    width = t.slice_width(matrix.columns)
    for number in range(t.slices):
        left = matrix.columns - number * width
        if left > 0:
            with k.when(part.slice == number, uniform=True):
                first = matrix.first + number * width * staging.dtype.nbytes
                own = replace(matrix, first=first, columns=min(left, width))
                columns = replace(of, head_dim_v=own.columns)
                _store(k, columns, me, products, staging, own, part.first_key, total, scale)


def _store(
    k: KernelBuilder,
    t: MmaTiling,
    me: WarpPlace,
    products: WarpProducts,
    staging: SwizzledTile,
    matrix: Matrix,
    first_row: Value,
    total: Fragment,
    scale: Value | None,
) -> None:
    """Write a gradient, times `scale`, through the rows of `staging` that are the warp's own."""
    if scale is not None:
        for value in total.all():
            k.mul(value, scale, into=value)
    store_outputs(k, t, me, products, staging, (matrix, first_row), total)
