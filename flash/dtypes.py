"""The element types of arrays: what the user, the kernel and array libraries call each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ptxgen.types import ScalarType, bf16, f16, f32, s32, u8

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
        """The numpy type; those of ml_dtypes are known by name once that is imported, which it is
        when one is asked for.
        """
        import numpy as np

        if not hasattr(np, self.array_name):
            import ml_dtypes  # noqa: F401  # for what it registers
        return np.dtype(self.array_name)


F32: Final = DType("f32", "float32", f32)  # also of LSE, and of what a kernel accumulates in
F16: Final = DType("f16", "float16", f16)
BF16: Final = DType("bf16", "bfloat16", bf16)
E4M3: Final = DType("e4m3", "float8_e4m3fn", u8)  # of keys and values in a cache, with a scale
BOOL: Final = DType("bool", "bool", u8)  # of masks: a byte, 0 or 1
I32: Final = DType("i32", "int32", s32)  # of lengths, and of places in packed rows

DTYPES: Final[dict[str, DType]] = {t.name: t for t in (F32, F16, BF16)}  # of Q, K, V and O
CACHE_DTYPES: Final[dict[str, DType]] = {**DTYPES, E4M3.name: E4M3}  # of K and V in a cache
OF_ARRAYS: Final[dict[str, DType]] = {t.array_name: t for t in (*CACHE_DTYPES.values(), BOOL, I32)}
E4M3_MAX: Final = 448.0  # the largest number of that type (OCP 8-bit floating point, table 1)
F32_BYTES: Final = F32.nbytes


def dtype(name: str) -> DType:
    """The type called `name` in a config. Raises KeyError for another name."""
    return DTYPES[name]
