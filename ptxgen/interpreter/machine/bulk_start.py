"""One lane's part of an instruction that starts bulk copies: messages about it for the sanitizers
and in errors.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.isa.bulk import sums_floats

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.arena import Buffer, DeviceArena
    from ptxgen.interpreter.machine.boxes import Reduce
    from ptxgen.interpreter.machine.bulk_groups import BulkGroups
    from ptxgen.interpreter.machine.faults import Faults
    from ptxgen.interpreter.machine.observer import Observer, Tell
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]


@dataclass(slots=True)
class Start:
    """A lane that executes instruction `at`. `source` is the number by which sanitizers know its read of
    global memory.
    """

    watch: Observer | None
    groups: BulkGroups
    arena: DeviceArena
    faults: Faults
    at: int
    lane: int
    source: int = 0

    def writes(self, first: Lanes, nbytes: int, counter: int, *, update: bool = False) -> Tell:
        """Tell the sanitizers of a copy to `nbytes` at each of the positions `first` of shared memory, or
        with `update` of a reduction into them, with completion on the mbarrier at `counter`. The returned
        function tells them of the end of the write.
        """
        if self.watch is None:
            return nothing
        access = self.at, self.lane, first, nbytes, counter
        number = self.watch.bulk.start_write(*access, source=self.source, update=update)
        return functools.partial(self.watch.bulk.written, self.at, self.lane, counter, number)

    def reads(self, first: Lanes, nbytes: int, counter: int | None = None) -> Tell:
        """Tell the sanitizers of a copy from shared memory that completes on the mbarrier at
        `counter`, or in the thread's bulk group. The returned function tells them that the source
        has been read.
        """
        if self.watch is None:
            return nothing
        number = self.watch.bulk.start_read(self.at, self.lane, first, nbytes, counter)
        if counter is None:
            self.groups.reads(self.lane, number)
        return functools.partial(self.watch.bulk.was_read, self.at, self.lane, counter, number)

    def reads_global(self, first: Lanes, nbytes: int) -> None:
        """Tell the sanitizers of a copy from `nbytes` of one array in global memory at each of the
        addresses `first`.
        """
        buffer = self._array(first, nbytes)
        if self.watch is not None and buffer is not None:
            self.source = self.watch.bulk.start_global_read(self.at, self.lane, buffer, first, nbytes)

    def writes_global(
        self, first: Lanes, nbytes: int, reduce: Reduce | None, type: ScalarType, *, again: bool
    ) -> None:
        """Tell the sanitizers of a copy to global memory, or of a reduction of numbers of `type` into it, in
        the thread's bulk group. `again`: an earlier lane of the warp starts the same copy with this
        instruction.
        """
        buffer = self._array(first, nbytes)
        if self.watch is not None and buffer is not None:
            how = {"atomic": reduce is not None, "sums": sums_floats(reduce, type), "again": again}
            ended = self.watch.bulk.start_global_write(self.at, self.lane, buffer, first, nbytes, **how)
            if ended is not None:
                self.groups.finish(self.lane, ended)

    def _array(self, first: Lanes, nbytes: int) -> Buffer | None:
        if self.watch is None or not len(first):
            return None
        return self.arena.find(int(first.min()), int(first.max()) + nbytes)

    def refuse(self, why: str) -> NoReturn:
        """Stop the kernel. Raises `TrapError`."""
        raise TrapError(f"{self.faults.where(self.at, self.lane)}: {why}")


def nothing() -> None:
    """Do nothing: no sanitizer runs."""
