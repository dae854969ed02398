"""Rings of which the producer works on some stages and passes the others on, on the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, SCHEDULES, changed, launch
from error_texts import refused

from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TrapError, TypeMismatchError
from ptxgen.types import f16, f32, u32

ROWS, COLUMNS, TILES, THREADS = 32, 64, 6, 128  # of a tile, tiles, threads of a role
LANES, CHUNK = 8, 16  # lanes that gather a row, each a chunk of 16 bytes
SIGNS = 0x8000_8000


def some_negated(stages: int = 2, *, gathered: bool = False) -> KernelBuilder:
    """C = sum of A[t] B[t] over tiles, the sign of B[t] changed by the producer where bit t of `worked` says
    so, each when the next tile is on its way.
    """
    k = KernelBuilder("some_negated", target="sm_90a", threads=2 * THREADS)
    A = k.tma.tensor_map("A", f16)
    B = k.pointer("B", f16) if gathered else k.tma.tensor_map("B", f16)
    C, worked = k.pointer("C", f32), k.param("worked", u32)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    left = k.tma.ring(stages, producer, consumer, a=((64, ROWS), f16))
    right = k.tma.ring(stages, producer, consumer, reworked=True, gathered=gathered, b=((ROWS, COLUMNS), f16))

    def negate() -> None:
        with right.rework() as stage:
            for at in stage.b.chunks(producer.thread, producer.threads):
                k.store(at, [word ^ SIGNS for word in k.load(at, 4)])

    with producer:
        waits = k.var(u32, 0)
        with k.loop(0, TILES, type=u32) as n:
            is_worked = (worked >> n) & 1 != 0
            with left.fill() as stage:
                k.tma.load(stage.a, A[0, n * ROWS])
            if gathered:
                with right.gather(reworked=is_worked) as stage:
                    row, lane = producer.thread // LANES, producer.thread % LANES
                    for down in range(0, ROWS, THREADS // LANES):
                        source = B.element((n * ROWS + row + down) * COLUMNS + lane * LANES)
                        k.copy_async(stage.b.pointer(row + down, lane * LANES), source, CHUNK)
            else:
                with right.fill(reworked=is_worked) as stage:
                    k.tma.load(stage.b, B[n * ROWS, 0])
            if stages > 1:
                with k.when(waits != 0, uniform=True):
                    negate()
            with k.when(~is_worked, uniform=True):
                right.pass_on()
            waits.set(k.selp(1, 0, is_worked))
            if stages == 1:
                with k.when(waits != 0, uniform=True):
                    negate()
                waits.set(0)
        with k.when(waits != 0, uniform=True):
            negate()
    with consumer:
        acc = k.wgmma.accumulator(64, COLUMNS)
        with k.loop(0, TILES), left.drain() as one, right.drain() as other:
            acc += one.a @ other.b
            k.wgmma.wait()
        acc.store(C, COLUMNS)
    return k


def run(k: KernelBuilder, text: Any, worked: int, schedule: Any, **how: Any) -> tuple[Any, Any]:
    """Run it on small integers. Returns the run, and whether C is right."""
    rng = np.random.default_rng(worked)
    a = rng.integers(-4, 5, (64, TILES * ROWS)).astype(np.float16)
    b = rng.integers(-4, 5, (TILES * ROWS, COLUMNS)).astype(np.float16)
    signs = [1 - 2 * (worked >> t & 1) for t in range(TILES)]
    c = np.full((64, COLUMNS), np.nan, np.float32)
    (ran,) = launch(k, a, b, c, worked, program=text, schedules=(schedule,), **how)
    return ran, np.array_equal(c, a.astype(np.float32) @ (b * np.repeat(signs, ROWS)[:, None]))


def all_negated(stages: int) -> KernelBuilder:
    """C = -sum of A[t] B[t] over tiles: the producer changes the sign of each B[t] as soon as it has been
    filled.
    """
    k = KernelBuilder("all_negated", target="sm_90a", threads=2 * THREADS)
    A, B, C = k.tma.tensor_map("A", f16), k.tma.tensor_map("B", f16), k.pointer("C", f32)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    tiles = {"a": ((64, ROWS), f16), "b": ((ROWS, COLUMNS), f16)}
    ring = k.tma.ring(stages, producer, consumer, reworked=True, at_once=True, **tiles)
    with producer, k.loop(0, TILES, type=u32) as n:
        with ring.fill() as stage:
            k.tma.load(stage.a, A[0, n * ROWS])
            k.tma.load(stage.b, B[n * ROWS, 0])
        with ring.rework() as stage:
            for at in stage.b.chunks(producer.thread, producer.threads):
                k.store(at, [word ^ SIGNS for word in k.load(at, 4)])
    with consumer:
        acc = k.wgmma.accumulator(64, COLUMNS)
        with k.loop(0, TILES), ring.drain() as stage:
            acc += stage.a @ stage.b
            k.wgmma.wait()
        acc.store(C, COLUMNS)
    return k


def run_all_negated(k: KernelBuilder, text: Any, schedules: Any, **how: Any) -> tuple[list[Any], bool]:
    """Run it on small integers. Returns the runs, and whether C is right."""
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (64, TILES * ROWS)).astype(np.float16)
    b = rng.integers(-4, 5, (TILES * ROWS, COLUMNS)).astype(np.float16)
    c = np.full((64, COLUMNS), np.nan, np.float32)
    ran = launch(k, a, b, c, program=text, schedules=schedules, **how)
    return ran, np.array_equal(c, -a.astype(np.float32) @ b)


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_stages_are_worked_on_at_once(stages: int) -> None:
    k = all_negated(stages)
    assert all(run_all_negated(k, None, (schedule,))[1] for schedule in SCHEDULES)


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2])
def test_a_wrong_parity_of_a_ring_at_once_is_noticed(stages: int) -> None:
    k = all_negated(stages)
    broken = changed(k, r"xor\.b32 (%r\d+), (%r\d+), 1;(\n\$wait)", r"mov.u32 \1, \2;\3", 1)
    noticed = False
    for schedule in SCHEDULES:
        try:
            (ran,), right = run_all_negated(k, broken, (schedule,), raise_on_report=False)
            noticed = noticed or bool(ran.reports) or not right
        except TrapError:
            noticed = True
    assert noticed


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_some_stages_are_worked_on_and_the_others_passed_on(stages: int, gathered: bool) -> None:
    k = some_negated(stages, gathered=gathered)
    for worked in (0b110011, 0, 2**TILES - 1, 0b000100):
        for schedule in SCHEDULES if worked == 0b110011 else LOCKSTEP:
            assert run(k, None, worked, schedule)[1], (worked, schedule)


MISTAKES = {
    "products do not see what was written": (r"fence\.proxy\.async\.shared::cta;", "", False),
    "a stage that is passed on waits for too many warps": (r"(mbarrier\.init[^;]*), 4;", r"\1, 5;", False),
    "copies count at the other barrier": (r"(selp\.u32 \S+) (\S+) (\S+) (%p\d+;)", r"\1 \3 \2 \4", False),
    "nobody arrives for copies": (r"mbarrier\.expect_tx[^;]*;", "", False),
    "threads do not wait for the copies of others": (r"(mbarrier\.init[^;]*), 128;", r"\1, 127;", True),
}


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_noticed(mistake: str) -> None:
    was, by, gathered = MISTAKES[mistake]
    k = some_negated(gathered=gathered)
    broken = changed(k, was, by)
    noticed = False
    for worked in (0b110011, 0b010110):
        for schedule in SCHEDULES:
            try:
                ran, right = run(k, broken, worked, schedule, raise_on_report=False)
                noticed = noticed or bool(ran.reports) or not right
            except TrapError:
                noticed = True
    assert noticed


def rings(**how: Any) -> tuple[KernelBuilder, Any, Any, Any]:
    k = KernelBuilder("refused", target="sm_90a", threads=2 * THREADS, cluster=2)
    A = k.tma.tensor_map("A", f16)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    return k, producer, A, k.tma.ring(2, producer, consumer, a=((64, 64), f16), **how)


def fill(how: dict[str, Any], reworked: Any) -> None:
    k, producer, A, ring = rings(**how)
    with producer:
        arguments = k.thread_id() < 3 if reworked is None else reworked
        with ring.fill(reworked=arguments) as stage:
            k.tma.load(stage.a, A[0, 0])


def pass_on_of_a_plain_ring() -> None:
    _, producer, _, ring = rings()
    with producer:
        ring.pass_on()


REFUSED = [
    (
        lambda: fill({}, None),
        ConfigError,
        "ring 'ring_1': fill takes reworked=… in rings made with reworked=True, and this one is not",
    ),
    (
        lambda: fill({"reworked": True, "multicast": True}, None),
        ConfigError,
        "ring 'ring_1': fill with reworked=… is for stages of one CTA; leave out multicast=True",
    ),
    (
        lambda: fill({"reworked": True}, 1),
        TypeMismatchError,
        "ring 'ring_1': fill: reworked must be a predicate, such as n < 2, got 1",
    ),
    (pass_on_of_a_plain_ring, ConfigError, "ring 'ring_1': pass_on is for rings made with reworked=True"),
]


@pytest.mark.parametrize(("misuse", "kind", "text"), REFUSED)
def test_misuse_is_refused(misuse: Any, kind: type[Exception], text: str) -> None:
    with refused(kind, text):
        misuse()
