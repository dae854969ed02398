"""New rows that lie on a GPU, written into a cache there by a kernel, and turned on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flash.append import NewRows, Turned, append_step
from flash.arrays import ArrayView
from flash.cached_checks import WHO
from flash.dtypes import OF_ARRAYS
from flash.gpu import launcher_of
from flash.kv_cache import KVCache
from flash.step import require_grid


def prepared_append(
    cache: KVCache,
    layer: int,
    k: ArrayView,
    v: ArrayView,
    operands: Mapping[str, ArrayView],
    turned: Turned | None,
) -> Callable[[int], None]:
    """What writes equally many rows, at least one, of each item to the cache, on a stream, and
    turns them. `operands` say where: the lengths among them are, when it runs, those with the new
    rows. Rows of padding have position 0 only as far as `leftpad_k` is among them.

    Raises `LaunchError` and `BackendError` for a kernel that cannot be.
    """
    launcher, ordinal = launcher_of(cache.cuda), cache.memory.device[1]
    arrays = cache.memory.arrays(layer)
    new = NewRows(k, v, arrays.k, arrays.v, operands, cache.page_size or 0)
    step = append_step(launcher.own_target(ordinal), OF_ARRAYS[k.dtype], new, turned)
    require_grid(WHO, step.plan.grid[0])
    kernel = launcher.load(step.made, step.plan, ordinal)
    producers = [k, v] + ([] if turned is None else [turned.q, turned.cos, turned.sin])

    def append(stream: int) -> None:
        launcher.wait_for_producers(producers, stream, ordinal)
        launcher.backend.launch(kernel, step.plan, stream)

    return append
