"""Values that lanes of a warp pass to each other in registers: `shfl`, `vote`, `match`, `redux`, `mma`.

They order no memory. But a store that cannot be executed before a lane has the value that another lane has
loaded, because what it stores, where, or whether it is executed, is computed from that value, comes after the
load. So a sum over a warp by `shfl`, of what its lanes have loaded, may be stored over it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.check import flow
from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.program.segments import Step
from ptxgen.ir import Instr
from ptxgen.isa.table import op_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ptxgen.interpreter.program.linking import Linked, Routine
    from ptxgen.interpreter.sanitizers.clocks import Clocks

    Lanes = np.ndarray[Any, np.dtype[Any]]

_MIXES: Final = ("vote.", "match.", "redux.", "mma.", "wmma.mma.", "movmatrix.")
EXCHANGES: Final = ("shfl.", *_MIXES)
_MOST_EXCHANGES: Final = 256  # exchanges that are remembered


def mixing(instrs: Sequence[Instr]) -> frozenset[int]:
    """The numbers of the instructions by which each lane that takes part receives something of all others."""
    return frozenset(n for n, x in enumerate(instrs) if x.opcode.startswith(_MIXES))


class Exchanges:
    """The values that the lanes of a batch have passed to each other lately."""

    def __init__(self, clocks: Clocks, linked: Linked) -> None:
        self._clocks = clocks
        self._flows = _Flows(linked)
        # The last exchanges: the lanes that took part; for each of them the lane of its warp from which it
        # has received something, or if they are mixed, all those lanes as bits; and the clocks of all warps.
        self._last: deque[tuple[Lanes, Lanes, bool, Lanes]] = deque(maxlen=_MOST_EXCHANGES)
        self._stamps: tuple[int, Lanes] = (-1, clocks.clock)

    def pass_on(self, ids: Lanes, sources: Lanes) -> None:
        """Record that each of these lanes receives something from the lane `sources` of its warp."""
        self._last.append((ids, sources, False, self._clocks_now()))

    def mix(self, ids: Lanes, members: Lanes) -> None:
        """Record that each of these lanes receives something from all lanes of its membermask."""
        self._last.append((ids, members, True, self._clocks_now()))

    def _clocks_now(self) -> Lanes:
        if self._stamps[0] != self._clocks.version:
            self._stamps = self._clocks.version, self._clocks.clock.copy()
        return self._stamps[1]

    def ordered(self, at: int, ids: Lanes, others: Lanes, readers: Lanes, stamps: Lanes) -> Lanes:
        """Whether a store by lanes, instruction `at`, comes after loads of other lanes of their warps,
        because it depends on the values loaded; elementwise. A load has the number of its instruction in
        `readers`, and its stamp; `others` are indices in the warp, and one above 31 means several lanes.
        """
        ordered = np.zeros(len(ids), np.bool_)
        warps = ids // WARP
        for warp, reader, stamp in np.unique(np.stack([warps, readers, stamps], axis=1), axis=0).tolist():
            if at not in self._flows.after(reader):
                continue
            here = (warps == warp) & (readers == reader) & (stamps == stamp)
            heard = self._heard(warp, stamp)[ids[here] % WARP]
            one = heard[np.arange(len(heard)), others[here] % WARP]
            ordered[here] = np.where(others[here] < WARP, one, heard.all(axis=1))
        return ordered

    def _heard(self, warp: int, stamp: int) -> Lanes:
        """For each lane of a warp, the lanes whose values it may have received since the warp's clock was at
        a stamp, bool `[32, 32]`.
        """
        heard = np.eye(WARP, dtype=np.bool_)
        for ids, sources, mixed, clocks in self._last:
            here = np.flatnonzero(ids // WARP == warp) if clocks[warp] >= stamp else ()
            if len(here):
                of = sources[here, None].astype(np.int64)
                senders = of >> np.arange(WARP) & 1 != 0 if mixed else of == np.arange(WARP)
                heard[ids[here] % WARP] |= senders @ heard
        return heard


class _Flows:
    """Which instructions depend, through an exchange between lanes, on what an instruction reads: by the
    names of registers in the text, in any order of execution.
    """

    def __init__(self, linked: Linked) -> None:
        self._routines = linked.routines
        self._after: dict[int, frozenset[int]] = {}

    def after(self, number: int) -> frozenset[int]:
        """The numbers of the instructions that depend on the result of this one."""
        if number not in self._after:
            before = 0
            for routine in self._routines:
                count = sum(isinstance(s, Instr) for s in routine.source.body or ())
                if number < before + count:
                    dependent = _dependent(routine, number - before)
                    self._after[number] = frozenset(before + n for n in dependent)
                    break
                before += count
        return self._after[number]


def _dependent(routine: Routine, number: int) -> set[int]:
    instrs = [s for s in routine.source.body or () if isinstance(s, Instr)]
    steps = [Step(n, x, op_of(x), resumes=True) for n, x in enumerate(instrs)]
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for register in {r.name for r in step.read}:
            readers.setdefault(register, []).append(step)
    dependent: set[int] = set()
    seen: set[tuple[str, bool]] = set()
    todo = [(r.name, False) for r in steps[number].written]
    while todo:
        name, passed = todo.pop()
        if (name, passed) in seen:
            continue
        seen.add((name, passed))
        for step in readers.get(name, ()):
            if passed:
                dependent.add(step.number)
                guard = step.instr.guard
                if step.op.row.name == "bra" and guard is not None and guard.register.name == name:
                    dependent |= _decided(routine, step.number)
            crosses = passed or step.instr.opcode.startswith(EXCHANGES)
            todo += [(r.name, crosses) for r in step.written]
    return dependent


def _decided(routine: Routine, branch: int) -> set[int]:
    """The instructions that a branch decides about: one way from it does not lead to them, unless it comes
    back to the branch.
    """
    graph = flow.blocks(routine.source)
    block = next(b for b in graph if b.start <= branch < b.start + len(b.instrs))
    ways: list[set[int]] = []
    for successor in block.successors:
        there: set[int] = set()
        todo = [] if successor == block.index else [successor]
        while todo:
            index = todo.pop()
            there.add(index)
            todo += [s for s in graph[index].successors if s != block.index and s not in there]
        ways.append(there)
    some = ways[0].union(*ways) - ways[0].intersection(*ways)
    return {n for b in graph if b.index in some for n in range(b.start, b.start + len(b.instrs))}
