"""Instructions whose results no other instruction needs."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.ir import Instr, Reg, Statement
from ptxgen.isa.forms import form_of


def needed(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The statements without the instructions that change nothing but registers which no remaining
    instruction reads. Loads of parameters belong to these; all other accesses to memory remain.
    """
    live: set[Reg] = set()  # registers that remaining instructions read
    unsettled: list[tuple[int, Sequence[Reg], Sequence[Reg], Reg | None]] = []  # the last of the text first
    number = len(body)
    for statement in reversed(body):
        number -= 1
        if statement.__class__ is not Instr:
            continue
        operands = statement.operands
        form = statement.form or form_of(statement)
        assert form is not None  # the builder has checked the operands
        guard = None if statement.guard is None else statement.guard.register
        if form.has_only_results and (written := form.written(operands)) and live.isdisjoint(written):
            unsettled.append((number, written, form.read(operands), guard))
            continue
        live.update(form.read(operands))
        if guard is not None:
            live.add(guard)
    remain = -1
    while remain != len(unsettled):  # in straight-line code, a walk over what is left changes nothing
        remain = len(unsettled)
        unread = []
        for candidate in unsettled:
            _, written, read, guard = candidate
            if live.isdisjoint(written):
                unread.append(candidate)
                continue
            live.update(read)
            if guard is not None:
                live.add(guard)
        unsettled = unread
    dropped = {candidate[0] for candidate in unsettled}
    return tuple([s for number, s in enumerate(body) if number not in dropped]) if dropped else tuple(body)
