"""The battery that every row of the instruction table goes through."""

from __future__ import annotations

import itertools
import math
import random
import zlib
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from error_texts import refused
from isa import cases, cases_integer, cases_matrix

from ptxgen import ir
from ptxgen.errors import AssemblerError, ModifierError
from ptxgen.isa import SPECIALS, SpecialRegister, table
from ptxgen.isa.spec import BoundOperand, Effect, Inst, Op
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import TARGETS, Target
from ptxgen.types import REGISTER_PREFIX, TYPES, ScalarType, b128, pred

ROWS = [row for rows in table.rows().values() for row in rows]
OPS_PER_ROW = 200  # of a row with more, a sample is tested
MEANINGS_PER_ROW = 40
# How many ops of a row are tested, by `make test` and by `make nightly`.
some_ops = pytest.mark.parametrize("limit", [12, pytest.param(OPS_PER_ROW, marks=pytest.mark.nightly)])
some_meanings = pytest.mark.parametrize(
    "limit",
    [2, pytest.param(5, marks=pytest.mark.slow), pytest.param(MEANINGS_PER_ROW, marks=pytest.mark.nightly)],
)
LANES = 64  # two warps


def label(row: Inst) -> str:
    types = [str(t) for values in row.choices.values() for t in values if isinstance(t, ScalarType)]
    return f"{row.syntax} ({' '.join(types)})" if types else row.syntax


def ops_of(row: Inst, limit: int = OPS_PER_ROW) -> list[Op]:
    """All ops of the row, or a fixed sample that has every choice of every slot."""
    ops = list(row.all_ops())
    if len(ops) <= limit:
        return ops
    sample = random.Random(row.syntax).sample(ops, limit)
    missing = [
        next(op for op in ops if op.modifiers[slot] == choice)
        for slot, choices in row.choices.items()
        for choice in choices
        if all(op.modifiers[slot] != choice for op in sample)
    ]
    return sample + missing


def seeded(op: Op) -> random.Random:
    return random.Random(zlib.crc32(op.opcode.encode()))


MODELLED = [row for row in ROWS if not row.unmodelled]


def with_effect(*effects: Effect) -> list[Any]:
    """The rows with a meaning and one of these effects, as parameters of tests."""
    return [pytest.param(r, id=label(r)) for r in MODELLED if r.effect in effects]


every_row = pytest.mark.parametrize("row", [pytest.param(r, id=label(r)) for r in ROWS])

# ---------------------------------------- text


# What an address in the space of parameters must name, as no register may point there.
PARAMETERS = {
    ("ld", "param"): "parameter",
    ("ld", "param::entry"): "parameter",
    ("ld", "param::func"): "passed",
    ("st", "param"): "passed",
    ("st", "param::func"): "passed",
}


def operands_of(op: Op) -> tuple[ir.Operand, ...]:
    """Registers, literals and labels that fit the op, each in a register of its own."""
    out: list[ir.Operand] = []
    for n, want in enumerate(op.operands):
        if want.literal is not None or want.kind == "imm":
            value = cases.IMMEDIATES[want.name][0] if want.literal is None else want.literal
            out.append(ir.IntImm(value))
            continue
        if want.type is None:
            out.append(named(op, want))
            continue
        declared = want.type.register
        first_reg = 8 * n if want.count <= 8 else 128
        regs = [
            ir.Reg(f"{REGISTER_PREFIX[declared]}{first_reg + i}", declared) for i in range(max(8, want.count))
        ]
        if want.address and want.count:
            coordinates = [
                ir.Reg(f"{REGISTER_PREFIX[type.register]}{8 * n + i}", type.register)
                for i, type in enumerate(want.along)
            ]
            out.append(ir.TensorAddress(regs[0], 0, tuple(coordinates)))
        elif want.written and op.opcode.startswith("mbarrier") and "shared::cluster" in op.opcode:
            out.append(ir.Sink())  # of another CTA's mbarrier, no state comes back
        elif want.address:
            in_param = PARAMETERS.get((op.row.name[:2], str(op.modifiers.get("space"))))
            out.append(ir.Address(ir.Symbol(in_param) if in_param else regs[0]))
        elif want.second:
            first = out.pop()
            assert isinstance(first, ir.Reg)
            out.append(ir.Pair(first, regs[0]))
        else:
            out.append(ir.Vector(tuple(regs[: want.count])) if want.count else regs[0])
    return tuple(out)


def signature(op: Op) -> str:
    """Names what a call has of results and arguments: one of SIGNATURES."""
    return "".join(o.name for o in op.operands if o.kind == "args")


def named(op: Op, want: BoundOperand) -> ir.Operand:
    """The label, function or argument that `module_of` declares for an operand."""
    if want.kind == "args":
        return ir.Arguments((ir.Symbol("result" if want.written else "argument"),))
    names = {
        "f": f"function{signature(op)}",
        "t": f"$prototype{signature(op)}",
        "target": "$targets" if op.row.name == "brx" else "$end",
    }
    return ir.Symbol(names[want.name])


def written(operand: ir.Operand) -> str:
    match operand:
        case ir.IntImm(value):
            return str(value)
        case ir.Symbol(name):
            return name
        case ir.Address(base):
            return f"[{base.name}]"
        case ir.TensorAddress(base, _, coordinates):
            return f"[{base.name}, {written(ir.Vector(coordinates))}]"
        case ir.Sink():
            return "_"
        case ir.Pair(first, second):
            return f"{first.name}|{second.name}"
        case ir.Vector(items):
            return "{" + ", ".join(written(item) for item in items) + "}"
        case ir.Arguments(items):
            return "(" + ", ".join(written(item) for item in items) + ")"
        case ir.Reg(name):
            return name
    raise AssertionError(operand)


