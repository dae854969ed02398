"""The callbacks of traced calls: attention and its gradients, of arrays in the host's memory.

`jax.vmap` adds first axes to all arrays of a call, of length 1 where an array is not mapped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.adapters.jax.call import AXES, MATRICES, Array, Call
from flash.launch.varlen import LENGTHS
from flash.problem.outputs import NOTHING, Output
from flash.problem.sequences import each_sequence

Arrays = Mapping[str, Array]

_MATRIX: Final = ("batch", "heads", "rows", "columns")  # in either layout the batch is first


def forward(
    call: Call, ranks: Mapping[str, int], outputs: tuple[Output, ...], *inputs: Any
) -> tuple[Array, ...]:
    """out and `outputs` for `inputs`; `ranks` holds by name the numbers of their axes without mapped ones."""
    arrays = {name: np.asarray(array) for name, array in zip(ranks, inputs, strict=True)}
    lead = mapped_axes(arrays, ranks)
    if lead and call.items_are_alike:
        return as_a_batch(lambda item: _attend(call, item, outputs), arrays, ranks, lead, np)
    return _each(lambda item: _attend(call, item, outputs), arrays, ranks, lead)


def backward(call: Call, ranks: Mapping[str, int], names: Sequence[str], *inputs: Any) -> tuple[Array, ...]:
    """The gradients of the arrays called `names`. The arrays of the results follow those
    of the call.
    """
    arrays = {name: np.asarray(array) for name, array in zip(ranks, inputs, strict=True)}
    lead = mapped_axes(arrays, ranks)
    return _each(lambda item: call.gradients(item, names, on_gpu=False), arrays, ranks, lead)


def mapped_axes(arrays: Mapping[str, Any], ranks: Mapping[str, int]) -> tuple[int, ...]:
    """The lengths of the axes that `jax.vmap` has added to arrays; `ranks` are the numbers of others."""
    return np.broadcast_shapes(*(array.shape[: array.ndim - ranks[name]] for name, array in arrays.items()))


def _each(
    function: Callable[[Arrays], tuple[Array, ...]],
    arrays: Arrays,
    ranks: Mapping[str, int],
    lead: tuple[int, ...],
) -> tuple[Array, ...]:
    """The results of all mapped items, computed one by one and stacked."""
    if not lead:
        return function(arrays)
    wide = {n: np.broadcast_to(a, lead + a.shape[a.ndim - ranks[n] :]) for n, a in arrays.items()}
    results = [function({name: array[at] for name, array in wide.items()}) for at in np.ndindex(lead)]
    return tuple(np.stack(parts).reshape(*lead, *parts[0].shape) for parts in zip(*results, strict=True))


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
        shape = array.shape[len(lead) :]
        whole = (1,) * (len(AXES.get(name, _MATRIX)) - len(shape)) + shape
        if name not in MATRICES and whole[0] == 1 and math.prod(mapped) == 1:  # the same for all
            folded[name] = array.reshape(whole)
        else:
            wide = numpy.broadcast_to(array.reshape(mapped + whole), (*lead, batch, *whole[1:]))
            folded[name] = wide.reshape(items * batch, *whole[1:])
    results = attend(folded)
    batch_shape = lead if ranks["q"] == 3 else (*lead, batch)
    return tuple(result.reshape(*batch_shape, *result.shape[1:]) for result in results)


def _attend(call: Call, arrays: Arrays, outputs: tuple[Output, ...]) -> tuple[Array, ...]:
    """out and `outputs` for `arrays`. Rows of no sequence are 0, and their lse is -inf."""
    if not call.is_varlen:
        return call.results(arrays, outputs)
    q, v = arrays["q"], arrays["v"]
    results = call.results(arrays, outputs, out=np.zeros((*q.shape[:2], v.shape[-1]), q.dtype))
    for output, array in zip(outputs, results[1:], strict=True):
        if output.has_rows:
            array[:, _no_query(arrays)] = NOTHING
    return results


def _no_query(arrays: Arrays) -> NDArray[np.bool_]:
    """Which rows of q are of no sequence."""
    no_query = np.ones(len(arrays["q"]), bool)
    ends: Any = {name: arrays[name] for name in LENGTHS if name in arrays}
    for _, rows, _ in each_sequence(**ends):
        no_query[rows] = False
    return no_query
