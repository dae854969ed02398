"""Attention of new queries to all keys of a KV cache, after optionally appending new keys: a call, and a
step that is repeated for each new token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack, overload

import numpy as np

from flash.cache.cache import KVCache
from flash.cache.call import DEFAULTS, CachedArguments, CachedOptions, Task, checked
from flash.cache.checks import joins_by_kernel, require_angles
from flash.cache.row_locations import RowLocations, write_rows
from flash.calls.gpu import Prepared
from flash.decode.operation import Launches, append_to, joined_on_cpu
from flash.decode.plan import appending, new_operands
from flash.operands.dtype_names import A, AnyArray
from flash.pages.placement import Journal, Stretch
from flash.problem.config import ALIGNMENTS
from flash.problem.features import ANGLES
from flash.scores.features import takes
from ptxgen.arrays.views import host_array, view
from ptxgen.errors import LaunchError
from ptxgen.runtime.settings import WITHOUT_KERNELS


@overload
def attention_with_kvcache(
    q: A,
    cache: KVCache,
    k: AnyArray | None = ...,
    v: AnyArray | None = ...,
    *,
    layer: int,
    return_lse: Literal[False] = ...,
    **arguments: Unpack[CachedOptions],
) -> A: ...
@overload
def attention_with_kvcache(
    q: A,
    cache: KVCache,
    k: AnyArray | None = ...,
    v: AnyArray | None = ...,
    *,
    layer: int,
    return_lse: Literal[True],
    **arguments: Unpack[CachedOptions],
) -> tuple[A, A]: ...
@overload
def attention_with_kvcache(
    q: A,
    cache: KVCache,
    k: AnyArray | None = ...,
    v: AnyArray | None = ...,
    *,
    layer: int,
    return_lse: bool = ...,
    return_max_logit: bool = ...,
    **arguments: Unpack[CachedOptions],
) -> A | tuple[A, ...]: ...
@takes(CachedArguments, **DEFAULTS)
def attention_with_kvcache(
    q: AnyArray,
    cache: KVCache,
    k: AnyArray | None = None,
    v: AnyArray | None = None,
    *,
    layer: int,
    **arguments: Unpack[CachedArguments],
) -> Any:
    """Append k and v, if they are given, to a layer of `cache`, and attend with q to all keys of
    this layer: out, or a tuple of out and the other results of the call: lse with `return_lse`, then
    max_logit with `return_max_logit`.

    q is [batch, heads, seq_q, head_dim], k [batch, kv_heads, n, head_dim] and v [batch, kv_heads,
    n, head_dim_v]; heads is a multiple of kv_heads. All have the cache's dtype, or, for a cache of
    a narrower type, float32, float16 or bfloat16. `cache_batch_idx`, integers [batch], is the sequence of
    the cache that each batch item belongs to; by default all sequences, in order. Without k and v a
    sequence may occur several times. The result is an array of q's library and dtype, or `out`,
    [batch, heads, seq_q, head_dim_v]; lse is float32 [batch, heads, seq_q], the natural logarithm, and
    max_logit float32 [batch, heads], the largest score as in `AttentionKernel.launch`.

    Each sequence has its own length. Causality is bottom-right: the last query is at the position
    of the last key. `window`, `softcap`, `score_mod`, `mask_mod`, `aux`, `alibi_slopes`, `sink` and
    `softmax_scale` are those of `flash.attention`; functions count queries by their positions.
    `mask`, bool, broadcasts to [batch, heads, seq_q, m] and covers the last m keys of each sequence:
    whether a query sees them. If a sequence has fewer than m keys, the first columns are ignored;
    keys before the last m are visible. With `leftpad`, padding rows are not keys. For a tree of speculative
    tokens use a mask with m = seq_q; causality and windows narrow it.

    `leftpad`, integers [batch]: the number of padding rows at the beginning of each sequence. They
    are no keys, and position 0 is the first row after them. A query at a padding row sees no key if
    causal.

    `rotary_cos` and `rotary_sin` [positions, rotary_dim / 2], float32, float16 or bfloat16, rotate
    the rows of q, and those of k before they are appended, each by its position
    (`flash/problem/rotary.py`). Rotated rows are rounded once, to their own dtype or the cache's.
    `rotary_interleaved`: whether columns 2 i and 2 i + 1 are rotated together, instead of i and i
    + rotary_dim / 2.

    `backend`: "auto" is the backend of the cache, which computes where the cache's memory is; a
    cache on the host also takes the others of "cpu", "compiled" and "interpreter". The kernels of
    "interpreter" and "cuda" require dense rows of q and out; for a cache of fp8 or int8 they
    require queries of 16 bits, head_dim and head_dim_v that are multiples of 8, and for e4m3 sm_89 or
    later; for blocks queries of 16 bits and sm_80 or later. On a GPU all arrays are on the device of
    the cache, except k and v, which may be on the host unless
    there are rotary tables; these tables are then float32. Work is put on `stream`, by default the
    current one of q's library.

    `splits`: into how many parts kernels divide the keys, as in `DecodeKernel.launch`; "auto"
    chooses by the longest sequence of the call, or for a `DecodeStep` by the capacity of the cache. On
    "cpu" and "compiled" the result of a batch item depends neither on `splits` nor on the other items.

    Raises `LaunchError` with problems of the arguments, `ConfigError` for what `AttentionConfig`
    refuses and for unknown backends, `CacheFullError` if there is no room for k and v. After these
    and any other exception the cache is as it was; `out` may have been written.
    """
    task = checked(attention_with_kvcache, q, cache, k, v, layer, arguments, repeated=False)
    return CachedWork(task)()


class CachedWork:
    """A prepared call: the host counts the new rows of the cache, then the backend writes them and attends
    where the cache is. Raises what `Operation.bound` does.
    """

    def __init__(self, task: Task) -> None:
        self._task, cache, on_gpu = task, task.cache, task.backend == "cuda"
        self._rows = task.new_rows
        self._write: Callable[[int], object] = _nothing
        self._attend: Callable[[int], object] = _nothing
        self._locations = None
        if not task.sequences:
            return
        rows = cache.memory, task.layer, task.sequences, task.padding
        self._locations = RowLocations(*rows, self._stream(), shared=not task.is_repeated)
        located = self._locations.operands
        key = task.layer, task.out.pointer % ALIGNMENTS[0], *located
        launches = task.asked.launches.get(key)
        if launches is not None:
            prepared = launches.prepared.get(launches.splits(task.longest))
            if prepared is not None:
                self._attend = self._known(prepared, launches.names)
                return
        alone = task.call
        alone = alone._replace(operands={**alone.operands, **located})
        new, is_empty = new_operands(task.views), 0 in task.out.shape[:3]
        call = alone._replace(operands={**alone.operands, **new})
        backend = "cpu" if is_empty and not on_gpu else task.backend
        by_call = backend in WITHOUT_KERNELS or joins_by_kernel(cache, task.views, backend)
        if new and on_gpu and not by_call:  # rows of the host are copied to the GPU
            self._write, call = self._fill, alone
        elif new and not by_call:
            queries, joined = view(np.empty(call.q.shape, call.config.element.numpy), "q"), call
            self._write = lambda _: np.copyto(host_array(queries), joined_on_cpu(joined))
            call = alone._replace(q=queries)
        elif "k_new" in new and on_gpu and is_empty:
            append = appending(call, None if call.rotation is None else call.q)
            self._write = append_to(cache.cuda, task.caller).bound(append, backend, cache.memory.workspace)
        decode = task.asked.decode
        if not (is_empty and on_gpu):
            self._attend = decode.bound(call, backend, cache.memory.workspace)
        if on_gpu and by_call and not is_empty:
            ordinal, arrays = cache.memory.device[1], decode.arrays(call)
            if launches is None:
                splits = decode.splits_by_keys(call, ordinal)
                launches = task.asked.launches.keep(key, Launches(tuple(arrays), splits, {}))
            launches.prepared[launches.splits(call.longest)] = decode.prepared(call, arrays, ordinal)

    def _known(self, prepared: Prepared, names: Sequence[str]) -> Callable[[int], object]:
        """The function that attends, of launches that are prepared for calls like this one."""
        task, located = self._task, self._locations
        assert located is not None
        arrays, memory = task.arrays | located.operands, task.cache.memory
        views = [arrays[name] for name in names]
        return task.asked.decode.bound_to(prepared, views, memory.workspace, memory.device[1])

    def __call__(self) -> Any:
        """Append and attend: `out`, or (out, lse). If anything is raised, the lengths of the cache
        are as they were.
        """
        stream = self._stream()

        def work(journal: Journal) -> Any:
            self._advance(journal, stream)
            self._launch(stream)
            return self._task.results.returned

        return self._task.cache.whole(work, stream, self._follow)

    def advance(self) -> None:
        """Make room in the cache for the new rows, and add them to its lengths; on a GPU, lengths
        and block table are updated, in the order of the stream.

        Raises `CacheFullError` if there is no room, `LaunchError` for positions beyond the rotary
        tables; the cache is then as it was.
        """
        stream = self._stream()
        self._task.cache.whole(lambda journal: self._advance(journal, stream), stream, self._follow)

    def _advance(self, journal: Journal, stream: int) -> None:
        task, cache = self._task, self._task.cache
        n, sequences = self._rows, task.sequences
        if task.is_repeated and ANGLES[0] in task.views:  # `checked` has compared the rows of others
            ends = [length + n for length in cache.ledger.of(task.layer, sequences)]
            require_angles(task.caller, cache, task.views, ends, task.padding, is_known=True)
        if n:
            cache.advance(task.caller, task.layer, sequences, [n] * len(sequences), journal, stream)
        self._follow(stream)

    def update(self) -> None:
        """Update lengths and block table on a GPU, in the order of the stream, as `advance` does. A
        step with `cache_batch_idx` needs it after `KVCache.grow`.
        """
        self._follow(self._stream())

    def _follow(self, stream: int) -> None:
        self._task.cache.update(stream)
        if self._locations is not None:
            self._locations.follow(stream)

    def launch(self) -> None:
        """Write the contents of k and v to the last rows of each sequence, and attend with q.

        Raises `LaunchError` if a sequence has fewer rows than k has new ones.
        """
        task, n = self._task, self._rows
        if n:
            lengths = task.cache.ledger.of(task.layer, task.sequences)
            least = min(lengths, default=n)
            if least < n:
                raise LaunchError(
                    f"{task.caller}: {n} new rows must count before they are written, but "
                    f"sequence {task.sequences[lengths.index(least)]} has {least} tokens in layer "
                    f"{task.layer}; call advance() or KVCache.grow before launch()"
                )
        self._launch(self._stream())

    def _launch(self, stream: int) -> None:
        if self._locations is not None and self._task.backend != "cuda":
            self._locations.follow(stream)
        self._write(stream)
        self._attend(stream)

    def _stream(self) -> int:
        task = self._task
        if task.stream is not None:  # which is checked
            return task.stream
        return task.cache.stream_of(task.caller, None, task.q)

    def _fill(self, stream: int) -> None:
        """Copy the new rows from the host to the GPU, and write them to the cache."""
        task, n = self._task, self._rows
        ends = task.cache.ledger.of(task.layer, task.sequences)
        stretches = [Stretch(which, end - n, end) for which, end in zip(task.sequences, ends, strict=True)]
        rows = task.views["k"], task.views["v"]
        write_rows(task.cache.memory, task.cache.cuda, task.layer, rows, stretches, stream)


def _nothing(stream: int) -> None:
    """Do nothing, for a call without queries, or whose attention kernel writes the rows."""


class DecodeStep(CachedWork):
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
        super().__init__(checked(DecodeStep.__init__, q, cache, k, v, layer, arguments, repeated=True))
        results = self._task.results
        self.out: Any = results.out
        self.lse: Any = results.others.get("lse")
        self.max_logit: Any = results.others.get("max_logit")
