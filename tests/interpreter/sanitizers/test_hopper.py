"""What the sanitizers say of asynchronous instructions of sm_90a, each with one seeded bug; and
what schedules drawn from seeds do to their times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from interpreter import test_hopper_programs as hopper
from interpreter.both_paths import run_both_ways
from interpreter.programs import deadlock, located, named, refused
from interpreter.reported import reports as generated

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


def code(body: str, names: Mapping[str, str]) -> str:
    """The lines of a body, whose parts are instructions or names of them, perhaps with a guard:
    `@%p0 load | wait | bar.sync 0;`.
    """
    lines = []
    for part in body.split(" | "):
        guard, name = re.fullmatch(r"(@!?%p\d )?(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
        lines.append(f"    {guard or ''}{names.get(name, name)}\n")
    return "".join(lines)


# ---------------------------------------- registers of wgmma

MULTIPLY = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
DESCRIPTOR = hopper.descriptor(1024, 128, "none")
D = "{%f0, %f1, %f2, %f3}"
MMA = f"{MULTIPLY} {D}, %rd4, %rd5, 1, 1, 1, 0, 0;"
FRAGMENT_MMA = f"{MULTIPLY} {D}, {{%a0, %a1, %a2, %a3}}, %rd5, 1, 1, 1, 0;"
STORE = "st.global.v4.f32 [%rd1], {%f0, %f1, %f2, %f3};"
SMEM = 2048 + 512 + 64  # bytes of A, 64 x 16 in f16, of B, 16 x 16, and of mbarriers
WGMMA = {
    "fence": "wgmma.fence.sync.aligned;",
    "mma": MMA,
    "fragment_mma": FRAGMENT_MMA,
    "other_mma": MMA.replace(D, "{%f4, %f5, %f6, %f7}"),
    "n16_mma": MMA.replace("n8", "n16").replace("%f3}", "%f3, %f4, %f5, %f6, %f7}"),
    "fill_c": "\n    ".join(f"mov.u32 %c{n}, %r4;" for n in range(4)),
    "fragment_mma_of_c": FRAGMENT_MMA.replace("%a", "%c"),
    "mma_to_c": MMA.replace(D, "{%c0, %c1, %c2, %c3}"),
    "commit": "wgmma.commit_group.sync.aligned;",
    "wait": "wgmma.wait_group.sync.aligned 0;",
    "wait_1": "wgmma.wait_group.sync.aligned 1;",
    "wait_2": "wgmma.wait_group.sync.aligned 2;",
    "pack_a3": "mov.b32 %a3, {%h0, %h0};",
    "store": STORE,
}


def tiles(body: str, params: str = "u64 out") -> str:
    """A kernel in which 128 threads of each warpgroup have made a tile of A and of B, all ones, and then run
    `body`, which may name parts of `WGMMA`; %r0 is the thread, %p0 whether it is not the first, %rd1 where
    its four sums go.
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
{code(body, WGMMA)}
""",
    )


def found(body: str, threads: int = 128) -> tuple[Report, ...]:
    out = np.zeros((threads, 4), np.float32)
    return reports(tiles(body), [out], block=threads, dynamic_smem=SMEM)


CORRECT = {
    "at once": "fence | mma | commit | wait | store",
    "chained": "fence | mma | mma | commit | mma | commit | wait | store",
    "A in registers": "fence | fragment_mma | fragment_mma | commit | wait | store",
    "copied after the fence": "fence | mov.f32 %f0, %f1; | mma | commit | wait | store",
    "packed before the fence": "pack_a3 | fence | fragment_mma | commit | wait | store",
    "changed before the fence": "add.f32 %f0, %f0, %f0; | fence | mma | commit | wait | store",
    "fenced between shapes": "fence | mma | fence | n16_mma | commit | wait | store",
    "others in flight": "fence | mma | commit | other_mma | commit | wait_1 | store | wait",
    # What no way through a kernel does at once, the text alone cannot tell.
    "waited for on the way that needs it": "setp.lt.u32 %p3, %r0, 128; | fence | @!%p3 bra $skip; | mma "
    "| commit "
    "| $skip: | @!%p3 bra $other; | wait | $other: | store",
}


@pytest.mark.parametrize("threads", [128, 256])
@pytest.mark.parametrize("case", CORRECT)
def test_correct_uses_of_wgmma_have_no_report(case: str, threads: int) -> None:
    assert found(CORRECT[case], threads) == ()


def test_a_warpgroup_may_close_a_group_that_nothing_waits_for() -> None:
    text = hopper.kernel("u64 x", code("fence | commit", WGMMA))
    assert reports(text, [np.zeros(1, np.uint32)]) == ()


# Messages about a register of `wgmma`, by the first word of a reason.
REASONS = {
    "wait": "touches {}, which a wgmma.mma_async may still use: nothing has waited for it",
    "group": "touches {}, which a wgmma.mma_async may still use: it is in no group, so no wait covers it",
    "fence": "no wgmma.fence comes between it and what wrote {}",
    "first": "no wgmma.fence comes before it",
    "shape": "uses {}, which another wgmma.mma_async may still use as an accumulator of m64n8k16; no "
    "wgmma.fence "
    "or wait comes between",
    "A": "uses {}, which another wgmma.mma_async may still use as part of A; no wgmma.fence or wait comes "
    "between",
}


@pytest.mark.parametrize(
    ("body", "where", "user", "why"),
    [
        # Once is enough for one multiplication.
        ("fence | mma | commit | store | add.f32 %f0, %f0, %f1; | store | wait", "store", "mma", "wait %f0"),
        ("fence | mma | commit | other_mma | commit | wait_2 | store | wait", "store", "mma", "wait %f0"),
        ("fence | mma | wait | store", "store", "mma", "group %f0"),
        (
            "fence | fragment_mma | commit | add.u32 %a2, %a2, 1; | wait | store",
            "add.u32 %a2",
            "fragment_mma",
            "wait %a2",
        ),
        ("fence | mma | commit | mov.f32 %f2, 0f3F800000; | wait | store", "%f2, 0f3F", "mma", "wait %f2"),
        ("mma | commit | wait | store", "mma", "", "first"),
        ("fence | add.f32 %f1, %f1, %f1; | mma | commit | wait | store", "mma", "", "fence %f1"),
        (
            "fence | add.u32 %a3, %a3, 1; | fragment_mma | commit | wait | store",
            "fragment_mma",
            "",
            "fence %a3",
        ),
        # Copies of what an instruction after the fence has written.
        (
            "fence | add.u32 %r6, %a3, 1; | mov.u32 %r7, %r6; | mov.u32 %a3, %r7; | fragment_mma | commit "
            "| wait "
            "| store",
            "fragment_mma",
            "",
            "fence %a3",
        ),
        # A copy, but one that takes an instruction.
        ("fence | pack_a3 | fragment_mma | commit | wait | store", "fragment_mma", "", "fence %a3"),
        ("fence | mma | n16_mma | commit | wait | store", "m64n16k16", "mma", "shape %f0"),
        (
            "fill_c | fence | fragment_mma_of_c | mma_to_c | commit | wait | store",
            "mma_to_c",
            "fragment_mma_of_c",
            "A %c0",
        ),
    ],
)
def test_registers_of_wgmma_are_left_alone_until_the_wait(body: str, where: str, user: str, why: str) -> None:
    text = tiles(body)
    instr = located(text, WGMMA.get(where, where))
    other = located(text, WGMMA[user]) if user else ""
    reason, _, register = why.partition(" ")
    message = (
        f"kernel k: {instr}: thread (0, 0, 0) of CTA (0, 0, 0): sync: {REASONS[reason].format(register)}"
    )
    message += f"; it was started by {other}" if other else ""
    assert found(body) == (Report("sync", "", 0, "", (0, 0, 0), (0,), instr, other, message),)


def test_the_wait_that_one_warpgroup_of_one_block_skips_is_found() -> None:
    text = tiles("""mov.u32 %r6, %ctaid.x;
    setp.lt.u32 %p3, %r0, 128;
    setp.ne.or.u32 %p3, %r6, 1, %p3; | fence | mma | commit | @!%p3 bra $late;
    wgmma.wait_group.sync.aligned 0;
