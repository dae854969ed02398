"""What roles do with the memory of tiles beside copies and products, waits behind arithmetic, and turns."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, SCHEDULES, is_noticed, launch, smem
from error_texts import refused

from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TypeMismatchError
from ptxgen.text import render
from ptxgen.types import f16, f32, pred, u32


def negated_product(threads: int = 384, *, pinned: bool = True) -> KernelBuilder:
    """C = -(A @ B) of 128 rows, and then D = C read back: A is negated where it has arrived, and C leaves
    through its memory.
    """
    k = KernelBuilder("negated", target="sm_90a", threads=threads)
    A, B, C = (k.tma.tensor_map(name, f16) for name in "ABC")
    c, d = k.pointer("c", f16), k.pointer("d", f16)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer", warpgroups=2)
    ring = k.tma.ring(1, producer, consumer, a=((128, 64), f16), b=((64, 32), f16))
    out = k.tma.tile("out", (128, 32), f16, over=ring.tile("a"))
    with producer, ring.fill() as stage:
        k.tma.load(stage.a, A[0, 0])
        k.tma.load(stage.b, B[0, 0])
    with consumer:
        first = consumer.warpgroup * 64
        arrived = ring.peek()
        for at in arrived.a.chunks(consumer.thread, consumer.threads):
            k.store(at, [word ^ 0x8000_8000 for word in k.load(at, 4)])
        arrived.close()
        k.fence_proxy_async(space="shared::cta")
        consumer.barrier.sync()
        acc = k.wgmma.accumulator(64, 32)
        total = k.var(f32, 1.0)
        with ring.drain() as stage:
            acc += stage.a.part(first, 64) @ stage.b
            total.set(total * 2)
            k.wgmma.wait(after=[total] if pinned else ())
        for row in acc.rows_of_thread:
            for v in row:
                v.set(v + total)
        consumer.barrier.sync()
        acc.write(out, first)
        k.tma.store(out, C[0, 0], visible=True)
        with k.loop(consumer.thread, 128 * 32, 256, type=u32) as i:
            d[i] = c[i]
    return k


def test_tiles_are_changed_where_they_arrive_and_their_memory_is_used_again() -> None:
    k = negated_product()
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (128, 64)).astype(np.float16), rng.integers(-4, 5, (64, 32)).astype(np.float16)
    c, d = np.zeros((2, 128, 32), np.float16)
    for schedule in SCHEDULES[:2]:
        launch(k, a, b, c, c, d, schedules=(schedule,))
        wanted = 2 - a.astype(np.float32) @ b.astype(np.float32)
        assert np.array_equal(c, wanted)
        assert np.array_equal(d, wanted)
    assert smem(k.build()) < (128 * 64 + 64 * 32) * 2 + 1024  # out has no memory of its own


def test_a_wait_behind_arithmetic_has_a_store_that_depends_on_it() -> None:
    text = render(negated_product().build())
    assert re.search(r"setp\.lt\.f32 (%p\d+), %f\d+, 0fFF800000;\s+@\1 st\.volatile\.shared\.f32", text)
    assert "st.volatile" not in render(negated_product(pinned=False).build())


def parts() -> Any:
    k = KernelBuilder("parts", target="sm_90a", threads=256)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    ring = k.tma.ring(2, producer, consumer, a=((64, 64), f16))
    return k, producer, consumer, ring


def test_a_tile_over_another_one_must_fit() -> None:
    k, _, _, ring = parts()
    with pytest.raises(
        ConfigError, match=r"'out': it needs 16384 bytes, aligned to 1024, but tile 'a' has 8192"
    ):
        k.tma.tile("out", (64, 128), f16, over=ring.tile("a"))


def stored_from(start: int, count: int, *, known: bool = True) -> KernelBuilder:
    """B = columns `start` to `start` + `count` - 1 of a tile of 256 columns, a copy of A."""
    k = KernelBuilder("stored_from", target="sm_90a", threads=256)
    of = {name: k.tma.tensor_map(name, f16, 2) for name in "AB"}
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    ring = k.tma.ring(1, producer, consumer, a=((16, 256), f16))
    with producer, ring.fill() as stage:
        k.tma.load(stage.a, of["A"][0, 0])
    with consumer, ring.drain() as stage:
        location = start if known else k.mov(start, type=u32)
        k.tma.store(stage.a.from_column(location, count), of["B"][0, 0])
    return k


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("start", [0, 64, 128])
def test_columns_of_a_tile_are_a_tile(start: int, known: bool) -> None:
    k = stored_from(start, 128, known=known)
    a = np.random.default_rng(0).standard_normal((16, 256)).astype(np.float16)
    b = np.zeros((16, 128), np.float16)
    launch(k, a, b, schedules=LOCKSTEP)
    np.testing.assert_array_equal(b, a[:, start : start + 128])


@pytest.mark.parametrize(("start", "count"), [(32, 64), (64, 32), (192, 128), (0, 0)])
def test_columns_of_a_tile_begin_with_a_slab(start: int, count: int) -> None:
    message = (
        "tile 'a': a part of its columns begins at a multiple of the 64 columns of a slab, a u32 value or an "
        f"int, and has a multiple of 64, of 256 in all; got start={start}, count={count}"
    )
    with refused(ConfigError, message):
        stored_from(start, count)


def gathered(places: Any, tile: tuple[int, ...] = (32, 64), maps: str = "AB") -> tuple[KernelBuilder, Any]:
    """B = the rows of a tile that is loaded from these places of A: [pages, rows, columns]."""
    k = KernelBuilder("gathered", target="sm_90a", threads=256)
    of = {name: k.tma.tensor_map(name, f16, 3) for name in maps}
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    ring = k.tma.ring(1, producer, consumer, a=(tile, f16))
    with producer, ring.fill() as stage:
        k.tma.load(stage.a, places(of))
    with consumer, ring.drain() as stage:
        k.tma.store(stage.a, of["B"][0, 0, 0])
    return k, of


def test_a_box_begins_at_a_multiple_of_16_bytes() -> None:
    rule = "the innermost coordinate of a box must be a multiple of 16 bytes, 8 elements of f16, got"
    for places in (lambda of: of["A"][1, 2, 4], lambda of: [of["A"][0, 0, 8], of["A"][0, 0, 4]]):
        with refused(ConfigError, f"tma.load: A: {rule} 4"):
            gathered(places)
    k = KernelBuilder("stored", target="sm_90a", threads=128)
    location, tile = k.tma.tensor_map("B", f16)[3, -1], k.tma.tile("tile", (8, 64), f16)
    with refused(ConfigError, f"tma.store: B: {rule} -1"):
        k.tma.store(tile, location)
    assert gathered(lambda of: of["A"][1, 2, -8])[0].tma.boxes()["A"].loads


def test_a_tile_may_be_loaded_from_several_places() -> None:
    pages = [3, 0, 2, 2]
    k, _ = gathered(lambda of: [of["A"][page, 8 * (n % 2), 0] for n, page in enumerate(pages)])
    boxes = k.tma.boxes()
    assert (boxes["A"].box, boxes["B"].box) == ((64, 8, 1), (64, 32, 1))
    a = np.random.default_rng(0).standard_normal((4, 16, 64)).astype(np.float16)
    b = np.zeros((1, 32, 64), np.float16)
    launch(k, a, b, schedules=LOCKSTEP)
    wanted = [a[page, 8 * (n % 2) : 8 * (n % 2) + 8] for n, page in enumerate(pages)]
    np.testing.assert_array_equal(b[0], np.concatenate(wanted))


@pytest.mark.parametrize(
    ("said", "places"),
    {
        "tma.load: it takes a tile and a place in a tensor, such as A[row, column], got": lambda _: [],
        "tma.load: it takes a tile and a place in a tensor": lambda of: [of["A"][0, 0, 0], 3],
        "the places of a tile must be in one tensor": lambda of: [of["A"][0, 0, 0], of["C"][0, 0, 0]],
        "each of 3 places must give a multiple of 8 rows, got tile 'a' with shape [32, 64]": lambda of: (
            [of["A"][0, 0, 0]] * 3
        ),
        "each of 8 places must give a multiple of 8 rows, got tile 'a' with shape [32, 64]": lambda of: (
            [of["A"][0, 0, 0]] * 8
        ),
    }.items(),
)
def test_places_of_a_tile_give_equal_shares_of_one_tensor(places: Any, said: str) -> None:
    with pytest.raises((ConfigError, TypeMismatchError), match=re.escape(said)):
        gathered(places, maps="ABC")


def test_a_peek_belongs_into_the_consumer_and_ends() -> None:
    k, producer, consumer, ring = parts()
    with producer, pytest.raises(TypeMismatchError, match="peek belongs into 'with' of the role 'consumer'"):
        ring.peek()
    with consumer:
        stage = ring.peek()
        stage.close()
        with pytest.raises(TypeMismatchError, match="tile 'a' of ring 'ring_1' is used after its drain"):
            _ = stage.a
        with pytest.raises(TypeMismatchError, match="wait: after must be f32 values, got 3"):
            k.wgmma.wait(after=[3])


def summed(tiles: int, *, trusts_all: bool = False) -> KernelBuilder:
    """c = the sum of the tiles of A, 64 x 32; the thread looks at the next stage before it adds one. With
    `trusts_all` it takes each stage for full.
    """
    k = KernelBuilder("summed", target="sm_90a", threads=256)
    A, c = k.tma.tensor_map("A", f32), k.pointer("c", f32)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    ring = k.tma.ring(2, producer, consumer, a=((64, 32), f32))
    with producer, k.loop(0, tiles, type=u32) as n, ring.fill() as stage:
        k.tma.load(stage.a, A[n * 64, 0])
    with consumer:
        is_full = k.var(pred, k.mov(int(trusts_all), type=u32) != 0)
        sums = [k.var(f32, 0.0) for _ in range(16)]
        with k.loop(0, tiles, type=u32):
            stage = ring.acquire(is_full)
            if not trusts_all:
                is_full.set(ring.look())
            chunks = stage.a.chunks(consumer.thread, consumer.threads)
            for total, x in zip(sums, (x for at in chunks for x in k.load(at, 4)), strict=True):
                total.set(total + x.as_(f32))
            stage.release()
        for i, total in enumerate(sums):
            c[consumer.thread * 16 + i] = total
    return k


@pytest.mark.parametrize("tiles", [1, 5])
def test_a_stage_is_waited_for_unless_a_look_saw_it_full(tiles: int) -> None:
    a = np.random.default_rng(0).integers(-4, 5, (tiles * 64, 32)).astype(np.float32)
    c = np.zeros(64 * 32, np.float32)
    k = summed(tiles)
    launch(k, a, c)
    assert np.array_equal(np.sort(c), np.sort(a.reshape(tiles, -1).sum(axis=0)))
    trusting = summed(tiles, trusts_all=True)
    assert is_noticed(trusting, render(trusting.build()), a, c)


def in_turns(warpgroups: int, turns: int, *, ends: bool = True) -> KernelBuilder:
    """Each turn appends the number of its warpgroup to a list, without atomics."""
    k = KernelBuilder("turns", target="sm_90a", threads=128 * (warpgroups + 1))
    out = k.pointer("out", u32)
    count = k.shared("count", (1, 1), u32)
    idle, role = k.warpgroup_role("idle"), k.warpgroup_role("working", warpgroups=warpgroups)
    with k.when(k.thread_id() == 0):
        count[0, 0] = 0
    k.barrier()
    with idle:
        pass
    with role:
        of = k.ping_pong(role)
        of.begin()
        with k.loop(0, turns), of.exclusive(), k.when(role.thread % 128 == 0):
            n = count[0, 0]
            out[n] = role.thread // 128
            count[0, 0] = n + 1
        if ends:
            of.end()
    return k


@pytest.mark.parametrize("warpgroups", [2, 3])
def test_warpgroups_take_turns_in_their_order(warpgroups: int) -> None:
    for schedule in SCHEDULES:
        result = np.full(4 * warpgroups, 99, np.uint32)
        launch(in_turns(warpgroups, 4), result, schedules=(schedule,))
        assert result.tolist() == list(range(warpgroups)) * 4


def test_turns_need_a_beginning_and_two_warpgroups() -> None:
    k, _, consumer, _ = parts()
    with pytest.raises(
        ConfigError, match="ping_pong: it takes a role of this kernel with two warpgroups or more"
    ):
        k.ping_pong(consumer)
    k = KernelBuilder("parts", target="sm_90a", threads=256)
    role = k.warpgroup_role("both", warpgroups=2)
    with role:
        order = k.ping_pong(role)
        with (
            pytest.raises(ConfigError, match=r"ping_pong\.exclusive is used before ping_pong\.begin\(\)"),
            order.exclusive(),
        ):
            pass
