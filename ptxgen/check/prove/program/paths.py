"""The conditions under which blocks run, as formulas over the guards of branches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ptxgen.check.flow import Block
from ptxgen.check.prove.program.graph import EXIT, Graph
from ptxgen.check.prove.program.values import Node, Values
from ptxgen.ir import Reg, Symbol


class Literal(NamedTuple):
    """A predicate, or with `negated` its opposite; the node is None if nothing is known of it."""

    node: Node | None
    negated: bool


class Fork(NamedTuple):
    """The end of a block from which control may go two ways: to `taken` if the guard holds, else to
    `passed`, each a block or `EXIT`. The guard is None for a jump through a table.
    """

    guard: Node | None
    negated: bool
    taken: int
    passed: int


def fork_of(graph: Graph, values: Values, index: int) -> Fork:
    """The fork at the end of a basic block: its guard, and the two blocks to which control may go."""
    block = graph.blocks[index]
    last = block.instrs[-1]
    passed = index + 1 if block.falls_through and index + 1 < len(graph.blocks) else EXIT
    target = last.operands[-1] if last.operands else None
    named = (
        b for b in block.successors if isinstance(target, Symbol) and target.name in graph.blocks[b].labels
    )
    taken = next(named, EXIT)
    if last.guard is None or last.opcode.startswith("brx"):
        return Fork(None, False, taken, passed)
    node = values.at(last.guard.register, index, len(block.instrs) - 1)
    return Fork(node, last.guard.negated, taken, passed)


class Origins(NamedTuple):
    """The kinds and the numbers of the values that a value depends on."""

    kinds: frozenset[str]
    numbers: frozenset[int]


class Formula(NamedTuple):
    """The conjunction of `parts`, or with `either` their disjunction.

    `left` is set if the formula is the condition for leaving loops that every path leaves, and has
    the blocks of these loops. Such a condition holds in some iteration, so it restricts only values
    that change in these blocks.
    """

    parts: tuple[Formula | Literal, ...]
    either: bool = False
    left: frozenset[int] = frozenset()


ALWAYS: Final = Formula(())
_ENDING: Final = ("ret", "exit", "trap")


def literals(formula: Formula | Literal) -> Iterator[Literal]:
    """Every literal (a predicate, negated or not) that occurs in a formula."""
    stack: list[Formula | Literal] = [formula]
    while stack:
        part = stack.pop()
        if isinstance(part, Literal):
            yield part
        else:
            stack += part.parts


def certain(formula: Formula | Literal) -> Iterator[Literal]:
    """The literals (predicates, negated or not) that hold whenever a formula holds."""
    stack: list[Formula | Literal] = [formula]
    while stack:
        part = stack.pop()
        if isinstance(part, Literal):
            yield part
        elif not part.either or len(part.parts) == 1:
            stack += part.parts


def _all(parts: Iterable[Formula | Literal]) -> Formula:
    terms = tuple(p for p in parts if p != ALWAYS)
    return Formula(terms) if terms else ALWAYS


def _any(parts: Sequence[Formula | Literal]) -> Formula:
    return ALWAYS if ALWAYS in parts else Formula(tuple(parts), either=True)


class Paths:
    """The conditions under which the blocks of a kernel run."""

    def __init__(self, graph: Graph, values: Values) -> None:
        self.graph = graph
        self._values = values
        self._local: dict[int, Formula] = {}
        self._edges: dict[tuple[int, int], Formula] = {}
        self._arrivals: dict[tuple[int, int], Formula] = {}
        self._uniform: dict[int, bool] = {}
        self._origins: dict[int, Origins] = {}
        self._varying: dict[int, frozenset[int]] = {}

    def reach(self, block: int, above: int | None = None) -> Formula:
        """The condition for `block` to run once `above` has run, which dominates it (default: the
        kernel's entry).
        """
        root = self.graph.order[0]
        top = root if above is None else above
        parts = []
        while block not in (top, root):
            parts.append(self._reached(block))
            block = self.graph.idom[block]
        return _all(parts)

    def arrival(self, before: int, block: int) -> Formula:
        """The condition for `block` to be entered from `before`, once its immediate dominator has
        run, or for a back edge once the loop header has.
        """
        arrival = self._arrivals.get((before, block))
        if arrival is None:
            back = self.graph.dominates(block, before)
            above = block if back else self.graph.idom[block]
            arrival = _all((self.reach(before, above), self.edge(before, block)))
            self._arrivals[before, block] = arrival
        return arrival

    def edge(self, before: int, block: int) -> Formula:
        """The condition, a formula, under which control goes from one basic block to the next."""
        edge = self._edges.get((before, block))
        if edge is None:
            edge = self._edges[before, block] = self._edge(self.graph.blocks[before], block)
        return edge

    def _edge(self, before: Block, after: int) -> Formula:
        last = before.instrs[-1] if before.instrs else None
        if last is None or len(before.successors) == 0:
            return ALWAYS
        head = last.opcode.partition(".")[0]
        falls = before.falls_through and after == before.index + 1
        if head == "brx":
            return Formula((Literal(None, False),))
        if last.guard is None or head not in ("bra", *_ENDING):
            return ALWAYS
        target = last.operands[-1] if last.operands else None
        labels = self.graph.blocks[after].labels
        taken = head == "bra" and isinstance(target, Symbol) and target.name in labels
        if taken and falls:
            return ALWAYS
        node = self._values.at(last.guard.register, before.index, len(before.instrs) - 1)
        return Formula((Literal(node, last.guard.negated == taken),))

    def _reached(self, block: int) -> Formula:
        """The condition for `block` to run once its immediate dominator has run."""
        condition = self._local.get(block)
        if condition is not None:
            return condition
        graph = self.graph
        above = graph.idom[block]
        latches = graph.latches.get(block, ())
        entries = [p for p in graph.before[block] if p not in latches]
        # After a loop, the iteration in which control left it matters.
        left = [b for b in graph.bodies.values() if above in b and block not in b]
        follows = graph.always_follows(block, above)
        if len(entries) > 1 and not left and follows:
            condition = ALWAYS
        elif block in graph.wild:
            condition = Formula((Literal(None, False),))
        else:
            condition = _any([_all((self.reach(p, above), self.edge(p, block))) for p in entries])
            if left and follows:
                condition = Formula((condition,), left=frozenset[int]().union(*left))
        self._local[block] = condition
        return condition

    # ------------------------------------------------------------------------------- uniformity

    def uniform(self, node: Node) -> bool:
        """Whether all threads of a block that reach a point together hold the same value there: no
        value that it depends on comes from the thread index or from memory that may be written.
        """
        uniform = self._uniform.get(node.id)
        if uniform is None:
            uniform = self._uniform[node.id] = not any(
                n.kind in ("thread", "shuffle") or (n.kind == "opaque" and not n.uniform)
                for n in self.sources(node)
            )
        return uniform

    def origins(self, node: Node) -> Origins:
        """The kinds and the numbers of all values that a value depends on."""
        origins = self._origins.get(node.id)
        if origins is None:
            sources = list(self.sources(node))
            kinds, numbers = frozenset(n.kind for n in sources), frozenset(n.id for n in sources)
            origins = self._origins[node.id] = Origins(kinds, numbers)
        return origins

    def changes(self, leaf: Node, body: frozenset[int]) -> bool:
        """Whether a leaf value of a table's rows may change within the blocks of a loop."""
        if leaf.kind in ("thread", "param"):
            return False
        varying = self._varying.get(leaf.id)
        if varying is None:
            varying = self._varying[leaf.id] = frozenset(_varying(leaf))
        return not varying.isdisjoint(body)

    def sources(self, node: Node) -> Iterator[Node]:
        """Every value that a value depends on, itself included; for values that merge, also the
        conditions that select one of them.
        """
        seen = {node.id}
        stack = [node]
        while stack:
            node = stack.pop()
            yield node
            for other in self.inputs(node):
                if other.id not in seen:
                    seen.add(other.id)
                    stack.append(other)

    def inputs(self, node: Node) -> Iterator[Node]:
        """The values from which a value is directly computed; for one that merges, also the deciding
        conditions.
        """
        yield from node.args
        if node.kind in ("join", "header"):
            yield from (value for _, value in self._values.meeting(node))
            yield from self.deciding(node)

    def deciding(self, node: Node) -> Iterator[Node]:
        """The conditions that select one of the values that merge at a node, or that decide the
        number of a loop's iterations. The condition for leaving an inner loop counts only for
        values that change in that loop.
        """
        graph, block = self.graph, node.block
        for before in graph.before[block]:
            top = block if graph.dominates(block, before) else graph.idom[block]
            for branch in sorted({before, *graph.controlling(before)}):
                if graph.dominates(top, branch):
                    yield from self._decision(branch)
        for inside in graph.bodies.get(block, ()):
            for after in graph.blocks[inside].successors:
                if after not in graph.bodies[block]:
                    yield from self._decision(inside)

    def _decision(self, branch: int) -> Iterator[Node]:
        """The predicate and the registers that select the successor of a block, if any."""
        instrs = self.graph.blocks[branch].instrs
        last = instrs[-1] if instrs else None
        if last is None or last.opcode.partition(".")[0] not in ("bra", "brx", *_ENDING):
            return
        registers = [last.guard.register] if last.guard is not None else []
        if last.opcode.startswith("brx"):
            registers += [o for o in last.operands if isinstance(o, Reg)]
        for register in registers:
            yield self._values.at(register, branch, len(instrs) - 1)

    def guards_around(self, block: int, without: Collection[int] = ()) -> list[Node | None]:
        """The predicates of all branches that decide whether a block runs, except branches of `without`."""
        guards: dict[int, Node | None] = {}
        for branch in sorted(self.graph.controlling(block).difference(without)):
            last = self.graph.blocks[branch].instrs[-1]
            if last.guard is None:
                guards[-1 - branch] = None
                continue
            at = len(self.graph.blocks[branch].instrs) - 1
            node = self._values.at(last.guard.register, branch, at)
            guards[node.id] = node
        return list(guards.values())


def _varying(leaf: Node) -> Iterator[int]:
    """The blocks of the values that a value is computed from and that may change between iterations."""
    stack, seen = [leaf], set()
    while stack:
        node = stack.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        if node.kind in ("join", "header") or (node.kind == "opaque" and not isinstance(node.data, str)):
            yield node.block
        stack += node.args