$late:
    setp.eq.u32 %p4, %r6, 1;
    @%p4 bra $one;
    bra $end;
$one:
    @%p3 st.global.f32 [%rd1], %f0;
    @!%p3 st.global.f32 [%rd1], %f1;
$end:""")
    (report,) = reports(text, [np.zeros((256, 4), np.float32)], grid=2, block=256, dynamic_smem=SMEM)
    assert (report.cta, report.threads) == ((1, 0, 0), (128,))
    assert report.instr == located(text, "@!%p3 st.global")


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
        ("st.shared.u32 [%r3], %r0;", "st.shared.u32 [%r3]"),
        ("@%p2 st.shared.u32 [%r3+2048], %r0;", "@%p2 st.shared.u32 [%r3+2048], %r0"),
        (REFILL, "cp.async.bulk.shared::cluster"),
    ],
)
def test_a_tile_is_left_alone_until_the_wait(early: str, line: str) -> None:
    assert found(f"fence | mma | commit | wait | bar.sync 0; | {early} | store") == ()
    body = f"fence | mma | commit | bar.sync 0; | {early} | wait | store"
    (report,) = found(body)
    where, other = located(tiles(body), line), located(tiles(body), MMA)
    address = 0x800 if "+2048" in line else 0
    message = (
        f"kernel k: {where}: thread (0, 0, 0) of CTA (0, 0, 0): race: shared address {address:#x} may still "
        f"be "
        f"read by thread (0, 0, 0) in {other}; its warp has not waited for it with wgmma.wait_group"
    )
    assert report == Report("race", "shared", address, "", (0, 0, 0), (0, 0), where, other, message)


# ---------------------------------------- bulk copies in global memory

STORE_BULK = "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 256;"
LOAD_BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0], 256, [%r3];"
READ_BACK = "ld.global.u32 %r9, [%rd1];"
READ_TILE = "ld.shared.u32 %r9, [%r4+256];"
WAIT_READ = "cp.async.bulk.wait_group.read 0;"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 256;"
WAIT_FULL = """$full:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], 0;
    @!%p3 bra $full;"""
BULK = {
    "first": "@%p0 bra $end;",  # the rest is for the first thread
    "split": "@%p1 bra $second;\n    @%p0 bra $end;",  # for the first threads of two CTAs
    "other_cta": "bra $end;\n$second:\n    @%p0 bra $end;",
    "send": STORE_BULK,
    "reduce": "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [%r1], 256;",
    "commit": "cp.async.bulk.commit_group;",
    "wait": "cp.async.bulk.wait_group 0;",
    "wait_read": WAIT_READ,
    "expect": EXPECT,
    "load": LOAD_BULK,
    "wait_full": WAIT_FULL,
    "release": "st.release.gpu.global.u32 [%rd2], 1;",
    "acquire": """$spin:
    ld.acquire.gpu.global.u32 %r7, [%rd2];
    setp.eq.u32 %p4, %r7, 0;
    @%p4 bra $spin;""",
    "signal": "st.volatile.global.u32 [%rd2], 1;",  # orders nothing
    "poll": """$spin:
    ld.volatile.global.u32 %r7, [%rd2];
    setp.eq.u32 %p4, %r7, 0;
    @%p4 bra $spin;""",
    "fence": "fence.proxy.async;",
    "meet": "bar.sync 0;",
    "write": "st.global.u32 [%rd1], %r0;",
    "write_first": "st.global.u32 [%rd0], 5;",
    "read_back": READ_BACK,
    "read_tile": READ_TILE,
}


def bulk(body: str) -> str:
    """A kernel whose 64 threads have filled 256 bytes at %r1; 256 more are at %r2, and an mbarrier
    at %r3. %rd0 is `x`, %rd1 the thread's word of it, %rd2 `flag`, %r8 the CTA; `%p0` whether the
    thread is not the first, `%p1` whether the CTA is not. `body` may name parts of `BULK`.
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
{code(body, BULK)}
$end:
""",
    )


def global_reports(text: str, **how: Any) -> tuple[Report, ...]:
    args = [np.zeros(64, np.uint32), np.zeros(1, np.uint32)]
    return reports(text, args, **{"block": 64, "dynamic_smem": 520, **how})


@pytest.mark.parametrize(
    ("body", "grid"),
    [
        ("first | send | commit | wait | read_back", 1),
        # Another warp reads, ordered by a barrier after the wait.
        ("@%p0 bra $ready; | send | commit | wait | $ready: | meet | read_back", 1),
        # Another CTA reads, ordered by a flag after the wait; or copies.
        ("split | send | commit | wait | release | other_cta | acquire | read_back", 2),
        ("split | send | commit | wait | release | other_cta | acquire | expect | load | wait_full", 2),
        # The source may be overwritten after the wait for its read.
        ("first | send | commit | wait_read | st.shared.u32 [%r1], 7;", 1),
        # What others wrote is fenced by the writer, or by the reader after it has seen the flag.
        ("write | fence | meet | first | expect | load | wait_full", 1),
        ("write | meet | first | fence.proxy.async.global; | expect | load | wait_full", 1),
        ("split | write_first | fence | release | other_cta | acquire | expect | load | wait_full", 2),
        ("split | write_first | release | other_cta | acquire | fence | expect | load | wait_full", 2),
        # The source of a load may be overwritten after its wait, also by another CTA.
        ("@!%p0 expect | @!%p0 load | wait_full | write", 1),
        ("split | expect | load | wait_full | release | other_cta | acquire | write_first", 2),
        # Reductions of many CTAs meet, and atomic operations with them.
        ("first | reduce | commit | wait_read | red.relaxed.gpu.global.add.u32 [%rd0], 1;", 4),
    ],
)
def test_bulk_copies_in_order_have_no_report_in_global_memory(body: str, grid: int) -> None:
    assert global_reports(bulk(body), grid=grid) == ()


FAR = " of CTA (0, 0, 0)"  # where the other thread is, in another CTA


@pytest.mark.parametrize(
    ("body", "grid", "kind", "line", "why"),
    [
        (
            "first | send | commit | read_back | wait",
            1,
            "pending",
            "read_back",
            "may still be written by the copy send",
        ),
        # `.read` waits for the source only.
        (
            "first | send | commit | wait_read | read_back",
            1,
            "pending",
            "read_back",
            "may still be written by the copy send",
        ),
        (
            "split | send | commit | wait_read | release | other_cta | acquire | read_back",
            2,
            "pending",
            "read_back",
            "may still be written by the copy send",
        ),
        (
            "@%p0 bra $ready; | send | commit | wait | $ready: | setp.lt.u32 %p2, %r0, 32; | @%p2 bra $end; "
            "| read_back",
            1,
            "race",
            "read_back",
            "was written by thread (0, 0, 0) in send",
        ),
        # Two CTAs store to the same bytes.
        ("first | send | commit | wait", 2, "pending", "send", "may still be written by the copy send"),
        # A flag that is not released orders nothing.
        (
            "split | send | commit | wait | st.relaxed.gpu.global.u32 [%rd2], 1; | other_cta | acquire "
            "| read_back",
            2,
            "race",
            "read_back",
            f"was written by thread (0, 0, 0){FAR} in send",
        ),
        # No fence lets a copy see what ordinary instructions wrote.
        (
            "write | meet | first | expect | load | wait_full",
            1,
            "proxy",
            "load",
            "was written by thread (0, 0, 0) in write",
        ),
        (
            "write | fence.proxy.async.shared::cta; | meet | first | expect | load | wait_full",
            1,
            "proxy",
            "load",
            "was written by thread (0, 0, 0) in write",
        ),
        (
            "split | write_first | release | other_cta | acquire | expect | load | wait_full",
            2,
            "proxy",
            "load",
            f"was written by thread (0, 0, 0){FAR} in write_first",
        ),
        # The source of a load is left alone until the wait.
        (
            "@!%p0 expect | @!%p0 load | meet | setp.lt.u32 %p2, %r0, 32; | @%p2 bra $full; | write "
            "| wait_full",
            1,
            "race",
            "write",
            "may still be read by thread (0, 0, 0) in @!%p0 load",
        ),
        (
            "split | expect | load | release | other_cta | acquire | write_first",
            2,
            "race",
            "write_first",
            f"may still be read by thread (0, 0, 0){FAR} in load",
        ),
        (
            "first | reduce | write_first | commit | wait",
            1,
            "pending",
            "write_first",
            "may still be written by the copy reduce",
        ),
    ],
)
def test_bulk_copies_out_of_order_are_found_in_global_memory(
    body: str, grid: int, kind: str, line: str, why: str
) -> None:
    text = bulk(body)
    result = global_reports(text, grid=grid)
    assert [r.kind for r in result if r.space == "global"] == [kind]
    assert (result[0].space, result[0].region, result[0].instr) == ("global", "x", located(text, BULK[line]))
    words, _, name = why.rpartition(" ")
    assert f"{words} {BULK[name]}" in result[0].message


def test_the_whole_report_of_a_copy_in_global_memory() -> None:
    text = bulk("split | send | commit | wait_read | release | other_cta | acquire | read_back")
    where, other = located(text, READ_BACK), located(text, STORE_BULK)
    message = (
        f"kernel k: {where}: thread (0, 0, 0) of CTA (1, 0, 0): pending: global address 0x200000000 (x) may "
        f"still be written by the copy {other}; its thread has not waited for its group"
    )
    report = Report("pending", "global", 0x200000000, "x", (1, 0, 0), (0,), where, other, message)
    assert global_reports(text, grid=2) == (report,)


@pytest.mark.parametrize(
    ("body", "thread", "why"),
    [
        ("read_tile | wait_full", 0, "pending: shared address 0x100 may still be written by the copy {}"),
        # The copy is done, as the first warp has waited; nothing says so to the second.
        (
            "setp.lt.u32 %p2, %r0, 32; | @!%p2 bra $second; | wait_full | signal | bra $end; | $second: "
            "| poll "
            "| read_tile",
            32,
            "race: shared address 0x180 was written by thread (0, 0, 0) in {}",
        ),
    ],
)
def test_a_report_of_a_tile_read_too_early_names_the_mbarrier(body: str, thread: int, why: str) -> None:
    text = bulk(f"@!%p0 expect | @!%p0 load | {body}")
    where, other = located(text, READ_TILE), located(text, LOAD_BULK)
    (message,) = {r.message for r in global_reports(text, sanitize="race") if r.space == "shared"}
    assert message == (
        f"kernel k: {where}: thread ({thread}, 0, 0) of CTA (0, 0, 0): {why.format(other)}; this "
        "thread has not waited for the mbarrier at 0x200, which counts the copy"
    )


def test_a_report_of_a_copy_from_another_cta_names_the_mbarrier_there() -> None:
    text = bulk("""barrier.cluster.arrive;
    barrier.cluster.wait;
    mov.u32 %r5, %cluster_ctarank;
    setp.ne.or.u32 %p2, %r5, 0, %p0;
    mov.u32 %r6, 1;
    mapa.shared::cluster.u32 %r7, %r3, %r6;
    mapa.shared::cluster.u32 %r6, %r2, %r6;
    @!%p2 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r7], 256;
    @!%p2 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r6], [%r1], 256, [%r7];
    @!%p2 st.shared::cluster.u32 [%r6], 1;
    barrier.cluster.arrive;
    barrier.cluster.wait;""")
    (message,) = {r.message for r in global_reports(text, sanitize="race", grid=2, cluster=2)}
    assert message.endswith(
        f"pending: shared address 0x100 of CTA (1, 0, 0) may still be written by the copy "
        f"{located(text, 'cp.async.bulk')}; this thread has not waited for the mbarrier at 0x200 of CTA "
        "(1, 0, 0), which counts the copy"
    )


@pytest.mark.parametrize(
    ("wait", "why"),
    [
        (
            "",
            "may still be read by thread (0, 0, 0) in {}; its thread has not waited for it with "
            "cp.async.bulk.wait_group.read",
        ),
        # It has been waited for, but the warps do not meet.
        ("@!%p0 wait_read", "was read by thread (0, 0, 0) in {}; no barrier orders the two"),
    ],
)
def test_a_report_of_a_tile_overwritten_too_early_says_which_wait_is_missing(wait: str, why: str) -> None:
    store = "@%p2 st.shared.u32 [%r1], 7;"
    text = bulk(f"@!%p0 send | @!%p0 commit | {wait} | setp.ge.u32 %p2, %r0, 32; | {store} | @!%p0 wait")
    where, other = located(text, store), located(text, STORE_BULK)
    (report,) = (r for r in global_reports(text, sanitize="race") if r.other == other)
    assert report.message == (
        f"kernel k: {where}: thread (32, 0, 0) of CTA (0, 0, 0): race: shared address 0x0 {why.format(other)}"
    )


# Two copies of half the bytes each; the second goes to byte 128 and counts at the second mbarrier.
HALF_LOADS = (
    LOAD_BULK.replace("256", "128"),
    LOAD_BULK.replace("256", "128").replace("[%r2]", "[%r2+128]").replace("[%r3]", "[%r3+8]"),
)
TWO_MBARRIERS = "@!%p0 mbarrier.init.shared::cta.b64 [%r3+8], 1; | fence | meet"


def wait_for(number: int, label: str = "full") -> str:
    """A wait for the first or the second mbarrier."""
    return WAIT_FULL.replace("full", f"{label}{number}").replace("[%r3]", f"[%r3+{8 * number}]")


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
    expect = EXPECT.replace("256", "128")
    loads = (expect, expect.replace("[%r3]", "[%r3+8]"), *HALF_LOADS)
    text = bulk(
        f"{TWO_MBARRIERS} | {' | '.join(f'@!%p0 {load}' for load in loads)} | setp.lt.u32 %p2, %r0, 32; "
        f"| @!%p2 bra $second; | {wait_for(0)} | {wait_for(1)} | signal | bra $end; | $second: | poll "
        f"| {' | '.join(wait_for(half, 'second') for half in waits)} | setp.ne.u32 %p4, %r0, 32; "
        f"| @%p4 bra $end; | cp.async.bulk.global.shared::cta.bulk_group [%rd2+16], [%r2], {nbytes}; "
        f"| commit | wait"
    )
    args = [np.zeros(64, np.uint32), np.zeros(68, np.uint32)]
    result = [r for r in reports(text, args, block=64, dynamic_smem=528) if r.space == "shared"]
    want = [
        f"race: shared address {address} was written by thread (0, 0, 0) in {located(text, load)}; this "
        f"thread "
        f"has not waited for the mbarrier at {where}, which counts the copy"
        for address, where, load in ([why] if why else [])
    ]
    assert [r.message.partition("of CTA (0, 0, 0): ")[2] for r in result] == want


@pytest.mark.parametrize(("shift", "want"), [(0, []), (4, ["pending"])])
def test_boxes_that_ctas_store_side_by_side_do_not_meet(shift: int, want: list[str]) -> None:
    text = bulk(f"""first | mov.b64 %rd3, map;
    cvta.param.u64 %rd3, %rd3;
    mul.lo.u32 %r5, %r8, {16 - shift};
    mov.u32 %r6, 2;
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd3, {{%r5, %r6}}], [%r1]; | commit | wait""")
    text = text.replace("k(.param .u64 x", "k(.param .align 64 .b8 map[128], .param .u64 x")
    x = np.zeros((6, 36), np.float32)[:, :31]  # the last box ends outside
    args = [TensorMap(x, box=(16, 4)), x, np.zeros(1, np.uint32)]
    result = reports(text, args, grid=2, block=64, dynamic_smem=520)
    assert [r.kind for r in result] == want
    assert [r.address for r in result] == [0x200000000 + 4 * (2 * 36 + 12)] * len(want)


# ---------------------------------------- clusters

ARRIVE = "barrier.cluster.arrive.aligned;"
LEAVE = "barrier.cluster.wait.aligned;"
LOAD_FAR = "ld.shared::cluster.u32 %r9, [%r3+64];"
MAKE = "@!%p0 mbarrier.init.shared::cta.b64 [%r1], 1;"
ARRIVE_FAR = "@!%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];"
MULTICAST = (
    "@!%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[%r5], [%rd0], 16, [%r1], %h0;"
)
CLUSTER = {
    "arrive": ARRIVE,
    "leave": LEAVE,
    "relaxed": f"barrier.cluster.arrive.relaxed.aligned;\n    {LEAVE}",
    "sync": f"{ARRIVE}\n    {LEAVE}",
    "meet": "bar.sync 0;",
    "load_far": LOAD_FAR,
    "make": MAKE,
    "fence_init": "fence.mbarrier_init.release.cluster;",
    "fence": "fence.proxy.async;",
    "arrive_far": ARRIVE_FAR,
    "wait_near": """$near:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r1], 0;
    @!%p3 bra $near;""",
    "expect_near": "@!%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;",
    "multicast": MULTICAST,
    "copy": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd0], 16, [%r1];",
    "end": "@!%p0 mbarrier.inval.shared::cta.b64 [%r1];",
}


def clustered(body: str) -> str:
    """A kernel in clusters of two CTAs; %r1 is its shared memory, %r3 that of the other CTA, %r2
    the rank, %r5 16 bytes past its 64-byte head, %h0 the mask of both. `%p0`: not the first thread,
    `%p1`: not the first CTA, `%p2`: neither. `body` may name parts of `CLUSTER`.
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
{code(body, CLUSTER)}
$end:
""",
    )


def cluster_reports(text: str, block: int = 32) -> tuple[Report, ...]:
    x = np.zeros(64, np.uint32)
    return reports(text, [x], grid=2, cluster=2, block=block, dynamic_smem=256)


@pytest.mark.parametrize(
    "body",
    [
        "sync | load_far | sync",
        # To keep a CTA from ending needs no order of memory.
        "sync | load_far | relaxed",
        # The other CTA says that it has read.
        "make | sync | load_far | meet | arrive_far | wait_near | sync",
        "make | sync | @!%p1 bra $wait; | load_far | meet | arrive_far | bra $end; | $wait: | wait_near",
        # Only one thread of the CTA waits.
        "sync | @!%p1 bra $first; | load_far | sync | bra $end; | $first: | arrive | @%p0 bra $end; "
        "| barrier.cluster.wait;",
        "make | fence_init | relaxed | arrive_far | wait_near | sync",
        "make | fence_init | sync | expect_near | multicast | wait_near",
        "make | fence_init | relaxed | expect_near | multicast | wait_near",
        "make | fence | sync | expect_near | multicast | wait_near",
        # What a program stores by bytes is followed by bytes, mbarriers as well.
        "make | fence | sync | expect_near | multicast | wait_near | st.shared.u8 [%r1+8], 1;",
    ],
)
def test_clusters_that_keep_their_rules_have_no_report(body: str) -> None:
    assert cluster_reports(clustered(body)) == ()


ENDED = "in the memory of CTA ({}, 0, 0), which may have ended: it waits for nothing after the access"


@pytest.mark.parametrize(
    ("body", "line", "address"),
    [
        ("sync | load_far", LOAD_FAR, 64),
        ("sync | load_far | arrive", LOAD_FAR, 64),
        ("sync | @%p1 exit; | load_far", LOAD_FAR, 64),
        ("sync | st.shared::cluster.u32 [%r3], 1;", "st.shared::cluster", 0),
        ("make | sync | arrive_far", ARRIVE_FAR, 0),
        ("sync | atom.shared::cluster.add.u32 %r9, [%r3+64], 1;", "atom.shared", 64),
    ],
)
def test_a_cta_that_may_end_before_the_last_access_of_another_is_found(
    body: str, line: str, address: int
) -> None:
    text = clustered(body)
    where = located(text, line)
    (report,) = (r for r in cluster_reports(text, block=1) if r.kind == "sync")
    message = (
        f"kernel k: {where}: thread (0, 0, 0) of CTA {report.cta}: sync: shared address {address:#x}: "
        f"{ENDED.format(1 - report.cta[0])}"
    )
    assert report == Report("sync", "shared", address, "", report.cta, (0,), where, "", message)


def test_a_copy_to_a_cta_that_does_not_wait_for_it_is_found() -> None:
    text = clustered("make | fence_init | sync | expect_near | multicast | @%p1 bra $end; | wait_near")
    (report,) = (r for r in cluster_reports(text) if r.address == 128)
    assert (report.kind, report.cta, report.instr) == ("sync", (0, 0, 0), located(text, MULTICAST))
    assert report.message.endswith(f"shared address 0x80: {ENDED.format(1)}")


@pytest.mark.parametrize(
    ("body", "line", "kind"),
    [
        ("make | fence_init | meet | arrive_far | wait_near | sync", ARRIVE_FAR, "race"),
        ("make | meet | relaxed | arrive_far | wait_near | sync", ARRIVE_FAR, "race"),
        # fence.mbarrier_init is for mbarriers only.
        ("fence_init | relaxed | load_far | sync", LOAD_FAR, "race"),
        ("make | fence_init | meet | expect_near | multicast | wait_near", MULTICAST, "race"),
        ("make | sync | expect_near | multicast | wait_near", MULTICAST, "proxy"),
    ],
)
def test_mbarriers_are_fenced_and_waited_for_before_the_cluster_uses_them(
    body: str, line: str, kind: str
) -> None:
    text = clustered(body)
    (report,) = (r for r in cluster_reports(text) if r.kind in ("race", "proxy"))
    assert (report.kind, report.space, report.instr) == (kind, "shared", located(text, line))
    assert report.address == (64 if line == LOAD_FAR else 0)
    assert (report.cta, report.other_cta) in (((0, 0, 0), (1, 0, 0)), ((1, 0, 0), (0, 0, 0)))


UNFENCED = """
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 0;
    setp.ne.u32 %p1, %r0, 32;
    mov.u32 %r1, smem;
    add.u32 %r3, %r1, 64;
    ld.param.u64 %rd0, [x];
