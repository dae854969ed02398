"""The gradients of the attention functions: each makes kernels for the arrays of a call, and keeps them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Unpack

from flash.calls.operation import Result, stream_of
from flash.functions import dtype_of, last_dimension
from flash.gradients.kernel import NEEDED, AttentionGradient, Gradients
from flash.host import results
from flash.host.caller import Caller, flag, raise_problems, readable_views
from flash.launch.signature import BackwardArguments, GradientNarrowArguments
from flash.no_columns import problems_of_rows
from flash.operands.dtype_names import A, AnyArray, Backend, Causal, Layout, Precision
from flash.operands.dtypes import BF16, DTYPES, F16, FP8_DTYPES, INPUT_DTYPES, OF_ARRAYS
from flash.problem.config import config_of_call
from flash.scores.aux_arrays import with_captured
from flash.scores.features import (
    VarlenArguments,
    named_settings,
    of_launch,
    require_known,
    settings_of_call,
    takes,
)
from ptxgen.arrays import streams
from ptxgen.arrays.views import ArrayView, view
from ptxgen.runtime.settings import AUTO


class _GradientsOfNoColumns(AttentionGradient):
    """The gradients of calls whose values have no columns (`flash/no_columns.py`): those of q and k follow
    from that of lse alone, and that of v has no elements. The head_dim_v of the config is head_dim.
    """

    def launch(
        self,
        dout: AnyArray,
        q: AnyArray,
        k: AnyArray,
        v: AnyArray,
        out: AnyArray,
        lse: AnyArray,
        *,
        dv: AnyArray | None = None,
        needed: Iterable[str] = NEEDED,
        stream: object = None,
        wanted: Iterable[str] = (),
        **how: Any,
    ) -> Gradients[Any]:
        """The gradients of a number that depends on lse alone; dv has no elements. Arguments and
        exceptions are those of `AttentionGradient.launch`.
        """
        caller = self._caller.name
        views = readable_views({"dout": dout, "q": q, "k": k, "v": v, "out": out}, caller)
        shape = (*views["q"].shape[:-1], 0)
        problems = [
            f"{name} must be {list(shape)}, because v has no columns, got {list(views[name].shape)}"
            for name in ("dout", "out")
            if tuple(views[name].shape) != shape
        ]
        of_dv = None if dv is None else readable_views({"dv": dv}, caller)["dv"]
        if of_dv is not None and tuple(of_dv.shape) != tuple(views["v"].shape):
            problems.append(f"dv must be {list(views['v'].shape)}, as v is, got {list(of_dv.shape)}")
        raise_problems([*problems_of_rows({n: views[n] for n in "kv"}), *problems], caller)
        like = views["q"]
        handle = None if stream is None else streams.stream_handle(stream, caller)
        # In place of dout and out, with k in place of v. They are one array but with fp8, whose types differ.
        of = [views["dout"], views["out"]] if self.config.is_fp8 else [like]
        zeros = [self._empty(like, typed, handle) for typed in of]
        self._gradient.clear([view(array, "dout") for array in zeros], stream_of(like, handle))
        rows: list[Any] = [results.deliver(array, like) for array in zeros]
        asked = self._needed(needed, {"dq": how.get("dq"), "dk": how.get("dk"), "dv": dv})
        how |= {"stream": stream, "wanted": wanted, "needed": [name for name in asked if name != "v"]}
        gradients = super().launch(rows[0], q, k, k, rows[-1], lse, **how)
        if "v" not in asked:
            return gradients
        written: Any = results.deliver(self._empty(views["v"], of[-1], handle), like) if dv is None else dv
        return gradients._replace(dv=written)

    def _empty(self, shaped: ArrayView, like: ArrayView, stream: int | None) -> object:
        """A new array of the library and type of `like` with the shape of `shaped`."""
        declared = [Result("zeros", like, tuple(shaped.shape), OF_ARRAYS[like.dtype])]
        return self._gradient.new(declared, stream)[0]["zeros"]


class _OfAttention(AttentionGradient):
    """The gradient operation behind `attention_backward`, whose caller passes no config."""

    _caller = Caller("attention_backward", has_config=False)


class _OfVarlen(AttentionGradient):
    """The gradient operation behind `attention_varlen_backward`, whose caller passes no config."""

    _caller = Caller("attention_varlen_backward", has_config=False)


class _AttentionOfNoColumns(_GradientsOfNoColumns):
    """The kernels of `attention_backward` for values without columns."""

    _caller = _OfAttention._caller


class _VarlenOfNoColumns(_GradientsOfNoColumns):
    """The kernels of `attention_varlen_backward` for values without columns."""

    _caller = _OfVarlen._caller


@takes(BackwardArguments)
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
    needed: Iterable[str] = NEEDED,
    wanted: Iterable[str] = (),
    causal: Causal = False,
    precision: Precision | None = None,
    softmax_scale: float | None = None,
    deterministic: bool = True,
    stream: object = None,
    backend: Backend = AUTO,
    layout: Layout = "bhsd",
    **arguments: Unpack[BackwardArguments],
) -> Gradients[A]:
    """The gradients of `attention`, by kernels that are generated for these arrays and cached.

    `out` and `lse` are what `attention(q, k, v, return_lse=True, ...)` returned for the same
    arguments, `dout` and `dlse` the gradients of a number for them. Returns its gradients: dq, dk and
    dv, None of those matrices that `needed` does not name, and in `arrays` those of the arrays of scores that
    `wanted` names. `causal`, `window`,
    `softcap`, `score_mod`, `mask_mod` and `dropout` are as in `attention`; all other arguments and the
    exceptions are as in `AttentionGradient.launch`.

    Unless `deterministic`, dq is summed by atomics where kernels do and that is faster: not with the same
    bits in each call (`AttentionGradient`).

    float32 without a `precision` is computed as with "ieee": products are exact and summed in f32. With
    "f32_grade" the kernels use tensor cores, with an error near that of f32.

    q, k and v of fp8 come with the `q_scale`, `k_scale`, `v_scale` and `scale_block` of the forward call, and
    with a dout of fp8 whose scales, `dout_scale`, have the shape of `q_scale`. out and the gradients are of
    bfloat16 or float16. The kernels are for a Hopper GPU.
    """
    arrays = {
        "dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse,
        "dlse": dlse, "dq": dq, "dk": dk, "dv": dv,
    }  # fmt: skip
    return _launch(
        (_OfAttention, _AttentionOfNoColumns),
        attention_backward,
        BackwardArguments,
        (deterministic, causal, precision, ()),
        arguments,
        arrays,
        needed=needed,
        wanted=wanted,
        stream=stream,
        backend=backend,
        layout=layout,
        softmax_scale=softmax_scale,
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
    needed: Iterable[str] = NEEDED,
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
    must be given for arrays on a GPU. Rows of no sequence have gradient 0 in new arrays, and are not written
    in `dq`, `dk` and `dv` of the caller. All other arguments and the exceptions are as in
    `attention_backward`.
    """
    arrays = {
        "dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse,
        "dlse": dlse, "dq": dq, "dk": dk, "dv": dv,
    }  # fmt: skip
    return _launch(
        (_OfVarlen, _VarlenOfNoColumns),
        attention_varlen_backward,
        VarlenArguments,
        (deterministic, causal, precision, (seqused_q is not None, seqused_k is not None)),
        scores,
        arrays,
        needed=needed,
        wanted=wanted,
        stream=stream,
        backend=backend,
        softmax_scale=softmax_scale,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
    )


