"""Asynchronous operations of each kind: what they access is free after their own wait, and after no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from interpreter import reported
from interpreter import test_hopper_programs as hopper

from ptxgen.dsl import KernelBuilder
from ptxgen.interpreter import Report
from ptxgen.types import f16, f32, u32


class Kind(NamedTuple):
    """An asynchronous operation with `A` its source and `B` its destination in shared memory, `X` and `Y` in
    global memory, `BAR` its mbarrier; `$L` is a label. One thread executes `start` and `group`, all `wait`.
    """

    start: str
    wait: str = ""
    group: str = ""
    reads: str = ""  # where it reads
    writes: str = ""  # where it writes


WAIT = "$L: mbarrier.try_wait.parity.shared::cta.b64 %p2, [BAR], 0;\n    @!%p2 bra $L;"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [BAR], {};\n    "
BYTES = "mbarrier::complete_tx::bytes"
COMMIT = "\n    cp.async.bulk.commit_group;"
KINDS = {
    "load": Kind(
        EXPECT.format(64) + f"cp.async.bulk.shared::cluster.global.{BYTES} [B], [X], 64, [BAR];",
        wait=WAIT,
        reads="global X",
        writes="shared B",
    ),
    "store": Kind(
        "cp.async.bulk.global.shared::cta.bulk_group [Y], [A], 64;" + COMMIT,
        group="cp.async.bulk.wait_group 0;",
        reads="shared A",
        writes="global Y",
    ),
    "reduction": Kind(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [Y], [A], 64;" + COMMIT,
        group="cp.async.bulk.wait_group 0;",
        reads="shared A",
        writes="global Y",
    ),
    "copy in shared memory": Kind(
        EXPECT.format(64) + f"cp.async.bulk.shared::cluster.shared::cta.{BYTES} [B], [A], 64, [BAR];",
        wait=WAIT,
        reads="shared A",
        writes="shared B",
    ),
    "reduction in shared memory": Kind(
        EXPECT.format(64)
        + f"cp.reduce.async.bulk.shared::cluster.shared::cta.{BYTES}.add.u32 [B], [A], 64, [BAR];",
        wait=WAIT,
        reads="shared A",
        writes="shared B",
    ),
    "st.async": Kind(
        EXPECT.format(4) + f"st.async.weak.shared::cluster.{BYTES}.u32 [B], %r9, [BAR];",
        wait=WAIT,
        writes="shared B",
    ),
    "red.async": Kind(
        EXPECT.format(4) + f"red.async.relaxed.cluster.shared::cluster.{BYTES}.add.u32 [B], %r9, [BAR];",
        wait=WAIT,
        writes="shared B",
    ),
    "cp.async": Kind(
        "cp.async.cg.shared.global [B], [X], 16;\n    cp.async.commit_group;",
        group="cp.async.wait_group 0;",
        reads="global X",
        writes="shared B",
    ),
    "cp.async of an mbarrier": Kind(
        "cp.async.ca.shared.global [B], [X], 4;\n    cp.async.mbarrier.arrive.noinc.shared.b64 [BAR];",
        wait=WAIT,
        reads="global X",
        writes="shared B",
    ),
}
# The registers of the operation that is touched, and of another one.
PLACES = (
    {"A": "%r2", "B": "%r3", "X": "%rd0", "Y": "%rd1", "BAR": "%r1"},
    {"A": "%r2+128", "B": "%r3+128", "X": "%rd0+128", "Y": "%rd1+128", "BAR": "%r1+8"},
)
BODY = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
    add.u32 %r2, %r1, 1024;
    add.u32 %r3, %r1, 2048;
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    mov.u32 %r9, 3;
    setp.ne.u32 %p0, %r0, 0;
    setp.ne.u32 %p1, %r0, TOUCHES;
    shl.b32 %r4, %r0, 2;
    add.u32 %r5, %r4, %r2;
    add.u32 %r6, %r4, %r3;
    st.shared.u32 [%r5], %r0;
    st.shared.u32 [%r6], %r0;
    @%p0 bra $ready;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    mbarrier.init.shared::cta.b64 [%r1+8], 1;
$ready:
    fence.proxy.async;
    bar.sync 0;
    @%p0 bra $started;
    FIRST
    SECOND
    GROUPS
$started:
    bar.sync 0;
    WAITS
    @!%p1 TOUCH
    @!%p0 bra $last;
    bra $end;
$last:
    LAST
$end:
"""