"""
COPY_AND_WAIT = "expect_near | @!%p0 copy | wait_near"
BY_ANOTHER_WARP = code(COPY_AND_WAIT, CLUSTER).strip().replace("%p0", "%p1")


def unfenced(body: str) -> tuple[str, tuple[Report, ...]]:
    """A kernel whose thread 0 makes an mbarrier, with the reports of `mbarrier_init`."""
    text = hopper.kernel("u64 x", UNFENCED + code(body, CLUSTER))
    args = [np.zeros(4, np.uint32)]
    return text, reports(text, args, block=64, dynamic_smem=128, sanitize="mbarrier_init")


@pytest.mark.parametrize(
    "body",
    [
        f"make | fence_init | meet | {COPY_AND_WAIT}",
        f"make | fence.proxy.async.shared::cta; | meet | {COPY_AND_WAIT}",
        f"make | fence_init | meet | {BY_ANOTHER_WARP}",
        # No asynchronous operation completes on it.
        "make | meet | @!%p0 mbarrier.arrive.shared::cta.b64 _, [%r1]; | wait_near",
        "make | meet | @!%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 4; "
        "| @!%p0 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r3], 7, [%r1]; | wait_near",
    ],
)
def test_an_mbarrier_that_copies_may_see_has_no_report(body: str) -> None:
    assert unfenced(body)[1] == ()


@pytest.mark.parametrize(
    "body",
    [
        f"make | meet | {COPY_AND_WAIT}",
        f"make | fence.acq_rel.cluster; | meet | {COPY_AND_WAIT}",
        f"fence_init | make | meet | {COPY_AND_WAIT}",
        # The fence comes after what orders the other warp, or is another thread's.
        f"make | meet | @!%p0 fence_init | {BY_ANOTHER_WARP}",
        f"make | meet | @!%p1 fence_init | {BY_ANOTHER_WARP}",
        # A fence is for what was initialised before it.
        f"make | fence_init | end | make | meet | {COPY_AND_WAIT}",
    ],
)
def test_an_mbarrier_that_no_fence_shows_to_copies_is_found(body: str) -> None:
    text, (report,) = unfenced(body)
    where = located(text, "cp.async.bulk.shared::cluster")
    init = located(text, MAKE, body.count("make") - 1)
    thread = 32 * ("%p1" in where)
    assert report.message == (
        f"kernel k: {where}: thread ({thread}, 0, 0) of CTA (0, 0, 0): mbarrier_init: shared address 0x0 was "
        f"written by thread (0, 0, 0) in {init}; neither fence.mbarrier_init nor fence.proxy.async by that "
        "thread, before this one comes after it, lets asynchronous operations see the mbarrier"
    )


@pytest.mark.parametrize(
    ("body", "line", "lane", "why", "other"),
    [
        (
            "sync | arrive | arrive | leave",
            (ARRIVE, 2),
            0,
            "comes to the barrier of the cluster again without having waited for it",
            None,
        ),
        (
            "sync | leave",
            (LEAVE, 1),
            0,
            "waits for the barrier of the cluster without having arrived at it",
            None,
        ),
        (
            "setp.lt.u32 %p4, %r0, 16; | arrive | @%p4 bra $here; | leave | bra $end; | $here: | leave",
            (LEAVE, 0),
            16,
            "a warp executes it together, but other threads of the warp came to another wait",
            (LEAVE, 1),
        ),
    ],
)
def test_the_barrier_of_a_cluster_is_used_in_turn_and_by_whole_warps(
    body: str, line: tuple[str, int], lane: int, why: str, other: tuple[str, int] | None
) -> None:
    text = clustered(body)
    where, there = located(text, *line), located(text, *other) if other else ""
    message = f"kernel k: {where}: thread ({lane}, 0, 0) of CTA (0, 0, 0): sync: {why}"
    message += f"; they came to {there}" if other else ""
    assert cluster_reports(text) == (Report("sync", "", 0, "", (0, 0, 0), (lane,), where, there, message),)


# ---------------------------------------- schedules

SEEDS = range(12)


def outcomes(text: str, args: Any, seeds: Sequence[int] = SEEDS, **how: Any) -> list[bytes]:
    """What each seed leaves in the last of the arguments that `args` makes."""
    left = []
    for seed in seeds:
        arrays = args()
        launch = {"grid": 1, "block": 128, "dynamic_smem": SMEM, **how}
        run(text, args=arrays, schedule=PCT(seed), **launch)
        left.append(arrays[-1].tobytes())
    return left


def sums() -> list[Array]:
    return [np.zeros((128, 4), np.float32)]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        # Shared memory is read at any time until the wait, the accumulators are there from then on.
        (
            "fence | mma | commit | wait | bar.sync 0; | st.shared.u32 [%r3], %r0; | store",
            "fence | mma | commit | bar.sync 0; | st.shared.u32 [%r3], %r0; | wait | store",
        ),
        ("fence | mma | commit | wait | store", "fence | mma | commit | store | wait"),
        (
            "fence | mma | commit | mma | commit | wait | store",
            "fence | mma | commit | mma | commit | wait_1 | store",
        ),
    ],
)
def test_wgmma_is_done_at_any_time_before_its_wait(right: str, wrong: str) -> None:
    (want,) = set(outcomes(tiles(right), sums))
    assert np.frombuffer(want, np.float32).tolist() == [16.0 * right.count("mma")] * 512
    left = outcomes(tiles(wrong), sums)
    fine = [np.frombuffer(x, np.uint8) == np.frombuffer(want, np.uint8) for x in left]
    assert not all(x.all() for x in fine)
    assert any(x[: 32 * 16].all() for x in fine)  # the first warp, by some seed
    assert len(set(left)) > 2
    assert left == outcomes(tiles(wrong), sums)


def test_wgmma_may_be_done_between_two_stores_to_what_it_reads() -> None:
    def change(value: int, label: str) -> str:
        return f"""mov.u32 %r4, {value};
    st.shared.v4.u32 [%r3], {{%r4, %r4, %r4, %r4}};
    bar.sync 0;
    mov.u32 %r6, 0;
