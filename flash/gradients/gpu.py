"""A checked call for gradients on a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from threading import Lock
from typing import Final

from flash.gradients.checks import WRITTEN, Checks, alignment
from flash.gradients.steps import GradientCall, arrays_of, memory_of, steps_of
from flash.host import results
from flash.host.caller import Caller
from flash.launch.gpu import GpuLauncher, Ready
from flash.operands.dtypes import F32, F32_BYTES
from flash.problem.gradient_choice import gradient_config
from flash.problem.gradients import owners_of
from ptxgen.arrays import streams
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.elements import numpy_type
from ptxgen.arrays.staging import Staging
from ptxgen.arrays.views import HOST, UNKNOWN_DEVICE, ArrayView, host_array, view
from ptxgen.errors import LaunchError
from ptxgen.runtime.kept import Kept
from ptxgen.target import Target

_ALIGNED: Final = 16  # bytes, the alignment of an array in the memory of a stream
# Libraries whose allocators give memory that was used on a stream to its next work again. Those of torch
# keep apart what a captured CUDA graph uses.
_POOLING: Final = ("torch", "cupy")

# The kernels of a call, loaded, with the names of their arrays.
_Launches = tuple[tuple[Ready, tuple[str, ...]], ...]


def ordinal_of(arrays: Mapping[str, ArrayView]) -> int | None:
    """The ordinal of the GPU that the arrays of a call are on; None if none has memory there."""
    return next((a.device[1] for a in arrays.values() if a.device[1] != UNKNOWN_DEVICE), None)


class GradientLauncher:
    """Launches the kernels of gradients of one config; `gpu` loads them."""

    def __init__(self, gpu: GpuLauncher, checks: Checks, caller: Caller) -> None:
        self._gpu = gpu
        self._checks = checks
        self._caller = caller
        self._ready = Kept[tuple[object, ...], _Launches]()
        self._memory: dict[tuple[int, int], ArrayView] = {}
        self._lock = Lock()

    def require_kernels(self, ordinal: int | None, target: Target, *, one_sweep: bool) -> None:
        """Raise `ConfigError` if no kernel computes the gradients on the target, and `LaunchError` if
        device `ordinal` does not hold it. None stands for no device.
        """
        for owner in owners_of(one_sweep=one_sweep):
            made = gradient_config(
                self._gpu.config, owner, target, _ALIGNED, one_sweep=one_sweep, who=self._caller.name
            )
            tiling = made.tiling
            if ordinal is None:
                continue
            device = self._gpu.backend.device_properties(ordinal)
            if tiling.shared_bytes > device.shared_per_block_optin:
                raise LaunchError(
                    f"{self._caller.name}: a kernel for {target} needs {tiling.shared_bytes} bytes of "
                    f"shared memory per block, but {device} allows {device.shared_per_block_optin}; leave "
                    "target=None"
                )

    def clear(self, array: ArrayView, stream: int) -> None:
        """Set all elements of a dense array to 0."""
        if array.device == HOST:
            host_array(array)[...] = 0
        elif array.size:
            nbytes = array.size * numpy_type(array.dtype).itemsize
            self._gpu.backend.clear(array.pointer, nbytes, stream, ordinal=array.device[1])

    def launch(self, call: GradientCall, stream: int, *, staged: bool = False) -> None:
        """Launch the call, whose arrays are on a GPU, on a stream. Returns before it has run. `staged`:
        the arrays are copies of the caller's, whose library has no memory there.
        """
        ordinal, gpu = ordinal_of(call.arrays), self._gpu
        if ordinal is None:
            return
        given = [array for name, array in call.arrays.items() if name not in WRITTEN]
        with self._lock:  # the next call on the stream uses the same memory
            memory = self._memory_of(call, ordinal, stream, staged=staged)
            launches = self._launches(call, memory, ordinal)
            gpu.wait_for_producers((*given, *call.operands.values()), stream, ordinal)
            for name, needed in memory_of(call).items():
                if needed.is_cleared:
                    self.clear(memory[name], stream)
            arrays = arrays_of(call, memory)
            # An array without elements is not read, so any other address will do.
            spare = next((array.pointer for array in arrays.values() if array.pointer), 0)
            for ready, names in launches:
                ready.launch(gpu.backend, [arrays[name].pointer or spare for name in names], stream)

    def _launches(self, call: GradientCall, memory: Mapping[str, ArrayView], ordinal: int) -> _Launches:
        """The kernels of a call, kept for later calls with arrays of the same layout."""
        aligned = alignment(call.config, call.arrays)
        of_features = tuple(call.numbers.items()), tuple(call.sums)
        key = (call.checked, aligned, call.scale, *of_features, call.layout, ordinal)
        found = self._ready.get(key)
        if found is None:
            steps = list(steps_of(call, self._gpu.target(ordinal), memory, self._caller.name))
            launches = tuple([(self._gpu.ready(step, ordinal), names) for step, names in steps])
            found = self._ready.keep(key, launches)
        return found

    def _memory_of(
        self, call: GradientCall, ordinal: int, stream: int, *, staged: bool
    ) -> dict[str, ArrayView]:
        """The memory that the launches of a call need."""
        needed = memory_of(call)
        rows = _ALIGNED // F32_BYTES
        counts = [-(-math.prod(one.shape) // rows) * rows for one in needed.values()]
        whole = self._room(sum(counts), None if staged else call.arrays["q"], ordinal, stream)
        found, begin = {}, whole.pointer
        for (name, one), count in zip(needed.items(), counts, strict=True):
            found[name] = whole._replace(
                pointer=begin, shape=one.shape, strides=dense_strides(one.shape), device=("cuda", ordinal)
            )
            begin += count * F32_BYTES
        return found

    def _room(self, elements: int, like: ArrayView | None, ordinal: int, stream: int) -> ArrayView:
        """Memory of f32 for work on a stream: of the library of `like` if that pools its memory, else
        kept for the next calls on the same stream, whose work runs in order.
        """
        if like is not None and like.kind in _POOLING:
            on = None if stream == streams.current_stream(like) else stream
            return view(results.empty(like, (elements,), F32, stream=on), "memory")
        whole = self._memory.get((ordinal, stream))
        if whole is None or whole.size < elements:
            made = results.DeviceArray((elements,), F32, ordinal, self._gpu.backend, stream)
            whole = self._memory[ordinal, stream] = view(made, "memory")
        return whole

    def launch_from_host(self, call: GradientCall, stream: int, ordinal: int) -> None:
        """Copy the call's arrays to a GPU, launch there, copy the results back and wait."""
        with Staging(self._gpu.backend, stream, ordinal) as staging:
            # Rows of no sequence are not written, and keep what they have.
            place = staging.copy_of if call.config.varlen else staging.room_for
            written = {name: place(call.arrays[name]) for name in WRITTEN}
            given = {n: staging.copy_of(a) for n, a in call.arrays.items() if n not in WRITTEN}
            operands = {name: staging.copy_of(array) for name, array in call.operands.items()}
            # The gradients of arrays of scores are 0, and not written, if no query meets a key.
            sums = {name: staging.copy_of(array) for name, array in call.sums.items()}
            longest = (call.checked.longest_q, call.checked.longest_k) if call.config.varlen else (None, None)
            # Checked again: the copies are dense, the caller's arrays may not be.
            sizes = self._checks.check({**given, **written}, operands, call.layout, longest)
            there = call._replace(checked=sizes, arrays={**given, **written}, operands=operands)
            self.launch(there._replace(sums=sums), stream, staged=True)
            results_there = {**written, **sums}
            fetched = [({**call.arrays, **call.sums}[n], staging.fetch(a)) for n, a in results_there.items()]
            staging.wait()
        for into, values in fetched:
            host_array(into)[...] = values
