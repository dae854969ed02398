"""`DecodeStep`: a call of `attention_with_kvcache` that is repeated for each new token."""

from __future__ import annotations

from typing import Any, Unpack

from flash.cache.cache import KVCache
from flash.cache.call import DEFAULTS, CachedArguments, checked
from flash.cache.work import CachedWork
from flash.operands.dtype_names import AnyArray
from flash.scores.features import takes


class DecodeStep:
    """`attention_with_kvcache` with fixed arguments, called repeatedly: all arguments are checked,
    and all memory is allocated, once, so that each call takes little host time.

    All arguments are those of `attention_with_kvcache`. The arrays are kept; before each call the
    caller writes new contents to them, in the order of the stream. Results are always in the same
    arrays, `out`, `lse` and `max_logit`. `cache_batch_idx` and `leftpad` are read when the step is made.

    Calling a step does `advance` and `launch`, and returns what the function would. `launch` only
    puts kernels on the stream, always the same ones, waits for nothing and allocates nothing: a
    graph may capture it, if k and v are on the GPU. Before each replay `KVCache.grow` makes room
    for the rows that the steps of all layers write, or `advance` for the rows of one step. The
    steps of a cache share memory for partial results, so they must be on one stream,
    or in one graph, or ordered.

    Raises what `attention_with_kvcache` raises; `CacheFullError` is raised by `advance`.
    """

    @takes(CachedArguments, **DEFAULTS)
    def __init__(
        self,
        q: AnyArray,
        cache: KVCache,
        k: AnyArray | None = None,
        v: AnyArray | None = None,
        *,
        layer: int,
        **arguments: Unpack[CachedArguments],
    ) -> None:
        task = checked(DecodeStep.__init__, q, cache, k, v, layer, arguments, repeated=True)
        self._work = CachedWork(task)
        self.out: Any = task.results.out
        self.lse: Any = task.results.others.get("lse")
        self.max_logit: Any = task.results.others.get("max_logit")

    def __call__(self) -> Any:
        """Append and attend: `out`, or (out, lse). If anything is raised, the lengths of the cache
        are as they were.
        """
        return self._work.once()

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
