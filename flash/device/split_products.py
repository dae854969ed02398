"""The two matrix products of a CTA on tensor cores: S = Q Kᵀ and O += P V of f32, as three products of
f16.

Each f32, times a power of two, is high + low, two f16 (`flash/device/split_tile.py`), and x y is computed
as low high' + high low' + high high'. The omitted low low' is below an ulp of x y (Ootomo and Yokota 2022).
Q, K and V are split once for a CTA; P is split by the lane that has it.

Tensor cores truncate their sums. So the small products of scores have a sum of their own, a sum of the others
takes 128 columns at most, and the small products with V come first; and O, a sum over all keys, is kept in
f32: the product with a tile of V starts at 0 and is added by an ordinary `fma`.

For the elements that a lane holds see `flash/device/mma_products.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Final

from flash.device.mma_products import WarpCoordinates
from flash.device.panel_loader import PanelLoader
from flash.device.pipeline import Arrival
from flash.device.split_tile import ELEMENT_SCALE, SplitTile, power_of_two_scale, split_pair
from flash.families.mma import MMA_KEYS, MMA_ROWS, MmaTiling
from ptxgen.dsl import Fragment, KernelBuilder, TilePointer, Value, Var, marked
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, LANE_ROWS, QUAD, AccumulatorTiles, over_lanes
from ptxgen.dsl.swizzle import BLOCK_CHUNKS, CHUNK_BYTES, BlockReader
from ptxgen.records import dataclass
from ptxgen.types import f32, u32

QUERIES_MARK: Final = 1  # mark of the tile of Q, see `SplitTile.split`
UNSCALED: Final = ELEMENT_SCALE**-2  # factor of sums of products of Q and K, which undoes the scales of both
_TOP: Final = 14  # the exponent that the largest weight gets
WEIGHT_SCALE: Final = 2.0**_TOP  # of P, whose elements are at most 1
_DEPTH: Final = 16  # of a product of f16
_FACTOR_SCALE: Final = 2.0**6  # of factors of rows of V, which are below 2**122
UNWEIGHTED: Final = 1 / (WEIGHT_SCALE * ELEMENT_SCALE)  # factor of sums of P V, undoes the scales of both
_NARROW: Final = 64  # columns of O
_WIDE: Final = 128  # columns of Q and K whose products one sum of a tensor core takes
_READ: Final = CHUNK_BYTES // f32.nbytes  # columns of O in a chunk

Operand = tuple[Value, ...]
Reader = Callable[[int, int], TilePointer]  # see `BlockReader.stage`


class SplitTiles:
    """The tiles of Q, K and V. `mark` is what the present tiles of K and V were split with, set by
    `arrivals`.
    """

    mark: Value

    def __init__(self, k: KernelBuilder, Q: PanelLoader, K: PanelLoader, V: PanelLoader) -> None:
        self.queries, self.keys, self.values = (SplitTile(k, loader) for loader in (Q, K, V))

    def arrivals(self, n: Value, not_finite: Callable[[], object]) -> tuple[Arrival, Arrival]:
        """Callbacks that emit a thread's work when tile `n` of K, and of V, has arrived. `not_finite` is as
        in `SplitTile.split`, of V.
        """
        self.mark = n.as_(u32)
        return (
            lambda _, stage: self.keys.split(n.as_(u32), stage),
            lambda _, stage: self.values.split(n.as_(u32), stage, not_finite),
        )


@dataclass(frozen=True)
class Bursts:
    """Products whose operands the assembler may have in registers together: those of `steps` of 16 columns of
    Q and K, and of `tiles` of 8 columns of O, of which `side_by_side` are summed at a time.
    """

    steps: int = 4
    tiles: int = 4  # of a panel
    side_by_side: int = 2

    @classmethod
    def of(cls, t: MmaTiling) -> Bursts:
        """The bursts of a tiling. The products of one tile of O wait for one another. With 16 rows for each
        warp they are too few to fill that time, and registers hold operands of more tiles
        (docs/measurements.md).
        """
        return cls(steps=8, tiles=8, side_by_side=4) if t.has_long_rows else cls()


class SplitProducts:
    """The products S = Q Kᵀ and O += P V of f32 elements; see `flash.device.mma_products.WarpProducts`."""

    def __init__(self, k: KernelBuilder, t: MmaTiling, me: WarpCoordinates, tiles: SplitTiles) -> None:
        self.k = k
        self.t = t
        self.me = me
        self.tiles = tiles
        self.bursts = Bursts.of(t)

    def _score_readers(self) -> tuple[BlockReader, BlockReader]:
        """The readers of Q and K. Of Q the four matrices of an `ldmatrix` are high parts of 16 rows and
        16 columns, of K high and low parts of 8 rows and 16 columns. A block of two chunks has the high
        and the low parts of eight columns.
        """
        me = WarpCoordinates.of(self.k)
        of_eight, octet = me.lane % 8, me.lane // 8
        lower, right = octet % 2, octet // 2
        row = me.warp_row(self.t) + (of_eight + lower * 8)
        return (
            BlockReader(self.tiles.queries.tile, row, right * BLOCK_CHUNKS),
            BlockReader(self.tiles.keys.tile, of_eight, lower * BLOCK_CHUNKS + right),
        )

    @marked("split products: scores")
    def scores(self, S: Fragment, stage: Value | None) -> None:
        """Compute the scores S = Q Kᵀ for this warp's rows and the keys of a pipeline stage."""
        k, t = self.k, self.t
        of_query, of_key = self._score_readers()
        query, key = of_query.stage(), of_key.stage(stage)
        small = k.fragment(S.rows, S.columns, initial=None)
        others = [k.fragment(S.rows, S.columns) for _ in range(_WIDE, t.score_columns, _WIDE)]
        sums, of_small = [AccumulatorTiles(x.row) for x in (S, *others)], AccumulatorTiles(small.row)
        for d in range(t.score_columns // _DEPTH):
            with self._apart(d % self.bursts.steps == 0 < d and t.score_columns > _WIDE):
                self._add_scores(sums[d * _DEPTH // _WIDE], of_small, query, key, d)
        for of_columns in others:
            for total, other in zip(S.all(), of_columns.all(), strict=True):
                k.add(total, other, into=total)
        for scores, rest in zip(S, small, strict=True):
            for score, more in zip(scores, rest, strict=True):
                k.fma(more, UNSCALED, score * UNSCALED, into=score)
        queries, keys = self.tiles.queries, self.tiles.keys
        with k.when(keys.scales(self.tiles.mark) | queries.scales(QUERIES_MARK), uniform=True):
            self._unscale(S)

    def _add_scores(
        self, S: AccumulatorTiles, small: AccumulatorTiles, query: Reader, key: Reader, d: int
    ) -> None:
        """Compute S += Q Kᵀ for 16 columns, the d-th; the products with a low part into `small`."""
        t = self.t
        begin = None if d else (self.k.mov(0.0, type=f32),) * 4
        addresses = [query(2 * d, MMA_ROWS * m) for m in range(t.row_tiles)]
        high = [self._load(at) for at in addresses]
        low = [self._load(at.moved(at.value ^ CHUNK_BYTES)) for at in addresses]
        for n in range(t.tile // MMA_KEYS):
            b = self._load(key(2 * d, MMA_KEYS * n))
            high_of_b, low_of_b = b[:2], b[2:]
            for m in range(t.row_tiles):
                self._multiply(small[m, n], low[m], high_of_b, begin)
                self._multiply(S[m, n], high[m], high_of_b, begin)
            for m in range(t.row_tiles):
                self._multiply(small[m, n], high[m], low_of_b)

    def _unscale(self, S: Fragment) -> None:
        """Multiply the scores of a tile by the scale factors of their rows of Q and of K."""
        k, column, tiles = self.k, self.me.in_quad * LANE_COLUMNS, self.tiles

        def factor_of_row(i: int) -> Value:
            row = self.me.first_row(self.t) + MMA_KEYS * i
            return k.load(tiles.queries.factors.pointer(0, row))

        unscale_scores(k, S, factor_of_row, lambda: tiles.keys.factors.pointer(0, column))

    def weights(self, P: Fragment) -> Fragment:
        """The weights P unchanged: how they are split depends on the tile of V."""
        return P

    @marked("split products: outputs")
    def outputs(self, O: Fragment, P: Fragment, stage: Value | None) -> None:
        """Compute O += P V for this warp's rows and the keys of a pipeline stage."""
        k, t, lane = self.k, self.t, WarpCoordinates.of(self.k).lane
        # High and low parts of 16 rows and 8 columns, read transposed.
        value = BlockReader(self.tiles.values.tile, lane % 16, lane // 16).stage(stage)
        scales = [k.var(f32, WEIGHT_SCALE) for _ in P]
        undone = [k.var(f32, UNWEIGHTED) for _ in P]
        with k.when(self.tiles.values.scales(self.tiles.mark), uniform=True):
            self._scale(P, scales, undone)
        steps = range(t.tile // _DEPTH)
        a = [[self._weights(P, scales, m, j) for j in steps] for m in range(t.row_tiles)]
        for first in range(0, O.columns // LANE_COLUMNS, self.bursts.side_by_side):
            with self._apart(first % self.bursts.tiles == 0 < first and t.output_columns > _NARROW):
                self._add_outputs(O, a, undone, value, first)

    def _apart(self, is_apart: bool) -> AbstractContextManager[object]:
        """A context for products whose operands the assembler does not load before those of the products
        before it are used: a branch that all threads take, since no mark is 0. Wide tiles leave no
        registers for the operands of more.
        """
        if not is_apart:
            return nullcontext()
        return self.k.when(self.tiles.mark != 0, uniform=True)

    def _add_outputs(
        self,
        O: Fragment,
        a: list[list[tuple[Operand, Operand]]],
        undone: list[Var],
        value: Reader,
        first: int,
    ) -> None:
        """Compute O += P V for some tiles of 8 columns, from tile `first` on. `a` are the high and low parts
        of P by 16 rows and by 16 keys; `undone` are the factors of its rows.
        """
        k, t, tiles = self.k, self.t, range(self.bursts.side_by_side)
        sums = k.fragment(O.rows, LANE_COLUMNS * len(tiles), initial=None)
        of_sums, zeros = AccumulatorTiles(sums.row), (k.mov(0.0, type=f32),) * 4
        addresses = list(product(range(t.row_tiles), tiles))
        highs = []
        for j in range(t.tile // _DEPTH):
            b = [self._load(value(first + n, _DEPTH * j), trans=True) for n in tiles]
            high, low = [of[:2] for of in b], [of[2:] for of in b]
            highs.append(high)
            for m, n in addresses:
                self._multiply(of_sums[m, n], a[m][j][1], high[n], None if j else zeros)
            for m, n in addresses:
                self._multiply(of_sums[m, n], a[m][j][0], low[n])
        for j, high in enumerate(highs):
            for m, n in addresses:
                self._multiply(of_sums[m, n], a[m][j][0], high[n])
        for row, more, factor in zip(O, sums, undone, strict=True):
            begin = LANE_COLUMNS * first
            for output, x in zip(row[begin : begin + len(more)], more, strict=True):
                k.fma(x, factor, output, into=output)

    def _scale(self, P: Fragment, scales: list[Var], undone: list[Var]) -> None:
        """Multiply weights by the factors of their rows of V; see `scale_weights`."""
        column, values = self.me.in_quad * LANE_COLUMNS, self.tiles.values
        scale_weights(self.k, P, scales, undone, lambda: values.factors.pointer(0, column))

    def _weights(self, P: Fragment, scales: list[Var], m: int, j: int) -> tuple[Operand, Operand]:
        """The high and the low parts of the A operand for 16 rows and 16 keys."""
        rows = range(LANE_ROWS * m, LANE_ROWS * (m + 1))
        first = 2 * LANE_COLUMNS * j
        pairs = []
        for c, i in product((first, first + LANE_COLUMNS), rows):
            x = [P.row(i)[c + n] * scales[i] for n in range(LANE_COLUMNS)]
            pairs.append(split_pair(self.k, x))
        return tuple(high for high, _ in pairs), tuple(low for _, low in pairs)

    def output_address(self) -> tuple[Value, Value]:
        """See `WarpProducts`: a lane holds eight neighbouring columns, which are two chunks."""
        return self.me.in_quad * 2, self.me.in_quad * 0

    def output_words(self, row: list[Var], first: int, columns: int) -> Iterator[tuple[int, list[Value]]]:
        """See `WarpProducts`."""
        for chunk in range(0, columns // _READ, MMA_KEYS):
            begin = LANE_COLUMNS * (first // MMA_KEYS + chunk * _READ // MMA_KEYS)
            for half in range(2):
                numbers = row[begin + _READ * half : begin + _READ * (half + 1)]
                yield chunk + half, [number.as_(u32) for number in numbers]

    def _load(self, at: TilePointer, *, trans: bool = False) -> Operand:
        return self.k.ldmatrix(at, num="x4", trans=trans)

    def _multiply(self, tile: tuple[Var, ...], a: Operand, b: Operand, c: Operand | None = None) -> None:
        """Emit tile = A B + C for a 16 x 8 tile; C is the tile itself if `c` is None."""
        self.k.mma_f32_f16(a, b, c or tile, shape="m16n8k16", into=tile)


@dataclass(frozen=True)
class LaneKeys:
    """The keys whose scores of a row a lane has: of each `step` keys the first `together`, counted from its
    first key. `lanes` are the butterfly distances to lanes that have others.
    """

    together: int
    step: int
    lanes: Sequence[int]

    def factors_of(
        self, k: KernelBuilder, row: Sequence[Var], factors_of_keys: Callable[[], TilePointer]
    ) -> Iterator[tuple[Var, Value]]:
        """Each element of a row, with the factor of its key."""
        for n in range(0, len(row), self.together):
            at = factors_of_keys().plus_bytes(n // self.together * self.step * f32.nbytes)
            yield from zip(row[n : n + self.together], k.load(at, self.together), strict=True)


QUAD_KEYS: Final = LaneKeys(LANE_COLUMNS, MMA_KEYS, QUAD)
ROW_KEYS: Final = LaneKeys(_READ, _READ, ())  # of a lane that has all of its row


def unscale_scores(
    k: KernelBuilder,
    S: Fragment,
    factor_of_row: Callable[[int], Value],
    factors_of_keys: Callable[[], TilePointer],
    keys: LaneKeys = QUAD_KEYS,
) -> None:
    """Multiply scores by the factors of their rows of Q and K, the smaller first: a product of both may not
    be finite. `factors_of_keys` gives the address of the factor of the lane's first key.
    """
    for i, scores in enumerate(S):
        factor = factor_of_row(i)
        for score, of_key in keys.factors_of(k, scores, factors_of_keys):
            for next_factor in (k.min(factor, of_key), k.max(factor, of_key)):
                k.mul(score, next_factor, into=score)


def scale_weights(
    k: KernelBuilder,
    P: Fragment,
    scales: Sequence[Var],
    undone: Sequence[Var],
    factors_of_keys: Callable[[], TilePointer],
    keys: LaneKeys = QUAD_KEYS,
) -> None:
    """Multiply weights by the factors of their rows of V, and set for each row of P the scale for the
    largest of these products, and what undoes it. So what is lost is small compared with the largest product
    of a row, not with the largest row of V, which may have no weight. `factors_of_keys` is as for
    `unscale_scores`.
    """
    for row, scale, inverse in zip(P, scales, undone, strict=True):
        largest: Value | None = None
        for weight, factor in keys.factors_of(k, row, factors_of_keys):
            k.mul(weight, factor * _FACTOR_SCALE, into=weight)
            largest = weight if largest is None else k.max(largest, weight)
        assert largest is not None
        of_row = power_of_two_scale(k, over_lanes(k, largest, keys.lanes, k.max), _TOP)
        scale.set(of_row[0])
        inverse.set(of_row[1] * (1 / (_FACTOR_SCALE * ELEMENT_SCALE)))
