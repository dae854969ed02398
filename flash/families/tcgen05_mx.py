"""Kernels with scales of blocks of elements for Blackwell: of Q, K and V of fp8 in blocks of 32 (MXFP8), and
of Q and K of four bits in blocks of 16 (NVFP4) with V of MXFP8. Tiles and roles are those of
`flash/families/tcgen05_fp8.py`.

Products take the scales from tensor memory, where those of 128 rows and 4 blocks have 4 columns: the scales
of each row tile of Q, and of one tile each of K and of V. P has scales of 1.

| what is asked | reason against the family |
|---|---|
| what `flash/families/tcgen05.py` lists of targets and sizes | |
| what `not_for_fp8` of `flash/problem/narrow.py` names | |
"""

from __future__ import annotations

from typing import ClassVar, Final

from flash.families.family import Campaign, Offered
from flash.families.request import TileRequest
from flash.families.tcgen05 import TCGEN05_ROWS, TCGEN05_TARGET
from flash.families.tcgen05_fp8 import Tcgen05Fp8Family, Tcgen05Fp8Tiling
from flash.operands.dtypes import MXFP8, NVFP4, BlockFormat
from ptxgen.records import dataclass
from ptxgen.target import Target

CELL: Final = 4  # scales of a row in a column
_SCALE_COLUMNS: Final = 4  # of 128 rows
_CELL_BYTES: Final = CELL * TCGEN05_ROWS
# Tiles of scales of Q, K, V and P, each of which begins at a multiple of these bytes.
_REGIONS: Final = 4
_STEP_BYTES: Final = 1024
# Elements of rows of Q and K of four bits: those of 32, 64 and 128 bytes, as swizzles have them; a product
# takes 32 bytes.
_COLUMNS: Final = (64, 128, 256)


@dataclass(frozen=True, slots=True)
class Tcgen05MxTiling(Tcgen05Fp8Tiling):
    """Tiles and roles of one kernel; see `Tcgen05Fp8Tiling`. A cell is the scales of 4 blocks in each of 128
    rows, the unit of copies to tensor memory. `blocks` is the format of Q and K.
    """

    blocks: ClassVar[BlockFormat] = MXFP8

    @property
    def row_cells(self) -> int:
        """The number of scale-factor cells for 128 rows of Q, or for a tile of K."""
        return -(-self.score_columns // (CELL * self.blocks.size))

    @property
    def value_cells(self) -> int:
        """The number of scale-factor cells for a tile of V, whose columns are rows of a product."""
        return -(-self.output_columns // TCGEN05_ROWS)

    @property
    def scale_columns(self) -> int:
        """See `Tcgen05Fp8Tiling`: of Q, K, V and P."""
        return _SCALE_COLUMNS * ((self.row_tiles + 1) * self.row_cells + self.value_cells + 1)

    @property
    def scale_bytes(self) -> int:
        """See `Tcgen05Fp8Tiling`: of Q, K, V and P."""
        of_tiles = self.stages * (self.row_cells + self.value_cells)
        return _CELL_BYTES * (self.row_tiles * self.row_cells + of_tiles + 1) + _REGIONS * _STEP_BYTES


@dataclass(frozen=True, slots=True)
class Tcgen05NvTiling(Tcgen05MxTiling):
    """The tile sizes and warp roles of one kernel with Q and K of NVFP4; see `Tcgen05MxTiling`."""

    blocks: ClassVar[BlockFormat] = NVFP4

    @property
    def score_columns(self) -> int:
        """See `WgmmaTiling`."""
        return next(n for n in _COLUMNS if self.head_dim <= n)

    def tile_of(self, array: str) -> tuple[int, int]:
        """See `WgmmaTiling`; columns of Q and K are bytes."""
        rows, columns = Tcgen05MxTiling.tile_of(self, array)
        return rows, columns // self.blocks.in_byte if array in ("Q", "K") else columns


class Tcgen05MxFamily(Tcgen05Fp8Family):
    """Kernels with Q and K of a format of blocks, and V of MXFP8, for sm_100a and sm_103a."""

    name = "tcgen05 of mxfp8"
    products = "tcgen05 of mxfp8, with tiles copied by TMA and sums in tensor memory; no GPU has run it"
    multiplies = "tcgen05 multiplies blocks with scales here"
    tiling: type[Tcgen05MxTiling] = Tcgen05MxTiling
    target = TCGEN05_TARGET  # its kernels run on sm_103, too
    emitter = "flash.kernels.tcgen05_mx_forward:tcgen05_mx_attention_forward"
    campaign: ClassVar[Campaign] = {
        "mxfp8-sm_100a-causal": {
            "dtype": "e4m3",
            "scale_block": MXFP8.word,
            "head_dim": 64,
            "tile": 32,
            "block_q": 128,
            "target": "sm_100a",
            "causal": "bottom_right",
            "scheduled": 1,
        }
    }

    def computes(self, request: TileRequest) -> bool:
        """See `Family`."""
        return request.dtype in self.dtypes and request.mx is self.tiling.blocks

    def refusal(self, request: TileRequest, target: Target, alignment: int | None, offered: Offered) -> str:  # noqa: ARG002
        """See `Family`."""
        asked, why = f"scale_block={self.tiling.blocks.word!r}", self.why_not(request, target, alignment)
        return (
            f"{asked} has one kernel, for sm_100a and sm_103a, which does not take this on {target.name}: "
            f"{why}; or convert Q, K and V to 'bf16'"
        )


class Tcgen05NvFamily(Tcgen05MxFamily):
    """The family of `tcgen05` kernels with Q and K of NVFP4 and V of MXFP8."""

    name = "tcgen05 of nvfp4"
    products = "tcgen05 of nvfp4, with tiles copied by TMA and sums in tensor memory; no GPU has run it"
    tiling = Tcgen05NvTiling
    campaign: ClassVar[Campaign] = {}  # texts are those of `Tcgen05MxFamily` but for the kind of products


TCGEN05_MX: Final = Tcgen05MxFamily()
TCGEN05_NV: Final = Tcgen05NvFamily()
