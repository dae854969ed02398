"""Loads programs on a device, and caches the loaded kernels with their resource needs."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from ptxgen.errors import BackendError, LaunchError
from ptxgen.runtime.cuda_driver import DeviceProperties, Driver
from ptxgen.runtime.cuda_errors import POISONING, jit_refusal, no_entry, too_new, what_happened
from ptxgen.runtime.plan import ArgumentBlock, ParamSlot

# A cubin is an ELF file; a fat binary begins with its own magic number. Anything else is PTX text.
_BINARY_MAGIC: Final = (b"\x7fELF", b"\x50\xed\x55\xba")
_LOG_BYTES: Final = 1 << 16  # bytes of each of the two logs of the driver's compiler
_INVALID_PTX: Final = 218
_UNSUPPORTED_PTX_VERSION: Final = 222
_NOT_FOUND: Final = 500


@dataclass(frozen=True, eq=False)
class LoadedKernel:
    """A kernel on a device, ready to be launched.

    `registers` and `local_bytes` (bytes for spills and stack) are per thread; `static_shared` is
    bytes per block. A launch may have at most `max_threads` threads and `max_dynamic_shared` bytes
    of dynamic shared memory per block. `log` is that of the driver's compiler; empty for a cubin.
    """

    entry: str
    device: DeviceProperties
    registers: int
    local_bytes: int
    static_shared: int
    max_threads: int
    max_dynamic_shared: int
    log: str
    module: Any = field(repr=False)
    function: Any = field(repr=False)
    doing: str = field(repr=False)  # for the message of a failed launch
    _arguments: list[ArgumentBlock] = field(default_factory=list, repr=False)

    @property
    def ordinal(self) -> int:
        """The ordinal of the device."""
        return self.device.ordinal

    def arguments(self, slots: tuple[ParamSlot, ...]) -> ArgumentBlock:
        """The argument block with the layout `slots`; cached for the next launch with that layout."""
        for block in self._arguments:
            if block.slots is slots or block.slots == slots:
                return block
        block = ArgumentBlock(slots)
        self._arguments[:] = [block]
        return block


def check_shared(entry: str, dynamic: int, static: int, device: DeviceProperties) -> None:
    """Raise `LaunchError` if a block needs more shared memory, in bytes, than `device` has."""
    limit = device.shared_per_block_optin
    needed = dynamic + static
    if needed > limit:
        parts = f"{dynamic} dynamic and {static} static" if static else "all dynamic"
        raise LaunchError(
            f"{entry} needs {needed} bytes of shared memory per block ({parts}), {device} has "
            f"{limit}: {needed - limit} too many; use a smaller tile, block_q or head_dim"
        )


class Modules:
    """Loads kernels through one `Driver`, and caches them by program, entry and device."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._kernels: dict[tuple[bytes, str, int], LoadedKernel] = {}

    def load(self, program: bytes, entry: str, dynamic_shared: int, ordinal: int) -> LoadedKernel:
        """See `CudaBackend.load`."""
        device = self._driver.properties(ordinal)
        check_shared(entry, dynamic_shared, 0, device)
        if not program:
            raise LaunchError(f"cannot load {entry}: the program is empty; pass a cubin or PTX")
        key = (hashlib.sha256(program).digest(), entry, ordinal)
        doing = f"load {entry} on device {ordinal}"
        # One load at a time: two threads that want the same kernel must not both compile it.
        with self._lock:
            kernel = self._kernels.get(key)
            if kernel is None:
                with self._driver.on(ordinal, doing):
                    kernel = self._load(program, entry, dynamic_shared, device)
                    self._kernels[key] = kernel
            elif dynamic_shared > kernel.max_dynamic_shared:
                check_shared(entry, dynamic_shared, kernel.static_shared, device)
                with self._driver.on(ordinal, doing):
                    most = self._opt_in(kernel.function, kernel.static_shared, device, doing)
                    kernel = dataclasses.replace(kernel, max_dynamic_shared=most)
                    self._kernels[key] = kernel
            return kernel

    def _load(
        self, program: bytes, entry: str, dynamic_shared: int, device: DeviceProperties
    ) -> LoadedKernel:
        doing = f"load {entry} on device {device.ordinal}"
        text = "" if program.startswith(_BINARY_MAGIC) else program.decode(errors="replace")
        if text:
            module, log = self._compile(program, text, entry, device, doing)
        else:
            module = self._driver.call("cuModuleLoadDataEx", program, 0, [], [], doing=doing)
            log = ""
        try:
            function = self._function(module, entry, text, doing)
            needs = {
                what: self._attribute(function, what, doing)
                for what in ("NUM_REGS", "LOCAL_SIZE_BYTES", "SHARED_SIZE_BYTES", "MAX_THREADS_PER_BLOCK")
            }
            static = needs["SHARED_SIZE_BYTES"]
            check_shared(entry, dynamic_shared, static, device)
            most = device.shared_per_block - static
            if dynamic_shared > most:
                most = self._opt_in(function, static, device, doing)
        except BaseException:
            self._driver.quietly("cuModuleUnload", module)
            raise
        return LoadedKernel(
            entry=entry,
            device=device,
            registers=needs["NUM_REGS"],
            local_bytes=needs["LOCAL_SIZE_BYTES"],
            static_shared=static,
            max_threads=needs["MAX_THREADS_PER_BLOCK"],
            max_dynamic_shared=most,
            log=log,
            module=module,
            function=function,
            doing=f"launch {entry} on device {device.ordinal}",
        )

    def _compile(
        self, program: bytes, text: str, entry: str, device: DeviceProperties, doing: str
    ) -> tuple[Any, str]:
        """Compile PTX `text` by the driver; returns the module and the compiler's log."""
        option = self._driver.require().CUjit_option
        errors, remarks = bytearray(_LOG_BYTES), bytearray(_LOG_BYTES)
        options = {
            option.CU_JIT_ERROR_LOG_BUFFER: errors,
            option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: len(errors),
            option.CU_JIT_INFO_LOG_BUFFER: remarks,
            option.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: len(remarks),
        }
        image = program if program.endswith(b"\0") else program + b"\0"
        status, module = self._driver.attempt(
            "cuModuleLoadDataEx", image, len(options), list(options), list(options.values()), doing=doing
        )
        if not status:
            return module, _log(remarks)
        code = int(status)
        log = "\n".join(filter(None, (_log(errors), _log(remarks))))
        if code == _UNSUPPORTED_PTX_VERSION:
            raise BackendError(too_new(text, entry, self._driver.version))
        if code not in POISONING and (log or code == _INVALID_PTX):
            outcome = what_happened("cuModuleLoadDataEx", status.name, code)
            raise BackendError(jit_refusal(text, log, f"{device}", self._driver.version, outcome))
        raise self._driver.error("cuModuleLoadDataEx", status, doing)

    def _function(self, module: Any, entry: str, text: str, doing: str) -> Any:
        name = "cuModuleGetFunction"
        status, function = self._driver.attempt(name, module, entry.encode(), doing=doing)
        if not status:
            return function
        if int(status) == _NOT_FOUND:
            raise BackendError(no_entry(entry, text))
        raise self._driver.error(name, status, doing)

    def _attribute(self, function: Any, what: str, doing: str) -> int:
        attributes = self._driver.require().CUfunction_attribute
        key = getattr(attributes, f"CU_FUNC_ATTRIBUTE_{what}")
        return int(self._driver.call("cuFuncGetAttribute", key, function, doing=doing))

    def _opt_in(self, function: Any, static: int, device: DeviceProperties, doing: str) -> int:
        """Raise the limit of `function` to all shared memory; returns the dynamic part in bytes.

        The limit costs nothing, since a launch takes only what it asks for, so it is set once.
        """
        most = device.shared_per_block_optin - static
        attributes = self._driver.require().CUfunction_attribute
        key = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._driver.call("cuFuncSetAttribute", function, key, most, doing=doing)
        return most

    def close(self) -> None:
        """Unload all kernels."""
        with self._lock:
            if self._driver.poison:
                self._kernels.clear()  # the driver unloaded them with their context
            for key, kernel in list(self._kernels.items()):
                doing = f"unload {kernel.entry}"
                with self._driver.on(kernel.ordinal, doing):
                    self._driver.call("cuModuleUnload", kernel.module, doing=doing)
                    del self._kernels[key]


def _log(buffer: bytearray) -> str:
    return buffer.split(b"\0", 1)[0].decode(errors="replace").strip()
