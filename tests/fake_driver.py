"""A recording fake of `cuda.bindings.driver`, so that the CUDA path is tested without a GPU.

`FakeDriver` has the functions of that module that `ptxgen.runtime` calls, with the same parameters
and return tuples (a test compares the signatures), and its real enum and handle classes. It
simulates devices, primary contexts, a stack of contexts for each thread, modules, memory, streams
and events; device memory is host memory, so copies round-trip. Misuse that a real driver answers
with an error or a crash is answered with that error, or fails the test.

* `driver.calls` has every call in order; `driver.names()` only the names.
* `driver.fail("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")` makes the next such call fail;
  `driver.fail(7, …)` the 7th call from now on, whatever it is. A poisoning error sticks to every
  later call, as on a real GPU.
* `driver.on_launch = hook` is the GPU: called with a `Launch`, whose `values` are the unpacked
  arguments; `driver.find(address)` gives the memory behind a pointer. An exception from
  the hook reaches the test, as an AssertionError where the driver could have raised it.
* `driver.place(array)` and `driver.fetch(address, like)` move arrays without a recorded call.

A "cubin" for the fake is `cubin(text)`: the magic number of an ELF file, then the PTX text.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ptxgen import ir
from ptxgen.parse import parse
from ptxgen.runtime.cuda_errors import POISONING
from ptxgen.runtime.plan import ParamSlot, param_slots
from ptxgen.tensormap import DTYPES, L2_PROMOTIONS, OOB_FILLS, SWIZZLES, TensorMap

real = pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")

CUBIN_MAGIC = b"\x7fELF"
DEFAULT_STREAMS = (0, 1, 2)  # null, legacy and per-thread: they belong to whatever is current
MEMORY_ALIGN = 256
MEMORY_GAP = 1 << 20  # between allocations, so that no address belongs to two
ALIGN_OF_HANDLES = 16
LARGEST_NUMBER = 8  # bytes; larger parameters are structures


def cubin(text: str) -> bytes:
    return CUBIN_MAGIC + text.encode()


@dataclass(frozen=True)
class FakeDevice:
    """A simulated GPU; an H100 unless told otherwise. Shared memory in bytes."""

    name: str = "Fake H100"
    sm: int = 90
    multiprocessors: int = 132
    shared_per_block: int = 48 << 10
    shared_per_block_optin: int = 227 << 10
    shared_per_multiprocessor: int = 228 << 10
    l2_cache: int = 50 << 20
    memory: int = 80 << 30

    def attribute(self, attribute: Any) -> int:
        values = {
            "COMPUTE_CAPABILITY_MAJOR": self.sm // 10,
            "COMPUTE_CAPABILITY_MINOR": self.sm % 10,
            "MULTIPROCESSOR_COUNT": self.multiprocessors,
            "MAX_SHARED_MEMORY_PER_BLOCK": self.shared_per_block,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": self.shared_per_block_optin,
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": self.shared_per_multiprocessor,
            "L2_CACHE_SIZE": self.l2_cache,
        }
        # Compared by number: some attributes have two names.
        names = real.CUdevice_attribute
        return {getattr(names, f"CU_DEVICE_ATTRIBUTE_{n}"): v for n, v in values.items()}[attribute]


A100 = FakeDevice("Fake A100", 80, 108, shared_per_block_optin=163 << 10)


@dataclass(frozen=True)
class Call:
    name: str
    arguments: tuple[Any, ...]


@dataclass
class Memory:
    """One allocation of device memory."""

    address: int
    data: np.ndarray[Any, np.dtype[np.uint8]]
    ordinal: int


@dataclass
class Function:
    kernel: ir.Kernel
    text: str
    context: int
    slots: tuple[ParamSlot, ...]
    max_dynamic_shared: int
    registers: int = 40
    local_bytes: int = 0
    max_threads: int = 1024

    @property
    def static_shared(self) -> int:
        return sum(s.nbytes for s in self.kernel.shared)


@dataclass(frozen=True)
class Launch:
    """One launch, as the GPU sees it."""

    text: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared: int
    stream: int
    ordinal: int
    values: dict[str, int | float | bytes]
    attributes: dict[str, Any] = field(default_factory=dict)  # by name, of `cuLaunchKernelEx`


@dataclass
class Fault:
    when: str | int  # a function's name, or how many calls from now on
    status: Any


class _StatusError(Exception):
    """Ends a simulated call with an error."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.status = getattr(real.CUresult, f"CUDA_ERROR_{name}")


