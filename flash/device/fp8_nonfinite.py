"""NaN and infinity in V of fp8, which must not reach the rows that do not see their key: they are set to
0 when a tile is transposed (`flash/device/fp8_values.py`), and added to the rows that see them at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

from flash.device.cta import Cta
from flash.device.nonfinite import NonFinite
from flash.device.team import Team
from flash.operands.dtypes import E4M3, E5M2, DType
from flash.problem.kernel_config import KernelConfig
from ptxgen.dsl import KernelBuilder, Pointer, Value, Var
from ptxgen.types import b16, f16, f32, u8, u16, u32, u64

# By type the bits that are all ones in NaN and infinity, in each byte of a word, and the lowest of them:
# of e4m3 only NaN is not finite, all ones but the sign (OCP 8-bit floating point, table 1).
_ONES: Final[dict[DType, int]] = {E4M3: 0x7F7F_7F7F, E5M2: 0x7C7C_7C7C}
_LOWEST: Final[dict[DType, int]] = {E4M3: 0x0101_0101, E5M2: 0x0404_0404}
_SIGNS: Final = 0x8080_8080
_SIGN_BIT: Final = 7
_BYTE: Final = 0xFF


class Fp8NonFinite(NonFinite):
    """Clears NaN and infinity of V in words, and restores them in O."""

    def __init__(self, k: KernelBuilder, config: KernelConfig) -> None:
        super().__init__(k, config)
        self.of = config.dtype

    def clear_words(self, words: Sequence[Value]) -> list[Var]:
        """The words, four elements each, with 0 for NaN and infinity."""
        k = self.k
        cleared = [k.var(u32, word) for word in words]
        signs = [self._odd(word) for word in words]
        some = signs[0]
        for more in signs[1:]:
            some = some | more
        with k.when(some != 0):
            for word, sign in zip(cleared, signs, strict=True):
                word.set(word & ~((sign >> _SIGN_BIT) * _BYTE))
            self.found()
        return cleared

    def _odd(self, word: Value) -> Value:
        """A word with the sign bit set for each element that is not finite: adding 1 to bits that are all
        ones carries into it.
        """
        return ((word & _ONES[self.of]) + _LOWEST[self.of]) & _SIGNS

    def restore_all(self, cta: Cta, block_q: int, team: Team, scale_of: Callable[[Value], Value]) -> None:
        """Add what was cleared, times the scale of V that `scale_of` gives for a key, to the rows of O that
        see it.
        """
        self._scale_of = scale_of
        first: Value | int = 0 if cta.first_tile is None else cta.first_key_of(self.k, cta.first_tile)
        self.restore(cta, block_q, [(first, cta.tiles * cta.tile)], team)

    def _value(self, cta: Cta, key: Value, column: Value) -> tuple[Value, Callable[[], Value]]:
        """Whether an element of V is NaN or infinite, and a function that emits it as f32."""
        k = self.k
        at = cta.V.row(k, key) + k.cvt(column, dtype=u64)
        code = k.cvt(k.load(Pointer(at, "global", u8)), dtype=u32)
        ones = _ONES[self.of] & _BYTE

        def number() -> Value:
            kind: Literal["e4m3x2", "e5m2x2"] = "e5m2x2" if self.of is E5M2 else "e4m3x2"
            pair = k.cvt_widen(k.cvt(code, dtype=u16).as_(b16), atype=kind)
            low, _ = k.unpack(pair)
            return k.cvt(low.as_(f16), dtype=f32) * self._scale_of(key)

        return (code & ones) == ones, number
