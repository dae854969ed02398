"""Philox4x32-7, and which weights dropout keeps: in numpy, for the reference and the `cpu` backend.

J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3 and table 2.

The weight of query i of head h of batch b and key j is kept if its 16-bit random number is below
the threshold. The key of the generator is the seed. One call makes the random numbers of eight keys
of a row: counter (4 * (j // 32) + j % 8 // 2, i, b * heads + h, 0) gives four words, and the number
of key j is half j % 2 (0 is the lower one) of word j % 32 // 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ROUNDS: Final = 7  # the fewest that pass BigCrush (table 2)
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)

KEYS_PER_BLOCK: Final = 32
STEPS: Final = 1 << 16  # steps of the probability to keep a weight

_WORD: Final = np.uint64(0xFFFF_FFFF)
_HALF: Final = np.uint64(0xFFFF)


def threshold(dropout: float) -> int:
    """The number of the 65536 random numbers that keep a weight: from 1 to 65535 for probabilities between 0
    and 1. Raises nothing; the caller checks that 0 <= `dropout` < 1.
    """
    return min(max(round((1 - dropout) * STEPS), 1), STEPS - 1)


def philox(counter: Sequence[Any], seed: int) -> list[NDArray[np.uint64]]:
    """Four random words for each element of the counter's four words, which broadcast."""
    words = [np.asarray(word, np.uint64) for word in np.broadcast_arrays(*counter)]
    key = [seed & 0xFFFF_FFFF, seed >> 32]
    for _ in range(ROUNDS):
        first, second = (words[2 * n] * np.uint64(m) for n, m in enumerate(MULTIPLIERS))
        words = [
            (second >> np.uint64(32)) ^ words[1] ^ np.uint64(key[0]),
            second & _WORD,
            (first >> np.uint64(32)) ^ words[3] ^ np.uint64(key[1]),
            first & _WORD,
        ]
        key = [(k + step) & 0xFFFF_FFFF for k, step in zip(key, KEY_STEPS, strict=True)]
    return words


def keep_mask(
    dropout: float, seed: int, heads: NDArray[Any], queries: NDArray[Any], keys: NDArray[Any]
) -> NDArray[np.bool_]:
    """The weights that dropout keeps, bool [heads, queries, keys], for the indices of heads (batch * heads +
    head), queries and keys.
    """
    at = 4 * (keys // KEYS_PER_BLOCK) + keys % 8 // 2
    words = philox((at, queries[:, None], heads[:, None, None], 0), seed)
    word = np.choose(keys % KEYS_PER_BLOCK // 8, words)
    half = (word >> (16 * (keys % 2)).astype(np.uint64)) & _HALF
    result: NDArray[np.bool_] = half < threshold(dropout)
    return result
