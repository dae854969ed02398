from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from interpreter.programs import at, located, on_elements, ptx, refused
from interpreter.reported import messages, reports, trap

from ptxgen.interpreter import Report, launch, run
from ptxgen.interpreter.machine.memory import POISON
from ptxgen.interpreter.reports import where_from
from ptxgen.interpreter.sanitizers.clocks import Clocks
from ptxgen.interpreter.sanitizers.conflicts import Access
from ptxgen.interpreter.sanitizers.operations import Operations
from ptxgen.interpreter.sanitizers.shared_race import RaceDetector
from ptxgen.ir import Instr, Origin

# Each thread writes its word of `buf`, then reads its neighbour's.
NEIGHBOUR = """
    mov.u32 %r5, buf;
    shl.b32 %r6, %r3, 2;
    add.u32 %r6, %r6, %r5;
    st.shared.u32 [%r6], %r0;
    {sync}
    xor.b32 %r7, %r3, {distance};
    shl.b32 %r7, %r7, 2;
    add.u32 %r7, %r7, %r5;
    ld.shared.u32 %r4, [%r7];
    st.global.u32 [%rd0], %r4;
"""

# A tile of each block's 64 words goes through two buffers of shared memory.
PIPELINE = """
    mov.u32 %r5, buf;
    shl.b32 %r6, %r3, 2;
    add.u32 %r6, %r6, %r5;
    xor.b32 %r7, %r3, 63;
    shl.b32 %r7, %r7, 2;
    add.u32 %r7, %r7, %r5;
    mov.u32 %r8, 0;
    mov.u32 %r4, 0;
    cp.async.ca.shared.global [%r6], [%rd0], 4;
    cp.async.commit_group;
$tile:
    add.u64 %rd0, %rd0, 256;
    xor.b32 %r6, %r6, 256;
    cp.async.ca.shared.global [%r6], [%rd0], 4;
    cp.async.commit_group;
    cp.async.wait_group 1;
    bar.sync 0; // arrived
    ld.shared.u32 %r9, [%r7];
    add.u32 %r4, %r4, %r9;
    xor.b32 %r7, %r7, 256;
    bar.sync 0; // read
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p0, %r8, 4;
    @%p0 bra $tile;
    ld.param.u64 %rd3, [y];
    mul.wide.u32 %rd4, %r3, 4;
    add.u64 %rd3, %rd3, %rd4;
    st.global.u32 [%rd3], %r4;
"""


two_ctas = functools.partial(reports, grid=2, block=64)


def neighbour(sync: str, distance: int) -> tuple[Report, ...]:
    text = on_elements(NEIGHBOUR.format(sync=sync, distance=distance), shared=256)
    x = np.zeros(128, np.uint32)
    result = two_ctas(text, [x])
    assert (x == np.arange(128) ^ distance).all()  # lockstep hides the race
    return result


def test_a_barrier_orders_all_threads_and_a_warp_sync_its_warp() -> None:
    assert neighbour("bar.sync 0;", 1) == ()
    assert neighbour("bar.sync 0;", 33) == ()
    assert neighbour("bar.sync 3, 64;", 33) == ()
    assert neighbour("bar.warp.sync -1;", 1) == ()


@pytest.mark.parametrize(
    ("sync", "distance"),
    [
        ("", 1),
        ("", 33),
        ("bar.warp.sync -1;", 33),
        ("membar.cta;", 1),
        ("shfl.sync.idx.b32 %r30, %r3, 0, 31, -1;", 1),  # exchanges registers only
    ],
)
def test_reading_what_another_thread_wrote_without_a_barrier_is_a_race(sync: str, distance: int) -> None:
    (report,) = neighbour(sync, distance)
    text = on_elements(NEIGHBOUR.format(sync=sync, distance=distance), shared=256)
    load, store = located(text, "ld.shared"), located(text, "st.shared")
    message = (
        f"{at(text, 'ld.shared')}race: shared address {4 * distance:#x} (buf) was written by thread "
        f"({distance}, 0, 0) in {store}; no barrier orders the two"
    )
    threads = (0, distance)
    assert report == Report("race", "shared", 4 * distance, "buf", (0, 0, 0), threads, load, store, message)


