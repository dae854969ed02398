"""Values that must not reach the rows which do not see them.

A hidden key has weight 0, but 0 * NaN and 0 * infinity are NaN, and a tensor-core product takes all
keys of a tile. So NaN and infinity in the tiles of V that the mask cuts are made 0 in shared
memory, and at the end the rows that do see such a key get them back. The first costs a few
instructions in those tiles, the second only happens if there was one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flash.cta import Cta
from flash.panel_loader import PanelLoader
from flash.tiles import Matrix
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.target import WARP_SIZE
from ptxgen.types import ScalarType, b16, bf16, f32, u16, u32, u64

_SIGNS: Final = 0x8000_8000  # of a pair of 16-bit numbers
_EXPONENTS: Final = {True: 0x7F80_7F80, False: 0x7C00_7C00}  # of bf16, and of f16
_LAST_BITS: Final = {True: 0x0080_0080, False: 0x0400_0400}  # of those exponents


class NonFinite:
    """Whether something in V was found to be NaN or infinite: a flag of the CTA, in shared memory
    because registers are short.
    """

    def __init__(self, k: KernelBuilder, dtype: ScalarType) -> None:
        self.k = k
        self.dtype = dtype
        self._flag = k.shared("odd_flag", (1, 1), u32).pointer()
        with k.when(k.thread_id() == 0):
            k.store(self._flag, 0)

    def clear(self, loader: PanelLoader, stage: Value | None) -> None:
        """Make what is not finite in this thread's part of a tile 0; its copies have arrived."""
        k = self.k
        for at in loader.chunks(stage):
            words = k.load(at, 4)
            signs = [self._signs(word) for word in words]
            some = signs[0] | signs[1] | signs[2] | signs[3]
            with k.when(some != 0):
                kept = [w & ~((s >> 15) * 0xFFFF) for w, s in zip(words, signs, strict=True)]
                k.store(at, kept)
                k.store(self._flag, 1)

    def _signs(self, pair: Value) -> Value:
        """A bit for each number of the pair whose exponent is all ones, in the place of its sign:
        one more would carry into it.
        """
        brain = self.dtype is bf16
        return ((pair & _EXPONENTS[brain]) + _LAST_BITS[brain]) & _SIGNS

    def restore(self, cta: Cta, block_q: int, cleared: Sequence[tuple[Value | int, Value]]) -> None:
        """Add what was cleared, of the keys in these half-open ranges, to the elements of O that
        see it, for the whole CTA. This thread's part of O has been written.
        """
        k = self.k
        k.note("NaN and infinity of V, for the rows that see them")
        k.barrier()  # O and the flag have been written by all
        with k.when(k.load(self._flag) != 0):
            thread = k.thread_id()
            warp, lane = k.signed(thread // WARP_SIZE), k.signed(thread % WARP_SIZE)
            last = k.min(cta.first_row + block_q, cta.O.rows)
            with (
                k.loop(cta.first_row + warp, last, step=k.threads // WARP_SIZE) as row,
                k.loop(lane, cta.O.columns, step=WARP_SIZE) as column,
            ):
                self._restore_element(cta, row, column, cleared)

    def _restore_element(
        self,
        cta: Cta,
        row: Value,
        column: Value,
        cleared: Sequence[tuple[Value | int, Value]],
    ) -> None:
        k, mask = self.k, cta.mask
        there = k.load(self._element(cta.O, row, column)).as_(self.dtype)
        total, some = k.var(f32, k.cvt(there, dtype=f32)), k.var(u32, 0)
        end_seen = mask.last_key(k, row) + 1
        for begin, end in cleared:
            # A computed 0: the proof follows a loop from there to an end that may be below it.
            start = k.min(cta.tiles, 0) if isinstance(begin, int) else begin
            first = start if mask.left is None else k.max(mask.first_key(k, row), start)
            last = end_seen if len(cleared) == 1 else k.min(end_seen, end)
            with k.loop(first, last) as key:
                bits = k.load(self._element(cta.V, key, column))
                signs = self._signs(k.cvt(bits.as_(u16), dtype=u32))
                odd, hidden = signs != 0, mask.hides(k, row, key)
                with k.when(odd if hidden is None else odd & ~hidden):
                    k.add(total, k.cvt(bits.as_(self.dtype), dtype=f32), into=total)
                    some.set(1)
        with k.when(some != 0):
            rounded = k.cvt(total, dtype=self.dtype, rnd="rn")
            k.store(self._element(cta.O, row, column), rounded.as_(b16))

    def _element(self, of: Matrix, row: Value, column: Value) -> Pointer:
        k = self.k
        offset = k.cvt(column * self.dtype.nbytes, dtype=u64)
        return Pointer(of.row(k, row) + offset, "global", b16)
