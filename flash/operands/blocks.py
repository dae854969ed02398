"""Rows of a KV cache in blocks of 32 elements, each of which begins with a scale, as llama.cpp stores them
(ggml, `ggml-common.h`: block_q8_0, block_q4_0); and all types in which a cache alone stores K and V.

An element is an integer times the scale of its block, an f16, rounded to f16. The kernel that attends reads
codes and scale in halves of a word and multiplies them as f16; ggml's `quantize_row_q8_0_ref` and
`quantize_row_q4_0_ref` say how numbers become codes, the latter with a fused product.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from flash.operands.dtypes import DTYPES, FP8_DTYPES, INT8, DType, integers_as_f16
from ptxgen.records import dataclass
from ptxgen.types import b16, f16, f16x2, f32, s32, u8, u16, u32, u64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ptxgen.dsl import KernelBuilder, Pointer, Value
    from ptxgen.types import ScalarType

BLOCK: Final = 32  # elements
SCALE_BYTES: Final = 2  # at the beginning of a block
CHUNK: Final = 8  # elements that a thread reads at once
LARGEST: Final = 65504.0  # a larger number is stored as this one: decoded numbers are of f16
LEAST_SCALE: Final = 2.0**-126  # a block with a smaller scale, which is 0 as f16, has integers of 0
NAN: Final = 0x7E00  # the scale of a block with a NaN, f16
_EVERY_LANE: Final = -1
_BUTTERFLIES: Final = (16, 8, 4, 2, 1)
_HALF: Final = 16  # lanes, or elements, of half a block
_SIGNS: Final = 0x8080_8080
_NIBBLES: Final = 0x0F0F_0F0F
_NIBBLE: Final = 4  # bits
_MOST: Final = 256  # columns of V: those of a CTA


@dataclass(frozen=True, slots=True)
class BlockType(DType):
    """A narrow type whose elements are in blocks of `BLOCK`, in `code_bytes` bytes after the scale of the
    block. Its arrays are of bytes: a row of n elements has n / `BLOCK` blocks, and begins at an even address.
    """

    code_bytes: int = 0

    @property
    def has_scales(self) -> bool:
        """False: scales are in the blocks."""
        return False

    @property
    def together(self) -> int:
        """See `DType.together`."""
        return BLOCK

    @property
    def row_alignment(self) -> int:
        """See `DType.row_alignment`."""
        return SCALE_BYTES

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return SCALE_BYTES + self.code_bytes

    def in_row(self, columns: int) -> int:
        """See `DType.in_row`."""
        return columns // BLOCK * self.block_bytes

    def length(self, columns: str) -> str:
        """See `DType.length`."""
        return f"{columns} / {BLOCK} * {self.block_bytes}"

    def first_byte(self, chunk: Value) -> Value:
        """The offset in a row of the codes of chunk `chunk` of it, both u32, in bytes."""
        per_block = BLOCK // CHUNK
        return chunk // per_block * self.block_bytes + self.below_scale(chunk)

    def below_scale(self, chunk: Value) -> Value:
        """How far the codes of a chunk are from the scale of their block, in bytes, u32."""
        return chunk % (self.code_bytes // CHUNK) * CHUNK + SCALE_BYTES

    @abstractmethod
    def shift(self, chunk: Value) -> Value | None:
        """How far the codes of a chunk are above the low bits of their bytes, u32; None: not at all."""

    @abstractmethod
    def integers(self, k: KernelBuilder, word: Value, shift: Value | None) -> list[Value]:
        """The integers of four codes in the bytes of a word, u32, as two words of f16."""

    def decoded(
        self, k: KernelBuilder, halves: Sequence[Value], scale: Value, shift: Value | None
    ) -> list[Value]:
        """The `CHUNK` elements of a chunk whose codes are `halves`, b16, with the scale of their block, b16,
        as four words of f16.
        """
        both = k.pack([scale, scale]).as_(f16x2)
        words = [k.pack(list(halves[n : n + 2])).as_(u32) for n in range(0, len(halves), 2)]
        pairs = [pair for word in words for pair in self.integers(k, word, shift)]
        return [k.mul(pair.as_(f16x2), both).as_(u32) for pair in pairs]

    @abstractmethod
    def integer(self, k: KernelBuilder, codes: Value, nth: Value) -> Value:
        """The integer of element `nth`, u32, of the block whose codes are at address `codes`, u64; s32."""

    def element(self, k: KernelBuilder, row: Value, column: Value) -> Value:
        """The element in a column, s32, of the row at address `row`, u64, as f16: rounded as in `decoded`."""
        nth = column.as_(u32)
        block = row + k.cvt(nth // BLOCK * self.block_bytes, dtype=u64)
        scale = k.load(_global(block, b16)).as_(f16)
        return k.cvt(self.integer(k, block + SCALE_BYTES, nth % BLOCK), dtype=f16, rnd="rn") * scale

    def write(self, k: KernelBuilder, at: Value, x: Value, lane: Value) -> None:
        """Write a block to address `at`, u64, of whose elements each lane of a warp, s32, has one, f32."""
        size, number = k.abs(x), x <= math.inf
        counted = k.selp(k.min(size, LARGEST), 0.0, size < math.inf)
        largest = counted
        for distance in _BUTTERFLIES:
            largest = k.max(largest, k.butterfly(largest, distance))
        scale = self._scale(k, largest, k.ballot(counted == largest, _EVERY_LANE), x)
        inverse = k.selp(k.div(1.0, scale), 0.0, k.abs(scale) >= LEAST_SCALE)
        code = k.selp(self._code(k, x, inverse), 0, number, type=s32).as_(u32)
        bits = k.cvt(k.cvt(scale, dtype=f16, rnd="rn").as_(b16).as_(u16), dtype=u32)
        bits = k.selp(bits, NAN, k.vote(number, _EVERY_LANE, mode="all"), type=u32)
        with k.when(lane == 0):
            k.store(_global(at, u16), k.cvt(bits, dtype=u16))
        self._store(k, at + SCALE_BYTES, code, lane)

    @abstractmethod
    def _scale(self, k: KernelBuilder, largest: Value, lanes: Value, x: Value) -> Value:
        """The scale of a block, f32: its largest finite magnitude is `largest`, that of the lanes whose bits
        in `lanes`, b32, are set.
        """

    @abstractmethod
    def _code(self, k: KernelBuilder, x: Value, inverse: Value) -> Value:
        """The code, s32, of a number, f32, in a block with the inverse of its scale."""

    @abstractmethod
    def _store(self, k: KernelBuilder, codes: Value, code: Value, lane: Value) -> None:
        """Write the codes of all lanes, u32, to address `codes`, u64."""


def _global(at: Value, type: ScalarType) -> Pointer:
    """A pointer to a value of a type at an address in global memory, u64."""
    from ptxgen.dsl import Pointer  # settings name types of caches without the instruction table

    return Pointer(at, "global", type)


class Q8(BlockType):
    """Integers of -127 to 127 in a byte, with the scale largest magnitude / 127; rounded to nearest, ties
    away from 0.
    """

    __slots__ = ()

    def shift(self, chunk: Value) -> Value | None:  # noqa: ARG002
        """See `BlockType.shift`."""
        return None

    def integers(self, k: KernelBuilder, word: Value, shift: Value | None) -> list[Value]:  # noqa: ARG002
        """See `BlockType.integers`."""
        return integers_as_f16(k, word ^ _SIGNS, _SIGNS & 0xFF)

    def integer(self, k: KernelBuilder, codes: Value, nth: Value) -> Value:
        """See `BlockType.integer`."""
        code = k.cvt(k.load(_global(codes + k.cvt(nth, dtype=u64), u8)), dtype=u32)
        return (code ^ (_SIGNS & 0xFF)).as_(s32) - (_SIGNS & 0xFF)

    def _scale(self, k: KernelBuilder, largest: Value, lanes: Value, x: Value) -> Value:  # noqa: ARG002
        return k.div(largest, self.largest)

    def _code(self, k: KernelBuilder, x: Value, inverse: Value) -> Value:
        size = k.min(k.abs(x * inverse), self.largest)
        below = k.cvt(size, dtype=s32, rnd="rzi")
        rest = size - k.cvt(below, dtype=f32, rnd="rn")
        nearest = below + k.selp(1, 0, rest >= 0.5, type=s32)
        return k.selp(0 - nearest, nearest, x < 0.0, type=s32)

    def _store(self, k: KernelBuilder, codes: Value, code: Value, lane: Value) -> None:
        k.store(_global(codes + k.cvt(lane, dtype=u64), u8), k.cvt(code, dtype=u8))


class Q4(BlockType):
    """Codes of 0 to 15, eight above their integer: element i in the low half of byte i, and i + 16 in its
    high half. The first element with the largest magnitude has the integer -8: scales have either sign.
    """

    __slots__ = ()

    def shift(self, chunk: Value) -> Value | None:
        """See `BlockType.shift`."""
        return (chunk & (_HALF // CHUNK)) * (_NIBBLE // (_HALF // CHUNK))

    def integers(self, k: KernelBuilder, word: Value, shift: Value | None) -> list[Value]:
        """See `BlockType.integers`."""
        assert shift is not None
        return integers_as_f16(k, (word >> shift) & _NIBBLES, int(-self.least))

    @property
    def least(self) -> float:
        """The integer of code 0."""
        return -8.0

    def integer(self, k: KernelBuilder, codes: Value, nth: Value) -> Value:
        """See `BlockType.integer`."""
        at = _global(codes + k.cvt(nth % _HALF, dtype=u64), u8)
        code = (k.cvt(k.load(at), dtype=u32) >> (nth // _HALF * _NIBBLE)) & (_NIBBLES & 0xFF)
        return code.as_(s32) + int(self.least)

    def _scale(self, k: KernelBuilder, largest: Value, lanes: Value, x: Value) -> Value:
        first = lanes.as_(u32) & (~lanes.as_(u32) + 1)
        negative = (k.ballot(x < 0.0, _EVERY_LANE).as_(u32) & first) != 0
        return k.div(k.selp(-largest, largest, negative), self.least)

    def _code(self, k: KernelBuilder, x: Value, inverse: Value) -> Value:
        code = k.cvt(k.fma(x, inverse, 0.5 - self.least), dtype=s32, rnd="rzi")
        return k.max(k.min(code, _NIBBLES & 0xFF), 0)

    def _store(self, k: KernelBuilder, codes: Value, code: Value, lane: Value) -> None:
        both = code | (k.butterfly(code, _HALF) << _NIBBLE)
        with k.when(lane < _HALF):
            k.store(_global(codes + k.cvt(lane, dtype=u64), u8), k.cvt(both, dtype=u8))


_OF_BYTES: Final = ("uint8", u8)
_NEEDS: Final = "sm_80"
_INFINITY: Final = 0x7C00  # of a scale
Q8_0: Final = Q8("q8_0", *_OF_BYTES, largest=127.0, nonfinite=_INFINITY, needs=_NEEDS, code_bytes=BLOCK)
Q4_0: Final = Q4("q4_0", *_OF_BYTES, largest=8.0, nonfinite=_INFINITY, needs=_NEEDS, code_bytes=BLOCK // 2)
BLOCK_TYPES: Final[dict[str, BlockType]] = {t.name: t for t in (Q8_0, Q4_0)}
# For K and V in a cache: with scales in arrays of their own, and all that are not types of queries.
SCALED_DTYPES: Final[dict[str, DType]] = {**FP8_DTYPES, INT8.name: INT8}
CACHED_DTYPES: Final[dict[str, DType]] = {**SCALED_DTYPES, **BLOCK_TYPES}
STORED_DTYPES: Final[dict[str, DType]] = {**DTYPES, **CACHED_DTYPES}
SCALED_NAMES: Final = ", ".join(map(repr, SCALED_DTYPES))  # for messages: of settings, and of arrays
SCALED_ARRAYS: Final = ", ".join(t.array_name for t in SCALED_DTYPES.values())


def block_type(dtype: DType) -> BlockType | None:
    """The type itself if its elements are in blocks; else None."""
    return dtype if isinstance(dtype, BlockType) else None


def why_no_blocks(dtype: DType, head_dim: int, head_dim_v: int) -> str:
    """Why rows of K and V are not stored as a type; empty if they can be."""
    dims = (head_dim, head_dim_v)
    if not isinstance(dtype, BlockType) or (not any(dim % BLOCK for dim in dims) and head_dim_v <= _MOST):
        return ""
    return (
        f"blocks of {dtype.name!r} have {BLOCK} elements, so head_dim and head_dim_v must be multiples of "
        f"{BLOCK}, and head_dim_v at most {_MOST}, got {head_dim} and {head_dim_v}; pad Q, K and V with "
        "zeros, or use another type"
    )
