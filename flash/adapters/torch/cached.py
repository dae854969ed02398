"""`attention_with_kvcache` of torch tensors, as an operator of PyTorch's dispatcher.

A KV cache is no tensor. The operator is given a tensor instead, int64 [2] on the host, with the
number of the cache and how often the operator was called with it: the operator writes to it, so that
torch keeps calls, and their order, that write to a cache whose memory it does not see.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

import flash
from flash.adapters.torch import flops, library
from flash.adapters.torch.functions import functions_of, trace_of
from flash.adapters.torch.settings import CausalWord, causal_word, have_types, sides, stream_number
from flash.adapters.torch.tensors import (
    require_no_tangents,
    require_no_tracking,
    require_plain,
    require_values,
    tracked,
)
from flash.cache.cache import KVCache
from flash.operands.words import Backend, Causal
from flash.problem.splits import splits_of
from ptxgen.arguments import in_numbers
from ptxgen.errors import LaunchError
from ptxgen.runtime.settings import AUTO

_WHO: Final = "attention_with_kvcache"
_STATE: Final = "_torch_state"  # the attribute of a cache: torch.compile follows attributes
_CACHES: Final = weakref.WeakValueDictionary[int, KVCache]()
_NUMBERS: Final = itertools.count()
_OF_SEQUENCES: Final = ("cache_batch_idx", "leftpad")  # integers of each batch item
_NO_GRADIENTS: Final = "there is no backward pass of attention over a KV cache"


def attention_with_kvcache(
    q: Tensor,
    cache: KVCache,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    layer: int,
    causal: Causal = True,
    softmax_scale: float | None = None,
    cache_batch_idx: Any = None,
    leftpad: Any = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    rotary_interleaved: bool = False,
    return_lse: bool = False,
    out: Tensor | None = None,
    splits: int | str = AUTO,
    backend: Backend = AUTO,
    stream: object = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    aux: Mapping[str, Tensor] | None = None,
    alibi_slopes: Tensor | None = None,
    mask: Tensor | None = None,
    sink: Tensor | None = None,
) -> Any:
    """`flash.attention_with_kvcache` of torch tensors, as the operator
    `ptxgen_flash::attention_with_kvcache`, which torch.compile knows.

    All arguments, shapes and results are those of `flash.attention_with_kvcache`, and so are the
    exceptions. A cache that was never used here is given to `track` before code with it is compiled.
    Under autocast q, k and v become of the type of autocast, which must then be that of the cache.

    Raises `LaunchError` for tensors that require gradients, which are not computed; for distributed
    and nested tensors; under torch.func.vmap; and under torch.export, because a cache belongs to its
    process.
    """
    arrays = {
        "rotary_cos": rotary_cos,
        "rotary_sin": rotary_sin,
        "alibi_slopes": alibi_slopes,
        "mask": mask,
        "sink": sink,
    }
    inputs = {"q": q, "k": k, "v": v, **arrays, "out": out}
    require_plain(_WHO, inputs, ("q",))
    require_no_tangents(_WHO, inputs)
    require_no_tracking(_WHO, tracked(inputs), _NO_GRADIENTS)
    if torch.compiler.is_exporting():
        raise LaunchError(
            f"{_WHO}: torch.export cannot export a call with a KV cache, which belongs to its process; "
            "export flash.adapters.torch.attention of all keys, or compile with torch.compile"
        )
    state, handle = track(cache), stream_number(_WHO, stream)
    functions = functions_of(_WHO, score_mod, mask_mod, aux)
    others = {
        "layer": layer,
        "causal": causal,
        "softmax_scale": softmax_scale,
        "cache_batch_idx": cache_batch_idx,
        "leftpad": leftpad,
        "rotary_interleaved": rotary_interleaved,
        "return_lse": return_lse,
        "splits": splits,
        "backend": backend,
        "window": window,
        "softcap": softcap,
    }
    asked = {name: in_numbers(value) for name, value in others.items()}
    asked |= {name: _integers(others[name]) for name in _OF_SEQUENCES}
    if not have_types(asked):
        _refuse({"cache": cache, **inputs, **others})
    found, lse = _OPERATOR(
        state,
        out,
        q,
        k,
        v,
        *[asked[name] for name in _OF_SEQUENCES],
        *arrays.values(),
        functions.tensors,
        asked["layer"],
        cache.head_dim_v,
        causal_word(asked["causal"]),
        asked["softmax_scale"],
        sides(asked["window"]),
        asked["softcap"],
        functions.score_mod,
        functions.mask_mod,
        functions.names,
        bool(asked["rotary_interleaved"]),
        bool(asked["return_lse"]),
        splits_of(_WHO, asked["splits"]),
        backend,
        handle,
    )
    found = found if out is None else out
    return (found, lse) if return_lse else found


def track(cache: KVCache) -> Tensor:
    """The tensor that stands for a cache in operators, made at the first call. Compiled code needs
    one that exists: call `track(cache)` before.

    Raises `LaunchError` for what is no `flash.KVCache`.
    """
    state = getattr(cache, _STATE, None)
    if state is None:
        state = _new_state(cache)
    return state


def _new_state(cache: KVCache) -> Tensor:
    if torch.compiler.is_compiling():
        raise LaunchError(
            f"{_WHO}: a cache in compiled code must be known before it is compiled; call "
            "flash.adapters.torch.track(cache) once"
        )
    if not isinstance(cache, KVCache):
        raise LaunchError(f"{_WHO}: cache must be a flash.KVCache, got {type(cache).__name__}")
    number = next(_NUMBERS)
    _CACHES[number] = cache
    state = torch.tensor([number, 0], device="cpu")  # whatever the default device is
    setattr(cache, _STATE, state)
    return state


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _refuse(arguments: Mapping[str, Any]) -> None:
    """Raise what `flash.attention_with_kvcache` raises for arguments of no type that a schema has."""
    flash.attention_with_kvcache(**arguments)


def _integers(given: Any) -> Any:
    """An argument as a tensor, if it is a list or an array of numbers; unchanged if it is neither."""
    if given is None or isinstance(given, Tensor):
        return given
    try:
        return torch.as_tensor(given, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return given


class _Call(NamedTuple):
    """The arguments of the operator."""

    state: Tensor
    out: Tensor | None
    q: Tensor
    k: Tensor | None
    v: Tensor | None
    cache_batch_idx: Tensor | None
    leftpad: Tensor | None
    rotary_cos: Tensor | None
    rotary_sin: Tensor | None
    alibi_slopes: Tensor | None
    mask: Tensor | None
    sink: Tensor | None
    aux: list[Tensor] | None
    layer: int
    head_dim_v: int
    causal: CausalWord
    softmax_scale: float | None
    window: list[int] | None
    softcap: float | None
    score_mod: str
    mask_mod: str
    aux_names: list[str] | None
    rotary_interleaved: bool
    return_lse: bool
    splits: int | None
    backend: Backend
    stream: int | None


def _run(*given: Any) -> tuple[Tensor, Tensor]:
    call = _Call(*given)
    call.state[1] += 1
    window: Any = None if call.window is None else tuple(call.window)
    found = flash.attention_with_kvcache(
        call.q,
        _CACHES[int(call.state[0])],
        call.k,
        call.v,
        layer=call.layer,
        causal=call.causal or False,
        softmax_scale=call.softmax_scale,
        cache_batch_idx=call.cache_batch_idx,
        leftpad=call.leftpad,
        rotary_cos=call.rotary_cos,
        rotary_sin=call.rotary_sin,
        rotary_interleaved=call.rotary_interleaved,
        return_lse=call.return_lse,
        out=call.out,
        splits=AUTO if call.splits is None else call.splits,
        backend=call.backend,
        stream=call.stream,
        window=window,
        softcap=call.softcap,
        score_mod=trace_of(call.score_mod),
        mask_mod=trace_of(call.mask_mod),
        aux=None if call.aux is None else dict(zip(call.aux_names or (), call.aux, strict=True)),
        alibi_slopes=call.alibi_slopes,
        mask=call.mask,
        sink=call.sink,
    )
    out, lse = found if call.return_lse else (found, call.q.new_empty((0,), dtype=torch.float32))
    return (out if call.out is None else call.q.new_empty((0,))), lse


def _fake(*given: Any) -> tuple[Tensor, Tensor]:
    call = _Call(*given)
    require_values(_WHO, call.q, {name: x for name, x in call._asdict().items() if isinstance(x, Tensor)})
    rows = tuple(call.q.shape[:-1])
    return (
        call.q.new_empty((*rows, call.head_dim_v) if call.out is None else (0,)),
        call.q.new_empty(rows if call.return_lse else (0,), dtype=torch.float32),
    )


def _pairs(arguments: flops.Arguments) -> int:
    """The pairs of queries and keys of a call that has appended its keys."""
    cache, sequences = _CACHES[int(arguments["state"][0])], arguments["cache_batch_idx"]
    lengths = cache.lengths[arguments["layer"]].tolist()
    if sequences is not None:
        lengths = [lengths[n] for n in sequences.tolist()]
    _, heads, rows, _ = arguments["q"].shape
    return int(heads * rows * sum(lengths))


def _refuse_vmap(*_: Any, **__: Any) -> Any:
    raise LaunchError(
        f"{_WHO}: torch.func.vmap cannot map over calls that write to one KV cache; give the sequences "
        "as the batch of one call"
    )


_SCHEMA: Final = (
    "Tensor(a!) state, Tensor(b!)? out, Tensor q, Tensor? k, Tensor? v, Tensor? cache_batch_idx, "
    "Tensor? leftpad, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? alibi_slopes, Tensor? mask, "
    "Tensor? sink, Tensor[]? aux, SymInt layer, int head_dim_v, str causal, float? softmax_scale, "
    "SymInt[]? window, float? softcap, str score_mod, str mask_mod, str[]? aux_names, "
    "bool rotary_interleaved, bool return_lse, SymInt? splits, str backend, int? stream"
)
_LOWERED: Final = tuple(map(_Call._fields.index, ("q", "k", "v")))
_OPERATOR: Final = library.declare(_WHO, f"({_SCHEMA}) -> (Tensor, Tensor)", _run, _fake, _LOWERED)
flops.count(_OPERATOR, _pairs)
library.refuse_gradients(_OPERATOR, _WHO, _NO_GRADIENTS, written=(0, 1))
torch.library.register_vmap(f"{library.NAMESPACE}::{_WHO}", _refuse_vmap, lib=library.LIBRARY)
