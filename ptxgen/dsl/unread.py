"""Finds the instructions of a kernel whose results no other instruction reads."""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.ir import Instr, Statement
from ptxgen.isa.forms import Form, form_of


def needed(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The statements without the instructions that change nothing but registers which no remaining
    instruction reads. Loads of parameters belong to these; all other accesses to memory remain.
    """
    live: set[object] = set()  # what remaining instructions read: registers, and some other operands
    unread = _unread([s for s in reversed(body) if isinstance(s, Instr)], live)
    remain = -1
    while remain != len(unread):  # in straight-line code, a walk over what is left changes nothing
        remain = len(unread)
        unread = _unread(unread, live)
    dropped = {id(instr) for instr in unread}
    return tuple([s for s in body if id(s) not in dropped]) if dropped else tuple(body)


def _unread(instrs: Sequence[Instr], live: set[object]) -> list[Instr]:
    """Those of `instrs`, the last of the text first, that change nothing but registers which are not `live`;
    what the others read is added to `live`.
    """
    unread = []
    for instr in instrs:
        form: Form | None = instr.form or form_of(instr)
        assert form is not None  # the builder has checked the operands
        operands = instr.operands
        if form.may_be_unread:
            alone = form.only_result
            if operands[alone] not in live if alone >= 0 else live.isdisjoint(form.written(operands)):
                unread.append(instr)
                continue
        live.update(form.read(operands))
        if instr.guard is not None:
            live.add(instr.guard.register)
    return unread
