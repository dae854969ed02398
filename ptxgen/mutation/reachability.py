"""Where a mutant differs from its kernel: the runs that execute its instruction, and those in which that
does anything else.

One run of the kernel with probes before each changed instruction says it of all mutants. A probe notes that
a thread reaches the instruction (reachability) and, of an instruction whose only effect is its result, that
the changed one has another result (infection). Where no thread notes the latter, the mutant's run is the
kernel's, step by step, and need not be made (Howden 1982, "Weak mutation testing and completeness of test
sets"; DeMillo and Offutt 1991, "Constraint-based automatic test data generation"; Just, Ernst and Fraser
2014, "Efficient mutation analysis by propagating and partitioning information").

The kernel has no race: its threads compute the same values in every schedule, so what a run in lockstep
notes holds in any order of the warps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen import interpreter, ir
from ptxgen.check.verify.shapes import shape_of
from ptxgen.interpreter import Result
from ptxgen.ir import Address, Guard, Instr, IntImm, Reg, Symbol
from ptxgen.isa.spec import Effect
from ptxgen.mutation.kernel_under_test import KernelUnderTest
from ptxgen.mutation.operators import Mutant
from ptxgen.types import TYPES, byte

_NOTES: Final = "probe_notes"  # the parameter: two bytes for each mutant
_AT: Final = Reg("%probe_at", "b64")
_ONE: Final = Reg("%probe_one", "b32")
_DIFFERS: Final = Reg("%probe_differs", "pred")
_MEETS: Final = Reg("%probe_meets", "pred")


@dataclass(frozen=True, slots=True)
class Reach:
    """For each mutant of a kernel, in order, whether a run on a problem reaches its instruction
    (`executed`), and whether the mutant's run may differ from the kernel's (`infected`).
    """

    executed: NDArray[np.bool_]
    infected: NDArray[np.bool_]


def reach(kernel: KernelUnderTest, watched: ir.Module, mutants: Sequence[Mutant], problem: Any) -> Reach:
    """Which mutants of a kernel a run on a problem reaches and infects. `watched` is the kernel's module as
    `probed` makes it of these mutants.
    """
    notes = np.zeros(max(2 * len(mutants), 1), np.uint8)

    def launch(module: ir.Module, entry: str, *, args: Sequence[Any], **how: Any) -> Result:
        return interpreter.run(module, entry, args=[*args, notes], **how)

    kernel.run(watched, problem, launch=launch)
    first: dict[int, int] = {}  # the mutant that notes for all of its instruction
    of = [len(mutants) + first.setdefault(mutant.index, n) for n, mutant in enumerate(mutants)]
    return Reach(notes[of].astype(bool), notes[: len(mutants)].astype(bool))


def probed(module: ir.Module, entry: str, mutants: Sequence[Mutant]) -> ir.Module:
    """A module with probes for the mutants of its kernel `entry`. The kernel has one more parameter, the
    last: an array of bytes. One for each mutant, in their order, becomes 1 where the mutant differs from the
    kernel; then one for each, of which that of the first mutant of an instruction becomes 1 where a thread
    reaches it.
    """
    by_index: dict[int, list[tuple[int, Mutant]]] = {}
    for number, mutant in enumerate(mutants):
        by_index.setdefault(mutant.index, []).append((number, mutant))
    (kernel,) = (k for k in module.kernels if k.name == entry)
    registers = {r.name: r for r in (_AT, _ONE, _DIFFERS, _MEETS)}
    body: list[ir.Statement] = [
        Instr("ld.param.u64", (_AT, Address(Symbol(_NOTES)))),
        Instr("mov.u32", (_ONE, IntImm(1))),
    ]
    for index, statement in enumerate(kernel.body):
        for nth, (number, mutant) in enumerate(by_index.get(index, ())):
            assert isinstance(statement, Instr)
            if nth == 0:
                body.append(_note(len(mutants) + number))
            body += _probe(mutant, statement, number, registers)
        body.append(statement)
    watched = replace(
        kernel,
        params=(*kernel.params, ir.Param(_NOTES, "u64")),
        registers=(*kernel.registers, *(ir.RegisterRange(r.name, r.declared, 0) for r in registers.values())),
        body=tuple(body),
    )
    return replace(module, kernels=tuple(watched if k is kernel else k for k in module.kernels))


def _note(number: int, guard: Guard | None = None) -> Instr:
    return Instr("st.global.u8", (Address(_AT, number), _ONE), guard)


def _probe(mutant: Mutant, before: Instr, number: int, registers: dict[str, Reg]) -> Iterator[Instr]:
    """The instructions that note of a thread, about to execute `before`, that the mutant does something
    else. `registers` has the registers of all probes.
    """
    guard = before.guard
    if len(mutant.instead) == 1:
        (after,) = mutant.instead
        if after.guard is None and guard is not None:  # more threads execute it
            guard = Guard(guard.register, not guard.negated)
        elif after.guard != guard:  # other threads execute it
            guard = None
        elif (result := _result(before)) is not None and result == _result(after):
            yield from _compared(before, after, result, registers)
            if guard is not None:
                opposite = "not.pred" if guard.negated else "mov.pred"
                yield Instr(opposite, (_MEETS, guard.register))
                yield Instr("and.pred", (_DIFFERS, _DIFFERS, _MEETS))
            guard = Guard(_DIFFERS)
    yield _note(number, guard)


def _result(instr: Instr) -> Reg | None:
    """The register that an instruction writes, if that is its only effect."""
    shape = shape_of(instr)
    if shape.complaints or shape.op is None or shape.op.effect is not Effect.NONE or shape.dests != 1:
        return None
    first = instr.operands[0]  # no instruction compares bytes
    return first if isinstance(first, Reg) and first.declared != byte.register else None


def _compared(before: Instr, after: Instr, result: Reg, registers: dict[str, Reg]) -> Iterator[Instr]:
    """Instructions that make _DIFFERS true where the results of two instructions have other bits."""
    kind = result.declared
    names = (f"%probe_old_{kind}", f"%probe_new_{kind}")
    pair = [registers.setdefault(name, Reg(name, kind)) for name in names]
    for register, instr in zip(pair, (before, after), strict=True):
        yield Instr(instr.opcode, (register, *instr.operands[1:]))
    compare = "xor.pred" if kind == "pred" else f"setp.ne.b{TYPES[kind].bits}"
    yield Instr(compare, (_DIFFERS, *pair))
