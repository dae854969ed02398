"""Attention of new queries to all keys of a cache, which their own may join first."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash import results
from flash.arrays import HOST, ArrayView, host_array, view
from flash.config import AttentionConfig
from flash.cpu import attention_cpu
from flash.dtypes import DTYPES, E4M3, F32, OF_ARRAYS
from flash.kv_arguments import INT32_MAX, integer, integers
from flash.kv_cache import KVCache
from flash.launch import out_problems, raise_problems, views_of
from flash.launch import scale as scale_of
from flash.operands import operand_problems
from flash.overlap import may_share_elements
from flash.rotary import rotated
from ptxgen.errors import ConfigError, LaunchError, did_you_mean
from ptxgen.runtime.settings import AUTO

Array = NDArray[Any]

_WHO: Final = "attention_with_kvcache"
_CAUSAL: Final = (True, False, "bottom_right")
_BACKENDS: Final = ("cpu",)


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

    `splits`, into how many parts kernels divide the keys, does not matter on the backend "cpu",
    which is what "auto" takes for a cache of "cpu"; nor does the rest of the batch.

    Raises `LaunchError` with problems of the arguments, `ConfigError` for what `AttentionConfig`
    refuses and unknown backends, `CacheFullError` if there is no room for k and v. The cache is
    then as it was.
    """
    _check_choices(cache, causal, splits, backend, stream, rotary_interleaved)
    layer = cache.check_layer(_WHO, layer)
    optional = {
        "k": k, "v": v, "out": out, "alibi_slopes": alibi_slopes, "mask": mask, "sink": sink,
        "rotary_cos": rotary_cos, "rotary_sin": rotary_sin,
    }  # fmt: skip
    given = {"q": q} | {name: array for name, array in optional.items() if array is not None}
    _require_both(given, "k", "v")
    _require_both(given, "rotary_cos", "rotary_sin")
    views = views_of(given, _WHO)
    which = cache.check_sequences(_WHO, cache_batch_idx, "cache_batch_idx", repeated=k is None)
    raise_problems(list(_problems_of_rows(cache, views, len(which))), _WHO)
    config = _config(
        cache.head_dim, cache.head_dim_v, OF_ARRAYS[views["q"].dtype].name, causal, window,
        softcap, "alibi_slopes" in views, "mask" in views, "sink" in views,
    )  # fmt: skip
    raise_problems(list(_problems_of_others(config, views)), _WHO)
    rows = _rows(cache, layer, which, views["k"].shape[2] if "k" in views else 0, leftpad)
    raise_problems(list(_rotary_problems(cache, views, rows)), _WHO)
    scale = scale_of(config, softmax_scale)

    like, shape = views["q"], (*views["q"].shape[:3], cache.head_dim_v)
    made = results.empty(like, shape, config.element) if out is None else out
    lse = results.empty(like, shape[:3], F32) if return_lse else None
    queries = _append(cache, layer, views, rows, rotary_interleaved)
    operands: dict[str, Array] = {
        name: host_array(views[name]) for name in ("alibi_slopes", "sink", "mask") if name in views
    }
    _attend(
        cache, layer, config, scale, rows, queries, operands, host_array(view(made, "out")),
        None if lse is None else host_array(view(lse, "lse")),
    )  # fmt: skip
    if out is None:
        made = results.deliver(made, like)
    return made if lse is None else (made, results.deliver(lse, like))


class _Rows(NamedTuple):
    """Of each item of a call: its sequence, how many rows that has once k and v are appended, and
    how many of these are padding.
    """

    sequences: list[int]
    after: list[int]
    padding: list[int]

    def positions(self, rows: int) -> NDArray[np.int64]:
        """[items, rows]: those of the last so many rows of each sequence; 0 for padding."""
        ends = np.array(self.after, np.int64) - np.array(self.padding, np.int64)
        found: NDArray[np.int64] = np.maximum(ends[:, None] + np.arange(-rows, 0), 0)
        return found


# ------------------------------------------------------------------------------------------
# doing it


def _append(
    cache: KVCache, layer: int, views: dict[str, ArrayView], rows: _Rows, interleaved: bool
) -> Array:
    """Append k and v if they are given; the queries. Both turned, if tables are given."""
    turned = {name: host_array(views[name]) for name in ("q", "k") if name in views}
    if "rotary_cos" in views:
        cos, sin = (host_array(views[name]) for name in ("rotary_cos", "rotary_sin"))
        kept = {"q": turned["q"].dtype, "k": _type_of_appended(cache)}
        for name, array in turned.items():
            positions = rows.positions(array.shape[2])
            found = rotated(array, cos, sin, positions, interleaved=interleaved)
            turned[name] = found.astype(kept[name])
    if "k" in turned:
        counts = [turned["k"].shape[2]] * len(rows.sequences)
        new = view(turned["k"], "k")
        cache.write(_WHO, layer, new, views["v"], rows.sequences, counts)
    return turned["q"]


