"""What truncation in tensor cores does to long sums: `docs/numerics.md` states these numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_runs import nightly, run_forward

from flash.problem.config import AttentionConfig
from flash.reference import attention_reference

pytestmark = pytest.mark.judged

HEAD_DIM = 16
QUERIES = 64


def mean_relative_error(config: AttentionConfig, keys: int) -> float:
    """Of attention whose weights are nearly equal, to values from 0.5 to 1."""
    rng = np.random.default_rng(0)
    q = 0.1 * rng.standard_normal((1, 1, QUERIES, HEAD_DIM))
    k = rng.standard_normal((1, 1, keys, HEAD_DIM))
    v = rng.uniform(0.5, 1, (1, 1, keys, HEAD_DIM))
    arrays = tuple(x.astype(config.element.numpy) for x in (q, k, v))
    out, _, _ = run_forward(config, arrays)
    wide = (x.astype(np.float32) for x in arrays)
    wanted, _ = attention_reference(*wide, softmax_scale=config.scale)
    return float((out.astype(np.float64) / wanted - 1).mean())


@pytest.mark.parametrize(
    ("target", "keys", "how", "wanted"),
    [
        ("sm_80", 1024, {"dtype": "f16"}, -4.5e-6),
        nightly("sm_80", 16384, {"dtype": "f16"}, -1.9e-4),
        nightly("sm_90", 16384, {"dtype": "f16"}, -1.2e-4),
    ],
)
def test_truncation_shrinks_a_long_sum(target: str, keys: int, how: dict[str, Any], wanted: float) -> None:
    config = AttentionConfig(HEAD_DIM, target=target, **how)
    assert mean_relative_error(config, keys) == pytest.approx(wanted, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "precision", "keys"),
    [
        ("sm_80", "tf32", 1024),
        nightly("sm_80", "tf32", 16384),
        nightly("sm_90", "tf32", 16384),
        nightly("sm_80", "f32_grade", 16384),
        nightly("sm_90", "f32_grade", 16384),
    ],
)
def test_sums_that_are_joined_in_f32_do_not_shrink(target: str, precision: Any, keys: int) -> None:
    config = AttentionConfig(HEAD_DIM, precision=precision, target=target)
    assert abs(mean_relative_error(config, keys)) < {"f32_grade": 1e-6, "tf32": 2e-6}[precision]