HALVES = "setp.lt.u32 %p0, %r30, 16;\nselp.b32 %r31, 0xffff, 0xffff0000, %p0;"


@pytest.mark.parametrize(
    ("mask", "distance", "clean"),
    [
        ("%r31", 1, True),  # each half of a warp by itself
        ("%r31", 15, True),
        ("%r31", 16, False),
        ("%r31", 33, False),
        ("-1", 16, True),
    ],
)
def test_lanes_that_meet_order_what_they_do_and_no_others(mask: str, distance: int, clean: bool) -> None:
    sync = f"mov.u32 %r30, %laneid;\n{HALVES}\nbar.warp.sync {mask};"
    assert [r.kind for r in neighbour(sync, distance)] == ["race"] * (not clean)


def test_lanes_that_meet_in_turns_know_of_each_other() -> None:
    """Lanes 0 and 1 meet, then 1 and 2: so lane 2 comes after what lane 0 did, but not the other
    way round.
    """
    body = """
    mov.u32 %r3, %tid.x;
    setp.eq.u32 %p0, %r3, {writer};
    @%p0 st.shared.u32 [buf], %r3;
    setp.lt.u32 %p1, %r3, 2;
    @%p1 bar.warp.sync 3;
    setp.ne.u32 %p2, %r3, 0;
    setp.lt.and.u32 %p2, %r3, 3, %p2;
    @%p2 bar.warp.sync 6;
    setp.eq.u32 %p3, %r3, {reader};
    @%p3 ld.shared.u32 %r4, [buf];
    """
    for writer, reader, want in ((0, 1, []), (0, 2, []), (1, 2, []), (2, 0, ["race"])):
        text = ptx(body.format(writer=writer, reader=reader), shared=4)
        assert [r.kind for r in reports(text)] == want


@pytest.mark.parametrize(("reader", "clean"), [(3, True), (20, False)])
@pytest.mark.parametrize("space", ["shared", "global"])
def test_lanes_that_meet_may_write_what_those_have_read(space: str, reader: int, clean: bool) -> None:
    body = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r3, %tid.x;
    setp.eq.u32 %p0, %r3, 0;
    @%p0 st.{space}.u32 [{place}], 1;
    bar.warp.sync -1;
    setp.eq.u32 %p1, %r3, {reader};
    @%p1 ld.{space}.u32 %r4, [{place}];
    setp.lt.u32 %p2, %r3, 16;
    @%p2 bar.warp.sync 0xffff;
    @%p0 st.{space}.u32 [{place}], 2;
    """
    location = "buf" if space == "shared" else "%rd0"
    text = ptx(body.format(space=space, place=location, reader=reader), shared=4)
    assert [r.kind for r in reports(text, [np.zeros(1, np.uint32)])] == ["race"] * (not clean)


def test_reports_become_one_error() -> None:
    text = on_elements(NEIGHBOUR.format(sync="", distance=1), shared=256)
    (report,) = neighbour("", 1)
    message = refused(text, [np.zeros(64, np.uint32)], block=64, sanitize=True)
    assert message == f"kernel k: the sanitizer reports 1 problem:\n  {report.message}"


def test_writing_what_others_may_still_read_is_a_race() -> None:
    body = """
    mov.u32 %r5, buf;
    shl.b32 %r6, %r0, 2;
    add.u32 %r6, %r6, %r5;
    st.shared.u32 [%r6], %r0;
    bar.sync 0;
    ld.shared.u32 %r7, [buf+{read}];
    {sync}
    st.shared.u32 [%r6], %r7;
    """

    for sync, read, races in (
        ("bar.sync 0;", 0, []),
        ("", 0, [("race", (0,))]),  # several threads have read it
        ("bar.warp.sync -1;", 0, [("race", (0,))]),
        ("", 252, [("race", (63,))]),
    ):
        text = ptx("    mov.u32 %r0, %tid.x;" + body.format(sync=sync, read=read), shared=256)
        assert [(r.kind, r.threads) for r in two_ctas(text)] == races


def test_two_threads_that_write_one_word_race_even_in_one_instruction() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, {shift};
    shl.b32 %r1, %r1, 2;
    mov.u32 %r5, buf;
    add.u32 %r1, %r1, %r5;
    st.shared.u32 [%r1], %r0;
    """
    assert two_ctas(ptx(body.format(shift=0), shared=256)) == ()
    (report,) = two_ctas(ptx(body.format(shift=1), shared=256))
    assert (report.kind, report.threads, report.address) == ("race", (0, 1), 0)


