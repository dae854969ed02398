"""One lane's part of an instruction that starts bulk copies: what has to be said of it later."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ptxgen.errors import TrapError

if TYPE_CHECKING:
    from ptxgen.interpreter.arena import Buffer
    from ptxgen.interpreter.bulk import BulkMachine

    Lanes = np.ndarray[Any, np.dtype[Any]]

Tell = Callable[[], None]  # tells the sanitizers something


@dataclass(frozen=True, slots=True)
class Start:
    """A lane that executes instruction `at`."""

    machine: BulkMachine
    at: int
    lane: int

    def writes(self, first: Lanes, nbytes: int, counter: int) -> Tell:
        """Tell the sanitizers of a copy to `nbytes` at each of these positions of shared memory,
        which the mbarrier at `counter` counts; what it gives tells them of its end.
        """
        watch = self.machine.watch
        if watch is None:
            return nothing
        stamp = watch.bulk.start_write(self.at, self.lane, first, nbytes, counter)
        ended = watch.bulk.written
        return functools.partial(ended, self.at, self.lane, first, nbytes, counter, stamp)

    def updates(self, first: Lanes, nbytes: int) -> Tell:
        """Tell them of a reduction into there, whose end orders nothing."""
        if self.machine.watch is not None:
            self.machine.watch.bulk.start_update(self.at, self.lane, first, nbytes)
        return nothing

    def reads(self, first: Lanes, nbytes: int, counter: int | None = None) -> Tell:
        """The same of a copy from there, which an mbarrier or the thread's bulk group counts."""
        watch = self.machine.watch
        if watch is None:
            return nothing
        stamp = watch.bulk.start_read(self.at, self.lane, first, nbytes, counter)
        if counter is None:
            self.machine.groups.stamp(self.lane, stamp)
        return functools.partial(watch.bulk.was_read, self.at, self.lane, counter, stamp)

    def reads_global(self, first: Lanes, nbytes: int) -> None:
        """Tell them of a copy from `nbytes` of global memory at each of these addresses, of one
        array.
        """
        watch = self.machine.watch
        buffer = self._array(first, nbytes)
        if watch is not None and buffer is not None:
            watch.bulk.start_global_read(self.at, self.lane, buffer, first, nbytes)

    def writes_global(self, first: Lanes, nbytes: int, *, atomic: bool) -> None:
        """Tell them of a copy to there, or of a reduction, in the thread's bulk group."""
        watch = self.machine.watch
        buffer = self._array(first, nbytes)
        if watch is not None and buffer is not None:
            ended = watch.bulk.start_global_write(
                self.at, self.lane, buffer, first, nbytes, atomic=atomic
            )
            if ended is not None:
                self.machine.groups.finish(self.lane, ended)

    def _array(self, first: Lanes, nbytes: int) -> Buffer | None:
        if self.machine.watch is None or not len(first):
            return None
        return self.machine.arena.find(int(first.min()), int(first.max()) + nbytes)

    def refuse(self, why: str) -> NoReturn:
        """Stop the kernel. Raises `TrapError`."""
        raise TrapError(f"{self.machine.faults.where(self.at, self.lane)}: {why}")


def nothing() -> None:
    """There is no sanitizer to tell."""
