"""Which kernels of f16, bf16 and f32 use the matrix instructions of Hopper (`wgmma`): all for which `why_not`
has no reason. The others use `mma.sync`, or with `precision="ieee"` no tensor cores. Q, K and V of fp8 have
no kernel without `wgmma` (`flash/problem/fp8_tiling.py`).

| what is asked | reason against `wgmma` |
|---|---|
| a target other than sm_90a | `wgmma` is of sm_90a alone |
| f32 with another precision than "f32_grade" | `wgmma` multiplies f16, bf16 and pairs of f16 here |
| "f32_grade" with rows above 128 columns | as pairs of f16, two tiles of K and of V leave Q no room |
| "f32_grade" with block_q=192 | three consumers lack registers for both parts of P and two sums |
| f32 in pages of rows that are no multiple of 16 | boxes have at least as many |
| the same in a cache in pages with padding | boxes of a tile do not begin in the middle of a page |
| a cache of fp8 | its elements are widened to 16 bits by the threads that attend |
| rows that are no multiples of 16 bytes | those of a tensor map are |
| head_dim_v above 256, unless V is columns of K | its columns are dealt to several CTAs |
| block_q below 64 | a warpgroup has 64 rows |
| a tile, or stages, too large for shared memory or registers | |

Of keys in pages, a tile is cut into boxes of tensor copies where pages have multiples of 16 rows and
sequences begin with a page. Otherwise (pages of a row, as in SGLang, or of 8, 24 or 100 rows, or padding
before the keys) the threads of the producer find each row in the page table and copy it by `cp.async`
(`flash/device/gathered_pipeline.py`), if Q, K and V are f16 or bf16.

Where V is columns of K (`shared_kv`) and head_dim is above 256, no kernel without `wgmma` computes it: what
the table names is then an error. Blocks have 64 rows there, and the columns of V, padded to multiples of
128, are no more than those of K, padded to multiples of 64 (`flash/problem/latent_tiling.py`).

A launch adds what only arrays tell: no keys, or strides that a tensor map does not take
(`flash/launch/kernel_choice.py`); rows that threads copy may be any multiples of 16 bytes apart. A tile or
block_q that was asked for `wgmma`, and that the kernel of the launch does not have, is then "auto".
"""

from __future__ import annotations

from typing import Final

from flash.operands.dtypes import BF16, F16
from flash.problem.latent_tiling import LATENT_TILES, LatentTiling
from flash.problem.mma_tiling import PAIRS
from flash.problem.wgmma_split_tiling import SPLIT_BLOCKS_Q, SPLIT_WIDTHS, SplitWgmmaTiling
from flash.problem.wgmma_tiling import WGMMA_BLOCKS_Q, WGMMA_ROWS, WIDTHS, WgmmaTiling
from ptxgen.target import Target

WGMMA_TARGET: Final = "sm_90a"
MAP_ALIGN: Final = 16  # bytes of the address and of all strides of a tensor map
BOX_ROWS: Final = 16  # the rows of a page are multiples of so many, as those of a tile are
GATHERED: Final = (F16, BF16)  # the types whose rows threads copy from pages of any size
LEAST_STAGES: Final = 2  # tiles of K, and of V: one is read while the next arrives
# Tiles of keys, of which "auto" takes the first that fits, and its block of queries.
_DEFAULT_TILES: Final = (128, 112, 96, 80, 64, 48, 32, 16)
_DEFAULT_BLOCK_Q: Final = 128
# Where Q, K and V have at most `_NARROW` columns and a tile of at least `_NARROW_TILE` keys fits, "auto" is a
# block of `_NARROW_BLOCK_Q` queries (docs/measurements.md).
_NARROW: Final = 96
_NARROW_BLOCK_Q: Final = 192
_NARROW_TILE: Final = 80
# Tiles of keys that may be chosen.
WGMMA_TILES: Final = (176, 160, 144, *_DEFAULT_TILES)


def lies_in_boxes(page_size: int, padded: bool) -> bool:
    """Whether boxes of tensor copies have the rows of a tile in pages; `padded` is whether rows that are no
    keys come before those of a sequence.
    """
    return page_size % BOX_ROWS == 0 and not padded


def wgmma_tiling(
    dims: tuple[int, int],
    tile: int | str,
    block_q: int | str,
    stages: int,
    target: Target,
    beside: int = 0,
    in_pages: bool = False,
    precision: str | None = None,
    latent: bool = False,
    gathers: bool = False,
) -> WgmmaTiling | None:
    """The tiling for (head_dim, head_dim_v) and these sizes, of which `tile` and `block_q` may be "auto";
    None if none fits shared memory and registers, of which features take `beside`. `in_pages` is whether
    keys are in pages, `precision` how f32 is multiplied, None for 16-bit types, `latent` whether V is
    columns of K and rows are wide, `gathers` whether threads copy each row from its page.
    """
    if latent:
        return _latent_tiling(dims, tile, stages, target, in_pages, gathers)
    tiles = _DEFAULT_TILES if tile == "auto" else (int(tile),)
    sizes = [(_DEFAULT_BLOCK_Q if block_q == "auto" else int(block_q), n) for n in tiles]
    if block_q == "auto" and precision is None and max(dims) <= _NARROW and not in_pages:
        sizes = [*((_NARROW_BLOCK_Q, n) for n in tiles if n >= _NARROW_TILE), *sizes]
    kind = _kind(precision)
    found = [kind(*dims, n, rows, max(stages, LEAST_STAGES), in_pages, gathers=gathers) for rows, n in sizes]
    return next((t for t in found if t.has_registers(beside) and _has_shared(t, target)), None)


