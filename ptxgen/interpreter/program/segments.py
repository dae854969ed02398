"""Routines (kernels or functions) cut into segments, in the order in which the scheduler prefers
them. A segment runs between two decisions of the scheduler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from ptxgen.check import flow
from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter.reports import where_from
from ptxgen.ir import Address, Function, Instr, Kernel, Operand, Pair, Reg, Symbol, Targets, registers_of
from ptxgen.isa.spec import OF_REGISTERS, BoundOperand, Effect, Op
from ptxgen.isa.table import op_of


@dataclass(frozen=True)
class Step:
    """One instruction: its number in the program, and its row with the modifiers chosen.

    An instruction that waits and has results is two steps: the second, which `resumes`, fetches
    them.
    """

    number: int
    instr: Instr
    op: Op
    resumes: bool = False

    @property
    def leaves(self) -> bool:
        """Whether the scheduler carries the instruction out: a branch, a call, or the end of the thread."""
        return self.op.effect is Effect.CONTROL and self.op.row.name in _LEAVING

    @property
    def calls(self) -> bool:
        """Whether the instruction calls a function."""
        return self.op.row.name in CALLS

    @cached_property
    def waits(self) -> bool:
        """Whether threads may have to wait in the instruction."""
        return not self.resumes and (self.op.effect is Effect.BARRIER or self.op.row.resume is not None)

    @cached_property
    def read(self) -> tuple[Reg, ...]:
        """The registers that the instruction reads, its guard included."""
        guard = self.instr.guard
        return self.copied if guard is None else (guard.register, *self.copied)

    @cached_property
    def copied(self) -> tuple[Reg, ...]:
        """The registers that the instruction reads, without its guard."""
        registers: list[Reg] = []
        for want, got in zip(self.op.flat, self.instr.operands, strict=False):
            if not want.written:
                registers += registers_of(got)
        return tuple(registers)

    @cached_property
    def written(self) -> tuple[Reg, ...]:
        """The registers that the instruction writes; none if it waits before it has results."""
        registers: list[Reg] = []
        for _, got in self.results:
            registers += registers_of(got)
        return tuple(registers)

    @cached_property
    def use(self) -> Use:
        """The names of the registers that the instruction reads and writes."""
        return Use.of(self)

    @cached_property
    def results(self) -> tuple[tuple[BoundOperand, Operand], ...]:
        """The written operands, a pair as two; none of an instruction that waits before it has results."""
        op = self.op
        if not op.dests or (self.waits and op.row.resume is not None):
            return ()
        if not op.pairs:
            return tuple(
                (want, got) for want, got in zip(op.flat, self.instr.operands, strict=False) if want.written
            )
        results: list[tuple[BoundOperand, Operand]] = []
        operands = iter(op.operands)
        for got in self.instr.operands:
            want = next(operands)
            halves = (got.first, got.second) if isinstance(got, Pair) else (got,)
            for n, half in enumerate(halves):
                want = next(operands) if n else want
                if want.written:
                    results.append((want, half))
        return tuple(results)


@dataclass(slots=True)
class Segment:
    """Instructions that run in a row. `after` is the segment after the last one, `targets` are
    those that its branch may go to; -1: the end.

    `waits` says that threads may have to wait in the last instruction. Segments are numbered in an
    order in which each comes after all its predecessors, except along the back edges of loops, and
    a loop comes before the code after it.
    """

    steps: tuple[Step, ...]
    after: int = -1
    targets: tuple[int, ...] = ()
    waits: bool = False
    routine: int = 0
    leave: Step | None = field(init=False)  # the branch, call or `ret` at the end, if there is one

    def __post_init__(self) -> None:
        self.leave = self.steps[-1] if self.steps and self.steps[-1].leaves else None

    @property
    def ends_function(self) -> bool:
        """Whether a thread may leave the routine at the end of the segment."""
        leave = self.leave
        return (self.after < 0 and not self.targets) or (
            leave is not None and leave.op.row.name in ("ret", "exit")
        )

    @property
    def successors(self) -> tuple[int, ...]:
        """The segments of the same routine that may run next."""
        leave = self.leave
        if leave is None or leave.calls:
            return (self.after,) if self.after >= 0 else ()
        nexts = () if leave.instr.guard is None else (self.after,)
        return tuple(dict.fromkeys(s for s in (*nexts, *self.targets) if s >= 0))


CALLS = frozenset({"call", "call_indirect"})
# Instructions of warps besides those with Effect.WARP.
_OF_WARPS = (
    "wgmma.",
    "setmaxnreg.",
    *(
        f"tcgen05.{word}"
        for word in ("alloc.", "dealloc.", "relinquish_alloc_permit.", "ld.", "st.", "wait::")
    ),
)
_JUMPS = frozenset({"bra", "brx"})
_LEAVING = frozenset({*_JUMPS, *CALLS, "ret", "exit"})


def segments(
    routine: Kernel | Function, *, number: int = 0, first_segment: int = 0, first_step: int = 0
) -> list[Segment]:
    """The segments of a routine; the first is its entry.

    `number` is the routine's; `first_segment` and `first_step` are the numbers to begin with.
    Raises `ModifierError` or `TypeMismatchError` for an instruction that is not in the table.
    """
    graph = flow.blocks(routine)
    cut: dict[int, list[tuple[Step, ...]]] = {}
    first: dict[int, int] = {}
    total = first_segment
    for index in _order({b.index: b.successors for b in graph}, 0) if graph else ():
        block = graph[index]
        start = first_step + block.start
        cut[index] = _cut(tuple(Step(start + i, x, op_of(x)) for i, x in enumerate(block.instrs)))
        first[index] = total
        total += len(cut[index])
    labels = {name: b.index for b in reversed(graph) for name in b.labels}
    tables = {s.name: s.targets for s in routine.body or () if isinstance(s, Targets)}
    result = []
    for index, parts in cut.items():
        block = graph[index]
        after = first[index + 1] if block.falls_through and index + 1 in first else -1
        for n, steps in enumerate(parts):
            last = n + 1 == len(parts)
            waits = bool(steps) and steps[-1].waits
            part = Segment(steps, after if last else first[index] + n + 1, (), waits, routine=number)
            leave = part.leave
            if leave is not None and leave.op.row.name in _JUMPS:
                label = leave.instr.operands[-1].name  # type: ignore[union-attr]  # a symbol
                is_table = leave.op.row.name == "brx"
                names = tables.get(label, ()) if is_table else (label,)
                missing = [name for name in names if name not in labels] if names else [label]
                if missing:
                    what = "label" if names else "table of targets"
                    raise TypeMismatchError(
                        f"the interpreter: {where_from(leave.instr)}: {routine.name} has no "
                        f"{what} {missing[0]!r}"
                    )
                part.targets = tuple(first[labels[name]] for name in names)
            result.append(part)
    if not result and isinstance(routine, Function):
        return [Segment((), routine=number)]  # the callers need a segment to enter
    return result


def _cut(steps: tuple[Step, ...]) -> list[tuple[Step, ...]]:
    """A block's steps, cut after each one that may wait and after each call; at least one part."""
    parts: list[tuple[Step, ...]] = []
    part: list[Step] = []
    for step in steps:
        part.append(step)
        if step.waits or step.calls:
            parts.append(tuple(part))
            part = []
            if step.op.row.resume is not None:
                part.append(Step(step.number, step.instr, step.op, resumes=True))
    return [*parts, tuple(part)]


