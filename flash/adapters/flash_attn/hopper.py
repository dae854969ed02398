"""The functions of flash-attn 3 for PyTorch tensors, computed by this project's kernels.

Names, order and defaults of the arguments are those of `hopper/flash_attn_interface.py`
(https://github.com/Dao-AILab/flash-attention), so that a program changes one import:

    from flash.adapters.flash_attn.hopper import flash_attn_func

`pack_gqa`, `sm_margin` and `scheduler_metadata`, which choose how a GPU works, are taken and change nothing.
`qv`, `cu_seqlens_k_new`, and `attention_chunk` over a cache raise `LaunchError`, which is also a
RuntimeError; `docs/migration.md` has each argument.
"""

from __future__ import annotations

from typing import Any

import torch

import flash
from flash.adapters.flash_attn.arguments import Scores, check_numbers, check_tensors, scores_of, tensor
from flash.adapters.flash_attn.calls import attend, attend_narrow, attend_paged, attend_varlen, chosen_backend
from flash.adapters.flash_attn.kvcache import attend_to_caches
from flash.adapters.flash_attn.newer import (
    in_chunks,
    renaming,
    require_absent,
    rows_of,
    scales_of_fp8,
    tuned_as_newer,
    used_of,
)
from flash.adapters.flash_attn.pages import paged
from flash.adapters.refusals import refuses_as_peers
from flash.adapters.torch.tensors import FP8, dense_rows
from flash.host.caller import flag
from ptxgen.arguments import integer
from ptxgen.errors import LaunchError, shown

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]


@refuses_as_peers
def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """`flash.adapters.flash_attn.flash_attn_func` with the arguments of flash-attn 3.

    q, k, v: also of fp8, with `q_descale`, `k_descale` and `v_descale`, float32
        [batch, kv_heads], above 0, by which their numbers are multiplied; 1 for None. The result is
        bfloat16, and there are no gradients.
    attention_chunk: if above 0, query i sees only keys of its chunk: the `attention_chunk` keys, from a
    multiple of that number on, that the key i + seqlen_k - seqlen_q belongs to.
    num_splits: 1 by default, so that the bits of a row do not depend on the batch.
    qv: None; anything else is refused.
    pack_gqa, sm_margin: checked, and change nothing.

    Returns out, or with `return_attn_probs` (out, lse [batch, heads, seqlen_q]). Raises what
    `flash.adapters.flash_attn.flash_attn_func` raises.
    """
    caller = "flash_attn_func"
    require_absent(caller, qv=qv)
    sizes = check_tensors(
        caller,
        {
            "q": (q, "batch seqlen_q heads head_dim"),
            "k": (k, "batch seqlen_k kv_heads head_dim"),
            "v": (v, "batch seqlen_k kv_heads head_dim_v"),
        },
        _narrow_names(q),
    )
    scores = scores_of(caller, softmax_scale, causal, window_size, softcap, None)
    with_lse = flag(caller, "return_attn_probs", return_attn_probs)
    options = tuned_as_newer(caller, num_splits, pack_gqa, sm_margin)
    ahead = sizes["seqlen_k"] - sizes["seqlen_q"]
    chunks = in_chunks(caller, attention_chunk, ahead, sizes["batch"], q.device)
    q, k, v = (dense_rows(x) for x in (q, k, v))
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    if _narrow_names(q):
        scales = scales_of_fp8(caller, (q, k, v), sizes["batch"], sizes["kv_heads"], **descales)
        return attend_narrow(caller, q, k, v, scores, return_lse=with_lse, **options, **chunks, **scales)
    require_absent(caller, **descales)
    return attend(
        caller, q, k, v, scores, deterministic=deterministic, return_lse=with_lse, **options, **chunks
    )


