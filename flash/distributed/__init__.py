"""Attention to sequences that lie on several devices, on `torch.distributed`.

    ContextParallel(group, layout, scheme)   shards rows, and attends to the keys of all ranks
    attention(q, k, v, group=…)              one call of it, as a function
    ShardedKVCache(parallel, …)              a KV cache whose tokens lie on all ranks
    Sharding                                 which rows a rank holds
    Machine, Plan, Problem                   the cost rule: bytes, scores and estimates of a call
    Traffic                                  what a rank sent and computed

Nothing here is imported by `import flash`, and nothing but PyTorch is needed.
"""

from __future__ import annotations

from flash.distributed.cache import ShardedKVCache
from flash.distributed.exchange import Traffic
from flash.distributed.layouts import Sharding
from flash.distributed.parallel import ContextParallel, attention
from flash.distributed.plan import Machine, Plan, Problem

__all__ = [
    "ContextParallel",
    "Machine",
    "Plan",
    "Problem",
    "ShardedKVCache",
    "Sharding",
    "Traffic",
    "attention",
]
