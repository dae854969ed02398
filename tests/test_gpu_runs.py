"""Runs on the GPU, on a fake driver whose GPU is the interpreter."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_runs
import numpy as np
import on_gpu
import pytest
from error_texts import refused
from fake_driver import A100, CUBIN_MAGIC, Call, FakeDriver, real
from fake_gpu import Machine
from gpu_runs import GpuArena, not_here, program, run_on_gpu

from ptxgen.interpreter import DeviceArena
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
    with refused(pytest.skip.Exception, "the text is for sm_90a, the GPU is sm_80"):
        run_on_gpu(
            fixture("tma.sm_90a"),
            "tma_copy",
            args=[x],
            grid=1,
            block=64,
            backend=CudaBackend(FakeDriver(A100)),
        )
    assert not_here("sm_90a", 10, 0) == "the text is for sm_90a, the GPU is sm_100"
    assert not_here("sm_75", 9, 0) == ""


@pytest.mark.ptxas
def test_text_is_compiled_for_the_device() -> None:
    machine = Machine()
    image = program(CudaBackend(machine), fixture("stencils.sm_75"))
    assert image.startswith(CUBIN_MAGIC)
    assert Call("cuInit", (0,)) in machine.calls


# ------------------------------------------------------------------------------ pytest --on-gpu

Y = np.ones(40, np.float32)


def saxpy_of_tests(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, y: np.ndarray, **how: Any) -> Any:
    """What a test has that gives saxpy to the interpreter under `--on-gpu`."""
    monkeypatch.setattr(gpu_runs, "run_on_gpu", functools.partial(run_on_gpu, backend=backend))
    args = [2, np.arange(40, dtype=np.float32), y, 40]
    return on_gpu.run(fixture("stencils.sm_80"), "saxpy", args=args, grid=2, block=32, **how)


def test_a_run_of_the_interpreter_computes_on_the_gpu(
    machine: Machine, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = Y.copy()
    saxpy_of_tests(backend, monkeypatch, y, sanitize=True, schedule="lockstep")
    np.testing.assert_array_equal(y, 2 * np.arange(40) + 1)
    assert [launch.grid for launch in machine.launches] == [(2, 1, 1)]


@pytest.mark.parametrize("name", ["counters", "reports"])
def test_what_a_gpu_does_not_tell_skips_the_test(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    result = saxpy_of_tests(backend, monkeypatch, Y.copy())
    with refused(pytest.skip.Exception, f"a GPU does not tell the {name} of a run"):
        getattr(result, name)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"arena": DeviceArena()}, "a GPU has no arena"),
        ({"sanitize": "race", "raise_on_report": False}, "a GPU makes no reports of sanitizers"),
    ],
)
def test_what_a_gpu_cannot_do_skips_the_test_before_the_launch(
    machine: Machine, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, how: Any, said: str
) -> None:
    with refused(pytest.skip.Exception, said):
        saxpy_of_tests(backend, monkeypatch, Y.copy(), **how)
    assert not machine.launches


@pytest.mark.parametrize(
    ("asked", "marked", "skipped"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_tests_for_the_interpreter_alone_are_skipped_on_a_gpu(
    asked: bool, marked: bool, skipped: bool, pytestconfig: pytest.Config
) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))
    test = SimpleNamespace(
        config=SimpleNamespace(getoption={"--on-gpu": asked}.__getitem__),
        get_closest_marker=lambda name: marked and name == "interpreter",
    )
    said = ""
    try:
        conftest.pytest_runtest_setup(test)
    except pytest.skip.Exception as skip:
        said = str(skip)
    assert said == ("it needs what only the interpreter tells" if skipped else "")
