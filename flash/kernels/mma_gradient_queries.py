"""The kernel that writes dQ, and D for the kernel by keys (FlashAttention-2, algorithm 2, its sweep over
keys): a CTA owns rows of Q. `flash/device/gradient_tiles.py` has the formulas.
"""

from __future__ import annotations

import functools

from flash.device.column_warps import ColumnWarps
from flash.device.gradient_parts import GradientParameters, QueriesPart, RowNumbers, Terms
from flash.device.gradient_scores import ScoreGradients
from flash.device.gradient_terms import RowTerms
from flash.device.gradient_tiles import begun, nothing, products_of, shift_of, store_part, tamed, tiles_of
from flash.device.mask import if_seen
from flash.device.mma_products import WarpCoordinates, fragment_columns, fragment_rows
from flash.device.nonfinite import clear
from flash.device.panel_loader import PanelLoader
from flash.device.row_sums import sum_rows
from flash.device.tile_pairs import TilePairs
from flash.device.tiles import await_copies, await_every_copy, commit_copies
from flash.problem.gradients import GradientConfig
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Value
from ptxgen.dsl.source_regions import marked
from ptxgen.types import f32


@marked("gradient of queries: loop")
def gradient_of_queries(config: GradientConfig) -> ir.Module:
    """Generate the kernel of a configuration: its PTX module."""
    k, parameters = begun(config)
    cta = _Cta(k, config, QueriesPart.of(k, config, parameters), parameters.longest("q"))
    part, tile = cta.part, config.mma.tile
    with k.loop(part.first_tile, part.end_tile) as n:
        first_key = n * tile
        cut = part.hides_keys(first_key, tile)
        clear_hidden = functools.partial(cta.clear_keys, cut)
        cta.pairs.await_next(n, part.end_tile, clear_hidden if part.mask.hides_keys else nothing)
        with if_seen(k, part.mask.sees_tile(first_key)):
            for nth, first in enumerate(config.mma.parts):
                cta.add_keys(nth, first_key + first if first else first_key, cut)
        cta.pairs.advance()
    cta.write_terms()
    cta.store_sum(parameters)
    return k.finish()


