"""Attention for PyTorch: the functions of `flash` as operators that torch.compile, torch.export,
autograd, autocast and torch.func.vmap know.
"""

from __future__ import annotations

from flash.adapters.torch.cached import attention_with_kvcache, track
from flash.adapters.torch.dense import attention
from flash.adapters.torch.sdpa import replace_sdpa, scaled_dot_product_attention
from flash.adapters.torch.varlen import attention_varlen

__all__ = [
    "attention",
    "attention_varlen",
    "attention_with_kvcache",
    "replace_sdpa",
    "scaled_dot_product_attention",
    "track",
]
