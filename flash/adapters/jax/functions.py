"""`attention` and `attention_varlen` as functions of JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

import flash
from flash.adapters.jax import host
from flash.adapters.jax.call import DIFFERENTIABLE, Call, split
from flash.host.caller import flag
from flash.operands.words import Backend, Causal, Precision
from flash.scores.features import ScoreArguments, VarlenArguments, require_known, takes
from ptxgen.errors import LaunchError
from ptxgen.runtime.backend import check_backend
from ptxgen.runtime.settings import AUTO

_ON_THE_CPU: Final = "such as inside jax.default_device(jax.devices('cpu')[0])"


@takes(ScoreArguments)
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: Causal = False,
    precision: Precision | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    backend: Backend = AUTO,
    layout: str = "bhsd",
    **scores: Unpack[ScoreArguments],
) -> Any:
    """`flash.attention` of arrays of JAX, under `jax.jit`, `jax.vmap` and `jax.grad`, too.

    All arguments, shapes and results are those of `flash.attention`, and so are the exceptions, which
    are raised when the call is traced; results are of type jax.Array. Arguments that are no arrays
    are values of Python, but `dropout_seed` may be an integer array without axes.

    Traced calls are computed on the CPU, by a callback. Arrays on a GPU are attended to there, in
    place, but neither under `jit` nor under `vmap`. Gradients of q, k, v, alibi_slopes, bias, key_bias
    and sink, from those of out and lse, are computed on the CPU, where "auto" is "cpu". They are
    reverse-mode and of first order.

    Raises `LaunchError` for traced values of other arguments, and for what cannot be: a traced call
    on a GPU; gradients on a GPU, with another backend than "cpu", of arrays in `aux`, or of
    gradients.
    """
    who = "attention"
    require_known(who, scores, ScoreArguments, attention)
    arrays = {"q": q, "k": k, "v": v}
    settings = {"causal": causal, "precision": precision, "softmax_scale": softmax_scale, "layout": layout}
    return _called(who, arrays, {**settings, **scores}, return_lse, backend)


@takes(VarlenArguments)
def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    *,
    max_seqlen_q: int | None = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    causal: Causal = False,
    precision: Precision | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    backend: Backend = AUTO,
    **scores: Unpack[VarlenArguments],
) -> Any:
    """`flash.attention_varlen` of arrays of JAX, as `attention` of this module is `flash.attention`.

    Arrays of lengths may be traced: their contents are checked when the call is computed. On the CPU
    rows of no sequence are 0, and their lse is -inf. With `seqused_k`, k and v may be a cache of a
    fixed size, of which sequences fill more and more.
    """
    who = "attention_varlen"
    require_known(who, scores, VarlenArguments, attention_varlen)
    arrays = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    arrays |= {"seqused_q": seqused_q, "seqused_k": seqused_k}
    settings = {"causal": causal, "precision": precision, "softmax_scale": softmax_scale}
    settings |= {"max_seqlen_q": max_seqlen_q}
    return _called(who, arrays, {**settings, **scores}, return_lse, backend)


def _called(
    who: str, arrays: Mapping[str, Any], settings: Mapping[str, Any], return_lse: bool, backend: Backend
) -> Any:
    call, given = split(who, arrays, settings, return_lse, backend)
    flag(who, "return_lse", return_lse)
    check_backend(backend, who)
    call.shapes(given)
    if not any(isinstance(array, jax.core.Tracer) for array in given.values()):
        found = _now(call, given, call.return_lse)
    else:
        found = _attend(call, given)
    return found if call.return_lse else found[0]


# ------------------------------------------------------------------------------ forward


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: Call, arrays: dict[str, Any]) -> tuple[Any, ...]:
    return _forward(call, arrays, call.return_lse)


def _forward(call: Call, arrays: dict[str, Any], with_lse: bool) -> tuple[Any, ...]:
    if not any(isinstance(array, jax.core.Tracer) for array in arrays.values()):
        return _now(call, arrays, with_lse)
    out, lse = call.shapes(arrays)
    shapes = (jax.ShapeDtypeStruct(out, arrays["q"].dtype), jax.ShapeDtypeStruct(lse, jnp.float32))
    ranks = {name: array.ndim for name, array in arrays.items()}
    compute = functools.partial(host.forward, call, ranks, with_lse)
    return _by_callback(call, compute, shapes[: 1 + with_lse], arrays)


def _now(call: Call, arrays: dict[str, Any], with_lse: bool) -> tuple[Any, ...]:
    """The results of arrays that are not traced, where these are."""
    if _device_of(arrays) is None:
        ranks = {name: array.ndim for name, array in arrays.items()}
        found = host.forward(call, ranks, with_lse, *arrays.values())
        return tuple(map(jnp.asarray, found))
    function = flash.attention_varlen if call.is_varlen else flash.attention
    given: dict[str, Any] = {"return_lse": with_lse, "backend": call.backend, **call.arguments(arrays)}
    results = function(**given)
    return tuple(results) if with_lse else (results,)


def _device_of(arrays: Mapping[Any, Any]) -> str | None:
    """The GPU of one of the arrays; None if all are on the host."""
    for array in arrays.values():
        for device in array.devices() if isinstance(array, jax.Array) else ():
            if device.platform != "cpu":
                return f"{device.platform}:{device.id}"
    return None


def _by_callback(
    call: Call, compute: Callable[..., tuple[Any, ...]], shapes: Sequence[Any], arrays: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The results of a function of the host's arrays, in a program for the CPU."""
    given = _ON_HOST.bind(*map(jnp.asarray, arrays.values()), who=call.who)
    return tuple(jax.pure_callback(compute, tuple(shapes), *given, vmap_method="expand_dims"))


