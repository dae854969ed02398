"""What the sanitizers say of asynchronous instructions of sm_90a, each with one seeded bug; and
what schedules drawn from seeds do to their times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interpreter import test_hopper_programs as hopper
from interpreter.both_paths import run_both_ways
from interpreter.programs import line_of

from ptxgen.errors import TrapError
from ptxgen.interpreter import PCT, DeviceArena, Report, run
from ptxgen.tensormap import TensorMap

Array = np.ndarray[Any, np.dtype[Any]]


def reports(text: str, args: list[Any], **how: Any) -> tuple[Report, ...]:
    arena = DeviceArena()
    arrays = [x for x in args if isinstance(x, np.ndarray)]
    if arrays:
        arena.place(arrays[0], name="x")  # where it lies is known, then
    launch = {"grid": 1, "block": 128, "raise_on_report": False, **how}
    return run_both_ways(text, args=args, arena=arena, **launch).reports


def messages(text: str, args: list[Any], **how: Any) -> list[str]:
    return [r.message for r in reports(text, args, **how)]


def at(text: str, instruction: str, nth: int = 0) -> str:
    """How a report names the nth line that holds an instruction."""
    line = line_of(text, instruction, nth)
    return f"{text.splitlines()[line - 1].strip().rpartition('$')[2]} (line {line})"


# ---------------------------------------- registers of wgmma

MULTIPLY = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
DESCRIPTOR = hopper.descriptor(1024, 128, "none")
D = "{%f0, %f1, %f2, %f3}"
MMA = f"{MULTIPLY} {D}, %rd4, %rd5, 1, 1, 1, 0, 0;"
FRAGMENT_MMA = f"{MULTIPLY} {D}, {{%a0, %a1, %a2, %a3}}, %rd5, 1, 1, 1, 0;"
FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
SMEM = 2048 + 512  # bytes of A, 64 x 16 in f16, and of B, 16 x 16


def tiles(body: str, params: str = "u64 out") -> str:
    """A kernel in which 128 threads of each warpgroup have made a tile of A and of B, all ones, and
    then run `body`; %r0 is the thread, %p0 whether it is not the first, %rd1 where its four sums
    go.
    """
    return hopper.kernel(
        params,
        f"""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    setp.ne.u32 %p0, %r0, 0;
    and.b32 %r2, %r0, 127;
    shl.b32 %r3, %r2, 4;
    add.u32 %r3, %r3, %r1;
    mov.u32 %r4, 0x3C003C00;
    setp.ge.u32 %p1, %r0, 128;
    @%p1 bra $made;
    st.shared.v4.u32 [%r3], {{%r4, %r4, %r4, %r4}};
    setp.lt.u32 %p2, %r0, 32;
    @%p2 st.shared.v4.u32 [%r3+2048], {{%r4, %r4, %r4, %r4}};
    fence.proxy.async;
$made:
    bar.sync 0;
{hopper.operand("%rd4", "%r1", DESCRIPTOR)}
    add.u32 %r5, %r1, 2048;
{hopper.operand("%rd5", "%r5", hopper.descriptor(128, 256, "none"))}
    ld.param.u64 %rd1, [out];
    mul.wide.u32 %rd2, %r0, 16;
    add.u64 %rd1, %rd1, %rd2;
    mov.f32 %f0, 0f00000000;
    mov.f32 %f1, 0f00000000;
    mov.f32 %f2, 0f00000000;
    mov.f32 %f3, 0f00000000;
    mov.b64 {{%f4, %f5}}, 0;
    mov.b64 {{%f6, %f7}}, 0;
    mov.u32 %a0, %r4;
    mov.u32 %a1, %r4;
    mov.u32 %a2, %r4;
    mov.u32 %a3, %r4;
    mov.b16 %h0, 0x3C00;
{body}
""",
    )


STORE = "st.global.v4.f32 [%rd1], {%f0, %f1, %f2, %f3};"


def lines(*parts: str) -> str:
    return "".join(f"    {part}\n" for part in parts)


def found(text: str, threads: int = 128) -> tuple[Report, ...]:
    out = np.zeros((threads, 4), np.float32)
    return reports(text, [out], block=threads, dynamic_smem=SMEM + 64)


CORRECT = {
    "at once": lines(FENCE, MMA, COMMIT, WAIT, STORE),
    "chained": lines(FENCE, MMA, MMA, COMMIT, MMA, COMMIT, WAIT, STORE),
    "A in registers": lines(FENCE, FRAGMENT_MMA, FRAGMENT_MMA, COMMIT, WAIT, STORE),
    "copied after the fence": lines(FENCE, "mov.f32 %f0, %f1;", MMA, COMMIT, WAIT, STORE),
    "packed before the fence": lines("mov.b32 %a3, {%h0, %h0};", FENCE, FRAGMENT_MMA, COMMIT, WAIT, STORE),
    "changed before the fence": lines("add.f32 %f0, %f0, %f0;", FENCE, MMA, COMMIT, WAIT, STORE),
    "fenced between shapes": lines(
        FENCE,
        MMA,
        FENCE,
        MMA.replace("n8", "n16").replace("%f3}", "%f3, %f4, %f5, %f6, %f7}"),
        COMMIT,
        WAIT,
        STORE,
    ),
    "others in flight": lines(
        FENCE,
        MMA,
        COMMIT,
        MMA.replace(D, "{%f4, %f5, %f6, %f7}"),
        COMMIT,
        "wgmma.wait_group.sync.aligned 1;",
        STORE,
        WAIT,
    ),
    # What no way through a kernel does at once, the text alone cannot tell.
    "waited for on the way that needs it": lines(
        "setp.lt.u32 %p3, %r0, 128;",
        FENCE,
        "@!%p3 bra $skip;",
        MMA,
        COMMIT,
        "$skip:",
        "@!%p3 bra $other;",
        WAIT,
        "$other:",
        STORE,
    ),
}


@pytest.mark.parametrize("threads", [128, 256])
@pytest.mark.parametrize("case", CORRECT)
def test_correct_uses_of_wgmma_have_no_report(case: str, threads: int) -> None:
    assert found(tiles(CORRECT[case]), threads) == ()


def test_a_warpgroup_may_close_a_group_that_nothing_waits_for() -> None:
    text = hopper.kernel("u64 x", lines(FENCE, COMMIT))
    assert reports(text, [np.zeros(1, np.uint32)]) == ()


@pytest.mark.parametrize(
    ("body", "where", "user", "why"),
    [
        # Once is enough for one multiplication.
        (
            (FENCE, MMA, COMMIT, STORE, "add.f32 %f0, %f0, %f1;", STORE, WAIT),
            STORE,
            MMA,
            "touches %f0, which a wgmma.mma_async may still use: nothing has waited for it",
        ),
        (
            (
                FENCE,
                MMA,
                COMMIT,
                MMA.replace(D, "{%f4, %f5, %f6, %f7}"),
                COMMIT,
                "wgmma.wait_group.sync.aligned 2;",
                STORE,
                WAIT,
            ),
            STORE,
            MMA,
            "touches %f0, which a wgmma.mma_async may still use: nothing has waited for it",
        ),
        (
            (FENCE, MMA, WAIT, STORE),
            STORE,
            MMA,
            "touches %f0, which a wgmma.mma_async may still use: it is in no group, so no wait covers it",
        ),
        (
            (FENCE, FRAGMENT_MMA, COMMIT, "add.u32 %a2, %a2, 1;", WAIT, STORE),
            "add.u32 %a2",
            FRAGMENT_MMA,
            "touches %a2, which a wgmma.mma_async may still use: nothing has waited for it",
        ),
        (
            (FENCE, MMA, COMMIT, "mov.f32 %f2, 0f00000000;", WAIT, STORE),
            ("mov.f32 %f2", 1),
            MMA,
            "touches %f2, which a wgmma.mma_async may still use: nothing has waited for it",
        ),
        ((MMA, COMMIT, WAIT, STORE), MMA, None, "no wgmma.fence comes before it"),
        (
            (FENCE, "add.f32 %f1, %f1, %f1;", MMA, COMMIT, WAIT, STORE),
            MMA,
            None,
            "no wgmma.fence comes between it and what wrote %f1",
        ),
        (
            (FENCE, "add.u32 %a3, %a3, 1;", FRAGMENT_MMA, COMMIT, WAIT, STORE),
            FRAGMENT_MMA,
            None,
            "no wgmma.fence comes between it and what wrote %a3",
        ),
        # Copies of what an instruction behind the fence has written.
        (
            (
                FENCE,
                "add.u32 %r6, %a3, 1;",
                "mov.u32 %r7, %r6;",
                "mov.u32 %a3, %r7;",
                FRAGMENT_MMA,
                COMMIT,
                WAIT,
                STORE,
            ),
            FRAGMENT_MMA,
            None,
            "no wgmma.fence comes between it and what wrote %a3",
        ),
        # A copy, but one that takes an instruction.
        (
            (FENCE, "mov.b32 %a3, {%h0, %h0};", FRAGMENT_MMA, COMMIT, WAIT, STORE),
            FRAGMENT_MMA,
            None,
            "no wgmma.fence comes between it and what wrote %a3",
        ),
        (
            (
                FENCE,
                MMA,
                MMA.replace("n8", "n16").replace("%f3}", "%f3, %f4, %f5, %f6, %f7}"),
                COMMIT,
                WAIT,
                STORE,
            ),
            "m64n16k16",
            MMA,
            "uses %f0, which another wgmma.mma_async may still use as an accumulator of m64n8k16; no "
            "wgmma.fence or wait comes between",
        ),
        (
            (
                FENCE,
                FRAGMENT_MMA.replace("%a", "%c"),
                MMA.replace(D, "{%c0, %c1, %c2, %c3}").replace(".f32.f16", ".f32.f16"),
                COMMIT,
                WAIT,
                STORE,
            ),
            "%rd4, %rd5, 1, 1",
            FRAGMENT_MMA.replace("%a", "%c"),
            "uses %c0, which another wgmma.mma_async may still use as part of A; no wgmma.fence or "
            "wait comes between",
        ),
    ],
)
def test_registers_of_wgmma_are_left_alone_until_the_wait(
    body: tuple[str, ...], where: Any, user: str | None, why: str
) -> None:
    text = tiles(
        "".join(f"    mov.u32 %c{n}, %r4;\n" for n in range(4) if "%c0" in "".join(body)) + lines(*body)
    )
    place = at(text, *(where if isinstance(where, tuple) else (where,)))
    other = "" if user is None else at(text, user)
    (report,) = found(text)
    assert report == Report(
        "sync",
        "",
        0,
        "",
        (0, 0, 0),
        (0,),
        place,
        other,
        f"kernel k: {place}: thread (0, 0, 0) of CTA (0, 0, 0): sync: {why}"
        + (f"; it was started by {other}" if other else ""),
    )


def test_the_wait_that_one_warpgroup_of_one_block_skips_is_found() -> None:
    body = lines(
        "mov.u32 %r6, %ctaid.x;",
        "setp.lt.u32 %p3, %r0, 128;",
        "setp.ne.or.u32 %p3, %r6, 1, %p3;",
        FENCE,
        MMA,
        COMMIT,
        "@!%p3 bra $late;",
        WAIT,
        "$late:",
        "setp.eq.u32 %p4, %r6, 1;",
        "@%p4 bra $one;",
        "bra $end;",
        "$one:",
        "@%p3 st.global.f32 [%rd1], %f0;",
        "@!%p3 st.global.f32 [%rd1], %f1;",
        "$end:",
    )
    text = tiles(body)
    out = np.zeros((256, 4), np.float32)
    (report,) = reports(text, [out], grid=2, block=256, dynamic_smem=SMEM)
    assert report.cta == (1, 0, 0)
    assert report.threads == (128,)
    assert report.instr == at(text, "@!%p3 st.global")


REFILL = """
    add.u32 %r7, %r1, 2560;
    @%p0 bra $refilled;
    mbarrier.init.shared::cta.b64 [%r7], 1;
    fence.proxy.async;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], 16;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r7];
