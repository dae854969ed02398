"""What the `cpu` backend does to blocks of scores and weights: the features of a call, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.scores.feature import Block, Scored, ScoreFeature
from flash.scores.features import asked

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """How scaled products become scores, and which scores count."""

    of: Scored
    features: Sequence[type[ScoreFeature]]

    @classmethod
    def asked_by(cls, of: Scored) -> ScoreRules:
        """The rules for the features that the arguments of a call ask for."""
        return cls(of, tuple(asked(of.arguments)))

    def seen_by_any(self, queries: slice) -> range:
        """The keys that some of these queries may see."""
        found = range(self.of.shape[3])
        for feature in self.features:
            seen = feature.keys_seen(queries, self.of)
            start = max(found.start, seen.start)
            found = range(start, max(start, min(found.stop, seen.stop)))
        return found

    def apply(self, score: Array, block: Block) -> None:
        """Change a block of scaled products, [heads, queries, keys], into scores."""
        for feature in self.features:
            feature.change_block(score, block)

    def hidden(self, block: Block) -> Array | None:
        """[heads or 1, queries, keys]: True where a query does not see a key; None if all are
        seen.
        """
        found = None
        for feature in self.features:
            part = feature.hidden_in(block)
            if part is not None:
                found = part if found is None else found | part
        return found

    def drop(self, weight: Array, block: Block) -> None:
        """Change a block of weights that are summed already."""
        for feature in self.features:
            feature.drop_block(weight, block)

    def sinks(self, batch: int, heads: slice, rows: int) -> Array | None:
        """The score that each of `rows` rows of these heads has before any key, head by head."""
        for feature in self.features:
            found = feature.sinks(batch, heads, self.of)
            if found is not None:
                return np.repeat(found, rows // len(found))
        return None
