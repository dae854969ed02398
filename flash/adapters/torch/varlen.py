"""`attention_varlen` of torch tensors, as operators of PyTorch's dispatcher."""

from __future__ import annotations

from typing import Any, Final, Unpack

from torch import Tensor

from flash.adapters.torch.flops import pairs_of_packed
from flash.adapters.torch.operators import Operators
from flash.adapters.torch.vmap import Varlen
from flash.launch.varlen import rows_at_most
from flash.operands.words import Auto, Backend, Causal, KVLayout, Precision
from flash.scores.features import VarlenArguments, require_known, takes
from ptxgen.runtime.settings import AUTO

_OPERATORS: Final = Operators(
    "attention_varlen",
    ("q", "k", "v", "cu_seqlens_q"),
    (
        "cu_seqlens_k",
        "seqused_q",
        "seqused_k",
        "block_table",
        "rotary_cos",
        "rotary_sin",
        "alibi_slopes",
        "sink",
    ),
    Varlen,
    pairs_of_packed,
    ", SymInt? max_seqlen_q, SymInt? max_seqlen_k, str kv_layout, bool rotary_interleaved",
)


@takes(VarlenArguments, dropout=0.0)
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    block_table: Tensor | None = None,
    kv_layout: KVLayout = "NHD",
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    rotary_interleaved: bool = False,
    causal: Causal = False,
    precision: Precision | None = None,
    softmax_scale: float | None = None,
    deterministic: bool = True,
    return_lse: bool = False,
    out: Tensor | None = None,
    stream: object = None,
    backend: Backend = AUTO,
    splits: int | Auto = AUTO,
    **scores: Unpack[VarlenArguments],
) -> Any:
    """`flash.attention_varlen` of torch tensors, as the operator `ptxgen_flash::attention_varlen`.

    All arguments, shapes and results are those of `flash.attention_varlen`; what this function adds
    is as in `flash.adapters.torch.attention`. `max_seqlen_k`, the most keys of a sequence, is read by
    gradients of tensors on a GPU alone, which without it launch CTAs for as many keys as k has rows.
    The gradients of rows of no sequence are 0. With `block_table` there are none: `LaunchError` is raised.
    """
    require_known(_OPERATORS.who, scores, VarlenArguments, attention_varlen)
    starts = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    angles = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin}
    used = {"seqused_q": seqused_q, "seqused_k": seqused_k}
    return _OPERATORS.call(
        {"q": q, "k": k, "v": v, **starts, **used, "block_table": block_table, **angles},
        scores,
        causal=causal,
        precision=precision,
        softmax_scale=softmax_scale,
        deterministic=deterministic,
        return_lse=return_lse,
        out=out,
        stream=stream,
        backend=backend,
        splits=splits,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=rows_at_most(_OPERATORS.who, "k", max_seqlen_k),
        kv_layout=kv_layout,
        rotary_interleaved=rotary_interleaved,
    )