$again:
    mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r7], 0;
    @!%p5 bra $again;
$refilled:
"""


@pytest.mark.parametrize(
    ("early", "line"),
    [
        ("    st.shared.u32 [%r3], %r0;\n", "st.shared.u32 [%r3]"),
        ("    @%p2 st.shared.u32 [%r3+2048], %r0;\n", "@%p2 st.shared.u32 [%r3+2048], %r0"),
        (REFILL, "cp.async.bulk.shared::cluster"),
    ],
)
def test_a_tile_is_left_alone_until_the_wait(early: str, line: str) -> None:
    sync = lines("bar.sync 0;")
    assert found(tiles(lines(FENCE, MMA, COMMIT, WAIT) + sync + early + lines(STORE))) == ()
    text = tiles(lines(FENCE, MMA, COMMIT) + sync + early + lines(WAIT, STORE))
    (report,) = found(text)
    place, other = at(text, line), at(text, MMA)
    assert report == Report(
        "race",
        "shared",
        report.address,
        "",
        (0, 0, 0),
        (0, 0),
        place,
        other,
        f"kernel k: {place}: thread (0, 0, 0) of CTA (0, 0, 0): race: shared address "
        f"{report.address:#x} may still be read by thread (0, 0, 0) in {other}; its warp has not "
        "waited for it with wgmma.wait_group",
    )
    assert report.address == (0x800 if "+2048" in line else 0)


# ---------------------------------------- bulk copies in global memory

STORE_BULK = "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 256;"
COMMIT_BULK = "cp.async.bulk.commit_group;"
LOAD_BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0], 256, [%r3];"
READ_BACK = "ld.global.u32 %r9, [%rd1];"


def bulk(*body: str) -> str:
    """A kernel whose 64 threads have filled 256 bytes at %r1; 256 more are at %r2, and an mbarrier
    at %r3. %rd0 is `x`, %rd1 the thread's word of it, %rd2 `flag`, %r8 the CTA; `%p0` whether the
    thread is not the first, `%p1` whether the CTA is not.
    """
    return hopper.kernel(
        "u64 x, u64 flag",
        f"""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    add.u32 %r2, %r1, 256;
    add.u32 %r3, %r1, 512;
    setp.ne.u32 %p0, %r0, 0;
    mov.u32 %r8, %ctaid.x;
    setp.ne.u32 %p1, %r8, 0;
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd2, [flag];
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd1, %rd0, %rd1;
    shl.b32 %r4, %r0, 2;
    add.u32 %r4, %r4, %r1;
    st.shared.u32 [%r4], %r0;
    @!%p0 mbarrier.init.shared::cta.b64 [%r3], 1;
    fence.proxy.async.shared::cta;
    bar.sync 0;
{lines(*body)}
$end:
""",
    )


def global_reports(text: str, **how: Any) -> tuple[Report, ...]:
    args = [np.zeros(64, np.uint32), np.zeros(1, np.uint32)]
    return reports(text, args, **{"block": 64, "dynamic_smem": 520, **how})


def kinds(text: str, **how: Any) -> list[tuple[str, str]]:
    return sorted({(r.kind, r.instr) for r in global_reports(text, **how)})


WAIT_BULK = "cp.async.bulk.wait_group 0;"
WAIT_READ = "cp.async.bulk.wait_group.read 0;"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;"
WAIT_FULL = ("$full:", "mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], 0;", "@!%p3 bra $full;")
RELEASE = "st.release.gpu.global.u32 [%rd2], 1;"
ACQUIRE = ("$spin:", "ld.acquire.gpu.global.u32 %r7, [%rd2];", "setp.eq.u32 %p4, %r7, 0;", "@%p4 bra $spin;")
FENCE_ALL = "fence.proxy.async;"
OTHER_CTA = ("bra $end;", "$second:", "@%p0 bra $end;")
SPLIT = ("@%p1 bra $second;", "@%p0 bra $end;")  # the rest is for the first threads of two CTAs


@pytest.mark.parametrize(
    ("body", "grid"),
    [
        ((*SPLIT[1:], STORE_BULK, COMMIT_BULK, WAIT_BULK, READ_BACK), 1),
        # Another warp reads, ordered by a barrier after the wait.
        (("@%p0 bra $ready;", STORE_BULK, COMMIT_BULK, WAIT_BULK, "$ready:", "bar.sync 0;", READ_BACK), 1),
        # Another CTA reads, ordered by a flag after the wait; or copies.
        ((*SPLIT, STORE_BULK, COMMIT_BULK, WAIT_BULK, RELEASE, *OTHER_CTA, *ACQUIRE, READ_BACK), 2),
        (
            (
                *SPLIT,
                STORE_BULK,
                COMMIT_BULK,
                WAIT_BULK,
                RELEASE,
                *OTHER_CTA,
                *ACQUIRE,
                EXPECT,
                LOAD_BULK,
                *WAIT_FULL,
            ),
            2,
        ),
        # The source may be overwritten after the wait for its read.
        ((*SPLIT[1:], STORE_BULK, COMMIT_BULK, WAIT_READ, "st.shared.u32 [%r1], 7;"), 1),
        # What others wrote is fenced by the writer, or by the reader after it has seen the flag.
        (
            (
                "st.global.u32 [%rd1], %r0;",
                FENCE_ALL,
                "bar.sync 0;",
                "@%p0 bra $end;",
                EXPECT,
                LOAD_BULK,
                *WAIT_FULL,
            ),
            1,
        ),
        (
            (
                "st.global.u32 [%rd1], %r0;",
                "bar.sync 0;",
                "@%p0 bra $end;",
                "fence.proxy.async.global;",
                EXPECT,
                LOAD_BULK,
                *WAIT_FULL,
            ),
            1,
        ),
        (
            (
                *SPLIT,
                "st.global.u32 [%rd0], 5;",
                FENCE_ALL,
                RELEASE,
                *OTHER_CTA,
                *ACQUIRE,
                EXPECT,
                LOAD_BULK,
                *WAIT_FULL,
            ),
            2,
        ),
        (
            (
                *SPLIT,
                "st.global.u32 [%rd0], 5;",
                RELEASE,
                *OTHER_CTA,
                *ACQUIRE,
                FENCE_ALL,
                EXPECT,
                LOAD_BULK,
                *WAIT_FULL,
            ),
            2,
        ),
        # The source of a load may be overwritten after its wait, also by another CTA.
        (("@!%p0 " + EXPECT, "@!%p0 " + LOAD_BULK, *WAIT_FULL, "st.global.u32 [%rd1], %r0;"), 1),
        (
            (
                *SPLIT,
                EXPECT,
                LOAD_BULK,
                *WAIT_FULL,
                RELEASE,
                *OTHER_CTA,
                *ACQUIRE,
                "st.global.u32 [%rd0], 5;",
            ),
            2,
        ),
        # Reductions of many CTAs meet, and atomic operations with them.
        (
            (
                "@%p0 bra $end;",
                "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [%r1], 256;",
                COMMIT_BULK,
                WAIT_READ,
                "red.relaxed.gpu.global.add.u32 [%rd0], 1;",
            ),
            4,
        ),
    ],
)
def test_bulk_copies_in_order_have_no_report_in_global_memory(body: tuple[str, ...], grid: int) -> None:
    assert global_reports(bulk(*body), grid=grid) == ()


@pytest.mark.parametrize(
    ("body", "grid", "kind", "line", "why"),
    [
        (
            (*SPLIT[1:], STORE_BULK, COMMIT_BULK, READ_BACK, WAIT_BULK),
            1,
            "pending",
            READ_BACK,
            f"may still be written by the copy {STORE_BULK}",
        ),
        # `.read` waits for the source only.
        (
            (*SPLIT[1:], STORE_BULK, COMMIT_BULK, WAIT_READ, READ_BACK),
            1,
            "pending",
            READ_BACK,
            f"may still be written by the copy {STORE_BULK}",
        ),
        (
            (*SPLIT, STORE_BULK, COMMIT_BULK, WAIT_READ, RELEASE, *OTHER_CTA, *ACQUIRE, READ_BACK),
            2,
            "pending",
            READ_BACK,
            f"may still be written by the copy {STORE_BULK}",
        ),
        (
            (
                "@%p0 bra $ready;",
                STORE_BULK,
                COMMIT_BULK,
                WAIT_BULK,
                "$ready:",
                "setp.lt.u32 %p2, %r0, 32;",
                "@%p2 bra $end;",
                READ_BACK,
            ),
            1,
            "race",
            READ_BACK,
            f"was written by thread (0, 0, 0) in {STORE_BULK}",
        ),
        # Two CTAs store to the same bytes.
        (
            ("@%p0 bra $end;", STORE_BULK, COMMIT_BULK, WAIT_BULK),
            2,
            "pending",
            STORE_BULK,
            f"may still be written by the copy {STORE_BULK}",
        ),
        # A flag that is not released orders nothing.
        (
            (
                *SPLIT,
                STORE_BULK,
                COMMIT_BULK,
                WAIT_BULK,
                RELEASE.replace("release", "relaxed"),
                *OTHER_CTA,
                *ACQUIRE,
                READ_BACK,
            ),
            2,
            "race",
            READ_BACK,
            f"was written by thread (0, 0, 0) of CTA (0, 0, 0) in {STORE_BULK}",
        ),
        # No fence lets a copy see what ordinary instructions wrote.
        (
            ("st.global.u32 [%rd1], %r0;", "bar.sync 0;", "@%p0 bra $end;", EXPECT, LOAD_BULK, *WAIT_FULL),
            1,
            "proxy",
            LOAD_BULK,
            "was written by thread (0, 0, 0) in st.global.u32 [%rd1], %r0;",
        ),
        (
            (
                "st.global.u32 [%rd1], %r0;",
                "fence.proxy.async.shared::cta;",
                "bar.sync 0;",
                "@%p0 bra $end;",
                EXPECT,
                LOAD_BULK,
                *WAIT_FULL,
            ),
            1,
            "proxy",
            LOAD_BULK,
            "was written by thread (0, 0, 0) in st.global.u32 [%rd1], %r0;",
        ),
        (
            (
                *SPLIT,
                "st.global.u32 [%rd0], 5;",
                RELEASE,
                *OTHER_CTA,
                *ACQUIRE,
                EXPECT,
                LOAD_BULK,
                *WAIT_FULL,
            ),
            2,
            "proxy",
            LOAD_BULK,
            "was written by thread (0, 0, 0) of CTA (0, 0, 0) in st.global.u32 [%rd0], 5;",
        ),
        # The source of a load is left alone until the wait.
        (
            (
                "@!%p0 " + EXPECT,
                "@!%p0 " + LOAD_BULK,
                "bar.sync 0;",
                "setp.lt.u32 %p2, %r0, 32;",
                "@%p2 bra $full;",
                "st.global.u32 [%rd1], %r0;",
                *WAIT_FULL,
            ),
            1,
            "race",
            "st.global.u32",
            f"may still be read by thread (0, 0, 0) in @!%p0 {LOAD_BULK}",
        ),
        (
            (*SPLIT, EXPECT, LOAD_BULK, RELEASE, *OTHER_CTA, *ACQUIRE, "st.global.u32 [%rd0], 5;"),
            2,
            "race",
            "st.global.u32 [%rd0]",
            f"may still be read by thread (0, 0, 0) of CTA (0, 0, 0) in {LOAD_BULK}",
        ),
        (
            (
                "@%p0 bra $end;",
                "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [%r1], 256;",
                "st.global.u32 [%rd0], 1;",
                COMMIT_BULK,
                WAIT_BULK,
            ),
            1,
            "pending",
            "st.global.u32 [%rd0]",
            "may still be written by the copy cp.reduce.async.bulk.global",
        ),
    ],
)
def test_bulk_copies_out_of_order_are_found_in_global_memory(
    body: tuple[str, ...], grid: int, kind: str, line: str, why: str
) -> None:
    text = bulk(*body)
    found = global_reports(text, grid=grid)
    report = found[0]
    assert [r.kind for r in found if r.space == "global"] == [kind]
    assert (report.space, report.region, report.instr) == ("global", "x", at(text, line))
    assert why in report.message


def test_the_whole_report_of_a_copy_in_global_memory() -> None:
    text = bulk(*SPLIT, STORE_BULK, COMMIT_BULK, WAIT_READ, RELEASE, *OTHER_CTA, *ACQUIRE, READ_BACK)
    place, other = at(text, READ_BACK), at(text, STORE_BULK)
    assert global_reports(text, grid=2) == (
        Report(
            "pending",
            "global",
            0x200000000,
            "x",
            (1, 0, 0),
            (0,),
            place,
            other,
            f"kernel k: {place}: thread (0, 0, 0) of CTA (1, 0, 0): pending: global address "
            f"0x200000000 (x) may still be written by the copy {other}; its thread has not waited "
            "for its group",
        ),
    )


TILE_LOAD = ("@!%p0 " + EXPECT, "@!%p0 " + LOAD_BULK)
READ_TILE = "ld.shared.u32 %r9, [%r4+256];"


@pytest.mark.parametrize(
    ("body", "thread", "why"),
    [
        ((READ_TILE, *WAIT_FULL), 0, "pending: shared address 0x100 may still be written by the copy {}"),
        # The copy is done, as the first warp has waited; nothing says so to the second.
        (
            (
                "setp.lt.u32 %p2, %r0, 32;",
                "@!%p2 bra $second;",
                *WAIT_FULL,
                "st.volatile.global.u32 [%rd2], 1;",
                "bra $end;",
                "$second:",
                "$spin:",
                "ld.volatile.global.u32 %r7, [%rd2];",
                "setp.eq.u32 %p4, %r7, 0;",
                "@%p4 bra $spin;",
                READ_TILE,
            ),
            32,
            "race: shared address 0x180 was written by thread (0, 0, 0) in {}",
        ),
    ],
)
def test_a_report_of_a_tile_read_too_early_names_the_mbarrier(
    body: tuple[str, ...], thread: int, why: str
) -> None:
    text = bulk(*TILE_LOAD, *body)
    place, other = at(text, READ_TILE), at(text, LOAD_BULK)
    (message,) = {r.message for r in global_reports(text, sanitize="race") if r.space == "shared"}
    assert message == (
        f"kernel k: {place}: thread ({thread}, 0, 0) of CTA (0, 0, 0): {why.format(other)}; this "
        "thread has not waited for the mbarrier at 0x200, which counts the copy"
    )


def test_a_report_of_a_copy_from_another_cta_names_the_mbarrier_there() -> None:
    text = bulk(
        "barrier.cluster.arrive;",
        "barrier.cluster.wait;",
        "mov.u32 %r5, %cluster_ctarank;",
        "setp.ne.or.u32 %p2, %r5, 0, %p0;",
        "mov.u32 %r6, 1;",
        "mapa.shared::cluster.u32 %r7, %r3, %r6;",
        "mapa.shared::cluster.u32 %r6, %r2, %r6;",
        "@!%p2 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r7], 256;",
        "@!%p2 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r6], "
        "[%r1], 256, [%r7];",
        "@!%p2 st.shared::cluster.u32 [%r6], 1;",
        "barrier.cluster.arrive;",
        "barrier.cluster.wait;",
    )
    (message,) = {r.message for r in global_reports(text, sanitize="race", grid=2, cluster=2)}
    assert message.endswith(
        f"pending: shared address 0x100 of CTA (1, 0, 0) may still be written by the copy "
        f"{at(text, 'cp.async.bulk')}; this thread has not waited for the mbarrier at 0x200 of CTA "
        "(1, 0, 0), which counts the copy"
    )


@pytest.mark.parametrize(
    ("wait", "why"),
    [
        (
            (),
            "may still be read by thread (0, 0, 0) in {}; its thread has not waited for it with "
            "cp.async.bulk.wait_group.read",
        ),
        # It has been waited for, but the warps do not meet.
        (("@!%p0 " + WAIT_READ,), "was read by thread (0, 0, 0) in {}; no barrier orders the two"),
    ],
)
def test_a_report_of_a_tile_overwritten_too_early_says_which_wait_is_missing(
    wait: tuple[str, ...], why: str
) -> None:
    store = "setp.ge.u32 %p2, %r0, 32;", "@%p2 st.shared.u32 [%r1], 7;"
    text = bulk("@!%p0 " + STORE_BULK, "@!%p0 " + COMMIT_BULK, *wait, *store, "@!%p0 " + WAIT_BULK)
    place, other = at(text, store[1]), at(text, STORE_BULK)
    (report,) = (r for r in global_reports(text, sanitize="race") if r.other == other)
    assert report.message == (
        f"kernel k: {place}: thread (32, 0, 0) of CTA (0, 0, 0): race: shared address 0x0 {why.format(other)}"
    )


HALF_LOADS = (
    LOAD_BULK.replace("256", "128"),
    LOAD_BULK.replace("256", "128").replace("[%r2]", "[%r2+128]").replace("[%r3]", "[%r3+8]"),
)


@pytest.mark.parametrize(
    ("nbytes", "waits", "why"),
    [
        (256, (0, 1), ()),
        (128, (0,), ()),
        (256, (0,), ("0x180", "0x208", HALF_LOADS[1])),
        (128, (), ("0x100", "0x200", HALF_LOADS[0])),
    ],
)
def test_a_copy_that_reads_what_others_brought_waits_for_each(
    nbytes: int, waits: tuple[int, ...], why: tuple[str, ...]
) -> None:
    """Both halves have come, as the first warp has waited; the second one sends them on."""

    def wait(label: str, half: int) -> tuple[str, ...]:
        found = (line.replace("full", f"{label}{half}") for line in WAIT_FULL)
        return tuple(line.replace("[%r3]", f"[%r3+{8 * half}]") for line in found)

    first = "@!%p0 mbarrier.init.shared::cta.b64 [%r3+8], 1;", "fence.proxy.async;", "bar.sync 0;"
    loads = (EXPECT, EXPECT.replace("[%r3]", "[%r3+8]"), *HALF_LOADS)
    text = bulk(
        *first,
        *(f"@!%p0 {line.replace(', 256;', ', 128;')}" for line in loads),
        "setp.lt.u32 %p2, %r0, 32;",
        "@!%p2 bra $second;",
        *wait("first", 0),
        *wait("first", 1),
        "st.volatile.global.u32 [%rd2], 1;",
        "bra $end;",
        "$second:",
        "$spin:",
        "ld.volatile.global.u32 %r7, [%rd2];",
        "setp.eq.u32 %p4, %r7, 0;",
        "@%p4 bra $spin;",
        *(line for half in waits for line in wait("second", half)),
        "setp.ne.u32 %p4, %r0, 32;",
        "@%p4 bra $end;",
        f"cp.async.bulk.global.shared::cta.bulk_group [%rd2+16], [%r2], {nbytes};",
        COMMIT_BULK,
        WAIT_BULK,
    )
    args = [np.zeros(64, np.uint32), np.zeros(68, np.uint32)]
    found = [r for r in reports(text, args, block=64, dynamic_smem=528) if r.space == "shared"]
    want = [
        f"race: shared address {address} was written by thread (0, 0, 0) in @!%p0 "
        f"{at(text, load).removeprefix('@!%p0 ')}; this thread has not waited for the mbarrier at "
        f"{place}, which counts the copy"
        for address, place, load in ([why] if why else [])
    ]
    assert [r.message.partition("of CTA (0, 0, 0): ")[2] for r in found] == want


@pytest.mark.parametrize(("shift", "want"), [(0, []), (4, ["pending"])])
def test_boxes_that_ctas_store_side_by_side_do_not_meet(shift: int, want: list[str]) -> None:
    body = (
        "@%p0 bra $end;",
        "mov.b64 %rd3, map;",
        "cvta.param.u64 %rd3, %rd3;",
        f"mul.lo.u32 %r5, %r8, {16 - shift};",
        "mov.u32 %r6, 2;",
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd3, {%r5, %r6}], [%r1];",
        COMMIT_BULK,
        WAIT_BULK,
    )
    text = bulk(*body).replace("k(.param .u64 x", "k(.param .align 64 .b8 map[128], .param .u64 x")
    x = np.zeros((6, 36), np.float32)[:, :31]  # the last box ends outside
    found = reports(
        text,
        [hopper.TensorMap(x, box=(16, 4)), x, np.zeros(1, np.uint32)],
        grid=2,
        block=64,
        dynamic_smem=520,
    )
    assert [r.kind for r in found] == want
    assert [r.address for r in found] == [0x200000000 + 4 * (2 * 36 + 12)] * len(want)


# ---------------------------------------- clusters

ARRIVE = "barrier.cluster.arrive.aligned;"
RELAXED = "barrier.cluster.arrive.relaxed.aligned;"
LEAVE = "barrier.cluster.wait.aligned;"
SYNC = (ARRIVE, LEAVE)
LOAD_FAR = "ld.shared::cluster.u32 %r9, [%r3+64];"
MAKE = "@!%p0 mbarrier.init.shared::cta.b64 [%r1], 1;"
FENCE_INIT = "fence.mbarrier_init.release.cluster;"
ARRIVE_FAR = "@!%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];"
WAIT_NEAR = (
    "$near:",
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r1], 0;",
    "@!%p3 bra $near;",
)
EXPECT_NEAR = "@!%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;"
MULTICAST = (
    "@!%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[%r5], [%rd0], 16, [%r1], %h0;"
)


def clustered(*body: str) -> str:
    """A kernel in clusters of two CTAs; %r1 is its shared memory, %r3 that of the other CTA, %r2
    the rank, %r5 16 bytes past its 64-byte head, %h0 the mask of both. `%p0`: not the first thread,
    `%p1`: not the first CTA, `%p2`: neither.
    """
    return hopper.kernel(
        "u64 x",
        f"""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    add.u32 %r5, %r1, 128;
    mov.u32 %r2, %cluster_ctarank;
    xor.b32 %r4, %r2, 1;
    mapa.shared::cluster.u32 %r3, %r1, %r4;
    setp.ne.u32 %p0, %r0, 0;
    setp.ne.u32 %p1, %r2, 0;
    or.pred %p2, %p0, %p1;
    mov.u16 %h0, 3;
    ld.param.u64 %rd0, [x];
    st.shared.u32 [%r1+64], %r2;
{lines(*body)}
$end:
""",
    )


def cluster_reports(text: str, block: int = 32) -> tuple[Report, ...]:
    x = np.zeros(64, np.uint32)
    return reports(text, [x], grid=2, cluster=2, block=block, dynamic_smem=256)


@pytest.mark.parametrize(
    "body",
    [
        (*SYNC, LOAD_FAR, *SYNC),
        # To keep a CTA from ending needs no order of memory.
        (*SYNC, LOAD_FAR, RELAXED, LEAVE),
        # The other CTA says that it has read.
        (MAKE, *SYNC, LOAD_FAR, "bar.sync 0;", ARRIVE_FAR, *WAIT_NEAR, *SYNC),
        (
            MAKE,
            *SYNC,
            "@!%p1 bra $wait;",
            LOAD_FAR,
            "bar.sync 0;",
            ARRIVE_FAR,
            "bra $end;",
            "$wait:",
            *WAIT_NEAR,
        ),
        # Only one thread of the CTA waits.
        (
            *SYNC,
            "@!%p1 bra $first;",
            LOAD_FAR,
            *SYNC,
            "bra $end;",
            "$first:",
            ARRIVE,
            "@%p0 bra $end;",
            "barrier.cluster.wait;",
        ),
        (MAKE, FENCE_INIT, RELAXED, LEAVE, ARRIVE_FAR, *WAIT_NEAR, *SYNC),
        (MAKE, FENCE_INIT, *SYNC, EXPECT_NEAR, MULTICAST, *WAIT_NEAR),
        (MAKE, FENCE_INIT, RELAXED, LEAVE, EXPECT_NEAR, MULTICAST, *WAIT_NEAR),
        (MAKE, "fence.proxy.async;", *SYNC, EXPECT_NEAR, MULTICAST, *WAIT_NEAR),
        # What a program stores by bytes is followed by bytes, mbarriers as well.
        (MAKE, "fence.proxy.async;", *SYNC, EXPECT_NEAR, MULTICAST, *WAIT_NEAR, "st.shared.u8 [%r1+8], 1;"),
    ],
)
def test_clusters_that_keep_their_rules_have_no_report(body: tuple[str, ...]) -> None:
    assert cluster_reports(clustered(*body)) == ()


ENDED = "in the memory of CTA ({}, 0, 0), which may have ended: it waits for nothing after the access"


@pytest.mark.parametrize(
    ("body", "line", "address"),
    [
        ((*SYNC, LOAD_FAR), LOAD_FAR, 64),
        ((*SYNC, LOAD_FAR, ARRIVE), LOAD_FAR, 64),
        ((*SYNC, "@%p1 exit;", LOAD_FAR), LOAD_FAR, 64),
        ((*SYNC, "st.shared::cluster.u32 [%r3], 1;"), "st.shared::cluster", 0),
        ((MAKE, *SYNC, ARRIVE_FAR), ARRIVE_FAR, 0),
        ((*SYNC, "atom.shared::cluster.add.u32 %r9, [%r3+64], 1;"), "atom.shared", 64),
    ],
)
def test_a_cta_that_may_end_before_the_last_access_of_another_is_found(
    body: tuple[str, ...], line: str, address: int
) -> None:
    text = clustered(*body)
    place = at(text, line)
    found = [r for r in cluster_reports(text, block=1) if r.kind == "sync"]
    assert found[0] == Report(
        "sync",
        "shared",
        address,
        "",
        found[0].cta,
        (0,),
        place,
        "",
        f"kernel k: {place}: thread (0, 0, 0) of CTA {found[0].cta}: sync: shared address "
        f"{address:#x}: {ENDED.format(1 - found[0].cta[0])}",
    )
    assert len(found) == 1


def test_a_copy_to_a_cta_that_does_not_wait_for_it_is_found() -> None:
    text = clustered(MAKE, FENCE_INIT, *SYNC, EXPECT_NEAR, MULTICAST, "@%p1 bra $end;", *WAIT_NEAR)
    (report,) = (r for r in cluster_reports(text) if r.address == 128)
    assert (report.kind, report.cta, report.instr) == ("sync", (0, 0, 0), at(text, MULTICAST))
    assert report.message.endswith(f"shared address 0x80: {ENDED.format(1)}")


@pytest.mark.parametrize(
    ("body", "line", "kind"),
    [
        ((MAKE, FENCE_INIT, "bar.sync 0;", ARRIVE_FAR, *WAIT_NEAR, *SYNC), ARRIVE_FAR, "race"),
        ((MAKE, "bar.sync 0;", RELAXED, LEAVE, ARRIVE_FAR, *WAIT_NEAR, *SYNC), ARRIVE_FAR, "race"),
        # fence.mbarrier_init is for mbarriers only.
        ((FENCE_INIT, RELAXED, LEAVE, LOAD_FAR, *SYNC), LOAD_FAR, "race"),
        ((MAKE, FENCE_INIT, "bar.sync 0;", EXPECT_NEAR, MULTICAST, *WAIT_NEAR), MULTICAST, "race"),
        ((MAKE, *SYNC, EXPECT_NEAR, MULTICAST, *WAIT_NEAR), MULTICAST, "proxy"),
    ],
)
def test_mbarriers_are_fenced_and_waited_for_before_the_cluster_uses_them(
    body: tuple[str, ...], line: str, kind: str
) -> None:
    text = clustered(*body)
    found = [r for r in cluster_reports(text) if r.kind in ("race", "proxy")]
    report = found[0]
    assert (report.kind, report.space, report.instr) == (kind, "shared", at(text, line))
    assert report.address == (64 if line == LOAD_FAR else 0)
    assert (report.cta, report.other_cta) in (((0, 0, 0), (1, 0, 0)), ((1, 0, 0), (0, 0, 0)))
    assert len(found) == 1


UNFENCED = """
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 0;
    mov.u32 %r1, smem;
    add.u32 %r3, %r1, 64;
    ld.param.u64 %rd0, [x];
