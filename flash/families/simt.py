"""How the f32 kernel's work is dealt to threads: the tiles of a CTA and the micro-tile of a thread.

A CTA takes `block_q` query rows and walks over K and V in tiles of `tile` keys. Its threads form
row groups of `lanes` lanes; lane `x` of a row group is split number `x // key_lanes` of key lane
`x % key_lanes`.

* scores: a thread holds `rows` x `keys` of them: rows `group + groups * i`, keys `key_lane +
  key_lanes * j`. The `splits` threads that share a key lane each sum over a part of head_dim, and
  then add their sums.
* outputs: a thread holds `rows` x `4 * chunks` of them: the same rows, and the 16-byte chunks `x +
  lanes * c` of head_dim_v.

Rows and keys are dealt like cards, not in blocks, so that the eight lanes of a quarter-warp, which
a 16-byte shared load serves at once, read eight different groups of banks or the same address.

The lanes of two row groups alternate. So every load finds the same address in lanes n and n ^ 1
(K and V) or in lanes n and n ^ 2 (Q and P), and takes two requests instead of four (G. Smith of
NVIDIA, on compute capability 7.x, at forums.developer.nvidia.com/t/77228; CUTLASS arranges the
lanes of its f32 kernels so on all GPUs).
"""

from __future__ import annotations

from itertools import product
from typing import ClassVar, Final

from flash.families.any_target import AnyTarget, of_shared
from flash.families.precision import IEEE
from flash.families.request import TileRequest
from flash.operands.dtypes import F32
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE, Target

CHUNK: Final = 4  # f32 elements in the widest load, 16 bytes
F32_BYTES: Final = 4
TILES: Final = (16, 32, 64, 128)
BLOCKS_Q: Final = (16, 32, 64, 128)
BANK_GROUPS: Final = 8  # 32 banks of 4 bytes, taken 16 bytes at a time
# The default tile and block_q, by the target's shared memory per block (at least the key) and by
# head_dim or the columns of V that a CTA takes, whichever is more (at most the key). Chosen by `Tiling.cost`
# among the shapes that let eight warps, or as many as fit, live on one multiprocessor; `tools/bench.py`
# measures them.
KIB: Final = 1024
DEFAULT_TILES: Final[dict[int, dict[int, tuple[int, int]]]] = {
    227 * KIB: {32: (32, 128), 64: (64, 128), 96: (32, 128), 192: (32, 64), 576: (16, 64)},
    163 * KIB: {64: (32, 128), 128: (32, 64), 448: (16, 64), 576: (16, 32)},
    99 * KIB: {64: (32, 64), 96: (32, 128), 160: (32, 64), 192: (16, 64), 440: (16, 32), 576: (16, 16)},
    64 * KIB: {96: (32, 64), 128: (32, 32), 192: (16, 32), 576: (16, 16)},
    48 * KIB: {64: (32, 64), 112: (32, 32), 160: (16, 32), 576: (16, 16)},
}
# The largest default tile where rows or mask columns are looked up and a CTA has at least _ROWS_LOOKED_UP
# rows: larger tiles leave no registers for what is looked up.
_TILE_LOOKED_UP: Final = 32
_ROWS_LOOKED_UP: Final = 64

# Registers besides the fragments (addresses, loop state, row statistics): what the assembler was
# seen to add.
_OTHER_REGISTERS: Final = 44
_MOST_REGISTERS: Final = 252


