"""Descriptions for messages: an instruction, a thread and its CTA, and the variable at an address
in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.interpreter.reports import where_from

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.ir import Instr


@dataclass(frozen=True, slots=True)
class Faults:
    """Descriptions for a batch of CTAs. `regions` are the named ranges of shared memory: name,
    start, bytes.
    """

    kernel: str
    instrs: tuple[Instr, ...]
    batch: Batch
    regions: tuple[tuple[str, int, int], ...]

    def where(self, at: int, lane: int | None = None) -> str:
        """Instruction `at` in words, with a lane's thread and CTA if one is given."""
        words = f"kernel {self.kernel}: {where_from(self.instrs[at])}"
        if lane is None:
            return words
        return f"{words}: thread {self.batch.thread(lane)} of CTA {self.batch.cta(lane)}"

    def region(self, address: int) -> str:
        """The shared variable or region that an address lies in, or the empty string."""
        names = (n for n, start, size in self.regions if start <= address < start + size)
        return next(names, "")

    def mbarrier(self, position: int, lane: int = -1) -> str:
        """The mbarrier at a position of the batch's shared memory, with its address in its CTA; the
        CTA is named if it is not the lane's own.
        """
        cta, address = divmod(position, self.batch.shared_stride)
        region = self.region(address)
        inside = f" ({region})" if region else ""
        far = lane >= 0 and cta != lane // self.batch.width
        where = f" of CTA {self.batch.cta(cta * self.batch.width)}" if far else ""
        return f"the mbarrier at {address:#x}{inside}{where}"
