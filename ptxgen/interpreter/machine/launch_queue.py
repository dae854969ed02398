"""The CTAs of a grid that have not begun, and the requests of running CTAs to cancel them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.access import as_address, base_in
from ptxgen.interpreter.machine.address_map import SHARED_WINDOW
from ptxgen.interpreter.machine.memory import POISON
from ptxgen.interpreter.machine.remote import RemoteMachine
from ptxgen.isa import mbarrier_word
from ptxgen.isa.launches import RESPONSE_BYTES, response

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.bulk_start import Start
    from ptxgen.interpreter.machine.memory import Address
    from ptxgen.interpreter.machine.observer import Tell

    Lanes = np.ndarray[Any, np.dtype[Any]]


@dataclass(slots=True)
class LaunchQueue:
    """The CTAs of a grid from number `next` to `total - 1`, which have not begun. `refused` are the numbers
    of the clusters that know that no launch was left to cancel.
    """

    total: int
    next: int = 0
    refused: set[int] = field(default_factory=set)

    def take(self, most: int) -> tuple[int, int]:
        """Have at most this many CTAs begin, or none of them begin: the first of them, and their number."""
        first, count = self.next, min(most, self.total - self.next)
        self.next += count
        return first, count


class CancelMachine(RemoteMachine):
    """The operation that instructions use that cancel launches."""

    queue: LaunchQueue

    def cancel_launch(
        self, space: str, address: Lanes | Address, mbarrier: Lanes | Address, *, everywhere: bool
    ) -> None:
        """For each thread, take a cluster from the queue of launches and start writing the response to
        shared memory at `address`, with completion on the mbarrier; with `everywhere`, to all CTAs of the
        thread's cluster.
        """
        if space == "generic":
            address, mbarrier = (base_in(as_address(a), "shared", SHARED_WINDOW) for a in (address, mbarrier))
        size = self.batch.cluster_size
        sizes = np.full(len(self.active_ids(self.mask)), RESPONSE_BYTES)
        ctas = np.full(self.selection.count, (1 << size) - 1) if everywhere else None
        for n, (start, target, bar, _) in enumerate(
            self._targets(address, sizes, mbarrier, active_only=True)
        ):
            cluster = (self.batch.first + start.lane // self.batch.width) // size
            if cluster in self.queue.refused:
                start.refuse(
                    "asks for a launch to cancel after a request of its cluster has failed: what this one "
                    "does is undefined"
                )
            first, count = self.queue.take(size)
            answer = response(self.batch.index_of(first) if count else None, POISON)
            for position, counter in self._copies_of(start, target, bar, ctas, n):
                landed = start.writes(np.array([position]), RESPONSE_BYTES, counter)

                def land(
                    start: Start = start,
                    position: int = position,
                    counter: int = counter,
                    landed: Tell = landed,
                    answer: bytes = answer,
                    fails: frozenset[int] = frozenset(() if count else (cluster,)),
                ) -> None:
                    memory = self.shared.window.data
                    memory[position : position + RESPONSE_BYTES] = np.frombuffer(answer, np.uint8)
                    landed()
                    self.queue.refused |= fails
                    self._change(start, counter, mbarrier_word.brought, RESPONSE_BYTES)

                self._poison(position, RESPONSE_BYTES)
                if self.definedness is not None:
                    self.definedness.receives(position, RESPONSE_BYTES)
                self.agents.add(counter, land)
