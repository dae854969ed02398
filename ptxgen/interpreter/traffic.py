"""The cost of a run's accesses in a GPU's memory: wavefronts of shared memory, sectors of global
memory.

A request is one access of one warp; inactive lanes do not count. If the lanes of a warp access
different arrays, or both shared and global memory, each is a request.

* Shared memory has 32 banks of 4 bytes (CUDA C++ Programming Guide, "Shared Memory"). In one
  wavefront each bank reads or writes one word, for any number of lanes. Accesses of up to 4 bytes
  take all lanes of a warp together, those of 8 bytes one half after the other, those of 16 bytes
  one quarter after the other; the least possible cost is one wavefront for each such part with an
  active lane. In an atomic operation, lanes that share a bank take turns, also if they share the
  word. A word of another CTA of the cluster counts in its bank, too.
* Global memory moves in sectors of 32 bytes, each once for each request that touches it. The least
  possible cost is the number of sectors that hold the bytes of the request side by side. Atomic
  operations read and write their sectors.

Local, param and constant memory do not count; nor do caches, which keep sectors that were moved
before. `ldmatrix` reads the rows whose addresses it takes, and `cp.async` is a read of global and a
write of shared memory. `wmma.load` and `wmma.store` count as one access for each register, since
the mapping of elements to lanes is not specified. Bulk copies and `wgmma` are not counted:
`Counters.traffic_not_counted` names those that ran.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.address_map import SHARED_WINDOW, WINDOW_BYTES, WINDOWS
from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.machine.observer import Meter
from ptxgen.interpreter.reports import MemoryTraffic, origin_of, where_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ptxgen.interpreter.machine.memory import Address, Plan
    from ptxgen.interpreter.machine.observer import Accessing
    from ptxgen.ir import Instr

    Lanes = np.ndarray[Any, np.dtype[Any]]

SECTOR_BYTES: Final = 32
BANKS: Final = 32
BANK_BYTES: Final = 4

_FIRST_GLOBAL: Final = SHARED_WINDOW + len(WINDOWS) * WINDOW_BYTES  # addresses from here on are global
_ROWS: Final = 8  # addresses that ldmatrix takes for each matrix
_MATRICES: Final = re.compile(r"ldmatrix\.(?:.*\.)?x([12])\b")
_UPDATES: Final = ("atom", "red", "mbarrier")
_LOOKS: Final = ("mbarrier.test_wait", "mbarrier.try_wait")
# The columns of an instruction's figures.
_SHARED, _GLOBAL, _READ, _WRITTEN, _LEAST, _COUNT = 0, 3, 4, 5, 6, 7


class Traffic(Meter):
    """Counts the accesses of one launch, by instruction."""

    def __init__(self, instrs: Sequence[Instr]) -> None:
        self._instrs = instrs
        self._figures = np.zeros((len(instrs), _COUNT), np.int64)
        self._rows = [rows_of(instr.opcode) for instr in instrs]
        # The source of cp.async is counted as a whole; tensor maps are not data of the kernel.
        self._other = [i.opcode.startswith("cp.") for i in instrs]
        self._serialised = [serialises(instr.opcode) for instr in instrs]

    def by_instruction(self) -> dict[int, MemoryTraffic]:
        """The traffic of each instruction that accessed shared or global memory, by its number."""
        figures = {}
        for number, row in enumerate(self._figures.tolist()):
            if any(row):
                instr = self._instrs[number]
                origin = origin_of(instr)
                figures[number] = MemoryTraffic(
                    where_from(instr), *row, line=origin.ptx_line, source=origin.source
                )
        return figures

    def access(self, machine: Accessing, plan: Plan, offset: int, total: int, verb: str) -> None:
        """Count a planned access of `total` bytes; `verb` says whether it reads, writes or updates."""
        at = machine.at
        if self._other[at]:
            return
        low = plan.low + offset
        if plan.window is machine.shared.window:
            # Shifts by whole words give the same figures: they only rotate the banks.
            serialised = verb == "update" and self._serialised[at]
            kind = "shared", total, low % BANK_BYTES, serialised, self._rows[at]
        elif low >= _FIRST_GLOBAL:
            kind = "global", total, low % SECTOR_BYTES, False, WARP
        else:
            return
        figures = plan.traffic.get(kind)
        if figures is None:
            active = np.ones(len(plan.relative), np.bool_) if plan.mask is None else plan.mask
            figures = plan.traffic[kind] = self._measure(machine, plan, low, active, kind)
        if kind[0] == "shared":
            self._figures[at, _SHARED:_GLOBAL] += figures
        else:
            self._moved(at, figures, verb)

    def copy(
        self, machine: Accessing, plan: Plan, offset: int, nbytes: int, src: Address, src_nbytes: Lanes | None
    ) -> None:
        """Count a `cp.async` of `nbytes` from global `src` to the shared memory that the plan is
        for; lanes with 0 `src_nbytes` read nothing.
        """
        active = machine.active()
        position = plan.relative + (plan.low + offset)
        self._figures[machine.at, _SHARED:_GLOBAL] += wavefronts(
            position, active, nbytes, machine.shared.stride
        )
        reads = active if src_nbytes is None else active & np.greater(src_nbytes, 0)
        address = np.broadcast_to(src.signed() + src.offset, len(active))
        self._moved(machine.at, sectors(address, reads, nbytes), "read")

    def _measure(
        self, machine: Accessing, plan: Plan, low: int, active: Lanes, kind: tuple[str, int, int, bool, int]
    ) -> tuple[int, int, int]:
        space, total, _, serialised, rows = kind
        address = plan.relative + low
        if space == "global":
            return sectors(address, active, total)
        if rows < WARP:  # the instruction ignores the other lanes' addresses
            active = active & (np.arange(len(active)) % WARP < rows)
        return wavefronts(address, active, total, machine.shared.stride, serialised=serialised)

    def _moved(self, at: int, figures: tuple[int, int, int], verb: str) -> None:
        requests, moved, least = figures
        row = self._figures[at]
        row[_GLOBAL] += requests
        if verb != "write":
            row[_READ] += moved
            row[_LEAST] += least
        if verb != "read":
            row[_WRITTEN] += moved
            row[_LEAST] += least


def wavefronts(
    position: Lanes, active: Lanes, total: int, stride: int, *, serialised: bool = False
) -> tuple[int, int, int]:
    """Requests, wavefronts and the least possible wavefronts of an access of `total` bytes.

    `position` is the byte that each lane accesses in the shared memory of the batch, `[lanes]`
    int64; each CTA has `stride` bytes of it. `active` says which lanes are active, `[lanes]` bool.
    With `serialised`, lanes that share a word do not share a wavefront.
    """
    deepest = words_in_banks(position, active, total, stride, serialised=serialised).max(axis=1)
    return _requests(active), int(deepest.sum()), int(np.count_nonzero(deepest))


def words_in_banks(
    position: Lanes, active: Lanes, total: int, stride: int, *, serialised: bool = False
) -> Lanes:
    """The words that each bank serves in each part of an access, `[parts, BANKS]` int64; the arguments
    are those of `wavefronts`, but the number of lanes need only be a multiple of the lanes of a part.
    """
    parts = max(total // BANK_BYTES, 1)  # parts of a warp, and words of a lane
    words = np.where(active, position // BANK_BYTES, -parts)
    words = (words[:, None] + np.arange(parts)).reshape(-1, WARP)
    counts = words >= 0
    if not serialised:
        words.sort(axis=1)
        counts = words >= 0
        counts[:, 1:] &= words[:, 1:] != words[:, :-1]
    part = np.nonzero(counts)[0]
    bank = words[counts] % (stride // BANK_BYTES) % BANKS
    in_bank = np.bincount(part * BANKS + bank, minlength=len(words) * BANKS)
    per_bank: Lanes = in_bank.reshape(-1, BANKS)
    return per_bank


def sectors(address: Lanes, active: Lanes, total: int) -> tuple[int, int, int]:
    """Requests, sectors and the least possible sectors of an access of `total` bytes.

    `address` has the address of each lane, `[lanes]` int64, a multiple of `total`; `active` says
    which lanes are active, `[lanes]` bool.
    """
    lanes = np.where(active, address, -1).reshape(-1, WARP)
    lanes.sort(axis=1)
    touched = _distinct(lanes) * total
    least = -(-touched // SECTOR_BYTES)
    return _requests(active), int(_distinct(lanes // SECTOR_BYTES).sum()), int(least.sum())


def _requests(active: Lanes) -> int:
    return int(np.count_nonzero(active.reshape(-1, WARP).any(axis=1)))


def _distinct(ordered: Lanes) -> Lanes:
    """The number of different numbers, from 0 on, in each row, `[rows, n]` in rising order."""
    first = ordered >= 0
    first[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    count: Lanes = np.count_nonzero(first, axis=1)
    return count


def serialises(opcode: str) -> bool:
    """Whether lanes that update one word of shared memory take turns. The machine treats looks at an
    mbarrier as updates, too, but they change nothing.
    """
    return opcode.startswith(_UPDATES) and not opcode.startswith(_LOOKS)


def rows_of(opcode: str) -> int:
    """The lanes of a warp whose addresses an instruction uses."""
    shape = _MATRICES.match(opcode)
    return _ROWS * int(shape[1]) if shape else WARP
