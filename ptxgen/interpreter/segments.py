"""A kernel cut into segments, what runs between two decisions of the scheduler, in the order it
prefers them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ptxgen.check import flow
from ptxgen.ir import Instr, Kernel, Pair, Reg, Vector
from ptxgen.isa.spec import Effect, Op
from ptxgen.isa.table import op_of


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: its number in the kernel, and its row with the modifiers chosen."""

    number: int
    instr: Instr
    op: Op

    @property
    def leaves(self) -> bool:
        """Whether the scheduler carries it out: a branch, or the end of the thread."""
        return self.op.effect is Effect.CONTROL and self.op.row.name in _LEAVING


@dataclass(slots=True)
class Segment:
    """Instructions that run in a row. `after` follows the last one, `target` is where its branch
    goes; -1: the end.

    `waits` if the last instruction is a barrier. Segments are numbered so that, loops aside, each
    comes after all that lead to it, and a loop comes before what follows it.
    """

    steps: tuple[Step, ...]
    after: int = -1
    target: int = -1
    waits: bool = False

    @property
    def leave(self) -> Step | None:
        """The branch or `ret` at the end, if there is one."""
        return self.steps[-1] if self.steps and self.steps[-1].leaves else None

    @property
    def successors(self) -> tuple[int, ...]:
        """The segments that may come next."""
        leave = self.leave
        if leave is None:
            return (self.after,) if self.after >= 0 else ()
        nexts = () if leave.instr.guard is None else (self.after,)
        return tuple(s for s in (*nexts, self.target) if s >= 0)


_LEAVING = frozenset({"bra", "ret", "exit"})


def segments(kernel: Kernel) -> list[Segment]:
    """The segments of a kernel; the first is its entry.

    Raises `ModifierError` or `TypeMismatchError` for an instruction that is not in the table.
    """
    graph = flow.blocks(kernel)
    cut: dict[int, list[tuple[Step, ...]]] = {}
    first: dict[int, int] = {}
    total = 0
    for index in _order({b.index: b.successors for b in graph}, 0) if graph else ():
        block = graph[index]
        cut[index] = _cut(
            tuple(Step(block.start + i, x, op_of(x)) for i, x in enumerate(block.instrs))
        )
        first[index] = total
        total += len(cut[index])
    made = []
    for index, parts in cut.items():
        block = graph[index]
        after = first[index + 1] if block.falls_through and index + 1 in first else -1
        target = first[block.successors[-1]] if block.successors else -1
        for n, steps in enumerate(parts):
            last = n + 1 == len(parts)
            waits = bool(steps) and steps[-1].op.effect is Effect.BARRIER
            made.append(Segment(steps, after if last else first[index] + n + 1, target, waits))
            if made[-1].leave is None or made[-1].steps[-1].op.row.name != "bra":
                made[-1].target = -1
    return made


def _cut(steps: tuple[Step, ...]) -> list[tuple[Step, ...]]:
    """A block's steps, cut after each barrier; at least one part."""
    parts, start = [], 0
    for n, step in enumerate(steps):
        if step.op.effect is Effect.BARRIER:
            parts.append(steps[start : n + 1])
            start = n + 1
    if start < len(steps) or not parts:
        parts.append(steps[start:])
    elif parts:
        parts.append(())
    return parts


def _order(successors: Mapping[int, Sequence[int]], entry: int) -> list[int]:
    """A reverse post-order in which every loop is contiguous (Bourdoncle's weak topological order,
    1993).

    A plain one may put what follows a loop before the loop's body, and threads that leave early
    would run ahead.
    """
    order = []
    for part in reversed(_Components(successors, [entry]).found):
        if len(part) == 1:
            order.extend(part)
            continue
        members = set(part)
        outside = {s for b, after in successors.items() if b not in members for s in after}
        head = entry if entry in members else min(members & outside)
        inner = {b: [s for s in successors[b] if s in members and s != head] for b in part}
        order.append(head)
        rest = {b: after for b, after in inner.items() if b != head}
        order.extend(_below(rest, [s for s in inner[head] if s in rest]))
    return order


