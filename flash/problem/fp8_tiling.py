"""How the work of a kernel with Q, K and V of fp8 is dealt to warpgroups, and which sizes
it may have: it multiplies by `wgmma` of sm_90a alone, m64nNk32.

A CTA takes `block_q` query rows and walks over K and V in tiles of `tile` keys. `wgmma` reads rows of V
along the keys, so that one warpgroup, which also copies, transposes each tile of V in shared memory.
The sums of P V of a tile start at zero and are added to O in f32 (`flash/kernels/wgmma_fp8_forward.py`).
"""

from __future__ import annotations

from typing import Final

from flash.operands.dtypes import DType
from flash.problem.wgmma_choice import LEAST_STAGES, MAP_ALIGN, WGMMA_TARGET
from flash.problem.wgmma_tiling import WGMMA_BLOCKS_Q, WIDTHS, WgmmaTiling
from ptxgen.errors import ConfigError
from ptxgen.records import dataclass
from ptxgen.target import Target

# Keys of a tile: a row of V transposed has one byte for each, so many as a swizzle spans.
FP8_TILES: Final = (64, 128)
_DEFAULT_BLOCK_Q: Final = 128
# Registers of a thread of the producer, which also transposes, and of a consumer, by consumers.
_REGISTERS: Final = {1: (0, 0), 2: (56, 224), 3: (56, 152)}
# Registers of these threads in kernels with the widest values that have scales of blocks of rows, keys in
# pages, or a window and parts of the keys: a consumer keeps addresses or bounds for them beside O.
_REGISTERS_WITH_ADDRESSES: Final = _REGISTERS | {2: (40, 232)}
ONES: Final = 8  # rows of ones behind the columns of V in a transposed tile, the least that `wgmma` takes
_STEP_BYTES: Final = 1024  # barriers move the tile that follows to the next multiple of so many bytes
_REGIONS: Final = 5  # tiles of Q, K, V, V transposed and O
_SWIZZLE: Final = 128  # bytes of the widest swizzle, which tiles of O have
_HALF: Final = 2  # bytes of an element of O in shared memory
_PART: Final = 64  # columns of V in one product of wide values
_WIDEST_AT_ONCE: Final = 128  # columns of V whose sums a thread has beside those of O


@dataclass(frozen=True, slots=True)
class Fp8Tiling(WgmmaTiling):
    """Tiles and warpgroups of one kernel; sizes in elements unless they say bytes. `stages` is how many
    tiles of K, of V and of V transposed shared memory holds, `in_blocks` whether blocks of rows have scales.
    """

    in_blocks: bool = False

    @property
    def takes_turns(self) -> bool:
        """False: a warpgroup multiplies when it is ready."""
        return False

    @property
    def checks_sums(self) -> bool:
        """False: a shift moves with every new maximum."""
        return False

    def registers_of_roles(self, *, keeps_more: bool) -> tuple[int, int]:
        """Registers of a thread that copies, and of one that computes, as of `WgmmaTiling`."""
        more = keeps_more or self.in_blocks or self.in_pages
        has_least_left = more and self.output_columns == WIDTHS[-1]
        return (_REGISTERS_WITH_ADDRESSES if has_least_left else _REGISTERS)[self.consumers]

    @property
    def value_part(self) -> int:
        """Columns of V in one product, which divide all."""
        return self.output_columns if self.output_columns <= _WIDEST_AT_ONCE else _PART

    @property
    def output_is_over_queries(self) -> bool:
        """False: elements of O are wider than those of Q."""
        return False

    @property
    def output_is_over_values(self) -> bool:
        """Whether O leaves through the tiles of transposed values, and not through one of its own."""
        return self.tile % _SWIZZLE == 0 and self.block_q * _HALF <= self.stages * self.tile

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA, at most: the tiles of Q, K, V, V transposed, and of O if it
        has one, and their barriers.
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
    """The keys that a tile may have where so many share a scale, or with 0 all: a tile has one scale."""
    return tuple(tile for tile in FP8_TILES if scale_block % tile == 0)


def fp8_tiling(
    dims: tuple[int, int],
    tile: int | str,
    block_q: int | str,
    stages: int,
    target: Target,
    beside: int = 0,
    scale_block: int = 0,
    in_pages: bool = False,
) -> Fp8Tiling | None:
    """The tiling for (head_dim, head_dim_v) and these sizes, of which `tile` and `block_q` may be "auto";
    None if none fits shared memory and registers, of which features take `beside`. So many rows as
    `scale_block` says share a scale, or with 0 all; `in_pages` is whether keys are in pages.
    """
    rows = _DEFAULT_BLOCK_Q if block_q == "auto" else int(block_q)
    tiles = tuple(reversed(possible_tiles(scale_block))) if tile == "auto" else (int(tile),)
    count = max(stages, LEAST_STAGES)
    found = [Fp8Tiling(*dims, n, rows, count, in_pages, in_blocks=scale_block > 0) for n in tiles]
    most = target.shared_per_block_optin
    return next((t for t in found if t.has_registers(beside) and t.shared_bytes <= most), None)


def require_fp8(
    dtype: DType,
    dims: tuple[int, int],
    sizes: tuple[int | str, int | str, int],
    excluded: str,
    target: Target,
    alignment: int,
    beside: int = 0,
    scale_block: int = 0,
    in_pages: bool = False,
) -> Fp8Tiling:
    """The tiling of a kernel with Q, K and V of `dtype`. `sizes` are tile, block_q and stages, `excluded`
    is what of the problem or of a launch no such kernel does, `alignment` that of the arrays in bytes,
    `beside` the registers of features, `scale_block` and `in_pages` are as for `fp8_tiling`. Raises
    `ConfigError` that says what the kernel lacks.
    """
    assert dtype.is_narrow
    tile, block_q, stages = sizes
    found, why = None, ""
    if target.name != WGMMA_TARGET:
        why = f"needs target={WGMMA_TARGET!r}, whose wgmma multiplies it, got {target.name!r}"
    elif excluded:
        why = f"has one kernel, which does not do this: {excluded}"
    elif alignment < MAP_ALIGN:
        why = (
            f"takes rows and strides of multiples of {MAP_ALIGN} bytes, as tensor maps do, got multiples of "
            f"{alignment}; pad head_dim to a multiple of {MAP_ALIGN}"
        )
    elif max(dims) > WIDTHS[-1]:
        why = f"takes head_dim_v up to {WIDTHS[-1]}, got {dims[1]}"
    else:
        found = fp8_tiling(dims, tile, block_q, stages, target, beside, scale_block, in_pages)
        why = (
            f"with tile={tile}, block_q={block_q} and stages={max(stages, LEAST_STAGES)} does not fit shared "
            f"memory or registers; use fewer stages, or smaller tiles of {FP8_TILES} and {WGMMA_BLOCKS_Q}"
        )
    if found is None:
        raise ConfigError(f"AttentionConfig: dtype={dtype.name!r} {why}; or convert Q, K and V to 'bf16'")
    return found
