"""The element types of arrays, and their names for the user, the kernel and array libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.records import dataclass
from ptxgen.types import ScalarType, bf16, f16, f32, s32, s64, u8

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One element type. `array_name` is its name in numpy, torch and this project's views.

    A narrow type has one byte, and comes with scales: of Q, K and V of the forward pass, and of keys and
    values in a cache, which are divided by a scale and rounded to it: `largest` is its largest number, to
    which they are limited.
    """

    name: str  # as in `AttentionConfig(dtype=...)`
    array_name: str
    scalar: ScalarType  # its type in the kernel
    largest: float | None = None  # of a narrow type
    needs: str | None = None  # the first target that a narrow type can be converted on; None: all can

    @property
    def is_narrow(self) -> bool:
        """Whether this is a narrow type."""
        return self.largest is not None

    @property
    def nbytes(self) -> int:
        """Bytes of one element."""
        return self.scalar.nbytes

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy type."""
        # Imported here, because emitting text does not need numpy.
        from ptxgen.arrays.elements import numpy_type

        return numpy_type(self.array_name)


F32: Final = DType("f32", "float32", f32)  # also the type of LSE, and of a kernel's accumulators
F16: Final = DType("f16", "float16", f16)
BF16: Final = DType("bf16", "bfloat16", bf16)
# Largest numbers: OCP 8-bit floating point, table 1. sm_89 is the first target with `cvt.rn.f16x2.e4m3x2`
# (PTX ISA, "cvt"); e5m2 is the upper byte of an f16.
E4M3: Final = DType("e4m3", "float8_e4m3fn", u8, largest=448.0, needs="sm_89")
E5M2: Final = DType("e5m2", "float8_e5m2", u8, largest=57344.0)
BOOL: Final = DType("bool", "bool", u8)  # for masks: a byte, 0 or 1
U8: Final = DType("u8", "uint8", u8)  # for arrays that functions of scores index
I32: Final = DType("i32", "int32", s32)  # for lengths, and for row indices of packed sequences
I64: Final = DType("i64", "int64", s64)  # for arrays that functions of scores index, which read an s32

DTYPES: Final[dict[str, DType]] = {t.name: t for t in (F32, F16, BF16)}  # for Q, K, V and O
NAN_CODE: Final = 0x7F  # what NaN becomes in a narrow type, as `cvt` has it (PTX ISA, "cvt")
# With scales, for Q, K and V of the forward pass, and for K and V in a cache.
FP8_DTYPES: Final[dict[str, DType]] = {t.name: t for t in (E4M3, E5M2)}
INPUT_DTYPES: Final[dict[str, DType]] = {**DTYPES, **FP8_DTYPES}  # for Q, K and V of the forward pass
CACHE_DTYPES: Final[dict[str, DType]] = {**DTYPES, **FP8_DTYPES}  # for K and V in a cache
OF_ARRAYS: Final[dict[str, DType]] = {t.array_name: t for t in (*CACHE_DTYPES.values(), BOOL, U8, I32, I64)}
AUX_DTYPES: Final = (F32, F16, BF16, I32, I64, U8, BOOL)  # for arrays that functions of scores index
# The least scale of a token in a cache of a narrow type: a row of zeros has it, so that its elements are
# divided by a normal number.
LEAST_TOKEN_SCALE: Final = 2.0**-126
F32_BYTES: Final = F32.nbytes


# Other names of the types of `INPUT_DTYPES`, as array libraries and papers write them.
_OTHER_NAMES: Final = {
    **{t.array_name: t.name for t in INPUT_DTYPES.values()},
    "fp32": "f32",
    "single": "f32",
    "fp16": "f16",
    "half": "f16",
    "float8_e4m3": "e4m3",
}


def config_name(given: object) -> object:
    """The name in a config of an element type that is called by another name ("float16", "half",
    "torch.bfloat16") or given as an object (`torch.bfloat16`, `numpy.float32`, an `ml_dtypes` or
    `jax.numpy` type, a `numpy.dtype`); anything else is returned unchanged.
    """
    name = given if isinstance(given, str) else _library_name(given)
    if name is None:
        return given
    short = name.removeprefix("torch.")
    return _OTHER_NAMES.get(short, short if short in INPUT_DTYPES else given)


def _library_name(given: object) -> str | None:
    """The name of an array library's element type, as that library spells it; None if `given` is no
    such type.
    """
    if type(given).__module__ == "torch":
        return str(given) if type(given).__name__ == "dtype" else None
    import numpy as np

    found = given
    if isinstance(given, type):
        said = getattr(given, "dtype", None)  # an attribute of the types of jax.numpy
        found = said if isinstance(said, np.dtype) else given
        if found is given and issubclass(given, np.generic):
            found = np.dtype(given)
    return found.name if isinstance(found, np.dtype) and found.isnative else None


def dtype(name: str) -> DType:
    """The type called `name` in a config. Raises KeyError for another name."""
    return DTYPES[name]


def require_dtype(who: str, name: str, given: object) -> DType:
    """The type of Q, K, V and O that an argument of `who` called `name` gives. Raises `ConfigError` for
    anything else.
    """
    value = config_name(given)
    if value not in DTYPES:
        known = ", ".join(map(repr, DTYPES))
        raise ConfigError(
            f"{who}: {name} must be one of {known}, got {shown(value)}{did_you_mean(value, DTYPES)}"
        )
    return DTYPES[str(value)]