def _type_of_appended(cache: KVCache) -> np.dtype[Any]:
    """What keys that were computed in f32 are rounded to before a cache takes them: nothing, where
    it rounds them itself.
    """
    return (F32 if cache.element is E4M3 else cache.element).numpy


def _attend(
    cache: KVCache,
    layer: int,
    config: AttentionConfig,
    scale: float,
    rows: _Rows,
    q: Array,
    operands: dict[str, Array],
    out: Array,
    lse: Array | None,
) -> None:
    """Each sequence by itself, so that its bits do not depend on the others."""
    of_heads = {
        name: np.broadcast_to(array, q.shape[:2])
        for name, array in operands.items()
        if name != "mask"
    }
    for b, (sequence, padding) in enumerate(zip(rows.sequences, rows.padding, strict=True)):
        keys, values = cache.rows(layer, sequence, padding)
        own: dict[str, Any] = {name: array[b : b + 1] for name, array in of_heads.items()}
        if "mask" in operands:
            own["mask"] = _mask_of(operands["mask"], b, keys.shape[1])
        attention_cpu(
            q[b : b + 1], keys[None], values[None], out[b : b + 1],
            None if lse is None else lse[b : b + 1],
            softmax_scale=scale,
            causal=config.causal,  # type: ignore[arg-type]  # one of the words the config allows
            window=config.window,
            softcap=config.softcap,
            **own,
        )  # fmt: skip


def _mask_of(mask: Array, b: int, keys: int) -> Array:
    """[1, heads or 1, seq_q or 1, keys]: that of a sequence with so many keys."""
    wide = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    own = wide[b : b + 1] if len(wide) > 1 else wide
    last = own.shape[3]
    if last >= keys:
        return own[..., last - keys :]
    return np.pad(own, ((0, 0), (0, 0), (0, 0), (keys - last, 0)), constant_values=True)


# ------------------------------------------------------------------------------------------
# checks


def _check_choices(
    cache: object, causal: object, splits: object, backend: object, stream: object, order: object
) -> None:
    """Raise `LaunchError` or `ConfigError` for the first choice that there is not."""
    if not isinstance(cache, KVCache):
        raise LaunchError(
            f"{_WHO}: cache must be a flash.KVCache, got {type(cache).__name__}; make one with "
            "flash.KVCache(layers, batch, kv_heads, head_dim, capacity)"
        )
    name = cache.backend if backend == AUTO else backend
    if name not in _BACKENDS:
        raise ConfigError(
            f"{_WHO}: backend must be one of {', '.join((AUTO, *_BACKENDS))}, got {name!r}"
            f"{did_you_mean(str(name), _BACKENDS)}"
        )
    if cache.memory.device != HOST:
        raise LaunchError(
            f"{_WHO}: backend {name!r} computes on the host, but the cache is of "
            f"{cache.backend!r}; make one with backend='cpu'"
        )
    if stream is not None:
        raise LaunchError(
            f"{_WHO}: stream is for a GPU, but the backend is {name!r}; leave out the stream"
        )
    if causal not in _CAUSAL:
        raise ConfigError(
            f"{_WHO}: causal must be True, False or 'bottom_right', got {causal!r}: the newest "
            "query is at the position of the newest key"
        )
    if splits != AUTO and integer(splits, 1, INT32_MAX) is None:
        raise ConfigError(f"{_WHO}: splits must be 'auto' or an integer above 0, got {splits!r}")
    if not isinstance(order, bool):
        raise ConfigError(f"{_WHO}: rotary_interleaved must be True or False, got {order!r}")


def _require_both(given: dict[str, object], one: str, other: str) -> None:
    for name, missing in ((one, other), (other, one)):
        if name in given and missing not in given:
            raise LaunchError(f"{_WHO}: {name} is given without {missing}; give both, or neither")


@functools.lru_cache(maxsize=128, typed=True)
def _kept_config(*choices: Any) -> AttentionConfig:
    return _new_config(*choices)


def _config(*choices: Any) -> AttentionConfig:
    try:
        return _kept_config(*choices)
    except TypeError:  # what cannot be a key is no choice of the config's, which says so
        return _new_config(*choices)


