"""What orders memory for the sanitizers, and one seeded bug for each rule."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from interpreter import test_hopper_programs as hopper
from interpreter.programs import ELEMENT, at, line_of, located, on_elements, ptx, refused
from interpreter.reported import kinds, messages, reports

from ptxgen.errors import LaunchError


def test_a_report_has_the_last_note_before_its_instruction() -> None:
    function = """.func put(.reg .b32 at, .reg .b32 what)
{
    // store for another
    st.shared.u32 [at], what;
    ret;
}
"""
    body = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, buf;
    // all to one word
    mov.u32 %r2, 0;
    st.shared.u32 [%r1], %r0;
    // by a call
    add.u32 %r1, %r1, 4;
    call put, (%r1, %r0);
"""
    text = ptx(body, shared=8, before=function)
    assert [r.note for r in reports(text)] == ["all to one word", "store for another"]


# ---------------------------------------- names

TWO_BUGS = ptx(
    """
    mov.u32 %r0, %tid.x;
    ld.shared.u32 %r1, [buf+64];
    st.shared.u32 [buf], %r0;
    setp.eq.u32 %p0, %r1, 0;
    @%p0 bra $end;
$end:
""",
    shared=128,
)


@pytest.mark.parametrize(
    ("names", "want"),
    [
        *((True, ["race", "uninitialised"]), ("all", ["race", "uninitialised"]), ("race", ["race"])),
        *((["init"], ["uninitialised"]), ("init,race", ["race", "uninitialised"])),
        *((("bounds", "sync", "proxy"), []), (False, [])),
    ],
)
def test_each_sanitizer_may_run_alone(names: Any, want: list[str]) -> None:
    assert kinds(TWO_BUGS, sanitize=names) == want


def test_a_sanitizer_that_does_not_exist_is_refused() -> None:
    assert refused(TWO_BUGS, error=LaunchError, sanitize="races") == (
        "sanitize must be True, False or names among bounds, init, race, sync, proxy, mbarrier_init, "
        "determinism, tensor_fence, tensor_order, all, got 'races'; did you mean 'race'?"
    )


def test_a_report_is_counted_and_becomes_json() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r2, 0;
$next:
    st.shared.u32 [buf], %r0;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p0, %r2, {turns};
    @%p0 bra $next;
    """
    (report,) = reports(ptx(body.format(turns=1), shared=16))
    assert report.count == 1
    (report,) = reports(ptx(body.format(turns=3), shared=16))
    assert report.count == 5  # with itself, and from the second turn on with the turn before
    data = json.loads(json.dumps(report.as_json()))
    assert [data[name] for name in ("kind", "space", "region", "threads")] == [
        "race",
        "shared",
        "buf",
        [0, 31],
    ]


# ---------------------------------------- stores of equal values


@pytest.mark.parametrize(("value", "want"), [("%r1", []), ("%r0", ["race"])])
def test_threads_may_store_one_value_to_one_word(value: str, want: list[str]) -> None:
    body = f"""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, 7;
    setp.lt.u32 %p0, %r0, 32;
    @%p0 st.shared.u32 [buf], {value};
    @!%p0 st.shared.u32 [buf], {value};
    bar.sync 0;
    ld.shared.u32 %r2, [buf];
    """
    assert kinds(ptx(body, shared=16), block=64) == want


# ---------------------------------------- global memory


def test_threads_of_two_blocks_that_write_one_element_race() -> None:
    text = on_elements("    st.global.u32 [%rd1], %r0;")
    (report,) = reports(text, [np.zeros(4, np.uint32)], grid=2, block=1)
    assert (report.space, report.address, report.region) == ("global", 0x200000000, "x")
    assert (report.cta, report.other_cta, report.threads) == ((0, 0, 0), (1, 0, 0), (0, 0))
    assert report.message == at(text, "st.global") + (
        "race: global address 0x200000000 (x) is written at the same time by thread (0, 0, 0) of CTA (1, 0, "
        "0) in "
        f"{located(text, 'st.global')}; no barrier orders the two"
    )


@pytest.mark.parametrize("sync", ["", "bar.sync 0;"])
def test_a_barrier_orders_global_memory_inside_its_block_only(sync: str) -> None:
    body = f"""
    st.global.u32 [%rd0], %r0;
    {sync}
    xor.b32 %r4, %r0, {{distance}};
    mul.wide.u32 %rd2, %r4, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r5, [%rd3];
    """
    near, far = (on_elements(body.format(distance=d)) for d in (33, 64))
    x = np.zeros(128, np.uint32)
    assert kinds(near, [x], grid=2, block=64) == ([] if sync else ["race"])
    assert kinds(far, [x], grid=2, block=64) == ["race"]


@pytest.mark.parametrize("writer", [0, 3])
def test_a_write_after_reads_of_other_blocks_is_a_race(writer: int) -> None:
    body = f"""
    ld.global.u32 %r5, [%rd1];
    setp.eq.u32 %p0, %r0, {writer};
    @%p0 st.global.u32 [%rd1], 5;
    """
    text = on_elements(body)
    assert kinds(text, [np.zeros(4, np.uint32)], grid=4, block=1) == ["race"]
    assert kinds(text, [np.zeros(4, np.uint32)], grid=1, block=1) == []


LAST_BLOCK = (
    ELEMENT
    + """
    ld.param.u64 %rd4, [ticket];
    st.global.u32 [%rd0], %r0;
    FENCE
    bar.sync 0;
    setp.ne.u32 %p0, %r3, 0;
    mov.u32 %r5, 0;
    @%p0 bra $known;
    atom.global.add.u32 %r5, [%rd4], 1;
    st.shared.u32 [buf], %r5;
