"""What ranks send and compute, against formulas, with sizes that all differ; and limits of numbers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from ptxgen.errors import LaunchError

WORLD = 2
BATCH, HEADS, KV_HEADS, DIM, DIM_V, KEYS = 3, 4, 2, 8, 24, 10
ROWS = KEYS // WORLD  # of a rank
F32 = 4  # bytes
KV = DIM + DIM_V
KINDS = {"a head for all": 1, "all heads": HEADS}


def _on_ranks(call: Any) -> list[Any]:
    from thread_ranks import ThreadRanks

    result = ThreadRanks(WORLD).run(call)
    for rank in result:
        if rank.error is not None:
            raise rank.error
    return [rank.gave for rank in result]


def _inputs(torch: Any) -> list[Any]:
    """The rows of q, k and v of a rank."""
    make = torch.Generator().manual_seed(0)
    shapes = (BATCH, HEADS, ROWS, DIM), (BATCH, KV_HEADS, ROWS, DIM), (BATCH, KV_HEADS, ROWS, DIM_V)
    return [torch.randn(shape, generator=make).requires_grad_() for shape in shapes]


def _counted(torch: Any, scheme: Any, **arrays: Any) -> list[tuple[int, int, int, int]]:
    """Bytes and scores of each rank, forward and backward."""
    from flash.distributed import ContextParallel

    def call(_: int) -> tuple[int, int, int, int]:
        cp = ContextParallel(None, "contiguous", scheme)
        cp.attention(*_inputs(torch), **arrays).sum().backward()
        forward, backward = cp.traffic, cp.gradient_traffic
        return forward.bytes, forward.scores, backward.bytes, backward.scores

    return _on_ranks(call)


def test_a_ring_sends_keys_and_values_and_their_gradients(torch: ModuleType) -> None:
    moved = BATCH * KV_HEADS * ROWS * KV * F32
    scores = BATCH * HEADS * ROWS * KEYS
    assert _counted(torch, "ring") == [(moved, scores, 2 * moved, scores)] * WORLD


@pytest.mark.parametrize("heads", KINDS)
def test_an_exchange_of_heads_sends_tensors_and_arrays(torch: ModuleType, heads: str) -> None:
    of_q = BATCH * (HEADS // WORLD) * ROWS * F32  # times columns, to the other rank
    of_k = BATCH * (KV_HEADS // WORLD) * ROWS * F32
    scores = BATCH * (HEADS // WORLD) * KEYS * KEYS
    forward = of_q * DIM + of_k * KV + of_q * (DIM_V + 1)
    backward = of_q * (DIM_V + 1) + of_q * DIM + of_k * KV
    of_bias = BATCH * max(1, KINDS[heads] // WORLD) * ROWS * KEYS * F32
    of_mask = BATCH * max(1, KINDS[heads] // WORLD) * ROWS * KEYS
    bias = torch.zeros(BATCH, KINDS[heads], ROWS, KEYS)
    counts = _counted(torch, "ulysses", bias=bias, mask=torch.ones_like(bias, dtype=torch.bool))
    # Some ranks may differentiate by their LSE: here none does, and none sends its gradient.
    backward -= of_q
    assert counts == [(forward + of_bias + of_mask, scores, backward, scores)] * WORLD
    counts = _counted(torch, "ulysses", bias=bias.clone().requires_grad_())
    assert counts == [(forward + of_bias, scores, backward + of_bias, scores)] * WORLD


def test_explain_counts_the_columns_of_keys_and_of_values(torch: ModuleType) -> None:
    from flash.distributed import ContextParallel, Machine

    machine = Machine(flops=1e9, bandwidth=1e8, latency=1e-5)

    def explain(_: int) -> str:
        with torch.no_grad():
            return ContextParallel(None, "contiguous", "ring", machine=machine).explain(*_inputs(torch))

    scores = BATCH * HEADS * ROWS * KEYS
    computing = scores * 2 * KV / 1e9
    of_ring = BATCH * KV_HEADS * ROWS * KV * F32
    ring = (of_ring / 1e8 + 1e-5 + computing / 2) * 1e6
    of_heads = BATCH * ROWS * F32 * (2 * DIM + 1 * KV + 2 * (DIM_V + 1))
    heads = (of_heads / 1e8 + 2e-5 + computing) * 1e6
    most = "bytes sent by a rank at most,"
    for said in _on_ranks(explain):
        assert said.splitlines() == [
            f"{KEYS} queries and {KEYS} keys on 2 ranks, contiguous: 4 heads of q, 2 of k",
            "scheme ring, as asked",
            f"  ring     {of_ring:>14,} {most} {ring:,.1f} us estimated",
            f"  gather   {of_ring:>14,} {most} {ring:,.1f} us estimated",
            f"  ulysses  {of_heads:>14,} {most} {heads:,.1f} us estimated",
            f"scores of a rank: {scores:,} to {scores:,}, the most 1.000 of the mean",
            "estimates for 1e+09 flop/s, 1e+08 bytes/s and 1e-05 s a message",
        ]


def test_the_largest_seed_of_dropout_drops_what_it_drops_on_one_device(torch: ModuleType) -> None:
    import flash
    from flash.distributed import ContextParallel

    whole = [torch.cat([t.detach(), t.detach() * 2], dim=2) for t in _inputs(torch)]
    how: dict[str, Any] = {"dropout": 0.5, "dropout_seed": 2**64 - 1}

    def call(_: int) -> Any:
        cp = ContextParallel(None, "striped", "ring")
        return cp.unshard(cp.attention(*(cp.shard(t) for t in whole), **how))

    want = flash.attention(*whole, **how)
    for got in _on_ranks(call):
        torch.testing.assert_close(got, want, rtol=0, atol=64 * 2.0**-24 * want.abs().max().item())


@pytest.mark.parametrize("seed", [2**64, -1, 0.5])
def test_a_seed_of_dropout_that_is_no_number_of_64_bits_is_refused(torch: ModuleType, seed: Any) -> None:
    from thread_ranks import ThreadRanks

    from flash.distributed import ContextParallel

    x = torch.ones(1, 2, 4, 8)
    for rank in ThreadRanks(WORLD).run(
        lambda _: ContextParallel().attention(x, x, x, dropout=0.5, dropout_seed=seed)
    ):
        assert isinstance(rank.error, LaunchError)
        assert str(rank.error) == (
            "ContextParallel.attention: dropout needs a dropout_seed, an integer from 0 to 2**64 - 1 that is "
            f"the same on all ranks, got {seed}"
        )
