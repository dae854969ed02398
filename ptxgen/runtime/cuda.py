"""`CudaBackend`: loads and launches kernels on GPUs through cuda-python.

Importing this module imports nothing of CUDA; the driver is opened by the first method that needs
it. Addresses and stream handles are plain integers, as in `__cuda_array_interface__` and
`__cuda_stream__`; stream 0 is the default stream.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

from ptxgen.errors import BackendError, LaunchError
from ptxgen.runtime.assembler import Assembler, find_assembler
from ptxgen.runtime.bounded_cache import BoundedCache
from ptxgen.runtime.cuda_driver import DeviceProperties, Driver
from ptxgen.runtime.cuda_errors import driver_name
from ptxgen.runtime.cuda_module import LoadedKernel, Modules, check_shared
from ptxgen.runtime.plan import LaunchPlan
from ptxgen.runtime.repeated_launch import RepeatedLaunch
from ptxgen.runtime.tensormaps import encode_for_gpu
from ptxgen.target import Target
from ptxgen.tensormap import TensorMap

__all__ = ["CudaBackend", "DeviceProperties", "LoadedKernel", "check_shared", "cuda_backend"]

_INVALID_VALUE: Final = 1
_POINTER_ATTRIBUTE: Final = "cuPointerGetAttribute"
_FIND_DEVICE: Final = "find the device of address"
_FIND_ANY: Final = "find the device of an address"  # without its number, which takes time to write
_EVENT_DEFAULT: Final = 0


class CudaBackend:
    """Loads and launches kernels on the GPUs of this machine; any thread may use it.

    `driver` is a module with the functions of `cuda.bindings.driver`, which is the default. Use
    `cuda_backend()` for the real driver: one object per process must know whether the CUDA context
    has been destroyed.

    Every method but `available`, `why_unavailable`, `compile`, `version` and `close` raises
    `BackendError` if there is no GPU or a driver call fails. Once a kernel has destroyed the CUDA
    context, a method that would call the driver raises `PoisonedContextError` instead; `free` then
    does nothing.
    """

    name: Final = "cuda"

    def __init__(self, driver: Any = None) -> None:
        self._driver = Driver(driver)
        self._modules = Modules(self._driver)
        self._maps = BoundedCache[tuple[int, tuple[object, ...]], bytes]()  # by address and layout
        self._device_ordinal: Any = None  # the driver's name of this attribute, once it is needed

    # --------------------------------------------------------------------------------- devices

    def available(self) -> bool:
        """Whether there is a usable GPU; only the first call asks the driver.

        On a machine without a GPU that call takes at most 0.2 s.
        """
        return not self._driver.why_unavailable()

    def why_unavailable(self) -> str:
        """Why there is no usable GPU; the empty string if there is one."""
        return self._driver.why_unavailable()

    @property
    def device_count(self) -> int:
        """The number of GPUs that this process sees."""
        return self._driver.count

    def device_properties(self, ordinal: int) -> DeviceProperties:
        """The properties of device `ordinal`; raises `LaunchError` if there is no such device."""
        return self._driver.properties(ordinal)

    def current_device(self) -> int:
        """The ordinal of the device of the calling thread's current context; 0 without context."""
        return self._driver.current_device()

    def device_of_pointer(self, address: int) -> int | None:
        """The ordinal of the device whose memory has `address`; None for memory unknown to CUDA."""
        driver = self._driver
        if self._device_ordinal is None:
            self._device_ordinal = driver.require().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        status, ordinal = driver.answer(_POINTER_ATTRIBUTE, (self._device_ordinal, address), _FIND_ANY)
        if status:
            if int(status) != _INVALID_VALUE:
                raise driver.error(_POINTER_ATTRIBUTE, status, f"{_FIND_DEVICE} {address:#x}")
            return None
        # For host memory the driver reports an invalid value or a negative device ordinal.
        return None if ordinal < 0 else ordinal

    # ---------------------------------------------------------------------------------- programs

    def version(self, target: Target) -> str:
        """The compiler that `compile` uses for `target`: `"ptxas 13.0.88"`, or the driver."""
        assembler = self._assembler(target)
        if assembler is not None:
            return f"{assembler.name} {assembler.version}"
        return f"driver {driver_name(self._driver.version)}" if self.available() else "driver"

    def compile(self, text: str, target: Target) -> bytes:
        """A cubin of PTX `text` for `target`, or the text itself if the driver is to compile it.

        The driver compiles if no assembler is installed, or one whose CUDA major version is later
        than the driver's, since the driver does not load its cubins. Raises `AssemblerError` if the
        text is refused.
        """
        assembler = self._assembler(target)
        if assembler is None:
            return text.encode()
        return assembler.assemble(text, target.name).cubin

    def _assembler(self, target: Target) -> Assembler | None:
        try:
            assembler = find_assembler(target=target.name)
        except BackendError:
            return None
        # CUDA Compatibility guide, "Minor Version Compatibility": a driver loads the cubins of all
        # toolkits of its own major version and of earlier major versions.
        generation = int(assembler.version.split(".")[0])
        too_new = self.available() and generation > self._driver.version // 1000
        return None if too_new else assembler

    def load(self, program: bytes, entry: str, dynamic_shared: int, ordinal: int) -> LoadedKernel:
        """The kernel `entry` of `program`, a cubin or PTX text, on device `ordinal`.

        Each program, kernel and device is loaded once; keep the result all the same, since a second
        call hashes the program. `dynamic_shared` is the most dynamic shared memory of the launches
        to come, in bytes per block. Raises `LaunchError`, before any device call, if the device has
        less, and again if the kernel's static shared memory on top exceeds the limit. Text that the
        driver's compiler refuses raises `BackendError` with the reason, the line and the log.
        """
        return self._modules.load(program, entry, dynamic_shared, ordinal)

    def launch(self, kernel: LoadedKernel, plan: LaunchPlan, stream: int = 0) -> None:
        """Launch `plan` on `stream` of the kernel's device; returns before the kernel has run.

        The caller's current device stays the same. A fault of the kernel is raised by a later call,
        at the latest by `synchronize`. Raises `LaunchError` if the plan is not for `kernel`.
        """
        self.repeated(kernel, plan).put(plan.values, stream)

    def repeated(self, kernel: LoadedKernel, plan: LaunchPlan) -> RepeatedLaunch:
        """Launches that differ from `plan` in values and streams alone; each raises what `launch` does.
        Raises `LaunchError` if the plan is not for `kernel`.
        """
        return RepeatedLaunch(self._driver, kernel, plan, self.encode)

    def encode(self, of: TensorMap, ordinal: int) -> bytes:
        """The 128 bytes of a tensor map of an address on device `ordinal`, as a kernel's parameter."""
        assert isinstance(of.base, int)  # an array has another address here
        key = of.base, of.layout
        encoded = self._maps.get(key)
        if encoded is None:
            encoded = self._maps.keep(key, encode_for_gpu(self._driver, of, of.base, ordinal))
        return encoded

    def run(self, program: bytes, plan: LaunchPlan, *, stream: int = 0) -> None:
        """Load `program` on the current device and launch `plan` there; see `load`, `launch`."""
        kernel = self.load(program, plan.entry, plan.dynamic_shared, self.current_device())
        self.launch(kernel, plan, stream)

    # ---------------------------------------------------------------------------------- waiting

    def synchronize(self, stream: int = 0, *, ordinal: int) -> None:
        """Wait until all work on `stream` of device `ordinal` is done."""
        doing = f"wait for a stream of device {ordinal}"
        with self._driver.on(ordinal, doing):
            self._driver.call("cuStreamSynchronize", stream, doing=doing)

    def elapsed_ms(self, work: Callable[[], object], stream: int = 0, *, ordinal: int) -> float:
        """The device time in milliseconds of the work that `work()` enqueues on `stream`.

        It is measured by events on device `ordinal`, without the time of the host; the resolution
        is about 0.5 µs (CUDA Driver API, `cuEventElapsedTime`). Waits for the work to end.
        """
        call, doing = self._driver.call, f"measure work on device {ordinal}"
        with self._driver.on(ordinal, doing), self._event(doing) as begin, self._event(doing) as end:
            call("cuEventRecord", begin, stream, doing=doing)
            work()
            call("cuEventRecord", end, stream, doing=doing)
            call("cuEventSynchronize", end, doing=doing)
            return float(call("cuEventElapsedTime", begin, end, doing=doing))

    @contextlib.contextmanager
    def _event(self, doing: str) -> Iterator[Any]:
        event = self._driver.call("cuEventCreate", _EVENT_DEFAULT, doing=doing)
        try:
            yield event
        except BaseException:
            self._driver.quietly("cuEventDestroy", event)
            raise
        self._driver.call("cuEventDestroy", event, doing=doing)

    # ---------------------------------------------------------------------------------- memory

    def allocate(self, nbytes: int, *, ordinal: int) -> int:
        """Allocate `nbytes` bytes (at least 1) on device `ordinal`; the result is the address."""
        if nbytes < 1:
            raise LaunchError(f"allocate: nbytes must be at least 1, got {nbytes}")
        doing = f"allocate {nbytes} bytes on device {ordinal}"
        address: Any = 0
        try:
            with self._driver.on(ordinal, doing):
                address = self._driver.call("cuMemAlloc", nbytes, doing=doing)
            return int(address)
        except BaseException:
            if address:  # allocated, but restoring the caller's context failed
                with contextlib.suppress(BackendError):
                    self.free(int(address), ordinal=ordinal)
            raise

    def free(self, address: int, *, ordinal: int) -> None:
        """Free memory of `allocate`; does nothing if the context is destroyed, which freed it."""
        if self._driver.poison:
            return
        doing = f"free {address:#x} on device {ordinal}"
        with self._driver.on(ordinal, doing):
            self._driver.call("cuMemFree", address, doing=doing)

    def copy_to_device(self, address: int, host: int, nbytes: int, stream: int = 0, *, ordinal: int) -> None:
        """Copy `nbytes` bytes from the host address `host` to `address`, in stream order.

        Keep the host memory alive and unchanged until `stream` has executed the copy.
        """
        doing = f"copy {nbytes} bytes to device {ordinal}"
        with self._driver.on(ordinal, doing):
            self._driver.call("cuMemcpyHtoDAsync", address, host, nbytes, stream, doing=doing)

    def copy_to_host(self, host: int, address: int, nbytes: int, stream: int = 0, *, ordinal: int) -> None:
        """Copy `nbytes` bytes from `address` to the host address `host`, in stream order.

        The host memory has the data once `stream` is synchronized.
        """
        doing = f"copy {nbytes} bytes from device {ordinal}"
        with self._driver.on(ordinal, doing):
            self._driver.call("cuMemcpyDtoHAsync", host, address, nbytes, stream, doing=doing)

    def copy_on_device(self, target: int, source: int, nbytes: int, stream: int = 0, *, ordinal: int) -> None:
        """Copy `nbytes` bytes between two addresses on device `ordinal`, in stream order."""
        doing = f"copy {nbytes} bytes on device {ordinal}"
        with self._driver.on(ordinal, doing):
            self._driver.call("cuMemcpyDtoDAsync", target, source, nbytes, stream, doing=doing)

    def clear(self, address: int, nbytes: int, stream: int = 0, *, ordinal: int) -> None:
        """Set `nbytes` bytes at an address on device `ordinal` to 0, in stream order."""
        doing = f"clear {nbytes} bytes on device {ordinal}"
        with self._driver.on(ordinal, doing):
            self._driver.call("cuMemsetD8Async", address, 0, nbytes, stream, doing=doing)

    def fill(self, address: int, word: int, count: int, stream: int = 0, *, ordinal: int) -> None:
        """Set `count` words of 32 bits at an address on device `ordinal` to `word`, in stream order."""
        doing = f"fill {count} words on device {ordinal}"
        with self._driver.on(ordinal, doing):
            self._driver.call("cuMemsetD32Async", address, word, count, stream, doing=doing)

    def close(self) -> None:
        """Unload all kernels, which must not be launched any more, and release the devices.

        It is for programs that go on without the GPU; the end of the process does the same. A later
        call opens the devices again.
        """
        self._modules.close()
        self._driver.close()


@functools.cache
def cuda_backend() -> CudaBackend:
    """The one `CudaBackend` of this process on the real driver; does not open the driver."""
    return CudaBackend()