# What functions give and get, by `signature`.
SIGNATURES = {
    "": ("", ""),
    "d": ("(.param .b32 d)", ""),
    "a": ("", ".param .b32 a"),
    "da": ("(.param .b32 d)", ".param .b32 a"),
}


def module_of(ops: list[Op], target: Target, ptx: tuple[int, int]) -> str:
    """One kernel with all the ops; those that end it are guarded by a predicate."""
    lines = [
        ("@%p90 " if op.effect is Effect.CONTROL else "")
        + f"{op.opcode} {', '.join(map(written, operands_of(op)))};"
        for op in ops
    ]
    registers = [
        f".reg .{declared} {name}<256>;"
        for declared, name in REGISTER_PREFIX.items()
        if declared != "b128" or any(o.type is b128 for op in ops for o in op.operands)
    ]
    return "\n".join(
        [
            f".version {ptx[0]}.{ptx[1]}\n.target {target}\n.address_size 64",
            *(f".func {d} function{key}({a}) {{ ret; }}" for key, (d, a) in SIGNATURES.items()),
            ".func (.param .align 16 .b8 out[16]) giver() { ret; }",
            ".visible .entry kernel(.param .align 16 .b8 parameter[16])\n{",
            *registers,
            ".param .b32 argument;\n.param .b32 result;\n.param .align 16 .b8 passed[16];",
            "call (passed), giver;",  # the assembler crashes on what nobody gave
            "$targets: .branchtargets $end;",
            *(f"$prototype{key}: .callprototype {d} _ ({a});" for key, (d, a) in SIGNATURES.items()),
            *lines,
            "$end:\nret;\n}\n",
        ]
    )


@some_ops
@every_row
def test_every_op_is_recognised_from_what_it_prints(row: Inst, limit: int) -> None:
    for op in ops_of(row, limit):
        assert op in table.recognise(op.opcode)
        assert table.op_of(ir.Instr(op.opcode, operands_of(op))) is op


def test_no_two_rows_print_one_opcode_for_the_same_shape_of_operands() -> None:
    seen: dict[Any, Inst] = {}
    for row in ROWS:
        for op in row.all_ops():
            shape = tuple(
                (o.address, o.count, o.second, o.kind == "args", o.type is pred) for o in op.operands
            )
            other = seen.setdefault((op.opcode, shape), row)
            assert other is row, f"{op.opcode} is printed by {label(row)} and {label(other)}"


def test_every_row_names_the_section_that_describes_it() -> None:
    assert [label(row) for row in ROWS if ": " not in row.section] == []


def test_every_inexact_row_states_its_accuracy_in_words() -> None:
    assert [label(row) for row in ROWS if bool(row.max_ulp) != bool(row.accuracy)] == []


# ---------------------------------------- gates

# The assembler also knows targets that this project does not; these are steps for the test.
PTX_VERSIONS = (
    *((6, 3), (6, 4), (6, 5)),
    *((7, 0), (7, 1), (7, 2), (7, 3), (7, 4), (7, 5), (7, 6), (7, 7), (7, 8)),
    *((8, 0), (8, 1), (8, 2), (8, 3), (8, 4), (8, 5), (8, 6), (8, 7), (8, 8), (9, 0)),
)
IN_ORDER = sorted(TARGETS.values(), key=lambda t: (t.sm, t.suffix))


def oldest_target(op: Op | SpecialRegister) -> Target:
    """The oldest target that has the op; all of ours are younger than most instructions."""
    return next(t for t in IN_ORDER if op.gate.admits(t))


@pytest.mark.slow
@pytest.mark.ptxas
@some_ops
def test_the_assembler_accepts_every_op_at_its_gate(limit: int, assembler: Assembler) -> None:
    groups: dict[Any, list[Op]] = defaultdict(list)
    for row in ROWS:
        for op in ops_of(row, limit):
            target = oldest_target(op)
            # The assembler takes one size of the group of CTAs in a function.
            groups[target, max(op.gate.ptx, target.ptx), "cta_group::2" in op.opcode].append(op)
    for (target, ptx, _), ops in groups.items():
        try:
            assembler.assemble(module_of(ops, target, ptx), target.name, opt_level=0)
        except AssemblerError as error:
            is_older = ptx > PTX_VERSIONS[-1] and "the assembler is older than the text" in str(error)
            # Ops one after another do not make a good kernel.
            if not is_older and "took the PTX" not in str(error):
                raise


@pytest.mark.ptxas
def test_the_assembler_knows_every_special_register_and_its_type(assembler: Assembler) -> None:
    groups: dict[Any, list[str]] = defaultdict(list)
    for name, s in SPECIALS.items():
        target = oldest_target(s)
        line = f"mov.{s.type} {REGISTER_PREFIX[s.type.register]}1, {name};"
        groups[target, max(s.gate.ptx, target.ptx)].append(line)
    for (target, ptx), lines in groups.items():
        text = module_of([], target, ptx).replace("$end:", "\n".join(["$end:", *lines]))
        assembler.assemble(text, target.name, opt_level=0)


def below_the_gate(op: Op) -> Iterator[tuple[Target, tuple[int, int]]]:
    """The target and PTX version one step too old for the op, as far as the assembler knows any."""
    target = oldest_target(op)
    if op.gate.ptx > target.ptx:
        yield target, max(v for v in PTX_VERSIONS if v < op.gate.ptx)
    older = [t for t in IN_ORDER if t.sm < target.sm]
    if older:
        yield older[-1], max(op.gate.ptx, older[-1].ptx)


