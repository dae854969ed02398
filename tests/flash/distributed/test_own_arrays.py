"""Functions of scores on ranks: the arrays by which they count positions are no concern of the caller's."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flash.mods import maximum, where
from ptxgen.errors import ConfigError, LaunchError

WORLD = 2
BOUND = 64 * 2.0**-24  # as in test_attention.py


def _no_index(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return maximum(score, 0.25)


def _no_position(score: Any, batch: Any, head: Any, query: Any, key: Any, gains: Any) -> Any:  # noqa: ARG001
    return score * gains[head]


def _of_keys(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return key % 3 != 1


def _of_queries(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return query % 4 != 1


def _of_heads(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return head != 1


_SEEN = np.arange(4) != 2


def _of_a_global(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return _SEEN[key % 4]


def _closing_over(gains: Any) -> Callable[..., Any]:
    return lambda score, batch, head, query, key: score * gains[head] + gains[key % 4]  # noqa: ARG005


def _score_of_batch(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return score + where(batch == 1, 0.5, 0.0)


FUNCTIONS: dict[str, dict[str, Any]] = {
    "a score_mod of no index": {"score_mod": _no_index},
    "a score_mod of an array": {"score_mod": _no_position},
    "a mask_mod of keys": {"mask_mod": _of_keys},
    "a mask_mod of queries": {"mask_mod": _of_queries},
    "a mask_mod of heads": {"mask_mod": _of_heads},
    "a score_mod of no index and a mask_mod of keys": {"score_mod": _no_index, "mask_mod": _of_keys},
    "a mask_mod that indexes a global": {"mask_mod": _of_a_global},
    "a score_mod that closes over a tensor": {"score_mod": _closing_over},
    "a score_mod of the batch and ALiBi": {"score_mod": _score_of_batch, "slopes": True},
}


def _on_ranks(call: Callable[[int], Any]) -> list[Any]:
    """What a call gives on each rank, or its error."""
    from thread_ranks import ThreadRanks

    return [rank.gave if rank.error is None else rank.error for rank in ThreadRanks(WORLD).run(call)]


def _given(torch: Any, name: str) -> dict[str, Any]:
    arguments = dict(FUNCTIONS[name])
    if arguments.get("score_mod") is _closing_over:
        arguments["score_mod"] = _closing_over(torch.tensor([0.5, 1.0, 1.5, 2.0]))
    if arguments.get("score_mod") is _no_position:
        arguments["aux"] = {"gains": torch.tensor([0.5, 1.0, 1.5, 2.0])}
    if arguments.pop("slopes", False):
        arguments["alibi_slopes"] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    return arguments


def _inputs(torch: Any, rows: int) -> list[Any]:
    make = torch.Generator().manual_seed(0)
    return [torch.randn((2, heads, rows, 8), generator=make) for heads in (4, 2, 2)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_may_read_any_index_or_none(torch: ModuleType, name: str) -> None:
    import flash
    from flash.distributed import ContextParallel

    arguments, whole = _given(torch, name), _inputs(torch, 24)

    def call(_: int) -> Any:
        cp = ContextParallel(None, "striped", "ring")
        return cp.unshard(cp.attention(*(cp.shard(t) for t in whole), causal=True, **arguments))

    want = flash.attention(*whole, causal=True, **arguments)
    for got in _on_ranks(call):
        torch.testing.assert_close(got, want, rtol=0, atol=BOUND * want.abs().max().item())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_cached_keys_may_read_any_index_or_none(torch: ModuleType, name: str) -> None:
    import flash
    from flash.distributed import ContextParallel, ShardedKVCache

    arguments, (q, k, v) = _given(torch, name), _inputs(torch, 9)

    def call(_: int) -> Any:
        cache = ShardedKVCache(ContextParallel(), 1, 2, 2, 8, 64, block=4)
        return cache.attention(q[:, :, -2:], 0, k, v, **arguments)

    want = flash.attention(q[:, :, -2:], k, v, causal=True, **_bottom_right(arguments))
    for got in _on_ranks(call):
        torch.testing.assert_close(got, want, rtol=0, atol=BOUND * want.abs().max().item())


def _bottom_right(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments for the last 2 of 9 queries alone, whose functions count queries from 0."""
    result = dict(given)
    if result.get("mask_mod") is _of_queries:
        result["mask_mod"] = lambda batch, head, query, key: _of_queries(batch, head, query + 7, key)
    return result


