"""Which tiles a kernel gets: the sizes that the user gives, and documented defaults for others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any, Final

from flash.operands.dtypes import BF16, F16, F32, INPUT_DTYPES, DType
from flash.problem.fp8_tiling import fp8_tiling, possible_tiles, require_fp8
from flash.problem.head_dims import is_latent
from flash.problem.latent_tiling import LATENT_TILES
from flash.problem.mma_tiling import MMA_BLOCKS_Q, PAIRS, TF32, MmaTiling, Operands, mma_tilings
from flash.problem.precision import forward_operands_of, resolved
from flash.problem.simt_tiling import BLOCKS_Q, IEEE, MAX_HEAD_DIM, TILES, Tiling, micro_tiles
from flash.problem.wgmma_choice import GATHERED, WGMMA_TARGET, WGMMA_TILES, wgmma_tiling, why_not
from flash.problem.wgmma_tiling import WGMMA_BLOCKS_Q, WGMMA_ROWS, WgmmaTiling
from ptxgen.errors import ConfigError
from ptxgen.records import dataclass
from ptxgen.target import TARGETS, Target

# The default tile and block_q of f32 without tensor cores, by the target's shared memory per block
# (at least so many bytes) and by head_dim or the columns of V that a CTA takes, whichever is more
# (at most so many). Chosen by `Tiling.cost` among the shapes that let eight warps, or as many as
# fit, live on one multiprocessor; `tools/bench.py` measures them.
_KIB: Final = 1024
DEFAULT_TILES: Final[dict[int, dict[int, tuple[int, int]]]] = {
    227 * _KIB: {32: (32, 128), 64: (64, 128), 96: (32, 128), 192: (32, 64), 256: (16, 64)},
    163 * _KIB: {64: (32, 128), 128: (32, 64), 256: (16, 64)},
    99 * _KIB: {64: (32, 64), 96: (32, 128), 160: (32, 64), 192: (16, 64), 256: (16, 32)},
    64 * _KIB: {96: (32, 64), 128: (32, 32), 192: (16, 32), 256: (16, 16)},
}

# The default tile and block_q of 16-bit types, whose kernels use tensor cores; keys as in
# DEFAULT_TILES.
DEFAULT_MMA_TILES: Final[dict[int, dict[int, tuple[int, int]]]] = {
    227 * _KIB: {64: (64, 128), 128: (64, 128), 192: (64, 64), 256: (64, 64)},
    163 * _KIB: {64: (64, 128), 128: (64, 128), 192: (64, 64), 256: (64, 128)},
    99 * _KIB: {64: (64, 128), 128: (32, 128), 192: (32, 64), 256: (64, 64)},
}
# The default tile and block_q of f32 on tensor cores, by precision, and by columns as in
# DEFAULT_TILES, on every target that has tensor cores.
DEFAULT_TF32_TILES: Final[dict[str, dict[int, tuple[int, int]]]] = {
    PAIRS.name: {64: (32, 128), 256: (16, 128)},
    TF32.name: {64: (32, 128), 192: (32, 64), 256: (16, 64)},
}
LEAST_ASYNCHRONOUS: Final = 4  # bytes that one `cp.async` copies (PTX ISA)
# The largest default tile where copies are narrower: these go through registers, of which larger
# tiles leave too few.
_TILE_THROUGH_REGISTERS: Final = 32
# The largest default tile of wide rows with a mask or a bias: so much of these is in flight that
# larger tiles were seen to spill.
_TILE_WITH_PLANES: Final = 32
_WIDE: Final = 128  # elements of a row: more make it wide
# The largest default tile of f32 without tensor cores where rows or mask columns are looked up and
# a CTA has at least _ROWS_LOOKED_UP rows: larger tiles leave no registers for what is looked up.
_TILE_LOOKED_UP: Final = 32
_ROWS_LOOKED_UP: Final = 64
FIRST_WITH_MMA: Final = 80  # cp.async, ldmatrix and m16n8k16

# Sizes left open in turn, until a launch that was to use `wgmma` and cannot has a kernel.
_OPENED: Final = ((), ("block_q",), ("tile",), ("tile", "block_q"))

AnyTiling = Tiling | MmaTiling | WgmmaTiling


def natural_alignment(head_dim: int, head_dim_v: int, dtype: DType) -> int:
    """The largest alignment that contiguous arrays of these head dimensions have, in bytes: 16, 8,
    4 or, for 16-bit types, 2.
    """
    return math.gcd(16, head_dim * dtype.nbytes, head_dim_v * dtype.nbytes)


def default_tile(
    head_dim: int, target: Target, dtype: DType = F32, precision: str | None = None
) -> tuple[int, int]:
    """The documented default (tile, block_q); `head_dim` is the head dimension, or the columns of V
    that a CTA takes if they are more.
    """
    operands = forward_operands_of(dtype, precision)
    if dtype is F32 and operands:
        by_dim = DEFAULT_TF32_TILES[operands.name]
    else:
        table = DEFAULT_MMA_TILES if operands else DEFAULT_TILES
        enough = (of for of in table.items() if target.shared_per_block_optin >= of[0])
        by_dim = next(enough)[1]
    return next(tiles for most, tiles in by_dim.items() if head_dim <= most)


@dataclass(frozen=True, slots=True)
class TileRequest:
    """What the choice of tiles depends on; `tile` and `block_q` may be "auto"."""

    head_dim: int
    head_dim_v: int
    dtype: DType = F32
    tile: int | str = "auto"
    block_q: int | str = "auto"
    stages: int = 1
    other_registers: int = 0  # registers of a thread for the kernel's features
    has_planes: bool = False  # whether there is a mask or a bias
    looks_up: bool = False  # whether K and V are in pages, or there is a mask of their last keys
    precision: str | None = None
    in_pages: bool = False  # whether K and V are in pages, and queries packed
    gathers: bool = False  # whether rows of pages lie in no boxes of tensor copies, and threads copy them
    without_wgmma: str = ""  # what of the problem speaks against `wgmma`, for messages
    shared_kv: bool = False  # whether V is columns of K
    scale_block: int = 0  # rows of fp8 that share a scale; 0 if all of a head do

    @property
    def is_latent(self) -> bool:
        """Whether rows are so wide that only a kernel computes it that reads V from tiles of K."""
        return is_latent(self.head_dim, shared_kv=self.shared_kv)

    def why_not_wgmma(self, target: Target, alignment: int | None = None) -> str:
        """Why the kernel for a target, and for arrays of such an alignment, does not use `wgmma`; the
        empty string if it does.
        """
        return why_not(
            (self.head_dim, self.head_dim_v),
            self.precision_of_f32,
            (self.tile, self.block_q, self.stages),
            self.without_wgmma,
            target,
            self.alignment if alignment is None else alignment,
            self.other_registers,
            self.in_pages,
            self.is_latent,
            self.gathers,
        )

    @property
    def gathers_rows(self) -> bool:
        """Whether a kernel with `wgmma` has threads that copy rows from pages of any size."""
        return self.dtype in GATHERED

    @property
    def is_fp8(self) -> bool:
        """Whether Q, K and V are of fp8, which `wgmma` alone multiplies (`flash/problem/fp8_tiling.py`)."""
        return self.dtype.is_narrow

    @property
    def precision_of_f32(self) -> str | None:
        """How f32 is multiplied; None for 16-bit types."""
        return resolved(self.dtype, self.precision)

    @property
    def operands(self) -> Operands | None:
        """How elements enter a tensor core; None for a kernel that uses none."""
        return forward_operands_of(self.dtype, self.precision)

    @property
    def blocks_q(self) -> tuple[int, ...]:
        """The sizes that block_q may have in kernels without `wgmma`."""
        return MMA_BLOCKS_Q if self.operands else BLOCKS_Q

    def possible_blocks_q(self, target: Target) -> tuple[int, ...]:
        """The sizes that block_q may have on a target."""
        if self.is_fp8:
            return WGMMA_BLOCKS_Q
        if self.is_latent:
            return (WGMMA_ROWS,)
        with_wgmma = not replace(self, block_q="auto").why_not_wgmma(target)
        return tuple(sorted({*self.blocks_q, *WGMMA_BLOCKS_Q})) if with_wgmma else self.blocks_q

    def tiles(self, target: Target) -> tuple[int, ...]:
        """The sizes that tile may have."""
        if self.is_fp8:
            return possible_tiles(self.scale_block)
        if self.is_latent:
            return tuple(sorted(LATENT_TILES))
        with_wgmma = not replace(self, tile="auto").why_not_wgmma(target)
        return tuple(sorted({*TILES, *WGMMA_TILES})) if with_wgmma else TILES

    @property
    def alignment(self) -> int:
        """The alignment of contiguous arrays, in bytes."""
        return natural_alignment(self.head_dim, self.head_dim_v, self.dtype)

    @property
    def value_slices(self) -> int:
        """Slices of the columns of V and O: as few as a CTA has registers for, because the CTA of
        each slice computes the scores again.
        """
        return -(-self.head_dim_v // MAX_HEAD_DIM)

    @property
    def columns(self) -> int:
        """The columns of Q and K, or those of V that a CTA takes, whichever are more."""
        return max(self.head_dim, -(-self.head_dim_v // self.value_slices))


@lru_cache(maxsize=1024)
def choose_tiling(request: TileRequest, target: Target, alignment: int | None = None) -> AnyTiling:
    """The tiling of a kernel on a target: the sizes that are requested, and defaults for those left
    open.

    If a default does not go with the requested sizes, the nearest smaller size that does is taken.
    Raises `ConfigError` with the limit and the largest tile that fits.
    """
    if request.is_fp8:
        return require_fp8(
            request.dtype,
            (request.head_dim, request.head_dim_v),
            (request.tile, request.block_q, request.stages),
            request.without_wgmma,
            target,
            request.alignment if alignment is None else alignment,
            request.other_registers,
            request.scale_block,
            request.in_pages,
        )
    _require_target(request, target)
    if not request.why_not_wgmma(target, alignment):
        dims, gathers = (request.head_dim, request.head_dim_v), request.gathers
        beside = request.other_registers, request.in_pages, request.precision_of_f32, request.is_latent
        found = wgmma_tiling(dims, request.tile, request.block_q, request.stages, target, *beside, gathers)
        assert found is not None  # there is no reason against it
        return found
    if request.is_latent:
        raise ConfigError(_not_latent(request, target, alignment))
    tiles, blocks = _sizes(request, target, alignment)
    tiling = _first_that_fits(request, target, alignment)
    if tiling is None:
        raise ConfigError(_does_not_fit(request, tiles[0], blocks, target))
    return tiling


@lru_cache(maxsize=1024)
def choose_launch_tiling(
    own: TileRequest, request: TileRequest, target: Target, alignment: int | None = None
) -> AnyTiling:
    """The tiling of a launch, whose arrays may speak against `wgmma` in `request` where its config does not
    in `own`. Of the sizes that were then asked for `wgmma`, those that a kernel without it does not have
    are left open: block_q first, then tile.

    Raises `ConfigError` as `choose_tiling` does.
    """
    falls_back = not own.why_not_wgmma(target) and request.why_not_wgmma(target, alignment)
    if falls_back and not (request.is_fp8 or request.is_latent):
        for opened in _OPENED:
            sizes: dict[str, Any] = dict.fromkeys(opened, "auto")
            asked = replace(request, **sizes)
            tiling = _first_that_fits(asked, target, alignment)
            if tiling is not None:
                return tiling
    return choose_tiling(request, target, alignment)


def _first_that_fits(request: TileRequest, target: Target, alignment: int | None) -> AnyTiling | None:
    """The tiling without `wgmma` of the best sizes that fit; None if none do."""
    found = (
        _tiling(request, tile, block_q, target)
        for tile, block_q in product(*_sizes(request, target, alignment))
    )
    return next((tiling for tiling in found if tiling is not None), None)


def _sizes(
    request: TileRequest, target: Target, alignment: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What tile and block_q may be in a kernel without `wgmma`, the best first."""
    default, blocks = _defaults(request, target, request.alignment if alignment is None else alignment)
    return _candidates(request.tile, default, TILES), blocks


