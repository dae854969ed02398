"""The element types of arrays: their names for the user, the kernel and array libraries, and what kernels do
with elements of one byte.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.records import dataclass
from ptxgen.types import ScalarType, b16, b32, bf16, f16, f16x2, f32, s32, s64, u8, u16, u32

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from ptxgen.dsl import KernelBuilder, Value

_CONVERTING_SM: Final = 89  # the first target that converts narrow types (PTX ISA, "cvt")
WIDENED: Final = 8  # elements of one byte that are read together (`flash/device/widening_loader.py`)
_BYTE: Final = 8  # bits
_BELOW_HALF: Final = (1 << (_BYTE - 1)) - 1  # of the upper byte's last bit, in units of the lower byte's
# Selectors of `prmt`: bytes 0 and 1 of a word, or 2 and 3, each above a byte of 0, which is byte 4.
_UPPER_BYTES: Final = (0x1404, 0x3424)
_SIGNS_OF_BYTES: Final = 0x8080_8080
_OF_1024: Final = 0x6400  # the bits of 1024 as f16, in whose lower byte an integer is added to it
_BYTES_OF_1024: Final = 0x6464_6464
_BELOW_1024: Final = (0x4140, 0x4342)  # as `_UPPER_BYTES`, each byte below one of `_BYTES_OF_1024`


@dataclass(frozen=True, slots=True)
class DType:
    """One element type. `array_name` is its name in numpy, torch and this project's views, and `words` are
    its names elsewhere.

    A narrow type (fp8, int8) has one byte, and comes with scales: of Q, K and V of the forward pass, and of
    keys and values in a cache, which are divided by a scale and rounded to it. `largest` is its largest
    number, to which they are limited, `one` the code of 1, and `nonfinite` has the bits that are all 1 in the
    codes of NaN and infinity alone; 0: it has neither. f16 holds each of its numbers, and its last methods
    emit conversions.
    """

    name: str  # as in `AttentionConfig(dtype=...)`
    array_name: str
    scalar: ScalarType  # its type in the kernel
    words: tuple[str, ...] = ()
    largest: float = 0.0
    one: int = 0
    nonfinite: int = 0
    needs: str | None = None  # the first target that a narrow type can be converted on; None: all can

    @property
    def is_narrow(self) -> bool:
        """Whether this is a narrow type."""
        return self.largest > 0

    @property
    def is_finite(self) -> bool:
        """Whether this is a narrow type without NaN and infinity."""
        return self.is_narrow and not self.nonfinite

    @property
    def has_scales(self) -> bool:
        """Whether this is a narrow type whose numbers are multiplied by scales in arrays of their own."""
        return self.is_narrow

    @property
    def together(self) -> int:
        """The columns that kernels read together: rows of a narrow type have a multiple of these."""
        return WIDENED

    @property
    def row_alignment(self) -> int:
        """The alignment of rows of a narrow type, in bytes."""
        return WIDENED * self.nbytes

    def in_row(self, columns: int) -> int:
        """The length of a row of so many columns in an array."""
        return columns

    def length(self, columns: str) -> str:
        """`in_row` of an expression."""
        return columns

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

    @property
    def rounding(self) -> tuple[float, float]:
        """The largest relative error of a normal number that is rounded to this type, and the largest
        absolute error of smaller numbers.
        """
        import ml_dtypes

        info = ml_dtypes.finfo(self.numpy)  # type: ignore[no-untyped-call]
        return float(info.eps) / 2, float(info.smallest_subnormal) / 2

    def widened(self, k: KernelBuilder, word: Value) -> list[Value]:
        """Four elements in a word, u32, as two words of f16."""
        return [self._widened(k, pair).as_(u32) for pair in k.unpack(word.as_(b32))]

    def number(self, k: KernelBuilder, code: Value) -> Value:
        """The element whose code is `code`, u32, as f32."""
        low, _ = k.unpack(self._widened(k, k.cvt(code, dtype=u16).as_(b16)))
        return k.cvt(low.as_(f16), dtype=f32)

    def nonfinite_number(self, k: KernelBuilder, code: Value, scale: Callable[[], Value | None]) -> Value:
        """The number of a `code` that is NaN or infinite, as f32, on every target, times what `scale` emits
        (None: 1). It is NaN unless the type has infinity.
        """
        del code, scale
        return k.mov(math.nan, type=f32)

    def narrowed(self, k: KernelBuilder, x: Value) -> Value:
        """The code of an f32 rounded to this type, in the lower byte of a u16: limited to its largest number,
        infinity too; NaN becomes `NAN_CODE`.
        """
        pair: Any = f"{self.name}x2"
        return k.cvt_narrow(0.0, x, dtype=pair).as_(u16)

    def _widened(self, k: KernelBuilder, pair: Value) -> Value:
        """Two elements, b16, as f16x2."""
        of: Any = f"{self.name}x2"
        return k.cvt_widen(pair, atype=of)


class UpperByte(DType):
    """A narrow type of the upper bytes of f16, which every target converts."""

    __slots__ = ()

    def widened(self, k: KernelBuilder, word: Value) -> list[Value]:
        """See `DType.widened`: by byte permutations, as many as conversions where targets have these."""
        return [k.prmt(word.as_(b32), 0, selector).as_(u32) for selector in _UPPER_BYTES]

    def nonfinite_number(self, k: KernelBuilder, code: Value, scale: Callable[[], Value | None]) -> Value:
        """The number of a `code` that is NaN or infinite, as f32, times what `scale` emits; None is 1."""
        number = k.cvt(k.cvt(code << _BYTE, dtype=u16).as_(b16).as_(f16), dtype=f32)
        factor = scale()
        return number if factor is None else number * factor

    def narrowed(self, k: KernelBuilder, x: Value) -> Value:
        """See `DType.narrowed`: by bits where targets do not convert. A number is cut to f16, its last bit is
        set if that was not exact, and the f16 is rounded to nearest even: f16 has more than two bits beyond
        those of its upper byte, so that the sum of both roundings is that of one.
        """
        if k.target.sm >= _CONVERTING_SM:
            return super().narrowed(k, x)
        limited = k.max(k.min(x, self.largest), -self.largest)
        half = k.cvt(limited, dtype=f16, rnd="rz")
        bits = k.cvt(half.as_(b16).as_(u16), dtype=u32)
        is_exact = k.setp(k.cvt(half, dtype=f32), limited, cmp="eq", type=b32)  # neither is NaN
        inexact = k.selp(0, 1, is_exact, type=u32)
        wide = bits | inexact
        nearest = (wide + _BELOW_HALF + ((wide >> _BYTE) & 1)) >> _BYTE
        is_number = x <= math.inf
        return k.cvt(k.selp(nearest, NAN_CODE, is_number, type=u32), dtype=u16)


class SignedByte(DType):
    """int8, of whose codes -128 is not written."""

    __slots__ = ()

    def widened(self, k: KernelBuilder, word: Value) -> list[Value]:
        """See `DType.widened`."""
        return integers_as_f16(k, word ^ _SIGNS_OF_BYTES, 1 << (_BYTE - 1))

    def narrowed(self, k: KernelBuilder, x: Value) -> Value:
        """See `DType.narrowed`: NaN becomes 0."""
        nearest, most = k.cvt(x, dtype=s32, rnd="rni"), int(self.largest)
        return k.cvt(k.max(k.min(nearest, most), -most).as_(u32), dtype=u16)


def integers_as_f16(k: KernelBuilder, word: Value, zero: int) -> list[Value]:
    """The four unsigned bytes of a word, u32, minus `zero`, as two words of f16. A byte below the upper byte
    of 1024 is an f16, 1024 plus that integer; all sums are exact.
    """
    offset = _OF_1024 + zero
    pairs = [k.prmt(word.as_(b32), _BYTES_OF_1024, selector).as_(f16x2) for selector in _BELOW_1024]
    return [k.sub(pair, k.mov(offset << 16 | offset, type=u32).as_(f16x2)).as_(u32) for pair in pairs]


# F32 is also the type of LSE, and of a kernel's accumulators.
F32: Final = DType("f32", "float32", f32, ("fp32", "single"))
F16: Final = DType("f16", "float16", f16, ("fp16", "half"))
BF16: Final = DType("bf16", "bfloat16", bf16)
# Largest numbers and codes: OCP 8-bit floating point, table 1.
E4M3: Final = DType(
    *("e4m3", "float8_e4m3fn", u8, ("float8_e4m3",)),
    largest=448.0,
    one=0x38,
    nonfinite=0x7F,
    needs=f"sm_{_CONVERTING_SM}",
)
INT8: Final = SignedByte("int8", "int8", u8, largest=127.0)
E5M2: Final = UpperByte("e5m2", "float8_e5m2", u8, largest=57344.0, one=0x3C, nonfinite=0x7C)
# Powers of two, scales of blocks of `MX_BLOCK` elements (OCP Microscaling Formats, "E8M0").
MX: Final = "mx"  # the word for Q, K and V with such scales
MX_BLOCK: Final = 32
E8M0: Final = DType("e8m0", "float8_e8m0fnu", u8)
# Bytes with two elements of four bits, the first in the lower half (OCP Microscaling Formats, "E2M1").
NV: Final = "nv"  # the word for Q and K of these
E2M1: Final = DType("e2m1", "uint8", u8)
BOOL: Final = DType("bool", "bool", u8)  # for masks: a byte, 0 or 1
U8: Final = DType("u8", "uint8", u8)  # for arrays that functions of scores index
I32: Final = DType("i32", "int32", s32)  # for lengths, and for row indices of packed sequences
I64: Final = DType("i64", "int64", s64)  # for arrays that functions of scores index, which read an s32

DTYPES: Final[dict[str, DType]] = {t.name: t for t in (F32, F16, BF16)}  # for Q, K, V and O


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """The format of Q and K in blocks of `size` elements of a row, each of which has a scale of type `scale`;
    `word` names it in a config, and `form` in products (`ptxgen/dsl/blackwell/operands.py`). Elements are of
    the config's dtype, or of `element`; a byte has `in_byte` of them. With each format V is in blocks of
    `MX_BLOCK` elements of a column, with scales of e8m0.
    """

    word: str
    size: int
    scale: DType
    form: str
    element: DType | None = None
    in_byte: int = 1


MXFP8: Final = BlockFormat(MX, MX_BLOCK, E8M0, "mxf8")
NVFP4: Final = BlockFormat(NV, 16, E4M3, "nvf4", E2M1, 2)
BLOCK_FORMATS: Final[dict[object, BlockFormat]] = {of.word: of for of in (MXFP8, NVFP4)}
BLOCK_WORDS: Final = " or ".join(repr(of.word) for of in (MXFP8, NVFP4))
NAN_CODE: Final = 0x7F  # what NaN becomes in a narrow type, as `cvt` has it (PTX ISA, "cvt")
# With scales, for Q, K and V of the forward pass, and for K and V in a cache.
FP8_DTYPES: Final[dict[str, DType]] = {t.name: t for t in (E4M3, E5M2)}
FP8_NAMES: Final = " or ".join(map(repr, FP8_DTYPES))  # for messages: of settings, and of arrays
FP8_ARRAYS: Final = " or ".join(t.array_name for t in FP8_DTYPES.values())
INPUT_DTYPES: Final[dict[str, DType]] = {**DTYPES, **FP8_DTYPES}  # for Q, K and V of the forward pass
_NAMED: Final[dict[str, DType]] = {**INPUT_DTYPES, INT8.name: INT8}
OF_ARRAYS: Final[dict[str, DType]] = {t.array_name: t for t in (*_NAMED.values(), E8M0, BOOL, U8, I32, I64)}
AUX_DTYPES: Final = (F32, F16, BF16, I32, I64, U8, BOOL)  # for arrays that functions of scores index
# The least scale of a token in a cache of a narrow type: a row of zeros has it, so that its elements are
# divided by a normal number.
LEAST_TOKEN_SCALE: Final = 2.0**-126
F32_BYTES: Final = F32.nbytes


# Other names of the types of `_NAMED`, as array libraries and papers write them.
_OTHER_NAMES: Final = {word: t.name for t in _NAMED.values() for word in (t.array_name, *t.words)}


def config_name(dtype: object) -> object:
    """The name in a config of an element type that is called by another name ("float16", "half",
    "torch.bfloat16") or given as an object (`torch.bfloat16`, `numpy.float32`, an `ml_dtypes` or
    `jax.numpy` type, a `numpy.dtype`); anything else is returned unchanged.
    """
    name = dtype if isinstance(dtype, str) else _library_name(dtype)
    if name is None:
        return dtype
    short = name.removeprefix("torch.")
    return _OTHER_NAMES.get(short, short if short in _NAMED else dtype)


def _library_name(value: object) -> str | None:
    """The name of an array library's element type, as that library spells it; None if `value` is no
    such type.
    """
    if type(value).__module__ == "torch":
        return str(value) if type(value).__name__ == "dtype" else None
    import numpy as np

    dtype = value
    if isinstance(value, type):
        attribute = getattr(value, "dtype", None)  # an attribute of the types of jax.numpy
        dtype = attribute if isinstance(attribute, np.dtype) else value
        if dtype is value and issubclass(value, np.generic):
            dtype = np.dtype(value)
    return dtype.name if isinstance(dtype, np.dtype) and dtype.isnative else None


def dtype(name: str) -> DType:
    """The type called `name` in a config. Raises KeyError for another name."""
    return DTYPES[name]


def require_dtype(caller: str, name: str, dtype: object) -> DType:
    """The type of Q, K, V and O that an argument of `caller` called `name` gives. Raises `ConfigError` for
    anything else.
    """
    value = config_name(dtype)
    if value not in DTYPES:
        known = ", ".join(map(repr, DTYPES))
        raise ConfigError(
            f"{caller}: {name} must be one of {known}, got {shown(value)}{did_you_mean(value, DTYPES)}"
        )
    return DTYPES[str(value)]
