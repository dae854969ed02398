"""The part of a kernel's control flow that decides which barriers a warp comes to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final, NamedTuple

from ptxgen.check.prove.barriers.sites import Site
from ptxgen.check.prove.program.domain import bottom_up
from ptxgen.check.prove.program.graph import EXIT, Graph
from ptxgen.check.prove.program.paths import fork_of
from ptxgen.check.prove.program.values import Node, Values

_ENDING: Final = ("ret", "exit", "trap")
# Instructions that a counter's step is applied by, with the operands that may be the counter.
_STEPPED: Final = {"add": (0, 1), "sub": (0,)}


class Branch(NamedTuple):
    """The end of a block from which control may go two ways: to `taken` if the guard holds, else to
    `passed`, each a block or `EXIT`. `between` has the blocks that run before both ways meet at
    `meeting`; `barriers` says whether any of them has a barrier, `again` whether control may come
    back to the branch before.
    """

    guard: Node | None
    negated: bool
    taken: int
    passed: int
    between: frozenset[int]
    meeting: int
    barriers: bool
    again: bool


class Step(NamedTuple):
    """The step of a loop's counter in each iteration: an instruction's name, the operand that the counter is,
    and the value of the other operand, which the loop does not change.
    """

    name: str
    operand: int
    value: Node


class Control:
    """The branches of a kernel, and the values that they and the barriers depend on."""

    def __init__(self, graph: Graph, values: Values, sites: Iterable[Site]) -> None:
        self.graph = graph
        self._values = values
        self.sites: dict[int, list[Site]] = {}
        for site in sorted(sites, key=lambda site: site[:2]):
            self.sites.setdefault(site.block, []).append(site)
        self._read = {site.value.id for of in self.sites.values() for site in of if site.value is not None}
        self.branches = {b: self._branch(b) for b in graph.order if self._is_split(b)}
        self._leaves: dict[int, frozenset[Node]] = {}
        self._begun: dict[int, frozenset[int]] = {}
        self._deciding: dict[int, bool] = {}

    # ------------------------------------------------------------------------------ branches

    def after(self, block: int) -> int:
        """Where control goes from the end of a block that is no branch: a block or `EXIT`."""
        successors = self.graph.blocks[block].successors
        return successors[0] if successors else EXIT

    def _is_split(self, index: int) -> bool:
        block = self.graph.blocks[index]
        last = block.instrs[-1] if block.instrs else None
        head = last.opcode.partition(".")[0] if last else ""
        guarded = last is not None and last.guard is not None
        return len(block.successors) > 1 or head == "brx" or (guarded and head in ("bra", *_ENDING))

    def _branch(self, index: int) -> Branch:
        graph, block = self.graph, self.graph.blocks[index]
        node, negated, taken, passed = fork_of(graph, self._values, index)
        meeting = graph.post.get(index, EXIT)
        between = self._between(block.successors, meeting)
        barriers = any(b in self.sites for b in between)
        # Without a way to the end, the block is no part of the tree of post-dominators.
        again = index in between or index not in graph.post
        return Branch(node, negated, taken, passed, between, meeting, barriers, again)

    def _between(self, first: Iterable[int], meeting: int) -> frozenset[int]:
        between: set[int] = set()
        todo = list(first)
        while todo:
            block = todo.pop()
            if block != meeting and block not in between:
                between.add(block)
                todo += self.graph.blocks[block].successors
        return frozenset(between)

    # ------------------------------------------------------------------------------ values

    def merged_at(self, block: int) -> list[Node]:
        """The values that merge at the beginning of a block and are needed there or later."""
        return sorted((n for n in self.needed[block] if self._meets(n, block)), key=lambda n: n.id)

    def _meets(self, node: Node, block: int) -> bool:
        """Whether a value merges at the beginning of a basic block; False for one read from shared memory."""
        return node.block == block and node.id not in self._read

    def decides(self, index: int) -> bool:
        """Whether it matters which way control takes at the end of a block: a barrier is on one of the ways,
        or a value that is needed where the ways meet merges there.
        """
        decides = self._deciding.get(index)
        if decides is None:
            branch = self.branches[index]
            lost = {*branch.between, branch.meeting}
            needed = self.needed[branch.meeting] if branch.meeting != EXIT else ()
            decides = self._deciding[index] = branch.barriers or any(n.block in lost for n in needed)
        return decides

    @cached_property
    def entered(self) -> frozenset[int]:
        """The blocks that a warp may enter if it goes on at the meeting of the two ways of each branch whose
        outcome does not matter.
        """
        entered: set[int] = set()
        todo = [self.graph.order[0]]
        while todo:
            block = todo.pop()
            if block in entered or block == EXIT:
                continue
            entered.add(block)
            branch = self.branches.get(block)
            if branch is None:
                todo.append(self.after(block))
            elif self.decides(block):
                todo += (branch.taken, branch.passed, branch.meeting)
            else:
                todo.append(branch.meeting)
        return frozenset(entered)

    @cached_property
    def needed(self) -> dict[int, frozenset[Node]]:
        """For each block, the values merging at it or before that branches and barriers from its
        beginning on depend on.
        """
        needed = {b: frozenset[Node]().union(*map(self.leaves, self._used(b))) for b in self.graph.order}
        changed = True
        while changed:
            changed = False
            for block in reversed(self.graph.order):
                more = needed[block].union(
                    *(self._handed(block, s, needed[s]) for s in self.graph.blocks[block].successors)
                )
                if more != needed[block]:
                    needed[block] = more
                    changed = True
        return needed

    def _used(self, block: int) -> Iterator[Node]:
        """The values that the branch and the barriers of a block use."""
        branch = self.branches.get(block)
        if branch is not None and branch.guard is not None:
            yield branch.guard
        for site in self.sites.get(block, ()):
            yield from (n for n in (site.number, site.threads, site.guard) if n is not None)

    def _handed(self, before: int, block: int, needed: frozenset[Node]) -> frozenset[Node]:
        """The values that must be live at the end of block `before`, because those of `needed` are used
        from the beginning of `block` on.
        """
        passed = frozenset(n for n in needed if n.block != block)
        return passed.union(*(self.leaves(self.coming(n, before)) for n in needed if self._meets(n, block)))

    def coming(self, node: Node, before: int) -> Node:
        """The value that a merging value gets when control comes from block `before`."""
        return dict(self._values.meeting(node))[before]

    def leaves(self, node: Node) -> frozenset[Node]:
        """The merging values, and those read from words, that a value is computed from."""
        return bottom_up(node, self._leaves, self._merging)

    def _merging(self, node: Node) -> frozenset[Node]:
        if node.kind in ("join", "header") or node.id in self._read:
            return frozenset((node,))
        return frozenset[Node]().union(*(self._leaves[a.id] for a in node.args))

    # ------------------------------------------------------------------------------ loops

    def is_back(self, before: int, block: int) -> bool:
        """Whether control that goes from one block to another begins another iteration of a loop."""
        return before in self.graph.latches.get(block, ())

    def depth(self, header: int) -> int:
        """The number of loops around a loop header, its own loop included."""
        return sum(header in body for body in self.graph.bodies.values())

    def may_begin(self, block: int) -> frozenset[int]:
        """The depths of the loops with a counter that may be begun after the beginning of a block."""
        depths = self._begun.get(block)
        if depths is None:
            reachable = self._between([block], EXIT) if block != EXIT else frozenset()
            loops = (
                h
                for h, latches in self.graph.latches.items()
                if reachable & {*self.graph.before[h]} - {*latches}
                and any(node.id in self.steps for node in self.merged_at(h))
            )
            depths = self._begun[block] = frozenset(map(self.depth, loops))
        return depths

    @cached_property
    def steps(self) -> dict[int, Step]:
        """The step of each loop counter in an iteration, by the counter's number; only for loops with
        barriers.
        """
        steps = {}
        for node in frozenset[Node]().union(*self.needed.values()):
            if node.kind == "header" and not self.graph.bodies[node.block].isdisjoint(self.sites):
                step = self._step(node)
                if step is not None:
                    steps[node.id] = step
        return steps

    def _step(self, counter: Node) -> Step | None:
        body = self.graph.bodies[counter.block]
        steps = {self._stepped(counter, self.coming(counter, b)) for b in self.graph.latches[counter.block]}
        step = steps.pop()
        if steps or step is None or any(leaf.block in body for leaf in self.leaves(step.value)):
            return None
        return step

    def _stepped(self, counter: Node, value: Node) -> Step | None:
        """The step by which a counter becomes `value`, if it is one."""
        value = _unmoved(value)
        if value.kind != "apply" or value.data.result >= 0 or value.data.element >= 0:
            return None
        name = value.data.op.opcode
        for operand in _STEPPED.get(name.partition(".")[0], ()):
            if _unmoved(value.args[operand]) is counter and len(value.args) == len(("counter", "step")):
                return Step(name, operand, value.args[1 - operand])
        return None


def _unmoved(node: Node) -> Node:
    """The value that `node` copies by `mov` instructions; `node` itself if it is no copy."""
    while node.kind == "apply" and node.data.op.opcode.startswith("mov.") and len(node.args) == 1:
        if node.args[0].bits != node.bits or node.data.type.bits != node.bits:
            break
        node = node.args[0]
    return node
