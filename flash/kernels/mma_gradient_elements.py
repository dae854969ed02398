"""The kernel that sums gradients of the arrays of `aux` that a `score_mod` reads. A CTA owns rows of Q, and
walks over the keys that they see; each score's gradient, times the derivative of its function by an element,
is added to the exact sum of the element (`flash/device/exact_sums.py`). `flash/device/gradient_tiles.py` has
the formulas.
"""

from __future__ import annotations

from flash.device.element_terms import ElementTerms
from flash.device.gradient_parts import QueriesPart, RowNumbers
from flash.device.gradient_scores import ScoreGradients
from flash.device.gradient_tiles import begun, products_of, shift_of, tamed, tiles_of
from flash.device.mask import if_seen
from flash.device.mma_products import WarpCoordinates, fragment_columns, fragment_rows
from flash.device.nonfinite import clear
from flash.device.panel_loader import PanelLoader
from flash.device.tiles import await_copies, commit_copies
from flash.problem.gradients import GradientConfig
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen import ir
from ptxgen.dsl.source_regions import marked


@marked("gradient of elements: loop")
def gradient_of_elements(config: GradientConfig) -> ir.Module:
    """Generate the kernel of a configuration: its PTX module."""
    k, parameters = begun(config)
    part, t, dtype = QueriesPart.of(k, config, parameters), config.mma, config.dtype.scalar
    of_head, me = part.parameters, WarpCoordinates.of(k)
    owned, walked = tiles_of(k, config, ("Q", "dO"), ("K", "V"))
    heads = {"Q": part.head, "dO": part.head, "K": part.kv_head, "V": part.kv_head}
    Q, dO, K, V = (
        PanelLoader(k, of_head.rows(k, name, part.batch, head), tile)
        for (name, head), tile in zip(heads.items(), (*owned, *walked), strict=True)
    )
    (products,) = products_of(k, t.of_scores, me, (owned[0], walked[0], walked[0]), config)
    (of_values,) = products_of(k, t.of_weights, me, (owned[1], walked[1], walked[1]), config)
    rows, keys = fragment_rows(t.of_scores), fragment_columns(t.tile)
    S, dP = (k.fragment(len(rows), t.tile // 4, initial=None) for _ in range(2))
    for loader in (Q, dO):
        loader.fill(part.first_row)
    commit_copies(k)
    await_copies(k)
    clear(k, dtype, dO, None)  # NaN, of rows that see few keys
    terms = ElementTerms(k, config, of_head, part.scores, (len(rows), t.tile // 4))
    gradients = terms.followed(ScoreGradients.of(k, part.scores, part.mask))
    my_query = part.first_row + k.signed(me.first_row(t.of_scores))
    of_rows = RowNumbers.of(k, of_head, part.batch, part.head)
    numbers = []  # the shift and D of each of a lane's rows
    for down in rows:
        row = k.min(my_query + down, of_head.seq_q - 1)
        lse, delta = tamed(k, *(k.load(of_rows[name].at(k, row)) for name in ("LSE", "D")))
        numbers.append((shift_of(k, lse), delta))
    with k.loop(part.first_tile, part.end_tile) as n:
        first_key = n * t.tile
        k.barrier()  # the tiles before have been read by all
        for loader in (K, V):
            loader.fill(first_key)
        commit_copies(k)
        await_copies(k)
        clear(k, dtype, V, None)
        k.barrier()
        with if_seen(k, part.mask.sees_tile(first_key)):
            where = ScoreCoordinates(k, my_query, first_key, me.in_quad * 2, rows, keys)
            products.scores(S, None)
            gradients.score(S, lambda: where, True, of_head.seq_q)
            of_values.scores(dP, None)
            gradients.differentiate(S, dP, numbers.__getitem__, where)
            terms.add(me, dP, where)
    return k.finish()
