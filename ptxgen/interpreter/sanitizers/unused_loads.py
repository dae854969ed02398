"""The loads of a kernel whose value a thread never uses, as far as the text tells.

Triton lets several threads load one element, and one of them store it: the store's guard says which, by the
number of the thread. The others load a value that goes nowhere, so that it does not matter which one it is.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.program.segments import Step
from ptxgen.interpreter.sanitizers.exchanges import EXCHANGES
from ptxgen.ir import Arguments, Guard, Instr, IntImm, Pair, Reg, Special, Vector
from ptxgen.isa.spec import Effect
from ptxgen.isa.table import op_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.interpreter.program.linking import Linked

    Lanes = np.ndarray[Any, np.dtype[Any]]

_PURE: Final = (Effect.NONE, Effect.READ, Effect.WARP, Effect.ADDRESS)
# Instructions whose result is computed from registers of other lanes of the warp.
_CROSSING: Final = (*EXCHANGES, "ldmatrix.", "wmma.", "elect.", "activemask.")
_LOADS: Final = re.compile(r"ld\.(?!param|local|const|volatile|relaxed|acquire|mmio)")
_NUMBERS: Final[dict[str, Callable[[Lanes, Lanes], Lanes]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul.lo": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": lambda a, b: np.left_shift(a, np.minimum(b, 32)),
    "shr": lambda a, b: np.right_shift(a, np.minimum(b, 32)),
}
_COMPARISONS: Final[dict[str, Callable[[Lanes, Lanes], Lanes]]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def unused_loads(linked: Linked, block: tuple[int, int, int]) -> dict[int, Lanes]:
    """By number of a load, the threads of a block that do not use its value, `[threads]` bool. Loads whose
    value all threads use are left out, and so are loads whose value none uses. `block` are the threads along
    x, y and z.
    """
    before = sum(len(_instrs(r)) for r in linked.routines[:-1])
    instrs = _instrs(linked.routines[-1])
    if not any(x.guard is not None and x.opcode.startswith("st.") for x in instrs):
        return {}
    threads = _Threads(instrs, block)
    guarded = [x.guard for x in instrs if x.guard is not None and x.opcode.startswith("st.")]
    if all(threads.executing(guard).all() for guard in guarded):
        return {}
    used = _used(instrs, threads)
    return {before + n: ~of for n, of in used.items() if of.any() and not of.all()}


def _instrs(routine: Any) -> list[Instr]:
    return [s for s in routine.source.body or () if isinstance(s, Instr)]


class _Threads:
    """The values of registers that follow from the text and the number of the thread alone, as u32."""

    def __init__(self, instrs: list[Instr], block: tuple[int, int, int]) -> None:
        self._block = block
        self.count = -(-block[0] * block[1] * block[2] // WARP) * WARP
        # By register: the instructions that may write it, as results come first.
        self._writers: dict[str, list[Instr]] = {}
        for instr in instrs:
            for register in _first_registers(instr):
                self._writers.setdefault(register.name, []).append(instr)
        self._numbers: dict[str, Lanes | None] = {}
        self._predicates: dict[str, tuple[Lanes, Lanes]] = {}

    def executing(self, guard: Guard | None) -> Lanes:
        """The threads that may execute an instruction with this guard, bool."""
        if guard is None:
            return np.ones(self.count, np.bool_)
        may, must = self.predicate(guard.register.name)
        return ~must if guard.negated else may

    def predicate(self, name: str) -> tuple[Lanes, Lanes]:
        """The threads for which a predicate may be true, and those for which it must, bool."""
        if name not in self._predicates:
            self._predicates[name] = self._open()
            self._predicates[name] = self._predicate(name)
        return self._predicates[name]

    def _open(self) -> tuple[Lanes, Lanes]:
        return np.ones(self.count, np.bool_), np.zeros(self.count, np.bool_)

    def _writer(self, name: str) -> Instr | None:
        """The only instruction that writes a register, if that is not guarded."""
        writers = self._writers.get(name, ())
        return writers[0] if len(writers) == 1 and writers[0].guard is None else None

    def _predicate(self, name: str) -> tuple[Lanes, Lanes]:
        instr = self._writer(name)
        if instr is None:
            return self._open()
        parts = instr.opcode.split(".")
        operands = instr.operands[1:]
        if parts[0] == "setp" and parts[1] in _COMPARISONS and parts[2:] in (["u32"], ["b32"]):
            a, b = (self.number(o) for o in operands)
            if a is not None and b is not None:
                holds = _COMPARISONS[parts[1]](a, b)
                return holds, holds
        if len(parts) == 2 and parts[1] == "pred" and all(isinstance(o, Reg) for o in operands):
            known = [self.predicate(o.name) for o in operands if isinstance(o, Reg)]
            if parts[0] == "and":
                return known[0][0] & known[1][0], known[0][1] & known[1][1]
            if parts[0] == "or":
                return known[0][0] | known[1][0], known[0][1] | known[1][1]
            if parts[0] == "not":
                return ~known[0][1], ~known[0][0]
        return self._open()

    def number(self, operand: object) -> Lanes | None:
        """The value of an operand for each thread as u32, int64; None if it depends on anything else."""
        if isinstance(operand, IntImm):
            return np.full(self.count, operand.value & 0xFFFFFFFF)
        if isinstance(operand, Special):
            return self._special(operand.name)
        if not isinstance(operand, Reg):
            return None
        if operand.name not in self._numbers:
            self._numbers[operand.name] = None
            self._numbers[operand.name] = self._number(operand.name)
        return self._numbers[operand.name]

    def _number(self, name: str) -> Lanes | None:
        instr = self._writer(name)
        if instr is None:
            return None
        head, _, type = instr.opcode.rpartition(".")
        if type not in ("u32", "b32", "s32") or (type == "s32" and head == "shr"):
            return None
        operands = [self.number(o) for o in instr.operands[1:]]
        if head == "mov":
            return operands[0]
        a, b = (*operands, None, None)[:2]
        if head not in _NUMBERS or a is None or b is None:
            return None
        result: Lanes = _NUMBERS[head](a, b) & 0xFFFFFFFF
        return result

    def _special(self, name: str) -> Lanes | None:
        thread = np.arange(self.count)
        x, y, _ = self._block
        along = {
            "%tid.x": thread % x,
            "%tid.y": thread // x % y,
            "%tid.z": thread // (x * y),
            "%laneid": thread % WARP,
        }
        return along.get(name)


def _first_registers(instr: Instr) -> list[Reg]:
    """The registers in the first operand of an instruction, and in the results of a call."""
    parts: tuple[object, ...] = instr.operands[:1]
    for operand in instr.operands[:1]:
        match operand:
            case Vector() | Arguments():
                parts = operand.items
            case Pair():
                parts = operand.first, operand.second
    return [p for p in parts if isinstance(p, Reg)]


def _used(instrs: list[Instr], threads: _Threads) -> dict[int, Lanes]:
    """By number of a weak load, the threads that may use its value, bool."""
    steps = [Step(n, x, op_of(x), resumes=True) for n, x in enumerate(instrs)]
    writers: dict[str, list[Step]] = {}
    for step in steps:
        for register in step.written:
            writers.setdefault(register.name, []).append(step)
    wanted: dict[str, Lanes] = {}
    executing = [threads.executing(x.guard) for x in instrs]
    used: dict[int, Lanes] = {}
    todo = deque(reversed(steps))
    waiting = {s.number for s in todo}
    while todo:
        step = todo.popleft()
        waiting.discard(step.number)
        live = executing[step.number]
        if step.op.effect in _PURE:
            live = live & _any_of([wanted.get(r.name) for r in step.written], threads.count)
            if _LOADS.match(step.instr.opcode):
                used[step.number] = live
        if not live.any():
            continue
        if step.instr.opcode.startswith(_CROSSING):
            live = _senders(step.instr, live)
        for register in step.read:
            before = wanted.get(register.name)
            now = live if before is None else before | live
            if before is not None and (now == before).all():
                continue
            wanted[register.name] = now
            more = [s for s in writers.get(register.name, ()) if s.number not in waiting]
            waiting |= {s.number for s in more}
            todo += more
    return used


def _any_of(wanted: list[Lanes | None], count: int) -> Lanes:
    union = np.zeros(count, np.bool_)
    for lanes in wanted:
        if lanes is not None:
            union |= lanes
    return union


def _senders(instr: Instr, live: Lanes) -> Lanes:
    """The `live` threads, and those whose values an exchange in a warp brings to them."""
    distance = instr.operands[2] if len(instr.operands) > 3 else None
    whole = instr.operands[3] if len(instr.operands) > 3 else None
    if instr.opcode == "shfl.sync.bfly.b32" and isinstance(distance, IntImm) and whole == IntImm(31):
        senders: Lanes = live | live[np.arange(len(live)) ^ distance.value & 31]
        return senders
    if instr.opcode == "shfl.sync.idx.b32" and isinstance(distance, IntImm) and whole == IntImm(31):
        senders = live.copy()
        senders[distance.value & 31 :: WARP] |= live.reshape(-1, WARP).any(axis=1)
        return senders
    return np.repeat(live.reshape(-1, WARP).any(axis=1), WARP)
