"""A launch like the last one of a kernel is not checked again, and any other launch is."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from device_arrays import TensorOnGpu, without_assembler
from fake_driver import FakeDevice, FakeDriver

from ptxgen.dsl import Pointer
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.kernels.function import KernelFunction
from ptxgen.kernels.last_launch import LastLaunch
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.types import f32, u32

Array = np.ndarray[Any, Any]
N = 64
FACTOR = 2.0


def scaled(k: Any, X: Pointer[f32], Y: Pointer[f32], n: u32, more: f32) -> None:  # type: ignore[type-arg, valid-type]
    with k.strided(n) as i:
        Y[i] = X[i] * FACTOR + more


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    without_assembler(monkeypatch)
    return FakeDriver(FakeDevice(), FakeDevice())


def kernel_on(driver: FakeDriver) -> KernelFunction:
    return KernelFunction(scaled, threads=32, cuda=CudaBackend(driver), cache=ModuleCache(None))


def tensors(driver: FakeDriver, ordinal: int = 0) -> list[TensorOnGpu]:
    return [TensorOnGpu(driver, np.ones(N, np.float32), ordinal) for _ in range(2)]


CHANGES: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "null": (0, {"pointer": 0}, {}),
    "misaligned": (0, {"pointer": 2}, {}),
    "dtype": (1, {"dtype": "torch.float16"}, {}),
    "strides": (1, {"stride": lambda: (2,)}, {}),
    "device": (1, {"device": SimpleNamespace(type="cuda", index=1)}, {}),
    "host": (1, {"is_cuda": False, "is_cpu": True}, {}),
    "meta": (1, {"is_cuda": False}, {}),
    "gradients": (1, {"requires_grad": True}, {}),
    "negation": (0, {"is_neg": lambda: True}, {}),
    "count": (0, {}, {"n": -1}),
    "number": (0, {}, {"more": "much"}),
    "array": (0, {}, {"Y": 3}),
    "grid": (0, {}, {"grid": 0}),
    "stream": (0, {}, {"stream": "0"}),
    "backend": (0, {}, {"backend": "gpu"}),
    "backend in an array": (0, {}, {"backend": np.array(["cuda"])}),
    "interpreter": (0, {}, {"backend": "interpreter"}),
    "limit": (0, {}, {"max_instructions": 5}),
    "threads": (0, {}, {"threads": 0}),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_errors_after_a_launch_are_those_of_a_first_one(name: str, driver: FakeDriver) -> None:
    which, attributes, wrong = CHANGES[name]
    texts = []
    for is_first in (True, False):
        kernel, (x, y) = kernel_on(driver), tensors(driver)
        if not is_first:
            kernel[2](x, y, N, 1.0, stream=0)
        launched = len(driver.launches)
        vars((x, y)[which]).update(attributes)
        how: dict[str, Any] = {"grid": 2, "X": x, "Y": y, "n": N, "more": 1.0, "stream": 0, **wrong}
        with pytest.raises((LaunchError, ConfigError)) as refused:
            kernel.launch(how.pop("grid"), **how)
        texts.append(re.sub(r"0x[0-9a-f]+", "0x", str(refused.value)))
        assert len(driver.launches) == launched
    assert texts[0] == texts[1]


def test_launches_like_the_last_one_have_addresses_numbers_and_streams_of_their_own(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = []
    put = LastLaunch.put
    monkeypatch.setattr(LastLaunch, "put", lambda *of: puts.append(put(*of)) or puts[-1])
    kernel, wanted = kernel_on(driver), []
    for grid, ordinal, more in ((2, 0, 1.0), (2, 0, 2.0), (3, 0, 1.0), (3, 1, 1.0), (3, 1, 3.0)):
        (x, y), stream = tensors(driver, ordinal), driver.make_stream(ordinal)
        kernel[grid](x, y, N, more, stream=stream)
        wanted.append((grid, ordinal, stream, [x.pointer, y.pointer, N, more]))
    assert [(d.grid[0], d.ordinal, d.stream, [*d.values.values()]) for d in driver.launches] == wanted
    assert puts == [True, False, False, True]


def test_a_value_that_the_function_reads_is_in_each_later_launch(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, (x, y) = kernel_on(driver), tensors(driver)
    for factor in (2.0, 3.0, 2.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        for how in ({}, {"threads": 64}, {}):
            kernel[2](x, y, N, 1.0, stream=0, **how)
    texts = [done.text for done in driver.launches]
    assert texts[0:3] == texts[6:9]
    assert [text == texts[0] for text in texts] == [True, False, True, False, False, False, True, False, True]
    assert texts[3] == texts[5]


def test_a_build_follows_a_value_that_changed_before_a_launch_with_other_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, x, y = KernelFunction(scaled, threads=32), np.ones(N, np.float32), np.zeros(N, np.float32)
    kernel[2](x, y, N, 0.0, backend="interpreter")
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    for how in ({"threads": 64}, {}):
        kernel[2](x, y, N, 0.0, backend="interpreter", **how)
        assert y.tolist() == [5.0] * N
