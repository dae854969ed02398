"""How the work of a kernel with Q, K and V of fp8 is dealt to warpgroups, and which sizes
it may have: it multiplies by `wgmma` of sm_90a alone, m64nNk32.

A CTA takes `block_q` query rows and walks over K and V in tiles of `tile` keys. `wgmma` reads rows of V
along the keys, so that one warpgroup, which also copies, transposes each tile of V in shared memory.
The sums of P V of a tile start at zero and are added to O in f32 (`flash/kernels/wgmma_fp8_forward.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from flash.families.family import Campaign, Offered
from flash.families.request import TileRequest
from flash.families.wgmma import (
    DEFAULT_BLOCK_Q,
    LEAST_STAGES,
    MAP_ALIGN,
    WGMMA_BLOCKS_Q,
    WGMMA_TARGET,
    WIDTHS,
    HopperFamily,
    WgmmaTiling,
)
from flash.operands.dtypes import FP8_DTYPES
from ptxgen.records import dataclass
from ptxgen.target import Target

# Keys of a tile: a row of V transposed has one byte for each, as many as a swizzle spans.
FP8_TILES: Final = (64, 128)
# Registers of a thread of the producer, which also transposes, and of a consumer, by consumers.
_REGISTERS: Final = {1: (0, 0), 2: (56, 224), 3: (56, 152)}
# Registers of these threads where O and what goes with it fill them: if values have as many columns as one
# product takes, whose sums a thread holds besides those of O and S, and if they have the most columns.
_REGISTERS_FILLED: Final = _REGISTERS | {2: (40, 232)}
ONES: Final = 8  # rows of ones after the columns of V in a transposed tile, the least that `wgmma` takes
_STEP_BYTES: Final = 1024  # barriers move the tile that follows to the next multiple of this many bytes
_REGIONS: Final = 5  # tiles of Q, K, V, V transposed and O
_SWIZZLE: Final = 128  # bytes of the widest swizzle, which tiles of O have
_HALF: Final = 2  # bytes of an element of O in shared memory
_PART: Final = 64  # columns of V in one product of wide values
_MOST_REGISTERS: Final = 255
# Registers that a thread whose products overlap needs besides those of its matrices: the fewest with which
# the assembler has spilled nothing.
_OVERLAP_REGISTERS: Final = 20
# Keys of a tile where Q, K and V have at most 64 columns, and "auto" is a block of three warpgroups, of which
# two compute exponentials while one multiplies (docs/measurements.md).
_NARROW_TILE: Final = 64
_WIDEST_AT_ONCE: Final = 128  # columns of V whose sums a thread has besides those of O


@dataclass(frozen=True, slots=True)
class Fp8Tiling(WgmmaTiling):
    """Tiles and warpgroups of one kernel; sizes in elements unless they say bytes. `stages` is how many
    tiles of K, of V and of V transposed shared memory holds, `in_blocks` whether blocks of rows have scales.
    """

    in_blocks: bool = False

    @property
    def checks_sums(self) -> bool:
        """Whether sums show that a shift must move: they do not, it moves with every new maximum."""
        return False

    def registers_of_roles(self, *, keeps_more: bool) -> tuple[int, int]:  # noqa: ARG002
        """The number of registers of a thread that copies, and of one that computes, as of `WgmmaTiling`."""
        fills = self.output_columns in (WIDTHS[-1], _WIDEST_AT_ONCE)
        return (_REGISTERS_FILLED if fills else _REGISTERS)[self.consumers]

    @property
    def value_part(self) -> int:
        """The number of columns of V in one product; it divides the number of all columns."""
        return self.output_columns if self.output_columns <= _WIDEST_AT_ONCE else _PART

    def overlaps(self, other_registers: int) -> bool:
        """Whether products of weights with their values, and the scores of the next tile, are under way
        together: a thread holds their sums besides O and P. Of several products every second one has its sums
        in the registers of S, which must have as many columns. `other_registers` is the number of registers
        for features.
        """
        if self.value_part not in (self.output_columns, self.tile):
            return False
        sums = (self.tile + self.output_columns + self.value_part + ONES) // 2
        most = self.registers_of_roles(keeps_more=False)[1] or _MOST_REGISTERS
        return sums + self.tile // 8 + _OVERLAP_REGISTERS + other_registers <= most

    @property
    def moved_bytes(self) -> int:
        """See `WgmmaTiling`: copies of K and V, and V read and written again when it is transposed."""
        return self.tile * (self.score_columns + 3 * self.output_columns)

    @property
    def output_is_over_queries(self) -> bool:
        """Whether O leaves through the tile of Q: it does not, because its elements are wider."""
        return False

    @property
    def output_is_over_values(self) -> bool:
        """Whether O leaves through the tiles of transposed values, and not through one of its own."""
        return self.tile % _SWIZZLE == 0 and self.block_q * _HALF <= self.stages * self.tile

    @property
    def shared_bytes(self) -> int:
        """The bytes of dynamic shared memory of a CTA, at most: the tiles of Q, K, V, V transposed, and of O
        if it has one, and their barriers.
        """
        tiles = self.block_q * self.score_columns
        tiles += self.stages * self.tile * (self.score_columns + 2 * self.output_columns + ONES)
        if not self.output_is_over_values:
            tiles += self.block_q * self.output_columns * _HALF
        return tiles + _REGIONS * _STEP_BYTES

    @property
    def _held_registers(self) -> int:
        """Registers of a consumer's thread with O, P and the larger of S and a product of values."""
        return self.output_columns // 2 + self.tile // 4 + max(self.tile, self.value_part) // 2


