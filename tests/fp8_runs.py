"""Problems with Q, K and V of fp8 and scales of heads: kernels run on the interpreter, against float64."""

from __future__ import annotations

from typing import Final

import numpy as np
from conformance import KINDS, SCALES, Array, Arrays

from flash.reference import scaled_numbers

config_of: Final = KINDS["fp8 e4m3"].config


def scales_of(batch: int = 1, kv_heads: int = 1) -> dict[str, Array]:
    """Scales that differ in all sequences and heads; one of Q is negative."""
    rng = np.random.default_rng(batch + kv_heads)
    result = {name: rng.uniform(0.5, 2, (batch, kv_heads)).astype(np.float32) for name in SCALES}
    result["q_scale"][-1, -1] *= -1
    return result


def scaled(arrays: Arrays, scales: dict[str, Array]) -> tuple[Array, ...]:
    """Q, K and V as the numbers that they stand for, in float64."""
    return tuple(scaled_numbers(x, scales[name]) for x, name in zip(arrays, SCALES, strict=True))
