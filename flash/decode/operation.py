"""Attention of few queries to the keys of a KV cache, and appending to a cache, as operations."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import ClassVar

from flash.calls.gpu import Launcher, launcher_of
from flash.calls.memory import Memory
from flash.calls.operation import Operation
from flash.calls.step import Step, require_grid
from flash.contract.resources import KernelResources
from flash.decode.append_launch import AppendCall, append_step
from flash.decode.on_cpu import append_on_cpu, attend_on_cpu
from flash.decode.plan import (
    CacheCall,
    blocks_of,
    choose_splits,
    kernel_of,
    oldest_target,
    require_widening,
    steps_of,
)
from flash.host.caller import Caller
from flash.launch.calls import on_cpu_of
from flash.launch.shared_kv import columns_of
from flash.problem.config import ALIGNMENTS, AttentionConfig
from ptxgen.arrays.views import ArrayView
from ptxgen.runtime.bounded_cache import Kept
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.target import target as find_target


class Decode(Operation[CacheCall]):
    """Attention as `config` says, over a cache."""

    copies_to_gpu: ClassVar = False

    def __init__(self, config: AttentionConfig, gpu: Launcher, caller: Caller) -> None:
        super().__init__(gpu, caller, config.target)
        self.config = config
        self._sizes = Kept[tuple[object, ...], tuple[int, int, int]]()

    def arrays(self, call: CacheCall) -> dict[str, ArrayView]:
        """See `Operation.arrays`. V that is columns of K is no array of its own."""
        found = {"q": call.q, "k": call.k, "v": call.v, "out": call.out, **call.outputs, **call.operands}
        if self.config.shared_kv:
            del found["v"]
        return found

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
            target = find_target(asked) if asked else oldest_target(call.stored)
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
        """The number of splits of a call, by the rule of "auto" for a device if it has none; on a CPU splits
        save no time.
        """
        if call.splits is not None or ordinal is None:
            return call.splits or 1
        key = (*_layouts(call), ordinal)
        found = self._sizes.get(key)
        if found is None:
            device = self.gpu.backend.device_properties(ordinal)
            kernel = kernel_of(call, self.target(ordinal), 1)
            t = kernel.tiling
            resources = KernelResources(kernel, t.registers, False, t.shared_bytes)
            slots = device.multiprocessors * max(resources.ctas_per_sm, 1)
            found = self._sizes.keep(key, (blocks_of(call, kernel), t.tile, slots))
        blocks, tile, slots = found
        return choose_splits(blocks, -(-call.longest // tile), slots)


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
        call.scale,
    )


class Append(Operation[AppendCall]):
    """Writing new rows to a cache, and rotating new keys and queries (RoPE)."""

    copies_to_gpu: ClassVar = False

    def arrays(self, call: AppendCall) -> Mapping[str, ArrayView]:
        """See `Operation.arrays`."""
        return call.arrays

    def over(self, call: AppendCall, arrays: Mapping[str, ArrayView]) -> AppendCall:
        """See `Operation.over`."""
        return call._replace(arrays=arrays)

    def key(self, call: AppendCall, ordinal: int) -> tuple[object, ...]:
        """See `Operation.key`."""
        layouts = [(name, a.shape, a.strides, a.dtype) for name, a in call.arrays.items()]
        return *layouts, call.page_size, call.interleaved, ordinal

    def steps(self, call: AppendCall, ordinal: int | None, memory: Memory) -> Iterator[Step]:  # noqa: ARG002
        """See `Operation.steps`."""
        assert ordinal is not None
        step = append_step(self.target(ordinal), call)
        require_grid(self.caller.name, step.plan.grid[0])
        yield step

    def on_cpu(self, call: AppendCall, backend: str) -> None:  # noqa: ARG002  # numpy alone appends
        """See `Operation.on_cpu`."""
        append_on_cpu(call)


@functools.lru_cache(maxsize=64)
def decode_to(cuda: CudaBackend, caller: str, config: AttentionConfig) -> Decode:
    """The operation that attends as `config` says to caches of a backend, in the name of `caller`."""
    return Decode(config, launcher_of(cuda), Caller(caller, has_config=False))


@functools.lru_cache(maxsize=16)
def append_to(cuda: CudaBackend, caller: str) -> Append:
    """The operation that appends rows to caches of a backend, in the name of `caller`."""
    return Append(launcher_of(cuda), Caller(caller, has_config=False))
