"""Attention of new queries to all keys of a cache, which their own may join first."""

from __future__ import annotations

from typing import Any

from flash.cache.cache import KVCache
from flash.cache.step import DecodeStep
from ptxgen.runtime.settings import AUTO


def attention_with_kvcache(
    q: object,
    cache: KVCache,
    k: object = None,
    v: object = None,
    *,
    layer: int,
    causal: bool | str = True,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    alibi_slopes: object = None,
    mask: object = None,
    sink: object = None,
    softmax_scale: float | None = None,
    cache_batch_idx: object = None,
    leftpad: object = None,
    rotary_cos: object = None,
    rotary_sin: object = None,
    rotary_interleaved: bool = False,
    return_lse: bool = False,
    out: object = None,
    splits: int | str = AUTO,
    backend: str = AUTO,
    stream: object = None,
) -> Any:
    """Append k and v to a layer of `cache`, if they are given, and attend to all that it then has:
    out, or (out, lse) with `return_lse`.

    q is [batch, heads, seq_q, head_dim], k [batch, kv_heads, n, head_dim] and v [batch, kv_heads,
    n, head_dim_v], heads a multiple of kv_heads; all of the cache's type, or if that is "e4m3" of
    float32, float16 or bfloat16. `cache_batch_idx` says which sequences of the cache they belong
    to, integers [batch]; by default all of them, in order. Without k and v it may name one several
    times. The result is of the kind and type of q, or `out`, [batch, heads, seq_q, head_dim_v]; lse
    float32 [batch, heads, seq_q], the natural logarithm.

    Each sequence has its own length. Causality is bottom-right: the last query is at the position
    of the last key. `window`, `softcap`, `alibi_slopes`, `sink` and `softmax_scale` are those of
    `flash.attention`. `mask`, bool, broadcasts to [batch, heads, seq_q, m]: whether a query sees
    the last m keys of its sequence, of which those before the first are left out; it sees all keys
    before these. With `leftpad` the first key is the first behind the padding. A tree of guesses is
    a mask with m = seq_q, which causality and windows narrow.

    `leftpad`, integers [batch]: so many keys at the beginning of a sequence are no keys but
    padding, and positions count from behind them. A query of padding sees no key if causal.

    `rotary_cos` and `rotary_sin` [positions, rotary_dim / 2], float32, float16 or bfloat16, turn
    the rows of k before they are appended and those of q, each by its position
    (`flash/problem/rotary.py`); they are then rounded once, to the types that they have, or the
    cache's. `rotary_interleaved`: whether columns 2 i and 2 i + 1 are turned together, not i and i
    + rotary_dim / 2.

    `backend`: "auto", that of the cache, which computes where its memory is; for a cache on the
    host also the other of "cpu" and "interpreter". The kernels of "interpreter" and "cuda" take
    rows of q and out that are dense, and a cache of "e4m3" with queries of 16 bits,
    head_dim and head_dim_v that are multiples of 8, from sm_89 on. On a GPU all arrays are on the
    device of the cache, but for k and v, which may be on the host; with rotary tables, of float32,
    they are not. Work is put on `stream`, by default the current one of q's library.

    `splits`: into how many parts kernels divide the keys, as in `DecodeKernel.launch`; "auto" goes
    by the longest sequence of the call. On "cpu" it does not matter, nor does the rest of the
    batch.

    Raises `LaunchError` with problems of the arguments, `ConfigError` for what `AttentionConfig`
    refuses and unknown backends, `CacheFullError` if there is no room for k and v. After these and
    any other exception the cache is as it was; `out` may have been written.
    """
    return _Once(
        q, cache, k, v, layer=layer, causal=causal, window=window, softcap=softcap,
        alibi_slopes=alibi_slopes, mask=mask, sink=sink, softmax_scale=softmax_scale,
        cache_batch_idx=cache_batch_idx, leftpad=leftpad, rotary_cos=rotary_cos,
        rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved, return_lse=return_lse,
        out=out, splits=splits, backend=backend, stream=stream,
    )()  # fmt: skip


class _Once(DecodeStep):
    """A step that is done once: parts are for the keys that there are then, and the small arrays of
    the next call may be where its own are.
    """

    _again = False
    _who = "attention_with_kvcache"
