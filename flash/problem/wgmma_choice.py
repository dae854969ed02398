"""Which kernels use the matrix instructions of Hopper (`wgmma`): all for which `why_not` has no reason.
The others of 16-bit types use `mma.sync`.

| what is asked | reason for `mma.sync` |
|---|---|
| a target other than sm_90a | `wgmma` is of sm_90a alone |
| f32 | `wgmma` multiplies 16-bit types here |
| pages of rows that are no multiple of 16 | tiles are cut into boxes of at least as many |
| a cache with splits | O is f32 |
| a cache of fp8, or with at most 16 new rows | elements are widened, or rows appended, by those who attend |
| a cache in pages with padding | boxes of a tile do not begin in the middle of a page |
| rows that are no multiples of 16 bytes | those of a tensor map are |
| head_dim_v above 256 | its columns are dealt to several CTAs |
| block_q below 64 | a warpgroup has 64 rows |
| a tile, or stages, too large for shared memory or registers | |

A launch adds what only arrays tell: no keys, strides that a tensor map does not take, or keys that are
divided among CTAs (`flash/launch/kernel_choice.py`).
"""

from __future__ import annotations

from typing import Final

from flash.problem.wgmma_tiling import WGMMA_BLOCKS_Q, WIDTHS, WgmmaTiling
from ptxgen.target import Target

WGMMA_TARGET: Final = "sm_90a"
MAP_ALIGN: Final = 16  # bytes of the address and of all strides of a tensor map
BOX_ROWS: Final = 16  # the rows of a page are multiples of so many, as those of a tile are
LEAST_STAGES: Final = 2  # tiles of K, and of V: one is read while the next arrives
# Tiles of keys and blocks of queries without a choice: the first tile that fits.
_DEFAULT_TILES: Final = (128, 112, 96, 80, 64, 48, 32, 16)
_DEFAULT_BLOCK_Q: Final = 128
# Tiles of keys that may be chosen.
WGMMA_TILES: Final = (176, 160, 144, *_DEFAULT_TILES)


def wgmma_tiling(
    dims: tuple[int, int],
    tile: int | str,
    block_q: int | str,
    stages: int,
    target: Target,
    beside: int = 0,
    in_pages: bool = False,
) -> WgmmaTiling | None:
    """The tiling for (head_dim, head_dim_v) and these sizes, of which `tile` and `block_q` may be "auto";
    None if none fits shared memory and registers, of which features take `beside`. `in_pages` is whether
    keys are in pages.
    """
    rows = _DEFAULT_BLOCK_Q if block_q == "auto" else int(block_q)
    tiles = _DEFAULT_TILES if tile == "auto" else (int(tile),)
    found = [WgmmaTiling(*dims, n, rows, max(stages, LEAST_STAGES), in_pages) for n in tiles]
    return next((t for t in found if t.has_registers(beside) and _has_shared(t, target)), None)


def _has_shared(t: WgmmaTiling, target: Target) -> bool:
    """Whether the tiles fit shared memory."""
    return t.shared_bytes <= target.shared_per_block_optin


def why_not(
    dims: tuple[int, int],
    is_f32: bool,
    sizes: tuple[int | str, int | str, int],
    excluded: str,
    target: Target,
    alignment: int,
    beside: int = 0,
    in_pages: bool = False,
) -> str:
    """Why a kernel does not use `wgmma`; the empty string if it does. `sizes` are tile, block_q and
    stages, `excluded` is what of the problem speaks against it, `alignment` that of the arrays, in bytes,
    `beside` the registers of features, `in_pages` whether keys are in pages.
    """
    tile, block_q, stages = sizes
    if is_f32:
        return "wgmma multiplies f16 and bf16 here"
    if target.name != WGMMA_TARGET:
        return f"wgmma is of {WGMMA_TARGET} alone"
    if excluded:
        return excluded
    if alignment < MAP_ALIGN:
        return f"tensor maps take rows of multiples of {MAP_ALIGN} bytes"
    if max(dims) > WIDTHS[-1]:
        return f"head_dim_v is above {WIDTHS[-1]}, so that its columns are dealt to several CTAs"
    if block_q not in ("auto", *WGMMA_BLOCKS_Q):
        return f"block_q={block_q}: a warpgroup has {WGMMA_BLOCKS_Q[0]} rows"
    if wgmma_tiling(dims, tile, block_q, stages, target, beside, in_pages) is None:
        return _does_not_fit(dims, tile, block_q, max(stages, LEAST_STAGES), target)
    return ""


def _does_not_fit(
    dims: tuple[int, int], tile: int | str, block_q: int | str, stages: int, target: Target
) -> str:
    """Why no tiling fits: a tile that would fit shared memory lacks registers."""
    rows = _DEFAULT_BLOCK_Q if block_q == "auto" else int(block_q)
    least = WgmmaTiling(*dims, min(_DEFAULT_TILES) if tile == "auto" else int(tile), rows, stages)
    lacks = "registers" if _has_shared(least, target) else "shared memory"
    return f"tile={tile}, block_q={rows} with stages={stages} does not fit {lacks}"
