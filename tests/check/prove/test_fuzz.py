"""Random kernels whose proved accesses are run: none may fault.

A kernel computes with every integer instruction of the table, guards, loops, shuffles, conversions
of addresses and parts of parameters, and accesses shared and global memory at what comes of it.
Accesses that are not proved are left out, so that a run reaches all others. It gets arguments at
which something changes: zeros, signs, limits, and the largest numbers of each width.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from check.prove.test_transfer import OPS
from kernel_runs import nightly

from ptxgen import interpreter
from ptxgen.check.prove import PROVED, prove
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.check.prove.symbolic import examples as global_examples
from ptxgen.errors import TrapError
from ptxgen.isa.spec import Op
from ptxgen.target import target

SM, PTX = "sm_90a", (8, 0)
WORDS = 24  # of the variable in shared memory
ACCESSES = 24  # of a kernel
# How many accesses are run, each counted once for each run of its kernel, and how many runs.
NIGHTLY = (100_000, 48)
QUICK = (90, 4)
CORNERS = (
    *(0, 1, 2, 7, 15, 16, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000),
    *(0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF),
)
SIGNED = (-4, 60)  # bounds of the parameter c
SMALL = (0, 40)  # of d
CONTRACT = GlobalContract(
    (GlobalArray("X", (Axis("n", 4),), 4, 4), GlobalArray("Y", (Axis("m", 4),), 4, 4)),
    (),
    {"n": (1, 1 << 20), "m": (1, 1 << 20), "c": SIGNED, "d": SMALL},
    (1, 1, 1),
)
HEAD = """
.version 8.0
.target sm_90a
.address_size 64
.global .align 4 .b8 g[64];
.visible .entry k(.param .u64 X, .param .u64 Y, .param .u32 n, .param .u32 m, .param .s32 c,
    .param .u32 d, .param .u16 e, .param .u8 f, .param .u64 w)
{
    .reg .pred %p<10>;
    .reg .b16 %h<8>;
    .reg .b32 %r<40>;
    .reg .b64 %rd<30>;
    .shared .align 16 .b8 buf[96];
    ld.param.u64 %rd0, [X]; ld.param.u64 %rd1, [Y]; mov.u32 %r0, %tid.x; mov.u32 %r9, buf;
    ld.param.u32 %r1, [n]; ld.param.u32 %r2, [m]; ld.param.s32 %r3, [c]; ld.param.u32 %r4, [d];
    ld.param.u16 %h0, [e]; ld.param.u8 %h1, [f]; mov.u16 %h2, 3; mov.u16 %h3, 0xFFFF;
    ld.param.u64 %rd4, [w]; cvt.u64.u32 %rd5, %r0; mov.u64 %rd6, -2; cvt.s64.s32 %rd7, %r3;
    ld.global.u32 %r5, [%rd0]; mov.u32 %r6, 5; mov.u32 %r7, %laneid; mov.u32 %r8, -3;
    setp.lt.u32 %p1, %r0, 7; setp.gt.s32 %p2, %r5, 3; setp.ne.u32 %p3, %r4, 9;
    mov.u32 %r10, 0; mov.u32 %r11, 1;
"""
FILES = {1: "%p{1 2 3}", 16: "%h{0 1 2 3}", 32: "%r{0 1 2 3 4 5 6 7 8 10 11}", 64: "%rd{4 5 6 7}"}
KEPT = {"%r0", "%r1", "%r2"}  # read only, so that something stays provable
INVERSE = {"add": "sub", "sub": "add", "xor": "xor", "not": "not", "neg": "neg"}
LOADS = ("u8", "s8", "u16", "s16", "u32", "s32")
PARAMS = ("n", "m", "c", "d", "e", "f", "w", "n+1", "w+4", "c+2")


def _fits(op: Op) -> bool:
    return op.gate.admits(target(SM)) and op.gate.ptx <= PTX


def _is_of_words(op: Op) -> bool:
    """Whether it makes one word of words, or of words and constants."""
    of = (*op.dests, *op.sources)
    plain = all(o.type is not None and o.type.bits == 32 for o in (*op.dests, *op.sources[:1]))
    return plain and len(op.dests) == 1 and all(o.type is None or o.type.bits == 32 for o in of)


@dataclass
class Program:
    """A random kernel as lines; those of accesses are known by their place in `accesses`."""

    seed: int
    lines: list[str] = field(default_factory=list)
    accesses: list[int] = field(default_factory=list)
    labels: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.ops = {name: [o for o in ops if _fits(o)] for name, ops in OPS.items()}
        self.ops = {name: ops for name, ops in self.ops.items() if ops}
        # By name, the instructions on words through which an address in shared memory may go.
        words = {name: [o for o in ops if _is_of_words(o)] for name, ops in self.ops.items()}
        self.of_words = {name: ops for name, ops in words.items() if ops}
        while len(self.accesses) < ACCESSES:
            self.step(0)

    def text(self, kept: frozenset[int] | None = None) -> str:
        """The kernel with all its accesses, or with those at some places among the lines."""
        at = set(self.accesses)
        lines = [line for n, line in enumerate(self.lines) if kept is None or n not in at or n in kept]
        return HEAD + "\n".join(lines) + "\nret;\n}\n"

    # ------------------------------------------------------------------------------ drawing

    def reg(self, bits: int, *, written: bool = False) -> str:
        prefix, _, numbers = FILES[bits].partition("{")
        names = [prefix + n for n in numbers[:-1].split()]
        return self.rng.choice([n for n in names if not written or n not in KEPT])

    def operand(self, operand: Any) -> str:
        if operand.type is None:
            return str(self.rng.choice((0, 1, 4, 9)))
        bits = 1 if operand.type.kind == "p" else max(operand.type.bits, 16)
        if operand.written or bits == 1 or self.rng.random() < 0.7:
            return self.reg(bits, written=operand.written)
        return str(self.rng.choice((0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 255)))

    def step(self, depth: int) -> None:
        """Something that computes, branches or accesses memory."""
        kinds = [self.compute] * 4 + [self.access] * 5 + [self.other]
        if depth < 2:
            kinds += [self.branch, self.loop]
        self.rng.choice(kinds)(depth)

    def compute(self, _: int) -> None:
        op = self.rng.choice(self.ops[self.rng.choice(list(self.ops))])
        written = "|".join(self.operand(o) for o in op.dests)
        read = [self.operand(o) for o in op.sources]
        guard = self.rng.choice(("", "", "", "@%p1 ", "@!%p2 "))
        self.lines.append(f"{guard}{op.opcode} {', '.join([written, *read])};")

    def other(self, _: int) -> None:
        rng, to = self.rng, self.reg(32, written=True)
        of, long = self.reg(32), self.reg(64, written=True)
        type = rng.choice(LOADS)
        self.lines.append(
            rng.choice(
                (
                    f"shfl.sync.{rng.choice(('idx', 'up', 'bfly'))}.b32 {to}, {of}, "
                    f"{rng.choice((0, 3, 20, 31))}, {rng.choice((31, 31, 7))}, -1;",
                    f"ld.param.{type} {to}, [{rng.choice(PARAMS)}];"
                    if type[1:] == "8"
                    else f"ld.param.u32 {to}, [{rng.choice(PARAMS[:4])}];",
                    f"ld.param.v2.u32 {{{to}, %r20}}, [n];",
                    f"ld.global.u32 {to}, [%rd1];",
                    f"ld.global.nc.u32 {to}, [%rd0];",
                    f"ld.shared.u32 {to}, [buf];",
                    f"sub.u32 {to}, %r9, buf; ",
                    f"mov.u64 {long}, g+{rng.choice((0, 8, 64))}; mov.u64 %rd20, g; "
                    f"sub.u64 {long}, {long}, %rd20;",
                    f"cvt.u32.u64 {to}, {long};",
                    f"prmt.b32 {to}, {of}, {self.reg(32)}, {rng.choice((0x3210, 0x4440, 0x0123))};",
                )
            )
        )

    def inner(self, depth: int) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.step(depth + 1)

    def branch(self, depth: int) -> None:
        self.labels += 1
        label = f"B{self.labels}"
        self.lines.append(f"{self.test('%p8')} @%p8 bra {label};")
        self.inner(depth)
        self.lines.append(f"{label}:")

    def test(self, predicate: str) -> str:
        rng = self.rng
        asked = rng.choice(("lt.u32", "lt.s32", "ge.s32", "ge.u32", "gt.u32", "eq.b32", "ne.s32"))
        limit = rng.choice((str(rng.choice((0, 5, 16, 24))), self.reg(32)))
        second = rng.choice((predicate, predicate, f"%p7|{predicate}"))
        return f"setp.{asked} {second}, {self.reg(32)}, {limit};"

    def loop(self, depth: int) -> None:
        self.labels += 1
        label, counter = f"L{self.labels}", f"%r{30 + depth}"
        turns = self.rng.choice(("2", "3", "5"))
        self.lines.append(f"mov.u32 {counter}, 0;\n{label}:")
        self.inner(depth)
        carried = self.reg(32, written=True)
        self.lines.append(
            self.rng.choice(("", f"mov.u32 {carried}, {counter};", f"add.u32 {carried}, {carried}, 1;"))
        )
        self.lines.append(
            f"add.u32 {counter}, {counter}, 1; setp.lt.u32 %p9, {counter}, {turns}; @%p9 bra {label};"
        )

    def moved(self, address: str) -> str:
        """An instruction on an address, and often the one that takes it back."""
        rng = self.rng
        name = rng.choice([*self.of_words, *INVERSE])
        op = rng.choice(self.of_words[name])
        constants = [rng.choice((0, 4, 16, 0xFFF0, 0x10000, 0xFFFFFFFC)) for _ in op.sources[1:]]
        operands = ", ".join([address, address, *map(str, constants)])
        inverse = INVERSE.get(name, "")
        known = {o.opcode for o in self.of_words.get(inverse, ())}
        back = rng.choice((op.opcode.replace(name, inverse, 1), f"{inverse}.u32"))
        then = f" {back} {operands};" if back in known and rng.random() < 0.7 else ""
        return f"{op.opcode} {operands};{then}"

    # ------------------------------------------------------------------------------ accesses

    def access(self, _: int) -> None:
        rng = self.rng
        in_shared = rng.random() < 0.5
        index, limit = self.reg(32), rng.choice((str(WORDS), str(WORDS), "%r4"))
        size = limit if in_shared else rng.choice(("%r1", "%r2"))
        less = rng.choice((23, 15, 31)) if in_shared else "%r22"
        if not in_shared:
            self.lines.append(f"sub.s32 %r22, {size}, 1;")
        sort = rng.choice("us")
        self.lines.append(
            rng.choice(
                (
                    f"mov.u32 %r21, {index};",
                    f"min.{sort}32 %r21, {index}, {less};",
                    f"min.s32 %r21, {index}, {less}; max.{sort}32 %r21, %r21, 0;",
                    f"rem.{sort}32 %r21, {index}, {size};",
                    f"and.b32 %r21, {index}, {rng.choice((15, 7, 31, -16))};",
                    f"bfe.{sort}32 %r21, {index}, {rng.choice((0, 3, 28))}, {rng.choice((3, 4, 5))};",
                    f"shr.{sort}32 %r21, {index}, {rng.choice((28, 30, 31, 33))};",
                    f"cvt.sat.u8.s32 %r21, {index}; min.u32 %r21, %r21, {less};",
                )
            )
        )
        guard = ""
        if rng.random() < 0.6:
            asked = rng.choice(("lt.u32", "lt.u32", "lt.s32", "le.u32", "gt.s32", "ge.u32"))
            negated = rng.choice(("", "", "!"))
            second = rng.choice(("%p6", "%p6", "%p5|%p6"))
            self.lines.append(f"setp.{asked} {second}, %r21, {size};")
            guard = f"@{negated}%p6 "
        self.in_shared(guard) if in_shared else self.in_global(guard, size)

    def in_shared(self, guard: str) -> None:
        rng = self.rng
        self.lines.append("mad.lo.s32 %r23, %r21, 4, %r9;")
        self.lines.append(
            rng.choice(
                (
                    *("", "", "", self.moved("%r23"), "xor.b32 %r23, %r23, 16;"),
                    *("and.b32 %r23, %r23, 0x7FFFFFFC;", "max.u32 %r23, %r23, 64;"),
                )
            )
        )
        at = rng.choice(("", "", "", "+4", "-4"))
        if rng.random() < 0.7:
            self.take(f"{guard}st.shared.u32 [%r23{at}], %r0;")
            return
        self.lines.append("cvt.u64.u32 %rd21, %r23;")
        self.lines.append(rng.choice(("cvta.shared.u64 %rd21, %rd21;", "cvta.shared.u64 %rd21, %rd21;", "")))
        kind = rng.choice(("st.u32", "st.u32", "st.shared.u32"))
        self.take(f"{guard}{kind} [%rd21{at}], %r0;")

    def in_global(self, guard: str, size: str) -> None:
        rng = self.rng
        pointer = {"%r1": "%rd0", "%r2": "%rd1"}[size]
        wide = rng.choice(("s32", "s32", "u32"))
        self.lines.append(f"mad.wide.{wide} %rd21, %r21, 4, {pointer};")
        at = rng.choice(("", "", "", "+4", "-4"))
        kind = rng.choice(("st.global.u32", "st.global.u32", "st.u32"))
        self.take(f"{guard}{kind} [%rd21{at}], %r5;")

    def take(self, line: str) -> None:
        self.accesses.append(len(self.lines))
        self.lines.append(line)


def proved_of(program: Program, block: int) -> frozenset[int]:
    """The places of the accesses that are proved, which either proof may know."""
    params = {"c": SIGNED, "d": SMALL}
    result = prove(program.text(), block=block, contract=CONTRACT, params=params)
    assert result.global_memory is not None
    line_of = {}
    text_before = HEAD.count("\n")
    for at in program.accesses:
        line_of[text_before + 1 + "\n".join(program.lines[:at]).count("\n") + (at > 0)] = at
    verdicts: dict[int, set[str]] = {}
    for verdict in (*result.shared.accesses, *result.global_memory.accesses):
        line = int(verdict.where.split()[1])
        verdicts.setdefault(line, set()).add(verdict.verdict)
    return frozenset(at for line, at in line_of.items() if verdicts.get(line, set()) == {PROVED})


def fault_of(program: Program, kept: frozenset[int], block: int, rng: random.Random) -> str:
    """What a run with adversarial arguments says; empty if nothing is wrong."""
    sizes = [rng.choice((1, 2, 24, 25, 70)) for _ in range(2)]
    arrays = [np.array([rng.choice(CORNERS) for _ in range(n)], np.uint32) for n in sizes]
    odd = [
        rng.choice((SIGNED[0], SIGNED[1], rng.randint(*SIGNED))),
        rng.choice((0, 40, 7)),
        rng.choice(CORNERS) & 0xFFFF,
        rng.choice(CORNERS) & 0xFF,
        rng.choice(CORNERS) << 32 | rng.choice(CORNERS),
    ]
    try:
        interpreter.run(
            program.text(kept), "k", grid=1, block=block, args=[*arrays, *sizes, *odd], sanitize="bounds"
        )
    except TrapError as error:
        # Lanes that a branch has parted wait for each other in shfl.sync: no access is at fault.
        return "" if ": deadlock in CTA " in str(error) else str(error)
    return ""


@pytest.mark.parametrize(("wanted", "runs"), [QUICK, nightly(*NIGHTLY)])
def test_no_access_that_is_proved_faults(wanted: int, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_examples, "_DRAWS", 0)  # launches that go wrong are not looked for
    run = proved = seed = 0
    while run < wanted:
        program = Program(seed)
        block = (32, 64, 16, 40)[seed % 4]
        kept = proved_of(program, block)
        proved += len(kept)
        for n in range(runs if kept else 0):
            fault = fault_of(program, kept, block, random.Random(f"{seed} {n}"))
            assert not fault, f"seed {seed}, block {block}: {fault}\n{program.text(kept)}"
        run += runs * len(kept)
        seed += 1
    # That enough is proved is what makes the test one.
    assert proved > ACCESSES * seed // 8
