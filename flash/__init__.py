"""Attention kernels: a config, a kernel object that launches on arrays, and functions for both at
once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flash.cached_attention import attention_with_kvcache
    from flash.config import AttentionConfig
    from flash.decode_kernel import DecodeKernel
    from flash.decode_step import DecodeStep
    from flash.functions import attention, attention_varlen
    from flash.kernel import AttentionKernel
    from flash.kv_cache import KVCache
    from flash.merge import merge_partials
    from flash.transfer import to_device

__all__ = [
    "AttentionConfig",
    "AttentionKernel",
    "DecodeKernel",
    "DecodeStep",
    "KVCache",
    "attention",
    "attention_varlen",
    "attention_with_kvcache",
    "merge_partials",
    "to_device",
]

_HOME: Final = {
    "AttentionConfig": "config",
    "AttentionKernel": "kernel",
    "DecodeKernel": "decode_kernel",
    "DecodeStep": "decode_step",
    "KVCache": "kv_cache",
    "attention": "functions",
    "attention_varlen": "functions",
    "attention_with_kvcache": "cached_attention",
    "merge_partials": "merge",
    "to_device": "transfer",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: a program that only makes configs needs no
    kernel.
    """
    if name not in _HOME:
        raise AttributeError(
            f"module 'flash' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    found = getattr(importlib.import_module(f"flash.{_HOME[name]}"), name)
    globals()[name] = found
    return found
