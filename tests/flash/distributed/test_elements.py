"""Arrays that all ranks must have the same, of which one rank has another element."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from ptxgen.errors import LaunchError

WORLD = 3
OTHER = 2  # the rank that has another element
_SAME = "all ranks must make the same call, and nothing was sent"


def _errors(torch: Any, call: Callable[[int], Any]) -> list[str]:  # noqa: ARG001
    """What the ranks say, each of which raises `LaunchError`."""
    from thread_ranks import ThreadRanks

    result = ThreadRanks(WORLD).run(call)
    assert {type(rank.error) for rank in result} == {LaunchError}
    return [str(rank.error) for rank in result]


def _digest(x: Any) -> str:
    return hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest()[:8]


def _one_changed(x: Any) -> Any:
    """A copy whose last element is the next number."""
    result = x.clone()
    result.view(-1)[-1] = result.view(-1)[-1].nextafter(result.new_tensor(9.0))
    return result


def _words(name: str, x: Any) -> str:
    kind = f"float32 {list(x.shape)} with digest"
    return f"{name} is {kind} {_digest(x)} on ranks 0, 1, but {kind} {_digest(_one_changed(x))} on rank 2"


@pytest.mark.parametrize(
    ("name", "appended"), [("q", False), ("k", False), ("v", False), ("k", True), ("v", True)]
)
def test_tokens_of_a_cache_are_compared(torch: ModuleType, name: str, appended: bool) -> None:
    from flash.distributed import ContextParallel, ShardedKVCache

    make = torch.Generator().manual_seed(0)
    right = {n: torch.randn((2, heads, 1, 8), generator=make) for n, heads in (("q", 4), ("k", 2), ("v", 2))}
    lengths: dict[int, list[list[int]]] = {}

    def call(rank: int) -> Any:
        cache = ShardedKVCache(ContextParallel(), 1, 2, 2, 8, 64, block=4)
        cache.append(0, torch.ones(2, 2, 5, 8), torch.ones(2, 2, 5, 8))
        own = dict(right)
        if rank == OTHER:
            own[name] = _one_changed(own[name])
        try:
            if appended:
                cache.append(0, own["k"], own["v"])
            else:
                cache.attention(own["q"], 0, own["k"], own["v"])
        finally:
            lengths[rank] = cache.lengths.tolist()

    caller = f"ShardedKVCache.{'append' if appended else 'attention'}"
    assert _errors(torch, call) == [f"{caller}: {_SAME}: {_words(name, right[name])}"] * WORLD
    assert [lengths[rank] for rank in range(WORLD)] == [[[5, 5]]] * WORLD


@pytest.mark.parametrize("shape", [(1, 1, 1, 24), (1, 24), (24,)])
@pytest.mark.parametrize("name", ["bias", "mask"])
def test_a_bias_or_a_mask_of_one_row_is_compared(
    torch: ModuleType, name: str, shape: tuple[int, ...]
) -> None:
    from flash.distributed import ContextParallel

    right = torch.linspace(0, 1, 24).reshape(shape)
    x = torch.ones(1, 2, 8, 8)

    def call(rank: int) -> Any:
        array = _one_changed(right) if rank == OTHER else right
        if name == "mask":
            array = array <= 1.0
        return ContextParallel(None, "striped").attention(x, x, x, **{name: array})

    same, other = (
        _digest(array if name == "bias" else array <= 1.0) for array in (right, _one_changed(right))
    )
    if len(shape) > 1:
        told = f"{name} of 1 row must be the same on every rank, got elements with digests {same}, {same}, "
        told += f"{other} on ranks 0 to 2"
    else:
        kind = f"{'float32' if name == 'bias' else 'bool'} [24] with digest"
        told = f"{_SAME}: {name} without rows is {kind} {same} on ranks 0, 1, but {kind} {other} on rank 2"
    assert _errors(torch, call) == [f"ContextParallel.attention: {told}"] * WORLD


def test_rows_of_a_bias_that_are_one_on_each_rank_are_its_own(torch: ModuleType) -> None:
    from thread_ranks import ThreadRanks

    from flash.distributed import ContextParallel

    x = torch.zeros(1, 2, 1, 8)

    def call(rank: int) -> Any:
        bias = torch.zeros(1, 1, 1, WORLD)
        bias[..., rank] = 1000.0  # each query sees its own key
        return ContextParallel(None, "striped").attention(x, x, x + rank, bias=bias)

    for rank, result in enumerate(ThreadRanks(WORLD).run(call)):
        assert torch.equal(result.gave, x + rank)
