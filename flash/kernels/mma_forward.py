"""The tensor-core forward kernel: O = softmax(scale Q Kᵀ + mask) V in one pass over K and V
(FlashAttention-2, algorithm 1), for f16 and bf16, and for f32 by products of f16 or of tf32. K and V of
one byte are widened to f16, and Q of bf16 is converted to it (`flash/device/half_queries.py`).

One CTA computes `block_q` rows of one head, or packed rows of several
(`flash/device/grouped_heads.py`); if values are wider than a CTA can hold, a slice of their
columns. Products of 16-bit elements are exact and summed in f32; P is rounded to the 16-bit type, O
once at the end. For f32, see `flash/device/split_products.py` and `tf32_products.py`. K and V are
walked from the last tile, so that the tiles which a mask or the end of the keys cuts come first, in a
loop of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from flash.device.append_in_place import AppendedRows
from flash.device.cta import Cta
from flash.device.epilogue import store_outputs
from flash.device.finished_rows import finish_rows
from flash.device.half_queries import convert_queries, row_factors
from flash.device.lazy_softmax import LEAST_SCALE, LazySoftmax
from flash.device.mask import Mask
from flash.device.mma_products import (
    STEP_COLUMNS,
    STEP_PAIRS,
    MmaProducts,
    Tiles,
    WarpPlace,
    WarpProducts,
    Weights,
    fragment_columns,
    fragment_rows,
)
from flash.device.nonfinite import NonFinite
from flash.device.panel_loader import PanelLoader
from flash.device.parameters import Parameters, ScoreArray
from flash.device.pipeline import Arrival, KeyValuePipeline
from flash.device.split_products import QUERIES_MARK, SplitProducts, SplitTiles
from flash.device.sum_checked_softmax import SumCheckedLazySoftmax
from flash.device.tf32_products import Tf32Products
from flash.device.tile_runs import Cut, tile_runs
from flash.device.tiles import await_copies
from flash.device.token_scales import ScaleCopies, TokenScales
from flash.device.widening_loader import WideningLoader
from flash.problem.kernel_config import KernelConfig
from flash.problem.mma_tiling import HALF, PAIRS, PART_KEYS, MmaTiling
from flash.scores.philox import KEYS_PER_BLOCK
from flash.scores.places import ScorePlaces
from ptxgen import ir
from ptxgen.dsl import Fragment, KernelBuilder, Value, Var, marked
from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP, QUAD, QUAD_LANES, of_quad
from ptxgen.dsl.swizzle import SwizzledTile
from ptxgen.records import dataclass
from ptxgen.types import bf16, f16, f32, u32

# P is at most 2 ** _SLACK, which every 16-bit type holds with room to spare. V of f32 may be so
# large that P V would not be finite.
_SLACK: Final = {f16: 8.0, bf16: 8.0, f32: 0.0}
_LITTLE_SHARED: Final = 99 * 1024  # bytes of a CTA, at most
_READ_AHEAD: Final = 3  # blocks of 16 columns of V, read before the block of products that takes them


@marked("mma: loops over tiles")
def mma_attention_forward(config: KernelConfig, t: MmaTiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    dtype = config.multiplied.scalar
    # Shifts and products instead of `div` shorten a turn by 14 instructions, but the assembler keeps their
    # results in registers through the loops: where these are short it then spills, as with windows, but for
    # targets with little shared memory. Proofs do not follow them through what packed heads and new rows in
    # place divide.
    little = config.target.shared_per_block_optin <= _LITTLE_SHARED
    has_registers = t.has_spare_registers or t.operands is PAIRS or (t.weaves_weights and little)
    divides = config.packed or config.features.appended is not None or config.features.turned is not None
    short = has_registers and not divides
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=short)
    given = Parameters.declare(k, config)
    cta = Cta.entered(k, config, given)
    me = WarpPlace.of(k)

    own = AppendedRows.written(k, config, given, cta)
    factors = row_factors(k, t) if config.multiplied is not config.dtype else ()
    tiles, split, pipeline = _start_copies(k, config, t, (cta, me), own, factors)
    products = _products(k, config, me, tiles, split)
    # Scores that `cta.scoring` makes are in units of log2 already.
    scale: Value | list[Value] | None = None
    if cta.scoring is None:
        scale = [k.max(k.abs(cta.scale_log2) * factor, LEAST_SCALE) for factor in factors]
        scale = scale or k.max(k.abs(cta.scale_log2), LEAST_SCALE)
    rows, keys = fragment_rows(t), fragment_columns(t.tile)
    sinks = cta.sinks(k, me.in_quad, rows, lambda: cta.first_row + k.signed(me.first_row(t)))
    crowded = _is_crowded(t, cta)
    softmax = (SumCheckedLazySoftmax if t.checks_sums else LazySoftmax)(
        k,
        len(rows),
        QUAD,
        scale,
        _SLACK[dtype],
        sinks,
        fused=t.operands is HALF,
        joins_first=crowded,
        sinks_last=t.operands is PAIRS,
    )
    O = k.fragment(2 * t.row_tiles, t.output_columns // 4)  # sum of P V so far, under the shifts
    S = k.fragment(2 * t.row_tiles, t.tile // 4, initial=None)
    # Without a mask, the only hidden keys are beyond the end, where the tile of V holds zeros. Tiles
    # that are split have NaN and infinity cleared whether keys are hidden or not.
    odd = NonFinite(k, config) if cta.mask.hides_keys or split is not None else None
    mask = cta.mask.kept_in_shared(k) if config.features.varlen else lambda: cta.mask
    my_first_row = cta.first_row + k.signed(me.first_row(t))
    query_of = _queries(k, cta, me, my_first_row, len(rows))

    if isinstance(products, MmaProducts) and t.keeps_queries:
        pipeline.await_keys()
        products.keep(where=pipeline.has_tiles)

    def places(n: Value) -> ScorePlaces:
        """Where the scores of the next tile lie."""
        first_key, begins_block = pipeline.first_key(n), t.tile >= KEYS_PER_BLOCK
        columns = me.in_quad * 2
        return ScorePlaces(
            k, my_first_row, first_key, columns, rows, keys, begins_block, cta.packing, query_of
        )

    of_scores = factors if cta.scoring is not None else ()
    turn = _Turn(
        k,
        config,
        t,
        cta,
        pipeline,
        products,
        softmax,
        O,
        S,
        of_scores,
        split,
        odd,
        mask,
        places,
        _token_scales(k, me, pipeline, len(rows)),
    )
    for begin, end, cut in tile_runs(k, cta, lambda: Cta.of(k, config, given)):
        with k.loop(-begin, end if isinstance(end, int) else -end) as n, _if_seen(k, cta, pipeline, n):
            turn.attend(n, cut)

    if config.begins_next:
        k.note("the grid that merges the parts may begin")
        k.griddepcontrol_launch_dependents()
    # Computed again: kept in registers through the loops, these values would be spilled.
    cta, me = Cta.of(k, config, given), WarpPlace.of(k)
    _finish(
        k, t, (cta, me), softmax, O, given.operands.get("v_scale") if turn.scales is None else turn.scales
    )
    through = tiles[0] if config.output is config.dtype else None
    store_outputs(k, t, me, products, through, (cta.O, cta.first_row), O)
    if odd is not None:
        runs = [r[:2] for r in tile_runs(k, cta, lambda: cta) if r[2].hides or split is not None]
        odd.restore(cta, t.block_q, [(end * t.tile, begin * t.tile) for begin, end in runs])
    return k.build(drop_unread=True)


def _is_crowded(t: MmaTiling, cta: Cta) -> bool:
    """Whether registers are so short that what three loops keep, those of a window, takes the last ones."""
    return cta.all_see_from is not None and not t.has_spare_registers


def _products(
    k: KernelBuilder, config: KernelConfig, me: WarpPlace, tiles: Tiles, split: SplitTiles | None
) -> WarpProducts:
    """Both products of a warp."""
    t = config.tiling
    assert isinstance(t, MmaTiling)
    if split is not None:
        return SplitProducts(k, t, me, split)
    if t.operands is HALF:
        return MmaProducts(k, t, me, tiles, config.multiplied.scalar, config.dtype.scalar)
    return Tf32Products(k, t, me, tiles, joins=True)


@dataclass(frozen=True)
class _Turn:
    """What a turn of the loops takes in a tile of keys with."""

    k: KernelBuilder
    config: KernelConfig
    t: MmaTiling
    cta: Cta
    pipeline: KeyValuePipeline
    products: WarpProducts
    softmax: LazySoftmax
    O: Fragment
    S: Fragment
    factors: Sequence[Value]  # what scores of each row are multiplied by; empty: 1
    split: SplitTiles | None
    odd: NonFinite | None
    mask: Callable[[], Mask]
    places: Callable[[Value], ScorePlaces]
    scales: TokenScales | None

    def attend(self, n: Value, cut: Cut) -> None:
        """Take in the next tile of keys: the last of the -n tiles that are left."""
        k, pipeline, products, S = self.k, self.pipeline, self.products, self.S
        keys_there, values_there = self._arrivals(n, cut)
        pipeline.await_keys(on_arrival=keys_there)
        pipeline.start_values(n, ragged=cut.is_ragged(self.config))
        k.note("S = Q K^T")
        products.scores(S, pipeline.key_stage)
        if self.scales is not None:
            self.scales.scale_scores(S, pipeline.key_stage)
        places = self._finished_scores(n, cut)
        if places is None and self.scales is None and isinstance(self.softmax, SumCheckedLazySoftmax):
            pipeline.await_values(on_arrival=values_there)
            pipeline.start_keys(n)
            self._add_by_parts(self.softmax)
        else:
            self._add_whole(n, places, values_there)
        pipeline.advance()

    def _add_whole(self, n: Value, places: ScorePlaces | None, values_there: Arrival | None) -> None:
        """O += P V for a tile of scores, of which maxima are taken first."""
        k, pipeline, products, S = self.k, self.pipeline, self.products, self.S
        weaves = places is None and self.t.weaves_weights and not _is_crowded(self.t, self.cta)
        weaves = weaves and self.scales is None
        mixes = self.t.has_spare_registers or self.t.has_long_rows or weaves
        if mixes:  # behind the barrier here, the assembler mixes exponentials with the products of P V
            pipeline.await_values(on_arrival=values_there)
        k.note("P = exp2(scale * (S - shift)); rescale what was summed under an older shift")
        self.softmax.take(S, self._rescale)
        if mixes:
            pipeline.start_keys(n)
        if weaves:
            assert isinstance(products, MmaProducts)
            self._weave(products)
            return
        self.softmax.weigh(S)
        if places is not None:
            for feature in self.cta.after_softmax:
                feature.drop(S, places)
        if self.scales is not None and mixes:
            self.scales.scale_weights(S, self.O, pipeline.value_stage)
        P = products.weights(S) if self.scales is None or mixes else None
        if not mixes:
            pipeline.await_values(on_arrival=values_there)
            pipeline.start_keys(n)
        if P is None:
            assert self.scales is not None
            self.scales.scale_weights(S, self.O, pipeline.value_stage)
            P = products.weights(S)
        k.note("O += P V")
        products.outputs(self.O, P, pipeline.value_stage)

    def _rescale(self, factors: list[Value]) -> None:
        """Rescale O where the shifts of the softmax have moved."""
        _rescale(self.k, self.O, factors if self.scales is None else self.scales.rescaled(factors))

    def _add_by_parts(self, softmax: SumCheckedLazySoftmax) -> None:
        """O += P V in parts of a tile of keys: exponentials of a part are among the products of another."""
        products, stage, columns = self.products, self.pipeline.value_stage, PART_KEYS // QUAD_LANES
        assert isinstance(products, MmaProducts)
        parts = [
            (self.S.part(slice(None), slice(first, first + columns)), products.below(first * QUAD_LANES))
            for first in range(0, self.S.columns, columns)
        ]
        P = self._weighed_by_sums(softmax, parts[0][0])
        for (_, of_keys), later in zip(parts, [*parts[1:], None], strict=True):
            self.k.note("O += P V")
            of_keys.outputs(self.O, P, stage)
            if later is not None:
                P = self._weighed_by_sums(softmax, later[0])

    def _weighed_by_sums(self, softmax: SumCheckedLazySoftmax, S: Fragment) -> Weights:
        """P = exp2(scale * (S - shift)), rounded, of a part of a tile; S may be changed."""
        k, products = self.k, self.products
        assert isinstance(products, MmaProducts)
        k.note("P = exp2(scale * (S - shift)), if its sums are small")
        words = k.fragment(S.columns // STEP_COLUMNS, STEP_PAIRS * S.rows, u32, initial=None)

        def again() -> None:
            softmax.take(S, self._rescale)
            softmax.weigh(S)
            products.pack(S, words)

        softmax.weigh_into(S, list(words), self.config.multiplied.scalar, again)
        return products.operands(words)

    def _weave(self, products: MmaProducts) -> None:
        """O += P V in steps of 16 keys, the exponentials of the next step among the products of each.

        A step is a block of its own, behind a branch that all threads take, since there is a tile. In one
        block, the assembler adds weights to the sums of rows at its end, and keeps all of them until then.
        """
        k, stage = self.k, self.pipeline.value_stage
        steps = [
            (self.S.part(slice(None), slice(first, first + STEP_COLUMNS)), products.below(first // 2 * 8))
            for first in range(0, self.S.columns, STEP_COLUMNS)
        ]
        self.softmax.weigh(steps[0][0])
        P, ahead = products.weights(steps[0][0]), products.read_ahead(stage, _READ_AHEAD)
        with ExitStack() as blocks:
            for (_, of_keys), later in zip(steps, [*steps[1:], None], strict=True):
                blocks.enter_context(k.when(self.cta.tiles != 0, uniform=True))
                of_keys.outputs(self.O, P, stage, ahead=ahead)
                if later is not None:
                    scores, of_later_keys = later
                    self.softmax.weigh(scores)
                    P, ahead = products.weights(scores), of_later_keys.read_ahead(stage, _READ_AHEAD)

    def _finished_scores(self, n: Value, cut: Cut) -> ScorePlaces | None:
        """Apply features and the mask to S; returns where its scores lie, if that is asked."""
        cta = self.cta
        if not (cut.hides or cta.scoring is not None or cta.after_softmax):
            return None
        places = self.places(n)
        for row, factor in zip(self.S, self.factors, strict=False):
            for score in row:
                self.k.mul(score, factor, into=score)
        if cta.scoring is not None:
            cta.scoring.apply(self.S, places)
        if cut.hides:
            self.mask().apply(self.k, self.S, places, in_front=cut is Cut.IN_FRONT)
        return places

    def _arrivals(self, n: Value, cut: Cut) -> tuple[Arrival | None, Arrival | None]:
        """What a thread does to its part of the next tile of K, and of V, that has arrived."""
        if self.odd is None:
            return None, None
        if self.split is not None:
            return self.split.arrivals(n, self.odd.found)
        return None, self.odd.clear if cut.hides else None


@contextmanager
def _if_seen(k: KernelBuilder, cta: Cta, pipeline: KeyValuePipeline, n: Value) -> Iterator[None]:
    """A block for the next tile of keys; if nobody sees that tile, it is passed over."""
    seen = cta.mask.sees_tile(pipeline.first_key(n)) if cta.mask.has_gaps else None
    if seen is None:
        yield
        return
    with k.when(seen, uniform=True):
        yield
    with k.otherwise():
        pipeline.pass_over(n)


def _queries(
    k: KernelBuilder, cta: Cta, me: WarpPlace, my_first_row: Value, rows: int
) -> Callable[[int], Value] | None:
    """A function that gives the query of each of a lane's rows; None if that is the row itself, or
    if scores do not depend on it.

    The lanes of a quad have the same rows: each does the division for every fourth of them and
    hands the query to the others when they need it, because registers are short.
    """
    if not cta.packs_queries:
        return None
    mine = my_first_row + k.signed(me.in_quad) * FRAGMENT_STEP
    found = [cta.query(mine + FRAGMENT_STEP * n) for n in range(0, rows, QUAD_LANES)]
    return lambda i: of_quad(k, found[i // QUAD_LANES], i % QUAD_LANES)


@marked("mma: first copies")
def _start_copies(
    k: KernelBuilder,
    config: KernelConfig,
    t: MmaTiling,
    where: tuple[Cta, WarpPlace],
    own: AppendedRows | None,
    factors: Sequence[Var],
) -> tuple[Tiles, SplitTiles | None, KeyValuePipeline]:
    """Declare the tiles of Q, K and V, and start the first copies. The tile of Q is split already if
    tiles are to be split, and converted if there are `factors`, which are set then.
    """
    k.note("shared memory, and the first tiles on their way there")
    (cta, me), dtype = where, config.multiplied.scalar
    Q_tile = k.swizzled("Q_tile", (t.block_q, t.score_width), dtype)
    K_tile = k.swizzled("K_tile", (t.tile, t.score_width), dtype, stages=t.stages)
    V_tile = k.swizzled("V_tile", (t.tile, t.output_width), dtype, stages=t.stages)
    narrow = config.features.kv_dtype
    # Eight warps share 16 long rows: by whole rows, half of them would neither copy nor split.
    wide = functools.partial(PanelLoader, by_halves=t.has_long_rows)
    loader = wide if narrow is None else functools.partial(WideningLoader, stored=narrow)
    Q_loader = PanelLoader(k, cta.Q, Q_tile)
    if cta.token_scales is None:
        K_loader, V_loader = loader(k, cta.K, K_tile), loader(k, cta.V, V_tile)
    else:
        K_loader, V_loader = _scaled_loaders(k, config, cta, (K_tile, V_tile))
    split = SplitTiles(k, Q_loader, K_loader, V_loader) if t.operands is PAIRS else None
    guarded = cta.part is not None and (cta.mask.reach.left is not None or cta.mask.narrows)
    pipeline = KeyValuePipeline(
        k,
        K_loader,
        V_loader,
        cta.tiles,
        cta.first_tile,
        guarded=guarded,
        is_asynchronous=any(x.is_asynchronous for x in (Q_loader, K_loader, V_loader)),
        sees_tile=cta.mask.sees_tile,
    )
    with k.when(pipeline.has_tiles, uniform=True):
        Q_loader.start(cta.first_row)
        pipeline.fill()
        if cta.scoring is None:
            with k.when(cta.scale_log2 < 0.0, uniform=True):  # the softmax takes a positive scale
                if Q_loader.is_asynchronous:
                    await_copies(k)
                Q_loader.flip_signs()
        if own is not None and own.turns:
            if Q_loader.is_asynchronous:
                await_copies(k)
            k.barrier()
            own.turn_queries(Q_tile.pointer)
        if split is not None:
            await_copies(k)
            k.barrier()
            split.queries.split(QUERIES_MARK)
        if factors:
            if Q_loader.is_asynchronous:
                await_copies(k)
            k.barrier()
            convert_queries(k, t, me, Q_tile, factors)
    return (Q_tile, K_tile, V_tile), split, pipeline


def _scaled_loaders(
    k: KernelBuilder, config: KernelConfig, cta: Cta, tiles: tuple[SwizzledTile, SwizzledTile]
) -> tuple[WideningLoader, WideningLoader]:
    """The loaders of K and V that bring a scale for each row."""
    narrow = config.features.kv_dtype
    assert narrow is not None
    assert cta.token_scales is not None
    found = []
    for name, matrix, tile, of_rows in zip("KV", (cta.K, cta.V), tiles, cta.token_scales, strict=True):
        there = k.shared(f"{name}_scales", (tile.stages, tile.rows), f32)
        copies = ScaleCopies(k, of_rows, there, tile.stage_bytes)
        found.append(WideningLoader(k, matrix, tile, narrow, copies))
    return found[0], found[1]


def _token_scales(
    k: KernelBuilder, me: WarpPlace, pipeline: KeyValuePipeline, rows: int
) -> TokenScales | None:
    """The scales that arrive with the rows of K and V; None if these have none of their own."""
    of_keys, of_values = (getattr(loader, "scales", None) for loader in (pipeline.keys, pipeline.values))
    if of_keys is None or of_values is None:
        return None
    return TokenScales(k, me, of_keys, of_values, rows)


def _rescale(k: KernelBuilder, O: Fragment, factors: list[Value]) -> None:
    """Multiply each row by its factor."""
    for row, factor in zip(O, factors, strict=True):
        for output in row:
            k.mul(output, factor, into=output)


def _finish(
    k: KernelBuilder,
    t: MmaTiling,
    where: tuple[Cta, WarpPlace],
    softmax: LazySoftmax,
    O: Fragment,
    scales: ScoreArray | TokenScales | None,
) -> None:
    """O /= sum, times the scale of V if there is one, or without the powers of its rows; and, if wanted,
    write LSE.
    """
    k.note("O / sum, LSE")
    cta, me = where
    first_row = cta.first_row + k.signed(me.first_row(t))
    v_scale, undone = (None, scales.undone()) if isinstance(scales, TokenScales) else (scales, ())
    finish_rows(k, cta, (first_row, fragment_rows(t)), lambda: me.in_quad, softmax, O, v_scale, undone)