def _kind(precision: str | None) -> type[WgmmaTiling]:
    """The tilings of a precision of f32, or of 16-bit types (None)."""
    return WgmmaTiling if precision is None else SplitWgmmaTiling


def _latent_tiling(
    dims: tuple[int, int], tile: int | str, stages: int, target: Target, in_pages: bool, gathers: bool
) -> LatentTiling | None:
    """The tiling that `wgmma_tiling` gives where V is columns of K and rows are wide; None if none fits."""
    tiles = LATENT_TILES if tile == "auto" else {int(tile)}.intersection(LATENT_TILES)
    sizes = WGMMA_ROWS, max(stages, LEAST_STAGES)
    found = [LatentTiling(*dims, n, *sizes, in_pages, gathers=gathers) for n in tiles]
    return next((t for t in found if t.has_columns and _has_shared(t, target)), None)


def _has_shared(t: WgmmaTiling, target: Target) -> bool:
    """Whether the tiles fit shared memory."""
    return t.shared_bytes <= target.shared_per_block_optin


def why_not(
    dims: tuple[int, int],
    precision: str | None,
    sizes: tuple[int | str, int | str, int],
    excluded: str,
    target: Target,
    alignment: int,
    beside: int = 0,
    in_pages: bool = False,
    latent: bool = False,
    gathers: bool = False,
) -> str:
    """Why a kernel does not use `wgmma`; the empty string if it does. `precision` is how f32 is multiplied,
    None for 16-bit types; `sizes` are tile, block_q and stages, `excluded` is what of the problem speaks
    against it, `alignment` that of the arrays, in bytes, `beside` the registers of features, `in_pages`
    whether keys are in pages, `latent` whether V is columns of K and rows are wide, `gathers` whether threads
    copy each row from its page.
    """
    tile, block_q, stages = sizes
    if precision not in (None, PAIRS.name):
        return f"wgmma multiplies f16 and bf16 here, and pairs of f16 for {PAIRS.name!r}"
    if target.name != WGMMA_TARGET:
        return f"wgmma is of {WGMMA_TARGET} alone"
    if excluded:
        return excluded
    if alignment < MAP_ALIGN:
        return f"tensor maps take rows of multiples of {MAP_ALIGN} bytes"
    against = _against_sizes(dims, precision, block_q, latent=latent)
    if against:
        return against
    if (
        wgmma_tiling(dims, tile, block_q, stages, target, beside, in_pages, precision, latent, gathers)
        is None
    ):
        if latent:
            return _latent_does_not_fit(dims, sizes)
        return _does_not_fit(dims, sizes, target, in_pages, precision, gathers)
    return ""


def _against_sizes(dims: tuple[int, int], precision: str | None, block_q: int | str, *, latent: bool) -> str:
    """What of the sizes no tiling takes, whatever the tile of keys is; the empty string if nothing."""
    if latent:
        others = block_q not in ("auto", WGMMA_ROWS)
        return f"block_q={block_q}: a CTA has {WGMMA_ROWS} rows of so many columns" if others else ""
    if max(dims) > WIDTHS[-1]:
        return f"head_dim_v is above {WIDTHS[-1]}, so that its columns are dealt to several CTAs"
    if precision is not None and max(dims) > SPLIT_WIDTHS[-1]:
        return f"rows of more than {SPLIT_WIDTHS[-1]} columns leave no room for two tiles of pairs of f16"
    if block_q not in ("auto", *WGMMA_BLOCKS_Q):
        return f"block_q={block_q}: a warpgroup has {WGMMA_BLOCKS_Q[0]} rows"
    if precision is not None and block_q not in ("auto", *SPLIT_BLOCKS_Q):
        return f"block_q={block_q}: both parts of P leave no registers to so many rows"
    return ""


def _does_not_fit(
    dims: tuple[int, int],
    sizes: tuple[int | str, int | str, int],
    target: Target,
    in_pages: bool,
    precision: str | None,
    gathers: bool,
) -> str:
    """Why no tiling fits: a tile that would fit shared memory lacks registers."""
    tile, block_q, asked = sizes
    stages = max(asked, LEAST_STAGES)
    rows = _DEFAULT_BLOCK_Q if block_q == "auto" else int(block_q)
    keys = min(_DEFAULT_TILES) if tile == "auto" else int(tile)
    least = _kind(precision)(*dims, keys, rows, stages, in_pages, gathers=gathers)
    lacks = "registers" if _has_shared(least, target) else "shared memory"
    return f"tile={tile}, block_q={rows} with stages={stages} does not fit {lacks}"


def _latent_does_not_fit(dims: tuple[int, int], sizes: tuple[int | str, int | str, int]) -> str:
    """Why no tiling fits where V is columns of K and rows are wide."""
    tile, _, asked = sizes
    t = LatentTiling(*dims, LATENT_TILES[-1], WGMMA_ROWS, max(asked, LEAST_STAGES))
    if not t.has_columns:
        return f"head_dim_v={dims[1]} takes {t.output_columns} columns, and K has {t.score_columns}"
    return f"tile={tile} with stages={t.stages} does not fit shared memory"
