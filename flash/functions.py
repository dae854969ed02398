"""Attention functions: each makes a kernel for the types and sizes of a call, and keeps it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Unpack, overload

from flash.host.caller import Caller, readable_views
from flash.kernel import AttentionKernel
from flash.launch.arguments import conversion
from flash.launch.rotary import NO_ROTATION, RotarySetting, rotary_of_call
from flash.launch.signature import (
    AttentionArguments,
    AttentionKeywords,
    AttentionVarlenArguments,
    NarrowArguments,
    VarlenKeywords,
    scales_of,
    split_narrow,
)
from flash.no_columns import AttentionOfNoColumns
from flash.operands.dtype_names import A, AnyArray, Auto, Backend, Causal, KVLayout, Layout, Precision
from flash.operands.dtypes import DTYPES, F32, INPUT_DTYPES, OF_ARRAYS, DType
from flash.problem.config import config_of_call
from flash.problem.narrow import block_format
from flash.scores.aux_arrays import with_captured
from flash.scores.features import (
    NOTHING_ASKED,
    ScoreArguments,
    VarlenArguments,
    named_settings,
    of_launch,
    require_known,
    settings_of_call,
    takes,
)
from ptxgen.arguments import is_one_of
from ptxgen.errors import LaunchError, did_you_mean, shown
from ptxgen.runtime.settings import AUTO

_NO_NARROW: Final[NarrowArguments] = {}


@overload
def attention(
    q: A, k: AnyArray, v: AnyArray, *, return_lse: Literal[False] = ..., **how: Unpack[AttentionKeywords]
) -> A: ...
@overload
def attention(
    q: A, k: AnyArray, v: AnyArray, *, return_lse: Literal[True], **how: Unpack[AttentionKeywords]
) -> tuple[A, A]: ...
@overload
def attention(
    q: A,
    k: AnyArray,
    v: AnyArray,
    *,
    return_lse: bool = ...,
    return_max_logit: bool = ...,
    **how: Unpack[AttentionKeywords],
) -> A | tuple[A, ...]: ...
@takes(AttentionArguments)
def attention(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    *,
    causal: Causal = False,
    precision: Precision | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    return_max_logit: bool = False,
    out: AnyArray | None = None,
    stream: object = None,
    backend: Backend = AUTO,
    layout: Layout = "bhsd",
    splits: int | Auto = AUTO,
    **arguments: Unpack[AttentionArguments],
) -> Any:
    """`softmax(scale Q Kᵀ + mask) V`, by a kernel that is generated for these arrays and cached.

    `causal`, `precision`, `window`, `softcap`, `score_mod`, `mask_mod` and `dropout` are as in
    `AttentionConfig`; all other arguments and the exceptions are as in `AttentionKernel.launch`.
    head_dim and head_dim_v are the last dimensions of q and v, and dtype is that of q: float32, float16 or
    bfloat16. With a head_dim_v of 0 out has no elements, and other results are those of the scores. `bias`
    and `key_bias` are float32 or of the dtype of q. q, k and v of fp8 come with `q_scale`, `k_scale` and
    `v_scale`; `scale_block` and `out_dtype` are as in `AttentionConfig`.

    `splits`: into how many parts the keys are divided, 1 to 32768, each with CTAs of its own. With "auto" a
    GPU divides them by a rule: the last bits of a row then depend on the batch, the heads and the device.
    """
    scores, narrow, arrays = _split(_OfAttention.caller, arguments)
    return kernel_of_attention(q, v, causal, precision, scores, splits, narrow).launch(
        q,
        k,
        v,
        out=out,
        stream=stream,
        backend=backend,
        return_lse=return_lse,
        return_max_logit=return_max_logit,
        layout=layout,
        softmax_scale=softmax_scale,
        **arrays,
    )


@overload
def attention_varlen(
    q: A,
    k: AnyArray,
    v: AnyArray,
    cu_seqlens_q: AnyArray,
    cu_seqlens_k: AnyArray | None = ...,
    *,
    return_lse: Literal[False] = ...,
    **how: Unpack[VarlenKeywords],
) -> A: ...
@overload
def attention_varlen(
    q: A,
    k: AnyArray,
    v: AnyArray,
    cu_seqlens_q: AnyArray,
    cu_seqlens_k: AnyArray | None = ...,
    *,
    return_lse: Literal[True],
    **how: Unpack[VarlenKeywords],
) -> tuple[A, A]: ...
@overload
def attention_varlen(
    q: A,
    k: AnyArray,
    v: AnyArray,
    cu_seqlens_q: AnyArray,
    cu_seqlens_k: AnyArray | None = ...,
    *,
    return_lse: bool = ...,
    return_max_logit: bool = ...,
    **how: Unpack[VarlenKeywords],
) -> A | tuple[A, ...]: ...
@takes(AttentionVarlenArguments, rotary_interleaved=False)
def attention_varlen(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    cu_seqlens_q: AnyArray,
    cu_seqlens_k: AnyArray | None = None,
    *,
    block_table: AnyArray | None = None,
    kv_layout: KVLayout = "NHD",
    max_seqlen_q: int | None = None,
    seqused_q: AnyArray | None = None,
    seqused_k: AnyArray | None = None,
    causal: Causal = False,
    precision: Precision | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    return_max_logit: bool = False,
    out: AnyArray | None = None,
    stream: object = None,
    backend: Backend = AUTO,
    splits: int | Auto = AUTO,
    **arguments: Unpack[AttentionVarlenArguments],
) -> Any:
    """`attention` of packed sequences (varlen), each with its own length.

    q [total_q, heads, head_dim], k and v [total_k, kv_heads, head_dim or head_dim_v], int32 `cu_seqlens_q`
    and `cu_seqlens_k` [batch + 1]: sequence b has the rows cu_seqlens[b] to cu_seqlens[b + 1] - 1 (more in
    `AttentionKernel.launch`). `max_seqlen_q` must be given for arrays on a GPU. Returns out, an array like q,
    and on demand lse [heads, total_q] and max_logit [batch, heads]. Rows of no sequence are not written.

    With `block_table`, int32 [batch, n], keys are in pages: k is [pages, page_size, kv_heads,
    head_dim], or with `kv_layout="HND"` [pages, kv_heads, page_size, head_dim], and v likewise, of
    any strides, page_size 1..256. Key r of sequence b is row r % page_size of page block_table[b, r //
    page_size]; int32 `seqused_k` [batch] is the number of keys of each sequence, and `cu_seqlens_k` is
    None. One call takes prompts, parts of prompts and single tokens (`docs/serving.md`). Functions of scores
    get the positions of queries among the keys. `rotary_cos` and `rotary_sin`, float32 [positions,
    rotary_dim / 2], rotate the rows of q by these; keys are rotated already (`AttentionKernel.launch`).

    `splits` is 1 or "auto": keys of packed sequences are not divided. With 1 the bits of a row do not
    depend on the other sequences; "auto" chooses a kernel by the longest of them.
    """
    layout, page_size = pages_of_varlen(k, block_table, kv_layout)
    used = seqused_q is not None, seqused_k is not None
    scores, narrow, arrays = _split(_OfVarlen.caller, arguments)
    rotary, angles = rotary_of_call(_OfVarlen.caller, scores, q, page_size) if scores else (NO_ROTATION, {})
    return kernel_of_varlen(q, v, used, causal, precision, scores, page_size, narrow, splits, rotary).launch(
        q,
        k,
        v,
        out=out,
        stream=stream,
        backend=backend,
        return_lse=return_lse,
        return_max_logit=return_max_logit,
        layout=layout,
        softmax_scale=softmax_scale,
        **arrays,
        **angles,
        block_table=block_table,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        max_seqlen_q=max_seqlen_q,
    )


def _split(caller: str, arguments: Any) -> tuple[Any, NarrowArguments, dict[str, Any]]:
    """Split a call's arguments: those of scores, those of fp8, and those that its launch takes."""
    if not arguments:
        return arguments, _NO_NARROW, {}
    scores, narrow = split_narrow(with_captured(caller, arguments))
    return scores, narrow, {**of_launch(scores), **scales_of(narrow)}