@pytest.mark.sample(0, gate=60)
@pytest.mark.ptxas
@every_row
def test_the_assembler_refuses_the_row_one_step_below_each_of_its_gates(
    row: Inst, assembler: Assembler
) -> None:
    one_for_each_gate = {op.gate: op for op in row.all_ops()}
    for op in one_for_each_gate.values():
        for target, ptx in below_the_gate(op):
            with pytest.raises(
                AssemblerError, match=r"requires|not supported|introduced|Unexpected instruction types"
            ):
                assembler.assemble(module_of([op], target, ptx), target.name, opt_level=0)


OF_SOME_TARGETS = {(row.section, op.gate.only): op for row in ROWS for op in ops_of(row, 1) if op.gate.only}


@pytest.mark.ptxas
@pytest.mark.parametrize("op", [pytest.param(op, id=op.opcode) for op in OF_SOME_TARGETS.values()])
def test_the_assembler_accepts_an_op_of_some_targets_on_exactly_these(op: Op, assembler: Assembler) -> None:
    def is_accepted(target: Target) -> bool:
        try:
            assembler.assemble(
                module_of([op], target, max(op.gate.ptx, target.ptx)), target.name, opt_level=0
            )
        except AssemblerError as error:  # one op does not make a good kernel
            return "took the PTX" in str(error)
        return True

    accepted = [t.name for t in TARGETS.values() if is_accepted(t)]
    assert accepted == [t.name for t in TARGETS.values() if op.gate.admits(t)]


# ---------------------------------------- values

FLOAT_BITS = {"f64": (11, 52), "f32": (8, 23), "bf16": (8, 7), "f16": (5, 10)}


def special_bits(name: str) -> list[int]:
    """Zeros, subnormals, the smallest and largest numbers, infinity, NaN, 1, ties; both signs."""
    exponents, mantissa = FLOAT_BITS[name]
    bias = (1 << exponents - 1) - 1
    top = (1 << exponents) - 1 << mantissa
    one = bias << mantissa
    half, two_and_a_half = bias - 1 << mantissa, (bias + 1 << mantissa) | 1 << mantissa - 2
    positive = [0, 1, (1 << mantissa) - 1, 1 << mantissa, one, one + 1, half, two_and_a_half, top - 1, top]
    return [*positive, *(p | 1 << exponents + mantissa for p in positive), top | 1 << mantissa - 1]


