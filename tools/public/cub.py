"""Collectives of CUB, from the headers of the package nvidia-cuda-cccl, compiled by NVRTC; kernels that
call them as CUB's documentation does.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ptxgen.frontends import cuda
from tools.public.cuda_text import changed, random
from tools.public.rows import REPORTED, Source
from tools.public.trial import Trial

CUB: Final = Source("CUB", package="nvidia-cuda-cccl", needs=("nvidia-cuda-nvrtc",))
_THREADS, _ITEMS = 64, 4
_N: Final = _THREADS * _ITEMS - 10  # a tail
_KERNELS: Final = """\
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_merge_sort.cuh>
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_store.cuh>
#include <cub/warp/warp_reduce.cuh>

constexpr int THREADS = 64, ITEMS = 4;
using Load = cub::BlockLoad<float, THREADS, ITEMS, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
using Store = cub::BlockStore<float, THREADS, ITEMS, cub::BLOCK_STORE_WARP_TRANSPOSE>;
using Reduce = cub::BlockReduce<float, THREADS>;
using Scan = cub::BlockScan<float, THREADS>;

__global__ void reduce(const float *x, float *out, int n) {
  __shared__ union { Load::TempStorage load; Reduce::TempStorage reduce; } storage;
  float items[ITEMS];
  Load(storage.load).Load(x, items, n, 0.0f);
  __syncthreads();  // the storage is used again
  float total = Reduce(storage.reduce).Sum(items);
  if (threadIdx.x == 0) *out = total;
}

__global__ void scan(const float *x, float *out, int n) {
  __shared__ union { Load::TempStorage load; Scan::TempStorage scan; Store::TempStorage store; } storage;
  float items[ITEMS];
  Load(storage.load).Load(x, items, n);
  __syncthreads();
  Scan(storage.scan).InclusiveSum(items, items);
  __syncthreads();
  Store(storage.store).Store(out, items, n);
}

__global__ void radix_sort(const float *x, float *out, int *order, int n) {
  using Sort = cub::BlockRadixSort<float, THREADS, ITEMS, int>;
  __shared__ Sort::TempStorage storage;
  float keys[ITEMS];
  int values[ITEMS];
  for (int i = 0; i < ITEMS; ++i) {
    int at = threadIdx.x * ITEMS + i;
    keys[i] = at < n ? x[at] : 3.0e38f;
    values[i] = at;
  }
  Sort(storage).Sort(keys, values);
  for (int i = 0; i < ITEMS; ++i) {
    int at = threadIdx.x * ITEMS + i;
    if (at < n) out[at] = keys[i], order[at] = values[i];
  }
}

struct Less { __device__ bool operator()(float a, float b) const { return a < b; } };

__global__ void merge_sort(const float *x, float *out, int n) {
  using Sort = cub::BlockMergeSort<float, THREADS, ITEMS>;
  __shared__ Sort::TempStorage storage;
  float keys[ITEMS];
  for (int i = 0; i < ITEMS; ++i) {
    int at = threadIdx.x * ITEMS + i;
    keys[i] = at < n ? x[at] : 3.0e38f;
  }
  Sort(storage).Sort(keys, Less{});
  for (int i = 0; i < ITEMS; ++i) {
    int at = threadIdx.x * ITEMS + i;
    if (at < n) out[at] = keys[i];
  }
}

__global__ void histogram(const unsigned char *x, unsigned int *out) {
  using Histogram = cub::BlockHistogram<unsigned char, THREADS, ITEMS, 16, cub::BLOCK_HISTO_SORT>;
  __shared__ Histogram::TempStorage storage;
  __shared__ unsigned int counts[16];
  unsigned char items[ITEMS];
  for (int i = 0; i < ITEMS; ++i) items[i] = x[threadIdx.x * ITEMS + i];
  Histogram(storage).Histogram(items, counts);
  __syncthreads();
  if (threadIdx.x < 16) out[threadIdx.x] = counts[threadIdx.x];
}

__global__ void warp_reduce(const float *x, float *out, int n) {
  using Warp = cub::WarpReduce<float>;
  __shared__ Warp::TempStorage storage[THREADS / 32];
  int at = blockIdx.x * THREADS + threadIdx.x, warp = threadIdx.x / 32;
  float total = Warp(storage[warp]).Sum(at < n ? x[at] : 0.0f);
  if (threadIdx.x % 32 == 0) out[blockIdx.x * (THREADS / 32) + warp] = total;
}
"""


def _launch(trial: Trial, kernel: str, args: list[Any], text: str = _KERNELS, grid: int = 1) -> None:
    trial.launch(cuda.compile(text, name="cub.cu")[kernel], grid, _THREADS, args)


@CUB.row()
def block_reduce(trial: Trial) -> None:
    """`BlockLoad` and `BlockReduce` of a tail, in one storage."""
    x, out = random(_N), np.zeros(1, np.float32)
    _launch(trial, "reduce", [x, out, _N])
    trial.close("the sum", out, [x.sum(dtype=np.float64)], 1e-4)


@CUB.row(REPORTED, "without the barrier before the storage is used again", says="race: shared", twin=True)
def block_reduce_without_barrier(trial: Trial) -> None:
    """`block_reduce` with a missing `__syncthreads()`."""
    x, out = random(_N), np.zeros(1, np.float32)
    text = changed(_KERNELS, "__syncthreads();  // the storage is used again\n", "\n")
    _launch(trial, "reduce", [x, out, _N], text)
    trial.close("the sum", out, [x.sum(dtype=np.float64)], 1e-4)


@CUB.row()
def block_scan(trial: Trial) -> None:
    """`BlockLoad`, `BlockScan` and `BlockStore` of a tail, which is never written."""
    x, out = random(_N), np.zeros(_N, np.float32)
    _launch(trial, "scan", [x, out, _N])
    trial.close("running sums", out, x.cumsum(dtype=np.float64), 1e-5)


@CUB.row()
def block_radix_sort(trial: Trial) -> None:
    """`BlockRadixSort` of keys and values."""
    x, out, order = random(_N), np.zeros(_N, np.float32), np.zeros(_N, np.int32)
    _launch(trial, "radix_sort", [x, out, order, _N])
    trial.close("keys", out, np.sort(x), 1e-9)
    trial.close("values", order, x.argsort(kind="stable"), 1e-9)


@CUB.row()
def block_merge_sort(trial: Trial) -> None:
    """`BlockMergeSort`."""
    x, out = random(_N), np.zeros(_N, np.float32)
    _launch(trial, "merge_sort", [x, out, _N])
    trial.close("keys", out, np.sort(x), 1e-9)


@CUB.row()
def block_histogram(trial: Trial) -> None:
    """`BlockHistogram`, which sorts."""
    x = np.random.default_rng(1).integers(0, 16, _THREADS * _ITEMS).astype(np.uint8)
    out = np.zeros(16, np.uint32)
    _launch(trial, "histogram", [x, out])
    trial.close("counts", out, np.bincount(x, minlength=16), 1e-9)


@CUB.row()
def warp_reduce(trial: Trial) -> None:
    """`WarpReduce` of each warp."""
    x, out = random(110), np.zeros(4, np.float32)
    _launch(trial, "warp_reduce", [x, out, 110], grid=2)
    padded = np.concatenate([x, np.zeros(18, np.float32)]).reshape(4, 32)
    trial.close("sums", out, padded.sum(1, dtype=np.float64), 1e-5)