class _Cta:
    """The state of a CTA that walks over keys: its rows of Q and dO in shared memory, LSE and D of its rows
    and its sum of dQ in registers, and room for tiles of K and V. D is written, and the copies of the first
    tiles are on their way. `longest` is the number of queries that terms have room for.
    """

    @marked("gradient of queries: rows of a CTA")
    def __init__(self, k: KernelBuilder, config: GradientConfig, part: QueriesPart, longest: Value) -> None:
        self.k, self.config, self.part = k, config, part
        t, of_head = config.mma, part.parameters
        self.columns = ColumnWarps.of(k, config)
        self.me = WarpCoordinates.of(k) if self.columns is None else self.columns.rows
        k.note("shared memory, and the first tiles on their way there")
        owned, walked = tiles_of(k, config, ("Q", "dO"), ("K", "V"))
        (self.Q_tile, dO_tile), (K_tile, V_tile) = owned, walked
        row_deltas = k.shared("row_deltas", (1, t.block), f32)
        Q, dO, O = (of_head.rows(k, name, part.batch, part.head) for name in ("Q", "dO", "O"))
        K, V = (of_head.rows(k, name, part.batch, part.kv_head) for name in "KV")
        of_dO = PanelLoader(k, dO, dO_tile)
        for loader in (PanelLoader(k, Q, self.Q_tile), of_dO):
            loader.fill(part.first_row)  # in the group of the first pair, unless they are awaited here
        loaders = PanelLoader(k, K, K_tile), PanelLoader(k, V, V_tile)
        self.pairs = TilePairs(k, loaders, prefetches=t.prefetches)
        if part.mask.hides_keys or t.resident:
            commit_copies(k)
        if not t.resident:
            self.pairs.begin(part.first_tile, part.end_tile)
        of_rows = RowNumbers.of(k, of_head, part.batch, part.head)
        self.terms = Terms.of(k, of_head, part.batch, part.head, longest)
        where = part.first_row, t.block, of_rows, row_deltas
        sum_rows(k, O, dO, config.dtype.scalar, *where, self._write_first)
        if part.mask.hides_keys or t.resident:
            await_copies(k, 0 if t.resident else t.stages - 1)
        if part.mask.hides_keys:
            clear(k, config.dtype.scalar, of_dO, None)
        k.barrier()  # D has been written by all

        of_scores, of_values = (self.Q_tile, K_tile, K_tile), (dO_tile, V_tile, V_tile)
        products = functools.partial(products_of, k, me=self.me, config=config, column_warps=self.columns)
        self.products = products(t.of_scores, tiles=of_scores, resident=t.resident > 0)
        self.of_values = products(t.of_weights, tiles=of_values, resident=t.resident > 1, are_second=True)
        if t.resident:
            self.pairs.begin(part.first_tile, part.end_tile)
        self.rows, self.keys = fragment_rows(t.of_scores), fragment_columns(t.rows_at_once)
        self.S, self.dP = (k.fragment(len(self.rows), t.rows_at_once // 4, initial=None) for _ in range(2))
        self.sum_dQ = k.fragment(len(self.rows), t.of_scores.output_columns // 4)
        self.gradients = ScoreGradients.of(k, part.scores, part.mask, config.wanted)
        self._row_terms = RowTerms(k, self.gradients, self.rows)
        my_row = self.me.first_row(t.of_scores)
        self.my_query = part.first_row + k.signed(my_row)
        self._numbers = []  # the shift and D of each of a lane's rows
        for down in self.rows:
            row = k.min(self.my_query + down, of_head.seq_q - 1)
            lse = k.load(of_rows["LSE"].at(k, row))
            delta = k.load(row_deltas.pointer(0, my_row).step(columns=down))
            if part.mask.hides_keys:
                lse, delta = tamed(k, lse, delta)
            self._numbers.append((shift_of(k, lse), delta))

    def _write_first(self, row: Value, lse: Value, delta: Value) -> None:
        """Write a row's term in the gradients of arrays, such as sinks, that give each row a first score."""
        for feature in self.config.summed("first"):
            result = feature.applied(self.part.scores).first_gradient(lse, delta)
            self.terms.write(self.k, f"row_{feature.argument}", row, result)

    @marked("gradient of queries: hidden keys")
    def clear_keys(self, cut: Value) -> None:
        """Set NaN and infinity in this thread's parts of the tiles of K and V to 0, if `cut`."""
        with self.k.when(cut, uniform=True):
            for i, loader in enumerate(self.pairs.loaders):
                clear(self.k, self.config.dtype.scalar, loader, self.pairs.stage(i))

    def add_keys(self, part: int, first_key: Value, cut: Value) -> None:
        """Add to dQ the terms of the keys of a part of the current tile, which begins with `first_key`.
        `cut`: whether some keys of the tile may be hidden.
        """
        k, S, dP, products = self.k, self.S, self.dP, self.products[part]
        K_stage, V_stage = (self.pairs.stage(n) for n in range(2))
        k.note("S = Q K^T")
        products.scores(S, K_stage)
        slopes, coordinates = self.gradients.score(
            S,
            lambda: ScoreCoordinates(k, self.my_query, first_key, self.me.in_quad * 2, self.rows, self.keys),
            cut,
        )
        k.note("dP = dO V^T; dS = P (dP - D)")
        self.of_values[part].scores(dP, V_stage)
        self.gradients.differentiate(S, dP, self._numbers.__getitem__, coordinates)
        self._row_terms.add(dP, coordinates)
        self.gradients.bend(dP, slopes)
        k.note("dQ += dS K")
        products.outputs(self.sum_dQ, products.weights(dP), K_stage)

    def write_terms(self) -> None:
        """Write each row's sum for the gradients of arrays of scores."""

        def number() -> Value:
            in_quad = self.me.in_quad
            return in_quad if self.columns is None else in_quad + self.columns.number

        self._row_terms.write(self.terms, self.my_query, number, self.part.parameters.seq_q)

    @marked("gradient of queries: results")
    def store_sum(self, parameters: GradientParameters) -> None:
        """Write the CTA's rows of dQ."""
        k, t = self.k, self.config.mma
        # Computed again: kept in registers through the loop, these values would be spilled.
        part = QueriesPart.of(k, self.config, parameters, again=True)
        k.note("dQ")
        if not (part.mask.hides_keys or t.resident):
            await_every_copy(k)  # of rows that see no tile
        if self.columns is None or not part.mask.hides_keys:  # else Q was read, or awaited, before a barrier
            k.barrier()  # Q has been read by all
        where = part.parameters.rows(k, "dQ", part.batch, part.head), part.first_row
        mine = None if self.columns is None else self.columns.number
        through, scale = (self.products[0], self.Q_tile), part.parameters.scale
        store_part(k, t, mine, t.of_scores, self.me, *through, *where, self.sum_dQ, scale)
