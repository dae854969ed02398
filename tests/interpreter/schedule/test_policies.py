"""Schedules drawn from seeds: correct kernels give the same bits, broken ones show it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreter.programs import ELEMENT, ptx
from interpreter.schedule.cases import Case, all_cases, run_under_seeds
from interpreter.test_hopper_programs import PIPELINE, kernel
from kernel_runs import Problem, run_forward

from flash.contract.catalogue import emit
from flash.problem.config import AttentionConfig
from ptxgen.commands import run as tool
from ptxgen.errors import LaunchError, TrapError
from ptxgen.interpreter import PCT, Result, run
from ptxgen.interpreter.schedule import policies
from ptxgen.ir import Instr, Module
from tools.campaign.kernels import subjects

SEEDS = range(5)
MORE_SEEDS = range(8)
MANY_SEEDS = range(20)

# Kernels whose results depend on who comes first, as their sources say; the tests hold for any
# order.
BY_ORDER = {
    "test_atomics_of_every_kind",  # the last atomicExch stays
    "test_the_lanes_that_come_together_take_one_atomic",  # places by tickets
    "test_atomic_sums_of_small_floats",
}
# Kernels that are wrong, some of them by intention.
WRONG = {
    "test_a_store_that_nobody_waits_for_reads_shared_memory_late",
    "test_what_is_read_before_the_wait_is_not_there_yet",
    # mbarrier_rounds invalidates its mbarrier while other warps may still ask it.
    "test_mbarriers_and_asynchronous_copies",
}
# They read all of shared memory, also what no box has reached.
READ_EVERYTHING = {"test_a_box_lies_in_shared_memory_as_the_swizzle_says"}
# What runs every time, on one target each: barriers, shuffles, copies of each kind, clusters,
# calls, spinning.
ALWAYS = {
    "test_a_tree_in_shared_memory_sums_each_block",
    "test_the_last_block_adds_up_what_the_others_left_and_resets_the_ticket",
    "test_a_scan_of_64_bit_values_by_warps",
    "test_transposes_of_ragged_matrices",
    "test_sorting_networks",
    "test_mma_with_ldmatrix_and_a_double_buffer_of_cp_async",
    "test_a_warp_feeds_wgmma_by_tma_in_two_stages",
    "test_bulk_copies_and_transaction_counts",
    "test_loops_of_different_length",
    "test_recursion_of_different_depth_in_each_lane",
    "test_ctas_of_a_cluster_write_into_each_others_memory",
    "test_a_multicast_reaches_the_ctas_of_its_mask",
    "test_an_mbarrier_waits_for_copies_of_single_threads",
    "test_a_running_sum",
    "test_flash_attention_with_ragged_ends",
}
CASES = [case for case in all_cases() if case.name not in WRONG]
FEW = list({c.name: c for c in CASES if c.name in ALWAYS | BY_ORDER}.values())


def named(case: Case) -> str:
    return case.id


def hold_under_seeds(case: Case, patch: pytest.MonkeyPatch, seeds: range = SEEDS) -> None:
    if case.name not in BY_ORDER:
        case(patch, functools.partial(run_under_seeds, seeds))
        return
    for seed in seeds:
        case(patch, functools.partial(run, schedule=PCT(seed)))


@pytest.mark.sample(6)
@pytest.mark.parametrize("case", FEW, ids=named)
def test_programs_give_the_same_bits_by_any_seed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_under_seeds(case, monkeypatch, range(2))


def test_the_programs_that_are_named_are_there() -> None:
    assert {case.name for case in all_cases()} >= ALWAYS | BY_ORDER | WRONG | READ_EVERYTHING


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES, ids=named)
def test_all_programs_give_the_same_bits_by_any_seed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_under_seeds(case, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [c for c in CASES if c.name not in READ_EVERYTHING], ids=named)
def test_no_program_has_a_report_by_any_of_20_seeds(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in MANY_SEEDS:
        case(monkeypatch, functools.partial(run, schedule=PCT(seed), sanitize="all"))


# ---------------------------------------- our own kernels

ATTENTION = AttentionConfig(64, tile=32, block_q=64, return_lse=True)  # two warps
PROBLEM = Problem(70, 70, 64, 64)


@functools.cache
def forward_without(drop: int | None) -> Module:
    """The kernel without its bar.sync of this number."""
    module = emit(ATTENTION.kernel())
    (entry,) = module.kernels
    barriers = [n for n, s in enumerate(entry.body) if isinstance(s, Instr) and s.opcode == "bar.sync"]
    if drop is None:
        return module
    at = barriers[drop]
    body = entry.body[:at] + entry.body[at + 1 :]
    return dataclasses.replace(module, kernels=(dataclasses.replace(entry, body=body),))


def forward(drop: int | None = None, **how: Any) -> np.ndarray[Any, Any]:
    """The results of the kernel, without its bar.sync of this number."""
    out, lse, _ = run_forward(ATTENTION, PROBLEM.arrays(), forward_without(drop), **how)
    return np.concatenate([out.ravel(), lse.ravel()])


@functools.cache
def right() -> np.ndarray[Any, Any]:
    return forward()


@pytest.mark.nightly
@pytest.mark.parametrize("name", subjects())
def test_no_shipped_kernel_has_a_report_by_any_of_20_seeds(name: str) -> None:
    subject = subjects()[name]
    for seed in MANY_SEEDS:
        for problem in subject.problems[:6]:
            ran = subject.run(subject.module, problem, schedule=PCT(seed), sanitize="all")
            assert not ran.reports
            assert not ran.wrong


@pytest.mark.slow
def test_the_forward_kernel_gives_the_same_bits_by_any_seed() -> None:
    for schedule in (*map(PCT, SEEDS), PCT(1, depth=9), PCT(1, depth=1, apart=True)):
        assert np.array_equal(forward(schedule=schedule), right()), schedule


@pytest.mark.sample(0, gate=1)
@pytest.mark.parametrize("drop", [0, 1])
def test_the_forward_kernel_without_a_barrier_is_wrong_by_any_seed(drop: int) -> None:
    assert np.array_equal(forward(drop), right()), "lockstep hides it"
    assert not any(np.array_equal(forward(drop, schedule=PCT(s)), right()) for s in range(3))


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_all_forward_kernels_give_the_same_bits(target: str, head_dim: int) -> None:
    config = AttentionConfig(head_dim, causal=True, target=target)
    problem = Problem(70, 150, head_dim, head_dim)
    want, _, _ = run_forward(config, problem.arrays())
    for seed in SEEDS:
        got, _, _ = run_forward(config, problem.arrays(), schedule=PCT(seed))
        assert np.array_equal(got, want), seed


# ---------------------------------------- broken by order

TRANSPOSE = (
    ELEMENT
    + """
    ld.param.u64 %rd3, [y];
    ld.global.u32 %r4, [%rd0];
    mov.u32 %r5, buf;
    shl.b32 %r6, %r3, 2;
    add.u32 %r7, %r5, %r6;
    st.shared.u32 [%r7], %r4;
    bar.sync 0;
    and.b32 %r8, %r3, 15;
    shr.u32 %r9, %r3, 4;
    mad.lo.u32 %r10, %r8, 16, %r9;
    shl.b32 %r10, %r10, 2;
    add.u32 %r11, %r5, %r10;
    ld.shared.u32 %r12, [%r11];
    add.u64 %rd4, %rd3, %rd2;
    st.global.u32 [%rd4], %r12;
