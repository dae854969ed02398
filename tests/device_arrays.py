"""Arrays on the fake driver's GPUs, as libraries without code of ours would show them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver, Launch

from ptxgen import interpreter
from ptxgen.errors import BackendError


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


def interpret(driver: FakeDriver, launch: Launch) -> None:
    """Do a launch on the fake's memory: for `driver.on_launch`."""
    arena = interpreter.DeviceArena()
    for memory in driver.memory.values():
        arena.place(memory.data, at=memory.address)
    interpreter.run(
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