def random_bits(name: str, rng: random.Random) -> int:
    """Any bits, or a number of moderate size with few bits, whose sums and products make ties."""
    exponents, mantissa = FLOAT_BITS[name]
    if rng.random() < 0.5:
        return rng.getrandbits(exponents + mantissa + 1)
    bias = (1 << exponents - 1) - 1
    spread = min(bias - 1, mantissa + 4)
    exponent = bias + rng.randint(-spread, spread)
    top_bits = rng.getrandbits(mantissa // 2 + 2) << mantissa - (mantissa // 2 + 2)
    return rng.getrandbits(1) << exponents + mantissa | exponent << mantissa | top_bits


def special_integers(bits: int) -> list[int]:
    top = 1 << bits - 1
    near = [0, 1, 2, top - 1, top, 2 * top - 1, 2 * top - 2]
    return [*near, *(n for n in (7, 31, 32, 33, 63, 64, 65, 255, 256, 0x1F1F) if n < top)]


def random_integer(bits: int, rng: random.Random) -> int:
    return rng.getrandbits(rng.choice((bits, bits, bits // 2, 5)))


def bits_of_lanes(type: ScalarType, n: int, rng: random.Random) -> list[int]:
    if type.kind == "p":
        return [rng.getrandbits(1) for _ in range(n)]
    if type.kind == "x":
        half = TYPES[type.name.removesuffix("x2")]
        pairs = zip(bits_of_lanes(half, n, rng), bits_of_lanes(half, n, rng), strict=True)
        return [low | high << 16 for low, high in pairs]
    specials = special_bits(type.name) if type.is_float else special_integers(type.bits)
    fresh = random_bits if type.is_float else random_integer
    size = type.name if type.is_float else type.bits
    return [
        rng.choice(specials) if rng.random() < 0.4 else fresh(size, rng)  # type: ignore[arg-type]
        for _ in range(n)
    ]


def two_f32(_: ScalarType, n: int, rng: random.Random) -> list[int]:
    pairs = zip(*(bits_of_lanes(TYPES["f32"], n, rng) for _ in range(2)), strict=True)
    return [low | high << 32 for low, high in pairs]


def array_of(type: ScalarType, bits: list[int]) -> np.ndarray:
    if type.kind == "p":
        return np.array(bits, dtype=bool)
    if type is b128:
        return np.frombuffer(b"".join(n.to_bytes(16, "little") for n in bits), type.dtype).copy()
    unsigned = np.array(bits, dtype=np.uint64).astype(f"u{type.bits // 8}")
    return unsigned.view(type.dtype)


def lanes_for(op: Op, n: int, rng: random.Random) -> dict[str, Any]:
    """Operands for `n` lanes: all pairs of special values first when two operands are floats."""
    out: dict[str, Any] = {}
    values = [o for o in op.sources if o.kind == "value" and o.literal is None]
    for o in values:
        assert o.type is not None
        drawn = two_f32 if op.opcode.endswith("f32x2") else bits_of_lanes
        arrays = [array_of(o.type, drawn(o.type, n, rng)) for _ in range(o.count or 1)]
        out[o.name] = tuple(arrays) if o.count else arrays[0]
    floats = [o for o in values if o.type is not None and o.type.is_float and not o.count]
    if floats:
        specials = [special_bits(o.type.name) for o in floats[:2] if o.type is not None]
        pairs = list(itertools.product(*specials))
        rng.shuffle(pairs)
        for i, o in enumerate(floats[:2]):
            assert o.type is not None
            column = array_of(o.type, [p[i] for p in pairs[: n // 2]])
            out[o.name][: len(column)] = column
    return out


def number(type: ScalarType, lane: Any) -> Any:
    """One lane as Python has it; a packed pair as two floats."""
    if type.kind == "x":
        half = TYPES[type.name.removesuffix("x2")].dtype
        parts = np.array([lane]).view(np.uint16).view(half)
        return tuple(float(p) for p in parts)
    if type.kind == "p":
        return bool(lane)
    if type is b128:
        return int.from_bytes(np.array([lane]).tobytes(), "little")
    return float(lane) if type.is_float else int(lane)


SMALLEST = {"f32": 2.0**-126, "f16": 2.0**-14, "bf16": 2.0**-126}


def flush(op: Op, type: ScalarType, x: Any) -> Any:
    """What .ftz does: to f32 everywhere, to f16 in arithmetic but not in conversions."""
    name = type.name.removesuffix("x2")
    if op.row.name == "slct":  # looks at c flushed, and copies a or b as they are
        return x
    only_f32 = op.row.name.startswith("cvt")
    if not op.modifiers.get("ftz") or name not in SMALLEST or (only_f32 and name != "f32"):
        return x
    return math.copysign(0.0, x) if abs(x) < SMALLEST[name] else x


# A sum that is exactly zero is -0 when rounding down: the operands to negate to see it as +0.
TERMS = {"add": (0, 1), "sub": (0, 1), "fma": (0, 2), "mad": (0, 2)}


def zero_like(op: Op, meaning: Any, m: SimpleNamespace, floats: list[Any]) -> float:
    """The sign that IEEE 754 gives to an exact zero."""
    head = op.opcode.split(".")[0]
    if op.modifiers.get("rnd") != "rm" or head not in TERMS:
        return math.copysign(0.0, meaning(m, *floats))
    negated = [-x if n in TERMS[head] else x for n, x in enumerate(floats)]
    return -math.copysign(0.0, meaning(m, *negated))


def finished(op: Op, format: str, exact: Any) -> float:
    """An exact number (or a float) as the result register gets it: rounded, relu, flushed,
    saturated.
    """
    rnd = op.modifiers.get("rnd", op.modifiers.get("rna"))
    rnd = rnd if rnd in ("rz", "rm", "rp", "rna") else "rn"
    if isinstance(exact, float) and (not math.isfinite(exact) or exact == 0):
        x = exact
    else:
        x = cases.rounded(Fraction(exact), format, rnd)
    if op.modifiers.get("satfinite"):
        precision, _, high = cases.FORMATS[format]
        largest = (2 - 2.0 ** (1 - precision)) * 2.0**high
        x = math.copysign(min(abs(x), largest), x) if not math.isnan(x) else x
    if op.modifiers.get("relu") and x <= 0:
        x = 0.0
    x = flush(op, TYPES["f32" if format == "tf32" else format], x)
    if op.modifiers.get("sat"):
        x = 0.0 if not x > 0 else min(x, 1.0)
    return x


def exactly(x: Any) -> Any:
    """A finite float as a fraction; anything else as it is."""
    return Fraction(x) if isinstance(x, float) and math.isfinite(x) else x


def expected_number(op: Op, format: str, meaning: Any, m: SimpleNamespace, operands: list[Any]) -> Any:
    m.floats = [x for x in operands if isinstance(x, float)]
    finite = all(math.isfinite(x) for x in m.floats)
    exact = meaning(m, *(map(exactly, operands) if finite else operands))
    if isinstance(exact, Fraction) and exact == 0 and m.floats:
        exact = zero_like(op, meaning, m, operands)
    return finished(op, format, exact)


def same_number(got: float, want: float, tolerance: float, format: str) -> bool:
    if math.isnan(want) or math.isnan(got):
        return math.isnan(want) and math.isnan(got)
    if got == want:
        return math.copysign(1, got) == math.copysign(1, want)
    if not tolerance or math.isinf(want) or math.isinf(got):
        return False
    precision, low, _ = cases.FORMATS[format]
    ulp = 2.0 ** (max(low, math.frexp(want)[1] - 1) - precision + 1)
    return abs(got - want) <= tolerance * ulp


def agrees(op: Op, type: ScalarType, got: Any, meaning: Any, m: SimpleNamespace, operands: list[Any]) -> str:
    """Empty if one lane of a result is what the meaning says, else what was wanted."""
    operands = [
        flush(op, o.type, x) if o.type is not None and isinstance(x, float) else x
        for o, x in zip((o for o in op.sources if o.literal is None), operands, strict=True)
    ]
    if type.kind == "p":
        want = meaning(m, *operands)
        return "" if bool(got) == want and isinstance(want, bool) else str(want)
    if op.row.name == "cvt_tf32":
        want = expected_number(op, "tf32", meaning, m, operands)
        value = float(np.uint32(got).view(np.float32))
        return "" if same_number(value, want, 0, "tf32") else str(want)
    if type.is_float:
        want = expected_number(op, type.name, meaning, m, operands)
        return "" if same_number(float(got), want, min(op.row.max_ulp, 1), type.name) else str(want)
    m.floats = [x for x in operands if isinstance(x, float)]
    want = meaning(m, *map(exactly, operands))
    return "" if number(type, got) % (1 << type.bits) == want % (1 << type.bits) else str(want)


def agrees_packed(
    op: Op, type: ScalarType, got: Any, meaning: Any, m: SimpleNamespace, operands: list[Any]
) -> str:
    half = type.name.removesuffix("x2")
    values = number(type, got)
    if op.row.name.startswith("cvt"):
        wants = tuple(
            finished(op, half, x if not math.isfinite(x) or x == 0 else Fraction(x))
            for x in meaning(m, *operands)
        )
    else:
        halves = [[flush(op, type, x[i]) if isinstance(x, tuple) else x for x in operands] for i in range(2)]
        wants = tuple(expected_number(op, half, meaning, m, list(h)) for h in halves)
    tolerance = min(op.row.max_ulp, 1)
    same = all(same_number(v, w, tolerance, half) for v, w in zip(values, wants, strict=True))
    return "" if same else str(wants)


def agrees_two_f32(
    op: Op, _: ScalarType, got: Any, meaning: Any, m: SimpleNamespace, operands: list[Any]
) -> str:
    """A pair of f32 in 64 bits: NaN is canonical there."""
    values = [floats_of(x) for x in operands]
    halves = [[flush(op, TYPES["f32"], x[i]) for x in values] for i in range(2)]
    wants = [expected_number(op, "f32", meaning, m, h) for h in halves]
    bits = [0x7FFFFFFF if math.isnan(w) else bits_of_f32(w) for w in wants]
    return "" if int(got) == bits[0] | bits[1] << 32 else str(wants)


def floats_of(pair: int) -> list[float]:
    return [float(x) for x in np.array([pair], np.uint64).view(np.float32)]


def bits_of_f32(x: float) -> int:
    return int(np.array([x], np.float32).view(np.uint32)[0])


def modifiers_of(op: Op) -> SimpleNamespace:
    """The modifiers, and the type of the row as `type` where it is written into the opcode."""
    last = op.opcode.split(".")[-1]
    return SimpleNamespace(**{"type": TYPES.get(last), **op.modifiers})


def call(op: Op, machine: Any, operands: dict[str, Any]) -> Any:
    arguments = {**operands, **op.modifiers, "machine": machine}
    return op.row.semantics(**{n: arguments[n] for n in op.row.parameters if n in arguments})


# ---------------------------------------- meaning


@some_meanings
@pytest.mark.parametrize("row", with_effect(Effect.NONE))
def test_the_meaning_of_a_row_agrees_with_plain_python(row: Inst, limit: int) -> None:
    meaning = cases.MEANING[row.syntax]
    for op in ops_of(row, limit):
        rng = seeded(op)
        operands = lanes_for(op, LANES * 2, rng)
        immediates = [o.name for o in op.sources if o.kind == "imm" and o.literal is None]
        for literals in itertools.product(*(cases.IMMEDIATES[n] for n in immediates)):
            everything = {**operands, **dict(zip(immediates, literals, strict=True))}
            check_lanes(op, meaning, everything, call(op, None, everything))


def check_lanes(op: Op, meaning: Any, operands: dict[str, Any], result: Any) -> None:
    names = [(o.name, o.type, o.count) for o in op.sources if o.literal is None]
    for lane in range(LANES * 2 if op.dests else 0):
        values = [lane_value(type, count, operands[name], lane) for name, type, count in names]
        m = modifiers_of(op)
        if op.dests[0].count:
            got = lane_value(op.dests[0].type, op.dests[0].count, result, lane)
            assert repr(got) == repr(meaning(m, *values)), (op, values)
            continue
        several = len(op.dests) > 1
        for n, dest in enumerate(op.dests):
            lanes, of_it = (result[n], part_of(meaning, n)) if several else (result, meaning)
            assert dest.type is not None
            check = agrees_packed if dest.type.kind == "x" else agrees
            check = agrees_two_f32 if op.opcode.endswith("f32x2") else check
            assert lanes.dtype == dest.type.dtype, (op, lanes.dtype)
            wanted = check(op, dest.type, lanes[lane], of_it, m, values)
            assert not wanted, (op, values, lanes[lane], wanted)


def part_of(meaning: Any, n: int) -> Any:
    """The meaning of the n-th result of several."""
    return lambda *args: meaning(*args)[n]


def lane_value(type: ScalarType | None, count: int, lanes: Any, lane: int) -> Any:
    if type is None:
        return lanes
    if count:
        return tuple(number(type, part[lane]) for part in lanes)
    return number(type, lanes[lane])


@pytest.mark.parametrize("row", with_effect(Effect.NONE))
def test_a_meaning_takes_scalars_and_arrays_mixed(row: Inst) -> None:
    op = row.resolve({})
    operands = lanes_for(op, LANES, seeded(op))
    for o in op.sources:
        if o.kind == "imm" and o.literal is None:
            operands[o.name] = cases.IMMEDIATES[o.name][0]
    whole = call(op, None, operands)
    scalars = {k: x if isinstance(x, int) else scalar(x) for k, x in operands.items()}
    for name in [None, *(k for k, x in operands.items() if not isinstance(x, int))]:
        mixed = {k: x if k == name else scalars[k] for k, x in operands.items()}
        results, wholes = (r if isinstance(r, tuple) else (r,) for r in (call(op, None, mixed), whole))
        for got, want in zip(results, wholes, strict=True):
            first = np.ravel(got)[0]
            assert got.dtype == want.dtype
            assert first == want[0] or (first != first and want[0] != want[0])


def test_fns_counts_ones_from_every_bit_in_both_directions() -> None:
    op = table.recognise("fns.b32")[0]
    meaning = cases.MEANING[op.row.syntax]
    masks = (0, 1 << 31, 0xAAAAAAAA, 0x00F00F01, 0xFFFFFFFF)
    lanes = list(itertools.product(masks, range(34), range(-33, 34)))
    mask, base, offset = zip(*lanes, strict=True)
    operands = {
        "mask": np.array(mask, dtype=np.uint32),
        "base": np.array(base, dtype=np.uint32),
        "offset": np.array(offset, dtype=np.int32),
    }
    assert call(op, None, operands).tolist() == [meaning(None, *lane) for lane in lanes]


def scalar(lanes: Any) -> Any:
    return tuple(x[0] for x in lanes) if isinstance(lanes, tuple) else lanes[0]


def test_no_case_is_left_without_a_row() -> None:
    pure = {r.syntax for r in MODELLED if r.effect is Effect.NONE}
    of_memory = (Effect.READ, Effect.WRITE, Effect.ATOMIC)
    memory = {r.syntax for r in MODELLED if r.effect in of_memory} - cases.ELSEWHERE
    warp = {r.syntax for r in MODELLED if r.effect is Effect.WARP} - cases.ELSEWHERE
    carry = {r.syntax for r in MODELLED if r.effect is Effect.CARRY}
    rest = {r.syntax for r in MODELLED} - pure - memory - warp - carry - cases.ELSEWHERE
    assert set(cases_integer.CARRY) == carry
    assert (set(cases.MEANING), set(cases.MEMORY), set(cases.WARP), set(cases.CALLS)) == (
        pure,
        memory,
        warp,
        rest,
    )


# ---------------------------------------- carries


class Flags:
    """A machine that has nothing but the carry flag of each lane."""

    def __init__(self, flags: np.ndarray) -> None:
        self.flags = flags
        self.written: Any = None

    def carry(self) -> np.ndarray:
        return self.flags

    def set_carry(self, flag: Any) -> None:
        assert flag.dtype == np.dtype(bool)
        self.written = np.broadcast_to(flag, self.flags.shape)


@pytest.mark.parametrize("row", with_effect(Effect.CARRY))
def test_a_carry_row_gives_the_sum_and_the_flag_of_plain_python(row: Inst) -> None:
    for op in ops_of(row):
        rng = seeded(op)
        operands = lanes_for(op, LANES * 4, rng)
        for scalar_name in (None, *operands):  # an operand may be a literal
            arguments = {k: x[0] if k == scalar_name else x for k, x in operands.items()}
            check_carry(op, arguments, [rng.random() < 0.5 for _ in range(LANES * 4)])


def check_carry(op: Op, operands: dict[str, Any], flags: list[bool]) -> None:
    meaning, m = cases_integer.CARRY[op.row.syntax], modifiers_of(op)
    machine = Flags(np.array(flags))
    result = call(op, machine, operands)
    assert result.dtype == m.type.dtype
    assert (machine.written is not None) == ("cc" in op.opcode.split("."))
    for lane, flag in enumerate(flags):
        values = [int(np.broadcast_to(x, len(flags))[lane]) for x in operands.values()]
        whole = meaning(m, flag, *values)
        cut = whole % (1 << m.type.bits)
        assert int(result[lane]) % (1 << m.type.bits) == cut, (op, values, flag)
        if machine.written is not None:
            assert machine.written[lane] == (whole != cut), (op, values, flag)


def chained(op: Op, machine: Flags, *operands: np.ndarray) -> np.ndarray:
    """One step of a long sum: the flag it writes is the one that the next step reads."""
    result: np.ndarray = call(op, machine, dict(zip("abc", operands, strict=False)))
    if machine.written is not None:
        machine.flags, machine.written = machine.written, None
    return result


def test_long_sums_and_differences_are_those_of_large_integers() -> None:
    rng = random.Random(128)
    words = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    numbers = [[[rng.choice(words) for _ in range(4)] for _ in range(LANES)] for _ in range(2)]
    columns = [[np.array(c, dtype=np.uint32) for c in zip(*x, strict=True)] for x in numbers]
    x, y = ([sum(w << 32 * n for n, w in enumerate(row)) for row in rows] for rows in numbers)
    for name, whole in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b)):
        machine = Flags(np.zeros(LANES, dtype=bool))
        steps = [f"{name}.cc.u32", f"{name}c.cc.u32", f"{name}c.cc.u32", f"{name}c.u32"]
        got = [
            chained(table.recognise(step)[0], machine, a, b)
            for step, a, b in zip(steps, *columns, strict=True)
        ]
        for lane in range(LANES):
            total = sum(int(part[lane]) << 32 * n for n, part in enumerate(got))
            assert total == whole(x[lane], y[lane]) % (1 << 128), (name, lane)


# ---------------------------------------- memory

CELL = 32  # bytes for each lane
SPACES = ("global", "shared", "param", "const", "local", "generic")


class Memory:
    """A machine with one cell for each lane in every space, whose addresses are shuffled."""

    def __init__(self, rng: random.Random) -> None:
        self.cells = {s: np.frombuffer(rng.randbytes(CELL * LANES), np.uint8).copy() for s in SPACES}
        order = list(range(LANES))
        rng.shuffle(order)
        self.address = np.array(order, dtype=np.uint64) * np.uint64(CELL)

    def values(self, space: str, type: ScalarType, count: int, offset: int = 0) -> list[np.ndarray]:
        width = type.nbytes
        rows = self.cells[space].reshape(LANES, CELL)[(self.address // CELL).astype(int)]
        return [
            np.ascontiguousarray(rows[:, start : start + width]).view(type.dtype)[:, 0]
            for start in range(offset, offset + count * width, width)
        ]

    def offset(self, address: np.ndarray) -> int:
        """How far into their cells the addresses lie."""
        (offset,) = set((address - self.address).tolist())
        return int(offset)

    def load(self, space: str, address: np.ndarray, type: ScalarType, count: int) -> tuple[np.ndarray, ...]:
        assert (address == self.address).all()
        return tuple(self.values(space, type, count))

    def store(
        self, space: str, address: np.ndarray, type: ScalarType, values: tuple[np.ndarray, ...]
    ) -> None:
        start = self.offset(address)
        cells = self.cells[space].reshape(LANES, CELL)
        for value in values:
            assert value.dtype == type.dtype
            raw = np.ascontiguousarray(value).view(np.uint8).reshape(LANES, type.nbytes)
            cells[(address // CELL).astype(int), start : start + type.nbytes] = raw
            start += type.nbytes

    def atomic(
        self,
        space: str,
        address: np.ndarray,
        type: ScalarType,
        update: Any,
        operands: Any,
        *,
        scan: object = None,
    ) -> np.ndarray:
        del scan  # no lanes meet
        old = self.values(space, type, 1, self.offset(address))[0]
        self.store(space, address, type, (update(old, *operands),))
        return old


def memory_case(
    op: Op, meaning: Any, m: SimpleNamespace, type: ScalarType, old: Any, operands: list[Any]
) -> Any:
    """New values and result of one lane, as numbers."""
    if op.effect is not Effect.ATOMIC or not m.vec:
        new, value = updated(op, meaning, m, type, old[:1] if m.vec is None else old, operands)
        return new, value
    # A vector's elements one by one.
    parts = [
        updated(op, meaning, m, type, (x,), [b, *operands[1:]]) for x, b in zip(old, operands[0], strict=True)
    ]
    news = tuple(new for (new,), _ in parts)
    return news, None if parts[0][1] is None else tuple(value for _, value in parts)


def updated(op: Op, meaning: Any, m: SimpleNamespace, type: ScalarType, old: Any, operands: list[Any]) -> Any:
    """New values and result of one lane; sums of floats are rounded, pairs go half by half."""
    if op.effect is not Effect.ATOMIC or type.is_integer:
        return meaning(m, old, *operands)
    adds = getattr(m, "op", "add") == "add"

    def one(_: SimpleNamespace, x: Any, y: Any) -> Any:
        return meaning(m, (x,), y)[0][0]

    def of(format: str, x: Any, y: Any) -> Any:
        return expected_number(op, format, one, m, [x, y]) if adds else one(m, x, y)

    returned = None if op.row.name == "red" else old[0]
    if adds and type.kind != "x":
        return (of(type.name, old[0], operands[0]),), returned
    if type.kind != "x":
        return meaning(m, old, *operands)
    half = type.name.removesuffix("x2")
    pairs = zip(old[0], operands[0], strict=True)
    return (tuple(of(half, *p) for p in pairs),), returned


@some_meanings
@pytest.mark.parametrize(
    "row",
    [
        p
        for p in with_effect(Effect.READ, Effect.WRITE, Effect.ATOMIC)
        if p.values[0].syntax not in cases.ELSEWHERE
    ],
)
def test_a_memory_row_reads_and_writes_what_plain_python_says(row: Inst, limit: int) -> None:
    for op in ops_of(row, limit):
        check_memory(op, cases.MEMORY[row.syntax])


def space_of(op: Op) -> str:
    """The state space an op reaches, as machines call it."""
    words = op.opcode.split(".")
    result = [w.partition("::")[0] for w in words]
    return next((w for w in result if w in SPACES), "generic")


def check_memory(op: Op, meaning: Any) -> None:
    rng = seeded(op)
    memory, m = Memory(rng), modifiers_of(op)
    m.vec = getattr(m, "vec", None)
    type, space = m.type, space_of(op)
    count = int(m.vec[1:]) if m.vec else 1
    if op.effect is Effect.ATOMIC:  # numbers that add and compare in interesting ways
        numbers = [array_of(type, bits_of_lanes(type, LANES, rng)) for _ in range(count)]
        memory.store(space, memory.address, type, tuple(numbers))
    before = memory.values(space, type, count)
    untouched = {s: c.copy() for s, c in memory.cells.items() if s != space}
    operands = {**lanes_for(op, LANES, rng), "addr": memory.address}
    if "cas" in op.opcode:
        operands["b"][::2] = before[0][::2]  # these will be exchanged
    result = call(op, memory, operands)
    after = memory.values(space, type, count)
    sources = [o for o in op.sources if not o.address]
    for lane in range(LANES):
        old = tuple(number(type, x[lane]) for x in before)
        values = [lane_value(o.type, o.count, operands[o.name], lane) for o in sources]
        new, value = memory_case(op, meaning, m, type, old, values)
        same_values(type, [x[lane] for x in after], new)
        if value is not None:
            got = [x[lane] for x in result] if m.vec else [result[lane]]
            same_values(type, got, value if m.vec else (value,))
    assert all((memory.cells[s] == c).all() for s, c in untouched.items())


def same_values(type: ScalarType, got: list[Any], want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        numbers = number(type, g)
        pairs = zip(numbers, w, strict=True) if type.kind == "x" else [(numbers, w)]
        for x, y in pairs:
            if isinstance(x, float):
                assert same_number(x, y, 0, "f64")
            else:
                assert x % (1 << type.bits) == y % (1 << type.bits)


# ---------------------------------------- warps


class Warps:
    """Two warps, of which the second has idle lanes."""

    def __init__(self, active: np.ndarray) -> None:
        self.lanes = np.arange(LANES, dtype=np.uint32) % 32
        self.running = active
        self.synchronised: list[Any] = []

    def lane_id(self) -> np.ndarray:
        return self.lanes

    def active(self) -> np.ndarray:
        return self.running

    def warp_sync(self, membermask: Any) -> None:
        self.synchronised.append(membermask)

    def exchange(self, value: Any, source: np.ndarray, membermask: Any) -> np.ndarray:
        self.synchronised.append(membermask)
        assert ((source >= 0) & (source < 32)).all()
        base = np.arange(LANES) // 32 * 32
        return np.broadcast_to(value, (LANES,))[base + source.astype(int)]


# test_matrix.py runs those of whole matrices.
BETWEEN_LANES = [
    p
    for p in with_effect(Effect.WARP)
    if p.values[0].syntax not in cases_matrix.WARP.keys() | cases.ELSEWHERE
]


@pytest.mark.parametrize("row", BETWEEN_LANES)
def test_a_warp_row_exchanges_what_plain_python_says(row: Inst) -> None:
    for op, groups in itertools.product(ops_of(row, MEANINGS_PER_ROW), (1, 3)):
        rng = seeded(op)
        active = np.ones(LANES, dtype=bool)
        active[32:] = [rng.random() < 0.7 for _ in range(32)]
        active[40] = True
        operands = lanes_for(op, LANES, rng)
        lanes = np.arange(LANES)
        if "match" in op.opcode:  # one warp in which some agree, one in which all do
            operands["a"] = operands["a"][np.where(lanes < 32, lanes % 4, 0)]
        if "c" in operands:  # segments of 1, 2, 4, … lanes
            operands["c"] = np.array([31 | (32 - (1 << n % 6)) << 8 for n in range(LANES)], dtype=np.uint32)
        if "membermask" in operands:
            masks = [
                sum(1 << int(n) % 32 for n in lanes[same_group(lanes, lane, groups) & active])
                for lane in lanes
            ]
            masks = [mask if on else rng.getrandbits(32) for mask, on in zip(masks, active, strict=True)]
            operands["membermask"] = np.array(masks, dtype=np.uint32)
        machine = Warps(active)
        result = call(op, machine, operands)
        assert len(machine.synchronised) == ("membermask" in operands)
        check_warps(op, operands, active, result if isinstance(result, tuple) else (result,))


def same_group(lanes: np.ndarray, lane: int, groups: int) -> np.ndarray:
    """The lanes of the same warp that are in the lane's group; each group has a mask of its own."""
    same: np.ndarray = (lanes // 32 == lane // 32) & (lanes % groups == lane % groups)
    return same


def check_warps(op: Op, operands: dict[str, Any], active: np.ndarray, results: tuple[Any, ...]) -> None:
    meaning, m = cases.WARP[op.row.syntax], modifiers_of(op)
    for lane in np.flatnonzero(active):
        first = lane // 32 * 32
        warp = [
            SimpleNamespace(active=active[n], **{k: x[n].item() for k, x in operands.items()})
            for n in range(first, first + 32)
        ]
        want = meaning(m, int(lane) - first, warp)
        wants = want if isinstance(want, tuple) else (want,)
        for got, value, dest in zip(results, wants, op.dests, strict=True):
            assert dest.type is not None
            assert got.dtype == dest.type.dtype
            if dest.type.is_float:
                assert same_number(float(got[lane]), value, 0, "f32"), (op, lane)
                continue
            bits = max(dest.type.bits, 2)
            assert int(got[lane]) % (1 << bits) == int(value) % (1 << bits), (op, lane)


# ---------------------------------------- everything else

OTHERS = (Effect.ASYNC, Effect.BARRIER, Effect.FENCE, Effect.CONTROL, Effect.ADDRESS, Effect.TEXTURE)


class Recorder:
    """A machine that only writes down what it is asked to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.calls.append((name, *args, *([kwargs] if kwargs else [])))


@pytest.mark.parametrize(
    "row", [p for p in with_effect(*OTHERS) if p.values[0].syntax not in cases.ELSEWHERE]
)
def test_a_row_asks_the_machine_for_what_it_means(row: Inst) -> None:
    for op, truth in itertools.product(ops_of(row), (True, False)):
        operands = {o.name: asked(o, truth) for o in op.sources if o.literal is None}
        machine = Recorder()
        call(op, machine, operands)
        names = {**operands, **op.modifiers}
        if names.get("level") == "gl":
            names["level"] = "gpu"  # the older name of that scope
        wanted = [(call_[0], *(argument(names, x) for x in call_[1:])) for call_ in cases.CALLS[row.syntax]]
        assert machine.calls == wanted


def asked(operand: BoundOperand, truth: bool) -> Any:
    """A literal, a predicate, or a name for what the machine is given."""
    if operand.kind == "imm":
        return cases.IMMEDIATES[operand.name][0]
    if operand.address and operand.count:
        return f"lanes of {operand.name}", "coordinates"
    return np.bool_(truth) if operand.type is pred else f"lanes of {operand.name}"


def argument(names: dict[str, Any], x: Any) -> Any:
    """A name stands for the operand or the modifier; `=text` for itself; a function is asked."""
    if callable(x):
        return x(names)
    return (x[1:] if x.startswith("=") else names[x]) if isinstance(x, str) else x


@pytest.mark.parametrize(
    "row", [pytest.param(r, id=label(r)) for r in ROWS if r.resume and r.section.endswith(": bar")]
)
def test_a_barrier_that_combines_votes_gives_its_outcome_once_it_is_passed(row: Inst) -> None:
    assert row.resume is not None
    for op in ops_of(row):
        machine = Recorder()
        arguments = {**{o.name: f"lanes of {o.name}" for o in op.sources}, **op.modifiers}
        row.resume(machine=machine, **{n: x for n, x in arguments.items() if n in row.parameters})
        assert machine.calls == [("barrier_outcome", op.modifiers.get("op", "popc"))]


def test_an_operand_left_out_reaches_the_machine_as_none() -> None:
    machine = Recorder()
    call(table.recognise("bar.sync")[0], machine, {"a": 1})
    call(table.recognise("cp.async.cg.shared.global")[0], machine, {"dst": 2, "src": 3})
    assert machine.calls == [("barrier", 1, None, {"wait": True}), ("copy_async", 2, 3, 16, None)]


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with refused(ModifierError, "no instruction 'fmaa'; did you mean 'fma'?"):
        table.rows_named("fmaa")