def _below(successors: Mapping[int, Sequence[int]], roots: Sequence[int]) -> list[int]:
    """The order of a loop's body, entered at `roots`."""
    virtual = -1  # a node that leads to all roots
    return _order({**successors, virtual: roots}, virtual)[1:]


class _Components:
    """The strongly connected components that can be reached from some nodes (Tarjan, 1972)."""

    def __init__(self, successors: Mapping[int, Sequence[int]], roots: Sequence[int]) -> None:
        self._successors = successors
        self._number: dict[int, int] = {}
        self._low: dict[int, int] = {}
        self._stack: list[int] = []
        self._held: set[int] = set()
        # Iterative, as a kernel may have more blocks than Python has stack frames.
        self._work: list[tuple[int, Iterator[int]]] = []
        self.found: list[list[int]] = []  # each after those it leads to
        for root in roots:
            if root not in self._number:
                self._enter(root)
                while self._work:
                    self._step(*self._work[-1])

    def _enter(self, node: int) -> None:
        self._number[node] = self._low[node] = len(self._number)
        self._stack.append(node)
        self._held.add(node)
        self._work.append((node, iter(self._successors[node])))

    def _step(self, node: int, rest: Iterator[int]) -> None:
        following = next(rest, None)
        if following is None:
            self._work.pop()
            self._leave(node)
        elif following not in self._number:
            self._enter(following)
        elif following in self._held:
            self._low[node] = min(self._low[node], self._number[following])

    def _leave(self, node: int) -> None:
        if self._low[node] == self._number[node]:
            at = self._stack.index(node)
            self.found.append(self._stack[at:])
            self._held.difference_update(self._stack[at:])
            del self._stack[at:]
        if self._work:
            caller = self._work[-1][0]
            self._low[caller] = min(self._low[caller], self._low[node])


def registers_read(step: Step) -> list[Reg]:
    """The registers an instruction reads, its guard included."""
    found = [step.instr.guard.register] if step.instr.guard else []
    for want, got in zip(step.op.flat, step.instr.operands, strict=False):
        if not want.written:
            found += _registers(getattr(got, "base", got))
    return found


def registers_written(step: Step) -> list[Reg]:
    """The registers an instruction writes."""
    pairs = zip(step.op.flat, step.instr.operands, strict=False)
    return [r for want, got in pairs if want.written for r in _registers(got)]


def _registers(operand: object) -> list[Reg]:
    if isinstance(operand, Reg):
        return [operand]
    if isinstance(operand, Pair):
        return [operand.first, operand.second]
    if isinstance(operand, Vector):
        return [r for r in operand.items if isinstance(r, Reg)]
    return []


def maybe_undefined(parts: Sequence[Segment]) -> frozenset[str]:
    """Registers that some path may read before it has written them; a guarded write does not count
    as one.
    """
    everything = frozenset(
        r.name for p in parts for s in p.steps for r in (*registers_read(s), *registers_written(s))
    )
    known = [frozenset[str]() if n == 0 else everything for n in range(len(parts))]
    suspects: set[str] = set()
    changed = True
    while changed:
        changed = False
        for part, before in zip(parts, known, strict=True):
            defined = set(before)
            for step in part.steps:
                if step.instr.guard is None:
                    defined.update(r.name for r in registers_written(step))
            for n in part.successors:
                if not known[n] <= defined:
                    known[n] = known[n] & defined
                    changed = True
    for part, before in zip(parts, known, strict=True):
        defined = set(before)
        for step in part.steps:
            suspects.update(r.name for r in registers_read(step) if r.name not in defined)
            if step.instr.guard is None:
                defined.update(r.name for r in registers_written(step))
    return frozenset(suspects)
