"""Numba kernels compiled without a GPU: results, findings, arguments."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontends.lines import line_of
from messages import message

from ptxgen.errors import CompileError, TrapError
from ptxgen.frontends import numba as front
from ptxgen.interpreter import PCT

SOURCE = Path(__file__).with_name("numba_kernels.py")

pytestmark = pytest.mark.slow


@pytest.fixture
def k(numba: Any) -> Any:
    """The kernels."""
    assert numba
    return importlib.import_module("frontends.numba_kernels")


def floats(*shape: int) -> Any:
    return np.random.default_rng(5).standard_normal(shape, np.float32)


# ---- right kernels ------------------------------------------------------------------------------


def test_arrays_of_any_strides(k: Any) -> None:
    x, whole = floats(50, 4), floats(100)
    y = whole[::-2]
    wanted = 2 * x[:, 1].astype(np.float64) + y
    kept = whole[::2].copy()
    outcome = front.run(k.saxpy, 2, 32, [2.0, x[:, 1], y])
    assert np.allclose(y, wanted, rtol=1e-6, atol=1e-6)
    assert np.array_equal(whole[::2], kept)
    assert outcome.name == "saxpy"
    assert outcome.clean


def test_two_dimensions_in_fortran_order(k: Any) -> None:
    x = np.asfortranarray(floats(20, 10))
    y = np.zeros((20, 10), np.float64)
    front.run(k.columns_softmax, 1, 32, {"y": y, "x": x})
    weights = np.exp(x.astype(np.float64))
    assert np.allclose(y, weights / weights.sum(0), rtol=1e-4)


@pytest.mark.judged
def test_shared_tiles_under_three_schedules(k: Any) -> None:
    a, b, c = floats(16, 24), floats(24, 8), np.zeros((16, 8), np.float32)
    front.run(k.tiled_matmul, (1, 2), (8, 8), [a, b, c], schedule=[PCT(0), PCT(1), "lockstep"])
    assert np.allclose(c, a.astype(np.float64) @ b, atol=1e-5)


def test_shuffles_and_atomics(k: Any) -> None:
    x, out = np.arange(64, dtype=np.float32), np.zeros(1, np.float32)
    front.run(k.warp_total, 2, 32, [x, out])
    assert out[0] == x.sum()


def test_dynamic_shared_memory(k: Any) -> None:
    x = np.arange(32, dtype=np.int32)
    front.run(k.reversed_block, 1, 32, [x], shared=128)
    assert x.tolist() == list(range(31, -1, -1))


def test_arguments_of_many_types(k: Any) -> None:
    record = np.zeros((), [("weight", np.float64), ("count", np.int32)])
    record["weight"], record["count"] = 0.5, 6
    out = np.zeros(7)
    pair = (7, np.array([1.0, 2.0]))
    args = [1 + 2j, pair, k.Mode.NEGATED, True, np.float16(1.5), record[()], out]
    front.run(k.of_many, 1, 1, args, target="sm_90")
    assert out.tolist() == [21.0, 9.0, 2.0, 1.0, 1.5, 3.0, 8.0]


def test_torch_tensors_in_place(k: Any, torch: Any) -> None:
    x, y = torch.ones(8), torch.zeros(8)
    front.run(k.saxpy, 1, 32, [np.float32(3), x, y])
    assert y.tolist() == [3.0] * 8


def test_a_kernel_is_compiled_once_for_arguments_of_a_type(k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros(8, np.int32)
    front.run(k.plain, 1, 8, [x, 0])
    monkeypatch.setattr("numba.cuda.compile_ptx", None)
    front.run(k.plain, 1, 4, [x, 4])
    assert x.tolist() == [1] * 8


# ---- findings -----------------------------------------------------------------------------------


def test_a_race_names_the_two_lines_of_python(k: Any) -> None:
    x, out = floats(64), np.zeros(64, np.float32)
    outcome = front.run(k.racy_block, 1, 64, [x, out], raise_on_report=False)
    (report,) = outcome.findings.reports
    assert report.kind == "race"
    assert report.source is not None
    assert report.other_source is not None
    assert report.source.line == line_of(SOURCE, "no barrier before")
    assert report.other_source.line == line_of(SOURCE, "part[t] = 2 * x[t]")
    assert "kernel racy_block: ld.shared" in report.message


def test_an_access_outside_an_array_names_the_parameter_and_the_line(k: Any) -> None:
    x = np.zeros(40, np.int32)
    error = message(lambda: front.run(k.plain, 2, 32, [x, 0]), TrapError)
    line = line_of(SOURCE, "x[cuda.grid(1) + first] = 1")
    assert f"(numba_kernels.py:{line}: x[cuda.grid(1) + first] = 1): thread (8, 0, 0) of CTA (1," in error
    assert "0 bytes after the end of x (" in error


def test_device_functions_and_their_lines(k: Any) -> None:
    x, y = np.arange(40.0), np.zeros(40)
    front.run(k.of_device_functions, 2, 32, [x, y])
    assert np.array_equal(y, 2 * x)
    outcome = front.run(k.of_device_functions, 2, 32, [x[:36], y], raise_on_report=False)
    line = line_of(SOURCE, "# of a device function")
    assert f"(numba_kernels.py:{line}: return 2 * x[i]  # of a device function" in outcome.findings.faults[0]
    with pytest.raises(CompileError):  # Numba's own functions are as they were before
        front.run(k.of_device_functions, 2, 32, [1.0, y])
    from numba.cuda import dispatcher

    assert dispatcher.get_current_device.__module__ == "numba.cuda.api"
    assert dispatcher.compile_cuda.__module__ == "numba.cuda.compiler"


# ---- what is wrong says so ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ([1.0], "saxpy takes 3 arguments (a, x, y), got 1"),
        (1.0, "saxpy: args must be a list of arguments, or a mapping by name, got 1.0"),
        ({"a": 1, "z": 2}, "saxpy has no parameter 'z'"),
        ({"a": 1, "x": 2}, "saxpy: args lacks y; give every parameter"),
        ([1, "x", 2], "saxpy: x must be an array, a number, None for a null pointer, or bytes for a "
         "structure, got 'x'"),
        ([1, None, 2], "saxpy: x has the type none in Numba, which is no argument of a kernel here"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(k: Any, args: Any, wanted: str) -> None:
    assert message(lambda: front.run(k.saxpy, 1, 1, args)) == wanted


def test_what_is_no_kernel() -> None:
    pytest.importorskip("numba.cuda")
    assert message(lambda: front.run("saxpy", 1, 1, [])) == (
        "ptxgen.frontends.numba: the kernel must be a @cuda.jit kernel or a function, got 'saxpy'"
    )


def test_a_function_that_numba_cannot_compile(k: Any) -> None:
    error = message(lambda: front.run(k.saxpy, 1, 1, [1.0, 2.0, 3.0]), CompileError)
    assert error.startswith("saxpy cannot be compiled for (float64, float64, float64):\n")
    assert "No implementation of function Function(<built-in function getitem>)" in error
