"""`flash_attn_with_kvcache`: attention to caches of keys and values, after appending new ones."""

from __future__ import annotations

from typing import Any

import torch

from flash.adapters.flash_attn.arguments import check_numbers, check_tensors, scores_of, tuned
from flash.adapters.flash_attn.calls import attend_cached
from flash.adapters.flash_attn.compiled import CacheOperators
from flash.adapters.flash_attn.newer import descale, require_absent
from flash.adapters.flash_attn.pages import Caches, paged
from flash.adapters.flash_attn.rotary import rotated
from flash.adapters.refusals import refuses_as_peers
from flash.adapters.torch.tensors import FP8, dense_rows
from flash.host.caller import flag, views_of
from ptxgen.arguments import integer
from ptxgen.errors import CacheFullError, LaunchError, shown

_CALLER = "flash_attn_with_kvcache"
_ARGUMENTS = 22  # of `_attend`


@refuses_as_peers
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Writes k and v, if they are given, to the caches, in place, and attends with q to all keys:
    out, or (out, lse) with `return_softmax_lse`, as `flash_attn_func` returns them.

    q [batch, seqlen_q, heads, head_dim]. k_cache [sequences, capacity, kv_heads, head_dim], or with
    block_table [pages, page_size, kv_heads, head_dim]; v_cache likewise, with head_dim_v. k [batch,
    n, kv_heads, head_dim] and v likewise. All are of one type, float16, bfloat16 or float32. A cache
    must have a dense last dimension. A call takes no time for rows of a cache that it does not
    read.

    cache_seqlens: how many rows each sequence has before the call, so without the n new rows (which
        `seqused_k` of `flash.DecodeKernel.launch` counts): an int, or int32 [batch]; None for all
        rows of the cache, if there are no new ones. New row i becomes row cache_seqlens + i.
    cache_batch_idx: int32 [batch], the sequence of each batch item, by default its index. With new
        rows each sequence may be that of one item only.
    cache_leftpad: int32 [batch], how many rows at the beginning of each sequence are no keys.
    block_table: int32 [sequences, n_pages]; row r of sequence s is row r % page_size of page
        block_table[s, r // page_size]. A page_size above 256 must have a divisor from 2 to 256.
    rotary_cos, rotary_sin: [positions, rotary_dim / 2], of any floating type, with a position for
        each row of a sequence. New row i of k is rotated by position cache_seqlens + i, padding
        rows counted, before it is written; query i likewise if causal or with a window, else each
        query by position cache_seqlens. Only with new rows, on which this takes a few operations of
        PyTorch.
    rotary_interleaved: whether columns 2 i and 2 i + 1 are rotated together, instead of i and
        i + rotary_dim / 2.
    num_splits: into how many parts the keys are divided, 0 for a choice by their number.

    Causality is bottom-right: the last query is at the last key, new rows included. All other
    arguments are those of `flash_attn_func`. Nothing waits for a GPU; there cache_seqlens,
    cache_batch_idx, cache_leftpad and block_table are not checked: whatever they hold, nothing
    outside the tensors is accessed.

    Raises `CacheFullError` if there is no room for the new rows, as far as lengths are on the host,
    and what `flash_attn_func` raises; the caches are then unchanged.
    """
    arguments = (
        q,
        k_cache,
        v_cache,
        k,
        v,
        rotary_cos,
        rotary_sin,
        cache_seqlens,
        cache_batch_idx,
        cache_leftpad,
        block_table,
        softmax_scale,
        causal,
        window_size,
        softcap,
        rotary_interleaved,
        alibi_slopes,
        num_splits,
        return_softmax_lse,
    )
    return attend_to_caches(*arguments)


def attend_to_caches(*args: Any) -> Any:
    """The result of `flash_attn_with_kvcache` for its arguments in order; rotary_seqlens, k_descale and
    v_descale of flash-attn 3 may follow them.
    """
    args += (None,) * (_ARGUMENTS - len(args))
    listens = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
    return _OPERATORS.call(args) if listens else _attend(*args)


def _attend(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    rotary_cos: object,
    rotary_sin: object,
    cache_seqlens: object,
    cache_batch_idx: object,
    cache_leftpad: object,
    block_table: object,
    softmax_scale: object,
    causal: object,
    window_size: object,
    softcap: object,
    rotary_interleaved: object,
    alibi_slopes: object,
    num_splits: object,
    return_softmax_lse: object,
    rotary_seqlens: object,
    k_descale: object,
    v_descale: object,
) -> Any:
    """The result of `attend_to_caches` for these arguments."""
    caches = _caches(q, k_cache, v_cache, k, v, block_table, cache_batch_idx)
    scores = scores_of(_CALLER, softmax_scale, causal, window_size, softcap, alibi_slopes)
    interleaved = flag(_CALLER, "rotary_interleaved", rotary_interleaved)
    before = _rows_before(cache_seqlens, caches, 0 if k is None else k.shape[1], q)
    operands: dict[str, Any] = {"seqused_k": before if k is None else before + k.shape[1]}
    for name, argument, value in (
        ("cache_batch_idx", "cache_batch_idx", cache_batch_idx),
        ("leftpad_k", "cache_leftpad", cache_leftpad),
    ):
        if value is not None:
            operands[name] = check_numbers(_CALLER, argument, value, (q.shape[0],))
    if rotary_cos is not None or rotary_sin is not None:
        cos, sin = _tables(rotary_cos, rotary_sin, caches, k, q.shape[3])
        assert k is not None  # or `_tables` raises
        first = before
        if rotary_seqlens is not None:
            first = check_numbers(_CALLER, "rotary_seqlens", rotary_seqlens, (q.shape[0],))
        at = first[:, None] + torch.arange(max(k.shape[1], q.shape[1]), device=q.device)
        grows = scores.causal or scores.window is not None
        of_q = at[:, : q.shape[1]] if grows else at[:, :1]
        q = rotated(q, cos, sin, of_q, interleaved=interleaved)
        k = rotated(k, cos, sin, at[:, : k.shape[1]], interleaved=interleaved)
    q, *new = (None if x is None else dense_rows(x) for x in (q, k, v))
    return attend_cached(
        _CALLER,
        q,
        caches.k,
        caches.v,
        scores,
        k=new[0],
        v=new[1],
        return_lse=flag(_CALLER, "return_softmax_lse", return_softmax_lse),
        block_table=caches.table,
        **tuned(_CALLER, num_splits),
        **operands,
        **_scales(q.shape[0], caches, k_scale=k_descale, v_scale=v_descale),
    )


def _caches(
    q: object, k_cache: Any, v_cache: Any, k: object, v: object, block_table: object, cache_batch_idx: object
) -> Caches:
    """The caches of a call, after a check of its tensors. Raises `LaunchError`."""
    rows = "sequences capacity" if block_table is None else "pages page_size"
    tensors: dict[str, tuple[object, str]] = {
        "q": (q, "batch seqlen_q heads head_dim"),
        "k_cache": (k_cache, f"{rows} kv_heads head_dim"),
        "v_cache": (v_cache, f"{rows} kv_heads head_dim_v"),
    }
    if (k is None) != (v is None):
        one, other = ("v", "k") if k is None else ("k", "v")
        raise LaunchError(f"{_CALLER}: {one} is given without {other}; give both, or neither")
    if k is not None:
        tensors |= {"k": (k, "batch n kv_heads head_dim"), "v": (v, "batch n kv_heads head_dim_v")}
    sizes = check_tensors(_CALLER, tensors, _caches_of_fp8(k_cache, v_cache))
    views_of({name: one for name, (one, _) in tensors.items()}, _CALLER)  # raises for gradients
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.stride(-1) != 1 and cache.shape[-1] > 1:
            raise LaunchError(
                f"{_CALLER}: {name} must have a dense last dimension, because it is used in place, got "
                f"strides {list(cache.stride())}; make it with torch.empty, in this layout"
            )
    if 0 in k_cache.shape:
        raise LaunchError(f"{_CALLER}: k_cache must have room for a row, got shape {list(k_cache.shape)}")
    if block_table is not None:
        return paged(_CALLER, k_cache, v_cache, block_table, sizes["page_size"])
    if cache_batch_idx is None:  # the cache may have room for a larger batch
        k_cache, v_cache = k_cache[: sizes["batch"]], v_cache[: sizes["batch"]]
    return Caches(k_cache, v_cache, None, sizes["capacity"])


def _caches_of_fp8(k_cache: object, v_cache: object) -> tuple[str, ...]:
    """The names of the caches if both are of one type of fp8, which queries are not."""
    kinds = {getattr(cache, "dtype", None) for cache in (k_cache, v_cache)}
    return ("k_cache", "v_cache") if len(kinds) == 1 and kinds <= {*FP8} else ()


def _scales(batch: int, caches: Caches, **descales: Any) -> dict[str, torch.Tensor]:
    """The scales of caches of fp8 for the heads of K, from those [batch, kv_heads] of flash-attn 3, by
    the names of `DecodeKernel.launch`; 1 for None. Raises `LaunchError` for scales of caches of other
    types, and for scales that differ between sequences, as far as that is known without waiting for a GPU.
    """
    narrow, heads = caches.k.dtype in FP8, caches.k.shape[2]
    scales = {}
    for name, value in descales.items():
        argument = name.replace("scale", "descale")
        if not narrow:
            require_absent(_CALLER, **{argument: value})
        elif value is None:
            scales[name] = torch.ones(heads, device=caches.k.device)
        else:
            rows = descale(_CALLER, argument, value, batch, heads)
            if batch > 1 and rows.stride(0) and (rows.device.type != "cpu" or (rows != rows[:1]).any()):
                raise LaunchError(
                    f"{_CALLER}: {argument} must be the same for each sequence, as {argument}[:1].expand("
                    f"{batch}, {heads}) is, because a cache has one scale for each head; got others"
                )
            scales[name] = rows[:1].reshape(-1).contiguous() if batch else rows.new_ones(heads)
    return scales


def _rows_before(lengths: object, caches: Caches, new: int, q: torch.Tensor) -> torch.Tensor:
    """How many rows each sequence has before the call: int32 [batch], or [1] for all sequences."""
    if lengths is None:
        if new:
            raise LaunchError(
                f"{_CALLER}: cache_seqlens must be given where there are new rows k and v: how many rows "
                "each sequence has before them"
            )
        lengths = caches.capacity
    count = None if isinstance(lengths, torch.Tensor) else integer(lengths, 0)
    if count is not None:
        _require_room(count, count, new, caches)
        return torch.full((1,), count, dtype=torch.int32, device=q.device)
    checked = check_numbers(_CALLER, "cache_seqlens", lengths, (q.shape[0],), "an integer, or ")
    if checked.device.type == "cpu" and checked.numel():
        _require_room(int(checked.min()), int(checked.max()), new, caches)
    return checked


def _require_room(least: int, most: int, new: int, caches: Caches) -> None:
    """Raise `LaunchError` if a sequence cannot have `least` or `most` rows, `CacheFullError` if there is no
    room for `new` rows after `most`.
    """
    if least < 0 or most > caches.capacity:
        raise LaunchError(
            f"{_CALLER}: cache_seqlens must be from 0 to {caches.capacity}, the rows of a sequence in the "
            f"cache, got {least if least < 0 else most}"
        )
    if most + new > caches.capacity:
        raise CacheFullError(
            f"{_CALLER}: a sequence of {most} rows has no room for {new} new ones in a cache of "
            f"{caches.capacity}; use a larger cache, or cache_seqlens without the new rows"
        )


def _tables(
    cos: object, sin: object, caches: Caches, k: object, head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotary tables, checked. Raises `LaunchError`."""
    if k is None:
        raise LaunchError(
            f"{_CALLER}: rotary_cos and rotary_sin are given without new rows k and v; rotate q before the "
            "call, or give k and v"
        )
    tables: Any = cos, sin
    are_tables = all(isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim() == 2 for x in tables)
    if are_tables and tables[0].shape == tables[1].shape:
        positions, half = tables[0].shape
        if positions >= caches.capacity and 1 <= half <= head_dim // 2:
            return tables[0], tables[1]
    got = [f"{x.dtype} of shape {list(x.shape)}" if isinstance(x, torch.Tensor) else shown(x) for x in tables]
    raise LaunchError(
        f"{_CALLER}: rotary_cos and rotary_sin must be floating-point tensors of one shape [positions, "
        f"rotary_dim / 2], with at least {caches.capacity} positions, the rows of a sequence in the cache, "
        f"and rotary_dim up to head_dim={head_dim}, got {got[0]} and {got[1]}"
    )


_OPERATORS = CacheOperators(_CALLER, _attend)
