"""Kernels of f32 with `precision="f32_grade"` and the matrix instructions of Blackwell (`tcgen05`): three
products of f16 for one of f32, as `flash/families/wgmma_split.py` has them for Hopper.

A CTA takes one row tile of 128 queries. Its tensor memory has two stages of S, the high and the low parts of
P, and two stages of sums of the product of a tile of weights with its values, which a warpgroup adds to O in
registers. So the products of one tile of keys are under way while weights of the next one are computed. A
warpgroup has the tiles copied and splits them.

| what is asked | reason against the family |
|---|---|
| what `flash/families/tcgen05.py` lists of targets and tensor maps | |
| head_dim or head_dim_v above 128 | shared memory has no room for two tiles of pairs of f16 |
| a block_q other than 128 | a CTA has one row tile |
| a tile of more than 80 keys | tensor cores truncate their sums |
| rows of pages that lie in no boxes of tensor copies | the threads that would copy them split tiles |
| a tile, or stages, too large for shared memory, registers or tensor memory | |
"""

from __future__ import annotations

from typing import ClassVar, Final

from flash.families.family import Campaign, Family
from flash.families.precision import PAIRS
from flash.families.request import TileRequest
from flash.families.tcgen05 import B200_OPERATIONS, TCGEN05_ROWS, Tcgen05Family, Tcgen05Tiling
from flash.families.wgmma import WARPGROUP
from flash.families.wgmma_split import SPLIT_WIDTHS, PairTiling
from flash.operands.dtypes import F32, DType
from ptxgen.records import dataclass
from ptxgen.target import Target

# Tensor cores truncate their sums: with 96 keys in a sum the error on positive numbers was 2.2 times that of
# PyTorch's f32 (docs/numerics.md).
TCGEN05_SPLIT_TILES: Final = (80, 64, 48, 32, 16)
OUTPUT_STAGES: Final = 2  # of sums of the product of a tile
SCORE_STAGES: Final = 2
_WARPGROUPS: Final = 4  # the softmax, the correction, the splitting threads, and products
# Registers of a thread that computes weights, of one that has O, of one that splits, and of the others, by
# columns of O: all 65536.
_REGISTERS: Final = {64: (208, 136, 104, 64), 128: (152, 192, 104, 64)}
_OTHER_REGISTERS: Final = 56  # of a thread that computes weights, besides the scores of its row
# The largest tile with features that take registers: with dropout 80 keys were seen to spill.
_MOST_WITH_FEATURES: Final = 64
_WORD: Final = 4  # bytes of a factor


@dataclass(frozen=True, slots=True)
class SplitTcgen05Tiling(PairTiling, Tcgen05Tiling):
    """The tile sizes and warp roles of one kernel; see `Tcgen05Tiling`."""

    _regions: ClassVar = 6  # tiles and rings
    _row_factors: ClassVar = 1 + 2 * OUTPUT_STAGES

    @property
    def threads(self) -> int:
        """The number of threads of a CTA."""
        return _WARPGROUPS * WARPGROUP

    @property
    def needed_columns(self) -> int:
        """The number of columns of tensor memory for two stages of S, high and low P, and two of sums."""
        return (SCORE_STAGES + 1) * self.tile + OUTPUT_STAGES * self.output_columns

    def registers_of_roles(self, *, keeps_more: bool) -> tuple[int, int]:  # noqa: ARG002
        """See `Tcgen05Tiling`; a thread that copies also splits."""
        compute, _, copy, _ = _REGISTERS[self.output_columns]
        return copy, compute

    def correction_registers(self, *, keeps_more: bool) -> int:  # noqa: ARG002
        """The number of registers of a thread that holds O."""
        return _REGISTERS[self.output_columns][1]

    @property
    def multiplying_registers(self) -> int:
        """The number of registers of a thread that starts matrix products."""
        return _REGISTERS[self.output_columns][3]

    def has_registers(self, others: int) -> bool:
        """See `Tcgen05Tiling`."""
        if others and self.tile > _MOST_WITH_FEATURES:
            return False
        return self.tile + _OTHER_REGISTERS + others <= _REGISTERS[self.output_columns][0]


class SplitTcgen05Family(Tcgen05Family):
    """The family of `tcgen05` kernels of f32 with precision "f32_grade", for sm_100a and sm_103a."""

    name = "tcgen05 of pairs"
    products = (
        "tcgen05, three of f16 for one of f32, with tiles copied by TMA and sums in tensor memory; no GPU "
        "has run it"
    )
    multiplies = f"tcgen05 multiplies f16 and bf16 here, and pairs of f16 for {PAIRS.name!r}"
    tiling = SplitTcgen05Tiling
    emitter = "flash.kernels.tcgen05_split_forward:tcgen05_split_attention_forward"
    dtypes: ClassVar[tuple[DType, ...]] = (F32,)
    tile_sizes: ClassVar[tuple[int, ...]] = TCGEN05_SPLIT_TILES
    blocks_q: ClassVar[tuple[int, ...]] = (TCGEN05_ROWS,)
    rate = B200_OPERATIONS / PAIRS.products
    gathers = False
    why_one_block = Family.why_one_block
    campaign: ClassVar[Campaign] = {
        "f32_grade-sm_100a": {
            "dtype": "f32",
            "precision": "f32_grade",
            "head_dim": 64,
            "tile": 32,
            "target": "sm_100a",
            "scheduled": 1,
        }
    }

    def computes(self, request: TileRequest) -> bool:
        """See `Family`."""
        return request.operands is PAIRS

    def against(self, request: TileRequest, target: Target, alignment: int) -> str:
        """See `Family`."""
        widest = SPLIT_WIDTHS[-1]
        if self.is_for(target) and max(request.dims) > widest:
            return f"rows of more than {widest} columns leave no room for two tiles of pairs of f16"
        if self.is_for(target) and request.block_q not in ("auto", *self.blocks_q):
            return f"block_q={request.block_q}: a CTA has one row tile of {TCGEN05_ROWS} rows"
        if self.is_for(target) and request.tile not in ("auto", *self.tile_sizes):
            return f"tile={request.tile}: a sum takes at most {max(self.tile_sizes)} keys"
        return super().against(request, target, alignment)


TCGEN05_SPLIT: Final = SplitTcgen05Family()
