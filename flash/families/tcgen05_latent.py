"""Kernels for Blackwell where V is the first columns of K, and rows are wide, as in multi-head latent
attention (MLA; DeepSeek-V2, section 2.1): head_dim 576, head_dim_v 512.

A CTA takes 128 query rows and up to 256 columns of V; where there are more, two CTAs compute the same scores
and half of the columns of O each. Roles are those of `flash/families/tcgen05.py`. Of K, shared memory has
slabs of 64 columns, which come and go one by one, because Q takes most of it; V comes as tiles of its own.

| what is asked | reason against the family |
|---|---|
| what `flash/families/tcgen05.py` lists of targets, tensor maps and tiles | |
| more than 256 columns of V, but no multiple of 64 | |
| a block_q other than 128 | Q of more rows leaves shared memory no room for K and V |
| rotated queries | |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from flash.families.family import Campaign, Family
from flash.families.request import MAX_COLUMNS, TileRequest
from flash.families.simt import padded
from flash.families.tcgen05 import TCGEN05_ROWS, Tcgen05Family, Tcgen05Tiling
from ptxgen.records import dataclass
from ptxgen.target import Target

TCGEN05_LATENT_TILES: Final = (64, 32)
SLAB: Final = 64  # columns of 16-bit elements that the widest swizzle spans
_MOST_STAGES: Final = 2  # of V
_SLABS: Final = 5  # of K in shared memory; more leave no room for a tile of V of 256 columns and 64 keys
_PAIR: Final = 2  # bytes of an element
_WORD: Final = 4  # bytes of a factor
_STEP_BYTES: Final = 1024
_REGIONS: Final = 4  # tiles of Q, K and V, and what comes before them


@dataclass(frozen=True, slots=True)
class Tcgen05LatentTiling(Tcgen05Tiling):
    """The tile sizes and warp roles of one kernel; see `Tcgen05Tiling`. `stages` counts the tiles of V."""

    @property
    def score_columns(self) -> int:
        """See `WgmmaTiling`."""
        return padded(self.head_dim, SLAB)

    @property
    def key_stages(self) -> int:
        """The number of stages of the ring of K, each of which has a slab of columns."""
        return _SLABS

    def tile_of(self, array: str) -> tuple[int, int]:
        """See `WgmmaTiling`; of K, a stage has a slab."""
        return (self.tile, SLAB) if array == "K" else Tcgen05Tiling.tile_of(self, array)

    @property
    def shared_bytes(self) -> int:
        """The bytes of dynamic shared memory of a CTA, at most: the tiles of Q, which O leaves from, and of K
        and V, the factors of rows, and barriers.
        """
        tiles = self.block_q * self.score_columns + _SLABS * self.tile * SLAB
        tiles += self.stages * self.tile * self.output_columns
        return _PAIR * tiles + _WORD * self.block_q + _REGIONS * _STEP_BYTES


class Tcgen05LatentFamily(Tcgen05Family):
    """Kernels for sm_100a and sm_103a whose rows of Q and K are so wide that K comes in slabs."""

    name = "tcgen05 of latents"
    entry = "latent_tcgen05_"
    products = "tcgen05 of latents, with tiles copied by TMA and sums in tensor memory; no GPU has run it"
    multiplies = "latents are rows of more columns than other families take, where V is columns of K"
    tiling = Tcgen05LatentTiling
    emitter = "flash.kernels.tcgen05_latent:tcgen05_latent_forward"
    tile_sizes: ClassVar[tuple[int, ...]] = TCGEN05_LATENT_TILES
    blocks_q: ClassVar[tuple[int, ...]] = (TCGEN05_ROWS,)
    values_in_keys = True
    why_one_block = Family.why_one_block
    campaign: ClassVar[Campaign] = {
        # Two CTAs have half of the columns of V each.
        "f16-sm_100a-causal-latent": {
            "head_dim": 320,
            "head_dim_v": 320,
            "tile": 32,
            "shared_kv": True,
            "target": "sm_100a",
            "causal": "bottom_right",
            "scheduled": 1,
        }
    }

    def computes(self, request: TileRequest) -> bool:
        """See `Family`."""
        return request.shared_kv and request.head_dim > MAX_COLUMNS and request.dtype in self.dtypes

    def against(self, request: TileRequest, target: Target, alignment: int) -> str:
        """See `Family`."""
        if request.rotates and self.is_for(target):
            return "the kernel rotates queries"
        return super().against(request, target, alignment)

    def against_block(self, request: TileRequest) -> str:
        """See `Tcgen05Family`."""
        if request.block_q in ("auto", TCGEN05_ROWS):
            return ""
        return f"block_q={request.block_q}: a CTA has {TCGEN05_ROWS} rows of so many columns"

    def tilings(self, request: TileRequest, target: Target, alignment: int) -> Iterator[Tcgen05LatentTiling]:  # noqa: ARG002
        """See `Family`. Tiles of V are as many as fit if they are not asked for."""
        stages = range(_MOST_STAGES, 0, -1) if request.stages == 1 else (request.stages,)
        for n in self.tiles_of_request(request):
            for s in stages:
                t = Tcgen05LatentTiling(
                    *request.dims, n, TCGEN05_ROWS, s, request.in_pages, gathers=request.gathers
                )
                if t.has_registers(request.other_registers):
                    yield t


TCGEN05_LATENT: Final = Tcgen05LatentFamily()
