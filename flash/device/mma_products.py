"""The two matrix products of a CTA on tensor cores: S = Q Kᵀ and O += P V, by `m16n8k16` of f16 or
bf16.

Lane `l` has index `t = l % 4` in its group `g = l / 4`. Of each 16 x 8 tile of S or O it holds rows
g and g + 8, columns 2t and 2t + 1 (PTX ISA, "Matrix Fragments for mma.m16n8k16"). Its elements of
two neighbouring tiles of S are those of the A operand of the next product, so that P never leaves
the registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from itertools import chain, product
from typing import Any, Final, Protocol

from flash.device.rounded_pair import rounded_pair
from flash.families.mma import FIRST_WITH_DEEP_MMA, MMA_KEYS, MMA_ROWS, MmaTiling
from flash.families.precision import HALF
from ptxgen.dsl import Fragment, KernelBuilder, TilePointer, Value, Var
from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP, LANE_COLUMNS, LANE_ROWS, AccumulatorTiles
from ptxgen.dsl.source_regions import marked
from ptxgen.dsl.swizzle import BlockReader, SwizzledTile
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE
from ptxgen.types import PAIRS, ScalarType, b32, bf16, f32, u32

_BEYOND_SHARED: Final = 1 << 24  # bytes


@dataclass(frozen=True)
class WarpCoordinates:
    """A thread's warp in its CTA and lane in its warp, both u32."""

    warp: Value
    lane: Value

    @classmethod
    def of(cls, k: KernelBuilder) -> WarpCoordinates:
        """The index of this thread's warp in its CTA, and of its lane in the warp."""
        thread = k.thread_id()
        return cls(thread // WARP_SIZE, thread % WARP_SIZE)

    def warp_row(self, t: MmaTiling) -> Value:
        """The first row of the warp, counted in the CTA."""
        return self.warp * (MMA_ROWS * t.row_tiles)

    def first_row(self, t: MmaTiling) -> Value:
        """The first row of this lane's fragments, counted in the CTA."""
        return self.warp_row(t) + self.lane // 4

    @property
    def in_quad(self) -> Value:
        """The lane's index among the four that share rows, its quad; its first column is twice
        that.
        """
        return self.lane % 4


def apart(k: KernelBuilder, at: TilePointer) -> AbstractContextManager[object]:
    """A context that keeps the assembler from moving instructions out of it, where their operands would take
    registers when few are left. It emits a branch that all threads take: its condition is that `at`, an
    address in shared memory, is less than a bound that no such address reaches.
    """
    return k.when(at.value < _BEYOND_SHARED, uniform=True)


def fragment_rows(t: MmaTiling) -> list[int]:
    """The rows of a lane's fragment, counted from its first row."""
    return [FRAGMENT_STEP * n for n in range(LANE_ROWS * t.row_tiles)]


def fragment_columns(columns: int) -> list[int]:
    """The columns of a lane's fragment, counted from its first column."""
    return [MMA_KEYS * tile + column for tile in range(columns // MMA_KEYS) for column in range(2)]


Tiles = tuple[SwizzledTile, SwizzledTile, SwizzledTile]  # the tiles of Q, K and V
Weights = list[list[tuple[Value, ...]]]
_DEPTH: Final = HALF.depth
_A_REGISTERS: Final = 4  # of a lane, for operand A
STEP_PAIRS: Final = 2  # of neighbouring columns of a lane's fragment of P, in a step of _DEPTH keys
STEP_COLUMNS: Final = STEP_PAIRS * LANE_COLUMNS


class WarpProducts(Protocol):
    """The two matrix products of a warp, from tiles of Q, K and V in shared memory."""

    def scores(self, S: Fragment, stage: Value | None) -> None:
        """Compute the scores S = Q Kᵀ for this warp's rows and the keys of a pipeline stage."""

    def weights(self, P: Fragment) -> Any:
        """The softmax weights P of a tile, in the form that `outputs` takes as operand."""

    def outputs(self, O: Fragment, P: Any, stage: Value | None) -> None:
        """Compute O += P V for this warp's rows and the keys of a pipeline stage."""

    def output_address(self) -> tuple[Value, Value]:
        """The address at which a lane's elements of a row of O begin: chunk of 16 bytes, and byte
        in the chunk; both u32.
        """

    def output_words(self, row: list[Var], first: int, columns: int) -> Iterator[tuple[int, list[Value]]]:
        """A lane's elements of a row of O in columns first … first + columns - 1, as pieces of (chunk, words
        of memory). The chunk is counted from column `first`; xor with that of `output_address` gives the
        chunk of the piece.
        """


def operand_readers(t: MmaTiling, me: WarpCoordinates, tiles: Tiles) -> tuple[BlockReader, BlockReader]:
    """The readers of Q as operand A and of K as operand B.

    Each of the four 8 x 8 matrices of an `ldmatrix.x4` takes its rows from eight lanes. For Q the
    matrices are upper left, lower left, upper right, lower right; for K, whose rows are the columns
    of B, upper left, upper right, lower left, lower right.
    """
    of_eight, octet = me.lane % 8, me.lane // 8
    lower, right = octet % 2, octet // 2
    Q_tile, K_tile, _ = tiles
    return (
        BlockReader(Q_tile, me.warp_row(t) + (of_eight + lower * 8), right),
        BlockReader(K_tile, of_eight + right * 8, lower),
    )


def query_reader(t: MmaTiling, me: WarpCoordinates, Q_tile: SwizzledTile) -> BlockReader:
    """The reader of Q as operand A: of each 16 x 16 block, lanes r and r + 16 have the left and the
    right half of row r.
    """
    return operand_readers(t, me, (Q_tile, Q_tile, Q_tile))[0]


class MmaOutputs:
    """O += P V of 16-bit elements `dtype`, which the tensor core multiplies exactly and sums in f32; O
    becomes `output` in the end, by default `dtype`.
    """

    def __init__(
        self,
        k: KernelBuilder,
        t: MmaTiling,
        me: WarpCoordinates,
        V_tile: SwizzledTile,
        dtype: ScalarType,
        output: ScalarType | None = None,
    ) -> None:
        self.k = k
        self.t = t
        self.pair = PAIRS[dtype]
        self.output_pair = PAIRS[output or dtype]
        self.multiply = k.mma_f32_bf16 if dtype is bf16 else k.mma_f32_f16
        self.me = me
        # V is read transposed: the order of its 8 x 8 matrices is that of Q.
        self._v = BlockReader(V_tile, me.lane % 16, me.lane // 16)
        self._first_key = 0

    def weights(self, P: Fragment) -> Weights:
        """P, rounded to 16 bits, as the A operands of O += P V: by step of 16 keys, then by 16
        rows.
        """
        t = self.t
        return [
            [self._weights(P, m, j) for m in range(t.row_tiles)] for j in range(P.columns // STEP_COLUMNS)
        ]

    def operands(self, words: Fragment) -> Weights:
        """The A operands of O += P V, as `weights` gives them, in words of two 16-bit elements each: a row of
        `words` for each step of 16 keys has the left pairs of all rows of P, and then the right pairs.
        """
        rows = LANE_ROWS * self.t.row_tiles
        return [
            [
                tuple(
                    step[pair * rows + LANE_ROWS * m + i]
                    for pair, i in product(range(STEP_PAIRS), range(LANE_ROWS))
                )
                for m in range(self.t.row_tiles)
            ]
            for step in words
        ]

    def pack(self, P: Fragment, words: Fragment) -> None:
        """Round the weights P to 16 bits, into the words that `operands` takes."""
        for of_step, rounded in zip(self.operands(words), self.weights(P), strict=True):
            for word, value in zip(chain(*of_step), chain(*rounded), strict=True):
                assert isinstance(word, Var)
                word.set(value.as_(u32))

    @marked("mma products: outputs")
    def outputs(
        self,
        O: Fragment,
        P: Iterable[Sequence[tuple[Value, ...]]],
        stage: Value | None,
        first: int = 0,
        ahead: Sequence[tuple[Value, ...]] = (),
    ) -> None:
        """Compute O += P V for this warp's rows and the keys of a stage. `first` is the column of V that is
        the first of O, a multiple of 16; `ahead` are the operands of the first 16 keys and the first columns
        that `read_ahead` has read.
        """
        t, value, tiles = self.t, self._v.stage(stage), AccumulatorTiles(O.row)
        for j, p in enumerate(P):
            for n in range(0, O.columns // LANE_COLUMNS, 2):
                block = n // 2
                if j == 0 and block < len(ahead):
                    b = ahead[block]
                else:
                    b = self._load(value(block + first // _DEPTH, self._first_key + _DEPTH * j), trans=True)
                left, right = b[:2], b[2:]
                for m in range(t.row_tiles):
                    self._multiply(tiles[m, n], p[m], left)
                    self._multiply(tiles[m, n + 1], p[m], right)

    def read_ahead(self, stage: Value | None, most: int) -> list[tuple[Value, ...]]:
        """The operands that `outputs` takes for the first 16 keys and the first blocks of 16 columns, at
        most `most`.
        """
        value, blocks = self._v.stage(stage), min(most, self.t.output_columns // _DEPTH)
        return [self._load(value(block, self._first_key), trans=True) for block in range(blocks)]

    @marked("mma products: matrices")
    def _load(self, at: TilePointer, *, trans: bool = False) -> tuple[Value, ...]:
        return self.k.ldmatrix(at, num="x4", trans=trans)

    def _weights(self, P: Fragment, m: int, j: int) -> tuple[Value, ...]:
        """The weights P of 16 rows and 16 keys, rounded to 16 bits, as operand A of `mma`."""
        top, bottom = P.row(LANE_ROWS * m), P.row(LANE_ROWS * m + 1)
        first = STEP_COLUMNS * j
        return tuple(
            self.packed(row[c], row[c + 1])
            for c, row in product((first, first + LANE_COLUMNS), (top, bottom))
        )

    def output_address(self) -> tuple[Value, Value]:
        """See `WarpProducts`."""
        return self.me.lane * 0, self.me.in_quad * u32.nbytes

    def output_words(self, row: list[Var], first: int, columns: int) -> Iterator[tuple[int, list[Value]]]:
        """See `WarpProducts`."""
        for chunk in range(columns // MMA_KEYS):
            column = (first // MMA_KEYS + chunk) * LANE_COLUMNS
            pair = rounded_pair(self.k, row[column], row[column + 1], self.output_pair)
            yield chunk, [pair.as_(u32)]

    def packed(self, low: Value, high: Value) -> Value:
        """Two f32 values rounded to 16 bits each, in one 32-bit register."""
        return rounded_pair(self.k, low, high, self.pair)

    def _multiply(
        self,
        tile: tuple[Var, ...],
        a: tuple[Value, ...],
        b: tuple[Value, ...],
        c: tuple[Value, ...] | None = None,
    ) -> None:
        """Emit tile = A B + C for a 16 x 8 tile; C is the tile if `c` is None. Targets without `m16n8k16`
        multiply the left half of A by the upper half of B, and then the other two: these are the operands of
        two `m16n8k8` (PTX ISA, "Matrix Fragments for mma.m16n8k8").
        """
        if self.k.target.sm >= FIRST_WITH_DEEP_MMA:
            self.multiply(a, b, c or tile, shape="m16n8k16", into=tile)
            return
        self.multiply(a[:2], b[:1], c or tile, shape="m16n8k8", into=tile)
        self.multiply(a[2:], b[1:], tile, shape="m16n8k8", into=tile)


class MmaProducts(MmaOutputs):
    """The products S = Q Kᵀ and O += P V of 16-bit elements; arguments as of `MmaOutputs`."""

    def __init__(
        self,
        k: KernelBuilder,
        t: MmaTiling,
        me: WarpCoordinates,
        tiles: Tiles,
        dtype: ScalarType,
        output: ScalarType | None = None,
    ) -> None:
        self._q, self._k = operand_readers(t, me, tiles)
        super().__init__(k, t, me, tiles[2], dtype, output)
        self._registers: list[list[tuple[Value, ...]]] | None = None

    def below(self, keys: int) -> MmaProducts:
        """The products with keys of a stage that lie `keys` rows further down: a multiple of 8."""
        products = copy(self)
        products._first_key = self._first_key + keys
        return products

    def keep(self, where: Value | None = None) -> None:
        """Read this warp's rows of Q into registers, from which `scores` then takes them. With `where`,
        uniform in the CTA, they are only read if it holds.
        """
        t, query = self.t, self._q.stage()
        addresses = [
            [query(d, MMA_ROWS * m) for m in range(t.row_tiles)] for d in range(t.score_columns // _DEPTH)
        ]
        if where is None:
            self._registers = [[self._load(at) for at in row] for row in addresses]
            return
        k = self.k
        registers = [[[k.var(b32, 0) for _ in range(_A_REGISTERS)] for _ in row] for row in addresses]
        with k.when(where, uniform=True):
            for at, into in zip(chain(*addresses), chain(*registers), strict=True):
                k.ldmatrix(at, num="x4", into=into)
        self._registers = [[tuple(operand) for operand in row] for row in registers]

    def scores(self, S: Fragment, stage: Value | None) -> None:
        """Compute the scores S = Q Kᵀ for this warp's rows and the keys of a pipeline stage."""
        t, query, key = self.t, self._q.stage(), self._k.stage(stage)
        tiles, zeros = AccumulatorTiles(S.row), (self.k.mov(0.0, type=f32),) * 4
        for d in range(t.score_columns // _DEPTH):
            begin = None if d else zeros
            q = self._rows(query, d)
            for n in range(0, t.tile // MMA_KEYS, 2):
                b = self._load(key(d, self._first_key + MMA_KEYS * n))
                left, right = b[:2], b[2:]
                for m in range(t.row_tiles):
                    self._multiply(tiles[m, n], q[m], left, begin)
                    self._multiply(tiles[m, n + 1], q[m], right, begin)

    def _rows(self, query: Callable[[int, int], TilePointer], d: int) -> list[tuple[Value, ...]]:
        """The A operands (Q) of this warp's rows in step d of head_dim."""
        if self._registers is not None:
            return self._registers[d]
        return [self._load(query(d, MMA_ROWS * m)) for m in range(self.t.row_tiles)]
