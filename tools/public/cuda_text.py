"""Kernels cut from files of CUDA C++, without the host code that only a full toolkit compiles."""

from __future__ import annotations

import functools
import importlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from ptxgen.errors import CompileError
from ptxgen.frontends import cuda, ptx
from ptxgen.frontends.program import Program, ProgramKernel

# What NVRTC has no headers for, in the words of the C library.
HOST_WORDS: Final = """\
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda/std/cfloat>
#include <cuda/std/cstdint>
#include <cuda/std/type_traits>
using namespace cuda::std;
namespace std { using namespace cuda::std; }
#define INFINITY __int_as_float(0x7f800000)
#undef assert
#define assert(condition) ((condition) ? (void)0 : __trap())
"""


# What host code takes from libraries, as far as the compiler asks for it.
_STUBS: Final = {
    "cublas_v2.h": """\
#pragma once
#include <cuda_runtime.h>
typedef struct cublasContext *cublasHandle_t;
typedef int cublasStatus_t;
typedef int cublasComputeType_t;
enum { CUBLAS_STATUS_SUCCESS, CUBLAS_TF32_TENSOR_OP_MATH, CUBLAS_COMPUTE_16F, CUBLAS_COMPUTE_32F };
const char *cublasGetStatusString(int);
int cublasCreate(cublasHandle_t *);
int cublasCreate_v2(cublasHandle_t *);
int cublasDestroy(cublasHandle_t);
int cublasSetMathMode(cublasHandle_t, int);
int cublasSetStream(cublasHandle_t, cudaStream_t);
int cublasSetWorkspace(cublasHandle_t, void *, size_t);
""",
    "cublasLt.h": """\
#pragma once
typedef struct cublasLtContext *cublasLtHandle_t;
int cublasLtCreate(cublasLtHandle_t *);
typedef void *cublasLtMatmulDesc_t;
typedef void *cublasLtMatrixLayout_t;
""",
}


def between(path: Path, first: str, end: str = "") -> str:
    """The lines of a file from the one that has `first` on, up to the next one that has `end`, or to the
    last; compiler messages have the file's name and line numbers.
    """
    lines = path.read_text().splitlines()
    begin = next(n for n, line in enumerate(lines) if first in line)
    stop = next((n for n in range(begin + 1, len(lines)) if end in lines[n]), None) if end else None
    if end and stop is None:
        raise LookupError(f"{path.name} has no line with {end!r} after that with {first!r}")
    return "\n".join([f'#line {begin + 1} "{path}"', *lines[begin:stop], ""])


def changed(text: str, before: str, after: str) -> str:
    """The text with its only `before` replaced: how a kernel is made wrong on purpose."""
    if text.count(before) != 1:
        raise LookupError(f"{before!r} must occur once in the kernel, and occurs {text.count(before)} times")
    return text.replace(before, after)


def compiled(text: str, **options: Any) -> Program:
    """Compile CUDA C++ that uses names of the C library; `options` are those of `cuda.compile`."""
    return cuda.compile(HOST_WORDS + text, name="public.cu", **options)


@functools.cache
def by_nvcc(text: str, include: tuple[Path, ...], kernel: str, target: str = "sm_80") -> ProgramKernel:
    """A kernel of a text with host code, which may be an instance of a template. `include` are folders;
    the headers of libraries that only host code needs are stubs.

    Raises `CompileError` with what nvcc says.
    """
    # An address that is taken makes the compiler emit the kernel.
    asked = f"\nconst void *const kept = reinterpret_cast<const void *>({kernel});\n"
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "public.cu"), Path(folder, "public.ptx")
        source.write_text(text + asked)
        for name, words in _STUBS.items():
            Path(folder, name).write_text(words)
        folders = [f"-I{path}" for path in (*include, folder)]
        flags = ["-ptx", "-std=c++17", "-lineinfo", "-w", f"-arch={target}", *folders]
        done = subprocess.run(
            [_nvcc(), *flags, "-o", str(out), str(source)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CompileError(f"nvcc cannot compile {kernel}:\n{done.stderr}")
        program = ptx.load(out.read_text())
    bare = kernel.partition("<")[0].rpartition("::")[2]
    return next(program[name] for name in program if name.partition("<")[0].endswith(bare))


def why_no_nvcc() -> str:
    """Why nvcc cannot be run; "" if it can."""
    try:
        subprocess.run([_nvcc(), "--version"], capture_output=True, check=True)
    except (OSError, subprocess.SubprocessError, LookupError) as error:
        return f"nvcc cannot be run: {error}"
    return "" if shutil.which("g++") else "nvcc needs g++, which is not on PATH"


def _nvcc() -> str:
    """The nvcc of the package nvidia-cuda-nvcc, or that of PATH. Raises `LookupError`."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        compiler = pathfinder.find_nvidia_binary_utility("nvcc")
    except ImportError:
        compiler = None
    compiler = compiler or shutil.which("nvcc")
    if compiler is None:
        raise LookupError("it is neither in a package nor on PATH")
    return str(compiler)


def random(*shape: int, seed: int = 1) -> np.ndarray[Any, Any]:
    """Normally distributed float32."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)
