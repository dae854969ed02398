from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interpreter.programs import on_elements, ptx

from ptxgen.interpreter import launch, run

# Each CTA turns its 48 elements round through shared memory and adds what local memory holds; an
# atomic counts the threads.
PROGRAM = on_elements(
    """
    .local .align 4 .b8 kept[64];
    st.local.u32 [kept+60], %r1;
    mov.u32 %r5, buf;
    mad.lo.u32 %r6, %r3, 4, %r5;
    ld.global.u32 %r4, [%rd0];
    st.shared.u32 [%r6], %r4;
    bar.sync 0;
    sub.u32 %r7, 47, %r3;
    mad.lo.u32 %r7, %r7, 4, %r5;
    ld.shared.u32 %r4, [%r7];
    ld.local.u32 %r8, [kept+60];
    mad.lo.u32 %r4, %r8, 1000, %r4;
    st.global.u32 [%rd0], %r4;
    ld.param.u64 %rd3, [count];
    red.global.add.u32 [%rd3], 1;
    """,
    shared=192,
)
CTAS, THREADS = 37, 48


class Batches:
    """The batches that runs are cut into: the first CTA of each, and how many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, int]] = []
        original = launch._Launch.run_batch

        def noting(made: Any, first: int, count: int, sanitize: bool) -> None:
            self.seen.append((first, count))
            original(made, first, count, sanitize)

        monkeypatch.setattr(launch._Launch, "run_batch", noting)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Batches:
    return Batches(monkeypatch)


def outcome(**more: Any) -> tuple[list[int], Any]:
    x, count = np.arange(CTAS * THREADS, dtype=np.uint32), np.zeros(1, np.uint32)
    result = run(PROGRAM, grid=CTAS, block=THREADS, args=[x, count], sanitize=True, **more)
    assert count[0] == CTAS * THREADS
    return x.tolist(), result.counters


@pytest.mark.parametrize("ctas", [1, 2, 10, 36, 37, 1000])
def test_results_do_not_depend_on_the_size_of_a_batch(
    ctas: int, monkeypatch: pytest.MonkeyPatch, batches: Batches
) -> None:
    monkeypatch.setattr(launch, "_MAX_LANES", 64 * ctas)  # a CTA of 48 threads has 64 lanes
    got, counters = outcome(profile=True)
    cta, thread = np.divmod(np.arange(CTAS * THREADS), THREADS)
    assert got == (1000 * cta + THREADS * cta + 47 - thread).tolist()
    sizes = [min(ctas, CTAS - first) for first in range(0, CTAS, ctas)]
    assert batches.seen == list(zip(range(0, CTAS, ctas), sizes, strict=True))
    assert counters.warp_instructions == CTAS * 2 * 22
    assert counters.thread_instructions == CTAS * THREADS * 22
    assert counters.shared_requests == CTAS * 2 * 2
    assert counters.global_sectors_written == CTAS * (THREADS * 4 // 32 + 2)
    assert counters.dispatched == 22 * len(sizes)


@pytest.mark.parametrize(
    ("limit", "nbytes"),
    [("_MAX_LOCAL_BYTES", 4 * 64 * 64), ("_MAX_SHARED_BYTES", 192), ("_MAX_REGISTER_BYTES", None)],
)
def test_memory_bounds_the_size_of_a_batch(
    limit: str, nbytes: int | None, monkeypatch: pytest.MonkeyPatch, batches: Batches
) -> None:
    if nbytes is None:
        # Registers of 32 and of 64 bits, as far as the program uses them, of 64 lanes.
        nbytes = 64 * (4 * 9 + 8 * 4 + 4 * 3)
    monkeypatch.setattr(launch, limit, 5 * nbytes)
    outcome()
    assert [count for _, count in batches.seen] == [5] * 7 + [2]


def test_a_cta_that_is_larger_than_any_limit_runs_alone(
    monkeypatch: pytest.MonkeyPatch, batches: Batches
) -> None:
    for limit in ("_MAX_LOCAL_BYTES", "_MAX_SHARED_BYTES", "_MAX_REGISTER_BYTES", "_MAX_LANES"):
        monkeypatch.setattr(launch, limit, 1)
    outcome()
    assert batches.seen == [(n, 1) for n in range(CTAS)]


def test_threads_that_may_recurse_leave_each_other_room(batches: Batches) -> None:
    functions = """
    .func (.reg .u32 out) f(.reg .u32 n)
    {
        .reg .pred p;
        .reg .u32 less;
        mov.u32 out, 0;
        setp.eq.u32 p, n, 0;
        @p ret;
        sub.u32 less, n, 1;
        call (out), f, (less);
        add.u32 out, out, n;
        ret;
    }
    """
    text = on_elements(
        "    and.b32 %r4, %r3, 7;\n    call (%r4), f, (%r4);\n    st.global.u32 [%rd0], %r4;",
        before=functions,
    )
    x = np.zeros(100 * 256, np.uint32)
    run(text, grid=100, block=256, args=[x])
    assert (x == np.cumsum(np.arange(8))[np.arange(len(x)) % 8]).all()
    assert batches.seen == [(0, 64), (64, 36)]  # 16 KiB of local memory for each lane


@pytest.mark.parametrize("ctas", [1, 5, 6, 7, 11])
def test_clusters_are_never_parted(ctas: int, monkeypatch: pytest.MonkeyPatch, batches: Batches) -> None:
    body = """
    ld.param.u64 %rd1, [x];
    mov.u32 %r0, %cluster_ctarank;
    mov.u32 %r1, %cluster_nctarank;
    mov.u32 %r2, %clusterid.x;
    mov.u32 %r3, buf;
    mad.lo.u32 %r4, %r2, %r1, %r0;
    st.shared.u32 [%r3], %r4;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    add.u32 %r5, %r0, 1;
    rem.u32 %r5, %r5, %r1;
    mapa.shared::cluster.u32 %r6, %r3, %r5;
    ld.shared::cluster.u32 %r7, [%r6];
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mul.wide.u32 %rd2, %r4, 4;
    add.s64 %rd1, %rd1, %rd2;
    st.global.u32 [%rd1], %r7;
    """
    text = ptx(body, shared=4)
    monkeypatch.setattr(launch, "_MAX_LANES", 32 * ctas)
    x = np.zeros(18, np.uint32)
    seen: list[tuple[int, int]] = []
    run(text, grid=18, block=1, cluster=3, args=[x], progress=lambda *now: seen.append(now))
    number = np.arange(18)
    assert x.tolist() == (number // 3 * 3 + (number % 3 + 1) % 3).tolist()
    size = max(ctas // 3, 1) * 3
    sizes = [min(size, 18 - first) for first in range(0, 18, size)]
    assert batches.seen == list(zip(range(0, 18, size), sizes, strict=True))
    assert seen == [(first + count, 18) for first, count in batches.seen]


def test_progress_grows_to_the_whole_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_MAX_LANES", 32 * 7)
    seen: list[tuple[int, int]] = []
    run(ptx("    ret;"), grid=(5, 4, 2), block=9, args=[], progress=lambda *now: seen.append(now))
    assert seen == [(7, 40), (14, 40), (21, 40), (28, 40), (35, 40), (40, 40)]


def test_the_largest_grid_can_be_stopped_from_its_progress() -> None:
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        assert total == (1 << 31) - 1
        if len(seen) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(ptx("    ret;"), grid=(1 << 31) - 1, block=1024, args=[], progress=stop)
    assert seen == [256, 512, 768]


def test_special_registers_go_on_from_batch_to_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_MAX_LANES", 32 * 4)
    body = """
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ctaid.y;
    mov.u32 %r3, %ctaid.z;
    mov.u32 %r4, %nctaid.x;
    mov.u32 %r5, %nctaid.y;
    mad.lo.u32 %r6, %r3, %r5, %r2;
    mad.lo.u32 %r6, %r6, %r4, %r1;
    mul.wide.u32 %rd2, %r6, 4;
    add.s64 %rd1, %rd1, %rd2;
    mad.lo.u32 %r7, %r3, 10, %r2;
    mad.lo.u32 %r7, %r7, 10, %r1;
    st.global.u32 [%rd1], %r7;
    """
    x = np.zeros((3, 5, 7), np.uint32)
    run(ptx(body), grid=(7, 5, 3), block=1, args=[x])
    z, y, first = np.indices(x.shape)
    assert (x == 100 * z + 10 * y + first).all()


def test_threads_of_blocks_of_odd_shapes_are_numbered() -> None:
    body = "\n".join(
        [
            "    ld.param.u64 %rd1, [x];\n    mov.u32 %r0, 0;",
            *(
                f"    mov.u32 %r1, %{kind}.{axis};\n    mov.u32 %r2, %n{kind}.{axis};\n"
                "    mad.lo.u32 %r0, %r0, %r2, %r1;"
                for kind in ("ctaid", "tid")
                for axis in "zyx"
            ),
            "    mul.wide.u32 %rd2, %r0, 4;\n    add.s64 %rd1, %rd1, %rd2;\n    bar.sync 0;\n"
            "    add.u32 %r0, %r0, 7;\n    st.global.u32 [%rd1], %r0;",
        ]
    )
    for block in (1, 31, 33, 1023, (7, 3, 5), (1, 1, 64), (3, 341), (11, 31, 3)):
        x = np.zeros((12, int(np.prod(block))), np.uint32)
        run(ptx(body), grid=(2, 3, 2), block=block, args=[x], sanitize=True)
        assert (x.ravel() == 7 + np.arange(x.size)).all()
