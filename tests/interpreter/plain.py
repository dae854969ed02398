"""A second machine, for tests: one thread at a time, on plain Python integers and fractions.

It shares nothing with `ptxgen.interpreter` or `ptxgen.isa` but the parser, has a small table of its
own, and knows only what is exact or exactly rounded: integers, f16, f32 and f64 arithmetic, memory,
control flow, calls, barriers and what lanes of a warp do together. Registers hold bits. A thread is
a generator that yields where it has to wait for others.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from ptxgen import ir

WARP = 32
STEPS = 200_000  # of one thread; more is an endless loop


class Format(NamedTuple):
    """An IEEE format: bits of its significand, exponents of its smallest and largest binade."""

    precision: int
    low: int
    high: int
    bits: int


F16 = Format(11, -14, 15, 16)
F32 = Format(24, -126, 127, 32)
F64 = Format(53, -1022, 1023, 64)
FORMATS = {"f16": F16, "f32": F32, "f64": F64}


class Num(NamedTuple):
    """A floating-point number: `num`, `inf` or `nan`. The sign matters for zeros and infinities."""

    kind: str
    negative: bool = False
    value: Fraction = Fraction(0)


NAN = Num("nan")


def num(value: Fraction, zero_negative: bool = False) -> Num:
    return Num("num", value < 0 if value else zero_negative, value)


def to_integer(value: Fraction, mode: str) -> int:
    match mode:
        case "rn":
            return round(value)  # ties to even
        case "rz":
            return math.trunc(value)
        case "rm":
            return math.floor(value)
        case _:
            return math.ceil(value)


def decode(bits: int, form: Format) -> Num:
    significand = form.precision - 1
    negative = bool(bits >> (form.bits - 1))
    exponent = bits >> significand & ((1 << (form.bits - form.precision)) - 1)
    fraction = bits & ((1 << significand) - 1)
    if exponent == form.high - form.low + 2:
        return NAN if fraction else Num("inf", negative)
    whole = fraction + ((1 << significand) if exponent else 0)
    value = Fraction(whole) * Fraction(2) ** (max(exponent, 1) - 1 + form.low - significand)
    return Num("num", negative, -value if negative else value)


def encode(x: Num, form: Format, mode: str = "rn") -> int:
    """The bits of the nearest number of the format in a rounding mode."""
    significand = form.precision - 1
    infinity = (form.high - form.low + 2) << significand
    sign = x.negative << (form.bits - 1)
    if x.kind == "nan":
        return infinity | 1 << (significand - 1)
    if x.kind == "inf":
        return sign | infinity
    size = abs(x.value)
    if not size:
        return sign
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    exponent = max(exponent, form.low)
    unit = Fraction(2) ** (exponent - significand)
    whole = abs(to_integer(x.value / unit, mode))
    if whole >> form.precision:
        whole, exponent = whole >> 1, exponent + 1
    if exponent > form.high:
        away = {"rn": True, "rz": False, "rm": x.negative, "rp": not x.negative}[mode]
        return sign | (infinity if away else infinity - 1)
    if not whole >> significand:
        return sign | whole
    return sign | (exponent - form.low + 1) << significand | (whole - (1 << significand))


def add(a: Num, b: Num, mode: str) -> Num:
    if "nan" in (a.kind, b.kind):
        return NAN
    if a.kind == "inf":
        return NAN if b.kind == "inf" and b.negative != a.negative else a
    if b.kind == "inf":
        return b
    same = a.negative if a.negative == b.negative else mode == "rm"
    return num(a.value + b.value, same)


def minus(a: Num) -> Num:
    return Num(a.kind, not a.negative, -a.value)


def mul(a: Num, b: Num) -> Num:
    negative = a.negative != b.negative
    if "nan" in (a.kind, b.kind):
        return NAN
    if "inf" in (a.kind, b.kind):
        finite = [x for x in (a, b) if x.kind == "num"]
        return NAN if any(not x.value for x in finite) else Num("inf", negative)
    return num(a.value * b.value, negative)


def div(a: Num, b: Num) -> Num:
    negative = a.negative != b.negative
    if "nan" in (a.kind, b.kind) or (a.kind == "inf" and b.kind == "inf"):
        return NAN
    if b.kind == "inf":
        return num(Fraction(0), negative)
    if a.kind == "inf":
        return Num("inf", negative)
    if not b.value:
        return Num("inf", negative) if a.value else NAN
    return num(a.value / b.value, negative)


def sqrt(a: Num) -> Num:
    """A number on the same side of every rounding boundary as the root."""
    if a.kind == "nan" or (a.negative and (a.kind == "inf" or a.value)):
        return NAN
    if a.kind == "inf" or not a.value:
        return a
    scale = 1 << (200 + a.value.denominator.bit_length())
    radicand = a.value * scale * scale
    root = math.isqrt(math.floor(radicand))
    exact = radicand == root * root
    return num(Fraction(2 * root + (not exact), 2 * scale))


def ordered(a: Num, b: Num) -> int:
    """-1, 0 or 1; neither is NaN."""
    keys = [(-1 if x.negative else 1, Fraction(0)) if x.kind == "inf" else (0, x.value) for x in (a, b)]
    return (keys[0] > keys[1]) - (keys[0] < keys[1])


def smaller(a: Num, b: Num, largest: bool) -> Num:
    """The minimum or the maximum; -0 is below +0, and a number wins over NaN."""
    if "nan" in (a.kind, b.kind):
        return b if a.kind == "nan" else a
    order = ordered(a, b) or b.negative - a.negative
    return a if (order > 0) == largest else b


FLOATS: dict[str, Callable[..., Num]] = {  # by name: the rounding mode, then the operands
    "add": lambda mode, a, b: add(a, b, mode),
    "sub": lambda mode, a, b: add(a, minus(b), mode),
    "mul": lambda _, a, b: mul(a, b),
    "div": lambda _, a, b: div(a, b),
    "fma": lambda mode, a, b, c: add(mul(a, b), c, mode),
    "sqrt": lambda _, a: sqrt(a),
    "rcp": lambda _, a: div(num(Fraction(1)), a),
    "neg": lambda _, a: minus(a),
    "abs": lambda _, a: minus(a) if a.negative else a,
    "min": lambda _, a, b: smaller(a, b, largest=False),
    "max": lambda _, a, b: smaller(a, b, largest=True),
}


# ---------------------------------------------------------------------------------------- integers


def width(type: str) -> int:
    return 1 if type == "pred" else int(type.lstrip("usfb"))


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def prmt(a: int, b: int, selector: int) -> int:
    data = (b << 32 | a).to_bytes(8, "little")
    out = 0
    for n in range(4):
        choice = selector >> 4 * n & 15
        byte = data[choice & 7]
        out |= ((0xFF if byte & 0x80 else 0) if choice & 8 else byte) << 8 * n
    return out


def lop3(a: int, b: int, c: int, table: int) -> int:
    return sum((table >> ((a >> n & 1) << 2 | (b >> n & 1) << 1 | (c >> n & 1)) & 1) << n for n in range(32))


def bfe(a: int, start: int, length: int, bits: int, is_signed: bool) -> int:
    start, length = start & 255, length & 255
    top = min(start + length - 1, bits - 1)
    sign = (a >> top & 1) if is_signed and length else 0
    return sum(
        ((a >> (start + n) & 1) if n < length and start + n < bits else sign) << n for n in range(bits)
    )


def bfi(a: int, b: int, start: int, length: int, bits: int) -> int:
    start, length = start & 255, length & 255
    field_ = ((1 << length) - 1) << start & ((1 << bits) - 1)
    return (b & ~field_) | (a << start & field_)


def shf(words: list[str], a: int, b: int, c: int) -> int:
    n = min(c, 32) if "clamp" in words else c & 31
    whole = b << 32 | a
    return (whole << n) >> 32 if "l" in words else whole >> n


INTEGERS: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": lambda a: ~a,
    "neg": lambda a: -a,
    "abs": abs,
    "cnot": lambda a: int(a == 0),
    "div": lambda a, b: math.trunc(Fraction(a, b)),
    "rem": lambda a, b: a - b * math.trunc(Fraction(a, b)),
    "sad": lambda a, b, c: c + abs(a - b),
    "popc": lambda a: a.bit_count(),
    "prmt": prmt,
    "lop3": lop3,
}

COMPARISONS: dict[str, Callable[[int], bool]] = {
    "eq": lambda o: o == 0,
    "ne": lambda o: o != 0,
    "lt": lambda o: o < 0,
    "le": lambda o: o <= 0,
    "gt": lambda o: o > 0,
    "ge": lambda o: o >= 0,
    "lo": lambda o: o < 0,
    "ls": lambda o: o <= 0,
    "hi": lambda o: o > 0,
    "hs": lambda o: o >= 0,
}
BOOLEANS: dict[str, Callable[[Any, Any], Any]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


def compare(words: list[str], a: Any, b: Any, is_float: bool) -> bool:
    word = next(w for w in words if w in COMPARISONS or w in ("num", "nan") or w[:-1] in COMPARISONS)
    if not is_float:
        return COMPARISONS[word]((a > b) - (a < b))
    unordered = "nan" in (a.kind, b.kind)
    if word in ("num", "nan"):
        return unordered == (word == "nan")
    if word not in COMPARISONS:  # ltu and its like: true if unordered
        return unordered or COMPARISONS[word[:-1]](ordered(a, b))
    return not unordered and COMPARISONS[word](ordered(a, b))


# ----------------------------------------------------------------------------------------- threads


@dataclass
class Wait:
    """What a thread waits for: the instruction, the lanes that take part (None: all threads of the
    CTA), and what it brings. `give` takes what it gets.
    """

    at: int
    words: list[str]
    members: int | None
    brought: tuple[int, ...]
    give: Callable[[Any], None]


@dataclass
class Frame:
    """One call of a routine."""

    routine: ir.Kernel | ir.Function
    registers: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)  # into the thread's local memory


class Memory:
    """Global memory: buffers at addresses."""

    def __init__(self, buffers: list[bytearray]) -> None:
        self.buffers = buffers

    def address(self, number: int) -> int:
        return (number + 1) << 40

    def find(self, address: int) -> tuple[bytearray, int]:
        return self.buffers[(address >> 40) - 1], address & ((1 << 40) - 1)


class Thread:
    """One thread of a kernel; `run` is what it does."""

    def __init__(self, machine: Machine, tid: int, cta: int, shared: bytearray) -> None:
        self.machine = machine
        self.tid = tid
        self.cta = cta
        self.shared = shared
        self.local = bytearray()
        self.carry = 0
        self.steps = 0
        self.frame: Frame

    def run(self) -> Generator[Wait, None, None]:
        yield from self.routine(Frame(self.machine.kernel), [])

    def routine(self, frame: Frame, given: list[bytes]) -> Generator[Wait, None, tuple[bool, list[bytes]]]:
        """Run a routine; whether the thread goes on, and the results' bytes."""
        source = frame.routine
        self.enter(frame, given)
        if not (yield from self.walk(source.body or ())):
            return False, []
        out = []
        for result in getattr(source, "results", ()):
            start = frame.symbols[result.name]
            out.append(bytes(self.local[start : start + width(result.type) // 8]))
        return True, out

    def enter(self, frame: Frame, given: list[bytes]) -> None:
        """Make room for a routine's variables, with its arguments."""
        source = frame.routine
        params = () if isinstance(source, ir.Kernel) else source.params
        results = () if isinstance(source, ir.Kernel) else source.results
        for name, nbytes in [
            *((v.name, v.nbytes) for v in source.variables),
            *((p.name, width(p.type) // 8) for p in (*params, *results)),
        ]:
            self.local += bytes(-len(self.local) % 16)
            frame.symbols[name] = len(self.local)
            self.local += bytes(nbytes)
        for param, data in zip(params, given, strict=True):
            at = frame.symbols[param.name]
            self.local[at : at + len(data)] = data
        self.frame = frame

    def walk(self, body: tuple[ir.Statement, ...]) -> Generator[Wait, None, bool]:
        """Execute statements; whether the thread goes on after them."""
        labels = {s.name: n for n, s in enumerate(body) if isinstance(s, ir.Label)}
        tables = {s.name: s.targets for s in body if isinstance(s, ir.Targets)}
        at = 0
        while at < len(body):
            statement = body[at]
            at += 1
            if not isinstance(statement, ir.Instr) or not self.goes(statement):
                continue
            self.steps += 1
            assert self.steps < STEPS, "an endless loop"
            words = statement.opcode.split(".")
            match words[0]:
                case "bra":
                    at = labels[statement.operands[0].name]  # type: ignore[union-attr]
                case "brx":
                    index, table = statement.operands
                    chosen = tables[table.name][self.get(index, "u32")]  # type: ignore[union-attr]
                    at = labels[chosen]
                case "exit" | "ret":
                    return words[0] == "ret"
                case "call":
                    if not (yield from self.call(statement)):
                        return False
                case head if head in COLLECTIVE:
                    yield self.wait(id(statement), words, statement)
                case _:
                    self.execute(words, statement)
        return True

    def call(self, instr: ir.Instr) -> Generator[Wait, None, bool]:
        operands = list(instr.operands)
        got = operands.pop(0)
        target = operands.pop(0)
        arguments = operands[0]
        assert isinstance(got, ir.Arguments)
        assert isinstance(arguments, ir.Arguments)
        functions = self.machine.module.functions
        if isinstance(target, ir.Symbol):
            callee = next(f for f in functions if f.name == target.name)
        else:
            callee = functions[self.get(target, "u64") - 1]
        caller = self.frame
        data = []
        for item, param in zip(arguments.items, callee.params, strict=True):
            start = caller.symbols[item.name]  # type: ignore[union-attr]  # a variable
            data.append(bytes(self.local[start : start + width(param.type) // 8]))
        height = len(self.local)
        goes_on, results = yield from self.routine(Frame(callee), data)
        self.frame = caller
        del self.local[height:]
        for item, value in zip(got.items, results, strict=False):
            start = caller.symbols[item.name]  # type: ignore[union-attr]
            self.local[start : start + len(value)] = value
        return goes_on

    # ---- registers

    def goes(self, instr: ir.Instr) -> bool:
        guard = instr.guard
        return guard is None or bool(self.frame.registers[guard.register.name]) != guard.negated

    def get(self, operand: Any, type: str) -> int:
        """The bits of an operand as a type of so many bits."""
        mask = (1 << width(type)) - 1
        match operand:
            case ir.Reg(name):
                return self.frame.registers[name] & mask
            case ir.Not(register):
                return 1 - self.frame.registers[register.name]
            case ir.IntImm(value):
                return value & mask
            case ir.FloatImm(bits):
                return bits
            case ir.Special(name):
                return self.special(name)
            case ir.Symbol(name):
                return self.symbol(name)
        raise AssertionError(operand)  # no program drawn has another

    def number(self, operand: Any, type: str) -> int:
        bits = self.get(operand, type)
        return signed(bits, width(type)) if type[0] == "s" else bits

    def put(self, operand: Any, type: str, value: int) -> None:
        if not isinstance(operand, ir.Reg):
            assert isinstance(operand, ir.Sink)
            return
        bits = value & ((1 << width(type)) - 1)
        if type[0] == "s":
            bits = signed(bits, width(type))
        self.frame.registers[operand.name] = bits & ((1 << width(operand.declared)) - 1)

    def special(self, name: str) -> int:
        machine = self.machine
        return {
            "%tid.x": self.tid,
            "%ctaid.x": self.cta,
            "%ntid.x": machine.block,
            "%nctaid.x": machine.grid,
            "%laneid": self.tid % WARP,
            "%lanemask_lt": (1 << self.tid % WARP) - 1,
        }[name]

    def symbol(self, name: str) -> int:
        if name in self.frame.symbols:
            return self.frame.symbols[name]
        names = [f.name for f in self.machine.module.functions]
        if name in names:
            return names.index(name) + 1
        return self.machine.shared_symbols[name]

    # ---- memory

    def place(self, words: list[str], address: Any) -> tuple[bytearray, int]:
        """The memory and the offset in it that an address means."""
        space = next(w for w in words if w in ("global", "shared", "local", "param"))
        base = address.base
        if space == "param" and isinstance(self.frame.routine, ir.Kernel):
            names = [p.name for p in self.frame.routine.params]
            if base.name in names:
                return self.machine.params, 8 * names.index(base.name) + address.offset
        at = self.symbol(base.name) + base.offset if isinstance(base, ir.Symbol) else None
        at = self.frame.registers[base.name] if at is None else at
        at = (at + address.offset) & ((1 << 64) - 1)
        if space == "global":
            return self.machine.memory.find(at)
        return (self.shared if space == "shared" else self.local), at

    def load(self, words: list[str], instr: ir.Instr) -> None:
        type = words[-1]
        to, address = instr.operands
        memory, at = self.place(words, address)
        nbytes = width(type) // 8
        for n, register in enumerate(to.items if isinstance(to, ir.Vector) else (to,)):
            where = at + n * nbytes
            assert where + nbytes <= len(memory)
            self.put(register, type, int.from_bytes(memory[where : where + nbytes], "little"))

    def store(self, words: list[str], instr: ir.Instr) -> None:
        type = words[-1]
        address, what = instr.operands
        memory, at = self.place(words, address)
        nbytes = width(type) // 8
        for n, value in enumerate(what.items if isinstance(what, ir.Vector) else (what,)):
            where = at + n * nbytes
            assert where + nbytes <= len(memory)
            memory[where : where + nbytes] = self.get(value, type).to_bytes(nbytes, "little")

    def update(self, words: list[str], instr: ir.Instr) -> None:
        operands = list(instr.operands)
        result = operands.pop(0) if words[0] == "atom" else ir.Sink()
        address, value = operands
        type = words[-1]
        memory, at = self.place(words, address)
        nbytes = width(type) // 8
        old = int.from_bytes(memory[at : at + nbytes], "little")
        number = signed(old, 8 * nbytes) if type[0] == "s" else old
        arguments = self.number(value, type)
        new = (
            (0 if old >= arguments else old + 1)
            if words[-2] == "inc"
            else INTEGERS[words[-2]](number, arguments)
        )
        memory[at : at + nbytes] = (new & ((1 << 8 * nbytes) - 1)).to_bytes(nbytes, "little")
        self.put(result, type, old)

    # ---- instructions

    def execute(self, words: list[str], instr: ir.Instr) -> None:
        head, type = words[0], words[-1]
        if head in ("ld", "st", "atom", "red"):
            {"ld": self.load, "st": self.store}.get(head, self.update)(words, instr)
        elif head in ("setp", "selp", "cvt", "mov"):
            getattr(self, head)(words, instr.operands)
        elif type in FORMATS:
            to, *operands = instr.operands
            self.put(to, type, self.floating(words, type, operands))
        else:
            to, *operands = instr.operands
            wide = {"wide": {"16": "32", "32": "64"}}.get(words[1], {})
            into = type[0] + wide.get(type[1:], type[1:])
            if head in ("popc", "clz"):
                into = "u32"
            self.put(to, into, self.integer(words, type, operands))

    def integer(self, words: list[str], type: str, operands: list[Any]) -> int:
        head, bits = words[0], width(type)
        if head in ("shl", "shr", "bfe", "bfi"):
            return self.shifted(words, type, operands)
        if type == "pred":
            return INTEGERS[head](*(self.get(o, type) for o in operands)) & 1
        wide = words[1] == "wide"
        third = type[0] + str(2 * bits) if wide else type
        types = [type, type, third, "u32"]
        a, *rest = (self.number(o, t) for o, t in zip(operands, types, strict=False))
        match head:
            case "mul" | "mad":
                product = a * rest[0]
                if words[1] == "hi":
                    product >>= bits
                return product + (rest[1] if head == "mad" else 0)
            case "add" | "addc" | "sub" | "subc" if "cc" in words or head.endswith("c"):
                sign = 1 if head.startswith("add") else -1
                held = self.carry if head.endswith("c") else 0
                total = (a & ((1 << bits) - 1)) + sign * ((rest[0] & ((1 << bits) - 1)) + held)
                if "cc" in words:
                    self.carry = total >> bits & 1
                return total
            case "clz":
                return bits - a.bit_length()
            case "brev":
                return int(f"{a:0{bits}b}"[::-1], 2)
            case "shf":
                return shf(words, a, rest[0], rest[1])
        return INTEGERS[head](a, *rest)

    def shifted(self, words: list[str], type: str, operands: list[Any]) -> int:
        head, bits = words[0], width(type)
        a = self.get(operands[0], type)
        if head in ("shl", "shr"):
            n = min(self.get(operands[1], "u32"), bits)
            whole = self.number(operands[0], type)
            return whole << n if head == "shl" else whole >> n
        if head == "bfe":
            start, length = (self.get(o, "u32") for o in operands[1:])
            return bfe(a, start, length, bits, type[0] == "s")
        start, length = (self.get(o, "u32") for o in operands[2:])
        return bfi(a, self.get(operands[1], type), start, length, bits)

    def floating(self, words: list[str], type: str, operands: list[Any]) -> int:
        form = FORMATS[type]
        ftz = "ftz" in words
        values = [flushed(decode(self.get(o, type), form), form, ftz) for o in operands]
        mode = next((w for w in words if w in ("rz", "rm", "rp")), "rn")
        result = FLOATS[words[0]](mode, *values)
        return finished(result, form, mode, ftz, "sat" in words)

    def setp(self, words: list[str], operands: tuple[Any, ...]) -> None:
        to, left, right, *rest = operands
        type = words[-1]
        if type in FORMATS:
            form, ftz = FORMATS[type], "ftz" in words
            pair = [flushed(decode(self.get(o, type), form), form, ftz) for o in (left, right)]
            truth = compare(words[1:], *pair, is_float=True)
        else:
            a, b = (self.number(o, type) for o in (left, right))
            truth = compare(words[1:], a, b, is_float=False)
        first, second = int(truth), int(not truth)
        if rest:
            combine = BOOLEANS[next(w for w in words[2:] if w in BOOLEANS)]
            third = self.get(rest[0], "pred")
            first, second = combine(first, third), combine(second, third)
        halves = (to.first, to.second) if isinstance(to, ir.Pair) else (to,)
        for half, value in zip(halves, (first, second), strict=False):
            self.put(half, "pred", value)

    def selp(self, words: list[str], operands: tuple[Any, ...]) -> None:
        to, a, b, choice = operands
        self.put(to, words[-1], self.get(a if self.get(choice, "pred") else b, words[-1]))

    def mov(self, words: list[str], operands: tuple[Any, ...]) -> None:
        to, what = operands
        type = words[-1]
        if isinstance(what, ir.Vector):
            part = f"b{width(type) // len(what.items)}"
            parts = [self.get(o, part) << n * width(part) for n, o in enumerate(what.items)]
            self.put(to, type, sum(parts))
        elif isinstance(to, ir.Vector):
            whole, bits = self.get(what, type), width(type) // len(to.items)
            for n, register in enumerate(to.items):
                self.put(register, f"b{bits}", whole >> n * bits)
        else:
            self.put(to, type, self.get(what, type))

    def cvt(self, words: list[str], operands: tuple[Any, ...]) -> None:
        to, what = operands
        into, source = words[-2:]
        ftz, sat = "ftz" in words, "sat" in words
        mode = next((w for w in words if w[:2] in ("rn", "rz", "rm", "rp")), "rn")[:2]
        whole = any(len(w) == 3 and w[0] == "r" and w[2] == "i" for w in words)
        if source not in FORMATS:
            value = self.number(what, source)
            if into not in FORMATS:
                self.put(to, into, limited(value, into) if sat else value)
                return
            self.put(to, into, finished(num(Fraction(value)), FORMATS[into], mode, False, sat))
            return
        x = decode(self.get(what, source), FORMATS[source])
        x = flushed(x, FORMATS[source], ftz and source == "f32")
        if into in FORMATS:
            if whole and x.kind == "num":
                x = num(Fraction(to_integer(x.value, mode)), x.negative)
            self.put(to, into, finished(x, FORMATS[into], mode, ftz and into == "f32", sat))
            return
        if x.kind == "nan":  # PTX ISA, section "cvt", "Floating Point Notes"
            top = source == "f64" or width(into) == 64
            self.put(to, into, top << (width(into) - 1))
        elif x.kind == "inf":
            self.put(to, into, limited(-(1 << 80) if x.negative else 1 << 80, into))
        else:
            self.put(to, into, limited(to_integer(x.value, mode), into))

    # ---- with others

    def wait(self, at: int, words: list[str], instr: ir.Instr) -> Wait:
        """What a barrier or an exchange with other lanes brings and gets."""
        head = words[0]
        operands = list(instr.operands)
        frame = self.frame
        if head == "bar" and words[1] == "warp":
            return Wait(at, words, self.get(operands[0], "b32"), (), lambda _: None)
        if head == "bar" and words[1] == "sync":
            return Wait(at, words, None, (), lambda _: None)
        to = operands.pop(0)
        type = "pred" if head == "vote" or words[-1] == "pred" else words[-1]

        def give(got: Any) -> None:
            kept, self.frame = self.frame, frame
            halves = (to.first, to.second) if isinstance(to, ir.Pair) else (to,)
            out = "b32" if "ballot" in words or head == "match" else words[-1]
            for half, value, kind in zip(halves, got, (out, "pred"), strict=False):
                self.put(half, kind, value)
            self.frame = kept

        if head == "bar":  # bar.red.op.type d, a, c
            return Wait(at, words, None, (self.get(operands[1], "pred"),), give)
        members = self.get(operands.pop(), "b32")
        brought = [self.number(operands[0], type)]
        brought += [self.get(o, "b32") for o in operands[1:]]
        return Wait(at, words, members, tuple(brought), give)


COLLECTIVE = frozenset({"bar", "shfl", "vote", "match", "redux"})


def flushed(x: Num, form: Format, ftz: bool) -> Num:
    tiny = ftz and x.kind == "num" and abs(x.value) < Fraction(2) ** form.low
    return num(Fraction(0), x.negative) if tiny else x


def finished(x: Num, form: Format, mode: str, ftz: bool, sat: bool) -> int:
    """A result's bits, after rounding and what .ftz and .sat do."""
    if sat:
        if x.kind == "nan" or x.negative:
            return 0
        if x.kind == "inf" or x.value > 1:
            x = num(Fraction(1))
    bits = encode(x, form, mode)
    return encode(flushed(decode(bits, form), form, ftz), form)


def limited(value: int, type: str) -> int:
    bits = width(type)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if type[0] == "s" else (0, (1 << bits) - 1)
    return min(max(value, low), high)


# -------------------------------------------------------------------------------------- the machine


class Machine:
    """Runs a kernel of a parsed module on buffers, which are its parameters in order."""

    def __init__(self, module: ir.Module, grid: int, block: int, buffers: list[bytearray]) -> None:
        self.module = module
        self.kernel = module.kernels[0]
        self.grid = grid
        self.block = block
        self.memory = Memory(buffers)
        self.params = bytearray(
            b"".join(struct.pack("<Q", self.memory.address(n)) for n in range(len(buffers)))
        )
        self.shared_symbols: dict[str, int] = {}
        self.shared_bytes = 0
        mine = [v for v in module.variables if v.space == "shared"]
        for s in (*self.kernel.shared, *mine):
            self.shared_symbols[s.name] = self.shared_bytes
            self.shared_bytes += s.nbytes + -s.nbytes % 16

    def run(self) -> None:
        for cta in range(self.grid):
            shared = bytearray(self.shared_bytes)
            threads = [Thread(self, tid, cta, shared) for tid in range(self.block)]
            self.run_cta({t.tid: t.run() for t in threads})

    def run_cta(self, running: dict[int, Iterator[Wait]]) -> None:
        waits: dict[int, Wait] = {}
        while running:
            for tid in [t for t in running if t not in waits]:
                wait = next(running[tid], None)
                if wait is None:
                    del running[tid]
                else:
                    waits[tid] = wait
            groups = [g for tid in waits if (g := self.group(tid, waits, running))]
            assert groups or not running, "a deadlock"
            for group in groups:
                if group[0] in waits:
                    meet({t: waits.pop(t) for t in group})

    def group(self, tid: int, waits: dict[int, Wait], running: dict[int, Iterator[Wait]]) -> list[int]:
        """The threads that meet a thread where it waits; none if some are not there."""
        wait = waits[tid]
        first = tid - tid % WARP
        wanted = [
            t
            for t in running
            if wait.members is None or (t - t % WARP == first and wait.members >> t % WARP & 1)
        ]
        here = [t for t in wanted if t in waits and waits[t].at == wait.at]
        return here if len(here) == len(wanted) else []


def meet(waits: dict[int, Wait]) -> None:
    """Threads that are all at the same instruction exchange what they bring."""
    words = next(iter(waits.values())).words
    kind = words[0] if words[0] != "bar" else words[1]
    brought = {tid: w.brought for tid, w in waits.items()}
    for tid, wait in waits.items():
        wait.give(EXCHANGES[kind](words, tid, brought) if kind in EXCHANGES else ())


def shfl(words: list[str], tid: int, brought: dict[int, tuple[int, ...]]) -> tuple[int, int]:
    _, b, c = brought[tid]
    lane, first = tid % WARP, tid - tid % WARP
    segment, clamp = c >> 8 & 31, c & 31
    low, high = lane & segment, (lane & segment) | (clamp & ~segment)
    match words[2]:
        case "up":
            source = lane - (b & 31)
            inside = source >= high
        case "down":
            source = lane + (b & 31)
            inside = source <= high
        case "bfly":
            source = lane ^ (b & 31)
            inside = source <= high
        case _:
            source = low | (b & 31 & ~segment)
            inside = source <= high
    return brought[first + (source if inside else lane)][0], int(inside)


def vote(words: list[str], _: int, brought: dict[int, tuple[int, ...]]) -> tuple[int]:
    truths = [v[0] for v in brought.values()]
    match words[2]:
        case "all":
            return (int(all(truths)),)
        case "any":
            return (int(any(truths)),)
        case "uni":
            return (int(len(set(truths)) == 1),)
        case _:
            return (sum(v[0] << t % WARP for t, v in brought.items()),)


def match_(words: list[str], tid: int, brought: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    same = sum(1 << t % WARP for t, v in brought.items() if v[0] == brought[tid][0])
    everyone = sum(1 << t % WARP for t in brought)
    if words[1] == "any":
        return (same,)
    return (same if same == everyone else 0, int(same == everyone))


def redux(words: list[str], _: int, brought: dict[int, tuple[int, ...]]) -> tuple[int]:
    total, *rest = (v[0] for v in brought.values())
    for value in rest:
        total = INTEGERS[words[2]](total, value)
    return (total,)


def barrier_reduction(words: list[str], _: int, brought: dict[int, tuple[int, ...]]) -> tuple[int]:
    truths = [v[0] for v in brought.values()]
    kinds = {"popc": sum(truths), "and": int(all(truths)), "or": int(any(truths))}
    return (kinds[words[2]],)


Exchange = Callable[[list[str], int, dict[int, tuple[int, ...]]], tuple[int, ...]]
EXCHANGES: dict[str, Exchange] = {
    "shfl": shfl,
    "vote": vote,
    "match": match_,
    "redux": redux,
    "red": barrier_reduction,
}
