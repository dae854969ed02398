"""Dominators and loops of a control-flow graph.

The algorithm for dominators is that of K. Cooper, T. Harvey and K. Kennedy, "A Simple, Fast
Dominance Algorithm" (2001).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from ptxgen.check.flow import Block, predecessors, reverse_post_order

EXIT: Final = -1  # the end of the kernel, in post-dominator trees
_NO_WORK: Final = ("ret", "exit", "bra")


class Graph:
    """A control-flow graph with its dominators and loops. Unreachable blocks are left out."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        self.order = reverse_post_order(blocks)
        reached = set(self.order)
        self.before = tuple(tuple(p for p in incoming if p in reached) for incoming in predecessors(blocks))
        self.rank = {index: n for n, index in enumerate(self.order)}
        self.idom = _immediate_dominators(self.order, {b: self.before[b] for b in self.order})
        self.latches: dict[int, tuple[int, ...]] = {}  # by loop header
        # Targets of backward edges that do not dominate the source: such a loop has two entries.
        self.wild: set[int] = set()
        self._find_loops()

    def _find_loops(self) -> None:
        bodies: dict[int, set[int]] = {}
        for header in self.order:
            backward = [p for p in self.before[header] if self.rank[p] >= self.rank[header]]
            if not backward:
                continue
            if all(self.dominates(header, p) for p in backward):
                self.latches[header] = tuple(backward)
                bodies[header] = self._body(header, backward)
            else:
                self.wild.add(header)
        self.bodies: dict[int, frozenset[int]] = {h: frozenset(b) for h, b in bodies.items()}

    def _body(self, header: int, latches: Sequence[int]) -> set[int]:
        body, todo = {header}, list(latches)
        while todo:
            block = todo.pop()
            if block not in body:
                body.add(block)
                todo += self.before[block]
        return body

    @cached_property
    def _walk_numbers(self) -> dict[int, tuple[int, int]]:
        """For each block, its entry and exit numbers in a walk over the dominator tree."""
        children: dict[int, list[int]] = {b: [] for b in self.order}
        for block in self.order[1:]:
            children[self.idom[block]].append(block)
        first: dict[int, int] = {}
        numbers: dict[int, tuple[int, int]] = {}
        stack = [(self.order[0], False)] if self.order else []
        clock = 0
        while stack:
            block, done = stack.pop()
            clock += 1
            if done:
                numbers[block] = first[block], clock
                continue
            first[block] = clock
            stack.append((block, True))
            stack += [(child, False) for child in children[block]]
        return numbers

    def dominates(self, above: int, below: int) -> bool:
        """Whether every path to `below` goes through `above`; a block dominates itself."""
        first, last = self._walk_numbers[above]
        inner, _ = self._walk_numbers[below]
        return first <= inner <= last

    @cached_property
    def frontier(self) -> dict[int, set[int]]:
        """For each block, its dominance frontier: the blocks that it does not strictly dominate,
        but of which it dominates a predecessor.
        """
        frontier: dict[int, set[int]] = {b: set() for b in self.order}
        for block in self.order:
            if len(self.before[block]) < 2 and block != self.order[0]:
                continue
            for runner in self.before[block]:
                while runner != self.idom.get(block, EXIT):
                    frontier[runner].add(block)
                    if runner == self.order[0]:
                        break
                    runner = self.idom[runner]
        return frontier

    def joins_of(self, defining: Sequence[int]) -> frozenset[int]:
        """The blocks where values defined in `defining` merge: the iterated dominance frontier."""
        joins: set[int] = set()
        todo = [b for b in defining if b in self.rank]
        while todo:
            for block in self.frontier[todo.pop()]:
                if block not in joins:
                    joins.add(block)
                    todo.append(block)
        return frozenset(joins)

    @cached_property
    def post(self) -> dict[int, int]:
        """The immediate post-dominator of each block; `EXIT` for the end of the kernel."""
        after = {b: tuple(dict.fromkeys(self.blocks[b].successors)) for b in self.order}
        ends = [b for b in self.order if not after[b] or self._may_end(b)]
        return _post_dominators(self.order, after, ends)

    def _may_end(self, index: int) -> bool:
        """Whether the block ends with a guarded `ret` or `exit`."""
        block = self.blocks[index]
        last = block.instrs[-1] if block.instrs else None
        return last is not None and last.opcode.partition(".")[0] in ("ret", "exit", "trap")

    def always_follows(self, later: int, earlier: int) -> bool:
        """Whether every path from `earlier` to the end goes through `later`."""
        block = earlier
        while block != EXIT and block != later:
            block = self.post.get(block, EXIT)
        return block == later

    def other_ways(self, block: int) -> list[tuple[int, bool]]:
        """The branches from which control may go a way that does not lead to `block` any more, and whether
        every such way ends the thread at once.
        """
        ways = []
        leading = self.leading(block)
        for branch in sorted(self.controlling(block)):
            others = [s for s in self.blocks[branch].successors if s not in leading]
            if others or self._may_end(branch):
                ways.append((branch, all(map(self._ends_at_once, others))))
        return ways

    def leading(self, block: int, without: int = EXIT) -> set[int]:
        """The blocks from which control may come to `block`, itself included, not through `without`."""
        leading: set[int] = set()
        todo = [block]
        while todo:
            one = todo.pop()
            if one not in leading and one != without:
                leading.add(one)
                todo += self.before[one]
        return leading

    def _ends_at_once(self, block: int) -> bool:
        """Whether a thread that comes to a block ends without another instruction than jumps."""
        seen: set[int] = set()
        while block not in seen:
            seen.add(block)
            here = self.blocks[block]
            *others, last = here.instrs or (None,)
            if others or (last is not None and (last.guard or last.opcode.split(".")[0] not in _NO_WORK)):
                return False
            if not here.successors:
                return True
            if len(here.successors) > 1:
                return False
            (block,) = here.successors
        return False

    def controlling(self, block: int) -> set[int]:
        """The blocks whose branches decide whether `block` runs, directly or through others."""
        branches: set[int] = set()
        todo = [block]
        while todo:
            for branch in self._control.get(todo.pop(), ()):
                if branch not in branches:
                    branches.add(branch)
                    todo.append(branch)
        return branches

    @cached_property
    def _control(self) -> dict[int, set[int]]:
        """For each block, the branches with one successor that always leads to it and one that may not."""
        control: dict[int, set[int]] = {}
        for branch in self.order:
            successors = self.blocks[branch].successors
            if len(successors) < 2 and not (successors and self._may_end(branch)):
                continue
            for runner in successors:
                while runner not in (EXIT, self.post.get(branch, EXIT)):
                    control.setdefault(runner, set()).add(branch)
                    runner = self.post.get(runner, EXIT)
        return control