$known:
    bar.sync 0;
    ld.shared.u32 %r5, [buf];
    setp.ne.u32 %p1, %r5, 3;
    @%p1 bra $end;
    mad.lo.u32 %r6, %r3, 4, 0;
    mul.wide.u32 %rd5, %r3, 4;
    add.u64 %rd6, %rd1, %rd5;
    ld.global.u32 %r7, [%rd6];
    @!%p0 st.global.u32 [%rd4], 0;
$end:
"""
)


@pytest.mark.parametrize(
    ("fence", "want"),
    [("membar.gl;", []), ("fence.acq_rel.gpu;", []), ("fence.acq_rel.cta;", ["race"]), ("", ["race"])],
)
def test_the_last_block_sees_what_was_fenced_before_the_ticket(fence: str, want: list[str]) -> None:
    text = ptx(LAST_BLOCK.replace("FENCE", fence), shared=16)
    args = [np.zeros(256, np.uint32), np.zeros(1, np.uint32)]
    assert kinds(text, args, grid=4, block=64) == want


FLAG = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %ctaid.x;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $wait;
    st.global.u32 [%rd0], 5;
    BEFORE
    STORE [%rd0+4], 1;
    ret;
$wait:
    LOAD %r1, [%rd0+4];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra $wait;
    AFTER
    ld.global.u32 %r2, [%rd0];
    st.global.u32 [%rd0+8], %r2;
"""


@pytest.mark.parametrize(
    ("store", "load", "before", "after", "want"),
    [
        ("st.release.gpu.global.u32", "ld.acquire.gpu.global.u32", "", "", []),
        ("st.volatile.global.u32", "ld.volatile.global.u32", "membar.gl;", "membar.gl;", []),
        ("st.relaxed.gpu.global.u32", "ld.relaxed.gpu.global.u32", "", "", ["race"]),
        ("st.relaxed.gpu.global.u32", "ld.acquire.gpu.global.u32", "", "", ["race"]),
        ("st.release.gpu.global.u32", "ld.relaxed.gpu.global.u32", "", "", ["race"]),
        ("st.volatile.global.u32", "ld.volatile.global.u32", "", "membar.gl;", ["race"]),
        ("st.volatile.global.u32", "ld.volatile.global.u32", "membar.cta;", "membar.gl;", ["race"]),
        ("st.global.u32", "ld.global.u32", "membar.gl;", "membar.gl;", ["race"]),
    ],
)
def test_a_flag_orders_two_blocks_if_it_is_released_and_acquired(
    store: str, load: str, before: str, after: str, want: list[str]
) -> None:
    body = FLAG.replace("STORE", store).replace("LOAD", load)
    body = body.replace("BEFORE", before).replace("AFTER", after)
    x = np.zeros(3, np.uint32)
    assert kinds(ptx(body, "u64 x"), [x], grid=2, block=1) == want
    assert x.tolist() == [5, 1, 5]


