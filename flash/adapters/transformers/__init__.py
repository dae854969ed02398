"""Attention of Hugging Face's transformers by `flash`, with or without a `flash.KVCache`.

    from flash.adapters.transformers import cache_for, register

    register(model)  # attention and masks by flash
    cache = cache_for(model, batch=4, capacity=2048)  # keys and values in pages
    model.generate(**inputs, cache=cache)

Needs torch and transformers.
"""

from flash.adapters.transformers.attention import NAME, register
from flash.adapters.transformers.cache import FlashCache, cache_for

__all__ = ["NAME", "FlashCache", "cache_for", "register"]
