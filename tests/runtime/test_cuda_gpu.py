"""The CUDA backend on a real GPU, where what the fake driver claims is checked."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest
from messages import message

from ptxgen.errors import BackendError, LaunchError
from ptxgen.parse import parse
from ptxgen.runtime.cuda import CudaBackend, cuda_backend
from ptxgen.runtime.plan import LaunchPlan, param_slots
from ptxgen.target import target_for_device

pytestmark = pytest.mark.gpu

# y = a x + y through dynamic shared memory.
SAXPY = """\
.version 7.0
.target sm_75
.address_size 64

.extern .shared .align 16 .b8 dynamic[];

.visible .entry saxpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n)
{
  .reg .pred %p<1>;
  .reg .b32 %r<6>;
  .reg .f32 %f<3>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [x];
  ld.param.u64 %rd1, [y];
  ld.param.f32 %f0, [a];
  ld.param.u32 %r0, [n];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mad.lo.u32 %r4, %r2, %r3, %r1;
  setp.ge.u32 %p0, %r4, %r0;
  @%p0 bra done;
  mul.wide.u32 %rd2, %r4, 4;
  add.u64 %rd0, %rd0, %rd2;
  add.u64 %rd1, %rd1, %rd2;
  ld.global.f32 %f1, [%rd0];
  mov.u32 %r5, dynamic;
  mad.lo.u32 %r5, %r1, 4, %r5;
  st.shared.f32 [%r5], %f1;
  ld.shared.f32 %f1, [%r5];
  ld.global.f32 %f2, [%rd1];
  fma.rn.f32 %f2, %f0, %f1, %f2;
  st.global.f32 [%rd1], %f2;
done:
  ret;
}
"""
SLOTS = param_slots(parse(SAXPY).kernels[0].params)
THREADS = 128
COUNT = 1000
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered after the default stream


@pytest.fixture(scope="module")
def backend() -> CudaBackend:
    return cuda_backend()


@pytest.fixture
def arrays(backend: CudaBackend) -> Iterator[tuple[int, int]]:
    addresses = [backend.allocate(4 * COUNT, ordinal=0) for _ in range(2)]
    yield addresses[0], addresses[1]
    for address in addresses:
        backend.free(address, ordinal=0)


def plan_of(x: int, y: int, shared: int = 4 * THREADS) -> LaunchPlan:
    grid = (-(-COUNT // THREADS), 1, 1)
    return LaunchPlan("saxpy", grid, (THREADS, 1, 1), shared, SLOTS, (x, y, 2.5, COUNT))


def check_saxpy(
    backend: CudaBackend,
    program: bytes,
    arrays: tuple[int, int],
    *,
    shared: int = 4 * THREADS,
    stream: int = 0,
    ordinal: int = 0,
) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, COUNT), dtype=np.float32)
    out = np.zeros_like(y)
    kernel = backend.load(program, "saxpy", shared, ordinal)
    for address, array in zip(arrays, (x, y), strict=True):
        backend.copy_to_device(address, array.ctypes.data, array.nbytes, stream, ordinal=ordinal)
    backend.launch(kernel, plan_of(*arrays, shared=shared), stream)
    backend.copy_to_host(out.ctypes.data, arrays[1], out.nbytes, stream, ordinal=ordinal)
    backend.synchronize(stream, ordinal=ordinal)
    # 2.5 x is exact in float64, and so is the sum to within its last bit: one rounding, as fma.
    expected = (2.5 * x.astype(np.float64) + y).astype(np.float32)
    np.testing.assert_allclose(out, expected, rtol=2**-23, atol=0)


def test_text_is_compiled_by_the_driver_and_runs(backend: CudaBackend, arrays: tuple[int, int]) -> None:
    check_saxpy(backend, SAXPY.encode(), arrays)


def test_what_the_backend_compiles_runs(backend: CudaBackend, arrays: tuple[int, int]) -> None:
    device = backend.device_properties(0)
    target = target_for_device(device.major, device.minor)
    check_saxpy(backend, backend.compile(SAXPY, target), arrays)


def test_all_shared_memory_of_the_device_can_be_used(backend: CudaBackend, arrays: tuple[int, int]) -> None:
    limit = backend.device_properties(0).shared_per_block_optin
    check_saxpy(backend, SAXPY.encode(), arrays, shared=limit)
    with pytest.raises(LaunchError, match=rf"^saxpy needs {limit + 1} bytes of shared memory"):
        backend.load(SAXPY.encode(), "saxpy", limit + 1, 0)


def test_the_limits_in_our_table_are_those_of_the_device(backend: CudaBackend) -> None:
    device = backend.device_properties(0)
    target = target_for_device(device.major, device.minor)
    assert target.shared_per_block == device.shared_per_block
    assert target.shared_per_block_optin == device.shared_per_block_optin
    assert target.shared_per_sm == device.shared_per_multiprocessor


def test_the_callers_stream_is_used_and_its_device_stays_current(
    backend: CudaBackend, arrays: tuple[int, int]
) -> None:
    driver = backend._driver.require()
    with backend._driver.on(0, "make a stream"):
        error, stream = driver.cuStreamCreate(NON_BLOCKING)
        assert not error
    before = int(driver.cuCtxGetCurrent()[1])
    check_saxpy(backend, SAXPY.encode(), arrays, stream=int(stream))
    assert int(driver.cuCtxGetCurrent()[1]) == before
    assert not driver.cuStreamDestroy(stream)[0]


def test_work_is_timed(backend: CudaBackend, arrays: tuple[int, int]) -> None:
    kernel = backend.load(SAXPY.encode(), "saxpy", 4 * THREADS, 0)
    assert backend.elapsed_ms(lambda: backend.launch(kernel, plan_of(*arrays)), ordinal=0) > 0


def test_memory_is_copied_within_a_device(backend: CudaBackend, arrays: tuple[int, int]) -> None:
    data, back = np.arange(COUNT, dtype=np.float32), np.zeros(COUNT, np.float32)
    backend.copy_to_device(arrays[0], data.ctypes.data, data.nbytes, ordinal=0)
    backend.copy_on_device(arrays[1], arrays[0], data.nbytes, ordinal=0)
    backend.copy_to_host(back.ctypes.data, arrays[1], back.nbytes, ordinal=0)
    backend.synchronize(ordinal=0)
    np.testing.assert_array_equal(back, data)


def test_the_device_of_a_pointer_is_found(backend: CudaBackend, arrays: tuple[int, int]) -> None:
    assert backend.device_of_pointer(arrays[0] + 4) == 0
    assert backend.device_of_pointer(np.zeros(4).ctypes.data) is None


def test_the_second_device_works_too(backend: CudaBackend) -> None:
    if backend.device_count < 2:
        pytest.skip("there is one GPU, two are needed")
    arrays = tuple(backend.allocate(4 * COUNT, ordinal=1) for _ in range(2))
    assert backend.device_of_pointer(arrays[0]) == 1
    check_saxpy(backend, SAXPY.encode(), (arrays[0], arrays[1]), ordinal=1)
    assert backend.current_device() == 0
    for address in arrays:
        backend.free(address, ordinal=1)


def test_the_log_of_the_drivers_compiler_reaches_the_user(backend: CudaBackend) -> None:
    text = SAXPY.replace("[%rd0];\n  mov", "[%rd9];\n  mov")
    with pytest.raises(BackendError, match="refused the PTX for device 0") as error:
        backend.load(text.encode(), "saxpy", 0, 0)
    assert ">     26 |   ld.global.f32 %f1, [%rd9];" in str(error.value)
    assert "%rd9" in str(error.value).split("its log:")[1]


def test_text_newer_than_the_driver_says_so(backend: CudaBackend) -> None:
    text = SAXPY.replace(".version 7.0", ".version 99.0")
    with pytest.raises(BackendError, match=r"^cannot load saxpy: its text is PTX 99\.0 ") as error:
        backend.load(text.encode(), "saxpy", 0, 0)
    assert "update the NVIDIA driver" in str(error.value)


def test_a_kernel_that_is_not_there_is_refused(backend: CudaBackend) -> None:
    assert message(lambda: backend.load(SAXPY.encode(), "saxpi", 0, 0), BackendError) == (
        "the program has no kernel 'saxpi', only saxpy; did you mean 'saxpy'?; pass the name of its .entry"
    )


def test_a_destroyed_context_is_reported_once_and_for_all() -> None:
    code = textwrap.dedent(
        f"""
        from ptxgen.errors import PoisonedContextError
        from ptxgen.runtime.cuda import cuda_backend
        from ptxgen.runtime.plan import LaunchPlan, param_slots
        from ptxgen.parse import parse

        text = {SAXPY!r}
        slots = param_slots(parse(text).kernels[0].params)
        backend = cuda_backend()
        kernel = backend.load(text.encode(), "saxpy", 512, 0)
        plan = LaunchPlan("saxpy", (1, 1, 1), (128, 1, 1), 512, slots, (16, 16, 1.0, 128))
        backend.launch(kernel, plan)
        for action in (
            lambda: backend.synchronize(ordinal=0),
            lambda: backend.launch(kernel, plan),
            lambda: backend.load(b"other", "other", 0, 0),
        ):
            try:
                action()
            except PoisonedContextError as error:
                print(error)
            else:
                raise SystemExit("no error")
        backend.free(16, ordinal=0)
        backend.close()
        """
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    first, *later = ran.stdout.splitlines()
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in first
    assert len(later) == 2
    for line in later:
        assert "the CUDA context of this process was destroyed before" in line
