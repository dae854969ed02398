"""`run` chooses the front end by the type of the kernel."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import message

import ptxgen as px
from ptxgen import Pointer, TensorMap, f32, u32
from ptxgen.errors import LaunchError, TrapError
from ptxgen.frontends import ptx
from ptxgen.frontends.dispatch import run

ROOT = Path(__file__).parents[2]
STENCILS = ROOT / "tests" / "ptx" / "nvcc" / "stencils.sm_80.ptx"
BUG = ROOT / "tests" / "ptx" / "bugs" / "missing_barrier.ptx"


@px.kernel(threads=32)
def scale(k: Any, X: Pointer[f32], n: u32, *, factor: float) -> None:
    i = k.block_id() * k.threads + k.thread_id()
    with k.when(i < n):
        X[i] = X[i] * factor


def ones(n: int = 40) -> Any:
    return np.ones(n, np.float32)


def test_a_kernel_function_and_its_static_parameters() -> None:
    x = ones()
    outcome = run(scale, 2, args=[x, 40], factor=3.0)
    assert (x == 3).all()
    assert (outcome.name, outcome.clean) == ("scale", True)
    assert ".maxntid 32" in outcome.ptx
    run(scale, 1, 64, {"n": 40, "X": x}, factor=2.0, target="sm_90", sanitize=False)
    assert (x == 6).all()


@px.kernel(threads=64)
def reverse(k: Any, X: Pointer[f32]) -> None:
    tile, t = k.shared("T", (1, 64)), k.thread_id()
    tile[0, t] = X[t]
    k.barrier()
    X[t] = tile[0, 63 - t]


def test_shared_memory_of_a_kernel_function_is_there() -> None:
    x = np.arange(64, dtype=np.float32)
    run(reverse, 1, args=[x])
    assert np.array_equal(x, np.arange(63, -1, -1))


def test_findings_of_a_kernel_function_are_at_its_lines() -> None:
    with pytest.raises(TrapError, match=r"\(test_dispatch.py:\d+\): thread .* 0 bytes after the end of X"):
        run(scale, 2, args=[ones(), 41], factor=3.0)
    with pytest.raises(LaunchError, match="X must be float32"):
        run(scale, 2, args=[np.ones(40), 40], factor=3.0)
    with pytest.raises(TypeError, match="factor"):
        run(scale, 2, args=[ones(), 40])


def test_files_and_programs() -> None:
    x, total = np.arange(256, dtype=np.float32), np.zeros(1, np.float32)
    assert not run(BUG, 1, 256, [x, total], raise_on_report=False).clean
    for kernel, how in (
        (STENCILS, {"entry": "saxpy"}),
        (ptx.load(STENCILS), {"entry": "saxpy"}),
        (ptx.load(STENCILS)["saxpy"], {}),
    ):
        y = ones()
        run(kernel, 2, 32, [2, ones(), y, 40], **how)
        assert (y == 3).all()


def test_a_source_is_compiled(nvrtc: None, tmp_path: Path) -> None:
    assert nvrtc is None
    (tmp_path / "value.h").write_text("#define VALUE 7 + MORE\n")
    (tmp_path / "k.cu").write_text('#include "value.h"\n__global__ void k(int *p) { *p = VALUE; }\n')
    p = np.zeros(1, np.int32)
    assert run(str(tmp_path / "k.cu"), 1, 1, [p], defines={"MORE": 3}, target="sm_90").clean
    assert p[0] == 10


@pytest.mark.slow
def test_functions_of_triton_and_numba(triton: Any, numba: Any) -> None:
    assert triton
    assert numba
    from frontends import numba_kernels, triton_kernels

    x, bins = np.zeros(64, np.int32), np.zeros(8, np.int32)
    run(triton_kernels.histogram, 1, args=[x, bins, 64], constexprs={"BLOCK": 64})
    assert bins[0] == 64
    for kernel in (numba_kernels.saxpy, numba_kernels.saxpy.py_func):
        y = ones()
        run(kernel, 2, 32, [2.0, ones(), y])
        assert (y == 3).all()
    for kernel, block, wanted in (
        (
            triton_kernels.histogram,
            64,
            "run: Triton chooses the block by num_warps, got block=64; leave it out",
        ),
        (numba_kernels.saxpy, None, "run: block must be given, the threads of a CTA: block=256"),
    ):
        assert message(functools.partial(run, kernel, 1, block, [x, x, 64])) == wanted


@pytest.mark.parametrize(
    ("kernel", "how", "wanted"),
    [
        ("a.cubin", {}, "run: the file must be a .ptx or .cu file, got 'a.cubin'"),
        (scale, {"entry": "scale"}, "run: entry is for files and programs, and <kernel scale(X, n)> is one "
         "kernel; leave it out"),
        (3, {}, "run: the kernel must be the path of a .ptx or .cu file, a kernel of a program, a "
         "@triton.jit function, a @cuda.jit kernel of Numba or a @ptxgen.kernel function, got 3"),
    ],
)  # fmt: skip
def test_what_is_no_kernel(kernel: Any, how: dict[str, Any], wanted: str) -> None:
    assert message(lambda: run(kernel, 1, 1, [], **how)) == wanted


@px.kernel(threads=64, target="sm_90a")
def moved(k: Any, A: TensorMap[f32], X: Pointer[f32]) -> None:
    producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
    ring = k.tma.ring(1, producer, consumer, a=((4, 32), f32))
    with producer, ring.fill() as stage:
        k.tma.load(stage.a, A[0, 0])
    with consumer, ring.drain() as stage:
        for row in range(4):
            X[32 * row + k.signed(consumer.thread)] = stage.a[row, consumer.thread]


def test_a_kernel_function_is_built_for_its_own_target_and_takes_arrays_for_tensor_maps() -> None:
    a, x = np.arange(128, dtype=np.float32).reshape(4, 32), ones(128)
    outcome = run(moved, 1, args=[a, x])
    assert ".target sm_90a" in outcome.ptx
    assert x.tolist() == a.reshape(-1).tolist()