"""
COPY = "@!%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd0], 16, [%r1];"
STORE_ASYNC = "@!%p0 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r3], 7, [%r1];"
END = "@!%p0 mbarrier.inval.shared::cta.b64 [%r1];"
COPY_AND_WAIT = (EXPECT_NEAR, COPY, *WAIT_NEAR)
BY_ANOTHER_WARP = tuple(line.replace("%p0", "%p1") for line in COPY_AND_WAIT)
TWO_WARPS = ("setp.ne.u32 %p1, %r0, 32;",)


def unfenced(*body: str) -> tuple[str, list[Report]]:
    """A kernel whose thread 0 makes an mbarrier, with the reports of `mbarrier_init`."""
    text = hopper.kernel("u64 x", UNFENCED + lines(*body))
    found = reports(text, [np.zeros(4, np.uint32)], block=64, dynamic_smem=128, sanitize="mbarrier_init")
    return text, list(found)


@pytest.mark.parametrize(
    "body",
    [
        (MAKE, FENCE_INIT, "bar.sync 0;", *COPY_AND_WAIT),
        (MAKE, "fence.proxy.async.shared::cta;", "bar.sync 0;", *COPY_AND_WAIT),
        (*TWO_WARPS, MAKE, FENCE_INIT, "bar.sync 0;", *BY_ANOTHER_WARP),
        # No asynchronous operation completes on it.
        (MAKE, "bar.sync 0;", "@!%p0 mbarrier.arrive.shared::cta.b64 _, [%r1];", *WAIT_NEAR),
        (MAKE, "bar.sync 0;", EXPECT_NEAR.replace("16;", "4;"), STORE_ASYNC, *WAIT_NEAR),
    ],
)
def test_an_mbarrier_that_copies_may_see_has_no_report(body: tuple[str, ...]) -> None:
    assert unfenced(*body)[1] == []


@pytest.mark.parametrize(
    "body",
    [
        (MAKE, "bar.sync 0;", *COPY_AND_WAIT),
        (MAKE, "fence.acq_rel.cluster;", "bar.sync 0;", *COPY_AND_WAIT),
        (FENCE_INIT, MAKE, "bar.sync 0;", *COPY_AND_WAIT),
        # The fence comes after what orders the other warp, or is another thread's.
        (*TWO_WARPS, MAKE, "bar.sync 0;", "@!%p0 " + FENCE_INIT, *BY_ANOTHER_WARP),
        (*TWO_WARPS, MAKE, "bar.sync 0;", "@!%p1 " + FENCE_INIT, *BY_ANOTHER_WARP),
        # A fence is for what was initialised before it.
        (
            MAKE,
            FENCE_INIT,
            "@!%p0 mbarrier.inval.shared::cta.b64 [%r1];",
            MAKE,
            "bar.sync 0;",
            *COPY_AND_WAIT,
        ),
    ],
)
def test_an_mbarrier_that_no_fence_shows_to_copies_is_found(body: tuple[str, ...]) -> None:
    text, (report,) = unfenced(*body)
    place = at(text, "cp.async.bulk.shared::cluster")
    made = at(text, MAKE, body.count(MAKE) - 1)
    thread = 32 * ("%p1" in place)
    assert report.message == (
        f"kernel k: {place}: thread ({thread}, 0, 0) of CTA (0, 0, 0): mbarrier_init: shared address 0x0 was "
        f"written by thread (0, 0, 0) in {made}; neither fence.mbarrier_init nor fence.proxy.async by that "
        "thread, before this one comes after it, lets asynchronous operations see the mbarrier"
    )


APART = ("setp.lt.u32 %p4, %r0, 16;", ARRIVE, "@%p4 bra $here;", LEAVE, "bra $end;", "$here:", LEAVE)


@pytest.mark.parametrize(
    ("body", "line", "lane", "why", "other"),
    [
        (
            (*SYNC, ARRIVE, ARRIVE, LEAVE),
            (ARRIVE, 2),
            0,
            "comes to the barrier of the cluster again without having waited for it",
            None,
        ),
        (
            (*SYNC, LEAVE),
            (LEAVE, 1),
            0,
            "waits for the barrier of the cluster without having arrived at it",
            None,
        ),
        (
            APART,
            (LEAVE, 0),
            16,
            "a warp executes it together, but other threads of the warp came to another wait",
            (LEAVE, 1),
        ),
    ],
)
def test_the_barrier_of_a_cluster_is_used_in_turn_and_by_whole_warps(
    body: tuple[str, ...], line: tuple[str, int], lane: int, why: str, other: Any
) -> None:
    text = clustered(*body)
    place, there = at(text, *line), at(text, *other) if other else ""
    assert cluster_reports(text) == (
        Report(
            "sync",
            "",
            0,
            "",
            (0, 0, 0),
            (lane,),
            place,
            there,
            f"kernel k: {place}: thread ({lane}, 0, 0) of CTA (0, 0, 0): sync: {why}"
            + (f"; they came to {there}" if other else ""),
        ),
    )


# ---------------------------------------- schedules

SEEDS = range(12)


def outcomes(text: str, args: Any, seeds: Any = SEEDS, **how: Any) -> list[bytes]:
    """What each seed leaves in the last of the arguments that `args` makes."""
    left = []
    for seed in seeds:
        given = args()
        launch = {"grid": 1, "block": 128, "dynamic_smem": SMEM + 64, **how}
        run(text, args=given, schedule=PCT(seed), **launch)
        left.append(given[-1].tobytes())
    return left


def sums() -> list[Array]:
    return [np.zeros((128, 4), np.float32)]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        # Shared memory is read at any time until the wait, the accumulators are there from then on.
        (
            (FENCE, MMA, COMMIT, WAIT, "bar.sync 0;", "st.shared.u32 [%r3], %r0;", STORE),
            (FENCE, MMA, COMMIT, "bar.sync 0;", "st.shared.u32 [%r3], %r0;", WAIT, STORE),
        ),
        ((FENCE, MMA, COMMIT, WAIT, STORE), (FENCE, MMA, COMMIT, STORE, WAIT)),
        (
            (FENCE, MMA, COMMIT, MMA, COMMIT, "wgmma.wait_group.sync.aligned 0;", STORE),
            (FENCE, MMA, COMMIT, MMA, COMMIT, "wgmma.wait_group.sync.aligned 1;", STORE),
        ),
    ],
)
def test_wgmma_is_done_at_any_time_before_its_wait(right: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    (want,) = set(outcomes(tiles(lines(*right)), sums))
    assert np.frombuffer(want, np.float32).tolist() == [16.0 * right.count(MMA)] * 512
    left = outcomes(tiles(lines(*wrong)), sums)
    fine = [np.frombuffer(x, np.uint8) == np.frombuffer(want, np.uint8) for x in left]
    assert not all(x.all() for x in fine)
    assert any(x[: 32 * 16].all() for x in fine)  # the first warp, by some seed
    assert len(set(left)) > 2
    assert left == outcomes(tiles(lines(*wrong)), sums)


def test_wgmma_may_be_done_between_two_stores_to_what_it_reads() -> None:
    def change(value: int, label: str) -> tuple[str, ...]:
        return (
            f"mov.u32 %r4, {value};",
            "st.shared.v4.u32 [%r3], {%r4, %r4, %r4, %r4};",
            "bar.sync 0;",
            "mov.u32 %r6, 0;",
            f"${label}:",
            "add.u32 %r6, %r6, 1;",
            "setp.lt.u32 %p3, %r6, 50;",
            f"@%p3 bra ${label};",
        )

    twos, threes = change(0x40004000, "two"), change(0x42004200, "three")
    body = (FENCE, MMA, COMMIT, "bar.sync 0;", *twos, *threes, WAIT, STORE)
    left = outcomes(tiles(lines(*body)), sums)
    values = {x for one in left for x in np.frombuffer(one, np.float32).tolist()}
    assert values >= {16.0, 32.0, 48.0}


def test_accumulators_in_flight_across_a_loop_come_out_right_by_any_seed() -> None:
    loop = lines(
        "mov.u32 %r6, 0;",
        "$next:",
        FENCE,
        MMA,
        COMMIT,
        MMA.replace(D, "{%f4, %f5, %f6, %f7}"),
        COMMIT,
        "wgmma.wait_group.sync.aligned 1;",
        "add.f32 %f0, %f0, %f0;",
        "add.u32 %r6, %r6, 1;",
        "setp.lt.u32 %p3, %r6, 5;",
        "@%p3 bra $next;",
        WAIT,
        "add.f32 %f0, %f0, %f4;",
        STORE,
    )
    for how in ({}, {"stepwise": True}, {"sanitize": "all"}):
        (only,) = set(outcomes(tiles(loop), sums, range(6), **how))
        first = np.frombuffer(only, np.float32).reshape(128, 4)
        assert (first == [16 * (2**5 + 2**4 + 2**3 + 2**2 + 2) + 80, 80, 80, 80]).all()


READ = ("ld.shared.u32 %r9, [%r4];", "st.global.u32 [%rd1], %r9;")
KEPT = "add.u64 %rd1, %rd1, 256;"  # results go behind the 256 bytes that are copied
REFILL_BULK = ("@!%p0 " + EXPECT, "@!%p0 " + LOAD_BULK.replace("[%r2]", "[%r1]"))
COPY = "cp.async.ca.shared.global [%r4], [%rd3], 4;"
REFILL_COPY = (COPY, "cp.async.commit_group;")
WAIT_COPY = "cp.async.wait_group 0;"
# Each thread then reads what one of the other warp has made.
OTHER_HALF = ("xor.b32 %r5, %r0, 32;", "shl.b32 %r5, %r5, 2;", "add.u32 %r4, %r5, %r1;")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        # A buffer is refilled while another warp may still read it.
        (
            (*OTHER_HALF, KEPT, *READ, "bar.sync 0;", *REFILL_BULK, *WAIT_FULL),
            (*OTHER_HALF, KEPT, *READ, *REFILL_BULK, *WAIT_FULL),
        ),
        (
            (
                "mov.u64 %rd3, %rd1;",
                KEPT,
                "mov.u32 %r6, %r4;",
                *OTHER_HALF,
                *READ,
                "mov.u32 %r4, %r6;",
                "bar.sync 0;",
                *REFILL_COPY,
                WAIT_COPY,
            ),
            (
                "mov.u64 %rd3, %rd1;",
                KEPT,
                "mov.u32 %r6, %r4;",
                *OTHER_HALF,
                *READ,
                "mov.u32 %r4, %r6;",
                *REFILL_COPY,
                WAIT_COPY,
            ),
        ),
        # A tile is read before its copy is waited for.
        ((*REFILL_BULK, *WAIT_FULL, KEPT, *READ), (*REFILL_BULK, KEPT, *READ, *WAIT_FULL)),
        (
            ("mov.u64 %rd3, %rd1;", KEPT, *REFILL_COPY, WAIT_COPY, *READ),
            ("mov.u64 %rd3, %rd1;", KEPT, *REFILL_COPY, *READ, WAIT_COPY),
        ),
        # The source of a store is overwritten before the wait for its read.
        (
            ("@%p0 bra $end;", STORE_BULK, COMMIT_BULK, WAIT_READ, "st.shared.u32 [%r1], 9;"),
            ("@%p0 bra $end;", STORE_BULK, COMMIT_BULK, "st.shared.u32 [%r1], 9;", WAIT_READ),
        ),
        # What was stored is read before it is there; `.read` waits for the source only.
        (
            (
                "@%p0 bra $end;",
                STORE_BULK,
                COMMIT_BULK,
                WAIT_BULK,
                "ld.global.u32 %r9, [%rd0+4];",
                "st.global.u32 [%rd0+256], %r9;",
            ),
            (
                "@%p0 bra $end;",
                STORE_BULK,
                COMMIT_BULK,
                WAIT_READ,
                "ld.global.u32 %r9, [%rd0+4];",
                "st.global.u32 [%rd0+256], %r9;",
            ),
        ),
    ],
    ids=["bulk refill", "cp.async refill", "bulk read", "cp.async read", "source", "stored"],
)
def test_copies_are_done_at_any_time_before_their_wait(
    right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    def args() -> list[Array]:
        return [np.zeros(1, np.uint32), np.arange(100, 228, dtype=np.uint32)]

    def swapped(text: str) -> str:  # the last argument is the one that is looked at
        return text.replace(".param .u64 x, .param .u64 flag", ".param .u64 flag, .param .u64 x")

    how = {"block": 64, "dynamic_smem": 520}
    (want,) = set(outcomes(swapped(bulk(*right)), args, range(24), **how))
    left = outcomes(swapped(bulk(*wrong)), args, range(24), **how)
    assert want in left
    assert set(left) != {want}
    assert left == outcomes(swapped(bulk(*wrong)), args, range(24), **how)


# ---------------------------------------- one thread of a warpgroup hands shared memory on

# Warp 4 fills one slot with the matrix B of each of 4 tiles, 16 x 8 in f16, all of them the tile's
# number; warps 0 to 3 multiply, and one thread of them says that the slot is free: as
# FlashAttention-3 and CUTLASS do, after `wgmma.wait_group 0`.
RING = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    add.u32 %r2, %r1, 1024;
    setp.ne.u32 %p0, %r0, {thread};
    @%p0 bra $ready;
    mbarrier.init.shared::cta.b64 [%r2], 32;
    mbarrier.init.shared::cta.b64 [%r2+8], 1;
    fence.mbarrier_init.release.cluster;
$ready:
    bar.sync 0;
    mov.u32 %r4, 0;
    setp.ge.u32 %p1, %r0, 128;
    @%p1 bra $fill;
    mov.u32 %a0, 0x3C003C00;
    mov.u32 %a1, %a0;
    mov.u32 %a2, %a0;
    mov.u32 %a3, %a0;
    mov.f32 %f0, 0f00000000;
    mov.f32 %f1, %f0;
    mov.f32 %f2, %f0;
    mov.f32 %f3, %f0;
{descriptor}
$multiply:
    and.b32 %r5, %r4, 1;
$full:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], %r5;
    @!%p2 bra $full;
    wgmma.fence.sync.aligned;
    {mma}
    wgmma.commit_group.sync.aligned;
    {wait}
    @!%p0 mbarrier.arrive.shared::cta.b64 _, [%r2+8];
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p3, %r4, 4;
    @%p3 bra $multiply;
    wgmma.wait_group.sync.aligned 0;
    ld.param.u64 %rd1, [out];
    mul.wide.u32 %rd2, %r0, 16;
    add.u64 %rd1, %rd1, %rd2;
    st.global.v4.f32 [%rd1], {{%f0, %f1, %f2, %f3}};
    ret;
$fill:
    shl.b32 %r6, %r0, 3;
    and.b32 %r6, %r6, 255;
    add.u32 %r6, %r6, %r1;
$tile:
    xor.b32 %r5, %r4, 1;
    and.b32 %r5, %r5, 1;
$empty:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2+8], %r5;
    @!%p2 bra $empty;
    add.u32 %r4, %r4, 1;
    cvt.rn.f16.u32 %h0, %r4;
    mov.b32 %r7, {{%h0, %h0}};
    st.shared.v2.u32 [%r6], {{%r7, %r7}};
    fence.proxy.async;
    mbarrier.arrive.shared::cta.b64 _, [%r2];
    setp.lt.u32 %p3, %r4, 4;
    @%p3 bra $tile;
"""


