"""The checks of a call of `attention_with_kvcache`, before it changes anything."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.cache.cache import KVCache
from flash.calls.backend import stream_without_gpu
from flash.decode.checks import (
    QUERY_AXES,
    matrix_of_config,
    problems_of_operands,
    problems_of_size,
    widening_problems,
)
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
from flash.pages.numbers import integers
from flash.problem.config import AttentionConfig, config_of_call
from flash.problem.features import ANGLES
from flash.problem.limits import INT32_MAX
from flash.scores.features import named_settings
from ptxgen.arguments import is_one_of
from ptxgen.arrays.views import HOST, ArrayView
from ptxgen.errors import ConfigError, LaunchError, shown
from ptxgen.runtime.backend import check_backend
from ptxgen.runtime.settings import AUTO, WITHOUT_KERNELS

_CAUSAL: Final = (True, False, "bottom_right")


class Rows(NamedTuple):
    """For each item of a call: its sequence, the rows of this sequence once k and v are appended,
    and how many of these rows are padding.
    """

    sequences: list[int]
    after: list[int]
    padding: list[int]

    def positions(self, rows: int) -> NDArray[np.int64]:
        """The positions of the last `rows` rows of each sequence, [items, rows]; 0 for padding."""
        ends = np.array(self.after, np.int64) - np.array(self.padding, np.int64)
        found: NDArray[np.int64] = np.maximum(ends[:, None] + np.arange(-rows, 0), 0)
        return found


def check_choices(caller: str, cache: object, arguments: Mapping[str, Any]) -> str:
    """The backend of a call. Raises `LaunchError` or `ConfigError` for the first invalid choice."""
    stream, causal, order = (arguments[name] for name in ("stream", "causal", "rotary_interleaved"))
    if not isinstance(cache, KVCache):
        raise LaunchError(
            f"{caller}: cache must be a flash.KVCache, got {type(cache).__name__}; make one with "
            "flash.KVCache(layers, batch, kv_heads, head_dim, capacity)"
        )
    asked = arguments["backend"]
    name = cache.backend if isinstance(asked, str) and asked == AUTO else check_backend(asked, caller)
    if (name == "cuda") != (cache.memory.device != HOST):
        where = "a GPU" if name == "cuda" else "the host"
        raise LaunchError(
            f"{caller}: backend {name!r} computes on {where}, but the cache is of "
            f"{cache.backend!r}; make one with backend={name!r}"
        )
    if stream is not None and name != "cuda":
        raise stream_without_gpu(caller, name)
    if not is_one_of(causal, _CAUSAL):
        raise ConfigError(
            f"{caller}: causal must be True, False or 'bottom_right', got {shown(causal)}: the newest "
            "query is at the position of the newest key"
        )
    if not isinstance(order, bool):
        raise ConfigError(f"{caller}: rotary_interleaved must be True or False, got {shown(order)}")
    return name


@functools.lru_cache(maxsize=128, typed=True)
def _kept_config(*choices: Any) -> AttentionConfig:
    return _new_config(*choices)


def config_of(*choices: Any) -> AttentionConfig:
    """The config of a call, with the arguments of `_new_config`. Raises `ConfigError`."""
    try:
        return _kept_config(*choices)
    except TypeError:  # not hashable, so no valid choice: the config refuses it
        return _new_config(*choices)


def _new_config(
    caller: str, head_dim: int, head_dim_v: int, dtype: str, causal: bool | str, *scores: Any
) -> AttentionConfig:
    return config_of_call(
        caller, head_dim=head_dim, head_dim_v=head_dim_v, dtype=dtype, causal=causal, **named_settings(scores)
    )


def problems_of_rows(cache: KVCache, views: dict[str, ArrayView], items: int) -> Iterator[str]:
    """Say what is wrong with the devices of the arrays, and with q, k and v."""
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
    """Say what is wrong with alibi_slopes, mask and sink, and with out."""
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
    """Say what is wrong with a call for kernels, beyond the checks that numpy needs, too."""
    if cache.element.is_narrow:
        yield from widening_problems(config, repr(cache.dtype), backend)
    if backend == "cuda":
        for name in ("k", "v"):
            if name in views:
                yield from address_problems(name, views[name], OF_ARRAYS[views[name].dtype].nbytes)
        if "rotary_cos" in views:
            yield from _problems_of_turning(cache, views)
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
    turned = [views["q"], *new] if tables else new
    return (
        all(array.strides[-1] == 1 or array.shape[-1] == 1 for array in (*new, *tables))
        and all(_is_aligned(array) for array in (*new, *tables))
        and all(table.dtype == F32.array_name for table in tables)
        and len({array.dtype for array in turned}) == 1
    )


def joins_by_kernel(cache: KVCache, views: Mapping[str, ArrayView], backend: str) -> bool:
    """Whether a kernel writes the new rows, if there are any, and rotates them and the queries."""
    return appends_by_kernel(cache, views, backend) or turns_by_kernel(views, backend)


def turns_by_kernel(views: Mapping[str, ArrayView], backend: str) -> bool:
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
            "q and k that are turned on a GPU must be of one type, got "
            f"{', '.join(types.values())}; convert them"
        )


def _problems_of_turning(cache: KVCache, views: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say what is wrong with new rows and rotary tables: the kernel reads both on the GPU."""
    if not joins_by_kernel(cache, views, "cuda"):
        yield (
            "rotary_cos and rotary_sin are given, but new k and v are turned only if they are on the GPU "
            "of the cache; copy them there, or turn q and k before the call"
        )
    declared = [Argument(name, ANGLE_AXES, (F32,), "as kernels take it") for name in ANGLES]
    yield from type_and_row_problems(declared, views)


def rows_of_call(
    caller: str, cache: KVCache, layer: int, which: list[int], new: int, leftpad: object
) -> Rows:
    """The lengths and padding of a call's sequences. Raises `LaunchError` for invalid padding."""
    of_layer = cache.lengths[layer]
    after = [int(of_layer[sequence]) + new for sequence in which]
    padding = [0] * len(which) if leftpad is None else integers(leftpad, 0, INT32_MAX, len(which))
    if padding is None or any(n > length for n, length in zip(padding, after, strict=True)):
        raise LaunchError(
            f"{caller}: leftpad must be {len(which)} integers, from 0 to the lengths of their "
            f"sequences, {after}, got {shown(leftpad)}"
        )
    return Rows(which, after, padding)


def problems_of_rotary(cache: KVCache, views: dict[str, ArrayView], rows: Rows) -> Iterator[str]:
    """Say what is wrong with rotary_cos and rotary_sin."""
    if "rotary_cos" not in views:
        return
    declared = [Argument(name, ANGLE_AXES, tuple(DTYPES.values())) for name in ANGLES]
    yield from (p for argument in declared for p in argument.type_problems(views[argument.name]))
    wrong = list(problems_of_shapes(declared, views, {}))
    yield from wrong
    if not wrong:
        needed = max((a - p for a, p in zip(rows.after, rows.padding, strict=True)), default=0)
        yield from angle_problems(views, cache.head_dim, needed)