def test_atomics_do_not_race_with_each_other_but_with_plain_accesses() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 st.shared.u32 [buf], 0;
    bar.sync 0;
    atom.shared.add.u32 %r1, [buf], 1;
    atom.shared.max.u32 %r1, [buf], %r0;
    {sync}
    ld.shared.u32 %r2, [buf];
    """
    assert two_ctas(ptx(body.format(sync="bar.sync 0;"), shared=16)) == ()
    (report,) = two_ctas(ptx(body.format(sync=""), shared=16))
    assert (report.kind, report.other.split()[0]) == ("race", "atom.shared.max.u32")


def test_a_write_races_with_a_read_that_another_lane_made_before_its_own() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 0;
    setp.eq.u32 %p1, %r0, 1;
    @%p0 st.shared.u32 [buf], 0;
    bar.sync 0;
    {first} ld.shared.u32 %r1, [buf];
    @%p1 ld.shared.u32 %r2, [buf];
    @%p1 st.shared.u32 [buf], 2;
    """
    assert two_ctas(ptx(body.format(first="@%p1"), shared=16)) == ()
    assert [r.kind for r in two_ctas(ptx(body.format(first="@%p0"), shared=16))] == ["race"]


def test_an_older_read_that_is_looked_at_later_hides_no_newer_one() -> None:
    clocks = Clocks(2, 2, 2, twins=False)
    race = RaceDetector(clocks, Operations(clocks), ctas=1, units=128)
    first, second = np.arange(32), np.arange(32, 64)
    one = np.full(32, 1)

    def access(ids: np.ndarray[Any, Any], unit: int, width: int = 1) -> Access:
        return Access(ids, np.full(len(ids), unit), width, unit, unit + width)

    race.write(access(first[:1], 0, 128), at=0)
    clocks.join(np.arange(64), np.zeros(64, np.int64))
    race.read(access(first[:1], 0, 64), at=1)
    clocks.release(first, one)
    race.read(access(first[:1], 0, 128), at=2)
    clocks.join(second, one)  # it knows of the first read, not of the second
    # This looks at the second read only, the next one at both.
    assert [c.other for c in race.write(access(second[:1], 100), at=3)] == [2]
    assert [c.other for c in race.write(access(second[:1], 40), at=4)] == [2]


def test_halves_of_one_word_may_be_written_by_two_threads() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 1;
    mov.u32 %r5, buf;
    add.u32 %r1, %r1, %r5;
    cvt.u16.u32 %rs0, %r0;
    st.shared.u16 [%r1], %rs0;
    bar.sync 0;
    and.b32 %r1, %r1, -4;
    ld.shared.u32 %r2, [%r1];
    """
    assert two_ctas(ptx(body, shared=128)) == ()


def test_named_barriers_order_only_those_that_come() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r5, buf;
    add.u32 %r1, %r1, %r5;
    st.shared.u32 [%r1], %r0;
    setp.ge.u32 %p0, %r0, 64;
    @%p0 bra $end;
    bar.sync 1, 64;
    ld.shared.u32 %r2, [buf+{word}];
$end:
    """
    assert two_ctas(ptx(body.format(word=63 * 4), shared=384), block=96) == ()
    (report,) = two_ctas(ptx(body.format(word=64 * 4), shared=384), block=96)
    assert (report.kind, report.threads) == ("race", (0, 64))


