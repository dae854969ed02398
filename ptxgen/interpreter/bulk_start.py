"""One lane's part of an instruction that starts bulk copies: what has to be said of it later."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ptxgen.errors import TrapError

if TYPE_CHECKING:
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
        stamp = watch.start_copy(self.at, self.lane, first, nbytes)
        return functools.partial(watch.land, self.at, self.lane, first, nbytes, counter, stamp)

    def reads(self, first: Lanes, nbytes: int, counter: int | None = None) -> Tell:
        """The same of a copy from there, which an mbarrier or the thread's bulk group counts."""
        watch = self.machine.watch
        if watch is None:
            return nothing
        stamp = watch.start(self.lane)
        watch.start_read(self.at, self.lane, first, nbytes, stamp)
        if counter is None:
            self.machine.stamp_group(self.lane, stamp)
        return functools.partial(watch.was_read, self.at, self.lane, counter, stamp)

    def refuse(self, why: str) -> NoReturn:
        """Stop the kernel. Raises `TrapError`."""
        raise TrapError(f"{self.machine.faults.where(self.at, self.lane)}: {why}")


def nothing() -> None:
    """There is no sanitizer to tell."""
