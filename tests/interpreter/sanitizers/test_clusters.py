"""What orders accesses to the shared memory of other CTAs of a cluster, and when one may access it at all."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter import reported
from interpreter import test_hopper_programs as hopper
from interpreter.programs import line_of

from ptxgen.interpreter import Report

BARRIER = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
# CTA 0 executes MINE, CTA 1 OTHER; %r2 is the address of a word of CTA 0's shared memory for both.
BODY = f"""
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %cluster_ctarank;
    mov.u32 %r1, smem;
    mapa.shared::cluster.u32 %r2, %r1, 0;
    setp.ne.u32 %p0, %r0, 0;
    FIRST
    @%p0 bra $other;
    MINE
    bra $end;
$other:
    OTHER
$end:
    {BARRIER}
"""


def reports(mine: str, other: str, first: str = "", seed: int | None = None) -> tuple[Report, ...]:
    body = BODY.replace("FIRST", first).replace("MINE", mine).replace("OTHER", other)
    text = hopper.kernel("u64 out", body).replace(".version 8.3", ".version 8.6")
    how = {"grid": 2, "block": 1, "cluster": 2, "dynamic_smem": 64, "sanitize": "race,sync"}
    return reported.reports(text, [np.zeros(4, np.uint32)], seed=seed, **how)


ZEROED = "st.shared.u32 [%r1], 0;" + BARRIER
LOAD = "ld.shared.u32 %r3, [%r1]; st.global.u32 [%rd0], %r3;"
RED = "red.relaxed.cluster.shared::cluster.add.u32 [%r2], 1;"


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize(
    ("mine", "other", "raced"),
    [
        (LOAD, RED, True),
        (LOAD.replace("ld.shared", "ld.relaxed.cluster.shared"), RED, False),
        (LOAD.replace("ld.shared", "ld.volatile.shared"), RED, False),
        (RED, LOAD.replace("shared.u32 %r3, [%r1]", "shared::cluster.u32 %r3, [%r2]"), True),
        ("st.shared.u32 [%r1], 7;", RED, True),
        ("st.relaxed.cluster.shared.u32 [%r1], 7;", RED, False),
        (RED, RED, False),
        (RED.replace("cluster.shared", "cta.shared"), RED, True),
    ],
)
def test_a_weak_access_races_with_an_atomic_one_of_another_cta(
    mine: str, other: str, raced: bool, seed: int | None
) -> None:
    result = reports(mine, other, ZEROED, seed)
    assert [r.kind for r in result] == ["race"] * raced
    assert reports(mine, "", ZEROED, seed) == reports("", other, ZEROED, seed) == ()


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_a_thread_that_leaves_a_round_late_does_not_come_after_the_next_round(seed: int | None) -> None:
    """CTA 0 arrives for the second round once it has written, which may be before CTA 1 leaves the first."""
    write, read = "st.shared.u32 [%r1], 7;", "ld.shared::cluster.u32 %r3, [%r2]; st.global.u32 [%rd0], %r3;"
    assert [r.kind for r in reports(write, read, ZEROED, seed)] == ["race"]
    assert reports(write + BARRIER, BARRIER + read, ZEROED, seed) == ()


RELAXED = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"


@pytest.mark.parametrize(
    ("first", "early"),
    [
        ("", True),
        ("bar.sync 0;", True),
        ("barrier.cluster.arrive.release; @!%p0 barrier.cluster.wait.acquire;", True),
        (BARRIER, False),
        (RELAXED, False),
    ],
)
@pytest.mark.parametrize(
    "access",
    [
        "st.shared::cluster.u32 [%r2+16], 7;",
        "ld.shared::cluster.u32 %r3, [%r2+16];",
        "red.relaxed.cluster.shared::cluster.add.u32 [%r2+16], 7;",
        "atom.relaxed.cluster.shared::cluster.add.u32 %r3, [%r2+16], 7;",
    ],
)
def test_a_cta_has_to_have_started_before_another_one_accesses_its_memory(
    access: str, first: str, early: bool
) -> None:
    last = "barrier.cluster.wait.acquire;" if "@!%p0" in first else ""
    result = [r.message for r in reports("", access + last, first) if r.kind == "sync"]
    body = BODY.replace("FIRST", first).replace("MINE", "").replace("OTHER", access + last)
    text = hopper.kernel("u64 out", body)
    message = (
        f"kernel k: {access} (line {line_of(text, access)}): thread (0, 0, 0) of CTA (1, 0, 0): "
        "sync: shared address 0x10: in the memory of CTA (0, 0, 0), which may not have started: "
        "no barrier of the cluster comes before the access"
    )
    assert result == [message] * early


def test_a_cta_has_started_for_another_one_that_has_acquired_something_from_it() -> None:
    put = "st.{}.global.u32 [%rd0], 1;"
    take = """
$wait:
    ld.acquire.gpu.global.u32 %r3, [%rd0];
    setp.eq.u32 %p1, %r3, 0;
    @%p1 bra $wait;
    st.shared::cluster.u32 [%r2+16], 7;
    """
    assert reports(put.format("release.gpu"), take) == ()


# CTA 0 copies 64 bytes to both CTAs, each of which has an mbarrier that counts what it gets. WAITS are for
# CTAs that wait for their own mbarrier before the barrier of the cluster; then CTA TOUCHES executes TOUCH.
MULTICAST = f"""
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %cluster_ctarank;
    mov.u32 %r1, smem;
    mov.u16 %h0, 3;
    setp.ne.u32 %p0, %r0, 0;
    setp.ne.u32 %p1, %r0, TOUCHES;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;
    {BARRIER}
    @!%p0 COPY [%r1+64], [%rd0], 64, [%r1], %h0;
    WAITS
    {BARRIER}
    @!%p1 TOUCH
    {BARRIER}
$last:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra $last;
"""
WAIT = """
$wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra $wait;
$waited:
"""


def multicast(waits: str, touches: int, touch: str) -> list[str]:
    skip = {"both": "", "0": "@%p0 bra $waited;", "1": "@!%p0 bra $waited;", "none": "bra $waited;"}[waits]
    body = MULTICAST.replace("WAITS", skip + WAIT).replace("TOUCHES", str(touches)).replace("TOUCH", touch)
    how = {"grid": 2, "block": 1, "cluster": 2, "dynamic_smem": 256, "sanitize": "race,sync"}
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    text = hopper.kernel("u64 out", body.replace("COPY", copy))
    reports = reported.reports(text, [np.zeros(32, np.uint32)], **how)
    assert all(touch in r.message for r in reports)
    return [r.kind for r in reports]


@pytest.mark.parametrize("touch", ["ld.shared.u32 %r3, [%r1+64];", "st.shared.u32 [%r1+64], 7;"])
def test_a_multicast_copy_is_there_for_a_cta_after_the_wait_for_the_mbarrier_of_that_cta(touch: str) -> None:
    for touches in (0, 1):
        assert multicast("both", touches, touch) == multicast(str(touches), touches, touch) == []
        for waits in (str(1 - touches), "none"):
            assert multicast(waits, touches, touch) == ["pending"]


@pytest.mark.parametrize(("waits", "found"), [("both", []), ("0", []), ("1", []), ("none", ["race"])])
def test_the_source_of_a_multicast_copy_has_been_read_once_one_cta_has_its_data(
    waits: str, found: list[str]
) -> None:
    for touches in (0, 1):
        assert multicast(waits, touches, "st.global.u32 [%rd0], 7;") == found