def at_place(text: str, which: int, label: str) -> str:
    for name, register in PLACES[which].items():
        text = text.replace(f"[{name}]", f"[{register}]")
    return text.replace("$L", f"${label}")


def touch_of(place: str, *, write: bool) -> str:
    space, name = place.split()
    address = PLACES[0][name]
    return f"st.{space}.u32 [{address}], %r9;" if write else f"ld.{space}.u32 %r10, [{address}];"


def reports(
    kind: str, other: str, touch: str, *, waits: str, touches: int = 32, seed: int | None = None
) -> tuple[Report, ...]:
    """What is reported of a kernel that starts an operation of a kind, and then another one; it waits for
    both, for the `other` or for `none`, and then thread `touches` executes `touch`.
    """
    first, second = KINDS[kind], KINDS[other]
    own = waits == "both"
    # A wait for groups of a thread is for all of them: the other one is waited for before this one starts.
    group = {"both": first.group + second.group, "other": second.group, "none": ""}[waits]
    waited = at_place(first.wait, 0, "first") if own else ""
    waited += "\n    " + (at_place(second.wait, 1, "second") if waits != "none" else "")
    body = BODY.replace("FIRST", at_place(first.start, 0, "")).replace(
        "SECOND", at_place(second.start, 1, "")
    )
    body = body.replace("GROUPS", group).replace("WAITS", waited).replace("TOUCHES", str(touches))
    last = [first.group, second.group, at_place(first.wait, 0, "l0"), at_place(second.wait, 1, "l1")]
    body = body.replace("TOUCH", touch).replace("LAST", "\n    ".join(x for x in last if x))
    text = hopper.kernel("u64 x, u64 y", body).replace(".version 8.3", ".version 8.6")
    args = [np.zeros(64, np.uint32), np.zeros(64, np.uint32)]
    return reported.reports(text, args, seed=seed, block=64, dynamic_smem=4096, sanitize="race,sync")


def cases() -> Iterator[tuple[str, str, str]]:
    """Each kind of operation, each access that has to come after its wait, and another operation whose wait
    is no wait for the first.
    """
    for kind, of in KINDS.items():
        groups = [kind.startswith("cp.async") and o.startswith("cp.async") for o in KINDS]
        others = [o for o, one in zip(KINDS, groups, strict=True) if not one]
        others = [o for o in others if not of.group or KINDS[o].group != of.group]
        touches = [touch_of(of.reads, write=True)] if of.reads else []
        touches += [touch_of(of.writes, write=False), touch_of(of.writes, write=True)]
        for n, touch in enumerate(touches):
            yield kind, others[(len(kind) + 3 * n) % len(others)], touch


@pytest.mark.parametrize(("kind", "other", "touch"), list(cases()))
def test_what_an_operation_accesses_is_free_after_its_wait_only(kind: str, other: str, touch: str) -> None:
    assert reports(kind, other, touch, waits="both") == ()
    for waits in ("other", "none"):
        result = reports(kind, other, touch, waits=waits)
        assert any(touch in r.message for r in result), (waits, result)


@pytest.mark.parametrize("kind", KINDS)
def test_the_thread_that_starts_an_operation_has_to_wait_for_it_too(kind: str) -> None:
    of, other = KINDS[kind], "store" if kind == "load" else "load"
    for location, write in [(of.reads, True), (of.writes, False), (of.writes, True)]:
        if location:
            touch = touch_of(location, write=write)
            assert reports(kind, other, touch, waits="both", touches=0) == ()
            result = reports(kind, other, touch, waits="other", touches=0)
            assert any(touch in r.message for r in result), result


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_wait_is_reported_in_any_order_of_warps(kind: str) -> None:
    of, other = KINDS[kind], "store" if kind == "load" else "load"
    touch = touch_of(of.reads, write=True) if of.reads else touch_of(of.writes, write=False)
    for seed in range(2):
        assert reports(kind, other, touch, waits="both", seed=seed) == ()
        assert any(touch in r.message for r in reports(kind, other, touch, waits="other", seed=seed))