def kernel_of_attention(
    q: object,
    v: object,
    causal: Causal,
    precision: Precision | None,
    scores: ScoreArguments,
    splits: int | Auto = AUTO,
    narrow: NarrowArguments | None = None,
) -> AttentionKernel:
    """The kernel of a call of `attention`; `narrow` are its arguments of fp8; with None it takes none. Raises
    what `attention` does for settings, and for arrays whose types and last dimensions no kernel has.
    """
    if scores:
        require_known(_OfAttention.caller, scores, ScoreArguments, attention)
    of = _OfAttention, _AttentionOfNoColumns
    return kernel_of(of, q, v, scores, narrow, causal=causal, precision=precision, splits=splits)


def kernel_of_varlen(
    q: object,
    v: object,
    used: tuple[bool, bool],
    causal: Causal,
    precision: Precision | None,
    scores: VarlenArguments,
    page_size: int | None = None,
    narrow: NarrowArguments | None = None,
    splits: int | Auto = AUTO,
    rotary: RotarySetting = NO_ROTATION,
) -> AttentionKernel:
    """The kernel of a call of `attention_varlen`; `used` says whether seqused_q and seqused_k are
    given, `page_size` how many keys a page has, if they are in pages; `rotary` is of
    `rotary_of_call`, `narrow` and what it raises as in `kernel_of_attention`.
    """
    if scores:
        require_known(_OfVarlen.caller, scores, VarlenArguments, attention_varlen)
    return kernel_of(
        (_OfVarlen, _VarlenOfNoColumns),
        q,
        v,
        scores,
        narrow,
        causal=causal,
        precision=precision,
        splits=splits,
        varlen=True,
        seqused_q=used[0],
        seqused_k=used[1],
        page_size=page_size,
        rotary_dim=rotary.rotary_dim,
        rotary_interleaved=rotary.interleaved,
    )