def split(segment: Segment, *, each: bool = False) -> list[Segment]:
    """A segment cut before each instruction that the lanes of a warp execute together; with `each`,
    before every instruction.
    """
    cuts = [n for n, step in enumerate(segment.steps) if n and (each or together(step))]
    bounds = [0, *cuts, len(segment.steps)]
    parts = [Segment(segment.steps[a:b], routine=segment.routine) for a, b in pairwise(bounds)]
    last = parts[-1]
    last.after, last.targets, last.waits = segment.after, segment.targets, segment.waits
    return parts


def together(step: Step) -> bool:
    """Whether the lanes of a warp, or those of a membermask, execute the instruction together."""
    if step.resumes:
        return False
    if step.instr.opcode.startswith(_OF_WARPS):
        return True
    return step.op.effect is Effect.WARP and step.op.row.name != "activemask"


def _order(successors: Mapping[int, Sequence[int]], entry: int) -> list[int]:
    """A reverse post-order in which every loop is contiguous (Bourdoncle's weak topological order,
    1993).

    A plain reverse post-order may put the code after a loop before the loop's body, and threads
    that leave the loop early would run ahead.
    """
    order = []
    for part in reversed(_Components(successors, [entry]).components):
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
        # Iterative, because a kernel may have more blocks than Python has stack frames.
        self._work: list[tuple[int, Iterator[int]]] = []
        self.components: list[list[int]] = []  # each after the components that it leads to
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
            self.components.append(self._stack[at:])
            self._held.difference_update(self._stack[at:])
            del self._stack[at:]
        if self._work:
            caller = self._work[-1][0]
            self._low[caller] = min(self._low[caller], self._low[node])