"""
)


@pytest.mark.parametrize("apart", [False, True])
def test_a_transpose_without_its_barrier_is_wrong_by_any_seed(apart: bool) -> None:
    x = np.arange(512, dtype=np.uint32)
    want = x.reshape(2, 16, 16).swapaxes(1, 2).ravel()

    def holds(body: str, schedule: PCT | str) -> bool:
        y = np.zeros_like(x)
        text = ptx(body, "u64 x, u64 y", shared=1024)
        run(text, grid=2, block=256, args=[x, y], schedule=schedule)
        return np.array_equal(y, want)

    broken = TRANSPOSE.replace("bar.sync 0;", "")
    assert holds(broken, "lockstep"), "lockstep hides it"
    for seed in MORE_SEEDS:
        assert holds(TRANSPOSE, PCT(seed, apart=apart))
        assert not holds(broken, PCT(seed, apart=apart))


def pipeline(change: Callable[[str], str], schedule: PCT | str, wait: str = "try_wait") -> bool:
    """Whether two stages of bulk copies bring all their rows."""
    x = np.random.default_rng(1).integers(0, 100, (7, 32)).astype(np.uint32)
    y = np.zeros(32, np.uint32)
    text = kernel("u64 x, u64 y", change(PIPELINE.replace("TEST", wait)))
    how: dict[str, Any] = {"schedule": schedule, "max_instructions": 200_000}
    try:
        run(text, grid=1, block=64, args=[x, y], dynamic_smem=512, **how)
    except TrapError:  # an mbarrier that is asked for more than it counts
        return False
    want = np.zeros(32, np.uint32)
    for row in x:
        want = want * np.uint32(3) + row
    return np.array_equal(y, want)


@pytest.mark.parametrize("wait", ["empty", "full"])
def test_a_pipeline_without_one_of_its_waits_is_wrong_by_some_seed(wait: str) -> None:
    assert all(pipeline(str, PCT(seed)) for seed in MORE_SEEDS)
    caught = [not pipeline(lambda text: without_wait(text, wait), PCT(seed)) for seed in MORE_SEEDS]
    assert any(caught)


def test_copies_that_are_polled_for_come() -> None:
    assert all(pipeline(str, PCT(seed, depth=1), "test_wait") for seed in range(2))


def without_wait(text: str, label: str) -> str:
    """Goes on, whatever the mbarrier says."""
    lines = text.splitlines()
    at = lines.index(f"${label}:")
    assert "wait" in lines[at + 1]
    return "\n".join(lines[:at] + lines[at + 3 :])


PUBLISH = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    setp.ge.u32 %p0, %r0, 32;
    mov.u32 %r1, 1;
    mov.u32 %r2, 7;
    @%p0 bra $reader;
    STORES
    ret;
$reader:
    ld.volatile.global.u32 %r3, [%rd0];
    setp.eq.u32 %p1, %r3, 0;
    @%p1 bra $reader;
    ld.volatile.global.u32 %r4, [%rd0+4];
    st.global.u32 [%rd0+8], %r4;
"""