def test_a_load_that_guesses_for_a_compare_and_swap_may_lose_its_race() -> None:
    body = """
    ld.param.u64 %rd0, [x];
    ld.global.u32 %r1, [%rd0{other}];
$again:
    add.u32 %r2, %r1, 1;
    atom.global.cas.b32 %r3, [%rd0], %r1, %r2;
    setp.ne.u32 %p0, %r3, %r1;
    mov.u32 %r1, %r3;
    @%p0 bra $again;
    """
    x = np.zeros(1, np.uint32)
    assert kinds(ptx(body.format(other="")), [x], grid=2) == []
    assert x[0] == 64
    swapped = body.replace("cas.b32 %r3, [%rd0], %r1, %r2;", "exch.b32 %r3, [%rd0], %r2;")
    text = ptx(swapped.replace("@%p0 bra $again;", "").format(other=""))
    assert kinds(text, [x], grid=2) == ["race"]


@pytest.mark.parametrize(("order", "want"), [("", ["race"]), ("relaxed.gpu.", [])])
def test_a_plain_store_to_what_a_compare_and_swap_updates_is_a_race(order: str, want: list[str]) -> None:
    body = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r1, %ctaid.x;
    atom.global.cas.b32 %r2, [%rd0], 5, %r1;
    st.{order}global.u32 [%rd0], %r1;
    """
    text = ptx(body.format(order=order))
    assert kinds(text, [np.zeros(1, np.uint32)], grid=2) == want


def test_a_read_that_was_looked_at_before_is_not_forgotten_at_the_next_look() -> None:
    text = ptx("""
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %ctaid.x;
    setp.ne.u32 %p0, %r0, 0;
    mov.u32 %r3, 0;
    @%p0 bra $reads;
$waits:
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, 50;
    @%p1 bra $waits;
    st.global.u32 [%rd0], 7;
    ret;
$reads:
    ld.global.u32 %r1, [%rd0];
    st.global.u32 [%rd0+4], %r1;
    ld.global.u32 %r2, [%rd0+8];
    """)
    (result,) = messages(text, [np.zeros(4, np.uint32)], grid=2, block=1)
    assert result.startswith(at(text, "[%rd0], 7;")), result
    assert "was read by thread (0, 0, 0) of CTA (1, 0, 0)" in result


@pytest.mark.parametrize(
    ("release", "acquire", "raced"),
    [
        ("st.release.gpu", "ld.acquire.gpu", []),
        ("st.release.cluster", "ld.acquire.gpu", ["flag", "data"]),
        ("st.release.cta", "ld.acquire.gpu", ["flag", "data"]),
        ("st.release.gpu", "ld.acquire.cta", ["flag", "data"]),
        ("fence.acq_rel.gpu;st.relaxed.gpu", "ld.acquire.gpu", []),
        ("fence.acq_rel.cluster;st.relaxed.gpu", "ld.acquire.gpu", ["data"]),
        ("st.release.gpu", "ld.relaxed.gpu", ["data"]),
        ("st.release.gpu", "ld", ["flag", "data"]),
    ],
)
def test_data_is_handed_from_cta_to_cta_by_release_and_acquire_of_the_gpu_only(
    release: str, acquire: str, raced: list[str]
) -> None:
    text = ptx(f"""
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %ctaid.x;
    setp.ne.u32 %p0, %r0, 0;
    mov.u32 %r3, 0;
    @%p0 bra $gives;