def padded(value: int, unit: int) -> int:
    """`value` rounded up to a multiple of `unit`."""
    return -(-value // unit) * unit


@dataclass(frozen=True, slots=True)
class ValueSlices:
    """The columns of V and O in `count` slices of `width` columns, each of them for a CTA of its
    own.

    The last slice ends with the last column, so that all slices are equally wide; its first
    `shared` columns are also in the slice before, whose CTA writes them.
    """

    count: int
    width: int
    shared: int

    @classmethod
    def of(cls, columns: int, count: int, unit: int) -> ValueSlices:
        """`columns` columns in `count` equal slices, a multiple of `unit` wide if there are
        several.
        """
        width = columns if count == 1 else padded(-(-columns // count), unit)
        return cls(count, width, count * width - columns)

    @property
    def last(self) -> int:
        """The first column of the last slice."""
        return (self.count - 1) * self.width - self.shared


def _conflict_free(chunks: int, neighbours: int) -> int:
    """The least number of 16-byte chunks in a row, `chunks` or more, with which eight lanes access
    eight different groups of banks.

    The lanes take `neighbours` adjacent chunks in each of 8 / neighbours adjacent rows: row r,
    chunk c lies in group (r * pitch + c) mod 8, which takes all values when the pitch is an odd
    multiple of `neighbours`.
    """
    if neighbours >= BANK_GROUPS:
        return chunks
    multiple = -(-chunks // neighbours)
    return neighbours * (multiple + 1 - multiple % 2)


def _distances(first: int, lanes: int) -> list[int]:
    """The butterfly distances that join `lanes` lanes, which are `first` apart."""
    return [first << n for n in range(lanes.bit_length() - 1)]


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiles and micro-tiles of one kernel; all sizes in elements unless they say bytes."""

    head_dim: int
    head_dim_v: int
    tile: int
    block_q: int
    rows: int  # query rows of a thread
    keys: int  # keys of a thread's scores
    splits: int  # threads that share one score micro-tile, each over a part of head_dim
    value_slices: int = 1  # slices of the columns of V and O

    stages: ClassVar[int] = 1  # tiles of K, and of V, that shared memory holds
    precision: ClassVar[str | None] = IEEE  # how the kernel multiplies f32 (`flash/families/precision.py`)
    products: ClassVar[int] = 1  # instructions for one product of matrices
    gathers: ClassVar[bool] = False  # whether threads copy rows from their pages in place of tensor copies
    by_rows: ClassVar[bool] = False  # whether a variant is chosen so that rows do not depend on each other
    consumers: ClassVar[int] = 1  # groups of warps that compute alternately
    moved_bytes: ClassVar[int | None] = None  # see `WgmmaTiling`

    @property
    def slices(self) -> ValueSlices:
        """The slices in which the columns of V and O are divided among CTAs."""
        return ValueSlices.of(self.head_dim_v, self.value_slices, CHUNK)

    @property
    def key_lanes(self) -> int:
        """The number of lanes over which the keys of a tile are dealt."""
        return self.tile // self.keys

    @property
    def lanes(self) -> int:
        """The number of threads of a row group: key lanes times splits of a score."""
        return self.key_lanes * self.splits

    @property
    def key_distances(self) -> list[int]:
        """The lane distances of the butterfly shuffles that join the lanes which share a row."""
        return _distances(self.interleave, self.key_lanes)

    @property
    def split_distances(self) -> list[int]:
        """The lane distances of the butterfly shuffles that add the parts of a score."""
        return _distances(self.interleave * self.key_lanes, self.splits)

    @property
    def row_arithmetic(self) -> tuple[object, ...]:
        """The tile sizes that, with the problem and the target, decide the bits of a row of O."""
        return Tiling, self.tile, self.keys, self.splits

    @property
    def row_step(self) -> int:
        """The distance in rows between a thread's neighbouring rows of S."""
        return self.groups

    @property
    def groups(self) -> int:
        """The number of row groups of a CTA: groups of threads that share rows of S."""
        return self.block_q // self.rows

    @property
    def score_rows(self) -> range:
        """The rows of a thread's scores, counted from its first row."""
        return range(0, self.block_q, self.groups)

    @property
    def score_keys(self) -> range:
        """The keys of a thread's scores, counted from its first key."""
        return range(0, self.tile, self.key_lanes)

    @property
    def interleave(self) -> int:
        """The number of row groups whose lanes alternate in a warp: two, where two fit into it."""
        return 2 if self.lanes < WARP_SIZE else 1

    @property
    def threads(self) -> int:
        """The number of threads of a CTA."""
        return self.groups * self.lanes

    @property
    def computing_threads(self) -> int:
        """The number of threads of a CTA that run the main loop over tiles: all."""
        return self.threads

    @property
    def dim_chunks(self) -> int:
        """16-byte chunks of head_dim that one split sums over; the last ones may be padding."""
        return padded(self.head_dim, CHUNK * self.splits) // (CHUNK * self.splits)

    @property
    def value_chunks(self) -> int:
        """The number of 16-byte chunks in a row of V."""
        return padded(self.slices.width, CHUNK) // CHUNK

    @property
    def chunks(self) -> int:
        """The number of 16-byte chunks of a row of O that one thread holds."""
        return -(-self.value_chunks // self.lanes)

    @property
    def score_columns(self) -> int:
        """The number of columns of head_dim that S = Q Kᵀ sums over, padding included."""
        return self.dim_chunks * self.splits * CHUNK

    @property
    def output_columns(self) -> int:
        """The number of columns of head_dim_v that a CTA computes, padding included."""
        return self.chunks * self.lanes * CHUNK

    @property
    def qk_pitch(self) -> int:
        """Elements between rows of the Q and K tiles.

        Eight lanes of a row group read one chunk in each of 8 rows of K; or, if several splits are
        among these lanes, adjacent chunks, one for each split, in fewer rows.
        """
        splits = min(self.splits, max(BANK_GROUPS // self.key_lanes, 1))
        return CHUNK * _conflict_free(self.dim_chunks * self.splits, splits)

    @property
    def v_pitch(self) -> int:
        """The distance between rows of the V tile in shared memory, in elements."""
        return self.value_chunks * CHUNK

    @property
    def p_pitch(self) -> int:
        """Elements between rows of the P tile, each of which holds `interleave` rows of P, chunk by
        chunk in turn: so eight lanes write adjacent chunks, of one row of the tile or of two.
        """
        written = min(self.interleave * self.key_lanes, BANK_GROUPS)
        if self.lanes < BANK_GROUPS:
            written = BANK_GROUPS // 2  # the other four lanes read and write the next row
        return CHUNK * _conflict_free(self.interleave * self.tile // CHUNK, written)

    @property
    def shared_bytes(self) -> int:
        """The bytes of dynamic shared memory of a CTA: the Q, K, V and P tiles."""
        elements = (
            (self.block_q + self.tile) * self.qk_pitch
            + self.tile * self.v_pitch
            + self.block_q // self.interleave * self.p_pitch
        )
        return elements * F32_BYTES

    @property
    def registers(self) -> int:
        """The estimated number of registers of a thread: the fragments of S and O, the operands in flight,
        and the rest.
        """
        outputs = self.rows * self.chunks * CHUNK
        scores = self.rows * self.keys
        in_flight = CHUNK * max(self.rows + self.keys, self.rows + self.chunks)
        statistics = 2 * self.rows
        return outputs + scores + in_flight + statistics + _OTHER_REGISTERS

    @property
    def cost(self) -> float:
        """Issue slots of one thread for each score the CTA needs from it: a rule of thumb to rank
        tilings.

        A slot is one f32 fma. A 16-byte shared load, a shuffle and an `ex2` each occupy their
        slower pipe for several slots (CUDA C++ Best Practices Guide, "Throughput of Native
        Arithmetic Instructions": 128 fma, 32 shuffles, 16 ex2 for each clock and SM on sm_86 and
        later); half of these is taken to hide behind the fma of other warps.
        """
        scores = self.rows * self.keys
        outputs = self.rows * self.chunks * CHUNK
        fma = scores * self.dim_chunks * CHUNK + outputs * self.tile
        loads = (
            (self.rows + self.keys) * self.dim_chunks
            + self.rows * self.tile / CHUNK
            + self.tile * self.chunks
        )
        shuffles = scores * (self.splits.bit_length() - 1) + self.rows * (self.key_lanes.bit_length() - 1)
        arithmetic = 4 * scores + outputs
        slots = fma + arithmetic + 4 * loads + 2 * shuffles + 4 * scores
        return slots * self.splits / scores

    def fits(self, target: Target) -> bool:
        """Whether a CTA of this shape can run on the target, without spilling registers."""
        return (
            32 <= self.threads <= 256
            and self.threads % 32 == 0
            and self.lanes <= 32
            and self.registers <= min(_MOST_REGISTERS, target.registers_per_block // self.threads)
        )


class SimtFamily(AnyTarget[Tiling]):
    """The family of kernels of f32 by fused multiply-adds, without tensor cores."""

    name = "simt"
    products = "fma.rn.f32"
    multiplies = f"fma multiplies f32 with precision={IEEE!r} here"
    tiling = Tiling
    emitter = "flash.kernels.simt_forward:attention_forward"
    dtypes = (F32,)
    tile_sizes = TILES
    blocks_q = BLOCKS_Q
    rate = 19.5e12
    remedy = "no tile fits; use a target with more shared memory, or backend='cpu'"

    def computes(self, request: TileRequest) -> bool:
        """See `Family`."""
        return request.operands is None

    def default_sizes(self, request: TileRequest, target: Target) -> tuple[int, int]:
        """See `AnyTarget`."""
        return of_shared(DEFAULT_TILES, request.columns, target)

    def largest_default(self, request: TileRequest, block_q: int, alignment: int) -> int | None:  # noqa: ARG002
        """See `AnyTarget`."""
        return _TILE_LOOKED_UP if request.looks_up and block_q >= _ROWS_LOOKED_UP else None

    def shapes(self, request: TileRequest, tile: int, block_q: int, target: Target) -> list[Tiling]:
        """See `AnyTarget`; the cheapest first, ties go to more threads."""
        shapes = product((8, 4), (8, 4), (1, 2, 4, 8))
        tilings = [
            Tiling(*request.dims, tile, block_q, rows, keys, splits, request.value_slices)
            for rows, keys, splits in shapes
            if rows <= block_q and keys <= tile
        ]
        return sorted((t for t in tilings if t.fits(target)), key=lambda t: (t.cost, -t.threads))

    def least(self, request: TileRequest, tile: int, block_q: int) -> Tiling:
        """See `AnyTarget`."""
        return Tiling(*request.dims, tile, block_q, 4, 4, 1, request.value_slices)


SIMT: Final = SimtFamily()
