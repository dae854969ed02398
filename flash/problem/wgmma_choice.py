"""Which kernels use the matrix instructions of Hopper (`wgmma`): all for which `why_not` has no reason.
The others of 16-bit types use `mma.sync`.

| what is asked | reason for `mma.sync` |
|---|---|
| a target other than sm_90a | `wgmma` is of sm_90a alone |
| f32 | `wgmma` multiplies 16-bit types here |
| pages, a cache | a tile may be in several pages |
| rows that are no multiples of 16 bytes | those of a tensor map are |
| head_dim_v wider than head_dim | O leaves through the tile of Q |
| block_q below 64 | a warpgroup has 64 rows |
| a tile, or stages, too large for shared memory | |

A launch adds what only arrays tell: no keys, or strides that a tensor map does not take
(`flash/launch/kernel_choice.py`).
"""

from __future__ import annotations

from typing import Final

from flash.problem.wgmma_tiling import WGMMA_BLOCKS_Q, WIDTHS, WgmmaTiling, width_of
from ptxgen.target import Target

WGMMA_TARGET: Final = "sm_90a"
MAP_ALIGN: Final = 16  # bytes of the address and of all strides of a tensor map
LEAST_STAGES: Final = 2  # tiles of K, and of V: one is read while the next arrives
# Tiles of keys; without a choice the first that fits shared memory.
WGMMA_TILES: Final = (128, 112, 96, 80, 64, 32, 16)


def wgmma_tiling(
    dims: tuple[int, int], tile: int | str, block_q: int | str, stages: int, target: Target
) -> WgmmaTiling | None:
    """The tiling for (head_dim, head_dim_v) and these sizes, of which `tile` and `block_q` may be "auto";
    None if none fits shared memory.
    """
    rows = WGMMA_BLOCKS_Q[-1] if block_q == "auto" else int(block_q)
    tiles = WGMMA_TILES if tile == "auto" else (int(tile),)
    found = [WgmmaTiling(*dims, n, rows, max(stages, LEAST_STAGES)) for n in tiles]
    return next((t for t in found if t.shared_bytes <= target.shared_per_block_optin), None)


def why_not(
    dims: tuple[int, int],
    is_f32: bool,
    sizes: tuple[int | str, int | str, int],
    excluded: str,
    target: Target,
    alignment: int,
) -> str:
    """Why a kernel does not use `wgmma`; the empty string if it does. `sizes` are tile, block_q and
    stages, `excluded` is what of the problem speaks against it, `alignment` that of the arrays, in bytes.
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
    if max(dims) > WIDTHS[-1] or width_of(dims[1]) > width_of(dims[0]):
        return "head_dim_v is wider than head_dim, through whose tile O leaves"
    if block_q not in ("auto", *WGMMA_BLOCKS_Q):
        return f"block_q={block_q}: a warpgroup has {WGMMA_BLOCKS_Q[0]} rows"
    if wgmma_tiling(dims, tile, block_q, stages, target) is None:
        return f"tile={tile} with stages={max(stages, LEAST_STAGES)} does not fit shared memory"
    return ""
