"""The values of registers as polynomials of a launch's sizes, of thread indices and of iteration
counts of loops.

The polynomial of a 64-bit register equals its value modulo 2**64, which suffices for addresses. The
polynomial of a 32-bit register equals its value modulo 2**32; before the value is widened, compared
or divided, the polynomial itself has to be shown to fit 32 bits, so a product that may overflow
gives nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

import numpy as np

from ptxgen.check.prove.contract import Promised
from ptxgen.check.prove.polynomials import ONE, UNBOUNDED, ZERO, Atoms, Case, Poly, TooLargeError
from ptxgen.check.prove.program.domain import Shape, computed, constant_register, numbers_of
from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.paths import Formula, Literal, Paths, certain
from ptxgen.check.prove.program.values import Applied, Node, Values
from ptxgen.check.prove.symbolic.goals import Facts, Goals
from ptxgen.check.prove.symbolic.quotients import as_division, divided, with_remainder
from ptxgen.types import ScalarType

Lanes = np.ndarray[Any, np.dtype[Any]]


_MOST_WAYS: Final = 16  # predecessors of a join that is followed
_MOST_FACTS: Final = 256  # comparisons on the path to an access
_MOST_MEETINGS: Final = 16  # depth of merges that depend on other merges


class Symbolic:
    """The values of one kernel as polynomials. `promised` is the contract of its launches."""

    def __init__(
        self, graph: Graph, values: Values, paths: Paths, shape: Shape, atoms: Atoms, promised: Promised
    ) -> None:
        self.atoms = atoms
        self.goals = Goals(atoms, promised.facts, self._before)
        self._graph = graph
        self._values = values
        self._paths = paths
        self._shape = shape
        self._known = promised.known
        self._polys: dict[int, Poly] = {}
        self._exact: dict[tuple[int, int, bool], Poly | None] = {}
        self._rounds: dict[int, Facts] = {}
        self._facts_of: dict[Literal, Facts] = {}
        self._deep = 0  # number of joins being followed, each for the one before
        self._open = 0  # number of loop values whose step is being looked for
        # The results so far in order, so that those that rest on a failed assumption can be undone.
        self._trail: list[tuple[dict[Any, Any], Any]] = []
        self.wrapping: set[int] = set()  # atoms of numbers whose bits may be those of a sum that wraps
        # Values that are being shown to fit, and None wherever an earlier iteration is looked at.
        self._shown: list[tuple[int, int, bool] | None] = []

    # ------------------------------------------------------------------------------ registers

    def poly(self, node: Node) -> Poly:
        """The polynomial of a register's value, modulo 2**bits."""
        stack = [node]
        while stack:  # arguments first, because chains of sums are long
            top = stack[-1]
            missing = [a for a in top.args if a.id not in self._polys]
            if top.id in self._polys or not missing:
                stack.pop()
                self._cached(top)
            else:
                stack += missing
        return self._cached(node)

    def _cached(self, node: Node) -> Poly:
        poly = self._polys.get(node.id)
        if poly is None:
            try:
                poly = self._derived(node)
            except TooLargeError:
                poly = None
            if poly is None:
                poly = self._unknown(node)
            # A predicate is 0 or 1; it is not a number that wraps around.
            poly = poly if node.bits == 1 else poly.modulo(node.bits)
            self._keep(self._polys, node.id, poly)
        return self._polys[node.id]

    def _keep(self, where: dict[Any, Any], key: Any, value: object) -> None:
        where[key] = value
        self._trail.append((where, key))

    def _unknown(self, node: Node) -> Poly:
        blocks = {node.block} if node.kind in ("opaque", "join", "header") else set()
        for a in node.args:
            blocks |= self._blocks(self.poly(a))
        return self.atoms.named("unknown", f"value {node.id}", 0, (1 << node.bits) - 1, *blocks)

    def _blocks(self, poly: Poly) -> set[int]:
        """The blocks in which the values that a polynomial depends on are computed."""
        return {b for atom in self.atoms.within(poly) for b in atom.blocks}

    def _derived(self, node: Node) -> Poly | None:
        if node.kind == "const":
            return Poly.of(_signed(node.data, node.bits))
        if node.kind == "thread":
            return Poly.of(self._shape.column(node.data).astype(np.int64))
        if node.kind == "param":
            name, _, is_whole = node.data
            return self._known.get(name) if is_whole else None
        if node.kind == "extended":
            of = node.args[0]
            return self.exact(of, of.bits, node.data) or self._any_of(of, of.bits, node.data)
        if node.kind == "opaque" and isinstance(node.data, str):
            return self._known.get(node.data)
        if node.kind == "offset":
            return self.poly(node.args[0]) + int(node.data)
        if node.kind == "choose":
            return self._chosen(node.args[0], node.args[1], node.args[2], node.bits)
        if node.kind == "header":
            return self._repeated(node)
        if node.kind == "join":
            return self._joined(node)
        return self._applied(node) if node.kind == "apply" else None

    # ------------------------------------------------------------------------------ instructions

    def _applied(self, node: Node) -> Poly | None:
        data: Applied = node.data
        folded = self._folded(node)
        if folded is not None:
            return folded
        if data.result >= 0 or data.element >= 0 or data.type.kind == "p":
            return None
        if any(t is None or isinstance(where, tuple) for _, where, t in data.slots):
            return None
        words = data.op.opcode.split(".")
        if {"sat", "cc", "hi", "relu"} & set(words) or words[-1][-2:] in ("x2", "x4"):
            return None
        return _RULES.get(words[0], _nothing)(self, node, words)

    def _folded(self, node: Node) -> Poly | None:
        """The result of an instruction whose operands are constants or thread indices, by its semantics."""
        constants = []
        for a in node.args:
            constant = self.poly(a).constant
            if constant is None:
                return None
            constants.append(constant)
        n = self._shape.threads if any(not isinstance(c, int) for c in constants) else 1
        args = [constant_register(c, a.bits, n) for c, a in zip(constants, node.args, strict=True)]
        result = computed(node, args, n)
        if node.bits > 1:
            result = result.view(f"i{node.bits // 8}")
        return Poly.of(np.array(result).astype(np.int64))

    def types(self, node: Node) -> list[ScalarType]:
        """The PTX types as which an instruction reads its operands."""
        return [t for _, _, t in node.data.slots if t is not None]

    def _whole(self, node: Node, n: int) -> Poly | None:
        """Operand `n` of an instruction as the number that the instruction reads."""
        type = self.types(node)[n]
        return self.exact(node.args[n], type.bits, type.is_signed)

    def _ring(self, node: Node, combine: Callable[..., Poly]) -> Poly | None:
        """A result whose low bits depend on the low bits of the operands only."""
        if any(t.bits != node.bits for t in (*self.types(node), node.data.type)):
            return None
        return combine(*[self.poly(a) for a in node.args])

    def _product(self, node: Node, words: list[str]) -> Poly | None:
        if "wide" not in words:
            if "lo" not in words:
                return None
            product = self._ring(node, lambda a, b, c=ZERO: a * b + c)
            return None if product is None else with_remainder(self.atoms, product)
        a, b = (self._whole(node, n) or self._any(node, n) for n in range(2))
        return a * b + (self.poly(node.args[2]) if len(node.args) > 2 else ZERO)

    def _converted(self, node: Node, words: list[str]) -> Poly | None:
        to, (source,) = node.data.type, self.types(node)
        if len(words) != 3 or source.is_float:
            return None
        if to.bits == node.bits <= source.bits == node.args[0].bits:
            return self.poly(node.args[0])
        return self._whole(node, 0) or self._any(node, 0) if to.bits == node.bits else None

    def _shifted(self, node: Node, words: list[str]) -> Poly | None:
        by = self.poly(node.args[1]).constant
        if not isinstance(by, int) or not 0 <= by < node.bits or node.data.type.bits != node.bits:
            return None
        if words[0] == "shl":
            return self.poly(node.args[0]) * (1 << by)
        value = self._whole(node, 0)
        if value is None:
            return None
        a, b = as_division(node.args[0], value, by, self._whole, self.goals)
        return divided(self.goals, self.atoms, a, b, "div")

    def _masked(self, node: Node, words: list[str]) -> Poly | None:
        """The low bits of a number that is not negative, or the number without its low bits."""
        del words
        for value, mask in (node.args, node.args[::-1]):
            bits = self.poly(mask).constant
            if isinstance(bits, int):
                below = bits if bits >= 0 else ~bits
                whole = self.exact(value, node.bits, True)
                if below & (below + 1) or whole is None:
                    return None
                low = divided(self.goals, self.atoms, whole, Poly.of(below + 1), "rem")
                return low if bits >= 0 or low is None else whole - low
        return None

    def _quotient(self, node: Node, words: list[str]) -> Poly | None:
        a, b = self._whole(node, 0), self._whole(node, 1)
        return None if a is None or b is None else divided(self.goals, self.atoms, a, b, words[0])

    def _least(self, node: Node, words: list[str]) -> Poly | None:
        a, b = (self._whole(node, n) or self._any(node, n) for n in range(2))
        return self.atoms.function_of(words[0], a, b)

    def _any(self, node: Node, n: int) -> Poly:
        """Operand `n` as an unknown number, of memory or a sum that may wrap, which comparisons bound."""
        type = self.types(node)[n]
        return self._any_of(node.args[n], type.bits, type.is_signed)

    def _any_of(self, node: Node, bits: int, is_signed: bool) -> Poly:
        """A number whose bits are not known to be those of an exact sum. The unsigned number is either the
        signed one or 2**bits more, where that is negative: `i - c`, which is used where i >= c.
        """
        signed = None if is_signed else self.exact(node, bits, True)
        if signed is not None:
            wrapped = Case(signed + (1 << bits), (-signed - 1,))
            number = self.atoms.either((Case(signed, (signed,)), wrapped))
        else:
            low = -(1 << (bits - 1)) if is_signed else 0
            name, blocks = f"value {node.id} as {'us'[is_signed]}{bits}", self._blocks(self.poly(node))
            number = self.atoms.named("unknown", name, low, low + (1 << bits) - 1, *blocks)
        self.wrapping |= number.atoms()
        return number

    def _selected(self, node: Node, words: list[str]) -> Poly | None:
        del words
        return self._chosen(node.args[2], node.args[0], node.args[1], node.bits)

    def _chosen(self, predicate: Node, a: Node, b: Node, bits: int) -> Poly | None:
        held = self.poly(predicate).constant
        if held is not None:
            return self.poly(a) * Poly.of(held) + self.poly(b) * (ONE - Poly.of(held))
        cases = self._cases(
            [(a, Formula((Literal(predicate, False),))), (b, Formula((Literal(predicate, True),)))], bits
        )
        return None if cases is None else self.atoms.either(cases)

    # ----------------------------------------------------------------------- joins and loops

    def _cases(self, met: list[tuple[Node, Formula]], bits: int) -> tuple[Case, ...] | None:
        if bits == 1:  # a predicate is not a number
            return None
        cases = []
        for node, formula in met:
            value = self.poly(node) if bits == 64 else self.exact(node, bits, True)
            if value is None:
                return None
            cases.append(Case(value, self.facts(formula)))
        return tuple(cases)

    def _joined(self, node: Node) -> Poly | None:
        met = self._values.meeting(node)
        if len(met) > _MOST_WAYS or self._deep == _MOST_MEETINGS:
            return None
        # Until the value is known, it counts as another unknown value in each iteration of the
        # loops around.
        self._keep(self._polys, node.id, self._unknown(node))
        self._deep += 1
        try:
            ways = [(v, self._paths.arrival(b, node.block)) for b, v in met]
            cases = self._cases(ways, node.bits)
        finally:
            self._deep -= 1
            del self._polys[node.id]
        if cases is None or any(self._is_self(c, node) for c in cases):
            return None
        if len({c.value.key for c in cases}) == 1:
            return cases[0].value
        return self.atoms.either(cases)

    def _is_self(self, case: Case, node: Node) -> bool:
        ((number,),) = self._unknown(node).terms
        return any(self.atoms.depends(p, number) for p in (case.value, *case.conditions))

    def _repeated(self, node: Node) -> Poly | None:
        """A value to which each iteration of a loop adds the same number."""
        if self._deep == _MOST_MEETINGS:
            return None
        base = self._unknown(node)
        mark = len(self._trail)
        self._keep(self._polys, node.id, base)
        self._open += 1
        self._deep += 1
        latches = self._graph.latches[node.block]
        met = [(b, self.poly(v)) for b, v in self._values.meeting(node)]
        self._deep -= 1
        self._open -= 1
        self._undo(mark)
        first = [p for b, p in met if b not in latches]
        steps = [(p - base).modulo(node.bits) for b, p in met if b in latches]
        if any(p.key != first[0].key for p in first) or not first:
            return None
        if any(s.key != steps[0].key for s in steps) or not self._lasts(steps[0], node.block):
            return None
        return first[0] + steps[0] * self.iterations(node.block)

    def iterations(self, header: int) -> Poly:
        """The number of iterations that a loop has completed since it was entered, as a polynomial."""
        return self.atoms.named("iteration", f"iteration {header}", 0, UNBOUNDED, header)

    def _lasts(self, poly: Poly, header: int) -> bool:
        """Whether a value is the same in all iterations of a loop."""
        return not self._blocks(poly) & self._graph.bodies[header]

    def _before(self, header: int) -> Facts:
        """The facts that held when the loop went back to its header, in terms of the iteration that
        had just ended.
        """
        facts = self._rounds.get(header)
        if facts is not None:
            return facts
        inside = self._graph.bodies[header]
        self._shown.append(None)
        try:
            known: list[dict[Hashable, Poly]] = []
            for latch in self._graph.latches[header]:
                held = self.facts(self._paths.arrival(latch, header))
                known.append({p.key: p for p in held if self._is_of_iteration(p, header, inside)})
        finally:
            self._shown.pop()
        facts = tuple(p for key, p in known[0].items() if all(key in other for other in known))
        # Otherwise the facts rest on an assumption, or some are missing.
        if not self._shown and not self._open:
            self._rounds[header] = facts
        return facts

    def _is_of_iteration(self, poly: Poly, header: int, inside: frozenset[int]) -> bool:
        return all(
            not a.blocks & inside or (a.kind == "iteration" and header in a.blocks)
            for a in self.atoms.within(poly)
        )

    # ----------------------------------------------------------------------------------- integers

    def exact(self, node: Node, bits: int, is_signed: bool) -> Poly | None:
        """The polynomial of a register's low bits read as a number, if it is shown to equal that
        number; None if it cannot be shown.
        """
        poly = self.poly(node)
        if bits > node.bits or (bits < node.bits and poly.constant is None):
            return None
        low = -(1 << (bits - 1)) if is_signed else 0
        high = low + (1 << bits) - 1
        constant = poly.constant
        if constant is not None:
            register = constant_register(constant, bits, 1 if isinstance(constant, int) else len(constant))
            return Poly.of(numbers_of(register, bits, is_signed))
        lowest, highest = self.atoms.bounds(poly)
        if lowest >= low and highest <= high:
            return poly
        key = (node.id, bits, is_signed)
        if key in self._exact:
            return self._exact[key]
        if key in self._shown:
            # Only facts of an earlier iteration may rest on the claim that is being shown.
            return poly if None in self._shown[self._shown.index(key) :] else None
        mark = len(self._trail)
        self._shown.append(key)
        holds = self.goals.holds
        fits = holds(poly - low) and holds(high - poly)
        self._shown.pop()
        if not fits:
            self._undo(mark)
        if fits or not self._shown:
            self._keep(self._exact, key, poly if fits else None)
        return poly if fits else None

    def _undo(self, mark: int) -> None:
        for where, key in self._trail[mark:]:
            where.pop(key, None)
        del self._trail[mark:]

    # ------------------------------------------------------------------------------ conditions

    def facts(self, formula: Formula) -> Facts:
        """Polynomials that are not negative where a formula holds; a constant one that is negative
        in some threads says that these threads do not get there.
        """
        # The last literals are the nearest to the access; the others are dropped.
        literals = list(dict.fromkeys(certain(formula)))[-_MOST_FACTS:]
        return tuple(p for literal in literals for p in self._cached_facts(literal))

    def _cached_facts(self, literal: Literal) -> Facts:
        if literal not in self._facts_of:
            facts = tuple(self._facts(literal))
            if self._shown or self._open:  # the result may rest on an assumption
                return facts
            self._facts_of[literal] = facts
        return self._facts_of[literal]

    def _facts(self, literal: Literal) -> Iterator[Poly]:
        node, negated = literal
        if node is None:
            return
        constant = self.poly(node).constant
        if constant is not None:
            held = np.atleast_1d(np.asarray(constant) != 0)
            yield Poly.of(-(held == negated).astype(np.int64))
            return
        if node.kind != "apply":
            return
        words = node.data.op.opcode.split(".")
        if words[0] == "not":
            yield from self._facts(Literal(node.args[0], not negated))
        elif words[0] == ("or" if negated else "and") and len(node.args) == 2:
            for a in node.args:
                yield from self._facts(Literal(a, negated))
        elif words[0] == "setp" and len(words) == 3 and len(node.args) == 2:
            opposite = negated != (node.data.result == 1)  # the second result is the negated first
            asked = _OPPOSITE.get(words[1], "") if opposite else words[1]
            yield from self._compared(node, asked)

    def _compared(self, node: Node, asked: str) -> Iterator[Poly]:
        a, b = self._whole(node, 0), self._whole(node, 1)
        type = self.types(node)[0]
        is_below = asked in ("lt", "lo", "le", "ls") and not type.is_signed
        if a is None and b is not None and is_below:
            # An unsigned value below a limit that is also small as a signed number is not negative
            # either. Above such a limit nothing follows: a negative number is a large unsigned one.
            signed = self.exact(node.args[0], type.bits, True)
            half = (1 << (type.bits - 1)) - 1
            if signed is not None and self.goals.holds(half - b):
                a = signed
                yield a
        if (a is None or b is None) and type.kind not in "us":
            return
        a, b = a or self._any(node, 0), b or self._any(node, 1)
        if asked in ("lt", "lo"):
            yield b - a - 1
        elif asked in ("le", "ls"):
            yield b - a
        elif asked in ("gt", "hi"):
            yield a - b - 1
        elif asked in ("ge", "hs"):
            yield a - b
        elif asked == "eq":
            yield a - b
            yield b - a


