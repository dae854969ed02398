"""A fake driver whose GPU is the interpreter."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from device_arrays import interpret
from fake_driver import FakeDriver, real

from ptxgen.interpreter import DeviceArena
from ptxgen.tensormap import DTYPES, L2_PROMOTIONS, OOB_FILLS, SWIZZLES, TensorMap


class Machine(FakeDriver):
    """A fake driver that also knows structures and tensor maps, and interprets launches."""

    CUlimit = real.CUlimit
    CUtensorMapDataType = real.CUtensorMapDataType
    CUtensorMapInterleave = real.CUtensorMapInterleave
    CUtensorMapSwizzle = real.CUtensorMapSwizzle
    CUtensorMapL2promotion = real.CUtensorMapL2promotion
    CUtensorMapFloatOOBfill = real.CUtensorMapFloatOOBfill
    cuuint32_t = real.cuuint32_t
    cuuint64_t = real.cuuint64_t

    def __init__(self, *devices: Any) -> None:
        super().__init__(*devices)
        self.limits: list[tuple[Any, int]] = []
        self.arena = DeviceArena()
        self.on_launch = self.interpret

    def cuCtxSetLimit(self, limit: Any, value: int) -> tuple[Any]:
        self.limits.append((limit, value))
        return (real.CUresult.CUDA_SUCCESS,)

    def cuTensorMapEncodeTiled(self, *given: Any) -> tuple[Any, Any]:
        """The interpreter's own map in place of the GPU's."""
        if not self.stack:
            return real.CUresult.CUDA_ERROR_INVALID_CONTEXT, None
        dtype, _, address, dims, strides, box, steps, _, swizzle, promotion, fill = given
        built = TensorMap(
            address,
            tuple(map(int, box)),
            _name(DTYPES, dtype),
            tuple(map(int, dims)),
            tuple(map(int, strides)),
            _name(SWIZZLES, swizzle),
            tuple(map(int, steps)),
            _name(OOB_FILLS, fill),
            _name(L2_PROMOTIONS, promotion),
        )
        words = np.frombuffer(built.encode(address), np.uint64)
        opaque = [real.cuuint64_t(int(w)) for w in words]
        return real.CUresult.CUDA_SUCCESS, SimpleNamespace(opaque=opaque)

    def cuLaunchKernel(self, *given: Any) -> tuple[Any, ...]:
        self._read_structures(given[0], given[9])
        return super().cuLaunchKernel(*given)  # type: ignore[no-any-return]

    def cuLaunchKernelEx(self, *given: Any) -> tuple[Any, ...]:
        self._read_structures(*given[1:3])
        return super().cuLaunchKernelEx(*given)  # type: ignore[no-any-return]

    def _read_structures(self, function: Any, parameters: int) -> None:
        kernel = self._functions[int(function)].kernel
        places = (ctypes.c_void_p * len(kernel.params)).from_address(parameters)
        self.structures = {
            p.name: ctypes.string_at(location, p.count)
            for p, location in zip(kernel.params, places, strict=True)
            if p.count
        }

    def interpret(self, launch: Any) -> None:
        """The launch, on the fake's memory."""
        interpret(self, replace(launch, values={**launch.values, **self.structures}))


def _name(names: dict[str, int], number: Any) -> str:
    return next(name for name, n in names.items() if n == int(number))
