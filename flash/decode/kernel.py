"""`DecodeKernel`: attention of few new queries to the keys of a KV cache, read in place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Unpack, overload

import numpy as np

from flash.contract.resources import KernelResources
from flash.cpu.engine_choice import engine_of
from flash.decode.checks import WHO, longest_of, problems_of, problems_of_narrow
from flash.decode.on_cpu import attend_on_cpu
from flash.decode.plan import (
    CacheCall,
    Workspace,
    blocks_of,
    choose_splits,
    joining,
    kernel_of,
    oldest_target,
    require_widening,
    steps_of,
    turns_before,
)
from flash.decode.token_scales import SCALES
from flash.decode.workspace import workspace_of
from flash.host import results
from flash.host.caller import Caller, flag, raise_problems, views_of
from flash.launch.backend_choice import choose
from flash.launch.checks import check_place
from flash.launch.checks import scale as scale_of
from flash.launch.gpu import GpuLauncher, Ready
from flash.launch.shared_kv import columns_of, require_shared
from flash.launch.signature import CacheLaunchOptions
from flash.launch.step import Step, require_grid
from flash.operands.dtypes import F32, OF_ARRAYS
from flash.operands.words import A, AnyArray, Auto, Backend
from flash.problem.config import ALIGNMENTS, AttentionConfig
from flash.problem.features import LENGTHS
from flash.problem.splits import splits_of
from flash.scores.aux_arrays import flattened
from flash.scores.features import CACHE_ARRAYS, SCORES, CacheLaunchArguments, require_known, takes
from ptxgen.arrays import streams
from ptxgen.arrays.overlap import reach
from ptxgen.arrays.views import HOST, ArrayView, view
from ptxgen.errors import ConfigError, shown
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend, LoadedKernel
from ptxgen.runtime.given import cache_of, gpu_of
from ptxgen.runtime.kept import Kept
from ptxgen.runtime.plan import LaunchPlan
from ptxgen.runtime.settings import AUTO, WITHOUT_KERNELS
from ptxgen.target import target as find_target

_NEEDED: Final = ("q", "k_cache", "v_cache")
_NOT_CACHED: Final = ("varlen", *(f.setting for f in SCORES if not f.in_cache))


class _Prepared(NamedTuple):
    """The launches of calls of one geometry, each with the names of its arrays in the call;
    `queries`: whether they need memory for rotated q.
    """

    launches: tuple[tuple[Ready, tuple[str, ...]], ...]
    queries: bool


class DecodeKernel:
    """Attention as `config` says, of new queries to caches of keys and values.

    The last query of a sequence is at the position of its last key. The config must not ask for
    varlen, bias, dropout or top-left causality. Kernels are made by the first call that needs them,
    and kept. `cuda` is the GPU backend and `cache` keeps compiled kernels; by default those of the
    process.

    Raises `ConfigError` for a config with one of these features.
    """

    def __init__(
        self, config: AttentionConfig, *, cuda: CudaBackend | None = None, cache: ModuleCache | None = None
    ) -> None:
        if not isinstance(config, AttentionConfig):
            raise ConfigError(
                f"DecodeKernel: config must be an AttentionConfig, got {shown(config)}; "
                "make one with flash.AttentionConfig(head_dim=64, causal=True)"
            )
        wrong = [name for name in _NOT_CACHED if getattr(config, name)]
        wrong += [f"dtype={config.dtype!r}"] if config.is_fp8 else []
        wrong += ["causal='top_left'"] if config.causal == "top_left" else []
        if wrong:
            raise ConfigError(
                f"DecodeKernel: config must be one that goes with a cache, got {', '.join(wrong)}; "
                "use AttentionKernel, or leave that out"
            )
        self.config = config
        self._gpu = GpuLauncher(config, gpu_of("DecodeKernel", cuda), cache_of("DecodeKernel", cache), WHO)
        self._ready = Kept[tuple[object, ...], _Prepared]()
        self._sizes = Kept[tuple[object, ...], tuple[int, int, int]]()
        self._checked = Kept[tuple[object, ...], list[tuple[int, int]]]()

    def __repr__(self) -> str:
        return f"DecodeKernel({self.config!r})"

    @overload
    def launch(
        self,
        q: A,
        k_cache: AnyArray,
        v_cache: AnyArray | None = ...,
        k: AnyArray | None = ...,
        v: AnyArray | None = ...,
        *,
        return_lse: Literal[True],
        **options: Unpack[CacheLaunchOptions],
    ) -> tuple[A, A]: ...
    @overload
    def launch(
        self,
        q: A,
        k_cache: AnyArray,
        v_cache: AnyArray | None = ...,
        k: AnyArray | None = ...,
        v: AnyArray | None = ...,
        *,
        return_lse: bool | None = ...,
        **options: Unpack[CacheLaunchOptions],
    ) -> Any: ...
    @takes(CacheLaunchArguments)
    def launch(
        self,
        q: AnyArray,
        k_cache: AnyArray,
        v_cache: AnyArray | None = None,
        k: AnyArray | None = None,
        v: AnyArray | None = None,
        *,
        seqused_k: AnyArray,
        block_table: AnyArray | None = None,
        cache_batch_idx: AnyArray | None = None,
        leftpad_k: AnyArray | None = None,
        k_scale: AnyArray | None = None,
        v_scale: AnyArray | None = None,
        rotary_cos: AnyArray | None = None,
        rotary_sin: AnyArray | None = None,
        rotary_interleaved: bool = False,
        softmax_scale: float | None = None,
        return_lse: bool | None = None,
        out: AnyArray | None = None,
        splits: int | Auto = AUTO,
        max_seqlen_k: int | None = None,
        backend: Backend = AUTO,
        stream: object = None,
        **scores: Unpack[CacheLaunchArguments],
    ) -> Any:
        """`softmax(scale Q Kᵀ + mask) V`: out, or (out, lse) with `return_lse` (default: the
        config's).

        q [batch, heads, seq_q, head_dim]. Without `block_table` k_cache is [sequences, kv_heads,
        capacity, head_dim]; with it, int32 [sequences, n], k_cache is [pages, kv_heads, page_size,
        head_dim], and key r of sequence s is row r % page_size of page block_table[s, r //
        page_size]. v_cache likewise, with head_dim_v; heads are a multiple of kv_heads. All are of
        the config's dtype, with a dense last dimension and otherwise any strides. Or both caches are
        of fp8: then `k_scale` and `v_scale`, float32 of a shape that broadcasts to
        [kv_heads], above 0, are what their numbers are multiplied by; or one for each token, of the shape
        of the caches without the last dimension, finite and at least 0 where there are keys. Kernels take
        e4m3 from sm_89 on, and fp8 with queries of 16 bits, dimensions that are multiples of 8, and rows at
        multiples of 8 bytes.

        Int32 arrays, of a shape that broadcasts to [batch]: `seqused_k`, the number of rows in the
        sequence of each item; `cache_batch_idx`, the sequence of each item, by default the item's
        index, so that there are `batch` sequences; `leftpad_k`, the number of rows at the beginning
        of each sequence that are no keys. The kernels read them, so that a launch waits for nothing
        and may be captured in a graph: whatever they hold, nothing outside of the arrays is
        accessed, and rows that are no keys never reach a result.

        New rows k [batch, kv_heads, n, head_dim] and v, of the config's dtype, are first written to
        the caches, divided by the scales if there are any; those of tokens are written, too: the largest
        finite magnitude of a row / the largest number of the type. Row i of n becomes row seqused_k - n + i
        of its sequence, so `seqused_k` must include the new rows. With `rotary_cos` and `rotary_sin`,
        float32 [positions, rotary_dim / 2] with dense rows, the first rotary_dim columns of k and q are
        rotated by the positions of their rows, neighbouring columns together if `rotary_interleaved`
        (`flash/problem/rotary.py`); without k and v those of q alone. The kernel that attends writes up
        to 16 new rows, if one CTA, or one CTA for each of `splits`, has all queries of a head of K;
        otherwise a launch before it writes them. A new row must belong to one item only: each item with
        new rows needs its own sequence, and its own pages for the new rows.

        With a config of `shared_kv` there is no v_cache: V is the first head_dim_v columns of k_cache, to
        which the caller writes new rows.

        `splits`: into how many parts the keys are divided, 1 to 32768; each part has its own CTAs.
        "auto" is a rule (`flash.decode.plan.choose_splits`) that depends on the device, the batch
        and `max_seqlen_k`, the most keys that a sequence may have, by default the capacity. With a
        fixed number of splits the bits of a result depend neither on the batch nor on
        `max_seqlen_k`.

        `mask`, bool, broadcasts to [batch, heads, seq_q, m] and covers the last m keys of each
        sequence: whether a query sees them. If a sequence has fewer than m keys, the first columns
        are ignored; keys before the last m are visible; causality and windows hide more. With
        `leftpad_k`, columns for padding rows are ignored.

        `alibi_slopes`, `sink`, `softmax_scale`, `out`, `stream`, `backend` and results are as in
        `AttentionKernel.launch`; on a GPU all arrays must be on the GPU.

        Raises `LaunchError` with every problem of the arguments before anything is allocated or
        asked of a device, `ConfigError` for an unknown backend or tiles that the device cannot
        hold, `BackendError` if the backend fails.
        """
        if not isinstance(rotary_interleaved, bool):
            raise ConfigError(
                f"{WHO}: rotary_interleaved must be True or False, got {shown(rotary_interleaved)}"
            )
        with_lse = self.config.return_lse
        if return_lse is not None:
            with_lse = flag(WHO, "return_lse", return_lse)
        explicit = None if stream is None else streams.stream_handle(stream, WHO)
        require_known(WHO, scores, CacheLaunchArguments, DecodeKernel.launch)
        given = {
            "q": q,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "k": k,
            "v": v,
            "rotary_cos": rotary_cos,
            "rotary_sin": rotary_sin,
            "seqused_k": seqused_k,
            "block_table": block_table,
            "cache_batch_idx": cache_batch_idx,
            "leftpad_k": leftpad_k,
            "k_scale": k_scale,
            "v_scale": v_scale,
            "out": out,
            **flattened(WHO, scores),
        }
        if self.config.shared_kv:
            require_shared(self.config, WHO, v_cache=v_cache, k=k, v=v)
            given["v_cache"] = k_cache
        views = views_of({n: a for n, a in given.items() if a is not None or n in _NEEDED}, WHO)
        if self.config.shared_kv:
            views["v_cache"] = columns_of(self.config, views["k_cache"])
        name = choose(backend, views["q"], self._gpu.backend, WHO, copies_to_gpu=False)[0]
        if name == "cuda":
            views = {key: self._gpu.located(array, WHO) for key, array in views.items()}
        self._check(views)
        raise_problems(list(problems_of_narrow(self.config, views, name)), WHO)
        number = splits_of(WHO, splits)
        longest = longest_of(views, max_seqlen_k)
        scale = scale_of(self.config, softmax_scale, Caller(WHO))
        device = views["k_cache"].device  # an empty q may not have its device
        like = views["q"]._replace(device=device)
        check_place(WHO, name, like, explicit, copies_to_gpu=False)
        shape = (*like.shape[:3], self.config.value_dim)
        memory = self._gpu.backend
        made = (
            results.empty(like, shape, self.config.element, memory=memory, stream=explicit)
            if out is None
            else out
        )
        lse = results.empty(like, shape[:3], F32, memory=memory, stream=explicit) if with_lse else None
        if 0 not in shape[:3]:
            names = (*_OPERANDS, *self.config.aux_operands)
            operands = {n: a for n, a in views.items() if n in names}
            page_size = views["k_cache"].shape[2] if "block_table" in views else 0
            call = CacheCall(
                self.config,
                like,
                views["k_cache"],
                views["v_cache"],
                view(made, "out") if out is None else views["out"],
                None if lse is None else view(lse, "lse"),
                operands,
                page_size,
                longest,
                scale,
                joining(views, rotary_interleaved),
            )
            on = 0
            if name == "cuda":
                on = streams.current_stream(like) if explicit is None else explicit
            room = functools.partial(self._space_of, device, on)
            self.prepared(call, backend=name, splits=number, room=room)(on)
        if out is None:
            made = results.deliver(made, like)
        return (made, results.deliver(lse, like)) if with_lse else made

    def _check(self, views: dict[str, ArrayView]) -> None:
        """Raise `LaunchError` with all problems of the arrays of a call. On a GPU, calls whose
        addresses differ only in ways that no check depends on are checked once.
        """
        most = ALIGNMENTS[0]
        key = tuple([(name, array[1:6], array.pointer % most) for name, array in views.items()])
        reaches = self._checked.get(key)
        is_known = reaches is not None and (key, _near(views, reaches)) in self._checked
        if is_known and views["q"].device != HOST:
            return
        raise_problems(list(problems_of(self.config, views)), WHO)
        reaches = [reach(a.shape, a.strides, OF_ARRAYS[a.dtype].nbytes) for a in views.values()]
        for known in (key, (key, _near(views, reaches))):
            self._checked.keep(known, reaches)

    def prepared(
        self,
        call: CacheCall,
        *,
        backend: str,
        room: Callable[[int], ArrayView],
        splits: int | None = None,
        who: str = WHO,
    ) -> Callable[[int], None]:
        """A function of a stream that runs a checked call, whose arrays are on the device of
        `backend`. It may be called repeatedly and uses the current contents of the arrays. `splits`
        None is "auto"; `room(n)` returns memory for at least n f32, which no other work uses at the
        same time.

        Raises `LaunchError` in the name of `who` if a grid is too large, `ConfigError` and
        `BackendError` as `launch` does.
        """
        if backend in WITHOUT_KERNELS:
            return _on_host(functools.partial(attend_on_cpu, call, engine_of(backend)))
        if backend == "cuda":
            return self._prepared_on_gpu(call, splits, room, who)
        target = find_target(self.config.target) if self.config.target else oldest_target(call.stored)
        require_widening(who, call, target)
        parts = splits or 1  # on a CPU splits save no time
        kernel = kernel_of(call, target, parts, same_bits=splits is not None)
        space = workspace_of(call, parts, turns_before(call, kernel), room)
        steps = steps_of(call, kernel, parts, space)
        return _on_host(functools.partial(_interpret, steps))

    def _prepared_on_gpu(
        self, call: CacheCall, splits: int | None, room: Callable[[int], ArrayView], who: str
    ) -> Callable[[int], None]:
        ordinal, gpu = call.q.device[1], self._gpu
        target = gpu.target(ordinal)
        require_widening(who, call, target)
        same_bits = splits is not None
        splits = self._splits(call, ordinal) if splits is None else splits
        key = (*_geometry(call), splits, same_bits, ordinal)
        ready = self._ready.get(key)
        if ready is not None:
            space = workspace_of(call, splits, ready.queries, room)
        else:
            kernel = kernel_of(call, target, splits, same_bits=same_bits)
            require_grid(who, blocks_of(call, kernel) * splits)
            turns = turns_before(call, kernel)
            space = workspace_of(call, splits, turns, room)
            steps = steps_of(call, kernel, splits, space)
            for step in steps:
                require_grid(who, step.plan.grid[0])
            ready = self._ready.keep(key, _Prepared(self._make_ready(call, steps, space, ordinal), turns))
        arrays = _arrays(call, space)
        plans = tuple(
            (one.kernel, one.plan.with_pointers([arrays[name].pointer for name in names]))
            for one, names in ready.launches
        )
        return _Launches(gpu, ordinal, plans, (call, space)).put_on

    def _make_ready(
        self, call: CacheCall, steps: list[Step], space: Workspace, ordinal: int
    ) -> tuple[tuple[Ready, tuple[str, ...]], ...]:
        arrays = _arrays(call, space)
        names = {id(array): name for name, array in arrays.items()}
        # The merge has views of other shapes on these arrays; each is found by its address.
        written = {arrays[n].pointer: n for n in ("outs", "lses", "out", "lse") if n in arrays}
        return tuple(
            (
                self._gpu.ready(step, ordinal),
                tuple([names.get(id(array)) or written[array.pointer] for array in step.arrays]),
            )
            for step in steps
        )

    def _splits(self, call: CacheCall, ordinal: int) -> int:
        """The number of splits that "auto" chooses for a call on device `ordinal`."""
        key = (*_geometry(call), ordinal)
        found = self._sizes.get(key)
        if found is None:
            device = self._gpu.backend.device_properties(ordinal)
            kernel = kernel_of(call, self._gpu.target(ordinal), 1)
            t = kernel.tiling
            resources = KernelResources(kernel, t.registers, False, t.shared_bytes)
            slots = device.multiprocessors * max(resources.ctas_per_sm, 1)
            found = self._sizes.keep(key, (blocks_of(call, kernel), t.tile, slots))
        blocks, tile, slots = found
        return choose_splits(blocks, -(-call.longest // tile), slots)

    def _space_of(self, device: tuple[str, int], stream: int, count: int) -> ArrayView:
        """Memory for at least `count` f32, for the partial results of splits. On a GPU it is kept
        for the next calls on the same stream, whose work runs in order.
        """
        if device == HOST:
            return view(np.empty(count, np.float32), "workspace")
        return self._gpu.space.kept(device[1], stream, count)


class _Launches(NamedTuple):
    """The launches of a prepared call, in order; `of` keeps its arrays alive."""

    gpu: GpuLauncher
    ordinal: int
    plans: tuple[tuple[LoadedKernel, LaunchPlan], ...]
    of: tuple[CacheCall, Workspace]

    def put_on(self, stream: int) -> None:
        """Launch the kernels on a stream."""
        call, gpu = self.of[0], self.gpu
        new = () if call.new is None else call.new.operands.values()
        given = (call.q, call.k, call.v, *call.operands.values(), *new)
        gpu.wait_for_producers(given, stream, self.ordinal)
        for loaded, plan in self.plans:
            gpu.backend.launch(loaded, plan, stream)


def _on_host(work: Callable[[], None]) -> Callable[[int], None]:
    """`work` as a function of a stream, which it ignores."""
    return lambda _: work()


def _near(
    views: Mapping[str, ArrayView], reaches: Sequence[tuple[int, int]]
) -> tuple[tuple[str, str, int], ...]:
    """(written, other, distance) for each array that is written and each other array whose span of
    bytes overlaps it, even if they share no element; distance is between their addresses, in bytes.
    """
    spans = [
        (name, array.pointer, array.pointer + low, array.pointer + high)
        for (name, array), (low, high) in zip(views.items(), reaches, strict=True)
    ]
    written = {"out", "k_cache", "v_cache"} if "k" in views else {"out"}
    return tuple(
        [
            (one, other, there - here)
            for one, here, begin, end in spans
            if one in written
            for other, there, low, high in spans
            if low < end and begin < high and other != one
        ]
    )


def _geometry(call: CacheCall) -> tuple[object, ...]:
    """A key of all that the kernels and plans of a call depend on. Of the addresses it has only the
    alignment.
    """
    most = ALIGNMENTS[0]
    four = (call.q, call.k, call.v, call.out)
    return (
        tuple([(array.shape, array.strides, array.pointer % most) for array in four]),
        tuple([(name, array.shape, array.strides) for name, array in _operands(call).items()]),
        call.new is not None and (call.new.dtype, call.new.interleaved),
        call.lse is None,
        call.page_size,
        call.scale,
    )


def _operands(call: CacheCall) -> dict[str, ArrayView]:
    """All operands of a call by name, with the new rows and rotary tables."""
    return {**call.operands, **({} if call.new is None else call.new.operands)}


def _arrays(call: CacheCall, space: Workspace) -> dict[str, ArrayView]:
    """Every array of a call, by a unique name."""
    found = {"q": call.q, "k": call.k, "v": call.v, "out": call.out, **_operands(call)}
    if call.lse is not None:
        found["lse"] = call.lse
    if space.queries is not None:
        found["queries"] = space.queries
    if space.parts is not None:
        found |= space.parts._asdict()
    return found


_OPERANDS: Final = (*LENGTHS, *SCALES, "block_table", *CACHE_ARRAYS)


def _interpret(steps: list[Step]) -> None:
    for step in steps:
        step.interpret()