def _simulated(results: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A driver function that returns its CUresult and `results` values, None each if it failed."""

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        name = body.__name__

        @functools.wraps(body)
        def function(self: FakeDriver, *arguments: Any) -> tuple[Any, ...]:
            with self._lock:
                self.calls.append(Call(name, arguments))
                try:
                    self._meet_fault(name, arguments)
                    value = body(self, *arguments)
                except _StatusError as error:
                    return (error.status, *[None] * results)
            return (real.CUresult.CUDA_SUCCESS, value)[: 1 + results]

        return function

    return decorate


class FakeDriver:
    """See the docstring of the module."""

    CUresult = real.CUresult
    CUdevice_attribute = real.CUdevice_attribute
    CUfunction_attribute = real.CUfunction_attribute
    CUpointer_attribute = real.CUpointer_attribute
    CUjit_option = real.CUjit_option
    CUlaunchConfig = real.CUlaunchConfig
    CUlaunchAttribute = real.CUlaunchAttribute
    CUlaunchAttributeID = real.CUlaunchAttributeID
    CUstream = real.CUstream
    CUtensorMapDataType = real.CUtensorMapDataType
    CUtensorMapInterleave = real.CUtensorMapInterleave
    CUtensorMapSwizzle = real.CUtensorMapSwizzle
    CUtensorMapL2promotion = real.CUtensorMapL2promotion
    CUtensorMapFloatOOBfill = real.CUtensorMapFloatOOBfill
    cuuint32_t = real.cuuint32_t
    cuuint64_t = real.cuuint64_t

    def __init__(self, *devices: FakeDevice, version: int = 13000) -> None:
        self.devices = devices or (FakeDevice(),)
        self.version = version
        self.calls: list[Call] = []
        self.launches: list[Launch] = []
        self.on_launch: Callable[[Launch], object] = lambda _: None
        self.jit_error_log = ""
        self.jit_info_log = ""
        self.function_limits: dict[str, int] = {}  # fields of every `Function` loaded from now on
        self.retained = [0] * len(self.devices)
        self.modules: dict[int, tuple[int, str]] = {}
        self.memory: dict[int, Memory] = {}
        self.streams: dict[int, int] = {}  # handle: context
        self.events: dict[int, float | None] = {}  # handle: ms, once recorded
        self.gpu_ms = 1.5  # how long every launch takes
        self._clock_ms = 0.0
        self._functions: dict[int, Function] = {}
        self._faults: list[Fault] = []
        self._poison: Any = None
        self._next = 0x1000
        self._next_address = 0x7F00_0000_0000
        self._stacks = threading.local()
        self._lock = threading.RLock()

    # ------------------------------------------------------------------------ for tests

    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    def fail(self, when: str | int, status: str) -> None:
        self._faults.append(Fault(when, getattr(real.CUresult, status)))

    def poison(self, status: str = "CUDA_ERROR_ILLEGAL_ADDRESS") -> None:
        """A kernel goes wrong on the GPU: every call from now on tells so."""
        self._poison = getattr(real.CUresult, status)

    @property
    def stack(self) -> list[int]:
        """The contexts of this thread, the current one last."""
        if not hasattr(self._stacks, "contexts"):
            self._stacks.contexts = []
        return self._stacks.contexts

    def context_of(self, ordinal: int) -> int:
        """The handle of the primary context of device `ordinal`."""
        return 0xC000 + ALIGN_OF_HANDLES * ordinal

    def make_stream(self, ordinal: int = 0) -> int:
        """A stream of the caller's."""
        handle = self._handle()
        self.streams[handle] = self.context_of(ordinal)
        return handle

    def place(self, array: np.ndarray[Any, Any], ordinal: int = 0) -> int:
        """The address of new memory on device `ordinal` that holds the bytes of `array`."""
        address = self._allocate(max(array.nbytes, 1), ordinal)
        self.memory[address].data[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        return address

    def fetch(self, address: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """What lies at `address`, as an array of the shape and type of `like`."""
        view = self.view(address, like.nbytes)
        return view.copy().view(like.dtype).reshape(like.shape)

    def find(self, address: int) -> Memory:
        """The allocation that `address` lies in."""
        for memory in self.memory.values():
            if memory.address <= address < memory.address + memory.data.size:
                return memory
        raise AssertionError(f"{address:#x} is no device memory")

    def view(self, address: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes at `address`, to be read and written."""
        memory = self.find(address)
        start = address - memory.address
        assert start + nbytes <= memory.data.size, f"{nbytes} bytes at {address:#x} are too many"
        return memory.data[start : start + nbytes]

    # ------------------------------------------------------------------------ inside

    def _meet_fault(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self._poison is None:
            for fault in list(self._faults):
                if isinstance(fault.when, int):
                    fault.when -= 1
                if fault.when in (0, name):
                    self._faults.remove(fault)
                    self._fail(name, arguments, fault.status)
        elif name not in ("cuInit", "cuDriverGetVersion", "cuGetErrorString"):
            self._fail(name, arguments, self._poison)

    def _fail(self, name: str, arguments: tuple[Any, ...], status: Any) -> None:
        if int(status) in POISONING:
            self._poison = status
        if name == "cuCtxPopCurrent" and self.stack:
            self.stack.pop()  # it pops even when it tells of an earlier failure
        if name == "cuModuleLoadDataEx" and arguments[1]:
            self._write_logs(arguments)
        raise _StatusError(status.name.removeprefix("CUDA_ERROR_"))

    def _handle(self) -> int:
        self._next += ALIGN_OF_HANDLES
        return self._next

    def _current(self) -> int:
        if not self.stack:
            raise _StatusError("INVALID_CONTEXT")
        context = self.stack[-1]
        if not self.retained[self._ordinal(context)]:
            raise _StatusError("CONTEXT_IS_DESTROYED")
        return context

    def _ordinal(self, context: int) -> int:
        return (context - self.context_of(0)) // ALIGN_OF_HANDLES

    def _allocate(self, nbytes: int, ordinal: int) -> int:
        address = self._next_address
        self._next_address += -(-nbytes // MEMORY_ALIGN) * MEMORY_ALIGN + MEMORY_GAP
        self.memory[address] = Memory(address, np.zeros(nbytes, np.uint8), ordinal)
        return address

    def _check_stream(self, stream: Any) -> None:
        handle = int(stream)
        if handle in DEFAULT_STREAMS:
            self._current()
        elif self.streams.get(handle) != self._current():
            raise _StatusError("INVALID_HANDLE")

    def _device(self, device: Any) -> FakeDevice:
        if not 0 <= int(device) < len(self.devices):
            raise _StatusError("INVALID_DEVICE")
        return self.devices[int(device)]

    def _write_logs(self, arguments: tuple[Any, ...]) -> None:
        _, count, options, values = arguments
        assert len(options) == len(values) == count
        inputs = dict(zip(options, values, strict=True))
        for kind, log in (("ERROR", self.jit_error_log), ("INFO", self.jit_info_log)):
            buffer = inputs.get(getattr(real.CUjit_option, f"CU_JIT_{kind}_LOG_BUFFER"))
            size = inputs.get(getattr(real.CUjit_option, f"CU_JIT_{kind}_LOG_BUFFER_SIZE_BYTES"))
            if buffer is not None:
                assert len(buffer) == size
                data = log.encode()[: size - 1] + b"\0"
                buffer[: len(data)] = data

    # ---------------------------------------------------------------------- the driver's functions

    def cuGetErrorString(self, error: Any) -> tuple[Any, bytes | None]:
        self.calls.append(Call("cuGetErrorString", (error,)))
        if self._faults and self._faults[0].when == "cuGetErrorString":
            return self._faults.pop(0).status, None
        words = error.name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()
        return real.CUresult.CUDA_SUCCESS, words.encode()

    @_simulated(0)
    def cuInit(self, Flags: int) -> None:
        assert Flags == 0

    @_simulated(1)
    def cuDriverGetVersion(self) -> int:
        return self.version

    @_simulated(1)
    def cuDeviceGetCount(self) -> int:
        return len(self.devices)

    @_simulated(1)
    def cuDeviceGet(self, ordinal: int) -> Any:
        self._device(ordinal)
        return real.CUdevice(ordinal)

    @_simulated(1)
    def cuDeviceGetName(self, length: int, dev: Any) -> bytes:
        return self._device(dev).name.encode()[: length - 1].ljust(length, b"\0")

    @_simulated(1)
    def cuDeviceGetAttribute(self, attrib: Any, dev: Any) -> int:
        return self._device(dev).attribute(attrib)

    @_simulated(1)
    def cuDevicePrimaryCtxRetain(self, dev: Any) -> Any:
        self._device(dev)
        self.retained[int(dev)] += 1
        return real.CUcontext(self.context_of(int(dev)))

    @_simulated(0)
    def cuDevicePrimaryCtxRelease(self, dev: Any) -> None:
        assert self.retained[int(dev)] > 0, "released more often than retained"
        self.retained[int(dev)] -= 1

    @_simulated(1)
    def cuCtxGetCurrent(self) -> Any:
        return real.CUcontext(self.stack[-1] if self.stack else 0)

    @_simulated(1)
    def cuCtxGetDevice(self) -> Any:
        return real.CUdevice(self._ordinal(self._current()))

    @_simulated(0)
    def cuCtxPushCurrent(self, ctx: Any) -> None:
        self.stack.append(int(ctx))

    @_simulated(1)
    def cuCtxPopCurrent(self) -> Any:
        if not self.stack:
            raise _StatusError("INVALID_CONTEXT")
        return real.CUcontext(self.stack.pop())

    @_simulated(1)
    def cuModuleLoadDataEx(
        self, image: bytes, numOptions: int, options: list[Any], optionValues: list[Any]
    ) -> Any:
        context = self._current()
        if image.startswith(CUBIN_MAGIC):
            text = image[len(CUBIN_MAGIC) :].decode()
        else:
            assert image.endswith(b"\0"), "the driver reads PTX up to its final NUL"
            text = image.rstrip(b"\0").decode()
            self._write_logs((image, numOptions, options, optionValues))
        handle = self._handle()
        self.modules[handle] = (context, text)
        return real.CUmodule(handle)

    @_simulated(0)
    def cuModuleUnload(self, hmod: Any) -> None:
        if self.modules.pop(int(hmod), None) is None:
            raise _StatusError("INVALID_HANDLE")

    @_simulated(1)
    def cuModuleGetFunction(self, hmod: Any, name: bytes) -> Any:
        context, text = self.modules[int(hmod)]
        assert context == self._current()
        for kernel in parse(text).kernels:
            if kernel.name.encode() == name:
                function = Function(kernel, text, context, param_slots(kernel.params), 0)
                for limit, value in self.function_limits.items():
                    setattr(function, limit, value)
                device = self.devices[self._ordinal(context)]
                function.max_dynamic_shared = device.shared_per_block - function.static_shared
                handle = self._handle()
                self._functions[handle] = function
                return real.CUfunction(handle)
        raise _StatusError("NOT_FOUND")

    @_simulated(1)
    def cuFuncGetAttribute(self, attrib: Any, hfunc: Any) -> int:
        function = self._functions[int(hfunc)]
        return {
            "NUM_REGS": function.registers,
            "LOCAL_SIZE_BYTES": function.local_bytes,
            "SHARED_SIZE_BYTES": function.static_shared,
            "MAX_THREADS_PER_BLOCK": function.max_threads,
        }[real.CUfunction_attribute(attrib).name.removeprefix("CU_FUNC_ATTRIBUTE_")]

    @_simulated(0)
    def cuFuncSetAttribute(self, hfunc: Any, attrib: Any, value: int) -> None:
        assert attrib == (real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        function = self._functions[int(hfunc)]
        device = self.devices[self._ordinal(function.context)]
        if value + function.static_shared > device.shared_per_block_optin:
            raise _StatusError("INVALID_VALUE")
        function.max_dynamic_shared = value

    @_simulated(0)
    def cuLaunchKernel(
        self,
        f: Any,
        gridDimX: int,
        gridDimY: int,
        gridDimZ: int,
        blockDimX: int,
        blockDimY: int,
        blockDimZ: int,
        sharedMemBytes: int,
        hStream: Any,
        kernelParams: int,
        extra: int,
    ) -> None:
        function = self._functions[int(f)]
        if function.context != self._current():
            raise _StatusError("INVALID_CONTEXT")
        self._check_stream(hStream)
        if sharedMemBytes > function.max_dynamic_shared:
            raise _StatusError("INVALID_VALUE")
        if blockDimX * blockDimY * blockDimZ > function.max_threads:
            raise _StatusError("INVALID_VALUE")
        assert extra == 0
        grid, block = (gridDimX, gridDimY, gridDimZ), (blockDimX, blockDimY, blockDimZ)
        self._run(function, grid, block, sharedMemBytes, int(hStream), kernelParams, {})

    @_simulated(0)
    def cuLaunchKernelEx(self, config: Any, f: Any, kernelParams: int, extra: int) -> None:
        function = self._functions[int(f)]
        if function.context != self._current():
            raise _StatusError("INVALID_CONTEXT")
        self._check_stream(config.hStream)
        if config.sharedMemBytes > function.max_dynamic_shared:
            raise _StatusError("INVALID_VALUE")
        assert extra == 0
        assert config.numAttrs == len(config.attrs)
        attributes: dict[str, Any] = {}
        for attribute in config.attrs:
            name = attribute.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_")
            value = attribute.value
            attributes[name] = {
                "CLUSTER_DIMENSION": lambda v: (v.clusterDim.x, v.clusterDim.y, v.clusterDim.z),
                "COOPERATIVE": lambda v: v.cooperative,
                "PROGRAMMATIC_STREAM_SERIALIZATION": lambda v: v.programmaticStreamSerializationAllowed,
            }[name](value)
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        block = (config.blockDimX, config.blockDimY, config.blockDimZ)
        dynamic, stream = config.sharedMemBytes, int(config.hStream)
        self._run(function, grid, block, dynamic, stream, kernelParams, attributes)

    def _run(
        self,
        function: Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        dynamic_shared: int,
        stream: int,
        parameters: int,
        attributes: dict[str, Any],
    ) -> None:
        launch = Launch(
            text=function.text,
            entry=function.kernel.name,
            grid=grid,
            block=block,
            dynamic_shared=dynamic_shared,
            stream=stream,
            ordinal=self._ordinal(function.context),
            values=_values(function.slots, parameters),
            attributes=attributes,
        )
        self.launches.append(launch)
        self._clock_ms += self.gpu_ms
        try:
            self.on_launch(launch)
        except (RuntimeError, ValueError) as error:  # which would look like the driver's own
            raise AssertionError(f"the fake GPU failed: {error}") from error

    @_simulated(1)
    def cuTensorMapEncodeTiled(
        self,
        tensorDataType: Any,
        tensorRank: int,
        globalAddress: int,
        globalDim: list[Any],
        globalStrides: list[Any],
        boxDim: list[Any],
        elementStrides: list[Any],
        interleave: Any,
        swizzle: Any,
        l2Promotion: Any,
        oobFill: Any,
    ) -> Any:
        """A map in the format of the interpreter, which is this GPU."""
        self._current()
        assert interleave == real.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE
        assert tensorRank == len(globalDim) == len(boxDim) == len(elementStrides) == len(globalStrides) + 1

        def named(names: dict[str, int], value: Any) -> str:
            return next(name for name, number in names.items() if number == int(value))

        built = TensorMap(
            globalAddress,
            tuple(map(int, boxDim)),
            named(DTYPES, tensorDataType),
            tuple(map(int, globalDim)),
            tuple(map(int, globalStrides)),
            named(SWIZZLES, swizzle),
            tuple(map(int, elementStrides)),
            named(OOB_FILLS, oobFill),
            named(L2_PROMOTIONS, l2Promotion),
        )
        words = struct.unpack("<16Q", built.encode(globalAddress))
        return SimpleNamespace(opaque=[real.cuuint64_t(word) for word in words])

    @_simulated(1)
    def cuPointerGetAttribute(self, attribute: Any, ptr: Any) -> int:
        assert attribute == real.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        for memory in self.memory.values():
            if memory.address <= int(ptr) < memory.address + memory.data.size:
                return memory.ordinal
        raise _StatusError("INVALID_VALUE")

    @_simulated(0)
    def cuStreamSynchronize(self, hStream: Any) -> None:
        self._check_stream(hStream)

    @_simulated(1)
    def cuEventCreate(self, Flags: int) -> Any:
        assert Flags == 0
        self._current()
        handle = self._handle()
        self.events[handle] = None
        return real.CUevent(handle)

    @_simulated(0)
    def cuEventRecord(self, hEvent: Any, hStream: Any) -> None:
        self._check_stream(hStream)
        self.events[int(hEvent)] = self._clock_ms

    @_simulated(0)
    def cuEventSynchronize(self, hEvent: Any) -> None:
        assert int(hEvent) in self.events

    @_simulated(1)
    def cuEventElapsedTime(self, hStart: Any, hEnd: Any) -> float:
        start, end = self.events[int(hStart)], self.events[int(hEnd)]
        if start is None or end is None:
            raise _StatusError("INVALID_HANDLE")
        return end - start

    @_simulated(0)
    def cuEventDestroy(self, hEvent: Any) -> None:
        del self.events[int(hEvent)]

    @_simulated(1)
    def cuMemAlloc(self, bytesize: int) -> Any:
        ordinal = self._ordinal(self._current())
        used = sum(m.data.size for m in self.memory.values() if m.ordinal == ordinal)
        if used + bytesize > self.devices[ordinal].memory:
            raise _StatusError("OUT_OF_MEMORY")
        return real.CUdeviceptr(self._allocate(bytesize, ordinal))

    @_simulated(0)
    def cuMemFree(self, dptr: Any) -> None:
        self._current()
        if self.memory.pop(int(dptr), None) is None:
            raise _StatusError("INVALID_VALUE")

    @_simulated(0)
    def cuMemcpyHtoDAsync(self, dstDevice: Any, srcHost: int, ByteCount: int, hStream: Any) -> None:
        self._check_stream(hStream)
        data = np.frombuffer(ctypes.string_at(srcHost, ByteCount), np.uint8)
        self.view(int(dstDevice), ByteCount)[:] = data

    @_simulated(0)
    def cuMemcpyDtoHAsync(self, dstHost: int, srcDevice: Any, ByteCount: int, hStream: Any) -> None:
        self._check_stream(hStream)
        ctypes.memmove(dstHost, self.view(int(srcDevice), ByteCount).tobytes(), ByteCount)

    @_simulated(0)
    def cuMemsetD8Async(self, dstDevice: Any, uc: int, N: int, hStream: Any) -> None:
        self._check_stream(hStream)
        self.view(int(dstDevice), N)[:] = uc

    @_simulated(0)
    def cuMemsetD32Async(self, dstDevice: Any, ui: int, N: int, hStream: Any) -> None:
        self._check_stream(hStream)
        self.view(int(dstDevice), 4 * N).view(np.uint32)[:] = ui

    @_simulated(0)
    def cuMemcpyDtoDAsync(self, dstDevice: Any, srcDevice: Any, ByteCount: int, hStream: Any) -> None:
        self._check_stream(hStream)
        self.view(int(dstDevice), ByteCount)[:] = self.view(int(srcDevice), ByteCount).copy()


def _values(slots: tuple[ParamSlot, ...], pointers: int) -> dict[str, int | float | bytes]:
    """The arguments behind an array of pointers to them, read as the kernel reads them."""
    codes = {"f16": "e", "f32": "f", "f64": "d"}
    places = (ctypes.c_void_p * len(slots)).from_address(pointers)
    values: dict[str, int | float | bytes] = {}
    for slot, location in zip(slots, places, strict=True):
        data = ctypes.string_at(location, slot.nbytes)
        if slot.nbytes > LARGEST_NUMBER:
            values[slot.name] = data
        elif slot.type in codes:
            (values[slot.name],) = struct.unpack(f"<{codes[slot.type]}", data)
        else:
            values[slot.name] = int.from_bytes(data, "little", signed=slot.type.startswith("s"))
    return values
