"""Random kernels with tensor memory whose proved uses are run: none may fault.

Warps load and store cells, and one thread starts products and copies, at addresses that come of integer
arithmetic, in loops and under guards; allocations are made and freed with and without mistakes. Uses that are
not proved are left out, and a kernel whose allocations are not proved is not run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pytest
from interpreter.tensor_texts import BUFFER, LANE, TENSOR, THREAD, commit, descriptor, instruction, kernel
from kernel_runs import nightly

from ptxgen import interpreter
from ptxgen.check.prove import PROVED, VIOLATION, Proof, prove_shared
from ptxgen.errors import TrapError

USES: Final = 10  # of a kernel
NBYTES: Final = 1 << 14  # of shared memory behind the mbarrier
SIZES: Final = (32, 64, 128, 256, 512)
SHAPES: Final = (("32x32b", 1), ("16x64b", 1), ("16x32bx2", 1), ("16x128b", 2), ("16x256b", 4))
# How many uses are run, each counted once for each run of its kernel, and how many runs.
QUICK: Final = (60, 2)
NIGHTLY: Final = (20_000, 4)
BARRIER: Final = "bar.sync 0;\n"
DEALLOC: Final = f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 {TENSOR}"
ALLOC: Final = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"
PERMIT: Final = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"


@dataclass
class Program:
    """A random kernel; its uses are lines that end with their number."""

    seed: int
    lines: list[str] = field(default_factory=list)
    uses: int = 0
    labels: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.columns = self.rng.choice(SIZES)
        self.changes = self.mistakes()
        while self.uses < USES:
            self.step(0)

    def mistakes(self) -> list[tuple[str, str]]:
        """Changes to how columns are allocated and freed, of which some are mistakes."""
        n = self.columns
        return self.rng.choice(
            (
                *[[]] * 12,
                [(f"{DEALLOC}, {n};\n", "")],
                [(f"{DEALLOC}, {n};", f"{DEALLOC}, 64;")],
                [(f"{DEALLOC}, {n};", f"add.u32 %r1, {TENSOR}, 32;\n{DEALLOC.replace(TENSOR, '%r1')}, {n};")],
                [("@!%p9 bra $freed;\n", "")],
                [("@!%p9 bra $freed;", f"{BARRIER}setp.ge.u32 %p9, {THREAD}, 96;\n@!%p9 bra $freed;")],
                [(f"{ALLOC} [{BUFFER}+16], {n};\n{PERMIT}", f"{PERMIT}{ALLOC} [{BUFFER}+16], {n};\n")],
                [(f"fence.proxy.async;\n{BARRIER}", "fence.proxy.async;\n")],
                [(PERMIT, f"{ALLOC} [{BUFFER}+32], 32;\n")],
                [(f"{BARRIER}@!%p9 bra $freed;", "@!%p9 bra $freed;")],
                [(f"ld.shared.u32 {TENSOR}, [{BUFFER}+16];", f"mov.u32 {TENSOR}, 0;")],
                [(f"{ALLOC} [{BUFFER}+16], {n};", f"{ALLOC} [{BUFFER}+16], 96;")],
            )
        )

    def text(self, uses: frozenset[int] | None = None) -> str:
        """The kernel with all its uses, or with some."""
        lines = [line for line in self.lines if uses is None or "//" not in line or number_of(line) in uses]
        body = "\n".join(
            [f"shr.u32 %r6, {THREAD}, 5;", "mov.u32 %r7, %laneid;", "ld.param.u32 %r8, [n];", *lines]
        )
        body += "\n" + "\n".join(["@!%p8 bra $one;", commit(), "$one:"])
        text = kernel(body, columns=self.columns, nbytes=NBYTES, params=", .param .u32 n")
        for old, new in self.changes:
            assert old in text
            text = text.replace(old, new)
        return text

    # ------------------------------------------------------------------------------ drawing

    def step(self, depth: int) -> None:
        """Something that computes, loops, branches, or uses tensor memory."""
        kinds = [self.compute] * 2 + [self.registers] * 3 + [self.agents] * 2
        if depth < 2:
            kinds += [self.loop, self.branch, self.synchronise]
        self.rng.choice(kinds)(depth)

    def value(self) -> str:
        return self.rng.choice((*("%r6", "%r7", "%r8", LANE, "%r30", "%r31"), "4", "16", "0x200000"))

    def compute(self, _: int) -> None:
        rng, to = self.rng, self.rng.choice(("%r30", "%r31"))
        one, two = self.value(), self.value()
        self.lines.append(
            rng.choice(
                (
                    f"add.u32 {to}, {one}, {two};",
                    f"and.b32 {to}, {one}, {rng.choice((1, 3, 7, 24, 0x600000))};",
                    f"shl.b32 {to}, {one}, {rng.choice((0, 2, 3, 21))};",
                    f"mul.lo.u32 {to}, {one}, {rng.choice((2, 8, 1 << 21))};",
                    f"min.u32 {to}, {one}, {rng.choice((3, 20))};",
                    f"rem.u32 {to}, {one}, {rng.choice((3, 16))};",
                    f"mov.u32 {to}, {rng.choice((0, 8, 24))};",
                    f"ld.global.u32 {to}, [%rd90];\nand.b32 {to}, {to}, 7;",
                    f"shfl.sync.idx.b32 {to}, {one}, 0, 31, -1;",
                )
            )
        )

    def loop(self, depth: int) -> None:
        self.labels += 1
        label, counter = f"$L{self.labels}", f"%r{32 + depth}"
        self.lines.append(f"mov.u32 {counter}, 0;\n{label}:")
        self.inner(depth)
        if self.rng.random() < 0.5:
            self.lines.append(f"add.u32 %r30, {counter}, {self.rng.choice((0, 1, 8))};")
        self.lines.append(
            f"add.u32 {counter}, {counter}, 1;\nsetp.lt.u32 %p5, {counter}, {self.rng.choice((2, 3, 4))};\n"
            f"@%p5 bra {label};"
        )

    def branch(self, depth: int) -> None:
        self.labels += 1
        # One condition on n: the proof does not see that two of them contradict each other.
        label = f"$B{self.labels}"
        asked = self.rng.choice(("lt.u32 %p6, %r6, 2", "ge.u32 %p6, %r6, 1", "lt.u32 %p6, %r8, 5"))
        self.lines.append(f"setp.{asked};\n@%p6 bra {label};")
        self.inner(depth)
        self.lines.append(f"{label}:")

    def inner(self, depth: int) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.step(depth + 1)

    def synchronise(self, depth: int) -> None:
        if depth == 0:
            self.lines.append(self.rng.choice((BARRIER.strip(), "tcgen05.wait::st.sync.aligned;")))

    def address(self, lanes: tuple[int, ...]) -> str:
        """Computes an address in %r20, and returns it with an offset."""
        rng = self.rng
        base = rng.choice((TENSOR, TENSOR, TENSOR, TENSOR, "0"))
        self.lines.append(
            f"add.u32 %r20, {rng.choice((LANE, LANE, LANE, '0', '%r30')) if len(lanes) > 1 else '0'}, {base};"
        )
        if rng.random() < 0.5:
            self.lines.append(f"{rng.choice(('add.u32', 'add.u32', 'or.b32'))} %r20, %r20, {self.value()};")
        offset = rng.choice((0, 0, 1, 8, 24, self.columns - 8, self.columns - 1, -8))
        return f"[%r20+{offset + (rng.choice(lanes) << 16)}]"

    def registers(self, _: int) -> None:
        rng = self.rng
        shape, count = rng.choice(SHAPES)
        num = 1 << rng.randrange(5)
        at = self.address((0, 0, 0, 16, 32, 8))
        held = "{" + ", ".join(f"%r{100 + n}" for n in range(num * count)) + "}"
        split = f", {rng.choice((0, 4, 16, 500))}" if shape == "16x32bx2" else ""
        guard = rng.choice(("", "", "", "@%p9 "))
        if rng.random() < 0.5:
            packed = rng.choice(("", ".pack::16b"))
            self.take(f"{guard}tcgen05.ld.sync.aligned.{shape}.x{num}{packed}.b32 {held}, {at}{split};")
        else:
            packed = rng.choice(("", ".unpack::16b"))
            self.take(f"{guard}tcgen05.st.sync.aligned.{shape}.x{num}{packed}.b32 {at}{split}, {held};")

    def agents(self, _: int) -> None:
        rng = self.rng
        sbo = rng.choice((1024, 1024, 512, 256))
        start, swizzle = 32 * rng.randrange(NBYTES // 32), rng.choice((2, 2, 0, 4, 6, 1))
        self.lines.append(descriptor("%rd2", rng.choice((0, 0, start)), sbo=sbo, swizzle=swizzle))
        self.lines.append(descriptor("%rd1", 0, sbo=rng.choice((1024, 128)), swizzle=swizzle))
        if rng.random() < 0.3:
            self.lines.append(f"cvt.u64.u32 %rd3, {self.value()};\nadd.u64 %rd2, %rd2, %rd3;")
        d = self.address((0, 0, 0, 0, 16, 32))
        if rng.random() < 0.4:
            shape = rng.choice(("128x256b", "128x128b", "4x256b", "64x128b.warpx2::02_13", "32x128b.warpx4"))
            self.take(f"@%p8 tcgen05.cp.cta_group::1.{shape} {d}, %rd2;")
            return
        m, n = rng.choice((64, 128, 128, 96)), rng.choice((8, 16, 32, 64))
        transposed = rng.choice((0, 0, 1)) << 16
        idesc = instruction(m, n, "f16", flags=transposed)
        self.lines.append(f"mov.u32 %r5, {idesc:#x};\nsetp.ne.u32 %p1, %r90, %r90;")
        a = "%rd1"
        if rng.random() < 0.4:
            a = f"[{TENSOR}+{rng.choice((0, 8, self.columns - 8, self.columns - 7))}]"
        self.take(f"@%p8 tcgen05.mma.cta_group::1.kind::f16 {d}, {a}, %rd2, %r5, %p1;")

    def take(self, line: str) -> None:
        self.lines.append(f"{line} // {self.uses}")
        self.uses += 1


def number_of(line: str) -> int:
    return int(line.rpartition("//")[2])


def proved_of(program: Program, found: Proof) -> frozenset[int]:
    """The numbers of the uses of which everything is proved."""
    lines = program.text().splitlines()
    right: dict[int, bool] = {}
    for verdict in found.verdicts:
        line = lines[verdict.line - 1]
        if "//" in line:
            right[number_of(line)] = right.get(number_of(line), True) and verdict.verdict == PROVED
    return frozenset(number for number, is_right in right.items() if is_right)


def is_allocated(found: Proof) -> bool:
    """Whether all that allocates and frees is proved."""
    return all(v.verdict == PROVED for v in found.tensor_memory if "alloc" in v.instr)


def fault_of(text: str, rng: random.Random) -> str:
    """What a run says; empty if nothing is wrong."""
    x = np.frombuffer(rng.randbytes(NBYTES), np.uint8).copy()
    arguments = [x, np.zeros(4, np.uint32), rng.choice((0, 1, 4, 5, 0xFFFFFFFF))]
    try:
        interpreter.run(text, grid=1, block=128, args=arguments, sanitize="bounds")
    except TrapError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("wanted", "runs"), [QUICK, nightly(*NIGHTLY)])
def test_no_use_that_is_proved_faults(wanted: int, runs: int) -> None:
    run = proved = seed = kernels = 0
    while run < wanted:
        program = Program(seed)
        proof = prove_shared(program.text(), block=128)
        uses = proved_of(program, proof)
        seed += 1
        if not is_allocated(proof) or not uses:
            continue
        kernels += 1
        proved += len(uses)
        for n in range(runs):
            fault = fault_of(program.text(uses), random.Random(f"{seed} {n}"))
            assert not fault, f"seed {seed - 1}: {fault}\n{program.text(uses)}"
        run += runs * len(uses)
    # That enough is proved is what makes the test one.
    assert proved > USES * kernels // 8


@pytest.mark.parametrize("seeds", [range(25), nightly(range(25, 3000))])
def test_a_kernel_with_a_violation_faults(seeds: range) -> None:
    violations = 0
    for seed in seeds:
        program = Program(seed)
        proof = prove_shared(program.text(), block=128)
        wrong = [v for v in proof.tensor_memory if v.verdict == VIOLATION and v.witness is not None]
        lines = program.text().splitlines()
        numbers = {number_of(lines[v.line - 1]) for v in wrong if "//" in lines[v.line - 1]}
        if not is_allocated(proof):
            continue
        for number in numbers:
            violations += 1
            text = program.text(frozenset({number}))
            assert any(fault_of(text, random.Random(n)) for n in range(12)), f"seed {seed}: {text}"
    assert violations > len(seeds) // 4
