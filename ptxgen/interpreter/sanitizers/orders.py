"""The instructions that order memory: what they ask for, and for which threads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.ir import Address
from ptxgen.isa.table import op_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ptxgen.ir import Instr

    Lanes = np.ndarray[Any, np.dtype[Any]]

# Scopes: the threads of one CTA, those of one cluster, and all threads.
CTA: Final = 0
CLUSTER: Final = 1
ALL: Final = 2

_SCOPES: Final = {"cta": CTA, "cluster": CLUSTER}
_NARROW: Final = re.compile(r"(?:ld|st|atom|red)\.(?:.*\.)?(cta|cluster)(?:\.|$)")
_STRONG: Final = re.compile(r"(ld|st)\.(volatile|relaxed|acquire|release|mmio)\b|(atom|red)\.")
_PLAIN_MBARRIER: Final = ("mbarrier_init", "mbarrier_inval")


@dataclass(frozen=True, slots=True)
class Order:
    """The effect of an instruction on the order of memory accesses.

    `strong` accesses may race with each other, if `scope`, which is `CTA`, `CLUSTER` or `ALL`, includes both
    threads.
    """

    strong: bool = False
    acquire: bool = False
    release: bool = False
    scope: int = ALL
    mbarrier: str = ""  # the row of an instruction on mbarriers, else empty


def scope_of(name: str) -> int:
    """The scope with this name: `cta`, `cluster`, `gpu`, `sys`, or the older `gl`."""
    return _SCOPES.get(name, ALL)


def scopes_of(instrs: Sequence[Instr]) -> Lanes | None:
    """The scope of each strong access by an ordinary instruction; None if all are `ALL`."""
    narrow = {n: m[1] for n, x in enumerate(instrs) if (m := _NARROW.match(x.opcode))}
    if not narrow:
        return None
    scopes = np.full(len(instrs) + 1, ALL)
    scopes[list(narrow)] = [scope_of(name) for name in narrow.values()]
    return scopes


def order_of(instr: Instr) -> Order:
    """The order that an instruction asks for, by the modifiers of its row."""
    op = op_of(instr)
    name = op.row.name
    sem, scope = str(op.modifiers.get("sem") or ""), str(op.modifiers.get("scope") or "")
    if name.startswith(("mbarrier_", "cp_async_mbarrier")):
        return Order(
            strong=name not in _PLAIN_MBARRIER,
            acquire="_wait" in name and sem != "relaxed",
            release=name.startswith("mbarrier_arrive") and sem != "relaxed",
            scope=scope_of(scope or "cluster"),
            mbarrier=name,
        )
    if not _STRONG.match(instr.opcode):
        return Order()
    return Order(True, sem in ("acquire", "acq_rel"), sem in ("release", "acq_rel"), scope_of(scope))


def optimistic(instrs: Sequence[Instr]) -> frozenset[int]:
    """The numbers of plain loads that only guess the value that an `atom.cas` will find at the same
    address, as in loops around one (CUDA C++ Programming Guide, "Atomic Functions"): a race of such
    a load does no harm.
    """
    swapped = {_address(x) for x in instrs if x.opcode.startswith("atom.") and ".cas." in x.opcode}
    return frozenset(n for n, x in enumerate(instrs) if x.opcode.startswith("ld.") and _address(x) in swapped)


def _address(instr: Instr) -> Address | None:
    return next((o for o in instr.operands if isinstance(o, Address)), None)
