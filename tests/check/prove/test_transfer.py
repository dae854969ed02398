"""What the provers take an integer instruction to give, held against what it gives.

Each instruction of the table that works on integers is applied to random numbers within random
bounds. Its result has to lie in the range that the proof of shared memory computes from these
bounds, and to be a value of the polynomial that the proof of global memory computes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kernel_runs import nightly

from ptxgen import ir
from ptxgen.check.flow import blocks
from ptxgen.check.prove.contract import GlobalContract, Promised
from ptxgen.check.prove.polynomials import Atoms, Poly
from ptxgen.check.prove.program.domain import MOVES, Domain, Shape, computed, register_dtype
from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.paths import Formula, Literal, Paths
from ptxgen.check.prove.program.ranges import Range
from ptxgen.check.prove.program.values import Node, Values, param_bits
from ptxgen.check.prove.symbolic.values import Symbolic
from ptxgen.isa.spec import Effect, Op
from ptxgen.isa.table import rows
from ptxgen.parse import parse
from ptxgen.types import ScalarType

SAMPLES = 12  # numbers within some bounds
FEW = 3  # opcodes of each name that the gate tries
SHAPE = Shape(1, 1, 1)


def _plain(type: ScalarType | None) -> bool:
    """No float, and no register of 128 bits, which holds no integer."""
    return type is None or type.kind == "p" or (type.is_integer and type.bits <= 64)


def integer_ops() -> Iterator[Op]:
    """One op of each opcode that works on integers in registers alone."""
    seen = set()
    for row in itertools.chain.from_iterable(rows().values()):
        if row.effect is not Effect.NONE or "machine" in row.parameters:
            continue
        for op in row.all_ops():
            fits = all(_plain(o.type) and not o.address and not o.count for o in op.operands)
            values = all(o.kind in ("value", "imm") and o.literal is None for o in op.operands)
            if fits and values and op.dests and op.opcode not in seen:
                seen.add(op.opcode)
                yield op


def _by_name() -> dict[str, list[Op]]:
    result: dict[str, list[Op]] = {}
    for op in integer_ops():
        result.setdefault(op.opcode.partition(".")[0], []).append(op)
    return result


OPS = _by_name()


def _tried(few: bool) -> Iterator[tuple[Op, int]]:
    """Opcodes of each name, and the seeds to draw bounds from."""
    for name, ops in OPS.items():
        chosen = random.Random(name).sample(ops, min(FEW, len(ops))) if few else ops
        for op in chosen:
            yield from ((op, seed) for seed in range(2 if few else 12))


def program(op: Op, rng: random.Random) -> str:
    """A kernel of one instruction on parameters P0, P1, …; it gives %d0, and perhaps %d1."""
    params, before, arguments = [], [], []
    registers = []
    for number, operand in enumerate(op.sources):
        type = operand.type
        if type is None:
            arguments.append(str(rng.choice((0, 1, 5, 33))))
            continue
        if rng.random() < 0.3 and type.is_integer:
            arguments.append(str(rng.choice((0, 1, 2, 3, 5, 8, 31, 32, 33, 127))))
            continue
        bits = 32 if type.kind == "p" else type.bits
        params.append(f".param .{'s' if type.is_signed else 'u'}{bits} P{number}")
        registers.append(f".reg .b{max(bits, 16)} %a{number};")
        before.append(f"ld.param.u{bits} %a{number}, [P{number}];")
        arguments.append(f"%a{number}")
        if type.kind == "p":
            registers.append(f".reg .pred %q{number};")
            before.append(f"setp.ne.u32 %q{number}, %a{number}, 0;")
            arguments[-1] = f"%q{number}"
    written = []
    for number, operand in enumerate(op.dests):
        assert operand.type is not None
        kind = "pred" if operand.type.kind == "p" else f"b{max(operand.type.bits, 16)}"
        registers.append(f".reg .{kind} %d{number};")
        written.append(f"%d{number}")
    operands = ", ".join(["|".join(written), *arguments])
    return (
        f".version 8.6\n.target sm_100a\n.address_size 64\n.visible .entry k({', '.join(params)})\n"
        f"{{\n{' '.join(registers)}\n{' '.join(before)}\n{op.opcode} {operands};\nret;\n}}\n"
    )


class Made:
    """An instruction with bounds of its parameters and numbers within them."""

    def __init__(self, op: Op, seed: int) -> None:
        rng = random.Random(f"{op.opcode} {seed}")
        kernel = parse(program(op, rng)).kernels[0]
        self.graph = Graph(blocks(kernel))
        self.params = {p.name: p for p in kernel.params}
        self.values = Values(self.graph, {}, frozenset(), {}, param_bits(kernel))
        self.bounds: dict[str, tuple[int, int]] = {}
        self.numbers: dict[str, list[int]] = {}
        for p in kernel.params:
            bits = int(p.type[1:])
            low = -(1 << (bits - 1)) if p.type[0] == "s" else 0
            first, last = sorted(_number(rng, low, low + (1 << bits) - 1) for _ in range(2))
            self.bounds[p.name] = first, last
            inner = [rng.randint(first, last) for _ in range(SAMPLES - 2)]
            self.numbers[p.name] = [first, last, *inner]
        body = self.graph.blocks[0].instrs
        registers = [o for o in _flat(body[-2].operands[0]) if isinstance(o, ir.Reg)]
        self.results = [self.values.at(r, 0, len(body) - 1) for r in registers]

    def lanes(self, node: Node) -> Any:
        """A value for each of the numbers."""
        dtype = register_dtype(node.bits)
        if node.kind == "const":
            return np.full(SAMPLES, node.data, dtype)
        if node.kind == "param":
            mask = (1 << node.bits) - 1
            return np.array([n & mask for n in self.numbers[node.data[0]]], dtype)
        if node.kind in MOVES:
            return MOVES[node.kind](node, [self.lanes(a) for a in node.args])
        assert node.kind == "apply", node
        return computed(node, [self.lanes(a) for a in node.args], SAMPLES)


def _flat(operand: Any) -> tuple[Any, ...]:
    return (operand.first, operand.second) if isinstance(operand, ir.Pair) else (operand,)


def _number(rng: random.Random, low: int, high: int) -> int:
    """A number between two, often one at which something changes."""
    near = [0, 1, -1, 7, 31, 32, 33, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
    choice = rng.choice([*near, low, high, rng.randint(low, high), rng.randint(0, 40)])
    return min(max(choice, low), high)


def _is_in(value: int, range: Range, bits: int) -> bool:
    above = (value - range.first) % (1 << bits)
    inside = above <= range.last - range.first
    return inside and (above % range.step == 0 if range.step else above == 0)


@pytest.mark.parametrize("few", [True, nightly(False)])
def test_a_result_is_in_the_range_of_its_instruction(few: bool) -> None:
    for op, seed in _tried(few):
        built = Made(op, seed)
        arguments = {name: _range(low, high) for name, (low, high) in built.bounds.items()}
        for node in built.results:
            if node.kind == "opaque":
                continue
            result = Domain(SHAPE, arguments).range(node)
            for value in built.lanes(node).tolist():
                assert _is_in(int(value), result, node.bits), (op, built.bounds, value)


def _range(low: int, high: int) -> Range:
    return Range(low, high, 1 if high > low else 0)


class Meaning:
    """What polynomials are for one launch."""

    def __init__(self, atoms: Atoms, given: dict[str, int]) -> None:
        self._atoms = atoms
        self._given = given

    def of(self, poly: Poly) -> set[int] | None:
        """What it may be; None if it depends on what is not known."""
        result = {0}
        for monomial, factor in poly.terms.items():
            terms = {int(np.asarray(factor).ravel()[0])}
            for number in monomial:
                values = self._atom(number)
                if values is None:
                    return None
                terms = {t * v for t in terms for v in values}
            result = {f + t for f in result for t in terms}
        return result

    def _atom(self, number: int) -> set[int] | None:
        atom = self._atoms[number]
        if atom.kind == "size":
            return {self._given[atom.name]}
        if atom.cases:
            result: set[int] = set()
            for case in atom.cases:
                may = [self.of(fact) for fact in case.conditions]
                value = self.of(case.value)
                if value is None or None in may:
                    return None
                if all(max(m or {0}) >= 0 for m in may):
                    result |= value
            return result
        if not atom.args:
            return None
        a, b = (self.of(p) for p in atom.args)
        if a is None or b is None:
            return None
        rule = {"div": lambda x, y: x // y, "rem": lambda x, y: x % y, "min": min, "max": max}
        return {rule[atom.kind](x, y) for x in a for y in b}


@pytest.mark.parametrize("few", [True, nightly(False)])
def test_a_result_is_a_value_of_the_polynomial_of_its_instruction(few: bool) -> None:
    for op, seed in _tried(few):
        built = Made(op, seed)
        contract = GlobalContract((), (), built.bounds, (1, 1, 1))
        atoms = Atoms()
        paths = Paths(built.graph, built.values)
        promised = Promised(contract, atoms)
        symbolic = Symbolic(built.graph, built.values, paths, SHAPE, atoms, promised)
        for node in built.results:
            if node.kind == "opaque":
                continue
            lanes = built.lanes(node).tolist()
            for n, value in enumerate(lanes):
                arguments = {name: numbers[n] for name, numbers in built.numbers.items()}
                meaning = Meaning(atoms, arguments)
                result = meaning.of(symbolic.poly(node))
                mask = (1 << node.bits) - 1
                assert result is None or int(value) in {f & mask for f in result}, (op, arguments)
                if node.bits > 1:
                    continue
                for fact in symbolic.facts(Formula((Literal(node, not value),))):
                    held = meaning.of(fact)
                    assert held is None or max(held) >= 0, (op, arguments, fact)
