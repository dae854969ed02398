"""Persistent CTAs: what `k.tile_scheduler` deals or gives tickets for, with rings and roles, and what it
refuses.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, launch
from error_texts import refused

from ptxgen.check.prove import prove
from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TypeMismatchError
from ptxgen.interpreter import PCT
from ptxgen.types import f32, u32

ROWS, TILE = 8, 32


def kernel(order: str = "dealt") -> tuple[KernelBuilder, Any]:
    """Each tile of X has some boxes of rows; Y gets the sum of the rows of each."""
    k = KernelBuilder("sums", target="sm_90a", threads=64)
    X, Y = k.tma.tensor_map("X", f32), k.pointer("Y", f32)
    tiles, boxes = k.param("tiles", u32), k.param("boxes", u32)
    producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
    ring = k.tma.ring(2, producer, consumer, x=((ROWS, TILE), f32))
    counter = k.pointer("counter", u32)
    scheduler: Any = k.tile_scheduler(tiles, mirrored=order == "mirrored")
    if order == "ticket":
        scheduler = k.tile_scheduler(tiles, order=order, counter=counter, roles=(producer, consumer))
    with producer, scheduler.tiles() as tile, k.loop(0, boxes) as box, ring.fill() as stage:
        k.tma.load(stage.x, X[(tile * boxes + box) * ROWS, 0])
    with consumer, scheduler.tiles() as tile:
        total = k.var(f32, 0)
        with k.loop(0, boxes), ring.drain() as stage:
            for row in range(ROWS):
                total.set(total + stage.x[row, consumer.thread])
        Y[tile * TILE + consumer.thread] = total
        consumer.barrier.sync()
    return k, k.build()


def ran(order: str, ctas: int, schedule: Any) -> None:
    """Run the kernel twice with one counter, and compare its results with those of numpy."""
    k, _ = kernel(order)
    x = np.random.default_rng(0).integers(-9, 9, (7 * 3 * ROWS, TILE)).astype(np.float32)
    y, counter = np.full((7, TILE), np.nan, np.float32), np.zeros(1, np.uint32)
    for tiles in (7, 5):
        y[:] = np.nan
        launch(k, x, y, tiles, 3, counter, grid=ctas, schedules=(schedule,))
        np.testing.assert_array_equal(y[:tiles], x.reshape(7, -1, TILE).sum(1)[:tiles])
        assert not counter.any()


@pytest.mark.slow
@pytest.mark.sample(4, gate=6)
@pytest.mark.parametrize("ctas", [1, 2, 3, 7, 9])
@pytest.mark.parametrize("order", ["dealt", "mirrored", "ticket"])
@pytest.mark.parametrize("schedule", ["lockstep", PCT(1)])
def test_any_number_of_ctas_takes_all_tiles(ctas: int, schedule: Any, order: str) -> None:
    ran(order, ctas, schedule)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 22))
def test_tickets_are_right_in_every_order_of_warps(seed: int) -> None:
    ran("ticket", 1 + seed % 4, PCT(seed))


@pytest.mark.parametrize("schedule", ["lockstep", PCT(3)])
def test_a_cta_without_roles_takes_tickets_too(schedule: Any) -> None:
    k = KernelBuilder("taken", target="sm_80", threads=64)
    Y, count = k.pointer("Y", u32), k.param("tiles", u32)
    scheduler = k.tile_scheduler(count, order="ticket", counter=k.pointer("counter", u32))
    with scheduler.tiles() as tile:
        Y[tile * 64 + k.thread_id()] = tile
        k.barrier()
    y, counter = np.full((8, 64), 99, np.uint32), np.zeros(1, np.uint32)
    for _ in range(2):
        y[:] = 99
        launch(k, y, 7, counter, grid=3, schedules=(schedule,))
        assert y[:, ::63].T.tolist() == [[*range(7), 99]] * 2
        assert not counter.any()
    result = prove(k.build(), block=64)
    assert result.shared.complete, result.shared.report()


def taken_twice(with_roles: bool) -> Any:
    """A kernel of two schedulers: of the tiles of the first Y gets the number, of the second the double."""
    k = KernelBuilder("twice", target="sm_90a", threads=64)
    Y, counter = k.pointer("Y", u32), k.pointer("counter", u32)
    counts = (k.param("tiles", u32), k.param("more", u32))
    roles = (k.warp_role("one"), k.warp_role("other")) if with_roles else ()
    schedulers = [
        k.tile_scheduler(count, order="ticket", counter=counter.at(n), roles=roles)
        for n, count in enumerate(counts)
    ]
    for role in roles or (None,):
        with role or nullcontext():
            for n, scheduler in enumerate(schedulers):
                with scheduler.tiles() as tile:
                    Y[(tile * 2 + n) * 64 + k.thread_id()] = tile << n
    return k


@pytest.mark.sample(3, gate=6)
@pytest.mark.parametrize("with_roles", [False, True])
@pytest.mark.parametrize("schedule", ["lockstep", PCT(5), PCT(6)])
def test_two_schedulers_have_words_of_their_own(with_roles: bool, schedule: Any) -> None:
    k, counter = taken_twice(with_roles), np.zeros(2, np.uint32)
    how: Any = {"schedules": (schedule,), "max_instructions": 20_000}
    wanted = np.arange(7)[:, None, None] << np.arange(2)[None, :, None]
    for ctas in (1, 3):
        y = np.full((7, 2, 64), 99, np.uint32)
        launch(k, y, counter, 7, 5, grid=ctas, **how)
        assert not counter.any()
        assert (y[:5] == wanted[:5]).all()
        assert (y[5:, 0] == wanted[5:, 0]).all()
        assert (y[5:, 1] == 99).all()


@pytest.mark.parametrize("with_roles", [False, True])
def test_barriers_of_two_schedulers_are_proved(with_roles: bool) -> None:
    result = prove(taken_twice(with_roles).build(), block=64)
    assert result.shared.complete, result.shared.report()


@pytest.mark.parametrize(
    ("mirrored", "wanted"), [(False, [0, 1, 2, 0, 1, 2, 0]), (True, [0, 1, 2, 2, 1, 0, 0])]
)
def test_rounds_are_dealt_from_one_end_or_from_both(mirrored: bool, wanted: list[int]) -> None:
    k = KernelBuilder("dealt", target="sm_80", threads=32)
    Y, scheduler = k.pointer("Y", u32), k.tile_scheduler(k.param("tiles", u32), mirrored=mirrored)
    with scheduler.tiles() as tile, k.when(k.thread_id() == 0):
        Y[tile] = k.block_id()
    y = np.full(8, 99, np.uint32)
    launch(k, y, 7, grid=3, schedules=LOCKSTEP)
    assert y.tolist() == [*wanted, 99]


@pytest.mark.parametrize("order", ["dealt", "mirrored", "ticket"])
def test_barriers_of_roles_are_proved(order: str) -> None:
    k, module = kernel(order)
    maps = {name: boxes.smallest() for name, boxes in k.tma.boxes().items()}
    result = prove(module, block=64, params=maps)
    assert result.shared.complete, result.shared.report()


def test_what_is_refused() -> None:
    k = KernelBuilder("wrong", target="sm_90a", threads=64)
    count = k.param("count", u32)
    wanted = (
        "tile_scheduler: the number of tiles must be a u32 value, such as k.param('tiles', u32), got 4; "
        "use k.mov(4, type=u32) for a number"
    )
    with refused(TypeMismatchError, wanted):
        k.tile_scheduler(4)  # type: ignore[arg-type]
    scheduler = k.tile_scheduler(count)
    with (
        refused(ConfigError, "scheduler.tiles is inside another one of the same scheduler"),
        scheduler.tiles(),
        scheduler.tiles(),
    ):
        pass
    apart = "scheduler.tiles inside 'when': threads where the condition is false never arrive; move it out"
    with pytest.raises(TypeMismatchError, match=apart), k.when(k.thread_id() < 9), scheduler.tiles():
        pass
    role = k.warp_role("role", warps=2)
    inside = "scheduler.tiles inside 'when': all threads of the role 'role' must come here"
    with pytest.raises(TypeMismatchError, match=inside), role, k.when(role.lane < 9), scheduler.tiles():
        pass


def test_what_is_refused_of_tickets() -> None:
    k = KernelBuilder("wrong", target="sm_90a", threads=96)
    count, counter = k.param("count", u32), k.pointer("counter", u32)
    one, other = k.warp_role("one"), k.warp_role("other")
    wrong: Any = k.tile_scheduler
    for arguments, error, wanted in (
        (
            {"order": "any"},
            ConfigError,
            "tile_scheduler: order must be 'dealt', or 'ticket' without mirrored, got 'any', mirrored=False; "
            "counter and roles are those of tickets",
        ),
        (
            {"order": "ticket", "mirrored": True},
            ConfigError,
            "tile_scheduler: order must be 'dealt', or 'ticket' without mirrored, got 'ticket', "
            "mirrored=True; counter and roles are those of tickets",
        ),
        (
            {"order": "ticket", "counter": 5},
            TypeMismatchError,
            "tile_scheduler: tickets need counter=, a pointer to u32 in global memory, such as "
            "k.pointer('tickets', u32), got 5",
        ),
        (
            {"order": "ticket", "counter": counter, "roles": (one, one)},
            ConfigError,
            "tile_scheduler: roles must be different roles of this kernel, got (Role('one', warps 0 to 0), "
            "Role('one', warps 0 to 0))",
        ),
    ):
        with refused(error, wanted):
            wrong(count, **arguments)
    scheduler = k.tile_scheduler(count, order="ticket", counter=counter, roles=(one,))
    twice = (
        "scheduler.tiles with tickets is entered twice, but each CTA asks for a tile until there is none; "
        "put both bodies into one"
    )
    with one:
        with scheduler.tiles():
            pass
        with refused(ConfigError, twice), scheduler.tiles():
            pass
    elsewhere = (
        "scheduler.tiles must be entered in the roles 'one', but is in the role 'other'; give tile_scheduler "
        "the roles that come here: roles=(producer, consumer)"
    )
    with other, refused(ConfigError, elsewhere), scheduler.tiles():
        pass


@pytest.mark.parametrize("with_role", [False, True])
def test_tickets_are_asked_for_outside_of_loops_and_to_the_end(with_role: bool) -> None:
    k = KernelBuilder("wrong", target="sm_90a", threads=32)
    count, counter = k.param("count", u32), k.pointer("counter", u32)
    roles = (k.warp_role("one"),) if with_role else ()
    again, other = (
        k.tile_scheduler(count, order="ticket", counter=counter.at(n), roles=roles) for n in range(2)
    )
    dealt = k.tile_scheduler(count)
    inside = (
        "scheduler.tiles with tickets must be outside of loops, but is inside {}: each CTA asks for a tile "
        "until there is none, which it can do once; put the loop into the body of scheduler.tiles, or let "
        "the tiles be those of all rounds together"
    )
    with roles[0] if with_role else nullcontext():
        loops: tuple[tuple[str, Any], ...] = (
            ("loop", lambda: k.loop(0, 3)),
            ("while_", lambda: k.while_(lambda: count < 3, uniform=True)),
            ("dealt", dealt.tiles),
            ("while_", other.tiles),
        )
        for kind, around in loops:
            with around(), refused(ConfigError, inside.format(repr(kind))), again.tiles():
                pass
        left = (
            "break_if would leave scheduler.tiles with tickets, but the counter returns to 0 only if each "
            "CTA asks for a tile until there is none; put the rest of the body into 'with k.when(condition, "
            "uniform=True)'"
        )
        with again.tiles(), refused(TypeMismatchError, left):
            k.break_if(count < 3, uniform=True)


def test_two_schedulers_have_two_counters() -> None:
    k = KernelBuilder("wrong", target="sm_90a", threads=32)
    count, counter = k.param("count", u32), k.pointer("counter", u32)
    k.tile_scheduler(count, order="ticket", counter=counter.at(1))
    wanted = (
        "tile_scheduler: tickets need a counter of their own, but another scheduler of this kernel has the "
        "same, and a CTA that is done with one would take its numbers for the other; give each a counter=, "
        "such as counter.at(1)"
    )
    with refused(ConfigError, wanted):
        k.tile_scheduler(count, order="ticket", counter=counter.at(1))


def test_a_ticket_is_of_one_cta() -> None:
    k = KernelBuilder("wrong", target="sm_90a", threads=32, cluster=2)
    wanted = (
        "tile_scheduler: a ticket is one CTA's, but the kernel has clusters of 2; leave out order='ticket', "
        "or cluster="
    )
    with refused(ConfigError, wanted):
        k.tile_scheduler(k.param("count", u32), order="ticket", counter=k.pointer("counter", u32))


def in_turns() -> tuple[KernelBuilder, Any]:
    """Tile n has n + 1 boxes, of which two warpgroups add up the rows in turns; those of even boxes, then
    those of odd ones, some of them once more.
    """
    k = KernelBuilder("turns", target="sm_90a", threads=384)
    X, Y = k.tma.tensor_map("X", f32), k.pointer("Y", f32)
    tiles, again = k.param("tiles", u32), k.param("again", u32)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer", warpgroups=2)
    ring = k.tma.ring(2, producer, consumer, x=((ROWS, TILE), f32))
    scheduler = k.tile_scheduler(
        tiles, order="ticket", counter=k.pointer("counter", u32), roles=(producer, consumer)
    )
    with producer, scheduler.tiles() as tile:
        for first in (0, 1):
            with k.loop(first, tile + 1, 2) as box, ring.fill() as stage:
                k.tma.load(stage.x, X[box * ROWS, 0])
    with consumer, scheduler.tiles() as tile:
        total, column = k.var(f32, 0), consumer.thread % TILE
        order = k.ping_pong(consumer)
        order.begin()
        for first in (0, 1):
            with k.loop(first, tile + 1, 2) as box, ring.drain() as stage:
                with order.exclusive():
                    for row in range(ROWS):
                        total.set(total + stage.x[row, column])
                with k.when(again > box, uniform=True):
                    consumer.barrier.sync()
                    total.set(total + stage.x[0, column])
        order.end()
        Y[tile * 256 + consumer.thread] = total
    return k, k.build()


@pytest.mark.parametrize("schedule", ["lockstep", pytest.param(PCT(2), marks=pytest.mark.slow)])
def test_roles_with_turns_in_loops_over_a_tile_get_tickets(schedule: Any) -> None:
    k, _ = in_turns()
    x = np.random.default_rng(0).integers(-9, 9, (5, ROWS, TILE)).astype(np.float32)
    y, counter = np.full((5, 256), np.nan, np.float32), np.zeros(1, np.uint32)
    launch(k, x.reshape(-1, TILE), y, 5, 3, counter, grid=2, schedules=(schedule,))
    sums = [x[: n + 1].sum((0, 1)) + x[: min(n + 1, 3), 0].sum(0) for n in range(5)]
    assert np.array_equal(y, np.tile(sums, 8))
    assert not counter.any()


def test_barriers_of_turns_in_loops_over_a_tile_are_proved() -> None:
    k, module = in_turns()
    maps = {name: boxes.smallest() for name, boxes in k.tma.boxes().items()}
    result = prove(module, block=384, params=maps)
    assert result.shared.complete, result.shared.report()
