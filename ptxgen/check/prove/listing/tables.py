"""Lists every combination of values row by row: threads, iterations of loops, paths through
branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from ptxgen.check.prove.listing.rows import (
    MOST_ROWS,
    THREAD,
    Effort,
    NotListedError,
    Seen,
    Table,
    has,
    merged,
    most_varied,
    stacked,
)
from ptxgen.check.prove.program.domain import MOVES, Domain, computed, listed, register_dtype
from ptxgen.check.prove.program.operands import WORD
from ptxgen.check.prove.program.paths import Formula, Literal, Paths, literals
from ptxgen.check.prove.program.values import Node, Values
from ptxgen.check.prove.program.variable_addresses import AddressDependence

Lanes = np.ndarray[Any, np.dtype[Any]]

MOST_ITERATIONS: Final = 4096  # iterations of a loop that are followed
# Iterations that are followed if no known condition ends the loop: values that rotate recur sooner.
_FEW_ITERATIONS: Final = 64
_MOST_MEETINGS: Final = 48  # depth of merges that depend on other merges
_MORE_ITERATIONS: Final = 1024
# The work that counts as one step of effort.
_ROWS_COMPUTED: Final = 1024
_ROWS_COMPARED: Final = 32
_STEPS_OF_ITERATION: Final = 8


class Lister:
    """Computes tables of the values of registers. With `thorough`, each condition on the path to an
    instruction that can be listed excludes rows; without it, only conditions on values of the table do.
    """

    def __init__(
        self,
        values: Values,
        paths: Paths,
        domain: Domain,
        dependence: AddressDependence,
        bases: dict[str, int],
        thorough: bool,
        loops: dict[Any, Table | NotListedError],
        threads: Table,
        effort: Effort,
    ) -> None:
        self.values = values
        self.paths = paths
        self.graph = paths.graph
        self.domain = domain
        self.dependence = dependence
        self.thorough = thorough
        self._bases = bases
        self._loops = loops
        self._all_threads = threads
        self._effort = effort
        self._deep = 0  # number of joins and loops being listed, each for the one before
        self._left_open = False  # whether a condition was met that changes between iterations
        self._wanted: set[Node] = set()
        self._states: dict[int, list[Node]] = {}
        self._constants: dict[tuple[int, int], Lanes] = {}  # columns by the number of rows

    # ----------------------------------------------------------------------- tables and leaves

    def table(self, nodes: Iterable[Node], condition: Formula) -> Table:
        """The table of the values `nodes`: its rows are the threads where the condition may hold."""
        leaves = self._all_leaves(nodes)
        self._collect(leaves)
        if self.thorough:
            self._collect(self._condition_leaves(condition))
        for leaf in sorted(self._wanted, key=lambda leaf: leaf.id):
            if leaf.kind in ("header", "join") and leaf.id not in self.domain.failed:
                self._states.setdefault(leaf.block, []).append(leaf)
        table = self._extend(Table.empty(), leaves)
        return self._where(table, condition)

    @property
    def listed(self) -> frozenset[Node]:
        """The leaf values, such as thread indices and loop counters, from which rows of a table are made."""
        return frozenset(self._wanted)

    def has_all(self, condition: Formula) -> bool:
        """Whether the table of a condition, made by a lister that is not thorough, is the one that a thorough
        lister makes.
        """
        plain = not self.domain.failed and not self.domain.refined
        merges = any(leaf.kind in ("join", "header") for leaf in self._wanted)
        return plain and not merges and self._condition_leaves(condition) <= self._wanted

    def _needed(self, node: Node) -> frozenset[Node]:
        leaves = self.domain.leaves(node)
        if leaves is None:
            raise NotListedError(self._reason(node), node)
        return leaves

    def _reason(self, node: Node) -> str:
        """The reason why a value cannot be listed: a value it depends on that may be anything."""
        for source in self.paths.sources(node):
            if source.kind in ("opaque", "function"):
                what = source.data if isinstance(source.data, str) else source.data[0]
                return f"it depends on {what}"
            if source.kind == "param":
                return f"it depends on the parameter {source.data[0]}, which has no bounds"
        return "it changes in a loop of which no end was found"

    def _collect(self, leaves: Iterable[Node]) -> None:
        """Add `leaves`, and all leaves that these are listed by, to the wanted values."""
        todo = [leaf for leaf in leaves if leaf not in self._wanted]
        while todo:
            leaf = todo.pop()
            if leaf in self._wanted:
                continue
            self._wanted.add(leaf)
            if leaf.kind not in ("join", "header") or leaf.id in self.domain.failed:
                continue
            for before, value in self.values.meeting(leaf):
                inner = self.domain.leaves(value)
                if inner is None:
                    raise NotListedError(self._reason(value), leaf)
                todo += inner
                if self.thorough:
                    todo += self._condition_leaves(self.paths.arrival(before, leaf.block))

    def _condition_leaves(self, condition: Formula) -> set[Node]:
        leaves: set[Node] = set()
        for literal in literals(condition):
            if literal.node is not None:
                leaves |= self._listable(literal.node) or set()
        return leaves

    def _listable(self, node: Node) -> frozenset[Node] | None:
        """The leaves of a predicate; None if both outcomes are possible, for example if it depends
        on the address of a variable.
        """
        if self._is_twisted(node):
            return None
        leaves = self.domain.leaves(node)
        for leaf in leaves or ():
            free = leaf.kind not in ("join", "header") or leaf.id in self.domain.failed
            if leaf.bits == 1 and free and leaf not in self._wanted:
                return None
        return leaves

    # --------------------------------------------------------------------------------- columns

    def _extend(self, table: Table, leaves: Iterable[Node]) -> Table:
        """The table extended so that it has a column for every wanted leaf value."""
        for leaf in sorted(leaves, key=self._order_key):
            if has(table, leaf):
                continue
            if leaf.kind == "thread":
                table = self._threads(table)
            elif leaf.kind == "header" and leaf.id not in self.domain.failed:
                table = self._loop(table, leaf.block)
            elif leaf.kind == "join" and leaf.id not in self.domain.failed:
                table = self._join(table, leaf.block)
            else:
                table = self._range(table, leaf)
        return table

    def _order_key(self, leaf: Node) -> tuple[int, int, int]:
        """The sort key of a leaf: loops and joins first, from the outside in; threads last, because
        they have the most values.
        """
        rank = self.graph.rank.get(leaf.block, 0)
        order = {"header": 0, "join": 1, "thread": 3}.get(leaf.kind, 2)
        return (order > 1) * order, rank, leaf.id

    def _threads(self, table: Table) -> Table:
        threads = self._all_threads.columns[THREAD]
        if table.n == 1 and not table.columns:
            return Table(len(threads), {THREAD: threads}, np.repeat(table.sure, len(threads)), table.assumed)
        result = table.take(np.repeat(np.arange(table.n), len(threads)))
        result.columns[THREAD] = np.tile(threads, table.n)
        return result

    def _range(self, table: Table, leaf: Node) -> Table:
        values = listed(self.domain.range(leaf), leaf.bits)
        result = table.take(np.repeat(np.arange(table.n), len(values)))
        result.columns[leaf.id] = np.tile(values, table.n)
        either = leaf.bits == 1 and self.paths.uniform(leaf)  # the launch decides which of the two it is
        if leaf.kind != "param" and not either:
            result.sure &= False
        return result

    def _join(self, table: Table, block: int) -> Table:
        """The table with the values that merge at a block, the paths one after the other."""
        nodes = self._states[block]
        if self._deep == _MOST_MEETINGS:
            raise NotListedError("too many values meet one after another", nodes[0])
        self._deep += 1
        try:
            return self._entered(table, block, nodes, self.graph.before[block])
        finally:
            self._deep -= 1

    def _all_leaves(self, nodes: Iterable[Node]) -> set[Node]:
        leaves: set[Node] = set()
        for node in nodes:
            leaves |= self._needed(node)
        return leaves

    # ------------------------------------------------------------------------------ loops

    def _loop(self, table: Table, header: int) -> Table:
        """The table with all values that the loop's registers can have at its header, in any
        iteration.
        """
        if self._deep == _MOST_MEETINGS:
            raise NotListedError("too many values meet one after another", self._states[header][0])
        if table.columns:
            return self._followed(table, header)
        # The loop is asked for from many accesses, and its values are the same for all of them.
        key = (
            header,
            *[n.id for n in self._states[header]],
            self.thorough,
            *sorted(self.domain.failed),
            *sorted(self.domain.refined.items()),
            *self._bases.values(),
        )
        result = self._loops.get(key)
        if result is None:
            try:
                result = self._followed(table, header)
            except NotListedError as error:
                result = error
            self._loops[key] = result
        if isinstance(result, NotListedError):
            raise NotListedError(str(result), result.node)
        return result.take(np.arange(result.n))

    def _followed(self, table: Table, header: int) -> Table:
        nodes = self._states[header]
        latches = self.graph.latches[header]
        entries = [p for p in self.graph.before[header] if p not in latches]
        first = self._entered(table, header, nodes, entries)
        mark = THREAD - 1 - header
        first.columns[mark] = np.arange(first.n)
        inside = self._inside(header) - {node.id for node in nodes}
        unchanged = {key: c for key, c in first.columns.items() if key not in inside}
        outer, self._left_open = self._left_open, False
        if len(unchanged) < len(first.columns):  # a value that changes was listed before the iterations
            first.sure &= False
        states = [np.stack([first.columns[n.id].astype(np.uint64) for n in nodes], axis=1)]
        parents, sure = [first.columns[mark]], [first.sure]
        seen = Seen(np.column_stack([parents[0].astype(np.uint64), states[0]]))
        base = Table(first.n, unchanged, first.sure, first.assumed)
        most = self._iteration_limit(header)
        total = first.n
        for iteration in range(most + 1):
            rows, certain = self._next_iteration(base, nodes, header, parents[-1], states[-1], sure[-1])
            self._effort.spend(_STEPS_OF_ITERATION + len(rows) // _ROWS_COMPARED)
            fresh = seen.fresh(rows)
            rows, certain = rows[fresh], certain[fresh]
            if not len(rows):
                break
            total += len(rows)
            if iteration == most or total > MOST_ROWS // 4:
                raise NotListedError(
                    "it changes in a loop of which no end was found", most_varied(nodes, states)
                )
            parents.append(rows[:, 0].astype(np.int64))
            states.append(rows[:, 1:])
            sure.append(certain)
        if self._left_open:  # the launch decides the number of iterations: perhaps few
            for iteration, came_from in enumerate(parents):
                recurs_from = [seen.again.get(p, most + 1) for p in came_from.tolist()]
                sure[iteration] = sure[iteration] & ((np.array(recurs_from) <= iteration) | (iteration == 0))
        self._left_open |= outer
        result = first.take(np.concatenate(parents))
        result.sure = np.concatenate(sure)
        result.assumed = base.assumed
        for column, node in enumerate(nodes):
            values = np.concatenate([s[:, column] for s in states])
            result.columns[node.id] = values.astype(register_dtype(node.bits))
        del result.columns[mark]
        return result

    def _iteration_limit(self, header: int) -> int:
        """The number of iterations of a loop that are worth following."""
        states = set(self._states[header])
        for latch in self.graph.latches[header]:
            for literal in literals(self.paths.arrival(latch, header)):
                leaves = None if literal.node is None else self._listable(literal.node)
                if leaves is not None and leaves <= self._wanted and leaves & states:
                    return MOST_ITERATIONS
        return _MORE_ITERATIONS if self.thorough else _FEW_ITERATIONS

    def _entered(self, table: Table, block: int, nodes: list[Node], entries: Sequence[int]) -> Table:
        """The table with the values that merge at a block, for each predecessor in `entries`."""
        order = self.graph.before[block]
        ways = []
        for before in entries:
            way = order.index(before)
            came = [self.values.meeting(node)[way][1] for node in nodes]
            ways.append((self.paths.arrival(before, block), came))
        # Extended before the paths part, so that the rows of all paths have the same threads and
        # iterations.
        for condition, came in ways:
            table = self._extend(table, self._all_leaves(came))
            if self.thorough and len(ways) > 1:
                wanted = self._condition_leaves(condition) & self._wanted
                table = self._extend(table, wanted)
        parts = []
        for condition, came in ways:
            part = self._where(table, condition) if len(ways) > 1 else table
            parts.append((part, [self.evaluate(part, value) for value in came]))
        return stacked(nodes, parts)

    def _next_iteration(
        self, base: Table, nodes: list[Node], header: int, parents: Lanes, states: Lanes, sure: Lanes
    ) -> tuple[Lanes, Lanes]:
        """The loop's values one iteration later: rows of the entry's row number and the values, and
        a mask of the rows that certainly happen.
        """
        now = base.take(parents)
        now.columns[THREAD - 1 - header] = parents
        now.sure = sure.copy()
        for column, node in enumerate(nodes):
            now.columns[node.id] = states[:, column].astype(register_dtype(node.bits))
        order = self.graph.before[header]
        rows, certain = [], []
        for before in self.graph.latches[header]:
            came = [self.values.meeting(node)[order.index(before)][1] for node in nodes]
            part = self._extend(now, self._all_leaves(came))
            part = self._where(part, self.paths.arrival(before, header))
            columns = [part.columns[THREAD - 1 - header], *(self.evaluate(part, value) for value in came)]
            rows.append(np.column_stack([c.astype(np.uint64) for c in columns]))
            # Rows do not keep the thread for which a value is one of the next iteration.
            is_of_some = THREAD in part.columns and THREAD not in now.columns
            certain.append(np.zeros_like(part.sure) if is_of_some else part.sure)
            base.assumed = merged(base.assumed, part.assumed)
        return np.concatenate(rows), np.concatenate(certain)

    def _inside(self, header: int) -> set[int]:
        """The numbers of the leaves that may change from one iteration of a loop to the next."""
        body = self.graph.bodies[header]
        return {leaf.id for leaf in self._wanted if self.paths.changes(leaf, body)}

    # ------------------------------------------------------------------------------ conditions

    def _where(self, table: Table, condition: Formula) -> Table:
        """The table without the rows in which a condition certainly does not hold."""
        if self.thorough:
            wanted = self._condition_leaves(condition) & self._wanted
            table = self._extend(table, wanted)
        assumed: dict[int, set[bool]] = {}
        may, must = self._truth(table, condition, assumed)
        rows = np.flatnonzero(np.broadcast_to(may, table.n))
        sure = table.sure & must
        result = table if len(rows) == table.n else table.take(rows)
        result = Table(result.n, result.columns, sure[rows], merged(table.assumed, assumed))
        if any(len(ways) > 1 for ways in result.assumed.values()):  # assumed both true and false
            result.sure = np.zeros(result.n, np.bool_)
        return result

    def _truth(
        self, table: Table, formula: Formula | Literal, assumed: dict[int, set[bool]]
    ) -> tuple[Any, Any]:
        """Two masks over a table's rows: where a formula may hold, and where it certainly holds."""
        if isinstance(formula, Literal):
            return self._literal(table, formula, assumed)
        if formula.left and not any(
            leaf.id in table.columns and self.paths.changes(leaf, formula.left) for leaf in self._wanted
        ):
            # The row is the same whichever iteration is the last, and there is a last one.
            return True, True
        parts = [self._truth(table, part, assumed) for part in formula.parts]
        combine: Callable[[Any, Any], Any] = np.logical_or if formula.either else np.logical_and
        may: Any = not formula.either
        must: Any = not formula.either
        for possible, certain in parts:
            may, must = combine(may, possible), combine(must, certain)
        return (may, must) if parts else (True, True)

    def _literal(self, table: Table, literal: Literal, assumed: dict[int, set[bool]]) -> tuple[Any, Any]:
        node = literal.node
        if node is None:
            return True, False
        leaves = self._listable(node)
        if leaves is not None and all(has(table, leaf) for leaf in leaves):
            holds = self.evaluate(table, node) != literal.negated
            return holds, holds
        if leaves is not None or not self.paths.uniform(node) or self._is_twisted(node):
            return True, False
        # A uniform predicate: the launch decides it for the whole block. One that changes between
        # iterations of a loop may hold in one of them and not in another.
        kinds, numbers = self.paths.origins(node)
        if "header" in kinds:
            self._left_open = True
        elif "join" not in kinds:
            assumed.setdefault(node.id, set()).add(literal.negated)
        return True, self.domain.failed.isdisjoint(numbers)

    def _is_twisted(self, node: Node) -> bool:
        return not self.dependence.of(node).is_fixed

    # ------------------------------------------------------------------------------ values

    def evaluate(self, table: Table, node: Node) -> Lanes:
        """The value of `node` in each row, with the bits of its register."""
        known = table.computed
        stack = [node]
        while stack:
            top = stack[-1]
            if top.id in known:
                stack.pop()
                continue
            column = table.columns.get(top.id)
            if column is None:
                column = self._by_thread(table, top)
            if column is not None:
                known[top.id] = column
                continue
            missing = [a for a in top.args if a.id not in known]
            if missing:
                stack += missing
            else:
                known[top.id] = self._evaluated(table, top)
        return known[node.id]

    def _by_thread(self, table: Table, node: Node) -> Lanes | None:
        """The value of a node that depends on the thread alone, taken from its values in all threads, which
        all tables share; None for other nodes.
        """
        every = self._all_threads
        thread = table.columns.get(THREAD)
        if thread is None or table is every or self.dependence.upward or not self.domain.is_by_thread(node):
            return None
        column = self.evaluate(every, node)
        return column if thread is every.columns[THREAD] else column[thread]

    def _evaluated(self, table: Table, node: Node) -> Lanes:
        self._effort.spend(1 + table.n // _ROWS_COMPUTED)
        dtype = register_dtype(node.bits)
        args = [table.computed[a.id] for a in node.args]
        if not table.n:
            return np.empty(0, dtype)
        if node.kind == "thread":
            column: Lanes = self.domain.shape.column(node.data)[table.columns[THREAD]]
            return column
        if node.kind == "const":
            key = node.id, table.n
            constant = self._constants.get(key)
            if constant is None:
                constant = self._constants[key] = np.full(table.n, node.data, dtype)
            return constant
        if node.kind == "symbol":
            return np.full(table.n, self._bases[node.data], dtype)
        if node.id in self.dependence.upward:
            for n, a in zip(args, node.args, strict=True):
                self._check_upward(n, a)
        if node.kind in MOVES:
            moved: Lanes = MOVES[node.kind](node, args)
            return moved
        if node.kind == "shuffle":
            return self._shuffled(table, node)
        return computed(node, args, table.n)

    def _check_upward(self, value: Lanes, node: Node) -> None:
        """Raise `NotListedError` for an address below its variable: if the variable lay at address
        0, it would wrap around.
        """
        placed = self.dependence.of(node)
        if not placed.space:
            return
        starts = np.array([self._bases[name] for name in self._bases], np.int64)
        if len(placed.names) == 1:
            start: Any = self._bases[min(placed.names)]
        else:
            start = starts[np.clip(np.searchsorted(starts, value) - 1, 0, len(starts) - 1)]
        above = value.astype(np.int64) - start
        if ((above < 0) | (above >= 1 << (WORD - 2))).any():
            raise NotListedError("it is compared or widened before its variable's beginning")

    def _shuffled(self, table: Table, node: Node) -> Lanes:
        """A value of another lane of the warp, if it follows from thread indices alone."""
        thread = table.columns.get(THREAD)
        if thread is None:  # all lanes have the same value
            return self.evaluate(table, node.args[0])
        value = self.evaluate(self._all_threads, node.args[0])
        source = thread // WORD * WORD + self.evaluate(table, node.args[1]).astype(np.int64)
        taken: Lanes = value[source]
        return taken