def _defaults(request: TileRequest, target: Target, alignment: int) -> tuple[int, tuple[int, ...]]:
    """The default tile of a kernel without `wgmma`, and the sizes that block_q may take, the best first."""
    tile, rows = default_tile(request.columns, target, request.dtype, request.precision)
    if alignment < LEAST_ASYNCHRONOUS:
        tile = min(tile, _TILE_THROUGH_REGISTERS)
    if request.dtype is not F32 and request.has_planes and request.columns > _WIDE:
        tile = min(tile, _TILE_WITH_PLANES)
    blocks = _candidates(request.block_q, rows, request.blocks_q)
    if request.looks_up and request.operands is None and blocks[0] >= _ROWS_LOOKED_UP:
        tile = min(tile, _TILE_LOOKED_UP)
    return tile, blocks


def offered_tiles(
    head_dim: int, head_dim_v: int, target: Target, dtype: str = F32.name, precision: str | None = None
) -> list[tuple[int, int]]:
    """Every (tile, block_q) that a kernel of these head dimensions can have on the target."""
    request = TileRequest(head_dim, head_dim_v, INPUT_DTYPES[dtype], precision=precision)
    return tiles_that_fit(request, target)


def largest_tile(request: TileRequest, target: Target) -> int:
    """The largest tile of keys that fits, whatever `request.tile` is; 0 if none does."""
    return max((tile for tile, _ in tiles_that_fit(request, target)), default=0)


