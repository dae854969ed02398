"""Kernels of f16 and bf16 with the matrix instructions of Hopper (`wgmma`), and what the other families with
these instructions share with them.

A CTA takes `block_q` query rows and walks over K and V in tiles of `tile` keys, which one warpgroup
has copied to shared memory by the tensor memory accelerator (TMA). Each of the other warpgroups takes
64 rows and all keys of a tile (`wgmma` m64nNk16).

| what is asked | reason against the family |
|---|---|
| a target other than sm_90a | `wgmma` is of sm_90a alone |
| f32 in pages of rows that are no multiple of 16 | boxes of tensor copies have at least as many |
| the same in a cache in pages with padding | boxes of a tile do not begin in the middle of a page |
| a cache of fp8 | its elements are widened to 16 bits by the threads that attend |
| rows that are no multiples of 16 bytes | those of a tensor map are |
| head_dim above 256 | tiles of so long rows leave no room for two stages |
| head_dim_v above 256 | its columns are dealt to several CTAs |
| block_q below 64 | a warpgroup has 64 rows |
| a tile, or stages, too large for shared memory or registers | |

Of keys in pages, a tile is cut into boxes of tensor copies where pages have multiples of 16 rows and
sequences begin with a page. Otherwise (pages of a row, as in SGLang, or of 8, 24 or 100 rows, or padding
before the keys) the threads of the producer find each row in the page table and copy it by `cp.async`
(`flash/device/gathered_pipeline.py`), if Q, K and V are f16 or bf16.

A launch adds what only arrays tell: no keys, or strides that a tensor map does not take
(`flash/launch/kernel_choice.py`); rows that threads copy may be any multiples of 16 bytes apart.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, Final, TypeVar

from flash.families.family import Campaign, Family
from flash.families.precision import PAIRS
from flash.families.request import TileRequest
from flash.families.simt import ValueSlices
from flash.operands.dtypes import BF16, F16
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE, Target

WGMMA_TARGET: Final = "sm_90a"
MAP_ALIGN: Final = 16  # bytes of the address and of all strides of a tensor map
BOX_ROWS: Final = 16  # the rows of a page are multiples of this, as those of a tile are
LEAST_STAGES: Final = 2  # tiles of K, and of V: one is read while the next arrives
_QUERY_STAGES: Final = (2, 1)  # tiles of Q of a persistent CTA, where O has a tile of its own
WGMMA_ROWS: Final = 64  # rows of a warpgroup
WARPGROUP: Final = 4 * WARP_SIZE  # threads
WGMMA_BLOCKS_Q: Final = (64, 128, 192)
# Tiles of keys, of which "auto" takes the first that fits, and its block of queries.
DEFAULT_WGMMA_TILES: Final = (128, 112, 96, 80, 64, 48, 32, 16)
DEFAULT_BLOCK_Q: Final = 128
# Where Q, K and V have at most `_NARROW` columns and a tile of at least `_NARROW_TILE` keys fits, "auto" is a
# block of `_NARROW_BLOCK_Q` queries (docs/measurements.md).
_NARROW: Final = 96
_NARROW_BLOCK_Q: Final = 192
_NARROW_TILE: Final = 80
# Tiles of keys that may be chosen.
WGMMA_TILES: Final = (176, 160, 144, *DEFAULT_WGMMA_TILES)
# Columns of Q and K, and of V, that a kernel computes with: the least that has all. What a row lacks
# arrives as zeros.
WIDTHS: Final = (64, 96, 128, 192, 256)
# Registers of a thread of the producer and of a consumer, by consumers, as FlashAttention-3 sets them;
# 0: what the assembler takes. All threads together have 65536.
_REGISTERS: Final = {1: (0, 0), 2: (24, 240), 3: (32, 160)}
# Where the producer also finds keys in pages, has two tiles of Q, keeps the bounds of a window besides those
# of a part of the keys or from part to part of the problem, or clears values that queries dealt in order may
# not see.
_REGISTERS_TO_WORK: Final = {**_REGISTERS, 2: (40, 232)}
# Where threads of the producer copy each row.
_REGISTERS_TO_GATHER: Final = {**_REGISTERS, 2: (56, 224), 3: (64, 144)}
_ROW_STEP: Final = 8  # PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16"
_TWO: Final = 2
_WIDEST_PING_PONG: Final = 128
_WIDEST_SUM_CHECKED: Final = 96
_BY_POLYNOMIAL: Final = 16
_ALL_REGISTERS: Final = 65536
_REGISTER_UNIT: Final = 8  # the registers of a thread are allotted in such units
_MOST_REGISTERS: Final = 255
# Registers of a thread besides its matrices: as many as the assembler was seen to take, and the least
# with which it was seen to spill nothing.
_OTHER_REGISTERS: Final = 58
_LEAST_OTHER_REGISTERS: Final = 32
_PAIR: Final = 2  # bytes of an element
# Barriers of a ring, or flags, move the tile that follows to the next multiple of this many bytes.
_STEP_BYTES: Final = 1024
# Operations of f16, and bytes of memory, of an H100 in a second (NVIDIA H100 Tensor Core GPU Architecture).
H100_OPERATIONS: Final = 989.4e12
_BANDWIDTH: Final = 3.35e12


@dataclass(frozen=True, slots=True)
class WgmmaTiling:
    """Tiles and warpgroups of one kernel; all sizes in elements unless they say bytes.

    `stages` is how many tiles of K, and of V, shared memory holds, `in_pages` whether the producer finds
    their rows in pages, `separate_output` whether O has a tile of its own even if it has room in that of Q,
    `query_stages` how many tiles of Q shared memory holds, one unless O has a tile of its own, `gathers`
    whether the threads of the producer copy each row of K and V from its page
    (`flash/device/gathered_pipeline.py`), as no boxes of tensor copies have the rows of a tile, `by_rows`
    whether maxima of all tiles are taken although sums of weights could say which are needed, so that the
    bits of a row depend on no other row of its warp (`flash/problem/row_bits.py`).
    """

    head_dim: int
    head_dim_v: int
    tile: int
    block_q: int
    stages: int = 2
    in_pages: bool = False
    separate_output: bool = False
    query_stages: int = 1
    gathers: bool = False
    by_rows: bool = False

    precision: ClassVar[str | None] = None  # how f32 is multiplied
    products: ClassVar[int] = 1  # instructions for one product of matrices

    @property
    def value_slices(self) -> int:
        """CTAs that compute the columns of V and O of the same rows: one computes all."""
        return 1

    @property
    def slices(self) -> ValueSlices:
        """The slices in which the columns of V and O are divided among CTAs."""
        return ValueSlices.of(self.head_dim_v, self.value_slices, 1)

    @property
    def consumers(self) -> int:
        """The number of warpgroups of a CTA that compute, the consumers of the pipeline."""
        return self.block_q // WGMMA_ROWS

    @property
    def row_step(self) -> int:
        """The distance in rows between the two rows of S that a thread has."""
        return _ROW_STEP

    @property
    def threads(self) -> int:
        """The number of threads of a CTA."""
        return (1 + self.consumers) * WARPGROUP

    @property
    def computing_threads(self) -> int:
        """The number of threads of a CTA that run the main loop: all but those that only copy."""
        return self.consumers * WARPGROUP

    @property
    def ping_pong(self) -> bool:
        """Whether the consumers multiply alternately, as in FlashAttention-3: two, with rows of at most 128
        columns, and three with rows of at most 96. Wider rows have few exponentials for their products.
        """
        if self.consumers == _TWO:
            return self.score_columns <= _WIDEST_PING_PONG
        return self._are_three_of_narrow_rows

    @property
    def checks_sums(self) -> bool:
        """Whether consumers weigh scores before they know the largest, as in
        `flash/device/sum_checked_softmax.py`: three, of which two compute exponentials while one multiplies.
        """
        return self._are_three_of_narrow_rows and not self.by_rows

    @property
    def _are_three_of_narrow_rows(self) -> bool:
        """Whether there are three consumers, and rows have at most 96 columns."""
        return self.consumers > _TWO and max(self.score_columns, self.output_columns) <= _WIDEST_SUM_CHECKED

    @property
    def row_arithmetic(self) -> tuple[object, ...]:
        """The tile sizes that, with the problem and the target, decide the bits of a row of O."""
        return type(self), self.tile, self.checks_sums

    @property
    def by_polynomial(self) -> int:
        """The number of exponentials of which one is computed by a polynomial; 0: none is. The polynomial is
        for rows of 64 columns, where the unit of special functions would take as long as the products.
        """
        narrow = max(self.score_columns, self.output_columns) <= WIDTHS[0]
        return _BY_POLYNOMIAL if self.checks_sums and narrow else 0

    def registers_of_roles(self, *, keeps_more: bool) -> tuple[int, int]:
        """The number of registers of a thread that copies, and of one that computes; 0: not set. `keeps_more`
        is whether those that copy keep the bounds of a window, besides those of a part of the keys or from
        part to part of the problem, or clear values that blocks of queries dealt in order
        (`scheduler="static"`) may not see, or whether consumers of fp8 follow the largest scores of heads.
        """
        if self.gathers:
            return _REGISTERS_TO_GATHER[self.consumers]
        works = self.in_pages or keeps_more or self.query_stages > 1
        return (_REGISTERS_TO_WORK if works else _REGISTERS)[self.consumers]

    @property
    def score_columns(self) -> int:
        """The number of columns of head_dim that Q Kᵀ sums over, padding included."""
        return width_of(self.head_dim)

    @property
    def output_columns(self) -> int:
        """The number of columns of head_dim_v that a CTA computes, padding included."""
        return width_of(self.head_dim_v)

    @property
    def key_stages(self) -> int:
        """The number of pipeline stages for tiles of K."""
        return self.stages

    def tile_of(self, array: str) -> tuple[int, int]:
        """The rows and columns of the tiles of Q, K, V or O in shared memory."""
        rows = self.block_q if array in ("Q", "O") else self.tile
        return rows, self.score_columns if array in ("Q", "K") else self.output_columns

    @property
    def output_is_over_queries(self) -> bool:
        """Whether O leaves through the tile of Q, and not through one of its own, as wider values do."""
        return self.output_columns <= self.score_columns and not self.separate_output

    @property
    def shared_bytes(self) -> int:
        """The bytes of dynamic shared memory of a CTA, at most: the tiles of Q, K, V, and of O if it has one,
        and their barriers.
        """
        steps, tiles = 3, self.query_stages * self.block_q * self.score_columns
        if not self.output_is_over_queries:
            tiles += self.block_q * self.output_columns
            steps += not self.separate_output  # which comes before K, and not after the barriers of V
        tiles += self.stages * self.tile * (self.score_columns + self.output_columns)
        return self._element_bytes * tiles + self._other_bytes + steps * _STEP_BYTES

    @property
    def moved_bytes(self) -> int | None:
        """The bytes of a tile that pass through shared memory besides what products read, where these are
        more than a copy of K and V; else None.
        """
        return None

    @property
    def _element_bytes(self) -> int:
        """The number of bytes of an element of a tile in shared memory."""
        return _PAIR

    @property
    def _other_bytes(self) -> int:
        """Bytes of shared memory for each row of a tile in addition to the row itself."""
        return 0

    @property
    def registers(self) -> int:
        """The estimated number of registers of a thread: with warps of several roles, what each has at the
        beginning; else the accumulators of S and O, P, and the rest.
        """
        if self._least_registers:
            return _ALL_REGISTERS // self.threads // _REGISTER_UNIT * _REGISTER_UNIT
        return min(self._held_registers + _OTHER_REGISTERS, _MOST_REGISTERS)

    @property
    def _least_registers(self) -> int:
        """The number of registers of a thread that computes, in the kernel that leaves it the fewest; 0: not
        set.
        """
        return min(self.registers_of_roles(keeps_more=more)[1] for more in (False, True))

    @property
    def _held_registers(self) -> int:
        """The number of registers with S, O and P in a consumer's thread."""
        return (self.tile + self.output_columns) // 2 + self.tile // 4

    def has_registers(self, others: int) -> bool:
        """Whether a consumer has registers for all that it computes. `others` is the number of registers for
        features. It counts with three consumers, whose threads have the fewest registers, and where the
        producer needs many: with others the assembler was seen to find room for features. Next to such a
        producer it was seen to spill with three consumers that take maxima of all tiles.
        """
        if self.gathers and self.consumers > _TWO and not self.checks_sums:
            return False
        most = self._least_registers or _MOST_REGISTERS
        needed = self._held_registers + _LEAST_OTHER_REGISTERS
        return needed + (others if self.consumers > _TWO or self.gathers else 0) <= most


