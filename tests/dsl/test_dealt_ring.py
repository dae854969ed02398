"""Rings whose stages are dealt to warpgroups, and whose tiles arrive in parts, on the interpreter."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, SCHEDULES, changed, is_noticed, launch
from error_texts import refused

from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TypeMismatchError
from ptxgen.text import render
from ptxgen.types import f16, f32, u32

ROWS, COLUMNS = 64, 128  # of a tile, in two slabs
WARPGROUP, GROUPS, PARTS = 128, 2, 2


def dealt() -> KernelBuilder:
    """C[g] = sum of A[t] B[t]^T over the tiles t of warpgroup g, every second one: the first has one more."""
    k = KernelBuilder("dealt", target="sm_90a", threads=(1 + GROUPS) * WARPGROUP)
    A, B = (k.tma.tensor_map(name, f16) for name in "AB")
    C, tiles = k.pointer("C", f32), k.param("tiles", u32)
    producer = k.warpgroup_role("producer")
    consumer = k.warpgroup_role("consumer", warpgroups=GROUPS)
    tile = ((ROWS, COLUMNS), f16)
    ring = k.tma.ring(GROUPS, producer, consumer, dealt=True, parts=PARTS, a=tile, b=tile)
    with producer, k.loop(0, k.signed(tiles)) as n, ring.fill() as stage:
        k.tma.load(stage.a, A[n * ROWS, 0])
        k.tma.load(stage.b, B[n * ROWS, 0])
    with consumer:
        group = k.warp_index // 4 % GROUPS
        acc, parity = k.wgmma.accumulator(64, ROWS), k.var(u32, 0)
        with k.loop(group, tiles, GROUPS):
            stage = ring.take(group, parity)
            for part in range(PARTS):
                if part:
                    stage.wait(part)
                first, width = part * COLUMNS // PARTS, COLUMNS // PARTS
                acc += stage.a.from_column(first, width) @ stage.b.from_column(first, width).T
            k.wgmma.wait()
            stage.release()
            parity.set(parity ^ 1)
        acc.store(C.element(group * (64 * ROWS)), ROWS)
    return k


def problem(tiles: int) -> list[Any]:
    """Small integers, whose products and sums are exact; C; the number of tiles."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, (tiles * ROWS, COLUMNS)).astype(np.float16) for _ in "AB")
    return [a, b, np.full((GROUPS, 64, ROWS), np.nan, np.float32), tiles]


def assert_sums(a: Any, b: Any, c: Any) -> None:
    """C has the sums of each warpgroup's products."""
    a, b = (x.reshape(-1, ROWS, COLUMNS).astype(np.float32) for x in (a, b))
    products = a @ np.swapaxes(b, 1, 2)
    for group in range(GROUPS):
        np.testing.assert_array_equal(c[group], products[group::GROUPS].sum(0))


@pytest.mark.parametrize("tiles", [1, 3])
def test_warpgroups_take_stages_in_orders_of_their_own(tiles: int) -> None:
    for schedule in SCHEDULES[:tiles]:
        a, b, c, _ = problem(tiles)
        launch(dealt(), a, b, c, tiles, schedules=(schedule,))
        assert_sums(a, b, c)


CHUNKS = COLUMNS // 8  # of 16 bytes, of a row


