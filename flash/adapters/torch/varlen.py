"""`attention_varlen` of torch tensors, as an operator of PyTorch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

import flash
from flash.adapters.torch import gradients, library, vmap
from flash.adapters.torch.functions import arrays_of, text_of
from flash.adapters.torch.gradients import NOT_INTO_OUT, NOT_OF_AUX, Forward
from flash.adapters.torch.settings import SCHEMA, Settings, causal_word, seed_tensor, sides, stream_number
from flash.adapters.torch.tensors import require_gradients_on, require_no_tracking, require_plain, tracked
from flash.launch.varlen import LENGTHS
from flash.operands.words import Backend, Causal, Precision
from ptxgen.runtime.settings import AUTO

_WHO: Final = "attention_varlen"


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    max_seqlen_q: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    causal: Causal = False,
    precision: Precision | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    stream: object = None,
    backend: Backend = AUTO,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    aux: Mapping[str, Tensor] | None = None,
    alibi_slopes: Tensor | None = None,
    sink: Tensor | None = None,
    dropout: float = 0.0,
    dropout_seed: int | Tensor | None = None,
) -> Any:
    """`flash.attention_varlen` of torch tensors, as the operator `ptxgen_flash::attention_varlen`.

    All arguments, shapes and results are those of `flash.attention_varlen`; what this function adds
    is as in `flash.adapters.torch.attention`. The gradients of rows of no sequence are 0.
    """
    lengths = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
    }
    inputs = {"q": q, "k": k, "v": v, **lengths, "alibi_slopes": alibi_slopes, "sink": sink}
    require_plain(_WHO, inputs)
    differentiated = tracked(inputs)
    if differentiated:
        require_gradients_on(_WHO, q.device, differentiated)
    names, tensors, declared = arrays_of(_WHO, aux)
    if aux:
        require_no_tracking(
            _WHO, tracked({f"aux[{name!r}]": array for name, array in aux.items()}), NOT_OF_AUX
        )
    given = (
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_q,
        seqused_k,
        alibi_slopes,
        sink,
        seed_tensor(_WHO, dropout, dropout_seed),
        tensors,
        causal_word(causal),
        precision,
        softmax_scale,
        "",
        sides(window),
        softcap,
        dropout,
        text_of("score_mod", score_mod, declared) if score_mod is not None else "",
        text_of("mask_mod", mask_mod, declared) if mask_mod is not None else "",
        names,
        return_lse or bool(differentiated),
        backend,
        stream_number(stream),
        max_seqlen_q,
    )
    if out is None:
        found, lse = library.run(_ATTENTION, _DIFFERENTIATED, _compute, given, bool(differentiated))
    else:
        require_plain(_WHO, {"out": out})
        require_no_tracking(_WHO, tracked(inputs | {"out": out}), NOT_INTO_OUT)
        found, lse = out, _ATTENTION_OUT(out, *given)
    return (found, lse) if return_lse else found


class _Inputs(NamedTuple):
    """The arguments of the operators before those of `Settings`."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    seqused_q: Tensor | None
    seqused_k: Tensor | None
    alibi_slopes: Tensor | None
    sink: Tensor | None
    dropout_seed: Tensor | None
    aux: list[Tensor] | None

    @property
    def arrays(self) -> dict[str, Tensor | None]:
        """The arrays of scores that `flash.attention_varlen` takes by name."""
        return {"alibi_slopes": self.alibi_slopes, "sink": self.sink}

    @property
    def lengths(self) -> dict[str, Any]:
        """The arrays of lengths by name."""
        return {name: getattr(self, name) for name in LENGTHS}


_COUNT: Final = len(_Inputs._fields)


def _compute(*given: Any, out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    inputs, settings = _Inputs(*given[:_COUNT]), Settings(*given[_COUNT:])
    found = flash.attention_varlen(
        inputs.q,
        inputs.k,
        inputs.v,
        **inputs.lengths,
        max_seqlen_q=settings.max_seqlen_q,
        causal=settings.causality,
        precision=settings.precision,
        softmax_scale=settings.softmax_scale,
        return_lse=settings.return_lse,
        out=out,
        stream=settings.stream,
        backend=settings.backend,
        **settings.scores(inputs.arrays, inputs.dropout_seed, inputs.aux),
    )
    return found if settings.return_lse else (found, None)


def _run(q: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    out, lse = _compute(q, *given)
    return out, (q.new_empty((0,), dtype=torch.float32) if lse is None else lse)


def _run_into(out: Tensor, q: Tensor, *given: Any) -> Tensor:
    _, lse = _compute(q, *given, out=out)
    return q.new_empty((0,), dtype=torch.float32) if lse is None else lse


def _fake(q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty((*q.shape[:-1], v.shape[-1])), _fake_into(q, q, k, v, *given)


def _fake_into(_: Tensor, q: Tensor, *given: Any) -> Tensor:
    settings = Settings(*given[_COUNT - 1 :])
    return q.new_empty((q.shape[1], q.shape[0]) if settings.return_lse else (0,), dtype=torch.float32)


def _forward(dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, *given: Any) -> Forward:
    inputs, settings = _Inputs(*given[:_COUNT]), Settings(*given[_COUNT:])
    return Forward(
        dout,
        dlse,
        out,
        lse,
        inputs.q,
        inputs.k,
        inputs.v,
        inputs.arrays,
        inputs.dropout_seed,
        inputs.aux,
        settings,
        inputs.lengths,
    )


_SCHEMA: Final = (
    "Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor? seqused_q, "
    "Tensor? seqused_k, Tensor? alibi_slopes, Tensor? sink, Tensor? dropout_seed, Tensor[]? aux, "
    f"{SCHEMA}, int? max_seqlen_q"
)
_ATTENTION: Final = library.declare(_WHO, f"({_SCHEMA}) -> (Tensor, Tensor)", _run, _fake, (0, 1, 2))
_ATTENTION_OUT: Final = library.declare(
    f"{_WHO}_out", f"(Tensor(a!) out, {_SCHEMA}) -> Tensor", _run_into, _fake_into, (1, 2, 3)
)
_DIFFERENTIATED: Final = gradients.differentiate(
    _ATTENTION, _WHO, _SCHEMA, _Inputs._fields[:-1], _forward, gradients.varlen, vmap.Varlen
)
library.refuse_gradients(_ATTENTION_OUT, _WHO, NOT_INTO_OUT)
