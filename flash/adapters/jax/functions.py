"""`attention` and `attention_varlen` as functions of JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from flash.adapters.jax import host, manual_axes
from flash.adapters.jax.call import DIFFERENTIABLE, MATRICES, PAGES, Call, split
from flash.adapters.jax.gpu import Backward, Forward, Work, result_types
from flash.launch.options import ATTENTION, DEFAULTS, VARLEN, AttentionOptions, VarlenOptions, options_of
from flash.mods.elements import differentiable
from flash.mods.record import SCORE_MOD
from flash.mods.trace import AUX
from flash.problem.features import ANGLES
from flash.problem.outputs import LSE, Output, and_lse
from flash.scores.aux_arrays import with_captured
from flash.scores.features import ScoreArguments, VarlenArguments, require_known, takes
from ptxgen.errors import LaunchError
from ptxgen.runtime.backend import check_backend
from ptxgen.runtime.settings import AUTO

_ON_GPU: Final = (AUTO, "cuda")  # the backends that programs for a GPU have
_ON_THE_CPU: Final = "such as inside jax.default_device(jax.devices('cpu')[0])"


def _with_captured(caller: str, scores: Mapping[str, Any]) -> dict[str, Any]:
    """`with_captured` of arrays of JAX, which have 32 bits where numpy's have 64, unless JAX is configured
    otherwise.
    """
    arguments, aux = dict(scores), scores.get(AUX)
    if isinstance(aux, Mapping):
        arguments[AUX] = {n: jnp.asarray(a) if isinstance(a, np.ndarray) else a for n, a in aux.items()}
    return with_captured(caller, arguments, jnp.asarray)


class AttentionArguments(AttentionOptions, ScoreArguments, total=False):
    """All arguments of `attention` that are given by name."""


class AttentionVarlenArguments(VarlenOptions, VarlenArguments, total=False):
    """All arguments of `attention_varlen` that are given by name."""

    block_table: Any
    seqused_q: Any
    seqused_k: Any
    rotary_cos: Any
    rotary_sin: Any


@takes(AttentionArguments, **DEFAULTS)
def attention(q: Any, k: Any, v: Any, **arguments: Unpack[AttentionArguments]) -> Any:
    """`flash.attention` of arrays of JAX, under `jax.jit`, `jax.vmap` and `jax.grad`, too.

    All arguments, shapes and results are those of `flash.attention`, and so are the exceptions, which
    are raised when the call is traced; results are of type jax.Array. Arguments that are no arrays
    are values of Python, but `dropout_seed` may be an integer array without axes.

    Traced calls are computed by a callback in programs for the CPU, and by kernels, on the arrays in place
    and the program's stream, in those for an NVIDIA GPU. Gradients of q, k, v, alibi_slopes, bias, key_bias,
    sink and numbers of aux that score_mod reads, from those of out and lse, are those of
    `flash.attention_backward`, by the backend of the call; of arrays on the host, "auto" is PTXGEN_BACKEND,
    else "cpu". They are reverse-mode and of first order; max_logit is a constant for them. Unless
    `deterministic`, kernels sum that of q by atomics in any order, as `flash.attention_backward` has it.

    Raises `LaunchError` for traced values of other arguments, and for gradients of other arrays in `aux` and
    of gradients.
    """
    require_known(ATTENTION, arguments, AttentionArguments, attention)
    return _called(ATTENTION, {"q": q, "k": k, "v": v}, arguments)


@takes(AttentionVarlenArguments, **DEFAULTS)
def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    **arguments: Unpack[AttentionVarlenArguments],
) -> Any:
    """`flash.attention_varlen` of arrays of JAX, as `attention` of this module is `flash.attention`.

    Arrays of lengths may be traced: their contents are checked when the call is computed. On the CPU
    and in compiled programs rows of no sequence are 0, and their lse is -inf. `max_seqlen_k`, the most
    keys of a sequence, is read by gradients on a GPU alone, which without it launch CTAs for as many keys
    as k has rows. With `seqused_k`, k and v may be a cache of a fixed size, of which sequences fill more
    and more. Keys in pages (`block_table`) have no gradients.
    """
    require_known(VARLEN, arguments, AttentionVarlenArguments, attention_varlen)
    options: dict[str, Any] = dict(arguments)
    arrays = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    arrays |= {name: options.pop(name, None) for name in ("seqused_q", "seqused_k", PAGES, *ANGLES)}
    return _called(VARLEN, arrays, options)


def _called(caller: str, arrays: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    settings = {option.name: option.default for option in options_of(caller)} | _with_captured(
        caller, arguments
    )
    for option in options_of(caller):
        value = settings.get(option.name)
        if option.check is not None and not isinstance(value, jax.core.Tracer):  # which `split` refuses
            settings[option.name] = option.check(caller, value)
    backend = settings.pop("backend")
    call, traced = split(caller, arrays, settings, backend)
    check_backend(backend, caller)
    call.shapes(traced)
    if not any(isinstance(array, jax.core.Tracer) for array in traced.values()):
        results = _now(call, traced, call.outputs)
    else:
        attend = functools.partial(_attend, call)
        if manual_axes.is_eager(traced):
            attend = jax.jit(attend)
        results = attend(manual_axes.alike(traced))
    return results if call.outputs else results[0]


# ------------------------------------------------------------------------------ forward


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: Call, arrays: dict[str, Any]) -> tuple[Any, ...]:
    return _forward(call, arrays, call.outputs)


def _forward(call: Call, arrays: dict[str, Any], outputs: tuple[Output, ...]) -> tuple[Any, ...]:
    if not any(isinstance(array, jax.core.Tracer) for array in arrays.values()):
        return _now(call, arrays, outputs)
    shapes = result_types(call, arrays, outputs)
    ranks = {name: array.ndim for name, array in arrays.items()}
    compute = functools.partial(host.forward, call, ranks, outputs)
    on_gpu = Forward(call, ranks, outputs) if call.backend in _ON_GPU else None
    return _traced(_Work(call.caller, ranks, compute, shapes, on_gpu), arrays)


def _now(call: Call, arrays: dict[str, Any], outputs: tuple[Output, ...]) -> tuple[Any, ...]:
    """The results for arrays that are not traced, on the device of the arrays."""
    if _device_of(arrays) is None:
        ranks = {name: array.ndim for name, array in arrays.items()}
        results = host.forward(call, ranks, outputs, *arrays.values())
        return tuple(map(jnp.asarray, results))
    return call.results(arrays, outputs)


def _device_of(arrays: Mapping[Any, Any]) -> str | None:
    """The GPU of one of the arrays; None if all are on the host."""
    for array in arrays.values():
        for device in array.devices() if isinstance(array, jax.Array) else ():
            if device.platform != "cpu":
                return f"{device.platform}:{device.id}"
    return None


@dataclass(frozen=True, eq=False)  # JAX hashes it
class _Work:
    """A computation of arrays: `compute` does it for arrays on the host, `on_gpu` in programs for a GPU.
    `ranks` are the names of the arrays, and their axes without mapped ones; `shapes` are those of the
    results, without mapped axes.
    """

    caller: str
    ranks: Mapping[str, int]
    compute: Callable[..., tuple[Any, ...]]
    shapes: Sequence[Any]
    on_gpu: Work | None

    def results(self, *arrays: Any) -> tuple[Any, ...]:
        """The shapes and types of the results of arrays with mapped axes."""
        lead = host.mapped_axes(dict(zip(self.ranks, arrays, strict=True)), self.ranks)
        return tuple([jax.ShapeDtypeStruct((*lead, *of.shape), of.dtype) for of in self.shapes])


def _traced(work: _Work, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
    alike = manual_axes.alike({name: jnp.asarray(array) for name, array in arrays.items()})
    return tuple(_WORK.bind(*alike.values(), work=work))


def _eagerly(*arrays: Any, work: _Work) -> Sequence[Any]:
    """The results of arrays, of which `jax.vmap` may have mapped some, outside of `jax.jit`."""
    if _device_of(dict(enumerate(arrays))) is not None:
        return jax.jit(functools.partial(_WORK.bind, work=work))(*arrays)  # type: ignore[no-any-return]
    return [jnp.asarray(result) for result in work.compute(*arrays)]


def _mapped(arrays: Any, dims: Any, *, work: _Work) -> tuple[Any, Any]:
    """The rule of `jax.vmap`: each array gets a first axis, of length 1 if it is not mapped."""
    moved = [
        jnp.expand_dims(array, 0) if axis is None else jnp.moveaxis(array, axis, 0)
        for array, axis in zip(arrays, dims, strict=True)
    ]
    return _WORK.bind(*moved, work=work), [0] * len(work.shapes)


def _refuse_second_derivatives(*_: Any, work: _Work) -> NoReturn:
    raise LaunchError(
        f"{work.caller}: second derivatives are not computed, because the backward pass has none of its own; "
        "differentiate once, or write this attention with jax.numpy"
    )


def _by_callback(*arrays: Any, work: _Work) -> Sequence[Any]:
    return jax.pure_callback(work.compute, work.results(*arrays), *arrays)  # type: ignore[no-any-return]


def _by_ffi(context: Any, *arrays: Any, work: _Work) -> Any:
    if work.on_gpu is None:
        _refuse_gpu(context, work=work)
    context.module_context.add_keepalive(work.on_gpu)
    return mlir.lower_fun(work.on_gpu.traced, multiple_results=True)(context, *arrays)


def _refuse_gpu(*_: Any, work: _Work) -> NoReturn:
    raise LaunchError(
        f"{work.caller}: backends 'cpu', 'compiled' and 'interpreter' are computed on the CPU only, others "
        "there and on NVIDIA GPUs, but the program that is compiled is for another platform; use "
        f"backend='cuda' on an NVIDIA GPU, or compile for the CPU, {_ON_THE_CPU}"
    )


# It has no derivative: `jax.custom_vjp` keeps first derivatives from it.
_WORK: Final = Primitive("ptxgen_attention")
_WORK.multiple_results = True
_WORK.def_impl(_eagerly)
_WORK.def_abstract_eval(
    lambda *arrays, work: [manual_axes.result(of.shape, of.dtype, *arrays) for of in work.results(*arrays)]
)
batching.primitive_batchers[_WORK] = _mapped
ad.primitive_jvps[_WORK] = _refuse_second_derivatives
mlir.register_lowering(_WORK, mlir.lower_fun(_by_callback, multiple_results=True), platform="cpu")
mlir.register_lowering(_WORK, _by_ffi, platform="cuda")
mlir.register_lowering(_WORK, _refuse_gpu)


# ----------------------------------------------------------------------------- backward


def _saved(call: Call, primals: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The results, and the arrays that the backward pass reads."""
    arrays = {name: primal.value for name, primal in primals.items()}
    wanted = [name for name, primal in primals.items() if primal.perturbed]
    _require_gradients(call, wanted, has_pages=PAGES in arrays)
    out, *others = _forward(call, arrays, and_lse(call.outputs))
    named = dict(zip(and_lse(call.outputs), others, strict=True))
    saved = {
        "arrays": arrays,
        "results": {"out": out, "lse": named[LSE]},
        "wanted": dict.fromkeys(wanted, ()),
    }
    return (out, *[named[output] for output in call.outputs]), saved


