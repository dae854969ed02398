"""`flash_attn_func` and its forms for packed QKV and KV: attention of sequences of equal lengths."""

from __future__ import annotations

from typing import Any

import torch

from flash.adapters.flash_attn.arguments import Scores, check_tensors, scores_of, tuned
from flash.adapters.flash_attn.calls import attend
from flash.adapters.flash_attn.probabilities import probabilities
from flash.adapters.refusals import refuses_as_peers
from flash.adapters.torch.tensors import dense_rows
from flash.host.caller import flag


@refuses_as_peers
def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    num_splits: int = 0,
) -> Any:
    """Attention of q [batch, seqlen_q, heads, head_dim] to k [batch, seqlen_k, kv_heads, head_dim]
    and v [batch, seqlen_k, kv_heads, head_dim_v], of float16, bfloat16 or float32; heads is a
    multiple of kv_heads. Tensors whose last dimension is not dense are copied.

    dropout_p: probability, from 0 to less than 1 and in steps of 1/65536, that a weight is set to
        0; which ones is decided by PyTorch's generator of the CPU (`torch.manual_seed`).
    softmax_scale: what scores are multiplied by; None for 1 / sqrt(head_dim).
    causal: query i sees key j only if j <= i + seqlen_k - seqlen_q (bottom-right).
    window_size: (left, right); query i sees only keys from i + seqlen_k - seqlen_q - left to
        i + seqlen_k - seqlen_q + right; -1 for no limit.
    softcap: scaled scores become softcap * tanh(score / softcap); 0 or less for none.
    alibi_slopes: float32 [heads] or [batch, heads]; slope * |i + seqlen_k - seqlen_q - j| is
        subtracted from the scaled score.
    deterministic: whether gradients have the same bits in each call, as results have. If not, kernels
        sum that of q by atomics in any order, unless `torch.use_deterministic_algorithms` says otherwise.
    return_attn_probs: whether to return LSE and probabilities, too.
    num_splits: into how many parts the keys are divided, an argument of flash-attn 3; 0 for a choice on a
    GPU, by which the last bits of a row depend on the batch, the heads and the device.

    Returns out [batch, seqlen_q, heads, head_dim_v], contiguous, of the type of q; a row that sees
    no key is 0. With `return_attn_probs` returns (out, lse, probabilities): lse float32 [batch,
    heads, seqlen_q], the natural logarithm of the sum of exp(score), -inf for a row that sees no
    key; and, if there is dropout, the softmax of the scores [batch, heads, seqlen_q, seqlen_k], of
    the type of q, negative where the weight was dropped, for tests of short sequences, because they
    are computed by numpy; without dropout an empty tensor.

    Gradients of q, k, v and alibi_slopes are those of `flash.adapters.torch.attention`.

    Raises `LaunchError` for invalid arguments, `ConfigError` for a head_dim above 576, `BackendError`
    if the backend fails.
    """
    caller = "flash_attn_func"
    check_tensors(
        caller,
        {
            "q": (q, "batch seqlen_q heads head_dim"),
            "k": (k, "batch seqlen_k kv_heads head_dim"),
            "v": (v, "batch seqlen_k kv_heads head_dim_v"),
        },
    )
    scores = scores_of(caller, softmax_scale, causal, window_size, softcap, alibi_slopes, dropout_p)
    return _attention(caller, q, k, v, scores, deterministic, return_attn_probs, num_splits)


@refuses_as_peers
def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    num_splits: int = 0,
) -> Any:
    """`flash_attn_func` of k and v in one tensor `kv` [batch, seqlen_k, 2, kv_heads, head_dim],
    which is not copied. All other arguments, results and exceptions are those of `flash_attn_func`.
    """
    caller = "flash_attn_kvpacked_func"
    check_tensors(
        caller, {"q": (q, "batch seqlen_q heads head_dim"), "kv": (kv, "batch seqlen_k 2 kv_heads head_dim")}
    )
    scores = scores_of(caller, softmax_scale, causal, window_size, softcap, alibi_slopes, dropout_p)
    k, v = kv.unbind(2)
    return _attention(caller, q, k, v, scores, deterministic, return_attn_probs, num_splits)


@refuses_as_peers
def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    num_splits: int = 0,
) -> Any:
    """`flash_attn_func` of q, k and v in one tensor `qkv` [batch, seqlen, 3, heads, head_dim],
    which is not copied. All other arguments, results and exceptions are those of `flash_attn_func`.
    """
    caller = "flash_attn_qkvpacked_func"
    check_tensors(caller, {"qkv": (qkv, "batch seqlen 3 heads head_dim")})
    scores = scores_of(caller, softmax_scale, causal, window_size, softcap, alibi_slopes, dropout_p)
    q, k, v = qkv.unbind(2)
    return _attention(caller, q, k, v, scores, deterministic, return_attn_probs, num_splits)


def _attention(
    caller: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scores: Scores,
    deterministic: bool,
    return_attn_probs: object,
    num_splits: object,
) -> Any:
    """The result of `flash_attn_func` for checked tensors and scores."""
    all_three = flag(caller, "return_attn_probs", return_attn_probs)
    q, k, v = (dense_rows(x) for x in (q, k, v))
    how = tuned(caller, num_splits)
    results = attend(caller, q, k, v, scores, deterministic=deterministic, return_lse=all_three, **how)
    if not all_three:
        return results
    if not scores.dropout:
        return (*results, q.new_empty(0))
    return (*results, probabilities(q, q.unbind(), k.unbind(), (q.shape[1], k.shape[1]), scores))
