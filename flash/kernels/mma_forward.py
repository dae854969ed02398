"""The tensor-core forward kernel: O = softmax(scale Q Kᵀ + mask) V in one pass over K and V
(FlashAttention-2, algorithm 1), for f16 and bf16, and for f32 by products of f16 or of tf32. K and V of
one byte are widened to f16, and Q of bf16 is converted to it (`flash/device/half_queries.py`).

One CTA computes `block_q` rows of one head, or packed rows of several
(`flash/device/grouped_heads.py`); if values are wider than a CTA can hold, a slice of their
columns. Products of 16-bit elements are exact and summed in f32; P is rounded to the 16-bit type, O
once at the end. For f32, see `flash/device/split_products.py` and `tf32_products.py`. K and V are
walked from the last tile, so that the tiles in which a mask or the end of the keys hides some come first, in
a loop of their own (`flash/device/masked_tiles.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, NamedTuple

from flash.device.append_in_place import AppendedKV
from flash.device.cta import Cta
from flash.device.epilogue import store_outputs
from flash.device.finished_rows import finish_rows
from flash.device.half_queries import row_factors
from flash.device.lazy_softmax import LEAST_SCALE, LazySoftmax
from flash.device.masked_tiles import Masking, masked_tiles
from flash.device.mma_copies import start_copies
from flash.device.mma_products import (
    STEP_COLUMNS,
    STEP_PAIRS,
    MmaProducts,
    WarpCoordinates,
    WarpProducts,
    Weights,
    fragment_columns,
    fragment_rows,
)
from flash.device.nonfinite import NonFinite
from flash.device.parameters import Parameters
from flash.device.pipeline import Arrival
from flash.device.split_products import SplitProducts
from flash.device.sum_checked_softmax import SumCheckedLazySoftmax
from flash.device.tf32_products import Tf32Products
from flash.device.tile_scores import TileScores
from flash.device.token_scales import TokenScales
from flash.families.mma import PART_KEYS, MmaTiling
from flash.families.precision import HALF, PAIRS
from flash.problem.kernel_config import KernelConfig
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen import ir
from ptxgen.dsl import Fragment, KernelBuilder, Value, marked
from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP, QUAD, QUAD_LANES, of_quad
from ptxgen.types import bf16, f16, f32, u32

# P is at most 2 ** _SLACK, which every 16-bit type holds with room to spare. V of f32 may be so
# large that P V would not be finite.
_SLACK: Final = {f16: 8.0, bf16: 8.0, f32: 0.0}
_LITTLE_SHARED: Final = 99 * 1024  # bytes of a CTA, at most
# From this target on ptxas 13.0 was seen to read V for all columns of wide outputs of f32 before the first
# products, and to spill.
_FIRST_READING_AHEAD: Final = 120
_READ_AHEAD: Final = 3  # blocks of 16 columns of V, read before the block of products that takes them


@marked("mma: loops over tiles")
def mma_attention_forward(config: KernelConfig, t: MmaTiling) -> ir.Module:
    """The module with the kernel of a configuration, whose tiling is `t`.

    `flash/contract/forward.py` says what its parameters mean.
    """
    # Shifts and products instead of `div` shorten an iteration by 14 instructions, but the assembler keeps
    # their results in registers through the loops: where these are short it then spills, as with windows, but
    # for targets with little shared memory. Proofs do not follow them through what packed heads and new rows
    # in place divide.
    little = config.target.shared_per_block_optin <= _LITTLE_SHARED
    has_registers = t.has_spare_registers or t.operands is PAIRS or (t.weaves_weights and little)
    divides = config.packed or config.features.appended is not None or config.features.rotation is not None
    short = has_registers and not divides
    k = KernelBuilder(config.name, target=config.target, threads=t.threads, min_ctas=1, reciprocals=short)
    MmaForward(k, config, t).run()
    return k.finish()


class _Tile(NamedTuple):
    """A tile of keys whose scores S the warp has computed, and what is left to do for it."""

    n: Value  # -n - 1 tiles lie before it
    coordinates: ScoreCoordinates | None  # of its scores; None if no feature has asked
    on_values: Arrival | None  # what a thread does to its part of V when that has arrived


class MmaForward:
    """The forward pass of a CTA by `mma`: `take` for each tile of keys, then `finish`."""

    @marked("mma: loops over tiles")
    def __init__(self, k: KernelBuilder, config: KernelConfig, t: MmaTiling) -> None:
        self.k = k
        self.config = config
        self.t = t
        self.parameters = Parameters.declare(k, config)
        cta = self.cta = Cta.entered(k, config, self.parameters)
        me = self.me = WarpCoordinates.of(k)
        appended = AppendedKV.written(k, config, self.parameters, cta)
        factors = row_factors(k, t) if config.multiplied is not config.dtype else ()
        copies = start_copies(k, config, t, cta, me, appended, factors)
        self.tiles, self.split, self.pipeline, scales = copies
        self.products = self._products()
        rows = fragment_rows(t)
        # Scores that `cta.scoring` makes are in units of log2 already.
        scale: Value | list[Value] | None = None
        if cta.scoring is None:
            scale = [k.max(k.abs(cta.scale_log2) * factor, LEAST_SCALE) for factor in factors]
            scale = scale or k.max(k.abs(cta.scale_log2), LEAST_SCALE)
        # Registers are so short that what three loops keep, those of a window, takes the last ones.
        self.crowded = cta.all_see_from is not None and not t.has_spare_registers
        self.softmax = (SumCheckedLazySoftmax if t.checks_sums else LazySoftmax)(
            k,
            len(rows),
            QUAD,
            scale,
            _SLACK[config.multiplied.scalar],
            cta.sinks(k, me.in_quad, rows, lambda: cta.first_row + k.signed(me.first_row(t))),
            fused=t.operands is HALF,
            joins_first=self.crowded,
            sinks_last=t.operands is PAIRS,
        )
        self.O = k.fragment(2 * t.row_tiles, t.output_columns // 4)  # sum of P V so far, under the shifts
        self.S = k.fragment(2 * t.row_tiles, t.tile // 4, initial=None)
        # Without a mask, the only hidden keys are beyond the end, where the tile of V holds zeros. Tiles
        # that are split have NaN and infinity cleared whether keys are hidden or not.
        clears = (cta.mask.hides_keys or self.split is not None) and not config.element_of("V").is_finite
        self.nonfinite = NonFinite(k, config, in_register=t.prefetches) if clears else None
        mask = cta.mask.stored_in_shared(k) if config.features.varlen else lambda: cta.mask
        my_first_row = cta.first_row + k.signed(me.first_row(t))
        self.scores = TileScores(
            k=k,
            cta=cta,
            tile=t.tile,
            first_key=self.pipeline.first_key,
            first_row=my_first_row,
            rows=rows,
            first_column=lambda: me.in_quad * 2,
            keys=fragment_columns(t.tile),
            query_of=self._queries(my_first_row, len(rows)),
            mask=mask,
            factors=factors if cta.scoring is not None else (),
            tops=cta.tops(k, len(rows), scale),
        )
        if isinstance(self.products, MmaProducts) and t.keeps_queries:
            self.pipeline.await_queries()
            self.products.keep(where=self.pipeline.has_tiles)
        self.scales = None if scales is None else TokenScales(k, me, *scales, len(rows))

    @marked("mma: loops over tiles")
    def run(self) -> None:
        """Compute and store the CTA's rows of O."""
        k = self.k
        for end, first, masking in masked_tiles(k, self.cta, self._cta_again):
            with k.loop(-end, first if isinstance(first, int) else -first) as n, self._if_seen(n):
                self.take(n, masking)
        if self.config.begins_next:
            k.note("the grid that merges the parts may begin")
            k.griddepcontrol_launch_dependents()
        self.finish()

    def take(self, n: Value, masking: Masking) -> None:
        """Add the tile of keys with -n - 1 tiles before it to the sums."""
        k, pipeline, S = self.k, self.pipeline, self.S
        on_keys, on_values = self._arrivals(n, masking)
        pipeline.await_keys(on_arrival=on_keys)
        pipeline.start_values(n, ragged=masking.is_ragged(self.config))
        k.note("S = Q K^T")
        self.products.scores(S, pipeline.key_stage)
        if self.scales is not None:
            self.scales.scale_scores(S, pipeline.key_stage)
        coordinates = self.scores.finish(S, n, masking, self.cta.scoring)
        schedule = self._schedule(plain=coordinates is None and self.scales is None)
        schedule(_Tile(n, coordinates, on_values))
        pipeline.advance()

    def finish(self) -> None:
        """Divide O by the sums, store it, and restore NaN and infinity of V."""
        k, t = self.k, self.t
        # Computed again: kept in registers through the loops, these values would be spilled.
        cta, me = self._cta_again(), WarpCoordinates.of(k)
        k.note("O / sum, LSE")
        rows = cta.first_row + k.signed(me.first_row(t)), fragment_rows(t)
        v_scale = None if self.scales is not None else self.parameters.operands.get("v_scale")
        undone = () if self.scales is None else self.scales.undone()
        finish_rows(k, cta, rows, lambda: me.in_quad, self.softmax, self.O, v_scale, undone, self.scores.tops)
        through = self.tiles[0] if self.config.output is self.config.dtype else None
        store_outputs(k, t, me, self.products, through, (cta.O, cta.first_row), self.O)
        if self.nonfinite is not None:
            self._restore(self.nonfinite, cta)

    # ------------------------------------------------ schedules of the exponentials and products of a tile

    def _schedule(self, *, plain: bool) -> Callable[[_Tile], None]:
        """The order in which P = exp2(S - shift) and O += P V of a tile are computed: the first schedule of
        the table whose condition holds. `plain` is whether P depends on the products of the tile alone.
        """
        t = self.t
        is_roomy = t.has_spare_registers if self.scores.tops is None else t.has_spare_beside_tops
        table = (
            (plain and t.checks_sums, self._slice_by_slice),
            (plain and t.weaves_weights and not self.crowded, self._step_by_step),
            (is_roomy or t.has_long_rows, self._values_first),
            (True, self._values_last),
        )
        return next(schedule for holds, schedule in table if holds)

    def _values_first(self, tile: _Tile) -> None:
        """Wait for V before the exponentials, which the assembler then mixes with the products P V."""
        self.pipeline.await_values(on_arrival=tile.on_values)
        self._take_maxima()
        self.pipeline.start_keys(tile.n)
        self.softmax.weigh(self.S)
        self.scores.drop(self.S, tile.coordinates)
        self._multiply(self._scaled_weights())

    def _values_last(self, tile: _Tile) -> None:
        """Wait for V after the exponentials, where registers do not suffice for V and them at a time."""
        self._take_maxima()
        self.softmax.weigh(self.S)
        self.scores.drop(self.S, tile.coordinates)
        P = self.products.weights(self.S) if self.scales is None else None
        self.pipeline.await_values(on_arrival=tile.on_values)
        self.pipeline.start_keys(tile.n)
        self._multiply(self._scaled_weights() if P is None else P)

    def _step_by_step(self, tile: _Tile) -> None:
        """O += P V in steps of 16 keys, the exponentials of the next step among the products of each.

        Each step is a basic block: in a single block the assembler would add the weights to the sums of rows
        only at its end, and hold all of them in registers until then.
        """
        stage = self.pipeline.value_stage
        self.pipeline.await_values(on_arrival=tile.on_values)
        self._take_maxima()
        self.pipeline.start_keys(tile.n)
        (scores, of_keys), *later = self._slices(STEP_COLUMNS)
        self.softmax.weigh(scores)
        P, ahead = of_keys.weights(scores), of_keys.read_ahead(stage, _READ_AHEAD)
        with ExitStack() as blocks:
            for scores, of_next_keys in later:
                blocks.enter_context(self._block())
                of_keys.outputs(self.O, P, stage, ahead=ahead)
                of_keys = of_next_keys
                self.softmax.weigh(scores)
                P, ahead = of_keys.weights(scores), of_keys.read_ahead(stage, _READ_AHEAD)
            blocks.enter_context(self._block())
            of_keys.outputs(self.O, P, stage, ahead=ahead)

    def _slice_by_slice(self, tile: _Tile) -> None:
        """O += P V in slices of keys: exponentials of one are among the products of the slice before it, and
        maxima are only taken if sums of weights are large.
        """
        self.pipeline.await_values(on_arrival=tile.on_values)
        self.pipeline.start_keys(tile.n)
        (scores, of_keys), *later = self._slices(PART_KEYS // QUAD_LANES)
        P = self._weighed_by_sums(scores)
        for scores, of_next_keys in later:
            self._multiply(P, of_keys)
            of_keys = of_next_keys
            P = self._weighed_by_sums(scores)
        self._multiply(P, of_keys)

    def _slices(self, columns: int) -> list[tuple[Fragment, MmaProducts]]:
        """Scores of `columns` columns of a lane, each with the products for the values of their keys."""
        products = self.products
        assert isinstance(products, MmaProducts)  # schedules by slices are those of 16-bit elements
        return [
            (self.S.part(slice(None), slice(first, first + columns)), products.below(first * QUAD_LANES))
            for first in range(0, self.S.columns, columns)
        ]

    def _take_maxima(self) -> None:
        """Move the softmax shifts of rows whose scores have outgrown them."""
        self.k.note("P = exp2(scale * (S - shift)); rescale what was summed under an older shift")
        self.softmax.take(self.S, self._rescale)

    def _rescale(self, factors: list[Value]) -> None:
        """Multiply each row of O by its factor, where shifts of the softmax have moved."""
        factors = factors if self.scales is None else self.scales.rescaled(factors)
        for row, factor in zip(self.O, factors, strict=True):
            for output in row:
                self.k.mul(output, factor, into=output)

    def _scaled_weights(self) -> object:
        """The weights P as operand of P V, times the scales of the tile's rows of V if it has any."""
        if self.scales is not None:
            self.scales.scale_weights(self.S, self.O, self.pipeline.value_stage)
        return self.products.weights(self.S)

    def _weighed_by_sums(self, S: Fragment) -> Weights:
        """Compute P = exp2(scale * (S - shift)), rounded, for a slice of a tile; S may be changed."""
        k, products, softmax = self.k, self.products, self.softmax
        assert isinstance(products, MmaProducts)
        assert isinstance(softmax, SumCheckedLazySoftmax)  # the tiling checks sums
        k.note("P = exp2(scale * (S - shift)), if its sums are small")
        words = k.fragment(S.columns // STEP_COLUMNS, STEP_PAIRS * S.rows, u32, initial=None)

        def again() -> None:
            softmax.take(S, self._rescale)
            softmax.weigh(S)
            products.pack(S, words)

        softmax.weigh_into(S, list(words), self.config.multiplied.scalar, again)
        return products.operands(words)

    def _multiply(self, P: object, products: WarpProducts | None = None) -> None:
        """Compute O += P V for a slice of the tile of keys, by `products`."""
        self.k.note("O += P V")
        (products or self.products).outputs(self.O, P, self.pipeline.value_stage)

    # ------------------------------------------------------------------------------------------- pieces

    def _cta_again(self) -> Cta:
        """The part of the problem that the CTA computes, computed again."""
        return Cta.of(self.k, self.config, self.parameters)

    def _products(self) -> WarpProducts:
        """The products S = Q Kᵀ and O += P V as this warp computes them, by the type of elements."""
        k, t, me, tiles = self.k, self.t, self.me, self.tiles
        if self.split is not None:
            return SplitProducts(k, t, me, self.split)
        if t.operands is HALF:
            return MmaProducts(k, t, me, tiles, self.config.multiplied.scalar, self.config.dtype.scalar)
        reads_ahead = t.has_wide_outputs and self.config.target.sm >= _FIRST_READING_AHEAD
        return Tf32Products(k, t, me, tiles, joins=True, block=self._block if reads_ahead else None)

    def _block(self) -> AbstractContextManager[object]:
        """A context for instructions among which the assembler moves no others: a branch that all threads
        take, since there is a tile.
        """
        return self.k.when(self.cta.tiles != 0, uniform=True)

    def _queries(self, my_first_row: Value, rows: int) -> Callable[[int], Value] | None:
        """A function that gives the query of each of a lane's rows; None if that is the row itself, or
        if scores do not depend on it.

        The lanes of a quad have the same rows: each does the division for every fourth of them and
        hands the query to the others when they need it, because registers are short.
        """
        k, cta = self.k, self.cta
        if not cta.packs_queries:
            return None
        mine = my_first_row + k.signed(self.me.in_quad) * FRAGMENT_STEP
        queries = [cta.query(mine + FRAGMENT_STEP * n) for n in range(0, rows, QUAD_LANES)]
        return lambda i: of_quad(k, queries[i // QUAD_LANES], i % QUAD_LANES)

    @contextmanager
    def _if_seen(self, n: Value) -> Iterator[None]:
        """A context for the next tile of keys; if no query sees that tile, it is skipped."""
        k, mask, pipeline = self.k, self.cta.mask, self.pipeline
        seen = mask.sees_tile(pipeline.first_key(n)) if mask.has_gaps else None
        if seen is None:
            yield
            return
        with k.when(seen, uniform=True):
            yield
        with k.otherwise():
            pipeline.pass_over(n)

    def _arrivals(self, n: Value, masking: Masking) -> tuple[Arrival | None, Arrival | None]:
        """Callbacks that emit a thread's work on its part of the next tile of K, and of V, when it has
        arrived.
        """
        if self.nonfinite is None:
            return None, None
        if self.split is not None:
            return self.split.arrivals(n, self.nonfinite.note_nonfinite)
        return None, self.nonfinite.clear if masking.hides else None

    @marked("mma: loops over tiles")
    def _restore(self, nonfinite: NonFinite, cta: Cta) -> None:
        """Add NaN and infinity that were cleared in V to the rows that see them."""
        tile, every = self.t.tile, self.split is not None
        loops = [(end, first) for end, first, m in masked_tiles(self.k, cta, lambda: cta) if m.hides or every]
        nonfinite.restore(cta, self.t.block_q, [(first * tile, end * tile) for end, first in loops])
