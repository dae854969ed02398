"""What a lane's arrival at an mbarrier orders, and what other lanes of its warp have done and it does not."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from interpreter import reported
from interpreter import test_hopper_programs as hopper

from ptxgen.interpreter import Report

# The first warp accesses memory and arrives, the second waits and accesses the same words.
SEND = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    ld.param.u64 %rd0, [out];
    setp.eq.u32 %p0, %r0, 0;
    setp.lt.u32 %p1, %r0, 4;
    @%p0 mbarrier.init.shared::cta.b64 [%r1+128], {count};
    @%p0 mbarrier.init.shared::cta.b64 [%r1+136], 1;
    and.b32 %r3, %r0, 31;
    shl.b32 %r2, %r3, 2;
    add.u32 %r2, %r2, %r1;
    cvt.u64.u32 %rd3, %r2;
    cvt.u64.u32 %rd4, %r1;
    sub.u64 %rd3, %rd3, %rd4;
    add.u64 %rd3, %rd3, %rd0;
    setp.lt.u32 %p2, %r0, 32;
    @%p2 st.shared.u32 [%r2], %r0;
    bar.sync 0;
    setp.ge.u32 %p2, %r0, 32;
    @%p2 bra $next;
    {access}
    {between}
    {who}mbarrier.arrive.shared::cta.b64 %rd1, [%r1+128];
    bra $end;
$next:
    setp.ge.u32 %p2, %r0, 64;
    @%p2 bra $last;
$wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1+128], 0;
    @!%p3 bra $wait;
    {after}
$last:
$end:
"""
STORE = "@%p1 st.shared.u32 [%r2], 7;"
ONE_STORES = "@%p0 st.shared.u32 [%r2], 7;"
READ = "ld.shared.u32 %r4, [%r2];"
READ_ONE_WORD = "ld.shared.u32 %r4, [%r1];"
ONE_READS = "@%p0 ld.shared.u32 %r4, [%r2];"
GLOBAL_STORE = "@%p1 st.global.u32 [%rd3], 7;"
GLOBAL_READ = "ld.global.u32 %r4, [%rd3];"
WRITE = "st.shared.u32 [%r2], 8;"
ONE_WRITES = "setp.eq.u32 %p4, %r0, 32; @%p4 st.shared.u32 [%r1], 8;"
GLOBAL_WRITE = "st.global.u32 [%rd3], 8;"
MEET = "bar.warp.sync -1;"


LAUNCH: Final = {"block": 64, "dynamic_smem": 144}


def reports(access: str, between: str, caller: str, count: int, after: str) -> tuple[Report, ...]:
    body = SEND.format(access=access, between=between, who=caller, count=count, after=after)
    return reported.reports(hopper.kernel("u64 out", body), [np.zeros(32, np.uint32)], **LAUNCH)


SHARED = ((STORE, READ), (STORE, WRITE), (READ, WRITE))
GLOBAL = ((GLOBAL_STORE, GLOBAL_READ), (GLOBAL_READ, GLOBAL_WRITE))
COPIES = "cp.async.bulk.commit_group;"


@pytest.mark.parametrize(
    ("access", "after", "copies"),
    [
        *((*accesses, "") for accesses in (*SHARED, *GLOBAL)),
        *((*accesses, COPIES) for accesses in (SHARED[0], GLOBAL[0])),
        *(pytest.param(*accesses, COPIES, marks=pytest.mark.slow) for accesses in (*SHARED[1:], GLOBAL[1])),
    ],
)
def test_a_lane_arrives_for_what_it_comes_after(access: str, after: str, copies: str) -> None:
    def found(between: str, caller: str = "@%p0 ", count: int = 1) -> list[str]:
        return [r.kind for r in reports(access, f"{copies}\n{between}", caller, count, after)]

    assert found("") == ["race"]
    assert found("shfl.sync.idx.b32 %r5, %r0, 0, 31, -1;") == ["race"]  # orders no memory
    assert found("@%p1 bar.warp.sync 15;") == (["race"] if "@" not in access else [])
    assert found(MEET) == []
    assert found("bar.sync 1, 32;") == []
    assert found("", caller="", count=32) == []  # all lanes arrive


