"""A kernel of CuPy, from CUDA C++."""

import cupy as cp
import numpy as np

SOURCE = """
extern "C" __global__ void add(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}
"""
add = cp.RawKernel(SOURCE, "add")
x, y = cp.arange(1000, dtype=cp.float32), cp.zeros(1000, cp.float32)
add((8,), (128,), (x, y, np.int32(1000)))
assert np.array_equal(cp.asnumpy(y), np.arange(1000, dtype=np.float32))
