"""Additions of floating-point numbers to one address whose order nothing fixes, so that the sum may have
other bits in the next run: by atomic operations, and by bulk and tensor copies that reduce.

It is no race, and most kernels that add so accept it. A kernel that promises the same bits orders them: by a
barrier, or from CTA to CTA by a counter with release and acquire. An asynchronous reduction comes after one
of another thread if that thread has waited for its group without `.read`, and a `fence.proxy.async` lies
between the two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.sanitizers.names import DETERMINISM
from ptxgen.interpreter.sanitizers.stamps import ATOMIC, INSTR, INSTR_MASK
from ptxgen.isa.table import op_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ptxgen.interpreter.sanitizers.conflicts import Conflict
    from ptxgen.ir import Instr

    Lanes = np.ndarray[Any, np.dtype[Any]]

ADDED: Final = "was added to by"  # what a conflict says of the other thread


class SumOrder:
    """The instructions of a program that add floating-point numbers to memory."""

    def __init__(self, instrs: Sequence[Instr]) -> None:
        self._adds: Lanes = np.array([*map(_adds_floats, instrs), False])

    def started(self, at: int) -> None:
        """Record that instruction `at`, a reduction by copies, adds floating-point numbers."""
        self._adds[at] = True

    def adds(self, at: int) -> bool:
        """Whether instruction `at` adds floating-point numbers to memory."""
        return bool(self._adds[at])

    def earlier(self, at: int, stamps: Lanes) -> Lanes | None:
        """The stamps of last writes, with 0 for those that are no additions; None if `at` is no addition, or
        none of the writes is.
        """
        if not self._adds[at]:
            return None
        adds = (stamps & ATOMIC != 0) & self._adds.take(stamps >> INSTR & INSTR_MASK, mode="clip")
        return np.where(adds, stamps, 0) if adds.any() else None


def unordered(conflicts: list[Conflict]) -> list[Conflict]:
    """Conflicts with additions, as reports of this sanitizer."""
    return [replace(c, kind=DETERMINISM, what=ADDED) for c in conflicts]


def _adds_floats(instr: Instr) -> bool:
    if not instr.opcode.startswith(("atom.", "red.")) or "add" not in instr.opcode.split("."):
        return False
    return getattr(op_of(instr).modifiers.get("type"), "kind", "") in ("f", "x")