def test_shared_memory_out_of_bounds_names_the_range_and_the_size() -> None:
    text = ptx("    ld.shared.v2.u32 {%r0, %r1}, [buf+56];", shared=60)
    why = " wants to read 8 bytes of shared memory at 0x38 (buf), outside its 60 bytes"
    assert refused(text) == at(text, "ld.shared")[:-2] + why


# ------------------------------------------------------------------------------ asynchronous copies


def pipeline(text: str) -> tuple[tuple[Report, ...], list[int], list[int]]:
    x = np.arange(64 * 6, dtype=np.uint32)
    y = np.zeros(64, np.uint32)
    result = two_ctas(on_elements(text, shared=512), [x, y], grid=1)
    want = x[:256].reshape(4, 64)[:, ::-1].sum(axis=0, dtype=np.uint32)
    return result, y.tolist(), want.tolist()


def test_a_double_buffered_pipeline_is_clean_and_right() -> None:
    result, got, want = pipeline(PIPELINE)
    assert result == ()
    assert got == want


@pytest.mark.parametrize(
    ("line", "instead", "kind"),
    [
        ("cp.async.wait_group 1;", "", "pending"),
        ("cp.async.wait_group 1;", "cp.async.wait_group 2;", "pending"),
        ("bar.sync 0; // arrived", "", "race"),
        ("bar.sync 0; // read", "", "race"),
    ],
)
def test_every_missing_wait_or_barrier_of_a_pipeline_is_found(line: str, instead: str, kind: str) -> None:
    result, got, want = pipeline(PIPELINE.replace(line, instead, 1))
    assert {r.kind for r in result} == {kind}
    assert (got == want) == (kind == "race")


def test_wait_all_includes_copies_in_no_group_and_groups_belong_to_threads() -> None:
    body = """
    mov.u32 %r5, buf;
    shl.b32 %r6, %r3, 2;
    add.u32 %r6, %r6, %r5;
    cp.async.ca.shared.global [%r6], [%rd0], 4;
    setp.lt.u32 %p0, %r3, 7;
    @%p0 cp.async.commit_group;
    @%p0 cp.async.wait_group 0;
    @!%p0 cp.async.wait_group 0;
    ld.shared.u32 %r4, [%r6];
    cp.async.wait_all;
    ld.shared.u32 %r7, [%r6];
    sub.u32 %r4, %r4, %r7;
    st.global.u32 [%rd0], %r4;
    """
    text = on_elements(body, shared=128)
    x = np.zeros(32, np.uint32)
    run(text, grid=1, block=32, args=[x])
    assert x.tolist() == [0] * 7 + [POISON] * 25


@pytest.mark.parametrize("size", [0, 1, 4, 7, 12, 16])
def test_a_short_copy_fills_up_with_zeros_and_reads_no_further(size: int) -> None:
    body = """
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    ld.param.u32 %r0, [size];
    cp.async.cg.shared.global [buf], [%rd0], 16, %r0;
    cp.async.wait_all;
    ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [buf];
    st.global.v4.u32 [%rd1], {%r1, %r2, %r3, %r4};
    """
    text = ptx(body, shared=16)
    x, y = np.arange(1, size + 1, dtype=np.uint8), np.zeros(16, np.uint8)
    run(text, grid=1, block=1, args=[x, y, size], sanitize=True)
    assert y.tolist() == [*range(1, size + 1), *[0] * (16 - size)]


def test_each_thread_may_copy_another_number_of_bytes() -> None:
    body = """
    ld.global.u32 %r4, [%rd0];
    shl.b32 %r6, %r3, 4;
    mov.u32 %r5, buf;
    add.u32 %r6, %r6, %r5;
    ld.param.u64 %rd3, [y];
    mul.wide.u32 %rd4, %r3, 16;
    add.u64 %rd3, %rd3, %rd4;
    cp.async.cg.shared.global [%r6], [%rd3], 16, %r4;
    cp.async.wait_all;
    ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r6];
    st.global.v4.u32 [%rd3], {%r10, %r11, %r12, %r13};
    """
    text = on_elements(body, shared=64 * 16)
    sizes = np.resize(np.array([16, 0, 4, 12, 8], np.uint32), 64)
    y = np.arange(1, 64 * 4 + 1, dtype=np.uint32).reshape(64, 4)
    want = np.where(np.arange(4) * 4 < sizes[:, None], y, 0)
    run(text, grid=1, block=64, args=[sizes, y], sanitize=True)
    assert (y == want).all()


