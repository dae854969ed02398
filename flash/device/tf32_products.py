"""The two matrix products of a CTA on tensor cores: S = Q Kᵀ and O += P V of f32, by `m16n8k8` of
tf32.

A tf32 has the exponent of an f32 and 11 significant bits, and a tensor core ignores the low 13 bits
of a register. So an f32 x is split into `high`, x rounded to tf32, and `low` = x - high, which is
exact and of which the tensor core takes all but at most one bit. x y is computed as low high' +
high low' + high high'; the omitted low low' is less than half an ulp (Markidis et al. 2018; Ootomo
and Yokota 2022; CUTLASS calls it `OpMultiplyAddFastF32`). The precision `tf32` is high high' alone.
Forward kernels take three products of f16 instead (`flash/device/split_products.py`).

Tensor cores add without rounding to nearest: the error is as large as the last bit of the sum, and
always of the same sign. So a tensor core sums the three products over a group of steps only, the
small ones first, and the sum of each group is added in f32, correctly rounded (Ootomo and Yokota,
section 4; CUTLASS's "staged accumulation").

Lane `l` has index `t = l % 4` in its group `g = l / 4`. Of A it holds rows g and g + 8 in columns t
and t + 4, of B rows t and t + 4 in column g (PTX ISA, "Matrix Fragments for mma.m16n8k8"). Of eight
keys of P a lane holds keys 2t and 2t + 1: these are columns t and t + 4 of A if rows 2t and 2t + 1
of V are rows t and t + 4 of B. From a row of V a lane reads four neighbouring columns at once, 4g
to 4g + 3: these are column g of four tiles, and columns of O are dealt to tiles in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any, Final

from flash.device.mma_products import Tiles, WarpCoordinates, apart, operand_readers
from flash.families.mma import MMA_KEYS, MMA_ROWS, MmaTiling
from flash.families.precision import PANEL_BYTES, TF32
from ptxgen.dsl import Fragment, KernelBuilder, TilePointer, Value, Var, marked
from ptxgen.dsl.matrices.lanes import LANE_COLUMNS, AccumulatorTiles
from ptxgen.dsl.swizzle import BLOCK_CHUNKS, CHUNK_BYTES, BlockReader, SwizzledTile
from ptxgen.records import dataclass
from ptxgen.types import f32, u32

_DROPPED: Final = 0x1FFF  # bits of an f32 beyond tf32
_HALF_ULP: Final = (_DROPPED + 1) // 2
_SIGNIFICANT: Final = 0xFFFF_FFFF - _DROPPED
# From this magnitude on, rounding to tf32 gives infinity.
_TOO_LARGE: Final = float.fromhex("0x1.ffep127")
_INFINITY: Final = float("inf")
# Masks for x where its high part became infinite: `_split` makes the high part x & mask. _TO_ONE
# clears the highest exponent bit: infinity becomes 1, so that only products with the low part are
# infinite; but a finite x that rounded to infinity loses what its low part does not hold.
# _TO_LARGEST clears the lowest exponent bit: such a finite x is truncated, and infinity becomes
# 2**127, which is right if the other factor is at most 2**11.
_TO_ONE: Final = _SIGNIFICANT & ~0x4000_0000
_TO_LARGEST: Final = _SIGNIFICANT & ~0x0080_0000
_READ: Final = CHUNK_BYTES // f32.nbytes  # columns of V that a lane reads, each for a tile of O
_FEW_TILES: Final = 2  # tiles of O at a time, where registers are few
_PANEL: Final = MMA_KEYS * _READ
_PANEL_STEPS: Final = _PANEL // TF32.depth
_BLOCKS: Final = _PANEL // (BLOCK_CHUNKS * _READ)  # blocks of a panel, see `BlockReader`

Reader = Callable[[int, int], TilePointer]  # see `BlockReader.stage`
Block = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Split:
    """The registers that a lane holds of an operand, as tf32; `low` is empty where one product is
    enough.
    """

    high: tuple[Value, ...]
    low: tuple[Value, ...]

    def part(self, *indices: int) -> Split:
        """The registers of the operand that have these indices, high and low parts."""
        return Split(*(tuple(of[i] for i in indices) if of else () for of in (self.high, self.low)))


class Tf32Outputs:
    """The products O += P V of f32 elements on tensor cores, as tf32."""

    @marked("tf32 products: operands of a lane")
    def __init__(
        self,
        k: KernelBuilder,
        t: MmaTiling,
        me: WarpCoordinates,
        V_tile: SwizzledTile,
        group: int,
        *,
        is_crowded: bool = False,
        keeps_nan: bool = False,
        joins: bool = False,
        block: Block | None = None,
    ) -> None:
        """`is_crowded`: sums leave few registers, so the columns of O are computed two tiles at a time.
        `keeps_nan`: a NaN in P must reach O, which only one product of tf32 has instructions for.
        `joins`: with one product, too, O is the sum of groups of steps in f32; three always need it.
        `block`: a context for the products of a panel of columns, among which the assembler reads no V for
        other panels.
        """
        self.k = k
        self.t = t
        self.me = me
        self._is_crowded = is_crowded
        self._block = block
        self._keeps_nan = keeps_nan
        self.is_split = t.operands.products > 1
        self._joins = joins or self.is_split
        self.group = group  # steps whose products the tensor core sums together
        self._v = BlockReader(V_tile, me.in_quad * 2, me.lane // 4)

    def weights(self, P: Fragment) -> Fragment:
        """The weights P unchanged: they are split where they are used, when registers are free."""
        return P

    def outputs(self, O: Fragment, P: Fragment, stage: Value | None, first: int = 0) -> None:
        """Compute O += P V for this warp's rows and the keys of a stage. `first` is the column of V that is
        the first of O, a multiple of 32.
        """
        t, value = self.t, self._v.stage(stage)
        columns = _FEW_TILES if self._is_crowded else _READ
        tiles = list(product(range(t.row_tiles), range(columns)))  # tiles of O, side by side
        of_outputs = AccumulatorTiles(O.row)
        for steps in self._groups(range(t.tile // t.operands.depth)):
            p = [[self._weights(P, m, j) for j in steps] for m in range(t.row_tiles)]
            parts = product(range(O.columns // (LANE_COLUMNS * _READ)), range(0, _READ, columns))
            for panel, part in parts:

                def rows(
                    j: int, block: int = (panel + first // _PANEL) * _BLOCKS, nth: int = part
                ) -> list[Split]:
                    """The B operands (V) of `mma` for each tile of columns in step j of the keys."""
                    even, second = (
                        self._operand(self._values(at.plus_bytes(nth * f32.nbytes), columns), _TO_LARGEST)
                        for at in _two_rows(value(block, MMA_KEYS * j))
                    )
                    return [_both(even.part(i), second.part(i)) for _, i in tiles]

                totals = [of_outputs[m, panel * _READ + part + i] for m, i in tiles]
                with self._apart(value):
                    self._add(totals, [p[m] for m, _ in tiles], steps, rows, joins=self._joins)

    def _apart(self, value: Reader) -> AbstractContextManager[object]:
        """A context for the products of some tiles of O."""
        if self._block is not None:
            return self._block()
        return apart(self.k, value(0, 0)) if self._is_crowded else nullcontext()

    def output_address(self) -> tuple[Value, Value]:
        """See `WarpProducts`: a lane holds eight neighbouring columns, which are two chunks."""
        return self.me.in_quad * 2, self.me.in_quad * 0

    def output_words(self, row: list[Var], first: int, columns: int) -> Iterator[tuple[int, list[Value]]]:
        """See `WarpProducts`."""
        for chunk in range(0, columns // _READ, MMA_KEYS):
            tile = first // MMA_KEYS + chunk * _READ // MMA_KEYS
            for half in range(2):
                numbers = [row[2 * (tile + i) + half] for i in range(_READ)]
                yield chunk + half, [number.as_(u32) for number in numbers]

    def _groups(self, steps: range) -> list[range]:
        """The steps in groups; the sum of one group stays in the tensor core."""
        return [steps[first : first + self.group] for first in range(0, len(steps), self.group)]

    def _load(self, at: TilePointer) -> tuple[Value, ...]:
        return self.k.ldmatrix(at, num="x4")

    def _values(self, at: TilePointer, columns: int) -> tuple[Value, ...]:
        loaded = self.k.load(at, columns)
        assert isinstance(loaded, tuple)
        return loaded

    def _weights(self, P: Fragment, m: int, j: int) -> Split:
        """The A operand for 16 rows and 8 keys. No weight is infinite, or so large that it would be
        rounded to infinity. The low part of a NaN is NaN, and so is the sum of the weights; the sum
        that rounds one product would make 0 of it.
        """
        top, bottom = P.row(2 * m), P.row(2 * m + 1)
        numbers = [row[2 * j + c] for c, row in product(range(2), (top, bottom))]
        if self._keeps_nan and not self.is_split:
            return Split(tuple(self._rounded(x) for x in numbers), ())
        high, low = [], []
        for x in numbers:
            up = x.as_(u32) + _HALF_ULP
            high.append(up & _SIGNIFICANT if self.is_split else up)
            low.append(x - high[-1].as_(f32) if self.is_split else x)
        return self._of(high, low)

    def _operand(self, x: Sequence[Value], if_infinite: int) -> Split:
        """Elements of Q, K or V as tf32; `if_infinite` is `_TO_ONE` or `_TO_LARGEST`."""
        if not self.is_split:
            return Split(tuple(self._rounded(of) for of in x), ())
        pairs = [self._split(of, if_infinite) for of in x]
        return self._of([high for high, _ in pairs], [low for _, low in pairs])

    def _of(self, high: list[Value], low: list[Value]) -> Split:
        bits = tuple(of.as_(u32) for of in low) if self.is_split else ()
        return Split(tuple(high), bits)

    @marked("tf32 products: split")
    def _split(self, x: Value, if_infinite: int) -> tuple[Value, Value]:
        """The high and low part of x. An infinite high part would make the low part of an infinite
        x NaN, so it is replaced by x & `if_infinite`: the low part is then infinite. The low part
        of a NaN is NaN; its high part may be any number.
        """
        k, bits, number = self.k, x.as_(u32), x.as_(f32)
        high = k.var(u32, (bits + _HALF_ULP) & _SIGNIFICANT)
        with k.only_if(k.abs(high.as_(f32)) == _INFINITY):
            k.and_(bits, if_infinite, into=high)
        return high, number - high.as_(f32)

    def _rounded(self, x: Value) -> Value:
        """x rounded to tf32, to a finite number if x is finite; the low 13 bits may have any value.
        A NaN becomes the one whose bits are all ones: others may be infinity without their low
        bits.
        """
        k, bits, number = self.k, x.as_(u32), x.as_(f32)
        rounded = k.var(u32, k.min(number, _INFINITY, NaN=True).as_(u32))
        with k.only_if(k.abs(number) < _TOO_LARGE):
            k.add(bits, _HALF_ULP, into=rounded)
        return rounded

    def _add(
        self,
        totals: Sequence[tuple[Var, ...]],
        a: Sequence[Sequence[Split]],
        steps: range,
        b: Callable[[int], list[Split]],
        *,
        joins: bool,
    ) -> None:
        """Emit totals += A B for some tiles, step by step side by side. `a` holds the A operands by tile
        and step; `b(step)` loads the B operand of each tile. With `joins`, the products begin at 0 and
        are added in f32.
        """
        if not joins:
            for i, step in enumerate(steps):
                self._multiply(totals, [of[i].high for of in a], [of.high for of in b(step)])
            return
        k, sums = self.k, [tuple([self.k.var(f32, 0.0) for _ in total]) for total in totals]
        high_of_b = []
        for i, step in enumerate(steps):
            of_b = b(step)
            high_of_b.append([of.high for of in of_b])
            if not self.is_split:
                continue
            self._multiply(sums, [of[i].low for of in a], high_of_b[i])
            self._multiply(sums, [of[i].high for of in a], [of.low for of in of_b])
        for i, high in enumerate(high_of_b):
            self._multiply(sums, [of[i].high for of in a], high)
        for total, more in zip(totals, sums, strict=True):
            for old, new in zip(total, more, strict=True):
                k.add(old, new, into=old)

    def _multiply(
        self,
        totals: Sequence[tuple[Var, ...]],
        a: Sequence[tuple[Value, ...]],
        b: Sequence[tuple[Value, ...]],
    ) -> None:
        """Emit `mma` instructions: totals += A B for some tiles, in one step of the depth."""
        for total, of_a, of_b in zip(totals, a, b, strict=True):
            self.k.mma_f32_tf32(of_a, of_b, total, shape="m16n8k8", into=total)


class Tf32Products(Tf32Outputs):
    """The products S = Q Kᵀ and O += P V of f32 elements; see `flash.device.mma_products.WarpProducts`."""

    def __init__(
        self, k: KernelBuilder, t: MmaTiling, me: WarpCoordinates, tiles: Tiles, **schedule: Any
    ) -> None:
        self._q, self._k = operand_readers(t, me, tiles)
        self._panel_bytes = [of.panels[0].row_bytes * of.rows for of in tiles[:2]]
        super().__init__(k, t, me, tiles[2], t.group, **schedule)

    def scores(self, S: Fragment, stage: Value | None) -> None:
        """Compute the scores S = Q Kᵀ for this warp's rows and the keys of a pipeline stage."""
        k, steps = self.k, self.t.score_columns // self.t.operands.depth
        S.fill(0.0)
        panels = steps // _PANEL_STEPS
        first = panels * _PANEL_STEPS if panels > 1 else 0
        if first:
            # One group in each iteration: unrolled, the assembler would load many groups' operands
            # at once.
            in_panel = _PANEL_STEPS // self.group
            with k.loop(0, panels * in_panel) as n:
                panel, part = n // in_panel, (n % in_panel).as_(u32)
                columns = part * (self.group * BLOCK_CHUNKS * CHUNK_BYTES)
                query, key = (
                    _shifted(reader.stage(self._panel(panel, of, begin)), columns)
                    for reader, of, begin in ((self._q, 0, None), (self._k, 1, stage))
                )
                self._add_scores(S, query, key, range(self.group))
        query, key = self._q.stage(), self._k.stage(stage)
        for group in self._groups(range(first, steps)):
            self._add_scores(S, query, key, group)

    def _panel(self, n: Value, of: int, stage: Value | None) -> Value:
        """The byte at which panel n begins in the tile of Q (`of` = 0) or, in this stage, of K
        (`of` = 1).
        """
        offset = (n * self._panel_bytes[of]).as_(u32)
        return offset if stage is None else offset + stage

    def _add_scores(self, S: Fragment, query: Reader, key: Reader, steps: range) -> None:
        """Compute S += Q Kᵀ for some steps of head_dim."""
        t = self.t
        q = [
            [self._operand(self._load(query(d, MMA_ROWS * m)), _TO_ONE) for d in steps]
            for m in range(t.row_tiles)
        ]
        tiles = list(product(range(t.row_tiles), range(2)))  # tiles of S, side by side
        of_scores = AccumulatorTiles(S.row)

        for n in range(0, t.tile // MMA_KEYS, 2):

            def keys(d: int, n: int = n) -> list[Split]:
                """The B operands (K) of `mma` for each tile of keys in step d of head_dim."""
                of = self._operand(self._load(key(d, MMA_KEYS * n)), _TO_ONE)
                return [of.part(2 * i, 2 * i + 1) for _, i in tiles]

            totals = [of_scores[m, n + i] for m, i in tiles]
            self._add(totals, [q[m] for m, _ in tiles], steps, keys, joins=self.is_split)


def _shifted(reader: Reader, columns: Value) -> Reader:
    """`reader` for columns `columns` bytes further on in the panel; `columns` and the offsets of
    the blocks that are read have no bit in common.
    """

    def block(column_block: int, row: int) -> TilePointer:
        at = reader(column_block, row)
        return at.moved(at.value ^ columns)

    return block


def _two_rows(at: TilePointer) -> tuple[TilePointer, TilePointer]:
    """The address of a chunk of a whole panel in an even row, and of the same chunk in the next
    row. The latter is computed where it is used, which takes one register less than keeping both.
    """
    return at, at.moved(at.value ^ CHUNK_BYTES).plus_bytes(PANEL_BYTES)


def _both(first: Split, second: Split) -> Split:
    """The registers of two operands of `mma`, one after another."""
    return Split(first.high + second.high, first.low + second.low)
