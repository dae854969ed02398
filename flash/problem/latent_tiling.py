"""How the work of a kernel for Hopper is dealt to warpgroups where V is the first columns of K, as in
multi-head latent attention (MLA; DeepSeek-V2, section 2.1), and rows are wide: head_dim 576, head_dim_v 512.

A CTA takes 64 query rows. A tile of K is in shared memory once, for both products. Each of two consumers
computes the scores of every second tile and half of the columns of O, of all tiles; they pass on shifts of
rows and weights through shared memory.
"""

from __future__ import annotations

from typing import Final

from flash.problem.simt_tiling import padded
from flash.problem.wgmma_tiling import WGMMA_ROWS, WgmmaTiling
from ptxgen.records import dataclass

MAX_LATENT_DIM: Final = 576  # columns of Q and K, of which a CTA holds 64 rows and two tiles of keys
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
        """Warpgroups that compute."""
        return _CONSUMERS

    @property
    def takes_turns(self) -> bool:
        """False: both consumers need the weights of each other."""
        return False

    @property
    def rest_columns(self) -> int:
        """Columns of K behind those of O, padding included."""
        return self.score_columns - self.output_columns

    @property
    def columns_of_consumer(self) -> int:
        """Columns of O that a consumer computes, padding included."""
        return self.output_columns // _CONSUMERS

    @property
    def score_columns(self) -> int:
        """Columns of head_dim that Q Kᵀ sums over, padding included."""
        return padded(self.head_dim, _SLAB)

    @property
    def output_columns(self) -> int:
        """Columns of head_dim_v that a CTA computes, padding included."""
        return padded(self.head_dim_v, _CONSUMERS * _SLAB)

    @property
    def parts_of_half(self) -> int:
        """Parts in which half of the columns of V arrive, so that products begin before all are there; but
        one that threads copy.
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
        """Dynamic shared memory of a CTA, at most: the tiles of Q and K, the weights, barriers, and shifts of
        rows, some of them between barriers and the tile that follows.
        """
        tiles = (self.block_q + self.stages * self.tile) * self.score_columns + self.block_q * self.tile
        return _PAIR * tiles + _CONSUMERS * WGMMA_ROWS * _F32_BYTES + _BARRIERS

    @property
    def _held_registers(self) -> int:
        """Registers of a consumer's thread with S, O and P."""
        return (self.tile + self.columns_of_consumer) // 2 + self.tile // 4
