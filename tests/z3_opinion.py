"""A second opinion on proofs of shared memory and barriers: z3 looks for a counterexample.

The text is read here once more, line by line, and shares nothing with the provers: a register is a bit
vector of z3, a path the condition under which it is taken. Loops are unrolled, until the text was passed
`PASSES` times in all, so that agreement covers their first iterations. What is not modelled (loads, floats,
shuffles) is a fresh value; a counterexample must be one for all of these, otherwise the goal is `unsure`.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import z3

AGREED, REFUTED, UNSURE, NOT_ASKED = "agreed", "refuted", "unsure", "not asked"
PASSES = 3  # over the text: two jumps back
STEPS = 20_000_000  # of z3 for a question, after which it is unsure; some seconds
BASE = 1 << 20  # the address of dynamic shared memory, a multiple of every alignment
FRESH = "fresh"

_LINE = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*);")
_REGION = re.compile(r"// region (\w+): offset (\d+), (\d+) bytes")
_ROWS = {"x1": 8, "x2": 16, "x4": 32}  # lanes whose address a matrix instruction uses
_ROW_BYTES = 16


@dataclass
class Goal:
    """What a proof claims: a thread that comes to the line on `path` reads or writes within the region."""

    line: int
    path: Any
    wrong: Any


@dataclass
class _State:
    """The values of registers on the paths that come to a line, and the condition of these paths."""

    path: Any
    values: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Instruction:
    """An instruction that writes a value of `width` bits; `value` reads an operand with a width."""

    op: list[str]
    operands: list[str]
    width: int
    signed: bool
    value: Callable[[str, int], Any]


class Reader:
    """The text of a kernel, executed with unknown arguments by an unknown thread."""

    def __init__(self, text: str, threads: int) -> None:
        self.lines = text.splitlines()
        self.regions = {name: (int(at), int(size)) for name, at, size in _REGION.findall(text)}
        self.labels = {line[:-1]: n for n, line in enumerate(self.lines) if re.fullmatch(r"\$\w+:", line)}
        self.start = self.lines.index("{") + 1
        self.thread = z3.BitVec("tid", 32)
        self.domain = z3.ULT(self.thread, threads)
        self.accesses: list[tuple[int, Any, Any, int]] = []  # line, path, address, bytes
        self.barriers: list[tuple[int, Any]] = []
        self._fresh = 0
        self._run()

    def _run(self) -> None:
        waiting: dict[tuple[int, int], _State] = {(0, self.start): _State(z3.BoolVal(True))}
        for copy in range(PASSES):
            state: _State | None = None
            for number in range(self.start, len(self.lines)):
                came = waiting.pop((copy, number), None)
                if came is not None:
                    state = came if state is None else _merged(state, came)
                line = _LINE.fullmatch(self.lines[number].strip().partition("//")[0].strip())
                if state is None or line is None:
                    continue
                negated, guard, opcode, rest = line.groups()
                on = z3.BoolVal(True) if guard is None else self._value(state, guard, 1)
                on = z3.Not(on) if negated else on
                if opcode.split(".")[0] in ("bra", "ret", "exit", "trap"):
                    if opcode.startswith("bra"):
                        target = self.labels[rest.strip()]
                        at = (copy + (target <= number), target)
                        jumped = _State(_and(state.path, on), dict(state.values))
                        waiting[at] = _merged(waiting[at], jumped) if at in waiting else jumped
                    state.path = _and(state.path, z3.Not(on))
                    if guard is None:
                        state = None
                    continue
                self._execute(state, number + 1, on, opcode.split("."), _operands(rest))

    # ------------------------------------------------------------------------------- instructions

    def _execute(self, state: _State, line: int, on: Any, op: list[str], operands: list[str]) -> None:
        path = _and(state.path, on)
        if op[0] in ("bar", "barrier") and operands == ["0"]:
            self.barriers.append((line, path))
        self._access(state, line, path, op, operands)
        if not operands or not operands[0].startswith(("%", "{")):
            return
        results = [r for r in re.findall(r"%\w+", operands[0]) if not r.startswith(("%tid", "%ctaid"))]
        if op[0] in ("st", "red", "wgmma", "bar", "barrier", "setmaxnreg", "tcgen05", "cp", "stmatrix"):
            return
        value = self._result(state, op, operands) if len(results) == 1 else None
        if op[0] == "mbarrier" and op[1] in ("try_wait", "test_wait"):
            value = z3.BoolVal(True)  # provided that the wait ends, as the provers say
        for name in results:
            new = value if value is not None else self._unknown(_width(name))
            old = state.values.get(name)
            state.values[name] = new if z3.is_true(on) or old is None else z3.If(on, new, old)

    def _access(self, state: _State, line: int, path: Any, op: list[str], operands: list[str]) -> None:
        shared = any(part.startswith("shared") for part in op)
        where = next((o for o in operands if o.startswith("[")), None)
        if not shared or where is None or "tensor" in op or "bulk" in op:
            return
        if op[0] in ("ld", "st", "atom", "red"):
            vector = next((int(p[1]) for p in op if p in ("v2", "v4", "v8")), 1)
            nbytes = vector * int(op[-1][1:]) // 8
        elif op[0] == "cp":
            nbytes = int(operands[2])
        elif op[0] in ("ldmatrix", "stmatrix"):
            nbytes = _ROW_BYTES
            count = next(_ROWS[p] for p in op if p in _ROWS)
            path = _and(path, z3.ULT(self.thread & 31, count))
        elif op[0] == "mbarrier":
            nbytes = 8
        else:
            return
        self.accesses.append((line, path, self._address(state, where), nbytes))

    def _address(self, state: _State, text: str) -> Any:
        base, _, offset = text[1:-1].replace(" ", "").partition("+")
        value = self._value(state, base, _width(base) if base.startswith("%") else 32)
        if value.size() == 64:
            value = z3.Extract(31, 0, value)
        return value + int(offset or 0)

    def _result(self, state: _State, op: list[str], operands: list[str]) -> Any:
        """The value that an instruction writes; None if it is not modelled."""
        kind = op[-1]
        if not re.fullmatch(r"[bsu](8|16|32|64)|pred", kind):
            return None
        width = 1 if kind == "pred" else int(kind[1:])
        compute = getattr(self, f"_of_{op[0]}", self._of_arithmetic)
        value = functools.partial(self._value, state)
        return compute(_Instruction(op, operands, width, kind.startswith("s"), value))

    def _of_ld(self, of: _Instruction) -> Any:
        return z3.BitVec(f"param {of.operands[1]}", of.width) if "param" in of.op else None

    def _of_mov(self, of: _Instruction) -> Any:
        return of.value(of.operands[1], of.width)

    _of_cvta = _of_mov

    def _of_cvt(self, of: _Instruction) -> Any:
        return _converted(of)

    def _of_setp(self, of: _Instruction) -> Any:
        if len(of.op) != 3 or of.op[1] not in _ORDERS:
            return None
        a, b = (of.value(o, of.width) for o in of.operands[1:3])
        return _ORDERS[of.op[1]](a, b, of.signed)

    def _of_selp(self, of: _Instruction) -> Any:
        a, b = (of.value(o, of.width) for o in of.operands[1:3])
        return z3.If(of.value(of.operands[3], 1), a, b)

    def _of_shl(self, of: _Instruction) -> Any:
        a, by = of.value(of.operands[1], of.width), of.value(of.operands[2], 32)
        by = z3.ZeroExt(of.width - 32, by) if of.width > 32 else by
        return a << by if of.op[0] == "shl" else (a >> by if of.signed else z3.LShR(a, by))

    _of_shr = _of_shl

    def _of_arithmetic(self, of: _Instruction) -> Any:
        values = [of.value(o, of.width) for o in of.operands[1:]]
        if of.width == 1 and of.op[0] in _LOGIC:
            return _LOGIC[of.op[0]](*values)
        if of.op[0] in _UNARY and len(values) == 1:
            return _UNARY[of.op[0]](*values)
        return _BINARY[of.op[0]](*values, of.signed) if of.op[0] in _BINARY and len(of.op) == 2 else None

    def _of_mul(self, of: _Instruction) -> Any:
        a, b = (of.value(o, of.width) for o in of.operands[1:3])
        if of.op[1] == "wide":
            extend = z3.SignExt if of.signed else z3.ZeroExt
            product = extend(of.width, a) * extend(of.width, b)
        elif of.op[1] == "lo":
            product = a * b
        else:
            return None
        return product + of.value(of.operands[3], product.size()) if of.op[0] == "mad" else product

    _of_mad = _of_mul

    def _value(self, state: _State, text: str, width: int) -> Any:
        """An operand as a bit vector, or as a Boolean if its width is 1."""
        if text.startswith("!"):
            return z3.Not(self._value(state, text[1:], 1))
        if text in ("%tid.x", "%laneid"):
            return self.thread if text == "%tid.x" else self.thread & 31
        if text.startswith("%"):
            if text not in state.values:
                special = "." in text or not text[-1].isdigit()
                known = z3.BitVec(text, width) if special and "ctaid" in text else self._unknown(width)
                state.values[text] = known
            value = state.values[text]
            if width > 1 and value.size() > width:
                value = z3.Extract(width - 1, 0, value)
            return z3.ZeroExt(width - value.size(), value) if width > 1 and value.size() < width else value
        if re.fullmatch(r"-?(0x[\da-fA-F]+|\d+)", text):
            return z3.BoolVal(bool(int(text, 0))) if width == 1 else z3.BitVecVal(int(text, 0), width)
        return z3.BitVecVal(BASE, width) if text == "smem" else self._unknown(width)

    def _unknown(self, width: int) -> Any:
        self._fresh += 1
        name = f"{FRESH} {self._fresh}"
        return z3.Bool(name) if width == 1 else z3.BitVec(name, width)


_BINARY = {
    "add": lambda a, b, _: a + b,
    "sub": lambda a, b, _: a - b,
    "and": lambda a, b, _: a & b,
    "or": lambda a, b, _: a | b,
    "xor": lambda a, b, _: a ^ b,
    "div": lambda a, b, signed: a / b if signed else z3.UDiv(a, b),
    "rem": lambda a, b, signed: z3.SRem(a, b) if signed else z3.URem(a, b),
    "min": lambda a, b, signed: z3.If(a < b if signed else z3.ULT(a, b), a, b),
    "max": lambda a, b, signed: z3.If(a < b if signed else z3.ULT(a, b), b, a),
}


_UNARY = {"not": lambda a: ~a, "neg": lambda a: -a}
_LOGIC = {"and": z3.And, "or": z3.Or, "xor": z3.Xor, "not": z3.Not}
_ORDERS = {
    "eq": lambda a, b, _: a == b,
    "ne": lambda a, b, _: a != b,
    "lt": lambda a, b, signed: a < b if signed else z3.ULT(a, b),
    "le": lambda a, b, signed: a <= b if signed else z3.ULE(a, b),
    "gt": lambda a, b, signed: a > b if signed else z3.UGT(a, b),
    "ge": lambda a, b, signed: a >= b if signed else z3.UGE(a, b),
}


def _converted(of: _Instruction) -> Any:
    to, source = of.op[-2], of.op[-1]
    if not re.fullmatch(r"[su](8|16|32|64)", to) or len(of.op) != 3:
        return None
    value = of.value(of.operands[1], int(source[1:]))
    wanted = int(to[1:])
    if wanted <= value.size():
        return z3.Extract(wanted - 1, 0, value)
    return (z3.SignExt if source[0] == "s" else z3.ZeroExt)(wanted - value.size(), value)


def _width(name: str) -> int:
    return next((n for start, n in _PREFIXES.items() if name.startswith(start)), 32)


_PREFIXES = {"%rd": 64, "%rs": 16, "%p": 1, "%fd": 64}


def _operands(text: str) -> list[str]:
    return [part.strip() for part in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,{}\[\]]+", text) if part.strip()]


def _and(a: Any, b: Any) -> Any:
    if z3.is_true(a) or z3.is_true(b):
        return b if z3.is_true(a) else a
    return z3.And(a, b)


def _merged(a: _State, b: _State) -> _State:
    values = dict(a.values)
    for name, value in b.values.items():
        before = values.get(name)
        values[name] = value if before is None or before.eq(value) else z3.If(b.path, value, before)
    return _State(z3.Or(a.path, b.path), values)


# ---------------------------------------------------------------------------------------- questions


def opinion(text: str, proof: Any) -> dict[tuple[str, int], str]:
    """The opinion on each access and each barrier that a proof of the text calls proved, by kind and line."""
    reader = Reader(text, proof.block[0])
    answers: dict[tuple[str, int], str] = {}
    claimed = {v.line: v for v in proof.accesses if v.verdict == "proved"}
    goals: dict[int, list[Goal]] = {line: [] for line in claimed}
    for line, path, address, nbytes in reader.accesses:
        if line in claimed and claimed[line].allocation in reader.regions:
            at, size = reader.regions[claimed[line].allocation]
            offset = address - (BASE + at)
            wrong = z3.Or(z3.UGT(offset, size - nbytes), z3.URem(address, nbytes & -nbytes) != 0)
            goals[line].append(Goal(line, path, z3.And(reader.domain, wrong)))
    answers |= {("access", line): _asked(of) for line, of in goals.items()}
    proved = {v.line for v in proof.barriers if v.verdict == "proved"}
    other = z3.BitVec("other tid", 32)
    arrivals: dict[int, list[Goal]] = {line: [] for line in proved}
    for line, path in reader.barriers:
        if line in arrivals:
            missing = z3.Not(z3.substitute(path, (reader.thread, other)))
            both = z3.And(reader.domain, z3.substitute(reader.domain, (reader.thread, other)))
            arrivals[line].append(Goal(line, path, z3.And(both, missing)))
    return answers | {("barrier", line): _asked(of) for line, of in arrivals.items()}


def _asked(goals: Sequence[Goal]) -> str:
    """Whether there is a counterexample: first one on any path, which is the simpler question."""
    if not goals:
        return NOT_ASKED
    if _solver(z3.Or(*(goal.wrong for goal in goals))).check() == z3.unsat:
        return AGREED
    whole = z3.Or(*(z3.And(goal.path, goal.wrong) for goal in goals))
    solver = _solver(whole)
    answer = solver.check()
    if answer == z3.sat and _holds_whatever_is_read(whole, solver.model()):
        return REFUTED
    return AGREED if answer == z3.unsat else UNSURE


def _holds_whatever_is_read(condition: Any, model: Any) -> bool:
    """Whether a counterexample is one for all values of what is not modelled."""
    known = [name for name in model.decls() if not name.name().startswith(FRESH)]
    fixed = z3.substitute(condition, *((name(), model[name]) for name in known))
    return bool(_solver(z3.Not(fixed)).check() == z3.unsat)


def _solver(condition: Any) -> Any:
    solver = z3.SolverFor("QF_BV")
    solver.set("rlimit", STEPS)
    solver.add(condition)
    return solver


def counted(answers: dict[tuple[str, int], str]) -> Counter[tuple[str, str]]:
    """How many goals of each kind have each answer."""
    return Counter((kind, answer) for (kind, _), answer in answers.items())
