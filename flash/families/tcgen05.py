"""Kernels of f16 and bf16 with the matrix instructions of Blackwell (`tcgen05`), whose sums are in tensor
memory.

A CTA takes `block_q` query rows, one or two row tiles of 128, and walks over K and V in tiles of `tile` keys,
which one thread has copied to shared memory by the tensor memory accelerator (TMA). One thread starts all
products. Of each row tile, S has `tile` columns of tensor memory, of which P takes the last half, and O has
its own. A warpgroup computes the weights of a row tile, one row in each thread, and another one rescales O.
Of the 512 columns, two row tiles take all with up to 192 columns of V (and 64 keys), one with 256. Of wider
values two CTAs compute half of the columns each, and both all scores.

| what is asked | reason against the family |
|---|---|
| a target other than sm_100a, sm_103a and their families | these alone have been assembled for |
| head_dim_v above 256, but no multiple of 64 | two CTAs have half of its columns each |
| what `flash/families/wgmma.py` lists of tensor maps and of a cache of fp8 | |
| a block_q other than 128 and 256 | a product has 128 rows |
| a mask and a bias, block_q=256 and a tile of more than 16 keys | registers lack for so many scores |
| a tile, or stages, too large for shared memory, registers or tensor memory | |

A kernel of `mma.sync` computes such problems.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from flash.families.family import Campaign, Family
from flash.families.request import TileRequest
from flash.families.wgmma import LEAST_STAGES, MAP_ALIGN, WARPGROUP, WgmmaTiling, width_of
from flash.operands.dtypes import BF16, F16, DType
from ptxgen.rates import EXP2_LANES
from ptxgen.records import dataclass
from ptxgen.target import TENSOR_ALLOCATIONS, TENSOR_COLUMNS, Target

TCGEN05_TARGET: Final = "sm_100f"  # the family of targets
TCGEN05_ROWS: Final = 128  # of a product
TCGEN05_BLOCKS_Q: Final = (128, 256)
TCGEN05_TILES: Final = (128, 96, 64, 32, 16)
WIDEST: Final = 256  # columns of Q and K, and of V
# The fewest keys of a tile with which "auto" is two row tiles, unless fewer are asked for: with fewer keys
# products read Q so often that shared memory takes longer than one row tile waits.
_LEAST_OF_TWO: Final = 64
# Registers of a thread that computes weights, of one that rescales O, and of one that copies or starts
# products, by row tiles: with two of them all 65536 registers, as flash-attn-4 deals them. Threads of the
# last kind need more (`_REGISTERS_TO_WORK`) for rows of Q of more than `_FEW_STEPS` columns, whose
# descriptors the thread that starts products has in registers, to gather rows, for slices of V, and for CTAs
# that take several blocks of queries.
_REGISTERS: Final = {1: (208, 112, 64), 2: (184, 96, 48)}
_REGISTERS_TO_WORK: Final = {1: (208, 112, 96), 2: (176, 96, 64)}
_FEW_STEPS: Final = 128
# Above `WIDEST` head_dim_v is a multiple of this: each of two CTAs has boxes of 32 columns or more.
_HALVED: Final = 64
_MOST_STAGES: Final = 4
# One of this many pairs of exponentials is a polynomial, where the special functions have 16 lanes.
_BY_POLYNOMIAL: Final = 8
# Registers of a thread besides the scores of its row, the least with which the assembler was seen to spill
# nothing.
_OTHER_REGISTERS: Final = 40
# The largest tile with a mask or a bias: so much of these is in flight that larger tiles were seen to spill.
_TILE_WITH_PLANES: Final = 32
# The number of arrays with an element for each score (a mask and a bias) from which on "auto" has one row
# tile: kernels with two were seen to spill.
_PLANES_OF_ONE: Final = 2
_TILE_OF_TWO: Final = (
    16  # the largest tile of two row tiles with so many: with 32 keys they were seen to spill
)
_WORD: Final = 4  # bytes of a factor
_STEP_BYTES: Final = 1024
# Operations of f16, and bytes of memory, of a B200 in a second (flash-attn-4, arXiv 2603.05451; NVIDIA DGX
# B200 datasheet).
B200_OPERATIONS: Final = 2250e12
_BANDWIDTH: Final = 8e12


@dataclass(frozen=True, slots=True)
class Tcgen05Tiling(WgmmaTiling):
    """Tiles and roles of one kernel; see `WgmmaTiling`. `row_tiles` of 128 rows take turns on the tensor
    cores: while weights of one are computed, products of the other are under way.
    """

    _regions: ClassVar = 3  # of shared memory besides the tile of Q, each of which begins at a whole KiB

    @property
    def row_tiles(self) -> int:
        """The number of row tiles of a CTA, each with a warpgroup that computes its weights."""
        return self.block_q // TCGEN05_ROWS

    @property
    def consumers(self) -> int:
        """The number of warpgroups of a CTA that compute softmax weights."""
        return self.row_tiles

    @property
    def threads(self) -> int:
        """Threads of a CTA: besides those that compute weights a warpgroup that rescales O, and one whose
        warps load and start products.
        """
        return (self.row_tiles + 2) * WARPGROUP

    @property
    def row_step(self) -> int:
        """The distance in rows between a thread's rows of S: 1, since it has one row."""
        return 1

    @property
    def ping_pong(self) -> bool:
        """Whether consumers alternate (ping-pong): not here, one thread starts all products."""
        return False

    @property
    def checks_sums(self) -> bool:
        """Whether sums show that a shift must move: they do not, the maxima of all tiles are taken."""
        return False

    @property
    def value_slices(self) -> int:
        """CTAs that compute the columns of V and O of the same rows, each all of their scores."""
        return -(-self.head_dim_v // WIDEST)

    @property
    def output_columns(self) -> int:
        """Columns of head_dim_v that a CTA computes, padding included; a slice of several has none, since O
        leaves in boxes of that many columns.
        """
        return width_of(self.head_dim_v) if self.value_slices == 1 else self.slices.width

    @property
    def needed_columns(self) -> int:
        """The number of columns of tensor memory that S and O of all row tiles take."""
        return self.row_tiles * (self.tile + self.output_columns)

    @property
    def tensor_columns(self) -> int:
        """The number of columns of tensor memory that the kernel allocates: a power of two."""
        return next(columns for columns in TENSOR_ALLOCATIONS if columns >= self.needed_columns)

    def registers_of_roles(self, *, keeps_more: bool) -> tuple[int, int]:
        """The number of registers of a thread that copies or starts products, and of one that computes
        weights. `keeps_more` is whether the CTA takes several blocks of queries.
        """
        compute, _, copy = self._registers(keeps_more=keeps_more)
        return copy, compute

    def correction_registers(self, *, keeps_more: bool) -> int:
        """The number of registers of a thread that rescales O; `keeps_more` as in `registers_of_roles`."""
        return self._registers(keeps_more=keeps_more)[1]

    def _registers(self, *, keeps_more: bool) -> tuple[int, int, int]:
        """The number of registers of a thread that computes weights, of one that rescales O, and of the
        others.
        """
        works = keeps_more or self.gathers or self.score_columns > _FEW_STEPS or self.value_slices > 1
        return (_REGISTERS_TO_WORK if works else _REGISTERS)[self.row_tiles]

    @property
    def shared_bytes(self) -> int:
        """The bytes of dynamic shared memory of a CTA, at most: the tiles of Q, K, V, and of O if it has one,
        the factors of rows, and barriers.
        """
        tiles = self.block_q * self.score_columns
        if not self.output_is_over_queries:
            tiles += self.block_q * self.output_columns
        tiles += self.stages * self.tile * (self.score_columns + self.output_columns)
        return self._element_bytes * tiles + self._other_bytes + self._regions * _STEP_BYTES

    @property
    def _other_bytes(self) -> int:
        """The bytes of shared memory for the factor by which each row of O is rescaled."""
        return _WORD * self.block_q

    @property
    def registers(self) -> int:
        """The number of registers of a thread when the kernel begins."""
        return 65536 // self.threads // 8 * 8

    def has_registers(self, others: int) -> bool:
        """Whether a thread that computes weights has registers for the scores of its row and for features,
        which need `others`.
        """
        return self.tile + _OTHER_REGISTERS + others <= self._registers(keeps_more=False)[0]


class Tcgen05Family(Family[Tcgen05Tiling]):
    """The family of `tcgen05` kernels of 16-bit types, for sm_100a and sm_103a."""

    name = "tcgen05"
    entry = "tcgen05_"
    products = "tcgen05, with tiles copied by TMA and sums in tensor memory; no GPU has run it"
    multiplies = "tcgen05 multiplies f16 and bf16 here"
    tiling = Tcgen05Tiling
    emitter = "flash.kernels.tcgen05_forward:tcgen05_attention_forward"
    dtypes: ClassVar[tuple[DType, ...]] = (F16, BF16)
    tile_sizes: ClassVar[tuple[int, ...]] = TCGEN05_TILES
    blocks_q: ClassVar[tuple[int, ...]] = TCGEN05_BLOCKS_Q
    mapped = "QKVO"
    gathers = True
    why_one_block = ""
    why_no_planes = "a mask or a bias leaves no registers for what goes on from block to block"
    rate = B200_OPERATIONS
    bandwidth = _BANDWIDTH
    most_slices: ClassVar[int] = 2  # of the columns of V, each of which a CTA computes
    campaign: ClassVar[Campaign] = {
        # Two row tiles; in a problem with few keys the first CTA sees none.
        "f16-sm_100a-causal": {"head_dim": 64, "block_q": 256, "target": "sm_100a", "causal": "bottom_right"}
    }
    score_courses = ("rising",)  # the correction rescales the rows of a warp of which a shift has moved

    def computes(self, request: TileRequest) -> bool:
        """See `Family`."""
        return request.dtype in self.dtypes

    def is_for(self, target: Target) -> bool:
        """See `Family`."""
        return target.has_features_of(TCGEN05_TARGET)

    def against(self, request: TileRequest, target: Target, alignment: int) -> str:
        """See `Family`."""
        for is_met, reason in (
            (not self.is_for(target), "tcgen05 is of sm_100a, sm_103a and their families alone"),
            (request.without_wgmma, request.without_wgmma),
            (alignment < MAP_ALIGN, f"tensor maps take rows of multiples of {MAP_ALIGN} bytes"),
            (
                request.head_dim > WIDEST and not self.values_in_keys,
                f"head_dim is above {WIDEST}, and shared memory has no room for two tiles of such keys",
            ),
            (
                request.head_dim_v > WIDEST * self.most_slices,
                f"rows of more than {WIDEST} columns leave S no columns of tensor memory",
            ),
            (
                request.head_dim_v > WIDEST and request.head_dim_v % _HALVED != 0,
                f"head_dim_v above {WIDEST} is divided between two CTAs, in multiples of {_HALVED}",
            ),
        ):
            if is_met:
                return reason
        if why := self.against_block(request):
            return why
        least = min(self.tiles_of_request(request), default=0)
        if request.block_q not in ("auto", TCGEN05_ROWS) and not self._two_row_tiles_take(request, least):
            return (
                f"block_q={request.block_q}: with a mask and a bias, two row tiles have registers for tiles "
                f"of {_TILE_OF_TWO} keys, not of {least}"
            )
        if self.tiling_for(request, target) is None:
            return f"tile={request.tile}, stages={request.stages} does not fit shared memory or registers"
        return ""

    def why_no_tickets(self, t: Tcgen05Tiling, *, varlen: bool) -> str:
        """See `Family`. Such kernels were seen to spill."""
        if t.row_tiles == 1 or not (varlen or t.score_columns > _FEW_STEPS):
            return ""
        what = "packed sequences" if varlen else f"rows of more than {_FEW_STEPS} columns"
        return f"two row tiles and {what} leave no registers for tickets; use block_q={TCGEN05_ROWS}"

    def against_block(self, request: TileRequest) -> str:
        """Why no tiling has the `block_q` of a request, as text; the empty string if one has."""
        others = request.block_q not in ("auto", *self.blocks_q)
        return f"block_q={request.block_q}: a product has {TCGEN05_ROWS} rows" if others else ""

    def tiles_of_request(self, request: TileRequest) -> tuple[int, ...]:
        """The keys that a tile may have, of what a request leaves open."""
        tiles = self.tiles(request) if request.tile == "auto" else (int(request.tile),)
        return tuple(n for n in tiles if n <= _TILE_WITH_PLANES) if request.has_planes else tiles

    def tilings(self, request: TileRequest, target: Target, alignment: int) -> Iterable[Tcgen05Tiling]:  # noqa: ARG002
        """See `Family`. Stages are as many as fit if they are not asked for."""
        tiles = self.tiles_of_request(request)
        if request.block_q == "auto":
            least = min(_LEAST_OF_TWO, max(tiles, default=0))
            blocks_q = self.blocks_q if request.planes < _PLANES_OF_ONE else (TCGEN05_ROWS,)
            sizes = [(m, n) for m in reversed(blocks_q) for n in tiles if n >= least or m == TCGEN05_ROWS]
        else:
            m = int(request.block_q)
            sizes = [(m, n) for n in tiles if m == TCGEN05_ROWS or self._two_row_tiles_take(request, n)]
        stages = range(_MOST_STAGES, LEAST_STAGES - 1, -1) if request.stages == 1 else (request.stages,)
        shapes = (self._shape(request, n, m, s) for m, n in sizes for s in stages)
        return (
            t
            for t in shapes
            if t.needed_columns <= TENSOR_COLUMNS and t.has_registers(request.other_registers)
        )

    @staticmethod
    def _two_row_tiles_take(request: TileRequest, keys: int) -> bool:
        """Whether threads of two row tiles have registers for tiles of `keys` keys."""
        return request.planes < _PLANES_OF_ONE or keys <= _TILE_OF_TWO

    def _shape(self, request: TileRequest, keys: int, rows: int, stages: int) -> Tcgen05Tiling:
        return self.tiling(*request.dims, keys, rows, stages, request.in_pages, gathers=request.gathers)


def by_polynomial(target: Target) -> int:
    """The number of pairs of exponentials of which a kernel computes one by a polynomial; 0 on targets whose
    special functions are as fast as their tensor cores: there it computes none.
    """
    return 0 if target.sm in EXP2_LANES else _BY_POLYNOMIAL


TCGEN05: Final = Tcgen05Family()