${label}:
    add.u32 %r6, %r6, 1;
    setp.lt.u32 %p3, %r6, 50;
    @%p3 bra ${label};"""

    twos, threes = change(0x40004000, "two"), change(0x42004200, "three")
    left = outcomes(tiles(f"fence | mma | commit | bar.sync 0; | {twos} | {threes} | wait | store"), sums)
    values = {x for one in left for x in np.frombuffer(one, np.float32).tolist()}
    assert values >= {16.0, 32.0, 48.0}


@pytest.mark.slow
def test_accumulators_in_flight_across_a_loop_come_out_right_by_any_seed() -> None:
    text = tiles(
        "mov.u32 %r6, 0; | $next: | fence | mma | commit | other_mma | commit | wait_1 | add.f32 %f0, %f0, "
        "%f0; "
        "| add.u32 %r6, %r6, 1; | setp.lt.u32 %p3, %r6, 5; | @%p3 bra $next; | wait | add.f32 %f0, %f0, "
        "%f4; | store"
    )
    for how in ({}, {"stepwise": True}, {"sanitize": "all"}):
        (only,) = set(outcomes(text, sums, range(6), **how))
        first = np.frombuffer(only, np.float32).reshape(128, 4)
        assert (first == [16 * (2**5 + 2**4 + 2**3 + 2**2 + 2) + 80, 80, 80, 80]).all()


READ = "ld.shared.u32 %r9, [%r4]; | st.global.u32 [%rd1], %r9;"
MOVED = "add.u64 %rd1, %rd1, 256;"  # results go after the 256 bytes that are copied
REFILL_BULK = f"@!%p0 expect | @!%p0 {LOAD_BULK.replace('[%r2]', '[%r1]')}"
REFILL_COPY = "cp.async.ca.shared.global [%r4], [%rd3], 4; | cp.async.commit_group;"
WAIT_COPY = "cp.async.wait_group 0;"
# Each thread then reads what one of the other warp has made.
OTHER_HALF = "xor.b32 %r5, %r0, 32; | shl.b32 %r5, %r5, 2; | add.u32 %r4, %r5, %r1;"
READ_OTHERS = f"mov.u64 %rd3, %rd1; | {MOVED} | mov.u32 %r6, %r4; | {OTHER_HALF} | {READ} | mov.u32 %r4, %r6;"
READ_STORED = "ld.global.u32 %r9, [%rd0+4]; | st.global.u32 [%rd0+256], %r9;"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        # A buffer is refilled while another warp may still read it.
        (
            f"{OTHER_HALF} | {MOVED} | {READ} | meet | {REFILL_BULK} | wait_full",
            f"{OTHER_HALF} | {MOVED} | {READ} | {REFILL_BULK} | wait_full",
        ),
        (
            f"{READ_OTHERS} | meet | {REFILL_COPY} | {WAIT_COPY}",
            f"{READ_OTHERS} | {REFILL_COPY} | {WAIT_COPY}",
        ),
        # A tile is read before its copy is waited for.
        (f"{REFILL_BULK} | wait_full | {MOVED} | {READ}", f"{REFILL_BULK} | {MOVED} | {READ} | wait_full"),
        (
            f"mov.u64 %rd3, %rd1; | {MOVED} | {REFILL_COPY} | {WAIT_COPY} | {READ}",
            f"mov.u64 %rd3, %rd1; | {MOVED} | {REFILL_COPY} | {READ} | {WAIT_COPY}",
        ),
        # The source of a store is overwritten before the wait for its read.
        (
            "first | send | commit | wait_read | st.shared.u32 [%r1], 9;",
            "first | send | commit | st.shared.u32 [%r1], 9; | wait_read",
        ),
        # What was stored is read before it is there; `.read` waits for the source only.
        (
            f"first | send | commit | wait | {READ_STORED}",
            f"first | send | commit | wait_read | {READ_STORED}",
        ),
    ],
    ids=["bulk refill", "cp.async refill", "bulk read", "cp.async read", "source", "stored"],
)
def test_copies_are_done_at_any_time_before_their_wait(right: str, wrong: str) -> None:
    def args() -> list[Array]:
        return [np.zeros(1, np.uint32), np.arange(100, 228, dtype=np.uint32)]

    def swapped(text: str) -> str:  # the last argument is the one that is looked at
        return text.replace(".param .u64 x, .param .u64 flag", ".param .u64 flag, .param .u64 x")

    how = {"block": 64, "dynamic_smem": 520}
    (want,) = set(outcomes(swapped(bulk(right)), args, range(24), **how))
    left = outcomes(swapped(bulk(wrong)), args, range(24), **how)
    assert want in left
    assert set(left) != {want}
    assert left == outcomes(swapped(bulk(wrong)), args, range(24), **how)


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


def ring(wait: str = WGMMA["wait"], thread: int = 0) -> str:
    descriptor = hopper.operand("%rd5", "%r1", hopper.descriptor(128, 256, "none"))
    body = RING.format(descriptor=descriptor, mma=FRAGMENT_MMA, wait=wait, thread=thread)
    return hopper.kernel("u64 out", body)


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


@pytest.mark.parametrize(
    ("text", "schedule", "stepwise"),
    [
        (ring(), "lockstep", False),
        (ring(), "pct:1", False),
        (ring(thread=96), "pct:2", False),
        (ring(thread=96), "pct:3", True),
        *((ring(AFTER_THE_NEXT), schedule, False) for schedule in ("lockstep", "pct:1", "pct:2", "pct:3")),
    ],
)
def test_a_wait_of_one_warp_speaks_for_its_warpgroup(text: str, schedule: str, stepwise: bool) -> None:
    out = np.zeros((128, 4), np.float32)
    how: dict[str, Any] = {"sanitize": "all", "schedule": schedule, "stepwise": stepwise}
    run(text, grid=1, block=160, args=[out], dynamic_smem=2048, **how)
    assert (out == 16 * (1 + 2 + 3 + 4)).all()


@pytest.mark.parametrize("wait", ["", WGMMA["wait_1"]])
def test_a_slot_that_is_handed_on_before_the_wait_is_found(wait: str) -> None:
    text = ring(wait)
    (report,) = generated(
        text, [np.zeros((128, 4), np.float32)], block=160, dynamic_smem=2048, sanitize="race"
    )
    assert report.message.partition(": race: ")[0] == (
        f"kernel k: {located(text, 'st.shared.v2')}: thread (128, 0, 0) of CTA (0, 0, 0)"
    )
    assert report.message.endswith(
        f"in {located(text, MULTIPLY)}; its warp has not waited for it with wgmma.wait_group"
    )


def test_a_warp_waits_for_the_others_of_its_warpgroup_for_ever_if_they_do_not_come() -> None:
    text = tiles(
        "setp.ge.u32 %p2, %r0, 96; | @%p2 bra $other; | fence | mma | commit | wait | $other: | bar.sync 1;"
    )
    waits = [
        f"{named(0, 96)} wait at the wgmma of the other warps of its warpgroup in "
        f"{located(text, 'wait_group')}",
        f"{named(96, 32)} wait at barrier 1 in {located(text, 'bar.sync 1')}",
    ]
    out = np.zeros(512, np.float32)
    assert refused(text, [out], block=128, dynamic_smem=SMEM) == deadlock(waits, 0, 128)


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
    boxes: Any = TensorMap(np.zeros((8, 32), np.uint32), box=(16, 8))
    assert [r.message for r in generated(text, [boxes], block=128, dynamic_smem=1024, sanitize="sync")] == [
        f"kernel k: {located(text, 'cp.async.bulk.tensor')}: thread (0, 0, 0) of CTA (0, 0, 0): sync: "
        "the copy is still under way when its threads have ended"
    ]


# ---------------------------------------- two copies, of which only one has been waited for


@pytest.mark.parametrize("schedule", ["lockstep", *(f"pct:{seed}" for seed in range(4))])
@pytest.mark.parametrize(("waited", "read"), [(0, 256), (0, 0), (1, 256), (1, 0), (2, 256)])
def test_a_wait_covers_the_copies_that_its_mbarrier_counts_and_no_others(
    waited: int, read: int, schedule: str
) -> None:
    """The first copy goes to byte 256, and the first mbarrier counts it, the second to byte 0."""
    second = (
        EXPECT.replace("[%r3]", "[%r3+8]"),
        LOAD_BULK.replace("[%r2]", "[%r1]").replace("[%r3]", "[%r3+8]"),
    )
    waits = " | ".join(map(wait_for, range(2) if waited == 2 else [waited]))
    text = bulk(
        f"{TWO_MBARRIERS} | @!%p0 expect | @!%p0 {second[0]} | @!%p0 load | @!%p0 {second[1]} | {waits} "
        f"| ld.shared.u32 %r9, [%r4+{read}];"
    )
    args = [np.zeros(64, np.uint32), np.zeros(1, np.uint32)]
    how = {"sanitize": "race", "schedule": schedule}
    result = generated(text, args, block=64, dynamic_smem=536, **how)
    clean = waited == 2 or (waited, read) in ((0, 256), (1, 0))
    assert {r.kind for r in result} <= {"race", "pending"}
    assert (not result) == clean


@pytest.mark.parametrize("barrier", ["bar.sync 0;", ""])
def test_who_meets_a_warp_that_has_waited_for_a_copy_need_not_wait_too(barrier: str) -> None:
    text = bulk(
        "@!%p0 expect | @!%p0 load | setp.ge.u32 %p2, %r0, 32; | @%p2 bra $second; | wait_full | signal "
        "| $second: "
        f"| poll | {barrier} | read_tile"  # which polls so that the copy has come in any case
    )
    result = global_reports(text, sanitize="race")
    assert [(r.kind, r.threads) for r in result] == ([] if barrier else [("race", (32, 0))])


@pytest.mark.parametrize("waiting", [128, 256])
def test_a_wait_of_one_warpgroup_says_nothing_of_another(waiting: int) -> None:
    """The first threads wait before the barrier, the others after it."""
    text = tiles(
        f"setp.ge.u32 %p3, %r0, {waiting}; | fence | mma | commit | @%p3 bra $later; | wait | $later: "
        f"| bar.sync 0; "
        "| @!%p0 st.shared.u32 [%r1], 7; | @!%p3 bra $end; | wait | $end: | store"
    )
    result = generated(text, [np.zeros((256, 4), np.float32)], block=256, dynamic_smem=SMEM, sanitize="race")
    assert [r.kind for r in result] == ["race"] * (waiting == 128)


@pytest.mark.parametrize(("wait", "clean"), [("wait", True), ("wait_1", False), ("wait_2", False)])
def test_a_wait_that_leaves_groups_under_way_says_nothing_of_them(wait: str, clean: bool) -> None:
    text = tiles(
        f"fence | mma | commit | mma | commit | {wait} | @!%p0 st.shared.u32 [%r1], 7; | wait | store"
    )
    result = generated(text, sums(), block=128, dynamic_smem=SMEM, sanitize="race")
    assert [r.kind for r in result] == ["race"] * (not clean)


# ---------------------------------------- undefined values


def undefined(text: str) -> list[tuple[int, str]]:
    """The first thread of each report of an undefined value, and what the value depends on."""
    result = reports(text, [np.zeros((128, 4), np.float32)], dynamic_smem=SMEM)
    assert {report.kind for report in result} <= {"undefined", "uninitialised"}
    return [(r.threads[0], r.message.partition("depends on ")[2].partition(",")[0]) for r in result]


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
    text = tiles(f"fence | mma | commit | wait | st.global.v2.f32 [%rd1], {part};")
    line = next(line for line in text.splitlines() if store in line)
    less = line.replace("@%p2 ", "").strip()
    guarded = f"    setp.ne.u32 %p5, %r2, 9;\n    and.pred %p5, %p5, %p{'2' if '@%p2' in line else '5'};\n"
    assert undefined(text.replace(line, f"{guarded}    @%p5 {less}")) == wanted
    assert undefined(text) == []


def test_accumulators_count_only_if_they_are_added_to() -> None:
    text = tiles(CORRECT["at once"]).replace("    mov.f32 %f0, 0f00000000;\n", "")
    assert undefined(text) == [(0, "%f0")]
    assert undefined(text.replace("%rd4, %rd5, 1, 1, 1", "%rd4, %rd5, 0, 1, 1")) == []


def test_tiles_count_if_accumulators_do_not() -> None:
    text = tiles("fence | mma | commit | wait | st.global.v2.f32 [%rd1], {%f2, %f3};")
    text = text.replace("    mov.f32 %f0, 0f00000000;\n", "").replace(
        "%rd4, %rd5, 1, 1, 1", "%rd4, %rd5, 0, 1, 1"
    )
    line = next(line for line in text.splitlines() if "[%r3], {%r4" in line)
    assert undefined(text) == []
    guarded = f"    setp.ne.u32 %p5, %r2, 9;\n    @%p5 {line.strip()}"
    assert [thread for thread, _ in undefined(text.replace(line, guarded))] == [4]


def test_an_undefined_descriptor_is_reported() -> None:
    undefined_zero = "and.b64 %rd9, %rd9, 1; | sub.u64 %rd9, %rd9, %rd9; | add.u64 %rd5, %rd5, %rd9; | "
    text = tiles(undefined_zero + CORRECT["at once"])
    with pytest.raises(
        TrapError, match="undefined: its operand %rd5 depends on %rd9, which it has not written"
    ):
        run(text, grid=1, block=128, args=sums(), dynamic_smem=SMEM, sanitize="init")


def test_a_bulk_store_takes_unwritten_bytes_along_and_a_bulk_load_brings_defined_ones() -> None:
    store = "    st.shared.u32 [%r4], %r0;\n"
    text = bulk("first | send | commit | wait")
    assert global_reports(text) == ()
    (report,) = global_reports(
        text.replace(store, "    setp.ne.u32 %p2, %r0, 5;\n    @%p2 " + store.strip() + "\n")
    )
    assert report.kind == "uninitialised"
    assert "byte 20 of x when the kernel ends depends on shared address 0x14" in report.message
    use = "setp.eq.u32 %p4, %r9, 77; | @%p4 bra $end;"
    assert global_reports(bulk(f"@!%p0 expect | @!%p0 load | wait_full | read_tile | {use}")) == ()
