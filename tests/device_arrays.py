"""Arrays on the fake driver's GPUs, as libraries without code of ours would show them."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver, Launch

from flash.kernel import AttentionKernel
from flash.operands.dtypes import OF_ARRAYS
from flash.problem.config import AttentionConfig
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.errors import BackendError
from ptxgen.interpreter import DeviceArena, run  # as they are without `--on-gpu`
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend


class CudaArray:
    """An array with `__cuda_array_interface__` and nothing else."""

    def __init__(
        self, pointer: int, like: np.ndarray[Any, Any], *, stream: int | None = None, read_only: bool = False
    ) -> None:
        self.pointer = pointer
        self.shape = like.shape
        self.__cuda_array_interface__: dict[str, Any] = {
            "data": (pointer, read_only),
            "shape": like.shape,
            "strides": None if like.flags.c_contiguous else like.strides,
            "typestr": like.dtype.str,
            "stream": stream,
            "version": 3,
        }


def on_device(driver: FakeDriver, array: np.ndarray[Any, Any], ordinal: int = 0, **how: Any) -> CudaArray:
    """A dense copy of `array` on device `ordinal`."""
    dense = np.ascontiguousarray(array)
    return CudaArray(driver.place(dense, ordinal), dense, **how)


def kernel_on(driver: FakeDriver, config: AttentionConfig) -> AttentionKernel:
    """The kernel of a config on the devices of a fake driver, with an empty cache of compiled kernels."""
    return AttentionKernel(config, cuda=CudaBackend(driver), cache=ModuleCache(None))


class TensorOnGpu:
    """A stand-in for a dense tensor of torch on a GPU: it has the attributes that launches read."""

    layout, requires_grad, is_cuda, is_cpu = "torch.strided", False, True, False

    def __init__(self, driver: FakeDriver, array: np.ndarray[Any, Any], ordinal: int) -> None:
        self._driver = driver
        self._like = np.ascontiguousarray(array)
        self.shape, self.dtype = array.shape, f"torch.{array.dtype.name}"
        self.device = SimpleNamespace(type="cuda", index=ordinal)
        self.pointer = driver.place(self._like, ordinal)

    def data_ptr(self) -> int:
        return self.pointer

    def get_device(self) -> int:
        return int(self.device.index)

    def dim(self) -> int:
        return len(self.shape)

    def stride(self, axis: int | None = None) -> Any:
        result = dense_strides(self.shape)
        return result if axis is None else result[axis]

    def is_neg(self) -> bool:
        return False

    def contiguous(self) -> TensorOnGpu:
        return self

    def new_empty(self, shape: tuple[int, ...]) -> TensorOnGpu:
        return TensorOnGpu(self._driver, np.empty(shape, self._like.dtype), self.device.index)

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._driver.fetch(self.pointer, self._like)


TensorOnGpu.__module__, TensorOnGpu.__name__ = "torch", "Tensor"


class TorchOnGpu:
    """Stands in for torch on device `ordinal`, whose current stream is `stream`. `made` are the tensors
    of `torch.empty`, which are NaN.
    """

    float32, float16, bfloat16 = "torch.float32", "torch.float16", "torch.bfloat16"

    def __init__(self, driver: FakeDriver, ordinal: int, patch: pytest.MonkeyPatch) -> None:
        self._driver, self._ordinal = driver, ordinal
        self.stream = driver.make_stream(ordinal)
        self.cuda = SimpleNamespace(current_stream=lambda _: SimpleNamespace(cuda_stream=self.stream))
        self.made: list[TensorOnGpu] = []
        patch.setitem(sys.modules, "torch", self)  # type: ignore[arg-type]  # stands in for it

    def tensor(self, array: np.ndarray[Any, Any]) -> TensorOnGpu:
        return TensorOnGpu(self._driver, array, self._ordinal)

    def empty(self, shape: tuple[int, ...], dtype: str, **_: object) -> TensorOnGpu:
        of = OF_ARRAYS[dtype.removeprefix("torch.")].numpy
        self.made.append(self.tensor(np.full(shape, np.nan, of)))
        return self.made[-1]


def interpret(driver: FakeDriver, launch: Launch) -> None:
    """Do a launch on the fake's memory: for `driver.on_launch`."""
    arena = DeviceArena()
    for memory in driver.memory.values():
        arena.place(memory.data, at=memory.address)
    run(
        launch.text,
        launch.entry,
        grid=launch.grid,
        block=launch.block,
        args=list(launch.values.values()),
        dynamic_smem=launch.dynamic_shared,
        arena=arena,
    )


def interpreting(driver: FakeDriver) -> FakeDriver:
    """The driver, on whose GPUs the interpreter does each launch from now on."""
    driver.on_launch = functools.partial(interpret, driver)
    return driver


def without_assembler(patch: pytest.MonkeyPatch) -> None:
    """Backends find no assembler, so that a fake driver is given text, which it can run."""

    def missing(**_: object) -> object:
        raise BackendError("no assembler here")

    patch.setattr("ptxgen.runtime.cuda.find_assembler", missing)
