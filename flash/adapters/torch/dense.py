"""`attention` of torch tensors, as operators of PyTorch's dispatcher."""

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
from flash.operands.words import Backend, Causal, Precision
from flash.scores.features import ARRAYS
from ptxgen.runtime.settings import AUTO

_WHO: Final = "attention"


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: Causal = False,
    precision: Precision | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    stream: object = None,
    backend: Backend = AUTO,
    layout: str = "bhsd",
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    aux: Mapping[str, Tensor] | None = None,
    alibi_slopes: Tensor | None = None,
    bias: Tensor | None = None,
    key_bias: Tensor | None = None,
    mask: Tensor | None = None,
    sink: Tensor | None = None,
    dropout: float = 0.0,
    dropout_seed: int | Tensor | None = None,
) -> Any:
    """`flash.attention` of torch tensors, as the operator `ptxgen_flash::attention`, which
    torch.compile, torch.export, torch.func.vmap and autocast know.

    All arguments, shapes and results are those of `flash.attention`, and so are the exceptions. With
    `dropout` and no `dropout_seed`, the seed is a number of torch's generator on the CPU, so that
    `torch.manual_seed` repeats a call; a seed may be an int64 tensor with one element on the CPU.
    Under autocast q, k, v, bias and key_bias become of the type of autocast.

    Gradients of q, k, v, alibi_slopes, bias, key_bias and sink are computed for tensors on the CPU,
    from those of out and of lse. Raises `LaunchError` for tensors that require gradients on other
    devices, in `aux`, or with `out`; for distributed and nested tensors; and for what is no tensor.
    """
    arrays = {"alibi_slopes": alibi_slopes, "bias": bias, "key_bias": key_bias, "mask": mask, "sink": sink}
    inputs = {"q": q, "k": k, "v": v, **arrays}
    require_plain(_WHO, inputs)
    differentiated = tracked(inputs)
    if differentiated:
        require_gradients_on(_WHO, q.device, differentiated)
    names, tensors, declared = arrays_of(_WHO, aux)
    if aux:
        require_no_tracking(
            _WHO, tracked({f"aux[{name!r}]": array for name, array in aux.items()}), NOT_OF_AUX
        )
    seed = seed_tensor(_WHO, dropout, dropout_seed)
    given = (
        q,
        k,
        v,
        alibi_slopes,
        bias,
        key_bias,
        mask,
        sink,
        seed,
        tensors,
        causal_word(causal),
        precision,
        softmax_scale,
        layout,
        sides(window),
        softcap,
        dropout,
        text_of("score_mod", score_mod, declared) if score_mod is not None else "",
        text_of("mask_mod", mask_mod, declared) if mask_mod is not None else "",
        names,
        return_lse or bool(differentiated),
        backend,
        stream_number(stream),
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
    alibi_slopes: Tensor | None
    bias: Tensor | None
    key_bias: Tensor | None
    mask: Tensor | None
    sink: Tensor | None
    dropout_seed: Tensor | None
    aux: list[Tensor] | None

    @property
    def arrays(self) -> dict[str, Tensor | None]:
        """The arrays of scores that `flash.attention` takes by name, if there are any."""
        if self.alibi_slopes is self.bias is self.key_bias is self.mask is self.sink is None:
            return {}
        return {name: getattr(self, name) for name in ARRAYS}


_COUNT: Final = len(_Inputs._fields)


def _compute(*given: Any, out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    inputs, settings = _Inputs(*given[:_COUNT]), Settings(*given[_COUNT:])
    found = flash.attention(
        inputs.q,
        inputs.k,
        inputs.v,
        causal=settings.causality,
        precision=settings.precision,
        softmax_scale=settings.softmax_scale,
        return_lse=settings.return_lse,
        out=out,
        stream=settings.stream,
        backend=settings.backend,
        layout=settings.layout,
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
    shape: tuple[Any, ...] = (0,)
    if settings.return_lse:
        shape = tuple(q.shape[:-1])
        if settings.layout == "bshd":
            shape = (shape[0], shape[2], shape[1])
    return q.new_empty(shape, dtype=torch.float32)


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
    )


_SCHEMA: Final = (
    "Tensor q, Tensor k, Tensor v, Tensor? alibi_slopes, Tensor? bias, Tensor? key_bias, Tensor? mask, "
    f"Tensor? sink, Tensor? dropout_seed, Tensor[]? aux, {SCHEMA}"
)
_LOWERED: Final = tuple(map(_Inputs._fields.index, ("q", "k", "v", "bias", "key_bias")))
_ATTENTION: Final = library.declare(_WHO, f"({_SCHEMA}) -> (Tensor, Tensor)", _run, _fake, _LOWERED)
_ATTENTION_OUT: Final = library.declare(
    f"{_WHO}_out",
    f"(Tensor(a!) out, {_SCHEMA}) -> Tensor",
    _run_into,
    _fake_into,
    [at + 1 for at in _LOWERED],
)
_DIFFERENTIATED: Final = gradients.differentiate(
    _ATTENTION, _WHO, _SCHEMA, _Inputs._fields[:-1], _forward, gradients.dense, vmap.Dense
)
library.refuse_gradients(_ATTENTION_OUT, _WHO, NOT_INTO_OUT)