@refuses_as_peers
def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of q, k and v in one tensor `qkv`, which is not copied: [batch, seqlen, 3, heads,
    head_dim], or with `num_heads_q` [batch, seqlen, num_heads_q + 2 kv_heads, head_dim]. All other
    arguments, results and exceptions are those of `flash_attn_func`.
    """
    caller = "flash_attn_qkvpacked_func"
    if num_heads_q is None:
        check_tensors(caller, {"qkv": (qkv, "batch seqlen 3 heads head_dim")}, _narrow_names(qkv))
        q, k, v = qkv.unbind(2)
    else:
        sizes = check_tensors(caller, {"qkv": (qkv, "batch seqlen heads head_dim")}, _narrow_names(qkv))
        heads = integer(num_heads_q, 1, sizes["heads"] - 2)
        if heads is None or (sizes["heads"] - heads) % 2:
            raise LaunchError(
                f"{caller}: num_heads_q must leave as many heads of k as of v among {sizes['heads']}, "
                f"got {shown(num_heads_q)}"
            )
        kv_heads = (sizes["heads"] - heads) // 2
        q, k, v = qkv.split([heads, kv_heads, kv_heads], 2)
    return flash_attn_func(
        q,
        k,
        v,
        softmax_scale,
        causal,
        None,
        q_descale,
        k_descale,
        v_descale,
        window_size,
        attention_chunk,
        softcap,
        deterministic=deterministic,
        sm_margin=sm_margin,
        return_attn_probs=return_attn_probs,
    )


@refuses_as_peers
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of packed sequences: q [total_q, heads, head_dim], k [total_k, kv_heads,
    head_dim], v [total_k, kv_heads, head_dim_v].

    cu_seqlens_q, cu_seqlens_k: int32 [batch + 1]; sequence b has the rows cu_seqlens[b] to
        cu_seqlens[b + 1] - 1.
    seqused_q, seqused_k: int32 [batch], of how many of these rows each sequence consists; None for all.
    max_seqlen_q, max_seqlen_k: at least the most queries and keys of a sequence.
    num_splits: 1 by default, so that the bits of a row do not depend on the batch; keys of packed sequences
        are not divided.

    All other arguments and the exceptions are those of `flash_attn_func`. Returns out [total_q, heads,
    head_dim_v], in which rows of no sequence are not written, or with `return_attn_probs` (out, lse
    [heads, total_q]).
    """
    caller = "flash_attn_varlen_func"
    require_absent(caller, qv=qv)
    sizes = check_tensors(
        caller,
        {
            "q": (q, "total_q heads head_dim"),
            "k": (k, "total_k kv_heads head_dim"),
            "v": (v, "total_k kv_heads head_dim_v"),
        },
        _narrow_names(q),
    )
    cu_q = check_numbers(caller, "cu_seqlens_q", cu_seqlens_q, ("batch + 1",))
    cu_k = check_numbers(caller, "cu_seqlens_k", cu_seqlens_k, (cu_q.numel(),))
    batch = max(cu_q.numel() - 1, 0)
    used = used_of(caller, batch, seqused_q=seqused_q, seqused_k=seqused_k)
    longest: dict[str, Any] = {
        "max_seqlen_q": rows_of(caller, "max_seqlen_q", max_seqlen_q),
        "max_seqlen_k": rows_of(caller, "max_seqlen_k", max_seqlen_k),
    }
    scores = scores_of(caller, softmax_scale, causal, window_size, softcap, None)
    with_lse = flag(caller, "return_attn_probs", return_attn_probs)
    options = tuned_as_newer(caller, num_splits, pack_gqa, sm_margin, packed=True)
    lengths = [used.get(f"seqused_{n}", cu.diff()) for n, cu in (("q", cu_q), ("k", cu_k))]
    chunks = in_chunks(caller, attention_chunk, lengths[1] - lengths[0], batch, q.device)
    q, k, v = (dense_rows(x) for x in (q, k, v))
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    if _narrow_names(q):
        scales = scales_of_fp8(caller, (q, k, v), batch, sizes["kv_heads"], **descales)
        del longest["max_seqlen_k"]
        return attend_narrow(
            caller,
            q,
            k,
            v,
            scores,
            return_lse=with_lse,
            **options,
            cu_seqlens_q=cu_q,
            cu_seqlens_k=cu_k,
            **longest,
            **used,
            **chunks,
            **scales,
        )
    require_absent(caller, **descales)
    return attend_varlen(
        caller,
        q,
        k,
        v,
        cu_q,
        cu_k,
        scores,
        deterministic=deterministic,
        return_lse=with_lse,
        **options,
        **longest,
        **used,
        **chunks,
    )


@refuses_as_peers
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: torch.Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """`flash.adapters.flash_attn.flash_attn_with_kvcache` with the arguments of flash-attn 3, where
    `page_table` is its `block_table`.

    rotary_seqlens: int32 [batch], the position of the first new row of each sequence; None for
        cache_seqlens.
    k_cache, v_cache: also of fp8 below queries of 16 bits, with `k_descale` and
        `v_descale`, float32 [batch, kv_heads] with the same row for each sequence; 1 for None. New rows
        are divided by them.
    cu_seqlens_q: int32 [batch + 1]; q is then packed, [total_q, heads, head_dim], with at most `max_seqlen_q`
        queries of a sequence, which must be given for tensors on a GPU. Without new rows, rotary tables,
        `cache_batch_idx` and `cache_leftpad`, and for caches of the type of q.
    qv, cu_seqlens_k_new, attention_chunk: None and 0; anything else is refused, and so is `q_descale`.
    scheduler_metadata, pack_gqa, sm_margin: checked, and change nothing.

    Returns out, or with `return_softmax_lse` (out, lse). Raises what
    `flash.adapters.flash_attn.flash_attn_with_kvcache` raises.
    """
    caller = "flash_attn_with_kvcache"
    require_absent(caller, qv=qv, cu_seqlens_k_new=cu_seqlens_k_new, q_descale=q_descale)
    require_absent(caller, default=0, attention_chunk=attention_chunk)
    tuned_as_newer(caller, num_splits, pack_gqa, sm_margin, scheduler_metadata)
    with renaming(block_table="page_table"):
        if cu_seqlens_q is None:
            return attend_to_caches(
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
                page_table,
                softmax_scale,
                causal,
                window_size,
                softcap,
                rotary_interleaved,
                None,
                num_splits,
                return_softmax_lse,
                rotary_seqlens,
                k_descale,
                v_descale,
            )
        not_of_packed = {
            "k": k,
            "v": v,
            "rotary_cos": rotary_cos,
            "rotary_sin": rotary_sin,
            "rotary_seqlens": rotary_seqlens,
            "cache_batch_idx": cache_batch_idx,
            "cache_leftpad": cache_leftpad,
            "k_descale": k_descale,
            "v_descale": v_descale,
        }
        refused = [name for name, value in not_of_packed.items() if value is not None]
        if refused:
            raise LaunchError(
                f"{caller}: {' and '.join(refused)} must be None where cu_seqlens_q packs the queries; give "
                "q as [batch, seqlen_q, heads, head_dim], or append and rotate with flash.KVCache before the "
                "call"
            )
        scores = scores_of(caller, softmax_scale, causal, window_size, softcap, None)
        return _packed_queries(
            caller,
            q,
            k_cache,
            v_cache,
            cache_seqlens,
            page_table,
            cu_seqlens_q,
            max_seqlen_q,
            scores,
            flag(caller, "return_softmax_lse", return_softmax_lse),
        )