def test_a_warp_may_be_stopped_in_the_middle_of_a_block() -> None:
    flag, data = "st.global.u32 [%rd0], %r1;", "st.global.u32 [%rd0+4], %r2;"
    pause = "\n".join(["    add.u32 %r5, %r1, 1;"] * 60)

    def seen(stores: str) -> set[int]:
        result = set()
        for seed in range(12):
            x = np.zeros(3, np.uint32)
            text = ptx(PUBLISH.replace("STORES", stores))
            run(text, grid=1, block=64, args=[x], schedule=PCT(seed))
            result.add(int(x[2]))
        return result

    assert seen(f"{data}\n{pause}\n{flag}") == {7}
    assert seen(f"{flag}\n{pause}\n{data}") == {0, 7}


# ---------------------------------------- time of copies

EARLY = """
    mov.u32 %r0, %tid.x;
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    shl.b32 %r1, %r0, 2;
    cvt.u64.u32 %rd2, %r1;
    add.u64 %rd0, %rd0, %rd2;
    add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r2, buf;
    add.u32 %r2, %r2, %r1;
    cp.async.ca.shared.global [%r2], [%rd0], 4;
    cp.async.commit_group;
    cp.async.ca.shared.global [%r2+128], [%rd0], 4;
    cp.async.commit_group;
    bar.sync 0;
    ld.shared.u32 %r3, [%r2+128];
    ld.shared.u32 %r4, [%r2];
    cp.async.wait_group 0;
    ld.shared.u32 %r5, [%r2+128];
    st.global.u32 [%rd1], %r4;
    st.global.u32 [%rd1+128], %r3;
    st.global.u32 [%rd1+256], %r5;
"""