SENT = ("bulk store", "bulk reduction", "tensor store", "tensor reduction")  # from shared to global memory


def multiplied_and_sent(form: str, *, wait: str = "sender") -> KernelBuilder:
    """In each round a warpgroup multiplies and waits for the product, writes a tile anew, and one thread
    starts to send it to other rows. The thread that waits until the tile has been read is the `sender`, its
    `neighbour` or `nobody`.
    """
    k = KernelBuilder("k", target="sm_90a", threads=128)
    out, rounds = k.pointer("out", f32), k.param("rounds", u32)
    to = k.tma.tensor_map("to", f32) if form.startswith("tensor") else None
    a, b = k.tma.tile("a", (64, 64), f16), k.tma.tile("b", (64, 64), f16)
    tile = k.tma.tile("tile", (16, 32), f32, swizzle="none")
    sums, zeros = k.wgmma.accumulator(64, 64), k.wgmma.accumulator(64, 64)
    zeros.write(a)
    zeros.write(b)
    thread = k.thread_id()
    k.fence_proxy_async(space="shared::cta")
    with k.loop(0, rounds) as round:
        k.barrier()
        sums += a @ b.T
        k.wgmma.wait()
        k.store(tile.pointer(thread >> 3, (thread & 7) << 2), [1.0] * 4)
        k.fence_proxy_async(space="shared::cta")
        k.barrier()
        with k.when(thread == 0):
            at = to[round << 4, 0].pointer(0) if to else out.element(round << 9)
            if form == "bulk store":
                k.cp_async_bulk_store(at, tile.at(0), 2048)
            elif form == "bulk reduction":
                k.cp_reduce_async_bulk_add(at, tile.at(0), 2048, type=f32)
            elif form == "tensor store":
                k.cp_async_bulk_tensor_store(at, tile.at(0), dim="2d")
            else:
                k.cp_reduce_async_bulk_tensor(at, tile.at(0), dim="2d", op="add")
            k.cp_async_bulk_commit_group()
        if wait != "nobody":
            with k.when(thread == int(wait == "neighbour")):
                k.cp_async_bulk_wait_group(0, read=True)
    with k.when(thread == 0):
        k.cp_async_bulk_wait_group(0)
    with k.when(sums[0, 0] < -1e30):
        k.store(out, sums[0, 0])
    if to:
        to.fix(replace(tile.layout.boxes(2), stores=True))
    return k


@pytest.mark.parametrize("form", SENT)
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_the_wait_for_a_read_of_shared_memory_is_that_of_the_thread_that_sends_it(
    form: str, seed: int | None
) -> None:
    for wait in ("sender", "neighbour", "nobody"):
        k = multiplied_and_sent(form, wait=wait)
        module, out = k.build(), np.zeros((32, 32), np.float32)
        maps = [boxes.of(out) for boxes in k.tma.boxes().values()]
        how = {"block": 128, "dynamic_smem": module.kernels[0].dynamic_shared_bytes}
        result = reported.reports(module, [out, 2, *maps], seed=seed, **how)
        assert [r.kind for r in result] == ([] if wait == "sender" else ["race"]), wait
        assert all(
            "its thread has not waited for it with cp.async.bulk.wait_group.read" in r.message for r in result
        )


# What orders thread 5, or 40 of the next warp, after the wait of thread 0 for a bulk group.
BETWEEN = {
    "nothing": "",
    "the warp meets": "bar.warp.sync 0xffffffff;",
    "both threads meet": "@%p3 bar.warp.sync 0x21;",
    "other threads meet": "@%p4 bar.warp.sync 0x22;",
    "a barrier": "bar.sync 0;",
    "an arrival of the thread": "@%p0 mbarrier.arrive.shared::cta.b64 _, [BAR];\n    WAIT",
    "an arrival of another thread": "@%p5 mbarrier.arrive.shared::cta.b64 _, [BAR];\n    WAIT",
    "an arrival after the warp meets": (
        "bar.warp.sync 0xffffffff;\n    @%p5 mbarrier.arrive.shared::cta.b64 _, [BAR];\n    WAIT"
    ),
}


