from __future__ import annotations

import dataclasses
import functools
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_driver import A100, FakeDevice, FakeDriver, Launch, cubin, real

from ptxgen.errors import BackendError, ConfigError, LaunchError, PoisonedContextError
from ptxgen.parse import parse
from ptxgen.runtime import cuda as module
from ptxgen.runtime.backend import check_backend
from ptxgen.runtime.cuda import CudaBackend, check_shared, cuda_backend
from ptxgen.runtime.plan import LaunchPlan, param_slots
from ptxgen.runtime.settings import BACKENDS
from ptxgen.target import TARGETS

SAXPY = """\
.version 8.0
.target sm_80
.address_size 64

.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
  .reg .pred %p<1>;
  .reg .b32 %r<4>;
  .reg .f32 %f<3>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [x];
  ld.param.u64 %rd1, [y];
  ld.param.f32 %f0, [a];
  ld.param.u32 %r0, [n];
  mov.u32 %r1, %tid.x;
  setp.ge.u32 %p0, %r1, %r0;
  @%p0 bra done;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd0, %rd0, %rd2;
  add.u64 %rd1, %rd1, %rd2;
  ld.global.f32 %f1, [%rd0];
  ld.global.f32 %f2, [%rd1];
  fma.rn.f32 %f2, %f0, %f1, %f2;
  st.global.f32 [%rd1], %f2;
done:
  ret;
}
"""
STATIC = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry tiled()
{
  .shared .align 16 .b8 tile[4096];
  ret;
}
"""
SLOTS = param_slots(parse(SAXPY).kernels[0].params)
CUBIN = cubin(SAXPY)
THREADS = 128
OPENING = ("cuInit", "cuDriverGetVersion", "cuDeviceGetCount")


def plan_of(x: int = 16, y: int = 32, a: float = 2.0, n: int = 1, shared: int = 0) -> LaunchPlan:
    return LaunchPlan("saxpy", (1, 1, 1), (THREADS, 1, 1), shared, SLOTS, (x, y, a, n))


def opened(*devices: FakeDevice, version: int = 13000) -> tuple[CudaBackend, FakeDriver]:
    """A backend on a fake driver that has been asked what it has, and forgot it was asked."""
    driver = FakeDriver(*devices, version=version)
    backend = CudaBackend(driver)
    for ordinal in range(backend.device_count):
        backend.device_properties(ordinal)
    driver.calls.clear()
    return backend, driver


def message_of(action: Callable[[], object], kind: type[Exception] = BackendError) -> str:
    with pytest.raises(kind) as error:
        action()
    assert type(error.value) is kind
    return str(error.value)


def run_saxpy(driver: FakeDriver) -> Callable[[Launch], None]:
    """The GPU of these tests: numpy."""

    def run(launch: Launch) -> None:
        n, scale = int(launch.values["n"]), np.float32(launch.values["a"])
        x, y = (driver.view(int(launch.values[p]), 4 * n).view(np.float32) for p in "xy")
        y += scale * x

    return run


class Journey:
    """Everything a launch on numpy arrays needs; `held` is what is still to be freed."""

    def __init__(self, backend: CudaBackend, driver: FakeDriver, program: bytes) -> None:
        self.backend, self.driver, self.program = backend, driver, program
        self.held: list[int] = []
        driver.on_launch = run_saxpy(driver)

    def run(self) -> None:
        backend = self.backend
        x, y = np.arange(5, dtype=np.float32), np.ones(5, dtype=np.float32)
        out = np.zeros_like(y)
        kernel = backend.load(self.program, "saxpy", 100_000, 0)
        for array in (x, y):
            address = backend.allocate(array.nbytes, ordinal=0)
            self.held.append(address)
            backend.copy_to_device(address, array.ctypes.data, array.nbytes, ordinal=0)
        plan = plan_of(self.held[-2], self.held[-1], n=5, shared=100_000)
        elapsed = backend.elapsed_ms(lambda: backend.launch(kernel, plan), ordinal=0)
        backend.copy_to_host(out.ctypes.data, self.held[-1], out.nbytes, ordinal=0)
        backend.synchronize(ordinal=0)
        assert elapsed == 1.5
        np.testing.assert_array_equal(out, 2 * x + y)
        self.clean_up()

    def clean_up(self) -> None:
        while self.held:
            if self.held[-1] in self.driver.memory:  # a fault after the free has freed
                self.backend.free(self.held[-1], ordinal=0)
            self.held.pop()
        self.backend.close()


def assert_nothing_is_left(driver: FakeDriver) -> None:
    assert driver.stack == []
    assert (driver.modules, driver.memory, driver.events) == ({}, {}, {})
    assert not any(driver.retained)


def calls_of_the_journey(program: bytes) -> list[str]:
    driver = FakeDriver()
    Journey(CudaBackend(driver), driver, program).run()
    assert_nothing_is_left(driver)
    return driver.names()


CALLS = {program: calls_of_the_journey(program) for program in (CUBIN, SAXPY.encode())}
EACH_CALL = [
    pytest.param(program, at, id=f"{kind}-{at}-{CALLS[program][at - 1]}")
    for kind, program in (("cubin", CUBIN), ("ptx", SAXPY.encode()))
    for at in range(1, len(CALLS[program]) + 1)
]


# --------------------------------------------------------------------------------- the fake itself


def test_the_fake_has_the_signatures_of_the_real_driver() -> None:
    functions = [name for name in vars(FakeDriver) if name.startswith("cu") and "uint" not in name]
    assert len(functions) >= 25
    for name in functions:
        parameters = list(inspect.signature(getattr(FakeDriver, name)).parameters)[1:]
        assert parameters == list(inspect.signature(getattr(real, name)).parameters), name


# ---------------------------------------------------------------------------- a fault at each call


@pytest.mark.parametrize(("program", "at"), EACH_CALL)
def test_a_fault_at_any_call_is_reported_and_a_retry_works(program: bytes, at: int) -> None:
    driver = FakeDriver()
    backend = CudaBackend(driver)
    journey = Journey(backend, driver, program)
    name = CALLS[program][at - 1]
    driver.fail(at, "CUDA_ERROR_UNKNOWN")
    message = message_of(journey.run)
    assert f"{name} returned CUDA_ERROR_UNKNOWN (999), unknown" in message
    assert message.startswith(("cannot ", "backend 'cuda' cannot be used: cannot open the GPU: "))
    assert driver.stack == []
    if name in OPENING:
        assert not backend.available()
        assert driver.names()[-2:] == [name, "cuGetErrorString"]
        return
    journey.clean_up()
    if name == "cuEventDestroy":
        # To destroy it again could be to destroy it twice, so this one event is given up.
        driver.events.clear()
    assert_nothing_is_left(driver)
    journey.run()
    assert_nothing_is_left(driver)


@pytest.mark.parametrize(("program", "at"), EACH_CALL)
def test_a_poisoned_context_is_reported_once_and_for_all(program: bytes, at: int) -> None:
    driver = FakeDriver()
    backend = CudaBackend(driver)
    journey = Journey(backend, driver, program)
    name = CALLS[program][at - 1]
    driver.fail(at, "CUDA_ERROR_ILLEGAL_ADDRESS")
    if name in OPENING:
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in message_of(journey.run)
        return
    message = message_of(journey.run, PoisonedContextError)
    assert f"{name} returned CUDA_ERROR_ILLEGAL_ADDRESS (700), illegal address. " in message
    asked = len(driver.calls)
    assert driver.calls[-1].name == "cuGetErrorString"
    later = message_of(lambda: backend.synchronize(ordinal=0), PoisonedContextError)
    assert "the CUDA context of this process was destroyed before" in later
    message_of(lambda: backend.run(program, plan_of()), PoisonedContextError)
    journey.clean_up()
    assert len(driver.calls) == asked, "the driver is left alone"


def test_the_messages_of_a_poisoned_context() -> None:
    backend, driver = opened()
    kernel = backend.load(CUBIN, "saxpy", 0, 0)
    backend.launch(kernel, plan_of())
    driver.poison("CUDA_ERROR_MISALIGNED_ADDRESS")
    assert message_of(lambda: backend.synchronize(ordinal=0), PoisonedContextError) == (
        "cannot wait for a stream of device 0: cuCtxGetCurrent returned "
        "CUDA_ERROR_MISALIGNED_ADDRESS (716), misaligned address. A kernel that ran before, not "
        "always the last one, destroyed the CUDA context: no GPU work is possible any more in this "
        "process. Restart it; to find the cause, run the kernel with backend='interpreter', or "
        "under compute-sanitizer"
    )
    assert message_of(lambda: backend.launch(kernel, plan_of()), PoisonedContextError) == (
        "cannot launch saxpy on device 0: the CUDA context of this process was destroyed before "
        "(cuCtxGetCurrent returned CUDA_ERROR_MISALIGNED_ADDRESS (716)); restart the process"
    )


def test_an_error_without_words_of_the_driver_keeps_its_name() -> None:
    backend, driver = opened()
    driver.fail("cuGetErrorString", "CUDA_ERROR_INVALID_VALUE")
    driver.fail("cuDevicePrimaryCtxRetain", "CUDA_ERROR_DEVICE_UNAVAILABLE")
    assert message_of(lambda: backend.load(CUBIN, "saxpy", 0, 0)) == (
        "cannot open device 0: cuDevicePrimaryCtxRetain returned CUDA_ERROR_DEVICE_UNAVAILABLE "
        "(46); another process holds the GPU exclusively: wait for it"
    )


@pytest.mark.parametrize(
    ("call", "status", "message"),
    [
        (
            "cuMemAlloc",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "cannot allocate 20 bytes on device 0: cuMemAlloc returned CUDA_ERROR_OUT_OF_MEMORY "
            "(2), out of memory; free GPU memory, or use smaller arrays",
        ),
        (
            "cuLaunchKernel",
            "CUDA_ERROR_INVALID_HANDLE",
            "cannot launch saxpy on device 0: cuLaunchKernel returned CUDA_ERROR_INVALID_HANDLE "
            "(400), invalid handle; the stream must be alive and belong to the device of the "
            "arrays",
        ),
        (
            "cuModuleLoadDataEx",
            "CUDA_ERROR_NO_BINARY_FOR_GPU",
            "cannot load saxpy on device 0: cuModuleLoadDataEx returned "
            "CUDA_ERROR_NO_BINARY_FOR_GPU (209), no binary for gpu; "
            "compile for the target of this GPU",
        ),
        (
            "cuCtxGetCurrent",
            "CUDA_ERROR_NOT_INITIALIZED",
            "cannot load saxpy on device 0: cuCtxGetCurrent returned CUDA_ERROR_NOT_INITIALIZED "
            "(3), not initialized; a forked child cannot use its parent's CUDA: use "
            "multiprocessing's 'spawn'",
        ),
        (
            "cuModuleLoadDataEx",
            "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            "cannot load saxpy on device 0: cuModuleLoadDataEx returned "
            "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900), stream capture unsupported; "
            "launch the kernel once before the capture begins",
        ),
        (
            "cuMemFree",
            "CUDA_ERROR_INVALID_VALUE",
            "cannot free 0x7f0000100100 on device 0: cuMemFree returned CUDA_ERROR_INVALID_VALUE "
            "(1), invalid value; the address was never allocated, or is free already",
        ),
        (
            "cuStreamSynchronize",
            "CUDA_ERROR_TIMEOUT",
            "cannot wait for a stream of device 0: cuStreamSynchronize returned CUDA_ERROR_TIMEOUT "
            "(909), timeout; see the CUDA Driver API manual for this error",
        ),
    ],
)
def test_a_message_says_what_failed_how_and_what_to_do(call: str, status: str, message: str) -> None:
    driver = FakeDriver()
    driver.fail(call, status)
    assert message_of(Journey(CudaBackend(driver), driver, CUBIN).run) == message


def test_a_function_the_driver_lacks_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, driver = opened()

    def missing(*_: object) -> None:
        raise RuntimeError('Function "cuLaunchKernel" not found')

    kernel = backend.load(CUBIN, "saxpy", 0, 0)
    monkeypatch.setattr(driver, "cuLaunchKernel", missing)
    assert message_of(lambda: backend.launch(kernel, plan_of())) == (
        'cannot launch saxpy on device 0: cuLaunchKernel failed: Function "cuLaunchKernel" not '
        "found; install or update the NVIDIA driver"
    )
    assert driver.stack == []


# ------------------------------------------------------------------------------------ what is here


def test_no_driver_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()

    def missing(_: int) -> None:
        driver.calls.append(None)  # type: ignore[arg-type]
        raise RuntimeError("libcuda cannot be found.\nSearched everywhere.")

    monkeypatch.setattr(driver, "cuInit", missing)
    backend = CudaBackend(driver)
    assert not backend.available()
    assert backend.why_unavailable() == (
        "cannot open the GPU: cuInit failed: libcuda cannot be found; install or update the NVIDIA driver"
    )
    assert message_of(lambda: backend.device_count) == (
        "backend 'cuda' cannot be used: cannot open the GPU: cuInit failed: libcuda cannot be "
        "found; install or update the NVIDIA driver. Without a GPU, backend='interpreter' runs any "
        "kernel, and 'cpu' computes attention"
    )
    assert len(driver.calls) == 1


def test_a_driver_without_devices_is_unavailable() -> None:
    driver = FakeDriver()
    driver.devices = ()
    assert CudaBackend(driver).why_unavailable() == ("cannot open the GPU: the driver lists no device")


def test_without_a_gpu_the_reason_says_what_to_look_at() -> None:
    driver = FakeDriver()
    driver.fail("cuInit", "CUDA_ERROR_NO_DEVICE")
    assert CudaBackend(driver).why_unavailable() == (
        "cannot open the GPU: cuInit returned CUDA_ERROR_NO_DEVICE (100), no device; "
        "check nvidia-smi and CUDA_VISIBLE_DEVICES"
    )


def test_cuda_python_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    backend = CudaBackend()
    assert not backend.available()
    assert backend.why_unavailable() == (
        "cuda-python cannot be imported: import of cuda.bindings.driver halted; None in "
        "sys.modules; pip install cuda-python"
    )


def test_importing_the_backend_imports_no_cuda() -> None:
    code = (
        "import sys, ptxgen.runtime.cuda as c; c.cuda_backend(); "
        "sys.exit(any(m.split('.')[0] in ('cuda', 'torch') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def slow_down(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, name: str) -> None:
    """Let other threads run before the driver function `name` does anything."""
    function = getattr(driver, name)

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.005)
        return function(*arguments)

    monkeypatch.setattr(driver, name, slowly)


@pytest.mark.parametrize("name", ["cuInit", "cuDevicePrimaryCtxRetain"])
def test_threads_that_open_the_driver_or_a_device_at_once_open_it_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver()
    backend = CudaBackend(driver)
    slow_down(monkeypatch, driver, name)
    together(lambda: backend.synchronize(ordinal=0))
    assert [call for call in driver.names() if call in OPENING] == list(OPENING)
    assert driver.retained == [1]


def test_there_is_one_backend_on_the_real_driver() -> None:
    assert cuda_backend() is cuda_backend()


def test_device_properties_are_those_of_the_device() -> None:
    backend, driver = opened(FakeDevice(), A100, version=12040)
    properties = backend.device_properties(1)
    assert dataclasses.asdict(properties) == {
        "ordinal": 1,
        "name": "Fake A100",
        "major": 8,
        "minor": 0,
        "multiprocessors": 108,
        "shared_per_block": 49152,
        "shared_per_block_optin": 166912,
        "shared_per_multiprocessor": 233472,
        "l2_cache": 52428800,
        "driver_version": (12, 4),
    }
    assert str(properties) == "device 1 (Fake A100, sm_80)"
    assert driver.calls == [], "properties are asked once"


def test_a_device_that_does_not_exist_is_refused() -> None:
    backend, driver = opened(FakeDevice(), A100)
    for action in (
        lambda: backend.device_properties(2),
        lambda: backend.load(CUBIN, "saxpy", 0, 2),
        lambda: backend.allocate(8, ordinal=2),
    ):
        assert message_of(action, LaunchError) == (
            "device 2 does not exist: this process sees 2 (0 to 1; CUDA_VISIBLE_DEVICES may hide some)"
        )
    assert driver.calls == []


def test_the_current_device_is_that_of_the_current_context() -> None:
    backend, driver = opened(FakeDevice(), A100)
    assert backend.current_device() == 0
    driver.retained[1] += 1
    driver.stack.append(driver.context_of(1))
    assert backend.current_device() == 1


def test_the_device_of_a_pointer() -> None:
    backend, driver = opened(FakeDevice(), A100)
    address = driver.place(np.zeros(4), ordinal=1)
    assert backend.device_of_pointer(address + 8) == 1
    assert backend.device_of_pointer(address + 32) is None
    driver.fail("cuPointerGetAttribute", "CUDA_ERROR_NOT_INITIALIZED")
    assert message_of(lambda: backend.device_of_pointer(4096)) == (
        "cannot find the device of address 0x1000: cuPointerGetAttribute returned "
        "CUDA_ERROR_NOT_INITIALIZED (3), not initialized; a forked child cannot use its parent's "
        "CUDA: use multiprocessing's 'spawn'"
    )


# ----------------------------------------------------------------------------------------- loading


def test_a_kernel_is_loaded_once_for_each_device() -> None:
    backend, driver = opened(FakeDevice(), A100)
    first, again, other = (backend.load(CUBIN, "saxpy", 0, device) for device in (0, 0, 1))
    assert first is again
    assert other is not first
    assert (first.ordinal, other.ordinal) == (0, 1)
    assert driver.names().count("cuModuleLoadDataEx") == 2
    assert driver.retained == [1, 1]
    assert driver.stack == []


def test_what_a_loaded_kernel_needs_is_read_back() -> None:
    backend, driver = opened()
    driver.function_limits = {"registers": 168, "local_bytes": 12, "max_threads": 384}
    kernel = backend.load(cubin(STATIC), "tiled", 0, 0)
    assert (kernel.registers, kernel.local_bytes, kernel.max_threads) == (168, 12, 384)
    assert (kernel.static_shared, kernel.max_dynamic_shared) == (4096, 48 * 1024 - 4096)
    assert kernel.log == ""


def together(action: Callable[[], object], count: int = 8) -> None:
    """Run `action` in many threads at once; a failure of any fails the test."""
    barrier = threading.Barrier(count)
    failures: list[BaseException] = []

    def run() -> None:
        barrier.wait()
        try:
            action()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive(), "deadlock"
    assert failures == []


def test_threads_that_load_at_once_load_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, driver = opened()
    slow_down(monkeypatch, driver, "cuModuleLoadDataEx")
    kernels = []
    together(lambda: kernels.append(backend.load(CUBIN, "saxpy", 60_000, 0)))
    assert len({id(kernel) for kernel in kernels}) == 1
    assert driver.names().count("cuModuleLoadDataEx") == 1
    assert driver.names().count("cuFuncSetAttribute") == 1
    assert driver.retained == [1]


def test_shared_memory_is_opted_in_to_once_and_only_if_needed() -> None:
    backend, driver = opened()
    kernel = backend.load(CUBIN, "saxpy", 48 * 1024, 0)
    assert "cuFuncSetAttribute" not in driver.names()
    assert kernel.max_dynamic_shared == 48 * 1024
    for wanted in (48 * 1024 + 1, 100_000, 227 * 1024, 0):
        kernel = backend.load(CUBIN, "saxpy", wanted, 0)
        assert kernel.max_dynamic_shared == 227 * 1024
        backend.launch(kernel, plan_of(shared=wanted))
    assert driver.names().count("cuFuncSetAttribute") == 1
    assert driver.names().count("cuModuleLoadDataEx") == 1
    assert [launch.dynamic_shared for launch in driver.launches] == [49153, 100_000, 232_448, 0]


def too_much(needs: str, parts: str, beyond: int) -> str:
    """The message for a kernel that needs more shared memory than an A100 has."""
    has = f"({parts}), device 0 (Fake A100, sm_80) has 166912: {beyond} too many"
    return f"{needs} bytes of shared memory per block {has}; use a smaller tile, block_q or head_dim"


def test_too_much_shared_memory_is_refused_before_any_device_call_or_unloaded() -> None:
    backend, driver = opened(A100)
    message = too_much("saxpy needs 180224", "all dynamic", 13312)
    assert message_of(lambda: backend.load(CUBIN, "saxpy", 180_224, 0), LaunchError) == message
    assert driver.calls == []
    program = cubin(STATIC)
    message = too_much("tiled needs 169096", "165000 dynamic and 4096 static", 2184)
    for is_loaded in (False, True):
        assert message_of(lambda: backend.load(program, "tiled", 165_000, 0), LaunchError) == message
        assert bool(driver.modules) == is_loaded
        assert "cuFuncSetAttribute" not in driver.names()
        assert driver.stack == []
        backend.load(program, "tiled", 0, 0)


def test_the_largest_shared_memory_fits() -> None:
    backend, _ = opened(A100)
    device = backend.device_properties(0)
    check_shared("k", 166_912 - 4096, 4096, device)
    assert backend.load(cubin(STATIC), "tiled", 166_912 - 4096, 0).max_dynamic_shared == 162_816


def test_an_empty_program_is_refused() -> None:
    backend, driver = opened()
    assert message_of(lambda: backend.load(b"", "saxpy", 0, 0), LaunchError) == (
        "cannot load saxpy: the program is empty; pass a cubin or PTX"
    )
    assert driver.calls == []


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            SAXPY.encode(),
            "the program has no kernel 'saxpi', only saxpy; did you mean 'saxpy'?; "
            "pass the name of its .entry",
        ),
        (CUBIN, "the program has no kernel 'saxpi'; pass the name of its .entry"),
    ],
)
def test_a_kernel_that_is_not_there_is_refused_and_unloaded(program: bytes, message: str) -> None:
    backend, driver = opened()
    assert message_of(lambda: backend.load(program, "saxpi", 0, 0)) == message
    assert driver.modules == {}
    assert driver.stack == []


def test_the_log_and_the_line_of_text_the_driver_refuses_are_shown() -> None:
    backend, driver = opened()
    driver.jit_error_log = (
        "ptxas application ptx input, line 12; error   : Unknown symbol 'z'\n"
        "ptxas fatal   : Ptx assembly aborted due to errors"
    )
    driver.fail("cuModuleLoadDataEx", "CUDA_ERROR_INVALID_PTX")
    text = SAXPY.replace("[y]", "[z]")
    assert message_of(lambda: backend.load(text.encode(), "saxpy", 0, 0)) == (
        "the compiler of the driver (CUDA 13.0) refused the PTX for device 0 (Fake H100, sm_90): "
        "1 error\n\n"
        "line 12: Unknown symbol 'z'\n"
        "      10 |   .reg .b64 %rd<4>;\n"
        "      11 |   ld.param.u64 %rd0, [x];\n"
        ">     12 |   ld.param.u64 %rd1, [z];\n"
        "         |                       ^\n"
        "      13 |   ld.param.f32 %f0, [a];\n"
        "      14 |   ld.param.u32 %r0, [n];\n\n"
        "its log:\n"
        "ptxas application ptx input, line 12; error   : Unknown symbol 'z'\n"
        "ptxas fatal   : Ptx assembly aborted due to errors"
    )
    assert driver.stack == []


def test_text_refused_without_a_log_says_so() -> None:
    backend, driver = opened()
    driver.fail("cuModuleLoadDataEx", "CUDA_ERROR_INVALID_PTX")
    assert message_of(lambda: backend.load(SAXPY.encode(), "saxpy", 0, 0)) == (
        "the compiler of the driver (CUDA 13.0) refused the PTX for device 0 (Fake H100, sm_90) "
        "without a reason (cuModuleLoadDataEx returned CUDA_ERROR_INVALID_PTX (218))\n\n"
        "its log is empty"
    )


def test_a_poisoned_context_is_not_blamed_on_the_text() -> None:
    backend, driver = opened()
    driver.jit_error_log = "ptxas fatal   : something"
    driver.fail("cuModuleLoadDataEx", "CUDA_ERROR_LAUNCH_FAILED")
    load = functools.partial(backend.load, SAXPY.encode(), "saxpy", 0, 0)
    assert "(719), launch failed. A kernel that ran before" in message_of(load, PoisonedContextError)


def test_what_the_driver_remarks_about_the_text_is_kept() -> None:
    backend, driver = opened()
    driver.jit_info_log = "ptxas info    : 40 registers"
    assert backend.load(SAXPY.encode(), "saxpy", 0, 0).log == "ptxas info    : 40 registers"


@pytest.mark.parametrize(
    ("ptx", "driver_version", "since"),
    [
        ("9.0", 12080, "(CUDA 13.0 or later reads it), the installed driver is for CUDA 12.8"),
        ("8.7", 12040, "(CUDA 12.8 or later reads it), the installed driver is for CUDA 12.4"),
        ("8.4", 12020, "(CUDA 12.4 or later reads it), the installed driver is for CUDA 12.2"),
        ("7.8", 11040, "(CUDA 11.8 or later reads it), the installed driver is for CUDA 11.4"),
    ],
)
def test_text_newer_than_the_driver_says_both_versions(ptx: str, driver_version: int, since: str) -> None:
    backend, driver = opened(version=driver_version)
    driver.fail("cuModuleLoadDataEx", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
    text = SAXPY.replace(".version 8.0", f".version {ptx}")
    assert message_of(lambda: backend.load(text.encode(), "saxpy", 0, 0)) == (
        f"cannot load saxpy: its text is PTX {ptx} {since}; update the NVIDIA driver, or generate "
        "for an older target, whose text has a lower .version"
    )


def test_text_without_a_version_the_driver_knows_says_so() -> None:
    backend, driver = opened()
    driver.fail("cuModuleLoadDataEx", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION")
    assert message_of(lambda: backend.load(b"nonsense", "saxpy", 0, 0)) == (
        "cannot load saxpy: its text has no .version that the driver, which is for CUDA 13.0, can "
        "read; begin it with .version and .target"
    )


# --------------------------------------------------------------------------------------- launching


def test_a_launch_reaches_the_gpu_as_planned() -> None:
    backend, driver = opened()
    kernel = backend.load(CUBIN, "saxpy", 0, 0)
    stream = driver.make_stream()
    backend.launch(kernel, plan_of(a=-0.5, n=7), stream)
    (launch,) = driver.launches
    assert launch == Launch(
        text=SAXPY,
        entry="saxpy",
        grid=(1, 1, 1),
        block=(THREADS, 1, 1),
        dynamic_shared=0,
        stream=stream,
        ordinal=0,
        values={"x": 16, "y": 32, "a": -0.5, "n": 7},
    )


def test_a_launch_is_repeated_with_other_values_on_other_streams() -> None:
    backend, driver = opened()
    kernel = backend.load(CUBIN, "saxpy", 0, 0)
    launch, streams = backend.repeated(kernel, plan_of(a=-0.5, n=7)), [0, driver.make_stream()]
    for x, stream in zip((48, 64), streams, strict=True):
        launch.put(launch.with_pointers((x, 32)), stream)
    assert [(done.values, done.stream) for done in driver.launches] == [
        ({"x": x, "y": 32, "a": -0.5, "n": 7}, stream) for x, stream in zip((48, 64), streams, strict=True)
    ]


def test_a_repeated_launch_refuses_null_pointers_and_values_that_do_not_fit() -> None:
    backend, driver = opened()
    launch = backend.repeated(backend.load(CUBIN, "saxpy", 0, 0), plan_of())
    assert (
        message_of(lambda: launch.with_pointers((16, 0)), LaunchError)
        == "saxpy: parameter y is a null pointer"
    )
    assert message_of(lambda: launch.put(launch.with_pointers((2**64, 32)), 0), LaunchError) == (
        "saxpy: parameter x is u64, which holds an integer from 0 to 18446744073709551615, "
        "got 18446744073709551616"
    )
    assert driver.launches == []


def test_a_launch_leaves_the_callers_device_current() -> None:
    backend, driver = opened(FakeDevice(), A100)
    kernels = [backend.load(CUBIN, "saxpy", 0, device) for device in (0, 1)]
    streams = [driver.make_stream(device) for device in (0, 1)]
    driver.stack.append(driver.context_of(1))
    for kernel, stream in zip(kernels, streams, strict=True):
        backend.launch(kernel, plan_of(), stream)
    assert [launch.ordinal for launch in driver.launches] == [0, 1]
    assert driver.stack == [driver.context_of(1)]


def test_the_stream_of_another_device_is_refused() -> None:
    backend, driver = opened(FakeDevice(), A100)
    kernel = backend.load(CUBIN, "saxpy", 0, 0)
    stream = driver.make_stream(1)
    assert message_of(lambda: backend.launch(kernel, plan_of(), stream)) == (
        "cannot launch saxpy on device 0: cuLaunchKernel returned CUDA_ERROR_INVALID_HANDLE (400), "
        "invalid handle; the stream must be alive and belong to the device of the arrays"
    )
    assert driver.stack == []


def test_a_repeated_launch_in_the_current_context_makes_two_calls() -> None:
    backend, driver = opened()
    kernel = backend.load(CUBIN, "saxpy", 60_000, 0)
    driver.stack.append(driver.context_of(0))
    backend.launch(kernel, plan_of())
    driver.calls.clear()
    backend.launch(kernel, plan_of().with_pointers((48, 64)))
    assert driver.names() == ["cuCtxGetCurrent", "cuLaunchKernel"]
    assert driver.launches[-1].values == {"x": 48, "y": 64, "a": 2.0, "n": 1}


def test_threads_that_launch_at_once_do_not_mix_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, driver = opened()
    kernel = backend.load(CUBIN, "saxpy", 0, 0)
    slow_down(monkeypatch, driver, "cuLaunchKernel")
    addresses = iter(range(1, 9))
    together(lambda: backend.launch(kernel, plan_of(next(addresses))), count=8)
    assert sorted(launch.values["x"] for launch in driver.launches) == list(range(1, 9))


def test_a_plan_for_something_else_is_refused_before_any_call() -> None:
    backend, driver = opened()
    driver.function_limits = {"registers": 168, "max_threads": 64}
    kernel = backend.load(CUBIN, "saxpy", 0, 0)
    driver.calls.clear()
    other = LaunchPlan("daxpy", (1, 1, 1), (1, 1, 1), 0, SLOTS, (16, 32, 1.0, 1))
    assert message_of(lambda: backend.launch(kernel, other), LaunchError) == (
        "cannot launch daxpy with the loaded kernel saxpy; load the program the plan is for"
    )
    assert message_of(lambda: backend.launch(kernel, plan_of()), LaunchError) == (
        "saxpy: a block has 128 threads, but with its 168 registers per thread this kernel can "
        "have 64 on device 0 (Fake H100, sm_90); use a smaller block, or generate with .maxntid"
    )
    small = dataclasses.replace(plan_of(shared=49_153), block=(64, 1, 1))
    assert message_of(lambda: backend.launch(kernel, small), LaunchError) == (
        "saxpy: a launch with 49153 bytes of dynamic shared memory, but it was loaded on device 0 "
        "(Fake H100, sm_90) for at most 49152; load it with dynamic_shared=49153"
    )
    assert driver.calls == []


def test_run_loads_and_launches_on_the_current_device() -> None:
    backend, driver = opened(FakeDevice(), A100)
    driver.retained[1] += 1
    driver.stack.append(driver.context_of(1))
    backend.run(SAXPY.encode(), plan_of())
    assert [launch.ordinal for launch in driver.launches] == [1]
    assert driver.stack == [driver.context_of(1)]


# ------------------------------------------------------------------------------------------ memory


def test_memory_is_that_of_the_device_and_copies_round_trip() -> None:
    backend, driver = opened(FakeDevice(), A100)
    data, back = np.arange(6.0), np.zeros(6)
    address = backend.allocate(data.nbytes, ordinal=1)
    assert driver.find(address).ordinal == 1
    stream = driver.make_stream(1)
    backend.copy_to_device(address, data.ctypes.data, data.nbytes, stream, ordinal=1)
    np.testing.assert_array_equal(driver.fetch(address, data), data)
    backend.copy_to_host(back.ctypes.data, address + 8, 40, stream, ordinal=1)
    backend.synchronize(stream, ordinal=1)
    np.testing.assert_array_equal(back, [1, 2, 3, 4, 5, 0])
    backend.free(address, ordinal=1)
    backend.close()
    driver.streams.clear()
    assert_nothing_is_left(driver)


def test_memory_is_copied_within_a_device() -> None:
    backend, driver = opened(FakeDevice(), A100)
    data = np.arange(8.0)
    address, stream = driver.place(data, 1), driver.make_stream(1)
    backend.copy_on_device(address + 32, address + 8, 24, stream, ordinal=1)
    np.testing.assert_array_equal(driver.fetch(address, data), [0, 1, 2, 3, 1, 2, 3, 7])
    driver.fail("cuMemcpyDtoDAsync", "CUDA_ERROR_INVALID_VALUE")
    assert message_of(lambda: backend.copy_on_device(address, address, 8, ordinal=1)) == (
        "cannot copy 8 bytes on device 1: cuMemcpyDtoDAsync returned CUDA_ERROR_INVALID_VALUE (1), "
        "invalid value; see the CUDA Driver API manual for this error"
    )


def test_no_memory_at_all_is_refused() -> None:
    backend, driver = opened()
    assert message_of(lambda: backend.allocate(0, ordinal=0), LaunchError) == (
        "allocate: nbytes must be at least 1, got 0"
    )
    assert driver.calls == []


def test_work_that_fails_while_it_is_measured_leaves_no_events() -> None:
    backend, driver = opened()

    def work() -> None:
        raise ZeroDivisionError

    message_of(lambda: backend.elapsed_ms(work, ordinal=0), ZeroDivisionError)
    assert driver.events == {}
    assert driver.stack == []


# ---------------------------------------------------------------------------------------- programs


class FakeAssembler:
    name = "ptxas"

    def __init__(self, version: str) -> None:
        self.version = version

    def assemble(self, ptx: str, target: str) -> Any:
        assert target == "sm_90a"
        return type("Assembly", (), {"cubin": cubin(ptx)})


@pytest.mark.parametrize(
    ("assembler", "driver_version", "version", "program"),
    [
        ("13.0.88", 13000, "ptxas 13.0.88", CUBIN),
        ("12.8.93", 13000, "ptxas 12.8.93", CUBIN),
        ("13.0.88", 12080, "driver 12.8", SAXPY.encode()),  # whose cubins that driver refuses
        (None, 13000, "driver 13.0", SAXPY.encode()),
    ],
)
def test_the_assembler_compiles_unless_the_driver_is_older(
    monkeypatch: pytest.MonkeyPatch, assembler: str | None, driver_version: int, version: str, program: bytes
) -> None:
    def find(*, target: str) -> FakeAssembler:
        assert target == "sm_90a"
        if assembler is None:
            raise BackendError("none")
        return FakeAssembler(assembler)

    monkeypatch.setattr(module, "find_assembler", find)
    backend, _ = opened(version=driver_version)
    target = TARGETS["sm_90a"]
    assert backend.version(target) == version
    assert backend.compile(SAXPY, target) == program


def test_backend_names() -> None:
    assert BACKENDS == ("cuda", "interpreter", "cpu", "compiled")
    known = ["auto", *BACKENDS[:3]]
    assert [check_backend(name) for name in known] == known
    assert CudaBackend.name in BACKENDS
    assert message_of(lambda: check_backend("cudo"), ConfigError) == (
        "backend must be one of auto, cuda, interpreter, cpu, compiled, got 'cudo'; did you mean 'cuda'?"
    )
