"""The kernels for Blackwell in the mutation campaign: who notices a mistake in what only they have."""

from __future__ import annotations

import numpy as np
import pytest

from flash.problem.config import AttentionConfig
from ptxgen.mutation.judge import HOLE
from tools.campaign.arrays import arrays_of
from tools.campaign.judging import judge, mutants_of
from tools.campaign.kernels import subjects
from tools.campaign.problems import LARGEST

CAUSAL = "f16-sm_100a-causal"
KERNELS = [name for name in subjects() if "-sm_100a" in name]
NEEDED = ("barrier", "copy-wait", "copy-commit", "fence")


def numbers(kernel: str, kind: str, change: str = "") -> list[int]:
    return [
        n
        for n, m in enumerate(mutants_of(kernel))
        if m.kind == kind and m.name.startswith(f"{kind}: {change}")
    ]


def test_rising_scores_move_the_shifts_of_all_rows_at_each_tile() -> None:
    subject = subjects()[CAUSAL]
    (problem,) = (p for p in subject.problems if p.scores == "rising")
    assert problem.times == LARGEST
    arrays = arrays_of(AttentionConfig(64, dtype="f16"), problem)
    keys = arrays.k[0, 0, :, 0].astype(np.float64)
    assert (np.diff(keys) == -1).all()
    assert (arrays.q[0, 0, :, 0] > 0).all()


@pytest.mark.slow
def test_a_correction_that_leaves_out_the_warps_whose_rows_all_moved_is_noticed() -> None:
    subject = subjects()[CAUSAL]
    (problem,) = (p for p in subject.problems if p.scores == "rising")
    changed = [mutants_of(CAUSAL)[n] for n in numbers(CAUSAL, "bound", "inverted")]
    rescaled = [m for m in changed if m.mark == "correction: rescale"]
    assert len(rescaled) == 2  # of two row tiles
    for mutant in rescaled:
        assert subject.run(mutant.module, problem).wrong != ""


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_wait_commit_and_fence_is_needed(kernel: str) -> None:
    """Each one alone is deleted: a check notices, or a reason says why nobody can."""
    alone = [n for kind in NEEDED for n in numbers(kernel, kind, "deleted")]
    alone += numbers(kernel, "mbarrier", "not waited for")
    assert [result for result in (judge(kernel, n) for n in alone) if result.caught_by == HOLE] == []


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kind", "change", "function", "catcher"),
    [
        ("copy-commit", "deleted", "multiply", "trap"),
        ("copy-wait", "deleted", "RowTiles._products", "sanitizer"),
        ("fence", "deleted", "RowTiles.run", "sanitizer"),
        ("mbarrier", "not waited for", "multiply", "sanitizer"),
        ("tensor-memory", "half the columns", "tcgen05_attention_forward", "proof"),
        ("product", "B transposed", "Products.scores", "value"),
    ],
)
def test_a_mistake_in_a_kernel_with_tensor_memory_is_noticed(
    kind: str, change: str, function: str, catcher: str
) -> None:
    at = [n for n in numbers(CAUSAL, kind, change) if mutants_of(CAUSAL)[n].where.endswith(function)]
    result = judge(CAUSAL, at[0])
    assert result.caught_by == catcher, result
