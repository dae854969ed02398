"""A kernel of Warp."""

import numpy as np
import warp as wp

wp.init()


@wp.kernel
def add(x: wp.array(dtype=float), y: wp.array(dtype=float)):
    i = wp.tid()
    y[i] = x[i] + y[i]


x = np.arange(1000, dtype=np.float32)
with wp.ScopedDevice("cuda:0"):
    a, b = wp.array(x), wp.array(x)
    wp.launch(add, dim=1000, inputs=[a, b])
    assert np.array_equal(b.numpy(), 2 * x)