def most_generous() -> Target:
    """The target with the most shared memory."""
    return max(TARGETS.values(), key=lambda t: t.shared_per_block_optin)


def tiles_that_fit(request: TileRequest, target: Target) -> list[tuple[int, int]]:
    """Every (tile, block_q) that such a kernel can have, whatever sizes `request` gives."""
    dims, stages, beside = (request.head_dim, request.head_dim_v), request.stages, request.other_registers
    if request.is_fp8:
        sizes = product(possible_tiles(request.scale_block), WGMMA_BLOCKS_Q)
        block, in_pages = request.scale_block, request.in_pages
        return [s for s in sizes if fp8_tiling(dims, *s, stages, target, beside, block, in_pages)]
    found = [(n, m) for n in TILES for m in BLOCKS_Q if _tiling(request, n, m, target)]
    for n, m in product(WGMMA_TILES, WGMMA_BLOCKS_Q):
        if (n, m) not in found and not replace(request, tile=n, block_q=m).why_not_wgmma(target):
            found.append((n, m))
    return sorted(found)


def _tiling(request: TileRequest, tile: int, block_q: int, target: Target) -> AnyTiling | None:
    if request.is_latent:
        return None
    sizes = request.head_dim, request.head_dim_v, tile, block_q
    slices = request.value_slices
    if request.operands is PAIRS and (tile not in TILES or block_q > max(request.blocks_q)):
        return None  # of other tiles the rows are no multiple of those that threads split at once
    found: Sequence[AnyTiling]
    if request.operands is None:
        found = micro_tiles(*sizes, target, slices)
    else:
        beside = request.other_registers
        found = mma_tilings(*sizes, request.stages, target, beside, request.operands, slices)
    return next((t for t in found if t.shared_bytes <= target.shared_per_block_optin), None)


