"""Sums over gradients of scores for the gradients of arrays of scores: a number for each row, or for each
key, in the registers of the lanes that share it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from flash.device.gradient_parts import Terms
from flash.device.gradient_scores import ScoreGradients
from flash.problem.gradients import GradientConfig
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen.dsl import Fragment, KernelBuilder, Value, Var
from ptxgen.dsl.matrices.lanes import QUAD, over_lanes
from ptxgen.dsl.source_regions import marked
from ptxgen.types import f32


class RowTerms:
    """The sums over the keys of each of a thread's rows, for the features of `gradients` whose gradients
    follow from numbers of rows.
    """

    def __init__(self, k: KernelBuilder, gradients: ScoreGradients, rows: Sequence[int]) -> None:
        self.k, self.rows = k, rows
        self._features = gradients.by_rows
        self._sums = {name: [k.var(f32, 0.0) for _ in rows] for name, _ in self._features}

    def add(self, dS: Fragment, coordinates: ScoreCoordinates | None) -> None:
        """Add what a tile's gradients of scores contribute to the sums."""
        for name, feature in self._features:
            assert coordinates is not None
            for total, more in zip(self._sums[name], feature.row_gradients(dS, coordinates), strict=True):
                self.k.add(total, more, into=total)

    @marked("gradient of queries: terms")
    def write(self, terms: Terms, my_query: Value, in_quad: Callable[[], Value], seq_q: Value) -> None:
        """Write each row's sum; `my_query` is this thread's first row, and `in_quad()` its number among the
        lanes of a row.
        """
        k = self.k
        for name, totals in self._sums.items():
            for down, total in zip(self.rows, totals, strict=True):
                whole = over_lanes(k, total, QUAD, operator.add)
                exists = my_query + down < seq_q
                with k.when(exists & (in_quad() == 0)):
                    terms.write(k, f"row_{name}", my_query + down, whole)


class KeyTerms:
    """The sums over the queries of each of a thread's keys, for the terms of `config`: gradients of scores
    or, for a feature with one number for each head, their terms in the gradient of that number.
    """

    def __init__(
        self, k: KernelBuilder, config: GradientConfig, gradients: ScoreGradients, keys: Sequence[int]
    ) -> None:
        self.k, self.keys = k, keys
        self._of_head = dict(gradients.by_rows)
        self._sums = {term.name: [k.var(f32, 0.0) for _ in keys] for term in config.terms}

    def add(self, dS: Fragment, coordinates: ScoreCoordinates | None) -> None:
        """Add the terms of a tile's gradients of scores, of which `dS` has a row for each key."""
        k = self.k
        for name, totals in self._sums.items():
            feature = self._of_head.get(name.removeprefix("key_"))
            for i, (total, row) in enumerate(zip(totals, dS, strict=True)):
                terms: list[Value] = [*row]
                if feature is not None:
                    assert coordinates is not None  # the feature needs them
                    of_key = replace(coordinates, keys=coordinates.keys[i : i + 1])
                    terms = feature.row_gradients(dS.part(slice(i, i + 1)).transposed, of_key)
                for term in terms:
                    k.add(total, term, into=total)

    @marked("gradient of keys: terms")
    def write(
        self,
        terms: Terms,
        my_key: Callable[[], Value],
        writes: Callable[[Value], Value],
        over_queries: Callable[[Sequence[Var]], Iterable[Value]],
    ) -> None:
        """Write each key's sum over the lanes and warps that `over_queries` sums; `my_key()` is this
        thread's first key, and `writes(key)` whether this thread writes that of a key.
        """
        for name, totals in self._sums.items():
            for down, whole in zip(self.keys, over_queries(totals), strict=True):
                key = my_key() + down
                with self.k.when(writes(key)):
                    terms.write(self.k, name, key, whole)
