"""What a run hands back: counters, and what the sanitizers found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ptxgen.ir import Instr
from ptxgen.text import render_instr


@dataclass(frozen=True, slots=True)
class Report:
    """One thing that a sanitizer found; the same pair of instructions is reported once.

    `kind` is `race` (two threads, not ordered by a barrier, at least one of them writes), `pending`
    (an access to bytes that `cp.async` may still be copying), `uninitialised` (shared memory read
    before it was written) or `undefined` (a register read before it was written). `address` is in
    bytes from the start of the CTA's shared memory; `threads` are numbers within the CTA, x
    fastest: the one that met the problem and, if there is one, the other; `cta` is the CTA's place
    in the grid.
    """

    kind: str
    space: str
    address: int
    region: str
    cta: tuple[int, int, int]
    threads: tuple[int, ...]
    instr: str
    other: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(slots=True)
class Counters:
    """How much was executed; an instruction whose guard is false counts.

    `by_opcode` counts warp-instructions: one for each warp with an active thread that comes to the
    instruction. `dispatched` counts what the interpreter did one after another, which is what its
    time depends on.
    """

    by_opcode: Counter[str] = field(default_factory=Counter)
    warp_instructions: int = 0
    thread_instructions: int = 0
    dispatched: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What a run did. The arrays it was given hold what it computed."""

    counters: Counters
    reports: tuple[Report, ...]


def where_from(instr: Instr) -> str:
    """An instruction's text and where it comes from: `add.s32 %r1, %r2, 3; (forward.py:41)`."""
    text = render_instr(instr)
    if instr.origin is None:
        return text
    if instr.origin.code is None:
        return f"{text} (line {instr.origin.line})"
    file = instr.origin.code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{text} ({file}:{instr.origin.line})"
