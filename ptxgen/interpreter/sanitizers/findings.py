"""The findings of the sanitizers in words: the instructions, threads and CTAs, and the variable at
an address.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ptxgen.interpreter.machine.faults import Faults
from ptxgen.interpreter.reports import Report, origin_of, where_from
from ptxgen.interpreter.sanitizers.names import DETERMINISM, MBARRIER_INIT, TENSOR_FENCE, TENSOR_ORDER
from ptxgen.ir import NOWHERE, Instr, Note

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.arena import Buffer
    from ptxgen.interpreter.program.linking import Linked
    from ptxgen.interpreter.sanitizers.conflicts import Conflict

# The kinds of conflicts that name another thread.
_OF_TWO: Final = ("race", "proxy", MBARRIER_INIT, DETERMINISM, TENSOR_FENCE, TENSOR_ORDER)

Reports = dict[tuple[str, int, int], Report]  # by kind, instruction and other instruction


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of undefined bits: an instruction that has read something which nothing has written. `what`
    describes that in words; `kind`, `space`, `address` and `region` are those of the report.
    """

    at: int
    kind: str
    space: str
    address: int
    region: str
    what: str


@dataclass(frozen=True, slots=True)
class Findings(Faults):
    """The reports of a batch of CTAs. The sanitizers add to `reports`; each pair of instructions is
    reported once in a run.
    """

    reports: Reports
    notes: tuple[str, ...] = ()  # by instruction, the last note before it

    def undefined(self, at: int, lane: int, what: str, origin: Origin) -> None:
        """Report that `what` about an instruction, in words, depends on undefined bits from `origin`."""
        why = f"{origin.kind}: {what} depends on {origin.what}"
        other = -1 if origin.at == at else origin.at
        if other >= 0:
            why += f"; it was read by {where_from(self.instrs[other])}"
        space, address, region = origin.space, origin.address, origin.region
        self._add(_Problem(origin.kind, at, other, lane, why, space, address, region))

    def memory(
        self,
        at: int,
        conflict: Conflict,
        space: str,
        address: int,
        lane: int,
        cta: int,
        buffer: Buffer | None = None,
        region: str | None = None,
        lacking: str = "",
    ) -> None:
        """Report a conflict at an address: in shared memory of the CTA `cta` of the batch, or in an
        array in global memory. `region` is the variable there, if the address is in neither;
        `lacking` says what would order the two accesses, if it is not a barrier.
        """
        key = conflict.kind, at, conflict.other
        if key in self.reports:
            self._again(key)
            return
        if region is None:
            region = self.region(address) if buffer is None else buffer.name
        other = where_from(self.instrs[conflict.other]) if conflict.other >= 0 else ""
        inside = f" ({region})" if region else ""
        where = ""
        if buffer is None and cta >= 0 and cta != lane // self.batch.width:
            where = f" of CTA {self.batch.cta(cta * self.batch.width)}"
        what = conflict.what
        if lacking and what == "was read by" and conflict.kind == "race":
            what = "may still be read by"
        why = (
            f"{conflict.kind}: {space} address {address:#x}{inside}{where} "
            f"{what}{self._whom(conflict, other, lane, lacking)}"
        )
        met = conflict.other_thread if conflict.kind in _OF_TWO else -1
        self._add(_Problem(conflict.kind, at, conflict.other, lane, why, space, address, region, met))

    def sync(
        self,
        at: int,
        lane: int,
        kind: str,
        why: str,
        other: int = -1,
        address: int = -1,
        *,
        relation: str = "it was initialised by",
    ) -> None:
        """Report an instruction that breaks a rule, together with another instruction unless
        `other` is -1; `relation` connects the two in the text.
        """
        region = self.region(address) if address >= 0 else ""
        inside = f" ({region})" if region else ""
        at_address = f"shared address {address:#x}{inside}: " if address >= 0 else ""
        related = f"; {relation} {where_from(self.instrs[other])}" if other >= 0 else ""
        space = "shared" if address >= 0 else ""
        why = f"{kind}: {at_address}{why}{related}"
        self._add(_Problem(kind, at, other, lane, why, space, max(address, 0), region))

    def _again(self, key: tuple[str, int, int]) -> None:
        self.reports[key] = replace(self.reports[key], count=self.reports[key].count + 1)

    def _add(self, problem: _Problem) -> None:
        key = problem.kind, problem.at, problem.other
        if key in self.reports:
            self._again(key)
            return
        batch, width = self.batch, self.batch.width
        threads: tuple[int, ...] = (problem.lane % width,)
        other_cta = None
        if problem.other_lane >= 0:
            threads = (*threads, problem.other_lane % width)
            if problem.other_lane // width != problem.lane // width:
                other_cta = batch.cta(problem.other_lane)
        other = where_from(self.instrs[problem.other]) if problem.other >= 0 else ""
        origin = origin_of(self.instrs[problem.at])
        related = origin_of(self.instrs[problem.other]) if problem.other >= 0 else NOWHERE
        note = self.notes[problem.at] if self.notes else ""
        self.reports[key] = Report(
            problem.kind,
            problem.space,
            problem.address,
            problem.region,
            batch.cta(problem.lane),
            threads,
            where_from(self.instrs[problem.at]),
            other,
            f"{self.where(problem.at, problem.lane)}: {problem.why}",
            other_cta,
            note,
            source=origin.source,
            other_source=related.source,
            line=origin.ptx_line,
            other_line=related.ptx_line,
        )

    def _whom(self, conflict: Conflict, other: str, lane: int, lacking: str) -> str:
        if conflict.kind == "pending":
            return f" {other}; {lacking or 'its thread has not waited for its group'}"
        several = conflict.other_thread < 0
        thread = "several threads" if several else f"thread {self.batch.thread(conflict.other_thread)}"
        if not several and conflict.other_thread // self.batch.width != lane // self.batch.width:
            thread += f" of CTA {self.batch.cta(conflict.other_thread)}"
        lacking = (
            lacking
            or {
                "race": "no barrier orders the two",
                DETERMINISM: "nothing orders the two, so the sum may differ from run to run",
                "proxy": "no fence.proxy.async lets asynchronous operations see it",
                MBARRIER_INIT: "neither fence.mbarrier_init nor fence.proxy.async by that thread, before "
                "this one comes after it, lets asynchronous operations see the mbarrier",
            }[conflict.kind]
        )
        return f" {thread} in {other}; {lacking}"


@dataclass(frozen=True, slots=True)
class _Problem:
    """The data of a report: two instructions, by number, and lanes of the batch; -1: none."""

    kind: str
    at: int
    other: int
    lane: int
    why: str
    space: str
    address: int = 0
    region: str = ""
    other_lane: int = -1


def notes_of(linked: Linked) -> tuple[str, ...]:
    """For each instruction of a program, the text of the last note before it in its routine."""
    notes: list[str] = []
    for routine in linked.routines:
        note = ""
        for statement in routine.source.body or ():
            if isinstance(statement, Note):
                note = statement.text
            elif isinstance(statement, Instr):
                notes.append(note)
    return tuple(notes)
