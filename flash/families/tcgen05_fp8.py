"""Kernels with Q, K and V of fp8 for Blackwell: tiles and roles are those of `flash/families/tcgen05.py`.

Rows of V are multiplied as they are in memory: `tcgen05.mma` takes 8-bit elements whose rows are those of the
sum. O and, as a column of its own, the sum of the rounded weights stay in tensor memory, so that with 128
columns of V two row tiles have tiles of 96 keys.

| what is asked | reason against the family |
|---|---|
| what `flash/families/tcgen05.py` lists of targets and sizes | |
| what `not_for_fp8` of `flash/problem/narrow.py` names | |
"""

from __future__ import annotations

from typing import ClassVar, Final

from flash.families.family import Campaign, Family, Offered
from flash.families.request import TileRequest
from flash.families.tcgen05 import B200_OPERATIONS, Tcgen05Family, Tcgen05Tiling
from flash.operands.dtypes import FP8_DTYPES, DType
from ptxgen.records import dataclass
from ptxgen.target import Target

TCGEN05_FP8_TILES: Final = (128, 96, 64, 32)  # a product takes 32 keys
SUM_COLUMNS: Final = 8  # columns of the sum of weights, the fewest of a product
_HALF: Final = 2  # bytes of an element of O
_WORD: Final = 4  # bytes of a factor
_STEP_BYTES: Final = 1024
# The largest tile with features that take registers: with a softcap 128 keys were seen to spill.
_MOST_WITH_FEATURES: Final = 96
_REGIONS: Final = 5  # tiles of Q, K, V, ones and O


@dataclass(frozen=True, slots=True)
class Tcgen05Fp8Tiling(Tcgen05Tiling):
    """The tile sizes and warp roles of one kernel; see `Tcgen05Tiling`."""

    @property
    def needed_columns(self) -> int:
        """See `Tcgen05Tiling`."""
        return self.row_tiles * (self.tile + self.output_columns + SUM_COLUMNS) + self.scale_columns

    @property
    def scale_columns(self) -> int:
        """The number of columns of tensor memory that hold scale factors of products."""
        return 0

    @property
    def scale_bytes(self) -> int:
        """The bytes of shared memory that hold scale factors of products."""
        return 0

    @property
    def output_is_over_queries(self) -> bool:
        """Whether O leaves through the tile of Q: it does not, because its elements are wider."""
        return False

    def has_registers(self, others: int) -> bool:
        """See `Tcgen05Tiling`."""
        fits = not others or self.tile <= _MOST_WITH_FEATURES
        return fits and Tcgen05Tiling.has_registers(self, others)

    @property
    def shared_bytes(self) -> int:
        """The bytes of dynamic shared memory of a CTA, at most: the tiles of Q, K, V, ones and O, the factors
        of rows, and barriers.
        """
        _, of_scores = self.tile_of("K")
        tiles = self.block_q * (of_scores + _HALF * self.output_columns)
        tiles += self.stages * self.tile * (of_scores + self.output_columns)
        tiles += SUM_COLUMNS * self.tile + self.scale_bytes
        return tiles + _WORD * self.block_q + _REGIONS * _STEP_BYTES


class Tcgen05Fp8Family(Tcgen05Family):
    """The family of `tcgen05` kernels with Q, K and V of fp8, for sm_100a and sm_103a."""

    name = "tcgen05 of fp8"
    products = "tcgen05 of fp8, with tiles copied by TMA and sums in tensor memory; no GPU has run it"
    multiplies = "tcgen05 multiplies fp8 here"
    tiling = Tcgen05Fp8Tiling
    emitter = "flash.kernels.tcgen05_fp8_forward:tcgen05_fp8_attention_forward"
    dtypes: ClassVar[tuple[DType, ...]] = tuple(FP8_DTYPES.values())
    tile_sizes: ClassVar[tuple[int, ...]] = TCGEN05_FP8_TILES
    rate = 2 * B200_OPERATIONS
    gathers = False
    most_slices = 1
    why_one_block = Family.why_one_block
    campaign: ClassVar[Campaign] = {
        "e4m3-sm_100a": {"dtype": "e4m3", "head_dim": 64, "tile": 32, "block_q": 256, "target": "sm_100a"}
    }

    def computes(self, request: TileRequest) -> bool:
        """See `Family`."""
        return super().computes(request) and request.mx is None

    def tiles(self, request: TileRequest) -> tuple[int, ...]:
        """See `Family`: the keys of a tile share a scale."""
        return tuple(n for n in self.tile_sizes if request.scale_block % n == 0)

    def refusal(self, request: TileRequest, target: Target, alignment: int | None, offered: Offered) -> str:  # noqa: ARG002
        """See `Family`."""
        return (
            f"dtype={request.dtype.name!r} has one kernel for {target.name}, which does not take this: "
            f"{self.why_not(request, target, alignment)}; or convert Q, K and V to 'bf16'"
        )


TCGEN05_FP8: Final = Tcgen05Fp8Family()
