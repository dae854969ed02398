"""The proof that lanes come together: kernels that are right and their wrong twins, and random kernels whose
proved instructions run without a lane that is missing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest

import ptxgen as px
from ptxgen import Pointer, f32
from ptxgen.check.prove import prove_shared
from ptxgen.check.prove.verdicts import Verdict
from ptxgen.errors import TrapError
from ptxgen.interpreter import PCT, run

HEAD = """.version 8.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y, .param .u32 n)
{{
.reg .pred %p<99>;
.reg .b32 %r<99>;
.reg .b64 %rd<9>;
.reg .f32 %f<9>;
.shared .align 16 .b8 tile[1024];
ld.param.u64 %rd1, [x];
ld.param.u64 %rd2, [y];
ld.param.u32 %r1, [n];
mov.u32 %r3, %tid.x;
shr.u32 %r4, %r3, 5;
and.b32 %r5, %r3, 31;
mov.u32 %r6, %ctaid.x;
mad.lo.u32 %r7, %r6, 64, %r3;
mov.u32 %r8, tile;
"""


def text(body: str, target: str = "sm_80") -> str:
    """Kernel `k`: %r1 is n, %r3 the thread, %r4 the warp, %r5 the lane, %r6 the CTA, %r7 the thread among
    those of CTAs of 64 threads, %rd1 x and %rd2 y.
    """
    return f"{HEAD.format(target=target)}{body}\nret;\n}}\n"


def told(body: str, block: int = 64, target: str = "sm_80") -> list[Verdict]:
    return list(prove_shared(text(body, target), block=block).convergence)


def only(condition: str, body: str, after: str = "mov.u32 %r9, 0;") -> str:
    """A body behind a condition, which sets %p1; all threads then go on."""
    return f"{condition} @!%p1 bra E;\n{body}\nE:\n{after}"


def shuffle(distance: int = 1, members: str = "-1", mode: str = "bfly", clamp: str = "31") -> str:
    return f"shfl.sync.{mode}.b32 %r10, %r3, {distance}, {clamp}, {members};"


FEW = "setp.lt.u32 %p1, %r3, 5;"
HALF = "setp.lt.u32 %p1, %r5, 16;"
WARP = "setp.eq.u32 %p1, %r4, 0;"
INSIDE = "setp.lt.u32 %p1, %r7, %r1;"
VOTE = "vote.sync.any.pred %p2, %p1, {};"
REDUX = "redux.sync.add.u32 %r9, %r3, {};"
EARLY = "{} @!%p1 ret;\n"
EVERYWHERE = {
    "vote": VOTE,
    "ballot": "vote.sync.ballot.b32 %r9, %p1, {};",
    "redux": REDUX,
    "match.any": "match.any.sync.b32 %r9, %r3, {};",
    "match.all": "match.all.sync.b32 %r9, %r3, {};",
    "bar.warp": "bar.warp.sync {};",
    "shfl": "shfl.sync.bfly.b32 %r10, %r3, 1, 31, {};",
}
ALIGNED = {
    "ldmatrix": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r8];",
    "stmatrix": "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r8], {%r9};",
    "movmatrix": "movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r10;",
    "mma": "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r9, %r10}, {%r11}, "
    "{%f0, %f1, %f2, %f3};",
    "wgmma": "wgmma.fence.sync.aligned;",
}

# Bodies of which every instruction is proved, in blocks of 64 threads.
RIGHT = {
    "all threads": shuffle(),
    "a condition of the warp": only(WARP, shuffle()),
    "a condition of the launch": only("setp.gt.u32 %p1, %r1, 3;", shuffle()),
    "half a warp that its mask names": only(HALF, shuffle(members="0xffff")),
    "each half by a mask of its own": "and.b32 %r9, %r5, 16; shl.b32 %r9, 0xffff, %r9;"
    + shuffle(members="%r9", clamp="0x100f"),
    "a warp among those of the grid": only("shr.u32 %r9, %r7, 5; setp.lt.u32 %p1, %r9, %r1;", shuffle()),
    "two blocks of the grid": only("shr.u32 %r9, %r7, 7; setp.lt.u32 %p1, %r9, %r1;", shuffle()),
    "a warp's first thread": only("and.b32 %r9, %r7, -32; setp.lt.u32 %p1, %r9, %r1;", shuffle()),
    "rows of warps": f"mov.u32 %r9, %r4;\nL: {shuffle()} add.u32 %r9, %r9, 2; setp.lt.u32 %p1, %r9, %r1;"
    "@%p1 bra L; mov.u32 %r9, 0;",
    "a loop of the launch": f"mov.u32 %r9, 0;\nL: {shuffle()} add.u32 %r9, %r9, 1;"
    "setp.lt.u32 %p1, %r9, %r1; @%p1 bra L; mov.u32 %r9, 0;",
    "as many rows for each thread": f"shr.u32 %r9, %r3, 1;\nL: {shuffle()} add.u32 %r9, %r9, 32;"
    "setp.lt.u32 %p1, %r9, 128; @%p1 bra L; mov.u32 %r9, 0;",
    "passes of a launch over as many rows": f"mov.u32 %r11, 0;\nM: shr.u32 %r9, %r3, 1;\nL: {shuffle()}"
    "add.u32 %r9, %r9, 32; setp.lt.u32 %p1, %r9, 128; @%p1 bra L; add.u32 %r11, %r11, 1;"
    "setp.lt.u32 %p1, %r11, %r1; @%p1 bra M; mov.u32 %r9, 0;",
    "a vote of the warp": only(INSIDE + VOTE.format(-1) + "mov.pred %p1, %p2;", shuffle()),
    "a sum of the warp": only(REDUX.format(-1) + "setp.lt.u32 %p1, %r9, %r1;", shuffle()),
    "a number of lane 0": only(
        "shfl.sync.idx.b32 %r9, %r7, 0, 31, -1; setp.lt.u32 %p1, %r9, %r1;", shuffle()
    ),
    "a word of memory": only("ld.global.u32 %r9, [%rd1]; setp.lt.u32 %p1, %r9, 4;", shuffle()),
    "a float of the launch": only("cvt.rn.f32.u32 %f0, %r1; setp.gt.f32 %p1, %f0, 0f40000000;", shuffle()),
    "threads that have ended do not vote": EARLY.format(INSIDE) + VOTE.format(-1),
    "threads that have ended are not waited for": EARLY.format(FEW) + "bar.warp.sync -1;",
    "lanes that remain read each other": EARLY.format("setp.lt.u32 %p1, %r5, 4;") + shuffle(),
}
MAY_DIFFER = ("unknown", "a condition on the way to it may differ between the threads of a warp")
FIVE_ALONE = ("violation", "lanes 5 to 31 of warp 0 do not come to it, but are in its membermask 0xffffffff")
WRONG = {
    "five threads": (only(FEW, shuffle()), *FIVE_ALONE),
    "five threads in a loop": (
        (
            f"mov.u32 %r9, 0;\nL: {only(FEW, shuffle(), '')} add.u32 %r9, %r9, 1;"
            "setp.lt.u32 %p2, %r9, %r1; @%p2 bra L; mov.u32 %r9, 0;"
        ),
        *FIVE_ALONE,
    ),
    "five threads by a predicate": (f"{FEW} @%p1 {shuffle()}", *FIVE_ALONE),
    "a mask that lacks lanes": (
        shuffle(members="0xff"),
        "violation",
        "lanes 8 to 31 of warp 0 execute it, but are not in its membermask 0x000000ff",
    ),
    "a lane outside of the mask": (
        only("setp.lt.u32 %p1, %r5, 8;", shuffle(10, "0xff", "idx")),
        "violation",
        "lanes 0 to 7 of warp 0 read lanes outside of the membermask, such as lane 10, and the result is "
        "undefined",
    ),
    "some lanes read outside of the mask": (
        only("setp.lt.u32 %p1, %r5, 8;", shuffle(4, "0xff", "down")),
        "unknown",
        "lanes 4 to 7 of warp 0 read lanes outside of the membermask, such as lane 8, and the result is "
        "undefined",
    ),
    "threads that have ended are read": (
        EARLY.format(FEW) + shuffle(),
        "unknown",
        "lane 4 of warp 0 reads a lane that has ended or is not in the block, such as lane 5, and the result "
        "is undefined",
    ),
    "threads that the launch ends may be read": (EARLY.format(INSIDE) + shuffle(), *MAY_DIFFER),
    "threads that the launch leaves out": (only(INSIDE, shuffle()), *MAY_DIFFER),
    "rows of threads": (
        (
            f"mov.u32 %r9, %r3;\nL: {shuffle()} add.u32 %r9, %r9, 64; setp.lt.u32 %p1, %r9, %r1;"
            "@%p1 bra L; mov.u32 %r9, 0;"
        ),
        *MAY_DIFFER,
    ),
    "a row more for some threads": (
        (
            f"shr.u32 %r9, %r3, 1;\nL: {shuffle()} add.u32 %r9, %r9, 32; setp.lt.u32 %p1, %r9, 120;"
            "@%p1 bra L; mov.u32 %r9, 0;"
        ),
        *MAY_DIFFER,
    ),
    "as many rows, but a round less for some threads": (
        (
            f"shr.u32 %r9, %r3, 1;\nL: {shuffle()} setp.lt.u32 %p2, %r5, 5; add.u32 %r9, %r9, 32;"
            "@%p2 add.u32 %r9, %r9, 32; setp.lt.u32 %p1, %r9, 128; @%p1 bra L; mov.u32 %r9, 0;"
        ),
        *MAY_DIFFER,
    ),
    "half a warp among those of the grid": (
        only("shr.u32 %r9, %r7, 4; setp.lt.u32 %p1, %r9, %r1;", shuffle()),
        *MAY_DIFFER,
    ),
    "warps of a grid that begin within a warp": (
        only("mad.lo.u32 %r9, %r6, 16, %r3; shr.u32 %r9, %r9, 5; setp.lt.u32 %p1, %r9, %r1;", shuffle()),
        *MAY_DIFFER,
    ),
    "a sum with another unit": (
        only("add.u32 %r9, %r7, %r1; shr.u32 %r9, %r9, 5; setp.lt.u32 %p1, %r9, %r1;", shuffle()),
        *MAY_DIFFER,
    ),
    "a word that others write": (
        only("ld.volatile.global.u32 %r9, [%rd1]; setp.lt.u32 %p1, %r9, 4;", shuffle()),
        *MAY_DIFFER,
    ),
    "a word of each lane": (
        only(
            "mad.wide.u32 %rd3, %r5, 4, %rd1; ld.global.u32 %r9, [%rd3]; setp.lt.u32 %p1, %r9, 4;", shuffle()
        ),
        *MAY_DIFFER,
    ),
    "an atomic of each lane": (
        only("atom.global.add.u32 %r9, [%rd1], 1; setp.lt.u32 %p1, %r9, 4;", shuffle()),
        *MAY_DIFFER,
    ),
    "a vote of half a warp": (
        only(
            HALF + INSIDE.replace("p1", "p3") + "mov.pred %p2, 0; @%p1 vote.sync.any.pred %p2, %p3, 0xffff;"
            "mov.pred %p1, %p2;",
            shuffle(),
        ),
        *MAY_DIFFER,
    ),
    "a mask of the launch": (
        shuffle(members="%r1"),
        "unknown",
        "the lanes that its membermask names are not known",
    ),
    "masks that do not agree": (
        "setp.lt.u32 %p1, %r5, 8; selp.b32 %r9, 0xffff, -1, %p1;" + shuffle(members="%r9"),
        "unknown",
        "lanes of warp 0 that name each other have different membermasks",
    ),
    "two ways with a shuffle each": (
        f"{HALF} @!%p1 bra A; {shuffle()} bra B;\nA: {shuffle()}\nB:",
        "unknown",
        "lanes 16 to 31 of warp 0 do not come to it, but are in its membermask 0xffffffff",
    ),
    "a jump through a table": (
        f"t: .branchtargets A, B; brx.idx %r1, t;\nA: {shuffle()}\nB: mov.u32 %r9, 0;",
        "unknown",
        "a jump through a table decides whether it is reached",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_lanes_that_come_together_are_proved_and_run(name: str) -> None:
    result = told(RIGHT[name])
    assert [(v.verdict, v.reason) for v in result] == [("proved", "")] * len(result)
    assert result
    for n in (0, 3, 40, 64):
        outcome(text(RIGHT[name]), 64, n)


@pytest.mark.parametrize("name", WRONG)
def test_lanes_that_may_be_missing_are_not_proved(name: str) -> None:
    body, verdict, reason = WRONG[name]
    result = next(v for v in told(body) if v.verdict != "proved")
    assert (result.verdict, result.reason) == (verdict, reason)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_each_instruction_with_a_membermask_waits_for_the_lanes_that_it_names(name: str) -> None:
    whole, half = (EVERYWHERE[name].format(mask) for mask in (-1, 0xFFFF))
    assert [v.verdict for v in told(whole)] == ["proved"]
    assert [v.verdict for v in told(only(HALF, half))] == ["proved"]
    assert [v.verdict for v in told(only(HALF, whole))] == ["violation"]
    assert [v.verdict for v in told(half)] == ["violation"]


@pytest.mark.parametrize("name", ALIGNED)
def test_each_aligned_instruction_is_executed_by_all_lanes(name: str) -> None:
    target = "sm_90a"
    assert [v.verdict for v in told(ALIGNED[name], 128, target)] == ["proved"]
    assert [v.verdict for v in told(only(HALF, ALIGNED[name]), 128, target)] == ["violation"]
    of_warp = "proved" if name != "wgmma" else "violation"
    assert [v.verdict for v in told(only(WARP, ALIGNED[name]), 128, target)] == [of_warp]
    (result,) = told(EARLY.format(HALF) + ALIGNED[name], 128, target)
    assert result.verdict == ("violation" if name == "mma" else "unknown")  # PTX ISA, "mma": one has exited
    assert "lanes 16 to 31 of warp" in result.reason or name == "wgmma"


@pytest.mark.parametrize(
    ("block", "distance", "verdict"), [(64, 16, "proved"), (48, 16, "unknown"), (48, 8, "proved")]
)
def test_lanes_that_a_block_lacks_are_not_read(block: int, distance: int, verdict: str) -> None:
    (result,) = told(shuffle(distance), block)
    assert result.verdict == verdict


def test_elections_wait_for_the_lanes_that_they_name() -> None:
    elect = "elect.sync %r9|%p2, -1;"
    assert [v.verdict for v in told(elect, 64, "sm_90")] == ["proved"]
    assert [v.verdict for v in told(only(HALF, elect), 64, "sm_90")] == ["violation"]


def test_an_instruction_in_a_function_that_is_not_followed_is_unknown() -> None:
    before, head, rest = text("call again;").partition(".visible")
    again = f".func again() {{ .reg .b32 %r<99>; mov.u32 %r3, 1; {shuffle()} call again; ret; }}\n"
    result = prove_shared(before + again + head + rest, block=64).convergence
    assert {v.verdict for v in result} == {"unknown"}


@pytest.mark.parametrize("threads", [32, 48, 64, 96, 1000])
def test_the_words_of_a_warp_are_proved_in_blocks_of_any_size(threads: int) -> None:
    @px.kernel(threads=threads)
    def words(k, X: Pointer[f32]):
        v = X[k.thread_id()]
        X[k.thread_id()] = k.warp.sum(v) + k.warp.scan(v) + k.block.max(v)

    assert words.prove(X=(threads,), grid=1).complete


# ------------------------------------------------------------------------------ random kernels


def outcome(ptx: str, block: int, n: int, seed: int | None = None) -> np.ndarray:
    """What a run stores to y; raises `TrapError` if a lane that is named does not come."""
    x, y = np.arange(256, dtype=np.uint32) * 7 % 11, np.zeros(1 << 14, np.uint32)
    schedule = "lockstep" if seed is None else PCT(seed=seed)
    run(ptx, "k", grid=2, block=block, args=[x, y, n], schedule=schedule)
    return y


_DEEPEST = 3


@dataclass
class RandomKernel:
    """Random conditions around instructions of warps, without those in `left_out`."""

    seed: int
    left_out: frozenset[int] = frozenset()
    sites: list[int] = field(default_factory=list)

    def body(self) -> str:
        self._rng = random.Random(self.seed)
        self._labels = count()
        self._number = count()
        self.sites = []
        self._mostly = self._rng.random()
        return "\n".join(self._block(_DEEPEST))

    def _condition(self) -> str:
        rng = self._rng
        a = rng.choice(["%r3", "%r4", "%r5", "%r6", "%r7", "%r1", "%r20", "%r21", "%r22"])
        b = rng.choice(["%r1", str(rng.randrange(6)), str(rng.choice([8, 16, 31, 32, 33, 48, 64]))])
        built = rng.choice(
            ["", "", "shr.u32 %r20, %r7, 5;", "shr.u32 %r20, %r7, 4;", "and.b32 %r21, %r7, -32;"]
        )
        built += rng.choice(["", "", "ld.global.u32 %r22, [%rd1];", "add.u32 %r21, %r7, %r1;"])
        return f"{built} setp.{rng.choice(['lt', 'ge', 'eq'])}.u32 %p1, {a}, {b};"

    def _block(self, depth: int) -> list[str]:
        return [self._statement(depth) for _ in range(self._rng.randrange(1, 4))]

    def _statement(self, depth: int) -> str:
        rng, label = self._rng, next(self._labels)
        kind = rng.choice(["site", "site", "if", "if", "loop", "end", "else"]) if depth else "site"
        if kind == "site":
            return self._site(depth == _DEEPEST)
        if kind == "end":
            return f"{self._condition()} @%p1 ret;"
        inside = "\n".join(self._block(depth - 1))
        if kind == "if":
            return f"{self._condition()} @%p1 bra E{label};\n{inside}\nE{label}:"
        if kind == "else":
            other = "\n".join(self._block(depth - 1))
            first = f"{self._condition()} @%p1 bra A{label};\n{inside}\nbra E{label};"
            return f"{first}\nA{label}:{other}\nE{label}:"
        counter, end = f"%r{30 + label % 60}", rng.choice(["%r1", "3", "40"])
        start, step = rng.choice([("0", 1), ("%r4", 2), ("%r3", 64), ("%r6", 2), ("%r20", 4)])
        return (
            f"mov.u32 {counter}, {start};\nL{label}:\n{inside}\nadd.u32 {counter}, {counter}, {step};"
            f"setp.lt.u32 %p1, {counter}, {end}; @%p1 bra L{label};"
        )

    def _site(self, may_be_guarded: bool) -> str:
        rng, number = self._rng, next(self._number)
        members = "-1" if rng.random() < 0.8 else rng.choice(["0xffff", "0xff", "0xffff0000"])
        mode, distance = rng.choice(["bfly", "idx", "down", "up"]), rng.choice([0, 1, 4, 16, 10])
        clamp = 0 if mode == "up" else 31
        # On the interpreter, lanes of divergent code wait at an instruction that none of them executes.
        guard = rng.choice(["", "", "", "@%p1 "]) if may_be_guarded else ""
        built = rng.choice(
            [f"shfl.sync.{mode}.b32 %r12, %r3, {distance}, {clamp}, {members};"] * 3
            + [f"vote.sync.ballot.b32 %r12, %p1, {members};", f"match.any.sync.b32 %r12, %r4, {members};"]
        )
        built += "" if "shfl" in built else (f" {guard}popc.b32 %r12, %r12;")
        if number in self.left_out:
            return ""
        self.sites.append(number)
        return f"{guard}{built}\n{guard}st.global.u32 [%rd2+{4 * number}], %r12;"


def proved_part(seed: int, block: int) -> tuple[str, int]:
    """A random kernel of instructions that are proved, and how many there are; more of them are left out
    until each is proved.
    """
    left_out: frozenset[int] = frozenset()
    while True:
        kernel = RandomKernel(seed, left_out)
        ptx = text(
            "mov.u32 %r20, 0; mov.u32 %r21, 1; mov.u32 %r22, 2; setp.eq.u32 %p1, %r3, %r3;" + kernel.body()
        )
        verdicts = [v.verdict for v in prove_shared(ptx, block=block).convergence]
        if set(verdicts) <= {"proved"} or len(verdicts) < len(kernel.sites):
            return ptx, len(verdicts)
        left_out |= {site for site, v in zip(kernel.sites, verdicts, strict=True) if v != "proved"}


def check_random(first: int, many: int, schedules: int) -> int:
    proved = 0
    for seed in range(first, first + many):
        block = (32, 48, 64, 96)[seed % 4]
        ptx, result = proved_part(seed, block)
        proved += result
        for n in (0, 1, 5, 33, 64) if result else ():
            for schedule in (None, *range(schedules)):
                try:
                    y = outcome(ptx, block, n, schedule)
                except TrapError as error:
                    pytest.fail(f"seed {seed}, n {n}: {error}\n{ptx}")
                assert y.max() < 1024, f"seed {seed}, n {n}: no number of a thread\n{ptx}"
    return proved


def test_random_instructions_that_are_proved_find_all_lanes() -> None:
    assert check_random(0, 15, 0) > 20


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 3000, 500))
def test_more_random_instructions_that_are_proved_find_all_lanes(first: int) -> None:
    assert check_random(first, 500, 1) > 500
