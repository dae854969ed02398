"""Synchronisation of forward kernels without `wgmma`, each part of which is needed; and what memory costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance import KINDS, Arrays, arrays_of
from kernel_runs import nightly, run_forward, run_without

from flash.contract.catalogue import build
from flash.problem.config import AttentionConfig
from ptxgen import ir
from ptxgen.errors import TrapError

pytestmark = pytest.mark.grid

# With values wider than keys the epilogue takes several passes; of long rows V is awaited before the softmax.
_WIDE: dict[str, Any] = {"head_dim": 16, "head_dim_v": 32, "block_q": 64, "causal": True}
# For each kernel: its kind, its settings, and its number of barriers, waits and commits.
KERNELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "one stage": ("mma f16", {**_WIDE, "stages": 1}, 20),
    "two stages": ("mma f16", {**_WIDE, "stages": 2}, 22),
    "sm_75": ("mma sm_75", _WIDE, 8),
    "simt": ("simt", {"block_q": 64}, 7),
    "simt sm_75": ("simt sm_75", {"block_q": 64}, 2),
    "wide values": ("mma f32_grade", {**_WIDE, "head_dim_v": 64}, 25),
    "long rows": ("mma f32_grade", {"head_dim": 256, "causal": True, "tile": "auto", "block_q": "auto"}, 23),
}
_SYNCHRONISING = ("bar.sync", "bar.warp.sync", "cp.async.wait_group", "cp.async.commit_group")


def problem(name: str) -> tuple[AttentionConfig, Arrays]:
    kind, settings, _ = KERNELS[name]
    config = KINDS[kind].config(**settings)
    q, k, v = arrays_of(config, config.kernel().tiling.block_q, 150)
    if kind.startswith("mma"):
        v[..., -9, :] = np.nan
        q[..., 40, :] *= 300 if q.dtype == np.float32 else 1  # a factor, which the first warp does not split
    return config, (q, k, v)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one stage", "two stages", "sm_75", "simt", "simt sm_75"])
def test_with_all_barriers_waits_and_commits_nothing_is_reported(name: str) -> None:
    config, arrays = problem(name)
    run_forward(config, arrays, sanitize=True)


@pytest.mark.slow
@pytest.mark.interpreter
@pytest.mark.sample(8, gate=25)
@pytest.mark.parametrize(
    ("name", "nth"),
    [
        (nightly if name in ("wide values", "long rows") else lambda *case: case)(name, n)
        for name, (_, _, count) in KERNELS.items()
        for n in range(count)
    ],
)
def test_no_barrier_wait_or_commit_can_be_left_out(name: str, nth: int) -> None:
    config, arrays = problem(name)
    body = build(config.kernel()).kernel.body
    result = [at for at, s in enumerate(body) if isinstance(s, ir.Instr) and s.opcode in _SYNCHRONISING]
    assert len(result) == KERNELS[name][2]
    with pytest.raises(TrapError, match=r"race|pending|uninitialised"):
        run_without(config, arrays, result[nth])


@pytest.mark.slow
@pytest.mark.sample(3, gate=8)
@pytest.mark.parametrize(
    ("kind", "head_dim"),
    [
        *(("mma f16", head_dim) for head_dim in (16, 32, 48, 64, 80, 96, 112, 128, 192, 256)),
        # Rows of no multiple of 16 bytes are copied by 4 bytes, and four lanes to a bank.
        *(("mma f32_grade", head_dim) for head_dim in (4, 16, 32, 40, 64, 80, 128, 160, 256)),
    ],
)
def test_shared_memory_has_no_bank_conflicts(kind: str, head_dim: int) -> None:
    config = KINDS[kind].default(head_dim, causal=True)
    t = config.kernel().tiling
    _, _, result = run_forward(config, arrays_of(config, t.block_q, 2 * t.tile), profile=True)
    by_instruction = result.counters.memory_by_instruction
    assert by_instruction
    for moved in by_instruction.values():
        assert moved.shared_wavefronts == moved.shared_least, moved