$waits:
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, 50;
    @%p1 bra $waits;
    {acquire}.global.u32 %r1, [%rd0];
    ld.global.u32 %r2, [%rd0+4];
    ret;
$gives:
    st.global.u32 [%rd0+4], 1;
    {release}.global.u32 [%rd0], 1;
    """)
    result = messages(text, [np.zeros(2, np.uint32)], grid=2, block=1)
    places = {"flag": "[%rd0];", "data": "[%rd0+4];"}
    assert [m[: len(at(text, places[p]))] for m, p in zip(result, raced, strict=True)] == [
        at(text, places[p]) for p in raced
    ]


# ---------------------------------------- mbarriers, bulk copies, wgmma

PIPELINE = hopper.kernel("u64 x, u64 y", hopper.PIPELINE.replace("TEST", "try_wait"))
BULK = hopper.bulk_kernel("cp.async.bulk.global.shared::cta.bulk_group")
CLUSTER = hopper.kernel("u64 out", hopper.CLUSTER_SUM)


def without(text: str, line: str, nth: int = 0, instead: str = "") -> str:
    lines = text.splitlines()
    lines[line_of(text, line, nth) - 1] = instead
    return "\n".join(lines)


def pipeline(text: str) -> list[str]:
    x = np.arange(7 * 32, dtype=np.uint32).reshape(7, 32)
    return kinds(text, [x, np.zeros(32, np.uint32)], block=64, dynamic_smem=512)


def test_a_pipeline_of_mbarriers_is_clean_and_each_missing_edge_is_found() -> None:
    assert pipeline(PIPELINE) == []
    assert pipeline(without(PIPELINE, "bar.sync 0;")) == ["race"]
    # The producer that does not wait for an empty stage, a consumer that does not for a full one.
    assert "race" in pipeline(without(without(PIPELINE, "@!%p2 bra $empty;"), "mbarrier.try_wait", 0))
    assert "sync" in pipeline(without(PIPELINE, "@!%p2 bra $empty;"))
    assert "sync" in pipeline(without(PIPELINE, "@!%p2 bra $full;"))
    relaxed = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r5+16];"
    weak = without(PIPELINE, "mbarrier.arrive.shared::cta.b64 _, [%r5+16];", instead=relaxed)
    assert pipeline(weak.replace(".version 8.3", ".version 8.6")) == ["race"]


@pytest.mark.parametrize(
    ("line", "nth", "want"),
    [
        ("bar.sync 0;", 0, ["race"]),
        ("@!%p1 bra $wait;", 0, ["sync"]),
        ("cp.async.bulk.commit_group;", 0, ["sync"]),
        ("cp.async.bulk.wait_group 0;", 0, ["sync"]),
    ],
)
def test_bulk_copies_are_clean_and_each_missing_wait_is_found(line: str, nth: int, want: list[str]) -> None:
    args = [np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)]
    assert kinds(BULK, args, dynamic_smem=512) == []
    assert kinds(without(BULK, line, nth), args, dynamic_smem=512) == want


def test_clusters_are_clean_and_a_missing_barrier_is_found() -> None:
    how: dict[str, Any] = {"grid": 8, "cluster": 4, "dynamic_smem": 64}
    out = np.zeros((8, 4), np.uint32)
    assert kinds(CLUSTER, [out], **how) == []
    for line in ("barrier.cluster.arrive.release", "barrier.cluster.wait.acquire"):
        assert kinds(without(CLUSTER, line), [out], **how) == ["race", "sync"]
    weak = CLUSTER.replace("arrive.release.cluster.shared", "arrive.relaxed.cluster.shared")
    assert kinds(weak.replace(".version 8.3", ".version 8.6"), [out], **how) == ["race"]


# ---------------------------------------- proxies


SHOW_AND_SEND = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    ld.param.u64 %rd0, [out];
    setp.eq.u32 %p0, %r0, 0;
    setp.lt.u32 %p1, %r0, 4;
    @%p0 mbarrier.init.shared::cta.b64 [%r1+16], {count};
    bar.sync 0;
    setp.ge.u32 %p2, %r0, 32;
    @%p2 bra $send;
    shl.b32 %r2, %r0, 2;
    add.u32 %r2, %r2, %r1;
    {write}
    {between}
    {who}mbarrier.arrive.shared::cta.b64 %rd1, [%r1+16];
    bra $end;
$send:
    setp.ne.u32 %p2, %r0, 32;
    @%p2 bra $end;
$wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1+16], 0;
    @!%p3 bra $wait;
    cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 16;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
$end:
"""
FOUR_STORE = "@%p1 st.shared.u32 [%r2], %r0;"
ONE_STORES = "@%p0 st.shared.v4.u32 [%r1], {%r0, %r0, %r0, %r0};"
FENCE_OF_PROXY = "fence.proxy.async.shared::cta;"


