"""The callbacks of traced calls: attention and its gradients, of arrays in the host's memory.

`jax.vmap` adds axes in front of all arrays of a call, of length 1 where an array is not mapped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

import flash
from flash.adapters.jax.call import AXES, MATRICES, SEED, Array, Call
from flash.cpu.gradients import attention_gradients_cpu
from flash.launch.varlen import LENGTHS
from flash.mods.trace import AUX
from flash.problem.sequences import each_sequence
from flash.scores.feature import summed_to
from flash.scores.features import split_by_axes

Arrays = Mapping[str, Array]

_MATRIX: Final = ("batch", "heads", "rows", "columns")  # in either layout the batch is first


def forward(call: Call, ranks: Mapping[str, int], with_lse: bool, *given: Any) -> tuple[Array, ...]:
    """out, or out and lse; `ranks` are the names of the arrays and their axes without mapped ones."""
    arrays = {name: np.asarray(array) for name, array in zip(ranks, given, strict=True)}
    lead = mapped_axes(arrays, ranks)
    if lead and call.items_are_alike:
        return as_a_batch(lambda own: _attend(call, own, with_lse), arrays, ranks, lead, np)
    return _each(lambda own: _attend(call, own, with_lse), arrays, ranks, lead)


def backward(call: Call, ranks: Mapping[str, int], wanted: Sequence[str], *given: Any) -> tuple[Array, ...]:
    """The gradients of `wanted`. Beside its own arrays, a call has dout, out, lse and maybe dlse."""
    arrays = {name: np.asarray(array) for name, array in zip(ranks, given, strict=True)}
    differentiate = _varlen_gradients if call.is_varlen else _gradients
    return _each(lambda own: differentiate(call, own, wanted), arrays, ranks, mapped_axes(arrays, ranks))


def mapped_axes(arrays: Mapping[str, Any], ranks: Mapping[str, int]) -> tuple[int, ...]:
    """The lengths of the axes that `jax.vmap` has added."""
    return np.broadcast_shapes(*(array.shape[: array.ndim - ranks[name]] for name, array in arrays.items()))


def _each(
    function: Callable[[Arrays], tuple[Array, ...]],
    arrays: Arrays,
    ranks: Mapping[str, int],
    lead: tuple[int, ...],
) -> tuple[Array, ...]:
    """The results of each mapped item alone, side by side."""
    if not lead:
        return function(arrays)
    wide = {n: np.broadcast_to(a, lead + a.shape[a.ndim - ranks[n] :]) for n, a in arrays.items()}
    found = [function({name: array[at] for name, array in wide.items()}) for at in np.ndindex(lead)]
    return tuple(np.stack(parts).reshape(*lead, *parts[0].shape) for parts in zip(*found, strict=True))


def as_a_batch(
    attend: Callable[[Mapping[str, Any]], tuple[Any, ...]],
    arrays: Mapping[str, Any],
    ranks: Mapping[str, int],
    lead: tuple[int, ...],
    numpy: Any,
) -> tuple[Any, ...]:
    """The results of all mapped items by one call of `attend`: items become items of the batch. `numpy`
    is the module of the arrays: numpy or jax.numpy.
    """
    items = math.prod(lead)
    batch = 1 if ranks["q"] == 3 else arrays["q"].shape[len(lead)]
    folded = {}
    for name, array in arrays.items():
        mapped = array.shape[: len(lead)]
        own = array.shape[len(lead) :]
        whole = (1,) * (len(AXES.get(name, _MATRIX)) - len(own)) + own
        if name not in MATRICES and whole[0] == 1 and math.prod(mapped) == 1:  # the same for all
            folded[name] = array.reshape(whole)
        else:
            wide = numpy.broadcast_to(array.reshape(mapped + whole), (*lead, batch, *whole[1:]))
            folded[name] = wide.reshape(items * batch, *whole[1:])
    found = attend(folded)
    own_batch = lead if ranks["q"] == 3 else (*lead, batch)
    return tuple(result.reshape(*own_batch, *result.shape[1:]) for result in found)


def _attend(call: Call, arrays: Arrays, with_lse: bool) -> tuple[Array, ...]:
    """out, or out and lse. Rows of no sequence are 0, and their lse is -inf."""
    given: dict[str, Any] = {"return_lse": with_lse, "backend": call.backend, **call.arguments(arrays)}
    if not call.is_varlen:
        found = flash.attention(**given)
        return tuple(found) if with_lse else (found,)
    q, v = arrays["q"], arrays["v"]
    found = flash.attention_varlen(**given, out=np.zeros((*q.shape[:2], v.shape[2]), q.dtype))
    if not with_lse:
        return (found,)
    out, lse = found
    no_query = np.ones(len(q), bool)
    for _, rows, _ in each_sequence(**_lengths(arrays)):
        no_query[rows] = False
    lse[:, no_query] = -np.inf
    return out, lse


def _lengths(arrays: Arrays) -> Any:
    return {name: arrays[name] for name in LENGTHS if name in arrays}


def _gradients(call: Call, arrays: Arrays, wanted: Sequence[str]) -> tuple[Array, ...]:
    """The gradients of `wanted`, of a call with batches."""
    made = {name: np.zeros_like(arrays[name], order="C") for name in (*MATRICES, *wanted)}
    is_bshd = dict(call.settings).get("layout") == "bshd"

    def bhsd(array: Array) -> Array:
        if array.ndim == 3:
            return array[np.newaxis]
        return array.swapaxes(1, 2) if is_bshd else array

    q, k, v, out, dout = (bhsd(arrays[name]) for name in (*MATRICES, "out", "dout"))
    dq, dk, dv = (bhsd(made[name]) for name in MATRICES)
    attention_gradients_cpu(
        dout,
        q,
        k,
        v,
        out,
        arrays["lse"].reshape(q.shape[:3]),
        dq,
        dk,
        dv,
        {name: made[name] for name in wanted if name in AXES},
        dlse=arrays["dlse"].reshape(q.shape[:3]) if "dlse" in arrays else None,
        **_settings(call, arrays),
    )
    return tuple(made[name] for name in wanted)


def _varlen_gradients(call: Call, arrays: Arrays, wanted: Sequence[str]) -> tuple[Array, ...]:
    """The gradients of `wanted`, of a call with packed sequences: 0 for rows of no sequence."""
    made = {name: np.zeros_like(arrays[name], order="C") for name in (*MATRICES, *wanted)}
    q, k, v, out, dout, dq, dk, dv = (
        array.swapaxes(0, 1)[np.newaxis]
        for array in (*(arrays[name] for name in (*MATRICES, "out", "dout")), *(made[n] for n in MATRICES))
    )
    of_all = len(arrays["cu_seqlens_q"]) - 1, q.shape[1]
    of_heads, others = split_by_axes(_settings(call, arrays), of_all)
    sums = {name: np.zeros(of_all, np.float32) for name in wanted if name in AXES}
    lse, dlse = arrays["lse"][np.newaxis], arrays["dlse"][np.newaxis] if "dlse" in arrays else None
    for b, rows, keys in each_sequence(**_lengths(arrays)):
        own: Any = {name: array[b : b + 1] for name, array in of_heads.items()}
        attention_gradients_cpu(
            dout[:, :, rows],
            q[:, :, rows],
            k[:, :, keys],
            v[:, :, keys],
            out[:, :, rows],
            lse[:, :, rows],
            dq[:, :, rows],
            dk[:, :, keys],
            dv[:, :, keys],
            {name: total[b : b + 1] for name, total in sums.items()},
            dlse=None if dlse is None else dlse[:, :, rows],
            first_batch=b,
            **own,
            **others,
        )
    for name, total in sums.items():
        made[name][...] = summed_to(total, made[name].shape)
    return tuple(made[name] for name in wanted)


def _settings(call: Call, arrays: Arrays) -> dict[str, Any]:
    """The keyword arguments of `attention_gradients_cpu` for scores."""
    own = {name: array for name, array in arrays.items() if name not in ("out", "dout", "lse", "dlse")}
    kernel, given = call.kernel(own), call.arguments(own)
    found: dict[str, Any] = {"causal": kernel.config.causal, **kernel.config.score_arguments}
    found["softmax_scale"] = given.get("softmax_scale", kernel.config.scale)
    found |= {name: array for name, array in given.items() if name in (*AXES, AUX, SEED)}
    return found