def ring(wait: str = "wgmma.wait_group.sync.aligned 0;", thread: int = 0) -> str:
    descriptor = hopper.operand("%rd5", "%r1", hopper.descriptor(128, 256, "none"))
    return hopper.kernel(
        "u64 out", RING.format(descriptor=descriptor, mma=FRAGMENT_MMA, wait=wait, thread=thread)
    )


@pytest.mark.parametrize(
    ("thread", "schedule", "stepwise"),
    [(0, "lockstep", False), (0, "pct:1", False), (96, "pct:2", False), (96, "pct:3", True)],
)
def test_a_wait_of_one_warp_speaks_for_its_warpgroup(thread: int, schedule: str, stepwise: bool) -> None:
    out = np.zeros((128, 4), np.float32)
    run(
        ring(thread=thread),
        grid=1,
        block=160,
        args=[out],
        dynamic_smem=2048,
        sanitize="all",
        schedule=schedule,
        stepwise=stepwise,
    )
    assert (out == 16 * (1 + 2 + 3 + 4)).all()


# The warps but the first come to their wait only when the slot has been filled again.
AFTER_THE_NEXT = """
    setp.lt.u32 %p4, %r0, 32;
    setp.eq.or.u32 %p4, %r4, 3, %p4;
    @%p4 bra $wait;
    xor.b32 %r6, %r5, 1;
$next:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], %r6;
    @!%p2 bra $next;
$wait:
    wgmma.wait_group.sync.aligned 0;
"""