def possible_tiles(scale_block: int) -> tuple[int, ...]:
    """The keys that a tile may have if `scale_block` of them share a scale (0: all), since a tile has one."""
    return tuple(tile for tile in FP8_TILES if scale_block % tile == 0)


class Fp8Family(HopperFamily[Fp8Tiling]):
    """The family of `wgmma` kernels with Q, K and V of fp8, for Hopper."""

    name = "wgmma of fp8"
    entry = "wgmma_"
    products = "wgmma of fp8, with tiles copied by TMA and V transposed"
    multiplies = "wgmma multiplies fp8 here"
    tiling = Fp8Tiling
    emitter = "flash.kernels.wgmma_fp8_forward:wgmma_fp8_attention_forward"
    dtypes = tuple(FP8_DTYPES.values())
    rate = 1978.9e12  # of an H100
    # Values are transposed. With the seventh seed a warp that transposes lags the others by some tiles.
    campaign: ClassVar[Campaign] = {
        "e4m3-sm_90a-causal": {
            "dtype": "e4m3",
            "head_dim": 64,
            "tile": 64,
            "block_q": 128,
            "causal": "bottom_right",
            "seeds": (1, 2, 3, 7),
        }
    }

    def computes(self, request: TileRequest) -> bool:
        """See `Family`."""
        return request.is_fp8 and request.mx is None

    def tiles(self, request: TileRequest) -> tuple[int, ...]:
        """See `Family`."""
        return possible_tiles(request.scale_block)

    def tilings(self, request: TileRequest, target: Target, alignment: int) -> Iterator[Fp8Tiling]:  # noqa: ARG002
        """See `Family`."""
        stages, in_blocks = max(request.stages, LEAST_STAGES), request.scale_block > 0
        tiles = self.tiles(request)[::-1] if request.tile == "auto" else (int(request.tile),)
        rows = DEFAULT_BLOCK_Q if request.block_q == "auto" else int(request.block_q)
        sizes = [(rows, n) for n in tiles]
        if request.block_q == "auto" and max(request.dims) <= WIDTHS[0] and _NARROW_TILE in tiles:
            sizes.insert(0, (WGMMA_BLOCKS_Q[-1], _NARROW_TILE))
        for rows, n in sizes:
            t = Fp8Tiling(*request.dims, n, rows, stages, request.in_pages, in_blocks=in_blocks)
            if t.has_registers(request.other_registers):
                yield t

    def against(self, request: TileRequest, target: Target, alignment: int) -> str:
        """See `Family`."""
        if target.name != WGMMA_TARGET:
            return (
                f"needs target={WGMMA_TARGET!r}, whose wgmma multiplies it, or 'sm_100a', whose tcgen05 "
                f"does, got {target.name!r}"
            )
        if request.without_wgmma:
            return f"has one kernel, which does not do this: {request.without_wgmma}"
        if alignment < MAP_ALIGN:
            return (
                f"takes rows and strides of multiples of {MAP_ALIGN} bytes, as tensor maps do, got multiples "
                f"of {alignment}; pad head_dim to a multiple of {MAP_ALIGN}"
            )
        if max(request.dims) > WIDTHS[-1]:
            dims = f"{request.head_dim} and {request.head_dim_v}"
            return f"takes head_dim and head_dim_v up to {WIDTHS[-1]}, got {dims}"
        if self.tiling_for(request, target) is not None:
            return ""
        stages = max(request.stages, LEAST_STAGES)
        return (
            f"with tile={request.tile}, block_q={request.block_q} and stages={stages} does not fit shared "
            f"memory or registers; use fewer stages, or smaller tiles of {FP8_TILES} and {WGMMA_BLOCKS_Q}"
        )

    def refusal(self, request: TileRequest, target: Target, alignment: int | None, offered: Offered) -> str:  # noqa: ARG002
        """See `Family`."""
        why = self.why_not(request, target, alignment)
        return f"dtype={request.dtype.name!r} {why}; or convert Q, K and V to 'bf16'"

    def chained_keys(self, t: Fp8Tiling, asked: int | None) -> int:  # noqa: ARG002
        """See `Family`."""
        return max(FP8_TILES) if asked is None else asked


FP8: Final = Fp8Family()
