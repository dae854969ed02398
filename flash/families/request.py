"""The inputs of the choice of a kernel family and of its tiling: `TileRequest`."""

from __future__ import annotations

import math
from typing import Final

from flash.families.precision import Operands, forward_operands_of, resolved
from flash.operands.dtypes import F32, BlockFormat, DType
from ptxgen.records import dataclass

MAX_HEAD_DIM: Final = 576  # columns of Q and K: a CTA has 32 rows and a tile of 16 in 64 KB of shared memory
MAX_HEAD_DIM_V: Final = 512
MAX_COLUMNS: Final = 256  # of V in one CTA, and of Q and K in families that do not say more


def natural_alignment(head_dim: int, head_dim_v: int, dtype: DType) -> int:
    """The largest alignment that contiguous arrays of these head dimensions have, in bytes: 16, 8,
    4 or, for 16-bit types, 2.
    """
    return math.gcd(16, head_dim * dtype.nbytes, head_dim_v * dtype.nbytes)


@dataclass(frozen=True, slots=True)
class TileRequest:
    """The problem's types and sizes by which tiles are chosen; `tile` and `block_q` may be "auto"."""

    head_dim: int
    head_dim_v: int
    dtype: DType = F32
    tile: int | str = "auto"
    block_q: int | str = "auto"
    stages: int = 1
    other_registers: int = 0  # registers of a thread for the kernel's features
    has_planes: bool = False  # whether there is a mask or a bias
    planes: int = 0  # arrays with an element for each score
    looks_up: bool = False  # whether K and V are in pages, or there is a mask of their last keys
    precision: str | None = None
    in_pages: bool = False  # whether K and V are in pages, and queries packed
    gathers: bool = False  # whether rows of pages lie in no boxes of tensor copies, and threads copy them
    rotates: bool = False  # whether the kernel rotates queries
    without_wgmma: str = ""  # why the problem cannot be computed with `wgmma`, for messages
    shared_kv: bool = False  # whether V is columns of K
    scale_block: int = 0  # rows of fp8 that share a scale; 0 if all of a head do
    mx: BlockFormat | None = None  # of Q and K, if blocks of elements have scales, which products take

    @property
    def dims(self) -> tuple[int, int]:
        """The columns of Q and K (head_dim), and those of V and O (head_dim_v)."""
        return self.head_dim, self.head_dim_v

    @property
    def is_fp8(self) -> bool:
        """Whether Q, K and V are of fp8, which `wgmma` and `tcgen05` alone multiply."""
        return self.dtype.is_narrow

    @property
    def precision_of_f32(self) -> str | None:
        """The precision of products of f32; None for 16-bit types."""
        return resolved(self.dtype, self.precision)

    @property
    def operands(self) -> Operands | None:
        """The form in which elements enter a tensor core; None for a kernel that uses none."""
        return forward_operands_of(self.dtype, self.precision)

    @property
    def alignment(self) -> int:
        """The alignment in bytes that contiguous arrays of these dimensions have."""
        return natural_alignment(self.head_dim, self.head_dim_v, self.dtype)

    @property
    def value_slices(self) -> int:
        """Slices of the columns of V and O: as few as a CTA has registers for, because the CTA of
        each slice computes the scores again.
        """
        return -(-self.head_dim_v // MAX_COLUMNS)

    @property
    def columns(self) -> int:
        """The columns of Q and K, or those of V that a CTA takes, whichever are more."""
        return max(self.head_dim, -(-self.head_dim_v // self.value_slices))
