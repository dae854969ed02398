"""Persistent CTAs: what `k.tile_scheduler` deals, with rings and roles, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.check.prove import prove
from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TypeMismatchError
from ptxgen.interpreter import PCT, run
from ptxgen.types import f32, u32

ROWS, TILE = 8, 32


def kernel(mirrored: bool = False) -> tuple[KernelBuilder, Any]:
    """Each tile of X has some boxes of rows; Y gets the sum of the rows of each."""
    k = KernelBuilder("sums", target="sm_90a", threads=64)
    X, Y = k.tma.tensor_map("X", f32), k.pointer("Y", f32)
    tiles, boxes = k.param("tiles", u32), k.param("boxes", u32)
    producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
    ring = k.tma.ring(2, producer, consumer, x=((ROWS, TILE), f32))
    scheduler = k.tile_scheduler(tiles, mirrored=mirrored)
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


@pytest.mark.parametrize("ctas", [1, 2, 3, 7, 9])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("schedule", ["lockstep", PCT(1)])
def test_any_number_of_ctas_takes_all_tiles(ctas: int, schedule: Any, mirrored: bool) -> None:
    k, module = kernel(mirrored)
    x = np.random.default_rng(0).integers(-9, 9, (7 * 3 * ROWS, TILE)).astype(np.float32)
    y = np.full((7, TILE), np.nan, np.float32)
    args = [k.tma.boxes()["X"].of(x), y, 7, 3]
    smem = module.kernels[0].dynamic_shared_bytes
    given = {"grid": (ctas, 1, 1), "block": (64, 1, 1), "dynamic_smem": smem, "schedule": schedule}
    run(module, "sums", args=[args[0], y, 7, 3], sanitize=True, **given)
    np.testing.assert_array_equal(y, x.reshape(7, -1, TILE).sum(1))


@pytest.mark.parametrize(
    ("mirrored", "wanted"), [(False, [0, 1, 2, 0, 1, 2, 0]), (True, [0, 1, 2, 2, 1, 0, 0])]
)
def test_rounds_are_dealt_from_one_end_or_from_both(mirrored: bool, wanted: list[int]) -> None:
    k = KernelBuilder("dealt", target="sm_80", threads=32)
    Y, scheduler = k.pointer("Y", u32), k.tile_scheduler(k.param("tiles", u32), mirrored=mirrored)
    with scheduler.tiles() as tile, k.when(k.thread_id() == 0):
        Y[tile] = k.block_id()
    y = np.full(8, 99, np.uint32)
    run(k.build(), "dealt", grid=(3, 1, 1), block=(32, 1, 1), args=[y, 7])
    assert y.tolist() == [*wanted, 99]


@pytest.mark.parametrize("mirrored", [False, True])
def test_barriers_of_roles_are_proved(mirrored: bool) -> None:
    k, module = kernel(mirrored)
    maps = {name: boxes.smallest() for name, boxes in k.tma.boxes().items()}
    found = prove(module, block=64, params=maps)
    assert found.shared.complete, found.shared.report()


def test_what_is_refused() -> None:
    k = KernelBuilder("wrong", target="sm_90a", threads=64)
    count = k.param("count", u32)
    wanted = (
        "tile_scheduler: the number of tiles must be a u32 value, such as k.param('tiles', u32), got 4; "
        "use k.mov(4, type=u32) for a number"
    )
    with pytest.raises(TypeMismatchError) as refused:
        k.tile_scheduler(4)  # type: ignore[arg-type]
    assert str(refused.value) == wanted
    scheduler = k.tile_scheduler(count)
    with (
        pytest.raises(ConfigError, match=r"^scheduler\.tiles is inside another one of the same scheduler$"),
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
