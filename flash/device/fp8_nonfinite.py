"""NaN and infinity in V of fp8, which must not reach the rows that do not see their key: they are set to
0 when a tile is transposed (`flash/device/fp8_values.py`) or has been copied, and added to the rows that see
them at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from flash.device.cleared_values import ClearedValues
from flash.device.cta import Cta
from flash.device.nonfinite import NonFinite, RestoredValues
from flash.operands.dtypes import DType
from flash.problem.kernel_config import KernelConfig
from ptxgen.dsl import KernelBuilder, Pointer, Role, Value, Var
from ptxgen.dsl.hopper import Ring
from ptxgen.types import u8, u32, u64

_SIGNS: Final = 0x8080_8080
_SIGN_BIT: Final = 7
_BYTE: Final = 0xFF
_BYTES: Final = 0x0101_0101  # times a byte: that byte four times


class _OfFp8(RestoredValues):
    """The part of `RestoredValues` for V of fp8: it finds elements that are NaN or infinite."""

    of: DType

    def _signs(self, word: Value) -> Value:
        """A word with the sign bit set for each element that is not finite: adding 1 to bits that are all
        ones carries into it.
        """
        bits = self.of.nonfinite
        return ((word & bits * _BYTES) + (bits & -bits) * _BYTES) & _SIGNS

    def _value(self, cta: Cta, key: Value, column: Value) -> tuple[Value, Callable[[], Value]]:
        """See `RestoredValues`."""
        k = self.k
        at = cta.V.row(k, key) + k.cvt(column, dtype=u64)
        code = k.cvt(k.load(Pointer(at, "global", u8)), dtype=u32)
        bits = self.of.nonfinite
        return (code & bits) == bits, lambda: self.of.number(k, code)


class Fp8ClearedValues(_OfFp8, ClearedValues):
    """Clears NaN and infinity in tiles of V of fp8, and restores them in O; see `ClearedValues`."""

    def __init__(
        self, k: KernelBuilder, config: KernelConfig, producer: Role, consumer: Role, values: Ring
    ) -> None:
        super().__init__(k, config, producer, consumer, values)
        self.of = config.dtype


class Fp8NonFinite(_OfFp8, NonFinite):
    """Clears NaN and infinity of V in words of four elements, and restores them in O."""

    def __init__(self, k: KernelBuilder, config: KernelConfig) -> None:
        super().__init__(k, config)
        self.of = config.dtype

    def clear_words(self, words: Sequence[Value]) -> list[Var]:
        """The 32-bit words, four fp8 elements each, with 0 in place of NaN and infinity."""
        k = self.k
        cleared = [k.var(u32, word) for word in words]
        signs = [self._signs(word) for word in words]
        some = signs[0]
        for more in signs[1:]:
            some = some | more
        with k.when(some != 0):
            for word, sign in zip(cleared, signs, strict=True):
                word.set(word & ~((sign >> _SIGN_BIT) * _BYTE))
            self.note_nonfinite()
        return cleared
