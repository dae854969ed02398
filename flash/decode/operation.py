"""Attention of few queries to the keys of a KV cache, and appending to a cache, as operations; on the host
also without kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.calls.gpu import Launcher, Prepared, launcher_of
from flash.calls.memory import Memory
from flash.calls.operation import Operation
from flash.calls.step import Step, require_grid
from flash.contract.resources import KernelResources
from flash.cpu.paged_rows import KeyRows, PagedRows
from flash.decode.plan import (
    SCALES,
    AppendCall,
    CacheCall,
    append_step,
    appending,
    blocks_of,
    choose_splits,
    default_target,
    kernel_of,
    require_widening,
    steps_of,
)
from flash.host.caller import Caller
from flash.host.stored_rows import loaded, stored, token_scales
from flash.kernels.append import COUNTS
from flash.launch.calls import on_cpu_of
from flash.launch.shared_kv import columns_of
from flash.mods.trace import AUX
from flash.problem.config import ALIGNMENTS, AttentionConfig
from flash.problem.features import ANGLES, LENGTHS
from flash.problem.rotary import rotated
from flash.scores.aux_arrays import gathered
from ptxgen.arrays.views import ArrayView, host_array, view
from ptxgen.runtime.bounded_cache import BoundedCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.target import target as find_target

Array = NDArray[Any]
# The operands that no score depends on.
_OF_CACHE: Final = frozenset(("k_new", "v_new", *ANGLES, *LENGTHS, "block_table", *SCALES))
Operands = Mapping[str, ArrayView]


class Launches(NamedTuple):
    """The launches of calls that differ in addresses, and in the number of keys, alone: the names of their
    arrays in the order of `Operation.arrays`, the number of splits for the longest sequence of a call, and
    the prepared launches by this number.
    """

    names: tuple[str, ...]
    splits: Callable[[int], int]
    prepared: dict[int, Prepared]


class Decode(Operation[CacheCall]):
    """The operation that attends, as `config` says, to the keys of a KV cache."""

    def __init__(self, config: AttentionConfig, gpu: Launcher, caller: Caller) -> None:
        super().__init__(gpu, caller, config.target)
        self.config = config
        self._sizes = BoundedCache[tuple[object, ...], tuple[int, int, int]]()

    def arrays(self, call: CacheCall) -> dict[str, ArrayView]:
        """See `Operation.arrays`. V that is columns of K is no array of its own."""
        arrays = {"q": call.q, "k": call.k, "v": call.v, "out": call.out, **call.outputs, **call.operands}
        if self.config.shared_kv:
            del arrays["v"]
        return arrays

    def over(self, call: CacheCall, arrays: Mapping[str, ArrayView]) -> CacheCall:
        """See `Operation.over`."""
        k = arrays["k"]
        return call._replace(
            q=arrays["q"],
            k=k,
            v=columns_of(self.config, k) if self.config.shared_kv else arrays["v"],
            out=arrays["out"],
            outputs={name: arrays[name] for name in call.outputs},
            operands={name: arrays[name] for name in call.operands},
        )

    def key(self, call: CacheCall, ordinal: int) -> tuple[object, ...]:
        """See `Operation.key`."""
        return *_layouts(call), self._splits(call, ordinal), call.splits is None, ordinal

    def steps(self, call: CacheCall, ordinal: int | None, memory: Memory) -> Iterator[Step]:
        """See `Operation.steps`."""
        if ordinal is not None:
            target = self.target(ordinal)
        else:
            asked = self.config.target
            target = find_target(asked) if asked else default_target(call.stored)
        require_widening(self.caller.name, call, target)
        splits = self._splits(call, ordinal)
        kernel = kernel_of(call, target, splits, same_bits=call.splits is not None)
        require_grid(self.caller.name, blocks_of(call, kernel) * splits)
        for step in steps_of(call, kernel, splits, memory):
            require_grid(self.caller.name, step.plan.grid[0])
            yield step

    def on_cpu(self, call: CacheCall, backend: str) -> None:
        """See `Operation.on_cpu`."""
        attend_on_cpu(call, on_cpu_of(self.config, backend))

    def _splits(self, call: CacheCall, ordinal: int | None) -> int:
        """The number of splits of a call; for "auto" chosen for the device, and 1 on a CPU."""
        return self.splits_by_keys(call, ordinal)(call.longest)

    def splits_by_keys(self, call: CacheCall, ordinal: int | None) -> Callable[[int], int]:
        """The number of splits of calls like `call`, as a function of the most keys of a sequence."""
        if call.splits is not None or ordinal is None:
            number = call.splits or 1
            return lambda _: number
        key = (*_layouts(call), ordinal)
        sizes = self._sizes.get(key)
        if sizes is None:
            device = self.gpu.backend.device_properties(ordinal)
            kernel = kernel_of(call, self.target(ordinal), 1)
            t = kernel.tiling
            resources = KernelResources(kernel, t.registers, False, t.shared_bytes)
            slots = device.multiprocessors * max(resources.ctas_per_sm, 1)
            sizes = self._sizes.keep(key, (blocks_of(call, kernel), t.tile, slots))
        blocks, tile, slots = sizes
        return lambda longest: choose_splits(blocks, -(-longest // tile), slots)


def _layouts(call: CacheCall) -> tuple[object, ...]:
    """A key of all that the kernels and launches of a call depend on. Of the addresses it has only the
    alignment.
    """
    most = ALIGNMENTS[0]
    four = (call.q, call.k, call.v, call.out)
    return (
        tuple([(array.shape, array.strides, array.pointer % most) for array in four]),
        tuple([(name, a.shape, a.strides, a.dtype) for name, a in call.operands.items()]),
        call.interleaved,
        tuple(call.outputs),
        call.page_size,
        call.stored.name,
        call.scale,
    )


class Append(Operation[AppendCall]):
    """The operation that writes new rows to a KV cache, and rotates new keys and queries (RoPE)."""

    def arrays(self, call: AppendCall) -> Mapping[str, ArrayView]:
        """See `Operation.arrays`."""
        return call.arrays

    def over(self, call: AppendCall, arrays: Mapping[str, ArrayView]) -> AppendCall:
        """See `Operation.over`."""
        return call._replace(arrays=arrays)

    def key(self, call: AppendCall, ordinal: int) -> tuple[object, ...]:
        """See `Operation.key`."""
        layouts = [(name, a.shape, a.strides, a.dtype) for name, a in call.arrays.items()]
        return *layouts, call.page_size, call.interleaved, call.stored.name, ordinal

    def steps(self, call: AppendCall, ordinal: int | None, memory: Memory) -> Iterator[Step]:  # noqa: ARG002
        """See `Operation.steps`."""
        assert ordinal is not None
        step = append_step(self.target(ordinal), call)
        require_grid(self.caller.name, step.plan.grid[0])
        yield step

    def on_cpu(self, call: AppendCall, backend: str) -> None:  # noqa: ARG002  # numpy alone appends
        """See `Operation.on_cpu`."""
        append_on_cpu(call)


def attend_on_cpu(call: CacheCall, attend: Callable[..., None]) -> None:
    """Write the new rows of a call to the cache, and attend with `attend` (`on_cpu_of`)."""
    q = joined_on_cpu(call)
    if not q.size:
        return
    operands, caches = call.operands, (host_array(call.k), host_array(call.v))
    sequences, used, padding = _numbers(operands, len(q))

    def rows_of(b: int) -> tuple[KeyRows, KeyRows]:
        sequence, begin, end = int(sequences[b]), int(padding[b]), int(max(used[b], padding[b]))
        if call.stored.is_narrow:
            at = _rows_at(operands, call.page_size, sequence, begin, end)
            rows = [cache.swapaxes(1, 2)[at].swapaxes(0, 1) for cache in caches]
            keys, values = (
                loaded(of, call.stored, _scale_of(operands, name, at))[None]
                for of, name in zip(rows, SCALES, strict=True)
            )
            return keys, values
        if not call.page_size:
            keys, values = (cache[sequence, None, :, begin:end] for cache in caches)
            return keys, values
        table = host_array(operands["block_table"])[sequence]
        paged = [PagedRows(cache, table, end - begin, begin) for cache in caches]
        return paged[0], paged[1]

    of_scores: dict[str, Any] = {n: host_array(a) for n, a in operands.items() if n not in _OF_CACHE}
    of_scores = gathered(of_scores) if of_scores else of_scores
    outputs = {name: host_array(array) for name, array in call.outputs.items()}
    attend = functools.partial(attend, softmax_scale=call.scale)
    _attend_to_rows(attend, q, rows_of, of_scores, host_array(call.out), outputs)


def joined_on_cpu(call: CacheCall) -> Array:
    """Write new rows to the cache, if there are any. Returns q, rotated if there are rotary tables."""
    q, rotates = host_array(call.q), call.rotation is not None
    if "k_new" in call.operands:
        queries = view(np.empty(q.shape, q.dtype), "q") if rotates else None
        append_on_cpu(appending(call, queries))
        return q if queries is None else host_array(queries)
    return _rotated(q, call.operands, ANGLES, call.interleaved).astype(q.dtype) if rotates else q


def append_on_cpu(call: AppendCall) -> None:
    """Write new rows to a cache, and rotated queries to `Q_OUT`, with numpy."""
    operands, element = call.arrays, call.stored
    k, v = host_array(operands["K_NEW"]), host_array(operands["V_NEW"])
    if "COS" in operands:
        q, rotated_k = (
            _rotated(host_array(operands[name]), operands, ("COS", "SIN"), call.interleaved)
            for name in ("Q", "K_NEW")
        )
        host_array(operands["Q_OUT"])[...] = q
        k = rotated_k.astype(np.float32 if element.is_narrow else k.dtype)
    sequences, used, _ = _numbers(operands, len(k))
    counts = [k.shape[2]] * len(k) if COUNTS.name not in operands else host_array(operands[COUNTS.name])
    for b, (sequence, end, count) in enumerate(zip(sequences, used, counts, strict=True)):
        first = max(int(count - end), 0)  # the first new row that lies in the sequence
        at = _rows_at(operands, call.page_size, int(sequence), int(end - count) + first, int(end))
        for name, cache, of_all in zip(SCALES, (operands["K"], operands["V"]), (k, v), strict=True):
            rows = of_all[b, :, first:count]
            if name in operands:
                scales = host_array(operands[name])
                if scales.ndim > 1:
                    scales.swapaxes(1, 2)[at] = token_scales(rows, element)[..., 0].T
            rows = stored(rows, element, _scale_of(operands, name, at))
            host_array(cache).swapaxes(1, 2)[at] = rows.swapaxes(0, 1)


def _numbers(operands: Operands, batch: int) -> tuple[Array, Array, Array]:
    """The sequence of each item, the number of its rows, and how many of these are padding."""
    usual: dict[str, Any] = {"cache_batch_idx": np.arange(batch), "seqused_k": 0, "leftpad_k": 0}
    arrays = {name: host_array(operands[name]) for name in usual.keys() & operands.keys()}
    sequences, used, padding = (np.broadcast_to(arrays.get(name, x), batch) for name, x in usual.items())
    return sequences, used, padding


def _rotated(array: Array, operands: Operands, tables: tuple[str, str], interleaved: bool) -> Array:
    """The last rows of sequences, rotated by their positions; rows of padding have position 0."""
    _, used, padding = _numbers(operands, len(array))
    ends = used.astype(np.int64) - padding
    positions = np.maximum(ends[:, None] + np.arange(-array.shape[2], 0), 0)
    cos, sin = (host_array(operands[name]) for name in tables)
    return rotated(array, cos, sin, positions, interleaved=interleaved)


def _scale_of(operands: Operands, name: str, at: tuple[Any, ...]) -> Array | None:
    """The scales `name` of the rows at `at`, [kv_heads, rows, 1], or those of heads, which broadcast to it;
    None without scales.
    """
    if name not in operands:
        return None
    scales: Array = host_array(operands[name])
    return (scales.swapaxes(1, 2)[at].T if scales.ndim > 1 else scales[..., None])[..., None]


def _rows_at(operands: Operands, page_size: int, sequence: int, begin: int, end: int) -> tuple[Any, ...]:
    """The numpy index of rows of a sequence in K or V as [slots, rows, kv_heads, dim]; it selects [rows,
    kv_heads, dim].
    """
    if not page_size:
        return sequence, slice(begin, end)
    pages, rows = np.divmod(np.arange(begin, end), page_size)
    return host_array(operands["block_table"])[sequence, pages], rows


def _attend_to_rows(
    attend: Callable[..., None],
    q: Array,
    rows_of: Callable[[int], tuple[KeyRows, KeyRows]],
    operands: Mapping[str, Array],
    out: Array,
    outputs: Mapping[str, Array],
) -> None:
    """Call `attend` for each item of q [batch, heads, seq_q, head_dim] and the rows of its sequence. Items
    are computed separately, so that the bits of an item do not depend on the others.

    `alibi_slopes` and `sink` broadcast to [batch, heads], and a `mask` to [batch, heads, seq_q, m]:
    it covers the last m rows of each item, and rows before them are visible.
    """
    of_heads = {
        name: np.broadcast_to(array, q.shape[:2])
        for name, array in operands.items()
        if name not in ("mask", AUX)
    }
    of_all: dict[str, Any] = {AUX: operands[AUX]} if AUX in operands else {}
    for b in range(q.shape[0]):
        keys, values = rows_of(b)
        of_item: dict[str, Any] = {name: array[b : b + 1] for name, array in of_heads.items()}
        if "mask" in operands:
            of_item["mask"] = _mask_of(operands["mask"], b, keys.shape[2])
        attend(
            q[b : b + 1],
            keys,
            values,
            out[b : b + 1],
            **{name: array[b : b + 1] for name, array in outputs.items()},
            first_batch=b,
            first_query=keys.shape[2] - q.shape[2],
            **of_item,
            **of_all,
        )


def _mask_of(mask: Array, b: int, keys: int) -> Array:
    """The mask of item `b`, which has `keys` keys: [1, heads or 1, seq_q or 1, keys]."""
    wide = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    of_item = wide[b : b + 1] if len(wide) > 1 else wide
    last = of_item.shape[3]
    if last >= keys:
        return of_item[..., last - keys :]
    return np.pad(of_item, ((0, 0), (0, 0), (0, 0), (keys - last, 0)), constant_values=True)


@functools.lru_cache(maxsize=64)
def decode_to(cuda: CudaBackend, caller: str, config: AttentionConfig) -> Decode:
    """The operation that attends as `config` says to caches of a backend; its errors name `caller`."""
    return Decode(config, launcher_of(cuda), Caller(caller, has_config=False))


@functools.lru_cache(maxsize=16)
def append_to(cuda: CudaBackend, caller: str) -> Append:
    """The operation that appends rows to caches of a backend; its errors name `caller`."""
    return Append(launcher_of(cuda), Caller(caller, has_config=False))