def _packed_queries(
    caller: str,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: object,
    page_table: object,
    cu_seqlens_q: object,
    max_seqlen_q: object,
    scores: Scores,
    with_lse: bool,
) -> Any:
    """The result of `flash_attn_with_kvcache` for packed queries."""
    rows = "sequences capacity" if page_table is None else "pages page_size"
    sizes = check_tensors(
        caller,
        {
            "q": (q, "total_q heads head_dim"),
            "k_cache": (k_cache, f"{rows} kv_heads head_dim"),
            "v_cache": (v_cache, f"{rows} kv_heads head_dim_v"),
        },
    )
    starts = check_numbers(caller, "cu_seqlens_q", cu_seqlens_q, ("batch + 1",))
    batch = max(starts.numel() - 1, 0)
    if page_table is None:  # a sequence is one page
        size = sizes["capacity"]
        page_table = torch.arange(batch, dtype=torch.int32, device=q.device)[:, None]
    else:
        size = sizes["page_size"]
    caches = paged(caller, k_cache, v_cache, page_table, size)
    count = caches.capacity if cache_seqlens is None else integer(cache_seqlens, 0, caches.capacity)
    if isinstance(cache_seqlens, torch.Tensor) or count is None:
        used = check_numbers(caller, "cache_seqlens", cache_seqlens, (batch,), "an integer, or ")
    else:
        used = torch.full((batch,), count, dtype=torch.int32, device=q.device)
    return attend_paged(
        caller,
        dense_rows(q),
        caches.k,
        caches.v,
        starts,
        scores,
        block_table=caches.table,
        seqused_k=used,
        max_seqlen_q=rows_of(caller, "max_seqlen_q", max_seqlen_q),
        return_lse=with_lse,
    )


@refuses_as_peers
def flash_attn_combine(
    out_partial: torch.Tensor,
    lse_partial: torch.Tensor,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The results for all keys of those for parts of the keys: `flash.merge_partials` of out_partial
    [parts, batch, seqlen, heads, head_dim_v] and lse_partial, float32 [parts, batch, seqlen, heads], or both
    without batch. The result is of `out_dtype`, by default that of the parts, and in `out` if it is given.

    Returns (out, lse). Raises what `flash.merge_partials` raises, in the name of this function.
    """
    caller = "flash_attn_combine"
    parts, lses = tensor(caller, "out_partial", out_partial), tensor(caller, "lse_partial", lse_partial)
    if not isinstance(out_dtype, torch.dtype | None):
        raise LaunchError(
            f"{caller}: out_dtype must be a torch.dtype, or None for that of out_partial, got "
            f"{shown(out_dtype)}"
        )
    if out is None:
        out = torch.empty(parts.shape[1:], dtype=out_dtype or parts.dtype, device=parts.device)
    elif out_dtype not in (None, tensor(caller, "out", out).dtype):
        raise LaunchError(
            f"{caller}: out_dtype must be that of out, {out.dtype}, got {out_dtype}; leave it out"
        )
    with renaming(merge_partials=caller, outs="out_partial", lses="lse_partial"):
        return flash.merge_partials(parts, lses, out=out, backend=chosen_backend())


def get_scheduler_metadata(*_: Any, **__: Any) -> None:
    """None, whatever the arguments of flash-attn 3's function of this name are: kernels read lengths when
    they run, so that there is nothing to plan. Functions of this module take it as
    `scheduler_metadata`.
    """


def _narrow_names(first: object) -> tuple[str, ...]:
    """The names of tensors that may be of fp8, if the first is; empty if it is not."""
    return ("q", "k", "v", "qkv") if getattr(first, "dtype", None) in FP8 else ()