def _immediate_dominators(order: Sequence[int], before: dict[int, tuple[int, ...]]) -> dict[int, int]:
    """For each block, its immediate dominator; `order` begins with the root, which dominates itself."""
    if not order:
        return {}
    rank = {block: n for n, block in enumerate(order)}
    dominators = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            known = [p for p in before[block] if p in dominators]
            nearest = known[0]
            for other in known[1:]:
                nearest = _meeting(nearest, other, dominators, rank)
            if dominators.get(block) != nearest:
                dominators[block] = nearest
                changed = True
    return dominators


def _meeting(a: int, b: int, dominators: dict[int, int], rank: dict[int, int]) -> int:
    while a != b:
        while rank[a] > rank[b]:
            a = dominators[a]
        while rank[b] > rank[a]:
            b = dominators[b]
    return a


def _post_dominators(
    order: Sequence[int], after: dict[int, tuple[int, ...]], ends: Sequence[int]
) -> dict[int, int]:
    leads: dict[int, list[int]] = {b: [] for b in (*order, EXIT)}
    for block, successors in after.items():
        for s in successors:
            leads[s].append(block)
    for block in ends:
        leads[EXIT].append(block)
    walked: list[int] = []
    seen = {EXIT}
    stack = [(EXIT, iter(leads[EXIT]))]
    while stack:
        block, rest = stack[-1]
        following = next((b for b in rest if b not in seen), None)
        if following is None:
            stack.pop()
            walked.append(block)
        else:
            seen.add(following)
            stack.append((following, iter(leads[following])))
    backwards = walked[::-1]
    sources = {b: tuple(s for s in after.get(b, ()) if s in seen) for b in backwards}
    for block in ends:
        sources[block] = (*sources[block], EXIT)
    return _immediate_dominators(backwards, sources)
