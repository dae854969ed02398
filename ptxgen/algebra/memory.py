"""The words of shared and global memory, by the address of 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptxgen.interpreter import DeviceArena

Lanes = np.ndarray[Any, np.dtype[Any]]

UNIT: Final = 2  # bytes for which there is one word
_BEYOND: Final = 16  # words that the longest access has


@dataclass(slots=True)
class Memories:
    """The words of the memories of a run; `of_shared` are those of all CTAs of the batch that runs, each of
    which has `width` lanes and `stride` bytes.
    """

    of_global: Memory
    of_shared: Memory
    width: int = 1
    stride: int = 0


class Memory:
    """The words of one address space. `ranges` are its buffers, each by its first address and its bytes, in
    ascending order.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._bases: Lanes = np.array([base for base, _ in ranges], np.int64)
        units = [-(-nbytes // UNIT) for _, nbytes in ranges]
        self._firsts: Lanes = np.cumsum([0, *units])[:-1].astype(np.int64)
        self.words: Lanes = np.zeros(sum(units) + _BEYOND, np.uint64)

    @classmethod
    def of_arena(cls, arena: DeviceArena) -> Memory:
        """The words of the arrays that have device addresses."""
        return cls([(buffer.base, buffer.nbytes) for buffer in arena.buffers])

    def units(self, addresses: Lanes) -> Lanes:
        """The indices in `words` of bytes, int64; some index for an address beyond all ranges, at which the
        interpreter ends the run.
        """
        at = np.searchsorted(self._bases, addresses, "right") - 1
        result: Lanes = self._firsts[at] + (addresses - self._bases[at]) // UNIT
        return np.clip(result, 0, len(self.words) - _BEYOND)

    def load(self, addresses: Lanes, units: int) -> Lanes:
        """The words from addresses on, `[n, units]`."""
        words: Lanes = self.words[self.units(addresses)[:, None] + np.arange(units)]
        return words

    def store(self, addresses: Lanes, words: Lanes) -> None:
        """Change the words from addresses on to `words`, `[n, units]`."""
        self.words[self.units(addresses)[:, None] + np.arange(words.shape[1])] = words