@pytest.mark.parametrize(("access", "after"), [(ONE_STORES, READ), (ONE_STORES, WRITE), (ONE_READS, WRITE)])
def test_what_the_lane_itself_did_comes_before_its_arrival(access: str, after: str) -> None:
    assert reports(access, "", "@%p0 ", 1, after) == ()


def test_several_lanes_that_read_one_word_are_not_the_lane_that_arrives() -> None:
    assert [r.kind for r in reports(READ_ONE_WORD, "", "@%p0 ", 1, ONE_WRITES)] == ["race"]
    assert reports(READ_ONE_WORD, MEET, "@%p0 ", 1, ONE_WRITES) == ()


def test_lanes_that_arrive_one_after_another_release_what_each_has_done() -> None:
    lanes = "\n".join(
        f"setp.eq.u32 %p4, %r0, {lane}; @%p4 mbarrier.arrive.shared::cta.b64 %rd1, [%r1+128];"
        for lane in range(1, 4)
    )
    assert reports(STORE, lanes, "@%p0 ", 4, READ) == ()
    assert reports(f"@%p1 {READ_ONE_WORD}", lanes, "@%p0 ", 4, ONE_WRITES) == ()
    fewer = lanes.replace("%r0, 3;", "%r0, 9;")  # a lane that has stored nothing arrives for the third
    assert [r.kind for r in reports(STORE, fewer, "@%p0 ", 4, READ)] == ["race"]


def found_in(body: str) -> set[tuple[str, ...]]:
    """The kinds of the reports of a kernel with this body, in each of four random orders of its warps."""
    text, args = hopper.kernel("u64 out", body), [np.zeros(32, np.uint32)]
    return {tuple(r.kind for r in reported.reports(text, args, seed=seed, **LAUNCH)) for seed in range(4)}


def test_an_arrival_that_nobody_has_waited_for_releases_nothing() -> None:
    body = SEND.format(access=ONE_STORES, between="", who="@%p0 ", count=1, after=READ)
    assert found_in(body) == {()}
    wait = body[body.index("$wait:") : body.index("bra $wait;") + len("bra $wait;")]
    assert found_in(body.replace(wait, "")) == {("race",)}


def test_a_later_arrival_at_another_mbarrier_releases_nothing() -> None:
    second = "setp.eq.u32 %p4, %r0, 1;"
    body = SEND.format(
        access=f"{second} @%p4 st.shared.u32 [%r2], 7;", between="", who="@%p0 ", count=1, after=READ
    )
    later = f"{second} @%p4 mbarrier.arrive.shared::cta.b64 %rd1, [%r1+136];\n    bra $end;"
    assert found_in(body.replace("bra $end;", later, 1)) == {("race",)}


def test_what_a_lane_releases_a_third_warp_learns_from_the_second() -> None:
    on = "setp.eq.u32 %p4, %r0, 32; @%p4 mbarrier.arrive.shared::cta.b64 %rd1, [%r1+136];\nbra $end;"
    last = """
$again:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1+136], 0;
    @!%p3 bra $again;
    ld.shared.u32 %r4, [%r2];
$end:"""

    def found(access: str, between: str) -> list[str]:
        body = SEND.format(access=access, between=between, who="@%p0 ", count=1, after=on)
        text = hopper.kernel("u64 out", body.replace("$end:", last, 1))
        return [r.kind for r in reported.reports(text, [np.zeros(32, np.uint32)], block=96, dynamic_smem=144)]

    assert found(STORE, "") == ["race"]
    assert found(STORE, MEET) == []
    assert found(ONE_STORES, "") == []


def test_the_report_says_that_other_lanes_have_arrived() -> None:
    (report,) = reports(READ, "", "@%p0 ", 1, WRITE)
    assert report.threads == (33, 1)
    assert report.message == (
        f"kernel k: {WRITE} (line 39): thread (33, 0, 0) of CTA (0, 0, 0): race: shared address 0x4 may "
        f"still be read by thread (1, 0, 0) in {READ} (line 29); other lanes of its warp have arrived at an "
        "mbarrier since, but no bar.warp.sync orders them after it"
    )
    (report,) = reports(GLOBAL_STORE, "", "@%p0 ", 1, GLOBAL_READ)
    assert report.message.endswith(
        "; other lanes of its warp have arrived at an mbarrier since, but no "
        "bar.warp.sync orders them after it"
    )