def kernel_of(
    of: tuple[type[AttentionKernel], type[AttentionOfNoColumns]],
    q: object,
    v: object,
    scores: Any,
    narrow: NarrowArguments | None,
    **fields: Any,
) -> AttentionKernel:
    """The kernel of a call. Its config has the `fields`, and those that follow from the arrays `q` and `v`
    and from the other arguments. Its class is the first of `of`, or the second if `v` has no columns.
    """
    caller, taken = of[0]._caller.name, DTYPES if narrow is None else INPUT_DTYPES
    columns, of_v = last_dimension(caller, q, "q"), last_dimension(caller, v, "v")
    narrow = narrow or _NO_NARROW
    scale_block = narrow.get("scale_block")
    packed = None if scale_block is None else block_format(scale_block)
    if packed is None or packed.element is None:
        dtype = dtype_of(caller, q, known=taken)
    else:
        columns, dtype = columns * packed.in_byte, dtype_of(caller, v, "v", known=taken)
    fields |= {
        "head_dim": columns,
        "head_dim_v": of_v or columns,
        "dtype": dtype,
        "scale_block": scale_block,
        "out_dtype": narrow.get("out_dtype"),
    }
    settings = settings_of_call(scores, functools.partial(dtype_of, caller)) if scores else NOTHING_ASKED
    kind: Any = of[not of_v]
    try:
        return _kernel(kind, *settings, **fields)
    except TypeError:  # not hashable, so no valid choice: the config refuses it
        return _kernel.__wrapped__(kind, *settings, **fields)


class _OfAttention(AttentionKernel):
    """The attention kernel behind a call of `attention`, whose caller made no config."""

    caller: ClassVar = "attention"
    _caller = Caller(caller, has_config=False)


class _OfVarlen(AttentionKernel):
    """The attention kernel behind a call of `attention_varlen`, whose caller made no config."""

    caller: ClassVar = "attention_varlen"
    _caller = Caller(caller, has_config=False)


class _AttentionOfNoColumns(AttentionOfNoColumns):
    """A kernel of `attention` for values without columns."""

    caller: ClassVar = _OfAttention.caller
    _caller = _OfAttention._caller


