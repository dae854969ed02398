"""The CUDA driver: opened when first needed, every call checked, devices and their contexts.

A device is used through its primary context, the one that PyTorch, CuPy and the CUDA runtime use,
so their arrays and streams work here. The caller's current context is never left changed.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from dataclasses import dataclass
from typing import Any, Final

from ptxgen.errors import BackendError, LaunchError, PoisonedContextError
from ptxgen.runtime.cuda_errors import (
    POISONING,
    failure,
    poisoned_before,
    poisoned_now,
    what_happened,
)

_NAME_BYTES: Final = 256  # of a device's name, its final NUL included
_OPENING: Final = "open the GPU"


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """One GPU and its limits; shared memory and the L2 cache are in bytes.

    `shared_per_block` is what every launch may use, `shared_per_block_optin` what one that asks
    may. `driver_version` is the newest CUDA the driver supports, `(13, 0)`. `max_grid` counts
    blocks.
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
    max_threads_per_block: int
    max_grid: tuple[int, int, int]
    driver_version: tuple[int, int]

    def __str__(self) -> str:
        return f"device {self.ordinal} ({self.name}, sm_{self.major}{self.minor})"


class Driver:
    """The driver behind `cuda.bindings.driver`, or behind `module`, which looks the same.

    Whatever fails raises `BackendError`. Once a call tells that the context is destroyed, that one
    and everything after it raises `PoisonedContextError`, and the driver is never called again.
    """

    def __init__(self, module: Any = None) -> None:
        self.poison = ""  # which call told that the context is destroyed
        self._module = module
        self._lock = threading.RLock()
        self._why: str | None = None  # None until asked
        self._count = 0
        self._version = 0
        self._properties: dict[int, DeviceProperties] = {}
        self._contexts: dict[int, Any] = {}

    # ---------------------------------------------------------------------------------- opening

    def why_unavailable(self) -> str:
        """Why there is no GPU to use, or the empty string. The driver is asked once."""
        if self._why is None:
            with self._lock:
                if self._why is None:
                    self._why = self._open()
        return self._why

    def _open(self) -> str:
        try:
            if self._module is None:
                # Here and not above: it takes 0.2 s, and a machine without a GPU need not have it.
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
        """The opened driver module; raises `BackendError` if there is no GPU to use."""
        why = self.why_unavailable()
        if why:
            raise BackendError(
                f"backend 'cuda' cannot be used: {why}. Without a GPU, use backend='cpu'"
            )
        return self._module

    @property
    def version(self) -> int:
        """What the driver calls itself: 13000 for CUDA 13.0."""
        self.require()
        return self._version

    @property
    def count(self) -> int:
        """How many devices there are."""
        self.require()
        return self._count

    # ---------------------------------------------------------------------------------- calling

    def call(self, name: str, *arguments: Any, doing: str) -> Any:
        """Call the function `name`; its result, or None if it has none.

        `doing` completes "cannot …" in the message of the error that a failure raises.
        """
        answer = self._answer(name, arguments, doing)
        if answer[0]:
            raise self.error(name, answer[0], doing)
        return answer[1] if len(answer) > 1 else None

    def attempt(self, name: str, *arguments: Any, doing: str) -> tuple[Any, Any]:
        """Call the function `name`, which has a result; its CUresult and that, unchecked."""
        status, result = self._answer(name, arguments, doing)
        return status, result

    def _answer(self, name: str, arguments: tuple[Any, ...], doing: str) -> tuple[Any, ...]:
        if self.poison:
            raise PoisonedContextError(poisoned_before(self.poison, doing))
        try:
            answer: tuple[Any, ...] = getattr(self._module, name)(*arguments)
        except (RuntimeError, ValueError) as error:  # a function or an error code it does not know
            raise BackendError(
                f"cannot {doing}: {name} failed: {_first_line(error).rstrip('.')}; "
                "install or update the NVIDIA driver"
            ) from error
        return answer

    def error(self, name: str, status: Any, doing: str) -> BackendError:
        """The error that `status`, a CUresult that is not success, means."""
        call = (name, status.name, int(status))
        if int(status) in POISONING:
            self.poison = what_happened(*call)
            return PoisonedContextError(poisoned_now(*call, self._text(status), doing))
        return BackendError(failure(*call, self._text(status), doing))

    def quietly(self, name: str, *arguments: Any) -> None:
        """Call `name` to undo something while another error is on its way to the user."""
        # That error is the one to see; a destroyed context has nothing left to undo.
        with contextlib.suppress(BackendError):
            self.call(name, *arguments, doing="clean up")

    def _text(self, status: Any) -> str:
        """The driver's own words for `status`; empty if it has none."""
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
        """What device `ordinal` is; asked once."""
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
            max_threads_per_block=attribute("MAX_THREADS_PER_BLOCK"),
            max_grid=(
                attribute("MAX_GRID_DIM_X"),
                attribute("MAX_GRID_DIM_Y"),
                attribute("MAX_GRID_DIM_Z"),
            ),
            driver_version=(self._version // 1000, self._version % 1000 // 10),
        )

    def current_device(self) -> int:
        """The device of the calling thread's current context; 0 if there is none, as CUDA does."""
        self.require()
        doing = "find the current device"
        if not int(self.call("cuCtxGetCurrent", doing=doing)):
            return 0
        device = int(self.call("cuCtxGetDevice", doing=doing))
        devices = [
            int(self.call("cuDeviceGet", ordinal, doing=doing)) for ordinal in range(self._count)
        ]
        return devices.index(device)

    # ---------------------------------------------------------------------------------- contexts

    def context(self, ordinal: int) -> Any:
        """The primary context of device `ordinal`, kept until `close`."""
        self.check_ordinal(ordinal)
        with self._lock:
            if ordinal not in self._contexts:
                doing = f"open device {ordinal}"
                device = self.call("cuDeviceGet", ordinal, doing=doing)
                self._contexts[ordinal] = self.call("cuDevicePrimaryCtxRetain", device, doing=doing)
            return self._contexts[ordinal]

    def on(self, ordinal: int, doing: str) -> _Current:
        """Make device `ordinal` current inside, and whatever was current again outside."""
        context = self._contexts.get(ordinal)
        return _Current(self, context or self.context(ordinal), doing)

    def close(self) -> None:
        """Give the contexts back."""
        with self._lock:
            for ordinal in list(self._contexts):
                if not self.poison:
                    doing = f"close device {ordinal}"
                    device = self.call("cuDeviceGet", ordinal, doing=doing)
                    self.call("cuDevicePrimaryCtxRelease", device, doing=doing)
                del self._contexts[ordinal]


class _Current:
    """`with` one of these, a context is current; a class, for a generator takes twice as long."""

    __slots__ = ("_context", "_doing", "_driver", "_pushed")

    def __init__(self, driver: Driver, context: Any, doing: str) -> None:
        self._driver = driver
        self._context = context
        self._doing = doing

    def __enter__(self) -> None:
        call, doing = self._driver.call, self._doing
        self._pushed = int(call("cuCtxGetCurrent", doing=doing)) != int(self._context)
        if self._pushed:
            call("cuCtxPushCurrent", self._context, doing=doing)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._pushed:
            return
        if kind is None:
            self._driver.call("cuCtxPopCurrent", doing=self._doing)
        else:
            self._driver.quietly("cuCtxPopCurrent")


def _first_line(error: BaseException) -> str:
    return f"{error}".strip().split("\n", 1)[0]
