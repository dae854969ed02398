"""Runs PTX text on the GPU as `ptxgen.interpreter.run` runs it on the CPU: same text, arguments and
arrays, through the project's own runtime.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ptxgen import ir
from ptxgen.interpreter.machine.arena import joined_ranges
from ptxgen.parse import parse
from ptxgen.runtime.cuda import CudaBackend, LoadedKernel, cuda_backend
from ptxgen.runtime.plan import LaunchPlan, param_slots
from ptxgen.runtime.tensormaps import encode_for_gpu
from ptxgen.target import target, target_for_device
from ptxgen.tensormap import TensorMap
from ptxgen.types import scalar_type

Array = np.ndarray[Any, np.dtype[Any]]

_PRINTS = "the device prints to the process's own output, which is not read here"
_DESTROYS = "it ends with a destroyed CUDA context, which no later test of the process survives"
_TEXTURES = "the runtime makes no textures"
_TOGETHER = "the runtime has no cooperative launches"
_SHARES = "the runtime loads a module for each kernel, so kernels do not share variables"

# Kernels that a test of fixtures does not run on the GPU, and why.
LEFT_OUT = {
    "print_plain": _PRINTS,
    "print_numbers": _PRINTS,
    "print_formats": _PRINTS,
    "print_assert": _DESTROYS,
    "print_trap": _DESTROYS,
    "count_launches": _SHARES,
    "count_through_pointer": _SHARES,
    "keep": _SHARES,
    "fetch": _SHARES,
    "grid_rounds": _TOGETHER,
    "grid_facts": _TOGETHER,
    **dict.fromkeys(
        (
            *("texture_turned", "texture_layers", "texture_convolved", "texture_box", "texture_bicubic"),
            *("texture_volume", "texture_cube", "texture_others", "surface_written", "surface_others"),
            "surface_outside",
        ),
        _TEXTURES,
    ),
}
ORDINAL = 0
STACK_BYTES = 16 << 10  # of a thread: recursion needs more than the 1 KiB that a context starts with
HOST_ALIGN = 16  # an array is as misaligned on the device as it is here, modulo this


def not_here(name: str, major: int, minor: int) -> str:
    """Why a GPU of this compute capability does not run text for the target; empty if it does."""
    if target(name).runs_on(major, minor):
        return ""
    return f"the text is for {name}, the GPU is sm_{major}{minor}"


@dataclass
class Span:
    """Host memory that has a copy on the device."""

    host: int
    nbytes: int
    owner: object  # keeps the host memory
    writable: bool
    allocated: int = 0
    address: int = 0


@dataclass
class GpuArena:
    """Arrays that keep their device addresses from launch to launch, as in a `DeviceArena`; each
    launch copies them to the device and back.
    """

    backend: CudaBackend = field(default_factory=cuda_backend)
    spans: list[Span] = field(default_factory=list)

    def place(self, array: Array) -> int:
        """The device address of a contiguous array's first element."""
        assert array.flags.c_contiguous
        self.add(array.ctypes.data, array.nbytes, array, array.flags.writeable)
        return self.address_of(array)

    def add(self, host: int, nbytes: int, owner: object, writable: bool) -> None:
        span = Span(host, nbytes, owner, writable)
        span.allocated = self.backend.allocate(nbytes + HOST_ALIGN, ordinal=ORDINAL)
        span.address = span.allocated + host % HOST_ALIGN
        self.spans.append(span)

    def address_of(self, array: Array) -> int:
        at = array.ctypes.data
        span = next(s for s in self.spans if s.host <= at < s.host + max(s.nbytes, 1))
        return span.address + at - span.host

    def upload(self) -> None:
        for s in self.spans:
            if s.nbytes:
                self.backend.copy_to_device(s.address, s.host, s.nbytes, ordinal=ORDINAL)

    def download(self) -> None:
        for s in self.spans:
            if s.nbytes and s.writable:
                self.backend.copy_to_host(s.host, s.address, s.nbytes, ordinal=ORDINAL)
        self.backend.synchronize(ordinal=ORDINAL)

    def close(self) -> None:
        for s in self.spans:
            self.backend.free(s.allocated, ordinal=ORDINAL)
        self.spans.clear()