def _new_config(
    head_dim: int,
    head_dim_v: int,
    dtype: str,
    causal: bool | str,
    window: tuple[int | None, int | None] | None,
    softcap: float | None,
    alibi: bool,
    mask: bool,
    sink: bool,
) -> AttentionConfig:
    return AttentionConfig(
        head_dim, head_dim_v, dtype, causal, window=window, softcap=softcap, alibi=alibi, mask=mask,
        sink=sink,
    )  # fmt: skip


def _problems_of_rows(cache: KVCache, views: dict[str, ArrayView], items: int) -> Iterator[str]:
    """What is wrong with where the arrays are, and with q, k and v."""
    yield from (
        f"{name} must be on the host, where the cache is, got {array.device_name}; copy it there"
        for name, array in views.items()
        if array.device != HOST and name not in ("k", "v")  # of these the cache says so
    )
    q = views["q"]
    yield from cache.problems_of_type("q", q)
    heads = q.shape[1] if len(q.shape) == 4 else 0
    if len(q.shape) != 4 or (q.shape[0], q.shape[3]) != (items, cache.head_dim):
        yield (
            f"q must be [batch, heads, seq_q, head_dim] = [{items}, heads, seq_q, "
            f"{cache.head_dim}], got {list(q.shape)}"
        )
    elif heads % cache.kv_heads:
        yield (
            f"the heads of q must be a multiple of the cache's {cache.kv_heads}, got {heads} in "
            f"shape {list(q.shape)}"
        )
    if "k" in views:
        yield from cache.problems_of_rows(views["k"], views["v"], items)


def _problems_of_others(config: AttentionConfig, views: dict[str, ArrayView]) -> Iterator[str]:
    """What is wrong with the operands of scores, and with out."""
    q = views["q"]
    batch, heads, seq_q = q.shape[:3]
    last = views["mask"].shape[-1:] if "mask" in views else (0,)
    if last:
        sizes = {"batch": batch, "heads": heads, "seq_q": seq_q, "seq_k": last[0]}
        yield from operand_problems(config.features, views, sizes)
    else:
        yield "mask must have a dimension of keys, the last m of a sequence, got none"
    out = views.get("out")
    if out is None:
        return
    if out.dtype != q.dtype:
        yield f"out must be {q.dtype}, as q is, got {out.dtype}; leave out=None to have it made"
        return
    yield from out_problems(out, (batch, heads, seq_q, config.value_dim))
    yield from (
        f"out must not share memory with {name}; leave out=None, or pass an array of its own"
        for name, array in views.items()
        if name != "out" and may_share_elements(out, array)
    )


def _rows(cache: KVCache, layer: int, which: list[int], new: int, leftpad: object) -> _Rows:
    """Lengths and padding. Raises `LaunchError` for padding that is none."""
    of_layer = cache.lengths[layer]
    after = [int(of_layer[sequence]) + new for sequence in which]
    padding = [0] * len(which) if leftpad is None else integers(leftpad, 0, INT32_MAX, len(which))
    if padding is None or any(n > length for n, length in zip(padding, after, strict=True)):
        raise LaunchError(
            f"{_WHO}: leftpad must be {len(which)} integers, from 0 to the lengths of their "
            f"sequences, {after}, got {leftpad!r}"
        )
    return _Rows(which, after, padding)


def _rotary_problems(cache: KVCache, views: dict[str, ArrayView], rows: _Rows) -> Iterator[str]:
    if "rotary_cos" not in views:
        return
    cos, sin = views["rotary_cos"], views["rotary_sin"]
    names = [dtype.array_name for dtype in DTYPES.values()]
    for name, array in (("rotary_cos", cos), ("rotary_sin", sin)):
        if array.dtype not in names:
            yield f"{name} must be one of {', '.join(names)}, got {array.dtype}; convert it"
    most = cache.head_dim // 2
    if tuple(cos.shape) != tuple(sin.shape) or len(cos.shape) != 2 or cos.shape[1] > most:
        yield (
            f"rotary_cos and rotary_sin must be [positions, rotary_dim / 2], with rotary_dim up to "
            f"head_dim={cache.head_dim}, got {list(cos.shape)} and {list(sin.shape)}"
        )
        return
    needed = max((a - p for a, p in zip(rows.after, rows.padding, strict=True)), default=0)
    if cos.shape[0] < needed:
        yield (
            f"rotary_cos and rotary_sin must have a row for each of {needed} positions, got "
            f"{cos.shape[0]}"
        )
