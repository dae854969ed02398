"""Runs on the GPU, on a fake driver whose GPU is the interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_driver import A100, CUBIN_MAGIC, Call, FakeDriver, real
from fake_gpu import Machine
from gpu_runs import GpuArena, not_here, program, run_on_gpu

from ptxgen.runtime.cuda import CudaBackend
from ptxgen.tensormap import NBYTES, TensorMap

NVCC = Path(__file__).parent / "ptx" / "nvcc"


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def backend(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    monkeypatch.setattr(CudaBackend, "compile", lambda *given: given[1].encode())
    return CudaBackend(machine)


def fixture(name: str) -> str:
    return (NVCC / f"{name}.ptx").read_text()


def test_arrays_go_to_the_device_and_come_back(machine: Machine, backend: CudaBackend) -> None:
    x = np.arange(900, dtype=np.float32)
    y = np.ones(902, np.float32)[1:-1]
    run_on_gpu(fixture("stencils.sm_80"), "saxpy", args=[2.5, x, y, 900], grid=2, block=64, backend=backend)
    np.testing.assert_array_equal(y, 2.5 * x + 1)
    assert machine.launches[0].grid == (2, 1, 1)
    assert not machine.memory  # all is freed


def test_an_array_is_as_misaligned_on_the_device_as_it_is_here(backend: CudaBackend) -> None:
    y = np.zeros(8, np.float32)
    arena = GpuArena(backend)
    assert arena.place(y[1:]) % 16 == y[1:].ctypes.data % 16 != 0
    arena.close()


def test_two_arguments_that_are_one_array_share_their_memory(backend: CudaBackend) -> None:
    x = np.arange(64, dtype=np.float32)
    run_on_gpu(
        fixture("stencils.sm_80"), "saxpy", args=[1.0, x, x[:32], 32], grid=1, block=32, backend=backend
    )
    np.testing.assert_array_equal(x, np.r_[2 * np.arange(32), np.arange(32, 64)])


def test_structures_hold_pointers_to_placed_arrays(machine: Machine, backend: CudaBackend) -> None:
    arena = GpuArena(backend)
    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    kind = [("x", "u8"), ("y", "u8"), ("n", "i4"), ("scale", "f4"), ("shift", "i2", 4)]
    problem = np.array([(arena.place(x), arena.place(y), 90, 0.5, (1, -2, 3, -4))], kind)
    run_on_gpu(
        fixture("structures.sm_80"),
        "structure_pointers",
        args=[problem.tobytes()],
        grid=4,
        block=32,
        arena=arena,
        backend=backend,
    )
    want = x * 0.5 + np.tile([1, -2, 3, -4], 25)
    np.testing.assert_array_equal(y, np.where(np.arange(100) < 90, want, 0))
    assert len(machine.memory) == 2
    arena.close()
    assert not machine.memory


def test_tensor_maps_are_made_by_the_driver(machine: Machine, backend: CudaBackend) -> None:
    x, out = np.arange(800, dtype=np.float32).reshape(20, 40), np.zeros((12, 48), np.float32)
    maps = [TensorMap(x, box=(32, 8)), TensorMap(out, box=(32, 8))]
    run_on_gpu(fixture("tma.sm_90a"), "tma_copy", args=[*maps, 0, 8, 0, 0], grid=1, block=64, backend=backend)
    np.testing.assert_array_equal(out[:8, :32], 2 * x[8:16, :32])
    assert [len(data) for data in machine.structures.values()] == [NBYTES, NBYTES]


def test_recursion_gets_a_larger_stack(machine: Machine, backend: CudaBackend) -> None:
    x, out = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    run_on_gpu(
        fixture("recursion.sm_80"), "recursive_fibonacci", args=[x, out], grid=1, block=8, backend=backend
    )
    np.testing.assert_array_equal(out, [0, 1, 1, 2, 3, 5, 8, 13])
    assert machine.limits == [(real.CUlimit.CU_LIMIT_STACK_SIZE, 16384)]


def test_negative_numbers_wrap_for_unsigned_parameters(backend: CudaBackend) -> None:
    text = fixture("tma.sm_90a")
    x, out = np.ones((20, 40), np.float32), np.zeros((12, 48), np.float32)
    maps = [TensorMap(x, box=(32, 8)), TensorMap(out, box=(32, 8))]
    run_on_gpu(text, "tma_copy", args=[*maps, -4, 0, 0, 0], grid=1, block=64, backend=backend)
    np.testing.assert_array_equal(out[0, :8], [0, 0, 0, 0, 2, 2, 2, 2])


def test_text_for_a_newer_gpu_is_skipped_with_the_reason() -> None:
    x = np.zeros(4, np.float32)
    with pytest.raises(pytest.skip.Exception) as skipped:
        run_on_gpu(
            fixture("tma.sm_90a"),
            "tma_copy",
            args=[x],
            grid=1,
            block=64,
            backend=CudaBackend(FakeDriver(A100)),
        )
    assert str(skipped.value) == "the text is for sm_90a, the GPU is sm_80"
    assert not_here("sm_90a", 10, 0) == "the text is for sm_90a, the GPU is sm_100"
    assert not_here("sm_75", 9, 0) == ""


@pytest.mark.ptxas
def test_text_is_compiled_for_the_device() -> None:
    machine = Machine()
    image = program(CudaBackend(machine), fixture("stencils.sm_75"))
    assert image.startswith(CUBIN_MAGIC)
    assert Call("cuInit", (0,)) in machine.calls
