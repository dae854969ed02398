"""Which bytes of memory from `malloc` are defined, over several launches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ptxgen.interpreter.reports import Report

    Lanes = np.ndarray[Any, np.dtype[Any]]


class HeapBytes:
    """The state of the bytes of an allocation: `defined`, bool for each byte, and `stored`, the undefined
    bytes that kernels have stored: their indices, and the report that is due when the bytes are used.
    """

    __slots__ = ("defined", "stored")

    def __init__(self, nbytes: int, *, defined: bool = False) -> None:
        self.defined: Lanes = np.full(nbytes, defined, np.bool_)
        self.stored: list[tuple[Lanes, Report]] = []

    def define(self, start: int = 0, nbytes: int | None = None) -> None:
        """Mark bytes as defined because something other than a kernel has written them."""
        end = len(self.defined) if nbytes is None else start + nbytes
        self.defined[start:end] = True
        self._drop(start, end)

    def launched(self, undefined: Lanes, stored: Iterable[tuple[Lanes, Report]], others: Lanes) -> None:
        """Take over the state after a launch: `undefined` marks the undefined bytes, bool; `stored` has the
        indices of those that the launch has stored, with their reports; `others` marks those that were
        undefined before it, bool.
        """
        older = [(index[others[index]], report) for index, report in self.stored]
        self.defined[...] = ~undefined
        self.stored = [(index, report) for index, report in (*older, *stored) if len(index)]

    def reports(self, start: int, nbytes: int) -> list[Report]:
        """The reports that are due when these bytes are used."""
        end = start + nbytes
        return [report for index, report in self.stored if ((start <= index) & (index < end)).any()]

    def copied(self, start: int, nbytes: int) -> HeapBytes:
        """The state of a copy of these bytes."""
        copy = HeapBytes(nbytes)
        copy.defined[...] = self.defined[start : start + nbytes]
        for index, report in self.stored:
            within = index[(start <= index) & (index < start + nbytes)]
            if len(within):
                copy.stored.append((within - start, report))
        return copy

    def paste(self, start: int, copy: HeapBytes) -> None:
        """Give the bytes from `start` on the state of `copy`."""
        end = start + len(copy.defined)
        self._drop(start, end)
        self.defined[start:end] = copy.defined
        self.stored += [(index + start, report) for index, report in copy.stored]

    def _drop(self, start: int, end: int) -> None:
        """Forget the undefined bytes from `start` up to `end` that kernels have stored."""
        outside = [(index[(index < start) | (end <= index)], report) for index, report in self.stored]
        self.stored = [(index, report) for index, report in outside if len(index)]