def _launch(
    kinds: tuple[type[AttentionGradient], type[AttentionGradient]],
    function: Callable[..., Any],
    known: type,
    choices: tuple[object, Causal, Precision | None, tuple[bool, ...]],
    scores: Any,
    arrays: dict[str, Any],
    **options: Any,
) -> Gradients[Any]:
    """The gradients of a call of `function`, whose arguments of scores and of fp8 are `known`, by kernels of
    the first of `kinds`, or of the second for values without columns. `choices` are deterministic, causal,
    precision and `used` as `_kernel` takes it.
    """
    caller = kinds[0]._caller.name
    require_known(caller, scores, known, function)
    scores = dict(scores)
    narrow = {name: scores.pop(name) for name in GradientNarrowArguments.__annotations__ if name in scores}
    scale_block = narrow.pop("scale_block", None)
    scores = with_captured(caller, scores)
    columns, of_v = last_dimension(caller, arrays["q"], "q"), last_dimension(caller, arrays["v"], "v")
    deterministic, *others = choices
    dtype = dtype_of(caller, arrays["q"], known=DTYPES if others[-1] else INPUT_DTYPES)
    out_dtype = _output_of(caller, arrays["out"]) if dtype in FP8_DTYPES else None
    kernel = _kernel_for(
        kinds[0 if of_v else 1],
        flag(caller, "deterministic", deterministic),
        columns,
        of_v or columns,
        dtype,
        *others,
        (out_dtype, scale_block),
        *settings_of_call(scores, functools.partial(dtype_of, caller)),
    )
    return kernel.launch(**arrays, **options, **narrow, **of_launch(scores))


def _output_of(caller: str, out: AnyArray) -> str | None:
    """The out_dtype of a config with Q, K and V of fp8 whose O is `out`; None for a type that it has not."""
    dtype = OF_ARRAYS.get(readable_views({"out": out}, caller)["out"].dtype)
    return dtype.name if dtype in (BF16, F16) else None


def _kernel_for(*choices: Any) -> AttentionGradient:
    try:
        return _kernel(*choices)
    except TypeError:  # not hashable, so no valid choice: the config refuses it
        return _kernel.__wrapped__(*choices)


@functools.lru_cache(maxsize=128, typed=True)
def _kernel(
    kind: type[AttentionGradient],
    deterministic: bool,
    head_dim: int,
    head_dim_v: int,
    dtype: str,
    causal: Causal,
    precision: Precision | None,
    used: tuple[bool, ...],
    narrow: tuple[str | None, object],
    *scores: Any,
) -> AttentionGradient:
    """The object that computes gradients of calls with these choices. `used` says whether a call has
    seqused_q and seqused_k, and is empty for sequences that are not packed; `narrow` are out_dtype and
    scale_block.
    """
    out_dtype, scale_block = narrow
    of_q, of_k = used or (False, False)
    config = config_of_call(
        kind._caller.name,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=dtype,
        causal=causal,
        precision=precision,
        varlen=bool(used),
        seqused_q=of_q,
        seqused_k=of_k,
        out_dtype=out_dtype,
        scale_block=scale_block,
        **named_settings(scores),
    )
    return kind(config, deterministic=deterministic)
