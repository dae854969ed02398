"""`flash_attn_varlen_func` and its forms for packed QKV and KV: attention of sequences of different
lengths, one after another in one tensor.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch

from flash.adapters.flash_attn.arguments import Scores, check_numbers, check_tensors, scores_of
from flash.adapters.flash_attn.calls import attend_paged, attend_varlen
from flash.adapters.flash_attn.pages import paged
from flash.adapters.flash_attn.probabilities import probabilities
from flash.adapters.refusals import refuses_as_peers
from flash.adapters.torch.tensors import dense_rows
from flash.host.caller import flag
from flash.operands.declared import MAX_WINDOWED_SEQ
from ptxgen.arguments import integer
from ptxgen.errors import LaunchError, shown


@refuses_as_peers
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Any:
    """`flash_attn_func` of packed sequences: q [total_q, heads, head_dim], k [total_k, kv_heads,
    head_dim], v [total_k, kv_heads, head_dim_v].

    cu_seqlens_q, cu_seqlens_k: int32 [batch + 1]; sequence b has the rows cu_seqlens[b] to
        cu_seqlens[b + 1] - 1 and may be empty.
    max_seqlen_q: at least the most queries of a sequence.
    max_seqlen_k: at least the most keys of a sequence; used for the shape of probabilities, and for
        gradients on a GPU.
    block_table: int32 [batch, n_pages]; k is [pages, page_size, kv_heads, head_dim], v likewise, and
        row r of sequence b is row r % page_size of page block_table[b, r // page_size]. A page_size
        above 256 must have a divisor from 2 to 256. Without gradients and dropout.

    All other arguments and the exceptions are those of `flash_attn_func`. Returns out [total_q,
    heads, head_dim_v], in which rows of no sequence are not written, or with `return_attn_probs`
    (out, lse [heads, total_q], probabilities [batch, heads, max_seqlen_q, max_seqlen_k], or an
    empty tensor without dropout).
    """
    caller = "flash_attn_varlen_func"
    rows = "total_k" if block_table is None else "pages page_size"
    check_tensors(
        caller,
        {
            "q": (q, "total_q heads head_dim"),
            "k": (k, f"{rows} kv_heads head_dim"),
            "v": (v, f"{rows} kv_heads head_dim_v"),
        },
    )
    lengths = _lengths(caller, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    scores = scores_of(caller, softmax_scale, causal, window_size, softcap, alibi_slopes, dropout_p)
    if block_table is None:
        return _attention(caller, q, k, v, lengths, scores, deterministic, return_attn_probs)
    return _over_pages(caller, q, k, v, block_table, lengths, scores, deterministic, return_attn_probs)


@refuses_as_peers
def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` of k and v in one tensor `kv` [total_k, 2, kv_heads, head_dim], which
    is not copied. All other arguments, results and exceptions are those of
    `flash_attn_varlen_func`.
    """
    caller = "flash_attn_varlen_kvpacked_func"
    check_tensors(caller, {"q": (q, "total_q heads head_dim"), "kv": (kv, "total_k 2 kv_heads head_dim")})
    lengths = _lengths(caller, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    scores = scores_of(caller, softmax_scale, causal, window_size, softcap, alibi_slopes, dropout_p)
    k, v = kv.unbind(1)
    return _attention(caller, q, k, v, lengths, scores, deterministic, return_attn_probs)


@refuses_as_peers
def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` of q, k and v in one tensor `qkv` [total, 3, heads, head_dim], which
    is not copied, with `cu_seqlens` and `max_seqlen` of queries and keys. All other arguments,
    results and exceptions are those of `flash_attn_varlen_func`.
    """
    caller = "flash_attn_varlen_qkvpacked_func"
    check_tensors(caller, {"qkv": (qkv, "total 3 heads head_dim")})
    cu_seqlens = check_numbers(caller, "cu_seqlens", cu_seqlens, ("batch + 1",))
    most = _most(caller, "max_seqlen", max_seqlen, cu_seqlens)
    lengths = _Lengths(cu_seqlens, cu_seqlens, most, most)
    scores = scores_of(caller, softmax_scale, causal, window_size, softcap, alibi_slopes, dropout_p)
    q, k, v = qkv.unbind(1)
    return _attention(caller, q, k, v, lengths, scores, deterministic, return_attn_probs)


class _Lengths(NamedTuple):
    """The begins of packed sequences, and the most queries and keys of one."""

    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int


def _lengths(
    caller: str, cu_seqlens_q: object, cu_seqlens_k: object, max_seqlen_q: object, max_seqlen_k: object
) -> _Lengths:
    starts = check_numbers(caller, "cu_seqlens_q", cu_seqlens_q, ("batch + 1",))
    return _Lengths(
        starts,
        check_numbers(caller, "cu_seqlens_k", cu_seqlens_k, (starts.numel(),)),
        _most(caller, "max_seqlen_q", max_seqlen_q, starts),
        _most(caller, "max_seqlen_k", max_seqlen_k),
    )


def _most(caller: str, name: str, argument: object, cu_seqlens: torch.Tensor | None = None) -> int:
    """The argument `name`, the most rows of a sequence, checked; for `cu_seqlens` on the host also against
    these, unless torch.compile traces the call, where their elements are not known. A tensor of one integer
    is read, which waits for its device.
    """
    rows = integer(argument, 0, MAX_WINDOWED_SEQ)
    if rows is None:
        raise LaunchError(
            f"{caller}: {name} must be the most rows of a sequence, from 0 to {MAX_WINDOWED_SEQ}, got "
            f"{shown(argument)}"
        )
    if cu_seqlens is not None and cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        longest = int(cu_seqlens.diff().max()) if cu_seqlens.numel() > 1 else 0
        if rows < longest:
            raise LaunchError(
                f"{caller}: {name} must be at least {longest}, the rows of a sequence, got {rows}"
            )
    return rows


def _attention(
    caller: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: _Lengths,
    scores: Scores,
    deterministic: bool,
    return_attn_probs: object,
) -> Any:
    """The result of `flash_attn_varlen_func` for checked tensors and scores."""
    all_three = flag(caller, "return_attn_probs", return_attn_probs)
    q, k, v = (dense_rows(x) for x in (q, k, v))
    results = attend_varlen(
        caller,
        q,
        k,
        v,
        lengths.cu_seqlens_q,
        lengths.cu_seqlens_k,
        scores,
        max_seqlen_q=lengths.max_seqlen_q,
        max_seqlen_k=lengths.max_seqlen_k,
        deterministic=deterministic,
        return_lse=all_three,
    )
    if not all_three:
        return results
    if not scores.dropout:
        return (*results, q.new_empty(0))
    of_q, of_k = (_sequences(x, rows) for x, rows in ((q, lengths.cu_seqlens_q), (k, lengths.cu_seqlens_k)))
    longest = max([lengths.max_seqlen_k, *(len(x) for x in of_k)])
    return (*results, probabilities(q, of_q, of_k, (lengths.max_seqlen_q, longest), scores))


def _over_pages(
    caller: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    block_table: object,
    lengths: _Lengths,
    scores: Scores,
    deterministic: bool,
    return_attn_probs: object,
) -> Any:
    """The result of `flash_attn_varlen_func` with a block table."""
    if scores.dropout:
        raise LaunchError(
            f"{caller}: dropout_p must be 0.0 with block_table, got {scores.dropout}; leave out one of them"
        )
    all_three = flag(caller, "return_attn_probs", return_attn_probs)
    caches = paged(caller, k, v, block_table, k.shape[1])
    results = attend_paged(
        caller,
        dense_rows(q),
        caches.k,
        caches.v,
        lengths.cu_seqlens_q,
        scores,
        block_table=caches.table,
        seqused_k=lengths.cu_seqlens_k.diff(),
        max_seqlen_q=lengths.max_seqlen_q,
        deterministic=deterministic,
        return_lse=all_three,
    )
    return (*results, q.new_empty(0)) if all_three else results


def _sequences(x: torch.Tensor, cu_seqlens: torch.Tensor) -> list[torch.Tensor]:
    bounds = cu_seqlens.tolist()
    return [x[begin:end] for begin, end in itertools.pairwise(bounds)]