@pytest.mark.parametrize(
    ("write", "between", "first", "count", "found"),
    [
        (FOUR_STORE, FENCE_OF_PROXY, "@%p0 ", 1, ["race"]),
        (FOUR_STORE, f"bar.warp.sync -1;\n    {FENCE_OF_PROXY}", "@%p0 ", 1, ["proxy"]),
        (FOUR_STORE, f"{FENCE_OF_PROXY}\n    bar.warp.sync -1;", "@%p0 ", 1, []),
        (FOUR_STORE, f"@%p1 {FENCE_OF_PROXY}\n    @%p1 bar.warp.sync 15;", "@%p0 ", 1, []),
        (FOUR_STORE, FENCE_OF_PROXY, "", 32, []),
        (ONE_STORES, FENCE_OF_PROXY, "@%p0 ", 1, []),  # the fences of the others show nothing
    ],
)
def test_a_lane_that_arrives_for_others_comes_after_their_fences_of_the_proxy(
    write: str, between: str, first: str, count: int, found: list[str]
) -> None:
    body = SHOW_AND_SEND.format(write=write, between=between, who=first, count=count)
    text = hopper.kernel("u64 out", body)
    out = np.zeros(4, np.uint32)
    assert kinds(text, [out], block=64, dynamic_smem=24) == found
    np.testing.assert_array_equal(out, [0, 1, 2, 3] if write == FOUR_STORE else [0] * 4)


# ---------------------------------------- barriers and mbarriers against their rules


def test_parts_of_a_warp_at_different_barriers_are_found() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, {limit};
    @%p0 bra $low;
    {barrier}.sync 0;
    bra $end;
$low:
    {barrier}.sync 0;
$end:
    """
    assert kinds(ptx(body.format(limit=32, barrier="bar")), block=64) == []
    assert kinds(ptx(body.format(limit=16, barrier="barrier")), block=64) == []
    (report,) = reports(ptx(body.format(limit=16, barrier="bar")), block=64)
    assert report.message.endswith(
        "sync: a warp executes it together, but 32 of its 32 threads are here and the others come "
        "to different barriers"
    )


def test_an_access_from_one_variable_into_the_next_is_found() -> None:
    declared = ".shared .align 16 .b8 buf[8];\n\t.shared .align 4 .b8 more[8];"
    body = "    st.shared.v4.u32 [buf], {%r0, %r0, %r0, %r0};"
    text = ptx("    mov.u32 %r0, 0;\n" + body, shared=8)
    text = text.replace(".shared .align 16 .b8 buf[8];", declared)
    (report,) = reports(text, block=1)
    assert report.kind == "bounds"
    assert report.message.endswith("bounds: shared address 0x0 (buf): begins in buf and ends in more")


# ---------------------------------------- volatile accesses

# A sum of 128 words in shared memory; each level adds the upper half to the lower one.
LEVEL = """
    setp.ge.u32 %p0, %r3, {half};
    @%p0 bra $skip{half};
    ld.volatile.shared.u32 %r6, [%r5];
    ld.volatile.shared.u32 %r7, [%r5+{bytes}];
    add.u32 %r6, %r6, %r7;
    st.volatile.shared.u32 [%r5], %r6;
$skip{half}:
    {sync}
