"""Random straight-line kernels of all instructions of the table, for property tests."""

from __future__ import annotations

import functools
from collections.abc import Callable

from hypothesis import strategies as st

from ptxgen import ir
from ptxgen.isa.spec import BoundOperand, Effect, Gate, Inst, Op
from ptxgen.isa.table import rows
from ptxgen.target import target
from ptxgen.types import REGISTER_PREFIX, ScalarType

REGISTERS = 4  # of each class
NAMES = {("brx", "target"): "$table", ("call", "f"): "callee", ("call_indirect", "t"): "$proto"}
CALLEE = ir.Function("callee", body=(ir.Instr("ret"),))
ROWS = [row for group in rows().values() for row in group]


def register(declared: str) -> st.SearchStrategy[ir.Reg]:
    names = [f"{REGISTER_PREFIX[declared]}{i}" for i in range(REGISTERS)]
    return st.sampled_from([ir.Reg(name, declared) for name in names])


def literal(type: ScalarType) -> st.SearchStrategy[ir.Operand]:
    """A literal that may stand for a value of the type; a register where none may."""
    if type.name in ("f32", "f64"):
        bits = st.integers(0, (1 << type.bits) - 1)
        return bits.map(lambda b: ir.FloatImm(b, type.bits))
    if type.kind in "us" and type.bits >= 16:
        return st.integers(0, 15).map(ir.IntImm)  # in range for barriers and shifts, too
    return register(type.register)


def scalar(operand: BoundOperand) -> st.SearchStrategy[ir.Operand]:
    assert operand.type is not None
    held = register(operand.type.register)
    return held if operand.written else st.one_of(held, literal(operand.type))


@st.composite
def address(draw: st.DrawFn, op: Op, wanted: BoundOperand) -> ir.Operand:
    if str(op.modifiers.get("space", "")).startswith("param"):
        return ir.Address(ir.Symbol("transfer" if op.opcode.startswith("st") else "Q"), 0)
    assert wanted.type is not None
    base = draw(register(wanted.type.register))
    if wanted.count:
        along = [st.one_of(register("b32"), literal(type)) for type in wanted.along]
        return ir.TensorAddress(base, 0, tuple(draw(coordinate) for coordinate in along))
    handle = op.effect is Effect.TEXTURE
    return ir.Address(base, 0 if handle else 16 * draw(st.integers(-4, 4)))


def at_cluster(op: Op) -> bool:
    return op.modifiers["space"] == "shared::cluster"


def only_operand(op: Op, wanted: BoundOperand) -> st.SearchStrategy[ir.Operand] | None:
    """What alone may stand for an operand whose type does not say it all."""
    if wanted.literal is not None:
        return st.just(ir.IntImm(wanted.literal))
    if wanted.kind == "label":
        return st.just(ir.Symbol(NAMES.get((op.row.name, wanted.name), "$here")))
    if wanted.kind == "args":
        return st.just(ir.Arguments(()))
    if wanted.kind == "imm":
        ranges = {"setmaxnreg": (24, 32), "tensormap": (0, 1)}
        values = ranges.get(op.opcode.partition(".")[0], (4, 8))
        return st.sampled_from(values).map(ir.IntImm)
    if wanted.written and op.opcode.startswith("mbarrier.arrive") and at_cluster(op):
        return st.just(ir.Sink())
    if op.row.name == "call_indirect":
        return register("b64")
    if op.row.name == "createpolicy_fractional" and wanted.name == "fraction":
        return st.just(ir.FloatImm(0x3F000000, 32))
    value = literal_of(op, wanted.name)
    return None if value is None else st.just(ir.IntImm(value))


def literal_of(op: Op, name: str) -> int | None:
    """A number within the limits of an operand that not every number may be."""
    if (op.opcode.startswith("bar") and name == "b") or name == "size":
        return 32
    if name in ("total", "src_size"):
        return {"total": 64, "src_size": 4}[name]
    if op.opcode.startswith("mbarrier") and (name == "count" or "parity" in op.opcode):
        return {"count": 1, "a": 1}.get(name)
    return None


@st.composite
def operand_of(draw: st.DrawFn, op: Op, place: int) -> ir.Operand:
    wanted = op.flat[place]
    only = only_operand(op, wanted)
    if only is not None:
        return draw(only)
    if wanted.address:
        return draw(address(op, wanted))
    if place in op.pairs:
        second = next(o for o in op.operands if o.second).type
        assert wanted.type is not None
        assert second is not None
        pair = register(wanted.type.register), register(second.register)
        return ir.Pair(draw(pair[0]), draw(pair[1]))
    if wanted.count:
        return ir.Vector(tuple(draw(scalar(wanted)) for _ in range(wanted.count)))
    return draw(scalar(wanted))


def anything(_: Inst) -> bool:
    return True


@st.composite
def instruction(
    draw: st.DrawFn, version: tuple[int, int], name: str, wanted: Callable[[Inst], bool]
) -> ir.Instr:
    """An instruction of a wanted row that the version and the target of this name have."""
    row: Inst = draw(st.sampled_from(available(version, name, wanted)))
    here = has(version, name)
    op = row.resolve(
        {
            slot: draw(st.sampled_from([c for c, gate in choices.items() if here(gate)]))
            for slot, choices in row.choices.items()
        }
    )
    count = draw(st.integers(op.required, len(op.flat)))
    operands = tuple(draw(operand_of(op, location)) for location in range(count))
    guard = draw(st.none() | st.builds(ir.Guard, register("pred"), st.booleans()))
    if op.opcode.startswith("st") and str(op.modifiers.get("space", "")).startswith("param"):
        guard = None  # what calls give cannot be under one
    return ir.Instr(op.opcode, operands, guard)


def has(version: tuple[int, int], name: str) -> Callable[[Gate], bool]:
    of = target(name)
    return lambda gate: gate.ptx <= version and gate.admits(of)


@functools.cache
def available(version: tuple[int, int], name: str, wanted: Callable[[Inst], bool]) -> tuple[Inst, ...]:
    here = has(version, name)
    return tuple(
        row
        for row in ROWS
        if wanted(row)
        and here(row.gate)
        and all(any(here(gate) for gate in choices.values()) for choices in row.choices.values())
    )


COMMENT = st.text("abcXYZ 0123=*.,:;/{}%", max_size=20).map(str.strip)


VERSION, TARGET = (9, 0), "sm_90a"
INSTRUCTION = instruction(VERSION, TARGET, anything)


@st.composite
def kernels(draw: st.DrawFn) -> ir.Kernel:
    body: list[ir.Statement] = [
        ir.Targets("$table", "branchtargets", ("$here",)),
        ir.Prototype("$proto", (), ()),
        ir.Label("$here"),
    ]
    body += draw(st.lists(st.one_of(INSTRUCTION, COMMENT.map(ir.Note)), max_size=20))
    return ir.Kernel(
        "random",
        params=(ir.Param("Q", "b8", 64, 16),),
        registers=tuple(ir.RegisterRange(p, c, REGISTERS) for c, p in REGISTER_PREFIX.items()),
        body=(*body, ir.Instr("ret")),
        shared=(ir.Shared("scratch", 64, 16),) if draw(st.booleans()) else (),
        variables=(ir.Variable("param", "transfer", 64, 16),),
        threads=draw(st.sampled_from((0, 32, 128))),
        min_ctas=draw(st.integers(0, 2)),
    )


MODULES = st.builds(
    lambda kernel, header: ir.Module(VERSION, TARGET, (kernel,), header, (CALLEE,)),
    kernels(),
    st.lists(COMMENT, max_size=3).map(tuple),
)
