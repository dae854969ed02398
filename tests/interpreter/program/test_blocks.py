"""Generated code against the rows' own functions: every row that touches only registers, and every
faster form.
"""

from __future__ import annotations

import inspect
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from interpreter.programs import ELEMENT, on_elements, ptx

from ptxgen import ir
from ptxgen.interpreter import run
from ptxgen.interpreter.program.blocks import compile_program
from ptxgen.interpreter.program.fast import FAST
from ptxgen.interpreter.program.linking import link
from ptxgen.interpreter.program.segments import maybe_undefined, maybe_unwritten, segments
from ptxgen.isa.spec import BoundOperand, Effect, Op
from ptxgen.isa.table import recognise, rows
from ptxgen.parse import parse
from ptxgen.types import REGISTER_PREFIX, TYPES, b128

LANES = 256
SPECIALS_32 = (
    *(0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000),
    *(0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001, 0x33800000),
)


def chosen_ops() -> list[Op]:
    """For each row with a meaning, the op with the first choices, and one for each other choice of each slot;
    without those of 128 bits, which machine/test_wide_registers.py tests.
    """
    result: dict[int, Op] = {}
    for row in (
        r for named in rows().values() for r in named if r.effect is Effect.NONE and not r.unmodelled
    ):
        for slot, choices in row.choices.items():
            for value in choices:
                op = row.resolve({slot: value})
                result[id(op)] = op
        op = row.resolve({})
        result[id(op)] = op
    narrow = (op for op in result.values() if not any(o.type is b128 for o in op.operands))
    return [op for op in narrow if op.dests]


def random_lanes(rng: np.random.Generator, declared: str) -> np.ndarray[Any, Any]:
    """A register's bits: random ones, special f32 values and small numbers."""
    dtype = TYPES[declared].dtype
    if declared == "pred":
        return rng.integers(0, 2, LANES).astype(np.bool_)
    bits = rng.integers(0, 1 << 64, LANES, dtype=np.uint64)
    special = np.array(SPECIALS_32, np.uint64)
    bits[:64] = rng.choice(special, 64) * np.uint64(1 + (1 << 32))
    bits[64:96] = rng.choice(special, 32) << np.uint64(32)
    bits[96:160] = rng.integers(0, 70, 64).astype(np.uint64)
    if declared == "f64":
        bits[160:] = rng.standard_normal(96).view(np.uint64)
    if declared == "f32":
        bits[160:] = rng.standard_normal(96).astype(np.float32).view(np.uint32)
    return bits.astype(f"u{dtype.itemsize}").view(dtype)