def width_of(columns: int) -> int:
    """The number of columns, padding included, with which a kernel computes rows of `columns` columns."""
    return next(width for width in WIDTHS if columns <= width)


def lies_in_boxes(page_size: int, padded: bool) -> bool:
    """Whether boxes of tensor copies have the rows of a tile in pages; `padded` is whether rows that are no
    keys come before those of a sequence.
    """
    return page_size % BOX_ROWS == 0 and not padded


W = TypeVar("W", bound=WgmmaTiling)


class HopperFamily(Family[W]):
    """The common part of families with `wgmma`: one target, and tensor copies."""

    products = "wgmma, with tiles copied by TMA"
    target = WGMMA_TARGET
    mapped = "QKVO"
    blocks_q: ClassVar[tuple[int, ...]] = WGMMA_BLOCKS_Q
    rate = H100_OPERATIONS
    bandwidth = _BANDWIDTH

    def explained(self, t: W) -> str:
        """See `Family`."""
        return (
            "wgmma, with rows of K and V copied from their pages by cp.async" if t.gathers else self.products
        )


class SizedHopperFamily(HopperFamily[W]):
    """The families with `wgmma` that refuse some sizes with any tile of keys, and others because memory or
    registers are short.
    """

    def against(self, request: TileRequest, target: Target, alignment: int) -> str:
        """See `Family`."""
        if target.name != self.target:
            return f"wgmma is of {WGMMA_TARGET} alone"
        if request.without_wgmma:
            return request.without_wgmma
        if alignment < MAP_ALIGN:
            return f"tensor maps take rows of multiples of {MAP_ALIGN} bytes"
        why = self.against_sizes(request)
        if not why and self.tiling_for(request, target) is None:
            why = self.lack(request, target)
        return why

    @abstractmethod
    def against_sizes(self, request: TileRequest) -> str:
        """The reason why no tiling takes the sizes of a request, whatever the tile of keys is; the empty
        string if one does.
        """

    @abstractmethod
    def lack(self, request: TileRequest, target: Target) -> str:
        """The reason, as text, why no tiling of a request fits registers or shared memory."""


