"""The bytes, scores and choices of plans, against formulas."""

from __future__ import annotations

from typing import Any

import pytest

from flash.distributed.layouts import LAYOUTS, Sharding
from flash.distributed.plan import Machine, Plan, Problem, ScoreRows, chosen, plans
from flash.distributed.tiles import Limits
from ptxgen.errors import ConfigError

WORLDS = (2, 4, 8)
CAUSAL = Limits(None, 0)


def _problem(layout: str = "zigzag", world: int = 4, length: int = 4096, **more: Any) -> Problem:
    sizes = {"batch": 2, "heads": 8, "kv_heads": 8, "head_dim": 64, "head_dim_v": 64, "itemsize": 2, **more}
    return Problem(Sharding(layout, world), queries=length, keys=length, **sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("world", WORLDS)
def test_the_ring_sends_each_shard_to_all_others(layout: str, world: int) -> None:
    problem = _problem(layout, world)
    shard = 2 * 4096 // world * 8 * (64 + 64) * 2
    for rank in range(world):
        assert Plan(problem).bytes(rank) == (world - 1) * shard
        assert Plan(problem).gradient_bytes(rank) == 2 * (world - 1) * shard


@pytest.mark.parametrize("world", WORLDS)
def test_a_causal_zigzag_ring_sends_second_chunks_to_earlier_ranks_only(world: int) -> None:
    problem = _problem("zigzag", world, limits=CAUSAL)
    chunk = 2 * 4096 // (2 * world) * 8 * (64 + 64) * 2
    for rank in range(world):
        assert Plan(problem).bytes(rank) == (world - 1 + rank) * chunk


@pytest.mark.parametrize("world", WORLDS)
def test_ulysses_sends_four_tensors_and_lse_to_the_others(world: int) -> None:
    problem = _problem("striped", world)
    of_peer = 2 * 4096 // world * 8 // world * (4 * 64 * 2 + 4)
    for rank in range(world):
        assert Plan(problem, world).bytes(rank) == (world - 1) * of_peer


@pytest.mark.parametrize("world", WORLDS)
def test_ulysses_sends_the_rows_of_bias_and_mask_to_the_others(world: int) -> None:
    bias = ScoreRows("bias", 2, 8, 4096, 4, has_gradient=True)
    mask = ScoreRows("mask", 1, 1, 4096, 1)  # one head for all
    without, with_both = (
        Plan(_problem("striped", world, of_rows=rows), world) for rows in ((), (bias, mask))
    )
    rows = 4096 // world
    of_bias = (world - 1) * rows * 2 * 8 // world * 4096 * 4
    of_mask = (world - 1) * rows * 4096
    for rank in range(world):
        assert with_both.bytes(rank) - without.bytes(rank) == of_bias + of_mask
        assert with_both.gradient_bytes(rank) - without.gradient_bytes(rank) == of_bias
        assert with_both.scores(rank) == without.scores(rank)
    ring = Plan(_problem("striped", world, of_rows=(bias, mask)))
    assert ring.most_bytes() == Plan(_problem("striped", world)).most_bytes()


@pytest.mark.parametrize("world", WORLDS)
def test_rows_of_a_bias_are_one_message_more(world: int) -> None:
    # q, k and v, then the results; then the rows of arrays, bias and mask in one message.
    machine = Machine(flops=float("inf"), bandwidth=float("inf"), latency=1.0)
    bias, mask = ScoreRows("bias", 1, 1, 4096, 4), ScoreRows("mask", 1, 1, 4096, 1)
    for of_rows, messages in (((), 2), ((bias,), 3), ((mask,), 3), ((bias, mask), 3)):
        problem = _problem(world=world, of_rows=of_rows)
        assert Plan(problem, world).seconds(machine) == messages
        assert Plan(problem).seconds(machine) == world - 1
        assert Plan(problem, 2).seconds(machine) == messages + world // 2 - 1


def test_auto_counts_the_rows_of_a_bias() -> None:
    machine = Machine(flops=1e15, bandwidth=1e9, latency=1e-6)
    bias = ScoreRows("bias", 1, 1, 4096, 4)
    assert chosen(_problem(world=8), "auto", None, machine)[0] == "ulysses"
    assert chosen(_problem(world=8, of_rows=(bias,)), "auto", None, machine)[0] == "ring"


@pytest.mark.parametrize("layout", ["zigzag", "striped"])
@pytest.mark.parametrize("world", WORLDS)
def test_causal_work_is_even_within_three_hundredths(layout: str, world: int) -> None:
    plan = Plan(_problem(layout, world, limits=CAUSAL))
    work = [plan.scores(rank) for rank in range(world)]
    assert sum(work) == 2 * 8 * 4096 * 4097 // 2
    assert max(work) <= 1.03 * sum(work) / world


def test_contiguous_causal_work_is_uneven() -> None:
    plan = Plan(_problem("contiguous", 4, limits=CAUSAL))
    work = [plan.scores(rank) for rank in range(4)]
    assert max(work) > 1.7 * sum(work) / 4


@pytest.mark.parametrize("world", WORLDS)
def test_a_window_needs_the_neighbour_alone(world: int) -> None:
    problem = _problem("contiguous", world, limits=Limits(100, 0))
    plan = Plan(problem)
    for rank in range(world):
        sent = {step: plan.ring_bytes(rank, step) for step in plan.steps()}
        assert sent.pop(1) == (0 if rank == world - 1 else 2 * 100 * 8 * (64 + 64) * 2)
        assert not any(sent.values())


def test_memory_of_a_rank_does_not_grow_with_the_sequence() -> None:
    for world in WORLDS:
        plan = Plan(_problem("zigzag", world, length=512 * world, limits=CAUSAL))
        rows = [sum(s.stop - s.start for s in plan.asked(0, source)) for source in range(world)]
        assert max(rows) == 512
        assert plan.rows(0) == (512, 512)


def test_heads_that_ranks_cannot_share_are_said() -> None:
    problem = _problem(world=4, heads=6, kv_heads=3)
    assert problem.why_not(4) == "6 heads are not a multiple of 4 ranks"
    assert problem.why_not(3) == "3 does not divide the 4 ranks"
    assert problem.why_not(2) == "3 heads of a rank do not share whole heads of k, of which each has 2"
    assert set(plans(problem)) == {"ring", "gather"}


@pytest.mark.parametrize(
    ("scheme", "degree", "said"),
    [
        (
            "ulysses",
            None,
            "ContextParallel: scheme 'ulysses' cannot be used: 6 heads are not a multiple of 4 ranks; use "
            "scheme='ring', '2d' or 'auto'",
        ),
        (
            "2d",
            2,
            "ContextParallel: scheme '2d' with degree 2 cannot be used: 3 heads of a rank do not share whole "
            "heads of k, of which each has 2",
        ),
        (
            "2d",
            None,
            "ContextParallel: scheme '2d' cannot be used: no number between 1 and 4 divides the ranks and "
            "suits 6 heads of q, 3 of k; use scheme='ring' or 'auto'",
        ),
    ],
)
def test_a_scheme_that_cannot_compute_a_problem_is_refused(
    scheme: str, degree: int | None, said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        chosen(_problem(world=4, heads=6, kv_heads=3), scheme, degree, Machine())
    assert str(error.value) == said


def test_auto_takes_the_scheme_with_the_least_estimate() -> None:
    # Long sequences hide the ring; short ones with many heads exchange heads; few heads of k are gathered.
    assert chosen(_problem(length=1 << 20), "auto", None, Machine())[0] == "ring"
    slow_link = Machine(flops=1e15, bandwidth=1e9, latency=1e-6)
    assert chosen(_problem(length=4096, world=8), "auto", None, slow_link)[0] == "ulysses"
    few = _problem(length=4096, heads=32, kv_heads=1, world=4)
    assert chosen(few, "auto", None, Machine(latency=1e-3))[0] == "gather"


def test_an_estimate_is_the_longer_of_computing_and_receiving() -> None:
    problem = _problem("striped", 2, length=64, batch=1)
    machine = Machine(flops=1e6, bandwidth=1e6, latency=0.5)
    plan = Plan(problem)
    compute = 32 * 32 * 8 * 2 * 128 / 1e6
    moved = 32 * 8 * 128 * 2 / 1e6 + 0.5
    assert plan.seconds(machine) == pytest.approx(max(compute, moved) + compute)