def _require_gradients(call: Call, wanted: Sequence[str], *, has_pages: bool) -> None:
    """Raise `LaunchError` for gradients that are not computed."""
    if has_pages:
        raise LaunchError(
            f"{call.caller}: keys in pages have no gradients, but {', '.join(wanted)} must be "
            "differentiated; use jax.lax.stop_gradient on the arrays of the call, or pass the keys packed"
        )
    elements = [array.operand for array in differentiable(dict(call.settings).get(SCORE_MOD))]
    unknown = [name for name in wanted if name not in (*DIFFERENTIABLE, *elements)]
    if unknown:
        raise LaunchError(
            f"{call.caller}: arrays of aux that score_mod does not read have no gradients, but "
            f"{', '.join(unknown)} must be differentiated; use jax.lax.stop_gradient on them"
        )


def _gradients(call: Call, saved: dict[str, Any], of_results: tuple[Any, ...]) -> tuple[dict[str, Any]]:
    arrays, results = saved["arrays"], saved["results"]
    zeros = [isinstance(gradient, SymbolicZero) for gradient in of_results]
    dout = jnp.zeros_like(results["out"]) if zeros[0] else of_results[0]
    more = {**results, "dout": dout}
    if LSE in call.outputs and not zeros[1]:  # the first of them
        more["dlse"] = of_results[1]
    gradients = _backward(call, tuple(saved["wanted"]), arrays, more)
    return ({name: gradients.get(name) for name in arrays},)