def maybe_unwritten(parts: Sequence[Segment], at_entry: Iterable[str] = (), first: int = 0) -> frozenset[str]:
    """Registers that some path through a routine may read before it has written them. A guarded
    write does not count as a write. `at_entry` are the registers with a value at the entry, segment `first`.
    """
    uses = [[step.use for step in p.steps] for p in parts]
    everything = frozenset(name for part in uses for use in part for name in (*use.read, *use.written))
    known = [frozenset(at_entry) if n == 0 else everything for n in range(len(parts))]
    changed = set(range(len(parts)))
    while changed:
        n = min(changed)  # segments come after their predecessors, but for loops
        changed.remove(n)
        written = set(known[n])
        for use in uses[n]:
            use.write(written)
        for number in parts[n].successors:
            after = number - first
            if not known[after] <= written:
                known[after] = known[after] & written
                changed.add(after)
    suspects: set[str] = set()
    for part, before in zip(uses, known, strict=True):
        written = set(before)
        for use in part:
            suspects.update(name for name in use.read if name not in written)
            use.write(written)
    return frozenset(suspects)


def maybe_undefined(
    parts: Sequence[Segment], unwritten: Iterable[str], params: Iterable[str]
) -> frozenset[str]:
    """Registers of a kernel that may hold undefined bits: those that it may read `unwritten`, those that it
    loads from memory other than its `params` or gets from other lanes, and what it computes of these.
    """
    named = frozenset(params)
    readers: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    waiting = list(unwritten)
    for step in (step for part in parts for step in part.steps):
        use = step.use
        if step.op.effect not in OF_REGISTERS and not _reads_param(step, named):
            waiting += use.written
        for name in use.read:
            readers[name].append(use.written)
    undefined: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in undefined:
            undefined.add(name)
            for written in readers[name]:
                waiting += written
    return frozenset(undefined)


def _reads_param(step: Step, params: frozenset[str]) -> bool:
    """Whether the instruction loads a parameter of the kernel, by its name."""
    addresses = [got.base for got in step.instr.operands if isinstance(got, Address)]
    return step.instr.opcode.startswith("ld.param") and all(
        isinstance(base, Symbol) and base.name in params for base in addresses
    )


class Use(NamedTuple):
    """The names of the registers that an instruction reads (with the results whose old values it may keep),
    and of those that it writes. `always` says that it writes them in every thread.
    """

    read: tuple[str, ...]
    written: tuple[str, ...]
    always: bool

    @classmethod
    def of(cls, step: Step) -> Use:
        """The use of registers by an instruction."""
        old_operands = [
            r for want, got in step.results if want.name in step.op.row.parameters for r in registers_of(got)
        ]
        read = tuple(r.name for r in (*step.read, *old_operands))
        return cls(read, tuple(r.name for r in step.written), step.instr.guard is None)

    def write(self, written: set[str]) -> None:
        """Add to `written` the registers that the instruction certainly writes."""
        if self.always:
            written.update(self.written)
