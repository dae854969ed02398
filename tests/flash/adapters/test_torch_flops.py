"""FlopCounterMode counts attention as PyTorch counts its own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import flash

BATCH, HEADS, SEQ_Q, SEQ_K, DIM, DIM_V = 2, 4, 5, 9, 16, 8


def counted(call: Any) -> int:
    """The FLOPs of a call."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


@pytest.fixture
def arrays(torch: ModuleType) -> list[Any]:
    shapes = (SEQ_Q, DIM), (SEQ_K, DIM), (SEQ_K, DIM_V)
    return [torch.randn(BATCH, HEADS, *shape) for shape in shapes]


@pytest.mark.parametrize("with_gradients", [False, True])
def test_attention_is_counted_as_pytorchs_own(
    torch: ModuleType, arrays: list[Any], with_gradients: bool
) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from flash.adapters import torch as ours

    arrays[2] = torch.randn_like(arrays[1])  # PyTorch's fused kernels have one head_dim
    arguments = [x.requires_grad_(with_gradients) for x in arrays]

    def run(attend: Any) -> None:
        out = attend(*arguments)
        if with_gradients:
            out.sum().backward()

    with sdpa_kernel(SDPBackend.MATH):
        wanted = counted(lambda: run(torch.nn.functional.scaled_dot_product_attention))
    if with_gradients:  # the fused backward pass computes the scores again
        wanted += 2 * BATCH * HEADS * SEQ_Q * SEQ_K * DIM
    assert counted(lambda: run(ours.attention)) == wanted
    assert counted(lambda: run(ours.scaled_dot_product_attention)) == wanted
    rows = [x.transpose(1, 2) for x in arguments]
    assert counted(lambda: run(lambda *_: ours.attention(*rows, layout="bshd"))) == wanted


@pytest.mark.parametrize("paged", [False, True])
def test_packed_sequences_count_their_own_keys(torch: ModuleType, paged: bool) -> None:
    from flash.adapters import torch as ours

    def int32(*numbers: Any) -> Any:
        return torch.tensor(numbers, dtype=torch.int32)

    q, starts = torch.randn(5, HEADS, DIM), int32(0, 2, 5)
    if paged:
        k, v = torch.randn(4, 4, 2, DIM), torch.randn(4, 4, 2, DIM_V)
        how = {"block_table": int32([0, 1], [2, 3]), "seqused_k": int32(4, 7)}
        result = counted(lambda: ours.attention_varlen(q, k, v, starts, **how))
    else:
        k, v = torch.randn(13, 2, DIM), torch.randn(13, 2, DIM_V)
        result = counted(
            lambda: ours.attention_varlen(q, k, v, starts, int32(0, 4, 13), seqused_k=int32(4, 7))
        )
    assert result == 2 * HEADS * (2 * 4 + 3 * 7) * (DIM + DIM_V)


def test_queries_over_a_cache_count_its_keys(torch: ModuleType, flash_attn: Any) -> None:
    from flash.adapters import torch as ours

    cache = flash.KVCache(layers=2, batch=2, kv_heads=2, head_dim=DIM, capacity=8)
    new = torch.randn(2, 2, 3, DIM)
    q = torch.randn(2, HEADS, 3, DIM)
    ours.attention_with_kvcache(q, cache, new, new, layer=1)
    result = counted(lambda: ours.attention_with_kvcache(q, cache, new, new, layer=1))
    assert result == 2 * HEADS * 3 * (6 + 6) * 2 * DIM
    caches = torch.randn(2, 2, 8, 2, DIM)
    rows = q.transpose(1, 2)
    for lengths, keys in ((None, 16), (5, 10), (torch.tensor([3, 7], dtype=torch.int32), 10)):
        result = counted(
            lambda n=lengths: flash_attn.flash_attn_with_kvcache(rows, *caches.unbind(), cache_seqlens=n)
        )
        assert result == 2 * HEADS * 3 * keys * 2 * DIM


def test_lengths_that_nobody_knows_are_bounded(torch: ModuleType) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from flash.adapters import torch as ours

    with FakeTensorMode():
        q, k, v = (torch.empty(n, HEADS, dim) for n, dim in ((5, DIM), (13, DIM), (13, DIM_V)))
        starts = torch.zeros(3, dtype=torch.int32)
        result = [
            counted(lambda n=n: ours.attention_varlen(q, k, v, starts, starts, max_seqlen_k=n))
            for n in (None, 9)
        ]
    assert result == [2 * HEADS * 5 * keys * (DIM + DIM_V) for keys in (13, 9)]
