"""The registers that a segment names, reads and writes, without its function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptxgen.interpreter.program.linking import Linked, Routine
from ptxgen.interpreter.program.segments import Segment, Step
from ptxgen.interpreter.program.wgmma_reader import Hooks
from ptxgen.ir import Reg, Special, registers_of
from ptxgen.isa.special import special
from ptxgen.types import TYPES

# The beginnings of special registers that differ each time they are read.
COUNTERS: Final = ("%clock", "%globaltimer")


def prefix_of(linked: Linked, routine: Routine) -> str:
    """The prefix that tells the registers of a routine from those of others in the program."""
    return "" if routine is linked.routines[-1] else f"{routine.number}:"


@dataclass(frozen=True, slots=True)
class Named:
    """The registers of a segment by their names in the whole program: the types of all, those that it may
    `read` before it has written them, those that it has `written` for all lanes or some, and the `results`
    of the function that it belongs to. Special registers are read.
    """

    dtypes: dict[str, np.dtype[Any]]
    read: frozenset[str]
    written: frozenset[str]
    results: frozenset[str]

    @classmethod
    def of(cls, segment: Segment, linked: Linked, routine: Routine, hooks: Hooks) -> Named:
        """The registers of a segment."""
        prefix = prefix_of(linked, routine)
        results = [p for p in getattr(routine.source, "results", ()) if p.register]
        params = [p for p in routine.source.params if p.register]
        dtypes = {prefix + p.name: TYPES[TYPES[p.type].register].dtype for p in (*results, *params)}
        read: set[str] = set()
        written: set[str] = set()
        for step in segment.steps:
            for name in _specials(step):
                dtypes[name] = special(name).type.dtype
                read.add(name)
            settled = hooks.settled(step)
            guarded = step.written if step.instr.guard is not None else ()  # keep their values in some lanes
            for register in (*step.read, *guarded, *_old_results(step), *settled):
                name = prefix + register.name
                if name not in written and name not in read:
                    read.add(name)
                    dtypes[name] = TYPES[register.declared].dtype
            for register in (*step.written, *settled):
                name = prefix + register.name
                if name not in written:
                    written.add(name)
                    dtypes[name] = TYPES[register.declared].dtype
        names = frozenset(prefix + p.name for p in results)
        return cls(dtypes, frozenset(read), frozenset(written), names)


def _specials(step: Step) -> Iterator[str]:
    """The special registers that an instruction reads, without those that differ at each reading."""
    for operand in step.instr.operands:
        for item in getattr(operand, "items", (operand,)):
            if isinstance(item, Special) and not item.name.startswith(COUNTERS):
                yield item.name


def _old_results(step: Step) -> Iterator[Reg]:
    """The result registers whose old values an instruction may keep, and therefore reads."""
    parameters = step.op.row.parameters
    if not any(want.name in parameters for want in step.op.dests):
        return
    for want, got in zip(step.op.flat, step.instr.operands, strict=False):
        if want.written and want.name in parameters:
            yield from registers_of(got)
