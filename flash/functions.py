"""Attention functions: each makes a kernel for the types and sizes of a call, and keeps it."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Final, Unpack

from flash.host.caller import Caller, readable_views
from flash.kernel import AttentionKernel
from flash.launch.arguments import conversion
from flash.operands.dtypes import DTYPES, F32, OF_ARRAYS
from flash.problem.config import config_of_call
from flash.scores.features import (
    ScoreArguments,
    VarlenArguments,
    named_settings,
    of_launch,
    require_known,
    settings_of_call,
    takes,
)
from ptxgen.errors import LaunchError
from ptxgen.runtime.settings import AUTO


@takes(ScoreArguments)
def attention(
    q: object,
    k: object,
    v: object,
    *,
    causal: bool | str = False,
    precision: str | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    out: object = None,
    stream: object = None,
    backend: str = AUTO,
    layout: str = "bhsd",
    **scores: Unpack[ScoreArguments],
) -> Any:
    """`softmax(scale Q Kᵀ + mask) V`, with a kernel made for these arrays and kept.

    `causal`, `precision`, `window`, `softcap`, `score_mod`, `mask_mod` and `dropout` are as in
    `AttentionConfig`; all other arguments and the exceptions are as in `AttentionKernel.launch`.
    head_dim and head_dim_v are the last dimensions of q and v, and dtype is that of q: float32,
    float16 or bfloat16. `bias` and `key_bias` are float32 or of the dtype of q.
    """
    return kernel_of_attention(q, v, causal, precision, scores).launch(
        q,
        k,
        v,
        out=out,
        stream=stream,
        backend=backend,
        return_lse=return_lse,
        layout=layout,
        softmax_scale=softmax_scale,
        **of_launch(scores),
    )


@takes(VarlenArguments)
def attention_varlen(
    q: object,
    k: object,
    v: object,
    cu_seqlens_q: object,
    cu_seqlens_k: object,
    *,
    max_seqlen_q: int | None = None,
    seqused_q: object = None,
    seqused_k: object = None,
    causal: bool | str = False,
    precision: str | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    out: object = None,
    stream: object = None,
    backend: str = AUTO,
    **scores: Unpack[VarlenArguments],
) -> Any:
    """`attention` of packed sequences (varlen), each with its own length.

    q [total_q, heads, head_dim], k and v [total_k, kv_heads, head_dim or head_dim_v], int32
    `cu_seqlens_q` and `cu_seqlens_k` [batch + 1]: sequence b has the rows cu_seqlens[b] to
    cu_seqlens[b + 1] - 1 (more in `AttentionKernel.launch`). `max_seqlen_q` must be given for
    arrays on a GPU. Returns out, an array like q, or (out, lse [heads, total_q]); rows of no
    sequence are not written. All other arguments and the exceptions are as in `attention`.
    """
    used = seqused_q is not None, seqused_k is not None
    return kernel_of_varlen(q, v, used, causal, precision, scores).launch(
        q,
        k,
        v,
        out=out,
        stream=stream,
        backend=backend,
        return_lse=return_lse,
        softmax_scale=softmax_scale,
        **of_launch(scores),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        max_seqlen_q=max_seqlen_q,
    )


def kernel_of_attention(
    q: object, v: object, causal: bool | str, precision: str | None, scores: ScoreArguments
) -> AttentionKernel:
    """The kernel of a call of `attention`. Raises what `attention` does for settings, and for arrays
    whose types and last dimensions no kernel has.
    """
    who = _OfAttention.who
    require_known(who, scores, ScoreArguments, attention)
    return _kernel_for(
        _OfAttention,
        _last_dimension(who, q, "q"),
        _last_dimension(who, v, "v"),
        _dtype_of(who, q),
        causal,
        precision,
        False,
        False,
        False,
        *settings_of_call(scores, functools.partial(_dtype_of, who)),
    )


def kernel_of_varlen(
    q: object,
    v: object,
    used: tuple[bool, bool],
    causal: bool | str,
    precision: str | None,
    scores: VarlenArguments,
) -> AttentionKernel:
    """The kernel of a call of `attention_varlen`; `used` says whether seqused_q and seqused_k are
    given. Raises as `kernel_of_attention` does.
    """
    who = _OfVarlen.who
    require_known(who, scores, VarlenArguments, attention_varlen)
    return _kernel_for(
        _OfVarlen,
        _last_dimension(who, q, "q"),
        _last_dimension(who, v, "v"),
        _dtype_of(who, q),
        causal,
        precision,
        True,
        *used,
        *settings_of_call(scores, functools.partial(_dtype_of, who)),
    )


class _OfAttention(AttentionKernel):
    """A kernel of `attention`, whose caller made no config."""

    who: ClassVar = "attention"
    _caller = Caller(who, has_config=False)


class _OfVarlen(AttentionKernel):
    """A kernel of `attention_varlen`."""

    who: ClassVar = "attention_varlen"
    _caller = Caller(who, has_config=False)


def _kernel_for(*choices: Any) -> AttentionKernel:
    try:
        return _kernel(*choices)
    except TypeError:  # not hashable, so no valid choice: the config refuses it
        return _kernel.__wrapped__(*choices)


@functools.lru_cache(maxsize=128, typed=True)
def _kernel(
    of: type[_OfAttention] | type[_OfVarlen],
    head_dim: int,
    head_dim_v: int,
    dtype: str,
    causal: bool | str,
    precision: str | None,
    varlen: bool,
    seqused_q: bool,
    seqused_k: bool,
    *scores: Any,
) -> AttentionKernel:
    config = config_of_call(
        of.who,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=dtype,
        causal=causal,
        precision=precision,
        varlen=varlen,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        **named_settings(scores),
    )
    return of(config)


_NAMES_OF_DTYPES: Final[dict[object, str]] = {}  # a config's name of each dtype object
_KINDS_WITH_DTYPES: Final = ("numpy", "torch", "cupy")  # whose dtypes are few and hashable


def _dtype_of(who: str, array: object, name: str = "q") -> str:
    """The config's name of an array's element type. Raises `LaunchError` if no kernel has this
    type; for q the message says to convert k and v, too.
    """
    said = getattr(array, "dtype", None)
    try:
        return _NAMES_OF_DTYPES[said]
    except (KeyError, TypeError):  # TypeError: not hashable
        pass
    found = readable_views({name: array}, who)[name]
    dtype = OF_ARRAYS.get(found.dtype)
    if dtype is None or dtype.name not in DTYPES:
        wanted = ", ".join(t.array_name for t in DTYPES.values())
        raise LaunchError(
            f"{who}: {name} must be one of {wanted}, got {found.dtype}; convert "
            f"{'q, k and v, such as ' if name == 'q' else 'it '}with "
            f"{conversion(name, found, F32)}"
        )
    if found.kind in _KINDS_WITH_DTYPES:
        _NAMES_OF_DTYPES[said] = dtype.name
    return dtype.name


def _last_dimension(who: str, array: object, name: str) -> int:
    shape = getattr(array, "shape", None)
    if not isinstance(shape, tuple) or not shape:
        shape = readable_views({name: array}, who)[name].shape
    if not shape:
        raise LaunchError(f"{who}: {name} must have three or four dimensions, got none")
    return int(shape[-1])
