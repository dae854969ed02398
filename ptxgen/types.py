"""The scalar types of PTX (PTX ISA, section "Types") and the register classes that hold them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final

from ptxgen.errors import BackendError, ModifierError, did_you_mean
from ptxgen.records import dataclass

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class ScalarType:
    """One fundamental, packed or alternate PTX type. There is one object for each, so identity is
    equality.

    `kind` is one of `u` (unsigned), `s` (signed), `b` (untyped bits), `f` (floating point),
    `x` (two packed floating-point numbers) and `p` (predicate). `register` is the name of the type
    in the `.reg` declaration of a register that holds it, such as `b16` for `u8`.
    """

    name: str
    bits: int
    kind: str
    register: str
    dtype_name: str

    def __reduce__(self) -> tuple[Callable[[str], ScalarType], tuple[str]]:
        return scalar_type, (self.name,)  # what is copied or unpickled is the same object

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__

    @property
    def nbytes(self) -> int:
        """Size in memory in bytes; 0 for `pred`, which memory cannot hold."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether a single value of this type is a floating-point number."""
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """Whether integer arithmetic applies (signed, unsigned or untyped bits)."""
        return self.kind in "usb"

    @property
    def is_signed(self) -> bool:
        """Whether this is a signed integer type."""
        return self.kind == "s"

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The numpy dtype of the value that one lane (thread) holds."""
        return _dtype(self.dtype_name)


@cache
def _dtype(name: str) -> np.dtype[np.generic]:
    import numpy as np

    return narrow_dtype(name) if name == "bfloat16" else np.dtype(name)


def bits_dtype(nbytes: int) -> np.dtype[np.generic]:
    """The numpy type of the bits of a value of 1, 2, 4, 8 or 16 bytes."""
    return _dtype(b128.dtype_name if nbytes == b128.nbytes else f"u{nbytes}")


def narrow_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy type of an element type that numpy lacks, such as "bfloat16" or "float8_e4m3fn".

    Raises `BackendError` where the package ml-dtypes, which has them, is not installed, `TypeError` for a
    name that is none of its types.
    """
    import numpy as np

    try:
        import ml_dtypes
    except ModuleNotFoundError as error:
        raise BackendError(
            f"numpy has no type {name!r}; those that the package ml-dtypes has need it: pip install ml-dtypes"
        ) from error
    if not hasattr(ml_dtypes, name):
        raise TypeError(f"neither numpy nor ml_dtypes has a type {name!r}")
    dtype: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
    return dtype


pred: Final = ScalarType("pred", 1, "p", "pred", "bool")
u8: Final = ScalarType("u8", 8, "u", "b16", "uint8")
u16: Final = ScalarType("u16", 16, "u", "b16", "uint16")
u32: Final = ScalarType("u32", 32, "u", "b32", "uint32")
u64: Final = ScalarType("u64", 64, "u", "b64", "uint64")
s8: Final = ScalarType("s8", 8, "s", "b16", "int8")
s16: Final = ScalarType("s16", 16, "s", "b16", "int16")
s32: Final = ScalarType("s32", 32, "s", "b32", "int32")
s64: Final = ScalarType("s64", 64, "s", "b64", "int64")
b8: Final = ScalarType("b8", 8, "b", "b16", "uint8")
b16: Final = ScalarType("b16", 16, "b", "b16", "uint16")
b32: Final = ScalarType("b32", 32, "b", "b32", "uint32")
b64: Final = ScalarType("b64", 64, "b", "b64", "uint64")
# numpy has no integers of 128 bits; it moves complex numbers as they are, 16 bytes each.
b128: Final = ScalarType("b128", 128, "b", "b128", "complex128")
f16: Final = ScalarType("f16", 16, "f", "b16", "float16")
bf16: Final = ScalarType("bf16", 16, "f", "b16", "bfloat16")
f16x2: Final = ScalarType("f16x2", 32, "x", "b32", "uint32")
bf16x2: Final = ScalarType("bf16x2", 32, "x", "b32", "uint32")
f32: Final = ScalarType("f32", 32, "f", "f32", "float32")
f64: Final = ScalarType("f64", 64, "f", "f64", "float64")
PAIRS: Final = {f16: f16x2, bf16: bf16x2}  # the types of two elements in 32 bits

# The type of an operand that must be in a register declared `.b8`, as that of no value in a kernel in Python
# is: of a `mov` that packs or unpacks bytes. In the syntax of rows it is called `byte`.
byte: Final = ScalarType("b8", 8, "b", "b8", "uint8")

_ALL: Final = (
    *(pred, u8, u16, u32, u64, s8, s16, s32, s64, b8, b16, b32, b64, b128),
    *(f16, bf16, f16x2, bf16x2, f32, f64),
)
TYPES: Final[dict[str, ScalarType]] = {t.name: t for t in _ALL}

# By declared register type: the prefix of register names in generated code, the same as nvcc's.
REGISTER_PREFIX: Final[dict[str, str]] = {
    "pred": "%p",
    "b8": "%b",
    "b16": "%rs",
    "b32": "%r",
    "b64": "%rd",
    "b128": "%rq",
    "f32": "%f",
    "f64": "%fd",
}


def scalar_type(name: str) -> ScalarType:
    """The type called `name`; raises `ModifierError` with the nearest name if there is none."""
    try:
        return TYPES[name]
    except KeyError:
        raise ModifierError(f"no PTX type {name!r}{did_you_mean(name, TYPES)}") from None
