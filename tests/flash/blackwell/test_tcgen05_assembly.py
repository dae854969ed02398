"""What the assembler makes of the kernel for Blackwell."""

from __future__ import annotations

from typing import Any, Final

import pytest
from kernel_runs import assert_no_spill

from flash.families.choice import tiles_that_fit
from flash.families.tcgen05 import TCGEN05
from flash.problem.config import AttentionConfig
from ptxgen.runtime.assembler import Assembler

pytestmark = pytest.mark.ptxas

FEATURES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"causal": True, "return_lse": True, "return_max_logit": True},
    {"window": (5, 5), "softcap": 5.0, "alibi": True, "sink": True},
    {"bias": "bf16", "dropout": 0.1, "softcap": 3.0},
    {"mask": True, "causal": True},
    {"mask": True, "bias": "f32"},
    {"key_bias": "f32", "dropout": 0.1, "causal": True},
    {"varlen": True, "causal": True, "return_lse": True},
)


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("dims", [(64, 64), (96, 96), (128, 128), (64, 128), (128, 64)], ids=str)
@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_no_tile_offered_spills(
    features: dict[str, Any], dims: tuple[int, int], target: str, assembler: Assembler
) -> None:
    config = AttentionConfig(*dims, dtype="bf16", target=target, **features)
    tiles = 0
    for tile, block_q in tiles_that_fit(config.tile_request, config.kernel().target):
        of_tile = AttentionConfig(
            *dims, dtype="bf16", target=target, tile=tile, block_q=block_q, **features
        ).kernel()
        if of_tile.family is TCGEN05:
            tiles += 1
            assert_no_spill(of_tile, assembler)
    assert tiles >= 2


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize(("dtype", "bias"), [("bf16", "bf16"), ("f16", "f32"), ("e4m3", "f32")])
def test_a_mask_and_a_bias_spill_nothing(dtype: Any, bias: Any, target: str, assembler: Assembler) -> None:
    for more in ({}, {"causal": True, "return_lse": True}):
        config = AttentionConfig(64, dtype=dtype, target=target, mask=True, bias=bias, **more)
        assert_no_spill(config, assembler)
