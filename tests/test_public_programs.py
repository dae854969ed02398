"""Programs that others have written, and libraries that launch kernels, without a GPU.

Packages and sources that are not there are skipped by name; `PTXGEN_PUBLIC_SOURCES` names the folder with
the checkout `llm.c`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvcc_programs import PLAIN, PROGRAMS, TARGET, Compile, compiler, missing

from ptxgen.commands import run_program

HOSTS = PROGRAMS / "hosts"
SOURCES = "PTXGEN_PUBLIC_SOURCES"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compile]:
    """Compile a program with nvcc: the path of the executable."""
    if why := missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("public")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTXGEN_CACHE_DIR", str(folder / "cache"))
        yield compiler(folder)


# --------------------------------------------------------------------------------------- CUDA C++


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("thrust_calls", ("-std=c++17",)),
        ("cub_calls", ("-std=c++17",)),
        ("groups", ("-std=c++17",)),
        ("threads", ()),
        ("threads", ("-default-stream=per-thread",)),
    ],
)
def test_a_program_with_libraries_of_cuda_finds_its_results_right(
    name: str, options: tuple[str, ...], made: Compile, capfd: pytest.CaptureFixture[str]
) -> None:
    program = made(name, TARGET, PLAIN, "-lineinfo", *options)
    assert run_program.main([str(program)]) == 0, capfd.readouterr()
    assert capfd.readouterr().out == "wrong 0\n"


# The programs of `dev/cuda` compare kernels, by number, with loops on the host. What they ask of cuBLAS is
# its name: those that multiply with it are left out.
CUBLAS = """
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
typedef void *cublasHandle_t, *cublasLtHandle_t;
typedef int cublasStatus_t, cublasMath_t;
enum cublasComputeType_t { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 };
enum { CUBLAS_STATUS_SUCCESS, CUBLAS_TF32_TENSOR_OP_MATH, CUBLAS_DEFAULT_MATH };
static inline int cublasCreate(void *) { return 0; }
static inline int cublasDestroy(void *) { return 0; }
static inline int cublasSetMathMode(void *, int) { return 0; }
static inline int cublasLtCreate(void *) { return 0; }
static inline int cublasLtDestroy(void *) { return 0; }
"""
SIZES = {"B": 2, "T": 64, "C": 256, "V": 700, "OC": 320}  # those of the programs take an hour each
# By program: its kernels, and those among them with a race. Kernel 4 of softmax writes sums over the maximum,
# which other warps may not have read; kernel 7 reads its last result again, which it ignores.
LLM_C = {
    "encoder_forward": ("123", ""),
    "encoder_backward": ("12", ""),
    "gelu_forward": ("12", ""),
    "gelu_backward": ("12", ""),
    "residual_forward": ("12", ""),
    "layernorm_forward": ("12345", ""),
    "adamw": ("12", ""),
    "softmax_forward": ("12345678", "47"),
    "crossentropy_forward": ("1", ""),
    "crossentropy_softmax_backward": ("1", ""),
    "fused_residual_forward": ("123456", ""),
    "matmul_backward_bias": ("1234", ""),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", LLM_C)
def test_a_program_of_llm_c_finds_its_results_right(
    name: str, made: Compile, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = Path(os.environ.get(SOURCES, "")) / "llm.c" / "dev" / "cuda"
    if SOURCES not in os.environ or not folder.is_dir():
        pytest.skip(f"{SOURCES} names no folder with a checkout of llm.c")
    text = (folder / f"{name}.cu").read_text()
    for size, smaller in SIZES.items():
        text = re.sub(rf"\bint {size} = [^;]+;", f"int {size} = {smaller};", text)
    text = re.sub(r"int repeat_times = \d+", "int repeat_times = 1", text)
    text = re.sub(r"(block_sizes\[\] = )\{.*?\}", r"\1{32, 128}", text)
    (tmp_path / f"{name}.cu").write_text(text)
    for header in ("cublas_v2.h", "cublasLt.h"):
        (tmp_path / header).write_text(CUBLAS if header == "cublas_v2.h" else "#include <cublas_v2.h>")
    options = ("-std=c++17", f"-I{tmp_path}", f"-I{folder}", TARGET, PLAIN)
    program = made(tmp_path / f"{name}.cu", *options)
    kernels, racy = LLM_C[name]
    for kernel in kernels:
        code = run_program.main(["--sanitize", str(program), kernel])
        out, err = capfd.readouterr()
        assert "esults match" in out, (kernel, out, err)
        assert (code, "race" in err) == (int(kernel in racy), kernel in racy), (kernel, err)


# ----------------------------------------------------------------------------------------- Python


def host(package: str) -> list[str]:
    """The command that runs the script of a package. Skips the test without the package."""
    if not all(importlib.util.find_spec(name) for name in (package.partition(".")[0], package)):
        pytest.skip(f"{package} is not installed")
    return [sys.executable, str(HOSTS / f"with_{package.replace('.', '_')}.py")]


@pytest.mark.parametrize(
    ("package", "device"),
    [
        pytest.param("cuda.core", "", marks=pytest.mark.slow),
        pytest.param("numba_cuda", "", marks=pytest.mark.nightly),
        pytest.param("tinygrad", "CUDA", marks=pytest.mark.nightly),
        pytest.param("tinygrad", "CUDA:PTX", marks=pytest.mark.nightly),
    ],
)
def test_a_library_of_python_runs_a_kernel(
    package: str, device: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = host(package)
    monkeypatch.setenv("DEV", device)
    monkeypatch.setenv("CACHELEVEL", "0")  # of tinygrad, which keeps kernels on disk
    assert run_program.main(command) == 0, capfd.readouterr()


@pytest.mark.nightly
@pytest.mark.parametrize(("package", "library"), [("warp", "warp.so"), ("cupy", "runtime.cpython")])
def test_a_library_with_the_runtime_linked_into_it_is_named(
    package: str, library: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_program.main(host(package)) == 1
    err = capfd.readouterr().err.splitlines()[-1]
    assert library in err
    assert err.endswith(
        "asks the driver for a table that NVIDIA does not document (cuGetExportTable), as the CUDA runtime "
        "does when it is linked into a program or a library; one that loads libcudart.so.13 runs here (nvcc "
        "-cudart shared)"
    )
