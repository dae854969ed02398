"""A checked call for gradients on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from flash.gradients.checks import WRITTEN, checked
from flash.gradients.steps import GradientCall, memory_of, steps_of
from flash.host import results
from flash.host.caller import Caller
from flash.launch.gpu import GpuLauncher
from flash.launch.step import Step
from flash.operands.dtypes import F32
from ptxgen.arrays.elements import numpy_type
from ptxgen.arrays.staging import Staging
from ptxgen.arrays.views import HOST, ArrayView, host_array, view


class GradientLauncher:
    """Launches the kernels of gradients of one config; `gpu` loads them."""

    def __init__(self, gpu: GpuLauncher, caller: Caller) -> None:
        self._gpu = gpu
        self._caller = caller

    def clear(self, array: ArrayView, stream: int) -> None:
        """Set all elements of a dense array to 0."""
        if array.device == HOST:
            host_array(array)[...] = 0
        elif array.size:
            nbytes = array.size * numpy_type(array.dtype).itemsize
            self._gpu.backend.clear(array.pointer, nbytes, stream, ordinal=array.device[1])

    def launch(self, call: GradientCall, stream: int) -> None:
        """Launch the call, whose arrays are on a GPU, on a stream. Returns before it has run."""
        ordinal, gpu = call.arrays["q"].device[1], self._gpu
        lse, space = call.arrays["lse"], {}
        for name, needed in memory_of(call).items():
            # It is freed in the order of the stream, as the library's own arrays are.
            made = results.empty(lse, needed.shape, F32, memory=gpu.backend, stream=stream)
            space[name] = view(made, name)
            if needed.is_cleared:
                self.clear(space[name], stream)
        steps = list(steps_of(call, gpu.target(ordinal), space, self._caller.name))
        given = [array for name, array in call.arrays.items() if name not in WRITTEN]
        gpu.wait_for_producers((*given, *call.operands.values()), stream, ordinal)
        for step in steps:
            gpu.ready(step, ordinal).launch(gpu.backend, _pointers(step), stream)

    def launch_from_host(self, call: GradientCall, stream: int, ordinal: int) -> None:
        """Copy the call's arrays to a GPU, launch there, copy the results back and wait."""
        with Staging(self._gpu.backend, stream, ordinal) as staging:
            # Rows of no sequence are not written, and keep what they have.
            place = staging.copy_of if call.config.varlen else staging.room_for
            written = {name: place(call.arrays[name]) for name in WRITTEN}
            given = {n: staging.copy_of(a) for n, a in call.arrays.items() if n not in WRITTEN}
            operands = {name: staging.copy_of(array) for name, array in call.operands.items()}
            sums = {name: staging.room_for(array) for name, array in call.sums.items()}
            longest = call.checked.longest_q, call.checked.longest_k
            # Checked again: the copies are dense, the caller's arrays may not be.
            sizes = checked(call.config, {**given, **written}, operands, call.layout, longest, self._caller)
            staged = call._replace(checked=sizes, arrays={**given, **written}, operands=operands)
            self.launch(staged._replace(sums=sums), stream)
            there = {**written, **sums}
            fetched = [({**call.arrays, **call.sums}[n], staging.fetch(a)) for n, a in there.items()]
            staging.wait()
        for into, values in fetched:
            host_array(into)[...] = values


def _pointers(step: Step) -> Sequence[int]:
    """The addresses of a launch; an array without elements is not read, so any other will do."""
    spare = next(array.pointer for array in step.arrays if array.pointer)
    return [array.pointer or spare for array in step.arrays]
