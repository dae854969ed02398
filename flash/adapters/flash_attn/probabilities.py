"""The probabilities that `return_attn_probs` asks for, computed on the host: for tests of short sequences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from flash.adapters.flash_attn.arguments import Scores
from flash.gradients.weights import attention_weights
from flash.scores.philox import keep_mask


def probabilities(
    like: torch.Tensor,
    queries: Sequence[torch.Tensor],
    keys: Sequence[torch.Tensor],
    sizes: tuple[int, int],
    scores: Scores,
) -> torch.Tensor:
    """The softmax of the scores, before dropout, negative where dropout sets the weight to 0, of the
    sequences of a batch: [batch, heads, *sizes], of the type of `like` [..., heads, head_dim], on
    its device.

    A sequence has queries [seqlen_q, heads, head_dim] and keys [seqlen_k, kv_heads, head_dim]; what
    is beyond its lengths in `sizes` is 0. Memory is O(seqlen_q * seqlen_k).
    """
    padded = torch.zeros((len(queries), like.shape[-2], *sizes), dtype=like.dtype, device=like.device)
    for b, (q, k) in enumerate(zip(queries, keys, strict=True)):
        padded[b, :, : q.shape[0], : k.shape[0]] = torch.from_numpy(_of_sequence(q, k, b, scores))
    return padded


def _of_sequence(q: torch.Tensor, k: torch.Tensor, b: int, scores: Scores) -> NDArray[np.float32]:
    assert scores.dropout_seed is not None  # there is dropout
    heads, length = q.shape[1], k.shape[0]
    slopes = scores.alibi_slopes
    if slopes is not None and slopes.dim() > 1:
        slopes = slopes[b]
    of_q, of_k = (x.detach().float().cpu().numpy().swapaxes(0, 1)[None] for x in (q, k))
    P = attention_weights(
        of_q,
        of_k,
        causal=scores.causal,
        softmax_scale=scores.softmax_scale,
        window=scores.window,
        softcap=scores.softcap,
        alibi_slopes=None if slopes is None else slopes.detach().cpu().numpy(),
        backend="cpu",
    )
    numbers = b * heads + np.arange(heads)
    keep = keep_mask(
        scores.dropout, int(scores.dropout_seed), numbers, np.arange(q.shape[0]), np.arange(length)
    )
    signed: NDArray[np.float32] = np.where(keep, P[0], -P[0])
    return signed
