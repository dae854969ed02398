"""A kernel of numba-cuda."""

import numpy as np
from numba import cuda


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


x = np.arange(1000, dtype=np.float32)
out = cuda.device_array_like(x)
add[8, 128](cuda.to_device(x), cuda.to_device(x), out)
assert np.array_equal(out.copy_to_host(), 2 * x)