@pytest.mark.parametrize("schedule", ["lockstep", "pct:1", "pct:2", "pct:3"])
def test_all_warps_have_read_what_one_of_them_has_waited_for(schedule: str) -> None:
    out = np.zeros((128, 4), np.float32)
    run(
        ring(AFTER_THE_NEXT),
        grid=1,
        block=160,
        args=[out],
        dynamic_smem=2048,
        sanitize="all",
        schedule=schedule,
    )
    assert (out == 16 * (1 + 2 + 3 + 4)).all()


@pytest.mark.parametrize("wait", ["", "wgmma.wait_group.sync.aligned 1;"])
def test_a_slot_that_is_handed_on_before_the_wait_is_found(wait: str) -> None:
    text = ring(wait)
    out = np.zeros((128, 4), np.float32)
    (report,) = run(
        text, grid=1, block=160, args=[out], dynamic_smem=2048, sanitize="race", raise_on_report=False
    ).reports
    assert report.message.partition(": race: ")[0] == (
        f"kernel k: {at(text, 'st.shared.v2')}: thread (128, 0, 0) of CTA (0, 0, 0)"
    )
    assert report.message.endswith(
        f"in {at(text, MULTIPLY)}; its warp has not waited for it with wgmma.wait_group"
    )


def test_a_warp_waits_for_the_others_of_its_warpgroup_for_ever_if_they_do_not_come() -> None:
    body = f"""
    setp.ge.u32 %p2, %r0, 96;
    @%p2 bra $other;
    wgmma.fence.sync.aligned;
    {MMA}
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
$other:
    bar.sync 1;
    """
    text = tiles(body)
    with pytest.raises(TrapError) as caught:
        run(text, grid=1, block=128, args=[np.zeros(512, np.float32)], dynamic_smem=SMEM + 64)
    wait, bar = line_of(text, "wait_group"), line_of(text, "bar.sync 1")
    assert str(caught.value) == (
        "kernel k: deadlock in CTA (0, 0, 0): 96 threads ((0, 0, 0), (1, 0, 0), (2, 0, 0), "
        "(3, 0, 0) and 92 more) wait at the wgmma of the other warps of its warpgroup in "
        f"wgmma.wait_group.sync.aligned 0; (line {wait}); 32 threads ((96, 0, 0), (97, 0, 0), "
        f"(98, 0, 0), (99, 0, 0) and 28 more) wait at barrier 1 in bar.sync 1; (line {bar}); "
        "0 of 128 threads have exited"
    )