@pytest.mark.parametrize(
    ("between", "touches", "is_right"),
    [
        *(("nothing", 0, True), ("nothing", 5, False), ("the warp meets", 5, True)),
        *(("the warp meets", 40, False), ("both threads meet", 5, True), ("other threads meet", 5, False)),
        *(("a barrier", 5, True), ("a barrier", 40, True), ("an arrival of the thread", 5, True)),
        *(("an arrival of the thread", 40, True), ("an arrival of another thread", 5, False)),
        *(("an arrival of another thread", 40, False), ("an arrival after the warp meets", 40, True)),
    ],
)
@pytest.mark.parametrize("kind", ["store", "reduction"])
def test_other_threads_come_after_the_one_that_waits_for_a_bulk_group(
    kind: str, between: str, touches: int, is_right: bool
) -> None:
    of = KINDS[kind]
    for touch, group in (
        (touch_of(of.reads, write=True), "cp.async.bulk.wait_group.read 0;"),
        (touch_of(of.writes, write=False), "cp.async.bulk.wait_group 0;"),
    ):
        ordering = BETWEEN[between].replace("WAIT", WAIT)
        waits = f"""
    setp.eq.u32 %p0, %r0, 0;
    setp.eq.u32 %p5, %r0, 1;
    setp.eq.u32 %p4, %r0, 5;
    or.pred %p3, %p0, %p4;
    or.pred %p4, %p4, %p5;
    @%p0 {group}
    {at_place(ordering, 0, "ordered")}
    """
        body = BODY.replace("FIRST", at_place(of.start, 0, "")).replace("SECOND", "").replace("GROUPS", "")
        body = body.replace("WAITS", waits).replace("TOUCHES", str(touches)).replace("TOUCH", touch)
        body = body.replace("@!%p0 bra $last", "@%p0 bra $last").replace(
            "LAST", "cp.async.bulk.wait_group 0;"
        )
        text = hopper.kernel("u64 x, u64 y", body).replace(".version 8.3", ".version 8.6")
        args = [np.zeros(64, np.uint32), np.zeros(64, np.uint32)]
        for seed in (None, 0):
            reports = reported.reports(
                text, args, seed=seed, block=64, dynamic_smem=4096, sanitize="race,sync"
            )
            assert [touch in r.message for r in reports] == ([] if is_right else [True]), (touch, reports)


def test_parts_of_a_warp_may_wait_for_a_cp_async_that_reads_for_some_lanes_only() -> None:
    body = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, 16;
    selp.u32 %r1, 16, 0, %p0;
    mul.wide.u32 %rd1, %r0, 16;
    add.u64 %rd1, %rd0, %rd1;
    mov.u32 %r2, smem;
    mad.lo.u32 %r2, %r0, 16, %r2;
    cp.async.cg.shared.global [%r2], [%rd1], 16, %r1;
    cp.async.commit_group;
    @%p0 cp.async.wait_group 0;
    @%p0 st.global.u32 [%rd1], 7;
    @!%p0 st.global.u32 [%rd1], 7;
    @!%p0 cp.async.wait_group 0;
    """

    def messages(body: str) -> list[str]:
        text, x = hopper.kernel("u64 x", body), np.zeros(128, np.uint32)
        return [r.message for r in reported.reports(text, [x], dynamic_smem=512, sanitize="race")]

    assert messages(body) == []
    (result,) = messages(body.replace("    @%p0 cp.async.wait_group 0;", ""))
    assert result == (
        "kernel k: @%p0 st.global.u32 [%rd1], 7; (line 21): thread (0, 0, 0) of CTA (0, 0, 0): race: global "
        "address 0x200000000 (x) may still be read by thread (0, 0, 0) in cp.async.cg.shared.global [%r2], "
        "[%rd1], 16, %r1; (line 18); its thread has not waited for its group"
    )
