"""Says what went wrong and where: which instruction, thread and CTA, and what an address belongs
to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxgen.interpreter.reports import Report, where_from

if TYPE_CHECKING:
    from ptxgen.interpreter.lanes import Batch
    from ptxgen.interpreter.race import Conflict
    from ptxgen.ir import Instr

Reports = dict[tuple[str, int, int], Report]  # by kind, instruction and other instruction


@dataclass(frozen=True, slots=True)
class Faults:
    """The words for a batch of CTAs. `regions` are the named ranges of shared memory: name, start,
    bytes.

    `reports` grows by what the sanitizers find; the same pair of instructions is reported once in a
    run.
    """

    kernel: str
    instrs: tuple[Instr, ...]
    batch: Batch
    regions: tuple[tuple[str, int, int], ...]
    reports: Reports

    def where(self, at: int, lane: int | None = None) -> str:
        """Instruction `at`, and a lane's thread and CTA if one is given."""
        words = f"kernel {self.kernel}: {where_from(self.instrs[at])}"
        if lane is None:
            return words
        return f"{words}: thread {self.batch.thread(lane)} of CTA {self.batch.cta(lane)}"

    def region(self, address: int) -> str:
        """The shared variable or region that an address lies in, or the empty string."""
        found = (n for n, start, size in self.regions if start <= address < start + size)
        return next(found, "")

    def register(self, at: int, register: str, lane: int) -> None:
        """Report a register read before it was written."""
        message = f"{self.where(at, lane)}: undefined: reads {register}, which it has not written"
        key = "undefined", at, -1
        if key not in self.reports:
            thread, cta = lane % self.batch.width, self.batch.cta(lane)
            instr = where_from(self.instrs[at])
            self.reports[key] = Report(
                "undefined", "register", 0, register, cta, (thread,), instr, "", message
            )

    def memory(self, at: int, conflict: Conflict, address: int, lane: int) -> None:
        """Report what the race detector found at an address of shared memory."""
        key = conflict.kind, at, conflict.other
        if key in self.reports:
            return
        region = self.region(address)
        other = where_from(self.instrs[conflict.other]) if conflict.other >= 0 else ""
        inside = f" ({region})" if region else ""
        message = (
            f"{self.where(at, lane)}: {conflict.kind}: shared address {address:#x}{inside} "
            f"{conflict.what}{self._whom(conflict, other)}"
        )
        threads: tuple[int, ...] = (lane % self.batch.width,)
        if conflict.kind == "race" and conflict.other_thread >= 0:
            threads = (*threads, conflict.other_thread)
        self.reports[key] = Report(
            conflict.kind, "shared", address, region, self.batch.cta(lane), threads,
            where_from(self.instrs[at]), other, message,
        )  # fmt: skip

    def _whom(self, conflict: Conflict, other: str) -> str:
        if conflict.kind == "uninitialised":
            return ""
        if conflict.kind == "pending":
            return f" {other}; its thread has not waited for its group"
        several = conflict.other_thread < 0
        thread = (
            "several threads" if several else f"thread {self.batch.thread(conflict.other_thread)}"
        )
        return f" {thread} in {other}; no barrier orders the two"