class PanelFamily(SizedHopperFamily[W]):
    """The families with `wgmma` whose warpgroups each own rows, and whose problems others take, too."""

    tile_sizes = WGMMA_TILES

    def against_sizes(self, request: TileRequest) -> str:
        """See `SizedHopperFamily`."""
        if request.head_dim > WIDTHS[-1]:
            return f"head_dim is above {WIDTHS[-1]}, and shared memory has no room for two tiles of such keys"
        if request.head_dim_v > WIDTHS[-1]:
            return f"head_dim_v is above {WIDTHS[-1]}, so that its columns are dealt to several CTAs"
        if request.block_q not in ("auto", *WGMMA_BLOCKS_Q):
            return f"block_q={request.block_q}: a warpgroup has {WGMMA_BLOCKS_Q[0]} rows"
        return ""

    def tilings(self, request: TileRequest, target: Target, alignment: int) -> Iterable[W]:  # noqa: ARG002
        """See `Family`."""
        tiles = DEFAULT_WGMMA_TILES if request.tile == "auto" else (int(request.tile),)
        rows = DEFAULT_BLOCK_Q if request.block_q == "auto" else int(request.block_q)
        sizes = [*self.preferred(request, tiles), *((rows, n) for n in tiles)]
        shapes = (self._shape(request, *size) for size in sizes)
        return (t for t in shapes if t.has_registers(request.other_registers))

    def preferred(self, request: TileRequest, tiles: Iterable[int]) -> list[tuple[int, int]]:  # noqa: ARG002
        """The sizes (block_q, tile) that the choice "auto" tries before all others."""
        return []

    def lack(self, request: TileRequest, target: Target) -> str:
        """See `SizedHopperFamily`: a tile that would fit shared memory lacks registers."""
        rows = DEFAULT_BLOCK_Q if request.block_q == "auto" else int(request.block_q)
        least = self._shape(
            request, rows, min(DEFAULT_WGMMA_TILES) if request.tile == "auto" else int(request.tile)
        )
        lacks = "registers" if least.shared_bytes <= target.shared_per_block_optin else "shared memory"
        return f"tile={request.tile}, block_q={rows} with stages={least.stages} does not fit {lacks}"

    def _shape(self, request: TileRequest, rows: int, keys: int) -> W:
        stages = max(request.stages, LEAST_STAGES)
        return self.tiling(*request.dims, keys, rows, stages, request.in_pages, gathers=request.gathers)


