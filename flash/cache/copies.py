"""Copies of a KV cache, by `copy.deepcopy` in this process and by `pickle` for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from flash.pages.placement import Run
from ptxgen.arrays.views import HOST
from ptxgen.runtime.cuda import CudaBackend

Array = NDArray[Any]
Cache = TypeVar("Cache", bound=Any)  # a `KVCache`, whose module imports this one


class State(NamedTuple):
    """The contents of a cache, on the host: lengths int32 [layers, batch], scales of heads, the pages of
    sequences, the runs of memory that hold rows, and these rows, of each layer as `KVMemory.raw` has them.
    """

    lengths: Array
    scales: Array | None
    pages: tuple[Any, ...]
    runs: list[Run]
    rows: list[list[Array]]


def arguments_of(cache: Any) -> dict[str, Any]:
    """The arguments that make an empty cache like this one, on the same device."""
    on_gpu = cache.memory.device != HOST
    return {
        "layers": cache.layers,
        "batch": cache.batch,
        "kv_heads": cache.kv_heads,
        "head_dim": cache.head_dim,
        "capacity": cache.capacity,
        "head_dim_v": cache.head_dim_v,
        "dtype": cache.dtype,
        "scale_per": "token" if cache.per_token else "head",
        "page_size": cache.page_size,
        "pages": None if cache.page_size is None else cache.placement.slots,
        "backend": cache.backend,
        "device": cache.memory.device[1] if on_gpu else None,
    }


def state_of(cache: Any) -> State:
    """The contents of a cache, copied to the host in the order of its last work."""
    lengths, scales, pages = cache.lengths, cache.scales, cache.placement
    runs = pages.held(lengths.max(axis=0).tolist())
    rows = [cache.memory.raw(layer, runs) for layer in range(cache.layers)]
    return State(lengths, None if scales is None else np.stack(scales), pages.state(), runs, rows)


def restored(
    kind: Callable[..., Cache], arguments: Mapping[str, Any], state: State, cuda: CudaBackend | None = None
) -> Cache:
    """A new cache of the class `kind`, made with `arguments`, that holds `state`; on a GPU of `cuda`, by
    default the process's. Raises what `KVCache` raises.
    """
    cache = kind(**arguments, cuda=cuda)
    if state.scales is not None:
        cache.set_scales(*state.scales)
    cache.ledger.lengths[:] = state.lengths
    cache.placement.restore(state.pages)
    for layer, arrays in enumerate(state.rows):
        cache.memory.set_raw(layer, state.runs, arrays)
    return cache