def test_copies_of_a_thread_come_in_order_at_any_time_before_the_wait() -> None:
    poison, there = 0x7FC0DEAD, 5
    result = set()
    for seed in range(16):
        x, y = np.full(32, there, np.uint32), np.zeros((3, 32), np.uint32)
        text = ptx(EARLY, shared=256)
        run(text, grid=1, block=32, args=[x, y], schedule=PCT(seed))
        assert (y == y[:, :1]).all()
        assert y[2, 0] == there
        result.add((int(y[0, 0]), int(y[1, 0])))
    assert result == {(poison, poison), (there, poison), (there, there)}


# ---------------------------------------- order, and what is drawn

TICKETS = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mad.lo.u32 %r3, %r1, %r2, %r0;
    and.b32 %r4, %r0, 31;
    setp.ne.u32 %p0, %r4, 0;
    @%p0 bra $end;
    atom.global.add.u32 %r5, [%rd0], 1;
    shr.u32 %r6, %r3, 5;
    mul.wide.u32 %rd1, %r6, 4;
    add.u64 %rd0, %rd0, %rd1;
    st.global.u32 [%rd0+4], %r5;
$end:
"""


def tickets(schedule: PCT | str, grid: int = 3, warps: int = 4) -> tuple[tuple[int, ...], Result]:
    """When each warp came to the counter, and the run's result."""
    x = np.zeros(1 + grid * warps, np.uint32)
    result = run(ptx(TICKETS), grid=grid, block=32 * warps, args=[x], schedule=schedule)
    return tuple(x[1:].tolist()), result


def test_the_same_seed_gives_the_same_run_and_others_give_others() -> None:
    runs = {seed: tickets(PCT(seed)) for seed in MORE_SEEDS}
    for seed, (order, result) in runs.items():
        again, more = tickets(f"pct:{seed}")
        assert again == order
        assert more.counters == result.counters
        assert sorted(order) == list(range(12))
    assert len({order for order, _ in runs.values()}) >= 4