class OneInstruction:
    """A kernel that loads an instruction's registers, runs it, and stores its results."""

    def __init__(self, op: Op, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.params: list[ir.Param] = []
        self.body: list[ir.Statement] = []
        self.args: list[np.ndarray[Any, Any]] = []
        self.lanes: dict[str, Any] = {}  # what the row's function gets
        self.counts = dict.fromkeys(REGISTER_PREFIX, 0)
        thread = self.register("b32")
        self.emit("mov.u32", thread, ir.Special("%tid.x"))
        self.thread = thread
        operands: list[ir.Operand] = []
        results: list[tuple[ir.Reg, BoundOperand]] = []
        for want in op.operands:
            declared = want.type.register if want.type else ""
            if want.written:
                built = [self.register(declared) for _ in range(want.count or 1)]
                results += [(r, want) for r in built]
                whole: Any = ir.Vector(tuple(built)) if want.count else built[0]
                if want.second:
                    operands[-1] = ir.Pair(operands[-1], whole)  # type: ignore[arg-type]
                else:
                    operands.append(whole)
            elif want.kind == "imm":
                value = 0xCA if want.literal is None else want.literal
                operands.append(ir.IntImm(value))
                if want.literal is None:
                    self.lanes[want.name] = value
            else:
                arguments = [random_lanes(rng, declared) for _ in range(want.count or 1)]
                built = [self.load(lanes, declared) for lanes in arguments]
                operands.append(ir.Vector(tuple(built)) if want.count else built[0])
                typed = tuple(as_operand(lanes, want) for lanes in arguments)
                self.lanes[want.name] = typed if want.count else typed[0]
        self.emit(op.opcode, *operands)
        self.outputs = [(self.store(r), r, want) for r, want in results]
        self.emit("ret")

    def register(self, declared: str) -> ir.Reg:
        self.counts[declared] += 1
        return ir.Reg(f"{REGISTER_PREFIX[declared]}{self.counts[declared] - 1}", declared)

    def emit(self, opcode: str, *operands: ir.Operand) -> None:
        self.body.append(ir.Instr(opcode, operands))

    def element(self, array: np.ndarray[Any, Any]) -> ir.Address:
        name = f"a{len(self.params)}"
        self.params.append(ir.Param(name, "u64"))
        self.args.append(array)
        base, offset, at = (self.register("b64") for _ in range(3))
        self.emit("ld.param.u64", base, ir.Address(ir.Symbol(name)))
        self.emit("mul.wide.u32", offset, self.thread, ir.IntImm(array.itemsize))
        self.emit("add.u64", at, base, offset)
        return ir.Address(at)

    def load(self, lanes: np.ndarray[Any, Any], declared: str) -> ir.Reg:
        target = self.register(declared)
        if declared != "pred":
            self.emit(f"ld.global.{declared}", target, self.element(lanes))
            return target
        word = self.register("b32")
        self.emit("ld.global.u32", word, self.element(lanes.astype(np.uint32)))
        self.emit("setp.ne.u32", target, word, ir.IntImm(0))
        return target

    def store(self, register: ir.Reg) -> np.ndarray[Any, Any]:
        if register.declared != "pred":
            array = np.zeros(LANES, TYPES[register.declared].dtype)
            self.emit(f"st.global.{register.declared}", self.element(array), register)
            return array
        word = self.register("b32")
        self.emit("selp.u32", word, ir.IntImm(1), ir.IntImm(0), register)
        array = np.zeros(LANES, np.uint32)
        self.emit("st.global.u32", self.element(array), word)
        return array

    def module(self) -> ir.Module:
        ranges = tuple(ir.RegisterRange(REGISTER_PREFIX[d], d, n) for d, n in self.counts.items() if n)
        kernel = ir.Kernel("k", tuple(self.params), ranges, tuple(self.body))
        return ir.Module((8, 0), "sm_90a", (kernel,))


def as_operand(lanes: np.ndarray[Any, Any], want: BoundOperand) -> np.ndarray[Any, Any]:
    assert want.type is not None
    if want.type.kind == "p":
        return lanes
    low = lanes.view(f"u{lanes.itemsize}").astype(f"u{want.type.nbytes}")
    return low.view(want.type.dtype)


def bits_of(value: Any, register: ir.Reg, want: BoundOperand) -> np.ndarray[Any, Any]:
    """A result of the row's function as the register's bits."""
    assert want.type is not None
    value = np.broadcast_to(value, LANES)
    if register.declared == "pred":
        return value.astype(np.uint64)
    assert value.dtype == want.type.dtype
    value = np.ascontiguousarray(value)
    raw = value.view(f"{'i' if want.type.kind == 's' else 'u'}{value.itemsize}")
    wide = TYPES[register.declared].dtype.itemsize
    return raw.astype(np.int64).astype(f"u{wide}").astype(np.uint64)


@pytest.mark.sample(200, gate=1000)
@pytest.mark.parametrize("op", chosen_ops(), ids=lambda op: op.opcode)
def test_a_generated_block_gives_the_bits_of_the_rows_function(op: Op) -> None:
    program = OneInstruction(op, seed=1)
    run(program.module(), grid=1, block=LANES, args=program.args)
    parameters = inspect.signature(op.row.semantics).parameters
    modifiers = {n: v for n, v in op.modifiers.items() if n in parameters}
    with np.errstate(all="ignore"):
        got = op.row.semantics(**program.lanes, **modifiers)
    if len(program.outputs) == 1 and not op.dests[0].count:
        flat = [got]
    else:
        flat = [x for part in got for x in (part if isinstance(part, tuple) else (part,))]
    assert len(flat) == len(program.outputs)
    for value, (array, register, want) in zip(flat, program.outputs, strict=True):
        stored = array.view(f"u{array.itemsize}").astype(np.uint64)
        wanted = bits_of(value, register, want)
        assert (stored == wanted).all(), (register, stored[stored != wanted][:4], wanted[:4])


# ------------------------------------------------------------------------------------ faster forms


def hard_lanes(seed: int) -> list[np.ndarray[Any, Any]]:
    """Sets of three operands: ordinary ones, exact ties of the double rounding, subnormals, all
    specials.
    """
    rng = np.random.default_rng(seed)
    ordinary = [rng.standard_normal(512, dtype=np.float32) for _ in range(3)]
    # 1 + 2**-24 is halfway between two float32; the addend says which way to round.
    tie = np.float32(1 + 2.0**-12), np.float32(1 - 2.0**-12), np.float32(2.0**-60)
    ties = [np.full(512, x, np.float32) for x in tie]
    ties[2] *= rng.choice([-1, 0, 1], 512).astype(np.float32)
    ties[0][:256] = 1 + 2.0**-23
    ties[1][:256] = 1 + 2.0**-1
    tiny = [rng.standard_normal(512, dtype=np.float32) * np.float32(2.0**-70) for _ in range(3)]
    tiny[2] = tiny[2] * np.float32(2.0**-75)
    # The sum has more bits than a float64, which rounds it to halfway between two subnormals.
    sunk = [np.full(512, x, np.float32) for x in ((1 + 2.0**-23) * 2.0**-75, 0, 0)]
    sunk[1] += np.float32((1 - 2.0**-23) * 2.0**-75)
    sunk[2] += np.float32(2.0**-127) + np.float32(2.0**-149)
    zeros = [np.zeros(512, np.float32), ordinary[1], -np.zeros(512, np.float32)]
    special = np.array(SPECIALS_32, np.uint32).view(np.float32)
    cube = [x.reshape(-1).copy() for x in np.meshgrid(special, special, special)]
    one_nan = [x.copy() for x in ordinary]
    one_nan[0][5] = np.uint32(0xFFC12345).view(np.float32)
    infinities = [np.full(512, np.inf, np.float32), ordinary[1], ordinary[2]]
    return [np.stack(x) for x in (ordinary, ties, tiny, sunk, zeros, cube, one_nan, infinities)]


@pytest.mark.parametrize("opcode", FAST)
def test_faster_forms_give_the_bits_of_the_rows_function(opcode: str) -> None:
    (op,) = [op for op in recognise(opcode) if not op.pairs]
    fast = FAST[opcode]
    modifiers = {name: value for name, value in op.modifiers.items() if name in op.row.parameters}
    for lanes in hard_lanes(seed=3):
        values = lanes.view(np.uint32) % 2 == 1 if opcode.endswith(".pred") else lanes
        few = [as_operand(x, source) for x, source in zip(values, op.sources, strict=False)]
        if opcode.startswith("sh"):
            few[1] %= 70  # bits, with and without those of the widest register
        for scalar, lane in product((None, *range(len(few))), (0, 1)):  # a literal comes without dimensions
            operands = [x[lane].reshape(()) if n == scalar else x for n, x in enumerate(few)]
            if all(np.ndim(x) == 0 for x in operands):
                continue
            with np.errstate(all="ignore"):
                wide = [x.astype(np.float64) for x in operands] if fast.widened else []
                got = fast.function(*operands, *wide)
                want = op.row.semantics(*operands, **modifiers)
            assert got.dtype == want.dtype
            assert got.tobytes() == want.tobytes()


def test_a_whole_kernel_gives_the_same_bits_without_the_faster_forms() -> None:
    body = ELEMENT + "    ld.global.f32 %f0, [%rd0];\n    mov.f32 %f1, 0f3F8CCCCD;\n"
    for _ in range(10):
        body += "    fma.rn.f32 %f2, %f0, %f1, %f0;\n    sub.rn.f32 %f0, %f2, 0f3E99999A;\n"
        body += "    mul.rn.f32 %f1, %f1, %f0;\n    add.rn.f32 %f0, %f1, %f2;\n"
    text = ptx(body + "    st.global.f32 [%rd0], %f0;")
    start = np.random.default_rng(0).standard_normal(512, dtype=np.float32) * np.float32(0.5)
    results = []
    for stepwise in (False, True):
        x = start.copy()
        run(text, grid=4, block=128, args=[x], stepwise=stepwise)
        results.append(x.view(np.uint32))
    assert (results[0] == results[1]).all()
    assert len(np.unique(results[0])) > 100


# ----------------------------------------------------------------------------------- generated text


def sources(body: str, shared: int = 0, **how: bool) -> str:
    module = parse(ptx(body, shared=shared))
    return "".join(compile_program(link(module, module.kernels[0], 0, {}), **how).sources)


def test_only_registers_that_are_read_later_are_returned() -> None:
    text = sources("""
    mov.u32 %r0, 1;
    add.u32 %r1, %r0, 2;
    add.u32 %r2, %r1, 3;
    bar.sync 0;
    add.u32 %r3, %r2, 4;
    bar.sync 0;
    """)
    returns = [line.count("v") for line in text.splitlines() if "return" in line]
    assert returns == [1, 0, 0]


def test_registers_begin_unwritten_only_where_a_path_may_read_them_so() -> None:
    body = """
    mov.u32 %r0, 1;
    setp.eq.u32 %p0, %r0, 1;
    @%p0 bra $skip;
    mov.u32 %r1, 2;
$skip:
    add.u32 %r2, %r0, %r1;
    """
    module = parse(ptx(body))
    linked = link(module, module.kernels[0], 0, {})
    assert compile_program(linked).unwritten is None
    program = compile_program(linked, follows=True)
    assert program.unwritten == (program.slots["%r1"],)


def test_the_function_of_a_block_is_made_when_it_first_runs() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    setp.ge.u32 %p0, %r0, 32;
    @%p0 bra $rare;
    ret;
$rare:
    add.u32 %r1, %r0, 1;
    """
    module = parse(ptx(body))
    program = compile_program(link(module, module.kernels[0], 0, {}))
    built = [block.compiled().source for block in program.blocks[:1]]
    assert "def block" in built[0]
    assert [bool(block.source) for block in program.blocks] == [True, False, False]
    assert all(program.sources)


@pytest.mark.parametrize(
    ("body", "suspects"),
    [
        ("ld.param.u64 %rd0, [x]; add.u64 %rd1, %rd0, 8; mov.u32 %r0, %tid.x; ret;", set()),
        ("ld.param.u64 %rd0, [x]; ld.global.u32 %r0, [%rd0]; add.u32 %r1, %r0, 1; ret;", {"%r0", "%r1"}),
        ("add.u32 %r1, %r0, 1; mov.u32 %r2, %r1; mov.u32 %r3, 1; ret;", {"%r0", "%r1", "%r2"}),
        ("mov.u32 %r0, 1; shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; ret;", {"%r1"}),
        (
            "ld.shared.u32 %r0, [buf]; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, 1; @%p0 mov.u32 %r1, 2; ret;",
            {"%r0", "%p0", "%r1"},
        ),
    ],
)
def test_undefined_bits_are_looked_for_only_where_they_can_come_from(body: str, suspects: set[str]) -> None:
    kernel = parse(ptx(body, "u64 x", shared=4)).kernels[0]
    parts = segments(kernel)
    names = maybe_undefined(parts, maybe_unwritten(parts), (p.name for p in kernel.params))
    assert names == suspects


def test_generated_code_follows_undefined_bits_only_if_asked_to() -> None:
    body = """
    ld.shared.u32 %r1, [buf];
    add.u32 %r2, %r1, 1;
    mov.u32 %r3, 5;
    add.u32 %r4, %r3, 1;
    st.shared.u32 [buf], %r2;
    """
    assert ".flow(" not in sources(body, shared=4)
    # the load, the sum and the store; nothing for what depends on literals alone
    assert sources(body, shared=4, follows=True).count(".flow(") == 3


def test_bfloat16_lanes_reach_rows_as_their_own_type() -> None:
    text = ptx("""
    ld.param.u64 %rd0, [x];
    ld.global.b16 %rs0, [%rd0];
    cvt.f32.bf16 %f0, %rs0;
    st.global.f32 [%rd0+4], %f0;
    """)
    x = np.zeros(2, np.float32)
    x.view(ml_dtypes.bfloat16)[0] = 1.5
    run(text, grid=1, block=1, args=[x])
    assert x[1] == 1.5


def test_results_of_literals_alone_are_kept_in_every_lane() -> None:
    function = ".func (.reg .u32 out) f(.reg .u32 n)\n{\n\tsetp.gt.u32 %p1, n, 0;\n"
    function += "\tmov.u32 out, 0;\n\t@%p1 sub.u32 n, n, 1;\n\t@%p1 call (out), f, (n);\n\tret;\n}\n"
    function = function.replace("{\n", "{\n\t.reg .pred %p<2>;\n", 1)
    body = """
    cvta.shared.u64 %rd5, buf;
    add.cc.u32 %r10, 0xffffffff, 2;
    addc.u32 %r11, 3, 4;
    isspacep.shared %p2, 16;
    call (%r4), f, (2);
    cvt.u32.u64 %r12, %rd5;
    add.u32 %r4, %r10, %r11;
    add.u32 %r4, %r4, %r12;
    @%p2 add.u32 %r4, %r4, 100;
    st.global.u32 [%rd0], %r4;
    """
    text = on_elements(body, shared=16, before=function)
    x = np.zeros(32, np.uint32)
    run(text, grid=1, block=32, args=[x])
    assert x.tolist() == [1 + 8] * 32
