"""How exactly a kernel multiplies: how elements enter a tensor core, and which precisions a type has."""

from __future__ import annotations

from typing import Final

from flash.operands.dtypes import F32, DType
from ptxgen.records import dataclass

IEEE: Final = "ieee"  # the precision of f32 without tensor cores
_MMA_BYTES: Final = 32  # bytes of a row of A of one `mma`, which is K elements
PANEL_BYTES: Final = 128  # bytes of a row of the widest panel (`ptxgen/dsl/swizzle.py`)


@dataclass(frozen=True, slots=True)
class Operands:
    """The form in which elements of Q, K, V and P enter a tensor core."""

    name: str
    nbytes: int  # bytes of an element in shared memory
    products: int = 1  # times `mma` is issued for one product of matrices
    parts: int = 1  # numbers of equal size that an element becomes in shared memory

    @property
    def depth(self) -> int:
        """The columns of A and rows of B that one `mma` multiplies: its extent along K."""
        return _MMA_BYTES * self.parts // self.nbytes

    @property
    def panel(self) -> int:
        """The number of columns of the widest panel of a tile in shared memory."""
        return PANEL_BYTES // self.nbytes


HALF: Final = Operands("half", 2)  # f16 and bf16
TF32: Final = Operands("tf32", 4)  # f32, of which a product takes 11 bits
F32_GRADE: Final = Operands("f32_grade", 4, products=3)  # f32, of which three products take 22 bits
# f32 as pairs of f16 in shared memory, of which three products take 22 bits (`flash/device/split_tile.py`).
PAIRS: Final = Operands("f32_grade", 4, products=3, parts=2)
FMA: Final = Operands("ieee", 4)  # f32, without tensor cores but with their division among lanes

AUTO: Final = "auto"
# The precisions of f32: f32 without tensor cores; tensor cores with the error of f32; tensor cores
# with 11 bits of each factor.
OF_F32: Final[dict[str, Operands | None]] = {IEEE: None, F32_GRADE.name: F32_GRADE, TF32.name: TF32}


def resolved(dtype: DType, precision: str | None) -> str | None:
    """The precision that a user's choice means, where None and "auto" leave it open; None for
    16-bit types, whose products are exact.
    """
    if dtype is not F32:
        return None
    return IEEE if precision in (None, AUTO) else precision


def choices(dtype: DType) -> tuple[str | None, ...]:
    """The precisions that a user may give for an element type."""
    return (None, AUTO, *OF_F32) if dtype is F32 else (None, AUTO, IEEE)


def operands_of(dtype: DType, precision: str | None) -> Operands | None:
    """The form in which elements enter a tensor core; None for a kernel that uses none."""
    return OF_F32[resolved(dtype, precision) or IEEE] if dtype is F32 else HALF


def forward_operands_of(dtype: DType, precision: str | None) -> Operands | None:
    """The form in which elements enter a tensor core in the forward kernel; None if it uses none."""
    operands = operands_of(dtype, precision)
    return PAIRS if operands is F32_GRADE else operands