_OPPOSITE: Final = {
    "lt": "ge",
    "ge": "lt",
    "gt": "le",
    "le": "gt",
    "lo": "hs",
    "hs": "lo",
    "hi": "ls",
    "ls": "hi",
    "ne": "eq",
}

Rule = Callable[[Symbolic, Node, list[str]], Poly | None]
_RULES: Final[dict[str, Rule]] = {
    "mov": lambda s, node, _: s._ring(node, lambda a: a),
    "add": lambda s, node, _: s._ring(node, lambda a, b: a + b),
    "sub": lambda s, node, _: s._ring(node, lambda a, b: a - b),
    "neg": lambda s, node, _: s._ring(node, lambda a: -a),
    "mul": Symbolic._product,
    "mad": Symbolic._product,
    "cvt": Symbolic._converted,
    "shl": Symbolic._shifted,
    "shr": Symbolic._shifted,
    "and": Symbolic._masked,
    "div": Symbolic._quotient,
    "rem": Symbolic._quotient,
    "min": Symbolic._least,
    "max": Symbolic._least,
    "selp": Symbolic._selected,
}


def _nothing(symbolic: Symbolic, node: Node, words: list[str]) -> Poly | None:
    """The rule for instructions without a rule: nothing is known of the result."""
    del symbolic, node, words
    return None


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if bits > 1 and value >> (bits - 1) else value
