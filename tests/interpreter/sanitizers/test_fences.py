"""Data behind a flag: which fences, of which threads and which scope, order it, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interpreter import test_hopper_programs as hopper
from interpreter.programs import at, ptx
from interpreter.reported import messages, reports

# CTA 0 writes a word and sets a flag. In CTA 1 one thread polls the flag, and tells the others.
TOLD = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p0, %r1, 0;
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra $reader;
    @%p0 ret;
    st.global.u32 [%rd0+4], 5;
    membar.gl;
    st.volatile.global.u32 [%rd0], 1;
    ret;
$reader:
    @%p0 bra $told;
$wait:
    POLL
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra $wait;
    BEFORE
$told:
    BARRIER
    AFTER
    ld.global.u32 %r3, [%rd0+4];
    mul.wide.u32 %rd1, %r1, 4;
    add.u64 %rd1, %rd1, %rd0;
    st.global.u32 [%rd1+8], %r3;
"""
VOLATILE = "ld.volatile.global.u32 %r2, [%rd0];"


def told(poll: str, before: str, barrier: str, after: str, block: int = 64) -> list[str]:
    text = TOLD.replace("POLL", poll).replace("BEFORE", before).replace("BARRIER", barrier)
    text = ptx(text.replace("AFTER", after), "u64 x")
    x = np.zeros(2 + block, np.uint32)
    result = messages(text, [x], grid=2, block=block)
    assert x.tolist() == [1, 5] + [5] * block
    load = "ld.global.u32 %r3, [%rd0+4];"
    assert all(load in m and "race: global address" in m for m in result)
    return result


@pytest.mark.parametrize(
    ("poll", "barrier"),
    [
        (VOLATILE, "bar.sync 0;"),
        ("ld.relaxed.gpu.global.u32 %r2, [%rd0];", "barrier.sync 0, 64;"),
        ("atom.relaxed.gpu.global.or.b32 %r2, [%rd0], 0;", "bar.sync 0;"),
        ("atom.global.add.u32 %r2, [%rd0], 0;", "bar.red.popc.u32 %r5, 0, %p0;"),
    ],
)
def test_a_barrier_does_not_acquire_what_one_thread_has_polled(poll: str, barrier: str) -> None:
    assert len(told(poll, "", barrier, "")) == 1
    assert told(poll, "membar.gl;", barrier, "") == []


def test_a_meeting_of_a_warp_does_not_acquire_what_one_thread_has_polled() -> None:
    assert len(told(VOLATILE, "", "bar.warp.sync -1;", "", block=32)) == 1
    assert told(VOLATILE, "membar.gl;", "bar.warp.sync -1;", "", block=32) == []


def test_the_end_of_some_lanes_does_not_acquire_what_their_warp_has_polled() -> None:
    body = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p0, %r1, 0;
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra $wait;
    @%p0 ret;
    st.global.u32 [%rd0+4], 5;
    st.release.gpu.global.u32 [%rd0], 1;
    ret;
$wait:
    LOAD %r2, [%rd0];
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra $wait;
    @%p0 bra $end;
    ld.global.u32 %r3, [%rd0+4];
    st.global.u32 [%rd0+8], %r3;
