"""exp2 by a polynomial, of pairs of f32."""

from __future__ import annotations

import numpy as np
from dsl.kernels import THREADS, builder, computed, launch

from flash.device.polynomial_exp2 import polynomial_exp2, polynomial_exp2_of_pair
from ptxgen.dsl import KernelBuilder, Value
from ptxgen.types import f32, u64


def test_polynomials_of_pairs_are_those_of_values() -> None:
    def of_pair(k: KernelBuilder, x: Value) -> Value:
        low, high = polynomial_exp2_of_pair(k, k.pair(x, -x)).halves()
        return k.selp(low, high, k.thread_id() % 2 == 0)

    k = builder("polynomial", on="sm_100a")
    x, y = k.pointer("x", f32), k.pointer("y", f32)
    offset = k.cvt(k.thread_id() * 4, dtype=u64)
    k.store(y.plus(offset), of_pair(k, k.load(x.plus(offset))))
    values = np.linspace(-127.5, 127.5, THREADS).astype(np.float32)
    values[:4] = np.nan, np.inf, -np.inf, 0
    values[2] = -np.inf  # of which the lower half is taken
    values[1] = np.inf  # of which the upper half is taken
    result = np.zeros_like(values)
    launch(k, values, result)
    signs = np.where(np.arange(THREADS) % 2, -1, 1).astype(np.float32)
    np.testing.assert_array_equal(result, computed(polynomial_exp2, values * signs))