"""
ROLLED = """
    mov.u32 %r8, 64;
$level:
    setp.ge.u32 %p0, %r3, %r8;
    @%p0 bra $skip;
    shl.b32 %r9, %r8, 2;
    add.u32 %r10, %r5, %r9;
    ld.volatile.shared.u32 %r6, [%r5];
    ld.volatile.shared.u32 %r7, [%r10];
    add.u32 %r6, %r6, %r7;
    st.volatile.shared.u32 [%r5], %r6;
$skip:
    {sync}
    shr.u32 %r8, %r8, 1;
    setp.ne.u32 %p1, %r8, 0;
    @%p1 bra $level;
"""
SUM = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r3, %tid.x;
    mov.u32 %r5, buf;
    mad.lo.u32 %r5, %r3, 4, %r5;
    st.volatile.shared.u32 [%r5], %r3;
    {first}
{levels}
    setp.eq.u32 %p2, %r3, 0;
    @%p2 st.global.u32 [%rd0], %r6;
"""
BARRIER, IN_WARP = "bar.sync 0;", "bar.warp.sync -1;"


def volatile_sum(*syncs: str, first: str = BARRIER) -> str:
    """The sum, unrolled, with so many syncs after its levels."""
    halves = [64 >> n for n in range(len(syncs))]
    levels = "".join(
        LEVEL.format(half=half, bytes=4 * half, sync=sync) for half, sync in zip(halves, syncs, strict=True)
    )
    return ptx(SUM.format(first=first, levels=levels), shared=512)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (volatile_sum(BARRIER, BARRIER, *[IN_WARP] * 5), []),
        (volatile_sum(*[""] * 7), ["race"]),
        (volatile_sum(*[""] * 7, first=""), ["race"]),
        (volatile_sum("", BARRIER, *[IN_WARP] * 5), ["race"]),
        (volatile_sum(BARRIER, "", *[IN_WARP] * 5), ["race"]),
        # The threads of a warp are not in step.
        (volatile_sum(BARRIER, BARRIER, *[""] * 5), ["race"]),
        (ptx(SUM.format(first=BARRIER, levels=ROLLED.format(sync=BARRIER)), shared=512), []),
        (ptx(SUM.format(first=BARRIER, levels=ROLLED.format(sync="")), shared=512), ["race"]),
        (
            volatile_sum(*[""] * 7)
            .replace(".shared.u32 [%r5", ".u32 [%rd5")
            .replace(".shared.u32 %r7, [%r5", ".u32 %r7, [%rd5")
            .replace(".shared.u32 %r6, [%r5", ".u32 %r6, [%rd5")
            .replace(
                "mad.lo.u32 %r5, %r3, 4, %r5;",
                "mad.lo.u32 %r5, %r3, 4, %r5; cvt.u64.u32 %rd5, %r5; cvta.shared.u64 %rd5, %rd5;",
            ),
            ["race"],
        ),
        # What was loaded last decides nothing, though its register did before.
        (
            volatile_sum(*[""] * 7).replace(
                "setp.ge.u32 %p0, %r3,", "mov.u32 %r6, %r3; setp.ge.u32 %p0, %r6,"
            ),
            ["race"],
        ),
    ],
    ids=[
        *("barriers", "none", "none at all", "not the first", "not the second", "not in the warp", "loop"),
        *("loop without", "generic", "reused register"),
    ],
)
def test_a_volatile_sum_needs_its_barriers(text: str, want: list[str]) -> None:
    assert kinds(text, [np.zeros(1, np.uint32)], block=128) == want


def test_a_volatile_sum_in_global_memory_needs_its_barriers_too() -> None:
    text = volatile_sum("", BARRIER, *[IN_WARP] * 5).replace(".volatile.shared", ".volatile.global")
    text = text.replace("[%r5", "[%rd5").replace(
        "mad.lo.u32 %r5, %r3, 4, %r5;",
        "mul.wide.u32 %rd5, %r3, 4; add.u64 %rd5, %rd5, %rd0; add.u64 %rd5, %rd5, 4;",
    )
    assert kinds(text, [np.zeros(129, np.uint32)], block=128) == ["race"]
    assert kinds(text.replace("bra $skip64", "bra $skip32", 1), [np.zeros(129, np.uint32)], block=32) == []