def dealt_and_gathered() -> KernelBuilder:
    """The kernel of `dealt`, but tiles of B are copied by cp.async of the producer's threads."""
    k = KernelBuilder("dealt", target="sm_90a", threads=(1 + GROUPS) * WARPGROUP)
    A = k.tma.tensor_map("A", f16)
    B, C, tiles = k.pointer("B", f16), k.pointer("C", f32), k.param("tiles", u32)
    producer = k.warpgroup_role("producer")
    consumer = k.warpgroup_role("consumer", warpgroups=GROUPS)
    tile = ((ROWS, COLUMNS), f16)
    left = k.tma.ring(GROUPS, producer, consumer, dealt=True, a=tile)
    right = k.tma.ring(GROUPS, producer, consumer, dealt=True, gathered=True, b=tile)
    with producer, k.loop(0, k.signed(tiles)) as n:
        with left.fill() as stage:
            k.tma.load(stage.a, A[n * ROWS, 0])
        with right.gather() as stage:
            row, column = producer.thread // CHUNKS, producer.thread % CHUNKS * 8
            for down in range(0, ROWS, WARPGROUP // CHUNKS):
                source = B.element((n.as_(u32) * ROWS + row + down) * COLUMNS + column)
                k.copy_async(stage.b.pointer(row + down, column), source, 16, 16)
    with consumer:
        group = k.warp_index // 4 % GROUPS
        acc, parity = k.wgmma.accumulator(64, ROWS), k.var(u32, 0)
        with k.loop(group, tiles, GROUPS):
            of_a, of_b = left.take(group, parity), right.take(group, parity)
            acc += of_a.a @ of_b.b.T
            k.wgmma.wait()
            of_a.release()
            of_b.release()
            parity.set(parity ^ 1)
        acc.store(C.element(group * (64 * ROWS)), ROWS)
    return k


def test_a_dealt_ring_may_be_gathered_and_its_copies_are_seen_by_products() -> None:
    k = dealt_and_gathered()
    without = changed(k, r"fence\.proxy\.async\.shared::cta;", "", 1)  # where the consumer takes a stage
    a, b, c, tiles = problem(3)
    launch(k, a, b, c, tiles, schedules=LOCKSTEP)
    assert_sums(a, b, c)
    (result,) = launch(k, a, b, c, tiles, program=without, schedules=LOCKSTEP, raise_on_report=False)
    assert result.reports


MISTAKES = {
    "nobody waits for the second part": "wait",
    "the first part counts the bytes of both": "bytes",
    "all warps of the role give a stage back": "arrivals",
}


def broken(text: str, mistake: str) -> str:
    if mistake == "bytes":
        half = 2 * ROWS * COLUMNS * 2 // PARTS
        built, count = re.subn(rf"(expect_tx[^;]*, ){half};", rf"\g<1>{2 * half};", text, count=1)
    elif mistake == "arrivals":
        built, count = re.subn(r"(mbarrier\.init[^;]*), 4;", r"\1, 8;", text)
        count = min(count, 1)
    else:
        waits = list(re.finditer(r"mbarrier\.try_wait\.parity\S* (%p\d+), [^;]*;", text))
        last = waits[-1]
        built, count = text[: last.start()] + f"setp.eq.u32 {last[1]}, 0, 0;" + text[last.end() :], 1
    assert count == 1
    return built


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=list(MISTAKES))
def test_the_sanitizers_see_a_dealt_ring_without_its_order(mistake: str) -> None:
    k = dealt()
    assert is_noticed(k, broken(render(k.build()), mistake), *problem(5))


def roles() -> tuple[KernelBuilder, Any, Any]:
    k = KernelBuilder("refused", target="sm_90a", threads=2 * WARPGROUP)
    return k, k.warpgroup_role("producer"), k.warpgroup_role("consumer")


ALONE = (
    "ring: dealt=True is for copies and a consumer of whole warpgroups; leave out multicast, "
    "overlapped, written and reworked"
)


@pytest.mark.parametrize("other", ["overlapped", "written", "reworked"])
def test_other_kinds_of_dealt_rings_are_refused(other: str) -> None:
    k, producer, consumer = roles()
    with refused(ConfigError, ALONE):
        k.tma.ring(2, producer, consumer, dealt=True, b=((64, 64), f16), **{other: True})


def test_a_consumer_of_some_warps_has_no_dealt_ring() -> None:
    k = KernelBuilder("refused", target="sm_90a", threads=2 * WARPGROUP)
    producer, consumer = k.warpgroup_role("producer"), k.warp_role("consumer", warps=2)
    with refused(ConfigError, ALONE):
        k.tma.ring(2, producer, consumer, dealt=True, b=((64, 64), f16))


@pytest.mark.parametrize(
    "how",
    [{"dealt": True, "parts": 3}, {"dealt": True, "gathered": True, "parts": 2}, {"parts": 2}, {"parts": 0}],
    ids=str,
)
def test_parts_divide_the_slabs_of_a_dealt_ring(how: dict[str, Any]) -> None:
    k, producer, consumer = roles()
    message = (
        "ring: parts is a positive number, 1 unless the ring is made with dealt=True and without "
        f"gathered=True, and divides the slabs of each tile, of which there are [2]; got {how['parts']}"
    )
    with refused(ConfigError, message):
        k.tma.ring(2, producer, consumer, a=((64, 128), f16), **how)


def test_take_and_acquire_are_not_mixed_up() -> None:
    k, producer, consumer = roles()
    plain = k.tma.ring(2, producer, consumer, a=((64, 64), f16))
    ring = k.tma.ring(2, producer, consumer, dealt=True, parts=2, b=((64, 128), f16))
    message = "ring 'ring_2': take belongs into 'with' of the role 'consumer', but is in the role 'producer'"
    with producer, refused(TypeMismatchError, message):
        ring.take(0, k.var(u32, 0))
    with consumer:
        for use in (ring.acquire, ring.peek):
            with refused(ConfigError, "ring 'ring_2': warpgroups name the stage of a dealt ring; use take"):
                use()
        with refused(ConfigError, "ring 'ring_1': take is for rings made with dealt=True; use acquire"):
            plain.take(0, k.var(u32, 0))
        stage = ring.take(0, k.var(u32, 0))
        for one, part, parts in ((stage, 2, 2), (plain.acquire(), 0, 1)):
            message = (
                f"stage.wait of ring '{one.ring.name}': it is for stages that take has given, and parts "
                f"below {parts}, got {part}"
            )
            with refused(ConfigError, message):
                one.wait(part)
