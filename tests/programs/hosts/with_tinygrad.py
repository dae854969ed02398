"""Kernels that tinygrad makes, for the device that DEV names."""

import numpy as np
from tinygrad import Tensor

x = np.arange(64, dtype=np.float32).reshape(8, 8)
product = (Tensor(x) @ Tensor(x)).relu().sum(axis=0).numpy()
assert np.array_equal(product, (x @ x).sum(axis=0))
