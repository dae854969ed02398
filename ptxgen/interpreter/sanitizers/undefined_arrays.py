"""The undefined bits of global memory in a launch, the origins of all undefined bits, and the reports of
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.program.linking import param_bytes, signature
from ptxgen.interpreter.sanitizers.findings import Origin
from ptxgen.interpreter.sanitizers.undefined_memory import UndefinedMemory
from ptxgen.ir import Instr

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.arena import Buffer, DeviceArena
    from ptxgen.interpreter.program.linking import Linked
    from ptxgen.interpreter.reports import Report
    from ptxgen.interpreter.sanitizers.findings import Findings

    Lanes = np.ndarray[Any, np.dtype[Any]]


class UndefinedArrays:
    """The undefined bits of global memory during a launch, and the origins of all undefined bits. The
    caller's arrays are defined at first; memory from `malloc` is defined where it has been written.
    """

    def __init__(self, arena: DeviceArena, linked: Linked) -> None:
        self._arena = arena
        self._of: dict[int, tuple[Buffer, UndefinedMemory]] = {}
        self._origins: list[Origin] = []
        self._numbers: dict[tuple[int, str, str], int] = {}
        self._stored: dict[int, tuple[Findings, int]] = {}
        self._locals = _locals(linked)
        self._routines = _routines(linked)

    @property
    def some(self) -> bool:
        """Whether any array may have undefined bits."""
        return bool(self._of) or bool(self._arena.heap)

    def of(self, buffer: Buffer, *, needed: bool) -> UndefinedMemory | None:
        """The undefined bits of an array; None if it has none, unless they are `needed`."""
        cached = self._of.get(id(buffer))
        if cached is not None:
            return cached[1]
        heap = self._arena.heap
        held = heap.get(buffer.base) if heap else None
        if held is None and not needed:
            return None
        memory = UndefinedMemory(buffer.base, buffer.nbytes, undefined=held is not None)
        if held is not None:
            memory.bits[held.defined] = 0
        self._of[id(buffer)] = buffer, memory  # holds the array, so that its id stays unique
        return memory

    # ------------------------------------------------------------------------------------- origins

    def origin(self, at: int, kind: str, space: str, address: int, region: str, what: str) -> int:
        """The number of an origin, from 1; equal for the same kind and region at one instruction."""
        key = at, kind, region
        number = self._numbers.get(key)
        if number is None:
            self._origins.append(Origin(at, kind, space, address, region, what))
            number = self._numbers[key] = len(self._origins)
        return number

    def unwritten(self, at: int, space: str, address: int, region: str) -> int:
        """The origin of bytes of memory that nothing has written."""
        inside = f" ({region})" if region else ""
        stored = self._stored_before(space, address)
        why = f"which has undefined bits from {stored}" if stored else "which nothing has written"
        what = f"{space} address {address:#x}{inside}, {why}"
        return self.origin(at, "uninitialised", space, address, region, what)

    def _stored_before(self, space: str, address: int) -> str:
        """An earlier launch's instruction that stored undefined bits at an address; empty if none did."""
        memory = self._arena.heap_bytes(address, 1) if space == "global" else None
        due = [] if memory is None else memory[0].reports(memory[1], 1)
        return next((report.instr for report in due), "")

    def from_local(self, numbers: Lanes) -> Lanes:
        """Which of these origins are unwritten local memory, bool."""
        local = [False, *(origin.space == "local" for origin in self._origins)]
        is_local: Lanes = np.array(local)[numbers]
        return is_local

    def local_name(self, address: int, at: int) -> str:
        """The variable at an offset in the local memory of a lane, of the routine of an instruction; empty
        if there is none.
        """
        for first, size, name in self._locals[self._routines[at]]:
            if first <= address < first + size:
                return name
        return ""

    # ------------------------------------------------------------------------------------- reports

    def report(self, faults: Findings, at: int, lane: int, what: str, number: int) -> None:
        """Report that an instruction depends on undefined bits from an origin."""
        faults.undefined(at, lane, what, self._origins[number - 1])

    def stored(self, faults: Findings, at: int, lane: int) -> None:
        """Record that a lane has stored undefined bits in an array by instruction `at`."""
        self._stored.setdefault(at, (faults, lane))

    def finish(self) -> None:
        """At the end of a launch, report the arrays with undefined bytes. In memory from `malloc` these are
        noted: they are reported when the host copies them.
        """
        for buffer, memory in self._of.values():
            held = self._arena.heap.get(buffer.base)
            if held is None:
                for bytes_, at, number in _stored_in(memory) if memory.some else ():
                    faults, lane = self._stored[at]
                    what = f"byte {bytes_[0]} of {buffer.name} when the kernel ends"
                    self.report(faults, at, lane, what, number)
            else:
                undefined = memory.bits != 0
                here = memory.origins[np.arange(buffer.nbytes) // 4] != 0
                held.launched(undefined, self._due(buffer, memory), undefined & ~here)

    def _due(self, buffer: Buffer, memory: UndefinedMemory) -> Iterator[tuple[Lanes, Report]]:
        """The undefined bytes that the launch has stored, and the report of their use by the host."""
        for bytes_, at, number in _stored_in(memory):
            faults, lane = self._stored[at]
            alone = replace(faults, reports={})
            what = f"byte {bytes_[0]} of {buffer.name}, which the host copies after the kernel,"
            self.report(alone, at, lane, what, number)
            (report,) = alone.reports.values()
            yield bytes_, report


def _stored_in(memory: UndefinedMemory) -> Iterator[tuple[Lanes, int, int]]:
    """The undefined bytes that instructions have stored, each group with the number of its instruction and
    that of its origin, in the order of their first bytes.
    """
    bytes_ = np.flatnonzero(memory.bits)
    bytes_ = bytes_[memory.origins[bytes_ // 4] != 0]
    pairs = np.stack([memory.writers[bytes_ // 4], memory.origins[bytes_ // 4]], axis=1)
    groups, firsts, of = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    for group in np.argsort(firsts).tolist():
        yield bytes_[of.reshape(-1) == group], *map(int, groups[group])


def _locals(linked: Linked) -> list[list[tuple[int, int, str]]]:
    """For each routine, the variables in its frame: offsets in the local memory of a lane, sizes, names."""
    variables = []
    for routine in linked.routines:
        results, params = signature(routine.source)
        sizes = {p.name: param_bytes(p) for p in (*results, *params)}
        sizes |= {v.name: v.nbytes for v in routine.source.variables}
        ranges = [(routine.frame + x.value, sizes[n], n) for n, x in routine.symbols.items() if x.framed]
        variables.append(ranges)
    return variables


def _routines(linked: Linked) -> list[int]:
    """For each instruction, by number, its routine."""
    return [
        number
        for number, routine in enumerate(linked.routines)
        for statement in routine.source.body or ()
        if isinstance(statement, Instr)
    ]
