"""How exactly a kernel multiplies, and which precisions an element type has."""

from __future__ import annotations

from typing import Final

from flash.operands.dtypes import F32, DType
from flash.problem.mma_tiling import F32_GRADE, HALF, PAIRS, TF32, Operands
from flash.problem.simt_tiling import IEEE

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
    """How elements enter a tensor core; None for a kernel that uses none."""
    return OF_F32[resolved(dtype, precision) or IEEE] if dtype is F32 else HALF


def forward_operands_of(dtype: DType, precision: str | None) -> Operands | None:
    """How elements enter a tensor core in the forward kernel; None for a kernel that uses none."""
    found = operands_of(dtype, precision)
    return PAIRS if found is F32_GRADE else found
