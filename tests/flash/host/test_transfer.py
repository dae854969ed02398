"""Arrays of the host on a GPU and back."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from device_arrays import on_device
from fake_driver import FakeDevice, FakeDriver

import flash
from flash.operands.dtypes import BOOL, FP8_DTYPES, I32, INPUT_DTYPES, DType
from ptxgen.arrays.dlpack import CUDA, read_capsule
from ptxgen.arrays.views import view
from ptxgen.errors import LaunchError
from ptxgen.runtime.cuda import CudaBackend, cuda_backend

ARRAYS_OF_FP8 = ", ".join(t.array_name for t in FP8_DTYPES.values())
EVERY_TYPE = pytest.mark.parametrize("dtype", [*INPUT_DTYPES.values(), I32, BOOL], ids=lambda t: t.name)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(FakeDevice(), FakeDevice())


def numbers(dtype: DType, shape: tuple[int, ...] = (3, 4)) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 2 if dtype is BOOL else 99, shape).astype(dtype.numpy)


@EVERY_TYPE
def test_what_goes_to_a_device_comes_back(dtype: DType, driver: FakeDriver) -> None:
    array = numbers(dtype)
    there = flash.to_device(array, device=1, cuda=CudaBackend(driver))
    assert (there.shape, there.dtype, there.ordinal) == (array.shape, array.dtype, 1)
    np.testing.assert_array_equal(driver.fetch(there.pointer, np.empty_like(array)), array)
    back = there.numpy()
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_copies_are_waited_for(driver: FakeDriver) -> None:
    flash.to_device(numbers(I32), cuda=CudaBackend(driver)).numpy()
    result = [name for name in driver.names() if "Memcpy" in name or "Synchronize" in name]
    assert result == ["cuMemcpyHtoDAsync", "cuStreamSynchronize", "cuMemcpyDtoHAsync", "cuStreamSynchronize"]


@EVERY_TYPE
def test_libraries_and_launches_read_it_without_a_copy(dtype: DType, driver: FakeDriver) -> None:
    there = flash.to_device(numbers(dtype), device=1, cuda=CudaBackend(driver))
    seen = view(there, "q")
    assert (seen.pointer, seen.shape, seen.dtype) == (there.pointer, (3, 4), dtype.array_name)
    contents = read_capsule(there.__dlpack__())
    assert contents == (there.pointer, (3, 4), (4, 1), dtype.array_name, (CUDA, 1))


def test_without_a_device_it_is_the_current_one(driver: FakeDriver) -> None:
    assert flash.to_device(numbers(I32), cuda=CudaBackend(driver)).ordinal == 0


def test_views_of_any_strides_are_copied_as_they_are_read(driver: FakeDriver) -> None:
    array = numbers(I32, (4, 6))[::-2, ::3]
    np.testing.assert_array_equal(flash.to_device(array, cuda=CudaBackend(driver)).numpy(), array)


@pytest.mark.parametrize("shape", [(0, 3), ()])
def test_arrays_of_any_shape_go(shape: tuple[int, ...], driver: FakeDriver) -> None:
    array = numbers(I32, shape)
    there = flash.to_device(array, cuda=CudaBackend(driver))
    assert there.shape == shape
    np.testing.assert_array_equal(there.numpy(), array)
    assert len(driver.memory) == (1 if array.size else 0)


def test_tensors_of_torch_on_the_host_go_as_well(torch: Any, driver: FakeDriver) -> None:
    there = flash.to_device(torch.arange(6.0).reshape(2, 3), cuda=CudaBackend(driver))
    np.testing.assert_array_equal(there.numpy(), np.arange(6.0, dtype=np.float32).reshape(2, 3))


@pytest.mark.usefixtures("only_young_garbage")
def test_the_memory_is_freed_with_the_object(driver: FakeDriver) -> None:
    there = flash.to_device(numbers(I32), cuda=CudaBackend(driver))
    assert len(driver.memory) == 1
    del there
    gc.collect()
    assert not driver.memory


@pytest.mark.parametrize(
    ("array", "how", "message"),
    [
        (
            np.zeros(2),
            {},
            f"to_device: array must be float32, float16, bfloat16, {ARRAYS_OF_FP8}, int32, bool, "
            "got float64; convert it",
        ),
        (
            np.zeros(2, np.int32),
            {"device": -1},
            "to_device: device must be the number of a GPU, from 0 on, got -1; leave it out for "
            "the current one",
        ),
        (
            np.zeros(2, np.int32),
            {"device": 2},
            "device 2 does not exist: this process sees 2 (0 to 1; CUDA_VISIBLE_DEVICES may hide some)",
        ),
    ],
)
def test_what_cannot_go_is_refused(array: Any, how: dict[str, Any], message: str, driver: FakeDriver) -> None:
    with pytest.raises(LaunchError) as caught:
        flash.to_device(array, cuda=CudaBackend(driver), **how)
    assert str(caught.value) == message
    assert not driver.memory


def test_what_is_on_a_gpu_is_to_be_passed_as_it_is(driver: FakeDriver) -> None:
    there = on_device(driver, numbers(I32))
    with pytest.raises(LaunchError) as caught:
        flash.to_device(there, cuda=CudaBackend(driver))
    assert str(caught.value) == (
        "to_device: array must be on the host, got cuda:?; it is on a GPU already: pass it as it is"
    )


@pytest.mark.gpu
@EVERY_TYPE
def test_a_real_gpu_gives_back_what_it_got(dtype: DType) -> None:
    array = numbers(dtype, (70, 33))
    np.testing.assert_array_equal(flash.to_device(array, cuda=cuda_backend()).numpy(), array)