@pytest.mark.parametrize("function", [_no_index, _no_position])
def test_an_array_that_no_function_indexes_is_named_as_on_one_device(
    torch: ModuleType, function: Any
) -> None:
    import flash
    from flash.distributed import ContextParallel

    x = torch.ones(1, 4, 8, 8)
    aux = {"gains": torch.ones(4), "spare": torch.ones(4)} if function is _no_position else {"spare": x[0]}
    said = "attention: aux has 'spare', which neither score_mod nor mask_mod indexes; leave it out"
    with pytest.raises(ConfigError, match=re.escape(said)):
        flash.attention(x, x, x, score_mod=function, aux=aux)
    errors = _on_ranks(lambda _: ContextParallel().attention(x, x, x, score_mod=function, aux=aux))
    assert {(type(error), str(error)) for error in errors} == {(ConfigError, said)}


def test_an_array_with_the_name_of_one_of_the_librarys_is_refused(torch: ModuleType) -> None:
    from flash.distributed import ContextParallel, ShardedKVCache

    def of_places(score: Any, batch: Any, head: Any, query: Any, key: Any, shard_places: Any) -> Any:  # noqa: ARG001
        return score * shard_places[head]

    def of_queries(score: Any, batch: Any, head: Any, query: Any, key: Any, shard_queries: Any) -> Any:  # noqa: ARG001
        return score * shard_queries[head]

    x, each = torch.ones(1, 4, 8, 8), torch.ones(4)

    def cached(_: int) -> Any:
        cache = ShardedKVCache(ContextParallel(), 1, 1, 4, 8, 64)
        return cache.attention(x, 0, x, x, score_mod=of_queries, aux={"shard_queries": each})

    aux = {"shard_places": each}
    dense = _on_ranks(lambda _: ContextParallel().attention(x, x, x, score_mod=of_places, aux=aux))
    for errors, caller, name in (
        (dense, "ContextParallel", "shard_places"),
        (_on_ranks(cached), "ShardedKVCache", "shard_queries"),
    ):
        assert {(type(error), str(error)) for error in errors} == {
            (
                LaunchError,
                f"{caller}.attention: aux has '{name}', but names that begin with 'shard_' are those of "
                "arrays that attention across ranks adds; rename it",
            )
        }


def test_arrays_that_a_function_closes_over_are_compared_and_have_no_gradients(torch: ModuleType) -> None:
    from flash.distributed import ContextParallel

    x = torch.ones(1, 4, 8, 8)

    def differs(rank: int) -> Any:
        gains = torch.tensor([0.5, 1.0, 1.5, 2.0 + rank])
        return ContextParallel().attention(x, x, x, score_mod=_closing_over(gains))

    for error in _on_ranks(differs):
        assert isinstance(error, LaunchError)
        assert re.fullmatch(
            r"ContextParallel\.attention: all ranks must make the same call, and nothing was sent: "
            r"aux\['captured_0'\] is float32 \[4\] with digest \w{8} on rank 0, but float32 \[4\] with "
            r"digest \w{8} on rank 1",
            str(error),
        )

    def tracked(_: int) -> Any:
        return ContextParallel().attention(
            x, x, x, score_mod=_closing_over(torch.ones(4, requires_grad=True))
        )

    for error in _on_ranks(tracked):
        assert isinstance(error, LaunchError)
        assert str(error) == (
            "ContextParallel.attention: aux['captured_0'] requires gradients, but functions of scores are "
            "not differentiated by the arrays that they index; call inside torch.no_grad(), or pass "
            "aux['captured_0'].detach()"
        )
