"""How the work of a kernel for Hopper is dealt to warpgroups where V is the first columns of K, as in
multi-head latent attention (MLA; DeepSeek-V2, section 2.1), and rows are wide: head_dim 576, head_dim_v 512.

A CTA takes 64 query rows. A tile of K is in shared memory once, for both products. Each of two consumers
computes the scores of every second tile and half of the columns of O, of all tiles; they pass on shifts of
rows and weights through shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from flash.families.family import Campaign
from flash.families.request import MAX_COLUMNS, TileRequest
from flash.families.simt import padded
from flash.families.wgmma import LEAST_STAGES, WGMMA_ROWS, WGMMA_TARGET, SizedHopperFamily, WgmmaTiling
from flash.operands.dtypes import BF16, F16
from ptxgen.records import dataclass
from ptxgen.target import Target

LATENT_TILES: Final = (64, 32)
_CONSUMERS: Final = 2
_SLAB: Final = 64  # columns of 16-bit elements that the widest swizzle spans
_PARTS: Final = 2
_PAIR: Final = 2  # bytes of an element
_F32_BYTES: Final = 4
_BARRIERS: Final = 2 * 1024  # bytes, at most: barriers move the tile that follows to the next 1024


@dataclass(frozen=True, slots=True)
class LatentTiling(WgmmaTiling):
    """Tiles and warpgroups of one kernel in which V is the first `head_dim_v` columns of K; all sizes in
    elements unless they say bytes. `block_q` is 64.
    """

    @property
    def consumers(self) -> int:
        """The number of warpgroups of a CTA that compute, the consumers of the pipeline."""
        return _CONSUMERS

    @property
    def ping_pong(self) -> bool:
        """Whether consumers alternate (ping-pong): they do not, each needs the weights of the other."""
        return False

    @property
    def rest_columns(self) -> int:
        """The number of columns of K after those that are V, padding included."""
        return self.score_columns - self.output_columns

    @property
    def columns_of_consumer(self) -> int:
        """The number of columns of O that a consumer computes, padding included."""
        return self.output_columns // _CONSUMERS

    @property
    def score_columns(self) -> int:
        """The number of columns of head_dim that Q Kᵀ sums over, padding included."""
        return padded(self.head_dim, _SLAB)

    @property
    def output_columns(self) -> int:
        """The number of columns of head_dim_v that a CTA computes, padding included."""
        return padded(self.head_dim_v, _CONSUMERS * _SLAB)

    @property
    def parts_of_half(self) -> int:
        """Parts in which half of the columns of V arrive, so that products begin before all have arrived;
        only one where threads copy the rows.
        """
        if self.gathers:
            return 1
        return _PARTS if self.columns_of_consumer % (_PARTS * _SLAB) == 0 else 1

    @property
    def has_columns(self) -> bool:
        """Whether K has all columns of V, padding included."""
        return self.output_columns <= self.score_columns

    @property
    def shared_bytes(self) -> int:
        """The bytes of dynamic shared memory of a CTA, at most: the tiles of Q and K, the weights, barriers,
        and shifts of rows, some of them between barriers and the tile that follows.
        """
        tiles = (self.block_q + self.stages * self.tile) * self.score_columns + self.block_q * self.tile
        return _PAIR * tiles + _CONSUMERS * WGMMA_ROWS * _F32_BYTES + _BARRIERS

    @property
    def read_bytes(self) -> int:
        """The bytes of operands that products of a tile read from shared memory: one consumer reads Q and the
        tile for its scores, and each half of the columns of V.
        """
        of_scores = self.score_columns * (WGMMA_ROWS + self.tile)
        return _PAIR * (of_scores + self.tile * self.output_columns)

    @property
    def moved_bytes(self) -> int:
        """The bytes of a tile that pass through shared memory besides what products read as K and V: the tile
        arrives once, and weights of the two consumers are written and read.
        """
        return _PAIR * (self.tile * self.score_columns + 2 * WGMMA_ROWS * self.tile)

    @property
    def _held_registers(self) -> int:
        """The number of registers with S, O and P in a consumer's thread."""
        return (self.tile + self.columns_of_consumer) // 2 + self.tile // 4


class LatentFamily(SizedHopperFamily[LatentTiling]):
    """The family of `wgmma` kernels for wide rows of Q and K, where V is columns of K (MLA)."""

    name = "wgmma of latents"
    entry = "latent_wgmma_"
    multiplies = "latents are rows of more columns than other families take, where V is columns of K"
    tiling = LatentTiling
    emitter = "flash.kernels.wgmma_latent:wgmma_latent_forward"
    dtypes = (F16, BF16)
    tile_sizes = LATENT_TILES
    blocks_q = (WGMMA_ROWS,)
    values_in_keys = True
    mapped = "QKO"
    gathers = True
    # Head dimensions of DeepSeek-V2 and V3.
    workloads: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "latents": {"head_dim": 576, "head_dim_v": 512, "shared_kv": True}
    }
    shared_kv_words = f""" In multi-head latent
    attention (MLA) head_dim is 576 and head_dim_v 512, with one head of K for all heads of Q: with a
    head_dim above {MAX_COLUMNS} f16 and bf16 have kernels that read a tile once for both products, with
    target="{WGMMA_TARGET}" (`flash/families/wgmma_latent.py`), and "sm_100a" or "sm_103a"
    (`flash/families/tcgen05_latent.py`); others read V from memory again."""
    # Two warpgroups alternate between tiles, each with half of the columns, in two parts.
    campaign: ClassVar[Campaign] = {
        "f16-sm_90a-causal-latent": {
            "head_dim": 320,
            "head_dim_v": 256,
            "tile": 32,
            "shared_kv": True,
            "causal": "bottom_right",
        }
    }
    score_courses = ("falling", "stairs")  # warpgroups pass on shifts, with what rounding left of them

    def computes(self, request: TileRequest) -> bool:
        """See `Family`."""
        return request.shared_kv and request.head_dim > MAX_COLUMNS and request.dtype in self.dtypes

    def against(self, request: TileRequest, target: Target, alignment: int) -> str:
        """See `Family`."""
        if request.rotates and target.name == self.target:
            return "the kernel rotates queries"
        return super().against(request, target, alignment)

    def against_sizes(self, request: TileRequest) -> str:
        """See `SizedHopperFamily`."""
        others = request.block_q not in ("auto", WGMMA_ROWS)
        return f"block_q={request.block_q}: a CTA has {WGMMA_ROWS} rows of so many columns" if others else ""

    def tilings(self, request: TileRequest, target: Target, alignment: int) -> Iterator[LatentTiling]:  # noqa: ARG002
        """See `Family`."""
        for n in LATENT_TILES:
            t = self._shape(request, n)
            if request.tile in ("auto", n) and t.has_columns:
                yield t

    def lack(self, request: TileRequest, target: Target) -> str:  # noqa: ARG002
        """See `SizedHopperFamily`."""
        t = self._shape(request, LATENT_TILES[-1])
        if not t.has_columns:
            return f"head_dim_v={t.head_dim_v} takes {t.output_columns} columns, and K has {t.score_columns}"
        return f"tile={request.tile} with stages={t.stages} does not fit shared memory"

    def _shape(self, request: TileRequest, keys: int) -> LatentTiling:
        stages = max(request.stages, LEAST_STAGES)
        return LatentTiling(
            *request.dims, keys, WGMMA_ROWS, stages, request.in_pages, gathers=request.gathers
        )


LATENT: Final = LatentFamily()