def test_a_report_of_volatile_accesses_names_the_two() -> None:
    text = volatile_sum("", BARRIER, *[IN_WARP] * 5)
    read, write = "ld.volatile.shared.u32 %r7, [%r5+128];", "st.volatile.shared.u32 [%r5], %r6;"
    result = reports(text, [np.zeros(1, np.uint32)], block=128, sanitize="race")
    assert result[0].message == (
        f"{at(text, read)}race: shared address 0x80 (buf) was written by thread (32, 0, 0) in "
        f"{located(text, write)}; no barrier orders the two"
    )


# The second warp waits for the first, which has written a word: through a flag in shared memory.
POLLED = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r3, %tid.x;
    setp.ne.u32 %p0, %r3, 0;
    @!%p0 st.volatile.shared.u32 [buf+4], 0;
    bar.sync 0;
    setp.ge.u32 %p1, %r3, 32;
    @%p1 bra $wait;
    @%p0 ret;
    st.{kind}.u32 [buf], 7;
    {release}
    st.volatile.shared.u32 [buf+4], 1;
    ret;
$wait:
    ld.volatile.shared.u32 %r4, [buf+4];
    setp.eq.u32 %p2, %r4, 0;
    @%p2 bra $wait;
    {acquire}
    ld.{kind}.u32 %r5, [buf];
    setp.eq.u32 %p3, %r3, 32;
    @%p3 st.global.u32 [%rd0], %r5;
"""


@pytest.mark.parametrize("kind", ["shared", "volatile.shared"])
@pytest.mark.parametrize(
    ("release", "acquire", "want"),
    [("membar.cta;", "membar.cta;", []), ("", "", ["race"]), ("membar.cta;", "", ["race"])],
)
def test_a_flag_that_is_polled_is_no_race_and_orders_with_fences(
    kind: str, release: str, acquire: str, want: list[str]
) -> None:
    text = ptx(POLLED.format(kind=kind, release=release, acquire=acquire), shared=8)
    x = np.zeros(1, np.uint32)
    assert kinds(text, [x], block=64) == want
    assert x[0] == 7


@pytest.mark.parametrize("space", ["shared", "global"])
def test_threads_may_mark_their_place_until_they_are_alone(space: str) -> None:
    """The histogram of CUDA's samples before there were atomics in shared memory: each thread tags
    what it stores, and tries again if another one's store was the last.
    """
    body = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r3, %tid.x;
    setp.eq.u32 %p0, %r3, 0;
    @%p0 st.{space}.u32 [{place}], 0;
    bar.sync 0;
    shl.b32 %r6, %r3, 24;
$again:
    ld.volatile.{space}.u32 %r4, [{place}];
    and.b32 %r4, %r4, 0xffffff;
    add.u32 %r4, %r4, 1;
    or.b32 %r4, %r4, %r6;
    st.volatile.{space}.u32 [{place}], %r4;
    ld.volatile.{space}.u32 %r5, [{place}];
    setp.ne.u32 %p1, %r5, %r4;
    @%p1 bra $again;
    """
    location = "buf" if space == "shared" else "%rd0"
    text = ptx(body.format(space=space, place=location), shared=4)
    assert kinds(text, [np.zeros(1, np.uint32)], block=32) == []


def test_what_an_atomic_operation_updates_may_be_looked_at() -> None:
    body = """
    mov.u32 %r3, %tid.x;
    setp.eq.u32 %p0, %r3, 0;
    @%p0 st.shared.u32 [buf], 0;
    bar.sync 0;
    ld.volatile.shared.u32 %r4, [buf];
    setp.lt.u32 %p1, %r4, %r3;
    @%p1 atom.shared.max.u32 %r5, [buf], %r3;
    """
    assert kinds(ptx(body, shared=4), block=64) == []
