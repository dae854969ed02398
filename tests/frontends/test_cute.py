"""CuTe DSL kernels compiled without a GPU and launched by hand."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontends.lines import line_of
from messages import message

from ptxgen.errors import CompileError, LaunchError, TrapError
from ptxgen.frontends import cute as front

SOURCE = Path(__file__).with_name("cute_kernels.py")

pytestmark = pytest.mark.slow


@pytest.fixture
def k(cute: Any) -> Any:
    """The kernels."""
    assert cute
    return importlib.import_module("frontends.cute_kernels")


def tensors(*arrays: Any, dynamic: bool = False) -> list[Any]:
    from_dlpack = importlib.import_module("cutlass.cute.runtime").from_dlpack
    result = [from_dlpack(array) for array in arrays]
    return [tensor.mark_layout_dynamic() for tensor in result] if dynamic else result


@pytest.fixture
def arrays() -> list[Any]:
    return [np.arange(100, dtype=np.float32), np.ones(100, np.float32), np.zeros(100, np.float32)]


def test_tensors_of_static_layouts(k: Any, arrays: list[Any]) -> None:
    program = front.compile(k.add, *tensors(*arrays))
    assert program["add_kernel"].parameters == ("a: b8[8]", "b: b8[8]", "c: b8[8]")
    outcome = program["add_kernel"].run(2, args=[(array,) for array in arrays])
    assert np.array_equal(arrays[2], arrays[0] + 1)
    assert outcome.clean
    assert ".target sm_80" in outcome.ptx


def test_tensors_of_dynamic_layouts_for_another_target(k: Any, arrays: list[Any]) -> None:
    kernel = front.compile(k.add, *tensors(*arrays, dynamic=True), target="sm_90a").only()
    kernel.run(2, args=[(array, 100) for array in arrays], schedule=["lockstep", "pct:1"])
    assert np.array_equal(arrays[2], arrays[0] + 1)
    error = message(lambda: kernel.run(2, args=[(array, 101) for array in arrays]), TrapError)
    line = line_of(SOURCE, "c[i] = a[i] + b[i]")
    assert f"(cute_kernels.py:{line}: c[i] = a[i] + b[i])" in error
    assert "0 bytes after the end of a[0] (" in error
    with pytest.raises(LaunchError, match="a must be a structure of 16 bytes, got members of 8 bytes"):
        kernel.run(2, args=[(array,) for array in arrays])


def test_shared_memory_with_and_without_its_barrier(k: Any) -> None:
    x = np.arange(64, dtype=np.float32)
    front.compile(k.reverse, *tensors(x), False).only().run(1, args=[(x,)], shared=256)
    assert x.tolist() == list(range(63, -1, -1))
    racy = front.compile(k.reverse, *tensors(x), True).only()
    assert racy.parameters == ("x: b8[8]",)
    (report,) = racy.run(1, args=[(x,)], shared=256, raise_on_report=False).findings.reports
    assert report.kind == "race"
    assert report.source is not None
    assert report.other_source is not None
    assert report.source.line == line_of(SOURCE, "x[thread] = tile[")
    assert report.other_source.line == line_of(SOURCE, "tile[thread] = x[thread]")


def test_tensors_of_arrays_on_the_host_are_in_global_memory(k: Any) -> None:
    runtime = importlib.import_module("cutlass.cute.runtime")
    float32 = importlib.import_module("cutlass").Float32
    x = np.arange(4 * 64, dtype=np.float32)
    fake = runtime.make_fake_compact_tensor(float32, x.shape, assumed_align=16)
    for tensor in (runtime.from_dlpack(x, assumed_align=16), fake):
        y = np.zeros_like(x)
        kernel = front.compile(k.staged, tensor, tensor).only()
        outcome = kernel.run(1, args=[(x,), (y,)], shared=4 * 64 * 4)
        assert np.array_equal(y, x)
        assert outcome.clean
        assert "cp.async.c" in outcome.ptx


def test_what_cannot_be_compiled(k: Any) -> None:
    assert message(lambda: front.compile(k.add, 1), CompileError).startswith(
        "add cannot be compiled:\nerror[CALL_MISSING_ARG]: Required argument `b`"
    )
    assert (
        message(lambda: front.compile(3))
        == "ptxgen.frontends.cute: the function must be a @cute.jit function, got 3"
    )
