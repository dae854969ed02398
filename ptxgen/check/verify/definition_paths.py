"""Definition before use, with what guards say of each path.

`ptxgen.check.verify.definitions` asks whether every path through a body writes a register before
it reads it, and takes all paths for possible. What it suspects is looked at again here, with two
facts that compilers use: a branch under a guard tells the value of the guard's register on either
side, so that a register written behind `@%p bra` may be read behind another one; and a `mov` hands
an undefined value on without using it, so that only the use of what holds the copy is a mistake.

For each suspect, a fact at a place of the body is either that the register has been written, or
that it has been written if a predicate register holds true, or false. It holds if it does on every
path to that place. A write of the predicate ends the facts under it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ptxgen.check.flow import ENDS, JUMPS, Block, predecessors, reverse_post_order
from ptxgen.check.verify.shapes import registers_of, shape_of
from ptxgen.ir import Guard, Instr

_MOST_FACTS: Final = 1 << 24  # of all blocks; with more, every suspect stays one


@dataclass(frozen=True, slots=True)
class _Action:
    """What an instruction does to registers, by name."""

    instr: Instr
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    copies: bool

    @property
    def guard(self) -> Guard | None:
        return self.instr.guard


def used_undefined(
    graph: Sequence[Block], suspects: Mapping[str, Instr], given: Collection[str]
) -> Mapping[str, Instr]:
    """The suspects that some path uses before it defines them, each with the first instruction that
    reads it. `given` are registers that have a value at the entry.
    """
    actions = {i: [_action(x) for x in graph[i].instrs] for i in reverse_post_order(graph)}
    copies = _copies(actions)
    names = list(suspects)
    for name in names:  # which grows
        names += sorted(copies.get(name, set()) - set(names))
    facts = _Facts(graph, actions, names)
    if facts.bits * len(actions) > _MOST_FACTS:
        return suspects
    wrong = facts.wrong_uses(given)
    found = {}
    for name, instr in suspects.items():
        if name in wrong:
            found[name] = wrong[name]
        elif _reached(name, copies) & wrong.keys():
            found[name] = instr
    return found


def guarded_writes(graph: Sequence[Block]) -> set[str]:
    """The registers that some instruction writes under a guard."""
    guarded = [_action(x) for block in graph for x in block.instrs if x.guard is not None]
    return {name for action in guarded for name in action.writes}


def _action(instr: Instr) -> _Action:
    shape = shape_of(instr)
    if shape.complaints:  # as in the walk of the verifier: its first operand counts as written
        written = tuple(r.name for o in instr.operands[:1] for r in registers_of(o))
        return _Action(instr, written, (), copies=False)
    names = shape.names(instr.operands)
    copies = instr.opcode.startswith("mov.")
    return _Action(instr, names[: shape.dests], names[shape.dests :], copies)


def _copies(actions: Mapping[int, Sequence[_Action]]) -> Mapping[str, set[str]]:
    """For each register, those that a `mov` copies it to."""
    copies: dict[str, set[str]] = {}
    for block in actions.values():
        for action in block:
            for name in action.reads if action.copies else ():
                copies.setdefault(name, set()).update(action.writes)
    return copies


def _reached(name: str, copies: Mapping[str, set[str]]) -> set[str]:
    """The registers that may hold copies of one."""
    reached: set[str] = set()
    todo = [name]
    while todo:
        more = copies.get(todo.pop(), set()) - reached
        reached |= more
        todo += more
    return reached


class _Facts:
    """The facts about some registers as bits of one number, `width` for each register: whether it
    has been written, and then for each predicate, if that is false and if it is true. If the first
    of them holds, all do.
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

    def wrong_uses(self, given: Collection[str]) -> Mapping[str, Instr]:
        """The registers that some path uses before it has written them, and the first such use."""
        at_start = self._at_start(given)
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

    def _at_start(self, given: Collection[str]) -> Mapping[int, int]:
        """The facts at the start of each block."""
        everything = (1 << self.bits) - 1
        entry = 0
        for name in given:
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
        """The facts at the end of a block on the way to another one."""
        block = self._graph[index]
        last = block.instrs[-1] if block.instrs else None
        if last is None or last.guard is None:
            return state
        head = last.opcode.partition(".")[0]
        falls = to == index + 1
        # A branch that may also go to where it falls through to tells nothing there.
        if head not in JUMPS | ENDS or (falls and head == "brx"):
            return state
        if falls and head == "bra" and len(block.successors) == 1:
            return state
        return self._knowing(state, last.guard.register.name, falls == last.guard.negated)

    def _knowing(self, state: int, predicate: str, value: bool) -> int:
        """The facts where a predicate is known."""
        place = self._place(predicate, value)
        for start in self._start.values():
            mine = state >> start & self._all
            if mine >> place & 1:
                mine = self._all
            state |= (mine | 1 << self._place(predicate, not value)) << start
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
        """The facts about a register after a write under a guard, of a value with facts `read`."""
        then = 1 << self._place(guard.register.name, not guard.negated)
        other = 1 << self._place(guard.register.name, guard.negated)
        if not read & then:
            return old & other
        return self._all if old & other else old | then

    def _without(self, state: int, predicate: str) -> int:
        """The facts once a predicate has another value."""
        both = 3 << self._place(predicate, False)
        for start in self._start.values():
            if not state >> start & 1:
                state &= ~(both << start)
        return state

    def _holds(self, state: int, name: str, guard: Guard | None) -> bool:
        """Whether a register has been written where a guard holds."""
        facts = self._of(state, name)
        if facts & 1 or guard is None:
            return bool(facts & 1)
        return bool(facts >> self._place(guard.register.name, not guard.negated) & 1)

    def _place(self, predicate: str, value: bool) -> int:
        return 1 + 2 * self._predicates[predicate] + value

    def _of(self, state: int, name: str) -> int:
        start = self._start.get(name)
        return self._all if start is None else state >> start & self._all

    def _with(self, state: int, name: str, facts: int) -> int:
        start = self._start.get(name)
        if start is None:
            return state
        return state & ~(self._all << start) | facts << start
