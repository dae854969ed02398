"""Arrays for calls of the adapter of JAX: grouped heads, and rows of other lengths for V."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

BATCH, HEADS, KV_HEADS, SEQ_Q, SEQ_K, DIM, DIM_V = 2, 4, 2, 5, 9, 8, 6
DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Standard normal numbers, the same for the same seed and shape."""
    random = np.random.default_rng([seed, *shape])
    return random.standard_normal(shape, dtype=np.float32).astype(dtype)


def matrices(dtype: Any = np.float32) -> dict[str, Array]:
    """q, k and v."""
    return {
        "q": normal(BATCH, HEADS, SEQ_Q, DIM, dtype=dtype),
        "k": normal(BATCH, KV_HEADS, SEQ_K, DIM, seed=1, dtype=dtype),
        "v": normal(BATCH, KV_HEADS, SEQ_K, DIM_V, seed=2, dtype=dtype),
    }


def bits(results: Any) -> list[bytes]:
    """The bytes of each array."""
    return [np.asarray(x).tobytes() for x in results]
