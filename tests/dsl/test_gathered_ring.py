"""Rings whose tiles the threads of the producer gather row by row, on the interpreter."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from dsl.kernels import SCHEDULES, changed, is_noticed, launch
from error_texts import refused

from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TypeMismatchError
from ptxgen.types import f16, f32, u32

ROWS, COLUMNS, LANES, WORD = 64, 64, 8, 16  # of a tile; lanes for a row, each with a word of 16 bytes
TILES, THREADS = 4, 128  # of a role
NOWHERE = 10**6  # rows behind the end of X
FENCE = "fence.proxy.async.shared::cta;"


def gathered() -> KernelBuilder:
    """C = sum of A[t] B[t] over tiles, of which B[t] has the rows `index`[t] of X; those behind the last one,
    `last`, are zeros.
    """
    k = KernelBuilder("gathered", target="sm_90a", threads=2 * THREADS)
    A = k.tma.tensor_map("A", f16)
    X, index, C, last = (
        k.pointer("X", f16),
        k.pointer("index", u32),
        k.pointer("C", f32),
        k.param("last", u32),
    )
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    left = k.tma.ring(2, producer, consumer, a=((64, ROWS), f16))
    right = k.tma.ring(2, producer, consumer, gathered=True, b=((ROWS, COLUMNS), f16))
    with producer, k.loop(0, TILES) as n:
        with left.fill() as stage:
            k.tma.load(stage.a, A[0, n * ROWS])
        with right.gather() as stage:
            row, lane = producer.thread // LANES, producer.thread % LANES
            for down in range(0, ROWS, THREADS // LANES):
                location = n.as_(u32) * ROWS + row + down
                result = k.load(index.element(location))
                size = k.selp(WORD, 0, result <= last, type=u32)
                k.copy_async(
                    stage.b.pointer(row + down, lane * LANES),
                    X.element(k.min(result, last) * COLUMNS + lane * LANES),
                    WORD,
                    size,
                )
    with consumer:
        acc = k.wgmma.accumulator(64, COLUMNS)
        with k.loop(0, TILES), left.drain() as one, right.drain() as other:
            acc += one.a @ other.b
            k.wgmma.wait()
        acc.store(C, COLUMNS)
    return k


def problem() -> tuple[Any, ...]:
    """A, X, the rows, C, and what it must be."""
    rng = np.random.default_rng(3)
    a = rng.integers(-4, 5, (64, TILES * ROWS)).astype(np.float16)
    x = rng.integers(-4, 5, (40, COLUMNS)).astype(np.float16)
    index = rng.integers(0, len(x), TILES * ROWS).astype(np.uint32)
    index[[7, 70, -1]] = NOWHERE
    b = np.where(index[:, None] < len(x), x[np.minimum(index, len(x) - 1)], 0)
    return a, x, index, np.full((64, COLUMNS), np.nan, np.float32), a.astype(np.float32) @ b


def test_rows_are_where_an_array_says() -> None:
    a, x, index, c, wanted = problem()
    for schedule in SCHEDULES[:2]:
        c[:] = np.nan
        launch(gathered(), a, x, index, c, len(x) - 1, schedules=(schedule,))
        np.testing.assert_array_equal(c, wanted)


MISTAKES = {
    "products do not see the copies": (re.escape(FENCE), "", 1),
    "copies are behind the fence of their thread": (
        rf"(?s)(cp\.async\.mbarrier[^;]*;)(.*){re.escape(FENCE)}",
        rf"{FENCE}\n\1\2",
        1,
    ),
    "nobody arrives": (r"cp\.async\.mbarrier[^;]*;", "", 1),
    "arrivals that the phase waits for in addition": (r"(cp\.async\.mbarrier\.arrive)\.noinc", r"\1", 1),
    "one thread need not arrive": (r"(mbarrier\.init[^;]*), 128;", r"\1, 127;", 2),
    "an arrival before the copies": (
        r"cp\.async(\.mbarrier\.arrive)\.noinc(\S+) ",
        r"mbarrier.arrive\2 _, ",
        1,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_sanitizers_see_a_gathered_ring_without_its_order(mistake: str) -> None:
    k, (a, x, index, c, _) = gathered(), problem()
    assert is_noticed(k, changed(k, *MISTAKES[mistake]), a, x, index, c, len(x) - 1)


def roles() -> tuple[KernelBuilder, Any, Any]:
    k = KernelBuilder("refused", target="sm_90a", threads=2 * THREADS)
    return k, k.warpgroup_role("producer"), k.warpgroup_role("consumer")


def test_another_way_to_fill_a_gathered_ring_is_refused() -> None:
    k, producer, consumer = roles()
    message = "ring: gathered=True is for copies by the threads of a CTA; leave out multicast and written"
    with refused(ConfigError, message):
        k.tma.ring(2, producer, consumer, gathered=True, written=True, b=((64, 64), f16))


def test_fill_and_gather_are_not_mixed_up() -> None:
    k, producer, consumer = roles()
    plain = k.tma.ring(2, producer, consumer, a=((64, 64), f16))
    ring = k.tma.ring(2, producer, consumer, gathered=True, b=((64, 64), f16))
    with producer:
        message = "ring 'ring_2': fill is for copies of tensors; this ring uses gather"
        with refused(ConfigError, message), ring.fill():
            pass
        message = "ring 'ring_1': gather is for rings made with gathered=True; use fill"
        with refused(ConfigError, message), plain.gather():
            pass
    message = (
        "ring 'ring_2': gather belongs into 'with' of the role 'producer', but is in the role 'consumer'"
    )
    with consumer, refused(TypeMismatchError, message), ring.gather():
        pass
