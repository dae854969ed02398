"""Kernels that multiply by `tcgen05`, ours and others, as the model of roles reads them
(`ptxgen.report.role_model`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ptxgen.errors import BackendError
from ptxgen.rates import OF_TENSOR_MEMORY
from ptxgen.report.issue_units import Unit
from ptxgen.report.role_model import ISSUE, WEIGHTS_ALONE, Role, RoleClocks, RoleLoop, role_clocks, role_loops
from ptxgen.runtime.assembler import find_assembler
from ptxgen.runtime.sass import find_disassembler
from ptxgen.target import target as find_target

_ENTRY: Final = re.compile(r"\.entry\s+([\w$]+)")
_TARGET: Final = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)
_CLOCKS: Final = (
    *(unit.value for unit in (Unit.TENSOR, Unit.MEMORY, Unit.SPECIAL, Unit.F32, Unit.INTEGER)),
    *(Unit.TENSOR_MEMORY.value, ISSUE, WEIGHTS_ALONE),
)
_COLUMNS: Final = (
    *("kernel", "target", "registers", "spilled B", *(f"{role.value}, instructions" for role in Role)),
    *("warps of weights", *(f"{unit}, clocks" for unit in _CLOCKS), "bound", "tensor cores %", "PFLOP/s"),
)

BLACKWELL_REMARKS: Final = (
    "instructions are those of a warp in an iteration of its role's loop, clocks those of a multiprocessor "
    "for an iteration of all roles; ptxgen/report/role_model.py says what the model knows and assumes",
    "PFLOP/s are those of f16 and bf16 with that share of the tensor cores, at the boost clock of the device",
    " | ".join(_COLUMNS),
)


@dataclass(frozen=True, slots=True)
class RoleReading:
    """A kernel with roles: what the assembler said, the loops of its roles, and what the model says of
    them.
    """

    target: str
    registers: int
    spilled_bytes: int
    roles: dict[Role, RoleLoop]
    clocks: RoleClocks

    @classmethod
    def of(cls, text: str) -> RoleReading:
        """Assemble and read a kernel's PTX. Raises `BackendError` without an assembler and a disassembler,
        for texts that have no kernel, and for kernels that the model cannot read.
        """
        text = text.rstrip("\0")  # CuTe DSL writes a string of C
        entry, target = _ENTRY.search(text), _TARGET.search(text)
        if entry is None or target is None:
            raise BackendError(
                "expected the PTX of a module with .target and .entry, got a text without them"
            )
        assembly = find_assembler(target=target[1]).assemble(text, target[1])
        usage = assembly.kernel(entry[1])
        try:
            roles = role_loops(find_disassembler().instructions(assembly.cubin))
            clocks = role_clocks(roles, find_target(target[1]))
        except ValueError as error:
            raise BackendError(str(error)) from error
        return cls(
            target[1], usage.registers, usage.spill_store_bytes + usage.spill_load_bytes, roles, clocks
        )

    def row(self, name: str) -> str:
        """The reading as a line of the table."""
        device = OF_TENSOR_MEMORY[find_target(self.target).sm]
        peak = 2 * device.macs * device.multiprocessors * device.mhz / 1e9
        instructions = [str(self.roles[r].instructions) if r in self.roles else "-" for r in Role]
        warps = str(self.roles[Role.WEIGHTS].warps) if Role.WEIGHTS in self.roles else "-"
        clocks = [
            f"{of:.0f}" if (of := self.clocks.clocks.get(unit)) is not None else "-" for unit in _CLOCKS
        ]
        figures = (
            *(name, self.target, str(self.registers), str(self.spilled_bytes), *instructions, warps, *clocks),
            *(self.clocks.bound, f"{100 * self.clocks.tensor:.1f}", f"{peak * self.clocks.tensor:.2f}"),
        )
        return " | ".join(figures)


def table(paths: Sequence[Path]) -> str:
    """The table of kernels whose PTX these files have, after remarks. The row of a file that cannot be read
    says why.
    """
    rows = list(BLACKWELL_REMARKS)
    for path in paths:
        try:
            rows.append(RoleReading.of(path.read_text(encoding="utf-8")).row(path.stem))
        except (BackendError, OSError) as error:
            rows.append(f"{path.stem}: {str(error).splitlines()[0]}")
    return "\n".join(rows)
