"""The kernel that writes dQ, and D for the kernel by keys (FlashAttention-2, algorithm 2, its sweep over
keys): a CTA owns rows of Q. `flash/device/gradient_tiles.py` has the formulas.
"""

from __future__ import annotations

import operator

from flash.device.gradient_parts import QueriesPart, RowNumbers, Terms
from flash.device.gradient_scores import ScoreGradients
from flash.device.gradient_tiles import begun, if_seen, nothing, products_of, shift_of, store, tiles_of
from flash.device.mma_products import WarpPlace, fragment_columns, fragment_rows
from flash.device.nonfinite import clear
from flash.device.panel_loader import PanelLoader
from flash.device.row_sums import sum_rows
from flash.device.tile_pairs import TilePairs
from flash.problem.gradients import GradientConfig
from flash.scores.places import ScorePlaces
from ptxgen import ir
from ptxgen.dsl import Value, marked
from ptxgen.dsl.matrices.lanes import QUAD, over_lanes
from ptxgen.types import f32


@marked("gradient of queries")
def gradient_of_queries(config: GradientConfig) -> ir.Module:
    """The module with the kernel of a configuration."""
    k, given = begun(config)
    t, dtype = config.tiling, config.dtype.scalar
    part = QueriesPart.of(k, config, given)
    of_head = part.given
    me = WarpPlace.of(k)

    k.note("shared memory, and the first tiles on their way there")
    (Q_tile, dO_tile), (K_tile, V_tile) = tiles_of(k, config, ("Q", "dO"), ("K", "V"))
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

    products = products_of(k, t.of_scores, me, (Q_tile, K_tile, K_tile), config)
    of_values = products_of(k, t.of_weights, me, (dO_tile, V_tile, V_tile), config)
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
        numbers.append((shift_of(k, log_sum), k.load(row_deltas.pointer(0, my_row).step(columns=down))))

    with k.loop(part.first_tile, part.end_tile) as n:
        first_key = n * t.tile
        cut = part.hides_keys(k, first_key, t.tile)

        def clear_hidden() -> None:
            with k.when(cut, uniform=True):
                for i, loader in enumerate(pairs.loaders):
                    clear(k, dtype, loader, pairs.stage(i))

        pairs.await_next(n, part.end_tile, clear_hidden if part.mask.hides_keys else nothing)
        with if_seen(k, part.mask.sees_tile(first_key)):
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
    store(k, t.of_scores, me, products, Q_tile, dQ, part.first_row, sum_dQ, of_head.scale)
    return k.build()