$end:
    """
    for load, count in [("ld.volatile.global.u32", 1), ("ld.acquire.gpu.global.u32", 0)]:
        text = ptx(body.replace("LOAD", load))
        assert len(messages(text, [np.zeros(3, np.uint32)], grid=2)) == count
        assert len(reports(text, [np.zeros(3, np.uint32)], grid=2, schedule="pct:1")) == count


@pytest.mark.parametrize(
    ("poll", "before", "after", "count"),
    [
        ("ld.acquire.gpu.global.u32 %r2, [%rd0];", "", "", 0),
        ("ld.acquire.sys.global.u32 %r2, [%rd0];", "", "", 0),
        (VOLATILE, "membar.cta;", "", 1),
        (VOLATILE, "fence.acq_rel.cta;", "", 1),
        (VOLATILE, "fence.acq_rel.sys;", "", 0),
        (VOLATILE, "fence.sc.gpu;", "", 0),
        (VOLATILE, "", "membar.gl;", 0),
        (VOLATILE, "", "fence.acq_rel.cta;", 1),
    ],
)
def test_a_fence_on_either_side_of_a_barrier_acquires_what_was_polled_before(
    poll: str, before: str, after: str, count: int
) -> None:
    assert len(told(poll, before, "bar.sync 0;", after)) == count


def test_a_report_of_data_behind_a_flag_names_the_two_accesses() -> None:
    text = TOLD.replace("POLL", VOLATILE).replace("BEFORE", "").replace("BARRIER", "bar.sync 0;")
    text = ptx(text.replace("AFTER", ""), "u64 x")
    load, store = "ld.global.u32 %r3, [%rd0+4];", "st.global.u32 [%rd0+4], 5;"
    (result,) = messages(text, [np.zeros(66, np.uint32)], grid=2, block=64)
    _, line = at(text, store).split("(line ")
    assert result == (
        at(text, load).replace("CTA (0, 0, 0)", "CTA (1, 0, 0)")
        + "race: global address 0x200000004 (x) was written by thread (0, 0, 0) of CTA (0, 0, 0) in "
        f"{store} (line {line.partition(')')[0]}); no barrier orders the two"
    )


# Warp 0 hands a word of shared memory to warps 1 and 2, of which warp 1 polls, and then meets warp 2.
WORKLOADS = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 st.shared.u32 [buf], 0;
    bar.sync 0;
    setp.lt.u32 %p1, %r0, 32;
    @%p1 bra $writer;
    setp.ge.u32 %p1, %r0, 64;
    @%p1 bra $second;
$wait:
    ld.relaxed.cta.shared.u32 %r1, [buf];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra $wait;
    BEFORE
    bar.arrive 1, 64;
    ret;
$second:
    bar.sync 1, 64;
    AFTER
    ld.shared.u32 %r2, [buf+4];
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd1, %rd1, %rd0;
    st.global.u32 [%rd1+-256], %r2;
    ret;
$writer:
    @!%p0 ret;
    st.shared.u32 [buf+4], 7;
    st.release.cta.shared.u32 [buf], 1;
"""


@pytest.mark.parametrize(
    ("before", "after", "count"), [("", "", 1), ("fence.acq_rel.cta;", "", 0), ("", "fence.acq_rel.cta;", 0)]
)
def test_an_arrival_at_a_barrier_passes_on_only_what_a_fence_acquires(
    before: str, after: str, count: int
) -> None:
    text = ptx(WORKLOADS.replace("BEFORE", before).replace("AFTER", after), shared=8)
    x = np.zeros(32, np.uint32)
    assert len(messages(text, [x], block=96)) == count
    assert x.tolist() == [7] * 32


@pytest.mark.parametrize(
    ("mine", "other", "cluster", "count"),
    [
        ("red.relaxed.gpu.global.add.u32", "red.relaxed.gpu.global.add.u32", 1, 0),
        ("red.relaxed.cta.global.add.u32", "red.relaxed.gpu.global.add.u32", 1, 1),
        ("red.relaxed.gpu.global.add.u32", "red.relaxed.cta.global.add.u32", 1, 1),
        ("red.relaxed.cluster.global.add.u32", "red.relaxed.cluster.global.add.u32", 1, 1),
        ("red.relaxed.cluster.global.add.u32", "red.relaxed.cluster.global.add.u32", 2, 0),
        ("red.relaxed.cta.global.add.u32", "red.relaxed.cta.global.add.u32", 2, 1),
        ("st.relaxed.cta.global.u32", "st.relaxed.gpu.global.u32", 1, 1),
    ],
)
def test_strong_accesses_race_if_the_scope_of_one_does_not_include_the_other(
    mine: str, other: str, cluster: int, count: int
) -> None:
    body = f"""
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %ctaid.x;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $other;
    {mine} [%rd0], 1;
    ret;
$other:
    {other} [%rd0], 2;
    """
    text = hopper.kernel("u64 out", body)
    result = messages(text, [np.zeros(1, np.uint32)], grid=2, block=1, cluster=cluster, dynamic_smem=0)
    assert len(result) == count
    assert all(": race: " in m for m in result)


