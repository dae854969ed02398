"""Definition before use, with the guards of each path.

`ptxgen.check.verify.definitions` asks whether every path through a body writes a register before it
reads it, and takes all paths for possible. The registers that it suspects are examined again here,
with two facts that compilers rely on: a guarded branch fixes the value of the guard's register on
either side, so that a register written after one `@%p bra` may be read after another; and a `mov`
copies an undefined value without using it, so that only a use of the copy is a mistake.

For each suspect, a fact at a point of the body is either that the register has been written, or
that it has been written if a predicate register is true, or if it is false. A fact holds at a point
if it holds on every path to it. A write of the predicate ends the facts that depend on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ptxgen.check.flow import ENDS, JUMPS, Block, predecessors, reverse_post_order
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Guard, Instr, registers_of
from ptxgen.records import dataclass

_MOST_FACTS: Final = 1 << 24  # facts of all blocks; with more, every suspect is reported


@dataclass(frozen=True, slots=True)
class _Action:
    """The names of the registers that an instruction reads and writes."""

    instr: Instr
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    copies: bool

    @property
    def guard(self) -> Guard | None:
        return self.instr.guard


def used_undefined(
    graph: Sequence[Block], suspects: Mapping[str, Instr], defined: Collection[str]
) -> Mapping[str, Instr]:
    """The suspects that some path uses before it defines them, each with the first instruction that
    reads it. `defined` are the registers that have a value at the entry.
    """
    actions = {i: [_action(x) for x in graph[i].instrs] for i in reverse_post_order(graph)}
    copies = _copies(actions)
    names = list(suspects)
    for name in names:  # the list grows in the loop
        names += sorted(copies.get(name, set()) - set(names))
    facts = _Facts(graph, actions, names)
    if facts.bits * len(actions) > _MOST_FACTS:
        return suspects
    wrong = facts.wrong_uses(defined)
    undefined = {}
    for name, instr in suspects.items():
        if name in wrong:
            undefined[name] = wrong[name]
        elif _reached(name, copies) & wrong.keys():
            undefined[name] = instr
    return undefined


def guarded_writes(graph: Sequence[Block]) -> set[str]:
    """The registers that some instruction writes under a guard."""
    guarded = [_action(x) for block in graph for x in block.instrs if x.guard is not None]
    return {name for action in guarded for name in action.writes}


def _action(instr: Instr) -> _Action:
    shape = shape_of(instr)
    if shape.complaints:  # the verifier also counts the first operand as written
        written = tuple(r.name for o in instr.operands[:1] for r in registers_of(o))
        return _Action(instr, written, (), copies=False)
    names = shape.names(instr.operands)
    copies = instr.opcode.startswith("mov.")
    return _Action(instr, names[: shape.dests], names[shape.dests :], copies)


def _copies(actions: Mapping[int, Sequence[_Action]]) -> Mapping[str, set[str]]:
    """For each register, the registers that a `mov` copies it to."""
    copies: dict[str, set[str]] = {}
    for block in actions.values():
        for action in block:
            for name in action.reads if action.copies else ():
                copies.setdefault(name, set()).update(action.writes)
    return copies


def _reached(name: str, copies: Mapping[str, set[str]]) -> set[str]:
    """The registers that may hold copies of `name`."""
    reached: set[str] = set()
    todo = [name]
    while todo:
        more = copies.get(todo.pop(), set()) - reached
        reached |= more
        todo += more
    return reached


class _Facts:
    """The facts about some registers, as bits of one number. Each register has `width` bits:
    whether it has been written, and for each predicate, whether it has been written if the
    predicate is false, and if it is true. If the first bit is set, all are.
    """

    def __init__(
        self, graph: Sequence[Block], actions: Mapping[int, Sequence[_Action]], names: Sequence[str]
    ) -> None:
        self._graph = graph
        self._actions = actions
        guards = [a.guard for block in actions.values() for a in block if a.guard is not None]
        self._predicates = {n: i for i, n in enumerate({g.register.name: 0 for g in guards})}
        self._width = 1 + 2 * len(self._predicates)
        self._all = (1 << self._width) - 1
        self._start = {name: n * self._width for n, name in enumerate(names)}
        self.bits = self._width * len(names)

    def wrong_uses(self, defined: Collection[str]) -> Mapping[str, Instr]:
        """The registers that some path uses before it has written them, with the first such use."""
        at_start = self._at_start(defined)
        wrong: dict[str, Instr] = {}
        for index in sorted(self._actions):
            state = at_start[index]
            for action in self._actions[index]:
                guard = action.guard
                if guard is not None and not self._holds(state, guard.register.name, None):
                    wrong.setdefault(guard.register.name, action.instr)
                for name in () if action.copies else action.reads:
                    if not self._holds(state, name, guard):
                        wrong.setdefault(name, action.instr)
                state = self._after(state, action)
        return wrong

    def _at_start(self, defined: Collection[str]) -> Mapping[int, int]:
        """The facts at the start of each block."""
        everything = (1 << self.bits) - 1
        entry = 0
        for name in defined:
            entry = self._with(entry, name, self._all)
        at_start = dict.fromkeys(self._actions, everything)
        at_end = dict.fromkeys(self._actions, everything)
        before = predecessors(self._graph)
        changed = True
        while changed:
            changed = False
            for index in self._actions:
                state = everything if index else entry
                for previous in before[index]:
                    if previous in at_end:
                        state &= self._along(at_end[previous], previous, index)
                at_start[index] = state
                for action in self._actions[index]:
                    state = self._after(state, action)
                changed = changed or state != at_end[index]
                at_end[index] = state
        return at_start

    def _along(self, state: int, index: int, to: int) -> int:
        """The facts at the end of block `index` on the edge to block `to`."""
        block = self._graph[index]
        last = block.instrs[-1] if block.instrs else None
        if last is None or last.guard is None:
            return state
        head = last.opcode.partition(".")[0]
        falls = to == index + 1
        # A branch whose target is also the next block decides nothing there.
        if head not in JUMPS | ENDS or (falls and head == "brx"):
            return state
        if falls and head == "bra" and len(block.successors) == 1:
            return state
        return self._knowing(state, last.guard.register.name, falls == last.guard.negated)

    def _knowing(self, state: int, predicate: str, value: bool) -> int:
        """The facts where `predicate` is known to be `value`."""
        bit = self._bit(predicate, value)
        for start in self._start.values():
            mine = state >> start & self._all
            if mine >> bit & 1:
                mine = self._all
            state |= (mine | 1 << self._bit(predicate, not value)) << start
        return state

    def _after(self, state: int, action: _Action) -> int:
        """The facts after an instruction."""
        guard = action.guard
        read = self._all
        if action.copies:
            for name in action.reads:
                read &= self._of(state, name)
        for name in action.writes:
            if name not in self._start:
                continue
            new = read if guard is None else self._guarded(self._of(state, name), read, guard)
            state = self._with(state, name, new)
        for name in action.writes:
            if name in self._predicates:
                state = self._without(state, name)
        return state

    def _guarded(self, old: int, read: int, guard: Guard) -> int:
        """The facts `old` of a register after a guarded write of a value with the facts `read`."""
        then = 1 << self._bit(guard.register.name, not guard.negated)
        other = 1 << self._bit(guard.register.name, guard.negated)
        if not read & then:
            return old & other
        return self._all if old & other else old | then

    def _without(self, state: int, predicate: str) -> int:
        """The facts after a predicate has been written."""
        both = 3 << self._bit(predicate, False)
        for start in self._start.values():
            if not state >> start & 1:
                state &= ~(both << start)
        return state

    def _holds(self, state: int, name: str, guard: Guard | None) -> bool:
        """Whether a register has been written wherever a guard holds."""
        facts = self._of(state, name)
        if facts & 1 or guard is None:
            return bool(facts & 1)
        return bool(facts >> self._bit(guard.register.name, not guard.negated) & 1)

    def _bit(self, predicate: str, value: bool) -> int:
        return 1 + 2 * self._predicates[predicate] + value

    def _of(self, state: int, name: str) -> int:
        start = self._start.get(name)
        return self._all if start is None else state >> start & self._all

    def _with(self, state: int, name: str, facts: int) -> int:
        start = self._start.get(name)
        if start is None:
            return state
        return state & ~(self._all << start) | facts << start
