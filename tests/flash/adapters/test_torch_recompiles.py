"""Integers that change from call to call compile a function twice: for the first, and for all others."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import flash

Call = Callable[[int], Any]


def calls(torch: ModuleType, flash_attn: Any) -> dict[str, Call]:
    """Calls with an integer argument."""
    from flash.adapters import torch as ours

    rows, heads = torch.randn(2, 5, 4, 16), torch.randn(2, 4, 5, 16)
    packed, cu = torch.randn(10, 4, 16), torch.tensor([0, 5, 10], dtype=torch.int32)
    k_cache, v_cache = torch.randn(2, 2, 16, 4, 16)
    cache = flash.KVCache(layers=8, batch=2, kv_heads=4, head_dim=16, capacity=8)
    ours.track(cache)

    def of_layer(n: int) -> Any:
        one = heads[:, :, :1]
        return ours.attention_with_kvcache(one, cache, one, one, layer=n)

    def over_cache(n: int) -> Any:
        return flash_attn.flash_attn_with_kvcache(rows, k_cache, v_cache, rows, rows, cache_seqlens=n)

    def with_gradients(n: int) -> Any:
        of = packed.clone().requires_grad_()
        ours.attention_varlen(of, packed, packed, cu, cu, max_seqlen_q=5 + n).sum().backward()
        return of.grad

    return {
        "max_seqlen_q": lambda n: ours.attention_varlen(packed, packed, packed, cu, cu, max_seqlen_q=5 + n),
        "max_seqlen": lambda n: flash_attn.flash_attn_varlen_func(
            packed, packed, packed, cu, cu, 5 + n, 5 + n
        ),
        "window": lambda n: ours.attention(heads, heads, heads, window=(n, 0)),
        "window_size": lambda n: flash_attn.flash_attn_func(rows, rows, rows, window_size=(n, 0)),
        "splits": lambda n: ours.attention(heads, heads, heads, splits=n),
        "num_splits": lambda n: flash_attn.flash_attn_func(rows, rows, rows, num_splits=n),
        "dropout_seed": lambda n: ours.attention(heads, heads, heads, dropout=0.1, dropout_seed=n),
        "layer": of_layer,
        "cache_seqlens": over_cache,
        "gradients": with_gradients,
    }


NAMES = (
    *("max_seqlen_q", "max_seqlen", "window", "window_size", "splits", "num_splits", "dropout_seed"),
    *("layer", "cache_seqlens", "gradients"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_integer_that_changes_is_not_compiled_anew(torch: ModuleType, flash_attn: Any, name: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    call = calls(torch, flash_attn)[name]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda n: call(n), backend=counter, fullgraph=name != "gradients")
    for n in range(2, 7):
        result = compiled(n)
        assert name == "layer" or torch.equal(result, call(n))
    assert counter.frame_count <= 2 * (1 + (name == "gradients"))