class WgmmaFamily(PanelFamily[WgmmaTiling]):
    """The family of `wgmma` kernels with Q, K and V of 16-bit types."""

    name = "wgmma"
    entry = "wgmma_"
    multiplies = f"wgmma multiplies f16 and bf16 here, and pairs of f16 for {PAIRS.name!r}"
    tiling = WgmmaTiling
    emitter = "flash.kernels.wgmma_forward:wgmma_attention_forward"
    dtypes = (F16, BF16)
    gathers = True
    why_one_block = ""
    campaign: ClassVar[Campaign] = {
        # Three ping-pong warpgroups, which check sums before maxima, and polynomials for exponentials. With
        # seed 5 a warpgroup has yet to wait for a tile of values when another is done with its last one.
        "f16-sm_90a-turns-causal": {
            "head_dim": 64,
            "block_q": 192,
            "causal": "top_left",
            "seeds": (1, 2, 3, 5),
        },
        # CTAs that take several blocks of queries each: two, and six blocks in the first problem.
        "bf16-sm_90a-static": {
            "heads": 3,
            "dtype": "bf16",
            "head_dim": 64,
            "block_q": 64,
            "scheduler": "static",
        },
    }

    def computes(self, request: TileRequest) -> bool:
        """See `Family`."""
        return request.dtype in self.dtypes

    def preferred(self, request: TileRequest, tiles: Iterable[int]) -> list[tuple[int, int]]:
        """See `PanelFamily`."""
        if request.block_q != "auto" or max(request.dims) > _NARROW or request.in_pages:
            return []
        return [(_NARROW_BLOCK_Q, n) for n in tiles if n >= _NARROW_TILE]

    def by_rows(self, t: WgmmaTiling) -> WgmmaTiling:
        """See `Family`."""
        return replace(t, by_rows=True) if t.checks_sums else t

    def persistent(self, t: WgmmaTiling, target: Target) -> WgmmaTiling:
        """See `Family`. Where shared memory has room, O leaves a persistent CTA through a tile of its own, so
        that the next queries need not wait for it, and there are two tiles of Q, so that they need not wait
        for the last product of the block before.
        """
        if not t.output_is_over_queries:
            return t
        shapes = (replace(t, separate_output=True, query_stages=stages) for stages in _QUERY_STAGES)
        return next((one for one in shapes if one.shared_bytes <= target.shared_per_block_optin), t)


WGMMA: Final = WgmmaFamily()