def test_a_batch_is_as_large_as_its_shadow_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    # 64 bytes are 16 words; each has a stamp of a write and of the reads of two warps.
    monkeypatch.setattr(launch, "_MAX_SHADOW_BYTES", 3 * (16 * 3 * 8 + 1))
    done: list[tuple[int, int]] = []
    text = ptx("    ret;", shared=64)
    run(text, grid=7, block=64, args=[], sanitize=True, progress=lambda *now: done.append(now))
    assert done == [(3, 7), (6, 7), (7, 7)]


def test_a_copy_from_outside_every_buffer_is_refused() -> None:
    body = """
    ld.param.u64 %rd0, [x];
    cp.async.cg.shared.global [buf], [%rd0], 16;
    """
    text = ptx(body, shared=16)
    assert refused(text, [np.zeros(3, np.float32)], block=1) == at(text, "cp.async")[:-2] + (
        " wants to read 16 bytes of global memory at 0x200000000, at byte 0 of x (0x200000000, 12 bytes)"
    )


def test_an_instruction_built_in_python_is_named_by_its_file_and_line() -> None:
    code = (lambda: None).__code__
    assert where_from(Instr("ret", origin=Origin(code, 12))) == "ret; (test_watch.py:12)"
    assert where_from(Instr("ret", origin=Origin(None, 3))) == "ret; (line 3)"
    assert where_from(Instr("ret")) == "ret;"


def test_an_error_shows_ten_reports_and_counts_the_rest() -> None:
    used = "ld.shared.u32 %r1, [buf+{0}];\nsetp.eq.u32 %p0, %r1, 0;\n@%p0 bra $next{1};\n$next{1}:\n"
    text = ptx("".join(used.format(4 * n, n) for n in range(13)) + "ret;", shared=64)
    message = trap(text, sanitize="init")
    assert message.startswith("kernel k: the sanitizer reports 13 problems:\n  kernel k: @%p0 bra $next0;")
    assert message.endswith("\n  and 3 more")
    assert message.count("\n") == 11


def test_a_copy_must_not_read_more_than_it_writes() -> None:
    body = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, 12;
    cp.async.ca.shared.global [buf], [%rd0], 8, %r0;
    cp.async.wait_all;
    """
    text = ptx(body, shared=16)
    assert trap(text, [np.zeros(4, np.uint32)], block=1).endswith("copies 12 bytes into 8")


def test_one_lane_whose_copy_is_under_way_is_found_among_those_that_have_none() -> None:
    body = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, buf;
    mad.lo.u32 %r1, %r0, 4, %r1;
    st.shared.u32 [%r1], %r0;
    setp.eq.u32 %p0, %r0, 3;
    @%p0 cp.async.ca.shared.global [%r1], [%rd0], 4;
    ld.shared.u32 %r2, [%r1];
    """
    text = ptx(body, shared=128)
    (result,) = messages(text, [np.zeros(4, np.uint32)])
    assert result.startswith(at(text, "ld.shared", 3) + "pending: shared address 0xc (buf)")


def test_shared_memory_that_the_system_reserves_holds_something() -> None:
    body = "mov.u32 %r1, %reserved_smem_offset_begin;\nld.shared.u32 %r2, [%r1];"
    text = ptx(body, shared=16)
    text = text.replace("ret;", "setp.eq.u32 %p0, %r2, 0;\n@%p0 bra $end;\n$end:")
    assert messages(text) == []
    assert len(messages(text.replace("[%r1]", "[buf]"), [])) == 1
