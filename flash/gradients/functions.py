"""The gradients of the attention functions: each makes kernels for the arrays of a call, and keeps them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Unpack

from flash.functions import dtype_of, last_dimension
from flash.gradients.kernel import AttentionGradient, Gradients
from flash.gradients.no_columns import GradientsOfNoColumns
from flash.host.caller import Caller, flag
from flash.operands.dtype_names import A, AnyArray, Backend, Causal, Layout, Precision
from flash.problem.config import config_of_call
from flash.scores.aux_arrays import with_captured
from flash.scores.features import (
    ScoreArguments,
    VarlenArguments,
    named_settings,
    of_launch,
    require_known,
    settings_of_call,
    takes,
)
from ptxgen.runtime.settings import AUTO


class _OfAttention(AttentionGradient):
    """The kernels of `attention_backward`, whose caller made no config."""

    _caller = Caller("attention_backward", has_config=False)


class _OfVarlen(AttentionGradient):
    """The kernels of `attention_varlen_backward`."""

    _caller = Caller("attention_varlen_backward", has_config=False)


class _AttentionOfNoColumns(GradientsOfNoColumns):
    """The kernels of `attention_backward` for values without columns."""

    _caller = _OfAttention._caller


class _VarlenOfNoColumns(GradientsOfNoColumns):
    """The kernels of `attention_varlen_backward` for values without columns."""

    _caller = _OfVarlen._caller


@takes(ScoreArguments)
def attention_backward(
    dout: AnyArray,
    q: A,
    k: AnyArray,
    v: AnyArray,
    out: AnyArray,
    lse: AnyArray,
    *,
    dlse: AnyArray | None = None,
    dq: AnyArray | None = None,
    dk: AnyArray | None = None,
    dv: AnyArray | None = None,
    wanted: Iterable[str] = (),
    causal: Causal = False,
    precision: Precision | None = None,
    softmax_scale: float | None = None,
    deterministic: bool = True,
    stream: object = None,
    backend: Backend = AUTO,
    layout: Layout = "bhsd",
    **scores: Unpack[ScoreArguments],
) -> Gradients[A]:
    """The gradients of `attention`, with kernels made for these arrays and kept.

    `out` and `lse` are what `attention(q, k, v, return_lse=True, ...)` returned for the same
    arguments, `dout` and `dlse` the gradients of a number for them. Returns its gradients: dq, dk and
    dv, and in `arrays` those of the arrays of scores that `wanted` names. `causal`, `window`,
    `softcap`, `score_mod`, `mask_mod` and `dropout` are as in `attention`; all other arguments and the
    exceptions are as in `AttentionGradient.launch`.

    Unless `deterministic`, dq is summed by atomics where kernels do and that is faster: not with the same
    bits in each call (`AttentionGradient`).

    float32 without a `precision` is computed as with "ieee": products are exact and summed in f32. With
    "f32_grade" the kernels use tensor cores, with an error near that of f32.
    """
    caller = _OfAttention._caller.name
    require_known(caller, scores, ScoreArguments, attention_backward)
    scores = with_captured(caller, scores)
    columns, of_v = last_dimension(caller, q, "q"), last_dimension(caller, v, "v")
    kernel = _kernel_for(
        _OfAttention if of_v else _AttentionOfNoColumns,
        flag(caller, "deterministic", deterministic),
        columns,
        of_v or columns,
        dtype_of(caller, q),
        causal,
        precision,
        (),
        *settings_of_call(scores, functools.partial(dtype_of, caller)),
    )
    return kernel.launch(
        dout,
        q,
        k,
        v,
        out,
        lse,
        dlse=dlse,
        dq=dq,
        dk=dk,
        dv=dv,
        wanted=wanted,
        stream=stream,
        backend=backend,
        layout=layout,
        softmax_scale=softmax_scale,
        **of_launch(scores),
    )


@takes(VarlenArguments)
def attention_varlen_backward(
    dout: AnyArray,
    q: A,
    k: AnyArray,
    v: AnyArray,
    out: AnyArray,
    lse: AnyArray,
    cu_seqlens_q: AnyArray,
    cu_seqlens_k: AnyArray,
    *,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: AnyArray | None = None,
    seqused_k: AnyArray | None = None,
    dlse: AnyArray | None = None,
    dq: AnyArray | None = None,
    dk: AnyArray | None = None,
    dv: AnyArray | None = None,
    wanted: Iterable[str] = (),
    causal: Causal = False,
    precision: Precision | None = None,
    softmax_scale: float | None = None,
    deterministic: bool = True,
    stream: object = None,
    backend: Backend = AUTO,
    **scores: Unpack[VarlenArguments],
) -> Gradients[A]:
    """The gradients of `attention_varlen`: `attention_backward` of packed sequences.

    `dout` and `out` [total_q, heads, head_dim_v], `dlse` and `lse` [heads, total_q]; q, k, v and the
    arrays of lengths are as in `attention_varlen`, without pages. `max_seqlen_q` and `max_seqlen_k`
    must be given for arrays on a GPU. Rows of no sequence have gradient 0 in new arrays, and are not
    written in given ones. All other arguments and the exceptions are as in `attention_backward`.
    """
    caller = _OfVarlen._caller.name
    require_known(caller, scores, VarlenArguments, attention_varlen_backward)
    scores = with_captured(caller, scores)
    columns, of_v = last_dimension(caller, q, "q"), last_dimension(caller, v, "v")
    kernel = _kernel_for(
        _OfVarlen if of_v else _VarlenOfNoColumns,
        flag(caller, "deterministic", deterministic),
        columns,
        of_v or columns,
        dtype_of(caller, q),
        causal,
        precision,
        (seqused_q is not None, seqused_k is not None),
        *settings_of_call(scores, functools.partial(dtype_of, caller)),
    )
    return kernel.launch(
        dout,
        q,
        k,
        v,
        out,
        lse,
        dlse=dlse,
        dq=dq,
        dk=dk,
        dv=dv,
        wanted=wanted,
        stream=stream,
        backend=backend,
        softmax_scale=softmax_scale,
        max_seqlen_k=max_seqlen_k,
        **of_launch(scores),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        max_seqlen_q=max_seqlen_q,
    )


def _kernel_for(*choices: Any) -> AttentionGradient:
    try:
        return _kernel(*choices)
    except TypeError:  # not hashable, so no valid choice: the config refuses it
        return _kernel.__wrapped__(*choices)


@functools.lru_cache(maxsize=128, typed=True)
def _kernel(
    of: type[_OfAttention | _OfVarlen | _AttentionOfNoColumns | _VarlenOfNoColumns],
    deterministic: bool,
    head_dim: int,
    head_dim_v: int,
    dtype: str,
    causal: Causal,
    precision: Precision | None,
    used: tuple[bool, bool] | tuple[()],
    *scores: Any,
) -> AttentionGradient:
    """The kernels of calls; `used` says whether seqused_q and seqused_k are given, and is empty for
    sequences of one length.
    """
    of_q, of_k = used or (False, False)
    config = config_of_call(
        of._caller.name,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=dtype,
        causal=causal,
        precision=precision,
        varlen=bool(used),
        seqused_q=of_q,
        seqused_k=of_k,
        **named_settings(scores),
    )
    return of(config, deterministic=deterministic)
