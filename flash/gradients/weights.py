"""Attention weights as a result. They are the softmax of the scores, and so derivatives of the log-sum-exp by
the scores (d log Σ exp(s_j) / d s_j = exp(s_j) / Σ exp(s)), which the kernel of a bias' gradient computes.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Unpack, cast

from flash.calls.operation import set_initial, stream_of
from flash.functions import kernel_of, last_dimension
from flash.gradients.functions import attention_backward
from flash.host import results
from flash.host.caller import Caller, readable_views
from flash.no_columns import AttentionOfNoColumns
from flash.operands.dtype_names import A, AnyArray, Backend, Causal, Layout, Precision
from flash.operands.dtypes import F32
from flash.scores.aux_arrays import with_captured
from flash.scores.features import ScoreArguments, WeightArguments, of_launch, require_known, takes
from ptxgen.arrays import streams
from ptxgen.arrays.views import ArrayView, view
from ptxgen.errors import LaunchError, shown
from ptxgen.runtime.cuda import cuda_backend
from ptxgen.runtime.settings import AUTO

_NAME: Final = "attention_weights"
_BY_ROW: Final = ("bias", "mask")  # arrays whose last axes are queries and keys
_BY_INDEX: Final = ("score_mod", "mask_mod", "aux")  # functions of the indices of queries
_BY_DISTANCE: Final = ("window", "alibi_slopes")


class _Sums(AttentionOfNoColumns):
    """The kernel that computes the log-sum-exps (LSE) of a call's scores, without O."""

    caller: ClassVar = _NAME
    _caller = Caller(_NAME, has_config=False)


@takes(WeightArguments)
def attention_weights(
    q: A,
    k: AnyArray,
    *,
    rows: slice | None = None,
    causal: Causal = False,
    precision: Precision | None = None,
    softmax_scale: float | None = None,
    stream: object = None,
    backend: Backend = AUTO,
    layout: Layout = "bhsd",
    **scores: Unpack[WeightArguments],
) -> A:
    """The weights by which `attention` multiplies the rows of v, the softmax of the scores: float32 [batch,
    heads, rows, seq_k] in either layout, without batch for arrays of three dimensions.

    `rows` is a slice of the queries, with a step of 1; None for all. With causal, a window or alibi_slopes
    the kernels compute all rows from the first one of the slice to the last query, because positions count
    from the last query; otherwise only those of the slice. `bias` and `mask` have the rows of all queries.
    Functions of scores get indices of queries, so `rows` must be None with them.

    A row that sees no key has weights of 0; with `sink` the weights of a row sum to less than 1. Weights have
    no gradients. All other arguments and the exceptions are as in `attention`. A call needs as much memory
    again as the weights take, and 8 bytes for each row of each head.
    """
    require_known(_NAME, scores, WeightArguments, attention_weights)
    arrays: dict[str, Any] = {name: x for name, x in with_captured(_NAME, scores).items() if x is not None}
    how: dict[str, Any] = {"causal": causal, "precision": precision}
    launched: dict[str, Any] = {
        "softmax_scale": softmax_scale, "stream": stream, "backend": backend, "layout": layout
    }  # fmt: skip
    cut = slice(None)
    last_dimension(_NAME, q, "q")
    last_dimension(_NAME, k, "k")
    if rows is not None:
        q, cut = _cut(q, k, rows, causal, layout, arrays)
    no_columns: Any = k[..., :0]  # type: ignore[index]  # an array of the caller's library
    kernel = kernel_of((_Sums, _Sums), q, no_columns, arrays, None, **how)
    out, lse = kernel.launch(
        q, k, no_columns, return_lse=True, **launched, **of_launch(cast(ScoreArguments, arrays))
    )
    like, keys = readable_views({"q": q, "k": k}, _NAME).values()
    handle = None if stream is None else streams.stream_handle(stream, _NAME)
    shape = (*_rows_of(like, layout), keys.shape[-3 if layout == "bshd" else -2])
    bias = _filled(like, shape, 0.0, handle)
    key_bias = arrays.pop("key_bias", None)
    for added in (arrays.get("bias"), None if key_bias is None else key_bias[..., None, :]):
        bias = bias if added is None else bias + added  # in the caller's library
    ones = _filled(like, tuple(view(lse, "lse").shape), 1.0, handle)
    of_lse: dict[str, Any] = {"dlse": ones, "needed": (), "wanted": ("bias",)}
    gradients = attention_backward(
        out, q, k, no_columns, out, lse, **of_lse, **how, **launched, **arrays | {"bias": bias}
    )
    weights: Any = gradients.arrays["bias"]
    return weights if cut == slice(None) else weights[..., cut, :]  # type: ignore[no-any-return]


def _rows_of(array: ArrayView, layout: str) -> tuple[int, ...]:
    """The shape of q without its columns, with its axes in the order of "bhsd"."""
    *batch, m, n = array.shape[:-1]
    return (*batch, n, m) if layout == "bshd" else (*batch, m, n)


def _filled(like: ArrayView, shape: tuple[int, ...], element: float, stream: int | None) -> Any:
    """A new array of f32 of the library of `like`, all of whose elements are `element`."""
    backend = cuda_backend()
    array = results.empty(like, shape, F32, memory=backend, stream=stream)
    set_initial(
        backend, view(array, "weights")._replace(device=like.device), element, stream_of(like, stream)
    )
    return results.deliver(array, like)


def _cut(
    q: Any, k: object, rows: object, causal: Causal, layout: str, arrays: dict[str, Any]
) -> tuple[Any, slice]:
    """The queries that a call for the weights of `rows` computes, and where its result has these rows.
    Replaces arrays of all queries in `arrays` by their rows for the computed queries.
    """
    if not isinstance(rows, slice) or rows.step not in (None, 1):
        raise LaunchError(f"{_NAME}: rows must be a slice with a step of 1, or None, got {shown(rows)}")
    if named := [name for name in _BY_INDEX if name in arrays]:
        raise LaunchError(
            f"{_NAME}: rows must be None with {named[0]}, whose functions get the indices of all queries"
        )
    of_q, of_k = readable_views({"q": q, "k": k}, _NAME).values()
    axis = -3 if layout == "bshd" else -2
    seq_q, seq_k = of_q.shape[axis], of_k.shape[axis]
    if causal == "top_left" and seq_q != seq_k:
        raise LaunchError(
            f"{_NAME}: rows must be None with causal='top_left' and {seq_q} queries of {seq_k} keys, because "
            "positions count from the last query"
        )
    first, end, _ = rows.indices(seq_q)
    computed = slice(first, max(first, end))
    if causal or not arrays.keys().isdisjoint(_BY_DISTANCE):
        computed = slice(first, seq_q)
    for name in _BY_ROW:
        if name in arrays and readable_views({name: arrays[name]}, _NAME)[name].shape[-2] != 1:
            arrays[name] = arrays[name][..., computed, :]
    cut = slice(None) if end == computed.stop else slice(max(end - first, 0))
    return (q[..., computed, :, :] if layout == "bshd" else q[..., computed, :]), cut
