"""Attention of new queries to all keys of a cache, which their own may join first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash import results
from flash.append import Turned
from flash.arrays import ArrayView, host_array, view
from flash.cached_append import prepared_append
from flash.cached_checks import (
    WHO,
    Rows,
    appends_by_kernel,
    check_choices,
    config_of,
    problems_of_kernels,
    problems_of_others,
    problems_of_rotary,
    problems_of_rows,
    require_both,
    rows_of_call,
)
from flash.config import AttentionConfig
from flash.decode import CacheCall
from flash.decode_checks import splits_of
from flash.decode_cpu import attend_to_rows
from flash.decode_kernel import DecodeKernel
from flash.dtypes import E4M3, F32, OF_ARRAYS
from flash.gpu import Launcher
from flash.kv_cache import KVCache
from flash.launch import raise_problems, views_of
from flash.launch import scale as scale_of
from flash.rotary import rotated
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.settings import AUTO

Array = NDArray[Any]


def attention_with_kvcache(
    q: object,
    cache: KVCache,
    k: object = None,
    v: object = None,
    *,
    layer: int,
    causal: bool | str = True,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    alibi_slopes: object = None,
    mask: object = None,
    sink: object = None,
    softmax_scale: float | None = None,
    cache_batch_idx: object = None,
    leftpad: object = None,
    rotary_cos: object = None,
    rotary_sin: object = None,
    rotary_interleaved: bool = False,
    return_lse: bool = False,
    out: object = None,
    splits: int | str = AUTO,
    backend: str = AUTO,
    stream: object = None,
) -> Any:
    """Append k and v to a layer of `cache`, if they are given, and attend to all that it then has:
    out, or (out, lse) with `return_lse`.

    q is [batch, heads, seq_q, head_dim], k [batch, kv_heads, n, head_dim] and v [batch, kv_heads,
    n, head_dim_v], heads a multiple of kv_heads; all of the cache's type, or if that is "e4m3" of
    float32, float16 or bfloat16. `cache_batch_idx` says which sequences of the cache they belong
    to, integers [batch]; by default all of them, in order. Without k and v it may name one several
    times. The result is of the kind and type of q, or `out`, [batch, heads, seq_q, head_dim_v]; lse
    float32 [batch, heads, seq_q], the natural logarithm.

    Each sequence has its own length. Causality is bottom-right: the last query is at the position
    of the last key. `window`, `softcap`, `alibi_slopes`, `sink` and `softmax_scale` are those of
    `flash.attention`. `mask`, bool, broadcasts to [batch, heads, seq_q, m]: whether a query sees
    the last m keys of its sequence, of which those before the first are left out; it sees all keys
    before these. A tree of guesses is a mask with m = seq_q, which causality and windows narrow.

    `leftpad`, integers [batch]: so many keys at the beginning of a sequence are no keys but
    padding, and positions count from behind them. A query of padding sees no key if causal.

    `rotary_cos` and `rotary_sin` [positions, rotary_dim / 2], float32, float16 or bfloat16, turn
    the rows of k before they are appended and those of q, each by its position
    (`flash/rotary.py`); they are then rounded once, to the types that they have, or the cache's.
    `rotary_interleaved`: whether columns 2 i and 2 i + 1 are turned together, not i and i +
    rotary_dim / 2.

    `backend`: "auto", that of the cache, which computes where its memory is; for a cache on the
    host also the other of "cpu" and "interpreter". The kernels of "interpreter" and "cuda" take no
    `mask` yet, rows of q and out that are dense, and a cache of "e4m3" with queries of 16 bits,
    head_dim and head_dim_v that are multiples of 8, from sm_89 on. On a GPU all arrays are on the
    device of the cache, but for k and v, which may be on the host; with rotary tables, of float32,
    they are not. Work is put on `stream`, by default the current one of q's library.

    `splits`: into how many parts kernels divide the keys, as in `DecodeKernel.launch`; "auto" goes
    by the longest sequence of the call. On "cpu" it does not matter, nor does the rest of the
    batch.

    Raises `LaunchError` with problems of the arguments, `ConfigError` for what `AttentionConfig`
    refuses and unknown backends, `CacheFullError` if there is no room for k and v. The cache is
    then as it was.
    """
    name = check_choices(cache, causal, backend, stream, rotary_interleaved)
    parts = splits_of(WHO, splits)
    layer = cache.check_layer(WHO, layer)
    optional = {
        "k": k, "v": v, "out": out, "alibi_slopes": alibi_slopes, "mask": mask, "sink": sink,
        "rotary_cos": rotary_cos, "rotary_sin": rotary_sin,
    }  # fmt: skip
    given = {"q": q} | {name: array for name, array in optional.items() if array is not None}
    require_both(given, "k", "v")
    require_both(given, "rotary_cos", "rotary_sin")
    views = views_of(given, WHO)
    if name == "cuda":
        locate = Launcher(cache.cuda).located
        views = {key: locate(array, WHO) for key, array in views.items()}
    which = cache.check_sequences(WHO, cache_batch_idx, "cache_batch_idx", repeated=k is None)
    raise_problems(list(problems_of_rows(cache, views, len(which))), WHO)
    config = config_of(
        cache.head_dim, cache.head_dim_v, OF_ARRAYS[views["q"].dtype].name, causal, window,
        softcap, "alibi_slopes" in views, "mask" in views, "sink" in views,
    )  # fmt: skip
    raise_problems(list(problems_of_others(config, views)), WHO)
    if name != "cpu":
        raise_problems(list(problems_of_kernels(cache, config, views, name)), WHO)
    rows = rows_of_call(cache, layer, which, views["k"].shape[2] if "k" in views else 0, leftpad)
    raise_problems(list(problems_of_rotary(cache, views, rows)), WHO)
    scale = scale_of(config, softmax_scale)

    like = views["q"]._replace(device=cache.memory.device)  # which an empty array may not say
    explicit = None if name != "cuda" or stream is None else results.stream_handle(stream)
    shape = (*like.shape[:3], cache.head_dim_v)
    room = functools.partial(results.empty, like, memory=cache.cuda, stream=explicit)
    made = room(shape, config.element) if out is None else out
    lse = room(shape[:3], F32) if return_lse else None
    turned = None
    if "rotary_cos" in views and name == "cuda":
        q_out = view(room(tuple(like.shape), config.element), "q")._replace(device=like.device)
        tables = views["rotary_cos"], views["rotary_sin"]
        turned = Turned(*tables, rotary_interleaved, views["q"], q_out)
        views |= {"q": q_out}
    elif "rotary_cos" in views:
        views |= _turned(cache, views, rows, rotary_interleaved)
    of_out = view(made, "out") if out is None else views["out"]
    of_lse = None if lse is None else view(lse, "lse")
    task = _Task(cache, layer, config, scale, rows, views, of_out, of_lse)
    on = cache.stream_of(WHO, stream, like)
    where = _cache_operands(task, on) if name != "cpu" and which else {}
    attend = _nothing if 0 in shape[:3] else _prepared(task, name, where, parts, on)
    if "k" in views:
        append = _prepared_append(task, where, turned, on)
        append()
    attend()
    if out is None:
        made = results.deliver(made, like)
    return made if lse is None else (made, results.deliver(lse, like))


class _Task(NamedTuple):
    """A checked call; `views` has q, turned if it is to be, and operands by name."""

    cache: KVCache
    layer: int
    config: AttentionConfig
    scale: float
    rows: Rows
    views: Mapping[str, ArrayView]
    out: ArrayView
    lse: ArrayView | None

    @property
    def operands(self) -> dict[str, ArrayView]:
        """Those of the scores."""
        names = ("alibi_slopes", "sink", "mask")
        return {name: self.views[name] for name in names if name in self.views}


def _turned(
    cache: KVCache, views: Mapping[str, ArrayView], rows: Rows, interleaved: bool
) -> dict[str, ArrayView]:
    """q, and k if it is given, turned by their positions."""
    cos, sin = (host_array(views[name]) for name in ("rotary_cos", "rotary_sin"))
    found = {}
    for name in ("q", "k"):
        if name in views:
            array = host_array(views[name])
            positions = rows.positions(array.shape[2])
            new = rotated(array, cos, sin, positions, interleaved=interleaved)
            kept = array.dtype if name == "q" else _type_of_appended(cache)
            found[name] = view(new.astype(kept), name)
    return found


def _type_of_appended(cache: KVCache) -> np.dtype[Any]:
    """What keys that were computed in f32 are rounded to before a cache takes them: nothing, where
    it rounds them itself.
    """
    return (F32 if cache.element is E4M3 else cache.element).numpy


def _nothing() -> None:
    """There is no query."""


def _prepared(
    task: _Task, backend: str, where: Mapping[str, ArrayView], splits: int | None, stream: int
) -> Callable[[], object]:
    """What attends once the new rows are in the cache. Raises what `DecodeKernel.prepared` does."""
    if backend == "cpu":
        operands = {name: host_array(array) for name, array in task.operands.items()}
        lse = None if task.lse is None else host_array(task.lse)
        q, out = host_array(task.views["q"]), host_array(task.out)

        def rows_of(b: int) -> tuple[Array, Array]:
            return task.cache.rows(task.layer, task.rows.sequences[b], task.rows.padding[b])

        return functools.partial(
            attend_to_rows, task.config, task.scale, q, rows_of, operands, out, lse
        )
    kernel = _kernel(task.config, task.cache.cuda)
    call = _cache_call(task, where, stream)
    attend = kernel.prepared(call, backend=backend, splits=splits, stream=stream, who=WHO)

    def bring_up_to_date() -> None:
        task.cache.arrays(task.layer, stream)
        attend()

    return bring_up_to_date


@functools.lru_cache(maxsize=64)
def _kernel(config: AttentionConfig, cuda: CudaBackend) -> DecodeKernel:
    return DecodeKernel(config, cuda=cuda)


def _prepared_append(
    task: _Task, where: Mapping[str, ArrayView], turned: Turned | None, stream: int
) -> Callable[[], object]:
    """What appends k and v: on a GPU a kernel, if they are there."""
    cache, (k, v) = task.cache, (task.views[name] for name in "kv")
    which = task.rows.sequences
    if appends_by_kernel(cache, task.views):
        return prepared_append(cache, task.layer, which, k, v, where, turned, stream)
    counts = [k.shape[2]] * len(which)
    return functools.partial(cache.write, WHO, task.layer, k, v, which, counts, stream)


def _cache_call(task: _Task, where: Mapping[str, ArrayView], stream: int) -> CacheCall:
    """The call of kernels. Arrays of a cache are where they were also when rows are appended."""
    cache, arrays = task.cache, task.cache.arrays(task.layer, stream)
    return CacheCall(
        task.config, task.views["q"], arrays.k, arrays.v, task.out, task.lse,
        {**task.operands, **where}, cache.page_size or 0, max(task.rows.after), task.scale,
    )  # fmt: skip


def _cache_operands(task: _Task, stream: int) -> dict[str, ArrayView]:
    """What says where the rows of each item are in the cache."""
    cache, rows = task.cache, task.rows
    arrays = cache.arrays(task.layer, stream)
    numbers = functools.partial(_numbers, cache, stream)
    operands = {}
    if rows.sequences == list(range(cache.batch)):
        operands["seqused_k"] = arrays.lengths
    else:
        operands["seqused_k"] = numbers("seqused_k", rows.after)
        operands["cache_batch_idx"] = numbers("cache_batch_idx", rows.sequences)
    if any(rows.padding):
        operands["leftpad_k"] = numbers("leftpad_k", rows.padding)
    more = {"block_table": arrays.block_table, "k_scale": arrays.k_scale, "v_scale": arrays.v_scale}
    operands |= {name: array for name, array in more.items() if array is not None}
    return operands


def _numbers(cache: KVCache, stream: int, name: str, values: list[int]) -> ArrayView:
    return cache.memory.numbers(name, np.array(values, np.int32), stream)
