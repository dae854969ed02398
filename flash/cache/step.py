"""`DecodeStep`: a call of `attention_with_kvcache` that is repeated for each new token."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Unpack

from flash.cache.cache import KVCache
from flash.cache.checks import (
    check_choices,
    config_of,
    problems_of_kernels,
    problems_of_others,
    problems_of_rotary,
    problems_of_rows,
    require_both,
    rows_of_call,
)
from flash.cache.work import CachedWork, Task
from flash.decode.checks import splits_of
from flash.host import results
from flash.host.arrays import view
from flash.host.caller import Caller, flag, raise_problems, views_of
from flash.launch.checks import scale as scale_of
from flash.launch.gpu import launcher_of
from flash.operands.dtypes import F32, OF_ARRAYS
from flash.scores.features import CACHE_ARRAYS, CacheArguments, require_known, settings_of_call, takes
from ptxgen.runtime.settings import AUTO


class DecodeStep:
    """`attention_with_kvcache` with fixed arguments, called repeatedly: all arguments are checked,
    and all memory is allocated, once, so that each call takes little host time.

    All arguments are those of `attention_with_kvcache`. The arrays are kept; before each call the
    caller writes new contents to them, in the order of the stream. Results are always in the same
    arrays, `out` and `lse`. `splits="auto"` chooses by the capacity of the cache; `cache_batch_idx`
    and `leftpad` are read once, when the step is made.

    Calling a step does `advance` and `launch`, and returns what the function would. `launch` only
    puts kernels on the stream, always the same ones, waits for nothing and allocates nothing: a
    graph may capture it, if k and v are on the GPU. Before each replay `KVCache.grow` makes room
    for the rows that the steps of all layers write, or `advance` for the rows of one step. The
    steps of a cache share memory for the partial results of splits, so they must be on one stream,
    or in one graph, or ordered.

    Raises what `attention_with_kvcache` raises; `CacheFullError` is raised by `advance`.
    """

    _again: ClassVar = True
    _who: ClassVar = "DecodeStep"

    @takes(CacheArguments)
    def __init__(
        self,
        q: object,
        cache: KVCache,
        k: object = None,
        v: object = None,
        *,
        layer: int,
        causal: bool | str = True,
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
        **scores: Unpack[CacheArguments],
    ) -> None:
        who = self._who
        require_known(who, scores, CacheArguments, DecodeStep.__init__)
        name = check_choices(who, cache, causal, backend, stream, rotary_interleaved)
        parts = splits_of(who, splits)
        with_lse = flag(who, "return_lse", return_lse)
        layer = cache.check_layer(who, layer)
        optional = {
            "k": k,
            "v": v,
            "out": out,
            "rotary_cos": rotary_cos,
            "rotary_sin": rotary_sin,
            **{name: scores.get(name) for name in CACHE_ARRAYS},
        }
        given = {"q": q} | {name: array for name, array in optional.items() if array is not None}
        require_both(who, given, "k", "v")
        require_both(who, given, "rotary_cos", "rotary_sin")
        views = views_of(given, who)
        if name == "cuda":
            locate = launcher_of(cache.cuda).located
            views = {key: locate(array, who) for key, array in views.items()}
            if self._again:  # later writes are ordered by the stream
                views = {key: array._replace(stream=None) for key, array in views.items()}
        which = cache.check_sequences(who, cache_batch_idx, "cache_batch_idx", repeated=k is None)
        raise_problems(list(problems_of_rows(cache, views, len(which))), who)
        config = config_of(
            who,
            cache.head_dim,
            cache.head_dim_v,
            OF_ARRAYS[views["q"].dtype].name,
            causal,
            *settings_of_call(scores, _no_type),
        )
        raise_problems(list(problems_of_others(config, views)), who)
        if name != "cpu":
            raise_problems(list(problems_of_kernels(cache, config, views, name)), who)
        rows = rows_of_call(who, cache, layer, which, views["k"].shape[2] if "k" in views else 0, leftpad)
        raise_problems(list(problems_of_rotary(cache, views, rows)), who)
        scale = scale_of(config, softmax_scale, Caller(who, has_config=False))

        like = views["q"]._replace(device=cache.memory.device)  # an empty q may not have its device
        explicit = None if name != "cuda" or stream is None else results.stream_handle(stream, who)
        shape = (*like.shape[:3], cache.head_dim_v)
        room = functools.partial(results.empty, like, memory=cache.cuda, stream=explicit)
        made = room(shape, config.element) if out is None else out
        lse = room(shape[:3], F32) if with_lse else None
        longest = cache.capacity if self._again else max(rows.after, default=0)
        task = Task(
            who,
            cache,
            layer,
            name,
            config,
            scale,
            which,
            rows.padding,
            views,
            rotary_interleaved,
            parts,
            longest,
            explicit,
            view(made, "out") if out is None else views["out"],
            None if lse is None else view(lse, "lse"),
        )
        self._work = CachedWork(task, shared=not self._again)
        self.out: Any = results.deliver(made, like) if out is None else out
        self.lse: Any = None if lse is None else results.deliver(lse, like)

    def __call__(self) -> Any:
        """Append and attend: `out`, or (out, lse). If anything is raised, the lengths of the cache
        are as they were.
        """
        return self._work.once(self.out if self.lse is None else (self.out, self.lse))

    def advance(self) -> None:
        """Make room in the cache for the new rows, and add them to its lengths; on a GPU, lengths
        and block table are updated, in the order of the stream.

        Raises `CacheFullError` if there is no room, `LaunchError` for positions beyond the rotary
        tables; the cache is then as it was.
        """
        self._work.advance()

    def update(self) -> None:
        """Update lengths and block table on a GPU, in the order of the stream, as `advance` does. A
        step with `cache_batch_idx` needs it after `KVCache.grow`.
        """
        self._work.update()

    def launch(self) -> None:
        """Write the contents of k and v to the last rows of each sequence, and attend with q.

        Raises `LaunchError` if a sequence has fewer rows than k has new ones.
        """
        self._work.launch()


def _no_type(array: object, name: str) -> str:
    """Raise AssertionError: no feature of a KV cache has a type of its own to choose."""
    raise AssertionError(f"{name}: {array!r}")
