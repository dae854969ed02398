"""Terms of the gradients of arrays that a `score_mod` reads: what each score adds to the elements that its
function reads, as exact sums, so that their order does not matter.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from flash.device.exact_sums import add_exactly
from flash.device.gradient_parts import GradientParameters
from flash.device.gradient_scores import ScoreGradients
from flash.device.head_scores import HeadScores
from flash.device.mma_products import WarpCoordinates
from flash.mods.elements import ElementRead, element_reads
from flash.mods.emit import AuxElements, Emitted
from flash.mods.trace import SUMMED
from flash.problem.gradients import GradientConfig, exact_sums_of
from flash.scores.applied_mods import AppliedScoreMod, OfTile
from flash.scores.mods import ScoreMod
from flash.scores.score_coordinates import ScoreCoordinates
from ptxgen.dsl import Fragment, KernelBuilder, Value
from ptxgen.dsl.matrices.lanes import QUAD, QUAD_LANES, over_lanes
from ptxgen.dsl.source_regions import marked
from ptxgen.types import s64, u64

_OCTET: Final = [4, 8, 16]  # butterfly distances to the lanes with other rows of the same columns


@dataclass(frozen=True)
class _Read:
    """One read of an element: where its sums are, `plane_bytes` (s64) apart; the code of its address; and the
    derivative of scores by it: a number, or this thread's derivatives.
    """

    inputs: frozenset[str]
    plane_bytes: Value
    element: Emitted
    slope: float | Fragment

    @property
    def uses_query(self) -> bool:
        return "query" in self.inputs

    @property
    def uses_key(self) -> bool:
        return "key" in self.inputs


class ElementTerms:
    """The terms of the arrays whose gradients `config` wants, for one head."""

    @marked("gradient of elements: sums")
    def __init__(
        self,
        k: KernelBuilder,
        config: GradientConfig,
        parameters: GradientParameters,
        scores: HeadScores,
        shape: tuple[int, int],
    ) -> None:
        self.k, self._scores = k, scores
        mod = next(feature for feature in config.features.scores if isinstance(feature, ScoreMod))
        self._reads, slopes = [], []
        for read in element_reads(mod.trace):
            if read.array.operand not in config.wanted:
                continue
            sums, plane_bytes = self._sums(read, parameters)
            slope: float | Fragment
            if (constant := read.slope.steps[-1]).op == "const":
                slope = float(constant.value or 0.0)
            else:
                slope = k.fragment(*shape, initial=0.0)
                slopes.append((mod.emitted(scores, read.slope), slope))
            element = mod.emitted(scores, read.element, {SUMMED: sums})
            self._reads.append(_Read(read.inputs, plane_bytes, element, slope))
        self._slopes = tuple(slopes)

    def _sums(self, read: ElementRead, parameters: GradientParameters) -> tuple[AuxElements, Value]:
        """The exact sums of an array's elements, and the distance of their planes in bytes."""
        k, sizes = self.k, [parameters.numbers[size] for size in read.array.sizes]
        steps: list[Value] = [k.mov(u64.nbytes, type=s64)]
        for size in reversed(sizes):
            steps.append(steps[-1] * k.cvt(size, dtype=s64))
        plane_bytes, *by_axis = reversed(steps)
        first = parameters.terms[exact_sums_of(read.array)].value
        return AuxElements(first, by_axis, [size - 1 for size in sizes]), plane_bytes

    def followed(self, gradients: ScoreGradients) -> ScoreGradients:
        """`gradients` whose scores also give the derivatives by elements."""
        scoring = gradients.scoring
        assert scoring is not None  # a function changes scores
        steps = [
            replace(step, by_elements=self._slopes) if isinstance(step, AppliedScoreMod) else step
            for step in scoring.steps
        ]
        return replace(gradients, scoring=replace(scoring, steps=steps))

    @marked("gradient of elements: terms")
    def add(self, me: WarpCoordinates, dS: Fragment, coordinates: ScoreCoordinates) -> None:
        """Add the terms of a tile's gradients of scores. What all keys, or all queries, of a tile add to the
        same element is summed by the warp first, in a fixed order.
        """
        for read in self._reads:
            of = OfTile(self._scores, read.element, coordinates)
            terms = self._terms(dS, read.slope)
            if read.uses_query and read.uses_key:
                for i, j, elements in of.each():
                    self._add(read, elements.element(i, j, of.indices(i, j)), terms[i][j])
                continue
            rows = [_total(row) for row in terms]
            keys = [_total([row[j] for row in terms]) for j in range(dS.columns)]
            if read.uses_query:
                sums, lanes, only = rows, QUAD, me.in_quad == 0
            elif read.uses_key:
                sums, lanes, only = keys, _OCTET, me.lane < QUAD_LANES
            else:
                sums, lanes, only = [_total(rows)], [*QUAD, *_OCTET], me.lane == 0
            whole = [over_lanes(self.k, x, lanes, operator.add) for x in sums]
            with self.k.when(only):
                for n, x in enumerate(whole):
                    i, j = (n, 0) if read.uses_query else (0, n)
                    self._add(read, of.elements.element(i, j, of.indices(i, j)), x)

    def _terms(self, dS: Fragment, slope: float | Fragment) -> list[list[Value]]:
        """The terms of this thread's scores; 0 where dS is 0, whatever the slope is."""
        k = self.k
        if isinstance(slope, float):
            return [[x if slope == 1.0 else x * slope for x in row] for row in dS]
        return [
            [k.selp(0.0, x * y, x == 0.0) for x, y in zip(*rows, strict=True)]
            for rows in zip(dS, slope, strict=True)
        ]

    def _add(self, read: _Read, at: Value, x: Value) -> None:
        add_exactly(self.k, at, read.plane_bytes, x)


def _total(values: Sequence[Value]) -> Value:
    return functools.reduce(operator.add, values)
