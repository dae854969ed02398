"""Kernels that fault, which no proof may call proved, each with a twin that is right and proved.

Every kernel is one mistake that a prover can make: a value of another turn, a sign, a width, a
space. The interpreter shows that the first faults for some arguments and that the twin does not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from ptxgen import interpreter
from ptxgen.check.prove import prove_global, prove_shared
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.errors import TrapError

REGISTERS = """
.reg .pred %p<10>;
.reg .b16 %h<10>;
.reg .b32 %r<40>;
.reg .b64 %rd<20>;
"""
ENTRY = (
    "mov.u32 %r0, %tid.x; ld.param.u32 %r1, [n]; ld.param.u32 %r2, [m]; ld.param.u64 %rd0, [X];"
    "ld.param.u64 %rd1, [Y];\n"
)
# Behind X are n words, behind Y m of them.
CONTRACT = GlobalContract(
    (GlobalArray("X", (Axis("n", 4),), 4, 4), GlobalArray("Y", (Axis("m", 4),), 4, 4)),
    (),
    {"n": (1, 1 << 20), "m": (1, 1 << 20)},
    (1, 1, 1),
)


def kernel(body: str, buf: int, before: str = "", head: str = ENTRY) -> str:
    """A kernel with `buf` bytes of shared memory; %r0 is the thread, %r1 n, %r2 m, %rd0 X, %rd1 Y,
    %r8 buf.
    """
    return (
        f".version 8.0\n.target sm_90a\n.address_size 64\n{before}"
        ".visible .entry k(.param .u64 X, .param .u64 Y, .param .u32 n, .param .u32 m)\n{"
        f"{REGISTERS}.shared .align 16 .b8 buf[{buf}];\n{head}mov.u32 %r8, buf;\n{body}\nret;\n}}\n"
    )


class Case(NamedTuple):
    """A body that faults with some words behind X and Y, and one like it that does not.

    `x` and `y` are these words, `block` the threads, `buf` the bytes of shared memory, `before`
    what the module has before the kernel, `params` what the proof is told of parameters.
    """

    faulty: str
    right: str
    x: tuple[int, ...] = (0,)
    y: tuple[int, ...] = (0,)
    block: int = 32
    buf: int = 64
    before: str = ""
    params: dict[str, Any] | None = None


def faults(text: str, case: Case) -> bool:
    """Whether a run accesses what it must not."""
    words = [np.array(w, np.int64).astype(np.uint32) for w in (case.x, case.y)]
    args = [*words, len(case.x), len(case.y)]
    try:
        interpreter.run(text, "k", grid=1, block=case.block, args=args, sanitize="bounds")
    except TrapError:
        return True
    return False


def check(case: Case, prove: Any) -> None:
    """The interpreter's judgement of both kernels, and the prover's."""
    faulty, right = (kernel(b, case.buf, case.before) for b in (case.faulty, case.right))
    assert faults(faulty, case)
    assert not faults(right, case)
    assert not prove(faulty, case).complete
    result = prove(right, case)
    assert result.complete, result.report()


def shared(text: str, case: Case) -> Any:
    """The proof of shared memory."""
    return prove_shared(text, block=case.block, params=case.params)


def in_global(text: str, case: Case) -> Any:
    """The proof of global memory."""
    return prove_global(text, block=case.block, contract=CONTRACT)


# ------------------------------------------------------------------------------ shared memory

PUT = "mad.lo.u32 %r9, %r5, 4, %r8; st.shared.u32 [%r9], %r0;"
# x[i] for each of two turns; a store where it is less than 16, at that and what was before.
TURNS = (
    "mov.u32 %r3, 0; mov.u32 %r6, 0;\nL: mul.wide.u32 %rd2, %r6, 4; add.u64 %rd2, %rd2, %rd0;"
    "ld.global.u32 %r4, [%rd2]; add.u32 %r5, %r3, %r4; {} setp.ge.u32 %p1, %r4, 16; @%p1 bra S;"
    + PUT
    + "\nS:"
)
AGAIN = "add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 2; @%p2 bra L;"
TWICE = (
    "ld.global.nc.u32 %r4, [%rd0]; bar.sync 0; {} bar.sync 0; ld.global.nc.u32 %r5, [%rd0];"
    "setp.ge.u32 %p1, %r4, 16; @%p1 bra end;"
)
LARGE = (
    "ld.global.u32 %r4, [%rd0]; and.b32 %r4, %r4, {}; or.b32 %r4, %r4, 0x80000000;"
    "setp.gt.u32 %p1, %r4, 0x8000000{}; @%p1 bra end; sub.u32 %r5, %r4, 0x80000000;"
)
MEET = "setp.eq.u32 %p2, %r4, 0; @%p2 bra A; bar.sync 0; bra end;\nA: bar.sync 1;\nend:"
FLIPS = (  # words of threads in another order in every second turn
    "mov.u32 %r3, 0; mad.lo.u32 %r9, %r0, 4, %r8;\nL: rem.s32 %r4, %r3, 2; mul.lo.u32 %r4, %r4, {};"
    "xor.b32 %r10, %r9, %r4; st.shared.u32 [%r10], %r0; add.s32 %r3, %r3, 1;"
    "setp.lt.s32 %p1, %r3, 4; @%p1 bra L;"
)
MOVES = (
    "mov.u32 %r5, 0;\nL: st.u32 [%rd2], %r0; add.u64 %rd2, %rd2, 4; add.u32 %r5, %r5, 1;"
    "setp.lt.u32 %p1, %r5, %r1; @%p1 bra L;"
)
SHARED = {
    "a flipped bit is that of an address wherever its variable lies": Case(
        FLIPS.format(64), FLIPS.format(8), block=16
    ),
    "the largest number of a bit field counts": Case(
        "ld.global.u32 %r4, [%rd0]; bfe.u32 %r5, %r4, 0, 4;" + PUT,
        "ld.global.u32 %r4, [%rd0]; bfe.u32 %r5, %r4, 0, 3;" + PUT,
        x=(15,),
        buf=60,
    ),
    "what is at most a large unsigned number is not negative": Case(
        LARGE.format(15, 5) + PUT + "end:", LARGE.format(15, 3) + PUT + "end:", x=(5,), buf=16
    ),
    "large unsigned numbers are bounded by a large unsigned number": Case(
        LARGE.format(0xFFFF, 5) + PUT + "end:", LARGE.format(0xFFFF, 3) + PUT + "end:", x=(5,), buf=16
    ),
    "the second predicate of a comparison is its opposite": Case(
        "ld.global.u32 %r5, [%rd0]; setp.lt.u32 %p1|%p2, %r5, 16; @!%p2 bra end;" + PUT + "end:",
        "ld.global.u32 %r5, [%rd0]; setp.lt.u32 %p1|%p2, %r5, 16; @!%p1 bra end;" + PUT + "end:",
        x=(16,),
    ),
    "a saturated number is not the number": Case(
        "ld.global.u32 %r4, [%rd0]; and.b32 %r4, %r4, 0xFFFF; sub.s32 %r4, %r4, 0x10000;"
        "cvt.sat.u32.s32 %r5, %r4; shr.s32 %r5, %r5, 12; add.s32 %r5, %r5, 16;" + PUT,
        "ld.global.u32 %r4, [%rd0]; and.b32 %r4, %r4, 0xFFFF; sub.s32 %r4, %r4, 0x10000;"
        "cvt.u32.s32 %r5, %r4; shr.s32 %r5, %r5, 12; add.s32 %r5, %r5, 16;" + PUT,
    ),
    "a sum of two halves has no carry between them": Case(
        "ld.global.u32 %r4, [%rd0]; and.b32 %r4, %r4, 0xFFFF; add.u16x2 %r5, %r4, 1;"
        "sub.u32 %r5, %r5, 1; shr.u32 %r5, %r5, 12;" + PUT,
        "ld.global.u32 %r4, [%rd0]; and.b32 %r4, %r4, 0xFFFF; add.u32 %r5, %r4, 1;"
        "sub.u32 %r5, %r5, 1; shr.u32 %r5, %r5, 12;" + PUT,
        x=(0xFFFF,),
    ),
    "each element of a vector of parameters is another one": Case(
        "ld.param.v2.u32 {%r4, %r5}, [n];" + PUT,
        "ld.param.v2.u32 {%r5, %r4}, [n];" + PUT,
        y=(0,) * 100,
        params={"n": (0, 1)},
    ),
    "a part of a parameter is not the parameter": Case(
        "ld.param.u8 %r5, [n]; sub.u32 %r5, %r5, 256;" + PUT,
        "ld.param.u32 %r5, [n]; sub.u32 %r5, %r5, 256;" + PUT,
        x=(0,) * 257,
        params={"n": (256, 260)},
    ),
    "a part of a parameter that is given is not the parameter": Case(
        "ld.param.s8 %r5, [n];" + PUT, "ld.param.u8 %r5, [n+1];" + PUT, x=(0,) * 255, params={"n": 255}
    ),
    "a guard of one turn says nothing about another turn": Case(
        TURNS.format("") + "mov.u32 %r3, %r4;" + AGAIN,
        TURNS.format("") + "mov.u32 %r3, 15;" + AGAIN,
        x=(1000, 1),
        buf=128,
    ),
    "a guard of one turn does not say whether the last one ended early": Case(
        TURNS.format("setp.ge.u32 %p4, %r3, 16; @%p4 add.u32 %r5, %r5, 100;") + "mov.u32 %r3, %r4;" + AGAIN,
        TURNS.format("setp.ge.u32 %p4, %r3, 16; @%p4 add.u32 %r5, %r5, 100;") + "mov.u32 %r3, 15;" + AGAIN,
        x=(1000, 1),
        buf=128,
    ),
    "a lane that the block lacks gives nothing": Case(
        "shfl.sync.idx.b32 %r5, %r0, 20, 31, -1;" + PUT,
        "shfl.sync.idx.b32 %r5, %r0, 3, 31, -1;" + PUT,
        block=16,
    ),
    "a lane that has left gives nothing": Case(
        "setp.lt.u32 %p1, %r0, 16; @%p1 bra on; ret;\non:shfl.sync.idx.b32 %r5, %r0, 20, 31, -1;" + PUT,
        "shfl.sync.idx.b32 %r5, %r0, 20, 31, -1; setp.lt.u32 %p1, %r0, 16; @%p1 bra on; ret;\non:" + PUT,
        buf=84,
    ),
    "an address in shared memory is no generic one": Case(
        "cvt.u64.u32 %rd2, %r8; st.u32 [%rd2], %r0;",
        "cvt.u64.u32 %rd2, %r8; cvta.shared.u64 %rd2, %rd2; st.u32 [%rd2], %r0;",
    ),
    "a generic address is none in shared memory": Case(
        "cvt.u64.u32 %rd2, %r8; cvta.shared.u64 %rd2, %rd2; st.shared.u32 [%rd2], %r0;",
        "cvt.u64.u32 %rd2, %r8; cvta.shared.u64 %rd2, %rd2; cvta.to.shared.u64 %rd2, %rd2;"
        "st.shared.u32 [%rd2], %r0;",
    ),
    "a constant may be a generic address in shared memory": Case(
        "mov.u64 %rd2, 0x100000040; st.u32 [%rd2], %r0;",
        "cvt.u64.u32 %rd2, %r8; cvta.shared.u64 %rd2, %rd2; add.u64 %rd2, %rd2, 0x3C;st.u32 [%rd2], %r0;",
    ),
    "a pointer from memory may be one to shared memory": Case(
        "ld.global.u64 %rd2, [%rd0]; st.u32 [%rd2], %r0;",
        "add.u64 %rd2, %rd0, 4; st.u32 [%rd2], %r0;",
        x=(0x40, 1),
    ),
    "a pointer that moves in a loop is what it was before": Case(
        "ld.global.u64 %rd2, [%rd0];" + MOVES, "mov.u64 %rd2, %rd0;" + MOVES, x=(0x40, 1)
    ),
    "an address in another CTA is none of the own CTA": Case(
        "mapa.shared::cluster.u32 %r9, %r8, 5; st.shared.u32 [%r9], %r0;",
        "mov.u32 %r9, %r8; st.shared.u32 [%r9], %r0;",
    ),
    "a cluster may not have the CTA of a rank": Case(
        "mapa.shared::cluster.u32 %r9, %r8, 5; st.shared::cluster.u32 [%r9], %r0;",
        "mov.u32 %r9, %r8; st.shared::cluster.u32 [%r9], %r0;",
    ),
    "a cluster may not have the CTA of a rank, by a generic address": Case(
        "cvt.u64.u32 %rd2, %r8; cvta.shared.u64 %rd2, %rd2; mapa.u64 %rd2, %rd2, 5;st.u32 [%rd2], %r0;",
        "cvt.u64.u32 %rd2, %r8; cvta.shared.u64 %rd2, %rd2; st.u32 [%rd2], %r0;",
    ),
    "nobody knows whether a variable is above an address": Case(
        "setp.gt.u32 %p1, %r8, 4096; selp.u32 %r5, 0, 16, %p1;" + PUT,
        "setp.ge.u32 %p1, %r8, %r8; selp.u32 %r5, 0, 16, %p1;" + PUT,
    ),
    "nobody knows whether a branch on an address is taken": Case(
        "mov.u32 %r5, 16; setp.gt.u32 %p1, %r8, 4096; @%p1 bra end;" + PUT + "end:",
        "mov.u32 %r5, 16; setp.ge.u32 %p1, %r8, %r8; @%p1 bra end;" + PUT + "end:",
    ),
    "the larger of an address and a number is perhaps the number": Case(
        "max.u32 %r8, %r8, 4096; mov.u32 %r5, 0;" + PUT, "mov.u32 %r5, 0; max.u32 %r5, %r5, 15;" + PUT
    ),
    "a bit set in an address moves it, or does not": Case(
        "or.b32 %r8, %r8, 0x200000; mov.u32 %r5, 0;" + PUT,
        "or.b32 %r5, %r0, 0x8; and.b32 %r5, %r5, 15;" + PUT,
    ),
    "an address before the first variable is no small number in 64 bits": Case(
        "sub.u32 %r9, %r8, 4; cvt.u64.u32 %rd2, %r9; add.u64 %rd2, %rd2, 4;st.shared.u32 [%rd2], %r0;",
        "add.u32 %r9, %r8, 4; cvt.u64.u32 %rd2, %r9; sub.u64 %rd2, %rd2, 4;st.shared.u32 [%rd2], %r0;",
    ),
    "an address before the first variable is a large one": Case(
        "sub.u32 %r9, %r8, 4; setp.lt.u32 %p1, %r9, %r8; selp.u32 %r5, 0, 16, %p1;" + PUT,
        "add.u32 %r9, %r8, 4; setp.gt.u32 %p1, %r9, %r8; selp.u32 %r5, 0, 16, %p1;" + PUT,
    ),
    "memory that the kernel writes is not read alike twice": Case(
        TWICE.format("st.global.u32 [%rd0], 1000;") + PUT + "end:",
        TWICE.format("st.global.u32 [%rd1], 1000;") + PUT + "end:",
    ),
    "memory that is written through a pointer from memory is not read alike twice": Case(
        "ld.global.u64 %rd4, [%rd1];" + TWICE.format("red.global.add.u32 [%rd4], 1000;") + PUT + "end:",
        "ld.global.u64 %rd4, [%rd1];" + TWICE.format("") + PUT + "end:",
        y=(0, 0),
    ),
    "memory that is written at a distance from memory is not read alike twice": Case(
        "sub.u64 %rd3, %rd0, %rd1; st.global.u64 [%rd1], %rd3; bar.sync 0;"
        "ld.global.u64 %rd4, [%rd1]; add.u64 %rd4, %rd4, %rd1;"
        + TWICE.format("st.global.u32 [%rd4], 1000;")
        + PUT
        + "end:",
        TWICE.format("st.global.u32 [%rd1], 1000;") + PUT + "end:",
        y=(0, 0),
    ),
    "memory that is written through a pointer made of halves is not read alike twice": Case(
        "cvt.u32.u64 %r10, %rd0; shr.u64 %rd3, %rd0, 32; cvt.u32.u64 %r11, %rd3;"
        "cvt.u64.u32 %rd4, %r11; shl.b64 %rd4, %rd4, 32; cvt.u64.u32 %rd5, %r10;"
        "or.b64 %rd4, %rd4, %rd5;" + TWICE.format("st.global.u32 [%rd4], 1000;") + PUT + "end:",
        TWICE.format("st.global.u32 [%rd1], 1000;") + PUT + "end:",
    ),
    "a pointer plus a number from memory may be one to shared memory": Case(
        "ld.global.u64 %rd2, [%rd0]; add.u64 %rd2, %rd2, %rd1; st.u32 [%rd2], %r0;",
        "ld.global.u32 %r4, [%rd0]; mad.wide.u32 %rd2, %r4, 4, %rd1; st.u32 [%rd2], %r0;",
        x=(0, 1),
    ),
    "a choice between a pointer and a number may be one to shared memory": Case(
        "setp.eq.u32 %p1, %r0, 0; selp.b64 %rd2, 0x100000040, %rd0, %p1; st.u32 [%rd2], %r0;",
        "setp.eq.u32 %p1, %r0, 0; selp.b64 %rd2, %rd1, %rd0, %p1; st.u32 [%rd2], %r0;",
    ),
    "a parameter of the kernel hides the variable of the module": Case(
        "mov.u32 %r9, m; st.shared.u32 [%r9+32], %r0;",
        "mov.u32 %r9, own; st.shared.u32 [%r9+32], %r0;",
        before=".shared .align 16 .b8 m[64];\n.shared .align 16 .b8 own[64];\n",
    ),
    "a variable of the kernel hides the one of the module": Case(
        ".local .align 16 .b8 own[64]; mov.u32 %r9, own; st.shared.u32 [%r9], %r0;",
        "mov.u32 %r9, own; st.shared.u32 [%r9], %r0;",
        before=".shared .align 16 .b8 own[64];\n",
    ),
    "a choice between an address and a number is no address": Case(
        "mad.lo.u32 %r9, %r0, 4, %r8; setp.lt.u32 %p1, %r0, 15;"
        "selp.u32 %r10, %r9, 0x600000, %p1; st.shared.u32 [%r10], %r0;",
        "mad.lo.u32 %r9, %r0, 4, %r8; setp.lt.u32 %p1, %r0, 15;"
        "selp.u32 %r10, %r9, %r8, %p1; st.shared.u32 [%r10], %r0;",
        block=16,
    ),
    "the sum of two addresses is no address": Case(
        "add.u32 %r9, %r8, %r8; sub.u32 %r9, %r9, 0x600000; st.shared.u32 [%r9], %r0;",
        "add.u32 %r9, %r8, 0x600000; sub.u32 %r9, %r9, 0x600000; st.shared.u32 [%r9], %r0;",
    ),
    "an address of which the halves are added to has no carry between them": Case(
        "mov.u32 %r5, 0; add.u16x2 %r8, %r8, 0xFFF0; sub.u32 %r8, %r8, 0xFFF0;" + PUT,
        "mov.u32 %r5, 0; add.u32 %r8, %r8, 0xFFF0; sub.u32 %r8, %r8, 0xFFF0;" + PUT,
        before=".shared .align 16 .b8 first[64];\n",
    ),
    "the smaller of a number and another one may be either": Case(
        "min.u32 %r5, %r1, 12;" + PUT,
        "min.u32 %r5, %r1, 4;" + PUT,
        x=(0,) * 20,
        buf=20,
        params={"n": range(4, 1 << 20, 16)},
    ),
    "an element of a vector of arguments takes the place of what was there": Case(
        "mov.u32 %r4, 16; .param .align 8 .b8 at[8]; st.param.b32 [at+4], 0;"
        "st.param.v2.b32 [at], {%r0, %r4}; call put, (at);",
        "mov.u32 %r4, 0; .param .align 8 .b8 at[8]; st.param.b32 [at+4], 16;"
        "st.param.v2.b32 [at], {%r0, %r4}; call put, (at);",
        before=".func put(.param .align 8 .b8 at[8]) { .reg .b32 %r<3>; "
        ".shared .align 16 .b8 own[64]; ld.param.u32 %r0, [at+4]; mov.u32 %r1, own;"
        "mad.lo.u32 %r2, %r0, 4, %r1; st.shared.u32 [%r2], %r0; ret; }\n",
        buf=16,
    ),
    "what threads chose by their numbers may differ at a barrier": Case(
        "mov.u32 %r4, 0; setp.lt.u32 %p1, %r0, 32; @%p1 bra on; mov.u32 %r4, 1;\non:" + MEET,
        "mov.u32 %r4, 0; setp.lt.u32 %p1, %r1, 32; @%p1 bra on; mov.u32 %r4, 1;\non:" + MEET,
        block=64,
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_no_access_to_shared_memory_that_faults_is_proved(name: str) -> None:
    check(SHARED[name], shared)


@pytest.mark.parametrize(
    "guard",
    [
        "setp.hi.u32 %p1, %r5, 15; @%p1 bra end;",
        "setp.hs.u32 %p1, %r5, 16; @%p1 bra end;",
        "setp.gt.u32 %p1, %r5, 15; @%p1 bra end;",
        "setp.ge.u32 %p1, %r5, 16; @%p1 bra end;",
        "setp.lo.u32 %p1, %r5, 16; @!%p1 bra end;",
        "setp.ls.u32 %p1, %r5, 15; @!%p1 bra end;",
        "setp.lt.u32 %p1, %r5, 16; @!%p1 bra end;",
        "setp.le.u32 %p1, %r5, 15; @!%p1 bra end;",
        "setp.lo.u32 %p1, 15, %r5; @%p1 bra end;",
        "setp.ls.u32 %p1, 16, %r5; @%p1 bra end;",
        "setp.hs.u32 %p1, 15, %r5; @!%p1 bra end;",
        "setp.hi.u32 %p1, 16, %r5; @!%p1 bra end;",
        "setp.eq.u32 %p1, 15, %r5; @!%p1 bra end;",
        "setp.ne.u32 %p1, %r5, 15; @%p1 bra end;",
        "setp.ne.s32 %p1, 15, %r5; @%p1 bra end;",
    ],
)
def test_each_comparison_bounds_what_comes_from_memory(guard: str) -> None:
    body = f"ld.global.u32 %r5, [%rd0]; {guard} {PUT}\nend:"
    assert prove_shared(kernel(body, 64), block=32).complete
    assert not prove_shared(kernel(body, 60), block=32).complete


@pytest.mark.parametrize(
    "computed", ["div.u32 %r5, %r5, 0x100000;", "xor.b32 %r5, %r5, 0x777777; shr.u32 %r5, %r5, 20;"]
)
def test_what_is_computed_from_memory_is_bounded(computed: str) -> None:
    body = "ld.global.u32 %r5, [%rd0]; and.b32 %r5, %r5, 0xFFFFFF;" + computed
    assert prove_shared(kernel(body + PUT, 64), block=32).complete
    assert not prove_shared(kernel(body + PUT, 60), block=32).complete


def test_the_distance_of_two_addresses_of_a_variable_is_a_number() -> None:
    body = "mad.lo.u32 %r4, %r0, 4, %r8; sub.u32 %r5, %r4, %r8; shr.u32 %r5, %r5, 2;" + PUT
    assert prove_shared(kernel(body, 128), block=32).complete


@pytest.mark.parametrize(("most", "is_proved"), [(3, True), (15, False)])
def test_an_address_that_is_chosen_may_be_of_either_variable(most: int, is_proved: bool) -> None:
    body = (
        "mov.u32 %r4, small; ld.global.u32 %r5, [%rd0]; setp.eq.u32 %p1, %r5, 0;"
        f"selp.b32 %r8, %r8, %r4, %p1; and.b32 %r5, %r5, {most};{PUT}"
    )
    result = prove_shared(kernel(body, 64, ".shared .align 16 .b8 small[16];\n"), block=32)
    assert result.complete == is_proved


@pytest.mark.parametrize(("block", "is_proved"), [(2, True), (3, False)])
def test_every_rank_that_an_address_is_mapped_to_is_that_of_a_cta(block: int, is_proved: bool) -> None:
    body = "mapa.shared::cluster.u32 %r9, %r8, %r0; st.shared::cluster.u32 [%r9], %r0;"
    cluster = ") .reqnctapercluster 2, 1, 1\n{"
    text = kernel(body, 16).replace(")\n{", cluster, 1)
    assert prove_shared(text, block=block).complete == is_proved


@pytest.mark.parametrize(("ctas", "is_proved"), [(4, True), (5, False)])
def test_the_rank_of_a_cta_is_below_the_number_of_ctas(ctas: int, is_proved: bool) -> None:
    body = "mov.u32 %r5, %cluster_ctarank;" + PUT
    cluster = f") .reqnctapercluster {ctas}, 1, 1\n{{"
    text = kernel(body, 16).replace(")\n{", cluster, 1)
    assert prove_shared(text, block=32).complete == is_proved


@pytest.mark.parametrize("hint", ["prefetch.global.L2 [%rd0];", "discard.global.L2 [%rd0], 128;"])
def test_memory_that_is_only_named_is_read_alike_twice(hint: str) -> None:
    body = TWICE.format(hint) + PUT + "end:"
    assert prove_shared(kernel(body, 64), block=32).complete


def test_a_lane_gives_its_value_behind_a_condition_of_the_whole_warp() -> None:
    body = (
        "setp.gt.u32 %p1, %r1, 9; @%p1 bra end; and.b32 %r4, %r0, 31;"
        "shfl.sync.idx.b32 %r5, %r4, 3, 31, -1;" + PUT + "end:"
    )
    assert prove_shared(kernel(body, 16), block=64).complete


def test_a_lane_gives_what_is_the_same_in_all() -> None:
    body = "mov.u32 %r4, 3; shfl.sync.idx.b32 %r5, %r4, 2, 31, -1;" + PUT
    assert prove_shared(kernel(body, 16), block=32).complete


PUT_AT = ".func put(.param .b32 {0}) {{ .reg .b32 %r<2>; .reg .b64 %rd1; {1} st.shared.u32 [%r1], 1; }}\n"
CLASH = "a variable in shared memory has the name of another variable"
NO_VARIABLE = "its address is not computed from a shared variable"


@pytest.mark.parametrize(
    ("before", "reasons"),
    [
        (PUT_AT.format("buf", "ld.param.u32 %r1, [buf];"), []),
        (".shared .b8 own[64];\n" + PUT_AT.format("own", "mov.u32 %r1, own;"), [NO_VARIABLE]),
        (PUT_AT.format("to", ".shared .b8 buf[64]; mov.u32 %r1, buf;"), [CLASH]),
        (
            ".global .align 16 .b8 buf[64];\n"
            + PUT_AT.format("to", "mov.u64 %rd1, buf; cvt.u32.u64 %r1, %rd1;"),
            [NO_VARIABLE],
        ),
        (
            ".global .align 16 .b8 own[64];\n"
            + PUT_AT.format("to", ".shared .align 16 .b8 own[64]; mov.u32 %r1, own;"),
            [CLASH],
        ),
        (
            ".shared .align 16 .b8 buf[16];\n"
            + PUT_AT.format("to", "mov.u64 %rd1, buf; st.u32 [%rd1], 1; mov.u32 %r1, buf;"),
            [CLASH, CLASH],
        ),
    ],
)
def test_a_name_in_a_function_is_not_that_of_another_variable(before: str, reasons: list[str]) -> None:
    body = ".param .b32 at; st.param.b32 [at], %r8; call put, (at);"
    result = prove_shared(kernel(body, 64, before), block=32)
    assert [v.reason.partition(", called")[0] for v in result.unknown] == reasons
    assert not result.violations


# ------------------------------------------------------------------------------ global memory

Y_AT = "mad.wide.s32 %rd3, %r5, 4, %rd1;"
X_STORE = "mad.wide.s32 %rd3, %r5, 4, %rd0; st.global.u32 [%rd3], %r0;"
STORE = Y_AT + "st.global.u32 [%rd3], %r0;"
# Y at a sum of steps of 0 to 5; the turns go on while their number times the last step is below m.
STEPS = (
    "mov.u32 %r5, 0; mov.u32 %r9, 0; {}\nL:" + STORE + "{} add.u32 %r5, %r5, %r4;"
    "add.u32 %r9, %r9, 1; mul.lo.u32 %r6, %r9, %r4; setp.lt.s32 %p1, %r6, %r2; @%p1 bra L;"
)
# Two functions that give the distance from an address to g, the own one or that of the module.
TO_G = (
    ".func (.reg .b64 %back) {}(.reg .b64 %to) {{ .reg .b64 %rd1; {} mov.u64 %rd1, g; "
    "sub.u64 %back, %rd1, %to; ret; }}\n"
)
G = (
    ".global .align 4 .b8 g[64];\n"
    + TO_G.format("to_own", ".local .align 4 .b8 g[64];")
    + TO_G.format("to_that", "")
)
FROM_G = "mov.u64 %rd4, g; call (%rd5), {}, (%rd4); add.u64 %rd3, %rd5, %rd1; st.global.u32 [%rd3], %r0;"
GLOBAL = {
    "a variable of a function hides the one of the module": Case(
        FROM_G.format("to_own"), FROM_G.format("to_that"), before=G
    ),
    "a variable of the kernel hides the one that a function names": Case(
        ".local .align 4 .b8 g[64];" + FROM_G.format("to_that"), FROM_G.format("to_that"), before=G
    ),
    "a parameter of the kernel hides the variable that a function names": Case(
        FROM_G.format("to_m").replace("g;", "m;"),
        FROM_G.format("to_that"),
        before=G + ".global .align 4 .b8 m[64];\n" + TO_G.format("to_m", "").replace("g;", "m;"),
    ),
    "what is made of a loop's counter is another number in each turn": Case(
        STEPS.format("", "xor.b32 %r4, %r9, %r1; min.u32 %r4, %r4, 5;"),
        STEPS.format("xor.b32 %r4, %r2, %r1; min.u32 %r4, %r4, 5;", ""),
        x=(0,) * 4,
        y=(0,) * 21,
    ),
    "above an unsigned limit a number may be negative": Case(
        "ld.global.u32 %r4, [%rd0]; min.s32 %r4, %r4, 5; max.s32 %r4, %r4, -5;"
        "setp.gt.u32 %p1, %r4, 4; @!%p1 bra end; add.s32 %r5, %r4, -5;" + STORE + "end:",
        "ld.global.u32 %r4, [%rd0]; min.s32 %r4, %r4, 5; max.s32 %r4, %r4, -5;"
        "setp.gt.s32 %p1, %r4, 4; @!%p1 bra end; add.s32 %r5, %r4, -5;" + STORE + "end:",
        x=(-5,),
    ),
    "what is not below an unsigned limit may be negative": Case(
        "ld.global.u32 %r4, [%rd0]; min.s32 %r4, %r4, 5; max.s32 %r4, %r4, -5;"
        "setp.le.u32 %p1, %r4, 4; @%p1 bra end; add.s32 %r5, %r4, -5;" + STORE + "end:",
        "ld.global.u32 %r4, [%rd0]; min.s32 %r4, %r4, 5; max.s32 %r4, %r4, -5;"
        "setp.le.s32 %p1, %r4, 4; @%p1 bra end; add.s32 %r5, %r4, -5;" + STORE + "end:",
        x=(-5,),
    ),
    "the second predicate of a comparison is its opposite": Case(
        "setp.lt.s32 %p1|%p2, %r0, %r2; mov.u32 %r5, %r0; @!%p2 bra end; bra no;\nend: ret;\nno:" + STORE,
        "setp.lt.s32 %p1|%p2, %r0, %r2; mov.u32 %r5, %r0; @!%p1 bra end; bra no;\nend: ret;\nno:" + STORE,
    ),
    "a part of a parameter is another number": Case(
        "ld.param.u16 %r4, [m]; sub.u32 %r5, %r2, %r4;" + X_STORE,
        "ld.param.u32 %r4, [m]; sub.u32 %r5, %r2, %r4;" + X_STORE,
        y=(0,) * 70000,
    ),
    "an element of a vector of parameters is another number": Case(
        "ld.param.v2.u32 {%r4, %r5}, [n]; sub.u32 %r5, %r5, %r1;" + X_STORE,
        "ld.param.v2.u32 {%r4, %r5}, [n]; sub.u32 %r5, %r4, %r1;" + X_STORE,
        y=(0,) * 10,
    ),
    "two places of a variable are not the same": Case(
        "mov.u64 %rd4, g+64; mov.u64 %rd5, g; sub.u64 %rd4, %rd4, %rd5; add.u64 %rd3, %rd4, %rd1;"
        "st.global.u32 [%rd3], %r0;",
        "mov.u64 %rd4, g+64; mov.u64 %rd5, g+64; sub.u64 %rd4, %rd4, %rd5;"
        "add.u64 %rd3, %rd4, %rd1;"
        "st.global.u32 [%rd3], %r0;",
        before=".global .align 4 .b8 g[128];\n",
    ),
    "a pointer plus an address in shared memory is none in shared memory": Case(
        "cvt.u64.u32 %rd3, %r8; add.u64 %rd3, %rd3, %rd1; st.u32 [%rd3+64], %r0;",
        "cvt.u64.u32 %rd3, %r8; cvta.shared.u64 %rd3, %rd3; st.u32 [%rd3], %r0;",
    ),
    "what is chosen by a predicate of thread numbers has its own sign": Case(
        "setp.lt.u32 %p1, %r0, 16; sub.u32 %r4, 0, %r2; add.u32 %r4, %r4, 1;"
        "selp.b32 %r5, %r4, 0, %p1;" + STORE,
        "setp.lt.u32 %p1, %r0, 16; sub.u32 %r4, %r2, 1; selp.b32 %r5, %r4, 0, %p1;" + STORE,
        y=(0, 0, 0),
    ),
}


@pytest.mark.parametrize("name", GLOBAL)
def test_no_access_to_global_memory_that_faults_is_proved(name: str) -> None:
    check(GLOBAL[name], in_global)


def test_predicates_that_are_chosen_are_no_numbers() -> None:
    body = (
        "setp.lt.u32 %p1, %r0, %r2; setp.lt.u32 %p2, %r0, 7; mov.u32 %r5, %r0; mov.pred %p3, %p2;"
        "@%p2 mov.pred %p3, %p1; @!%p2 bra on; mov.pred %p1, %p3;\non: @%p1 bra go; ret;\ngo:"
    )
    (result,) = prove_global(kernel(body + STORE, 64), block=32, contract=CONTRACT).accesses
    assert result.verdict == "unknown"
