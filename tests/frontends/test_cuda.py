"""CUDA C++ through NVRTC: results, findings at lines of the source, arguments, mistakes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontends.lines import line_of
from messages import message

from ptxgen.errors import BackendError, CompileError, TrapError, UnsupportedTargetError
from ptxgen.frontends import cuda
from ptxgen.frontends.cub import named_headers
from ptxgen.frontends.program import FoundError, Outcome, Program
from ptxgen.interpreter import PCT, DeviceArena

SOURCE = Path(__file__).parent / "cuda" / "kernels.cu"
HEADERS = SOURCE.with_name("headers.cu")
SUM = "block_sum<float, 64>"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nvrtc")]


@pytest.fixture(scope="module")
def program() -> Program:
    return cuda.load(SOURCE, kernels=[SUM, "block_sum<int, 32>"])


@pytest.fixture(scope="module")
def with_headers() -> Program:
    return cuda.load(HEADERS)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def floats(*shape: int) -> Any:
    return np.random.default_rng(5).standard_normal(shape, np.float32)


def found(program: Program, name: str, *call: Any, **how: Any) -> Outcome:
    return program[name].run(*call, raise_on_report=False, **how)


# ---- right kernels ------------------------------------------------------------------------------


def test_a_kernel_with_c_linkage(program: Program) -> None:
    x, y = floats(1000), floats(1000)
    wanted = np.float32(2) * x.astype(np.float64) + y
    outcome = program["saxpy"].run(4, 256, [1000, 2.0, x, y])
    assert np.allclose(y, wanted, rtol=1e-6, atol=1e-6)
    assert outcome.clean
    assert outcome.counters.by_opcode["fma.rn.f32"] == 32
    assert ".entry saxpy" in outcome.ptx


def test_instances_of_a_template_by_name(program: Program) -> None:
    x, out = floats(2, 64), np.zeros(2, np.float32)
    program[SUM].run(2, 64, [x, out])
    assert np.allclose(out, x.sum(1), rtol=1e-5, atol=1e-5)
    n, total = np.arange(32, dtype=np.int32), np.zeros(1, np.int32)
    program["block_sum<int, 32>"].run(1, 32, [n, total], schedule=[PCT(0), PCT(1), "lockstep"])
    assert total[0] == n.sum()


def test_shuffles_of_a_warp(program: Program) -> None:
    x = floats(3, 100)
    y = np.empty_like(x)
    program["warp_softmax"].run(3, 32, [x, y, 100])
    weights = np.exp(x.astype(np.float64))
    assert np.allclose(y, weights / weights.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.judged
def test_a_tiled_product(program: Program) -> None:
    a, b = floats(32, 32), floats(32, 32)
    c = np.zeros((32, 32), np.float32)
    program["tiled_matmul"].run((2, 2), (16, 16), [a, b, c, 32])
    assert np.allclose(c, a.astype(np.float64) @ b, atol=1e-5)


def test_a_macro_changes_the_tile() -> None:
    small = cuda.load(SOURCE, defines={"ROWS": 8})
    a, b = np.eye(16, dtype=np.float32), floats(16, 16)
    c = np.zeros((16, 16), np.float32)
    small["tiled_matmul"].run((2, 2), (8, 8), [a, b, c, 16])
    assert np.array_equal(c, b)


def test_atomics_and_dynamic_shared_memory(program: Program, rng: np.random.Generator) -> None:
    x = rng.integers(0, 256, 1000).astype(np.uint8)
    bins = np.zeros(16, np.uint32)
    program["histogram"].run(3, 64, [x, bins, 1000], shared=16 * 4)
    assert bins.tolist() == np.bincount(x >> 4, minlength=16).tolist()


def test_cooperative_groups(with_headers: Program) -> None:
    x, out = np.arange(128, dtype=np.float32), np.zeros(1, np.float32)
    with_headers["group_sum"].run(2, 64, [x, out])
    assert out[0] == x.sum()


def test_half_precision_constants_and_printf(with_headers: Program) -> None:
    x, y = floats(64).astype(np.float16), np.zeros(64, np.float16)
    weights = np.array([0, 3, 0, 0], np.float32)
    outcome = with_headers["halves"].run(1, 32, [x, y, 32], symbols={"weights": weights})
    assert np.array_equal(y, np.float16(4 * x.astype(np.float64)))
    assert outcome.printed == "weight 3.0 of 32\n"


def test_variables_have_their_names_of_the_source() -> None:
    text = """
    namespace filter { __constant__ float weights[2]; __device__ int count; }
    __global__ void k(float *y) {
      y[threadIdx.x] = filter::weights[threadIdx.x];
      atomicAdd(&filter::count, 3);
    }
    """
    y, weights = np.zeros(2, np.float32), np.array([5, 7], np.float32)
    outcome = cuda.compile(text)["k"].run(1, 2, [y], symbols={"filter::weights": weights})
    assert y.tolist() == [5, 7]
    assert outcome.result is not None
    assert outcome.result.variables["filter::count"].view(np.int32).tolist() == [6]


def test_a_source_is_compiled_once() -> None:
    text = "__global__ void k(int *p) { *p = 1; }"
    assert cuda.compile(text) is cuda.compile(text)
    assert cuda.compile(text) is not cuda.compile(text, name="other.cu")


def test_a_structure_with_a_pointer_by_value(program: Program) -> None:
    class Affine(ctypes.Structure):
        _fields_ = (("scale", ctypes.c_float), ("shift", ctypes.c_int), ("offsets", ctypes.c_void_p))

    x, y, offsets = floats(10), np.zeros(10, np.float32), floats(12)
    arena = DeviceArena()
    affine = Affine(2.0, 2, arena.place(offsets, name="offsets"))
    program["apply"].run(1, 32, [affine, 10, x, y], arena=arena)
    assert np.allclose(y, 2 * x + offsets[2:], rtol=1e-6, atol=1e-6)
    program["apply"].run(1, 32, [(2.0, 1, offsets), 10, x, y], schedule=["lockstep", PCT(1)])
    assert np.allclose(y, 2 * x + offsets[1:-1], rtol=1e-6, atol=1e-6)
    with pytest.raises(TrapError, match=r"0 bytes after the end of f\[2\]"):
        program["apply"].run(1, 32, [(2.0, 3, offsets), 10, x, y])


def test_a_torch_tensor_is_written_in_place(program: Program, torch: Any) -> None:
    x, y = torch.ones(8), torch.full((8,), 3.0)
    program["saxpy"].run(1, 32, [8, 2.0, x, y])
    assert y.tolist() == [5.0] * 8


# ---- findings, at lines of the source -----------------------------------------------------------


def test_a_race_names_the_two_lines(program: Program) -> None:
    x, out = np.ones(64, np.float32), np.zeros(1, np.float32)
    (report,) = found(program, "racy_sum", 1, 64, [x, out]).findings.reports
    read, write = line_of(SOURCE, "no barrier before"), line_of(SOURCE, "part[threadIdx.x] = x[threadIdx.x];")
    assert report.kind == "race"
    assert report.region == "part"
    assert report.source is not None
    assert (report.source.file, report.source.line) == (str(SOURCE), read)
    assert report.other_source is not None
    assert report.other_source.line == write
    assert report.message.startswith("kernel racy_sum: ld.shared")
    assert f"(kernels.cu:{read}: for (int i = 0; i < 64; i++) total += part[i];" in report.message
    assert f"(kernels.cu:{write}: part[threadIdx.x] = x[threadIdx.x];); no barrier" in report.message
    assert report.message.endswith(" more of the instructions of this line")  # the loop is unrolled


def test_an_access_outside_an_array_names_the_line_and_the_parameter(program: Program) -> None:
    x, y = floats(40), floats(64)
    error = message(lambda: program["saxpy"].run(1, 64, [64, 2.0, x, y]), TrapError)
    line = line_of(SOURCE, "y[i] = a * x[i] + y[i];")
    assert error.splitlines()[0] == "saxpy: 1 problem found:"
    assert f"(kernels.cu:{line}: if (i < n) y[i] = a * x[i] + y[i];): thread (40, 0, 0)" in error
    assert "0 bytes after the end of x (" in error


def test_what_was_printed_before_a_kernel_was_stopped_is_kept() -> None:
    text = '__global__ void k(int *p) { printf("at %d\\n", threadIdx.x); p[threadIdx.x] = 1; }'
    with pytest.raises(FoundError) as error:
        cuda.compile(text)["k"].run(1, 2, [np.zeros(1, np.int32)])
    assert error.value.outcome.printed == error.value.printed == "at 0\nat 1\n"
    assert error.value.outcome.result is None


def test_lines_of_a_text_that_is_no_file_are_shown() -> None:
    text = "// nothing\n__global__ void k(int *p) {\n  p[threadIdx.x] = 1;\n}\n"
    outcome = cuda.compile(text)["k"].run(1, 32, [np.zeros(8, np.int32)], raise_on_report=False)
    assert "(kernel.cu:3: p[threadIdx.x] = 1;): thread (8, 0, 0)" in outcome.findings.faults[0]


def test_inlined_code_names_the_call(program: Program) -> None:
    arena = DeviceArena()
    affine = np.zeros(1, "f4,i4,u8")
    affine["f2"] = arena.place(np.zeros(4, np.float32), name="offsets")
    x = floats(8)
    outcome = found(program, "apply", 1, 32, [affine[0], 8, x, x], arena=arena)
    (fault,) = outcome.findings.faults
    inner, outer = line_of(SOURCE, "return f.scale"), line_of(SOURCE, "y[i] = affine(")
    assert (
        f"(kernels.cu:{inner}: return f.scale * x + f.offsets[i + f.shift];, inlined at "
        f"kernels.cu:{outer}: if (i < n) y[i] = affine(f, x[i], i);)"
    ) in fault


# ---- what is wrong says so ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ([8, 2.0], "saxpy takes 4 arguments (n: u32, a: f32, x: u64, y: u64), got 2"),
        ([8.5, 2.0, 0, 0], "saxpy: argument 0 (n) must be an integer for its type u32, got 8.5"),
        ([8, "2", 0, 0], "saxpy: a must be an array, a number, None for a null pointer, or bytes for a "
         "structure, got '2'"),
        ([8, 2.0, np.zeros(8), 0], "saxpy: argument 2 (x) must be float32 (float*), got float64; convert it"),
        ({"n": 8, "b": 2.0}, "saxpy has no parameter 'b' (it has n, a, x, y)"),
        ({"n": 8, "a": 2.0}, "saxpy: args lacks x, y; give every parameter"),
        (8, "saxpy: args must be a list with an argument for each parameter (n: u32, a: f32, x: u64, y: "
         "u64), got 8"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(program: Program, args: Any, wanted: str) -> None:
    assert message(lambda: program["saxpy"].run(1, 32, args)) == wanted


def test_an_array_of_the_wrong_type_where_the_symbol_tells(program: Program) -> None:
    x = np.zeros(64)
    wanted = "block_sum<float, 64>: argument 0 (x) must be float32 (float*), got float64; convert it"
    assert message(lambda: program[SUM].run(1, 64, [x, x])) == wanted


def test_a_kernel_that_is_not_there(program: Program) -> None:
    assert message(lambda: program["saxy"]) == (
        f"{SOURCE} has no kernel 'saxy'; did you mean 'saxpy'? (it has {', '.join(program)})"
    )
    assert program.only.__self__ is program
    assert message(program.only).endswith("; say which one is to run")


def test_a_mistake_in_the_source() -> None:
    text = "__global__ void k(int *p) {\n  *p = q;\n}\n"
    assert message(lambda: cuda.compile(text, name="k.cu"), CompileError) == (
        'k.cu cannot be compiled:\nk.cu(2): error: identifier "q" is undefined\n    *p = q;\n         ^\n\n'
        '1 error detected in the compilation of "k.cu".'
    )


def test_what_cannot_be_compiled_at_all() -> None:
    assert message(lambda: cuda.load(SOURCE.with_name("no.cu"))) == (
        f"cannot read {SOURCE.with_name('no.cu')}: No such file or directory"
    )
    assert message(lambda: cuda.compile("", target="sm_8"), UnsupportedTargetError).startswith(
        "unknown target"
    )
    assert "must be text" in message(lambda: cuda.compile(SOURCE))  # type: ignore[arg-type]


def test_a_target_is_compiled_for() -> None:
    text = 'extern "C" __global__ void k(int *p) { *p = __CUDA_ARCH__ + YES; }'
    out = np.zeros(1, np.int32)
    for target, arch in (("sm_75", 750), ("sm_90a", 900)):
        cuda.compile(text, target=target, defines={"YES": True})["k"].run(1, 1, [out])
        assert out[0] == arch + 1


def test_without_the_package_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", missing)
    assert message(lambda: cuda.compile(""), BackendError) == (
        "ptxgen.frontends.cuda needs the package nvidia-cuda-nvrtc, which cannot be imported (No module "
        "named 'cuda.bindings.nvrtc'); install it: pip install nvidia-cuda-nvrtc, or all front ends: pip "
        "install 'ptxgen[frontends]'"
    )


# ---- libraries of headers -----------------------------------------------------------------------

LIBRARIES = {
    "cub/block/block_radix_sort.cuh": """
      typedef cub::BlockRadixSort<float, 128, 1> Sort;
      __shared__ typename Sort::TempStorage memory;
      float keys[1] = {x[threadIdx.x]};
      Sort(memory).SortDescending(keys);
      y[threadIdx.x] = keys[0];""",
    "cub/cub.cuh": """
      typedef cub::BlockExchange<float, 128, 1> Exchange;
      __shared__ typename Exchange::TempStorage memory;
      float values[1] = {x[threadIdx.x]};
      int to[1] = {127 - threadIdx.x};
      Exchange(memory).ScatterToBlocked(values, values, to);
      y[threadIdx.x] = cub::ThreadLoad<cub::LOAD_DEFAULT>(values);""",
    "cuda/barrier": """
      __shared__ float part[128];
      __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
      if (threadIdx.x == 0) init(&barrier, blockDim.x);
      __syncthreads();
      cuda::memcpy_async(&part[threadIdx.x], &x[threadIdx.x], sizeof(float), barrier);
      barrier.arrive_and_wait();
      y[threadIdx.x] = part[127 - threadIdx.x];""",
    "cuda/atomic": """
      cuda::atomic_ref<float, cuda::thread_scope_device> last(y[127 - threadIdx.x]);
      last.fetch_add(x[threadIdx.x], cuda::memory_order_relaxed);""",
}


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("header", LIBRARIES)
def test_libraries_of_headers(header: str, target: str) -> None:
    head = f'#include <{header}>\nextern "C" __global__ void k(const float *x, float *y) {{'
    body = f"{head}{LIBRARIES[header]}\n}}"
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    assert cuda.compile(body, target=target)["k"].run(1, 128, [x, y], schedule=["lockstep"]).clean
    assert np.array_equal(y, x[::-1])


def test_a_cub_that_takes_nvrtc_is_taken_as_it_is(tmp_path: Path) -> None:
    assert named_headers((str(tmp_path),)) == {}
    for name in ("cub/block/block_scan.cuh", "cub/device/device_scan.cuh", "cub/warp/warp_scan.cuh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    whole = tmp_path / "cub/cub.cuh"
    whole.write_text("#include <cub/config.cuh>")
    folders = (f"{tmp_path}/none", str(tmp_path))
    assert named_headers(folders) == {}
    named_headers.cache_clear()
    whole.write_text("#ifndef CCCL_DISABLE_NVRTC_COMPATIBILITY_CHECK\n#error no\n#endif")
    lines = ["#pragma once", "#include <cub/block/block_scan.cuh>", "#include <cub/warp/warp_scan.cuh>", ""]
    assert named_headers(folders) == {"cub/cub.cuh": "\n".join(lines)}
