"""Scores in float64, and how far those of a right implementation may be from them: what
`flash/error_bound.py` says of scores, on which its bounds of results rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.operands.dtype_names import Causal
from flash.reference import score_steps, visible_keys
from flash.scores.feature import Scored
from flash.scores.features import scored

Array = NDArray[Any]

CONFIDENCE: Final = 5.0  # standard deviations
U: Final = 2.0**-24
ROUNDING: Final = U**2 / 3  # the variance of rounding 1
_FACTORS: Final = 4.0  # roundings of scale, log2(e), their product and a scale of K
_ADDITIONS: Final = 2  # roundings of a score that are counted for features that add to it
_LEAST: Final = 2.0**-126  # the least normal f32: smaller numbers may be flushed to 0


class ScoreErrors(NamedTuple):
    """Scores [batch, heads, seq_q, seq_k], whose errors have the variance `random` and the means `shared`,
    and which of them are of keys that the query sees.
    """

    score: Array
    random: Array
    shared: list[Array]
    of: Scored
    visible: Array

    @classmethod
    def of_products(
        cls,
        q: Array,
        k: Array,
        sum_error: Callable[..., tuple[Array, Array]],
        least: Callable[[Array], Array] | None,
        *,
        softmax_scale: float | None = None,
        causal: Causal = False,
        first_batch: int = 0,
        first_query: int = 0,
        **scores: Any,
    ) -> ScoreErrors:
        """The scores of `attention_reference`. `sum_error` and `least` are those of an `Arithmetic`."""
        k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
        q, k = (x.astype(np.float64) for x in (q, k))
        scale = 1 / math.sqrt(q.shape[3]) if softmax_scale is None else float(softmax_scale)
        products = q @ k.swapaxes(2, 3)
        of = scored(products.shape, causal, np.float64, first_batch, scores, first_query)
        scaled = scale * products
        squares = square(q) @ square(k).swapaxes(2, 3)
        random, mean = sum_error(q.shape[3], products, squares, in_chains=False)
        least_q, least_k = (np.zeros(x.shape[:-1]) if least is None else least(x) for x in (q, k))
        size_q, size_k = (square(finite(x)).sum(axis=-1) for x in (q, k))
        of_pairs = square(least_q)[..., None] * size_k[..., None, :]
        random = random + (of_pairs + size_q[..., None] * square(least_k)[..., None, :]) / 3
        random = random * square(scale) + ROUNDING * square(scaled)
        # Errors of scores of which each is due to a factor that all keys of a row share.
        shared = [scale * mean + _FACTORS * U * scaled]
        score, additions = scaled, _ADDITIONS
        for feature, before, after in score_steps(scaled, of):
            score, step = after, feature.error(before, after, of)
            if step is None:
                continue
            random = random * square(step.slope) + ROUNDING * square(step.rounded)
            shared = [error * step.slope for error in shared] + [step.shared]
            additions -= step.adds
        # A kernel adds scores in fused steps; as many roundings are counted without a feature.
        random = random + max(additions, 0) * ROUNDING * square(score)
        return cls(score, random, shared, of, visible_keys(of))

    def largest(self) -> tuple[Array, Array]:
        """The largest score of each head of those that its rows see, and the error that it may have: the most
        by which one of them may be above it. Another score may be the largest one of an implementation, but
        none that is lower by more.
        """
        score = np.where(self.visible, self.score, -np.inf)
        error = CONFIDENCE * np.sqrt(finite(self.random)) + sum(np.abs(finite(x)) for x in self.shared)
        above = score + error + 3 * U * np.abs(finite(score)) + _LEAST
        top, most = (x.max(axis=(2, 3), initial=-np.inf) for x in (score, above))
        return top, np.where(np.isfinite(top), most - top, 0)


def square(x: Any) -> Any:
    """x * x."""
    return x * x


def finite(x: Array) -> Array:
    """x, with 0 for elements that are not finite: these have no rounding error."""
    return np.where(np.isfinite(x), x, 0)
