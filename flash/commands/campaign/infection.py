"""Where a mutant is told from its kernel: the runs in which its instruction does anything else.

One run of the kernel with a probe in front of each changed instruction says it of all mutants. A probe
notes that a thread executes a change and, of an instruction whose only effect is its result, that the
changed one has another result. Where no thread notes anything, the mutant's run is the kernel's own, step
by step, and need not be made (Howden 1982, "Weak mutation testing and completeness of test sets"; Just,
Ernst and Fraser 2014, "Efficient mutation analysis by propagating and partitioning information").

The kernel has no race: its threads compute the same values in every schedule, so what a run in lockstep
notes holds in any order of the warps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.commands.campaign.mistakes import Mutant
from flash.commands.campaign.subject import Subject
from ptxgen import interpreter, ir
from ptxgen.check.verify.shapes import shape_of
from ptxgen.interpreter import Result
from ptxgen.ir import Address, Guard, Instr, IntImm, Reg, Symbol
from ptxgen.isa.spec import Effect
from ptxgen.types import TYPES

_NOTES: Final = "probe_notes"  # the parameter: a byte for each mutant
_AT: Final = Reg("%probe_at", "b64")
_ONE: Final = Reg("%probe_one", "b32")
_DIFFERS: Final = Reg("%probe_differs", "pred")
_MEETS: Final = Reg("%probe_meets", "pred")


def infected(subject: Subject, watched: ir.Module, count: int, problem: Any) -> NDArray[np.bool_]:
    """For each of `count` mutants of a subject, whether its run on a problem may differ from the
    kernel's. `watched` is the subject's module as `probed` makes it of these mutants.
    """
    notes = np.zeros(max(count, 1), np.uint8)

    def launch(module: ir.Module, entry: str, *, args: Sequence[Any], **how: Any) -> Result:
        return interpreter.run(module, entry, args=[*args, notes], **how)

    subject.run(watched, problem, launch=launch)
    return notes[:count].astype(bool)


def probed(module: ir.Module, entry: str, changes: Sequence[Mutant]) -> ir.Module:
    """A module with a probe for each mutant of its kernel `entry`. The kernel has one more parameter, the
    last: an array of bytes, one for each mutant in their order, which becomes 1 where the mutant is told
    from the kernel.
    """
    by_place: dict[int, list[tuple[int, Mutant]]] = {}
    for number, mutant in enumerate(changes):
        by_place.setdefault(mutant.place, []).append((number, mutant))
    (kernel,) = (k for k in module.kernels if k.name == entry)
    own = {r.name: r for r in (_AT, _ONE, _DIFFERS, _MEETS)}
    body: list[ir.Statement] = [
        Instr("ld.param.u64", (_AT, Address(Symbol(_NOTES)))),
        Instr("mov.u32", (_ONE, IntImm(1))),
    ]
    for place, statement in enumerate(kernel.body):
        for number, mutant in by_place.get(place, ()):
            assert isinstance(statement, Instr)
            body += _probe(mutant, statement, number, own)
        body.append(statement)
    watched = replace(
        kernel,
        params=(*kernel.params, ir.Param(_NOTES, "u64")),
        registers=(*kernel.registers, *(ir.RegisterRange(r.name, r.declared, 0) for r in own.values())),
        body=tuple(body),
    )
    return replace(module, kernels=tuple(watched if k is kernel else k for k in module.kernels))


def _probe(mutant: Mutant, before: Instr, number: int, own: dict[str, Reg]) -> Iterator[Instr]:
    """The instructions that note of a thread, about to execute `before`, that the mutant does something
    else. `own` has the registers of all probes.
    """
    guard = before.guard
    if len(mutant.instead) == 1:
        (after,) = mutant.instead
        if after.guard is None and guard is not None:  # more threads execute it
            guard = Guard(guard.register, not guard.negated)
        elif after.guard != guard:  # other threads execute it
            guard = None
        elif (result := _result(before)) is not None and result == _result(after):
            yield from _compared(before, after, result, own)
            if guard is not None:
                opposite = "not.pred" if guard.negated else "mov.pred"
                yield Instr(opposite, (_MEETS, guard.register))
                yield Instr("and.pred", (_DIFFERS, _DIFFERS, _MEETS))
            guard = Guard(_DIFFERS)
    yield Instr("st.global.u8", (Address(_AT, number), _ONE), guard)


def _result(instr: Instr) -> Reg | None:
    """The register that an instruction writes, if that is its only effect."""
    shape = shape_of(instr)
    if shape.complaints or shape.op is None or shape.op.effect is not Effect.NONE or shape.dests != 1:
        return None
    first = instr.operands[0]
    return first if isinstance(first, Reg) else None


def _compared(before: Instr, after: Instr, result: Reg, own: dict[str, Reg]) -> Iterator[Instr]:
    """Instructions that make _DIFFERS true where the results of two instructions have other bits."""
    kind = result.declared
    pair = [own.setdefault(name, Reg(name, kind)) for name in (f"%probe_old_{kind}", f"%probe_new_{kind}")]
    for register, instr in zip(pair, (before, after), strict=True):
        yield Instr(instr.opcode, (register, *instr.operands[1:]))
    compare = "xor.pred" if kind == "pred" else f"setp.ne.b{TYPES[kind].bits}"
    yield Instr(compare, (_DIFFERS, *pair))
