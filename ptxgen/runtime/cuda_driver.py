"""`Driver`: opens the CUDA driver at first use, checks every call, and keeps the device contexts.

A device is used through its primary context, the one that PyTorch, CuPy and the CUDA runtime use,
so their arrays and streams work here. The calling thread's current context is always restored.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from ptxgen.errors import BackendError, LaunchError, PoisonedContextError
from ptxgen.runtime.cuda_errors import POISONING, failure, poisoned_before, poisoned_now, what_happened

_NAME_BYTES: Final = 256  # bytes of the buffer for a device's name, final NUL included
_OPENING: Final = "open the GPU"


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """One GPU and its limits; shared memory and the L2 cache are in bytes.

    `shared_per_block` is the shared memory that every launch may use, `shared_per_block_optin` the
    most that a kernel may use after opt-in. `driver_version` is the newest CUDA version that the
    driver supports, such as `(13, 0)`.
    """

    ordinal: int
    name: str
    major: int
    minor: int
    multiprocessors: int
    shared_per_block: int
    shared_per_block_optin: int
    shared_per_multiprocessor: int
    l2_cache: int
    driver_version: tuple[int, int]

    def __str__(self) -> str:
        return f"device {self.ordinal} ({self.name}, sm_{self.major}{self.minor})"


class Driver:
    """The driver as `cuda.bindings.driver` binds it, or `module`, which has the same functions.

    A failed call raises `BackendError`. A call that reports that the context is destroyed, and
    every call after it, raises `PoisonedContextError`, and the driver is never called again.
    """

    def __init__(self, module: Any = None) -> None:
        self.poison = ""  # the call that reported a destroyed context; empty: none
        self._module = module
        self._lock = threading.RLock()
        self._why: str | None = None  # None until asked
        self._count = 0
        self._version = 0
        self._properties: dict[int, DeviceProperties] = {}
        self._contexts: dict[int, Any] = {}

    # ---------------------------------------------------------------------------------- opening

    def why_unavailable(self) -> str:
        """Why there is no usable GPU, or the empty string; only the first call asks the driver."""
        if self._why is None:
            with self._lock:
                if self._why is None:
                    self._why = self._open()
        return self._why

    def _open(self) -> str:
        try:
            if self._module is None:
                # Imported at first use: it takes 0.2 s, and machines without a GPU may lack it.
                self._module = importlib.import_module("cuda.bindings.driver")
            self.call("cuInit", 0, doing=_OPENING)
            self._version = self.call("cuDriverGetVersion", doing=_OPENING)
            self._count = self.call("cuDeviceGetCount", doing=_OPENING)
        except (ImportError, OSError) as error:
            return f"cuda-python cannot be imported: {_first_line(error)}; pip install cuda-python"
        except BackendError as error:
            return str(error)
        return "" if self._count else f"cannot {_OPENING}: the driver lists no device"

    def require(self) -> Any:
        """The opened driver module; raises `BackendError` if there is no usable GPU."""
        why = self.why_unavailable()
        if why:
            raise BackendError(
                f"backend 'cuda' cannot be used: {why}. Without a GPU, backend='interpreter' runs any "
                "kernel, and 'cpu' computes attention"
            )
        return self._module

    @property
    def version(self) -> int:
        """The newest CUDA version that the driver supports, as an integer: 13000 for 13.0."""
        self.require()
        return self._version

    @property
    def count(self) -> int:
        """The number of devices that this process sees."""
        self.require()
        return self._count

    # ---------------------------------------------------------------------------------- calling

    def call(self, name: str, *arguments: Any, doing: str) -> Any:
        """Call the driver function `name`; returns its result, or None if it has none.

        A failure raises `BackendError`, in whose message `doing` follows the word "cannot".
        """
        answer = self.answer(name, arguments, doing)
        if answer[0]:
            raise self.error(name, answer[0], doing)
        return answer[1] if answer[1:] else None  # no call after an allocation: any may be interrupted

    def attempt(self, name: str, *arguments: Any, doing: str) -> tuple[Any, Any]:
        """Call the driver function `name`; returns its unchecked CUresult and its result."""
        answer: Any = self.answer(name, arguments, doing)
        return answer  # type: ignore[no-any-return]

    def answer(self, name: str, arguments: tuple[Any, ...], doing: str) -> tuple[Any, ...]:
        """The unchecked CUresult of the driver function `name`, and its results."""
        if self.poison:
            raise PoisonedContextError(poisoned_before(self.poison, doing))
        try:
            answer: tuple[Any, ...] = getattr(self._module, name)(*arguments)
        except (RuntimeError, ValueError) as error:  # unknown function or error code
            raise BackendError(
                f"cannot {doing}: {name} failed: {_first_line(error).rstrip('.')}; "
                "install or update the NVIDIA driver"
            ) from error
        return answer

    def error(self, name: str, status: Any, doing: str) -> BackendError:
        """The exception for `status`, a CUresult other than success, of the function `name`."""
        call = (name, status.name, int(status))
        if int(status) in POISONING:
            self.poison = what_happened(*call)
            return PoisonedContextError(poisoned_now(*call, self._text(status), doing))
        return BackendError(failure(*call, self._text(status), doing))

    def quietly(self, name: str, *arguments: Any) -> None:
        """Call `name` for cleanup while another exception is being raised; ignores failures."""
        # The user must see the other exception; a destroyed context has nothing to clean up.
        with contextlib.suppress(BackendError):
            self.call(name, *arguments, doing="clean up")

    def _text(self, status: Any) -> str:
        """The driver's description of `status` (`cuGetErrorString`); empty if it has none."""
        failed, text = self._module.cuGetErrorString(status)
        return "" if failed or not text else str(text.decode(errors="replace"))

    # ---------------------------------------------------------------------------------- devices

    def check_ordinal(self, ordinal: int) -> None:
        """Raise `LaunchError` if there is no device `ordinal`."""
        if not 0 <= ordinal < self.count:
            raise LaunchError(
                f"device {ordinal} does not exist: this process sees {self.count} "
                f"(0 to {self.count - 1}; CUDA_VISIBLE_DEVICES may hide some)"
            )

    def properties(self, ordinal: int) -> DeviceProperties:
        """The properties of device `ordinal`; the driver is asked once per device."""
        self.check_ordinal(ordinal)
        with self._lock:
            if ordinal not in self._properties:
                self._properties[ordinal] = self._ask_properties(ordinal)
            return self._properties[ordinal]

    def _ask_properties(self, ordinal: int) -> DeviceProperties:
        doing = f"ask device {ordinal} for its properties"
        device = self.call("cuDeviceGet", ordinal, doing=doing)
        name = self.call("cuDeviceGetName", _NAME_BYTES, device, doing=doing)

        def attribute(what: str) -> int:
            key = getattr(self._module.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{what}")
            return int(self.call("cuDeviceGetAttribute", key, device, doing=doing))

        return DeviceProperties(
            ordinal=ordinal,
            name=name.split(b"\0")[0].decode(errors="replace"),
            major=attribute("COMPUTE_CAPABILITY_MAJOR"),
            minor=attribute("COMPUTE_CAPABILITY_MINOR"),
            multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
            shared_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
            shared_per_block_optin=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            shared_per_multiprocessor=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            l2_cache=attribute("L2_CACHE_SIZE"),
            driver_version=(self._version // 1000, self._version % 1000 // 10),
        )

    def current_device(self) -> int:
        """The device of the calling thread's current context; 0 if it has none, as in CUDA."""
        self.require()
        doing = "find the current device"
        if not int(self.call("cuCtxGetCurrent", doing=doing)):
            return 0
        device = int(self.call("cuCtxGetDevice", doing=doing))
        devices = [int(self.call("cuDeviceGet", ordinal, doing=doing)) for ordinal in range(self._count)]
        return devices.index(device)

    # ---------------------------------------------------------------------------------- contexts

    def context(self, ordinal: int) -> Any:
        """The primary context of device `ordinal`, held until `close`."""
        self.check_ordinal(ordinal)
        with self._lock:
            if ordinal not in self._contexts:
                doing = f"open device {ordinal}"
                device = self.call("cuDeviceGet", ordinal, doing=doing)
                self._contexts[ordinal] = self.call("cuDevicePrimaryCtxRetain", device, doing=doing)
            return self._contexts[ordinal]

    def on(self, ordinal: int, doing: str) -> AbstractContextManager[None]:
        """A context manager, to be entered at once, in which device `ordinal` is current; the old one is
        restored after it.
        """
        context = self._contexts.get(ordinal) or self.context(ordinal)
        status, current = self.answer("cuCtxGetCurrent", (), doing)
        if status:
            raise self.error("cuCtxGetCurrent", status, doing)
        if int(current) == int(context):
            return _CURRENT
        return _Pushed(self, context, doing)

    def close(self) -> None:
        """Release all primary contexts."""
        with self._lock:
            for ordinal in list(self._contexts):
                if not self.poison:
                    doing = f"close device {ordinal}"
                    device = self.call("cuDeviceGet", ordinal, doing=doing)
                    self.call("cuDevicePrimaryCtxRelease", device, doing=doing)
                del self._contexts[ordinal]


class _Pushed(AbstractContextManager[None]):
    """A context manager in which a CUDA context is current; a generator would take twice as long."""

    __slots__ = ("_context", "_doing", "_driver")

    def __init__(self, driver: Driver, context: Any, doing: str) -> None:
        self._driver = driver
        self._context = context
        self._doing = doing

    def __enter__(self) -> None:
        self._driver.call("cuCtxPushCurrent", self._context, doing=self._doing)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._driver.call("cuCtxPopCurrent", doing=self._doing)
        else:
            self._driver.quietly("cuCtxPopCurrent")


_CURRENT: Final = contextlib.nullcontext()  # where a device is current already


def _first_line(error: BaseException) -> str:
    return f"{error}".strip().split("\n", 1)[0]
