"""When products, copies and stores of tensor memory complete: not before something waits for them, in the
order of their thread, and under every schedule at the latest with the commit.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from interpreter.machine.test_tcgen05_products import MORE, drawn, exact, image, steps, stored, with_rows
from interpreter.programs import at, deadlock, located, named
from interpreter.reported import messages, trap
from interpreter.tensor_texts import (
    BUFFER,
    LANES,
    MBARRIER,
    TENSOR,
    Array,
    by_one_thread,
    commit,
    descriptor,
    instruction,
    kernel,
    moved,
    ran,
    wait,
)

N: Final = 32
SEEDS: Final = range(8)
A: Final = drawn("f16", 128)
B: Final = drawn("f16", N, 2)
PRODUCT: Final = exact(A, "f16") @ exact(B, "f16").T
OLD: Final = np.random.default_rng(3).standard_normal((LANES, N)).astype(np.float32)
MMA: Final = steps("f16", instruction(128, N, "f16"))


def schedules() -> list[str]:
    return ["lockstep", *(f"pct:{seed}" for seed in SEEDS)]


def is_product(got: Array) -> bool:
    return bool(np.abs(got.view(np.float32) - PRODUCT).max() < 1e-4)


def run_of(body: list[str], *shape: int, schedule: str = "lockstep", **how: Any) -> Array:
    text = kernel("\n".join(body), nbytes=1 << 16)
    return ran(text, with_rows(image(A, B), OLD), shape, schedule=schedule, **how)


def test_d_has_its_old_value_until_somebody_waits_for_the_commit() -> None:
    further = f"add.u64 %rd91, %rd91, {4 * LANES * N};"
    start = by_one_thread([*MMA, commit()])
    body = [stored(0, N), start, "bar.sync 0;", moved(0, N, to="out"), further, wait(), moved(0, N, to="out")]
    early, late = run_of(body, 2, LANES, N)
    assert (early.view(np.float32) == OLD).all()
    assert is_product(late)
    seen = set()
    for schedule in schedules()[1:]:
        early, late = run_of(body, 2, LANES, N, schedule=schedule)
        assert is_product(late)
        seen.add(is_product(early))
    assert seen == {False, True}


def test_a_product_reads_shared_memory_as_late_as_it_completes() -> None:
    """Thread 0 overwrites A behind the products; only behind the wait for their commit is that harmless."""
    spoil = by_one_thread([f"st.shared.b32 [%r91+{1024 + 4 * n}], %r90;" for n in range(16)]).replace(
        "$one", "$two"
    )
    start = by_one_thread([*MMA, commit()])
    out = moved(0, N, to="out")
    assert not is_product(run_of([start, spoil, wait(), out], LANES, N))
    for schedule in schedules():
        assert is_product(run_of([start, wait(), spoil, out], LANES, N, schedule=schedule))
    right = {is_product(run_of([start, spoil, wait(), out], LANES, N, schedule=s)) for s in schedules()}
    assert right == {False, True}


def test_products_of_a_thread_complete_in_order_whatever_their_shapes() -> None:
    """The second product overwrites, in another shape, the columns of A of the first."""
    held = f"add.u32 %r20, {TENSOR}, 64;"
    first = f"tcgen05.mma.cta_group::1.kind::f16 [{TENSOR}], [%r20], %rd2, %r5, %p1;"
    other = instruction(64, 64, "f16", d="f16")
    body = [
        f"add.u64 %rd90, %rd90, {MORE};",
        moved(64, 8, to="tensor"),
        by_one_thread(
            [
                held,
                f"mov.u32 %r5, {instruction(128, N, 'f16'):#x};",
                "setp.ne.u32 %p1, %r5, %r5;",
                descriptor("%rd1", 0),
                descriptor("%rd2", 1 << 15),
                first,
                f"mov.u32 %r6, {other:#x};",
                "tcgen05.mma.cta_group::1.kind::f16 [%r20], %rd1, %rd2, %r6, %p1;",
                commit(),
            ]
        ),
        wait(),
        moved(0, N, to="out"),
    ]
    x = with_rows(image(A, np.concatenate([B, B])), A[:, :16])
    want = exact(A, "f16")[:, :16] @ exact(B, "f16")[:, :16].T
    for schedule in schedules():
        got = ran(kernel("\n".join(body), nbytes=1 << 16), x, (LANES, N), schedule=schedule).view(np.float32)
        assert np.abs(got - want).max() < 1e-4


def test_a_commit_waits_for_all_earlier_products_and_copies_of_its_thread() -> None:
    """Products, a commit that nobody waits for, a copy to other columns, and a commit that all wait for."""
    other = f"add.u32 %r21, {MBARRIER}, 8;\nmbarrier.init.shared.b64 [%r21], 1;\nfence.proxy.async;"
    copied = [
        commit().replace(MBARRIER, "%r21"),
        descriptor("%rd1", 0, lbo=16, sbo=128, swizzle=0),
        f"add.u32 %r20, {TENSOR}, 32;",
        "tcgen05.cp.cta_group::1.128x128b [%r20], %rd1;",
        commit(),
    ]
    body = [by_one_thread([other, *MMA, *copied]), wait(), moved(0, 40, to="out")]
    for schedule in schedules():
        got = run_of(body, LANES, 40, schedule=schedule)
        assert is_product(np.ascontiguousarray(got[:, :N]))
        assert (got[:, 36:] == 0x7FC0DEAD).all()
        assert (got[:, 32:36].ravel() == image(A, B).view(np.uint32)[:512]).all()


def test_each_phase_of_an_mbarrier_takes_one_commit() -> None:
    again = "setp.ne.u32 %p1, %r5, 0;"
    added = by_one_thread([again, *MMA[-1:], commit()]).replace("$one", "$two")
    body = [by_one_thread([*MMA, commit()]), wait(), "bar.sync 0;", added, wait(1), moved(0, N, to="out")]
    last = exact(A, "f16")[:, 48:64] @ exact(B, "f16")[:, 48:64].T
    for schedule in schedules():
        got = run_of(body, LANES, N, schedule=schedule).view(np.float32)
        assert np.abs(got - PRODUCT - last).max() < 1e-4


def test_commits_of_a_thread_arrive_in_order() -> None:
    """Behind the wait for the last commit, the mbarriers of the earlier ones may be invalidated: Triton does
    so behind a loop of products.
    """
    others = [f"{MBARRIER}+{offset}" for offset in (32, 40)]
    inits = [f"@%p8 mbarrier.init.shared.b64 [{other}], 1;" for other in others]
    started = [line for n in (0, 1) for line in (*MMA[-1:], commit().replace(MBARRIER, others[n]))]
    ends = [f"@%p8 mbarrier.inval.shared.b64 [{other}];" for other in others]
    start = by_one_thread([*MMA, *started, *MMA[-1:], commit()])
    text = kernel("\n".join([*inits, "bar.sync 0;", start, wait(), *ends]), nbytes=1 << 16)
    for schedule in schedules():
        args = [image(A, B), np.zeros(4, np.uint32)]
        assert messages(text, args, block=LANES, schedule=schedule) == []


def test_a_commit_that_nobody_makes_is_waited_for_for_ever() -> None:
    text = kernel("\n".join([by_one_thread(MMA), wait()]), nbytes=1 << 16)
    got = trap(text, [image(A, B), np.zeros(4, np.uint32)], block=LANES)
    where = (
        "the end of a phase of parity 0 of the mbarrier at 0x0 (buf), whose phase waits for 1 arrival more,"
    )
    wanted = f"{named(0, LANES)} wait at {where} in {located(text, 'try_wait')}"
    assert got == deadlock([wanted], 0, LANES)


def test_stores_reach_tensor_memory_when_their_warp_waits_for_them() -> None:
    store = stored(0, N).replace("tcgen05.wait::st.sync.aligned;", "")
    further = f"add.u64 %rd91, %rd91, {4 * LANES * N};"
    body = [store, moved(0, N, to="out"), further, "tcgen05.wait::st.sync.aligned;", moved(0, N, to="out")]
    early, late = run_of(body, 2, LANES, N)
    assert (early == 0x7FC0DEAD).all()
    assert (late.view(np.float32) == OLD).all()
    assert (run_of([stored(0, N), moved(0, N, to="out")], LANES, N).view(np.float32) == OLD).all()


def test_a_schedule_may_complete_what_nobody_waits_for() -> None:
    """Products without a commit and stores without a wait are seen some time after they have started."""
    spin = "mov.u32 %r30, 0;\n$spin:\nadd.u32 %r30, %r30, 1;\nsetp.lt.u32 %p1, %r30, 700;\n@%p1 bra $spin;"
    store = stored(0, N).replace("tcgen05.wait::st.sync.aligned;", "")
    further = f"add.u64 %rd91, %rd91, {4 * LANES * N};"
    out = moved(0, N, to="out")
    for start in ([store], [stored(0, N), by_one_thread(MMA), "bar.sync 0;"]):
        changed = False
        for seed in SEEDS:
            early, late = run_of([*start, out, further, spin, out], 2, LANES, N, schedule=f"pct:{seed}")
            changed |= bool((early != late).any())
        assert changed


def test_what_a_thread_has_done_before_its_commit_is_known_behind_the_wait() -> None:
    lines = [f"st.shared.u32 [{BUFFER}+64], {TENSOR};", *MMA, commit()]
    body = [by_one_thread(lines), wait(), f"ld.shared.u32 %r9, [{BUFFER}+64];", "st.global.u32 [%rd91], %r9;"]
    text = kernel("\n".join(body), nbytes=1 << 16)
    assert messages(text, [image(A, B), np.zeros(4, np.uint32)], block=LANES, sanitize="race") == []


def test_correct_orders_are_not_reported() -> None:
    body = [stored(0, N), by_one_thread([*MMA, commit()]), wait(), moved(0, N, to="out")]
    text = kernel("\n".join(body), nbytes=1 << 16)
    args = [with_rows(image(A, B), OLD), np.zeros((LANES, N), np.uint32)]
    assert messages(text, args, block=LANES) == []
    assert is_product(args[1])


def test_an_mbarrier_must_be_there() -> None:
    lines = [f"mbarrier.inval.shared.b64 [{MBARRIER}];", *MMA, commit()]
    text = kernel(by_one_thread(lines), nbytes=1 << 16)
    got = trap(text, [image(A, B), np.zeros(4, np.uint32)], block=LANES)
    commits = at(text, "tcgen05.commit")
    assert got == (
        f"{commits}there is no mbarrier: mbarrier.init must come first\nbefore that, kernel k: the sanitizer "
        f"reports 2 problems:\n  {at(text, 'tcgen05.dealloc')}race: tensor address 0x0 was written by thread "
        f"(0, 0, 0) in {located(text, 'tcgen05.mma', 3)}; this thread has not waited for the mbarrier of a "
        f"tcgen05.commit after it\n  {commits}sync: shared address 0x0 (buf): the arrival may still be "
        "under way when all threads have ended: none has waited for it"
    )