def _backward(
    call: Call, wanted: tuple[str, ...], arrays: dict[str, Any], more: dict[str, Any]
) -> dict[str, Any]:
    """The gradients of `wanted` by name."""
    wanted = tuple(sorted(wanted, key=lambda name: name not in MATRICES))
    inputs = {**arrays, **more}
    if not any(isinstance(array, jax.core.Tracer) for array in inputs.values()):
        gradients = _gradients_now(call, inputs, wanted)
    else:
        shapes = [jax.ShapeDtypeStruct(arrays[name].shape, arrays[name].dtype) for name in wanted]
        ranks = {name: array.ndim for name, array in inputs.items()}
        compute = functools.partial(host.backward, call, ranks, wanted)
        on_gpu = Backward(call, ranks, wanted) if call.backend in _ON_GPU else None
        gradients = _traced(_Work(call.caller, ranks, compute, shapes, on_gpu), inputs)
    return dict(zip(wanted, gradients, strict=True))


def _gradients_now(call: Call, inputs: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    """The gradients of arrays that are not traced, on the device of the arrays."""
    if _device_of(inputs) is not None:
        return call.gradients(inputs, names, on_gpu=True)
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    return tuple(map(jnp.asarray, call.gradients(arrays, names, on_gpu=False)))


_attend.defvjp(_saved, _gradients, symbolic_zeros=True)
