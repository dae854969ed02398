"""The functions of flash-attn 4 for PyTorch tensors, computed by this project's kernels.

Names, order and defaults of the arguments are those of `flash_attn.cute`
(https://github.com/Dao-AILab/flash-attention, `flash_attn/cute/interface.py`), so that a program changes one
import:

    from flash.adapters.flash_attn.cute import flash_attn_func

`pack_gqa`, `scheduler_metadata`, `disable_scheduler_metadata`, `min_seqlen_k` and `seqlen_k_per_split`,
which choose how a GPU works, are taken and change nothing. `qv`, `gather_kv_indices`, functions in CuTe DSL
and lists of blocks raise `LaunchError`, which is also a RuntimeError; `docs/migration.md` has each argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from flash.adapters.flash_attn.arguments import Scores, check_numbers, check_tensors, scores_of, tensor
from flash.adapters.flash_attn.calls import attend, attend_paged, attend_varlen
from flash.adapters.flash_attn.newer import (
    renaming,
    require_absent,
    rows_of,
    starts_of,
    tuned_as_newer,
    used_of,
)
from flash.adapters.flash_attn.pages import paged
from flash.adapters.refusals import refuses_as_peers
from flash.adapters.torch.tensors import FLOATS, dense_rows
from flash.host.caller import flag
from ptxgen.errors import LaunchError

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]

_PACKED = 3  # dimensions of packed sequences


@refuses_as_peers
def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qv: torch.Tensor | None = None,
    gather_kv_indices: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: torch.Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod: Callable[..., Any] | None = None,
    score_mod_bwd: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    aux_tensors: list[torch.Tensor] | None = None,
    aux_scalars: tuple[Any, ...] | None = None,
    block_sparse_tensors: Any = None,
    block_sparse_tensors_bwd: Any = None,
    return_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`flash.adapters.flash_attn.flash_attn_func` with the arguments of flash-attn 4.

    window_size: as there, None or -1 for no limit of a side.
    learnable_sink: [heads], of float32, float16 or bfloat16; exp(learnable_sink) is added to the sum of
        exp(score) of each row, and so to its LSE.
    num_splits: 1 by default, so that the bits of a row do not depend on the batch.
    qv, gather_kv_indices, score_mod, score_mod_bwd, mask_mod, aux_tensors, aux_scalars,
        block_sparse_tensors, block_sparse_tensors_bwd: None; anything else is refused.
    pack_gqa: checked, and changes nothing.

    Returns (out, lse), with None for lse [batch, heads, seqlen_q] unless `return_lse`. Raises what
    `flash.adapters.flash_attn.flash_attn_func` raises.
    """
    caller = "flash_attn_func"
    require_absent(
        caller,
        qv=qv,
        gather_kv_indices=gather_kv_indices,
        score_mod=score_mod,
        score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod,
        aux_tensors=aux_tensors,
        aux_scalars=aux_scalars,
        block_sparse_tensors=block_sparse_tensors,
        block_sparse_tensors_bwd=block_sparse_tensors_bwd,
    )
    sizes = check_tensors(
        caller,
        {
            "q": (q, "batch seqlen_q heads head_dim"),
            "k": (k, "batch seqlen_k kv_heads head_dim"),
            "v": (v, "batch seqlen_k kv_heads head_dim_v"),
        },
    )
    scores = _scores(caller, softmax_scale, causal, window_size, softcap, learnable_sink, sizes["heads"])
    with_lse = flag(caller, "return_lse", return_lse)
    options = tuned_as_newer(caller, num_splits, pack_gqa)
    q, k, v = (dense_rows(x) for x in (q, k, v))
    results = attend(caller, q, k, v, scores, deterministic=deterministic, return_lse=with_lse, **options)
    return results if with_lse else (results, None)


