"""The checks of the arrays, and of the numbers among the arguments, of attention over a KV cache."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping

from flash.cache.cache import KVCache
from flash.decode.checks import (
    QUERY_AXES,
    matrix_of_config,
    problems_of_operands,
    problems_of_size,
    widening_problems,
)
from flash.host.caller import raise_problems
from flash.launch.arguments import (
    Argument,
    address_problems,
    heads_problems,
    out_problems,
    problems_of_shapes,
    sharing_problems,
    type_and_row_problems,
)
from flash.launch.rotary import ANGLE_AXES, angle_problems
from flash.operands.dtypes import DTYPES, F32, OF_ARRAYS
from flash.problem.config import AttentionConfig
from flash.problem.features import ANGLES
from ptxgen.arrays.views import HOST, ArrayView
from ptxgen.runtime.settings import WITHOUT_KERNELS


def problems_of_rows(cache: KVCache, views: dict[str, ArrayView], items: int) -> Iterator[str]:
    """Return what is wrong with the devices of all arrays, and with the types and shapes of q, k and v."""
    device = cache.memory.device
    where = "the host" if device == HOST else f"{device[0]}:{device[1]}"
    yield from (
        f"{name} must be on {where}, where the cache is, got {array.device_name}; copy it there"
        for name, array in views.items()
        if array.device != device and array.size and name not in ("k", "v")  # checked by the cache
    )
    q = views["q"]
    argument, sizes = cache.argument("q", QUERY_AXES), {"batch": items, "head_dim": cache.head_dim}
    yield from argument.type_problems(q)
    yield from argument.shape_problems(tuple(q.shape), sizes)
    yield from heads_problems(sizes.get("heads", 0), cache.kv_heads, "the cache")
    if "k" in views:
        yield from cache.problems_of_rows(views["k"], views["v"], items)
        on_gpu = device != HOST and appends_by_kernel(cache, views, "cuda")
        if "rotary_cos" in views and on_gpu:
            yield from _problems_of_types(views)


def problems_of_others(config: AttentionConfig, views: dict[str, ArrayView]) -> Iterator[str]:
    """Return what is wrong with the arrays alibi_slopes, mask and sink, and with `out` for the result."""
    q = views["q"]
    batch, heads, seq_q = q.shape[:3]
    yield from problems_of_operands(config, views)
    out = views.get("out")
    if out is None:
        return
    if out.dtype != q.dtype:
        yield f"out must be {q.dtype}, as q is, got {out.dtype}; leave out=None to have it made"
        return
    yield from out_problems(out, (batch, heads, seq_q, config.value_dim))
    yield from sharing_problems(("out",), views)


def problems_of_kernels(
    cache: KVCache, config: AttentionConfig, views: dict[str, ArrayView], backend: str
) -> Iterator[str]:
    """Return the reasons why no kernel computes a call that numpy could compute."""
    if cache.element.is_narrow:
        yield from widening_problems(config, cache.element, repr(cache.dtype), backend)
    if backend == "cuda":
        for name in ("k", "v"):
            if name in views:
                yield from address_problems(name, views[name], OF_ARRAYS[views[name].dtype].nbytes)
        if "rotary_cos" in views:
            yield from _problems_of_rotation(cache, views)
    declared = [matrix_of_config(config, name, QUERY_AXES) for name in ("q", "out")]
    yield from type_and_row_problems(declared, views)
    yield from problems_of_size(views["q"], cache.capacity)


def appends_by_kernel(cache: KVCache, views: Mapping[str, ArrayView], backend: str) -> bool:
    """Whether a kernel writes the new rows: if there are any, on the device of the cache. On the
    host a kernel writes only rows of a type and layout that it takes; others are converted by
    numpy.
    """
    device = cache.memory.device
    new = [views[name] for name in "kv" if name in views]
    if backend in WITHOUT_KERNELS or not new or not all(a.size and a.device == device for a in new):
        return False
    if backend == "cuda":
        return True
    tables = [views[name] for name in ANGLES if name in views]
    rotated = [views["q"], *new] if tables else new
    return (
        all(array.strides[-1] == 1 or array.shape[-1] == 1 for array in (*new, *tables))
        and all(_is_aligned(array) for array in (*new, *tables))
        and all(table.dtype == F32.array_name for table in tables)
        and len({array.dtype for array in rotated}) == 1
    )


def joins_by_kernel(cache: KVCache, views: Mapping[str, ArrayView], backend: str) -> bool:
    """Whether a kernel writes the new rows, if there are any, and rotates them and the queries."""
    return appends_by_kernel(cache, views, backend) or rotates_by_kernel(views, backend)


def rotates_by_kernel(views: Mapping[str, ArrayView], backend: str) -> bool:
    """Whether a kernel rotates the queries of a call without new rows; on the host numpy does."""
    has_rows = any(name in views and views[name].size for name in "kv")
    return backend == "cuda" and not has_rows and ANGLES[0] in views


def _is_aligned(array: ArrayView) -> bool:
    """Whether an array begins at a multiple of its element size; True for unknown types."""
    element = OF_ARRAYS.get(array.dtype)
    return element is None or array.pointer % element.nbytes == 0


def _problems_of_types(views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with the types of q and k: the kernel that rotates them takes one type."""
    types = {name: views[name].dtype for name in ("q", "k")}
    if len(set(types.values())) > 1:
        yield (
            "q and k that are rotated on a GPU must be of one type, got "
            f"{', '.join(types.values())}; convert them"
        )


def _problems_of_rotation(cache: KVCache, views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with new rows and rotary tables: the kernel reads both on the GPU."""
    if not joins_by_kernel(cache, views, "cuda"):
        yield (
            "rotary_cos and rotary_sin are given, but new k and v are rotated only if they are on the GPU "
            "of the cache; copy them there, or rotate q and k before the call"
        )
    declared = [Argument(name, ANGLE_AXES, (F32,), "as kernels take it") for name in ANGLES]
    yield from type_and_row_problems(declared, views)


def require_angles(
    caller: str,
    cache: KVCache,
    views: Mapping[str, ArrayView],
    ends: Iterable[int],
    padding: Iterable[int],
    *,
    is_known: bool,
) -> None:
    """Raise `LaunchError` for rotary tables that do not serve sequences of `ends` rows with `padding`. Of
    tables that `is_known` says were checked before, only the number of positions is compared.
    """
    needed = max(map(operator.sub, ends, padding), default=0)
    if not is_known or views[ANGLES[0]].shape[0] < needed:
        raise_problems(_problems_of_rotary(cache, views, needed), caller)


def _problems_of_rotary(cache: KVCache, views: Mapping[str, ArrayView], needed: int) -> Iterator[str]:
    """Say what is wrong with rotary_cos and rotary_sin for `needed` positions."""
    declared = [Argument(name, ANGLE_AXES, tuple(DTYPES.values())) for name in ANGLES]
    yield from (p for argument in declared for p in argument.type_problems(views[argument.name]))
    wrong = list(problems_of_shapes(declared, views, {}))
    yield from wrong
    if not wrong:
        yield from angle_problems(views, cache.head_dim, needed)