def _require_target(request: TileRequest, target: Target) -> None:
    if request.operands is None or target.sm >= FIRST_WITH_MMA:
        return
    of_f32 = request.dtype is F32
    what = f"precision={request.precision!r}" if of_f32 else f"dtype={request.dtype.name!r}"
    raise ConfigError(
        f"AttentionConfig: {what} needs sm_{FIRST_WITH_MMA} or later, whose tensor cores and "
        f"asynchronous copies the kernel uses, got {target.name}; use "
        f"{'precision' if of_f32 else 'dtype'}={(IEEE if of_f32 else F32.name)!r}"
    )


def _not_latent(request: TileRequest, target: Target, alignment: int | None) -> str:
    cures = [] if request.dtype in GATHERED else [f"dtype={F16.name!r} or {BF16.name!r}"]
    cures += [] if target.name == WGMMA_TARGET else [f"target={WGMMA_TARGET!r}"]
    use = "other sizes"
    if cures:
        use = f"{' and '.join(cures)}, got {request.dtype.name!r} and {target.name!r}"
    return (
        f"AttentionConfig: head_dim={request.head_dim} with shared_kv is for kernels with wgmma alone, and "
        f"{request.why_not_wgmma(target, alignment)}; use {use}"
    )


def _candidates(asked: int | str, default: int, offered: tuple[int, ...]) -> tuple[int, ...]:
    if asked != "auto":
        return (int(asked),)
    return (default, *(n for n in reversed(offered) if n < default))


def _does_not_fit(request: TileRequest, tile: int, blocks: tuple[int, ...], target: Target) -> str:
    dims = request.head_dim, request.head_dim_v
    block_q = blocks[-1]
    limit = target.shared_per_block_optin
    slices = request.value_slices
    smallest: AnyTiling = (
        Tiling(*dims, tile, block_q, 4, 4, 1, slices)
        if request.operands is None
        else MmaTiling(*dims, tile, block_q, 4, request.stages, request.operands, slices)
    )
    offered = tiles_that_fit(request, target)
    fitting = [pair for pair in offered if pair[1] in blocks]
    if offered:
        largest, goes_with = max(fitting or offered)
        cure = f"the largest tile that fits is {largest}, with block_q={goes_with}"
    else:
        cure = f"no tile fits with stages={request.stages}; use stages={_most_stages(request, target)}"
    problem = (
        f"needs {smallest.shared_bytes} bytes of shared memory, but {target.name} allows {limit} "
        "bytes per block"
        if smallest.shared_bytes > limit
        else f"has no division among threads that fits the registers of {target.name}"
    )
    return (
        f"AttentionConfig: head_dim={dims[0]}, head_dim_v={dims[1]}, tile={tile}, "
        f"block_q={block_q} {problem}; {cure}"
    )


def _most_stages(request: TileRequest, target: Target) -> int:
    """The most stages, fewer than requested, with which a tile fits; one fits with 1 stage."""
    fewer = range(request.stages - 1, 0, -1)
    return next(n for n in fewer if tiles_that_fit(replace(request, stages=n), target))
