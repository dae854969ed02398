"""The element types of arrays: what the user, the kernel and array libraries call each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ptxgen.types import ScalarType, bf16, f16, f32, pred, s32, u8

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One element type. `array_name` is its name in numpy, torch and this project's views."""

    name: str  # as in `AttentionConfig(dtype=...)`
    array_name: str
    scalar: ScalarType  # in the kernel

    @property
    def nbytes(self) -> int:
        """Bytes of one element."""
        return self.scalar.nbytes

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy type; bfloat16 is that of ml_dtypes, which is imported when it is asked for."""
        return pred.dtype if self is BOOL else self.scalar.dtype


F32: Final = DType("f32", "float32", f32)  # also of LSE, and of what a kernel accumulates in
F16: Final = DType("f16", "float16", f16)
BF16: Final = DType("bf16", "bfloat16", bf16)
BOOL: Final = DType("bool", "bool", u8)  # of masks: a byte, 0 or 1
I32: Final = DType("i32", "int32", s32)  # of lengths, and of places in packed rows

DTYPES: Final[dict[str, DType]] = {t.name: t for t in (F32, F16, BF16)}  # of Q, K, V and O
OF_ARRAYS: Final[dict[str, DType]] = {t.array_name: t for t in (*DTYPES.values(), BOOL, I32)}
F32_BYTES: Final = F32.nbytes


def dtype(name: str) -> DType:
    """The type called `name` in a config. Raises KeyError for another name."""
    return DTYPES[name]
