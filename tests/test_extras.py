"""Each extra of the package, installed alone in an environment of its own, does what the documentation says.

The packages come from the index that pip is set up for; without one the tests are skipped.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

PTX = """
import numpy as np
from ptxgen import f32
import ptxgen as px
@px.kernel(threads=32)
def twice(k, X: px.Pointer[f32]):
    i = k.thread_id()
    X[i] = X[i] * 2.0
text = twice.ptx
"""
FRONTENDS = '''
import numpy as np
from ptxgen.frontends import cuda, cute, numba, triton
SUM = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/cub.cuh>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda/atomic>
#include <mma.h>
using namespace nvcuda;
__global__ void sum(const int *x, int *out) {
  using Reduce = cub::BlockReduce<int, 128>;
  __shared__ typename Reduce::TempStorage room;
  int all = Reduce(room).Sum(x[threadIdx.x]);
  if (threadIdx.x == 0) cuda::atomic_ref<int, cuda::thread_scope_device>(*out).fetch_add(all);
}
__global__ void tiles(const int *x, int *out) {
  namespace cg = cooperative_groups;
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  out[threadIdx.x] = cg::reduce(warp, x[threadIdx.x], cg::plus<int>());
}
__global__ void add(__half *x, __nv_bfloat16 *y) {
  x[threadIdx.x] = __hadd(x[threadIdx.x], __float2half(1.0f));
  y[threadIdx.x] = __hadd(y[threadIdx.x], __float2bfloat16(1.0f));
}
__global__ void product(const __half *a, float *c) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> A;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> B;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> C;
  wmma::fill_fragment(C, 0.0f);
  wmma::load_matrix_sync(A, a, 16);
  wmma::load_matrix_sync(B, a, 16);
  wmma::mma_sync(C, A, B, C);
  wmma::store_matrix_sync(c, C, 16, wmma::mem_row_major);
}
"""
for target in ("sm_80", "sm_90a"):
    program = cuda.compile(SUM, target=target)
    x, out = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    program["sum"].run(1, 128, [x, out])
    assert out[0] == x.sum()
    program["tiles"].run(1, 128, [x, out])
    assert out[32] == x[32:64].sum()
    half = np.zeros(32, np.float16)
    import ml_dtypes
    brain = np.zeros(32, ml_dtypes.bfloat16)
    program["add"].run(1, 32, [half, brain])
    assert half[5] == brain[5] == 1
    a, c = np.eye(16, dtype=np.float16), np.zeros((16, 16), np.float32)
    program["product"].run(1, 32, [a, c])
    assert (c == a).all()

import cutlass
import triton as the_triton
import triton.language as tl
from numba import cuda as numba_cuda
from cutlass.cute.runtime import from_dlpack

@the_triton.jit
def plus(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i) + 1)

@numba_cuda.jit
def numba_plus(x):
    x[numba_cuda.grid(1)] += 1

@cutlass.cute.kernel
def cute_kernel(x: cutlass.cute.Tensor):
    i, _, _ = cutlass.cute.arch.thread_idx()
    x[i] = x[i] + 1.0

@cutlass.cute.jit
def cute_plus(x: cutlass.cute.Tensor):
    cute_kernel(x).launch(grid=(1, 1, 1), block=(32, 1, 1))

x = np.zeros(32, np.float32)
triton.run(plus, 1, [x], {"BLOCK": 32}, num_warps=1)
numba.run(numba_plus, 1, 32, [x])
cute.compile(cute_plus, from_dlpack(x))["cute_kernel"].run(1, args=[(x,)])
assert (x == 3).all()
import zstandard
'''
COMPILED = """
import numpy as np
from flash import AttentionKernel, attention
q = np.ones((1, 1, 4, 16), np.float32)
assert np.allclose(attention(q, q, q, backend="compiled"), q)
"""
FRAMEWORKS = """
import flash.adapters.jax, flash.adapters.torch, torch
q = torch.ones(1, 1, 4, 16)
from flash.adapters.torch import scaled_dot_product_attention
assert torch.allclose(scaled_dot_product_attention(q, q, q), q)
import flash.adapters.transformers
"""
ASSEMBLE = (
    PTX
    + """
from ptxgen.runtime.assembler import find_assembler
assert find_assembler(target="sm_80").assemble(text, "sm_80").kernels
"""
)
SCRIPTS = {
    "test": ASSEMBLE + "import hypothesis, jsonschema, onnx, pytest, xdist\n",
    "dev": ASSEMBLE + "import build, importlinter, mypy, ruff\n",
    "frameworks": FRAMEWORKS,
    "compiled": COMPILED,
    "frontends": FRONTENDS,
    "types": "import basedpyright\n",
    "browser": "import PIL, fontTools, selenium\n",
    "notebook": "import ipykernel, nbclient\nfrom ptxgen.notebook import load_ipython_extension\n",
    "bench": PTX + "import matplotlib, psutil, rich\nfrom ptxgen.runtime.sass import find_disassembler\n"
    "assert find_disassembler() is not None\n",
}


def test_each_extra_has_a_script() -> None:
    assert set(SCRIPTS) == set(EXTRAS)


def test_packages_of_one_major_version_of_cuda_are_bound_to_it() -> None:
    needs = [need.partition(";")[0] for need in EXTRAS["frontends"]]
    assert all(re.search(r"<|==", need) for need in needs if not need.startswith("zstandard"))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged, so that building leaves nothing in the tree."""
    folder = tmp_path_factory.mktemp("extras") / "checkout"
    folder.mkdir()
    pip = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder.parent)),
        "jinja2",
    ]
    if subprocess.run(pip, capture_output=True, check=False).returncode:
        pytest.skip("pip reaches no index of packages")
    for name in ("ptxgen", "flash", "templates", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(folder)], check=True)
    (folder / "tools").mkdir()
    subprocess.run(["cp", "-r", str(ROOT / "tools" / "packaging"), str(folder / "tools")], check=True)
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("extra", SCRIPTS)
def test_an_extra_installed_alone_does_what_is_promised(extra: str, checkout: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    install = [python, "-m", "pip", "install", "--quiet", f"{checkout}[{extra}]"]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    script = tmp_path / "script.py"
    script.write_text(SCRIPTS[extra])
    ran = subprocess.run([python, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stdout + ran.stderr
