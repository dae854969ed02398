"""The forward kernel for Blackwell with Q, K and V of fp8: its own PTX, run on the interpreter with the
sanitizers on, against float64. What it has in common with other kernels is tested by their table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance import KINDS, SCALES, arrays_of, check, operands_of
from kernel_runs import nightly, run_forward
from sequence_runs import check as check_sequences
from sequence_runs import config_of as config_of_sequences

from flash import AttentionKernel
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference, scaled_numbers

pytestmark = [pytest.mark.grid, pytest.mark.judged]

E4M3, IN_BLOCKS = "fp8 e4m3 on sm_100a", "fp8 in blocks on sm_100a"
config_of = KINDS[IN_BLOCKS].config


def scaled_blocks(values: list[float]) -> dict[str, Any]:
    """Scales of one head with one block of queries, of which those of V are given."""
    ones = np.ones((1, 1, len(values)), np.float32)
    return {"q_scale": ones[..., :1], "k_scale": ones, "v_scale": np.array([[values]], np.float32)}


@pytest.mark.parametrize("tile", [32, nightly(64)])
@pytest.mark.parametrize("values", [[0.5, 3.0, -2.0, 0.25], [0.0, 1.0, 0.0, 2.0], [-1e-9, 1e9, -1.0, 1e-12]])
def test_scales_of_v_may_have_any_sign_and_size(values: list[float], tile: int) -> None:
    config = config_of(tile=tile, causal=True)
    arrays = arrays_of(config, 64, 250)
    check(config, arrays, scaled_blocks(values))


def test_nothing_of_a_tile_is_lost_beside_one_whose_scale_is_2_to_the_20_times_its_own() -> None:
    config = config_of(softmax_scale=1.0)
    q, k, v = (np.zeros((1, 1, rows, 64), config.element.numpy) for rows in (64, 192, 192))
    q[0, 0, :, 0] = 1
    k[0, 0, 10, 0] = k[0, 0, 70, 0] = 16
    v[0, 0, 10, :] = 3
    v[0, 0, 70, :] = -2
    scales = scaled_blocks([2.0**-20, 2.0**-20, 1])
    out, _, _ = run_forward(config, (q, k, v), operands=scales, sanitize=True)
    wanted = (3 - 2) / (2 + 190 * np.exp(-16.0)) * 2.0**-20
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=2.0**-7)


@pytest.mark.parametrize("page_size", [None, 16, nightly(48)])
@pytest.mark.parametrize(
    "settings", [{"causal": True}, {"window": (30, 9), "softcap": 2.0, "sink": True}], ids=str
)
def test_each_sequence_is_attention_by_itself(page_size: int | None, settings: dict[str, Any]) -> None:
    config = config_of_sequences(E4M3, page_size, **settings)
    check_sequences(config, ((1, 70), (65, 130), (9, 5), (0, 20), (3, 0)), (2, 1), gap=3)


@pytest.mark.parametrize("settings", [{"causal": True}, {"return_max_logit": True}], ids=str)
def test_splits_are_as_accurate_as_one(settings: dict[str, Any]) -> None:
    config = KINDS[E4M3].config(splits=3, block_q=128, return_lse=False, **settings)
    arrays = arrays_of(config, 70, 300, heads=2)
    scales = operands_of(config, arrays)
    out = AttentionKernel(config).launch(*arrays, backend="interpreter", **scales)
    out = out if isinstance(out, np.ndarray) else out[0]
    numbers = [scaled_numbers(x, scales[n]) for n, x in zip(SCALES, arrays, strict=True)]
    wanted, _ = attention_reference(*numbers, causal=config.causal)
    assert np.abs(out.astype(np.float64) - wanted).max() < 0.1 * np.abs(wanted).max()


def test_one_kernel_of_fp8_has_each_target() -> None:
    assert AttentionConfig(64, dtype="e4m3").target == "sm_90a"
    name = AttentionConfig(64, dtype="e4m3", target="sm_103a").kernel().name
    assert name.startswith("attention_forward_tcgen05_e4m3_d64_m256_n128_")
    ones: Any = {name: np.ones(1, "f4") for name in SCALES}
    config = AttentionConfig(64, dtype="e4m3", target="sm_100a")
    text = AttentionKernel(config).explain(*arrays_of(config, 64, 64), backend="interpreter", **ones)
    assert (
        "products: tcgen05 of fp8, with tiles copied by TMA and sums in tensor memory; no GPU has run it\n"
        in text
    )