@refuses_as_peers
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qv: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    min_seqlen_k: int | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    gather_kv_indices: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: torch.Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod: Callable[..., Any] | None = None,
    score_mod_bwd: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    block_sparse_tensors: Any = None,
    aux_tensors: list[torch.Tensor] | None = None,
    aux_scalars: tuple[Any, ...] | None = None,
    return_lse: bool = False,
    scheduler_metadata: Any = None,
    seqlen_k_per_split: int | None = None,
    disable_scheduler_metadata: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`flash_attn_func` of sequences of different lengths.

    q [total_q, heads, head_dim] with cu_seqlens_q, int32 [batch + 1], or q [batch, seqlen_q, heads,
        head_dim] without it; k and v likewise with cu_seqlens_k, and with page_table [pages, page_size,
        kv_heads, head_dim] and head_dim_v, without gradients.
    page_table: int32 [batch, n_pages]; key r of sequence b is row r % page_size of page page_table[b, r //
        page_size]. A page_size above 256 must have a divisor from 2 to 256.
    seqused_q, seqused_k: int32 [batch], of how many rows each sequence consists; None for all.
    max_seqlen_q, max_seqlen_k: at least the most queries and keys of a sequence; the first must be given
        for packed queries on a GPU.
    num_splits: 1 by default, so that the bits of a row do not depend on the batch; keys of packed sequences
        are not divided.
    min_seqlen_k, seqlen_k_per_split, scheduler_metadata, disable_scheduler_metadata: checked, and change
        nothing.

    All other arguments and the exceptions are those of `flash_attn_func`. Returns (out, lse): out like q
    with head_dim_v columns, in which rows of no sequence are not written; lse [heads, total_q], or
    [batch, heads, seqlen_q], None unless `return_lse`.
    """
    caller = "flash_attn_varlen_func"
    require_absent(
        caller,
        qv=qv,
        gather_kv_indices=gather_kv_indices,
        score_mod=score_mod,
        score_mod_bwd=score_mod_bwd,
        mask_mod=mask_mod,
        block_sparse_tensors=block_sparse_tensors,
        aux_tensors=aux_tensors,
        aux_scalars=aux_scalars,
    )
    of_q = "total_q" if cu_seqlens_q is not None else "batch seqlen_q"
    of_k = "total_k" if cu_seqlens_k is not None else "batch seqlen_k"
    of_k = of_k if page_table is None else "pages page_size"
    sizes = check_tensors(
        caller,
        {
            "q": (q, f"{of_q} heads head_dim"),
            "k": (k, f"{of_k} kv_heads head_dim"),
            "v": (v, f"{of_k} kv_heads head_dim_v"),
        },
    )
    scores = _scores(caller, softmax_scale, causal, window_size, softcap, learnable_sink, sizes["heads"])
    with_lse = flag(caller, "return_lse", return_lse)
    options = tuned_as_newer(caller, num_splits, pack_gqa, 0, scheduler_metadata, packed=True)
    flag(caller, "disable_scheduler_metadata", disable_scheduler_metadata)
    for name, count in (("min_seqlen_k", min_seqlen_k), ("seqlen_k_per_split", seqlen_k_per_split)):
        rows_of(caller, name, count)
    batch = _batch(caller, sizes, cu_seqlens_q, cu_seqlens_k)
    starts = starts_of(caller, "cu_seqlens_q", cu_seqlens_q, sizes.get("seqlen_q", 0), batch, q.device)
    used = used_of(caller, batch, seqused_q=seqused_q, seqused_k=seqused_k)
    longest = rows_of(caller, "max_seqlen_q", max_seqlen_q)
    how: dict[str, Any] = {
        "deterministic": deterministic,
        "return_lse": with_lse,
        **options,
        "max_seqlen_q": sizes.get("seqlen_q", longest),
    }
    q_rows = dense_rows(q).flatten(0, -_PACKED)
    if page_table is None:
        results = attend_varlen(
            caller,
            q_rows,
            dense_rows(k).flatten(0, -_PACKED),
            dense_rows(v).flatten(0, -_PACKED),
            starts,
            starts_of(caller, "cu_seqlens_k", cu_seqlens_k, sizes.get("seqlen_k", 0), batch, q.device),
            scores,
            max_seqlen_k=sizes.get("seqlen_k", rows_of(caller, "max_seqlen_k", max_seqlen_k)),
            **used,
            **how,
        )
    else:
        with renaming(block_table="page_table"):
            results = _over_pages(caller, q_rows, k, v, page_table, cu_seqlens_k, starts, scores, used, how)
    out, lse = results if with_lse else (results, None)
    if cu_seqlens_q is None:
        out = out.unflatten(0, q.shape[:2])
        lse = None if lse is None else lse.unflatten(1, q.shape[:2]).movedim(1, 0)
    return out, lse


def _over_pages(
    caller: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    page_table: object,
    cu_seqlens_k: object,
    starts: torch.Tensor,
    scores: Scores,
    used: dict[str, torch.Tensor],
    how: dict[str, Any],
) -> Any:
    """The result of `flash_attn_varlen_func` with a page table."""
    if cu_seqlens_k is not None:
        raise LaunchError(
            f"{caller}: cu_seqlens_k must be None with page_table; give the keys of each sequence as "
            "seqused_k"
        )
    caches = paged(caller, k, v, page_table, k.shape[1])
    full = torch.full((starts.numel() - 1,), caches.capacity, dtype=torch.int32, device=q.device)
    of_keys = {"seqused_k": full} | used
    return attend_paged(
        caller, q, caches.k, caches.v, starts, scores, block_table=caches.table, **of_keys, **how
    )


def _batch(caller: str, sizes: Mapping[str, int], cu_seqlens_q: object, cu_seqlens_k: object) -> int:
    """The number of sequences: the length of the batch axis, or of packed tensors that of cu_seqlens."""
    if "batch" in sizes:
        return sizes["batch"]
    name, starts = (
        ("cu_seqlens_q", cu_seqlens_q) if cu_seqlens_q is not None else ("cu_seqlens_k", cu_seqlens_k)
    )
    count: int = check_numbers(caller, name, starts, ("batch + 1",)).numel() - 1
    return max(count, 0)


def _scores(
    caller: str,
    softmax_scale: object,
    causal: object,
    window_size: object,
    softcap: object,
    learnable_sink: object,
    heads: int,
) -> Scores:
    """What a call asks of scores, checked, with its sink as float32 [heads]."""
    scores = scores_of(caller, softmax_scale, causal, window_size, softcap, None)
    if learnable_sink is None:
        return scores
    sink = tensor(caller, "learnable_sink", learnable_sink)
    if sink.dtype not in FLOATS or sink.shape != (heads,):
        raise LaunchError(
            f"{caller}: learnable_sink must be a tensor of one of {', '.join(map(str, FLOATS))} "
            f"[heads={heads}], got {sink.dtype} of shape {list(sink.shape)}"
        )
    return scores._replace(sink=sink.float())