# CTA 1 of a cluster writes into the shared memory of CTA 0, and arrives at its mbarrier.
REMOTE = """
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %cluster_ctarank;
    mov.u32 %r1, smem;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $ready;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
$ready:
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    @!%p0 bra $wait;
    mapa.shared::cluster.u32 %r2, %r1, 0;
    st.shared::cluster.u32 [%r2+16], 9;
    ARRIVE [%r2];
    bra $end;
$wait:
    WAIT %p1, [%r1], 0;
    @!%p1 bra $wait;
    ld.shared.u32 %r3, [%r1+16];
    st.global.u32 [%rd0], %r3;
$end:
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
"""
ARRIVE, WAIT = "mbarrier.arrive{}.shared::cluster.b64 _,", "mbarrier.try_wait.parity{}.shared::cta.b64"


@pytest.mark.parametrize(
    ("arrive", "wait", "count"),
    [
        *((".release.cluster", ".acquire.cluster", 0), ("", "", 0), (".release.cluster", "", 0)),
        *(("", ".acquire.cluster", 0), (".release.cta", ".acquire.cluster", 1), (".release.cta", "", 1)),
        *((".release.cluster", ".acquire.cta", 1), (".relaxed.cluster", ".acquire.cluster", 1)),
        (".release.cluster", ".relaxed.cluster", 1),
    ],
)
def test_an_arrival_at_an_mbarrier_of_another_cta_orders_if_its_scope_includes_that_cta(
    arrive: str, wait: str, count: int
) -> None:
    text = REMOTE.replace("ARRIVE", ARRIVE.format(arrive)).replace("WAIT", WAIT.format(wait))
    text = hopper.kernel("u64 out", text)
    out = np.zeros(1, np.uint32)
    how: dict[str, Any] = {"grid": 2, "block": 1, "cluster": 2, "dynamic_smem": 64}
    result = messages(text, [out], **how)
    assert len(result) == count, result
    assert all("ld.shared.u32 %r3" in m and ": race: " in m for m in result)
    assert out[0] == 9


def test_an_mbarrier_of_the_own_cta_orders_by_the_scope_of_the_cta() -> None:
    body = """
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $ready;
    mbarrier.init.shared::cta.b64 [%r1], 1;
$ready:
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    setp.ge.u32 %p1, %r0, 32;
    @%p1 bra $wait;
    @%p0 bra $end;
    st.shared.u32 [%r1+16], 9;
    mbarrier.arrive.release.cta.shared::cta.b64 %rd1, [%r1];
    bra $end;
$wait:
    mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra $wait;
    ld.shared.u32 %r3, [%r1+16];
    st.global.u32 [%rd0], %r3;
$end:
    """
    out = np.zeros(1, np.uint32)
    text = hopper.kernel("u64 out", body)
    assert messages(text, [out], grid=2, block=64, cluster=2, dynamic_smem=64) == []
    assert out[0] == 9


def test_what_one_cta_has_acquired_is_passed_on_by_an_mbarrier() -> None:
    """CTA 0 writes a word for CTA 1, where one thread acquires it, and another waits for that thread."""
    body = """
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, smem;
    mov.u32 %r2, %tid.x;
    setp.ne.u32 %p0, %r2, 0;
    setp.ne.u32 %p1, %r0, 0;
    @%p1 bra $reader;
    @%p0 ret;
    st.global.u32 [%rd0+4], 5;
    st.release.gpu.global.u32 [%rd0], 1;
    ret;
$reader:
    @!%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
    bar.sync 0;
    setp.ge.u32 %p1, %r2, 32;
    @%p1 bra $wait;
    @%p0 ret;
$poll:
    LOAD %r3, [%rd0];
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra $poll;
    mbarrier.arrive.shared::cta.b64 %rd1, [%r1];
    ret;
$wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra $wait;
    ld.global.u32 %r3, [%rd0+4];
    st.global.u32 [%rd0+8], %r3;
    """
    for load, count in [("ld.acquire.gpu.global.u32", 0), ("ld.relaxed.gpu.global.u32", 1)]:
        text = hopper.kernel("u64 out", body.replace("LOAD", load))
        how: dict[str, Any] = {"grid": 2, "block": 64, "dynamic_smem": 64, "sanitize": "race"}
        result = reports(text, [np.zeros(3, np.uint32)], **how)
        assert len(result) == count, result
