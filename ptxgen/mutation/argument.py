"""An argument why some mutants are equivalent to the kernel, and the mutants that it is about."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ptxgen import ir
from ptxgen.ir import Symbol
from ptxgen.mutation.equivalence import instrs
from ptxgen.mutation.operators import Mutant
from ptxgen.text import render_instr

_BARRIERS: Final = ("bar.sync", "barrier.")


@dataclass(frozen=True, slots=True)
class Reason:
    """An argument for mutants of a kind and a change, made from an instruction that matches `before`, comes
    from code with the mark `mark` (`ptxgen/dsl/source_regions.py`) or, if that is None, from a line of the
    source that contains `line`, and belongs to a step that begins with `step`.

    If given, `loop` is the number, from 1, of the loop over tiles that has the instruction, 0 if none has
    it, `entry` is a pattern found in the kernel's name, and `behind` one that the instruction before it
    begins with. If `rounds`, the argument also covers mutants whose results are rounded differently.
    """

    kind: str
    change: str
    mark: str | None
    step: str
    before: str
    why: str
    loop: int | None = None
    entry: str = ""
    behind: str = ""
    rounds: bool = False
    line: str = ""

    def fits(self, mutant: Mutant) -> bool:
        """Whether the argument is about this mutant."""
        change = mutant.name.removeprefix(f"{mutant.kind}: ").partition(" @")[0]
        return (
            (self.kind, self.change) == (mutant.kind, change)
            and (self.line in mutant.line if self.mark is None else self.mark == mutant.mark)
            and mutant.step.startswith(self.step)
            and re.match(self.before, mutant.before) is not None
            and re.search(self.entry, mutant.entry) is not None
            and (self.loop is None or self.loop == _loop(mutant))
            and (not self.behind or re.match(self.behind, _before(mutant)) is not None)
        )


def _before(mutant: Mutant) -> str:
    """The PTX of the instruction before the change, empty if it is the first."""
    kernel = next(k for k in mutant.original.kernels if k.name == mutant.entry)
    earlier = [s for s in kernel.body[: mutant.index] if isinstance(s, ir.Instr)]
    return render_instr(earlier[-1]) if earlier else ""


def _loop(mutant: Mutant) -> int:
    """The number, from 1, of the loop with a block barrier that contains the change; 0 if no loop
    does. Nested loops are not counted.
    """
    kernel = next(k for k in mutant.original.kernels if k.name == mutant.entry)
    heads = {s.name: n for n, s in enumerate(kernel.body) if isinstance(s, ir.Label)}
    instructions = instrs(kernel)
    barriers = [n for n, s in instructions.items() if s.opcode.startswith(_BARRIERS)]
    ends: dict[int, int] = {}  # end of each loop, by its begin
    for n, instr in instructions.items():
        target = instr.operands[0] if instr.opcode.startswith("bra") else None
        head = heads[target.name] if isinstance(target, Symbol) else n
        if any(head < barrier < n for barrier in barriers):
            ends[head] = n
    outer = [head for head in sorted(ends) if not any(h < head < ends[h] for h in ends)]
    return next((i for i, h in enumerate(outer, 1) if h < mutant.index <= ends[h]), 0)
