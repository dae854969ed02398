"""Memory from `malloc`: which of its bytes are defined, beyond the launch that has written them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ptxgen.interpreter.reports import Report

    Lanes = np.ndarray[Any, np.dtype[Any]]


class HeapBytes:
    """`defined`, bool, says it of each byte of an allocation. `stored` are the undefined bytes that kernels
    have stored: their indices, and the report that is due when the bytes are used.
    """

    __slots__ = ("defined", "stored")

    def __init__(self, nbytes: int, *, defined: bool = False) -> None:
        self.defined: Lanes = np.full(nbytes, defined, np.bool_)
        self.stored: list[tuple[Lanes, Report]] = []

    def define(self, start: int = 0, nbytes: int | None = None) -> None:
        """These bytes have been written from outside of kernels."""
        end = len(self.defined) if nbytes is None else start + nbytes
        self.defined[start:end] = True
        self._drop(start, end)

    def launched(self, undefined: Lanes, stored: Iterable[tuple[Lanes, Report]], others: Lanes) -> None:
        """A launch has ended, after which the bytes are `undefined`, bool: those that it has `stored`, and
        `others`, bool, which were undefined before it.
        """
        kept = [(index[others[index]], report) for index, report in self.stored]
        self.defined[...] = ~undefined
        self.stored = [(index, report) for index, report in (*kept, *stored) if len(index)]

    def reports(self, start: int, nbytes: int) -> list[Report]:
        """The reports that are due when these bytes are used."""
        end = start + nbytes
        return [report for index, report in self.stored if ((start <= index) & (index < end)).any()]

    def copied(self, start: int, nbytes: int) -> HeapBytes:
        """The state of a copy of these bytes."""
        found = HeapBytes(nbytes)
        found.defined[...] = self.defined[start : start + nbytes]
        for index, report in self.stored:
            within = index[(start <= index) & (index < start + nbytes)]
            if len(within):
                found.stored.append((within - start, report))
        return found

    def paste(self, start: int, copy: HeapBytes) -> None:
        """The bytes from `start` on have the state of `copy`."""
        end = start + len(copy.defined)
        self._drop(start, end)
        self.defined[start:end] = copy.defined
        self.stored += [(index + start, report) for index, report in copy.stored]

    def _drop(self, start: int, end: int) -> None:
        kept = [(index[(index < start) | (end <= index)], report) for index, report in self.stored]
        self.stored = [(index, report) for index, report in kept if len(index)]
