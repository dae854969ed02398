"""The undefined bits of memory: for each bit of a row of bytes whether it is undefined, and for each four
bytes where that comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.arena import Window
from ptxgen.interpreter.machine.memory import gather, scatter
from ptxgen.types import TYPES

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.memory import Plan
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

_WORD: Final = 4  # bytes with one origin
_FIRST_CHECK: Final = 64  # stores after which memory is looked through for undefined bits
_ALL: Final = 0xFF
# The widest units that numpy compares and assigns at once, by bytes.
_UNITS: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),
}


class UndefinedMemory:
    """The undefined bits of a window of `nbytes` from address `base` on, at first all of them or none.
    `origins` has the number of an origin for each word of four bytes, 0 for memory that nothing has written;
    `writers` the number of the last instruction that has stored undefined bits there.
    """

    def __init__(self, base: int, nbytes: int, *, undefined: bool) -> None:
        self.base = base
        self.window = Window(
            base, np.full(-(-nbytes // 16) * 16, _ALL if undefined else 0, np.uint8)[:nbytes]
        )
        self.origins: Lanes = np.zeros(nbytes // _WORD + 2, np.int32)
        self.writers: Lanes = np.zeros(nbytes // _WORD + 2, np.int32)
        self.some = undefined  # whether there may be undefined bits
        self._stores = 0
        self._check_at = _FIRST_CHECK

    @property
    def bits(self) -> Lanes:
        """The undefined bits, uint8, one byte for each byte."""
        return self.window.data

    def any(self, plan: Plan, offset: int, total: int) -> bool:
        """Whether any of the bytes of an access is undefined."""
        if not self.some:
            return False
        unit = min(total, 16)
        for part in range(0, total, unit):
            cells = self.window.elements(_UNITS[unit], 1, plan.low + offset + part)
            index = plan.index(unit) if total == unit else plan.index(total) * (total // unit)
            if cells.take(index).any():
                return True
        return False

    def any_between(self, bases: Lanes, low: int, high: int) -> bool:
        """Whether any of the bytes `low` to `high` - 1, counted from each of these positions, which are in
        rising order, may be undefined.
        """
        steps = bases[1:] - bases[:-1]
        step = int(steps[0]) if len(steps) else 0
        if (low | high | step | int(bases[0])) % 8 or (steps != step).any():
            return True
        shape, first = (len(bases), (high - low) // 8), int(bases[0]) + low
        words = np.ndarray(shape, np.uint64, self.bits.data, first, (step, 8))
        return bool(words.any())

    def clear(self, plan: Plan, offset: int, total: int) -> None:
        """Mark the bytes of a store as defined."""
        if not self.some:
            return
        zero = TYPES[f"b{8 * min(total, 8)}"]
        scatter(plan, self.window, offset, zero, (np.zeros((), zero.dtype),) * (total // zero.nbytes))
        self._stores += 1
        if self._stores == self._check_at:
            self._check_at *= 2
            self.some = bool(self.bits.any())

    def load(self, plan: Plan, offset: int, type: ScalarType, count: int) -> tuple[Lanes, ...]:
        """The undefined bits of `count` values of a type, as unsigned lanes."""
        return gather(plan, self.window, offset, type, count)

    def store(
        self, plan: Plan, offset: int, type: ScalarType, bits: tuple[Lanes, ...], origin: Lanes, at: int
    ) -> None:
        """Record the undefined bits of values stored by instruction `at`; `origin` is that of each lane."""
        scatter(plan, self.window, offset, type, bits)
        self.some = True
        total = type.nbytes * len(bits)
        words = self.words(plan, offset, total)
        active = slice(None) if plan.mask is None else plan.mask
        self.origins[words[active]] = origin[active][:, None]
        self.writers[words[active]] = at

    def words(self, plan: Plan, offset: int, total: int) -> Lanes:
        """The words of an access, `[lanes, words]`."""
        first = (plan.relative + (plan.low + offset - self.base)) // _WORD
        indices: Lanes = first[:, None] + np.arange(-(-total // _WORD))
        return indices

    def origin(self, plan: Plan, offset: int, total: int) -> Lanes:
        """One of the origins of the undefined bytes that each lane reads; 0 if nothing has written them."""
        origins: Lanes = self.origins[self.words(plan, offset, total)].max(axis=1)
        return origins

    def write(self, index: Lanes | slice, bits: Lanes | int, *, adds: bool = False) -> None:
        """Set the undefined bits of bytes; with `adds`, add to the undefined bits that they have."""
        if adds:
            bits = np.bitwise_or(self.bits[index], np.asarray(bits, np.uint8))
        self.bits[index] = bits
        self.some = self.some or bool(np.any(bits))

    def clear_chunks(self, chunks: Lanes) -> None:
        """Mark chunks of 16 bytes, by their numbers, as defined."""
        self.window.elements(_UNITS[16], 1, 0)[chunks] = 0

    def mark(self, index: Lanes, origin: Lanes | int, at: int) -> None:
        """Note the origin and the writer of bytes."""
        self.origins[index // _WORD] = origin
        self.writers[index // _WORD] = at
