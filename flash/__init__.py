"""Attention kernels: a config, a kernel object that launches on arrays, and functions for both at
once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flash.cache.attention import attention_with_kvcache
    from flash.cache.cache import KVCache
    from flash.cache.step import DecodeStep
    from flash.decode.kernel import DecodeKernel
    from flash.decode.merge import merge_partials
    from flash.functions import attention, attention_varlen
    from flash.host.log_sums import lse_from_log2, lse_to_log2
    from flash.host.transfer import to_device
    from flash.kernel import AttentionKernel
    from flash.pages.csr import block_table_from_csr
    from flash.problem.config import AttentionConfig
    from flash.problem.rotary import rotary_tables

__all__ = [
    "AttentionConfig",
    "AttentionKernel",
    "DecodeKernel",
    "DecodeStep",
    "KVCache",
    "attention",
    "attention_varlen",
    "attention_with_kvcache",
    "block_table_from_csr",
    "lse_from_log2",
    "lse_to_log2",
    "merge_partials",
    "rotary_tables",
    "to_device",
]

_HOME: Final = {
    "AttentionConfig": "problem.config",
    "AttentionKernel": "kernel",
    "DecodeKernel": "decode.kernel",
    "DecodeStep": "cache.step",
    "KVCache": "cache.cache",
    "attention": "functions",
    "attention_varlen": "functions",
    "attention_with_kvcache": "cache.attention",
    "block_table_from_csr": "pages.csr",
    "lse_from_log2": "host.log_sums",
    "lse_to_log2": "host.log_sums",
    "merge_partials": "decode.merge",
    "rotary_tables": "problem.rotary",
    "to_device": "host.transfer",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: a program that only makes configs needs no
    kernel.
    """
    if name not in _HOME:
        raise AttributeError(f"module 'flash' has no attribute {name!r}; it has {', '.join(__all__)}")
    found = getattr(importlib.import_module(f"flash.{_HOME[name]}"), name)
    globals()[name] = found
    return found
