"""The kernel for Hopper with three warpgroups, which weighs scores before it knows the largest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from conformance import KINDS, arrays_of, check
from dsl.kernels import computed
from kernel_runs import run_forward

from flash.contract.catalogue import build
from flash.device.polynomial_exp2 import polynomial_exp2
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference

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


def test_nan_and_infinity_reach_the_rows_that_see_them_and_no_others() -> None:
    config = config_of(40, causal=True)
    q, k, v = arrays_of(config, 100, 90)
    q[..., 7, 0], q[..., 20, 1], k[..., -30, 3], k[..., -60, 2] = np.nan, np.inf, np.nan, -np.inf
    v[..., -20, 3], v[..., -5, 7], v[..., 4, 5] = np.nan, np.inf, -np.inf
    out, _, _ = run_forward(config, (q, k, v), sanitize=True)
    with np.errstate(invalid="ignore"):
        wanted, _ = attention_reference(q, k, v, causal=True)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(wanted))
    odd = ~np.isfinite(wanted)
    np.testing.assert_array_equal(out[odd].astype(np.float64), wanted[odd])


@pytest.mark.slow
def test_every_access_and_barrier_is_proved() -> None:
    config = AttentionConfig(64, dtype="bf16", target="sm_90a", causal=True)
    assert config.kernel().tiling.block_q == 192
    proofs = build(config.kernel()).proofs
    assert proofs.shared.complete, proofs.shared.report()
    assert proofs.global_memory is not None
    assert proofs.global_memory.complete, proofs.global_memory.report()


def test_the_polynomial_is_as_accurate_as_the_instruction() -> None:
    values = np.random.default_rng(1).uniform(-126, 127.5, 1024).astype(np.float32)
    values[500:] = np.random.default_rng(2).uniform(-1, 1, 524)
    odd = [-np.inf, -3e38, -1000, -127, -126, -0.5, -0.0, 0, 1e-40, 0.5, 127, 128, 300, np.inf, np.nan]
    values[: len(odd)] = odd
    found = computed(polynomial_exp2, values, threads=len(values))
    wanted = np.exp2(np.clip(values.astype(np.float64), -1000, 1000))
    np.testing.assert_array_equal(found[values < -126.5], 0)
    np.testing.assert_array_equal(found[values >= 128], np.inf)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    ordinary = (values >= -126) & (values < 128)
    error = np.abs(found[ordinary] / wanted[ordinary] - 1)
    assert 2.0**-24 < error.max() <= 2.0**-22.4