def run_on_gpu(
    ptx: str,
    entry: str | None = None,
    *,
    args: Sequence[Any],
    grid: Any,
    block: Any,
    dynamic_smem: int = 0,
    arena: GpuArena | None = None,
    backend: CudaBackend | None = None,
) -> None:
    """As `ptxgen.interpreter.run`; skips the running test if the text is for a newer GPU."""
    backend = backend or cuda_backend()
    device = backend.device_properties(ORDINAL)
    module = parsed(ptx)
    if why := not_here(module.target, device.major, device.minor):
        pytest.skip(why)
    kernels = [k for k in module.kernels if entry in (None, k.name)]
    assert len(kernels) == 1, f"{entry} is one of {[k.name for k in module.kernels]}"
    loaded = backend.load(program(backend, ptx), kernels[0].name, dynamic_smem, ORDINAL)
    own = GpuArena(backend)
    arenas = [own] if arena is None else [own, arena]
    try:
        values = arguments(backend, own, kernels[0], args)
        for each in arenas:
            each.upload()
        launch(backend, loaded, kernels[0], (extent(grid), extent(block), dynamic_smem), values)
        for each in arenas:
            each.download()
    finally:
        own.close()


@functools.lru_cache(maxsize=8)
def parsed(text: str) -> ir.Module:
    return parse(text)


@functools.lru_cache(maxsize=64)
def program(backend: CudaBackend, text: str) -> bytes:
    device = backend.device_properties(ORDINAL)
    if recurses(text):
        limit_stack(backend)
    return backend.compile(text, target_for_device(device.major, device.minor))


def recurses(text: str) -> bool:
    """Whether the assembler may not know how much stack a kernel needs."""
    return ".func" in text


def limit_stack(backend: CudaBackend) -> None:
    doing = "enlarge the stack"
    with backend._driver.on(ORDINAL, doing):
        limit = backend._driver.require().CUlimit.CU_LIMIT_STACK_SIZE
        backend._driver.call("cuCtxSetLimit", limit, STACK_BYTES, doing=doing)


def extent(given: Any) -> tuple[int, int, int]:
    sizes = (given,) if isinstance(given, (int, np.integer)) else tuple(given)
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


def arguments(
    backend: CudaBackend, arena: GpuArena, kernel: ir.Kernel, args: Sequence[Any]
) -> list[int | float | bytes]:
    """What each parameter holds; arrays, and those of tensor maps, are added to the arena."""
    assert len(args) == len(kernel.params), f"{kernel.name} has {len(kernel.params)} parameters"
    held = [a.base if isinstance(a, TensorMap) else a for a in args]
    named = [(p.name, a) for p, a in zip(kernel.params, held, strict=True)]
    arrays = [(name, a) for name, a in named if isinstance(a, np.ndarray)]
    for low, high, owners, writable, _ in joined_ranges(arrays):
        arena.add(low, high - low, owners, writable)
    values: list[int | float | bytes] = []
    for param, inputs, memory in zip(kernel.params, args, held, strict=True):
        if isinstance(memory, np.ndarray):
            memory = arena.address_of(memory)
        if isinstance(inputs, TensorMap):
            values.append(encode_for_gpu(backend._driver, inputs, memory, ORDINAL))
        else:
            values.append(value_of(param, memory))
    return values


def value_of(param: ir.Param, given: Any) -> int | float | bytes:
    """A number that the parameter's type holds, or a structure's bytes."""
    if param.count:
        return bytes(given)
    kind = scalar_type(param.type)
    if kind.is_float:
        return float(given)
    if isinstance(given, (float, np.floating)):  # a float passed as its bits
        return int.from_bytes(np.asarray(given).tobytes(), "little")
    low = 1 << (kind.bits - 1) if kind.is_signed else 0
    return (int(given) + low) % (1 << kind.bits) - low


def launch(
    backend: CudaBackend,
    loaded: LoadedKernel,
    kernel: ir.Kernel,
    shape: tuple[tuple[int, int, int], tuple[int, int, int], int],
    values: list[int | float | bytes],
) -> None:
    """A launch plan; but for structures, which plans do not have, a call of the driver."""
    grid, block, shared = shape
    numbers = [v for v in values if not isinstance(v, bytes)]
    if len(numbers) == len(values):
        slots = param_slots(kernel.params)
        plan = LaunchPlan(kernel.name, grid, block, shared, slots, tuple(numbers))
        backend.launch(loaded, plan)
        return
    buffers = [
        ctypes.create_string_buffer(v if isinstance(v, bytes) else packed(p, v))
        for p, v in zip(kernel.params, values, strict=True)
    ]
    places = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
    with backend._driver.on(ORDINAL, loaded.doing):
        backend._driver.call(
            "cuLaunchKernel",
            loaded.function,
            *grid,
            *block,
            shared,
            0,
            ctypes.addressof(places),
            0,
            doing=loaded.doing,
        )


def packed(param: ir.Param, value: int | float) -> bytes:
    kind = scalar_type(param.type)
    if kind.is_float:
        return np.asarray(value, kind.dtype).tobytes()
    return int(value).to_bytes(kind.nbytes, "little", signed=value < 0)