class _VarlenOfNoColumns(AttentionOfNoColumns):
    """A kernel of `attention_varlen` for values without columns."""

    caller: ClassVar = _OfVarlen.caller
    _caller = _OfVarlen._caller


@functools.lru_cache(maxsize=128, typed=True)
def _kernel(kind: type[AttentionKernel], *settings: Any, **fields: Any) -> AttentionKernel:
    """The kernel of a call whose config has `fields` and the `settings` of scores."""
    return kind(config_of_call(kind._caller.name, **fields, **named_settings(settings)))


_NAMES_OF_DTYPES: Final[dict[object, str]] = {}  # a config's name of each dtype object
_KINDS_WITH_DTYPES: Final = ("numpy", "torch", "cupy")  # whose dtypes are few and hashable


def dtype_of(caller: str, array: object, name: str = "q", known: Mapping[str, DType] = DTYPES) -> str:
    """The config's name of an array's element type. Raises `LaunchError` if it is none of those `known` by
    name; for q the message says to convert k and v, too.
    """
    dtype_object = getattr(array, "dtype", None)
    try:
        cached = _NAMES_OF_DTYPES[dtype_object]
        if cached in known:
            return cached
    except (KeyError, TypeError):  # TypeError: not hashable
        pass
    array_view = readable_views({name: array}, caller)[name]
    dtype = OF_ARRAYS.get(array_view.dtype)
    if dtype is None or dtype.name not in known:
        wanted = ", ".join(t.array_name for t in known.values())
        raise LaunchError(
            f"{caller}: {name} must be one of {wanted}, got {array_view.dtype}; convert "
            f"{'q, k and v, such as ' if name == 'q' else 'it '}with "
            f"{conversion(name, array_view, F32)}"
        )
    if array_view.kind in _KINDS_WITH_DTYPES:
        _NAMES_OF_DTYPES[dtype_object] = dtype.name
    return dtype.name


_LAYOUTS_OF_PAGES: Final[dict[str, Layout]] = {"NHD": "bshd", "HND": "bhsd"}  # as those of a batch


def pages_of_varlen(k: object, block_table: object, kv_layout: object) -> tuple[Layout, int | None]:
    """The layout of a batch of which an item is a page of a call of `attention_varlen`, and the keys of a
    page; None without `block_table`. Raises `LaunchError` for an unknown word, and if k has no pages.
    """
    if not is_one_of(kv_layout, tuple(_LAYOUTS_OF_PAGES)):
        raise LaunchError(
            f"{_OfVarlen.caller}: kv_layout must be one of {', '.join(_LAYOUTS_OF_PAGES)}, got "
            f"{shown(kv_layout)}{did_you_mean(kv_layout, _LAYOUTS_OF_PAGES)}"
        )
    if block_table is None:
        return "bhsd", None
    layout = _LAYOUTS_OF_PAGES[str(kv_layout)]
    return layout, _page_size(_OfVarlen.caller, k, layout)


def _page_size(caller: str, k: object, layout: str) -> int:
    """The rows of a page of k. Raises `LaunchError` if k has no pages."""
    shape = getattr(k, "shape", None)
    if not isinstance(shape, tuple):
        shape = readable_views({"k": k}, caller)["k"].shape
    if len(shape) != 4:
        axes = "kv_heads, page_size" if layout == "bhsd" else "page_size, kv_heads"
        raise LaunchError(
            f"{caller}: k must be [pages, {axes}, head_dim], because block_table is given, got {list(shape)}"
        )
    return int(shape[2 if layout == "bhsd" else 1])


def last_dimension(caller: str, array: object, name: str) -> int:
    """The extent of an array's last dimension. Raises `LaunchError` if it has no dimension."""
    shape = getattr(array, "shape", None)
    if not isinstance(shape, tuple) or not shape:
        shape = readable_views({name: array}, caller)[name].shape
    if not shape:
        raise LaunchError(f"{caller}: {name} must have three or four dimensions, got none")
    return int(shape[-1])