def test_a_warp_of_all_ctas_has_one_priority_unless_they_are_to_be_apart() -> None:
    together = [np.reshape(tickets(PCT(seed, 1))[0], (3, 4)) for seed in MORE_SEEDS]
    assert all((order // 3 == order[0] // 3).all() for order in together)
    apart = [np.reshape(tickets(PCT(seed, 1, apart=True))[0], (3, 4)) for seed in MORE_SEEDS]
    assert not all((order // 3 == order[0] // 3).all() for order in apart)


def test_a_schedule_is_said_in_words_or_numbers() -> None:
    assert tickets("pct:3:5")[0] == tickets(PCT(3, 5))[0]
    assert tickets("pct:3")[0] == tickets(PCT(3, depth=3))[0]


def test_the_tool_takes_a_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.ptx").write_text(ptx(TICKETS))
    launch = ["k.ptx", "--entry", "k", "--grid", "3", "--block", "128", "--arg", "out:x.npy:u32:13"]
    assert tickets("lockstep")[0] != tickets("pct:3")[0]
    for schedule in ("lockstep", "pct:3", "pct:3:5"):
        assert tool.main([*launch, "--schedule", schedule]) == 0
        assert tuple(np.load("x.npy")[1:]) == tickets(schedule)[0]
    assert tool.main([*launch, "--schedule", "pct:x"]) == 2
    assert capsys.readouterr().err == (
        "ptxgen run: error: schedule must be 'lockstep', 'pct:SEED', 'pct:SEED:DEPTH' with numbers, or "
        "a PCT, got 'pct:x'; did you mean 'pct:0'?\n"
    )


@pytest.mark.parametrize("given", ["pct", "pct:", "pct:-1", "pct:1:2:3", "PCT:1", 3, None])
def test_another_schedule_is_refused(given: Any) -> None:
    with pytest.raises(LaunchError) as refused:
        tickets(given)
    hint = "; did you mean 'pct:0'?"
    assert str(refused.value).removesuffix(hint) == (
        f"schedule must be 'lockstep', 'pct:SEED', 'pct:SEED:DEPTH' with numbers, or a PCT, got {given!r}"
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"seed": -1}, "seed must be an integer from 0, got -1"),
        ({"seed": 1.5}, "seed must be an integer from 0, got 1.5"),
        ({"seed": True}, "seed must be an integer from 0, got True"),
        ({"seed": 0, "depth": 0}, "depth must be an integer from 1, got 0"),
        ({"seed": 0, "apart": 1}, "apart must be True or False, got 1"),
    ],
)
def test_numbers_that_are_no_seed_or_depth_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(LaunchError) as refused:
        PCT(**given)
    assert str(refused.value) == f"PCT: {why}"


# ---------------------------------------- spinning, waiting for ever

RELAY = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mad.lo.u32 %r3, %r1, %r2, %r0;
    UNIT
$wait:
    ld.volatile.global.u32 %r5, [%rd0];
    setp.ne.u32 %p0, %r5, %r4;
    @%p0 bra $wait;
    ONE
    add.u32 %r6, %r4, 1;
    st.volatile.global.u32 [%rd0], %r6;
$end:
"""
ONE_LANE = "and.b32 %r7, %r0, 31; setp.ne.u32 %p1, %r7, 0; @%p1 bra $end;"


@pytest.mark.sample(2)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("unit", ["warp", "thread"])
def test_a_relay_of_spinning_threads_ends(unit: str, apart: bool) -> None:
    shift, one = ("5", ONE_LANE) if unit == "warp" else ("0", "")
    body = RELAY.replace("UNIT", f"shr.u32 %r4, %r3, {shift};").replace("ONE", one)
    for seed in range(2):
        x = np.zeros(1, np.uint32)
        grid, block = (2, 64) if unit == "warp" else (2, 8)
        run(
            ptx(body),
            grid=grid,
            block=block,
            args=[x],
            schedule=PCT(seed, depth=1, apart=apart),
            max_instructions=60_000,
        )
        assert x[0] == (4 if unit == "warp" else 16)


def test_an_endless_loop_ends_with_an_error_by_any_seed() -> None:
    text = ptx(
        "mov.u32 %r0, 0;\n$on:\n    add.u32 %r0, %r0, 1;\n    setp.ne.u32 %p0, %r0, 0;\n    @%p0 bra $on;"
    )
    with pytest.raises(TrapError) as trapped:
        run(text, grid=1, block=64, args=[], schedule="pct:1", max_instructions=1000)
    assert "still running after 1000 instructions in a row" in str(trapped.value)


def test_a_deadlock_is_named_as_in_lockstep() -> None:
    text = ptx("""
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, 32;
    @%p0 bra $one;
    bar.sync 1, 96;
    bra $end;
$one:
    bar.sync 2, 96;
$end:
    """)
    messages = set()
    for schedule in ("lockstep", "pct:0", "pct:1", "pct:2"):
        with pytest.raises(TrapError) as trapped:
            run(text, grid=2, block=64, args=[], schedule=schedule)
        messages.add(str(trapped.value))
    assert len(messages) == 1
    assert "deadlock in CTA (0, 0, 0) and 1 others: 32 threads" in messages.pop()


def test_lanes_of_a_membermask_meet_whatever_runs_between() -> None:
    text = ptx("""
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %r0;
    and.b32 %r2, %r0, 1;
    setp.eq.u32 %p0, %r2, 0;
    @%p0 bra $meet;
    mul.lo.u32 %r1, %r0, 3;
$meet:
    shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd0, %rd0, %rd1;
    st.global.u32 [%rd0], %r3;
    """)
    mine = np.where(np.arange(128) % 2, 3 * np.arange(128), np.arange(128))
    for seed in MORE_SEEDS:
        x = np.zeros(128, np.uint32)
        run(text, grid=1, block=128, args=[x], schedule=PCT(seed))
        assert np.array_equal(x, mine[np.arange(128) ^ 1])


@pytest.mark.parametrize(("depth", "changes"), [(1, 0), (2, 1), (3, 2)])
def test_a_depth_has_a_change_point_less_in_each_doubling_of_the_run(depth: int, changes: int) -> None:
    points = policies._changes(np.random.default_rng(0), depth)
    result = list(itertools.takewhile(lambda point: point < 1024, points))
    for start, end in ((0, 256), (256, 512), (512, 1024)):
        assert sum(start <= point < end for point in result) == changes