# ---------------------------------------- what the end of a kernel completes

# Each CTA stores two boxes of 8 rows from one tile, and ends once they have been read from there.
STORE_BOXES = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    mov.u32 %r2, %ctaid.x;
    shl.b32 %r2, %r2, 3;
    setp.ne.u32 %p0, %r0, 0;
    shl.b32 %r3, %r0, 2;
    add.u32 %r3, %r3, %r1;
    mov.u32 %r4, 0;
$box:
    add.u32 %r5, %r0, 1;
    st.shared.u32 [%r3], %r5;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @%p0 bra $next;
    mov.b64 %rd0, map;
    cvta.param.u64 %rd0, %rd0;
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd0, {%r4, %r2}], [%r1];
    cp.async.bulk.commit_group;
    {wait}
$next:
    bar.sync 0;
    add.u32 %r4, %r4, 16;
    setp.lt.u32 %p1, %r4, 32;
    @%p1 bra $box;
"""
COPY_ON = """
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd3, %r0, 4;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [out];
    add.u64 %rd1, %rd1, %rd3;
    add.u64 %rd2, %rd2, %rd3;
    ld.global.u32 %r1, [%rd1];
    st.global.u32 [%rd2], %r1;
"""


@pytest.mark.parametrize("schedule", ["lockstep", "pct:1", "pct:2"])
def test_stores_that_have_read_their_source_are_complete_when_the_kernel_is(schedule: str) -> None:
    text = hopper.kernel("tm map", STORE_BOXES.replace("{wait}", WAIT_READ))
    x, out, arena = np.zeros((16, 32), np.uint32), np.zeros(512, np.uint32), DeviceArena()
    how: dict[str, Any] = {"sanitize": "all", "schedule": schedule, "arena": arena}
    run(text, grid=2, block=128, args=[TensorMap(x, box=(16, 8))], dynamic_smem=1024, **how)
    tile = np.arange(1, 129).reshape(8, 16)
    assert (x == np.tile(tile, (2, 2))).all()
    run(hopper.kernel("u64 x, u64 out", COPY_ON), grid=1, block=512, args=[x, out], **how)
    assert (out == x.reshape(-1)).all()


def test_the_end_of_a_kernel_is_no_wait_for_the_source_of_a_store() -> None:
    text = hopper.kernel("tm map", STORE_BOXES.replace("{wait}", ""))
    x = np.zeros((8, 32), np.uint32)
    found = run(
        text,
        grid=1,
        block=128,
        args=[TensorMap(x, box=(16, 8))],
        dynamic_smem=1024,
        sanitize="sync",
        raise_on_report=False,
    ).reports
    assert [r.message for r in found] == [
        f"kernel k: {at(text, 'cp.async.bulk.tensor')}: thread (0, 0, 0) of CTA (0, 0, 0): sync: "
        "the copy is still under way when its threads have ended"
    ]


# ---------------------------------------- two copies, of which only one has been waited for

TWO_COPIES = (
    "@!%p0 mbarrier.init.shared::cta.b64 [%r3+8], 1;",
    FENCE_ALL,
    "bar.sync 0;",
    *(
        f"@!%p0 {x}"
        for x in (
            EXPECT,
            EXPECT.replace("[%r3]", "[%r3+8]"),
            LOAD_BULK,
            LOAD_BULK.replace("[%r2]", "[%r1]").replace("[%r3]", "[%r3+8]"),
        )
    ),
)


@pytest.mark.parametrize("schedule", ["lockstep", *(f"pct:{seed}" for seed in range(4))])
@pytest.mark.parametrize(("waited", "read"), [(0, 256), (0, 0), (1, 256), (1, 0), (2, 256)])
def test_a_wait_covers_the_copies_that_its_mbarrier_counts_and_no_others(
    waited: int, read: int, schedule: str
) -> None:
    """The first copy goes to byte 256, and the first mbarrier counts it, the second to byte 0."""
    wait = [
        (
            f"$wait{n}:",
            f"mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3+{8 * n}], 0;",
            f"@!%p3 bra $wait{n};",
        )
        for n in range(2)
    ]
    waits = wait[0] + wait[1] if waited == 2 else wait[waited]
    text = bulk(*TWO_COPIES, *waits, f"ld.shared.u32 %r9, [%r4+{read}];")
    args = [np.zeros(64, np.uint32), np.zeros(1, np.uint32)]
    found = run(
        text,
        grid=1,
        block=64,
        dynamic_smem=536,
        args=args,
        sanitize="race",
        schedule=schedule,
        raise_on_report=False,
    ).reports
    clean = waited == 2 or (waited, read) in ((0, 256), (1, 0))
    assert {r.kind for r in found} <= {"race", "pending"}
    assert (not found) == clean


@pytest.mark.parametrize("barrier", ["bar.sync 0;", ""])
def test_who_meets_a_warp_that_has_waited_for_a_copy_need_not_wait_too(barrier: str) -> None:
    text = bulk(
        *TILE_LOAD,
        "setp.ge.u32 %p2, %r0, 32;",
        "@%p2 bra $second;",
        *WAIT_FULL,
        "st.volatile.global.u32 [%rd2], 1;",
        "$second:",
        # So that the copy has come in any case.
        "$spin:",
        "ld.volatile.global.u32 %r7, [%rd2];",
        "setp.eq.u32 %p4, %r7, 0;",
        "@%p4 bra $spin;",
        barrier,
        READ_TILE,
    )
    found = global_reports(text, sanitize="race")
    assert [(r.kind, r.threads) for r in found] == ([] if barrier else [("race", (32, 0))])


@pytest.mark.parametrize("waiting", [128, 256])
def test_a_wait_of_one_warpgroup_says_nothing_of_another(waiting: int) -> None:
    """The first threads wait before the barrier, the others after it."""
    body = lines(
        f"setp.ge.u32 %p3, %r0, {waiting};",
        FENCE,
        MMA,
        COMMIT,
        "@%p3 bra $later;",
        WAIT,
        "$later:",
        "bar.sync 0;",
        "@!%p0 st.shared.u32 [%r1], 7;",
        "@!%p3 bra $end;",
        WAIT,
        "$end:",
        STORE,
    )
    out = np.zeros((256, 4), np.float32)
    found = run(
        tiles(body),
        grid=1,
        block=256,
        args=[out],
        dynamic_smem=SMEM + 64,
        sanitize="race",
        raise_on_report=False,
    ).reports
    assert [r.kind for r in found] == ["race"] * (waiting == 128)


@pytest.mark.parametrize(("left", "clean"), [(0, True), (1, False), (2, False)])
def test_a_wait_that_leaves_groups_under_way_says_nothing_of_them(left: int, clean: bool) -> None:
    body = lines(
        FENCE,
        MMA,
        COMMIT,
        MMA,
        COMMIT,
        f"wgmma.wait_group.sync.aligned {left};",
        "@!%p0 st.shared.u32 [%r1], 7;",
        WAIT,
        STORE,
    )
    out = np.zeros((128, 4), np.float32)
    found = run(
        tiles(body),
        grid=1,
        block=128,
        args=[out],
        dynamic_smem=SMEM + 64,
        sanitize="race",
        raise_on_report=False,
    ).reports
    assert [r.kind for r in found] == ["race"] * (not clean)


# ---------------------------------------- undefined values


def undefined(text: str, threads: int = 128) -> list[tuple[int, str]]:
    """The first thread of each report of an undefined value, and what the value depends on."""
    reports = found(text, threads)
    assert {report.kind for report in reports} <= {"undefined", "uninitialised"}
    return [(r.threads[0], r.message.partition("depends on ")[2].partition(",")[0]) for r in reports]


@pytest.mark.parametrize(
    ("store", "part", "wanted"),
    [
        ("[%r3], {%r4", "{%f2, %f3}", [(4, "shared address 0x90")]),  # row 9 of A: the second row of lane 4
        ("[%r3], {%r4", "{%f0, %f1}", []),
        ("[%r3+2048], {%r4", "{%f0, %f1}", [(0, "shared address 0x890")]),  # column 1 of B
        ("[%r3+2048], {%r4", "{%f0, %f0}", []),
    ],
)
def test_a_product_of_tiles_is_undefined_in_the_rows_and_columns_that_nobody_has_written(
    store: str, part: str, wanted: list[tuple[int, str]]
) -> None:
    body = lines(FENCE, MMA, COMMIT, WAIT, f"st.global.v2.f32 [%rd1], {part};")
    text = tiles(body)
    line = next(line for line in text.splitlines() if store in line)
    less = line.replace("@%p2 ", "").strip()
    guarded = f"    setp.ne.u32 %p5, %r2, 9;\n    and.pred %p5, %p5, %p{'2' if '@%p2' in line else '5'};\n"
    assert undefined(text.replace(line, f"{guarded}    @%p5 {less}")) == wanted
    assert undefined(text) == []


def test_accumulators_count_only_if_they_are_added_to() -> None:
    text = tiles(CORRECT["at once"]).replace("    mov.f32 %f0, 0f00000000;\n", "")
    assert undefined(text) == [(0, "%f0")]
    assert undefined(text.replace("%rd4, %rd5, 1, 1, 1", "%rd4, %rd5, 0, 1, 1")) == []


def test_an_undefined_descriptor_is_reported() -> None:
    text = tiles(CORRECT["at once"]).replace(
        FENCE, "or.b64 %rd5, %rd5, %rd9;\n    and.b64 %rd5, %rd5, -1;\n" + FENCE
    )
    text = text.replace(
        "or.b64 %rd5, %rd5, %rd9;",
        "and.b64 %rd9, %rd9, 1;\n    sub.u64 %rd9, %rd9, %rd9;\n    add.u64 %rd5, %rd5, %rd9;",
    )
    with pytest.raises(
        TrapError, match="undefined: its operand %rd5 depends on %rd9, which it has not written"
    ):
        run(
            text,
            grid=1,
            block=128,
            args=[np.zeros((128, 4), np.float32)],
            dynamic_smem=SMEM + 64,
            sanitize="init",
        )


def test_a_bulk_store_takes_unwritten_bytes_along_and_a_bulk_load_brings_defined_ones() -> None:
    store = "    st.shared.u32 [%r4], %r0;\n"
    text = bulk("@%p0 bra $end;", STORE_BULK, COMMIT_BULK, WAIT_BULK)
    assert global_reports(text) == ()
    (report,) = global_reports(
        text.replace(store, "    setp.ne.u32 %p2, %r0, 5;\n    @%p2 " + store.strip() + "\n")
    )
    assert report.kind == "uninitialised"
    assert "byte 20 of x when the kernel ends depends on shared address 0x14" in report.message
    use = "setp.eq.u32 %p4, %r9, 77;", "@%p4 bra $end;"
    text = bulk(*TILE_LOAD, *WAIT_FULL, READ_TILE, *use)
    assert global_reports(text) == ()
