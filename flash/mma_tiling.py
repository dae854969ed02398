"""How a tensor-core kernel's work is dealt to warps.

A CTA takes `block_q` query rows and walks over K and V in tiles of `tile` keys. Each warp takes
`16 * row_tiles` of the rows and all keys of a tile, so that a row's maximum and sum are those of
four lanes. The product is `mma.sync.m16n8k16`: head_dim and head_dim_v are padded to multiples of
16 in shared memory, with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flash.tiling import padded
from ptxgen.target import WARP_SIZE, Target

MMA_ROWS: Final = 16  # M of m16n8k16
MMA_KEYS: Final = 8  # N
MMA_DEPTH: Final = 16  # K
WIDEST_PANEL: Final = 64  # elements
MMA_BLOCKS_Q: Final = (32, 64, 128)  # two warps at least
HALF_BYTES: Final = 2  # of f16 and bf16

# Registers beside the accumulators, what P takes and the operands in flight: what the assembler
# was seen to add.
_OTHER_REGISTERS: Final = 48
_MOST_REGISTERS: Final = 255
# A longer Q Kᵀ of one warp, in `mma` instructions, was seen to spill where the rest of the estimate
# is near the limit: it is unrolled, and half of what it has more is taken to be a register each.
_SHORT_PRODUCT: Final = 192
_ACCUMULATOR: Final = MMA_ROWS * MMA_KEYS // WARP_SIZE  # registers of one 16 x 8 tile of f32


@dataclass(frozen=True, slots=True)
class MmaTiling:
    """Tiles and warps of one kernel; all sizes in elements unless they say bytes.

    `stages` is how many tiles of K, and of V, shared memory holds.
    """

    head_dim: int
    head_dim_v: int
    tile: int
    block_q: int
    warps: int
    stages: int = 1

    @property
    def row_tiles(self) -> int:
        """Blocks of 16 query rows that one warp computes."""
        return self.block_q // (MMA_ROWS * self.warps)

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.warps * WARP_SIZE

    @property
    def score_columns(self) -> int:
        """head_dim with the padding that Q Kᵀ sums over."""
        return padded(self.head_dim, MMA_DEPTH)

    @property
    def output_columns(self) -> int:
        """head_dim_v with the padding that P V computes."""
        return padded(self.head_dim_v, MMA_DEPTH)

    @property
    def score_width(self) -> int:
        """Columns of the Q and K tiles in shared memory."""
        return _width(self.score_columns)

    @property
    def output_width(self) -> int:
        """Columns of the V tiles in shared memory."""
        return _width(self.output_columns)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA: the Q, K and V tiles. O leaves through that of Q."""
        keys = self.stages * self.tile
        return HALF_BYTES * ((self.block_q + keys) * self.score_width + keys * self.output_width)

    @property
    def registers(self) -> int:
        """Estimated registers of a thread: the accumulators of S and O, P, and the rest."""
        columns = self.tile + self.output_columns
        accumulators = self.row_tiles * columns // MMA_KEYS * _ACCUMULATOR
        product = self.row_tiles * (self.tile // MMA_KEYS) * (self.score_columns // MMA_DEPTH)
        in_flight = max(product - _SHORT_PRODUCT, 0) // 2
        return accumulators + in_flight + 4 * self.row_tiles + _OTHER_REGISTERS

    def fits(self, target: Target, other_registers: int = 0) -> bool:
        """Whether a CTA of this shape, whose threads need so many registers more, can run on the
        target without spilling.
        """
        return self.row_tiles > 0 and self.registers + other_registers <= min(
            _MOST_REGISTERS, target.registers_per_block // self.threads
        )


def _width(columns: int) -> int:
    """Columns of a tile that holds so many: whole panels, and at most one narrower one
    (`flash/swizzle.py`). Each other width would cost addresses, which are registers.
    """
    whole, rest = divmod(columns, WIDEST_PANEL)
    return WIDEST_PANEL * whole + (1 << (rest - 1).bit_length() if rest else 0)


def mma_tilings(
    head_dim: int,
    head_dim_v: int,
    tile: int,
    block_q: int,
    stages: int,
    target: Target,
    other_registers: int = 0,
) -> list[MmaTiling]:
    """The tilings of a CTA that fit the target, the best first; `other_registers` are needed for
    what the kernel does beside.

    More rows in a warp mean fewer reads of K and V from shared memory for each product, so four
    warps come before eight.
    """
    found = [
        MmaTiling(head_dim, head_dim_v, tile, block_q, warps, stages)
        for warps in (4, 8, 2)
        if block_q % (warps * MMA_ROWS) == 0
    ]
    return [t for t in found if t.fits(target, other_registers)]
