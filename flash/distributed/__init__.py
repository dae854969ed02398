"""Attention to sequences that lie on several devices, on `torch.distributed`.

    ContextParallel(group, layout, scheme)   shards rows, and attends to the keys of all ranks
    attention(q, k, v, group=…)              one call of it, as a function
    ShardedKVCache(parallel, …)              a KV cache whose tokens lie on all ranks
    Sharding                                 which rows a rank holds
    Machine, Plan, Problem                   the cost rule: bytes, scores and estimates of a call
    Traffic                                  what a rank sent and computed

`import flash` imports nothing of it. The first three need PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
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

_HOME: Final = {
    "ContextParallel": "parallel",
    "Machine": "plan",
    "Plan": "plan",
    "Problem": "plan",
    "ShardedKVCache": "cache",
    "Sharding": "layouts",
    "Traffic": "exchange",
    "attention": "parallel",
}


def _public(name: str) -> object:
    """Import a public name when it is first used: a plan needs no PyTorch."""
    if name not in _HOME:
        raise AttributeError(
            f"module 'flash.distributed' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    public = getattr(importlib.import_module(f"flash.distributed.{_HOME[name]}"), name)
    globals()[name] = public
    return public


if not TYPE_CHECKING:  # for a type checker, any name would exist
    __getattr__ = _public


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
