"""The kernel for Hopper with three warpgroups, which weighs scores before it knows the largest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from conformance import KINDS, arrays_of, check
from dsl.kernels import computed
from kernel_runs import run_forward

from flash.device.polynomial_exp2 import polynomial_exp2

pytestmark = [pytest.mark.grid, pytest.mark.judged]

config_of = KINDS["wgmma of three"].config

Arrays = tuple[np.ndarray[Any, Any], ...]


def test_sums_above_the_slack_of_weights_below_it_are_right() -> None:
    # Each tile's scores are larger by 6 in units of log2: no weight is above 2^8 before its sum is.
    config = config_of(softmax_scale=math.log(2))
    q, k, v = arrays_of(config, 192, 80)
    q[:], k[:] = 0, 0
    q[..., 0], k[..., 0] = 1, 6.0 * np.arange(80)[::-1] // 16
    check(config, (q, k, v))


def test_maxima_are_taken_of_the_first_tile_only_unless_scores_grow() -> None:
    config = config_of()
    shuffles = []
    for seq_k, growth in ((32, 0), (96, 0), (96, 9)):
        q, k, v = (np.zeros_like(x) for x in arrays_of(config, 192, seq_k))
        q[..., 0], k[..., 0] = 1, 4 * growth * (np.arange(seq_k)[::-1] // 16)
        counters = run_forward(config, (q, k, v), profile=True)[2].counters
        shuffles.append(sum(n for name, n in counters.by_opcode.items() if name.startswith("shfl")))
    assert shuffles[0] == shuffles[1] < shuffles[2]


def test_the_polynomial_is_as_accurate_as_the_instruction() -> None:
    values = np.random.default_rng(1).uniform(-126, 127.5, 1024).astype(np.float32)
    values[500:] = np.random.default_rng(2).uniform(-1, 1, 524)
    odd = [-np.inf, -3e38, -1000, -127, -126, -0.5, -0.0, 0, 1e-40, 0.5, 127, 128, 300, np.inf, np.nan]
    values[: len(odd)] = odd
    result = computed(polynomial_exp2, values, threads=len(values))
    wanted = np.exp2(np.clip(values.astype(np.float64), -1000, 1000))
    np.testing.assert_array_equal(result[values < -126.5], 0)
    np.testing.assert_array_equal(result[values >= 128], np.inf)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(values))
    ordinary = (values >= -126) & (values < 128)
    error = np.abs(result[ordinary] / wanted[ordinary] - 1)
    assert 2.0**-24 < error.max() <= 2.0**-22.4
