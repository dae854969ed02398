"""An argument why some mutants are right as well, and which these are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ptxgen import ir
from ptxgen.ir import Symbol
from tools.campaign.equivalence import instrs
from tools.campaign.mistakes import Mutant

# The steps of a kernel between which and its loops the first tiles are fetched; the second is there
# where queries are turned.
STARTING: Final = ("shared memory, and the first tiles", "queries are turned where they are")
_BARRIERS: Final = ("bar.sync", "barrier.")


@dataclass(frozen=True, slots=True)
class Reason:
    """An argument for mutants of a kind and a change, made from an instruction that matches
    `before` and comes from a Python function whose qualified name is `function`.

    If given, `loop` is the number of the loop over tiles that it must be in, from 1, and `entry`
    must be found in the kernel's name. `rounds` says that results may be rounded otherwise.
    """

    kind: str
    change: str
    function: str
    step: str
    before: str
    why: str
    loop: int = 0
    entry: str = ""
    rounds: bool = False

    def fits(self, mutant: Mutant) -> bool:
        """Whether the argument is about this mutant."""
        change = mutant.name.removeprefix(f"{mutant.kind}: ").partition(" @")[0]
        function = mutant.where.rpartition(", in ")[2]
        return (
            (self.kind, self.change, self.function) == (mutant.kind, change, function)
            and mutant.step.startswith(self.step)
            and re.match(self.before, mutant.before) is not None
            and re.search(self.entry, mutant.entry) is not None
            and (not self.loop or self.loop == _loop(mutant))
        )


def _loop(mutant: Mutant) -> int:
    """The number, from 1, of the loop with a barrier of the block that the change is in; 0 if it is
    in none. Loops inside of others are not counted.
    """
    kernel = next(k for k in mutant.original.kernels if k.name == mutant.entry)
    heads = {s.name: n for n, s in enumerate(kernel.body) if isinstance(s, ir.Label)}
    found = instrs(kernel)
    barriers = [n for n, s in found.items() if s.opcode.startswith(_BARRIERS)]
    ends: dict[int, int] = {}  # of the loops, by their beginnings
    for n, instr in found.items():
        target = instr.operands[0] if instr.opcode.startswith("bra") else None
        head = heads[target.name] if isinstance(target, Symbol) else n
        if any(head < barrier < n for barrier in barriers):
            ends[head] = n
    outer = [head for head in sorted(ends) if not any(h < head < ends[h] for h in ends)]
    return next((i for i, h in enumerate(outer, 1) if h < mutant.place <= ends[h]), 0)
