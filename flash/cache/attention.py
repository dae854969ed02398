"""Attention of new queries to all keys of a KV cache, after optionally appending new keys."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

from flash.cache.cache import KVCache
from flash.cache.call import DEFAULTS, CachedArguments, CachedOptions, checked
from flash.cache.work import CachedWork
from flash.operands.dtype_names import A, AnyArray
from flash.scores.features import takes


@overload
def attention_with_kvcache(
    q: A,
    cache: KVCache,
    k: AnyArray | None = ...,
    v: AnyArray | None = ...,
    *,
    layer: int,
    return_lse: Literal[False] = ...,
    **arguments: Unpack[CachedOptions],
) -> A: ...
@overload
def attention_with_kvcache(
    q: A,
    cache: KVCache,
    k: AnyArray | None = ...,
    v: AnyArray | None = ...,
    *,
    layer: int,
    return_lse: Literal[True],
    **arguments: Unpack[CachedOptions],
) -> tuple[A, A]: ...
@overload
def attention_with_kvcache(
    q: A,
    cache: KVCache,
    k: AnyArray | None = ...,
    v: AnyArray | None = ...,
    *,
    layer: int,
    return_lse: bool = ...,
    return_max_logit: bool = ...,
    **arguments: Unpack[CachedOptions],
) -> A | tuple[A, ...]: ...
@takes(CachedArguments, **DEFAULTS)
def attention_with_kvcache(
    q: AnyArray,
    cache: KVCache,
    k: AnyArray | None = None,
    v: AnyArray | None = None,
    *,
    layer: int,
    **arguments: Unpack[CachedArguments],
) -> Any:
    """Append k and v, if they are given, to a layer of `cache`, and attend with q to all keys of
    this layer: out, or a tuple of out and of what else is asked for: lse with `return_lse`, then
    max_logit with `return_max_logit`.

    q is [batch, heads, seq_q, head_dim], k [batch, kv_heads, n, head_dim] and v [batch, kv_heads,
    n, head_dim_v]; heads is a multiple of kv_heads. All have the cache's dtype, or, for a cache of
    fp8, float32, float16 or bfloat16. `cache_batch_idx`, integers [batch], is the sequence of
    the cache that each batch item belongs to; by default all sequences, in order. Without k and v a
    sequence may occur several times. The result is an array of q's library and dtype, or `out`,
    [batch, heads, seq_q, head_dim_v]; lse is float32 [batch, heads, seq_q], the natural logarithm, and
    max_logit float32 [batch, heads], the largest score as in `AttentionKernel.launch`.

    Each sequence has its own length. Causality is bottom-right: the last query is at the position
    of the last key. `window`, `softcap`, `score_mod`, `mask_mod`, `aux`, `alibi_slopes`, `sink` and
    `softmax_scale` are those of `flash.attention`; functions count queries by their positions.
    `mask`, bool, broadcasts to [batch, heads, seq_q, m] and covers the last m keys of each sequence:
    whether a query sees them. If a sequence has fewer than m keys, the first columns are ignored;
    keys before the last m are visible. With `leftpad`, padding is no key. For a tree of speculative
    tokens use a mask with m = seq_q; causality and windows narrow it.

    `leftpad`, integers [batch]: the number of padding rows at the beginning of each sequence. They
    are no keys, and position 0 is the first row after them. A query at a padding row sees no key if
    causal.

    `rotary_cos` and `rotary_sin` [positions, rotary_dim / 2], float32, float16 or bfloat16, rotate
    the rows of q, and those of k before they are appended, each by its position
    (`flash/problem/rotary.py`). Rotated rows are rounded once, to their own dtype or the cache's.
    `rotary_interleaved`: whether columns 2 i and 2 i + 1 are rotated together, instead of i and i
    + rotary_dim / 2.

    `backend`: "auto" is the backend of the cache, which computes where the cache's memory is; a
    cache on the host also takes the others of "cpu", "compiled" and "interpreter". The kernels of
    "interpreter" and "cuda" require dense rows of q and out; for a cache of fp8 they
    require queries of 16 bits, head_dim and head_dim_v that are multiples of 8, and for e4m3 sm_89 or
    later. On a GPU all arrays are on the device of the cache, except k and v, which may be on the host unless
    there are rotary tables; these tables are then float32. Work is put on `stream`, by default the
    current one of q's library.

    `splits`: into how many parts kernels divide the keys, as in `DecodeKernel.launch`; "auto"
    chooses by the longest sequence of the call, or for a `DecodeStep` by the capacity of the cache. On
    "cpu" and "compiled" the result of a batch item depends neither on `splits` nor on the other items.

    Raises `LaunchError` with problems of the arguments, `ConfigError` for what `AttentionConfig`
    refuses and for unknown backends, `CacheFullError` if there is no room for k and v. After these
    and any other exception the cache is as it was; `out` may have been written.
    """
    task = checked(attention_with_kvcache, q, cache, k, v, layer, arguments, repeated=False)
    return CachedWork(task).once()