def _refuse_gpu(who: str) -> NoReturn:
    raise LaunchError(
        f"{who}: traced calls, as under jax.jit and jax.vmap, are computed by a callback on the CPU, and "
        "this one is for a GPU; call it with arrays on the GPU outside of them, or compile for the CPU, "
        f"{_ON_THE_CPU}"
    )


def _unchanged(*arrays: Any, who: str) -> Sequence[Any]:
    if _device_of(dict(enumerate(arrays))) is not None:
        _refuse_gpu(who)
    return arrays


def _mapped(arrays: Any, dims: Any, *, who: str) -> tuple[Any, Any]:
    return _ON_HOST.bind(*arrays, who=who), dims


def _refuse_second_derivatives(*_: Any, who: str) -> NoReturn:
    raise LaunchError(
        f"{who}: second derivatives are not computed, because the backward pass has none of its own; "
        "differentiate once, or write this attention with jax.numpy"
    )


# An identity in front of callbacks. Programs for a GPU cannot have it, and it has no derivative:
# `jax.custom_vjp` keeps first derivatives from it. `who` is the function of the call.
_ON_HOST: Final = Primitive("ptxgen_on_host")
_ON_HOST.multiple_results = True
_ON_HOST.def_impl(_unchanged)
_ON_HOST.def_abstract_eval(lambda *arrays, **_: arrays)
batching.primitive_batchers[_ON_HOST] = _mapped
ad.primitive_jvps[_ON_HOST] = _refuse_second_derivatives
mlir.register_lowering(_ON_HOST, lambda _, *arrays, **__: arrays, platform="cpu")
mlir.register_lowering(_ON_HOST, lambda *_, who: _refuse_gpu(who))


# ----------------------------------------------------------------------------- backward


def _saved(call: Call, primals: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The results, and what the backward pass reads."""
    arrays = {name: primal.value for name, primal in primals.items()}
    wanted = [name for name, primal in primals.items() if primal.perturbed]
    _require_gradients(call, arrays, wanted)
    if call.backend == AUTO:
        call = call._replace(backend="cpu")
    out, lse = _forward(call, arrays, True)
    saved = {"arrays": arrays, "results": {"out": out, "lse": lse}, "wanted": dict.fromkeys(wanted, ())}
    return (out, lse)[: 1 + call.return_lse], saved


def _require_gradients(call: Call, arrays: Mapping[str, Any], wanted: Sequence[str]) -> None:
    """Raise `LaunchError` for gradients that cannot be computed."""
    if call.backend not in (AUTO, "cpu"):
        raise LaunchError(
            f"{call.who}: gradients are computed by backend 'cpu' only, because there are no backward "
            f"kernels, got {call.backend!r}; use backend='cpu'"
        )
    device = _device_of({n: a for n, a in arrays.items() if not isinstance(a, jax.core.Tracer)})
    if device is not None:
        raise LaunchError(
            f"{call.who}: gradients are computed on the CPU only, because there are no backward kernels, but "
            f"arrays are on {device}; move them with jax.device_put(x, jax.devices('cpu')[0])"
        )
    unknown = [name for name in wanted if name not in DIFFERENTIABLE]
    if unknown:
        raise LaunchError(
            f"{call.who}: functions of scores are not differentiated by the arrays that they index, but "
            f"{', '.join(unknown)} must be; use jax.lax.stop_gradient on them"
        )


def _gradients(call: Call, saved: dict[str, Any], of_results: tuple[Any, ...]) -> tuple[dict[str, Any]]:
    arrays, results = saved["arrays"], saved["results"]
    zeros = [isinstance(gradient, SymbolicZero) for gradient in of_results]
    dout = jnp.zeros_like(results["out"]) if zeros[0] else of_results[0]
    more = {**results, "dout": dout}
    if call.return_lse and not zeros[1]:
        more["dlse"] = of_results[1]
    found = _backward(call, tuple(saved["wanted"]), arrays, more)
    return ({name: found.get(name) for name in arrays},)


def _backward(
    call: Call, wanted: tuple[str, ...], arrays: dict[str, Any], more: dict[str, Any]
) -> dict[str, Any]:
    """The gradients of `wanted` by name."""
    given = {**arrays, **more}
    shapes = [jax.ShapeDtypeStruct(arrays[name].shape, arrays[name].dtype) for name in wanted]
    ranks = {name: array.ndim for name, array in given.items()}
    compute = functools.partial(host.backward, call, ranks, wanted)
    if any(isinstance(array, jax.core.Tracer) for array in given.values()):
        found = _by_callback(call, compute, shapes, given)
    else:
        found = tuple(map(jnp.asarray, compute(*map(np.asarray, given.values()))))
    return dict(zip(wanted, found, strict=True))


_attend.defvjp(_saved, _gradients, symbolic_zeros=True)
