"""Kernels whose keys lie in a cache: as many as each sequence has by now, from behind its padding
on, in any sequence of K and V, in pages, and shared out among several CTAs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flash.problem.config import AttentionConfig
from tools.campaign.cache import CacheArrays, CacheProblem, CacheSettings

pytestmark = [pytest.mark.grid, pytest.mark.judged, pytest.mark.usefixtures("unproved")]

KERNELS: dict[str, dict[str, Any]] = {
    "f32": {"tile": 16, "block_q": 16},
    "f16": {"dtype": "f16", "tile": 16, "block_q": 32},
    "bf16": {"dtype": "bf16", "tile": 32, "block_q": 32},
    "f32_grade": {"precision": "f32_grade", "tile": 16, "block_q": 32},
}


def config_of(name: str, dims: tuple[int, int], *, target: str = "sm_80") -> AttentionConfig:
    return AttentionConfig(*dims, causal=True, return_lse=True, pack_gqa=True, target=target, **KERNELS[name])


def attended(settings: CacheSettings, problem: CacheProblem) -> CacheArrays:
    """The arrays after the launch. O is as accurate as it should be, and the cache as before."""
    arrays = CacheArrays.of(settings, problem)
    step = arrays.step()
    features = step.build.config.features
    assert features.seqused_k
    assert (features.splits, features.page_size) == (settings.has_splits, settings.page_size)
    assert (features.leftpad_k, features.cache_batch_idx) == (settings.indexed, settings.indexed)
    assert features.kv_dtype == (None if settings.kv_dtype is None else settings.stored)
    step.interpret(sanitize=True)
    assert arrays.wrong() == ""
    return arrays


@pytest.mark.sample(2, gate=5)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("page_size", "head_dim_v"), [(0, 24), (3, 21), (16, 24)], ids=["whole", "pages-3", "pages-16"]
)
def test_keys_of_a_cache_are_those_of_each_sequence(
    name: str, splits: int, page_size: int, head_dim_v: int
) -> None:
    settings = CacheSettings(config_of(name, (24, head_dim_v)), page_size, splits > 1)
    attended(settings, CacheProblem(2, (75, 0, 40), (3, 0, 39), splits=splits))


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize(("splits", "page_size"), [(1, 0), (3, 4)])
def test_keys_of_one_byte_are_widened_and_have_scales(name: str, splits: int, page_size: int) -> None:
    config = config_of(name, (24, 40), target="sm_89")
    settings = CacheSettings(config, page_size, splits > 1, indexed=False, kv_dtype="e4m3")
    attended(settings, CacheProblem(2, (75, 0, 40), splits=splits))


def test_nan_of_one_byte_reaches_the_rows_that_see_it() -> None:
    config = config_of("f16", (16, 16), target="sm_89")
    settings = CacheSettings(config, has_splits=False, indexed=False, kv_dtype="e4m3")
    # Queries 4 to 7 see a key whose V is NaN, at their positions 36 to 39.
    out = attended(settings, CacheProblem(8, (40,), heads=1, kv_heads=1, nan_last=4)).out
    assert np.isnan(out[0, 0, 4:]).all()
    assert np.isfinite(out[0, 0, :4]).all()
