"""What the kernels of gradients are said to cost, against counts of every tile and pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flash.contract.gradients import verified_gradient
from flash.gradients.resources import GradientResources
from flash.problem.config import AttentionConfig
from flash.problem.gradient_choice import gradient_config
from flash.problem.gradients import KEYS, QUERIES, SCORES
from ptxgen import ir
from ptxgen.errors import BackendError
from ptxgen.target import target

MASKS: list[dict[str, Any]] = [
    *({}, {"causal": True}, {"causal": "top_left"}, {"window": (90, 70)}, {"window": (0, None)}),
    *({"window": (None, 3)}, {"window": (40, None), "causal": True}),
]


def made_of(owner: str, *, one_sweep: bool = False, **settings: Any) -> GradientResources:
    config = AttentionConfig(**{"head_dim": 16, "dtype": "f16", **settings})
    kernel = gradient_config(config, owner, target("sm_80"), 16, one_sweep=one_sweep)
    return GradientResources.of(verified_gradient(kernel))


def seen(seq_q: int, seq_k: int, causal: Any = False, window: Any = None) -> np.ndarray[Any, Any]:
    """Which key each query sees."""
    position = np.arange(seq_q)[:, None] + (0 if causal == "top_left" else seq_k - seq_q)
    behind = np.arange(seq_k) - position
    before, after = window or (None, None)
    after = 0 if causal else after
    result = np.ones((seq_q, seq_k), bool)
    if after is not None:
        result &= behind <= after
    if before is not None:
        result &= -behind <= before
    return result


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("owner", [QUERIES, KEYS])
@pytest.mark.ptxas
def test_tiles_and_pairs_are_those_that_are_seen(owner: str, mask: dict[str, Any]) -> None:
    cost = made_of(owner, **mask)
    t, window = cost.config.tiling, mask.get("window")
    for seq_q, seq_k in [(1, 1), (200, 300), (300, 200), (64, 64), (65, 129), (0, 5), (5, 0)]:
        pairs = seen(seq_q, seq_k, **mask)
        rows = pairs if owner == QUERIES else pairs.T
        tiles = 0
        for first in range(0, rows.shape[0], t.block):
            met = np.flatnonzero(rows[first : first + t.block].any(axis=0)) // t.tile
            tiles += met[-1] - met[0] + 1 if met.size else 0
        assert cost.visited_tiles(seq_q, seq_k, window) == tiles
        products = 3 if owner == QUERIES else 4
        assert cost.flops(2, 3, seq_q, seq_k, window) == 6 * tiles * t.block * t.tile * 2 * 16 * products
        assert cost.useful_flops(2, 3, seq_q, seq_k, window) == 6 * int(pairs.sum()) * 2 * 16 * 5


@pytest.mark.parametrize(
    ("owner", "settings"),
    [
        (QUERIES, {}),
        (KEYS, {}),
        (KEYS, {"across": 1}),
        (SCORES, {"bias": "f32"}),
        pytest.param(KEYS, {"head_dim": 192, "head_dim_v": 160}, marks=pytest.mark.nightly),
        pytest.param(KEYS, {"head_dim": 192, "head_dim_v": 160, "across": 4}, marks=pytest.mark.nightly),
        pytest.param(QUERIES, {"head_dim": 40, "head_dim_v": 72}, marks=pytest.mark.nightly),
        pytest.param(KEYS, {"head_dim": 40, "head_dim_v": 72}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_products_are_those_that_the_kernel_issues(owner: str, settings: dict[str, Any]) -> None:
    """A tile's products, by the `mma` of the text, which all lie in the loop over tiles. In one sweep
    those of dQ stand there once for each of the warps `across` the columns, of which each runs its own.
    """
    how = dict(settings)
    across = how.pop("across", 0)
    one_sweep = across > 0
    config = AttentionConfig(**{"head_dim": 16, "dtype": "f16", **how})
    kernel = gradient_config(config, owner, target("sm_80"), 16, one_sweep=one_sweep)
    built = verified_gradient(kernel)
    cost, t = GradientResources.of(built), kernel.tiling
    issued = sum(isinstance(s, ir.Instr) and s.opcode.startswith("mma.") for s in built.kernel.body)
    of_warp = t.block * t.tile * sum(cost.products()) / t.warps
    if one_sweep:
        of_warp += (across - 1) * t.block * t.tile * t.of_scores.output_columns / t.warps
    assert issued * 16 * 8 * 16 == of_warp


@pytest.mark.ptxas
def test_registers_are_those_of_the_assembler() -> None:
    cost = made_of(KEYS, one_sweep=True)
    assert 100 < cost.registers <= 255
    assert cost.spilled_bytes == 0
    assert cost.ctas_per_sm == cost.target.blocks_per_sm_for(128, cost.registers, cost.shared_bytes)
    assert f"128 threads, {cost.registers} registers (assembled), " in str(cost)


def test_without_an_assembler_registers_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**_: object) -> object:
        raise BackendError("no assembler here")

    monkeypatch.setattr("ptxgen.runtime.assembler.find_assembler", missing)
    cost = made_of(QUERIES, head_dim=24)
    assert (cost.registers, cost.spilled_bytes) == (None, None)
    assert "128 threads, registers unknown (no assembler), " in str(cost)
    assert f"at most {cost.ctas_per_sm} CTAs per SM (occupancy at most " in str(cost)
