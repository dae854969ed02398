"""The forward kernel for Blackwell with CTAs that take several parts of the problem, one after another: its
own PTX, run with the sanitizers on, beside the kernel with a CTA for each part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from conformance import KINDS, Arrays, arrays_of, assert_same_bits, judge, operands_of, run
from kernel_runs import assert_no_spill, assert_proved

from flash import AttentionConfig
from flash.families.tcgen05 import TCGEN05
from flash.problem.persistence import why_grid
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler

pytestmark = [pytest.mark.grid, pytest.mark.judged]

FEATURES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"causal": True},
    "window": {"window": (30, 25), "softcap": 1.5},
    "alibi": {"sink": True, "alibi": True, "causal": "top_left"},
    "packed": {"pack_gqa": True, "causal": True, "block_q": 128},
}


NO_REGISTERS = "two row tiles and {} leave no registers for tickets; use block_q=128"


def config_of(scheduler: str, **how: Any) -> AttentionConfig:
    config = KINDS["tcgen05 f16"].config(scheduler=scheduler, **how)
    assert config.kernel().scheduler == scheduler
    return config


def problem(config: AttentionConfig) -> Arrays:
    """Rows of which the last block is not full, and keys of which some blocks see none if causal."""
    return arrays_of(config, 300, 40, batch=2, heads=2)


@pytest.mark.slow
@pytest.mark.sample(2, gate=4)
@pytest.mark.parametrize("ctas", [1, 3, 8])
@pytest.mark.parametrize("scheduler", ["ticket", "static", "mirrored"])
@pytest.mark.parametrize("feature", FEATURES)
def test_any_number_of_ctas_has_the_bits_of_the_grid(feature: str, scheduler: str, ctas: int) -> None:
    config = config_of(scheduler, **FEATURES[feature])
    arrays = problem(config)
    operands = operands_of(config, arrays)
    wanted = run(replace(config, scheduler="grid"), arrays, operands, sanitize=False)
    for how in ({}, {"schedule": PCT(1)}):
        out, lse = run(config, arrays, operands, ctas=ctas, **how)
        judge(config, arrays, out, lse, operands)
        assert_same_bits((out, lse), wanted)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("scheduler", ["ticket", "static", "mirrored"])
@pytest.mark.parametrize("feature", FEATURES)
def test_every_access_and_barrier_is_proved(feature: str, scheduler: str) -> None:
    assert_proved(config_of(scheduler, **FEATURES[feature]))


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
@pytest.mark.parametrize("scheduler", ["static", "ticket"])
@pytest.mark.parametrize("feature", FEATURES)
def test_no_kernel_spills(feature: str, scheduler: str, head_dim: int, assembler: Assembler) -> None:
    settings = {name: of for name, of in FEATURES[feature].items() if name != "block_q"}
    assert_no_spill(KINDS["tcgen05 f16"].default(head_dim, scheduler=scheduler, **settings), assembler)


@pytest.mark.parametrize(
    ("scheduler", "how", "why"),
    [
        ("ticket", {"mask": True}, TCGEN05.why_no_planes),
        ("ticket", {"varlen": True}, NO_REGISTERS.format("packed sequences")),
        (
            "ticket",
            {"head_dim": 192, "head_dim_v": 128, "block_q": 256},
            NO_REGISTERS.format("rows of more than 128 columns"),
        ),
        ("mirrored", {"bias": "f32", "causal": True}, TCGEN05.why_no_planes),
        ("static", {"head_dim_v": 320}, "several CTAs have the columns of V of the same rows"),
    ],
)
def test_what_is_not_offered_has_a_grid(scheduler: str, how: dict[str, Any], why: str) -> None:
    config = KINDS["tcgen05 f16"].config(scheduler=scheduler, **how).kernel()
    assert config.scheduler == "grid"
    assert why_grid(config.tiling, config.features, scheduler) == why
