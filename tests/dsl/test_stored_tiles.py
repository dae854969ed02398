"""Rings whose stages are filled by copies and by stores of the producer's threads, on the interpreter."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from dsl.kernels import SCHEDULES, changed, launch
from error_texts import refused

from ptxgen.check.prove import PROVED, prove_shared
from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TrapError
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import f16, f32, u32

ROWS, COLUMNS, TILES, THREADS = 32, 64, 5, 128  # of the right factor, steps, threads of a role
SIGNS = 0x8000_8000
WAYS = ("plain", "overlapped", "reworked", "some reworked")
AT_ONCE = WAYS[:3]  # whose second steps may follow their fills directly


@dataclass
class SecondStep:
    """What the producer does for a tile after its fill, in the ring of `weighted`."""

    k: KernelBuilder
    producer: Any
    ring: Any
    way: str
    worked: Any

    def is_worked(self, tile: Any) -> Any:
        return (self.worked >> tile) & 1 != 0

    def emit(self, tile: Any) -> None:
        k = self.k
        if self.way == "reworked":
            self.rework(tile)
            return
        if self.way == "some reworked":
            with k.when(self.is_worked(tile), uniform=True):
                self.rework(tile)
            with k.when(~self.is_worked(tile), uniform=True), self.ring.store() as stage:
                self.store(stage, tile)
            return
        with self.ring.store() as stage:
            self.store(stage, tile)

    def store(self, stage: Any, tile: Any) -> None:
        k, thread = self.k, self.producer.thread
        row, half = thread % ROWS, thread // ROWS * (COLUMNS // 4)
        for column in range(COLUMNS // 4):
            value = k.cvt((row * 3 + half + column + tile) % 5, dtype=f32, rnd="rn") - 2.0
            stage.b[row, half + column] = k.cvt(value, dtype=f16, rnd="rn")
        with k.when(thread < COLUMNS):
            stage.numbers[0, thread] = k.cvt(thread * (tile + 1), dtype=f32, rnd="rn")

    def rework(self, tile: Any) -> None:
        with self.ring.rework() as stage:
            self.store(stage, tile)
            for at in stage.a.chunks(self.producer.thread, self.producer.threads):
                self.k.store(at, [word ^ SIGNS for word in self.k.load(at, 4)])


def weighted(way: str, stages: int = 2, late: int = 0, *, at_once: bool = False) -> KernelBuilder:
    """C = sum of A[t] B[t] over tiles t, and D the sum of their numbers. Copies fill A[t]; the producer's
    threads store B[t] and the numbers, `late` fills later, and change the sign of A[t] where the ring is
    reworked: of all tiles, or of those whose bit in `worked` is set. The ring may be made `at_once`.
    """
    k = KernelBuilder("weighted", target="sm_90a", threads=2 * THREADS)
    A, C, D, worked = k.tma.tensor_map("A", f16), k.pointer("C", f32), k.pointer("D", f32), k.param("w", u32)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    how: dict[str, Any] = {"overlapped": way == "overlapped", "reworked": "reworked" in way}
    how["at_once"] = at_once
    ring = k.tma.ring(
        *(stages, producer, consumer),
        **how,
        stored=("b", "numbers"),
        a=((64, ROWS), f16),
        b=((ROWS, COLUMNS), f16),
        numbers=((1, COLUMNS), f32, "none"),
    )

    step = SecondStep(k, producer, ring, way, worked)
    with producer:
        with k.loop(0, TILES, type=u32) as t:
            with ring.fill(reworked=step.is_worked(t) if way == "some reworked" else None) as stage:
                k.tma.load(stage.a, A[0, t * ROWS])
            if not late:
                step.emit(t)
            else:
                with k.when(t >= late, uniform=True):
                    step.emit(t - late)
        for tile in range(TILES - late, TILES):
            step.emit(k.mov(tile, type=u32))
    with consumer:
        acc, total = k.wgmma.accumulator(64, COLUMNS), k.var(f32, 0.0)
        column = consumer.thread % COLUMNS
        with k.loop(0, TILES), ring.drain() as stage:
            acc += stage.a @ stage.b
            total.set(total + stage.numbers[0, column])
            if way != "overlapped":
                k.wgmma.wait()
        if way == "overlapped":
            ring.finish()
        acc.store(C, COLUMNS)
        D[consumer.thread] = total
    return k


def run(way: str, k: KernelBuilder, program: Any = None, schedules: Any = SCHEDULES, **how: Any) -> Any:
    """Run it on small integers. Returns the runs, and whether C and D are right."""
    worked = {"reworked": 2**TILES - 1, "some reworked": 0b01101}.get(way, 0)
    a = np.random.default_rng(0).integers(-4, 5, (64, TILES * ROWS)).astype(np.float16)
    c, d = np.full((64, COLUMNS), np.nan, np.float32), np.zeros(THREADS, np.float32)
    ran = launch(k, a, c, d, worked, program=program, schedules=schedules, **how)
    tile, row, column = np.ogrid[:TILES, :ROWS, :COLUMNS]
    b = ((row * 3 + column + tile) % 5 - 2.0) * (1 - 2 * (worked >> tile & 1))
    wanted = a.astype(np.float32) @ b.reshape(-1, COLUMNS)
    numbers = np.arange(THREADS) % COLUMNS * sum(range(1, TILES + 1))
    return ran, np.array_equal(c, wanted) and np.array_equal(d, numbers)


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("way", "stages", "late"),
    [("plain", 1, 0), ("overlapped", 3, 1), ("plain", 3, 2)]
    + [(way, 2, late) for way in WAYS for late in (0, 1) if (way, late) != ("overlapped", 1)],
)
def test_consumers_see_what_copies_and_threads_wrote(way: str, stages: int, late: int) -> None:
    assert run(way, weighted(way, stages, late))[1]


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("way", AT_ONCE)
def test_a_ring_at_once_gives_the_same_results(way: str, stages: int) -> None:
    if (way, stages) != ("overlapped", 1):
        assert run(way, weighted(way, stages, at_once=True))[1]


@pytest.mark.parametrize(("stages", "fewer"), [(1, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("way", ["plain", "reworked"])
def test_the_producer_of_a_ring_at_once_has_one_cursor(way: str, stages: int, fewer: int) -> None:
    """A cursor is an index, if there are several stages, and a parity; both begin as 0 or 1."""
    later, at_once = (render(weighted(way, stages, at_once=once).build()) for once in (False, True))
    begun = [len(re.findall(r"mov\.u32 %r\d+, [01];", text)) for text in (later, at_once)]
    assert begun[0] - begun[1] == fewer


@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("way", "at_once"), [*((way, False) for way in WAYS), *((way, True) for way in AT_ONCE)]
)
def test_they_are_assembled_and_their_barriers_proved(way: str, at_once: bool) -> None:
    k = weighted(way, at_once=at_once)
    module = k.build()
    find_assembler(target="sm_90a").assemble(render(module), "sm_90a")
    proof = prove_shared(module, block=k.threads)
    assert all(verdict.verdict == PROVED for verdict in (*proof.barriers, *proof.convergence))
    assert not proof.violations
    assert not proof.unfenced


def test_a_full_barrier_counts_the_copied_bytes_and_each_warp() -> None:
    text = render(weighted("plain").build())
    assert [line.split(",")[-1].strip() for line in text.splitlines() if "mbarrier.init" in line] == (
        ["5;", "4;"] * 2
    )
    assert re.findall(r"expect_tx\S* .*, (\d+);", text) == [str(64 * ROWS * 2)]


MISTAKES = {
    "products do not see what was stored": (r"fence\.proxy\.async\.shared::cta;", "", "plain"),
    "consumers do not wait for the stores": (r"(mbarrier\.init[^;]*), 5;", r"\1, 1;", "plain"),
    "consumers wait for one warp too many": (r"(mbarrier\.init[^;]*), 5;", r"\1, 6;", "plain"),
    "the barrier counts bytes of stored tiles": (rf", {64 * ROWS * 2};", f", {96 * ROWS * 2};", "plain"),
    "lanes do not wait for each other": (r"bar\.warp\.sync -1;", "", "plain"),
    "copies count at the other barrier": (
        r"(selp\.\w+ \S+) (\S+) (\S+) (%p\d+;)",
        r"\1 \3 \2 \4",
        "some reworked",
    ),
    "a ring at once: stages are reworked before their copies are there": (
        r"xor\.b32 (%r\d+), (%r\d+), 1;(\n\$wait)",
        r"mov.u32 \1, \2;\3",
        "reworked",
        True,
    ),
    "a ring at once: threads store before the stage is free": (
        r"(\$end_\d+:\n(?:[^\n]*mad\.lo[^\n]*\n|[^\n]*mov\.u32[^\n]*\n)+\$wait_\d+:\n[^\n]*\], )%r\d+;",
        r"\g<1>1;",
        "plain",
        True,
    ),
    "a ring at once: products do not see what was stored": (
        r"fence\.proxy\.async\.shared::cta;",
        "",
        "plain",
        True,
    ),
}


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_noticed(mistake: str) -> None:
    was, by, way, *at_once = MISTAKES[mistake]
    k = weighted(way, at_once=bool(at_once))
    broken, noticed = changed(k, was, by), False
    for schedule in SCHEDULES:
        try:
            (ran,), right = run(way, k, broken, (schedule,), raise_on_report=False)
            noticed = noticed or bool(ran.reports) or not right
        except TrapError:
            noticed = True
    assert noticed


def _fill(k: KernelBuilder, ring: Any, corner: Any) -> None:
    with ring.fill() as stage:
        for name in ring.copied:
            k.tma.load(getattr(stage, name), corner)


def ring_of(body: str = "", **how: Any) -> Callable[[], None]:
    """A call that builds a ring with these options, and the step `body` of its producer."""

    def call() -> None:
        k = KernelBuilder("refused", target="sm_90a", threads=2 * THREADS, cluster=2)
        A = k.tma.tensor_map("A", f16)
        producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
        ring = k.tma.ring(2, producer, consumer, a=((64, 64), f16), b=((64, 64), f16), **how)
        with producer:
            if body == "pass_on":
                ring.pass_on()
            elif body == "load":
                with ring.fill() as stage:
                    k.tma.load(stage.b, A[0, 0])
            elif body == "forget":
                with ring.fill():
                    pass
            elif body.startswith("fill"):
                for step in body.split(", "):
                    if step == "fill":
                        _fill(k, ring, A[0, 0])
                    else:
                        with getattr(ring, step)():
                            pass
            elif body == "branches":
                is_worked = k.block_id() == 0
                with ring.fill(reworked=is_worked) as stage:
                    k.tma.load(stage.a, A[0, 0])
                with k.when(is_worked, uniform=True), ring.rework():
                    pass
                with k.when(~is_worked, uniform=True), ring.store():
                    pass
            elif body == "use":
                with ring.store() as stage:
                    stage.a[0, 0] = 0.0
            else:
                with ring.store():
                    pass

    return call


EXCLUDED = (
    "ring: stored=… is for stages that one CTA fills by copies of tensors, and that consumers take in order; "
    "leave out multicast, written, gathered and dealt"
)
AT_ONCE_OF_NOTHING = (
    "ring: at_once=True is for stages with a second step of the producer after fill; make the ring with "
    "reworked=True or stored=…, and without gathered"
)
REFUSED = [
    (ring_of(stored="b"), "ring: stored must be a tuple of names of its tiles, which are a, b, got 'b'"),
    (
        ring_of(stored=("b", "c")),
        "ring: stored must be a tuple of names of its tiles, which are a, b, got ('b', 'c')",
    ),
    *(
        (ring_of(stored=("b",), **{way: True}), EXCLUDED)
        for way in ("multicast", "written", "gathered", "dealt")
    ),
    (
        ring_of(stored=("b", "a")),
        "ring: stored=… names all tiles of the ring, so that no copy fills any; make it with "
        "written=True and without stored",
    ),
    (
        ring_of(),
        "ring 'ring_1': store is for rings made with stored=…, such as stored=('numbers',), "
        "and this one is not",
    ),
    (
        ring_of("pass_on", stored=("b",), reworked=True),
        "ring 'ring_1': pass_on stores nothing, but consumers expect what the producer stores to each stage; "
        "replace it by 'with ring.store() as stage:'",
    ),
    (
        ring_of("load", stored=("b",)),
        "ring 'ring_1': tile 'b' is loaded, but stored= says that the threads of the producer store to it; "
        "leave it out of stored, or store to it in ring.store()",
    ),
    (
        ring_of("forget", stored=("b",)),
        "ring 'ring_1': a stage has 8192 bytes, of which the loads bring 0; load a too, or consumers wait "
        "for ever",
    ),
    (
        ring_of("fill", stored=("b",)),
        "ring 'ring_1': role 'producer' has no step that stores to its stages, so that consumers wait for "
        "ever; add 'with ring.store() as stage:'",
    ),
    (
        ring_of("fill", stored=("b",), reworked=True),
        "ring 'ring_1': role 'producer' has no step that stores to its stages, so that consumers wait for "
        "ever; add 'with ring.rework() as stage:'",
    ),
    (
        ring_of("store alone", stored=("b",)),
        "ring 'ring_1': role 'producer' has no step that fills its stages, so that consumers wait for "
        "ever; add 'with ring.fill() as stage:'",
    ),
    (
        ring_of("use", stored=("b",)),
        "ring 'ring_1': store is for the tiles named in stored=, 'b', but copies to tile 'a' may be under "
        "way; use it in rework, in a ring made with reworked=True",
    ),
    (
        ring_of("fill", reworked=True),
        "ring 'ring_1': role 'producer' has no step that reworks its stages, so that consumers wait for "
        "ever; add 'with ring.rework() as stage:'",
    ),
    *(
        (ring_of(at_once=True, **how), AT_ONCE_OF_NOTHING)
        for how in ({}, {"written": True}, {"dealt": True}, {"reworked": True, "gathered": True})
    ),
    (
        ring_of("fill, fill", stored=("b",), at_once=True),
        "ring 'ring_1': fill comes where rework, store or pass_on is due, because at_once=True says that "
        "fills and second steps alternate; leave at_once out for another order",
    ),
    (
        ring_of("fill, rework, rework", stored=("b",), reworked=True, at_once=True),
        "ring 'ring_1': rework comes where fill is due, because at_once=True says that fills and second "
        "steps alternate; leave at_once out for another order",
    ),
    (
        ring_of(stored=("b",), at_once=True),
        "ring 'ring_1': store comes where fill is due, because at_once=True says that fills and second steps "
        "alternate; leave at_once out for another order",
    ),
    (
        ring_of("branches", stored=("b",), reworked=True, at_once=True),
        "ring 'ring_1': fill with reworked=… may take one of two second steps, but at_once=True has one "
        "cursor for both; leave at_once out",
    ),
]


@pytest.mark.parametrize(("misuse", "text"), REFUSED)
def test_misuse_is_refused(misuse: Callable[[], None], text: str) -> None:
    with refused(ConfigError, text):
        misuse()
